/* engine_spawn.c - starting commd-engine: by fork and exec (shm/launch/engine_exec.c), or by a
 * launcher that runs under another user (transport/process/launcher.c). Either way one end of a
 * socket pair becomes its control socket, and it ends when that socket closes. */
#include "daemon/link/engine_spawn.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "shm/launch/launch.h"
#include "shm/launch/engine_exec.h"

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
    if ((env && *env) || conf_is_given(conf, "transport.engine"))
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

static void fill_argv(const struct engine_args *args, const char *fd, char *argv[LAUNCH_ARGS])
{
    const char *const words[] = {"commd-engine",
                                 "--fd",
                                 fd,
                                 "--device",
                                 args->device,
                                 "--fabric",
                                 args->fabric,
                                 "--tls",
                                 args->tls,
                                 "--ports",
                                 args->ports,
                                 "--channels",
                                 args->channels,
                                 "--congestion",
                                 args->congestion,
                                 "--node",
                                 args->node,
                                 "--log",
                                 args->log,
                                 NULL};

    _Static_assert(ARRAY_LEN(words) <= LAUNCH_ARGS, "the launcher takes them too");
    memcpy(argv, words, sizeof(words));
}

/* The two ends of an engine's control socket. */
static int control_pair(int *ret_ours, int *ret_theirs)
{
    _cleanup_(close_fdp) int ours = -1, theirs = -1;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return -errno;
    ours = pair[0];
    theirs = pair[1];
    if (fcntl(ours, F_SETFL, O_NONBLOCK))
        return -errno;
    *ret_ours = steal_fd(&ours);
    *ret_theirs = steal_fd(&theirs);
    return 0;
}

int engine_spawn(const struct engine_args *args, pid_t *ret_pid, int *ret_pidfd, int *ret_sock)
{
    _cleanup_(close_fdp) int ours = -1, theirs = -1;
    _cleanup_(engine_env_freep) char **env = engine_env(environ);
    char fd[] = {'0' + ENGINE_FD, '\0'}, *argv[LAUNCH_ARGS];
    int pidfd, r;
    pid_t pid, parent = getpid();

    if (!env)
        return -ENOMEM;
    if (access(args->path, X_OK)) /* a clear answer, which exec's exit status is not */
        return -errno;
    r = control_pair(&ours, &theirs);
    if (r)
        return r;
    fill_argv(args, fd, argv);
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        engine_exec(args->path, argv, env, theirs, parent);
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        r = -errno;
        kill(pid, SIGKILL); /* not reaped yet, so the pid is still its own */
        waitpid(pid, NULL, 0);
        return r;
    }
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    *ret_sock = steal_fd(&ours);
    return 0;
}

/* ---- by a launcher ---------------------------------------------------------------------- */

static int launcher_connect(const char *launcher, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (strlen(launcher) >= sizeof(addr.sun_path))
        return -ENAMETOOLONG;
    strcpy(addr.sun_path, launcher);
    if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)))
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

static size_t pack(char *const argv[], char *buf, size_t size)
{
    size_t used = 0;

    for (unsigned i = 0; argv[i]; i++) {
        size_t len = strlen(argv[i]) + 1;

        if (len > size - used)
            return 0;
        memcpy(buf + used, argv[i], len);
        used += len;
    }
    return used;
}

int engine_launch(const struct engine_args *args, const char *launcher, int *ret_keeper,
                  int *ret_sock)
{
    _cleanup_(close_fdp) int keeper = -1, ours = -1, theirs = -1;
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {{0}};
    char fd[] = {'0' + ENGINE_FD, '\0'}, *argv[LAUNCH_ARGS], words[LAUNCH_ARGS_BYTES];
    struct iovec iov = {words, 0};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.buf,
                        .msg_controllen = sizeof(control.buf)};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&mh);
    int r;

    r = launcher_connect(launcher, &keeper);
    if (r)
        return r;
    r = control_pair(&ours, &theirs);
    if (r)
        return r;
    fill_argv(args, fd, argv);
    iov.iov_len = pack(argv, words, sizeof(words));
    if (!iov.iov_len)
        return -E2BIG;
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &theirs, sizeof(int));
    if (sendmsg(keeper, &mh, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return -errno;
    *ret_keeper = steal_fd(&keeper);
    *ret_sock = steal_fd(&ours);
    return 0;
}
