/* core_join.c - a local rank from its join request until it is in a group: the origin's side.
 *
 *   ASKING --COMMIT--> COMMITTED --GROUP_OPEN--> JOINED
 *     |  ^----------------'  the commit came to nothing: asked again
 *     '--limit--> EXPIRING --the home's verdict, or none in 1 s--> failed
 *
 * In ASKING it has no home yet while it is held, because its user asks very often (core_ration.c).
 *
 * Every request to a home carries a new number, so an answer to an old request (the home moved,
 * the commit was withdrawn) finds nobody. The home follows from the group's name and the nodes
 * that are READY now; when those change, every waiting join is asked anew where it belongs.
 * Homes never disagree for long, and a group opens only when all participants confirm that
 * their ranks still stand by that very commit (core_commit.c), so two homes cannot both have a
 * rank.
 *
 * Who wakes me: the home's answers, changes among the nodes, and expire_ms.
 * What if the peer (the home) dies now: the join is asked at the next home, with what is left
 * of its time; a join whose time is over fails with NODE_LOST.
 * What if I am stopped now: the home keeps the member until the link is given up, then frees
 * it. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* clang-format off */
/* rows: from; columns: FREE ASKING EXPIRING COMMITTED JOINED */
static const bool member_may[5][5] = {
    [MEMBER_FREE]      = {0, 1, 0, 1, 1}, /* COMMITTED, JOINED: restored */
    [MEMBER_ASKING]    = {1, 0, 1, 1, 0},
    [MEMBER_EXPIRING]  = {1, 1, 0, 1, 0},
    [MEMBER_COMMITTED] = {1, 1, 0, 0, 1},
    [MEMBER_JOINED]    = {1, 0, 0, 0, 0},
};
/* clang-format on */

void member_set_state(struct core *core, struct member *member, enum member_state state)
{
    struct client *client = &core->clients[member->client];

    assert(member_may[member->state][state]);
    assert(state == MEMBER_FREE ||
           !!member->group == (state == MEMBER_COMMITTED || state == MEMBER_JOINED));
    assert(state != MEMBER_EXPIRING || member->home >= 0);
    assert(member->state != MEMBER_FREE || state == MEMBER_ASKING ||
           core->phase == PHASE_RESTORING);
    list_del(&member->by_name);
    if (state == MEMBER_ASKING || state == MEMBER_EXPIRING)
        list_add(&core->by_name[member->key % HASH_GROUPS], &member->by_name);
    if (member->state == MEMBER_FREE) {
        list_add(&client->members, &member->by_client);
        if (state != MEMBER_JOINED) {
            list_add(&core->waiting, &member->waiting);
            client->waiting++;
        }
    } else if (state == MEMBER_JOINED || (state == MEMBER_FREE && member->state != MEMBER_JOINED)) {
        assert(client->waiting);
        list_del(&member->waiting);
        client->waiting--;
        stray_put(core, member->wish.stray);
    }
    assert(client->groups || member->state != MEMBER_JOINED);
    client->groups += state == MEMBER_JOINED;
    client->groups -= member->state == MEMBER_JOINED;
    member->state = state;
}

void member_end(struct core *core, struct member *member)
{
    struct user *user;

    member_set_state(core, member, MEMBER_FREE);
    list_del(&member->by_client);
    list_del(&member->todo);
    list_del(&member->news);
    if (member->group) {
        assert(member->group->nlocal);
        list_del(&member->by_group);
        member->group->nlocal--;
        member->group = NULL;
    }
    assert(list_is_off(&member->by_group) && list_is_off(&member->by_name));
    user = user_get(core, member->payer, false);
    assert(user && user->members); /* as long as it has a client, or ranks that end */
    user->members--;
    pool_leave(&core->members, member);
}

/* The answer to JOIN @req of the client in @slot. @node: about which one, -1: none. */
static void send_failed(struct core *core, unsigned slot, uint32_t req, enum cause cause,
                        int32_t rank, int node, const char *text)
{
    assert(slot < core->client_slots && node < (int)core->config.nnodes);
    assert(cause > CAUSE_NONE && cause < CAUSE_COUNT);
    count_cause(core->counts.joins_failed, cause);
    act_to_client(core, slot,
                  (struct act_msg){
                      .type = MSG_JOIN_FAILED,
                      .join_failed = {.req = req,
                                      .cause = cause,
                                      .rank = rank,
                                      .node = node < 0 ? "" : core_node_name(core, (unsigned)node),
                                      .text = act_text(core, text)}});
}

