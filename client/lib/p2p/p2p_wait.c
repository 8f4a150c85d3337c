/* p2p_wait.c - waiting for a message, and the reasons to stop.
 *
 * The wait is that of finish.c: spin, yield, sleep. A sleeper waits for two words at once: the bell
 * of its own box, which every writer to the box rings, and the bell of the board, which commd rings
 * when a rank is gone. The sleeper does not announce itself as a sleeper of the board, so
 * collectives do not wake it.
 *
 * Giving up. What a rank sent before it died or left is in its ring, or on its way through the
 * engines. In the second case the engine of its node is asked (PROBE) whether anything is left, and
 * the answer comes behind all that the rank has sent. So a message that was sent is received,
 * whatever became of its sender. A rank that is lost fails the operations that need it, no others.
 * A limit or an interrupt takes back an operation of which the other side has not heard. It breaks
 * the group when the other side is in the middle of the message. */
#include "client/lib/p2p/p2p.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    CLOSE_LOOKS = 32, /* less than a microsecond */
    SLICES_MS = 1000, /* who waits again within this time has not stopped waiting */
};

static const char *p2p_name(const struct p2p_op *op)
{
    return op->send ? "send" : "recv";
}

/* "send to rank 3, tag 5" */
static void op_text_p2p(const struct p2p_op *op, char *buf, size_t len)
{
    char tag[24] = "any tag", peer[24] = "any rank";

    assert(len > 0);
    if (op->tag != COMMD_ANY_TAG)
        snprintf(tag, sizeof tag, "tag %d", op->tag);
    if (op->peer != COMMD_ANY_SOURCE)
        snprintf(peer, sizeof peer, "rank %d", op->peer);
    snprintf(buf, len, "%s %s, %s", op->send ? "send to" : "receive from", peer, tag);
}

void op_blame(struct p2p *p, struct p2p_op *op, unsigned rank)
{
    assert(rank < p->group->board.world);
    op->err.rank = (int)rank;
    op->err.pid = (int)p->group->members[rank].pid;
    snprintf(op->err.node, sizeof op->err.node, "%s", group_node_of(p->group, rank));
}

int op_error(struct p2p *p, struct p2p_op *op, int code, const char *fmt, ...)
{
    const struct membership *g = p->group;
    char what[80], why[400];
    va_list ap;

    assert(code < 0 && op->peer < (int)g->board.world);
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    op_text_p2p(op, what, sizeof what);
    error_set(&op->err, code, p2p_name(op), "%s of group \"%.80s\": %s", what, g->name, why);
    op->err.epoch = g->board.epoch;
    op->err.rank = op->peer;
    if (op->peer >= 0)
        op_blame(p, op, (unsigned)op->peer);
    return code;
}

static bool give_up(struct p2p *p, struct p2p_op *op)
{
    assert(op->err.code);
    p2p_end(p, op);
    return true;
}

/* Has the other side heard of it? Then it is in the middle of the message. */
static bool under_way(const struct p2p *p, const struct p2p_op *op)
{
    assert(op->state != P2P_DONE);
    if (op->send && op->peer == (int)p->group->rank)
        return false;
    return op->state == P2P_OFFERED || op->state == P2P_STREAMING || op->state == P2P_PULLING;
}

static bool stop_waiting(struct p2p *p, struct p2p_op *op)
{
    assert_held(&p->lock);
    if (under_way(p, op))
        group_fail(p->group, &op->err);
    return give_up(p, op);
}

/* ---- reasons --------------------------------------------------------------------------------- */

static bool p2p_broken(struct p2p *p, struct p2p_op *op)
{
    struct board_cause c;
    unsigned cause = board_broken(p->group->board.hdr, &c);

    assert(cause < CAUSE_COUNT);
    if (!cause)
        return false;
    op_error(p, op, -(int)cause, "%s", c.text);
    op->err.rank = c.rank;
    op->err.pid = (int)c.pid;
    snprintf(op->err.node, sizeof op->err.node, "%s", c.node);
    return true;
}

static bool unusable(struct p2p *p, struct p2p_op *op)
{
    const struct membership *g = p->group;

    assert_held(&p->lock);
    if (p->closed) {
        op_error(p, op, COMMD_E_ABORTED, "the group was left while the message was pending");
        return true;
    }
    if (p->bad) {
        op_error(p, op, p->bad, "%s", p->bad_text);
        return true;
    }
    if (p2p_broken(p, op))
        return true;
    if (!atomic_load_explicit(&g->failed, memory_order_acquire))
        return false;
    op->err = g->first;
    return true;
}

