/* reduce_vec.h - one vector register of elements: load, store, combine. A template: it is
 * included once per width, with VEC_BYTES and VEC(name), which adds the width's prefix.
 *
 * Written with the vector extension of GCC and clang, because it means the same on every
 * CPU and at every optimisation level: no loop here waits for an auto-vectoriser. The
 * @dtype and @op of every function are constants in every caller, so each switch folds. */

typedef uint8_t VEC(u8) __attribute__((vector_size(VEC_BYTES)));
typedef int8_t VEC(i8) __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t VEC(u16) __attribute__((vector_size(VEC_BYTES)));
typedef int16_t VEC(i16) __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t VEC(u32) __attribute__((vector_size(VEC_BYTES)));
typedef int32_t VEC(i32) __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t VEC(u64) __attribute__((vector_size(VEC_BYTES)));
typedef int64_t VEC(i64) __attribute__((vector_size(VEC_BYTES)));
typedef float VEC(f32) __attribute__((vector_size(VEC_BYTES)));
typedef double VEC(f64) __attribute__((vector_size(VEC_BYTES)));
/* 16-bit floats as they lie in memory: as many as f32 fit into a register. */
typedef uint16_t VEC(half) __attribute__((vector_size(VEC_BYTES / 2)));

/* The same in memory, at any address. */
typedef uint8_t VEC(mem) __attribute__((vector_size(VEC_BYTES), aligned(1), may_alias));
typedef uint16_t VEC(half_mem) __attribute__((vector_size(VEC_BYTES / 2), aligned(1), may_alias));

/* @mask is all ones or all zeros in each lane. */
static ALWAYS_INLINE VEC(u8) VEC(select)(VEC(u8) mask, VEC(u8) yes, VEC(u8) no)
{
    return (yes & mask) | (no & ~mask);
}

/* One NaN for all: which payload survives an addition depends on the order of the operands
 * of an instruction, and that order is the compiler's. */
#if defined(REDUCE_X86) && VEC_BYTES == 64
static ALWAYS_INLINE VEC(u8) VEC(one_nan)(unsigned dtype, VEC(u8) v)
{
    __m512 f = (__m512)v;
    __m512d d = (__m512d)v;

    if (dtype == DTYPE_F64)
        return (VEC(u8))_mm512_mask_mov_pd(d, _mm512_cmp_pd_mask(d, d, _CMP_UNORD_Q),
                                           (__m512d)_mm512_set1_epi64(NAN_F64));
    return (VEC(u8))_mm512_mask_mov_ps(f, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q),
                                       (__m512)_mm512_set1_epi32(NAN_F32));
}
#else
static ALWAYS_INLINE VEC(u8) VEC(one_nan)(unsigned dtype, VEC(u8) v)
{
    const VEC(u64) nan_f64 = (VEC(u64)){} + NAN_F64;
    const VEC(u32) nan_f32 = (VEC(u32)){} + NAN_F32;

    if (dtype == DTYPE_F64)
        return VEC(select)((VEC(u8))((VEC(f64))v != (VEC(f64))v), (VEC(u8))nan_f64, v);
    return VEC(select)((VEC(u8))((VEC(f32))v != (VEC(f32))v), (VEC(u8))nan_f32, v);
}
#endif

/* ---- 16-bit floats: in the low half of a 32-bit lane, and as f32 ----------------------------- */

static ALWAYS_INLINE VEC(u32) VEC(bf16_expand)(VEC(u32) h)
{
    return h << 16;
}

/* To nearest, ties to even: add just under half a unit, or half a unit to an odd number.
 * The carry may run into the exponent, up to infinity: that is the right answer. */
static ALWAYS_INLINE VEC(u32) VEC(bf16_round)(VEC(u32) f)
{
    return (f + 0x7fff + ((f >> 16) & 1)) >> 16;
}

#if !defined(REDUCE_X86)
/* The 15 bits below the sign, moved up to where f32 keeps its exponent, are the value times
 * 2^-112, subnormals too; the multiplication is exact. */
static ALWAYS_INLINE VEC(u32) VEC(f16_expand)(VEC(u32) h)
{
    VEC(i32) m = (VEC(i32))((h & 0x7fff) << 13);
    VEC(u32) special = (VEC(u32))(m >= 0x1f << 23); /* infinity or NaN */

    return (VEC(u32))((VEC(f32))m * 0x1p112f) | (special & 0x7f800000) | (h & 0x8000) << 16;
}

