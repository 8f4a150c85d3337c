/* test_fabric_mend.c - streams of plain TCP whose sockets break while both sides live. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <linux/filter.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

/* --- both sides are ours ------------------------------------------------------------------- */

/* As a reset that the other side sees: what is to be sent is lost. What has come would be, too,
 * other than by a reset from outside, so only where there is nothing. */
static bool reset(struct conn *c)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int queued = 1;

    if (ioctl(c->fd, FIONREAD, &queued) || queued || connect(c->fd, &none, sizeof(none)))
        return false;
    conn_lost(c, ECONNRESET); /* before it asks how much is acknowledged: that is forgotten here */
    return true;
}

static bool cut_one(struct side *s, uint64_t *rng)
{
    unsigned n = (unsigned)(rnd(rng) % 4), i = 0;
    struct conn *c;

    TAILQ_FOREACH(c, &inside(s)->conns, link) {
        if (c->state != CONN_OPEN || c->peer->state != PEER_UP || i++ < n)
            continue;
        return rnd(rng) % 2 ? reset(c) : shutdown(c->fd, SHUT_RDWR) == 0;
    }
    return false;
}

/* What is the caller's again may hold anything. */
static void spoil(struct sending *out, unsigned n, const size_t *len)
{
    for (unsigned i = 0; i < n; i++)
        if (out[i].done)
            memset(out[i].buf, 0xee, len[i]);
}

static uint64_t mends_of(struct world *w)
{
    struct fabric_traffic traffic;

    assert_true(w->side[0].f->ops->traffic(w->side[0].f, 1, &traffic));
    return traffic.mends;
}

static void life(const char *kind, uint64_t seed)
{
    enum { N = 150 };
    static const size_t sizes[] = {0, 8, 100, 4000, 5000, 32768, 40000, 100000, 262144, 300000, MB};
    struct world *w = linked(kind);
    struct sending out[2][N];
    size_t len[2][N];
    unsigned cuts = 0, put_by[2] = {0};
    uint64_t rng = seed * 0x9e3779b97f4a7c15u + 1;
    double limit = now() + 300;

    w->side[1].take = TAKE_AT_ONCE;
    while (w->side[0].msgs < N || w->side[1].msgs < N || count_done(out[0], put_by[0]) < N ||
           count_done(out[1], put_by[1]) < N || w->side[0].taken < w->side[0].bodies ||
           w->side[1].taken < w->side[1].bodies) {
        unsigned i = (unsigned)(rnd(&rng) % 2);

        if (now() > limit)
            fail_msg("%s, seed %lu: %u and %u of %u messages came", kind, (unsigned long)seed,
                     w->side[0].msgs, w->side[1].msgs, N);
        if (put_by[i] < N && rnd(&rng) % 3) {
            len[i][put_by[i]] = sizes[rnd(&rng) % ARRAY_LEN(sizes)];
            put(&w->side[i], 1 - i, put_by[i], 8, len[i][put_by[i]], &out[i][put_by[i]]);
            put_by[i]++;
        }
        if (rnd(&rng) % 24 == 0)
            cuts += cut_one(&w->side[i], &rng);
        if (rnd(&rng) % 4 == 0)
            w->side[i].f->ops->arm(w->side[i].f);
        if (rnd(&rng) % 8 ? !w->side[i].f->ops->progress(w->side[i].f) && !turn(w) : !turn(w))
            rest(w);
        for (unsigned k = 0; k < 2; k++)
            spoil(out[k], put_by[k], len[k]);
    }
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(w->side[i].bad_order + w->side[i].bad_bytes + w->side[i].down, 0);
        for (unsigned k = 0; k < N; k++)
            assert_int_equal(out[i][k].st, 0);
        free_sendings(out[i], N);
    }
    assert_true(cuts > 0 && mends_of(w) > 0);
    world_free(w);
}

static void each_byte_once_and_in_order(void **state)
{
    static const char *const kinds[] = {
        "tcp mend",        "tcp x 3 mend",        "tcp express mend",
        "tcp mend sealed", "tcp x 3 mend sealed", "tcp mend sealed threads"};

    for (uint64_t seed = 1; seed <= 6; seed++)
        life(kinds[seed % ARRAY_LEN(kinds)], seed);
}

