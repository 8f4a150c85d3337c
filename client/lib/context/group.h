/* group.h - a group as this member has it: the board and its tables (group.c), which members still
 * live when commd is gone (alive.c), which cannot come to a new group (parent.c), that other groups
 * have lost them, too (elsewhere.c), and which have not come to an operation (absent.c). */
#ifndef COMMD_CLIENT_GROUP_H
#define COMMD_CLIENT_GROUP_H

#include <unistd.h>

#include "client/lib/context/context.h"
#include "shm/board/board.h"
#include "shm/util/copy.h"

struct alive {
    int fd; /* the board, by an open file description of our own that holds the lock; -1: none */
    unsigned begun; /* by fork_generation(), counted from 1; 0: it has not, or has ended */
    bool pids;      /* the pids that commd gave are pids of this process's namespace */
    struct alive *next;
};

/* What the application holds: a group through all its epochs. */
struct commd_group {
    struct membership *now;    /* owned */
    struct commd_context *ctx; /* borrowed: outlives its groups */
    struct commd_group *next;  /* in ctx->groups */
    _Atomic bool recovering;   /* a thread is in commd_group_recover() */
};

/* NULL for NULL. */
static inline struct membership *group_now(const struct commd_group *h)
{
    return likely(h) ? h->now : NULL;
}

/* How results of one magnitude are written: coll/results.c. */
struct result_way {
    struct copy_choice choice;
    uint64_t seq;        /* the operation that is measured; 0: none yet */
    uint64_t ns, lines;  /* of its copies that count */
    unsigned fastest_ps; /* a line, in the fastest of its copies */
};
enum { RESULT_WAYS = 16 };

/* An operation that has ended for this member, and perhaps not for others: coll/early.c. */
struct early {
    struct op_desc desc; /* seq 0: there is none */
    uint32_t base, end;  /* its first step, and the one behind its last */
};

/* A group in one epoch, as this member has it. */
struct membership {
    struct commd_context *ctx; /* borrowed: outlives its groups */
    struct board board;
    char name[MSG_GROUP_MAX];
    unsigned rank, local;        /* my rank; my member index on this node */
    struct msg_member *members;  /* owned; by rank */
    char (*nodes)[MSG_NAME_MAX]; /* owned */
    uint32_t *node_start;        /* owned; nnodes + 1 */
    uint32_t *rank_at;           /* owned; world: rank at each position */
    uint32_t *pos_of;            /* owned; world */
    uint32_t *local_rank;        /* owned; nlocal: rank of each member here */
    struct plan_geom geom;
    unsigned crowded_ns; /* of yield_core() */
    struct crowd crowd;
    struct apart apart;
    int doorbell; /* to the engine, borrowed from ctx; -1 */
    _Atomic int64_t timeout_ms;

    /* whose turn it is: see async/async.c */
    _Atomic int busy;
    _Atomic uint64_t seq;    /* operations begun */
    _Atomic unsigned splits; /* of this group into new ones */
    uint32_t next_step;
    uint32_t consumed_seen; /* all members have consumed up to here */
    uint32_t ops_seen;      /* all members have completed operations up to here */
    struct early early;
    /* Of operations that ranks do not meet in: client/lib/coll/posts.c. */
    bool looked;            /* at `ops` of all, since their posts were compared */
    uint64_t chain;         /* of those that were called since all ranks agreed by failing */
    uint64_t settled;       /* the operation in which they did */
    uint64_t refused_until; /* operations up to here have failed on other ranks, with `refusal` */
    struct board_mismatch refusal;
    uint32_t piece;    /* number of the next one that is posted in this member's window */
    uint32_t windowed; /* the step behind the last that was put there */
    uint64_t posted;   /* the last operation of which it has pieces; 0: all have completed that */
    uint64_t piece_op[TUNE_DEPTH_MAX]; /* by slot of the window: that of the last piece there */
    struct copy_way way;               /* copies into windows */
    struct copy_way reduced;           /* reductions into windows */
    struct result_way results[RESULT_WAYS]; /* from PLAN_AROUND_LEAST on, doubled each time */
    struct plan plans[COLL_COUNT]; /* of the last operation of each collective; steps 0: none yet */