/* Three ranges: what f16 has no exponent for; what becomes subnormal, where adding 0.5
 * makes the adder round at bit 2^-24; and the normal rest, rounded as in bf16_round(). */
static ALWAYS_INLINE VEC(u32) VEC(f16_round)(VEC(u32) f)
{
    VEC(u32) sign = f & 0x80000000, u = f ^ sign;
    VEC(i32) m = (VEC(i32))u; /* not negative: signed comparisons do, SSE2 has no others */
    VEC(u32) nan = (VEC(u32))(m > 0x7f800000);
    VEC(u32) high = (VEC(u32))(m >= (127 + 16) << 23);
    VEC(u32) low = (VEC(u32))(m < (127 - 14) << 23);
    VEC(u32) huge = 0x7c00 | (nan & 0x0200);
    VEC(u32) tiny = (VEC(u32))((VEC(f32))u + 0.5f) - (126 << 23);
    VEC(u32) normal = (u - ((127 - 15) << 23) + 0xfff + ((u >> 13) & 1)) >> 13;

    return (huge & high) | (tiny & low) | (normal & ~(high | low)) | sign >> 16;
}
#elif VEC_BYTES == 64
static ALWAYS_INLINE VEC(u32) VEC(f16_widen)(VEC(half) h)
{
    return (VEC(u32))_mm512_cvtph_ps((__m256i)h);
}

