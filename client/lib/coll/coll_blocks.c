/* coll_blocks.c - collectives that move a block for each rank.
 *
 * Blocks: all ranks get the same blocks (all_gather), or reduce them (reduce_scatter). The window
 * is laid out in node order, so that the blocks of a node are contiguous for the network. Cells:
 * what one rank has for one other rank (gather, scatter, all_to_all). A member puts all that it has
 * for others into its own window. The ranks of its node take their cells from there; the engine
 * carries the rest to the result window of the other node.
 *
 * Blocks of the caller may lie anywhere: lists.c has their addresses. */
#include "client/lib/coll/coll_steps.h"

static const uint8_t *send_block(const struct run *r, unsigned k)
{
    assert(k < board_of(r)->world);
    if (unlikely(r->lists && r->lists->send_blocks))
        return r->lists->send_blocks[k];
    return r->send + k * r->plan.count * r->plan.esize;
}

static uint8_t *recv_block(const struct run *r, unsigned k)
{
    assert(k < board_of(r)->world);
    if (unlikely(r->lists && r->lists->recv_blocks))
        return r->lists->recv_blocks[k];
    return r->recv + k * r->plan.count * r->plan.esize;
}

/* Bytes of rank @k's block in step @c, of those that all ranks know. */
static size_t block_len(const struct run *r, unsigned k, uint32_t c)
{
    return plan_block_count(&r->plan, k, c) * r->plan.esize;
}

/* ---- all_gather ------------------------------------------------------------------------------ */

void all_gather_put(struct run *r, uint32_t c)
{
    struct membership *g = r->group;
    uint8_t *to;

    assert(g->pos_of[g->rank] < g->board.world);
    if (one_node(r) || r->plan.path == PATH_SMALL)
        to = my_payload(r, c);
    else
        to = result_of(r, c) + plan_block_at(&r->plan, &g->geom, c, g->pos_of[g->rank]);
    copy_to_window(r, to, r->send + step_offset(r, c), block_len(r, g->rank, c));
}

void all_gather_own(struct run *r, uint32_t c)
{
    unsigned me = r->group->rank;
    size_t off = step_offset(r, c);

    assert(c < r->plan.steps);
    copy_result(r, recv_block(r, me) + off, r->send + off, block_len(r, me, c));
}

void all_gather_get(struct run *r, uint32_t c)
{
    struct membership *g = r->group;
    size_t off = step_offset(r, c), at = 0;
    const uint8_t *res = result_of(r, c);

    assert(coll_table[r->plan.coll].window == WINDOW_BLOCKS);
    for (unsigned pos = 0; pos < g->board.world; pos++) {
        unsigned k = g->rank_at[pos];
        size_t len = block_len(r, k, c);
        const uint8_t *from = one_node(r) ? payload_of(r, k, c) : res + at;

        if (len && k != g->rank)
            copy_result(r, recv_block(r, k) + off, from, len);
        at += len;
    }
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

void reduce_scatter_put(struct run *r, uint32_t c)
{
    struct membership *g = r->group;
    uint8_t *to = my_payload(r, c);

    assert(coll_table[r->plan.coll].reduces);
    for (unsigned pos = 0; pos < g->board.world; pos++) {
        unsigned k = g->rank_at[pos];
        size_t len = block_len(r, k, c);

        /* nobody else reduces my own block on one node */
        if (len && (k != g->rank || !one_node(r) || is_scaled(r)))
            contribute(r, to, send_block(r, k) + step_offset(r, c), len);
        to += len;
    }
}

void reduce_scatter_reduce(struct run *r, uint32_t c)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    uint64_t n = plan_block_at(p, &r->group->geom, c, b->world) / p->esize, lo, hi;

    assert(r->plan.reduces && !one_node(r));
    plan_slice(n, b->nlocal, r->group->local, p->esize, &lo, &hi);
    assert(lo <= hi && hi <= n);
    reduce_members(r, c, result_of(r, c) + lo * p->esize, NULL, my_payload(r, c) + lo * p->esize,
                   lo * p->esize, hi - lo);
}

