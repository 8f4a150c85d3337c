/* plan.c - cutting operations into steps. Pure. See plan.h. */
#include "shm/plan.h"

#include "shm/board.h"

static bool desc_valid(const struct op_desc *d, const struct plan_geom *g)
{
    size_t bytes;

    if (d->coll >= COLL_COUNT)
        return false;
    if (d->coll == COLL_BARRIER)
        return d->count == 0;
    if (d->dtype >= DTYPE_COUNT)
        return false;
    /* the whole vector, all blocks together, must be addressable */
    if (mul_overflows(d->count, dtype_size(d->dtype) * g->world, &bytes) || bytes > SIZE_MAX / 4)
        return false;
    switch ((enum coll)d->coll) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE_SCATTER:
        return d->redop < REDOP_COUNT && redop_defined(d->dtype, d->redop);
    case COLL_BROADCAST:
        return d->root < g->world;
    case COLL_ALL_GATHER:
    case COLL_BARRIER:
    case COLL_COUNT:
        break;
    }
    return true;
}

bool plan_make(const struct op_desc *d, const struct plan_geom *g, struct plan *ret_plan)
{
    struct plan p = {
        .coll = d->coll, .dtype = d->dtype, .redop = d->redop, .root = d->root, .count = d->count,
    };
    uint64_t blocks = 1, per_step, bytes, steps;
    size_t chunk;

    if (!desc_valid(d, g))
        return false;
    p.esize = d->coll == COLL_BARRIER ? 1 : dtype_size(d->dtype);
    if (d->coll == COLL_ALL_GATHER || d->coll == COLL_REDUCE_SCATTER)
        blocks = g->world;
    bytes = d->count * p.esize * blocks;

    /* One synchronisation pays while every member (or the engine) can read all contributions
     * faster than two more hand-overs take: measured up to PLAN_SMALL for a few members. */
    switch ((enum coll)d->coll) {
    case COLL_BARRIER:
        p.small = true;
        break;
    case COLL_ALL_REDUCE:
        /* nlocal differs between nodes, and all nodes must cut alike: it counts on one only */
        p.small = bytes <= (g->nnodes > 1 || g->nlocal <= 4 ? PLAN_SMALL : PLAN_SMALL / 4);
        p.reduces = !p.small;
        break;
    case COLL_BROADCAST:
    case COLL_ALL_GATHER:
        p.small = g->nnodes > 1 && bytes <= PLAN_SMALL;
        break;
    case COLL_REDUCE_SCATTER:
        p.reduces = g->nnodes > 1;
        break;
    case COLL_COUNT:
        return false;
    }

    chunk = plan_chunk(g->nnodes);
    if (g->nnodes > 1)
        chunk = MAX((size_t)PLAN_CHUNK_MIN, MIN(chunk, bytes / PLAN_DEPTH_NET));
    per_step = MAX(chunk / p.esize / blocks, (uint64_t)1);
    /* whole cache lines per block where there is room for that */
    if (per_step * p.esize >= 4 * CACHELINE)
        per_step -= per_step % (CACHELINE / p.esize);
    p.unit = MIN(per_step, MAX(d->count, (uint64_t)1));
    steps = d->count ? (d->count + p.unit - 1) / p.unit : 1;
    /* step counters are compared across a wrap of 2^31 */
    if (steps > INT32_MAX / 2)
        return false;
    p.steps = (uint32_t)steps;
    *ret_plan = p;
    return true;
}

void plan_slice(uint64_t n, unsigned parts, unsigned i, size_t esize, uint64_t *ret_lo,
                uint64_t *ret_hi)
{
    uint64_t line = CACHELINE / esize;
    uint64_t per = ALIGN_UP((n + parts - 1) / parts, line);

    *ret_lo = MIN(per * i, n);
    *ret_hi = MIN(per * (i + 1), n);
}

void plan_segment(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned seg,
                  unsigned nseg, size_t *ret_lo, size_t *ret_hi)
{
    uint64_t n = plan_step_count(p, c), lo, hi, unused;

    switch ((enum coll)p->coll) {
    case COLL_ALL_GATHER:
    case COLL_REDUCE_SCATTER:
        *ret_lo = g->node_start[seg] * n * p->esize;
        *ret_hi = g->node_start[seg + nseg] * n * p->esize;
        return;
    case COLL_ALL_REDUCE:
        if (nseg == 0) {
            *ret_lo = *ret_hi = 0;
            return;
        }
        if (p->small) { /* the schedule exchanges whole vectors */
            *ret_lo = 0;
            *ret_hi = n * p->esize;
            return;
        }
        plan_slice(n, g->nnodes, seg, p->esize, &lo, &unused);
        plan_slice(n, g->nnodes, seg + nseg - 1, p->esize, &unused, &hi);
        *ret_lo = lo * p->esize;
        *ret_hi = hi * p->esize;
        return;
    case COLL_BROADCAST:
        *ret_lo = 0;
        *ret_hi = nseg ? n * p->esize : 0;
        return;
    case COLL_BARRIER:
    case COLL_COUNT:
        break;
    }
    *ret_lo = *ret_hi = 0;
}
