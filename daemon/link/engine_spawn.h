/* engine_spawn.h - starting commd-engine: which program, and by whom. */
#ifndef COMMD_ENGINE_SPAWN_H
#define COMMD_ENGINE_SPAWN_H

#include <sys/types.h>

#include "daemon/conf/conf.h"

struct engine_args {
    const char *path, *device, *fabric, *tls, *ports, *channels, *congestion, *node, *log;
};

/* The program to start: $COMMD_ENGINE, else transport.engine if it is set, else that of the
 * build tree we run from, else the installed one. */
void engine_path(const struct conf *conf, char ret_path[CONF_PATH_MAX]);
/* Starts it with one end of a stream socket pair as descriptor 3; *ret_sock is the other end.
 * It dies with us. */
int engine_spawn(const struct engine_args *args, pid_t *ret_pid, int *ret_pidfd, int *ret_sock);
/* Asks the launcher that listens at @launcher to start one (transport/process/launcher.c). What
 * becomes of it is told on *ret_keeper, in packets of struct launch_answer; a packet to there kills
 * it. Does not wait. */
int engine_launch(const struct engine_args *args, const char *launcher, int *ret_keeper,
                  int *ret_sock);

#endif
