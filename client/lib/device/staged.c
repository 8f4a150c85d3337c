/* staged.c - a collective on GPU buffers, through host memory.
 *
 *   caller's stream   what computes the input | event `called`
 *   stream "down"     waits for `called` | copies the input to the staging buffer | ready
 *   progress thread   sees ready (coll/gate.h) | runs the operation in the staging buffer | done
 *   stream "up"       waits for done | copies the result to the caller's buffer | landed
 *   caller's stream   waits for landed: in commd_run(), in commd_work_wait_stream(), or never
 *
 * The call enqueues all of that before the operation is queued in the group, and no host waits. If
 * the caller's stream waits for a small operation, all of its words and copies are on that stream.
 * Of a small one that is started the input is copied there, and the result lands by itself:
 * landing.c. A long vector between nodes is cut into pieces: its first steps travel while the rest
 * is copied.
 *
 * To the other ranks it is an operation of the group like any other. In the staging buffer it is in
 * place, wherever that is allowed, which halves the memory.
 *
 * Operations of a group are executed in the order of the calls. So an operation whose input is the
 * result of an earlier one waits until that has landed: staged_follow().
 *
 * An operation that this rank cannot do, mostly because there is no memory for it, is queued as
 * declined (run_decline()): it fails in its place on all ranks, and the group goes on. Here the
 * call has told of the failure.
 *
 * Why waits on streams do not block each other. All streams of a context share its hardware queues,
 * whatever their priority: 8, or CUDA_DEVICE_MAX_CONNECTIONS (doc/gpu.md). In a queue what was
 * enqueued first goes first, and all that a wait needs of this process was enqueued before the
 * wait. That is enough where all ranks use their groups in one order. Small operations leave no
 * wait for other ranks in streams of ours, so any order will do while the caller's streams share no
 * queue. Large ones that are started do, in "up". A driver gives a new stream the queue with the
 * fewest streams, so any order will do while the context has no more streams than queues.
 *
 * Who wakes me: no bell; the progress thread polls. What if a rank dies now: the operation fails,
 * done is stored all the same. What if the group is left: the same. If the caller's stream never
 * comes to the operation: it does not begin here, and the other ranks name this one. An operation
 * is in flight, and keeps its staging buffer, until its streams have stored ready and landed.
 * Nobody knows whether a stream of a GPU that has failed will do so: its staging buffer is kept. */
#include "client/lib/device/session.h"
#include "client/lib/device/staged.h"

#include <stdio.h>

enum {
    PIECE = 4 << 20,
    ONE_STREAM = 1 << 20, /* up to here all of it is on the caller's stream, which waits anyway */
    REAP_LOOKS = 16,      /* at operations that have not landed, per call */
};

/* ---- what is in flight ----------------------------------------------------------------------- */

void gate_unref(struct gate *gate)
{
    staged_unref(staged_of(gate));
}

void staged_over(struct staged *st, const struct commd_error *e, enum failure_state kind)
{
    assert_held(&st->dev->ctx->plock);
    assert(!e || e->code);
    if (!e)
        return;
    /* what fails alone was refused before anybody was in the buffers */
    if (st->chunk && commd_error_breaks_group(e->code))
        st->chunk->spoiled = true;
    if (st->quiet)
        failure_note(st->group, e, kind);
}

static void collective_over(struct gate *gate, const struct commd_error *e)
{
    staged_over(staged_of(gate), e, FAILURE_SHARED);
    landing_over(staged_of(gate), e); /* the staging buffer may be another one's then */
}

static const struct gate_ops collective_ops = {
    .over = collective_over,
    .unref = gate_unref,
    .wait_stream = landing_wait_stream,
};

void staged_reap(struct device *dev)
{
    struct staged **p = &dev->first, *st;

    assert_held(&dev->lock);
    assert(dev->last);
    for (unsigned looks = 0; (st = *p) && looks < REAP_LOOKS;) {
        if (!gate_full(&st->gate) || !gate_landed(&st->gate)) {
            p = &st->next;
            looks++;
            continue;
        }
        assert(st->slot);
        *p = st->next;
        if (!*p)
            dev->last = p;
        if (st->chunk)
            staging_give(&dev->staging, st->chunk);
        flags_give(st->slot);
        staged_unref(st);
    }
}

