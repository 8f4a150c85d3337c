/* client_link.h - one client's connection. Private to the listener's files. client_link.c also has
 * the functions of listener.h that take a slot. */
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

/* What the owner of the listener knows of a client. The state only moves forward. */
enum client_session {
    SESSION_NONE,    /* nothing: the client has sent no well-formed message */
    SESSION_KNOWN,   /* the client, and its messages */
    SESSION_WELCOME, /* the client's hello was accepted */
    SESSION_OVER     /* the client is gone, or was sent away */
};

struct client_link {
    TAILQ_ENTRY(client_link) entry; /* of listener->clients, or ->dead */
    TAILQ_ENTRY(client_link) work;  /* of tenant->work */
    struct listener *listener;      /* borrowed */
    struct tenant *tenant;          /* borrowed: outlives its clients */
    enum conn_state state;
    enum client_session session;
    bool admin;  /* a session of commctl: counted in tenant->nadmins */
    bool beyond; /* what its user may have: let in only to come back */
    bool queued; /* on tenant->work */
    unsigned slot;
    uint32_t uid, pid;
    int pidfd;              /* owned; -1: the kernel gave none */
    struct stream stream;   /* owned */
    unsigned flying;        /* descriptors sent to the client, and not known to be taken out */
    char why[MSG_TEXT_MAX]; /* DOOMED, LAST: why the client ends; told after its last message */
    unsigned last;          /* LAST: messages that we still take */
    struct event *read, *write, *died, *timer; /* owned */
    struct event *retry; /* owned: a timer that tries again to send, after STREAM_LATER */
    struct event *again; /* owned: reads again when more of its user's descriptors are closed */
    unsigned retry_ms;
    uint64_t
        waits_ms; /* since when its user's share of descriptors stops sending; 0: nothing waits */
};

/* Takes @fd and @pidfd, also on failure. */
int client_new(struct listener *listener, struct tenant *tenant, unsigned slot, int fd, int pidfd,
               uint32_t uid, uint32_t pid, bool beyond);
void client_free(struct client_link *client);
/* Works for the client until @until_us at most. The client queues itself again for the rest. */
void client_step(struct client_link *client, uint64_t until_us);

#endif
