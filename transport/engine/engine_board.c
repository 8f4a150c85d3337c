/* engine_board.c - a board of the engine from its BOARD_ADD to its end.
 *
 *   known      eboard_find() finds it by its group; it is polled each turn while it is active
 *   held       an engine of its nodes was lost, and nothing was on the wire: engine_hold.c
 *   dead       it failed, or one of its peers is gone: it is not looked at any more; commd deletes
 * it closing    all its members have left after their last operation: other nodes may still need
 * our part, for CLOSING_MS at most graveyard  commd has deleted it, and requests in flight name it:
 * it stays mapped until the last callback has run
 *
 * eboard_fail() is the only place in which the engine gives a group up: members read why on their
 * board, and commd is told.
 *
 * Who wakes a board: a member's doorbell (engine_bells.c), a message from another node
 * (engine_msg.c), and the safety net engine_poll_all(). What if a peer node dies now: commd breaks
 * the group for its members and deletes the board; until then the board makes no progress.
 *
 * A user stays known for a while after its last board, so that late messages of its closed groups
 * are known for such and dropped. */
#include "transport/engine/engine_internal.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "shm/util/wait.h"

enum {
    CLOSING_MS = 10000,
    USERS_KEEP = 256, /* users whose last group is closed */
    SWEEP_AT_ONCE = 64,
};

struct eboard *eboard_find(struct engine *e, uint64_t group)
{
    struct eboard *eb;

    LIST_FOREACH(eb, &e->hash[hash_bucket(group)], hash_link)
        if (eb->b.group == group)
            return eb;
    return NULL;
}

void eboard_activate(struct eboard *eb)
{
    if (eb->active)
        return;
    assert(!eb->removed);
    eb->active = true;
    eb->e->nactive++;
    TAILQ_INSERT_TAIL(&eb->user->active, eb, active_link);
    if (eb->user->nactive++ == 0)
        TAILQ_INSERT_TAIL(&eb->e->busy, eb->user, busy_link);
    atomic_store_explicit(&eb->b.hdr->engine_asleep, 0, memory_order_relaxed);
}

void eboard_deactivate(struct eboard *eb)
{
    if (!eb->active)
        return;
    assert(eb->e->nactive > 0);
    assert(eb->user->nactive > 0);
    eb->active = false;
    eb->e->nactive--;
    TAILQ_REMOVE(&eb->user->active, eb, active_link);
    if (--eb->user->nactive == 0)
        TAILQ_REMOVE(&eb->e->busy, eb->user, busy_link);
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
    eb->failure = strdup(text);
    eb->cause = cause;
    eb->failed_peer = peer;
    board_break(eb->b.hdr, cause, -1, 0, eb->e->node, text);
    eb->e->ev.on_board_error(eb->e->ev.arg, eb->b.group, cause, peer, text);
}

/* ---- users ----------------------------------------------------------------------------------- */

/* Users without boards stand in the list in the order in which they lost their last one. */
static void eusers_trim(struct engine *e)
{
    struct euser *u, *next;

    for (u = TAILQ_FIRST(&e->users); u && e->nusers > USERS_KEEP; u = next) {
        next = TAILQ_NEXT(u, link);
        if (u->nboards)
            continue;
        assert(u->nactive == 0);
        assert(u->sending == 0);
        TAILQ_REMOVE(&e->users, u, link);
        e->nusers--;
        free(u);
    }
}

/* One more board of user @uid. NULL: no memory. */
static struct euser *euser_ref(struct engine *e, uint32_t uid)
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
        u->weight = FAIR_WEIGHT;
        u->told_ms = now_ms();
        TAILQ_INIT(&u->active);
        TAILQ_INSERT_TAIL(&e->users, u, link);
        e->nusers++;
    }
    if (u->nboards++ == 0)
        e->nowners++;
    eusers_trim(e);
    assert(e->nowners <= e->nusers);
    return u;
}

static void euser_unref(struct engine *e, struct euser *u)
{
    if (!u)
        return;
    assert(u->nboards > 0);
    assert(e->nowners > 0);
    if (--u->nboards)
        return;
    e->nowners--;
    TAILQ_REMOVE(&e->users, u, link);
    TAILQ_INSERT_TAIL(&e->users, u, link);
}

/* ---- coming ---------------------------------------------------------------------------------- */

