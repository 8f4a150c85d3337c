/* step.c - an operation in steps: the announcement, whether all ranks mean the same operation, what
 * a member can do next, and beginning again at a later step.
 *
 * One node: each member compares the first announcements for itself, and all must find the same
 * pair of ranks that differ. Several nodes: the engines compare (transport/engine/engine_check.c)
 * and publish what they found. A rank that cannot do the operation announces that in place of its
 * description, which then differs from every other. For the counters and the order of checks see
 * shm/board/board.c.
 *
 * An operation in steps has up to three counters: a member puts its part of step `put`, reduces its
 * slice of step `red`, gets the result of step `got`. */
#include "client/lib/coll/called.h"

#include <stdarg.h>
#include <stdio.h>

/* The engine cannot see the caller's lists. */
static void tell_counts(const struct run *r, uint32_t step)
{
    const struct membership *g = r->group;
    const struct op_lists *l = r->lists;
    size_t row = g->board.world * sizeof(uint64_t);

    assert(l && (!l->counts || !l->send_counts));
    if (one_node(r))
        return;
    if (l->counts) {
        memcpy(board_counts(&g->board, g->local, step, 1), l->counts, row);
    } else if (l->send_counts) {
        memcpy(board_counts(&g->board, g->local, step, 0), l->send_counts, row);
        memcpy(board_counts(&g->board, g->local, step, 1), l->recv_counts, row);
    }
}

void run_announce(struct run *r, unsigned kind)
{
    uint32_t step = r->base + r->put;
    struct board_slot *s = board_slot(&r->group->board, r->group->local, step);

    invariant(kind <= BOARD_TEAM_BAD);
    invariant(atomic_load_explicit(&s->seq, memory_order_relaxed) != board_mark(step));
    if (r->put == 0) {
        s->desc = unlikely(r->late) ? r->told : r->desc;
        s->balance = r->balance;
        s->most = r->most;
        if (unlikely(r->lists))
            tell_counts(r, step);
    }
    s->fingerprint = r->fingerprint;
    s->kind = kind;
    atomic_store_explicit(&s->seq, board_mark(step), memory_order_release);
    if (r->plan.brief)
        r->untold = true;
    else if (r->plan.reduces)
        run_tell(r);
    else
        run_tell_engine(r);
    r->put++;
}

void run_describe(struct run *r, int code, int rank, uint32_t pid, const char *node)
{
    struct membership *g = r->group;

    assert(code < 0);
    r->err.code = code;
    r->err.rank = rank;
    r->err.pid = (int)pid;
    r->err.epoch = g->board.epoch;
    r->err.seq = r->desc.seq;
    snprintf(r->err.node, sizeof r->err.node, "%s", node);
}

void run_error(struct run *r, int code, int rank, uint32_t pid, const char *node, const char *fmt,
               ...)
{
    struct commd_error *e = &r->err;
    size_t at;
    va_list ap;

    error_set(e, code, coll_name(r->desc.coll), "operation %llu (%s) of group \"%s\"",
              (unsigned long long)r->desc.seq, coll_name(r->desc.coll), r->group->name);
    at = strlen(e->message);
    assert(at < sizeof e->message);
    va_start(ap, fmt);
    vsnprintf(e->message + at, sizeof e->message - at, fmt, ap);
    va_end(ap);
    run_describe(r, code, rank, pid, node);
}

/* The group goes on, and this process was not forked, whatever another rank says. */
static bool may_be_told(int code)
{
    return code && !commd_error_breaks_group(code) && code != COMMD_E_FORKED;
}

int declined_code(uint8_t told, const char **ret_why)
{
    int code = may_be_told(-(int)told) ? -(int)told : COMMD_E_MISMATCH;

    *ret_why = code == COMMD_E_NOMEM ? "it has no more host memory that its GPU can copy to; wait "
                                       "for operations that are not done, or make it smaller"
               : told == -COMMD_E_MISMATCH ? "ranks had called different operations before"
                                           : commd_strerror(code);
    assert(code < 0);
    return code;
}