int staged_new(struct device_group *dg, const char *name, size_t bytes, struct staged **ret_staged)
{
    struct device *dev = dg->dev;
    struct staged *st = calloc(1, sizeof *st);
    int r;

    assert_held(&dg->lock);
    if (!st)
        return error_set(error_mine(), COMMD_E_NOMEM, name, "%s: no memory for an operation", name);
    pthread_mutex_lock(&dev->lock);
    staged_reap(dev);
    r = flags_take(name, &st->slot);
    if (!r && bytes) {
        r = staging_take(&dev->staging, name, bytes, &st->chunk);
        if (r)
            flags_give(st->slot);
    }
    if (r) {
        pthread_mutex_unlock(&dev->lock);
        free(st);
        return r;
    }
    atomic_init(&st->refs, 2); /* the gate's, and in flight */
    st->dev = dev;
    st->group = dg;
    st->name = name;
    st->gate = (struct gate){.ops = &collective_ops,
                             .ready = &st->slot->words->ready,
                             .done = &st->slot->words->done,
                             .landed = &st->slot->words->landed,
                             .base = st->slot->mark,
                             .pieces = 1};
    driver(NULL)->ctx_get(&st->ctx);
    *dev->last = st;
    dev->last = &st->next;
    pthread_mutex_unlock(&dev->lock);
    *ret_staged = st;
    return 0;
}

