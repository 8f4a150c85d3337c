/* test_collectives.c - collectives over boards, engines and the loop fabric in one process:
 * random programs against a serial reference, bit for bit; mismatches; members that go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/eventfd.h>
#include <sys/socket.h>

#include "client/lib/api/check.h"
#include "shm/reduce/reduce.h"
#include "tests/lib/cluster.h"
#include "tests/lib/cores.h"
#include "transport/engine/engine_internal.h"

/* Values whose sums and products are exact in every type and order. */
static void put_value(unsigned dtype, void *buf, size_t i, int v)
{
    switch ((enum dtype)dtype) {
    case DTYPE_I8:
        ((int8_t *)buf)[i] = (int8_t)v;
        return;
    case DTYPE_U8:
        ((uint8_t *)buf)[i] = (uint8_t)v;
        return;
    case DTYPE_I16:
        ((int16_t *)buf)[i] = (int16_t)v;
        return;
    case DTYPE_U16:
        ((uint16_t *)buf)[i] = (uint16_t)v;
        return;
    case DTYPE_I32:
        ((int32_t *)buf)[i] = v;
        return;
    case DTYPE_U32:
        ((uint32_t *)buf)[i] = (uint32_t)v;
        return;
    case DTYPE_I64:
        ((int64_t *)buf)[i] = v;
        return;
    case DTYPE_U64:
        ((uint64_t *)buf)[i] = (uint64_t)v;
        return;
    case DTYPE_F16: { /* 1 = 0x3c00, 2 = 0x4000 */
        static const uint16_t f16[] = {0, 0x3c00, 0x4000};
        ((uint16_t *)buf)[i] = f16[v];
        return;
    }
    case DTYPE_BF16: {
        static const uint16_t bf16[] = {0, 0x3f80, 0x4000};
        ((uint16_t *)buf)[i] = bf16[v];
        return;
    }
    case DTYPE_F32:
        ((float *)buf)[i] = (float)v;
        return;
    case DTYPE_F64:
        ((double *)buf)[i] = v;
        return;
    case DTYPE_BOOL:
        ((uint8_t *)buf)[i] = v > 0;
        return;
    case DTYPE_COUNT:
        return;
    }
}

/* A collective with the data of all ranks. elems[i][j]: elements that i has for j. */
struct program {
    struct commd_op op;
    const struct coll_info *info;
    bool in_place, lists;
    size_t es;
    size_t elems[CLUSTER_MAX_RANKS][CLUSTER_MAX_RANKS];
    size_t rows[CLUSTER_MAX_RANKS][2][CLUSTER_MAX_RANKS]; /* as the API wants them */
    void *blocks[CLUSTER_MAX_RANKS][2][CLUSTER_MAX_RANKS];
    double scale[CLUSTER_MAX_RANKS];
    uint8_t *send[CLUSTER_MAX_RANKS], *recv[CLUSTER_MAX_RANKS], *want[CLUSTER_MAX_RANKS];
};

static size_t random_count(struct cluster *c)
{
    switch (cluster_rand(c, 6)) {
    case 0:
        return 0;
    case 1:
        return 1 + cluster_rand(c, 12);
    case 2:
        return 1 + cluster_rand(c, 3000);
    case 3:
        return 1 + cluster_rand(c, 70000);
    case 4: /* around the chunk */
        return PLAN_CHUNK / 4 - 3 + cluster_rand(c, 7);
    default:
        return 1 + cluster_rand(c, 600000);
    }
}

static void fill(struct cluster *c, unsigned dtype, uint8_t *buf, size_t n)
{
    size_t es = dtype_size(dtype), unit = MIN(n, (size_t)257);

    for (size_t i = 0; i < unit; i++)
        put_value(dtype, buf, i, 1 + (int)cluster_rand(c, 2));
    for (size_t i = unit; i < n; i += unit)
        memcpy(buf + i * es, buf, MIN(unit, n - i) * es);
}

static bool is_root(const struct program *p, unsigned k)
{
    return p->info->rooted && (unsigned)p->op.root == k;
}

static bool has(const struct program *p, bool send, unsigned k)
{
    return coll_at(send ? p->info->send : p->info->recv, is_root(p, k));
}

static bool many(const struct program *p, bool send)
{
    return coll_blocks(send ? p->info->send : p->info->recv);
}

/* Elements in block @j of rank @k's send or receive buffer, or in its only one. */
static size_t block_elems(const struct program *p, bool send, unsigned k, unsigned j)
{
    if (!many(p, send) && p->info->window == WINDOW_CELLS)
        j = (unsigned)p->op.root;
    else if (!many(p, send) && p->info->window == WINDOW_BLOCKS)
        j = k;
    return send ? p->elems[k][j] : p->elems[j][k];
}

/* Byte at which block @j begins, if they lie one after the other; j == world: bytes in all. */
static size_t block_at(const struct cluster *c, const struct program *p, bool send, unsigned k,
                       unsigned j)
{
    size_t n = 0;

    if (!has(p, send, k))
        return 0;
    if (!many(p, send))
        return j ? block_elems(p, send, k, 0) * p->es : 0;
    for (unsigned i = 0; i < j; i++)
        n += block_elems(p, send, k, i);
    return n * p->es;
}

static void reduce_all(struct cluster *c, struct program *p, uint8_t *want, unsigned to, size_t n)
{
    unsigned dtype = (unsigned)p->op.dtype, redop = (unsigned)p->op.redop;
    const void *src[CLUSTER_MAX_RANKS];
    uint8_t *scaled[CLUSTER_MAX_RANKS];

    for (unsigned j = 0; j < c->world; j++) {
        src[j] = p->send[j] + (many(p, true) ? block_at(c, p, true, j, to) : 0);
        scaled[j] = malloc(n * p->es + 1);
        if (redop == REDOP_PREMUL_SUM) {
            reduce_scale(dtype, scaled[j], src[j], p->scale[j], n);
            src[j] = scaled[j];
        }
    }
    reduce_n(dtype, redop, want, src, c->world, n);
    reduce_finish(dtype, redop, want, n, c->world);
    for (unsigned j = 0; j < c->world; j++)
        free(scaled[j]);
}

