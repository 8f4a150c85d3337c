/* sched.h - the names of the schedules by which nodes exchange. Which of them an operation takes
 * its plan says (plan.h); what each does is in transport/schedule/. */
#ifndef COMMD_SCHED_H
#define COMMD_SCHED_H

enum sched_kind {
    /* Small payloads, few rounds: recursive doubling with a fold for node counts that are no
     * power of two (Thakur, Rabenseifner, Gropp 2005). Every node hears (indirectly) from
     * every other in each of these, so they also serve as the consistency check at the start of
     * an operation. */
    SCHED_RD_ALL_REDUCE, /* one "segment" 0..1 = the whole vector, act REDUCE in node order */
    SCHED_RD_ALL_GATHER, /* runs of node segments */
    SCHED_RD_BROADCAST,  /* one segment, carried by whoever already has it */
    SCHED_RD_REDUCE,     /* one segment; only the moves of the binomial tree to the root carry it */
    /* Large payloads, bandwidth-optimal. */
    SCHED_HALVING_ALL_REDUCE, /* as many bytes as a ring in 2 log2 N moves; a fold costs 2 more */
    SCHED_RING_ALL_REDUCE,    /* reduce-scatter then all-gather: 2(N-1) moves */
    SCHED_HALVING_REDUCE_SCATTER, /* log2 N moves; what SCHED_RD_ALL_GATHER does, backwards */
    SCHED_RING_REDUCE_SCATTER,    /* N-1 moves; node i ends with segment i */
    SCHED_RING_ALL_GATHER,        /* N-1 moves */
    SCHED_CHAIN_BROADCAST,        /* root -> root+1 -> ...; pipelined over chunks by the caller */
    SCHED_CHAIN_REDUCE,           /* root+1 -> root+2 -> ... -> root, each adding its own */
    /* Direct (schedule_direct.c): what one node has for another goes there in one message, not by
     * way of others. The moves do not depend on each other. */
    SCHED_EXCHANGE, /* everybody to everybody, in an order that never aims two at one */
    SCHED_TO_ROOT,
    SCHED_FROM_ROOT,
    SCHED_COUNT
};

#endif
