/* test_engine_send.c - in which order the engine sends: what of whom goes before what of others,
 * counted in bytes, over the loop fabric. Nothing is timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

enum {
    GOOD = 1000,
    BAD = 4001,
    THIRD = 5000,
    MESSAGE = 128 << 10,
    WINDOW = 512 << 10, /* LINK_WINDOW of engine_send.c */
    MANY = 30,
    USERS = 3,
};

static const uint16_t two[] = {0, 1};
static uint8_t body[MESSAGE];

/* What node 0 hands over, in this order, and then goes on to the loop fabric. */
static struct watch {
    struct fabric *f;
    const struct fabric_ops *real;
    struct fabric_ops ops;
    bool mute; /* nothing goes on: the other side takes nothing */
    uint64_t bytes[USERS], express[USERS];
    uint32_t last_uid;
    unsigned n;
} watch;

static unsigned user_of(uint32_t uid)
{
    return uid == GOOD ? 0 : uid == BAD ? 1 : 2;
}

static int watch_send(struct fabric *f, unsigned peer, const void *hdr, size_t hdr_len,
                      const void *bytes, size_t len, fabric_done_fn done, void *arg)
{
    struct wire_hdr h;

    memcpy(&h, hdr, sizeof h);
    if (h.step == WIRE_TAKEN)
        return watch.real->send(f, peer, hdr, hdr_len, bytes, len, done, arg);
    watch.n++;
    watch.last_uid = h.uid;
    watch.bytes[user_of(h.uid)] += len;
    if (f->express)
        watch.express[user_of(h.uid)] += len;
    return watch.mute ? 1 : watch.real->send(f, peer, hdr, hdr_len, bytes, len, done, arg);
}

static void watch_begin(struct cluster *c, bool mute)
{
    watch = (struct watch){.f = c->node[0].fabric, .mute = mute};
    watch.real = watch.f->ops;
    watch.ops = *watch.real;
    watch.ops.send = watch_send;
    watch.f->ops = &watch.ops;
}

static void watch_end(void)
{
    watch.f->ops = watch.real;
}

static uint64_t all_bytes(void)
{
    return watch.bytes[0] + watch.bytes[1] + watch.bytes[2];
}

static struct cluster_group *open_group(struct cluster *c, uint64_t id, uint32_t uid,
                                        uint32_t weight)
{
    struct commd_context *ctx[CLUSTER_MAX_RANKS];

    for (unsigned k = 0; k < CLUSTER_MAX_RANKS; k++)
        ctx[k] = &c->ctx;
    c->uid = uid;
    c->weight = weight;
    return cluster_group_new(c, id, two, 2, ctx, -1);
}

static struct cluster *cluster_of_two(void)
{
    struct cluster *c = cluster_new(2, 2, two, 3);

    fabric_loop_set_rndv(c->node[0].fabric, SIZE_MAX);
    fabric_loop_set_rndv(c->node[1].fabric, SIZE_MAX);
    return c;
}

static unsigned done_ok, done_failed;

static void on_done(void *arg, int st)
{
    struct eboard *eb = arg;

    eb->inflight--;
    done_ok += st == 0;
    done_failed += st < 0;
}

/* A message of an operation that is over: the other engine takes and drops it. */
static void post(struct cluster *c, const struct cluster_group *g, size_t len)
{
    struct eboard *eb = eboard_find(c->node[0].engine, g->id);
    struct wire_hdr h = {.group = g->id, .op = UINT32_MAX, .uid = eb->user->uid};
    int r;

    h.len = (uint32_t)len;
    eboard_activate(eb);
    eb->inflight++;
    r = eboard_send(eb, 1, &h, sizeof h, body, on_done, eb);
    assert_true(r >= 0);
    if (r > 0)
        on_done(eb, 0);
}

static void turn(struct cluster *c)
{
    for (unsigned n = 0; n < 2; n++) {
        engine_poll(c->node[n].engine);
        c->node[n].fabric->ops->progress(c->node[n].fabric);
    }
}

