/* test_certificates.c - which certificates are taken, from files and from another node, and what is
 * said of those that are not. Handshakes are between two ends in memory. How links use it is in
 * test_peer_link.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <openssl/err.h>
#include <openssl/rsa.h>

#include "daemon/link/tls.h"
#include "tests/unit/daemon/certificates.h"

static struct signed_key ca, other_ca;

static int make_cas(void **state)
{
    ca = make_certificate(NULL, "the CA",
                          (struct wish){.ca = true, .since = -DAY, .until = 9 * DAY});
    other_ca = make_certificate(NULL, "another CA", (struct wish){.ca = true});
    return 0;
}

static int free_cas(void **state)
{
    signed_key_free(&ca);
    signed_key_free(&other_ca);
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Takes @pems. */
static void refused(struct conf_pems pems, const char *want)
{
    struct tls_identity *identity = NULL;
    char *error = NULL;

    assert_int_equal(tls_identity_new(&pems, "a", &identity, &error), -EINVAL);
    assert_null(identity);
    if (!error || !strstr(error, want))
        fail_msg("it says: %s\nand not: %s", error, want);
    assert_int_equal(ERR_peek_error(), 0);
    free(error);
    conf_pems_fini(&pems);
}

/* A certificate for @wish by the CA, alone. */
static struct conf_pems wished(struct wish wish)
{
    struct signed_key made = make_certificate(&ca, "a", wish);
    struct conf_pems pems = pems_of(&made, &ca);

    signed_key_free(&made);
    return pems;
}

static void files_that_are_wrong(void **state)
{
    static const char noise[] = "-----BEGIN SOMETHING-----\n";
    const struct wish good = {.names = "DNS:a"};
    struct conf_pems pems;
    struct signed_key made;

    for (enum conf_pem which = 0; which <= CONF_PEM_CA; which++) {
        static const char *const want[] = {"/n.crt: holds no certificate in PEM; this node's own",
                                           "/n.key: holds no private key in PEM that opens without "
                                           "a passphrase; one is taken off by: openssl pkey",
                                           "/ca.crt: holds no certificate of a CA in PEM"};

        pems = wished(good);
        pems.file[which].len = 0;
        set_pem(&pems, which, noise, strlen(noise));
        refused(pems, want[which]);
    }
    pems = wished(good);
    set_pem(&pems, CONF_PEM_CRL, noise, strlen(noise));
    refused(pems, "/ca.crl: holds no list of revoked certificates in PEM; one is made by: openssl");

    pems = wished(good);
    made = make_certificate(&ca, "a", good);
    pems.file[CONF_PEM_KEY].len = 0;
    add_key(&pems, made.key);
    refused(pems, "/n.key: is not the private key of the certificate in /n.crt");
    pems = wished(good);
    add_certificate(&pems, CONF_PEM_CA, made.certificate);
    refused(pems, "/ca.crt: certificate 2 in it is not a CA's");
    signed_key_free(&made);
}