/* Whoever asks which node is gone hears it before the next ping. */
static void apart_is_told_at_once(void **state)
{
    static const char *const kinds[] = {"tcp mend", "tcp x 3 mend", "tcp mend sealed",
                                        "tcp x 3 mend sealed"};

    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        struct world *w = linked(kinds[i]);
        struct side *s = w->side;
        struct tcp_peer *peer = inside(s)->slot[1];

        pump_until(w, s[0].connected && s[1].connected);
        assert_int_equal(s[0].aparts, 1);
        for (unsigned n = 0; n < peer->channels; n++) {
            assert_int_equal(s[0].aparts, 1); /* one is left */
            assert_int_equal(shutdown(peer->conn[n]->fd, SHUT_RDWR), 0);
            if (n + 1 < peer->channels)
                pump_until(w, peer->conn[n]->state != CONN_OPEN);
        }
        s->f->ops->progress(s->f);
        s->f->ops->progress(s->f);
        assert_int_equal(s[0].aparts, 2);
        pump_until(w, s[0].aparts == 3 && s[1].connected);
        assert_int_equal(s[0].down + s[1].down, 0);
        world_free(w);
    }
}

/* A body that the kernel has taken, and the other side has not read, is let go before the engine
 * sleeps. */
static void no_body_is_kept_asleep(void **state)
{
    struct world *w = linked("tcp mend");
    struct side *s = &w->side[0];
    struct sending out[64];
    unsigned n = 0;

    put(s, 1, n, 8, 0, &out[n]);
    n++;
    pump_until(w, w->side[1].msgs == 1);
    for (; n < ARRAY_LEN(out) && TAILQ_EMPTY(&inside(s)->slot[1]->conn[0]->out); n++) {
        put(s, 1, n, 8, 200000, &out[n]); /* until the socket is full */
        s->f->ops->progress(s->f);
    }
    assert_true(n < ARRAY_LEN(out));
    for (unsigned i = 0; i < 100 && s->f->ops->arm(s->f) == 1; i++)
        s->f->ops->progress(s->f);
    assert_int_equal(inside(s)->held, 0);
    assert_true(count_done(out, n) >= n - 2); /* but what is not written yet */
    for (unsigned i = 0; i < n; i++)
        if (out[i].done && i)
            memset(out[i].buf, 0xee, 200000);
    assert_int_equal(shutdown(inside(s)->slot[1]->conn[0]->fd, SHUT_RDWR), 0);
    pump_until(w, w->side[1].msgs == n && count_done(out, n) == n);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order + w->side[1].down, 0);
    free_sendings(out, n);
    world_free(w);
}

/* What is deleted on purpose is down on the other side at once, not when it has waited in vain. */
static void deleted_on_purpose(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct world *w = linked("tcp mend");
        struct sending out;

        put(&w->side[0], 1, 0, 8, 8, &out);
        pump_until(w, w->side[1].msgs == 1);
        w->side[i].f->ops->peer_del(w->side[i].f, 1 - i);
        pump_until(w, w->side[1 - i].down == 1);
        assert_int_equal(w->side[1 - i].down_err, -ECONNRESET);
        free_sendings(&out, 1);
        world_free(w);
    }
}

/* --- the other side is played by hand -------------------------------------------------------- */

enum { MESSAGE = sizeof(struct frame) + 8 };

static int unread(const struct conn *c)
{
    int n = 0;

    assert_int_equal(ioctl(c->fd, FIONREAD, &n), 0);
    return n;
}

/* To be signed when there is a stream: raw_send() does. */
static struct hello mending_hello(unsigned incarnation, uint64_t got)
{
    struct hello h = hello_of(incarnation);

    h.of = HELLO_MENDS;
    h.got = got;
    return h;
}

static int come_as(struct world *w, struct side *s, const struct hello *h, struct hello *ret_answer)
{
    int fd = raw_connect(s);

    raw_send(fd, h, sizeof(*h));
    pump_until(w, readable(fd));
    if (recv(fd, ret_answer, sizeof(*ret_answer), MSG_WAITALL) != sizeof(*ret_answer) ||
        ret_answer->of == HELLO_UNKNOWN)
        close_fdp(&fd);
    return fd;
}

static int come_again(struct world *w, struct side *s, unsigned incarnation, uint64_t got,
                      struct hello *ret_answer)
{
    struct hello h = mending_hello(incarnation, got);

    return come_as(w, s, &h, ret_answer);
}

