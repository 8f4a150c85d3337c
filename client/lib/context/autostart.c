/* autostart.c - which daemon to connect to when no socket was named, and use without an
 * administrator: where no daemon runs, the first client starts one for its own user.
 *
 * The search: the system's socket, then the user's own. Only if no daemon is behind a socket the
 * search goes on. Any other failure is reported, because the user has to know it. Where a service
 * is meant to run (service.c) and does not, that is reported, and nothing is started instead.
 *
 * The start. Ranks come at the same time, so the start is done under a lock (PLACE_START) in the
 * user's own directory. The client that gets the lock searches again, and starts commd only if
 * there is still none. It releases the lock when commd serves. If this client dies in the middle
 * the kernel releases the lock; the next client searches again, and finds the commd that was coming
 * up, or starts one. If a forked child keeps the lock of a dead client, waiting for the lock ends
 * after LOCK_MS. Two clients that start a commd do no harm: a commd holds PLACE_LOCK while it
 * lives, and the second commd gives up.
 *
 * commd --user --background returns when it serves. Its standard output is a pipe to this process,
 * and brings the daemon's pid, or what went wrong. The daemon gets nothing else of this process: it
 * has a session of its own, an empty signal mask and default handlers. It drops descriptors,
 * directory, processor mask, limits and priorities itself; if only root can lift a limit, a line on
 * stderr says so. A thread of the application that calls waitpid(-1) may take the exit status of
 * commd, so only the pipe is believed.
 *
 * A commd that has been idle for long ends. A client that connects in that moment is cut off before
 * its hello is answered: then it searches again, and does not fail (control.c). */
#include "config.h"

#include "client/lib/context/context.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "shm/util/limits.h"
#include "shm/util/socket_path.h"

#define PROGRAM "commd"

enum { LOCK_MS = 10000, START_MS = 10000, POLL_MS = 10, TELL_MAX = 400 };

extern char **environ;

/* ---- may we, and what ------------------------------------------------------------------------ */

enum may { MAY_NOT, MAY_WITHOUT_SERVICE, MAY_ALWAYS };

/* 0, or an error that says what is allowed. */
static int allowed(enum may *ret_may)
{
    const char *text = getenv("COMMD_AUTOSTART");

    *ret_may = MAY_WITHOUT_SERVICE;
    if (text && *text && strcmp(text, "0") && strcmp(text, "1"))
        return error_set(error_mine(), COMMD_E_INVALID, "connect",
                         "COMMD_AUTOSTART is \"%.40s\"; allowed: 0 (never start a daemon) and 1 "
                         "(also where the service is meant to run)",
                         text);
    if (text && *text)
        *ret_may = *text == '1' ? MAY_ALWAYS : MAY_NOT;
    if (getauxval(AT_SECURE)) /* runs with somebody else's rights: starts nothing for them */
        *ret_may = MAY_NOT;
    return 0;
}

static bool runs(const char *path)
{
    return access(path, X_OK) == 0;
}

/* Beside the library as it was loaded, in an installed tree that may have been moved
 * (PREFIX/lib, PREFIX/lib/TRIPLET) or in a build tree. */
static bool beside_library(char *path, size_t size)
{
    static const char *const places[] = {"../sbin", "../../sbin", "../../daemon"};
    Dl_info info;
    const char *slash;

    if (!dladdr((void *)beside_library, &info) || !info.dli_fname)
        return false;
    slash = strrchr(info.dli_fname, '/');
    for (unsigned i = 0; slash && i < ARRAY_LEN(places); i++) {
        int n = snprintf(path, size, "%.*s/%s/" PROGRAM, (int)(slash - info.dli_fname),
                         info.dli_fname, places[i]);
        if (n > 0 && (size_t)n < size && runs(path))
            return true;
    }
    return false;
}

static bool in_path(char *path, size_t size)
{
    const char *dir = getenv("PATH");

    while (dir && *dir) {
        int len = (int)strcspn(dir, ":");

        if (dir[0] == '/' && (size_t)snprintf(path, size, "%.*s/" PROGRAM, len, dir) < size &&
            runs(path))
            return true;
        dir += len + (dir[len] == ':');
    }
    return false;
}

