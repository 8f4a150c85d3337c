/* engine.c - the boards of the engine: coming, going, being looked at.
 *
 * A board is *active* while something may happen to it: it is polled each turn. After a while
 * without, and before the engine sleeps, it is armed: engine_asleep is set in it, and the next
 * member that announces something rings. The order of store, fence and second look is the one
 * argued in shm/wait.c.
 *
 * Who wakes a board: a member's doorbell (engine_bells.c), a message from another node, and the
 * safety net engine_poll_all(). What if a peer node dies now: commd breaks the group for its
 * members and deletes the board; until then it just makes no progress. What if we are stopped
 * now: members wait; commd misses our answers to its pings and replaces us.
 *
 * Memory under the network: requests in flight name the board; a dropped board stays mapped in
 * the graveyard until the last callback has run. */
#include "transport/engine_internal.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "shm/wait.h"

enum {
    CLOSING_MS = 10000,
    SCRATCH_KEEP = 16,
    USERS_KEEP = 256, /* whose last group is closed */
};

static unsigned bucket(uint64_t group)
{
    return (unsigned)((group * 0x9e3779b97f4a7c15ull) >> 54) % ENGINE_HASH;
}

struct eboard *eboard_find(struct engine *e, uint64_t group)
{
    for (struct eboard *eb = e->hash[bucket(group)]; eb; eb = eb->next)
        if (eb->b.group == group)
            return eb;
    return NULL;
}

void eboard_activate(struct eboard *eb)
{
    if (eb->active)
        return;
    eb->active = true;
    eb->active_next = eb->e->active;
    eb->e->active = eb;
    atomic_store_explicit(&eb->b.hdr->engine_asleep, 0, memory_order_relaxed);
}

struct sbuf *sbuf_get(struct eboard *eb, size_t len)
{
    struct sbuf *s = eb->e->sbufs;
    bool pooled = len <= PLAN_SMALL;

    if (pooled && s)
        eb->e->sbufs = s->next;
    else
        s = malloc(sizeof *s + (pooled ? (size_t)PLAN_SMALL : len));
    if (!s)
        return NULL;
    s->eb = eb;
    s->lent = NULL;
    s->pooled = pooled;
    eb->inflight++;
    return s;
}

void sbuf_put(struct sbuf *s)
{
    struct engine *e = s->eb->e;

    s->eb->inflight--;
    free(steal_ptr(s->lent));
    if (!s->pooled) {
        free(s);
        return;
    }
    s->next = e->sbufs;
    e->sbufs = s;
}

uint8_t *scratch_get(struct engine *e)
{
    struct chunk *c = e->scratch;

    if (c) {
        e->scratch = c->next;
        e->nscratch--;
        return (uint8_t *)c;
    }
    return malloc(PLAN_CHUNK_NET);
}

void scratch_put(struct engine *e, uint8_t *p)
{
    struct chunk *c = (struct chunk *)p;

    if (!p)
        return;
    if (e->nscratch == SCRATCH_KEEP) {
        free(p);
        return;
    }
    c->next = e->scratch;
    e->scratch = c;
    e->nscratch++;
}

/* ---- users -------------------------------------------------------------------------------- */

/* Those whose boards are gone stand in the order in which that happened. */
static void users_trim(struct engine *e)
{
    struct euser *u, *next;

    for (u = TAILQ_FIRST(&e->users); u && e->nusers > USERS_KEEP; u = next) {
        next = TAILQ_NEXT(u, link);
        if (u->nboards)
            continue;
        TAILQ_REMOVE(&e->users, u, link);
        e->nusers--;
        free(u);
    }
}

/* One more board of user @uid. NULL: no memory. */
static struct euser *user_ref(struct engine *e, uint32_t uid)
{
    struct euser *u;

