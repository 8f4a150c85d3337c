/* test_fabric_tcp.c - what only plain TCP can pass or fail: what strangers and a hostile peer can
 * do on its port, and costs at rest. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <poll.h>

/* --- what is told of a link ---------------------------------------------------------------- */

static void round_trip_is_of_now(void **state)
{
    uint32_t rtt = tcp_rtt_add(0, 0, 0); /* nothing is known of it */

    assert_int_equal(rtt, 0);
    rtt = tcp_rtt_add(rtt, 80000, 60000); /* full queues, a minute ago */
    assert_int_equal(rtt, 0);
    rtt = tcp_rtt_add(rtt, 200, 10);
    assert_int_equal(rtt, 200);
    rtt = tcp_rtt_add(rtt, 500, 1500); /* the slowest of those in use */
    rtt = tcp_rtt_add(rtt, 300, 0);
    rtt = tcp_rtt_add(rtt, 70000, 60000);
    assert_int_equal(rtt, 500);
}

/* --- strangers ----------------------------------------------------------------------------- */

static void strangers_get_no_further_than_the_lobby(void **state)
{
    enum { MANY = 300 };
    struct world *w = linked("tcp");
    struct side *s = &w->side[0];
    struct hello unknown = hello_of(77), bad = unknown;
    struct sending out[2];
    int fd[MANY];

    put(&w->side[1], 0, 0, 8, 100, &out[0]);
    pump_until(w, s->msgs == 1);
    bad.magic ^= 1;
    for (unsigned i = 0; i < MANY; i++) {
        fd[i] = raw_connect(s);
        if (i % 4 == 1)
            raw_send(fd[i], &unknown, sizeof(unknown) - 1); /* never whole */
        if (i % 4 == 2)
            raw_send(fd[i], &unknown, sizeof(unknown)); /* of nobody */
        if (i % 4 == 3)
            raw_send(fd[i], &bad, sizeof(bad));
        turn(w);
    }
    pump_until_quiet(w);
    assert_true(inside(s)->nlobby <= 128);
    assert_true(s->f->stats.strangers >= MANY / 4);
    assert_true(ended(w, fd[0])); /* had to make room */
    assert_true(ended(w, fd[3])); /* was no hello */
    put(&w->side[1], 0, 1, 8, 100000, &out[1]);
    pump_until(w, s->taken == 1 && count_done(out, 2) == 2);
    assert_int_equal(s->bad_bytes + s->bad_order + s->down + w->side[1].down, 0);
    for (unsigned i = 0; i < MANY; i++)
        close(fd[i]);
    pump_until(w, inside(s)->nlobby == 0);
    free_sendings(out, 2);
    world_free(w);
}

static void stranger_may_not_talk_on(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct hello h = hello_of(1);
    int fd = raw_connect(&w->side[0]);

    raw_send(fd, &h, sizeof(h));
    pump_until(w, w->side[0].f->stats.strangers == 1);
    raw_send(fd, "more", 4);
    assert_true(ended(w, fd));
    close(fd);
    world_free(w);
}

static void channels_of_a_hello_are_checked(void **state)
{
    static const uint16_t wrong[][2] = {{0, 0}, {1, 1}, {3, 2}, {0, 17}, {65535, 65535}};
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct hello h = hello_of(1);
    int fd[2];

    expect_raw(s, 1);
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        fd[0] = raw_connect(s);
        h.channel = wrong[i][0];
        h.channels = wrong[i][1];
        raw_send(fd[0], &h, sizeof(h));
        assert_true(ended(w, fd[0]));
        close(fd[0]);
        assert_int_equal(s->f->stats.strangers, i + 1);
    }
    /* the same one twice, and a second one that counts differently */
    h.channel = 0;
    h.channels = 2;
    fd[0] = raw_connect(s);
    raw_send(fd[0], &h, sizeof(h));
    pump_until(w, readable(fd[0]));
    for (unsigned i = 0; i < 2; i++) {
        h.channels = (uint16_t)(2 + i);
        fd[1] = raw_connect(s);
        raw_send(fd[1], &h, sizeof(h));
        assert_true(ended(w, fd[1]));
        close(fd[1]);
        h.channel = 1;
    }
    assert_int_equal(s->down, 0);
    close(fd[0]);
    world_free(w);
}

