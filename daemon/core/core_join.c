/* core_join.c - a local rank from its join request until it is in a group: the origin's side.
 *
 *   ASKING --COMMIT--> COMMITTED --GROUP_OPEN--> SEATED
 *     |  ^----------------'  the commit came to nothing: asked again
 *     '--limit--> EXPIRING --the home's verdict, or none in 1 s--> failed
 *
 * Every request to a home carries a new number, so an answer to an old request (the home moved,
 * the commit was withdrawn) finds nobody. The home follows from the group's name and the nodes
 * that are READY now; when those change, every waiting join is asked anew where it belongs.
 * Homes never disagree for long, and a group opens only when all participants confirm that
 * their ranks still stand by that very commit (core_group.c), so two homes cannot both seat a
 * rank.
 *
 * Who wakes me: the home's answers, changes among the nodes, and expire_ms.
 * What if the peer (the home) dies now: the join is asked at the next home, with what is left
 * of its time; a join whose time is over fails with NODE_LOST.
 * What if I am stopped now: the home keeps the seat until the link is given up, then frees
 * it. */
#include "daemon/core/core_internal.h"

/* clang-format off */
/* rows: from; columns: FREE ASKING EXPIRING COMMITTED SEATED */
static const bool seat_may[5][5] = {
    [SEAT_FREE]      = {0, 1, 0, 0, 0},
    [SEAT_ASKING]    = {1, 0, 1, 1, 0},
    [SEAT_EXPIRING]  = {1, 1, 0, 1, 0},
    [SEAT_COMMITTED] = {1, 1, 0, 0, 1},
    [SEAT_SEATED]    = {1, 0, 0, 0, 0},
};
/* clang-format on */

void seat_set_state(struct core *core, struct seat *seat, enum seat_state state)
{
    struct client *client = &core->clients[seat->client];

    if (!seat_may[seat->state][state])
        abort();
    list_del(&seat->by_name);
    if (state == SEAT_ASKING || state == SEAT_EXPIRING)
        list_add(&core->by_name[seat->key % HASH_GROUPS], &seat->by_name);
    if (seat->state == SEAT_FREE) {
        list_add(&core->waiting, &seat->waiting);
        list_add(&client->seats, &seat->by_client);
        client->waiting++;
    } else if (state == SEAT_SEATED || (state == SEAT_FREE && seat->state != SEAT_SEATED)) {
        list_del(&seat->waiting);
        client->waiting--;
    }
    client->groups += state == SEAT_SEATED;
    client->groups -= seat->state == SEAT_SEATED;
    seat->state = state;
}

void seat_end(struct core *core, struct seat *seat)
{
    struct user *user;

    seat_set_state(core, seat, SEAT_FREE);
    list_del(&seat->by_client);
    list_del(&seat->todo);
    if (seat->group) {
        list_del(&seat->by_group);
        seat->group->nlocal--;
        seat->group = NULL;
    }
    user = user_get(core, seat->uid, false); /* there as long as the client is */
    user->seats--;
    pool_leave(&core->seats, seat);
}

void join_fail(struct core *core, struct seat *seat, enum cause cause, int32_t rank,
               const char *node, const char *text)
{
    act_join_failed(core, seat->client, seat->req, cause, rank, node, text);
    seat_end(core, seat);
}

/* Numbers: a count, then the seat's index + 1 in 17 bits (65536 is an index + 1). */
struct seat *join_find(struct core *core, uint64_t join)
{
    uint32_t i = join & 0x1ffff;
    struct seat *seat;

    if (!i || i > core->seats.used)
        return NULL;
    seat = pool_at(&core->seats, i - 1);
    return seat->state != SEAT_FREE && seat->join == join ? seat : NULL;
}

/* ---- a new request --------------------------------------------------------------------------
 */

struct refusal {
    enum cause cause;
    char text[MSG_TEXT_MAX];
};

