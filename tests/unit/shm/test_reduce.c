/* test_reduce.c - every kernel that this CPU can run against a plain reference, bit for bit.
 *
 * An element's result depends on nothing but that element of each source, so the reference is
 * computed once per (dtype, operator, number of sources) and compared with every build,
 * alignment and length. The inputs mix random bits with the values where formats end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "shm/reduce/reduce.h"
#include "tests/unit/shm/reduce_reference.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    ELEMS = 17000, /* even of bytes more than COPY_AHEAD_MIN, and not a multiple of anything */
    MARGIN = 64,
    SOURCES = 9, /* one more than a pass takes */
};

static const char *const tables[] = {"avx512", "avx2", "baseline"};
static uint8_t raw[SOURCES][ELEMS * 8];
static uint8_t want[ELEMS * 8];

/* --- inputs ---------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t special_fp(unsigned dtype)
{
    static const double values[] = {0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-3, -1e3};
    uint64_t r = random_bits(), bits = 0;
    size_t size = dtype_size(dtype);
    uint64_t top = (uint64_t)1 << (8 * size - 1);
    uint64_t inf = dtype == DTYPE_F64   ? 0x7ff0000000000000
                   : dtype == DTYPE_F32 ? 0x7f800000
                   : dtype == DTYPE_F16 ? 0x7c00
                                        : 0x7f80;

    switch (r % 8) {
    case 0: /* infinity, or the largest number */
        return (inf - (r >> 8 & 1)) | (r >> 9 & 1 ? top : 0);
    case 1: /* a NaN, quiet or signalling, with a payload */
        return inf | (r >> 9 & 1 ? top : 0) | (1 + (r >> 16 & 0x3f));
    case 2: /* subnormal */
        return (r >> 16 & 0x7f) | (r >> 9 & 1 ? top : 0);
    default:
        reference_encode(dtype, (union value){.f = values[r >> 16 & 7]}, (uint8_t *)&bits);
        return bits;
    }
}

static uint64_t special_int(void)
{
    static const uint64_t values[] = {
        0,         1,      2,          0x7f,       0x80,       0xff,      0x7fff,
        0x8000,    0xffff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, (uint64_t)INT64_MIN,
        UINT64_MAX};

    return values[random_bits() % ARRAY_LEN(values)];
}

static void fill(unsigned dtype, uint8_t *p, size_t count)
{
    size_t size = dtype_size(dtype);

    for (size_t i = 0; i < count; i++, p += size) {
        uint64_t bits = random_bits() >> 8;

        if (dtype == DTYPE_BOOL)
            bits = bits % 16 ? bits & 1 : bits; /* mostly what a bool may be */
        else if (bits % 4 == 0)
            bits = reference_is_float(dtype) ? special_fp(dtype) : special_int();
        else
            bits = random_bits();
        memcpy(p, &bits, size);
    }
}

static void fill_all(unsigned dtype)
{
    for (unsigned k = 0; k < SOURCES; k++)
        fill(dtype, raw[k], ELEMS);
}

/* --- the checks ------------------------------------------------------------------------ */

static void assert_result(unsigned dtype, unsigned op, unsigned nsrc, size_t count,
                          const uint8_t *got)
{
    size_t size = dtype_size(dtype);

    for (size_t i = 0; memcmp(got, want, count * size) && i < count; i++) {
        uint64_t g = 0, w = 0;

        memcpy(&g, got + i * size, size);
        memcpy(&w, want + i * size, size);
        if (g != w)
            fail_msg("%s: %s %s of %u sources, count %zu, element %zu: %#llx, expected %#llx",
                     reduce_kernels(), dtype_name(dtype), redop_name(op), nsrc, count, i,
                     (unsigned long long)g, (unsigned long long)w);
    }
}

static void assert_filled(const uint8_t *p, size_t n, uint8_t byte)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], byte);
}

