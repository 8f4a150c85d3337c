/* gpu_wire.c - groups over several nodes: what the commd-gpus of the nodes tell each other.
 *
 * For each such group they form a group of their own, its shadow, with a rank for each node. To
 * their commds they are clients like any others: libcommd carries it. By it they agree, before NCCL
 * is called, that all have come (gpu_order.c says why in two phases):
 *   READY   all inputs of this node are there; what the operation is, what its counts add up to,
 *           which communicator this node has, in parts of how many bytes it wants it launched, how
 *           large its largest cell is, or what is wrong with it here. All nodes see all of it: they
 *           fail it alike, or go on, and cut it alike.
 *   TICKET  where in the order it comes; and what a new communicator is made with, by the first
 *           node, if not all have the same.
 * A group does this with one operation at a time, so no exchange is mistaken for another.
 *
 * States: JOINING (a thread: joins block), OPEN, CLOSED: left, or not joined. What threads have to
 * say comes back to the loop as events.
 *
 * What if another node's commd-gpu dies now, or gives its group up: the exchange fails. The ranks
 * here hear why from their own commd, mostly, and tell us; so we wait for GRACE_MS before we say
 * ourselves that the group is broken; then what it has in NCCL is aborted. What if we give the
 * group up: once TICKET is under way the other nodes may launch, and would wait for us in NCCL; so
 * we see it to its end, and launch, too.
 */
#include "transport/gpu/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "shm/util/wait.h"

enum {
    JOIN_MS = 60000,
    GRACE_MS = 500,
    SWEEP_MS = 20,
    WIRE_THREADS = 1024, /* joins that wait for other nodes: with fewer, two nodes whose joins come
                            in different orders could wait for each other */
    WIRE_STACK = 256 << 10,
};

struct wire_ready {
    uint64_t seq, comm, tie; /* tie: of the first node, random; see gpu_order.c */
    int32_t code, rank;
    uint64_t cell;        /* launch_cell() */
    uint32_t first, part; /* first: the rank that @desc is of */
    struct op_desc desc;
    struct op_balance balance;
    char text[SESSION_TEXT];
};

struct wire_ticket {
    uint64_t seq, ticket;
    uint64_t counts; /* op_counts_digest() by what the first node has drawn */
    struct nccl_id id;
};

enum wire_state { WIRE_JOINING, WIRE_OPEN, WIRE_CLOSED };
enum wire_phase { PHASE_NONE, PHASE_READY, PHASE_TICKET };

struct gwire {
    LIST_ENTRY(gwire) link;
    struct gpu *g;
    struct ggroup *gr;  /* borrowed; NULL: closed, and nothing of it is pending */
    struct guser *user; /* borrowed */
    enum wire_state state;
    enum wire_phase phase;      /* of the exchange that is under way */
    bool waits;                 /* READY is filled in, and not sent yet */
    bool leave;                 /* as soon as may be */
    unsigned pending;           /* events to come */
    struct commd_group *shadow; /* owned */
    uint32_t nnodes, me;
    struct wire_ready *ready;   /* owned; of each node */
    struct wire_ticket *ticket; /* owned; likewise */
    uint64_t fail_ms;           /* the group is broken then; 0: it is not to be */
    bool peer_lost;             /* and NCCL need not be waited for */
    int fail_code;
    char fail_text[SESSION_TEXT];
};

enum wire_event_kind { EVENT_JOINED, EVENT_EXCHANGED, EVENT_LEFT };

/* What a thread does, and has to say. */
struct wire_event {
    STAILQ_ENTRY(wire_event) next;
    enum wire_event_kind kind;
    struct gwire *wire; /* borrowed: it stays until all its events have come */
    struct commd_group *shadow;
    char name[96];
    int rank, size, code;
    char text[SESSION_TEXT];
};

struct gwires {
    pthread_mutex_t lock, connecting;
    STAILQ_HEAD(, wire_event) events;
    struct commd_context *ctx;
    int fd;
    unsigned threads;
    LIST_HEAD(, gwire) wires;
    uint64_t swept_ms;
    bool wait; /* some of them end, or are to fail */
};

/* ---- threads -----------------------------------------------------------------------------------
 */

