/* engine_op.c - one operation on one board, as the node's engine carries it out.
 *
 *   IDLE   until every local member has announced the operation's first step. The engine copies
 *          their descriptions, compares them, and makes the plan.
 *   CHECK  the consistency check, engine_check.c. A small operation carries its payload along and
 *          is done then. One on which ranks differ is published as refused and skipped by all.
 *   DATA   the steps of a larger operation, engine_data.c.
 *
 * Who wakes me: members (announcing, reducing), messages, finished sends: all by eboard_poll().
 * What if a peer dies now: no move completes; commd breaks the group. What if a member dies now:
 * the same, or the operation completes without it when its part is done.
 *
 * Whether an operation is small, and by which schedule nodes exchange its data, the plan says
 * (shm/model/plan.c), from numbers that all nodes have.
 *
 * Everything that members can write is copied (descriptions), compared with private numbers
 * (counters), or a value (payload). */
#include "transport/engine/engine_op.h"

#include <stdio.h>
#include <string.h>

/* ---- what the operation is ------------------------------------------------------------------- */

/* Copies and compares what the local members say that the operation is. */
static void learn_desc(struct eboard *eb)
{
    eb->bad = false;
    eb->balance = (struct op_balance){0};
    for (unsigned m = 0; m < eb->b.nlocal; m++) {
        const struct board_slot *slot = board_slot(&eb->b, m, eb->base);
        struct op_balance bal = slot->balance;
        struct op_desc d = slot->desc; /* copied once, looked at only here */

        if (m == 0) {
            eb->desc = d;
            eb->fingerprint = op_fingerprint(&d);
        } else if (op_fingerprint(&d) != eb->fingerprint) {
            check_differ(eb, eb->local_rank[0], &eb->desc, eb->local_rank[m], &d);
        }
        eb->balance.hash += bal.hash;
        eb->balance.diff += bal.diff;
        eb->balance.checksum += bal.checksum;
    }
}

/* The number of steps of a counted operation: members compute it from their announcements. */
static bool close_plan(struct eboard *eb)
{
    uint64_t most = 0, said = 0;

    for (size_t i = 0; i < (size_t)eb->b.nlocal * 2 * eb->b.world; i++)
        most = MAX(most, eb->rows[i]);
    for (unsigned m = 0; m < eb->b.nlocal; m++)
        said = MAX(said, board_slot(&eb->b, m, eb->base)->most);
    return most == said && plan_close(&eb->plan, most);
}

static bool learn_plan(struct eboard *eb)
{
    const uint64_t *counts = NULL;

    if (eb->desc.coll < COLL_COUNT && coll_table[eb->desc.coll].counted) {
        if (!cells_learn(eb))
            return false;
        counts = eb->rows + eb->b.world; /* all members give the same, or the operation is bad */
        if (eb->desc.digest && eb->desc.digest != op_digest(counts, eb->b.world))
            counts = NULL;
    }
    if ((counts || !eb->desc.digest) && plan_make(&eb->desc, &eb->geom, counts, &eb->plan) &&
        (eb->plan.path != PATH_OPEN || eb->bad || close_plan(eb)))
        return true;
    eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u announced an operation that cannot be",
                eb->local_rank[0]);
    return false;
}

/* What the operation is, once all members here have announced it. */
static bool op_learn(struct eboard *eb)
{
    if (!members_announced(eb, eb->base))
        return false;
    learn_desc(eb);
    if (!learn_plan(eb) || (op_is_small(eb) && !check_room(eb, check_result_len(eb))))
        return false;
    eb->learned = true;
    return true;
}

/* All nodes begin with all of their credit. */
static void op_begin_flow(struct eboard *eb)
{
    eb->one_way = sched_one_way(eb->plan.schedule) ||
                  (eb->plan.schedule == SCHED_EXCHANGE && coll_table[eb->plan.coll].counted);
    if (eb->one_way)
        memset(eb->passed, 0, eb->geom.nnodes * sizeof *eb->passed);
}

static bool op_begin(struct eboard *eb)
{
    assert(eb->state == EB_IDLE && eb->published == eb->base);
    if (!eb->learned && !op_learn(eb))
        return false;
    if (!eb->bad && op_is_small(eb)) {
        if (eb->plan.reduces && !members_reduced(eb, eb->base))
            return false;
        check_gather(eb);
    }
    eb->check_schedule = op_is_small(eb) ? eb->plan.schedule : SCHED_RD_ALL_REDUCE;
    eb->cmove = 0;
    eb->cmoves = sched_len(eb->check_schedule, eb->geom.nnodes, eb->geom.me, op_root_node(eb));
    eb->cposted = false;
    eb->in_place = false;
    eb->next_start = 0;
    op_begin_flow(eb);
    eb->learned = false;
    eb->state = EB_CHECK;
    return true;
}

/* ---- its end --------------------------------------------------------------------------------- */

void op_done(struct eboard *eb, uint32_t steps)
{
    assert(eb->state != EB_IDLE && eb->published == eb->base + steps);
    eb->base += steps;
    eb->op++;
    eb->state = EB_IDLE;
}

void op_refuse(struct eboard *eb)
{
    struct board_hdr *h = eb->b.hdr;

    assert(eb->state == EB_CHECK && eb->published == eb->base);
    h->mismatch =
        (struct board_mismatch){.rank_a = eb->rank_a,
                                .rank_b = eb->rank_b,
                                .a = eb->bad_a,
                                .b = eb->bad_b,
                                .balance = eb->bad ? (struct op_balance){0} : eb->balance};
    atomic_store_explicit(&h->refused, eb->desc.seq, memory_order_release);
    /* the steps that did not wait for the consistency check, here and elsewhere */
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        eb->steps[i].active = false;
    inbox_drop_op(eb);
    op_publish(eb, eb->base + BOARD_SKIP);
    op_done(eb, BOARD_SKIP);
}

void eboard_link_failed(struct eboard *eb, unsigned node, int err)
{
    char text[64];

    if (err == -ENOMEM) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory to move a chunk");
        return;
    }
    eb->dead = true;
    snprintf(text, sizeof text, "moving data failed: %s", strerror(-err));
    eb->e->ev.on_peer_down(eb->e->ev.arg, eb->peers[node], text);
}

void sbuf_sent(void *arg, int st)
{
    /* a broken link is reported by the fabric; commd decides what it means */
    sbuf_put(arg);
}

bool eboard_poll(struct eboard *eb)
{
    bool moved = false, more;

    if (eb->dead || eb->polling)
        return false;
    eb->polling = true;
    board_tell_engine_core(&eb->b);
    moved = mail_poll(eb);
    do {
        more = false;
        switch (eb->state) {
        case EB_IDLE:
            more = !eb->closing && op_begin(eb);
            break;
        case EB_CHECK:
            more = check_poll(eb);
            break;
        case EB_DATA:
            more = data_poll(eb);
            break;
        }
        moved |= more;
    } while (more && !eb->dead);
    eb->polling = false;
    return moved;
}
