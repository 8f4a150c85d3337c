/* device.c - which operations are on a GPU, and what a context and a group keep for them. */
#include "client/lib/device/device.h"

#include "client/lib/device/session.h"
#include "client/lib/p2p/p2p.h"

/* ---- coming and going ------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* what devices and groups there are */
static struct device *gone; /* owned: contexts are gone, but streams have not landed everything */

static void device_destroy(struct device *dev)
{
    assert(!dev->first && !dev->landings && !dev->lander_up);
    staging_fini(&dev->staging);
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->lander_lock);
    pthread_mutex_destroy(&dev->sessions_lock);
    pthread_cond_destroy(&dev->lander_cond);
    free(dev);
}

/* True if nothing is in flight. */
static bool device_reap(struct device *dev)
{
    struct staged *before;

    assert(dev->last);
    pthread_mutex_lock(&dev->lock);
    do {
        before = dev->first;
        staged_reap(dev);
    } while (dev->first && dev->first != before);
    before = dev->first;
    pthread_mutex_unlock(&dev->lock);
    return !before;
}

static void reap_gone(void)
{
    assert_held(&lock);
    for (struct device **p = &gone; *p;) {
        struct device *dev = *p;

        if (!device_reap(dev)) {
            p = &dev->next;
            continue;
        }
        *p = dev->next;
        device_destroy(dev);
    }
}

static int device_new(struct commd_context *ctx, struct device **ret_dev)
{
    struct device *dev = calloc(1, sizeof *dev);
    int r;

    assert(ctx && !ctx->device);
    if (!dev)
        return error_set(error_mine(), COMMD_E_NOMEM, "run", "no memory for operations on a GPU");
    r = staging_init(&dev->staging, ctx);
    if (!r)
        r = bytes_setting("COMMD_DEVICE_ARENA", SESSION_LENT_MOST, &dev->lent_limit);
    if (!r)
        r = path_check();
    if (r) {
        free(dev);
        return r;
    }
    dev->ctx = ctx;
    dev->last = &dev->first;
    dev->last_landing = &dev->landings;
    pthread_mutex_init(&dev->lock, NULL);
    pthread_mutex_init(&dev->lander_lock, NULL);
    pthread_mutex_init(&dev->sessions_lock, NULL);
    pthread_cond_init(&dev->lander_cond, NULL);
    *ret_dev = dev;
    return 0;
}

static int device_group_new(struct membership *g, struct device_group **ret_dg)
{
    struct device *dev = g->ctx->device;
    struct device_group *dg;
    int r;

    assert_held(&lock);
    assert(!g->device);
    reap_gone();
    if (!dev) {
        r = device_new(g->ctx, &dev);
        if (r)
            return r;
        g->ctx->device = dev;
    }
    dg = calloc(1, sizeof *dg);
    if (!dg)
        return error_set(error_mine(), COMMD_E_NOMEM, "run", "no memory for operations on a GPU");
    dg->dev = dev;
    dg->group = g;
    dg->next_seq = 1;
    pthread_mutex_init(&dg->lock, NULL);
    pthread_mutex_init(&dg->failure.lock, NULL);
    dg->next = dg->dev->groups;
    dg->dev->groups = dg;
    *ret_dg = dg;
    return 0;
}

