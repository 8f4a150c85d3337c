/* engine_op.c - one operation on one board, as the node's engine carries it out.
 *
 *   IDLE   until every local member has announced the operation's first step. The engine
 *          copies their descriptions, compares them, and makes the plan.
 *   BEGIN  the agreement: recursive doubling over all nodes. Every message carries the
 *          description, so afterwards each node knows whether all agree; small operations
 *          carry their payload along and are done then. A refused operation is published as
 *          such and skipped by everybody.
 *   DATA   large operations: each step is a schedule of its own (ring or chain) over its slot
 *          of the result window; up to `depth` steps are under way at the same time.
 *
 * Who wakes me: members (announcing, reducing, consuming), messages, finished sends - all by
 * eboard_poll(). What if a peer dies now: no move completes; commd breaks the group. What if a
 * member dies now: the same, or the operation completes without it when its part is done.
 *
 * Everything that members can write is copied (descriptions), compared with private numbers
 * (counters), or a value (payload). Small payloads are gathered into private memory, so what
 * the network sends cannot change under it; large ones are sent from the window, where a
 * member can only spoil its own group's numbers. */
#include "transport/engine_internal.h"

#include <stdio.h>

#include "shm/reduce.h"
#include "shm/wait.h"

/* ---- counters that members read -------------------------------------------------------------- */

static void publish(struct eboard *eb, uint32_t upto)
{
    struct board_hdr *h = eb->b.hdr;

    eb->published = upto;
    atomic_store_explicit(&h->published, upto, memory_order_release);
    bell_ring(&h->bell, &h->sleepers);
}

/* `sent` follows `published` as far as no send reads the window. */
static bool advance_sent(struct eboard *eb)
{
    uint32_t old = eb->sent;

    while (eb->sent != eb->published) {
        const struct estep *s = &eb->steps[eb->sent % PLAN_DEPTH_NET];

        if (s->g == eb->sent && s->sends)
            break;
        eb->sent++;
    }
    if (eb->sent == old)
        return false;
    atomic_store_explicit(&eb->b.hdr->sent, eb->sent, memory_order_release);
    bell_ring(&eb->b.hdr->bell, &eb->b.hdr->sleepers);
    return true;
}

static bool all_announced(struct eboard *eb, uint32_t step)
{
    if (eb->seen_step != step) {
        eb->seen_step = step;
        eb->seen = 0;
    }
    while (eb->seen < eb->b.nlocal && board_arrived(&eb->b, eb->seen, step))
        eb->seen++;
    return eb->seen == eb->b.nlocal;
}