static ALWAYS_INLINE VEC(half) VEC(f16_narrow)(VEC(u32) f)
{
    return (VEC(half))_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif VEC_BYTES == 32
static ALWAYS_INLINE VEC(u32) VEC(f16_widen)(VEC(half) h)
{
    return (VEC(u32))_mm256_cvtph_ps((__m128i)h);
}

static ALWAYS_INLINE VEC(half) VEC(f16_narrow)(VEC(u32) f)
{
    return (VEC(half))_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
}
#else
static ALWAYS_INLINE VEC(u32) VEC(f16_widen)(VEC(half) h)
{
    return (VEC(u32))_mm_cvtph_ps(_mm_cvtsi64_si128((long long)h));
}

static ALWAYS_INLINE VEC(half) VEC(f16_narrow)(VEC(u32) f)
{
    return (VEC(half))_mm_cvtsi128_si64(_mm_cvtps_ph((__m128)f, _MM_FROUND_TO_NEAREST_INT));
}
#endif

static ALWAYS_INLINE VEC(u32) VEC(expand)(unsigned dtype, VEC(u32) h)
{
#if !defined(REDUCE_X86)
    if (dtype == DTYPE_F16)
        return VEC(f16_expand)(h);
#endif
    return VEC(bf16_expand)(h);
}

static ALWAYS_INLINE VEC(u32) VEC(round)(unsigned dtype, VEC(u32) f)
{
#if !defined(REDUCE_X86)
    if (dtype == DTYPE_F16)
        return VEC(f16_round)(f);
#endif
    return VEC(bf16_round)(f);
}

static ALWAYS_INLINE VEC(u8) VEC(widen)(unsigned dtype, VEC(half) h)
{
#if defined(REDUCE_X86)
    if (dtype == DTYPE_F16)
        return (VEC(u8))VEC(f16_widen)(h);
#endif
    return (VEC(u8))VEC(expand)(dtype, __builtin_convertvector(h, VEC(u32)));
}

static ALWAYS_INLINE VEC(half) VEC(narrow)(unsigned dtype, VEC(u8) v)
{
#if defined(REDUCE_X86)
    if (dtype == DTYPE_F16)
        return VEC(f16_narrow)((VEC(u32))v);
#endif
    return __builtin_convertvector(VEC(round)(dtype, (VEC(u32))v), VEC(half));
}

/* A client may have put any byte where a bool belongs: all but 0 is true. */
static ALWAYS_INLINE VEC(u8) VEC(truth)(VEC(u8) v)
{
    return (VEC(u8))(v != 0) & 1;
}

static ALWAYS_INLINE VEC(u8) VEC(load_raw)(const uint8_t *p)
{
    return *(const VEC(mem) *)p;
}

static ALWAYS_INLINE void VEC(store_raw)(uint8_t *p, VEC(u8) v)
{
    *(VEC(mem) *)p = v;
}

static ALWAYS_INLINE VEC(u8) VEC(load)(unsigned dtype, const uint8_t *p)
{
    if (dtype_is_half(dtype))
        return VEC(widen)(dtype, *(const VEC(half_mem) *)p);
    return dtype == DTYPE_BOOL ? VEC(truth)(VEC(load_raw)(p)) : VEC(load_raw)(p);
}

static ALWAYS_INLINE void VEC(store)(unsigned dtype, uint8_t *p, VEC(u8) v)
{
    if (dtype_is_float(dtype))
        v = VEC(one_nan)(dtype, v);
    if (dtype_is_half(dtype))
        *(VEC(half_mem) *)p = VEC(narrow)(dtype, v);
    else
        VEC(store_raw)(p, v);
}

/* Two registers at a time without moving anything across lanes: the even elements and the
 * odd ones, each in the 32-bit lane where it lies. Only where in_pairs(). */
static ALWAYS_INLINE void VEC(load_pair)(unsigned dtype, const uint8_t *p, VEC(u8) * ret_even,
                                         VEC(u8) * ret_odd)
{
    VEC(u32) both = (VEC(u32))VEC(load_raw)(p);

    *ret_even = (VEC(u8))VEC(expand)(dtype, both & 0xffff);
    *ret_odd = (VEC(u8))VEC(expand)(dtype, both >> 16);
}

static ALWAYS_INLINE void VEC(store_pair)(unsigned dtype, uint8_t *p, VEC(u8) even, VEC(u8) odd)
{
    VEC(u32) e = VEC(round)(dtype, (VEC(u32))VEC(one_nan)(dtype, even));
    VEC(u32) o = VEC(round)(dtype, (VEC(u32))VEC(one_nan)(dtype, odd));

    VEC(store_raw)(p, (VEC(u8))(e | o << 16));
}

/* min and max keep the earlier operand of equal ones (0.0 and -0.0). A NaN stays: as @a no
 * comparison replaces it, as @b the second test takes it (which folds away for integers).
 * Integers are added and multiplied as unsigned (@U): they wrap. */
#define ARITHMETIC(T, U)                                                                           \
    switch (op) {                                                                                  \
    case REDOP_PROD:                                                                               \
        return (VEC(u8))((VEC(U))a * (VEC(U))b);                                                   \
    case REDOP_MIN:                                                                                \
        return VEC(select)((VEC(u8))((VEC(T))b < (VEC(T))a) | (VEC(u8))((VEC(T))b != (VEC(T))b),   \
                           b, a);                                                                  \
    case REDOP_MAX:                                                                                \
        return VEC(select)((VEC(u8))((VEC(T))a < (VEC(T))b) | (VEC(u8))((VEC(T))b != (VEC(T))b),   \
                           b, a);                                                                  \
    default:                                                                                       \
        return (VEC(u8))((VEC(U))a + (VEC(U))b);                                                   \
    }

static ALWAYS_INLINE VEC(u8) VEC(combine)(unsigned dtype, unsigned op, VEC(u8) a, VEC(u8) b)
{
    if (op == REDOP_BAND)
        return a & b;
    if (op == REDOP_BOR)
        return a | b;
    if (op == REDOP_BXOR)
        return a ^ b;
    switch ((enum dtype)dtype) {
    case DTYPE_I8:
        ARITHMETIC(i8, u8)
    case DTYPE_U8:
        ARITHMETIC(u8, u8)
    case DTYPE_I16:
        ARITHMETIC(i16, u16)
    case DTYPE_U16:
        ARITHMETIC(u16, u16)
    case DTYPE_I32:
        ARITHMETIC(i32, u32)
    case DTYPE_U32:
        ARITHMETIC(u32, u32)
    case DTYPE_I64:
        ARITHMETIC(i64, u64)
    case DTYPE_U64:
        ARITHMETIC(u64, u64)
    case DTYPE_F64:
        ARITHMETIC(f64, f64)
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_F32:
        ARITHMETIC(f32, f32)
    case DTYPE_BOOL:
    case DTYPE_COUNT:
        break;
    }
    return op == REDOP_PROD || op == REDOP_MIN ? a & b : a | b;
}

#undef ARITHMETIC

static ALWAYS_INLINE VEC(u8) VEC(divide)(unsigned dtype, VEC(u8) v, unsigned world)
{
    if (dtype == DTYPE_F64)
        return (VEC(u8))((VEC(f64))v / (double)world);
    return (VEC(u8))((VEC(f32))v / (float)world);
}

static ALWAYS_INLINE VEC(u8) VEC(scale)(unsigned dtype, VEC(u8) v, double scale)
{
    if (dtype == DTYPE_F64)
        return (VEC(u8))((VEC(f64))v * scale);
    return (VEC(u8))((VEC(f32))v * (float)scale);
}
