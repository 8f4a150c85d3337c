/* core_bond.c - groups over several nodes when an engine of theirs is lost: those of which nothing
 * was on the wire go on over the next one.
 *
 *   BOUND --an engine is lost--> ASKED --BOARD_HELD--> HELD --all nodes say the same--> BOUND
 *     |                            |                     |
 *     '------ it was our own ------+----> READ <---------'
 *                                          '--the board was read--> LOOSE --the same--> BOUND
 *
 * Each node finds out how far its part of the group is, and whether anything of it is on the wire.
 * If our engine has the board, it holds it and tells (ASKED, HELD). If our engine was lost, its
 * board tells (READ, LOOSE): no engine has the board. If something is on the wire, the group breaks
 * with ENGINE_LOST, and the others are told. Else, when all engines of the group accept each other
 * again, the nodes tell each other where they are, by HELD. It names by a key the engines that the
 * sender would go on with. Only what was said with one's own key counts, so nothing that was said
 * before another engine was lost is believed. When all have said the same number of operations, and
 * as many messages between ranks have come as were sent, the group goes on: BOARD_GO, or BOARD_ADD
 * to the next engine. Each node decides for itself, from the same numbers. What its engine then
 * sends waits at a node that has not come to it yet (transport/engine/engine_hold.c).
 *
 * A HELD that comes before the receiver has the same key is not kept. The receiver sends its own
 * when it has the key, and each HELD is answered once by who has that key, or had it when the group
 * went on: it is at the same place then as far as the asker goes, who has sent nothing since. A
 * commd that was restarted since has that place from its engine, and says it once, unasked.
 *
 * The group is OPEN all the while: ranks that begin an operation wait, and ranks may end. If all
 * ranks of a node have ended the group breaks, since that node has nobody to agree.
 *
 * Who wakes me: engines that are lost, BOARD_HELD, CORE_BOARD_POSITION, nodes that are READY, HELD,
 * bond_deadline(): what has not gone on within restart_timeout_ms breaks. What if another engine or
 * node dies now: what the others said is forgotten, and said anew; a node that is lost breaks it.
 * What if this commd dies now: the next one finds out anew. The engine says which boards it holds
 * (engine_resume()), and which it is given that it has never had (engine_board_add()); and groups
 * over engines that it does not have are asked about. The others wait for that commd as for one
 * whose data go on (bond_waits()). What can a peer bring about: that its own groups go wrong. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* clang-format off */
static const bool bond_may[5][5] = { /* rows: from; columns: BOUND ASKED HELD READ LOOSE */
    [BOND_BOUND] = {0, 1, 0, 1, 0},
    [BOND_ASKED] = {0, 0, 1, 1, 0},
    [BOND_HELD]  = {1, 0, 0, 1, 0},
    [BOND_READ]  = {0, 0, 0, 0, 1},
    [BOND_LOOSE] = {1, 0, 0, 0, 0},
};
/* clang-format on */

static void set_bond(struct group *group, enum group_bond bond)
{
    assert(group->state == GROUP_OPEN && group->nnodes > 1);
    assert(bond_may[group->bond][bond]);
    group->bond = bond;
}

bool bond_nodes_know(const struct core *core, const struct group *group)
{
    for (unsigned i = 0; i < group->nnodes; i++)
        if (i != group->me && core->peers[group->nodes[i]].version &&
            core->peers[group->nodes[i]].version < CORE_HELD_VERSION)
            return false;
    return true; /* as far as is known: one that was not linked yet says so in its hello */
}

bool bond_engine_knows(const struct core *core)
{
    return !core->engine.resuming && core->engine.version >= CORE_HELD_VERSION;
}

/* Do all sides know what to say? */
static bool may_wait(const struct core *core, const struct group *group)
{
    return bond_nodes_know(core, group) &&
           (!core->engine.incarnation || core->engine.version >= CORE_HELD_VERSION);
}

bool bond_waits(const struct core *core, unsigned node)
{
    const struct group *group;

    list_each(group, &core->all_groups, all)
        if (group->state == GROUP_OPEN && group->bond != BOND_BOUND &&
            (group->bond_planned || group->bond_node != node) && group_place(group, node) >= 0)
            return true;
    return false;
}

