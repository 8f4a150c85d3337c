/* registered_work.c - what a member does in the registered memory of others, once all have agreed.
 *
 *   all_reduce      reduces its slice of all inputs into all outputs
 *   reduce_scatter  reduces its block of all inputs into its output
 *   all_gather      copies all blocks into its output
 *   broadcast       copies the root's buffer
 *
 * Only all_reduce writes to others' memory. There the first and the last EDGE bytes of the vector
 * go through the window, and each member reduces them for itself: registered.c says why. An output
 * may be the same memory as an input, so all inputs of an element are read before it is written. */
#include "client/lib/coll/coll_steps.h"
#include "client/lib/coll/registered.h"

enum {
    EDGE = PLAN_PAGE,
    CHUNK = 256 << 10,     /* between two looks at the reasons to give up */
    CHUNK_MANY = 32 << 10, /* stays in the nearest cache until it has been copied to all */
    TURN = 1 << 20,        /* of one registered_work() */
};

size_t registered_extent(const struct run *r, bool recv)
{
    const struct coll_info *info = &coll_table[r->plan.coll];
    unsigned extent = recv ? info->recv : info->send;

    assert(extent <= EXTENT_BLOCKS_AT_ROOT && r->plan.esize > 0);
    if (extent == EXTENT_NONE)
        return 0;
    return r->plan.count * r->plan.esize * (coll_blocks(extent) ? board_of(r)->world : 1);
}

bool registered_shares(const struct run *r, unsigned m, bool recv)
{
    assert(m < r->group->board.nlocal);
    if (r->plan.coll == COLL_ALL_REDUCE)
        return true;
    return r->plan.coll == COLL_BROADCAST ? recv && m == r->plan.root : !recv;
}

bool registered_writes(const struct run *r)
{
    return r->plan.coll == COLL_ALL_REDUCE;
}

/* ---- all_reduce ------------------------------------------------------------------------------ */

static uint8_t *edges(const struct run *r, unsigned m)
{
    const struct board *b = board_of(r);

    return board_window(b, m, r->base, b->chunk);
}

void registered_put(struct run *r)
{
    uint8_t *to = edges(r, r->group->local);

    if (r->plan.coll != COLL_ALL_REDUCE)
        return;
    assert(registered_extent(r, false) >= 2 * EDGE);
    memcpy(to, r->send, EDGE);
    memcpy(to + EDGE, r->send + registered_extent(r, false) - EDGE, EDGE);
}

static void reduce_edges(struct run *r)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    uint8_t *out[2] = {r->recv, r->recv + registered_extent(r, true) - EDGE};
    uint64_t n = EDGE / p->esize;

    assert(b->nlocal <= BOARD_MAX_LOCAL && registered_extent(r, true) >= 2 * EDGE);
    for (unsigned e = 0; e < 2; e++) {
        const void *src[BOARD_MAX_LOCAL];

        for (unsigned m = 0; m < b->nlocal; m++)
            src[m] = edges(r, m) + e * EDGE;
        reduce_n(p->dtype, p->redop, out[e], src, b->nlocal, n);
        reduce_finish(p->dtype, p->redop, out[e], n, b->world);
    }
}

/* Two outputs of a sum are written at once; else the result is finished in one, while it is in the
 * cache, and copied to the others. */
static void all_reduce_chunk(struct run *r, uint64_t n)
{
    const struct plan *p = &r->plan;
    struct registered *d = r->registered;
    unsigned nlocal = board_of(r)->nlocal, me = r->group->local;
    size_t at = EDGE + d->next * p->esize;
    const void *src[BOARD_MAX_LOCAL];

    assert(nlocal >= 2 && nlocal <= BOARD_MAX_LOCAL);
    for (unsigned m = 0; m < nlocal; m++)
        src[m] = d->in[m] + at;
    if (nlocal == 2 && p->redop != REDOP_AVG) {
        reduce_n_dup(p->dtype, p->redop, d->out[me] + at, d->out[!me] + at, src, nlocal, n);
        return;
    }
    reduce_n(p->dtype, p->redop, d->out[me] + at, src, nlocal, n);
    reduce_finish(p->dtype, p->redop, d->out[me] + at, n, board_of(r)->world);
    for (unsigned m = 0; m < nlocal; m++)
        if (m != me)
            memcpy(d->out[m] + at, d->out[me] + at, n * p->esize);
}

