/* direct.c - all_reduce in registered memory: no copies. Each member of the group, which has one
 * node, reduces its slice of all inputs straight into all outputs.
 *
 * Who waits for whom (an operation of steps base, base + 1; "all" are the members of the group):
 *
 *   OFFER   announce base: where send and recv lie (arena, offset); in the window, the edges
 *           | all have announced base. Descriptions are compared as ever. All offer: go on. Some do:
 *           | everybody, those too who announced a payload, begins again at base + 1, as if nobody did.
 *   MAP     map what is not mapped yet, asking commd for it
 *   VOTE    announce base + 1: yes, or no if something could not be mapped
 *           | all have announced base + 1. One no: everybody begins again at base + 2.
 *   WORK    `entered`; then my slice, into all outputs; then `finished` and `stopped`
 *   FINISH  | all have finished: nobody reads my input or writes my output any more. Done.
 *
 * So all take the same path, because all look at the same announcements. Who wakes me: the bell, rung
 * after each announcement and counter; in MAP nobody does, so who waits looks again every
 * millisecond (run_asks()), and gives up after ASK_MS: with a no. What if a peer dies now: commd marks
 * it, and run_hopeless() sees that, between two chunks of WORK as in every wait. What if I am
 * stopped now: the others wait, as in every operation.
 *
 * A failed operation must not be written to later: its buffers are the caller's again. So who gives up
 * says `stopped` and then looks who has `entered` and not stopped; who enters says so and then
 * looks who has stopped, and in that case writes nothing (a fence between the store and the loads on
 * both sides: one of the two sees the other). Members that are at work see the mark of the loss after
 * their present chunk, so they are waited for, briefly. One that does not come (it was stopped itself) is
 * locked out: the output's pages are replaced by others (arena_fence()). Not the pages at its ends, which
 * hold other data too; therefore nobody writes into those: the first and the last EDGE bytes of the
 * vector go through the window, and every member reduces them for itself.
 *
 * Whom this trusts. A member maps the others' arenas for writing; within one group and user, that is
 * what makes it fast (to read only, and copy, takes half as long again). What a member offers is
 * copied, and checked against the size of the arena, which cannot shrink; an offer that does not
 * fit is an error for all. Lies that fit spoil the liar's own arena, and the numbers of this group,
 * which any member can spoil. */
#include "client/direct.h"

#include <sched.h>
#include <stdio.h>

#include "client/arena.h"
#include "shm/reduce.h"

enum {
    EDGE = ARENA_PAGE,
    CHUNK = 256 << 10,      /* between two looks at the reasons to give up */
    CHUNK_MANY = 32 << 10,  /* stays in the nearest cache until it has been copied to all */
    TURN = 1 << 20,         /* of one direct_poll() */
    ASK_MS = 1000,
    STOP_MS = 50,
};

enum stage { OFFER, OFFERS, MAP, VOTE, VOTES, WORK, FINISH, STALLED };

struct place {
    uint64_t arena, offset;
};

struct direct {
    enum stage stage;
    struct board_offer mine;
    bool yes;       /* my vote */
    bool began;     /* WORK: the edges are done */
    unsigned at;    /* MAP: the next place */
    bool asking;    /* MAP: for the arena of place @at */
    int64_t until;  /* MAP: for the answer, CLOCK_MONOTONIC ms */
    struct join_wait ask;
    uint64_t next, end; /* WORK: elements of my slice */
    const uint8_t **in; /* by member */
    uint8_t **out;
    struct place places[]; /* send and recv of each member, as it offered them */
};

/* ---- the beginning ------------------------------------------------------------------------- */

static size_t bytes_of(const struct run *r)
{
    return r->plan.count * r->plan.esize;
}

static struct board_member *member(const struct run *r, unsigned m)
{
    return &r->group->board.members[m];
}

