/* keeper.h - commd --keep: a process that starts commd, keeps its descriptors, and starts it again
 * when it dies. For places where systemd does not do that. See keeper.c for the model. */
#ifndef COMMD_KEEPER_H
#define COMMD_KEEPER_H

#include <sys/types.h>

#include "shm/util/base.h"

struct keeper_config {
    char *const *argv; /* of commd */
    /* Each commd finds them in the store. -1: none; borrowed */
    int lock, log;
    /* commd serves for the first time. NULL: nobody wants to know. */
    void (*serves)(void *arg, pid_t pid);
    void *arg;
};

enum { KEEPER_EXIT_KILLED = 128 }; /* plus the signal that has killed commd, as of a shell */

#define KEEPER_LOCK "lock"
#define KEEPER_LOG  "log"
/* In commd's environment: how many died in a row before it, if that is so many that it waited. */
#define KEEPER_DEATHS "COMMD_DEATHS"

/* Returns commd's exit code when it is over. */
int keeper_run(const struct keeper_config *config);

#endif
