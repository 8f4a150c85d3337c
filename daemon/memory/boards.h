/* boards.h - the boards of this node's groups, by group id, and how much each user holds. */
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
    BOARD_LEFT,   /* the group is closed here; the board waits until only commd holds it */
    BOARD_FREEING /* a thread frees the pages of the board */
};

struct board_entry {
    struct board_entry *next; /* in its bucket */
    uint64_t group;
    struct board_ctl *ctl; /* owned; NULL when the group is closed here */
    size_t bytes;
    unsigned watchers[3];         /* questions that want a timing, by enum recorder_timing */
    unsigned engine_life;         /* the life of the engine that has the board; 0: no engine */
    uint32_t counted;             /* its operations that boards->ops contains */
    struct recorder_totals *seen; /* owned: its part of boards->totals; NULL: nothing yet */

    /* The rest is for boards.c and boards_adopt.c. */
    enum board_state state;
    bool stored;
    struct board_user *user;      /* shared by all boards of the user */
    int fd;                       /* owned: no other process has this open description */
    struct board_job *job;        /* shared with the thread; BOARD_FREEING */
    struct board_holder *holders; /* owned: the clients that were given the board */
    unsigned nholders;
    TAILQ_ENTRY(board_entry) in_all, in_user; /* of boards->left and user->left; not BOARD_OPEN */
};

TAILQ_HEAD(board_list, board_entry);

/* The limits of the whole node, and those of one user. */
struct board_limits {
    uint64_t bytes, bytes_per_user;
    unsigned groups, groups_per_user;
};

enum { BOARD_USER_BUCKETS = 256 };

struct boards {
    struct board_entry **buckets; /* owned, with the boards of open groups in them */
    size_t nbuckets;
    size_t bytes, freeing_bytes;   /* of boards in any state; of those that are BOARD_FREEING */
    unsigned count, freeing;       /* how many boards; how many of them are BOARD_FREEING */
    unsigned max_files;            /* the part of RLIMIT_NOFILE that boards may take */
    uint64_t ops;                  /* operations so far, of all groups that there were */
    struct recorder_totals totals; /* of all operations so far, of all ranks of this node */
    struct board_list left; /* BOARD_LEFT and BOARD_FREEING; the next to look at comes first */
    struct board_user *users[BOARD_USER_BUCKETS]; /* owned: users with boards */
    uint32_t *lives; /* owned: by slot, how many clients of this slot are gone */
    unsigned nlives;
    bool no_lease; /* this kernel does not say who holds a file */
    /* Called when a board that boards_stored() has marked is not charged any more. NULL: not
     * wanted. */
    void (*forgotten)(uint64_t group, uint32_t uid);
    struct closer *closer; /* borrowed; set after boards_init(). NULL: all is done at once */
};

int boards_init(struct boards *boards, unsigned max_groups);
void boards_fini(struct boards *boards);
/* May @uid have one more board, of @bytes? If not, first looks whether boards that the user has
 * left can be freed. 0, or -EDQUOT and a line in @why. */
int boards_room(struct boards *boards, uint32_t uid, size_t bytes,
                const struct board_limits *limits, char *why, size_t len);
/* Makes the board of @geom->group. -EEXIST: there is one. *ret_fd is the caller's: the open
 * description for members and the engine. */
int boards_add(struct boards *boards, const struct board_geom *geom, uint32_t uid,
               struct board_entry **ret_entry, int *ret_fd);
/* The board of @geom->group as another commd has left it; takes *@fd on success, which is commd's
 * own open description of it. It is charged whatever its user may have now. 0, BOARD_E_BAD, or a
 * negative errno. */
int boards_adopt(struct boards *boards, const struct board_geom *geom, uint32_t uid, int *fd,
                 struct board_entry **ret_entry);
/* The same for a board whose group is not open any more: it is freed as soon as only commd holds
 * it.
 */
int boards_adopt_left(struct boards *boards, uint64_t group, uint32_t uid, int *fd);
/* A duplicate of the description for members. */
int boards_reopen(const struct board_entry *entry, int *ret_fd);
/* Somebody keeps commd's description for the next commd: until `forgotten`. */
void boards_stored(struct board_entry *entry);
/* commd's description, borrowed. */
int boards_own_fd(const struct board_entry *entry);
/* NULL: there is none. */
struct board_entry *boards_find(const struct boards *boards, uint64_t group);
/* Notes that the client in @slot is given the board of an open group, as member @local. 0 or
 * -ENOMEM.
 */
int boards_hand_out(struct boards *boards, struct board_entry *entry, unsigned local,
                    unsigned slot);
/* The slot that member @local had. Another client may have the slot by now. False: no client was
 * given the board as this member. */
bool boards_member_slot(const struct board_entry *entry, unsigned local, unsigned *ret_slot);
/* The client in @slot is gone. */
void boards_client_gone(struct boards *boards, unsigned slot);
/* The group is closed here. Its board is freed as soon as only commd holds it. */
void boards_del(struct boards *boards, uint64_t group);
/* Looks at up to @n boards that were left, and frees those that only commd holds. True: there are
 * more, look again. */
bool boards_look(struct boards *boards, unsigned n);

/* Counts the operations of the groups in some buckets, from *@at on. False: those were the last
 * buckets. A group is counted once more when it closes. */
bool boards_count(struct boards *boards, size_t *at);
/* The most bytes that one user holds. */
size_t boards_most(const struct boards *boards);

/* The users with boards: fills at most @room of @uids, and returns how many users there are. */
size_t boards_users(const struct boards *boards, uint32_t *uids, size_t room);
/* The bytes and the number of @uid's boards; both are 0 for an unknown user. */
void boards_held(const struct boards *boards, uint32_t uid, size_t *ret_bytes, unsigned *ret_count);

#endif
