/* past.h - groups of this node that ended badly, as they were when they ended: for who asks why
 * after the job is gone. */
#ifndef COMMD_PAST_H
#define COMMD_PAST_H

#include <sys/queue.h>

#include "daemon/admin/rank_view.h"

enum {
    PAST_MAX = 64,
    PAST_MAX_PER_USER = 16,
    PAST_WAITS_PER_USER = 4, /* that came to no group */
    PAST_WAIT_MS = 60000,    /* ranks that fail so soon after another belong to one wait */
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
/* The group of this board is about to be closed here. Kept if it was broken, if a rank of it died,
 * or if the last operations of its ranks differ; the oldest ones make room, the user's own first.
 */
void past_closing(struct past *past, struct daemon *d, const struct board_entry *closing);
/* The client waits no more, for a group that has not come about. */
void past_wait_failed(struct past *past, const struct client_command *client, enum cause cause,
                      const char *text);
/* Adds those that @ranks wishes for. */
void past_add(const struct past *past, struct ranks *ranks);

#endif
