/* coll_steps.c - what a member does in each step of each collective: put its contribution, reduce
 * its slice, get the result. One row per collective in coll_steps; those whose windows hold a
 * vector are here, those with blocks and cells in coll_blocks.c.
 *
 * Large operations cost as much as their copies. So a member puts in only what others will reduce,
 * reduces its own slice straight from the caller's memory into the window and its own output, and
 * gets only the other slices. */
#include "client/lib/coll/coll_steps.h"

/* A multiple of every element's size; stays in a core's own cache. */
enum { AROUND_PIECE = 64 << 10 };

void reduce_members(const struct run *r, uint32_t c, void *dst, void *dst2, const uint8_t *own,
                    size_t offset, uint64_t n)
{
    const struct board *b = board_of(r);
    const void *src[BOARD_MAX_LOCAL];

    invariant(b->nlocal <= BOARD_MAX_LOCAL && r->group->local < b->nlocal);
    for (unsigned m = 0; m < b->nlocal; m++)
        src[m] = payload_of(r, m, c) + offset;
    if (!is_scaled(r))
        src[r->group->local] = own;
    if (dst2)
        reduce_n_dup(r->plan.dtype, r->plan.redop, dst, dst2, src, b->nlocal, n);
    else
        reduce_n(r->plan.dtype, r->plan.redop, dst, src, b->nlocal, n);
}

/* ---- barrier --------------------------------------------------------------------------------- */

static void do_nothing(struct run *r, uint32_t c)
{
}

/* ---- all_reduce, reduce ---------------------------------------------------------------------- */

static void my_slice(const struct run *r, uint32_t c, size_t *ret_lo, size_t *ret_hi)
{
    uint64_t lo, hi;

    plan_slice(plan_step_count(&r->plan, c), board_of(r)->nlocal, r->group->local, r->plan.esize,
               &lo, &hi);
    assert(lo <= hi);
    *ret_lo = lo * r->plan.esize;
    *ret_hi = hi * r->plan.esize;
}

/* Does this member's output get the result of its slice when that is reduced? */
static bool takes_slice(const struct run *r)
{
    assert(r->plan.coll == COLL_ALL_REDUCE || r->plan.coll == COLL_REDUCE);
    return one_node(r) && (r->plan.coll == COLL_ALL_REDUCE || is_root(r));
}

/* Is this the root, which takes its own part from where the caller has it? */
static bool reduces_alone(const struct run *r)
{
    return r->plan.coll == COLL_REDUCE && !r->plan.reduces && one_node(r) && is_root(r) &&
           !is_scaled(r);
}

static void vector_put(struct run *r, uint32_t c)
{
    size_t len = step_bytes(r, c), lo, hi;
    const uint8_t *from = r->send + step_offset(r, c);
    uint8_t *to = my_payload(r, c);

    if (reduces_alone(r))
        return;
    if (!r->plan.reduces || is_scaled(r)) {
        contribute(r, to, from, len);
        return;
    }
    my_slice(r, c, &lo, &hi);
    assert(lo <= hi && hi <= len);
    copy_to_window(r, to, from, lo);
    copy_to_window(r, to + hi, from + hi, len - hi);
}

/* Where stores into the window are slow the slice is reduced into the output, and goes from there
 * around the caches while it is still in ours. */
static void reduce_around(struct run *r, uint32_t c, uint8_t *out, uint8_t *res, size_t lo,
                          size_t hi)
{
    const struct plan *p = &r->plan;

    assert(one_node(r) && out && AROUND_PIECE % p->esize == 0);
    for (size_t len; lo < hi; lo += len) {
        len = MIN(hi - lo, (size_t)AROUND_PIECE);
        reduce_members(r, c, out + lo, NULL, r->send + step_offset(r, c) + lo, lo, len / p->esize);
        reduce_finish(p->dtype, p->redop, out + lo, len / p->esize, board_of(r)->world);
        copy_around(res + lo, out + lo, len);
    }
}

/* Into the window, and into @out at once if it is not NULL. */
static void reduce_through(struct run *r, uint32_t c, uint8_t *out, uint8_t *res, size_t lo,
                           size_t hi)
{
    const struct plan *p = &r->plan;
    unsigned world = board_of(r)->world;
    uint64_t n = (hi - lo) / p->esize;

    assert(lo <= hi);
    reduce_members(r, c, res + lo, out ? out + lo : NULL, r->send + step_offset(r, c) + lo, lo, n);
    if (!one_node(r))
        return;
    reduce_finish(p->dtype, p->redop, res + lo, n, world);
    if (out)
        reduce_finish(p->dtype, p->redop, out + lo, n, world);
}

static void vector_reduce(struct run *r, uint32_t c)
{
    uint8_t *out = takes_slice(r) ? r->recv + step_offset(r, c) : NULL, *res = result_of(r, c);
    struct copy_way *way = &r->group->reduced;
    struct copy_turn turn = {0};
    size_t lo, hi;

    assert(r->plan.reduces);
    my_slice(r, c, &lo, &hi);
    if (out && hi - lo >= COPY_TIMED_MIN)
        turn = copy_begin(way);
    if (unlikely(turn.around))
        reduce_around(r, c, out, res, lo, hi);
    else
        reduce_through(r, c, out, res, lo, hi);
    copy_end(way, &turn, hi - lo);
}

