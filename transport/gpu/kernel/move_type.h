/* move_type.h - the loops of one element type. A template: it is included once per type, with
 * T(name), which adds the type's prefix, BITS, the unsigned integer of its size, ACC, what is
 * computed with, WIDE, in which its sums and products wrap, and DIVISOR, what it is divided by as.
 *
 * @op, @nsrc (0: not known before), @deep and @many are constants in every caller: branches fold,
 * and loops over them are unrolled. */

#ifdef MOVE_IS_FLOAT
#define ELEMENT_IS_NAN(x) ((x) != (x))
#else
#define ELEMENT_IS_NAN(x) 0
#endif

enum { T(bytes) = sizeof(BITS), T(lanes) = 16 / sizeof(BITS) };

/* min and max keep the earlier operand of equal ones (0.0 and -0.0). A NaN stays: as @a no
 * comparison replaces it, as @b the second test takes it. */
ELEMENT_INLINE ACC T(combine)(unsigned op, ACC a, ACC b)
{
    switch (op) {
    case MOVE_PROD:
        return (ACC)((WIDE)a * (WIDE)b);
    case MOVE_MIN:
        return b < a || ELEMENT_IS_NAN(b) ? b : a;
    case MOVE_MAX:
        return a < b || ELEMENT_IS_NAN(b) ? b : a;
#ifdef MOVE_HAS_BITS
    case MOVE_BAND:
        return (ACC)(a & b);
    case MOVE_BOR:
        return (ACC)(a | b);
    case MOVE_BXOR:
        return (ACC)(a ^ b);
#endif
    default:
        return (ACC)((WIDE)a + (WIDE)b);
    }
}

/* One element of source @k, as it is counted in. A scaled one is rounded to the type first. */
ELEMENT_INLINE ACC T(take)(unsigned op, const struct move *m, unsigned k, uint64_t bits)
{
    ACC x = T(widen)((BITS)bits);

    if (op == MOVE_PREMUL_SUM)
        return T(widen)(T(narrow)((ACC)(x * (ACC)double_of(m->scale[k]))));
    return x;
}

/* The sum is rounded to the type, and then divided: as on the host, where it lay in memory. */
ELEMENT_INLINE BITS T(give)(unsigned op, const struct move *m, ACC x)
{
    if (op == MOVE_AVG && m->divide > 1)
        return T(narrow)((ACC)(T(widen)(T(narrow)(x)) / (DIVISOR)m->divide));
    return T(narrow)(x);
}

/* @deep vectors at byte @at, at + step, ... of source @k: their loads do not wait for each other.
 */
ELEMENT_INLINE void T(count_in)(unsigned op, unsigned deep, const struct move *m, unsigned k,
                                uint64_t at, uint64_t step, ACC (*acc)[T(lanes)])
{
    struct words in[MOVE_DEEPEST];

#pragma unroll
    for (unsigned d = 0; d < deep; d++)
        in[d] = words_load(m->src[k], at + d * step);
#pragma unroll
    for (unsigned d = 0; d < deep; d++) {
#pragma unroll
        for (unsigned e = 0; e < T(lanes); e++) {
            ACC x = T(take)(op, m, k, words_get(in[d], e, T(bytes)));

            acc[d][e] = k ? T(combine)(op, acc[d][e], x) : x;
        }
    }
}

ELEMENT_INLINE void T(vectors)(unsigned op, unsigned nsrc, unsigned deep, const struct move *m,
                               uint64_t at, uint64_t step)
{
    ACC acc[MOVE_DEEPEST][T(lanes)];

    T(count_in)(op, deep, m, 0, at, step, acc);
    if (nsrc) {
#pragma unroll
        for (unsigned k = 1; k < nsrc; k++)
            T(count_in)(op, deep, m, k, at, step, acc);
    } else {
#pragma unroll 1
        for (unsigned k = 1; k < m->nsrc; k++)
            T(count_in)(op, deep, m, k, at, step, acc);
    }
#pragma unroll
    for (unsigned d = 0; d < deep; d++) {
        struct words out = {{0}};

#pragma unroll
        for (unsigned e = 0; e < T(lanes); e++)
            words_put(&out, e, T(bytes), T(give)(op, m, acc[d][e]));
#pragma unroll 1
        for (unsigned j = 0; j < m->ndst; j++)
            words_store(m->dst[j], at + d * step, out);
    }
}

/* What the vectors of @me, one of @all threads, leave: the elements before the first address that
 * is a multiple of 16, and behind the last. All of them if the addresses are not alike. */
ELEMENT_INLINE void T(single)(unsigned op, const struct move *m, uint64_t i)
{
    ACC acc = T(take)(op, m, 0, ((const BITS *)m->src[0])[i]);
    BITS out;

#pragma unroll 4
    for (unsigned k = 1; k < m->nsrc; k++)
        acc = T(combine)(op, acc, T(take)(op, m, k, ((const BITS *)m->src[k])[i]));
    out = T(give)(op, m, acc);
#pragma unroll 1
    for (unsigned j = 0; j < m->ndst; j++)
        ((BITS *)m->dst[j])[i] = out;
}

ELEMENT_INLINE void T(stride)(unsigned op, unsigned nsrc, unsigned deep, const struct move *m,
                              struct place here, uint64_t head, uint64_t nvectors)
{
    uint64_t v = here.me, step = here.all;

    head *= T(bytes);
    for (; v + (deep - 1) * step < nvectors; v += deep * step)
        T(vectors)(op, nsrc, deep, m, head + 16 * v, 16 * step);
    for (; deep > 1 && v < nvectors; v += step)
        T(vectors)(op, nsrc, 1, m, head + 16 * v, 0);
}

/* @many: loops for 2, 4 and 8 sources of their own, where all loads of a step are under way before
 * the first addition. Where a vector has 16 elements, or more is done than one addition, there are
 * registers for half as much. */
ELEMENT_INLINE void T(move)(unsigned op, bool many, const struct move *m, struct place here)
{
    uint64_t head = move_head(m, T(bytes)), nvectors = (m->count - head) / T(lanes);
    const unsigned half = T(bytes) == 1 || op == MOVE_AVG || op == MOVE_PREMUL_SUM ? 2 : 1;
    uint64_t behind = head + nvectors * T(lanes), singles = m->count - nvectors * T(lanes);

    if (many && m->nsrc == 2)
        T(stride)(op, 2, 4 / half, m, here, head, nvectors);
    else if (many && m->nsrc == 4)
        T(stride)(op, 4, 2 / half, m, here, head, nvectors);
    else if (many && m->nsrc == 8)
        T(stride)(op, 8, 1, m, here, head, nvectors);
    else
        T(stride)(op, 0, T(bytes) == 1 || op == MOVE_AVG ? 1 : 2, m, here, head, nvectors);
    for (uint64_t i = here.me; i < singles; i += here.all)
        T(single)(op, m, i < head ? i : i - head + behind);
}

#undef T
#undef BITS
#undef ACC
#undef WIDE
#undef DIVISOR
#undef MOVE_HAS_BITS
#undef MOVE_IS_FLOAT
#undef ELEMENT_IS_NAN
