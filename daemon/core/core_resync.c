/* core_resync.c - what nodes tell each other of their groups anew, so that a commd that dies, or a
 * link, loses nothing of it.
 *
 * Messages about a group are what became of its ranks (GONE), and its end (BROKEN). Both only add
 * to what is known, and come twice without harm. So nothing is numbered and repeated: when a link
 * is new both sides tell all that they know of their common groups, and ask with SYNC{again}
 * whether the other one has them. Its answer says that it has heard that: SYNC{told}, or BROKEN.
 *
 * A node whose last rank of a group has ended has nothing to do with it but to tell. It keeps the
 * group as LEFT, without a board, until each other participant has answered or is lost: else one
 * whose commd died with our last words unread would never know what became of our ranks. If all of
 * them have gone on to the next epoch, its nodes know that from its COMMIT and are not asked. Who
 * is asked about a group that it does not have says BROKEN without a cause; for one that knows
 * ranks there that have not ended, and had its SYNC, that is the loss of that node: its commd was
 * restarted, and what it had written down was not to be had.
 *
 * Who wakes me: nodes that are back, ranks that end, answers; nodes that are lost. What if a peer
 * dies now: it is AWAY, and asked again when it is back, or lost. What if this commd dies now: LEFT
 * is written down. What a peer can cost: an answer for each question. */
#include "daemon/core/core_internal.h"

/* What came before is heard when the answer comes. */
static struct act_msg ask_again(struct core *core, const struct group *group)
{
    return group_vote(group, ++core->asked, 0);
}

void group_tell_ends(struct core *core, const struct group *group, unsigned node)
{
    if (group->cause)
        group_tell_broken(core, group, node);
    act_fates_to(core, group, node); /* behind that: what broke the group comes first */
}

static void tell_all(struct core *core, const struct group *group, unsigned node)
{
    group_tell_ends(core, group, node);
    bond_tell(core, group, node);
    act_to_peer(core, node, ask_again(core, group));
}

void group_resync(struct core *core, unsigned node, bool back)
{
    struct group *group;

    if (back && bond_engine_knows(core))
        pause_is_over(core, node); /* its engine is the one that it was, and others wait */
    list_each(group, &core->all_groups, all)
        if (group->state != GROUP_BROKEN && (back || group->bond != BOND_BOUND) &&
            group_place(group, node) >= 0)
            tell_all(core, group, node); /* BROKEN: it asks, if it does not know it */
}

static struct act_msg ask_fates(struct core *core, const struct group *group)
{
    struct act_msg msg = ask_again(core, group);

    msg.sync.again |= CORE_SYNC_FATES;
    return msg;
}

void group_ask_broken(struct core *core, unsigned node)
{
    struct group *group;

    list_each(group, &core->all_groups, all) {
        int place = group_place(group, node);

        if (group->state != GROUP_BROKEN || place < 0 || !act_room(core))
            continue;
        act_to_peer(core, node, ask_fates(core, group));
        if (core->peers[node].strays) /* it answers, also where its commd was started anew */
            follow_place_lost(core, group, (unsigned)place, false);
    }
}

void group_ask_all(struct core *core, const struct group *group)
{
    act_to_group(core, group, ACT_EACH_NODE, ask_fates(core, group));
}

void group_told(struct core *core, struct group *group, unsigned place)
{
    assert(group->state == GROUP_LEFT && place != group->me);
    if (!group->confirmed[place]) {
        group->confirmed[place] = true;
        group->nconfirmed++;
    }
    if (group->nconfirmed + 1 == group->nnodes)
        group_forget(core, group);
}

/* Those that are lost need not be told. */
static void tell_or_forget(struct core *core, struct group *group)
{
    for (unsigned i = 0; i < group->nnodes && group->state == GROUP_LEFT; i++)
        if (i != group->me && core->peers[group->nodes[i]].state == CORE_PEER_UNLINKED)
            group_told(core, group, i);
}

