/* boards.h - the boards of this node's groups, by group id, and what their users hold of them. */
#ifndef COMMD_BOARDS_H
#define COMMD_BOARDS_H

#include <sys/queue.h>

#include "shm/board/board.h"
#include "shm/util/closer.h"

struct board_user;
struct board_job;
struct board_holder;

enum board_state {
    BOARD_OPEN,
    BOARD_LEFT,   /* its group is closed here; it waits until nobody else holds it */
    BOARD_FREEING /* a thread frees its pages */
};

struct board_entry {
    struct board_entry *next; /* in its bucket */
    uint64_t group;
    struct board_ctl *ctl; /* owned; NULL when the group is closed here */
    size_t bytes;
    unsigned watchers[3];         /* questions that want its operations timed so: recorder_timing */
    unsigned engine_life;         /* of the engine that was given it; 0: none */
    uint32_t counted;             /* of its operations, in boards->ops */
    struct recorder_totals *seen; /* owned: what boards->totals has of it; NULL: nothing yet */

    /* the rest is for boards.c */
    enum board_state state;
    struct board_user *user;      /* owned together with the user's other boards */
    int fd;                       /* owned: no other process has this description */
    struct board_job *job;        /* owned together with the thread */
    struct board_holder *holders; /* owned: the clients that were given it */
    unsigned nholders;
    TAILQ_ENTRY(board_entry) in_all, in_user; /* those that are not BOARD_OPEN */
};

TAILQ_HEAD(board_list, board_entry);

/* Of the whole node, and of one user. */
struct board_limits {
    uint64_t bytes, bytes_per_user;
    unsigned groups, groups_per_user;
};

enum { BOARD_USER_BUCKETS = 256 };

struct boards {
    struct board_entry **buckets; /* owned, with the entries: those of open groups */
    size_t nbuckets, bytes;       /* bytes and count: of all that are held, whatever their state */
    unsigned count;
    unsigned max_files;   /* descriptors are for others, too */
    size_t freeing_bytes; /* the part of bytes and count that is being freed */
    unsigned freeing;
    uint64_t ops;                  /* counted so far, of all groups that there were */
    struct recorder_totals totals; /* likewise, of all ranks of this node */
    struct board_list left; /* BOARD_LEFT and BOARD_FREEING, the next to be looked at first */
    struct board_user *users[BOARD_USER_BUCKETS]; /* owned: those who have boards */
    uint32_t *lives; /* owned: by client slot, how many clients have gone from it */
    unsigned nlives;
    bool no_lease;         /* this kernel does not say who holds a file */
    struct closer *closer; /* borrowed; set after boards_init(). NULL: all is done at once */
};

int boards_init(struct boards *boards, unsigned max_groups);
void boards_fini(struct boards *boards);
/* Whether @uid may have one of @bytes more; looks at what the user left, if need be. 0, or -EDQUOT
 * and a line in @why. */
int boards_room(struct boards *boards, uint32_t uid, size_t bytes,
                const struct board_limits *limits, char *why, size_t len);
/* Makes the board of @geom->group, of which there is none yet. *ret_fd is the caller's: a
 * description for members and engine. */
int boards_add(struct boards *boards, const struct board_geom *geom, uint32_t uid,
               struct board_entry **ret_entry, int *ret_fd);
/* NULL: there is none. */
struct board_entry *boards_find(const struct boards *boards, uint64_t group);
/* The client in @slot is given the board, as the @local-th member here. 0 or -ENOMEM. */
int boards_hand_out(struct boards *boards, struct board_entry *entry, unsigned local,
                    unsigned slot);
/* The slot that the @local-th member had; it may be another's by now. False: nobody had it. */
bool boards_member_slot(const struct board_entry *entry, unsigned local, unsigned *ret_slot);
/* The client in @slot is gone. */
void boards_client_gone(struct boards *boards, unsigned slot);
/* The group is closed here: the board is freed as soon as nobody else holds it. */
void boards_del(struct boards *boards, uint64_t group);
/* Frees what nobody holds any more of up to @n of the boards that were left. True: some are left
 * still, look again. */
bool boards_look(struct boards *boards, unsigned n);

/* Counts the operations of the groups in some buckets, from *@at on; false when that were the last
 * ones. A group's last look is at its end. */
bool boards_count(struct boards *boards, size_t *at);
/* The most bytes that one user holds. */
size_t boards_most(const struct boards *boards);

/* Who has any: fills at most @room of @uids, and returns how many there are. */
size_t boards_users(const struct boards *boards, uint32_t *uids, size_t room);
/* What @uid holds, in bytes and in boards; both are 0 for a user who is not known. */
void boards_held(const struct boards *boards, uint32_t uid, size_t *ret_bytes, unsigned *ret_count);

#endif
