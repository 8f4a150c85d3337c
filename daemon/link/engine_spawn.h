/* engine_spawn.h - starting commd-engine or commd-gpu: which program, and by whom. */
#ifndef COMMD_ENGINE_SPAWN_H
#define COMMD_ENGINE_SPAWN_H

#include <sys/types.h>

#include "daemon/conf/conf.h"
#include "shm/launch/engine_exec.h"
#include "shm/launch/launch.h"

struct program {
    char path[CONF_PATH_MAX];
    launch_env_fn env;
    unsigned nwords;
    size_t len; /* 0: its arguments do not fit */
    char words[LAUNCH_ARGS_BYTES];
};

/* The program to start: $COMMD_ENGINE or $COMMD_GPU, else transport.engine or gpu.program if it is
 * set, else that of the build tree we run from, else the installed one. */
void program_engine(const struct conf *conf, const char *device, struct program *ret_program);
void program_gpu(const struct conf *conf, struct program *ret_program);
/* Starts it with one end of a stream socket pair as descriptor 3; *ret_sock is the other end.
 * @port: where it shall listen, -1: where it likes. It dies with us. */
int engine_spawn(const struct program *program, int port, pid_t *ret_pid, int *ret_pidfd,
                 int *ret_sock);
/* Asks the launcher that listens at @launcher to start one (transport/process/launcher.c). What
 * becomes of it is told on *ret_keeper, in packets of struct launch_answer; a packet to there kills
 * it. Does not wait. */
int engine_launch(const struct program *program, int port, const char *launcher, int *ret_keeper,
                  int *ret_sock);

#endif
