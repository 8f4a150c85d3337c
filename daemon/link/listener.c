/* listener.c - the UNIX socket: made, guarded, taken away again.
 *
 * Whoever opens the socket is identified by SO_PEERCRED. The tenant is who is charged for that uid
 * (shm/util/payers.h): a person with many uids has one share of all that is said here. A foreign
 * user namespace shows as the overflow uid, which is nobody in particular, and is refused. A
 * foreign pid namespace shows as pid 0: such a client is served, but its death is seen by end of
 * file only. Where the kernel has SO_PEERPIDFD (6.5) the pidfd is certain to be the process that
 * connected; pidfd_open() could meet a reused pid.
 *
 * Room: max_clients + LISTENER_EXTRA slots, the last LISTENER_ROOT of which are for root and
 * our own user, and one user may hold max_clients_per_user + LISTENER_TOOLS. The exact quotas
 * for training clients are the core's; these bounds hold before anything is read. Whoever has
 * LISTENER_MAX_PENDING descriptors that we are closing still, gets no further connection.
 *
 * A connection may hold messages with descriptors from the moment at which it is made, so none is
 * closed here, also not those that are refused: the closer does it (shm/util/closer.c).
 *
 * Turns: what clients send is taken in listener_turn(), TURN_US at most, in slices that go round
 * among the users who have sent something: five hundred connections of one user together get the
 * time that one connection of another gets. Whatever else wakes the loop (links to nodes, the
 * engine, timers) is done before, in every turn.
 *
 * Descriptors. Of those that we may have (RLIMIT_NOFILE) a sixteenth may wait to be sent, and as
 * many as half of them may fly, that is, have been sent and not been taken out: the kernel allows
 * our user only as many as it may have open. One user may have half of what the others leave of
 * either. A client that does not take them out keeps them flying even after we have closed its
 * connection. So such a socket is kept, and counts as a connection, until it is empty. Connections,
 * of two descriptors each, may have half of all: a user half of what the others leave, so that one
 * user's sessions and boards together leave some to others. At nine tenths of all descriptors
 * nobody is let in any more but root and our own user.
 *
 * Two commds that start at the same time meet in a lock on the directory, so "is the socket
 * stale?" and "make a new one" are one step. No lock file is left behind. */
#include "daemon/link/listener.h"

#include <fcntl.h>
#include <libgen.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "daemon/link/client_link.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/core/core.h"
#include "daemon/core/share.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; Debian 12's headers do not have it */
#endif

enum {
    LISTENER_ROOT = 16,
    LISTENER_TOOLS = 16,
    LISTENER_ACCEPT_BUDGET = 64,
    LISTENER_LOCK_MS = 1000,
    LISTENER_TURN_US = 4000,
    LISTENER_SLICE_US = 500,
    LISTENER_COUNT_MS = 10,   /* between two looks at all sockets */
    LISTENER_UNREAD_MS = 250, /* likewise, at those left behind */
    LISTENER_SKB = 512,       /* what the smallest message costs in a socket, at least */
    LISTENER_MAX_PENDING = 1024,
};

void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid, const char *text)
{
    char who[LOG_LIMIT_WHO];

    snprintf(who, sizeof(who), "user %u", payer_of(listener->payers, uid));
    log_limit_write(&listener->limit, CONF_LOG_WARN, who, text,
                    "client pid %u uid %u: %s -> refused", pid, uid, text);
}

/* ---- users ------------------------------------------------------------------------------ */

static struct tenant *tenant_find(struct listener *listener, uint32_t uid)
{
    struct tenant *tenant;

    TAILQ_FOREACH(tenant, &listener->tenants, entry)
        if (tenant->uid == uid)
            return tenant;
    return NULL;
}

static struct tenant *tenant_get(struct listener *listener, uint32_t uid)
{
    struct tenant *tenant = tenant_find(listener, uid);

