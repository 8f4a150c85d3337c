/* gpu_nccl.c - communicators of NCCL: made, found, given up.
 *
 * They belong to the GPUs that they connect, not to a group or a user: the second group over the
 * same GPUs finds one. They never block (`blocking` 0): their state is polled. Operations that
 * count on one hold it (comm_take()) from when they say so to the other nodes, so that none is
 * evicted between that and the launch.
 *
 * States: made (`ready` not yet), ready, failed: nobody finds it any more, and threads of its own,
 * most often one for each rank here, abort it, for that can take long. It is freed when they have
 * ended and nobody holds it.
 *
 * What if NCCL fails in one, what runs does not end within --timeout, or a node of it is gone: the
 * operations that run in it, or are being launched, end with why; their groups are broken and begin
 * anew (COMMD_E_GPU_LOST). Behind them the streams go on as soon as the abort has ended what hangs;
 * groups that use other communicators wait for that, and know nothing of it. What if the abort does
 * not come back, or the stream stands still after it: gpu_fatal(). */
#include "transport/gpu/gpu.h"

#include <stdarg.h>
#include <stdio.h>

#include "shm/util/wait.h"

enum {
    COMMS_MOST = 32,
    COMMS_USER = 16, /* who has made so many gives up one of its own for the next */
    COMMS_CHECK_MS = 50,
    ABORT_STACK = 512 << 10,
    NCCL_ABORTS_AT_ONCE = 21901,
};

/* ---- which there are ------------------------------------------------------------------------- */

/* Ranks of a communicator are the group's units, in their order. Nodes that share a GPU have the
 * same units: so this node must be the same ones among them. */
static bool comm_fits(const struct gcomm *c, const struct ggroup *gr)
{
    if (c->failed || c->nunits != gr->nunits || c->nhere != gr->nhere)
        return false;
    for (uint32_t u = 0; u < c->nunits; u++)
        if (memcmp(&c->units[u], &gr->units[u].uuid, sizeof c->units[u]))
            return false;
    for (uint32_t u = 0; u < c->nhere; u++)
        if (c->rank[u] != gr->here[u].number)
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
            n += !c->failed && c->dev[i] == d;
    return n;
}

void comm_take(struct gop *op, struct gcomm *c)
{
    if (op->comm)
        op->comm->users--;
    op->comm = c;
    if (c)
        c->users++;
}

/* ---- giving one up --------------------------------------------------------------------------- */

/* One for each rank here, all at once: an abort waits for what NCCL does in the background for all
 * of them, and that may stand still until the last one is aborted. NCCL before 2.19.1 "does not
 * support multithreaded abort well" (NVIDIA/nccl issue 992): there one for all, one by one. */
static void *abort_thread(void *arg)
{
    struct gcomm *c = arg;
    unsigned i;

    while ((i = atomic_fetch_add(&c->abort_next, 1)) < c->nhere)
        if (c->comm[i])
            c->g->nccl.abort(c->comm[i]);
    if (atomic_fetch_sub(&c->aborts_left, 1) == 1)
        atomic_store_explicit(&c->aborted, true, memory_order_release);
    return NULL;
}

/* What hangs in others on these GPUs keeps its time. */
static void streams_renew(const struct gcomm *c, uint64_t now)
{
    for (unsigned i = 0; i < c->nhere; i++) {
        struct gstream *s = &c->dev[i]->stream[STREAM_NCCL];
        const struct gflight *first = STAILQ_FIRST(&s->flying);

        if (first && first->op->comm == c)
            s->since_ms = now;
    }
}

/* Its time begins, and that of what it is to end. */
static void abort_begin(struct gpu *g, struct gcomm *c)
{
    unsigned threads = g->nccl.version < NCCL_ABORTS_AT_ONCE ? 1 : c->nhere;

    c->waits = false;
    c->failed_ms = now_ms();
    streams_renew(c, c->failed_ms);
    atomic_store(&c->aborts_left, threads);
    for (unsigned i = 0; i < threads; i++) {
        int r = thread_start(abort_thread, c, ABORT_STACK);

        if (r) /* ours would wait for the others, and everybody for us */
            gpu_fatal(g, "commd-gpu cannot start a thread that ends a communicator of NCCL: %s%s%s",
                      strerror(-r), c->why[0] ? ": " : "", c->why);
    }
}

/* Those that wait: for NCCL's launches, but not for ones that have failed, whose own abort frees
 * memory, and so waits for what only these aborts end. Nor for long: launches may wait for that,
 * too. */
