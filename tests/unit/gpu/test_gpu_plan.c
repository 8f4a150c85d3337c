/* test_gpu_plan.c - the plans of all units of a group, done together, against what the operation
 * means: every collective, over groups of many shapes, in place or not, blocks at addresses of
 * their own or not. And what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "shm/gpu/able.h"
#include "tests/unit/gpu/plan_world.h"

/* Units of nodes and GPUs, with ranks of their own number; @mixed: ranks are dealt out at random.
 */
static void shape(struct world *w, unsigned nodes, unsigned gpus, unsigned ranks, bool uneven,
                  bool mixed)
{
    w->world = 0;
    w->nunits = nodes * gpus;
    for (uint32_t u = 0; u < w->nunits; u++) {
        unsigned n = uneven ? 1 + (unsigned)world_random(ranks) : ranks;

        while (n-- && w->world + w->nunits - u <= WORLD_MOST)
            w->unit_of_rank[w->world++] = (uint16_t)u;
    }
    for (uint32_t r = w->world; mixed && r-- > 1;) {
        uint32_t other = (uint32_t)world_random(r + 1);
        uint16_t unit = w->unit_of_rank[r];

        w->unit_of_rank[r] = w->unit_of_rank[other];
        w->unit_of_rank[other] = unit;
    }
}

static void set_counts(struct world *w, uint64_t count)
{
    const struct coll_info *info = &coll_table[w->desc.coll];

    w->desc.count = info->window == WINDOW_NONE ? 0 : count;
    for (uint32_t i = 0; i < w->world; i++) {
        w->counts[i] = info->counted ? world_random(count + 1) : count;
        for (uint32_t j = 0; j < w->world; j++)
            w->cells[i][j] = !info->counted ? count : world_random(3) ? world_random(count + 1) : 0;
    }
    if (info->counted && info->window == WINDOW_CELLS)
        w->desc.count = 0;
}

/* Between units, what NCCL can do; on one also what only kernels can. */
static void choose_type(struct world *w, unsigned i)
{
    static const uint8_t types[] = {DTYPE_I32, DTYPE_F32, DTYPE_BF16, DTYPE_F64,
                                    DTYPE_U8,  DTYPE_I64, DTYPE_I16,  DTYPE_BOOL};

    do {
        w->desc.dtype = types[i++ % ARRAY_LEN(types)];
        w->desc.redop = (uint8_t)world_random(REDOP_COUNT);
    } while (!gpu_able(&w->desc, w->nunits) ||
             (w->desc.dtype == DTYPE_BF16 && coll_table[w->desc.coll].reduces));
    /* sums of bf16 over 40 ranks are not exact: its kernels are tested in test_move.c */
}

static void one(struct world *w)
{
    w->rounds = 0;
    w->scratch = w->nmoves = w->ncalls = 0;
    world_build(w);
    world_run(w);
    world_check(w);
    world_free(w);
}

static void every_collective_and_shape(void **state)
{
    static const uint64_t counts[] = {0, 1, 3, 16, 17, COUNT_MOST};
    static struct world w;
    unsigned done = 0;

    for (unsigned coll = 0; coll < COLL_COUNT; coll++) {
        for (unsigned s = 0; s < 4 * 4 * 5 * 4; s++) {
            shape(&w, 1 + s % 4, 1 + s / 4 % 4, 1 + s / 16 % 5, s / 80 & 1, s / 160 & 1);
            w.desc = (struct op_desc){.coll = (uint8_t)coll};
            if (coll_table[coll].rooted)
                w.desc.root = (uint32_t)world_random(w.world);
            choose_type(&w, s + coll);
            w.form = world_random(FORMS);
            w.later = s & 1;
            w.most_scratch = s % 3 ? 0 : 16 * 8 * w.world;
            w.slice = world_random(3) ? 0 : 1 + world_random(16 * 8 * w.world);
            set_counts(&w, counts[world_random(ARRAY_LEN(counts))]);
            one(&w);
            done++;
        }
    }
    assert_int_equal(done, COLL_COUNT * 320);
}

