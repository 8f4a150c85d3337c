/* api.c - the public calls: each checks its arguments, then calls the layer that does the work.
 * Every refusal says which argument is wrong and what is allowed. */
#include "client/lib/api/check.h"
#include "client/lib/arena/arena.h"
#include "client/lib/async/async.h"
#include "client/lib/device/device.h"
#include "client/lib/p2p/p2p_api.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>

enum { DEFAULT_TIMEOUT_S = 1800, DEFAULT_WARN_S = WAIT_LONG_MS / 1000 };

PUBLIC size_t commd_dtype_size(int dtype)
{
    return dtype < 0 ? 0 : dtype_size((unsigned)dtype);
}

/* ---- context --------------------------------------------------------------------------------- */

/* @zero: may it be 0? */
static int env_seconds(const char *name, int fallback_s, bool zero, int64_t *ret_ms)
{
    const char *s = getenv(name);
    char *end;
    double v;

    assert(fallback_s >= 0);
    *ret_ms = fallback_s * 1000;
    if (!s || !*s)
        return 0;
    v = strtod(s, &end);
    if (*end || !(v > 0 || (zero && v == 0)) || v > 1e9)
        return error_set(error_mine(), COMMD_E_INVALID, "connect",
                         "%s is \"%.40s\"; allowed: a number of seconds above 0%s", name, s,
                         zero ? ", or 0 for never" : "");
    *ret_ms = (int64_t)(v * 1000);
    return 0;
}

/* Has the caller's structure this field? */
#define HAS(options, field)                                                                        \
    ((options) && (options)->size >= offsetof(struct commd_options, field) + sizeof(options)->field)

/* "": nobody named a socket, so commd is searched for. */
static const char *named_socket(const struct commd_options *options)
{
    const char *s = options && options->socket ? options->socket : getenv("COMMD_SOCKET");

    return s ? s : "";
}

static void forked(void)
{
    fork_counted();
    alive_forked();
    arena_unlock();
}

static void before_fork(void)
{
    arena_lock();
    alive_lock();
}

static void after_fork(void)
{
    alive_unlock();
    arena_unlock();
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, forked);
}

static const struct context_hooks hooks = {
    .reconnected = arena_announce,
    .absent = absent_answer,
    .watch = device_watch,
};