static bool all_reduced(const struct eboard *eb, uint32_t step)
{
    for (unsigned m = 0; m < eb->b.nlocal; m++)
        if (!seq_reached(atomic_load_explicit(&eb->b.members[m].reduced, memory_order_acquire),
                         step + 1))
            return false;
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* What a failed send or receive means is not ours to say: commd knows whether the engine, the
 * commd or the whole node behind it is gone. The board just stops. */
static void link_failed(struct eboard *eb, unsigned node, int err)
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

static void begin_sent(void *arg, int st)
{
    struct sbuf *s = arg;

    /* a broken link is reported by the fabric; commd decides what it means */
    s->eb->inflight--;
    sbuf_put(s->eb->e, s);
}

static bool send_begin(struct eboard *eb, unsigned node, const void *body, size_t len)
{
    struct wire_begin w = {
        .h = {.group = eb->b.group,
              .print = eb->print,
              .op = eb->op,
              .step = WIRE_BEGIN,
              .len = (uint32_t)len,
              .move = (uint16_t)eb->bmove,
              .flags = eb->bad ? WIRE_BAD : 0},
        .rank_a = eb->bad ? eb->rank_a : eb->local_rank[0],
        .rank_b = eb->rank_b,
        .a = eb->bad ? eb->bad_a : eb->desc,
        .b = eb->bad_b,
    };
    struct sbuf *s = sbuf_get(eb->e);
    struct fabric *f = eb->e->f;
    int r;

    if (!s) {
        link_failed(eb, node, -ENOMEM);
        return false;
    }
    s->eb = eb;
    memcpy(s->data, body, len);
    eb->inflight++;
    r = f->ops->send(f, eb->peers[node], &w, sizeof w, s->data, len, begin_sent, s);
    if (r != 0)
        begin_sent(s, r);
    if (r < 0)
        link_failed(eb, node, r);
    return r >= 0;
}

static void step_sent(struct estep *s)
{
    s->sends--;
    s->eb->inflight--;
}

static void data_sent(void *arg, int st)
{
    struct estep *s = arg;

    step_sent(s);
    if (s->eb->dead)
        return;
    eboard_activate(s->eb);
    advance_sent(s->eb);
}

static bool send_data(struct eboard *eb, struct estep *s, const struct sched_move *mv)
{
    struct fabric *f = eb->e->f;
    struct wire_hdr h = {
        .group = eb->b.group, .print = eb->print, .op = eb->op, .step = s->c, .move = s->move};
    size_t lo, hi;
    int r;

    plan_segment(&eb->plan, &eb->geom, s->c, mv->send_lo, mv->send_n, &lo, &hi);
    h.len = (uint32_t)(hi - lo);
    s->sends++;
    eb->inflight++;
    r = f->ops->send(f, eb->peers[mv->to], &h, sizeof h, board_result(&eb->b, s->g) + lo, hi - lo,
                     data_sent, s);
    if (r != 0)
        step_sent(s);
    if (r < 0)
        link_failed(eb, (unsigned)mv->to, r);
    return r >= 0;
}

/* ---- the agreement ----------------------------------------------------------------------------- */

/* Bytes of a small payload that the run of segments stands for. */
static void begin_range(const struct eboard *eb, unsigned lo, unsigned n, size_t *ret_lo,
                        size_t *ret_hi)
{
    *ret_lo = *ret_hi = 0;
    if (eb->plan.small)
        plan_segment(&eb->plan, &eb->geom, 0, lo, n, ret_lo, ret_hi);
}

static void set_bad(struct eboard *eb, uint32_t rank_a, const struct op_desc *a, uint32_t rank_b,
                    const struct op_desc *b)
{
    if (eb->bad)
        return;
    eb->bad = true;
    eb->rank_a = MIN(rank_a, eb->b.world - 1);
    eb->bad_a = *a;
    eb->rank_b = MIN(rank_b, eb->b.world - 1);
    eb->bad_b = *b;
}

/* The other node's view of what the operation is. */
static void begin_compare(struct eboard *eb, const struct wire_begin *w)
{
    if (w->h.flags & WIRE_BAD)
        set_bad(eb, w->rank_a, &w->a, w->rank_b, &w->b);
    else if (w->h.print != eb->print && w->rank_a < eb->local_rank[0])
        set_bad(eb, w->rank_a, &w->a, eb->local_rank[0], &eb->desc);
    else if (w->h.print != eb->print)
        set_bad(eb, eb->local_rank[0], &eb->desc, w->rank_a, &w->a);
}

static void begin_apply(struct eboard *eb, const void *body, size_t len)
{
    const struct sched_move *mv = &eb->bmv;
    const struct plan *p = &eb->plan;
    size_t lo, hi;

    begin_range(eb, mv->recv_lo, mv->recv_n, &lo, &hi);
    if (eb->bad) {
        /* whatever came is not meant for this operation */
    } else if (len != hi - lo) {
        eboard_fail(eb, CAUSE_PROTOCOL, (int)eb->peers[mv->from],
                    "another node's engine sent %zu bytes where %zu were expected", len, hi - lo);
    } else if (len && mv->act == SCHED_REDUCE) {
        const void *src[2] = {eb->acc + lo, body};

        if (mv->recv_first) {
            src[0] = body;
            src[1] = eb->acc + lo;
        }
        reduce_n(p->dtype, p->redop, eb->acc + lo, src, 2, len / p->esize);
        if (mv->last_reduce)
            reduce_finish(p->dtype, p->redop, eb->acc + lo, len / p->esize, eb->b.world);
    } else if (len) {
        memcpy(eb->acc + lo, body, len);
    }
    eb->bmove++;
    eb->bposted = false;
}

static void begin_received(void *arg, int st)
{
    struct eboard *eb = arg;

    eb->inflight--;
    eb->breceiving = false;
    if (st < 0 || eb->dead)
        return;
    begin_apply(eb, eb->tmp, eb->tmp_len);
    eboard_activate(eb);
}

/* True if the awaited message was there (its body may still be on its way). */
static bool begin_recv(struct eboard *eb)
{
    struct fabric *f = eb->e->f;
    struct inmsg *m;
    int r;

    if (eb->breceiving)
        return false;
    m = inbox_take(eb, WIRE_BEGIN, eb->bmv.recv_tag, eb->peers[eb->bmv.from]);
    if (!m)
        return false;
    begin_compare(eb, &m->b);
    if (!m->claim) {
        begin_apply(eb, m->body, m->h.len);
    } else if (m->h.len > PLAN_SMALL) {
        f->ops->drop(f, m->claim);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer, "another node's engine sent %u bytes to "
                    "agree on an operation", m->h.len);
    } else {
        eb->breceiving = true;
        eb->tmp_len = m->h.len;
        eb->inflight++;
        r = f->ops->recv(f, m->claim, eb->tmp, m->h.len, begin_received, eb);
        if (r < 0)
            link_failed(eb, (unsigned)eb->bmv.from, r);
        if (r != 0)
            begin_received(eb, r < 0 ? r : 0);
    }
    inmsg_done(m);
    return true;
}