/* Half a frame before the cut, the other half behind it; and of ours what the other side lacks. */
static void goes_on_in_mid_frame(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct frame f = {.type = FRAME_MSG, .hdr_len = 8}, ours;
    struct head head = {.seq = 0};
    uint8_t bytes[sizeof(f) + 8], got[sizeof(bytes)];
    struct sending out;
    struct hello answer;
    int fd = raw_linked(w, s, 1);

    memcpy(bytes, &f, sizeof(f));
    memcpy(bytes + sizeof(f), &head, 8);
    put(s, HOSTILE, 0, 8, 0, &out);
    pump_until(w, out.done == 1);
    raw_send(fd, bytes, 11);
    pump_until(w, TAILQ_FIRST(&inside(s)->conns)->got == 11);
    raw_reset(fd);
    fd = come_again(w, s, 1, 5, &answer);
    assert_true(fd >= 0);
    assert_int_equal(answer.of, HELLO_MENDS);
    assert_int_equal(answer.got, 11);
    raw_accept(fd);
    raw_send(fd, bytes + 11, sizeof(bytes) - 11);
    pump_until(w, s->msgs == 1 && readable(fd));
    assert_int_equal(recv(fd, got, sizeof(got) - 5, MSG_WAITALL), sizeof(got) - 5);
    memset(&ours, 0, sizeof(ours));
    memcpy((uint8_t *)&ours + 5, got, sizeof(ours) - 5);
    assert_int_equal(ours.type, FRAME_MSG);
    assert_int_equal(s->down + s->bad_order, 0);
    close(fd);
    free_sendings(&out, 1);
    world_free(w);
}

/* Who claims to have what was never sent, or less than its kernel acknowledged, ends the link. */
static void positions_are_checked(void **state)
{
    static const uint64_t wrong[] = {33, UINT64_MAX, 1ull << 63};

    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        struct world *w = world_new("tcp mend", 1);
        struct side *s = &w->side[0];
        struct sending out;
        struct hello answer;
        int fd = raw_linked(w, s, 1);

        put(s, HOSTILE, 0, 8, 0, &out); /* 32 bytes */
        pump_until(w, out.done == 1);
        raw_reset(fd);
        assert_int_equal(come_again(w, s, 1, wrong[i], &answer), -1);
        assert_int_equal(s->down, 1);
        assert_int_equal(s->down_err, -EPROTO);
        free_sendings(&out, 1);
        world_free(w);
    }
}

/* Acknowledged by the kernel of a side that then has lost it, as through a box that answers for it.
 */
static void acknowledged_and_lost(void **state)
{
    enum { N = 200 };
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct sending out[N];
    struct hello answer;
    int fd = raw_linked(w, s, 1);
    uint8_t sink[4096];

    for (unsigned i = 0; i < N; i++) {
        put(s, HOSTILE, i, 8, 4000, &out[i]);
        pump_until(w, readable(fd));
        while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            continue;
        turn(w);
    }
    assert_true(TAILQ_FIRST(&inside(s)->conns)->kept_at > 0);
    raw_reset(fd);
    assert_int_equal(come_again(w, s, 1, 0, &answer), -1);
    assert_int_equal(s->down_err, -EPROTO);
    pump_until(w, count_done(out, N) == N);
    free_sendings(out, N);
    world_free(w);
}

/* A stream that is not known, or another channel, is a stranger's; and a stranger cuts nothing. */
static void strangers_cut_nothing(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = hello_of(1), answer;
    int fd = raw_linked(w, s, 1), other;

    pump_until(w, inside(s)->nopen == 1);
    assert_int_equal(come_again(w, s, 2, 0, &answer), -1);
    for (unsigned i = 0; i < 3; i++) {
        h = hello_of(1);
        h.of = i < 2 ? HELLO_MENDS : HELLO_BEGINS;
        h.channel = i == 0;
        h.channels = i == 1 ? 2 : 1;
        if (h.of == HELLO_MENDS) {
            assert_int_equal(come_as(w, s, &h, &answer), -1);
            continue;
        }
        other = raw_connect(s); /* it waits in the lobby */
        raw_send(other, &h, sizeof(h));
        close(other);
    }
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1 && s->f->stats.strangers >= 4); /* one is let in in 0.25 ms */
    assert_int_equal(s->down, 0);
    close(fd);
    world_free(w);
}