static void wire_post(struct wire_event *ev)
{
    struct gwires *ws = ev->wire->g->wires;

    pthread_mutex_lock(&ws->lock);
    STAILQ_INSERT_TAIL(&ws->events, ev, next);
    pthread_mutex_unlock(&ws->lock);
    if (write(ws->fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
        return; /* it is readable already */
}

/* The one connection, made by whoever comes first. */
static int wire_connect(struct gwires *ws, struct commd_context **ret)
{
    int r = 0;

    pthread_mutex_lock(&ws->connecting);
    if (!ws->ctx)
        r = commd_connect(NULL, &ws->ctx);
    *ret = ws->ctx;
    pthread_mutex_unlock(&ws->connecting);
    return r;
}

static void *wire_thread(void *arg)
{
    struct wire_event *ev = arg;
    struct commd_context *ctx;

    if (ev->kind == EVENT_LEFT) {
        commd_group_leave(ev->shadow);
    } else {
        ev->code = wire_connect(ev->wire->g->wires, &ctx);
        if (!ev->code)
            ev->code = commd_group_join(ctx, ev->name, ev->rank, ev->size, JOIN_MS, &ev->shadow);
        if (ev->code)
            snprintf(ev->text, sizeof ev->text, "%.200s", commd_last_error()->message);
    }
    wire_post(ev);
    return NULL;
}

static struct wire_event *wire_event_new(struct gwire *w, enum wire_event_kind kind)
{
    struct wire_event *ev = calloc(1, sizeof *ev);

    if (ev) {
        ev->kind = kind;
        ev->wire = w;
        w->pending++;
    }
    return ev;
}

/* ---- how it ends
 * --------------------------------------------------------------------------------- */

static void wire_fail(struct gwire *w, int code, const char *text, unsigned grace_ms)
{
    if (w->fail_ms)
        return;
    w->fail_ms = now_ms() + grace_ms;
    w->fail_code = code;
    w->g->wires->wait = true;
    snprintf(w->fail_text, sizeof w->fail_text, "%s", text);
}

/* Leaves, unless the other nodes may count on what is under way. */
static void wire_try_leave(struct gwire *w)
{
    struct wire_event *ev;

    if (!w->leave || w->phase == PHASE_TICKET || w->state != WIRE_OPEN)
        return;
    w->state = WIRE_CLOSED;
    w->waits = false;
    ev = wire_event_new(w, EVENT_LEFT);
    if (!ev)
        return; /* the shadow stays until this process ends */
    ev->shadow = steal_ptr(w->shadow);
    w->g->wires->threads++;
    if (thread_start(wire_thread, ev, WIRE_STACK)) {
        commd_group_leave(ev->shadow); /* it takes a moment; better than never */
        wire_post(ev);
    }
}

void wire_broken(struct ggroup *gr)
{
    if (!gr->wire)
        return;
    gr->wire->leave = true;
    wire_try_leave(gr->wire);
}

void wire_free(struct ggroup *gr)
{
    if (gr->wire)
        gr->wire->gr = NULL;
    gr->wire = NULL;
}

void wire_close(struct ggroup *gr)
{
    if (!gr->wire)
        return;
    wire_broken(gr);
    if (!gr->op) /* else what is under way decides about it */
        wire_free(gr);
}

bool wire_promised(const struct ggroup *gr)
{
    return gr->wire && gr->wire->phase == PHASE_TICKET;
}

/* ---- how it begins
 * ------------------------------------------------------------------------------- */

static int wires_new(struct gpu *g)
{
    struct gwires *ws = calloc(1, sizeof *ws);

    if (!ws)
        return -ENOMEM;
    pthread_mutex_init(&ws->lock, NULL);
    pthread_mutex_init(&ws->connecting, NULL);
    STAILQ_INIT(&ws->events);
    ws->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->wire_watch = (struct gwatch){.kind = WATCH_WIRE};
    if (ws->fd < 0 || gpu_watch(g, ws->fd, EPOLLIN, &g->wire_watch)) {
        close_fdp(&ws->fd);
        free(ws);
        return -ENOMEM;
    }
    g->wires = ws;
    return 0;
}

static void gwire_free(struct gwire *w)
{
    if (!w)
        return;
    free(w->ready);
    free(w->ticket);
    free(w);
}

static struct gwire *wire_new(struct ggroup *gr)
{
    struct gwire *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->ready = calloc(gr->nnodes, sizeof *w->ready);
    w->ticket = calloc(gr->nnodes, sizeof *w->ticket);
    if (!w->ready || !w->ticket) {
        gwire_free(w);
        return NULL;
    }
    w->g = gr->g;
    w->gr = gr;
    w->nnodes = gr->nnodes;
    w->me = gr->me;
    return w;
}

/* NULL, or why there can be no more of this user. */
static const char *wire_refused(const struct ggroup *gr)
{
    if (gr->user->njoins >= GPU_USER_JOINS)
        return "this user has as many groups over several nodes as may wait for the other nodes";
    if (gr->user->nnodes + gr->nnodes > GPU_USER_NODES)
        return "this user's groups have as many nodes as commd-gpu keeps for one";
    if (gr->g->wires->threads >= WIRE_THREADS)
        return "too many groups over several nodes are being made";
    return NULL;
}

const char *wire_open(struct ggroup *gr, int *ret_code)
{
    struct wire_event *ev = NULL;
    struct gwire *w;
    const char *why;

    if (gr->nnodes == 1)
        return NULL;
    if (!gr->g->socket)
        return "commd-gpu does not know its commd's socket, and its ranks are on several nodes";
    if (!gr->g->wires && wires_new(gr->g))
        return "commd-gpu has no memory for a group";
    why = wire_refused(gr);
    if (why) {
        *ret_code = COMMD_E_QUOTA;
        return why;
    }
    w = wire_new(gr);
    if (w)
        ev = wire_event_new(w, EVENT_JOINED);
    if (!ev) {
        gwire_free(w);
        return "commd-gpu has no memory for a group";
    }
    snprintf(ev->name, sizeof ev->name, "/commd-gpu/%u/%llx/%llu", gr->uid,
             (unsigned long long)gr->id, (unsigned long long)gr->epoch);
    ev->rank = (int)gr->me;
    ev->size = (int)gr->nnodes;
    LIST_INSERT_HEAD(&gr->g->wires->wires, w, link);
    gr->wire = w;
    w->user = gr->user;
    gr->user->nnodes += gr->nnodes;
    gr->user->njoins++;
    gr->g->wires->threads++;
    if (thread_start(wire_thread, ev, WIRE_STACK)) {
        ev->code = COMMD_E_NOMEM;
        snprintf(ev->text, sizeof ev->text, "commd-gpu can have no thread");
        wire_post(ev);
    }
    return NULL;
}

/* ---- exchanges
 * ----------------------------------------------------------------------------------- */

static void wire_exchanged(void *arg, const struct commd_error *e)
{
    struct wire_event *ev = arg;

    if (e) {
        ev->code = e->code;
        snprintf(ev->text, sizeof ev->text, "%.*s", (int)sizeof ev->text - 1, e->message);
    }
    wire_post(ev);
}

static void wire_exchange(struct gwire *w, enum wire_phase phase)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_GATHER,
                          .dtype = COMMD_U8,
                          .timeout_ms = -1,
                          .memory = COMMD_MEMORY_HOST};
    struct wire_event *ev = wire_event_new(w, EVENT_EXCHANGED);
    struct commd_work *work = NULL;
    int r;

    if (!ev) {
        wire_fail(w, COMMD_E_NOMEM, "commd-gpu has no memory", 0);
        return;
    }
    if (phase == PHASE_READY) {
        op.recv = w->ready;
        op.send = &w->ready[w->me];
        op.count = sizeof *w->ready;
    } else {
        op.recv = w->ticket;
        op.send = &w->ticket[w->me];
        op.count = sizeof *w->ticket;
    }
    w->phase = phase;
    r = commd_start(w->shadow, &op, wire_exchanged, ev, &work); /* which may end it at once */
    if (r) {
        ev->code = r;
        snprintf(ev->text, sizeof ev->text, "%.200s", commd_last_error()->message);
        wire_post(ev);
        return;
    }
    commd_work_free(work);
}

