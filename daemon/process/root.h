/* root.h - is a process of uid 0 root of this machine? */
#ifndef COMMD_ROOT_H
#define COMMD_ROOT_H

#include "shm/util/base.h"

/* Is process @pid root of this machine? The caller knows that the process has uid 0 here. @pidfd:
 * of the process, borrowed; -1: there is none. True when the process is in commd's user namespace
 * and has CAP_SYS_ADMIN there. (A container has that capability only if it is to be like the
 * machine itself.) False also when the process cannot be looked at. */
bool root_of_machine(uint32_t pid, int pidfd);

#endif
