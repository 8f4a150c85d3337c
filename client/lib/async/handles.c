/* handles.c - the public calls about a work: is it done, wait for it, let go of it.
 *
 * A thread that waits for a message moves the message itself. A thread that waits for another work
 * stands in for the progress thread, if no other thread does. Works on a GPU are told by the
 * progress thread. */
#include "client/lib/async/async.h"

#include <stdio.h>

#include "client/lib/p2p/p2p_api.h"

/* Of a batch: all its parts. One that is in host memory, too, is done when the thread says so. */
static bool gates_landed(const struct commd_work *work)
{
    assert(!work->gate || !work->ngates);
    if (work->gate)
        return gate_landed(work->gate);
    if (!work->ngates || work->mixed)
        return false;
    for (unsigned i = 0; i < work->ngates; i++)
        if (!gate_landed(work->gates[i]))
            return false;
    return true;
}

/* What a stream has passed is done, also if the progress thread has not looked since: who has
 * synchronised knows at once how it ended, on every rank. The thread still tells it. */
static bool has_landed(struct commd_work *work)
{
    struct commd_context *ctx = work->ctx;

    if (!gates_landed(work) || usable(ctx, op_name(&work->op)))
        return false;
    pthread_mutex_lock(&ctx->plock);
    works_land(ctx); /* if it is not among those that are finished already */
    atomic_store(&work->done, 1);
    pthread_mutex_unlock(&ctx->plock);
    progress_kick(ctx);
    return true;
}

PUBLIC int commd_work_test(struct commd_work *work, int *ret_error)
{
    if (!atomic_load(&work->done) && !has_landed(work))
        return 0;
    if (ret_error)
        *ret_error = work->err.code;
    return 1;
}

static int wait_late(const struct commd_work *work, int64_t timeout_ms)
{
    const char *name = op_name(&work->op);

    return error_set(error_mine(), COMMD_E_TIMEOUT, name, "%s is still pending after %lld ms", name,
                     (long long)timeout_ms);
}

static int wait_interrupted(const struct commd_work *work)
{
    const char *name = op_name(&work->op);

    return error_set(error_mine(), COMMD_E_INTERRUPTED, name, "interrupted while waiting for %s",
                     name);
}

/* A message is waited for by taking it: nobody has to hand it over. */
static int wait_message(struct commd_work *work, int64_t timeout_ms, int64_t deadline)
{
    assert(work->p2p && !work->behind);
    switch (p2p_wait_work(work, deadline)) {
    case P2P_LATE:
        return wait_late(work, timeout_ms);
    case P2P_INTERRUPTED:
        return wait_interrupted(work);
    case P2P_ENDED:
        break;
    }
    return 0;
}

static void warn_of_peer(const struct commd_work *work, const struct membership *g, double seconds)
{
    bool send = work->op.coll == COMMD_SEND;
    char peer[24] = "any rank";

    assert(is_p2p(&work->op));
    if (work->op.peer >= 0)
        snprintf(peer, sizeof peer, "rank %d", work->op.peer);
    fprintf(
        stderr,
        "commd: rank %u of group \"%s\" on node %s has waited for %.1f s to %s %s, tag %d, with "
        "a buffer on a GPU; commctl why says more\n",
        g->rank, g->name, g->ctx->node, seconds, send ? "send to" : "receive from", peer,
        work->op.tag);
}

/* Somebody on the host has waited for long for an operation on a GPU. What waits for other ranks in
 * an operation is told by who runs it (run_hopeless_slow(), session_watch()). */
static void warn_of_gpu(struct commd_work *work, double seconds)
{
    const struct membership *g;

    assert(seconds >= 0);
    for (unsigned i = 0; i < work->ngates; i++)
        if (!gate_full(work->gates[i]) && work->gates[i]->ops->warn) {
            work->gates[i]->ops->warn(work->gates[i], seconds);
            return;
        }
    if (!work->gate)
        return;
    if (work->gate->ops->warn) {
        if (!gate_full(work->gate))
            work->gate->ops->warn(work->gate, seconds);
        return;
    }
    pthread_mutex_lock(&work->ctx->plock); /* its group stays as long as it is held */
    g = work->group;
    if (g && !gate_full(work->gate))
        fprintf(stderr,
                "commd: rank %u of group \"%s\" on node %s has waited for %.1f s for %s on a GPU: "
                "its own stream has not come to it; commctl why says more\n",
                g->rank, g->name, g->ctx->node, seconds, op_name(&work->op));
    else if (g && work->p2p)
        warn_of_peer(work, g, seconds);
    pthread_mutex_unlock(&work->ctx->plock);
}