void wire_ready(struct gop *op, uint32_t part, int code, int rank, const char *text)
{
    struct gwire *w = op->group->wire;
    struct wire_ready *mine = &w->ready[w->me];

    memset(mine, 0, sizeof *mine);
    op->state = OP_ORDER;
    mine->seq = op->seq;
    mine->comm = op->comm ? op->comm->number : 0;
    mine->code = code;
    mine->rank = rank;
    mine->first = op->of[0]->rank.rank;
    mine->part = part;
    if (w->me == 0 && getrandom(&mine->tie, sizeof mine->tie, 0) < 0)
        mine->tie = 0; /* if that of another operation is so, too, nodes may wait for --timeout */
    mine->desc = op->of[0]->desc;
    snprintf(mine->text, sizeof mine->text, "%s", text);
    if (!code && coll_table[mine->desc.coll].counted) {
        op_balance_of(op, OP_BALANCE_KEY, &mine->balance);
        mine->cell = launch_cell(op);
    }
    if (w->state == WIRE_OPEN)
        wire_exchange(w, PHASE_READY);
    else
        w->waits = w->state == WIRE_JOINING;
}

/* What all nodes have said. 0: it can go on; else why it fails, for all ranks alike. */
static int wire_judge(const struct gwire *w, int *ret_rank, char text[SESSION_TEXT])
{
    const struct wire_ready *first = &w->ready[0];
    struct op_balance sum = {0};

    *ret_rank = -1;
    for (uint32_t n = 0; n < w->nnodes; n++) {
        const struct wire_ready *r = &w->ready[n];

        if (r->code) {
            *ret_rank = r->rank;
            snprintf(text, SESSION_TEXT, "%.*s", SESSION_TEXT - 1, r->text);
            return r->code;
        }
        sum.hash += r->balance.hash;
        sum.diff += r->balance.diff;
        sum.checksum += r->balance.checksum;
    }
    for (uint32_t n = 1; n < w->nnodes; n++)
        if (!op_same(&first->desc, &w->ready[n].desc)) {
            *ret_rank = (int)w->ready[n].first;
            op_mismatch_text(first->first, &first->desc, w->ready[n].first, &w->ready[n].desc,
                             text);
            return COMMD_E_MISMATCH;
        }
    if (op_balanced(&sum))
        return 0;
    op_counts_text(w->gr, &sum, text);
    return COMMD_E_MISMATCH;
}