void direct_begin(struct run *r)
{
    struct commd_context *ctx = r->group->ctx;
    unsigned n = r->group->board.nlocal;
    struct board_offer o;
    struct direct *d;

    if (!arena_find(ctx, r->send, bytes_of(r), &o.send_arena, &o.send_offset) ||
        !arena_find(ctx, r->recv, bytes_of(r), &o.recv_arena, &o.recv_offset))
        return;
    d = calloc(1, sizeof *d + n * (2 * sizeof d->places[0] + sizeof *d->in + sizeof *d->out));
    if (!d)
        return;
    d->mine = o;
    d->in = (void *)&d->places[2 * n];
    d->out = (void *)&d->in[n];
    r->direct = d;
}

static uint8_t *edges(const struct run *r, unsigned m)
{
    const struct board *b = &r->group->board;

    return board_window(b, m, r->base, b->chunk);
}

static bool offer(struct run *r)
{
    const struct board *b = &r->group->board;
    struct direct *d = r->direct;
    uint8_t *to = edges(r, r->group->local);

    if (!run_can_put(r, 0, b->chunk))
        return false;
    memcpy(to, r->send, EDGE);
    memcpy(to + EDGE, r->send + bytes_of(r) - EDGE, EDGE);
    board_slot(b, r->group->local, r->base)->offer = d->mine;
    run_announce(r, BOARD_OFFER);
    d->stage = OFFERS;
    return true;
}

static unsigned count_kind(const struct run *r, uint32_t step, unsigned kind)
{
    const struct board *b = &r->group->board;
    unsigned n = 0;

    for (unsigned m = 0; m < b->nlocal; m++)
        n += board_slot(b, m, step)->kind == kind;
    return n;
}

bool direct_offered(const struct run *r)
{
    return count_kind(r, r->base, BOARD_OFFER) > 0;
}

static bool take_offers(struct run *r)
{
    const struct board *b = &r->group->board;
    struct direct *d = r->direct;

    if (!run_all_arrived(r, 0) || !run_agree(r))
        return false;
    if (count_kind(r, r->base, BOARD_OFFER) < b->nlocal) {
        free(steal_ptr(r->direct));
        run_again(r, 1);
        return true;
    }
    for (unsigned m = 0; m < b->nlocal; m++) {
        struct board_offer o = board_slot(b, m, r->base)->offer; /* a member may write there */

        d->places[2 * m] = (struct place){o.send_arena, o.send_offset};
        d->places[2 * m + 1] = (struct place){o.recv_arena, o.recv_offset};
    }
    d->stage = MAP;
    return true;
}

/* ---- mapping --------------------------------------------------------------------------------- */

static void set_place(struct direct *d, unsigned i, uint8_t *p)
{
    if (i % 2)
        d->out[i / 2] = p;
    else
        d->in[i / 2] = p;
}

/* The error is the same for all, and the group's end: who offers such a thing is not libcommd. */
static bool misplaced(struct run *r, unsigned i, size_t size)
{
    const struct commd_group *g = r->group;
    unsigned rank = g->local_rank[i / 2];

    error_set(&r->err, COMMD_E_PROTOCOL, "all_reduce",
              "operation %llu of group \"%s\": rank %u (pid %u on node %s) offers registered memory at "
              "%llu of an arena of %zu bytes, where %zu do not fit; the group is broken",
              (unsigned long long)r->desc.seq, g->name, rank, g->members[rank].pid,
              group_node_of(g, rank), (unsigned long long)r->direct->places[i].offset, size,
              bytes_of(r));
    r->err.rank = (int)rank;
    r->err.pid = (int)g->members[rank].pid;
    r->err.epoch = g->board.epoch;
    r->err.seq = r->desc.seq;
    snprintf(r->err.node, sizeof r->err.node, "%s", group_node_of(g, rank));
    return false;
}

