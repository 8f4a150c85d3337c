/* core_stray.c - groups that this commd does not know, and that ranks of this node go on from.
 *
 * commd was started anew, without what the one before it knew, or it could not keep a client.
 * Groups on this node alone go on without it. When ranks of one want its next epoch they ask as any
 * do (core_follow.c), and say themselves what commd would know: their rank, how many there were,
 * the epoch, and which ranks are gone, as the kernel says (client/lib/context/alive.c). What they
 * say of one group is put together here, as long as a join waits that follows it, and the home is
 * told of it as of a group that this node knows.
 *
 * What is believed: nothing of a group that this node knows. A client has proved its uid and no
 * more, as for a join by name: strays are of a user, and so are formings. Who lies to ranks of its
 * own user can take the place of one, or keep it out; that one is told to rejoin. A process is in
 * two epochs by no lie: it has one successor (core_follow.c), and a rank has one place at the home.
 * Nothing of the older epoch arrives in the new one, for that has an id and boards of its own.
 *
 * Of a group over several nodes others may know more, and may have gone on without this one. So
 * all nodes are told of a stray when it begins, and when they are READY: BROKEN{stray}. Who has
 * that group broken counts our ranks in again, and answers with BROKEN and GONE, as it would for
 * SYNC{again}; who has gone on from it says so, and then our ranks are told that they were left
 * behind. Nobody tells which ranks are on which node, so what any node says of a rank is heard; of
 * ranks on a node that is lost nobody says anything, and they are waited for until a limit. Who has
 * the group open hears of us by what it asks (core_resync.c).
 *
 * Who knows nothing of it says so, too. If that is so of all nodes that are there, and lasts for
 * node_timeout, in which ranks of a node that was started anew would have asked themselves, then
 * the ranks of other nodes have ended, or have gone on and ended. Nobody knows which, so those of
 * this node are no group of their own: they are told (follow_run()).
 *
 * Who wakes me: joins that follow it, and their end; nodes that are READY, and their answers. What
 * if a node dies now: it is asked again when it is back. What if I am stopped now: the next commd
 * is asked by the same joins. */
#include "daemon/core/core_internal.h"

static struct stray *stray_find(const struct core *core, uint32_t uid, uint64_t id)
{
    struct stray *stray;

    list_each(stray, &core->strays_by_id[core_mix(id) % HASH_GROUPS], hash)
        if (stray->id == id && stray->uid == uid)
            return stray;
    return NULL;
}

bool stray_ok(const struct core *core, const struct client *client,
              const struct msg_client_join *msg, struct refusal *ret_refusal)
{
    const struct stray *stray = stray_find(core, client->uid, msg->follows);

    if (group_find(core, msg->follows))
        return REFUSE(CAUSE_INVALID,
                      "group \"%s\": this client is not in the group that it wants to go on from",
                      msg->name);
    if (!msg->was_size)
        return REFUSE(
            CAUSE_RANK_LOST,
            "group \"%s\": commd does not know the group that this client wants to go on "
            "from; it does not after a start without what the commd before it knew: leave "
            "the group and rejoin, or make a subgroup of the ranks that live",
            msg->name);
    if (msg->was_size > core->config.max_size || msg->was_rank >= msg->was_size ||
        !msg->was_epoch || msg->was_epoch == UINT64_MAX ||
        (msg->ngone && msg->gone[msg->ngone - 1] >= msg->was_size))
        return REFUSE(CAUSE_INVALID,
                      "group \"%s\": there is no rank %u of %u of epoch %llu that lives, as this "
                      "client says",
                      msg->name, msg->was_rank, msg->was_size, (unsigned long long)msg->was_epoch);
    if (stray && (stray->size != msg->was_size || stray->epoch != msg->was_epoch))
        return REFUSE(CAUSE_INVALID,
                      "group \"%s\": this client says that it goes on from epoch %llu of %u ranks, "
                      "others of this node say epoch %llu of %u",
                      msg->name, (unsigned long long)msg->was_epoch, msg->was_size,
                      (unsigned long long)stray->epoch, stray->size);
    return true;
}

