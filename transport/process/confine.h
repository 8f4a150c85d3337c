/* confine.h - what the engine may still reach of the machine. See confine.c. */
#ifndef COMMD_CONFINE_H
#define COMMD_CONFINE_H

#include "shm/util/base.h"

/* LOADING: reads libraries and what the kernel tells, writes to devices. SERVING: opens no file.
 * DRIVER: as LOADING, and what a driver of GPUs and NCCL need. */
enum confine_level { CONFINE_LOADING, CONFINE_SERVING, CONFINE_DRIVER };

/* For this thread and those it starts, for ever; each call can only take away. 0, or -errno:
 * -ENOSYS or -EOPNOTSUPP where the kernel has no Landlock. */
int confine(enum confine_level level);

#endif
