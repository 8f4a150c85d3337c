/* fabric_net.h - what the fabrics share: the states of a peer, the devices of this node, the
 * congestion control of TCP, the comparison of tokens, and errors in words that name the place and
 * the remedy. */
#ifndef COMMD_FABRIC_NET_H
#define COMMD_FABRIC_NET_H

#include <sys/socket.h>

#include "shm/util/base.h"

enum { NET_WHY_MAX = 256 };

enum peer_state {
    PEER_GREETING, /* sends wait in the queue */
    PEER_UP,
    PEER_DOWN, /* the link broke and was reported; waits for peer_del */
    PEER_GONE, /* no longer in its slot */
    PEER_NSTATES,
};
void peer_set_state(enum peer_state *state, enum peer_state to);

_printf_(2, 3) void net_explain(char *why, const char *fmt, ...);
/* Appends to the string in @buf, which has @size bytes. */
_printf_(3, 4) void net_append(char *buf, size_t size, const char *fmt, ...);

bool net_same_token(const uint8_t a[32], const uint8_t b[32]);

/* "mlx5_0:1": InfiniBand devices are no network devices, they go by port. */
bool net_is_infiniband(const char *device);
/* Negative errno and a line in @why unless @device is there and up. */
int net_check_device(const char *device, char why[NET_WHY_MAX]);
/* The first address of @device, IPv4 rather than IPv6, without a port. */
int net_device_address(const char *device, struct sockaddr_storage *ret_addr,
                       char why[NET_WHY_MAX]);

/* Congestion control of one TCP socket: "system" leaves it, "auto" takes CUBIC where the default is
 * BBR, else a name that the kernel has. 1: set, 0: nothing to do, negative errno.
 *
 * Why "auto": BBR, the default on many machines, sends at the rate that it has seen arrive. A
 * collective sends in bursts, and the receiver reduces between them. So the rate that BBR sees is
 * that of the reduction, and falls ever lower (1 MB: 1400 us, with CUBIC 600). Any other default
 * (DCTCP, say) stays: an administrator has chosen it for this network.
 *
 * An engine without privileges, which is the usual one, may take only what the sysctl
 * net.ipv4.tcp_allowed_congestion_control lists: RENO and the default, so perhaps not CUBIC. */
int net_congestion_take(int fd, const char *wish);
/* Asked of a socket of its own, before any other: if there is nothing to do for later sockets,
 * @wish becomes "system". @listener (-1: none) gets what new sockets get, for those that it accepts
 * inherit it, and an earlier engine with another wish may have listened there. An error is
 * explained in @why and returned. With "auto", which is a preference, it is only explained, and the
 * system's choice stays. */
int net_congestion_settle(char *wish, int listener, char why[NET_WHY_MAX]);

#endif
