/* listener.h - the UNIX socket of the clients: who may come in, their slots, what they send
 * and get. See client_link.c for the model of one client. */
#ifndef COMMD_LISTENER_H
#define COMMD_LISTENER_H

#include "daemon/conf/conf.h"
#include "shm/proto/msg.h"
#include "shm/util/payers.h"

struct closer;
struct event_base;
struct listener;
struct stream_fd;

enum { LISTENER_EXTRA = 64 }; /* slots beyond max_clients: so that commctl still gets in */

/* Called from listener_turn(), never from within another listener_*() call. */
struct listener_ops {
    /* The user that this process counts as; NULL: its own, @uid. @pidfd: borrowed, or -1. */
    uint32_t (*user)(void *arg, uint32_t uid, uint32_t pid, int pidfd);
    void (*open)(void *arg, unsigned slot, uint32_t uid, uint32_t pid);
    void (*msg)(void *arg, unsigned slot, const struct msg *msg);
    void (*closed)(void *arg, unsigned slot, const char *text);
    /* Before closed(), with the pidfd of its process, which is borrowed; NULL: not wanted. */
    void (*ended)(void *arg, uint32_t uid, uint32_t pid, int pidfd);
};

struct listener_config {
    struct event_base *base; /* borrowed */
    const char *path;
    unsigned mode;
    unsigned max_clients, max_clients_per_user;
    struct closer *closer; /* borrowed; NULL: descriptors are closed on the loop */
    const struct listener_ops *ops;
    void *arg;
};

/* On failure a negative errno and *ret_error says what to do (malloc'ed; NULL with -ENOMEM):
 * -EINVAL for the configuration, -EACCES, -EADDRINUSE. */
int listener_new(const struct listener_config *config, struct listener **ret_listener,
                 char **ret_error);
struct listener *listener_free(struct listener *listener);
/* Ends the turn of the loop: takes what clients have sent, for a few ms, user by user, and frees
 * what was closed. What remains makes the next turn come at once. */
void listener_turn(struct listener *listener);

/* Sends @msg with duplicates of @fds. A client that is gone, does not read, or cannot be sent
 * it (no memory, no descriptors) is closed in the next turn. */
void listener_send(struct listener *listener, unsigned slot, const struct msg *msg, const int *fds,
                   unsigned nfds);
/* The same with descriptors that go to several clients of one user. */
void listener_send_shared(struct listener *listener, unsigned slot, const struct msg *msg,
                          struct stream_fd *const *fds, unsigned nfds);
/* Reads nothing more from the client in @slot until resumed, and then not before it has taken
 * what it was sent. */
void listener_pause(struct listener *listener, unsigned slot);
void listener_resume(struct listener *listener, unsigned slot);
/* The oldest descriptor that this client has sent and nobody has taken, now the caller's; -1. For
 * ops->msg(), of the message that it came with. */
int listener_take_fd(struct listener *listener, unsigned slot);
/* Closes when what was sent is out; closed() is not called. */
void listener_close(struct listener *listener, unsigned slot);

struct listener_client {
    uint32_t uid, pid;
    uint32_t payer; /* who is charged for it */
    bool welcome;   /* its hello was accepted */
};
bool listener_client(const struct listener *listener, unsigned slot,
                     struct listener_client *ret_client);
/* Connections of user @uid, a payer, the most that it may have, those of all, the room for them. */
void listener_held(const struct listener *listener, uint32_t uid, uint64_t *ret_used,
                   uint64_t *ret_may, uint64_t *ret_all, uint64_t *ret_room);
/* A line of the log that user @uid caused, within the limit of who is charged for it. */
void listener_log_user(struct listener *listener, uint32_t uid, enum conf_log_level level,
                       const char *text);
/* Who was refused here, before or instead of the core, by cause: CAUSE_COUNT counters. */
const uint64_t *listener_refused(const struct listener *listener);
/* Only down to and up from what listener_new() was given room for. */
void listener_set_limits(struct listener *listener, unsigned max_clients,
                         unsigned max_clients_per_user);
/* For connections that come from now on; borrowed until the next call. */
void listener_set_payers(struct listener *listener, const struct payers *payers);

/* Shutdown: takes nobody any more and closes everybody once they have their messages. */
void listener_drain(struct listener *listener);
bool listener_idle(const struct listener *listener);
/* Nobody is here but commd-gpu. */
bool listener_unused(const struct listener *listener);

#endif
