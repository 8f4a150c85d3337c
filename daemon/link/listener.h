/* listener.h - the UNIX socket of the clients: which clients are let in, their slots, and the
 * messages to and from them. See client_link.c for the model of one client. */
#ifndef COMMD_LISTENER_H
#define COMMD_LISTENER_H

#include "daemon/conf/conf.h"
#include "shm/proto/msg.h"
#include "shm/util/payers.h"

struct closer;
struct event_base;
struct listener;
struct stream_fd;

enum { LISTENER_EXTRA = 64 }; /* slots beyond max_clients, so that commctl gets in */

/* Called from listener_turn(), never from within another listener_*() call. */
struct listener_ops {
    /* The user that the process counts as. Without this function it is @uid. @pidfd: borrowed, or
     * -1. */
    uint32_t (*user)(void *arg, uint32_t uid, uint32_t pid, int pidfd);
    void (*open)(void *arg, unsigned slot, uint32_t uid, uint32_t pid);
    void (*msg)(void *arg, unsigned slot, const struct msg *msg);
    void (*closed)(void *arg, unsigned slot, const char *text);
    /* Instead of open() and msg(): a client that was away is there again, @hello is its first
     * message. NULL: none is ever away. */
    void (*back)(void *arg, unsigned slot, uint32_t uid, uint32_t pid, const struct msg *hello);
    /* Instead of closed(): a client ended while it was away. Called by the loop. */
    void (*gone)(void *arg, unsigned slot, const char *text);
    /* Comes before closed() and gone(). @pidfd: of the client's process, borrowed. NULL: not
     * wanted.
     */
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
/* Ends the turn of the loop: takes messages of clients for a few ms, user by user, and frees closed
 * connections. If messages remain, the next turn comes at once. */
void listener_turn(struct listener *listener);

/* Sends @msg with duplicates of @fds. A client that is gone, does not read, or cannot be sent
 * it (no memory, no descriptors) is closed in the next turn. */
void listener_send(struct listener *listener, unsigned slot, const struct msg *msg, const int *fds,
                   unsigned nfds);
/* The same with descriptors that go to several clients of one user. */
void listener_send_shared(struct listener *listener, unsigned slot, const struct msg *msg,
                          struct stream_fd *const *fds, unsigned nfds);
/* Reads nothing more from the client in @slot. listener_resume() ends that, once the client has
 * taken all that was sent to it. */
void listener_pause(struct listener *listener, unsigned slot);
void listener_resume(struct listener *listener, unsigned slot);
/* Takes the oldest descriptor that this client has sent, which becomes the caller's; -1: there is
 * none. ops->msg() calls it for the descriptors of its message. */
int listener_take_fd(struct listener *listener, unsigned slot);
/* Closes the connection when all messages to the client are out. closed() is not called. */
void listener_close(struct listener *listener, unsigned slot);

/* The client of @slot was there before this commd, and will come back with @key: until then it is
 * away. @payer is charged for it. Takes *@pidfd on success. 0 or negative errno. Before the first
 * turn. */
int listener_away(struct listener *listener, unsigned slot, uint32_t uid, uint32_t payer,
                  uint32_t pid, int *pidfd, const uint8_t key[MSG_KEY]);
bool listener_is_away(const struct listener *listener, unsigned slot);
/* A duplicate of the pidfd of the client in @slot, -1: there is none. */
int listener_pidfd(const struct listener *listener, unsigned slot);

struct listener_client {
    uint32_t uid, pid;
    uint32_t payer; /* the uid that is charged for the client */
    bool welcome;   /* its hello was accepted */
};
bool listener_client(const struct listener *listener, unsigned slot,
                     struct listener_client *ret_client);
/* Counts connections, also of who is away. *ret_used: of user @uid, a payer; *ret_may: the most
 * that this user may have; *ret_all: of all users; *ret_room: the most that all users may have. */
void listener_held(const struct listener *listener, uint32_t uid, uint64_t *ret_used,
                   uint64_t *ret_may, uint64_t *ret_all, uint64_t *ret_room);
/* Writes a line that user @uid caused into the log, within the limit of the user's payer. */
void listener_log_user(struct listener *listener, uint32_t uid, enum conf_log_level level,
                       const char *text);
/* How many clients were refused here and not by the core, by cause: CAUSE_COUNT counters. */
const uint64_t *listener_refused(const struct listener *listener);
/* The limits may go down, and up again as far as listener_new() has made room. */
void listener_set_limits(struct listener *listener, unsigned max_clients,
                         unsigned max_clients_per_user);
/* For connections that come from now on; borrowed until the next call. */
void listener_set_payers(struct listener *listener, const struct payers *payers);

/* Shutdown: lets no client in any more, and closes each connection when its messages are out. */
void listener_drain(struct listener *listener);
bool listener_idle(const struct listener *listener);
/* True: no client is here but commd-gpu, and none is away. */
bool listener_unused(const struct listener *listener);

#endif
