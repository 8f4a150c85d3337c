/* engine_data.c - the steps of an operation that is too large to go with the consistency check.
 *
 * Each step is a schedule of its own (of the plan: halving, ring, chain, direct exchange) over its
 * slot of the windows; in an all_reduce two nodes swap (plan_swaps()). Up to `depth` steps are
 * under way at the same time, and are published in order. The first sends of a step do not wait for
 * the consistency check: data_start_ahead().
 *
 * Who wakes a step: members (announcing, reducing), the awaited message or the end of its body, the
 * end of a send (the slot is free then), WIRE_PASSED of a node that was too far behind. What if a
 * peer dies now: its message does not come; commd breaks the group.
 *
 * Large payloads are sent from the window, where a member can only spoil its own group's numbers.
 */
#include "transport/engine/engine_op.h"

#include <string.h>

#include "shm/reduce/reduce.h"

/* ---- sending --------------------------------------------------------------------------------- */

static void step_sent(struct estep *s)
{
    assert(s->sends > 0);
    assert(s->eb->inflight > 0);
    s->sends--;
    s->eb->inflight--;
}

static void window_sent(void *arg, int st)
{
    struct estep *s = arg;

    step_sent(s);
    if (s->eb->dead)
        return;
    eboard_activate(s->eb);
    if (op_follow_sent(s->eb))
        members_wake(s->eb);
}

/* Cells with gaps between them go as a copy. */
static int send_packed(struct eboard *eb, struct estep *s, unsigned node, struct wire_hdr *h)
{
    struct sbuf *p = sbuf_get(eb, h->len);

    if (!p)
        return -ENOMEM;
    cells_copy(eb, s, node, true, p->data);
    return sbuf_send(p, node, h, sizeof *h, p->data);
}

static int send_window(struct eboard *eb, struct estep *s, unsigned node, struct wire_hdr *h,
                       const uint8_t *from)
{
    int r;

    s->sends++;
    eb->inflight++;
    r = eboard_send(eb, node, h, sizeof *h, from, window_sent, s);
    if (r != 0)
        step_sent(s);
    return r;
}

static bool send_data(struct eboard *eb, struct estep *s, const struct sched_move *mv,
                      unsigned move)
{
    struct wire_hdr h = {.group = eb->b.group,
                         .fingerprint = eb->fingerprint,
                         .op = eb->op,
                         .step = s->c,
                         .move = (uint16_t)move,
                         .uid = eb->user->uid};
    unsigned node = (unsigned)mv->to;
    const uint8_t *from;
    size_t lo, hi;
    int r;

    if (coll_table[eb->plan.coll].window == WINDOW_CELLS) {
        h.len = (uint32_t)cells_len(eb, s->c, node, true);
        if (!h.len) /* the other node knows, and may not even have this step */
            return true;
        from = cells_in_one(eb, s, node, true);
    } else {
        plan_segment(&eb->plan, &eb->geom, s->c, mv->send_lo, mv->send_n, &lo, &hi);
        h.len = (uint32_t)(hi - lo);
        from = result_at(eb, s->c) + lo;
    }
    assert(h.len <= PLAN_CHUNK_NET);
    assert(node != eb->geom.me);
    r = from ? send_window(eb, s, node, &h, from) : send_packed(eb, s, node, &h);
    if (r < 0)
        eboard_link_failed(eb, node, r);
    return r >= 0;
}

/* ---- one step -------------------------------------------------------------------------------- */

static void step_next(struct estep *s)
{
    assert(s->move < s->moves);
    s->move++;
    step_set_state(&s->state, STEP_NEXT);
}

/* Sends of all moves that may be begun. False: the link failed, and with it the board. */
static bool step_send(struct estep *s)
{
    struct eboard *eb = s->eb;
    bool all = sched_independent(eb->plan.schedule);

    while (s->sent < s->moves && (all || s->sent <= s->move)) {
        struct sched_move mv = op_move(eb, s->sent);
        unsigned move = s->sent++;

        if (mv.to >= 0 && !send_data(eb, s, &mv, move))
            return false;
    }
    return true;
}

static void step_reduce(struct estep *s, const void *body, size_t lo, size_t len)
{
    struct eboard *eb = s->eb;
    const struct plan *p = &eb->plan;
    uint8_t *res = result_at(eb, s->c) + lo;
    const void *src[2] = {res, body};

    if (s->mv.recv_first) {
        src[0] = body;
        src[1] = res;
    }
    reduce_n(p->dtype, p->redop, res, src, 2, len / p->esize);
    if (s->mv.last_reduce)
        reduce_finish(p->dtype, p->redop, res, len / p->esize, eb->b.world);
}

/* Puts a received body that could not go to its place at once where it belongs. */
static void step_apply(struct estep *s, const uint8_t *body)
{
    struct eboard *eb = s->eb;
    size_t lo, hi;

    if (coll_table[eb->plan.coll].window == WINDOW_CELLS) {
        cells_copy(eb, s, (unsigned)s->mv.from, false, (uint8_t *)body);
        return;
    }
    plan_segment(&eb->plan, &eb->geom, s->c, s->mv.recv_lo, s->mv.recv_n, &lo, &hi);
    if (s->mv.act == SCHED_REDUCE)
        step_reduce(s, body, lo, hi - lo);
    else if (hi > lo)
        memcpy(receive_at(eb, s->c) + lo, body, hi - lo);
}

static void step_received(void *arg, int st)
{
    struct estep *s = arg;
    struct eboard *eb = s->eb;

    assert(s->state == STEP_RECEIVING);
    assert(eb->inflight > 0);
    eb->inflight--;
    if (st < 0)
        eb->dead = true; /* the fabric reports the broken link; commd ends the group */
    if (s->scratch && !eb->dead)
        step_apply(s, s->scratch);
    scratch_put(eb->e, steal_ptr(s->scratch), PLAN_CHUNK_NET);
    if (eb->dead)
        return;
    step_next(s);
    eboard_activate(eb);
}