/* Into a fresh buffer at @off with a margin on both sides that must stay as it was. */
static void check_once(unsigned dtype, unsigned op, const void *const *src, unsigned nsrc,
                       size_t count, size_t off, bool dup)
{
    static uint8_t out[2][ELEMS * 8 + 3 * MARGIN];
    size_t n = count * dtype_size(dtype);

    for (unsigned j = 0; j < 2; j++)
        memset(out[j], 0xa5, n + 3 * MARGIN);
    if (dup)
        reduce_n_dup(dtype, op, out[0] + MARGIN + off, out[1] + MARGIN, src, nsrc, count);
    else
        reduce_n(dtype, op, out[0] + MARGIN + off, src, nsrc, count);
    assert_result(dtype, op, nsrc, count, out[0] + MARGIN + off);
    assert_filled(out[0], MARGIN + off, 0xa5);
    assert_filled(out[0] + MARGIN + off + n, MARGIN, 0xa5);
    if (!dup)
        return;
    assert_result(dtype, op, nsrc, count, out[1] + MARGIN);
    assert_filled(out[1], MARGIN, 0xa5);
    assert_filled(out[1] + MARGIN + n, MARGIN, 0xa5);
}

static void check_lengths(unsigned dtype, unsigned op, unsigned nsrc)
{
    static const size_t large[] = {127, 128, 129, 255, 256, 257, 511, 1023, 4097, ELEMS};
    static uint8_t shifted[SOURCES][ELEMS * 8 + MARGIN];
    size_t size = dtype_size(dtype);
    const size_t offs[] = {0, 1, 3, size, 2 * size, 3 * size};
    const void *src[SOURCES];

    for (size_t o = 0; o < ARRAY_LEN(offs); o++) {
        for (unsigned k = 0; k < nsrc; k++) {
            /* sources not aligned with one another either */
            uint8_t *p = shifted[k] + (k % 2 ? offs[ARRAY_LEN(offs) - 1 - o] : offs[o]);

            memcpy(p, raw[k], ELEMS * size);
            src[k] = p;
        }
        for (size_t count = 0; count <= 70; count++)
            check_once(dtype, op, src, nsrc, count, offs[o], count % 2);
        for (size_t i = 0; i < ARRAY_LEN(large); i++)
            check_once(dtype, op, src, nsrc, large[i], offs[o], i % 2);
    }
}

static void all_kernels_match_the_reference(void **state)
{
    const void *src[SOURCES];

    assert_true(reduce_force(*state));
    for (unsigned k = 0; k < SOURCES; k++)
        src[k] = raw[k];
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        fill_all(d);
        for (unsigned op = 0; op < REDOP_COUNT; op++) {
            for (unsigned n = 1; redop_defined(d, op) && n <= SOURCES; n++) {
                reference_reduce(d, op, src, n, ELEMS, want);
                check_lengths(d, op, n);
            }
        }
    }
}

/* More sources than one pass takes: the accumulators of a block are put aside in between,
 * and f16 must not be rounded there. */
static void many_sources(void **state)
{
    static const unsigned nsrcs[] = {16, 17, 63, REDUCE_MAX_SRC};
    static const size_t counts[] = {1, 7, 100, 2500};
    static const void *src[REDUCE_MAX_SRC];

    for (unsigned k = 0; k < REDUCE_MAX_SRC; k++)
        src[k] = raw[k * k % SOURCES];
    assert_true(reduce_force(*state));
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        fill_all(d);
        for (size_t n = 0; n < ARRAY_LEN(nsrcs); n++) {
            unsigned op = (unsigned)(n + d) % REDOP_COUNT;
            size_t count = nsrcs[n] == REDUCE_MAX_SRC ? 100 : 2500;

            while (!redop_defined(d, op))
                op = (op + 1) % REDOP_COUNT;
            reference_reduce(d, op, src, nsrcs[n], count, want);
            for (size_t i = 0; i < ARRAY_LEN(counts); i++)
                check_once(d, op, src, nsrcs[n], MIN(counts[i], count), 0, i % 2);
        }
    }
}

