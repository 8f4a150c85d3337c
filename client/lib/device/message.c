/* message.c - a message from or to a buffer on a GPU, through host memory.
 *
 * A send is copied to the staging buffer on the caller's stream, which waits for nothing. The
 * progress thread begins the send when the copy is there (messages_go() in async/progress.c),
 * before any send to the same rank that was called later: message_behind().
 *
 * A receive is posted by the call, into the staging buffer. landing.c takes it from there.
 *
 * A message that this rank cannot do, mostly because there is no memory for it, takes its place
 * among the messages as declined (p2p.c): the other rank is told. Here the call has told of the
 * failure. */
#include "client/lib/device/staged.h"

enum { FLUSH_NAP_US = 200, FLUSH_LOOK = 50 };

/* ---- sends ----------------------------------------------------------------------------------- */

/* Counts a send that is not done: @by 1, or -1 once it is. */
static void count_send(const struct staged *st, int by)
{
    assert((by == 1 || by == -1) && (by > 0 || atomic_load(&st->group->sends) > 0));
    atomic_fetch_add(&st->group->sends, (unsigned)by);
    if (st->quiet)
        atomic_fetch_add(&st->group->quiet_sends, (unsigned)by);
}

static void send_over(struct gate *gate, const struct commd_error *e)
{
    struct staged *st = staged_of(gate);

    staged_over(st, e, FAILURE_OWN);
    landed_by_host(st);
    count_send(st, -1);
}

static int send_wait_stream(struct gate *gate, void *stream)
{
    struct staged *st = staged_of(gate);
    struct scope scope;
    int r = scope_enter_known(st->name, stream, st->ctx, &scope);

    if (r)
        return r;
    r = staged_await(st, WORD_DONE, 1, stream);
    scope_leave(&scope);
    return r;
}

static const struct gate_ops send_ops = {
    .over = send_over,
    .unref = gate_unref,
    .wait_stream = send_wait_stream,
};

static int enqueue_send(struct staged *st, const struct commd_op *op)
{
    int r = 0;

    assert(op->coll == COMMD_SEND && st->gate.pieces == 1);
    if (st->chunk)
        r = staged_copy(st, (cu_ptr)(uintptr_t)st->chunk->p, (cu_ptr)(uintptr_t)op->send, st->bytes,
                        op->stream);
    return r ? r : staged_write(st, WORD_READY, 1, op->stream);
}

/* ---- leaving --------------------------------------------------------------------------------- */

static bool receiver_gone(const struct membership *g, int rank)
{
    const struct board *b = &g->board;

    assert(rank >= 0 && (unsigned)rank < b->world);
    return atomic_load_explicit(&b->hdr->ngone, memory_order_acquire) &&
           board_is_gone(b, (unsigned)rank);
}

/* Are there sends without a work that can still go out? One whose input is not there has not begun,
 * so nobody has told it yet that its receiver is gone. */
static bool may_go_out(struct device_group *dg)
{
    struct membership *g = dg->group;
    unsigned n, lost = 0;

    assert(dg->dev->ctx == g->ctx);
    pthread_mutex_lock(&g->ctx->plock);
    n = atomic_load(&dg->quiet_sends);
    for (const struct commd_work *w = g->held; w && n; w = w->next)
        lost += w->gate && w->gate->ops == &send_ops && staged_of(w->gate)->quiet &&
                receiver_gone(g, w->op.peer);
    pthread_mutex_unlock(&g->ctx->plock);
    return n > lost;
}

void messages_flush(struct device_group *dg)
{
    struct membership *g = dg->group;
    int64_t deadline = deadline_in(atomic_load(&g->timeout_ms));
    struct board_cause cause;
    struct commd_error e;

    for (unsigned naps = 0; atomic_load(&dg->quiet_sends); naps++) {
        if (naps % FLUSH_LOOK == 0 && (context_interrupted(g->ctx) || group_has_failed(g, &e) ||
                                       board_broken(g->board.hdr, &cause) || !may_go_out(dg)))
            return;
        if (deadline >= 0 && (int64_t)now_ms() >= deadline)
            return;
        usleep(FLUSH_NAP_US);
    }
}

/* ---- receives -------------------------------------------------------------------------------- */

static void recv_over(struct gate *gate, const struct commd_error *e)
{
    staged_over(staged_of(gate), e, FAILURE_OWN);
    landing_over(staged_of(gate), e);
}

