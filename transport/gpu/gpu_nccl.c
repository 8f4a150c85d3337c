/* gpu_nccl.c - communicators of NCCL: made, found, given up.
 *
 * A communicator belongs to the GPUs that it connects, not to a group or a user: the second group
 * over the same GPUs finds it. It never blocks (`blocking` 0): its state is polled. An operation
 * that counts on a communicator holds it (comm_take()) from the moment when it says so to the other
 * nodes, so that the communicator is not retired before the launch.
 *
 * gpu_life.h has their states, and gpu_life.c what may follow what, and when an abort may begin. A
 * communicator ends because it has failed, or is retired: for another one of the same GPUs, for
 * want of room, or because no group is for it. Threads abort it, most often one for each rank here,
 * for an abort can take long.
 *
 * What if NCCL fails in one, what runs does not end within --timeout, or a node of it is gone: the
 * operations that run in it, or are being launched, end with the reason; their groups are broken
 * and begin anew (COMMD_E_GPU_LOST). Behind them the streams go on as soon as the abort has ended
 * what hangs; groups that use other communicators wait for that, and know nothing of it. What if
 * the abort does not come back, or the stream stands still after it: gpu_fatal().
 *
 * An abort that is under way may wait for what only another one ends. So it has its full time again
 * when another one begins. */
#include "transport/gpu/gpu_op.h"

#include <stdarg.h>
#include <stdio.h>

#include "shm/util/wait.h"
#include "shm/util/hash.h"

enum {
    COMMS_MOST = 32,
    COMMS_USER = 16, /* a user that has made so many gives up one of them for the next */
    COMMS_CHECK_MS = 50,
    ABORT_STACK = 512 << 10,
};

/* ---- which there are ------------------------------------------------------------------------- */

/* The ranks of a communicator are the group's units, in their order. Nodes that share a GPU have
 * equal units: so those of this node must have the same numbers, too. */
static bool comm_fits(const struct gcomm *c, const struct ggroup *gr)
{
    if (!comm_lives(c->state) || c->nunits != gr->nunits || c->nhere != gr->nhere)
        return false;
    for (uint32_t u = 0; u < c->nunits; u++)
        if (memcmp(&c->units[u], &gr->units[u].uuid, sizeof c->units[u]))
            return false;
    for (uint32_t u = 0; u < c->nhere; u++)
        if (c->here[u].number != gr->here[u].number)
            return false;
    return true;
}

struct gcomm *comm_find(const struct ggroup *gr)
{
    struct gcomm *c;

    LIST_FOREACH(c, &gr->g->comms, link)
        if (comm_fits(c, gr))
            return c;
    return NULL;
}

unsigned comm_count(const struct gpu *g, const struct gdevice *d)
{
    const struct gcomm *c;
    unsigned n = 0;

    LIST_FOREACH(c, &g->comms, link)
        for (unsigned i = 0; i < c->nhere; i++)
            n += comm_lives(c->state) && c->here[i].dev == d;
    return n;
}

bool comms_any(const struct gpu *g, enum comm_state state)
{
    const struct gcomm *c;

    LIST_FOREACH(c, &g->comms, link)
        if (c->state == state)
            return true;
    return false;
}

void comm_take(struct gop *op, struct gcomm *c)
{
    assert(!op->comm || op->comm->users);
    assert(!c || c->state != COMM_RETIRED);
    if (op->comm)
        op->comm->users--;
    op->comm = c;
    if (c)
        c->users++;
}

/* ---- giving one up --------------------------------------------------------------------------- */

/* One for each rank here, all at once: an abort waits for what NCCL does in the background for all
 * ranks, and that may stand still until the last one is aborted. NCCL that takes no two aborts at
 * once has one thread for all ranks, one by one. */
static void *abort_thread(void *arg)
{
    struct gcomm *c = arg;
    unsigned i;

    while ((i = atomic_fetch_add(&c->abort_next, 1)) < c->nhere)
        if (c->here[i].comm)
            c->g->nccl.abort(c->here[i].comm);
    atomic_fetch_sub_explicit(&c->aborts_left, 1, memory_order_release); /* pairs with comm_end() */
    return NULL;
}

