/* engine_link.h - the commd-engine process, or commd-gpu, and the socket to it. See engine_link.c.
 */
#ifndef COMMD_ENGINE_LINK_H
#define COMMD_ENGINE_LINK_H

#include "daemon/conf/conf.h"
#include "shm/proto/msg.h"

struct closer;
struct event_base;
struct engine_link;

/* Called from the loop, never from within an engine_link_*() call. */
struct engine_link_ops {
    void (*started)(void *arg, uint32_t pid);
    void (*msg)(void *arg, const struct msg *msg);
    void (*down)(void *arg, const char *text);
};

struct engine_link_config {
    struct event_base *base;       /* borrowed */
    const struct program *program; /* engine_spawn.h; read during engine_link_new() only */
    const char *pid_file;          /* "": none */
    const char *launcher;          /* socket of commd-engine --launcher; NULL, "": our own child */
    struct closer *closer;         /* borrowed; may be NULL */
    bool keeps_port;               /* where it listens is kept open while none runs */
    int port;                      /* taken: where it shall listen; -1: where it likes */
    const struct engine_link_ops *ops;
    void *arg;
};

int engine_link_new(const struct engine_link_config *config, struct engine_link **ret_link);
/* Ends the process too, within a bounded time. */
struct engine_link *engine_link_free(struct engine_link *link);

/* started() or down() follows. */
void engine_link_start(struct engine_link *link);
/* SIGKILL; down() follows. Nothing when it does not run. */
void engine_link_kill(struct engine_link *link);
/* Sends with duplicates of @fds; lost when it does not run. */
void engine_link_send(struct engine_link *link, const struct msg *msg, const int *fds,
                      unsigned nfds);
/* Counts the starts: tells one engine's boards and doorbells from the next one's. 0: it does
 * not run. */
unsigned engine_link_life(const struct engine_link *link);
/* Is it this process, which has connected to us? That it lives is seen from its socket: a pid is
 * given to another process after that was closed only. */
bool engine_link_is(const struct engine_link *link, uint32_t pid, uint32_t uid);
/* By which the engine of @node is known to this engine, in this life. */
int engine_link_token(const struct engine_link *link, const char *node, uint8_t ret_token[32]);

#endif
