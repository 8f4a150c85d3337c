/* tls_identity.c - certificates (X.509) for links between nodes.
 *
 * A node is who its certificate names: one of its subjectAltNames of kind DNS is the node's name in
 * cluster.nodes, letter by letter, without wildcards. The subject's common name counts for nothing:
 * it may be any text, a certificate has one only, and no TLS library looks at it any more
 * (RFC 9525). Who is believed:
 *  - chains that end at a certificate of cluster.ca, and no other: the system's CAs sign for
 *    everybody who has a domain. An intermediate CA in that file is an end, too;
 *  - certificates that are not CAs: a node that could sign could be every node;
 *  - certificates that hold today, and that no list of cluster.crl names. The CA that has signed a
 *    node's certificate must have a list there, if there are lists. Its date of the next list is
 * not looked at: who renews the file knows what is in it, and a date that was missed shall not end
 *    all links of a cluster.
 *
 * All that another node would refuse is an error when the files are loaded: a cluster should not
 * learn one by one that a certificate is of no use. An identity does not change; a reload makes a
 * new one. OpenSSL takes references of what it needs, so links outlive it.
 *
 * What a certificate says before it is proven is somebody's text: names are taken only if they may
 * be names of nodes, and cut short. */
#include "daemon/link/tls_identity.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <time.h>

enum {
    DUE_S = 30 * 24 * 3600,
    AUTH_LEVEL = 2, /* OpenSSL's: RSA from 2048 bits on, no SHA-1 */
};

static const char signatures[] = "ed25519:ECDSA+SHA256:ECDSA+SHA384:ECDSA+SHA512:"
                                 "rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512:"
                                 "rsa_pss_pss_sha256:rsa_pss_pss_sha384:rsa_pss_pss_sha512";

struct tls_identity {
    X509 *certificate;      /* owned, and so are these */
    STACK_OF(X509) * chain; /* what stood behind it in the file: CAs between it and cluster.ca */
    EVP_PKEY *key;
    X509_STORE *store; /* of cluster.ca and cluster.crl */
    int64_t begins, ends;
    int64_t lists_end; /* when the first list of cluster.crl is to be followed by a new one */
};

/* What is kept with a session whose certificate was refused. */
struct unproven {
    char why[TLS_WHY_MAX], claim[TLS_WHY_MAX];
};

/* ---- names ----------------------------------------------------------------------------------- */

/* The next name of a certificate that may be a node's, from *@at on; false: there is none. */
static bool next_dns_name(const GENERAL_NAMES *names, int *at, char ret_name[CONF_NAME_MAX])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-";

    while (*at < sk_GENERAL_NAME_num(names)) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, (*at)++);
        const ASN1_STRING *text = name->type == GEN_DNS ? name->d.dNSName : NULL;
        int len = text ? ASN1_STRING_length(text) : 0;

        if (len <= 0 || len >= CONF_NAME_MAX)
            continue;
        memcpy(ret_name, ASN1_STRING_get0_data(text), (size_t)len);
        ret_name[len] = '\0';
        if ((int)strspn(ret_name, letters) == len) /* a NUL within is no letter */
            return true;
    }
    return false;
}

static bool names_node(X509 *certificate, const char *node)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    char name[CONF_NAME_MAX];
    bool found = false;
    int at = 0;

    while (!found && next_dns_name(names, &at, name))
        found = strcmp(name, node) == 0;
    GENERAL_NAMES_free(names);
    return found;
}

/* "a", "b"; three of them at most. */
static const char *names_text(X509 *certificate, char buf[TLS_WHY_MAX])
{
    GENERAL_NAMES *names =
        certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL) : NULL;
    char name[CONF_NAME_MAX];
    size_t used = 0;
    int at = 0;

    buf[0] = '\0';
    for (unsigned i = 0; i < 3 && next_dns_name(names, &at, name); i++)
        used += (size_t)snprintf(buf + used, TLS_WHY_MAX - used, "%s\"%s\"", i ? ", " : "", name);
    GENERAL_NAMES_free(names);
    return buf;
}

/* ---- does a certificate hold? ---------------------------------------------------------------- */

