/* engine_board.c - a board of the engine from its BOARD_ADD to its end.
 *
 *   known      found by its group (eboard_find()), polled each turn while it is active
 *   dead       it failed, or a peer of it is gone: not looked at any more; commd deletes it
 *   closing    all its members have left after their last operation: other nodes may still need our
 *              part, for CLOSING_MS at most
 *   graveyard  commd has deleted it, and requests in flight name it: it stays mapped until the last
 *              callback has run
 *
 * eboard_fail() is the only place in which the engine gives a group up: members read why on their
 * board, and commd is told.
 *
 * Who wakes a board: a member's doorbell (engine_bells.c), a message from another node
 * (engine_msg.c), and the safety net engine_poll_all(). What if a peer node dies now: commd breaks
 * the group for its members and deletes the board; until then it just makes no progress.
 *
 * A user stays known for a while after its last board: late messages of its closed groups are
 * dropped by that. */
#include "transport/engine/engine_internal.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "shm/util/wait.h"

enum {
    CLOSING_MS = 10000,
    USERS_KEEP = 256, /* whose last group is closed */
    SWEEP_AT_ONCE = 64,
};

static unsigned board_bucket(uint64_t group)
{
    return (unsigned)((group * 0x9e3779b97f4a7c15ull) >> 54) % ENGINE_HASH;
}

struct eboard *eboard_find(struct engine *e, uint64_t group)
{
    for (struct eboard *eb = e->hash[board_bucket(group)]; eb; eb = eb->next)
        if (eb->b.group == group)
            return eb;
    return NULL;
}

void eboard_activate(struct eboard *eb)
{
    if (eb->active)
        return;
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
    board_break(eb->b.hdr, cause, -1, 0, eb->e->node, text);
    eb->e->ev.on_board_error(eb->e->ev.arg, eb->b.group, cause, peer, text);
}

/* ---- users ----------------------------------------------------------------------------------- */

/* Those whose boards are gone stand in the order in which that happened. */
static void eusers_trim(struct engine *e)
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

/* Its weight is that of the latest board: commd may have been told another one since. */
static void euser_weigh(struct engine *e, struct euser *u, uint32_t weight)
{
    if (!weight || u->weight == weight)
        return;
    u->weight = weight;
    sends_weigh(e, u);
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
        u->nboards = 1;
        u->told_ms = now_ms();
        TAILQ_INIT(&u->active);
        TAILQ_INSERT_TAIL(&e->users, u, link);
        e->nusers++;
        e->nowners++;
        eusers_trim(e);
        return u;
    }
    if (u->nboards++ == 0)
        e->nowners++;
    return u;
}

static void euser_unref(struct engine *e, struct euser *u)
{
    if (!u || --u->nboards)
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
        scratch_put(eb->e, eb->steps[i].scratch, PLAN_CHUNK_NET);
    mail_free(eb);
    sends_board_free(eb);
    if (eb->e->sole == eb)
        eb->e->sole = NULL;
    bells_board_del(eb);
    eboard_unmap(eb);
    free(eb->node_start);
    free(eb->peers);
    free(eb->passed);
    free(eb->local_rank);
    free(eb->rank_node);
    free(eb->rank_at);
    free(eb->clients);
    free(eb->rows);
    free(eb->acc);
    free(eb->tmp);
    euser_unref(eb->e, eb->user);
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
    eb->passed = calloc(m->nnodes, sizeof *eb->passed);
    eb->local_rank = calloc(eb->b.nlocal, sizeof *eb->local_rank);
    eb->rank_node = calloc(m->world, sizeof *eb->rank_node);
    eb->rank_at = calloc(m->world, sizeof *eb->rank_at);
    if (!eb->node_start || !eb->peers || !eb->passed || !eb->local_rank || !eb->rank_node ||
        !eb->rank_at)
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
    eb->user = euser_ref(e, m->uid);
    if (!eb->user)
        return -ENOMEM;
    euser_weigh(e, eb->user, m->weight);
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
    eb->next = e->hash[board_bucket(m->group)];
    e->hash[board_bucket(m->group)] = eb;
    e->nboards++;
    eboard_activate(eb);
    pending_adopt(steal_ptr(eb));
    return 0;
}

/* ---- going ----------------------------------------------------------------------------------- */

static void eboard_remove(struct eboard *eb)
{
    struct engine *e = eb->e;

    for (struct eboard **p = &e->hash[board_bucket(eb->b.group)]; *p; p = &(*p)->next)
        if (*p == eb) {
            *p = eb->next;
            break;
        }
    eboard_deactivate(eb);
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

static bool eboard_finished(const struct eboard *eb)
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

void boards_sweep(struct engine *e)
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
    if (peer < FABRIC_MAX_PEERS)
        sends_drop_peer(e, peer);
}

void engine_break_all(struct engine *e, unsigned cause, const char *text)
{
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        for (struct eboard *eb = e->hash[i]; eb; eb = eb->next)
            board_break(eb->b.hdr, cause, -1, 0, e->node, text);
}

/* Nothing is in flight any more: the fabric is gone. */
void boards_free(struct engine *e)
{
    for (unsigned i = 0; i < ENGINE_HASH; i++)
        while (e->hash[i]) {
            e->hash[i]->inflight = 0;
            eboard_remove(e->hash[i]);
        }
    for (struct eboard *eb; (eb = TAILQ_FIRST(&e->graveyard));) {
        TAILQ_REMOVE(&e->graveyard, eb, end_link);
        eboard_free(eb);
    }
    for (struct euser *u; (u = TAILQ_FIRST(&e->users));) {
        TAILQ_REMOVE(&e->users, u, link);
        free(u);
    }
}