void staged_drop(struct staged *st)
{
    uint32_t end = st->gate.base + st->gate.pieces;

    assert(!st->gate.lost);
    gate_tell(&st->gate, st->gate.pieces);
    if (!st->touched) {
        atomic_store(st->gate.ready, end);
        atomic_store(st->gate.landed, end);
    }
    staged_unref(st);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static int stream_lane_get(struct device_group *dg, const char *name, cu_context ctx,
                           struct stream_lane **ret_lane)
{
    const struct cuda *cu = driver(NULL);
    struct stream_lane *l = dg->lanes;
    cu_result r;

    assert_held(&dg->lock);
    assert(ctx);
    while (l && l->ctx != ctx)
        l = l->next;
    if (l) {
        *ret_lane = l;
        return 0;
    }
    l = calloc(1, sizeof *l);
    if (!l)
        return error_set(error_mine(), COMMD_E_NOMEM, name, "%s: no memory for streams", name);
    l->ctx = ctx;
    r = cu->stream_new(&l->down, CU_STREAM_NON_BLOCKING);
    if (!r)
        r = cu->stream_new(&l->up, CU_STREAM_NON_BLOCKING);
    if (!r)
        r = cu->event_new(&l->called, CU_EVENT_DISABLE_TIMING);
    if (r) {
        if (l->up)
            cu->stream_free(l->up);
        if (l->down)
            cu->stream_free(l->down);
        free(l);
        return driver_error(name, "cuStreamCreate", r);
    }
    l->next = dg->lanes;
    dg->lanes = l;
    *ret_lane = l;
    return 0;
}

int stream_lane_from(struct device_group *dg, const char *name, cu_context ctx, cu_stream stream,
                     struct stream_lane **ret_lane)
{
    const struct cuda *cu = driver(NULL);
    int r = stream_lane_get(dg, name, ctx, ret_lane);
    cu_result e;

    assert_held(&dg->lock);
    if (r)
        return r;
    e = cu->event_record((*ret_lane)->called, stream);
    if (!e)
        e = cu->stream_wait_event((*ret_lane)->down, (*ret_lane)->called, 0);
    return driver_error(name, "cuEventRecord", e);
}

static struct commd_op host_op(const struct commd_op *op, const struct side_places *p,
                               uint8_t *staging)
{
    struct commd_op host = *op;

    assert(!p->bytes || staging);
    host.send = p->send.bytes ? staging + p->send.at : NULL;
    host.recv = p->recv.bytes ? staging + p->recv.at : NULL;
    host.send_blocks = NULL;
    host.recv_blocks = NULL;
    host.memory = COMMD_MEMORY_HOST;
    return host;
}

/* ---- enqueueing ------------------------------------------------------------------------------ */

/* Is the result of the operation what this rank had in its receive buffer? */
static bool gives(const struct membership *g, const struct commd_op *op)
{
    assert(!is_p2p(op));
    return op->coll == COMMD_BROADCAST && (unsigned)op->root == g->rank;
}

/* All blocks, or the bytes [from, from + len) of the only one. */
static int copy_place(struct staged *st, const struct side_place *p, bool down, size_t from,
                      size_t len, cu_stream s)
{
    size_t at = 0;
    int r = 0;

    assert(p->n > 0);
    assert((st->chunk || !p->bytes));
    if (!p->blocks) {
        cu_ptr theirs = (cu_ptr)(uintptr_t)p->base + from;
        cu_ptr ours = (cu_ptr)(uintptr_t)(st->chunk ? st->chunk->p + p->at + from : NULL);

        return down ? staged_copy(st, ours, theirs, len, s) : staged_copy(st, theirs, ours, len, s);
    }
    for (unsigned k = 0; !r && k < p->n; k++) {
        size_t n = side_block_bytes(p, k);
        cu_ptr theirs = (cu_ptr)(uintptr_t)p->blocks[k];
        cu_ptr ours = (cu_ptr)(uintptr_t)(st->chunk ? st->chunk->p + p->at + at : NULL);

        r = down ? staged_copy(st, ours, theirs, n, s) : staged_copy(st, theirs, ours, n, s);
        at += n;
    }
    return r;
}

static size_t piece_len(const struct gate *gate, const struct side_place *p, uint32_t i)
{
    assert(i < gate->pieces);
    return gate->piece ? MIN(gate->piece, p->bytes - i * gate->piece) : p->bytes;
}

/* The input, piece by piece; without one the word alone says that the stream has come here. */
static int enqueue_down(struct staged *st, const struct side_place *in, cu_stream s)
{
    const struct gate *gate = &st->gate;
    int r = 0;

    assert(gate->pieces > 0);
    assert(gate->base + gate->pieces == st->slot->mark);
    if (!in->n)
        return staged_write(st, WORD_READY, gate->pieces, s);
    for (uint32_t i = 0; !r && i < gate->pieces; i++) {
        r = copy_place(st, in, true, i * gate->piece, piece_len(gate, in, i), s);
        if (!r)
            r = staged_write(st, WORD_READY, i + 1, s);
    }
    return r;
}

static int enqueue_up(struct staged *st, const struct side_place *out, cu_stream s)
{
    const struct gate *gate = &st->gate;
    int r = 0;

    assert(gate->pieces > 0);
    if (!out->n)
        r = staged_await(st, WORD_DONE, gate->pieces, s);
    for (uint32_t i = 0; out->n && !r && i < gate->pieces; i++) {
        r = staged_await(st, WORD_DONE, i + 1, s);
        if (!r)
            r = copy_place(st, out, false, i * gate->piece, piece_len(gate, out, i), s);
    }
    return r ? r : staged_write(st, WORD_LANDED, gate->pieces, s);
}

/* Can a started operation do without streams of ours? Not if earlier ones have not landed in its
 * buffers, behind which it would hold up the caller's stream. */
static bool lands_by_itself(struct device_group *dg, const struct side_places *p,
                            const struct side_place *in, const struct side_place *out)
{
    return p->bytes <= ONE_STREAM && !out->blocks && !dg->session && !staged_pending(dg, in) &&
           !staged_pending(dg, out);
}

/* The result lands when it is there: landing.c. */
static void leave_to_land(struct staged *st, const struct side_place *out)
{
    assert(st->gate.pieces == 1 && !out->blocks);
    st->landing = LANDING_OPEN;
    st->to = (cu_ptr)(uintptr_t)out->base;
    st->from = (cu_ptr)(uintptr_t)(out->n && st->chunk ? st->chunk->p + out->at : NULL);
    st->bytes = out->bytes;
}

static int staged_enqueue(struct device_group *dg, struct staged *st, const struct commd_op *op,
                          const struct side_places *p, bool wait)
{
    struct side_place none = {0};
    const struct side_place *in = p->send.n ? &p->send : gives(dg->group, op) ? &p->recv : &none;
    const struct side_place *out = gives(dg->group, op) ? &none : &p->recv;
    bool small = !wait && lands_by_itself(dg, p, in, out);
    cu_stream down = op->stream, up = op->stream;
    int r = small ? lander_start(dg->dev, st->name) : 0;

    if (!r && !small && (!wait || p->bytes > ONE_STREAM)) {
        struct stream_lane *lane = NULL;

        r = stream_lane_from(dg, st->name, st->ctx, op->stream, &lane);
        if (!r) {
            down = lane->down;
            up = lane->up;
        }
    }
    if (!r)
        r = staged_follow(dg, in, down);
    if (!r)
        r = announced_follow(dg, in, down);
    if (!r)
        r = enqueue_down(st, in, down);
    if (!r && !small)
        r = staged_follow(dg, out, up);
    if (!r && !small)
        r = enqueue_up(st, out, up);
    if (!r && small)
        leave_to_land(st, out);
    side_span(out, &st->lo, &st->hi);
    return r || !wait || up == op->stream
               ? r
               : staged_await(st, WORD_LANDED, st->gate.pieces, op->stream);
}

static void cut_pieces(struct staged *st, const struct membership *g, const struct commd_op *op,
                       size_t bytes)
{
    assert(st->gate.pieces == 1);
    assert(st->gate.piece == 0);
    if (g->board.nnodes > 1 && coll_table[op->coll].window == WINDOW_VECTOR && bytes > PIECE) {
        st->gate.piece = PIECE;
        st->gate.pieces = (uint32_t)((bytes + PIECE - 1) / PIECE);
    }
    st->slot->mark += st->gate.pieces;
}

void staged_queued(struct staged *st, struct commd_work *w, const struct telling *how)
{
    assert(w->gate == &st->gate);
    if (how->ret_gate) {
        atomic_fetch_add(&st->refs, 1);
        *how->ret_gate = &st->gate;
    }
    if (how->ret_work)
        *how->ret_work = w;
    else
        work_unref(w);
}

/* Who only sends waits for nobody: no barrier can stand for it. */
static bool senders_go_ahead(const struct membership *g, const struct commd_op *op)
{
    struct op_desc d = {.seq = 1, .count = op->count, .root = (uint32_t)op->root};
    struct plan p;

    if (!coll_table[op->coll].rooted || coll_table[op->coll].counted)
        return false;
    d.coll = (uint8_t)op->coll;
    d.dtype = (uint8_t)op->dtype;
    d.redop = coll_table[op->coll].reduces ? (uint8_t)op->redop : 0;
    return plan_make(&d, &g->geom, NULL, &p) && p.path == PATH_POST;
}

/* The other ranks call the operation, too: it fails in its place. */
static void staged_decline(struct device_group *dg, const struct commd_op *op)
{
    const struct commd_error why = *commd_last_error();
    struct commd_op barrier = {
        .size = sizeof barrier, .coll = COMMD_BARRIER, .timeout_ms = op->timeout_ms};
    struct commd_work *w;

    assert(why.code < 0);
    if (dg->group->board.world == 1)
        return;
    if (async_work_new(dg->group, senders_go_ahead(dg->group, op) ? op : &barrier, NULL, NULL,
                       &w)) {
        group_give_up(dg->group, &why);
    } else {
        w->declined = why.code;
        async_queue(w);
        work_unref(w);
    }
    *error_mine() = why;
}

static int staged_try(struct device_group *dg, const struct commd_op *op, const struct telling *how)
{
    struct side_places p = side_places_of(dg->group, op);
    struct commd_work *w;
    struct commd_op host;
    struct staged *st;
    int r;

    assert_held(&dg->lock);
    r = staged_new(dg, op_name(op), p.bytes, &st);
    if (r)
        return r;
    cut_pieces(st, dg->group, op, p.bytes);
    st->quiet = !how->ret_work && !how->on_done;
    host = host_op(op, &p, st->chunk ? st->chunk->p : NULL);
    r = async_work_new(dg->group, &host, how->on_done, how->arg, &w);
    if (!r)
        r = staged_enqueue(dg, st, op, &p, how->wait);
    else
        w = NULL;
    if (r) {
        if (w)
            work_free(w);
        staged_drop(st);
        return r;
    }
    w->gate = &st->gate;
    async_queue(w);
    staged_queued(st, w, how);
    return 0;
}

int staged_begin(struct device_group *dg, const struct commd_op *op, const struct telling *how)
{
    int r = staged_try(dg, op, how);

    if (r)
        staged_decline(dg, op);
    return r;
}

int begin_in_turn(device_begin_fn begin, struct device_group *dg, const struct commd_op *op,
                  int gpu, const struct telling *how)
{
    struct scope scope;
    int r = scope_enter(op_name(op), op->stream, gpu, &scope);

    assert(dg->dev->ctx == dg->group->ctx);
    if (r)
        return r;
    r = async_ready(dg->group->ctx, op);
    if (!r) {
        pthread_mutex_lock(&dg->lock);
        r = begin(dg, op, how);
        pthread_mutex_unlock(&dg->lock);
    }
    scope_leave(&scope);
    return r;
}
