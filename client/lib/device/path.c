/* path.c - which way a group's operations on GPUs go.
 *
 * The ranks agree on the path at the first operation, by ordinary all_gathers over the group: there
 * the host waits for the other ranks. First each rank says whether it can take the device path (it
 * has a session, and buffers that another process can map) and where its GPU is. If all can, each
 * attaches to the group at its commd-gpu, and says whether it did. If all did the group takes the
 * device path, else the host path, for good. Where commd says that a node has no GPU service the
 * ranks need not agree.
 *
 * Where COMMD_DEVICE_PATH asks for the device path, and the group cannot take it, the operation
 * fails and names the rank and the reason; the next one agrees anew.
 *
 * When commd-gpu is lost the next operation agrees anew. Ranks may by then have announced different
 * numbers of operations: then nothing fits any more, and the group is broken. */
#include "client/lib/device/session.h"

#include <assert.h>
#include <stdio.h>

#include "shm/gpu/able.h"

/* What a rank says; all of one size. */
struct offer {
    uint32_t can, nccl;
    uint64_t next; /* number of its next operation on GPUs */
    struct cu_uuid uuid;
    char why[128]; /* it cannot */
};

static bool wish_is(const char *word)
{
    const char *s = getenv("COMMD_DEVICE_PATH");

    return s && !strcmp(s, word);
}

int path_check(void)
{
    const char *s = getenv("COMMD_DEVICE_PATH");

    if (!s || !*s || wish_is("auto") || wish_is("device") || wish_is("host"))
        return 0;
    return error_set(error_mine(), COMMD_E_INVALID, "run",
                     "COMMD_DEVICE_PATH is \"%.40s\"; allowed: auto, device, host", s);
}

static int gather_offers(struct device_group *dg, struct offer *offers)
{
    unsigned me = dg->group->rank;
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_GATHER,
                          .dtype = COMMD_U8,
                          .send = &offers[me],
                          .recv = offers,
                          .count = sizeof *offers};

    assert(dg->group->rank < dg->group->board.world);
    return async_run(dg->group, &op);
}

/* ---- units ----------------------------------------------------------------------------------- */

/* What commd-gpu is told of the group, in one piece. */
struct attach_words {
    struct session_msg m;
    uint8_t more[SESSION_MAX_WORLD * (sizeof(struct session_unit) + sizeof(uint16_t))];
};

/* *ret_len: of the message. False: there are too many ranks on one GPU. */
static bool claim_make(const struct device_group *dg, const struct offer *offers,
                       struct attach_words *c, size_t *ret_len)
{
    const struct membership *g = dg->group;
    struct session_unit *units = (void *)c->more;
    uint16_t unit_of_rank[SESSION_MAX_WORLD];
    unsigned n = 0;

    assert(g->board.world <= SESSION_MAX_WORLD);
    for (unsigned k = 0; k < g->board.world; k++) {
        unsigned u = 0;

        while (u < n && (units[u].node != g->members[k].node ||
                         memcmp(&units[u].uuid, &offers[k].uuid, sizeof units[u].uuid)))
            u++;
        if (u == n)
            units[n++] =
                (struct session_unit){.node = (uint16_t)g->members[k].node, .uuid = offers[k].uuid};
        if (++units[u].ranks > SESSION_MAX_RANKS)
            return false;
        unit_of_rank[k] = (uint16_t)u;
    }
    assert(n <= g->board.world);
    memcpy(&units[n], unit_of_rank, g->board.world * sizeof *unit_of_rank);
    c->m.type = SESSION_ATTACH;
    c->m.attach.group = g->board.group;
    c->m.attach.epoch = g->board.epoch;
    c->m.attach.first = dg->next_seq;
    c->m.attach.world = g->board.world;
    c->m.attach.nnodes = g->board.nnodes;
    c->m.attach.me = g->board.me;
    c->m.attach.rank = g->rank;
    c->m.attach.units = n;
    snprintf(c->m.attach.name, sizeof c->m.attach.name, "%.*s", (int)sizeof c->m.attach.name - 1,
             g->name);
    *ret_len = sizeof c->m + n * sizeof *units + g->board.world * sizeof *unit_of_rank;
    return true;
}

/* ---- states ---------------------------------------------------------------------------------- */

