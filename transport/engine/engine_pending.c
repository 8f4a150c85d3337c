/* engine_pending.c - messages for groups that commd has not announced to this engine.
 *
 * Another node may hear of a group a moment earlier, so what it sends waits here. Or the group was
 * closed here long ago, and members elsewhere still write to it. Every user can bring that about as
 * often as it likes, so this file bounds what one user costs the others:
 *
 *   - All messages together take PENDING_BYTES at most. When these are spent, the messages of one
 *     group are dropped: a group of the user or of the peer that takes most. A message says whose
 *     group it is; an engine that lies about that is found by what it takes as a peer.
 *   - A group that has lost a message is remembered, gets no more, and fails when it opens: better
 *     than one that waits for ever.
 *   - After a minute the group is not expected any more.
 *
 * A group has one entry for each peer. If a peer has no part in the group, its messages are dropped
 * when the group opens, and do not count against the group. */
#include "transport/engine/engine_internal.h"

#include "shm/util/wait.h"

enum {
    PENDING_BYTES = 64 << 20,
    ENTRY_COST = 16 << 10, /* bounds the number of entries, and the search for the largest */
    PENDING_MS = 60000,
    SWEEP_MS = 1000,
};

struct luser {
    LIST_ENTRY(luser) link;
    uint32_t uid;
    unsigned entries;
    size_t cost;
};

struct lgroup {
    TAILQ_ENTRY(lgroup) link;
    LIST_ENTRY(lgroup) hash_link;
    uint64_t group;
    unsigned peer;
    struct luser *user; /* owned by all its groups together */
    struct inbox box;
    size_t cost;
};

bool pending_flooded(const struct engine *e, uint64_t group, unsigned peer)
{
    const struct pending *l = &e->pending;

    for (unsigned i = 0; i < MIN(l->nflooded, (unsigned)PENDING_FLOODED); i++)
        if (l->flooded[i].group == group && l->flooded[i].peer == peer && l->flooded[i].used)
            return true;
    return false;
}

void pending_mark_flooded(struct engine *e, uint64_t group, unsigned peer)
{
    struct pending *l = &e->pending;
    unsigned i = l->nflooded % PENDING_FLOODED;

    assert(l->nflooded < 2 * PENDING_FLOODED);
    assert(peer < FABRIC_MAX_PEERS);
    l->flooded[i].group = group;
    l->flooded[i].peer = peer;
    l->flooded[i].used = true;
    /* from PENDING_FLOODED on all entries have been written: never below it again */
    if (++l->nflooded == 2 * PENDING_FLOODED)
        l->nflooded = PENDING_FLOODED;
}

static void pending_charge(struct pending *l, struct lgroup *g, size_t cost)
{
    assert(g->cost <= g->user->cost);
    assert(g->user->cost <= l->cost);
    g->cost += cost;
    g->user->cost += cost;
    l->peer_cost[g->peer] += cost;
    l->cost += cost;
}

static struct luser *user_of(struct pending *l, uint32_t uid)
{
    struct luser *u;

    LIST_FOREACH(u, &l->users, link)
        if (u->uid == uid)
            return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    LIST_INSERT_HEAD(&l->users, u, link);
    return u;
}

static void user_left(struct luser *u)
{
    assert(u->entries > 0);
    if (--u->entries)
        return;
    assert(u->cost == 0);
    LIST_REMOVE(u, link);
    free(u);
}

static struct lgroup *group_find(struct pending *l, const struct inmsg *m)
{
    struct lgroup *g;

    LIST_FOREACH(g, &l->hash[hash_bucket(m->h.group)], hash_link)
        if (g->group == m->h.group && g->peer == m->peer && g->user->uid == m->h.uid)
            return g;
    return NULL;
}

static struct lgroup *group_new(struct pending *l, const struct inmsg *m)
{
    struct lgroup *g = calloc(1, sizeof *g);

    assert(m->peer < FABRIC_MAX_PEERS);
    if (!g)
        return NULL;
    g->user = user_of(l, m->h.uid);
    if (!g->user) {
        free(g);
        return NULL;
    }
    g->user->entries++;
    g->group = m->h.group;
    g->peer = m->peer;
    inbox_init(&g->box);
    LIST_INSERT_HEAD(&l->hash[hash_bucket(g->group)], g, hash_link);
    TAILQ_INSERT_TAIL(&l->groups, g, link);
    pending_charge(l, g, ENTRY_COST);
    return g;
}

/* The oldest message of @g, now the caller's. */
static struct inmsg *group_pop(struct pending *l, struct lgroup *g)
{
    struct inmsg *m = TAILQ_FIRST(&g->box.all);

    assert(l->n > 0);
    assert(g->cost >= ENTRY_COST + inmsg_cost(m));
    inbox_unlink(&g->box, m);
    pending_charge(l, g, -inmsg_cost(m));
    l->n--;
    return m;
}

static void group_free(struct engine *e, struct lgroup *g)
{
    struct pending *l = &e->pending;

    while (g->box.n)
        inmsg_free(e, group_pop(l, g));
    assert(g->cost == ENTRY_COST);
    pending_charge(l, g, -(size_t)ENTRY_COST);
    LIST_REMOVE(g, hash_link);
    TAILQ_REMOVE(&l->groups, g, link);
    user_left(g->user);
    free(g);
}

