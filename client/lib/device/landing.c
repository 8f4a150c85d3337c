/* landing.c - how what has come to the staging buffer gets to the caller's: a message, or the
 * result of a small collective that no stream waits for yet.
 *
 * It is copied
 *   on the stream that waits for it, behind a wait for done: of commd_run(), and of the first
 *     commd_work_wait_stream();
 *   if there is none by the time it has come, on a stream of the lander, a thread of its own.
 * So no stream of libcommd's waits for other ranks: all streams share the GPU's hardware queues,
 * and such a wait could hold up a stream of the caller's. Nor does a result wait for another one:
 * on one stream of the lander is what can be copied at once, on another one what has come before
 * its call's own stream came to it.
 *
 * Nor may the progress thread copy: see coll/gate.h. The driver may hold up the lander; that delays
 * only what no stream waits for. */
#include "client/lib/device/staged.h"

#include <signal.h>

void landed_by_host(const struct staged *st)
{
    atomic_store_explicit(st->gate.landed, st->gate.base + st->gate.pieces, memory_order_release);
}

/* What has come goes into its buffer, on @s; the buffer is free once its own stream says so. */
static int enqueue_landing(struct staged *st, cu_stream s)
{
    int r = gate_full(&st->gate) ? 0 : staged_await(st, WORD_READY, 1, s);

    if (!r && st->from)
        r = staged_copy(st, st->to, st->from, st->bytes, s);
    return r ? r : staged_write(st, WORD_LANDED, 1, s);
}

int landing_set_on(struct staged *st, cu_stream s)
{
    int r = staged_await(st, WORD_DONE, 1, s);

    assert(st->gate.pieces == 1);
    st->landing = LANDING_SET; /* nobody else knows of it yet */
    return r ? r : enqueue_landing(st, s);
}

struct lander_stream {
    struct lander_stream *next;
    cu_context ctx;
    bool full; /* of those that wait for nothing */
    cu_stream stream;
};

static int stream_for(struct lander_stream **all, const struct staged *st, cu_stream *ret_stream)
{
    struct lander_stream *l = *all;
    bool full = gate_full(&st->gate);
    cu_result r;

    while (l && (l->ctx != st->ctx || l->full != full))
        l = l->next;
    if (!l) {
        l = calloc(1, sizeof *l);
        if (!l)
            return error_set(error_mine(), COMMD_E_NOMEM, st->name, "no memory for a stream");
        r = driver(NULL)->stream_new(&l->stream, CU_STREAM_NON_BLOCKING);
        if (r) {
            free(l);
            return driver_error(st->name, "cuStreamCreate", r);
        }
        l->ctx = st->ctx;
        l->full = full;
        l->next = *all;
        *all = l;
    }
    *ret_stream = l->stream;
    return 0;
}

/* Is it the caller who enqueues the copy? Else it has been enqueued. */
static bool landing_claim(struct staged *st)
{
    struct device *dev = st->dev;
    bool mine;

    pthread_mutex_lock(&dev->lander_lock);
    mine = st->landing == LANDING_OPEN;
    if (mine)
        st->landing = LANDING_CLAIMED;
    while (!mine && st->landing == LANDING_CLAIMED)
        pthread_cond_wait(&dev->lander_cond, &dev->lander_lock);
    pthread_mutex_unlock(&dev->lander_lock);
    return mine;
}

static void landing_is_set(struct staged *st)
{
    struct device *dev = st->dev;

    pthread_mutex_lock(&dev->lander_lock);
    assert(st->landing == LANDING_CLAIMED);
    st->landing = LANDING_SET;
    pthread_cond_broadcast(&dev->lander_cond);
    pthread_mutex_unlock(&dev->lander_lock);
}

static void land(struct lander_stream **all, struct staged *st)
{
    struct scope scope;
    cu_stream s = NULL;
    int r = scope_enter_context(st->name, st->ctx, &scope);

    if (!r) {
        r = stream_for(all, st, &s);
        if (!r)
            r = enqueue_landing(st, s);
        scope_leave(&scope);
    }
    if (r)
        atomic_store(&st->gate.lost, r);
}

static struct staged *next_landing(struct device *dev)
{
    struct staged *st = dev->landings;

    if (!st)
        return NULL;
    dev->landings = st->next_landing;
    if (!dev->landings)
        dev->last_landing = &dev->landings;
    return st;
}

