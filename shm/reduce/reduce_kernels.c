/* reduce_kernels.c - the reduction loops. Compiled once per instruction set: with
 * REDUCE_ISA_AVX512 or REDUCE_ISA_AVX2 and the -m flags that go with it, and without either
 * for the plain CPU (SSE2, NEON).
 *
 * The model. An element's result is ((src[0] op src[1]) op src[2]) op ..., in that order, in
 * every build: elements lie side by side in a register and never meet, nothing is
 * reassociated and no multiplication is fused with an addition, so the bits do not depend
 * on the CPU, on the width of its registers or on where an element lies in the buffer. The
 * one thing that IEEE 754 leaves open, which NaN comes out, is settled by storing always the
 * same one. f16 and bf16 are f32 from the load to the store: one rounding per element.
 *
 * The loops. A pass walks over one stretch of the buffers and keeps the accumulators in
 * registers while it visits every source: each input is read once, the result written once.
 * That holds as far as the CPU can follow so many streams; more than GROUP sources are taken
 * a block at a time, GROUP of them per pass, and between two passes the accumulators of the
 * block lie in a buffer that stays in the L1 cache.
 *
 * Aliasing. Every position of every source is read before that position of dst and dst2 is
 * written, therefore each may be the same as any source.
 *
 * All sizes here are bytes of the sources: a register holds VEC bytes of them, or half as
 * many of a 16-bit float. What is left below a wide register goes through 16-byte ones, and
 * the last few elements are put together in one: 8 bytes cost as little as 16. */
#include "shm/reduce/reduce_kernels.h"

#include "shm/util/copy.h"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "the reduction promises identical bits and NaNs that stay: build without -ffast-math"
#endif
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "load_part() counts from the low byte");

#if defined(REDUCE_ISA_AVX512)
#define REDUCE_X86
#define REDUCE_TABLE reduce_table_avx512
#define WIDE_BYTES   64
#elif defined(REDUCE_ISA_AVX2)
#define REDUCE_X86
#define REDUCE_TABLE reduce_table_avx2
#define WIDE_BYTES   32
#else
#define REDUCE_TABLE reduce_table_baseline
#define WIDE_BYTES   16
#endif

#if defined(REDUCE_X86)
#include <immintrin.h>
#endif

enum {
    SLIM_BYTES = 16,
    /* Sources per pass: about as many streams as a core's prefetchers follow. */
    GROUP = 8,
    /* One page of each source per pass; the accumulators are at most twice as long. */
    BLOCK = 4096,
};

/* Whether two wide registers are loaded as even and odd elements: cheaper than one after the
 * other, unless the CPU converts in one instruction. */
static ALWAYS_INLINE bool in_pairs(unsigned dtype)
{
#if defined(REDUCE_X86)
    return dtype == DTYPE_BF16;
#else
    return dtype_is_half(dtype);
#endif
}

#define NAN_F32   0x7fc00000
#define NAN_F64   0x7ff8000000000000

#define VEC_BYTES 16
#define VEC(name) slim_##name
#include "shm/reduce/reduce_vec.h"
#undef VEC
#undef VEC_BYTES

#if WIDE_BYTES > 16
#define VEC_BYTES WIDE_BYTES
#define VEC(name) wide_##name
#include "shm/reduce/reduce_vec.h"
#undef VEC
#undef VEC_BYTES
#else
typedef slim_u8 wide_u8;
#define wide_load       slim_load
#define wide_store      slim_store
#define wide_load_pair  slim_load_pair
#define wide_store_pair slim_store_pair
#define wide_combine    slim_combine
#define wide_divide     slim_divide
#define wide_scale      slim_scale
#endif

/* Bytes of a source that fill one register. */
static ALWAYS_INLINE size_t unit(unsigned dtype, size_t vec_bytes)
{
    return dtype_is_half(dtype) ? vec_bytes / 2 : vec_bytes;
}

/* ---- less than a register -------------------------------------------------------------------- */

#define BYTES_OF(type, get, put)                                                                   \
    static ALWAYS_INLINE uint64_t get(const uint8_t *p)                                            \
    {                                                                                              \
        type v;                                                                                    \
                                                                                                   \
        memcpy(&v, p, sizeof(v));                                                                  \
        return v;                                                                                  \
    }                                                                                              \
    static ALWAYS_INLINE void put(uint8_t *p, uint64_t low)                                        \
    {                                                                                              \
        type v = (type)low;                                                                        \
                                                                                                   \
        memcpy(p, &v, sizeof(v));                                                                  \
    }
