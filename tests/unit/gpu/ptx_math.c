/* ptx_math.c - what instructions make of values, by NVIDIA's PTX ISA 9.0.
 *
 * A value has as many bits as its register, and zeros above. The process rounds to nearest and
 * keeps subnormals, as .rn without .ftz does. Where the ISA leaves a result open, as the sign and
 * payload of a NaN that comes out of arithmetic, there is another one each time. */
#include "tests/unit/gpu/ptx_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float float_from(uint64_t v)
{
    uint32_t bits = (uint32_t)v;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static double double_from(uint64_t v)
{
    double d;

    memcpy(&d, &v, sizeof d);
    return d;
}

/* Sign and payload of a NaN that is computed. */
static uint64_t any_nan(uint64_t infinity, unsigned bits)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return infinity | (state >> 63) << (bits - 1) | 1 | ptx_low(state >> 20, bits / 4);
}

static uint64_t bits_from(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return isnan(f) ? any_nan(0x7f800000, 32) : bits;
}

static uint64_t bits_from_double(double d)
{
    uint64_t bits;

    memcpy(&bits, &d, sizeof bits);
    return isnan(d) ? any_nan(0x7ff0000000000000, 64) : bits;
}

/* By what the numbers are, not by their bits: element.h does it by bits. */
static float f16_value(uint64_t h)
{
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    float f;

    if (e == 31)
        f = m ? NAN : INFINITY;
    else
        f = e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
    return h & 0x8000 ? -f : f;
}

/* To the nearest f16, of two the even one: the quotient by the unit in its last place is exact, and
 * rounded by nearbyint(). */
static uint64_t f16_nearest(float f)
{
    uint64_t sign = signbit(f) ? 0x8000 : 0;
    int e;
    double units;

    if (isnan(f))
        return any_nan(0x7c00, 16);
    if (isinf(f))
        return sign | 0x7c00;
    if (f == 0)
        return sign;
    frexp(f, &e);
    e = e - 1 < -14 ? -14 : e - 1;
    units = nearbyint(ldexp(fabs((double)f), 10 - e)); /* up to 2048 of 2^(e - 10) */
    if (e > 15 || (e == 15 && units > 2047))
        return sign | 0x7c00;
    return sign | ((uint64_t)(e + 14) * 1024 + (uint64_t)units);
}

static uint64_t convert(const struct ptx_insn *i, uint64_t v, unsigned dst_bits)
{
    unsigned bits = ptx_types[i->from].bits;

    if (i->op == OP_CVT_RN) {
        if (i->type == F16)
            return f16_nearest(float_from(v));
        if (i->type == F64)
            return bits_from_double((double)(uint32_t)v);
        return bits_from(i->from == F64 ? (float)double_from(v) : (float)(uint32_t)v);
    }
    if (i->type == F32)
        return bits_from(f16_value(v));
    v = ptx_types[i->from].is_signed ? (uint64_t)ptx_signed(ptx_low(v, bits), bits)
                                     : ptx_low(v, bits);
    bits = ptx_types[i->type].bits;
    v = ptx_types[i->type].is_signed ? (uint64_t)ptx_signed(ptx_low(v, bits), bits)
                                     : ptx_low(v, bits);
    return ptx_low(v, dst_bits);
}

static uint64_t bit_field(const struct ptx_insn *i, uint64_t a, unsigned pos, unsigned len)
{
    unsigned bits = ptx_types[i->type].bits, have = pos >= bits ? 0 : MIN(len, bits - pos), top;
    uint64_t v = have ? ptx_low(a >> pos, have) : 0;

    if (!ptx_types[i->type].is_signed || !len)
        return v;
    top = MIN(pos + len - 1, bits - 1);
    if (a >> top & 1)
        v |= have < 64 ? ~0ull << have : 0;
    return ptx_low(v, bits);
}

static uint64_t insert(unsigned bits, uint64_t a, uint64_t b, unsigned pos, unsigned len)
{
    for (unsigned j = 0; j < len && pos + j < bits; j++)
        b = (b & ~(1ull << (pos + j))) | (a >> j & 1) << (pos + j);
    return b;
}

