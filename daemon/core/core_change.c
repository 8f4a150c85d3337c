/* core_change.c - what commctl may change: a node that drains, groups and clients that are ended,
 * how much is logged, when the configuration is read again.
 *
 * Draining. The node takes no new clients and no new groups; what runs goes on, to its end, and a
 * process that is in a group may begin others: a job makes subgroups while it runs. Joins that
 * still wait for ranks are told at once. commd-gpu may begin groups, too, for groups that run.
 * Other nodes hear of it with each heartbeat. The node stays the home of groups of other nodes: as
 * a meeting place it costs them nothing when it stops. It is kept nowhere: a commd that starts anew
 * does not drain.
 *
 * Kicking. A group ends for all its ranks, with a cause that says who wanted it and why. A client
 * is taken out of all that it is in, which ends its groups, and is closed. Root and the user that
 * commd runs as may kick whom they want, others what is theirs; to them what belongs to others is
 * not there, and the answer is the same.
 *
 * Who wakes me: ADMIN of a client. What if the peer dies now: there is nothing that waits for it.
 * What if I am stopped now: what the others were told is done; the rest is not. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

static bool is_master(const struct core *core, uint32_t uid)
{
    return uid == 0 || uid == core->config.own_uid;
}

const char *core_user_name(uint32_t uid, char buf[32])
{
    if (uid == CORE_CONTAINED_UID)
        text_format(buf, 32, "root of a container");
    else
        text_format(buf, 32, uid ? "user %u" : "root", uid);
    return buf;
}

/* Answers ADMIN: @groups of them were changed, or why nothing was. */
static void answer_change(struct core *core, unsigned slot, bool done, unsigned groups,
                          const char *text)
{
    assert(core->clients[slot].admin);
    assert(slot < core->client_slots && (done || !groups));
    act_push(core, (struct core_action){.type = CORE_DO_CHANGED,
                                        .changed = {.client = slot,
                                                    .groups = groups,
                                                    .done = done,
                                                    .text = act_text(core, text)}});
}

/* ---- draining -------------------------------------------------------------------------------- */

static bool in_group(const struct client *client)
{
    struct member *member;

    list_each(member, &client->members, by_client)
        if (member->group &&
            (member->group->state == GROUP_OPEN || member->group->state == GROUP_COMMITTED))
            return true;
    return false;
}

/* Is its process in a group that runs? A process may have several connections. */
static bool goes_on(const struct core *core, unsigned slot)
{
    const struct client *client = &core->clients[slot];

    assert(core->draining && client->state != CLIENT_FREE);
    if (in_group(client))
        return true;
    for (unsigned i = 0; i < core->client_slots; i++) {
        const struct client *other = &core->clients[i];

        if (client_counts(other) && other->pid == client->pid && other->uid == client->uid &&
            in_group(other))
            return true;
    }
    return false;
}

bool change_may_begin(const struct core *core, unsigned slot, char *ret_text, size_t cap)
{
    assert(slot < core->client_slots);
    if (!core->draining || core->clients[slot].uid == CORE_GPU_UID || goes_on(core, slot))
        return true;
    text_format(
        ret_text, cap,
        "node %s is draining, it takes no new clients and groups: use another node, or have "
        "it take them again with commctl drain --undo",
        core_self_name(core));
    return false;
}

static void tell_draining(struct core *core, unsigned slot)
{
    char text[MSG_TEXT_MAX];
    unsigned groups = core->groups.live;

    if (core->draining && groups)
        text_format(text, sizeof(text), "node %s is draining; groups that go on until they end: %u",
                    core_self_name(core), groups);
    else
        text_format(text, sizeof(text), "node %s %s", core_self_name(core),
                    core->draining ? "is draining: no group is left" : "takes new groups");
    answer_change(core, slot, true, groups, text);
}

/* May this client change what is everybody's? If not, it is refused. */
static bool master_asks(struct core *core, unsigned slot, const char *what)
{
    assert(core->clients[slot].admin);
    if (is_master(core, core->clients[slot].uid))
        return true;
    core_client_refuse(
        core, slot, CAUSE_DENIED,
        "only root%s, and the user that commd runs as (uid %u), may %s node %s",
        core->clients[slot].uid == CORE_CONTAINED_UID ? " of this machine, with CAP_SYS_ADMIN" : "",
        core->config.own_uid, what, core_self_name(core));
    return false;
}