static bool has_left(const struct p2p *p, unsigned rank)
{
    assert(rank < p->group->board.world);
    return p->group->board.ranks[rank].cause == CAUSE_LEFT;
}

/* Is all taken that this rank, which is gone, has sent? If not, it is under way. */
static bool nothing_left(struct p2p *p, unsigned rank)
{
    struct p2p_peer *peer = &p->peers[rank];

    assert(rank < p->group->board.world && rank != p->group->rank);
    p2p_drain(p, rank);
    if (peer->local >= 0 || peer->silent)
        return true;
    if (!peer->probe && !peer->probed) {
        peer->probe = true;
        p2p_talk(p, peer);
        p2p_push(p);
    }
    return false;
}

static bool lost_by(struct p2p *p, struct p2p_op *op, unsigned rank, bool left)
{
    assert(rank < p->group->board.world);
    if (op->state == P2P_DONE)
        return true; /* what was left ended it */
    op_error(p, op, COMMD_E_RANK_LOST, "rank %u (pid %u on node %s) %s", rank,
             p->group->members[rank].pid, group_node_of(p->group, rank),
             left ? "left the group" : "died");
    op_blame(p, op, rank);
    op->err.left = left;
    return give_up(p, op);
}

static bool lost(struct p2p *p, struct p2p_op *op, unsigned rank)
{
    return lost_by(p, op, rank, has_left(p, rank));
}

/* From any source: a death is an error, and so is having nobody left. */
static bool any_hopeless(struct p2p *p, struct p2p_op *op)
{
    unsigned me = p->group->rank, last = me, world = p->mail->world, ngone = 0;

    assert(!op->send && op->peer == COMMD_ANY_SOURCE);
    for (unsigned k = 0; k < world; k++) {
        if (k == me || !board_is_gone(&p->group->board, k))
            continue;
        if (!nothing_left(p, k))
            continue;
        if (!has_left(p, k) || op->state == P2P_DONE)
            return lost(p, op, k);
        ngone++;
        last = k;
    }
    return world > 1 && ngone == world - 1 && lost(p, op, last);
}

/* A receive whose message has begun waits for its source alone. */
static int needed(const struct p2p_op *op)
{
    assert(op->state != P2P_PULLING || op->status.source >= 0);
    return op->state == P2P_PULLING ? op->status.source : op->peer;
}

/* commd is gone too, so nobody will mark a dead member: look for oneself. */
static bool orphaned(struct p2p *p, struct p2p_op *op)
{
    const struct membership *g = p->group;
    int peer = needed(op);
    unsigned nleft = 0;

    assert(peer < (int)g->board.world);
    if (!control_lost(g))
        return false;
    if (g->board.nnodes > 1) {
        p2p_poll(p, op);
        if (op->state == P2P_DONE)
            return true;
        op_error(p, op, COMMD_E_NODE_LOST, "commd on node %s is gone", g->ctx->node);
        return give_up(p, op);
    }
    for (unsigned k = 0; k < g->board.world; k++) {
        bool left;

        if (k == g->rank || (peer != COMMD_ANY_SOURCE && peer != (int)k) ||
            !alive_ended(g, k, &left))
            continue;
        p2p_drain(p, k);
        if (op->state == P2P_DONE || !left || peer == (int)k || ++nleft == g->board.world - 1)
            return lost_by(p, op, k, left);
    }
    return false;
}

static bool p2p_timed_out(struct p2p *p, struct p2p_op *op)
{
    char limit[LIMIT_TEXT];
    const char *why = "the other side does not go on";

    assert(op->state != P2P_DONE);
    if (op->deadline_ms < 0 || (int64_t)now_ms() < op->deadline_ms)
        return false;
    p2p_poll(p, op);
    if (op->state == P2P_DONE)
        return true;
    if (op->state == P2P_POSTED)
        why = "nothing was sent";
    else if (op->state == P2P_OFFERED)
        why = "nobody has received it";
    op_error(p, op, COMMD_E_TIMEOUT, "ran into its timeout of %s: %s",
             limit_text(op->limit_ms, limit), why);
    return stop_waiting(p, op);
}