/* Whoever repeats what was said in an earlier life of the link, under the same tokens: its numbers
 * of attempts and bytes fit, and yet it does not cut what is well now. */
static void a_hello_of_an_earlier_life_cuts_nothing(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = mending_hello(1, 0), answer;
    int fd = raw_linked(w, s, 1), late;

    pump_until(w, inside(s)->nopen == 1);
    h.attempt = 5;
    sign(&h, 1, false, NULL);
    close(fd);
    s->f->ops->peer_del(s->f, HOSTILE);
    pump_until_quiet(w);
    fd = raw_linked(w, s, 1);
    pump_until(w, inside(s)->nopen == 1);
    late = raw_connect(s);
    assert_int_equal(send(late, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
    pump_until(w, readable(late));
    assert_int_equal(recv(late, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_int_equal(answer.of, HELLO_UNKNOWN);
    close(late);
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1);
    assert_int_equal(inside(s)->slot[HOSTILE]->conn[0]->attempt_seen + s->down, 0);
    raw_reset(fd);
    fd = come_again(w, s, 1, 0, &answer); /* of this life */
    assert_true(fd >= 0);
    close(fd);
    world_free(w);
}

/* Whoever does not come back in time is lost, whichever side has to connect. */
static void not_mended_in_time(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct world *w = world_new("tcp mend", 1);
        struct side *s = &w->side[0];
        struct tcp_addr a;
        int listener = raw_listen(s, &a), fd;
        struct sending out;
        struct hello h;

        inside(s)->mend_ms = 300;
        if (i) {
            expect_listener(s, &a, 1);
            fd = raw_come(w, listener, &h);
            raw_answer(fd, &h, 1);
        } else {
            fd = raw_linked(w, s, 1);
        }
        pump_until(w, inside(s)->nopen == 1);
        close(listener);
        close(fd);
        put(s, HOSTILE, 0, 8, 100000, &out);
        pump_until(w, s->down == 1);
        pump_until(w, out.done == 1);
        free_sendings(&out, 1);
        world_free(w);
    }
}

/* The other side does not know the stream; or, with @changed, not what somebody has made of @h. */
static void raw_unknown(int fd, struct hello *h, bool changed)
{
    uint8_t digest[sizeof(h->heard)];

    assert_int_equal(hello_digest(h, digest), 0);
    digest[0] ^= changed;
    h->of = HELLO_UNKNOWN;
    memcpy(h->heard, digest, sizeof(digest));
    raw_send(fd, h, sizeof(*h));
}

/* Side 0 connects to the listener, and the stream has begun. *ret_hello: what it has said. */
static int raw_stream(struct world *w, int listener, const struct tcp_addr *addr,
                      struct hello *ret_hello)
{
    struct side *s = &w->side[0];
    int fd;

    expect_listener(s, addr, 1);
    fd = raw_come(w, listener, ret_hello);
    raw_answer(fd, ret_hello, 1);
    pump_until(w, inside(s)->nopen == 1);
    return fd;
}

/* Each attempt to go on is changed on the way: the link ends by that, and says so. */
static void hellos_that_are_changed_for_good(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello h;

    fd = raw_stream(w, listener, &a, &h);
    inside(s)->mend_ms = 300;
    raw_reset(fd);
    while (!s->down) {
        if (!readable(listener)) {
            if (!turn(w))
                rest(w);
            continue;
        }
        fd = raw_come(w, listener, &h);
        raw_unknown(fd, &h, true);
        close(fd);
    }
    assert_int_equal(s->down_err, -EBADMSG);
    assert_string_equal(s->down_why, "authentication failed; no new connection in 300 ms");
    close(listener);
    world_free(w);
}

/* The side that connects comes by itself, again and again, and says what it has. */
static void comes_by_itself(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct sending out;
    struct accept accept;
    uint8_t bytes[32];
    struct hello h;

    expect_listener(s, &a, 1);
    fd = raw_come(w, listener, &h);
    assert_int_equal(h.of, HELLO_BEGINS);
    raw_answer(fd, &h, 1);
    pump_until(w, inside(s)->nopen == 1);
    raw_reset(fd);
    for (unsigned i = 0; i < 3; i++) { /* greeted, and broken before it is answered */
        fd = raw_come(w, listener, &h);
        assert_int_equal(h.of, HELLO_MENDS);
        assert_int_equal(h.got, 0);
        raw_reset(fd);
    }
    put(s, HOSTILE, 0, 8, 0, &out);
    fd = raw_come(w, listener, &h);
    h.got = 0;
    raw_answer(fd, &h, 1);
    pump_until(w, out.done == 1);
    assert_int_equal(recv(fd, &accept, sizeof(accept), MSG_WAITALL), sizeof(accept));
    assert_int_equal(accept.magic, ACCEPT_MAGIC);
    assert_int_equal(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    assert_int_equal(s->down, 0);
    close(fd);
    for (unsigned i = 0; i < 2; i++) {
        fd = raw_come(w, listener, &h);
        raw_unknown(fd, &h, true); /* what was said did not come there so */
        close(fd);
    }
    fd = raw_come(w, listener, &h);
    assert_int_equal(s->down, 0);
    raw_unknown(fd, &h, false); /* the other side has given up */
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_err, -ECONNRESET);
    close(fd);
    close(listener);
    free_sendings(&out, 1);
    world_free(w);
}

/* A side whose end seems well takes the word of the other one, although it is the one to connect.
 */
static void half_open(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), old, fd;
    struct hello h, answer;

    expect_listener(s, &a, 1);
    old = raw_come(w, listener, &h);
    raw_answer(old, &h, 1);
    pump_until(w, inside(s)->nopen == 1);
    fd = raw_connect(s);
    h.of = HELLO_MENDS;
    sign(&h, 1, true, NULL);
    raw_send(fd, &h, sizeof(h));
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_int_equal(answer.of, HELLO_MENDS);
    raw_accept(fd);
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1);
    assert_int_equal(s->down, 0);
    close(old);
    close(fd);
    close(listener);
    world_free(w);
}