BYTES_OF(uint16_t, get16, put16)
BYTES_OF(uint32_t, get32, put32)
BYTES_OF(uint64_t, get64, put64)

/* The @n bytes at @p, 1 to 15, and zeros. Two loads that overlap reach every n; through a
 * buffer on the stack the wide load would have to wait for narrow stores to retire. */
static ALWAYS_INLINE slim_u64 load_bytes(const uint8_t *p, size_t n)
{
    slim_u64 v = {};

    if (n >= 8) {
        v[0] = get64(p);
        if (n > 8)
            v[1] = get64(p + n - 8) >> 8 * (16 - n);
    } else if (n >= 4) {
        v[0] = get32(p) | get32(p + n - 4) << 8 * (n - 4);
    } else if (n >= 2) {
        v[0] = get16(p) | get16(p + n - 2) << 8 * (n - 2);
    } else {
        v[0] = *p;
    }
    return v;
}

static ALWAYS_INLINE void store_bytes(uint8_t *p, size_t n, slim_u64 v)
{
    if (n >= 8) {
        put64(p, v[0]);
        if (n > 8)
            put64(p + n - 8, v[0] >> 8 * (n - 8) | v[1] << 8 * (16 - n));
    } else if (n >= 4) {
        put32(p, v[0]);
        put32(p + n - 4, v[0] >> 8 * (n - 4));
    } else if (n >= 2) {
        put16(p, v[0]);
        put16(p + n - 2, v[0] >> 8 * (n - 2));
    } else {
        *p = (uint8_t)v[0];
    }
}

static ALWAYS_INLINE slim_u8 slim_load_part(unsigned dtype, const uint8_t *p, size_t n)
{
    slim_u64 v = load_bytes(p, n);

    if (dtype_is_half(dtype))
        return slim_widen(dtype, (slim_half)v[0]);
    return dtype == DTYPE_BOOL ? slim_truth((slim_u8)v) : (slim_u8)v;
}

static ALWAYS_INLINE void slim_store_part(unsigned dtype, uint8_t *p, size_t n, slim_u8 v)
{
    slim_u64 raw = (slim_u64)v;

    if (dtype_is_float(dtype))
        raw = (slim_u64)slim_one_nan(dtype, v);
    if (dtype_is_half(dtype))
        raw[0] = (uint64_t)slim_narrow(dtype, (slim_u8)raw);
    store_bytes(p, n, raw);
}

/* ---- one pass over a stretch ----------------------------------------------------------------- */

struct pass {
    const uint8_t *const *src;
    unsigned nsrc;
    bool resume;       /* go on from acc instead of from src[0] */
    bool last;         /* write to dst instead of to acc */
    size_t begin, end; /* bytes of each source */
    uint8_t *acc;      /* accumulators of begin..end; not used when one pass does it all */
    uint8_t *dst;
    uint8_t *dst2; /* NULL: one output is enough */
};

struct wide_four {
    wide_u8 a, b, c, d;
};

static ALWAYS_INLINE struct wide_four four_load(unsigned dtype, const uint8_t *p)
{
    const size_t u = unit(dtype, WIDE_BYTES);
    struct wide_four v;

    if (in_pairs(dtype)) {
        wide_load_pair(dtype, p, &v.a, &v.b);
        wide_load_pair(dtype, p + 2 * u, &v.c, &v.d);
        return v;
    }
    v.a = wide_load(dtype, p);
    v.b = wide_load(dtype, p + u);
    v.c = wide_load(dtype, p + 2 * u);
    v.d = wide_load(dtype, p + 3 * u);
    return v;
}

static ALWAYS_INLINE void four_store(unsigned dtype, uint8_t *p, const struct wide_four *v)
{
    const size_t u = unit(dtype, WIDE_BYTES);

    if (in_pairs(dtype)) {
        wide_store_pair(dtype, p, v->a, v->b);
        wide_store_pair(dtype, p + 2 * u, v->c, v->d);
        return;
    }
    wide_store(dtype, p, v->a);
    wide_store(dtype, p + u, v->b);
    wide_store(dtype, p + 2 * u, v->c);
    wide_store(dtype, p + 3 * u, v->d);
}

static ALWAYS_INLINE uint8_t *acc_at(unsigned dtype, const struct pass *p, size_t i)
{
    return p->acc + (i - p->begin) * (dtype_is_half(dtype) ? 2 : 1);
}

