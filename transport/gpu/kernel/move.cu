/* move.cu - the kernels, which do moves (transport/gpu/move.h). The same source is CUDA, and C:
 * move_twin.c includes it.
 *
 * Model. The work is bound by memory: k sources are read once, the result is written once to each
 * destination. So all that counts is how many loads are under way. Threads load 16 bytes at a time,
 * neighbours from neighbouring addresses; each has 8 such loads under way before it adds (2
 * sources: 4 vectors of each; 4: 2; 8: 1), other numbers of sources 2. 2 blocks of 512 threads on
 * each multiprocessor make 128 KiB under way there; HBM of 3.3 TB/s over 132 of them with a latency
 * of 0.7 us asks for 18. A thread reads an element of all sources before it writes it, and no other
 * thread touches it: so a destination may be a source.
 *
 * Where the addresses differ modulo 16, elements are loaded one at a time.
 *
 * What nvcc 13.0 makes of it (cuobjdump -sass, --dump-resource-usage): see doc/gpu-kernels.md. */
#include "transport/gpu/kernel/batch.h"
#include "transport/gpu/kernel/element.h"

#ifndef __CUDACC__
#include <stdbool.h>
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#endif

enum {
    MOVE_SUM,
    MOVE_AVG,
    MOVE_PROD,
    MOVE_MIN,
    MOVE_MAX,
    MOVE_BAND,
    MOVE_BOR,
    MOVE_BXOR,
    MOVE_PREMUL_SUM
};
enum { MOVE_DEEPEST = 4, MOVE_THREADS = 512 };

struct place { /* which of how many threads */
    uint64_t me, all;
};

struct move { /* one of a batch; it points into it */
    uint64_t count;
    unsigned nsrc, ndst, divide;
    const uint64_t *src, *dst, *scale;
};

ELEMENT_INLINE struct move move_at(const struct gpu_batch *b, unsigned i)
{
    const uint64_t *w = b->words + b->at[i];
    struct move m;

    m.count = w[0];
    m.nsrc = (unsigned)w[1] & 0xff;
    m.ndst = (unsigned)w[1] >> 8 & 0xff;
    m.divide = (unsigned)(w[1] >> 32);
    m.src = w + 2;
    m.dst = m.src + m.nsrc;
    m.scale = m.dst + m.ndst;
    return m;
}

/* Bits in which addresses differ from the first source's. */
ELEMENT_INLINE unsigned move_unlike(const struct move *m)
{
    unsigned first = (unsigned)m->src[0], unlike = 0;

#pragma unroll 1
    for (unsigned k = 0; k < m->nsrc + m->ndst; k++) /* destinations stand behind sources */
        unlike |= first ^ (unsigned)m->src[k];
    return unlike;
}

/* Elements before the first vector. */
ELEMENT_INLINE uint64_t move_head(const struct move *m, unsigned bytes)
{
    uint64_t head = (0 - m->src[0]) % 16 / bytes;

    return move_unlike(m) % 16 || head > m->count ? m->count : head;
}

#define T(name)       u8_##name
#define BITS          uint8_t
#define ACC           uint8_t
#define WIDE          uint32_t
#define DIVISOR       uint32_t
#define MOVE_HAS_BITS 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       u16_##name
#define BITS          uint16_t
#define ACC           uint16_t
#define WIDE          uint32_t
#define DIVISOR       uint32_t
#define MOVE_HAS_BITS 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       u32_##name
#define BITS          uint32_t
#define ACC           uint32_t
#define WIDE          uint32_t
#define DIVISOR       uint32_t
#define MOVE_HAS_BITS 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       u64_##name
#define BITS          uint64_t
#define ACC           uint64_t
#define WIDE          uint64_t
#define DIVISOR       uint64_t
#define MOVE_HAS_BITS 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       bool_##name
#define BITS          uint8_t
#define ACC           uint8_t
#define WIDE          uint32_t
#define DIVISOR       uint32_t
#define MOVE_HAS_BITS 1
#include "transport/gpu/kernel/move_type.h"

