/* client_link.h - one client's connection. Private to the listener's files. What listener.h says of
 * one slot is done in client_link.c, too. */
#ifndef COMMD_CLIENT_LINK_H
#define COMMD_CLIENT_LINK_H

#include "daemon/link/listener_priv.h"

/* See client_link.c. */
enum conn_state {
    CONN_OPEN,
    CONN_ASKING,
    CONN_ANSWERED,
    CONN_LINGERING,
    CONN_DOOMED,
    CONN_LAST,
    CONN_CLOSING,
    CONN_DEAD,
    CONN_NSTATES
};

/* What the owner of the listener knows of a client; it only goes forward. */
enum client_session {
    SESSION_NONE,    /* nothing: no well-formed message has come */
    SESSION_KNOWN,   /* it has come, and what it sent */
    SESSION_WELCOME, /* its hello was accepted */
    SESSION_OVER     /* it has gone, or was sent away */
};

struct client_link {
    TAILQ_ENTRY(client_link) entry; /* of listener->clients, or ->dead */
    TAILQ_ENTRY(client_link) work;  /* of tenant->work */
    struct listener *listener;      /* borrowed */
    struct tenant *tenant;          /* borrowed: outlives its clients */
    enum conn_state state;
    enum client_session session;
    bool admin;  /* a session of commctl: counted in tenant->nadmins */
    bool queued; /* on tenant->work */
    unsigned slot;
    uint32_t uid, pid;
    int pidfd;              /* owned; -1: not to be had */
    struct stream stream;   /* owned */
    unsigned flying;        /* descriptors sent to it, and not known to be taken out */
    char why[MSG_TEXT_MAX]; /* DOOMED, LAST: why it ends, to be told when its messages are taken */
    unsigned last;          /* LAST: messages that we still take */
    struct event *read, *write, *died, *timer; /* owned */
    struct event *retry; /* owned: what could not be sent, and no socket will say when */
    struct event *again; /* owned: to be read, as soon as its user's descriptors are closed */
    unsigned retry_ms;
    uint64_t waits_ms; /* since when its user's share of descriptors holds it up; 0: not */
};

/* Takes @fd and @pidfd, also on failure. */
int client_new(struct listener *listener, struct tenant *tenant, unsigned slot, int fd, int pidfd,
               uint32_t uid, uint32_t pid);
void client_free(struct client_link *client);
/* Does what there is to do for it, at most until @until_us; it queues itself again for the rest. */
void client_step(struct client_link *client, uint64_t until_us);

#endif
