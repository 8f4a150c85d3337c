/* limits.h - resource limits that a process inherits from its parent. */
#ifndef COMMD_LIMITS_H
#define COMMD_LIMITS_H

#include "shm/util/base.h"

/* Lifts, as far as this process may, the limits that a service can run into. */
void limits_lift(void);
/* "1000 KiB of a file (ulimit -f), nice 5": what holds process @pid (0: this one) back. "":
 * nothing. */
void limits_left(pid_t pid, char *text, size_t size);

#endif
