/* confine.h - what the engine may still reach of the machine. See confine.c. */
#ifndef COMMD_CONFINE_H
#define COMMD_CONFINE_H

#include "shm/util/base.h"

/* LOADING: reads libraries and what the kernel tells, writes to devices. SERVING: opens no file. */
enum confine_level { CONFINE_LOADING, CONFINE_SERVING };

/* For this thread and those it starts, for ever; each call can only take away. 0, or -errno:
 * -ENOSYS or -EOPNOTSUPP where the kernel has no Landlock. */
int confine(enum confine_level level);

#endif
