/* schedule_direct.c - data that are for one node only go there in one message.
 *
 * Model. Not all nodes should send to one node at the same time. So in move s of an exchange node m
 * sends to m+1+s and receives from m-1-s (modulo N): in each move every node has one sender and one
 * receiver (the pairwise exchange of Thakur, Rabenseifner, Gropp 2005, for any node count). Seen as
 * a table of senders and receivers, a gathering is the root's column of it, a scattering its row.
 */
#include "transport/schedule/schedule_priv.h"

unsigned sched_direct_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root)
{
    return kind == SCHED_EXCHANGE || me == root ? nodes - 1 : 1;
}

struct sched_move sched_direct_move(enum sched_kind kind, unsigned nodes, unsigned me,
                                    unsigned root, unsigned i)
{
    struct sched_move mv = sched_no_move();
    unsigned after = (me + 1 + i) % nodes, before = (me + nodes - 1 - i) % nodes;

    assert(i + 1 < nodes);
    assert(after != me);
    if (kind == SCHED_EXCHANGE) {
        sched_sends(&mv, after, after, 1);
        sched_receives(&mv, before, before, 1, i);
    } else if (kind == SCHED_TO_ROOT) {
        me == root ? sched_receives(&mv, after, after, 1, 0) : sched_sends(&mv, root, root, 1);
    } else if (me == root) {
        sched_sends(&mv, after, after, 1);
    } else {
        assert(i == 0);
        assert(me != root);
        sched_receives(&mv, root, root, 1, (me + nodes - root) % nodes - 1);
    }
    return mv;
}
