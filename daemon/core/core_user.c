/* core_user.c - users of this node: what each holds, and may hold.
 *
 * A user is there as long as it holds anything. Of each limit (enum core_share_of) it may have at
 * most half of what the others leave (share.h), so that a newcomer always finds some; of members of
 * groups what one user may have is counted in blocks (core_pool.c). Another node names any user in
 * its joins; so what all its joins bring here has a share of its own: node_room().
 *
 * commd-gpu is a user, too, which may have all that the others leave. */
#include "daemon/core/core_internal.h"

enum { USERS_LOOKED = 256 }; /* at a time */

struct user *user_get(struct core *core, uint32_t uid, bool make)
{
    struct list *bucket = &core->user_by_uid[core_mix(uid) % HASH_USERS];
    struct user *user;

    list_each(user, bucket, hash)
        if (user->uid == uid)
            return user;
    user = make ? pool_take(&core->users) : NULL;
    if (!user)
        return NULL;
    user->uid = uid;
    list_init(&user->asking);
    list_init(&user->holding);
    list_init(&user->held);
    list_add(bucket, &user->hash);
    return user;
}

void user_sent(struct core *core, const struct msg_engine_sent *msg)
{
    struct user *user = user_get(core, msg->uid, false);

    if (!user)
        return; /* its last group has ended */
    user->sent_until_ms = core->now + CORE_SENT_MS + MIN(msg->ms, (uint32_t)CORE_SENT_MOST_MS);
    /* no machine sends more, and so the sum of all does not wrap */
    user->sent_rate = MIN(msg->bytes, UINT64_MAX / 1000) * 1000 / MAX(msg->ms, 1u);
    user->sent_rate = MIN(user->sent_rate, 1ull << 48);
}

void user_put(struct core *core, struct user *user)
{
    if (!user || user->clients || user->groups || user->forming || user->members ||
        user->runs.blocks || user->joins)
        return;
    assert(list_empty(&user->held) && list_is_off(&user->asking)); /* no member, no join */
    list_del(&user->hash);
    list_del(&user->holding);
    pool_leave(&core->users, user); /* no action names a user: free at once */
    pool_reap(&core->users);
}

struct core_share user_share(const struct core *core, const struct user *user,
                             enum core_share_of of)
{
    const struct core_config *config = &core->config;
    bool gpu = user->uid == CORE_GPU_UID;
    bool may_have_all = gpu || config->max_groups_per_user >= config->max_groups;
    struct core_share share = {0};
    uint64_t per_user = 0, kept = 0; /* @kept: not for this user, besides what others hold */

    switch (of) {
    case CORE_SHARE_CLIENTS:
        share = (struct core_share){
            .used = user->clients, .all = core->nclients, .limit = config->max_clients};
        per_user = config->max_clients_per_user;
        kept = gpu ? user->clients : 0; /* its client is not among all */
        break;
    case CORE_SHARE_GROUPS:
        share = (struct core_share){
            .used = user->groups, .all = core->groups.live, .limit = config->max_groups};
        per_user = gpu ? config->max_groups : config->max_groups_per_user;
        kept = gpu ? 0 : gpu_spare(core);
        break;
    case CORE_SHARE_FORMING:
        share = (struct core_share){
            .used = user->forming, .all = core->formings.live, .limit = config->max_groups};
        per_user = gpu ? config->max_groups : config->max_groups_per_user;
        break;
    case CORE_SHARE_RANKS:
        share = (struct core_share){
            .used = user->members, .all = core->members.live, .limit = core->max_members};
        per_user = may_have_all ? share.limit : share.limit / 2;
        break;
    case CORE_SHARE_MEMBERS:
        share = (struct core_share){
            .used = user->runs.blocks, .all = core->runs.used, .limit = core->runs.nblocks};
        per_user = may_have_all ? share.limit : share.limit / 2;
        break;
    case CORE_SHARES:
        abort();
    }
    assert(share.used <= share.all + kept); /* a part of it */
    share.may = share_of(share.limit, per_user, share.all - share.used + kept);
    return share;
}

uint64_t user_may(const struct core *core, const struct user *user, enum core_share_of of)
{
    return user_share(core, user, of).may;
}

