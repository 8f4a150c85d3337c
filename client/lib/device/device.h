/* device.h - tensors on GPUs, as the public calls see it. */
#ifndef COMMD_CLIENT_DEVICE_H
#define COMMD_CLIENT_DEVICE_H

#include "client/lib/coll/work.h"
#include "client/lib/device/driver.h"

/* Can the operation be one on a GPU? The one look that processes without a GPU pay for. */
static inline bool device_may(const struct commd_op *op)
{
    return unlikely(driver_seen) || unlikely(op->memory == COMMD_MEMORY_CUDA);
}

/* Which layer runs an operation whose arguments were checked. COMMD_E_INVALID; of an operation on a
 * GPU also the failure of an earlier one (session_tell_failure()). */
enum device_way {
    DEVICE_HOST,  /* its buffers are in host memory: the layers below run it */
    DEVICE_GPU,   /* its buffers are on a GPU */
    DEVICE_BEHIND /* a message in host memory, which must not overtake one from a GPU */
};
int device_way(struct membership *g, const struct commd_op *op, enum device_way *ret_way);

/* False: the layers below run the operation. True: this layer runs it; or, if *ret_r is not 0, it
 * was refused. */
static inline bool device_takes(struct membership *g, const struct commd_op *op, int *ret_r)
{
    enum device_way way;

    if (!device_may(op))
        return false;
    *ret_r = device_way(g, op, &way);
    return *ret_r || way != DEVICE_HOST;
}

/* A call whose buffers are in host memory has taken part, and is about to return @r: what it
 * returns in place of that, if an operation on a GPU has failed before (failure.c). */
int device_tell(struct membership *g, int r);
static inline int device_tells(struct membership *g, const struct commd_op *op, int r)
{
    return unlikely(device_may(op)) && (!r || r == COMMD_E_ABORTED) ? device_tell(g, r) : r;
}

/* Operations that are not DEVICE_HOST. */
int device_run(struct membership *g, const struct commd_op *op, struct commd_status *ret_status);
int device_start(struct membership *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                 struct commd_work **ret_work);
/* A batch in which at least one operation is not DEVICE_HOST. */
int device_start_batch(struct membership *g, const struct commd_op *ops, unsigned n,
                       commd_done_fn on_done, void *arg, struct commd_work **ret_work);

/* Called by the progress thread some times a second. Ends operations that commd-gpu does not end,
 * and waits for ranks that have stopped because of a failure. */
void device_watch(struct commd_context *ctx);

/* The group is about to be left: waits until messages from GPUs that were called without a work
 * have gone out, for as long as an operation of the group may take; less if their receivers are
 * gone, the group is broken, or the application wants to stop. */
void device_group_flush(struct membership *g);
/* The group or the context goes; NULL is fine, and so is one that had nothing on a GPU. */
void device_group_free(struct membership *g);
void device_free(struct commd_context *ctx);

#endif