/* In words that fit behind "its certificate". */
static const char *problem(int error, int depth)
{
    switch (error) {
    case X509_V_ERR_CERT_REVOKED:
        return depth ? "is of a CA that is revoked" : "is revoked";
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return depth ? "is of a CA whose own has expired" : "has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return "does not hold yet: compare the clocks of the nodes";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
        return "is not signed by a CA of cluster.ca";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        return "is of a CA that has no list in cluster.crl";
    case X509_V_ERR_INVALID_PURPOSE:
        return "is not for servers and clients (extendedKeyUsage)";
    case X509_V_ERR_INVALID_CA:
        return "is of a CA that may not sign";
    case X509_V_ERR_EE_KEY_TOO_SMALL:
    case X509_V_ERR_CA_KEY_TOO_SMALL:
    case X509_V_ERR_CA_MD_TOO_WEAK:
        return "has a key or a signature that is too weak";
    default:
        return X509_verify_cert_error_string(error);
    }
}

/* See above: lists have no date, and CAs above the one that has signed need none. */
static int forgive(int ok, X509_STORE_CTX *ctx)
{
    int error = X509_STORE_CTX_get_error(ctx), depth = X509_STORE_CTX_get_error_depth(ctx);

    if (ok || error == X509_V_ERR_CRL_HAS_EXPIRED || error == X509_V_ERR_CRL_NOT_YET_VALID ||
        (error == X509_V_ERR_UNABLE_TO_GET_CRL && depth > 0)) {
        X509_STORE_CTX_set_error(ctx, X509_V_OK);
        return 1;
    }
    return 0;
}

/* NULL: it holds. @ctx knows the certificate and the chain. */
static const char *verify(X509_STORE_CTX *ctx)
{
    X509 *certificate = X509_STORE_CTX_get0_cert(ctx);

    if (X509_verify_cert(ctx) != 1)
        return problem(X509_STORE_CTX_get_error(ctx), X509_STORE_CTX_get_error_depth(ctx));
    if (!X509_check_ca(certificate))
        return NULL;
    X509_STORE_CTX_set_error(ctx, X509_V_ERR_INVALID_PURPOSE);
    return "is a CA's: its owner could be every node";
}

/* @flags: of X509_VERIFY_PARAM_set_flags(), beside those of the store. */
static const char *verify_as(const struct tls_identity *identity, X509 *certificate,
                             STACK_OF(X509) * chain, int purpose, unsigned long flags,
                             X509_STORE_CTX *ctx)
{
    X509_VERIFY_PARAM *param;

    X509_STORE_CTX_cleanup(ctx);
    if (!X509_STORE_CTX_init(ctx, identity->store, certificate, chain))
        return "cannot be looked at: out of memory";
    param = X509_STORE_CTX_get0_param(ctx);
    X509_VERIFY_PARAM_set_purpose(param, purpose);
    X509_VERIFY_PARAM_set_auth_level(param, AUTH_LEVEL);
    X509_VERIFY_PARAM_set_flags(param, flags);
    return verify(ctx);
}

enum tls_trust tls_identity_trusts(const struct tls_identity *identity, SSL *ssl, bool later,
                                   char ret_why[TLS_WHY_MAX])
{
    int purpose = SSL_is_server(ssl) ? X509_PURPOSE_SSL_CLIENT : X509_PURPOSE_SSL_SERVER;
    X509 *certificate = SSL_get0_peer_certificate(ssl);
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    const char *why = "is missing";
    int error = X509_V_OK;

    if (certificate && ctx) {
        why = verify_as(identity, certificate, SSL_get_peer_cert_chain(ssl), purpose,
                        later ? X509_V_FLAG_NO_CHECK_TIME : 0, ctx);
        error = X509_STORE_CTX_get_error(ctx);
    }
    X509_STORE_CTX_free(ctx);
    if (!why)
        return TLS_TRUSTED;
    snprintf(ret_why, TLS_WHY_MAX, "%s", why);
    return error == X509_V_ERR_CERT_REVOKED ? TLS_REVOKED : TLS_DISTRUSTED;
}

bool tls_identity_names(SSL *ssl, const char *node)
{
    X509 *certificate = SSL_get0_peer_certificate(ssl);

    return certificate && names_node(certificate, node);
}

