/* client_link.c - one client on the UNIX socket.
 *
 *   OPEN     reads, at most CLIENT_BUDGET messages in a row, then others have their turn
 *   ENDING   end of file was seen; for CLIENT_LINGER_MS we wait to learn whether the process
 *            has ended too, because "its process ended" is what people want to read
 *   CLOSING  a last message goes out, nothing is read, within CLIENT_DEADLINE_MS
 *   DEAD     on listener->dead until the turn ends
 *
 * A client has CLIENT_DEADLINE_MS to be welcomed. The owner (and through it the core) hears of
 * it with its first well-formed message; what sends garbage never gets that far.
 *
 * Death is seen by the pidfd even when a forked child still holds the socket, and by end of
 * file even without a pidfd. Whichever comes first, what the client had sent before is
 * delivered before its end: a LEAVE followed by exit() must not look like a lost rank.
 *
 * What a client does not read piles up to CLIENT_MAX_UNSENT (plus one message), then it is
 * closed. Sending never calls the owner: failures go to client->doom and are carried out by
 * the timer in the next turn. */
#include "daemon/client_link.h"

#include <poll.h>
#include <stdio.h>

#include "daemon/clock.h"
#include "daemon/log.h"

enum {
    CLIENT_BUDGET = 64,
    CLIENT_ADMIN_COST = 16,    /* tables take longer to make than decisions */
    CLIENT_LAST_BUDGET = 4096, /* messages taken from a socket whose owner is dead */
    CLIENT_DEADLINE_MS = 2000,
    CLIENT_LINGER_MS = 30, /* a killed process closes its files some time before it is gone */
    CLIENT_MAX_UNSENT = 1 << 20,
};

struct client *client_free(struct client *client)
{
    if (!client)
        return NULL;
    if (client->read)
        event_free(client->read);
    if (client->write)
        event_free(client->write);
    if (client->died)
        event_free(client->died);
    if (client->timer)
        event_free(client->timer);
    if (client->again)
        event_free(client->again);
    stream_fini(&client->stream);
    close_fdp(&client->pidfd);
    free(client);
    return NULL;
}

static void client_arm(struct client *client, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(client->timer, &tv);
}

/* Takes it out of everything; the memory and the socket stay until the end of the turn. */
static void client_bury(struct client *client)
{
    struct listener *listener = client->listener;

    if (client->state == CLIENT_DEAD)
        return;
    client->state = CLIENT_DEAD;
    listener->slots[client->slot] = NULL;
    listener->nclients--;
    TAILQ_REMOVE(&listener->clients, client, entry);
    TAILQ_INSERT_TAIL(&listener->dead, client, entry);
    event_del(client->read);
    event_del(client->write);
    event_del(client->timer);
    event_del(client->again);
    if (client->died)
        event_del(client->died);
}

/* It ended by itself, or by our decision here: the owner is told. */
static void client_lost(struct client *client, const char *text)
{
    struct listener *listener = client->listener;
    unsigned slot = client->slot;
    bool known = client->known;

    client->known = false;
    client_bury(client);
    if (known)
        listener->ops->closed(listener->arg, slot, text);
}

static int client_flush(struct client *client)
{
    int r = stream_flush(&client->stream);

    if (r == STREAM_E_AGAIN)
        event_add(client->write, NULL);
    else
        event_del(client->write);
    if (r == 0 && client->state == CLIENT_CLOSING)
        client_bury(client);
    return r;
}

static void client_doom(struct client *client, const char *text)
{
    if (!client->doom[0])
        snprintf(client->doom, sizeof(client->doom), "%s", text);
    event_active(client->timer, EV_TIMEOUT, 0);
}

void client_send(struct client *client, const struct msg *msg, const int *fds, unsigned nfds)
{
    char text[MSG_TEXT_MAX];
    int r;

    if (client->doom[0] || client->state == CLIENT_CLOSING)
        return;
    if (client->stream.out_bytes > CLIENT_MAX_UNSENT) {
        listener_log_refused(client->listener, client->uid, client->pid,
                             "it does not read what it is sent");
        client_doom(client, "it does not read what it is sent");
        return;
    }
    r = stream_send(&client->stream, msg, fds, nfds);
    if (r) {
        snprintf(text, sizeof(text), "%s could not be sent to it: %s", msg_type_name(msg->type),
                 strerror(-r));
        log_error("client pid %u uid %u: %s -> closing it", client->pid, client->uid, text);
        client_doom(client, text);
        return;
    }
    if (msg->type == MSG_WELCOME) {
        client->welcome = true;
        event_del(client->timer);
    }
    if (client_flush(client) < 0)
        client_doom(client, "its connection closed");
}

void client_close(struct client *client)
{
    client->known = false;
    if (client->doom[0]) {
        client_bury(client);
        return;
    }
    client->state = CLIENT_CLOSING;
    event_del(client->read);
    if (client->died)
        event_del(client->died);
    client_arm(client, CLIENT_DEADLINE_MS);
    if (client_flush(client) < 0)
        client_bury(client);
}

/* Tells the client why, then closes. */
static void client_refuse(struct client *client, enum cause cause, const char *text)
{
    struct listener *listener = client->listener;
    struct msg msg = {.type = MSG_REFUSED};
    unsigned slot = client->slot;
    bool known = client->known;

    listener_log_refused(listener, client->uid, client->pid, text);
    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    client_send(client, &msg, NULL, 0);
    client_close(client);
    if (known)
        listener->ops->closed(listener->arg, slot, text);
}

