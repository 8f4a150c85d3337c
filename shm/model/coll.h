/* coll.h - what each collective is, for all who must know: one row in coll_table[] says whose
 * buffers hold what, and how the data lie on the board. The steps that members take are in
 * client/lib/coll/coll_*.c, the schedules between nodes in schedules[] of plan.c. */
#ifndef COMMD_COLL_H
#define COMMD_COLL_H

#include "shm/util/base.h"

/* Values are part of the API and of the wire: append, never renumber. */
enum coll {
    COLL_BARRIER,
    COLL_ALL_REDUCE,
    COLL_BROADCAST,
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_REDUCE,
    COLL_GATHER,
    COLL_SCATTER,
    COLL_ALL_TO_ALL,
    COLL_ALL_GATHER_V,
    COLL_REDUCE_SCATTER_V,
    COLL_GATHER_V,
    COLL_SCATTER_V,
    COLL_ALL_TO_ALL_V,
    COLL_COUNT
};

/* What a rank's send or receive buffer holds. */
enum coll_extent {
    EXTENT_NONE,
    EXTENT_ONE, /* a vector, or one block */
    EXTENT_ONE_AT_ROOT,
    EXTENT_BLOCKS, /* a block for each rank */
    EXTENT_BLOCKS_AT_ROOT,
};

/* How a step's data lie in the windows of the board. */
enum coll_window {
    WINDOW_NONE,
    WINDOW_VECTOR, /* the same elements everywhere */
    WINDOW_BLOCKS, /* a block for each rank, in node order: the result is the same everywhere */
    WINDOW_CELLS,  /* a cell for each pair of ranks: what is for one rank only */
};

struct coll_info {
    const char *name;
    uint8_t send, recv; /* enum coll_extent */
    uint8_t window;     /* enum coll_window */
    bool rooted;
    bool reduces; /* has an operator */
    bool counted; /* _v: each block has a count of its own */
};

extern const struct coll_info coll_table[COLL_COUNT];

static inline bool coll_at(unsigned extent, bool root)
{
    return extent == EXTENT_ONE || extent == EXTENT_BLOCKS || (extent != EXTENT_NONE && root);
}

static inline bool coll_blocks(unsigned extent)
{
    return extent == EXTENT_BLOCKS || extent == EXTENT_BLOCKS_AT_ROOT;
}

/* Do all have something for the root, and not the root for all? */
static inline bool coll_to_root(unsigned coll)
{
    return coll_table[coll].rooted && coll_table[coll].send == EXTENT_ONE;
}

/* "all_reduce"; "?" for a value outside the table. */
const char *coll_name(unsigned coll);
int coll_from_name(const char *name); /* -1 when the name is unknown */

#endif
