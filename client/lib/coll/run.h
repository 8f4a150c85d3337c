/* run.h - one operation of one member: its state (struct run), the parts of its steps (step.c, and
 * inline here what every step of every operation passes), reasons to give it up (give_up.c), the
 * machine itself (run.c) and waiting for it (finish.c). */
#ifndef COMMD_CLIENT_RUN_H
#define COMMD_CLIENT_RUN_H

#include "client/lib/coll/gate.h"
#include "client/lib/context/group.h"
#include "shm/util/held.h"

/* What a look at an operation has found; in this order. */
enum run_state {
    RUN_WAIT,  /* nothing can be done now */
    RUN_MOVED, /* it has got on, and is not done */
    RUN_DONE,
    RUN_FAILED, /* run.err says why */
};

/* What this member knows of the descriptions of the others: do all mean the same operation? */
enum run_agreed {
    AGREED_UNKNOWN,
    AGREED_HERE, /* those do whose data this member reduces now: of its node, of its team */
    AGREED_NOT,  /* one of those means another operation */
    AGREED_ALL,
    AGREED_REFUSED, /* found by all: they do not mean the same. Nobody does it; the group goes on */
};

/* Where the operation stands in the recorder. */
enum run_recorded {
    RECORDED_NOT,
    RECORDED_SHOWN,  /* its beginning, for people */
    RECORDED_SAMPLE, /* in the sums it stands for RECORDER_SAMPLE operations */
    RECORDED_ALONE,  /* there it stands for itself */
};

enum { RUN_UNTIMED = -2 };

/* Counts and addresses that an operation gives for each rank: lists.c. One allocation. */
struct op_lists {
    uint64_t *counts;                    /* of the blocks, where all ranks give the same; or NULL */
    uint64_t *send_counts, *recv_counts; /* of the cells of a counted operation; or NULL */
    uint8_t **send_blocks, **recv_blocks; /* where blocks lie that do not lie evenly; or NULL */
};

struct run {
    struct membership *group;
    struct op_desc desc;
    struct op_desc told; /* to others, if it is late */
    struct op_balance balance;
    struct plan plan;
    struct op_lists *lists;  /* owned; NULL: none needed */
    const struct gate *gate; /* borrowed; NULL: no GPU fills the buffers */
    const uint8_t *send;
    uint8_t *recv;
    double scale;           /* of this rank's contribution: premul_sum */
    uint64_t most;          /* largest cell, elements: counted operations */
    uint32_t base;          /* number of its first step */
    uint32_t put, red, got; /* steps announced, reduced, taken */
    uint32_t slept_at;      /* what these were when it went to sleep last */
    unsigned seen;          /* members known to have announced the step looked at last */
    uint32_t seen_step;
    enum run_agreed agreed;
    enum run_recorded recorded;
    bool early;        /* it is done for this member alone: early.c */
    bool late;         /* it fails on all ranks, because of the one before */
    bool before_sleep; /* nothing may be left unseen that rings no more */
    bool untold;       /* others may sleep for what this rank has changed, and no bell was rung */
    int64_t warn_ms; /* a rank that sleeps for so long says so; 0: never, or another one says it */
    uint64_t bytes;  /* of this rank's payload */
    uint64_t fingerprint;          /* of desc */
    struct question *question;     /* owned: which ranks are missing (absent.c); NULL: not asked */
    struct registered *registered; /* owned; NULL: not in registered memory */
    int64_t limit_ms;              /* -1 none */
    int64_t deadline_ms;           /* CLOCK_MONOTONIC, -1 none; RUN_UNTIMED before run_clock() */
    uint64_t asked_ms;             /* when the application was asked whether to stop; 0: not yet */
    struct commd_error err;        /* RUN_FAILED */
};

/* How a member carries out an operation on one path of plans. */
struct path {
    void (*begin)(struct run *r); /* or NULL */
    /* Does all that can be done without waiting, or a part of it: RUN_MOVED. */
    enum run_state (*advance)(struct run *r);
    /* Has come what most likely comes next? Looks at nothing else. */
    bool (*comes)(struct run *r);
    void (*end)(struct run *r, bool done); /* or NULL */
};
extern const struct path paths[PATH_COUNT];

/* What a member does in each step of a collective. */
struct coll_steps {
    /* One node: is what get() of step @c reads in place? */
    bool (*ready)(struct run *r, uint32_t c);
    void (*put)(struct run *r, uint32_t c);
    /* What needs no other member: done once step @c has been announced, while others do theirs. */
    void (*own)(struct run *r, uint32_t c);
    void (*reduce)(struct run *r, uint32_t c); /* only if plan.reduces */
    void (*get)(struct run *r, uint32_t c);
};
extern const struct coll_steps coll_steps[COLL_COUNT];

/* ---- lists.c --------------------------------------------------------------------------------- */

