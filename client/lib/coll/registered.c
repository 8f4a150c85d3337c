/* registered.c - operations in registered memory: no copies into the board or out of it. Here the
 * members agree on it; what each member does with the others' memory is in registered_work.c. The
 * group has one node.
 *
 * The stages. The operation has the steps base and base + 1; "all" are the members of the group; a
 * line with | says what the member waits for, and what follows.
 *
 *   OFFER   announce base: where send and recv lie (arena, offset); put the edges into the window
 *           | all have announced base. Descriptions are compared as in every operation. If all
 *           | offer: go on. If only some do: all begin again at base + 1, as if none had offered.
 *   MAP     map the arenas that are not mapped yet; commd is asked for them
 *   VOTE    announce base + 1: yes, or no if an arena could not be mapped
 *           | all have announced base + 1. If one votes no: all begin again at base + 2.
 *   WORK    say `entered`; do my part of the work; say `finished` and `stopped`
 *   FINISH  | all have finished: no member reads my input or writes my output any more. Done.
 *
 * All take the same path, because all look at the same announcements. Who wakes me: the bell, which
 * is rung after each announcement and counter. In MAP no bell rings: the member that waits for
 * commd's answer looks again every millisecond (run_asks()), and after ASK_MS votes no. What if a
 * peer dies now: commd marks it, and run_hopeless() sees the mark, in every wait and between two
 * chunks of WORK. What if I am stopped now: the others wait, as in every operation.
 *
 * Giving up an all_reduce, in which members write to others' outputs. After it has failed its
 * buffers are the caller's again, and no member may write into them. So a member that gives up says
 * `stopped`, and takes `finished` back if it had said that. Then it looks which members have
 * entered and not stopped. A member that enters says `entered`. Then it looks whether a member has
 * stopped without having finished; if so, it writes nothing. A fence stands between the store and
 * the loads on both sides, so at least one of the two members sees the other. Members that are at
 * work see the mark of the loss after their present chunk, so they are waited for, briefly. A
 * member that does not stop in that time (perhaps its process is suspended) is locked out: the
 * pages of the output are replaced by others (arena_fence()). The pages at both ends of the output
 * hold other data too, and cannot be replaced. So no member writes into those: the first and the
 * last EDGE bytes of the vector go through the window, and every member reduces them for itself.
 *
 * Trust. A member maps the others' arenas for writing. All members belong to one user, and this is
 * what makes the path fast (reading and copying takes half as long again). What a member offers is
 * copied, and checked against the size of the arena, which cannot shrink. An offer that does not
 * fit is an error for all. A wrong offer that fits spoils that member's own arena, and the results
 * of this group, which any member can spoil. */
#include "client/lib/coll/registered.h"

#include <sched.h>
#include <stdio.h>

#include "client/lib/arena/arena.h"

enum { ASK_MS = 5000, STOP_MS = 50 };

/* ---- the beginning --------------------------------------------------------------------------- */

static struct board_member *member(const struct run *r, unsigned m)
{
    assert(m < r->group->board.nlocal);
    return &r->group->board.members[m];
}

/* Each stage follows the one before. But a member that enters and sees that another has given up
 * does not work. */
static void set_stage(struct registered *d, enum registered_stage to)
{
    assert(to == d->stage + 1 || (d->stage == REGISTERED_WORK && to == REGISTERED_STALLED));
    d->stage = to;
}

static bool registered_find(const struct run *r, bool recv, uint64_t *ret_arena,
                            uint64_t *ret_offset)
{
    size_t len = registered_extent(r, recv);

    *ret_arena = *ret_offset = 0;
    return !len || arena_find(r->group->ctx, recv ? r->recv : r->send, len, ret_arena, ret_offset);
}

void registered_begin(struct run *r)
{
    unsigned n = r->group->board.nlocal;
    struct board_offer o;
    struct registered *d;

    assert(!r->registered && r->plan.path == PATH_REGISTERED && one_node(r));
    if (r->lists || !registered_find(r, false, &o.send_arena, &o.send_offset) ||
        !registered_find(r, true, &o.recv_arena, &o.recv_offset))
        return;
    d = calloc(1, sizeof *d + n * (2 * sizeof d->places[0] + sizeof *d->in + sizeof *d->out));
    if (!d)
        return;
    d->mine = o;
    d->in = (void *)&d->places[2 * n];
    d->out = (void *)&d->in[n];
    r->registered = d;
}

