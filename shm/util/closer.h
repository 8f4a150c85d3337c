/* closer.h - threads that close descriptors, so that a loop never has to. See closer.c. */
#ifndef COMMD_CLOSER_H
#define COMMD_CLOSER_H

#include "shm/util/base.h"

struct closer;

/* Starts the first thread: not before a process has become the one that works. */
int closer_new(struct closer **ret);
/* Does not wait: what is left is done by the threads, as long as the process lives. NULL ok; always
 * returns NULL. */
struct closer *closer_free(struct closer *closer);

/* Each may be given a NULL closer, and then does its work at once.
 *
 * Closes @fd, in the lane of @uid: one after the other, and in no other user's way. 0, or -ENOMEM:
 * @fd was closed here and now. */
int closer_fd(struct closer *closer, uint32_t uid, int fd);
/* The same for a socket: whoever is at its other end learns at once that nobody is here. */
int closer_sock(struct closer *closer, uint32_t uid, int fd);
/* Calls @fn(@arg) there. 0, or -ENOMEM: it was called here and now. */
int closer_call(struct closer *closer, uint32_t uid, void (*fn)(void *), void *arg);
/* How many jobs of @uid are not done yet. */
unsigned closer_pending(struct closer *closer, uint32_t uid);

/* The last descriptors that the process may have are for what waits to be closed: nothing is kept
 * that has this number or a higher one. */
int closer_reserve(void);
/* May another message with descriptors of @uid be received? If there were no room for them, the
 * kernel would close them at once, in the thread that receives. */
bool closer_room(struct closer *closer, uint32_t uid);

#endif