/* Whoever answers at the peer's address and is not the peer ends nothing: not the stream, and not
 * the engine. */
static void stranger_at_the_peers_address(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct sending out[3];
    struct hello h, strange;

    fd = raw_stream(w, listener, &a, &h);
    raw_reset(fd);
    for (unsigned i = 0; i < 2; i++) {
        fd = raw_come(w, listener, &h);
        strange = h; /* the side's own token, which is not the peer's */
        strange.magic += i;
        raw_send(fd, &strange, sizeof(strange));
        assert_true(ended(w, fd));
        close(fd);
        put(s, HOSTILE, i, 8, 100000, &out[i]);
    }
    put(s, HOSTILE, 2, 8, 8, &out[2]);
    fd = raw_come(w, listener, &h);
    assert_int_equal(h.of, HELLO_MENDS);
    h.got = 0;
    raw_answer(fd, &h, 1);
    pump_until(w, count_done(out + 2, 1) == 1);
    assert_int_equal(s->down, 0);
    s->f->ops->peer_del(s->f, HOSTILE);
    pump_until(w, count_done(out, 3) == 3);
    close(fd);
    close(listener);
    free_sendings(out, 3);
    world_free(w);
}

/* A side that was stopped finds the time over for a socket that it accepted, and in that socket the
 * word that opens it, and data that its kernel has acknowledged. */
static void accepted_and_stopped(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello answer;
    int fd = raw_linked(w, s, 1);

    pump_until(w, inside(s)->nopen == 1);
    raw_reset(fd);
    fd = come_again(w, s, 1, 0, &answer);
    assert_int_equal(TAILQ_FIRST(&inside(s)->conns)->state, CONN_ACCEPTED);
    turn(w); /* so that the timer's event comes first */
    turn(w);
    while (!readable(inside(s)->timer))
        continue;
    TAILQ_FIRST(&inside(s)->conns)->since_ms = 0; /* long ago */
    raw_accept(fd);
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1);
    assert_int_equal(s->down + s->bad_order, 0);
    close(fd);
    world_free(w);
}