/* ---- the others ------------------------------------------------------------------------------ */

static void reduce_scatter_chunk(struct run *r, uint64_t n)
{
    const struct plan *p = &r->plan;
    struct registered *d = r->registered;
    size_t at = (r->group->rank * p->count + d->next) * p->esize;
    uint8_t *out = r->recv + d->next * p->esize;
    const void *src[BOARD_MAX_LOCAL];

    assert(board_of(r)->nlocal <= BOARD_MAX_LOCAL && d->next + n <= p->count);
    for (unsigned m = 0; m < board_of(r)->nlocal; m++)
        src[m] = d->in[m] + at;
    reduce_n(p->dtype, p->redop, out, src, board_of(r)->nlocal, n);
    reduce_finish(p->dtype, p->redop, out, n, board_of(r)->world);
}

/* Block after block, the own one first, so that not all read from one at a time. */
static void all_gather_chunk(struct run *r, uint64_t n)
{
    const struct plan *p = &r->plan;
    struct registered *d = r->registered;
    unsigned k = (unsigned)((r->group->rank + d->next / p->count) % board_of(r)->world);
    uint64_t in_block = d->next % p->count;

    assert(in_block + n <= p->count && k < board_of(r)->nlocal);
    copy(r->recv + (k * p->count + in_block) * p->esize, d->in[k] + in_block * p->esize,
         n * p->esize);
}

static void broadcast_chunk(struct run *r, uint64_t n)
{
    size_t at = r->registered->next * r->plan.esize;

    assert(!is_root(r) && r->registered->out[r->plan.root]);
    copy(r->recv + at, r->registered->out[r->plan.root] + at, n * r->plan.esize);
}

/* ---- all of it ------------------------------------------------------------------------------- */

void registered_share_out(struct run *r)
{
    const struct plan *p = &r->plan;
    const struct board *b = board_of(r);
    struct registered *d = r->registered;

    assert(d && d->yes && d->stage < REGISTERED_WORK);
    d->next = 0;
    d->end = p->count;
    if (p->coll == COLL_ALL_REDUCE)
        plan_slice(p->count - 2 * EDGE / p->esize, b->nlocal, r->group->local, p->esize, &d->next,
                   &d->end);
    else if (p->coll == COLL_ALL_GATHER)
        d->end = p->count * b->world;
    else if (p->coll == COLL_BROADCAST && is_root(r))
        d->end = 0;
    assert(d->next <= d->end);
}

static uint64_t chunk_of(const struct run *r)
{
    const struct plan *p = &r->plan;
    const struct registered *d = r->registered;
    bool many = p->coll == COLL_ALL_REDUCE && board_of(r)->nlocal > 2;
    uint64_t n = MIN((many ? CHUNK_MANY : CHUNK) / p->esize, d->end - d->next);

    assert(d->next < d->end);
    if (p->coll == COLL_ALL_GATHER)
        n = MIN(n, p->count - d->next % p->count);
    return n;
}

static void do_chunk(struct run *r, uint64_t n)
{
    assert(n > 0 && r->registered->next + n <= r->registered->end);
    if (r->plan.coll == COLL_ALL_REDUCE)
        all_reduce_chunk(r, n);
    else if (r->plan.coll == COLL_REDUCE_SCATTER)
        reduce_scatter_chunk(r, n);
    else if (r->plan.coll == COLL_ALL_GATHER)
        all_gather_chunk(r, n);
    else
        broadcast_chunk(r, n);
    r->registered->next += n;
}

enum run_state registered_work(struct run *r)
{
    struct registered *d = r->registered;
    uint64_t turn = d->next + TURN / r->plan.esize;

    assert(d->stage == REGISTERED_WORK && d->next <= d->end);
    if (!d->began && r->plan.coll == COLL_ALL_REDUCE)
        reduce_edges(r);
    d->began = true;
    while (d->next < d->end && d->next < turn) {
        if (unlikely(run_hopeless(r)))
            return RUN_FAILED;
        do_chunk(r, chunk_of(r));
    }
    return d->next == d->end ? RUN_DONE : RUN_MOVED;
}
