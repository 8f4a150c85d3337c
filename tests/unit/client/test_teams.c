/* test_teams.c - small operations in two levels: any number of ranks and any size of team give the
 * right bits; whoever means something else, all learn of the same two; who dies is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"

enum { RANKS = 21, COUNT = 600 };

static uint16_t one_node_of[RANKS]; /* all on node 0 */
static float f[RANKS][COUNT];
static int64_t n[RANKS][COUNT];

static struct cluster *cluster_of(unsigned world, unsigned team, uint64_t seed)
{
    struct cluster *c = cluster_new(world, 1, one_node_of, seed);

    for (unsigned k = 0; k < world; k++) {
        c->group[k]->now->geom.team = team;
        c->group[k]->now->geom.cores = world;
    }
    return c;
}

static void run_all(struct cluster *c, const struct commd_op *ops)
{
    enum run_state st[RANKS];

    assert_true(cluster_run(c, ops, st, NULL));
    for (unsigned k = 0; k < c->world; k++)
        assert_int_equal(st[k], RUN_DONE);
}

static void all_of(struct commd_op *ops, const struct commd_op *op)
{
    for (unsigned k = 0; k < RANKS; k++) {
        ops[k] = *op;
        ops[k].send = ops[k].recv = op->dtype == COMMD_F32 ? (void *)f[k] : (void *)n[k];
    }
}

/* In the plan's order: ranks of a team, then teams. */
static float sum_of(unsigned world, unsigned team)
{
    float total = 0;

    for (unsigned t = 0; t < world; t += team) {
        float part = f[t][0];

        for (unsigned k = t + 1; k < MIN(t + team, world); k++)
            part += f[k][0];
        total = t ? total + part : part;
    }
    return total;
}

static void any_team_gives_the_right_bits(void **state)
{
    static const size_t counts[] = {0, 1, 5, 7, 250};

    for (unsigned world = 3; world <= RANKS; world += 3)
        for (unsigned team = 2; team <= world; team++) {
            struct cluster *c = cluster_of(world, team, world * 100 + team);
            struct commd_op op = {.size = sizeof op, .coll = COMMD_ALL_REDUCE}, ops[RANKS];
            struct op_desc d = {.seq = 1, .coll = COLL_ALL_REDUCE, .dtype = DTYPE_F32};
            struct plan p;

            assert_true(plan_make(&d, &c->group[0]->now->geom, NULL, &p));
            assert_int_equal(p.team, team);
            for (unsigned i = 0; i < 40; i++) { /* more than there are slots */
                size_t count = op.count = counts[i % ARRAY_LEN(counts)];
                float want;

                op.dtype = COMMD_F32;
                all_of(ops, &op);
                for (unsigned k = 0; k < world; k++)
                    for (size_t j = 0; j < count; j++)
                        f[k][j] = 1.0f / (float)(3 + cluster_rand(c, 1000) * (j == 0));
                want = sum_of(world, team);
                run_all(c, ops);
                for (unsigned k = 0; count && k < world; k++) {
                    assert_memory_equal(&f[k][0], &want, sizeof want);
                    assert_memory_equal(f[k], f[0], count * sizeof f[0][0]);
                }
                op.dtype = COMMD_I64;
                op.redop = i % 2 ? COMMD_SUM : COMMD_MAX;
                all_of(ops, &op);
                for (unsigned k = 0; k < world; k++)
                    for (size_t j = 0; j < count; j++)
                        n[k][j] = (int64_t)(k + j);
                run_all(c, ops);
                for (unsigned k = 0; k < world; k++)
                    for (size_t j = 0; j < count; j++)
                        assert_true(n[k][j] == (i % 2
                                                    ? (int64_t)(world * j + world * (world - 1) / 2)
                                                    : (int64_t)(world - 1 + j)));
                op.redop = COMMD_SUM;
                if (i % 8 == 0) {
                    struct commd_op barrier = {.size = sizeof op, .coll = COMMD_BARRIER};

                    all_of(ops, &barrier);
                    run_all(c, ops);
                }
            }
            cluster_free(c);
        }
}

/* Half floats are rounded once on a node: not with what a team has together in between. */
static void half_floats_have_no_teams(void **state)
{
    struct cluster *c = cluster_of(6, 3, 1);
    struct op_desc d = {.seq = 1, .count = 4, .coll = COLL_ALL_REDUCE};
    struct plan p;

    for (d.dtype = 0; d.dtype < DTYPE_COUNT; d.dtype++)
        if (plan_make(&d, &c->group[0]->now->geom, NULL, &p))
            assert_int_equal(p.team, d.dtype == DTYPE_F16 || d.dtype == DTYPE_BF16 ? 0 : 3);
    cluster_free(c);
}