#define REFUSE(why, ...)                                                                           \
    ({                                                                                             \
        ret_refusal->cause = (why);                                                                \
        text_format(ret_refusal->text, sizeof(ret_refusal->text), __VA_ARGS__);                    \
        false;                                                                                     \
    })

static bool quota_ok(struct core *core, const struct client *client, const char *name,
                     struct refusal *ret_refusal)
{
    struct user *user = user_get(core, client->uid, false);

    if (client->waiting >= CORE_CLIENT_JOINS)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": this client has %u joins pending already, wait "
                      "for some of them",
                      name, client->waiting);
    if (user && user->groups >= core->config.max_groups_per_user)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u groups on node %s already: leave "
                      "some, or raise limits.max_groups_per_user",
                      name, client->uid, user->groups, core_self_name(core));
    if (core->groups.live >= core->config.max_groups)
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": node %s has %u groups already: leave some, or "
                      "raise limits.max_groups",
                      name, core_self_name(core), core->groups.live);
    if (user && user->groups >= share_of(core->config.max_groups, core->config.max_groups_per_user,
                                         core->groups.live - user->groups))
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u groups on node %s already, half of what others "
                      "leave: leave some, or raise limits.max_groups",
                      name, client->uid, user->groups, core_self_name(core));
    if (user && user->seats >= user_share(core, core->max_seats, core->seats.live - user->seats))
        return REFUSE(CAUSE_QUOTA,
                      "group \"%s\": user %u has %u ranks in groups or joining on node %s already, "
                      "half of what others leave of %u: leave some",
                      name, client->uid, user->seats, core_self_name(core), core->max_seats);
    return true;
}

static bool request_ok(struct core *core, unsigned slot, const struct msg_client_join *msg,
                       struct refusal *ret_refusal)
{
    const struct client *client = &core->clients[slot];
    struct seat *seat;

    if (core->draining)
        return REFUSE(CAUSE_NODE_LOST, "commd on node %s is stopping", core_self_name(core));
    if (!msg->name[0])
        return REFUSE(CAUSE_INVALID, "a group needs a name");
    if (!msg->size || msg->size > core->config.max_size)
        return REFUSE(CAUSE_INVALID, "group \"%s\": size %u, allowed are 1 to %u ranks on %u nodes",
                      msg->name, msg->size, core->config.max_size, core->config.nnodes);
    if (msg->rank >= msg->size)
        return REFUSE(CAUSE_INVALID, "group \"%s\": rank %u of %u, allowed are 0 to %u", msg->name,
                      msg->rank, msg->size, msg->size - 1);
    list_each (seat, &client->seats, by_client)
        if (seat->state != SEAT_SEATED && !strcmp(seat->name, msg->name))
            return REFUSE(CAUSE_INVALID,
                          "group \"%s\": this client is joining it as rank %u "
                          "already, use one context per rank",
                          msg->name, seat->rank);
    return quota_ok(core, client, msg->name, ret_refusal);
}

void join_request(struct core *core, unsigned slot, const struct msg_client_join *msg)
{
    struct client *client = &core->clients[slot];
    struct refusal refusal;
    struct seat *seat;
    uint64_t limit = core->config.join_timeout_ms;

    if (!request_ok(core, slot, msg, &refusal)) {
        act_join_failed(core, slot, msg->req, refusal.cause, -1, core_self_name(core),
                        refusal.text);
        return;
    }
    seat = pool_take(&core->seats);
    if (!seat) {
        text_format(refusal.text, sizeof(refusal.text),
                    "group \"%s\": node %s has %u ranks in "
                    "groups already, leave some",
                    msg->name, core_self_name(core), core->seats.live);
        act_join_failed(core, slot, msg->req, CAUSE_QUOTA, -1, core_self_name(core), refusal.text);
        return;
    }
    list_init(&seat->by_group);
    list_init(&seat->by_name);
    list_init(&seat->todo);
    if (msg->timeout_ms && (!limit || msg->timeout_ms < limit))
        limit = msg->timeout_ms;
    seat->client = slot;
    seat->req = msg->req;
    seat->rank = msg->rank;
    seat->size = msg->size;
    seat->uid = client->uid;
    seat->pid = client->pid;
    seat->limit_ms = limit;
    seat->deadline_ms = limit && limit < CORE_NEVER - core->now ? core->now + limit : CORE_NEVER;
    seat->home = -1;
    text_copy(seat->name, sizeof(seat->name), msg->name);
    seat->key = text_hash(seat->uid, seat->name);
    user_get(core, seat->uid, false)->seats++;
    seat_set_state(core, seat, SEAT_ASKING);
    core->expire_ms = MIN(core->expire_ms, seat->deadline_ms);
    list_add(&core->todo, &seat->todo);
}

