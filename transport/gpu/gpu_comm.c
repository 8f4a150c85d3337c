/* gpu_comm.c - operations in which NCCL takes part: those of groups whose ranks are on several
 * GPUs.
 *
 * They are launched one after the other on this node, in an order that is the same on all nodes
 * (gpu_order.c): NCCL's kernels wait for each other, and two that are launched in different orders
 * on two GPUs would wait for ever. One is being launched at a time (gpu->now):
 *   COMM    the communicator is made, if there is none of these GPUs yet
 *   ROUND   moves before it, and the calls, in one NCCL group over all GPUs of this node
 *   CALLS   NCCL enqueues them, in the background; then moves after it, and the next round
 * Behind the last round it is on the streams, and the next operation begins. Nothing is launched
 * whose inputs are not there on all nodes, so what runs does not wait for a client.
 *
 * Communicators belong to the GPUs that they connect, not to a group or a user: the second group
 * over the same GPUs finds one. They never block (`blocking` 0): their state is polled.
 *
 * What if NCCL fails, or what runs does not end within --timeout: nothing can be trusted that its
 * kernels hold up, so gpu_fatal() tells all pending operations why, and the process ends. */
#include "transport/gpu/gpu.h"

#include <stdio.h>

#include "shm/util/wait.h"

enum { COMMS_MOST = 32, COMMS_CHECK_MS = 50 };

/* One rank of a communicator for each unit of this node. */
struct gcomm {
    LIST_ENTRY(gcomm) link;
    uint32_t nunits, nhere;
    struct cu_uuid *units; /* owned; nunits entries, in the order of ranks */
    nccl_comm *comm;       /* owned; nhere entries */
    struct gdevice **dev;  /* owned; likewise */
    uint64_t number;       /* of its id: the same on all nodes */
    unsigned flying;       /* operations that use it */
    uint64_t used_ms;
    bool ready;
};

/* ---- errors ------------------------------------------------------------------------------------
 */

static _Noreturn void nccl_fatal(struct gpu *g, nccl_comm comm, nccl_result r, const char *what)
{
    const struct gop *op = g->now;
    char text[200];

    nccl_text(&g->nccl, comm, r, text, sizeof text);
    if (op)
        gpu_fatal(g, "NCCL failed in %s of group \"%s\": %s", what, op->group->name, text);
    gpu_fatal(g, "NCCL failed in %s: %s", what, text);
}

static void nccl_check(struct gpu *g, nccl_comm comm, nccl_result r, const char *what)
{
    if (r != NCCL_SUCCESS && r != NCCL_IN_PROGRESS)
        nccl_fatal(g, comm, r, what);
}

/* Has everything been enqueued, or made? */
static bool comm_settled(struct gpu *g, const struct gcomm *c, const char *what)
{
    bool settled = true;

    for (unsigned i = 0; i < c->nhere; i++) { /* all: while one goes on another may have failed */
        nccl_result state = NCCL_SUCCESS;

        nccl_check(g, c->comm[i], g->nccl.async_error(c->comm[i], &state), what);
        nccl_check(g, c->comm[i], state, what);
        settled &= state == NCCL_SUCCESS;
    }
    return settled;
}

/* ---- communicators -----------------------------------------------------------------------------
 */

static struct gcomm *comm_find(const struct ggroup *gr)
{
    struct gcomm *c;

    LIST_FOREACH(c, &gr->g->comms, link) {
        uint32_t u = 0;

        while (c->nunits == gr->nunits && u < c->nunits &&
               !memcmp(&c->units[u], &gr->units[u].uuid, sizeof c->units[u]))
            u++;
        if (u == gr->nunits)
            return c;
    }
    return NULL;
}

uint64_t comm_number(const struct ggroup *gr)
{
    const struct gcomm *c = comm_find(gr);

    return c ? c->number : 0;
}

unsigned comm_count(const struct gpu *g, const struct gdevice *d)
{
    const struct gcomm *c;
    unsigned n = 0;

    LIST_FOREACH(c, &g->comms, link)
        for (unsigned i = 0; i < c->nhere; i++)
            n += c->dev[i] == d;
    return n;
}