static void drain_node(struct core *core, unsigned slot, bool draining)
{
    uint32_t uid = core->clients[slot].uid;
    char name[32];

    if (!master_asks(core, slot, "drain"))
        return;
    if (core->draining != draining) {
        core->draining = draining;
        act_note(core, CORE_NOTE_NODE_DRAINS, CORE_BY_NOBODY, 0, CORE_LOG_INFO,
                 "commctl drain%s by %s -> %s", draining ? "" : " --undo",
                 core_user_name(uid, name),
                 draining ? "no new clients and groups" : "taking them again");
        if (core->heartbeat_ms != CORE_NEVER)
            core->heartbeat_ms = core->now; /* the others hear it now */
        if (draining)
            join_drain(core);
    }
    tell_draining(core, slot);
}

/* ---- whom it is about ------------------------------------------------------------------------ */

static bool parse_id(const char *text, uint64_t *ret_id)
{
    uint64_t id = 0;
    unsigned n = 0;

    for (; *text; text++, n++) {
        unsigned digit = *text >= '0' && *text <= '9'   ? (unsigned)(*text - '0')
                         : *text >= 'a' && *text <= 'f' ? (unsigned)(*text - 'a') + 10
                                                        : 16;

        if (digit == 16)
            return false;
        id = id << 4 | digit;
    }
    *ret_id = id;
    return n == 16;
}

static bool may_touch(const struct core *core, uint32_t uid, const struct group *group)
{
    return is_master(core, uid) || group->uid == uid;
}

static bool is_alive(const struct group *group)
{
    return group->state == GROUP_OPEN || group->state == GROUP_COMMITTED;
}

/* The groups that a user means: one by its id, or by a name that one user has. */
struct found {
    struct group *group; /* one of them; NULL: none */
    uint32_t uid;        /* whose */
    unsigned joining;    /* members that wait for the others of such a group */
    unsigned dead;       /* groups of that name that have ended already */
    bool by_id;          /* @group is meant, and no other of its name */
    bool several;        /* several users have that name */
};

static void found_one(struct found *found, uint32_t uid)
{
    found->several |= (found->group || found->joining) && found->uid != uid;
    found->uid = uid;
}

/* How many ranks of the user wait for such a group; with @kick they end. */
static unsigned joins_named(struct core *core, uint32_t uid, const char *name, const char *kick)
{
    uint64_t key = text_hash(uid, name);
    struct member *member;
    unsigned n = 0;

    list_each(member, &core->by_name[key % HASH_GROUPS], by_name) {
        if (member->uid != uid || strcmp(member->name, name))
            continue;
        assert(!member->group); /* it still waits */
        n++;
        if (kick) {
            join_cancel(core, member);
            join_fail(core, member, CAUSE_ABORTED, -1, (int)core->config.self, kick);
        }
    }
    return n;
}

static void find_meant(struct core *core, uint32_t uid, const char *name, struct found *ret)
{
    struct member *member;
    struct group *group;
    uint64_t id;

    *ret = (struct found){0};
    group = parse_id(name, &id) ? group_find(core, id) : NULL;
    if (group && group->state != GROUP_LEFT && may_touch(core, uid, group)) {
        ret->uid = group->uid;
        ret->group = is_alive(group) ? group : NULL;
        ret->by_id = true;
        ret->dead = !is_alive(group);
        return;
    }
    list_each(group, &core->all_groups, all) {
        if (group->state == GROUP_LEFT || !may_touch(core, uid, group) || strcmp(group->name, name))
            continue;
        if (!is_alive(group)) {
            ret->dead++;
            continue;
        }
        found_one(ret, group->uid);
        ret->group = group;
    }
    assert(!ret->group || is_alive(ret->group));
    if (!is_master(core, uid)) {
        ret->joining = joins_named(core, uid, name, NULL);
        ret->uid = uid;
        return;
    }
    list_each(member, &core->waiting, waiting) {
        if (member->group || strcmp(member->name, name))
            continue;
        found_one(ret, member->uid);
        ret->joining++;
    }
}

