/* run.c - one operation of one member, as a state machine over the board that never blocks:
 * run_poll() does what can be done and says whether more remains. The blocking call loops over it
 * (finish.c); the progress thread interleaves several (async/progress.c).
 *
 * Who wakes me: see finish.c. What if a peer dies now: commd marks it; run_hopeless() sees the
 * mark. What if I am stopped now: the others wait; their limits and commd's view name me.
 *
 * How an operation goes on depends on the path that its plan names: each path is a row of `paths`.
 * All paths end with the same counters, so that the next operation may take another path.
 *
 * For the counters and the order of checks see shm/board/board.c. */
#include "client/lib/coll/early.h"
#include "client/lib/coll/registered.h"
#include "client/lib/coll/teams.h"

void run_limit(struct run *r, const struct membership *g, const struct commd_op *op)
{
    assert(r->group == g);
    r->limit_ms = op->timeout_ms ? op->timeout_ms
                                 : atomic_load_explicit(&g->timeout_ms, memory_order_relaxed);
    r->deadline_ms = RUN_UNTIMED;
}

void run_clock(struct run *r)
{
    assert(r->deadline_ms == RUN_UNTIMED || r->deadline_ms >= -1);
    if (r->deadline_ms == RUN_UNTIMED)
        r->deadline_ms = deadline_in(r->limit_ms);
}

/* A counted operation: what the others must know of this rank's counts. */
static void describe_counts(struct run *r, const struct commd_op *op)
{
    const struct op_lists *l = r->lists;
    unsigned world = r->group->board.world, me = r->group->rank;

    assert(l && coll_table[r->desc.coll].counted);
    assert(!l->counts != !l->send_counts && me < world);
    if (l->counts) {
        for (unsigned k = 0; k < world; k++)
            r->desc.count = MAX(r->desc.count, l->counts[k]);
        r->desc.digest = op_digest(l->counts, world);
        return;
    }
    for (unsigned k = 0; k < world; k++) {
        op_balance_add(&r->balance, world, me, k, l->send_counts[k], 1);
        op_balance_add(&r->balance, world, k, me, l->recv_counts[k], -1);
        r->most = MAX(r->most, MAX(l->send_counts[k], l->recv_counts[k]));
    }
}

static uint64_t counted_elements(const struct run *r)
{
    const struct op_lists *l = r->lists;
    uint64_t sum = 0;

    assert(l && (l->counts || l->send_counts));
    for (unsigned k = 0; k < r->group->board.world; k++)
        sum += l->counts ? l->counts[k] : l->send_counts[k];
    return sum;
}

/* How many operations it stands for in the sums of the recorder. */
static const uint8_t weights[] = {[RECORDED_SAMPLE] = RECORDER_SAMPLE, [RECORDED_ALONE] = 1};

/* Is the operation recorded, and for how many does it stand? The same for all members: what only
 * this one gives is not looked at. */
static void decide_recording(struct run *r)
{
    const struct board_hdr *h = r->group->board.hdr;
    uint32_t timing = atomic_load_explicit(&h->record, memory_order_relaxed);

    invariant(r->plan.coll == r->desc.coll && r->plan.steps > 0);
    if (r->desc.count * r->plan.esize >= RECORDER_LONG)
        r->recorded = RECORDED_ALONE;
    else
        r->recorded = recorder_samples((uint32_t)r->desc.seq) ? RECORDED_SAMPLE : RECORDED_NOT;
    if (unlikely(r->recorded || recorder_times(timing, (uint32_t)r->desc.seq)))
        run_record(r);
}

/* Could it be if nobody had a larger cell than this rank? */
static bool can_close(const struct run *r)
{
    struct plan p = r->plan;

    assert(r->plan.path == PATH_OPEN);
    return plan_close(&p, r->most);
}

