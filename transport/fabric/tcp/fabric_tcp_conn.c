/* fabric_tcp_conn.c - sockets: listening, connecting, the lobby, the timer.
 *
 * Who wakes a connection: epoll, in every state but CLOSED and CUT. Those that may be waiting for
 * nobody (connecting, in the lobby, or cut) have a limit, which the timer looks at; it runs only
 * while there is such a one or a peer is to be connected again. Strangers fill the lobby and
 * nothing else: the oldest has to go when it is full, and who was turned away wrongly connects
 * again. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/pkt_sched.h> /* TC_PRIO_INTERACTIVE */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "shm/util/wait.h"
#include "transport/fabric/fabric_net.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    LOBBY_MAX = 128,
    HELLO_MS = 5000,    /* for a whole hello */
    LOBBY_MS = 30000,   /* for its token to become known */
    CONNECT_MS = 10000, /* for an answer to SYN, and for ACCEPT_MAGIC */
    MEND_TRY_MS = 400,  /* for a new socket of a stream; then another one is tried */
    TICK_MS = 100,
    LOOK_EVENTS = 64,
    ACCEPT_BUDGET = 16,
    KEEP_IDLE_S = 5,
    KEEP_EVERY_S = 1,
    KEEP_COUNT = 3,
};

/* --- one connection ------------------------------------------------------------------------- */

static void set_int(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof(value));
}

static void tune(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_EVERY_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
}

/* The kernel, too, lets express messages go first, where the device has queues for that. */
void conn_settle(struct conn *c)
{
    c->express = c->channel == c->peer->channels;
    if (c->express)
        set_int(c->fd, SOL_SOCKET, SO_PRIORITY, TC_PRIO_INTERACTIVE);
}

static int conn_take_socket(struct conn *c, int *fd, enum conn_state state)
{
    struct epoll_event ev = {.events = state == CONN_CONNECTING ? EPOLLOUT : EPOLLIN,
                             .data.ptr = c};

    if (epoll_ctl(c->t->epoll, EPOLL_CTL_ADD, *fd, &ev))
        return -errno;
    c->fd = steal_fd(fd);
    c->state = state;
    c->since_ms = now_ms();
    return 0;
}

static struct conn *conn_new(struct tcp *t, int *fd, enum conn_state state)
{
    struct conn *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->t = t;
    if (conn_take_socket(c, fd, state)) {
        free(c);
        return NULL;
    }
    TAILQ_INIT(&c->out);
    TAILQ_INIT(&c->kept);
    TAILQ_INSERT_TAIL(&t->conns, c, link);
    t->nconns++;
    t->nlobby += state == CONN_LOBBY;
    timer_need(t);
    return c;
}

