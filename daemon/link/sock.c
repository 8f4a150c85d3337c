/* sock.c - addresses, devices, accepting.
 *
 * Nothing here knows of commd's protocol. Blocking calls (the resolver) are made before the
 * loop runs and never again: a node's address is fixed for the life of the process.
 *
 * At the limit of descriptors accept() fails with EMFILE and the connection stays in the
 * queue, so a level-triggered loop would spin. sock_accept() then gives up its reserve
 * descriptor, takes the connection, and hands it to the caller. The caller closes it, in its own
 * way, because messages may be in it. The other side sees a clean end, and the loop goes on. */
#include "daemon/link/sock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>

#include "daemon/process/store.h"
#include "shm/util/rivals.h"

int sock_resolve(const char *address, uint16_t port, struct sock_addr *ret_addr,
                 const char **ret_why)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[8];
    int r;

    snprintf(service, sizeof(service), "%u", port);
    hints.ai_flags = AI_NUMERICSERV;
    r = getaddrinfo(address, service, &hints, &list);
    if (r) {
        *ret_why = gai_strerror(r);
        return r == EAI_AGAIN || r == EAI_SYSTEM ? -EAGAIN : r == EAI_MEMORY ? -ENOMEM : -EINVAL;
    }
    memset(ret_addr, 0, sizeof(*ret_addr));
    memcpy(&ret_addr->sa, list->ai_addr, list->ai_addrlen);
    ret_addr->len = list->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

static bool sock_equal(const void *a, const void *b)
{
    size_t alen, blen;
    const void *abytes = addr_bytes(a, &alen), *bbytes = addr_bytes(b, &blen);

    return alen && alen == blen && memcmp(abytes, bbytes, alen) == 0;
}

bool sock_same_host(const struct sock_addr *a, const struct sock_addr *b)
{
    return sock_equal(&a->sa, &b->sa);
}

bool sock_is_loopback(const struct sock_addr *addr)
{
    size_t len;
    const uint8_t *bytes = addr_bytes(&addr->sa, &len);

    return (len == 4 && bytes[0] == 127) ||
           (len == 16 && memcmp(bytes, &in6addr_loopback, 16) == 0);
}

const char *sock_text(const struct sock_addr *addr, bool port, char buf[SOCK_TEXT_MAX])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    size_t len;
    const void *bytes = addr_bytes(&addr->sa, &len);
    unsigned number = addr->sa.ss_family == AF_INET6
                          ? ntohs(((const struct sockaddr_in6 *)&addr->sa)->sin6_port)
                          : ntohs(((const struct sockaddr_in *)&addr->sa)->sin_port);

    if (len)
        inet_ntop(len == 4 ? AF_INET : AF_INET6, bytes, ip, sizeof(ip));
    if (!port)
        snprintf(buf, SOCK_TEXT_MAX, "%s", ip);
    else
        snprintf(buf, SOCK_TEXT_MAX, len == 16 ? "[%s]:%u" : "%s:%u", ip, number);
    return buf;
}

const char *sock_net_text(const struct sock_addr *addr, char buf[SOCK_TEXT_MAX])
{
    struct in6_addr net = {0};
    char ip[INET6_ADDRSTRLEN];
    size_t len;
    const void *bytes = addr_bytes(&addr->sa, &len);

    if (len != sizeof(net))
        return sock_text(addr, false, buf);
    memcpy(&net, bytes, addr_net_len(len));
    inet_ntop(AF_INET6, &net, ip, sizeof(ip));
    snprintf(buf, SOCK_TEXT_MAX, "%s/%zu", ip, 8 * addr_net_len(len));
    return buf;
}