/* Answers when there is nothing that can be kicked. */
static bool is_found(struct core *core, unsigned slot, const char *name, const struct found *found)
{
    char text[MSG_TEXT_MAX], quoted[TEXT_QUOTED];

    text_quote(quoted, name);
    if (found->several)
        text_format(text, sizeof(text),
                    "several users have a group %s on node %s: name it by its id (commctl groups)",
                    quoted, core_self_name(core));
    else if (found->group || found->joining)
        return true;
    else if (found->dead)
        text_format(text, sizeof(text),
                    "group %s is broken already; its ranks have not left it yet", quoted);
    else
        text_format(text, sizeof(text),
                    "no group %s with ranks on node %s that this user may kick: commctl groups "
                    "lists them",
                    quoted, core_self_name(core));
    answer_change(core, slot, false, 0, text);
    return false;
}

/* ---- kicking --------------------------------------------------------------------------------- */

struct kick {
    uint32_t uid; /* who */
    char who[32];
    char why[TEXT_QUOTED + 4]; /* ": "reason"" or "" */
    unsigned groups;
};

static void kick_init(struct kick *kick, uint32_t uid, const char *reason)
{
    char quoted[TEXT_QUOTED];

    *kick = (struct kick){.uid = uid};
    core_user_name(uid, kick->who);
    if (reason[0])
        text_format(kick->why, sizeof(kick->why), ": %s", text_quote(quoted, reason));
}

static void kick_group(struct core *core, unsigned slot, const struct msg_admin *msg)
{
    uint32_t uid = core->clients[slot].uid;
    struct found found;
    struct group *group;
    struct kick kick;
    unsigned joins = 0;
    char text[MSG_TEXT_MAX];

    find_meant(core, uid, msg->group, &found);
    if (!is_found(core, slot, msg->group, &found))
        return;
    kick_init(&kick, uid, msg->text);
    text_format(text, sizeof(text), TEXT_GROUP_KICKED "%s", kick.who, core_self_name(core),
                kick.why);
    list_each(group, &core->all_groups, all) {
        bool meant = found.by_id ? group == found.group
                                 : group->uid == found.uid && !strcmp(group->name, msg->group);

        if (!meant || !is_alive(group))
            continue;
        group_kick(core, group, NULL, text);
        kick.groups++;
    }
    assert(!found.group || kick.groups);
    if (!found.by_id)
        joins = joins_named(core, found.uid, msg->group, text);
    text_format(text, sizeof(text), "ended of user %u: groups %u, waiting joins %u", found.uid,
                kick.groups, joins);
    answer_change(core, slot, true, kick.groups, text);
}

/* All that the client is in, then the client. */
static void kick_client(struct core *core, unsigned slot, struct kick *kick)
{
    struct client *client = &core->clients[slot];
    char text[MSG_TEXT_MAX];
    struct member *member;

    assert(client_counts(client));
    text_format(text, sizeof(text), TEXT_CLIENT_KICKED "%s", client->pid, kick->who,
                core_self_name(core), kick->why);
    list_each(member, &client->members, by_client)
        kick->groups += member->group && is_alive(member->group);
    part_members(core, slot, "it was kicked", text);
    assert(list_empty(&client->members)); /* what is left of it is nobody's */
    core_client_refuse(core, slot, CAUSE_ABORTED, "%s", text);
    assert(client->state == CLIENT_FREE);
}

static bool may_kick(const struct core *core, uint32_t uid, const struct client *client)
{
    return client_counts(client) && (is_master(core, uid) || client->uid == uid);
}

