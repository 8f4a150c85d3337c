/* test_early.c - over several nodes, who only sends goes on before the others have it
 * (client/lib/coll/early.c). Random programs of such operations: test_posts.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/lib/coll/early.h"
#include "tests/lib/cluster.h"

enum { TURNS = 2000, LARGE = 8 << 20, MEDIUM = 512 << 10 };

/* Two ranks, on a node each. */
static struct cluster *pair_new(void)
{
    static const uint16_t placement[] = {0, 1};

    return cluster_new(2, 2, placement, 7);
}

static struct commd_op op_of(int coll, int root, void *buf, size_t count)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = coll,
                             .dtype = COMMD_U8,
                             .redop = COMMD_SUM,
                             .root = root,
                             .send = buf,
                             .recv = buf,
                             .count = count};
}

static void begin(struct cluster *c, unsigned k, struct commd_op op, struct run *r)
{
    memset(r, 0, sizeof *r);
    assert_int_equal(run_begin(r, c->group[k]->now, &op), 0);
}

static void engines(struct cluster *c)
{
    for (unsigned i = 0; i < TURNS; i++)
        cluster_turn(c);
}

/* As far as it comes while nobody else moves but engines. */
static enum run_state advance(struct cluster *c, struct run *r)
{
    enum run_state st = RUN_WAIT;

    for (unsigned i = 0; i < TURNS && st < RUN_DONE; i++) {
        st = run_poll(r);
        cluster_turn(c);
    }
    return st;
}

static void ends(struct cluster *c, struct run *r)
{
    assert_int_equal(advance(c, r), RUN_DONE);
    run_end(r, RUN_DONE);
}

static void all_end(struct cluster *c, struct run *r)
{
    for (unsigned i = 0; i < TURNS; i++) {
        cluster_turn(c);
        for (unsigned k = 0; k < c->world; k++)
            run_poll(&r[k]);
    }
    for (unsigned k = 0; k < c->world; k++)
        ends(c, &r[k]);
}

static void fails(struct cluster *c, struct run *r, const char *says)
{
    assert_int_equal(advance(c, r), RUN_FAILED);
    assert_int_equal(r->err.code, COMMD_E_MISMATCH);
    if (!strstr(r->err.message, says))
        fail_msg("%s", r->err.message);
    run_end(r, RUN_FAILED);
}

/* Rank 0 has ended one that rank 1 has not begun. The next one ends when rank 1 has the first. */
static void one_operation_ahead(void **state)
{
    uint8_t first = 5, second = 6, got[2] = {0};
    struct cluster *c = pair_new();
    struct run r[2];

    begin(c, 0, op_of(COMMD_BROADCAST, 0, &first, 1), &r[0]);
    ends(c, &r[0]);
    assert_int_equal(board_rank_ended(c->node[0].ctl, 0), 1);
    assert_int_equal(board_rank_ops(c->node[0].ctl, 0), 0); /* it may still be lost */
    begin(c, 0, op_of(COMMD_BROADCAST, 0, &second, 1), &r[0]);
    assert_int_equal(advance(c, &r[0]), RUN_WAIT);
    begin(c, 1, op_of(COMMD_BROADCAST, 0, &got[0], 1), &r[1]);
    ends(c, &r[1]);
    engines(c);
    assert_int_equal(board_rank_ops(c->node[0].ctl, 0), 1); /* and this rank has not looked yet */
    ends(c, &r[0]);
    begin(c, 1, op_of(COMMD_BROADCAST, 0, &got[1], 1), &r[1]);
    ends(c, &r[1]);
    assert_int_equal(got[0] * 10 + got[1], 56);
    cluster_free(c);
}