/* dst is one of the sources, dst2 another one. */
static void outputs_may_be_sources(void **state)
{
    static const size_t counts[] = {1, 5, 33, 300, 5000};
    static const unsigned nsrcs[] = {1, 2, 3, SOURCES};
    static uint8_t own[SOURCES][ELEMS * 8];
    const void *src[SOURCES];

    assert_true(reduce_force(*state));
    for (unsigned k = 0; k < SOURCES; k++)
        src[k] = own[k];
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        fill_all(d);
        for (unsigned t = 0; t < ARRAY_LEN(counts) * ARRAY_LEN(nsrcs) * SOURCES; t++) {
            unsigned alias = t % SOURCES, nsrc = nsrcs[t / SOURCES % ARRAY_LEN(nsrcs)];
            unsigned second = (alias + 1) % nsrc;
            size_t count = counts[t / SOURCES / ARRAY_LEN(nsrcs)];

            if (alias >= nsrc)
                continue;
            memcpy(own, raw, sizeof(own));
            reference_reduce(d, REDOP_MAX, src, nsrc, count, want);
            reduce_n(d, REDOP_MAX, own[alias], src, nsrc, count);
            assert_result(d, REDOP_MAX, nsrc, count, own[alias]);

            memcpy(own, raw, sizeof(own));
            reference_reduce(d, REDOP_SUM, src, nsrc, count, want);
            reduce_n_dup(d, REDOP_SUM, own[alias], own[second], src, nsrc, count);
            assert_result(d, REDOP_SUM, nsrc, count, own[alias]);
            assert_result(d, REDOP_SUM, nsrc, count, own[second]);
        }
    }
}

/* The end of a source may be the end of the mapping, and so may its beginning. */
static void nothing_is_read_or_written_outside(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map[3], *p[3];

    assert_true(reduce_force(*state));
    for (unsigned j = 0; j < 3; j++) {
        map[j] = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(map[j], MAP_FAILED);
        assert_int_equal(mprotect(map[j] + page, page, PROT_READ | PROT_WRITE), 0);
    }
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        size_t size = dtype_size(d);

        fill_all(d);
        reference_reduce(d, REDOP_SUM, (const void *[]){raw[0], raw[1]}, 2, page / size, want);
        for (size_t t = 0; t < 2 * (page / size + 1); t++) {
            size_t n = t / 2 * size;

            if (n > 600 && n < page)
                continue;
            for (unsigned j = 0; j < 3; j++)
                p[j] = map[j] + (t % 2 ? page : 2 * page - n);
            memcpy(p[0], raw[0], n);
            memcpy(p[1], raw[1], n);
            reduce_n(d, REDOP_SUM, p[2], (const void *[]){p[0], p[1]}, 2, n / size);
            assert_result(d, REDOP_SUM, 2, n / size, p[2]);
        }
    }
    for (unsigned j = 0; j < 3; j++)
        munmap(map[j], 3 * page);
}

/* Adding -0.0 changes no number: each 16-bit value must come back, and NaNs as the one NaN. */
static void each_16_bit_float_survives(void **state)
{
    static const unsigned dtypes[] = {DTYPE_F16, DTYPE_BF16};
    static uint16_t in[65536], zero[65536], out[65536];

    assert_true(reduce_force(*state));
    for (unsigned i = 0; i < 65536; i++) {
        in[i] = (uint16_t)i;
        zero[i] = 0x8000;
    }
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        unsigned inf = dtypes[d] == DTYPE_F16 ? 0x7c00 : 0x7f80;
        unsigned nan = dtypes[d] == DTYPE_F16 ? 0x7e00 : 0x7fc0;

        reduce_n(dtypes[d], REDOP_SUM, out, (const void *[]){in, zero}, 2, 65536);
        for (unsigned i = 0; i < 65536; i++)
            assert_int_equal(out[i], (i & 0x7fff) > inf ? nan : i);
    }
}