/* What the local members contribute to a small operation, into private memory. */
static void gather_small(struct eboard *eb)
{
    const struct plan *p = &eb->plan;
    size_t len = p->count * p->esize;
    const void *src[BOARD_MAX_LOCAL];

    switch ((enum coll)p->coll) {
    case COLL_ALL_REDUCE:
        for (unsigned m = 0; m < eb->b.nlocal; m++)
            src[m] = board_payload(&eb->b, m, eb->base, len);
        reduce_n(p->dtype, p->redop, eb->acc, src, eb->b.nlocal, p->count);
        return;
    case COLL_ALL_GATHER:
        for (unsigned m = 0; m < eb->b.nlocal; m++)
            memcpy(eb->acc + (eb->node_start[eb->geom.me] + m) * len,
                   board_payload(&eb->b, m, eb->base, len), len);
        return;
    case COLL_BROADCAST:
        for (unsigned m = 0; m < eb->b.nlocal; m++)
            if (eb->local_rank[m] == p->root)
                memcpy(eb->acc, board_payload(&eb->b, m, eb->base, len), len);
        return;
    case COLL_REDUCE_SCATTER:
    case COLL_BARRIER:
    case COLL_COUNT:
        return;
    }
}

static size_t small_result_len(const struct eboard *eb)
{
    size_t len = eb->plan.count * eb->plan.esize;

    return eb->plan.coll == COLL_ALL_GATHER ? len * eb->b.world : len;
}

static enum sched_kind begin_kind(const struct plan *p)
{
    if (p->small && p->coll == COLL_ALL_GATHER)
        return SCHED_RD_ALL_GATHER;
    if (p->small && p->coll == COLL_BROADCAST)
        return SCHED_RD_BROADCAST;
    return SCHED_RD_ALL_REDUCE;
}

static enum sched_kind data_kind(const struct plan *p)
{
    switch ((enum coll)p->coll) {
    case COLL_BROADCAST:
        return SCHED_CHAIN_BROADCAST;
    case COLL_ALL_GATHER:
        return SCHED_RING_ALL_GATHER;
    case COLL_REDUCE_SCATTER:
        return SCHED_RING_REDUCE_SCATTER;
    case COLL_ALL_REDUCE:
    case COLL_BARRIER:
    case COLL_COUNT:
        break;
    }
    return SCHED_RING_ALL_REDUCE;
}

static unsigned root_node(const struct eboard *eb)
{
    return eb->plan.coll == COLL_BROADCAST ? eb->rank_node[eb->plan.root] : 0;
}

static bool op_begin(struct eboard *eb)
{
    struct op_desc d;

    if (!all_announced(eb, eb->base))
        return false;
    eb->bad = false;
    for (unsigned m = 0; m < eb->b.nlocal; m++) {
        d = board_slot(&eb->b, m, eb->base)->desc; /* copied once, looked at only here */
        if (m == 0) {
            eb->desc = d;
            eb->print = op_print(&d);
        } else if (op_print(&d) != eb->print) {
            set_bad(eb, eb->local_rank[0], &eb->desc, eb->local_rank[m], &d);
        }
    }
    if (!plan_make(&eb->desc, &eb->geom, &eb->plan)) {
        eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u announced an operation that cannot be",
                    eb->local_rank[0]);
        return false;
    }
    if (!eb->bad && eb->plan.small)
        gather_small(eb);
    eb->bkind = begin_kind(&eb->plan);
    eb->bmove = 0;
    eb->bmoves = sched_len(eb->bkind, eb->geom.nnodes, eb->geom.me, root_node(eb));
    eb->bposted = false;
    eb->state = EB_BEGIN;
    return true;
}

