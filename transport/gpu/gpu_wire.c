/* gpu_wire.c - groups over several nodes: what the commd-gpus of the nodes tell each other.
 *
 * For each such group the commd-gpus form a group of their own, its shadow, with a rank for each
 * node. To their commds they are clients like any others: libcommd carries the shadow. gpu_agree.c
 * has what they agree on there, gpu_life.h the states of a wire, which is one node's end of a
 * shadow. What threads have to say comes back to the loop as events.
 *
 * What if another node's commd-gpu dies now, or gives its group up: the exchange fails. The ranks
 * here hear the reason from their own commd, mostly, and tell us; so we wait for GRACE_MS before we
 * say ourselves that the group is broken. Then what the group has in NCCL is aborted. What if we
 * give the group up: once TICKET is under way the other nodes may launch, and would wait for us in
 * NCCL; so we see the operation to its end, and launch it, too. */
#include "transport/gpu/gpu_wire.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "shm/util/wait.h"

enum {
    JOIN_MS = 60000,
    GRACE_MS = 500,
    SWEEP_MS = 20,
    WIRE_THREADS = 1024, /* joins that wait for other nodes: with fewer, two nodes whose joins come
                            in different orders could wait for each other */
    WIRE_STACK = 256 << 10,
};

enum wire_event_kind { EVENT_JOINED, EVENT_EXCHANGED, EVENT_LEFT };

/* What a thread or an exchange has to say. */
struct wire_event {
    STAILQ_ENTRY(wire_event) next;
    enum wire_event_kind kind;
    struct gwire *wire; /* borrowed: it stays until all its events have come */
    struct commd_group *shadow;
    char name[96];
    int rank, size;
    int code;  /* 0: it has succeeded */
    bool left; /* COMMD_E_RANK_LOST: another node's commd-gpu has left, and not died */
    char text[SESSION_TEXT];
};

struct gwires {
    pthread_mutex_t lock, connecting;
    STAILQ_HEAD(, wire_event) events;
    struct commd_context *ctx;
    int fd;
    atomic_bool told; /* events may be there; the loop sees it in its next turn, if it is awake */
    unsigned threads;
    LIST_HEAD(, gwire) wires;
    uint64_t swept_ms;
    bool wait; /* a wire is to fail, at a time for which nobody rings */
};

/* ---- threads --------------------------------------------------------------------------------- */

