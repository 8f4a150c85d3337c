/* async.c - whose turn it is in a group, and operations that progress without their caller.
 *
 * A group executes one operation at a time, in the order of the calls. `busy` is the turn. A
 * blocking call takes it at once when nothing is queued and runs on the caller's thread: no
 * hand-over, no lock. Otherwise, and for every asynchronous call, the operation is queued as a
 * work and the context's progress thread runs it. The thread keeps one running work per group
 * and polls them in turn, so operations of different groups never wait for each other.
 *
 * The progress thread sleeps on the bells of the boards it serves and on `kick`, which every
 * submission rings; the argument for the order of store, fence and load is in wait.c.
 *
 * References: a work is held by its handle (the caller) and by the queue; whoever lets go last
 * frees it. It leaves the queue finished in every case, also when the group is freed. Callbacks
 * run with no lock held. */
#include "client/lib/internal.h"

#include <sched.h>
#include <signal.h>

enum {
    IDLE_SPINS = 200,
    IDLE_YIELDS = 50,
    SLEEP_MS = 50,
    MAX_BELLS = 127,
    SLOW_EVERY = 1024 /* rounds between looks at the reasons to give up */
};

static bool take_turn(struct commd_group *g)
{
    int idle = 0;

    return atomic_compare_exchange_strong_explicit(&g->busy, &idle, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

void async_kick(struct commd_context *ctx)
{
    atomic_fetch_add(&ctx->kick, 1);
    futex_wake_all(&ctx->kick);
}

static void give_turn(struct commd_group *g)
{
    atomic_store(&g->busy, 0); /* seq_cst: before the look at pending */
    if (atomic_load(&g->pending))
        async_kick(g->ctx);
}

/* Fails at once what cannot start any more. */
static bool refuse(struct commd_group *g, struct commd_error *e)
{
    if (likely(!atomic_load_explicit(&g->failed, memory_order_acquire)))
        return false;
    *e = g->first;
    return true;
}

static const char *op_name(const struct commd_op *op)
{
    if (is_p2p(op))
        return op->coll == COMMD_SEND ? "send" : "recv";
    return coll_name((unsigned)op->coll);
}

static int no_memory(struct commd_error *e, const struct commd_op *op)
{
    return error_set(e, COMMD_E_NOMEM, op_name(op), "no memory for an operation");
}

static int run_inline(struct commd_group *g, const struct commd_op *op)
{
    struct run r;
    enum run_state st = RUN_FAILED;

    if (unlikely(refuse(g, &r.err))) {
        /* nothing was started */
    } else if (unlikely(lists_make(g, op, &r.lists))) {
        no_memory(&r.err, op);
    } else if (unlikely(run_begin(&r, g, op))) {
        free(r.lists);
    } else {
        run_limit(&r, g, op);
        st = unlikely(run_hopeless(&r)) ? RUN_FAILED : run_finish(&r);
        run_end(&r, st);
    }
    give_turn(g);
    if (likely(st == RUN_DONE))
        return 0;
    *error_mine() = r.err;
    return r.err.code;
}

/* ---- works ------------------------------------------------------------------------------- */

static struct commd_work *work_free(struct commd_work *w)
{
    free(w->run.lists);
    free(w->p2p);
    free(w);
    return NULL;
}

static void work_unref(struct commd_work *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1)
        work_free(w);
}

/* Takes the work out of its group; the group may be freed right after. plock is held, or the
 * progress thread does not know the group. */
static void work_finish(struct commd_work *w, const struct commd_error *e)
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

/* Tells who waits for it. With no lock held. */
static void work_done(struct commd_work *w)
{
    atomic_store(&w->done, 1); /* seq_cst: before the look at waiters */
    if (atomic_load(&w->waiters))
        futex_wake_all(&w->done);
    if (w->on_done)
        w->on_done(w->arg, w->err.code ? &w->err : NULL);
    work_unref(w);
}

/* With plock held, which is dropped around the callbacks: they may submit more. */
static void complete_finished(struct commd_context *ctx)
{
    struct commd_work *w = ctx->finished, *next;

    if (!w)
        return;
    ctx->finished = NULL;
    ctx->finished_tail = &ctx->finished;
    pthread_mutex_unlock(&ctx->plock);
    for (; w; w = next) {
        next = w->next;
        work_done(w);
    }
    pthread_mutex_lock(&ctx->plock);
}

void async_queue_p2p(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;

    atomic_fetch_sub(&w->group->p2p_pending, 1);
    w->group = NULL;
    w->next = NULL;
    *ctx->finished_tail = w;
    ctx->finished_tail = &w->next;
}

static void part_done(void *arg, const struct commd_error *e);

/* Callbacks of the application are the progress thread's. */
static bool needs_thread(const struct commd_work *w)
{
    const struct commd_work *batch = w->arg;

    return w->on_done == part_done ? batch->on_done != NULL : w->on_done != NULL;
}

void async_finish_p2p(struct commd_work *w)
{
    struct commd_context *ctx = w->ctx;
    bool theirs = needs_thread(w);

    pthread_mutex_lock(&ctx->plock);
    if (theirs) {
        async_queue_p2p(w);
    } else {
        atomic_fetch_sub(&w->group->p2p_pending, 1);
        w->group = NULL;
    }
    pthread_mutex_unlock(&ctx->plock);
    if (theirs)
        async_kick(ctx);
    else
        work_done(w);
}

static struct commd_work *queue_pop(struct commd_group *g)
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

static void queue_remove(struct commd_group *g, struct commd_work *w)
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

/* ---- the progress thread ------------------------------------------------------------------ */

static void finish_running(struct commd_group *g, enum run_state st)
{
    struct commd_work *w = g->running;

    run_end(&w->run, st);
    g->running = NULL;
    atomic_store(&g->busy, 0);
    work_finish(w, st == RUN_DONE ? NULL : &w->run.err);
}

/* Takes the next queued work of the group, if it is the thread's turn. */
static bool start_next(struct commd_group *g)
{
    struct commd_work *w;

    if (!atomic_load(&g->pending) || !take_turn(g))
        return false;
    w = queue_pop(g);
    if (!w) {
        atomic_store(&g->busy, 0);
        return false;
    }
    if (refuse(g, &w->run.err)) {
        atomic_store(&g->busy, 0);
        work_finish(w, &w->run.err);
        return true;
    }
    if (run_begin(&w->run, g, &w->op)) {
        atomic_store(&g->busy, 0);
        work_finish(w, &w->run.err);
        return true;
    }
    g->running = w;
    if (run_hopeless(&w->run))
        finish_running(g, RUN_FAILED);
    return true;
}

/* One look at a group; true if something moved. @slow: also at the reasons to give up. */
static bool progress_group(struct commd_group *g, bool slow)
{
    struct run *r;
    enum run_state st;
    bool moved = atomic_load(&g->p2p_pending) && p2p_progress(g, slow);

    if (!g->running) {
        if (!start_next(g))
            return moved;
        moved = true;
        if (!g->running)
            return true;
    }
    r = &g->running->run;
    st = run_poll(r);
    moved |= r->moved;
    if (st == RUN_WAIT && slow && run_hopeless_slow(r)) {
        struct commd_error why = r->err;

        st = run_poll(r);
        if (st == RUN_WAIT && !r->moved) {
            r->err = why;
            st = RUN_FAILED;
        }
    }
    if (st != RUN_WAIT) {
        finish_running(g, st);
        return true;
    }
    return moved;
}

static bool progress_all(struct commd_context *ctx, bool slow)
{
    bool moved = false;

    for (struct commd_group **p = &ctx->active; *p;) {
        struct commd_group *g = *p;

        moved |= progress_group(g, slow);
        if (!g->running && !atomic_load(&g->pending) && !atomic_load(&g->p2p_pending)) {
            *p = g->active_next;
            g->active = false;
        } else {
            p = &g->active_next;
        }
    }
    return moved;
}

/* The words that the progress thread sleeps on. */
struct bells {
    _Atomic uint32_t *words[MAX_BELLS + 1];
    uint32_t expect[MAX_BELLS + 1];
    _Atomic uint32_t *sleepers[MAX_BELLS + 1]; /* NULL: not announced there */
    unsigned n;
};

static void bells_add(struct bells *b, _Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
    b->words[b->n] = bell;
    b->sleepers[b->n] = sleepers;
    b->expect[b->n++] = sleepers ? bell_prepare(bell, sleepers) : atomic_load(bell);
}

/* The board's bell for what runs; for messages the box's, and what commd has to say. */
static void bells_of(struct bells *b, struct commd_group *g)
{
    struct board_hdr *h = g->board.hdr;
    struct mail_box *box = p2p_box(g);
    bool messages = p2p_unattended(g);

    if (g->running || messages)
        bells_add(b, &h->bell, g->running ? &h->sleepers : NULL);
    if (messages)
        bells_add(b, &box->bell, &box->sleepers);
}

/* With plock held. Sleeps until a bell or the kick; plock is dropped meanwhile, so groups may
 * come and go: only words of boards that stay mapped for the sleep are passed, see
 * async_drop_group(), which kicks and waits for us. */
static void progress_sleep(struct commd_context *ctx, uint32_t kicked)
{
    struct bells b = {.n = 0};
    int limit = SLEEP_MS;
    bool moved, late, all;

    for (struct commd_group *g = ctx->active; g && b.n + 2 <= MAX_BELLS; g = g->active_next)
        bells_of(&b, g);
    all = b.n + 2 <= MAX_BELLS; /* those left out ring nothing that we hear */
    b.words[b.n] = &ctx->kick;
    b.expect[b.n] = kicked;
    moved = progress_all(ctx, true);
    for (struct commd_group *g = ctx->active; g; g = g->active_next)
        if (g->running && run_asks(&g->running->run))
            limit = 1;
    ctx->sleeping = true;
    ctx->sleeps++;
    if (!moved) {
        pthread_mutex_unlock(&ctx->plock);
        late = futex_wait_any(b.words, b.expect, b.n + 1, limit) && limit == SLEEP_MS && all;
        pthread_mutex_lock(&ctx->plock);
        for (unsigned i = 0; i <= b.n; i++)
            late = late && atomic_load(b.words[i]) == b.expect[i];
        if (late && progress_all(ctx, false)) /* which would have been due to a ring */
            atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
    }
    for (unsigned i = 0; i < b.n; i++)
        if (b.sleepers[i])
            bell_cancel(b.sleepers[i]);
    ctx->sleeping = false;
    pthread_cond_broadcast(&ctx->pcond);
}

static void *progress_main(void *arg)
{
    struct commd_context *ctx = arg;
    unsigned idle = 0, rounds = 0;

    pthread_mutex_lock(&ctx->plock);
    while (!atomic_load(&ctx->stop)) {
        uint32_t kicked = atomic_load(&ctx->kick);

        /* also when a busy group never lets us sleep: another may be broken */
        bool moved = progress_all(ctx, ++rounds % SLOW_EVERY == 0);

        complete_finished(ctx);
        if (moved) {
            idle = 0;
        } else if (ctx->active && ++idle < IDLE_SPINS + IDLE_YIELDS) {
            pthread_mutex_unlock(&ctx->plock);
            if (idle < IDLE_SPINS)
                cpu_relax();
            else
                sched_yield();
            pthread_mutex_lock(&ctx->plock);
        } else {
            progress_sleep(ctx, kicked);
            complete_finished(ctx);
            idle = ctx->active ? IDLE_SPINS : 0;
        }
    }
    complete_finished(ctx);
    pthread_mutex_unlock(&ctx->plock);
    return NULL;
}

static int ensure_thread(struct commd_context *ctx)
{
    sigset_t all, old;
    int r = 0;

    if (ctx->thread_up)
        return 0;
    /* signals are the application's: none may be delivered to our thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&ctx->thread, NULL, progress_main, ctx);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r)
        return r;
    ctx->thread_up = true;
    return 0;
}

static void activate(struct commd_group *g)
{
    struct commd_context *ctx = g->ctx;

    if (g->active)
        return;
    g->active = true;
    g->active_next = ctx->active;
    ctx->active = g;
}

void async_watch(struct commd_group *g)
{
    pthread_mutex_lock(&g->ctx->plock);
    activate(g);
    pthread_mutex_unlock(&g->ctx->plock);
}

int async_new_p2p(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done,
                  void *arg, int refs, struct commd_work **ret_work)
{
    struct commd_work *w = calloc(1, sizeof *w);
    int r;

    if (!w)
        return no_memory(error_mine(), op);
    pthread_mutex_lock(&g->ctx->plock);
    r = ensure_thread(g->ctx);
    pthread_mutex_unlock(&g->ctx->plock);
    if (r) {
        free(w);
        return error_set(error_mine(), COMMD_E_NOMEM, op_name(op),
                         "cannot start the progress thread: %s", strerror(r));
    }
    w->ctx = g->ctx;
    w->group = g;
    w->op = *op;
    w->on_done = on_done;
    w->arg = arg;
    atomic_init(&w->refs, refs);
    atomic_fetch_add(&g->p2p_pending, 1);
    *ret_work = w;
    return 0;
}

/* @works: @n of them, chained by next. */
static int submit(struct commd_group *g, struct commd_work *works, unsigned n)
{
    struct commd_context *ctx = g->ctx;
    int r;

    pthread_mutex_lock(&ctx->plock);
    r = ensure_thread(ctx);
    if (r == 0) {
        pthread_mutex_lock(&g->qlock);
        *g->tail = works;
        while (*g->tail)
            g->tail = &(*g->tail)->next;
        atomic_fetch_add(&g->pending, n);
        pthread_mutex_unlock(&g->qlock);
        activate(g);
    }
    pthread_mutex_unlock(&ctx->plock);
    if (r)
        return error_set(error_mine(), COMMD_E_NOMEM, coll_name((unsigned)works->op.coll),
                         "cannot start the progress thread: %s", strerror(r));
    async_kick(ctx);
    return 0;
}

static struct commd_work *work_new(struct commd_group *g, const struct commd_op *op,
                                   commd_done_fn on_done, void *arg, int refs)
{
    struct commd_work *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    if (lists_make(g, op, &w->run.lists))
        return work_free(w);
    w->ctx = g->ctx;
    w->group = g;
    w->op = *op;
    w->on_done = on_done;
    w->arg = arg;
    w->run.group = g;
    run_limit(&w->run, g, op);
    atomic_init(&w->refs, refs);
    return w;
}

int async_start(struct commd_group *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                struct commd_work **ret_work)
{
    struct commd_work *w = work_new(g, op, on_done, arg, ret_work ? 2 : 1);
    int r;

    if (!w)
        return no_memory(error_mine(), op);
    r = submit(g, w, 1);
    if (r) {
        work_free(w);
        return r;
    }
    if (ret_work)
        *ret_work = w;
    return 0;
}

/* ---- batches ------------------------------------------------------------------------------ */

/* The work of a batch is in no queue; its parts are, and the last of them finishes it. Parts may
 * end on different threads (a leaving one, the progress thread). */
static void part_done(void *arg, const struct commd_error *e)
{
    struct commd_work *batch = arg;

    if (e && !atomic_exchange(&batch->failing, true))
        batch->err = *e;
    if (atomic_fetch_sub(&batch->left, 1) == 1)
        work_done(batch);
}

static void free_parts(struct commd_work *part)
{
    for (struct commd_work *next; part; part = next) {
        next = part->next;
        work_free(part);
    }
}

int async_start_batch(struct commd_group *g, const struct commd_op *ops, unsigned n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work)
{
    struct commd_work *batch = calloc(1, sizeof *batch), *parts = NULL, **tail = &parts;
    unsigned ncoll = 0;
    int r;

    if (!batch)
        return no_memory(error_mine(), ops);
    batch->ctx = g->ctx; /* group stays NULL: it is in no queue */
    batch->op = ops[0];
    batch->on_done = on_done;
    batch->arg = arg;
    atomic_init(&batch->refs, ret_work ? 2 : 1);
    atomic_init(&batch->left, n);
    for (unsigned i = 0; i < n; i++) {
        if (is_p2p(&ops[i]))
            continue;
        *tail = work_new(g, &ops[i], part_done, batch, 1);
        if (!*tail) {
            r = no_memory(error_mine(), &ops[i]);
            goto fail;
        }
        tail = &(*tail)->next;
        ncoll++;
    }
    r = ncoll ? submit(g, parts, ncoll) : 0;
    if (r)
        goto fail;
    /* from here on failures are the work's */
    for (unsigned i = 0; i < n; i++)
        if (is_p2p(&ops[i]) && p2p_start(g, &ops[i], part_done, batch, NULL))
            part_done(batch, error_mine());
    if (ret_work)
        *ret_work = batch;
    return 0;
fail:
    free_parts(parts);
    free(batch);
    return r;
}

/* ---- waiting inline ----------------------------------------------------------------------- */

/* The caller of @w wants to stop waiting. The group breaks, as if it had run inline: the other
 * ranks will miss this operation. */
static void cancel(struct commd_work *w, const struct commd_error *why)
{
    struct commd_context *ctx = w->ctx;
    struct commd_group *g;

    pthread_mutex_lock(&ctx->plock);
    g = w->group; /* NULL: finished meanwhile */
    if (g && g->running == w) {
        w->run.err = *why;
        finish_running(g, RUN_FAILED);
    } else if (g) {
        queue_remove(g, w);
        group_fail(g, why);
        work_finish(w, why);
    }
    complete_finished(ctx);
    pthread_mutex_unlock(&ctx->plock);
}

int async_run(struct commd_group *g, const struct commd_op *op)
{
    struct commd_work *w;
    int r;

    if (likely(!atomic_load_explicit(&g->pending, memory_order_acquire)) && likely(take_turn(g)))
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

void async_drop_group(struct commd_group *g)
{
    struct commd_context *ctx = g->ctx;
    struct commd_work *w;
    struct commd_error e;
    uint64_t slept;

    error_set(&e, COMMD_E_ABORTED, "leave", "group \"%s\" was left while operations were pending",
              g->name);
    p2p_drop(g);
    pthread_mutex_lock(&ctx->plock);
    for (struct commd_group **p = &ctx->active; *p; p = &(*p)->active_next)
        if (*p == g) {
            *p = g->active_next;
            break;
        }
    /* A sleeping thread still looks at the bell of this board; its next sleep does not. (To wait
     * for `sleeping` alone would be to miss the moment between two sleeps again and again.) */
    slept = ctx->sleeps;
    while (ctx->sleeping && ctx->sleeps == slept) {
        async_kick(ctx);
        pthread_cond_wait(&ctx->pcond, &ctx->plock);
    }
    w = steal_ptr(g->running);
    if (w) {
        run_abandon(&w->run);
        work_finish(w, &e);
    }
    while ((w = queue_pop(g)))
        work_finish(w, &e);
    complete_finished(ctx);
    pthread_mutex_unlock(&ctx->plock);
}

bool async_poll(struct commd_context *ctx)
{
    bool moved;

    pthread_mutex_lock(&ctx->plock);
    moved = progress_all(ctx, false);
    complete_finished(ctx);
    pthread_mutex_unlock(&ctx->plock);
    return moved;
}

void async_stop(struct commd_context *ctx)
{
    if (!ctx->thread_up)
        return;
    atomic_store(&ctx->stop, true);
    async_kick(ctx);
    pthread_join(ctx->thread, NULL);
    ctx->thread_up = false;
}

/* ---- handles ------------------------------------------------------------------------------ */

PUBLIC int commd_work_test(struct commd_work *work, int *ret_error)
{
    if (!atomic_load(&work->done))
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

/* Until it is told: another thread does that. */
static int wait_done(struct commd_work *work, int64_t timeout_ms, int64_t deadline)
{
    struct commd_context *ctx = work->ctx;
    int r = 0;

    for (unsigned i = 0; i < IDLE_SPINS && !atomic_load(&work->done); i++)
        cpu_relax();
    atomic_fetch_add(&work->waiters, 1); /* seq_cst: before the look at done */
    while (!atomic_load(&work->done)) {
        _Atomic uint32_t *word = &work->done;
        uint32_t pending = 0;
        int64_t left = deadline < 0 ? SLEEP_MS : deadline - (int64_t)now_ms();

        if (left <= 0) {
            r = wait_late(work, timeout_ms);
            break;
        }
        futex_wait_any(&word, &pending, 1, (int)MIN(left, (int64_t)SLEEP_MS));
        if (!atomic_load(&work->done) && ctx->interrupt && ctx->interrupt(ctx->interrupt_arg)) {
            r = wait_interrupted(work);
            break;
        }
    }
    atomic_fetch_sub(&work->waiters, 1);
    return r;
}

PUBLIC int commd_work_wait(struct commd_work *work, int64_t timeout_ms)
{
    int64_t deadline = deadline_in(timeout_ms);
    int r = atomic_load(&work->done) ? 0 : usable(work->ctx, op_name(&work->op));

    if (!r && work->p2p && !atomic_load(&work->done))
        r = wait_message(work, timeout_ms, deadline);
    if (!r && !atomic_load(&work->done))
        r = wait_done(work, timeout_ms, deadline);
    if (r) /* also when the thread that would finish it is not in this process */
        return r;
    if (work->err.code)
        *error_mine() = work->err;
    return work->err.code;
}

PUBLIC void commd_work_free(struct commd_work *work)
{
    if (work)
        work_unref(work);
}
