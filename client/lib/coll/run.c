/* run.c - one operation of one member, as a state machine over the board that never blocks:
 * run_poll() does what can be done and says whether more remains. The blocking call loops over
 * it with the group's wait policy; the progress thread interleaves several.
 *
 * Who wakes me: the bell of the board, rung by every member that announces, reduces or
 * consumes, by the engine when it publishes, by commd when somebody is gone. What if a peer
 * dies now: commd marks it; run_hopeless() sees it. What if I am stopped now: the others wait;
 * their limits and commd's view name me.
 *
 * For the counters and the order of checks see board.c. */
#include "client/lib/coll/registered.h"
#include "client/lib/internal.h"

#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>

enum {
    HOPE_CHECK_EVERY = 64, /* polls between looks at the reasons to give up */
    SLEEP_MS = 50,         /* longest sleep: the interrupt hook and commd's socket are checked */
};

static inline struct board_member *me_of(const struct run *r)
{
    return &r->group->board.members[r->group->local];
}

static inline bool one_node(const struct run *r)
{
    return r->group->board.nnodes == 1;
}

/* The engine dozes until a member of one of its groups rings: any write to the eventfd that commd
 * gave us. Which group it is the engine sees by engine_asleep. */
void group_wake_engine(struct commd_group *g)
{
    struct board_hdr *h = g->board.hdr;

    if (likely(!atomic_load_explicit(&h->engine_asleep, memory_order_relaxed)))
        return;
    if (atomic_exchange(&h->engine_asleep, 0))
        (void)!write(g->doorbell, &(uint64_t){1}, sizeof(uint64_t));
}

void run_tell(struct run *r)
{
    struct board_hdr *h = r->group->board.hdr;

    bell_ring(&h->bell, &h->sleepers); /* contains the fence that group_wake_engine needs too */
}

/* What the engine can go on with: a member's data, once they are reduced if they are to be. That a
 * result was read is for the members alone: they do not write before there is room. */
static void tell_engine(struct run *r)
{
    run_tell(r);
    if (!one_node(r))
        group_wake_engine(r->group);
}

void run_limit(struct run *r, const struct commd_group *g, const struct commd_op *op)
{
    r->limit_ms = op->timeout_ms ? op->timeout_ms : atomic_load(&g->timeout_ms);
    r->deadline_ms = deadline_in(r->limit_ms);
}

