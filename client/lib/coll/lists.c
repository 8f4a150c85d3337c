/* lists.c - what an operation gives for each rank: counts and addresses of blocks. They are copied,
 * so that the caller's arrays may be freed, and completed, so that coll_*.c need not ask how they
 * were given. Operations whose blocks all have one length and lie one after the other need no
 * lists. */
#include "client/lib/coll/run.h"

static const void *lists_block_of(const void *const *blocks, const uint8_t *base, unsigned k,
                                  size_t at)
{
    assert(k < PLAN_MAX_WORLD);
    if (blocks)
        return blocks[k];
    return base ? base + at : NULL;
}

static void fill_blocks(uint8_t **to, const void *const *blocks, const void *base, unsigned n,
                        const uint64_t *counts, uint64_t count, size_t esize)
{
    size_t at = 0;

    assert(n <= PLAN_MAX_WORLD && esize > 0);
    for (unsigned k = 0; k < n; k++) {
        to[k] = (uint8_t *)lists_block_of(blocks, base, k, at);
        at += (counts ? counts[k] : count) * esize;
    }
}

static void fill_counts(uint64_t *to, const size_t *from, unsigned n)
{
    assert(from);
    for (unsigned k = 0; k < n; k++)
        to[k] = from[k];
}

/* The row of the matrix of cells that belongs to this rank. Who does not have a buffer of blocks
 * has one cell, for or from the root. */
static void fill_row(uint64_t *to, const size_t *from, unsigned extent, bool root_rank,
                     unsigned root, unsigned n)
{
    assert(extent != EXTENT_ONE || root < n);
    memset(to, 0, n * sizeof *to);
    if (extent == EXTENT_ONE)
        to[root] = from[0];
    else if (coll_at(extent, root_rank))
        fill_counts(to, from, n);
}

int lists_copy(const struct membership *g, const struct commd_op *op, struct op_lists **ret_lists)
{
    const struct coll_info *info = &coll_table[op->coll];
    bool root = info->rooted && g->rank == (unsigned)op->root;
    bool sends = coll_blocks(info->send) && coll_at(info->send, root);
    bool recvs = coll_blocks(info->recv) && coll_at(info->recv, root);
    unsigned n = g->board.world;
    size_t esize = dtype_size((unsigned)op->dtype);
    struct op_lists *l;
    uint64_t *word;

    assert(op->coll >= 0 && op->coll < COLL_COUNT && n > 0);
    *ret_lists = NULL;
    if (!info->counted && !(sends && op->send_blocks) && !(recvs && op->recv_blocks))
        return 0; /* of somebody else's side */
    l = calloc(1, sizeof *l + (size_t)n * 4 * sizeof(uint64_t));
    if (!l)
        return -ENOMEM;
    word = (uint64_t *)(l + 1);
    if (info->counted && info->window == WINDOW_BLOCKS) {
        l->counts = word;
        fill_counts(l->counts, sends ? op->send_counts : op->recv_counts, n);
    } else if (info->counted) {
        l->send_counts = word;
        l->recv_counts = word + n;
        fill_row(l->send_counts, op->send_counts, info->send, root, (unsigned)op->root, n);
        fill_row(l->recv_counts, op->recv_counts, info->recv, root, (unsigned)op->root, n);
    }
    if (sends) {
        l->send_blocks = (uint8_t **)(word + 2 * n);
        fill_blocks(l->send_blocks, op->send_blocks, op->send, n,
                    l->counts ? l->counts : l->send_counts, op->count, esize);
    }
    if (recvs) {
        l->recv_blocks = (uint8_t **)(word + 3 * n);
        fill_blocks(l->recv_blocks, (const void *const *)op->recv_blocks, op->recv, n,
                    l->counts ? l->counts : l->recv_counts, op->count, esize);
    }
    *ret_lists = l;
    return 0;
}