/* Streams that wait for the communicator have their full time again; others keep theirs. */
static void streams_renew(const struct gcomm *c, uint64_t now)
{
    for (unsigned i = 0; i < c->nhere; i++) {
        struct gstream *s = &c->here[i].dev->stream[STREAM_NCCL];
        const struct gflight *first = STAILQ_FIRST(&s->flying);

        if (first && first->op->comm == c)
            s->since_ms = now;
    }
}

void comm_change(struct gcomm *c, enum comm_event event)
{
    int state = comm_step(c->state, event);

    assert(state >= 0);
    assert(event != COMM_RETIRE || !c->users);
    c->g->nending += comm_lives(c->state) && !comm_lives(state);
    c->state = state;
    c->since_ms = now_ms();
}

static void abort_begin(struct gpu *g, struct gcomm *c)
{
    unsigned threads = g->nccl.version < NCCL_ABORTS_AT_ONCE ? 1 : c->nhere;
    struct gcomm *o;

    comm_change(c, COMM_ABORT);
    LIST_FOREACH(o, &g->comms, link)
        if (o->state == COMM_ABORTING) {
            o->since_ms = c->since_ms;
            streams_renew(o, c->since_ms);
        }
    atomic_store(&c->aborts_left, threads);
    for (unsigned i = 0; i < threads; i++) {
        int r = thread_start(abort_thread, c, ABORT_STACK);

        if (r) /* the other ranks' aborts would wait for this one, and everybody for them */
            gpu_fatal(g, "commd-gpu cannot start a thread that ends a communicator of NCCL: %s%s%s",
                      strerror(-r), c->why[0] ? ": " : "", c->why);
    }
}

/* Has what is on the first @n streams of each of its GPUs ended, and is NCCL at nothing else? */
static bool comm_idle(const struct gcomm *c, unsigned n)
{
    for (unsigned i = 0; i < c->nhere; i++)
        for (unsigned s = 0; s < n; s++)
            if (c->here[i].dev->stream[s].nflying)
                return false;
    return c->g->stage <= LAUNCH_ROOM;
}

/* Its abort begins, if the gate lets it. */
static void comm_try_abort(struct gpu *g, struct gcomm *c, uint64_t now)
{
    bool late = now > c->since_ms + (uint64_t)g->timeout_ms / 4;

    if (c->state == COMM_RETIRED ? comm_idle(c, STREAM_NCCL + 1) && jobs_gate(g->jobs, GATE_RETIRE)
                                 : jobs_gate(g->jobs, late ? GATE_ABORT_LATE : GATE_ABORT))
        abort_begin(g, c);
}

/* Does what can be done for a communicator that ends; in the end it is freed. */
static void comm_end(struct gpu *g, struct gcomm *c, uint64_t now)
{
    if (c->state == COMM_RETIRED || c->state == COMM_FAILED)
        comm_try_abort(g, c, now);
    if (c->state == COMM_ABORTING && !atomic_load_explicit(&c->aborts_left, memory_order_acquire)) {
        comm_change(c, COMM_ENDED);
        jobs_gate(g->jobs, GATE_ABORT_END);
    }
    if (c->state == COMM_ABORTING && now > c->since_ms + (uint64_t)g->timeout_ms)
        gpu_fatal(g, "NCCL does not end a communicator within %d ms%s%s", g->timeout_ms,
                  c->why[0] ? ": " : "", c->why);
    if (c->state == COMM_ABORTED && !c->users) {
        assert(g->nending && !c->flying);
        g->nending--;
        LIST_REMOVE(c, link);
        free(c);
    }
}

void comm_fail(struct gpu *g, struct gcomm *c, const char *format, ...)
{
    va_list args;

    assert_loop(g);
    if (!comm_lives(c->state))
        return;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    gpu_log_user(g, c->uid, LOG_ERROR, "%s; its communicator is aborted", c->why);
    comm_change(c, COMM_FAIL);
    streams_renew(c, c->since_ms); /* the abort has its time */
    for (unsigned i = 0; i < c->nhere; i++) {
        struct gstream *s = &c->here[i].dev->stream[STREAM_NCCL];
        struct gflight *f;

        STAILQ_FOREACH(f, &s->flying, next)
            if (f->op->comm == c) {
                op_retell(f->op, COMMD_E_GPU_LOST, c->why);
                group_break(f->op->group, COMMD_E_GPU_LOST, -1, 0, c->why);
            }
    }
    if (g->now && g->now->comm == c)
        jobs_gate(g->jobs, GATE_LAUNCH_FAIL);
    comm_try_abort(g, c,
                   c->since_ms); /* behind the results: after the abort the streams say done */
}