static void expect_rank(struct cluster *c, struct program *p, unsigned k)
{
    unsigned root = (unsigned)p->op.root;
    uint8_t *w = p->want[k];

    if (!has(p, false, k)) {
        return;
    } else if (p->info->reduces) {
        reduce_all(c, p, w, k, block_elems(p, false, k, 0));
    } else if (!many(p, false)) {
        memcpy(w, p->send[root] + (many(p, true) ? block_at(c, p, true, root, k) : 0),
               block_elems(p, false, k, 0) * p->es);
    } else {
        for (unsigned j = 0; j < c->world; j++)
            memcpy(w + block_at(c, p, false, k, j),
                   p->send[j] + (many(p, true) ? block_at(c, p, true, j, k) : 0),
                   block_elems(p, false, k, j) * p->es);
    }
}

static void choose_sizes(struct cluster *c, struct program *p)
{
    bool all_know = p->info->window == WINDOW_BLOCKS;
    size_t counts[CLUSTER_MAX_RANKS], max;

    p->op.count = random_count(c);
    if (p->info->window != WINDOW_VECTOR)
        p->op.count /= c->world;
    max = p->op.count;
    for (unsigned k = 0; k < c->world; k++)
        counts[k] = cluster_rand(c, 3) ? cluster_rand(c, (uint32_t)max + 1) : 0;
    for (unsigned i = 0; i < c->world; i++)
        for (unsigned j = 0; j < c->world; j++) {
            size_t n = p->op.count;

            if (p->info->counted && all_know)
                n = counts[many(p, true) ? j : i];
            else if (p->info->counted)
                n = cluster_rand(c, 3) ? cluster_rand(c, (uint32_t)max + 1) : 0;
            p->elems[i][j] = n;
        }
    if (p->info->counted)
        p->op.count = 4711; /* not used */
}

static void program_new(struct cluster *c, struct program *p)
{
    memset(p, 0, sizeof *p);
    p->op.size = sizeof p->op;
    p->op.coll = (int)cluster_rand(c, COLL_COUNT);
    p->info = &coll_table[p->op.coll];
    do {
        p->op.dtype = (int)cluster_rand(c, DTYPE_COUNT);
        p->op.redop = (int)cluster_rand(c, REDOP_COUNT);
    } while (!redop_defined((unsigned)p->op.dtype, (unsigned)p->op.redop));
    if (p->op.redop == REDOP_PROD && c->world > 6)
        p->op.redop = REDOP_MAX;
    p->es = dtype_size((unsigned)p->op.dtype);
    p->op.root = (int)cluster_rand(c, c->world);
    p->in_place = cluster_rand(c, 2);
    p->lists = !p->in_place && cluster_rand(c, 2);
    choose_sizes(c, p);
    for (unsigned k = 0; k < c->world; k++) {
        size_t send = block_at(c, p, true, k, c->world), recv = block_at(c, p, false, k, c->world);

        if (p->op.coll == COMMD_BROADCAST)
            send = recv;
        p->send[k] = malloc(send + 1);
        p->recv[k] = calloc(1, MAX(recv, send) + 1);
        p->want[k] = calloc(1, recv + 1);
        p->scale[k] = cluster_rand(c, 2) ? 2 : 1;
        fill(c, (unsigned)p->op.dtype, p->send[k], send / p->es);
    }
    for (unsigned k = 0; k < c->world; k++)
        if (p->info->window != WINDOW_NONE)
            expect_rank(c, p, k);
}

/* The blocks of a buffer, each in memory of its own, in no order. */
static void scatter_blocks(struct cluster *c, struct program *p, bool send, unsigned k)
{
    uint8_t *base = send ? p->send[k] : p->recv[k];

    for (unsigned j = 0; j < c->world; j++) {
        size_t len = block_elems(p, send, k, j) * p->es;

        p->blocks[k][!send][j] = malloc(len + 1);
        if (send)
            memcpy(p->blocks[k][!send][j], base + block_at(c, p, send, k, j), len);
    }
}

static void set_in_place(struct cluster *c, struct program *p, struct commd_op *op, unsigned k)
{
    bool both = has(p, true, k) && has(p, false, k);
    size_t send = block_at(c, p, true, k, c->world);

    if (!both || !p->in_place)
        return;
    if (many(p, true) == many(p, false)) {
        if (p->info->counted)
            return;
        memcpy(p->recv[k], p->send[k], send);
        op->send = p->recv[k];
    } else if (many(p, false)) {
        uint8_t *own = p->recv[k] + block_at(c, p, false, k, k);

        memcpy(own, p->send[k], send);
        op->send = own;
    } else {
        memcpy(p->recv[k], p->send[k], send);
        op->send = p->recv[k];
        op->recv = p->recv[k] + block_at(c, p, true, k, k);
    }
}

