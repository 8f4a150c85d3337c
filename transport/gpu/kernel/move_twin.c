/* move_twin.c - the kernels as C: what tests run where there is no GPU. See transport/gpu/move.h.
 * Only for tests: nothing that is installed has it. */
#include "transport/gpu/move.h"

static unsigned twin_threads = 1;

#include "transport/gpu/kernel/move.cu"

const struct gpu_twin gpu_twins[GPU_KERNELS + 1] = {
#define TWIN_ROW(name) {"commd_move_" #name, commd_move_##name},
    BATCH_KERNELS(TWIN_ROW)
#undef TWIN_ROW
};

void gpu_twin_grid(unsigned gx, unsigned threads)
{
    twin_threads = gx * threads;
}
