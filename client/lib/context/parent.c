/* parent.c - a group that is made of ranks of another, its parent: who cannot come to it any more.
 *
 * The join waits for ranks that may never come. The parent's board says so long before the join's
 * limit: a rank has died, or has left for so long that commd's answer to its join would have come
 * here, too; or the parent has been revoked, by which a program frees its ranks wherever they are.
 * After a split any failure of the parent ends the join: who fails in the parent does not come. A
 * subgroup is made of ranks that live, also where others have died. */
#include "client/lib/context/group.h"

#include <stdio.h>

enum { LEFT_MS = 5000 };

bool parent_failed(const struct membership *g, bool revoked)
{
    struct board_cause c;
    unsigned cause = board_broken(g->board.hdr, &c);

    if (atomic_load(&g->failed) && (!revoked || g->first.code == COMMD_E_ABORTED))
        return true;
    return cause && (!revoked || cause == CAUSE_ABORTED);
}

/* Will rank @k of the parent not come any more? */
static bool is_lost(struct parent *p, unsigned k, const char *name, struct commd_error *e)
{
    const struct membership *g = p->group;
    const char *node = g->nodes[g->members[k].node];
    unsigned cause = board_missed(&g->board, k);
    bool left = cause == CAUSE_LEFT;

    if (!cause)
        return false;
    if (cause == CAUSE_NODE_LOST) {
        error_set(e, COMMD_E_NODE_LOST, "join",
                  "group \"%s\": rank %u of group \"%s\" is missed, and its node %s is lost", name,
                  k, g->name, node);
    } else {
        if (left && !p->left_ms)
            p->left_ms = (int64_t)now_ms();
        if (left && (int64_t)now_ms() - p->left_ms < LEFT_MS)
            return false;
        error_set(e, COMMD_E_RANK_LOST, "join",
                  "group \"%s\": rank %u of group \"%s\" (pid %u on node %s) %s", name, k, g->name,
                  g->members[k].pid, node, left ? "has left that, and did not come" : "died");
    }
    e->left = left;
    e->rank = (int)k;
    e->pid = (int)g->members[k].pid;
    snprintf(e->node, sizeof e->node, "%s", node);
    return true;
}

bool parent_fails(struct parent *p, const char *name, struct commd_error *e)
{
    const struct membership *g = p->group;

    if (!p->ranks && (parent_failed(g, false) || board_first_dead(&g->board) >= 0)) {
        error_set(e, COMMD_E_ABORTED, "join", "group \"%s\": group \"%s\" has failed", name,
                  g->name);
        return true; /* of what: commd_group_check() */
    }
    for (unsigned i = 0; p->ranks && i < p->count; i++)
        if (is_lost(p, (unsigned)p->ranks[i], name, e))
            return (p->named = true);
    if (!p->ranks || p->broken || !parent_failed(g, true))
        return false;
    error_set(e, COMMD_E_ABORTED, "join", "group \"%s\": group \"%s\" was revoked", name, g->name);
    return (p->revoked = true);
}