/* Is a rank gone that @op needs? */
static bool peer_lost(struct p2p *p, struct p2p_op *op)
{
    struct membership *g = p->group;
    int peer = needed(op);

    if (likely(!atomic_load_explicit(&g->board.hdr->ngone, memory_order_acquire)))
        return false;
    if (peer == COMMD_ANY_SOURCE && any_hopeless(p, op))
        return true;
    if (peer < 0 || peer == (int)g->rank || !board_is_gone(&g->board, (unsigned)peer))
        return false;
    if (op->send)
        p2p_drain(p, (unsigned)peer); /* it may have said that it does not want it */
    return (op->send || nothing_left(p, (unsigned)peer)) && lost(p, op, (unsigned)peer);
}

bool p2p_hopeless(struct p2p *p, struct p2p_op *op, bool slow)
{
    struct board_cause c;

    assert_held(&p->lock);
    /* a rank that is lost says more than that another one has revoked the group because of it */
    if (!p->closed && !p->bad && board_broken(p->group->board.hdr, &c) == CAUSE_ABORTED &&
        peer_lost(p, op))
        return true;
    if (unusable(p, op)) {
        struct commd_error why = op->err;

        if (!p->closed && !p->bad) { /* what it waits for may have come in between */
            op->err.code = 0;
            p2p_poll(p, op);
            if (op->state == P2P_DONE)
                return true;
            op->err = why;
        }
        return give_up(p, op);
    }
    if (peer_lost(p, op))
        return true;
    if (!slow || op->state == P2P_DONE)
        return op->state == P2P_DONE;
    return orphaned(p, op) || p2p_timed_out(p, op);
}