static bool make_plan(struct run *r)
{
    struct membership *g = r->group;

    assert(r->desc.coll < COLL_COUNT && (r->lists || !coll_table[r->desc.coll].counted));
    if (!plan_make(&r->desc, &g->geom, r->lists ? r->lists->counts : NULL, &r->plan))
        return false;
    if (!coll_table[r->desc.coll].counted)
        g->plans[r->desc.coll] = r->plan;
    return true;
}

/* The operation has failed on other ranks, when all met in another one. */
static int refused_already(struct run *r)
{
    struct board_member *me = run_member(r);

    atomic_store_explicit(&r->group->seq, r->desc.seq, memory_order_relaxed);
    atomic_store_explicit(&me->started, (uint32_t)r->desc.seq, memory_order_relaxed);
    atomic_store_explicit(&me->ops, (uint32_t)r->desc.seq, memory_order_release);
    run_mismatch(r, &r->group->refusal);
    run_tell(r);
    return r->err.code;
}

int run_begin(struct run *r, struct membership *g, const struct commd_op *op)
{
    const struct coll_info *info = &coll_table[op->coll];
    const bool data = info->window != WINDOW_NONE;
    const uint64_t count = data && !info->counted ? op->count : 0;
    const uint32_t root = info->rooted ? (uint32_t)op->root : 0;
    const uint8_t dtype = data ? (uint8_t)op->dtype : 0;
    const uint8_t redop = info->reduces ? (uint8_t)op->redop : 0;
    const struct plan *last = &g->plans[op->coll];

    assert(op->coll >= 0 && op->coll < COLL_COUNT);
    invariant(g->rank < g->board.world && g->local < g->board.nlocal);
    r->group = g;
    /* field by field: a struct that is written by bytes and then copied makes the CPU wait */
    r->desc.seq = atomic_load_explicit(&g->seq, memory_order_relaxed) + 1;
    r->desc.count = count;
    r->desc.root = root;
    r->desc.coll = (uint8_t)op->coll;
    r->desc.dtype = dtype;
    r->desc.redop = redop;
    r->desc.declined = 0;
    r->desc.digest = 0;
    r->balance = (struct op_balance){0};
    r->question = NULL;
    r->registered = NULL;
    r->gate = NULL;
    r->most = 0;
    if (unlikely(info->counted))
        describe_counts(r, op);
    /* programs call the same again and again */
    if (likely(last->steps && last->count == count && last->root == root && last->dtype == dtype &&
               last->redop == redop))
        r->plan = *last;
    else if (unlikely(!make_plan(r) || (r->plan.path == PATH_OPEN && !can_close(r))))
        return error_set(&r->err, COMMD_E_INVALID, info->name,
                         "%s of %zu elements by %u ranks is more than an operation can be",
                         info->name, (size_t)MAX(r->desc.count, r->most), g->board.world);
    if (unlikely(r->desc.seq <= g->refused_until))
        return refused_already(r);
    r->fingerprint = op_fingerprint(&r->desc) + g->chain;
    r->untold = r->before_sleep = r->early = r->late = false;
    r->warn_ms = g->ctx->warn_ms;
    r->asked_ms = 0;
    r->send = op->send;
    r->recv = op->recv;
    r->scale = op->scale;
    r->base = g->next_step;
    r->put = r->red = r->got = 0;
    r->seen = 0;
    r->seen_step = r->base;
    r->agreed = AGREED_UNKNOWN;
    r->bytes = (unlikely(info->counted) ? counted_elements(r) : count) * r->plan.esize;
    decide_recording(r);
    crowd_next(&g->crowd);
    if (r->plan.path == PATH_SMALL)
        crowd_next_answer(&g->crowd);
    atomic_store_explicit(&g->seq, r->desc.seq, memory_order_relaxed);
    atomic_store_explicit(&run_member(r)->started, (uint32_t)r->desc.seq, memory_order_relaxed);
    if (unlikely(paths[r->plan.path].begin))
        paths[r->plan.path].begin(r);
    return 0;
}

