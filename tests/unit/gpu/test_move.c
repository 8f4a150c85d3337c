/* test_move.c - the kernels' twins, which are the same source as C, against shm/reduce: bit for
 * bit, for every type, operator and number of sources, at any address, in place or not, whatever
 * the grid. And how moves are put into launches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "shm/reduce/reduce.h"
#include "tests/unit/gpu/move_data.h"
#include "transport/gpu/move.h"

enum { MOST = 600, ROOM = MOST * 8 + 128, MARGIN = 64, DIVIDE = 3 };

static uint8_t memory[2 * BATCH_SOURCES][ROOM] __attribute__((aligned(64)));
static uint8_t before[2 * BATCH_SOURCES][ROOM];
static uint8_t want[MOST * 8];

/* --- one move ------------------------------------------------------------------------------ */

static void run_launch(struct gpu_launch *l, unsigned multiprocessors)
{
    void *params[] = {&l->batch};

    if (!gpu_launch_close(l, multiprocessors))
        return;
    for (const struct gpu_twin *t = gpu_twins; t->name; t++) {
        if (!strcmp(t->name, gpu_kernel_name(l->kernel))) {
            gpu_twin_grid(l->gx, l->threads);
            t->fn(params);
            return;
        }
    }
    fail_msg("no twin of %s", gpu_kernel_name(l->kernel));
}

static void run_move(const struct gpu_move *m, unsigned gx, unsigned threads)
{
    struct gpu_launch l;
    void *params[] = {&l.batch};

    gpu_launch_init(&l);
    assert_true(gpu_launch_add(&l, m));
    if (!gpu_launch_close(&l, 1))
        return;
    assert_string_equal(gpu_twins[l.kernel].name, gpu_kernel_name(l.kernel));
    gpu_twin_grid(gx, threads);
    gpu_twins[l.kernel].fn(params);
}

static void check_got(const struct gpu_move *m)
{
    size_t size = dtype_size(m->dtype), n = m->count * size;

    for (unsigned j = 0; j < m->ndst; j++) {
        const uint8_t *got = (const uint8_t *)m->dst[j];

        for (size_t i = 0; memcmp(got, want, n) && i < m->count; i++) {
            if (memcmp(got + i * size, want + i * size, size))
                fail_msg(
                    "%s %s of %u sources, %llu elements: element %zu of destination %u at %#llx",
                    dtype_name(m->dtype), redop_name(m->redop), m->nsrc,
                    (unsigned long long)m->count, i, j, (unsigned long long)m->dst[j]);
        }
    }
}

/* All that is not a destination is as it was. */
static void check_rest(const struct gpu_move *m)
{
    size_t n = m->count * dtype_size(m->dtype);

    for (unsigned j = 0; j < m->ndst; j++) {
        uint8_t *p = (uint8_t *)m->dst[j];

        memcpy(p, before[0] + (p - memory[0]), n);
    }
    assert_memory_equal(memory, before, sizeof memory);
}

enum placing { ALIKE, SHIFTED, UNLIKE, PLACINGS };

/* Sources in memory[0] to [15], destinations in the others, but for one that is a source. */
static void check_move(unsigned dtype, unsigned op, unsigned nsrc, uint64_t count,
                       enum placing placing, unsigned threads)
{
    size_t size = dtype_size(dtype);
    struct gpu_move m = {.count = count,
                         .dtype = (uint8_t)dtype,
                         .redop = (uint8_t)op,
                         .nsrc = (uint8_t)nsrc,
                         .divide = op == REDOP_AVG && count % 2 ? DIVIDE : 0};

    m.ndst = (uint8_t)(1 + move_random() % 3);
    for (unsigned k = 0; k < nsrc + m.ndst; k++) {
        uint8_t *p = memory[k < nsrc ? k : k - nsrc + BATCH_SOURCES] + MARGIN;

        if (placing == SHIFTED)
            p += size * (count % 5);
        if (placing == UNLIKE)
            p += size * (move_random() % 17);
        *(k < nsrc ? &m.src[k] : &m.dst[k - nsrc]) = (cu_ptr)p;
    }
    for (unsigned k = 0; k < nsrc; k++) {
        m.scale[k] = k % 3 ? 1.0 / (k + 1) : -3e4;
        move_fill(dtype, (uint8_t *)m.src[k], count);
    }
    if (move_random() % 2)
        m.dst[move_random() % m.ndst] = m.src[move_random() % nsrc];
    memcpy(before, memory, sizeof memory);
    move_expect(&m, want);
    run_move(&m, threads > 7 ? 2 : 1, threads);
    check_got(&m);
    check_rest(&m);
}

