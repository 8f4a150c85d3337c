/* listener_socket.c - makes the UNIX socket, and removes it.
 *
 * A commd that starts locks the directory. So "is the old socket stale?" and "make a new one" are
 * one step, also when two commds start at the same time. No lock file is left behind.
 *
 * Whoever starts commd again keeps the socket meanwhile. So nobody finds it closed: connect()
 * queues, and the next commd takes the same socket. It is kept under "clients." and the inode of
 * its file, since the socket alone does not tell whether that file is still its own. */
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/link/listener_priv.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"

#define KEPT_PREFIX "clients."

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

static const char *kept_name(uint64_t inode, char name[STORE_NAME_MAX])
{
    snprintf(name, STORE_NAME_MAX, KEPT_PREFIX "%" PRIu64, inode);
    return name;
}

/* The path at which the UNIX socket @fd listens; "": it is something else. */
static void path_of(int fd, char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1])
{
    struct sockaddr_un own = {.sun_family = AF_UNSPEC};
    socklen_t len = sizeof(own), int_len = sizeof(int);
    int listens = 0;

    path[0] = '\0';
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_len) || !listens ||
        getsockname(fd, (struct sockaddr *)&own, &len) || own.sun_family != AF_UNIX)
        return;
    /* a path that fills the array has no NUL */
    snprintf(path, sizeof(own.sun_path) + 1, "%.*s", (int)sizeof(own.sun_path), own.sun_path);
}

/* The socket of the commd before us, if its file is still there. */
static bool take_kept(struct listener_socket *sock, unsigned mode)
{
    char name[STORE_NAME_MAX], path[sizeof(sock->path) + 1];
    struct stat st;

    if (lstat(sock->path, &st) || !S_ISSOCK(st.st_mode))
        return false;
    sock->fd = store_take(kept_name(st.st_ino, name));
    if (sock->fd < 0)
        return false;
    /* listen() again: the socket then shows our pid to those who connect, and not the old one */
    path_of(sock->fd, path);
    if (strcmp(path, sock->path) != 0 || listen(sock->fd, SOMAXCONN) ||
        ((st.st_mode & 0777) != mode && chmod(sock->path, mode))) {
        close_fdp(&sock->fd);
        store_drop(name);
        return false;
    }
    fcntl(sock->fd, F_SETFL, O_NONBLOCK);
    sock->inode = st.st_ino;
    return true;
}

/* What the commd before us had at another path: nobody is to wait there for a commd. */
static void drop_kept(void)
{
    char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1], own[STORE_NAME_MAX];
    const char *name;
    struct stat st;

    for (unsigned i = 0; (name = store_next(&i));) {
        _cleanup_(close_fdp) int fd = -1;

        if (strncmp(name, KEPT_PREFIX, strlen(KEPT_PREFIX)) != 0)
            continue;
        fd = store_take(name);
        path_of(fd, path);
        if (path[0] && lstat(path, &st) == 0 && strcmp(kept_name(st.st_ino, own), name) == 0)
            unlink(path);
        store_drop(name);
    }
}

static int make_socket(struct listener_socket *sock, unsigned mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int dir_fd = -1;
    char name[STORE_NAME_MAX];
    struct stat st;
    mode_t mask;
    int r;

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", sock->path);
    r = lock_directory(sock->path, &dir_fd);
    if (r)
        return r;
    if (take_kept(sock, mode))
        return 0;
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
    if (listen(sock->fd, SOMAXCONN))
        return -errno;
    if (sock->inode && store_put(kept_name(sock->inode, name), sock->fd))
        log_warn("nobody keeps %s while commd restarts -> connections fail meanwhile", sock->path);
    return 0;
}

int listener_bind(struct listener_socket *sock, const char *path, unsigned mode, char **ret_error)
{
    int r = -ENAMETOOLONG;

    if (strlen(path) < sizeof(sock->path)) {
        strcpy(sock->path, path);
        r = make_socket(sock, mode);
        drop_kept();
    }
    return r ? path_error(path, r, ret_error) : 0;
}

void listener_unlink(struct listener_socket *sock)
{
    char name[STORE_NAME_MAX];
    struct stat st;

    if (sock->inode)
        store_drop(kept_name(sock->inode, name));
    /* Somebody may have put another socket in its place. */
    if (sock->inode && stat(sock->path, &st) == 0 && st.st_ino == sock->inode)
        unlink(sock->path);
    sock->inode = 0;
}
