/* gpu_plan.h - an operation on GPU buffers as lists of moves (move.h) and NCCL calls: a pure
 * function of its description, of who is on which GPU, and of the buffers of this GPU's ranks.
 *
 * A unit is a GPU of a node; it is one rank of the NCCL communicator, by its number. Each unit has
 * a plan of its own. It is done in rounds, the same number in all units of the group; in each round
 * the phases come one after the other, and what one phase gives may run at the same time:
 *   PACK    moves into scratch, of what would be overwritten
 *   BEFORE  moves: all there is to do on one GPU
 *   CALLS   NCCL calls, in one ncclGroup over all units of this node
 *   AFTER   moves */
#ifndef COMMD_GPU_PLAN_H
#define COMMD_GPU_PLAN_H

#include "shm/model/plan.h"
#include "transport/gpu/move.h"

enum gpu_phase { GPU_PACK, GPU_BEFORE, GPU_CALLS, GPU_AFTER, GPU_PHASES };

/* What partial sums may take of scratch; longer operations take more rounds. Copies that are needed
 * because blocks do not lie as NCCL wants them, or of an all_to_all in place, take what they need.
 */
enum { GPU_PLAN_SCRATCH = 64 << 20 };

/* A rank of this unit, and what it gave. Counts as struct commd_op has them. */
struct gpu_rank {
    uint32_t rank;
    double scale;
    cu_ptr send, recv;                       /* 0: none; of blocks: they lie one after the other */
    const cu_ptr *send_blocks, *recv_blocks; /* or here, if not NULL: world each; borrowed */
    const uint64_t *send_counts, *recv_counts; /* borrowed */
};

struct gpu_plan {
    struct op_desc desc;
    uint32_t world, nunits;
    const uint16_t *unit_of_rank; /* borrowed; world entries */
    uint32_t unit;                /* this one */
    uint32_t nranks;              /* on it, 1 to BATCH_SOURCES; in ascending order */
    const struct gpu_rank *ranks; /* borrowed */
    uint64_t most_scratch;        /* instead of GPU_PLAN_SCRATCH, in all units alike; 0: that */
    /* found by gpu_plan_make() */
    uint32_t rounds;
    uint64_t scratch; /* bytes that it needs */
    uint64_t chunk;   /* elements of a vector or block in a round */
    uint16_t way;     /* enum plan_way, gpu_plan.c */
    cu_ptr at;        /* the caller sets it then: scratch on this GPU, 256 bytes aligned */
};

enum gpu_call_kind {
    GPU_ALL_REDUCE,
    GPU_REDUCE,
    GPU_BROADCAST,
    GPU_ALL_GATHER,     /* count: of a send block */
    GPU_REDUCE_SCATTER, /* count: of a recv block */
    GPU_SEND,
    GPU_RECV,
};

struct gpu_call {
    uint8_t kind, type, op; /* enum gpu_call_kind, ncclDataType_t, ncclRedOp_t */
    uint32_t unit;          /* root or peer */
    uint64_t count;
    cu_ptr send, recv; /* may be 0 where NCCL does not look */
};

/* Whom the parts of a plan are given to. */
struct gpu_sink {
    void *arg;
    void (*move)(void *arg, const struct gpu_move *move);
    void (*call)(void *arg, const struct gpu_call *call);
};

/* The caller has filled in the upper half of @p, which gpu_able() says can be done. false: it is
 * not a valid operation (a client wrote it): nothing may be done with it. */
bool gpu_plan_make(struct gpu_plan *p);
/* Between GPUs an operation is launched in parts, for others are to get in between. Each costs NCCL
 * its start and its end anew: foreseen are some 20 us, against 4 ms for 1 GiB and 0.3 ms for 64 MiB
 * at 250 GB/s. */
enum {
    GPU_PART_LEAST = 16,
    GPU_PART = 1 << 30,
    GPU_PART_BESIDE = 64 << 20, /* where other users are on the same GPUs */
};
/* How many bytes a part should have. NCCL's order of summation depends on where an element lies in
 * a call: a result must not depend on who else is there, so such an operation is always cut alike.
 */
uint32_t gpu_plan_part(const struct gpu_plan *p, bool beside);
/* Elements of the largest cell that ranks of this unit send or get, where each has a count of its
 * own; else 0. */
uint64_t gpu_plan_cell(const struct gpu_plan *p);
/* Cuts it into rounds in which a rank sends or gets about @bytes at most; all units of a group must
 * do so alike. @cell: the most that gpu_plan_cell() says of any of them. Nothing, if its rounds are
 * no longer than that. */
void gpu_plan_slice(struct gpu_plan *p, uint64_t bytes, uint64_t cell);
/* Gives all moves or calls of a phase. Unit, rounds and phases in which nothing is to be done give
 * nothing. */
void gpu_plan_phase(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                    const struct gpu_sink *sink);

#endif