static int find_program(char *path, size_t size)
{
    const char *named = getenv("COMMD_DAEMON");

    if (named && *named) {
        if ((size_t)snprintf(path, size, "%s", named) < size && runs(path))
            return 0;
        return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect",
                         "COMMD_DAEMON is \"%.200s\", which cannot be run: %s", named,
                         strerror(errno));
    }
    if (beside_library(path, size))
        return 0;
    if ((size_t)snprintf(path, size, "%s", COMMD_SBINDIR "/" PROGRAM) < size && runs(path))
        return 0;
    if (in_path(path, size))
        return 0;
    return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect",
                     "no daemon is running, and the program commd is not to be found beside the "
                     "library, in " COMMD_SBINDIR ", or in PATH: set COMMD_DAEMON to where it is");
}

/* ---- starting it ----------------------------------------------------------------------------- */

/* posix_spawn() and not fork(): a rank has threads, and may have most of the memory. */
static int spawn(const char *program, int out, pid_t *ret_pid)
{
    char *const argv[] = {(char *)program, (char *)"--user", (char *)"--background", NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int r;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, out, STDERR_FILENO);
    r = posix_spawn(ret_pid, program, &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return -r;
}

/* What commd says until it closes the pipe: the beginning of it, as one line. */
static int listen_to(int fd, int64_t deadline_ms, char *text, size_t size)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t len = 0;

    for (;;) {
        char chunk[256];
        int64_t left = deadline_ms - (int64_t)now_ms();
        int n = poll(&p, 1, (int)MIN(MAX(left, (int64_t)0), (int64_t)START_MS));
        ssize_t got;

        if (n == 0 || (n < 0 && errno != EINTR))
            return n ? -errno : -ETIMEDOUT;
        got = n < 0 ? -1 : read(fd, chunk, sizeof chunk);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        for (ssize_t i = 0; i < got && len < size - 1; i++)
            text[len++] = chunk[i] == '\n' ? ' ' : chunk[i];
    }
    while (len && text[len - 1] == ' ')
        len--;
    text[len] = 0;
    return 0;
}

static int failed(const char *program, const char *dir, const char *what)
{
    return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect",
                     "no daemon is running, and %s could not be started: %s; see %s/" PLACE_LOG
                     ", or forbid this with COMMD_AUTOSTART=0",
                     program, what, dir);
}

/* With the lock held. */
static int start_daemon(const char *dir, int64_t deadline_ms)
{
    _cleanup_(close_fdp) int out = -1;
    char program[4096], text[TELL_MAX];
    int fds[2], rest = 0;
    long pid = 0;
    pid_t child;
    int r = find_program(program, sizeof program);

    if (r)
        return r;
    if (pipe2(fds, O_CLOEXEC))
        return failed(program, dir, strerror(errno));
    out = fds[0];
    r = spawn(program, fds[1], &child);
    close(fds[1]);
    if (r)
        return failed(program, dir, strerror(-r));
    r = listen_to(out, deadline_ms, text, sizeof text);
    if (r)
        return failed(program, dir,
                      r == -ETIMEDOUT ? "it is not ready within the limit" : strerror(-r));
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ; /* it has closed the pipe: it is ending */
    if (sscanf(text, "%ld%n", &pid, &rest) != 1 || text[rest] || pid <= 0)
        return failed(program, dir, text[0] ? text : "it says nothing");
    fprintf(
        stderr,
        "commd: no daemon was running; started one for user %u (pid %ld, socket %s/" PLACE_SOCKET
        "); COMMD_AUTOSTART=0 forbids this\n",
        (unsigned)geteuid(), pid, dir);
    limits_left((pid_t)pid, text, sizeof text);
    if (text[0])
        fprintf(stderr, "commd: it has the limits of this process: %s\n", text);
    return 0;
}