enum { DONE_SPINS = 200 };

/* Does something on a GPU belong to it? What that waits for rings no bell, and the thread naps. */
static bool is_on_gpu(const struct commd_work *work)
{
    return work->gate || work->ngates || work->mixed;
}

static bool is_batch(const struct commd_work *work)
{
    return atomic_load(&work->left) != 0;
}

/* Until it is told: by this thread, if no other does what the progress thread does. */
static int wait_done(struct commd_work *work, int64_t timeout_ms, int64_t deadline)
{
    struct commd_context *ctx = work->ctx;
    bool on_gpu = is_on_gpu(work), stands_in = !on_gpu && progress_stand_in(ctx);
    bool warned = !ctx->warn_ms;
    uint64_t since = 0, asked_ms = 0;
    unsigned idle = 0;
    int r = 0;

    for (unsigned i = 0; i < DONE_SPINS && !stands_in && !atomic_load(&work->done); i++)
        cpu_relax();
    atomic_fetch_add(&work->waiters, 1); /* seq_cst: before the look at done */
    while (!atomic_load(&work->done)) {
        _Atomic uint32_t *word = &work->done;
        int64_t limit_us = sleep_limit_ms(deadline) * (int64_t)1000;
        uint32_t pending = 0;
        bool due;

        if (deadline >= 0 && (int64_t)now_ms() >= deadline) {
            r = wait_late(work, timeout_ms);
            break;
        }
        if (!stands_in && !on_gpu)
            stands_in = progress_stand_in(ctx);
        if (stands_in)
            progress_for(work, &idle, limit_us);
        else
            futex_wait_any(&word, &pending, 1, limit_us);
        due = !atomic_load(&work->done) && context_interrupt_due(ctx, &asked_ms);
        if (is_batch(work) && (since || due)) /* not in a wait that ends in a moment */
            p2p_batch_waited(work, true);
        since = since ? since : now_ms();
        if (due) {
            if (stands_in) /* it may wait for a lock: meanwhile the thread goes on */
                progress_stand_down(ctx);
            stands_in = false;
            if (context_interrupted(ctx)) {
                r = wait_interrupted(work);
                break;
            }
        }
        if (!warned && now_ms() - since >= (uint64_t)ctx->warn_ms && !atomic_load(&work->done)) {
            warned = true;
            warn_of_gpu(work, (double)(now_ms() - since) / 1000);
        }
    }
    if (stands_in)
        progress_stand_down(ctx);
    if (r && is_batch(work))
        p2p_batch_waited(work, false);
    atomic_fetch_sub(&work->waiters, 1);
    assert(!r || r == COMMD_E_TIMEOUT || r == COMMD_E_INTERRUPTED);
    return r;
}

static int wait_pending(struct commd_work *work, int64_t timeout_ms)
{
    int64_t deadline = deadline_in(timeout_ms);
    int r = usable(work->ctx, op_name(&work->op));

    /* one that the progress thread begins, or ends, is told by it */
    if (!r && work->p2p && !work->gate && !work->behind && !atomic_load(&work->done))
        r = wait_message(work, timeout_ms, deadline);
    if (!r && !atomic_load(&work->done)) /* who only asks does not stand in for a moment */
        r = timeout_ms ? wait_done(work, timeout_ms, deadline) : wait_late(work, timeout_ms);
    return r;
}

PUBLIC int commd_work_wait(struct commd_work *work, int64_t timeout_ms)
{
    int r = 0, cancel;

    if (!atomic_load(&work->done)) {
        /* others depend on who is in here, also in their callbacks */
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
        r = wait_pending(work, timeout_ms);
        pthread_setcancelstate(cancel, NULL);
    }
    if (r) /* also when the thread that would finish it is not in this process */
        return r;
    if (work->err.code)
        *error_mine() = work->err;
    return work->err.code;
}

PUBLIC int commd_work_wait_stream(struct commd_work *work, void *stream)
{
    int r = usable(work->ctx, op_name(&work->op));

    if (r)
        return r;
    if (atomic_load(&work->done) || work->mixed || (!work->gate && !work->ngates))
        return commd_work_wait(work, -1);
    for (unsigned i = 0; !r && i < work->ngates; i++)
        r = work->gates[i]->ops->wait_stream(work->gates[i], stream);
    return work->gate && !r ? work->gate->ops->wait_stream(work->gate, stream) : r;
}

PUBLIC void commd_work_free(struct commd_work *work)
{
    if (work)
        work_unref(work);
}
