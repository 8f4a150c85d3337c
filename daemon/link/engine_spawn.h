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
uint64_t program_settings(const struct program *program); /* as it says in its hello */
/* What commd has of a process that it has started, or had started. All owned, -1: none. */
struct engine_fds {
    int sock;   /* the control socket */
    int line;   /* by which the next commd finds the process: transport/process/control.c */
    int pidfd;  /* of our own child */
    int keeper; /* the connection to its launcher */
};
/* Starts the program as our child. @port: a listening socket for it; -1: it makes one. The child
 * dies with us, unless it is @kept for the next commd. */
int engine_spawn(const struct program *program, int port, bool kept, pid_t *ret_pid,
                 struct engine_fds *ret_fds);
/* Asks the launcher that listens at @launcher to start the program (transport/process/launcher.c),
 * and does not wait. Packets of struct launch_answer come from the launcher, and a packet that we
 * send there kills the process. */
int engine_launch(const struct program *program, int port, const char *launcher,
                  struct engine_fds *ret_fds);
/* Another control socket for a process that has @line. 0 or negative errno: it is gone. */
int engine_resume(int line, int *ret_sock);

#endif
