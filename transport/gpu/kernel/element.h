/* element.h - one element: from memory to what is computed with, and back. Shared by C and CUDA;
 * the formulas are those of shm/reduce/reduce_vec.h, and so are the bits. Only f16 has two texts: a
 * GPU converts it in one instruction. */
#ifndef COMMD_ELEMENT_H
#define COMMD_ELEMENT_H

#include <stdint.h>

#ifdef __CUDACC__
#define ELEMENT_INLINE static __device__ __forceinline__
#else
#include <string.h>
#define ELEMENT_INLINE static inline __attribute__((always_inline, unused))
#endif

#define ELEMENT_NAN_F32 0x7fc00000u
#define ELEMENT_NAN_F64 0x7ff8000000000000ull

#ifdef __CUDACC__
ELEMENT_INLINE float float_of(uint32_t bits)
{
    return __uint_as_float(bits);
}

ELEMENT_INLINE uint32_t bits_of(float f)
{
    return __float_as_uint(f);
}

ELEMENT_INLINE double double_of(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}

ELEMENT_INLINE uint64_t bits_of_double(double d)
{
    return (uint64_t)__double_as_longlong(d);
}

ELEMENT_INLINE float f16_widen(uint16_t h)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

ELEMENT_INLINE uint16_t f16_round(float f)
{
    uint16_t h;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#else
ELEMENT_INLINE float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

ELEMENT_INLINE uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

ELEMENT_INLINE double double_of(uint64_t bits)
{
    double d;

    memcpy(&d, &bits, sizeof d);
    return d;
}

ELEMENT_INLINE uint64_t bits_of_double(double d)
{
    uint64_t bits;

    memcpy(&bits, &d, sizeof bits);
    return bits;
}

ELEMENT_INLINE float f16_widen(uint16_t h)
{
    uint32_t m = (h & 0x7fffu) << 13, special = m >= 0x1fu << 23 ? 0x7f800000 : 0;

    return float_of(bits_of(float_of(m) * 0x1p112f) | special | (h & 0x8000u) << 16);
}

ELEMENT_INLINE uint16_t f16_round(float f)
{
    uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, u = bits & 0x7fffffff;

    if (u >= (127u + 16) << 23)
        return (uint16_t)(sign | 0x7c00);
    if (u < (127u - 14) << 23)
        return (uint16_t)(sign | (bits_of(float_of(u) + 0.5f) - (126u << 23)));
    return (uint16_t)(sign | (u - ((127u - 15) << 23) + 0xfff + ((u >> 13) & 1)) >> 13);
}
#endif

/* A NaN is always the same one: which payload comes out of an addition is the processor's choice.
 */
ELEMENT_INLINE uint16_t f16_narrow(float f)
{
    return f != f ? (uint16_t)0x7e00 : f16_round(f);
}

ELEMENT_INLINE float bf16_widen(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

ELEMENT_INLINE uint16_t bf16_narrow(float f)
{
    uint32_t u = f != f ? ELEMENT_NAN_F32 : bits_of(f);

    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

ELEMENT_INLINE float f32_widen(uint32_t bits)
{
    return float_of(bits);
}

ELEMENT_INLINE uint32_t f32_narrow(float f)
{
    return f != f ? ELEMENT_NAN_F32 : bits_of(f);
}

ELEMENT_INLINE double f64_widen(uint64_t bits)
{
    return double_of(bits);
}

ELEMENT_INLINE uint64_t f64_narrow(double d)
{
    return d != d ? ELEMENT_NAN_F64 : bits_of_double(d);
}

/* A client may have put any byte where a bool belongs: all but 0 is true. */
ELEMENT_INLINE uint8_t bool_widen(uint8_t x)
{
    return x != 0;
}

ELEMENT_INLINE uint8_t bool_narrow(uint8_t x)
{
    return x;
}

/* Integers are as they are; and as signed ones. */
#define ELEMENT_INTEGER(name, bits_type, type)                                                     \
    ELEMENT_INLINE type name##_widen(bits_type x)                                                  \
    {                                                                                              \
        return (type)x;                                                                            \
    }                                                                                              \
    ELEMENT_INLINE bits_type name##_narrow(type x)                                                 \
    {                                                                                              \
        return (bits_type)x;                                                                       \
    }
ELEMENT_INTEGER(u8, uint8_t, uint8_t)
ELEMENT_INTEGER(u16, uint16_t, uint16_t)
ELEMENT_INTEGER(u32, uint32_t, uint32_t)
ELEMENT_INTEGER(u64, uint64_t, uint64_t)
ELEMENT_INTEGER(i8, uint8_t, int8_t)
ELEMENT_INTEGER(i16, uint16_t, int16_t)
ELEMENT_INTEGER(i32, uint32_t, int32_t)
ELEMENT_INTEGER(i64, uint64_t, int64_t)
#undef ELEMENT_INTEGER

/* 16 bytes, which are loaded and stored at once. In words: a GPU has no registers of bytes. An
 * address that is a pointer before @at is added lets nvcc find that it is global memory. */
struct words {
    uint32_t w[4];
};

ELEMENT_INLINE struct words words_load(uint64_t base, uint64_t at)
{
    struct words v;
#ifdef __CUDACC__
    uint4 x = *(const uint4 *)((const char *)base + at);

    v.w[0] = x.x;
    v.w[1] = x.y;
    v.w[2] = x.z;
    v.w[3] = x.w;
#else
    memcpy(&v, __builtin_assume_aligned((const char *)base + at, 16), sizeof v);
#endif
    return v;
}

ELEMENT_INLINE void words_store(uint64_t base, uint64_t at, struct words v)
{
#ifdef __CUDACC__
    *(uint4 *)((char *)base + at) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
#else
    memcpy(__builtin_assume_aligned((char *)base + at, 16), &v, sizeof v);
#endif
}

/* Element @lane of @bytes bytes each. */
ELEMENT_INLINE uint64_t words_get(struct words v, unsigned lane, unsigned bytes)
{
    if (bytes == 8)
        return v.w[2 * lane] | (uint64_t)v.w[2 * lane + 1] << 32;
    return v.w[lane * bytes / 4] >> 8 * (lane * bytes % 4);
}

/* Into zeros. */
ELEMENT_INLINE void words_put(struct words *v, unsigned lane, unsigned bytes, uint64_t bits)
{
    if (bytes == 8) {
        v->w[2 * lane] = (uint32_t)bits;
        v->w[2 * lane + 1] = (uint32_t)(bits >> 32);
    } else {
        v->w[lane * bytes / 4] |= (uint32_t)bits << 8 * (lane * bytes % 4);
    }
}

#endif