/* The rank of @d cannot take part, as it says. */
static void one_declined(struct run *r, const struct op_desc *d, unsigned rank)
{
    const char *node = group_node_of(r->group, rank), *why;
    int code = declined_code(d->declined, &why);

    assert(rank < r->group->board.world && d->declined);
    if (d->seq != r->desc.seq)
        run_error(r, code, (int)rank, r->group->members[rank].pid, node,
                  ": rank %u (node %s) could not take part in operation %llu: %s; the group can "
                  "still be used",
                  rank, node, (unsigned long long)d->seq, why);
    else
        run_error(r, code, (int)rank, r->group->members[rank].pid, node,
                  ": rank %u (node %s) cannot take part: %s; the group can still be used", rank,
                  node, why);
}

/* What @d says; of another operation than @r also its number. */
static void call_text(const struct run *r, const struct op_desc *d, char *text, size_t len)
{
    size_t used;

    op_text(d, text, len);
    used = strlen(text);
    if (d->seq != r->desc.seq)
        snprintf(text + used, len - used, " in operation %llu", (unsigned long long)d->seq);
}

static void differ(struct run *r, const struct op_desc *da, unsigned a, const struct op_desc *db,
                   unsigned b)
{
    char ta[120], tb[120];

    assert(a < r->group->board.world && b < r->group->board.world);
    r->agreed = AGREED_REFUSED;
    if (da->declined || db->declined) {
        one_declined(r, da->declined ? da : db, da->declined ? a : b);
        return;
    }
    call_text(r, da, ta, sizeof ta);
    call_text(r, db, tb, sizeof tb);
    error_set(&r->err, COMMD_E_MISMATCH, coll_name(r->desc.coll),
              "operation %llu of group \"%s\": rank %u (node %s) called %s, but rank %u (node %s) "
              "called %s; the group can still be used",
              (unsigned long long)r->desc.seq, r->group->name, a, group_node_of(r->group, a), ta, b,
              group_node_of(r->group, b), tb);
    run_describe(r, COMMD_E_MISMATCH, (int)b, r->group->members[b].pid, group_node_of(r->group, b));
}

void run_mismatch(struct run *r, const struct board_mismatch *m)
{
    uint32_t last = r->group->board.world - 1;

    r->agreed = AGREED_REFUSED;
    r->group->refusal = *m;
    if (m->a.coll >= COLL_COUNT && m->b.coll >= COLL_COUNT)
        run_error(r, COMMD_E_MISMATCH, -1, 0, "",
                  ": ranks have called different operations before it; the group can still be "
                  "used");
    else
        differ(r, &m->a, MIN(m->rank_a, last), &m->b, MIN(m->rank_b, last));
}

static void counts_mismatch(struct run *r, const struct op_balance *bal)
{
    struct membership *g = r->group;
    char who[120];

    assert(!op_balanced(bal));
    r->agreed = AGREED_REFUSED;
    op_balance_text(bal, g->board.world, who, sizeof who);
    run_error(r, COMMD_E_MISMATCH, -1, 0, g->ctx->node,
              ": the counts that ranks gave do not fit: %s; the group can still be used", who);
}

static bool counts_fit(struct run *r)
{
    const struct board *b = &r->group->board;
    struct op_balance sum = {0};

    assert(one_node(r) && coll_table[r->desc.coll].counted);
    for (unsigned m = 0; m < b->nlocal; m++) {
        const struct op_balance *bal = &board_slot(b, m, r->base)->balance;

        sum.hash += bal->hash;
        sum.diff += bal->diff;
        sum.checksum += bal->checksum;
    }
    if (op_balanced(&sum))
        return true;
    counts_mismatch(r, &sum);
    return false;
}

/* What member @m, which is at r->base, called as operation @seq, which is its own or an earlier
 * one, in which it met nobody. */
static bool call_at(const struct run *r, unsigned m, uint64_t seq, struct op_desc *ret_desc)
{
    *ret_desc = board_slot(&r->group->board, m, r->base)->desc;
    return ret_desc->seq == seq || call_read(r, m, seq, ret_desc);
}