static void unmap_job(void *arg)
{
    struct board *b = arg;

    board_unmap(b);
    free(b);
}

/* A board may be large, and its pages are freed if this is the last mapping of its file. */
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
    assert(!eb->active);
    assert(eb->inflight == 0);
    assert(eb->inbox.n == 0);
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        scratch_put(eb->e, eb->steps[i].scratch, PLAN_CHUNK_NET);
    mail_free(eb);
    sends_board_free(eb);
    if (eb->e->sole == eb)
        eb->e->sole = NULL;
    bells_board_del(eb);
    eboard_unmap(eb);
    free(eb->node_start);
    free(eb->clients);
    free(eb->rows);
    payload_put(eb->acc);
    free(eb->tmp);
    free(eb->failure);
    euser_unref(eb->e, eb->user);
    if (eb->e->nboards == 0)
        malloc_trim(0); /* gives the pages of all buffers back */
    free(eb);
}

static void eboard_freep(struct eboard **eb)
{
    eboard_free(*eb);
}

static int eboard_tables(struct eboard *eb, const struct msg_board_add *m)
{
    unsigned local = 0;
    uint32_t *at =
        calloc((size_t)3 * m->nnodes + 1 + eb->b.nlocal + (size_t)2 * m->world, sizeof *at);

    if (!at)
        return -ENOMEM;
    eb->node_start = at;
    eb->peers = (at += m->nnodes + 1);
    eb->passed = (at += m->nnodes);
    eb->local_rank = (at += m->nnodes);
    eb->rank_node = (at += eb->b.nlocal);
    eb->rank_at = at + m->world;
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
    assert(eb->node_start[m->nnodes] == m->world);
    for (unsigned n = 0, pos = 0; n < m->nnodes; n++)
        for (unsigned k = 0; k < m->world; k++)
            if (eb->rank_node[k] == n)
                eb->rank_at[pos++] = k;
    return local == eb->b.nlocal ? 0 : -EPROTO;
}

int engine_board_add(struct engine *e, const struct msg_board_add *m, int fd)
{
    _cleanup_(eboard_freep) struct eboard *eb = NULL;
    struct eboard *before = eboard_find(e, m->group);
    int r;

    if (m->nnodes < 2 || m->nnodes > SCHED_MAX_NODES || m->me >= m->nnodes ||
        (before && before->round == e->round))
        return -EPROTO;
    if (before) {
        before->round = e->round;
        return 0;
    }
    if (fd < 0)
        return -EPROTO;
    eb = calloc(1, sizeof *eb);
    if (!eb)
        return -ENOMEM;
    eb->e = e;
    eb->round = e->round;
    eb->uid = m->uid;
    inbox_init(&eb->inbox);
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        eb->steps[i].eb = eb;
    eb->user = euser_ref(e, m->uid);
    if (!eb->user)
        return -ENOMEM;
    if (m->weight && m->weight != eb->user->weight) { /* an administrator has changed it */
        eb->user->weight = m->weight;
        sends_weigh(e, eb->user);
    }
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
    if (!m->goes_on && atomic_load(&eb->b.hdr->ops_done))
        return -ESTALE;
    if (!m->goes_on)
        op_account(eb);
    LIST_INSERT_HEAD(&e->hash[hash_bucket(m->group)], eb, hash_link);
    e->nboards++;
    eboard_activate(eb);
    if (m->goes_on)
        hold_take_over(eb, m->goes_on - 1);
    pending_adopt(steal_ptr(eb));
    return 0;
}

/* ---- going ----------------------------------------------------------------------------------- */

static void eboard_remove(struct eboard *eb)
{
    struct engine *e = eb->e;

    assert(!eb->removed);
    assert(e->nboards > 0);
    LIST_REMOVE(eb, hash_link);
    eboard_deactivate(eb);
    eb->removed = true;
    if (eb->closing)
        TAILQ_REMOVE(&e->closing, eb, end_link);
    bells_board_del(eb);
    e->nboards--;
    eb->user->closed[eb->user->nclosed++ % ENGINE_CLOSED] = eb->b.group;
    inbox_drop(eb, true);
    eb->dead = true;
    if (eb->inflight == 0)
        eboard_free(eb);
    else
        TAILQ_INSERT_TAIL(&e->graveyard, eb, end_link);
}