    TAILQ_FOREACH(u, &e->users, link)
        if (u->uid == uid)
            break;
    if (!u) {
        u = calloc(1, sizeof *u);
        if (!u)
            return NULL;
        u->uid = uid;
        TAILQ_INSERT_TAIL(&e->users, u, link);
        e->nusers++;
        u->nboards = 1;
        users_trim(e);
        return u;
    }
    u->nboards++;
    return u;
}

static void user_unref(struct engine *e, struct euser *u)
{
    if (!u || --u->nboards)
        return;
    TAILQ_REMOVE(&e->users, u, link);
    TAILQ_INSERT_TAIL(&e->users, u, link);
}

/* ---- life of a board ---------------------------------------------------------------------- */

static void eboard_free(struct eboard *eb)
{
    if (!eb)
        return;
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        scratch_put(eb->e, eb->steps[i].scratch);
    mail_free(eb);
    bells_board_del(eb);
    board_unmap(&eb->b);
    free(eb->node_start);
    free(eb->peers);
    free(eb->local_rank);
    free(eb->rank_node);
    free(eb->seat_rank);
    free(eb->clients);
    free(eb->rows);
    free(eb->acc);
    free(eb->tmp);
    user_unref(eb->e, eb->user);
    if (eb->e->nboards == 0)
        malloc_trim(0); /* buffers of all sizes came and went: their pages go back */
    free(eb);
}

static void eboard_freep(struct eboard **eb)
{
    eboard_free(*eb);
}

static int eboard_tables(struct eboard *eb, const struct msg_board_add *m)
{
    unsigned local = 0;

    eb->node_start = calloc(m->nnodes + 1, sizeof *eb->node_start);
    eb->peers = calloc(m->nnodes, sizeof *eb->peers);
    eb->local_rank = calloc(eb->b.nlocal, sizeof *eb->local_rank);
    eb->rank_node = calloc(m->world, sizeof *eb->rank_node);
    eb->seat_rank = calloc(m->world, sizeof *eb->seat_rank);
    if (!eb->node_start || !eb->peers || !eb->local_rank || !eb->rank_node ||
        !eb->seat_rank)
        return -ENOMEM;
    memcpy(eb->peers, m->peers, m->nnodes * sizeof *eb->peers);
    for (unsigned n = 0; n < m->nnodes; n++) {
        if (eb->peers[n] >= FABRIC_MAX_PEERS)
            return -EPROTO;
        if (n != m->me)
            eb->among[eb->peers[n] / 64] |= 1ull << eb->peers[n] % 64;
    }
    for (unsigned k = 0; k < m->world; k++) {
        uint32_t node = m->rank_node[k];

        if (node >= m->nnodes)
            return -EPROTO;
        eb->rank_node[k] = node;
        eb->node_start[node + 1]++;
        if (node != m->me)
            continue;
        if (local == eb->b.nlocal)
            return -EPROTO;
        eb->local_rank[local++] = k;
    }
    for (unsigned n = 0; n < m->nnodes; n++)
        eb->node_start[n + 1] += eb->node_start[n];
    for (unsigned n = 0, seat = 0; n < m->nnodes; n++)
        for (unsigned k = 0; k < m->world; k++)
            if (eb->rank_node[k] == n)
                eb->seat_rank[seat++] = k;
    return local == eb->b.nlocal ? 0 : -EPROTO;
}

