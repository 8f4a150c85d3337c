/* schedule_ring.c - ring and chain: bandwidth-optimal schedules for large payloads.
 *
 * Model. Every node sends to its right neighbour and receives from its left one, in every
 * move one segment; all indices are modulo N, and move i of one node matches move i of its
 * neighbour. Segment g of a reduce-scatter starts at node g+1 and travels g+2, g+3, .. until
 * it ends at node g, each stop adding its own contribution on the right:
 *
 *     move s of node m:  send segment m-1-s,  receive and reduce segment m-2-s
 *
 * So each segment has one association. An all-gather passes the finished segments on:
 *
 *     move s of node m:  send segment m-s,    receive segment m-1-s
 *
 * An all-reduce is a reduce-scatter and then an all-gather: 2(N-1) moves of 1/N of the data, which
 * is the least that any algorithm can send.
 *
 * A chain passes one segment on from node to node: away from the root (broadcast), or towards it,
 * each stop adding its own contribution on the right (reduce). Every node sends the data once. */
#include "transport/schedule/schedule_priv.h"

static unsigned ring_back(unsigned a, unsigned b, unsigned n)
{
    assert(a < n);
    assert(b <= 2 * n);
    return (a + 2 * n - b) % n;
}

static struct sched_move ring_segment_move(unsigned nodes, unsigned me, unsigned i, unsigned send,
                                           unsigned recv)
{
    struct sched_move mv = sched_no_move();

    sched_sends(&mv, (me + 1) % nodes, send, 1);
    sched_receives(&mv, ring_back(me, 1, nodes), recv, 1, i);
    return mv;
}

static struct sched_move ring_scatter_move(unsigned nodes, unsigned me, unsigned i)
{
    struct sched_move mv =
        ring_segment_move(nodes, me, i, ring_back(me, 1 + i, nodes), ring_back(me, 2 + i, nodes));

    assert(i + 1 < nodes);
    mv.act = SCHED_REDUCE;
    mv.recv_first = true;
    mv.last_reduce = i + 2 == nodes;
    return mv;
}

/* Step @s of the all-gather, which is move @i. */
static struct sched_move ring_gather_move(unsigned nodes, unsigned me, unsigned s, unsigned i)
{
    assert(s + 1 < nodes);
    return ring_segment_move(nodes, me, i, ring_back(me, s, nodes), ring_back(me, 1 + s, nodes));
}

static bool is_chain(enum sched_kind kind)
{
    return kind == SCHED_CHAIN_BROADCAST || kind == SCHED_CHAIN_REDUCE;
}

/* The chain of a broadcast begins at the root, that of a reduction ends there. */
static unsigned chain_hop(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root)
{
    assert(is_chain(kind));
    return ring_back(me, kind == SCHED_CHAIN_REDUCE ? (root + 1) % nodes : root, nodes);
}

/* A node in the middle of a chain receives in one move and passes on in the next. */
static struct sched_move chain_move(enum sched_kind kind, unsigned nodes, unsigned me,
                                    unsigned root, unsigned i)
{
    struct sched_move mv = sched_no_move();
    unsigned hop = chain_hop(kind, nodes, me, root);

    if (hop == 0 || i == 1) {
        sched_sends(&mv, (me + 1) % nodes, 0, 1);
        return mv;
    }
    assert(i == 0);
    /* the tag: only the first of the chain sends in its first move */
    sched_receives(&mv, ring_back(me, 1, nodes), 0, 1, hop > 1);
    if (kind == SCHED_CHAIN_REDUCE) {
        mv.act = SCHED_REDUCE;
        mv.recv_first = true;
        mv.last_reduce = me == root;
    }
    return mv;
}

unsigned sched_ring_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root)
{
    if (is_chain(kind)) {
        unsigned hop = chain_hop(kind, nodes, me, root);

        return (hop > 0) + (hop + 1 < nodes);
    }
    return kind == SCHED_RING_ALL_REDUCE ? 2 * (nodes - 1) : nodes - 1;
}

struct sched_move sched_ring_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                                  unsigned i)
{
    if (is_chain(kind))
        return chain_move(kind, nodes, me, root, i);
    if (kind == SCHED_RING_ALL_GATHER)
        return ring_gather_move(nodes, me, i, i);
    if (i < nodes - 1)
        return ring_scatter_move(nodes, me, i);
    return ring_gather_move(nodes, me, i - (nodes - 1), i);
}
