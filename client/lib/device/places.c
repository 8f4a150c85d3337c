/* places.c - where the blocks of an operation lie in the caller's buffers, and in a staging buffer.
 */
#include "client/lib/device/staged.h"

size_t side_block_bytes(const struct side_place *p, unsigned k)
{
    assert(k < p->n);
    return (p->counts ? p->counts[k] : p->count) * p->esize;
}

static struct side_place side_place(const struct membership *g, const struct commd_op *op,
                                    bool send)
{
    const struct coll_info *info = &coll_table[op->coll];
    unsigned extent = send ? info->send : info->recv;
    bool many = coll_blocks(extent);
    struct side_place p = {
        .base = send ? (uint8_t *)op->send : op->recv,
        .esize = info->window == WINDOW_NONE ? 1 : dtype_size((unsigned)op->dtype),
    };

    assert(!is_p2p(op) && op->coll < COLL_COUNT);
    if (!coll_at(extent, info->rooted && (unsigned)op->root == g->rank))
        return (struct side_place){0};
    p.n = many ? g->board.world : 1;
    if (many) {
        p.blocks = send ? op->send_blocks : (const void *const *)op->recv_blocks;
        p.counts = !info->counted ? NULL : send ? op->send_counts : op->recv_counts;
        p.count = op->count;
    } else {
        p.count = op_single_count(g, op);
    }
    for (unsigned k = 0; k < p.n; k++) {
        if (k == g->rank)
            p.own = p.bytes;
        p.bytes += side_block_bytes(&p, k);
    }
    assert(p.own <= p.bytes);
    return p;
}

/* In place where both are used, but for all_to_all_v, where it is not allowed. */
struct side_places side_places_of(const struct membership *g, const struct commd_op *op)
{
    struct side_places p = {side_place(g, op, true), side_place(g, op, false), 0};

    assert(!is_p2p(op));
    p.bytes = MAX(p.send.bytes, p.recv.bytes);
    if (!p.send.n || !p.recv.n)
        return p;
    if (p.send.n == 1 && p.recv.n > 1) {
        p.send.at = p.recv.own;
    } else if (p.send.n > 1 && p.recv.n == 1) {
        p.recv.at = p.send.own;
    } else if (coll_table[op->coll].counted && coll_table[op->coll].window == WINDOW_CELLS) {
        p.recv.at = ALIGN_UP(p.send.bytes, (size_t)CACHELINE);
        p.bytes = p.recv.at + p.recv.bytes;
    }
    return p;
}

void side_span(const struct side_place *p, uintptr_t *ret_lo, uintptr_t *ret_hi)
{
    assert(p->n || !p->bytes);
    *ret_lo = (uintptr_t)p->base;
    *ret_hi = *ret_lo + p->bytes;
    if (!p->bytes || !p->blocks)
        return;
    *ret_lo = UINTPTR_MAX;
    *ret_hi = 0;
    for (unsigned k = 0; k < p->n; k++) {
        uintptr_t at = (uintptr_t)p->blocks[k];

        if (!side_block_bytes(p, k))
            continue;
        *ret_lo = MIN(*ret_lo, at);
        *ret_hi = MAX(*ret_hi, at + side_block_bytes(p, k));
    }
}
