/* fake_exec.c - what streams do: copies, writes and waits of values, host functions. All memory is
 * looked at when the operation runs, not at the call. */
#include "tests/fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>

/* ---- copies ---------------------------------------------------------------------------------- */

enum { STAGED = 64 << 10 }; /* plain host memory up to this size is read at the call */

struct copy_op {
    struct fake_op op;
    cu_ptr dst, src;
    size_t bytes;
    void *staged; /* owned: what was read at the call; NULL: read src */
};
struct move {
    void *dst;
    const void *src;
    size_t bytes;
};

static void move(void *arg)
{
    struct move *m = arg;

    memmove(m->dst, m->src, m->bytes);
}

static cu_result copy(struct fake_op *op)
{
    struct copy_op *c = (struct copy_op *)op;
    cu_context ctx = op->stream->ctx;
    struct move m = {.bytes = c->bytes};
    bool ok;

    pthread_rwlock_rdlock(&memory_lock);
    m.dst = fake_reach_copy(c->dst, c->bytes, ctx);
    m.src = c->staged ? c->staged : fake_reach_copy(c->src, c->bytes, ctx);
    ok = m.dst && m.src && fake_guarded(move, &m);
    pthread_rwlock_unlock(&memory_lock);
    return ok ? CU_SUCCESS : CU_E_ILLEGAL_ADDRESS;
}

static void copy_drop(struct fake_op *op)
{
    free(((struct copy_op *)op)->staged);
}

/* Host memory that the driver does not know goes through buffers of the driver: it is read before
 * the call returns if it is small, and else, and where it is written, the call waits. */
cu_result cuMemcpyAsync(cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s)
{
    bool plain_src, plain_dst, lost;
    struct copy_op *c;
    struct move m;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r || !bytes)
        return r;
    pthread_rwlock_rdlock(&memory_lock);
    plain_src = !fake_memory_at(src);
    plain_dst = !fake_memory_at(dst);
    lost = !src || !dst || fake_outruns(src, bytes) || fake_outruns(dst, bytes) ||
           (plain_src && fake_range_ours(src)) || (plain_dst && fake_range_ours(dst));
    pthread_rwlock_unlock(&memory_lock);
    c = lost ? NULL : calloc(1, sizeof *c);
    if (!c)
        return lost ? CU_E_INVALID_VALUE : CU_E_OUT_OF_MEMORY;
    c->op.run = copy;
    c->op.drop = copy_drop;
    c->dst = dst;
    c->src = src;
    c->bytes = bytes;
    if (plain_src && !plain_dst && bytes <= STAGED)
        c->staged = malloc(bytes);
    if (c->staged) {
        m = (struct move){c->staged, (void *)src, bytes};
        if (!fake_guarded(move, &m)) {
            copy_drop(&c->op);
            free(c);
            return CU_E_INVALID_VALUE;
        }
    }
    lost = plain_dst || (plain_src && !c->staged);
    r = fake_push(s, &c->op);
    return r || !lost ? r : fake_stream_drain(s, 0);
}

/* ---- filling --------------------------------------------------------------------------------- */

struct fill_op {
    struct fake_op op;
    cu_ptr dst;
    size_t bytes;
    unsigned char value;
    void *view;
};

static void fill(void *arg)
{
    struct fill_op *f = arg;

    memset(f->view, f->value, f->bytes);
}

static cu_result fill_run(struct fake_op *op)
{
    struct fill_op *f = (struct fill_op *)op;
    bool ok;

    pthread_rwlock_rdlock(&memory_lock);
    f->view = fake_reach(f->dst, f->bytes, op->stream->ctx);
    ok = f->view && fake_guarded(fill, f);
    pthread_rwlock_unlock(&memory_lock);
    return ok ? CU_SUCCESS : CU_E_ILLEGAL_ADDRESS;
}

cu_result cuMemsetD8Async(cu_ptr p, unsigned char value, size_t bytes, cu_stream s)
{
    struct fill_op *f;
    bool lost;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_stream(s, &s);
    if (r || !bytes)
        return r;
    pthread_rwlock_rdlock(&memory_lock);
    lost = !fake_memory_at(p) || fake_outruns(p, bytes);
    pthread_rwlock_unlock(&memory_lock);
    f = lost ? NULL : calloc(1, sizeof *f);
    if (!f)
        return lost ? CU_E_INVALID_VALUE : CU_E_OUT_OF_MEMORY;
    f->op.run = fill_run;
    f->dst = p;
    f->bytes = bytes;
    f->value = value;
    return fake_push(s, &f->op);
}

/* ---- values in memory ------------------------------------------------------------------------ */

struct values_op {
    struct fake_op op;
    unsigned n;
    union cu_batch_op ops[];
};

/* NULL: not there any more. memory_lock is held. */
static _Atomic uint32_t *word(cu_ptr p, cu_context ctx)
{
    return fake_value_address(p, sizeof(uint32_t), ctx) ? fake_reach(p, sizeof(uint32_t), ctx)
                                                        : NULL;
}

/* 1: reached; 0: not yet; -1: no memory */
static int reached(const union cu_batch_op *b, cu_context ctx)
{
    _Atomic uint32_t *w;
    uint32_t v = 0;

    pthread_rwlock_rdlock(&memory_lock);
    w = word(b->value.address, ctx);
    if (w)
        v = atomic_load_explicit(w, memory_order_acquire);
    pthread_rwlock_unlock(&memory_lock);
    if (!w)
        return -1;
    return b->value.flags == CU_WAIT_EQ ? v == b->value.value : (int32_t)(v - b->value.value) >= 0;
}