/* The answer to the question for place d->at; true: there is one. */
static bool answered(struct run *r)
{
    struct commd_group *g = r->group;
    struct direct *d = r->direct;
    const struct place *p = &d->places[d->at];
    const struct peer_arena *got;
    int fd = -1;

    if (control_arena_asked(g, &d->ask)) {
        fd = d->ask.board_fd;
    } else if ((int64_t)now_ms() >= d->until) {
        control_arena_cancel(g, &d->ask);
    } else {
        return false;
    }
    d->asking = false;
    d->at = 2 * (d->at / 2); /* both of the member's: to make room others of its may be unmapped */
    d->yes = peer_arena_add(g, d->at / 2, p->arena, fd);
    got = d->yes ? peer_arena_find(g, d->at / 2, p->arena) : NULL;
    if (got && got->base && p->offset <= got->size && bytes_of(r) <= got->size - p->offset)
        arena_populate(got->base + p->offset, bytes_of(r)); /* or when it is touched */
    close_fdp(&fd);
    return true;
}

/* Place d->at; false: not yet, or r->err says why not. */
static bool map_place(struct run *r)
{
    struct commd_group *g = r->group;
    struct direct *d = r->direct;
    unsigned i = d->at, m = i / 2;
    const struct place *p = &d->places[i];
    const struct peer_arena *a;

    if (m == g->local) {
        set_place(d, i, i % 2 ? r->recv : (uint8_t *)r->send);
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
    if (p->offset > a->size || bytes_of(r) > a->size - p->offset)
        return misplaced(r, i, a->size);
    set_place(d, i, a->base + p->offset);
    d->at++;
    return true;
}

static bool map_all(struct run *r)
{
    struct direct *d = r->direct;
    unsigned n = 2 * r->group->board.nlocal;

    d->yes = true;
    while (d->yes && d->at < n) {
        if (d->asking ? !answered(r) : !map_place(r))
            return false;
    }
    d->stage = VOTE;
    return true;
}

bool direct_asks(const struct run *r)
{
    return r->direct && r->direct->asking;
}

static bool vote(struct run *r)
{
    struct direct *d = r->direct;

    if (!run_can_put(r, 1, r->group->board.chunk))
        return false;
    run_announce(r, d->yes ? BOARD_VOTE_YES : BOARD_VOTE_NO);
    d->stage = VOTES;
    return true;
}

/* ---- working --------------------------------------------------------------------------------- */

/* Has a member given up? */
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
    struct direct *d = r->direct;

    if (!run_all_arrived(r, 1))
        return false;
    if (count_kind(r, r->base + 1, BOARD_VOTE_YES) < b->nlocal) {
        free(steal_ptr(r->direct));
        run_again(r, 2);
        return true;
    }
    plan_slice(r->plan.count - 2 * EDGE / r->plan.esize, b->nlocal, r->group->local, r->plan.esize,
               &d->next, &d->end);
    atomic_store_explicit(&member(r, r->group->local)->entered, r->desc.seq, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* store before loads: pairs with direct_end() */
    d->stage = WORK;
    if (anyone_stopped(r)) {
        stop(r);
        d->stage = STALLED; /* it breaks the group, which we wait to hear of */
    }
    return true;
}

/* The edges of my own output: from the windows of all. */
static void do_edges(struct run *r)
{
    const struct plan *p = &r->plan;
    const struct board *b = &r->group->board;
    uint8_t *out[2] = {r->recv, r->recv + bytes_of(r) - EDGE};
    uint64_t n = EDGE / p->esize;

    for (unsigned e = 0; e < 2; e++) {
        const void *src[BOARD_MAX_LOCAL];

        for (unsigned m = 0; m < b->nlocal; m++)
            src[m] = edges(r, m) + e * EDGE;
        reduce_n(p->dtype, p->redop, out[e], src, b->nlocal, n);
        reduce_finish(p->dtype, p->redop, out[e], n, b->world);
    }
    r->direct->began = true;
}

/* @n elements of my slice, from d->next on. Two outputs of a sum are written at once; else the
 * result is finished in one, while it is in the cache, and copied to the others. All inputs have
 * been read before an output is written, which may be the same memory. */
static void do_chunk(struct run *r, uint64_t n)
{
    const struct plan *p = &r->plan;
    struct direct *d = r->direct;
    unsigned nlocal = r->group->board.nlocal, me = r->group->local;
    size_t at = EDGE + d->next * p->esize, len = n * p->esize;
    const void *src[BOARD_MAX_LOCAL];

    for (unsigned m = 0; m < nlocal; m++)
        src[m] = d->in[m] + at;
    if (nlocal == 2 && p->redop != REDOP_AVG) {
        reduce_n_dup(p->dtype, p->redop, d->out[me] + at, d->out[!me] + at, src, nlocal, n);
    } else {
        reduce_n(p->dtype, p->redop, d->out[me] + at, src, nlocal, n);
        reduce_finish(p->dtype, p->redop, d->out[me] + at, n, r->group->board.world);
        for (unsigned m = 0; m < nlocal; m++)
            if (m != me)
                memcpy(d->out[m] + at, d->out[me] + at, len);
    }
    d->next += n;
}

static enum run_state work(struct run *r)
{
    struct direct *d = r->direct;
    uint64_t chunk = (r->group->board.nlocal == 2 ? CHUNK : CHUNK_MANY) / r->plan.esize;
    uint64_t turn = d->next + TURN / r->plan.esize;

    if (!d->began)
        do_edges(r);
    while (d->next < d->end && d->next < turn) {
        if (unlikely(run_hopeless(r)))
            return RUN_FAILED;
        do_chunk(r, MIN(chunk, d->end - d->next));
    }
    if (d->next == d->end) {
        atomic_store_explicit(&member(r, r->group->local)->finished, r->desc.seq,
                              memory_order_release);
        stop(r);
        run_tell(r);
        d->stage = FINISH;
    }
    r->moved = true;
    return RUN_WAIT;
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
    switch (r->direct->stage) {
    case OFFER:
        return offer(r);
    case OFFERS:
        return take_offers(r);
    case MAP:
        return map_all(r);
    case VOTE:
        return vote(r);
    case VOTES:
        return take_votes(r);
    case WORK:
    case FINISH:
    case STALLED:
        break;
    }
    return false;
}

enum run_state direct_poll(struct run *r)
{
    r->err.code = 0;
    while (r->direct && r->direct->stage < WORK) {
        if (!prepare(r))
            return r->err.code ? RUN_FAILED : RUN_WAIT;
        r->moved = true;
    }
    if (!r->direct)
        return RUN_WAIT;
    if (r->direct->stage == WORK)
        return work(r);
    if (r->direct->stage == STALLED || !all_finished(r))
        return RUN_WAIT;
    r->group->next_step = r->base + 2;
    atomic_store_explicit(&member(r, r->group->local)->consumed, r->group->next_step,
                          memory_order_release);
    run_tell(r);
    return RUN_DONE;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* May local member @m still be writing into our output? */
static bool may_write(const struct run *r, unsigned m)
{
    const struct commd_group *g = r->group;
    unsigned rank = g->local_rank[m];

    return m != g->local &&
           atomic_load_explicit(&member(r, m)->entered, memory_order_acquire) >= r->desc.seq &&
           atomic_load_explicit(&member(r, m)->stopped, memory_order_acquire) < r->desc.seq &&
           !atomic_load_explicit(&g->board.ranks[rank].gone, memory_order_acquire);
}

static bool all_out(const struct run *r)
{
    for (unsigned m = 0; m < r->group->board.nlocal; m++)
        if (may_write(r, m))
            return false;
    return true;
}

void direct_end(struct run *r, bool done)
{
    struct direct *d = steal_ptr(r->direct);
    bool offered = d && d->stage >= VOTES;

    if (!d)
        return;
    if (d->asking)
        control_arena_cancel(r->group, &d->ask);
    if (!done && offered && d->yes) {
        int64_t until = (int64_t)now_ms() + STOP_MS;

        stop(r);
        atomic_thread_fence(memory_order_seq_cst); /* store before loads: pairs with take_votes() */
        while (!all_out(r) && (int64_t)now_ms() < until)
            sched_yield();
        if (!all_out(r))
            arena_fence(r->recv, bytes_of(r));
    }
    free(d);
}