/* --- a hostile peer ------------------------------------------------------------------------- */

static void frames_are_checked(void **state)
{
    static const struct {
        struct frame f;
        int err;
    } wrong[] = {
        {{.type = 0}, -EPROTO},
        {{.type = FRAME_LAST + 1}, -EPROTO},
        {{.type = 255}, -EPROTO},
        {{.type = FRAME_BYE, .len = 1}, -EPROTO},
        {{.type = FRAME_BYE}, -ECONNRESET},
        {{.type = FRAME_MSG, .hdr_len = FABRIC_HDR_MAX + 1}, -EPROTO},
        {{.type = FRAME_MSG, .hdr_len = 8, .len = FABRIC_EAGER_MAX + 1}, -EPROTO},
        {{.type = FRAME_MSG, .hdr_len = 8, .len = UINT32_MAX}, -EPROTO},
        {{.type = FRAME_MSG, .hdr_len = 8, .seq = 1}, -EPROTO},
        {{.type = FRAME_MSG, .hdr_len = 8, .seq = UINT32_MAX}, -EPROTO},
        {{.type = FRAME_ASK, .hdr_len = 8, .size = 0}, -EPROTO},
        {{.type = FRAME_ASK, .hdr_len = 8, .size = UINT64_MAX}, -EPROTO},
        {{.type = FRAME_ASK, .hdr_len = 8, .size = MB, .len = 1}, -EPROTO},
        {{.type = FRAME_GRANT, .id = 0}, -EPROTO},
        {{.type = FRAME_GRANT, .len = 4}, -EPROTO},
        {{.type = FRAME_DROP, .id = 7}, -EPROTO},
        {{.type = FRAME_PART, .len = 0}, -EPROTO},
        {{.type = FRAME_PART, .len = 10}, -EPROTO},
        {{.type = FRAME_PART, .len = PART_MAX + 1}, -EPROTO},
    };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    uint8_t zeros[FABRIC_HDR_MAX + 1] = {0};

    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        int fd = raw_linked(w, s, i + 1);

        raw_send(fd, &wrong[i].f, sizeof(wrong[i].f));
        raw_send(fd, zeros, sizeof(zeros));
        pump_until(w, s->down == i + 1);
        assert_int_equal(s->down_err, wrong[i].err);
        assert_int_equal(s->down_peer, HOSTILE);
        s->f->ops->peer_del(s->f, HOSTILE);
        assert_true(ended(w, fd));
        close(fd);
    }
    assert_int_equal(s->msgs, 0);
    world_free(w);
}

static void nothing_before_accept(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct frame f = {.type = FRAME_MSG, .hdr_len = 8};
    int fd;

    expect_raw(s, 1);
    fd = raw_greeted(w, s, 1, 0, 1);
    raw_send(fd, &f, sizeof(f));
    assert_true(ended(w, fd));
    assert_int_equal(s->msgs, 0);
    close(fd);
    world_free(w);
}

/* A man in the middle, or who repeats a hello, costs an attempt and not the link; but if no ACCEPT
 * is right for mend_ms, the link ends and says why. */
static void a_wrong_accept_costs_an_attempt(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct accept wrong = {.magic = ACCEPT_MAGIC};
    struct side *s = &w->side[0];
    int fd;

    expect_raw(s, 1);
    for (unsigned i = 0; i < 3; i++) {
        fd = raw_greeted(w, s, 1, 0, 1);
        raw_send(fd, &wrong, sizeof(wrong));
        assert_true(ended(w, fd));
        close(fd);
    }
    assert_int_equal(s->down, 0);
    fd = raw_greeted(w, s, 1, 0, 1);
    raw_accept(fd);
    raw_head(fd, FRAME_MSG, 0, 0);
    pump_until(w, s->msgs == 1);
    assert_int_equal(inside(s)->slot[HOSTILE]->refused_ms, 0);
    close(fd);
    s->f->ops->peer_del(s->f, HOSTILE);
    inside(s)->mend_ms = 300;
    expect_raw(s, 2);
    while (!s->down) {
        fd = raw_greeted(w, s, 2, 0, 1);
        raw_send(fd, &wrong, sizeof(wrong));
        assert_true(ended(w, fd));
        close(fd);
    }
    assert_int_equal(s->down_err, -EBADMSG);
    assert_non_null(strstr(s->down_why, "authentication failed"));
    world_free(w);
}