void join_fail(struct core *core, struct member *member, enum cause cause, int32_t rank, int node,
               const char *text)
{
    if (member_hears(member)) /* else its client asks anew when it comes back */
        send_failed(core, member->client, member->req, cause, rank, node, text);
    member_end(core, member);
}

/* Numbers: a count, then the member's index + 1 in 17 bits (65536 is an index + 1). */
struct member *join_find(struct core *core, uint64_t join)
{
    uint32_t i = join & 0x1ffff;
    struct member *member;

    if (!i || i > core->members.used)
        return NULL;
    member = pool_at(&core->members, i - 1);
    return member->state != MEMBER_FREE && member->join == join ? member : NULL;
}

/* ---- a new request --------------------------------------------------------------------------- */

static bool quota_ok(struct core *core, const struct client *client, const char *name,
                     struct refusal *ret_refusal)
{
    struct user *user = user_get(core, client->payer, false);
    uint32_t uid = client->payer, all = core->config.max_groups;

    if (uid != CORE_GPU_UID)
        all -= gpu_spare(core);
    if (client->waiting >= CORE_CLIENT_JOINS)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": this client has %u joins pending already, wait "
                      "for some of them",
                      name, client->waiting);
    if (user && uid != CORE_GPU_UID && user->groups >= core->config.max_groups_per_user)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u groups on node %s already: leave "
                      "some, or raise limits.max_groups_per_user",
                      name, uid, user->groups, core_self_name(core));
    if (core->groups.live >= all)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": node %s has %u groups already: leave some, or "
                      "raise limits.max_groups",
                      name, core_self_name(core), core->groups.live);
    if (user && user->groups >= user_may(core, user, CORE_SHARE_GROUPS))
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u groups on node %s already, half of what others "
                      "leave: leave some, or raise limits.max_groups",
                      name, uid, user->groups, core_self_name(core));
    if (user && user->members >= user_may(core, user, CORE_SHARE_RANKS))
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u ranks in groups or joining on node %s already, "
                      "half of what others leave of %u: leave some",
                      name, uid, user->members, core_self_name(core), core->max_members);
    return true;
}

static bool is_gpu_name(const char *name)
{
    return starts_with(name, CORE_GPU_NAMES);
}

static bool request_ok(struct core *core, unsigned slot, const struct msg_client_join *msg,
                       struct refusal *ret_refusal)
{
    const struct client *client = &core->clients[slot];
    struct member *member;

    if (core->stopping)
        return REFUSE(CAUSE_NODE_LOST, TEXT_COMMD_STOPS, core_self_name(core));
    if (!change_may_begin(core, slot, ret_refusal->text, sizeof(ret_refusal->text))) {
        ret_refusal->cause = CAUSE_DENIED;
        return false;
    }
    if (!msg->name[0])
        return REFUSE(CAUSE_INVALID, "a group needs a name");
    if (client->uid != CORE_GPU_UID && is_gpu_name(msg->name))
        return REFUSE(CAUSE_DENIED,
                      "group \"%s\": names that begin with " CORE_GPU_NAMES
                      " are for commd's own GPU service",
                      msg->name);
    if (msg->recovery) {
        if (!follow_ok(core, client, msg, ret_refusal))
            return false;
    } else if (!msg->size || msg->size > core->config.max_size) {
        return REFUSE(CAUSE_INVALID, "group \"%s\": size %u, allowed are 1 to %u ranks on %u nodes",
                      msg->name, msg->size, core->config.max_size, core->config.nnodes);
    } else if (msg->rank >= msg->size) {
        return REFUSE(CAUSE_INVALID, "group \"%s\": rank %u of %u, allowed are 0 to %u", msg->name,
                      msg->rank, msg->size, msg->size - 1);
    }
    list_each(member, &client->members, by_client)
        if (member->state != MEMBER_JOINED && !strcmp(member->name, msg->name))
            return REFUSE(CAUSE_INVALID,
                          "group \"%s\": this client is joining it as rank %u "
                          "already, use one context per rank",
                          msg->name, member->rank == MSG_ANY_SEAT ? 0 : member->rank);
    return quota_ok(core, client, msg->name, ret_refusal);
}

