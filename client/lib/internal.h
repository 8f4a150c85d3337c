/* internal.h - what the files of libcommd share. Layers, top to bottom: api.c (public calls,
 * argument checks) -> async.c (works, the progress thread) -> run.c (one operation as a state
 * machine over the board) -> coll.c (what each collective puts, reduces, gets);
 * context.c and control.c: the connection to commd; group.c: joining and the board. */
#ifndef COMMD_CLIENT_INTERNAL_H
#define COMMD_CLIENT_INTERNAL_H

#include <commd/commd.h>
#include <pthread.h>

#include "shm/board/board.h"
#include "shm/util/copy.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

#define PUBLIC __attribute__((visibility("default")))

/* ---- errors (error.c) ------------------------------------------------------------------ */
struct commd_error *error_mine(void); /* this thread's */
/* Fills *e and returns code. */
int error_set(struct commd_error *e, int code, const char *op, const char *fmt, ...) _printf_(4, 5);

/* ---- one operation (run.c, coll.c) ----------------------------------------------------- */
enum run_state { RUN_WAIT, RUN_DONE, RUN_FAILED };

/* What an operation gives per rank. One allocation. */
struct op_lists {
    uint64_t *counts;                    /* of the blocks, where all ranks give the same; or NULL */
    uint64_t *send_counts, *recv_counts; /* of the cells of a counted operation; or NULL */
    uint8_t **send_blocks, **recv_blocks; /* where blocks lie that do not lie evenly; or NULL */
};

struct run {
    struct commd_group *group;
    struct op_desc desc;
    struct op_balance balance;
    struct plan plan;
    struct op_lists *lists; /* owned; NULL: none needed */
    const uint8_t *send;
    uint8_t *recv;
    double scale;           /* of this rank's contribution: premul_sum */
    uint64_t most;          /* largest cell, elements: counted operations */
    uint32_t base;          /* number of its first step */
    uint32_t put, red, got; /* steps announced, reduced, taken */
    unsigned seen;          /* members known to have announced the step looked at last */
    uint32_t seen_step;
    bool consistent;           /* descriptions were compared */
    bool alike;                /* those of this node, before anything is reduced */
    bool moved;                /* the last poll made progress */
    struct question *question; /* owned: it ran out of time, and we ask who is missing */
    struct registered
        *registered;        /* owned: in registered memory, while that is possible (registered.c) */
    int64_t limit_ms;       /* -1 none */
    int64_t deadline_ms;    /* CLOCK_MONOTONIC, -1 none */
    struct commd_error err; /* RUN_FAILED */
};

/* What a member does in each step of a collective. */
struct coll_steps {
    /* One node: is what get() of step @c reads in place? */
    bool (*ready)(struct run *r, uint32_t c);
    void (*put)(struct run *r, uint32_t c);
    /* What needs nobody else: done once step @c has been announced, while others do theirs. */
    void (*own)(struct run *r, uint32_t c);
    void (*reduce)(struct run *r, uint32_t c); /* only if plan.reduces */
    void (*get)(struct run *r, uint32_t c);
};
extern const struct coll_steps coll_steps[COLL_COUNT];
bool run_all_arrived(struct run *r, uint32_t c);
bool run_all_reduced(struct run *r, uint32_t c);

/* Copies what @op gives per rank; *ret_lists is NULL if it gives nothing. -ENOMEM. */
int lists_make(const struct commd_group *g, const struct commd_op *op, struct op_lists **ret_lists);
/* Argument checks of a collective: 0 or COMMD_E_*. */
int check_op(const struct commd_group *g, const struct commd_op *op);

/* Starts @op as the next operation of the group; the caller holds the group's turn and has
 * set r->lists. COMMD_E_INVALID: it cannot be; nothing was started. */
int run_begin(struct run *r, struct commd_group *g, const struct commd_op *op);
/* The clock of an operation starts with the call, which for a queued one is before it begins. */
void run_limit(struct run *r, const struct commd_group *g, const struct commd_op *op);
/* Does all that can be done without waiting. */
enum run_state run_poll(struct run *r);
/* Is there a reason to give up waiting? true: r->err is filled. Call run_poll() once more
 * before believing it: what the operation needs may have come in between. */
bool run_hopeless(struct run *r);
/* The same and what costs system calls: commd gone, the limit passed. */
bool run_hopeless_slow(struct run *r);
/* Poll until done or failed, with the group's wait policy. */
enum run_state run_finish(struct run *r);
/* Bookkeeping after DONE or FAILED: counters for the next operation. */
void run_end(struct run *r, enum run_state st);
/* Instead of run_end(), of an operation whose group is being left. */
void run_abandon(struct run *r);
/* An answer that rings no bell is being waited for: look again soon. */
bool run_asks(const struct run *r);
/* For registered.c: */
bool run_can_put(struct run *r, uint32_t c, size_t len);
void run_announce(struct run *r, unsigned kind);
/* Do the descriptions of the first step agree? If not r->err is set. */
bool run_consistent(struct run *r);
/* Everybody goes on with the operation as if it began @steps later. */
void run_again(struct run *r, uint32_t steps);
void run_tell(struct run *r); /* the members that sleep */

