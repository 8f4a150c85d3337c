/* fake_stream.c - streams: operations that run later, in order, on workers.
 *
 * A queue is a thread and a list of operations. The streams of a context share the context's
 * queues, whatever their priority: 8, or CUDA_DEVICE_MAX_CONNECTIONS, or FAKECUDA_QUEUES. A new
 * stream goes to the queue that has the fewest. So did an H100 in the check "queues" (driver 580):
 * eight streams waited, each in a queue of its own, and behind them one more stood, and one of the
 * highest priority, too. An operation that waits holds up what stands behind it in its queue. What
 * must come before is noted at the call: the default stream waits for all that the context's
 * blocking streams were given, and these for it. A worker runs an operation once this is done,
 * sleeps before (FAKECUDA_DELAY_US), and counts it as done behind. When the device breaks, what is
 * left is dropped, and waits end with the error. */
#include "tests/fakecuda/fake.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct fake_queue {
    pthread_cond_t more;
    struct fake_op *first, **end;
    unsigned streams; /* that share it */
    uint64_t random;
};
static uint64_t queues;

void fake_pause(unsigned long us)
{
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    nanosleep(&t, NULL);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void stream_unref(cu_stream s) /* under lock */
{
    cu_stream *at = &s->ctx->streams;

    if (--s->refs)
        return;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->queue->streams--;
    free(s);
}

static void delay(struct fake_queue *q)
{
    uint64_t us = fake_knob("FAKECUDA_DELAY_US", 0);

    if (!us)
        return;
    q->random = q->random * 6364136223846793005u + 1442695040888963407u;
    fake_pause((unsigned long)((q->random >> 33) % (us + 1)));
}

static void run(struct fake_queue *q, struct fake_op *op) /* lock is held, but not meanwhile */
{
    cu_context ctx = op->stream->ctx;
    cu_result r = CU_SUCCESS;

    for (unsigned i = 0; i < op->nafter; i++) {
        cu_stream s = op->after[i].stream;

        while (s->done < op->after[i].seq && !atomic_load(&ctx->sticky))
            pthread_cond_wait(&fake_changed, &fake_lock);
        stream_unref(s);
    }
    pthread_mutex_unlock(&fake_lock);
    delay(q);
    if (!atomic_load(&ctx->sticky))
        r = op->run(op);
    if (r)
        fake_break(ctx, r);
    pthread_mutex_lock(&fake_lock);
    if (op->drop)
        op->drop(op);
    op->stream->done = op->seq;
    pthread_cond_broadcast(&fake_changed);
    stream_unref(op->stream);
    free(op->after);
    free(op);
}

static void *work(void *arg)
{
    struct fake_queue *q = arg;

    prctl(PR_SET_NAME, "fakecuda");
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        struct fake_op *op = q->first;

        if (!op) {
            pthread_cond_wait(&q->more, &fake_lock);
            continue;
        }
        q->first = op->next;
        if (!q->first)
            q->end = &q->first;
        run(q, op);
    }
    return NULL;
}

static struct fake_queue *queue_new(void) /* under lock */
{
    struct fake_queue *q = calloc(1, sizeof *q);
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_t thread;
    int r;

    if (!q)
        return NULL;
    pthread_cond_init(&q->more, NULL);
    q->end = &q->first;
    q->random = (fake_knob("FAKECUDA_SEED", 1) + queues++) * 0x9e3779b97f4a7c15u;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    r = pthread_create(&thread, &attr, work, q);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r) {
        free(q);
        return NULL;
    }
    return q;
}

static size_t queues_wanted(void)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    size_t n = fake_knob("FAKECUDA_QUEUES", connections ? strtoul(connections, NULL, 10) : 8);

    return n < 1 ? 1 : n > FAKE_QUEUES ? FAKE_QUEUES : n;
}

static struct fake_queue *queue_for(cu_context ctx) /* under lock */
{
    struct fake_queue **least = &ctx->queues[0];

    for (size_t i = 0; i < queues_wanted() && *least && (*least)->streams; i++)
        if (!ctx->queues[i] || ctx->queues[i]->streams < (*least)->streams)
            least = &ctx->queues[i];
    if (!*least)
        *least = queue_new();
    if (*least)
        (*least)->streams++;
    return *least;
}

/* ---- devices that reach each other -------------------------------------------------------------
 * What frees or unmaps memory waits for the device and for all that peer access ties to it, and
 * nothing is launched on any of them meanwhile. */

