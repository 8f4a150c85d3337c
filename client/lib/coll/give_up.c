/* give_up.c - reasons to give up an operation: the group is broken; a rank is gone; commd is gone,
 * and a member has died since, which no commd tells; the limit has passed; the application wants to
 * stop.
 *
 * Each reason fills r->err. What the operation waits for may come in the same moment:
 * run_last_look(). */
#include "client/lib/coll/called.h"

#include <stdio.h>

bool run_broken(struct run *r)
{
    struct board_cause c;
    unsigned cause = board_broken(r->group->board.hdr, &c);

    if (group_has_failed(r->group, &r->err)) /* another thread of this rank has broken it */
        return true;
    if (!cause)
        return false;
    assert(cause < CAUSE_COUNT);
    error_set(&r->err, -(int)cause, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\": %s", (unsigned long long)r->desc.seq,
              coll_name(r->desc.coll), r->group->name, c.text);
    run_describe(r, -(int)cause, c.rank, c.pid, c.node);
    return true;
}

static void rank_gone(struct run *r, unsigned rank, uint32_t done, uint32_t pid, bool left)
{
    const char *node = group_node_of(r->group, rank);

    assert(rank < r->group->board.world);
    run_error(r, COMMD_E_RANK_LOST, (int)rank, pid, node,
              ": rank %u (pid %u on node %s) %s after completing %u operations", rank, pid, node,
              left ? "left the group" : "died", done);
    r->err.left = left;
}

/* Does this rank meet all others, who are on its node, at r->base? */
static bool meets_here(const struct run *r)
{
    return one_node(r) && (r->plan.path != PATH_POST || r->put);
}

/* Will rank @k, which is gone and had completed @done operations, not come to this one any more? It
 * may have completed one of this number in which it met nobody (posts.c). And where ranks differ
 * they all have to learn of it, and this one waits for that: it may wait for a rank that has been
 * told, and calls nothing more. */
static bool is_missed(const struct run *r, unsigned k, uint32_t done)
{
    return !seq_reached(done, (uint32_t)r->desc.seq) ||
           (meets_here(r) && !board_has_met(&r->group->board, k, r->base)) ||
           (r->agreed != AGREED_ALL && calls_disputed(r));
}

/* One who died is named before those who left: they did so because of it, as often as not. */
static bool somebody_gone(struct run *r)
{
    const struct board *b = &r->group->board;
    bool found = false;

    if (!atomic_load_explicit(&b->hdr->ngone, memory_order_acquire))
        return false;
    for (unsigned k = 0; k < b->world; k++) {
        struct board_rank *br = &b->ranks[k];
        uint32_t gone = atomic_load_explicit(&br->gone, memory_order_acquire);

        /* who had completed this very operation before it went is not missed in it */
        if (gone && k != r->group->rank && is_missed(r, k, gone - 1)) {
            bool left = br->cause == CAUSE_LEFT;

            if (!found || !left)
                rank_gone(r, k, gone - 1, br->pid, left);
            if (!left)
                return true;
            found = true;
        }
    }
    return found;
}

/* commd is gone too, so nobody will mark a dead member: look for oneself. */
static bool orphan_check(struct run *r)
{
    struct membership *g = r->group;

    assert(g->rank < g->board.world && g->local < g->board.nlocal);
    if (!control_lost(g))
        return false;
    if (!one_node(r)) {
        run_error(r, COMMD_E_NODE_LOST, -1, 0, g->ctx->node, ": commd on node %s is gone",
                  g->ctx->node);
        return true;
    }
    for (unsigned k = 0; k < g->board.world; k++) {
        bool left;

        if (k != g->rank && alive_ended(g, k, &left)) {
            uint32_t done = atomic_load(&g->board.members[k].ops);
            if (is_missed(r, k, done)) {
                rank_gone(r, k, done, g->members[k].pid, left);
                return true;
            }
        }
    }
    return false;
}

/* Who has not come to the operation before, which ended early here, keeps also those waiting who
 * have: these cannot come to this one. */
static uint64_t awaited(const struct run *r)
{
    return r->group->early.desc.seq ? r->group->early.desc.seq : r->desc.seq;
}

static void text_of_absent(const struct run *r, char *text, size_t len, int *ret_rank,
                           char node[MSG_NAME_MAX])
{
    absent_text(r->question, r->group, awaited(r), meets_here(r) ? &r->base : NULL, text, len,
                ret_rank, node);
}

static void run_timed_out(struct run *r)
{
    char text[360], node[MSG_NAME_MAX], limit[LIMIT_TEXT];
    int rank;

    assert(r->deadline_ms >= 0);
    text_of_absent(r, text, sizeof text, &rank, node);
    run_error(r, COMMD_E_TIMEOUT, rank, 0, node, " ran into its timeout of %s: %s",
              limit_text(r->limit_ms, limit), text);
}