/* Results worked out by hand, so that the reference is not the only witness. */
static void rounding_by_hand(void **state)
{
    static const struct {
        unsigned dtype, op;
        uint16_t src[3], want;
    } rows[] = {
        /* 2048 + 1 + 1 = 2050: lost when f16 is rounded at each step */
        {DTYPE_F16, REDOP_SUM, {0x6800, 0x3c00, 0x3c00}, 0x6801},
        /* ties to even: 2048 + 1 + 0 down, 2050 + 1 + 0 up */
        {DTYPE_F16, REDOP_SUM, {0x6800, 0x3c00, 0x0000}, 0x6800},
        {DTYPE_F16, REDOP_SUM, {0x6801, 0x3c00, 0x0000}, 0x6802},
        /* 65504 + 16 overflows, 65504 + 15 does not, nor does 65504 + 16 - 16 */
        {DTYPE_F16, REDOP_SUM, {0x7bff, 0x4c00, 0x0000}, 0x7c00},
        {DTYPE_F16, REDOP_SUM, {0x7bff, 0x4b80, 0x0000}, 0x7bff},
        {DTYPE_F16, REDOP_SUM, {0x7bff, 0x4c00, 0xcc00}, 0x7bff},
        /* subnormals: half of 1 and of 3 units */
        {DTYPE_F16, REDOP_PROD, {0x0001, 0x3800, 0x3c00}, 0x0000},
        {DTYPE_F16, REDOP_PROD, {0x8003, 0x3800, 0x3c00}, 0x8002},
        /* 1 + 2^-8 is a tie for bf16, 1 + 2^-8 + 2^-8 is not */
        {DTYPE_BF16, REDOP_SUM, {0x3f80, 0x3b80, 0x0000}, 0x3f80},
        {DTYPE_BF16, REDOP_SUM, {0x3f81, 0x3b80, 0x0000}, 0x3f82},
        {DTYPE_BF16, REDOP_SUM, {0x3f80, 0x3b80, 0x3b80}, 0x3f81},
        /* the largest bf16 twice is infinite; infinity minus infinity is NaN */
        {DTYPE_BF16, REDOP_SUM, {0x7f7f, 0x7f7f, 0x0000}, 0x7f80},
        {DTYPE_BF16, REDOP_SUM, {0x7f80, 0x3f80, 0xff80}, 0x7fc0},
        /* a NaN wherever it stands; equal zeros: the first one */
        {DTYPE_F16, REDOP_MIN, {0x7e01, 0x3c00, 0x3c00}, 0x7e00},
        {DTYPE_F16, REDOP_MIN, {0x3c00, 0xfe01, 0x3800}, 0x7e00},
        {DTYPE_F16, REDOP_MAX, {0x3c00, 0x3800, 0x7d01}, 0x7e00},
        {DTYPE_F16, REDOP_MIN, {0x0000, 0x8000, 0x8000}, 0x0000},
        {DTYPE_F16, REDOP_MAX, {0x8000, 0x0000, 0x0000}, 0x8000},
    };

    assert_true(reduce_force(*state));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint16_t in[3][40], out[40];
        const void *src[3] = {in[0], in[1], in[2]};

        for (unsigned j = 0; j < 3 * 40; j++)
            in[j / 40][j % 40] = rows[i].src[j / 40];
        reduce_n(rows[i].dtype, rows[i].op, out, src, 3, 40);
        for (unsigned j = 0; j < 40; j++) {
            if (out[j] != rows[i].want)
                fail_msg("%s: row %zu, element %u: %#x", (char *)*state, i, j, out[j]);
        }
    }
}

/* --- the division ---------------------------------------------------------------------- */

static void average_divides_and_truncates(void **state)
{
    static const unsigned worlds[] = {1, 2, 3, 7, 8, 1000, 1024};
    static uint8_t out[ELEMS * 8 + 8];

    assert_true(reduce_force(*state));
    for (unsigned d = 0; d < DTYPE_BOOL; d++) {
        size_t size = dtype_size(d);

        fill(d, raw[0], ELEMS);
        for (size_t w = 0; w < ARRAY_LEN(worlds); w++) {
            for (size_t i = 0; i < ELEMS; i++)
                reference_divide(d, raw[0] + i * size, worlds[w], want + i * size);
            if (worlds[w] == 1) /* left as it is, NaNs too */
                memcpy(want, raw[0], ELEMS * size);
            for (size_t count = 0; count <= ELEMS; count += count < 70 ? 1 : ELEMS - 70) {
                uint8_t *p = out + count % 4;

                memcpy(p, raw[0], count * size);
                p[count * size] = 0xa5;
                reduce_finish(d, REDOP_AVG, p, count, worlds[w]);
                assert_result(d, REDOP_AVG, worlds[w], count, p);
                assert_int_equal(p[count * size], 0xa5);
            }
        }
    }
}