/* Four registers at once: their additions do not wait for one another, and each pointer in
 * src is loaded once for the four. */
static ALWAYS_INLINE void pass_four(unsigned dtype, unsigned op, const struct pass *p, size_t i)
{
    const unsigned raw = DTYPE_U8; /* accumulators lie in memory as they are */
    struct wide_four v, w;

    if (p->resume)
        v = four_load(raw, acc_at(dtype, p, i));
    else
        v = four_load(dtype, p->src[0] + i);
    for (unsigned k = !p->resume; k < p->nsrc; k++) {
        w = four_load(dtype, p->src[k] + i);
        v.a = wide_combine(dtype, op, v.a, w.a);
        v.b = wide_combine(dtype, op, v.b, w.b);
        v.c = wide_combine(dtype, op, v.c, w.c);
        v.d = wide_combine(dtype, op, v.d, w.d);
    }
    if (!p->last) {
        four_store(raw, acc_at(dtype, p, i), &v);
        return;
    }
    four_store(dtype, p->dst + i, &v);
    if (p->dst2)
        four_store(dtype, p->dst2 + i, &v);
}

static ALWAYS_INLINE void pass_slim(unsigned dtype, unsigned op, const struct pass *p, size_t i)
{
    slim_u8 v;

    if (p->resume)
        v = slim_load_raw(acc_at(dtype, p, i));
    else
        v = slim_load(dtype, p->src[0] + i);
    for (unsigned k = !p->resume; k < p->nsrc; k++)
        v = slim_combine(dtype, op, v, slim_load(dtype, p->src[k] + i));
    if (!p->last) {
        slim_store_raw(acc_at(dtype, p, i), v);
        return;
    }
    slim_store(dtype, p->dst + i, v);
    if (p->dst2)
        slim_store(dtype, p->dst2 + i, v);
}

/* The last elements, less than a register of them. */
static ALWAYS_INLINE void pass_part(unsigned dtype, unsigned op, const struct pass *p, size_t i)
{
    size_t n = p->end - i;
    slim_u8 v;

    if (p->resume)
        v = slim_load_raw(acc_at(dtype, p, i));
    else
        v = slim_load_part(dtype, p->src[0] + i, n);
    for (unsigned k = !p->resume; k < p->nsrc; k++)
        v = slim_combine(dtype, op, v, slim_load_part(dtype, p->src[k] + i, n));
    if (!p->last) {
        slim_store_raw(acc_at(dtype, p, i), v);
        return;
    }
    slim_store_part(dtype, p->dst + i, n, v);
    if (p->dst2)
        slim_store_part(dtype, p->dst2 + i, n, v);
}

static ALWAYS_INLINE void pass_run(unsigned dtype, unsigned op, const struct pass *p)
{
    const size_t four = 4 * unit(dtype, WIDE_BYTES);
    const size_t slim = unit(dtype, SLIM_BYTES);
    size_t i = p->begin;

    for (; p->end - i >= four; i += four)
        pass_four(dtype, op, p, i);
    for (; p->end - i >= slim; i += slim)
        pass_slim(dtype, op, p, i);
    if (i < p->end)
        pass_part(dtype, op, p, i);
}

/* ---- whole calls ----------------------------------------------------------------------------- */

/* All but the last lines of two sources, and returns where those begin: see copy.c. What lies
 * behind the end is not asked for: another core may be writing there. */
static ALWAYS_INLINE size_t pass_ahead(unsigned dtype, unsigned op, const struct pass *p)
{
    const size_t four = 4 * unit(dtype, WIDE_BYTES);
    size_t i = 0;

    for (; p->end - i >= four + COPY_AHEAD; i += four) {
        for (size_t k = 0; k < four; k += CACHELINE) {
            __builtin_prefetch(p->src[0] + i + k + COPY_AHEAD);
            __builtin_prefetch(p->src[1] + i + k + COPY_AHEAD);
        }
        pass_four(dtype, op, p, i);
    }
    return i;
}

/* Two sources are the usual case, and the one where each nanosecond around the loop shows:
 * a loop in which everything else is a constant. */
static ALWAYS_INLINE void run_two(unsigned dtype, unsigned op, size_t size, uint8_t *dst,
                                  uint8_t *dst2, const uint8_t *const *src, size_t count)
{
    struct pass p = {
        .src = src, .nsrc = 2, .last = true, .end = count * size, .dst = dst, .dst2 = dst2};

    if (p.end >= COPY_AHEAD_MIN)
        p.begin = pass_ahead(dtype, op, &p);
    pass_run(dtype, op, &p);
}