/* Who is on the root's node takes a small one from there: when it has come, and if both mean it. */
static void from_the_same_node(void **state)
{
    static const uint16_t placement[] = {0, 0, 0, 1};
    struct cluster *c = cluster_new(4, 2, placement, 7);
    uint8_t data[4][100] = {{5}};
    struct run r[4];

    data[0][99] = 6;
    begin(c, 1, op_of(COMMD_BROADCAST, 0, data[1], 100), &r[1]);
    begin(c, 2, op_of(COMMD_BROADCAST, 0, data[2], 99), &r[2]);
    assert_int_equal(advance(c, &r[1]), RUN_WAIT);
    begin(c, 0, op_of(COMMD_BROADCAST, 0, data[0], 100), &r[0]);
    ends(c, &r[0]);
    ends(c, &r[1]);
    assert_memory_equal(data[0], data[1], 100);
    assert_int_equal(board_rank_ops(c->node[0].ctl, 1), 0);
    assert_int_equal(advance(c, &r[2]), RUN_WAIT);
    begin(c, 3, op_of(COMMD_BROADCAST, 0, data[3], 100), &r[3]);
    fails(c, &r[3], "of 99 elements");
    fails(c, &r[2], "of 99 elements");
    cluster_free(c);
}

/* Of those that need nothing back each goes on; with large data when all mean the same. */
static void who_goes_on(void **state)
{
    static const struct {
        int coll;
        unsigned sends;
    } cases[] = {{COMMD_BROADCAST, 0}, {COMMD_SCATTER, 0}, {COMMD_REDUCE, 1}, {COMMD_GATHER, 1}};
    uint8_t *send = calloc(2, MEDIUM), *recv = calloc(2, MEDIUM);

    for (unsigned i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        unsigned from = cases[i / 2].sends;
        int coll = cases[i / 2].coll;
        bool reduces = coll == COMMD_BROADCAST || coll == COMMD_REDUCE;
        size_t count = i % 2 ? MEDIUM : 1;
        struct cluster *c = pair_new();
        struct commd_op op = op_of(coll, 0, send, count);
        struct run r[2];

        begin(c, from, op, &r[from]);
        if (count > 1 || !reduces) {
            assert_int_equal(advance(c, &r[from]), RUN_WAIT);
            op.recv = recv;
            begin(c, !from, op, &r[!from]);
            run_poll(&r[!from]); /* it says what it means, and takes nothing */
        }
        ends(c, &r[from]);
        if (count == 1 && reduces) {
            op.recv = recv;
            begin(c, !from, op, &r[!from]);
        }
        ends(c, &r[!from]);
        cluster_free(c);
    }
    free(send);
    free(recv);
}

/* What differed is an error of the one that met it, and of the next one of who had gone on, which
 * may have been announced, in several steps or as one that others take part in. Then all is well.
 */
static void a_mismatch_is_told_next(void **state)
{
    static const int next[] = {COMMD_BARRIER, COMMD_ALL_REDUCE, COMMD_BROADCAST, COMMD_GATHER};
    uint8_t *buf[2] = {calloc(2, LARGE), calloc(2, LARGE)};

    for (unsigned i = 0; i < 4 * ARRAY_LEN(next); i++) {
        size_t count = i % 4 < 2 ? 1 : LARGE;
        struct commd_op op = op_of(next[i / 4], 0, NULL, count);
        struct cluster *c = pair_new();
        struct run r[2], late;

        begin(c, 0, op_of(COMMD_BROADCAST, 0, buf[0], 3), &r[0]);
        ends(c, &r[0]);
        op.send = op.recv = buf[0];
        if (i % 2) { /* before anybody knows */
            begin(c, 0, op, &late);
            assert_int_equal(advance(c, &late), RUN_WAIT);
        }
        begin(c, 1, op_of(COMMD_BROADCAST, 0, buf[1], 4), &r[1]);
        fails(c, &r[1], "rank 0 (node node0) called broadcast u8 of 3 elements");
        if (i % 2 == 0)
            begin(c, 0, op, &late);
        assert_int_equal(advance(c, &late), RUN_WAIT);
        op.send = op.recv = buf[1];
        begin(c, 1, op, &r[1]);
        fails(c, &r[1], "ranks had called different operations before");
        fails(c, &late, "called broadcast u8 of 4 elements");
        assert_non_null(strstr(late.err.message, "called broadcast u8 of 3 elements"));
        assert_non_null(strstr(late.err.message, "operation 2"));
        for (unsigned k = 0; k < 2; k++) {
            memset(buf[k], 9, count);
            begin(c, k, op_of(COMMD_ALL_REDUCE, 0, buf[k], count), &r[k]);
        }
        all_end(c, r);
        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(buf[k][count - 1], 18);
        cluster_free(c);
    }
    free(buf[0]);
    free(buf[1]);
}