/* One of the operations in it, for a message. */
static const struct gop *comm_op(const struct gpu *g, const struct gcomm *c)
{
    const struct gflight *f;

    if (g->now && g->now->comm == c)
        return g->now;
    STAILQ_FOREACH(f, &c->here[0].dev->stream[STREAM_NCCL].flying, next)
        if (f->op->comm == c)
            return f->op;
    return NULL;
}

/* Is one GPU in it twice, as that of two nodes? NCCL may refuse that. */
static bool comm_twice(const struct gcomm *c)
{
    for (uint32_t u = 0; u < c->nunits && c->state == COMM_MAKING; u++)
        for (uint32_t v = 0; v < u; v++)
            if (!memcmp(&c->units[u], &c->units[v], sizeof c->units[u]))
                return true;
    return false;
}

void comm_failed(struct gpu *g, struct gcomm *c, nccl_comm comm, nccl_result r, const char *what)
{
    const struct gop *op = comm_op(g, c);
    char text[128];

    nccl_text(&g->nccl, comm, r, text, sizeof text);
    comm_fail(g, c, "NCCL failed in %s of group \"%s\": %s%s", what, op ? op->group->name : "?",
              comm_twice(c) ? "nodes have the same GPU: see gpu.nodes_share_gpus; " : "", text);
}

/* A node of the group is gone, and with it whoever waits for it in NCCL would wait for ever. */
void comm_peer_lost(struct ggroup *gr, const char *why)
{
    struct gstream *s = &gr->here[0].dev->stream[STREAM_NCCL];
    struct gop *now = gr->g->now;
    struct gflight *f;

    assert(gr->broken); /* no other operation comes */
    if (now && now->group == gr && now->comm)
        comm_fail(gr->g, now->comm, "%s", why);
    if (gr->op && gr->op->state == OP_PARTS &&
        gr->op->comm) /* parts of it have ended, and others will come */
        comm_fail(gr->g, gr->op->comm, "%s", why);
    STAILQ_FOREACH(f, &s->flying, next)
        if (f->op->group == gr && f->op->comm)
            comm_fail(gr->g, f->op->comm, "%s", why);
}

bool comm_settled(struct gpu *g, struct gcomm *c, const char *what)
{
    bool settled = comm_lives(c->state);

    /* All ranks are asked: while one goes on another may have failed. */
    for (unsigned i = 0; i < c->nhere && comm_lives(c->state); i++) {
        nccl_result state = NCCL_SUCCESS, r = g->nccl.async_error(c->here[i].comm, &state);

        r = r ? r : state;
        if (nccl_failed(r)) {
            comm_failed(g, c, c->here[i].comm, r, what);
            return false;
        }
        settled &= r == NCCL_SUCCESS;
    }
    return settled;
}

/* ---- making one ------------------------------------------------------------------------------ */

/* Of those that nobody holds the one that was not used for the longest time, if there are as many
 * as are kept: of this user if it has made its share of them. */
static struct gcomm *comm_oldest(const struct gpu *g, uint32_t uid)
{
    struct gcomm *c, *oldest = NULL;
    unsigned all = 0, own = 0;

    LIST_FOREACH(c, &g->comms, link) {
        all += comm_lives(c->state);
        own += comm_lives(c->state) && c->uid == uid;
    }
    if (all < COMMS_MOST && own < COMMS_USER)
        return NULL;
    LIST_FOREACH(c, &g->comms, link)
        if (comm_lives(c->state) && !c->users && (own < COMMS_USER || c->uid == uid) &&
            (!oldest || c->used_ms < oldest->used_ms))
            oldest = c;
    return oldest;
}

bool comm_room(const struct ggroup *gr)
{
    struct gcomm *c = comm_find(gr); /* one that another node does not have any more */

    if (!c || c->users)
        c = comm_oldest(gr->g, gr->user->uid);
    if (c)
        comm_change(c, COMM_RETIRE);
    return !comms_any(gr->g, COMM_RETIRED) && !comms_any(gr->g, COMM_ABORTING);
}

static struct gcomm *comm_alloc(const struct ggroup *gr)
{
    size_t bytes = sizeof(struct gcomm) + gr->nhere * sizeof(struct gcomm_rank);
    struct gcomm *c = calloc(1, bytes + gr->nunits * sizeof *c->units);