static struct commd_context *context_alloc(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    if (!ctx)
        return NULL;
    pthread_once(&once, watch_forks);
    ctx->pid = getpid();
    ctx->generation = fork_generation();
    ctx->hooks = &hooks;
    ctx->sock = ctx->doorbell = ctx->back.sock = -1;
    ctx->finished_tail = &ctx->finished;
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

static void context_free(struct commd_context *ctx)
{
    assert(!ctx->groups && !ctx->active && !ctx->finished);
    /* commd has to see the end of the socket also when a forked child holds copies */
    if (ctx->sock >= 0)
        shutdown(ctx->sock, SHUT_RDWR);
    control_close(ctx);
    pthread_mutex_destroy(&ctx->lock);
    pthread_cond_destroy(&ctx->cond);
    pthread_mutex_destroy(&ctx->plock);
    pthread_cond_destroy(&ctx->pcond);
    free(ctx);
}

PUBLIC int commd_connect(const struct commd_options *options, struct commd_context **ret_context)
{
    struct commd_error *e = error_mine();
    struct commd_context *ctx;
    const char *path = named_socket(options);
    int64_t timeout, warn, limit;
    bool waits;
    int r;

    if (!ret_context || (options && options->size < sizeof(size_t)))
        return error_set(e, COMMD_E_INVALID, "connect",
                         "options.size must be sizeof(struct commd_options)");
    r = env_seconds("COMMD_TIMEOUT", DEFAULT_TIMEOUT_S, false, &timeout);
    if (!r)
        r = env_seconds("COMMD_WARN_AFTER", DEFAULT_WARN_S, true, &warn);
    if (r)
        return r;
    waits = HAS(options, waits_size) && options->waits_for;
    limit = HAS(options, timeout_ms) && options->timeout_ms ? options->timeout_ms : timeout;
    if (!waits)
        timeout = limit;
    ctx = context_alloc();
    if (!ctx)
        return error_set(e, COMMD_E_NOMEM, "connect", "no memory for a context");
    ctx->timeout_ms = timeout < 0 ? -1 : timeout;
    ctx->warn_ms = warn;
    ctx->search = !*path;
    if (waits) {
        snprintf(ctx->waits_for, sizeof ctx->waits_for, "%s", options->waits_for);
        ctx->waits_rank = options->waits_rank;
        ctx->waits_size = options->waits_size;
    }
    if ((size_t)snprintf(ctx->socket_path, sizeof ctx->socket_path, "%s", path) >=
        sizeof ctx->socket_path)
        r = error_set(e, COMMD_E_INVALID, "connect", "COMMD_SOCKET is longer than %zu bytes",
                      sizeof ctx->socket_path - 1);
    else
        r = control_open(ctx, deadline_in(limit));
    if (r) {
        context_free(ctx);
        return r;
    }
    driver_look();
    *ret_context = ctx;
    return 0;
}

PUBLIC void commd_disconnect(struct commd_context *ctx)
{
    if (!ctx)
        return;
    if (ctx->generation !=
        fork_generation()) { /* a forked child holds copies only: close them, tell nobody */
        control_close(ctx);
        return;
    }
    while (ctx->groups)
        commd_group_leave(ctx->groups);
    async_stop(ctx);
    device_free(ctx);
    arena_forget(ctx);
    control_end(ctx);
    context_free(ctx);
}

PUBLIC const char *commd_node_name(const struct commd_context *ctx)
{
    return ctx->node;
}

PUBLIC void commd_set_interrupt(struct commd_context *ctx, commd_interrupt_fn fn, void *arg)
{
    ctx->interrupt_arg = arg;
    ctx->interrupt = fn;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* A program built against an older commd.h gives less of it. */
enum { OP_SIZE_MIN = offsetof(struct commd_op, send_counts) };

static int take_op(const struct membership *g, const struct commd_op *op, struct commd_op *full,
                   const struct commd_op **ret_op)
{
    if (unlikely(!g || !op || op->size < OP_SIZE_MIN))
        return error_set(error_mine(), COMMD_E_INVALID, "run",
                         "group and op must not be NULL and op.size must be sizeof(struct "
                         "commd_op)");
    *ret_op = op;
    if (unlikely(op->size < sizeof *op)) {
        memset(full, 0, sizeof *full);
        memcpy(full, op, op->size);
        *ret_op = full;
    }
    if (unlikely((*ret_op)->memory) && check_memory(*ret_op))
        return COMMD_E_INVALID;
    return is_p2p(*ret_op) ? p2p_check(g, *ret_op) : check_op(g, *ret_op);
}

PUBLIC int commd_run(struct commd_group *group, const struct commd_op *op)
{
    struct membership *g = group_now(group);
    struct commd_op full;
    int r = take_op(g, op, &full, &op);

    if (unlikely(r))
        return r;
    if (device_takes(g, op, &r))
        return r ? r : device_run(g, op, NULL);
    return device_tells(g, op, is_p2p(op) ? p2p_run(g, op, NULL) : async_run(g, op));
}

PUBLIC int commd_start(struct commd_group *group, const struct commd_op *op, commd_done_fn on_done,
                       void *arg, struct commd_work **ret_work)
{
    struct membership *g = group_now(group);
    struct commd_op full;
    int r = take_op(g, op, &full, &op);

    if (unlikely(r))
        return r;
    if (device_takes(g, op, &r))
        return r ? r : device_start(g, op, on_done, arg, ret_work);
    return async_start(g, op, on_done, arg, ret_work);
}

/* As take_op(), of @n operations in an array: each has the size that the first one says. *ret_full
 * is to be freed. */
static int take_ops(const struct membership *g, const struct commd_op *ops, size_t n,
                    struct commd_op **ret_full, const struct commd_op **ret_ops)
{
    size_t size = ops->size;

    assert(n > 0);
    if (size < OP_SIZE_MIN || size > sizeof *ops) /* where the next one begins depends on it */
        return error_set(error_mine(), COMMD_E_INVALID, "start_batch",
                         "ops[0].size must be sizeof(struct commd_op), %zu bytes", sizeof *ops);
    *ret_full = size < sizeof *ops ? calloc(n, sizeof *ops) : NULL;
    *ret_ops = *ret_full ? *ret_full : ops;
    if (size < sizeof *ops && !*ret_full)
        return error_set(error_mine(), COMMD_E_NOMEM, "start_batch", "no memory for %zu operations",
                         n);
    for (size_t i = 0; i < n; i++) {
        const struct commd_op *given = (const void *)((const uint8_t *)ops + i * size), *op;
        struct commd_op full;
        int r;

        if (given->size != size)
            return error_set(error_mine(), COMMD_E_INVALID, "start_batch",
                             "ops[%zu].size is %zu, but that of ops[0] is %zu", i, given->size,
                             size);
        r = take_op(g, given, &full, &op);
        if (r)
            return r;
        if (*ret_full)
            (*ret_full)[i] = *op;
    }
    return 0;
}

PUBLIC int commd_start_batch(struct commd_group *group, const struct commd_op *ops, size_t n,
                             commd_done_fn on_done, void *arg, struct commd_work **ret_work)
{
    _cleanup_(freep) struct commd_op *full = NULL;
    struct membership *g = group_now(group);
    int r;

    if (!ops || n < 1 || n > INT32_MAX)
        return error_set(error_mine(), COMMD_E_INVALID, "start_batch",
                         "ops must not be NULL and n at least 1");
    r = take_ops(g, ops, n, &full, &ops);
    if (unlikely(r))
        return r;
    for (size_t i = 0; i < n; i++)
        if (device_takes(g, &ops[i], &r))
            return r ? r : device_start_batch(g, ops, (unsigned)n, on_done, arg, ret_work);
    return async_start_batch(g, ops, (unsigned)n, on_done, arg, ret_work);
}

static inline struct commd_op op_of(int coll, const void *send, void *recv, size_t count, int dtype,
                                    int redop, int root)
{
    struct commd_op op = op_nothing;

    op.coll = coll;
    op.send = send;
    op.recv = recv;
    op.count = count;
    op.dtype = dtype;
    op.redop = redop;
    op.root = root;
    return op;
}

PUBLIC int commd_all_reduce(struct commd_group *group, const void *send, void *recv, size_t count,
                            int dtype, int redop)
{
    struct commd_op op = op_of(COMMD_ALL_REDUCE, send, recv, count, dtype, redop, 0);

    return commd_run(group, &op);
}

PUBLIC int commd_reduce(struct commd_group *group, const void *send, void *recv, size_t count,
                        int dtype, int redop, int root)
{
    struct commd_op op = op_of(COMMD_REDUCE, send, recv, count, dtype, redop, root);

    return commd_run(group, &op);
}

PUBLIC int commd_broadcast(struct commd_group *group, void *buf, size_t count, int dtype, int root)
{
    struct commd_op op = op_of(COMMD_BROADCAST, NULL, buf, count, dtype, 0, root);

    return commd_run(group, &op);
}

PUBLIC int commd_all_gather(struct commd_group *group, const void *send, void *recv, size_t count,
                            int dtype)
{
    struct commd_op op = op_of(COMMD_ALL_GATHER, send, recv, count, dtype, 0, 0);

    return commd_run(group, &op);
}

PUBLIC int commd_all_gather_v(struct commd_group *group, const void *send, void *recv,
                              const size_t *counts, int dtype)
{
    struct commd_op op = op_of(COMMD_ALL_GATHER_V, send, recv, 0, dtype, 0, 0);

    op.recv_counts = counts;
    return commd_run(group, &op);
}

PUBLIC int commd_gather(struct commd_group *group, const void *send, void *recv, size_t count,
                        int dtype, int root)
{
    struct commd_op op = op_of(COMMD_GATHER, send, recv, count, dtype, 0, root);

    return commd_run(group, &op);
}

PUBLIC int commd_gather_v(struct commd_group *group, const void *send, size_t send_count,
                          void *recv, const size_t *recv_counts, int dtype, int root)
{
    struct commd_op op = op_of(COMMD_GATHER_V, send, recv, 0, dtype, 0, root);

    op.send_counts = &send_count;
    op.recv_counts = recv_counts;
    return commd_run(group, &op);
}

PUBLIC int commd_scatter(struct commd_group *group, const void *send, void *recv, size_t count,
                         int dtype, int root)
{
    struct commd_op op = op_of(COMMD_SCATTER, send, recv, count, dtype, 0, root);

    return commd_run(group, &op);
}

PUBLIC int commd_scatter_v(struct commd_group *group, const void *send, const size_t *send_counts,
                           void *recv, size_t recv_count, int dtype, int root)
{
    struct commd_op op = op_of(COMMD_SCATTER_V, send, recv, 0, dtype, 0, root);

    op.send_counts = send_counts;
    op.recv_counts = &recv_count;
    return commd_run(group, &op);
}

PUBLIC int commd_reduce_scatter(struct commd_group *group, const void *send, void *recv,
                                size_t count, int dtype, int redop)
{
    struct commd_op op = op_of(COMMD_REDUCE_SCATTER, send, recv, count, dtype, redop, 0);

    return commd_run(group, &op);
}

PUBLIC int commd_reduce_scatter_v(struct commd_group *group, const void *send, void *recv,
                                  const size_t *counts, int dtype, int redop)
{
    struct commd_op op = op_of(COMMD_REDUCE_SCATTER_V, send, recv, 0, dtype, redop, 0);

    op.send_counts = counts;
    return commd_run(group, &op);
}

PUBLIC int commd_all_to_all(struct commd_group *group, const void *send, void *recv, size_t count,
                            int dtype)
{
    struct commd_op op = op_of(COMMD_ALL_TO_ALL, send, recv, count, dtype, 0, 0);

    return commd_run(group, &op);
}

PUBLIC int commd_all_to_all_v(struct commd_group *group, const void *send,
                              const size_t *send_counts, void *recv, const size_t *recv_counts,
                              int dtype)
{
    struct commd_op op = op_of(COMMD_ALL_TO_ALL_V, send, recv, 0, dtype, 0, 0);

    op.send_counts = send_counts;
    op.recv_counts = recv_counts;
    return commd_run(group, &op);
}

PUBLIC int commd_barrier(struct commd_group *group)
{
    struct commd_op op = op_of(COMMD_BARRIER, NULL, NULL, 0, 0, 0, 0);

    return commd_run(group, &op);
}