/* ---- who still lives when commd is gone (alive.c) ------------------------------------------ */
struct alive {
    int fd;    /* the board, by an open file description of our own that holds the lock; -1: none */
    bool pids; /* those that commd gave mean something here */
    struct alive *next;
};

/* Says on the board, and by a lock on its file, that this member lives. */
void alive_begin(struct commd_group *g, int board_fd);
void alive_end(struct commd_group *g);
/* Has member @rank of a one-node group ended, or left? */
bool alive_ended(const struct commd_group *g, unsigned rank, bool *ret_left);
/* Around a fork(); the child has alive_forked() instead of alive_unlock(). */
void alive_lock(void);
void alive_unlock(void);
void alive_forked(void);

/* ---- groups (group.c) ------------------------------------------------------------------ */
struct commd_group {
    struct commd_context *ctx; /* borrowed: outlives its groups */
    unsigned connection;       /* of the context, on which it was joined */
    struct commd_group *next;  /* in ctx->groups */
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
    int doorbell; /* to the engine, borrowed from ctx; -1 */
    _Atomic int64_t timeout_ms;

    /* whose turn it is: see async.c */
    _Atomic int busy;
    _Atomic uint64_t seq;    /* operations begun */
    _Atomic unsigned splits; /* of this group into new ones */
    uint32_t next_step;
    uint32_t consumed_seen; /* all members have consumed up to here */
    struct copy_way way;    /* into windows */

    struct alive alive;

    _Atomic bool failing; /* somebody writes first */
    _Atomic bool failed;  /* first says why; later operations fail with it at once */
    struct commd_error first;

    pthread_mutex_t qlock;
    struct commd_work *head, **tail; /* waiting works, owned by the queue */
    _Atomic unsigned pending;        /* works queued or running on the progress thread */
    struct commd_group *active_next; /* progress thread's list */
    bool active;
    struct commd_work *running;

    struct peer_arenas **peer_arenas; /* owned; by local member (peer_arena.c) */

    struct p2p *_Atomic p2p;      /* owned; NULL until the first message */
    _Atomic unsigned p2p_pending; /* works of messages that are not done */
};

struct join_wait {
    struct join_wait *next;
    uint32_t req;
    bool done;
    struct msg reply;
    int board_fd;
    int doorbell;        /* borrowed from the context */
    unsigned connection; /* on which the answer came */
};

int group_join(struct commd_context *ctx, const char *name, unsigned rank, unsigned size,
               int64_t timeout_ms, struct commd_group **ret_group);
/* From commd's answer and the board's fd, which stay the caller's (tables are taken). */
int group_from_joined(struct commd_context *ctx, const char *name, unsigned rank, unsigned size,
                      int64_t timeout_ms, struct join_wait *w, struct commd_group **ret_group);
void group_free(struct commd_group *g);
/* The first failure that ended the group for this member; tells commd if the others cannot
 * know (a limit passed, an interrupt). */
void group_fail(struct commd_group *g, const struct commd_error *why);
const char *group_node_of(const struct commd_group *g, unsigned rank);

/* ---- context and its connection (context.c, control.c) ---------------------------------- */
struct commd_context {
    pid_t pid;           /* of the process that connected */
    unsigned generation; /* and how many forks led to it */
    bool search;         /* no socket was named: socket_path is where one was found */
    char socket_path[256];
    char node[MSG_NAME_MAX];
    uint64_t incarnation;
    bool commd_seen; /* commd is in our pid namespace, or in one below */
    int64_t timeout_ms;
    commd_interrupt_fn interrupt;
    void *interrupt_arg;

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t cond;
    int sock;                    /* -1: commd is gone */
    _Atomic unsigned connection; /* counts them: commd may be restarted */
    _Atomic bool lost;           /* the connection ended */
    bool reading;                /* a thread is reading for all who wait */
    uint32_t next_req;
    struct join_wait *waits;
    struct question *questions; /* borrowed: of operations that ran out of time */
    int doorbell;               /* current one */
    int *old_doorbells;         /* owned: of earlier engines, closed at the end */
    unsigned nold;
    struct commd_group *groups;

    /* the progress thread (async.c) */
    pthread_mutex_t plock;
    pthread_cond_t pcond; /* the thread stopped sleeping */
    bool sleeping;
    uint64_t sleeps;
    pthread_t thread;
    bool thread_up;
    _Atomic bool stop;
    _Atomic uint32_t kick; /* futex */
    struct commd_group *active;
    struct commd_work *finished; /* to be completed outside the lock, oldest first */
    struct commd_work **finished_tail;
};