static void comm_free(struct gcomm *c)
{
    free(c->units);
    free(c->comm);
    free(c->dev);
    free(c);
}

/* Nothing of it runs. Aborted, not destroyed: that waits for nobody. */
static void comm_del(struct gpu *g, struct gcomm *c)
{
    for (unsigned i = 0; i < c->nhere; i++)
        g->nccl.abort(c->comm[i]);
    g->current = NULL;
    LIST_REMOVE(c, link);
    g->ncomms--;
    comm_free(c);
}

/* The one that was not used for the longest time, if there are as many as are kept. */
static void comm_evict(struct gpu *g)
{
    struct gcomm *c, *oldest = NULL;

    if (g->ncomms < COMMS_MOST)
        return;
    LIST_FOREACH(c, &g->comms, link)
        if (!c->flying && (!oldest || c->used_ms < oldest->used_ms))
            oldest = c;
    if (oldest)
        comm_del(g, oldest);
}

static struct gcomm *comm_alloc(const struct ggroup *gr)
{
    struct gcomm *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->nunits = gr->nunits;
    c->nhere = gr->nhere;
    c->units = calloc(c->nunits, sizeof *c->units);
    c->comm = calloc(c->nhere, sizeof(nccl_comm));
    c->dev = calloc(c->nhere, sizeof(struct gdevice *));
    if (!c->units || !c->comm || !c->dev) {
        comm_free(c);
        return NULL;
    }
    for (uint32_t u = 0; u < c->nunits; u++)
        c->units[u] = gr->units[u].uuid;
    for (uint32_t u = 0; u < c->nhere; u++)
        c->dev[u] = gr->here[u].dev;
    return c;
}

static uint64_t comm_id_number(const struct nccl_id *id)
{
    uint64_t h = 14695981039346656037u;

    for (unsigned i = 0; i < sizeof id->bytes; i++)
        h = (h ^ (uint8_t)id->bytes[i]) * 1099511628211u;
    return h | 1;
}

void comm_new_id(struct gpu *g, struct nccl_id *ret)
{
    nccl_check(g, NULL, g->nccl.get_id(ret), "making an id");
    g->current = NULL;
}

/* Begins to make it: the ranks of all nodes meet in the background. */
static struct gcomm *comm_begin(struct gop *op)
{
    struct ggroup *gr = op->group;
    struct gpu *g = gr->g;
    struct nccl_config config = nccl_config(g->nccl.version);
    struct gcomm *c = comm_find(gr);

    if (c) /* another node does not have it any more */
        comm_del(g, c);
    comm_evict(g);
    c = comm_alloc(gr);
    if (!c)
        gpu_fatal(g, "no memory for a communicator");
    config.blocking = 0;
    c->number = comm_id_number(&op->id);
    nccl_check(g, NULL, g->nccl.group_start(), "ncclGroupStart");
    for (unsigned u = 0; u < c->nhere; u++) {
        device_check(c->dev[u], device_use(c->dev[u]), "cuCtxSetCurrent");
        nccl_check(
            g, NULL,
            g->nccl.init(&c->comm[u], (int)c->nunits, op->id, (int)gr->here[u].number, &config),
            "ncclCommInitRankConfig");
    }
    nccl_check(g, NULL, g->nccl.group_end(), "making a communicator");
    g->current = NULL;
    LIST_INSERT_HEAD(&g->comms, c, link);
    g->ncomms++;
    return c;
}

/* ---- before it is its turn ----------------------------------------------------------------------
 */

static void ready_failed(struct gop *op, int code, const char *why)
{
    if (op->group->nnodes == 1)
        op_fail(op, code, -1, 0, why);
    else
        wire_ready(op, code, -1, why);
}

