/* sock.h - sockets as the edges need them: addresses of the configured nodes, the network
 * device that holds one, accepting without ever running into a wall of descriptors. */
#ifndef COMMD_SOCK_H
#define COMMD_SOCK_H

#include <net/if.h>
#include <sys/socket.h>

#include "daemon/conf/conf.h"

struct sock_addr {
    struct sockaddr_storage sa;
    socklen_t len;
};

enum { SOCK_TEXT_MAX = 64 };

/* Numeric or by the resolver; may block, so only at start. -EINVAL: there is no such host,
 * -EAGAIN: the resolver failed for now. *ret_why is static. */
int sock_resolve(const char *address, uint16_t port, struct sock_addr *ret_addr,
                 const char **ret_why);
bool sock_is_loopback(const struct sock_addr *addr);
bool sock_same_host(const struct sock_addr *a, const struct sock_addr *b);
/* "10.0.0.1:18400", "[fd00::1]:18400"; without the port when @port is false. */
const char *sock_text(const struct sock_addr *addr, bool port, char buf[SOCK_TEXT_MAX]);

/* The socket that listens already, from the commd before us or from a socket unit: at @addr, or
 * where that is NULL at a port from @low to @high; -1. */
int sock_inherited(const struct sock_addr *addr, unsigned low, unsigned high);
bool sock_listens(int fd, struct sock_addr *ret_addr); /* a socket of the network that does */

enum { SOCK_E_AGAIN = 1, SOCK_E_FULL = 2 };

/* One descriptor kept back, so that at the limit a connection can still be taken off the
 * queue and closed instead of waking us for ever. */
struct sock_reserve {
    int fd; /* -1: not there just now */
};
void sock_reserve_init(struct sock_reserve *reserve);
void sock_reserve_fini(struct sock_reserve *reserve);
/* Accepts one connection, non-blocking and close-on-exec. SOCK_E_AGAIN: none waits.
 * SOCK_E_FULL: no descriptor was left; the one in *ret_fd (or -1) is to be closed at once, and
 * sock_reserve_init() called. */
int sock_accept(int listen_fd, struct sock_reserve *reserve, struct sock_addr *ret_from,
                int *ret_fd);

/* The device for the engines: the configured one (network or RDMA) if it exists, else the one
 * that holds this node's address. -EINVAL with *ret_error "KEY: ...", malloc'ed. */
int sock_device(const struct conf *conf, const struct sock_addr *self,
                char ret_device[CONF_NAME_MAX], char **ret_error);

#endif