/* Which calls it comes to; else a plan that copies everything everywhere would do. */
static void few_calls(void **state)
{
    static const struct {
        uint8_t coll, redop, form, ranks;
        bool mixed;
        uint64_t calls, moves, scratch; /* of 4 units together; scratch of one */
    } rows[] = {
        {COLL_BARRIER, 0, FORM_APART, 2, false, 4, 0, 4},
        {COLL_ALL_REDUCE, REDOP_SUM, FORM_APART, 1, false, 4, 0, 0},
        {COLL_ALL_REDUCE, REDOP_AVG, FORM_APART, 1, false, 4, 4, 0},
        {COLL_ALL_REDUCE, REDOP_SUM, FORM_IN_PLACE, 3, false, 4, 8, 0},
        {COLL_ALL_REDUCE, REDOP_PREMUL_SUM, FORM_APART, 1, false, 4, 4, 0},
        {COLL_BROADCAST, 0, FORM_APART, 1, false, 4, 0, 0},
        {COLL_BROADCAST, 0, FORM_APART, 3, true, 4, 4, 0},
        {COLL_REDUCE, REDOP_SUM, FORM_APART, 1, false, 4, 0, 0},
        {COLL_REDUCE, REDOP_SUM, FORM_APART, 2, false, 4, 4, 64},
        {COLL_ALL_GATHER, 0, FORM_APART, 1, false, 4, 0, 0},
        {COLL_ALL_GATHER, 0, FORM_LISTS, 1, false, 4, 16, 256},
        {COLL_ALL_GATHER, 0, FORM_APART, 2, false, 32, 32, 0},
        {COLL_REDUCE_SCATTER, REDOP_SUM, FORM_IN_PLACE, 1, false, 4, 0, 0},
        {COLL_REDUCE_SCATTER, REDOP_SUM, FORM_LISTS, 1, false, 4, 16, 256},
        {COLL_REDUCE_SCATTER, REDOP_AVG, FORM_APART, 2, false, 32, 40, 512},
        {COLL_ALL_TO_ALL, 0, FORM_APART, 1, false, 24, 4, 0},
        {COLL_ALL_TO_ALL, 0, FORM_IN_PLACE, 2, false, 96, 24, 1024},
        {COLL_GATHER, 0, FORM_APART, 1, false, 6, 1, 0},
    };
    static struct world w;

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        shape(&w, 2, 2, rows[i].ranks, false, false);
        if (rows[i].mixed)
            shape(&w, 4, 1, rows[i].ranks, false, true);
        w.desc = (struct op_desc){.coll = rows[i].coll, .dtype = DTYPE_F32, .redop = rows[i].redop};
        w.form = rows[i].form;
        w.later = true;
        w.most_scratch = 0;
        set_counts(&w, 16);
        one(&w);
        if (w.ncalls != rows[i].calls || w.nmoves != rows[i].moves || w.scratch != rows[i].scratch)
            fail_msg("row %u: %llu calls, %llu moves, %llu bytes of scratch", i,
                     (unsigned long long)w.ncalls, (unsigned long long)w.nmoves,
                     (unsigned long long)w.scratch);
    }
}

static void rounds_bound_scratch(void **state)
{
    static struct world w = {.most_scratch = 16 * 4 * 4, .later = true};

    shape(&w, 2, 1, 2, false, false);
    w.desc = (struct op_desc){.coll = COLL_REDUCE_SCATTER, .dtype = DTYPE_F32};
    set_counts(&w, COUNT_MOST);
    one(&w);
    assert_int_equal(w.rounds, (COUNT_MOST + 15) / 16);
    assert_int_equal(w.scratch, 16 * 4 * 4);
    w.desc.coll = COLL_REDUCE;
    w.most_scratch = 64;
    set_counts(&w, COUNT_MOST);
    one(&w);
    assert_int_equal(w.rounds, (COUNT_MOST + 15) / 16);
    shape(&w, 2, 1, 1, false, false); /* nothing is reduced here before NCCL does */
    one(&w);
    assert_int_equal(w.rounds, 1);
    assert_int_equal(w.scratch, 0);
}