/* The engine skips the steps of what it refuses, just when the next operation looks for its own. */
static void skipped_steps_are_no_result(void **state)
{
    struct cluster *c = pair_new();
    uint8_t data[2] = {1, 2};
    struct run r[2], next;

    begin(c, 0, op_of(COMMD_BROADCAST, 0, &data[0], 1), &r[0]);
    ends(c, &r[0]);
    begin(c, 0, op_of(COMMD_BARRIER, 0, NULL, 0), &next);
    assert_int_equal(advance(c, &next), RUN_WAIT);
    begin(c, 1, op_of(COMMD_BARRIER, 0, NULL, 0), &r[1]);
    fails(c, &r[1], "called broadcast");
    engines(c);
    assert_int_equal(paths[next.plan.path].advance(&next), RUN_WAIT);
    assert_int_equal(advance(c, &next), RUN_WAIT); /* it is declined, and waits for rank 1 */
    assert_true(next.late);
    run_abandon(&next);
    cluster_free(c);
}

/* Rank 0 has sent 3 bytes and gone on; rank 1, which asked for 4, has failed. */
static struct cluster *pair_that_differs(uint8_t data[2][4])
{
    struct cluster *c = pair_new();
    struct run r[2];

    begin(c, 0, op_of(COMMD_BROADCAST, 0, data[0], 3), &r[0]);
    ends(c, &r[0]);
    begin(c, 1, op_of(COMMD_BROADCAST, 0, data[1], 4), &r[1]);
    fails(c, &r[1], "called broadcast u8 of 3 elements");
    return c;
}

/* The next one fails on all, also on a rank that only sends in it: else ranks that are the root by
 * turns would fail for ever, one after the other. */
static void who_has_failed_meets_all_in_the_next(void **state)
{
    uint8_t data[2][4] = {{1}, {2}};
    struct cluster *c = pair_that_differs(data);
    struct run r[2];

    begin(c, 1, op_of(COMMD_BROADCAST, 1, data[1], 1), &r[1]);
    assert_int_equal(advance(c, &r[1]), RUN_WAIT);
    begin(c, 0, op_of(COMMD_BROADCAST, 1, data[0], 1), &r[0]);
    fails(c, &r[0], "called broadcast u8 of 4 elements");
    fails(c, &r[1], "ranks had called different operations before");
    begin(c, 0, op_of(COMMD_BROADCAST, 1, data[0], 1), &r[0]);
    begin(c, 1, op_of(COMMD_BROADCAST, 1, data[1], 1), &r[1]);
    all_end(c, r);
    begin(c, 0, op_of(COMMD_BROADCAST, 0, data[0], 1), &r[0]);
    ends(c, &r[0]);
    assert_int_equal(data[0][0], 2);
    cluster_free(c);
}

/* It may fail by something else before all have come. Then too it is the one that was called. */
static void what_fails_next_keeps_its_name(void **state)
{
    uint8_t data[2][4] = {{1}, {2}};
    struct cluster *c = pair_that_differs(data);
    struct run r[2];

    begin(c, 0, op_of(COMMD_ALL_REDUCE, 0, data[0], 1), &r[0]);
    assert_int_equal(advance(c, &r[0]), RUN_WAIT);
    board_mark_gone(c->node[0].ctl, 1, 1, CAUSE_RANK_LOST, 4711);
    assert_true(run_hopeless(&r[0]));
    assert_int_equal(r[0].err.code, COMMD_E_RANK_LOST);
    assert_string_equal(r[0].err.op, "all_reduce");
    assert_non_null(strstr(r[0].err.message, "operation 2 (all_reduce)"));
    run_abandon(&r[0]);
    cluster_free(c);
}