uint32_t node_room(uint32_t limit, uint32_t all, uint32_t own)
{
    uint32_t most = (uint32_t)share_of(limit, limit / 2, all - own);

    assert(own <= all);
    return most - MIN(own, most);
}

struct msg_member *user_take_run(struct core *core, struct user *user, uint32_t n, unsigned node)
{
    struct runs *runs = &core->runs;
    uint32_t had = user->runs.blocks, most, *of_node;
    struct msg_member *run;

    most = (uint32_t)user_may(core, user, CORE_SHARE_MEMBERS);
    assert(n && node < core->config.nnodes);
    if (!had)
        user->node = node;
    of_node = &core->peers[user->node].blocks;
    if (!user->clients && user->node != core->config.self)
        most = MIN(most, had + node_room(runs->nblocks, runs->used, *of_node));
    run = runs_take(runs, &user->runs, most, n);
    assert(user->runs.blocks <= had + 1); /* a run lies in one block */
    *of_node += user->runs.blocks - had;
    return run;
}

struct msg_member *user_restore_run(struct core *core, struct user *user, uint32_t n)
{
    uint32_t had = user->runs.blocks;
    struct msg_member *run = runs_take(&core->runs, &user->runs, UINT32_MAX, n);

    if (!had)
        user->node = core->config.self;
    assert(user->node == core->config.self); /* no node has asked for anything yet */
    core->peers[user->node].blocks += user->runs.blocks - had;
    return run;
}

void user_drop_run(struct core *core, struct user *user, struct msg_member *run)
{
    uint32_t had = user->runs.blocks;

    assert(had && core->peers[user->node].blocks >= had);
    runs_leave(&core->runs, &user->runs, run);
    core->peers[user->node].blocks -= had - user->runs.blocks;
}

void user_leave_run(struct core *core, uint32_t uid, struct msg_member *run)
{
    struct user *user = user_get(core, uid, false);

    assert(user); /* it holds @run */
    assert(user->runs.blocks);
    user_drop_run(core, user, run);
    user_put(core, user);
}

/* ---- views ----------------------------------------------------------------------------------- */

size_t core_users(const struct core *core, uint32_t *uids, size_t room)
{
    const struct user *user;
    size_t n = 0;

    for (unsigned i = 0; i < HASH_USERS; i++)
        list_each(user, &core->user_by_uid[i], hash) {
            if (n < room)
                uids[n] = user->uid;
            n++;
        }
    return n;
}

static uint64_t sent_rate(const struct core *core, const struct user *user)
{
    return user && core->now < user->sent_until_ms ? user->sent_rate : 0;
}

uint64_t core_sent_rate(const struct core *core, const uint32_t *uid)
{
    const struct user *user;
    uint64_t sum = 0;

    if (uid)
        return sent_rate(core, user_get((struct core *)core, *uid, false)); /* changes nothing */
    for (unsigned i = 0; i < HASH_USERS; i++)
        list_each(user, &core->user_by_uid[i], hash)
            sum += sent_rate(core, user);
    return sum;
}

void core_user_shares(const struct core *core, uint32_t uid,
                      struct core_share ret_shares[CORE_SHARES])
{
    const struct user *user = user_get((struct core *)core, uid, false); /* changes nothing */
    struct user nobody = {.uid = uid};
    struct core_share *members = &ret_shares[CORE_SHARE_MEMBERS];

    for (unsigned of = 0; of < CORE_SHARES; of++)
        ret_shares[of] = user_share(core, user ? user : &nobody, (enum core_share_of)of);
    members->used <<= core->runs.block; /* from blocks */
    members->may <<= core->runs.block;
    members->all <<= core->runs.block;
    members->limit <<= core->runs.block;
}

/* A user that has gone left its place with counts of 0. */
bool core_user_most(const struct core *core, uint32_t *at, struct core_user_most *most)
{
    uint32_t end = MIN(*at + USERS_LOOKED, core->users.used);

    most->users = core->users.live;
    for (; *at < end; ++*at) {
        const struct user *user = pool_at(&core->users, *at);

        most->clients = MAX(most->clients, user->clients);
        most->groups = MAX(most->groups, user->groups);
    }
    return *at < core->users.used;
}
