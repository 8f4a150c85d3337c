/* gpu_ranks.h - a group of ranks in one process, with contexts and progress threads of their own
 * but no commd, and a GPU: that of tests/fakecuda. */
#ifndef COMMD_TEST_GPU_RANKS_H
#define COMMD_TEST_GPU_RANKS_H

#include "client/lib/device/device.h"
#include "tests/lib/handle.h"

enum { GPU_RANKS_MOST = 4 };

struct gpu_ranks {
    unsigned world;
    bool beside; /* contexts are another one's */
    struct board_ctl *ctl;
    struct commd_context *ctx[GPU_RANKS_MOST];
    struct commd_group *group[GPU_RANKS_MOST];
};

extern struct cuda cu;

/* Loads the driver into the process, as an application does, and makes its context current. */
void gpu_load(void);
void *gpu_symbol(const char *name); /* of tests/fakecuda/fakecuda.h */
void gpu_ok(cu_result r);

struct gpu_ranks *gpu_ranks_new(unsigned world);
/* Another group of the same contexts; freed before it. */
struct gpu_ranks *gpu_ranks_beside(const struct gpu_ranks *g);
/* Rank @rank leaves its group. */
void gpu_ranks_leave(struct gpu_ranks *g, unsigned rank);
struct gpu_ranks *gpu_ranks_free(struct gpu_ranks *g);

/* Memory on the GPU, which the host can see here, of @n elements. */
int32_t *gpu_ints(size_t n, int32_t value);
void gpu_free(void *p);
cu_stream gpu_stream(void);
/* What is enqueued on @s later waits until *@gate is not 0. */
void gpu_hold(cu_stream s, _Atomic int *gate);
/* Has all on @s been done within 10 s? */
bool gpu_passes(cu_stream s);

#endif
