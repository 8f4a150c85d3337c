/* reduce_reference.c - the reduction in its plainest form, for the tests of the kernels.
 *
 * One element at a time: decoded by the definition of its format (ldexp and integers, none
 * of the tricks on bits that the kernels live on), combined in the order of reduce.h, encoded.
 * 16-bit floats are computed in float, as reduce.h says, and rounded once. */
#include "tests/unit/shm/reduce_reference.h"

static bool is_small(unsigned dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

bool reference_is_float(unsigned dtype)
{
    return is_small(dtype) || dtype == DTYPE_F32 || dtype == DTYPE_F64;
}

static bool is_signed(unsigned dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

static double small_decode(uint16_t bits, int fraction)
{
    int exp_bits = 15 - fraction, bias = (1 << (exp_bits - 1)) - 1;
    int exp = bits >> fraction & ((1 << exp_bits) - 1);
    int frac = bits & ((1 << fraction) - 1);
    double v;

    if (exp == (1 << exp_bits) - 1)
        v = frac ? __builtin_nan("") : __builtin_inf();
    else if (exp)
        v = __builtin_ldexp(frac + (1 << fraction), exp - bias - fraction);
    else
        v = __builtin_ldexp(frac, 1 - bias - fraction);
    return bits & 0x8000 ? -v : v;
}

static uint16_t small_encode(double v, int fraction)
{
    int exp_bits = 15 - fraction, bias = (1 << (exp_bits - 1)) - 1, exp;
    uint16_t sign = __builtin_signbit(v) ? 0x8000 : 0;
    uint16_t inf = (uint16_t)(((1 << exp_bits) - 1) << fraction);
    double scaled;

    if (__builtin_isnan(v))
        return inf | (uint16_t)(1 << (fraction - 1));
    v = __builtin_fabs(v);
    if (__builtin_isinf(v))
        return sign | inf;
    __builtin_frexp(v, &exp);
    exp = MAX(exp - 1, 1 - bias);
    /* 2^52 leaves no place for a fraction: the adder rounds to nearest, ties to even */
    scaled = __builtin_ldexp(v, fraction - exp) + 0x1p52;
    scaled -= 0x1p52;
    if (scaled == 2 << fraction) {
        scaled /= 2;
        exp++;
    }
    if (exp > bias)
        return sign | inf;
    if (scaled < 1 << fraction)
        return sign | (uint16_t)scaled;
    return sign | (uint16_t)((exp + bias) << fraction) | ((uint16_t)scaled - (1 << fraction));
}

#define DECODE(T, field)                                                                           \
    {                                                                                              \
        T x;                                                                                       \
        memcpy(&x, p, sizeof(x));                                                                  \
        v.field = x;                                                                               \
        break;                                                                                     \
    }

static union value decode(unsigned dtype, const uint8_t *p)
{
    union value v = {0};
    uint16_t bits;

    switch ((enum dtype)dtype) {
    case DTYPE_I8:
        DECODE(int8_t, i)
    case DTYPE_U8:
        DECODE(uint8_t, u)
    case DTYPE_I16:
        DECODE(int16_t, i)
    case DTYPE_U16:
        DECODE(uint16_t, u)
    case DTYPE_I32:
        DECODE(int32_t, i)
    case DTYPE_U32:
        DECODE(uint32_t, u)
    case DTYPE_I64:
        DECODE(int64_t, i)
    case DTYPE_U64:
        DECODE(uint64_t, u)
    case DTYPE_F32:
        DECODE(float, f)
    case DTYPE_F64:
        DECODE(double, f)
    case DTYPE_F16:
    case DTYPE_BF16:
        memcpy(&bits, p, sizeof(bits));
        v.f = small_decode(bits, dtype == DTYPE_F16 ? 10 : 7);
        break;
    case DTYPE_BOOL:
        v.u = *p != 0;
        break;
    case DTYPE_COUNT:
        break;
    }
    return v;
}

void reference_encode(unsigned dtype, union value v, uint8_t *ret_p)
{
    static const uint64_t nan64 = 0x7ff8000000000000;
    static const uint32_t nan32 = 0x7fc00000;
    uint16_t bits;
    float f;

    if (is_small(dtype)) {
        bits = small_encode(v.f, dtype == DTYPE_F16 ? 10 : 7);
        memcpy(ret_p, &bits, sizeof(bits));
    } else if (dtype == DTYPE_F32) {
        f = (float)v.f;
        memcpy(ret_p, __builtin_isnan(v.f) ? (const void *)&nan32 : &f, sizeof(f));
    } else if (dtype == DTYPE_F64) {
        memcpy(ret_p, __builtin_isnan(v.f) ? (const void *)&nan64 : &v.f, sizeof(v.f));
    } else {
        memcpy(ret_p, &v.u, dtype_size(dtype)); /* little-endian: the low bytes */
    }
}

static double combine_fp(unsigned dtype, unsigned op, double a, double b)
{
    if (op == REDOP_MIN || op == REDOP_MAX) {
        if (__builtin_isnan(a) || __builtin_isnan(b))
            return __builtin_nan("");
        return (op == REDOP_MIN ? b < a : a < b) ? b : a;
    }
    /* avg and premul_sum are sums here */
    if (dtype == DTYPE_F64)
        return op == REDOP_PROD ? a * b : a + b;
    return op == REDOP_PROD ? (float)a * (float)b : (float)a + (float)b;
}

static union value combine(unsigned dtype, unsigned op, union value a, union value b)
{
    bool less = is_signed(dtype) ? b.i < a.i : b.u < a.u;
    bool more = is_signed(dtype) ? b.i > a.i : b.u > a.u;
    size_t shift = 64 - 8 * dtype_size(dtype);
    union value r;

    if (reference_is_float(dtype)) {
        r.f = combine_fp(dtype, op, a.f, b.f);
    } else if (dtype == DTYPE_BOOL) {
        r.u = op == REDOP_BXOR                                        ? a.u != b.u
              : op == REDOP_SUM || op == REDOP_MAX || op == REDOP_BOR ? a.u || b.u
                                                                      : a.u && b.u;
    } else if (op == REDOP_BAND || op == REDOP_BOR || op == REDOP_BXOR) {
        r.u = op == REDOP_BAND ? a.u & b.u : op == REDOP_BOR ? a.u | b.u : a.u ^ b.u;
    } else if (op == REDOP_MIN || op == REDOP_MAX) {
        r = (op == REDOP_MIN ? less : more) ? b : a;
    } else {
        r.u = (op == REDOP_PROD ? a.u * b.u : a.u + b.u) << shift;
        if (is_signed(dtype))
            r.i >>= shift;
        else
            r.u >>= shift;
    }
    return r;
}

/* One source is copied, whatever its bits. */
void reference_reduce(unsigned dtype, unsigned op, const void *const *src, unsigned nsrc,
                      size_t count, uint8_t *ret_result)
{
    size_t size = dtype_size(dtype);

    for (size_t i = 0; i < count; i++) {
        union value v = decode(dtype, (const uint8_t *)src[0] + i * size);

        for (unsigned k = 1; k < nsrc; k++)
            v = combine(dtype, op, v, decode(dtype, (const uint8_t *)src[k] + i * size));
        if (nsrc == 1)
            memcpy(ret_result + i * size, (const uint8_t *)src[0] + i * size, size);
        else
            reference_encode(dtype, v, ret_result + i * size);
    }
}

static union value divided(unsigned dtype, union value v, unsigned world)
{
    if (dtype == DTYPE_F64)
        v.f /= world;
    else if (reference_is_float(dtype))
        v.f = (float)v.f / (float)world;
    else if (is_signed(dtype))
        v.i /= (int64_t)world;
    else
        v.u /= world;
    return v;
}

void reference_divide(unsigned dtype, const uint8_t *x, unsigned world, uint8_t *ret_result)
{
    reference_encode(dtype, divided(dtype, decode(dtype, x), world), ret_result);
}

void reference_scale(unsigned dtype, const uint8_t *x, double scale, uint8_t *ret_result)
{
    union value v = decode(dtype, x);

    v.f = dtype == DTYPE_F64 ? v.f * scale : (float)v.f * (float)scale;
    reference_encode(dtype, v, ret_result);
}