/* Copies what @op gives per rank; *ret_lists is NULL if it gives nothing. -ENOMEM. */
int lists_copy(const struct membership *g, const struct commd_op *op, struct op_lists **ret_lists);
static inline int lists_make(const struct membership *g, const struct commd_op *op,
                             struct op_lists **ret_lists)
{
    *ret_lists = NULL;
    return unlikely(coll_table[op->coll].counted || op->send_blocks || op->recv_blocks)
               ? lists_copy(g, op, ret_lists)
               : 0;
}

/* ---- run.c ----------------------------------------------------------------------------------- */

/* Starts @op as the next operation of the group; the caller holds the group's turn and has
 * set r->lists. COMMD_E_INVALID: it cannot be; nothing was started. */
int run_begin(struct run *r, struct membership *g, const struct commd_op *op);
/* @r has begun: a barrier in place of an operation that this rank cannot do, as @code says; or that
 * operation itself, if it is one of posts.c. It fails on all ranks, as if they had called different
 * operations. Called before @r is polled. */
void run_decline(struct run *r, int code);
/* Sets how long the operation may take. */
void run_limit(struct run *r, const struct membership *g, const struct commd_op *op);
/* The limit begins now, unless it has begun before. It begins with the call. That of a brief
 * operation begins with its first sleep, which comes after some hundred looks at most: such an
 * operation hardly ever sleeps, and to read the clock would cost it a tenth of its time. */
void run_clock(struct run *r);
/* Does all that can be done without waiting. */
enum run_state run_poll(struct run *r);
/* The same. But if r->untold is set afterwards, the caller has to run_tell() before it sleeps or
 * lets much time pass. After RUN_DONE any full fence and bell_ring_fenced() are enough. */
enum run_state run_advance(struct run *r);
/* Bookkeeping after DONE or FAILED: counters for the next operation. */
void run_end(struct run *r, enum run_state st);
/* In place of run_end(), if the group is being left. */
void run_abandon(struct run *r);
/* If the operation has a gate: tells which pieces of the result are there. */
void run_tell_gate(const struct run *r);
/* The operation waits for an answer that rings no bell: the caller has to look again soon. */
bool run_asks(const struct run *r);

/* ---- finish.c -------------------------------------------------------------------------------- */

/* Poll until done or failed, with the group's wait policy. */
enum run_state run_finish(struct run *r);
/* Which processes the operation waits for. */
enum wait_for run_waits_for(struct run *r);
/* The operation is hopeless (r->err says why), unless what it waits for has come meanwhile. */
enum run_state run_last_look(struct run *r);

/* ---- give_up.c ------------------------------------------------------------------------------- */

/* Is there a reason to give up waiting? True: r->err is filled, and the caller has to take a
 * run_last_look() before it gives up. */
bool run_hopeless_look(struct run *r);
static inline bool run_hopeless(struct run *r)
{
    const struct board_hdr *h = r->group->board.hdr;

    return unlikely(atomic_load_explicit(&h->broken, memory_order_relaxed) ||
                    atomic_load_explicit(&h->ngone, memory_order_relaxed)) &&
           run_hopeless_look(r);
}
/* Looks also for what costs system calls: commd is gone, the limit has passed. */
bool run_hopeless_slow(struct run *r);
/* The application's wish to stop (Ctrl-C): only asked on the caller's own thread. */
bool run_interrupted(struct run *r);
/* What a collective would fail with if it was called now: 0 or COMMD_E_*. */
int run_foretold(struct membership *g);
/* Is the group broken? Then r->err says by whom. */
bool run_broken(struct run *r);

/* ---- step.c ---------------------------------------------------------------------------------- */

enum run_state steps_advance(struct run *r);
enum run_state open_advance(struct run *r);
bool steps_come(struct run *r);
/* Puts and announces the next step if its input is there and a slot is free. */
bool run_put(struct run *r);
void run_announce(struct run *r, unsigned kind);
/* Two ranks mean different operations, as @m says, which a member or the engine wrote: r->err. */
void run_mismatch(struct run *r, const struct board_mismatch *m);
/* Do the descriptions of the first step agree? On one node this member compares them; over several
 * nodes the engines have. If not r->err is set. run_agrees() compares once. */
bool run_compare(struct run *r);
static inline bool run_agrees(struct run *r)
{
    return likely(r->agreed == AGREED_ALL) || run_compare(r);
}
/* All members begin the operation again, @steps later. */
void run_again(struct run *r, uint32_t steps);
/* The error of a rank that cannot take part: the code that it has @told, if it may tell that one,
 * and *ret_why in words. */
int declined_code(uint8_t told, const char **ret_why);
/* Fills r->err: "operation 3 (all_reduce) of group "g"" and what follows. @rank, @pid, @node: who
 * is to blame, -1, 0 and "": nobody. */
void run_error(struct run *r, int code, int rank, uint32_t pid, const char *node, const char *fmt,
               ...) _printf_(6, 7);
/* The rest of r->err: who, where, in which operation. */
void run_describe(struct run *r, int code, int rank, uint32_t pid, const char *node);

/* ---- window.c -------------------------------------------------------------------------------- */

/* May @step be put into this member's window, or do others still take what it has posted there? */
bool window_leaves(struct run *r, uint32_t step);