    if (tenant || !(tenant = calloc(1, sizeof(*tenant))))
        return tenant;
    tenant->uid = uid;
    tenant->held.up = &listener->held;
    TAILQ_INIT(&tenant->work);
    TAILQ_INIT(&tenant->unread);
    TAILQ_INSERT_TAIL(&listener->tenants, tenant, entry);
    return tenant;
}

static void tenants_reap(struct listener *listener)
{
    struct tenant *tenant, *next;

    for (tenant = TAILQ_FIRST(&listener->tenants); tenant; tenant = next) {
        next = TAILQ_NEXT(tenant, entry);
        if (tenant->nclients || tenant->nunread || tenant->held.n)
            continue;
        if (tenant->queued)
            TAILQ_REMOVE(&listener->turns, tenant, turn);
        TAILQ_REMOVE(&listener->tenants, tenant, entry);
        free(tenant);
    }
}

void listener_work(struct client_link *client)
{
    struct tenant *tenant = client->tenant;

    if (client->queued)
        return;
    client->queued = true;
    TAILQ_INSERT_TAIL(&tenant->work, client, work);
    if (tenant->queued)
        return;
    tenant->queued = true;
    TAILQ_INSERT_TAIL(&client->listener->turns, tenant, turn);
}

void listener_unwork(struct client_link *client)
{
    if (client->queued)
        TAILQ_REMOVE(&client->tenant->work, client, work);
    client->queued = false;
}

static void tenant_step(struct tenant *tenant, uint64_t until_us)
{
    struct client_link *client;

    while ((client = TAILQ_FIRST(&tenant->work))) {
        listener_unwork(client);
        client_step(client, until_us);
        if (clock_us() >= until_us)
            return;
    }
}

static void listener_serve(struct listener *listener)
{
    static const struct timeval at_once;
    uint64_t begin = clock_us(), now = begin;
    struct tenant *tenant;

    while ((tenant = TAILQ_FIRST(&listener->turns)) && now < begin + LISTENER_TURN_US) {
        tenant_step(tenant, now + LISTENER_SLICE_US);
        TAILQ_REMOVE(&listener->turns, tenant, turn);
        tenant->queued = !TAILQ_EMPTY(&tenant->work);
        if (tenant->queued)
            TAILQ_INSERT_TAIL(&listener->turns, tenant, turn);
        now = clock_us();
    }
    if (tenant)
        event_add(listener->more, &at_once);
}

/* ---- descriptors that are sent ---------------------------------------------------------- */

/* How many may still be in @fd of the @known that were put in. */
static unsigned still_flying(int fd, unsigned known)
{
    int unread;

    if (ioctl(fd, SIOCOUTQ, &unread))
        return known;
    return MIN(known, STREAM_MAX_FDS * ((unsigned)unread / LISTENER_SKB));
}

static void landed(struct listener *listener, struct tenant *tenant, unsigned *flying, unsigned now)
{
    listener->flying -= *flying - now;
    tenant->flying -= *flying - now;
    *flying = now;
}

static void look_at_unread(struct listener *listener, struct tenant *tenant)
{
    struct unread *unread, *next;

    for (unread = TAILQ_FIRST(&tenant->unread); unread; unread = next) {
        next = TAILQ_NEXT(unread, entry);
        landed(listener, tenant, &unread->flying, still_flying(unread->fd, unread->flying));
        if (unread->flying)
            continue;
        TAILQ_REMOVE(&tenant->unread, unread, entry);
        tenant->nunread--;
        closer_sock(listener->closer, tenant->uid, unread->fd);
        free(unread);
    }
}

static void listener_unread(evutil_socket_t fd, short what, void *arg)
{
    struct listener *listener = arg;
    struct timeval tv = clock_timeval(LISTENER_UNREAD_MS);
    struct tenant *tenant;
    bool some = false;

    TAILQ_FOREACH(tenant, &listener->tenants, entry) {
        look_at_unread(listener, tenant);
        some |= tenant->nunread > 0;
    }
    if (some)
        event_add(listener->unread, &tv);
}

