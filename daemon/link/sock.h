/* sock.h - sockets for the edges: addresses of the configured nodes, the network device that has an
 * address, and an accept() that works when no descriptor is left. */
#ifndef COMMD_SOCK_H
#define COMMD_SOCK_H

#include <net/if.h>
#include <sys/socket.h>

#include "daemon/conf/conf.h"

struct sock_addr {
    struct sockaddr_storage sa;
    socklen_t len;
};

enum {
    SOCK_TEXT_MAX = 64,
    /* May wait to be accepted, so that who comes behind a crowd is not turned away, unless it comes
     * faster than it is taken in. A listener takes some, and then none for some milliseconds: a
     * crowd gets a part of a core, what else runs there waits for a short time, and a whole queue
     * is taken in less than a second. */
    SOCK_QUEUE = 1024,
};

/* @address: numeric, or a name for the resolver. May block, so it is called at the start only.
 * -EINVAL: there is no such host; -EAGAIN: the resolver has failed for now. *ret_why is static. */
int sock_resolve(const char *address, uint16_t port, struct sock_addr *ret_addr,
                 const char **ret_why);
bool sock_is_loopback(const struct sock_addr *addr);
bool sock_same_host(const struct sock_addr *a, const struct sock_addr *b);
/* "10.0.0.1:18400", "[fd00::1]:18400"; without the port when @port is false. */
const char *sock_text(const struct sock_addr *addr, bool port, char buf[SOCK_TEXT_MAX]);
/* Its net (rivals.h): "10.0.0.1", "fd00:0:0:1::/64". */
const char *sock_net_text(const struct sock_addr *addr, char buf[SOCK_TEXT_MAX]);

/* A new listening socket, non-blocking and close-on-exec. 0 or a negative errno. */
int sock_listen(const struct sock_addr *addr, int backlog, int *ret_fd);
/* A listening socket that the service manager has given to us: it is of the commd before us, or of
 * a socket unit. It listens at @addr; @addr NULL: at a port from @low to @high. -1: there is none.
 */
int sock_inherited(const struct sock_addr *addr, unsigned low, unsigned high);
/* Is @fd a listening TCP socket? *ret_addr is where it listens. */
bool sock_listens(int fd, struct sock_addr *ret_addr);

enum { SOCK_E_AGAIN = 1, SOCK_E_FULL = 2 };

/* A descriptor that is kept for the moment when no other is left: then a connection can be taken
 * out of the queue and closed. Else it would wake the loop for ever. */
struct sock_reserve {
    int fd; /* -1: it is in use */
};
void sock_reserve_init(struct sock_reserve *reserve);
void sock_reserve_fini(struct sock_reserve *reserve);
/* Accepts one connection, non-blocking and close-on-exec. SOCK_E_AGAIN: no connection waits.
 * SOCK_E_FULL: no descriptor was left. Then the caller closes *ret_fd, which may be -1, and calls
 * sock_reserve_init(). */
int sock_accept(int listen_fd, struct sock_reserve *reserve, struct sock_addr *ret_from,
                int *ret_fd);

/* The device for the engine: the configured one (network or RDMA), else the one that has this
 * node's address. -EINVAL: the device does not exist; *ret_error is "KEY: ...", malloc'ed. */
int sock_device(const struct conf *conf, const struct sock_addr *self,
                char ret_device[CONF_NAME_MAX], char **ret_error);

#endif
