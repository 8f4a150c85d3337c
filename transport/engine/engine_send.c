/* engine_send.c - in which order messages go to another node, where several groups have some.
 *
 * If one group alone is active, its messages go to the fabric at once. So do those of a group that
 * has sent so much in a row that no other seems to want to send (crowded()).
 *
 * Else each message waits for its turn, for each node by itself. First comes the user that is next
 * by weight (transport/schedule/fair.h), of that user the group that is next (all have one weight),
 * and of that group short messages before long ones. So a user gets no more by many groups than by
 * one. A user that has nothing to send between two operations gets what it missed afterwards
 * (USER_PAUSE). LINK_WINDOW bounds what the fabric has taken and the other engine has not: so
 * messages queue here, in the right order, and not in the kernel or the network. The other engine
 * says how much it has taken (WIRE_TAKEN) of the messages that ask for that (WIRE_COUNTED). In a
 * turn of the engine TURN_BYTES are handed over at most, which keeps the turn short.
 *
 * A short message of a group that has sent no more than its share goes as `express`, past all of
 * this: a barrier does not wait for the gradients of another job. The group and its user may be
 * ahead of their shares only by so much (GROUP_AHEAD, USER_AHEAD), so a flood of short messages
 * waits like all others. While the link has room no message waits: a share is what each gets when
 * all want more than there is.
 *
 * Messages of one group may overtake each other: the receiver finds by their numbers where they
 * belong.
 *
 * Who wakes what waits here: the next turn (sends_turn()), after WIRE_TAKEN or a turn that was
 * full. What if the peer is gone now: sends_drop_peer() ends what waits. What if the board goes: it
 * stays mapped until all is sent (`inflight`). */
#include "transport/engine/engine_op.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEND_SHORT = FABRIC_EXPRESS_MAX,
    SEND_COST = 256, /* of a message, beside its body */
    /* Enough to fill a link of 100 Gbit/s whose messages take 40 us. */
    LINK_WINDOW = 512 << 10,
    TURN_BYTES = 128 << 10,
    TELL_BYTES = 128 << 10, /* the sender is told when so much was taken */
    GROUP_AHEAD = 64 << 10,
    USER_AHEAD = 512 << 10,
    USER_PAUSE = 2 << 20, /* what others send meanwhile: between two operations of 16 MB */
    SOLE_BYTES = 4 << 20, /* of one board in a row: no other wants to send */
};

struct send_item {
    STAILQ_ENTRY(send_item) link;
    struct wire_hdr *h; /* hdr[] */
    size_t hdr_len, len;
    const uint8_t *body;
    fabric_done_fn done;
    void *arg;
    _Alignas(16) uint8_t hdr[sizeof(struct wire_mail)];
};

STAILQ_HEAD(send_list, send_item);

/* A user on the way to one node. */
struct send_user {
    struct fair_node node; /* in link->users */
    struct fair groups;
    const struct euser *user; /* borrowed: outlives its boards */
    struct send_link *link;   /* borrowed */
    unsigned ngroups;         /* that refer to this */
    LIST_ENTRY(send_user) list_link;
};

/* A board on the way to one node. */
struct send_group {
    struct fair_node node;  /* in user->groups */
    struct send_user *user; /* borrowed */
    struct eboard *eb;
    unsigned to; /* node in the group */
    struct send_list shorts, longs;
};

static size_t cost_of(size_t len)
{
    return len + SEND_COST;
}

static bool has_items(const struct send_group *g)
{
    return !STAILQ_EMPTY(&g->shorts) || !STAILQ_EMPTY(&g->longs);
}

/* ---- users and groups on the way to a node --------------------------------------------------- */

static struct send_user *send_user_get(struct send_link *l, const struct euser *user)
{
    struct send_user *u;

    LIST_FOREACH(u, &l->all, list_link)
        if (u->user == user)
            return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    fair_node_init(&u->node, user->weight);
    fair_init(&u->groups, 0);
    u->user = user;
    u->link = l;
    LIST_INSERT_HEAD(&l->all, u, list_link);
    return u;
}

/* NULL: no memory. */
static struct send_group *group_get(struct eboard *eb, unsigned node)
{
    struct send_group *g;

    assert(node < eb->geom.nnodes);
    assert(node != eb->geom.me);
    if (!eb->sends)
        eb->sends = calloc(eb->geom.nnodes, sizeof(struct send_group *));
    if (!eb->sends || eb->sends[node])
        return eb->sends ? eb->sends[node] : NULL;
    g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->user = send_user_get(&eb->e->links[eb->peers[node]], eb->user);
    if (!g->user) {
        free(g);
        return NULL;
    }
    g->user->ngroups++;
    fair_node_init(&g->node, FAIR_WEIGHT);
    g->eb = eb;
    g->to = node;
    STAILQ_INIT(&g->shorts);
    STAILQ_INIT(&g->longs);
    eb->sends[node] = g;
    return g;
}

