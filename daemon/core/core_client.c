/* core_client.c - sessions of the processes of this node.
 *
 * NEW: connected, said nothing yet. READY: said hello, may join, leave and abort. A client that
 * breaks the protocol is refused with one text and closed; whatever it had ends as if it had
 * died. What a user may have is in core_user.c.
 *
 * Who wakes me: the client's messages, and the edge when its socket closes. No timer: a client
 * that says nothing costs a slot, and slots are bounded per user.
 * What if the peer (the client) dies now: CORE_CLIENT_CLOSED; its pending joins are cancelled
 * at their homes, its ranks in groups are reported gone (core_group.c).
 * What if I am stopped now: its messages wait in the socket. What if another commd takes over now:
 * AWAY, until its process connects again: core_restore.c. */
#include <stdarg.h>

#include "daemon/core/core_internal.h"

/* clang-format off */
static const bool client_may[4][4] = { /* rows: from; columns: FREE NEW READY AWAY */
    [CLIENT_FREE]  = {0, 1, 0, 1},
    [CLIENT_NEW]   = {1, 0, 1, 0},
    [CLIENT_READY] = {1, 0, 0, 0},
    [CLIENT_AWAY]  = {1, 0, 1, 0},
};
/* clang-format on */

void client_set_state(struct core *core, unsigned slot, enum client_state state)
{
    struct client *client = &core->clients[slot];

    assert(client_may[client->state][state]);
    assert(state != CLIENT_AWAY || core->phase == PHASE_RESTORING);
    if (client->uid != CORE_GPU_UID) { /* as nclients */
        assert(client->state != CLIENT_AWAY || core->naway);
        core->naway -= client->state == CLIENT_AWAY;
        core->naway += state == CLIENT_AWAY;
    }
    client->state = state;
    client->since_ms = core->now;
}

void client_open(struct core *core, const struct core_event *event)
{
    struct client *client;

    if (event->client >= core->client_slots)
        return;
    client_closed(core, event->client, "its slot was given away");
    client = &core->clients[event->client];
    assert(list_is_off(&client->members)); /* nothing of who was there before */
    client_set_state(core, event->client, CLIENT_NEW);
    client->uid = event->uid;
    client->payer = payer_of(core->config.payers, event->uid);
    client->pid = event->pid;
    client->admin = false;
    client->waiting = client->groups = client->gpu_asks = client->repeats = 0;
    client->gpu_waits = client->gpu_session = false;
    client->program[0] = 0;
    list_init(&client->members);
}

void client_closed(struct core *core, unsigned slot, const char *why)
{
    struct client *client;

    if (slot >= core->client_slots || core->clients[slot].state == CLIENT_FREE)
        return;
    client = &core->clients[slot];
    gpu_client_closed(core, slot);
    part_members(core, slot, why ? why : "its connection closed", NULL);
    assert(list_empty(&client->members));
    assert(!client->waiting && !client->groups && !client->gpu_waits && !client->gpu_session);
    if (client_counts(client)) {
        struct user *user = user_get(core, client->payer, false);

        act_note(core, CORE_NOTE_CLIENT_GONE, CORE_BY_USER, client->uid, CORE_LOG_DEBUG,
                 "client pid %u: %s", client->pid, why ? why : "its connection closed");
        assert(user && user->clients);
        assert(core->nclients || client->uid == CORE_GPU_UID);
        core->nclients -= client->uid != CORE_GPU_UID;
        user->clients--;
        user_put(core, user);
    }
    client_set_state(core, slot, CLIENT_FREE);
}

void core_client_refuse(struct core *core, unsigned slot, enum cause cause, const char *format, ...)
{
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};
    bool kicked = cause == CAUSE_ABORTED;
    va_list args;

    assert(cause > CAUSE_NONE && cause < CAUSE_COUNT);
    assert(slot < core->client_slots && core->clients[slot].state != CLIENT_FREE);
    va_start(args, format);
    text_vadd(&text, format, args);
    va_end(args);
    act_note(core, CORE_NOTE_CLIENT_REFUSED, CORE_BY_USER, core->clients[slot].uid, CORE_LOG_INFO,
             "client pid %u: %s -> %s", core->clients[slot].pid, buf,
             kicked ? "kicked" : "refused");
    count_cause(core->counts.clients_refused, cause);
    if (core->clients[slot].state != CLIENT_AWAY) /* its boards tell it */
        act_to_client(core, slot,
                      (struct act_msg){.type = MSG_REFUSED,
                                       .refused = {.cause = cause, .text = act_text(core, buf)}});
    act_push(core, (struct core_action){.type = CORE_DO_CLIENT_CLOSE, .client_close = {slot}});
    client_closed(core, slot,
                  cause == CAUSE_PROTOCOL ? "it broke the protocol and was closed"
                  : kicked                ? "it was kicked"
                                          : "it was refused");
}

/* May another training client of this user come? Else it is refused. commd-gpu always: it is not
 * one of those that are counted. */
static bool client_may_come(struct core *core, unsigned slot)
{
    struct client *client = &core->clients[slot];
    const struct core_config *config = &core->config;
    struct user *user;
    char text[MSG_TEXT_MAX];

    assert(client->state == CLIENT_NEW);
    if (client->uid == CORE_GPU_UID)
        return true;
    if (!change_may_begin(core, slot, text, sizeof(text))) {
        core_client_refuse(core, slot, CAUSE_DENIED, "%s", text);
        return false;
    }
    if (core->nclients >= config->max_clients) {
        core_client_refuse(
            core, slot, CAUSE_QUOTA,
            "node %s has %u clients already: close some, or raise limits.max_clients",
            core_self_name(core), core->nclients);
        return false;
    }
    user = user_get(core, client->payer, true);
    if (!user || user->clients >= user_may(core, user, CORE_SHARE_CLIENTS)) {
        bool own = user && user->clients >= config->max_clients_per_user;

        core_client_refuse(core, slot, CAUSE_QUOTA,
                           "user %u has %u clients on node %s already%s: close some, or raise "
                           "limits.max_clients%s",
                           client->payer, user ? user->clients : 0, core_self_name(core),
                           own ? "" : ", half of what others leave", own ? "_per_user" : "");
        user_put(core, user);
        return false;
    }
    return true;
}