static void op_done(struct eboard *eb, uint32_t steps)
{
    eb->base += steps;
    eb->op++;
    eb->state = EB_IDLE;
}

static void op_refuse(struct eboard *eb)
{
    struct board_hdr *h = eb->b.hdr;

    h->mismatch = (struct board_mismatch){
        .rank_a = eb->rank_a, .rank_b = eb->rank_b, .a = eb->bad_a, .b = eb->bad_b};
    atomic_store_explicit(&h->refused, eb->desc.seq, memory_order_release);
    publish(eb, eb->base + BOARD_SKIP);
    advance_sent(eb);
    op_done(eb, BOARD_SKIP);
}

static void begin_end(struct eboard *eb)
{
    if (eb->bad) {
        op_refuse(eb);
    } else if (eb->plan.small) {
        memcpy(board_result(&eb->b, eb->base), eb->acc, small_result_len(eb));
        publish(eb, eb->base + 1);
        advance_sent(eb);
        op_done(eb, 1);
    } else {
        eb->dkind = data_kind(&eb->plan);
        eb->next_start = 0;
        eb->state = EB_DATA;
    }
}

static bool begin_poll(struct eboard *eb)
{
    bool moved = false;

    while (eb->bmove < eb->bmoves) {
        size_t lo, hi;

        if (!eb->bposted) {
            eb->bmv = sched_move(eb->bkind, eb->geom.nnodes, eb->geom.me, root_node(eb), eb->bmove);
            eb->bposted = true;
            moved = true;
            begin_range(eb, eb->bmv.send_lo, eb->bmv.send_n, &lo, &hi);
            if (eb->bmv.to >= 0 &&
                !send_begin(eb, (unsigned)eb->bmv.to, eb->acc + lo, eb->bad ? 0 : hi - lo))
                return true;
        }
        if (eb->bmv.from < 0) {
            eb->bmove++;
            eb->bposted = false;
        } else if (begin_recv(eb)) {
            moved = true;
        } else {
            return moved;
        }
        if (eb->dead)
            return true;
    }
    begin_end(eb);
    return true;
}

/* ---- data ---------------------------------------------------------------------------------------- */

static void step_next(struct estep *s)
{
    s->move++;
    s->posted = false;
}

static void step_reduce(struct estep *s, const void *body, size_t lo, size_t len)
{
    struct eboard *eb = s->eb;
    const struct plan *p = &eb->plan;
    uint8_t *res = board_result(&eb->b, s->g) + lo;
    const void *src[2] = {res, body};

    if (s->mv.recv_first) {
        src[0] = body;
        src[1] = res;
    }
    reduce_n(p->dtype, p->redop, res, src, 2, len / p->esize);
    if (s->mv.last_reduce)
        reduce_finish(p->dtype, p->redop, res, len / p->esize, eb->b.world);
}

static void step_received(void *arg, int st)
{
    struct estep *s = arg;
    struct eboard *eb = s->eb;
    size_t lo, hi;

    eb->inflight--;
    s->receiving = false;
    if (st < 0 || eb->dead) {
        /* the fabric reports the broken link; commd ends the group */
        scratch_put(eb->e, s->scratch);
        s->scratch = NULL;
        eb->dead = true;
        return;
    }
    if (s->scratch) {
        plan_segment(&eb->plan, &eb->geom, s->c, s->mv.recv_lo, s->mv.recv_n, &lo, &hi);
        step_reduce(s, s->scratch, lo, hi - lo);
        scratch_put(eb->e, s->scratch);
        s->scratch = NULL;
    }
    step_next(s);
    eboard_activate(eb);
}

