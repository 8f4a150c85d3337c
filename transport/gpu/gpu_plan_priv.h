/* gpu_plan_priv.h - shared by the files of the plan: reductions in gpu_plan.c, blocks in
 * gpu_plan_blocks.c. */
#ifndef COMMD_GPU_PLAN_PRIV_H
#define COMMD_GPU_PLAN_PRIV_H

#include "transport/gpu/gpu_plan.h"
#include "transport/gpu/nccl.h"

enum plan_way {
    WAY_ALONE,      /* one unit: kernels do it all */
    WAY_BARRIER,    /* an all_reduce of 4 bytes of scratch */
    WAY_ALL_REDUCE, /* in the first rank's recv */
    WAY_REDUCE,     /* in the root's recv, elsewhere in scratch */
    WAY_BROADCAST,
    WAY_GATHER_NATIVE,  /* one rank on each unit, in the order of units: ncclAllGather */
    WAY_GATHER,         /* a broadcast of each block */
    WAY_SCATTER_NATIVE, /* ncclReduceScatter, as above */
    WAY_SCATTER,        /* a reduce of each block */
    WAY_CELLS,          /* sends and receives: gather, scatter, all_to_all */
};

static inline size_t plan_esize(const struct gpu_plan *p)
{
    return dtype_size(p->desc.dtype);
}

static inline bool plan_here(const struct gpu_plan *p, uint32_t rank)
{
    return p->unit_of_rank[rank] == p->unit;
}

/* Ranks' sends are not what NCCL is given here: they are reduced or scaled before. */
static inline bool plan_partial(const struct gpu_plan *p)
{
    return p->nranks > 1 || p->desc.redop == REDOP_PREMUL_SUM;
}

/* A rank of this unit; there is one of this number. */
const struct gpu_rank *plan_rank(const struct gpu_plan *p, uint32_t rank);
/* Elements of @rank's block, of those that all ranks know. */
uint64_t plan_count(const struct gpu_plan *p, uint32_t rank);
/* A move of this operation without sources and destinations. */
struct gpu_move plan_move(const struct gpu_plan *p, uint64_t count, bool sums);
/* These give nothing where @count elements are none. */
void plan_copy(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t count, cu_ptr from,
               cu_ptr to);
/* Of bytes where the operation reduces nothing, else by its operator. */
void plan_call(const struct gpu_plan *p, const struct gpu_sink *sink, enum gpu_call_kind kind,
               uint32_t unit, uint64_t count, cu_ptr send, cu_ptr recv);
void plan_divide(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t count, cu_ptr at);

/* What rank k of this unit sends to @to, and gets from @from: of cells. */
uint64_t cell_sent(const struct gpu_plan *p, unsigned k, uint32_t to);
uint64_t cell_got(const struct gpu_plan *p, unsigned k, uint32_t from);
uint64_t cells_scratch(const struct gpu_plan *p);

void plan_gather(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                 const struct gpu_sink *sink);
void plan_scatter(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                  const struct gpu_sink *sink);
void plan_cells(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                const struct gpu_sink *sink);

#endif
