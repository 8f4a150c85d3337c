/* takeover.h - what takeover.c and takeover_away.c share. */
#ifndef COMMD_TAKEOVER_H
#define COMMD_TAKEOVER_H

#include "daemon/daemon.h"

/* What is kept of the client in a slot. */
struct kept_client {
    bool kept;
    bool unheard; /* it is away, or has sent nothing since but its hello: has it read WELCOME? */
    uint8_t key[MSG_KEY];
    uint64_t *known; /* owned: the groups that it said it is in, and is; until its WELCOME */
    unsigned nknown;
};

/* takeover_engine.c: takes over the engine and commd-gpu, or ends them. Clients come after that. */
void takeover_programs(struct daemon *d);
/* A timer's callback; @daemon is a struct daemon. */
void takeover_look_away(evutil_socket_t fd, short what, void *daemon);

#endif