void conn_watch(struct conn *c)
{
    struct epoll_event ev = {.data.ptr = c};

    if (c->state == CONN_CUT)
        return;
    c->polled_out = c->writing && c->t->armed;
    if (!c->parked || c->state != CONN_OPEN) /* but a greeting is read */
        ev.events |= EPOLLIN;
    if (c->polled_out || c->state == CONN_CONNECTING)
        ev.events |= EPOLLOUT;
    epoll_ctl(c->t->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

void conn_unplug(struct conn *c)
{
    conn_stop_writing(c);
    c->polled_out = false;
    c->hello_got = 0;
    close_fdp(&c->fd); /* epoll forgets it */
}

void conn_plug(struct conn *c, struct conn *from)
{
    assert(c->state == CONN_CUT && c->fd < 0);
    c->fd = steal_fd(&from->fd);
    conn_close(from);
    c->state = CONN_ACCEPTED;
    c->since_ms = now_ms();
    conn_settle(c);
    conn_watch(c);
}

void conn_uncount_open(struct conn *c)
{
    struct tcp *t = c->t;

    if (!conn_is_open(c))
        return;
    t->nbroken -= c->state == CONN_BROKEN;
    t->nopen--;
    t->nexpress -= c->express;
    c->peer->nopen--;
}

void conn_close(struct conn *c)
{
    struct tcp *t = c->t;

    if (c->state == CONN_CLOSED)
        return;
    t->nlobby -= c->state == CONN_LOBBY;
    conn_uncount_open(c);
    t->held -= c->held;
    if (c->keeping)
        TAILQ_REMOVE(&t->keepers, c, keep_link);
    c->keeping = false;
    t->nparked -= c->parked;
    c->parked = false;
    if (c->peer) {
        c->peer->conn[c->channel] = NULL;
        c->peer = NULL;
    }
    conn_unplug(c);
    c->state = CONN_CLOSED;
    c->sink = NULL;
    free(steal_ptr(c->rest));
    TAILQ_REMOVE(&t->conns, c, link);
    t->nconns--;
    TAILQ_INSERT_TAIL(&t->closed, c, link);
}

void conns_sweep(struct tcp *t)
{
    struct conn *c;

    while ((c = TAILQ_FIRST(&t->closed))) {
        TAILQ_REMOVE(&t->closed, c, link);
        free(c);
    }
}

/* ---- listening and connecting ---------------------------------------------------------------- */

/* The oldest that has not said who it is, else the oldest: a peer says its hello at once, and then
 * waits for us to learn its token. */
static void evict(struct tcp *t)
{
    struct conn *c, *victim = NULL;

    TAILQ_FOREACH(c, &t->conns, link) /* oldest first */
    {
        if (c->state != CONN_LOBBY)
            continue;
        if (!victim)
            victim = c;
        if (c->hello_got < sizeof(c->hello)) {
            victim = c;
            break;
        }
    }
    if (victim)
        conn_close(victim);
}

/* Until the next tick nobody can be accepted: epoll must not report it all the time. */
static void set_deaf(struct tcp *t, bool deaf)
{
    struct epoll_event ev = {.events = deaf ? 0 : EPOLLIN, .data.ptr = &t->listener};

    if (t->deaf == deaf)
        return;
    t->deaf = deaf;
    epoll_ctl(t->epoll, EPOLL_CTL_MOD, t->listener, &ev);
    timer_need(t);
}

static bool accept_all(struct tcp *t)
{
    bool any = false;

    for (unsigned i = 0; i < ACCEPT_BUDGET; i++) {
        _cleanup_(close_fdp) int fd =
            accept4(t->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                set_deaf(t, true);
            return any;
        }
        any = true;
        if (t->nlobby >= LOBBY_MAX)
            evict(t);
        tune(fd);
        conn_new(t, &fd, CONN_LOBBY);
    }
    return any;
}

static socklen_t addr_len(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void set_port(struct sockaddr_storage *addr, unsigned port)
{
    if (addr->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)addr)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)addr)->sin_port = htons((uint16_t)port);
}

