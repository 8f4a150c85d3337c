/* engine_exec.c - the child gets three things: sockets (3 to 5), stderr for its log, and an
 * environment without secrets. The engine's environment has no foreign UCX_* variables; libucs
 * reads those in its constructor, so they must be right before exec (ucx_env.c). The environment of
 * commd-gpu has all variables that configure CUDA and NCCL, and those of UCX, which NCCL may use.
 * PR_SET_PDEATHSIG makes the kernel kill the child when its parent ends, in whatever way; not where
 * the next commd is to find it. The child
 * has a process group of its own: a Ctrl-C at the terminal is for commd, which then ends it. */
#include "shm/launch/engine_exec.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "shm/util/base.h"

static bool is_for_child(const char *var)
{
    static const char *const ours[] = {"COMMD_", "NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_",
                                       "CREDENTIALS_DIRECTORY="};

    for (unsigned i = 0; i < ARRAY_LEN(ours); i++)
        if (starts_with(var, ours[i]))
            return false;
    return true;
}

char **engine_env_free(char **env)
{
    for (size_t i = 0; env && env[i]; i++)
        free(env[i]);
    free(env);
    return NULL;
}

/* Without those that begin with @without, if that is not NULL, and with @more. */
static char **child_env(char *const *environ, const char *without, const char *const *more)
{
    _cleanup_(engine_env_freep) char **env = NULL;
    size_t n = 0, used = 0;

    while (environ[n])
        n++;
    for (size_t i = 0; more[i]; i++)
        n++;
    env = calloc(n + 1, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; environ[i]; i++)
        if (is_for_child(environ[i]) && !(without && starts_with(environ[i], without)) &&
            !(env[used++] = strdup(environ[i])))
            return NULL;
    for (size_t i = 0; more[i]; i++)
        if (!(env[used++] = strdup(more[i])))
            return NULL;
    return steal_ptr(env);
}

char **engine_env(char *const *environ)
{
    return child_env(environ, "UCX_", ucx_env);
}

char **gpu_env(char *const *environ)
{
    static const char *const nothing[] = {NULL};

    return child_env(environ, NULL, nothing);
}

/* Only async-signal-safe calls. */
_Noreturn void engine_exec(const char *path, char *const argv[], char *const env[],
                           const int fds[LAUNCH_FDS], pid_t parent)
{
    int up[LAUNCH_FDS];
    sigset_t none;

    if (parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1); /* it ended between fork and prctl */
    }
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < LAUNCH_FDS; i++) /* out of the way of each other */
        if ((up[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, ENGINE_FD + LAUNCH_FDS)) < 0 &&
            fds[i] >= 0)
            _exit(126);
    for (int i = 0; i < LAUNCH_FDS; i++)
        if (up[i] < 0)
            close(ENGINE_FD + i);
        else if (dup2(up[i], ENGINE_FD + i) < 0)
            _exit(126);
    syscall(SYS_close_range, ENGINE_FD + LAUNCH_FDS, ~0u, 0);
    execve(path, argv, env);
    _exit(127);
}
