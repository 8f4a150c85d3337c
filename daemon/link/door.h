/* door.h - a TCP port at which anybody may knock: some are let in at a time, then none for some
 * milliseconds, so that a crowd gets a part of a core and no more (doc/security.md, "Ports and
 * strangers"). Where no descriptor is left, who knocks is let in and shown out at once: else the
 * loop would spin. */
#ifndef COMMD_DOOR_H
#define COMMD_DOOR_H

#include <event2/event.h>

#include "daemon/link/sock.h"

struct door_ops {
    unsigned budget, rest_ms; /* so many are let in, then none for so long */
    void (*came)(void *arg, int fd, const struct sock_addr *from); /* takes @fd */
    void (*full)(void *arg); /* somebody was shown out, or could not be let in */
};

/* All zero: shut. */
struct door {
    int fd; /* owned: it listens */
    const struct door_ops *ops;
    void *arg;
    struct event *knock, *rested; /* owned */
    struct sock_reserve reserve;
};

/* Takes @fd, also when it fails, by -ENOMEM. */
int door_open(struct door *door, struct event_base *base, int fd, const struct door_ops *ops,
              void *arg);
/* Lets nobody in any more; those who knock wait for whoever has the socket next. */
void door_shut(struct door *door);
void door_fini(struct door *door);

#endif
