/* session_ends.c - how operations that were announced to commd-gpu end, and who looks after them.
 *
 * An operation ends when done[slot] has reached its mark. A stream of commd-gpu stores the mark, or
 * commd-gpu's host, or, once commd-gpu is gone, this process (session_release()). Then the result
 * is copied (session_ended()), before the slot is used again. Two threads look at done[]: the
 * progress thread (works_land()), and a thread that needs the slot.
 *
 * Who wakes me: no bell; the words are polled. What if commd-gpu dies now: the socket ends, which
 * session_watch() sees; all pending operations fail with COMMD_E_GPU_LOST, streams go on, and the
 * next operation of a group agrees anew (path.c). What if a rank dies now: commd-gpu sees the end
 * of that rank's session; of a rank on another node the board says so, and this process asks
 * commd-gpu to give up. */
#include "client/lib/device/note.h"
#include "client/lib/device/session.h"

#include <stdio.h>
#include <sys/socket.h>

void announced_unref(struct announced *a)
{
    assert(!a || atomic_load(&a->refs) > 0);
    if (a && atomic_fetch_sub(&a->refs, 1) == 1)
        free(a);
}

static const bool announced_may[6][6] = {
    /* to:                CALLED READY WARNED GIVEN_UP PAST ENDED */
    [ANNOUNCED_CALLED] = {0, 1, 1, 1, 1, 1}, /* WARNED: of one that was declined */
    [ANNOUNCED_READY] = {0, 0, 1, 1, 1, 1},
    [ANNOUNCED_WARNED] = {0, 0, 0, 1, 1, 1},
    [ANNOUNCED_GIVEN_UP] = {0, 0, 0, 0, 1, 1},
    [ANNOUNCED_PAST] = {0, 0, 0, 0, 1, 1}, /* PAST: agreed anew, and left then */
    [ANNOUNCED_ENDED] = {0, 0, 0, 0, 0, 0},
};

static void announced_set(struct announced *a, enum announced_state to)
{
    assert(to <= ANNOUNCED_ENDED);
    assert(announced_may[a->state][to]);
    a->state = to;
}

void announced_begin(struct announced *a, enum announced_state to, int64_t now)
{
    assert(to == ANNOUNCED_READY || to == ANNOUNCED_WARNED);
    announced_set(a, to);
    a->since_ms = now;
    a->deadline_ms = a->limit_ms < 0 ? -1 : now + a->limit_ms;
}

/* Copies the result out of the slot, before the slot is used again. */
static void announced_collect(struct announced *a)
{
    const struct device_group *dg = a->group;
    struct session_result r = a->session->region->results[a->n % SESSION_SLOTS];

    assert_held(&a->session->pend);
    assert(a->state != ANNOUNCED_ENDED);
    r.text[sizeof r.text - 1] = 0;
    if (!dg) {
        error_set(&a->error, COMMD_E_ABORTED, coll_name((unsigned)a->coll),
                  "the group was left while operations were pending");
        return;
    }
    if (!r.code)
        return;
    error_set(&a->error, r.code < 0 ? r.code : COMMD_E_INTERNAL, coll_name((unsigned)a->coll),
              "operation %llu on GPUs (%s) of group \"%s\": %.240s", (unsigned long long)a->seq,
              coll_name((unsigned)a->coll), dg->group->name, r.text);
    a->error.rank = r.rank;
    a->error.pid = (int)r.pid;
    a->error.epoch = dg->group->board.epoch;
    a->error.seq = a->seq;
}

static void announced_end(struct announced *a)
{
    struct device_group *dg = a->group;
    bool past = a->state == ANNOUNCED_PAST;

    assert_held(&a->session->pend);
    assert(!dg || atomic_load(&dg->pending) > 0);
    announced_collect(a);
    announced_set(a, ANNOUNCED_ENDED);
    if (a->lent)
        lent_give(a->session, steal_ptr(a->lent));
    if (!dg)
        return;
    if (commd_error_breaks_group(a->error.code))
        group_fail(dg->group, &a->error);
    if (a->tells != TELLS_CALL)
        note_ended(dg->group, (uint32_t)a->seq, a->error.code);
    if (a->error.code && a->tells == TELLS_NEXT_CALL)
        failure_note(dg, &a->error, past ? FAILURE_OWN : FAILURE_SHARED);
    /* behind the failure's note: a thread that agrees anew, or finds nothing pending, finds the
     * note. Of an operation of the past the other ranks may know nothing: no reason to agree anew
     */
    if (a->error.code == COMMD_E_GPU_LOST && !past)
        path_lost(dg);
    atomic_fetch_sub(&dg->pending, 1);
}

static bool announced_done(const struct announced *a)
{
    return seq_reached(atomic_load_explicit(a->gate.done, memory_order_acquire),
                       session_mark(a->n));
}

bool session_ended(struct announced *a)
{
    assert_held(&a->session->pend);
    if (a->state != ANNOUNCED_ENDED && gate_landed(&a->gate))
        announced_end(a);
    return a->state == ANNOUNCED_ENDED;
}

void session_past(struct session *s, struct device_group *dg, bool leave)
{
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        struct announced *a = s->slots[i];

        if (!a || a->group != dg)
            continue;
        if (!session_ended(a))
            announced_set(a, ANNOUNCED_PAST);
        if (leave)
            a->group = NULL;
    }
    pthread_mutex_unlock(&s->pend);
}

