/* tls_identity.h - a node's certificate, and whose certificates it believes. */
#ifndef COMMD_TLS_IDENTITY_H
#define COMMD_TLS_IDENTITY_H

#include <openssl/ssl.h>

#include "daemon/conf/conf.h"
#include "shm/util/base.h"

enum { TLS_WHY_MAX = 256 };

struct tls_identity;

/* Understands @pems, and checks all that another node would refuse. @node: the name of this node.
 * On failure a negative errno, and *ret_error names the file and says what to do (malloc'ed; NULL
 * with -ENOMEM). */
int tls_identity_new(const struct conf_pems *pems, const char *node,
                     struct tls_identity **ret_identity, char **ret_error);
struct tls_identity *tls_identity_free(struct tls_identity *identity);
/* Since when, and how long, this node's certificate holds, with all that it stands on: seconds
 * since 1970. */
int64_t tls_identity_begins(const struct tls_identity *identity);
int64_t tls_identity_ends(const struct tls_identity *identity);
/* Is it time to renew it? In the last third of its time, and in the last 30 days. */
bool tls_identity_is_due(const struct tls_identity *identity, int64_t now_s);
/* When it ends, or has ended, for people: "the certificate ... expires in 6 days". */
void tls_identity_say_end(const struct tls_identity *identity, int64_t now_s, char *buf,
                          size_t len);
/* Is a list of cluster.crl older than it says it may become? It counts all the same. */
bool tls_identity_list_is_old(const struct tls_identity *identity, int64_t now_s);

/* Gives @ctx the certificate, and lets it ask for one. What it says of a certificate that it
 * refuses is kept with the session: tls_identity_why(). */
int tls_identity_use(const struct tls_identity *identity, SSL_CTX *ctx);
enum tls_trust { TLS_TRUSTED, TLS_DISTRUSTED, TLS_REVOKED };
/* Does the certificate of the other side hold, as @identity sees it now? Else *ret_why says why
 * not, in words that fit behind "its certificate". @later: the session was made some time ago, so
 * dates do not matter: they have been looked at then. */
enum tls_trust tls_identity_trusts(const struct tls_identity *identity, SSL *ssl, bool later,
                                   char ret_why[TLS_WHY_MAX]);
/* Why the handshake refused the certificate of the other side, likewise, and whom that claims to
 * be: nothing of it is proven. "": it was not refused. Valid as long as @ssl. */
const char *tls_identity_why(const SSL *ssl);
const char *tls_identity_claim(const SSL *ssl);
/* Does the certificate of the other side, which holds, name @node? */
bool tls_identity_names(SSL *ssl, const char *node);
/* Writes all names of that certificate: "a", or "a", "b". */
const char *tls_identity_text(SSL *ssl, char buf[TLS_WHY_MAX]);

#endif