void sends_board_free(struct eboard *eb)
{
    for (unsigned n = 0; eb->sends && n < eb->geom.nnodes; n++) {
        struct send_group *g = eb->sends[n];

        if (!g)
            continue;
        assert(!has_items(g));
        assert(g->user->ngroups > 0);
        if (--g->user->ngroups == 0) {
            LIST_REMOVE(g->user, list_link);
            free(g->user);
        }
        free(g);
    }
    free(eb->sends);
}

void sends_weigh(struct engine *e, const struct euser *user)
{
    struct send_user *u;

    for (unsigned peer = 0; peer < FABRIC_MAX_PEERS; peer++)
        LIST_FOREACH(u, &e->links[peer].all, list_link)
            if (u->user == user)
                fair_node_weigh(&u->node, user->weight);
}

/* Users that were told of go to the end of the list, behind those for which there was no room. */
unsigned engine_sent(struct engine *e, struct engine_sent *told, unsigned room)
{
    struct euser *u, *next, *last = TAILQ_LAST(&e->users, euser_list);
    uint64_t now = now_ms();
    unsigned n = 0;

    for (u = TAILQ_FIRST(&e->users); u && n < room; u = u == last ? NULL : next) {
        next = TAILQ_NEXT(u, link);
        if (u->sent != u->told) {
            told[n++] = (struct engine_sent){u->uid, now - u->told_ms, u->sent - u->told};
            TAILQ_REMOVE(&e->users, u, link);
            TAILQ_INSERT_TAIL(&e->users, u, link);
        }
        u->told = u->sent;
        u->told_ms = now;
    }
    return n;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static int enqueue(struct send_group *g, const struct send_item *what)
{
    struct send_link *l = g->user->link;
    struct engine *e = g->eb->e;
    struct send_item *it = malloc(sizeof *it);

    assert(what->hdr_len >= sizeof(struct wire_hdr));
    assert(what->hdr_len <= sizeof it->hdr);
    if (!it)
        return -ENOMEM;
    *it = *what;
    memcpy(it->hdr, what->h, what->hdr_len);
    it->h = (struct wire_hdr *)(void *)it->hdr;
    if (it->len <= SEND_SHORT)
        STAILQ_INSERT_TAIL(&g->shorts, it, link);
    else
        STAILQ_INSERT_TAIL(&g->longs, it, link);
    fair_enter(&g->user->groups, &g->node);
    fair_enter(&l->users, &g->user->node);
    if (!l->listed)
        TAILQ_INSERT_TAIL(&e->links_waiting, l, waiting);
    l->listed = true;
    return 0;
}

static struct send_item *dequeue(struct send_group *g)
{
    struct send_list *from = STAILQ_EMPTY(&g->shorts) ? &g->longs : &g->shorts;
    struct send_item *it = STAILQ_FIRST(from);
    struct send_user *u = g->user;
    struct send_link *l = u->link;

    assert(it);
    assert(l->listed);
    assert(g->node.listed);
    assert(u->node.listed);
    STAILQ_REMOVE_HEAD(from, link);
    if (!has_items(g))
        fair_leave(&u->groups, &g->node);
    if (!fair_first(&u->groups))
        fair_leave(&l->users, &u->node);
    if (!fair_first(&l->users)) {
        TAILQ_REMOVE(&g->eb->e->links_waiting, l, waiting);
        l->listed = false;
    }
    return it;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Do several groups have something to send at present? */
static bool crowded(const struct engine *e)
{
    return e->nactive > 1 && (e->sole_bytes < SOLE_BYTES || !TAILQ_EMPTY(&e->links_waiting));
}

/* Are the group and its user within their shares, or only a little ahead of these? */
static bool modest(const struct send_group *g)
{
    return fair_modest(&g->user->groups, &g->node, GROUP_AHEAD) &&
           fair_modest(&g->user->link->users, &g->user->node, USER_AHEAD);
}

static bool link_has_room(const struct engine *e, const struct send_link *l)
{
    return e->turn_left && l->under_way < LINK_WINDOW;
}

/* As fabric's send(). */
static int hand_over(struct send_group *g, const struct send_item *it)
{
    struct engine *e = g->eb->e;
    struct fabric *f = e->f;
    struct send_user *u = g->user;
    size_t cost = cost_of(it->len);
    int r;

    it->h->flags |= WIRE_COUNTED;
    f->express = it->len <= SEND_SHORT && modest(g);
    fair_charge(&u->groups, &g->node, cost);
    fair_charge(&u->link->users, &u->node, cost);
    r = f->ops->send(f, g->eb->peers[g->to], it->h, it->hdr_len, it->body, it->len, it->done,
                     it->arg);
    f->express = false;
    if (r < 0)
        return r;
    u->link->under_way += cost;
    e->turn_left -= MIN(e->turn_left, cost);
    return r;
}

/* The first message of @g, which has waited: eboard_send() has said that it is on its way. */
static void hand_over_first(struct send_group *g)
{
    struct send_item *it = dequeue(g);
    struct eboard *eb = g->eb;
    int r = hand_over(g, it);

    if (r < 0 && !eb->dead)
        eboard_link_failed(eb, g->to, r);
    if (r != 0)
        it->done(it->arg, MIN(r, 0));
    free(it);
}

int eboard_send(struct eboard *eb, unsigned node, struct wire_hdr *h, size_t hdr_len,
                const void *body, fabric_done_fn done, void *arg)
{
    struct engine *e = eb->e;
    struct fabric *f = e->f;
    struct send_item it = {
        .h = h, .hdr_len = hdr_len, .len = h->len, .body = body, .done = done, .arg = arg};
    struct send_group *g;
    bool ready;

    assert(!eb->dead);
    assert(h->group == eb->b.group);
    assert(node != eb->geom.me);
    eb->user->sent += h->len;
    if (e->sole != eb)
        e->sole_bytes = 0;
    e->sole = eb;
    e->sole_bytes += cost_of(h->len);
    g = crowded(e) ? group_get(eb, node) : NULL;
    if (!g)
        return f->ops->send(f, eb->peers[node], h, hdr_len, body, h->len, done, arg);
    f->more = false; /* what follows may take another way */
    ready = (!g->user->link->listed && link_has_room(e, g->user->link)) ||
            (h->len <= SEND_SHORT && STAILQ_EMPTY(&g->shorts) && modest(g));
    return ready ? hand_over(g, &it) : enqueue(g, &it);
}

static struct send_group *first_group(const struct send_link *l)
{
    struct send_user *u = container_of(fair_first(&l->users), struct send_user, node);

    assert(l->listed);
    assert(fair_first(&l->users));
    assert(fair_first(&u->groups));
    return container_of(fair_first(&u->groups), struct send_group, node);
}

bool sends_turn(struct engine *e)
{
    struct send_link *l, *next;
    bool moved = false;

    e->turn_left = TURN_BYTES;
    /* the next turn begins with the link behind the one that this one ended with */
    for (l = TAILQ_FIRST(&e->links_waiting); l; l = next) {
        next = TAILQ_NEXT(l, waiting);
        assert(l->listed);
        while (l->listed && link_has_room(e, l)) {
            hand_over_first(first_group(l));
            moved = true;
        }
        if (l->listed && !e->turn_left) {
            TAILQ_REMOVE(&e->links_waiting, l, waiting);
            TAILQ_INSERT_TAIL(&e->links_waiting, l, waiting);
            break;
        }
    }
    if (e->f)
        e->f->crowded = crowded(e);
    return moved;
}

void sends_flush(struct eboard *eb)
{
    for (unsigned n = 0; eb->sends && n < eb->geom.nnodes; n++)
        while (eb->sends[n] && has_items(eb->sends[n]))
            hand_over_first(eb->sends[n]);
}

void sends_drop_peer(struct engine *e, unsigned peer)
{
    struct send_link *l = &e->links[peer];

    assert(peer < FABRIC_MAX_PEERS);
    l->under_way = l->taken = 0;
    while (l->listed) {
        struct send_item *it = dequeue(first_group(l));

        it->done(it->arg, -ECANCELED);
        free(it);
    }
    assert(!fair_first(&l->users));
}

void sends_init(struct engine *e)
{
    TAILQ_INIT(&e->links_waiting);
    for (unsigned peer = 0; peer < FABRIC_MAX_PEERS; peer++)
        fair_init(&e->links[peer].users, USER_PAUSE);
}

void sends_fini(struct engine *e)
{
    for (unsigned peer = 0; peer < FABRIC_MAX_PEERS; peer++)
        sends_drop_peer(e, peer);
}

/* ---- what the other side has taken ----------------------------------------------------------- */

void sent_nothing(void *arg, int st)
{
}

/* The body of the message may still be on its way: that is no more than this one body. */
void sends_count_taken(struct engine *e, unsigned peer, size_t len)
{
    struct send_link *l = &e->links[peer];
    struct wire_hdr h = {.step = WIRE_TAKEN};

    assert(peer < FABRIC_MAX_PEERS);
    assert(len <= PLAN_CHUNK_NET);
    l->taken += cost_of(len);
    if (l->taken < TELL_BYTES)
        return;
    h.op = (uint32_t)MIN(l->taken, (size_t)UINT32_MAX);
    e->f->express = true;
    if (e->f->ops->send(e->f, peer, &h, sizeof h, NULL, 0, sent_nothing, NULL) >= 0)
        l->taken -= h.op;
    e->f->express = false;
}

void sends_were_taken(struct engine *e, unsigned peer, uint32_t bytes)
{
    struct send_link *l = &e->links[peer];

    assert(peer < FABRIC_MAX_PEERS);
    l->under_way -= MIN(l->under_way, (size_t)bytes);
}
