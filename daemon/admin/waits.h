/* waits.h - what clients of this node wait for before they are in a group: a join, or something
 * elsewhere that they have told of (CLIENT_HELLO). For people; what a client has said last, and
 * nobody decides by it. A wait that ended badly is kept with the groups that did (past.h). */
#ifndef COMMD_WAITS_H
#define COMMD_WAITS_H

#include "shm/proto/msg.h"

struct daemon;

enum client_waits { WAITS_NOT, WAITS_ELSEWHERE, WAITS_JOIN };
struct client_wait {
    enum client_waits kind;
    uint32_t req, rank, size;
    uint64_t since_ms;
    char name[MSG_GROUP_MAX];
};

/* A hello or a join of the client in @slot. */
void waits_msg(struct daemon *d, unsigned slot, const struct msg *msg);
/* What commd answers. */
void waits_joined(struct daemon *d, unsigned slot, uint32_t req);
void waits_failed(struct daemon *d, unsigned slot, const struct msg_join_failed *msg);
/* The client is gone. */
void waits_gone(struct daemon *d, unsigned slot);
/* The first slot at or behind @slot of a client that waits elsewhere; d->nslots: there is none. */
unsigned waits_next(const struct daemon *d, unsigned slot);

#endif