static void wire_post(struct wire_event *ev)
{
    struct gwires *ws = ev->wire->g->wires;

    pthread_mutex_lock(&ws->lock);
    STAILQ_INSERT_TAIL(&ws->events, ev, next);
    pthread_mutex_unlock(&ws->lock);
    atomic_store_explicit(&ws->told, true, memory_order_release); /* pairs with wires_told() */
    if (write(ws->fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
        return; /* it is readable already */
}

/* The one connection; the thread that comes first makes it. */
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

static void event_fail(struct wire_event *ev, const struct commd_error *e)
{
    ev->code = e->code;
    ev->left = e->left;
    snprintf(ev->text, sizeof ev->text, "%.*s", (int)sizeof ev->text - 1, e->message);
}

static void *wire_thread(void *arg)
{
    struct wire_event *ev = arg;
    struct commd_context *ctx;

    assert_thread(ev->wire->g);

    if (ev->kind == EVENT_LEFT) {
        commd_group_leave(ev->shadow);
    } else {
        if (wire_connect(ev->wire->g->wires, &ctx) ||
            commd_group_join(ctx, ev->name, ev->rank, ev->size, JOIN_MS, &ev->shadow))
            event_fail(ev, commd_last_error());
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

/* ---- how it ends ----------------------------------------------------------------------------- */

static void wire_fail(struct gwire *w, int code, const char *text, unsigned grace_ms)
{
    if (w->fail_ms)
        return;
    w->fail_ms = now_ms() + grace_ms;
    w->fail_code = code;
    w->g->wires->wait = true;
    snprintf(w->fail_text, sizeof w->fail_text, "%s", text);
}

static void wire_change(struct gwire *w, enum wire_move move)
{
    int state = wire_step(w->state, move);

    assert_loop(w->g);
    assert(state >= 0);
    w->state = state;
}

/* Is the group given up here? */
static bool wire_leaves(const struct gwire *w)
{
    return !w->gr || w->gr->broken;
}

/* Leaves if the group is given up, unless the other nodes may count on what is under way. */
static void wire_try_leave(struct gwire *w)
{
    struct wire_event *ev;

    if (!wire_leaves(w) || (w->state != WIRE_OPEN && w->state != WIRE_READY))
        return;
    wire_change(w, WIRE_CLOSE);
    assert(w->shadow);
    ev = wire_event_new(w, EVENT_LEFT);
    if (!ev)
        return; /* the shadow stays until this process ends */
    ev->shadow = steal_ptr(w->shadow);
    w->g->wires->threads++;
    if (thread_start(wire_thread, ev, WIRE_STACK)) {
        commd_group_leave(ev->shadow); /* on the loop, for want of a thread */
        wire_post(ev);
    }
}

void wire_broken(struct ggroup *gr)
{
    if (gr->wire)
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
    struct gwire *w = gr->wire;

    if (w && !gr->op) /* else what is under way decides about it */
        wire_free(gr);
    if (w)
        wire_try_leave(w);
}

bool wire_promised(const struct ggroup *gr)
{
    return gr->wire && gr->wire->state == WIRE_TICKET;
}

/* ---- how it begins --------------------------------------------------------------------------- */

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

/* NULL, or why this user can have no other wire. */
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

/* ---- exchanges ------------------------------------------------------------------------------- */

static void wire_exchanged(void *arg, const struct commd_error *e)
{
    struct wire_event *ev = arg;

    if (e)
        event_fail(ev, e);
    wire_post(ev);
}

/* Begins the exchange that @w->state is about. */
static void wire_exchange(struct gwire *w)
{
    bool ready = w->state == WIRE_READY;
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_GATHER,
                          .dtype = COMMD_U8,
                          .timeout_ms = -1,
                          .memory = COMMD_MEMORY_HOST,
                          .recv = ready ? (void *)w->ready : w->ticket,
                          .send = ready ? (void *)&w->ready[w->me] : &w->ticket[w->me],
                          .count = ready ? sizeof *w->ready : sizeof *w->ticket};
    struct wire_event *ev = wire_event_new(w, EVENT_EXCHANGED);
    struct commd_work *work = NULL;

    assert(w->shadow && (ready || w->state == WIRE_TICKET));
    if (!ev) {
        wire_change(w, WIRE_HEARD);
        wire_fail(w, COMMD_E_NOMEM, "commd-gpu has no memory", 0);
        return;
    }
    if (commd_start(w->shadow, &op, wire_exchanged, ev, &work)) {
        event_fail(ev, commd_last_error());
        wire_post(ev);
        return;
    }
    commd_work_free(work); /* it may have ended already */
}

void wire_say(struct gwire *w, enum wire_move what)
{
    wire_change(w, what);
    if (w->state == WIRE_READY || w->state == WIRE_TICKET)
        wire_exchange(w);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void event_joined(struct gwire *w, struct wire_event *ev)
{
    char text[SESSION_TEXT];

    assert(w->user->njoins && !w->shadow);
    w->user->njoins--;
    if (ev->code) {
        wire_change(w, WIRE_CLOSE);
        snprintf(text, sizeof text, "the commd-gpus of the nodes do not come together: %.180s",
                 ev->text);
        wire_fail(w, COMMD_E_GPU_LOST, text, GRACE_MS);
        return;
    }
    wire_change(w, WIRE_JOINED);
    w->shadow = ev->shadow;
    if (w->state == WIRE_READY && !wire_leaves(w))
        wire_exchange(w);
    wire_try_leave(w);
}

static void exchange_failed(struct gwire *w, const struct wire_event *ev)
{
    char text[SESSION_TEXT];
    struct ggroup *gr = w->gr;

    if (ev->code == COMMD_E_RANK_LOST && ev->left) {
        snprintf(text, sizeof text, "another node has given the group up: %.190s", ev->text);
        wire_fail(w, COMMD_E_ABORTED, text, GRACE_MS);
    } else if (ev->code != COMMD_E_ABORTED || !wire_leaves(w)) {
        snprintf(text, sizeof text, "commd-gpu of another node is gone: %.190s", ev->text);
        w->peer_lost = ev->code == COMMD_E_RANK_LOST || ev->code == COMMD_E_NODE_LOST;
        wire_fail(w, COMMD_E_GPU_LOST, text, GRACE_MS);
    }
    if (gr && gr->broken && gr->op) /* it was to be seen to its end: this is the end */
        group_drop_op(gr);
}

static void event_exchanged(struct gwire *w, const struct wire_event *ev)
{
    enum wire_state was = w->state;

    wire_change(w, WIRE_HEARD);
    if (ev->code) {
        exchange_failed(w, ev);
    } else if (w->gr && w->gr->op && w->gr->op->state == OP_ORDER) {
        if (was == WIRE_TICKET)
            agree_ticket(w);
        else if (!w->gr->broken)
            agree_ready(w);
    }
    wire_try_leave(w);
}

static void wire_del(struct gwire *w)
{
    assert(w->state == WIRE_CLOSED && !w->pending && !w->gr && w->user->nnodes >= w->nnodes);
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

    atomic_store_explicit(&g->wires->told, false, memory_order_relaxed);
    if (read(g->wires->fd, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&g->wires->lock);
    STAILQ_CONCAT(&events, &g->wires->events);
    pthread_mutex_unlock(&g->wires->lock);
    while ((ev = STAILQ_FIRST(&events))) {
        struct gwire *w = ev->wire;

        assert(w->pending && (ev->kind == EVENT_EXCHANGED || g->wires->threads));
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

    assert(w->fail_ms && w->fail_code);
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

bool wires_told(const struct gpu *g)
{
    return g->wires && atomic_load_explicit(&g->wires->told, memory_order_acquire);
}

bool wires_wait(const struct gpu *g)
{
    return g->wires && g->wires->wait;
}