static void program_ops(struct cluster *c, struct program *p, struct commd_op *ops)
{
    for (unsigned k = 0; k < c->world; k++) {
        struct commd_op *op = &ops[k];

        *op = p->op;
        op->send = has(p, true, k) ? p->send[k] : NULL;
        op->recv = has(p, false, k) ? p->recv[k] : NULL;
        op->scale = p->scale[k];
        if (p->op.coll == COMMD_BROADCAST)
            memcpy(p->recv[k], p->send[k], block_at(c, p, false, k, c->world));
        set_in_place(c, p, op, k);
        if (p->info->counted) {
            for (unsigned j = 0; j < c->world; j++) {
                p->rows[k][0][j] = block_elems(p, true, k, j);
                p->rows[k][1][j] = block_elems(p, false, k, j);
            }
            op->send_counts = p->rows[k][0];
            op->recv_counts = p->rows[k][1];
        }
        if (p->lists && many(p, true) && has(p, true, k)) {
            scatter_blocks(c, p, true, k);
            op->send_blocks = (const void *const *)p->blocks[k][0];
            op->send = NULL;
        }
        if (p->lists && many(p, false) && has(p, false, k)) {
            scatter_blocks(c, p, false, k);
            op->recv_blocks = p->blocks[k][1];
            op->recv = NULL;
        }
        assert_int_equal(check_op(c->group[k]->now, op), 0);
    }
}

static bool rank_right(struct cluster *c, struct program *p, const struct commd_op *op, unsigned k)
{
    if (!has(p, false, k) || p->info->window == WINDOW_NONE)
        return true;
    if (!op->recv_blocks)
        return !memcmp(op->recv, p->want[k], block_at(c, p, false, k, c->world));
    for (unsigned j = 0; j < c->world; j++)
        if (memcmp(op->recv_blocks[j], p->want[k] + block_at(c, p, false, k, j),
                   block_elems(p, false, k, j) * p->es))
            return false;
    return true;
}

static void program_check(struct cluster *c, struct program *p, const struct commd_op *ops,
                          uint64_t seed, unsigned step)
{
    for (unsigned k = 0; k < c->world; k++)
        if (!rank_right(c, p, &ops[k], k))
            fail_msg("seed %llu op %u: %s %s %s of %zu (root %d, in place %d, lists %d): rank %u "
                     "of %u on %u nodes has wrong data",
                     (unsigned long long)seed, step, coll_name((unsigned)p->op.coll),
                     dtype_name((unsigned)p->op.dtype), redop_name((unsigned)p->op.redop),
                     p->op.count, p->op.root, p->in_place, p->lists, k, c->world, c->nnodes);
    for (unsigned k = 0; k < c->world; k++) {
        for (unsigned i = 0; i < 2; i++)
            for (unsigned j = 0; j < c->world; j++)
                free(p->blocks[k][i][j]);
        free(p->send[k]);
        free(p->recv[k]);
        free(p->want[k]);
    }
}

static struct cluster *random_cluster(uint64_t seed, unsigned max_nodes)
{
    struct cluster tmp = {.rng = seed * 0x9e3779b97f4a7c15ull + 7};
    uint16_t rank_node[CLUSTER_MAX_RANKS];
    unsigned world = 1 + cluster_rand(&tmp, 8), nodes;

    nodes = 1 + cluster_rand(&tmp, MIN(max_nodes, world));
    for (unsigned k = 0; k < world; k++)
        rank_node[k] = (uint16_t)(k < nodes ? k : cluster_rand(&tmp, nodes));
    for (unsigned k = 0; k < world; k++) { /* any placement, not only in rank order */
        unsigned j = cluster_rand(&tmp, world);
        uint16_t t = rank_node[k];
        rank_node[k] = rank_node[j];
        rank_node[j] = t;
    }
    return cluster_new(world, nodes, rank_node, seed);
}

static void run_seed(uint64_t seed, unsigned max_nodes, unsigned nops)
{
    struct cluster *c = random_cluster(seed, max_nodes);
    enum run_state st[CLUSTER_MAX_RANKS];
    struct commd_error err[CLUSTER_MAX_RANKS];
    struct commd_op ops[CLUSTER_MAX_RANKS];

    for (unsigned i = 0; i < nops; i++) {
        struct program p;

        program_new(c, &p);
        program_ops(c, &p, ops);
        if (!cluster_run(c, ops, st, err))
            fail_msg("seed %llu op %u: %s of %zu on %u ranks, %u nodes hangs (%s)",
                     (unsigned long long)seed, i, coll_name((unsigned)p.op.coll), p.op.count,
                     c->world, c->nnodes, c->last_error);
        for (unsigned k = 0; k < c->world; k++)
            if (st[k] != RUN_DONE)
                fail_msg("seed %llu op %u: %s", (unsigned long long)seed, i, err[k].message);
        program_check(c, &p, ops, seed, i);
    }
    assert_int_equal(c->board_errors, 0);
    assert_int_equal(c->peers_down, 0);
    cluster_free(c);
}

static void random_programs_one_node(void **state)
{
    for (uint64_t seed = 1; seed <= 60; seed++)
        run_seed(seed, 1, 20);
}

static void random_programs_many_nodes(void **state)
{
    for (uint64_t seed = 1; seed <= 100; seed++)
        run_seed(seed, 5, 20);
}