int tcp_connect(struct tcp_peer *peer, unsigned channel)
{
    struct tcp *t = peer->t;
    _cleanup_(close_fdp) int fd =
        socket(peer->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_storage from = t->addr;
    struct conn *c = peer->conn[channel];
    int r;

    if (fd < 0)
        return -errno;
    tune(fd);
    net_congestion_take(fd, t->congestion);
    set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    set_port(&from, 0);
    if (from.ss_family == peer->addr.ss_family &&
        bind(fd, (struct sockaddr *)&from, addr_len(&from)))
        return -errno;
    if (connect(fd, (struct sockaddr *)&peer->addr, addr_len(&peer->addr)) && errno != EINPROGRESS)
        return -errno;
    if (c) {
        assert(c->state == CONN_CUT);
        r = conn_take_socket(c, &fd, CONN_CONNECTING);
        if (r == 0)
            conn_settle(c);
        return r;
    }
    c = conn_new(t, &fd, CONN_CONNECTING);
    if (!c)
        return -ENOMEM;
    c->peer = peer;
    c->channel = channel;
    peer->conn[channel] = c;
    conn_settle(c);
    return 0;
}

static int socket_error(const struct conn *c)
{
    int err = 0;
    socklen_t len = sizeof(err);

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    return err;
}

static bool connected(struct conn *c)
{
    struct tcp_peer *peer = c->peer;
    struct hello hello = {.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .channel = (uint16_t)c->channel,
                          .channels = (uint16_t)peer->channels,
                          .express = (uint16_t)peer->express,
                          .of = c->cut_ms ? HELLO_MENDS : HELLO_BEGINS,
                          .attempt = c->cut_ms ? ++c->attempt : 0,
                          .got = c->got};
    int err = socket_error(c);

    memcpy(hello.token, peer->token, sizeof(hello.token));
    if (!err && send(c->fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello))
        err = errno ? errno : EIO;
    if (err) {
        conn_lost(c, err);
        return true;
    }
    c->state = CONN_GREETING;
    c->since_ms = now_ms();
    conn_watch(c);
    return true;
}

static bool read_hello(struct conn *c)
{
    uint8_t *at = (uint8_t *)&c->hello + c->hello_got;
    uint8_t more;
    bool whole = c->hello_got == sizeof(c->hello);
    /* nobody may say more than hello before it is answered */
    ssize_t n = whole ? recv(c->fd, &more, 1, MSG_PEEK)
                      : recv(c->fd, at, sizeof(c->hello) - c->hello_got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0 || whole) {
        conn_lost(c, n < 0 ? errno : 0);
        return true;
    }
    c->hello_got += (size_t)n;
    if (c->hello_got == sizeof(c->hello))
        peer_greeted(c);
    return true;
}

static bool read_accept(struct conn *c)
{
    size_t all = sizeof(c->hello.magic);
    ssize_t n = recv(c->fd, (uint8_t *)&c->hello.magic + c->hello_got, all - c->hello_got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        conn_lost(c, n < 0 ? errno : 0);
        return true;
    }
    c->hello_got += (size_t)n;
    if (c->hello_got < all)
        return true;
    if (c->hello.magic == ACCEPT_MAGIC)
        peer_opened(c);
    else
        peer_fail(c->peer, -EPROTO, "the other side did not accept the answer to its hello");
    return true;
}

void conn_empty(struct conn *c)
{
    if (c->state == CONN_ACCEPTED)
        read_accept(c);
    if (conn_is_open(c))
        conn_drain(c);
}

/* --- timer ------------------------------------------------------------------------------------ */

static void timer_set(struct tcp *t, bool on)
{
    struct itimerspec spec = {0};

    if (t->timer_on == on)
        return;
    t->timer_on = on;
    if (on)
        spec.it_interval.tv_nsec = spec.it_value.tv_nsec = TICK_MS * 1000000l;
    timerfd_settime(t->timer, 0, &spec, NULL);
}

void timer_need(struct tcp *t)
{
    timer_set(t, true);
}

/* A process that was stopped finds the time over, and what it waited for here. */
static bool has_arrived(const struct conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = c->state == CONN_CONNECTING ? POLLOUT : POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* An accepted socket of a stream has no limit of its own: the other side may send over it already,
 * and what is closed with it is lost. True if the connection has to be looked at again. */
static bool conn_tick(struct conn *c, uint64_t now)
{
    uint64_t age = now - c->since_ms;

    if (c->state == CONN_LOBBY) {
        if (age > (c->hello_got < sizeof(c->hello) ? HELLO_MS : LOBBY_MS))
            conn_close(c);
        return true;
    }
    if (c->cut_ms) {
        if (now - c->cut_ms > c->t->mend_ms)
            peer_not_mended(c);
        else if ((c->state == CONN_CONNECTING || c->state == CONN_GREETING) && age > MEND_TRY_MS &&
                 !has_arrived(c))
            conn_lost(c, ETIMEDOUT);
        return true;
    }
    if (c->state != CONN_CONNECTING && c->state != CONN_ACCEPTED)
        return false;
    if (age > CONNECT_MS && !has_arrived(c))
        conn_lost(c, ETIMEDOUT);
    return true;
}

static bool tick(struct tcp *t)
{
    uint64_t expired, now = now_ms();
    bool need = false;

    if (read(t->timer, &expired, sizeof(expired)) != sizeof(expired))
        return false;
    for (struct conn *c = TAILQ_FIRST(&t->conns), *next; c; c = next) {
        next = TAILQ_NEXT(c, link);
        need |= conn_tick(c, now);
    }
    set_deaf(t, false);
    timer_set(t, need);
    peers_tick(t, now);
    return true;
}

/* ---- the loop's side ------------------------------------------------------------------------- */

static bool conn_event(struct conn *c, uint32_t events)
{
    switch (c->state) {
    case CONN_CONNECTING:
        return connected(c);
    case CONN_GREETING:
    case CONN_LOBBY:
        return read_hello(c);
    case CONN_ACCEPTED:
        return read_accept(c);
    case CONN_OPEN:
        if (!c->parked)
            return conn_read(c);
        if (!(events & (EPOLLERR | EPOLLHUP)))
            return false;              /* room for write_all() */
        conn_lost(c, socket_error(c)); /* epoll was not asked for input: it has broken */
        return true;
    case CONN_BROKEN:
    case CONN_CUT:
    case CONN_CLOSED:
        break;
    }
    return false;
}

static bool is_express(const struct tcp *t, const void *what)
{
    return what != &t->listener && what != &t->timer && ((const struct conn *)what)->express;
}

bool tcp_look(struct tcp *t)
{
    struct epoll_event ev[LOOK_EVENTS];
    int n = epoll_wait(t->epoll, ev, ARRAY_LEN(ev), 0);
    bool any = false;

    for (int i = 0; i < n; i++) /* none is freed before conns_sweep() */
        if (is_express(t, ev[i].data.ptr))
            any |= conn_event(ev[i].data.ptr, ev[i].events);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == &t->listener)
            any |= accept_all(t);
        else if (ev[i].data.ptr == &t->timer)
            any |= tick(t);
        else if (!is_express(t, ev[i].data.ptr))
            any |= conn_event(ev[i].data.ptr, ev[i].events);
    }
    return any;
}

