/* root.h - is a process of uid 0 root of this machine? */
#ifndef COMMD_ROOT_H
#define COMMD_ROOT_H

#include "shm/util/base.h"

/* @pid is of uid 0 as the kernel tells it here; @pidfd is its own, borrowed, -1: not to be had. It
 * is when it is in the user namespace of commd, and has CAP_SYS_ADMIN there, which containers have
 * only when they are to be as the machine itself. False, too, when it cannot be looked at. */
bool root_of_machine(uint32_t pid, int pidfd);

#endif