static pthread_rwlock_t tables[FAKE_DEVICES] = {[0 ... FAKE_DEVICES - 1] =
                                                    PTHREAD_RWLOCK_INITIALIZER};

static bool tied(cu_context ctx, cu_device dev)
{
    return dev == ctx->dev || atomic_load(&ctx->peers) >> dev & 1;
}

cu_result fake_context_settle(cu_context ctx)
{
    bool locked[FAKE_DEVICES] = {false};
    cu_result r = CU_SUCCESS;

    if (!fake_knob("FAKECUDA_SYNC_FREE", 1))
        return CU_SUCCESS;
    for (int i = 0; i < fake_device_count() && atomic_load(&ctx->peers); i++)
        if (tied(ctx, i)) {
            pthread_rwlock_wrlock(&tables[i]);
            locked[i] = true;
        }
    for (int i = 0; i < fake_device_count() && !r; i++)
        if (tied(ctx, i))
            r = fake_context_drain(&fake_device(i)->ctx);
    for (int i = 0; i < fake_device_count(); i++)
        if (locked[i])
            pthread_rwlock_unlock(&tables[i]);
    return r;
}

/* ---- giving them work ------------------------------------------------------------------------ */

static cu_stream stream_new(cu_context ctx, unsigned flags) /* under lock */
{
    cu_stream s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->ctx = ctx;
    s->flags = flags;
    s->refs = 1;
    s->queue = queue_for(ctx);
    if (!s->queue) {
        free(s);
        return NULL;
    }
    s->next = ctx->streams;
    ctx->streams = s;
    return s;
}

cu_result fake_stream_default(cu_context ctx)
{
    bool there;

    pthread_mutex_lock(&fake_lock);
    if (!ctx->null_stream)
        ctx->null_stream = stream_new(ctx, CU_STREAM_DEFAULT);
    there = ctx->null_stream;
    pthread_mutex_unlock(&fake_lock);
    return there ? CU_SUCCESS : CU_E_OUT_OF_MEMORY;
}

static cu_stream find(cu_stream handle) /* under lock */
{
    if (!handle || (uintptr_t)handle == 1) /* 1: CU_STREAM_LEGACY */
        return fake_current() ? fake_current()->null_stream : NULL;
    for (int i = 0; i < fake_device_count(); i++)
        for (cu_stream s = fake_device(i)->ctx.streams; s; s = s->next)
            if (s == handle && !s->destroyed)
                return s;
    return NULL;
}

cu_result fake_stream(cu_stream s, cu_stream *ret_stream)
{
    cu_result r = CU_SUCCESS;

    pthread_mutex_lock(&fake_lock);
    s = find(s);
    if (!s)
        r = CU_E_INVALID_HANDLE;
    else if (atomic_load(&s->ctx->sticky))
        r = atomic_load(&s->ctx->sticky);
    else
        *ret_stream = s;
    pthread_mutex_unlock(&fake_lock);
    return r;
}

/* What @op has to wait for, beyond its own stream. Under lock. */
static bool order(cu_stream s, struct fake_op *op)
{
    cu_context ctx = s->ctx;
    unsigned n = 0;

    if (s->flags & CU_STREAM_NON_BLOCKING)
        return true;
    for (cu_stream t = ctx->streams; t; t = t->next)
        n++;
    op->after = calloc(n, sizeof op->after[0]);
    if (!op->after)
        return false;
    for (cu_stream t = ctx->streams; t; t = t->next) {
        if (t == s || t->flags & CU_STREAM_NON_BLOCKING || t->done == t->issued)
            continue;
        if (s != ctx->null_stream && t != ctx->null_stream)
            continue;
        t->refs++;
        op->after[op->nafter++] = (struct fake_after){t, t->issued};
    }
    return true;
}

cu_result fake_push(cu_stream s, struct fake_op *op)
{
    pthread_rwlock_t *table = &tables[s->ctx->dev];
    cu_result r = CU_SUCCESS;

    pthread_rwlock_rdlock(table);
    pthread_mutex_lock(&fake_lock);
    if (s->capturing)
        r = FAKE_E_CAPTURE_UNSUPPORTED;
    else if (!order(s, op))
        r = CU_E_OUT_OF_MEMORY;
    if (r) {
        if (op->drop)
            op->drop(op);
        free(op);
    } else {
        s->refs++;
        op->stream = s;
        op->seq = ++s->issued;
        op->next = NULL;
        *s->queue->end = op;
        s->queue->end = &op->next;
        pthread_cond_signal(&s->queue->more);
    }
    pthread_mutex_unlock(&fake_lock);
    pthread_rwlock_unlock(table);
    return r;
}

