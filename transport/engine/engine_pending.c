/* engine_pending.c - messages for groups that commd has not announced to this engine.
 *
 * Another node may hear of a group a moment earlier, so what it sends waits here. Or the group was
 * closed here long ago, and members elsewhere still write to it. Every user can do that as often as
 * it likes, so this file bounds what one user costs the others:
 *
 *   - Memory is bounded in all (PENDING_BYTES). When it is spent, the messages of one group are
 *     dropped: a group of the user or of the peer that takes most. A message says whose group it
 *     is. An engine that lies about that is found by what it takes as a peer.
 *   - A group that has lost a message is remembered, gets no more, and fails when it opens: better
 *     than one that waits for ever.
 *   - After a minute the group is not expected any more.
 *
 * A group has one entry for each peer: what another node's engine says in the name of a group in
 * which it has no part is dropped when the group opens, and does not count against it. */
#include "transport/engine/engine_internal.h"

#include "shm/util/wait.h"

enum {
    PENDING_BYTES = 64 << 20,
    ENTRY_COST = 16 << 10, /* bounds the number of entries, and the search for the largest */
    PENDING_MS = 60000,
    SWEEP_MS = 1000,
};

struct luser {
    struct luser *next;
    uint32_t uid;
    unsigned entries;
    size_t cost;
};

struct lgroup {
    TAILQ_ENTRY(lgroup) link;
    struct lgroup *next; /* hash chain */
    uint64_t group;
    unsigned peer;
    struct luser *user; /* owned together */
    struct inbox box;
    size_t cost;
};

static struct lgroup **bucket(struct pending *l, uint64_t group)
{
    return &l->hash[(group * 0x9e3779b97f4a7c15ull) >> 54];
}
_Static_assert(PENDING_HASH == 1 << 10, "bucket()");

void pending_init(struct engine *e)
{
    TAILQ_INIT(&e->pending.groups);
}

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

    l->flooded[i].group = group;
    l->flooded[i].peer = peer;
    l->flooded[i].used = true;
    /* stays above PENDING_FLOODED once it was: all entries have been written then */
    if (++l->nflooded == 2 * PENDING_FLOODED)
        l->nflooded = PENDING_FLOODED;
}

static void pending_charge(struct pending *l, struct lgroup *g, size_t cost)
{
    g->cost += cost;
    g->user->cost += cost;
    l->peer_cost[g->peer] += cost;
    l->cost += cost;
}

static struct luser *user_of(struct pending *l, uint32_t uid)
{
    struct luser *u = l->users;

    while (u && u->uid != uid)
        u = u->next;
    if (u)
        return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    u->next = l->users;
    return l->users = u;
}

static void user_left(struct pending *l, struct luser *u)
{
    if (--u->entries)
        return;
    for (struct luser **p = &l->users; *p; p = &(*p)->next)
        if (*p == u) {
            *p = u->next;
            break;
        }
    free(u);
}

static struct lgroup *group_find(struct pending *l, const struct inmsg *m)
{
    for (struct lgroup *g = *bucket(l, m->h.group); g; g = g->next)
        if (g->group == m->h.group && g->peer == m->peer && g->user->uid == m->h.uid)
            return g;
    return NULL;
}

static struct lgroup *group_new(struct pending *l, const struct inmsg *m)
{
    struct lgroup *g = calloc(1, sizeof *g), **chain = bucket(l, m->h.group);

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
    g->next = *chain;
    *chain = g;
    TAILQ_INSERT_TAIL(&l->groups, g, link);
    pending_charge(l, g, ENTRY_COST);
    return g;
}

/* The oldest message of @g, now the caller's. */
static struct inmsg *group_pop(struct pending *l, struct lgroup *g)
{
    struct inmsg *m = g->box.head;

    inbox_unlink(&g->box, &g->box.head);
    pending_charge(l, g, -inmsg_cost(m));
    l->n--;
    return m;
}

static void group_free(struct engine *e, struct lgroup *g)
{
    struct pending *l = &e->pending;

    while (g->box.head)
        inmsg_free(e, group_pop(l, g));
    pending_charge(l, g, -(size_t)ENTRY_COST);
    for (struct lgroup **p = bucket(l, g->group); *p; p = &(*p)->next)
        if (*p == g) {
            *p = g->next;
            break;
        }
    TAILQ_REMOVE(&l->groups, g, link);
    user_left(l, g->user);
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

static bool takes_part(const struct eboard *eb, unsigned peer)
{
    return eb->among[peer / 64] >> peer % 64 & 1;
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

    for (struct lgroup *g = *bucket(l, eb->b.group), *next; g; g = next) {
        next = g->next;
        if (g->group != eb->b.group)
            continue;
        while (takes_part(eb, g->peer) && g->box.head)
            pending_hand_over(eb, group_pop(l, g));
        group_free(e, g);
    }
    for (unsigned i = 0; i < MIN(l->nflooded, (unsigned)PENDING_FLOODED); i++)
        if (l->flooded[i].used && l->flooded[i].group == eb->b.group) {
            l->flooded[i].used = false;
            if (takes_part(eb, l->flooded[i].peer))
                eboard_fail(
                    eb, CAUSE_NOMEM, (int)l->flooded[i].peer,
                    "more messages came before the group was known here than the engine keeps");
        }
}

/* Who asks after a group that was closed so long ago that we have forgotten it is answered. */
void pending_expire(struct engine *e, int64_t older_than_ms)
{
    struct pending *l = &e->pending;

    for (struct lgroup *g = TAILQ_FIRST(&l->groups), *next; g; g = next) {
        next = TAILQ_NEXT(g, link);
        while (g->box.head && (int64_t)g->box.head->came_ms < older_than_ms) {
            struct inmsg *m = group_pop(l, g);

            if (m->h.step == WIRE_MAIL)
                mail_answer_closed(e, m);
            inmsg_free(e, m);
        }
        if (!g->box.head)
            group_free(e, g);
    }
}

/* By the clock, not with each message. */
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
}

const struct inmsg *pending_oldest(const struct engine *e)
{
    const struct lgroup *g = TAILQ_FIRST(&e->pending.groups);

    return g ? g->box.head : NULL;
}
