/* tune.h - what of the cutting of operations on one node follows from the machine. Pure; the model
 * is in tune.c. Groups on several nodes are cut by constants (plan.h): their nodes must cut alike,
 * and need not be alike. */
#ifndef COMMD_TUNE_H
#define COMMD_TUNE_H

#include "shm/util/base.h"
#include "shm/util/topology.h"

enum {
    TUNE_CHUNK_MIN = 128 << 10, /* two pages of a slot are for registered_work.c */
    TUNE_DEPTH_MIN = 4,
    TUNE_DEPTH_MAX = 16, /* announcements in flight are not more */
};

struct tune {
    /* Part of the board's layout and of every plan: commd decides, once for all ranks. */
    uint32_t chunk; /* bytes of a slot of a window */
    uint32_t depth; /* slots of a window */
    /* From so many bytes on, read and written by a rank, its results go past the caches; 0: never.
     * What one rank does with its own output is no other's concern. */
    uint64_t around;
};

/* @machine: NULL: nothing is known. */
void tune_one_node(const struct topology *machine, unsigned nlocal, struct tune *ret_tune);
/* May a board say so? */
bool tune_valid(uint32_t chunk, uint32_t depth);

#endif