static void other_operators_need_no_finish(void **state)
{
    uint32_t x[3] = {9, 0x7fc00001, 0xffffffff}, before[3];

    memcpy(before, x, sizeof(x));
    for (unsigned op = 0; op < REDOP_COUNT; op++) {
        if (op == REDOP_AVG)
            continue;
        reduce_finish(DTYPE_U32, op, x, 3, 3);
        reduce_finish(DTYPE_F32, op, x, 3, 3);
        assert_memory_equal(x, before, sizeof(x));
    }
}

/* --- the factor ------------------------------------------------------------------------ */

/* At every alignment of source and target and in place; what lies beside stays. */
static void check_scale(unsigned dtype, double scale, size_t count, size_t from, size_t to)
{
    static uint8_t in[ELEMS * 8 + MARGIN], out[ELEMS * 8 + 3 * MARGIN];
    size_t n = count * dtype_size(dtype);
    uint8_t *dst = out + MARGIN + to;

    memset(out, 0xa5, n + 3 * MARGIN);
    memcpy(in + from, raw[0], n);
    reduce_scale(dtype, dst, in + from, scale, count);
    assert_result(dtype, REDOP_PREMUL_SUM, 1, count, dst);
    assert_filled(out, MARGIN + to, 0xa5);
    assert_filled(dst + n, MARGIN, 0xa5);
    assert_memory_equal(in + from, raw[0], n);

    memcpy(dst, raw[0], n);
    reduce_scale(dtype, dst, dst, scale, count);
    assert_result(dtype, REDOP_PREMUL_SUM, 1, count, dst);
    assert_filled(dst + n, MARGIN, 0xa5);
}

/* 1/3 is no float: it must be rounded before the product, not after. 1e300 is infinite as a
 * float, and infinity times 0 is the one NaN; 2^-20 makes subnormals of f16. */
static void scaling_matches_the_reference(void **state)
{
    static const double factors[] = {1.0,
                                     -1.0,
                                     0.0,
                                     1.0 / 3,
                                     2.5,
                                     0x1p-20,
                                     0x1p20,
                                     1e300,
                                     -1e-300,
                                     __builtin_inf(),
                                     __builtin_nan("")};

    assert_true(reduce_force(*state));
    for (unsigned d = DTYPE_F16; d <= DTYPE_F64; d++) {
        size_t size = dtype_size(d);

        fill(d, raw[0], ELEMS);
        for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
            for (size_t i = 0; i < ELEMS; i++)
                reference_scale(d, raw[0] + i * size, factors[f], want + i * size);
            for (size_t count = 0; count <= 140; count++) {
                for (size_t o = 0; o < 3; o++)
                    check_scale(d, factors[f], count, o * size, 2 * o + count % 3);
            }
            check_scale(d, factors[f], ELEMS, 1, 3);
        }
    }
}

/* Results worked out by hand: the product of f32 is rounded once to the type. */
static void scaling_by_hand(void **state)
{
    static const struct {
        unsigned dtype;
        double scale;
        uint16_t src, want;
    } rows[] = {
        {DTYPE_F16, 0.5, 0x0003, 0x0002},         /* 1.5 units of the smallest: ties to even */
        {DTYPE_F16, 0.5, 0x8001, 0x8000},         /* half a unit: to even, keeps the sign */
        {DTYPE_F16, 2.0, 0x7bff, 0x7c00},         /* beyond the largest */
        {DTYPE_F16, 2.0, 0x0200, 0x0400},         /* from subnormal to normal */
        {DTYPE_F16, 0.0, 0x7c00, 0x7e00},         /* infinity times zero */
        {DTYPE_F16, -1.0, 0xfd01, 0x7e00},        /* a NaN becomes the one NaN */
        {DTYPE_BF16, 1.00390625, 0x3f80, 0x3f80}, /* 1 + 2^-8: a tie, to even */
        {DTYPE_BF16, 1.01171875, 0x3f80, 0x3f82}, /* 1 + 3 * 2^-8: a tie, to even */
        {DTYPE_BF16, 1e39, 0x3f80, 0x7f80},       /* the factor alone is infinite in f32 */
        {DTYPE_BF16, 1e-46, 0x7f7f, 0x0000},      /* or zero */
    };

    assert_true(reduce_force(*state));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint16_t in[40], out[40];

        for (unsigned j = 0; j < 40; j++)
            in[j] = rows[i].src;
        reduce_scale(rows[i].dtype, out, in, rows[i].scale, 40);
        for (unsigned j = 0; j < 40; j++) {
            if (out[j] != rows[i].want)
                fail_msg("%s: row %zu, element %u: %#x", (char *)*state, i, j, out[j]);
        }
    }
}