/* Does @node say that it knows nothing of it? */
static void set_unknown(struct stray *stray, unsigned node, bool unknown)
{
    uint64_t bit = 1ull << node % 64;

    stray->unknown[node / 64] = (stray->unknown[node / 64] & ~bit) | (unknown ? bit : 0);
}

static bool knows_strays(const struct core *core, unsigned node)
{
    return peer_usable(core, node) && node != core->config.self && core->peers[node].strays;
}

/* @cause: none; LEFT: its ranks do not ask any more; RANK_LOST: this node knows nothing of it. */
static void stray_say(struct core *core, unsigned node, uint64_t id, uint32_t uid, enum cause cause)
{
    if (!act_room(core))
        return; /* it is asked when it is linked anew */
    act_to_peer(core, node,
                (struct act_msg){.type = MSG_BROKEN,
                                 .broken = {.group = id,
                                            .cause = cause,
                                            .rank = -1,
                                            .node = core_self_name(core),
                                            .text = cause == CAUSE_RANK_LOST
                                                        ? "it is not known here"
                                                        : "ranks of this node want to go on",
                                            .stray = true,
                                            .uid = uid}});
}

static void stray_tell(struct core *core, unsigned node, const struct stray *stray,
                       enum cause cause)
{
    stray_say(core, node, stray->id, stray->uid, cause);
}

static void stray_tell_all(struct core *core, const struct stray *stray, enum cause cause)
{
    for (unsigned i = 0; i < core->config.nnodes; i++)
        if (knows_strays(core, i))
            stray_tell(core, i, stray, cause);
}

static struct stray *stray_make(struct core *core, const struct client *client,
                                const struct msg_client_join *msg)
{
    struct user *user = user_get(core, client->payer, false);
    struct msg_member *run = user_take_run(core, user, msg->was_size, core->config.self);
    struct stray *stray = run ? pool_take(&core->strays) : NULL;

    if (run && !stray)
        user_drop_run(core, user, run);
    if (!stray)
        return NULL;
    stray->id = msg->follows;
    stray->epoch = msg->was_epoch;
    stray->uid = client->uid;
    stray->payer = client->payer;
    stray->size = msg->was_size;
    stray->ranks = run;
    stray->begun_ms = core->now;
    list_add(&core->strays_by_id[core_mix(stray->id) % HASH_GROUPS], &stray->hash);
    stray_tell_all(core, stray, CAUSE_NONE);
    return stray;
}

static void stray_lose(struct core *core, struct stray *stray, uint32_t rank)
{
    bool *gone = &runs_fate(&core->runs, &stray->ranks[rank])->gone;

    stray->heard += !*gone;
    core->learned |= !*gone;
    *gone = true;
}

struct stray *stray_take(struct core *core, const struct client *client,
                         const struct msg_client_join *msg)
{
    struct stray *stray;
    struct refusal refusal;

    if (!stray_ok(core, client, msg, &refusal))
        return NULL; /* the limits are others since it was asked first */
    stray = stray_find(core, client->uid, msg->follows);
    if (!stray)
        stray = stray_make(core, client, msg);
    if (!stray)
        return NULL;
    stray->refs++;
    stray->over_nodes |= msg->was_nodes > 1;
    for (uint32_t i = 0; i < msg->ngone; i++)
        stray_lose(core, stray, msg->gone[i]);
    return stray;
}

bool stray_gone(const struct core *core, const struct stray *stray, uint32_t rank)
{
    assert(rank < stray->size);
    return runs_fate(&core->runs, &stray->ranks[rank])->gone;
}

void stray_ask(struct core *core, unsigned node)
{
    for (uint32_t i = 0; i < core->strays.used && knows_strays(core, node); i++) {
        struct stray *stray = pool_at(&core->strays, i);

        if (!stray->refs)
            continue;
        set_unknown(stray, node, false);
        stray_tell(core, node, stray, CAUSE_NONE);
    }
}