void session_collect(struct device_group *dg)
{
    struct session *s = dg->session;

    assert(!s || dg->dev->ctx == s->ctx);
    if (!s || !atomic_load(&dg->pending))
        return;
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i] && s->slots[i]->group == dg)
            session_ended(s->slots[i]);
    pthread_mutex_unlock(&s->pend);
}

int session_tell_failure(struct device_group *dg)
{
    session_collect(dg);
    return failure_take(dg, error_mine()) ? error_mine()->code : 0;
}

void session_release(struct session *s)
{
    struct session_result lost = {.code = COMMD_E_GPU_LOST, .rank = -1};

    assert(atomic_load(&s->lost));
    snprintf(lost.text, sizeof lost.text, "%s", s->why);
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        struct announced *a = s->slots[i];

        if (!a || session_ended(a) || announced_done(a))
            continue;
        s->region->results[i] = lost;
        gate_tell(&a->gate, 1);
        session_ended(a);
    }
    pthread_mutex_unlock(&s->pend);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void ask_to_end(struct announced *a, const struct commd_error *why)
{
    struct session_msg m = {.type = SESSION_ABORT, .id = a->group->attached};

    assert_held(&a->session->pend);
    assert(a->group);
    assert(a->group->attached);
    assert(why->code);
    announced_set(a, ANNOUNCED_GIVEN_UP);
    m.answer.code = why->code;
    m.answer.rank = why->rank;
    snprintf(m.answer.text, sizeof m.answer.text, "%.*s", (int)sizeof m.answer.text - 1,
             why->message);
    if (!session_use(a->session))
        return;
    (void)!send(a->session->sock, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL);
    session_unuse(a->session);
}

/* A rank that has died, on whatever node: the board says so. A rank that has left may have
 * completed what is pending here; if it has not, its commd-gpu tells this node's. */
static bool somebody_died(struct device_group *dg, struct commd_error *e)
{
    const struct board *b = &dg->group->board;
    int rank = board_first_dead(b);

    if (rank < 0)
        return false;
    error_set(e, COMMD_E_RANK_LOST, "run", "rank %d (pid %u on node %s) died", rank,
              b->ranks[rank].pid, group_node_of(dg->group, (unsigned)rank));
    e->rank = rank;
    return true;
}

static bool group_broke(struct device_group *dg, struct commd_error *e)
{
    struct board_cause c;
    unsigned cause = board_broken(dg->group->board.hdr, &c);

    if (group_has_failed(dg->group, e))
        return true;
    if (!cause)
        return somebody_died(dg, e);
    error_set(e, -(int)cause, "run", "%s", c.text);
    e->rank = c.rank;
    return true;
}

static void warn(struct announced *a, int64_t now)
{
    const struct membership *g = a->group->group;
    char text[240];

    assert_held(&a->session->pend);
    assert(a->group);
    assert(now >= a->since_ms);
    announced_set(a, ANNOUNCED_WARNED);
    if (!note_speaks(g, (uint32_t)a->seq))
        return;
    note_missing(g, (uint32_t)a->seq, text, sizeof text);
    fprintf(stderr,
            "commd: rank %u of group \"%s\" on node %s has waited for %.1f s in operation %llu on "
            "GPUs (%s): %s; commctl why says more\n",
            g->rank, g->name, g->ctx->node, (double)(now - a->since_ms) / 1000,
            (unsigned long long)a->seq, coll_name((unsigned)a->coll), text);
}

static void watch_one(struct announced *a, int64_t now)
{
    char limit[LIMIT_TEXT];
    struct commd_error e;

    assert_held(&a->session->pend);
    if (session_ended(a) || announced_done(a) || a->state >= ANNOUNCED_GIVEN_UP)
        return;
    assert(a->group);
    if (group_broke(a->group, &e)) {
        ask_to_end(a, &e);
        return;
    }
    if (a->state == ANNOUNCED_CALLED && !gate_full(&a->gate))
        return;
    if (a->state == ANNOUNCED_CALLED)
        announced_begin(a, ANNOUNCED_READY, now);
    if (a->tells != TELLS_CALL)
        note_ready(a->group->group, (uint32_t)a->seq, (uint64_t)now);
    if (a->state == ANNOUNCED_READY && a->session->ctx->warn_ms &&
        now - a->since_ms >= a->session->ctx->warn_ms)
        warn(a, now);
    if (a->deadline_ms < 0 || now < a->deadline_ms)
        return;
    error_set(&e, COMMD_E_TIMEOUT, coll_name((unsigned)a->coll),
              "rank %u ran into its timeout of %s", a->group->group->rank,
              limit_text(a->limit_ms, limit));
    ask_to_end(a, &e);
}

void sessions_watch(struct device *dev)
{
    for (struct session *s = atomic_load(&dev->session); s; s = s->next)
        if (!atomic_load(&s->lost))
            session_watch(s);
}

void session_watch(struct session *s)
{
    int64_t now = (int64_t)now_ms();
    char byte;
    ssize_t n;

    if (!session_use(s))
        return;
    n = recv(s->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    session_unuse(s);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        session_lose(s, "commd-gpu is gone");
        return;
    }
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i])
            watch_one(s->slots[i], now);
    pthread_mutex_unlock(&s->pend);
}