/* ---- opening --------------------------------------------------------------------------------- */

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
    set_port(&t->addr, port);
    if (bind(fd, (struct sockaddr *)&t->addr, addr_len(&t->addr)) || listen(fd, LOBBY_MAX) ||
        getsockname(fd, (struct sockaddr *)&t->addr, &len))
        return -errno;
    t->listener = steal_fd(&fd);
    return 0;
}

static unsigned port_of(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)addr)->sin6_port)
                                       : ntohs(((const struct sockaddr_in *)addr)->sin_port);
}

/* Where the engine before us listened. It has been open all the while, so that nobody could take
 * it. Not where device or range are others now. */
static bool listen_again(struct tcp *t, int kept, unsigned low, unsigned high)
{
    _cleanup_(close_fdp) int fd = kept > 0 ? kept : -1;
    struct sockaddr_storage addr = {0}, host;
    socklen_t len = sizeof(addr);
    unsigned port;

    if (fd < 0 || getsockname(fd, (struct sockaddr *)&addr, &len) ||
        addr.ss_family != t->addr.ss_family)
        return false;
    port = port_of(&addr);
    host = addr;
    set_port(&host, 0);
    set_port(&t->addr, 0);
    if (memcmp(&host, &t->addr, addr_len(&host)) != 0 || (low && (port < low || port > high)) ||
        fcntl(fd, F_SETFL, O_NONBLOCK) || listen(fd, LOBBY_MAX))
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
                       timer = {.events = EPOLLIN, .data.ptr = &t->timer};

    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    t->buf = malloc(READ_MAX);
    if (t->buf && t->epoll >= 0 && t->timer >= 0 &&
        !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener, &listener) &&
        !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->timer, &timer))
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
        r = net_congestion_settle(t->congestion, /* those accepted inherit it */
                                  net_congestion_take(t->listener, t->congestion), why);
    if (r == 0)
        r = open_polling(t, why);
    t->base.port = r ? 0 : t->listener;
    return r;
}

void tcp_close(struct tcp *t)
{
    close_fdp(&t->listener);
    close_fdp(&t->timer);
    close_fdp(&t->epoll);
    free(t->buf);
}
