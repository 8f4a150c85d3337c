/* fabric_tcp_conn.c - connections: their states and sockets, the lobby, the timer.
 *
 * Who wakes a connection: epoll, in every state that has a socket. In the states CONNECTING, LOBBY,
 * ACCEPTED and CUT the other side may never answer, so these have a limit, which the timer looks
 * at; an OPEN one to which something was written must be acknowledged. The timer runs only while
 * there is such a connection, or a peer is to be connected again.
 *
 * Strangers fill the lobby and nothing else. When the lobby is full, or no descriptor is left, one
 * in it has to go (lobby_victim()), and a peer that was turned away connects again.
 *
 * One connection is let in at once. While more come, one is let in each ACCEPT_NS: the listener is
 * not looked at until a timer has expired (accept_later()). So a crowd takes no more than a few
 * hundredths of the time of a core, an operation under way waits for one stranger and not for many,
 * and who stands behind LISTEN_QUEUE others is let in before MEND_TRY_MS are over. */
#include <errno.h>
#include <linux/pkt_sched.h> /* TC_PRIO_INTERACTIVE */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "shm/util/reset.h"
#include "shm/util/wait.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    HELLO_MS = 5000,    /* for a whole hello */
    LOBBY_MS = 30000,   /* for its token to become known */
    CONNECT_MS = 10000, /* for an answer to SYN, and for ACCEPT_MAGIC */
    MEND_TRY_MS = 400,  /* for a new socket of a stream; then another one is tried */
    LOOK_EVENTS = 64,
    ACCEPT_NS = 250000,  /* one costs as much as some turns */
    ACCEPT_BUDGET = 4,   /* of those that are due, where turns take long */
    DEAF_NS = 100000000, /* out of descriptors */
    KEEP_IDLE_S = 1, /* so what is heard of a peer is never older, while it is there: quiet_ms */
    KEEP_EVERY_S = 1,
    KEEP_COUNT = 7,
};

/* clang-format off */
static const bool conn_may[CONN_NSTATES][CONN_NSTATES] = { /* rows: from; columns: to */
                        /* NEW CNCT GREE LOBB ACCE OPEN BROK CUT CLOS */
    [CONN_NEW]        = {0,  1,   0,   1,   0,   0,   0,   0,  0},
    [CONN_CONNECTING] = {0,  0,   1,   0,   0,   0,   0,   1,  1},
    [CONN_GREETING]   = {0,  0,   0,   0,   0,   1,   0,   1,  1},
    [CONN_LOBBY]      = {0,  0,   0,   0,   1,   0,   0,   0,  1},
    [CONN_ACCEPTED]   = {0,  0,   0,   0,   0,   1,   0,   1,  1},
    [CONN_OPEN]       = {0,  0,   0,   0,   0,   0,   1,   1,  1},
    [CONN_BROKEN]     = {0,  0,   0,   0,   0,   0,   0,   1,  1},
    [CONN_CUT]        = {0,  1,   0,   0,   1,   0,   0,   0,  1},
    [CONN_CLOSED]     = {0},
};
/* clang-format on */

/* The list that it is in. */
static struct conn_list *conn_home(const struct conn *c)
{
    switch (c->state) {
    case CONN_NEW:
        return NULL;
    case CONN_LOBBY:
        return &c->t->lobby;
    case CONN_CLOSED:
        return &c->t->closed;
    case CONN_CONNECTING:
    case CONN_GREETING:
    case CONN_ACCEPTED:
    case CONN_OPEN:
    case CONN_BROKEN:
    case CONN_CUT:
    case CONN_NSTATES:
        break;
    }
    return &c->t->conns;
}

static void conn_move(struct conn *c, struct conn_list *from, struct conn_list *to)
{
    if (from == to)
        return;
    if (from)
        TAILQ_REMOVE(from, c, link);
    TAILQ_INSERT_TAIL(to, c, link);
}

static void conn_count(struct conn *c, int by)
{
    struct tcp *t = c->t;

    t->nconns += conn_home(c) == &t->conns ? by : 0;
    t->nlobby += c->state == CONN_LOBBY ? by : 0;
    t->nbroken += c->state == CONN_BROKEN ? by : 0;
    if (!conn_is_open(c))
        return;
    t->nopen += by;
    t->nexpress += c->express ? by : 0;
    c->peer->nopen += by;
    assert(t->nopen <= t->nconns && t->nexpress <= t->nopen && c->peer->nopen <= t->nopen);
}

void conn_set_state(struct conn *c, enum conn_state state)
{
    struct conn_list *from = conn_home(c);

    assert(conn_may[c->state][state]);
    conn_count(c, -1);
    c->state = state;
    conn_count(c, 1);
    conn_move(c, from, conn_home(c));
    if (state < CONN_BROKEN)
        c->since_ms = now_ms();
}

void set_int(int fd, int level, int option, int value)
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
    assert(!conn_is_open(c) && c->channel < c->peer->channels + c->peer->express);
    tune(c->fd);
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
    conn_set_state(c, state);
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
    TAILQ_INIT(&c->plain);
    TAILQ_INIT(&c->kept);
    timer_need(t);
    return c;
}

