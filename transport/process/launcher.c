/* launcher.c - engines under a user of their own.
 *
 * The engine speaks to the network and to memory that clients write, so it must not have what commd
 * has: the key of the cluster, and the right to signal or trace commd. commd may not start a
 * process of another user. So the launcher, a process of that other user, does it: systemd makes
 * its socket, which only commd may open (commd-engine.socket, mode 0600), and starts it with the
 * first connection.
 *
 * A connection lasts as long as its engine; shm/launch/launch.h says what is spoken. The launcher
 * executes its own program, never a path from outside: as it is installed now, which after an
 * upgrade is a newer one than itself. The connection may be that of one commd after another, which
 * leave it to each other. commd cannot signal the engine, so it asks the launcher: any packet, or
 * the end of the connection, is a SIGKILL. The engine has PR_SET_PDEATHSIG: it dies with the
 * launcher.
 *
 *   ASKED    connected, no engine yet         wakes: the request, or the end
 *   RUNS     an engine lives                  wakes: its pidfd; the connection
 *   KILLED   waiting for its pidfd            a process that is killed ends
 *
 * There are at most LAUNCHER_MAX: commd has one engine, and perhaps one that is still ending.
 *
 * commd-gpu is started in the same way by `commd-gpu --launcher`, under a user that may open the
 * GPUs (commd-gpu.socket): what is said here of the engine is true of commd-gpu. */
#include "transport/process/launcher.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "shm/util/base.h"
#include "shm/launch/launch.h"
#include "shm/launch/engine_exec.h"
#include "shm/util/fds.h"

enum { LAUNCHER_MAX = 8 };

struct child {
    int conn;  /* owned; -1: commd has closed it, or there is none */
    int pidfd; /* owned; -1: not started, or gone */
    pid_t pid;
};

static void child_tell(const struct child *c, uint32_t kind, int code, int value)
{
    struct launch_answer a = {.kind = kind, .code = code, .value = value};

    if (c->conn >= 0) /* lost if commd does not read; the end of the connection tells it, too */
        (void)!send(c->conn, &a, sizeof a, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The program that is installed where ours was. @buf has @len bytes. */
static const char *own_program(char *buf, size_t len)
{
    static const char gone[] = " (deleted)"; /* proc(5) puts it behind the name of one */
    ssize_t n = readlink("/proc/self/exe", buf, len - 1);
    size_t cut = sizeof gone - 1;

    if (n <= 0)
        return "/proc/self/exe";
    buf[n] = '\0';
    if ((size_t)n > cut && !strcmp(buf + n - cut, gone))
        buf[(size_t)n - cut] = '\0';
    return access(buf, X_OK) ? "/proc/self/exe" : buf; /* in the middle of an upgrade */
}

/* 0 or negative errno. */
static int child_start(struct child *c, launch_env_fn make_env, char *words, size_t len,
                       const int fds[LAUNCH_FDS])
{
    _cleanup_(engine_env_freep) char **env = make_env(environ);
    char *argv[LAUNCH_ARGS + 1], buf[4096];
    const char *program = own_program(buf, sizeof buf);
    pid_t parent = getpid();
    unsigned n = 0;

    if (!env)
        return -ENOMEM;
    if (len == 0 || words[len - 1] != '\0')
        return -EPROTO;
    for (char *w = words; w < words + len; w += strlen(w) + 1) {
        if (n == LAUNCH_ARGS)
            return -E2BIG;
        argv[n++] = w;
    }
    argv[n] = NULL;
    c->pid = fork();
    if (c->pid < 0)
        return -errno;
    if (c->pid == 0)
        engine_exec(program, argv, env, fds, parent);
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    if (c->pidfd < 0) {
        int r = -errno;

        kill(c->pid, SIGKILL); /* not reaped yet, so the pid is still its own */
        waitpid(c->pid, NULL, 0);
        return r;
    }
    return 0;
}

/* The request of a new connection. */
static void request(struct child *c, launch_env_fn make_env)
{
    char words[LAUNCH_ARGS_BYTES];
    _cleanup_(close_fdp) int sock = -1;
    _cleanup_(close_fdp) int line = -1;
    _cleanup_(close_fdp) int port = -1;
    int *const to[LAUNCH_FDS] = {&sock, &line, &port};
    int fds[LAUNCH_FDS];
    unsigned nfds;
    bool cut;
    ssize_t n = fds_recv(c->conn, words, sizeof words, fds, LAUNCH_FDS, &nfds, MSG_DONTWAIT, &cut);
    int r;

    if (n == -EAGAIN || n == -EINTR)
        return;
    for (unsigned i = 0; i < nfds; i++)
        *to[i] = fds[i];
    if (n <= 0) {
        close_fdp(&c->conn);
        return;
    }
    r = sock < 0 || cut
            ? -EPROTO
            : child_start(c, make_env, words, (size_t)n, (const int[]){sock, port, line});
    if (r) {
        child_tell(c, LAUNCH_FAILED, 0, -r);
        close_fdp(&c->conn);
        return;
    }
    child_tell(c, LAUNCH_STARTED, (int)geteuid(), (int)c->pid);
}

/* While an engine runs: whatever comes asks for its end. */
static void killed(struct child *c)
{
    char byte;
    ssize_t n = recv(c->conn, &byte, 1, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
    if (n <= 0)
        close_fdp(&c->conn);
}

static void ended(struct child *c)
{
    siginfo_t si = {0};

    if (waitid(P_PIDFD, (id_t)c->pidfd, &si, WEXITED | WNOHANG) || si.si_pid == 0)
        return;
    child_tell(c, LAUNCH_EXITED, si.si_code, si.si_status);
    close_fdp(&c->pidfd);
    close_fdp(&c->conn);
}

static void launcher_accept(struct child *children, int listen_fd)
{
    int conn = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    for (unsigned i = 0; conn >= 0 && i < LAUNCHER_MAX; i++)
        if (children[i].conn < 0 && children[i].pidfd < 0)
            children[i].conn = steal_fd(&conn);
    close_fdp(&conn); /* full: commd tries again */
}

int launcher_run(int listen_fd, launch_env_fn env)
{
    struct child children[LAUNCHER_MAX];

    for (unsigned i = 0; i < LAUNCHER_MAX; i++)
        children[i] = (struct child){.conn = -1, .pidfd = -1};
    for (;;) {
        struct pollfd p[1 + 2 * LAUNCHER_MAX] = {{.fd = listen_fd, .events = POLLIN}};

        for (unsigned i = 0; i < LAUNCHER_MAX; i++) {
            p[1 + 2 * i] = (struct pollfd){.fd = children[i].pidfd, .events = POLLIN};
            p[2 + 2 * i] = (struct pollfd){.fd = children[i].conn, .events = POLLIN};
        }
        if (poll(p, ARRAY_LEN(p), -1) < 0) {
            if (errno == EINTR)
                continue;
            fprintf(stderr, "%s --launcher: poll: %s\n", program_invocation_short_name,
                    strerror(errno));
            return 1;
        }
        if (p[0].revents & (POLLERR | POLLNVAL)) {
            fprintf(stderr, "%s --launcher: descriptor %d is no socket that listens\n",
                    program_invocation_short_name, listen_fd);
            return 64;
        }
        for (unsigned i = 0; i < LAUNCHER_MAX; i++) {
            struct child *c = &children[i];

            if (p[1 + 2 * i].revents)
                ended(c);
            else if (p[2 + 2 * i].revents && c->conn >= 0)
                c->pidfd < 0 ? request(c, env) : killed(c);
        }
        if (p[0].revents)
            launcher_accept(children, listen_fd);
    }
}
