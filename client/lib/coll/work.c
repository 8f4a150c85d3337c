/* work.c - the life of a work: references, the queues it is in, and how its end is told.
 *
 * References: a work is held by its handle (the caller) and by the queue; whoever lets go last
 * frees it. It leaves the queue finished in every case, also when the group is freed. Callbacks run
 * with no lock held. What runs it is async/progress.c; for a message, whoever waits
 * (p2p/p2p_api.c). */
#include "client/lib/coll/work.h"

const char *op_name(const struct commd_op *op)
{
    if (is_p2p(op))
        return op->coll == COMMD_SEND ? "send" : "recv";
    return coll_name((unsigned)op->coll);
}

struct commd_work *work_free(struct commd_work *w)
{
    free(w->run.lists);
    free(w->p2p);
    free(w);
    return NULL;
}

void work_unref(struct commd_work *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1)
        work_free(w);
}

/* ---- its end --------------------------------------------------------------------------------- */

void work_finish(struct commd_work *w, const struct commd_error *e)
{
    struct commd_context *ctx = w->ctx;

    if (e)
        w->err = *e;
    atomic_fetch_sub(&w->group->pending, 1);
    w->group = NULL;
    w->next = NULL;
    *ctx->finished_tail = w;
    ctx->finished_tail = &w->next;
}

void work_told(struct commd_work *w)
{
    atomic_store(&w->done, 1); /* seq_cst: before the look at waiters */
    if (atomic_load(&w->waiters))
        futex_wake_all(&w->done);
    if (w->on_done)
        w->on_done(w->arg, w->err.code ? &w->err : NULL);
    work_unref(w);
}

void works_tell(struct commd_context *ctx)
{
    struct commd_work *w = ctx->finished, *next;

    if (!w)
        return;
    ctx->finished = NULL;
    ctx->finished_tail = &ctx->finished;
    pthread_mutex_unlock(&ctx->plock);
    for (; w; w = next) {
        next = w->next;
        work_told(w);
    }
    pthread_mutex_lock(&ctx->plock);
}

void work_queue_message(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;

    atomic_fetch_sub(&w->group->p2p_pending, 1);
    w->group = NULL;
    w->next = NULL;
    *ctx->finished_tail = w;
    ctx->finished_tail = &w->next;
}

/* Callbacks of the application are the progress thread's. */
static bool needs_thread(const struct commd_work *w)
{
    const struct commd_work *batch = w->arg;

    return w->part ? batch->on_done != NULL : w->on_done != NULL;
}

void work_finish_message(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;
    bool theirs = needs_thread(w);

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

/* ---- the queue of a group -------------------------------------------------------------------- */

struct commd_work *works_pop(struct commd_group *g)
{
    struct commd_work *w;

    pthread_mutex_lock(&g->qlock);
    w = g->head;
    if (w) {
        g->head = w->next;
        if (!g->head)
            g->tail = &g->head;
    }
    pthread_mutex_unlock(&g->qlock);
    return w;
}

void works_remove(struct commd_group *g, struct commd_work *w)
{
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

void progress_watch_locked(struct commd_group *g)
{
    struct commd_context *ctx = g->ctx;

    if (g->active)
        return;
    g->active = true;
    g->active_next = ctx->active;
    ctx->active = g;
}

void progress_watch(struct commd_group *g)
{
    pthread_mutex_lock(&g->ctx->plock);
    progress_watch_locked(g);
    pthread_mutex_unlock(&g->ctx->plock);
}
