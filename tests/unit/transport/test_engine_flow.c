/* test_engine_flow.c - large operations that go one way, to ranks that are stopped: the receiver
 * slows its sender down, and nobody else. A stopped rank moves when nothing else does, so its node
 * is always as far behind as it can be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

enum {
    BYTES = 20 << 20, /* of a block: 160 steps */
    MOST = (FLOW_CREDIT + FLOW_AHEAD) * 2 * PLAN_CHUNK_NET,
    ROOT = 1,
};

static const uint16_t two[] = {0, 1}, three[] = {0, 1, 2}, five[] = {0, 1, 2, 0, 1};

static const struct {
    int coll;
    bool sends_blocks, gets_blocks;
} one_way[] = {
    {COMMD_BROADCAST, false, false},    {COMMD_REDUCE, false, false},
    {COMMD_GATHER, false, true},        {COMMD_SCATTER, true, false},
    {COMMD_ALL_TO_ALL_V, false, false},
};

/* What the ranks have: of rank k in place i k + i. */
static struct buffers {
    unsigned world;
    size_t n; /* elements of a block */
    float *send[CLUSTER_MAX_RANKS], *recv[CLUSTER_MAX_RANKS];
    size_t send_counts[CLUSTER_MAX_RANKS][CLUSTER_MAX_RANKS];
    size_t recv_counts[CLUSTER_MAX_RANKS][CLUSTER_MAX_RANKS];
} buffers;

static void buffers_new(unsigned world, unsigned op, size_t bytes)
{
    size_t out = one_way[op].sends_blocks ? world : 1, in = one_way[op].gets_blocks ? world : 1;

    buffers = (struct buffers){.world = world, .n = bytes / sizeof(float)};
    for (unsigned k = 0; k < world; k++) {
        buffers.send[k] = malloc(out * bytes);
        buffers.recv[k] = calloc(in, bytes);
        assert_true(buffers.send[k] && buffers.recv[k]);
        for (size_t i = 0; i < out * buffers.n; i++)
            buffers.send[k][i] = (float)(k + i % 1000);
    }
}

static void buffers_free(void)
{
    for (unsigned k = 0; k < buffers.world; k++) {
        free(buffers.send[k]);
        free(buffers.recv[k]);
    }
}

/* An all_to_all_v in which ROOT alone sends, and only to rank 0. */
static void ops_of(unsigned op, struct commd_op *ops)
{
    buffers.send_counts[ROOT][0] = buffers.recv_counts[0][ROOT] = buffers.n;
    for (unsigned k = 0; k < buffers.world; k++) {
        ops[k] = (struct commd_op){.size = sizeof ops[k],
                                   .coll = one_way[op].coll,
                                   .dtype = COMMD_F32,
                                   .redop = COMMD_SUM,
                                   .root = ROOT,
                                   .send = buffers.send[k],
                                   .recv = buffers.recv[k],
                                   .count = buffers.n};
        if (one_way[op].coll == COMMD_ALL_TO_ALL_V) {
            ops[k].count = 0;
            ops[k].send_counts = buffers.send_counts[k];
            ops[k].recv_counts = buffers.recv_counts[k];
        }
        if (one_way[op].coll == COMMD_BROADCAST) {
            ops[k].send = NULL;
            if (k == ROOT)
                memcpy(buffers.recv[k], buffers.send[k], buffers.n * sizeof(float));
        }
    }
}

/* Element @i of what rank @k has in the end. */
static float wanted(unsigned op, unsigned k, size_t i)
{
    float world = (float)buffers.world, at = (float)(i % buffers.n % 1000);

    switch (one_way[op].coll) {
    case COMMD_REDUCE:
        return k == ROOT ? world * at + world * (world - 1) / 2 : 0;
    case COMMD_GATHER:
        return k == ROOT ? (float)(i / buffers.n) + at : 0;
    case COMMD_SCATTER:
        return ROOT + (float)((k * buffers.n + i) % 1000);
    case COMMD_ALL_TO_ALL_V:
        return k == 0 ? ROOT + at : 0;
    default:
        return ROOT + at;
    }
}

