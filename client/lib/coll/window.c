/* window.c - who still reads what lies in this member's window, on one node.
 *
 * A slot of it holds what its owner put there in a step, where the number of the step says which
 * slot that is; or a piece of what it has posted (posts.c). Pieces lie one behind the other,
 * wherever the steps are. Who has come to the step of a later operation has read the steps before,
 * as ever. But members do not meet in an operation with posts, and so may be many operations
 * behind. A slot is written again when nobody will take the piece in it any more: all have
 * completed that operation, or have come to the step at which the owner is, where they meet it.
 *
 * Nobody waits for who waits for it: a member that takes pieces is in an earlier operation than an
 * owner that waits for it to be over, and waits itself for one in that operation or before. */
#include "client/lib/coll/window.h"

/* Ranks of other nodes take no part, so members are ranks. */
bool look_who_completed(struct run *r, uint32_t op)
{
    struct membership *g = r->group;
    uint32_t low = (uint32_t)r->desc.seq - 1;

    g->looked = true;
    for (unsigned m = 0; m < g->board.nlocal; m++) {
        uint32_t ops = atomic_load_explicit(&g->board.members[m].ops, memory_order_acquire);

        if (!seq_reached(ops, low))
            low = ops;
    }
    g->ops_seen = low;
    return seq_reached(low, op);
}

bool is_past(const struct run *r, unsigned m, uint64_t op)
{
    const struct board *b = &r->group->board;

    return seq_reached(atomic_load_explicit(&b->members[m].ops, memory_order_acquire),
                       (uint32_t)op) ||
           board_arrived(b, m, r->base);
}

/* So many operations later all are, and numbers of 32 bits could not be compared. */
static bool is_long_ago(const struct run *r, uint64_t op)
{
    return r->desc.seq - op > INT32_MAX / 2;
}

bool all_are_past(struct run *r, uint64_t op)
{
    if (is_long_ago(r, op) || have_completed(r, (uint32_t)op))
        return true;
    for (unsigned m = 0; m < r->group->board.nlocal; m++)
        if (m != r->group->local && !is_past(r, m, op))
            return false;
    return true;
}

bool window_leaves(struct run *r, uint32_t step)
{
    struct membership *g = r->group;

    if (is_long_ago(r, g->posted) || have_completed(r, (uint32_t)g->posted)) {
        g->posted = 0;
        return true;
    }
    return all_are_past(r, g->piece_op[step % g->board.depth]);
}