int engine_board_add(struct engine *e, const struct msg_board_add *m, int fd)
{
    _cleanup_(eboard_freep) struct eboard *eb = NULL;
    int r;

    if (m->nnodes < 2 || m->nnodes > SCHED_MAX_NODES || m->me >= m->nnodes ||
        eboard_find(e, m->group))
        return -EPROTO;
    eb = calloc(1, sizeof *eb);
    if (!eb)
        return -ENOMEM;
    eb->e = e;
    inbox_init(&eb->inbox);
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        eb->steps[i].eb = eb;
    eb->user = user_ref(e, m->uid);
    if (!eb->user)
        return -ENOMEM;
    r = board_map(fd, &eb->b);
    if (r)
        return r < 0 ? r : -EPROTO;
    if (eb->b.group != m->group || eb->b.world != m->world || eb->b.nnodes != m->nnodes ||
        eb->b.me != m->me)
        return -EPROTO;
    r = eboard_tables(eb, m);
    if (r == 0)
        r = bells_board_add(eb, m);
    if (r)
        return r;
    eb->geom = (struct plan_geom){.world = m->world,
                                  .nnodes = m->nnodes,
                                  .me = m->me,
                                  .nlocal = eb->b.nlocal,
                                  .net = eb->b.net,
                                  .node_start = eb->node_start,
                                  .seat_rank = eb->seat_rank};
    eb->base = eb->published = eb->sent = eb->seen_step = BOARD_FIRST_STEP;
    eb->next = e->hash[bucket(m->group)];
    e->hash[bucket(m->group)] = eb;
    e->nboards++;
    eboard_activate(eb);
    limbo_adopt(steal_ptr(eb));
    return 0;
}

static void eboard_remove(struct eboard *eb)
{
    struct engine *e = eb->e;

    for (struct eboard **p = &e->hash[bucket(eb->b.group)]; *p; p = &(*p)->next)
        if (*p == eb) {
            *p = eb->next;
            break;
        }
    for (struct eboard **p = &e->active; *p; p = &(*p)->active_next)
        if (*p == eb) {
            *p = eb->active_next;
            break;
        }
    bells_board_del(eb);
    e->nboards--;
    eb->user->closed[eb->user->nclosed++ % ENGINE_CLOSED] = eb->b.group;
    inbox_drop(e, &eb->inbox, INBOX_ANY_AGE, -1);
    eb->dead = true;
    if (eb->inflight == 0) {
        eboard_free(eb);
        return;
    }
    eb->next = e->graveyard;
    e->graveyard = eb;
}

static bool finished(const struct eboard *eb)
{
    return eb->inflight == 0 && (eb->dead || (eb->state == EB_IDLE && mail_settled(eb)));
}

/* Operations that other nodes may still be in the middle of are dropped. Messages that the members
 * have sent are not: whoever asks for them is told afterwards that nothing is left. */
static void eboard_drop(struct eboard *eb)
{
    mail_flush(eb);
    eboard_remove(eb);
}

/* Boards that wait for nothing any more. Called between turns, never from a callback. */
static void sweep(struct engine *e)
{
    for (struct eboard **p = &e->graveyard; *p;) {
        struct eboard *eb = *p;

        if (eb->inflight) {
            p = &eb->next;
            continue;
        }
        *p = eb->next;
        eboard_free(eb);
    }
    for (struct eboard *eb = e->active, *next; eb; eb = next) {
        next = eb->active_next;
        if (eb->closing && (finished(eb) || now_ms() - eb->closing_ms > CLOSING_MS))
            eboard_drop(eb);
    }
}

void engine_board_del(struct engine *e, uint64_t group, bool abort)
{
    struct eboard *eb = eboard_find(e, group);

    if (!eb)
        return;
    if (abort || eb->dead || finished(eb)) {
        eboard_drop(eb);
        return;
    }
    /* All members have left after their last operation; other nodes may still need our part.
     * If members left in the middle of one, here or there, it never ends: hence the limit. */
    eb->closing = true;
    eb->closing_ms = now_ms();
    eboard_activate(eb);
}

void engine_peer_gone(struct engine *e, unsigned peer)
{
    limbo_drop_peer(e, peer);
    for (unsigned i = 0; i < ENGINE_HASH; i++) {
        for (struct eboard *eb = e->hash[i], *next; eb; eb = next) {
            next = eb->next;
            for (unsigned n = 0; n < eb->geom.nnodes; n++) {
                if (n == eb->geom.me || eb->peers[n] != peer)
                    continue;
                eb->dead = true;
                inbox_drop(e, &eb->inbox, INBOX_ANY_AGE, -1);
                if (eb->closing)
                    eboard_remove(eb);
                break;
            }
        }
    }
}