static void every_type_operator_and_number_of_sources(void **state)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 127, 259, 515};
    static const unsigned threads[] = {1, 7, 32};
    unsigned checked = 0;

    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned op = 0; op < REDOP_COUNT; op++) {
            for (unsigned k = 1; redop_defined(d, op) && k <= BATCH_SOURCES; k++) {
                for (unsigned i = 0; i < ARRAY_LEN(counts); i++, checked++)
                    check_move(d, op, k, counts[i], (i + k) % PLACINGS,
                               threads[(i + k + op) % ARRAY_LEN(threads)]);
            }
        }
    }
    assert_int_equal(checked, 95 * BATCH_SOURCES * ARRAY_LEN(counts));
}

/* The loops of 2, 4 and 8 sources at each length around what they take at once. */
static void every_length(void **state)
{
    static const unsigned nsrc[] = {1, 2, 3, 4, 8};

    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned i = 0; i < ARRAY_LEN(nsrc); i++) {
            for (uint64_t n = 0; n < 150; n++)
                check_move(d, REDOP_SUM, nsrc[i], n, n % PLACINGS, 1 + n % 2);
        }
    }
}

/* A copy takes its bits as they are, and addresses of any alignment. */
static void copies_of_bytes(void **state)
{
    for (unsigned i = 0; i < 16; i++) {
        for (unsigned j = 0; j < 16; j++) {
            for (uint64_t n = 0; n < 200; n += 1 + n % 3) {
                struct gpu_move m = {.count = n, .dtype = DTYPE_U8, .nsrc = 1, .ndst = 2};

                m.src[0] = (cu_ptr)(memory[0] + MARGIN + i);
                m.dst[0] = (cu_ptr)(memory[1] + MARGIN + j);
                m.dst[1] = (cu_ptr)(memory[2] + MARGIN + (j ^ 8));
                move_fill(DTYPE_U8, (uint8_t *)m.src[0], n);
                memcpy(before, memory, sizeof memory);
                memcpy(want, (void *)m.src[0], n);
                run_move(&m, 1, 1 + (i + j) % 5);
                check_got(&m);
                check_rest(&m);
            }
        }
    }
}

/* Each 16-bit float alone is divided and scaled as on the host. */
static void each_16_bit_float(void **state)
{
    static const unsigned dtypes[] = {DTYPE_F16, DTYPE_BF16}, ops[] = {REDOP_AVG, REDOP_PREMUL_SUM};
    static uint16_t in[65536], out[65536], host[65536];

    for (unsigned t = 0; t < 4; t++) {
        struct gpu_move m = {.count = 65536,
                             .dtype = (uint8_t)dtypes[t / 2],
                             .redop = (uint8_t)ops[t % 2],
                             .nsrc = 1,
                             .ndst = 1,
                             .divide = 7,
                             .src = {(cu_ptr)in},
                             .dst = {(cu_ptr)out},
                             .scale = {0.3}};

        for (unsigned i = 0; i < 65536; i++)
            in[i] = (uint16_t)i;
        memcpy(host, in, sizeof host);
        if (t % 2)
            reduce_scale(m.dtype, host, in, 0.3, 65536);
        else
            reduce_finish(m.dtype, REDOP_AVG, host, 65536, 7);
        run_move(&m, 1, 16);
        assert_memory_equal(out, host, sizeof host);
    }
}

/* --- launches ------------------------------------------------------------------------------ */

static struct gpu_move copy_of(unsigned i, uint64_t count)
{
    return (struct gpu_move){.count = count,
                             .dtype = DTYPE_F32,
                             .redop = REDOP_SUM,
                             .nsrc = 1,
                             .ndst = 1,
                             .src = {(cu_ptr)memory[i % 16]},
                             .dst = {(cu_ptr)memory[16 + i % 16]}};
}

static void a_launch_takes_many_moves(void **state)
{
    struct gpu_launch l;
    struct gpu_move m;

    gpu_launch_init(&l);
    for (unsigned i = 0; i < BATCH_MOVES; i++) {
        m = copy_of(i, 10 + i);
        assert_true(gpu_launch_add(&l, &m));
    }
    assert_false(gpu_launch_add(&l, &m));
    assert_true(gpu_launch_close(&l, 132));
    assert_int_equal(l.gy, BATCH_MOVES);
    assert_int_equal(l.gx, 1);
    move_fill(DTYPE_U8, memory[0], sizeof memory);
    memcpy(before, memory, sizeof memory);
    run_launch(&l, 132);
    for (unsigned i = 0; i < 16; i++) /* the last, which is the longest, of those onto it */
        assert_memory_equal(memory[16 + i], before[i], 4 * (10 + BATCH_MOVES - 16 + i));
}