/* A counted operation: what the others must know of this rank's counts. */
static void describe_counts(struct run *r, const struct commd_op *op)
{
    const struct op_lists *l = r->lists;
    unsigned world = r->group->board.world, me = r->group->rank;

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

/* Could it be if nobody had a larger cell than this rank? */
static bool can_close(const struct run *r)
{
    struct plan p = r->plan;

    return plan_close(&p, r->most);
}

int run_begin(struct run *r, struct commd_group *g, const struct commd_op *op)
{
    const struct coll_info *info = &coll_table[op->coll];
    bool data = info->window != WINDOW_NONE;

    r->group = g;
    r->desc = (struct op_desc){
        .seq = atomic_load_explicit(&g->seq, memory_order_relaxed) + 1,
        .count = data && !info->counted ? op->count : 0,
        .root = info->rooted ? (uint32_t)op->root : 0,
        .coll = (uint8_t)op->coll,
        .dtype = data ? (uint8_t)op->dtype : 0,
        .redop = info->reduces ? (uint8_t)op->redop : 0,
    };
    r->balance = (struct op_balance){0};
    r->question = NULL;
    r->registered = NULL;
    r->most = 0;
    if (unlikely(info->counted))
        describe_counts(r, op);
    if (unlikely(!plan_make(&r->desc, &g->geom, r->lists ? r->lists->counts : NULL, &r->plan) ||
                 (r->plan.open && !can_close(r))))
        return error_set(&r->err, COMMD_E_INVALID, info->name,
                         "%s of %zu elements by %u ranks is more than an operation can be",
                         info->name, (size_t)MAX(r->desc.count, r->most), g->board.world);
    r->send = op->send;
    r->recv = op->recv;
    r->scale = op->scale;
    r->base = g->next_step;
    r->put = r->red = r->got = 0;
    r->seen = 0;
    r->seen_step = r->base;
    r->consistent = false;
    r->moved = false;
    crowd_next(&g->crowd);
    atomic_store_explicit(&g->seq, r->desc.seq, memory_order_relaxed);
    atomic_store_explicit(&me_of(r)->started, (uint32_t)r->desc.seq, memory_order_relaxed);
    if (unlikely(r->plan.registered))
        registered_begin(r);
    return 0;
}

/* All members have consumed up to @want. The answer is cached: within SLOTS or depth steps of
 * each other the members' lines are not read at all. */
static bool all_consumed(struct run *r, uint32_t want)
{
    struct commd_group *g = r->group;
    uint32_t low;

    if (likely(seq_reached(g->consumed_seen, want)))
        return true;
    low = atomic_load_explicit(&g->board.members[0].consumed, memory_order_acquire);
    for (unsigned m = 1; m < g->board.nlocal; m++) {
        uint32_t c = atomic_load_explicit(&g->board.members[m].consumed, memory_order_acquire);
        if (!seq_reached(c, low))
            low = c;
    }
    g->consumed_seen = low;
    return seq_reached(low, want);
}

static bool all_arrived(struct run *r, uint32_t step)
{
    const struct board *b = &r->group->board;

    if (r->seen_step != step) {
        r->seen_step = step;
        r->seen = 0;
    }
    while (r->seen < b->nlocal && board_arrived(b, r->seen, step))
        r->seen++;
    return r->seen == b->nlocal;
}

static bool all_reduced(struct run *r, uint32_t want)
{
    const struct board *b = &r->group->board;

    for (unsigned m = 0; m < b->nlocal; m++)
        if (!seq_reached(atomic_load_explicit(&b->members[m].reduced, memory_order_acquire), want))
            return false;
    return true;
}

bool run_all_arrived(struct run *r, uint32_t c)
{
    return all_arrived(r, r->base + c);
}

bool run_all_reduced(struct run *r, uint32_t c)
{
    return all_reduced(r, r->base + c + 1);
}

/* Does step @c travel in the announcement alone? */
static inline bool step_inline(const struct run *r, size_t len)
{
    return len <= BOARD_INLINE && one_node(r) && !r->plan.reduces;
}

bool run_can_put(struct run *r, uint32_t c, size_t len)
{
    uint32_t step = r->base + c, depth = r->group->board.depth;

    if (step_inline(r, len))
        return all_consumed(r, step - BOARD_SLOTS + 1);
    if (!all_consumed(r, step - depth + 1))
        return false;
    return one_node(r) ||
           seq_reached(atomic_load_explicit(&r->group->board.hdr->sent, memory_order_acquire),
                       step - depth + 1);
}

/* The engine cannot see the caller's lists. */
static void tell_counts(const struct run *r, uint32_t step)
{
    const struct commd_group *g = r->group;
    const struct op_lists *l = r->lists;
    size_t row = g->board.world * sizeof(uint64_t);

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

    if (r->put == 0) {
        s->desc = r->desc;
        s->fingerprint = op_fingerprint(&r->desc);
        s->balance = r->balance;
        s->most = r->most;
        if (unlikely(r->lists))
            tell_counts(r, step);
    }
    s->kind = kind;
    atomic_store_explicit(&s->seq, board_mark(step), memory_order_release);
    if (r->plan.reduces)
        run_tell(r);
    else
        tell_engine(r);
    r->put++;
}

static void describe(struct run *r, int code, int rank, uint32_t pid, const char *node)
{
    struct commd_group *g = r->group;

    r->err.code = code;
    r->err.rank = rank;
    r->err.pid = (int)pid;
    r->err.epoch = g->board.epoch;
    r->err.seq = r->desc.seq;
    snprintf(r->err.node, sizeof r->err.node, "%s", node);
}

/* @desc_a of @a and @desc_b of @b do not agree. */
static void mismatch(struct run *r, const struct op_desc *da, unsigned a, const struct op_desc *db,
                     unsigned b)
{
    char ta[80], tb[80];

    op_text(da, ta, sizeof ta);
    op_text(db, tb, sizeof tb);
    error_set(&r->err, COMMD_E_MISMATCH, coll_name(r->desc.coll),
              "operation %llu of group \"%s\": rank %u (node %s) called %s, but rank %u (node %s) "
              "called %s; the group can still be used",
              (unsigned long long)r->desc.seq, r->group->name, a, group_node_of(r->group, a), ta, b,
              group_node_of(r->group, b), tb);
    describe(r, COMMD_E_MISMATCH, (int)b, r->group->members[b].pid, group_node_of(r->group, b));
}

static void counts_mismatch(struct run *r, const struct op_balance *bal)
{
    struct commd_group *g = r->group;
    char who[120];

    op_balance_text(bal, g->board.world, who, sizeof who);
    error_set(&r->err, COMMD_E_MISMATCH, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\": the counts that ranks gave do not fit: %s; the "
              "group can still be used",
              (unsigned long long)r->desc.seq, coll_name(r->desc.coll), g->name, who);
    describe(r, COMMD_E_MISMATCH, -1, 0, g->ctx->node);
}

/* Do the counts that the members of this one node gave fit each other? */
static bool counts_fit(struct run *r)
{
    const struct board *b = &r->group->board;
    struct op_balance sum = {0};

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

/* Everybody's first announcement is there: is it of the same operation as ours? */
static inline bool all_mean_the_same(const struct run *r)
{
    const struct board *b = &r->group->board;
    uint64_t mine = op_fingerprint(&r->desc);

    for (unsigned m = 0; m < b->nlocal; m++)
        if (unlikely(board_slot(b, m, r->base)->fingerprint != mine))
            return false;
    return true;
}

/* One node: members compare. */
bool run_consistent(struct run *r)
{
    const struct commd_group *g = r->group;
    const struct board *b = &g->board;
    struct op_desc first, other;
    unsigned m = 1;

    if (likely(all_mean_the_same(r)))
        return likely(!coll_table[r->desc.coll].counted) || counts_fit(r);
    /* all members must report the same pair: rank 0 and the first that differs from it */
    first = board_slot(b, 0, r->base)->desc;
    while (m < b->nlocal - 1 &&
           board_slot(b, m, r->base)->fingerprint == board_slot(b, 0, r->base)->fingerprint)
        m++;
    other = board_slot(b, m, r->base)->desc;
    mismatch(r, &first, g->local_rank[0], &other, g->local_rank[m]);
    return false;
}

/* Several nodes: the engine published; it may have refused. */
static bool engine_consistent(struct run *r)
{
    const struct board_hdr *h = r->group->board.hdr;
    struct board_mismatch m;

    if (likely(atomic_load_explicit(&h->refused, memory_order_acquire) != r->desc.seq))
        return true;
    m = h->mismatch;
    if (!op_balanced(&m.balance)) {
        counts_mismatch(r, &m.balance);
        return false;
    }
    mismatch(r, &m.a, MIN(m.rank_a, r->group->board.world - 1), &m.b,
             MIN(m.rank_b, r->group->board.world - 1));
    return false;
}

/* What step @c's result depends on. */
static bool can_get(struct run *r, uint32_t c)
{
    const struct board *b = &r->group->board;
    uint32_t step = r->base + c;

    if (!one_node(r))
        return seq_reached(atomic_load_explicit(&b->hdr->published, memory_order_acquire),
                           step + 1);
    if (c == 0 && !r->plan.reduces && !all_arrived(r, step))
        return false; /* descriptions are compared first */
    return coll_steps[r->plan.coll].ready(r, c);
}

static bool broken(struct run *r)
{
    struct board_cause c;
    unsigned cause = board_broken(r->group->board.hdr, &c);

    if (!cause)
        return false;
    error_set(&r->err, -(int)cause, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\": %s", (unsigned long long)r->desc.seq,
              coll_name(r->desc.coll), r->group->name, c.text);
    describe(r, -(int)cause, c.rank, c.pid, c.node);
    return true;
}

static enum run_state run_refused(struct run *r)
{
    /* In a broken group the steps of members may have drifted apart: that is why, then. */
    if (broken(r))
        return RUN_FAILED;
    /* Everybody refuses this operation and goes on behind it. */
    r->group->next_step = r->base + BOARD_SKIP;
    return RUN_FAILED;
}

void run_again(struct run *r, uint32_t steps)
{
    r->base += steps;
    r->put = r->red = r->got = 0;
    r->seen = 0;
    r->seen_step = r->base;
    r->consistent = false;
    r->plan.registered = false; /* nobody offers anything again */
    atomic_store_explicit(&me_of(r)->consumed, r->base, memory_order_release);
    run_tell(r);
}

/* Some member has offered registered memory, as this one has not. */
static bool begin_again(struct run *r)
{
    if (likely(!r->plan.registered) || !registered_offered(r))
        return false;
    run_again(r, 1);
    return true;
}

static bool try_reduce(struct run *r)
{
    uint32_t step = r->base + r->red;

    if (!r->plan.reduces || r->red == r->put || !all_arrived(r, step))
        return false;
    if (one_node(r) && !r->consistent) {
        r->consistent = run_consistent(r);
        if (!r->consistent)
            return false;
        if (begin_again(r))
            return true;
    }
    /* several nodes: the engine compares, and refuses. Until it has, members here that mean
     * different operations would reduce different slices, over each other. */
    if (r->red == 0)
        r->alike = one_node(r) || all_mean_the_same(r);
    if (likely(r->alike))
        coll_steps[r->desc.coll].reduce(r, r->red);
    r->red++;
    atomic_store_explicit(&me_of(r)->reduced, step + 1, memory_order_release);
    tell_engine(r);
    return true;
}

static bool try_get(struct run *r)
{
    uint32_t step = r->base + r->got;

    if (r->got == (r->plan.reduces ? r->red : r->put) || unlikely(r->plan.open) ||
        !can_get(r, r->got))
        return false;
    if (!r->consistent) {
        r->consistent = one_node(r) ? run_consistent(r) : engine_consistent(r);
        if (!r->consistent)
            return false;
        if (begin_again(r))
            return true;
    }
    coll_steps[r->desc.coll].get(r, r->got);
    r->got++;
    atomic_store_explicit(&me_of(r)->consumed, step + 1, memory_order_release);
    run_tell(r);
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
    size_t len;

    if (r->put == r->plan.steps || r->put > r->got + ahead)
        return false;
    if (unlikely(r->plan.open && r->put))
        return false;
    /* before it is known what the others offer the next step may be a vote */
    if (unlikely(r->plan.registered && r->put && !r->consistent))
        return false;
    len = plan_payload(&r->plan, &r->group->geom, r->put);
    if (!run_can_put(r, r->put, len))
        return false;
    coll_steps[r->desc.coll].put(r, r->put);
    run_announce(r, BOARD_PAYLOAD);
    coll_steps[r->desc.coll].own(r, r->put - 1);
    return true;
}

/* The number of steps of a counted operation follows from what all members of the node gave. */
static bool try_close(struct run *r)
{
    const struct board *b = &r->group->board;
    uint64_t most = 0;

    if (likely(!r->plan.open) || !r->put || !all_arrived(r, r->base))
        return false;
    for (unsigned m = 0; m < b->nlocal; m++)
        most = MAX(most, board_slot(b, m, r->base)->most);
    if (plan_close(&r->plan, most))
        return true;
    error_set(&r->err, COMMD_E_INVALID, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\": %llu elements for one rank are more than an "
              "operation can have",
              (unsigned long long)r->desc.seq, coll_name(r->desc.coll), r->group->name,
              (unsigned long long)most);
    return false;
}

enum run_state run_poll(struct run *r)
{
    r->moved = false;
    if (unlikely(r->registered)) {
        enum run_state st = registered_poll(r);

        if (st == RUN_FAILED && r->err.code == COMMD_E_MISMATCH)
            return run_refused(r);
        if (st != RUN_WAIT || r->registered)
            return st;
    }
    for (;;) {
        bool moved = try_put(r);

        r->err.code = 0;
        moved |= try_close(r);
        if (!r->err.code)
            moved |= try_reduce(r);
        if (!r->err.code)
            moved |= try_get(r);
        if (unlikely(r->err.code))
            return run_refused(r);
        if (r->got == r->plan.steps) {
            r->group->next_step = r->base + r->plan.steps;
            return RUN_DONE;
        }
        if (!moved)
            return RUN_WAIT;
        r->moved = true;
    }
}

void run_end(struct run *r, enum run_state st)
{
    struct board_member *me = me_of(r);
    bool refused = st == RUN_FAILED && r->err.code == COMMD_E_MISMATCH;

    free(steal_ptr(r->lists));
    absent_free(&r->question);
    if (st == RUN_FAILED && !refused) {
        group_fail(r->group, &r->err); /* the others may have to hear of it before they stop */
        registered_end(r, false);
        return;
    }
    registered_end(r, true);
    /* Also after operations that do not use it: counters are compared across a wrap, so none
     * may fall 2^31 steps behind. */
    atomic_store_explicit(&me->reduced, r->group->next_step, memory_order_release);
    if (refused)
        atomic_store_explicit(&me->consumed, r->group->next_step, memory_order_release);
    atomic_store_explicit(&me->ops, (uint32_t)r->desc.seq, memory_order_release);
    if (refused)
        tell_engine(r);
}

void run_abandon(struct run *r)
{
    absent_free(&r->question);
    registered_end(r, false);
}

bool run_asks(const struct run *r)
{
    return unlikely(r->registered) && registered_asks(r);
}

/* ---- giving up --------------------------------------------------------------------------- */

static void rank_gone(struct run *r, unsigned rank, uint32_t done, uint32_t pid, bool left)
{
    const char *node = group_node_of(r->group, rank);

    error_set(
        &r->err, COMMD_E_RANK_LOST, coll_name(r->desc.coll),
        "operation %llu (%s) of group \"%s\": rank %u (pid %u on node %s) %s after completing "
        "%u operations",
        (unsigned long long)r->desc.seq, coll_name(r->desc.coll), r->group->name, rank, pid, node,
        left ? "left the group" : "died", done);
    describe(r, COMMD_E_RANK_LOST, (int)rank, pid, node);
}

/* One who died is named before those who left: they did so because of it, as often as not. */
static bool somebody_gone(struct run *r)
{
    const struct board *b = &r->group->board;
    bool found = false;

    if (!atomic_load_explicit(&b->hdr->ngone, memory_order_acquire))
        return false;
    for (unsigned k = 0; k < b->world; k++) {
        struct board_rank *br = &b->ranks[k];
        uint32_t gone = atomic_load_explicit(&br->gone, memory_order_acquire);

        /* who had completed this very operation before it went is not missed in it */
        if (gone && k != r->group->rank && !seq_reached(gone - 1, (uint32_t)r->desc.seq)) {
            bool left = br->cause == CAUSE_LEFT;

            if (!found || !left)
                rank_gone(r, k, gone - 1, br->pid, left);
            if (!left)
                return true;
            found = true;
        }
    }
    return found;
}

/* A process that nobody has waited for yet counts as ended, which kill(pid, 0) would not say. */
bool process_ended(pid_t pid)
{
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool ended;

    if (p.fd < 0)
        return errno == ESRCH;
    ended = poll(&p, 1, 0) > 0;
    close(p.fd);
    return ended;
}

/* commd is gone too, so nobody will mark a dead member: look for oneself. */
static bool orphan_check(struct run *r)
{
    struct commd_group *g = r->group;

    if (!control_lost(g))
        return false;
    if (!one_node(r)) {
        error_set(&r->err, COMMD_E_NODE_LOST, coll_name(r->desc.coll),
                  "operation %llu (%s) of group \"%s\": commd on node %s is gone",
                  (unsigned long long)r->desc.seq, coll_name(r->desc.coll), g->name, g->ctx->node);
        describe(r, COMMD_E_NODE_LOST, -1, 0, g->ctx->node);
        return true;
    }
    for (unsigned k = 0; k < g->board.world; k++) {
        bool left;

        if (k != g->rank && alive_ended(g, k, &left)) {
            uint32_t done = atomic_load(&g->board.members[k].ops);
            if (!seq_reached(done, (uint32_t)r->desc.seq)) {
                rank_gone(r, k, done, g->members[k].pid, left);
                return true;
            }
        }
    }
    return false;
}

static void timed_out(struct run *r)
{
    struct commd_group *g = r->group;
    char text[360], node[MSG_NAME_MAX];
    int rank;

    absent_text(r->question, g, r->desc.seq, text, sizeof text, &rank, node);
    error_set(&r->err, COMMD_E_TIMEOUT, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\" ran into its timeout of %lld ms: %s",
              (unsigned long long)r->desc.seq, coll_name(r->desc.coll), g->name,
              (long long)r->limit_ms, text);
    describe(r, COMMD_E_TIMEOUT, rank, 0, node);
}

bool run_hopeless(struct run *r)
{
    return broken(r) || somebody_gone(r);
}

bool run_hopeless_slow(struct run *r)
{
    if (run_hopeless(r) || orphan_check(r))
        return true;
    if (r->deadline_ms >= 0 && (int64_t)now_ms() >= r->deadline_ms &&
        absent_ask(&r->question, r->group, r->desc.seq)) {
        timed_out(r);
        return true;
    }
    return false;
}

/* The application's wish to stop (Ctrl-C): only asked on the caller's own thread. */
static bool interrupted(struct run *r)
{
    struct commd_context *ctx = r->group->ctx;

    if (!ctx->interrupt || !ctx->interrupt(ctx->interrupt_arg))
        return false;
    error_set(&r->err, COMMD_E_INTERRUPTED, coll_name(r->desc.coll),
              "operation %llu (%s) of group \"%s\" was interrupted; the group is broken",
              (unsigned long long)r->desc.seq, coll_name(r->desc.coll), r->group->name);
    describe(r, COMMD_E_INTERRUPTED, (int)r->group->rank, 0, ctx->node);
    return true;
}

/* Hopeless, unless what we wait for came in between. */
static enum run_state last_look(struct run *r)
{
    struct commd_error why = r->err;
    enum run_state st = run_poll(r);

    if (st == RUN_WAIT && !r->moved) {
        r->err = why;
        return RUN_FAILED;
    }
    return st;
}

static int sleep_limit(const struct run *r)
{
    int64_t left;

    if (run_asks(r))
        return 1;
    if (r->deadline_ms < 0)
        return SLEEP_MS;
    left = r->deadline_ms - (int64_t)now_ms();
    return (int)MAX(1, MIN(left, (int64_t)SLEEP_MS));
}

/* May another one that has a part in this have to run on this core? */
static bool needed_here(const struct run *r)
{
    return !one_node(r) || board_shares_core(&r->group->board, r->group->local);
}

/* One sleep, unless something moved in the last look before it. */
static enum run_state nap(struct run *r)
{
    struct board_hdr *h = r->group->board.hdr;
    uint32_t ticket = bell_prepare(&h->bell, &h->sleepers);
    enum run_state st = run_poll(r);

    if (st == RUN_WAIT && !r->moved && (run_hopeless_slow(r) || interrupted(r)))
        st = last_look(r);
    if (st == RUN_WAIT && !r->moved && bell_wait(&h->bell, ticket, sleep_limit(r)) &&
        !run_asks(r) && atomic_load(&h->bell) == ticket) {
        st = run_poll(r); /* which would have been due to a ring: we are still announced */
        if (st != RUN_WAIT || r->moved)
            atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
    }
    bell_cancel(&h->sleepers);
    return st;
}

enum run_state run_finish(struct run *r)
{
    struct crowd *crowd = &r->group->crowd;
    unsigned idle = 0;
    enum run_state st;

    for (;;) {
        st = run_poll(r);
        if (st != RUN_WAIT)
            return st;
        idle = r->moved ? 0 : idle + 1;
        if (idle % HOPE_CHECK_EVERY == HOPE_CHECK_EVERY - 1 && run_hopeless(r)) {
            st = last_look(r);
            if (st != RUN_WAIT)
                return st;
        }
        switch (wait_way(crowd, needed_here(r), idle, WAIT_SPINS)) {
        case WAIT_SPIN:
            cpu_relax();
            break;
        case WAIT_YIELD:
            yield_core(r->group->crowded_ns, crowd);
            break;
        case WAIT_SLEEP:
            st = nap(r);
            if (st != RUN_WAIT)
                return st;
            if (r->moved)
                idle = 0;
            break;
        }
    }
}
