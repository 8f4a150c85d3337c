/* core_rank.c - how the ranks of a group end, those of this node and those of others.
 *
 * A rank that is gone has a fate: it left, or was lost. Its own node says which to the boards, to
 * the other participants (GONE), and to who keeps the group for the next commd. The last local rank
 * that ends closes the group here: see core_group.c. */
#include "daemon/core/core_internal.h"

static void note_lost(struct core *core, const struct group *group, const char *text)
{
    group_log(core, CORE_NOTE_RANK_LOST, group->uid, CORE_LOG_DEBUG, group->name, text,
              "its ranks are told");
}

/* What RANK_GONE and GONE say of a rank that has its fate. */
static struct core_rank_gone gone_record(struct core *core, const struct group *group,
                                         uint32_t rank, const char *text)
{
    const struct fate *fate = runs_fate(&core->runs, &group->members[rank]);

    assert(fate->cause == CAUSE_LEFT || fate->cause == CAUSE_RANK_LOST);
    assert(rank < group->size);
    return (struct core_rank_gone){.group = group->id,
                                   .rank = rank,
                                   .ops = fate->ops,
                                   .pid = group->members[rank].pid,
                                   .cause = (enum cause)fate->cause,
                                   .text = act_text(core, text),
                                   .next = group->next_epoch,
                                   .missed = group->state == GROUP_BROKEN};
}

static void mark_gone(struct core *core, const struct group *group, uint32_t rank, const char *text)
{
    act_push(core, (struct core_action){.type = CORE_DO_RANK_GONE,
                                        .rank_gone = gone_record(core, group, rank, text)});
}

/* In a group that has no board: for who keeps it. */
static void note_ended(struct core *core, const struct group *group, uint32_t rank,
                       const char *text)
{
    assert(group->state == GROUP_COMMITTED);
    act_push(core, (struct core_action){.type = CORE_DO_RANK_ENDED,
                                        .rank_gone = gone_record(core, group, rank, text)});
}

/* @but: nodes with ranks in it know without that; or NULL. */
static void tell_gone(struct core *core, const struct group *group, const struct group *but,
                      uint32_t rank, const char *text)
{
    act_to_group_but(
        core, group, but,
        (struct act_msg){.type = MSG_GONE, .gone = gone_record(core, group, rank, text)});
}

void group_tell_ended(struct core *core, const struct group *group)
{
    for (uint32_t i = 0; i < group->size && group->unclean; i++)
        if (group->members[i].node == group->me &&
            runs_fate(&core->runs, &group->members[i])->cause)
            tell_gone(core, group, NULL, i, "gone before the group opened");
}

static void group_rank_gone(struct core *core, struct member *member, enum cause cause,
                            uint32_t ops, const char *text)
{
    struct group *group = member->group;
    struct fate *fate = runs_fate(&core->runs, &group->members[member->rank]);

    assert(member->state == MEMBER_COMMITTED || member->state == MEMBER_JOINED);
    assert(cause == CAUSE_LEFT || cause == CAUSE_RANK_LOST);
    assert(group->nlocal && member->rank < group->size);
    assert(!fate->cause && group->members[member->rank].node == group->me);
    fate->cause = (uint8_t)cause;
    fate->ops = ops;
    follow_learned(core, group);
    if (cause != CAUSE_LEFT) {
        group->unclean = true;
        core->counts.ranks_lost++;
        note_lost(core, group, text);
    }
    if (group->state != GROUP_COMMITTED)
        mark_gone(core, group, member->rank, text);
    else if (group->nlocal > 1 || group->nnodes > 1) /* else it is closed */
        note_ended(core, group, member->rank, text);
    /* A node that takes part in the next epoch knows who has gone on to it: to say so of each rank
     * to each node would be ranks times nodes. */
    if (group->nnodes > 1 && ops != CORE_OPS_FROM_BOARD)
        tell_gone(core, group, cause == CAUSE_LEFT ? follow_successor(core, member) : NULL,
                  member->rank, text);
    member_end(core, member);
    if (!group->nlocal)
        group_close(core, group);
}

void group_rank_left(struct core *core, struct member *member, uint32_t ops)
{
    char text[MSG_TEXT_MAX];

    assert(member->state == MEMBER_JOINED);
    text_format(text, sizeof(text), "rank %u (pid %u on node %s) left", member->rank, member->pid,
                core_self_name(core));
    group_rank_gone(core, member, CAUSE_LEFT, MIN(ops, CORE_OPS_FROM_BOARD - 1), text);
}

