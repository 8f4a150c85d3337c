/* client_link.c - one client on the UNIX socket.
 *
 *   OPEN     reads, at most CLIENT_BUDGET messages in a row, then others have their turn; not
 *            while a question of commctl is being answered, and until the answer is sent
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
 * What is to be read from a client only puts it in line (listener_work()); listener.c gives each
 * user its time in a turn, and calls client_step().
 *
 * What a client does not read piles up to CLIENT_MAX_UNSENT (plus one message) and to
 * CLIENT_MAX_FDS descriptors, then it is closed. The socket takes no more than CLIENT_SNDBUF, so
 * that few descriptors fly to one client; what may fly to one user is listener.c's to say. Where
 * that or the kernel forbids to send one more, a timer tries again, RETRY_MIN_MS to RETRY_MAX_MS.
 * When the share of a user holds up one of its clients for STALL_MS, the client of that user that
 * reads worst is closed. Sending never calls the owner: failures go to client->doom and are carried
 * out by the timer in the next turn. */
#include "daemon/link/client_link.h"

#include <poll.h>
#include <stdio.h>

#include "daemon/process/clock.h"
#include "daemon/process/log.h"

enum {
    CLIENT_BUDGET = 64,
    CLIENT_LAST_BUDGET = 4096, /* messages taken from a socket whose owner is dead */
    CLIENT_DEADLINE_MS = 2000,
    CLIENT_LATER_MS = 20,
    CLIENT_LINGER_MS = 30, /* a killed process closes its files some time before it is gone */
    CLIENT_MAX_UNSENT = 1 << 20,
    CLIENT_MAX_FDS = 1280, /* a board for each of its 1024 joins, and more */
    CLIENT_SNDBUF = 4096,  /* doubled by the kernel: 11 small messages */
    CLIENT_RETRY_MIN_MS = 20,
    CLIENT_RETRY_MAX_MS = 1000,
    CLIENT_STALL_MS = 2000,
    CLIENT_ADMINS = 16, /* sessions of commctl for one user */
};

static const char does_not_read[] = "it does not read what it is sent";

struct client_link *client_free(struct client_link *client)
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
    if (client->retry)
        event_free(client->retry);
    if (client->again)
        event_free(client->again);
    if (client->tenant)
        listener_keep_unread(client);
    stream_fini(&client->stream);
    close_fdp(&client->pidfd);
    free(client);
    return NULL;
}

static void client_arm(struct client_link *client, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(client->timer, &tv);
}

/* Takes it out of everything; the memory and the socket stay until the end of the turn. */
static void client_bury(struct client_link *client)
{
    struct listener *listener = client->listener;

    if (client->state == CLIENT_DEAD)
        return;
    client->state = CLIENT_DEAD;
    listener->slots[client->slot] = NULL;
    listener->nclients--;
    client->tenant->nclients--;
    client->tenant->nadmins -= client->admin;
    listener_unwork(client);
    TAILQ_REMOVE(&listener->clients, client, entry);
    TAILQ_INSERT_TAIL(&listener->dead, client, entry);
    event_del(client->read);
    event_del(client->write);
    event_del(client->timer);
    event_del(client->retry);
    event_del(client->again);
    if (client->died)
        event_del(client->died);
}

/* It ended by itself, or by our decision here: the owner is told. */
static void client_lost(struct client_link *client, const char *text)
{
    struct listener *listener = client->listener;
    unsigned slot = client->slot;
    bool known = client->known;

    client->known = false;
    client_bury(client);
    if (known && listener->ops->ended)
        listener->ops->ended(listener->arg, client->uid, client->pid, client->pidfd);
    if (known)
        listener->ops->closed(listener->arg, slot, text);
}

/* What could not be sent may be by the client's doing: it counts as a line of that user. */
static void log_client(struct client_link *client, const char *why)
{
    char text[MSG_TEXT_MAX + 64];

    snprintf(text, sizeof(text), "client pid %u uid %u: %s -> closing it", client->pid, client->uid,
             why);
    listener_log_user(client->listener, client->uid, CONF_LOG_ERROR, text);
}

