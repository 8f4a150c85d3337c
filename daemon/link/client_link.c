/* client_link.c - one client on the UNIX socket.
 *
 *   OPEN       reads, at most CLIENT_BUDGET messages in a row, then others have their turn
 *   ASKING     a question of commctl is being answered: nothing is read
 *   ANSWERED   the same until all that was sent is out
 *   LINGERING  end of file was seen; for CLIENT_LINGER_MS we wait to learn whether the process
 *              has ended too, because "its process ended" is what people want to read
 *   DOOMED     something cannot be sent to the client. LAST follows in the next turn of the loop,
 *              because sending never calls the owner
 *   LAST       the process has ended, or the connection is of no use. What lies in the socket is
 *              taken, up to CLIENT_LAST_BUDGET messages; then the owner is told. Nothing is sent
 *   CLOSING    a last message goes out, nothing is read, within CLIENT_DEADLINE_MS
 *   DEAD       on listener->dead until the turn ends
 *
 * Who wakes a client? The socket, the pidfd, a timer; in LAST only listener_turn(); in DOOMED only
 * the timer. What if the client dies now? The pidfd says so in any state before LAST. What if commd
 * is stopped now? Messages that were not taken wait in the socket.
 *
 * A client has CLIENT_HELLO_MS to be welcomed. The owner (and through it the core) hears of
 * it with its first well-formed message; what sends garbage never gets that far.
 *
 * The pidfd tells of the death even when a forked child still holds the socket. End of file tells
 * of it even without a pidfd. Either way all messages of the client come before its end: a LEAVE
 * followed by exit() must not look like a lost rank.
 *
 * A readable socket only puts the client in line (listener_work()). listener_turns.c gives each
 * user its time in a turn, and calls client_step().
 *
 * Messages that a client does not read pile up to CLIENT_MAX_UNSENT (plus one message), and to
 * CLIENT_MAX_FDS descriptors. Then the client is closed. The socket takes no more than
 * CLIENT_SNDBUF, so that few descriptors fly to one client; listener_fds.c says how many may fly to
 * one user. If that share or the kernel allows no more descriptors, a timer tries again, after
 * CLIENT_RETRY_MIN_MS to CLIENT_RETRY_MAX_MS. When a user's share has held up one of its clients
 * for CLIENT_STALL_MS, commd closes the client of that user that has left most descriptors untaken.
 */
#include "daemon/link/client_link.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>

#include "daemon/process/clock.h"
#include "daemon/process/log.h"