static uint32_t slept_ms(const struct run *r)
{
    const struct board_member *me = run_member(r);

    if (atomic_load_explicit(&me->asleep_op, memory_order_relaxed) != (uint32_t)r->desc.seq)
        return 0;
    return (uint32_t)now_ms() - atomic_load_explicit(&me->asleep_ms, memory_order_relaxed);
}

/* Has a rank ended it that goes on, or wants others to? */
static bool is_revoked(const struct run *r)
{
    struct board_cause c;

    return board_broken(r->group->board.hdr, &c) == CAUSE_ABORTED;
}

/* A rank that is lost says more than that another rank has revoked the group because of it. */
bool run_hopeless_look(struct run *r)
{
    if (is_revoked(r) && somebody_gone(r) && !r->err.left)
        return true;
    return run_broken(r) || somebody_gone(r);
}

/* Of one who is gone and had posted more, this rank may still take that. */
int run_foretold(struct membership *g)
{
    struct commd_error *e = error_mine();
    struct run r = {.group = g,
                    .desc = {.seq = atomic_load(&g->seq) + 1, .coll = COLL_BARRIER},
                    .plan.path = PATH_POST};
    const char *about;

    if (group_has_failed(g, e))
        return e->code;
    if (!run_hopeless_look(&r))
        return 0;
    *e = r.err;
    about = strstr(r.err.message, " of group \"");
    if (about) /* that operation was not called */
        snprintf(e->message, sizeof e->message, "%s", about + strlen(" of "));
    e->seq = 0;
    snprintf(e->op, sizeof e->op, "check");
    if (e->code == COMMD_E_ABORTED || is_revoked(&r)) /* it is told, as by any operation */
        group_fail(g, e);
    return e->code;
}

/* One rank of a node speaks for those that wait there: the first. */
static bool speaks(const struct run *r)
{
    const struct membership *g = r->group;
    assert(g->local < g->board.nlocal);

    for (unsigned m = 0; m < g->local; m++)
        if (seq_reached(atomic_load_explicit(&g->board.members[m].started, memory_order_relaxed),
                        (uint32_t)r->desc.seq))
            return false;
    return true;
}

/* Such a wait may be usual, and come to its end: "; three operations took 600.0 s and longer
 * lately", as commctl why has it, else "". */
static void usual_text(const struct run *r, uint32_t asleep, char *text, size_t len)
{
    const struct membership *g = r->group;
    uint64_t usual_ms = recorder_usual_ns(&g->board.recorders[g->local], now_ns()) / 1000000;

    text[0] = 0;
    if (asleep <= 2 * usual_ms)
        snprintf(text, len, "; three operations took %.1f s and longer lately",
                 (double)usual_ms / 1000);
}

/* A rank that has slept for long in this operation says so, once, on stderr: nobody may be looking
 * at commctl. */
static void warn_of_wait(struct run *r)
{
    struct membership *g = r->group;
    uint32_t asleep = slept_ms(r);
    char text[360], node[MSG_NAME_MAX], what[160], usual[80];
    int rank;

    assert(r->warn_ms > 0);
    if (asleep < r->warn_ms)
        return;
    if (!speaks(r))
        r->warn_ms = 0;
    if (!r->warn_ms || !absent_ask(&r->question, g, awaited(r)))
        return;
    r->warn_ms = 0;
    text_of_absent(r, text, sizeof text, &rank, node);
    absent_free(&r->question);
    op_text(&r->desc, what, sizeof what);
    usual_text(r, asleep, usual, sizeof usual);
    fprintf(stderr,
            "commd: rank %u of group \"%s\" on node %s has waited for %.1f s in operation %llu "
            "(%s): %s%s; commctl why says more\n",
            g->rank, g->name, g->ctx->node, (double)asleep / 1000, (unsigned long long)r->desc.seq,
            what, text, usual);
}

bool run_hopeless_slow(struct run *r)
{
    assert(r->deadline_ms != RUN_UNTIMED);
    if (run_hopeless(r) || group_has_failed(r->group, &r->err) || orphan_check(r))
        return true;
    if (r->warn_ms)
        warn_of_wait(r);
    if (r->deadline_ms >= 0 && (int64_t)now_ms() >= r->deadline_ms &&
        absent_ask(&r->question, r->group, awaited(r))) {
        run_timed_out(r);
        return true;
    }
    return false;
}

bool run_interrupted(struct run *r)
{
    struct commd_context *ctx = r->group->ctx;

    if (likely(!context_interrupted_late(ctx, &r->asked_ms)))
        return false;
    run_error(r, COMMD_E_INTERRUPTED, (int)r->group->rank, 0, ctx->node,
              " was interrupted; the group is broken");
    return true;
}