static void client_doom(struct client_link *client, const char *text)
{
    if (!client->doom[0])
        snprintf(client->doom, sizeof(client->doom), "%s", text);
    event_active(client->timer, EV_TIMEOUT, 0);
}

static void client_doom_unread(struct client_link *client)
{
    stream_drop(&client->stream); /* the descriptors are needed at once */
    if (client->state == CLIENT_CLOSING)
        return client_bury(client);
    if (!client->doom[0])
        listener_log_refused(client->listener, client->uid, client->pid, does_not_read);
    client_doom(client, does_not_read);
}

static bool client_may_send(void *arg, unsigned nfds)
{
    struct client_link *client = arg;
    bool may = listener_may_send(client, nfds);

    if (may)
        client->waits_ms = 0;
    else if (!client->waits_ms)
        client->waits_ms = clock_ms();
    return may;
}

/* Descriptors cannot be sent now. Quickly again if some could just now. */
static void client_later(struct client_link *client, bool moved)
{
    struct client_link *worst;
    struct timeval tv;

    if (client->waits_ms && clock_ms() - client->waits_ms >= CLIENT_STALL_MS) {
        client->waits_ms = 0;
        worst = listener_worst(client->tenant, false);
        if (worst && worst->state != CLIENT_CLOSING)
            client_doom_unread(worst);
    }
    if (evtimer_pending(client->retry, NULL))
        return;
    client->retry_ms = moved || !client->retry_ms
                           ? CLIENT_RETRY_MIN_MS
                           : MIN(2 * client->retry_ms, (unsigned)CLIENT_RETRY_MAX_MS);
    tv = clock_timeval(client->retry_ms);
    event_add(client->retry, &tv);
}

static enum stream_result client_flush(struct client_link *client)
{
    size_t before = client->stream.out_bytes;
    enum stream_result r = stream_flush(&client->stream);

    client->flying += client->stream.sent_fds;
    client->tenant->flying += client->stream.sent_fds;
    client->listener->flying += client->stream.sent_fds;
    client->stream.sent_fds = 0;
    if (r == STREAM_AGAIN)
        event_add(client->write, NULL);
    else
        event_del(client->write);
    if (r == STREAM_LATER)
        client_later(client, client->stream.out_bytes < before);
    if (r == STREAM_OK && client->state == CLIENT_CLOSING)
        client_bury(client);
    else if (r == STREAM_OK && client->resumes)
        client_resume(client);
    return r;
}

/* It was queued, or could not be (@r). */
static void client_sent(struct client_link *client, const struct msg *msg, int r)
{
    char text[MSG_TEXT_MAX];
    struct client_link *worst;

    if (r) {
        snprintf(text, sizeof(text), "%s could not be sent to it: %s", msg_type_name(msg->type),
                 strerror(-r));
        log_client(client, text);
        client_doom(client, text);
        return;
    }
    if (msg->type == MSG_WELCOME) {
        client->welcome = true;
        event_del(client->timer);
    }
    if (client_flush(client) == STREAM_FAILED)
        client_doom(client, "its connection closed");
    while (listener_holds_too_much(client->tenant) &&
           (worst = listener_worst(client->tenant, true)))
        client_doom_unread(worst);
}

/* May anything more be queued for it? */
static bool client_takes(struct client_link *client, unsigned nfds)
{
    if (client->doom[0] || client->state == CLIENT_CLOSING)
        return false;
    if (client->stream.out_bytes <= CLIENT_MAX_UNSENT &&
        client->stream.out_fds + nfds <= CLIENT_MAX_FDS)
        return true;
    client_doom_unread(client);
    return false;
}

void client_send(struct client_link *client, const struct msg *msg, const int *fds, unsigned nfds)
{
    if (client_takes(client, nfds))
        client_sent(client, msg, stream_send(&client->stream, msg, fds, nfds));
}

void client_send_shared(struct client_link *client, const struct msg *msg,
                        struct stream_fd *const *fds, unsigned nfds)
{
    if (client_takes(client, nfds))
        client_sent(client, msg, stream_send_shared(&client->stream, msg, fds, nfds));
}

