/* core_commit.c - how the nodes of a group agree that it is there.
 *
 * A COMMIT is a proposal of the home. A participant whose ranks all still stand by it votes for it,
 * by SYNC to the first participant; one whose ranks do not (a client died, or the join moved to
 * another home while the COMMIT was on its way) says BROKEN(LEFT) to all. The first participant
 * collects the votes and, when it has all of them, says SYNC{all} to all: so the messages are as
 * many as the nodes, and not their square. A group opens on a node that knows that all have voted.
 * One that is withdrawn is not seen by any client: its joins are asked again at their home.
 *
 * Votes are collected by a participant and not by the home, since a participant has written the
 * group down, and nobody goes on without it: if it is lost the group comes to nothing on all nodes,
 * or breaks. If its commd is killed, the votes are told to the next one (core_resync.c).
 *
 * A vote may arrive before the COMMIT does and is then lost. So who collects asks all for theirs,
 * by its own, when it has the COMMIT. While anything is missing it is asked for at each heartbeat,
 * for two node timeouts, the time after which a lost home has been noticed by all. A node that is
 * asked about a group that it does not have (any more) says BROKEN without a cause, but not while
 * the COMMIT may be on its way to it: it would speak against the vote that it is about to give. So
 * each home says over a new link how many COMMITs went before. That BROKEN counts only where its
 * SYNC never came: else the group has ended well there meanwhile, or a BROKEN with its cause came
 * before.
 *
 * Who has voted for a next epoch does not give it up by itself when it hears that another
 * participant is lost, or has given it up: the votes may be complete, and the group open elsewhere.
 * Who collects them says what has become of it, SYNC{all} or BROKEN, as long as that node is linked
 * or missed. After SYNC{all} the group opens, even if only to be broken: its ranks go on from it
 * like those of other nodes, and are not left behind in the epoch before. A group that has no epoch
 * before it simply fails.
 *
 * A node of version 10 neither collects nor knows SYNC{all}. In a group with such a node all vote
 * to all, and the first vote of a node is answered with one's own.
 *
 * A SYNC is a promise, so the group is written down before it is sent: the next commd keeps it
 * (core_resync.c). As long as a participant is missed nobody gives up.
 *
 * Who wakes me: COMMIT, SYNC, the heartbeat, the loss of a home. What can a peer bring about: that
 * its own groups open before all have agreed, or not at all.
 * What if the peer dies now: a participant: see core_group.c. The home: nothing, once all have
 * agreed; before, each participant asks the others again.
 * What if I am stopped now: the others ask for two node timeouts, then withdraw the group. */
#include "daemon/core/core_internal.h"

/* Does the first participant collect the votes? All have to know that. */
static bool one_collects(const struct core *core, const struct group *group)
{
    return bond_nodes_know(core, group);
}

bool group_agreed(const struct group *group)
{
    if (group->state == GROUP_LEFT)
        return !group->cause; /* it was open: group_close() */
    return group->nconfirmed + 1 == group->nnodes;
}

bool group_judged_elsewhere(const struct core *core, const struct group *group)
{
    return group->state == GROUP_COMMITTED && group->follows && group->me &&
           one_collects(core, group) && !group_agreed(group) && !core->stopping &&
           (peer_linked(core, group->nodes[0]) || peer_is_missed(core, group->nodes[0]));
}

struct act_msg group_vote(const struct group *group, uint64_t again, uint64_t told)
{
    return (struct act_msg){
        .type = MSG_SYNC,
        .sync = {.group = group->id, .again = again, .told = told, .all = group_agreed(group)}};
}

bool place_nodes(struct core *core, const char (*names)[MSG_NAME_MAX], unsigned n, int *ret_me)
{
    int last = -1;

    *ret_me = -1;
    if (!n || n > core->config.nnodes)
        return false;
    for (unsigned i = 0; i < n; i++) {
        int node = core_node_find(core, names[i]);

        if (node <= last) /* unknown, or not in order */
            return false;
        if (node == (int)core->config.self)
            *ret_me = (int)i;
        core->place[i] = (uint16_t)node;
        last = node;
    }
    return true;
}

