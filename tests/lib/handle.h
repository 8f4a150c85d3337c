/* handle.h - what the application holds, around a group that a test has made without commd. */
#ifndef COMMD_TEST_HANDLE_H
#define COMMD_TEST_HANDLE_H

#include "client/lib/async/async.h"

/* Its group comes next: into ->now. */
static inline struct commd_group *handle_new(struct commd_context *ctx)
{
    struct commd_group *h = calloc(1, sizeof *h);

    if (!h)
        abort();
    h->ctx = ctx;
    return h;
}

/* With its group; NULL is fine. */
static inline void handle_free(struct commd_group *h)
{
    if (!h)
        return;
    group_free(h->now);
    free(h);
}

#endif
