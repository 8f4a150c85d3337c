/* p2p_api.c - the calls of point-to-point, and works for messages.
 *
 * Every call tries at once: most sends and many receives are done before it returns. What remains
 * is moved by the threads that wait for messages of the group (`users`). Where no thread waits, the
 * context's progress thread moves it. commd_work_wait() is such a wait too: a thread that waits for
 * its message takes the message itself, and no other thread hands it over.
 *
 * Locks: the context's plock before p2p.lock. Works that became done are collected under p2p.lock
 * and told without it. */
#include "client/lib/p2p/p2p.h"

/* ---- arguments ------------------------------------------------------------------------------- */

static int p2p_out_of_range(const char *name, const char *what, int given, unsigned most,
                            const char *or_any)
{
    return error_set(error_mine(), COMMD_E_INVALID, name, "%s: %s %d; allowed: 0 to %u%s", name,
                     what, given, most, or_any);
}

int p2p_check(const struct membership *g, const struct commd_op *op)
{
    bool send = op->coll == COMMD_SEND;
    const char *name = send ? "send" : "recv";
    struct commd_error *e = error_mine();
    size_t bytes;
    int r = usable(g->ctx, name);

    assert(is_p2p(op));
    if (unlikely(r))
        return r;
    if (unlikely(op->dtype < 0 || op->dtype >= DTYPE_COUNT))
        return error_set(e, COMMD_E_INVALID, name,
                         "%s: unknown dtype %d; allowed: 0 (i8) to %d (bool), see enum commd_dtype",
                         name, op->dtype, DTYPE_COUNT - 1);
    if (unlikely(op->peer < (send ? 0 : COMMD_ANY_SOURCE) || op->peer >= (int)g->board.world))
        return p2p_out_of_range(name, send ? "rank" : "source", op->peer, g->board.world - 1,
                                send ? "" : ", COMMD_ANY_SOURCE");
    if (unlikely(op->tag < (send ? 0 : COMMD_ANY_TAG)))
        return p2p_out_of_range(name, "tag", op->tag, INT32_MAX, send ? "" : ", COMMD_ANY_TAG");
    if (unlikely(mul_overflows(op->count, dtype_size((unsigned)op->dtype), &bytes) ||
                 bytes > SIZE_MAX / 2))
        return error_set(e, COMMD_E_INVALID, name, "%s: count %zu is too large", name, op->count);
    if (unlikely(bytes && !(send ? op->send : op->recv)))
        return error_set(e, COMMD_E_INVALID, name, "%s: buffer is NULL, but count is %zu", name,
                         op->count);
    return 0;
}

static void p2p_op_init(struct p2p_op *o, const struct membership *g, const struct commd_op *op)
{
    assert(is_p2p(op));
    memset(o, 0, offsetof(struct p2p_op, err));
    o->err.code = 0;
    o->send = op->coll == COMMD_SEND;
    o->buf = o->send ? (uint8_t *)op->send : op->recv;
    o->size = op->count * dtype_size((unsigned)op->dtype);
    o->peer = op->peer;
    o->tag = op->tag;
    o->limit_ms = op->timeout_ms ? op->timeout_ms : atomic_load(&g->timeout_ms);
}

/* True if it is done. The clock is only asked if it is not: most sends are. */
static bool p2p_try(struct p2p *p, struct p2p_op *op)
{
    assert(!op->list);
    p2p_begin(p, op);
    if (op->state == P2P_DONE)
        return true;
    op->deadline_ms = deadline_in(op->limit_ms);
    return false;
}

/* ---- coming and going ------------------------------------------------------------------------ */

static void p2p_enter(struct p2p *p)
{
    pthread_mutex_lock(&p->lock);
    p->users++;
}

static bool is_attended(const struct p2p *p)
{
    return atomic_load(&p->users) != atomic_load(&p->away);
}

/* The last one to go leaves what is pending to the progress thread. */
static void p2p_leave(struct p2p *p)
{
    struct commd_context *ctx = p->group->ctx;
    bool pending;

    assert_held(&p->lock);
    assert(p->users > 0);
    p2p_tell(p);
    p->users--;
    pending = !is_attended(p) && !p->closed && !TAILQ_EMPTY(&p->ops);
    if (!p->users && p->closed)
        pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock); /* p may be freed now */
    if (pending)
        progress_kick(ctx);
}

static int p2p_no_memory(struct commd_error *e, const struct commd_op *op)
{
    return error_set(e, COMMD_E_NOMEM, op->coll == COMMD_SEND ? "send" : "recv",
                     "no memory for a message");
}

int p2p_run(struct membership *g, const struct commd_op *op, struct commd_status *ret_status)
{
    struct p2p_op o;
    struct p2p *p;

    assert(is_p2p(op));
    if (unlikely(p2p_get(g, &p)))
        return p2p_no_memory(error_mine(), op);
    p2p_op_init(&o, g, op);
    p2p_enter(p);
    if (!p2p_try(p, &o) && p2p_wait(p, &o, -1) == P2P_INTERRUPTED)
        p2p_interrupt(p, &o);
    p2p_leave(p);
    if (unlikely(o.err.code)) {
        *error_mine() = o.err;
        return o.err.code;
    }
    if (ret_status)
        *ret_status = o.status;
    return 0;
}