static void wire_all_ready(struct gwire *w)
{
    struct gop *op = w->gr->op;
    struct wire_ticket *mine = &w->ticket[w->me];
    char text[SESSION_TEXT] = "";
    int rank, code = wire_judge(w, &rank, text);
    uint32_t part = UINT32_MAX;
    uint64_t cell = 0;

    if (code) {
        gpu_order_drop(&w->g->order, &op->order);
        op_fail(op, code, rank, 0, text);
        return;
    }
    for (uint32_t n = 1; n < w->nnodes; n++)
        if (w->ready[n].comm != w->ready[0].comm)
            comm_take(op, NULL);
    memset(mine, 0, sizeof *mine);
    mine->seq = op->seq;
    if (w->me == 0 && !op->comm && comm_new_id(w->g, &mine->id, text)) {
        group_break(w->gr, COMMD_E_GPU_LOST, -1, 0, text);
        return;
    }
    for (uint32_t n = 0; n < w->nnodes; n++) {
        part = MIN(part, w->ready[n].part);
        cell = MAX(cell, w->ready[n].cell);
    }
    launch_cut(op, part, cell);
    user_count(op);
    op->order.tie = w->ready[0].tie;
    mine->counts = op_counts_digest(op, w->ready[0].tie);
    mine->ticket = gpu_order_propose(&w->g->order, &op->order);
    wire_exchange(w, PHASE_TICKET);
}

static bool tickets_fit(const struct gwire *w)
{
    bool same = op_counts_same(w->gr->op);
    uint64_t sum = 0;

    for (uint32_t n = 0; n < w->nnodes; n++) {
        if (same && w->ticket[n].counts != w->ticket[0].counts)
            return false;
        sum += w->ticket[n].counts;
    }
    return same || !sum;
}

/* All nodes find it alike, so none of them launches it. */
static void counts_differ(struct gwire *w)
{
    static const struct op_balance several;
    char text[SESSION_TEXT] = OP_COUNTS_DIFFER;
    struct gop *op = w->gr->op;

    if (!op_counts_same(op))
        op_counts_text(w->gr, &several, text);
    gpu_order_drop(&w->g->order, &op->order);
    if (w->gr->broken)
        group_drop_op(w->gr);
    else
        op_fail(op, COMMD_E_MISMATCH, -1, 0, text);
}

static void wire_all_tickets(struct gwire *w)
{
    struct gop *op = w->gr->op;
    uint64_t ticket = 0;

    if (!tickets_fit(w)) {
        counts_differ(w);
        return;
    }
    for (uint32_t n = 0; n < w->nnodes; n++)
        ticket = MAX(ticket, w->ticket[n].ticket);
    op->id = w->ticket[0].id;
    if (!gpu_order_agree(&w->g->order, &op->order, ticket))
        gpu_fatal(w->g, "the order of operations with other nodes is broken in group \"%s\"",
                  w->gr->name);
}

