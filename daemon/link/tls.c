/* tls.c - the part of OpenSSL 3 that links between nodes use.
 *
 * Only TLS 1.3 with (EC)DHE, one suite. A side proves itself by one of two things; which of them
 * count, the configuration says (cluster.authentication).
 *
 * The shared key: the external PSK "commd-NAME" (psk_dhe_ke). Where certificates do not count there
 * is none on either side, so a handshake without the key cannot end well:
 *  - as server we have nothing else to authenticate with: a ClientHello whose PSK we do not
 *    know, or whose binder was made with another key, fails before any of our secrets is used;
 *  - as client SSL_VERIFY_PEER with an empty trust store refuses every certificate that a
 *    false server might offer instead of the PSK;
 *  - and tls_is_authenticated() checks again after the handshake.
 * The key is shared by all nodes, so an attacker can reflect a node's own hello to it; the
 * PEER_HELLO of peer_link.c catches that (a node that claims to be ourselves is refused). Whoever
 * has the key can be any node.
 * Tickets and the session cache are off: each link does its own key exchange.
 *
 * There may be two keys, while the operator replaces one by the other. The identity of the PSK
 * names the key by a hash, which tells nothing of its 32 random bytes; the binder proves the key. A
 * server accepts both keys. A client offers one in a handshake, because OpenSSL takes no more; the
 * caller chooses which.
 *
 * Certificates: both sides show one (tls_identity.c), and peer_link.c compares the names in it with
 * the node that is claimed, and with the node that was called. In TLS 1.3 the client has ended its
 * handshake before the server has seen its certificate: a refusal comes as an alert where the
 * client waits for a hello.
 *
 * Both at once, while a cluster changes over: a client offers its certificate first (a ClientHello
 * without a PSK), and the key after a server has refused that because it has no certificate. A man
 * in the middle can forge that refusal, and so have the two use the key; he gains nothing unless he
 * has it. A node that only takes certificates has no PSK to offer, and knows none: there is no way
 * down. A certificate that was looked at and refused is not followed by the key.
 *
 * Each tls_set() makes a new context, which does not change; sessions keep theirs. So what was
 * begun before it and ends after it is looked at again: tls_is_authenticated(). */
#include "daemon/link/tls.h"
#include "shm/proto/cause_text.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>

static const char tls_pskid[] = "commd-"; /* and the key's name */
static const char tls_suite[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char tls_suite_id[] = {0x13, 0x01};

enum { KEY_DIGITS = 8 }; /* of a hash, in a key's name */
_Static_assert((int)KEY_DIGITS < (int)TLS_KEY_NAME, "a name is long enough");

struct tls_key {
    uint8_t bytes[CONF_KEY_BYTES];
    char name[TLS_KEY_NAME];
    char identity[sizeof(tls_pskid) + TLS_KEY_NAME];
};

struct tls {
    SSL_CTX *ctx;                  /* owned */
    struct tls_identity *identity; /* owned; NULL: no certificates */
    struct tls_key keys[CONF_KEYS_MAX];
    struct tls_key unknown; /* stands for a key that a client has offered and that we do not have */
    unsigned nkeys;
};

static void name_key(struct tls_key *key)
{
    static const char purpose[] = "commd: the name of a cluster key";
    uint8_t text[sizeof(purpose) + CONF_KEY_BYTES], hash[SHA256_DIGEST_LENGTH];
    char name[TLS_KEY_NAME];

    memcpy(text, purpose, sizeof(purpose));
    memcpy(text + sizeof(purpose), key->bytes, CONF_KEY_BYTES);
    SHA256(text, sizeof(text), hash);
    OPENSSL_cleanse(text, sizeof(text));
    for (unsigned i = 0; i < KEY_DIGITS / 2; i++)
        snprintf(name + 2 * i, 3, "%02x", hash[i]);
    snprintf(key->name, sizeof(key->name), "%s", name);
    snprintf(key->identity, sizeof(key->identity), "%s%s", tls_pskid, name);
}

static void set_keys(struct tls *tls, const struct conf_keys *keys)
{
    OPENSSL_cleanse(tls->keys, sizeof(tls->keys));
    assert(keys->n <= CONF_KEYS_MAX);
    tls->nkeys = keys->n;
    for (unsigned i = 0; i < tls->nkeys; i++) {
        memcpy(tls->keys[i].bytes, keys->key[i], CONF_KEY_BYTES);
        name_key(&tls->keys[i]);
    }
}

static bool has_key(const struct tls *tls, const uint8_t bytes[CONF_KEY_BYTES])
{
    for (unsigned i = 0; i < tls->nkeys; i++)
        if (!CRYPTO_memcmp(tls->keys[i].bytes, bytes, CONF_KEY_BYTES))
            return true;
    return false;
}

bool tls_keys_shrink(const struct tls *tls, const struct conf_keys *keys)
{
    for (unsigned i = 0; i < keys->n; i++)
        if (!has_key(tls, keys->key[i]))
            return false;
    return keys->n < tls->nkeys;
}

bool tls_differs(const struct tls *tls, const struct conf_keys *keys,
                 const struct tls_identity *identity)
{
    if (keys->n != tls->nkeys || !identity != !tls->identity)
        return true;
    for (unsigned i = 0; i < keys->n; i++)
        if (CRYPTO_memcmp(tls->keys[i].bytes, keys->key[i], CONF_KEY_BYTES))
            return true;
    return false;
}

const char *tls_key_name(const struct tls *tls, unsigned i)
{
    if (tls->identity && i-- == 0)
        return TLS_CERTIFICATE_NAME;
    return i < tls->nkeys ? tls->keys[i].name : "";
}

const struct tls_identity *tls_identity(const struct tls *tls)
{
    return tls->identity;
}

/* The external PSK in the shape in which OpenSSL wants it: a session with a master key. */
static SSL_SESSION *psk_session(SSL *ssl, struct tls_key *key)
{
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, tls_suite_id);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session && cipher && SSL_SESSION_set1_master_key(session, key->bytes, CONF_KEY_BYTES) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION)) {
        SSL_set_app_data(ssl, key);
        return session;
    }
    SSL_SESSION_free(session);
    return NULL;
}

