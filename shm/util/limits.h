/* limits.h - resource limits that a process has from who started it. */
#ifndef COMMD_LIMITS_H
#define COMMD_LIMITS_H

#include "shm/util/base.h"

/* As far as this process may: those that a service can run into are gone. */
void limits_lift(void);
/* "1000 KiB of a file (ulimit -f), nice 5": what holds process @pid (0: this one) back. "":
 * nothing. */
void limits_left(pid_t pid, char *text, size_t size);

#endif