static void mismatch_ends_on_all_and_group_goes_on(void **state)
{
    static const uint16_t placements[][4] = {{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 2, 2}};
    static const unsigned nodes[] = {1, 2, 3};

    for (unsigned t = 0; t < 3; t++) {
        struct cluster *c = cluster_new(4, nodes[t], placements[t], 5 + t);
        enum run_state st[4];
        struct commd_error err[4];
        struct commd_op ops[4];
        static float buf[4][100000];

        for (unsigned round = 0; round < 12; round++) {
            unsigned odd = cluster_rand(c, 4);
            size_t count = round % 3 == 0 ? 2 : round % 3 == 1 ? 5000 : 100000;

            for (unsigned k = 0; k < 4; k++)
                ops[k] = (struct commd_op){.size = sizeof *ops,
                                           .coll = COMMD_ALL_REDUCE,
                                           .dtype = COMMD_F32,
                                           .send = buf[k],
                                           .recv = buf[k],
                                           .count = count};
            if (round % 4 == 3)
                ops[odd].coll = COMMD_BARRIER;
            else if (round % 4 == 2)
                ops[odd].redop = COMMD_MAX;
            else
                ops[odd].count = round % 2 ? 1 : 90000;
            assert_true(cluster_run(c, ops, st, err));
            for (unsigned k = 0; k < 4; k++) {
                char want[64];

                assert_int_equal(st[k], RUN_FAILED);
                assert_int_equal(err[k].code, COMMD_E_MISMATCH);
                snprintf(want, sizeof want, "rank %u (node node%u) called", odd,
                         placements[t][odd]);
                assert_non_null(strstr(err[k].message, want));
                assert_non_null(strstr(err[k].message, "the group can still be used"));
            }
            for (unsigned k = 0; k < 4; k++) {
                ops[k].coll = COMMD_ALL_REDUCE;
                ops[k].count = 3;
                ops[k].redop = COMMD_SUM;
                buf[k][0] = (float)k;
            }
            assert_true(cluster_run(c, ops, st, err));
            for (unsigned k = 0; k < 4; k++) {
                assert_int_equal(st[k], RUN_DONE);
                assert_true(buf[k][0] == 6);
            }
        }
        cluster_free(c);
    }
}

/* What one rank sends is not what the other expects: all ranks learn that, and which two. */
static void counts_that_do_not_fit_end_on_all(void **state)
{
    static const uint16_t placements[][3] = {{0, 0, 0}, {0, 1, 0}, {0, 1, 2}};
    static const int colls[] = {COMMD_ALL_TO_ALL_V, COMMD_GATHER_V, COMMD_SCATTER_V,
                                COMMD_ALL_GATHER_V};
    static int32_t send[3][3000], recv[3][3000];

    for (unsigned t = 0; t < 12; t++) {
        struct cluster *c = cluster_new(3, 1 + t % 3, placements[t % 3], 5 + t);
        int coll = colls[t / 3];
        enum run_state st[3];
        struct commd_error err[3];
        struct commd_op ops[3];
        size_t counts[3][2][3];

        for (unsigned wrong = 0; wrong < 2; wrong++) {
            for (unsigned k = 0; k < 3; k++) {
                for (unsigned j = 0; j < 3; j++)
                    counts[k][0][j] = counts[k][1][j] = 500;
                ops[k] = (struct commd_op){.size = sizeof *ops,
                                           .coll = coll,
                                           .dtype = COMMD_I32,
                                           .send = send[k],
                                           .recv = recv[k],
                                           .root = 1,
                                           .send_counts = counts[k][0],
                                           .recv_counts = counts[k][1]};
            }
            if (wrong == 0 && coll == COMMD_SCATTER_V)
                counts[2][1][0] = 493; /* of root 1 rank 2 expects 7 less than that sends */
            else if (wrong == 0 && coll == COMMD_GATHER_V)
                counts[2][0][0] = 507;
            else if (wrong == 0)
                counts[2][1][1] = 493;
            assert_true(cluster_run(c, ops, st, err));
            for (unsigned k = 0; k < 3; k++) {
                if (wrong) { /* the group goes on */
                    assert_int_equal(st[k], RUN_DONE);
                    continue;
                }
                assert_int_equal(st[k], RUN_FAILED);
                assert_int_equal(err[k].code, COMMD_E_MISMATCH);
                assert_non_null(strstr(err[k].message, "the group can still be used"));
                if (coll == COMMD_GATHER_V)
                    assert_non_null(strstr(err[k].message, "rank 2 sends rank 1 7 elements more"));
                else if (coll != COMMD_ALL_GATHER_V)
                    assert_non_null(strstr(err[k].message, "rank 1 sends rank 2 7 elements more"));
            }
        }
        assert_int_equal(c->board_errors, 0);
        cluster_free(c);
    }
}

static void gone_member_ends_later_operations_only(void **state)
{
    static const uint16_t placement[] = {0, 0, 1};
    struct cluster *c = cluster_new(3, 2, placement, 9);
    enum run_state st[3];
    struct commd_error err[3];
    struct commd_op ops[3];
    int v[3] = {1, 2, 3};

    for (unsigned k = 0; k < 3; k++)
        ops[k] = (struct commd_op){.size = sizeof *ops,
                                   .coll = COMMD_ALL_REDUCE,
                                   .dtype = COMMD_I32,
                                   .send = &v[k],
                                   .recv = &v[k],
                                   .count = 1};
    assert_true(cluster_run(c, ops, st, err));
    assert_int_equal(v[2], 6);
    /* rank 1 had completed operation 1 when it died; commd tells both boards */
    assert_int_equal(board_rank_ops(c->node[0].ctl, 1), 1);
    for (unsigned n = 0; n < 2; n++)
        board_mark_gone(c->node[n].ctl, 1, 1, CAUSE_RANK_LOST, 4711);
    /* operation 2: rank 1's own process is past caring; the others fail */
    assert_true(cluster_run(c, ops, st, err));
    for (unsigned k = 0; k < 3; k += 2) {
        assert_int_equal(st[k], RUN_FAILED);
        assert_int_equal(err[k].code, COMMD_E_RANK_LOST);
        assert_int_equal(err[k].rank, 1);
        assert_int_equal(err[k].pid, 4711);
        assert_string_equal(err[k].node, "node0");
        assert_string_equal(err[k].message,
                            "operation 2 (all_reduce) of group \"test\": rank 1 (pid 4711 on node "
                            "node0) died after completing 1 operations");
    }
    cluster_free(c);
}

