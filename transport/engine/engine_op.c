/* engine_op.c - one operation on one board, as the node's engine carries it out.
 *
 *   IDLE   until every local member has announced the operation's first step. The engine
 *          copies their descriptions, compares them, and makes the plan.
 *   CHECK  the consistency check: recursive doubling over all nodes. Every message carries the
 *          description, so afterwards each node knows whether all agree; small operations
 *          carry their payload along and are done then. A refused operation is published as
 *          such and skipped by everybody.
 *   DATA   large operations: each step is a schedule of its own (halving, ring, chain, direct) over
 *          its slot of the windows; in an all_reduce two nodes swap (plan.swap). Up to `depth`
 *          steps are under way at the same time. Their first sends do not wait for the consistency
 * check.
 *
 * Who wakes me: members (announcing, reducing), messages, finished sends - all by
 * eboard_poll(). What if a peer dies now: no move completes; commd breaks the group. What if a
 * member dies now: the same, or the operation completes without it when its part is done.
 *
 * Everything that members can write is copied (descriptions), compared with private numbers
 * (counters), or a value (payload). Small payloads are gathered into private memory, so what
 * the network sends cannot change under it; large ones are sent from the window, where a
 * member can only spoil its own group's numbers. */
#include "transport/engine/engine_internal.h"

#include <stdio.h>

#include "shm/reduce/reduce.h"
#include "shm/util/wait.h"

/* ---- counters that members read -------------------------------------------------------------- */

static void ring(const struct eboard *eb)
{
    bell_ring(&eb->b.hdr->bell, &eb->b.hdr->sleepers);
}

/* `sent` follows `published` as far as no send reads the window. True if it has moved. */
static bool follow_sent(struct eboard *eb)
{
    uint32_t old = eb->sent;

    while (eb->sent != eb->published) {
        const struct estep *s = &eb->steps[eb->sent % PLAN_DEPTH_NET];

        if (s->g == eb->sent && s->sends)
            break;
        eb->sent++;
    }
    if (eb->sent != old)
        atomic_store_explicit(&eb->b.hdr->sent, eb->sent, memory_order_release);
    return eb->sent != old;
}

