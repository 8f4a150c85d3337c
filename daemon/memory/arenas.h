/* arenas.h - memory of clients in which members of their groups may work: which client has which,
 * and who may be given it. See arenas.c for the rules. */
#ifndef COMMD_ARENAS_H
#define COMMD_ARENAS_H

#include "shm/util/closer.h"
#include "shm/proto/msg.h"

struct arena_entry;
struct arena_user;

enum { ARENAS_PER_CLIENT = 256, ARENA_USER_BUCKETS = 256 };

struct arenas {
    struct arena_entry **slots; /* owned, with the entries: lists by client slot */
    unsigned nslots, count;
    struct arena_user *users[ARENA_USER_BUCKETS]; /* owned: those who have arenas */
    unsigned *counts;                             /* owned: of each slot */
    /* limits: files over all users; of one user files (and never more than half of what the others
     * leave), and bytes together */
    unsigned max, max_per_user;
    uint64_t max_bytes;
    struct closer *closer; /* borrowed; set after arenas_init(). NULL: files are closed at once */
};

/* @nslots: of clients. The limits follow from this machine. */
int arenas_init(struct arenas *arenas, unsigned nslots);
void arenas_fini(struct arenas *arenas);
/* Registers @fd and takes it over. CAUSE_NONE, or why not, with a line in @why; then @fd is the
 * caller's still. */
enum cause arenas_add(struct arenas *arenas, unsigned slot, uint32_t uid,
                      const struct msg_arena_add *msg, int *fd, char *why, size_t len);
/* Unknown ones are fine: it may have been refused. */
void arenas_del(struct arenas *arenas, unsigned slot, uint64_t arena);
/* The client in @slot is gone. */
void arenas_drop(struct arenas *arenas, unsigned slot);
/* Who has any: fills at most @room of @uids, and returns how many there are. */
size_t arenas_users(const struct arenas *arenas, uint32_t *uids, size_t room);
/* What @uid has; *ret_all: the bytes of all users. */
void arenas_held(const struct arenas *arenas, uint32_t uid, uint64_t *ret_bytes,
                 unsigned *ret_count, uint64_t *ret_all);
/* Of the client in @slot together. */
uint64_t arenas_bytes(const struct arenas *arenas, unsigned slot);
/* The descriptor of an arena of the client in @slot, which belongs to @uid; borrowed. -1: there is
 * no such arena. */
int arenas_fd(const struct arenas *arenas, unsigned slot, uint32_t uid, uint64_t arena);

#endif
