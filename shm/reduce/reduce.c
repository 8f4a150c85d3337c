/* reduce.c - the entry points of the reduction, and the choice of the kernels.
 *
 * The choice is made on the first call and is the same in every thread, so that threads may
 * race to make it: all of them store the same. A call afterwards is one load, one
 * look-up by (dtype, operator) and one indirect jump.
 *
 * Identical bits need an identical floating-point environment. It belongs to the thread, and
 * the thread to the user: torch.set_flush_denormal() in one rank, or a debugging aid that
 * traps on overflow, must not change what this rank computes for itself while its peers
 * compute something else. So every call works in the default environment (round to nearest,
 * subnormals kept, nothing traps) and puts the caller's back. Reading the control word
 * is half of the cost of a call on two floats; it is the price of the promise. */
#include "shm/reduce/reduce_kernels.h"
#include "shm/reduce/reduce.h"
#include "shm/reduce/reduce_cpu.h"

#include <assert.h>
#include <stdatomic.h>

static _Atomic(const struct reduce_table *) chosen;

/* ---- which kernels --------------------------------------------------------------------------- */

/* By instruction set; reduce_cpu.c says which of them this CPU runs. */
static const struct reduce_table *const tables[REDUCE_ISAS] = {
#if defined(__x86_64__)
    [REDUCE_AVX512] = &reduce_table_avx512,
    [REDUCE_AVX2] = &reduce_table_avx2,
#endif
    [REDUCE_BASELINE] = &reduce_table_baseline,
};

/* The best build, or with @name that one; NULL when this CPU cannot run it. */
static __attribute__((noinline)) const struct reduce_table *find_table(const char *name)
{
    for (unsigned isa = 0; isa < REDUCE_ISAS; isa++)
        if ((!name || !strcmp(reduce_isa_name(isa), name)) && reduce_isa_runs(isa))
            return tables[isa];
    return NULL;
}

static inline const struct reduce_table *table_get(void)
{
    /* relaxed: the tables are constants, there is nothing to see behind the pointer */
    const struct reduce_table *t = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (unlikely(!t)) {
        t = find_table(NULL);
        atomic_store_explicit(&chosen, t, memory_order_relaxed);
    }
    return t;
}

const char *reduce_kernels(void)
{
    const struct reduce_table *t = table_get();
    unsigned isa = 0;

    while (tables[isa] != t)
        isa++;
    return reduce_isa_name(isa);
}

bool reduce_force(const char *name)
{
    const struct reduce_table *t = find_table(name);

    if (!t)
        return false;
    atomic_store_explicit(&chosen, t, memory_order_relaxed);
    return true;
}

/* ---- the floating-point environment ---------------------------------------------------------- */

#if defined(__x86_64__)
enum { FP_DEFAULT = 0x1f80 };

static inline uint64_t fp_get(void)
{
    return __builtin_ia32_stmxcsr() & ~0x3fu; /* without the flags: they record, not rule */
}

static inline void fp_set(uint64_t control)
{
    __builtin_ia32_ldmxcsr((unsigned)control);
}
#elif defined(__aarch64__)
enum { FP_DEFAULT = 0 };

static inline uint64_t fp_get(void)
{
    uint64_t control;

    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}

static inline void fp_set(uint64_t control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
}
#else
enum { FP_DEFAULT = 0 };

/* Elsewhere nothing but a changed rounding mode is known to matter, and nobody changes it. */
static inline uint64_t fp_get(void)
{
    return FP_DEFAULT;
}

static inline void fp_set(uint64_t control)
{
}
#endif

static inline bool is_float(unsigned dtype)
{
    return dtype >= DTYPE_F16 && dtype <= DTYPE_F64;
}
_Static_assert(DTYPE_F16 + 3 == DTYPE_F64, "the floats stand side by side");

/* ---- entry points ---------------------------------------------------------------------------- */

/* Out of line, as reduce_copy() is: the usual call is a jump and saves no registers. */
static __attribute__((noinline)) void reduce_in_default(reduce_fn fn, void *dst, void *dst2,
                                                        const uint8_t *const *src, unsigned nsrc,
                                                        size_t count)
{
    uint64_t control = fp_get();

    fp_set(FP_DEFAULT);
    fn(dst, dst2, src, nsrc, count);
    fp_set(control);
}