static void client_hello(struct core *core, unsigned slot, const struct msg_client_hello *msg)
{
    struct client *client = &core->clients[slot];
    char program[TEXT_QUOTED];
    struct user *user;

    assert(client->state == CLIENT_NEW && list_empty(&client->members));
    if (!msg_version_fits(msg->version)) {
        core_client_refuse(
            core, slot, CAUSE_PROTOCOL,
            "the client speaks protocol version %u, commd %s on node %s understands %u "
            "to %u: upgrade libcommd",
            msg->version, core->version, core_self_name(core), (unsigned)MSG_VERSION_OLDEST,
            (unsigned)MSG_VERSION);
        return;
    }
    if (!msg->admin) {
        restore_forget_twin(core, slot);
        if (!client_may_come(core, slot))
            return;
        user = user_get(core, client->payer, true);
        if (!user) { /* only commd-gpu comes here */
            core_client_refuse(core, slot, CAUSE_QUOTA, "node %s has too many users",
                               core_self_name(core));
            return;
        }
        user->clients++;
        core->nclients += client->uid != CORE_GPU_UID;
        core->counts.clients++;
        assert(client->uid == CORE_GPU_UID || core->nclients <= core->config.max_clients);
        act_note(core, CORE_NOTE_CLIENT_COME, CORE_BY_USER, client->uid, CORE_LOG_DEBUG,
                 "client pid %u, %s", client->pid, text_quote(program, msg->program));
    }
    client->admin = msg->admin;
    text_copy(client->program, sizeof(client->program), msg->program);
    client_set_state(core, slot, CLIENT_READY);
    act_to_client(core, slot, (struct act_msg){.type = MSG_WELCOME});
}

/* A live rank of @slot in an open or broken group. */
static struct member *member_in(struct core *core, unsigned slot, uint64_t id)
{
    struct group *group = group_find(core, id);
    struct member *member;

    if (!group || group->state == GROUP_COMMITTED)
        return NULL;
    list_each(member, &group->local, by_group) {
        assert(member->group == group && member->state == MEMBER_JOINED);
        if (member->client == slot)
            return member;
    }
    return NULL;
}

static void leave(struct core *core, unsigned slot, const struct msg_client_leave *msg)
{
    struct member *member = member_in(core, slot, msg->group);

    if (!member && core->clients[slot].returned)
        return;
    if (!member) {
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "leaves group %llu, which it is not in",
                           (unsigned long long)msg->group);
        return;
    }
    for (; member; member = member_in(core, slot, msg->group))
        group_rank_left(core, member, msg->ops);
}

static void abort_group(struct core *core, unsigned slot, const struct msg_client_abort *msg)
{
    struct member *member = member_in(core, slot, msg->group);

    if (!member) {
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "aborts group %llu, which it is not in",
                           (unsigned long long)msg->group);
        return;
    }
    group_abort(core, member->group, member, msg->text);
}

static void ask_absent(struct core *core, unsigned slot, const struct msg_client_ask_absent *msg)
{
    const struct member *member = member_in(core, slot, msg->group);

    if (member)
        absent_ask_client(core, member, msg);
    else
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "asks about group %llu, which it is not in",
                           (unsigned long long)msg->group);
}

void client_msg(struct core *core, const struct core_event *event)
{
    const struct msg *msg = event->msg;
    unsigned slot = event->client;
    struct client *client;

    assert(msg && msg->type != MSG_NONE);
    if (slot >= core->client_slots || core->clients[slot].state == CLIENT_FREE)
        return; /* refused while this was on its way */
    client = &core->clients[slot];
    if (client->state == CLIENT_AWAY) {
        if (msg->type == MSG_CLIENT_LEAVE && member_in(core, slot, msg->client_leave.group))
            leave(core, slot, &msg->client_leave);
        return;
    }
    if (client->state == CLIENT_NEW && msg->type != MSG_CLIENT_HELLO) {
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "the first message has to be a hello");
        return;
    }
    switch ((int)msg->type) { /* int: of all types a client may send these only */
    case MSG_CLIENT_HELLO:
        if (client->state == CLIENT_READY)
            core_client_refuse(core, slot, CAUSE_PROTOCOL, "a second hello");
        else
            client_hello(core, slot, &msg->client_hello);
        break;
    case MSG_CLIENT_JOIN:
        if (client->admin)
            core_client_refuse(core, slot, CAUSE_PROTOCOL, "an admin session cannot join groups");
        else
            join_request(core, slot, &msg->client_join);
        restore_asked(core, slot);
        break;
    case MSG_CLIENT_WITHDRAW:
        join_withdraw(core, slot, msg->client_withdraw.req);
        break;
    case MSG_CLIENT_LEAVE:
        leave(core, slot, &msg->client_leave);
        break;
    case MSG_CLIENT_ABORT:
        abort_group(core, slot, &msg->client_abort);
        break;
    case MSG_CLIENT_ASK_ABSENT:
        ask_absent(core, slot, &msg->client_ask_absent);
        break;
    case MSG_GPU_ASK:
        gpu_ask(core, slot, &msg->gpu_ask);
        break;
    case MSG_ADMIN:
        change_ask(core, slot, &msg->admin);
        break;
    default:
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "message type %u is not for clients",
                           (unsigned)msg->type);
        break;
    }
}
