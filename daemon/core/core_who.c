/* core_who.c - who has not come? A member whose operation ran out of time asks its commd, which
 * asks the other nodes of the group. Nothing breaks by it and nothing is kept for it:
 *
 *   client --CLIENT_WHO--> commd --WHO{ask}--> commd of each other node of the group
 *          <---ABSENT-----       <-ABSENT_HERE{ask}--
 *
 * Each node answers for its own ranks, which only the edge can know: it looks at the counters
 * in the board. `ask` says which client and question an answer is for; it is our own number
 * that comes back, and is checked like everything from outside: the client must be there and
 * be in the group, and the node that answers must be one of the group's.
 *
 * Who wakes me: the messages. What if a peer dies now: no answer; the client does not wait for
 * long. What if I am stopped now: the same. A client that asks without end is heard
 * WHO_PER_SECOND times a second, since each question goes to all nodes of its group; and a user,
 * with all his clients, as long as no more than WHO_RANKS_PER_SECOND are looked at for him: the
 * other nodes cannot tell whose questions they are, and have no turns for users. */
#include "daemon/core/core_internal.h"

enum {
    WHO_PER_SECOND = 64,
    WHO_RANKS_PER_SECOND = 1 << 22,
    WHO_RANKS_LEAST = 1024, /* a question has its price, however small the group */
};

static bool costs_too_much(struct core *core, const struct group *group)
{
    struct user *user = user_get(core, group->uid, false);
    uint32_t price = MAX(group->size, (uint32_t)WHO_RANKS_LEAST);

    if (!user)
        return true;
    if (core->now >= user->who_ms + 1000) {
        user->who_ms = core->now;
        user->who_ranks = 0;
    }
    if (user->who_ranks + price > WHO_RANKS_PER_SECOND)
        return true;
    user->who_ranks += price;
    return false;
}

static bool too_often(struct core *core, struct client *client)
{
    if (core->now >= client->who_ms + 1000) {
        client->who_ms = core->now;
        client->who = 0;
    }
    return client->who++ >= WHO_PER_SECOND;
}

/* @seat: the client's, in a group that is open or broken. */
void who_client(struct core *core, const struct seat *seat, const struct msg_client_who *msg)
{
    const struct group *group = seat->group;

    if (!group->boarded || !act_room(core) || too_often(core, &core->clients[seat->client]) ||
        costs_too_much(core, group))
        return;
    act_absent_here(core, group, seat->client, msg->req, msg->seq);
    act_who(core, group, (uint64_t)seat->client << 32 | msg->req, msg->seq);
}

void who_peer(struct core *core, unsigned node, const struct msg_who *msg)
{
    const struct group *group = group_find(core, msg->group);

    if (!group || !group->boarded || group_place(group, node) < 0 || !act_room(core))
        return; /* its answer would help nobody */
    act_absent_to(core, group, node, msg->ask, msg->seq);
}

void who_answer(struct core *core, unsigned node, const struct msg_absent_here *msg)
{
    const struct group *group = group_find(core, msg->group);
    uint64_t slot = msg->ask >> 32;
    const struct seat *seat;

    if (!group || group_place(group, node) < 0 || !act_room(core))
        return;
    list_each (seat, &group->seats, by_group)
        if (seat->client == slot) {
            act_absent(core, (unsigned)slot, node, msg);
            return;
        }
}