void join_begin(struct core *core, struct member *member, const struct msg_client_join *msg)
{
    uint64_t limit = msg->timeout_ms;
    uint64_t most = core->config.join_timeout_ms;

    if (!limit || (most && most < limit))
        limit = most;
    member->limit_ms = limit == msg->timeout_ms && msg->limit_ms > limit ? msg->limit_ms : limit;
    member->begun_ms = core->now;
    member->deadline_ms = limit && limit < CORE_NEVER - core->now ? core->now + limit : CORE_NEVER;
    core->expire_ms = MIN(core->expire_ms, member->deadline_ms);
}

void join_request(struct core *core, unsigned slot, const struct msg_client_join *msg)
{
    struct client *client = &core->clients[slot];
    struct refusal refusal;
    struct member *member;
    int self = (int)core->config.self;

    assert(client->state == CLIENT_READY && !client->admin);
    if (restore_answered(core, slot, msg) || follow_replaces(core, client, msg))
        return;
    if (!request_ok(core, slot, msg, &refusal)) {
        send_failed(core, slot, msg->req, refusal.cause, -1, self, refusal.text);
        return;
    }
    member = pool_take(&core->members);
    if (!member) {
        text_format(refusal.text, sizeof(refusal.text),
                    "group \"%s\": node %s has %u ranks in "
                    "groups already, leave some",
                    msg->name, core_self_name(core), core->members.live);
        send_failed(core, slot, msg->req, CAUSE_QUOTA, -1, self, refusal.text);
        return;
    }
    list_init(&member->by_group);
    list_init(&member->by_name);
    list_init(&member->todo);
    list_init(&member->news);
    member->client = slot;
    member->req = msg->req;
    follow_begin(core, member, msg);
    member->rank = member->wish.rank;
    member->size = member->wish.size;
    member->uid = client->uid;
    member->payer = client->payer;
    member->pid = client->pid;
    member->home = -1;
    text_copy(member->name, sizeof(member->name), msg->name);
    member->key = text_hash(member->uid, member->name);
    user_get(core, member->payer, false)->members++;
    member_set_state(core, member, MEMBER_ASKING);
    join_begin(core, member, msg);
    list_add(&core->todo, &member->todo);
}

/* ---- homes ------------------------------------------------------------------------------ */

static int home_of(struct core *core, const struct member *member)
{
    for (unsigned i = 0; i < core->config.nnodes; i++)
        core->up[i] = peer_usable(core, i);
    return rendezvous(member->key, core->ids, core->up, core->config.nnodes);
}

static void send_cancel(struct core *core, const struct member *member, uint64_t join)
{
    act_to_peer(core, (unsigned)member->home,
                (struct act_msg){.type = MSG_JOIN_CANCEL, .join_cancel.join = join});
}

void join_cancel(struct core *core, struct member *member)
{
    assert(member->state == MEMBER_ASKING || member->state == MEMBER_EXPIRING);
    if (member->home < 0)
        return;
    if (member->home == (int)core->config.self)
        home_cancel(core, core->config.self, member->join | CORE_CANCEL_QUIET);
    else if (peer_linked(core, (unsigned)member->home))
        send_cancel(core, member, member->join | CORE_CANCEL_QUIET);
    member->home = -1;
}

void join_fill(const struct core *core, const struct member *member, uint64_t join,
               struct msg_join *ret_msg)
{
    const struct wish *wish = &member->wish;

    *ret_msg = (struct msg_join){.join = join,
                                 .uid = member->uid,
                                 .pid = member->pid,
                                 .rank = wish->follows ? 0 : wish->rank,
                                 .size = wish->follows ? wish->seats : wish->size,
                                 .gpu = core->config.gpu,
                                 .recovery = wish->recovery,
                                 .least = wish->least,
                                 .follows = wish->follows,
                                 .was_rank = wish->follows ? wish->rank : 0,
                                 .was_size = wish->follows ? wish->size : 0,
                                 .was_epoch = wish->was_epoch};
    text_copy(ret_msg->name, sizeof(ret_msg->name), member->name);
}