/* One of two connections is lost before the other is there: it is made again, and nothing else. */
static void lost_before_the_others_are_there(void **state)
{
    struct world *w = world_new("tcp x 3 mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd[4];
    struct hello h[4];

    expect_listener(s, &a, 1);
    for (unsigned i = 0; i < 3; i++)
        fd[i] = raw_come(w, listener, &h[i]);
    raw_answer(fd[0], &h[0], 1);
    pump_until(w, inside(s)->nopen == 1);
    raw_reset(fd[0]);
    fd[3] = raw_come(w, listener, &h[3]);
    assert_int_equal(h[3].of, HELLO_BEGINS);
    assert_int_equal(h[3].channel, h[0].channel);
    for (unsigned i = 1; i < 4; i++)
        raw_answer(fd[i], &h[i], 1);
    pump_until(w, inside(s)->nopen == 3);
    assert_int_equal(s->down, 0);
    for (unsigned i = 1; i < 4; i++)
        close(fd[i]);
    close(listener);
    world_free(w);
}

/* A crowd may end a connection before the side that made it has seen that it is there. */
static void pushed_out_before_it_is_seen(void **state)
{
    struct world *w = world_new("tcp mend", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello h;

    expect_listener(s, &a, 1);
    assert_true(readable(listener));
    fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    raw_reset(fd);
    fd = raw_come(w, listener, &h);
    raw_answer(fd, &h, 1);
    pump_until(w, inside(s)->nopen == 1);
    assert_int_equal(s->down, 0);
    close(fd);
    close(listener);
    world_free(w);
}

/* Parts of an asked body: only after it was granted, in order, and no more than there are. */
static void parts_are_checked(void **state)
{
    static const struct {
        uint64_t at;
        uint32_t len;
    } wrong[] = {{1, 100}, {UINT64_MAX, 100}, {100, 100}};
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct head head = {.len = FABRIC_EAGER_MAX + 1};
    uint8_t bytes[200] = {0};

    s->take = TAKE_AT_ONCE;
    for (unsigned i = 0; i <= ARRAY_LEN(wrong); i++) {
        struct frame ask = {.type = FRAME_ASK, .hdr_len = 8, .id = 3, .size = head.len};
        struct frame part = {.type = FRAME_PART, .id = 3, .len = 50}, granted;
        int fd = raw_linked(w, s, i + 1);

        s->next_seq[HOSTILE] = 0;
        raw_send(fd, &ask, sizeof(ask));
        raw_send(fd, &head, 8);
        pump_until(w, readable(fd));
        assert_int_equal(recv(fd, &granted, sizeof(granted), MSG_WAITALL), sizeof(granted));
        assert_int_equal(granted.type, FRAME_GRANT);
        assert_int_equal(granted.id, 3);
        raw_send(fd, &part, sizeof(part));
        raw_send(fd, bytes, part.len);
        part.size = i < ARRAY_LEN(wrong) ? wrong[i].at : 50;
        part.len = i < ARRAY_LEN(wrong) ? wrong[i].len : PART_MAX; /* past the end */
        raw_send(fd, &part, sizeof(part));
        raw_send(fd, bytes, sizeof(bytes));
        pump_until(w, s->down == i + 1);
        assert_int_equal(s->down_err, -EPROTO);
        assert_int_equal(s->taken, i + 1); /* told that it will not come */
        assert_int_equal(s->body[i]->st, -EIO);
        s->f->ops->peer_del(s->f, HOSTILE);
        close(fd);
    }
    world_free(w);
}

static size_t random_frame(uint64_t *rng, uint32_t *seq, uint8_t *at)
{
    struct frame f = {.type = (uint8_t)(FRAME_MSG + rnd(rng) % (rnd(rng) % 6 ? 2 : 5)),
                      .hdr_len = 8,
                      .seq = *seq,
                      .id = rnd(rng) % 3};
    struct head head = {.seq = 0};

    if (f.type == FRAME_MSG)
        f.len = head.len = rnd(rng) % 3 ? rnd(rng) % 300 : rnd(rng) % 50000;
    if (f.type == FRAME_ASK)
        f.size = head.len = FABRIC_EAGER_MAX + 1 + rnd(rng) % 5;
    if (f.type == FRAME_PART)
        f.len = 1 + rnd(rng) % 300;
    if (f.type >= FRAME_GRANT)
        f.hdr_len = 0;
    *seq += f.type <= FRAME_ASK;
    if (rnd(rng) % 16 == 0)
        ((uint8_t *)&f)[rnd(rng) % sizeof(f)] ^= 1 << rnd(rng) % 8;
    memcpy(at, &f, sizeof(f));
    memcpy(at + sizeof(f), &head, 8);
    return sizeof(f) + (f.hdr_len ? 8 : 0) + (f.len <= 50000 ? f.len : 0);
}

static void on_any(void *arg, const struct fabric_msg *m)
{
    struct side *s = arg;
    static uint8_t into[FABRIC_EAGER_MAX + 16];

    s->msgs++;
    if (!m->claim)
        return;
    if (m->body_len > sizeof(into) || s->msgs % 3 == 0)
        s->f->ops->drop(s->f, m->claim);
    else if (s->msgs % 3 == 1)
        s->f->ops->recv(s->f, m->claim, into, sizeof(into), NULL, NULL);
    /* else it is kept for ever, and freed with the fabric */
}

/* Frames that are mostly right, in pieces of any size. */
static void random_frames(void **state)
{
    enum { ROUNDS = 400, FRAMES = 8 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct fabric_events ev = {on_any, on_peer_down, s, NULL};
    uint8_t *buf = calloc(FRAMES, 60000);
    uint64_t rng = 4711;

    assert_non_null(buf);
    inside(s)->ev = ev;
    for (unsigned i = 0; i < ROUNDS; i++) {
        int fd = raw_linked(w, s, i % 200 + 1);
        size_t len = 0, at = 0;
        uint32_t seq = 0;
        unsigned down = s->down;

        for (unsigned k = 0; k < FRAMES; k++)
            len += random_frame(&rng, &seq, buf + len);
        while (at < len && s->down == down) {
            size_t n = MIN(len - at, 1 + rnd(&rng) % (rnd(&rng) % 2 ? 40 : 20000));

            raw_send(fd, buf + at, n);
            at += n;
            turn(w);
        }
        close(fd);
        pump_until(w, s->down == down + 1);
        s->f->ops->peer_del(s->f, HOSTILE);
        turn(w);
    }
    assert_true(s->msgs > ROUNDS);
    free(buf);
    world_free(w);
}

/* --- addresses and options ------------------------------------------------------------------ */

static void other_addresses_are_refused(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct fabric *f = w->side[0].f;
    uint8_t addr[sizeof(struct tcp_addr)], mine[32] = {1}, theirs[32] = {2};

    for (unsigned i = 0; i < 12; i++) { /* magic, version, family */
        memcpy(addr, w->side[0].addr, sizeof(addr));
        addr[i] ^= 0x40;
        assert_true(f->ops->peer_add(f, 1, addr, sizeof(addr), mine, theirs) < 0);
    }
    memcpy(addr, w->side[0].addr, sizeof(addr));
    assert_int_equal(f->ops->peer_add(f, 1, addr, sizeof(addr) - 1, mine, theirs),
                     -EPROTONOSUPPORT);
    assert_int_equal(f->ops->peer_add(f, 1, "some worker address of UCX", 26, mine, theirs),
                     -EPROTONOSUPPORT);
    assert_int_equal(f->ops->peer_add(f, 1, addr, sizeof(addr), mine, mine), -EINVAL);
    world_free(w);
}

static void refuses_what_it_cannot_do(void **state)
{
    refused("tcp", "lo", "rc,ud", NULL, -EINVAL,
            "transport.fabric is tcp, but transport.ucx_tls is \"rc,ud\"; allowed: ");
    refused("tcp", "lo", "tcp", "nonsense", -EINVAL,
            "transport.port_range: \"nonsense\" is not LOW-HIGH");
    refused("tcp", "lo", "tcp", "200-100", -EINVAL,
            "transport.port_range: \"200-100\" is not LOW-HIGH");
}

/* --- at rest ---------------------------------------------------------------------------------- */

static void no_wakeups_and_no_memory_at_rest(void **state)
{
    struct world *w = linked("tcp");
    struct sending s[2];

    put(&w->side[0], 1, 0, 8, 30000, &s[0]);
    put(&w->side[0], 1, 1, 8, 100000, &s[1]);
    pump_until(w, w->side[1].msgs == 2 && w->side[1].taken == 1);
    pump_until(w, !inside(&w->side[0])->timer_on && !inside(&w->side[1])->timer_on);
    pump_until_quiet(w);
    for (unsigned i = 0; i < 2; i++) {
        struct fabric *f = w->side[i].f;
        struct pollfd p = {.fd = f->ops->fd(f), .events = POLLIN};

        assert_null(TAILQ_FIRST(&inside(&w->side[i])->conns)->rest);
        assert_int_equal(f->ops->arm(f), 0);
        assert_int_equal(poll(&p, 1, 300), 0);
    }
    free_sendings(s, 2);
    world_free(w);
}

/* A full socket asks to be told when there is room, and is asleep until then. */
static void full_socket_wakes_up(void **state)
{
    enum { N = 200 };
    struct world *w = linked("tcp");
    struct sending *s = calloc(N, sizeof(*s));
    struct fabric *f = w->side[0].f;
    struct pollfd p = {.fd = f->ops->fd(f), .events = POLLIN};

    assert_non_null(s);
    put(&w->side[0], 1, 0, 8, 8, &s[0]);
    pump_until(w, w->side[1].msgs == 1);
    pump_until(w, !inside(&w->side[0])->timer_on && !inside(&w->side[1])->timer_on);
    for (unsigned i = 1; i < N; i++)
        put(&w->side[0], 1, i, 8, 100000, &s[i]);
    for (unsigned quiet = 0; quiet < 50; quiet++) { /* the other side does not move */
        if (f->ops->progress(f))
            quiet = 0;
        poll(NULL, 0, 1);
    }
    assert_true(count_done(s, N) < N);
    assert_int_equal(f->ops->arm(f), 0);
    assert_int_equal(poll(&p, 1, 50), 0);
    for (unsigned i = 0; i < 2000 && w->side[1].msgs < 20; i++)
        w->side[1].f->ops->progress(w->side[1].f);
    assert_int_equal(poll(&p, 1, 300000), 1);
    pump_until(w, count_done(s, N) == N && w->side[1].taken == N - 1);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order, 0);
    free_sendings(s, N);
    free(s);
    world_free(w);
}

/* What a send promises to follow with goes out together with it, or without it in the next turn. */
static void more_follows(void **state)
{
    struct world *w = linked("tcp");
    struct fabric *f = w->side[0].f;
    struct sending s[3];

    put(&w->side[0], 1, 0, 8, 0, &s[0]);
    pump_until(w, w->side[1].msgs == 1);
    pump_until(w, !inside(&w->side[0])->timer_on && !inside(&w->side[1])->timer_on);
    for (unsigned i = 1; i < 3; i++) {
        f->more = i == 1;
        put(&w->side[0], 1, i, 8, 20000, &s[i]);
        f->more = false;
        for (unsigned turn = 0; turn < 100; turn++)
            w->side[1].f->ops->progress(w->side[1].f);
        assert_int_equal(w->side[1].msgs, 1);
        assert_int_equal(f->ops->arm(f), 1);
    }
    pump_until(w, w->side[1].msgs == 3 && count_done(s, 3) == 3);
    f->more = true; /* and nothing comes */
    free_sendings(s, 1);
    put(&w->side[0], 1, 3, 8, 8, &s[0]);
    f->more = false;
    pump_until(w, w->side[1].msgs == 4 && count_done(s, 1) == 1);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order, 0);
    free_sendings(s, 3);
    world_free(w);
}

/* A connection that has nothing to read, because its messages wait for another one's, may have to
 * write: that there is room again is no fault of it. */
static void parked_connection_writes(void **state)
{
    enum { N = 300 };
    struct world *w = linked("tcp x 3");
    struct sending *s = calloc(N, sizeof(*s)), o[5];
    struct fabric *b = w->side[1].f;
    struct tcp *a = inside(&w->side[0]);
    struct pollfd p = {.fd = b->ops->fd(b), .events = POLLIN};
    struct conn *c;

    assert_non_null(s);
    put(&w->side[0], 1, 0, 8, 8, &o[0]);
    pump_until(w, w->side[1].msgs == 1);
    pump_until(w, !a->timer_on && !inside(&w->side[1])->timer_on);
    for (unsigned i = 0; i < N; i++)
        put(&w->side[1], 0, i, 8, 100000, &s[i]);
    for (unsigned quiet = 0; quiet < 50; quiet++) {
        if (b->ops->progress(b))
            quiet = 0;
        poll(NULL, 0, 1);
    }
    assert_true(count_done(s, N) < N);
    a->slot[1]->channels = 1; /* the first message stays here, as if its segment had been lost */
    a->base.more = true;
    put(&w->side[0], 1, 1, 8, 8, &o[1]);
    a->base.more = false;
    a->slot[1]->channels = 3;
    for (unsigned i = 2; i < 5; i++)
        put(&w->side[0], 1, i, 8, 100000, &o[i]);
    for (unsigned i = 0; i < 100; i++)
        b->ops->progress(b);
    assert_int_equal(inside(&w->side[1])->nparked, 2);
    for (unsigned i = 0; i < 2000; i++) { /* the other side reads, and writes nothing */
        TAILQ_FOREACH(c, &a->conns, link)
            conn_read(c);
        conns_resume(a);
        if (b->ops->arm(b) == 0 && poll(&p, 1, 0) == 0)
            continue;
        b->ops->progress(b);
    }
    assert_int_equal(inside(&w->side[1])->nparked, 2);
    pump_until(w, w->side[1].msgs == 5 && count_done(s, N) == N && count_done(o, 5) == 5);
    assert_int_equal(w->side[0].down + w->side[1].down, 0);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order, 0);
    free_sendings(s, N);
    free_sendings(o, 5);
    free(s);
    world_free(w);
}

int run_tcp_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_is_of_now),
        cmocka_unit_test(strangers_get_no_further_than_the_lobby),
        cmocka_unit_test(stranger_may_not_talk_on),
        cmocka_unit_test(channels_of_a_hello_are_checked),
        cmocka_unit_test(frames_are_checked),
        cmocka_unit_test(nothing_before_accept),
        cmocka_unit_test(a_wrong_accept_costs_an_attempt),
        cmocka_unit_test(lost_before_the_others_are_there),
        cmocka_unit_test(pushed_out_before_it_is_seen),
        cmocka_unit_test(parts_are_checked),
        cmocka_unit_test(random_frames),
        cmocka_unit_test(other_addresses_are_refused),
        cmocka_unit_test(refuses_what_it_cannot_do),
        cmocka_unit_test(no_wakeups_and_no_memory_at_rest),
        cmocka_unit_test(full_socket_wakes_up),
        cmocka_unit_test(more_follows),
        cmocka_unit_test(parked_connection_writes),
    };

    return cmocka_run_group_tests_name("fabric tcp only", tests, NULL, NULL);
}
