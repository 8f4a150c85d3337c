/* tls.c - the part of OpenSSL 3 that links between nodes use.
 *
 * Only TLS 1.3, only the external PSK "commd-NAME" with (EC)DHE (psk_dhe_ke), one suite. There is
 * no certificate on either side, so a handshake without the key cannot end well:
 *  - as server we have nothing else to authenticate with: a ClientHello whose PSK we do not
 *    know, or whose binder was made with another key, fails before any of our secrets is used;
 *  - as client SSL_VERIFY_PEER with an empty trust store refuses every certificate that a
 *    false server might offer instead of the PSK;
 *  - and tls_is_authenticated() checks again after the handshake.
 * The key is shared by all nodes, so an attacker can reflect a node's own hello to it; the
 * PEER_HELLO of peer_link.c catches that (a node that claims to be ourselves is refused).
 * Tickets and the session cache are off: each link does its own key exchange.
 *
 * There may be two keys, while the operator replaces one by the other. The identity of the PSK
 * names the key by a hash, which tells nothing of its 32 random bytes; the binder proves the key. A
 * server accepts both keys. A client offers one in a handshake, because OpenSSL takes no more; the
 * caller chooses which. */
#include "daemon/link/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>

static const char tls_identity[] = "commd-"; /* and the key's name */
static const char tls_suite[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char tls_suite_id[] = {0x13, 0x01};

struct tls_key {
    uint8_t bytes[CONF_KEY_BYTES];
    char name[TLS_KEY_NAME];
    char identity[sizeof(tls_identity) + TLS_KEY_NAME];
};

struct tls {
    SSL_CTX *ctx; /* owned */
    struct tls_key keys[CONF_KEYS_MAX];
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
    for (unsigned i = 0; i < TLS_KEY_NAME / 2; i++)
        snprintf(name + 2 * i, 3, "%02x", hash[i]);
    snprintf(key->name, sizeof(key->name), "%s", name);
    snprintf(key->identity, sizeof(key->identity), "%s%s", tls_identity, name);
}

void tls_set_keys(struct tls *tls, const struct conf_keys *keys)
{
    OPENSSL_cleanse(tls->keys, sizeof(tls->keys));
    assert(keys->n && keys->n <= CONF_KEYS_MAX);
    tls->nkeys = keys->n;
    for (unsigned i = 0; i < tls->nkeys; i++) {
        memcpy(tls->keys[i].bytes, keys->key[i], CONF_KEY_BYTES);
        name_key(&tls->keys[i]);
    }
}

const char *tls_key_name(const struct tls *tls, unsigned i)
{
    return i < tls->nkeys ? tls->keys[i].name : "";
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
    for (unsigned i = 0; i < tls->nkeys; i++) {
        struct tls_key *key = &tls->keys[i];

        if (len != strlen(key->identity) || memcmp(identity, key->identity, len) != 0)
            continue;
        *ret_session = psk_session(ssl, key);
        return *ret_session != NULL;
    }
    return 1; /* unknown: goes on without a PSK, and fails for lack of a certificate */
}

/* The key was chosen by tls_session(). */
static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **ret_identity, size_t *ret_len,
                   SSL_SESSION **ret_session)
{
    struct tls_key *key = SSL_get_app_data(ssl);

    *ret_session = NULL;
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

int tls_new(const struct conf_keys *keys, struct tls **ret_tls)
{
    _cleanup_(tls_freep) struct tls *tls = calloc(1, sizeof(*tls));

    if (!tls)
        return -ENOMEM;
    tls_set_keys(tls, keys);
    tls->ctx = SSL_CTX_new(TLS_method());
    if (!tls->ctx)
        return -ENOMEM;
    SSL_CTX_set_app_data(tls->ctx, tls);
    if (!SSL_CTX_set_min_proto_version(tls->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(tls->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(tls->ctx, tls_suite) || !SSL_CTX_set_num_tickets(tls->ctx, 0))
        return -ENOTSUP;
    SSL_CTX_set_options(tls->ctx,
                        SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(tls->ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(tls->ctx, SSL_MODE_RELEASE_BUFFERS); /* 34 KiB less per idle link */
    SSL_CTX_set_psk_find_session_callback(tls->ctx, psk_find);
    SSL_CTX_set_psk_use_session_callback(tls->ctx, psk_use);
    *ret_tls = steal_ptr(tls);
    return 0;
}

struct tls *tls_free(struct tls *tls)
{
    if (!tls)
        return NULL;
    SSL_CTX_free(tls->ctx);
    OPENSSL_cleanse(tls, sizeof(*tls));
    free(tls);
    return NULL;
}

SSL *tls_session(struct tls *tls, bool server, unsigned key)
{
    SSL *ssl = SSL_new(tls->ctx);

    if (ssl && !server)
        SSL_set_app_data(ssl, &tls->keys[key < tls->nkeys ? key : 0]);
    /* On a server it would ask the client for a certificate, and want a session id context. */
    if (ssl)
        SSL_set_verify(ssl, server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    return ssl;
}

const char *tls_session_key(SSL *ssl)
{
    const struct tls_key *key = SSL_get_app_data(ssl);

    return key ? key->name : "";
}

bool tls_is_authenticated(SSL *ssl)
{
    /* A handshake by PSK counts as a resumption; we offer and know no other session. */
    return SSL_version(ssl) == TLS1_3_VERSION && SSL_session_reused(ssl) == 1;
}

enum tls_failure tls_failure(unsigned long code)
{
    if (code == 0 || ERR_SYSTEM_ERROR(code) || ERR_GET_LIB(code) != ERR_LIB_SSL)
        return TLS_CLOSED;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        return TLS_CLOSED;
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM: /* no PSK of ours, no certificate either */
        return TLS_WRONG_KEY;
    default:
        /* Reasons from 1000 on are alerts that the other side sent. */
        return ERR_GET_REASON(code) >= 1000 ? TLS_REFUSED_US : TLS_NOT_TLS;
    }
}

int tls_token(const uint8_t secret[CONF_KEY_BYTES], const char *text, uint8_t ret_token[32])
{
    unsigned len = 32;

    if (!HMAC(EVP_sha256(), secret, CONF_KEY_BYTES, (const unsigned char *)text, strlen(text),
              ret_token, &len))
        return -ENOMEM;
    return 0;
}

void tls_insecure_keys(struct conf_keys *ret_keys)
{
    static const char phrase[] = "commd --insecure: everybody knows this key";

    ret_keys->n = 1;
    SHA256((const unsigned char *)phrase, sizeof(phrase) - 1, ret_keys->key[0]);
}