const char *tls_identity_text(SSL *ssl, char buf[TLS_WHY_MAX])
{
    return names_text(SSL_get0_peer_certificate(ssl), buf);
}

/* ---- in a handshake -------------------------------------------------------------------------- */

static void unproven_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int idx, long argl,
                          void *argp)
{
    free(ptr);
}

/* Where an SSL has its struct unproven. */
static int unproven_index(void)
{
    static int index = -1;

    if (index < 0)
        index = SSL_get_ex_new_index(0, NULL, NULL, NULL, unproven_free);
    return index;
}

static int verify_peer(X509_STORE_CTX *ctx, void *arg)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
    const char *why = verify(ctx);
    struct unproven *unproven;

    if (!why)
        return 1;
    unproven = calloc(1, sizeof(*unproven));
    if (unproven) {
        snprintf(unproven->why, sizeof(unproven->why), "%s", why);
        names_text(X509_STORE_CTX_get0_cert(ctx), unproven->claim);
        free(SSL_get_ex_data(ssl, unproven_index()));
        if (!SSL_set_ex_data(ssl, unproven_index(), unproven))
            free(unproven);
    }
    return 0;
}

const char *tls_identity_why(const SSL *ssl)
{
    const struct unproven *unproven = SSL_get_ex_data(ssl, unproven_index());

    return unproven ? unproven->why : "";
}

const char *tls_identity_claim(const SSL *ssl)
{
    const struct unproven *unproven = SSL_get_ex_data(ssl, unproven_index());

    return unproven ? unproven->claim : "";
}

int tls_identity_use(const struct tls_identity *identity, SSL_CTX *ctx)
{
    SSL_CTX_set_security_level(ctx, AUTH_LEVEL);
    if (!SSL_CTX_use_cert_and_key(ctx, identity->certificate, identity->key, identity->chain, 1) ||
        !SSL_CTX_set1_sigalgs_list(ctx, signatures))
        return -ENOTSUP;
    SSL_CTX_set1_cert_store(ctx, identity->store);
    SSL_CTX_set_cert_verify_callback(ctx, verify_peer, NULL);
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

static void bio_freep(BIO **bio)
{
    BIO_free(*bio);
}

static BIO *bio_of(const struct conf_pem_file *file)
{
    return BIO_new_mem_buf(file->text, (int)file->len);
}

/* Instead of a question on the terminal. */
static int no_passphrase(char *buf, int size, int writes, void *arg)
{
    return 0;
}

static int load_certificate(struct tls_identity *is, const struct conf_pem_file *file,
                            char **ret_error)
{
    _cleanup_(bio_freep) BIO *bio = bio_of(file);
    X509 *more;

    is->chain = sk_X509_new_null();
    if (!bio || !is->chain)
        return -ENOMEM;
    is->certificate = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL);
    if (!is->certificate)
        return fail_with(-EINVAL, ret_error,
                         "%s: holds no certificate in PEM; this node's own has to stand there, "
                         "which begins with -----BEGIN CERTIFICATE-----",
                         file->path);
    while ((more = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL)))
        if (!sk_X509_push(is->chain, more)) {
            X509_free(more);
            return -ENOMEM;
        }
    return 0;
}

static int load_key(struct tls_identity *is, const struct conf_pem_file *file,
                    const struct conf_pem_file *certificate, char **ret_error)
{
    _cleanup_(bio_freep) BIO *bio = bio_of(file);

    if (!bio)
        return -ENOMEM;
    is->key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
    if (!is->key)
        return fail_with(-EINVAL, ret_error,
                         "%s: holds no private key in PEM that opens without a passphrase; one is "
                         "taken off by: openssl pkey -in %s -out FILE",
                         file->path, file->path);
    if (X509_check_private_key(is->certificate, is->key) != 1)
        return fail_with(-EINVAL, ret_error,
                         "%s: is not the private key of the certificate in %s; put the two in "
                         "place that were made together",
                         file->path, certificate->path);
    return 0;
}