static bool eboard_finished(const struct eboard *eb)
{
    return eb->inflight == 0 &&
           (eb->dead || eb->hold == EB_HELD || (eb->state < EB_CHECK && mail_settled(eb)));
}

/* Operations are dropped, though other nodes may be in the middle of them. Messages that the
 * members have sent are not: a rank that asks for them is told afterwards that nothing is left. */
static void eboard_drop(struct eboard *eb)
{
    if (eb->hold != EB_HELD)
        mail_flush(eb);
    eboard_remove(eb);
}

void boards_sweep(struct engine *e)
{
    struct eboard *eb, *seen = NULL;

    for (unsigned i = 0; i < SWEEP_AT_ONCE; i++) {
        eb = TAILQ_FIRST(&e->graveyard);
        if (!eb || eb == seen)
            break;
        assert(eb->removed);
        assert(eb->dead);
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
        assert(eb->closing);
        assert(!eb->removed);
        TAILQ_REMOVE(&e->closing, eb, end_link);
        TAILQ_INSERT_TAIL(&e->closing, eb, end_link);
        if (eboard_finished(eb) || now_ms() - eb->closing_ms > CLOSING_MS)
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
    if (abort || eb->dead || eboard_finished(eb)) {
        eboard_drop(eb);
        return;
    }
    /* If members left in the middle of an operation, here or there, it never ends: CLOSING_MS. */
    if (!eb->closing)
        TAILQ_INSERT_TAIL(&e->closing, eb, end_link);
    eb->closing = true;
    if (eb->hold == EB_PAUSES) /* it has no next engine to wait for */
        set_hold(eb, EB_RUNS);
    eb->closing_ms = now_ms();
    eboard_activate(eb);
}

void engine_resume(struct engine *e)
{
    struct msg_board_held held;
    struct eboard *eb;

    e->round++;
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        LIST_FOREACH(eb, &e->hash[i], hash_link)
            if (eb->hold == EB_HELD && !eb->dead) {
                hold_place(eb, &held);
                e->ev.on_held(e->ev.arg, &held);
            } else if (eb->went_on.group && !eb->dead) {
                e->ev.on_held(e->ev.arg, &eb->went_on);
            } else if (eb->failure)
                e->ev.on_board_error(e->ev.arg, eb->b.group, eb->cause, eb->failed_peer,
                                     eb->failure);
}

void engine_resumed(struct engine *e)
{
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        for (struct eboard *eb = LIST_FIRST(&e->hash[i]), *next; eb; eb = next) {
            next = LIST_NEXT(eb, hash_link);
            if (eb->round != e->round)
                engine_board_del(e, eb->b.group, false);
        }
}

void engine_peer_gone(struct engine *e, unsigned peer)
{
    assert(peer < FABRIC_MAX_PEERS);
    pending_drop_peer(e, peer);
    for (unsigned i = 0; i < ENGINE_HASH; i++) {
        for (struct eboard *eb = LIST_FIRST(&e->hash[i]), *next; eb; eb = next) {
            next = LIST_NEXT(eb, hash_link);
            if (!eboard_among(eb, peer) || (!eb->closing && hold_board(eb)))
                continue;
            eb->dead = true;
            inbox_drop(eb, true);
            if (eb->closing)
                eboard_remove(eb);
        }
    }
    sends_drop_peer(e, peer);
}

void engine_break_all(struct engine *e, unsigned cause, const char *text)
{
    struct eboard *eb;

    for (unsigned i = 0; i < ENGINE_HASH; i++)
        LIST_FOREACH(eb, &e->hash[i], hash_link)
            board_break(eb->b.hdr, cause, -1, 0, e->node, text);
}

void boards_free(struct engine *e)
{
    struct eboard *eb;
    struct euser *u;

    assert(!e->f); /* so nothing is in flight any more */
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        while ((eb = LIST_FIRST(&e->hash[i])))
            eboard_remove(eb);
    while ((eb = TAILQ_FIRST(&e->graveyard))) {
        TAILQ_REMOVE(&e->graveyard, eb, end_link);
        eb->inflight = 0;
        eboard_free(eb);
    }
    assert(e->nboards == 0);
    assert(e->nactive == 0);
    assert(e->nowners == 0);
    assert(TAILQ_EMPTY(&e->busy));
    while ((u = TAILQ_FIRST(&e->users))) {
        TAILQ_REMOVE(&e->users, u, link);
        free(u);
    }
}