void sock_reserve_init(struct sock_reserve *reserve)
{
    reserve->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void sock_reserve_fini(struct sock_reserve *reserve)
{
    close_fdp(&reserve->fd);
}

int sock_listen(const struct sock_addr *addr, int backlog, int *ret_fd)
{
    int one = 1;
    _cleanup_(close_fdp) int fd =
        socket(addr->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (const struct sockaddr *)&addr->sa, addr->len) || listen(fd, backlog))
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

bool sock_listens(int fd, struct sock_addr *ret_addr)
{
    socklen_t len = sizeof(int);
    int listens = 0;

    ret_addr->len = sizeof(ret_addr->sa);
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens &&
           !getsockname(fd, (struct sockaddr *)&ret_addr->sa, &ret_addr->len) &&
           (ret_addr->sa.ss_family == AF_INET || ret_addr->sa.ss_family == AF_INET6);
}

static bool is_wanted(const struct sock_addr *own, const struct sock_addr *addr, unsigned low,
                      unsigned high)
{
    /* at the same place in both families */
    unsigned port = ntohs(((const struct sockaddr_in *)&own->sa)->sin_port);

    if (addr)
        return own->len == addr->len && !memcmp(&own->sa, &addr->sa, addr->len);
    return low <= port && port <= high;
}

struct wanted {
    const struct sock_addr *addr; /* NULL: any port from low to high */
    unsigned low, high;
};

static bool sock_fits(int fd, const void *arg)
{
    const struct wanted *wanted = arg;
    struct sock_addr own;

    return sock_listens(fd, &own) && is_wanted(&own, wanted->addr, wanted->low, wanted->high);
}

int sock_inherited(const struct sock_addr *addr, unsigned low, unsigned high)
{
    int fd = store_take_fitting(sock_fits, &(struct wanted){addr, low, high});

    if (fd >= 0)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int sock_accept(int listen_fd, struct sock_reserve *reserve, struct sock_addr *ret_from,
                int *ret_fd)
{
    struct sock_addr from = {.len = sizeof(from.sa)};
    int fd =
        accept4(listen_fd, (struct sockaddr *)&from.sa, &from.len, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0) {
        if (ret_from)
            *ret_from = from;
        *ret_fd = fd;
        return 0;
    }
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED: /* the other side has closed it already */
        return SOCK_E_AGAIN;
    case EMFILE:
    case ENFILE:
        if (reserve->fd < 0)
            sock_reserve_init(reserve);
        if (reserve->fd < 0)
            break;
        close_fdp(&reserve->fd);
        *ret_fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        return SOCK_E_FULL;
    }
    return -errno;
}

/* "lo, eth0": every device once. */
static void device_names(const struct ifaddrs *list, char *buf, size_t len)
{
    size_t used = 0;

    buf[0] = '\0';
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        bool seen = false;

        for (const struct ifaddrs *j = list; j != i && !seen; j = j->ifa_next)
            seen = strcmp(i->ifa_name, j->ifa_name) == 0;
        if (seen || used >= len)
            continue;
        used += (size_t)snprintf(buf + used, len - used, "%s%s", used ? ", " : "", i->ifa_name);
    }
}

/* "mlx5_0" or "mlx5_0:1": an RDMA device, which has a name of its own. */
static bool is_rdma_device(const char *device)
{
    char path[64 + CONF_NAME_MAX];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%.*s", (int)strcspn(device, ":"), device);
    return access(path, F_OK) == 0;
}

static const char *device_of(const struct ifaddrs *list, const struct sock_addr *self)
{
    for (const struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && sock_equal(i->ifa_addr, &self->sa))
            return i->ifa_name;
    /* All of 127.0.0.0/8 is local, though only 127.0.0.1 is written on the device. */
    for (const struct ifaddrs *i = list; i && sock_is_loopback(self); i = i->ifa_next)
        if (i->ifa_flags & IFF_LOOPBACK)
            return i->ifa_name;
    return NULL;
}

int sock_device(const struct conf *conf, const struct sock_addr *self,
                char ret_device[CONF_NAME_MAX], char **ret_error)
{
    struct ifaddrs *list = NULL;
    const char *found = NULL;
    char names[512];
    int r = 0;

    if (getifaddrs(&list))
        return -errno;
    for (const struct ifaddrs *i = list; i && conf->device[0] && !found; i = i->ifa_next)
        if (strcmp(i->ifa_name, conf->device) == 0)
            found = i->ifa_name;
    if (!conf->device[0])
        found = device_of(list, self);
    else if (!found && is_rdma_device(conf->device))
        found = conf->device;
    device_names(list, names, sizeof(names));
    if (found)
        snprintf(ret_device, CONF_NAME_MAX, "%s", found);
    else if (conf->device[0])
        r = fail_with(-EINVAL, ret_error,
                      "transport.device: no network device \"%s\" on this node (there are: %s)",
                      conf->device, names);
    else
        r = fail_with(-EINVAL, ret_error,
                      "cluster.nodes: no network device of this node has the address %s of node "
                      "\"%s\" (there are: %s); correct the address or set transport.device",
                      conf->nodes[conf->self].address, conf->node, names);
    freeifaddrs(list);
    return r;
}
