/* tls.h - TLS 1.3 with the cluster's pre-shared key, and nothing else. */
#ifndef COMMD_TLS_H
#define COMMD_TLS_H

#include <openssl/ssl.h>

#include "daemon/conf/conf.h"
#include "shm/util/base.h"

enum { TLS_KEY_NAME = 9 }; /* bytes of a key's name for people: 8 hex digits */

struct tls;

/* Copies @keys. */
int tls_new(const struct conf_keys *keys, struct tls **ret_tls);
/* New sessions use @keys. Older sessions stay. */
void tls_set_keys(struct tls *tls, const struct conf_keys *keys);
/* The name of key @i; "" if there is no such key. A client offers key 0 first. */
const char *tls_key_name(const struct tls *tls, unsigned i);
struct tls *tls_free(struct tls *tls);
/* One session. The caller frees it (SSL_free()), before @tls. @key: index of the key that a client
 * offers. NULL: no memory. */
SSL *tls_session(struct tls *tls, bool server, unsigned key);
/* After the handshake: the name of its key. Valid until tls_set_keys(). */
const char *tls_session_key(SSL *ssl);
/* After the handshake: did both sides prove that they know the key? */
bool tls_is_authenticated(SSL *ssl);

/* Why a handshake failed, as far as OpenSSL's error code @code tells. */
enum tls_failure {
    TLS_CLOSED,     /* the other side went away: a port scanner, or it has another key */
    TLS_WRONG_KEY,  /* it tried another key than ours */
    TLS_REFUSED_US, /* it does not accept our key */
    TLS_NOT_TLS,    /* what it sends is no TLS handshake of a commd */
    TLS_FAILURES
};
enum tls_failure tls_failure(unsigned long code);

/* HMAC-SHA256 of @text: the token by which one engine knows another. */
int tls_token(const uint8_t secret[CONF_KEY_BYTES], const char *text, uint8_t ret_token[32]);
/* The key of --insecure: public, so it protects nothing; it keeps the code paths equal. */
void tls_insecure_keys(struct conf_keys *ret_keys);

#endif
