/* engine.c - the engine's turns: which boards are looked at, and when it may sleep.
 *
 * A board is *active* while something may happen to it: it is polled each turn. After a while
 * without, and before the engine sleeps, it is armed: engine_asleep is set in it, and the next
 * member that announces something rings. The order of store, fence and second look is the one
 * argued in shm/board/board.c.
 *
 * Users share a turn: if a user has many boards, or boards that always have something to do, only
 * some of them are looked at in a turn, and the next turn goes on behind them. One user alone pays
 * nothing for this.
 *
 * What if the engine is stopped now: members wait; commd misses its answers to pings and replaces
 * it. */
#include "transport/engine/engine_internal.h"

#include <stdio.h>

#include "shm/util/wait.h"

enum {
    SLICE_NS = 20000,    /* where there are several users: of a turn for each; at least one board */
    RESCUE_NS = 1000000, /* and for one engine_poll_all() */
};

/* Looks once at each board of @u; unless @u is @alone, only for a while: the boards that are left
 * come first in the next turn. */
static bool euser_poll(struct euser *u, bool alone)
{
    uint64_t end = alone ? 0 : now_ns() + SLICE_NS;
    bool moved = false;
    struct eboard *eb;

    assert(u->nactive > 0);
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
        moved |= euser_poll(u, alone);
    }
    moved |= sends_turn(e);
    boards_sweep(e);
    return moved;
}

bool engine_published(struct engine *e)
{
    bool was = e->published;

    e->published = false;
    return was;
}

static bool euser_arm(struct euser *u)
{
    struct eboard *eb, *next;
    bool moved = false;

    for (eb = TAILQ_FIRST(&u->active); eb; eb = next) {
        bool m = eboard_poll(eb);

        moved |= m;
        next = TAILQ_NEXT(eb, active_link);
        if (!m && eb->state < EB_CHECK && !eb->closing && !mail_waits(eb))
            eboard_deactivate(eb);
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
    atomic_thread_fence(memory_order_seq_cst); /* before the second look: see shm/board/board.c */
    for (u = TAILQ_FIRST(&e->busy); u; u = next) {
        next = TAILQ_NEXT(u, busy_link);
        moved |= euser_arm(u);
    }
    return sends_turn(e) || moved;
}

/* Where there are several users, as far as time allows; the next call goes on from there. */
bool engine_poll_all(struct engine *e)
{
    uint64_t end = e->nowners > 1 ? now_ns() + RESCUE_NS : UINT64_MAX;
    bool moved = false;
    struct eboard *eb;

    assert(e->rescue_at < ENGINE_HASH);
    pending_sweep(e);
    for (unsigned i = 0; i < ENGINE_HASH; i++, e->rescue_at = (e->rescue_at + 1) % ENGINE_HASH) {
        LIST_FOREACH(eb, &e->hash[e->rescue_at], hash_link)
            if (eboard_poll(eb)) {
                moved = true;
                /* the board was armed, and no member has rung */
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

static void fabric_peer_down(void *arg, unsigned peer, int err, const char *why)
{
    struct engine *e = arg;
    enum link_end end = LINK_END_ENGINE;

    assert(peer < FABRIC_MAX_PEERS);
    if (err == -ETIMEDOUT || err == -EBADMSG)
        end = LINK_END_NETWORK;
    else if (err == -ECONNRESET)
        end = LINK_END_CLOSED;
    e->ev.on_peer_down(e->ev.arg, peer, end, why);
}

static void fabric_apart(void *arg, unsigned peer)
{
    struct engine *e = arg;

    if (e->ev.on_apart)
        e->ev.on_apart(e->ev.arg, peer);
}

struct engine *engine_new(const char *node, const struct engine_events *ev)
{
    struct engine *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->ev = *ev;
    e->fev = (struct fabric_events){.on_msg = engine_on_msg,
                                    .on_peer_down = fabric_peer_down,
                                    .on_apart = fabric_apart,
                                    .arg = e};
    snprintf(e->node, sizeof e->node, "%s", node);
    TAILQ_INIT(&e->pending.groups);
    sends_init(e);
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

/* The fabric must have been freed, and with it the claims of messages that nobody took. */
struct engine *engine_free(struct engine *e)
{
    if (!e)
        return NULL;
    e->f = NULL;
    sends_fini(e);
    boards_free(e);
    pending_fini(e);
    pools_free(e);
    bells_free(e);
    free(e);
    return NULL;
}