static void certificates_that_do_not_hold(void **state)
{
    static const struct {
        struct wish wish;
        const char *want;
    } cases[] = {
        {{.names = NULL},
         "/n.crt: the certificate names no node; this one is \"a\": make one with "
         "subjectAltName = DNS:a"},
        {{.names = "DNS:c,DNS:d"},
         "/n.crt: the certificate names node \"c\", \"d\", and this one "
         "is \"a\": make one with subjectAltName = DNS:a, or correct "
         "cluster.node"},
        {{.names = "DNS:A"}, "names node \"A\", and"},
        {{.names = "DNS:*"}, "names no node"},
        {{.names = "email:a,URI:a,IP:127.0.0.1"}, "names no node"},
        {{.names = "DNS:a", .since = -DAY, .until = -HOUR},
         "/n.crt: the certificate of this node has expired; make a new one"},
        {{.names = "DNS:a", .since = HOUR, .until = DAY}, "does not hold yet: compare the clocks"},
        {{.names = "DNS:a", .ca = true}, "is a CA's: its owner could be every node"},
        {{.names = "DNS:a", .usage = "serverAuth"},
         "is not for servers and clients (extendedKeyUsage)"},
        {{.names = "DNS:a", .usage = "clientAuth"},
         "is not for servers and clients (extendedKeyUsage)"},
        {{.names = "DNS:a", .digest = "SHA1"}, "has a key or a signature that is too weak"},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
        refused(wished(cases[i].wish), cases[i].want);
    refused(wished((struct wish){.names = "DNS:a", .key = EVP_RSA_gen(1024)}),
            "has a key or a signature that is too weak");
}

static void chains(void **state)
{
    const struct wish good = {.names = "DNS:a"};
    struct signed_key middle = make_certificate(&ca, "middle", (struct wish){.ca = true});
    struct signed_key made = make_certificate(&middle, "a", good);
    struct signed_key stranger = make_certificate(&other_ca, "a", good);
    struct signed_key own = make_certificate(NULL, "a", good);
    struct signed_key by_node = make_certificate(&made, "a", good);
    struct conf_pems pems;

    refused(pems_of(&stranger, &ca), "is not signed by a CA of cluster.ca; make a new one "
                                     "(doc/operations.md, \"Certificates\"), or correct /ca.crt");
    refused(pems_of(&own, &ca), "is not signed by a CA of cluster.ca");
    refused(pems_of(&made, &ca), "is not signed by a CA of cluster.ca");
    pems = pems_of(&by_node, &ca); /* signed by a node */
    add_certificate(&pems, CONF_PEM_CERTIFICATE, made.certificate);
    add_certificate(&pems, CONF_PEM_CERTIFICATE, middle.certificate);
    refused(pems, "is not signed by a CA of cluster.ca");
    tls_identity_free(
        identity_of(&made, &middle, NULL, "a")); /* the middle one is trusted itself */
    signed_key_free(&middle);
    signed_key_free(&made);
    signed_key_free(&stranger);
    signed_key_free(&own);
    signed_key_free(&by_node);
}

static void lists(void **state)
{
    struct signed_key made = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct conf_pems pems = pems_of(&made, &ca);
    X509_CRL *list = make_list(&ca, made.certificate, DAY),
             *theirs = make_list(&other_ca, NULL, 60);

    add_list(&pems, list);
    refused(pems, "the certificate of this node is revoked; make a new one (doc/operations.md, "
                  "\"Certificates\"), or correct /ca.crt and /ca.crl");
    pems = pems_of(&made, &ca);
    add_list(&pems, theirs);
    refused(pems, "is of a CA that has no list in cluster.crl");
    X509_CRL_free(list);
    X509_CRL_free(theirs);
    /* one whose successor is late, and which is still to the point */
    tls_identity_free(identity_of(&made, &ca, make_list(&ca, NULL, -HOUR), "a"));
    pems = pems_of(&made, &ca);
    list = make_list(&ca, made.certificate, -HOUR);
    add_list(&pems, list);
    refused(pems, "is revoked");
    X509_CRL_free(list);
    signed_key_free(&made);
}

static void kinds_of_keys(void **state)
{
    EVP_PKEY *keys[] = {EVP_EC_gen("P-384"), EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"),
                        EVP_RSA_gen(2048)};

    for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
        struct signed_key made =
            make_certificate(&ca, "a", (struct wish){.names = "DNS:x,DNS:a", .key = keys[i]});

        tls_identity_free(identity_of(&made, &ca, NULL, "a"));
        signed_key_free(&made);
    }
}

/* Of its last third, and of the chain's shortest time. */
static void says(const struct tls_identity *identity, int64_t now, const char *when)
{
    char text[256];

    tls_identity_say_end(identity, now, text, sizeof(text));
    assert_string_equal(strstr(text, "expire"), when);
}