static int device_group_get(struct membership *g, struct device_group **ret_dg)
{
    int r = 0;

    *ret_dg = atomic_load_explicit(&g->device, memory_order_acquire);
    if (likely(*ret_dg))
        return 0;
    pthread_mutex_lock(&lock);
    *ret_dg = atomic_load(&g->device);
    if (!*ret_dg) {
        r = device_group_new(g, ret_dg);
        if (!r)
            atomic_store_explicit(&g->device, *ret_dg, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void device_group_flush(struct membership *g)
{
    struct device_group *dg = atomic_load(&g->device);

    assert(!dg || dg->group == g);
    if (dg)
        messages_flush(dg);
}

void device_group_free(struct membership *g)
{
    struct device_group *dg = atomic_load(&g->device);
    const struct cuda *cu;

    if (!dg)
        return;
    assert(dg->group == g);
    pthread_mutex_lock(&lock);
    list_remove(dg->dev->groups, dg, next);
    pthread_mutex_unlock(&lock);
    path_leave(dg);
    absent_free(&dg->failure.question);
    cu = driver(NULL);
    for (struct stream_lane *next, *l = dg->lanes; l;
         l = next) { /* what is in them is carried out */
        struct scope scope;

        next = l->next;
        if (scope_enter_context("leave", l->ctx, &scope) == 0) {
            cu->stream_free(l->down);
            cu->stream_free(l->up);
            cu->event_free(l->called);
            scope_leave(&scope);
        }
        free(l);
    }
    pthread_mutex_destroy(&dg->lock);
    pthread_mutex_destroy(&dg->failure.lock);
    free(dg);
}

void device_free(struct commd_context *ctx)
{
    struct device *dev = atomic_exchange(&ctx->device, NULL);

    if (!dev)
        return;
    assert(!dev->groups);
    lander_stop(dev);
    path_end(atomic_exchange(&dev->session, NULL));
    staging_fini(&dev->staging);
    dev->staging.limit = 0; /* what lands later goes at once */
    if (device_reap(dev)) {
        device_destroy(dev);
        return;
    }
    pthread_mutex_lock(&lock);
    dev->next = gone;
    gone = dev;
    pthread_mutex_unlock(&lock);
}

/* ---- where buffers are ----------------------------------------------------------------------- */

struct whereabouts {
    bool gpu, host;
    int which; /* GPU; -1: not known */
    bool two;
};

static void see(struct whereabouts *l, const void *p)
{
    int gpu = -1;

    assert(l->which >= -1);
    if (!p)
        return;
    if (!driver_owns(p, &gpu)) {
        l->host = true;
        return;
    }
    l->two |= l->gpu && l->which != gpu;
    l->gpu = true;
    l->which = gpu;
}

static void see_side(struct whereabouts *l, const struct side_place *p)
{
    assert(p->n == 0 || p->esize > 0);
    if (p->n && !p->blocks)
        see(l, p->base);
    for (unsigned k = 0; p->blocks && k < p->n; k++)
        if (side_block_bytes(p, k))
            see(l, p->blocks[k]);
}

static struct whereabouts find_all(const struct membership *g, const struct commd_op *op)
{
    struct whereabouts l = {.which = -1};
    struct side_places p;

    assert(op->coll >= 0);
    if (is_p2p(op)) {
        see(&l, op->coll == COMMD_SEND ? op->send : op->recv);
        return l;
    }
    p = side_places_of(g, op);
    see_side(&l, &p.send);
    see_side(&l, &p.recv);
    return l;
}

static int bad_gpu_buffers(const struct commd_op *op, const struct whereabouts *l)
{
    const char *name = op_name(op);

    assert(l->gpu);
    if (l->gpu && l->host)
        return error_set(error_mine(), COMMD_E_INVALID, name,
                         "%s: one buffer is on GPU %d and another in host memory; both must be in "
                         "the same kind",
                         name, l->which);
    return error_set(error_mine(), COMMD_E_INVALID, name,
                     "%s: its buffers are on different GPUs; they must be on one", name);
}

/* *ret_gpu: where they are; -1: on a GPU, not known on which; -2: in host memory. */
static int find_buffers(const struct membership *g, const struct commd_op *op, int *ret_gpu)
{
    const char *why;
    struct whereabouts l;

    assert(op->memory >= COMMD_MEMORY_ANY && op->memory <= COMMD_MEMORY_CUDA);
    *ret_gpu = -2;
    if (op->memory == COMMD_MEMORY_HOST || (op->memory == COMMD_MEMORY_ANY && !driver(NULL)))
        return 0;
    if (!driver(&why))
        return error_set(error_mine(), COMMD_E_INVALID, op_name(op),
                         "%s: the buffers are said to be on a GPU, but %s", op_name(op), why);
    if (op->memory == COMMD_MEMORY_CUDA && op->stream) { /* the stream has a context */
        *ret_gpu = -1;
        return 0;
    }
    l = find_all(g, op);
    if (l.two || (l.gpu && l.host))
        return bad_gpu_buffers(op, &l);
    if (l.gpu || op->memory == COMMD_MEMORY_CUDA)
        *ret_gpu = l.which;
    return 0;
}

/* ---- the calls ------------------------------------------------------------------------------- */

int device_way(struct membership *g, const struct commd_op *op, enum device_way *ret_way)
{
    struct device_group *dg;
    int gpu, r;

    *ret_way = DEVICE_HOST;
    r = find_buffers(g, op, &gpu);
    if (r)
        return r;
    dg = atomic_load_explicit(&g->device, memory_order_acquire);
    if (gpu >= -1) {
        *ret_way = DEVICE_GPU;
        return dg ? session_tell_failure(dg) : 0;
    }
    if (dg && op->coll == COMMD_SEND && atomic_load(&dg->sends))
        *ret_way = DEVICE_BEHIND;
    return 0;
}

int device_tell(struct membership *g, int r)
{
    struct device_group *dg = atomic_load_explicit(&g->device, memory_order_acquire);
    struct session *s = dg ? atomic_load(&dg->session) : NULL;

    assert(r == 0 || r == COMMD_E_ABORTED);
    if (!dg)
        return r;
    /* if another rank was told of a loss by this operation, then so is this one */
    if (s && atomic_load(&dg->pending) && !atomic_load(&s->lost))
        session_watch(s);
    return r ? failure_explain(dg) : session_tell_failure(dg);
}

static int start_op(struct membership *g, const struct commd_op *op, const struct telling *how)
{
    struct device_group *dg;
    int gpu, r = find_buffers(g, op, &gpu);

    if (!r)
        r = device_group_get(g, &dg);
    if (r)
        return r;
    assert(dg->group == g);
    if (gpu < -1) {
        r = message_behind(dg, op, how);
        return r || how->ret_work || how->on_done ? r : device_tell(g, 0);
    }
    if (group_has_failed(g, error_mine()))
        return error_mine()->code;
    if (is_p2p(op))
        return message_start(dg, op, gpu, how);
    return path_start(dg, op, gpu, how);
}

int device_run(struct membership *g, const struct commd_op *op, struct commd_status *ret_status)
{
    struct telling how = {.wait = true};
    struct commd_work *w;
    int r;

    assert(is_p2p(op) || !ret_status);
    if (!ret_status)
        return start_op(g, op, &how);
    how.ret_work = &w;
    r = start_op(g, op, &how);
    if (r)
        return r;
    assert(w->p2p);
    r = commd_work_wait(w, -1);
    if (!r)
        *ret_status = w->p2p->status;
    commd_work_free(w);
    return r;
}

int device_start(struct membership *g, const struct commd_op *op, commd_done_fn on_done, void *arg,
                 struct commd_work **ret_work)
{
    struct telling how = {.on_done = on_done, .arg = arg, .ret_work = ret_work};

    return start_op(g, op, &how);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* One of a batch. *ret_gate stays NULL for one in host memory. */
static int start_part(struct membership *g, const struct commd_op *op, struct commd_work *batch,
                      struct gate **ret_gate)
{
    struct telling how = {.on_done = async_part_done, .arg = batch, .ret_gate = ret_gate};
    enum device_way way;
    int r = device_way(g, op, &way);

    assert(!*ret_gate);
    if (r)
        return r;
    if (way != DEVICE_HOST)
        return start_op(g, op, &how);
    return async_start(g, op, async_part_done, batch, NULL);
}

int device_start_batch(struct membership *g, const struct commd_op *ops, unsigned n,
                       commd_done_fn on_done, void *arg, struct commd_work **ret_work)
{
    struct gate **gates = calloc(n, sizeof *gates);
    struct commd_work *batch;
    unsigned ngates = 0;
    int r;

    assert(n > 0);
    if (!gates)
        return error_set(error_mine(), COMMD_E_NOMEM, "start_batch", "no memory for %u operations",
                         n);
    r = async_batch_new(g->ctx, ops, n, on_done, arg, &batch);
    if (r) {
        free(gates);
        return r;
    }
    for (unsigned i = 0; i < n; i++) {
        if (start_part(g, &ops[i], batch, &gates[ngates])) /* the work tells of it */
            async_part_done(batch, error_mine());
        ngates += gates[ngates] != NULL;
    }
    assert(ngates <= n);
    batch->gates = gates;
    /* a stream cannot wait for what is in host memory: then the caller does */
    batch->ngates = ngates;
    batch->mixed = ngates < n;
    if (ret_work)
        *ret_work = batch;
    else
        work_unref(batch);
    return 0;
}

void device_watch(struct commd_context *ctx)
{
    struct device *dev = ctx->device;

    assert_held(&ctx->plock);
    if (!dev)
        return;
    if (ctx->landing)
        sessions_watch(dev);
    pthread_mutex_lock(&lock);
    for (struct device_group *dg = dev->groups; dg; dg = dg->next)
        failure_watch(dg);
    pthread_mutex_unlock(&lock);
}