/* False when the message makes no sense. */
static bool commit_valid(struct core *core, unsigned home, const struct msg_commit *msg,
                         unsigned *ret_me)
{
    int me;

    if (!msg->size || msg->size > MSG_MAX_RANKS || !msg->members || !msg->nodes ||
        strcmp(msg->home, core_node_name(core, home)) ||
        !place_nodes(core, (const char(*)[MSG_NAME_MAX])msg->nodes, msg->nnodes, &me))
        return false;
    for (uint32_t i = 0; i < msg->size; i++)
        if (msg->members[i].node >= msg->nnodes)
            return false;
    assert(me < 0 || core->place[me] == core->config.self);
    *ret_me = (unsigned)me;
    return me >= 0;
}

/* The member that the home means with @rank, if it still stands by this request. */
static struct member *commit_member(struct core *core, unsigned home, const struct msg_commit *msg,
                                    uint32_t rank)
{
    struct member *member = join_find(core, msg->members[rank].join);

    if (!member || member->home != (int)home ||
        (member->state != MEMBER_ASKING && member->state != MEMBER_EXPIRING) ||
        member->uid != msg->uid || strcmp(member->name, msg->name) ||
        !follow_fits(member, msg, rank))
        return NULL;
    return member;
}

/* To another node, about a group that this node does not have. */
static void tell_missing(struct core *core, unsigned node, uint64_t id, enum cause cause,
                         int32_t rank, const char *text)
{
    assert(node != core->config.self);
    act_to_peer(core, node,
                (struct act_msg){.type = MSG_BROKEN,
                                 .broken = {.group = id,
                                            .cause = cause,
                                            .rank = rank,
                                            .node = core_self_name(core),
                                            .text = act_text(core, text),
                                            .next = follow_gone_as(core, NULL, id)}});
}

/* This node cannot take part: tells the others, and gives its own ranks their answer. It takes a
 * record for each node, so where the queue is nearly full some are not told; they give up by
 * themselves. */
static void decline(struct core *core, unsigned home, const struct msg_commit *msg, unsigned me,
                    enum cause cause, int32_t rank, const char *text)
{
    assert(cause != CAUSE_NONE && me < msg->nnodes);
    group_log(core, cause == CAUSE_LEFT ? CORE_NOTE_NONE : CORE_NOTE_GROUP_FAILED, msg->uid,
              CORE_LOG_INFO, msg->name, text, "declined");
    for (unsigned i = 0; i < msg->nnodes; i++)
        if (i != me && peer_linked(core, core->place[i]) && act_room(core))
            tell_missing(core, core->place[i], msg->group, cause, rank, text);
    for (uint32_t i = 0; i < msg->size; i++) {
        struct member *member =
            msg->members[i].node == me ? commit_member(core, home, msg, i) : NULL;

        if (member && cause == CAUSE_LEFT)
            join_again(core, member);
        else if (member)
            join_fail(core, member, cause, -1, (int)core->config.self, text);
    }
}

static void take_members(struct core *core, struct group *group)
{
    for (uint32_t i = 0; i < group->size; i++) {
        struct member *member;

        if (group->members[i].node != group->me)
            continue;
        member = join_find(core, group->members[i].join);
        assert(member && !member->group); /* commit_member() found it */
        assert(member->wish.recovery || member->rank == i);
        member->group = group;
        member->rank = i;
        member->size = group->size;
        member_set_state(core, member, MEMBER_COMMITTED);
        list_add(&group->local, &member->by_group);
        group->nlocal++;
    }
}

/* In order, and of this life of its home: everything else is a replay. */
static bool commit_fresh(struct core *core, unsigned home, uint64_t id)
{
    struct peer *peer = &core->peers[home];
    uint64_t n = home_group_number(peer->incarnation, id);

    if (n <= peer->committed)
        return false;
    if (group_find(core, id)) /* of another home: each says by itself which incarnation it has */
        return false;
    assert(home_group_id(peer->incarnation, n) == id);
    peer->committed = n;
    return true;
}

