/* listener.c - the UNIX socket: made, guarded, taken away again.
 *
 * Whoever opens the socket is identified by SO_PEERCRED: the user is the tenant. A foreign user
 * namespace shows as the overflow uid, which is nobody in particular, and is refused. A foreign
 * pid namespace shows as pid 0: such a client is served, but its death is seen by end of file
 * only. Where the kernel has SO_PEERPIDFD (6.5) the pidfd is certain to be the process that
 * connected; pidfd_open() could meet a reused pid.
 *
 * Room: max_clients + LISTENER_EXTRA slots, the last LISTENER_ROOT of which are for root and
 * our own user, and one user may hold max_clients_per_user + LISTENER_TOOLS. The exact quotas
 * for training clients are the core's; these bounds hold before anything is read.
 *
 * Two commds that start at the same time meet in a lock on the directory, so "is the socket
 * stale?" and "make a new one" are one step. No lock file is left behind. */
#include "daemon/listener.h"

#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "daemon/client_link.h"
#include "daemon/clock.h"
#include "daemon/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; Debian 12's headers do not have it */
#endif

enum {
    LISTENER_ROOT = 16,
    LISTENER_TOOLS = 16,
    LISTENER_ACCEPT_BUDGET = 64,
    LISTENER_LOCK_MS = 1000,
};

void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid,
                          const char *text)
{
    char who[REFUSED_KEY];
    unsigned count;

    snprintf(who, sizeof(who), "%u %s", uid, text);
    if (!refused_note(&listener->refused, who, clock_ms(), &count))
        return;
    if (count)
        log_warn("client pid %u uid %u: %s -> refused, and %u more since the last line", pid,
                 uid, text, count);
    else
        log_warn("client pid %u uid %u: %s -> refused", pid, uid, text);
}

/* ---- coming in -------------------------------------------------------------------------- */

/* Nothing is kept for it: one message into the fresh socket, and the end. */
static void refuse_fd(struct listener *listener, int fd, const struct ucred *cred,
                      enum cause cause, const char *text)
{
    struct msg msg = {.type = MSG_REFUSED};
    struct stream stream;

    listener_log_refused(listener, cred->uid, (uint32_t)cred->pid, text);
    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    stream_init(&stream, fd, 0);
    if (stream_send(&stream, &msg, NULL, 0) == 0)
        stream_flush(&stream);
    stream_fini(&stream);
}

static uint32_t overflow_uid(void)
{
    unsigned uid = 65534;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");

    if (f) {
        if (fscanf(f, "%u", &uid) != 1)
            uid = 65534;
        fclose(f);
    }
    return uid;
}

static bool is_trusted(uint32_t uid)
{
    return uid == 0 || uid == geteuid();
}

/* NULL: welcome. */
static const char *room_check(const struct listener *listener, uint32_t uid, char *buf,
                              size_t len)
{
    unsigned room = listener->max_clients + LISTENER_EXTRA, same = 0;
    const struct client *client;

    if (!is_trusted(uid))
        room -= LISTENER_ROOT;
    if (listener->nclients >= MIN(room, listener->nslots)) {
        snprintf(buf, len, "this node serves %u clients already (limits.max_clients)",
                 listener->max_clients);
        return buf;
    }
    TAILQ_FOREACH(client, &listener->clients, entry)
    same += client->uid == uid;
    if (same >= listener->max_clients_per_user + LISTENER_TOOLS) {
        snprintf(buf, len, "user %u has %u clients already (limits.max_clients_per_user)", uid,
                 listener->max_clients_per_user);
        return buf;
    }
    return NULL;
}

static unsigned free_slot(struct listener *listener)
{
    unsigned slot = listener->next_slot;

    while (listener->slots[slot])
        slot = (slot + 1) % listener->nslots;
    listener->next_slot = (slot + 1) % listener->nslots;
    return slot;
}

static int peer_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t len = sizeof(pidfd);

    if (pid <= 0)
        return -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
        return pidfd;
    /* -1 also when it has ended already: end of file will tell. */
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void accept_one(struct listener *listener, int sock)
{
    _cleanup_(close_fdp) int fd = sock;
    struct ucred cred;
    socklen_t len = sizeof(cred);
    char why[MSG_TEXT_MAX];

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        return;
    if (cred.uid == overflow_uid() && !is_trusted(cred.uid))
        refuse_fd(listener, steal_fd(&fd), &cred, CAUSE_DENIED,
                  "its user is not known here (another user namespace?)");
    else if (room_check(listener, cred.uid, why, sizeof(why)))
        refuse_fd(listener, steal_fd(&fd), &cred, CAUSE_QUOTA, why);
    else
        /* -ENOMEM: closed; the client sees it and may come again */
        client_new(listener, free_slot(listener), steal_fd(&fd), peer_pidfd(sock, cred.pid),
                   cred.uid, (uint32_t)cred.pid);
}

static void log_full(struct listener *listener)
{
    unsigned count;

    if (refused_note(&listener->refused, "descriptors", clock_ms(), &count))
        log_warn(
            "no file descriptor is left for clients (LimitNOFILE=) -> refused, and %u more "
            "since the last line",
            count);
}

