/* elsewhere.c - the other groups of this process know of the same losses.
 *
 * commd tells of a loss group by group: of a process that was in many groups for some milliseconds
 * (daemon/core/core_part.c), and each node learns of it by itself. A group may have recovered
 * before. Then its ranks ask which of their other groups stand (commd_group_check()), and none may
 * say so that has a rank which the recovery has missed. So a recovery returns when their boards say
 * it too.
 *
 * Who wakes me: nobody; I look, until the limit: a commd that was started anew does not know
 * the other groups, and tells of nothing there. */
#include "client/lib/context/group.h"

enum { LOOK_US = 300 };

/* Does the board of @g say that the process @pid on @node is gone, if it was in it? */
static bool knows(const struct membership *g, uint32_t pid, const char *node)
{
    struct board_cause cause;

    for (unsigned k = 0; k < g->board.world; k++)
        if (g->members[k].pid == pid && !strcmp(group_node_of(g, k), node) &&
            !board_missed(&g->board, k))
            return board_broken(g->board.hdr, &cause) != 0;
    return true;
}

/* Do the other groups know that rank @rank of @old is gone? */
static bool all_know(struct commd_group *h, const struct membership *old, unsigned rank)
{
    unsigned cause = board_missed(&old->board, rank);
    uint32_t pid = old->members[rank].pid;
    bool known = true;

    if (!cause || cause == CAUSE_LEFT || !pid) /* it may live, and be in them */
        return cause || !pid;
    pthread_mutex_lock(&h->ctx->lock);
    for (struct commd_group *other = h->ctx->groups; other && known; other = other->next)
        known = other == h || knows(other->now, pid, group_node_of(old, rank));
    pthread_mutex_unlock(&h->ctx->lock);
    return known;
}

void elsewhere_known(struct commd_group *h, const struct membership *old, bool seats,
                     int64_t limit_ms)
{
    const struct membership *now = h->now;
    unsigned world = old->board.world;
    _cleanup_(freep) bool *lives = calloc(world, sizeof *lives);
    int64_t limit = deadline_in(limit_ms);

    for (unsigned k = 0; lives && k < now->board.world; k++)
        if (now->members[k].was && now->members[k].was <= world)
            lives[now->members[k].was - 1] = true;
    for (unsigned rank = 0; lives && rank < world; rank++) {
        if (lives[rank] || (seats && rank >= now->board.world && !board_missed(&old->board, rank)))
            continue;
        while (!all_know(h, old, rank) && (int64_t)now_ms() < limit)
            usleep(LOOK_US);
    }
}
