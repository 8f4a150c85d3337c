/* past.h - groups of this node that ended badly, as they were when they ended. commctl why reads
 * them when the job is gone already. */
#ifndef COMMD_PAST_H
#define COMMD_PAST_H

#include <sys/queue.h>

#include "daemon/admin/rank_view.h"

enum {
    PAST_MAX = 64,
    PAST_MAX_PER_USER = 16,
    PAST_WAITS_PER_USER = 4, /* waits of ranks that came into no group */
    PAST_WAIT_MS = 60000,    /* ranks that fail within this time belong to one wait */
    PAST_MAX_ROWS = 64,
    PAST_OPS = 16,
};

struct board_entry;
struct client_command;
struct past_group;
TAILQ_HEAD(past_list, past_group);
struct past {
    struct past_list groups; /* owned; the oldest first */
    unsigned ngroups;
};

void past_init(struct past *past);
void past_fini(struct past *past);
/* The group of @closing is about to be closed here. The group is kept if it was broken, if a rank
 * of it died, or if the last operations of its ranks differ. The oldest groups make room, those of
 * the same user first. */
void past_closing(struct past *past, struct daemon *d, const struct board_entry *closing);
/* The client has stopped to wait for a group that never opened. */
void past_wait_failed(struct past *past, const struct client_command *client, enum cause cause,
                      const char *text);
/* Adds to @ranks those groups that its wish names. */
void past_add(const struct past *past, struct ranks *ranks);

#endif
