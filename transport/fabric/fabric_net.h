/* fabric_net.h - what every fabric has to know of this node's network: devices and the congestion
 * control of TCP, with errors for people. */
#ifndef COMMD_FABRIC_NET_H
#define COMMD_FABRIC_NET_H

#include <sys/socket.h>

#include "shm/util/base.h"

enum { NET_WHY_MAX = 256 };

_printf_(2, 3) void net_explain(char *why, const char *fmt, ...);
/* Appends to the string in @buf, which has @size bytes. */
_printf_(3, 4) void net_append(char *buf, size_t size, const char *fmt, ...);

/* No early exit: how far a guess was right does not show in the time. */
bool net_same_token(const uint8_t a[32], const uint8_t b[32]);

/* "mlx5_0:1": InfiniBand devices are no network devices, they go by port. */
bool net_is_infiniband(const char *device);
/* Negative errno and a line in @why unless @device is there and up. */
int net_check_device(const char *device, char why[NET_WHY_MAX]);
/* Its first address, IPv4 rather than IPv6, without a port. */
int net_device_address(const char *device, struct sockaddr_storage *ret_addr,
                       char why[NET_WHY_MAX]);

/* Congestion control of one TCP socket: "system" leaves it, "auto" takes CUBIC where the default is
 * BBR, else a name that the kernel has. 1: set, 0: nothing to do, negative errno.
 *
 * Why "auto": BBR, the default on many machines, sends at the rate that it has seen arrive. A
 * collective sends in bursts, between which the receiver reduces, so that rate is the one of the
 * reduction and falls ever lower: between two namespaces of one machine 20 Gbit/s both ways
 * together with BBR, 34 with CUBIC, and 1 MB in 1400 us where 600 would do. Others (DCTCP, say)
 * have been chosen by somebody for his network.
 *
 * An engine without privileges, which is the usual one, may take only what the sysctl
 * net.ipv4.tcp_allowed_congestion_control lists: RENO and the default, so perhaps not CUBIC. */
int net_congestion_take(int fd, const char *wish);
/* The listening socket, or the first of many, has told whether the kernel takes @wish: @taken is
 * what the above returned. Where there is nothing to do for later ones, @wish becomes "system". An
 * error is explained in @why and returned, but for "auto", which is a preference: then the system's
 * choice stays. */
int net_congestion_settle(char *wish, int taken, char why[NET_WHY_MAX]);

#endif