static __attribute__((noinline)) void reduce_copy(void *dst, void *dst2, const void *src, size_t n)
{
    if (dst != src)
        memcpy(dst, src, n);
    if (dst2 && dst2 != src)
        memcpy(dst2, src, n);
}

static ALWAYS_INLINE void reduce(unsigned dtype, unsigned redop, void *dst, void *dst2,
                                 const void *const *src, unsigned nsrc, size_t count)
{
    const uint8_t *const *in = (const uint8_t *const *)src;
    reduce_fn fn;

    assert(dtype < DTYPE_COUNT && redop < REDOP_COUNT);
    fn = table_get()->fn[dtype][redop];
    assert(fn);
    if (unlikely(!count)) /* the pointers may be NULL */
        return;
    if (unlikely(nsrc < 2))
        reduce_copy(dst, dst2, src[0], count * dtype_size(dtype));
    else if (is_float(dtype) && unlikely(fp_get() != FP_DEFAULT))
        reduce_in_default(fn, dst, dst2, in, nsrc, count);
    else
        fn(dst, dst2, in, nsrc, count);
}

void reduce_n(unsigned dtype, unsigned redop, void *dst, const void *const *src, unsigned nsrc,
              size_t count)
{
    reduce(dtype, redop, dst, NULL, src, nsrc, count);
}

void reduce_n_dup(unsigned dtype, unsigned redop, void *dst, void *dst2, const void *const *src,
                  unsigned nsrc, size_t count)
{
    reduce(dtype, redop, dst, dst2, src, nsrc, count);
}

/* In double for the types that fit: a quotient of 32-bit integers that is no integer is
 * further from the next one than double rounds, so cutting it off is exact, and division of
 * doubles is several times faster than that of integers. */
#define TRUNCATING_DIVIDE(name, type, wide)                                                        \
    static void name(uint8_t *x, size_t count, unsigned world)                                     \
    {                                                                                              \
        for (size_t i = 0; i < count; i++, x += sizeof(type)) {                                    \
            type v;                                                                                \
                                                                                                   \
            memcpy(&v, x, sizeof(v));                                                              \
            v = (type)((wide)v / (wide)world);                                                     \
            memcpy(x, &v, sizeof(v));                                                              \
        }                                                                                          \
    }
TRUNCATING_DIVIDE(divide_i8, int8_t, double)
TRUNCATING_DIVIDE(divide_u8, uint8_t, double)
TRUNCATING_DIVIDE(divide_i16, int16_t, double)
TRUNCATING_DIVIDE(divide_u16, uint16_t, double)
TRUNCATING_DIVIDE(divide_i32, int32_t, double)
TRUNCATING_DIVIDE(divide_u32, uint32_t, double)
TRUNCATING_DIVIDE(divide_i64, int64_t, int64_t)
TRUNCATING_DIVIDE(divide_u64, uint64_t, uint64_t)

static const reduce_divide_fn divide_integer[DTYPE_COUNT] = {
    [DTYPE_I8] = divide_i8,   [DTYPE_U8] = divide_u8,   [DTYPE_I16] = divide_i16,
    [DTYPE_U16] = divide_u16, [DTYPE_I32] = divide_i32, [DTYPE_U32] = divide_u32,
    [DTYPE_I64] = divide_i64, [DTYPE_U64] = divide_u64,
};

void reduce_finish(unsigned dtype, unsigned redop, void *dst, size_t count, unsigned world)
{
    reduce_divide_fn divide;
    uint64_t control;

    if (redop != REDOP_AVG)
        return;
    assert(redop_defined(dtype, redop));
    if (world < 2) /* x / 1 is x */
        return;
    divide = divide_integer[dtype] ? divide_integer[dtype] : table_get()->divide[dtype];
    /* integers too: they are divided in double */
    control = fp_get();
    if (control != FP_DEFAULT)
        fp_set(FP_DEFAULT);
    divide(dst, count, world);
    if (control != FP_DEFAULT)
        fp_set(control);
}

void reduce_scale(unsigned dtype, void *dst, const void *src, double scale, size_t count)
{
    reduce_scale_fn fn;
    uint64_t control;

    assert(dtype < DTYPE_COUNT);
    fn = table_get()->scale[dtype];
    assert(fn);
    if (unlikely(!count)) /* the pointers may be NULL */
        return;
    control = fp_get();
    if (control != FP_DEFAULT)
        fp_set(FP_DEFAULT);
    fn(dst, src, scale, count);
    if (control != FP_DEFAULT)
        fp_set(control);
}
