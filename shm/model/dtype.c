/* dtype.c - sizes and names of what a collective is made of.
 *
 * The tables are indexed by the numbers in dtype.h, which stand in boards and on the wire;
 * the asserts below keep a new value from being added without its row. Any unsigned may be
 * asked about: callers hand over values that a peer wrote. */
#include "shm/model/dtype.h"

static const struct {
    const char *name;
    uint8_t size;
} dtypes[] = {
    [DTYPE_I8] = {"i8", 1},     [DTYPE_U8] = {"u8", 1},   [DTYPE_I16] = {"i16", 2},
    [DTYPE_U16] = {"u16", 2},   [DTYPE_I32] = {"i32", 4}, [DTYPE_U32] = {"u32", 4},
    [DTYPE_I64] = {"i64", 8},   [DTYPE_U64] = {"u64", 8}, [DTYPE_F16] = {"f16", 2},
    [DTYPE_BF16] = {"bf16", 2}, [DTYPE_F32] = {"f32", 4}, [DTYPE_F64] = {"f64", 8},
    [DTYPE_BOOL] = {"bool", 1},
};
_Static_assert(ARRAY_LEN(dtypes) == DTYPE_COUNT, "every dtype has a row");

static const char *const redop_names[] = {
    [REDOP_SUM] = "sum", [REDOP_AVG] = "avg",   [REDOP_PROD] = "prod",
    [REDOP_MIN] = "min", [REDOP_MAX] = "max",   [REDOP_BAND] = "band",
    [REDOP_BOR] = "bor", [REDOP_BXOR] = "bxor", [REDOP_PREMUL_SUM] = "premul_sum",
};
_Static_assert(ARRAY_LEN(redop_names) == REDOP_COUNT, "every operator has a name");

size_t dtype_size(unsigned dtype)
{
    return dtype < DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *dtype_name(unsigned dtype)
{
    return dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

const char *redop_name(unsigned redop)
{
    return redop < REDOP_COUNT ? redop_names[redop] : "?";
}

bool redop_defined(unsigned dtype, unsigned redop)
{
    if (dtype >= DTYPE_COUNT || redop >= REDOP_COUNT)
        return false;
    switch ((enum redop)redop) {
    case REDOP_SUM:
    case REDOP_PROD:
    case REDOP_MIN:
    case REDOP_MAX:
        return true;
    case REDOP_AVG:
        return dtype != DTYPE_BOOL;
    case REDOP_BAND:
    case REDOP_BOR:
    case REDOP_BXOR:
        return !dtype_is_float(dtype);
    case REDOP_PREMUL_SUM:
        return dtype_is_float(dtype);
    case REDOP_COUNT:
        break;
    }
    return false;
}
