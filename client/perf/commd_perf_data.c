/* commd_perf_data.c - inputs whose results are known to the last bit.
 *
 * Element i of rank r's input is a small integer v(i, r). It repeats after PERIOD elements, a
 * prime, so that no chunk or page boundary falls on a repetition and data that end up in a
 * wrong place are seen. Results are then periodic too: one period is computed once, in
 * integers, and filling and checking are memcpy() and memcmp().
 *
 * Exact means: no rounding and no overflow in any order of reduction, in partial results of any
 * subset of the ranks included.
 *   sum, avg   |v| <= limit / size, so every partial sum stays within what the type holds
 *              exactly (integers to 2^8 in bf16). With more ranks than the limit the rest
 *              sends zeros. A float's average needs a sum that the size divides, so there all
 *              ranks send b(i), plus and minus 1 in pairs of ranks; an integer's truncates.
 *   prod       1 but for a few ranks: 2 from two of them, 3 and -1 from one each; so within 12
 *   premul_sum as sum, with even values and the factors 2, -1, 1/2 and 1, by rank
 *   min, max, band, bor, bxor   any
 *   bool       0 or 1; sum and max are or, prod and min are and */
#include <stdio.h>

#include "client/perf/commd_perf.h"

enum { PERIOD = 1021 };
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "see put_element()");

struct perf_data {
    const struct perf *perf; /* borrowed */
    int rank, size;
    size_t elem; /* bytes of one element */
    bool is_signed, is_float;
    int limit;       /* largest magnitude of a sum */
    uint8_t *input;  /* owned: one period, in the data type */
    uint8_t *result; /* owned: the same, or for collectives that move one of each rank's input */
    bool *shown;     /* owned: the ranks whose inputs are in result */
};

static uint32_t mix(uint32_t i, uint32_t r)
{
    uint32_t x = (i + 1) * 2654435761u ^ (r + 1) * 2246822519u;

    x ^= x >> 15;
    x *= 2654435761u;
    return x ^ x >> 13;
}

static int value_sum(const struct perf_data *d, uint32_t i, int r, int limit)
{
    int most = limit / d->size;

    if (most < 1)
        return r < limit ? (int)(mix(i, (uint32_t)r) % 2) : 0;
    most = MIN(most, 1000);
    return (int)(mix(i, (uint32_t)r) % (uint32_t)(most + 1)) - (d->is_signed ? most / 2 : 0);
}

/* The sum is size * b(i). The last of an odd number of ranks has no partner to differ from, nor
 * do ranks beyond the limit. */
static int value_avg_float(const struct perf_data *d, uint32_t i, int r)
{
    int b = d->limit / d->size > 1 ? (int)(mix(i, 0) % (uint32_t)MIN(d->limit / d->size, 100)) : 0;

    if ((r | 1) >= MIN(d->size, d->limit))
        return b;
    return r & 1 ? b + 1 : b - 1;
}

static int value_prod(const struct perf_data *d, uint32_t i, int r)
{
    int v = 1;

    if ((int)(i % (uint32_t)d->size) == r)
        v *= 2;
    if ((int)(i / 3 % (uint32_t)d->size) == r)
        v *= 2;
    if (i % 2 && (int)(i % 7 % (uint32_t)d->size) == r)
        v *= 3;
    if (d->is_signed && (int)(i % 5 % (uint32_t)d->size) == r)
        v = -v;
    return v;
}

/* A small integer is the weakest test of a factor but the only one that is exact in bf16: every
 * value is even, so that half of it is an integer, and a quarter of the limit, so that twice it
 * is within. */
static const struct {
    int twice;
    double scale;
} scales[] = {{4, 2.0}, {-2, -1.0}, {1, 0.5}, {2, 1.0}};

double perf_data_scale(int rank)
{
    assert(rank >= 0);
    return scales[(unsigned)rank % ARRAY_LEN(scales)].scale;
}

/* What rank @r's value contributes. */
static int scaled(const struct perf_data *d, int r, int v)
{
    if (!perf_reduces(d->perf->coll) || d->perf->redop != COMMD_PREMUL_SUM)
        return v;
    return v / 2 * scales[(unsigned)r % ARRAY_LEN(scales)].twice;
}

static int value(const struct perf_data *d, uint32_t i, int r)
{
    if (d->perf->dtype == COMMD_BOOL) /* all 0, all 1 and mixed do occur */
        return i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : (int)(mix(i, (uint32_t)r) % 2);
    if (!perf_reduces(d->perf->coll))
        return (int)(mix(i, (uint32_t)r) % 120) - (d->is_signed ? 60 : 0);
    switch (d->perf->redop) {
    case COMMD_AVG:
        return d->is_float ? value_avg_float(d, i, r) : value_sum(d, i, r, d->limit);
    case COMMD_PREMUL_SUM:
        return 2 * value_sum(d, i, r, d->limit / 4);
    case COMMD_PROD:
        return value_prod(d, i, r);
    case COMMD_MIN:
    case COMMD_MAX:
    case COMMD_BAND:
    case COMMD_BOR:
    case COMMD_BXOR:
        return (int)(mix(i, (uint32_t)r) % 120) - (d->is_signed ? 60 : 0);
    default:
        return value_sum(d, i, r, d->limit);
    }
}

static int combine(const struct perf *perf, int a, int b)
{
    bool is_bool = perf->dtype == COMMD_BOOL;

    switch (perf->redop) {
    case COMMD_PROD:
        return is_bool ? a && b : a * b;
    case COMMD_MIN:
        return MIN(a, b);
    case COMMD_MAX:
        return MAX(a, b);
    case COMMD_BAND:
        return a & b;
    case COMMD_BOR:
        return a | b;
    case COMMD_BXOR:
        return a ^ b;
    default:
        return is_bool ? a || b : a + b;
    }
}