/* Bytes that the awaited message must have, and where its body goes; NULL: into scratch first. */
static size_t step_expects(const struct estep *s, uint8_t **ret_to)
{
    const struct eboard *eb = s->eb;
    size_t lo, hi;

    if (coll_table[eb->plan.coll].window == WINDOW_CELLS) {
        *ret_to = cells_in_one(eb, s, (unsigned)s->mv.from, false);
        return cells_len(eb, s->c, (unsigned)s->mv.from, false);
    }
    plan_segment(&eb->plan, &eb->geom, s->c, s->mv.recv_lo, s->mv.recv_n, &lo, &hi);
    *ret_to = s->mv.act == SCHED_REDUCE ? NULL : receive_at(eb, s->c) + lo;
    return hi - lo;
}

/* A body that still lies with the sender: into its place, or into scratch to be applied. */
static void step_claim(struct estep *s, struct inmsg *m, uint8_t *to)
{
    struct eboard *eb = s->eb;

    assert(!s->scratch);
    if (!to)
        s->scratch = to = scratch_get(eb->e, PLAN_CHUNK_NET);
    if (!to) {
        inmsg_drop_claim(eb->e, m);
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory to receive a chunk");
        return;
    }
    step_set_state(&s->state, STEP_RECEIVING);
    inmsg_fetch(eb, m, (unsigned)s->mv.from, to, step_received, s);
}

/* True if the awaited message was there. */
static bool step_recv(struct estep *s)
{
    struct eboard *eb = s->eb;
    struct inmsg *m;
    uint8_t *to;
    size_t len;

    if (s->state == STEP_RECEIVING)
        return false;
    assert(s->state == STEP_AWAITED);
    assert(s->mv.from >= 0);
    m = inbox_take(eb, s->c, s->mv.recv_tag, eb->peers[s->mv.from]);
    if (!m)
        return false;
    len = step_expects(s, &to);
    if (m->h.len != len || m->h.fingerprint != eb->fingerprint) {
        inmsg_drop_claim(eb->e, m);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent %u bytes where %zu were expected", m->h.len, len);
    } else if (m->claim) {
        step_claim(s, m, to);
    } else {
        step_apply(s, m->body);
        step_next(s);
    }
    inmsg_done(eb->e, m);
    return true;
}

static bool step_poll(struct estep *s)
{
    struct eboard *eb = s->eb;
    bool moved = false;

    while (s->move < s->moves) {
        if (s->state == STEP_NEXT) {
            s->mv = op_move(eb, s->move);
            step_set_state(&s->state, STEP_AWAITED);
            moved = true;
            if (!step_send(s))
                return true;
        }
        /* a message without a cell is not sent */
        if (s->mv.from < 0 || !has_part(eb, s->c, (unsigned)s->mv.from, false))
            step_next(s);
        else if (step_recv(s))
            moved = true;
        else
            return moved;
        if (eb->dead)
            return true;
    }
    step_set_state(&s->state, STEP_DONE);
    return true;
}

/* ---- the operation's steps ------------------------------------------------------------------- */

/* Opens the next step once the members have done their part in it. */
static bool step_start(struct eboard *eb)
{
    uint32_t c = eb->next_start, g = eb->base + c;
    struct estep *s = &eb->steps[g % PLAN_DEPTH_NET];

    assert(c <= eb->plan.steps);
    if (c == eb->plan.steps || s->state != STEP_FREE || s->sends || !members_announced(eb, g) ||
        (eb->plan.reduces && !members_reduced(eb, g)) || !step_may_go(eb, c))
        return false;
    s->g = g;
    s->c = c;
    step_set_state(&s->state, STEP_NEXT);
    s->move = s->sent = 0;
    s->moves = (uint16_t)op_moves(eb);
    eb->next_start++;
    return true;
}

/* What a step sends first depends on nothing that another node has. So it goes out right behind
 * this node's first message of the consistency check, which saves a hop. (A stand-in's first move
 * sends nothing.) The receiver puts it aside until all have agreed. Not in a group's first
 * operation: there it would wait in engine_pending.c, whose room all groups share. */
void data_start_ahead(struct eboard *eb)
{
    if (!data_starts_ahead(eb))
        return;
    while (!eb->dead && step_start(eb))
        step_send(&eb->steps[(eb->base + eb->next_start - 1) % PLAN_DEPTH_NET]);
}

static bool data_publish(struct eboard *eb)
{
    uint32_t upto = eb->published, end = eb->base + eb->next_start, before = upto - eb->base;

    while (upto != end) {
        struct estep *s = &eb->steps[upto % PLAN_DEPTH_NET];

        if (s->state != STEP_DONE)
            break;
        assert(s->g == upto);
        step_set_state(&s->state, STEP_FREE);
        upto++;
    }
    if (upto == eb->published)
        return false;
    op_publish(eb, upto);
    steps_tell(eb, before);
    if (upto == eb->base + eb->plan.steps)
        op_done(eb, eb->plan.steps);
    return true;
}

bool data_poll(struct eboard *eb)
{
    bool moved = false;

    while (step_start(eb))
        moved = true;
    for (uint32_t g = eb->published; g != eb->base + eb->next_start && !eb->dead; g++) {
        struct estep *s = &eb->steps[g % PLAN_DEPTH_NET];

        if (s->state != STEP_DONE)
            moved |= step_poll(s);
    }
    if (!eb->dead)
        moved |= data_publish(eb);
    return moved;
}