static int load_ca(struct tls_identity *is, const struct conf_pem_file *file, char **ret_error)
{
    _cleanup_(bio_freep) BIO *bio = bio_of(file);
    X509 *ca;
    unsigned n = 0;

    if (!bio)
        return -ENOMEM;
    for (; (ca = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL)); n++) {
        bool is_ca = X509_check_ca(ca), added = is_ca && X509_STORE_add_cert(is->store, ca);

        X509_free(ca);
        if (!is_ca)
            return fail_with(-EINVAL, ret_error,
                             "%s: certificate %u in it is not a CA's; cluster.ca is who signs, not "
                             "what is signed",
                             file->path, n + 1);
        if (!added)
            return -ENOMEM;
    }
    return n ? 0
             : fail_with(-EINVAL, ret_error, "%s: holds no certificate of a CA in PEM", file->path);
}

static int64_t seconds_of(const ASN1_TIME *time)
{
    struct tm tm;

    return ASN1_TIME_to_tm(time, &tm) ? (int64_t)timegm(&tm) : 0;
}

static int load_crl(struct tls_identity *is, const struct conf_pem_file *file, char **ret_error)
{
    _cleanup_(bio_freep) BIO *bio = bio_of(file);
    X509_CRL *crl;
    unsigned n = 0;

    if (!bio)
        return -ENOMEM;
    for (; (crl = PEM_read_bio_X509_CRL(bio, NULL, no_passphrase, NULL)); n++) {
        bool added = X509_STORE_add_crl(is->store, crl);
        const ASN1_TIME *next = X509_CRL_get0_nextUpdate(crl);

        if (next)
            is->lists_end = MIN(is->lists_end, seconds_of(next));
        X509_CRL_free(crl);
        if (!added)
            return -ENOMEM;
    }
    if (!n)
        return fail_with(
            -EINVAL, ret_error,
            "%s: holds no list of revoked certificates in PEM; one is made by: openssl "
            "ca -gencrl",
            file->path);
    X509_STORE_set_flags(is->store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return 0;
}

/* How long all of the chain holds. */
static void note_times(struct tls_identity *is, X509_STORE_CTX *ctx)
{
    STACK_OF(X509) *chain = X509_STORE_CTX_get0_chain(ctx);

    is->begins = seconds_of(X509_get0_notBefore(is->certificate));
    is->ends = seconds_of(X509_get0_notAfter(is->certificate));
    for (int i = 1; i < sk_X509_num(chain); i++)
        is->ends = MIN(is->ends, seconds_of(X509_get0_notAfter(sk_X509_value(chain, i))));
}

static int check_own_name(const struct tls_identity *is, const struct conf_pem_file *file,
                          const char *node, char **ret_error)
{
    char names[TLS_WHY_MAX];

    if (names_node(is->certificate, node))
        return 0;
    if (!*names_text(is->certificate, names))
        return fail_with(-EINVAL, ret_error,
                         "%s: the certificate names no node; this one is \"%s\": make one with "
                         "subjectAltName = DNS:%s",
                         file->path, node, node);
    return fail_with(-EINVAL, ret_error,
                     "%s: the certificate names node %s, and this one is \"%s\": make one with "
                     "subjectAltName = DNS:%s, or correct cluster.node",
                     file->path, names, node, node);
}

/* As other nodes will see it, once as a server and once as a client. */
static int check_own(struct tls_identity *is, const struct conf_pems *pems, char **ret_error)
{
    static const int purposes[] = {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT};
    const struct conf_pem_file *crl = &pems->file[CONF_PEM_CRL];
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    const char *why = ctx ? NULL : "cannot be looked at: out of memory";

    for (unsigned i = 0; !why && i < ARRAY_LEN(purposes); i++)
        why = verify_as(is, is->certificate, is->chain, purposes[i], 0, ctx);
    if (!why)
        note_times(is, ctx);
    X509_STORE_CTX_free(ctx);
    if (!why)
        return 0;
    return fail_with(-EINVAL, ret_error,
                     "%s: the certificate of this node %s; make a new one (doc/operations.md, "
                     "\"Certificates\"), or correct %s%s%s",
                     pems->file[CONF_PEM_CERTIFICATE].path, why, pems->file[CONF_PEM_CA].path,
                     crl->path ? " and " : "", crl->path ? crl->path : "");
}

/* A key that is too small is refused by a context only. */
static int check_context(const struct tls_identity *is, const struct conf_pem_file *file,
                         char **ret_error)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    int r = ctx ? tls_identity_use(is, ctx) : -ENOMEM;

    SSL_CTX_free(ctx);
    if (r != -ENOTSUP)
        return r;
    return fail_with(-EINVAL, ret_error,
                     "%s: OpenSSL does not take the certificate: %s; make one with a key of kind "
                     "EC P-256, ED25519, or RSA from 2048 bits on",
                     file->path, ERR_reason_error_string(ERR_peek_last_error()));
}

