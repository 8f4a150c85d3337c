/* core_pause.c - the groups of our engine come to rest, so that it can be replaced while their jobs
 * run (core_renew.c); and what other nodes ask for the same purpose. What an engine does then:
 * transport/engine/engine_pause.c.
 *
 *   NOT --PAUSE{ASK} to all nodes of all groups--> ASKED --all POSTED--> UNTIL --all at rest--> NOT
 *    ^                                               |                     |
 *    '---- BUSY, PAUSE_LIMIT_MS, anything is lost, or not as it was -------'
 *
 * In UNTIL all nodes of a group go on until the most that any had begun when it was asked. A group
 * rests when all its nodes have said QUIET, with as many messages between ranks that have come as
 * were sent. All groups are asked at once, and what their members had begun by then is done: so a
 * rank that waits in one group for another group does not hold up all. Where it does, or where a
 * rank waits for long in an operation, the attempt ends, all go on, and a later one is begun: 2 s
 * later at first, then twice as long, up to a minute.
 *
 * When all rest our engine is killed. For the other nodes it is then an engine that was lost with
 * nothing on the wire: core_bond.c. They would go on by themselves PAUSE_MS after they were asked
 * (engine_pause.c), which is ten times the limit of an attempt.
 *
 * Of what others ask nothing is kept here: the engine knows who asked. But if our engine loses an
 * engine that may be replaced just now, we wait until its commd has said so. The commd after us has
 * it from our engine, which says that the loss was planned.
 *
 * Who wakes me: answers, pause_deadline(). What if a peer, or our engine, dies now: the attempt
 * ends. What if commd is replaced now: the next one ends the pause, here when our engine has told
 * what it has, there when we are linked again; else the engines go on by themselves. What can a
 * peer bring about: that its own groups go wrong. */
#include "daemon/core/core_internal.h"

enum { PAUSE_LIMIT_MS = 500, REPLACED_MS = 2000, AGAIN_MIN_MS = 2000, AGAIN_MAX_MS = 60000 };

static bool is_asked(const struct core *core, const struct group *group)
{
    return core->pausing.state != PAUSING_NOT && group->pause.attempt == core->pausing.attempt;
}

/* Over several nodes, and its ranks may need something of our engine. */
static bool is_served(const struct group *group)
{
    return group->nnodes > 1 && group->state != GROUP_BROKEN && group->state != GROUP_DEAD;
}

/* Is it as it has to be, for all nodes to go on over the next engine? */
static bool may_rest(const struct core *core, const struct group *group)
{
    if (group->state != GROUP_OPEN || group->bond != BOND_BOUND ||
        group_has_empty_node(core, group) || !bond_nodes_know(core, group))
        return false;
    for (unsigned i = 0; i < group->nnodes; i++)
        if (!peer_usable(core, group->nodes[i]))
            return false;
    return true;
}

/* Those that have a part at @node. If its engine ends, one of which it has no rank any more breaks.
 */
static bool all_with_may_rest(const struct core *core, unsigned node)
{
    const struct group *group;

    list_each(group, &core->all_groups, all)
        if (is_served(group) && group_place(group, node) >= 0 && !may_rest(core, group))
            return false;
    return true;
}

static bool all_may_rest(const struct core *core)
{
    if (!engine_speaks(core) || !bond_engine_knows(core))
        return false;
    for (unsigned i = 0; i < core->config.nnodes; i++)
        if (core->peers[i].state == CORE_PEER_AWAY ||
            (peer_linked(core, i) && !core->peers[i].free && !core->peers[i].shares))
            return false; /* it is restarted; or it has a group with us that we have left */
    return all_with_may_rest(core, core->config.self);
}

static void tell_nodes(struct core *core, const struct group *group, enum msg_pause_step step)
{
    struct msg_pause msg = {.group = group->id,
                            .attempt = group->pause.attempt,
                            .step = step,
                            .ops = group->pause.ops,
                            .asker = core->config.self};

    act_to_group(core, group, ACT_EACH_NODE, (struct act_msg){.type = MSG_PAUSE, .pause = msg});
    if (core->engine.life.state == CORE_ENGINE_UP)
        act_to_engine(core, (struct act_msg){.type = MSG_BOARD_PAUSE, .pause = msg});
}

/* The next step: of all groups their nodes are asked. */
static void ask_all(struct core *core, enum pause_state state, enum msg_pause_step step)
{
    struct group *group;

    core->pausing.state = state;
    core->pausing.left = 0;
    list_each(group, &core->all_groups, all) {
        if (!is_asked(core, group) || !is_served(group))
            continue;
        core->pausing.left++;
        group->pause.n = group->sum_sent = group->sum_came = 0;
        memset(group->held, 0, group->nnodes * sizeof(*group->held));
        tell_nodes(core, group, step);
    }
}

void pause_begin(struct core *core)
{
    struct pausing *pausing = &core->pausing;
    struct group *group;

    if (pausing->state != PAUSING_NOT || core->now < pausing->next_ms)
        return;
    renew_mark_shared(core);
    if (!all_may_rest(core))
        return;
    pausing->attempt =
        MAX((uint32_t)core->now, pausing->attempt + 1); /* not one of a commd before */
    pausing->until_ms = core->now + PAUSE_LIMIT_MS;
    list_each(group, &core->all_groups, all)
        if (is_served(group))
            group->pause = (struct group_pause){.attempt = pausing->attempt};
    ask_all(core, PAUSING_ASKED, PAUSE_ASK);
}