/* SYNC to who collects the votes; by who collects them to those that have not agreed yet. */
static void ask_sync(struct core *core, const struct group *group)
{
    assert(group->state == GROUP_COMMITTED);
    assert(group->nnodes > 1 && !group_agreed(group));
    if (!group->me || !one_collects(core, group))
        act_to_group(core, group, ACT_EACH_UNCONFIRMED, group_vote(group, 0, 0));
    else if (peer_linked(core, group->nodes[0]))
        act_to_peer(core, group->nodes[0], group_vote(group, 0, 0));
}

/* A commit that makes sense: take part, or decline. */
static void consider(struct core *core, unsigned home, const struct msg_commit *msg, unsigned me)
{
    struct group *group;
    char text[MSG_TEXT_MAX];
    bool mine = false;

    assert(core->place[me] == core->config.self);
    for (uint32_t i = 0; i < msg->size; i++) {
        if (msg->members[i].node != me)
            continue;
        mine = true;
        if (commit_member(core, home, msg, i))
            continue;
        text_format(text, sizeof(text), "rank %u of node %s does not wait for it any more", i,
                    core_self_name(core));
        decline(core, home, msg, me, CAUSE_LEFT, (int32_t)i, text);
        return;
    }
    if (!mine)
        return;
    group = group_new(core, home, msg, me);
    if (!group) {
        text_format(text, sizeof(text),
                    "group \"%s\": node %s has no room for more groups of user %u: leave some, "
                    "or raise limits.max_groups or limits.max_groups_per_user",
                    msg->name, core_self_name(core), msg->uid);
        decline(core, home, msg, me, CAUSE_QUOTA, -1, text);
        return;
    }
    take_members(core, group);
    assert(group->nlocal); /* @mine */
    if (group->nnodes > 1) {
        pause_end(core); /* it has not been asked to rest */
        act_push(core, (struct core_action){.type = CORE_DO_GROUP_COMMITTED,
                                            .group_committed = {group->id}});
        ask_sync(core, group);
    }
    group_try_open(core, group);
}

void group_commit(struct core *core, unsigned home, const struct msg_commit *msg)
{
    char name[TEXT_QUOTED];
    unsigned me = 0;

    if (!commit_fresh(core, home, msg->group))
        act_log_node(core, home, CORE_LOG_WARN, "node %s committed group %s twice -> ignoring it",
                     core_node_name(core, home), text_quote(name, msg->name));
    else if (!commit_valid(core, home, msg, &me))
        act_log_node(core, home, CORE_LOG_ERROR,
                     "node %s committed group %s over nodes that are not in "
                     "this node's configuration -> ignoring it: all nodes need the same list",
                     core_node_name(core, home), text_quote(name, msg->name));
    else
        consider(core, home, msg, me);
    memset(core->place, 0, core->config.nnodes * sizeof(*core->place));
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* Still on its way here: its home is alive in that incarnation, and its COMMIT has not come by this
 * link. @again: a commd that is new has seen none; where the home does not say how many there were
 * before, one that comes no more looks like one on its way, and who asks again is not let wait. */
static bool on_its_way(const struct core *core, uint64_t id, bool again)
{
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        const struct peer *peer = &core->peers[i];

        if (peer_linked(core, i) && home_group_number(peer->incarnation, id) > peer->committed &&
            (!again || peer->counts || !peer->said))
            return true;
    }
    return false;
}

static void confirm(struct group *group, unsigned place)
{
    if (place == group->me || group->confirmed[place])
        return;
    group->confirmed[place] = true;
    group->nconfirmed++;
    assert(group->nconfirmed < group->nnodes);
}