/* Adds up what the two nodes have, in the order of nodes, so that all ranks get the same bits. A
 * rank that is alone on its node reads its part where the caller has it: in place that line has to
 * be in the cache anyway. */
static void swap_get(const struct run *r, uint32_t c, uint8_t *out, const uint8_t *res, size_t len)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    bool alone = b->nlocal == 1 && !is_scaled(r);
    const void *src[2];

    assert(b->nnodes == 2 && b->me < 2);
    src[b->me] = alone ? r->send + step_offset(r, c) : res;
    src[!b->me] = board_theirs(b, r->base + c, len);
    reduce_n(p->dtype, p->redop, out, src, 2, len / p->esize);
    reduce_finish(p->dtype, p->redop, out, len / p->esize, b->world);
}

static void all_reduce_get(struct run *r, uint32_t c)
{
    const struct plan *p = &r->plan;
    uint8_t *out = r->recv + step_offset(r, c), *res = result_of(r, c);
    size_t len = step_bytes(r, c), lo, hi;

    if (plan_swaps(p)) {
        swap_get(r, c, out, res, len);
    } else if (!one_node(r)) {
        copy_result(r, out, res, len);
    } else if (!p->reduces) {
        reduce_members(r, c, out, NULL, r->send + step_offset(r, c), 0, len / p->esize);
        reduce_finish(p->dtype, p->redop, out, len / p->esize, board_of(r)->world);
    } else {
        my_slice(r, c, &lo, &hi);
        assert(lo <= hi && hi <= len);
        copy_result(r, out, res, lo);
        copy_result(r, out + hi, res + hi, len - hi);
    }
}

static void reduce_get(struct run *r, uint32_t c)
{
    if (is_root(r))
        all_reduce_get(r, c);
}

/* ---- broadcast ------------------------------------------------------------------------------- */

static void broadcast_put(struct run *r, uint32_t c)
{
    uint8_t *to;

    assert(r->plan.coll == COLL_BROADCAST);
    if (!is_root(r))
        return;
    /* the network sends from the result window; a small payload is picked up by the engine */
    to = one_node(r) || r->plan.path == PATH_SMALL ? my_payload(r, c) : result_of(r, c);
    copy_to_window(r, to, r->recv + step_offset(r, c), step_bytes(r, c));
}

static void broadcast_get(struct run *r, uint32_t c)
{
    const uint8_t *from;

    if (is_root(r))
        return;
    assert(!one_node(r) || r->plan.root < board_of(r)->nlocal);
    from = one_node(r) ? payload_of(r, r->plan.root, c) : result_of(r, c);
    copy_result(r, r->recv + step_offset(r, c), from, step_bytes(r, c));
}

/* ---- the table ------------------------------------------------------------------------------- */

static bool ready_from_root(struct run *r, uint32_t c)
{
    assert(one_node(r) && r->plan.root < board_of(r)->nlocal);
    return board_arrived(board_of(r), r->plan.root, r->base + c);
}

static bool ready_all(struct run *r, uint32_t c)
{
    return r->plan.reduces ? run_step_reduced(r, r->base + c + 1)
                           : run_step_arrived(r, r->base + c);
}

/* The first step is also where descriptions are compared, for which can_get() waits for all. */
static bool ready_at_root(struct run *r, uint32_t c)
{
    return !is_root(r) || ready_all(r, c);
}

const struct coll_steps coll_steps[COLL_COUNT] = {
    [COLL_BARRIER] = {ready_all, do_nothing, do_nothing, do_nothing, do_nothing},
    [COLL_ALL_REDUCE] = {ready_all, vector_put, do_nothing, vector_reduce, all_reduce_get},
    [COLL_BROADCAST] = {ready_from_root, broadcast_put, do_nothing, do_nothing, broadcast_get},
    [COLL_ALL_GATHER] = {ready_all, all_gather_put, all_gather_own, do_nothing, all_gather_get},
    [COLL_REDUCE_SCATTER] = {ready_all, reduce_scatter_put, do_nothing, reduce_scatter_reduce,
                             reduce_scatter_get},
    [COLL_REDUCE] = {ready_at_root, vector_put, do_nothing, vector_reduce, reduce_get},
    [COLL_GATHER] = {ready_at_root, cells_put, cells_own, do_nothing, cells_get},
    [COLL_SCATTER] = {ready_from_root, cells_put, cells_own, do_nothing, cells_get},
    [COLL_ALL_TO_ALL] = {ready_all, cells_put, cells_own, do_nothing, cells_get},
    [COLL_ALL_GATHER_V] = {ready_all, all_gather_put, all_gather_own, do_nothing, all_gather_get},
    [COLL_REDUCE_SCATTER_V] = {ready_all, reduce_scatter_put, do_nothing, reduce_scatter_reduce,
                               reduce_scatter_get},
    [COLL_GATHER_V] = {ready_at_root, cells_put, cells_own, do_nothing, cells_get},
    [COLL_SCATTER_V] = {ready_from_root, cells_put, cells_own, do_nothing, cells_get},
    [COLL_ALL_TO_ALL_V] = {ready_all, cells_put, cells_own, do_nothing, cells_get},
};
