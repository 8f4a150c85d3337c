/* engine_flow.c - how far the steps of an operation may be ahead of another node's. The rule, and
 * why nobody waits for ever, is in transport/schedule/flow.h. Here the sender keeps the rule, and
 * the receiver checks what comes by it.
 *
 * A step begins when the sender has credit with all nodes that get something in it (step_may_go()).
 * Until then its data stay in the members' window, which has room for some steps: so a slow
 * receiver slows down the members that send. Nothing of it waits in engine_send.c, where it would
 * be in others' way. A node has passed a step when it has published it. It says so (WIRE_PASSED)
 * where nothing else tells the sender: eb->one_way.
 *
 * Who wakes a step that may not go yet: WIRE_PASSED. What if the node that is behind dies now:
 * commd breaks the group. If its ranks leave, they do so in the middle of an operation, and the
 * group ends, too. */
#include "transport/engine/engine_op.h"

_Static_assert((int)FLOW_AHEAD == (int)PLAN_DEPTH_NET, "data_start_ahead() fills all slots");

bool has_part(const struct eboard *eb, uint32_t c, unsigned node, bool send)
{
    return coll_table[eb->plan.coll].window != WINDOW_CELLS || cells_len(eb, c, node, send);
}

bool step_may_go(const struct eboard *eb, uint32_t c)
{
    if (!eb->one_way || flow_may_send(c, 0))
        return true;
    for (unsigned i = 0; i < op_moves(eb); i++) {
        struct sched_move mv = op_move(eb, i);

        if (mv.to >= 0 && !flow_may_send(c, eb->passed[mv.to]) &&
            has_part(eb, c, (unsigned)mv.to, true))
            return false;
    }
    return true;
}

static void tell_passed(struct eboard *eb, unsigned node, uint32_t passed)
{
    struct wire_hdr h = {.group = eb->b.group,
                         .op = eb->op,
                         .step = WIRE_PASSED,
                         .move = (uint16_t)eb->geom.me,
                         .uid = eb->user->uid,
                         .passed = passed};
    struct sbuf *s = sbuf_get(eb, 0);
    int r = s ? sbuf_send(s, node, &h, sizeof h, NULL) : -ENOMEM;

    if (r < 0)
        eboard_link_failed(eb, node, r);
}

void steps_tell(struct eboard *eb, uint32_t before)
{
    uint32_t passed = eb->published - eb->base;

    assert(eb->state == EB_DATA);
    assert(before < passed);
    if (!eb->one_way || !flow_tells(before, passed, eb->plan.steps))
        return;
    for (unsigned i = 0; i < op_moves(eb) && !eb->dead; i++) {
        struct sched_move mv = op_move(eb, i);

        if (mv.from >= 0 && has_part(eb, passed - 1, (unsigned)mv.from, false))
            tell_passed(eb, (unsigned)mv.from, passed);
    }
}

void steps_were_passed(struct eboard *eb, const struct inmsg *m)
{
    const struct wire_hdr *h = &m->h;
    bool known = h->move < eb->geom.nnodes && eb->peers[h->move] == m->peer;

    if (eb->dead || (int32_t)(h->op - eb->op) < 0)
        return;
    if (!known || h->op != eb->op || eb->state < EB_CHECK || !eb->one_way ||
        h->passed > eb->next_start) {
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine says that it has got what was not sent");
        return;
    }
    eb->passed[h->move] = MAX(eb->passed[h->move], h->passed);
    eboard_activate(eb);
    eboard_poll(eb);
}

bool message_may_come(const struct eboard *eb, const struct inmsg *m)
{
    assert(m->h.group == eb->b.group);
    assert(m->h.step != WIRE_MAIL);
    return m->h.step == WIRE_CHECK
               ? flow_check_may_come(m->h.op, eb->op)
               : flow_may_come(m->h.op, m->h.step, eb->op, eb->published - eb->base);
}