bool comm_ready(struct gop *op)
{
    struct ggroup *gr = op->group;
    const char *why = op->planned ? NULL : launch_plan(op);

    op->planned = true;
    if (why) {
        ready_failed(op, COMMD_E_INVALID, why);
        return true;
    }
    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = &gr->here[u].dev->stream[STREAM_NCCL];
        int r = stream_scratch(s, launch_scratch(op, u));

        if (r < 0)
            ready_failed(op, r, s->why);
        if (r <= 0)
            return r < 0;
    }
    op->state = OP_ORDER;
    group_rest(gr);
    op->comm_number = comm_number(gr);
    op->order.group = gr->id ^ (uint64_t)gr->user->uid << 32 ^ gr->epoch << 48;
    op->order.seq = op->seq;
    gpu_order_ready(&gr->g->order, &op->order, gr->nnodes == 1);
    if (gr->nnodes > 1)
        wire_ready(op, 0, -1, "");
    return true;
}

bool comm_drop(struct gop *op)
{
    if (op->state == OP_INPUTS)
        return true;
    /* other nodes may have launched what was agreed upon, and would wait for us */
    if (op == op->group->g->now || (op->group->nnodes > 1 && (op->order.state == GPU_ORDER_AGREED ||
                                                              wire_promised(op->group))))
        return false;
    gpu_order_drop(&op->group->g->order, &op->order);
    return true;
}

/* ---- launching ---------------------------------------------------------------------------------
 */

/* The calls of one unit. */
struct calling {
    struct gpu *g;
    nccl_comm comm;
    cu_stream s;
};

static void call(void *arg, const struct gpu_call *k)
{
    const struct calling *to = arg;
    const struct nccl *nc = &to->g->nccl;
    const void *send = (const void *)(uintptr_t)k->send;
    void *recv = (void *)(uintptr_t)k->recv;
    nccl_result r = NCCL_E_INTERNAL;

    switch ((enum gpu_call_kind)k->kind) {
    case GPU_ALL_REDUCE:
        r = nc->all_reduce(send, recv, k->count, k->type, k->op, to->comm, to->s);
        break;
    case GPU_REDUCE:
        r = nc->reduce(send, recv, k->count, k->type, k->op, (int)k->unit, to->comm, to->s);
        break;
    case GPU_BROADCAST:
        r = nc->broadcast(send, recv, k->count, k->type, (int)k->unit, to->comm, to->s);
        break;
    case GPU_ALL_GATHER:
        r = nc->all_gather(send, recv, k->count, k->type, to->comm, to->s);
        break;
    case GPU_REDUCE_SCATTER:
        r = nc->reduce_scatter(send, recv, k->count, k->type, k->op, to->comm, to->s);
        break;
    case GPU_SEND:
        r = nc->send(send, k->count, k->type, (int)k->unit, to->comm, to->s);
        break;
    case GPU_RECV:
        r = nc->recv(recv, k->count, k->type, (int)k->unit, to->comm, to->s);
        break;
    }
    nccl_check(to->g, to->comm, r, "a call");
}

static void launch_round(struct gpu *g)
{
    struct gop *op = g->now;
    struct ggroup *gr = op->group;

    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = &gr->here[u].dev->stream[STREAM_NCCL];

        device_check(s->dev, device_use(s->dev), "cuCtxSetCurrent");
        op->plan[u].at = s->scratch;
        launch_phase(op, u, s, op->round, GPU_PACK);
        launch_phase(op, u, s, op->round, GPU_BEFORE);
    }
    nccl_check(g, NULL, g->nccl.group_start(), "ncclGroupStart");
    for (unsigned u = 0; u < gr->nhere; u++) {
        struct calling to = {g, op->comm->comm[u], gr->here[u].dev->stream[STREAM_NCCL].s};
        struct gpu_sink sink = {.arg = &to, .call = call};

        gpu_plan_phase(&op->plan[u], op->round, GPU_CALLS, &sink);
    }
    nccl_check(g, NULL, g->nccl.group_end(), "an operation");
    g->current = NULL;
}