/* ---- works ----------------------------------------------------------------------------------- */

/* The message's part of a work. */
static void p2p_work_init(struct commd_work *w)
{
    p2p_op_init(w->p2p, w->group, &w->op);
    w->p2p->declined = w->declined;
    w->p2p->work = w;
}

int p2p_start(struct membership *g, struct commd_work *w)
{
    struct p2p *p;

    if (p2p_hold(g, w))
        return COMMD_E_NOMEM;
    p = atomic_load(&g->p2p);
    p2p_work_init(w);
    p2p_enter(p);
    if (!p2p_try(p, w->p2p)) {
        pthread_mutex_unlock(&p->lock);
        progress_watch(g);
        pthread_mutex_lock(&p->lock);
    }
    p2p_leave(p);
    return 0;
}

int p2p_hold(struct membership *g, struct commd_work *w)
{
    struct p2p_op *o = malloc(sizeof *o);
    struct p2p *p;

    assert(!w->p2p && w->group == g);
    if (!o || p2p_get(g, &p)) {
        free(o);
        return p2p_no_memory(error_mine(), &w->op);
    }
    w->p2p = o;
    atomic_fetch_add(&g->p2p_pending, 1); /* from here on the progress thread looks at g->p2p */
    return 0;
}

bool p2p_begin_held(struct commd_work *w)
{
    struct p2p *p = atomic_load(&w->group->p2p);
    bool open;

    assert_held(&w->ctx->plock);
    assert(p && w->p2p && atomic_load(&w->group->p2p_pending) > 0);
    p2p_work_init(w);
    pthread_mutex_lock(&p->lock);
    open = !p->closed;
    p->users++; /* so that a thread that waits inside is woken if it is done: to tell that */
    if (open)
        p2p_try(p, w->p2p);
    p->users--;
    pthread_mutex_unlock(&p->lock);
    return open;
}

enum p2p_waited p2p_wait_work(struct commd_work *w, int64_t until_ms)
{
    enum p2p_waited r;
    struct p2p *p = NULL;

    assert(w->p2p);
    pthread_mutex_lock(&w->ctx->plock);
    if (w->group) { /* while it is set the group lives, and as a user we keep it so */
        p = atomic_load(&w->group->p2p);
        pthread_mutex_lock(&p->lock);
        p->users++;
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&w->ctx->plock);
    if (!p)
        return P2P_ENDED;
    pthread_mutex_lock(&p->lock);
    r = p2p_wait(p, w->p2p, until_ms);
    p2p_leave(p);
    return r;
}

void p2p_batch_waited(struct commd_work *batch, bool sleeps)
{
    struct commd_context *ctx = batch->ctx;
    struct p2p_op *op;

    pthread_mutex_lock(&ctx->plock);
    for (struct membership *g = ctx->active; g; g = g->active_next) {
        struct p2p *p = atomic_load(&g->p2p_pending) ? atomic_load(&g->p2p) : NULL;

        if (!p)
            continue;
        pthread_mutex_lock(&p->lock);
        TAILQ_FOREACH(op, &p->ops, all)
            if (op->work && op->work->part && op->work->arg == batch) {
                if (sleeps)
                    p2p_slept(p, op);
                else
                    p2p_untell(p, op);
            }
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&ctx->plock);
}

bool p2p_progress(struct membership *g, bool slow)
{
    struct p2p *p = atomic_load(&g->p2p);
    struct p2p_op *op;
    bool moved;

    assert_held(&g->ctx->plock);
    assert(p);
    pthread_mutex_lock(&p->lock);
    if (is_attended(p)) { /* they do it, and wake us when they go */
        pthread_mutex_unlock(&p->lock);
        return false;
    }
    moved = p2p_poll(p, NULL);
    if (slow)
        moved |= p2p_look_after(p, NULL);
    while ((op = p2p_take_finished(p))) {
        p2p_result(op);
        work_queue_message(op->work);
        moved = true;
    }
    pthread_mutex_unlock(&p->lock);
    return moved;
}

bool p2p_unattended(struct membership *g)
{
    assert_held(&g->ctx->plock);
    return atomic_load(&g->p2p_pending) && !is_attended(atomic_load(&g->p2p));
}

struct mail_box *p2p_box(struct membership *g)
{
    return mail_box(&g->board.mail, g->local);
}

void p2p_drop(struct membership *g)
{
    struct p2p *p = atomic_load(&g->p2p);
    struct p2p_op *op;

    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    while ((op = TAILQ_FIRST(&p->ops)))
        p2p_hopeless(p, op, false);
    bell_ring_slow(&p->box->bell);
    p2p_tell(p);
    while (p->users)
        pthread_cond_wait(&p->cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void p2p_free(struct membership *g)
{
    struct p2p *p = atomic_load(&g->p2p);

    if (p)
        p2p_fini(p);
}
