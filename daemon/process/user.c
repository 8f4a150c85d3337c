/* user.c - commd without an administrator: started by a user, or by the first rank of a user
 * where no commd runs (client/lib/context/autostart.c). One node, no port, no key, no file to
 * configure; all of it lives in the user's own directory (shm/util/socket_path.c).
 *
 * Two commds never serve one socket: commd takes a lock before it makes the socket, and holds it
 * until the process is gone, however it ends. A commd that leaves because it is idle needs a
 * moment, so the next one waits a little for the lock.
 *
 * In the background commd has a keeper (keeper.c): it goes into the background, takes the lock and
 * opens the log, and commd finds both in the store. So the lock is held while commd is restarted.
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
#include "daemon/process/keeper.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
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
    static const char *const variables[] = {
        "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",   "JOURNAL_STREAM",
        "LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY"};
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

/* The old process waits here, for the pid of the commd that serves, or for the end. */
static void __attribute__((noreturn)) wait_for(pid_t keeper, int ready)
{
    int status = 0, signo = 0;
    char pid[16];
    ssize_t n;

    do
        n = read(ready, pid, sizeof(pid));
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        fwrite(pid, 1, (size_t)n, stdout);
        fflush(stdout);
        _exit(0);
    }
    while (waitpid(keeper, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        signo = WTERMSIG(status);
    else if (WEXITSTATUS(status) > KEEPER_EXIT_KILLED)
        signo = WEXITSTATUS(status) - KEEPER_EXIT_KILLED;
    if (signo)
        fprintf(stderr, "commd: killed by signal %d\n", signo);
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
    return 0;
}

static int own_directory(struct user_daemon *user, int *ret_dir)
{
    const char *why;
    int r;

    signal(SIGXFSZ, SIG_IGN); /* the lock and the log are written to before process_setup() */
    place_own_dir(user->dir);
    r = place_open_dir(user->dir, true, ret_dir, &why);
    return r ? complain_of(user, "", -r, why) : 0;
}

int user_keep(struct user_daemon *user, bool background)
{
    _cleanup_(close_fdp) int dir_fd = -1;
    int r;

    if (background)
        leave_behind();
    r = own_directory(user, &dir_fd);
    if (!r && background)
        r = go_background(user);
    if (!r)
        r = take_lock(user, dir_fd);
    return !r && background ? open_log(user, dir_fd) : r;
}

/* The directory may have been removed meanwhile. Then another one would be chosen, where nobody of
 * those who knew this commd looks for it. */
static int same_directory(const struct user_daemon *user, int dir_fd)
{
    struct stat kept, here;

    if (fstat(user->lock, &kept) == 0 && fstatat(dir_fd, PLACE_LOCK, &here, 0) == 0 &&
        kept.st_dev == here.st_dev && kept.st_ino == here.st_ino)
        return 0;
    complain_of(user, PLACE_LOCK, 0, "it is not the lock of the commd before: ending");
    return EXIT_CONFIG;
}

int user_begin(struct user_daemon *user)
{
    _cleanup_(close_fdp) int dir_fd = -1;
    int r = own_directory(user, &dir_fd);

    user->lock = store_take(KEEPER_LOCK);
    user->log = store_take(KEEPER_LOG);
    if (user->log >= 0)
        log_set_fd(user->log);
    if (!r)
        r = user->lock < 0 ? take_lock(user, dir_fd) : same_directory(user, dir_fd);
    if (!r && ftruncate(user->lock, 0) == 0) { /* for people only */
        char text[16];
        int len = snprintf(text, sizeof(text), "%d\n", (int)getpid());

        if (pwrite(user->lock, text, (size_t)len, 0) != len)
            log_debug("the pid is not in the lock: %m");
    }
    return r;
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

static int release_terminal(const struct user_daemon *user)
{
    _cleanup_(close_fdp) int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    return null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(user->log, STDOUT_FILENO) < 0 ||
                   dup2(user->log, STDERR_FILENO) < 0
               ? -errno
               : 0;
}

int user_ready(struct user_daemon *user)
{
    int r = user->log < 0 ? 0 : release_terminal(user);

    return r ? complain_of(user, "", -r, NULL) : 0;
}

void user_kept_serves(void *arg, pid_t pid)
{
    struct user_daemon *user = arg;
    int r;

    if (user->ready < 0)
        return;
    r = release_terminal(user);
    if (r)
        log_warn("cannot let go of the terminal: %s", strerror(-r));
    /* the caller may be gone; other processes may need commd, so it stays */
    if (dprintf(user->ready, "%d\n", (int)pid) < 0)
        log_info("who started this commd has not waited for it: %m");
    close_fdp(&user->ready);
}

void user_fini(struct user_daemon *user)
{
    close_fdp(&user->ready);
    log_set_fd(STDERR_FILENO);
    close_fdp(&user->log);
    close_fdp(&user->lock);
}
