/* gpu_ranks.c - see gpu_ranks.h. */
#include "tests/lib/gpu_ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "client/lib/arena/arena.h"

struct cuda cu;

void gpu_ok(cu_result r)
{
    char text[128];

    if (!r)
        return;
    cuda_text(&cu, r, text, sizeof text);
    fprintf(stderr, "CUDA: %s\n", text);
    abort();
}

void gpu_load(void)
{
    const char *path = getenv("COMMD_LIBCUDA");
    cu_context ctx;
    char why[256];

    path = path ? path : "tests/fakecuda/libcuda.so.1";
    setenv("COMMD_LIBCUDA", path, 1);
    if (cuda_load(path, 0, &cu, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        abort();
    }
    gpu_ok(cu.init(0));
    gpu_ok(cu.primary_retain(&ctx, 0));
    gpu_ok(cu.ctx_set(ctx));
}

void *gpu_symbol(const char *name)
{
    void *p = dlsym(cu.library, name);

    if (!p)
        abort();
    return p;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static struct commd_context *context_new(void)
{
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    ctx->pid = getpid();
    ctx->generation = fork_generation();
    ctx->sock = ctx->doorbell = ctx->back.sock = -1;
    ctx->back.refused_ms = 1; /* there is no commd, and nobody waits for one */
    ctx->timeout_ms = -1;
    ctx->finished_tail = &ctx->finished;
    atomic_store(&ctx->lost, true);
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

static void context_free(struct commd_context *ctx)
{
    async_stop(ctx);
    device_free(ctx);
    arena_forget(ctx);
    pthread_mutex_destroy(&ctx->lock);
    pthread_mutex_destroy(&ctx->plock);
    pthread_cond_destroy(&ctx->cond);
    pthread_cond_destroy(&ctx->pcond);
    free(ctx);
}

static void member_new(struct gpu_ranks *g, unsigned rank, int fd, uint64_t number)
{
    struct awaited w = {.fd = fd, .doorbell = -1};

    w.reply.joined.size = g->world;
    w.reply.joined.nnodes = 1;
    w.reply.joined.group = number;
    w.reply.joined.epoch = 1;
    w.reply.joined.members = calloc(g->world, sizeof(struct msg_member));
    w.reply.joined.nodes = calloc(1, MSG_NAME_MAX);
    g->group[rank] = handle_new(g->ctx[rank]);
    if (group_from_joined(g->ctx[rank], "gpu", rank, g->world, -1, &w, &g->group[rank]->now))
        abort();
}

static void members_new(struct gpu_ranks *g, uint64_t number)
{
    static const uint16_t rank_node[GPU_RANKS_MOST];
    struct board_geom geom = {.group = number,
                              .epoch = 1,
                              .world = g->world,
                              .nnodes = 1,
                              .nlocal = g->world,
                              .plans = PLAN_KNOWN,
                              .rank_node = rank_node};
    int fd;

    if (board_create(&geom, &fd, &g->ctl))
        abort();
    for (unsigned k = 0; k < g->world; k++)
        member_new(g, k, fd, number);
    close(fd);
}

struct gpu_ranks *gpu_ranks_new(unsigned world)
{
    struct gpu_ranks *g = calloc(1, sizeof *g);

    g->world = world;
    for (unsigned k = 0; k < world; k++)
        g->ctx[k] = context_new();
    members_new(g, 1);
    driver_look();
    return g;
}

struct gpu_ranks *gpu_ranks_beside(const struct gpu_ranks *g)
{
    struct gpu_ranks *other = calloc(1, sizeof *other);

    other->world = g->world;
    other->beside = true;
    memcpy(other->ctx, g->ctx, sizeof other->ctx);
    members_new(other, 2);
    for (unsigned k = 0; k < g->world; k++)
        other->group[k]->now->board.gpu = g->group[k]->now->board.gpu;
    return other;
}

void gpu_ranks_leave(struct gpu_ranks *g, unsigned rank)
{
    if (!g->group[rank])
        return;
    async_drop_group(g->group[rank]->now);
    handle_free(steal_ptr(g->group[rank]));
}

struct gpu_ranks *gpu_ranks_free(struct gpu_ranks *g)
{
    for (unsigned k = 0; k < g->world; k++)
        gpu_ranks_leave(g, k);
    for (unsigned k = 0; k < g->world && !g->beside; k++)
        context_free(g->ctx[k]);
    board_ctl_free(g->ctl);
    free(g);
    return NULL;
}

/* ---- the GPU --------------------------------------------------------------------------------- */

int32_t *gpu_ints(size_t n, int32_t value)
{
    cu_ptr p;

    gpu_ok(cu.mem_alloc(&p, n * sizeof(int32_t)));
    for (size_t i = 0; i < n; i++)
        ((int32_t *)(uintptr_t)p)[i] = value;
    return (int32_t *)(uintptr_t)p;
}

void gpu_free(void *p)
{
    gpu_ok(cu.mem_free((cu_ptr)(uintptr_t)p));
}

cu_stream gpu_stream(void)
{
    cu_stream s;

    gpu_ok(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static void wait_for(void *arg)
{
    _Atomic int *gate = arg;

    while (!atomic_load(gate))
        usleep(100);
}

void gpu_hold(cu_stream s, _Atomic int *gate)
{
    gpu_ok(cu.host_func(s, wait_for, gate));
}

bool gpu_passes(cu_stream s)
{
    for (unsigned i = 0; i < 10000; i++) {
        cu_result r = cu.stream_query(s);

        if (r != CU_E_NOT_READY)
            return r == 0;
        usleep(1000);
    }
    return false;
}
