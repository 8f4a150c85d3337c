/* core_absent.c - who has not come? A member whose operation ran out of time asks its commd, which
 * asks the other nodes of the group. Nothing breaks by it and nothing is kept for it:
 *
 *   client --CLIENT_ASK_ABSENT--> commd --ASK_ABSENT{ask}--> commd of each other node of the group
 *          <---ABSENT-----       <-ABSENT_HERE{ask}--
 *
 * Each node answers for its own ranks, which only the edge can know: it looks at the counters
 * in the board. `ask` says which client and question an answer is for; it is our own number
 * that comes back, and is checked like everything from outside: the client must be there and
 * be in the group, and the node that answers must be one of the group's.
 *
 * Who wakes me: the messages. What if a peer dies now: no answer; the client does not wait for
 * long. What if I am stopped now: the same. A client that asks without end is heard
 * ABSENT_PER_SECOND times a second, since each question goes to all nodes of its group. All clients
 * of a user together may have ABSENT_RANKS_PER_SECOND ranks looked at: the other nodes cannot tell
 * whose questions they are, and have no turns for users. */
#include "daemon/core/core_internal.h"

enum {
    ABSENT_PER_SECOND = 64,
    ABSENT_RANKS_PER_SECOND = 1 << 22,
    ABSENT_RANKS_LEAST = 1024, /* a question has its price, however small the group */
};

static bool costs_too_much(struct core *core, const struct group *group)
{
    struct user *user = user_get(core, group->payer, false);
    uint32_t price = MAX(group->size, (uint32_t)ABSENT_RANKS_LEAST);

    assert(price <= ABSENT_RANKS_PER_SECOND); /* else it is never answered */
    if (!user)
        return true;
    if (core->now >= user->asked_ms + 1000) {
        user->asked_ms = core->now;
        user->asked_ranks = 0;
    }
    if (user->asked_ranks + price > ABSENT_RANKS_PER_SECOND)
        return true;
    user->asked_ranks += price;
    return false;
}

static bool too_often(struct core *core, struct client *client)
{
    assert(client->state == CLIENT_READY);
    if (core->now >= client->asked_ms + 1000) {
        client->asked_ms = core->now;
        client->asked = 0;
    }
    return client->asked++ >= ABSENT_PER_SECOND;
}

/* The edge looks at the board for whoever asks. */
static void act_look(struct core *core, const struct group *group, enum core_asker asker,
                     unsigned to, uint64_t ask, uint64_t seq)
{
    assert(group->boarded);
    assert(asker == CORE_ASKER_CLIENT ? to < core->client_slots : to != core->config.self);
    act_push(core, (struct core_action){
                       .type = CORE_DO_GROUP_ABSENT,
                       .group_absent = {
                           .group = group->id, .seq = seq, .ask = ask, .asker = asker, .to = to}});
}

/* @member: the client's, in a group that is open or broken. */
void absent_ask_client(struct core *core, const struct member *member,
                       const struct msg_client_ask_absent *msg)
{
    const struct group *group = member->group;

    assert(group && member->state == MEMBER_JOINED);
    if (!group->boarded || !act_room(core) || too_often(core, &core->clients[member->client]) ||
        costs_too_much(core, group))
        return;
    act_look(core, group, CORE_ASKER_CLIENT, member->client, msg->req, msg->seq);
    act_to_group(core, group, ACT_EACH_NODE,
                 (struct act_msg){.type = MSG_ASK_ABSENT,
                                  .ask_absent = {.group = group->id,
                                                 .ask = (uint64_t)member->client << 32 | msg->req,
                                                 .seq = msg->seq}});
}

void absent_ask_peer(struct core *core, unsigned node, const struct msg_ask_absent *msg)
{
    const struct group *group = group_find(core, msg->group);

    if (!group || !group->boarded || group_place(group, node) < 0 || !act_room(core))
        return; /* its answer would help nobody */
    act_look(core, group, CORE_ASKER_NODE, node, msg->ask, msg->seq);
}

void absent_collect(struct core *core, unsigned node, const struct msg_absent_here *msg)
{
    const struct group *group = group_find(core, msg->group);
    uint64_t slot = msg->ask >> 32;
    const struct member *member;

    if (!group || slot >= core->client_slots || core->clients[slot].state != CLIENT_READY ||
        group_place(group, node) < 0 || !act_room(core))
        return; /* the place behind the slots is nobody's: core_part.c */
    list_each(member, &group->local, by_group)
        if (member->client == slot) {
            act_to_client(core, (unsigned)slot,
                          (struct act_msg){.type = MSG_ABSENT,
                                           .absent = {.req = (uint32_t)msg->ask,
                                                      .count = msg->count,
                                                      .rank = msg->rank,
                                                      .node = core_node_name(core, node),
                                                      .text = act_text(core, msg->text)}});
            return;
        }
}
