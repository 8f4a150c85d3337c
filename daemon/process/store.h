/* store.h - descriptors that outlive this process. Whoever starts commd again, systemd or a keeper
 * (keeper.h), keeps duplicates of them, each under a name, and hands them to the next commd. */
#ifndef COMMD_STORE_H
#define COMMD_STORE_H

#include "shm/util/base.h"

enum { STORE_NAME_MAX = 48 };          /* with the NUL */
enum { STORE_MAX = 4096 };             /* FileDescriptorStoreMax= of systemd/commd.service.in */
enum { STORE_NAMES_MAX = 112 * 1024 }; /* bytes of all names, each with a colon: see store.c */
enum { STORE_FIRST_FD = 3 };           /* the number of the first descriptor that is handed over */

/* Letters, digits, '.', '-' and '_', and not too many. */
bool store_name_is_good(const char *name);

/* Takes over what the commd before has left; call it before anything is opened. */
void store_begin(void);
void store_end(void);
/* Is there somebody who keeps descriptors? Without one nothing below does anything. */
bool store_is_kept(void);

/* Has the manager keep a duplicate of @fd instead of what it kept as @name. 0, also where nobody
 * keeps anything; else a negative errno, and nothing is kept as @name: -ENOSPC if too much is kept
 * already. */
int store_put(const char *name, int fd);
/* The manager forgets @name. What was inherited as @name and not taken is closed. */
void store_drop(const char *name);

/* The inherited descriptor of that name, now the caller's; the manager keeps its duplicate. -1:
 * none. */
int store_take(const char *name);
/* The same for the first descriptor that fits, whatever its name is. Sockets that a socket unit has
 * opened come under names that an administrator chose. */
int store_take_fitting(bool (*fits)(int fd, const void *arg), const void *arg);
/* Goes through the names that were inherited and not taken: begin with *@io = 0. NULL: no more. The
 * name is valid until the next call of this file. */
const char *store_next(unsigned *io);

/* What was inherited and not taken until now is not wanted: of an older or a newer commd, or of
 * another configuration. */
void store_drop_rest(void);

#endif