static struct tls *tls_of(SSL *ssl)
{
    return SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
}

static int psk_find(SSL *ssl, const unsigned char *identity, size_t len, SSL_SESSION **ret_session)
{
    struct tls *tls = tls_of(ssl);

    *ret_session = NULL;
    SSL_set_app_data(ssl, &tls->unknown);
    for (unsigned i = 0; i < tls->nkeys; i++) {
        struct tls_key *key = &tls->keys[i];

        if (len != strlen(key->identity) || memcmp(identity, key->identity, len) != 0)
            continue;
        *ret_session = psk_session(ssl, key);
        return *ret_session != NULL;
    }
    return 1; /* unknown: goes on without a PSK, and fails for lack of a certificate, or goes on by
                 it */
}

/* The key was chosen by tls_session(); NULL: the certificate was. */
static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **ret_identity, size_t *ret_len,
                   SSL_SESSION **ret_session)
{
    struct tls_key *key = SSL_get_app_data(ssl);

    *ret_session = NULL;
    *ret_identity = NULL;
    *ret_len = 0;
    if (!key || !*key->name)
        return 1;
    *ret_identity = (const unsigned char *)key->identity;
    *ret_len = strlen(key->identity);
    if (md && EVP_MD_get_type(md) != NID_sha256)
        return 1; /* a retry for another hash: we have no key for that */
    *ret_session = psk_session(ssl, key);
    return *ret_session != NULL;
}

static void tls_freep(struct tls **tls)
{
    *tls = tls_free(*tls);
}

/* A context for @tls as it is. */
static int make_context(struct tls *tls, SSL_CTX **ret_ctx)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    int r;

    if (!ctx)
        return -ENOMEM;
    SSL_CTX_set_app_data(ctx, tls);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS); /* 34 KiB less per idle link */
    if (tls->nkeys) {
        SSL_CTX_set_psk_find_session_callback(ctx, psk_find);
        SSL_CTX_set_psk_use_session_callback(ctx, psk_use);
    }
    r = SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
                SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
                SSL_CTX_set_ciphersuites(ctx, tls_suite) && SSL_CTX_set_num_tickets(ctx, 0)
            ? 0
            : -ENOTSUP;
    if (!r && tls->identity)
        r = tls_identity_use(tls->identity, ctx);
    if (r)
        SSL_CTX_free(ctx);
    else
        *ret_ctx = ctx;
    return r;
}

