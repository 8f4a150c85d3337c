/* schedule.c - the entrance to the schedules: what each kind is, and which family makes its moves.
 * Arguments come from a plan and from the tables of a group, not from a client or a peer. */
#include "transport/schedule/schedule_priv.h"

enum family { FAMILY_RD, FAMILY_RING, FAMILY_DIRECT };

static const struct {
    enum family family;
    bool rooted, one_way;
} kinds[SCHED_COUNT] = {
    [SCHED_RD_ALL_REDUCE] = {FAMILY_RD},
    [SCHED_RD_ALL_GATHER] = {FAMILY_RD},
    [SCHED_RD_BROADCAST] = {FAMILY_RD, .rooted = true},
    [SCHED_RD_REDUCE] = {FAMILY_RD, .rooted = true},
    [SCHED_HALVING_ALL_REDUCE] = {FAMILY_RD},
    [SCHED_RING_ALL_REDUCE] = {FAMILY_RING},
    [SCHED_HALVING_REDUCE_SCATTER] = {FAMILY_RD},
    [SCHED_RING_REDUCE_SCATTER] = {FAMILY_RING},
    [SCHED_RING_ALL_GATHER] = {FAMILY_RING},
    [SCHED_CHAIN_BROADCAST] = {FAMILY_RING, .rooted = true, .one_way = true},
    [SCHED_CHAIN_REDUCE] = {FAMILY_RING, .rooted = true, .one_way = true},
    [SCHED_EXCHANGE] = {FAMILY_DIRECT},
    [SCHED_TO_ROOT] = {FAMILY_DIRECT, .rooted = true, .one_way = true},
    [SCHED_FROM_ROOT] = {FAMILY_DIRECT, .rooted = true, .one_way = true},
};

bool sched_independent(enum sched_kind kind)
{
    assert(kind < SCHED_COUNT);
    return kinds[kind].family == FAMILY_DIRECT;
}

bool sched_one_way(enum sched_kind kind)
{
    assert(kind < SCHED_COUNT);
    return kinds[kind].one_way;
}

unsigned sched_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root)
{
    assert(kind < SCHED_COUNT);
    assert(nodes <= SCHED_MAX_NODES);
    assert(me < nodes);
    assert(!kinds[kind].rooted || root < nodes);
    if (kinds[kind].family == FAMILY_RD)
        return sched_rd_len(kind, nodes, me);
    if (kinds[kind].family == FAMILY_DIRECT)
        return sched_direct_len(kind, nodes, me, root);
    return sched_ring_len(kind, nodes, me, root);
}

struct sched_move sched_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                             unsigned i)
{
    struct sched_move mv;

    assert(i < sched_len(kind, nodes, me, root));
    if (kinds[kind].family == FAMILY_RD)
        mv = sched_rd_move(kind, nodes, me, root, i);
    else if (kinds[kind].family == FAMILY_DIRECT)
        mv = sched_direct_move(kind, nodes, me, root, i);
    else
        mv = sched_ring_move(kind, nodes, me, root, i);
    assert(mv.to < (int)nodes);
    assert(mv.to != (int)me);
    assert(mv.from < (int)nodes);
    assert(mv.from != (int)me);
    assert(mv.send_lo + mv.send_n <= nodes);
    assert(mv.recv_lo + mv.recv_n <= nodes);
    return mv;
}