static ALWAYS_INLINE void run_many(unsigned dtype, unsigned op, size_t size, uint8_t *dst,
                                   uint8_t *dst2, const uint8_t *const *src, unsigned nsrc,
                                   size_t count)
{
    uint8_t acc[2 * BLOCK] __attribute__((aligned(CACHELINE)));
    const size_t end = count * size;
    struct pass p = {.acc = acc, .dst = dst, .dst2 = dst2};

    for (; p.begin < end; p.begin = p.end) {
        p.end = MIN(p.begin + BLOCK, end);
        for (unsigned k = 0; k < nsrc; k += p.nsrc) {
            p.src = src + k;
            p.nsrc = MIN(nsrc - k, (unsigned)GROUP);
            p.resume = k > 0;
            p.last = k + p.nsrc == nsrc;
            pass_run(dtype, op, &p);
        }
    }
}

static ALWAYS_INLINE void run_divide(unsigned dtype, size_t size, uint8_t *x, size_t count,
                                     unsigned world)
{
    const size_t wide = unit(dtype, WIDE_BYTES), slim = unit(dtype, SLIM_BYTES);
    size_t n = count * size;

    for (; n >= wide; n -= wide, x += wide)
        wide_store(dtype, x, wide_divide(dtype, wide_load(dtype, x), world));
    for (; n >= slim; n -= slim, x += slim)
        slim_store(dtype, x, slim_divide(dtype, slim_load(dtype, x), world));
    if (n)
        slim_store_part(dtype, x, n, slim_divide(dtype, slim_load_part(dtype, x, n), world));
}

static ALWAYS_INLINE void run_scale(unsigned dtype, size_t size, uint8_t *dst, const uint8_t *src,
                                    double scale, size_t count)
{
    const size_t wide = unit(dtype, WIDE_BYTES), slim = unit(dtype, SLIM_BYTES);
    const size_t end = count * size;
    size_t i = 0;

    for (; end - i >= wide; i += wide)
        wide_store(dtype, dst + i, wide_scale(dtype, wide_load(dtype, src + i), scale));
    for (; end - i >= slim; i += slim)
        slim_store(dtype, dst + i, slim_scale(dtype, slim_load(dtype, src + i), scale));
    if (i < end)
        slim_store_part(dtype, dst + i, end - i,
                        slim_scale(dtype, slim_load_part(dtype, src + i, end - i), scale));
}

/* ---- the table ------------------------------------------------------------------------------- */

/* _many() is apart so that the usual case needs no stack. */
#define KERNEL(name, dtype, op, size)                                                              \
    static __attribute__((noinline)) void name##_many(                                             \
        uint8_t *dst, uint8_t *dst2, const uint8_t *const *src, unsigned nsrc, size_t count)       \
    {                                                                                              \
        run_many(dtype, op, size, dst, dst2, src, nsrc, count);                                    \
    }                                                                                              \
    static void name(uint8_t *dst, uint8_t *dst2, const uint8_t *const *src, unsigned nsrc,        \
                     size_t count)                                                                 \
    {                                                                                              \
        if (likely(nsrc == 2))                                                                     \
            run_two(dtype, op, size, dst, dst2, src, count);                                       \
        else                                                                                       \
            name##_many(dst, dst2, src, nsrc, count);                                              \
    }
