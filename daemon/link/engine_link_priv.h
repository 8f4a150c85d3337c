/* engine_link_priv.h - shared by engine_link.c (a life of an engine) and engine_adopt.c (how it
 * ends, and how a life goes on with the next commd). */
#ifndef COMMD_ENGINE_LINK_PRIV_H
#define COMMD_ENGINE_LINK_PRIV_H

#include "daemon/link/engine_link.h"
#include "daemon/link/engine_spawn.h"
#include "daemon/link/stream.h"

enum engine_state { ENGINE_DOWN, ENGINE_RUNNING, ENGINE_ENDING };

struct engine_link {
    struct event_base *base; /* borrowed */
    const struct engine_link_ops *ops;
    void *arg;
    struct closer *closer; /* borrowed */
    struct program program;
    char pid_file[CONF_PATH_MAX];
    enum engine_state state;
    unsigned life;
    pid_t pid;                    /* 0: not known yet */
    uint32_t uid;                 /* of the process */
    int pidfd;                    /* owned; -1: a launcher has started it */
    int keeper;                   /* owned: the connection to its launcher; -1: none has */
    int line;                     /* owned; of this life */
    bool adopted;                 /* a commd before this one has started it */
    const char *name;             /* borrowed: of what is kept for the next commd */
    char launcher[CONF_PATH_MAX]; /* "": none */
    struct stream stream;         /* owned */
    bool keeps_port;
    int port; /* owned: where engines listen, also while none runs; -1: not known */
    struct event *read, *write, *died; /* owned, of this life */
    struct event *timer, *retry;       /* owned */
    uint8_t secret[CONF_KEY_BYTES];    /* of this life */
    bool report_started;
    char doom[MSG_TEXT_MAX]; /* DOWN: why it could not be started; RUNNING: why it will be killed */
};

/* ---- engine_link.c --------------------------------------------------------------------------- */

/* The process is there, with its control socket. On failure it has been ended. */
int link_run(struct engine_link *link, int sock);
/* Forgets the process. It has ended, or was never started. */
void link_clear(struct engine_link *link);
void link_kill(struct engine_link *link);

/* ---- engine_adopt.c -------------------------------------------------------------------------- */

/* From now on the next commd finds the process; or it does not any more. */
void link_keep(struct engine_link *link);
void link_forget(struct engine_link *link);

#endif