/* To look at one may end others, so the list is turned rather than walked. */
bool p2p_look_after(struct p2p *p, const struct p2p_op *but)
{
    struct p2p_op *op;
    unsigned n = 0;
    bool moved = false;

    assert_held(&p->lock);
    TAILQ_FOREACH(op, &p->ops, all)
        n++;
    while (n-- && (op = TAILQ_FIRST(&p->ops))) {
        TAILQ_REMOVE(&p->ops, op, all);
        TAILQ_INSERT_TAIL(&p->ops, op, all);
        if (op != but)
            moved |= p2p_hopeless(p, op, true);
    }
    return moved;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Those that wait for others are looked after by one who is here. */
static bool look_after_others(struct p2p *p, struct p2p_op *op)
{
    int64_t now = (int64_t)now_ms();

    assert_held(&p->lock);
    if (now - p->looked_ms < WAIT_SLICE_MS)
        return false;
    p->looked_ms = now;
    return p2p_look_after(p, op);
}

static bool p2p_nap(struct p2p *p, struct p2p_op *op, int64_t until_ms)
{
    struct board_hdr *h = p->group->board.hdr;
    _Atomic uint32_t *words[2] = {&p->box->bell, &h->bell};
    uint32_t expect[2] = {bell_prepare(&p->box->bell, &p->box->sleepers), atomic_load(&h->bell)};
    bool moved = p2p_poll(p, op);

    assert_held(&p->lock);
    if (!moved && op->state != P2P_DONE)
        moved = p2p_hopeless(p, op, true) || look_after_others(p, op);
    if (!moved && op->state != P2P_DONE) {
        bool late;

        p2p_say_content(p);
        pthread_mutex_unlock(&p->lock);
        late = futex_wait_any(words, expect, 2,
                              MIN(sleep_limit_ms(op->deadline_ms), sleep_limit_ms(until_ms)) *
                                  (int64_t)1000);
        pthread_mutex_lock(&p->lock);
        if (late && op->state != P2P_DONE && atomic_load(words[0]) == expect[0]) {
            moved =
                p2p_poll(p, op); /* which would have been due to a ring: we are still announced */
            if (moved)
                atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
        }
    }
    bell_cancel(&p->box->sleepers);
    return moved;
}

/* A few looks at the ring that the operation waits for, without the way around through the lock. */
static bool look_closely(const struct p2p *p, const struct p2p_op *op)
{
    const struct mail_rx *rx = &p->peers[MAX(op->peer, 0)].rx;

    assert(op->peer < (int)p->group->board.world);
    for (unsigned i = 0; i < CLOSE_LOOKS && op->peer >= 0; i++) {
        if (mail_ready(rx))
            return true;
        cpu_relax();
    }
    return false;
}

/* Lets go of the lock, which other threads of this process may want; but not if the next record is
 * there already, unless the one before (@moved) was for one of them. */
static void pause_unlocked(struct p2p *p, const struct p2p_op *op, bool spin, bool moved)
{
    struct crowd crowd = p->crowd;
    struct apart apart = p->apart;

    assert_held(&p->lock);
    if (spin && look_closely(p, op) && !moved)
        return;
    pthread_mutex_unlock(&p->lock);
    if (spin) {
        cpu_relax();
    } else {
        yield_core(p->group->crowded_ns, &crowd);
        group_part(p->group, &apart);
    }
    pthread_mutex_lock(&p->lock);
    if (spin)
        return;
    p->crowd = crowd;
    p->apart = apart;
}

/* An engine on this core gets it at once: yields would bring it there when the scheduler has given
 * this session its share, which may be after hundreds. */
enum wait_for p2p_waits_for(const struct p2p *p, const struct p2p_op *op)
{
    const struct board *b = &p->group->board;
    int peer = needed(op);

    assert(peer < (int)b->world);
    if (peer == COMMD_ANY_SOURCE ? b->nlocal == 1 : p->peers[peer].local < 0)
        return engine_shares_core(b) ? WAIT_FOR_ENGINE : WAIT_FOR_HERE;
    if (peer == COMMD_ANY_SOURCE && b->nnodes > 1)
        return WAIT_FOR_HERE;
    return board_shares_core(b, p->group->local) ? WAIT_FOR_HERE : WAIT_FOR_OTHERS;
}

/* ---- for people: board_seat() -------------------------------------------------------------------

 * A wait belongs to the message: who waits for it in slices, and between them does nothing else
 * that takes long, waits since the first one. Of several messages the board tells the one that is
 * waited for the longest. */

/* A message that lies here and that no receive takes: of whom @op waits for, else of anybody. */
static void tell_unasked(struct p2p *p, const struct p2p_op *op, struct board_member *me)
{
    const struct p2p_msg *m = NULL;

    assert(op->peer < (int)p->group->board.world);
    if (op->peer != COMMD_ANY_SOURCE)
        m = TAILQ_FIRST(&p->peers[op->peer].unexpected);
    if (!m)
        m = TAILQ_FIRST(&p->match.unexpected);
    atomic_store_explicit(&me->unasked_from, m ? (uint32_t)m->src + 1 : 0, memory_order_relaxed);
    atomic_store_explicit(&me->unasked_tag, m ? m->tag : 0, memory_order_relaxed);
}

static void tell_sleep(struct p2p *p)
{
    struct board_member *me = &p->group->board.members[p->group->local];
    const struct p2p_op *op = p->told;
    uint32_t since = op ? (uint32_t)op->waited_ms : 0;

    assert(!op || op->state != P2P_DONE);
    if (op) {
        tell_unasked(p, op, me);
        atomic_store_explicit(&me->message_peer, op->peer, memory_order_relaxed);
        atomic_store_explicit(&me->message_tag, op->tag, memory_order_relaxed);
        atomic_store_explicit(&me->message_send, op->send, memory_order_relaxed);
        since = since ? since : 1;
    }
    atomic_store_explicit(&me->message_ms, since, memory_order_release);
}

/* Does who left its wait a moment ago come back? */
static bool sleeps_on(const struct p2p_op *op)
{
    return op->waited_ms && now_ms() - op->left_ms < SLICES_MS;
}

static void sleep_begins(struct p2p *p, struct p2p_op *op)
{
    assert_held(&p->lock);
    if (!op->sleepers++ && !sleeps_on(op)) {
        op->waited_ms = now_ms();
        op->warned = false;
    }
    if (!p->told || op->waited_ms < p->told->waited_ms)
        p->told = op;
    tell_sleep(p);
}

void p2p_untell(struct p2p *p, const struct p2p_op *op)
{
    struct p2p_op *other;

    assert_held(&p->lock);
    if (likely(p->told != op))
        return;
    p->told = NULL;
    TAILQ_FOREACH(other, &p->ops, all)
        if (other != op && other->sleepers && (!p->told || other->waited_ms < p->told->waited_ms))
            p->told = other;
    tell_sleep(p);
}

static void sleep_ends(struct p2p *p, struct p2p_op *op)
{
    assert(op->sleepers > 0);
    op->left_ms = now_ms();
    if (!--op->sleepers)
        p2p_untell(p, op);
}

/* As warn_of_wait() of give_up.c. */
static void warn_of_message(struct p2p *p, struct p2p_op *op)
{
    const struct membership *g = p->group;
    uint64_t asleep_ms = now_ms() - op->waited_ms;
    char what[80];

    assert(op->waited_ms > 0);
    if (likely(!g->ctx->warn_ms || op->warned || asleep_ms < (uint64_t)g->ctx->warn_ms))
        return;
    op->warned = true;
    op_text_p2p(op, what, sizeof what);
    fprintf(
        stderr,
        "commd: rank %u of group \"%s\" on node %s has waited for %.1f s to %s; commctl why says "
        "more\n",
        g->rank, g->name, g->ctx->node, (double)asleep_ms / 1000, what);
}

/* Nobody sleeps in the message itself, but for the batch that it is a part of. */
void p2p_slept(struct p2p *p, struct p2p_op *op)
{
    assert_held(&p->lock);
    sleep_begins(p, op);
    op->sleepers--;
    op->left_ms = now_ms();
    if (p->told == op)
        warn_of_message(p, op);
}

/* Does the application want to stop? It may wait for a lock (as Python's) whose holder calls us: so
 * it is asked without ours. Meanwhile the progress thread moves what others have started. */
static bool p2p_interrupted(struct p2p *p, uint64_t *asked_ms)
{
    struct commd_context *ctx = p->group->ctx;
    bool alone, stop;

    assert(p->users > 0);
    if (likely(!context_interrupt_due(ctx, asked_ms)))
        return false;
    alone = ++p->away == p->users;
    pthread_mutex_unlock(&p->lock);
    if (alone)
        progress_kick(ctx);
    stop = context_interrupted(ctx);
    pthread_mutex_lock(&p->lock);
    p->away--;
    return stop;
}

static enum p2p_waited wait_out(struct p2p *p, struct p2p_op *op, int64_t until_ms, bool *slept)
{
    uint64_t asked_ms = 0;
    enum wait_way way;
    unsigned idle = 0;

    assert_held(&p->lock);
    while (op->state != P2P_DONE) {
        bool moved = p2p_poll(p, op);

        p2p_tell(p); /* works of others, who may wait for nothing else */
        if (op->state == P2P_DONE)
            break;
        idle = moved ? 0 : idle + 1;
        if (idle % HOPE_CHECK_EVERY == HOPE_CHECK_EVERY - 1 && p2p_hopeless(p, op, false))
            break;
        way = wait_way(&p->crowd, p2p_waits_for(p, op), idle, WAIT_SPINS / CLOSE_LOOKS);
        if (way != WAIT_SLEEP) {
            pause_unlocked(p, op, way == WAIT_SPIN, moved);
            continue;
        }
        if (!*slept)
            sleep_begins(p, op);
        *slept = true;
        if (p2p_nap(p, op, until_ms))
            idle = 0;
        if (op->state == P2P_DONE)
            break;
        if (p->told == op)
            tell_sleep(p); /* again: what lies here unasked for changes */
        warn_of_message(p, op);
        if (until_ms >= 0 && (int64_t)now_ms() >= until_ms)
            return P2P_LATE;
        if (p2p_interrupted(p, &asked_ms) && op->state != P2P_DONE)
            return P2P_INTERRUPTED;
    }
    return P2P_ENDED;
}

enum p2p_waited p2p_wait(struct p2p *p, struct p2p_op *op, int64_t until_ms)
{
    bool slept = op->state != P2P_DONE && sleeps_on(op);
    enum p2p_waited waited;

    assert_held(&p->lock);
    if (slept)
        sleep_begins(p, op);
    waited = wait_out(p, op, until_ms, &slept);
    if (slept)
        sleep_ends(p, op);
    return waited;
}

void p2p_interrupt(struct p2p *p, struct p2p_op *op)
{
    assert_held(&p->lock);
    op_error(p, op, COMMD_E_INTERRUPTED, "interrupted%s",
             under_way(p, op) ? "; the group is broken" : "");
    stop_waiting(p, op);
}
