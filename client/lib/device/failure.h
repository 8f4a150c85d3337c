/* failure.h - a failure on a GPU that no work of the application's could tell of. The model is in
 * failure.c. */
#ifndef COMMD_CLIENT_FAILURE_H
#define COMMD_CLIENT_FAILURE_H

#include "client/lib/context/group.h"

struct device_group;

enum failure_state {
    FAILURE_NONE,   /* or a call has told of it */
    FAILURE_OWN,    /* it concerns no other rank */
    FAILURE_SHARED, /* other ranks have it, too: a call may have told them, and they have stopped */
};

/* What a group has. */
struct failure {
    pthread_mutex_t lock;
    _Atomic int state;         /* enum failure_state */
    struct commd_error why;    /* of the first */
    int64_t since_ms;          /* FAILURE_SHARED: when it was noted */
    uint64_t seq;              /* operation of the group that was begun last by then */
    struct question *question; /* owned; under plock: who has not come to a later one */
};

void failure_note(struct device_group *dg, const struct commd_error *why, enum failure_state kind);
/* True: there was one, which is told now; only one thread is told. */
bool failure_take(struct device_group *dg, struct commd_error *ret_why);
/* The call returns COMMD_E_ABORTED: adds what failed before. */
int failure_explain(struct device_group *dg);
/* With plock held, some times a second. */
void failure_watch(struct device_group *dg);

#endif
