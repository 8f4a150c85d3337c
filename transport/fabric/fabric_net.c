/* fabric_net.c - see fabric_net.h. */
#include "transport/fabric/fabric_net.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum { CC_NAME_MAX = 16 }; /* TCP_CA_NAME_MAX */

/* clang-format off */
static const bool peer_may[PEER_NSTATES][PEER_NSTATES] = { /* rows: from; columns: to */
                      /* GREETING UP DOWN GONE */
    [PEER_GREETING] = {0,       1, 1,   1},
    [PEER_UP]       = {0,       0, 1,   1},
    [PEER_DOWN]     = {0,       0, 0,   1},
    [PEER_GONE]     = {0},
};
/* clang-format on */

void peer_set_state(enum peer_state *state, enum peer_state to)
{
    assert(peer_may[*state][to]);
    *state = to;
}

void net_explain(char *why, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, NET_WHY_MAX, fmt, ap);
    va_end(ap);
}

void net_append(char *buf, size_t size, const char *fmt, ...)
{
    size_t used = strlen(buf);
    va_list ap;

    assert(used < size);
    va_start(ap, fmt);
    vsnprintf(buf + used, size - used, fmt, ap);
    va_end(ap);
}

bool net_same_token(const uint8_t a[32], const uint8_t b[32])
{
    return same_secret(a, b, 32);
}

static void list_devices(char *buf, size_t size)
{
    struct if_nameindex *all = if_nameindex();

    buf[0] = '\0';
    for (struct if_nameindex *i = all; i && i->if_index; i++)
        net_append(buf, size, "%s%s", *buf ? ", " : "", i->if_name);
    if (all)
        if_freenameindex(all);
}

bool net_is_infiniband(const char *device)
{
    char path[64 + IFNAMSIZ];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%.*s",
             (int)MIN(strcspn(device, ":"), (size_t)IFNAMSIZ), device);
    return access(path, F_OK) == 0;
}

int net_check_device(const char *device, char why[NET_WHY_MAX])
{
    _cleanup_(close_fdp) int fd = -1;
    struct ifreq ifr = {0};
    char names[160];

    if (!device || !*device) {
        net_explain(why, "transport.device: empty");
        return -EINVAL;
    }
    if (net_is_infiniband(device))
        return 0;
    if (strlen(device) >= IFNAMSIZ || if_nametoindex(device) == 0) {
        list_devices(names, sizeof(names));
        net_explain(why,
                    "transport.device: no network device \"%.40s\" on this node (there are: %s)",
                    device, names);
        return -ENODEV;
    }
    strcpy(ifr.ifr_name, device);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &ifr) < 0) {
        int r = -errno;

        net_explain(why, "transport.device: cannot ask for the state of \"%s\": %s", device,
                    strerror(-r));
        return r;
    }
    /* A device that comes up later would stay unknown to UCX. */
    if (!(ifr.ifr_flags & IFF_UP) || !(ifr.ifr_flags & IFF_RUNNING)) {
        net_explain(why, "transport.device: network device \"%s\" is %s", device,
                    ifr.ifr_flags & IFF_UP ? "up, but has no link" : "down");
        return -ENETDOWN;
    }
    return 0;
}

/* Link-local addresses need the number of a device, which differs from node to node. */
static bool address_usable(const struct ifaddrs *i, const char *device, int family)
{
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;

    return i->ifa_addr && !strcmp(i->ifa_name, device) && i->ifa_addr->sa_family == family &&
           (family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr));
}

static void freeifaddrsp(struct ifaddrs **all)
{
    if (*all)
        freeifaddrs(*all);
}

int net_device_address(const char *device, struct sockaddr_storage *ret_addr, char why[NET_WHY_MAX])
{
    static const int families[] = {AF_INET, AF_INET6};
    _cleanup_(freeifaddrsp) struct ifaddrs *all = NULL;

    if (getifaddrs(&all)) {
        int r = -errno;

        net_explain(why, "transport.device: cannot list addresses: %s", strerror(-r));
        return r;
    }
    for (unsigned f = 0; f < ARRAY_LEN(families); f++) {
        for (struct ifaddrs *i = all; i; i = i->ifa_next) {
            if (!address_usable(i, device, families[f]))
                continue;
            *ret_addr = (struct sockaddr_storage){0};
            memcpy(ret_addr, i->ifa_addr,
                   families[f] == AF_INET ? sizeof(struct sockaddr_in)
                                          : sizeof(struct sockaddr_in6));
            return 0;
        }
    }
    net_explain(why, "transport.device: network device \"%.40s\" has no IP address", device);
    return -EADDRNOTAVAIL;
}

static const char preferred[] = "cubic";

static int net_listen_take(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) ? -errno : 1;
}

int net_congestion_take(int fd, const char *wish)
{
    char now[CC_NAME_MAX + 1] = "";
    socklen_t len = CC_NAME_MAX;

    if (!strcmp(wish, "system"))
        return 0;
    if (strcmp(wish, "auto"))
        return net_listen_take(fd, wish);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len) || strncmp(now, "bbr", 3))
        return 0;
    return net_listen_take(fd, preferred);
}

/* Asked by trying: what the kernel lists as available is more than what we may take. */
static void list_congestion(char *buf, size_t size)
{
    _cleanup_(close_fdp) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_available_congestion_control", "re");
    char names[512] = "", *save, *name;

    snprintf(buf, size, "auto, system");
    if (!file)
        return;
    if (!fgets(names, sizeof(names), file))
        names[0] = '\0';
    fclose(file);
    for (name = strtok_r(names, " \n", &save); name; name = strtok_r(NULL, " \n", &save))
        if (fd >= 0 && net_listen_take(fd, name) > 0 && strlen(buf) + strlen(name) + 2 < size)
            net_append(buf, size, ", %s", name);
}

static int refused(const char *wish, int err, char why[NET_WHY_MAX])
{
    bool automatic = !strcmp(wish, "auto");
    const char *name = automatic ? preferred : wish;
    char reason[96], names[96];

    if (err == -EPERM)
        snprintf(reason, sizeof(reason),
                 "the sysctl net.ipv4.tcp_allowed_congestion_control lacks \"%s\"", name);
    else if (err == -ENOENT)
        snprintf(reason, sizeof(reason), "the kernel has no \"%s\"", name);
    else
        snprintf(reason, sizeof(reason), "the kernel refuses \"%s\": %s", name, strerror(-err));
    if (automatic) {
        net_explain(why, "congestion control stays the system's, %s", reason);
        return 0;
    }
    list_congestion(names, sizeof(names));
    net_explain(why, "transport.congestion_control: %s (allowed here: %s)", reason, names);
    return err;
}

int net_congestion_settle(char *wish, int listener, char why[NET_WHY_MAX])
{
    _cleanup_(close_fdp) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int taken = fd < 0 ? -errno : net_congestion_take(fd, wish);
    int r = taken < 0 ? refused(wish, taken, why) : 0;
    char name[CC_NAME_MAX + 1] = "";
    socklen_t len = CC_NAME_MAX;

    if (taken <= 0)
        strcpy(wish, "system");
    if (listener >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0)
        net_listen_take(listener, name);
    return r;
}
