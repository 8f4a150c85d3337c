/* engine.c - the boards of the engine: coming, going, being looked at.
 *
 * A board is *active* while something may happen to it: it is polled each turn. After a while
 * without, and before the engine sleeps, it is armed: engine_asleep is set in it, and the next
 * member that announces something rings. The order of store, fence and second look is the one
 * argued in shm/util/wait.c.
 *
 * Who wakes a board: a member's doorbell (engine_bells.c), a message from another node, and the
 * safety net engine_poll_all(). What if a peer node dies now: commd breaks the group for its
 * members and deletes the board; until then it just makes no progress. What if we are stopped
 * now: members wait; commd misses our answers to its pings and replaces us.
 *
 * Users share a turn: of a user whose boards are many, or always have something to do, only some
 * are looked at in a turn, and the next turn goes on behind them. One user alone pays nothing for
 * this.
 *
 * Memory under the network: requests in flight name the board; a dropped board stays mapped in
 * the graveyard until the last callback has run. */
#include "transport/engine/engine_internal.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "shm/util/wait.h"

enum {
    CLOSING_MS = 10000,
    SCRATCH_KEEP = 16,
    USERS_KEEP = 256,    /* whose last group is closed */
    SLICE_NS = 20000,    /* of a turn for each user, where there are several; at least one board */
    RESCUE_NS = 1000000, /* of engine_poll_all(), there */
    SWEEP_AT_ONCE = 64,
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
    TAILQ_INSERT_TAIL(&eb->user->active, eb, active_link);
    if (eb->user->nactive++ == 0)
        TAILQ_INSERT_TAIL(&eb->e->busy, eb->user, busy_link);
    atomic_store_explicit(&eb->b.hdr->engine_asleep, 0, memory_order_relaxed);
}

static void deactivate(struct eboard *eb)
{
    if (!eb->active)
        return;
    eb->active = false;
    TAILQ_REMOVE(&eb->user->active, eb, active_link);
    if (--eb->user->nactive == 0)
        TAILQ_REMOVE(&eb->e->busy, eb->user, busy_link);
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
        u->nboards = 1;
        TAILQ_INIT(&u->active);
        TAILQ_INSERT_TAIL(&e->users, u, link);
        e->nusers++;
        e->nowners++;
        users_trim(e);
        return u;
    }
    if (u->nboards++ == 0)
        e->nowners++;
    return u;
}

static void user_unref(struct engine *e, struct euser *u)
{
    if (!u || --u->nboards)
        return;
    e->nowners--;
    TAILQ_REMOVE(&e->users, u, link);
    TAILQ_INSERT_TAIL(&e->users, u, link);
}

/* ---- life of a board ---------------------------------------------------------------------- */

static void unmap_job(void *arg)
{
    struct board *b = arg;

    board_unmap(b);
    free(b);
}

/* It may be large, and all that is left of its file: then its pages are freed, too. */
static void eboard_unmap(struct eboard *eb)
{
    struct board *b = eb->e->closer && eb->b.hdr ? malloc(sizeof *b) : NULL;

    if (!b)
        return board_unmap(&eb->b);
    *b = eb->b;
    closer_call(eb->e->closer, eb->uid, unmap_job, b);
}

static void eboard_free(struct eboard *eb)
{
    if (!eb)
        return;
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        scratch_put(eb->e, eb->steps[i].scratch);
    mail_free(eb);
    bells_board_del(eb);
    eboard_unmap(eb);
    free(eb->node_start);
    free(eb->peers);
    free(eb->local_rank);
    free(eb->rank_node);
    free(eb->rank_at);
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
    eb->rank_at = calloc(m->world, sizeof *eb->rank_at);
    if (!eb->node_start || !eb->peers || !eb->local_rank || !eb->rank_node || !eb->rank_at)
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
    for (unsigned n = 0, pos = 0; n < m->nnodes; n++)
        for (unsigned k = 0; k < m->world; k++)
            if (eb->rank_node[k] == n)
                eb->rank_at[pos++] = k;
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
    eb->uid = m->uid;
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
                                  .rank_at = eb->rank_at};
    eb->base = eb->published = eb->sent = eb->seen_step = BOARD_FIRST_STEP;
    eb->next = e->hash[bucket(m->group)];
    e->hash[bucket(m->group)] = eb;
    e->nboards++;
    eboard_activate(eb);
    pending_adopt(steal_ptr(eb));
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
    deactivate(eb);
    if (eb->closing)
        TAILQ_REMOVE(&e->closing, eb, end_link);
    bells_board_del(eb);
    e->nboards--;
    eb->user->closed[eb->user->nclosed++ % ENGINE_CLOSED] = eb->b.group;
    inbox_drop(e, &eb->inbox, INBOX_ANY_AGE, -1);
    eb->dead = true;
    if (eb->inflight == 0) {
        eboard_free(eb);
        return;
    }
    TAILQ_INSERT_TAIL(&e->graveyard, eb, end_link);
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

/* Boards that wait for nothing any more. Called between turns, never from a callback. Some each
 * time, in turns: they may be many, and wait for long. */
