/* dtype.h - element types and reduction operators: the numbers that
 * clients, boards and the wire agree on. Values are stable: append, never renumber. */
#ifndef COMMD_DTYPE_H
#define COMMD_DTYPE_H

#include "shm/util/base.h"

enum dtype {
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_BOOL, /* one byte, 0 or 1 */
    DTYPE_COUNT
};

enum redop {
    REDOP_SUM,
    REDOP_AVG, /* sum divided by the world size; integers truncate toward zero */
    REDOP_PROD,
    REDOP_MIN,
    REDOP_MAX,
    REDOP_BAND,
    REDOP_BOR,
    REDOP_BXOR,
    REDOP_PREMUL_SUM, /* sum; each member scales its contribution first: reduce_scale() */
    REDOP_COUNT
};

static inline bool dtype_is_float(unsigned dtype)
{
    return dtype >= DTYPE_F16 && dtype <= DTYPE_F64;
}
/* Added up in single precision, which takes longer. */
static inline bool dtype_is_half(unsigned dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}
/* Bytes of one element; 0 for a value that is no dtype. */
size_t dtype_size(unsigned dtype);
/* "f32", "sum"; "?" for a value outside the table. */
const char *dtype_name(unsigned dtype);
const char *redop_name(unsigned redop);
/* Which pairs are defined. Floats have no bits: no band, bor, bxor. premul_sum is for floats
 * alone. bool: sum, max and bor = logical or, prod, min and band = logical and, bxor =
 * logical exclusive or, avg undefined. */
bool redop_defined(unsigned dtype, unsigned redop);

#endif