/* The other side comes again before what it sent over the socket before has been read. */
static void comes_again_unread(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = mending_hello(1, 0), answer;
    size_t most = sizeof(h) - 1;
    int fd = raw_linked(w, s, 1), next;

    pump_until(w, inside(s)->nopen == 1);
    raw_reset(fd);
    fd = come_again(w, s, 1, 0, &answer);
    next = raw_connect(s);
    sign(&h, 1, false, NULL);
    raw_send(next, &h, most);
    pump_until(w, inside(s)->nlobby && TAILQ_LAST(&inside(s)->lobby, conn_list)->hello_got == most);
    raw_send(next, (uint8_t *)&h + most, 1); /* its event comes first */
    raw_accept(fd);
    raw_head(fd, FRAME_MSG, 0, 0);
    while (unread(TAILQ_FIRST(&inside(s)->conns)) < (int)sizeof(struct accept) + MESSAGE)
        continue;
    pump_until(w, readable(next));
    assert_int_equal(recv(next, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_int_equal(answer.got, MESSAGE);
    raw_accept(next);
    raw_head(next, FRAME_MSG, 1, 0);
    pump_until(w, s->msgs == 2);
    assert_int_equal(s->down + s->bad_order, 0);
    close(fd);
    close(next);
    world_free(w);
}

/* What a hello is for has few values; and a fabric that mends nothing takes no stream up again. */
static void hellos_are_checked(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = hello_of(1), answer;
    struct sending out;
    int fd;

    expect_raw(s, 1);
    fd = raw_greeted(w, s, 1, 0, 2);
    h.channels = 2;
    h.of = HELLO_UNKNOWN + 1;
    assert_int_equal(come_as(w, s, &h, &answer), -1);
    assert_int_equal(answer.of, HELLO_UNKNOWN);
    close(fd);
    world_free(w);

    w = world_new("tcp", 1);
    s = &w->side[0];
    fd = raw_linked(w, s, 1);
    pump_until(w, inside(s)->nopen == 1);
    put(s, HOSTILE, 0, 8, 0, &out);
    assert_int_equal(come_again(w, s, 1, MESSAGE, &answer), -1);
    assert_int_equal(answer.of, HELLO_UNKNOWN);
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1);
    assert_int_equal(s->down, 0);
    close(fd);
    free_sendings(&out, 1);
    world_free(w);
}

/* The stream is cut while its next message waits for one on another channel. */
static void cut_before_its_turn(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = mending_hello(1, 0), answer;
    int fd[2];

    h.channels = 2;
    expect_raw(s, 1);
    for (unsigned i = 0; i < 2; i++) {
        fd[i] = raw_greeted(w, s, 1, i, 2);
        raw_accept(fd[i]);
    }
    pump_until(w, inside(s)->nopen == 2);
    raw_head(fd[0], FRAME_MSG, 1, 0);
    pump_until(w, inside(s)->nparked == 1);
    raw_reset(fd[0]);
    fd[0] = come_as(w, s, &h, &answer);
    raw_accept(fd[0]);
    pump_until(w, inside(s)->nopen == 2);
    raw_head(fd[1], FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 2);
    assert_int_equal(s->down + s->bad_order, 0);
    close(fd[0]);
    close(fd[1]);
    world_free(w);
}

static void del_when_done(void *arg, int st)
{
    struct side *s = arg;

    s->taken++;
    s->f->ops->peer_del(s->f, HOSTILE);
}

/* The greeting says that a body has come, and whoever hears of it deletes the peer. */
static void deleted_while_mended(void **state)
{
    static uint8_t body[100000];
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello h;

    fd = raw_stream(w, listener, &a, &h);
    s->f->ops->send(s->f, HOSTILE, "header..", 8, body, sizeof(body), del_when_done, s);
    assert_int_equal(inside(s)->held, 1);
    assert_int_equal(shutdown(inside(s)->slot[HOSTILE]->conn[0]->fd, SHUT_RDWR), 0);
    close(fd);
    while (!readable(listener)) /* awake: else the body would be copied */
        turn(w);
    fd = accept(listener, NULL, NULL);
    while (!readable(fd))
        turn(w);
    assert_int_equal(recv(fd, &h, sizeof(h), MSG_WAITALL), sizeof(h));
    assert_int_equal(s->taken, 0);
    h.got = MESSAGE + sizeof(body);
    raw_answer(fd, &h, 1);
    assert_true(ended(w, fd));
    assert_int_equal(s->taken, 1);
    assert_int_equal(s->down, 0);
    close(fd);
    close(listener);
    world_free(w);
}

/* A hello whose sender has gone again must not leave the stream without anybody who connects. */
static void comes_and_goes(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), old, fd;
    struct hello h;

    expect_listener(s, &a, 1);
    old = raw_come(w, listener, &h);
    raw_answer(old, &h, 1);
    pump_until(w, inside(s)->nopen == 1);
    fd = raw_connect(s);
    h.of = HELLO_MENDS;
    sign(&h, 1, true, NULL);
    raw_send(fd, &h, sizeof(h));
    raw_reset(fd);
    fd = raw_come(w, listener, &h);
    assert_int_equal(h.of, HELLO_MENDS);
    raw_answer(fd, &h, 1);
    pump_until(w, inside(s)->nopen == 1);
    assert_int_equal(s->down, 0);
    close(old);
    close(fd);
    close(listener);
    world_free(w);
}