#define KERNELS(name, dtype, size)                                                                 \
    KERNEL(name##_sum, dtype, REDOP_SUM, size)                                                     \
    KERNEL(name##_prod, dtype, REDOP_PROD, size)                                                   \
    KERNEL(name##_min, dtype, REDOP_MIN, size)                                                     \
    KERNEL(name##_max, dtype, REDOP_MAX, size)
/* Wrapping sums and products do not see the sign. */
#define KERNELS_SIGNED(name, dtype, size)                                                          \
    KERNEL(name##_min, dtype, REDOP_MIN, size)                                                     \
    KERNEL(name##_max, dtype, REDOP_MAX, size)
/* Bits have neither sign nor carry, so any type of the size will do. */
#define KERNELS_BITS(name, dtype, size)                                                            \
    KERNEL(name##_band, dtype, REDOP_BAND, size)                                                   \
    KERNEL(name##_bor, dtype, REDOP_BOR, size)                                                     \
    KERNEL(name##_bxor, dtype, REDOP_BXOR, size)
#define ONE_BY_ONE(name, dtype, size)                                                              \
    static void name##_divide(uint8_t *x, size_t count, unsigned world)                            \
    {                                                                                              \
        run_divide(dtype, size, x, count, world);                                                  \
    }                                                                                              \
    static void name##_scale(uint8_t *dst, const uint8_t *src, double scale, size_t count)         \
    {                                                                                              \
        run_scale(dtype, size, dst, src, scale, count);                                            \
    }

KERNELS(u8, DTYPE_U8, 1)
KERNELS(u16, DTYPE_U16, 2)
KERNELS(u32, DTYPE_U32, 4)
KERNELS(u64, DTYPE_U64, 8)
KERNELS_SIGNED(i8, DTYPE_I8, 1)
KERNELS_SIGNED(i16, DTYPE_I16, 2)
KERNELS_SIGNED(i32, DTYPE_I32, 4)
KERNELS_SIGNED(i64, DTYPE_I64, 8)
KERNELS_BITS(u8, DTYPE_U8, 1)
KERNELS_BITS(u16, DTYPE_U16, 2)
KERNELS_BITS(u32, DTYPE_U32, 4)
KERNELS_BITS(u64, DTYPE_U64, 8)
KERNELS(f16, DTYPE_F16, 2)
KERNELS(bf16, DTYPE_BF16, 2)
KERNELS(f32, DTYPE_F32, 4)
KERNELS(f64, DTYPE_F64, 8)
KERNEL(bool_or, DTYPE_BOOL, REDOP_MAX, 1)
KERNEL(bool_and, DTYPE_BOOL, REDOP_MIN, 1)
KERNEL(bool_xor, DTYPE_BOOL, REDOP_BXOR, 1)
ONE_BY_ONE(f16, DTYPE_F16, 2)
ONE_BY_ONE(bf16, DTYPE_BF16, 2)
ONE_BY_ONE(f32, DTYPE_F32, 4)
ONE_BY_ONE(f64, DTYPE_F64, 8)

/* @arith is the unsigned type of the size, @order the type itself. */
#define ROW(arith, order)                                                                          \
    {                                                                                              \
        [REDOP_SUM] = arith##_sum, [REDOP_AVG] = arith##_sum,   [REDOP_PROD] = arith##_prod,       \
        [REDOP_MIN] = order##_min, [REDOP_MAX] = order##_max,   [REDOP_BAND] = arith##_band,       \
        [REDOP_BOR] = arith##_bor, [REDOP_BXOR] = arith##_bxor,                                    \
    }
#define ROW_FLOAT(type)                                                                            \
    {                                                                                              \
        [REDOP_SUM] = type##_sum, [REDOP_AVG] = type##_sum, [REDOP_PROD] = type##_prod,            \
        [REDOP_MIN] = type##_min, [REDOP_MAX] = type##_max, [REDOP_PREMUL_SUM] = type##_sum,       \
    }

const struct reduce_table REDUCE_TABLE = {
    .fn =
        {
            [DTYPE_I8] = ROW(u8, i8),
            [DTYPE_U8] = ROW(u8, u8),
            [DTYPE_I16] = ROW(u16, i16),
            [DTYPE_U16] = ROW(u16, u16),
            [DTYPE_I32] = ROW(u32, i32),
            [DTYPE_U32] = ROW(u32, u32),
            [DTYPE_I64] = ROW(u64, i64),
            [DTYPE_U64] = ROW(u64, u64),
            [DTYPE_F16] = ROW_FLOAT(f16),
            [DTYPE_BF16] = ROW_FLOAT(bf16),
            [DTYPE_F32] = ROW_FLOAT(f32),
            [DTYPE_F64] = ROW_FLOAT(f64),
            [DTYPE_BOOL] = {[REDOP_SUM] = bool_or,
                            [REDOP_PROD] = bool_and,
                            [REDOP_MIN] = bool_and,
                            [REDOP_MAX] = bool_or,
                            [REDOP_BAND] = bool_and,
                            [REDOP_BOR] = bool_or,
                            [REDOP_BXOR] = bool_xor},
        },
    .divide =
        {
            [DTYPE_F16] = f16_divide,
            [DTYPE_BF16] = bf16_divide,
            [DTYPE_F32] = f32_divide,
            [DTYPE_F64] = f64_divide,
        },
    .scale =
        {
            [DTYPE_F16] = f16_scale,
            [DTYPE_BF16] = bf16_scale,
            [DTYPE_F32] = f32_scale,
            [DTYPE_F64] = f64_scale,
        },
};