/* ---- waiting for them ------------------------------------------------------------------------ */

static cu_result drain(cu_stream s, uint64_t seq) /* under lock */
{
    cu_context ctx = s->ctx;

    s->refs++;
    while (s->done < seq && !atomic_load(&ctx->sticky))
        pthread_cond_wait(&fake_changed, &fake_lock);
    stream_unref(s);
    return atomic_load(&ctx->sticky);
}

cu_result fake_stream_drain(cu_stream s, uint64_t seq)
{
    cu_result r;

    pthread_mutex_lock(&fake_lock);
    r = drain(s, seq ? seq : s->issued);
    pthread_mutex_unlock(&fake_lock);
    return r;
}

cu_result fake_context_drain(cu_context ctx)
{
    struct fake_op all = {.stream = NULL};
    unsigned n = 0;

    pthread_mutex_lock(&fake_lock);
    for (cu_stream t = ctx->streams; t; t = t->next)
        n++;
    all.after = calloc(n + 1, sizeof all.after[0]);
    for (cu_stream t = ctx->streams; t && all.after; t = t->next) {
        t->refs++;
        all.after[all.nafter++] = (struct fake_after){t, t->issued};
    }
    for (unsigned i = 0; i < all.nafter; i++) {
        drain(all.after[i].stream, all.after[i].seq);
        stream_unref(all.after[i].stream);
    }
    pthread_mutex_unlock(&fake_lock);
    free(all.after);
    return atomic_load(&ctx->sticky);
}

/* ---- the driver's functions ------------------------------------------------------------------ */

cu_result cuStreamCreate(cu_stream *s, unsigned flags)
{
    cu_stream made;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!s || flags & ~CU_STREAM_NON_BLOCKING)
        return CU_E_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    made = stream_new(fake_current(), flags);
    pthread_mutex_unlock(&fake_lock);
    if (!made)
        return CU_E_OUT_OF_MEMORY;
    *s = made;
    return CU_SUCCESS;
}

/* What it was given still runs. */
cu_result cuStreamDestroy_v2(cu_stream s)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = s && (uintptr_t)s != 1 ? fake_stream(s, &s) : CU_E_INVALID_HANDLE;
    if (r)
        return r;
    pthread_mutex_lock(&fake_lock);
    s->destroyed = true;
    stream_unref(s);
    pthread_mutex_unlock(&fake_lock);
    return CU_SUCCESS;
}

cu_result cuStreamQuery(cu_stream s)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r)
        return r;
    pthread_mutex_lock(&fake_lock);
    r = s->capturing           ? FAKE_E_CAPTURE_UNSUPPORTED
        : s->done == s->issued ? CU_SUCCESS
                               : CU_E_NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return r;
}

cu_result cuStreamSynchronize(cu_stream s)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r)
        return r;
    pthread_mutex_lock(&fake_lock);
    r = s->capturing ? FAKE_E_CAPTURE_UNSUPPORTED : drain(s, s->issued);
    pthread_mutex_unlock(&fake_lock);
    return r;
}

cu_result cuStreamGetCtx(cu_stream s, cu_context *ctx)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = ctx ? fake_stream(s, &s) : CU_E_INVALID_VALUE;
    if (!r)
        *ctx = s->ctx;
    return r;
}

cu_result cuStreamIsCapturing(cu_stream s, int *status)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = status ? fake_stream(s, &s) : CU_E_INVALID_VALUE;
    if (r)
        return r;
    pthread_mutex_lock(&fake_lock);
    *status = s->capturing ? CU_CAPTURE_ACTIVE : CU_CAPTURE_NONE;
    pthread_mutex_unlock(&fake_lock);
    return CU_SUCCESS;
}

cu_result fakecuda_capture(cu_stream s, int on)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r)
        return r;
    pthread_mutex_lock(&fake_lock);
    s->capturing = on;
    pthread_mutex_unlock(&fake_lock);
    return CU_SUCCESS;
}

cu_result fakecuda_stream_device(cu_stream s, cu_device *dev)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (!r)
        *dev = s->ctx->dev;
    return r;
}
