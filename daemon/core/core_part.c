/* core_part.c - the ranks of a client that is gone.
 *
 * A client may be in thousands of groups, and the end of each costs: its board, the other nodes,
 * the engine. So PART_BATCH of its ranks end at once, and the others as many a millisecond, the
 * clients in turn. Until then they count against their user, and belong to nobody: core->clients
 * has one place more for that, and no action goes there. Joins that are not open yet end at once.
 *
 * Who wakes me: client_closed(), kicks, and part_deadline(). What if a peer or the client's
 * successor in its slot comes or goes meanwhile: these ranks do not refer to a slot any more. */
#include "daemon/core/core_internal.h"

/* One rank, in a group that is open or broken. */
static void part_member(struct core *core, struct member *member, const char *why, const char *kick)
{
    assert(member->state == MEMBER_JOINED && member->group);
    if (kick && member->group->state == GROUP_OPEN)
        group_kick(core, member->group, member, kick);
    group_rank_lost(core, member, why);
}

/* The ranks that are in no open group. When one is kicked, others of the list may end with it. */
static void part_waiting(struct core *core, struct client *client, const char *why,
                         const char *kick)
{
    for (unsigned left = client->waiting + client->groups; left; left--) {
        struct member *member = list_first(&client->members, struct member, by_client);

        if (!member)
            return;
        list_del(&member->by_client);
        list_add(&client->members, &member->by_client); /* each comes first once */
        if (member->state == MEMBER_JOINED)
            continue;
        if (member->state == MEMBER_COMMITTED && kick) {
            group_kick(core, member->group, member, kick);
        } else if (member->state == MEMBER_COMMITTED) {
            group_rank_lost(core, member, why);
        } else {
            join_cancel(core, member);
            if (kick)
                join_fail(core, member, CAUSE_ABORTED, -1, (int)core->config.self, kick);
            else
                member_end(core, member);
        }
    }
}

static bool part_some(struct core *core, struct list *members, const char *why, const char *kick)
{
    for (unsigned i = 0; i < core->part_batch && !list_empty(members); i++)
        part_member(core, list_first(members, struct member, by_client), why, kick);
    return list_empty(members);
}

void part_members(struct core *core, unsigned slot, const char *why, const char *kick)
{
    struct client *client = &core->clients[slot], *nobody = &core->clients[core->client_slots];
    struct parting *parting;
    struct member *member;

    part_waiting(core, client, why, kick);
    assert(!client->waiting);
    if (part_some(core, &client->members, why, kick))
        return;
    parting = pool_take(&core->partings);
    while (!parting && !part_some(core, &client->members, why, kick))
        ; /* more clients go at a time than there are slots */
    if (!parting)
        return;
    assert(!client->waiting);
    list_init(&parting->members);
    while ((member = list_first(&client->members, struct member, by_client))) {
        list_del(&member->by_client);
        list_add(&parting->members, &member->by_client);
        member->client = core->client_slots;
        assert(member->state == MEMBER_JOINED && client->groups);
        client->groups--;
        nobody->groups++;
    }
    text_copy(parting->why, sizeof(parting->why), why);
    text_copy(parting->kick, sizeof(parting->kick), kick);
    list_add(&core->all_partings, &parting->all);
    core->part_ms = core->now + 1;
}

void part_orphans(struct core *core, const char *why)
{
    struct list *orphans = &core->clients[core->client_slots].members;
    struct parting *parting;
    struct member *member;

    list_each(member, orphans, by_client)
        if (member->state == MEMBER_COMMITTED)
            group_rank_lost(core, member, why);
    if (list_empty(orphans))
        return;
    parting = pool_take(&core->partings);
    assert(parting && list_empty(&core->all_partings)); /* no client was there to go */
    list_init(&parting->members);
    while ((member = list_first(orphans, struct member, by_client))) {
        list_del(&member->by_client);
        list_add(&parting->members, &member->by_client);
    }
    text_copy(parting->why, sizeof(parting->why), why);
    list_add(&core->all_partings, &parting->all);
    core->part_ms = core->now + 1;
}

void part_tick(struct core *core)
{
    struct parting *parting;

    if (core->now < part_deadline(core))
        return;
    core->part_ms = core->now + 1;
    parting = list_first(&core->all_partings, struct parting, all);
    assert(parting && !list_empty(&parting->members));
    list_del(&parting->all);
    if (!part_some(core, &parting->members, parting->why,
                   parting->kick[0] ? parting->kick : NULL)) {
        list_add(&core->all_partings, &parting->all); /* the others first */
        return;
    }
    pool_leave(&core->partings, parting);
    pool_reap(&core->partings); /* no action names it */
}

uint64_t part_deadline(const struct core *core)
{
    return list_empty(&core->all_partings) ? CORE_NEVER : core->part_ms;
}