void reduce_scatter_get(struct run *r, uint32_t c)
{
    struct membership *g = r->group;
    const struct plan *p = &r->plan;
    size_t len = block_len(r, g->rank, c), off = step_offset(r, c);
    size_t at = plan_block_at(p, &g->geom, c, g->pos_of[g->rank]);

    assert(c < r->put);
    if (!len)
        return;
    if (one_node(r)) {
        reduce_members(r, c, r->recv + off, NULL, send_block(r, g->rank) + off, at, len / p->esize);
        reduce_finish(p->dtype, p->redop, r->recv + off, len / p->esize, g->board.world);
        return;
    }
    copy_result(r, r->recv + off, result_of(r, c) + at, len);
}

/* ---- gather, scatter, all_to_all ------------------------------------------------------------- */

/* Bytes of step @c that this rank has for rank @k, or gets from it. */
static size_t cell_len(const struct run *r, const uint64_t *counts, unsigned k, uint32_t c)
{
    assert(c < r->plan.steps);
    return plan_part(&r->plan, counts ? counts[k] : r->plan.count, c) * r->plan.esize;
}

static size_t out_len(const struct run *r, unsigned k, uint32_t c)
{
    return cell_len(r, r->lists ? r->lists->send_counts : NULL, k, c);
}

static size_t in_len(const struct run *r, unsigned k, uint32_t c)
{
    return cell_len(r, r->lists ? r->lists->recv_counts : NULL, k, c);
}

void cells_put(struct run *r, uint32_t c)
{
    struct membership *g = r->group;
    const struct coll_info *info = &coll_table[r->plan.coll];
    uint8_t *win = my_payload(r, c);
    size_t off = step_offset(r, c);

    assert(info->window == WINDOW_CELLS);
    if (info->send == EXTENT_ONE) {
        if (!is_root(r))
            copy_to_window(r, win, r->send + off, out_len(r, r->plan.root, c));
        return;
    }
    if (!coll_at(info->send, is_root(r)))
        return;
    for (unsigned pos = 0; pos < g->board.world; pos++) {
        unsigned k = g->rank_at[pos];
        size_t len = out_len(r, k, c);

        if (len && k != g->rank)
            copy_to_window(r, win + plan_cell_out(&r->plan, c, pos), send_block(r, k) + off, len);
    }
}

/* Where what rank @k has for this rank lies. */
static const uint8_t *cell_from(const struct run *r, unsigned k, uint32_t c)
{
    struct membership *g = r->group;
    unsigned pos = g->pos_of[k], first = g->node_start[g->board.me];

    assert(k != g->rank && pos < g->board.world && first < g->board.world);
    if (pos >= first && pos < first + g->board.nlocal)
        return payload_of(r, pos - first, c) + plan_cell_out(&r->plan, c, g->pos_of[g->rank]);
    return result_of(r, c) + plan_cell_in(&r->plan, &g->geom, c, pos, g->local);
}

void cells_own(struct run *r, uint32_t c)
{
    const struct coll_info *info = &coll_table[r->plan.coll];
    unsigned me = r->group->rank;
    size_t off = step_offset(r, c), len;

    assert(c < r->plan.steps);
    if (!coll_at(info->send, is_root(r)) || !coll_at(info->recv, is_root(r)))
        return;
    len = in_len(r, me, c);
    if (len)
        copy_result(r, (coll_blocks(info->recv) ? recv_block(r, me) : r->recv) + off,
                    (coll_blocks(info->send) ? send_block(r, me) : r->send) + off, len);
}

static void cell_get(struct run *r, uint8_t *to, unsigned k, uint32_t c)
{
    size_t len = in_len(r, k, c);

    if (len && k != r->group->rank)
        copy_result(r, to + step_offset(r, c), cell_from(r, k, c), len);
}

void cells_get(struct run *r, uint32_t c)
{
    const struct coll_info *info = &coll_table[r->plan.coll];

    assert(r->plan.root < board_of(r)->world);
    if (info->recv == EXTENT_ONE) {
        cell_get(r, r->recv, r->plan.root, c);
        return;
    }
    if (!coll_at(info->recv, is_root(r)))
        return;
    for (unsigned k = 0; k < board_of(r)->world; k++)
        cell_get(r, recv_block(r, k), k, c);
}