/* Whoever had gone on learns from the others, too. */
static void two_went_on(void **state)
{
    static const uint16_t placement[] = {0, 1, 1};
    struct cluster *c = cluster_new(3, 2, placement, 7);
    uint8_t data[3] = {1, 2, 3};
    struct run r[3];

    begin(c, 0, op_of(COMMD_BROADCAST, 0, &data[0], 1), &r[0]);
    ends(c, &r[0]);
    begin(c, 1, op_of(COMMD_BROADCAST, 1, &data[1], 1), &r[1]);
    ends(c, &r[1]);
    begin(c, 2, op_of(COMMD_BROADCAST, 0, &data[2], 1), &r[2]);
    fails(c, &r[2], "called broadcast");
    for (unsigned k = 0; k < 3; k++)
        begin(c, k, op_of(COMMD_BARRIER, 0, NULL, 0), &r[k]);
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(advance(c, &r[k]), k < 2 ? RUN_WAIT : RUN_FAILED);
    fails(c, &r[0], "from rank 1");
    fails(c, &r[1], "from rank 1");
    assert_int_equal(r[2].err.code, COMMD_E_MISMATCH);
    run_end(&r[2], RUN_FAILED);
    for (unsigned k = 0; k < 3; k++)
        begin(c, k, op_of(COMMD_BARRIER, 0, NULL, 0), &r[k]);
    all_end(c, r);
    cluster_free(c);
}

/* It takes with it what has not come to the others, and nobody waits for that. */
static void who_has_gone_on_dies(void **state)
{
    struct cluster *c = pair_new();
    struct run r[2];
    uint8_t data[2] = {1, 2};

    begin(c, 0, op_of(COMMD_BROADCAST, 0, &data[0], 1), &r[0]);
    ends(c, &r[0]);
    board_mark_gone(c->node[1].ctl, 0, board_rank_ops(c->node[0].ctl, 0), CAUSE_RANK_LOST, 4711);
    begin(c, 1, op_of(COMMD_BROADCAST, 0, &data[1], 1), &r[1]);
    assert_true(run_hopeless(&r[1]));
    assert_int_equal(r[1].err.code, COMMD_E_RANK_LOST);
    run_abandon(&r[1]);
    cluster_free(c);
}

/* That it has come is known, or that it never will be taken. */
static void who_leaves_waits_as_long_as_it_helps(void **state)
{
    for (unsigned dead = 0; dead < 2; dead++) {
        struct cluster *c = pair_new();
        struct membership *g = c->group[0]->now;
        uint8_t data[2] = {1, 2};
        struct run r[2];

        begin(c, 0, op_of(COMMD_BROADCAST, 0, &data[0], 1), &r[0]);
        ends(c, &r[0]);
        if (dead) {
            board_mark_gone(c->node[0].ctl, 1, 0, CAUSE_RANK_LOST, 4711);
        } else {
            begin(c, 1, op_of(COMMD_BROADCAST, 0, &data[1], 1), &r[1]);
            ends(c, &r[1]);
            engines(c);
        }
        early_wait(g);
        assert_int_equal(atomic_load(&g->board.members[0].ops), !dead);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_operation_ahead),
        cmocka_unit_test(from_the_same_node),
        cmocka_unit_test(who_goes_on),
        cmocka_unit_test(a_mismatch_is_told_next),
        cmocka_unit_test(skipped_steps_are_no_result),
        cmocka_unit_test(who_has_failed_meets_all_in_the_next),
        cmocka_unit_test(what_fails_next_keeps_its_name),
        cmocka_unit_test(two_went_on),
        cmocka_unit_test(who_has_gone_on_dies),
        cmocka_unit_test(who_leaves_waits_as_long_as_it_helps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
