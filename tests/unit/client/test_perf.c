/* test_perf.c - commd-perf's data and its command line.
 *
 * Data: an independent reduction, in floating point and in every rank order that matters, must
 * give what the data say; a single wrong bit must be found at its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "client/perf/commd_perf.h"
#include "shm/model/dtype.h"

enum { N = 2500 }; /* more than two periods */

/* The one function of libcommd that these files need. */
size_t commd_dtype_size(int dtype)
{
    return dtype_size((unsigned)dtype);
}

static double load(int dtype, const void *p)
{
#define LOAD(type)                                                                                 \
    {                                                                                              \
        type v;                                                                                    \
        memcpy(&v, p, sizeof(v));                                                                  \
        return (double)v;                                                                          \
    }
    switch ((enum commd_dtype)dtype) {
    case COMMD_I8:
        LOAD(int8_t)
    case COMMD_U8:
    case COMMD_BOOL:
        LOAD(uint8_t)
    case COMMD_I16:
        LOAD(int16_t)
    case COMMD_U16:
        LOAD(uint16_t)
    case COMMD_I32:
        LOAD(int32_t)
    case COMMD_U32:
        LOAD(uint32_t)
    case COMMD_I64:
        LOAD(int64_t)
    case COMMD_U64:
        LOAD(uint64_t)
    case COMMD_F32:
        LOAD(float)
    case COMMD_F64:
        LOAD(double)
    case COMMD_F16:
    case COMMD_BF16:
        break;
    }
    uint16_t half;
    memcpy(&half, p, sizeof(half));
    int sign = half >> 15 ? -1 : 1;
    int fraction = dtype == COMMD_F16 ? 10 : 7, bias = dtype == COMMD_F16 ? 15 : 127;
    int exponent = (half & 0x7fff) >> fraction;
    if (exponent == 0)
        return 0; /* no subnormal is used */
    double v = 1 + (double)(half & ((1 << fraction) - 1)) / (1 << fraction);
    for (int e = exponent - bias; e > 0; e--)
        v *= 2;
    assert_true(exponent >= bias); /* integers only */
    return sign * v;
}

static double combine(const struct perf *p, double a, double b)
{
    bool is_bool = p->dtype == COMMD_BOOL;

    switch ((enum commd_redop)p->redop) {
    case COMMD_SUM:
    case COMMD_AVG:
    case COMMD_PREMUL_SUM:
        return is_bool ? a + b > 0 : a + b;
    case COMMD_PROD:
        return a * b;
    case COMMD_MIN:
        return a < b ? a : b;
    case COMMD_MAX:
        return a > b ? a : b;
    case COMMD_BAND:
        return (double)((int64_t)a & (int64_t)b);
    case COMMD_BOR:
        return (double)((int64_t)a | (int64_t)b);
    case COMMD_BXOR:
        return (double)((int64_t)a ^ (int64_t)b);
    }
    return 0;
}

/* Largest integer up to which every integer is exact in the type. */
static double exact(int dtype)
{
    static const double most[] = {127,          255,  32767, 65535, 2147483647.0,
                                  4294967295.0, 9e15, 9e15,  2048,  256,
                                  16777216,     9e15, 1};
    return most[dtype];
}

/* The reduction of element @i, by ascending or descending ranks; partial results stay exact. */
static double reduce(const struct perf *p, uint8_t *const *inputs, int size, size_t i, bool down)
{
    size_t e = commd_dtype_size(p->dtype);
    double v = 0;

    for (int k = 0; k < size; k++) {
        int r = down ? size - 1 - k : k;
        double x = load(p->dtype, inputs[r] + i * e);

        if (p->redop == COMMD_PREMUL_SUM)
            x *= perf_data_scale(r);
        v = k ? combine(p, v, x) : x;
        assert_true((v < 0 ? -v : v) <= exact(p->dtype));
    }
    return p->redop != COMMD_AVG   ? v
           : p->dtype >= COMMD_F16 ? v / size
                                   : (double)(int64_t)(v / size);
}