void run_decline(struct run *r, int code)
{
    assert(code < 0 && r->put == 0);
    assert(r->desc.coll == COLL_BARRIER || r->plan.path == PATH_POST);
    if (r->desc.coll == COLL_BARRIER)
        r->desc.root = r->group->rank;
    r->desc.declined = (uint8_t)-code;
    r->fingerprint = op_fingerprint(&r->desc) + r->group->chain;
    r->warn_ms = 0; /* nobody waits for it here */
}

/* Ranks have called different operations as the one before, which ended early here. @r begins anew,
 * at step @base, where the others are: it tells them of a barrier that fails on all. */
static void fail_next(struct run *r, uint32_t base)
{
    struct membership *g = r->group;
    struct board_member *me = run_member(r);

    if (r->lists)
        free(steal_ptr(r->lists));
    r->late = true;
    r->told = (struct op_desc){.seq = r->desc.seq,
                               .coll = COLL_BARRIER,
                               .root = g->rank,
                               .declined = (uint8_t)-COMMD_E_MISMATCH};
    r->fingerprint = op_fingerprint(&r->told) + g->chain;
    r->balance = (struct op_balance){0};
    r->most = 0;
    r->base = r->seen_step = base;
    r->put = r->red = r->got = r->seen = 0;
    r->agreed = AGREED_UNKNOWN;
    if (!plan_make(&r->told, &g->geom, NULL, &r->plan))
        assert(!"no plan for a barrier");
    atomic_store_explicit(&me->reduced, base, memory_order_release);
    atomic_store_explicit(&me->consumed, base, memory_order_release);
    run_tell(r);
}

const struct path paths[PATH_COUNT] = {
    [PATH_SMALL] = {.advance = steps_advance, .comes = steps_come},
    [PATH_TEAM] = {.advance = teams_advance, .comes = teams_move},
    [PATH_STEPS] = {.advance = steps_advance, .comes = steps_come},
    [PATH_REGISTERED] = {.begin = registered_begin,
                         .advance = registered_advance,
                         .comes = steps_come,
                         .end = registered_end},
    [PATH_OPEN] = {.advance = open_advance, .comes = steps_come},
    [PATH_POST] = {.advance = posts_advance, .comes = posts_come},
};

/* All ranks have met and do not mean the same. Those whose histories differ may be in different
 * operations: all go on behind the last of these. What a rank says of itself is not believed where
 * it cannot be so far ahead. */
static void refused_by_all(struct run *r)
{
    struct membership *g = r->group;
    uint64_t last = r->desc.seq;

    for (unsigned m = 0; one_node(r) && m < g->board.nlocal; m++)
        last = MAX(last, board_slot(&g->board, m, r->base)->desc.seq);
    if (last - r->desc.seq > 2 * BOARD_SLOTS) {
        run_error(r, COMMD_E_INTERNAL, -1, 0, "", ": a rank says that it is in operation %llu",
                  (unsigned long long)last);
        r->agreed = AGREED_NOT;
        return;
    }
    g->next_step = r->base + BOARD_SKIP;
    g->chain = 0;
    g->settled = g->refused_until = last;
}

static enum run_state run_mismatched(struct run *r)
{
    assert(r->err.code);
    /* In a broken group the steps of members may have drifted apart: that is why, then. */
    if (run_broken(r))
        r->agreed = AGREED_NOT;
    else if (r->plan.path != PATH_POST || r->put) /* or the group ends */
        refused_by_all(r);
    return RUN_FAILED;
}

/* A member reduces what it has put, and gets what it has reduced. */
static bool is_in_order(const struct run *r)
{
    bool in_steps = r->plan.path == PATH_STEPS || r->plan.path == PATH_SMALL;

    return r->plan.path < PATH_COUNT && (!r->registered || r->plan.path == PATH_REGISTERED) &&
           (!in_steps ||
            (r->put <= r->plan.steps && r->red <= r->put && r->got <= r->put &&
             (!r->plan.reduces || r->got <= r->red) && (!r->got || r->agreed == AGREED_ALL)));
}