/* ---- homes ------------------------------------------------------------------------------ */

static int home_of(struct core *core, const struct seat *seat)
{
    for (unsigned i = 0; i < core->config.nnodes; i++)
        core->up[i] = peer_usable(core, i);
    return rendezvous(seat->key, core->ids, core->up, core->config.nnodes);
}

void join_cancel(struct core *core, struct seat *seat)
{
    if (seat->home < 0)
        return;
    if (seat->home == (int)core->config.self)
        home_cancel(core, core->config.self, seat->join | CORE_CANCEL_QUIET);
    else if (peer_linked(core, (unsigned)seat->home))
        act_join_cancel(core, (unsigned)seat->home, seat->join | CORE_CANCEL_QUIET);
    seat->home = -1;
}

/* The home may answer at once when it is this node: @seat may have ended on return. */
static void ask(struct core *core, struct seat *seat)
{
    struct msg_join join;

    seat->home = home_of(core, seat);
    seat->join = ++core->join_count << 17 | (pool_index(&core->seats, seat) + 1);
    if (seat->home != (int)core->config.self) {
        act_join(core, seat);
        return;
    }
    join.join = seat->join;
    join.uid = seat->uid;
    join.pid = seat->pid;
    join.rank = seat->rank;
    join.size = seat->size;
    text_copy(join.name, sizeof(join.name), seat->name);
    home_join(core, core->config.self, &join);
}

void join_run(struct core *core)
{
    struct seat *seat;

    while ((seat = list_first(&core->todo, struct seat, todo))) {
        list_del(&seat->todo);
        ask(core, seat);
    }
}

void join_again(struct core *core, struct seat *seat)
{
    if (seat->group) {
        list_del(&seat->by_group);
        seat->group->nlocal--;
        seat->group = NULL;
    }
    if (seat->state != SEAT_ASKING)
        seat_set_state(core, seat, SEAT_ASKING);
    seat->home = -1;
    seat->join = 0;
    list_del(&seat->todo);
    list_add(&core->todo, &seat->todo);
    core->expire_ms = MIN(core->expire_ms, seat->deadline_ms);
}

void join_rehome(struct core *core)
{
    struct seat *seat;

    list_each (seat, &core->waiting, waiting) {
        if (seat->state != SEAT_ASKING || seat->home < 0 || seat->home == home_of(core, seat))
            continue;
        join_cancel(core, seat);
        join_again(core, seat);
    }
}

/* Before join_rehome(): a home that comes back at once has forgotten what it was asked. */
void join_home_lost(struct core *core, unsigned node)
{
    struct seat *seat;
    char text[MSG_TEXT_MAX];

    list_each (seat, &core->waiting, waiting) {
        if (seat->home != (int)node)
            continue;
        if (seat->state == SEAT_EXPIRING) {
            text_format(text, sizeof(text), "group \"%s\": its home node %s was lost", seat->name,
                        core_node_name(core, node));
            join_fail(core, seat, CAUSE_NODE_LOST, -1, core_node_name(core, node), text);
        } else if (seat->state == SEAT_ASKING) {
            join_again(core, seat);
        }
    }
}

/* ---- answers
 * ------------------------------------------------------------------------------------- */