static void client_deliver(struct client *client, const struct msg *msg)
{
    struct listener *listener = client->listener;

    if (!client->known) {
        client->known = true;
        listener->ops->open(listener->arg, client->slot, client->uid, client->pid);
    }
    /* open() may have ended it already */
    if (client->state == CLIENT_OPEN && client->known)
        listener->ops->msg(listener->arg, client->slot, msg);
}

/* Takes up to @budget messages. 0: the budget is used up; STREAM_E_AGAIN, STREAM_E_EOF,
 * -errno; -ECANCELED: the client was ended on the way. */
static int client_take(struct client *client, unsigned budget)
{
    while (budget) {
        struct msg msg;
        char why[MSG_TEXT_MAX];
        unsigned cost;
        int r;

        r = stream_next(&client->stream, &msg);
        if (r == CODEC_E_MORE) {
            r = stream_fill(&client->stream);
            if (r)
                return r;
            continue;
        }
        if (r) {
            snprintf(why, sizeof(why), "protocol error: %s", codec_strerror(r));
            client_refuse(client, CAUSE_PROTOCOL, why);
            return -ECANCELED;
        }
        cost = msg.type == MSG_ADMIN ? CLIENT_ADMIN_COST : 1;
        client_deliver(client, &msg);
        msg_fini(&msg);
        budget -= MIN(cost, budget);
        if (client->state != CLIENT_OPEN || !client->known)
            return -ECANCELED;
    }
    return 0;
}

static void client_again(struct client *client)
{
    static const struct timeval now;

    event_add(client->again, &now);
}

static void client_read(evutil_socket_t fd, short what, void *arg)
{
    struct client *client = arg;
    int r;

    if (client->state != CLIENT_OPEN)
        return;
    r = client_take(client, CLIENT_BUDGET);
    if (r == 0) {
        /* Others first. A timer of zero, not event_active(): libevent 2.1 runs what is
         * activated from a callback before it polls, so one flooding client would be all
         * that this thread ever does. */
        client_again(client);
    } else if (r == STREAM_E_EOF && client->died) {
        client->state = CLIENT_ENDING;
        event_del(client->read);
        client_arm(client, CLIENT_LINGER_MS);
    } else if (r != STREAM_E_AGAIN && r != -ECANCELED) {
        client_lost(client, "its connection closed");
    }
}

/* Nothing more will come but what is in the socket: take that, then end. */
static void client_end(struct client *client, const char *text)
{
    if (client->state == CLIENT_OPEN && client_take(client, CLIENT_LAST_BUDGET) == -ECANCELED)
        return;
    client_lost(client, text);
}

static void client_write(evutil_socket_t fd, short what, void *arg)
{
    struct client *client = arg;
    int r = client_flush(client);

    if (r >= 0)
        return;
    if (client->state == CLIENT_CLOSING)
        client_bury(client);
    else
        client_end(client, "its connection closed");
}

static void client_died(evutil_socket_t fd, short what, void *arg)
{
    client_end(arg, "its process ended");
}

static void client_timer(evutil_socket_t fd, short what, void *arg)
{
    struct client *client = arg;

    if (client->state == CLIENT_CLOSING)
        client_bury(client); /* it does not read its last message */
    else if (client->doom[0])
        client_end(client, client->doom);
    else if (client->state == CLIENT_ENDING)
        client_lost(client, "its connection closed");
    else if (!client->welcome)
        client_refuse(client, CAUSE_PROTOCOL, "no hello within 2 s");
}

static void client_freep(struct client **client)
{
    *client = client_free(*client);
}

int client_new(struct listener *listener, unsigned slot, int fd, int pidfd, uint32_t uid,
               uint32_t pid)
{
    _cleanup_(client_freep) struct client *client = calloc(1, sizeof(*client));

    if (!client) {
        close(fd);
        close_fdp(&pidfd);
        return -ENOMEM;
    }
    client->listener = listener;
    client->slot = slot;
    client->uid = uid;
    client->pid = pid;
    client->pidfd = pidfd;
    stream_init(&client->stream, fd, CODEC_MAX_CLIENT_FRAME);
    client->stream.keeps_fds = true;
    client->read = event_new(listener->base, fd, EV_READ | EV_PERSIST, client_read, client);
    client->write = event_new(listener->base, fd, EV_WRITE | EV_PERSIST, client_write, client);
    client->timer = evtimer_new(listener->base, client_timer, client);
    client->again = evtimer_new(listener->base, client_read, client);
    if (pidfd >= 0)
        client->died = event_new(listener->base, pidfd, EV_READ, client_died, client);
    if (!client->read || !client->write || !client->timer || !client->again || (pidfd >= 0 && !client->died) ||
        event_add(client->read, NULL) || (client->died && event_add(client->died, NULL)))
        return -ENOMEM;
    client_arm(client, CLIENT_DEADLINE_MS);
    listener->slots[slot] = client;
    listener->nclients++;
    TAILQ_INSERT_TAIL(&listener->clients, client, entry);
    steal_ptr(client);
    return 0;
}