/* The home may answer at once when it is this node: @member may have ended on return. */
static void join_ask(struct core *core, struct member *member)
{
    struct msg_join join;

    assert(member->state == MEMBER_ASKING && !member->group);
    member->home = home_of(core, member);
    assert(member->home >= 0); /* this node is always up */
    if (!follow_home_ok(core, member, (unsigned)member->home))
        return;
    assert(member->home == (int)core->config.self || peer_linked(core, (unsigned)member->home));
    member->join = ++core->join_count << 17 | (pool_index(&core->members, member) + 1);
    if (member->home != (int)core->config.self) {
        act_to_peer(
            core, (unsigned)member->home,
            (struct act_msg){.type = MSG_JOIN, .join = {.join = member->join, .member = member}});
        follow_tell(core, member);
        return;
    }
    join_fill(core, member, member->join, &join);
    home_join(core, core->config.self, &join);
    follow_tell(core, member);
}

void join_run(struct core *core)
{
    struct member *member;

    while ((member = list_first(&core->todo, struct member, todo))) {
        char text[MSG_TEXT_MAX];

        assert(member->state == MEMBER_ASKING && member->home < 0);
        list_del(&member->todo);
        if (!change_may_begin(core, member->client, text, sizeof(text)))
            join_fail(core, member, CAUSE_DENIED, -1, (int)core->config.self, text);
        else if (ration_take(core, member))
            join_ask(core, member);
    }
}

static void withdrawn(struct core *core, struct member *member)
{
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), "group \"%s\": this rank has withdrawn its join", member->name);
    join_fail(core, member, CAUSE_ABORTED, -1, (int)core->config.self, text);
}

/* What all have agreed on goes on: the answer is that it is in, unless that comes to nothing. */
void join_withdraw(struct core *core, unsigned slot, uint32_t req)
{
    struct member *member;

    list_each(member, &core->clients[slot].members, by_client) {
        if (member->state == MEMBER_JOINED || member->req != req)
            continue;
        if (member->state == MEMBER_COMMITTED) {
            member->claim = CLAIM_WITHDRAWN;
            return;
        }
        join_cancel(core, member);
        withdrawn(core, member);
        return;
    } /* else the answer is on its way */
}

void join_again(struct core *core, struct member *member)
{
    assert(member->state != MEMBER_JOINED);
    if (member->claim == CLAIM_WITHDRAWN) {
        withdrawn(core, member);
        return;
    }
    if (member->claim != CLAIM_IN) {
        member_end(core, member); /* its client asks anew when it comes back */
        return;
    }
    if (member->group) {
        assert(member->group->state == GROUP_COMMITTED && member->group->nlocal);
        list_del(&member->by_group);
        member->group->nlocal--;
        member->group = NULL;
    }
    if (member->state != MEMBER_ASKING)
        member_set_state(core, member, MEMBER_ASKING);
    member->home = -1;
    member->join = 0;
    member->rank = member->wish.rank;
    member->size = member->wish.size;
    list_del(&member->todo);
    list_add(&core->todo, &member->todo);
    core->expire_ms = MIN(core->expire_ms, member->deadline_ms);
}

void join_rehome(struct core *core)
{
    struct member *member;

    list_each(member, &core->waiting, waiting) {
        if (member->state != MEMBER_ASKING || member->home < 0 ||
            member->home == home_of(core, member))
            continue;
        join_cancel(core, member);
        join_again(core, member);
    }
}