/* Results are integers, and small enough for the type. */
static void store(int dtype, void *p, double v)
{
    int64_t integer = (int64_t)v;
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    assert_true((double)integer == v);
    if (dtype == COMMD_F64) {
        memcpy(p, &v, sizeof(v));
    } else if (dtype == COMMD_F32) {
        memcpy(p, &f, sizeof(f));
    } else if (dtype == COMMD_BF16) {
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(p, &half, sizeof(half));
    } else if (dtype == COMMD_F16) {
        uint16_t half = (uint16_t)(bits >> 16 & 0x8000);
        if (bits & 0x7fffffff)
            half |= (uint16_t)(((bits >> 23 & 0xff) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
        memcpy(p, &half, sizeof(half));
    } else {
        memcpy(p, &integer, commd_dtype_size(dtype));
    }
}

static void one_case(int coll, int dtype, int redop, int size)
{
    struct perf perf = {.coll = coll, .dtype = dtype, .redop = redop, .size = size};
    size_t e = commd_dtype_size(dtype), first = 0;
    struct perf_data *data[160];
    uint8_t *inputs[160], result[N * 8];

    for (int r = 0; r < size; r++) {
        assert_int_equal(perf_data_new(&perf, r, size, &data[r]), 0);
        inputs[r] = malloc(N * e);
        perf_data_fill(data[r], inputs[r], 0, 700);
        perf_data_fill(data[r], inputs[r] + 700 * e, 700, N - 700);
    }
    for (size_t i = 0; i < N; i++) {
        double v = reduce(&perf, inputs, size, i, false);

        assert_true(v == reduce(&perf, inputs, size, i, true));
        store(dtype, result + i * e, v);
    }
    if (perf_data_wrong(data[0], result, 0, N, 0, &first))
        fail_msg("%s %s, %d ranks: element %zu", dtype_name((unsigned)dtype),
                 redop_name((unsigned)redop), size, first);
    assert_int_equal(perf_data_wrong(data[0], result + 1500 * e, 1500, N - 1500, 0, &first), 0);
    result[1234 * e] ^= 1;
    result[2000 * e + e - 1] ^= 0x80;
    assert_int_equal(perf_data_wrong(data[0], result, 0, N, 0, &first), 2);
    assert_int_equal(first, 1234);
    for (int r = 0; r < size; r++) {
        free(inputs[r]);
        perf_data_free(data[r]);
    }
}

static bool defined(int dtype, int redop)
{
    if (dtype >= COMMD_F16 && dtype <= COMMD_F64)
        return redop <= COMMD_MAX || redop == COMMD_PREMUL_SUM;
    return redop != COMMD_PREMUL_SUM && (dtype != COMMD_BOOL || redop != COMMD_AVG);
}

static void every_reduction_is_predicted(void **state)
{
    static const int sizes[] = {1, 2, 3, 7};

    for (int dtype = COMMD_I8; dtype <= COMMD_BOOL; dtype++)
        for (int redop = COMMD_SUM; redop <= COMMD_PREMUL_SUM; redop++)
            for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
                if (defined(dtype, redop))
                    one_case(s % 2 ? COMMD_ALL_REDUCE : COMMD_REDUCE_SCATTER, dtype, redop,
                             sizes[s]);
}

/* More ranks than the narrow types can count. */
static void many_ranks(void **state)
{
    one_case(COMMD_ALL_REDUCE, COMMD_I8, COMMD_SUM, 150);
    one_case(COMMD_ALL_REDUCE, COMMD_BF16, COMMD_SUM, 150);
    one_case(COMMD_ALL_REDUCE, COMMD_BF16, COMMD_AVG, 150);
    one_case(COMMD_ALL_REDUCE, COMMD_F32, COMMD_PROD, 150);
    one_case(COMMD_ALL_REDUCE, COMMD_F16, COMMD_PREMUL_SUM, 150);
}

static void moved_data_name_their_source(void **state)
{
    for (int dtype = COMMD_I8; dtype <= COMMD_F64; dtype++) {
        struct perf perf = {.coll = COMMD_ALL_GATHER, .dtype = dtype, .size = 3};
        size_t e = commd_dtype_size(dtype), first = 0;
        struct perf_data *a, *b;
        uint8_t block[N * 8];

        assert_int_equal(perf_data_new(&perf, 0, 3, &a), 0);
        assert_int_equal(perf_data_new(&perf, 2, 3, &b), 0);
        perf_data_fill(b, block, 0, N);
        assert_int_equal(perf_data_wrong(a, block, 0, N, 2, &first), 0);
        assert_true(perf_data_wrong(a, block, 0, N, 1, &first) > N / 2); /* another rank's */
        assert_true(perf_data_wrong(a, block + e, 0, N - 1, 2, &first) > N / 2); /* shifted */
        perf_data_free(a);
        perf_data_free(b);
    }
}

/* ---- the collectives -------------------------------------------------------------------- */

static const int all_colls[] = {
    COMMD_BARRIER,    COMMD_ALL_REDUCE,     COMMD_BROADCAST,        COMMD_ALL_GATHER,
    COMMD_REDUCE,     COMMD_REDUCE_SCATTER, COMMD_GATHER,           COMMD_SCATTER,
    COMMD_ALL_TO_ALL, COMMD_ALL_GATHER_V,   COMMD_REDUCE_SCATTER_V, COMMD_GATHER_V,
    COMMD_SCATTER_V,  COMMD_ALL_TO_ALL_V,
};

/* By hand from nccl-tests' doc/PERFORMANCE.md. */
static void bus_factors(void **state)
{
    static const struct {
        int coll;
        double two, eight;
    } want[] = {
        {COMMD_ALL_REDUCE, 1, 1.75},
        {COMMD_REDUCE, 1, 1},
        {COMMD_BROADCAST, 1, 1},
        {COMMD_ALL_GATHER, 0.5, 0.875},
        {COMMD_GATHER, 0.5, 0.875},
        {COMMD_SCATTER, 0.5, 0.875},
        {COMMD_REDUCE_SCATTER, 0.5, 0.875},
        {COMMD_ALL_TO_ALL, 0.5, 0.875},
        {PERF_SENDRECV, 1, 1},
        {PERF_PINGPONG, 1, 1},
        {COMMD_ALL_TO_ALL_V, 0.5, 0.875},
        {COMMD_REDUCE_SCATTER_V, 0.5, 0.875},
    };

    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        assert_true(perf_bus_factor(want[i].coll, 2) == want[i].two);
        assert_true(perf_bus_factor(want[i].coll, 8) == want[i].eight);
    }
    assert_true(perf_bus_factor(COMMD_ALL_REDUCE, 1) == 0);
}

/* A size is that of all blocks, rounded down to whole elements, but one at least. */
static void sizes(void **state)
{
    struct perf p = {.coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32};

    assert_int_equal(perf_count(&p, 3, 1000), 250);
    assert_int_equal(perf_bytes(&p, 3, 250), 1000);
    p.coll = COMMD_ALL_TO_ALL;
    assert_int_equal(perf_count(&p, 3, 1000), 83);
    assert_int_equal(perf_bytes(&p, 3, 83), 996);
    assert_int_equal(perf_count(&p, 3, 8), 1);
    assert_int_equal(perf_bytes(&p, 3, 1), 12);
    p.coll = COMMD_BARRIER;
    assert_int_equal(perf_bytes(&p, 3, 1), 0);
}

/* What i sends to j is what j expects from i, and no block of a _v form looks like another. */
static void shapes_fit_each_other(void **state)
{
    enum { COUNT = 21 };

    for (size_t c = 0; c < ARRAY_LEN(all_colls); c++)
        for (int size = 1; size <= 5; size++) {
            struct perf p = {.coll = all_colls[c], .dtype = COMMD_I8, .size = size};
            bool unequal = all_colls[c] >= COMMD_ALL_GATHER_V, differ = false;
            struct perf_shape s[5];

            for (int r = 0; r < size; r++)
                assert_int_equal(perf_shape_init(&p, r, size, COUNT, &s[r]), 0);
            for (int i = 0; i < size; i++)
                for (int j = 0; j < size; j++) {
                    if (all_colls[c] == COMMD_ALL_TO_ALL_V)
                        assert_int_equal(s[i].send_counts[j], s[j].recv_counts[i]);
                    if (all_colls[c] == COMMD_GATHER_V)
                        assert_int_equal(s[i].send_counts[0], s[0].recv_counts[i]);
                    if (all_colls[c] == COMMD_SCATTER_V)
                        assert_int_equal(s[0].send_counts[j], s[j].recv_counts[0]);
                    if (all_colls[c] == COMMD_REDUCE_SCATTER_V)
                        assert_int_equal(s[i].send_counts[j], s[j].recv_n);
                    if (all_colls[c] == COMMD_ALL_GATHER_V)
                        assert_int_equal(s[i].recv_counts[j], s[j].send_n);
                    differ |= s[i].send_counts[j] != COUNT || s[i].recv_counts[j] != COUNT;
                }
            assert_int_equal(differ, unequal && size > 1);
            if (all_colls[c] == COMMD_ALL_TO_ALL_V)
                for (int r = 0; r < size; r++) {
                    assert_int_equal(s[r].send_n, (size_t)size * COUNT);
                    assert_int_equal(s[r].recv_n, (size_t)size * COUNT);
                }
            for (int r = 0; r < size; r++)
                perf_shape_fini(&s[r]);
        }
}

/* Moves blocks as all_to_all_v does: what comes out is right, and with two blocks exchanged it
 * is not. */
static void exchanged_blocks_are_seen(void **state)
{
    enum { SIZE = 4, COUNT = 600, ME = 2 };
    struct perf p = {.coll = COMMD_ALL_TO_ALL_V, .dtype = COMMD_I16, .size = SIZE};
    int16_t recv[SIZE * COUNT], *to = recv;
    struct perf_shape s[SIZE];
    struct perf_data *data[SIZE];
    size_t first = 0;

    for (int r = 0; r < SIZE; r++) {
        assert_int_equal(perf_shape_init(&p, r, SIZE, COUNT, &s[r]), 0);
        assert_int_equal(perf_data_new(&p, r, SIZE, &data[r]), 0);
    }
    for (int r = 0; r < SIZE; r++) {
        size_t at = 0;

        for (int k = 0; k < ME; k++)
            at += s[r].send_counts[k];
        perf_data_fill(data[r], to, at, s[r].send_counts[ME]);
        to += s[r].send_counts[ME];
    }
    assert_ptr_equal(to, recv + s[ME].recv_n);
    assert_int_equal(perf_wrong(&p, &s[ME], data[ME], recv, &first), 0);
    for (size_t i = 0; i < s[ME].recv_counts[0]; i++) { /* blocks 0 and 2 have the same size */
        int16_t x = recv[i];
        size_t other = s[ME].recv_counts[0] + s[ME].recv_counts[1] + i;

        recv[i] = recv[other];
        recv[other] = x;
    }
    assert_true(perf_wrong(&p, &s[ME], data[ME], recv, &first) > COUNT);
    for (int r = 0; r < SIZE; r++) {
        perf_shape_fini(&s[r]);
        perf_data_free(data[r]);
    }
}

/* Everybody that sends is received from. */
static void partners(void **state)
{
    assert_int_equal(perf_dest(PERF_SENDRECV, 2, 3), 0);
    assert_int_equal(perf_source(PERF_SENDRECV, 0, 3), 2);
    assert_int_equal(perf_dest(PERF_PINGPONG, 1, 5), 3);
    assert_int_equal(perf_dest(PERF_PINGPONG, 3, 5), 1);
    assert_int_equal(perf_dest(PERF_PINGPONG, 4, 5), -1);
    assert_int_equal(perf_dest(PERF_PINGPONG, 0, 1), -1);
    for (int coll = PERF_SENDRECV; coll <= PERF_PINGPONG; coll++)
        for (int size = 2; size < 9; size++)
            for (int r = 0; r < size; r++)
                if (perf_dest(coll, r, size) >= 0)
                    assert_int_equal(perf_source(coll, perf_dest(coll, r, size), size), r);
}

/* ---- statistics -------------------------------------------------------------------------- */

static void percentiles(void **state)
{
    struct perf_row row = {0};
    double times[1000], one = 7;

    for (int i = 0; i < 1000; i++)
        times[i] = 1000 - i; /* 1 to 1000, falling */
    perf_row_times(&row, times, 1000);
    assert_true(row.min_us == 1);
    assert_true(row.p50_us == 500);
    assert_true(row.p99_us == 990);
    assert_true(row.p999_us == 999);
    assert_true(row.max_us == 1000);
    assert_int_equal(row.iterations, 1000);
    perf_row_times(&row, times, 3);
    assert_true(row.p50_us == 2 && row.p99_us == 3 && row.p999_us == 3);
    perf_row_times(&row, &one, 1);
    assert_true(row.min_us == 7 && row.p50_us == 7 && row.p999_us == 7);
}

static void overlaps(void **state)
{
    assert_true(perf_overlap(10, 10, 10) == 1); /* all hidden */
    assert_true(perf_overlap(10, 10, 20) == 0); /* one after the other */
    assert_true(perf_overlap(10, 10, 15) == 0.5);
    assert_true(perf_overlap(10, 40, 45) == 0.5); /* of the shorter */
    assert_true(perf_overlap(40, 10, 45) == 0.5);
    assert_true(perf_overlap(10, 10, 30) == 0); /* worse than one after the other is not below 0 */
    assert_true(perf_overlap(10, 10, 5) == 1);
    assert_true(perf_overlap(10, 0, 10) == 0);
}

/* ---- the command line -------------------------------------------------------------------- */

static int parse(struct perf *p, const char *line)
{
    char *words[32] = {"commd-perf"}, *copy = strdup(line), *save = NULL;
    static char *kept[64]; /* options point into it */
    static unsigned n;
    int argc = 1;

    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        words[argc++] = w;
    free(kept[n % 64]);
    kept[n++ % 64] = copy;
    return perf_parse(argc, words, p);
}

static void options(void **state)
{
    struct perf p;

    assert_int_equal(parse(&p, "all_reduce"), -1);
    assert_int_equal(p.coll, COMMD_ALL_REDUCE);
    assert_int_equal(p.dtype, COMMD_F32);
    assert_int_equal(p.size, 2);
    assert_null(p.sockets[0]);
    assert_false(p.launched);
    assert_false(p.async || p.registered);
    assert_false(p.cyclic);
    assert_int_equal(p.groups, 1);
    assert_int_equal(
        parse(&p, "all_to_all_v --async --registered --groups 40 --placement cyclic --minbytes 64 "
                  "--check 0 --datatype double --turns /d"),
        -1);
    assert_int_equal(p.coll, COMMD_ALL_TO_ALL_V);
    assert_true(p.async && p.registered && p.cyclic && !p.check);
    assert_int_equal(p.groups, 40);
    assert_int_equal(p.min_bytes, 64);
    assert_int_equal(p.dtype, COMMD_F64);
    assert_string_equal(p.turns, "/d");
    assert_int_equal(parse(&p, "reduce -o premul_sum -d bf16"), -1);
    for (size_t i = 0; i < ARRAY_LEN(all_colls); i++) {
        assert_int_equal(parse(&p, perf_coll_name(all_colls[i])), -1);
        assert_int_equal(p.coll, all_colls[i]);
    }
    assert_int_equal(parse(&p, "all_gather -b 1K -e 2MiB -i 3GB -n 7 -w 0 -d half -o max -c 0"),
                     -1);
    assert_int_equal(p.min_bytes, 1024);
    assert_int_equal(p.max_bytes, 2 << 20);
    assert_int_equal(p.step, 3ul << 30);
    assert_int_equal(p.factor, 0);
    assert_int_equal(p.iterations, 7);
    assert_int_equal(p.warmup, 0);
    assert_int_equal(p.dtype, COMMD_F16);
    assert_int_equal(p.redop, COMMD_MAX);
    assert_false(p.check);
    assert_int_equal(parse(&p, "broadcast --ranks 3 --nodes /a,/b -r 5 --json f -b 1G"), -1);
    assert_int_equal(p.size, 6);
    assert_string_equal(p.sockets[1], "/b");
    assert_int_equal(p.root, 5);
    assert_string_equal(p.json, "f");
    assert_int_equal(p.max_bytes, 1 << 30); /* -b alone moves -e along */
}

static void wrong_options(void **state)
{
    static const char *const lines[] = {
        "",
        "frob",
        "all_reduce barrier",
        "all_reduce -b 0",
        "all_reduce -a 4",
        "all_reduce --average mean",
        "all_reduce --warmup-time -1",
        "all_reduce -b -1",
        "all_reduce -b 1T",
        "all_reduce -b 1KK",
        "all_reduce -e 99999999999G",
        "all_reduce -b 2M -e 1M",
        "all_reduce -f 1",
        "all_reduce -f 2 -i 8",
        "all_reduce -n 0",
        "all_reduce -n 1x",
        "all_reduce -d f8",
        "all_reduce -o xor",
        "all_reduce -d bool -o avg",
        "all_reduce -o band",
        "all_reduce -d f64 -o bxor",
        "all_reduce -r 2",
        "all_reduce --ranks 0",
        "all_reduce --ranks 1025",
        "all_reduce --nodes ,",
        "all_reduce -z",
        "all_reduce -o premul_sum -d i32",
        "all_reduce --groups 0",
        "all_reduce --groups 4097",
        "all_reduce --placement random",
        "pingpong --async",
        "pingpong --groups 2",
    };
    struct perf p;

    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        if (parse(&p, lines[i]) != PERF_USAGE)
            fail_msg("accepted: %s", lines[i]);
}

static void launchers(void **state)
{
    static const char *const names[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    struct perf p;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        setenv(names[i][0], "3", 1);
        setenv(names[i][1], "5", 1);
        assert_int_equal(parse(&p, "all_reduce -r 4"), -1);
        assert_true(p.launched);
        assert_int_equal(p.rank, 3);
        assert_int_equal(p.size, 5);
        assert_int_equal(parse(&p, "all_reduce --ranks 2"), -1); /* what is said wins */
        assert_false(p.launched);
        assert_int_equal(p.size, 2);
        setenv(names[i][1], "3", 1); /* rank 3 of 3 is nonsense */
        assert_int_equal(parse(&p, "all_reduce"), -1);
        assert_false(p.launched);
        unsetenv(names[i][0]);
        unsetenv(names[i][1]);
    }
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* A library that does nothing, and whose ranks agree on what stands here. */
static uint64_t given[2];                 /* the first and last of this rank's times */
static int asked[16], nasked;             /* reductions of times */
static const uint64_t all_took = 3000000; /* ns */
static unsigned runs, warm; /* operations; and how often somebody is still warming up */

static int nothing(void *arg)
{
    return 0;
}

static int no_work(void *arg, const struct commd_op *ops)
{
    runs++;
    return 0;
}

static int told(void *arg, uint64_t *values, size_t n, int redop)
{
    if (n == 1 && redop == COMMD_MAX) {
        values[0] = warm && warm--;
        return 0;
    }
    if (n == 1) { /* wrong elements */
        assert_int_equal(redop, COMMD_SUM);
        return 0;
    }
    asked[nasked++] = redop;
    given[0] = values[0];
    given[1] = values[n - 1];
    for (size_t i = 0; i < n; i++)
        values[i] = all_took;
    return 0;
}

void perf_complain(int rank, const char *format, ...)
{
    fail_msg("%s", format);
}

/* The row that rank @rank of @size reports. */
static struct perf_row measured(const char *line, int rank, int size)
{
    static const struct perf_library library = {
        .barrier = nothing, .run = no_work, .start = no_work, .wait = nothing, .reduce = told};
    static const volatile sig_atomic_t interrupted;
    struct perf_report report = {.quiet = true, .ranks = size};
    struct perf_row row;
    struct perf p;
    struct perf_loop loop = {.perf = &p,
                             .library = &library,
                             .rank = rank,
                             .size = size,
                             .interrupted = &interrupted,
                             .report = &report};

    assert_int_equal(parse(&p, line), -1);
    report.perf = &p;
    nasked = 0;
    runs = 0;
    assert_int_equal(perf_measure(&loop), PERF_OK);
    assert_int_equal(report.nrows, 1);
    row = report.rows[0];
    free(report.rows);
    return row;
}

static void times_are_of_all_ranks(void **state)
{
    struct perf_row row = measured("all_reduce -e 8 -n 5 -c 0", 1, 4);

    assert_true(row.min_us == 750 && row.p50_us == 750 && row.max_us == 750); /* the mean */
    assert_int_equal(nasked, 1);
    assert_int_equal(asked[0], COMMD_SUM);
    row = measured("all_reduce -e 8 -n 5 -c 0 -a max", 0, 4);
    assert_int_equal(asked[0], COMMD_MAX);
    assert_true(row.p50_us == 3000);
    row = measured("all_reduce -e 8 -n 5 -c 0 -a 2", 0, 4);
    assert_int_equal(asked[0], COMMD_MIN);
    assert_true(row.p50_us == 3000);
    measured("all_reduce -e 8 -n 5 -c 0 -a rank0", 0, 4);
    assert_int_equal(nasked, 0);
    row = measured("broadcast -e 8 -n 5 -c 0 --async", 0, 2);
    assert_int_equal(nasked, 3);
    assert_true(row.p50_us == 1500 && row.compute_us == 1500 && row.together_us == 1500);
}

/* All ranks do as many iterations, whatever their own clock says. */
static void ranks_begin_and_end_together(void **state)
{
    struct perf_row row;

    warm = 0;
    measured("all_reduce -e 8 -n 5 -w 2 -c 0", 0, 2);
    assert_int_equal(runs, 2 + 5);
    measured("all_reduce -e 8 -n 5 -w 2 -c 0 --warmup-time 60000", 0, 2);
    assert_int_equal(runs, 2 + 1 + 5);
    warm = 8;
    measured("all_reduce -e 8 -n 5 -w 2 -c 0 --warmup-time 1", 0, 2);
    assert_int_equal(runs, 2 + 1 + 2 + 4 + 8 + 16 + 32 + 64 + 64 + 64 + 5);
    warm = 2;
    row = measured("all_reduce -e 8 -n 50 -w 2 -c 0 --time-limit 1", 0, 2);
    assert_int_equal(row.iterations, 1 + 2 + 4);
    assert_int_equal(runs, 2 + 1 + 2 + 4);
    warm = 99;
    row = measured("all_reduce -e 8 -n 50 -w 2 -c 0 --time-limit 60000", 0, 2);
    assert_int_equal(row.iterations, 50);
    warm = 0;
}

static void who_answers_pings_is_not_timed(void **state)
{
    struct perf_row row = measured("pingpong -e 8 -n 5 -c 0", 2, 5);

    assert_true(row.p50_us == 1500); /* two pairs */
    assert_int_equal(given[0] + given[1], 0);
    measured("pingpong -e 8 -n 5 -c 0 -a max", 4, 5);
    assert_int_equal(given[0] + given[1], 0);
    measured("pingpong -e 8 -n 5 -c 0 -a min", 3, 5);
    assert_true(given[0] == UINT64_MAX && given[1] == UINT64_MAX);
    measured("pingpong -e 8 -n 5 -c 0 -a min", 1, 5);
    assert_true(given[0] < UINT64_MAX && given[1] < UINT64_MAX);
    measured("pingpong -e 8 -n 5 -c 0 -a min", 0, 1); /* nobody is */
    assert_int_equal(nasked, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reduction_is_predicted),
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(moved_data_name_their_source),
        cmocka_unit_test(bus_factors),
        cmocka_unit_test(sizes),
        cmocka_unit_test(shapes_fit_each_other),
        cmocka_unit_test(exchanged_blocks_are_seen),
        cmocka_unit_test(partners),
        cmocka_unit_test(times_are_of_all_ranks),
        cmocka_unit_test(ranks_begin_and_end_together),
        cmocka_unit_test(who_answers_pings_is_not_timed),
        cmocka_unit_test(percentiles),
        cmocka_unit_test(overlaps),
        cmocka_unit_test(options),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(launchers),
    };
    static const char *const launched_by[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                              "SLURM_PROCID"};

    for (size_t i = 0; i < ARRAY_LEN(launched_by); i++)
        unsetenv(launched_by[i]);
    return cmocka_run_group_tests_name("perf", tests, NULL, NULL);
}
