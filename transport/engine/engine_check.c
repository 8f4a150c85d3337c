/* engine_check.c - the consistency check at the beginning of an operation: do all ranks mean the
 * same?
 *
 * Recursive doubling over all nodes (transport/schedule/schedule_rd.c), one WIRE_CHECK message to a
 * move. Every message carries the description, so after the last move each node knows whether all
 * agree. A small operation carries its payload along, and is done then.
 *
 * eb->cmv is the current move, number eb->cmove, and eb->check says how far it is (enum
 * step_state). Who wakes the check: the message of the awaited move, or the end of its body. What
 * if a peer dies now: its message does not come; commd breaks the group.
 *
 * Payloads are gathered into private memory (acc), so that members cannot change what is being
 * sent. A send that is not over shares acc: what is written next goes to other memory. */
#include "transport/engine/engine_op.h"

#include <stdlib.h>
#include <string.h>

#include "shm/reduce/reduce.h"

size_t check_result_len(const struct eboard *eb)
{
    if (coll_table[eb->plan.coll].window == WINDOW_BLOCKS)
        return plan_block_at(&eb->plan, &eb->geom, 0, eb->b.world);
    return eb->plan.count * eb->plan.esize;
}

/* The memory is kept for the next operations. */
bool check_room(struct eboard *eb, size_t len)
{
    size_t room = len <= PLAN_SMALL       ? PLAN_SMALL
                  : len <= PLAN_SMALL_NET ? PLAN_SMALL_NET
                                          : PLAN_SMALL_MOST;

    if (eb->room >= room || !len)
        return true;
    payload_put(eb->acc);
    free(eb->tmp);
    eb->room = 0;
    eb->acc = payload_new(room);
    eb->tmp = malloc(room);
    if (!eb->acc || !eb->tmp) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a small operation");
        return false;
    }
    eb->room = room;
    return true;
}

/* Makes acc memory that no send reads; @len bytes of it stay what they are. False: no memory. */
static bool check_unshare(struct eboard *eb, size_t len)
{
    struct payload *own;

    assert(len <= eb->room);
    if (eb->acc->refs == 1)
        return true;
    own = payload_new(eb->room);
    if (!own) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a small operation");
        return false;
    }
    memcpy(own->data, eb->acc->data, len);
    payload_put(eb->acc);
    eb->acc = own;
    return true;
}

bool check_gather(struct eboard *eb)
{
    const struct plan *p = &eb->plan;
    const struct coll_info *info = &coll_table[p->coll];
    size_t len = plan_payload(p, &eb->geom, 0);
    const void *src[BOARD_MAX_LOCAL];

    assert(op_is_small(eb));
    assert(check_result_len(eb) <= eb->room);
    if (!check_result_len(eb)) /* there may be no acc yet: check_room() */
        return true;
    if (!check_unshare(eb, 0))
        return false;
    if (p->reduces) {
        memcpy(eb->acc->data, result_at(eb, 0), len);
        return true;
    }
    for (unsigned m = 0; m < eb->b.nlocal && info->window != WINDOW_NONE; m++) {
        unsigned pos = eb->node_start[eb->geom.me] + m;

        src[m] = board_payload(&eb->b, m, eb->base, len);
        if (info->window == WINDOW_BLOCKS)
            memcpy(eb->acc->data + plan_block_at(p, &eb->geom, 0, pos), src[m],
                   plan_block_count(p, eb->local_rank[m], 0) * p->esize);
        else if (!info->reduces && eb->local_rank[m] == p->root)
            memcpy(eb->acc->data, src[m], len);
    }
    if (info->reduces)
        reduce_n(p->dtype, p->redop, eb->acc->data, src, eb->b.nlocal, p->count);
    return true;
}

void check_differ(struct eboard *eb, uint32_t rank_a, const struct op_desc *a, uint32_t rank_b,
                  const struct op_desc *b)
{
    if (eb->bad)
        return; /* the first difference is told */
    eb->bad = true;
    eb->rank_a = MIN(rank_a, eb->b.world - 1);
    eb->bad_a = *a;
    eb->rank_b = MIN(rank_b, eb->b.world - 1);
    eb->bad_b = *b;
}

