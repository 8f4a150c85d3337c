/* core_restore.c - taking over: what a commd knew that is no more, given to the one that follows.
 *
 *   FRESH --core_restore_begin()--> RESTORING --the first event, CORE_TAKEN_OVER--> RUNNING
 *     '------------------------the first event, any other----------------------------^
 *
 * A client that is restored is AWAY: its process goes on, and its connection ended with the old
 * commd. Its ranks are members of their groups as before, and its quotas count. It comes back
 * (restore_back()) with a list of the groups that it is in: one that is not on the list it has left
 * meanwhile, unless it waits for the very join that made it a member: then the answer was lost, and
 * the join, asked again, is answered again (restore_answered()). A recovery may be asked for again
 * with another number, because the program has given its call up and made it again. Which of its
 * requests that is shows when they come: what none of them was for has been left (restore_asked()).
 * A process that connects anew instead did not know that it was welcome (restore_forget_twin()).
 *
 * At CORE_TAKEN_OVER the boards are told again all that they have to know, because the old commd
 * may have died between writing it down and telling it. A rank whose client was not restored is
 * lost. A group whose last rank had ended is closed.
 *
 * Groups over several nodes go on if our engine does (core_engine.c), and wait for the links to
 * their nodes (core_peer.c), which are told what became of our ranks meanwhile (core_resync.c). One
 * that was COMMITTED is so again: others may have opened it. Its members are told when they ask
 * again; who does not wait for it any more withdraws.
 *
 * What is restored comes from outside of the core: each reference in it is checked. Not restored
 * are joins that wait (clients ask again), links, and draining. commd-gpu goes on:
 * core_restore_gpu(). It is a client, too.
 *
 * Who wakes me: the caller, before the first event; clients that come back. What if a client that
 * is away dies now: CORE_CLIENT_CLOSED, as of any other. What if this commd dies now: its successor
 * gets the same, and what has been told since. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* clang-format off */
static const bool phase_may[3][3] = { /* rows: from; columns: FRESH RESTORING RUNNING */
    [PHASE_FRESH]     = {0, 1, 1},
    [PHASE_RESTORING] = {0, 0, 1},
    [PHASE_RUNNING]   = {0, 0, 1},
};
/* clang-format on */

void core_set_phase(struct core *core, enum core_phase phase)
{
    assert(phase_may[core->phase][phase]);
    core->phase = phase;
}

void core_restore_begin(struct core *core, uint64_t now_ms)
{
    assert(!core->groups.live && !core->members.live && !core->nclients);
    core_set_phase(core, PHASE_RESTORING);
    core->now = now_ms;
    for (unsigned i = 0; i < core->config.nnodes; i++)
        core->peers[i].since_ms = now_ms;
}

void core_restore_counts(struct core *core, const struct core_counts *counts)
{
    assert(core->phase == PHASE_RESTORING);
    core->counts = *counts;
}

/* ---- clients --------------------------------------------------------------------------------- */

bool core_restore_client(struct core *core, const struct core_kept_client *kept)
{
    bool is_gpu = kept->uid == CORE_GPU_UID;
    struct client *client;
    struct user *user;

    assert(core->phase == PHASE_RESTORING);
    if (kept->slot >= core->client_slots || core->clients[kept->slot].state != CLIENT_FREE ||
        is_gpu != (kept->payer == CORE_GPU_UID) ||
        (is_gpu && (!core->gpu.resuming || kept->pid != core->gpu.life.pid)))
        return false;
    user = user_get(core, kept->payer, true);
    if (!user)
        return false;
    user->clients++;
    core->nclients += !is_gpu;
    client = &core->clients[kept->slot];
    *client = (struct client){.uid = kept->uid, .payer = kept->payer, .pid = kept->pid};
    list_init(&client->members);
    text_copy(client->program, sizeof(client->program), kept->program);
    client_set_state(core, kept->slot, CLIENT_AWAY);
    client->since_ms = MIN(kept->since_ms, core->now);
    assert(core->naway == core->nclients);
    return true;
}

