/* test_fabric_express.c - the express connection of plain TCP: what overtakes, what does not, and
 * what a hostile peer may not send on it. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

enum { LONG = 200000, URGENT = 100 };

/* What came, in this order; bodies are thrown away. */
struct seen {
    struct side *side;
    uint32_t seq[128];
    unsigned n;
};

static void note_msg(void *arg, const struct fabric_msg *m)
{
    struct seen *seen = arg;
    struct head h = {0};

    memcpy(&h, m->hdr, 8);
    assert_true(seen->n < ARRAY_LEN(seen->seq));
    seen->seq[seen->n++] = h.seq;
    if (m->claim)
        seen->side->f->ops->drop(seen->side->f, m->claim);
}

static void note_down(void *arg, unsigned peer, int err, const char *why)
{
    fail_msg("the link broke: %s", why);
}

static struct seen seen;
static const struct fabric_events noting = {note_msg, note_down, &seen, NULL};

/* Both sides are up; what comes to the second is noted. */
static struct world *noted(void)
{
    struct world *w = linked("tcp express");
    struct sending first;

    put(&w->side[0], 1, 0, 8, 0, &first);
    pump_until(w, w->side[1].msgs == 1);
    pump_until(w, !inside(&w->side[0])->timer_on && !inside(&w->side[1])->timer_on);
    free_sendings(&first, 1);
    seen = (struct seen){.side = &w->side[1]};
    w->side[1].instead = &noting;
    return w;
}

static void put_express(struct world *w, uint32_t seq, size_t len, struct sending *out)
{
    w->side[0].f->express = true;
    put(&w->side[0], 1, seq, 8, len, out);
    w->side[0].f->express = false;
}