static void publish(struct eboard *eb, uint32_t upto)
{
    eb->published = upto;
    eb->e->published = true;
    atomic_store_explicit(&eb->b.hdr->published, upto, memory_order_release);
    follow_sent(eb);
    ring(eb);
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

/* The result window of step @c of the current operation. */
static uint8_t *result_at(const struct eboard *eb, uint32_t c)
{
    return board_result(&eb->b, eb->base + c, plan_result(&eb->plan, &eb->geom, c));
}

/* Where received bytes go that are not reduced here. */
static uint8_t *receive_at(const struct eboard *eb, uint32_t c)
{
    size_t len = plan_result(&eb->plan, &eb->geom, c);

    return eb->plan.swap ? board_theirs(&eb->b, eb->base + c, len) : result_at(eb, c);
}

/* ---- sending --------------------------------------------------------------------------------- */

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

static void copy_sent(void *arg, int st)
{
    /* a broken link is reported by the fabric; commd decides what it means */
    sbuf_put(arg);
}

static size_t small_result_len(const struct eboard *eb)
{
    if (coll_table[eb->plan.coll].window == WINDOW_BLOCKS)
        return plan_block_at(&eb->plan, &eb->geom, 0, eb->b.world);
    return eb->plan.count * eb->plan.esize;
}

/* What the network still reads of acc stays as it is, in @s; the operation goes on with a copy. */
static void lend_acc(struct eboard *eb, struct sbuf *s)
{
    uint8_t *copy = malloc(eb->room);

    s->lent = eb->acc;
    eb->acc = copy;
    if (copy)
        memcpy(copy, s->lent, small_result_len(eb));
    else
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a small operation");
}

/* Bytes [@lo, @hi) of acc. */
static bool send_begin(struct eboard *eb, unsigned node, size_t lo, size_t hi)
{
    size_t len = hi - lo;
    struct wire_check w = {
        .h = {.group = eb->b.group,
              .fingerprint = eb->fingerprint,
              .op = eb->op,
              .step = WIRE_CHECK,
              .len = (uint32_t)len,
              .move = (uint16_t)eb->bmove,
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

    if (!s) {
        eboard_link_failed(eb, node, -ENOMEM);
        return false;
    }
    /* start_ahead(); of more nodes than two it may be to another one */
    f->more = !eb->plan.small && !eb->bad && eb->next_start == 0 && eb->geom.nnodes == 2;
    r = f->ops->send(f, eb->peers[node], &w, sizeof w, len ? eb->acc + lo : NULL, len, copy_sent,
                     s);
    f->more = false;
    if (r != 0)
        sbuf_put(s);
    else if (len)
        lend_acc(eb, s);
    if (r < 0)
        eboard_link_failed(eb, node, r);
    return r >= 0 && !eb->dead;
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
    if (follow_sent(s->eb))
        ring(s->eb);
}

/* Cells that do not lie in one piece. Nothing of the window is read any more then. */
static int send_packed(struct eboard *eb, struct estep *s, unsigned node, const struct wire_hdr *h)
{
    struct fabric *f = eb->e->f;
    struct sbuf *p = sbuf_get(eb, h->len);
    int r;

    if (!p)
        return -ENOMEM;
    cells_copy(eb, s, node, true, p->data);
    r = f->ops->send(f, eb->peers[node], h, sizeof *h, p->data, h->len, copy_sent, p);
    if (r != 0)
        sbuf_put(p);
    return r;
}

static int send_window(struct eboard *eb, struct estep *s, unsigned node, const struct wire_hdr *h,
                       const uint8_t *from)
{
    struct fabric *f = eb->e->f;
    int r;

    s->sends++;
    eb->inflight++;
    r = f->ops->send(f, eb->peers[node], h, sizeof *h, from, h->len, data_sent, s);
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
        if (!h.len) /* known on both sides; and the other may not even have this step */
            return true;
        from = cells_in_one(eb, s, node, true);
    } else {
        plan_segment(&eb->plan, &eb->geom, s->c, mv->send_lo, mv->send_n, &lo, &hi);
        h.len = (uint32_t)(hi - lo);
        from = result_at(eb, s->c) + lo;
    }
    r = from ? send_window(eb, s, node, &h, from) : send_packed(eb, s, node, &h);
    if (r < 0)
        eboard_link_failed(eb, node, r);
    return r >= 0;
}

/* ---- the consistency check
 * -----------------------------------------------------------------------------
 */

static void start_ahead(struct eboard *eb);

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
static void check_compare(struct eboard *eb, const struct wire_check *w)
{
    if (w->h.flags & WIRE_BAD)
        set_bad(eb, w->rank_a, &w->a, w->rank_b, &w->b);
    else if (w->h.fingerprint != eb->fingerprint && w->rank_a < eb->local_rank[0])
        set_bad(eb, w->rank_a, &w->a, eb->local_rank[0], &eb->desc);
    else if (w->h.fingerprint != eb->fingerprint)
        set_bad(eb, eb->local_rank[0], &eb->desc, w->rank_a, &w->a);
    /* partial sums, as those of the payload; a node that was folded gets the whole sum back */
    if (eb->bmv.act != SCHED_REDUCE)
        eb->balance = (struct op_balance){0};
    eb->balance.hash += w->balance.hash;
    eb->balance.diff += w->balance.diff;
    eb->balance.checksum += w->balance.checksum;
}

static void begin_next(struct eboard *eb)
{
    eb->bmove++;
    eb->bposted = false;
}

static void begin_apply(struct eboard *eb, const void *body, size_t len)
{
    const struct sched_move *mv = &eb->bmv;
    const struct plan *p = &eb->plan;
    const void *src[2];
    uint8_t *to;
    size_t lo, hi;

    begin_range(eb, mv->recv_lo, mv->recv_n, &lo, &hi);
    if (!len) {
        begin_next(eb);
        return;
    }
    to = eb->acc;
    if (eb->bmove + 1 == eb->bmoves && len == small_result_len(eb)) {
        to = result_at(eb, 0); /* nobody but the members needs it any more */
        eb->in_place = true;
    }
    if (mv->act == SCHED_REDUCE) {
        src[0] = mv->recv_first ? body : eb->acc + lo;
        src[1] = mv->recv_first ? eb->acc + lo : body;
        reduce_n(p->dtype, p->redop, to + lo, src, 2, len / p->esize);
        if (mv->last_reduce)
            reduce_finish(p->dtype, p->redop, to + lo, len / p->esize, eb->b.world);
    } else {
        memcpy(to + lo, body, len);
    }
    begin_next(eb);
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
    size_t lo, hi;
    int r;

    if (eb->breceiving)
        return false;
    m = inbox_take(eb, WIRE_CHECK, eb->bmv.recv_tag, eb->peers[eb->bmv.from]);
    if (!m)
        return false;
    check_compare(eb, &m->b);
    begin_range(eb, eb->bmv.recv_lo, eb->bmv.recv_n, &lo, &hi);
    if (eb->bad) { /* then the body is not meant for this operation */
        if (m->claim)
            f->ops->drop(f, m->claim);
        begin_next(eb);
    } else if (m->h.len != hi - lo) {
        if (m->claim)
            f->ops->drop(f, m->claim);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent %u bytes where %zu were expected", m->h.len,
                    hi - lo);
    } else if (!m->claim) {
        begin_apply(eb, m->body, m->h.len);
    } else {
        eb->breceiving = true;
        eb->tmp_len = m->h.len;
        eb->inflight++;
        r = f->ops->recv(f, m->claim, eb->tmp, m->h.len, begin_received, eb);
        if (r < 0)
            eboard_link_failed(eb, (unsigned)eb->bmv.from, r);
        if (r != 0)
            begin_received(eb, r < 0 ? r : 0);
    }
    inmsg_done(eb->e, m);
    return true;
}

/* What the local members contribute to a small operation, into private memory. */
static void gather_small(struct eboard *eb)
{
    const struct plan *p = &eb->plan;
    const struct coll_info *info = &coll_table[p->coll];
    size_t len = plan_payload(p, &eb->geom, 0);
    const void *src[BOARD_MAX_LOCAL];

    if (!eb->acc) /* only operations without a byte have come yet: make_room() */
        return;
    if (p->reduces) {
        memcpy(eb->acc, result_at(eb, 0), len);
        return;
    }
    for (unsigned m = 0; m < eb->b.nlocal && info->window != WINDOW_NONE; m++) {
        unsigned pos = eb->node_start[eb->geom.me] + m;

        src[m] = board_payload(&eb->b, m, eb->base, len);
        if (info->window == WINDOW_BLOCKS)
            memcpy(eb->acc + plan_block_at(p, &eb->geom, 0, pos), src[m],
                   plan_block_count(p, eb->local_rank[m], 0) * p->esize);
        else if (!info->reduces && eb->local_rank[m] == p->root)
            memcpy(eb->acc, src[m], len);
    }
    if (info->reduces)
        reduce_n(p->dtype, p->redop, eb->acc, src, eb->b.nlocal, p->count);
}

/* Private memory for a payload of @len bytes; kept for the next ones. */
static bool make_room(struct eboard *eb, size_t len)
{
    size_t room = len <= PLAN_SMALL       ? PLAN_SMALL
                  : len <= PLAN_SMALL_NET ? PLAN_SMALL_NET
                                          : PLAN_SMALL_MOST;

    if (eb->room >= room || !len)
        return true;
    free(eb->acc);
    free(eb->tmp);
    eb->room = 0;
    eb->acc = malloc(room);
    eb->tmp = malloc(room);
    if (!eb->acc || !eb->tmp) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a small operation");
        return false;
    }
    eb->room = room;
    return true;
}