static int bad_dir(const char *dir, int r, const char *why)
{
    return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect",
                     "no daemon is running, and none can be started for this user: %s: %s", dir,
                     why ? why : strerror(-r));
}

/* Waits for the right to start, or until somebody else's daemon is there: -errno of the last
 * look, 0 with a connection. */
static int take_turn(int lock, const char *path, int64_t until_ms, int *ret_sock)
{
    for (;;) {
        bool mine = flock(lock, LOCK_EX | LOCK_NB) == 0;
        int r = place_connect_own(path, START_MS, ret_sock);

        if (mine || !place_is_empty(r))
            return r;
        if ((int64_t)now_ms() >= until_ms)
            return r; /* see the model above */
        poll(NULL, 0, POLL_MS);
    }
}

/* With the lock held: nobody was there when we looked last. */
static int start_one(const char *dir, const char *path, int64_t deadline_ms, int *ret_sock,
                     bool *ret_left)
{
    int code = start_daemon(dir, deadline_ms);
    int r = place_connect_own(path, START_MS, ret_sock);

    if (r == 0) /* perhaps somebody else's, who did not have the lock */
        return 0;
    *ret_left = code == 0 && place_is_empty(r); /* served, and has ended already */
    return code ? code : error_no_daemon(path, -r);
}

static int start_or_join(const char *dir, const char *path, int64_t deadline_ms, int *ret_sock,
                         bool *ret_left)
{
    int64_t limit = deadline_ms < 0 ? INT64_MAX : deadline_ms;
    _cleanup_(close_fdp) int dir_fd = -1, lock = -1;
    const char *why;
    int r = place_open_dir(dir, true, &dir_fd, &why), code;

    if (r)
        return bad_dir(dir, r, why);
    lock = openat(dir_fd, PLACE_START, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return bad_dir(dir, -errno, NULL);
    r = take_turn(lock, path, MIN(limit, (int64_t)now_ms() + LOCK_MS), ret_sock);
    if (place_is_empty(r))
        code = start_one(dir, path, MIN(limit, (int64_t)now_ms() + START_MS), ret_sock, ret_left);
    else
        code = r ? error_no_daemon(path, -r) : 0;
    flock(lock, LOCK_UN); /* a forked child may have the descriptor */
    return code;
}

/* ---- the search ------------------------------------------------------------------------------ */

int autostart_search(char *ret_path, size_t size, int64_t deadline_ms, int *ret_sock,
                     bool *ret_left)
{
    char dir[PLACE_MAX], own[PLACE_SOCKET_MAX], why[600];
    int64_t left = deadline_ms < 0 ? 0 : MAX(deadline_ms - (int64_t)now_ms(), (int64_t)1);
    enum may may;
    int r = allowed(&may), r_own;

    if (r)
        return r;
    snprintf(ret_path, size, "%s", PLACE_SYSTEM_SOCKET);
    r = place_connect(PLACE_SYSTEM_SOCKET, left, ret_sock);
    if (!place_is_empty(r))
        return r ? error_no_daemon(PLACE_SYSTEM_SOCKET, -r) : 0;
    place_own_socket(dir, own);
    r_own = place_connect_own(own, left, ret_sock);
    if (place_is_empty(r_own) && may == MAY_NOT)
        return error_no_daemon(PLACE_SYSTEM_SOCKET, -r);
    if (place_is_empty(r_own) && may == MAY_WITHOUT_SERVICE &&
        service_expected("", why, sizeof why))
        return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect",
                         PLACE_SYSTEM_SOCKET
                         ": %s; %.300s, and it does not answer: systemctl status commd. With "
                         "COMMD_AUTOSTART=1 a commd of this user alone is started, which knows no "
                         "other node",
                         strerror(-r), why);
    snprintf(ret_path, size, "%s", own);
    if (place_is_empty(r_own))
        return start_or_join(dir, own, deadline_ms, ret_sock, ret_left);
    return r_own ? error_no_daemon(own, -r_own) : 0;
}