static void when_it_is_due(void **state)
{
    int64_t now = (int64_t)time(NULL);
    struct signed_key made = make_certificate(
        &ca, "a", (struct wish){.names = "DNS:a", .since = -60 * DAY, .until = 90 * DAY});
    struct tls_identity *identity = identity_of(&made, &ca, NULL, "a");
    int64_t ends = tls_identity_ends(identity);

    assert_in_range(ends, now + 9 * DAY - 60, now + 9 * DAY + 60); /* the CA's */
    assert_in_range(tls_identity_begins(identity), now - 60 * DAY - 60, now - 60 * DAY + 60);
    assert_true(tls_identity_is_due(identity, ends - 23 * DAY + 60));
    assert_false(tls_identity_is_due(identity, ends - 23 * DAY - 60));
    says(identity, ends - 23 * DAY, "expires in 23 days");
    says(identity, ends - 47 * 3600, "expires in 47 hours");
    says(identity, ends - 3601, "expires in 60 minutes");
    says(identity, ends - 60, "expires in 1 minute");
    says(identity, ends + 1, "expired 0 minutes ago: other nodes refuse it");
    says(identity, ends + 3 * 3600, "expired 3 hours ago: other nodes refuse it");
    assert_false(tls_identity_list_is_old(identity, ends)); /* there is none */
    tls_identity_free(identity);
    identity = identity_of(&made, &ca, make_list(&ca, NULL, DAY), "a");
    assert_false(tls_identity_list_is_old(identity, now));
    assert_true(tls_identity_list_is_old(identity, now + DAY + 60));
    tls_identity_free(identity);
    signed_key_free(&made);
}

/* ---- handshakes ------------------------------------------------------------------------------ */

/* One end: a commd, or, with @stranger, whoever has a certificate and does not look at ours. */
struct end {
    struct tls *tls;
    SSL_CTX *stranger;
    SSL *ssl;
    bool connected;
    unsigned long error;
};

static void step(struct end *end)
{
    char byte;
    int r;

    if (end->error)
        return;
    ERR_clear_error();
    r = end->connected ? SSL_read(end->ssl, &byte, 1) : SSL_do_handshake(end->ssl);
    if (!end->connected && r == 1)
        end->connected = true;
    else if (SSL_get_error(end->ssl, r) != SSL_ERROR_WANT_READ)
        end->error = ERR_peek_error();
}

static void open_end(struct end *end, bool server, unsigned offer)
{
    end->connected = false;
    end->error = 0;
    end->ssl = end->stranger ? SSL_new(end->stranger) : tls_session(end->tls, server, offer);
    assert_non_null(end->ssl);
    (server ? SSL_set_accept_state : SSL_set_connect_state)(end->ssl);
}

/* Leaves both sessions open. */
static void shake(struct end *client, unsigned offer, struct end *server)
{
    BIO *a, *b;

    open_end(client, false, offer);
    open_end(server, true, 0);
    assert_int_equal(BIO_new_bio_pair(&a, 1 << 16, &b, 1 << 16), 1);
    SSL_set_bio(client->ssl, a, a);
    SSL_set_bio(server->ssl, b, b);
    for (unsigned i = 0; i < 8; i++) {
        step(client);
        step(server);
    }
    ERR_clear_error();
}

static void close_ends(struct end *client, struct end *server)
{
    SSL_free(client->ssl);
    SSL_free(server->ssl);
}

static bool is_proven(const struct end *end)
{
    char why[TLS_WHY_MAX];

    return end->connected && !end->error && tls_is_authenticated(end->tls, end->ssl, why);
}

/* @kinds: "k" key, "c" certificate, "kc" both; "K" another key. */
static struct tls *make_tls(const char *kinds, const struct signed_key *made, const char *node)
{
    struct conf_keys keys = {0};
    struct tls *tls;