#define T(name) i8_##name
#define BITS    uint8_t
#define ACC     int8_t
#define WIDE    uint32_t
#define DIVISOR int32_t
#include "transport/gpu/kernel/move_type.h"

#define T(name) i16_##name
#define BITS    uint16_t
#define ACC     int16_t
#define WIDE    uint32_t
#define DIVISOR int32_t
#include "transport/gpu/kernel/move_type.h"

#define T(name) i32_##name
#define BITS    uint32_t
#define ACC     int32_t
#define WIDE    uint32_t
#define DIVISOR int32_t
#include "transport/gpu/kernel/move_type.h"

#define T(name) i64_##name
#define BITS    uint64_t
#define ACC     int64_t
#define WIDE    uint64_t
#define DIVISOR int64_t
#include "transport/gpu/kernel/move_type.h"

#define T(name)       f16_##name
#define BITS          uint16_t
#define ACC           float
#define WIDE          float
#define DIVISOR       float
#define MOVE_IS_FLOAT 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       bf16_##name
#define BITS          uint16_t
#define ACC           float
#define WIDE          float
#define DIVISOR       float
#define MOVE_IS_FLOAT 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       f32_##name
#define BITS          uint32_t
#define ACC           float
#define WIDE          float
#define DIVISOR       float
#define MOVE_IS_FLOAT 1
#include "transport/gpu/kernel/move_type.h"

#define T(name)       f64_##name
#define BITS          uint64_t
#define ACC           double
#define WIDE          double
#define DIVISOR       double
#define MOVE_IS_FLOAT 1
#include "transport/gpu/kernel/move_type.h"

/* --- copies ------------------------------------------------------------------------------- */

/* By the largest unit, up to 16 bytes, in which the addresses are alike. */
#define COPY_UNITS(name, type)                                                                     \
    ELEMENT_INLINE void name(const struct move *m, struct place here, uint64_t head)               \
    {                                                                                              \
        uint64_t n = (m->count - head) / sizeof(type);                                             \
                                                                                                   \
        for (uint64_t i = here.me; i < n; i += here.all) {                                         \
            type x = ((const type *)(m->src[0] + head))[i];                                        \
                                                                                                   \
            for (unsigned j = 0; j < m->ndst; j++)                                                 \
                ((type *)(m->dst[j] + head))[i] = x;                                               \
        }                                                                                          \
    }
COPY_UNITS(copy_bytes, uint8_t)
COPY_UNITS(copy_16, uint16_t)
COPY_UNITS(copy_32, uint32_t)
COPY_UNITS(copy_64, uint64_t)

ELEMENT_INLINE void copy_words(unsigned deep, const struct move *m, uint64_t at, uint64_t step)
{
    struct words x[MOVE_DEEPEST];

#pragma unroll
    for (unsigned d = 0; d < deep; d++)
        x[d] = words_load(m->src[0], at + d * step);
#pragma unroll 1
    for (unsigned j = 0; j < m->ndst; j++) {
#pragma unroll
        for (unsigned d = 0; d < deep; d++)
            words_store(m->dst[j], at + d * step, x[d]);
    }
}

ELEMENT_INLINE void copy_128(const struct move *m, struct place here, uint64_t head)
{
    uint64_t n = (m->count - head) / 16, v = here.me;

    for (; v + 3 * here.all < n; v += 4 * here.all)
        copy_words(4, m, head + 16 * v, 16 * here.all);
    for (; v < n; v += here.all)
        copy_words(1, m, head + 16 * v, 0);
}

ELEMENT_INLINE void copy_move(const struct move *m, struct place here)
{
    unsigned unlike = move_unlike(m), unit = unlike % 16 ? unlike & (0 - unlike) : 16;
    uint64_t head = (0 - m->src[0]) % unit, rest;

    if (head > m->count)
        head = m->count;
    rest = (m->count - head) % unit;
    if (unit == 16)
        copy_128(m, here, head);
    else if (unit == 8)
        copy_64(m, here, head);
    else if (unit == 4)
        copy_32(m, here, head);
    else if (unit == 2)
        copy_16(m, here, head);
    else
        copy_bytes(m, here, head);
    for (uint64_t i = here.me; i < head + rest; i += here.all) {
        uint64_t at = i < head ? i : m->count - rest + i - head;

        for (unsigned j = 0; j < m->ndst; j++)
            ((uint8_t *)m->dst[j])[at] = ((const uint8_t *)m->src[0])[at];
    }
}