/* Any rank, leader or not, calls anything else: small in teams as well, small without, or large. */
static void whoever_means_something_else_is_named(void **state)
{
    enum { WORLD = 7, TEAM = 3 };
    static float big[WORLD][100000];
    static const struct commd_op others[] = {
        {.size = sizeof *others, .coll = COMMD_BARRIER},
        {.size = sizeof *others, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32, .count = 5},
        {.size = sizeof *others, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_BF16, .count = 4},
        {.size = sizeof *others, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32, .count = 100000},
        {.size = sizeof *others, .coll = COMMD_REDUCE, .dtype = COMMD_F32, .count = 90000},
        {.size = sizeof *others, .coll = COMMD_ALL_GATHER, .dtype = COMMD_F32, .count = 10},
    };
    const struct commd_op op = {
        .size = sizeof op, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32, .count = 4};

    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct cluster *c = cluster_of(WORLD, TEAM, seed);

        for (unsigned i = 0; i < ARRAY_LEN(others) * WORLD; i++) {
            unsigned odd = i % WORLD;
            struct commd_error err[WORLD];
            enum run_state st[WORLD];
            struct commd_op ops[RANKS];
            char want[64];

            all_of(ops, &op);
            ops[odd] = others[i / WORLD];
            ops[odd].send = ops[odd].recv = big[odd];
            if (ops[odd].coll == COMMD_ALL_GATHER)
                ops[odd].send = big[(odd + 1) % WORLD];
            assert_true(cluster_run(c, ops, st, err));
            snprintf(want, sizeof want, "rank %u (node node0) called", odd);
            for (unsigned k = 0; k < WORLD; k++) {
                assert_int_equal(err[k].code, COMMD_E_MISMATCH);
                assert_non_null(strstr(err[k].message, want));
                assert_string_equal(err[k].message, err[0].message);
            }
            for (unsigned k = 0; k < WORLD; k++)
                f[k][0] = (float)k;
            all_of(ops, &op);
            run_all(c, ops);
            assert_true(f[WORLD - 1][0] == WORLD * (WORLD - 1) / 2);
        }
        cluster_free(c);
    }
}

static void dead_rank_of_any_team_is_named(void **state)
{
    for (unsigned dead = 0; dead < 6; dead++) {
        struct cluster *c = cluster_of(6, 2, dead + 1);
        const struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
        struct run r[6] = {0};
        unsigned failed = 0;

        for (unsigned k = 0; k < 6; k++)
            if (k != dead)
                assert_int_equal(run_begin(&r[k], c->group[k]->now, &barrier), 0);
        for (unsigned i = 0; i < 100; i++)
            if (i % 6 != dead)
                assert_true(run_poll(&r[i % 6]) < RUN_DONE);
        board_mark_gone(c->node[0].ctl, dead, 0, CAUSE_RANK_LOST, 4711);
        for (unsigned k = 0; k < 6; k++)
            if (k != dead && run_hopeless(&r[k])) {
                assert_int_equal(r[k].err.code, COMMD_E_RANK_LOST);
                assert_int_equal(r[k].err.rank, (int)dead);
                failed++;
            }
        assert_int_equal(failed, 5);
        cluster_free(c);
    }
}

/* Who finds a reason to give up looks once more: what it waits for may have come meanwhile. */
static void total_that_is_there_counts(void **state)
{
    struct cluster *c = cluster_of(4, 2, 4);
    const struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
    static const unsigned order[] = {3, 1, 2, 0, 2};
    struct run r[4] = {0};

    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(run_begin(&r[k], c->group[k]->now, &barrier), 0);
    for (unsigned i = 0; i < ARRAY_LEN(order); i++)
        assert_int_equal(run_poll(&r[order[i]]) == RUN_DONE, i >= 3);
    board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 0, 5, "node0", "rank 0 aborted the group");
    assert_true(run_hopeless(&r[3]));
    assert_int_equal(run_last_look(&r[3]), RUN_DONE);
    cluster_free(c);
}

/* A leader that says what is not so: its group breaks, and nothing else happens. */
static void liar_ends_the_group(void **state)
{
    struct cluster *c = cluster_of(4, 2, 3);
    const struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
    struct board *b = &c->group[0]->now->board;
    struct run r[4] = {0};
    enum run_state st = RUN_WAIT;

    for (unsigned k = 0; k < 4; k++) {
        assert_int_equal(run_begin(&r[k], c->group[k]->now, &barrier), 0);
        run_poll(&r[k]);
    }
    board_slot(b, 2, BOARD_FIRST_STEP + 2)->kind = BOARD_TEAM_BAD;
    atomic_store(&board_slot(b, 2, BOARD_FIRST_STEP + 2)->seq, board_mark(BOARD_FIRST_STEP + 2));
    for (unsigned i = 0; i < 100 && st < RUN_DONE; i++)
        st = run_poll(&r[3]);
    assert_int_equal(st, RUN_FAILED);
    assert_int_equal(r[3].err.code, COMMD_E_INTERNAL);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_team_gives_the_right_bits),
        cmocka_unit_test(half_floats_have_no_teams),
        cmocka_unit_test(whoever_means_something_else_is_named),
        cmocka_unit_test(dead_rank_of_any_team_is_named),
        cmocka_unit_test(total_that_is_there_counts),
        cmocka_unit_test(liar_ends_the_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
