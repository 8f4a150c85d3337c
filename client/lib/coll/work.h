/* work.h - a work: an operation or a message that progresses without its caller (async/ runs it).
 * Here is its life only: its references, the queue that it is in, how its end is told. */
#ifndef COMMD_CLIENT_WORK_H
#define COMMD_CLIENT_WORK_H

#include "client/lib/coll/run.h"

struct commd_work {
    _Atomic uint32_t done; /* futex; 1: finished, err is final */
    _Atomic unsigned waiters;
    _Atomic int refs;
    struct commd_context *ctx; /* borrowed */
    struct membership *group;  /* borrowed, valid until the work is finished */
    struct commd_work *next;
    struct commd_op op;
    struct run run;
    /* of a batch: parts that are not done yet; a thread writes err */
    _Atomic unsigned left;
    _Atomic bool failing;
    bool part;           /* a part of a batch, which is arg */
    bool behind;         /* a message that waits for one before it, see messages_go() */
    struct gate *gate;   /* owned: a reference; NULL: its buffers are in host memory */
    struct gate **gates; /* owned: ngates references; of a batch, the gates of its parts */
    unsigned ngates;
    int declined;       /* COMMD_E_*: this rank cannot do it, run_decline() and p2p; else 0 */
    bool mixed;         /* of a batch: some of its parts have no gate */
    struct p2p_op *p2p; /* owned; NULL: not a message */
    commd_done_fn on_done;
    void *arg;
    struct commd_error err;
};

static inline bool is_p2p(const struct commd_op *op)
{
    return op->coll == COMMD_SEND || op->coll == COMMD_RECV;
}

const char *op_name(const struct commd_op *op); /* "all_reduce", "send", ... */
/* Elements of this rank's single block: all_gather_v and reduce_scatter_v give all counts once. */
size_t op_single_count(const struct membership *g, const struct commd_op *op);
struct commd_work *work_free(struct commd_work *w); /* of a work that no other thread knows */
void work_unref(struct commd_work *w);
/* Takes the work out of its group; the group may be freed right after. */
void work_finish(struct commd_work *w, const struct commd_error *e);
/* A part of @batch has failed: the first such error is that of @batch. */
void batch_failed(struct commd_work *batch, const struct commd_error *e);
/* Tells the threads that wait for @w. The caller holds no lock. */
void work_told(struct commd_work *w);
/* Tells all works that are finished, in their order. plock is dropped around the callbacks. One
 * thread at a time does that, also for works that are finished meanwhile: another thread returns at
 * once. */
void works_tell(struct commd_context *ctx);
bool works_told_elsewhere(const struct commd_context *ctx); /* another thread tells now */

/* The host has done its part of @w, which only has to land. */
void work_land(struct commd_work *w);
/* Moves works that have landed to those that are finished. True: one had landed. */
bool works_land(struct commd_context *ctx);
/* The context ends: works that have not landed end with @e. */
void works_strand(struct commd_context *ctx, const struct commd_error *e);

/* The group's queue of works that wait for their turn. *ret_shut: the input of the first work is
 * not there yet, so it stays. */
struct commd_work *works_next(struct membership *g, bool *ret_shut);
struct commd_work *works_pop(struct membership *g);
void works_remove(struct membership *g, struct commd_work *w);

/* Message @w becomes the last of those that are held back. */
void message_hold(struct commd_work *w);
/* Message @w is done, and its result is in it. work_queue_message(): the same with plock held. */
void work_finish_message(struct commd_work *w);
void work_queue_message(struct commd_work *w);

/* The progress thread: wakes it; has it look at @g when it is kicked (with plock held: _locked). */
void progress_kick(struct commd_context *ctx);
void progress_watch(struct membership *g);
void progress_watch_locked(struct membership *g);

#endif