/* How nodes carry out each collective: a small one together with the consistency check, for which
 * any schedule by recursive doubling will do; larger data step by step, in few messages if the plan
 * says so. */
static const struct {
    enum sched_kind small, data, few_messages;
} schedules[COLL_COUNT] = {
    [COLL_BARRIER] = {SCHED_RD_ALL_REDUCE, SCHED_RING_ALL_REDUCE},
    [COLL_ALL_REDUCE] = {SCHED_RD_ALL_REDUCE, SCHED_RING_ALL_REDUCE, SCHED_HALVING_ALL_REDUCE},
    [COLL_BROADCAST] = {SCHED_RD_BROADCAST, SCHED_CHAIN_BROADCAST},
    [COLL_ALL_GATHER] = {SCHED_RD_ALL_GATHER, SCHED_RING_ALL_GATHER, SCHED_RD_ALL_GATHER},
    [COLL_REDUCE_SCATTER] = {SCHED_RD_ALL_REDUCE, SCHED_RING_REDUCE_SCATTER,
                             SCHED_HALVING_REDUCE_SCATTER},
    [COLL_REDUCE] = {SCHED_RD_REDUCE, SCHED_CHAIN_REDUCE},
    [COLL_GATHER] = {SCHED_RD_ALL_REDUCE, SCHED_TO_ROOT},
    [COLL_SCATTER] = {SCHED_RD_ALL_REDUCE, SCHED_FROM_ROOT},
    [COLL_ALL_TO_ALL] = {SCHED_RD_ALL_REDUCE, SCHED_EXCHANGE},
    [COLL_ALL_GATHER_V] = {SCHED_RD_ALL_GATHER, SCHED_RING_ALL_GATHER, SCHED_RD_ALL_GATHER},
    [COLL_REDUCE_SCATTER_V] = {SCHED_RD_ALL_REDUCE, SCHED_RING_REDUCE_SCATTER,
                               SCHED_HALVING_REDUCE_SCATTER},
    [COLL_GATHER_V] = {SCHED_RD_ALL_REDUCE, SCHED_TO_ROOT},
    [COLL_SCATTER_V] = {SCHED_RD_ALL_REDUCE, SCHED_FROM_ROOT},
    [COLL_ALL_TO_ALL_V] = {SCHED_RD_ALL_REDUCE, SCHED_EXCHANGE},
};

