/* user.c - commd without an administrator: started by a user, or by the first rank of a user
 * where no commd runs (client/lib/context/autostart.c). One node, no port, no key, no file to
 * configure; all of it lives in the user's own directory (shm/util/socket_path.c).
 *
 * Two commds never serve one socket: commd takes a lock before it makes the socket, and holds it
 * until the process is gone, however it ends. A commd that leaves because it is idle needs a
 * moment, so the next one waits a little for the lock.
 *
 * In the background commd keeps nothing of the process that has started it. Else a rank's open
 * files would stay open in commd, its working directory could not be unmounted, its terminal would
 * send signals, its CPU mask would put commd on the rank's core, its limits and priorities would
 * end commd or slow it down, and its service manager would take commd for the service. Messages
 * before commd serves go to the caller, which reads them now. The log goes to a file from the
 * beginning. */
#include "daemon/process/user.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "daemon/process/clock.h"
#include "daemon/daemon.h"
#include "daemon/process/log.h"
#include "shm/util/limits.h"

enum { LOCK_MS = 3000, LOCK_POLL_US = 20000 };

static int complain_of(const struct user_daemon *user, const char *name, int error, const char *why)
{
    fprintf(stderr, "commd: %s%s%s: %s\n", user->dir, name[0] ? "/" : "", name,
            why ? why : strerror(error));
    return error == EPERM || error == EACCES ? EXIT_PERMISSION : EXIT_INTERNAL;
}

/* ---- the background -------------------------------------------------------------------------- */

/* Takes back what makes the process slower or likelier to be killed, and where its memory must be.
 * The kernel refuses that where it was not the user's own choice. */
static void drop_priorities(void)
{
    static const struct sched_param none;
    _cleanup_(close_fdp) int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    sched_setscheduler(0, SCHED_OTHER, &none);
    setpriority(PRIO_PROCESS, 0, 0);
    syscall(SYS_ioprio_set, 1 /* a process */, 0, 0);
    syscall(SYS_set_mempolicy, 0 /* the default */, NULL, 0UL);
    if (fd >= 0 && write(fd, "0", 1) != 1)
        log_debug("oom_score_adj stays as it is: %m");
}

static void leave_behind(void)
{
    static const char *const variables[] = {"NOTIFY_SOCKET",        "WATCHDOG_USEC", "WATCHDOG_PID",
                                            "JOURNAL_STREAM",       "LISTEN_FDS",    "LISTEN_PID",
                                            "CREDENTIALS_DIRECTORY"};
    cpu_set_t all;

    umask(0077);
    limits_lift();
    drop_priorities();
    closefrom(STDERR_FILENO + 1);
    for (unsigned i = 0; i < ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    memset(&all, 0xff, sizeof(all));
    sched_setaffinity(0, sizeof(all), &all); /* the kernel keeps to the cpuset */
}

/* The old process waits here. Its exit code says whether the new process serves. */
static void __attribute__((noreturn)) wait_for(pid_t pid, int ready)
{
    int status = 0;
    char byte;
    ssize_t n;

    do
        n = read(ready, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n == 1) {
        printf("%d\n", (int)pid);
        fflush(stdout);
        _exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        fprintf(stderr, "commd: killed by signal %d\n", WTERMSIG(status));
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_INTERNAL);
}

static int go_background(struct user_daemon *user)
{
    int fds[2];
    pid_t pid;

    fflush(NULL);
    if (pipe2(fds, O_CLOEXEC))
        return complain_of(user, "", errno, NULL);
    pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return complain_of(user, "", errno, NULL);
    }
    if (pid > 0) {
        close(fds[1]);
        wait_for(pid, fds[0]);
    }
    close(fds[0]);
    user->ready = fds[1];
    setsid();
    if (chdir("/"))
        return complain_of(user, "", errno, NULL);
    return 0;
}

/* ---- its files ------------------------------------------------------------------------------- */