void client_pause(struct client_link *client)
{
    client->paused = true;
    client->resumes = false;
    event_del(client->read);
    event_del(client->again);
}

void client_resume(struct client_link *client)
{
    static const struct timeval at_once;

    client->resumes = client->stream.out != NULL;
    if (!client->paused || client->resumes || client->state != CLIENT_OPEN)
        return;
    client->paused = false;
    event_add(client->read, NULL);
    listener_work(client); /* more may have been read than was taken: no event will come for it */
    event_add(client->listener->more, &at_once);
}

void client_close(struct client_link *client)
{
    client->known = false;
    if (client->doom[0]) {
        client_bury(client);
        return;
    }
    client->state = CLIENT_CLOSING;
    event_del(client->read);
    event_del(client->again);
    if (client->died)
        event_del(client->died);
    client_arm(client, CLIENT_DEADLINE_MS);
    if (client_flush(client) == STREAM_FAILED)
        client_bury(client);
}

/* Tells the client why, then closes. */
static void client_refuse(struct client_link *client, enum cause cause, const char *text)
{
    struct listener *listener = client->listener;
    struct msg msg = {.type = MSG_REFUSED};
    unsigned slot = client->slot;
    bool known = client->known;

    listener_log_refused(listener, client->uid, client->pid, text);
    listener->refused[cause]++;
    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    client_send(client, &msg, NULL, 0);
    client_close(client);
    if (known)
        listener->ops->closed(listener->arg, slot, text);
}

/* One more session of commctl for its user? It is counted. */
static bool client_admin_ok(struct client_link *client)
{
    struct tenant *tenant = client->tenant;
    char text[MSG_TEXT_MAX];

    if (client->admin)
        return true;
    if (tenant->nadmins >= CLIENT_ADMINS && !listener_trusts(client->uid)) {
        snprintf(text, sizeof(text), "user %u has %u sessions of commctl already", tenant->uid,
                 tenant->nadmins);
        client_refuse(client, CAUSE_QUOTA, text);
        return false;
    }
    client->admin = true;
    tenant->nadmins++;
    return true;
}

static void client_deliver(struct client_link *client, const struct msg *msg)
{
    struct listener *listener = client->listener;

    if (msg->type == MSG_CLIENT_HELLO && msg->client_hello.admin && !client_admin_ok(client))
        return;
    if (msg->type == MSG_ADMIN && client->end[0])
        return; /* it will not read the answer */
    if (!client->known) {
        client->known = true;
        listener->ops->open(listener->arg, client->slot, client->uid, client->pid);
    }
    /* open() may have ended it already */
    if (client->state == CLIENT_OPEN && client->known)
        listener->ops->msg(listener->arg, client->slot, msg);
}

/* Takes messages until @until_us, or *@budget is used up. STREAM_OK: there may be more, or the client
 * was paused or ended on the way. */
static enum stream_result client_take(struct client_link *client, unsigned *budget,
                                      uint64_t until_us, const char **ret_why)
{
    struct msg msg;

    while (*budget) {
        enum stream_result r = stream_next(&client->stream, &msg, ret_why);

        if (r != STREAM_OK)
            return r;
        client_deliver(client, &msg);
        msg_fini(&msg);
        --*budget;
        if (client->state != CLIENT_OPEN || !client->known || client->paused ||
            clock_us() >= until_us)
            break;
    }
    return STREAM_OK;
}

/* Not before some of the descriptors that we are closing are closed. */
static void client_read_later(struct client_link *client)
{
    struct timeval tv = clock_timeval(CLIENT_LATER_MS);

    event_del(client->read);
    event_add(client->again, &tv);
}

static void client_read(evutil_socket_t fd, short what, void *arg)
{
    struct client_link *client = arg;

    if (client->state != CLIENT_OPEN || client->paused)
        return;
    event_add(client->read, NULL); /* client_read_later() took it away */
    listener_work(client);
}