    if (!c)
        return NULL;
    c->g = gr->g;
    c->uid = gr->user->uid;
    c->nunits = gr->nunits;
    c->nhere = gr->nhere;
    c->units = (void *)((char *)c + bytes);
    for (uint32_t u = 0; u < c->nunits; u++)
        c->units[u] = gr->units[u].uuid;
    for (uint32_t u = 0; u < c->nhere; u++)
        c->here[u] = (struct gcomm_rank){.number = gr->here[u].number, .dev = gr->here[u].dev};
    return c;
}

static uint64_t comm_id_number(const struct nccl_id *id)
{
    return hash_bytes(HASH_BEGIN, id->bytes, sizeof id->bytes) | 1;
}

int comm_new_id(struct gpu *g, struct nccl_id *ret, char why[SESSION_TEXT])
{
    nccl_result r = g->nccl.get_id(ret);
    char text[128];

    g->current = NULL;
    if (r == NCCL_SUCCESS)
        return 0;
    nccl_text(&g->nccl, NULL, r, text, sizeof text);
    snprintf(why, SESSION_TEXT, "NCCL failed in making an id: %s", text);
    gpu_log(g, LOG_ERROR, "%s", why);
    return COMMD_E_GPU_LOST;
}

static nccl_result comm_init(struct gpu *g, struct gcomm *c, const struct nccl_id *id)
{
    struct nccl_config config = nccl_config(g->nccl.version);
    nccl_result r = g->nccl.group_start(), end;

    config.blocking = 0;
    if (r)
        return r;
    for (unsigned u = 0; u < c->nhere && !nccl_failed(r); u++) {
        device_check(c->here[u].dev, device_use(c->here[u].dev), "cuCtxSetCurrent");
        r = g->nccl.init(&c->here[u].comm, (int)c->nunits, *id, (int)c->here[u].number, &config);
    }
    end = g->nccl.group_end();
    g->current = NULL;
    return nccl_failed(r) ? r : end;
}

/* Begins to make one: the ranks of all nodes meet in the background. */
struct gcomm *comm_begin(struct gop *op)
{
    struct ggroup *gr = op->group;
    struct gpu *g = gr->g;
    struct gcomm *c;
    char why[SESSION_TEXT];
    nccl_result r;

    assert(!op->comm && op == g->now && gr->nunits > 1);
    if (gr->nnodes == 1 && comm_new_id(g, &op->id, why))
        return NULL;
    c = comm_alloc(gr);
    if (!c)
        return NULL;
    c->number = comm_id_number(&op->id);
    c->used_ms = c->since_ms = now_ms();
    LIST_INSERT_HEAD(&g->comms, c, link);
    r = comm_init(g, c, &op->id);
    if (nccl_failed(r))
        comm_failed(g, c, NULL, r, "making a communicator");
    return c;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* A communicator takes some hundred MB of its GPUs. One that no group is for goes after a while, in
 * which another group of the same ranks mostly comes, as soon as its GPUs are idle. Other nodes
 * find out that this node does not have it. */
static void comm_rest(struct gpu *g, struct gcomm *c, uint64_t now)
{
    const struct ggroup *gr;

    if (c->state != COMM_READY || c->users || now <= c->used_ms + (uint64_t)g->timeout_ms)
        return;
    for (unsigned i = 0; i < GROUP_BUCKETS; i++)
        LIST_FOREACH(gr, &g->groups[i], link)
            if (comm_find(gr) == c) {
                c->used_ms = now;
                return;
            }
    if (comm_idle(c, STREAMS))
        comm_change(c, COMM_RETIRE);
}

void comms_turn(struct gpu *g)
{
    struct gcomm *c, *next;
    uint64_t now;
    bool look;

    if (LIST_EMPTY(&g->comms))
        return;
    now = now_ms();
    look = now - g->comms_ms >= COMMS_CHECK_MS;
    if (look)
        g->comms_ms = now;
    for (c = look || g->nending ? LIST_FIRST(&g->comms) : NULL; c; c = next) {
        next = LIST_NEXT(c, link);
        if (look && c->flying) /* of what runs, errors only show when they are asked for */
            comm_settled(g, c, "an operation");
        else if (look)
            comm_rest(g, c, now);
        if (!comm_lives(c->state))
            comm_end(g, c, now);
    }
}