static void results_are_right(unsigned op)
{
    for (unsigned k = 0; k < buffers.world; k++)
        for (size_t i = 0; i < buffers.n * (one_way[op].gets_blocks ? buffers.world : 1); i++)
            if (buffers.recv[k][i] != wanted(op, k, i))
                fail_msg("operation %d, rank %u, element %zu: %g instead of %g", one_way[op].coll,
                         k, i, (double)buffers.recv[k][i], (double)wanted(op, k, i));
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static struct {
    size_t most;    /* bytes that have waited in an inbox */
    unsigned rests; /* times that all others waited for the stopped rank */
} seen;

static void look(struct cluster *c)
{
    for (unsigned n = 0; n < c->nnodes; n++) {
        const struct eboard *eb = eboard_find(c->node[n].engine, c->main->id);

        seen.most = MAX(seen.most, eb->inbox.bytes);
        for (unsigned k = 0; k < c->nnodes; k++) {
            const struct eboard *to = eboard_find(c->node[k].engine, c->main->id);

            if (eb->op == to->op && eb->one_way && eb->state == EB_DATA && to->state == EB_DATA)
                assert_true(eb->passed[k] <= to->published - to->base);
        }
    }
    seen.rests++;
}

static void run_stopped(struct cluster *c, unsigned op, size_t bytes, uint64_t stopped)
{
    struct commd_op ops[CLUSTER_MAX_RANKS];
    enum run_state st[CLUSTER_MAX_RANKS];

    buffers_new(c->world, op, bytes);
    ops_of(op, ops);
    memset(&seen, 0, sizeof seen);
    c->stopped = stopped;
    c->at_rest = look;
    assert_true(cluster_run(c, ops, st, NULL));
    if (c->board_errors)
        fail_msg("operation %d: %s", one_way[op].coll, c->last_error);
    for (unsigned k = 0; k < c->world; k++)
        assert_int_equal(st[k], RUN_DONE);
    results_are_right(op);
    assert_true(seen.most <= MOST);
    buffers_free();
}

/* Who receives is stopped: of a broadcast over three nodes also whoever passes the data on. */
static void each_rank_stopped(unsigned world, unsigned nodes, const uint16_t *places, bool claims)
{
    for (unsigned op = 0; op < ARRAY_LEN(one_way); op++) {
        struct cluster *c = cluster_new(world, nodes, places, 3 + op);
        size_t most = 0;

        for (unsigned n = 0; n < nodes; n++)
            fabric_loop_set_rndv(c->node[n].fabric, claims ? 100000 : SIZE_MAX);
        for (unsigned k = 0; k < world; k++) {
            run_stopped(c, op, world > 3 ? BYTES / 4 : BYTES, 1ull << k);
            assert_true(seen.rests > 1);
            most = MAX(most, seen.most);
        }
        assert_true(most > FLOW_CREDIT / 2 * sizeof(struct inmsg)); /* something was ahead */
        cluster_free(c);
    }
}

static void slow_receiver_slows_its_sender_down(void **state)
{
    each_rank_stopped(2, 2, two, false);
    each_rank_stopped(2, 2, two, true);
}

static void over_three_nodes(void **state)
{
    each_rank_stopped(3, 3, three, false);
}

static void several_ranks_on_a_node(void **state)
{
    each_rank_stopped(5, 3, five, true);
}

/* One operation behind the other: the credit is full again, and nothing is left of the last one. */
static void operations_follow_each_other(void **state)
{
    struct cluster *c = cluster_new(3, 3, three, 7);

    for (unsigned i = 0; i < 40; i++)
        run_stopped(c, i % ARRAY_LEN(one_way), (size_t)(1 + i * 7919 % 2000) << 12, 1ull << i % 3);
    cluster_free(c);
}

static void over_a_bad_network(void **state)
{
    static const struct fabric_fault_conf faults = {
        .seed = 11, .max_delay = 20, .stop_every = 37, .stop_for = 300};

    for (unsigned op = 0; op < ARRAY_LEN(one_way); op++) {
        struct cluster *c = cluster_new_faulty(3, 3, three, 5 + op, &faults);

        run_stopped(c, op, BYTES / 2, 1 << 2);
        run_stopped(c, op, BYTES / 2, 0);
        cluster_free(c);
    }
}

/* ---- others ---------------------------------------------------------------------------------- */

static struct commd_group *others[2];

/* While the first group waits for its stopped receiver: an operation of another one. */
static void other_group_works(struct cluster *c)
{
    struct run runs[2] = {0};
    float x[2] = {1, 2};
    unsigned left = 2;

    look(c);
    if (seen.rests > 5)
        return;
    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op = {.size = sizeof op,
                              .coll = COMMD_ALL_REDUCE,
                              .dtype = COMMD_F32,
                              .redop = COMMD_SUM,
                              .send = &x[k],
                              .recv = &x[k],
                              .count = 1};

        assert_int_equal(run_begin(&runs[k], others[k]->now, &op), 0);
    }
    for (unsigned turns = 0; left && turns < 10000; turns++) {
        unsigned k = turns % 2;

        cluster_turn(c);
        if (runs[k].group && run_poll(&runs[k]) >= RUN_DONE) {
            run_end(&runs[k], RUN_DONE);
            runs[k].group = NULL;
            left--;
        }
    }
    assert_int_equal(left, 0);
    assert_true(x[0] == 3 && x[1] == 3);
}

