/* work.c - the life of a work: references, the queues it is in, and how its end is told.
 *
 * References: one is the caller's handle, one is the queue's; dropping the last frees the work. A
 * work that leaves the queue is finished in every case, also when the group is freed. Callbacks run
 * with no lock held. async/progress.c runs works; messages are moved by every thread that waits for
 * one (p2p/p2p_api.c). */
#include "client/lib/coll/work.h"

const char *op_name(const struct commd_op *op)
{
    if (is_p2p(op))
        return op->coll == COMMD_SEND ? "send" : "recv";
    return coll_name((unsigned)op->coll);
}

size_t op_single_count(const struct membership *g, const struct commd_op *op)
{
    const struct coll_info *info = &coll_table[op->coll];

    assert(!is_p2p(op) && op->coll < COLL_COUNT);
    if (!info->counted)
        return op->count;
    if (info->window == WINDOW_CELLS)
        return info->send == EXTENT_ONE ? op->send_counts[0] : op->recv_counts[0];
    return (coll_blocks(info->send) ? op->send_counts : op->recv_counts)[g->rank];
}

struct commd_work *work_free(struct commd_work *w)
{
    assert(!w->ngates || w->gates);
    free(w->run.lists);
    free(w->p2p);
    if (w->gate)
        w->gate->ops->unref(w->gate);
    for (unsigned i = 0; i < w->ngates; i++)
        w->gates[i]->ops->unref(w->gates[i]);
    free(w->gates);
    free(w);
    return NULL;
}

void work_unref(struct commd_work *w)
{
    int refs = atomic_fetch_sub(&w->refs, 1);

    assert(refs > 0);
    if (refs == 1)
        work_free(w);
}

/* ---- its end --------------------------------------------------------------------------------- */

void batch_failed(struct commd_work *batch, const struct commd_error *e)
{
    assert(e->code && !batch->part);
    if (!atomic_exchange(&batch->failing, true))
        batch->err = *e;
}

static void work_queue(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;

    assert_held(&ctx->plock);
    if (w->part && w->err.code) /* now, and not when it is told: see commd_work_test() */
        batch_failed(w->arg, &w->err);
    w->next = NULL;
    *ctx->finished_tail = w;
    ctx->finished_tail = &w->next;
}

static void work_over(struct commd_work *w)
{
    const bool failed = w->err.code != 0;

    assert_held(&w->ctx->plock);
    w->group = NULL;
    if (unlikely(w->gate)) {
        w->gate->ops->over(w->gate, failed ? &w->err : NULL);
        gate_tell(w->gate, w->gate->pieces); /* it may land, and be used again, from here on */
        if (!failed) { /* a failure is told at once: the buffers hold nothing anyway */
            w->next = w->ctx->landing;
            w->ctx->landing = w;
            return;
        }
    }
    work_queue(w);
}

void work_finish(struct commd_work *w, const struct commd_error *e)
{
    assert(!is_p2p(&w->op) && atomic_load(&w->group->pending) > 0);
    assert(!w->part || w->arg);
    if (e)
        w->err = *e;
    atomic_fetch_sub(&w->group->pending, 1);
    work_over(w);
}

void work_land(struct commd_work *w)
{
    assert_held(&w->ctx->plock);
    assert(w->gate && !is_p2p(&w->op));
    w->group = NULL;
    w->next = w->ctx->landing;
    w->ctx->landing = w;
}

bool works_land(struct commd_context *ctx)
{
    bool moved = false;

    assert_held(&ctx->plock);
    for (struct commd_work **p = &ctx->landing; *p;) {
        struct commd_work *w = *p;

        assert(w->gate && !w->group);
        int lost = atomic_load(&w->gate->lost);

        if (!gate_landed(w->gate) && !lost) {
            p = &w->next;
            continue;
        }
        if (lost)
            error_set(&w->err, lost, op_name(&w->op), "%s: its result cannot be copied to the GPU",
                      op_name(&w->op));
        else if (w->gate->ops->result)
            w->gate->ops->result(w->gate, &w->err);
        *p = w->next;
        work_queue(w);
        moved = true;
    }
    return moved;
}

void works_strand(struct commd_context *ctx, const struct commd_error *e)
{
    struct commd_work *w;

    assert_held(&ctx->plock);
    assert(e->code);
    works_land(ctx);
    while ((w = ctx->landing)) {
        ctx->landing = w->next;
        w->err = *e;
        work_queue(w);
    }
}

void work_told(struct commd_work *w)
{
    assert(!w->group);
    atomic_store(&w->done, 1); /* seq_cst: before the look at waiters */
    if (atomic_load(&w->waiters))
        futex_wake_all(&w->done);
    if (w->on_done)
        w->on_done(w->arg, w->err.code ? &w->err : NULL);
    work_unref(w);
}

