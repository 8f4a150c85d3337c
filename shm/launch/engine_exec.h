/* engine_exec.h - how a forked child becomes commd-engine or commd-gpu, for whoever forks it. */
#ifndef COMMD_ENGINE_EXEC_H
#define COMMD_ENGINE_EXEC_H

#include <sys/types.h>

#include "shm/launch/launch.h"

/* Its control socket; where it listens, if who starts it has kept that of the one before; its end
 * of the line (transport/process/control.c). */
enum { ENGINE_FD = 3, ENGINE_PORT_FD, ENGINE_LINE_FD };

/* "NAME=value" strings, NULL at the end: what must be in the environment before a process
 * that links UCX is exec'ed. */
extern const char *const ucx_env[];

/* A copy of @environ without what is not the child's: the engine's, with what UCX needs, or
 * commd-gpu's. Free with engine_env_free(). NULL: no memory. */
typedef char **(*launch_env_fn)(char *const *environ);
char **engine_env(char *const *environ);
char **gpu_env(char *const *environ);
char **engine_env_free(char **env);

static inline void engine_env_freep(char ***env) /* for _cleanup_() */
{
    *env = engine_env_free(*env);
}

/* In the child of @parent, with which it dies, if that is not 0: @fds[0] becomes ENGINE_FD, and
 * those behind it, if not -1, ENGINE_PORT_FD and ENGINE_LINE_FD; everything else is closed. */
_Noreturn void engine_exec(const char *path, char *const argv[], char *const env[],
                           const int fds[LAUNCH_FDS], pid_t parent);

#endif
