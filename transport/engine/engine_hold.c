/* engine_hold.c - a group goes on though an engine of its nodes was lost.
 *
 * A board of which nothing is on the wire is held: no operation is begun on it, no message of its
 * members is taken, and what comes for it waits. Its members wait, as they would for a slow
 * network. commd asks where it stands (engine_board_hold()), and when the nodes have found that all
 * are at the same place, and that no message between ranks is under way, it goes on: here by
 * engine_board_go(), on the node whose engine was lost by a BOARD_ADD that says so to the next one
 * (hold_take_over()). daemon/core/core_bond.c decides.
 *
 * What a dead engine had on the wire says its board (struct board_hdr, ops_begun). It is written
 * before anything is sent, and after all is done. So where an engine dies in between, the board
 * says that something is under way, and the group breaks.
 *
 * Operations keep their numbers, so a late message of one that is done is known for such. Messages
 * between ranks are numbered anew on all nodes. What comes while the board is held is of an engine
 * that goes on already: had it been sent before, its sender and we would not have told the same.
 *
 * Who wakes a board that is held: commd. What if another peer dies now: it stays held, and commd
 * asks again. What if commd dies now: the next one is told where the board stands
 * (engine_resume()). */
#include "transport/engine/engine_op.h"

static const bool hold_may[EB_NHOLDS][EB_NHOLDS] = {
    /* rows: from; columns: RUNS PAUSES HELD */
    [EB_RUNS] = {0, 1, 1},
    [EB_PAUSES] = {1, 0, 1},
    [EB_HELD] = {1, 0, 0},
};

void set_hold(struct eboard *eb, enum eboard_hold hold)
{
    assert(hold_may[eb->hold][hold]);
    eb->hold = hold;
}

bool hold_quiet(const struct eboard *eb)
{
    return !eb->dead && !eb->closing && eb->state < EB_CHECK && eb->inflight == 0 &&
           eb->inbox.n == 0 && eb->mail_begun == eb->mail_sent;
}

bool hold_board(struct eboard *eb)
{
    if (eb->hold == EB_HELD)
        return !eb->dead;
    if (!hold_quiet(eb))
        return false;
    set_hold(eb, EB_HELD);
    eboard_deactivate(eb);
    return true;
}

void hold_place(const struct eboard *eb, struct msg_board_held *ret_held)
{
    *ret_held = (struct msg_board_held){.group = eb->b.group,
                                        .quiet = 1,
                                        .ops = eb->op,
                                        .sent = eb->mail_sent,
                                        .came = eb->mail_came};
}

/* Others may ask for it yet, and commd be another one by then. */
static void note_going_on(struct eboard *eb)
{
    hold_place(eb, &eb->went_on);
    eb->went_on.went_on = 1;
}

void engine_board_hold(struct engine *e, uint64_t group, struct msg_board_held *ret_held)
{
    struct eboard *eb = eboard_find(e, group);

    *ret_held = (struct msg_board_held){.group = group, .missing = !eb};
    if (eb && hold_board(eb) && hold_quiet(eb)) /* else one that has gone on has sent something */
        hold_place(eb, ret_held);
}

bool hold_keep(struct eboard *eb, struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *kept;

    if (eb->hold != EB_HELD || eb->dead)
        return false;
    kept = inmsg_keep(eb->e, m, fm);
    if (!kept) {
        inmsg_drop_claim(eb->e, m);
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a message that has to wait");
    } else if (!inbox_push(&eb->inbox, kept)) {
        inmsg_free(eb->e, kept);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent more than was asked for");
    }
    return true;
}

/* Messages between ranks that came while it was held; those of operations are found where they are.
 */
static void take_mail(struct eboard *eb)
{
    for (struct inmsg *m = TAILQ_FIRST(&eb->inbox.all), *next; m; m = next) {
        next = TAILQ_NEXT(m, link);
        if (m->h.step != WIRE_MAIL)
            continue;
        inbox_unlink(&eb->inbox, m);
        mail_arrived(eb, m);
        inmsg_done(eb->e, m);
    }
}

void engine_board_go(struct engine *e, uint64_t group)
{
    struct eboard *eb = eboard_find(e, group);

    if (!eb || eb->hold != EB_HELD || eb->dead)
        return;
    note_going_on(eb);
    set_hold(eb, EB_RUNS);
    eboard_activate(eb);
    if (mail_renumber(eb))
        take_mail(eb);
}

/* The numbers are the members' to write: if they have, operations of their own group go wrong. */
bool hold_take_over(struct eboard *eb, uint32_t ops)
{
    struct board_hdr *h = eb->b.hdr;

    assert(eb->state == EB_IDLE && eb->op == 0);
    eb->op = ops;
    eb->base = eb->published = eb->sent = eb->seen_step = atomic_load(&h->published);
    eb->mail_sent = eb->mail_begun = atomic_load(&h->mail_sent);
    eb->mail_came = atomic_load(&h->mail_came);
    note_going_on(eb);
    op_account(eb);
    atomic_store(&h->sent, eb->sent); /* the engine before may not have come to it */
    members_wake(eb);
    return mail_renumber(eb);
}