static void full_moves_fit_and_are_all_done(void **state)
{
    struct gpu_launch l;
    struct gpu_move m = {.count = 9,
                         .dtype = DTYPE_F64,
                         .redop = REDOP_PREMUL_SUM,
                         .nsrc = BATCH_SOURCES,
                         .ndst = BATCH_SOURCES};
    unsigned n = 0;

    for (unsigned k = 0; k < BATCH_SOURCES; k++) {
        m.src[k] = (cu_ptr)memory[k];
        m.dst[k] = (cu_ptr)memory[16 + k];
        m.scale[k] = k;
    }
    move_fill(DTYPE_F64, memory[0], sizeof memory / 8);
    gpu_launch_init(&l);
    while (gpu_launch_add(&l, &m)) {
        move_expect(&m, want);
        n++;
        for (unsigned k = 0; k < BATCH_SOURCES; k++) {
            m.src[k] += 72;
            m.dst[k] += 72;
        }
    }
    assert_int_equal(n, BATCH_WORDS / (2 + 3 * BATCH_SOURCES));
    run_launch(&l, 1);
    for (unsigned k = 0; k < BATCH_SOURCES; k++)
        m.dst[k] -= 72;
    m.ndst = BATCH_SOURCES;
    check_got(&m);
}

static void one_kernel_a_launch_and_nothing_for_nothing(void **state)
{
    struct gpu_launch l;
    struct gpu_move m = copy_of(0, 0);

    gpu_launch_init(&l);
    assert_true(gpu_launch_add(&l, &m)); /* no elements */
    m = copy_of(0, 5);
    m.dst[0] = m.src[0];
    assert_true(gpu_launch_add(&l, &m)); /* onto itself */
    m.ndst = 0;
    assert_true(gpu_launch_add(&l, &m));
    assert_false(gpu_launch_close(&l, 8));
    m = copy_of(0, 5);
    assert_true(gpu_launch_add(&l, &m));
    m.nsrc = 2;
    m.src[1] = m.src[0];
    assert_false(gpu_launch_add(&l, &m)); /* another kernel */
    m.nsrc = 1;
    m.redop = REDOP_AVG;
    m.divide = 1;
    assert_true(gpu_launch_add(&l, &m)); /* divided by 1: a copy */
}

static void blocks_by_size(void **state)
{
    static const struct {
        uint64_t count;
        unsigned moves, sms, gx;
    } rows[] = {
        {1, 1, 132, 1},         {4096, 1, 132, 1},     {4097, 1, 132, 2},   {1 << 20, 1, 132, 256},
        {1 << 24, 1, 132, 264}, {1 << 24, 8, 132, 33}, {1 << 24, 64, 8, 1}, {1ull << 40, 1, 0, 2},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct gpu_launch l;

        gpu_launch_init(&l);
        for (unsigned j = 0; j < rows[i].moves; j++) {
            struct gpu_move m = copy_of(j, rows[i].count);

            assert_true(gpu_launch_add(&l, &m));
        }
        assert_true(gpu_launch_close(&l, rows[i].sms));
        assert_int_equal(l.gx, rows[i].gx);
        assert_int_equal(l.gy, rows[i].moves);
    }
}

static void kernels_are_named(void **state)
{
    struct gpu_move m = {.count = 1, .nsrc = 2, .ndst = 1, .divide = 2};

    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned op = 0; op < REDOP_COUNT; op++) {
            m.dtype = (uint8_t)d;
            m.redop = (uint8_t)op;
            if (redop_defined(d, op))
                assert_int_not_equal(gpu_move_kernel(&m), GPU_KERNEL_copy);
        }
    }
    for (unsigned i = 0; i < GPU_KERNELS; i++)
        assert_string_equal(gpu_twins[i].name, gpu_kernel_name(i));
    assert_null(gpu_twins[GPU_KERNELS].name);
    assert_string_equal(gpu_kernel_name(GPU_KERNEL_f32_sum), "commd_move_f32_sum");
    assert_string_equal(gpu_kernel_name(GPU_KERNELS), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_operator_and_number_of_sources),
        cmocka_unit_test(every_length),
        cmocka_unit_test(copies_of_bytes),
        cmocka_unit_test(each_16_bit_float),
        cmocka_unit_test(a_launch_takes_many_moves),
        cmocka_unit_test(full_moves_fit_and_are_all_done),
        cmocka_unit_test(one_kernel_a_launch_and_nothing_for_nothing),
        cmocka_unit_test(blocks_by_size),
        cmocka_unit_test(kernels_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
