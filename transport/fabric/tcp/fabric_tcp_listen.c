/* fabric_tcp_listen.c - opens the fabric over TCP: checks the configuration, listens, and makes
 * what it waits with. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

socklen_t addr_len(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

in_port_t *addr_port(struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)addr)->sin6_port
                                       : &((struct sockaddr_in *)addr)->sin_port;
}

void *addr_ip(struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)addr)->sin6_addr
                                       : &((struct sockaddr_in *)addr)->sin_addr;
}

static int port_range(const struct fabric_conf *conf, unsigned *ret_low, unsigned *ret_high,
                      char *why)
{
    char more;

    *ret_low = *ret_high = 0;
    if (!conf->port_range)
        return 0;
    if (sscanf(conf->port_range, "%5u-%5u%c", ret_low, ret_high, &more) == 2 && *ret_low > 0 &&
        *ret_low <= *ret_high && *ret_high <= UINT16_MAX)
        return 0;
    net_explain(why, "transport.port_range: \"%.40s\" is not LOW-HIGH", conf->port_range);
    return -EINVAL;
}

static int listen_on(struct tcp *t, unsigned port)
{
    _cleanup_(close_fdp) int fd =
        socket(t->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof(t->addr);

    if (fd < 0)
        return -errno;
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    *addr_port(&t->addr) = htons((uint16_t)port);
    if (bind(fd, (struct sockaddr *)&t->addr, addr_len(&t->addr)) || listen(fd, LISTEN_QUEUE) ||
        getsockname(fd, (struct sockaddr *)&t->addr, &len))
        return -errno;
    t->listener = steal_fd(&fd);
    return 0;
}

/* Takes the socket of the engine before us, which has stayed open, so that no other process could
 * take its port. Not if the configuration has another device or range now. */
static bool listen_again(struct tcp *t, int kept, unsigned low, unsigned high)
{
    _cleanup_(close_fdp) int fd = kept > 0 ? kept : -1;
    struct sockaddr_storage addr = {0}, host;
    socklen_t len = sizeof(addr);
    unsigned port;

    if (fd < 0 || getsockname(fd, (struct sockaddr *)&addr, &len) ||
        addr.ss_family != t->addr.ss_family)
        return false;
    port = ntohs(*addr_port(&addr));
    host = addr;
    *addr_port(&host) = *addr_port(&t->addr) = 0;
    if (memcmp(&host, &t->addr, addr_len(&host)) != 0 || (low && (port < low || port > high)) ||
        fcntl(fd, F_SETFL, O_NONBLOCK) || listen(fd, LISTEN_QUEUE))
        return false;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    t->addr = addr;
    t->listener = steal_fd(&fd);
    return true;
}

static int listen_somewhere(struct tcp *t, const struct fabric_conf *conf, char *why)
{
    unsigned low, high;
    int r = port_range(conf, &low, &high, why);

    if (r || listen_again(t, conf->port, low, high))
        return r;
    for (unsigned port = low; port <= high; port++) {
        r = listen_on(t, port);
        if (r == 0)
            return 0;
        if (r != -EADDRINUSE && r != -EACCES)
            break;
    }
    if (conf->port_range && (r == -EADDRINUSE || r == -EACCES))
        net_explain(why,
                    "transport.port_range: no free TCP port in %.40s on device %.20s: others have "
                    "them (ss -ltnp, as root, shows who)",
                    conf->port_range, conf->device);
    else
        net_explain(why, "cannot listen on device %.20s: %s", conf->device, strerror(-r));
    return r;
}

static int open_polling(struct tcp *t, char *why)
{
    struct epoll_event listener = {.events = EPOLLIN, .data.ptr = &t->listener},
                       timer = {.events = EPOLLIN, .data.ptr = &t->timer},
                       rest = {.events = EPOLLIN, .data.ptr = &t->rest};

    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    t->rest = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    t->chunk = chunk_new();
    t->buf = t->chunk ? t->chunk->data : NULL;
    if (t->buf && t->epoll >= 0 && t->timer >= 0 && t->rest >= 0 &&
        !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener, &listener) &&
        !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->timer, &timer) &&
        !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->rest, &rest))
        return 0;
    net_explain(why, "cannot wait for the network: %s", strerror(errno));
    return -errno;
}

static int check_transports(const struct fabric_conf *conf, char *why)
{
    if (strcmp(conf->tls, "tcp")) {
        net_explain(why,
                    "transport.fabric is tcp, but transport.ucx_tls is \"%.60s\"; allowed: "
                    "transport.ucx_tls: "
                    "tcp, or transport.fabric: ucx",
                    conf->tls);
        return -EINVAL;
    }
    if (conf->device && *conf->device && net_is_infiniband(conf->device)) {
        net_explain(why,
                    "transport.device: \"%.40s\" is an InfiniBand port, which TCP cannot use; set "
                    "transport.ucx_tls to rc,ud, or transport.device to a network device",
                    conf->device);
        return -ENODEV;
    }
    return 0;
}

int tcp_open(struct tcp *t, const struct fabric_conf *conf, char why[256])
{
    int r = check_transports(conf, why);

    if (r == 0)
        r = net_check_device(conf->device, why);
    if (r == 0)
        r = net_device_address(conf->device, &t->addr, why);
    if (r == 0)
        r = listen_somewhere(t, conf, why);
    if (r == 0)
        r = net_congestion_settle(t->congestion, t->listener, why);
    if (r == 0)
        r = open_polling(t, why);
    if (r == 0 && jobs_init(t, conf->encryption_threads)) {
        net_explain(why, "no memory for transport.encryption_threads");
        r = -ENOMEM;
    }
    t->base.port = r ? 0 : t->listener;
    return r;
}

void tcp_close(struct tcp *t)
{
    close_fdp(&t->listener);
    close_fdp(&t->timer);
    close_fdp(&t->rest);
    close_fdp(&t->epoll);
    jobs_fini(t);
}