/* ---- posts.c --------------------------------------------------------------------------------- */

enum run_state posts_advance(struct run *r);
bool posts_come(struct run *r);
static inline struct board_member *run_member(const struct run *r)
{
    return &r->group->board.members[r->group->local];
}

static inline uint64_t run_recorder_head(const struct run *r)
{
    return recorder_head((uint32_t)r->desc.seq, r->desc.coll, r->desc.dtype, r->desc.redop);
}

static inline void run_record(struct run *r)
{
    r->recorded = MAX(r->recorded, (enum run_recorded)RECORDED_SHOWN);
    recorder_begin(&r->group->board.recorders[r->group->local], run_recorder_head(r), r->bytes,
                   now_ns());
}

/* This member is about to sleep. Since when it has slept without getting on is written down for
 * board_seat(): an operation of some seconds sleeps often and is not stuck. */
static inline void run_note_sleep(struct run *r)
{
    struct board_member *me = run_member(r);
    uint32_t op = (uint32_t)r->desc.seq, steps = r->base + r->put + r->red + r->got;

    if (atomic_load_explicit(&me->asleep_op, memory_order_relaxed) == op && r->slept_at == steps)
        return;
    r->slept_at = steps;
    if (!r->recorded)
        run_record(r);
    atomic_store_explicit(&me->asleep_ms, (uint32_t)now_ms(), memory_order_relaxed);
    atomic_store_explicit(&me->asleep_op, op, memory_order_release);
}

static inline bool one_node(const struct run *r)
{
    return r->group->board.nnodes == 1;
}

static inline void run_tell(struct run *r)
{
    struct board_hdr *h = r->group->board.hdr;

    r->untold = false;
    bell_ring(&h->bell, &h->sleepers); /* contains the fence that group_wake_engine needs too */
}

/* Tells the engine as well: for changes that it may wait for, a member's data and, if members
 * reduce, its reduced slice. That a result was read concerns the members alone. */
static inline void run_tell_engine(struct run *r)
{
    run_tell(r);
    if (!one_node(r))
        group_wake_engine(r->group);
}

/* All members have consumed up to @want. The answer is cached: within SLOTS or depth steps of
 * each other the members' lines are not read at all. */
static inline bool run_all_consumed(struct run *r, uint32_t want)
{
    struct membership *g = r->group;
    uint32_t low;

    if (likely(seq_reached(g->consumed_seen, want)))
        return true;
    low = atomic_load_explicit(&g->board.members[0].consumed, memory_order_acquire);
    for (unsigned m = 1; m < g->board.nlocal; m++) {
        uint32_t c = atomic_load_explicit(&g->board.members[m].consumed, memory_order_acquire);
        if (!seq_reached(c, low))
            low = c;
    }
    g->consumed_seen = low;
    return seq_reached(low, want);
}

static inline bool run_step_arrived(struct run *r, uint32_t step)
{
    const struct board *b = &r->group->board;

    if (r->seen_step != step) {
        r->seen_step = step;
        r->seen = 0;
    }
    while (r->seen < b->nlocal && board_arrived(b, r->seen, step))
        r->seen++;
    return r->seen == b->nlocal;
}

static inline bool run_step_reduced(struct run *r, uint32_t want)
{
    const struct board *b = &r->group->board;

    for (unsigned m = 0; m < b->nlocal; m++)
        if (!seq_reached(atomic_load_explicit(&b->members[m].reduced, memory_order_acquire), want))
            return false;
    return true;
}

/* Does step @c travel in the announcement alone? */
static inline bool run_step_inline(const struct run *r, size_t len)
{
    return len <= BOARD_INLINE && one_node(r) && !r->plan.reduces;
}

static inline bool run_can_put(struct run *r, uint32_t c, size_t len)
{
    uint32_t step = r->base + c, depth = r->group->board.depth;

    if (run_step_inline(r, len))
        return run_all_consumed(r, step - BOARD_SLOTS + 1);
    if (!run_all_consumed(r, step - depth + 1))
        return false;
    if (!one_node(r))
        return seq_reached(atomic_load_explicit(&r->group->board.hdr->sent, memory_order_acquire),
                           step - depth + 1);
    if (unlikely(r->group->posted) && !window_leaves(r, step))
        return false;
    r->group->windowed = step + 1;
    return true;
}

/* Has the stream filled what step @c takes from the caller's buffer, if there is a stream? */
static inline bool run_filled(const struct run *r, uint32_t c)
{
    return likely(!r->gate) ||
           gate_has(r->gate,
                    ((size_t)c * r->plan.unit + plan_step_count(&r->plan, c)) * r->plan.esize);
}

/* Everybody's first announcement is there: is it of the same operation as ours? */
static inline bool run_members_agree(const struct run *r)
{
    const struct board *b = &r->group->board;

    for (unsigned m = 0; m < b->nlocal; m++)
        if (unlikely(board_slot(b, m, r->base)->fingerprint != r->fingerprint))
            return false;
    return true;
}

#endif
