/* move.c - puts moves into launches. Pure. See move.h.
 *
 * Moves stand in a kernel's parameters, so a launch needs no copy to the GPU before it. They take
 * what they need there: a copy from one buffer to another 32 bytes, so that an all_to_all of many
 * ranks is few launches. Each move is one row of the grid (gridDim.y). */
#include "transport/gpu/move.h"

#include "shm/gpu/session.h"

_Static_assert((int)BATCH_SOURCES == (int)SESSION_MAX_RANKS, "a pointer for each rank of a GPU");
_Static_assert(sizeof(struct gpu_batch) <= 4096, "what kernels take as parameters");

enum {
    MOVE_BLOCK_BYTES = 16 << 10, /* of each source: not worth a second block's start */
    MOVE_BLOCKS_PER_SM = 2,
    MOVE_BLOCK_THREADS = 512,
};

static const char *const kernel_names[GPU_KERNELS] = {
#define MOVE_NAME(name) "commd_move_" #name,
    BATCH_KERNELS(MOVE_NAME)
#undef MOVE_NAME
};

/* Integers are added and multiplied without a look at their sign, and bits have none. */
#define MOVE_INTEGER(any, type)                                                                    \
    {                                                                                              \
        [REDOP_SUM] = GPU_KERNEL_##any##_sum,   [REDOP_AVG] = GPU_KERNEL_##type##_avg,             \
        [REDOP_PROD] = GPU_KERNEL_##any##_prod, [REDOP_MIN] = GPU_KERNEL_##type##_min,             \
        [REDOP_MAX] = GPU_KERNEL_##type##_max,  [REDOP_BAND] = GPU_KERNEL_##any##_band,            \
        [REDOP_BOR] = GPU_KERNEL_##any##_bor,   [REDOP_BXOR] = GPU_KERNEL_##any##_bxor,            \
    }
#define MOVE_FLOAT(type)                                                                           \
    {                                                                                              \
        [REDOP_SUM] = GPU_KERNEL_##type##_sum,                                                     \
        [REDOP_AVG] = GPU_KERNEL_##type##_avg,                                                     \
        [REDOP_PROD] = GPU_KERNEL_##type##_prod,                                                   \
        [REDOP_MIN] = GPU_KERNEL_##type##_min,                                                     \
        [REDOP_MAX] = GPU_KERNEL_##type##_max,                                                     \
        [REDOP_PREMUL_SUM] = GPU_KERNEL_##type##_premul_sum,                                       \
    }
static const uint8_t kernels[DTYPE_COUNT][REDOP_COUNT] = {
    [DTYPE_I8] = MOVE_INTEGER(u8, i8),
    [DTYPE_U8] = MOVE_INTEGER(u8, u8),
    [DTYPE_I16] = MOVE_INTEGER(u16, i16),
    [DTYPE_U16] = MOVE_INTEGER(u16, u16),
    [DTYPE_I32] = MOVE_INTEGER(u32, i32),
    [DTYPE_U32] = MOVE_INTEGER(u32, u32),
    [DTYPE_I64] = MOVE_INTEGER(u64, i64),
    [DTYPE_U64] = MOVE_INTEGER(u64, u64),
    [DTYPE_F16] = MOVE_FLOAT(f16),
    [DTYPE_BF16] = MOVE_FLOAT(bf16),
    [DTYPE_F32] = MOVE_FLOAT(f32),
    [DTYPE_F64] = MOVE_FLOAT(f64),
    [DTYPE_BOOL] =
        {
            [REDOP_SUM] = GPU_KERNEL_bool_or,
            [REDOP_PROD] = GPU_KERNEL_bool_and,
            [REDOP_MIN] = GPU_KERNEL_bool_and,
            [REDOP_MAX] = GPU_KERNEL_bool_or,
            [REDOP_BAND] = GPU_KERNEL_bool_and,
            [REDOP_BOR] = GPU_KERNEL_bool_or,
            [REDOP_BXOR] = GPU_KERNEL_bool_xor,
        },
};

const char *gpu_kernel_name(unsigned kernel)
{
    return kernel < GPU_KERNELS ? kernel_names[kernel] : "?";
}

unsigned gpu_move_kernel(const struct gpu_move *m)
{
    bool divided = m->redop == REDOP_AVG && m->divide > 1;

    if (m->nsrc == 1 && !divided && m->redop != REDOP_PREMUL_SUM)
        return GPU_KERNEL_copy;
    return kernels[m->dtype][m->redop];
}

void gpu_launch_init(struct gpu_launch *l)
{
    l->kernel = GPU_KERNELS;
    l->most = 0;
    l->batch.nmoves = l->batch.nwords = 0;
}

/* Destinations that differ from the one source of a copy; all of other moves. */
static unsigned move_targets(const struct gpu_move *m, unsigned kernel, uint64_t *ret_dst)
{
    unsigned n = 0;

    for (unsigned j = 0; j < m->ndst; j++) {
        if (kernel != GPU_KERNEL_copy || m->dst[j] != m->src[0])
            ret_dst[n++] = m->dst[j];
    }
    return n;
}

bool gpu_launch_add(struct gpu_launch *l, const struct gpu_move *m)
{
    unsigned kernel = gpu_move_kernel(m), scaled, need, ndst;
    uint64_t dst[BATCH_SOURCES], bytes = m->count * dtype_size(m->dtype), *w;
    struct gpu_batch *b = &l->batch;

    ndst = move_targets(m, kernel, dst);
    if (!m->count || !ndst)
        return true;
    scaled = m->redop == REDOP_PREMUL_SUM ? m->nsrc : 0;
    need = 2 + m->nsrc + ndst + scaled;
    if (b->nmoves &&
        (kernel != l->kernel || b->nmoves == BATCH_MOVES || b->nwords + need > BATCH_WORDS))
        return false;
    l->kernel = kernel;
    l->most = MAX(l->most, bytes);
    b->at[b->nmoves++] = (uint16_t)b->nwords;
    w = b->words + b->nwords;
    b->nwords += need;
    *w++ = kernel == GPU_KERNEL_copy ? bytes : m->count;
    *w++ = m->nsrc | ndst << 8 | (uint64_t)m->divide << 32;
    memcpy(w, m->src, m->nsrc * sizeof *w);
    memcpy(w + m->nsrc, dst, ndst * sizeof *w);
    memcpy(w + m->nsrc + ndst, m->scale, scaled * sizeof *w);
    return true;
}

bool gpu_launch_close(struct gpu_launch *l, unsigned multiprocessors)
{
    unsigned rows = l->batch.nmoves, all = MOVE_BLOCKS_PER_SM * MAX(multiprocessors, 1u);
    uint64_t need = l->most / MOVE_BLOCK_BYTES + (l->most % MOVE_BLOCK_BYTES != 0);

    if (!rows)
        return false;
    l->gy = rows;
    l->gx = (unsigned)MIN(need, (uint64_t)MAX(all / rows, 1u));
    l->threads = MOVE_BLOCK_THREADS;
    return true;
}