/* Keeps the log before this one: it tells why the last commd ended. */
static int open_log(struct user_daemon *user, int dir_fd)
{
    char limits[200];

    if (renameat(dir_fd, PLACE_LOG, dir_fd, PLACE_LOG ".1") && errno != ENOENT)
        return complain_of(user, PLACE_LOG, errno, NULL);
    user->log =
        openat(dir_fd, PLACE_LOG, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (user->log < 0)
        return complain_of(user, PLACE_LOG, errno, NULL);
    log_set_fd(user->log);
    limits_left(0, limits, sizeof limits);
    if (limits[0])
        log_info("has the limits of who started it: %s", limits);
    return 0;
}

static int take_lock(struct user_daemon *user, int dir_fd)
{
    uint64_t until = clock_ms() + LOCK_MS;
    char pid[16] = "";

    user->lock = openat(dir_fd, PLACE_LOCK, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (user->lock < 0)
        return complain_of(user, PLACE_LOCK, errno, NULL);
    while (flock(user->lock, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return complain_of(user, PLACE_LOCK, errno, NULL);
        if (clock_ms() >= until) {
            if (read(user->lock, pid, sizeof(pid) - 1) < 0)
                pid[0] = 0;
            fprintf(stderr,
                    "commd: %s/" PLACE_SOCKET ": a commd serves this user already (pid "
                    "%.*s)\n",
                    user->dir, (int)strcspn(pid, "\n"), pid);
            return EXIT_INTERNAL;
        }
        usleep(LOCK_POLL_US);
    }
    if (ftruncate(user->lock, 0) == 0) /* for people only */
        dprintf(user->lock, "%d\n", (int)getpid());
    return 0;
}

int user_begin(struct user_daemon *user, bool background)
{
    _cleanup_(close_fdp) int dir_fd = -1;
    const char *why;
    int r;

    signal(SIGXFSZ, SIG_IGN); /* the lock and the log are written to before process_setup() */
    if (background)
        leave_behind();
    place_own_dir(user->dir);
    r = place_open_dir(user->dir, true, &dir_fd, &why);
    if (r)
        return complain_of(user, "", -r, why);
    r = background ? go_background(user) : 0;
    if (r)
        return r;
    r = take_lock(user, dir_fd);
    if (r)
        return r;
    return background ? open_log(user, dir_fd) : 0;
}

int user_conf(const struct user_daemon *user, struct conf **ret_conf, char **ret_error)
{
    char text[2 * PLACE_MAX + 256], quoted[2 * PLACE_MAX];
    size_t n = 0;

    for (const char *c = user->dir; *c; c++) {
        if (*c == '\'')
            quoted[n++] = '\'';
        quoted[n++] = *c;
    }
    quoted[n] = 0;
    snprintf(text, sizeof(text),
             "listen:\n"
             "  socket: '%s/" PLACE_SOCKET "'\n"
             "  socket_mode: 0600\n"
             "limits:\n"
             "  max_clients_per_user: 1024\n" /* there is one user */
             "  max_groups_per_user: 4096\n"
             "  max_board_bytes_per_user: 128G\n",
             quoted);
    return conf_load("commd --user", text, strlen(text), ret_conf, ret_error);
}

int user_ready(struct user_daemon *user)
{
    int null;

    if (user->ready < 0)
        return 0;
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(user->log, STDOUT_FILENO) < 0 ||
        dup2(user->log, STDERR_FILENO) < 0)
        return complain_of(user, "", errno, NULL);
    close(null);
    /* the caller is gone; other processes may need commd, so it stays */
    if (write(user->ready, "1", 1) != 1)
        log_info("who started this commd has not waited for it: %m");
    close_fdp(&user->ready);
    return 0;
}

void user_fini(struct user_daemon *user)
{
    close_fdp(&user->ready);
    log_set_fd(STDERR_FILENO);
    close_fdp(&user->log);
    close_fdp(&user->lock);
}