static unsigned root_node(const struct eboard *eb)
{
    return coll_table[eb->plan.coll].rooted ? eb->rank_node[eb->plan.root] : 0;
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
            set_bad(eb, eb->local_rank[0], &eb->desc, eb->local_rank[m], &d);
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
        (!eb->plan.open || eb->bad || close_plan(eb)))
        return true;
    eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u announced an operation that cannot be",
                eb->local_rank[0]);
    return false;
}

/* What the operation is, once all members here have announced it. */
static bool op_learn(struct eboard *eb)
{
    if (!all_announced(eb, eb->base))
        return false;
    learn_desc(eb);
    if (!learn_plan(eb) || (eb->plan.small && !make_room(eb, small_result_len(eb))))
        return false;
    eb->learned = true;
    return true;
}

static bool op_begin(struct eboard *eb)
{
    if (!eb->learned && !op_learn(eb))
        return false;
    if (!eb->bad && eb->plan.small) {
        if (eb->plan.reduces && !all_reduced(eb, eb->base))
            return false;
        gather_small(eb);
    }
    eb->bkind = eb->plan.small ? schedules[eb->plan.coll].small : SCHED_RD_ALL_REDUCE;
    eb->bmove = 0;
    eb->bmoves = sched_len(eb->bkind, eb->geom.nnodes, eb->geom.me, root_node(eb));
    eb->bposted = false;
    eb->in_place = false;
    eb->dkind = eb->plan.swap           ? SCHED_EXCHANGE
                : eb->plan.few_messages ? schedules[eb->plan.coll].few_messages
                                        : schedules[eb->plan.coll].data;
    eb->next_start = 0;
    eb->learned = false;
    eb->state = EB_CHECK;
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
    publish(eb, eb->base + BOARD_SKIP);
    op_done(eb, BOARD_SKIP);
}