/* ---- events
 * -------------------------------------------------------------------------------------- */

static void event_joined(struct gwire *w, struct wire_event *ev)
{
    char text[SESSION_TEXT];

    w->user->njoins--;
    if (ev->code) {
        w->state = WIRE_CLOSED;
        snprintf(text, sizeof text, "the commd-gpus of the nodes do not come together: %.180s",
                 ev->text);
        wire_fail(w, COMMD_E_GPU_LOST, text, GRACE_MS);
        return;
    }
    w->state = WIRE_OPEN;
    w->shadow = ev->shadow;
    if (w->waits)
        wire_exchange(w, PHASE_READY);
    w->waits = false;
    wire_try_leave(w);
}

static void exchange_failed(struct gwire *w, const struct wire_event *ev)
{
    char text[SESSION_TEXT];
    struct ggroup *gr = w->gr;

    if (ev->code == COMMD_E_RANK_LOST && strstr(ev->text, "left the group")) {
        snprintf(text, sizeof text, "another node has given the group up: %.190s", ev->text);
        wire_fail(w, COMMD_E_ABORTED, text, GRACE_MS);
    } else if (ev->code != COMMD_E_ABORTED || !w->leave) {
        snprintf(text, sizeof text, "commd-gpu of another node is gone: %.190s", ev->text);
        w->peer_lost = ev->code == COMMD_E_RANK_LOST || ev->code == COMMD_E_NODE_LOST;
        wire_fail(w, COMMD_E_GPU_LOST, text, GRACE_MS);
    }
    if (gr && gr->broken && gr->op) /* it was to be seen to its end, which this is */
        group_drop_op(gr);
}

static void event_exchanged(struct gwire *w, const struct wire_event *ev)
{
    enum wire_phase phase = w->phase;

    w->phase = PHASE_NONE;
    if (ev->code) {
        exchange_failed(w, ev);
    } else if (w->gr && w->gr->op && w->gr->op->state == OP_ORDER) {
        if (phase == PHASE_TICKET)
            wire_all_tickets(w);
        else if (!w->gr->broken)
            wire_all_ready(w);
    }
    wire_try_leave(w);
}

static void wire_del(struct gwire *w)
{
    LIST_REMOVE(w, link);
    w->user->nnodes -= w->nnodes;
    guser_put(w->g, w->user);
    gwire_free(w);
}

void wire_turn(struct gpu *g)
{
    STAILQ_HEAD(, wire_event) events = STAILQ_HEAD_INITIALIZER(events);
    struct wire_event *ev;
    uint64_t n;

    if (read(g->wires->fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&g->wires->lock);
    STAILQ_CONCAT(&events, &g->wires->events);
    pthread_mutex_unlock(&g->wires->lock);
    while ((ev = STAILQ_FIRST(&events))) {
        struct gwire *w = ev->wire;

        STAILQ_REMOVE_HEAD(&events, next);
        w->pending--;
        if (ev->kind != EVENT_EXCHANGED)
            g->wires->threads--;
        if (ev->kind == EVENT_JOINED)
            event_joined(w, ev);
        else if (ev->kind == EVENT_EXCHANGED)
            event_exchanged(w, ev);
        free(ev);
    }
}

static void wire_end(struct gwire *w)
{
    struct ggroup *gr = w->gr;

    group_break(gr, w->fail_code, -1, 0, w->fail_text);
    if (w->peer_lost)
        comm_peer_lost(gr, w->fail_text);
    w->peer_lost = false;
}

void wires_sweep(struct gpu *g)
{
    struct gwire *w, *next;
    uint64_t now;

    if (!g->wires || LIST_EMPTY(&g->wires->wires))
        return;
    now = now_ms();
    if (now - g->wires->swept_ms < SWEEP_MS)
        return;
    g->wires->swept_ms = now;
    g->wires->wait = false;
    for (w = LIST_FIRST(&g->wires->wires); w; w = next) {
        next = LIST_NEXT(w, link);
        if (!w->gr && !w->pending && w->state == WIRE_CLOSED) {
            wire_del(w);
        } else if (w->gr && w->fail_ms && (!w->gr->broken || w->peer_lost)) {
            if (now >= w->fail_ms)
                wire_end(w);
            g->wires->wait = true;
        }
    }
}

bool wires_wait(const struct gpu *g)
{
    return g->wires && g->wires->wait;
}
