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

static void send_to(struct sched_move *mv, unsigned node)
{
    mv->to = (int16_t)node;
    mv->send_lo = (uint16_t)node;
    mv->send_n = 1;
}

static void recv_from(struct sched_move *mv, unsigned node, unsigned tag)
{
    mv->from = (int16_t)node;
    mv->recv_lo = (uint16_t)node;
    mv->recv_n = 1;
    mv->recv_tag = (uint16_t)tag;
}

struct sched_move sched_direct_move(enum sched_kind kind, unsigned nodes, unsigned me,
                                    unsigned root, unsigned i)
{
    struct sched_move mv = sched_no_move();
    unsigned after = (me + 1 + i) % nodes, before = (me + nodes - 1 - i) % nodes;

    assert(i + 1 < nodes);
    assert(after != me);
    if (kind == SCHED_EXCHANGE) {
        send_to(&mv, after);
        recv_from(&mv, before, i);
    } else if (kind == SCHED_TO_ROOT) {
        me == root ? recv_from(&mv, after, 0) : send_to(&mv, root);
    } else if (me == root) {
        send_to(&mv, after);
    } else {
        assert(i == 0);
        assert(me != root);
        recv_from(&mv, root, (me + nodes - root) % nodes - 1);
    }
    return mv;
}