static void other_groups_go_on(void **state)
{
    struct cluster *c = cluster_new(2, 2, two, 9);
    struct commd_context *ctx[] = {&c->ctx, &c->ctx};
    struct cluster_group *other = cluster_group_new(c, 0x500, two, 2, ctx, -1);
    struct commd_op ops[2];
    enum run_state st[2];

    others[0] = other->member[0];
    others[1] = other->member[1];
    buffers_new(2, 0, BYTES);
    ops_of(0, ops);
    memset(&seen, 0, sizeof seen);
    c->stopped = 1 << 0;
    c->at_rest = other_group_works;
    assert_true(cluster_run(c, ops, st, NULL));
    assert_true(seen.rests > 5);
    results_are_right(0);
    buffers_free();
    cluster_group_free(c, other);
    cluster_free(c);
}

/* Rank ROOT begins a broadcast, and of the nodes its own alone has turns: how many steps go out? */
static unsigned steps_ahead(struct cluster *c, struct run *r)
{
    struct engine *e = c->node[ROOT].engine;
    const struct eboard *eb = eboard_find(e, c->main->id);
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_BROADCAST,
                          .dtype = COMMD_F32,
                          .root = ROOT,
                          .recv = buffers.recv[ROOT],
                          .count = buffers.n};

    assert_int_equal(run_begin(r, c->group[ROOT]->now, &op), 0);
    for (unsigned turns = 0; turns < 100; turns++) {
        run_poll(r);
        engine_poll_all(e);
    }
    assert_true(eb->state == EB_CHECK && eb->check == STEP_AWAITED);
    return eb->next_start;
}

/* What the other node does not know of yet waits with what comes for all other groups: little. */
static void first_operation_sends_nothing_ahead(void **state)
{
    struct cluster *c = cluster_new(2, 2, two, 17);
    struct run r = {0};

    buffers_new(2, 0, BYTES);
    assert_int_equal(steps_ahead(c, &r), 0);
    run_abandon(&r);
    buffers_free();
    cluster_free(c);

    c = cluster_new(2, 2, two, 17);
    run_stopped(c, 0, 4096, 0);
    for (unsigned turns = 0; turns < 1000; turns++)
        cluster_turn(c); /* the root had not waited for that */
    buffers_new(2, 0, BYTES);
    r = (struct run){0};
    assert_int_equal(steps_ahead(c, &r), FLOW_AHEAD);
    run_abandon(&r);
    buffers_free();
    cluster_free(c);
}

/* ---- a group that ends ----------------------------------------------------------------------- */

static struct cluster_group *ending;

static bool begin_and_stop(struct cluster *c, struct run *r)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_BROADCAST,
                          .dtype = COMMD_F32,
                          .root = ROOT,
                          .count = buffers.n};
    unsigned idle = 0;

    for (unsigned k = 0; k < 2; k++) {
        op.recv = buffers.recv[k];
        if (run_begin(&r[k], ending->member[k]->now, &op))
            return false;
    }
    for (run_poll(&r[0]); idle < 500; idle++) { /* rank 0 never looks again */
        bool moved = cluster_turn(c);
        enum run_state st = run_poll(&r[1]);

        if (st >= RUN_DONE)
            return false;
        if (moved || st == RUN_MOVED)
            idle = 0;
    }
    return true;
}

