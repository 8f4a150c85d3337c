/* listener_away.c - clients of the commd before this one, which have not connected again yet.
 *
 * A client that is away has its slot, and a pidfd that this commd was given. Its process is alive
 * as long as the pidfd says so. It comes back with a hello that shows its key: if the kernel says
 * that it has the same user and is the same process, it takes its slot over (listener_return()).
 * While the process of a pidfd lives, no other process can have its pid.
 *
 * Clients that are away count as connections of their users: so nobody takes their place before
 * they come back, and nobody has more by a restart of commd than without it. They come back
 * whatever others hold by then (listener_may_return()): what they had they have. Who is let in so,
 * and does not come back by its first message, is refused. */
#include <assert.h>
#include <poll.h>

#include "daemon/link/client_link.h"

struct away {
    struct listener *listener; /* borrowed */
    struct tenant *tenant;     /* borrowed */
    unsigned slot;
    uint32_t uid, pid;
    int pidfd; /* owned */
    uint8_t key[MSG_KEY];
    struct event *died; /* owned */
};

static void away_forget(struct away *away)
{
    struct listener *listener = away->listener;

    assert(listener->away[away->slot] == away && listener->naway && away->tenant->naway);
    listener->away[away->slot] = NULL;
    listener->naway--;
    away->tenant->naway--;
    if (away->died)
        event_free(away->died);
    close_fdp(&away->pidfd);
    free(away);
}

static void away_died(evutil_socket_t fd, short what, void *arg)
{
    struct away *away = arg;
    struct listener *listener = away->listener;
    unsigned slot = away->slot;

    if (listener->ops->ended)
        listener->ops->ended(listener->arg, away->uid, away->pid, away->pidfd);
    away_forget(away);
    listener->ops->gone(listener->arg, slot, "its process ended");
}

int listener_away(struct listener *listener, unsigned slot, uint32_t uid, uint32_t payer,
                  uint32_t pid, int *pidfd, const uint8_t key[MSG_KEY])
{
    struct tenant *tenant;
    struct away *away;

    if (slot >= listener->nslots || listener->slots[slot] || listener->away[slot])
        return -EINVAL;
    tenant = tenant_get(listener, payer);
    away = tenant ? calloc(1, sizeof(*away)) : NULL;
    if (!away)
        return -ENOMEM;
    *away = (struct away){
        .listener = listener, .tenant = tenant, .slot = slot, .uid = uid, .pid = pid, .pidfd = -1};
    tenant->naway++;
    memcpy(away->key, key, sizeof(away->key));
    listener->away[slot] = away;
    listener->naway++;
    away->died = event_new(listener->base, *pidfd, EV_READ, away_died, away);
    if (!away->died || event_add(away->died, NULL)) {
        away_forget(away);
        return -ENOMEM;
    }
    away->pidfd = steal_fd(pidfd);
    return 0;
}

bool listener_is_away(const struct listener *listener, unsigned slot)
{
    return slot < listener->nslots && listener->away[slot];
}

void listener_away_end(struct listener *listener, unsigned slot)
{
    if (slot < listener->nslots && listener->away[slot])
        away_forget(listener->away[slot]);
}

void listener_away_free(struct listener *listener)
{
    for (unsigned i = 0; listener->away && i < listener->nslots; i++)
        listener_away_end(listener, i);
    free(listener->away);
}

static bool lives(const struct away *away)
{
    struct pollfd p = {.fd = away->pidfd, .events = POLLIN};

    return poll(&p, 1, 0) == 0;
}

bool listener_may_return(const struct listener *listener, uint32_t uid, uint32_t pid)
{
    const struct client_link *client;
    unsigned away = 0;

    for (unsigned i = 0; i < listener->nslots && listener->naway; i++)
        away += listener->away[i] && listener->away[i]->uid == uid && listener->away[i]->pid == pid;
    if (!away)
        return false;
    TAILQ_FOREACH(client, &listener->clients, entry)
        if (client->session == SESSION_NONE && client->uid == uid && client->pid == pid && !--away)
            return false;
    return true;
}

bool listener_return(struct client_link *client, const uint8_t key[MSG_KEY])
{
    static const uint8_t none[MSG_KEY];
    struct listener *listener = client->listener;
    struct away *away = NULL;

    assert(client->session == SESSION_NONE);
    if (!listener->naway || same_secret(key, none, MSG_KEY))
        return false;
    for (unsigned i = 0; i < listener->nslots && !away; i++)
        if (listener->away[i] && same_secret(listener->away[i]->key, key, MSG_KEY))
            away = listener->away[i];
    if (!away || away->uid != client->uid || away->pid != client->pid || !lives(away))
        return false;
    listener->slots[client->slot] = NULL;
    client->slot = away->slot;
    listener->slots[client->slot] = client;
    away_forget(away);
    return true;
}