static void over(struct core *core)
{
    struct pausing *pausing = &core->pausing;

    pausing->state = PAUSING_NOT;
    pausing->wait_ms =
        MIN(MAX(2 * pausing->wait_ms, (uint64_t)AGAIN_MIN_MS), (uint64_t)AGAIN_MAX_MS);
    pausing->next_ms = core->now + pausing->wait_ms;
}

void pause_group_ends(struct core *core, const struct group *group)
{
    if (is_asked(core, group))
        pause_end(core);
}

void pause_fresh(struct core *core)
{
    core->pausing.next_ms = core->pausing.wait_ms = 0;
}

void pause_end(struct core *core)
{
    struct group *group;

    if (core->pausing.state == PAUSING_NOT)
        return;
    list_each(group, &core->all_groups, all)
        if (is_asked(core, group) && group->state == GROUP_OPEN)
            tell_nodes(core, group, PAUSE_END);
    over(core);
    act_log(core, CORE_LOG_DEBUG, "groups did not come to rest -> the engine stays for now");
}

/* All have answered. */
static void next_step(struct core *core)
{
    if (core->pausing.state == PAUSING_ASKED) {
        ask_all(core, PAUSING_UNTIL, PAUSE_UNTIL);
        return;
    }
    if (core->now >= core->pausing.until_ms || !all_may_rest(core) ||
        !renew_waits(core, &core->engine.life)) {
        pause_end(core);
        return;
    }
    over(core);
    renew_rests(core);
}

static void posted(struct core *core, struct group *group, uint32_t ops)
{
    group->pause.ops = MAX(group->pause.ops, ops);
    if (group->pause.n == group->nnodes && --core->pausing.left == 0)
        next_step(core);
}

static void quiet(struct core *core, struct group *group, const struct msg_pause *msg)
{
    group->sum_sent += msg->sent;
    group->sum_came += msg->came;
    if (group->pause.n < group->nnodes || group->sum_sent != group->sum_came)
        return;
    group->pause.rests = true;
    if (--core->pausing.left == 0)
        next_step(core);
}

void pause_heard(struct core *core, unsigned node, const struct msg_pause *msg)
{
    struct group *group = group_find(core, msg->group);
    int place = group ? group_place(group, node) : -1;
    bool asked = core->pausing.state == PAUSING_ASKED, again;

    if (place < 0 || !is_asked(core, group) || msg->attempt != core->pausing.attempt ||
        group->pause.rests)
        return;
    again = group->held[place];
    if (msg->step == PAUSE_BUSY || group->state != GROUP_OPEN || group->bond != BOND_BOUND) {
        pause_end(core);
        return;
    }
    if (msg->step != (asked ? PAUSE_POSTED : PAUSE_QUIET) || (asked && again) ||
        (!asked && msg->ops != group->pause.ops))
        return;
    if (!again) {
        group->held[place] = true;
        group->pause.n++;
    }
    if (asked)
        posted(core, group, msg->ops);
    else
        quiet(core, group, msg);
}

static void answer_node(struct core *core, unsigned node, struct msg_pause msg)
{
    msg.asker = 0; /* of no meaning to that node */
    act_to_peer(core, node, (struct act_msg){.type = MSG_PAUSED, .pause = msg});
}

void pause_is_over(struct core *core, unsigned asker)
{
    struct msg_pause end = {.step = PAUSE_END, .asker = asker};
    const struct group *group;

    list_each(group, &core->all_groups, all) {
        if (group->state != GROUP_OPEN || group->bond != BOND_BOUND || group->nnodes == 1 ||
            group_place(group, asker) < 0)
            continue;
        end.group = group->id;
        act_to_engine(core, (struct act_msg){.type = MSG_BOARD_PAUSE, .pause = end});
    }
}

void pause_was_asked(struct core *core, unsigned node)
{
    if (core->now >= core->peers[node].pauses_ms) /* the commd before was asked */
        core->peers[node].pauses_ms = core->now + REPLACED_MS;
}

void pause_msg(struct core *core, unsigned node, const struct msg_pause *msg)
{
    const struct group *group = group_find(core, msg->group);
    struct msg_pause ask = *msg;

    assert(node != core->config.self);
    if (!group || group_place(group, node) < 0)
        group = NULL;
    ask.asker = node;
    core->peers[node].pauses_ms = msg->step == PAUSE_END ? 0 : core->now + REPLACED_MS;
    if (msg->step == PAUSE_END) {
        if (group && engine_speaks(core) && bond_engine_knows(core))
            act_to_engine(core, (struct act_msg){.type = MSG_BOARD_PAUSE, .pause = ask});
    } else if (group && may_rest(core, group) &&
               (msg->step != PAUSE_ASK || all_with_may_rest(core, node)) && engine_speaks(core) &&
               bond_engine_knows(core)) {
        act_to_engine(core, (struct act_msg){.type = MSG_BOARD_PAUSE, .pause = ask});
    } else if (msg->step == PAUSE_ASK) {
        ask.step = PAUSE_BUSY;
        answer_node(core, node, ask);
    }
}

void pause_engine_msg(struct core *core, const struct msg_pause *msg)
{
    if (msg->asker == core->config.self)
        pause_heard(core, msg->asker, msg);
    else if (msg->asker < core->config.nnodes && peer_linked(core, msg->asker))
        answer_node(core, msg->asker, *msg);
}

void pause_tick(struct core *core)
{
    if (core->pausing.state != PAUSING_NOT && core->now >= core->pausing.until_ms)
        pause_end(core);
}

uint64_t pause_deadline(const struct core *core)
{
    return core->pausing.state == PAUSING_NOT ? CORE_NEVER : core->pausing.until_ms;
}
