/* certificates.h - certificates for tests, made in memory. */
#ifndef COMMD_TEST_CERTIFICATES_H
#define COMMD_TEST_CERTIFICATES_H

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <time.h>

#include "daemon/link/tls_identity.h"

enum { HOUR = 3600, DAY = 24 * HOUR };

struct signed_key {
    X509 *certificate;
    EVP_PKEY *key;
};

/* What a certificate says; all zero: an ordinary one of a node without a name. */
struct wish {
    const char *names; /* "DNS:a,DNS:b"; NULL: none */
    const char *usage; /* extendedKeyUsage; NULL: none */
    bool ca;
    int since, until; /* seconds from now on; both 0: a day */
    const char *digest;
    EVP_PKEY *key; /* taken; NULL: EC P-256 */
};

static void add_extension(X509 *certificate, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

    assert_non_null(extension);
    assert_int_equal(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

/* @by NULL: signs itself. @subject tells CAs apart. */
static struct signed_key make_certificate(const struct signed_key *by, const char *subject,
                                          struct wish wish)
{
    static long serial = 1;
    struct signed_key made = {X509_new(), wish.key ? wish.key : EVP_EC_gen("P-256")};
    X509_NAME *name = X509_get_subject_name(made.certificate);
    const char *digest = wish.digest ? wish.digest : "SHA256";

    X509_set_version(made.certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(made.certificate), wish.until ? wish.since : -60);
    X509_gmtime_adj(X509_getm_notAfter(made.certificate), wish.until ? wish.until : DAY);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)subject, -1, -1, 0);
    X509_set_issuer_name(made.certificate, by ? X509_get_subject_name(by->certificate) : name);
    X509_set_pubkey(made.certificate, made.key);
    if (wish.ca)
        add_extension(made.certificate, NID_basic_constraints, "critical,CA:TRUE");
    if (wish.names)
        add_extension(made.certificate, NID_subject_alt_name, wish.names);
    if (wish.usage)
        add_extension(made.certificate, NID_ext_key_usage, wish.usage);
    assert_true(X509_sign(made.certificate, by ? by->key : made.key,
                          *digest ? EVP_get_digestbyname(digest) : NULL) > 0);
    return made;
}

static void signed_key_free(struct signed_key *made)
{
    X509_free(made->certificate);
    EVP_PKEY_free(made->key);
    *made = (struct signed_key){0};
}

static X509_CRL *make_list(const struct signed_key *ca, const X509 *revoked, int until)
{
    X509_CRL *list = X509_CRL_new();
    ASN1_TIME *now = X509_gmtime_adj(NULL, -2 * HOUR), *next = X509_gmtime_adj(NULL, until);

    X509_CRL_set_issuer_name(list, X509_get_subject_name(ca->certificate));
    X509_CRL_set1_lastUpdate(list, now);
    X509_CRL_set1_nextUpdate(list, next);
    if (revoked) {
        X509_REVOKED *entry = X509_REVOKED_new();

        X509_REVOKED_set_serialNumber(entry, (ASN1_INTEGER *)X509_get0_serialNumber(revoked));
        X509_REVOKED_set_revocationDate(entry, now);
        X509_CRL_add0_revoked(list, entry);
    }
    assert_true(X509_CRL_sign(list, ca->key, EVP_sha256()) > 0);
    ASN1_TIME_free(now);
    ASN1_TIME_free(next);
    return list;
}

/* ---- as files -------------------------------------------------------------------------------- */

static void set_pem(struct conf_pems *pems, enum conf_pem which, const char *text, size_t len)
{
    static const char *const paths[CONF_PEMS] = {"/n.crt", "/n.key", "/ca.crt", "/ca.crl"};
    struct conf_pem_file *file = &pems->file[which];
    size_t had = file->len;

    if (!file->path)
        file->path = strdup(paths[which]);
    file->text = realloc(file->text, had + len + 1);
    memcpy(file->text + had, text, len);
    file->len = had + len;
}

/* What was written to @bio, which goes. */
static void take_pem(struct conf_pems *pems, enum conf_pem which, BIO *bio)
{
    char *text;
    long len = BIO_get_mem_data(bio, &text);

    set_pem(pems, which, text, (size_t)len);
    BIO_free(bio);
}

static void add_certificate(struct conf_pems *pems, enum conf_pem which, X509 *certificate)
{
    BIO *bio = BIO_new(BIO_s_mem());

    PEM_write_bio_X509(bio, certificate);
    take_pem(pems, which, bio);
}

static void add_key(struct conf_pems *pems, EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_mem());

    PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL);
    take_pem(pems, CONF_PEM_KEY, bio);
}

static void add_list(struct conf_pems *pems, X509_CRL *list)
{
    BIO *bio = BIO_new(BIO_s_mem());

    PEM_write_bio_X509_CRL(bio, list);
    take_pem(pems, CONF_PEM_CRL, bio);
}

static struct conf_pems pems_of(const struct signed_key *made, const struct signed_key *ca)
{
    struct conf_pems pems = {0};

    add_certificate(&pems, CONF_PEM_CERTIFICATE, made->certificate);
    add_key(&pems, made->key);
    add_certificate(&pems, CONF_PEM_CA, ca->certificate);
    return pems;
}

/* An identity that must be right. @list: NULL, or freed here. */
static struct tls_identity *identity_of(const struct signed_key *made, const struct signed_key *ca,
                                        X509_CRL *list, const char *node)
{
    struct conf_pems pems = pems_of(made, ca);
    struct tls_identity *identity = NULL;
    char *error = NULL;

    if (list)
        add_list(&pems, list);
    X509_CRL_free(list);
    if (tls_identity_new(&pems, node, &identity, &error))
        fail_msg("%s", error ? error : "out of memory");
    conf_pems_fini(&pems);
    return identity;
}

#endif