static const struct gate_ops recv_ops = {
    .over = recv_over,
    .unref = gate_unref,
    .wait_stream = landing_wait_stream,
};

static int enqueue_recv(struct staged *st, const struct commd_op *op, bool wait)
{
    int r = wait ? 0 : lander_start(st->dev, st->name);

    st->landing = LANDING_OPEN; /* nobody knows of it yet */
    if (!r)
        r = staged_write(st, WORD_READY, 1, op->stream);
    return r || !wait ? r : landing_set_on(st, op->stream);
}

/* ---- both ------------------------------------------------------------------------------------ */

static int queue(struct staged *st, struct commd_work *w, bool send)
{
    int r;

    assert(!w->gate && send == (w->op.coll == COMMD_SEND));
    w->gate = &st->gate;
    if (send)
        count_send(st, 1);
    r = async_queue_message(w, send);
    if (!r)
        return 0;
    w->gate = NULL;
    if (send)
        count_send(st, -1);
    return r;
}

/* The other rank is told in the message's place, behind the messages that were called before. */
static void message_decline(struct device_group *dg, const struct commd_op *op)
{
    const struct commd_error why = *commd_last_error();
    struct commd_op host = *op;
    struct commd_work *w = NULL;
    int r;

    assert(why.code < 0);
    host.memory = COMMD_MEMORY_HOST;
    r = async_work_new(dg->group, &host, NULL, NULL, &w);
    if (!r) {
        w->declined = why.code;
        r = async_queue_message(w, op->coll == COMMD_SEND && atomic_load(&dg->sends));
    }
    if (!r)
        work_unref(w);
    else if (w)
        work_free(w);
    if (r)
        group_give_up(dg->group, &why);
    *error_mine() = why;
}

static int try_message(struct device_group *dg, const struct commd_op *op,
                       const struct telling *how)
{
    size_t bytes = op->count * dtype_size((unsigned)op->dtype);
    bool send = op->coll == COMMD_SEND;
    struct commd_op host = *op;
    struct commd_work *w;
    struct staged *st;
    int r;

    assert_held(&dg->lock);
    r = staged_new(dg, op_name(op), bytes, &st);
    if (r)
        return r;
    assert(!st->chunk == !bytes);
    st->slot->mark++;
    st->gate.ops = send ? &send_ops : &recv_ops;
    st->quiet = !how->ret_work && !how->on_done;
    st->bytes = bytes;
    st->to = (cu_ptr)(uintptr_t)op->recv;
    st->from = (cu_ptr)(uintptr_t)(st->chunk ? st->chunk->p : NULL);
    host.send = send && st->chunk ? st->chunk->p : NULL;
    host.recv = !send && st->chunk ? st->chunk->p : NULL;
    host.memory = COMMD_MEMORY_HOST;
    r = async_work_new(dg->group, &host, how->on_done, how->arg, &w);
    if (r) {
        staged_drop(st);
        return r;
    }
    r = send ? enqueue_send(st, op) : enqueue_recv(st, op, how->wait);
    if (!r)
        r = queue(st, w, send);
    if (r) {
        work_free(w);
        staged_drop(st);
        return r;
    }
    staged_queued(st, w, how);
    return 0;
}

static int begin_message(struct device_group *dg, const struct commd_op *op,
                         const struct telling *how)
{
    int r = try_message(dg, op, how);

    if (r)
        message_decline(dg, op);
    return r;
}

int message_start(struct device_group *dg, const struct commd_op *op, int gpu,
                  const struct telling *how)
{
    return begin_in_turn(begin_message, dg, op, gpu, how);
}

int message_behind(struct device_group *dg, const struct commd_op *op, const struct telling *how)
{
    struct commd_work *w;
    int r = async_work_new(dg->group, op, how->on_done, how->arg, &w);

    if (r)
        return r;
    pthread_mutex_lock(&dg->lock);
    r = async_queue_message(w, true);
    pthread_mutex_unlock(&dg->lock);
    if (r) {
        work_free(w);
        return r;
    }
    if (how->wait) {
        r = commd_work_wait(w, -1);
        work_unref(w);
    } else if (how->ret_work) {
        *how->ret_work = w;
    } else {
        work_unref(w);
    }
    return r;
}
