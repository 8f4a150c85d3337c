/* fuzz_stream.c - a peer of the plain TCP fabric that writes what it likes, on one to three
 * channels that have been greeted.
 *
 * First byte: the number of channels; bit 7 leaves ACCEPT to the input. Then pieces:
 * channel, length, bytes; or, with bit 7 of the channel, no bytes but so many times 6000 zeros, for
 * the inside of large bodies. The handler takes, keeps, drops, answers and deletes as the header of
 * the message says. Each send and each recv has to complete exactly once, in memory of exactly its
 * size. */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PEER = 3, CHANNELS = 3, ZEROS = 6000, KEPT = 8, BODY_MAX = 1 << 20, ASKED = 200 << 10 };
enum { ACT_TAKE = 1, ACT_DROP = 2, ACT_SEND = 4, ACT_ASK = 8, ACT_DEL = 16, ACT_TAKE_OLD = 32 };

struct buf {
    struct scene *scene;
    uint8_t *bytes;
};

struct scene {
    struct fabric *f;
    int fd[CHANNELS];
    unsigned channels, nkept, open;
    struct fabric_msg kept[KEPT];
};

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_stream: %s\n", what);
        abort();
    }
}

static struct buf *buf_new(struct scene *s, size_t len)
{
    struct buf *b = calloc(1, sizeof(*b));

    must(b != NULL, "no memory");
    b->scene = s;
    b->bytes = calloc(1, len ? len : 1);
    must(b->bytes != NULL, "no memory");
    s->open++;
    return b;
}

static void on_done(void *arg, int st)
{
    struct buf *b = arg;

    must(st == 0 || st == -EIO || st == -ECANCELED, "bad status");
    must(b->scene->open-- > 0, "completed twice"); /* a sanitizer knows it earlier */
    free(b->bytes);
    free(b);
}

static void take(struct scene *s, void *claim, size_t len)
{
    struct buf *b = buf_new(s, len);
    int r = s->f->ops->recv(s->f, claim, b->bytes, len, on_done, b);

    if (r)
        on_done(b, r > 0 ? 0 : -EIO);
}

static void put(struct scene *s, size_t len)
{
    struct buf *b = buf_new(s, len);
    int r = s->f->ops->send(s->f, PEER, "hello", 5, b->bytes, len, on_done, b);

    if (r)
        on_done(b, r > 0 ? 0 : -EIO);
}

static void on_msg(void *arg, const struct fabric_msg *m)
{
    struct scene *s = arg;
    unsigned act = m->hdr_len ? *(const uint8_t *)m->hdr : 0;
    volatile uint8_t sum = 0;

    must(m->peer == PEER && !m->body == !!m->claim, "bad message");
    for (size_t i = 0; m->body && i < m->body_len; i++)
        sum ^= ((const uint8_t *)m->body)[i];
    if (act & ACT_TAKE_OLD && s->nkept > 0) {
        s->nkept--;
        take(s, s->kept[s->nkept].claim, s->kept[s->nkept].body_len);
    }
    if (act & ACT_SEND)
        put(s, 100);
    if (act & ACT_ASK)
        put(s, ASKED);
    if (m->claim && act & ACT_TAKE && m->body_len <= BODY_MAX)
        take(s, m->claim, m->body_len);
    else if (m->claim && (act & ACT_DROP || m->body_len > BODY_MAX || s->nkept == KEPT))
        s->f->ops->drop(s->f, m->claim);
    else if (m->claim)
        s->kept[s->nkept++] = *m;
    if (act & ACT_DEL)
        s->f->ops->peer_del(s->f, PEER);
}

static void on_peer_down(void *arg, unsigned peer, int err, const char *why)
{
    must(peer == PEER && err < 0 && *why, "bad failure");
}

/* A connection whose hello has been answered. */
static void conn_make(struct scene *s, unsigned channel)
{
    struct tcp *t = container_of(s->f, struct tcp, base);
    struct conn *c = calloc(1, sizeof(*c));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    int fd[2];

    must(c && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), "no socket");
    s->fd[channel] = fd[0];
    *c = (struct conn){.t = t, .fd = fd[1], .state = CONN_ACCEPTED, .channel = channel};
    c->peer = t->slot[PEER];
    c->peer->conn[channel] = c;
    TAILQ_INIT(&c->out);
    TAILQ_INIT(&c->plain);
    TAILQ_INIT(&c->kept);
    TAILQ_INSERT_TAIL(&t->conns, c, link);
    t->nconns++;
    must(!epoll_ctl(t->epoll, EPOLL_CTL_ADD, c->fd, &ev), "no epoll");
}

static void scene_open(struct scene *s, unsigned channels, bool accept)
{
    struct fabric_conf conf = {.kind = "tcp", .device = "lo", .tls = "tcp"};
    struct fabric_events ev = {on_msg, on_peer_down, s, NULL};
    struct accept f = {.magic = ACCEPT_MAGIC}; /* and as its mac what the connection has: zeros */
    uint8_t addr[FABRIC_ADDR_MAX], mine[32] = {2}, theirs[32] = {1};
    size_t len = sizeof(addr);
    char why[256];

    *s = (struct scene){.channels = channels};
    must(!fabric_tcp_new(&conf, &ev, &s->f, why) && !s->f->ops->address(s->f, addr, &len) &&
             !s->f->ops->peer_add(s->f, PEER, addr, len, mine, theirs),
         "no fabric");
    container_of(s->f, struct tcp, base)->slot[PEER]->channels = channels;
    put(s, ASKED); /* wait for ACCEPT */
    put(s, 10);
    for (unsigned i = 0; i < channels; i++) {
        conn_make(s, i);
        if (accept)
            must(write(s->fd[i], &f, sizeof(f)) == sizeof(f), "socket is full");
    }
    s->f->ops->progress(s->f);
}

static void scene_close(struct scene *s)
{
    for (unsigned i = 0; i < s->channels; i++)
        close(s->fd[i]);
    for (unsigned i = 0; i < 4; i++)
        s->f->ops->progress(s->f);
    if (s->nkept > 1) /* of a link that is down by now; the others are left to free() */
        take(s, s->kept[0].claim, s->kept[0].body_len);
    fabric_free(s->f);
    must(s->open == 0, "something was never completed");
}

/* Less than a socket holds; what it does not take is lost. */
static void write_piece(struct scene *s, int fd, const uint8_t *bytes, size_t len)
{
    char answers[4096];

    send(fd, bytes, len, MSG_NOSIGNAL);
    s->f->ops->progress(s->f);
    while (read(fd, answers, sizeof(answers)) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t zeros[ZEROS];
    struct scene s;

    if (size == 0)
        return 0;
    scene_open(&s, 1 + (data[0] & 0x7f) % CHANNELS, !(data[0] & 0x80));
    for (size_t at = 1; size - at >= 2;) {
        unsigned channel = (data[at] & 0x7f) % s.channels;
        bool zero = data[at] & 0x80;
        size_t len = data[at + 1];

        at += 2;
        for (size_t i = 0; zero && i < len; i++)
            write_piece(&s, s.fd[channel], zeros, sizeof(zeros));
        if (zero)
            continue;
        len = MIN(len, size - at);
        write_piece(&s, s.fd[channel], data + at, len);
        at += len;
    }
    scene_close(&s);
    return 0;
}
