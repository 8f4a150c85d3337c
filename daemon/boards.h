/* boards.h - the boards of this node's groups, by group id. */
#ifndef COMMD_BOARDS_H
#define COMMD_BOARDS_H

#include "shm/board.h"

struct board_entry {
    struct board_entry *next; /* in its bucket */
    uint64_t group;
    struct board_ctl *ctl; /* owned */
    size_t bytes;
    unsigned engine_life; /* of the engine that was given it; 0: none */
};

struct boards {
    struct board_entry **buckets; /* owned, with the entries */
    size_t nbuckets, bytes;
    unsigned count;
};

int boards_init(struct boards *boards, unsigned max_groups);
void boards_fini(struct boards *boards);
/* Makes the board of @geom->group, of which there is none yet. *ret_fd is the caller's. */
int boards_add(struct boards *boards, const struct board_geom *geom,
               struct board_entry **ret_entry, int *ret_fd);
/* NULL: there is none. */
struct board_entry *boards_find(const struct boards *boards, uint64_t group);
void boards_del(struct boards *boards, uint64_t group);

#endif
