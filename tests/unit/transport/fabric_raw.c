/* fabric_raw.c - see fabric_raw.h. */
#include "tests/unit/transport/fabric_raw.h"

#include <arpa/inet.h>
#include <poll.h>

static struct side *theirs; /* the last side that the test has talked to */

struct sockaddr_in address_of(const struct side *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct tcp_addr a;

    assert_int_equal(s->addr_len, sizeof(a));
    memcpy(&a, s->addr, sizeof(a));
    assert_int_equal(a.family, 4);
    in.sin_port = htons(a.port);
    memcpy(&in.sin_addr, a.ip, sizeof(in.sin_addr));
    return in;
}

int raw_connect(const struct side *s)
{
    return raw_connect_from(s, "0.0.0.0");
}

int raw_connect_from(const struct side *s, const char *source)
{
    struct sockaddr_in in = address_of(s), from = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    theirs = (struct side *)(uintptr_t)s;
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    return fd;
}

/* The connection of that side to which @fd belongs. */
static struct conn *other_end(int fd)
{
    struct sockaddr_in mine, peer, its;
    socklen_t len = sizeof(mine);
    struct conn *c;

    if (getsockname(fd, (struct sockaddr *)&mine, &len) ||
        getpeername(fd, (struct sockaddr *)&peer, &len))
        return NULL;
    TAILQ_FOREACH(c, &inside(theirs)->conns, link)
        if (c->fd >= 0 && !getpeername(c->fd, (struct sockaddr *)&its, &len) &&
            its.sin_port == mine.sin_port && !getsockname(c->fd, (struct sockaddr *)&its, &len) &&
            its.sin_port == peer.sin_port)
            return c;
    return NULL;
}

/* What the test knows as the side's peer. @listens: the side connects, so its token is smaller. */
static struct tcp_peer raw_peer(unsigned incarnation, bool listens)
{
    struct tcp_peer peer = {0};

    token(listens ? peer.expect : peer.token, 0, HOSTILE, incarnation);
    token(listens ? peer.token : peer.expect, HOSTILE, 0, incarnation);
    assert_int_equal(peer_ids(&peer), 0);
    return peer;
}

void sign(struct hello *h, unsigned incarnation, bool listens, const struct hello *asked)
{
    struct tcp_peer peer = raw_peer(incarnation, listens);
    const struct conn *stream =
        h->of == HELLO_MENDS ? inside(theirs)->slot[HOSTILE]->conn[h->channel] : NULL;
    struct conn c = {0};

    if (asked)
        c.hello = *asked;
    if (stream) /* else it is of none */
        memcpy(c.begun, stream->begun, MAC_LEN);
    assert_int_equal(hello_say(&c, &peer, h, asked), 0);
}

/* Whose it is may have been said before something in it was changed. */
static void sign_again(struct hello *h)
{
    enum { MANY = 100 };

    for (unsigned i = 0; i < 2 * MANY; i++) {
        struct tcp_peer peer = raw_peer(i / 2, i % 2);

        if (memcmp(peer.id, h->id, ID_LEN))
            continue;
        sign(h, i / 2, i % 2, NULL);
        return;
    }
}

void raw_send(int fd, const void *data, size_t len)
{
    struct hello h;

    if (len == sizeof(h)) {
        memcpy(&h, data, len);
        if (h.magic == HELLO_MAGIC)
            sign_again(&h);
        data = &h;
    }
    send(fd, data, len, MSG_NOSIGNAL);
}

struct hello hello_of(unsigned incarnation)
{
    struct hello h = {.magic = HELLO_MAGIC, .version = HELLO_VERSION, .channels = 1};

    sign(&h, incarnation, false, NULL); /* its token is smaller than the side's: we connect */
    return h;
}

void expect_raw(struct side *s, unsigned incarnation)
{
    uint8_t its[32], ours[32];

    token(its, HOSTILE, 0, incarnation);
    token(ours, 0, HOSTILE, incarnation);
    theirs = s;
    assert_int_equal(s->f->ops->peer_add(s->f, HOSTILE, s->addr, s->addr_len, its, ours), 0);
}

bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

bool ended(struct world *w, int fd)
{
    struct frame bye;
    ssize_t n;

    pump_until(w, readable(fd));
    n = recv(fd, &bye, sizeof(bye), MSG_WAITALL);
    if (n != sizeof(bye) || bye.type != FRAME_BYE)
        return n <= 0;
    pump_until(w, readable(fd));
    return recv(fd, &bye, 1, 0) <= 0;
}

int raw_greeted(struct world *w, struct side *s, unsigned incarnation, unsigned channel,
                unsigned channels)
{
    struct hello h = hello_of(incarnation), answer;
    int fd = raw_connect(s);

    h.channel = (uint16_t)channel;
    h.channels = (uint16_t)channels;
    raw_send(fd, &h, sizeof(h));
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_memory_equal(answer.id, raw_peer(incarnation, true).id, ID_LEN);
    return fd;
}

void raw_accept(int fd)
{
    struct accept accept = {.magic = ACCEPT_MAGIC};
    struct conn *c = other_end(fd);

    if (c)
        accept = c->accept;
    raw_send(fd, &accept, sizeof(accept));
}

int raw_linked(struct world *w, struct side *s, unsigned incarnation)
{
    int fd;

    expect_raw(s, incarnation);
    fd = raw_greeted(w, s, incarnation, 0, 1);
    raw_accept(fd);
    return fd;
}

void raw_head(int fd, enum frame_type type, uint32_t seq, uint32_t len)
{
    struct frame f = {.type = (uint8_t)type, .hdr_len = 8, .seq = seq, .id = seq};
    struct head head = {.seq = seq, .len = len};

    if (type == FRAME_ASK)
        f.size = len;
    else
        f.len = len;
    raw_send(fd, &f, sizeof(f));
    raw_send(fd, &head, 8);
}

void raw_reset(int fd)
{
    struct linger now = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

struct tcp *inside(struct side *s)
{
    return container_of(s->f, struct tcp, base);
}

int raw_listen(const struct side *s, struct tcp_addr *ret_addr)
{
    struct sockaddr_in in = address_of(s);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof(in);

    in.sin_port = 0;
    assert_int_equal(bind(listener, (struct sockaddr *)&in, sizeof(in)), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&in, &len), 0);
    memcpy(ret_addr, s->addr, sizeof(*ret_addr));
    ret_addr->port = ntohs(in.sin_port);
    return listener;
}

void expect_listener(struct side *s, const struct tcp_addr *a, unsigned incarnation)
{
    uint8_t its[32], ours[32];

    token(its, 0, HOSTILE, incarnation);
    token(ours, HOSTILE, 0, incarnation);
    theirs = s;
    assert_int_equal(s->f->ops->peer_add(s->f, HOSTILE, a, sizeof(*a), its, ours), 0);
}

int raw_come(struct world *w, int listener, struct hello *ret_hello)
{
    int fd;

    pump_until(w, readable(listener));
    fd = accept(listener, NULL, NULL);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, ret_hello, sizeof(*ret_hello), MSG_WAITALL), sizeof(*ret_hello));
    return fd;
}

void sign_answer(int fd, struct hello *h, unsigned incarnation)
{
    struct conn *c = other_end(fd);

    assert_non_null(c);
    sign(h, incarnation, true, &c->said);
}

void raw_answer(int fd, const struct hello *h, unsigned incarnation)
{
    struct hello answer = *h;

    sign_answer(fd, &answer, incarnation);
    send(fd, &answer, sizeof(answer), MSG_NOSIGNAL);
}
