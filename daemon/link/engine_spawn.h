/* engine_spawn.h - how commd-engine or commd-gpu is started: which program, and by whom. */
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
    size_t len; /* of the words; 0: they do not fit */
    char words[LAUNCH_ARGS_BYTES];
};

/* The program to start. The first that exists of: $COMMD_ENGINE or $COMMD_GPU; transport.engine or
 * gpu.program, if set; the program of the build tree that this commd runs from; the installed one.
 */
void program_engine(const struct conf *conf, const char *device, struct program *ret_program);
void program_gpu(const struct conf *conf, struct program *ret_program);
/* Starts the program as our child. Its descriptor 3 is one end of a stream socket pair, *ret_sock
 * the other. @port: a listening socket for it; -1: it makes one. The child dies with us. */
int engine_spawn(const struct program *program, int port, pid_t *ret_pid, int *ret_pidfd,
                 int *ret_sock);
/* Asks the launcher that listens at @launcher to start the program (transport/process/launcher.c),
 * and does not wait. *ret_keeper is the connection to the launcher: packets of struct launch_answer
 * come from there, and a packet that we send there kills the process. */
int engine_launch(const struct program *program, int port, const char *launcher, int *ret_keeper,
                  int *ret_sock);

#endif