/* Some members may be ahead of others. They are compared in the operation of the last one. False:
 * there they called the same, as far as that is known. */
static bool who_differs(const struct run *r, struct board_mismatch *m)
{
    const struct membership *g = r->group;
    unsigned with = g->board.nlocal;
    uint64_t seq = UINT64_MAX;
    struct op_desc called;

    for (unsigned k = 0; k < g->board.nlocal; k++)
        seq = MIN(seq, board_slot(&g->board, k, r->base)->desc.seq);
    for (unsigned k = 0; k < g->board.nlocal; k++) {
        if (!call_at(r, k, seq, &called))
            continue;
        if (with == g->board.nlocal) {
            with = k;
            m->rank_a = g->local_rank[k];
            m->a = called;
        } else if (memcmp(&m->a, &called, sizeof called) != 0) {
            m->rank_b = g->local_rank[k];
            m->b = called;
            return true;
        }
    }
    return false;
}

/* One node: members compare. */
static bool members_consistent(struct run *r)
{
    const struct membership *g = r->group;
    const struct board *b = &g->board;
    struct board_mismatch mismatch = {0};
    unsigned m = b->nlocal > 1; /* alone: this member's own slot was changed by somebody */

    invariant(one_node(r));
    if (likely(run_members_agree(r)))
        return likely(!coll_table[r->desc.coll].counted) || counts_fit(r);
    /* all members must report the same pair */
    if (!who_differs(r, &mismatch)) {
        while (m < b->nlocal - 1 &&
               board_slot(b, m, r->base)->fingerprint == board_slot(b, 0, r->base)->fingerprint)
            m++;
        mismatch = (struct board_mismatch){.rank_a = g->local_rank[0],
                                           .rank_b = g->local_rank[m],
                                           .a = board_slot(b, 0, r->base)->desc,
                                           .b = board_slot(b, m, r->base)->desc};
        if (m)
            calls_mismatch(r, 0, m, &mismatch);
    }
    run_mismatch(r, &mismatch);
    return false;
}

/* Several nodes: the engine published; it may have refused. */
static bool engine_consistent(struct run *r)
{
    const struct board_hdr *h = r->group->board.hdr;
    struct board_mismatch m;

    assert(!one_node(r));
    if (likely(atomic_load_explicit(&h->refused, memory_order_acquire) != r->desc.seq))
        return true;
    m = r->late ? r->group->refusal : h->mismatch;
    if (!op_balanced(&m.balance)) {
        counts_mismatch(r, &m.balance);
        return false;
    }
    run_mismatch(r, &m);
    return false;
}

bool run_compare(struct run *r)
{
    if (!(one_node(r) ? members_consistent(r) : engine_consistent(r)))
        return false;
    r->agreed = AGREED_ALL;
    return true;
}

/* ---- in steps -------------------------------------------------------------------------------- */

bool run_put(struct run *r)
{
    uint32_t c = r->put;

    invariant(c < r->plan.steps && (c == 0 || r->plan.path != PATH_OPEN));
    if (!run_filled(r, c) || !run_can_put(r, c, plan_payload(&r->plan, &r->group->geom, c)))
        return false;
    coll_steps[r->plan.coll].put(r, c);
    run_announce(r, BOARD_PAYLOAD);
    coll_steps[r->plan.coll].own(r, c);
    return true;
}

/* One node, a core for each member: copying chunk c+1 in before waiting for chunk c is all the
 * overlap there is. Across nodes the wire wants as many chunks as the window holds; and members who
 * take turns on a core do as much as they can in each. */
static bool alternates(const struct run *r)
{
    const struct plan_geom *g = &r->group->geom;

    return one_node(r) && g->nlocal <= g->cores;
}

static bool try_put(struct run *r)
{
    uint32_t ahead = alternates(r) ? 1 : r->group->board.depth - 1;

    return r->put < r->plan.steps && r->put <= r->got + ahead && run_put(r);
}

