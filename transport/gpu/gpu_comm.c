/* gpu_comm.c - operations in which NCCL takes part: those of groups whose ranks are on several
 * GPUs.
 *
 * They are launched one after the other on this node, in an order that is the same on all nodes
 * (gpu_order.c): NCCL's kernels wait for each other, and two kernels that are launched in different
 * orders on two GPUs would wait for ever. One operation is being launched at a time (gpu->now);
 * gpu_life.h has its stages. A part of it is a round of its plan: moves before the calls; the
 * calls, in one NCCL group over all GPUs of this node, which NCCL enqueues in the background; moves
 * after them. After a round that is not the last one the operation goes back into the order, so
 * that others come in between. Its next turn comes when one of its rounds runs at most: so others
 * wait for two rounds at most. An operation of which a part is launched is seen to its end, and so
 * is one that the nodes have agreed upon, whoever leaves, and whatever becomes of the group.
 * Nothing is launched whose inputs are not there on all nodes, so what runs waits for no client.
 *
 * What if NCCL fails, or stands still for --timeout: gpu_nccl.c aborts the communicator, and the
 * group is broken. The part of the operation that is on the streams by then gets its end there all
 * the same: the streams pass it when the abort has ended what hangs. */
#include "transport/gpu/gpu_op.h"

#include <stdio.h>

#include "shm/util/wait.h"

/* ---- its stages ------------------------------------------------------------------------------ */

static void now_step(struct gpu *g, enum launch_event event)
{
    int stage = launch_step(g->stage, event);

    assert(stage >= 0);
    g->stage = stage;
    g->now_since_ms = now_ms();
    if (stage == LAUNCH_NONE)
        g->now = NULL;
    assert(!g->now == (stage == LAUNCH_NONE));
}

/* Nothing of the operation that is being launched is on a stream: it ends here. */
static void now_fail(struct gpu *g, const char *text)
{
    struct ggroup *gr = g->now->group;

    now_step(g, LAUNCH_OVER);
    if (gr->broken)
        group_drop_op(gr);
    else
        group_break(gr, COMMD_E_GPU_LOST, -1, 0, text);
}

/* ---- before it is its turn ------------------------------------------------------------------- */

static void ready_failed(struct gop *op, int code, const char *why)
{
    if (op->group->nnodes == 1)
        op_fail(op, code, -1, 0, why);
    else
        wire_ready(op, 0, code, -1, why);
}

bool comm_ready(struct gop *op)
{
    struct ggroup *gr = op->group;
    const char *why = op->planned ? NULL : launch_plan(op);
    uint32_t part;

    assert(op->state == OP_INPUTS && op == gr->op && !op->comm);
    op->planned = true;
    if (why) {
        ready_failed(op, COMMD_E_INVALID, why);
        return true;
    }
    if (!user_may(op)) /* operations that nodes have agreed upon end without our doing */
        return false;
    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = &gr->here[u].dev->stream[STREAM_NCCL];
        int r = stream_scratch(s, launch_scratch(op, u));

        if (r == 0)
            user_waits(op, u);
        if (r < 0)
            ready_failed(op, r, s->why);
        if (r <= 0)
            return r < 0;
    }
    op->state = OP_ORDER;
    part = launch_wish(op); /* before the operation itself is charged for */
    user_charge(op);
    group_rest(gr);
    comm_take(op, comm_find(gr));
    op->order.seq = op->seq;
    if (gr->nnodes == 1) {
        user_count(op);
        launch_cut(op, part, launch_cell(op));
    }
    gpu_order_ready(&gr->g->order, &op->order, gr->nnodes == 1);
    if (gr->nnodes > 1)
        wire_ready(op, part, 0, -1, "");
    return true;
}

