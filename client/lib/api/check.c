/* check.c - the arguments of a collective. Every refusal says which argument is wrong and what
 * is allowed. Then nothing was started, and the group can be used. Which arguments a collective
 * takes stands in coll_table. */
#include "client/lib/api/check.h"

#include "client/lib/coll/work.h"

#include <stdio.h>

/* Copied: the compiler would clear a new one by an instruction that takes as long as a small
 * operation's way through libcommd. */
const struct commd_op op_nothing = {.size = sizeof op_nothing};

/* Ranges [a, a+n) and [b, b+m) share bytes. */
static bool overlap(const void *a, size_t n, const void *b, size_t m)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return n && m && x < y + m && y < x + n;
}

/* One of the two buffers of an operation, as the checks see it. */
struct side {
    const char *name;
    const void *base;
    const void *const *blocks;
    const size_t *counts; /* NULL: every block has op->count */
    bool used, many;      /* many: a block for each rank */
    size_t elements;      /* in all */
    size_t own;           /* before this rank's own block, if there are many */
};

static struct side side_of(const struct membership *g, const struct commd_op *op, bool send)
{
    const struct coll_info *info = &coll_table[op->coll];
    unsigned extent = send ? info->send : info->recv;
    bool root = info->rooted && (unsigned)op->root == g->rank;

    assert(op->coll >= 0 && op->coll < COLL_COUNT);
    return (struct side){
        .name = send ? "send" : "recv",
        .base = send ? op->send : op->recv,
        .blocks = send ? op->send_blocks : (const void *const *)op->recv_blocks,
        .counts = !info->counted ? NULL
                  : send         ? op->send_counts
                                 : op->recv_counts,
        .used = coll_at(extent, root),
        .many = coll_blocks(extent),
    };
}

static int too_large(const char *name, const struct side *s, size_t count)
{
    assert(s->used);
    return error_set(error_mine(), COMMD_E_INVALID, name, "%s: %s count %zu is too large", name,
                     s->name, count);
}

/* Blocks of which each has its own count or address: every one with elements must have an address.
 */
static int measure_blocks(const struct membership *g, const struct commd_op *op, const char *name,
                          size_t limit, struct side *s)
{
    assert(s->many && s->used && s->elements == 0);
    for (unsigned k = 0; k < g->board.world; k++) {
        size_t n = s->counts ? s->counts[k] : op->count;

        if (n > limit / g->board.world || s->elements + n > limit)
            return too_large(name, s, n);
        if (k == g->rank)
            s->own = s->elements;
        if (n && s->blocks && !s->blocks[k])
            return error_set(error_mine(), COMMD_E_INVALID, name,
                             "%s: %s_blocks[%u] is NULL, but that block has %zu elements", name,
                             s->name, k, n);
        s->elements += n;
    }
    return 0;
}

static int measure(const struct membership *g, const struct commd_op *op, const char *name,
                   struct side *s)
{
    size_t esize = dtype_size((unsigned)op->dtype), limit = SIZE_MAX / 8 / esize;
    unsigned world = g->board.world;

    if (!s->used)
        return 0;
    if (s->many && (s->counts || s->blocks)) {
        int r = measure_blocks(g, op, name, limit, s);

        if (r)
            return r;
    } else {
        size_t n = s->many ? op->count : op_single_count(g, op);

        if (n > limit / world)
            return too_large(name, s, n);
        s->own = s->many ? n * g->rank : 0;
        s->elements = s->many ? n * world : n;
    }
    if (s->elements && !s->base && !(s->many && s->blocks))
        return error_set(error_mine(), COMMD_E_INVALID, name,
                         "%s: %s buffer is NULL, but has %zu elements", name, s->name, s->elements);
    return 0;
}

/* Is one buffer where this collective may have it "in place" in the other? */
static bool in_place(const struct side *send, const struct side *recv, size_t esize)
{
    const uint8_t *s = send->base, *r = recv->base;

    assert(esize > 0 && send->used && recv->used);
    if (send->many == recv->many)
        return s == r && !send->counts;
    return send->many ? r == s + send->own * esize : s == r + recv->own * esize;
}

static int bad_overlap(const struct commd_op *op, const char *name, const struct side *send,
                       const struct side *recv)
{
    size_t esize = dtype_size((unsigned)op->dtype);

    /* lists of addresses are the caller's to keep apart: a look at all pairs would cost more than
     * many an operation */
    if (!send->used || !recv->used || (send->many && send->blocks) ||
        (recv->many && recv->blocks) || in_place(send, recv, esize) ||
        !overlap(send->base, send->elements * esize, recv->base, recv->elements * esize))
        return 0;
    return error_set(error_mine(), COMMD_E_INVALID, name,
                     "%s: send and receive buffers overlap; allowed: %s", name,
                     send->many && recv->many && send->counts ? "apart"
                     : send->many == recv->many               ? "in place (send == recv) or apart"
                     : send->many ? "in place (recv is the own block in send) or apart"
                                  : "in place (send is the own block in recv) or apart");
}