/* A hello that the network held up, of an attempt that the other side has given up since. */
static void overtaken_attempt(void **state)
{
    enum { N = 100 };
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = mending_hello(1, 0), late, answer;
    struct sending out[N];
    uint8_t sink[4096];
    int fd = raw_linked(w, s, 1), before;

    pump_until(w, inside(s)->nopen == 1);
    raw_reset(fd);
    h.attempt = UINT16_MAX;
    sign(&h, 1, false, NULL);
    late = h;
    before = raw_connect(s);
    raw_send(before, &late, sizeof(late) - 1);
    h.attempt++;
    fd = come_as(w, s, &h, &answer);
    raw_accept(fd);
    for (unsigned i = 0; i < N; i++) {
        put(s, HOSTILE, i, 8, 4000, &out[i]);
        pump_until(w, readable(fd));
        while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            continue;
        turn(w);
    }
    assert_true(inside(s)->slot[HOSTILE]->conn[0]->kept_at > 0);
    raw_send(before, (uint8_t *)&late + sizeof(late) - 1, 1);
    assert_true(ended(w, before));
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1 && count_done(out, N) == N);
    assert_int_equal(s->down, 0);
    close(before);
    close(fd);
    free_sendings(out, N);
    world_free(w);
}

/* Both sides tried: the other one took our answer and data, then a hello that was under way, and
 * says the next time that it has more than we have written since. */
static void has_more_than_was_written_again(void **state)
{
    enum { N = 10 };
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct hello h = mending_hello(1, 0), answer;
    struct sending out[N + 1];
    uint8_t bytes[N * MESSAGE];
    int fd = raw_linked(w, s, 1);

    for (unsigned i = 0; i < N; i++)
        put(s, HOSTILE, i, 8, 0, &out[i]);
    pump_until(w, inside(s)->nopen == 1 && count_done(out, N) == N);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    for (; h.attempt < 2; h.attempt++) { /* the second time, as if the first answer were lost */
        raw_reset(fd);
        h.got = h.attempt * sizeof(bytes);
        fd = come_as(w, s, &h, &answer);
        assert_true(fd >= 0);
    }
    raw_accept(fd);
    put(s, HOSTILE, N, 8, 0, &out[N]);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, bytes, MESSAGE, MSG_WAITALL), MESSAGE);
    assert_int_equal(((struct head *)(void *)(bytes + sizeof(struct frame)))->seq, N);
    assert_int_equal(s->down, 0);
    close(fd);
    free_sendings(out, N + 1);
    world_free(w);
}

/* Something on the way resets each new socket at once: the engine has to do something else, too. */
static void pauses_between_attempts(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello h;

    expect_listener(s, &a, 1);
    for (unsigned i = 0; i < 3; i++) {
        struct conn *c = TAILQ_FIRST(&inside(s)->conns);

        fd = raw_come(w, listener, &h);
        raw_answer(fd, &h, 1);
        pump_until(w, inside(s)->nopen == 1);
        c->since_ms += 3600000; /* if this process is stopped here, it is none the later */
        raw_reset(fd);
        pump_until(w, c->cut_ms);
        assert_int_equal(c->state, CONN_CUT);
    }
    assert_int_equal(s->down, 0);
    close(listener);
    world_free(w);
}

/* ---- silence --------------------------------------------------------------------------------- */

/* What comes to @fd is dropped before TCP sees it, as by a firewall that says nothing. */
static void deafen(int fd)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = {1, &none};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)), 0);
}

static struct tcp_info info_of(const struct conn *c)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    assert_int_equal(getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    return info;
}

enum { FLOOD = 400, FLOOD_BODY = 60000 };

