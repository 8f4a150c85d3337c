/* listener_priv.h - private to the files of the listener: its users, its socket, and what each file
 * does. See listener.c for the list of files. */
#ifndef COMMD_LISTENER_PRIV_H
#define COMMD_LISTENER_PRIV_H

#include <event2/event.h>
#include <sys/queue.h>

#include "daemon/link/listener.h"
#include "daemon/link/sock.h"
#include "daemon/link/stream.h"
#include "daemon/process/log_limit.h"

struct away;
struct client_link;
TAILQ_HEAD(client_list, client_link);

/* Where clients come in. */
struct listener_socket {
    int fd; /* owned; -1: no client is let in any more */
    char path[108];
    uint64_t inode; /* of the socket's file, so that no other file is removed; 0: removed */
};

/* The socket of a client that we have closed, and that has descriptors in its socket still. */
struct unread {
    TAILQ_ENTRY(unread) entry;
    int fd; /* owned */
    unsigned flying;
};

TAILQ_HEAD(unread_list, unread);

/* One user; @uid is a payer. Its clients share its turns and its share of our descriptors. */
struct tenant {
    TAILQ_ENTRY(tenant) entry; /* of listener->tenants */
    TAILQ_ENTRY(tenant) turn;  /* of listener->turns, while its clients have work */
    uint32_t uid;
    bool queued;                /* on listener->turns */
    unsigned nclients, nadmins; /* of listener->clients */
    unsigned naway;             /* of listener->away */
    struct client_list work;    /* borrowed: clients that have work, oldest first */
    struct unread_list unread;  /* owned */
    unsigned nunread;
    unsigned flying;          /* descriptors sent to its clients, not known to be taken out */
    struct stream_count held; /* descriptors that wait to be sent to it */
};

TAILQ_HEAD(tenant_list, tenant);

struct listener {
    struct event_base *base; /* borrowed */
    const struct listener_ops *ops;
    void *arg;
    struct listener_socket socket;
    struct event *accept; /* owned */
    struct sock_reserve reserve;
    const struct payers *payers; /* borrowed */
    struct closer *closer;       /* borrowed; NULL: what clients send is closed at once */
    struct client_link **slots;  /* borrowed: they are in clients; NULL: free */
    struct away **away;          /* owned: by slot; NULL: nobody who is away has it */
    unsigned nslots, next_slot, nclients, naway;
    unsigned max_clients, max_clients_per_user;
    struct client_list clients, dead;     /* owned */
    struct tenant_list tenants;           /* owned */
    struct tenant_list turns;             /* borrowed */
    struct event *more;                   /* owned: active when work remains after a turn */
    struct event *unread;                 /* owned: the timer that looks at unread sockets */
    unsigned flying, max_flying;          /* over all users */
    unsigned max_held, max_fd, max_conns; /* of RLIMIT_NOFILE */
    struct stream_count held;
    uint64_t counted_ms;    /* when flying was last looked at */
    struct log_limit limit; /* of lines that users cause, here and in the core */
    uint64_t refused[CAUSE_COUNT];
};

/* ---- listener.c: users ----------------------------------------------------------------------- */

struct tenant *tenant_find(const struct listener *listener, uint32_t uid);
struct tenant *tenant_get(struct listener *listener, uint32_t uid); /* NULL: no memory */
/* "client pid 7 uid 1000: TEXT -> refused", within the limit of that user. */
void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid, const char *text);

/* ---- listener_socket.c ----------------------------------------------------------------------- */

/* Makes the socket at @path and listens. On failure as listener_new(). */
int listener_bind(struct listener_socket *sock, const char *path, unsigned mode, char **ret_error);
void listener_unlink(struct listener_socket *sock);

/* ---- listener_admit.c ------------------------------------------------------------------------ */

void listener_accept(evutil_socket_t fd, short what, void *listener);
/* Lets no client in any more. */
void listener_end(struct listener *listener);
bool listener_trusts(uint32_t uid);

/* ---- listener_away.c ------------------------------------------------------------------------- */

/* The hello of @client shows @key: does it come back? Then it has its slot again. */
bool listener_return(struct client_link *client, const uint8_t key[MSG_KEY]);
/* May a process that connects be one that is away? Not more often than it is away: connections of
 * it that have said nothing yet count. */
bool listener_may_return(const struct listener *listener, uint32_t uid, uint32_t pid);
/* Forgets who is away, if somebody is. */
void listener_away_end(struct listener *listener, unsigned slot);
void listener_away_free(struct listener *listener);

/* ---- listener_turns.c ------------------------------------------------------------------------ */

/* Puts the client in line for the turns of its user. */
void listener_work(struct client_link *client);
void listener_unwork(struct client_link *client);
void listener_serve(struct listener *listener);

/* ---- listener_fds.c -------------------------------------------------------------------------- */

/* Shares out what RLIMIT_NOFILE allows. */
void listener_share_fds(struct listener *listener);
/* Does the share of @client's user allow @nfds more descriptors to it now? */
bool listener_may_send(struct client_link *client, unsigned nfds);
/* The client of @tenant with most descriptors. @unsent: counts only descriptors that wait to be
 * sent. NULL: no client has any. */
struct client_link *listener_worst(struct tenant *tenant, bool unsent);
bool listener_holds_too_much(const struct tenant *tenant);
/* The client is about to be freed. Keeps its socket until the descriptors in it are taken out. */
void listener_keep_unread(struct client_link *client);
/* A timer's callback: closes those kept sockets that are empty by now. */
void listener_unread(evutil_socket_t fd, short what, void *listener);
/* Closes the kept sockets of @tenant, at the end. */
void listener_drop_unread(struct listener *listener, struct tenant *tenant);

#endif
