/* window.h - who still reads what lies in this member's window: window.c. */
#ifndef COMMD_CLIENT_WINDOW_H
#define COMMD_CLIENT_WINDOW_H

#include "client/lib/coll/run.h"

/* Have all members completed operation @op, which came before that of @r? The answer is cached. */
bool look_who_completed(struct run *r, uint32_t op);
static inline bool have_completed(struct run *r, uint32_t op)
{
    return likely(seq_reached(r->group->ops_seen, op)) || look_who_completed(r, op);
}

/* Will member @m take nothing any more of what this one has posted in @op? If it has come where
 * this one goes on it meets the others there. */
bool is_past(const struct run *r, unsigned m, uint64_t op);
bool all_are_past(struct run *r, uint64_t op);

#endif