    if (strpbrk(kinds, "kK")) {
        keys.n = 1;
        memset(keys.key[0], strchr(kinds, 'k') ? 7 : 8, CONF_KEY_BYTES);
    }
    assert_int_equal(
        tls_new(&keys, strchr(kinds, 'c') ? identity_of(made, &ca, NULL, node) : NULL, &tls), 0);
    return tls;
}

static void certificate_only(struct tls *tls, struct tls_identity *identity)
{
    assert_int_equal(tls_set(tls, &(struct conf_keys){0}, identity), 0);
}

/* What each pair of nodes agrees on, while a cluster changes over. */
static void both_kinds_at_once(void **state)
{
    static const struct {
        const char *client, *server, *proof; /* of the first offer that is taken; "": none is */
    } cases[] = {
        {"k", "k", "key"},
        {"k", "kc", "key"},
        {"k", "c", ""},
        {"kc", "k", "key"},
        {"kc", "kc", "certificate"},
        {"kc", "c", "certificate"},
        {"c", "k", ""},
        {"c", "kc", "certificate"},
        {"c", "c", "certificate"},
        {"Kc", "kc", "certificate"},
        {"K", "kc", ""},
        {"K", "c", ""},
        {"Kc", "k", ""},
    };
    struct signed_key a = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct signed_key b = make_certificate(&ca, "b", (struct wish){.names = "DNS:b"});

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct end client = {.tls = make_tls(cases[i].client, &a, "a")};
        struct end server = {.tls = make_tls(cases[i].server, &b, "b")};
        const char *proof = "";

        for (unsigned offer = 0; !*proof && *tls_key_name(client.tls, offer); offer++) {
            shake(&client, offer, &server);
            assert_int_equal(is_proven(&client), is_proven(&server));
            if (is_proven(&client)) {
                assert_string_equal(tls_session_key(client.ssl), tls_session_key(server.ssl));
                proof = strcmp(tls_session_key(client.ssl), TLS_CERTIFICATE_NAME) ? "key"
                                                                                  : "certificate";
                if (*proof == 'c') {
                    assert_true(tls_identity_names(client.ssl, "b"));
                    assert_false(tls_identity_names(client.ssl, "a"));
                    assert_true(tls_identity_names(server.ssl, "a"));
                }
            }
            close_ends(&client, &server);
        }
        if (strcmp(proof, cases[i].proof))
            fail_msg("%s calls %s: \"%s\", not \"%s\"", cases[i].client, cases[i].server, proof,
                     cases[i].proof);
        tls_free(client.tls);
        tls_free(server.tls);
    }
    signed_key_free(&a);
    signed_key_free(&b);
}

/* Somebody's TLS with @made, which may be NULL; it takes whatever it is shown. */
static SSL_CTX *stranger_with(const struct signed_key *made)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());

    SSL_CTX_set_security_level(ctx, 0);
    if (made)
        assert_int_equal(SSL_CTX_use_cert_and_key(ctx, made->certificate, made->key, NULL, 1), 1);
    return ctx;
}