static void express_overtakes_all_that_waits(void **state)
{
    enum { N = 8 };
    struct world *w = noted();
    struct sending s[N + 1];

    for (unsigned i = 0; i < N; i++)
        put(&w->side[0], 1, i, 8, LONG, &s[i]);
    put_express(w, URGENT, 100, &s[N]);
    w->side[1].f->crowded = true;
    w->side[1].f->ops->progress(w->side[1].f);
    assert_true(seen.n >= 1);
    assert_int_equal(seen.seq[0], URGENT);
    pump_until(w, seen.n == N + 1 && count_done(s, N + 1) == N + 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(seen.seq[i + 1], i);
    free_sendings(s, N + 1);
    world_free(w);
}

static size_t read_of_long(struct world *w)
{
    const struct tcp_peer *peer = inside(&w->side[1])->slot[0];

    return seen.n * (size_t)LONG - peer->conn[0]->sink_left;
}

/* Where others wait, only so much of what is long is read in a turn. */
static void crowded_turns_are_short(void **state)
{
    enum { N = 40, BITE = (64 << 10) + 1000 };
    struct world *w = noted();
    struct fabric *from = w->side[0].f, *to = w->side[1].f;
    struct sending s[N];

    for (unsigned i = 0; i < N; i++) {
        put(&w->side[0], 1, i, 8, LONG, &s[i]);
        if (i == N / 2) /* the kernel gets to know that we read fast, and takes more */
            pump_until(w, seen.n == i + 1);
    }
    to->crowded = true;
    while (seen.n < N) {
        size_t before = read_of_long(w);

        from->ops->progress(from);
        to->ops->progress(to);
        assert_true(read_of_long(w) - before <= BITE);
    }
    pump_until(w, count_done(s, N) == N);
    free_sendings(s, N);
    world_free(w);
}

static void both_ways_keep_their_order(void **state)
{
    enum { N = 50 };
    struct world *w = noted();
    struct sending s[2 * N];
    uint32_t next = 0, urgent = URGENT;

    for (unsigned i = 0; i < N; i++) {
        put(&w->side[0], 1, i, 8, i % 3 ? 100 : LONG, &s[2 * i]);
        put_express(w, URGENT + i, i % 4 ? 8 : FABRIC_EXPRESS_MAX, &s[2 * i + 1]);
        if (i % 5 == 0)
            turn(w);
    }
    pump_until(w, seen.n == 2 * N && count_done(s, 2 * N) == 2 * N);
    for (unsigned i = 0; i < seen.n; i++)
        assert_int_equal(seen.seq[i], seen.seq[i] < URGENT ? next++ : urgent++);
    free_sendings(s, 2 * N);
    world_free(w);
}

/* Too long for it, or no such connection: a hint only. */
static void hint_is_no_promise(void **state)
{
    struct world *w = noted(), *plain;
    struct sending s[4];

    for (unsigned i = 0; i < 3; i++)
        put(&w->side[0], 1, i, 8, LONG, &s[i]);
    put_express(w, 3, FABRIC_EXPRESS_MAX + 1, &s[3]);
    pump_until(w, seen.n == 4 && count_done(s, 4) == 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(seen.seq[i], i);
    free_sendings(s, 4);
    world_free(w);
    plain = linked("tcp");
    put_express(plain, 0, 8, &s[0]);
    pump_until(plain, plain->side[1].msgs == 1 && count_done(s, 1) == 1);
    free_sendings(s, 1);
    world_free(plain);
}

/* ---- a peer that the test plays -------------------------------------------------------------- */

static int raw_say(struct side *s, unsigned incarnation, unsigned channel, unsigned express)
{
    struct hello h = hello_of(incarnation);
    int fd = raw_connect(s);

    h.channel = (uint16_t)channel;
    h.express = (uint16_t)express;
    raw_send(fd, &h, sizeof(h));
    return fd;
}

/* One channel and the express connection, up to where messages may begin. */
static void raw_pair(struct world *w, struct side *s, unsigned incarnation, int fd[2])
{
    struct hello answer;

    expect_raw(s, incarnation);
    for (unsigned i = 0; i < 2; i++) {
        fd[i] = raw_say(s, incarnation, i, 1);
        pump_until(w, readable(fd[i]));
        assert_int_equal(recv(fd[i], &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
        assert_int_equal(answer.express, 1);
    }
    for (unsigned i = 0; i < 2; i++)
        raw_accept(fd[i]);
}

static void raw_msg(int fd, struct frame f, uint32_t number)
{
    static const uint8_t zeros[FABRIC_EXPRESS_MAX + 1];
    struct head head = {.seq = number, .len = f.len};
    uint8_t hdr[FABRIC_HDR_MAX + 1] = {0};

    memcpy(hdr, &head, sizeof(head));
    raw_send(fd, &f, sizeof(f));
    raw_send(fd, hdr, f.hdr_len);
    raw_send(fd, zeros, f.len);
}

/* What goes behind an express message waits for it, though it is here. */
static void behind_waits_for_express(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[2];

    raw_pair(w, s, 1, fd);
    raw_msg(fd[0], (struct frame){.type = FRAME_MSG, .hdr_len = 8, .behind = 1, .id = 1}, 2);
    raw_msg(fd[0], (struct frame){.type = FRAME_MSG, .hdr_len = 8, .seq = 1}, 3);
    pump_until(w, inside(s)->nparked == 1);
    raw_msg(fd[1], (struct frame){.type = FRAME_MSG, .hdr_len = 8}, 0);
    pump_until(w, s->msgs == 1);
    pump_until_quiet(w);
    assert_int_equal(s->msgs, 1);
    raw_msg(fd[1], (struct frame){.type = FRAME_MSG, .hdr_len = 8, .seq = 1}, 1);
    pump_until(w, s->msgs == 4);
    assert_int_equal(s->bad_order + s->down, 0);
    close(fd[0]);
    close(fd[1]);
    world_free(w);
}

static void frames_of_express_are_checked(void **state)
{
    static const struct {
        unsigned on;
        struct frame f;
    } wrong[] = {
        {1, {.type = FRAME_ASK, .hdr_len = 8, .size = MB}},
        {1, {.type = FRAME_GRANT}},
        {1, {.type = FRAME_DROP}},
        {1, {.type = FRAME_PART, .len = 10}},
        {1, {.type = FRAME_BYE}},
        {1, {.type = FRAME_MSG, .hdr_len = 8, .len = FABRIC_EXPRESS_MAX + 1}},
        {1, {.type = FRAME_MSG, .hdr_len = FABRIC_HDR_MAX + 1}},
        {1, {.type = FRAME_MSG, .hdr_len = 8, .behind = 1}},
        {1, {.type = FRAME_MSG, .hdr_len = 8, .seq = 1}},
        {0, {.type = FRAME_MSG, .hdr_len = 8, .behind = 2}},
        {0, {.type = FRAME_ASK, .hdr_len = 8, .size = MB, .behind = 1}},
    };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];

    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        int fd[2];

        raw_pair(w, s, i + 1, fd);
        raw_msg(fd[wrong[i].on], wrong[i].f, 0);
        pump_until(w, s->down == i + 1);
        assert_int_equal(s->down_err, -EPROTO);
        s->f->ops->peer_del(s->f, HOSTILE);
        assert_true(ended(w, fd[0]) && ended(w, fd[1]));
        close(fd[0]);
        close(fd[1]);
    }
    assert_int_equal(s->msgs, 0);
    world_free(w);
}

static void express_of_a_hello_is_checked(void **state)
{
    static const uint16_t wrong[][2] = {{0, 2}, {1, 0}, {2, 1}, {0, 65535}};
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd, other;

    expect_raw(s, 1);
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        fd = raw_say(s, 1, wrong[i][0], wrong[i][1]);
        assert_true(ended(w, fd));
        close(fd);
        assert_int_equal(s->f->stats.strangers, i + 1);
    }
    fd = raw_say(s, 1, 0, 1);
    pump_until(w, readable(fd));
    other = raw_say(s, 1, 1, 0); /* says otherwise than the first */
    assert_true(ended(w, other));
    close(other);
    assert_int_equal(s->down, 0);
    close(fd);
    world_free(w);
}

static void lost_express_is_a_lost_link(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[2];

    raw_pair(w, s, 1, fd);
    raw_msg(fd[1], (struct frame){.type = FRAME_MSG, .hdr_len = 8}, 0);
    pump_until(w, s->msgs == 1);
    raw_reset(fd[1]);
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_peer, HOSTILE);
    assert_true(ended(w, fd[0]));
    close(fd[0]);
    world_free(w);
}

int run_express_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(express_overtakes_all_that_waits),
        cmocka_unit_test(crowded_turns_are_short),
        cmocka_unit_test(both_ways_keep_their_order),
        cmocka_unit_test(hint_is_no_promise),
        cmocka_unit_test(behind_waits_for_express),
        cmocka_unit_test(frames_of_express_are_checked),
        cmocka_unit_test(express_of_a_hello_is_checked),
        cmocka_unit_test(lost_express_is_a_lost_link),
    };

    return cmocka_run_group_tests_name("fabric tcp express", tests, NULL, NULL);
}