static void kick_pid(struct core *core, unsigned slot, const struct msg_admin *msg)
{
    uint32_t uid = core->clients[slot].uid;
    char text[MSG_TEXT_MAX];
    unsigned clients = 0;
    struct kick kick;

    assert(core->clients[slot].admin);
    kick_init(&kick, uid, msg->text);
    for (unsigned i = 0; i < core->client_slots; i++) {
        if (i == slot || core->clients[i].pid != msg->pid ||
            !may_kick(core, uid, &core->clients[i]))
            continue;
        kick_client(core, i, &kick);
        clients++;
    }
    if (clients)
        text_format(text, sizeof(text), "disconnected pid %u, groups that ended: %u", msg->pid,
                    kick.groups);
    else
        text_format(text, sizeof(text),
                    "no client with pid %u on node %s that this user may kick: commctl clients "
                    "lists them",
                    msg->pid, core_self_name(core));
    answer_change(core, slot, clients, kick.groups, text);
}

static void kick_rank(struct core *core, unsigned slot, const struct msg_admin *msg)
{
    uint32_t uid = core->clients[slot].uid;
    char text[MSG_TEXT_MAX], quoted[TEXT_QUOTED];
    const struct msg_member *entry;
    struct member *member;
    struct found found;
    struct kick kick;

    find_meant(core, uid, msg->group, &found);
    if (!is_found(core, slot, msg->group, &found))
        return;
    text_quote(quoted, msg->group);
    kick_init(&kick, uid, msg->text);
    if (found.group) {
        list_each(member, &found.group->local, by_group) {
            uint32_t pid = member->pid;

            if (member->rank != msg->rank || member->client == core->client_slots)
                continue;
            assert(member->group == found.group);
            kick_client(core, member->client, &kick);
            text_format(text, sizeof(text),
                        "disconnected rank %u of group %s, pid %u, groups that ended: %u",
                        msg->rank, quoted, pid, kick.groups);
            answer_change(core, slot, true, kick.groups, text);
            return;
        }
    }
    entry = found.group && msg->rank < found.group->size ? &found.group->members[msg->rank] : NULL;
    if (!found.group)
        text_format(text, sizeof(text), "group %s is still being joined: kick it as a whole",
                    quoted);
    else if (entry && entry->node != found.group->me)
        text_format(text, sizeof(text), "rank %u of group %s is on node %s: kick it there",
                    msg->rank, quoted, core_node_name(core, found.group->nodes[entry->node]));
    else
        text_format(text, sizeof(text), "group %s has no rank %u (any more)", quoted, msg->rank);
    answer_change(core, slot, false, 0, text);
}

static void set_log_level(struct core *core, unsigned slot, const char *wanted)
{
    static const char *const words[] = {
        [CORE_LOG_ERROR] = "error",
        [CORE_LOG_WARN] = "warn",
        [CORE_LOG_INFO] = "info",
        [CORE_LOG_DEBUG] = "debug",
    };
    unsigned level = 0;

    if (!master_asks(core, slot, "change the log of"))
        return;
    while (level < ARRAY_LEN(words) && strcmp(words[level], wanted))
        level++;
    if (level < ARRAY_LEN(words))
        act_push(core, (struct core_action){.type = CORE_DO_LOG_LEVEL,
                                            .log_level = {.client = slot,
                                                          .level = level,
                                                          .uid = core->clients[slot].uid}});
    else
        answer_change(core, slot, false, 0, "the level of a log is error, warn, info or debug");
}

void change_ask(struct core *core, unsigned slot, const struct msg_admin *msg)
{
    assert(core->clients[slot].state == CLIENT_READY);
    if (!core->clients[slot].admin)
        core_client_refuse(core, slot, CAUSE_PROTOCOL,
                           "only an admin session may change something");
    else if (!strcmp(msg->verb, "drain"))
        drain_node(core, slot, true);
    else if (!strcmp(msg->verb, "undrain"))
        drain_node(core, slot, false);
    else if (!strcmp(msg->verb, "kick"))
        kick_group(core, slot, msg);
    else if (!strcmp(msg->verb, "kick_pid"))
        kick_pid(core, slot, msg);
    else if (!strcmp(msg->verb, "kick_rank"))
        kick_rank(core, slot, msg);
    else if (!strcmp(msg->verb, "set_log_level"))
        set_log_level(core, slot, msg->text);
    else if (!strcmp(msg->verb, "reload") && master_asks(core, slot, "change the settings of"))
        act_push(core, (struct core_action){.type = CORE_DO_RELOAD, .reload = {slot}});
}