/* Vectors, and parts of all blocks: a round moves about as much, whatever the operation. */
static void slices_are_rounds(void **state)
{
    static const struct {
        uint8_t coll, ranks;
        uint32_t rounds;
        uint64_t calls;
    } rows[] = {
        {COLL_ALL_REDUCE, 1, 3, 12},     {COLL_ALL_REDUCE, 3, 3, 12},
        {COLL_REDUCE, 1, 3, 12},         {COLL_REDUCE, 2, 3, 12},
        {COLL_BROADCAST, 1, 3, 12},      {COLL_ALL_GATHER, 1, 3, 48},
        {COLL_ALL_GATHER, 2, 3, 96},     {COLL_REDUCE_SCATTER, 1, 3, 48},
        {COLL_REDUCE_SCATTER, 2, 3, 96}, {COLL_ALL_TO_ALL, 1, 3, 72},
        {COLL_ALL_TO_ALL, 2, 3, 288},    {COLL_GATHER, 1, 3, 18},
        {COLL_SCATTER, 2, 3, 36},        {COLL_BARRIER, 1, 1, 4},
    };
    static struct world w;

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        shape(&w, 2, 2, rows[i].ranks, false, false);
        w.desc = (struct op_desc){.coll = rows[i].coll, .dtype = DTYPE_F32};
        w.later = true;
        w.slice = 17 * 4;
        if (coll_table[rows[i].coll].window == WINDOW_BLOCKS ||
            coll_table[rows[i].coll].window == WINDOW_CELLS)
            w.slice *= w.world * (rows[i].coll == COLL_ALL_TO_ALL ? rows[i].ranks : 1);
        set_counts(&w, COUNT_MOST);
        one(&w);
        if (w.rounds != rows[i].rounds || w.ncalls != rows[i].calls)
            fail_msg("row %u: %u rounds, %llu calls", i, w.rounds, (unsigned long long)w.ncalls);
        w.slice = 1 << 20;
        one(&w);
        assert_int_equal(w.rounds, 1);
    }
}

/* Small parts beside others, but not where NCCL's order of summation would show who is there. */
static void sums_do_not_tell_who_is_there(void **state)
{
    static const struct {
        uint8_t coll, dtype, redop;
        uint32_t units, part;
    } rows[] = {
        {COLL_ALL_REDUCE, DTYPE_F32, REDOP_SUM, 3, GPU_PART},
        {COLL_ALL_REDUCE, DTYPE_F32, REDOP_SUM, 2, GPU_PART_BESIDE},
        {COLL_ALL_REDUCE, DTYPE_BF16, REDOP_AVG, 8, GPU_PART},
        {COLL_ALL_REDUCE, DTYPE_F64, REDOP_MAX, 8, GPU_PART_BESIDE},
        {COLL_ALL_REDUCE, DTYPE_I32, REDOP_SUM, 8, GPU_PART_BESIDE},
        {COLL_REDUCE, DTYPE_F16, REDOP_PROD, 4, GPU_PART},
        {COLL_REDUCE_SCATTER, DTYPE_F32, REDOP_PREMUL_SUM, 4, GPU_PART},
        {COLL_BROADCAST, DTYPE_F32, REDOP_SUM, 8, GPU_PART_BESIDE},
        {COLL_ALL_GATHER, DTYPE_F32, REDOP_SUM, 8, GPU_PART_BESIDE},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct gpu_plan p = {.nunits = rows[i].units};

        p.desc =
            (struct op_desc){.coll = rows[i].coll, .dtype = rows[i].dtype, .redop = rows[i].redop};
        assert_int_equal(gpu_plan_part(&p, true), rows[i].part);
        assert_int_equal(gpu_plan_part(&p, false), GPU_PART);
    }
}

/* --- what is refused ------------------------------------------------------------------------- */