void conn_watch(struct conn *c)
{
    struct epoll_event ev = {.data.ptr = c};

    if (c->state == CONN_CUT)
        return;
    c->polled_out = c->writing && c->t->armed;
    if (!c->parked || c->state != CONN_OPEN) /* a greeting is read all the same */
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
    c->silent_ms = 0;
    close_fdp(&c->fd); /* epoll forgets it */
}

void conn_plug(struct conn *c, struct conn *from)
{
    assert(c->state == CONN_CUT && c->fd < 0);
    c->fd = steal_fd(&from->fd);
    c->accept = from->accept;
    conn_close(from);
    conn_set_state(c, CONN_ACCEPTED);
    conn_settle(c);
    conn_watch(c);
}

void conn_close(struct conn *c)
{
    struct tcp *t = c->t;

    if (c->state == CONN_CLOSED)
        return;
    assert(t->held >= c->held && t->nparked >= c->parked && !c->jobs);
    conn_set_state(c, CONN_CLOSED);
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
    c->sink = NULL;
    free(steal_ptr(c->rest));
    conn_unseal(c);
}

void conns_sweep(struct tcp *t)
{
    struct conn *c;

    while ((c = TAILQ_FIRST(&t->closed))) {
        TAILQ_REMOVE(&t->closed, c, link);
        free_wiped(c, sizeof(*c)); /* a hello of HELLO_OLD says a token */
    }
}

/* ---- listening and connecting ---------------------------------------------------------------- */

/* Who has to leave the lobby: first those that have not said who they are. A peer says its hello at
 * once, and then waits for us to learn its token. */
static struct conn *lobby_victim(const struct tcp *t)
{
    struct rivals rivals = {.victim = NULL};
    struct conn *c;

    _Static_assert((int)LOBBY_MAX <= (int)RIVALS_MAX, "all are counted");
    TAILQ_FOREACH(c, &t->lobby, link)
        rivals_count(&rivals, &c->rival);
    TAILQ_FOREACH(c, &t->lobby, link)
        rivals_look(&rivals, c, &c->rival, c->hello_got < sizeof(c->hello) ? 2 : 1, false);
    return rivals.victim;
}

static void conn_give_up(struct conn *c)
{
    reset_on_close(c->fd);
    conn_close(c);
}

static void evict(struct tcp *t)
{
    assert(t->nlobby);
    conn_give_up(lobby_victim(t));
}

/* Nobody is let in until the timer expires, which it does each @ns; 0: the listener is looked at.
 */
static void accept_later(struct tcp *t, long ns)
{
    struct epoll_event ev = {.events = ns ? 0 : EPOLLIN, .data.ptr = &t->listener};
    struct itimerspec spec = {.it_interval.tv_nsec = ns, .it_value.tv_nsec = ns};

    if (t->rest_ns == ns)
        return;
    if (!ns != !t->rest_ns)
        epoll_ctl(t->epoll, EPOLL_CTL_MOD, t->listener, &ev);
    t->rest_ns = ns;
    timerfd_settime(t->rest, 0, &spec, NULL);
}

/* Takes @fd. */
static void lobby_add(struct tcp *t, int *fd, const struct sockaddr_storage *from)
{
    struct conn *c;

    if (t->nlobby >= LOBBY_MAX)
        evict(t);
    c = conn_new(t, fd, CONN_LOBBY);
    if (c)
        c->rival = rival_at(from, false);
}