static bool waiting(const struct cluster *c)
{
    return !TAILQ_EMPTY(&c->node[0].engine->links_waiting);
}

static void finish(struct cluster *c)
{
    for (unsigned i = 0; i < 100000 && waiting(c); i++)
        turn(c);
    assert_false(waiting(c));
    assert_int_equal(c->board_errors, 0);
    watch_end();
}

static void assert_share(uint64_t part, uint64_t of, double want)
{
    double ratio = (double)part / (double)of / want;

    if (ratio < 0.9 || ratio > 1.1)
        fail_msg("%g of the share", ratio);
}

/* ---- shares ---------------------------------------------------------------------------------- */

static void weights_hold(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 30),
                         *bad = open_group(c, 0x200, BAD, 0);

    watch_begin(c, false);
    for (unsigned i = 0; i < 400; i++) {
        post(c, good, i % 3 ? MESSAGE : MESSAGE / 3);
        post(c, bad, MESSAGE);
    }
    while (all_bytes() < 200ull * MESSAGE)
        turn(c);
    assert_share(watch.bytes[0], watch.bytes[1], 3);
    finish(c);
    assert_int_equal(watch.bytes[1], 400ull * MESSAGE); /* nothing was lost */
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* Each byte once, whoever has it; where there is no room the others follow. */
static void what_users_sent_is_told(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 0), *bad = open_group(c, 0x200, BAD, 0);
    struct engine *e = c->node[0].engine;
    struct engine_sent told[3];

    watch_begin(c, false);
    engine_sent(e, told, 3);
    assert_int_equal(engine_sent(e, told, 3), 0);
    post(c, good, 1000);
    post(c, bad, MESSAGE);
    post(c, good, 24);
    assert_int_equal(engine_sent(e, told, 1), 1);
    assert_int_equal(engine_sent(e, told + 1, 2), 1);
    if (told[0].uid == BAD)
        told[2] = told[0], told[0] = told[1], told[1] = told[2];
    assert_int_equal(told[0].uid, GOOD);
    assert_int_equal(told[0].bytes, 1024);
    assert_int_equal(told[1].uid, BAD);
    assert_int_equal(told[1].bytes, MESSAGE);
    assert_int_equal(engine_sent(e, told, 3), 0);
    post(c, bad, 8);
    assert_int_equal(engine_sent(e, told, 3), 1);
    assert_int_equal(told[0].bytes, 8);
    finish(c);
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* Operations of 32 messages, and between two of them the other sends 4 while there is nothing. */
static void weights_hold_with_pauses(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 30),
                         *bad = open_group(c, 0x200, BAD, 0);
    const struct eboard *eb = eboard_find(c->node[0].engine, good->id);
    uint64_t back = 0;

    watch_begin(c, false);
    for (unsigned i = 0; i < 1000; i++)
        post(c, bad, MESSAGE);
    while (watch.bytes[1] < 300ull * MESSAGE) {
        if (eb->inflight)
            back = watch.bytes[1] + 4 * MESSAGE;
        else if (watch.bytes[1] >= back)
            for (unsigned i = 0; i < 32; i++)
                post(c, good, MESSAGE);
        turn(c);
    }
    assert_share(watch.bytes[0], watch.bytes[1], 3);
    finish(c);
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* A new weight comes with the user's next board, and holds for all of them. */
static void latest_weight_holds(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 10),
                         *bad = open_group(c, 0x200, BAD, 0), *more;

    watch_begin(c, false);
    for (unsigned i = 0; i < 300; i++) {
        post(c, good, MESSAGE);
        post(c, bad, MESSAGE);
    }
    while (all_bytes() < 100ull * MESSAGE)
        turn(c);
    assert_share(watch.bytes[0], watch.bytes[1], 1);
    more = open_group(c, 0x101, GOOD, 40);
    watch.bytes[0] = watch.bytes[1] = 0;
    while (all_bytes() < 200ull * MESSAGE)
        turn(c);
    assert_share(watch.bytes[0], watch.bytes[1], 4);
    finish(c);
    cluster_group_free(c, more);
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* Neither by many groups nor by short messages in all of them. */
static void many_groups_gain_nothing(void **state)
{
    static const size_t sizes[] = {MESSAGE, FABRIC_EXPRESS_MAX, 1000};

    for (unsigned k = 0; k < ARRAY_LEN(sizes); k++) {
        struct cluster *c = cluster_of_two();
        struct cluster_group *good = open_group(c, 0x100, GOOD, 0), *bad[MANY];
        unsigned each = (unsigned)(200ull * MESSAGE / sizes[k] / MANY) + 1;

        for (unsigned i = 0; i < MANY; i++)
            bad[i] = open_group(c, 0x200 + i, BAD, 0);
        watch_begin(c, false);
        for (unsigned i = 0; i < 200; i++)
            post(c, good, MESSAGE);
        for (unsigned n = 0; n < each; n++)
            for (unsigned i = 0; i < MANY; i++)
                post(c, bad[i], sizes[k]);
        while (all_bytes() < 150ull * MESSAGE)
            turn(c);
        /* short ones also cost a header each, which is paid for */
        assert_true(watch.bytes[1] <= watch.bytes[0] + watch.bytes[0] / 10);
        if (sizes[k] == MESSAGE)
            assert_share(watch.bytes[1], watch.bytes[0], 1);
        finish(c);
        for (unsigned i = 0; i < MANY; i++)
            cluster_group_free(c, bad[i]);
        cluster_group_free(c, good);
        cluster_free(c);
    }
}