static const bool path_may[4][4] = {
    /* to:                 UNKNOWN HOST DEVICE LOST */
    [GROUP_PATH_UNKNOWN] = {0, 1, 1, 0},
    [GROUP_PATH_HOST] = {0, 0, 0, 0},
    [GROUP_PATH_DEVICE] = {0, 0, 0, 1}, /* path_lost() */
    [GROUP_PATH_LOST] = {1, 0, 0, 0},
};

static void path_set(struct device_group *dg, enum group_path to)
{
    assert_held(&dg->lock);
    assert(path_may[dg->path][to]);
    dg->path = to;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

static bool all_can(const struct device_group *dg, const struct offer *offers)
{
    assert(dg->group->board.world <= SESSION_MAX_WORLD);
    for (unsigned k = 0; k < dg->group->board.world; k++)
        if (!offers[k].can)
            return false;
    return true;
}

static bool units_have_nccl(const struct device_group *dg, const struct offer *offers)
{
    assert(dg->session);
    for (unsigned k = 0; k < dg->group->board.world; k++)
        if (!offers[k].nccl || offers[k].nccl != offers[0].nccl)
            return false;
    return true;
}

/* Do the ranks number their next operation alike? If not, some have lost operations. */
static int check_numbers(struct device_group *dg, const struct offer *offers)
{
    struct commd_error e;

    assert_held(&dg->lock);
    for (unsigned k = 1; k < dg->group->board.world; k++) {
        if (offers[k].next == offers[0].next)
            continue;
        error_set(
            &e, COMMD_E_ABORTED, "run",
            "group \"%s\": commd-gpu was lost when rank 0 had made %llu operations on GPUs and "
            "rank %u %llu; the group is broken",
            dg->group->name, (unsigned long long)offers[0].next - 1, k,
            (unsigned long long)offers[k].next - 1);
        e.rank = (int)k;
        group_fail(dg->group, &e);
        *error_mine() = e;
        return e.code;
    }
    return 0;
}

/* Can commd-gpu map what the first operation needs, or lend as much? Later operations need much the
 * same. */
static bool can_share(struct session *s, const struct membership *g, const struct commd_op *op)
{
    struct side_places p = side_places_of(g, op);
    const struct side_place *sides[] = {&p.send, &p.recv};
    bool alone[2] = {false, false};
    size_t recv_at;
    int r = 0;

    assert(g->board.gpu);
    pthread_mutex_lock(&s->calls);
    for (unsigned i = 0; i < 2 && r >= 0; i++) {
        r = memory_share(s, op_name(op), sides[i]);
        alone[i] = r > 0;
    }
    if (r >= 0 && (alone[0] || alone[1])) {
        struct lent *l;

        r = lent_take(s, op_name(op), lent_bytes(&p, alone[0], alone[1], &recv_at), NULL, &l);
        if (!r)
            lent_return(s, l);
    }
    pthread_mutex_unlock(&s->calls);
    return r >= 0;
}

static void drop_lost(struct device *dev)
{
    for (struct session *s = atomic_load(&dev->session); s; s = s->next)
        if (atomic_load(&s->lost)) {
            pthread_mutex_lock(&s->calls);
            lent_drop(s);
            session_shut(s);
            pthread_mutex_unlock(&s->calls);
        }
}

static void cannot(struct offer *mine, const char *why)
{
    assert(why);
    mine->can = 0;
    snprintf(mine->why, sizeof mine->why, "%.*s", (int)sizeof mine->why - 1, why);
}

/* Opens the session, and says what this rank can. */
static void make_offer(struct device_group *dg, const struct commd_op *op, int gpu,
                       struct offer *mine)
{
    struct session *s = NULL;

    assert_held(&dg->lock);
    *mine = (struct offer){.next = dg->next_seq};
    dg->session = NULL;
    drop_lost(dg->dev);
    if (wish_is("host") || gpu < 0) {
        cannot(mine, gpu < 0 ? "no context of a GPU is current" : "COMMD_DEVICE_PATH is host");
        return;
    }
    if (session_get(dg->dev, gpu, &s) || !can_share(s, dg->group, op)) {
        cannot(mine, error_mine()->message);
        return;
    }
    mine->can = 1;
    mine->nccl = s->nccl;
    mine->uuid = s->uuid;
    dg->session = s;
}

static void attach(struct device_group *dg, const struct offer *offers, struct offer *mine)
{
    struct attach_words *c = calloc(1, sizeof *c);
    struct session *s = dg->session;
    size_t len;

    assert(s);
    assert(!dg->attached);
    assert(mine->can);
    if (!c) {
        cannot(mine, "no memory");
    } else if (!claim_make(dg, offers, c, &len)) {
        cannot(mine, "there are too many ranks on one GPU");
    } else if (c->m.attach.units > 1 && !units_have_nccl(dg, offers)) {
        cannot(mine, "the ranks are on several GPUs, and have not all the same NCCL");
    } else {
        pthread_mutex_lock(&s->calls);
        c->m.id = ++s->next_id;
        if (session_ask(s, &c->m, len, NULL, 0))
            cannot(mine, error_mine()->message);
        else
            dg->attached = c->m.id;
        pthread_mutex_unlock(&s->calls);
        dg->nunits = c->m.attach.units;
    }
    free(c);
}

/* Operations may still be pending, in an abort of NCCL or because a lent result has not landed.
 * They are of the past: the group agrees without them. */
static void detach(struct device_group *dg)
{
    struct session_msg m = {.type = SESSION_DETACH, .id = dg->attached};
    struct session *s = dg->session;

    assert(!dg->attached || s);
    if (!dg->attached)
        return;
    session_past(s, dg, false);
    dg->attached = 0;
    if (!atomic_load(&s->lost))
        session_tell(s, &m);
}

/* The group takes the host path, for good; or, by a setting that is the same on all ranks, none. */
static int take_host_path(struct device_group *dg, const struct commd_op *op, const char *why)
{
    assert(dg->path == GROUP_PATH_UNKNOWN);
    if (wish_is("device"))
        return error_set(error_mine(), COMMD_E_INVALID, op_name(op),
                         "%s: group \"%s\" cannot take the device path, which COMMD_DEVICE_PATH "
                         "asks for: %s",
                         op_name(op), dg->group->name, why);
    path_set(dg, GROUP_PATH_HOST);
    return 0;
}

static int refuse_path(struct device_group *dg, const struct commd_op *op,
                       const struct offer *offers)
{
    char why[sizeof offers->why + 32];
    unsigned k = 0;

    assert(!all_can(dg, offers));
    while (offers[k].can)
        k++;
    snprintf(why, sizeof why, "rank %u: %.*s", k, (int)sizeof offers->why, offers[k].why);
    detach(dg);
    return take_host_path(dg, op, why);
}

static int agree_with_all(struct device_group *dg, const struct commd_op *op, int gpu,
                          struct offer *offers)
{
    struct offer *mine = &offers[dg->group->rank];
    int r;

    assert(dg->path == GROUP_PATH_UNKNOWN);
    assert(!dg->attached);
    make_offer(dg, op, gpu, mine);
    r = gather_offers(dg, offers);
    if (!r)
        r = check_numbers(dg, offers);
    if (r)
        return r;
    if (all_can(dg, offers)) {
        attach(dg, offers, mine);
        r = gather_offers(dg, offers);
        if (r)
            return r;
    }
    if (!all_can(dg, offers))
        return refuse_path(dg, op, offers);
    assert(dg->session);
    assert(dg->attached);
    path_set(dg, GROUP_PATH_DEVICE);
    return 0;
}

/* 0: dg->path is set. Or COMMD_E_*: it stays unknown. */
static int agree(struct device_group *dg, const struct commd_op *op, int gpu)
{
    unsigned world = dg->group->board.world;
    struct offer *offers;
    int r;

    assert(dg->path == GROUP_PATH_UNKNOWN);
    assert(gpu >= -1);
    if (!dg->group->board.gpu)
        return take_host_path(dg, op, "a node of it has no GPU service");
    if (world > SESSION_MAX_WORLD)
        return take_host_path(dg, op, "it has too many ranks");
    offers = calloc(world, sizeof *offers);
    if (!offers)
        return error_set(error_mine(), COMMD_E_NOMEM, "run", "no memory for %u ranks", world);
    detach(dg);
    r = agree_with_all(dg, op, gpu, offers);
    free(offers);
    return r;
}

/* ---- an operation ---------------------------------------------------------------------------- */

static struct op_desc describe(const struct membership *g, const struct commd_op *op)
{
    const struct coll_info *info = &coll_table[op->coll];
    const size_t *counts = coll_blocks(info->send) ? op->send_counts : op->recv_counts;
    bool data = info->window != WINDOW_NONE;
    struct op_desc d = {
        .count = data && !info->counted ? op->count : 0,
        .root = info->rooted ? (uint32_t)op->root : 0,
        .coll = (uint8_t)op->coll,
        .dtype = data ? (uint8_t)op->dtype : 0,
        .redop = info->reduces ? (uint8_t)op->redop : 0,
    };

    assert(op->coll >= 0);
    assert(op->coll < COLL_COUNT);
    if (!info->counted || info->window != WINDOW_BLOCKS)
        return d;
    for (unsigned k = 0; k < g->board.world; k++)
        d.count = MAX(d.count, (uint64_t)counts[k]);
    _Static_assert(sizeof(size_t) == sizeof(uint64_t), "counts are what is announced");
    d.digest = op_digest((const uint64_t *)counts, g->board.world);
    return d;
}

/* Where the operation's buffers are; if it has none, where its stream is. -1: not known. */
static int gpu_of(const struct membership *g, const struct commd_op *op)
{
    struct side_places places = side_places_of(g, op);
    const struct side_place *sides[] = {&places.send, &places.recv};
    cu_device ordinal;
    int gpu;

    assert(!is_p2p(op));
    for (unsigned i = 0; i < 2; i++) {
        uintptr_t lo, hi;

        side_span(sides[i], &lo, &hi);
        if (lo < hi && driver_owns((const void *)lo, &gpu))
            return gpu;
    }
    return driver(NULL)->ctx_device(&ordinal) ? -1 : ordinal;
}

/* A failure since the call began is told first: ranks that were told of it need not come to agree.
 */
static int leave_path(struct device_group *dg)
{
    assert(dg->path == GROUP_PATH_LOST);
    assert(dg->session);
    if (atomic_load(&dg->session->lost))
        session_release(dg->session);
    path_set(dg, GROUP_PATH_UNKNOWN);
    return session_tell_failure(dg);
}

static int start_locked(struct device_group *dg, const struct commd_op *op,
                        const struct telling *how)
{
    struct op_desc desc;
    int r = 0;

    assert_held(&dg->lock);
    if (dg->path == GROUP_PATH_DEVICE && atomic_load(&dg->session->lost))
        path_lost(dg);
    if (dg->path == GROUP_PATH_LOST)
        r = leave_path(dg);
    if (!r && dg->path == GROUP_PATH_UNKNOWN)
        r = agree(dg, op, gpu_of(dg->group, op));
    if (r)
        return r;
    if (dg->path == GROUP_PATH_HOST)
        return staged_begin(dg, op, how);
    assert(dg->path == GROUP_PATH_DEVICE || dg->path == GROUP_PATH_LOST);
    desc = describe(dg->group, op);
    return gpu_able(&desc, dg->nunits) ? announce(dg, op, &desc, how) : staged_begin(dg, op, how);
}

int path_start(struct device_group *dg, const struct commd_op *op, int gpu,
               const struct telling *how)
{
    return begin_in_turn(start_locked, dg, op, gpu, how);
}

void path_leave(struct device_group *dg)
{
    assert(dg->group->ctx == dg->dev->ctx);
    /* also on sessions that the group had before: results that were lent may not have landed */
    for (struct session *s = atomic_load(&dg->dev->session); s; s = s->next)
        session_past(s, dg, true);
    if (dg->session)
        detach(dg); /* which ends what is pending */
}

static struct session *kept; /* their contexts are gone */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

void path_end(struct session *s)
{
    struct session *last = s;

    if (!s)
        return;
    for (;; last = last->next) {
        session_lose(last, "this process has disconnected");
        memory_forget_all(last);
        lent_drop(last);
        close_fdp(&last->sock);
        close_fdp(&last->bell);
        if (!last->next)
            break;
    }
    pthread_mutex_lock(&kept_lock);
    last->next = kept; /* so that leak checkers see that it is known */
    kept = s;
    pthread_mutex_unlock(&kept_lock);
}