int control_open(struct commd_context *ctx, int64_t deadline_ms);
void control_close(struct commd_context *ctx);
/* The error for a daemon that cannot be reached at @path: @err is an errno. */
int control_no_daemon(const char *path, int err);
/* Finds a daemon, or starts one (autostart.c). 0 or COMMD_E_*; *ret_left: it was there, but
 * left, which is a reason to search again. */
int autostart_search(char *ret_path, size_t size, int64_t deadline_ms, int *ret_sock,
                     bool *ret_left);
/* Sends the JOIN in @w->req and waits for its answer. */
int control_join(struct commd_context *ctx, const struct msg *msg, struct join_wait *w,
                 int64_t deadline_ms);
/* Sends a message about a group. -ENOTCONN if the commd that knows it is gone, also when we have
 * connected to its successor, which would take a stranger's group for a breach of protocol. */
int control_send_of(const struct commd_group *g, const struct msg *msg);
/* Has the commd that knows the group gone? Takes the lock. */
bool control_lost(const struct commd_group *g);
int64_t deadline_in(int64_t timeout_ms); /* -1 stays -1 */
/* After writing something for the engine, and a fence. */
void group_wake_engine(struct commd_group *g);
bool process_ended(pid_t pid);

/* ---- who has not come (who.c) -------------------------------------------------------------- */

/* Asks, with the first call, the other nodes of the group about operation @seq. True when there is
 * nothing more to wait for. */
bool absent_ask(struct question **q, const struct commd_group *g, uint64_t seq);
/* "rank 3 of node b did not come", from the answers (@q may be NULL) or what this node knows.
 * *ret_rank: the one that is missing, -1 if none or several; @node: "" if of several nodes. */
void absent_text(const struct question *q, const struct commd_group *g, uint64_t seq, char *text,
                 size_t len, int *ret_rank, char node[MSG_NAME_MAX]);
void absent_free(struct question **q); /* NULL is fine */
/* With the context's lock held: an answer came. */
void absent_answer(struct commd_context *ctx, const struct msg_absent *m);

/* ---- works (async.c) ------------------------------------------------------------------- */
struct commd_work {
    _Atomic uint32_t done; /* futex; 1: finished, err is final */
    _Atomic unsigned waiters;
    _Atomic int refs;
    struct commd_context *ctx; /* borrowed */
    struct commd_group *group; /* borrowed, valid until the work is finished */
    struct commd_work *next;
    struct commd_op op;
    struct run run;
    /* of a batch: parts that are not done yet; somebody writes err */
    _Atomic unsigned left;
    _Atomic bool failing;
    struct p2p_op *p2p; /* owned; a message */
    commd_done_fn on_done;
    void *arg;
    struct commd_error err;
};

unsigned fork_generation(void); /* forks between this process and the first that connected */
/* 0, or COMMD_E_FORKED in a process that did not connect itself (api.c). */
int usable(const struct commd_context *ctx, const char *op);
int async_run(struct commd_group *g, const struct commd_op *op);
int async_start(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                struct commd_work **ret_work);
int async_start_batch(struct commd_group *g, const struct commd_op *ops, unsigned n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work);
/* Fails what is queued and waits until the progress thread has let go of the group. */
void async_drop_group(struct commd_group *g);
/* For messages. A work, counted in the group; starts the progress thread. */
int async_new_p2p(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done,
                  void *arg, int refs, struct commd_work **ret_work);
void async_watch(struct commd_group *g); /* the thread shall look at it when it is kicked */
void async_kick(struct commd_context *ctx);
void async_finish_p2p(struct commd_work *w); /* its result is in it */
void async_queue_p2p(struct commd_work *w);  /* the same with plock held */
void async_stop(struct commd_context *ctx);
/* One round of what the progress thread does, for tests that poll instead of having one (they
 * claim that it is up). True if something moved. */
bool async_poll(struct commd_context *ctx);

static inline bool is_p2p(const struct commd_op *op)
{
    return op->coll == COMMD_SEND || op->coll == COMMD_RECV;
}

/* ---- point to point (p2p_api.c) ---------------------------------------------------------- */
enum p2p_waited { P2P_ENDED, P2P_LATE, P2P_INTERRUPTED };
struct mail_box;
int p2p_check(const struct commd_group *g, const struct commd_op *op);
int p2p_run(struct commd_group *g, const struct commd_op *op, struct commd_status *ret_status);
int p2p_start(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
              struct commd_work **ret_work);
/* On the waiting thread; P2P_ENDED: the work is done or about to be. */
enum p2p_waited p2p_wait_work(struct commd_work *w, int64_t until_ms);
/* By the progress thread, plock held; true if something moved. */
bool p2p_progress(struct commd_group *g, bool slow);
/* Messages are pending and no thread waits for any: the progress thread has to. */
bool p2p_unattended(struct commd_group *g);
struct mail_box *p2p_box(struct commd_group *g); /* its bell wakes who waits for messages */
/* Ends what is pending and waits until nobody waits in it. */
void p2p_drop(struct commd_group *g);
void p2p_free(struct commd_group *g);

#endif