static void identity_freep(struct tls_identity **identity)
{
    tls_identity_free(*identity);
}

int tls_identity_new(const struct conf_pems *pems, const char *node,
                     struct tls_identity **ret_identity, char **ret_error)
{
    const struct conf_pem_file *file = pems->file;
    _cleanup_(identity_freep) struct tls_identity *is = calloc(1, sizeof(*is));
    int r;

    *ret_error = NULL;
    ERR_clear_error();
    if (!is || !(is->store = X509_STORE_new()))
        return -ENOMEM;
    is->lists_end = INT64_MAX;
    X509_STORE_set_flags(is->store, X509_V_FLAG_PARTIAL_CHAIN);
    X509_STORE_set_verify_cb(is->store, forgive);
    r = load_certificate(is, &file[CONF_PEM_CERTIFICATE], ret_error);
    if (!r)
        r = load_key(is, &file[CONF_PEM_KEY], &file[CONF_PEM_CERTIFICATE], ret_error);
    if (!r)
        r = load_ca(is, &file[CONF_PEM_CA], ret_error);
    if (!r && file[CONF_PEM_CRL].path)
        r = load_crl(is, &file[CONF_PEM_CRL], ret_error);
    if (!r)
        r = check_own_name(is, &file[CONF_PEM_CERTIFICATE], node, ret_error);
    if (!r)
        r = check_own(is, pems, ret_error);
    if (!r)
        r = check_context(is, &file[CONF_PEM_CERTIFICATE], ret_error);
    ERR_clear_error(); /* the end of a file is an error to OpenSSL; a session would report it */
    if (!r)
        *ret_identity = steal_ptr(is);
    return r;
}

struct tls_identity *tls_identity_free(struct tls_identity *identity)
{
    if (!identity)
        return NULL;
    X509_free(identity->certificate);
    sk_X509_pop_free(identity->chain, X509_free);
    EVP_PKEY_free(identity->key);
    X509_STORE_free(identity->store);
    free(identity);
    return NULL;
}

int64_t tls_identity_begins(const struct tls_identity *identity)
{
    return identity->begins;
}

int64_t tls_identity_ends(const struct tls_identity *identity)
{
    return identity->ends;
}

bool tls_identity_is_due(const struct tls_identity *identity, int64_t now_s)
{
    int64_t third = (identity->ends - identity->begins) / 3;

    return now_s >= identity->ends - MIN(third, (int64_t)DUE_S);
}

/* "6 days", "40 minutes" */
static const char *say_span(int64_t seconds, char buf[32])
{
    static const struct {
        const char *unit;
        int64_t seconds;
    } units[] = {{"day", 24 * 3600}, {"hour", 3600}, {"minute", 60}};
    unsigned i = 0;
    long long n;

    while (i + 1 < ARRAY_LEN(units) && seconds < 2 * units[i].seconds)
        i++;
    n = (long long)(seconds / units[i].seconds);
    snprintf(buf, 32, "%lld %s%s", n, units[i].unit, n == 1 ? "" : "s");
    return buf;
}

void tls_identity_say_end(const struct tls_identity *identity, int64_t now_s, char *buf, size_t len)
{
    int64_t left = identity->ends - now_s;
    char span[32];

    if (left <= 0)
        snprintf(
            buf, len,
            "the certificate of this node, or of its CA, expired %s ago: other nodes refuse it",
            say_span(-left, span));
    else
        snprintf(buf, len, "the certificate of this node, or of its CA, expires in %s",
                 say_span(left, span));
}

bool tls_identity_list_is_old(const struct tls_identity *identity, int64_t now_s)
{
    return now_s >= identity->lists_end;
}