static void operations_that_nccl_lacks(void **state)
{
    struct op_desc d = {.coll = COLL_ALL_REDUCE};
    unsigned able = 0;

    for (unsigned type = 0; type <= DTYPE_COUNT; type++) {
        for (unsigned op = 0; op <= REDOP_COUNT; op++) {
            d.dtype = (uint8_t)type;
            d.redop = (uint8_t)op;
            assert_int_equal(gpu_able(&d, 1), redop_defined(type, op));
            able += gpu_able(&d, 2);
        }
    }
    assert_int_equal(able, 6 * 5 + 4 * 4);
    d = (struct op_desc){.coll = COLL_ALL_REDUCE, .dtype = DTYPE_F32, .redop = REDOP_MAX};
    assert_false(gpu_able(&d, 2)); /* it would lose a NaN */
    d.coll = COLL_ALL_GATHER;
    d.dtype = DTYPE_BOOL;
    d.redop = REDOP_BXOR;
    assert_true(gpu_able(&d, 2));
    d.dtype = DTYPE_COUNT;
    assert_false(gpu_able(&d, 2));
    d.coll = COLL_BARRIER;
    assert_true(gpu_able(&d, 2));
    d.coll = COLL_COUNT;
    assert_false(gpu_able(&d, 1));
}

static struct gpu_plan good(struct world *w, unsigned coll, struct gpu_rank *ranks)
{
    struct gpu_plan p;

    shape(w, 1, 1, 3, false, false);
    w->desc = (struct op_desc){.coll = (uint8_t)coll, .dtype = DTYPE_F32};
    w->form = FORM_APART;
    set_counts(w, 8);
    world_build(w);
    p = world_plan(w, 0, ranks);
    assert_true(gpu_plan_make(&p));
    return p;
}

static void what_clients_may_write(void **state)
{
    static struct world w;
    struct gpu_rank r[BATCH_SOURCES], was;
    uint64_t counts[WORLD_MOST];
    struct gpu_plan p = good(&w, COLL_ALL_REDUCE, r);

#define REFUSED(change, back)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        assert_false(gpu_plan_make(&p));                                                           \
        back;                                                                                      \
        assert_true(gpu_plan_make(&p));                                                            \
    } while (0)
    was = r[1];
    REFUSED(r[1].send++, r[1] = was);
    REFUSED(r[1].send = 0, r[1] = was);
    REFUSED(r[2].recv += 2, r[2].recv -= 2);
    REFUSED(r[1].rank = 2, r[1] = was);
    REFUSED(p.nranks = 2, p.nranks = 3);
    REFUSED(p.nranks = 0, p.nranks = 3);
    REFUSED(p.unit = 1, p.unit = 0);
    REFUSED(p.desc.count = UINT64_MAX, p.desc.count = 8);
    REFUSED(p.desc.count = (uint64_t)1 << 47, p.desc.count = 8);
    REFUSED(p.desc.dtype = DTYPE_COUNT, p.desc.dtype = DTYPE_F32);
    REFUSED(p.desc.redop = REDOP_BAND, p.desc.redop = REDOP_SUM);
    REFUSED(p.desc.coll = COLL_COUNT, p.desc.coll = COLL_ALL_REDUCE);
    REFUSED(p.desc.coll = COLL_REDUCE; p.desc.root = 3, p.desc.root = 0);
    world_free(&w);

    p = good(&w, COLL_ALL_GATHER_V, r);
    memcpy(counts, r[0].recv_counts, sizeof counts);
    was = r[1];
    REFUSED(r[1].recv_counts = NULL, r[1] = was);
    REFUSED(counts[2]++; r[1].recv_counts = counts, r[1] = was; counts[2]--);
    REFUSED(counts[0] = (uint64_t)1 << 47;
            r[0].recv_counts = r[1].recv_counts = counts, r[0].recv_counts = w.ranks[0].recv_counts;
            r[1] = was);
    REFUSED(r[1].recv = 0, r[1] = was);
    world_free(&w);

    p = good(&w, COLL_ALL_TO_ALL_V, r);
    memcpy(counts, r[0].send_counts, sizeof counts);
    counts[1]++;
    was = r[0];
    REFUSED(r[0].send_counts = counts, r[0] = was);
    REFUSED(r[0].send_counts = NULL, r[0] = was);
    world_free(&w);
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_and_shape),
        cmocka_unit_test(few_calls),
        cmocka_unit_test(rounds_bound_scratch),
        cmocka_unit_test(slices_are_rounds),
        cmocka_unit_test(sums_do_not_tell_who_is_there),
        cmocka_unit_test(operations_that_nccl_lacks),
        cmocka_unit_test(what_clients_may_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
