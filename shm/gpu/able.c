/* able.c - which operations the device path can do. Pure. See able.h.
 *
 * On one GPU our own kernels do everything. Between GPUs NCCL adds up, and it differs from what
 * commd promises in three ways:
 *   - it has no 16-bit integers, no bits (band, bor, bxor) and no bool;
 *   - its min and max of floats drop a NaN (fminf(), fmaxf()); ours keep it;
 *   - its avg multiplies by 1/n before the sum; ours divides the sum.
 * The last is only a matter of who divides: NCCL is asked for the sum, and a kernel divides it.
 * premul_sum is done alike: a kernel scales, then NCCL adds. The rest is refused. */
#include "shm/gpu/able.h"

static bool nccl_type(unsigned dtype)
{
    return dtype < DTYPE_COUNT && dtype != DTYPE_I16 && dtype != DTYPE_U16 && dtype != DTYPE_BOOL;
}

static bool nccl_operator(unsigned dtype, unsigned redop)
{
    bool is_float = dtype >= DTYPE_F16 && dtype <= DTYPE_F64;

    switch ((enum redop)redop) {
    case REDOP_SUM:
    case REDOP_AVG:
    case REDOP_PROD:
    case REDOP_PREMUL_SUM:
        return true;
    case REDOP_MIN:
    case REDOP_MAX:
        return !is_float;
    case REDOP_BAND:
    case REDOP_BOR:
    case REDOP_BXOR:
    case REDOP_COUNT:
        break;
    }
    return false;
}

bool gpu_able(const struct op_desc *d, uint32_t nunits)
{
    if (d->coll >= COLL_COUNT)
        return false;
    if (d->coll != COLL_BARRIER && d->dtype >= DTYPE_COUNT)
        return false;
    if (!coll_table[d->coll].reduces)
        return true;
    if (!redop_defined(d->dtype, d->redop))
        return false;
    return nunits == 1 || (nccl_type(d->dtype) && nccl_operator(d->dtype, d->redop));
}