static void begin_end(struct eboard *eb)
{
    if (eb->bad || !op_balanced(&eb->balance)) {
        op_refuse(eb);
    } else if (eb->plan.small) {
        if (small_result_len(eb) && !eb->in_place) /* acc is only made when something is gathered */
            memcpy(result_at(eb, 0), eb->acc, small_result_len(eb));
        publish(eb, eb->base + 1);
        op_done(eb, 1);
    } else {
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
            if (eb->bmv.to >= 0 && !send_begin(eb, (unsigned)eb->bmv.to, lo, eb->bad ? lo : hi))
                return true;
        }
        start_ahead(eb);
        if (eb->bmv.from < 0) {
            begin_next(eb);
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

/* ---- data
 * ---------------------------------------------------------------------------------------- */

static void step_next(struct estep *s)
{
    s->move++;
    s->posted = false;
}

/* Sends all whose turn has come. False: the link failed, and with it the board. */
static bool step_send(struct estep *s)
{
    struct eboard *eb = s->eb;
    bool all = sched_independent(eb->dkind);

    while (s->sent < s->moves && (all || s->sent <= s->move)) {
        struct sched_move mv =
            sched_move(eb->dkind, eb->geom.nnodes, eb->geom.me, root_node(eb), s->sent);
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

/* A received body that could not go to its place at once. */
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
        step_apply(s, s->scratch);
        scratch_put(eb->e, s->scratch);
        s->scratch = NULL;
    }
    step_next(s);
    eboard_activate(eb);
}

/* Bytes that the awaited message must have, and where it may be received; NULL: not in place. */
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

/* No message without cells in it. */
static bool nothing_comes(const struct estep *s)
{
    return coll_table[s->eb->plan.coll].window == WINDOW_CELLS &&
           !cells_len(s->eb, s->c, (unsigned)s->mv.from, false);
}

/* A body that still lies with the sender: into its place, or into scratch to be applied. */
static void step_claim(struct estep *s, struct inmsg *m, uint8_t *to)
{
    struct eboard *eb = s->eb;
    struct fabric *f = eb->e->f;
    int r;

    if (!to) {
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
        eboard_link_failed(eb, (unsigned)s->mv.from, r);
    if (r != 0)
        step_received(s, r < 0 ? r : 0);
}

/* True if the awaited message was there. */
static bool step_recv(struct estep *s)
{
    struct eboard *eb = s->eb;
    struct inmsg *m;
    uint8_t *to;
    size_t len;

    if (s->receiving)
        return false;
    m = inbox_take(eb, s->c, s->mv.recv_tag, eb->peers[s->mv.from]);
    if (!m)
        return false;
    len = step_expects(s, &to);
    if (m->h.len != len || m->h.fingerprint != eb->fingerprint) {
        if (m->claim)
            eb->e->f->ops->drop(eb->e->f, m->claim);
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
        if (!s->posted) {
            s->mv = sched_move(eb->dkind, eb->geom.nnodes, eb->geom.me, root_node(eb), s->move);
            s->posted = true;
            moved = true;
            if (!step_send(s))
                return true;
        }
        if (s->mv.from < 0 || nothing_comes(s))
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
    s->move = s->sent = 0;
    s->moves = (uint16_t)sched_len(eb->dkind, eb->geom.nnodes, eb->geom.me, root_node(eb));
    eb->next_start++;
    return true;
}

/* What a step sends first depends on nothing that another node has: it goes out right behind this
 * node's first message of the consistency check (a stand-in only hears first), which saves a hop.
 * The other side looks at it only when all have agreed: what comes before that is put aside there.
 */
static void start_ahead(struct eboard *eb)
{
    if (eb->bad || eb->plan.small)
        return;
    while (!eb->dead && start_step(eb))
        step_send(&eb->steps[(eb->base + eb->next_start - 1) % PLAN_DEPTH_NET]);
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
    moved = mail_poll(eb);
    do {
        more = false;
        switch (eb->state) {
        case EB_IDLE:
            more = !eb->closing && op_begin(eb);
            break;
        case EB_CHECK:
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