static void forget_said(const struct core *core, struct group *group)
{
    memset(group->held, 0, group->nnodes * sizeof(*group->held));
    group->nheld = 0;
    group->bond_key = 0;
}

static void wait_for_engine(struct core *core, struct group *group, unsigned node, const char *text)
{
    group->bond_until_ms = core->now + core->config.restart_timeout_ms;
    core->bond_ms = MIN(core->bond_ms, group->bond_until_ms);
    group->bond_node = node;
    group->bond_planned = node == core->config.self ? core->engine.life.renews
                                                    : core->peers[node].pauses_ms > core->now;
    text_copy(group->bond_text, sizeof(group->bond_text), text);
}

bool bond_loosen(struct core *core, struct group *group, unsigned node, const char *text)
{
    bool own = node == core->config.self;

    if (group->state != GROUP_OPEN || group->nnodes == 1 || core->stopping ||
        !may_wait(core, group))
        return false;
    pause_end(core);
    if (group->bond == BOND_BOUND)
        wait_for_engine(core, group, node, text);
    forget_said(core, group);
    group->bond_past = false;
    if (own ? group->bond == BOND_READ || group->bond == BOND_LOOSE : group->bond != BOND_BOUND)
        return true; /* it is where it was */
    if (own) {
        set_bond(group, BOND_READ);
        act_push(core, (struct core_action){.type = CORE_DO_GROUP_POSITION,
                                            .group_position = {.group = group->id}});
    } else {
        set_bond(group, BOND_ASKED);
        act_to_engine(core, (struct act_msg){.type = MSG_BOARD_HOLD, .board_held = group->id});
    }
    return true;
}

static uint64_t engine_of(const struct core *core, unsigned node)
{
    return node == core->config.self ? core->engine.incarnation : core->peers[node].engine;
}

/* Of the engines that the group would go on with; 0: they do not all accept each other. */
static uint64_t key_of(const struct core *core, const struct group *group)
{
    uint64_t key = core_mix(group->id);

    if (!engine_speaks(core))
        return 0;
    for (unsigned i = 0; i < group->nnodes; i++) {
        if (!peer_usable(core, group->nodes[i]))
            return 0;
        key = core_mix(key ^ engine_of(core, group->nodes[i]));
    }
    return key ? key : 1;
}

static struct act_msg held_message(const struct group *group, bool answer)
{
    return (struct act_msg){.type = MSG_HELD,
                            .held = {.group = group->id,
                                     .key = group->bond_key,
                                     .ops = group->position.ops,
                                     .sent = group->position.sent,
                                     .came = group->position.came,
                                     .answer = answer}};
}

static void go_on(struct core *core, struct group *group)
{
    char cause[MSG_TEXT_MAX];

    text_format(cause, sizeof(cause), "%s, and nothing was on the wire", group->bond_text);
    group_log(core, CORE_NOTE_GROUP_KEPT, group->uid, CORE_LOG_DEBUG, group->name, cause,
              "it goes on over the next one");
    if (group->bond == BOND_HELD)
        act_to_engine(core, (struct act_msg){.type = MSG_BOARD_GO, .board_held = group->id});
    else
        act_push(core, (struct core_action){
                           .type = CORE_DO_GROUP_BIND,
                           .group_bind = {.group = group->id, .ops = group->position.ops}});
    set_bond(group, BOND_BOUND);
}

static bool knows_where(const struct group *group)
{
    return group->state == GROUP_OPEN && (group->bond == BOND_HELD || group->bond == BOND_LOOSE);
}

/* Says where we are, if that is new, and goes on if all are there. */
static void compare(struct core *core, struct group *group)
{
    bool past = group->bond_past && group->state == GROUP_OPEN;
    uint64_t key = past || knows_where(group) ? key_of(core, group) : 0;

    if (!key)
        return;
    if (past) {
        group->bond_past = false;
        group->bond_key = key;
        act_to_group(core, group, ACT_EACH_NODE, held_message(group, true));
        return;
    }
    if (key != group->bond_key &&
        (group_has_empty_node(core, group) || !bond_nodes_know(core, group))) {
        group_bond_failed(core, group);
        return;
    }
    if (key != group->bond_key) {
        forget_said(core, group);
        group->bond_key = key;
        group->sum_sent = group->position.sent;
        group->sum_came = group->position.came;
        act_to_group(core, group, ACT_EACH_NODE, held_message(group, false));
    }
    if (group->nheld + 1 < group->nnodes)
        return;
    if (group->sum_sent == group->sum_came)
        go_on(core, group);
    else /* a message was lost with the engine */
        group_bond_failed(core, group);
}

