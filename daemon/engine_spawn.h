/* engine_spawn.h - starting commd-engine: which program, with which environment. */
#ifndef COMMD_ENGINE_SPAWN_H
#define COMMD_ENGINE_SPAWN_H

#include <sys/types.h>

#include "daemon/conf.h"

struct engine_args {
    const char *path, *device, *fabric, *tls, *ports, *channels, *congestion, *node, *log;
};

/* The program to start: $COMMD_ENGINE, else transport.engine if it is set, else that of the
 * build tree we run from, else the installed one. */
void engine_path(const struct conf *conf, char ret_path[CONF_PATH_MAX]);
/* A copy of @environ without what is not the engine's, with what UCX needs. Free with
 * engine_env_free(). NULL: no memory. */
char **engine_env(char *const *environ);
char **engine_env_free(char **env);
/* Starts it with one end of a stream socket pair as descriptor 3; *ret_sock is the other end.
 * It dies with us. */
int engine_spawn(const struct engine_args *args, pid_t *ret_pid, int *ret_pidfd, int *ret_sock);

#endif
