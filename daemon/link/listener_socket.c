/* listener_socket.c - makes the UNIX socket, and removes it.
 *
 * A commd that starts locks the directory. So "is the old socket stale?" and "make a new one" are
 * one step, also when two commds start at the same time. No lock file is left behind. */
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/link/listener_priv.h"
#include "daemon/process/log.h"

enum { LISTENER_LOCK_MS = 1000 };

static int path_error(const char *path, int error, char **ret_error)
{
    int r;

    switch (-error) {
    case ENOENT:
    case ENOTDIR:
        r = asprintf(ret_error, "%s: its directory does not exist: create it, or set listen.socket",
                     path);
        error = -EINVAL;
        break;
    case EADDRINUSE:
        r = asprintf(ret_error, "%s: already in use by a running commd", path);
        break;
    case EEXIST:
        r = asprintf(ret_error,
                     "%s: there is something else than a socket: remove it, or set "
                     "listen.socket",
                     path);
        error = -EINVAL;
        break;
    case ENAMETOOLONG:
        r = asprintf(ret_error,
                     "%s: a socket's path may have %zu bytes at most: set "
                     "listen.socket",
                     path, sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
        error = -EINVAL;
        break;
    default:
        r = asprintf(ret_error, "%s: cannot listen: %s", path, strerror(-error));
    }
    return r < 0 ? -ENOMEM : error;
}

/* Directory of @path, locked against another commd that starts now. A lock that somebody else
 * holds for long is not a commd's: go on without. */
static int lock_directory(const char *path, int *ret_fd)
{
    char copy[sizeof(((struct sockaddr_un *)0)->sun_path)];
    _cleanup_(close_fdp) int fd = -1;

    snprintf(copy, sizeof(copy), "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (unsigned ms = 0; flock(fd, LOCK_EX | LOCK_NB) && ms < LISTENER_LOCK_MS; ms += 10)
        poll(NULL, 0, 10);
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* Removes a socket that nobody listens on. */
static int clear_stale(const struct sockaddr_un *addr)
{
    _cleanup_(close_fdp) int fd = -1;
    struct stat st;

    if (lstat(addr->sun_path, &st))
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EEXIST;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    /* EAGAIN: a full queue is a listener too */
    if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN)
        return -EADDRINUSE;
    if (errno != ECONNREFUSED)
        return -errno;
    log_info("%s: left over from a commd that is gone -> removed", addr->sun_path);
    return unlink(addr->sun_path) && errno != ENOENT ? -errno : 0;
}

static int make_socket(struct listener_socket *sock, unsigned mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int dir_fd = -1;
    struct stat st;
    mode_t mask;
    int r;

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", sock->path);
    r = lock_directory(sock->path, &dir_fd);
    if (r)
        return r;
    r = clear_stale(&addr);
    if (r)
        return r;
    sock->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock->fd < 0)
        return -errno;
    mask = umask(0777 & ~mode); /* right from the start, not by a later chmod */
    r = bind(sock->fd, (struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
    umask(mask);
    if (r)
        return r;
    if (stat(sock->path, &st) == 0)
        sock->inode = st.st_ino;
    return listen(sock->fd, 256) ? -errno : 0;
}

int listener_bind(struct listener_socket *sock, const char *path, unsigned mode, char **ret_error)
{
    int r = -ENAMETOOLONG;

    if (strlen(path) < sizeof(sock->path)) {
        strcpy(sock->path, path);
        r = make_socket(sock, mode);
    }
    return r ? path_error(path, r, ret_error) : 0;
}

void listener_unlink(struct listener_socket *sock)
{
    struct stat st;

    /* Somebody may have put another socket in its place. */
    if (sock->inode && stat(sock->path, &st) == 0 && st.st_ino == sock->inode)
        unlink(sock->path);
    sock->inode = 0;
}