static void take_position(struct core *core, struct group *group, bool quiet,
                          const struct core_position *position)
{
    if (!quiet) {
        group_bond_failed(core, group);
        return;
    }
    group->position = *position;
    set_bond(group, group->bond == BOND_READ ? BOND_LOOSE : BOND_HELD);
    compare(core, group);
}

void bond_read(struct core *core, uint64_t id, bool quiet, const struct core_position *position)
{
    struct group *group = group_find(core, id);

    if (group && group->state == GROUP_OPEN && group->bond == BOND_READ)
        take_position(core, group, quiet, position);
}

/* A commd before this one has asked our engine to hold the board, or (@missing) was about to give
 * it the board of an engine before. */
static void was_held(struct core *core, struct group *group, bool missing)
{
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), TEXT_COMMD_ANEW " while it waited for an engine",
                core_self_name(core));
    if (missing && bond_loosen(core, group, core->config.self, text))
        return;
    if (group->bond == BOND_BOUND)
        wait_for_engine(core, group, core->config.self, text);
    if (missing)
        group_bond_failed(core, group);
    else
        set_bond(group, BOND_ASKED);
}

void bond_held(struct core *core, const struct msg_board_held *msg)
{
    struct group *group = group_find(core, msg->group);

    if (!group || group->state != GROUP_OPEN || group->nnodes == 1)
        return;
    if (msg->went_on) {
        group->bond_past = core->engine.resuming && group->bond == BOND_BOUND;
        if (group->bond_past)
            group->position = (struct core_position){msg->ops, msg->sent, msg->came};
        return;
    }
    if (msg->missing ? group->bond < BOND_HELD
                     : core->engine.resuming && group->bond == BOND_BOUND && msg->quiet)
        was_held(core, group, msg->missing);
    if (group->state == GROUP_OPEN && group->bond == BOND_ASKED && !msg->missing)
        take_position(core, group, msg->quiet,
                      &(struct core_position){msg->ops, msg->sent, msg->came});
}

void bond_held_msg(struct core *core, unsigned node, const struct msg_held *msg)
{
    struct group *group = group_find(core, msg->group);
    int place = group ? group_place(group, node) : -1;

    assert(node != core->config.self);
    if (place < 0)
        return;
    if (group->cause && group->state != GROUP_LEFT) {
        group_tell_broken(core, group, node);
        return;
    }
    if (group->state != GROUP_OPEN || !msg->key || msg->key != group->bond_key)
        return;
    if (!msg->answer)
        act_to_peer(core, node, held_message(group, true));
    if (group->bond == BOND_BOUND || group->held[place])
        return;
    if (msg->ops != group->position.ops) {
        group_bond_failed(core, group);
        return;
    }
    group->held[place] = true;
    group->nheld++;
    assert(group->nheld < group->nnodes);
    group->sum_sent += msg->sent;
    group->sum_came += msg->came;
    compare(core, group);
}

void bond_tell(struct core *core, const struct group *group, unsigned node)
{
    if (knows_where(group) && group->bond_key)
        act_to_peer(core, node, held_message(group, false));
}

void bond_look(struct core *core)
{
    struct group *group;

    list_each(group, &core->all_groups, all)
        compare(core, group);
}

void bond_forgive(struct core *core, uint64_t grace)
{
    struct group *group;

    list_each(group, &core->all_groups, all)
        group->bond_until_ms = MAX(group->bond_until_ms, core->now + grace);
}

void bond_tick(struct core *core)
{
    struct group *group;

    if (core->now < core->bond_ms)
        return;
    core->bond_ms = CORE_NEVER;
    list_each(group, &core->all_groups, all) {
        if (group->state != GROUP_OPEN || group->bond == BOND_BOUND)
            continue;
        if (core->now >= group->bond_until_ms)
            group_bond_failed(core, group);
        else
            core->bond_ms = MIN(core->bond_ms, group->bond_until_ms);
    }
}

uint64_t bond_deadline(const struct core *core)
{
    return core->bond_ms;
}