int tls_set(struct tls *tls, const struct conf_keys *keys, struct tls_identity *identity)
{
    struct tls next = {.identity = identity, .nkeys = keys->n};
    int r = make_context(&next, &next.ctx);

    assert(keys->n || identity);
    if (r) {
        tls_identity_free(identity);
        return r;
    }
    SSL_CTX_set_app_data(next.ctx, tls);
    SSL_CTX_free(tls->ctx); /* sessions hold it, and find @tls in it */
    tls_identity_free(tls->identity);
    tls->ctx = next.ctx;
    tls->identity = identity;
    set_keys(tls, keys);
    return 0;
}

int tls_new(const struct conf_keys *keys, struct tls_identity *identity, struct tls **ret_tls)
{
    _cleanup_(tls_freep) struct tls *tls = calloc(1, sizeof(*tls));
    int r;

    if (!tls) {
        tls_identity_free(identity);
        return -ENOMEM;
    }
    r = tls_set(tls, keys, identity);
    if (r)
        return r;
    *ret_tls = steal_ptr(tls);
    return 0;
}

struct tls *tls_free(struct tls *tls)
{
    if (!tls)
        return NULL;
    SSL_CTX_free(tls->ctx);
    tls_identity_free(tls->identity);
    OPENSSL_cleanse(tls, sizeof(*tls));
    free(tls);
    return NULL;
}

/* The key that a client offers as its @offer-th proof; NULL: it offers the certificate. */
static struct tls_key *offered_key(struct tls *tls, unsigned offer)
{
    unsigned first = tls->identity != NULL;

    if (offer >= first + tls->nkeys)
        offer = 0;
    return offer < first ? NULL : &tls->keys[offer - first];
}

SSL *tls_session(struct tls *tls, bool server, unsigned offer)
{
    static const unsigned char context[] =
        "commd"; /* a server that asks for certificates needs one */
    SSL *ssl = SSL_new(tls->ctx);

    if (!ssl)
        return NULL;
    if (!server) {
        SSL_set_app_data(ssl, offered_key(tls, offer));
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    } else if (tls->identity) {
        SSL_set_session_id_context(ssl, context, sizeof(context) - 1);
        SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    } else {
        SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL);
    }
    return ssl;
}

const char *tls_session_key(SSL *ssl)
{
    const struct tls_key *key = SSL_get_app_data(ssl);

    if (!SSL_session_reused(ssl)) /* a client that has offered a key may be shown a certificate */
        return TLS_CERTIFICATE_NAME;
    return key ? key->name : "";
}

bool tls_is_authenticated(const struct tls *tls, SSL *ssl, char ret_why[TLS_WHY_MAX])
{
    ret_why[0] = '\0';
    if (SSL_version(ssl) != TLS1_3_VERSION)
        return false;
    /* A handshake by PSK counts as a resumption; we offer and know no other session. */
    if (SSL_session_reused(ssl) == 1)
        return tls->nkeys > 0;
    return tls->identity && tls_identity_trusts(tls->identity, ssl, false, ret_why) == TLS_TRUSTED;
}

enum tls_trust tls_still_holds(const struct tls *tls, SSL *ssl, const char *name,
                               char ret_why[TLS_WHY_MAX])
{
    ret_why[0] = '\0';
    if (strcmp(name, TLS_CERTIFICATE_NAME))
        return tls->nkeys > 0 ? TLS_TRUSTED : TLS_DISTRUSTED;
    return tls->identity ? tls_identity_trusts(tls->identity, ssl, true, ret_why) : TLS_TRUSTED;
}

/* ---- what went wrong ------------------------------------------------------------------------- */

/* Alerts that the other side sent are reasons from 1000 on. */
static const struct {
    int reason;
    const char *text;
} alerts[] = {
    {SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, TEXT_OURS_REFUSED ": revoked"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, TEXT_OURS_REFUSED ": expired"},
    {SSL_R_TLSV1_ALERT_UNKNOWN_CA,
     TEXT_OURS_REFUSED ": not signed by a CA of its cluster.ca, or it "
                       "takes the cluster key only "
                       "(cluster.authentication)"},
    {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED,
     "it takes certificates only, and has got none (cluster.authentication)"},
    {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, TEXT_OURS_REFUSED ": its log says why"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, TEXT_OURS_REFUSED ": its log says why"},
    {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, TEXT_OURS_REFUSED ": its log says why"},
};

