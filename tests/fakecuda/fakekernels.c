/* fakekernels.c - the twins of commd's kernels (transport/gpu/kernel/), as the fake driver takes
 * them: libfakekernels.so beside it. So commd-gpu runs on it as it is installed. */
#include "tests/fakecuda/fakecuda.h"
#include "transport/gpu/move.h"

FAKE_API extern struct fakecuda_kernel commd_kernel_table[GPU_KERNELS + 1];
struct fakecuda_kernel commd_kernel_table[GPU_KERNELS + 1];

static size_t used(const void *param)
{
    const struct gpu_batch *b = param;

    return b->nwords <= BATCH_WORDS ? offsetof(struct gpu_batch, words[b->nwords]) : sizeof *b;
}

__attribute__((constructor)) static void fill(void)
{
    for (unsigned i = 0; i < GPU_KERNELS; i++)
        commd_kernel_table[i] = (struct fakecuda_kernel){.name = gpu_twins[i].name,
                                                         .fn = gpu_twins[i].fn,
                                                         .nparams = 1,
                                                         .sizes = {sizeof(struct gpu_batch)},
                                                         .used = used};
}