static bool registered_offer(struct run *r)
{
    const struct board *b = &r->group->board;
    struct registered *d = r->registered;

    assert(d->stage == REGISTERED_OFFER && r->put == 0);
    if (!run_can_put(r, 0, b->chunk))
        return false;
    registered_put(r);
    board_slot(b, r->group->local, r->base)->offer = d->mine;
    run_announce(r, BOARD_OFFER);
    set_stage(d, REGISTERED_OFFERS);
    return true;
}

static unsigned count_kind(const struct run *r, uint32_t step, unsigned kind)
{
    const struct board *b = &r->group->board;
    unsigned n = 0;

    assert(b->nnodes == 1);
    for (unsigned m = 0; m < b->nlocal; m++)
        n += board_slot(b, m, step)->kind == kind;
    return n;
}

/* This member has nothing to offer, so all do the operation in steps, which begin behind the offers
 * if there are any. Until that is known it puts the first step only: others may vote in the next.
 */
static enum run_state without_offer(struct run *r)
{
    bool moved;

    assert(!r->registered && r->plan.path == PATH_REGISTERED);
    moved = r->put == 0 && run_put(r);
    if (!r->put || !run_step_arrived(r, r->base))
        return moved ? RUN_MOVED : RUN_WAIT;
    if (!run_compare(r))
        return RUN_FAILED;
    if (count_kind(r, r->base, BOARD_OFFER))
        run_again(r, 1);
    r->plan.path = PATH_STEPS;
    return RUN_MOVED;
}

static bool take_offers(struct run *r)
{
    const struct board *b = &r->group->board;
    struct registered *d = r->registered;

    assert(d->stage == REGISTERED_OFFERS && r->put == 1);
    if (!run_step_arrived(r, r->base) || !run_compare(r))
        return false;
    if (count_kind(r, r->base, BOARD_OFFER) < b->nlocal) {
        free(steal_ptr(r->registered));
        run_again(r, 1);
        return true;
    }
    for (unsigned m = 0; m < b->nlocal; m++) {
        struct board_offer o =
            board_slot(b, m, r->base)->offer; /* copied: a member may write there */

        d->places[2 * m] = (struct registered_place){o.send_arena, o.send_offset};
        d->places[2 * m + 1] = (struct registered_place){o.recv_arena, o.recv_offset};
    }
    set_stage(d, REGISTERED_MAP);
    return true;
}

/* ---- mapping --------------------------------------------------------------------------------- */

static void set_place(struct registered *d, unsigned i, uint8_t *p)
{
    if (i % 2)
        d->out[i / 2] = p;
    else
        d->in[i / 2] = p;
}

/* All members find the same error, which ends the group: no libcommd makes such an offer. */
static bool misplaced(struct run *r, unsigned i, size_t size, size_t len)
{
    const struct membership *g = r->group;
    unsigned rank = g->local_rank[i / 2];

    assert(i < 2 * g->board.nlocal && rank < g->board.world && rank != g->rank);
    run_error(r, COMMD_E_PROTOCOL, (int)rank, g->members[rank].pid, group_node_of(g, rank),
              ": rank %u (pid %u on node %s) offers registered memory at %llu of an arena of %zu "
              "bytes, where %zu do not fit; the group is broken",
              rank, g->members[rank].pid, group_node_of(g, rank),
              (unsigned long long)r->registered->places[i].offset, size, len);
    return false;
}