enum {
    CLIENT_BUDGET = 64,
    CLIENT_LAST_BUDGET = 4096, /* messages taken from the socket of a dead process */
    CLIENT_DEADLINE_MS = 2000,
    CLIENT_HELLO_MS = 10000, /* longer than a process gets no core on a busy machine */
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
static const char closed[] = "its connection closed";

/* clang-format off */
static const bool conn_may[CONN_NSTATES][CONN_NSTATES] = { /* rows: from; columns: to */
                     /* OPEN ASK ANSW LING DOOM LAST CLOS DEAD */
    [CONN_OPEN]      = {0,   1,  0,   1,   1,   1,   1,   1},
    [CONN_ASKING]    = {1,   0,  1,   0,   1,   1,   1,   0},
    [CONN_ANSWERED]  = {1,   0,  0,   0,   1,   1,   1,   0},
    [CONN_LINGERING] = {0,   0,  0,   0,   1,   0,   1,   1},
    [CONN_DOOMED]    = {0,   0,  0,   0,   0,   1,   0,   1},
    [CONN_LAST]      = {0,   0,  0,   0,   0,   0,   0,   1},
    [CONN_CLOSING]   = {0,   0,  0,   0,   0,   0,   0,   1},
    [CONN_DEAD]      = {0},
};
/* clang-format on */

static void conn_set_state(struct client_link *client, enum conn_state state)
{
    assert(conn_may[client->state][state]);
    client->state = state;
    event_del(client->again);
    if (state == CONN_OPEN)
        event_add(client->read, NULL);
    else
        event_del(client->read);
}

static void session_set(struct client_link *client, enum client_session session)
{
    assert(session > client->session);
    client->session = session;
}

/* Does the owner of the listener know of the client, and not of its end? */
static bool session_open(const struct client_link *client)
{
    return client->session == SESSION_KNOWN || client->session == SESSION_WELCOME;
}

void client_free(struct client_link *client)
{
    struct event *events[] = {client->read,  client->write, client->died,
                              client->timer, client->retry, client->again};

    for (unsigned i = 0; i < ARRAY_LEN(events); i++)
        if (events[i])
            event_free(events[i]);
    if (client->tenant)
        listener_keep_unread(client);
    stream_fini(&client->stream);
    close_fdp(&client->pidfd);
    free(client);
}

static void client_arm(struct client_link *client, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(client->timer, &tv);
}

/* Makes the client DEAD, and takes it out of all lists but listener->dead. */
static void client_bury(struct client_link *client)
{
    struct listener *listener = client->listener;

    assert(client->session == SESSION_OVER && listener->slots[client->slot] == client);
    assert(client->tenant->nclients && client->tenant->nadmins >= client->admin);
    conn_set_state(client, CONN_DEAD);
    listener->slots[client->slot] = NULL;
    listener->nclients--;
    client->tenant->nclients--;
    client->tenant->nadmins -= client->admin;
    listener_unwork(client);
    TAILQ_REMOVE(&listener->clients, client, entry);
    TAILQ_INSERT_TAIL(&listener->dead, client, entry);
    event_del(client->write);
    event_del(client->timer);
    event_del(client->retry);
    if (client->died)
        event_del(client->died);
}

/* The client has ended, or is ended here: tells the owner. */
static void client_lost(struct client_link *client, const char *text)
{
    struct listener *listener = client->listener;
    bool known = session_open(client);

    session_set(client, SESSION_OVER);
    client_bury(client);
    if (known && listener->ops->ended)
        listener->ops->ended(listener->arg, client->uid, client->pid, client->pidfd);
    if (known)
        listener->ops->closed(listener->arg, client->slot, text);
}

/* Logs that something could not be sent. The client may have caused that, so the line counts for
 * its user. */
static void log_client(struct client_link *client, const char *why)
{
    char text[MSG_TEXT_MAX + 64];

    snprintf(text, sizeof(text), "client pid %u uid %u: %s -> closing it", client->pid, client->uid,
             why);
    listener_log_user(client->listener, client->uid, CONF_LOG_ERROR, text);
}

/* May messages be sent to the client, other than a last one? */
static bool client_hears(const struct client_link *client)
{
    return conn_may[client->state][CONN_DOOMED];
}

static void client_doom(struct client_link *client, const char *text)
{
    if (!client_hears(client))
        return;
    conn_set_state(client, CONN_DOOMED);
    snprintf(client->why, sizeof(client->why), "%s", text);
    event_active(client->timer, EV_TIMEOUT, 0);
}

static void client_doom_unread(struct client_link *client)
{
    stream_drop(&client->stream); /* the descriptors are needed at once */
    if (client->state == CONN_CLOSING)
        return client_bury(client);
    if (client_hears(client))
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

/* Descriptors cannot be sent now. @moved: some were sent just now, so the next try comes soon. */
static void client_later(struct client_link *client, bool moved)
{
    struct client_link *worst;
    struct timeval tv;

    if (client->waits_ms && clock_ms() - client->waits_ms >= CLIENT_STALL_MS) {
        client->waits_ms = 0;
        worst = listener_worst(client->tenant, false);
        if (worst && worst->state != CONN_CLOSING)
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

/* Messages that were read and not taken cause no event: puts the client in line for them. */
static void client_read_on(struct client_link *client)
{
    static const struct timeval at_once;

    conn_set_state(client, CONN_OPEN);
    listener_work(client);
    event_add(client->listener->more, &at_once);
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
    if (r == STREAM_OK && client->state == CONN_CLOSING)
        client_bury(client);
    else if (r == STREAM_OK && client->state == CONN_ANSWERED)
        client_read_on(client);
    return r;
}

/* @msg was queued, or could not be, for the reason @r. */
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
    if (msg->type == MSG_WELCOME && client->session == SESSION_KNOWN) {
        session_set(client, SESSION_WELCOME);
        event_del(client->timer);
    }
    if (client_flush(client) == STREAM_FAILED)
        client_doom(client, closed);
    while (listener_holds_too_much(client->tenant) &&
           (worst = listener_worst(client->tenant, true)))
        client_doom_unread(worst);
}

/* May one more message with @nfds descriptors be queued for the client? */
static bool client_takes(struct client_link *client, unsigned nfds)
{
    if (!client_hears(client))
        return false;
    if (client->stream.out_bytes <= CLIENT_MAX_UNSENT &&
        client->stream.out_fds + nfds <= CLIENT_MAX_FDS)
        return true;
    client_doom_unread(client);
    return false;
}

void listener_send(struct listener *listener, unsigned slot, const struct msg *msg, const int *fds,
                   unsigned nfds)
{
    struct client_link *client = listener->slots[slot];

    if (client && client_takes(client, nfds))
        client_sent(client, msg, stream_send(&client->stream, msg, fds, nfds));
}

void listener_send_shared(struct listener *listener, unsigned slot, const struct msg *msg,
                          struct stream_fd *const *fds, unsigned nfds)
{
    struct client_link *client = listener->slots[slot];

    if (client && client_takes(client, nfds))
        client_sent(client, msg, stream_send_shared(&client->stream, msg, fds, nfds));
}

int listener_pidfd(const struct listener *listener, unsigned slot)
{
    const struct client_link *client = listener->slots[slot];

    return client && client->pidfd >= 0 ? fcntl(client->pidfd, F_DUPFD_CLOEXEC, 0) : -1;
}

void listener_pause(struct listener *listener, unsigned slot)
{
    struct client_link *client = listener->slots[slot];

    if (client && client->state == CONN_OPEN)
        conn_set_state(client, CONN_ASKING);
}

void listener_resume(struct listener *listener, unsigned slot)
{
    struct client_link *client = listener->slots[slot];

    if (!client || client->state != CONN_ASKING)
        return;
    if (client->stream.out)
        conn_set_state(client, CONN_ANSWERED);
    else
        client_read_on(client);
}

void listener_close(struct listener *listener, unsigned slot)
{
    struct client_link *client = listener->slots[slot];

    listener_away_end(listener, slot);
    if (!client || client->session == SESSION_OVER)
        return; /* the owner is not told of listener_drain() */
    session_set(client, SESSION_OVER);
    if (!client_hears(client)) {
        client_bury(client);
        return;
    }
    conn_set_state(client, CONN_CLOSING);
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
    bool known = session_open(client);

    listener_log_refused(listener, client->uid, client->pid, text);
    listener->refused[cause]++;
    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    listener_send(listener, client->slot, &msg, NULL, 0);
    listener_close(listener, client->slot);
    if (known)
        listener->ops->closed(listener->arg, client->slot, text);
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
    if (msg->type == MSG_ADMIN && client->state == CONN_LAST)
        return; /* the client will not read the answer */
    if (client->session == SESSION_NONE && msg->type == MSG_CLIENT_HELLO && !client->admin &&
        listener_return(client, msg->client_hello.resume)) {
        session_set(client, SESSION_KNOWN);
        listener->ops->back(listener->arg, client->slot, client->uid, client->pid, msg);
        return;
    }
    if (client->session == SESSION_NONE && client->beyond) {
        client_refuse(client, CAUSE_QUOTA,
                      "its user, or all, have too many connections for one that does not come back "
                      "after a restart of commd");
        return;
    }
    if (client->session == SESSION_NONE) {
        session_set(client, SESSION_KNOWN);
        listener->ops->open(listener->arg, client->slot, client->uid, client->pid);
    }
    if (session_open(client)) /* open() may have ended it already */
        listener->ops->msg(listener->arg, client->slot, msg);
}

/* Takes messages until @until_us, or *@budget is used up, or its state changes. STREAM_OK: there
 * may be more. */
static enum stream_result client_take(struct client_link *client, unsigned *budget,
                                      uint64_t until_us, const char **ret_why)
{
    enum conn_state state = client->state;
    struct msg msg;

    while (*budget) {
        enum stream_result r = stream_next(&client->stream, &msg, ret_why);

        if (r != STREAM_OK)
            return r;
        client_deliver(client, &msg);
        msg_fini(&msg);
        --*budget;
        if (client->state != state || clock_us() >= until_us)
            break;
    }
    return STREAM_OK;
}

/* Reads again in a while, when some of its user's descriptors have been closed. */
static void client_read_later(struct client_link *client)
{
    struct timeval tv = clock_timeval(CLIENT_LATER_MS);

    event_del(client->read);
    event_add(client->again, &tv);
}

static void client_read(evutil_socket_t fd, short what, void *arg)
{
    struct client_link *client = arg;

    assert(client->state == CONN_OPEN);
    event_add(client->read, NULL); /* client_read_later() took it away */
    listener_work(client);
}

/* The client has ended, and its last messages are in the socket: takes them, then closes. */
static void client_end(struct client_link *client, const char *text)
{
    if (client->state == CONN_LAST)
        return;
    if (client->state == CONN_LINGERING)
        return client_lost(client, text);
    conn_set_state(client, CONN_LAST);
    if (text != client->why)
        snprintf(client->why, sizeof(client->why), "%s", text);
    client->last = CLIENT_LAST_BUDGET;
    listener_work(client);
}

void client_step(struct client_link *client, uint64_t until_us)
{
    enum conn_state state = client->state;
    unsigned budget =
        state == CONN_LAST ? MIN(client->last, (unsigned)CLIENT_BUDGET) : CLIENT_BUDGET;
    unsigned before = budget;
    char text[MSG_TEXT_MAX];
    enum stream_result r;
    const char *why;

    if (state != CONN_OPEN && state != CONN_LAST)
        return;
    r = client_take(client, &budget, until_us, &why);
    client->last -= MIN(client->last, before - budget);
    if (client->state != state)
        return;
    if (r == STREAM_GARBAGE) {
        snprintf(text, sizeof(text), "protocol error: %s", why);
        client_refuse(client, CAUSE_PROTOCOL, text);
    } else if (r == STREAM_OK && (state == CONN_OPEN || client->last)) {
        listener_work(client); /* other clients come first */
    } else if (state == CONN_LAST) {
        client_lost(client, client->why);
    } else if (r == STREAM_LATER) {
        client_read_later(client);
    } else if (r == STREAM_EOF && client->died) {
        conn_set_state(client, CONN_LINGERING);
        client_arm(client, CLIENT_LINGER_MS);
    } else if (r != STREAM_AGAIN) {
        client_lost(client, closed);
    }
}

static void client_write(evutil_socket_t fd, short what, void *arg)
{
    struct client_link *client = arg;

    if (client_flush(client) != STREAM_FAILED)
        return;
    if (client->state == CONN_CLOSING)
        client_bury(client);
    else
        client_end(client, closed);
}

static void client_died(evutil_socket_t fd, short what, void *arg)
{
    client_end(arg, "its process ended");
}

static void client_timer(evutil_socket_t fd, short what, void *arg)
{
    struct client_link *client = arg;
    char why[64];

    if (client->state == CONN_CLOSING)
        client_bury(client); /* the client does not read its last message */
    else if (client->state == CONN_DOOMED)
        client_end(client, client->why);
    else if (client->state == CONN_LINGERING)
        client_lost(client, closed);
    else if (client->queued)
        client_arm(client, CLIENT_HELLO_MS); /* commd is late, not the client */
    else if (client->session < SESSION_WELCOME) {
        snprintf(why, sizeof(why), "no hello within %u s", CLIENT_HELLO_MS / 1000u);
        client_refuse(client, CAUSE_PROTOCOL, why);
    }
}

static void client_freep(struct client_link **client)
{
    if (*client)
        client_free(*client);
}

int client_new(struct listener *listener, struct tenant *tenant, unsigned slot, int fd, int pidfd,
               uint32_t uid, uint32_t pid, bool beyond)
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
    client->beyond = beyond;
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
    client_arm(client, CLIENT_HELLO_MS);
    client->tenant = tenant;
    client->stream.held = &tenant->held;
    tenant->nclients++;
    listener->slots[slot] = client;
    listener->nclients++;
    TAILQ_INSERT_TAIL(&listener->clients, client, entry);
    steal_ptr(client);
    return 0;
}
