/* async.h - whose turn it is in a group (async.c), the progress thread (progress.c), and waiting
 * for a work (handles.c: the public calls). */
#ifndef COMMD_CLIENT_ASYNC_H
#define COMMD_CLIENT_ASYNC_H

#include "client/lib/coll/work.h"

/* ---- async.c --------------------------------------------------------------------------------- */

int async_run(struct membership *g, const struct commd_op *op);
int async_start(struct membership *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                struct commd_work **ret_work);
/* async_start() in parts, for callers that have something to do in between. First the work, which
 * is in no queue yet. 0 or COMMD_E_NOMEM. */
int async_work_new(struct membership *g, const struct commd_op *op, commd_done_fn on_done,
                   void *arg, struct commd_work **ret_work);
/* Starts the progress thread. Afterwards queueing cannot fail. 0 or COMMD_E_NOMEM. */
int async_ready(struct commd_context *ctx, const struct commd_op *op);
/* Queues @w, a collective: it is the queue's from now on. */
void async_queue(struct commd_work *w);
/* The same of an operation in which the host has no part: it is done when it has landed. */
void async_land(struct commd_work *w);
/* The same of a message. @behind: it begins after the earlier messages to the same rank; else at
 * once. 0 or COMMD_E_NOMEM. */
int async_queue_message(struct commd_work *w, bool behind);
/* A work, the batch, that is done when its @n parts are: works whose on_done is async_part_done()
 * and whose arg is the batch. */
int async_batch_new(struct commd_context *ctx, const struct commd_op *op, unsigned n,
                    commd_done_fn on_done, void *arg, struct commd_work **ret_work);
void async_part_done(void *batch, const struct commd_error *e);
int async_start_batch(struct membership *g, const struct commd_op *ops, unsigned n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work);

/* ---- progress.c ------------------------------------------------------------------------------ */

/* Takes the group's turn: the thread that has it runs the next operation. False: it is taken. */
bool turn_take(struct membership *g);
int progress_start(struct commd_context *ctx); /* 0 or an errno */
/* The work that runs in the group has ended with @st: gives the turn back. */
void progress_finish(struct membership *g, enum run_state st);
/* A thread that waits on the host for a work has nothing else to do. So it stands in for the
 * progress thread, which then keeps away. False: another thread stands in, or there is no progress
 * thread. Ends with progress_stand_down(). */
bool progress_stand_in(struct commd_context *ctx);
void progress_stand_down(struct commd_context *ctx);
/* Does the progress thread's work until @w is told, or for a while: at most @limit_us, in one sleep
 * or in looks that find something to do, or some thousand looks that find nothing. *idle: 0 at
 * first. w->waiters counts the caller. */
void progress_for(struct commd_work *w, unsigned *idle, int64_t limit_us);
/* Fails what is queued and waits until the progress thread has let go of the group. */
void async_drop_group(struct membership *g);
void async_stop(struct commd_context *ctx);
/* One round of what the progress thread does. For tests that poll and have no such thread, but set
 * thread_up. True: something moved. */
bool async_poll(struct commd_context *ctx);

/* ---- api/api_group.c ------------------------------------------------------------------------- */

void group_free(struct membership *g); /* with its messages and the arenas that it has mapped */

#endif
