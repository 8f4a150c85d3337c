/* launcher.h - commd-engine --launcher, commd-gpu --launcher: engines under a user of their own.
 * See launcher.c. */
#ifndef COMMD_LAUNCHER_H
#define COMMD_LAUNCHER_H

#include "shm/launch/engine_exec.h"

/* Serves the connections of @listen_fd until it is closed or a signal ends the process; an exit
 * code. @env makes the environment of what it starts: engine_env, gpu_env. */
int launcher_run(int listen_fd, launch_env_fn env);

#endif