/* --- the rest -------------------------------------------------------------------------- */

/* A thread that flushes subnormals and rounds upward gets the bits of all the others. */
static void the_callers_fp_mode_does_not_matter(void **state)
{
#if defined(__x86_64__)
    const unsigned odd = 0x1f80 | _MM_FLUSH_ZERO_ON | 0x40 /* DAZ */ | _MM_ROUND_UP;
    static const unsigned dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
    static uint8_t plain[ELEMS * 8], changed[ELEMS * 8];
    const void *src[3] = {raw[0], raw[1], raw[2]};
    unsigned saved = _mm_getcsr(), after;

    assert_true(reduce_force(*state));
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        size_t n = ELEMS * dtype_size(dtypes[d]);

        fill_all(dtypes[d]);
        reduce_n(dtypes[d], REDOP_SUM, plain, src, 3, ELEMS);
        reduce_finish(dtypes[d], REDOP_AVG, plain, ELEMS, 3);
        reduce_scale(dtypes[d], plain, plain, 1.0 / 3, ELEMS);
        _mm_setcsr(odd);
        reduce_n(dtypes[d], REDOP_SUM, changed, src, 3, ELEMS);
        reduce_finish(dtypes[d], REDOP_AVG, changed, ELEMS, 3);
        reduce_scale(dtypes[d], changed, changed, 1.0 / 3, ELEMS);
        after = _mm_getcsr();
        _mm_setcsr(saved);
        assert_int_equal(after & ~0x3fu, odd);
        assert_memory_equal(plain, changed, n);
    }
#else
    skip();
#endif
}

static void tables_are_chosen_by_name(void **state)
{
    const char *best;

    assert_true(reduce_force(NULL));
    best = reduce_kernels();
    assert_false(reduce_force("sse9"));
    assert_false(reduce_force(""));
    assert_string_equal(reduce_kernels(), best);
    assert_true(reduce_force("baseline"));
    assert_string_equal(reduce_kernels(), "baseline");
    assert_true(reduce_force(NULL));
    assert_string_equal(reduce_kernels(), best);
}

static int run_table(const char *name)
{
    void *table = (void *)(uintptr_t)name;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(all_kernels_match_the_reference, table),
        cmocka_unit_test_prestate(many_sources, table),
        cmocka_unit_test_prestate(outputs_may_be_sources, table),
        cmocka_unit_test_prestate(nothing_is_read_or_written_outside, table),
        cmocka_unit_test_prestate(each_16_bit_float_survives, table),
        cmocka_unit_test_prestate(rounding_by_hand, table),
        cmocka_unit_test_prestate(average_divides_and_truncates, table),
        cmocka_unit_test_prestate(scaling_matches_the_reference, table),
        cmocka_unit_test_prestate(scaling_by_hand, table),
        cmocka_unit_test_prestate(the_callers_fp_mode_does_not_matter, table),
    };

    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(other_operators_need_no_finish),
        cmocka_unit_test(tables_are_chosen_by_name),
    };
    int failed = cmocka_run_group_tests_name("reduce", common, NULL, NULL);

    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        if (reduce_force(tables[i]))
            failed += run_table(tables[i]);
        else
            printf("this CPU has no %s: its kernels are not tested here\n", tables[i]);
    }
    return failed != 0;
}