static void broken_group_says_why(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 3);
    enum run_state st[2];
    struct commd_error err[2];
    struct commd_op ops[2] = {{.size = sizeof *ops, .coll = COMMD_BARRIER},
                              {.size = sizeof *ops, .coll = COMMD_BARRIER}};

    /* the first cause wins */
    board_mark_broken(c->node[0].ctl, CAUSE_NODE_LOST, -1, 0, "node1", "node node1 is gone");
    board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 1, 5, "node1", "aborted");
    c->node[1].engine = engine_free(c->node[1].engine);
    c->node[1].fabric->ops->free(c->node[1].fabric);
    c->node[1].fabric = NULL;
    assert_false(cluster_run(c, ops, st, err));
    assert_int_equal(st[0], RUN_FAILED);
    assert_int_equal(err[0].code, COMMD_E_NODE_LOST);
    assert_string_equal(err[0].message,
                        "operation 1 (barrier) of group \"test\": node node1 is gone");
    assert_string_equal(err[0].node, "node1");
    cluster_free(c);
}

/* After an abort the members' steps may have drifted apart; the abort is why, not a mismatch. */
static void aborted_group_reports_no_mismatch(void **state)
{
    static const uint16_t placement[] = {0, 0};
    struct cluster *c = cluster_new(2, 1, placement, 3);
    enum run_state st[2];
    struct commd_error err[2];
    float x[2] = {0};
    struct commd_op ops[2] = {{.size = sizeof *ops, .coll = COMMD_BARRIER},
                              {.size = sizeof *ops,
                               .coll = COMMD_ALL_REDUCE,
                               .dtype = COMMD_F32,
                               .send = x,
                               .recv = x,
                               .count = 2}};

    board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 1, 5, "node0", "rank 1 aborted the group");
    assert_true(cluster_run(c, ops, st, err));
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(st[k], RUN_FAILED);
        assert_int_equal(err[k].code, COMMD_E_ABORTED);
    }
    cluster_free(c);
}

/* A closed board whose operation can never end must not stay for ever: see CLOSING_MS. Here:
 * what is under way when the members leave cleanly is still carried out. */
static void closing_board_serves_the_other_node(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 11);
    static float buf[2][200000];
    struct commd_op op = {
        .size = sizeof op, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32, .count = 200000};
    struct run r[2] = {0};
    bool done[2] = {false, false};

    for (unsigned k = 0; k < 2; k++) {
        op.send = op.recv = buf[k];
        for (size_t i = 0; i < op.count; i++)
            buf[k][i] = 1;
        assert_int_equal(run_begin(&r[k], c->group[k]->now, &op), 0);
    }
    for (unsigned i = 0; i < 100000 && !(done[0] && done[1]); i++) {
        unsigned n = cluster_rand(c, 2);

        c->node[n].fabric->ops->progress(c->node[n].fabric);
        engine_poll(c->node[n].engine);
        if (!done[n] && run_poll(&r[n]) == RUN_DONE) {
            done[n] = true;
            engine_board_del(c->node[n].engine, 0x77, false); /* it leaves at once */
        }
    }
    assert_true(done[0] && done[1]);
    for (size_t i = 0; i < op.count; i++)
        assert_true(buf[0][i] == 2 && buf[1][i] == 2);
    cluster_free(c);
}

/* Since the last call. */
static unsigned rings(int bell)
{
    uint64_t n = 0;

    return read(bell, &n, sizeof n) == sizeof n ? (unsigned)n : 0;
}

static void look_and_sleep(struct engine *e)
{
    eboard_activate(eboard_find(e, 0x77));
    while (engine_arm(e))
        ;
}

/* A ring costs two system calls and a change of process: none before the engine can do something,
 * none for results that were read. */
static void engine_is_woken_when_it_has_work(void **state)
{
    static const uint16_t placement[] = {0, 0, 1};
    static const struct {
        enum commd_coll coll;
        size_t count;
        bool reduces; /* members do, and then tell the engine */
        bool early;   /* members of that node need nothing more */
    } cases[] = {{COMMD_ALL_REDUCE, 4, false, false},
                 {COMMD_ALL_REDUCE, 30000, true, false},
                 {COMMD_BROADCAST, 4, false, true},
                 {COMMD_BROADCAST, 30000, false, false},
                 {COMMD_BARRIER, 0, false, false}};
    struct cluster *c = cluster_new(3, 2, placement, 12);
    static float buf[3][30000];
    struct engine *e = c->node[0].engine;
    int bell = eventfd(0, EFD_NONBLOCK);

    c->group[0]->now->doorbell = c->group[1]->now->doorbell = bell;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct commd_op op = {
            .size = sizeof op, .coll = cases[i].coll, .dtype = COMMD_F32, .count = cases[i].count};
        bool reduces = cases[i].reduces;
        struct run r[3] = {0};

        for (unsigned k = 0; k < 3; k++) {
            op.send = op.recv = buf[k];
            assert_int_equal(run_begin(&r[k], c->group[k]->now, &op), 0);
        }
        look_and_sleep(e);
        assert_int_equal(run_poll(&r[0]) == RUN_DONE, cases[i].early);
        assert_int_equal(rings(bell), reduces ? 0 : 1);
        look_and_sleep(e);
        assert_int_equal(run_poll(&r[1]) == RUN_DONE, cases[i].early);
        assert_int_equal(rings(bell), 1);
        look_and_sleep(e);
        assert_int_equal(run_poll(&r[0]) == RUN_DONE, cases[i].early);
        assert_int_equal(rings(bell), reduces ? 1 : 0);
        assert_true(run_poll(&r[2]) < RUN_DONE);
        for (unsigned turns = 0; turns < 1000; turns++)
            cluster_turn(c);
        look_and_sleep(e);
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(run_poll(&r[k]), RUN_DONE);
            run_end(&r[k], RUN_DONE);
        }
        assert_int_equal(rings(bell), 0);
    }
    close(bell);
    cluster_free(c);
}

static uint32_t bell_before_sleep;

/* Asked before each sleep. */
static int stop_and_note_bell(void *bell)
{
    bell_before_sleep = atomic_load((_Atomic uint32_t *)bell);
    return 1;
}