void group_forgo(struct core *core, unsigned node)
{
    struct group *group;

    list_each(group, &core->all_groups, all) {
        int place = group->state == GROUP_LEFT ? group_place(group, node) : -1;

        if (place >= 0)
            group_told(core, group, (unsigned)place);
    }
}

/* Who has not agreed may have heard nothing yet, because the COMMIT was still on its way. It takes
 * records for each node, so where the queue is nearly full some are not told: they ask. */
static void tell_unopened(struct core *core, struct group *group)
{
    unsigned first = group_first(core, group);

    assert(group->cause);
    for (unsigned i = 0; i < group->nnodes && group->state == GROUP_LEFT; i++) {
        if (group->confirmed[i] || i == group->me)
            continue;
        if (first != group->me && i != first)
            group_told(core, group, i); /* the first one tells it */
        else if (!peer_linked(core, group->nodes[i]))
            continue;
        else if (act_room(core))
            tell_all(core, group, group->nodes[i]);
        else
            group_told(core, group, i);
    }
}

/* A commd of the version before this one answers only when its own ranks have ended. */
void group_ask_left(struct core *core, const struct group *group)
{
    for (unsigned i = 0; i < group->nnodes && act_room(core); i++) {
        if (i == group->me || group->confirmed[i])
            continue;
        assert(core->peers[group->nodes[i]].state != CORE_PEER_UNLINKED); /* group_forgo() */
        if (peer_linked(core, group->nodes[i]))
            tell_all(core, group, group->nodes[i]);
    }
}

/* All of @group that were ours. */
static bool all_went_on(const struct group *group, const struct group *next)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < group->size; i++)
        if (group->members[i].node == group->me && !follow_went_on(next, i, &at))
            return false;
    return true;
}

/* The nodes of the next epoch know from its COMMIT who has gone on. */
static void spare_next(struct core *core, struct group *group)
{
    const struct group *next =
        group->next_epoch ? follow_gone_on(core, group->uid, group->id) : NULL;

    if (!next || !all_went_on(group, next))
        return;
    for (unsigned i = 0; i < group->nnodes && group->state == GROUP_LEFT; i++)
        if (i != group->me && group_place(next, group->nodes[i]) >= 0)
            group_told(core, group, i);
}

void group_left(struct core *core, struct group *group, bool opened)
{
    assert(group->state == GROUP_LEFT && group->nnodes > 1);
    memset(group->confirmed, 0, group->nnodes * sizeof(*group->confirmed));
    group->nconfirmed = 0;
    group->asked = core->asked + 1;
    tell_or_forget(core, group);
    if (!opened)
        tell_unopened(core, group);
    else
        spare_next(core, group);
    if (opened && group->state == GROUP_LEFT)
        act_to_group(core, group, ACT_EACH_UNCONFIRMED, ask_again(core, group));
}

/* GROUP_BROKEN, and RANK_GONE of each rank that is gone: the one before may have died between
 * writing it down and telling it. */
static void tell_boards(struct core *core, const struct group *group)
{
    if (group->state == GROUP_BROKEN)
        group_mark_broken(core, group, true);
    if (group->state == GROUP_OPEN || group->state == GROUP_BROKEN)
        act_fates(core, group, true);
}

void group_taken_over(struct core *core, const char *text)
{
    struct group *group;

    assert(core->phase == PHASE_RUNNING);
    list_each(group, &core->all_groups, all)
        for (unsigned i = 0; i < group->nnodes; i++)
            if (i != group->me)
                peer_miss(core, group->nodes[i]);
    list_each(group, &core->all_groups, all) {
        tell_boards(core, group);
        if (group->state == GROUP_LEFT)
            group_left(core, group, true);
        else if (!group->nlocal)
            group_close(core, group); /* the one before did not come to it */
    }
    if (!core->engine.resuming)
        group_engine_lost(core, core->config.self, text);
}