static void groups_of_a_user_are_alike(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *g[3];
    uint64_t by[3] = {0};

    for (unsigned i = 0; i < 3; i++)
        g[i] = open_group(c, 0x100 + i, GOOD, 0);
    watch_begin(c, true);
    for (unsigned n = 0; n < 100; n++)
        for (unsigned i = 0; i < 3; i++)
            post(c, g[i], i == 1 ? MESSAGE / 4 : MESSAGE);
    while (watch.n < 150) {
        for (unsigned i = 0; i < 3; i++) { /* what each has under way, by what still waits */
            struct eboard *eb = eboard_find(c->node[0].engine, g[i]->id);

            by[i] = (100 - eb->inflight) * (uint64_t)(i == 1 ? MESSAGE / 4 : MESSAGE);
        }
        sends_were_taken(c->node[0].engine, 1, UINT32_MAX);
        engine_poll(c->node[0].engine);
    }
    assert_share(by[0], by[2], 1);
    assert_true(by[1] >= by[0] - by[0] / 5 || by[1] == 100ull * MESSAGE / 4);
    while (waiting(c)) {
        sends_were_taken(c->node[0].engine, 1, UINT32_MAX);
        engine_poll(c->node[0].engine);
    }
    finish(c);
    for (unsigned i = 0; i < 3; i++)
        cluster_group_free(c, g[i]);
    cluster_free(c);
}

/* ---- who overtakes --------------------------------------------------------------------------- */

/* A short message goes at once, before all that others have in the queue; and all that is under way
 * without having been taken is bounded, so a long one has no more than that before it. */
