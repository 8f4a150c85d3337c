/* socket_path.c - the user's own directory, and when it can be trusted.
 *
 * $XDG_RUNTIME_DIR, and /run/user/UID, are the user's alone. /tmp is everybody's: another user can
 * make /tmp/commd-UID first, or a link of that name, and only root can remove it. Then one of a few
 * other names is taken: the first directory that belongs to this user, because no other user can
 * make or remove it; only if there is none, the first name that is free. The directory is opened
 * without following a link. The opened directory is then checked: it must be the user's, and closed
 * to others. Files are made in it through that descriptor. A socket can only be connected to by
 * path, so the kernel is asked which user answered (SO_PEERCRED). */
#include "shm/util/socket_path.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "shm/util/wait.h"

_Static_assert(PLACE_SOCKET_MAX == sizeof(((struct sockaddr_un *)0)->sun_path), "sun_path");
_Static_assert(PLACE_MAX + sizeof("/" PLACE_SOCKET) <= PLACE_SOCKET_MAX, "its socket fits");

static bool is_private(const struct stat *st, mode_t others)
{
    return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & others);
}

enum { TMP_NAMES = 16 };

static void tmp_name(unsigned i, char ret_dir[PLACE_MAX])
{
    int n = snprintf(ret_dir, PLACE_MAX, "/tmp/commd-%u", (unsigned)geteuid());

    if (i)
        snprintf(ret_dir + n, PLACE_MAX - (size_t)n, ".%u", i);
}

static void tmp_dir(char ret_dir[PLACE_MAX])
{
    unsigned free_one = 0; /* all are taken: the first, whose error says so */
    bool found = false;
    struct stat st;

    for (unsigned i = 0; i < TMP_NAMES; i++) {
        tmp_name(i, ret_dir);
        if (lstat(ret_dir, &st) == 0) {
            if (S_ISDIR(st.st_mode) && st.st_uid == geteuid())
                return;
        } else if (!found && errno == ENOENT) {
            free_one = i;
            found = true;
        }
    }
    tmp_name(free_one, ret_dir);
}

/* Where logind makes XDG_RUNTIME_DIR: below a directory of root, so nobody else can make it. The
 * variable is not set in every process of the user, such as cron's. */
static bool run_user_dir(char ret_dir[PLACE_MAX])
{
    struct stat st;

    snprintf(ret_dir, PLACE_MAX, "/run/user/%u", (unsigned)geteuid());
    if (lstat(ret_dir, &st) || !is_private(&st, 0077))
        return false;
    snprintf(ret_dir, PLACE_MAX, "/run/user/%u/commd", (unsigned)geteuid());
    return true;
}

void place_own_dir(char ret_dir[PLACE_MAX])
{
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    struct stat st;

    /* Not a usable one, such as root's after su: as if it were unset (basedir-spec). */
    if (runtime && runtime[0] == '/' && strlen(runtime) + sizeof("/commd") <= PLACE_MAX &&
        stat(runtime, &st) == 0 && is_private(&st, S_IWGRP | S_IWOTH))
        snprintf(ret_dir, PLACE_MAX, "%s/commd", runtime);
    else if (!run_user_dir(ret_dir))
        tmp_dir(ret_dir);
}

void place_own_socket(char ret_dir[PLACE_MAX], char ret_path[PLACE_SOCKET_MAX])
{
    place_own_dir(ret_dir);
    snprintf(ret_path, PLACE_SOCKET_MAX, "%s/" PLACE_SOCKET, ret_dir);
}

int place_open_dir(const char *dir, bool make, int *ret_fd, const char **ret_why)
{
    _cleanup_(close_fdp) int fd = -1;
    struct stat st;

    *ret_why = NULL;
    if (make && mkdir(dir, 0700) && errno != EEXIST)
        return -errno;
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        *ret_why = "it is not a directory: remove it";
        return -EPERM;
    }
    if (fd < 0 || fstat(fd, &st))
        return -errno;
    if (st.st_uid != geteuid()) {
        *ret_why = "it belongs to another user: set XDG_RUNTIME_DIR, for all ranks and commctl, to "
                   "a directory of your own (mkdir -m 700), or have root remove it";
        return -EPERM;
    }
    if (!is_private(&st, 0077)) {
        *ret_why = "others may enter it: chmod 700";
        return -EPERM;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* connect() waits as long as the listener's backlog is full, and only SO_SNDTIMEO limits it. A
 * signal ends it with nothing begun, unlike in other families: it is called again, with what is
 * left. */
static int connect_limited(int sock, const struct sockaddr_un *un, int64_t timeout_ms)
{
    uint64_t until = now_ms() + (uint64_t)MAX(timeout_ms, (int64_t)0);
    int64_t left = timeout_ms;

    for (;;) {
        struct timeval limit = {left / 1000, left % 1000 * 1000};

        if (timeout_ms > 0)
            setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (connect(sock, (const struct sockaddr *)un, sizeof(*un)) == 0)
            return 0;
        if (errno != EINTR)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        left = (int64_t)(until - now_ms());
        if (timeout_ms > 0 && left <= 0)
            return -ETIMEDOUT;
    }
}

int place_connect(const char *path, int64_t timeout_ms, int *ret_sock)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int sock = -1;
    int r;

    if (strlen(path) >= sizeof(un.sun_path))
        return -ENAMETOOLONG;
    strcpy(un.sun_path, path);
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -errno;
    r = connect_limited(sock, &un, timeout_ms);
    if (r)
        return r;
    *ret_sock = steal_fd(&sock);
    return 0;
}

int place_connect_own(const char *path, int64_t timeout_ms, int *ret_sock)
{
    _cleanup_(close_fdp) int sock = -1;
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int r;

    r = place_connect(path, timeout_ms, &sock);
    if (r)
        return r;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        return -errno;
    if (cred.uid != geteuid())
        return -EPERM;
    *ret_sock = steal_fd(&sock);
    return 0;
}