/* What a short operation changes is told to sleepers late, when it has cost nothing, but before its
 * member sleeps, yields or returns. */
static void short_operations_wake_sleepers_at_last(void **state)
{
    static const uint16_t placement[] = {0, 0};
    struct cluster *c = cluster_new(2, 1, placement, 13);
    struct board_hdr *h = c->group[0]->now->board.hdr;
    int32_t x[2] = {1, 2};
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_REDUCE,
                          .dtype = COMMD_I32,
                          .send = &x[0],
                          .recv = &x[0],
                          .count = 1};
    struct run r = {0};
    uint32_t rung = bell_prepare(&h->bell, &h->sleepers); /* somebody sleeps */

    assert_int_equal(run_begin(&r, c->group[0]->now, &op), 0);
    assert_true(run_advance(&r) < RUN_DONE);
    assert_true(r.untold);
    assert_int_equal(atomic_load(&h->bell), rung);
    assert_true(run_poll(&r) < RUN_DONE);
    assert_false(r.untold);
    assert_int_not_equal(atomic_load(&h->bell), rung);
    /* the other finds all there, and is done at once */
    rung = atomic_load(&h->bell);
    assert_int_equal(commd_all_reduce(c->group[1], &x[1], &x[1], 1, COMMD_I32, COMMD_SUM), 0);
    assert_int_equal(x[1], 3);
    assert_int_not_equal(atomic_load(&h->bell), rung);
    assert_int_equal(run_poll(&r), RUN_DONE);
    run_end(&r, RUN_DONE);
    assert_int_equal(x[0], 3);
    /* one that waits tells before it sleeps */
    rung = atomic_load(&h->bell);
    bell_before_sleep = rung;
    commd_set_interrupt(c->group[0]->now->ctx, stop_and_note_bell, &h->bell);
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_INTERRUPTED);
    assert_int_not_equal(bell_before_sleep, rung);
    bell_cancel(&h->sleepers);
    cluster_free(c);
}

/* Hostile member: it can write anything into the board; the engine must stay whole. */
static void garbage_in_the_board_breaks_only_the_group(void **state)
{
    static const uint16_t placement[] = {0, 1};

    for (unsigned seed = 1; seed <= 200; seed++) {
        struct cluster *c = cluster_new(2, 2, placement, seed);
        struct board *b = &c->group[0]->now->board;
        struct board_slot *s = board_slot(b, 0, BOARD_FIRST_STEP);
        uint8_t *desc = (uint8_t *)&s->desc;

        for (size_t i = 0; i < sizeof s->desc; i++)
            desc[i] = (uint8_t)cluster_rand(c, 256);
        s->desc.coll = (uint8_t)cluster_rand(c, COLL_COUNT + 2);
        s->desc.digest =
            cluster_rand(c, 2) ? 0 : op_digest(board_counts(b, 0, BOARD_FIRST_STEP, 1), 2);
        s->most = cluster_rand(c, 2) ? 0 : cluster_rand(c, 100000);
        s->desc.dtype = (uint8_t)cluster_rand(c, 16);
        if (cluster_rand(c, 2))
            s->desc.count = cluster_rand(c, 100000);
        b->hdr->nlocal = b->hdr->world = b->hdr->depth = cluster_rand(c, UINT32_MAX);
        for (unsigned round = 0; round < 40; round++) {
            atomic_store(&s->seq, board_mark(BOARD_FIRST_STEP));
            for (uint32_t g = 0; g < 8; g++)
                atomic_store(&board_slot(b, 0, BOARD_FIRST_STEP + g)->seq,
                             board_mark(BOARD_FIRST_STEP + g) - cluster_rand(c, 2));
            atomic_store(&b->members[0].reduced, cluster_rand(c, UINT32_MAX));
            for (unsigned n = 0; n < 2; n++) {
                c->node[n].fabric->ops->progress(c->node[n].fabric);
                engine_poll(c->node[n].engine);
            }
        }
        cluster_free(c);
    }
}

/* A member says that it has almost 2^64 elements for another: no number of steps is that. The
 * engine says so, and breaks this group. */
static void counts_near_the_wrap_are_refused_by_the_engine(void **state)
{
    static const uint16_t placement[] = {0, 1};

    for (unsigned coll = 0; coll < COLL_COUNT; coll++)
        for (uint64_t less = 0; less < 3; less++) {
            struct cluster *c = cluster_new(2, 2, placement, 5);
            struct board *b = &c->group[0]->now->board;
            struct board_slot *s = board_slot(b, 0, BOARD_FIRST_STEP);
            const struct coll_info *info = &coll_table[coll];
            uint64_t huge = UINT64_MAX - less;
            struct board_cause why;

            if (info->window == WINDOW_NONE) {
                cluster_free(c);
                continue;
            }
            s->desc =
                (struct op_desc){.seq = 1, .coll = (uint8_t)coll, .dtype = DTYPE_U8, .count = huge};
            if (info->counted) {
                board_counts(b, 0, BOARD_FIRST_STEP, 0)[1] = huge;
                board_counts(b, 0, BOARD_FIRST_STEP, 1)[1] = huge;
                s->most = huge;
                if (info->window == WINDOW_CELLS)
                    s->desc.count = 0;
                else
                    s->desc.digest = op_digest(board_counts(b, 0, BOARD_FIRST_STEP, 1), 2);
            }
            s->fingerprint = op_fingerprint(&s->desc);
            atomic_store(&s->seq, board_mark(BOARD_FIRST_STEP));
            for (unsigned i = 0; i < 50; i++)
                cluster_turn(c);
            assert_int_equal(board_broken(b->hdr, &why), CAUSE_PROTOCOL);
            assert_non_null(strstr(why.text, "rank 0 announced an operation that cannot be"));
            assert_int_equal(c->board_errors, 1);
            cluster_free(c);
        }
}

