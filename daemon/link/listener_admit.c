/* listener_admit.c - which clients are let in.
 *
 * SO_PEERCRED tells uid and pid of the client. A client of a foreign user namespace has the
 * overflow uid, which is no user in particular, and is refused. A client of a foreign pid namespace
 * has pid 0. It is served, but only end of file tells of its death. Where the kernel has
 * SO_PEERPIDFD (6.5) the pidfd is certain to be of the process that connected; pidfd_open() could
 * meet a reused pid.
 *
 * Room: max_clients + LISTENER_EXTRA slots, the last LISTENER_ROOT of which are for root and
 * our own user, and one user may hold max_clients_per_user + LISTENER_TOOLS. The exact quotas
 * for training clients are the core's; these bounds hold before anything is read. A user of whom
 * LISTENER_MAX_PENDING descriptors are still being closed gets no further connection. Connections
 * have two descriptors each, and may have half of all descriptors; a user may have half of what the
 * others leave of that. So one user's sessions and boards together leave some to others. When nine
 * tenths of all descriptors are taken, only root and our own user are let in. A process that was a
 * client of the commd before this one comes back beyond these bounds: by its place in them it was
 * let in then, and that is kept for it (listener_away.c).
 *
 * A new connection may have messages with descriptors in it already. So no connection is closed
 * here, not even a refused one: the closer does that (shm/util/closer.c). */
#include <assert.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "daemon/core/core.h"
#include "daemon/core/share.h"
#include "daemon/link/client_link.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; Debian 12's headers do not have it */
#endif

enum {
    LISTENER_ROOT = 16,
    LISTENER_TOOLS = 16,
    LISTENER_ACCEPT_BUDGET = 64,
    LISTENER_MAX_PENDING = 1024,
};

/* Sends one message into the fresh socket and ends the connection. Nothing is kept of it. */
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

/* Connections of all, or of one user, and those that are kept for who is away. */
static unsigned all_held(const struct listener *listener)
{
    return listener->nclients + listener->naway;
}

static unsigned held_by(const struct tenant *tenant)
{
    return tenant ? tenant->nclients + tenant->naway : 0;
}

/* The most connections that a user may have, by @room and by the descriptors for connections. */
static unsigned may_hold(const struct listener *listener, const struct tenant *tenant,
                         unsigned room)
{
    unsigned others = all_held(listener) - held_by(tenant);
    uint64_t of_room = share_of(room, listener->max_clients_per_user + LISTENER_TOOLS, others);

    return (unsigned)MIN(of_room, share_of(listener->max_conns, listener->max_conns / 2, others));
}

/* NULL: the client may come in. Else why not. */
static const char *room_check(const struct listener *listener, const struct tenant *tenant, int fd,
                              char *buf, size_t len)
{
    unsigned room = listener->max_clients + LISTENER_EXTRA;
    unsigned held = held_by(tenant) + tenant->nunread;

    if (closer_pending(listener->closer, tenant->uid) >= LISTENER_MAX_PENDING) {
        snprintf(
            buf, len,
            "user %u has sent %u descriptors and more that are not closed yet (do they linger?)",
            tenant->uid, LISTENER_MAX_PENDING);
        return buf;
    }
    if (!listener_trusts(tenant->uid)) {
        room -= LISTENER_ROOT;
        if ((unsigned)fd >= listener->max_fd) { /* the kernel gives out the lowest free number */
            snprintf(buf, len, "commd has few descriptors left (LimitNOFILE=)");
            return buf;
        }
    }
    if (all_held(listener) >= MIN(room, listener->nslots)) {
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
    const struct tenant *tenant = tenant_find(listener, uid);
    unsigned most = listener->max_clients_per_user + LISTENER_TOOLS;

    *ret_used = held_by(tenant) + (tenant ? tenant->nunread : 0);
    *ret_room = listener->max_clients + LISTENER_EXTRA - (listener_trusts(uid) ? 0 : LISTENER_ROOT);
    *ret_all = all_held(listener);
    *ret_may = listener_trusts(uid) ? MIN(most, *ret_room)
                                    : may_hold(listener, tenant, (unsigned)*ret_room);
}

static unsigned client_free_slot(struct listener *listener)
{
    unsigned slot = listener->next_slot;

    assert(all_held(listener) < listener->nslots);
    while (listener->slots[slot] || listener->away[slot])
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
    /* -1 also when the process has ended already: end of file will tell. */
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
    bool beyond;

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
    beyond = tenant && room_check(listener, tenant, fd, why, sizeof(why));
    if (!tenant) /* no memory: the client sees the end of file and may come again */
        closer_sock(listener->closer, payer_of(listener->payers, cred.uid), fd);
    else if (beyond && !listener_may_return(listener, uid, (uint32_t)cred.pid))
        refuse_fd(listener, fd, &cred, CAUSE_QUOTA, why);
    else if (all_held(listener) >= listener->nslots)
        closer_sock(listener->closer, tenant->uid, fd); /* kept for those who are away: the same */
    else
        client_new(listener, tenant, client_free_slot(listener), fd, steal_fd(&pidfd), uid,
                   (uint32_t)cred.pid, beyond); /* no memory: the same */
}

/* Closes @fd in the lane of its user, if that is known. */
static void close_sock(struct listener *listener, int fd)
{
    struct ucred cred = {.uid = UINT32_MAX};
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
        cred.uid = UINT32_MAX;
    closer_sock(listener->closer, payer_of(listener->payers, cred.uid), fd);
}

/* Clients in the queue may have sent something already, so the closer closes their sockets. */
void listener_end(struct listener *listener)
{
    int fd;

    if (listener->socket.fd < 0)
        return;
    /* Later clients learn at once that no commd listens. */
    shutdown(listener->socket.fd, SHUT_RDWR);
    while ((fd = accept4(listener->socket.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 ||
           errno == ECONNABORTED || errno == EINTR)
        if (fd >= 0)
            close_sock(listener, fd);
    closer_fd(listener->closer, geteuid(), steal_fd(&listener->socket.fd));
}

void listener_accept(evutil_socket_t unused, short what, void *arg)
{
    struct listener *listener = arg;

    for (unsigned i = 0; i < LISTENER_ACCEPT_BUDGET; i++) {
        int fd = -1, r;

        r = sock_accept(listener->socket.fd, &listener->reserve, NULL, &fd);
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
