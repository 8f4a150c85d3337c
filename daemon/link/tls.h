/* tls.h - TLS 1.3 between nodes, which prove themselves by the cluster's pre-shared key or by
 * certificates. */
#ifndef COMMD_TLS_H
#define COMMD_TLS_H

#include <openssl/ssl.h>

#include "daemon/conf/conf.h"
#include "daemon/link/tls_identity.h"
#include "shm/util/base.h"

/* How a side proves itself has a name for people: 8 hex digits of a key, or "certificate". */
#define TLS_CERTIFICATE_NAME "certificate"
enum { TLS_KEY_NAME = sizeof(TLS_CERTIFICATE_NAME) };

struct tls;

/* By what nodes prove themselves, by one of both at least. @keys: copied; none: the shared key
 * counts for nothing. @identity: taken, also after a failure; NULL: certificates count for nothing.
 */
int tls_new(const struct conf_keys *keys, struct tls_identity *identity, struct tls **ret_tls);
/* The same for new sessions. Older sessions stay. After a failure (-ENOMEM) nothing has changed. */
int tls_set(struct tls *tls, const struct conf_keys *keys, struct tls_identity *identity);
/* Would @keys only leave out some of the keys that count? */
bool tls_keys_shrink(const struct tls *tls, const struct conf_keys *keys);
/* Would these be other keys, or another order of theirs, or certificates that begin or cease to
 * count? Then a handshake under way would end by what did not count, or under another name. */
bool tls_differs(const struct tls *tls, const struct conf_keys *keys,
                 const struct tls_identity *identity);
/* NULL: this node has no certificate. Valid until tls_set(). */
const struct tls_identity *tls_identity(const struct tls *tls);
/* The name of the @i-th proof: the certificate, then the keys; "" if there is no such. A client
 * offers the first one first. */
const char *tls_key_name(const struct tls *tls, unsigned i);
struct tls *tls_free(struct tls *tls);
/* One session. The caller frees it (SSL_free()), before @tls. @offer: index of the proof that a
 * client offers. NULL: no memory. */
SSL *tls_session(struct tls *tls, bool server, unsigned offer);
/* After the handshake: the name of the proof. Valid until tls_set(). */
const char *tls_session_key(SSL *ssl);
/* After the handshake: did both sides prove themselves, by what counts now? If not, and for what
 * their certificate is, *ret_why says why in words that fit behind "its certificate"; else "". */
bool tls_is_authenticated(const struct tls *tls, SSL *ssl, char ret_why[TLS_WHY_MAX]);
/* Does the session, whose proof was @name, stand on what counts now? Not if certificates count
 * alone and it was made by a key, or if the certificate is revoked or of a CA that counts no more.
 * A key that was replaced by another, and a certificate that has expired since, have proven the
 * node; links by a key that was left out are ended by peer_links_set_keys(). */
enum tls_trust tls_still_holds(const struct tls *tls, SSL *ssl, const char *name,
                               char ret_why[TLS_WHY_MAX]);

/* Why a handshake failed, as far as OpenSSL's error code @code tells. */
enum tls_failure {
    TLS_CLOSED,      /* the other side went away: a port scanner, or it has another key */
    TLS_WRONG_KEY,   /* it tried another key than ours */
    TLS_REFUSED_US,  /* it does not accept our key */
    TLS_NOT_TLS,     /* what it sends is no TLS handshake of a commd */
    TLS_CERTIFICATE, /* one side does not accept the other's certificate */
    TLS_FAILURES
};
enum tls_failure tls_failure(SSL *ssl, unsigned long code);
/* What there is to say where certificates play a part; NULL: nothing. In @buf if it has to be made.
 * *ret_kind: the same without what the other side has chosen, as long as @ssl. */
const char *tls_failure_text(SSL *ssl, unsigned long code, char buf[2 * TLS_WHY_MAX],
                             const char **ret_kind);

/* HMAC-SHA256 of @text: the token by which one engine knows another. */
int tls_token(const uint8_t secret[CONF_KEY_BYTES], const char *text, uint8_t ret_token[32]);
/* A secret that both sides of @ssl have and nobody else, another one in each session (RFC 8446,
 * 7.5). After the handshake. */
int tls_export(SSL *ssl, uint8_t ret_secret[32]);
/* HMAC-SHA256 of @token. */
int tls_mix(const uint8_t secret[32], uint8_t token[32]);
/* The key of --insecure: public, so it protects nothing; it keeps the code paths equal. */
void tls_insecure_keys(struct conf_keys *ret_keys);

#endif
