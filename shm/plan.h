/* plan.h - how an operation is cut into steps: a pure function of its description and the
 * group's geometry, computed alike by every member and engine of the group.
 *
 * In each step a member announces its contribution; members reduce (large reductions), the
 * engine exchanges with the other nodes (groups on several nodes), members take the result.
 * Within a step the result window is divided by node, or by rank in node order, see
 * plan_segment(). */
#ifndef COMMD_PLAN_H
#define COMMD_PLAN_H

#include "shm/dtype.h"

enum {
    /* Bytes of a window or result slot: on one node what stays in cache; across nodes so much that
     * its parts go zero-copy (fabric_ucx: above 128 KiB), which is worth a third of the time of
     * 16 MB between two nodes. */
    PLAN_CHUNK = 256 << 10,
    PLAN_CHUNK_NET = 512 << 10,
    PLAN_CHUNK_MIN = 128 << 10, /* across nodes medium sizes are cut finer, to overlap */
    PLAN_MAX_WORLD = 16384, /* a step must hold one 8-byte element of each rank */
    PLAN_DEPTH_ONE = 4,     /* window slots in a one-node group: what stays in cache */
    PLAN_DEPTH_NET = 8,     /* across nodes: chunks in flight on the wire */
    PLAN_SMALL = 8 << 10,   /* payload of a small operation */
};

struct op_desc;

static inline size_t plan_chunk(unsigned nnodes)
{
    return nnodes > 1 ? PLAN_CHUNK_NET : PLAN_CHUNK;
}

struct plan {
    uint8_t coll, dtype, redop;
    bool small;      /* the engine (or each member, on one node) reduces all contributions
                        itself: one synchronisation; always one step */
    bool reduces;    /* members reduce their slice of each step cooperatively */
    uint32_t root;
    uint32_t steps;
    size_t esize;
    uint64_t count;
    uint64_t unit;   /* elements per step: of the vector (all_reduce, broadcast) or of each
                        rank's block (all_gather, reduce_scatter) */
};

/* Geometry that plans depend on. node_start[n]..node_start[n+1] are the seats of node n: ranks
 * are seated node by node, ascending within a node. */
struct plan_geom {
    uint32_t world, nnodes, me, nlocal;
    const uint32_t *node_start; /* nnodes + 1 entries */
};

/* false if the description is not a valid operation of this group (hostile or a bug). */
bool plan_make(const struct op_desc *desc, const struct plan_geom *geom, struct plan *ret_plan);

/* Elements of step @c: of the vector or of each block; less than unit in the last step. */
static inline uint64_t plan_step_count(const struct plan *p, uint32_t c)
{
    uint64_t done = (uint64_t)c * p->unit;
    return MIN(p->unit, p->count - done);
}

/* Slice of @n elements that part @i of @parts handles: contiguous, multiples of a cache line
 * of elements but for the last. */
void plan_slice(uint64_t n, unsigned parts, unsigned i, size_t esize, uint64_t *ret_lo,
                uint64_t *ret_hi);
/* Bytes [lo, hi) of the result window that belong to the network segments [seg, seg + nseg) in
 * step @c. Segments: nodes; a broadcast has one. */
void plan_segment(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned seg,
                  unsigned nseg, size_t *ret_lo, size_t *ret_hi);

#endif
