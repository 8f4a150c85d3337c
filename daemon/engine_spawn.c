/* engine_spawn.c - fork and exec of commd-engine.
 *
 * The child gets three things from us: a socket (3), stderr for its log, and an environment
 * without secrets and without foreign UCX_* variables; libucs reads those in its constructor,
 * so they must be right before exec. PR_SET_PDEATHSIG makes the kernel kill it when commd is
 * gone however that came about; the engine itself also ends when its socket closes. It has a
 * process group of its own: a Ctrl-C at the terminal is for commd, which then ends it. */
#include "daemon/engine_spawn.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "transport/fabric_ucx.h"

enum { ENGINE_FD = 3 };

static bool is_set(const struct conf *conf, const char *key)
{
    struct conf_row row;

    for (unsigned i = 0; conf_row(conf, i, &row); i++)
        if (strcmp(row.key, key) == 0)
            return strcmp(row.source, "default") != 0;
    return false;
}

void engine_path(const struct conf *conf, char ret_path[CONF_PATH_MAX])
{
    /* in a build tree: of commd as it is linked, and as libtool keeps it in .libs. An installed one
     * that happens to lie in a build tree must not take that tree's, which may be newer. */
    static const char *const beside[] = {"../transport/commd-engine", "commd-engine"};
    static const char *const below[] = {"../../transport/commd-engine"};
    const char *const *try = beside;
    unsigned ntry = ARRAY_LEN(beside);
    const char *env = getenv("COMMD_ENGINE");
    char exe[CONF_PATH_MAX];
    ssize_t n;

    snprintf(ret_path, CONF_PATH_MAX, "%s", env && *env ? env : conf->engine);
    if ((env && *env) || is_set(conf, "transport.engine"))
        return;
    n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n <= 0)
        return;
    exe[n] = '\0';
    dirname(exe);
    if (strlen(exe) > 6 && !strcmp(exe + strlen(exe) - 6, "/.libs")) {
        try = below;
        ntry = ARRAY_LEN(below);
    }
    for (unsigned i = 0; i < ntry; i++) {
        char path[CONF_PATH_MAX];

        if (snprintf(path, sizeof(path), "%s/%s", exe, try[i]) < (int)sizeof(path) &&
            access(path, X_OK) == 0) {
            snprintf(ret_path, CONF_PATH_MAX, "%s", path);
            return;
        }
    }
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_for_engine(const char *var)
{
    static const char *const ours[] = {
        "UCX_", "COMMD_", "NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY="};

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

static void env_freep(char ***env)
{
    *env = engine_env_free(*env);
}

char **engine_env(char *const *environ)
{
    _cleanup_(env_freep) char **env = NULL;
    size_t n = 0, used = 0;

    while (environ[n])
        n++;
    for (size_t i = 0; fabric_ucx_env[i]; i++)
        n++;
    env = calloc(n + 1, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; environ[i]; i++)
        if (is_for_engine(environ[i]) && !(env[used++] = strdup(environ[i])))
            return NULL;
    for (size_t i = 0; fabric_ucx_env[i]; i++)
        if (!(env[used++] = strdup(fabric_ucx_env[i])))
            return NULL;
    return steal_ptr(env);
}

/* In the child: only async-signal-safe calls. */
static _Noreturn void engine_exec(const struct engine_args *args, int sock, pid_t parent,
                                  char **env)
{
    char fd[] = {'0' + ENGINE_FD, '\0'};
    char *argv[] = {"commd-engine",
                    "--fd",
                    fd,
                    "--device",
                    (char *)args->device,
                    "--fabric",
                    (char *)args->fabric,
                    "--tls",
                    (char *)args->tls,
                    "--ports",
                    (char *)args->ports,
                    "--channels",
                    (char *)args->channels,
                    "--congestion",
                    (char *)args->congestion,
                    "--node",
                    (char *)args->node,
                    "--log",
                    (char *)args->log,
                    NULL};
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* commd ended between fork and prctl */
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (sock == ENGINE_FD ? fcntl(sock, F_SETFD, 0) : dup2(sock, ENGINE_FD) < 0)
        _exit(126);
    syscall(SYS_close_range, ENGINE_FD + 1, ~0u, 0);
    execve(args->path, argv, env);
    _exit(127);
}

int engine_spawn(const struct engine_args *args, pid_t *ret_pid, int *ret_pidfd, int *ret_sock)
{
    _cleanup_(close_fdp) int ours = -1, theirs = -1;
    _cleanup_(env_freep) char **env = engine_env(environ);
    int pair[2], pidfd;
    pid_t pid, parent = getpid();

    if (!env)
        return -ENOMEM;
    if (access(args->path, X_OK)) /* a clear answer, which exec's exit status is not */
        return -errno;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return -errno;
    ours = pair[0];
    theirs = pair[1];
    if (fcntl(ours, F_SETFL, O_NONBLOCK))
        return -errno;
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        engine_exec(args, theirs, parent, env);
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        int r = -errno;

        kill(pid, SIGKILL); /* not reaped yet, so the pid is still its own */
        waitpid(pid, NULL, 0);
        return r;
    }
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    *ret_sock = steal_fd(&ours);
    return 0;
}