bool core_client_may_return(const struct core *core, unsigned slot, uint32_t uid, uint32_t pid)
{
    const struct client *client;

    if (slot >= core->client_slots)
        return false;
    client = &core->clients[slot];
    return client->state == CLIENT_AWAY && client->uid == uid && client->pid == pid;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The client of a rank that was kept, NULL: it has ended. */
static struct client *kept_client(struct core *core, const struct core_kept_rank *rank)
{
    if (rank->slot >= core->client_slots || core->clients[rank->slot].state != CLIENT_AWAY)
        return NULL;
    return &core->clients[rank->slot];
}

static bool kept_ranks_fit(struct core *core, const struct core_kept_group *kept, unsigned me)
{
    for (uint32_t i = 0; i < kept->size; i++)
        if (kept->members[i].node >= kept->nnodes || kept->members[i].was > MSG_MAX_RANKS)
            return false;
    for (uint32_t i = 0; i < kept->nranks; i++) {
        const struct core_kept_rank *rank = &kept->ranks[i];
        const struct client *client = kept_client(core, rank);

        if (rank->rank >= kept->size || (i && rank->rank <= kept->ranks[i - 1].rank))
            return false;
        if (kept->members[rank->rank].node != me)
            return false;
        if (client && (client->uid != kept->uid || client->pid != kept->members[rank->rank].pid))
            return false;
    }
    return true;
}

static bool kept_group_fits(struct core *core, const struct core_kept_group *kept, int *ret_me)
{
    return !group_find(core, kept->id) && kept->id && kept->name[0] && kept->size &&
           kept->size <= core->config.max_size && kept->nranks <= kept->size &&
           core->members.live + kept->nranks <= core->max_members &&
           (kept->state == CORE_GROUP_OPEN || kept->nnodes > 1) &&
           (kept->state == CORE_GROUP_COMMITTED || kept->state == CORE_GROUP_OPEN ||
            (kept->state == CORE_GROUP_LEFT && !kept->nranks)) &&
           place_nodes(core, kept->nodes, kept->nnodes, ret_me) && *ret_me >= 0 &&
           kept_ranks_fit(core, kept, (unsigned)*ret_me);
}

static void rejoin(struct core *core, struct group *group, const struct core_kept_rank *rank)
{
    struct member *member = pool_take(&core->members);
    const struct client *client = kept_client(core, rank);
    struct user *user;

    assert(member); /* kept_group_fits() */
    list_init(&member->by_group);
    list_init(&member->by_name);
    list_init(&member->waiting);
    list_init(&member->todo);
    list_init(&member->news);
    member->wish.enough_ms = CORE_NEVER;
    member->client = client ? rank->slot : core->client_slots;
    member->req = rank->req;
    member->rank = rank->rank;
    member->size = group->size;
    member->uid = group->uid;
    member->payer = client ? client->payer : group->payer;
    member->pid = group->members[rank->rank].pid;
    member->deadline_ms = CORE_NEVER;
    member->home = -1;
    text_copy(member->name, sizeof(member->name), group->name);
    member->key = text_hash(member->uid, member->name);
    user = user_get(core, member->payer, false);
    assert(user); /* it has the client, or the group */
    user->members++;
    member->group = group;
    member->claim = CLAIM_NONE;
    member_set_state(core, member, group->state == GROUP_OPEN ? MEMBER_JOINED : MEMBER_COMMITTED);
    list_add(&group->local, &member->by_group);
    group->nlocal++;
    assert(group->nlocal <= group->size);
}

bool core_restore_group(struct core *core, const struct core_kept_group *kept)
{
    struct group *group = NULL;
    int me;

    assert(core->phase == PHASE_RESTORING);
    if (kept_group_fits(core, kept, &me))
        group = group_restore(core, kept, (unsigned)me);
    memset(core->place, 0, core->config.nnodes * sizeof(*core->place));
    for (uint32_t i = 0; group && i < kept->nranks; i++)
        rejoin(core, group, &kept->ranks[i]);
    return group;
}

static struct member *live_rank(const struct group *group, uint32_t rank)
{
    struct member *member;

    list_each(member, &group->local, by_group)
        if (member->rank == rank)
            return member;
    return NULL;
}

bool core_restore_rank_gone(struct core *core, const struct core_rank_gone *gone)
{
    struct group *group = group_find(core, gone->group);
    struct member *member;
    struct fate *fate;

    assert(core->phase == PHASE_RESTORING);
    if (!group || gone->rank >= group->size ||
        (gone->cause != CAUSE_LEFT && gone->cause != CAUSE_RANK_LOST))
        return false;
    fate = runs_fate(&core->runs, &group->members[gone->rank]);
    if (fate->cause)
        return false;
    fate->cause = (uint8_t)gone->cause;
    fate->ops = gone->ops;
    group->unclean |= gone->cause != CAUSE_LEFT;
    member = live_rank(group, gone->rank);
    if (member) {
        member_end(core, member);
        pool_reap(&core->members); /* no action names it */
    }
    return true;
}

bool core_restore_broken(struct core *core, const struct core_group_broken *broken)
{
    struct group *group = group_find(core, broken->group);
    int node = core_node_find(core, broken->node);

    assert(core->phase == PHASE_RESTORING);
    if (!group || (group->state != GROUP_OPEN && group->state != GROUP_LEFT) || group->cause ||
        broken->cause <= CAUSE_NONE || broken->cause >= CAUSE_COUNT || broken->rank < -1 ||
        (broken->rank >= 0 && (uint32_t)broken->rank >= group->size))
        return false;
    group_restore_broken(core, group, broken, node < 0 ? core->config.self : (unsigned)node);
    return true;
}

/* ---- the end of it --------------------------------------------------------------------------- */

void restore_end(struct core *core)
{
    char text[MSG_TEXT_MAX];
    struct group *group;

    if (core->phase != PHASE_RESTORING)
        return;
    core_set_phase(core, PHASE_RUNNING);
    text_format(text, sizeof(text), TEXT_COMMD_ANEW ", and its engine had ended with it",
                core_self_name(core));
    act_log(core, CORE_LOG_INFO, "took over %u client%s and %u group%s", core->nclients,
            core->nclients == 1 ? "" : "s", core->groups.live, core->groups.live == 1 ? "" : "s");
    assert(core->naway == core->nclients); /* no event has come yet */
    list_each(group, &core->all_groups, all)
        if (group->state == GROUP_OPEN || group->state == GROUP_BROKEN)
            group_note_next(core, group);
    gpu_taken_over(core);
    group_taken_over(core, text);
    part_orphans(core, "its process ended while commd was restarted");
}

/* ---- clients that come back ------------------------------------------------------------------ */

static void claim_group(struct core *core, unsigned slot, uint64_t id)
{
    struct group *group = group_find(core, id);
    struct member *member;

    if (!group)
        return;
    list_each(member, &group->local, by_group)
        if (member->client == slot)
            member->claim = CLAIM_IN;
}

static bool still_asks(const struct core_event *event, const struct member *member)
{
    for (unsigned i = 0; i < event->njoins; i++)
        if (event->joins[i] == member->req)
            return true;
    return false;
}

static void end_unclaimed(struct core *core, struct member *member)
{
    if (member->state == MEMBER_JOINED)
        group_rank_left_unheard(core, member);
    else
        group_rank_lost(core, member, "it does not wait for the group any more");
}

/* What it was made a member of, and does not say that it is in: it left, or was never told. */
static void sort_unclaimed(struct core *core, unsigned slot, const struct core_event *event)
{
    struct client *client = &core->clients[slot];
    struct member *member;

    client->repeats = event->njoins;
    list_each(member, &client->members, by_client) {
        assert(member->group);
        if (member->claim != CLAIM_NONE)
            continue;
        if (still_asks(event, member) || (event->njoins && member->group->follows))
            member->claim = CLAIM_ASKS;
        else
            end_unclaimed(core, member);
    }
}

void restore_asked(struct core *core, unsigned slot)
{
    struct client *client = &core->clients[slot];
    struct member *member;

    if (client->state != CLIENT_READY || !client->repeats || --client->repeats)
        return;
    list_each(member, &client->members, by_client)
        if (member->claim == CLAIM_ASKS)
            end_unclaimed(core, member);
}

void restore_back(struct core *core, const struct core_event *event)
{
    const struct msg_client_hello *hello = &event->msg->client_hello;
    unsigned slot = event->client;
    struct client *client;
    uint64_t since_ms;

    if (!core_client_may_return(core, slot, event->uid, event->pid))
        return;
    client = &core->clients[slot];
    assert(event->msg->type == MSG_CLIENT_HELLO);
    if (!msg_version_fits(hello->version)) {
        core_client_refuse(core, slot, CAUSE_PROTOCOL,
                           "the client speaks protocol version %u, commd %s on node %s "
                           "understands %u to %u since it was restarted: upgrade libcommd",
                           hello->version, core->version, core_self_name(core),
                           (unsigned)MSG_VERSION_OLDEST, (unsigned)MSG_VERSION);
        return;
    }
    since_ms = client->since_ms;
    assert(since_ms <= core->now);
    client_set_state(core, slot, CLIENT_READY);
    client->since_ms = since_ms;
    client->returned = true;
    act_note(core, CORE_NOTE_CLIENT_BACK, CORE_BY_USER, client->uid, CORE_LOG_DEBUG,
             "client pid %u is back", client->pid);
    act_to_client(core, slot, (struct act_msg){.type = MSG_WELCOME});
    for (unsigned i = 0; i < event->ngroups; i++)
        claim_group(core, slot, event->groups[i]);
    assert(client->state == CLIENT_READY);
    sort_unclaimed(core, slot, event);
}

/* It has nothing to lose, and its process may never have heard that it was welcome: then it does
 * not know that it could come back. */
void restore_forget_twin(struct core *core, unsigned slot)
{
    const struct client *client = &core->clients[slot];

    assert(client->state == CLIENT_NEW);
    for (unsigned i = 0; i < core->client_slots && core->naway; i++) {
        const struct client *twin = &core->clients[i];

        if (twin->state != CLIENT_AWAY || twin->uid != client->uid || twin->pid != client->pid ||
            !list_empty(&twin->members))
            continue;
        act_push(core, (struct core_action){.type = CORE_DO_CLIENT_CLOSE, .client_close = {i}});
        client_closed(core, i, "its process connected anew");
        return;
    }
}

/* Is it for that member that @msg asks? */
static bool asks_for(const struct member *member, const struct msg_client_join *msg)
{
    const struct group *group = member->group;
    bool is_new = !group->members[member->rank].was;

    if (strcmp(member->name, msg->name))
        return false;
    if (!msg->recovery)
        return member->req == msg->req && member->rank == msg->rank && member->size == msg->size;
    return group->follows &&
           (is_new ? msg->recovery == MSG_RECOVERY_REJOIN : msg->follows == group->follows);
}

bool restore_answered(struct core *core, unsigned slot, const struct msg_client_join *msg)
{
    struct client *client = &core->clients[slot];
    struct member *member;

    list_each(member, &client->members, by_client) {
        if (member->claim != CLAIM_ASKS || !asks_for(member, msg))
            continue;
        member->claim = CLAIM_IN;
        member->req = msg->req;
        if (member->state == MEMBER_COMMITTED) {
            follow_asked(core, member);
            follow_begin(core, member, msg);
            join_begin(core, member, msg);
            return true;
        }
        assert(member->state == MEMBER_JOINED && member->group->boarded);
        act_push(core, (struct core_action){.type = CORE_DO_JOINED_AGAIN,
                                            .joined_again = {.group = member->group->id,
                                                             .client = slot,
                                                             .rank = member->rank,
                                                             .req = member->req}});
        return true;
    }
    return false;
}