static void listener_accept(evutil_socket_t unused, short what, void *arg)
{
    struct listener *listener = arg;

    for (unsigned i = 0; i < LISTENER_ACCEPT_BUDGET; i++) {
        int fd = -1, r;

        r = sock_accept(listener->fd, &listener->reserve, NULL, &fd);
        if (r == SOCK_E_AGAIN)
            return;
        if (r) {
            log_full(listener);
            if (r < 0)
                return;
            continue;
        }
        accept_one(listener, fd);
    }
}

/* ---- making the socket ------------------------------------------------------------------ */

static int path_error(const char *path, int error, char **ret_error)
{
    int r;

    switch (-error) {
    case ENOENT:
    case ENOTDIR:
        r = asprintf(ret_error,
                     "%s: its directory does not exist: create it, or set listen.socket", path);
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

static int listener_bind(struct listener *listener, unsigned mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_(close_fdp) int dir_fd = -1;
    struct stat st;
    mode_t mask;
    int r;

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", listener->path);
    r = lock_directory(listener->path, &dir_fd);
    if (r)
        return r;
    r = clear_stale(&addr);
    if (r)
        return r;
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return -errno;
    mask = umask(0777 & ~mode); /* right from the start, not by a later chmod */
    r = bind(listener->fd, (struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
    umask(mask);
    if (r)
        return r;
    if (stat(listener->path, &st) == 0)
        listener->inode = st.st_ino;
    return listen(listener->fd, 256) ? -errno : 0;
}

static void listener_unlink(struct listener *listener)
{
    struct stat st;

    /* Somebody may have put another socket in its place. */
    if (listener->inode && stat(listener->path, &st) == 0 && st.st_ino == listener->inode)
        unlink(listener->path);
    listener->inode = 0;
}

/* ---- the listener ----------------------------------------------------------------------- */

static void listener_freep(struct listener **listener)
{
    *listener = listener_free(*listener);
}

int listener_new(const struct listener_config *config, struct listener **ret_listener,
                 char **ret_error)
{
    _cleanup_(listener_freep) struct listener *listener = calloc(1, sizeof(*listener));
    int r;

    *ret_error = NULL;
    if (!listener)
        return -ENOMEM;
    TAILQ_INIT(&listener->clients);
    TAILQ_INIT(&listener->dead);
    listener->fd = -1;
    sock_reserve_init(&listener->reserve);
    listener->base = config->base;
    listener->ops = config->ops;
    listener->arg = config->arg;
    listener->nslots = config->max_clients + LISTENER_EXTRA;
    listener_set_limits(listener, config->max_clients, config->max_clients_per_user);
    listener->slots = calloc(listener->nslots, sizeof(*listener->slots));
    if (!listener->slots)
        return -ENOMEM;
    if (strlen(config->path) >= sizeof(listener->path))
        return path_error(config->path, -ENAMETOOLONG, ret_error);
    snprintf(listener->path, sizeof(listener->path), "%s", config->path);
    r = listener_bind(listener, config->mode);
    if (r)
        return path_error(config->path, r, ret_error);
    listener->accept = event_new(listener->base, listener->fd, EV_READ | EV_PERSIST,
                                 listener_accept, listener);
    if (!listener->accept || event_add(listener->accept, NULL))
        return -ENOMEM;
    *ret_listener = steal_ptr(listener);
    return 0;
}

static void clients_free(struct client_list *list)
{
    struct client *client;

    while ((client = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, client, entry);
        client_free(client);
    }
}

struct listener *listener_free(struct listener *listener)
{
    if (!listener)
        return NULL;
    clients_free(&listener->clients);
    clients_free(&listener->dead);
    if (listener->accept)
        event_free(listener->accept);
    listener_unlink(listener);
    close_fdp(&listener->fd);
    sock_reserve_fini(&listener->reserve);
    free(listener->slots);
    free(listener);
    return NULL;
}

void listener_turn(struct listener *listener)
{
    clients_free(&listener->dead);
}

void listener_send(struct listener *listener, unsigned slot, const struct msg *msg,
                   const int *fds, unsigned nfds)
{
    if (listener->slots[slot])
        client_send(listener->slots[slot], msg, fds, nfds);
}

int listener_take_fd(struct listener *listener, unsigned slot)
{
    return listener->slots[slot] ? stream_take_fd(&listener->slots[slot]->stream) : -1;
}

void listener_close(struct listener *listener, unsigned slot)
{
    if (listener->slots[slot])
        client_close(listener->slots[slot]);
}

bool listener_client(const struct listener *listener, unsigned slot,
                     struct listener_client *ret_client)
{
    const struct client *client = listener->slots[slot];

    if (!client)
        return false;
    *ret_client = (struct listener_client){
        .uid = client->uid,
        .pid = client->pid,
        .welcome = client->welcome,
    };
    return true;
}

void listener_set_limits(struct listener *listener, unsigned max_clients,
                         unsigned max_clients_per_user)
{
    listener->max_clients = MIN(max_clients, listener->nslots - LISTENER_EXTRA);
    listener->max_clients_per_user = max_clients_per_user;
}

void listener_drain(struct listener *listener)
{
    struct client *client, *next;

    event_del(listener->accept);
    close_fdp(&listener->fd); /* later callers learn at once that nobody is here */
    listener_unlink(listener);
    for (client = TAILQ_FIRST(&listener->clients); client; client = next) {
        next = TAILQ_NEXT(client, entry);
        if (client->state != CLIENT_CLOSING)
            client_close(client);
    }
}

bool listener_idle(const struct listener *listener)
{
    return TAILQ_EMPTY(&listener->clients);
}
