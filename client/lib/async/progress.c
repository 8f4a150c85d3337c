/* progress.c - the progress thread of a context: runs the works of its groups.
 *
 * While a thread of the application waits for a work, it stands in for the progress thread, which
 * keeps away. So neither the operation nor its end is handed over between threads. One thread at a
 * time stands in. It does all that the progress thread does, also for groups in which other threads
 * wait, and callbacks run on it. If it takes no step for STILL_MS the progress thread does not keep
 * away any more: all that both do is under plock, and each sleeps for itself. A thread that is
 * suspended in a callback, or while it holds plock, holds up all threads that wait. A thread that
 * is suspended in its sleep holds up only the threads that leave a group.
 *
 * The progress thread keeps one running work per group and polls these works in turn, so operations
 * of different groups never wait for each other. It sleeps on the bells of the boards of its groups
 * and on `kick`, which every submission rings; for the order of store, fence and load see "Memory
 * order" in shm/board/board.c.
 *
 * A GPU rings no bell. While an operation waits for one (its gate, coll/gate.h), the thread sleeps
 * for GPU_NAP_US at a time, later for five times as long. Bells end such a sleep, too.
 *
 * What if a group is left now: async_drop_group() takes the group out, and waits until no sleeping
 * thread looks at the group's board. What if the process forks: the child has no progress thread,
 * and usable() refuses its calls. */
#include "client/lib/async/async.h"

#include <sched.h>
#include <signal.h>

#include "client/lib/p2p/p2p_api.h"

enum {
    IDLE_SPINS = 200, /* less than who waits in its call: the application computes meanwhile */
    MAX_BELLS = 126,
    SLOW_EVERY = 1024, /* rounds between looks at the reasons to give up */
    GPU_NAP_US = 20,
    GPU_NAPS = 16,       /* naps, before they get longer */
    GPU_SLOW_EVERY = 64, /* naps between looks at the reasons to give up: these cost system calls */
    STILL_MS = 3 * WAIT_SLICE_MS, /* a thread that stands in takes a step in each slice */
};

/* ---- one group ------------------------------------------------------------------------------- */