enum run_state run_advance(struct run *r)
{
    enum run_state st;
    uint32_t base;

    invariant(is_in_order(r));
    invariant(r->plan.path < PATH_COUNT);
    r->err.code = 0; /* a reason to give up, perhaps: this is the last look before that */
    if (unlikely(r->group->early.desc.seq) && early_refused(r, &base))
        fail_next(r, base);
    st = paths[r->plan.path].advance(r);
    if (st < RUN_DONE && !one_node(r) && early_ends(r)) {
        early_take(r);
        st = RUN_DONE;
    }
    if (unlikely(st == RUN_FAILED))
        return run_mismatched(r);
    invariant(is_in_order(r));
    invariant(st != RUN_DONE || r->got == r->plan.steps || r->plan.path == PATH_REGISTERED);
    if (st == RUN_DONE && likely(r->plan.path != PATH_POST))
        r->group->next_step = r->base + r->plan.steps;
    return st;
}

enum run_state run_poll(struct run *r)
{
    enum run_state st = run_advance(r);

    if (r->untold)
        run_tell(r);
    return st;
}

static void path_end(struct run *r, bool done)
{
    invariant(r->plan.path < PATH_COUNT);
    if (unlikely(paths[r->plan.path].end))
        paths[r->plan.path].end(r, done);
}

void run_end(struct run *r, enum run_state st)
{
    struct board_member *me = run_member(r);
    struct board_recorder *recs = r->group->board.recorders;
    bool refused = st == RUN_FAILED && r->agreed == AGREED_REFUSED;

    assert(st == RUN_DONE || st == RUN_FAILED);
    if (unlikely(r->lists))
        free(steal_ptr(r->lists));
    if (unlikely(r->question))
        absent_free(&r->question);
    if (st == RUN_FAILED && !refused) {
        group_fail(r->group, &r->err); /* the others may have to hear of it before they stop */
        path_end(r, false);
        return;
    }
    path_end(r, true);
    if (likely(st == RUN_DONE))
        recorder_count(&recs[r->group->local], r->desc.coll, r->bytes);
    if (unlikely(r->recorded))
        recorder_end(recs, r->group->board.nlocal, r->group->local, run_recorder_head(r), now_ns(),
                     st == RUN_DONE ? weights[r->recorded] : 0);
    /* All members have announced this operation, so all were done with those before it. So this
     * member need not read their lines for that. */
    if (one_node(r) && !refused && r->plan.path != PATH_POST) {
        if (seq_reached(r->base, r->group->consumed_seen))
            r->group->consumed_seen = r->base;
        r->group->ops_seen = (uint32_t)r->desc.seq - 1;
    }
    /* Also after operations that do not use it: counters are compared across a wrap, so none
     * may fall 2^31 steps behind. */
    atomic_store_explicit(&me->reduced, r->group->next_step, memory_order_release);
    if (refused)
        atomic_store_explicit(&me->consumed, r->group->next_step, memory_order_release);
    if (r->early)
        early_end(r);
    else
        atomic_store_explicit(&me->ops, (uint32_t)r->desc.seq, memory_order_release);
    if (refused)
        run_tell_engine(r);
}

void run_abandon(struct run *r)
{
    absent_free(&r->question);
    path_end(r, false);
}

void run_tell_gate(const struct run *r)
{
    const struct gate *g = r->gate;
    size_t got = (size_t)r->got * r->plan.unit * r->plan.esize;

    assert(g && r->got <= r->plan.steps);
    /* less than all: that is told when it has ended */
    if (g->piece && got / g->piece > atomic_load_explicit(g->done, memory_order_relaxed) - g->base)
        gate_tell(g, (uint32_t)MIN(got / g->piece, (size_t)g->pieces - 1));
}

bool run_asks(const struct run *r)
{
    return unlikely(r->registered) && registered_asks(r);
}
