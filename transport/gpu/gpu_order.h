/* gpu_order.h - in which order NCCL operations of different groups are launched: the same on all
 * nodes, or two GPUs would wait for each other for ever. Pure. See gpu_order.c for the model. */
#ifndef COMMD_GPU_ORDER_H
#define COMMD_GPU_ORDER_H

#include "shm/util/base.h"

enum gpu_order_state {
    GPU_ORDER_IDLE,     /* not in the order */
    GPU_ORDER_READY,    /* phase 1: all local inputs are there; of the other nodes not known */
    GPU_ORDER_PROPOSED, /* phase 2: all nodes are ready; this one has proposed a ticket */
    GPU_ORDER_AGREED,   /* the ticket is known */
};

/* Part of the caller's operation; zeroed: GPU_ORDER_IDLE. */
struct gpu_order_op {
    uint64_t tie, seq; /* the same numbers on all nodes; tie: by the proposal, of each its own */
    uint64_t ticket;   /* proposed or agreed */
    enum gpu_order_state state;
    bool alone;
    bool held; /* the caller's: not to be launched now, for what it has launched must end first */
    struct gpu_order_op *next; /* of all that are not idle, ascending: first that to be launched */
};

struct gpu_order {
    uint64_t clock;
    struct gpu_order_op *head; /* borrowed: the caller's operations */
};

/* Between two parts of an operation so many tickets are left to others. */
enum { GPU_ORDER_APART = 64 };
/* Tickets above this are refused: the clock never wraps. */
#define GPU_ORDER_LAST (UINT64_MAX / 2)

/* All local inputs of @op are there. @alone: no other node takes part: it is agreed at once.
 * Else the caller now tells the other nodes: phase 1. Operations of a group come in the order of
 * their numbers. */
void gpu_order_ready(struct gpu_order *o, struct gpu_order_op *op, bool alone);
/* All nodes have said so. Returns this node's proposal, for phase 2. */
uint64_t gpu_order_propose(struct gpu_order *o, struct gpu_order_op *op);
/* All nodes' proposals are there; @ticket is the largest. false: it cannot be (a node is broken):
 * the group fails, and the caller drops the operation. */
bool gpu_order_agree(struct gpu_order *o, struct gpu_order_op *op, uint64_t ticket);
/* The operation to be launched now, which leaves the order; NULL: none may be yet. */
struct gpu_order_op *gpu_order_next(struct gpu_order *o);
/* A part of @op that gpu_order_next() gave is launched, and it has more: the next one takes its
 * place in the order. All nodes cut an operation alike, and nothing else is launched in between. */
void gpu_order_again(struct gpu_order *o, struct gpu_order_op *op);
/* It will not be launched: its group is gone. Nothing happens if it is not in the order. */
void gpu_order_drop(struct gpu_order *o, struct gpu_order_op *op);

#endif