static bool someone_waits(const struct tcp *t)
{
    struct pollfd p = {.fd = t->listener, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* True: it was to be tried again. */
static bool accept_failed(struct tcp *t, int err)
{
    if (err == EMFILE || err == ENFILE) { /* this comes before EAGAIN */
        if (!someone_waits(t)) {
            err = EAGAIN;
        } else if (t->nlobby) {
            evict(t);
            return true;
        }
    }
    if (err == EAGAIN)
        accept_later(t, 0);
    else if (err != EINTR && err != ECONNABORTED)
        accept_later(t, DEAF_NS);
    return false;
}

static bool accept_some(struct tcp *t, uint64_t due)
{
    unsigned left = (unsigned)MIN(due, (uint64_t)ACCEPT_BUDGET);
    bool any = false;

    for (unsigned tries = 2 * left; left && tries; tries--) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof(from);
        _cleanup_(close_fdp) int fd =
            accept4(t->listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            lobby_add(t, &fd, &from);
            accept_later(t, ACCEPT_NS);
            left--;
        } else if (!accept_failed(t, errno)) {
            return any;
        }
        any = true;
    }
    return any;
}

static bool rested(struct tcp *t)
{
    uint64_t expired;

    return read(t->rest, &expired, sizeof(expired)) == sizeof(expired) && accept_some(t, expired);
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
    net_congestion_take(fd, t->congestion);
    set_int(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    *addr_port(&from) = 0;
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
                          .version = peer->version,
                          .channel = (uint16_t)c->channel,
                          .channels = (uint16_t)peer->channels,
                          .express = (uint16_t)peer->express,
                          .of = c->cut_ms ? HELLO_MENDS : HELLO_BEGINS,
                          .attempt = c->cut_ms ? ++c->attempt : 0,
                          .ciphers = peer->encrypted ? (uint16_t)seal_ciphers() : 0,
                          .got = c->got};
    int err = socket_error(c);

    if (!err)
        err = -hello_say(c, peer, &hello, false);
    if (!err && !hello_send(c->fd, &hello))
        err = errno ? errno : EIO;
    if (err) {
        conn_lost(c, err);
        return true;
    }
    conn_set_state(c, CONN_GREETING);
    conn_watch(c);
    return true;
}

static bool read_hello(struct conn *c)
{
    uint8_t *at = (uint8_t *)&c->hello + c->hello_got;
    uint8_t more;
    bool whole = c->hello_got == sizeof(c->hello);
    /* before the hello is answered nothing may follow it */
    ssize_t n =
        whole ? recv(c->fd, &more, 1, MSG_PEEK) : recv(c->fd, at, hello_size(c) - c->hello_got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0 || whole)
        conn_lost(c, n < 0 ? errno : 0);
    else if ((c->hello_got += (size_t)n) == hello_size(c)) {
        hello_read(c);
        peer_greeted(c);
    }
    return true;
}

static bool read_accept(struct conn *c)
{
    size_t all = accept_size(c->peer);
    ssize_t n = recv(c->fd, (uint8_t *)&c->heard + c->hello_got, all - c->hello_got, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0)
        conn_lost(c, n < 0 ? errno : 0);
    else if ((c->hello_got += (size_t)n) < all)
        return true;
    else if (accept_is_right(c))
        peer_opened(c);
    else
        peer_refused(c);
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

/* A process that was stopped for long finds its time over, but what it waited for may be here. */
static bool has_arrived(const struct conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = c->state == CONN_CONNECTING ? POLLOUT : POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* An accepted socket of a cut stream has no limit of its own: the other side may send over it
 * already, and what is closed with it is lost. True if the connection has to be looked at again. */
static bool conn_tick(struct conn *c, uint64_t now)
{
    uint64_t age = now - c->since_ms;

    if (c->cut_ms) {
        if (now - c->cut_ms > c->t->mend_ms)
            peer_not_mended(c);
        else if ((c->state == CONN_CONNECTING || c->state == CONN_GREETING) && age > MEND_TRY_MS &&
                 !has_arrived(c))
            conn_lost(c, ETIMEDOUT);
        return true;
    }
    if (c->state == CONN_OPEN)
        return conn_seal_tick(c, now) | conn_check_ack(c);
    if (c->state != CONN_CONNECTING && c->state != CONN_ACCEPTED)
        return false;
    if (age > CONNECT_MS && !has_arrived(c))
        conn_lost(c, ETIMEDOUT);
    return true;
}

static void lobby_tick(struct tcp *t, uint64_t now)
{
    for (struct conn *c = TAILQ_FIRST(&t->lobby), *next; c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (now - c->since_ms > (c->hello_got < sizeof(c->hello) ? HELLO_MS : LOBBY_MS))
            conn_give_up(c);
    }
}

static bool tick(struct tcp *t)
{
    uint64_t expired, now = now_ms();
    bool need;

    if (read(t->timer, &expired, sizeof(expired)) != sizeof(expired))
        return false;
    lobby_tick(t, now);
    need = t->nlobby > 0;
    for (struct conn *c = TAILQ_FIRST(&t->conns), *next; c; c = next) {
        next = TAILQ_NEXT(c, link);
        need |= conn_tick(c, now);
    }
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
    case CONN_NEW:
    case CONN_BROKEN:
    case CONN_CUT:
    case CONN_CLOSED:
    case CONN_NSTATES:
        break;
    }
    return false;
}

static bool is_conn(const struct tcp *t, const void *what)
{
    return what != &t->listener && what != &t->timer && what != &t->rest && what != &t->threads;
}

/* Express messages first, then the others; then the timer, and last of all who wants to come in. */
bool tcp_look(struct tcp *t)
{
    struct epoll_event ev[LOOK_EVENTS];
    int n = epoll_wait(t->epoll, ev, ARRAY_LEN(ev), 0);
    bool any = false;

    for (int express = 1; express >= 0; express--)
        for (int i = 0; i < n; i++) { /* none is freed before conns_sweep() */
            struct conn *c = ev[i].data.ptr;

            if (is_conn(t, c) && c->express == express)
                any |= conn_event(c, ev[i].events);
        }
    for (int i = 0; i < n; i++)
        if (ev[i].data.ptr == &t->timer)
            any |= tick(t);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == &t->listener)
            any |= accept_some(t, 1);
        else if (ev[i].data.ptr == &t->rest)
            any |= rested(t);
    }
    return any;
}
