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
 * Of a group over several nodes other nodes know more than its ranks, and may have gone on without
 * this one. So libcommd says nothing of these, and its ranks rejoin.
 *
 * Who wakes me: joins that follow it, and their end. */
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
    list_add(&core->strays_by_id[core_mix(stray->id) % HASH_GROUPS], &stray->hash);
    return stray;
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
    for (uint32_t i = 0; i < msg->ngone; i++) {
        bool *gone = &runs_fate(&core->runs, &stray->ranks[msg->gone[i]])->gone;

        stray->heard += !*gone;
        core->learned |= !*gone;
        *gone = true;
    }
    return stray;
}

bool stray_gone(const struct core *core, const struct stray *stray, uint32_t rank)
{
    assert(rank < stray->size);
    return runs_fate(&core->runs, &stray->ranks[rank])->gone;
}

void stray_put(struct core *core, struct stray *stray)
{
    if (!stray)
        return;
    assert(stray->refs);
    if (--stray->refs)
        return;
    list_del(&stray->hash);
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