static void look_at_all(struct listener *listener)
{
    struct client_link *client;
    struct tenant *tenant;

    listener->counted_ms = clock_ms();
    TAILQ_FOREACH(client, &listener->clients, entry)
        if (client->flying)
            landed(listener, client->tenant, &client->flying,
                   still_flying(client->stream.fd, client->flying));
    TAILQ_FOREACH(tenant, &listener->tenants, entry)
        look_at_unread(listener, tenant);
}

/* Half of what others, who have @others, leave of @max. */
static unsigned share(unsigned max, unsigned others)
{
    return MAX((max - MIN(others, max)) / 2, (unsigned)STREAM_MAX_FDS);
}

static bool may_fly(const struct client_link *client, unsigned nfds)
{
    const struct listener *listener = client->listener;
    const struct tenant *tenant = client->tenant;

    return tenant->flying + client->stream.sent_fds + nfds <=
           share(listener->max_flying, listener->flying - tenant->flying);
}

bool listener_may_send(struct client_link *client, unsigned nfds)
{
    if (may_fly(client, nfds))
        return true;
    if (clock_ms() - client->listener->counted_ms < LISTENER_COUNT_MS)
        return false;
    look_at_all(client->listener);
    return may_fly(client, nfds);
}

bool listener_holds_too_much(const struct tenant *tenant)
{
    const struct listener *listener = container_of(tenant->held.up, struct listener, held);

    return tenant->held.n > share(listener->max_held, listener->held.n - tenant->held.n);
}

struct client_link *listener_worst(struct tenant *tenant, bool unsent)
{
    struct listener *listener = container_of(tenant->held.up, struct listener, held);
    struct client_link *client, *worst = NULL;
    unsigned most = 0;

    TAILQ_FOREACH(client, &listener->clients, entry) {
        unsigned n = client->stream.out_fds + (unsent ? 0 : client->flying);

        if (client->tenant == tenant && n > most) {
            worst = client;
            most = n;
        }
    }
    return worst;
}

void listener_keep_unread(struct client_link *client)
{
    struct listener *listener = client->listener;
    struct tenant *tenant = client->tenant;
    struct timeval tv = clock_timeval(LISTENER_UNREAD_MS);
    struct unread *unread;

    landed(listener, tenant, &client->flying, still_flying(client->stream.fd, client->flying));
    if (!client->flying || !(unread = calloc(1, sizeof(*unread)))) {
        landed(listener, tenant, &client->flying, 0);
        return;
    }
    shutdown(client->stream.fd, SHUT_RDWR); /* it finds the end behind what it has not read */
    unread->fd = steal_fd(&client->stream.fd);
    unread->flying = client->flying;
    TAILQ_INSERT_TAIL(&tenant->unread, unread, entry);
    tenant->nunread++;
    if (!evtimer_pending(listener->unread, NULL))
        event_add(listener->unread, &tv);
}

/* ---- coming in -------------------------------------------------------------------------- */