static void aborts_begin(struct gpu *g)
{
    bool launches = g->alone && !g->now->comm->failed;
    uint64_t now = now_ms();
    struct gcomm *c;

    LIST_FOREACH(c, &g->comms, link)
        if (c->waits && (!launches || now > c->failed_ms + (uint64_t)g->timeout_ms / 4))
            abort_begin(g, c);
}

/* Aborted, not destroyed: that waits for nobody. */
static void comm_abort(struct gpu *g, struct gcomm *c)
{
    c->failed = c->waits = true;
    c->failed_ms = now_ms();
    g->naborting++;
    aborts_begin(g);
}

bool comms_alone(struct gpu *g)
{
    const struct gcomm *c;

    LIST_FOREACH(c, &g->comms, link)
        if (c->failed && !atomic_load_explicit(&c->aborted, memory_order_acquire)) {
            g->now_since_ms = now_ms(); /* comms_turn() sees to how long that takes */
            return false;
        }
    g->alone = jobs_hold(g->jobs);
    return g->alone;
}

void comms_not_alone(struct gpu *g)
{
    g->alone = false;
    jobs_release(g->jobs);
    aborts_begin(g);
}

void comm_fail(struct gpu *g, struct gcomm *c, const char *format, ...)
{
    va_list args;

    if (c->failed)
        return;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    gpu_log_user(g, c->uid, LOG_ERROR, "%s; its communicator is aborted", c->why);
    c->failed = true;
    streams_renew(c, now_ms()); /* the abort has its time */
    for (unsigned i = 0; i < c->nhere; i++) {
        struct gstream *s = &c->dev[i]->stream[STREAM_NCCL];
        struct gflight *f;

        STAILQ_FOREACH(f, &s->flying, next)
            if (f->op->comm == c) {
                op_retell(f->op, COMMD_E_GPU_LOST, c->why);
                group_break(f->op->group, COMMD_E_GPU_LOST, -1, 0, c->why);
            }
    }
    comm_abort(g, c); /* behind the results: after it the streams say done */
}

/* One of the operations in it, for people. */
static const struct gop *comm_op(const struct gpu *g, const struct gcomm *c)
{
    const struct gflight *f;

    if (g->now && g->now->comm == c)
        return g->now;
    STAILQ_FOREACH(f, &c->dev[0]->stream[STREAM_NCCL].flying, next)
        if (f->op->comm == c)
            return f->op;
    return NULL;
}

/* Is one GPU in it twice, as that of two nodes? NCCL may refuse that. */
static bool comm_twice(const struct gcomm *c)
{
    for (uint32_t u = 0; u < c->nunits && !c->ready; u++)
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

    if (now && now->group == gr && now->comm)
        comm_fail(gr->g, now->comm, "%s", why);
    if (gr->op && gr->op->begun && gr->op->comm) /* some of it has ended, and its rest will come */
        comm_fail(gr->g, gr->op->comm, "%s", why);
    STAILQ_FOREACH(f, &s->flying, next)
        if (f->op->group == gr && f->op->comm)
            comm_fail(gr->g, f->op->comm, "%s", why);
}

bool comm_settled(struct gpu *g, struct gcomm *c, const char *what)
{
    bool settled = !c->failed;

    /* All: while one goes on another may have failed. */
    for (unsigned i = 0; i < c->nhere && !c->failed; i++) {
        nccl_result state = NCCL_SUCCESS, r = g->nccl.async_error(c->comm[i], &state);

        r = r ? r : state;
        if (nccl_failed(r)) {
            comm_failed(g, c, c->comm[i], r, what);
            return false;
        }
        settled &= r == NCCL_SUCCESS;
    }
    return settled;
}

/* ---- making one ------------------------------------------------------------------------------ */

static void comm_free(struct gcomm *c)
{
    free(c->units);
    free(c->rank);
    free(c->comm);
    free(c->dev);
    free(c);
}

/* The one that was not used for the longest time, if there are as many as are kept: of this user
 * if it has made its share of them. */
static void comm_evict(struct gpu *g, uint32_t uid)
{
    struct gcomm *c, *oldest = NULL;
    unsigned all = 0, own = 0;

    LIST_FOREACH(c, &g->comms, link) {
        all += !c->failed;
        own += !c->failed && c->uid == uid;
    }
    if (all < COMMS_MOST && own < COMMS_USER)
        return;
    LIST_FOREACH(c, &g->comms, link)
        if (!c->failed && !c->users && (own < COMMS_USER || c->uid == uid) &&
            (!oldest || c->used_ms < oldest->used_ms))
            oldest = c;
    if (oldest)
        comm_abort(g, oldest);
}

