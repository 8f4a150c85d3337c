/* client_link.h - one client's connection. Private to listener.c and client_link.c. */
#ifndef COMMD_CLIENT_LINK_H
#define COMMD_CLIENT_LINK_H

#include <event2/event.h>
#include <sys/queue.h>

#include "daemon/listener.h"
#include "daemon/refused.h"
#include "daemon/sock.h"
#include "daemon/stream.h"

enum client_state { CLIENT_OPEN, CLIENT_ENDING, CLIENT_CLOSING, CLIENT_DEAD };

struct client {
    TAILQ_ENTRY(client) entry; /* of listener->clients, or ->dead */
    struct listener *listener; /* borrowed */
    enum client_state state;
    unsigned slot;
    uint32_t uid, pid;
    int pidfd;                                 /* owned; -1: not to be had */
    struct stream stream;                      /* owned */
    struct event *read, *write, *died, *timer; /* owned */
    struct event *again; /* owned: more messages than one turn's budget */
    bool known; /* the owner was told of it, and has not forgotten it */
    bool welcome;
    char doom[MSG_TEXT_MAX]; /* close with this text as soon as we are back in the loop */
};

TAILQ_HEAD(client_list, client);

struct listener {
    struct event_base *base; /* borrowed */
    const struct listener_ops *ops;
    void *arg;
    int fd; /* owned */
    char path[108];
    uint64_t inode;       /* of the socket, so that only ours is removed */
    struct event *accept; /* owned */
    struct sock_reserve reserve;
    struct client **slots; /* borrowed from clients; NULL: free */
    unsigned nslots, next_slot, nclients;
    unsigned max_clients, max_clients_per_user;
    struct client_list clients, dead; /* owned */
    struct refused refused;
};

/* Takes @fd and @pidfd, also on failure. */
int client_new(struct listener *listener, unsigned slot, int fd, int pidfd, uint32_t uid,
               uint32_t pid);
struct client *client_free(struct client *client);
void client_send(struct client *client, const struct msg *msg, const int *fds, unsigned nfds);
/* Flushes what was sent, then ends it; the owner is not told. */
void client_close(struct client *client);

/* "client pid 7 uid 1000: TEXT -> refused", once in a while per user and text. */
void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid,
                          const char *text);

#endif