static int bad_counts(const struct membership *g, const struct commd_op *op, const char *name)
{
    const struct coll_info *info = &coll_table[op->coll];
    bool cells = info->window == WINDOW_CELLS;
    bool root = info->rooted && (unsigned)op->root == g->rank;
    size_t sent, expected;

    assert(info->counted);
    if (!op->send_counts &&
        (cells ? info->send == EXTENT_ONE || coll_at(info->send, root) : coll_blocks(info->send)))
        return error_set(error_mine(), COMMD_E_INVALID, name, "%s: send_counts must not be NULL",
                         name);
    if (!op->recv_counts &&
        (cells ? info->recv == EXTENT_ONE || coll_at(info->recv, root) : coll_blocks(info->recv)))
        return error_set(error_mine(), COMMD_E_INVALID, name, "%s: recv_counts must not be NULL",
                         name);
    if (!cells || (info->rooted && !root))
        return 0;
    /* what a rank has for itself comes from its own two arguments */
    sent = op->send_counts[info->send == EXTENT_ONE ? 0 : g->rank];
    expected = op->recv_counts[info->recv == EXTENT_ONE ? 0 : g->rank];
    if (sent != expected)
        return error_set(error_mine(), COMMD_E_INVALID, name,
                         "%s: rank %u sends itself %zu elements, but expects %zu", name, g->rank,
                         sent, expected);
    return 0;
}

static int bad_buffers(const struct membership *g, const struct commd_op *op, const char *name)
{
    const struct coll_info *info = &coll_table[op->coll];
    struct side send = side_of(g, op, true), recv = side_of(g, op, false);
    int r;

    assert(info->window != WINDOW_NONE);
    if (!info->counted && op->count == 0)
        return 0;
    if (info->counted) {
        r = bad_counts(g, op, name);
        if (r)
            return r;
    }
    r = measure(g, op, name, &send);
    if (r)
        return r;
    r = measure(g, op, name, &recv);
    return r ? r : bad_overlap(op, name, &send, &recv);
}

/* The common case of a vector, which small operations feel. */
static bool plain_vector(const struct commd_op *op)
{
    return op->coll == COMMD_ALL_REDUCE && op->send == op->recv && op->send &&
           op->count <= UINT32_MAX;
}

int check_memory(const struct commd_op *op)
{
    if (op->memory >= COMMD_MEMORY_ANY && op->memory <= COMMD_MEMORY_CUDA)
        return 0;
    return error_set(error_mine(), COMMD_E_INVALID, op_name(op),
                     "%s: unknown memory %d; allowed: 0 to %d, see enum commd_memory", op_name(op),
                     op->memory, COMMD_MEMORY_CUDA);
}

int check_op(const struct membership *g, const struct commd_op *op)
{
    const struct coll_info *info;
    int r;

    if (unlikely(op->coll < 0 || op->coll >= COLL_COUNT))
        return error_set(error_mine(), COMMD_E_INVALID, "run", "unknown collective %d", op->coll);
    info = &coll_table[op->coll];
    r = usable(g->ctx, info->name);
    if (unlikely(r) || info->window == WINDOW_NONE)
        return r;
    if (unlikely(op->dtype < 0 || op->dtype >= DTYPE_COUNT))
        return error_set(error_mine(), COMMD_E_INVALID, info->name,
                         "%s: unknown dtype %d; allowed: 0 (i8) to %d (bool), see enum commd_dtype",
                         info->name, op->dtype, DTYPE_COUNT - 1);
    if (info->reduces && unlikely(op->redop < 0 || op->redop >= REDOP_COUNT ||
                                  !redop_defined((unsigned)op->dtype, (unsigned)op->redop)))
        return error_set(error_mine(), COMMD_E_INVALID, info->name,
                         "%s: operator %s (%d) is not defined for %s", info->name,
                         redop_name((unsigned)op->redop), op->redop,
                         dtype_name((unsigned)op->dtype));
    if (unlikely(info->rooted && (op->root < 0 || (unsigned)op->root >= g->board.world)))
        return error_set(error_mine(), COMMD_E_INVALID, info->name, "%s: root %d; allowed: 0 to %u",
                         info->name, op->root, g->board.world - 1);
    return likely(plain_vector(op)) ? 0 : bad_buffers(g, op, info->name);
}
