/* async.c - whose turn it is in a group, and operations that are started.
 *
 * A group executes one operation at a time, in the order of the calls. `busy` is the turn. A
 * blocking call takes the turn at once when nothing is queued, and runs on the caller's thread: no
 * hand-over, no lock. Otherwise, and for every asynchronous call, the operation is queued as a work
 * (coll/work.c), which the context's progress thread runs (progress.c). */
#include "client/lib/async/async.h"

#include "client/lib/p2p/p2p_api.h"

/* Also tells the other members, as run_advance() asks for. */
static void turn_give(struct membership *g)
{
    struct board_hdr *h = g->board.hdr;

    invariant(atomic_load_explicit(&g->busy, memory_order_relaxed) == 1);
    atomic_store_explicit(&g->busy, 0, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* before the looks at pending and at sleepers */
    if (atomic_load_explicit(&g->pending, memory_order_relaxed))
        progress_kick(g->ctx);
    bell_ring_fenced(&h->bell, &h->sleepers);
}

static int no_memory(struct commd_error *e, const struct commd_op *op)
{
    return error_set(e, COMMD_E_NOMEM, op_name(op), "no memory for an operation");
}

static int run_inline(struct membership *g, const struct commd_op *op)
{
    struct run r;
    enum run_state st = RUN_FAILED;

    if (unlikely(group_has_failed(g, &r.err))) {
        group_had_ended(op_name(op), &r.err);
    } else if (unlikely(lists_make(g, op, &r.lists))) {
        no_memory(&r.err, op);
    } else if (unlikely(run_begin(&r, g, op))) {
        free(r.lists);
    } else {
        run_limit(&r, g, op);
        if (!r.plan.brief)
            run_clock(&r);
        st = unlikely(run_hopeless(&r)) ? RUN_FAILED : run_finish(&r);
        run_end(&r, st);
    }
    turn_give(g);
    if (likely(st == RUN_DONE))
        return 0;
    *error_mine() = r.err;
    return r.err.code;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* @works: @n of them, chained by next. */
static void queue_locked(struct membership *g, struct commd_work *works, unsigned n)
{
    assert_held(&g->ctx->plock);
    assert(works && n > 0);
    pthread_mutex_lock(&g->qlock);
    assert(!*g->tail);
    *g->tail = works;
    while (*g->tail)
        g->tail = &(*g->tail)->next;
    atomic_fetch_add(&g->pending, n);
    pthread_mutex_unlock(&g->qlock);
    progress_watch_locked(g);
}

static int no_thread(const struct commd_op *op, int r)
{
    return error_set(error_mine(), COMMD_E_NOMEM, op_name(op),
                     "cannot start the progress thread: %s", strerror(r));
}

static int submit(struct membership *g, struct commd_work *works, unsigned n)
{
    struct commd_context *ctx = g->ctx;
    int r;

    assert(n > 0);
    pthread_mutex_lock(&ctx->plock);
    r = progress_start(ctx);
    if (r == 0)
        queue_locked(g, works, n);
    pthread_mutex_unlock(&ctx->plock);
    if (r)
        return no_thread(&works->op, r);
    progress_kick(ctx);
    return 0;
}

int async_ready(struct commd_context *ctx, const struct commd_op *op)
{
    int r;

    pthread_mutex_lock(&ctx->plock);
    r = progress_start(ctx);
    pthread_mutex_unlock(&ctx->plock);
    return r ? no_thread(op, r) : 0;
}

void async_queue(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;

    assert(w->group && !is_p2p(&w->op) && !w->next);
    pthread_mutex_lock(&ctx->plock);
    queue_locked(w->group, w, 1);
    pthread_mutex_unlock(&ctx->plock);
    progress_kick(ctx);
}

void async_land(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;

    assert(w->gate && !is_p2p(&w->op));
    pthread_mutex_lock(&ctx->plock);
    work_land(w);
    pthread_mutex_unlock(&ctx->plock);
    progress_kick(ctx);
}

static struct commd_work *work_new(struct membership *g, const struct commd_op *op,
                                   commd_done_fn on_done, void *arg, int refs)
{
    struct commd_work *w = calloc(1, sizeof *w);

    assert(refs == 1 || refs == 2);
    if (!w)
        return NULL;
    w->ctx = g->ctx;
    w->group = g;
    w->op = *op;
    w->on_done = on_done;
    w->arg = arg;
    w->part = on_done == async_part_done;
    atomic_init(&w->refs, refs);
    if (is_p2p(op))
        return w;
    if (lists_make(g, op, &w->run.lists))
        return work_free(w);
    w->run.group = g;
    run_limit(&w->run, g, op);
    run_clock(&w->run);
    return w;
}

int async_work_new(struct membership *g, const struct commd_op *op, commd_done_fn on_done,
                   void *arg, struct commd_work **ret_work)
{
    *ret_work = work_new(g, op, on_done, arg, 2);
    return *ret_work ? 0 : no_memory(error_mine(), op);
}

int async_start(struct membership *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                struct commd_work **ret_work)
{
    struct commd_work *w = work_new(g, op, on_done, arg, ret_work ? 2 : 1);
    int r;

    if (!w)
        return no_memory(error_mine(), op);
    if (is_p2p(op)) {
        r = async_ready(g->ctx, op);
        if (!r)
            r = p2p_start(g, w);
    } else {
        r = submit(g, w, 1);
    }
    if (r)
        work_free(w);
    else if (ret_work) /* else the work may be gone by now */
        *ret_work = w;
    return r;
}

int async_queue_message(struct commd_work *w, bool behind)
{
    struct commd_context *ctx = w->ctx;
    int r = behind ? p2p_hold(w->group, w) : p2p_start(w->group, w);

    assert(is_p2p(&w->op));
    if (r || !behind)
        return r;
    pthread_mutex_lock(&ctx->plock);
    w->behind = true;
    message_hold(w);
    progress_watch_locked(w->group);
    pthread_mutex_unlock(&ctx->plock);
    progress_kick(ctx);
    return 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* The work of a batch is in no queue; its parts are, and the last of them finishes it. Parts may
 * end on different threads (a leaving one, the progress thread). */
void async_part_done(void *arg, const struct commd_error *e)
{
    struct commd_work *batch = arg;
    unsigned left;

    if (e)
        batch_failed(batch, e);
    left = atomic_fetch_sub(&batch->left, 1);
    assert(left > 0);
    if (left == 1)
        work_told(batch);
}

static void free_parts(struct commd_work *part)
{
    for (struct commd_work *next; part; part = next) {
        next = part->next;
        work_free(part);
    }
}

int async_batch_new(struct commd_context *ctx, const struct commd_op *op, unsigned n,
                    commd_done_fn on_done, void *arg, struct commd_work **ret_work)
{
    struct commd_work *batch = calloc(1, sizeof *batch);

    assert(n > 0);
    if (!batch)
        return no_memory(error_mine(), op);
    batch->ctx = ctx; /* group stays NULL: it is in no queue */
    batch->op = *op;
    batch->on_done = on_done;
    batch->arg = arg;
    atomic_init(&batch->refs, 2);
    atomic_init(&batch->left, n);
    *ret_work = batch;
    return 0;
}

int async_start_batch(struct membership *g, const struct commd_op *ops, unsigned n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work)
{
    struct commd_work *batch, *parts = NULL, **tail = &parts;
    unsigned ncoll = 0;
    int r = async_batch_new(g->ctx, ops, n, on_done, arg, &batch);

    if (r)
        return r;
    atomic_init(&batch->refs, ret_work ? 2 : 1);
    for (unsigned i = 0; i < n; i++) {
        if (is_p2p(&ops[i]))
            continue;
        *tail = work_new(g, &ops[i], async_part_done, batch, 1);
        if (!*tail) {
            r = no_memory(error_mine(), &ops[i]);
            goto fail;
        }
        tail = &(*tail)->next;
        ncoll++;
    }
    assert(ncoll <= n);
    r = ncoll ? submit(g, parts, ncoll) : 0;
    if (r)
        goto fail;
    /* from here on failures are the work's */
    for (unsigned i = 0; i < n; i++)
        if (is_p2p(&ops[i]) && async_start(g, &ops[i], async_part_done, batch, NULL))
            async_part_done(batch, error_mine());
    if (ret_work)
        *ret_work = batch;
    return 0;
fail:
    free_parts(parts);
    free(batch);
    return r;
}

/* ---- waiting inline -------------------------------------------------------------------------- */

/* The caller of @w wants to stop waiting. The group breaks, as if it had run inline: the other
 * ranks will miss this operation. */
static void cancel(struct commd_work *w, const struct commd_error *why)
{
    struct commd_context *ctx = w->ctx;
    struct membership *g;

    assert(why->code);
    pthread_mutex_lock(&ctx->plock);
    g = w->group; /* NULL: finished meanwhile */
    if (g && g->running == w) {
        w->run.err = *why;
        progress_finish(g, RUN_FAILED);
    } else if (g) {
        works_remove(g, w);
        group_fail(g, why);
        work_finish(w, why);
    }
    works_tell(ctx);
    pthread_mutex_unlock(&ctx->plock);
}

int async_run(struct membership *g, const struct commd_op *op)
{
    struct commd_work *w;
    int r;

    invariant(!is_p2p(op));
    if (likely(!atomic_load_explicit(&g->pending, memory_order_acquire)) && likely(turn_take(g)))
        return run_inline(g, op);
    r = async_start(g, op, NULL, NULL, &w);
    if (r)
        return r;
    r = commd_work_wait(w, -1);
    while (r == COMMD_E_INTERRUPTED && !atomic_load(&w->done)) {
        struct commd_error why = *error_mine();

        /* the buffers are the caller's again when we return */
        cancel(w, &why);
        r = commd_work_wait(w, -1);
    }
    commd_work_free(w);
    return r;
}