static void group_flooded(struct engine *e, struct lgroup *g)
{
    pending_mark_flooded(e, g->group, g->peer);
    group_free(e, g);
}

/* By the user or the peer that takes most; then by the other of the two, then by itself. */
static bool takes_more(const struct pending *l, const struct lgroup *a, const struct lgroup *b)
{
    size_t user_a = a->user->cost, peer_a = l->peer_cost[a->peer];
    size_t user_b = b->user->cost, peer_b = l->peer_cost[b->peer];

    if (MAX(user_a, peer_a) != MAX(user_b, peer_b))
        return MAX(user_a, peer_a) > MAX(user_b, peer_b);
    if (MIN(user_a, peer_a) != MIN(user_b, peer_b))
        return MIN(user_a, peer_a) > MIN(user_b, peer_b);
    return a->cost > b->cost;
}

static void make_room(struct engine *e)
{
    struct pending *l = &e->pending;

    while (l->cost > PENDING_BYTES) {
        struct lgroup *most = TAILQ_FIRST(&l->groups), *g;

        assert(most);
        TAILQ_FOREACH(g, &l->groups, link)
            if (takes_more(l, g, most))
                most = g;
        group_flooded(e, most);
    }
}

void pending_keep(struct engine *e, struct inmsg *m)
{
    struct pending *l = &e->pending;
    struct lgroup *g = group_find(l, m);

    if (!g)
        g = group_new(l, m);
    if (!g) {
        pending_mark_flooded(e, m->h.group, m->peer);
        inmsg_free(e, m);
        return;
    }
    if (!inbox_push(&g->box, m)) {
        inmsg_free(e, m);
        group_flooded(e, g);
        return;
    }
    l->n++;
    pending_charge(l, g, inmsg_cost(m));
    make_room(e);
}

static void pending_hand_over(struct eboard *eb, struct inmsg *m)
{
    unsigned peer = m->peer;

    if (m->h.step == WIRE_MAIL) {
        mail_arrived(eb, m);
        inmsg_done(eb->e, m);
    } else if (eb->dead || !inbox_keep(eb, m)) {
        inmsg_free(eb->e, m);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)peer,
                    "another node's engine sent more than was asked for");
    }
}

void pending_adopt(struct eboard *eb)
{
    struct engine *e = eb->e;
    struct pending *l = &e->pending;

    for (struct lgroup *g = LIST_FIRST(&l->hash[hash_bucket(eb->b.group)]), *next; g; g = next) {
        next = LIST_NEXT(g, hash_link);
        if (g->group != eb->b.group)
            continue;
        while (eboard_among(eb, g->peer) && g->box.n)
            pending_hand_over(eb, group_pop(l, g));
        group_free(e, g);
    }
    for (unsigned i = 0; i < MIN(l->nflooded, (unsigned)PENDING_FLOODED); i++)
        if (l->flooded[i].used && l->flooded[i].group == eb->b.group) {
            l->flooded[i].used = false;
            if (eboard_among(eb, l->flooded[i].peer))
                eboard_fail(
                    eb, CAUSE_NOMEM, (int)l->flooded[i].peer,
                    "more messages came before the group was known here than the engine keeps");
        }
}

/* A rank that asks after a group closed so long ago that we have forgotten it is answered. */
void pending_expire(struct engine *e, int64_t older_than_ms)
{
    struct pending *l = &e->pending;

    for (struct lgroup *g = TAILQ_FIRST(&l->groups), *next; g; g = next) {
        next = TAILQ_NEXT(g, link);
        while (g->box.n && (int64_t)TAILQ_FIRST(&g->box.all)->came_ms < older_than_ms) {
            struct inmsg *m = group_pop(l, g);

            if (m->h.step == WIRE_MAIL)
                mail_answer_closed(e, m);
            inmsg_free(e, m);
        }
        if (!g->box.n)
            group_free(e, g);
    }
}

void pending_sweep(struct engine *e)
{
    uint64_t now = now_ms();

    if (now - e->pending.swept_ms < SWEEP_MS)
        return;
    e->pending.swept_ms = now;
    pending_expire(e, (int64_t)now - PENDING_MS);
}

void pending_drop_peer(struct engine *e, unsigned peer)
{
    struct pending *l = &e->pending;

    for (struct lgroup *g = TAILQ_FIRST(&l->groups), *next; g; g = next) {
        next = TAILQ_NEXT(g, link);
        if (g->peer == peer)
            group_free(e, g);
    }
    for (unsigned i = 0; i < PENDING_FLOODED; i++)
        if (l->flooded[i].peer == peer)
            l->flooded[i].used = false;
}

void pending_fini(struct engine *e)
{
    struct lgroup *g;

    while ((g = TAILQ_FIRST(&e->pending.groups)))
        group_free(e, g);
    assert(e->pending.n == 0);
    assert(e->pending.cost == 0);
}

const struct inmsg *pending_oldest(const struct engine *e)
{
    const struct lgroup *g = TAILQ_FIRST(&e->pending.groups);

    return g ? TAILQ_FIRST(&g->box.all) : NULL;
}