static void timed_out(struct core *core, struct seat *seat, unsigned count, const char *missing)
{
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};

    text_add(&text, "group \"%s\": %u of %u ranks did not come within ", seat->name, count,
             seat->size);
    text_add_ms(&text, seat->limit_ms);
    text_add(&text, ": missing %s", missing);
    join_fail(core, seat, CAUSE_TIMEOUT, -1, "", buf);
}

void join_refused(struct core *core, unsigned node, const struct msg_join_refused *msg)
{
    struct seat *seat = join_find(core, msg->join);

    if (!seat || seat->home != (int)node ||
        (seat->state != SEAT_ASKING && seat->state != SEAT_EXPIRING))
        return; /* about a request that was withdrawn meanwhile */
    if (msg->cause != CAUSE_TIMEOUT)
        join_fail(core, seat, msg->cause < CAUSE_COUNT ? msg->cause : CAUSE_INTERNAL, msg->rank,
                  msg->node, msg->text);
    else if (seat->state == SEAT_EXPIRING)
        timed_out(core, seat, msg->rank > 0 ? (unsigned)msg->rank : 0, msg->text);
}

/* ---- time
 * ---------------------------------------------------------------------------------------- */

/* All ranks came and were committed, but a node on the way is not there. */
static void expire_committed(struct core *core, struct seat *seat)
{
    struct group *group = seat->group;
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};
    const char *node = "";

    for (unsigned i = 0; i < group->nnodes && !*node; i++)
        if (!peer_usable(core, group->nodes[i]) || (i != group->me && !group->agreed[i]))
            node = core_node_name(core, group->nodes[i]);
    text_add(&text, "group \"%s\": all %u ranks came, but node %s was not ready within ",
             seat->name, seat->size, node);
    text_add_ms(&text, seat->limit_ms);
    act_join_failed(core, seat->client, seat->req, CAUSE_TIMEOUT, -1, node, buf);
    group_seat_lost(core, seat, "its time to join ran out");
}

static void expire(struct core *core, struct seat *seat)
{
    char text[MSG_TEXT_MAX];

    switch (seat->state) {
    case SEAT_ASKING:
        seat_set_state(core, seat, SEAT_EXPIRING);
        seat->deadline_ms = core->now + CORE_VERDICT_MS;
        if (seat->home == (int)core->config.self)
            home_cancel(core, core->config.self, seat->join);
        else if (seat->home >= 0)
            act_join_cancel(core, (unsigned)seat->home, seat->join);
        break;
    case SEAT_EXPIRING:
        text_format(text, sizeof(text), "group \"%s\": its home node %s does not answer",
                    seat->name, core_node_name(core, (unsigned)seat->home));
        join_fail(core, seat, CAUSE_NODE_LOST, -1, core_node_name(core, (unsigned)seat->home),
                  text);
        break;
    case SEAT_COMMITTED:
        expire_committed(core, seat);
        break;
    case SEAT_FREE:
    case SEAT_SEATED:
        abort();
    }
}

/* When seats whose time has run out are looked for: all are looked at, so that a crowd of them is
 * not for each. */
uint64_t join_deadline(const struct core *core)
{
    return MAX(core->expire_ms, core->expired_ms + core->seats.live / CORE_SEATS_PER_MS);
}

void join_tick(struct core *core)
{
    struct seat *seat;

    if (core->now < join_deadline(core))
        return;
    core->expired_ms = core->now;
    join_run(core); /* so that every seat has a home to ask */
    list_each (seat, &core->waiting, waiting)
        if (core->now >= seat->deadline_ms)
            expire(core, seat);
    core->expire_ms = CORE_NEVER;
    list_each (seat, &core->waiting, waiting)
        core->expire_ms = MIN(core->expire_ms, seat->deadline_ms);
}

void join_drain(struct core *core)
{
    struct seat *seat;
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), "commd on node %s is stopping", core_self_name(core));
    list_each (seat, &core->waiting, waiting) {
        if (seat->state == SEAT_COMMITTED)
            continue; /* group_drain() */
        join_cancel(core, seat);
        join_fail(core, seat, CAUSE_NODE_LOST, -1, core_self_name(core), text);
    }
}