static void launch_after(struct gpu *g)
{
    struct gop *op = g->now;
    struct ggroup *gr = op->group;

    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = &gr->here[u].dev->stream[STREAM_NCCL];

        device_check(s->dev, device_use(s->dev), "cuCtxSetCurrent");
        launch_phase(op, u, s, op->round, GPU_AFTER);
    }
    op->round++;
}

static void launch_done(struct gpu *g)
{
    struct gop *op = g->now;
    struct ggroup *gr = op->group;

    g->now = NULL;
    op->state = OP_FLYING;
    if (op->comm) {
        op->comm->flying++;
        op->comm->used_ms = now_ms();
    }
    gr->flying++;
    for (unsigned u = 0; u < gr->nhere; u++) {
        device_check(gr->here[u].dev, device_use(gr->here[u].dev), "cuCtxSetCurrent");
        launch_end(op, u, &gr->here[u].dev->stream[STREAM_NCCL]);
    }
    op_launched(gr);
}

void comm_landed(struct gop *op)
{
    if (op->comm)
        op->comm->flying--;
}

/* Is there a communicator for it, which all nodes have? Begins to make one if not. False: not yet.
 */
static bool find_comm(struct gpu *g)
{
    struct gop *op = g->now;
    struct gcomm *c = comm_find(op->group);

    if (!op->comm) {
        if (!c || c->number != op->comm_number) {
            if (c && c->flying) /* of operations whose other nodes are gone */
                return false;
            if (op->group->nnodes == 1)
                comm_new_id(g, &op->id);
            c = comm_begin(op);
        }
        op->comm = c;
    }
    if (!op->comm->ready)
        op->comm->ready = comm_settled(g, op->comm, "making a communicator");
    return op->comm->ready;
}

static bool room_on_streams(struct gpu *g)
{
    const struct ggroup *gr = g->now->group;

    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = &gr->here[u].dev->stream[STREAM_NCCL];

        if (s->nflying >= GPU_STREAM_DEPTH || s->growing)
            return false;
    }
    return true;
}

/* One step; false: it has to wait. */
static bool now_turn(struct gpu *g)
{
    struct gop *op = g->now;

    switch (g->stage) {
    case STAGE_COMM: /* a barrier needs none: that it is its turn says that all have come */
        if (!room_on_streams(g) || (op->plan[0].rounds && !find_comm(g)))
            return false;
        g->stage = op->plan[0].rounds ? STAGE_ROUND : STAGE_END;
        return true;
    case STAGE_ROUND:
        launch_round(g);
        g->stage = STAGE_CALLS;
        return true;
    case STAGE_CALLS:
        if (!comm_settled(g, op->comm, "an operation"))
            return false;
        launch_after(g);
        g->stage = op->round < op->plan[0].rounds ? STAGE_ROUND : STAGE_END;
        return true;
    case STAGE_END:
        launch_done(g);
        return true;
    }
    return false;
}

/* Of what runs, errors only show when they are asked for. */
static void comms_check(struct gpu *g)
{
    struct gcomm *c;

    if (now_ms() - g->comms_ms < COMMS_CHECK_MS)
        return;
    g->comms_ms = now_ms();
    LIST_FOREACH(c, &g->comms, link)
        if (c->flying)
            comm_settled(g, c, "an operation");
}

bool comm_turn(struct gpu *g)
{
    bool moved = false;

    comms_check(g);
    if (!g->now) {
        struct gpu_order_op *next = gpu_order_next(&g->order);

        if (!next)
            return false;
        g->now = container_of(next, struct gop, order);
        g->stage = STAGE_COMM;
        g->now_since_ms = now_ms();
    }
    while (g->now && now_turn(g)) {
        moved = true;
        if (g->now)
            g->now_since_ms = now_ms();
    }
    if (g->now && now_ms() - g->now_since_ms > (uint64_t)g->timeout_ms)
        gpu_fatal(g, "NCCL does not come forward: %s of group \"%s\" stands still for %d ms",
                  coll_name(g->now->of[0]->desc.coll), g->now->group->name, g->timeout_ms);
    return moved;
}