/* The answer to the question for place d->at; true: there is one. */
static bool answered(struct run *r)
{
    struct membership *g = r->group;
    struct registered *d = r->registered;
    const struct registered_place *p = &d->places[d->at];
    size_t len = registered_extent(r, d->at % 2);
    const struct peer_arena *got;
    int fd = -1;

    assert(d->stage == REGISTERED_MAP && d->asking);
    if (control_arena_asked(g, &d->ask)) {
        fd = d->ask.fd;
    } else if ((int64_t)now_ms() >= d->until) {
        control_arena_cancel(g, &d->ask);
    } else {
        return false;
    }
    d->asking = false;
    d->at -= d->at % 2; /* both places: to make room this member's arenas may be unmapped */
    d->yes = peer_arena_add(g, d->at / 2, p->arena, fd);
    got = d->yes ? peer_arena_find(g, d->at / 2, p->arena) : NULL;
    if (got && got->base && p->offset <= got->size && len <= got->size - p->offset)
        arena_populate(got->base + p->offset,
                       len); /* if that fails, pages come when they are touched */
    close_fdp(&fd);
    return true;
}

/* Maps place d->at. False: not yet, or r->err says why not. */
static bool map_place(struct run *r)
{
    struct membership *g = r->group;
    struct registered *d = r->registered;
    unsigned i = d->at, m = i / 2;
    size_t len = registered_extent(r, i % 2);
    const struct registered_place *p = &d->places[i];
    const struct peer_arena *a;

    assert(d->stage == REGISTERED_MAP && !d->asking);
    assert(m < g->board.nlocal);
    if (m == g->local || !registered_shares(r, m, i % 2)) {
        set_place(d, i, m != g->local ? NULL : i % 2 ? r->recv : (uint8_t *)r->send);
        d->at++;
        return true;
    }
    a = peer_arena_find(g, m, p->arena);
    if (!a) {
        d->yes = control_arena_ask(g, g->local_rank[m], p->arena, &d->ask);
        d->asking = d->yes;
        d->until = (int64_t)now_ms() + ASK_MS;
        return true;
    }
    if (!a->base) {
        d->yes = false;
        return true;
    }
    if (p->offset > a->size || len > a->size - p->offset)
        return misplaced(r, i, a->size, len);
    set_place(d, i, a->base + p->offset);
    d->at++;
    return true;
}

static bool map_all(struct run *r)
{
    struct registered *d = r->registered;
    unsigned n = 2 * r->group->board.nlocal;

    assert(d->stage == REGISTERED_MAP && d->at <= n);
    d->yes = true;
    while (d->yes && d->at < n) {
        if (d->asking ? !answered(r) : !map_place(r))
            return false;
    }
    set_stage(d, REGISTERED_VOTE);
    return true;
}

bool registered_asks(const struct run *r)
{
    return r->registered && r->registered->asking;
}

static bool vote(struct run *r)
{
    struct registered *d = r->registered;

    assert(d->stage == REGISTERED_VOTE && r->put == 1);
    if (!run_can_put(r, 1, r->group->board.chunk))
        return false;
    run_announce(r, d->yes ? BOARD_VOTE_YES : BOARD_VOTE_NO);
    set_stage(d, REGISTERED_VOTES);
    return true;
}

/* ---- working --------------------------------------------------------------------------------- */

static bool anyone_stopped(const struct run *r)
{
    for (unsigned m = 0; m < r->group->board.nlocal; m++)
        if (atomic_load_explicit(&member(r, m)->stopped, memory_order_acquire) >= r->desc.seq &&
            atomic_load_explicit(&member(r, m)->finished, memory_order_acquire) < r->desc.seq)
            return true;
    return false;
}

static void stop(const struct run *r)
{
    atomic_store_explicit(&member(r, r->group->local)->stopped, r->desc.seq, memory_order_release);
}