/* Will nothing come from @node? */
static bool is_mute(const struct core *core, const struct stray *stray, unsigned node)
{
    const struct peer *peer = &core->peers[node];
    bool unknown = stray->unknown[node / 64] >> node % 64 & 1;

    return node == core->config.self || peer->given_up ||
           (peer->state == CORE_PEER_READY && unknown &&
            core->now >= peer->since_ms + core->config.node_timeout_ms);
}

void stray_tick(struct core *core)
{
    for (uint32_t i = 0; i < core->strays.used; i++) {
        struct stray *stray = pool_at(&core->strays, i);
        unsigned node = 0;

        if (!stray->refs || stray->alone || !stray->over_nodes ||
            core->now < stray->begun_ms + core->config.node_timeout_ms)
            continue;
        while (node < core->config.nnodes && is_mute(core, stray, node))
            node++;
        if (node < core->config.nnodes)
            continue;
        stray->alone = true;
        stray->heard++;
        core->learned = true;
    }
}

bool stray_answer(struct core *core, unsigned node, uint64_t id)
{
    struct stray *stray;
    bool found = false;

    list_each(stray, &core->strays_by_id[core_mix(id) % HASH_GROUPS], hash)
        if (stray->id == id && knows_strays(core, node)) {
            stray_tell(core, node, stray, CAUSE_NONE);
            found = true;
        }
    return found;
}

void stray_asked(struct core *core, unsigned node, const struct msg_broken *msg)
{
    struct group *group = group_find(core, msg->group);
    struct stray *own = stray_find(core, msg->uid, msg->group);
    uint64_t next = follow_gone_as(core, &msg->uid, msg->group);
    int place = group ? group_place(group, node) : -1;

    if (own)
        set_unknown(own, node, msg->cause == CAUSE_RANK_LOST);
    if (msg->cause == CAUSE_RANK_LOST)
        return;
    if (own && msg->cause == CAUSE_LEFT)
        stray_tell(core, node, own, CAUSE_NONE);
    if (place >= 0 && group->uid == msg->uid) {
        if (group->state == GROUP_BROKEN)
            follow_place_lost(core, group, (unsigned)place, msg->cause == CAUSE_LEFT);
        if (group->state == GROUP_BROKEN || group->state == GROUP_LEFT)
            group_tell_ends(core, group, node);
    } else if (next) {
        act_to_peer(core, node,
                    (struct act_msg){.type = MSG_BROKEN,
                                     .broken = {.group = msg->group,
                                                .rank = -1,
                                                .node = core_self_name(core),
                                                .text = "it has gone on",
                                                .next = next}});
    } else if (!group && !own && msg->cause != CAUSE_LEFT) {
        stray_say(core, node, msg->group, msg->uid, CAUSE_RANK_LOST);
    }
}

void stray_heard(struct core *core, uint64_t id, int64_t rank, uint64_t next)
{
    struct stray *stray;

    list_each(stray, &core->strays_by_id[core_mix(id) % HASH_GROUPS], hash) {
        if (stray->id != id)
            continue;
        if (next > stray->epoch && !stray->passed) {
            stray->passed = next;
            stray->heard++;
            core->learned = true;
        }
        if (rank >= 0 && rank < stray->size)
            stray_lose(core, stray, (uint32_t)rank);
    }
}

void stray_put(struct core *core, struct stray *stray)
{
    if (!stray)
        return;
    assert(stray->refs);
    if (--stray->refs)
        return;
    list_del(&stray->hash);
    stray_tell_all(core, stray, CAUSE_LEFT);
    pool_leave(&core->strays, stray); /* JOIN_NEWS in the queue are made from it */
}

void stray_reap(struct core *core)
{
    for (uint32_t i = core->strays.ended; i;) {
        struct stray *stray = pool_at(&core->strays, i - 1);

        assert(!stray->refs && list_is_off(&stray->hash));
        user_leave_run(core, stray->payer, stray->ranks);
        i = stray->pooled.next;
    }
    pool_reap(&core->strays);
}