    struct alive alive;

    _Atomic bool failing; /* a thread writes `first` */
    _Atomic bool failed;  /* `first` says why; later operations fail with it at once */
    struct commd_error first;

    pthread_mutex_t qlock;
    struct commd_work *head, **tail; /* waiting works, owned by the queue */
    _Atomic unsigned pending;        /* works queued or running on the progress thread */
    struct membership *active_next;  /* progress thread's list */
    bool active;
    struct commd_work *running;

    struct peer_arenas **peer_arenas; /* owned; by local member (peer_arena.c) */

    struct p2p *_Atomic p2p;      /* owned; NULL until the first message */
    _Atomic unsigned p2p_pending; /* works of messages that are not done */
    struct commd_work *held;      /* of these, those that have not begun; under plock */

    struct device_group *_Atomic device; /* owned by client/lib/device/; NULL: as in the context */
};

/* Is the engine on this core, and does a ring end a sleep? Then it gets the core at once. */
static inline bool engine_shares_core(const struct board *b)
{
    return b->nnodes > 1 && board_engine_here(b) && !futex_any_is_blind();
}

/* The group of whose ranks a new one is made. */
struct parent {
    const struct membership *group; /* borrowed */
    const int *ranks; /* borrowed: its ranks that come; NULL: all of them, or all fail */
    unsigned count;
    bool broken;     /* this rank had been told of it before: that it is revoked means nothing */
    int64_t left_ms; /* since when one of them is known to have left it; 0: none has */
    bool named;      /* parent_fails() has said who */
    bool revoked;    /* what parent_fails() has said */
};

/* An answer of commd that a thread of this process waits for. */
struct awaited {
    struct awaited *next; /* in ctx->awaited */
    enum msg_type answer; /* MSG_JOINED (or JOIN_FAILED), MSG_ARENA_ANSWER or MSG_GPU_ANSWER */
    uint32_t req;         /* the number of the question, which the answer repeats */
    struct msg ask;       /* the question, sent again to the next commd; it owns nothing */
    int ask_fd;           /* borrowed: goes along; -1: none */
    int64_t deadline_ms;  /* of a join; -1: none */
    int64_t patient_ms;   /* of a recovery: when it goes on without new processes; 0: never */
    const struct membership *follows; /* borrowed: what a recovery goes on from; NULL: nothing */
    bool over;                        /* that has been revoked, or needs not be */
    uint32_t *gone; /* owned: @ngone ranks of it that are gone, which commd does not know itself */
    uint32_t ngone;
    struct parent *parent; /* borrowed; NULL: of the ranks of no group */
    bool done;
    struct msg reply; /* owned, once done */
    int fd;           /* owned: the board, the arena, or the session's socket; -1: none came */
    int doorbell;     /* borrowed from the context */
};

/* Asks commd for what @join says, and waits. @follows: what a recovery goes on from; @parent: the
 * new group is made of ranks of it, and the join ends when one cannot come any more; or NULL. */
int group_join(struct commd_context *ctx, const struct msg_client_join *join,
               const struct membership *follows, struct parent *parent, int64_t timeout_ms,
               struct membership **ret_group);
/* Makes the group from the answer @w, which stays the caller's, but for the tables in w->reply. */
int group_from_joined(struct commd_context *ctx, const char *name, unsigned rank, unsigned size,
                      int64_t timeout_ms, struct awaited *w, struct membership **ret_group);
/* All ways into a group that this process is not in (api/api_group.c): makes the handle. @join: its
 * name and what else it says. @parent: as of group_join(). */
int group_enter(struct commd_context *ctx, const char *op, const struct msg_client_join *join,
                struct parent *parent, int64_t timeout_ms, struct commd_group **ret_group);
/* Frees @g. Its messages and mapped arenas have been freed before: group_free(). */
void group_close(struct membership *g);
/* The first failure that ended the group for this member; tells commd if the others cannot
 * know (a limit passed, an interrupt). */