static uint64_t permute(uint64_t a, uint64_t b, uint64_t selectors)
{
    uint64_t from = a | b << 32, v = 0;

    for (unsigned j = 0; j < 4; j++) {
        unsigned s = (unsigned)(selectors >> 4 * j), byte = (unsigned)(from >> 8 * (s & 7)) & 0xff;

        v |= (uint64_t)(s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * j;
    }
    return v;
}

/* By 32 and more, too: what is shifted out is gone. */
static uint64_t shift_right(unsigned type, uint64_t a, uint64_t n)
{
    unsigned bits = ptx_types[type].bits;

    if (ptx_types[type].is_signed)
        return ptx_low((uint64_t)(ptx_signed(a, bits) >> MIN(n, bits - 1)), bits);
    return n < bits ? a >> n : 0;
}

static bool compare_floats(unsigned op, double a, double b)
{
    switch (op) {
    case OP_EQ:
        return a == b;
    case OP_LT:
        return a < b;
    case OP_LE:
        return a <= b;
    case OP_GT:
        return a > b;
    case OP_GE:
        return a >= b;
    default: /* OP_NAN */
        return isnan(a) || isnan(b);
    }
}

static uint64_t compute_f32(unsigned op, float a, float b)
{
    switch (op) {
    case OP_ADD:
        return bits_from(a + b);
    case OP_MUL:
        return bits_from(a * b);
    case OP_DIV:
        return bits_from(a / b);
    default:
        return compare_floats(op, (double)a, (double)b);
    }
}

static uint64_t compute_f64(unsigned op, double a, double b)
{
    switch (op) {
    case OP_ADD:
        return bits_from_double(a + b);
    case OP_MUL:
        return bits_from_double(a * b);
    case OP_DIV:
        return bits_from_double(a / b);
    default:
        return compare_floats(op, a, b);
    }
}

static bool less(const struct ptx_insn *i, uint64_t a, uint64_t b)
{
    unsigned bits = ptx_types[i->type].bits;

    return ptx_types[i->type].is_signed ? ptx_signed(a, bits) < ptx_signed(b, bits) : a < b;
}

uint64_t ptx_compute(const struct ptx_insn *i, const uint64_t *v, unsigned dst_bits)
{
    unsigned bits = ptx_types[i->type].bits, half = bits / 2;
    bool is_signed = ptx_types[i->type].is_signed;
    uint64_t a = v[0], b = v[1], r;

    switch (i->op) {
    case OP_SELP:
        return v[2] ? a : b;
    case OP_MOV:
        return a;
    case OP_PACK:
        return a | b << half;
    case OP_CVT:
    case OP_CVT_RN:
        return convert(i, a, dst_bits);
    default:
        break;
    }
    if (ptx_types[i->type].kind == 'f')
        return i->type == F32 ? compute_f32(i->op, float_from(a), float_from(b))
                              : compute_f64(i->op, double_from(a), double_from(b));
    switch (i->op) {
    case OP_ADD:
        r = a + b;
        break;
    case OP_SUB:
        r = a - b;
        break;
    case OP_MUL:
        r = a * b;
        break;
    case OP_MUL_WIDE:
        r = is_signed ? (uint64_t)(ptx_signed(a, bits) * ptx_signed(b, bits)) : a * b;
        return ptx_low(r, 2 * bits);
    case OP_MAD:
        r = a * b + v[2];
        break;
    case OP_DIV:
        r = is_signed ? (uint64_t)(ptx_signed(a, bits) / ptx_signed(b, bits)) : a / b;
        break;
    case OP_NEG:
        r = 0 - a;
        break;
    case OP_MIN:
        return less(i, b, a) ? b : a;
    case OP_MAX:
        return less(i, a, b) ? b : a;
    case OP_AND:
        return a & b;
    case OP_OR:
        return a | b;
    case OP_XOR:
        return a ^ b;
    case OP_NOT:
        r = ~a;
        break;
    case OP_SHL:
        r = b < bits ? a << b : 0;
        break;
    case OP_SHR:
        return shift_right(i->type, a, b);
    case OP_SHF:
        r = v[2] % 32 ? b << v[2] % 32 | a >> (32 - v[2] % 32) : b;
        break;
    case OP_BFE:
        return bit_field(i, a, b & 0xff, v[2] & 0xff);
    case OP_BFI:
        return insert(bits, a, b, v[2] & 0xff, v[3] & 0xff);
    case OP_PRMT:
        return permute(a, b, v[2]);
    case OP_EQ:
        return a == b;
    case OP_NE:
        return a != b;
    case OP_LT:
        return less(i, a, b);
    case OP_LE:
        return !less(i, b, a);
    case OP_GT:
        return less(i, b, a);
    case OP_GE:
        return !less(i, a, b);
    default:
        abort(); /* the table lets no other come here */
    }
    return ptx_low(r, bits);
}
