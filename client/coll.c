/* coll.c - what a member does in each step of each collective: put its contribution, reduce
 * its slice, get the result. One row per collective in coll_table.
 *
 * "seat": position of a rank in node order (ranks of node 0 first, ...). In a one-node group
 * seat, rank and member index are the same. The result window of gathering operations is laid
 * out by seat, so that what belongs to a node is contiguous for the network.
 *
 * Copies are what large operations cost, so: a member puts in only what others will reduce,
 * reduces its own slice straight from the caller's memory into the window and its own output,
 * and gets only the other slices. */
#include "client/internal.h"
#include "shm/reduce.h"

static inline const struct board *board_of(const struct run *r)
{
    return &r->group->board;
}

static inline bool one_node(const struct run *r)
{
    return r->group->board.nnodes == 1;
}

static inline uint8_t *my_payload(const struct run *r, uint32_t c, size_t len)
{
    return (uint8_t *)board_payload(board_of(r), r->group->local, r->base + c, len);
}

static inline size_t step_bytes(const struct run *r, uint32_t c)
{
    return plan_step_count(&r->plan, c) * r->plan.esize;
}

/* Byte offset of step @c in the vector or in each block. */
static inline size_t step_offset(const struct run *r, uint32_t c)
{
    return (size_t)c * r->plan.unit * r->plan.esize;
}

static inline void copy(void *dst, const void *src, size_t n)
{
    if (n && dst != src)
        memcpy(dst, src, n);
}

static void reduce_members(const struct run *r, uint32_t c, void *dst, void *dst2,
                           const uint8_t *own, size_t offset, size_t len, uint64_t n)
{
    const struct board *b = board_of(r);
    const void *src[BOARD_MAX_LOCAL];

    for (unsigned m = 0; m < b->nlocal; m++)
        src[m] = m == r->group->local ? own : board_payload(b, m, r->base + c, len) + offset;
    if (dst2)
        reduce_n_dup(r->plan.dtype, r->plan.redop, dst, dst2, src, b->nlocal, n);
    else
        reduce_n(r->plan.dtype, r->plan.redop, dst, src, b->nlocal, n);
}

/* ---- barrier ----------------------------------------------------------------------------- */
static size_t nothing_len(const struct run *r, uint32_t c)
{
    return 0;
}

static void nothing(struct run *r, uint32_t c)
{
}

/* ---- all_reduce -------------------------------------------------------------------------- */
static size_t vector_len(const struct run *r, uint32_t c)
{
    return step_bytes(r, c);
}

static void my_slice(const struct run *r, uint32_t c, size_t *ret_lo, size_t *ret_hi)
{
    uint64_t lo, hi;

    plan_slice(plan_step_count(&r->plan, c), board_of(r)->nlocal, r->group->local, r->plan.esize,
               &lo, &hi);
    *ret_lo = lo * r->plan.esize;
    *ret_hi = hi * r->plan.esize;
}

static void all_reduce_put(struct run *r, uint32_t c)
{
    size_t len = step_bytes(r, c), lo, hi;
    const uint8_t *from = r->send + step_offset(r, c);
    uint8_t *to = my_payload(r, c, len);

    if (r->plan.small) {
        copy(to, from, len);
        return;
    }
    my_slice(r, c, &lo, &hi);
    copy(to, from, lo);
    copy(to + hi, from + hi, len - hi);
}

static void all_reduce_reduce(struct run *r, uint32_t c)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    uint8_t *out = r->recv + step_offset(r, c), *res = board_result(b, r->base + c);
    size_t lo, hi;
    uint64_t n;

    my_slice(r, c, &lo, &hi);
    n = (hi - lo) / p->esize;
    reduce_members(r, c, res + lo, one_node(r) ? out + lo : NULL,
                   r->send + step_offset(r, c) + lo, lo, step_bytes(r, c), n);
    if (one_node(r)) {
        reduce_finish(p->dtype, p->redop, res + lo, n, b->world);
        reduce_finish(p->dtype, p->redop, out + lo, n, b->world);
    }
}

static void all_reduce_get(struct run *r, uint32_t c)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    uint8_t *out = r->recv + step_offset(r, c), *res = board_result(b, r->base + c);
    size_t len = step_bytes(r, c), lo, hi;

    if (!one_node(r)) {
        copy(out, res, len);
    } else if (p->small) {
        reduce_members(r, c, out, NULL, r->send, 0, len, p->count);
        reduce_finish(p->dtype, p->redop, out, p->count, b->world);
    } else {
        my_slice(r, c, &lo, &hi);
        copy(out, res, lo);
        copy(out + hi, res + hi, len - hi);
    }
}

