/* arenas.h - the arenas (registered memory) of this node's clients: which client has which arena,
 * and which client may be given it. See arenas.c for the rules. */
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
    struct arena_user *users[ARENA_USER_BUCKETS]; /* owned: users with arenas */
    unsigned *counts;                             /* owned: arenas of each slot */
    /* limits */
    unsigned max; /* arenas of all users */
    unsigned
        max_per_user;   /* arenas of one user, and at most half of what the others leave of max */
    uint64_t max_bytes; /* of one user */
    struct closer *closer; /* borrowed; set after arenas_init(). NULL: files are closed at once */
};

/* @nslots: slots for clients. The limits follow from RLIMIT_NOFILE and this machine's memory. */
int arenas_init(struct arenas *arenas, unsigned nslots);
void arenas_fini(struct arenas *arenas);
/* Registers the arena and takes *@fd. CAUSE_NONE; else the cause, with a line in @why, and *@fd
 * stays the caller's. */
enum cause arenas_add(struct arenas *arenas, unsigned slot, uint32_t uid,
                      const struct msg_arena_add *msg, int *fd, char *why, size_t len);
/* Does nothing for an unknown arena: it may have been refused. */
void arenas_del(struct arenas *arenas, unsigned slot, uint64_t arena);
/* The client in @slot is gone. */
void arenas_drop(struct arenas *arenas, unsigned slot);
/* The users with arenas: fills at most @room of @uids, and returns how many users there are. */
size_t arenas_users(const struct arenas *arenas, uint32_t *uids, size_t room);
/* The bytes and the number of @uid's arenas. *ret_all: the bytes of all users. */
void arenas_held(const struct arenas *arenas, uint32_t uid, uint64_t *ret_bytes,
                 unsigned *ret_count, uint64_t *ret_all);
/* The bytes of all arenas of the client in @slot. */
uint64_t arenas_bytes(const struct arenas *arenas, unsigned slot);
/* The descriptor of @arena of the client in @slot, borrowed. -1: there is no such arena of @uid. */
int arenas_fd(const struct arenas *arenas, unsigned slot, uint32_t uid, uint64_t arena);

#endif
