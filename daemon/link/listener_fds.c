/* listener_fds.c - descriptors that are sent to clients, and how many a user may have.
 *
 * A descriptor flies if it was sent and the client has not taken it out of the socket. The kernel
 * lets no more descriptors of our user fly than RLIMIT_NOFILE. So half of RLIMIT_NOFILE may fly,
 * and a sixteenth may wait to be sent. Of either, one user may have half of what the others leave.
 * Descriptors that a client does not take out fly even after we have closed its connection. So such
 * a socket is kept, and counts as a connection, until it is empty. */
#include <assert.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "daemon/core/share.h"
#include "daemon/link/client_link.h"
#include "daemon/process/clock.h"

enum {
    LISTENER_COUNT_MS = 10,   /* between two looks at all sockets */
    LISTENER_UNREAD_MS = 250, /* between two looks at the sockets of closed connections */
    LISTENER_SKB = 512,       /* the least that a message takes of a socket's buffer */
};

/* @known descriptors were sent on @fd. How many may still be in the socket? */
static unsigned still_flying(int fd, unsigned known)
{
    int unread;

    if (ioctl(fd, SIOCOUTQ, &unread))
        return known;
    return MIN(known, STREAM_MAX_FDS * ((unsigned)unread / LISTENER_SKB));
}

static void landed(struct listener *listener, struct tenant *tenant, unsigned *flying, unsigned now)
{
    assert(now <= *flying && *flying <= tenant->flying && tenant->flying <= listener->flying);
    listener->flying -= *flying - now;
    tenant->flying -= *flying - now;
    *flying = now;
}

static void forget_unread(struct listener *listener, struct tenant *tenant, struct unread *unread)
{
    assert(tenant->nunread);
    TAILQ_REMOVE(&tenant->unread, unread, entry);
    tenant->nunread--;
    closer_sock(listener->closer, tenant->uid, unread->fd);
    free(unread);
}

void listener_drop_unread(struct listener *listener, struct tenant *tenant)
{
    while (tenant->nunread)
        forget_unread(listener, tenant, TAILQ_FIRST(&tenant->unread));
}

static void look_at_unread(struct listener *listener, struct tenant *tenant)
{
    struct unread *unread, *next;

    for (unread = TAILQ_FIRST(&tenant->unread); unread; unread = next) {
        next = TAILQ_NEXT(unread, entry);
        landed(listener, tenant, &unread->flying, still_flying(unread->fd, unread->flying));
        if (unread->flying)
            continue;
        forget_unread(listener, tenant, unread);
    }
}

void listener_unread(evutil_socket_t fd, short what, void *arg)
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

/* What one user may have of @max while the other users have @others: half of the rest, and at least
 * enough for one message. */
static unsigned half_of(unsigned max, unsigned others)
{
    return MAX((unsigned)share_of(max, max / 2, others), (unsigned)STREAM_MAX_FDS);
}

static bool may_fly(const struct client_link *client, unsigned nfds)
{
    const struct listener *listener = client->listener;
    const struct tenant *tenant = client->tenant;

    return tenant->flying + client->stream.sent_fds + nfds <=
           half_of(listener->max_flying, listener->flying - tenant->flying);
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

    return tenant->held.n > half_of(listener->max_held, listener->held.n - tenant->held.n);
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
    shutdown(client->stream.fd,
             SHUT_RDWR); /* the client finds the end of file behind its unread messages */
    unread->fd = steal_fd(&client->stream.fd);
    unread->flying = client->flying;
    TAILQ_INSERT_TAIL(&tenant->unread, unread, entry);
    tenant->nunread++;
    if (!evtimer_pending(listener->unread, NULL))
        event_add(listener->unread, &tv);
}

void listener_share_fds(struct listener *listener)
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