static bool try_reduce(struct run *r)
{
    uint32_t step = r->base + r->red;

    if (!r->plan.reduces || r->red == r->put || !run_step_arrived(r, step))
        return false;
    assert(r->red < r->put && r->red < r->plan.steps);
    if (one_node(r) && !run_agrees(r))
        return false;
    /* several nodes: the engine compares, and refuses. Until it has, members here that mean
     * different operations would reduce different slices, over each other. */
    if (r->agreed == AGREED_UNKNOWN)
        r->agreed = run_members_agree(r) ? AGREED_HERE : AGREED_NOT;
    if (likely(r->agreed != AGREED_NOT))
        coll_steps[r->plan.coll].reduce(r, r->red);
    r->red++;
    atomic_store_explicit(&run_member(r)->reduced, step + 1, memory_order_release);
    run_tell_engine(r);
    return true;
}

/* What step @c's result depends on. */
static bool can_get(struct run *r, uint32_t c)
{
    const struct board *b = &r->group->board;
    uint32_t step = r->base + c;

    invariant(c < r->put);
    if (!one_node(r)) /* if the operation before was refused, steps have been skipped */
        return !r->group->early.desc.seq &&
               seq_reached(atomic_load_explicit(&b->hdr->published, memory_order_acquire),
                           step + 1);
    if (c == 0 && !r->plan.reduces && !run_step_arrived(r, step))
        return false; /* descriptions are compared first */
    return coll_steps[r->plan.coll].ready(r, c);
}

static bool try_get(struct run *r)
{
    uint32_t step = r->base + r->got;

    if (r->got == (r->plan.reduces ? r->red : r->put) || !can_get(r, r->got))
        return false;
    if (!run_agrees(r))
        return false;
    invariant(r->got < r->plan.steps);
    coll_steps[r->plan.coll].get(r, r->got);
    r->got++;
    atomic_store_explicit(&run_member(r)->consumed, step + 1, memory_order_release);
    if (r->got == r->plan.steps)
        r->untold = true;
    else
        run_tell(r);
    return true;
}

enum run_state steps_advance(struct run *r)
{
    enum run_state st = RUN_WAIT;

    invariant(r->plan.path == PATH_STEPS || r->plan.path == PATH_SMALL);
    while (r->got < r->plan.steps) {
        bool moved = try_put(r);

        moved |= try_reduce(r);
        if (likely(!r->err.code))
            moved |= try_get(r);
        if (unlikely(r->err.code))
            return RUN_FAILED;
        if (!moved)
            return st;
        st = RUN_MOVED;
    }
    return RUN_DONE;
}

bool steps_come(struct run *r)
{
    return run_step_arrived(r, r->seen_step);
}

/* The number of steps of a counted operation follows from what all members of the node gave. */
enum run_state open_advance(struct run *r)
{
    const struct board *b = &r->group->board;
    uint64_t most = 0;
    bool moved;

    assert(r->plan.path == PATH_OPEN && r->got == 0);
    moved = r->put == 0 && run_put(r);
    if (!r->put || !run_step_arrived(r, r->base))
        return moved ? RUN_MOVED : RUN_WAIT;
    for (unsigned m = 0; m < b->nlocal; m++)
        most = MAX(most, board_slot(b, m, r->base)->most);
    if (plan_close(&r->plan, most))
        return RUN_MOVED; /* on another path */
    run_error(r, COMMD_E_INVALID, -1, 0, "",
              ": %llu elements for one rank are more than an operation can have",
              (unsigned long long)most);
    return RUN_FAILED;
}

void run_again(struct run *r, uint32_t steps)
{
    assert(steps > 0 && steps < BOARD_SKIP);
    assert(r->got == 0);
    r->base += steps;
    r->put = r->red = r->got = 0;
    r->seen = 0;
    r->seen_step = r->base;
    r->agreed = AGREED_UNKNOWN;
    r->plan.path = PATH_STEPS; /* nobody offers anything again */
    atomic_store_explicit(&run_member(r)->consumed, r->base, memory_order_release);
    run_tell(r);
}