static void sweep(struct engine *e)
{
    struct eboard *eb, *seen = NULL;

    for (unsigned i = 0; i < SWEEP_AT_ONCE; i++) {
        eb = TAILQ_FIRST(&e->graveyard);
        if (!eb || eb == seen)
            break;
        if (!seen && eb->inflight)
            seen = eb;
        TAILQ_REMOVE(&e->graveyard, eb, end_link);
        if (eb->inflight)
            TAILQ_INSERT_TAIL(&e->graveyard, eb, end_link);
        else
            eboard_free(eb);
    }
    seen = NULL;
    for (unsigned i = 0; i < SWEEP_AT_ONCE; i++) {
        eb = TAILQ_FIRST(&e->closing);
        if (!eb || eb == seen)
            break;
        TAILQ_REMOVE(&e->closing, eb, end_link);
        TAILQ_INSERT_TAIL(&e->closing, eb, end_link);
        if (finished(eb) || now_ms() - eb->closing_ms > CLOSING_MS)
            eboard_drop(eb);
        else if (!seen)
            seen = eb;
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
    if (!eb->closing)
        TAILQ_INSERT_TAIL(&e->closing, eb, end_link);
    eb->closing = true;
    eb->closing_ms = now_ms();
    eboard_activate(eb);
}

void engine_peer_gone(struct engine *e, unsigned peer)
{
    pending_drop_peer(e, peer);
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

/* The boards of @u, each once; of several users each only for a while: what is left comes first in
 * the next turn. */
static bool user_poll(struct euser *u, bool alone)
{
    uint64_t end = alone ? 0 : now_ns() + SLICE_NS;
    bool moved = false;
    struct eboard *eb;

    for (unsigned left = u->nactive; left && (eb = TAILQ_FIRST(&u->active)); left--) {
        if (u->nactive > 1) {
            TAILQ_REMOVE(&u->active, eb, active_link);
            TAILQ_INSERT_TAIL(&u->active, eb, active_link);
        }
        moved |= eboard_poll(eb);
        if (!alone && left > 1 && now_ns() >= end)
            return true; /* not all have been looked at: do not sleep */
    }
    return moved;
}

bool engine_poll(struct engine *e)
{
    bool moved = bells_turn(e), alone;
    struct euser *u = TAILQ_FIRST(&e->busy), *next;

    alone = u && !TAILQ_NEXT(u, busy_link);
    for (; u; u = next) {
        next = TAILQ_NEXT(u, busy_link);
        moved |= user_poll(u, alone);
    }
    sweep(e);
    return moved;
}

bool engine_published(struct engine *e)
{
    bool was = e->published;

    e->published = false;
    return was;
}

static bool user_arm(struct euser *u)
{
    struct eboard *eb, *next;
    bool moved = false;

    for (eb = TAILQ_FIRST(&u->active); eb; eb = next) {
        bool m = eboard_poll(eb);

        moved |= m;
        next = TAILQ_NEXT(eb, active_link);
        if (!m && eb->state == EB_IDLE && !eb->closing && !mail_waits(eb))
            deactivate(eb);
    }
    return moved;
}

bool engine_arm(struct engine *e)
{
    struct euser *u, *next;
    struct eboard *eb;
    bool moved = bells_turn(e);

    TAILQ_FOREACH(u, &e->busy, busy_link)
    TAILQ_FOREACH(eb, &u->active, active_link)
    atomic_store_explicit(&eb->b.hdr->engine_asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* before the second look: see shm/util/wait.c */
    for (u = TAILQ_FIRST(&e->busy); u; u = next) {
        next = TAILQ_NEXT(u, busy_link);
        moved |= user_arm(u);
    }
    return moved;
}

/* Where there are several users, as far as time allows; the next call goes on from there. */
bool engine_poll_all(struct engine *e)
{
    uint64_t end = e->nowners > 1 ? now_ns() + RESCUE_NS : UINT64_MAX;
    bool moved = false;

    pending_sweep(e);
    for (unsigned i = 0; i < ENGINE_HASH; i++, e->rescue_at = (e->rescue_at + 1) % ENGINE_HASH) {
        for (struct eboard *eb = e->hash[e->rescue_at]; eb; eb = eb->next)
            if (eboard_poll(eb)) {
                moved = true;
                /* it dozed, and no member has taken it on itself to ring */
                if (!eb->active && atomic_load(&eb->b.hdr->engine_asleep))
                    atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
                eboard_activate(eb);
            }
        if (e->nowners > 1 && now_ns() >= end)
            break;
    }
    return moved;
}

bool engine_has_boards(const struct engine *e)
{
    return e->nboards > 0;
}

bool engine_idle(const struct engine *e)
{
    return TAILQ_EMPTY(&e->busy);
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
    e->fev =
        (struct fabric_events){.on_msg = engine_on_msg, .on_peer_down = fabric_peer_down, .arg = e};
    snprintf(e->node, sizeof e->node, "%s", node);
    pending_init(e);
    TAILQ_INIT(&e->users);
    TAILQ_INIT(&e->busy);
    TAILQ_INIT(&e->closing);
    TAILQ_INIT(&e->graveyard);
    return e;
}

const struct fabric_events *engine_fabric_events(struct engine *e)
{
    return &e->fev;
}

void engine_set_closer(struct engine *e, struct closer *closer)
{
    e->closer = closer;
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
    for (struct eboard *eb; (eb = TAILQ_FIRST(&e->graveyard));) {
        TAILQ_REMOVE(&e->graveyard, eb, end_link);
        eboard_free(eb);
    }
    pending_fini(e);
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