/* While its sender waits; the next group begins with credit of its own. */
static void group_that_ends_leaves_nothing(void **state)
{
    struct cluster *c = cluster_new(2, 2, two, 13);
    struct commd_context *ctx[] = {&c->ctx, &c->ctx};

    buffers_new(2, 0, BYTES);
    for (unsigned i = 0; i < 5; i++) {
        struct run r[2] = {0};

        ending = cluster_group_new(c, 0x600 + i, two, 2, ctx, -1);
        assert_true(begin_and_stop(c, r));
        for (unsigned k = 0; k < 2; k++)
            run_abandon(&r[k]);
        cluster_group_free(c, ending);
        for (unsigned turns = 0; turns < 1000; turns++)
            cluster_turn(c);
        for (unsigned n = 0; n < 2; n++) {
            assert_true(TAILQ_EMPTY(&c->node[n].engine->graveyard));
            assert_int_equal(c->node[n].engine->pending.n, 0);
            assert_int_equal(c->node[n].engine->nboards, 1);
        }
    }
    buffers_free();
    run_stopped(c, 0, BYTES, 1);
    cluster_free(c);
}

/* ---- lies ------------------------------------------------------------------------------------ */

static void sent(void *arg, int st)
{
}

static void forge(struct cluster *c, const struct wire_hdr *h)
{
    struct fabric *f = c->node[0].fabric;

    assert_true(f->ops->send(f, 1, h, sizeof *h, NULL, 0, sent, NULL) >= 0);
    for (unsigned i = 0; i < 4; i++)
        c->node[1].fabric->ops->progress(c->node[1].fabric);
    f->ops->progress(f);
}

static struct wire_hdr lie;
static unsigned lied;

static void tell_lie(struct cluster *c)
{
    if (lied++ == 1)
        forge(c, &lie);
}

/* In the middle of a broadcast by node 1 node 0 says something: does the group live on? */
static bool survives(uint32_t op, uint16_t node, uint32_t passed)
{
    struct cluster *c = cluster_new(2, 2, two, 15);
    struct commd_op ops[2];
    enum run_state st[2] = {0};
    bool ok;

    lie = (struct wire_hdr){
        .group = c->main->id, .op = op, .step = WIRE_PASSED, .move = node, .passed = passed};
    lied = 0;
    buffers_new(2, 0, BYTES / 2);
    ops_of(0, ops);
    c->stopped = 1 << 0;
    c->at_rest = tell_lie;
    ok = cluster_run(c, ops, st, NULL) && st[0] == RUN_DONE && st[1] == RUN_DONE;
    assert_true(lied > 1);
    assert_int_equal(c->board_errors, !ok);
    assert_int_equal(c->peers_down, 0);
    if (!ok)
        assert_string_equal(c->last_error,
                            "another node's engine says that it has got what was not sent");
    buffers_free();
    cluster_free(c);
    return ok;
}

static void what_was_not_sent_was_not_passed(void **state)
{
    assert_true(survives(0, 0, 1));           /* less than it has said */
    assert_true(survives(UINT32_MAX, 0, 99)); /* too late */
    assert_false(survives(0, 0, 80));
    assert_false(survives(1, 0, 1));
    assert_false(survives(0, 1, 1)); /* in the name of another node */
    assert_false(survives(0, 77, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_receiver_slows_its_sender_down),
        cmocka_unit_test(over_three_nodes),
        cmocka_unit_test(several_ranks_on_a_node),
        cmocka_unit_test(operations_follow_each_other),
        cmocka_unit_test(over_a_bad_network),
        cmocka_unit_test(other_groups_go_on),
        cmocka_unit_test(first_operation_sends_nothing_ahead),
        cmocka_unit_test(group_that_ends_leaves_nothing),
        cmocka_unit_test(what_was_not_sent_was_not_passed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