/* Compares with what the other node says that the operation is. */
static void check_compare(struct eboard *eb, const struct wire_check *w)
{
    if (w->h.flags & WIRE_BAD)
        check_differ(eb, w->rank_a, &w->a, w->rank_b, &w->b);
    else if (w->h.fingerprint != eb->fingerprint && w->rank_a < eb->local_rank[0])
        check_differ(eb, w->rank_a, &w->a, eb->local_rank[0], &eb->desc);
    else if (w->h.fingerprint != eb->fingerprint)
        check_differ(eb, eb->local_rank[0], &eb->desc, w->rank_a, &w->a);
    /* partial sums, as the payload has; a node that waits in the fold gets the whole sum back */
    if (eb->cmv.act != SCHED_REDUCE)
        eb->balance = (struct op_balance){0};
    eb->balance.hash += w->balance.hash;
    eb->balance.diff += w->balance.diff;
    eb->balance.checksum += w->balance.checksum;
}

/* Bytes of a small payload that the run of segments stands for. */
static void check_range(const struct eboard *eb, unsigned lo, unsigned n, size_t *ret_lo,
                        size_t *ret_hi)
{
    *ret_lo = *ret_hi = 0;
    if (op_is_small(eb))
        plan_segment(&eb->plan, &eb->geom, 0, lo, n, ret_lo, ret_hi);
}

/* Bytes [@lo, @hi) of acc. */
static bool check_send(struct eboard *eb, unsigned node, size_t lo, size_t hi)
{
    size_t len = hi - lo;
    struct wire_check w = {
        .h = {.group = eb->b.group,
              .fingerprint = eb->fingerprint,
              .op = eb->op,
              .step = WIRE_CHECK,
              .len = (uint32_t)len,
              .move = (uint16_t)eb->cmove,
              .flags = eb->bad ? WIRE_BAD : 0,
              .uid = eb->user->uid},
        .rank_a = eb->bad ? eb->rank_a : eb->local_rank[0],
        .rank_b = eb->rank_b,
        .a = eb->bad ? eb->bad_a : eb->desc,
        .b = eb->bad_b,
        .balance = eb->balance,
    };
    struct sbuf *s = sbuf_get(eb, 0);
    struct fabric *f = eb->e->f;
    int r;

    assert(lo <= hi);
    assert(hi <= eb->room);
    if (!s) {
        eboard_link_failed(eb, node, -ENOMEM);
        return false;
    }
    /* data_start_ahead(); where there are more nodes than two its data may go to another one */
    f->more = data_starts_ahead(eb) && eb->next_start == 0 && eb->geom.nnodes == 2;
    r = sbuf_send(s, node, &w.h, sizeof w, len ? eb->acc->data + lo : NULL);
    f->more = false;
    if (r == 0 && len) {
        s->lent = eb->acc;
        eb->acc->refs++;
    }
    if (r < 0)
        eboard_link_failed(eb, node, r);
    return r >= 0 && !eb->dead;
}

static void check_next(struct eboard *eb)
{
    assert(eb->cmove < eb->cmoves);
    eb->cmove++;
    step_set_state(&eb->check, STEP_NEXT);
}

static void check_apply(struct eboard *eb, const void *body, size_t len)
{
    const struct sched_move *mv = &eb->cmv;
    const struct plan *p = &eb->plan;
    const void *src[2];
    uint8_t *to;
    size_t lo, hi;

    check_range(eb, mv->recv_lo, mv->recv_n, &lo, &hi);
    assert(len == hi - lo);
    assert(hi <= eb->room);
    check_next(eb);
    if (!len)
        return;
    if (eb->cmove == eb->cmoves && len == check_result_len(eb)) {
        to = result_at(eb, 0); /* nobody but the members needs the result */
        eb->in_place = true;
    } else if (check_unshare(eb, check_result_len(eb))) {
        to = eb->acc->data;
    } else {
        return;
    }
    if (mv->act == SCHED_REDUCE) {
        src[0] = mv->recv_first ? body : eb->acc->data + lo;
        src[1] = mv->recv_first ? eb->acc->data + lo : body;
        reduce_n(p->dtype, p->redop, to + lo, src, 2, len / p->esize);
        if (mv->last_reduce)
            reduce_finish(p->dtype, p->redop, to + lo, len / p->esize, eb->b.world);
    } else {
        memcpy(to + lo, body, len);
    }
}

