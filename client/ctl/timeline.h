/* timeline.h - what the recorders of all ranks say, put on one clock: `commctl trace` and `commctl
 * top`. No I/O. See timeline.c for how clocks of nodes are put together. */
#ifndef COMMCTL_TIMELINE_H
#define COMMCTL_TIMELINE_H

#include "shm/proto/msg.h"

/* Strings are borrowed from the answer. Times are nanoseconds. */
struct timeline_rank {
    const char *group, *name, *node, *command;
    uint64_t size, done, busy_pct, watched_ms, gave;
    uint64_t asleep_ms; /* for which it has waited in an operation, or for a message, by now */
    int64_t rank, pid;
    bool ended;             /* its group has */
    unsigned in_group;      /* number of the group's first rank */
    uint32_t sorts_from[2]; /* of that rank: number of an operation of the group, [1]: on GPUs */
    int64_t to_wall;     /* to be added to its times: then they are the first rank's time of day */
    int64_t uncertainty; /* of that; -1: only the clocks of the nodes tell */
    /* of `compared` operations that all ranks of the group had recorded */
    unsigned compared;
    int64_t wait_ns;          /* until the last one had begun, the mean */
    int64_t late_ns, took_ns; /* behind the first one to begin; the medians */
    int64_t *times;           /* scratch */
};

struct timeline_op {
    unsigned rank; /* its index in ranks */
    uint32_t number;
    bool gpu; /* by commd-gpu: such have numbers of their own, and are announced, not begun */
    const char *collective, *dtype;
    uint64_t bytes;
    int64_t begun, ended; /* time of day; ended 0: it has not */
    int64_t late, wait;   /* -1: not known */
};

struct timeline {
    struct timeline_rank *ranks; /* owned */
    unsigned nranks;
    struct timeline_op *ops; /* owned; by group, number and rank */
    unsigned nops;
};

/* From an answer to "ranks" with records. -ENOMEM; -EPROTO: it lacks a column, or a table, whose
 * key is then in *ret_key. */
int timeline_make(const struct msg_tables *answer, struct timeline *ret_timeline,
                  const char **ret_key);
void timeline_free(struct timeline *timeline);

/* The share of the time in which it waited for the last rank; of one that has completed nothing,
 * for whatever it waits. -1: not known. */
double timeline_waiting_pct(const struct timeline_rank *rank);

#endif