static int reduced(const struct perf_data *d, uint32_t i)
{
    int v = scaled(d, 0, value(d, i, 0));

    for (int r = 1; r < d->size; r++)
        v = combine(d->perf, v, scaled(d, r, value(d, i, r)));
    return d->perf->redop == COMMD_AVG ? v / d->size : v;
}

/* Sign, exponent biased by 15, ten bits of fraction. */
static uint16_t to_f16(int v)
{
    unsigned sign = v < 0 ? 0x8000 : 0, m = (unsigned)abs(v), e = 0;

    assert(m < 2048); /* what f16 holds exactly */
    if (m == 0)
        return 0;
    while (m >> (e + 1))
        e++;
    return (uint16_t)(sign | (e + 15) << 10 | ((m << (10 - e)) & 0x3ff));
}

/* The upper half of an f32. */
static uint16_t to_bf16(int v)
{
    assert(abs(v) <= 256); /* what bf16 holds exactly */
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

#define PUT(type, x)                                                                               \
    {                                                                                              \
        type put = (type)(x);                                                                      \
        memcpy(to, &put, sizeof(put));                                                             \
        break;                                                                                     \
    }

static void put_element(int dtype, void *to, int v)
{
    int64_t typed = v;

    switch ((enum commd_dtype)dtype) {
    case COMMD_F16:
        PUT(uint16_t, to_f16(v))
    case COMMD_BF16:
        PUT(uint16_t, to_bf16(v))
    case COMMD_F32:
        PUT(float, v)
    case COMMD_F64:
        PUT(double, v)
    case COMMD_I8:
    case COMMD_U8:
    case COMMD_I16:
    case COMMD_U16:
    case COMMD_I32:
    case COMMD_U32:
    case COMMD_I64:
    case COMMD_U64:
    case COMMD_BOOL:
        /* its lower bytes come first */
        memcpy(to, &typed, commd_dtype_size(dtype));
    }
}

/* What a moved block holds: the input of rank @source. Computed once: it takes 20 us, which those
 * who share the rank's core would miss. */
static const uint8_t *source_input(struct perf_data *d, int source)
{
    uint8_t *input = d->result + (size_t)source * PERIOD * d->elem;

    assert(source >= 0 && source < d->size);
    if (d->shown[source])
        return input;
    for (uint32_t i = 0; i < PERIOD; i++)
        put_element(d->perf->dtype, input + i * d->elem, value(d, i, source));
    d->shown[source] = true;
    return input;
}

int perf_data_new(const struct perf *perf, int rank, int size, struct perf_data **ret_data)
{
    struct perf_data *d = calloc(1, sizeof(*d));
    int dtype = perf->dtype;
    size_t results = perf_reduces(perf->coll) ? 1 : (size_t)size;

    assert(rank >= 0 && rank < size);
    if (!d)
        return -ENOMEM;
    d->perf = perf;
    d->rank = rank;
    d->size = size;
    d->elem = commd_dtype_size(dtype);
    d->is_float =
        dtype == COMMD_F16 || dtype == COMMD_BF16 || dtype == COMMD_F32 || dtype == COMMD_F64;
    d->is_signed = d->is_float || dtype == COMMD_I8 || dtype == COMMD_I16 || dtype == COMMD_I32 ||
                   dtype == COMMD_I64;
    d->limit = d->elem == 1 || dtype == COMMD_F16 || dtype == COMMD_BF16 ? 120
               : d->elem == 2                                            ? 30000
                                                                         : 1 << 20;
    d->input = malloc(PERIOD * d->elem);
    d->result = malloc(results * PERIOD * d->elem);
    d->shown = calloc(results, sizeof(*d->shown));
    if (!d->input || !d->result || !d->shown) {
        perf_data_free(d);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < PERIOD; i++) {
        put_element(dtype, d->input + i * d->elem, value(d, i, rank));
        if (perf_reduces(perf->coll))
            put_element(dtype, d->result + i * d->elem, reduced(d, i));
    }
    *ret_data = d;
    return 0;
}

void perf_data_free(struct perf_data *data)
{
    if (!data)
        return;
    free(data->input);
    free(data->result);
    free(data->shown);
    free(data);
}

void perf_data_fill(const struct perf_data *data, void *buf, size_t from, size_t n)
{
    uint8_t *to = buf;

    while (n > 0) {
        size_t at = from % PERIOD, part = MIN(n, PERIOD - at);

        memcpy(to, data->input + at * data->elem, part * data->elem);
        to += part * data->elem;
        from += part;
        n -= part;
    }
}

size_t perf_data_wrong(struct perf_data *data, const void *buf, size_t from, size_t n, int source,
                       size_t *ret_first)
{
    const uint8_t *is = buf, *result = data->result;
    size_t wrong = 0, done = 0;

    if (!perf_reduces(data->perf->coll))
        result = source_input(data, source);
    while (done < n) {
        size_t at = (from + done) % PERIOD, part = MIN(n - done, PERIOD - at), e = data->elem;
        const uint8_t *should = result + at * e;

        if (memcmp(is + done * e, should, part * e)) {
            for (size_t i = 0; i < part; i++)
                if (memcmp(is + (done + i) * e, should + i * e, e) && wrong++ == 0)
                    *ret_first = from + done + i;
        }
        done += part;
    }
    return wrong;
}