/* ---- broadcast --------------------------------------------------------------------------- */
static void broadcast_put(struct run *r, uint32_t c)
{
    size_t len = step_bytes(r, c);
    uint8_t *to;

    if (r->group->rank != r->plan.root)
        return;
    /* the network sends from the result window; a small payload is picked up by the engine */
    if (one_node(r) || r->plan.small)
        to = my_payload(r, c, len);
    else
        to = board_result(board_of(r), r->base + c);
    copy(to, r->recv + step_offset(r, c), len);
}

static void broadcast_get(struct run *r, uint32_t c)
{
    const struct board *b = board_of(r);
    size_t len = step_bytes(r, c);
    const uint8_t *from = board_result(b, r->base + c);

    if (r->group->rank == r->plan.root)
        return;
    if (one_node(r))
        from = board_payload(b, r->plan.root, r->base + c, len);
    copy(r->recv + step_offset(r, c), from, len);
}

/* ---- all_gather -------------------------------------------------------------------------- */
static void all_gather_put(struct run *r, uint32_t c)
{
    struct commd_group *g = r->group;
    size_t len = step_bytes(r, c);
    uint8_t *to;

    if (one_node(r) || r->plan.small)
        to = my_payload(r, c, len);
    else
        to = board_result(&g->board, r->base + c) + g->rank_seat[g->rank] * len;
    copy(to, r->send + step_offset(r, c), len);
}

static void all_gather_get(struct run *r, uint32_t c)
{
    struct commd_group *g = r->group;
    const struct board *b = &g->board;
    size_t len = step_bytes(r, c), off = step_offset(r, c);
    size_t block = r->plan.count * r->plan.esize;

    for (unsigned k = 0; k < b->world; k++) {
        const uint8_t *from;

        if (k == g->rank)
            from = r->send + off;
        else if (one_node(r))
            from = board_payload(b, k, r->base + c, len);
        else
            from = board_result(b, r->base + c) + g->rank_seat[k] * len;
        copy(r->recv + k * block + off, from, len);
    }
}

/* ---- reduce_scatter ---------------------------------------------------------------------- */
static size_t all_blocks_len(const struct run *r, uint32_t c)
{
    return step_bytes(r, c) * board_of(r)->world;
}

static void reduce_scatter_put(struct run *r, uint32_t c)
{
    struct commd_group *g = r->group;
    size_t len = step_bytes(r, c), off = step_offset(r, c);
    size_t block = r->plan.count * r->plan.esize;
    uint8_t *to = my_payload(r, c, all_blocks_len(r, c));

    for (unsigned seat = 0; seat < g->board.world; seat++) {
        unsigned rank = g->seat_rank[seat];

        if (rank == g->rank && one_node(r))
            continue; /* nobody else reduces my own block */
        copy(to + seat * len, r->send + rank * block + off, len);
    }
}

static void reduce_scatter_reduce(struct run *r, uint32_t c)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    size_t len = all_blocks_len(r, c);
    uint64_t lo, hi;

    plan_slice(plan_step_count(p, c) * b->world, b->nlocal, r->group->local, p->esize, &lo, &hi);
    lo *= p->esize;
    hi *= p->esize;
    reduce_members(r, c, board_result(b, r->base + c) + lo, NULL, my_payload(r, c, len) + lo, lo,
                   len, (hi - lo) / p->esize);
}

static void reduce_scatter_get(struct run *r, uint32_t c)
{
    struct commd_group *g = r->group;
    const struct plan *p = &r->plan;
    size_t len = step_bytes(r, c), off = step_offset(r, c);
    uint64_t n = plan_step_count(p, c);

    if (one_node(r)) {
        reduce_members(r, c, r->recv + off, NULL,
                       r->send + g->rank * p->count * p->esize + off, g->rank * len,
                       all_blocks_len(r, c), n);
        reduce_finish(p->dtype, p->redop, r->recv + off, n, g->board.world);
        return;
    }
    copy(r->recv + off, board_result(&g->board, r->base + c) + g->rank_seat[g->rank] * len, len);
}

const struct coll_ops coll_table[COLL_COUNT] = {
    [COLL_BARRIER] = {nothing_len, nothing, nothing, nothing},
    [COLL_ALL_REDUCE] = {vector_len, all_reduce_put, all_reduce_reduce, all_reduce_get},
    [COLL_BROADCAST] = {vector_len, broadcast_put, nothing, broadcast_get},
    [COLL_ALL_GATHER] = {vector_len, all_gather_put, nothing, all_gather_get},
    [COLL_REDUCE_SCATTER] = {all_blocks_len, reduce_scatter_put, reduce_scatter_reduce,
                             reduce_scatter_get},
};