bool turn_take(struct membership *g)
{
    int idle = 0;

    return atomic_compare_exchange_strong_explicit(&g->busy, &idle, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

void progress_finish(struct membership *g, enum run_state st)
{
    struct commd_work *w = g->running;

    assert_held(&g->ctx->plock);
    assert(w && atomic_load(&g->busy) == 1);
    run_end(&w->run, st);
    if (one_node(&w->run))
        run_tell(&w->run); /* the root of a post may wait until this member has completed others */
    g->running = NULL;
    atomic_store(&g->busy, 0);
    work_finish(w, st == RUN_DONE ? NULL : &w->run.err);
}

/* The run that begins has a gate: its time begins now. */
static void pass_gate(struct commd_work *w)
{
    assert_held(&w->ctx->plock);
    assert(w->gate);
    run_limit(&w->run, w->group, &w->op);
    run_clock(&w->run);
}

/* The next operation was called, and waits for its input. That is written down for people, like
 * the operation that a member sleeps in (board_seat()). */
static void note_unready(struct membership *g)
{
    struct board_member *m = &g->board.members[g->local];
    uint32_t next = atomic_load_explicit(&m->started, memory_order_relaxed) + 1;

    assert_held(&g->ctx->plock);
    assert(atomic_load(&g->busy) == 1 && !g->running);
    g->ctx->watches_gpu = true;
    if (atomic_load_explicit(&m->unready_op, memory_order_relaxed) == next)
        return;
    atomic_store_explicit(&m->unready_ms, (uint32_t)now_ms(), memory_order_relaxed);
    /* release: pairs with acquire in board_seat() */
    atomic_store_explicit(&m->unready_op, next, memory_order_release);
}

/* Takes the next queued work of the group, if it is the thread's turn. */
static bool progress_next(struct membership *g)
{
    struct commd_work *w;
    bool shut;

    assert_held(&g->ctx->plock);
    if (!atomic_load(&g->pending) || !turn_take(g))
        return false;
    w = works_next(g, &shut);
    if (!w) {
        if (shut)
            note_unready(g);
        atomic_store(&g->busy, 0);
        return false;
    }
    if (unlikely(w->gate))
        pass_gate(w);
    if (group_has_failed(g, &w->run.err)) {
        group_had_ended(op_name(&w->op), &w->run.err);
        atomic_store(&g->busy, 0);
        work_finish(w, &w->run.err);
        return true;
    }
    if (run_begin(&w->run, g, &w->op)) {
        atomic_store(&g->busy, 0);
        work_finish(w, &w->run.err);
        return true;
    }
    assert(!g->running);
    w->run.gate = w->gate;
    if (unlikely(w->declined))
        run_decline(&w->run, w->declined);
    g->running = w;
    if (run_hopeless(&w->run))
        progress_finish(g, RUN_FAILED);
    return true;
}

/* Messages that were not begun when they were called: their input is on its way from a GPU, or they
 * come behind one to the same rank of which this is so. Begins those that can be. */
static bool messages_go(struct membership *g)
{
    bool moved = false;

    assert_held(&g->ctx->plock);
    for (struct commd_work **p = &g->held; *p;) {
        struct commd_work *w = *p, *before = g->held;

        while (before != w && before->op.peer != w->op.peer)
            before = before->next;
        if (w->gate && !gate_full(w->gate))
            g->ctx->watches_gpu = true;
        else if (before == w && p2p_begin_held(w)) {
            *p = w->next;
            moved = true;
            continue;
        }
        p = &w->next;
    }
    return moved;
}

static void watch_gate(struct membership *g, struct run *r)
{
    assert(r == &g->running->run);
    run_tell_gate(r);
    g->ctx->watches_gpu |= !gate_full(r->gate);
}

/* One look at a group; true if something moved. @slow: also at the reasons to give up. */
static bool progress_group(struct membership *g, bool slow)
{
    struct run *r;
    enum run_state st;
    bool moved = atomic_load(&g->p2p_pending) && p2p_progress(g, slow);

    assert_held(&g->ctx->plock);
    if (unlikely(g->held))
        moved |= messages_go(g);
    if (!g->running) {
        if (!progress_next(g))
            return moved;
        moved = true;
        if (!g->running)
            return true;
    }
    r = &g->running->run;
    st = run_poll(r);
    moved |= st == RUN_MOVED;
    if (unlikely(r->gate) && st < RUN_DONE)
        watch_gate(g, r);
    if (st < RUN_DONE && slow && run_hopeless_slow(r))
        st = run_last_look(r);
    if (st >= RUN_DONE) {
        progress_finish(g, st);
        return true;
    }
    return moved;
}

static bool progress_all(struct commd_context *ctx, bool slow)
{
    bool moved = false;

    assert_held(&ctx->plock);
    ctx->watches_gpu = false;
    if (unlikely(ctx->landing)) {
        moved = works_land(ctx);
        ctx->watches_gpu = ctx->landing != NULL;
    }
    if (slow && ctx->hooks && ctx->hooks->watch)
        ctx->hooks->watch(ctx);
    for (struct membership **p = &ctx->active; *p;) {
        struct membership *g = *p;

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

/* ---- sleeping -------------------------------------------------------------------------------- */

/* The words that are slept on: bells, the kick, and whether a work is done. */
struct bells {
    _Atomic uint32_t *words[MAX_BELLS + 2];
    uint32_t expect[MAX_BELLS + 2];
    _Atomic uint32_t *sleepers[MAX_BELLS + 2]; /* NULL: not announced there */
    unsigned n;
};

static void bells_add(struct bells *b, _Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
    assert(b->n < ARRAY_LEN(b->words));
    b->words[b->n] = bell;
    b->sleepers[b->n] = sleepers;
    b->expect[b->n++] = sleepers ? bell_prepare(bell, sleepers) : atomic_load(bell);
}

/* The board's bell for what runs; for messages the box's, and what commd has to say. */
static void bells_of(struct bells *b, struct membership *g)
{
    struct board_hdr *h = g->board.hdr;
    struct mail_box *box = p2p_box(g);
    bool messages = p2p_unattended(g);

    assert_held(&g->ctx->plock);
    if (g->running)
        g->running->run.before_sleep = true;
    if (g->running || messages)
        bells_add(b, &h->bell, g->running ? &h->sleepers : NULL);
    if (messages)
        bells_add(b, &box->bell, &box->sleepers);
}

/* Sleeps until a bell, the kick or the end of @waited (the caller stands in; NULL:
 * it is the thread); plock is dropped meanwhile, so groups may come and go: only words of boards
 * that stay mapped for the sleep are passed, see async_drop_group(), which kicks and waits for us.
 * True if something moved in the last look before it. */
static bool progress_sleep(struct commd_context *ctx, uint32_t kicked, struct commd_work *waited,
                           int64_t limit)
{
    struct asleep *asleep = &ctx->asleep[waited != NULL];
    struct bells b = {.n = 0};
    bool moved, late, all;

    assert_held(&ctx->plock);
    assert(limit > 0 && !asleep->now);
    for (struct membership *g = ctx->active; g && b.n + 2 <= MAX_BELLS; g = g->active_next)
        bells_of(&b, g);
    all = b.n + 2 <= MAX_BELLS; /* those left out ring nothing that we hear */
    if (waited) {
        b.words[b.n] = &waited->done;
        b.sleepers[b.n] = NULL;
        b.expect[b.n++] = 0;
    }
    b.words[b.n] = &ctx->kick;
    b.sleepers[b.n] = NULL;
    b.expect[b.n++] = kicked;
    moved = progress_all(ctx, !ctx->watches_gpu || ctx->gpu_naps % GPU_SLOW_EVERY == 0);
    for (struct membership *g = ctx->active; g; g = g->active_next) {
        if (!g->running)
            continue;
        run_note_sleep(&g->running->run);
        if (run_asks(&g->running->run))
            limit = MIN(limit, (int64_t)1000);
    }
    if (ctx->watches_gpu) {
        limit = MIN(limit, (int64_t)(ctx->gpu_naps < GPU_NAPS ? GPU_NAP_US : 5 * GPU_NAP_US));
        ctx->gpu_naps++;
    }
    asleep->now = true;
    asleep->times++;
    if (!moved) {
        pthread_mutex_unlock(&ctx->plock);
        late =
            futex_wait_any(b.words, b.expect, b.n, limit) && limit == WAIT_SLICE_MS * 1000 && all;
        pthread_mutex_lock(&ctx->plock);
        for (unsigned i = 0; i < b.n; i++)
            late = late && atomic_load(b.words[i]) == b.expect[i];
        if (late && progress_all(ctx, false)) /* which would have been due to a ring */
            atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
    }
    for (unsigned i = 0; i < b.n; i++)
        if (b.sleepers[i])
            bell_cancel(b.sleepers[i]);
    asleep->now = false;
    pthread_cond_broadcast(&ctx->pcond);
    return moved;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* An engine on this core gets it at once, also from a rank that would yield in its call (finish.c):
 * the application may compute, and a yield would give it the core for a slice. */
static enum wait_for thread_waits_for(const struct membership *g)
{
    assert_held(&g->ctx->plock);
    if (engine_shares_core(&g->board))
        return WAIT_FOR_ENGINE;
    if (!g->running || atomic_load(&g->p2p_pending))
        return WAIT_FOR_HERE;
    return run_waits_for(&g->running->run);
}

/* Messages, of a rank alone on its node: as in p2p_waits_for(). */
static enum wait_for stand_in_waits_for(const struct membership *g)
{
    bool messages = atomic_load(&g->p2p_pending);

    if (g->running && !messages)
        return run_waits_for(&g->running->run);
    return messages && g->board.nlocal == 1 && engine_shares_core(&g->board) ? WAIT_FOR_ENGINE
                                                                             : WAIT_FOR_HERE;
}

static enum wait_for waits_for(const struct commd_context *ctx,
                               enum wait_for (*who)(const struct membership *g))
{
    enum wait_for all;

    assert_held(&ctx->plock);
    if (ctx->landing || ctx->watches_gpu || !ctx->active)
        return WAIT_FOR_HERE;
    all = who(ctx->active);
    for (const struct membership *g = ctx->active->active_next; g; g = g->active_next)
        if (who(g) != all)
            return WAIT_FOR_HERE;
    return all;
}

/* Nothing moved, for the @idle-th time in a row. plock is dropped meanwhile. False: it is time
 * to sleep. */
static bool progress_pause(struct commd_context *ctx, unsigned idle, bool stands_in)
{
    unsigned crowded_ns;
    struct crowd crowd;
    enum wait_way way;

    assert_held(&ctx->plock);
    assert(idle > 0);
    if (!ctx->active && !ctx->landing)
        return false;
    if (idle == 1)
        crowd_next(&ctx->crowd);
    way = wait_way(&ctx->crowd, waits_for(ctx, stands_in ? stand_in_waits_for : thread_waits_for),
                   idle, stands_in ? WAIT_SPINS : IDLE_SPINS);
    if (way == WAIT_SLEEP)
        return false;
    crowd = ctx->crowd;
    crowded_ns = ctx->active ? ctx->active->crowded_ns : wait_crowded_ns(1);
    pthread_mutex_unlock(&ctx->plock);
    if (way == WAIT_SPIN)
        cpu_relax();
    else
        yield_core(crowded_ns, &crowd);
    pthread_mutex_lock(&ctx->plock);
    ctx->crowd = crowd;
    return true;
}

/* What the thread has seen of who stands in for it. */
struct seen {
    unsigned steps;
    uint64_t since_ms; /* when that began to be true; 0: nobody stood in */
};

/* Does somebody stand in for the thread, and does so? One that does nothing for long is suspended,
 * or a signal's handler has its thread: then both do it, which only costs time. */
static bool is_stood_in(struct commd_context *ctx, struct seen *seen)
{
    uint64_t now;

    assert_held(&ctx->plock);
    if (!atomic_load(&ctx->stood_in)) {
        seen->since_ms = 0;
        return false;
    }
    now = now_ms();
    if (!seen->since_ms || seen->steps != ctx->steps)
        *seen = (struct seen){.steps = ctx->steps, .since_ms = now};
    assert(seen->since_ms <= now);
    return now - seen->since_ms < STILL_MS;
}

/* plock is dropped meanwhile. */
static void keep_away(struct commd_context *ctx, uint32_t kicked)
{
    _Atomic uint32_t *word = &ctx->kick;

    assert_held(&ctx->plock);
    pthread_mutex_unlock(&ctx->plock);
    futex_wait_any(&word, &kicked, 1, WAIT_SLICE_MS * 1000);
    pthread_mutex_lock(&ctx->plock);
}

static void *progress_main(void *arg)
{
    struct commd_context *ctx = arg;
    unsigned idle = 0, rounds = 0;
    struct seen seen = {0};

    pthread_mutex_lock(&ctx->plock);
    while (!atomic_load(&ctx->stop)) {
        uint32_t kicked = atomic_load(&ctx->kick);

        if (is_stood_in(ctx, &seen)) {
            keep_away(ctx, kicked);
            continue;
        }
        /* also when a busy group never lets us sleep: another may be broken */
        bool moved = progress_all(ctx, ++rounds % SLOW_EVERY == 0);

        works_tell(ctx);
        if (moved) {
            idle = 0;
            ctx->gpu_naps = 0;
        } else if (!progress_pause(ctx, ++idle, false)) { /* and again, until something moves */
            if (!is_stood_in(ctx, &seen) && progress_sleep(ctx, kicked, NULL, WAIT_SLICE_MS * 1000))
                idle = 0;
            works_tell(ctx);
        }
    }
    works_tell(ctx);
    pthread_mutex_unlock(&ctx->plock);
    return NULL;
}

int progress_start(struct commd_context *ctx)
{
    assert_held(&ctx->plock);
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

/* ---- who stands in for it -------------------------------------------------------------------- */

/* Two pairs of words, each stored by one side before it looks at the other's (seq_cst). The thread
 * reads kick, then stood_in, and sleeps on kick; who stands down clears stood_in, then adds to kick
 * if anything is left to do. Who waits counts in waiters, then reads done, and sleeps on that;
 * work_told() sets done, then reads waiters. The rest is under plock: who leaves a group looks at
 * asleep and telling, and waits for pcond. */

/* Without the lock: the thread gives it up for a moment only, but looks at this each time. */
bool progress_stand_in(struct commd_context *ctx)
{
    bool nobody = false;

    return atomic_compare_exchange_strong(&ctx->stood_in, &nobody, true);
}

void progress_stand_down(struct commd_context *ctx)
{
    bool rest;

    assert(atomic_load(&ctx->stood_in));
    atomic_store(&ctx->stood_in, false);
    pthread_mutex_lock(&ctx->plock);
    rest = ctx->active || ctx->landing || ctx->finished;
    pthread_mutex_unlock(&ctx->plock);
    if (rest)
        progress_kick(ctx);
}

void progress_for(struct commd_work *w, unsigned *idle, int64_t limit_us)
{
    struct commd_context *ctx = w->ctx;
    uint64_t until_ms = 0; /* of many rounds in which something of others moves */
    bool late = false, last = false;

    assert(limit_us > 0 && atomic_load(&w->waiters) > 0);
    pthread_mutex_lock(&ctx->plock);
    for (unsigned round = 1; !last && !atomic_load(&w->done); round++) {
        uint32_t kicked = atomic_load(&ctx->kick);
        bool moved;

        ctx->steps++;
        last = late || round == SLOW_EVERY;
        moved = progress_all(ctx, last);
        works_tell(ctx);
        if (moved) {
            *idle = 0;
            ctx->gpu_naps = 0;
            if (!until_ms)
                until_ms = now_ms() + (uint64_t)limit_us / 1000;
            else
                late = now_ms() >= until_ms;
        } else if (!atomic_load(&w->done) && !progress_pause(ctx, ++*idle, true)) {
            if (progress_sleep(ctx, kicked, w, limit_us))
                *idle = 0;
            works_tell(ctx);
            break;
        }
    }
    pthread_mutex_unlock(&ctx->plock);
}

/* ---- leaving, stopping ----------------------------------------------------------------------- */

void async_drop_group(struct membership *g)
{
    struct commd_context *ctx = g->ctx;
    struct commd_work *w;
    struct commd_error e;

    error_set(&e, COMMD_E_ABORTED, "leave",
              "group \"%s\" was left, or recovered, while operations were pending", g->name);
    p2p_drop(g);
    pthread_mutex_lock(&ctx->plock);
    list_remove(ctx->active, g, active_next);
    /* Who sleeps still looks at the bell of this board; the next sleep does not. (To wait for `now`
     * alone would be to miss the moment between two sleeps again and again.) */
    for (unsigned i = 0; i < ARRAY_LEN(ctx->asleep); i++) {
        const struct asleep was = ctx->asleep[i], *asleep = &ctx->asleep[i];

        while (was.now && asleep->now && asleep->times == was.times) {
            progress_kick(ctx);
            pthread_cond_wait(&ctx->pcond, &ctx->plock);
        }
    }
    w = steal_ptr(g->running);
    if (w) {
        run_abandon(&w->run);
        work_finish(w, &e);
    }
    while ((w = works_pop(g)))
        work_finish(w, &e);
    while ((w = g->held)) {
        g->held = w->next;
        w->err = e;
        work_queue_message(w);
    }
    assert(!g->running && !g->head && !g->held && atomic_load(&g->pending) == 0);
    works_tell(ctx);
    while (works_told_elsewhere(ctx)) /* these, too */
        pthread_cond_wait(&ctx->pcond, &ctx->plock);
    pthread_mutex_unlock(&ctx->plock);
}

bool async_poll(struct commd_context *ctx)
{
    bool moved;

    pthread_mutex_lock(&ctx->plock);
    moved = progress_all(ctx, false);
    works_tell(ctx);
    pthread_mutex_unlock(&ctx->plock);
    return moved;
}

void async_stop(struct commd_context *ctx)
{
    if (!ctx->thread_up)
        return;
    atomic_store(&ctx->stop, true);
    progress_kick(ctx);
    pthread_join(ctx->thread, NULL);
    ctx->thread_up = false;
    if (ctx->landing) {
        struct commd_error e;

        error_set(&e, COMMD_E_ABORTED, "disconnect",
                  "disconnected while a result was on its way to the GPU");
        pthread_mutex_lock(&ctx->plock);
        works_strand(ctx, &e);
        works_tell(ctx);
        pthread_mutex_unlock(&ctx->plock);
    }
}