/* The same in the arguments of a call: it says which, and the group goes on. */
static void counts_near_the_wrap_are_refused_by_the_call(void **state)
{
    static const uint16_t here[] = {0};
    static const size_t most[] = {SIZE_MAX,     SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 2,
                                  SIZE_MAX / 4, SIZE_MAX / 8, SIZE_MAX / 8 - 7, (size_t)1 << 59};
    struct cluster *c = cluster_new(1, 1, here, 6);
    static uint8_t from[64], to[64];
    struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};

    for (int coll = 0; coll < COLL_COUNT + 2; coll++) {
        bool mail = coll >= COLL_COUNT;
        struct commd_op op = {
            .size = sizeof op, .dtype = mail ? COMMD_U8 : COMMD_F64, .send = from, .recv = to};

        op.coll = mail ? (coll == COLL_COUNT ? COMMD_SEND : COMMD_RECV) : coll;
        if (op.coll == COMMD_BARRIER)
            continue;
        for (unsigned i = 0; i < ARRAY_LEN(most); i++) {
            if (mail && most[i] <= SIZE_MAX / 2)
                continue;
            op.count = most[i];
            op.send_counts = op.recv_counts = &most[i];
            assert_int_equal(commd_run(c->group[0], &op), COMMD_E_INVALID);
            if (!strstr(commd_last_error()->message, "count"))
                assert_non_null(
                    strstr(commd_last_error()->message, "more than an operation can be"));
        }
        assert_int_equal(commd_run(c->group[0], &barrier), 0);
    }
    cluster_free(c);
}

/* So is what could be addressed but not cut, also where the others' counts decide how. */
static void cells_that_cannot_be_cut_are_refused_by_the_call(void **state)
{
    static const uint16_t here[] = {0, 0};
    struct cluster *c = cluster_new(2, 1, here, 6);
    static uint8_t from[64];
    size_t count = (size_t)1 << 56;
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_GATHER_V,
                          .dtype = COMMD_F64,
                          .send = from,
                          .send_counts = &count,
                          .timeout_ms = 1};

    assert_int_equal(commd_run(c->group[1], &op), COMMD_E_INVALID);
    assert_non_null(strstr(commd_last_error()->message, "more than an operation can be"));
    assert_int_equal(atomic_load(&board_slot(&c->group[0]->now->board, 1, BOARD_FIRST_STEP)->seq),
                     0);
    cluster_free(c);
}

/* Whom a rank waits for with @count elements, rank 0 of @c; @engine: beside which core its engine
 * runs, if it is not 0; @gate: of a buffer that a GPU fills, or NULL. */
static enum wait_for waits_for_gate(struct cluster *c, size_t count, uint32_t engine,
                                    const struct gate *gate)
{
    static float buf[8 << 20];
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_REDUCE,
                          .dtype = COMMD_F32,
                          .send = buf,
                          .recv = buf,
                          .count = count};
    struct board_hdr *h = c->group[0]->now->board.hdr;
    struct run r = {0};
    enum wait_for who;

    assert_int_equal(run_begin(&r, c->group[0]->now, &op), 0);
    r.gate = gate;
    if (engine)
        atomic_store(&h->engine_core, engine);
    who = run_waits_for(&r);
    run_abandon(&r);
    return who;
}

static enum wait_for waits_for(struct cluster *c, size_t count, uint32_t engine)
{
    return waits_for_gate(c, count, engine, NULL);
}

/* Two ranks of one node, with the engine on their core: what the first one waits for before and
 * after the second one has announced its part of an all_reduce of @count f32. */
static void pair_waits_for(struct cluster *c, size_t count, enum wait_for *ret_before,
                           enum wait_for *ret_after)
{
    static float buf[2][1 << 20];
    struct run r[2] = {0};

    for (unsigned i = 0; i < 2; i++) {
        struct commd_op op = {.size = sizeof op,
                              .coll = COMMD_ALL_REDUCE,
                              .dtype = COMMD_F32,
                              .send = buf[i],
                              .recv = buf[i],
                              .count = count};

        assert_int_equal(run_begin(&r[i], c->group[i]->now, &op), 0);
    }
    atomic_store(&c->group[0]->now->board.hdr->engine_core, core_now());
    assert_true(run_poll(&r[0]) < RUN_DONE);
    *ret_before = run_waits_for(&r[0]);
    for (unsigned i = 0; i < 4; i++)
        assert_true(run_poll(&r[i % 2 == 0]) < RUN_DONE);
    *ret_after = run_waits_for(&r[0]);
    assert_int_equal(run_waits_for(&r[1]), *ret_after);
    run_abandon(&r[0]);
    run_abandon(&r[1]);
}

/* A rank that is alone with the engine on a core sleeps at once, however long the operation, beside
 * other ranks soon; but not before a GPU has filled the input. */
