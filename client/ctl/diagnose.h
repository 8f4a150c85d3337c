/* diagnose.h - why a group does not get on: a verdict for each group, from what all nodes say of
 * its ranks (MSG_TABLES "ranks"). No I/O. */
#ifndef COMMCTL_DIAGNOSE_H
#define COMMCTL_DIAGNOSE_H

#include "shm/proto/msg.h"

/* What keeps a group from getting on; from SLOW_RANK on it gets on, but one rank makes the others
 * wait, a link loses data, the group has less of its cores than it could use, or not all of its
 * nodes tell; from COMPUTE_BOUND
 * on it is well; RECOVERED: it has gone on as its next epoch. */
/* clang-format off */
#define VERDICTS(V)                                                                                \
    V(RANK_DEAD) V(NODE_DEAD) V(NODE_REFUSED) V(NODE_SILENT) V(COMMD_DEAD) V(LINK_DEAD)            \
    V(LINK_TAMPERED) V(ENGINE_DEAD) V(ENGINE_STOPPED) V(GPU_SERVICE_DEAD) V(RANK_STOPPED)          \
    V(ORDER_INVERSION) V(MISMATCH) V(UNMATCHED) V(NOT_ARRIVED) V(RANK_LEFT) V(NOT_JOINED)          \
    V(GPU_BEHIND) V(GPU_STALL) V(LINK_STALL) V(ABORTED) V(BROKEN) V(SLOW_RANK) V(SLOW_LINK)        \
    V(THROTTLED) V(COMMD_AWAY) V(COMPUTE_BOUND) V(COMM_BOUND) V(RECOVERED) V(HEALTHY)
/* clang-format on */
#define VERDICT(name_) VERDICT_##name_,
enum verdict { VERDICTS(VERDICT) };
#undef VERDICT

enum { FINDING_TEXT = 4096 };

/* Strings that are not arrays are borrowed from the table. */
struct finding {
    enum verdict verdict;
    const char *group, *name, *state, *job;
    uint64_t size, nodes;
    uint64_t epoch, next_epoch;        /* 0: not known; it has not gone on */
    const char *recovery, *free_seats; /* as in the table */
    uint64_t new_processes;            /* that wait under its name */
    /* the culprit; rank -1: nobody in particular */
    int64_t rank, pid;
    int64_t world_rank;     /* its number in the job, as far as that is known */
    const char *rank_group; /* the group of that rank: the chain may lead to another group */
    const char *node, *command;
    char lost_node[MSG_NAME_MAX]; /* if node is "": a node of which there is no row */
    bool ended;
    bool early;  /* others wait for it, but not yet for so long that a person should look */
    bool killed; /* the group was ended while it hung: the finding is about the time before */
    bool unseen; /* no node has told of some of its ranks */
    uint64_t ended_s;
    uint64_t waiting_ms;                               /* for how long others wait; 0: not known */
    char evidence[FINDING_TEXT], remedy[FINDING_TEXT]; /* lines */
};

/* "RANK_DEAD" */
const char *verdict_name(enum verdict verdict);
bool verdict_is_well(enum verdict verdict);
/* Need nobody look? Also true if a rank is named, and others have not waited for long. */
bool finding_is_well(const struct finding *f);

/* One finding for each group in @ranks, in their order there. *ret_findings is the caller's, to
 * free(). -ENOMEM; -EPROTO: the table lacks a column, whose key is then in *ret_key. */
int diagnose(const struct msg_table *ranks, struct finding **ret_findings, unsigned *ret_n,
             const char **ret_key);

/* Of the group @name of user @uid that has not come about, or waits for @recovery, and is in
 * @state, by what all nodes say: writes which ranks are missing, "1,3-5"; *ret_seats: which seats
 * are free. False: it is not known. */
bool diagnose_missing(const struct msg_table *ranks, const char *name, const char *uid,
                      const char *state, const char *recovery, char *buf, size_t len,
                      const char **ret_seats);

/* links.c: is the network to blame, where a group seems well otherwise? Is it a node that does not
 * answer? */
void judge_links(const struct msg_tables *answer, struct finding *findings, unsigned n);
/* First those that are not up, then those that lose or crawl, the worst first; the others stay in
 * their order. */
void links_worst_first(struct msg_table *links);

/* pending.c, of `commctl ops`: one operation that has begun and not ended, or one message. */
struct wait_row {
    const char *group, *name, *operation;
    uint64_t number;                 /* of the operation; 0: a message */
    bool gpu;                        /* by commd-gpu: such have numbers of their own */
    uint64_t waiting_ms;             /* the longest */
    char waiting[256], missing[256]; /* ranks, "0-2,5" */
};
int pending_operations(const struct msg_table *ranks, struct wait_row **ret_pending,
                       unsigned *ret_n, const char **ret_key);

#endif