static const char *alert_text(int reason)
{
    for (unsigned i = 0; i < ARRAY_LEN(alerts); i++)
        if (alerts[i].reason == reason)
            return alerts[i].text;
    return NULL;
}

enum tls_failure tls_failure(SSL *ssl, unsigned long code)
{
    int reason = ERR_GET_REASON(code);

    if (code == 0 || ERR_SYSTEM_ERROR(code) || ERR_GET_LIB(code) != ERR_LIB_SSL)
        return TLS_CLOSED;
    switch (reason) {
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        return TLS_CLOSED;
    case SSL_R_CERTIFICATE_VERIFY_FAILED: /* without an identity: it does not have our key */
        return tls_of(ssl)->identity ? TLS_CERTIFICATE : TLS_WRONG_KEY;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return TLS_CERTIFICATE;
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM: /* no PSK of ours, no certificate either */
        return TLS_WRONG_KEY;
    default:
        if (alert_text(reason))
            return TLS_CERTIFICATE;
        return reason >= 1000 ? TLS_REFUSED_US : TLS_NOT_TLS;
    }
}

const char *tls_failure_text(SSL *ssl, unsigned long code, char buf[2 * TLS_WHY_MAX],
                             const char **ret_kind)
{
    const struct tls *tls = tls_of(ssl);
    const char *text = NULL;

    if (ERR_GET_LIB(code) != ERR_LIB_SSL)
        return NULL;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        if (!tls->identity) {
            text = "it shows a certificate instead of our cluster key: it takes certificates only "
                   "(cluster.authentication), has another key, or is no commd";
            break;
        }
        if (!*tls_identity_why(ssl)) { /* the handshake was well; see tls_is_authenticated() */
            text = "its certificate does not hold any more";
            break;
        }
        *ret_kind = tls_identity_why(ssl);
        snprintf(buf, 2 * TLS_WHY_MAX,
                 *tls_identity_claim(ssl) ? "its certificate, of %s, %s" : "its certificate%s %s",
                 tls_identity_claim(ssl), tls_identity_why(ssl));
        return buf;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        text = "it has no certificate";
        break;
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
        if (SSL_is_server(ssl) && !SSL_get_app_data(ssl))
            text = "it offers no cluster key, which is all that this node takes "
                   "(cluster.authentication)";
        break;
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        if (!SSL_is_server(ssl) && !SSL_get_app_data(ssl)) /* we have offered a certificate */
            text = "it takes no certificates, but the cluster key only (cluster.authentication)";
        break;
    default:
        text = alert_text(ERR_GET_REASON(code));
        break;
    }
    if (text)
        *ret_kind = text;
    return text;
}

int tls_token(const uint8_t secret[CONF_KEY_BYTES], const char *text, uint8_t ret_token[32])
{
    unsigned len = 32;

    if (!HMAC(EVP_sha256(), secret, CONF_KEY_BYTES, (const unsigned char *)text, strlen(text),
              ret_token, &len))
        return -ENOMEM;
    return 0;
}

int tls_export(SSL *ssl, uint8_t ret_secret[32])
{
    static const char label[] = "EXPORTER-commd-engines";

    return SSL_export_keying_material(ssl, ret_secret, 32, label, sizeof(label) - 1, NULL, 0, 0) ==
                   1
               ? 0
               : -EIO;
}

int tls_mix(const uint8_t secret[32], uint8_t token[32])
{
    uint8_t mixed[32];
    unsigned len = sizeof(mixed);

    if (!HMAC(EVP_sha256(), secret, 32, token, 32, mixed, &len))
        return -ENOMEM;
    memcpy(token, mixed, sizeof(mixed));
    OPENSSL_cleanse(mixed, sizeof(mixed));
    return 0;
}

void tls_insecure_keys(struct conf_keys *ret_keys)
{
    static const char phrase[] = "commd --insecure: everybody knows this key";

    ret_keys->n = 1;
    SHA256((const unsigned char *)phrase, sizeof(phrase) - 1, ret_keys->key[0]);
}