/* Each refusal, by a server and by a client: what is said here, and what the other side learns. */
static void who_is_refused(void **state)
{
    struct signed_key a = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct {
        struct signed_key made;
        const char *want;
    } cases[] = {
        {make_certificate(&ca, "b", (struct wish){.names = "DNS:b"}),
         "its certificate, of \"b\", is revoked"},
        {make_certificate(&ca, "b", (struct wish){.names = "DNS:b", .since = -DAY, .until = -HOUR}),
         "its certificate, of \"b\", has expired"},
        {make_certificate(&other_ca, "b", (struct wish){.names = "DNS:b"}),
         "its certificate, of \"b\", is not signed by a CA of cluster.ca"},
        {make_certificate(NULL, "b", (struct wish){.names = "DNS:b"}),
         "its certificate, of \"b\", is not signed by a CA of cluster.ca"},
        {make_certificate(&ca, "b", (struct wish){.names = "DNS:b", .ca = true}),
         "is a CA's: its owner could be every node"},
        {make_certificate(&a, "b", (struct wish){.names = "DNS:b"}),
         "its certificate, of \"b\", is not signed by a CA of cluster.ca"},
        {make_certificate(&ca, "b", (struct wish){.names = "DNS:b", .usage = "emailProtection"}),
         "is not for servers and clients"},
        {{NULL, NULL}, "it has no certificate"},
    };
    struct end us = {.tls = make_tls("c", &a, "a")}, them = {0};
    char buf[2 * TLS_WHY_MAX];
    const char *kind = NULL, *text;

    certificate_only(us.tls,
                     identity_of(&a, &ca, make_list(&ca, cases[0].made.certificate, DAY), "a"));
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
        for (unsigned server = 0; server < 2; server++) {
            if (!cases[i].made.key && !server)
                continue; /* a server without a certificate says no more than that it fails */
            them.stranger = stranger_with(cases[i].made.key ? &cases[i].made : NULL);
            if (server)
                shake(&them, 0, &us);
            else
                shake(&us, 0, &them);
            assert_false(is_proven(&us));
            assert_int_equal(tls_failure(us.ssl, us.error), TLS_CERTIFICATE);
            text = tls_failure_text(us.ssl, us.error, buf, &kind);
            if (!text || !strstr(text, cases[i].want))
                fail_msg("case %u: \"%s\", not \"%s\"", i, text, cases[i].want);
            assert_null(strstr(kind, "\"b\"")); /* what others choose makes no new kind of line */
            assert_true(ERR_GET_REASON(them.error) > SSL_AD_REASON_OFFSET);
            close_ends(&us, &them);
            SSL_CTX_free(them.stranger);
        }
    tls_free(us.tls);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
        signed_key_free(&cases[i].made);
    signed_key_free(&a);
}

/* What a refused commd says of it: the alert as text. */
static void what_the_refused_one_learns(void **state)
{
    struct signed_key a = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct signed_key b = make_certificate(&ca, "b", (struct wish){.names = "DNS:b"});
    struct end us = {.tls = make_tls("kc", &a, "a")}, them = {.tls = make_tls("kc", &b, "b")};
    char buf[2 * TLS_WHY_MAX];
    const char *kind = NULL;

    certificate_only(us.tls, identity_of(&a, &ca, make_list(&ca, b.certificate, DAY), "a"));
    for (unsigned server = 0; server < 2; server++) {
        if (server)
            shake(&them, 0, &us);
        else
            shake(&us, 0, &them);
        assert_int_equal(tls_failure(them.ssl, them.error), TLS_CERTIFICATE); /* not: try the key */
        assert_string_equal(tls_failure_text(them.ssl, them.error, buf, &kind),
                            "it refuses our certificate: revoked");
        close_ends(&us, &them);
    }
    tls_free(us.tls);
    tls_free(them.tls);
    signed_key_free(&a);
    signed_key_free(&b);
}