/* --- kernels -------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define KERNEL(name, call)                                                                         \
    extern "C" __global__ void __launch_bounds__(MOVE_THREADS, 2)                                  \
        commd_move_##name(const __grid_constant__ struct gpu_batch b)                              \
    {                                                                                              \
        struct place here;                                                                         \
                                                                                                   \
        here.me = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                 \
        here.all = (uint64_t)gridDim.x * blockDim.x;                                               \
        for (unsigned i = blockIdx.y; i < b.nmoves; i += gridDim.y) {                              \
            struct move m = move_at(&b, i);                                                        \
                                                                                                   \
            call;                                                                                  \
        }                                                                                          \
    }
#else
#define KERNEL(name, call)                                                                         \
    static void commd_move_##name(void **params)                                                   \
    {                                                                                              \
        const struct gpu_batch *b = (const struct gpu_batch *)params[0];                           \
        struct place here;                                                                         \
                                                                                                   \
        here.all = twin_threads;                                                                   \
        for (unsigned i = 0; i < b->nmoves; i++) {                                                 \
            struct move m = move_at(b, i);                                                         \
                                                                                                   \
            for (here.me = 0; here.me < here.all; here.me++)                                       \
                call;                                                                              \
        }                                                                                          \
    }
#endif

/* Whether it has loops of its own for 2, 4 and 8 sources: what models are trained with. */
#define KERNELS_WRAP(t)                                                                            \
    KERNEL(t##_sum, t##_move(MOVE_SUM, true, &m, here))                                            \
    KERNEL(t##_prod, t##_move(MOVE_PROD, false, &m, here))                                         \
    KERNEL(t##_band, t##_move(MOVE_BAND, false, &m, here))                                         \
    KERNEL(t##_bor, t##_move(MOVE_BOR, false, &m, here))                                           \
    KERNEL(t##_bxor, t##_move(MOVE_BXOR, false, &m, here))
#define KERNELS_INT(t)                                                                             \
    KERNEL(t##_avg, t##_move(MOVE_AVG, false, &m, here))                                           \
    KERNEL(t##_min, t##_move(MOVE_MIN, false, &m, here))                                           \
    KERNEL(t##_max, t##_move(MOVE_MAX, false, &m, here))
#define KERNELS_FLOAT(t)                                                                           \
    KERNEL(t##_sum, t##_move(MOVE_SUM, true, &m, here))                                            \
    KERNEL(t##_avg, t##_move(MOVE_AVG, true, &m, here))                                            \
    KERNEL(t##_prod, t##_move(MOVE_PROD, false, &m, here))                                         \
    KERNEL(t##_min, t##_move(MOVE_MIN, true, &m, here))                                            \
    KERNEL(t##_max, t##_move(MOVE_MAX, true, &m, here))                                            \
    KERNEL(t##_premul_sum, t##_move(MOVE_PREMUL_SUM, false, &m, here))

KERNEL(copy, copy_move(&m, here))
KERNELS_WRAP(u8)
KERNELS_WRAP(u16)
KERNELS_WRAP(u32)
KERNELS_WRAP(u64)
KERNELS_INT(i8)
KERNELS_INT(u8)
KERNELS_INT(i16)
KERNELS_INT(u16)
KERNELS_INT(i32)
KERNELS_INT(u32)
KERNELS_INT(i64)
KERNELS_INT(u64)
KERNELS_FLOAT(f16)
KERNELS_FLOAT(bf16)
KERNELS_FLOAT(f32)
KERNELS_FLOAT(f64)
KERNEL(bool_or, bool_move(MOVE_BOR, false, &m, here))
KERNEL(bool_and, bool_move(MOVE_BAND, false, &m, here))
KERNEL(bool_xor, bool_move(MOVE_BXOR, false, &m, here))