void eboard_fail(struct eboard *eb, unsigned cause, int peer, const char *fmt, ...)
{
    char text[BOARD_TEXT];
    va_list ap;

    if (eb->dead)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    eb->dead = true;
    board_break(eb->b.hdr, cause, -1, 0, eb->e->node, text);
    eb->e->ev.on_board_error(eb->e->ev.arg, eb->b.group, cause, peer, text);
}

/* ---- turns --------------------------------------------------------------------------------- */

bool engine_poll(struct engine *e)
{
    bool moved = bells_turn(e);

    for (struct eboard *eb = e->active; eb; eb = eb->active_next)
        moved |= eboard_poll(eb);
    sweep(e);
    return moved;
}

bool engine_published(struct engine *e)
{
    bool was = e->published;

    e->published = false;
    return was;
}

bool engine_arm(struct engine *e)
{
    bool moved = bells_turn(e);

    for (struct eboard *eb = e->active; eb; eb = eb->active_next)
        atomic_store_explicit(&eb->b.hdr->engine_asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* before the second look: see shm/wait.c */
    for (struct eboard **p = &e->active; *p;) {
        struct eboard *eb = *p;
        bool m = eboard_poll(eb);

        moved |= m;
        if (!m && eb->state == EB_IDLE && !eb->closing) {
            *p = eb->active_next;
            eb->active = false;
        } else {
            p = &eb->active_next;
        }
    }
    return moved;
}

bool engine_poll_all(struct engine *e)
{
    bool moved = false;

    limbo_sweep(e);
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        for (struct eboard *eb = e->hash[i]; eb; eb = eb->next)
            if (eboard_poll(eb)) {
                moved = true;
                /* it dozed, and no member has taken it on itself to ring */
                if (!eb->active && atomic_load(&eb->b.hdr->engine_asleep))
                    atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
                eboard_activate(eb);
            }
    return moved;
}

bool engine_has_boards(const struct engine *e)
{
    return e->nboards > 0;
}

bool engine_idle(const struct engine *e)
{
    return e->active == NULL;
}

void engine_break_all(struct engine *e, unsigned cause, const char *text)
{
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        for (struct eboard *eb = e->hash[i]; eb; eb = eb->next)
            board_break(eb->b.hdr, cause, -1, 0, e->node, text);
}

/* ---- the engine ----------------------------------------------------------------------------- */

static void fabric_peer_down(void *arg, unsigned peer, int err, const char *why)
{
    struct engine *e = arg;

    e->ev.on_peer_down(e->ev.arg, peer, why);
}

struct engine *engine_new(const char *node, const struct engine_events *ev)
{
    struct engine *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->ev = *ev;
    e->fev = (struct fabric_events){
        .on_msg = engine_on_msg, .on_peer_down = fabric_peer_down, .arg = e};
    snprintf(e->node, sizeof e->node, "%s", node);
    limbo_init(e);
    TAILQ_INIT(&e->users);
    return e;
}

const struct fabric_events *engine_fabric_events(struct engine *e)
{
    return &e->fev;
}

void engine_set_fabric(struct engine *e, struct fabric *f)
{
    e->f = f;
}

/* The fabric must have been freed: with it went the claims of messages nobody took. */
struct engine *engine_free(struct engine *e)
{
    if (!e)
        return NULL;
    e->f = NULL;
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        while (e->hash[i]) {
            e->hash[i]->inflight = 0;
            eboard_remove(e->hash[i]);
        }
    for (struct eboard *eb = e->graveyard, *next; eb; eb = next) {
        next = eb->next;
        eboard_free(eb);
    }
    limbo_fini(e);
    for (struct euser *u; (u = TAILQ_FIRST(&e->users));) {
        TAILQ_REMOVE(&e->users, u, link);
        free(u);
    }
    for (struct sbuf *s = e->sbufs, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    for (struct chunk *c = e->scratch, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    bells_free(e);
    free(e);
    return NULL;
}
