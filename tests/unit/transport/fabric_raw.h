/* fabric_raw.h - a peer of the plain TCP fabric that the test plays by hand, with bare sockets. */
#ifndef COMMD_FABRIC_RAW_H
#define COMMD_FABRIC_RAW_H

#include "tests/unit/transport/fabric_sides.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum { HOSTILE = 5 }; /* number of the peer that the test plays */

struct tcp *inside(struct side *s);
struct sockaddr_in address_of(const struct side *s);
bool readable(int fd);
bool ended(struct world *w, int fd);
/* May meet a connection that is closed already. A whole hello of the test is signed anew, for what
 * was changed in it. */
void raw_send(int fd, const void *data, size_t len);
/* A message of @len bytes with its header and without its body, or the question for one. */
void raw_head(int fd, enum frame_type type, uint32_t seq, uint32_t len);
void raw_reset(int fd);

/* --- the test connects --- */
int raw_connect(const struct side *s);
/* From another address of this machine. */
int raw_connect_from(const struct side *s, const char *source);
struct hello hello_of(unsigned incarnation);
/* As the test's; @listens: the side connects. @asked: what it answers, or NULL. */
void sign(struct hello *h, unsigned incarnation, bool listens, const struct hello *asked);
/* As the answer to what the side has said on @fd. */
void sign_answer(int fd, struct hello *h, unsigned incarnation);
/* The side gets to know the test as its peer HOSTILE. */
void expect_raw(struct side *s, unsigned incarnation);
/* One channel, greeted as far as our ACCEPT. */
int raw_greeted(struct world *w, struct side *s, unsigned incarnation, unsigned channel,
                unsigned channels);
void raw_accept(int fd);
/* A connection that has been greeted, right up to where messages may begin. */
int raw_linked(struct world *w, struct side *s, unsigned incarnation);

/* --- the side connects --- */
int raw_listen(const struct side *s, struct tcp_addr *ret_addr);
void expect_listener(struct side *s, const struct tcp_addr *a, unsigned incarnation);
/* The next connection, and what it said first. */
int raw_come(struct world *w, int listener, struct hello *ret_hello);
void raw_answer(int fd, const struct hello *h, unsigned incarnation);

#endif
