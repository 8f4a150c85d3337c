/* engine_op.c - one operation on one board, as the node's engine carries it out.
 *
 *   IDLE     until every local member has announced the operation's first step. The engine copies
 *            their descriptions, compares them, and makes the plan.
 *   LEARNED  until the local members have reduced a small operation's payload
 *   CHECK    the consistency check, engine_check.c. A small operation carries its payload along and
 *            is done then. One on which ranks differ is published as refused and skipped by all.
 *   DATA     the steps of a larger operation, engine_data.c
 *
 * Who wakes an operation: members (announcing, reducing), messages, finished sends: all by
 * eboard_poll(). What if a peer dies now: no move completes; commd breaks the group. What if a
 * member dies now: the same, or the operation completes without it when its part is done.
 *
 * The plan says whether an operation is small, and by which schedule nodes exchange its data
 * (shm/model/plan.c), from numbers that all nodes have.
 *
 * What members can write is copied (descriptions), compared with private numbers (counters), or
 * taken for a number whatever it is (payload). */
#include "transport/engine/engine_op.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const bool eboard_may[EB_NSTATES][EB_NSTATES] = { /* rows: from; columns: to */
                   /* IDLE LEARNED CHECK DATA */
    [EB_IDLE]    = {0,   1,      0,    0},
    [EB_LEARNED] = {0,   0,      1,    0},
    [EB_CHECK]   = {1,   0,      0,    1},
    [EB_DATA]    = {1,   0,      0,    0},
};

static const bool step_may[STEP_NSTATES][STEP_NSTATES] = {
                       /* FREE NEXT AWAITED RECEIVING DONE */
    [STEP_FREE]      = {0,   1,   0,      0,        0},
    [STEP_NEXT]      = {1,   0,   1,      0,        1}, /* FREE: the operation was refused */
    [STEP_AWAITED]   = {0,   1,   0,      1,        0},
    [STEP_RECEIVING] = {0,   1,   0,      0,        0},
    [STEP_DONE]      = {1,   1,   0,      0,        0}, /* NEXT: the next operation's check */
};
/* clang-format on */

void eboard_set_state(struct eboard *eb, enum eboard_state state)
{
    assert(eboard_may[eb->state][state]);
    eb->state = state;
}

void step_set_state(enum step_state *state, enum step_state to)
{
    assert(step_may[*state][to]);
    *state = to;
}

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

/* Sets the number of steps of an operation with counts, as members compute it from their slots. */
static bool close_plan(struct eboard *eb)
{
    uint64_t most = 0, said = 0;

    assert(eb->plan.path == PATH_OPEN);
    assert(eb->rows);
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
        counts = eb->rows + eb->b.world; /* the same of all members, or the operation is bad */
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
    assert(eb->bad || eb->plan.steps > 0);
    eboard_set_state(eb, EB_LEARNED);
    return true;
}

static bool op_begin(struct eboard *eb)
{
    assert(eb->state < EB_CHECK);
    assert(eb->published == eb->base);
    if (pause_bars(eb) || (eb->state == EB_IDLE && !op_learn(eb)))
        return false;
    if (!eb->bad && op_is_small(eb)) {
        if (eb->plan.reduces && !members_reduced(eb, eb->base))
            return false;
        if (!check_gather(eb))
            return false;
    }
    eb->check_schedule = op_is_small(eb) ? eb->plan.schedule : SCHED_RD_ALL_REDUCE;
    eb->cmove = 0;
    eb->cmoves = sched_len(eb->check_schedule, eb->geom.nnodes, eb->geom.me, op_root_node(eb));
    step_set_state(&eb->check, STEP_NEXT);
    eb->in_place = false;
    eb->next_start = 0;
    eb->one_way = sched_one_way(eb->plan.schedule) ||
                  (eb->plan.schedule == SCHED_EXCHANGE && coll_table[eb->plan.coll].counted);
    if (eb->one_way) /* all nodes begin with all of their credit */
        memset(eb->passed, 0, eb->geom.nnodes * sizeof *eb->passed);
    eboard_set_state(eb, EB_CHECK);
    /* before anything of it is sent */
    atomic_store_explicit(&eb->b.hdr->ops_begun, eb->op + 2, memory_order_release);
    return true;
}

void op_done(struct eboard *eb, uint32_t steps)
{
    assert(eb->published == eb->base + steps);
    eb->base += steps;
    eb->op++;
    atomic_store_explicit(&eb->b.hdr->ops_done, eb->op + 1, memory_order_release);
    eboard_set_state(eb, EB_IDLE);
}

void op_account(struct eboard *eb)
{
    atomic_store(&eb->b.hdr->ops_begun, eb->op + 1);
    atomic_store(&eb->b.hdr->ops_done, eb->op + 1);
}

void op_refuse(struct eboard *eb)
{
    struct board_hdr *h = eb->b.hdr;

    assert(eb->state == EB_CHECK);
    assert(eb->published == eb->base);
    h->mismatch =
        (struct board_mismatch){.rank_a = eb->rank_a,
                                .rank_b = eb->rank_b,
                                .a = eb->bad_a,
                                .b = eb->bad_b,
                                .balance = eb->bad ? (struct op_balance){0} : eb->balance};
    atomic_store_explicit(&h->refused, eb->desc.seq, memory_order_release);
    /* steps that did not wait for the consistency check, here and on other nodes */
    for (unsigned i = 0; i < PLAN_DEPTH_NET; i++)
        if (eb->steps[i].state != STEP_FREE)
            step_set_state(&eb->steps[i].state, STEP_FREE);
    inbox_drop(eb, false);
    op_publish(eb, eb->base + BOARD_SKIP);
    op_done(eb, BOARD_SKIP);
}

void eboard_link_failed(struct eboard *eb, unsigned node, int err)
{
    char text[64];

    assert(err < 0);
    assert(node < eb->geom.nnodes);
    assert(node != eb->geom.me);
    if (err == -ENOMEM) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory to move a chunk");
        return;
    }
    eb->dead = true;
    snprintf(text, sizeof text, "moving data failed: %s", strerror(-err));
    eb->e->ev.on_peer_down(eb->e->ev.arg, eb->peers[node], LINK_END_ENGINE, text);
}

bool eboard_poll(struct eboard *eb)
{
    bool moved = false, more;

    if (eb->dead || eb->polling || eb->hold == EB_HELD)
        return false;
    eb->polling = true;
    board_tell_engine_core(&eb->b);
    moved = !pause_bars_mail(eb) && mail_poll(eb);
    do {
        more = false;
        switch (eb->state) {
        case EB_IDLE:
        case EB_LEARNED:
            more = !eb->closing && op_begin(eb);
            break;
        case EB_CHECK:
            more = check_poll(eb);
            break;
        case EB_DATA:
            more = data_poll(eb);
            break;
        case EB_NSTATES:
            break;
        }
        moved |= more;
    } while (more && !eb->dead);
    eb->polling = false;
    if (eb->hold == EB_PAUSES)
        pause_look(eb);
    return moved;
}