bool comm_drop(struct gop *op)
{
    if (op->state == OP_INPUTS)
        return true;
    /* other nodes may have launched what was agreed upon, and would wait for us */
    if (op->state == OP_PARTS || op == op->group->g->now ||
        (op->group->nnodes > 1 &&
         (op->order.state == GPU_ORDER_AGREED || wire_promised(op->group))))
        return false;
    gpu_order_drop(&op->group->g->order, &op->order);
    return true;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* The calls of one unit. */
struct calling {
    struct gpu *g;
    nccl_comm comm;
    cu_stream s;
    nccl_result *r; /* of the call that has failed: no other one is made */
};

static void call(void *arg, const struct gpu_call *k)
{
    const struct calling *to = arg;
    const struct nccl *nc = &to->g->nccl;
    const void *send = (const void *)(uintptr_t)k->send;
    void *recv = (void *)(uintptr_t)k->recv;
    nccl_result r = NCCL_E_INTERNAL;

    if (*to->r)
        return;
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
    if (nccl_failed(r))
        *to->r = r;
}

/* NCCL's stream of the GPU; its context becomes the current one. */
static struct gstream *unit_stream(const struct gop *op, unsigned unit)
{
    struct gdevice *d = op->group->here[unit].dev;

    device_check(d, device_use(d), "cuCtxSetCurrent");
    return &d->stream[STREAM_NCCL];
}

static void launch_round(struct gpu *g)
{
    struct gop *op = g->now;
    struct ggroup *gr = op->group;
    nccl_result r, end;

    for (unsigned u = 0; u < gr->nhere; u++) {
        struct gstream *s = unit_stream(op, u);

        op->plan[u].at = s->scratch;
        launch_phase(op, u, s, op->round, GPU_PACK);
        launch_phase(op, u, s, op->round, GPU_BEFORE);
    }
    assert(comm_lives(op->comm->state) && op->comm->nhere == gr->nhere);
    r = g->nccl.group_start();
    for (unsigned u = 0; u < gr->nhere; u++) {
        struct calling to = {g, op->comm->here[u].comm, gr->here[u].dev->stream[STREAM_NCCL].s, &r};
        struct gpu_sink sink = {.arg = &to, .call = call};

        gpu_plan_phase(&op->plan[u], op->round, GPU_CALLS, &sink);
    }
    end = g->nccl.group_end();
    r = r ? r : end;
    if (nccl_failed(r))
        comm_failed(g, op->comm, NULL, r, "an operation");
    g->current = NULL;
}

static void launch_after(struct gop *op)
{
    for (unsigned u = 0; u < op->group->nhere; u++)
        launch_phase(op, u, unit_stream(op, u), op->round, GPU_AFTER);
    op->round++;
}

/* The operation is on streams from here on. */
static void launch_begun(struct gop *op)
{
    if (op->comm)
        op->comm->used_ms = now_ms();
    if (op->state == OP_PARTS)
        return;
    assert(op->state == OP_ORDER);
    op->state = OP_PARTS;
    op->group->flying++;
    if (op->comm)
        op->comm->flying++;
}

/* The operation is held until the flights that its next part needs have landed. */
static void hold(struct gop *op)
{
    op->round++;
    op->order.held = false;
    for (unsigned u = 0; u < op->group->nhere; u++)
        op->order.held |= launch_flight(op, u)->up;
    op->round--;
}

void comm_part_landed(struct gop *op)
{
    hold(op);
}

/* A part of the operation is on the streams, and others come; or @last: all of it is. */
static void launch_over(struct gpu *g, bool last)
{
    struct gop *op = g->now;

    now_step(g, LAUNCH_OVER);
    launch_begun(op);
    if (last)
        op->state = OP_FLYING;
    for (unsigned u = 0; u < op->group->nhere; u++)
        (last ? launch_end : launch_part)(op, u, unit_stream(op, u));
    if (last) {
        op_launched(op->group);
        return;
    }
    hold(op);
    gpu_order_again(&g->order, &op->order);
}

/* The communicator has failed after a part of the operation was put on the streams. The memory that
 * it names stays until that part has ended. Parts that are missing are left out. */
static void now_abandon(struct gpu *g)
{
    struct gop *op = g->now;

    assert(g->stage == LAUNCH_CALLS || op->state == OP_PARTS);
    op->round++; /* as if this part were complete */
    op_retell(op, COMMD_E_GPU_LOST, op->comm->why);
    group_break(op->group, COMMD_E_GPU_LOST, -1, 0, op->comm->why); /* but for this operation */
    launch_over(g, true);
}

void comm_landed(struct gop *op)
{
    assert(op->state == OP_FLYING && op != op->group->g->now);
    assert(!op->comm || (op->comm->flying && op->comm->flying <= op->comm->users));
    if (op->comm)
        op->comm->flying--;
}

/* The communicator of the operation that is being launched has failed. */
static void now_lost(struct gpu *g)
{
    assert(!comm_lives(g->now->comm->state));
    jobs_gate(g->jobs, GATE_LAUNCH_END);
    if (g->now->state == OP_PARTS || g->stage == LAUNCH_CALLS)
        now_abandon(g);
    else
        now_fail(g, g->now->comm->why);
}

/* Does the operation hold a communicator that all nodes have? Begins to make one if not. False: not
 * yet, or the operation has failed. */
static bool find_comm(struct gpu *g)
{
    struct gop *op = g->now;
    struct gcomm *c;

    if (!op->comm && op->group->nnodes == 1) /* another operation may have made one meanwhile */
        comm_take(op, comm_find(op->group));
    if (op->comm)
        return true;
    if (!comm_room(op->group))
        return false;
    c = comm_begin(op);
    if (c)
        comm_take(op, c);
    else
        now_fail(g, "commd-gpu cannot make a communicator of NCCL");
    return c;
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

/* Has what the operation waits for in its stage come? Then the next stage begins. */
static bool now_turn(struct gpu *g)
{
    struct gop *op = g->now;

    if (g->stage == LAUNCH_ROOM && !room_on_streams(g))
        return false;
    if (op->plan[0].rounds && op->comm && !comm_lives(op->comm->state)) {
        /* NCCL may put something on the streams until it is aborted */
        if (g->stage == LAUNCH_CALLS && op->comm->state != COMM_ABORTED)
            return false;
        now_lost(g);
        return true;
    }
    switch (g->stage) {
    case LAUNCH_ROOM:
        if (!op->plan[0].rounds) { /* a barrier: if it is its turn, all have come */
            launch_over(g, true);
            return true;
        }
        if (!find_comm(g))
            return false;
        now_step(g, LAUNCH_HELD);
        return true;
    case LAUNCH_COMM:
        if (op->comm->state == COMM_MAKING) {
            if (!comm_settled(g, op->comm, "making a communicator"))
                return false;
            comm_change(op->comm, COMM_MADE);
        }
        now_step(g, LAUNCH_READY);
        return true;
    case LAUNCH_ROUND:
        if (op->group->nhere > 1 && !jobs_gate(g->jobs, GATE_LAUNCH)) {
            if (comms_any(g, COMM_ABORTING)) /* it has a limit of its own */
                g->now_since_ms = now_ms();
            return false;
        }
        now_step(g, LAUNCH_CALLED);
        launch_round(g);
        return true;
    case LAUNCH_CALLS:
        if (!comm_settled(g, op->comm, "an operation"))
            return false;
        jobs_gate(g->jobs, GATE_LAUNCH_END);
        launch_after(op);
        launch_over(g, op->round == op->plan[0].rounds);
        return true;
    case LAUNCH_NONE:
    case LAUNCH_STAGES:
        break;
    }
    return false;
}

/* How long the operation may wait for NCCL, or for the jobs' thread. What it waits for in ROOM has
 * limits of its own. */
static void now_check(struct gpu *g)
{
    struct gop *op = g->now;

    if (g->stage < LAUNCH_COMM || !comm_lives(op->comm->state) ||
        now_ms() - g->now_since_ms <= (uint64_t)g->timeout_ms)
        return;
    comm_fail(g, op->comm, "%s: %s of group \"%s\" stands still for %d ms",
              g->stage == LAUNCH_ROUND ? "a call of the driver does not come back"
                                       : "NCCL does not come forward",
              coll_name(op->of[0]->desc.coll), op->group->name, g->timeout_ms);
}

bool comm_turn(struct gpu *g)
{
    bool moved = false;

    comms_turn(g);
    assert(!g->now == (g->stage == LAUNCH_NONE));
    if (!g->now) {
        struct gpu_order_op *next = gpu_order_next(&g->order);

        if (!next)
            return false;
        g->now = container_of(next, struct gop, order);
        now_step(g, LAUNCH_TAKE);
    }
    while (g->now && now_turn(g))
        moved = true;
    if (g->now)
        now_check(g);
    return moved;
}
