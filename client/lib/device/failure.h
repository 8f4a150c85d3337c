/* failure.h - a failure on a GPU of which no work of the application tells. The model is in
 * failure.c. */
#ifndef COMMD_CLIENT_FAILURE_H
#define COMMD_CLIENT_FAILURE_H

#include "client/lib/context/group.h"

struct device_group;

enum failure_state {
    FAILURE_NONE,   /* there is none, or a call has told of it */
    FAILURE_OWN,    /* of this rank alone */
    FAILURE_SHARED, /* of other ranks, too: their calls may have told it, and they have stopped */
};

/* What a group has. */
struct failure {
    pthread_mutex_t lock;
    _Atomic int state;         /* enum failure_state */
    struct commd_error why;    /* of the first failure that was not told */
    int64_t since_ms;          /* FAILURE_SHARED: when it was noted */
    uint64_t seq;              /* the last operation of the group that had begun then */
    struct question *question; /* owned; under plock: ranks that have not come to a later one */
};

void failure_note(struct device_group *dg, const struct commd_error *why, enum failure_state kind);
/* True: there was a failure, and the caller tells of it. Only one caller does. */
bool failure_take(struct device_group *dg, struct commd_error *ret_why);
/* A call is about to return COMMD_E_ABORTED: adds to its message what failed before. */
int failure_explain(struct device_group *dg);
/* Called some times a second. */
void failure_watch(struct device_group *dg);

#endif