static bool take_votes(struct run *r)
{
    const struct board *b = &r->group->board;
    struct registered *d = r->registered;

    assert(d->stage == REGISTERED_VOTES && r->put == 2);
    if (!run_step_arrived(r, r->base + 1))
        return false;
    /* its own vote counts as it was, not as its slot has it by now */
    if (!d->yes || count_kind(r, r->base + 1, BOARD_VOTE_YES) < b->nlocal) {
        free(steal_ptr(r->registered));
        run_again(r, 2);
        return true;
    }
    registered_share_out(r);
    atomic_store_explicit(&member(r, r->group->local)->entered, r->desc.seq, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* store before loads: pairs with registered_end() */
    set_stage(d, REGISTERED_WORK);
    if (anyone_stopped(r)) {
        stop(r);
        set_stage(d,
                  REGISTERED_STALLED); /* the member that gave up breaks the group: wait for that */
    }
    return true;
}

static enum run_state registered_step(struct run *r)
{
    enum run_state st = registered_work(r);

    assert(r->registered->stage == REGISTERED_WORK);
    if (st != RUN_DONE)
        return st;
    atomic_store_explicit(&member(r, r->group->local)->finished, r->desc.seq, memory_order_release);
    stop(r);
    run_tell(r);
    set_stage(r->registered, REGISTERED_FINISH);
    return RUN_MOVED;
}

static bool all_finished(const struct run *r)
{
    for (unsigned m = 0; m < r->group->board.nlocal; m++)
        if (atomic_load_explicit(&member(r, m)->finished, memory_order_acquire) < r->desc.seq)
            return false;
    return true;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static bool prepare(struct run *r)
{
    assert(r->plan.path == PATH_REGISTERED);
    switch (r->registered->stage) {
    case REGISTERED_OFFER:
        return registered_offer(r);
    case REGISTERED_OFFERS:
        return take_offers(r);
    case REGISTERED_MAP:
        return map_all(r);
    case REGISTERED_VOTE:
        return vote(r);
    case REGISTERED_VOTES:
        return take_votes(r);
    case REGISTERED_WORK:
    case REGISTERED_FINISH:
    case REGISTERED_STALLED:
        break;
    }
    return false;
}

enum run_state registered_advance(struct run *r)
{
    enum run_state st = RUN_WAIT;

    if (!r->registered)
        return without_offer(r);
    while (r->registered->stage < REGISTERED_WORK) {
        if (!prepare(r))
            return r->err.code ? RUN_FAILED : st;
        st = RUN_MOVED;
        if (!r->registered)
            return st;
    }
    if (r->registered->stage == REGISTERED_WORK)
        return registered_step(r);
    if (r->registered->stage == REGISTERED_STALLED || !all_finished(r))
        return st;
    assert(r->registered->stage == REGISTERED_FINISH && r->put == 2);
    r->plan.steps = r->put; /* the offer and the vote */
    atomic_store_explicit(&member(r, r->group->local)->consumed, r->base + r->plan.steps,
                          memory_order_release);
    run_tell(r);
    return RUN_DONE;
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool may_write(const struct run *r, unsigned m)
{
    const struct membership *g = r->group;
    unsigned rank = g->local_rank[m];

    assert(rank < g->board.world);
    return m != g->local &&
           atomic_load_explicit(&member(r, m)->entered, memory_order_acquire) >= r->desc.seq &&
           atomic_load_explicit(&member(r, m)->stopped, memory_order_acquire) < r->desc.seq &&
           !board_is_gone(&g->board, rank);
}

static bool all_out(const struct run *r)
{
    for (unsigned m = 0; m < r->group->board.nlocal; m++)
        if (may_write(r, m))
            return false;
    return true;
}

void registered_end(struct run *r, bool done)
{
    struct registered *d = steal_ptr(r->registered);
    bool offered = d && d->stage >= REGISTERED_VOTES;

    if (!d)
        return;
    assert(!done || d->stage == REGISTERED_FINISH || r->err.code);
    if (d->asking)
        control_arena_cancel(r->group, &d->ask);
    if (!done && offered && d->yes) {
        int64_t until = (int64_t)now_ms() + STOP_MS;

        /* a member that has not entered yet must not believe that this one is done */
        atomic_store_explicit(&member(r, r->group->local)->finished, r->desc.seq - 1,
                              memory_order_release);
        stop(r);
        atomic_thread_fence(
            memory_order_seq_cst); /* stores before loads: pairs with take_votes() */
        while (registered_writes(r) && !all_out(r)) {
            if ((int64_t)now_ms() >= until) {
                arena_fence(r->recv, registered_extent(r, true));
                break;
            }
            sched_yield();
        }
    }
    free(d);
}
