/* move.h - what the kernels do: a move is dst[j][i] = src[0][i] op src[1][i] op ... for all j, in
 * that order, exactly as shm/reduce/reduce.h says: the same bits. Kernels are in
 * transport/gpu/kernel/move.cu; here moves are put into launches. Pure. */
#ifndef COMMD_MOVE_H
#define COMMD_MOVE_H

#include "shm/gpu/cuda.h"
#include "shm/model/dtype.h"
#include "transport/gpu/kernel/batch.h"

/* Addresses are multiples of the element's size. A destination may be equal to a source, but may
 * not partly overlap one, nor another destination. */
struct gpu_move {
    uint64_t count; /* elements */
    uint8_t dtype, redop, nsrc, ndst;
    uint32_t divide;             /* REDOP_AVG: the sum is divided by this; 0 and 1: it is not */
    cu_ptr src[BATCH_SOURCES];   /* one source is copied, whatever its bits, unless divided */
    cu_ptr dst[BATCH_SOURCES];   /* or scaled */
    double scale[BATCH_SOURCES]; /* REDOP_PREMUL_SUM: each source is scaled first */
};

enum gpu_kernel {
#define MOVE_KERNEL(name) GPU_KERNEL_##name,
    BATCH_KERNELS(MOVE_KERNEL)
#undef MOVE_KERNEL
        GPU_KERNELS
};

/* "commd_move_f32_sum": for cuModuleGetFunction(). Its one parameter is a struct gpu_batch. */
const char *gpu_kernel_name(unsigned kernel);
/* Which kernel does it. */
unsigned gpu_move_kernel(const struct gpu_move *m);

/* A launch: moves of one kernel that may run at the same time. */
struct gpu_launch {
    unsigned kernel, gx, gy, threads; /* grid gx * gy * 1, block threads * 1 * 1 */
    uint64_t most;                    /* bytes of the longest move's vector */
    struct gpu_batch batch;
};

void gpu_launch_init(struct gpu_launch *l);
/* false: it does not fit, or is for another kernel: launch first, then begin anew. A move without
 * elements, without destinations, or onto itself alone is left out. */
bool gpu_launch_add(struct gpu_launch *l, const struct gpu_move *m);
/* Sets the grid for a GPU with so many multiprocessors. false: there is nothing to launch. */
bool gpu_launch_close(struct gpu_launch *l, unsigned multiprocessors);

/* Host twins of the kernels, for tests: the same source as C. @params as for cuLaunchKernel(): one,
 * a struct gpu_batch. They do what the threads of a grid do, one after the other; which, is set by
 * gpu_twin_grid(), for all of the process's threads. At first one block of one thread. */
struct gpu_twin {
    const char *name;
    void (*fn)(void **params);
};
extern const struct gpu_twin gpu_twins[GPU_KERNELS + 1]; /* the last has no name */
void gpu_twin_grid(unsigned gx, unsigned threads);

#endif