/* Until the other side's window, and our kernel's memory, is full. */
static void flood(struct world *w, struct side *s, struct sending out[FLOOD])
{
    struct conn *c = TAILQ_FIRST(&inside(s)->conns);

    for (unsigned i = 0; i < FLOOD; i++)
        put(s, HOSTILE, i, 8, FLOOD_BODY, &out[i]);
    pump_until(w, !info_of(c).tcpi_unacked && info_of(c).tcpi_backoff);
}

/* Nothing is acknowledged any more, and nothing says so: with data on the way; with data that wait
 * for a window; and in time again, as if the way had only been shut for a while. */
static void nobody_acknowledges(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        struct world *w = world_new("tcp mend", 1);
        struct side *s = &w->side[0];
        struct sending out[FLOOD];
        unsigned n = i == 1 ? FLOOD : 1;
        struct hello answer;
        struct conn *c;
        int fd;

        inside(s)->mend_ms = i < 2 ? 300 : 10000;
        fd = raw_linked(w, s, 1);
        pump_until(w, inside(s)->nopen == 1);
        c = TAILQ_FIRST(&inside(s)->conns);
        pump_until(w, !inside(s)->timer_on); /* idle, and not kept awake */
        if (i == 1)
            flood(w, s, out);
        deafen(fd);
        if (i != 1)
            put(s, HOSTILE, 0, 8, 0, &out[0]);
        if (i == 2)
            inside(s)->mend_ms = 300; /* until it has noticed */
        pump_until(w, c->state == CONN_CUT);
        assert_int_equal(c->err, ETIMEDOUT);
        if (i == 2) {
            inside(s)->mend_ms = 10000;
            close(fd);
            fd = come_again(w, s, 1, 0, &answer);
            raw_accept(fd);
            pump_until(w, out[0].done == 1 && readable(fd) && !inside(s)->timer_on);
        } else {
            pump_until(w, s->down == 1);
        }
        assert_int_equal(s->down, i < 2);
        close(fd);
        pump_until(w, count_done(out, n) == n);
        free_sendings(out, n);
        world_free(w);
    }
}

/* A side that does not read is asked ever less often whether its window is open, and answers. */
static void a_closed_window_is_not_silence(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct sending out[FLOOD];
    uint8_t sink[4096];
    struct conn *c;
    int fd;

    inside(s)->mend_ms = 300;
    fd = raw_linked(w, s, 1);
    pump_until(w, inside(s)->nopen == 1);
    c = TAILQ_FIRST(&inside(s)->conns);
    flood(w, s, out);
    pump_until(w, info_of(c).tcpi_last_ack_recv > 2500);
    assert_int_equal(c->state, CONN_OPEN);
    assert_int_equal(c->attempt + s->down, 0);
    while (count_done(out, FLOOD) < FLOOD || inside(s)->timer_on) {
        while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            continue;
        if (!turn(w))
            rest(w);
    }
    assert_int_equal(s->down, 0);
    close(fd);
    free_sendings(out, FLOOD);
    world_free(w);
}

int run_mend_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_byte_once_and_in_order),
        cmocka_unit_test(apart_is_told_at_once),
        cmocka_unit_test(no_body_is_kept_asleep),
        cmocka_unit_test(deleted_on_purpose),
        cmocka_unit_test(goes_on_in_mid_frame),
        cmocka_unit_test(positions_are_checked),
        cmocka_unit_test(acknowledged_and_lost),
        cmocka_unit_test(strangers_cut_nothing),
        cmocka_unit_test(a_hello_of_an_earlier_life_cuts_nothing),
        cmocka_unit_test(not_mended_in_time),
        cmocka_unit_test(comes_by_itself),
        cmocka_unit_test(hellos_that_are_changed_for_good),
        cmocka_unit_test(half_open),
        cmocka_unit_test(stranger_at_the_peers_address),
        cmocka_unit_test(accepted_and_stopped),
        cmocka_unit_test(comes_again_unread),
        cmocka_unit_test(hellos_are_checked),
        cmocka_unit_test(cut_before_its_turn),
        cmocka_unit_test(deleted_while_mended),
        cmocka_unit_test(comes_and_goes),
        cmocka_unit_test(overtaken_attempt),
        cmocka_unit_test(has_more_than_was_written_again),
        cmocka_unit_test(pauses_between_attempts),
        cmocka_unit_test(nobody_acknowledges),
        cmocka_unit_test(a_closed_window_is_not_silence),
    };

    return cmocka_run_group_tests_name("fabric tcp mend", tests, NULL, NULL);
}
