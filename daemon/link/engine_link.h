/* engine_link.h - the process of commd-engine or of commd-gpu, and the socket to the process. "The
 * engine" is either of them. See engine_link.c. */
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
    const char *name;              /* "engine", "gpu"; stays valid */
    const char *pid_file;          /* "": none */
    const char *launcher;          /* socket of commd-engine --launcher; NULL, "": our own child */
    struct closer *closer;         /* borrowed; may be NULL */
    bool keeps_port; /* the socket where the engine listens stays open while no engine runs */
    int port;        /* taken: the listening socket for the first engine; -1: it makes one */
    const struct engine_link_ops *ops;
    void *arg;
};

int engine_link_new(const struct engine_link_config *config, struct engine_link **ret_link);
/* Ends the process, too, within ENGINE_STOP_MS. */
struct engine_link *engine_link_free(struct engine_link *link);

/* started() or down() follows. */
void engine_link_start(struct engine_link *link);
/* What the next commd has to know of the engine that runs. */
struct engine_kept {
    uint32_t pid, uid;
    uint8_t secret[CONF_KEY_BYTES];
};
void engine_link_kept(const struct engine_link *link, struct engine_kept *ret_kept);
/* Takes over the engine that the commd before has kept: it runs now, and says a hello with
 * `resumed`. Not 0: it does not run any more. @kept NULL: it is not wanted, and is ended. */
int engine_link_adopt(struct engine_link *link, const struct engine_kept *kept);
/* Ends the process, if there is one: in order, or by force after ENGINE_STOP_MS. Nothing follows.
 */
void engine_link_end(struct engine_link *link);
/* Kills the engine; down() follows. Does nothing when no engine runs. */
/* Which is started from now on; one that runs goes on. */
void engine_link_set_program(struct engine_link *link, const struct program *program);
void engine_link_kill(struct engine_link *link);
/* Sends @msg with duplicates of @fds. The message is lost when no engine runs. */
void engine_link_send(struct engine_link *link, const struct msg *msg, const int *fds,
                      unsigned nfds);
/* How many engines were started so far: tells the boards and doorbells of one engine from those of
 * the next. 0: no engine runs. */
unsigned engine_link_life(const struct engine_link *link);
/* Is @pid the running engine? It is, while the engine's socket is open: the kernel gives its pid to
 * no other process before that. */
bool engine_link_is(const struct engine_link *link, uint32_t pid, uint32_t uid);
/* The token by which this engine knows the engine of @node, in this life. */
int engine_link_token(const struct engine_link *link, const char *node, uint8_t ret_token[32]);

#endif