static void check_received(void *arg, int st)
{
    struct eboard *eb = arg;

    assert(eb->check == STEP_RECEIVING);
    assert(eb->inflight > 0);
    eb->inflight--;
    if (st < 0 || eb->dead)
        return;
    check_apply(eb, eb->tmp, eb->tmp_len);
    if (!eb->dead)
        eboard_activate(eb);
}

/* True if the awaited message was there (its body may still be on its way). */
static bool check_recv(struct eboard *eb)
{
    struct inmsg *m;
    size_t lo, hi;

    if (eb->check == STEP_RECEIVING)
        return false;
    assert(eb->check == STEP_AWAITED);
    assert(eb->cmv.from >= 0);
    m = inbox_take(eb, WIRE_CHECK, eb->cmv.recv_tag, eb->peers[eb->cmv.from]);
    if (!m)
        return false;
    check_compare(eb, &m->b);
    check_range(eb, eb->cmv.recv_lo, eb->cmv.recv_n, &lo, &hi);
    if (eb->bad) { /* then the body is not meant for this operation */
        inmsg_drop_claim(eb->e, m);
        check_next(eb);
    } else if (m->h.len != hi - lo) {
        inmsg_drop_claim(eb->e, m);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent %u bytes where %zu were expected", m->h.len,
                    hi - lo);
    } else if (!m->claim) {
        check_apply(eb, m->body, m->h.len);
    } else {
        step_set_state(&eb->check, STEP_RECEIVING);
        eb->tmp_len = m->h.len;
        inmsg_fetch(eb, m, (unsigned)eb->cmv.from, eb->tmp, check_received, eb);
    }
    inmsg_done(eb->e, m);
    return true;
}

static void check_end(struct eboard *eb)
{
    step_set_state(&eb->check, STEP_DONE);
    if (eb->bad || !op_balanced(&eb->balance)) {
        op_refuse(eb);
    } else if (op_is_small(eb)) {
        if (check_result_len(eb) && !eb->in_place)
            memcpy(result_at(eb, 0), eb->acc->data, check_result_len(eb));
        op_publish(eb, eb->base + 1);
        op_done(eb, 1);
    } else {
        eboard_set_state(eb, EB_DATA);
        if (coll_table[eb->plan.coll].rooted) { /* some need nothing more: coll/early.c */
            atomic_store_explicit(&eb->b.hdr->ops_agreed, eb->op + 2, memory_order_release);
            members_wake(eb);
        }
    }
}

bool check_poll(struct eboard *eb)
{
    bool moved = false;

    while (eb->cmove < eb->cmoves) {
        size_t lo, hi;

        if (eb->check == STEP_NEXT) {
            eb->cmv = sched_move(eb->check_schedule, eb->geom.nnodes, eb->geom.me, op_root_node(eb),
                                 eb->cmove);
            step_set_state(&eb->check, STEP_AWAITED);
            moved = true;
            check_range(eb, eb->cmv.send_lo, eb->cmv.send_n, &lo, &hi);
            if (eb->cmv.to >= 0 && !check_send(eb, (unsigned)eb->cmv.to, lo, eb->bad ? lo : hi))
                return true;
        }
        data_start_ahead(eb);
        if (eb->cmv.from < 0)
            check_next(eb);
        else if (check_recv(eb))
            moved = true;
        else
            return moved;
        if (eb->dead)
            return true;
    }
    check_end(eb);
    return true;
}