/* What was begun before a reload counts by what holds after it; and what is up is looked at. */
static void what_a_reload_ends(void **state)
{
    struct signed_key a = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct signed_key b = make_certificate(&ca, "b", (struct wish){.names = "DNS:b"});
    struct end us = {.tls = make_tls("kc", &a, "a")}, them = {.tls = make_tls("kc", &b, "b")};
    char why[TLS_WHY_MAX], buf[2 * TLS_WHY_MAX];
    const char *kind;

    shake(&us, 0, &them);
    assert_true(is_proven(&us));
    assert_int_equal(tls_still_holds(us.tls, us.ssl, TLS_CERTIFICATE_NAME, why), TLS_TRUSTED);
    certificate_only(us.tls, identity_of(&a, &ca, make_list(&ca, b.certificate, DAY), "a"));
    assert_false(is_proven(&us));
    assert_int_equal(tls_still_holds(us.tls, us.ssl, TLS_CERTIFICATE_NAME, why), TLS_REVOKED);
    assert_string_equal(why, "is revoked");
    assert_string_equal(tls_failure_text(us.ssl,
                                         ERR_PACK(ERR_LIB_SSL, 0, SSL_R_CERTIFICATE_VERIFY_FAILED),
                                         buf, &kind),
                        "its certificate does not hold any more");
    close_ends(&us, &them);

    tls_free(us.tls);
    us.tls = make_tls("kc", &a, "a");
    shake(&us, 1, &them);
    assert_true(is_proven(&us));
    assert_string_not_equal(tls_session_key(us.ssl), TLS_CERTIFICATE_NAME);
    assert_int_equal(tls_still_holds(us.tls, us.ssl, tls_session_key(us.ssl), why), TLS_TRUSTED);
    certificate_only(us.tls, identity_of(&a, &ca, NULL, "a"));
    assert_false(is_proven(&us));
    assert_int_equal(tls_still_holds(us.tls, us.ssl, "01234567", why), TLS_DISTRUSTED);
    assert_string_equal(why, "");
    close_ends(&us, &them);
    tls_free(us.tls);
    tls_free(them.tls);
    signed_key_free(&a);
    signed_key_free(&b);
}

static int take_any(X509_STORE_CTX *ctx, void *arg)
{
    return 1;
}

/* Of a link that was made a year ago the date says nothing; the CA and its list do. */
static void what_a_reload_leaves(void **state)
{
    struct signed_key a = make_certificate(&ca, "a", (struct wish){.names = "DNS:a"});
    struct signed_key old = make_certificate(
        &ca, "b", (struct wish){.names = "DNS:b", .since = -2 * DAY, .until = -DAY});
    struct signed_key c = make_certificate(&other_ca, "a", (struct wish){.names = "DNS:a"});
    struct end us = {.stranger = stranger_with(&a)}, them = {.stranger = stranger_with(&old)};
    struct tls_identity *same = identity_of(&a, &ca, NULL, "a");
    struct tls_identity *list = identity_of(&a, &ca, make_list(&ca, old.certificate, DAY), "a");
    struct tls_identity *other = identity_of(&c, &other_ca, NULL, "a");
    char why[TLS_WHY_MAX];

    SSL_CTX_set_cert_verify_callback(us.stranger, take_any, NULL);
    shake(&us, 0, &them);
    assert_true(us.connected);
    assert_int_equal(tls_identity_trusts(same, us.ssl, true, why), TLS_TRUSTED);
    assert_int_equal(tls_identity_trusts(same, us.ssl, false, why), TLS_DISTRUSTED);
    assert_string_equal(why, "has expired");
    assert_int_equal(tls_identity_trusts(list, us.ssl, true, why), TLS_REVOKED);
    assert_int_equal(tls_identity_trusts(other, us.ssl, true, why), TLS_DISTRUSTED);
    assert_string_equal(why, "is not signed by a CA of cluster.ca");
    close_ends(&us, &them);
    SSL_CTX_free(us.stranger);
    SSL_CTX_free(them.stranger);
    tls_identity_free(same);
    tls_identity_free(list);
    tls_identity_free(other);
    signed_key_free(&a);
    signed_key_free(&old);
    signed_key_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_are_wrong),
        cmocka_unit_test(certificates_that_do_not_hold),
        cmocka_unit_test(chains),
        cmocka_unit_test(lists),
        cmocka_unit_test(kinds_of_keys),
        cmocka_unit_test(when_it_is_due),
        cmocka_unit_test(both_kinds_at_once),
        cmocka_unit_test(who_is_refused),
        cmocka_unit_test(what_the_refused_one_learns),
        cmocka_unit_test(what_a_reload_ends),
        cmocka_unit_test(what_a_reload_leaves),
    };

    return cmocka_run_group_tests(tests, make_cas, free_cas);
}
