/* async.h - whose turn it is in a group (async.c), the progress thread (progress.c), and waiting
 * for a work (handles.c: the public calls). */
#ifndef COMMD_CLIENT_ASYNC_H
#define COMMD_CLIENT_ASYNC_H

#include "client/lib/coll/work.h"

/* ---- async.c --------------------------------------------------------------------------------- */

int async_run(struct commd_group *g, const struct commd_op *op);
int async_start(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                struct commd_work **ret_work);
/* The same in parts, for callers that have something to do in between. A work that is not queued
 * yet; COMMD_E_NOMEM. */
int async_work_new(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done,
                   void *arg, struct commd_work **ret_work);
/* Starts the progress thread: afterwards nothing can go wrong in queueing. 0 or COMMD_E_NOMEM. */
int async_ready(struct commd_context *ctx, const struct commd_op *op);
/* Queues @w, and takes it: a collective. */
void async_queue(struct commd_work *w);
/* One that the host has no part in: it is done when it has landed. */
void async_land(struct commd_work *w);
/* The same of a message: as the last to the same rank (@behind), or at once. */
int async_queue_message(struct commd_work *w, bool behind);
/* A work that is done when @n others are, whose on_done is async_part_done() and arg this one. */
int async_batch_new(struct commd_context *ctx, const struct commd_op *op, unsigned n,
                    commd_done_fn on_done, void *arg, struct commd_work **ret_work);
void async_part_done(void *batch, const struct commd_error *e);
int async_start_batch(struct commd_group *g, const struct commd_op *ops, unsigned n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work);

/* ---- progress.c ------------------------------------------------------------------------------ */

/* The group's turn: who has it runs the next operation. */
bool turn_take(struct commd_group *g);
int progress_start(struct commd_context *ctx); /* plock held; 0 or an errno */
/* What runs in the group has ended with @st: gives the turn back. plock held. */
void progress_finish(struct commd_group *g, enum run_state st);
/* Who waits on the host for a work has nothing else to do: it does what the thread does, which then
 * has no part in it. False: another one does, or there is no thread. Ends with
 * progress_stand_down().
 */
bool progress_stand_in(struct commd_context *ctx);
void progress_stand_down(struct commd_context *ctx);
/* Until @w is told, or for a while: at most @limit_us, in one sleep or in looks that find something
 * to do; or some thousand looks that find nothing. *idle: 0 at first. w->waiters counts the caller.
 */
void progress_for(struct commd_work *w, unsigned *idle, int64_t limit_us);
/* Fails what is queued and waits until the progress thread has let go of the group. */
void async_drop_group(struct commd_group *g);
void async_stop(struct commd_context *ctx);
/* One round of what the progress thread does, for tests that poll instead of having one (they
 * claim that it is up). True if something moved. */
bool async_poll(struct commd_context *ctx);

/* ---- api/api.c ------------------------------------------------------------------------------- */

void group_free(struct commd_group *g); /* with what messages and registered memory keep in it */

#endif