static void short_message_overtakes_bulk(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *bad = open_group(c, 0x200, BAD, 0), *good = open_group(c, 0x100, GOOD, 0),
                         *own = open_group(c, 0x201, BAD, 0);
    uint64_t before;

    watch_begin(c, true); /* the other side takes nothing */
    post(c, good, 8);
    for (unsigned i = 0; i < 512; i++)
        post(c, bad, MESSAGE);
    for (unsigned i = 0; i < 100; i++)
        engine_poll(c->node[0].engine);
    assert_in_range(watch.bytes[1], WINDOW - MESSAGE, WINDOW + MESSAGE);
    before = watch.bytes[1];
    for (unsigned i = 0; i < 50; i++) {
        post(c, good, 8);
        assert_int_equal(watch.last_uid, GOOD);
        post(c, own, 8); /* another group of the one that waits */
    }
    assert_int_equal(watch.express[0], 51 * 8);
    assert_int_equal(watch.express[1], 50 * 8);
    assert_int_equal(watch.bytes[1], before + 50 * 8); /* no byte of bulk went before them */
    post(c, good, MESSAGE);
    assert_int_equal(watch.bytes[0], 51 * 8);
    sends_were_taken(c->node[0].engine, 1, 2 * MESSAGE); /* the first that may go is the long one */
    watch.n = 0;
    engine_poll(c->node[0].engine);
    assert_int_equal(watch.bytes[0], 51 * 8 + MESSAGE);
    assert_int_equal(watch.n, 1);
    while (waiting(c)) {
        sends_were_taken(c->node[0].engine, 1, UINT32_MAX);
        engine_poll(c->node[0].engine);
    }
    finish(c);
    cluster_group_free(c, own);
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* Who floods with short messages is ahead of the others by so much, and then waits like all. */
static void flood_of_short_messages_waits(void **state)
{
    enum { AHEAD = 512 << 10 }; /* USER_AHEAD */
    struct cluster *c = cluster_of_two();
    struct cluster_group *bad[MANY], *good = open_group(c, 0x100, GOOD, 0);

    for (unsigned i = 0; i < MANY; i++)
        bad[i] = open_group(c, 0x200 + i, BAD, 0);
    watch_begin(c, true);
    for (unsigned i = 0; i < 64; i++)
        post(c, good, MESSAGE);
    for (unsigned n = 0; n < 100; n++)
        for (unsigned i = 0; i < MANY; i++)
            post(c, bad[i], 4096);
    assert_in_range(watch.express[1], 4096, AHEAD + WINDOW / 4);
    post(c, good, 8);
    assert_int_equal(watch.last_uid, GOOD); /* the victim's still goes */
    while (waiting(c)) {
        sends_were_taken(c->node[0].engine, 1, UINT32_MAX);
        engine_poll(c->node[0].engine);
    }
    finish(c);
    for (unsigned i = 0; i < MANY; i++)
        cluster_group_free(c, bad[i]);
    cluster_group_free(c, good);
    cluster_free(c);
}

/* Three users that always want, one of the least weight: it gets on all the time. */
static void nobody_starves(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 1),
                         *bad = open_group(c, 0x200, BAD, 100),
                         *third = open_group(c, 0x300, THIRD, 100);
    uint64_t last = 0;

    watch_begin(c, false);
    for (unsigned i = 0; i < 1000; i++) {
        post(c, bad, MESSAGE);
        post(c, third, MESSAGE);
        post(c, good, MESSAGE);
    }
    for (unsigned i = 1; i <= 4; i++) {
        while (watch.bytes[1] + watch.bytes[2] < i * 300ull * MESSAGE)
            turn(c);
        assert_true(watch.bytes[0] > last);
        last = watch.bytes[0];
    }
    finish(c);
    cluster_group_free(c, third);
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* ---- nobody to wait for ---------------------------------------------------------------------- */

/* One group alone: the fabric gets all at once, whatever the other side has taken. */
static void alone_nothing_is_held_back(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *g = open_group(c, 0x100, GOOD, 1);

    while (engine_arm(c->node[0].engine)) /* the main group dozes */
        ;
    watch_begin(c, true);
    for (unsigned i = 0; i < 100; i++)
        post(c, g, MESSAGE);
    assert_int_equal(watch.bytes[0], 100ull * MESSAGE);
    assert_false(waiting(c));
    watch_end();
    cluster_group_free(c, g);
    cluster_free(c);
}

/* Others are there, but do not send: after a while it is the same. */
static void idle_groups_hold_nothing_back(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *g = open_group(c, 0x100, GOOD, 1), *idle = open_group(c, 0x200, BAD, 100);
    uint64_t before;

    watch_begin(c, false);
    post(c, idle, 8);
    for (unsigned i = 0; i < 64; i++)
        post(c, g, MESSAGE);
    while (waiting(c))
        turn(c);
    watch.mute = true;
    before = watch.bytes[0];
    for (unsigned i = 0; i < 100; i++)
        post(c, g, MESSAGE);
    assert_int_equal(watch.bytes[0] - before, 100ull * MESSAGE);
    finish(c);
    cluster_group_free(c, idle);
    cluster_group_free(c, g);
    cluster_free(c);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void peer_that_goes_ends_what_waits(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 0), *bad = open_group(c, 0x200, BAD, 0);
    struct engine *e = c->node[0].engine;

    watch_begin(c, true);
    done_ok = done_failed = 0;
    for (unsigned i = 0; i < 100; i++) {
        post(c, good, MESSAGE);
        post(c, bad, 500);
    }
    assert_true(waiting(c));
    engine_peer_gone(e, 1);
    assert_false(waiting(c));
    assert_true(done_failed > 50);
    assert_int_equal(done_ok + done_failed, 200);
    assert_int_equal(eboard_find(e, 0x100)->inflight + eboard_find(e, 0x200)->inflight, 0);
    assert_int_equal(e->links[1].under_way, 0);
    watch_end();
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* The board goes while its messages wait: they are sent first, though it is not their turn. */
static void board_that_goes_sends_first(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 0), *bad = open_group(c, 0x200, BAD, 0);

    watch_begin(c, true);
    done_ok = done_failed = 0;
    for (unsigned i = 0; i < 50; i++) {
        post(c, bad, MESSAGE);
        post(c, good, MESSAGE);
    }
    engine_board_del(c->node[0].engine, 0x100, true);
    assert_int_equal(watch.bytes[0], 50ull * MESSAGE);
    assert_true(waiting(c)); /* the other's */
    while (waiting(c)) {
        sends_were_taken(c->node[0].engine, 1, UINT32_MAX);
        engine_poll(c->node[0].engine);
    }
    assert_int_equal(done_ok, 100);
    watch_end();
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* The engine ends with messages in the queue. */
static void engine_that_ends_frees_the_queue(void **state)
{
    struct cluster *c = cluster_of_two();
    struct cluster_group *good = open_group(c, 0x100, GOOD, 0), *bad = open_group(c, 0x200, BAD, 0);

    watch_begin(c, true);
    done_ok = done_failed = 0;
    for (unsigned i = 0; i < 50; i++) {
        post(c, bad, MESSAGE);
        post(c, good, MESSAGE);
    }
    sends_fini(c->node[0].engine);
    assert_int_equal(done_ok + done_failed, 100);
    assert_true(done_failed > 0);
    watch_end();
    cluster_group_free(c, good);
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* What an engine says that it has taken cannot be more than it got. */
static void more_taken_than_sent_is_nothing(void **state)
{
    struct cluster *c = cluster_of_two();
    struct engine *e = c->node[0].engine;
    struct wire_hdr h = {.step = WIRE_TAKEN, .op = UINT32_MAX};
    struct fabric *f = c->node[1].fabric;

    for (unsigned i = 0; i < 3; i++) {
        assert_true(f->ops->send(f, 0, &h, sizeof h, NULL, 0, NULL, NULL) >= 0);
        turn(c);
    }
    assert_int_equal(e->links[1].under_way, 0);
    h.len = 8; /* it has no body */
    assert_true(f->ops->send(f, 0, &h, sizeof h, body, 8, NULL, NULL) >= 0);
    turn(c);
    turn(c);
    assert_int_equal(c->peers_down, 1);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_hold),
        cmocka_unit_test(what_users_sent_is_told),
        cmocka_unit_test(weights_hold_with_pauses),
        cmocka_unit_test(latest_weight_holds),
        cmocka_unit_test(many_groups_gain_nothing),
        cmocka_unit_test(groups_of_a_user_are_alike),
        cmocka_unit_test(short_message_overtakes_bulk),
        cmocka_unit_test(flood_of_short_messages_waits),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(alone_nothing_is_held_back),
        cmocka_unit_test(idle_groups_hold_nothing_back),
        cmocka_unit_test(peer_that_goes_ends_what_waits),
        cmocka_unit_test(board_that_goes_sends_first),
        cmocka_unit_test(engine_that_ends_frees_the_queue),
        cmocka_unit_test(more_taken_than_sent_is_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