/* Nothing more will come but what is in the socket: take that, then end. */
static void client_end(struct client_link *client, const char *text)
{
    if (client->state != CLIENT_OPEN)
        return client_lost(client, text);
    if (client->end[0])
        return;
    snprintf(client->end, sizeof(client->end), "%s", text);
    client->last = CLIENT_LAST_BUDGET;
    client->paused = client->resumes = false;
    listener_work(client);
}

void client_step(struct client_link *client, uint64_t until_us)
{
    unsigned budget = client->end[0] ? MIN(client->last, (unsigned)CLIENT_BUDGET) : CLIENT_BUDGET;
    unsigned before = budget;
    char text[MSG_TEXT_MAX];
    enum stream_result r;
    const char *why;

    if (client->state != CLIENT_OPEN || client->paused)
        return;
    r = client_take(client, &budget, until_us, &why);
    client->last -= MIN(client->last, before - budget);
    if (client->state != CLIENT_OPEN || client->paused)
        return;
    if (r == STREAM_GARBAGE) {
        snprintf(text, sizeof(text), "protocol error: %s", why);
        client_refuse(client, CAUSE_PROTOCOL, text);
    } else if (r == STREAM_OK && (!client->end[0] || client->last)) {
        listener_work(client); /* others first */
    } else if (client->end[0]) {
        client_lost(client, client->end);
    } else if (r == STREAM_LATER) {
        client_read_later(client);
    } else if (r == STREAM_EOF && client->died) {
        client->state = CLIENT_ENDING;
        event_del(client->read);
        client_arm(client, CLIENT_LINGER_MS);
    } else if (r != STREAM_AGAIN) {
        client_lost(client, "its connection closed");
    }
}

static void client_write(evutil_socket_t fd, short what, void *arg)
{
    struct client_link *client = arg;

    if (client_flush(client) != STREAM_FAILED)
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
    struct client_link *client = arg;

    if (client->state == CLIENT_CLOSING)
        client_bury(client); /* it does not read its last message */
    else if (client->doom[0])
        client_end(client, client->doom);
    else if (client->state == CLIENT_ENDING)
        client_lost(client, "its connection closed");
    else if (client->queued)
        client_arm(client, CLIENT_DEADLINE_MS); /* we are the ones who are late */
    else if (!client->welcome)
        client_refuse(client, CAUSE_PROTOCOL, "no hello within 2 s");
}

static void client_freep(struct client_link **client)
{
    *client = client_free(*client);
}

int client_new(struct listener *listener, struct tenant *tenant, unsigned slot, int fd, int pidfd,
               uint32_t uid, uint32_t pid)
{
    _cleanup_(client_freep) struct client_link *client = calloc(1, sizeof(*client));

    if (!client) {
        closer_sock(listener->closer, tenant->uid, fd);
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
    client->stream.may_send = client_may_send;
    client->stream.arg = client;
    client->stream.closer = listener->closer;
    client->stream.uid = tenant->uid;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){CLIENT_SNDBUF}, sizeof(int));
    client->read = event_new(listener->base, fd, EV_READ | EV_PERSIST, client_read, client);
    client->write = event_new(listener->base, fd, EV_WRITE | EV_PERSIST, client_write, client);
    client->timer = evtimer_new(listener->base, client_timer, client);
    client->retry = evtimer_new(listener->base, client_write, client);
    client->again = evtimer_new(listener->base, client_read, client);
    if (pidfd >= 0)
        client->died = event_new(listener->base, pidfd, EV_READ, client_died, client);
    if (!client->read || !client->write || !client->timer || !client->retry || !client->again ||
        (pidfd >= 0 && !client->died) || event_add(client->read, NULL) ||
        (client->died && event_add(client->died, NULL)))
        return -ENOMEM;
    client_arm(client, CLIENT_DEADLINE_MS);
    client->tenant = tenant;
    client->stream.held = &tenant->held;
    tenant->nclients++;
    listener->slots[slot] = client;
    listener->nclients++;
    TAILQ_INSERT_TAIL(&listener->clients, client, entry);
    steal_ptr(client);
    return 0;
}