bool works_told_elsewhere(const struct commd_context *ctx)
{
    return ctx->telling && !pthread_equal(ctx->teller, pthread_self());
}

void works_tell(struct commd_context *ctx)
{
    bool nested = ctx->telling; /* in a callback */
    struct commd_work *w, *next;

    assert_held(&ctx->plock);
    assert(ctx->finished_tail);
    if (!ctx->finished || works_told_elsewhere(ctx))
        return;
    ctx->telling = true;
    ctx->teller = pthread_self();
    while ((w = ctx->finished)) {
        ctx->finished = NULL;
        ctx->finished_tail = &ctx->finished;
        pthread_mutex_unlock(&ctx->plock);
        for (; w; w = next) {
            next = w->next;
            work_told(w);
        }
        pthread_mutex_lock(&ctx->plock);
    }
    ctx->telling = nested;
    if (!nested)
        pthread_cond_broadcast(&ctx->pcond);
}

void work_queue_message(struct commd_work *w)
{
    assert(is_p2p(&w->op) && atomic_load(&w->group->p2p_pending) > 0);
    assert_held(&w->ctx->plock);
    atomic_fetch_sub(&w->group->p2p_pending, 1);
    work_over(w);
}

/* Callbacks of the application are the progress thread's; and to look whether something landed. */
static bool needs_thread(const struct commd_work *w)
{
    const struct commd_work *batch = w->arg;

    if (unlikely(w->gate) || unlikely(w->behind))
        return true;
    return w->part ? batch->on_done != NULL : w->on_done != NULL;
}

void work_finish_message(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;
    bool theirs = needs_thread(w);

    assert(is_p2p(&w->op) && w->p2p && atomic_load(&w->group->p2p_pending) > 0);
    pthread_mutex_lock(&ctx->plock);
    if (theirs) {
        work_queue_message(w);
    } else {
        atomic_fetch_sub(&w->group->p2p_pending, 1);
        w->group = NULL;
    }
    pthread_mutex_unlock(&ctx->plock);
    if (theirs)
        progress_kick(ctx);
    else
        work_told(w);
}

void message_hold(struct commd_work *w)
{
    struct commd_work **p = &w->group->held;

    assert_held(&w->ctx->plock);
    assert(is_p2p(&w->op) && w->behind);
    while (*p)
        p = &(*p)->next;
    w->next = NULL;
    *p = w;
}

/* ---- the queue of a group -------------------------------------------------------------------- */

static struct commd_work *pop_locked(struct membership *g)
{
    struct commd_work *w = g->head;

    assert_held(&g->qlock);
    assert(w || g->tail == &g->head);
    if (w) {
        g->head = w->next;
        if (!g->head)
            g->tail = &g->head;
    }
    return w;
}

struct commd_work *works_pop(struct membership *g)
{
    struct commd_work *w;

    pthread_mutex_lock(&g->qlock);
    w = pop_locked(g);
    pthread_mutex_unlock(&g->qlock);
    return w;
}

/* On one node members work in the whole of each other's buffers; between nodes step by step. */
static bool is_shut(const struct membership *g, const struct gate *gate)
{
    return g->board.nnodes > 1 && gate->piece ? !gate_ready(gate) : !gate_full(gate);
}

struct commd_work *works_next(struct membership *g, bool *ret_shut)
{
    struct commd_work *w = NULL;

    pthread_mutex_lock(&g->qlock);
    *ret_shut = g->head && unlikely(g->head->gate) && is_shut(g, g->head->gate);
    if (!*ret_shut)
        w = pop_locked(g);
    pthread_mutex_unlock(&g->qlock);
    return w;
}

void works_remove(struct membership *g, struct commd_work *w)
{
    assert(w->group == g);
    assert_held(&g->ctx->plock);
    pthread_mutex_lock(&g->qlock);
    for (struct commd_work **p = &g->head; *p; p = &(*p)->next)
        if (*p == w) {
            *p = w->next;
            if (!*p)
                g->tail = p;
            break;
        }
    pthread_mutex_unlock(&g->qlock);
}

/* ---- the progress thread --------------------------------------------------------------------- */

void progress_kick(struct commd_context *ctx)
{
    atomic_fetch_add(&ctx->kick, 1);
    futex_wake_all(&ctx->kick);
}

void progress_watch_locked(struct membership *g)
{
    struct commd_context *ctx = g->ctx;

    assert_held(&ctx->plock);
    if (g->active)
        return;
    g->active = true;
    g->active_next = ctx->active;
    ctx->active = g;
}

void progress_watch(struct membership *g)
{
    pthread_mutex_lock(&g->ctx->plock);
    progress_watch_locked(g);
    pthread_mutex_unlock(&g->ctx->plock);
}