/* A body that still lies with the sender: into its place, or into scratch to be reduced. */
static void step_claim(struct estep *s, struct inmsg *m, size_t lo)
{
    struct eboard *eb = s->eb;
    struct fabric *f = eb->e->f;
    uint8_t *to = board_result(&eb->b, s->g) + lo;
    int r;

    if (s->mv.act == SCHED_REDUCE) {
        s->scratch = to = scratch_get(eb->e);
        if (!to) {
            f->ops->drop(f, m->claim);
            eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory to receive a chunk");
            return;
        }
    }
    s->receiving = true;
    eb->inflight++;
    r = f->ops->recv(f, m->claim, to, m->h.len, step_received, s);
    if (r < 0)
        link_failed(eb, (unsigned)s->mv.from, r);
    if (r != 0)
        step_received(s, r < 0 ? r : 0);
}

/* True if the awaited message was there. */
static bool step_recv(struct estep *s)
{
    struct eboard *eb = s->eb;
    struct inmsg *m;
    size_t lo, hi;

    if (s->receiving)
        return false;
    m = inbox_take(eb, s->c, s->mv.recv_tag, eb->peers[s->mv.from]);
    if (!m)
        return false;
    plan_segment(&eb->plan, &eb->geom, s->c, s->mv.recv_lo, s->mv.recv_n, &lo, &hi);
    if (m->h.len != hi - lo || m->h.print != eb->print) {
        if (m->claim)
            eb->e->f->ops->drop(eb->e->f, m->claim);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent %u bytes where %zu were expected", m->h.len,
                    hi - lo);
    } else if (m->claim) {
        step_claim(s, m, lo);
    } else {
        if (s->mv.act == SCHED_REDUCE)
            step_reduce(s, m->body, lo, hi - lo);
        else if (hi > lo)
            memcpy(board_result(&eb->b, s->g) + lo, m->body, hi - lo);
        step_next(s);
    }
    inmsg_done(m);
    return true;
}

static bool step_poll(struct estep *s)
{
    struct eboard *eb = s->eb;
    bool moved = false;

    while (s->move < s->moves) {
        if (!s->posted) {
            s->mv = sched_move(eb->dkind, eb->geom.nnodes, eb->geom.me, root_node(eb), s->move);
            s->posted = true;
            moved = true;
            if (s->mv.to >= 0 && !send_data(eb, s, &s->mv))
                return true;
        }
        if (s->mv.from < 0)
            step_next(s);
        else if (step_recv(s))
            moved = true;
        else
            return moved;
        if (eb->dead)
            return true;
    }
    s->done = true;
    return true;
}

/* Opens the next step once the members have done their part in it. */
static bool start_step(struct eboard *eb)
{
    uint32_t c = eb->next_start, g = eb->base + c;
    struct estep *s = &eb->steps[g % PLAN_DEPTH_NET];

    if (c == eb->plan.steps || s->active || s->sends || !all_announced(eb, g) ||
        (eb->plan.reduces && !all_reduced(eb, g)))
        return false;
    s->g = g;
    s->c = c;
    s->active = true;
    s->done = s->posted = s->receiving = false;
    s->move = 0;
    s->moves = (uint16_t)sched_len(eb->dkind, eb->geom.nnodes, eb->geom.me, root_node(eb));
    eb->next_start++;
    return true;
}

static bool publish_done(struct eboard *eb)
{
    uint32_t upto = eb->published, end = eb->base + eb->next_start;

    while (upto != end) {
        struct estep *s = &eb->steps[upto % PLAN_DEPTH_NET];

        if (!s->done)
            break;
        s->active = false;
        upto++;
    }
    if (upto == eb->published)
        return false;
    publish(eb, upto);
    advance_sent(eb);
    if (upto == eb->base + eb->plan.steps)
        op_done(eb, eb->plan.steps);
    return true;
}

static bool data_poll(struct eboard *eb)
{
    bool moved = false;

    while (start_step(eb))
        moved = true;
    for (uint32_t g = eb->published; g != eb->base + eb->next_start && !eb->dead; g++) {
        struct estep *s = &eb->steps[g % PLAN_DEPTH_NET];

        if (!s->done)
            moved |= step_poll(s);
    }
    if (!eb->dead)
        moved |= publish_done(eb);
    return moved;
}

bool eboard_poll(struct eboard *eb)
{
    bool moved = false, more;

    if (eb->dead || eb->polling)
        return false;
    eb->polling = true;
    do {
        more = false;
        switch (eb->state) {
        case EB_IDLE:
            more = !eb->closing && op_begin(eb);
            break;
        case EB_BEGIN:
            more = begin_poll(eb);
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
