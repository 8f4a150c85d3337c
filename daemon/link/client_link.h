/* client_link.h - one client's connection. Private to listener.c and client_link.c. */
#ifndef COMMD_CLIENT_LINK_H
#define COMMD_CLIENT_LINK_H

#include <event2/event.h>
#include <sys/queue.h>

#include "daemon/link/listener.h"
#include "daemon/process/log_limit.h"
#include "daemon/link/sock.h"
#include "daemon/link/stream.h"

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

TAILQ_HEAD(client_list, client_link);

/* The socket of a client that is gone for us, but has not taken out the descriptors in it. */
struct unread {
    TAILQ_ENTRY(unread) entry;
    int fd; /* owned */
    unsigned flying;
};

TAILQ_HEAD(unread_list, unread);

/* One user, @uid a payer: its clients share its turns, and what descriptors it may take of ours. */
struct tenant {
    TAILQ_ENTRY(tenant) entry; /* of listener->tenants */
    TAILQ_ENTRY(tenant) turn;  /* of listener->turns while it has work, or is at it */
    uint32_t uid;
    bool queued;                /* on listener->turns */
    unsigned nclients, nadmins; /* of listener->clients */
    struct client_list work;    /* borrowed: those that have something to do, oldest first */
    struct unread_list unread;  /* owned */
    unsigned nunread;
    unsigned flying;          /* descriptors sent to it, and not known to be taken out */
    struct stream_count held; /* descriptors that wait to be sent to it */
};

TAILQ_HEAD(tenant_list, tenant);

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

struct listener {
    struct event_base *base; /* borrowed */
    const struct listener_ops *ops;
    void *arg;
    int fd; /* owned */
    char path[108];
    uint64_t inode;       /* of the socket, so that only ours is removed */
    struct event *accept; /* owned */
    struct sock_reserve reserve;
    const struct payers *payers; /* borrowed */
    struct closer *closer;       /* borrowed; NULL: what clients send is closed at once */
    struct client_link **slots;  /* borrowed from clients; NULL: free */
    unsigned nslots, next_slot, nclients;
    unsigned max_clients, max_clients_per_user;
    struct client_list clients, dead;     /* owned */
    struct tenant_list tenants;           /* owned */
    struct tenant_list turns;             /* borrowed */
    struct event *more;                   /* owned: the turn ended before the work did */
    struct event *unread;                 /* owned: looks whether sockets left behind are empty */
    unsigned flying, max_flying;          /* over all users */
    unsigned max_held, max_fd, max_conns; /* of RLIMIT_NOFILE */
    struct stream_count held;
    uint64_t counted_ms;    /* when flying was last looked at */
    struct log_limit limit; /* of what users cause, also in the core */
    uint64_t refused[CAUSE_COUNT];
};

/* Takes @fd and @pidfd, also on failure. */
int client_new(struct listener *listener, struct tenant *tenant, unsigned slot, int fd, int pidfd,
               uint32_t uid, uint32_t pid);
struct client_link *client_free(struct client_link *client);
void client_send(struct client_link *client, const struct msg *msg, const int *fds, unsigned nfds);
void client_send_shared(struct client_link *client, const struct msg *msg,
                        struct stream_fd *const *fds, unsigned nfds);
/* Does what there is to do for it, at most until @until_us; it queues itself again for the rest. */
void client_step(struct client_link *client, uint64_t until_us);
void client_pause(struct client_link *client);
void client_resume(struct client_link *client); /* when what it was sent is out */
/* Flushes what was sent, then ends it; the owner is not told. */
void client_close(struct client_link *client);

/* Puts it in line for the turns of its user. */
void listener_work(struct client_link *client);
void listener_unwork(struct client_link *client);
/* May @nfds descriptors be sent to @client now, as far as its user's share goes? */
bool listener_may_send(struct client_link *client, unsigned nfds);
/* The client of @tenant that keeps most descriptors waiting (@unsent), or has most of all; NULL. */
struct client_link *listener_worst(struct tenant *tenant, bool unsent);
bool listener_holds_too_much(const struct tenant *tenant);
/* Keeps the socket of a client that goes until what flies to it is taken out. */
void listener_keep_unread(struct client_link *client);
bool listener_trusts(uint32_t uid);

/* "client pid 7 uid 1000: TEXT -> refused", within the limit of that user. */
void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid, const char *text);

#endif