/* Before join_rehome(): a home that comes back at once has forgotten what it was asked. */
void join_home_lost(struct core *core, unsigned node)
{
    struct member *member;
    char text[MSG_TEXT_MAX];

    list_each(member, &core->waiting, waiting) {
        if (member->home != (int)node)
            continue;
        if (member->state == MEMBER_EXPIRING && core->peers[node].state == CORE_PEER_AWAY) {
            if (member->wish.recovery)
                text_format(text, sizeof(text),
                            "group \"%s\": it did not go on in time; why its home node %s cannot "
                            "say, it is restarting",
                            member->name, core_node_name(core, node));
            else
                text_format(text, sizeof(text),
                            "group \"%s\": not all %u ranks came in time; which ones its home "
                            "node %s cannot say, it is restarting",
                            member->name, member->size, core_node_name(core, node));
            join_fail(core, member, CAUSE_TIMEOUT, -1, -1, text);
        } else if (member->state == MEMBER_EXPIRING) {
            text_format(text, sizeof(text), "group \"%s\": its home node %s was lost", member->name,
                        core_node_name(core, node));
            join_fail(core, member, CAUSE_NODE_LOST, -1, (int)node, text);
        } else if (member->state == MEMBER_ASKING) {
            join_again(core, member);
        }
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static void describe_joiner(const struct member *member, char *buf, size_t cap)
{
    if (member->rank == MSG_ANY_SEAT)
        text_copy(buf, cap, "a new process");
    else
        text_format(buf, cap, "rank %u", member->rank);
}

static void timed_out(struct core *core, struct member *member, unsigned count, const char *missing)
{
    char buf[MSG_TEXT_MAX] = "", who[32];
    struct text text = {buf, sizeof(buf), 0};

    assert(member->state == MEMBER_EXPIRING);
    if (member->wish.recovery)
        text_add(&text, "group \"%s\": it did not go on within ", member->name);
    else
        text_add(&text, "group \"%s\": %u of %u ranks did not come within ", member->name, count,
                 member->size);
    text_add_ms(&text, member->limit_ms);
    text_add(&text, member->wish.recovery ? ": %s" : ": missing %s", missing);
    describe_joiner(member, who, sizeof(who));
    act_note(core, CORE_NOTE_GROUP_FAILED, CORE_BY_USER, member->uid, CORE_LOG_DEBUG,
             "%s, pid %u: %s", who, member->pid, buf);
    join_fail(core, member, CAUSE_TIMEOUT, -1, -1, buf);
}

/* Which node @msg is about. Of a rank that is gone only who was in the group with it knows. */
static int about_of(const struct core *core, const struct member *member,
                    const struct msg_join_refused *msg)
{
    const struct group *group = group_find(core, member->wish.follows);
    int about = core_node_find(core, msg->node);

    if (about < 0 && group && msg->rank >= 0 && (uint32_t)msg->rank < group->size)
        about = group->nodes[group->members[msg->rank].node];
    if (about < 0 && member->wish.stray && msg->rank >= 0)
        about = (int)core->config.self;
    return about;
}

void join_refused(struct core *core, unsigned node, const struct msg_join_refused *msg)
{
    struct member *member = join_find(core, msg->join);
    bool sound = msg->cause > CAUSE_NONE && msg->cause < CAUSE_COUNT;

    if (!member || member->home != (int)node ||
        (member->state != MEMBER_ASKING && member->state != MEMBER_EXPIRING))
        return; /* about a request that was withdrawn meanwhile */
    if (msg->cause != CAUSE_TIMEOUT)
        join_fail(core, member, sound ? msg->cause : CAUSE_INTERNAL, msg->rank,
                  about_of(core, member, msg), msg->text);
    else if (member->state == MEMBER_EXPIRING)
        timed_out(core, member, msg->rank > 0 ? (unsigned)msg->rank : 0, msg->text);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* All ranks came and were committed, but a node on the way is not there. */
static void expire_committed(struct core *core, struct member *member)
{
    struct group *group = member->group;
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};
    int node = -1;

    for (unsigned i = 0; i < group->nnodes && node < 0; i++)
        if (!peer_usable(core, group->nodes[i]) || (i != group->me && !group->confirmed[i]))
            node = group->nodes[i];
    assert(node >= 0); /* else it had opened */
    text_add(&text, "group \"%s\": all %u ranks came, but node %s was not ready within ",
             member->name, member->size, core_node_name(core, (unsigned)node));
    text_add_ms(&text, member->limit_ms);
    send_failed(core, member->client, member->req, CAUSE_TIMEOUT, -1, node, buf);
    group_rank_lost(core, member, "its time to join ran out");
}

/* Its time ran out before it was its turn. */
static void expire_held(struct core *core, struct member *member)
{
    char buf[MSG_TEXT_MAX] = "", who[32];
    struct text text = {buf, sizeof(buf), 0};

    assert(!list_is_off(&member->todo)); /* held */
    assert(member->state == MEMBER_ASKING && member->home < 0);
    describe_joiner(member, who, sizeof(who));
    text_add(&text, "group \"%s\": user %u asks to join so often that %s was not asked for within ",
             member->name, member->uid, who);
    text_add_ms(&text, member->limit_ms);
    text_add(&text, ": let it wait longer, or join fewer groups in a second");
    join_fail(core, member, CAUSE_TIMEOUT, -1, (int)core->config.self, buf);
}

static void expire(struct core *core, struct member *member)
{
    char text[MSG_TEXT_MAX];

    switch (member->state) {
    case MEMBER_ASKING:
        if (member->home < 0) {
            expire_held(core, member);
            break;
        }
        member_set_state(core, member, MEMBER_EXPIRING);
        member->deadline_ms = core->now + CORE_VERDICT_MS;
        if (member->home == (int)core->config.self)
            home_cancel(core, core->config.self, member->join);
        else
            send_cancel(core, member, member->join);
        break;
    case MEMBER_EXPIRING:
        text_format(text, sizeof(text), "group \"%s\": its home node %s does not answer",
                    member->name, core_node_name(core, (unsigned)member->home));
        join_fail(core, member, CAUSE_NODE_LOST, -1, member->home, text);
        break;
    case MEMBER_COMMITTED:
        expire_committed(core, member);
        break;
    case MEMBER_FREE:
    case MEMBER_JOINED:
        abort();
    }
}

/* Who asked, or is committed, may have an answer that was not read; and those for whom somebody
 * waits may have come. Who waits for others yet is asked for by its own deadline. */
void join_forgive(struct core *core, uint64_t grace)
{
    struct member *member;

    list_each(member, &core->waiting, waiting) {
        if (member->state != MEMBER_ASKING)
            member->deadline_ms = MAX(member->deadline_ms, core->now + grace);
        member->wish.enough_ms = MAX(member->wish.enough_ms, core->now + grace);
    }
}

/* When members whose time has run out are looked for: all are looked at, so that a crowd of them is
 * not for each. */
uint64_t join_deadline(const struct core *core)
{
    return MAX(core->expire_ms, core->expired_ms + core->members.live / CORE_MEMBERS_PER_MS);
}

void join_tick(struct core *core)
{
    struct member *member;

    if (core->now < join_deadline(core))
        return;
    assert(core->now >= core->expired_ms);
    core->expired_ms = core->now;
    assert(core->now >= core->expire_ms);
    join_run(core); /* so that every member that is not held has a home to ask */
    if (core->peers_changed)
        group_open_ready(core); /* those whose last node became READY by this very event */
    list_each(member, &core->waiting, waiting) {
        if (core->now >= member->wish.enough_ms)
            follow_enough(core, member);
        if (core->now >= member->deadline_ms)
            expire(core, member);
    }
    core->expire_ms = CORE_NEVER;
    list_each(member, &core->waiting, waiting)
        core->expire_ms = MIN(core->expire_ms, MIN(member->deadline_ms, member->wish.enough_ms));
}

/* Who waits for others is told now: others of this node, who are to come yet, will not be let in.
 * What all have agreed on goes on. */
void join_drain(struct core *core)
{
    struct member *member;
    char text[MSG_TEXT_MAX];

    assert(core->draining);
    list_each(member, &core->waiting, waiting) {
        if (member->state == MEMBER_COMMITTED ||
            change_may_begin(core, member->client, text, sizeof(text)))
            continue;
        join_cancel(core, member);
        join_fail(core, member, CAUSE_DENIED, -1, (int)core->config.self, text);
    }
}

void join_stop(struct core *core)
{
    struct member *member;
    char text[MSG_TEXT_MAX];

    assert(core->stopping);
    text_format(text, sizeof(text), TEXT_COMMD_STOPS, core_self_name(core));
    list_each(member, &core->waiting, waiting) {
        if (member->state == MEMBER_COMMITTED)
            continue; /* group_stop() */
        join_cancel(core, member);
        join_fail(core, member, CAUSE_NODE_LOST, -1, (int)core->config.self, text);
    }
}