static struct gcomm *comm_alloc(const struct ggroup *gr)
{
    struct gcomm *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->g = gr->g;
    c->uid = gr->user->uid;
    c->nunits = gr->nunits;
    c->nhere = gr->nhere;
    c->units = calloc(c->nunits, sizeof *c->units);
    c->rank = calloc(c->nhere, sizeof *c->rank);
    c->comm = calloc(c->nhere, sizeof(nccl_comm));
    c->dev = calloc(c->nhere, sizeof(struct gdevice *));
    if (!c->units || !c->rank || !c->comm || !c->dev) {
        comm_free(c);
        return NULL;
    }
    for (uint32_t u = 0; u < c->nunits; u++)
        c->units[u] = gr->units[u].uuid;
    for (uint32_t u = 0; u < c->nhere; u++) {
        c->dev[u] = gr->here[u].dev;
        c->rank[u] = gr->here[u].number;
    }
    return c;
}

static uint64_t comm_id_number(const struct nccl_id *id)
{
    uint64_t h = 14695981039346656037u;

    for (unsigned i = 0; i < sizeof id->bytes; i++)
        h = (h ^ (uint8_t)id->bytes[i]) * 1099511628211u;
    return h | 1;
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
        device_check(c->dev[u], device_use(c->dev[u]), "cuCtxSetCurrent");
        r = g->nccl.init(&c->comm[u], (int)c->nunits, *id, (int)c->rank[u], &config);
    }
    end = g->nccl.group_end();
    g->current = NULL;
    return nccl_failed(r) ? r : end;
}

/* Begins to make it: the ranks of all nodes meet in the background. One of the same GPUs that
 * another node does not have any more goes, when nobody holds it. */
struct gcomm *comm_begin(struct gop *op)
{
    struct ggroup *gr = op->group;
    struct gpu *g = gr->g;
    struct gcomm *c = comm_find(gr);
    char why[SESSION_TEXT];
    nccl_result r;

    if (gr->nnodes == 1 && comm_new_id(g, &op->id, why))
        return NULL;
    if (c && !c->users)
        comm_abort(g, c);
    comm_evict(g, gr->user->uid);
    c = comm_alloc(gr);
    if (!c)
        return NULL;
    c->number = comm_id_number(&op->id);
    c->used_ms = now_ms();
    LIST_INSERT_HEAD(&g->comms, c, link);
    r = comm_init(g, c, &op->id);
    if (nccl_failed(r))
        comm_failed(g, c, NULL, r, "making a communicator");
    return c;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* An abort frees memory, and that waits for all that the GPUs have to do. */
static bool comm_idle(const struct gpu *g, const struct gcomm *c)
{
    for (unsigned i = 0; i < c->nhere; i++)
        for (unsigned s = 0; s < STREAMS; s++)
            if (c->dev[i]->stream[s].nflying)
                return false;
    return !g->now && !g->naborting;
}

/* Each takes some hundred MB of its GPUs: one that no group is for goes after a while, in which
 * another group of the same ranks mostly comes, and when it is in nobody's way. Other nodes find
 * that this one has none. */
static void comm_rest(struct gpu *g, struct gcomm *c, uint64_t now)
{
    const struct ggroup *gr;

    if (!c->ready || c->users || now <= c->used_ms + (uint64_t)g->timeout_ms)
        return;
    for (unsigned i = 0; i < GROUP_BUCKETS; i++)
        LIST_FOREACH(gr, &g->groups[i], link)
            if (comm_find(gr) == c) {
                c->used_ms = now;
                return;
            }
    if (comm_idle(g, c))
        comm_abort(g, c);
}

void comms_turn(struct gpu *g)
{
    struct gcomm *c, *next;
    uint64_t now;

    if (LIST_EMPTY(&g->comms))
        return;
    now = now_ms();
    if (now - g->comms_ms < COMMS_CHECK_MS)
        return;
    g->comms_ms = now;
    aborts_begin(g);
    for (c = LIST_FIRST(&g->comms); c; c = next) {
        next = LIST_NEXT(c, link);
        if (!c->failed && !c->flying) {
            comm_rest(g, c, now);
        } else if (!c->failed) { /* of what runs, errors only show when they are asked for */
            comm_settled(g, c, "an operation");
        } else if (c->failed && !atomic_load_explicit(&c->aborted, memory_order_acquire)) {
            if (!c->waits && now > c->failed_ms + (uint64_t)g->timeout_ms)
                gpu_fatal(g, "NCCL does not end a communicator within %d ms%s%s", g->timeout_ms,
                          c->why[0] ? ": " : "", c->why);
        } else if (c->failed && !c->users) {
            g->naborting--;
            LIST_REMOVE(c, link);
            comm_free(c);
        }
    }
}
