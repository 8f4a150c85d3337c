/* coll.c - the table of collectives that all programs share; see coll.h. */
#include "shm/model/coll.h"

const struct coll_info coll_table[COLL_COUNT] = {
    [COLL_BARRIER] = {"barrier", EXTENT_NONE, EXTENT_NONE, WINDOW_NONE},
    [COLL_ALL_REDUCE] = {"all_reduce", EXTENT_ONE, EXTENT_ONE, WINDOW_VECTOR, .reduces = true},
    [COLL_BROADCAST] = {"broadcast", EXTENT_NONE, EXTENT_ONE, WINDOW_VECTOR, .rooted = true},
    [COLL_ALL_GATHER] = {"all_gather", EXTENT_ONE, EXTENT_BLOCKS, WINDOW_BLOCKS},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", EXTENT_BLOCKS, EXTENT_ONE, WINDOW_BLOCKS,
                             .reduces = true},
    [COLL_REDUCE] = {"reduce", EXTENT_ONE, EXTENT_ONE_AT_ROOT, WINDOW_VECTOR, .rooted = true,
                     .reduces = true},
    [COLL_GATHER] = {"gather", EXTENT_ONE, EXTENT_BLOCKS_AT_ROOT, WINDOW_CELLS, .rooted = true},
    [COLL_SCATTER] = {"scatter", EXTENT_BLOCKS_AT_ROOT, EXTENT_ONE, WINDOW_CELLS, .rooted = true},
    [COLL_ALL_TO_ALL] = {"all_to_all", EXTENT_BLOCKS, EXTENT_BLOCKS, WINDOW_CELLS},
    [COLL_ALL_GATHER_V] = {"all_gather_v", EXTENT_ONE, EXTENT_BLOCKS, WINDOW_BLOCKS,
                           .counted = true},
    [COLL_REDUCE_SCATTER_V] = {"reduce_scatter_v", EXTENT_BLOCKS, EXTENT_ONE, WINDOW_BLOCKS,
                               .reduces = true, .counted = true},
    [COLL_GATHER_V] = {"gather_v", EXTENT_ONE, EXTENT_BLOCKS_AT_ROOT, WINDOW_CELLS, .rooted = true,
                       .counted = true},
    [COLL_SCATTER_V] = {"scatter_v", EXTENT_BLOCKS_AT_ROOT, EXTENT_ONE, WINDOW_CELLS,
                        .rooted = true, .counted = true},
    [COLL_ALL_TO_ALL_V] = {"all_to_all_v", EXTENT_BLOCKS, EXTENT_BLOCKS, WINDOW_CELLS,
                           .counted = true},
};

const char *coll_name(unsigned coll)
{
    return coll < COLL_COUNT ? coll_table[coll].name : "?";
}

int coll_from_name(const char *name)
{
    for (int i = 0; i < COLL_COUNT; i++) {
        if (!strcmp(coll_table[i].name, name))
            return i;
    }
    return -1;
}
