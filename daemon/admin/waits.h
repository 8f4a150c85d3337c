/* waits.h - what clients of this node wait for before they are in a group: a join, or something
 * outside commd that they name in CLIENT_HELLO. Shown to people: it is what the client said last,
 * and no code decides by it. A wait that ended badly is kept in past.h. */
#ifndef COMMD_WAITS_H
#define COMMD_WAITS_H

#include "shm/proto/msg.h"

struct daemon;

enum client_waits { WAITS_NOT, WAITS_ELSEWHERE, WAITS_JOIN };
struct client_wait {
    enum client_waits kind;
    /* Of a recovery: the rank and size in the group that it follows; REJOIN: the seat or
     * MSG_ANY_SEAT, and 0. */
    uint32_t req, rank, size;
    uint32_t recovery; /* enum msg_recovery */
    uint64_t epoch;    /* of a recovery, that is to come; 0: not known */
    uint64_t since_ms;
    char name[MSG_GROUP_MAX];
};

/* @msg is a hello or a join of the client in @slot. */
void waits_msg(struct daemon *d, unsigned slot, const struct msg *msg);
/* commd's answer to the join @req. */
void waits_joined(struct daemon *d, unsigned slot, uint32_t req);
void waits_failed(struct daemon *d, unsigned slot, const struct msg_join_failed *msg);
/* The client is gone. */
void waits_gone(struct daemon *d, unsigned slot);
/* The first slot from @slot on whose client waits for something outside commd; d->nslots: there is
 * none. */
unsigned waits_next(const struct daemon *d, unsigned slot);

#endif