static void *lander_main(void *arg)
{
    struct device *dev = arg;
    struct lander_stream *streams = NULL;
    struct staged *st;

    pthread_mutex_lock(&dev->lander_lock);
    for (;;) {
        st = next_landing(dev);
        if (!st && dev->lander_stop)
            break;
        if (!st) {
            pthread_cond_wait(&dev->lander_cond, &dev->lander_lock);
            continue;
        }
        pthread_mutex_unlock(&dev->lander_lock);
        if (landing_claim(st)) {
            land(&streams, st);
            landing_is_set(st);
        }
        staged_unref(st);
        pthread_mutex_lock(&dev->lander_lock);
    }
    pthread_mutex_unlock(&dev->lander_lock);
    for (struct lander_stream *next; streams; streams = next) {
        struct scope scope;

        next = streams->next;
        if (scope_enter_context("disconnect", streams->ctx, &scope) == 0) {
            driver(NULL)->stream_free(streams->stream);
            scope_leave(&scope);
        }
        free(streams);
    }
    return NULL;
}

int lander_start(struct device *dev, const char *name)
{
    sigset_t all, old;
    int r = 0;

    pthread_mutex_lock(&dev->lander_lock);
    if (!dev->lander_up) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&dev->lander, NULL, lander_main, dev);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        dev->lander_up = !r;
    }
    pthread_mutex_unlock(&dev->lander_lock);
    return r ? error_set(error_mine(), COMMD_E_NOMEM, name, "%s: cannot start a thread: %s", name,
                         strerror(r))
             : 0;
}

void lander_stop(struct device *dev)
{
    if (!dev->lander_up)
        return;
    pthread_mutex_lock(&dev->lander_lock);
    dev->lander_stop = true;
    pthread_cond_broadcast(&dev->lander_cond);
    pthread_mutex_unlock(&dev->lander_lock);
    pthread_join(dev->lander, NULL);
    dev->lander_up = false;
}

void landing_over(struct staged *st, const struct commd_error *e)
{
    struct device *dev = st->dev;

    pthread_mutex_lock(&dev->lander_lock);
    if (st->landing == LANDING_OPEN && e) {
        st->landing = LANDING_SET;
        landed_by_host(st);
    } else if (st->landing == LANDING_OPEN) {
        atomic_fetch_add(&st->refs, 1);
        *dev->last_landing = st;
        dev->last_landing = &st->next_landing;
        pthread_cond_broadcast(&dev->lander_cond);
    }
    pthread_mutex_unlock(&dev->lander_lock);
}

int landing_follow(struct staged *st, cu_stream stream)
{
    int r;

    if (!landing_claim(st))
        return staged_await(st, WORD_LANDED, st->gate.pieces, stream);
    r = staged_await(st, WORD_DONE, 1, stream);
    if (!r)
        r = enqueue_landing(st, stream);
    if (r)
        atomic_store(&st->gate.lost, r);
    landing_is_set(st);
    return r;
}

int landing_wait_stream(struct gate *gate, void *stream)
{
    struct staged *st = staged_of(gate);
    struct scope scope;
    int r = scope_enter_known(st->name, stream, st->ctx, &scope);

    if (r)
        return r;
    r = landing_follow(st, stream);
    scope_leave(&scope);
    return r;
}

/* ---- what comes before ----------------------------------------------------------------------- */

/* Does @o write to bytes from @lo to @hi, and has not done so yet? */
static bool is_before(const struct staged *o, const struct device_group *dg, uintptr_t lo,
                      uintptr_t hi)
{
    return o->group == dg && o->lo < hi && lo < o->hi && !gate_landed(&o->gate);
}

bool staged_pending(struct device_group *dg, const struct side_place *side)
{
    struct device *dev = dg->dev;
    uintptr_t lo, hi;
    bool found = false;

    side_span(side, &lo, &hi);
    pthread_mutex_lock(&dev->lock);
    for (struct staged *o = dev->first; o && !found; o = o->next)
        found = is_before(o, dg, lo, hi);
    pthread_mutex_unlock(&dev->lock);
    return found;
}

int staged_follow(struct device_group *dg, const struct side_place *in, cu_stream s)
{
    struct device *dev = dg->dev;
    uintptr_t lo, hi;
    int r = 0;

    side_span(in, &lo, &hi);
    pthread_mutex_lock(&dev->lock);
    for (struct staged *o = dev->first; o && !r; o = o->next)
        if (is_before(o, dg, lo, hi))
            r = landing_follow(o, s);
    pthread_mutex_unlock(&dev->lock);
    return r;
}