/* Nothing is kept for it: one message into the fresh socket, and the end. */
static void refuse_fd(struct listener *listener, int fd, const struct ucred *cred, enum cause cause,
                      const char *text)
{
    struct msg msg = {.type = MSG_REFUSED};
    struct stream stream;

    listener_log_refused(listener, cred->uid, (uint32_t)cred->pid, text);
    listener->refused[cause]++;
    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    stream_init(&stream, fd, 0);
    stream.closer = listener->closer;
    stream.uid = payer_of(listener->payers, cred->uid);
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

bool listener_trusts(uint32_t uid)
{
    return uid == 0 || uid == geteuid() || uid == CORE_GPU_UID;
}

/* The most connections that a user may have, of @room, and of the descriptors for them. */
static unsigned may_hold(const struct listener *listener, const struct tenant *tenant,
                         unsigned room)
{
    unsigned others = listener->nclients - (tenant ? tenant->nclients : 0);
    uint64_t of_room = share_of(room, listener->max_clients_per_user + LISTENER_TOOLS, others);

    return (unsigned)MIN(of_room, share_of(listener->max_conns, listener->max_conns / 2, others));
}

/* NULL: welcome. */
static const char *room_check(const struct listener *listener, const struct tenant *tenant, int fd,
                              char *buf, size_t len)
{
    unsigned room = listener->max_clients + LISTENER_EXTRA;
    unsigned held = tenant->nclients + tenant->nunread;

    if (closer_pending(listener->closer, tenant->uid) >= LISTENER_MAX_PENDING) {
        snprintf(
            buf, len,
            "user %u has sent %u descriptors and more that are not closed yet (do they linger?)",
            tenant->uid, LISTENER_MAX_PENDING);
        return buf;
    }
    if (!listener_trusts(tenant->uid)) {
        room -= LISTENER_ROOT;
        if ((unsigned)fd >= listener->max_fd) { /* descriptors are given out from below */
            snprintf(buf, len, "commd has few descriptors left (LimitNOFILE=)");
            return buf;
        }
    }
    if (listener->nclients >= MIN(room, listener->nslots)) {
        snprintf(buf, len, "this node serves %u clients already (limits.max_clients)",
                 listener->max_clients);
        return buf;
    }
    if (held >= listener->max_clients_per_user + LISTENER_TOOLS) {
        snprintf(buf, len, "user %u has %u clients already (limits.max_clients_per_user)",
                 tenant->uid, listener->max_clients_per_user);
        return buf;
    }
    if (!listener_trusts(tenant->uid) && held >= may_hold(listener, tenant, room)) {
        snprintf(buf, len, "user %u has %u connections already, half of what others leave (%s)",
                 tenant->uid, held,
                 room < listener->max_conns ? "limits.max_clients" : "LimitNOFILE=");
        return buf;
    }
    return NULL;
}

void listener_held(const struct listener *listener, uint32_t uid, uint64_t *ret_used,
                   uint64_t *ret_may, uint64_t *ret_all, uint64_t *ret_room)
{
    const struct tenant *tenant = tenant_find((struct listener *)listener, uid); /* only reads */
    unsigned most = listener->max_clients_per_user + LISTENER_TOOLS;
    unsigned used = tenant ? tenant->nclients : 0;

    *ret_used = used + (tenant ? tenant->nunread : 0);
    *ret_room = listener->max_clients + LISTENER_EXTRA - (listener_trusts(uid) ? 0 : LISTENER_ROOT);
    *ret_all = listener->nclients;
    *ret_may = listener_trusts(uid) ? MIN(most, *ret_room)
                                    : may_hold(listener, tenant, (unsigned)*ret_room);
}

static unsigned client_free_slot(struct listener *listener)
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

static void log_full(struct listener *listener)
{
    log_limit_write(&listener->limit, CONF_LOG_WARN, "descriptors", "",
                    "no file descriptor is left for clients (LimitNOFILE=) -> refused");
}

static uint32_t counted_as(const struct listener *listener, const struct ucred *cred, int pidfd)
{
    return listener->ops->user
               ? listener->ops->user(listener->arg, cred->uid, (uint32_t)cred->pid, pidfd)
               : cred->uid;
}

static void accept_one(struct listener *listener, int fd)
{
    struct ucred cred = {.uid = UINT32_MAX};
    socklen_t len = sizeof(cred);
    struct tenant *tenant = NULL;
    _cleanup_(close_fdp) int pidfd = -1;
    char why[MSG_TEXT_MAX];
    uint32_t uid = UINT32_MAX;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        cred.uid = UINT32_MAX;
    else if (cred.uid == overflow_uid() && !listener_trusts(cred.uid))
        return refuse_fd(listener, fd, &cred, CAUSE_DENIED,
                         "its user is not known here (another user namespace?)");
    else if (cred.uid == CORE_GPU_UID || cred.uid == CORE_CONTAINED_UID)
        return refuse_fd(listener, fd, &cred, CAUSE_DENIED,
                         "commd keeps the number of its user for itself");
    else {
        pidfd = peer_pidfd(fd, cred.pid);
        uid = counted_as(listener, &cred, pidfd);
        tenant = tenant_get(listener, payer_of(listener->payers, uid));
    }
    if (!tenant) /* no memory: the client sees it and may come again */
        closer_sock(listener->closer, payer_of(listener->payers, cred.uid), fd);
    else if (room_check(listener, tenant, fd, why, sizeof(why)))
        refuse_fd(listener, fd, &cred, CAUSE_QUOTA, why);
    else
        client_new(listener, tenant, client_free_slot(listener), fd, steal_fd(&pidfd), uid,
                   (uint32_t)cred.pid); /* likewise */
}

/* Whose it is, as far as that can be told. */
static void close_sock(struct listener *listener, int fd)
{
    struct ucred cred = {.uid = UINT32_MAX};
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        cred.uid = UINT32_MAX;
    closer_sock(listener->closer, payer_of(listener->payers, cred.uid), fd);
}

/* Takes nobody any more. Those in the queue may have sent something already. */
static void listener_end(struct listener *listener)
{
    int fd;

    if (listener->fd < 0)
        return;
    shutdown(listener->fd, SHUT_RDWR); /* later callers learn at once that nobody is here */
    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == ECONNABORTED ||
           errno == EINTR)
        if (fd >= 0)
            close_sock(listener, fd);
    closer_fd(listener->closer, geteuid(), steal_fd(&listener->fd));
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
            if (fd >= 0)
                close_sock(listener, fd);
            sock_reserve_init(&listener->reserve); /* else the next call tries again */
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

static void listener_more(evutil_socket_t fd, short what, void *arg)
{
    /* listener_turn() does the work */
}

static void share_descriptors(struct listener *listener)
{
    struct rlimit files = {.rlim_cur = 1024};
    unsigned max;

    getrlimit(RLIMIT_NOFILE, &files);
    max = (unsigned)MIN(files.rlim_cur, (rlim_t)INT32_MAX);
    listener->max_conns = max / 4;
    listener->max_flying = max / 2;
    listener->max_held = max / 16; /* in the last tenth there is room for that */
    listener->max_fd = MIN(max - max / 10, (unsigned)closer_reserve());
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
    TAILQ_INIT(&listener->tenants);
    TAILQ_INIT(&listener->turns);
    listener->fd = -1;
    sock_reserve_init(&listener->reserve);
    share_descriptors(listener);
    listener->base = config->base;
    listener->closer = config->closer;
    listener->ops = config->ops;
    listener->arg = config->arg;
    listener->nslots = config->max_clients + LISTENER_EXTRA;
    listener_set_limits(listener, config->max_clients, config->max_clients_per_user);
    if (listener->max_conns < config->max_clients)
        log_warn("only %u files may be open (LimitNOFILE=), which is enough for %u connections: "
                 "raise it to %u for limits.max_clients: %u",
                 4 * listener->max_conns, listener->max_conns, 4 * config->max_clients,
                 config->max_clients);
    listener->slots = calloc(listener->nslots, sizeof(*listener->slots));
    if (!listener->slots || log_limit_init(&listener->limit, config->base))
        return -ENOMEM;
    if (strlen(config->path) >= sizeof(listener->path))
        return path_error(config->path, -ENAMETOOLONG, ret_error);
    snprintf(listener->path, sizeof(listener->path), "%s", config->path);
    r = listener_bind(listener, config->mode);
    if (r)
        return path_error(config->path, r, ret_error);
    listener->accept =
        event_new(listener->base, listener->fd, EV_READ | EV_PERSIST, listener_accept, listener);
    listener->more = evtimer_new(listener->base, listener_more, listener);
    listener->unread = evtimer_new(listener->base, listener_unread, listener);
    if (!listener->accept || !listener->more || !listener->unread ||
        event_add(listener->accept, NULL))
        return -ENOMEM;
    *ret_listener = steal_ptr(listener);
    return 0;
}

static void clients_free(struct client_list *list)
{
    struct client_link *client;

    while ((client = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, client, entry);
        client_free(client);
    }
}

static void tenants_free(struct listener *listener)
{
    struct tenant *tenant;

    while ((tenant = TAILQ_FIRST(&listener->tenants))) {
        struct unread *unread;

        while ((unread = TAILQ_FIRST(&tenant->unread))) {
            TAILQ_REMOVE(&tenant->unread, unread, entry);
            closer_sock(listener->closer, tenant->uid, unread->fd);
            free(unread);
        }
        TAILQ_REMOVE(&listener->tenants, tenant, entry);
        free(tenant);
    }
}

struct listener *listener_free(struct listener *listener)
{
    if (!listener)
        return NULL;
    clients_free(&listener->clients);
    clients_free(&listener->dead);
    tenants_free(listener);
    if (listener->accept)
        event_free(listener->accept);
    if (listener->more)
        event_free(listener->more);
    if (listener->unread)
        event_free(listener->unread);
    listener_unlink(listener);
    listener_end(listener);
    sock_reserve_fini(&listener->reserve);
    log_limit_fini(&listener->limit);
    free(listener->slots);
    free(listener);
    return NULL;
}

void listener_turn(struct listener *listener)
{
    listener_serve(listener);
    clients_free(&listener->dead);
    tenants_reap(listener);
}

void listener_send(struct listener *listener, unsigned slot, const struct msg *msg, const int *fds,
                   unsigned nfds)
{
    if (listener->slots[slot])
        client_send(listener->slots[slot], msg, fds, nfds);
}

void listener_send_shared(struct listener *listener, unsigned slot, const struct msg *msg,
                          struct stream_fd *const *fds, unsigned nfds)
{
    if (listener->slots[slot])
        client_send_shared(listener->slots[slot], msg, fds, nfds);
}

void listener_pause(struct listener *listener, unsigned slot)
{
    if (listener->slots[slot])
        client_pause(listener->slots[slot]);
}

void listener_resume(struct listener *listener, unsigned slot)
{
    if (listener->slots[slot])
        client_resume(listener->slots[slot]);
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
    const struct client_link *client = listener->slots[slot];

    if (!client)
        return false;
    *ret_client = (struct listener_client){
        .uid = client->uid,
        .payer = client->tenant->uid,
        .pid = client->pid,
        .welcome = client->session == SESSION_WELCOME,
    };
    return true;
}

void listener_log_user(struct listener *listener, uint32_t uid, enum conf_log_level level,
                       const char *text)
{
    char who[LOG_LIMIT_WHO];

    snprintf(who, sizeof(who), "user %u", payer_of(listener->payers, uid));
    log_limit_write(&listener->limit, level, who, NULL, "%s", text);
}

const uint64_t *listener_refused(const struct listener *listener)
{
    return listener->refused;
}

void listener_set_limits(struct listener *listener, unsigned max_clients,
                         unsigned max_clients_per_user)
{
    listener->max_clients = MIN(max_clients, listener->nslots - LISTENER_EXTRA);
    listener->max_clients_per_user = max_clients_per_user;
}

void listener_set_payers(struct listener *listener, const struct payers *payers)
{
    listener->payers = payers;
}

void listener_drain(struct listener *listener)
{
    struct client_link *client, *next;

    event_del(listener->accept);
    listener_end(listener);
    listener_unlink(listener);
    for (client = TAILQ_FIRST(&listener->clients); client; client = next) {
        next = TAILQ_NEXT(client, entry);
        client_close(client);
    }
}

bool listener_idle(const struct listener *listener)
{
    return TAILQ_EMPTY(&listener->clients);
}

bool listener_unused(const struct listener *listener)
{
    const struct client_link *client;

    TAILQ_FOREACH(client, &listener->clients, entry)
        if (client->uid != CORE_GPU_UID)
            return false;
    return true;
}