/* A vote of the participant @place. Who asks has not heard of all votes. */
static void vote_heard(struct core *core, struct group *group, unsigned place,
                       const struct msg_sync *msg)
{
    bool asks = !msg->again && !msg->told && !msg->all;
    bool before = group_agreed(group), first = !group->confirmed[place];
    bool collects = !group->me && one_collects(core, group);
    unsigned node = group->nodes[place];

    assert(place != group->me);
    /* who has given it up asks, too, what has become of it */
    if (!group->doubt || !one_collects(core, group))
        confirm(group, place);
    for (unsigned i = 0; i < group->nnodes && msg->all; i++)
        confirm(group, i);
    if (!before && group_agreed(group))
        group_tell_ended(core, group); /* those that had no COMMIT when they were told */
    if (!before && group_agreed(group) && collects)
        act_to_group(core, group, ACT_EACH_NODE, group_vote(group, 0, 0));
    else if (asks && (group_agreed(group) || (!collects && (first || !place))))
        act_to_peer(core, node, group_vote(group, 0, 0));
    if (first)
        act_fates_to(core, group, node);
    group_try_open(core, group);
}

void group_sync(struct core *core, unsigned node, const struct msg_sync *msg)
{
    struct group *group = group_find(core, msg->group);
    int place = group ? group_place(group, node) : -1;
    uint64_t told = msg->told & ~CORE_SYNC_FATES;
    char text[MSG_TEXT_MAX];

    assert(node != core->config.self);
    if (!group) {
        if (msg->told || stray_answer(core, node, msg->group) ||
            (!msg->all && on_its_way(core, msg->group, msg->again)))
            return;
        text_format(text, sizeof(text), "node %s does not have this group", core_self_name(core));
        tell_missing(core, node, msg->group, CAUSE_NONE, -1, text);
        return;
    }
    if (place < 0)
        return;
    if (group->state == GROUP_LEFT && told >= group->asked && told) {
        group_told(core, group, (unsigned)place);
        return;
    }
    if (group->state == GROUP_BROKEN && msg->all) /* open there: the node was lost, and is back */
        follow_place_lost(core, group, (unsigned)place, false);
    if (group->state == GROUP_BROKEN && !msg->again && !msg->told && !msg->all)
        act_to_peer(core, node, group_vote(group, 0, 0)); /* it was open: so it opens there, too */
    if (!msg->told && (group->cause || (msg->again & CORE_SYNC_FATES)))
        group_tell_ends(core, group, node);
    if (group->cause)
        return;
    if (msg->again && group->state == GROUP_LEFT && group->confirmed[place])
        act_fates_to(core, group, node); /* we had given it up, and it never knew */
    if (msg->again)
        act_to_peer(core, node, group_vote(group, 0, msg->again));
    if (group->state != GROUP_LEFT)
        vote_heard(core, group, (unsigned)place, msg);
}

void group_home_lost(struct core *core, unsigned node)
{
    struct group *group;

    assert(!peer_linked(core, node));
    assert(node != core->config.self);
    list_each(group, &core->all_groups, all)
        if (group->state == GROUP_COMMITTED && group->home == node && !group_agreed(group))
            ask_sync(core, group);
}

static bool waits_for_missed(const struct core *core, const struct group *group)
{
    for (unsigned i = 0; i < group->nnodes; i++)
        if (peer_is_missed(core, group->nodes[i]))
            return true;
    return false;
}

/* All have agreed, and one of them has no link with this node. */
static bool is_apart(const struct core *core, const struct group *group)
{
    for (unsigned i = 0; i < group->nnodes; i++)
        if (core->peers[group->nodes[i]].state == CORE_PEER_UNLINKED)
            return true;
    return false;
}

void group_tick(struct core *core)
{
    struct group *group;
    char text[MSG_TEXT_MAX];

    list_each(group, &core->all_groups, all) {
        if (group->state == GROUP_LEFT)
            group_ask_left(core, group);
        if (group->state != GROUP_COMMITTED || (group_agreed(group) && !is_apart(core, group)))
            continue;
        assert(core->now >= group->committed_ms);
        if (waits_for_missed(core, group))
            group->committed_ms = core->now;
        if (core->now - group->committed_ms < 2 * core->config.node_timeout_ms) {
            if (!group_agreed(group))
                ask_sync(core, group);
            continue;
        }
        text_format(text, sizeof(text),
                    "not all nodes confirmed it to node %s, or have a link to it",
                    core_self_name(core));
        group_withdraw(core, group, -1, 0, core->config.self, text);
    }
}