static void a_rank_leaves_its_core_to_the_engine_there(void **state)
{
    _Atomic uint32_t ready = 6;
    const struct gate gate = {.ready = &ready, .base = 5, .pieces = 2};
    static const uint16_t apart[] = {0, 1}, pair[] = {0, 0, 1}, here[] = {0, 0};
    struct cluster *c = cluster_new(2, 2, apart, 3);
    const cpu_set_t all = stay_on_core();
    const uint32_t core = core_now();

    assert_int_equal(waits_for(c, 1, 0), WAIT_FOR_HERE); /* it has not looked yet */
    for (unsigned i = 0; i < 100; i++)
        cluster_turn(c);
    assert_int_equal(atomic_load(&c->group[0]->now->board.hdr->engine_core), core);
    assert_int_equal(waits_for(c, 1, 0), WAIT_FOR_ENGINE);
    assert_int_equal(waits_for(c, (8 << 20) / 4, 0), WAIT_FOR_ENGINE); /* 64 steps of 8 */
    assert_int_equal(waits_for(c, 1, core + 1), WAIT_FOR_HERE);
    assert_int_equal(waits_for(c, 1, UINT32_MAX), WAIT_FOR_HERE);
    assert_int_equal(waits_for_gate(c, 1, core, &gate), WAIT_FOR_HERE);
    atomic_store(&ready, 7);
    assert_int_equal(waits_for_gate(c, 1, core, &gate), WAIT_FOR_ENGINE);
    cluster_free(c);
    c = cluster_new(3, 2, pair, 3);
    assert_int_equal(waits_for(c, 1, core), WAIT_FOR_BOTH);
    assert_int_equal(waits_for(c, 1, core + 1), WAIT_FOR_HERE);
    cluster_free(c);
    c = cluster_new(2, 1, here, 3);
    assert_int_equal(waits_for(c, 1, core), WAIT_FOR_OTHERS);
    cluster_free(c);
    leave_core(&all);
}

/* Ranks that have nothing more to do for one another leave the core to the engine: of a large
 * operation at once, of a small one when yields do not bring its answer. */
static void ranks_that_have_done_their_part_wait_for_the_engine(void **state)
{
    static const uint16_t pair[] = {0, 0, 1};
    const struct {
        size_t bytes;
        enum wait_for after;
    } rows[] = {
        {8, WAIT_FOR_ANSWER},             /* the engine adds up */
        {48 << 10, WAIT_FOR_ANSWER},      /* they do, each its slice */
        {256 << 10, WAIT_FOR_ENGINE},     /* 2 steps of 8 */
        {(2 << 20) - 4, WAIT_FOR_ENGINE}, /* 16 steps, of which no more fit into the window */
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct cluster *c = cluster_new(3, 2, pair, 3);
        const cpu_set_t all = stay_on_core();
        enum wait_for before, after;

        pair_waits_for(c, rows[i].bytes / 4, &before, &after);
        leave_core(&all);
        assert_int_equal(before, WAIT_FOR_BOTH);
        assert_int_equal(after, rows[i].after);
        cluster_free(c);
    }
}

static bool is_remembered(const struct cluster *c, unsigned rank, uint32_t seq)
{
    struct recorder_op op;

    return recorder_read(&c->group[rank]->now->board.recorders[rank], seq, &op) && op.seq == seq;
}

/* As all members do, whenever they look, so that what one remembers the others have, too. */
static void operations_are_timed_as_the_board_says(void **state)
{
    static const enum recorder_timing timings[] = {RECORDER_NONE, RECORDER_ALL, RECORDER_BURSTS,
                                                   RECORDER_NONE};
    static const uint16_t here[] = {0, 0};
    const struct commd_op barrier = {.size = sizeof(barrier), .coll = COMMD_BARRIER};
    const struct commd_op ops[] = {barrier, barrier};
    struct cluster *c = cluster_new(2, 1, here, 3);
    enum run_state states[2];
    uint32_t seq = 0;

    for (unsigned i = 0; i < ARRAY_LEN(timings); i++) {
        board_record(c->node[0].ctl, timings[i]);
        for (unsigned n = 0; n < 2 * (RECORDER_BURST_GAP + 1) * RECORDER_RING; n++) {
            bool timed = recorder_samples(++seq) || recorder_times(timings[i], seq);

            assert_true(cluster_run(c, ops, states, NULL));
            for (unsigned rank = 0; rank < 2; rank++)
                assert_int_equal(is_remembered(c, rank, seq), timed);
        }
    }
    cluster_free(c);
}

/* There is no other rank to differ from. */
static void the_slot_of_a_rank_that_is_alone_is_changed(void **state)
{
    static const uint16_t placement[] = {0};
    struct cluster *c = cluster_new(1, 1, placement, 17);
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};
    struct run r = {0};

    (void)state;
    assert_int_equal(run_begin(&r, c->group[0]->now, &op), 0);
    assert_true(run_put(&r));
    board_slot(&c->group[0]->now->board, 0, r.base)->fingerprint++;
    assert_int_equal(run_poll(&r), RUN_FAILED);
    assert_int_equal(r.err.code, COMMD_E_MISMATCH);
    assert_int_equal(r.err.rank, 0);
    run_end(&r, RUN_FAILED);
    assert_int_equal(commd_barrier(c->group[0]), 0);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_one_node),
        cmocka_unit_test(random_programs_many_nodes),
        cmocka_unit_test(mismatch_ends_on_all_and_group_goes_on),
        cmocka_unit_test(counts_that_do_not_fit_end_on_all),
        cmocka_unit_test(gone_member_ends_later_operations_only),
        cmocka_unit_test(broken_group_says_why),
        cmocka_unit_test(aborted_group_reports_no_mismatch),
        cmocka_unit_test(closing_board_serves_the_other_node),
        cmocka_unit_test(engine_is_woken_when_it_has_work),
        cmocka_unit_test(short_operations_wake_sleepers_at_last),
        cmocka_unit_test(garbage_in_the_board_breaks_only_the_group),
        cmocka_unit_test(the_slot_of_a_rank_that_is_alone_is_changed),
        cmocka_unit_test(counts_near_the_wrap_are_refused_by_the_engine),
        cmocka_unit_test(counts_near_the_wrap_are_refused_by_the_call),
        cmocka_unit_test(cells_that_cannot_be_cut_are_refused_by_the_call),
        cmocka_unit_test(a_rank_leaves_its_core_to_the_engine_there),
        cmocka_unit_test(ranks_that_have_done_their_part_wait_for_the_engine),
        cmocka_unit_test(operations_are_timed_as_the_board_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