static cu_result wait_value(const union cu_batch_op *b, cu_context ctx)
{
    unsigned long us = 10;
    int there;

    while ((there = reached(b, ctx)) == 0 && !atomic_load(&ctx->sticky)) {
        fake_pause(us);
        us = us < 200 ? us * 2 : us;
    }
    return there < 0 ? CU_E_ILLEGAL_ADDRESS : CU_SUCCESS;
}

static cu_result write_value(const union cu_batch_op *b, cu_context ctx)
{
    _Atomic uint32_t *w;

    pthread_rwlock_rdlock(&memory_lock);
    w = word(b->value.address, ctx);
    if (w)
        atomic_store_explicit(w, b->value.value, memory_order_release);
    pthread_rwlock_unlock(&memory_lock);
    return w ? CU_SUCCESS : CU_E_ILLEGAL_ADDRESS;
}

static cu_result values(struct fake_op *op)
{
    struct values_op *v = (struct values_op *)op;
    cu_context ctx = op->stream->ctx;
    cu_result r = CU_SUCCESS;

    for (unsigned i = 0; i < v->n && !r; i++)
        r = v->ops[i].value.operation == CU_BATCH_WAIT32 ? wait_value(&v->ops[i], ctx)
                                                         : write_value(&v->ops[i], ctx);
    return r;
}

static cu_result push_values(cu_stream s, const union cu_batch_op *ops, unsigned n)
{
    struct values_op *v;
    bool ok = n > 0 && n < 256; /* as cuStreamBatchMemOp() documents it */
    cu_result r;

    r = fake_stream(s, &s);
    if (r)
        return r;
    pthread_rwlock_rdlock(&memory_lock);
    for (unsigned i = 0; i < n && ok; i++) {
        int what = ops[i].value.operation;

        ok = fake_value_address(ops[i].value.address, sizeof(uint32_t), s->ctx) &&
             ((what == CU_BATCH_WAIT32 && ops[i].value.flags <= CU_WAIT_EQ) ||
              (what == CU_BATCH_WRITE32 && ops[i].value.flags <= 1));
    }
    pthread_rwlock_unlock(&memory_lock);
    if (!ok)
        return CU_E_INVALID_VALUE;
    v = calloc(1, sizeof *v + n * sizeof ops[0]);
    if (!v)
        return CU_E_OUT_OF_MEMORY;
    v->op.run = values;
    v->n = n;
    memcpy(v->ops, ops, n * sizeof ops[0]);
    return fake_push(s, &v->op);
}

static union cu_batch_op one(int operation, cu_ptr p, uint32_t value, unsigned flags)
{
    union cu_batch_op b = {.pad = {0}};

    b.value.operation = operation;
    b.value.address = p;
    b.value.value = value;
    b.value.flags = flags;
    return b;
}

cu_result cuStreamWriteValue32_v2(cu_stream s, cu_ptr p, uint32_t value, unsigned flags)
{
    union cu_batch_op b = one(CU_BATCH_WRITE32, p, value, flags);

    FAKE_ENTER(FAKE_CONTEXT);
    return push_values(s, &b, 1);
}

cu_result cuStreamWaitValue32_v2(cu_stream s, cu_ptr p, uint32_t value, unsigned flags)
{
    union cu_batch_op b = one(CU_BATCH_WAIT32, p, value, flags);

    FAKE_ENTER(FAKE_CONTEXT);
    return push_values(s, &b, 1);
}

cu_result cuStreamBatchMemOp_v2(cu_stream s, unsigned n, union cu_batch_op *ops, unsigned flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    if (!ops || flags)
        return CU_E_INVALID_VALUE;
    return push_values(s, ops, n);
}

/* ---- functions of the host ------------------------------------------------------------------- */

struct host_op {
    struct fake_op op;
    cu_host_fn fn;
    fakecuda_fn inner; /* of the fake NCCL, instead of fn */
    void (*drop)(void *arg);
    void *arg;
};

static cu_result call(struct fake_op *op)
{
    struct host_op *h = (struct host_op *)op;

    if (h->inner)
        return h->inner(h->arg);
    fake_in_host_fn = true; /* which must not call the driver */
    h->fn(h->arg);
    fake_in_host_fn = false;
    return CU_SUCCESS;
}

static void call_drop(struct fake_op *op)
{
    struct host_op *h = (struct host_op *)op;

    if (h->drop)
        h->drop(h->arg);
}

static cu_result push_call(cu_stream s, struct host_op call_op)
{
    struct host_op *h = NULL;
    cu_result r = fake_stream(s, &s);

    if (!r) {
        h = malloc(sizeof *h);
        r = h ? CU_SUCCESS : CU_E_OUT_OF_MEMORY;
    }
    if (r) {
        call_drop(&call_op.op);
        return r;
    }
    *h = call_op;
    h->op.run = call;
    h->op.drop = call_drop;
    return fake_push(s, &h->op);
}

cu_result cuLaunchHostFunc(cu_stream s, cu_host_fn fn, void *arg)
{
    FAKE_ENTER(FAKE_CONTEXT);
    if (!fn)
        return CU_E_INVALID_VALUE;
    return push_call(s, (struct host_op){.fn = fn, .arg = arg});
}

cu_result fakecuda_enqueue(cu_stream s, fakecuda_fn fn, void (*drop)(void *arg), void *arg)
{
    return push_call(s, (struct host_op){.inner = fn, .drop = drop, .arg = arg});
}
