/* boards_priv.h - shared by boards.c and boards_adopt.c. */
#ifndef COMMD_BOARDS_PRIV_H
#define COMMD_BOARDS_PRIV_H

#include "daemon/memory/boards.h"

struct board_user {
    struct board_user *next; /* in its bucket */
    uint32_t uid;
    unsigned count, freeing;
    size_t bytes, freeing_bytes;
    struct board_list left;
};

/* ---- boards.c -------------------------------------------------------------------------------- */

/* The user, made if there is none. NULL: no memory. */
struct board_user *board_user_get(struct boards *boards, uint32_t uid);
/* Where the board of @group is in its bucket, or where a new one goes. */
struct board_entry **board_find(const struct boards *boards, uint64_t group);
/* NULL ok; always returns NULL. */
struct board_entry *board_entry_free(struct board_entry *entry);
void board_charge(struct boards *boards, struct board_entry *entry);
/* The group is closed here: the board waits until only commd holds it. */
void board_set_left(struct boards *boards, struct board_entry *entry);

#endif
