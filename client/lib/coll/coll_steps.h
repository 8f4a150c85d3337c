/* coll_steps.h - what the files of collectives share: the addresses of the parts of a step.
 *
 * "pos": position of a rank in node order (ranks of node 0 first, ...). In a one-node group
 * pos, rank and member index are the same. */
#ifndef COMMD_CLIENT_COLL_H
#define COMMD_CLIENT_COLL_H

#include "client/lib/coll/run.h"
#include "shm/reduce/reduce.h"

static inline const struct board *board_of(const struct run *r)
{
    return &r->group->board;
}

static inline bool is_root(const struct run *r)
{
    return r->group->rank == r->plan.root;
}

static inline size_t payload_len(const struct run *r, uint32_t c)
{
    return plan_payload(&r->plan, &r->group->geom, c);
}

/* What local member @m contributes to step @c. */
static inline uint8_t *payload_of(const struct run *r, unsigned m, uint32_t c)
{
    const struct board *b = board_of(r);
    size_t len = payload_len(r, c);

    if (r->plan.pieces)
        return board_window(b, m, board_post(b, m, r->desc.seq)->pieces.first + c, len);
    if (r->plan.path == PATH_POST)
        return board_posted(b, m, r->desc.seq, len);
    return (uint8_t *)board_payload(b, m, r->base + c, len);
}

static inline uint8_t *my_payload(const struct run *r, uint32_t c)
{
    return payload_of(r, r->group->local, c);
}

static inline uint8_t *result_of(const struct run *r, uint32_t c)
{
    return board_result(board_of(r), r->base + c, plan_result(&r->plan, &r->group->geom, c));
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

/* Copies from memory of this process, or from a window, into memory of this process. */
static inline void copy(void *dst, const void *src, size_t n)
{
    if (n && dst != src)
        copy_out(dst, src, n);
}

/* results.c: a part of a result that may be more than the caches hold. */
void copy_large(struct run *r, void *dst, const void *src, size_t n);

/* The same of a part of the result. */
static inline void copy_result(struct run *r, void *dst, const void *src, size_t n)
{
    if (unlikely(r->plan.measured) && r->send != r->recv && n && dst != src)
        copy_large(r, dst, src, n);
    else
        copy(dst, src, n);
}

/* Copies into a window. If a rank is alone on its node only the engine reads its window, through
 * the kernel. Then writing past the caches loses more than it gains (1 MB between two nodes: 508 us
 * instead of 443, and 835 instead of 608 if the two cores are far apart). */
static inline void copy_to_window(const struct run *r, void *dst, const void *src, size_t n)
{
    if (r->group->board.nlocal > 1)
        copy_in(&r->group->way, dst, src, n);
    else if (n)
        memcpy(dst, src, n);
}

/* Is this rank's contribution scaled on its way into the window? Then it must not be taken from the
 * caller's memory. */
static inline bool is_scaled(const struct run *r)
{
    return r->plan.redop == REDOP_PREMUL_SUM;
}

/* Puts a contribution into the window. */
static inline void contribute(const struct run *r, void *to, const void *from, size_t n)
{
    if (unlikely(is_scaled(r)))
        reduce_scale(r->plan.dtype, to, from, r->scale, n / r->plan.esize);
    else
        copy_to_window(r, to, from, n);
}

/* Reduces @n elements at @offset of all members' contributions to step @c into @dst and, if not
 * NULL, @dst2; this member's own are at @own, if they are what it contributes. */
void reduce_members(const struct run *r, uint32_t c, void *dst, void *dst2, const uint8_t *own,
                    size_t offset, uint64_t n);

/* ---- coll_blocks.c --------------------------------------------------------------------------- */

void all_gather_put(struct run *r, uint32_t c);
void all_gather_own(struct run *r, uint32_t c);
void all_gather_get(struct run *r, uint32_t c);
void reduce_scatter_put(struct run *r, uint32_t c);
void reduce_scatter_reduce(struct run *r, uint32_t c);
void reduce_scatter_get(struct run *r, uint32_t c);
void cells_put(struct run *r, uint32_t c);
void cells_own(struct run *r, uint32_t c);
void cells_get(struct run *r, uint32_t c);

#endif