void group_fail(struct membership *g, const struct commd_error *why);
/* The same, of a failure that no other rank can know of, whatever its code is. */
void group_give_up(struct membership *g, const struct commd_error *why);
/* Ends the group's present epoch, here at once and for all by commd, because this rank wants to:
 * @reason. Any thread may do that at any time. False: there is no commd that could tell the others.
 */
bool group_revoke(struct commd_group *h, const char *reason);
const char *group_node_of(const struct membership *g, unsigned rank);

/* Has the group ended for this member? Then *e says why, and nothing can start any more. */
static inline bool group_has_failed(struct membership *g, struct commd_error *e)
{
    if (likely(!atomic_load_explicit(&g->failed, memory_order_acquire)))
        return false;
    *e = g->first;
    return true;
}

/* It has, so a call of @op does not begin: the operation that *e tells of is another one, and that
 * is said. */
void group_had_ended(const char *op, struct commd_error *e);

/* Called where it yields or sleeps. Where members of a group on one node share a core, and there is
 * one for each, the later one leaves it, after a while: struct apart. */
void group_part(const struct membership *g, struct apart *apart);

/* Called after a store that the engine may wait for, and a fence. The engine sleeps until a member
 * of one of its groups writes to the eventfd that commd gave to this process. The engine sees by
 * engine_asleep which group it is. */
static inline void group_wake_engine(struct membership *g)
{
    struct board_hdr *h = g->board.hdr;

    if (likely(!atomic_load_explicit(&h->engine_asleep, memory_order_relaxed)))
        return;
    if (atomic_exchange(&h->engine_asleep, 0))
        (void)!write(g->doorbell, &(uint64_t){1}, sizeof(uint64_t));
}

/* ---- alive.c --------------------------------------------------------------------------------- */

/* Says on the board, and by a lock on its file, that this member lives. */
void alive_begin(struct membership *g, int board_fd);
void alive_end(struct membership *g);
/* Has member @rank of a one-node group ended, or left? */
bool alive_ended(const struct membership *g, unsigned rank, bool *ret_left);
/* All ranks that have, but for this one: the first @most of @ret_ranks are filled. How many. */
uint32_t alive_gone(const struct membership *g, uint32_t *ret_ranks, uint32_t most);
/* Around a fork(); the child has alive_forked() instead of alive_unlock(). */
void alive_lock(void);
void alive_unlock(void);
void alive_forked(void);

/* ---- parent.c -------------------------------------------------------------------------------- */

/* Has the group ended, @revoked: because a rank revoked it? */
bool parent_failed(const struct membership *g, bool revoked);
/* Can one of the ranks not come any more that make group @name? Then *e says who. */
bool parent_fails(struct parent *p, const char *name, struct commd_error *e);

/* ---- elsewhere.c ----------------------------------------------------------------------------- */

/* @h has gone on from @old: waits until the boards of the other groups of this context tell of whom
 * it has lost. @seats: a rank may have got no seat, and live. */
void elsewhere_known(struct commd_group *h, const struct membership *old, bool seats,
                     int64_t limit_ms);

/* ---- absent.c -------------------------------------------------------------------------------- */

/* The first call asks the other nodes of the group about operation @seq. True: no more answers are
 * to be waited for. */
bool absent_ask(struct question **q, const struct membership *g, uint64_t seq);
/* "rank 3 of node b did not come", from the answers (@q may be NULL) and what this node knows.
 * False: all ranks have come, as far as is known. *ret_rank: the rank that is missing; -1: none, or
 * several. @node: the node of the missing ranks; "": several nodes. @base: the step at which this
 * rank meets those of its node; NULL: it meets nobody, or several nodes do. */
bool absent_text(const struct question *q, const struct membership *g, uint64_t seq,
                 const uint32_t *base, char *text, size_t len, int *ret_rank,
                 char node[MSG_NAME_MAX]);
void absent_free(struct question **q); /* NULL is fine */
/* An answer came. */
void absent_answer(struct commd_context *ctx, const struct msg_absent *m);

#endif