void group_rank_lost(struct core *core, struct member *member, const char *why)
{
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), "rank %u (pid %u on node %s) was lost: %s", member->rank,
                member->pid, core_self_name(core), why);
    group_rank_gone(core, member, CAUSE_RANK_LOST,
                    member->state == MEMBER_JOINED ? CORE_OPS_FROM_BOARD : 0, text);
}

void group_rank_left_unheard(struct core *core, struct member *member)
{
    char text[MSG_TEXT_MAX];

    assert(member->state == MEMBER_JOINED);
    text_format(text, sizeof(text), "rank %u (pid %u on node %s) left while commd was restarted",
                member->rank, member->pid, core_self_name(core));
    group_rank_gone(core, member, CAUSE_LEFT, CORE_OPS_FROM_BOARD, text);
}

void core_rank_counted(struct core *core, uint64_t id, uint32_t rank, uint32_t ops)
{
    const struct group *group = group_find(core, id);
    struct fate *fate;

    if (!group || rank >= group->size)
        return;
    fate = runs_fate(&core->runs, &group->members[rank]);
    if (fate->ops == CORE_OPS_FROM_BOARD)
        fate->ops = MIN(ops, CORE_OPS_FROM_BOARD - 1);
}

/* A rank of @next that never came may stay in the epoch before. Ours have gone on from there, and
 * told that nobody who takes part in @next. */
static void tell_gone_on(struct core *core, unsigned node, const struct group *next, uint32_t rank)
{
    const struct group *before = group_find(core, next->follows);
    char text[MSG_TEXT_MAX];

    if (!before && next->state == GROUP_COMMITTED)
        return; /* a stray: they are in it yet */
    for (uint32_t i = 0; next->members[rank].was && i < next->size; i++) {
        const struct msg_member *ours = &next->members[i];
        uint32_t was = ours->was;

        if (ours->node != next->me || !was ||
            (before && before->nlocal && was <= before->size &&
             !runs_fate(&core->runs, &before->members[was - 1])->cause))
            continue; /* it says so itself when it leaves */
        text_format(text, sizeof(text), "rank %u (pid %u on node %s) left", was - 1, ours->pid,
                    core_self_name(core));
        act_to_peer(core, node,
                    (struct act_msg){.type = MSG_GONE,
                                     .gone = {.group = next->follows,
                                              .rank = was - 1,
                                              .pid = ours->pid,
                                              .cause = CAUSE_LEFT,
                                              .text = act_text(core, text),
                                              .next = next->epoch}});
    }
}

void group_gone_msg(struct core *core, unsigned node, const struct msg_gone *msg)
{
    struct group *group = group_find(core, msg->group);
    int place = group ? group_place(group, node) : -1;
    struct fate *fate;

    /* A node speaks for its own ranks only. */
    assert(node != core->config.self);
    if (!group && core->peers[node].strays) /* else it does not say who went on */
        stray_heard(core, msg->group, msg->rank, msg->next);
    if (place < 0 || place == (int)group->me || group->state == GROUP_LEFT ||
        msg->rank >= group->size || group->members[msg->rank].node != (uint32_t)place)
        return;
    follow_passed(core, group, msg->next);
    fate = runs_fate(&core->runs, &group->members[msg->rank]);
    if (fate->cause)
        return;
    fate->cause = msg->cause == CAUSE_LEFT ? CAUSE_LEFT : CAUSE_RANK_LOST;
    fate->ops = MIN(msg->ops, CORE_OPS_FROM_BOARD - 1);
    follow_learned(core, group);
    if (fate->cause != CAUSE_LEFT) {
        group->unclean = true;
        note_lost(core, group, msg->text);
    }
    if (group->state != GROUP_COMMITTED)
        mark_gone(core, group, msg->rank, msg->text);
    if (group->follows && !msg->ops && fate->cause != CAUSE_LEFT)
        tell_gone_on(core, node, group, msg->rank);
    if (group->state == GROUP_OPEN && group->bond != BOND_BOUND &&
        group_all_gone(core, group, (unsigned)place))
        group_bond_failed(core, group); /* nobody is left there to agree */
}
