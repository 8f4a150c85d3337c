/* fake_event.c - events. Each record makes a mark that is reached when the stream comes there; who
 * waits, waits for the mark that the event had at the call. */
#include "tests/fakecuda/fake.h"

#include <stdlib.h>

struct CUevent_st {
    struct fake_mark *mark; /* of the last record; NULL: never recorded */
    cu_context ctx;
    cu_event next;
};
static cu_event events; /* under fake_lock */

struct mark_op {
    struct fake_op op;
    struct fake_mark *mark;
};

static cu_event find(cu_event handle)
{
    cu_event e = events;

    while (e && e != handle)
        e = e->next;
    return e;
}

void fake_mark_unref(struct fake_mark *mark)
{
    if (mark && --mark->refs == 0)
        free(mark);
}

static void drop_mark(struct fake_op *op)
{
    fake_mark_unref(((struct mark_op *)op)->mark);
}

/* Also when the device is broken: streams of other devices go on. */
static void drop_record(struct fake_op *op)
{
    ((struct mark_op *)op)->mark->reached = true;
    drop_mark(op);
}

static cu_result reach(struct fake_op *op)
{
    static atomic_uint n;
    uint64_t never = fake_knob("FAKECUDA_EVENT_NEVER", 0);

    if (never && atomic_fetch_add(&n, 1) + 1 >= never)
        while (!atomic_load(&op->stream->ctx->sticky))
            fake_pause(1000);
    return CU_SUCCESS; /* dropping it reaches the mark */
}

static cu_result wait_mark(struct fake_op *op)
{
    pthread_mutex_lock(&fake_lock);
    while (!((struct mark_op *)op)->mark->reached && !atomic_load(&op->stream->ctx->sticky))
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
    return CU_SUCCESS;
}

cu_result cuEventCreate(cu_event *e, unsigned flags)
{
    cu_event made;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!e || flags & ~7u || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CU_E_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS)
        return CU_E_NOT_SUPPORTED; /* commd has flags in host memory instead */
    made = calloc(1, sizeof *made);
    if (!made)
        return CU_E_OUT_OF_MEMORY;
    made->ctx = fake_current();
    pthread_mutex_lock(&fake_lock);
    made->next = events;
    events = made;
    pthread_mutex_unlock(&fake_lock);
    *e = made;
    return CU_SUCCESS;
}

cu_result cuEventDestroy_v2(cu_event e)
{
    cu_event *at = &events;

    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    while (*at && *at != e)
        at = &(*at)->next;
    if (!*at) {
        pthread_mutex_unlock(&fake_lock);
        return CU_E_INVALID_HANDLE;
    }
    *at = e->next;
    fake_mark_unref(e->mark);
    pthread_mutex_unlock(&fake_lock);
    free(e);
    return CU_SUCCESS;
}

cu_result cuEventRecord(cu_event e, cu_stream s)
{
    struct mark_op *op;
    struct fake_mark *mark;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r)
        return r;
    op = calloc(1, sizeof *op);
    mark = calloc(1, sizeof *mark);
    pthread_mutex_lock(&fake_lock);
    e = find(e);
    if (!op || !mark)
        r = CU_E_OUT_OF_MEMORY;
    else if (!e || e->ctx != s->ctx)
        r = CU_E_INVALID_HANDLE;
    else if (s->capturing)
        r = FAKE_E_CAPTURE_UNSUPPORTED;
    if (!r) {
        fake_mark_unref(e->mark);
        e->mark = mark;
        mark->refs = 2;
    }
    pthread_mutex_unlock(&fake_lock);
    if (r) {
        free(op);
        free(mark);
        return r;
    }
    op->op.run = reach;
    op->op.drop = drop_record;
    op->mark = mark;
    return fake_push(s, &op->op);
}

/* The mark that @e has now, counted; NULL: nothing to wait for. */
static cu_result mark_of(cu_event e, struct fake_mark **ret_mark)
{
    pthread_mutex_lock(&fake_lock);
    e = find(e);
    *ret_mark = e ? e->mark : NULL;
    if (*ret_mark)
        (*ret_mark)->refs++;
    pthread_mutex_unlock(&fake_lock);
    return e ? CU_SUCCESS : CU_E_INVALID_HANDLE;
}

cu_result cuStreamWaitEvent(cu_stream s, cu_event e, unsigned flags)
{
    struct fake_mark *mark;
    struct mark_op *op;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = flags ? CU_E_INVALID_VALUE : fake_stream(s, &s);
    if (!r)
        r = mark_of(e, &mark);
    if (r || !mark)
        return r;
    op = calloc(1, sizeof *op);
    if (!op) {
        pthread_mutex_lock(&fake_lock);
        fake_mark_unref(mark);
        pthread_mutex_unlock(&fake_lock);
        return CU_E_OUT_OF_MEMORY;
    }
    op->op.run = wait_mark;
    op->op.drop = drop_mark;
    op->mark = mark;
    return fake_push(s, &op->op);
}

static cu_result look(cu_event e, bool wait)
{
    struct fake_mark *mark;
    cu_context ctx = fake_current();
    cu_result r;

    r = mark_of(e, &mark);
    if (r || !mark)
        return r;
    pthread_mutex_lock(&fake_lock);
    while (wait && !mark->reached && !atomic_load(&ctx->sticky))
        pthread_cond_wait(&fake_changed, &fake_lock);
    r = mark->reached ? CU_SUCCESS : CU_E_NOT_READY;
    fake_mark_unref(mark);
    pthread_mutex_unlock(&fake_lock);
    return atomic_load(&ctx->sticky) ? atomic_load(&ctx->sticky) : r;
}

cu_result cuEventQuery(cu_event e)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return look(e, false);
}

cu_result cuEventSynchronize(cu_event e)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return look(e, true);
}
