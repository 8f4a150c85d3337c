/* schedule.c - the entrance to the schedules: checks and dispatch.
 *
 * A question that makes no sense (node 5 of 4, move 9 of 3) is a bug of the caller that
 * could only end in wrong data, so it ends the process instead. Nothing here comes from a
 * client or a peer unchecked. abort() and not assert(): the objects of this folder's pure
 * part may call nothing but mem*() and abort(), and a release build keeps the check. */
#include "transport/schedule/schedule_priv.h"

static bool has_root(enum sched_kind kind)
{
    return kind == SCHED_RD_BROADCAST || kind == SCHED_RD_REDUCE || kind == SCHED_CHAIN_BROADCAST ||
           kind == SCHED_CHAIN_REDUCE || kind == SCHED_TO_ROOT || kind == SCHED_FROM_ROOT;
}

static bool is_rd(enum sched_kind kind)
{
    return kind == SCHED_RD_ALL_REDUCE || kind == SCHED_RD_ALL_GATHER ||
           kind == SCHED_RD_BROADCAST || kind == SCHED_RD_REDUCE ||
           kind == SCHED_HALVING_ALL_REDUCE || kind == SCHED_HALVING_REDUCE_SCATTER;
}

bool sched_independent(enum sched_kind kind)
{
    return kind == SCHED_EXCHANGE || kind == SCHED_TO_ROOT || kind == SCHED_FROM_ROOT;
}

bool sched_one_way(enum sched_kind kind)
{
    return kind == SCHED_CHAIN_BROADCAST || kind == SCHED_CHAIN_REDUCE || kind == SCHED_TO_ROOT ||
           kind == SCHED_FROM_ROOT;
}

unsigned sched_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root)
{
    if (kind >= SCHED_COUNT || nodes > SCHED_MAX_NODES || me >= nodes ||
        (has_root(kind) && root >= nodes))
        abort();
    if (is_rd(kind))
        return sched_rd_len(kind, nodes, me);
    if (sched_independent(kind))
        return sched_direct_len(kind, nodes, me, root);
    return sched_ring_len(kind, nodes, me, root);
}

struct sched_move sched_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                             unsigned i)
{
    if (i >= sched_len(kind, nodes, me, root))
        abort();
    if (is_rd(kind))
        return sched_rd_move(kind, nodes, me, root, i);
    if (sched_independent(kind))
        return sched_direct_move(kind, nodes, me, root, i);
    return sched_ring_move(kind, nodes, me, root, i);
}
