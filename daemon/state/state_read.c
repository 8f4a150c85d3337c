/* state_read.c - records of the state file, read back as what a stranger sent. How they are
 * written: state_write.c.
 *
 * A record that is found is decoded for what it is about (record_found()), and those that count in
 * the end once more, whole, for who takes over (state_read()). Here lengths and bounds are looked
 * at, and that lists which belong together have one length; whether a client, a group, a rank can
 * be there the core decides. */
#include "daemon/state/state_priv.h"

#include "daemon/state/state.pb-c.h"
#include "shm/proto/codec.h"

/* ---- what a record is about ------------------------------------------------------------------ */

static void msg_freep(void *msg)
{
    ProtobufCMessage *one = *(ProtobufCMessage **)msg;

    if (one)
        protobuf_c_message_free_unpacked(one, NULL);
}

#define DECODED(type, Type, bytes, len)                                                            \
    _cleanup_(msg_freep) CommdState__##Type *msg = commd_state__##type##__unpack(NULL, len, bytes)

/* There is one of its kind, and the last counts. */
static void found_only(struct state *state, enum kind kind, size_t len, size_t at)
{
    struct live *before = live_find(state, kind, 0, 0, true);

    if (before)
        live_forget(state, before);
    live_add(state, kind, 0, 0, at, len);
}

static const char *found_client(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(client, Client, bytes, len);

    if (!msg)
        return "a client cannot be decoded";
    if (!msg->id || msg->id == UINT64_MAX || msg->slot >= STATE_SLOTS_MAX ||
        live_client(state, msg->slot) || live_find(state, KIND_CLIENT, msg->id, 0, true))
        return "a client that cannot be there";
    if (live_add(state, KIND_CLIENT, msg->id, msg->slot, at, len) &&
        live_set_client(state, msg->slot, msg->id))
        state->last_id = MAX(state->last_id, msg->id);
    return NULL;
}

static const char *found_client_gone(struct state *state, const uint8_t *bytes, size_t len)
{
    DECODED(client_gone, ClientGone, bytes, len);

    if (!msg)
        return "the end of a client cannot be decoded";
    live_forget_client(state, msg->id);
    return NULL;
}

static const char *found_group(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(group, Group, bytes, len);

    if (!msg)
        return "a group cannot be decoded";
    if (!msg->id || live_find(state, KIND_GROUP, msg->id, 0, true))
        return "a group that is there already";
    live_add(state, KIND_GROUP, msg->id, 0, at, len);
    return NULL;
}

static const char *found_group_step(struct state *state, const uint8_t *bytes, size_t len,
                                    size_t at)
{
    DECODED(group_step, GroupStep, bytes, len);
    struct live *before;

    if (!msg)
        return "a step of a group cannot be decoded";
    if (!live_find(state, KIND_GROUP, msg->group, 0, true))
        return "a step of no group";
    before = live_find(state, KIND_GROUP_STEP, msg->group, step_key(msg->step, msg->rank), false);
    if (before)
        live_forget(state, before);
    live_add(state, KIND_GROUP_STEP, msg->group, step_key(msg->step, msg->rank), at, len);
    return NULL;
}

static const char *found_rank_gone(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(rank_gone, RankGone, bytes, len);

    if (!msg)
        return "the end of a rank cannot be decoded";
    if (!live_find(state, KIND_GROUP, msg->group, 0, true))
        return "the end of a rank of no group";
    live_add(state, KIND_RANK_GONE, msg->group, msg->rank, at, len);
    return NULL;
}

static const char *found_broken(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(group_broken, GroupBroken, bytes, len);

    if (!msg)
        return "what broke a group cannot be decoded";
    if (!live_find(state, KIND_GROUP, msg->group, 0, true) ||
        live_find(state, KIND_BROKEN, msg->group, 0, true))
        return "what broke no group";
    live_add(state, KIND_BROKEN, msg->group, 0, at, len);
    return NULL;
}

static const char *found_group_gone(struct state *state, const uint8_t *bytes, size_t len)
{
    DECODED(group_gone, GroupGone, bytes, len);

    if (!msg)
        return "the end of a group cannot be decoded";
    live_forget_group(state, msg->group);
    return NULL;
}

static const char *found_arena(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(arena, Arena, bytes, len);

    if (!msg)
        return "an arena cannot be decoded";
    if (!live_find(state, KIND_CLIENT, msg->client, 0, true) ||
        live_find(state, KIND_ARENA, msg->client, msg->arena, false))
        return "an arena of no client";
    live_add(state, KIND_ARENA, msg->client, msg->arena, at, len);
    return NULL;
}

static const char *found_arena_gone(struct state *state, const uint8_t *bytes, size_t len)
{
    DECODED(arena_gone, ArenaGone, bytes, len);
    struct live *live;

    if (!msg)
        return "the end of an arena cannot be decoded";
    live = live_find(state, KIND_ARENA, msg->client, msg->arena, false);
    if (live)
        live_forget(state, live);
    return NULL;
}

static const char *found_event(struct state *state, const uint8_t *bytes, size_t len, size_t at)
{
    DECODED(event, Event, bytes, len);

    if (!msg)
        return "an event cannot be decoded";
    if (live_find(state, KIND_EVENT, msg->number, 0, true))
        return "an event that is there already";
    live_add(state, KIND_EVENT, msg->number, 0, at, len);
    return NULL;
}

void record_found(struct state *state, uint32_t kind, const uint8_t *bytes, size_t len, size_t at)
{
    const char *why = NULL;

    if (!state->whole)
        return;
    switch ((int)kind) { /* int: another version has other kinds, too */
    case KIND_COUNTS:
    case KIND_ENGINE:
    case KIND_GPU:
        found_only(state, (enum kind)kind, len, at);
        break;
    case KIND_CLIENT:
        why = found_client(state, bytes, len, at);
        break;
    case KIND_CLIENT_GONE:
        why = found_client_gone(state, bytes, len);
        break;
    case KIND_GROUP:
        why = found_group(state, bytes, len, at);
        break;
    case KIND_GROUP_STEP:
        why = found_group_step(state, bytes, len, at);
        break;
    case KIND_RANK_GONE:
        why = found_rank_gone(state, bytes, len, at);
        break;
    case KIND_BROKEN:
        why = found_broken(state, bytes, len, at);
        break;
    case KIND_GROUP_GONE:
        why = found_group_gone(state, bytes, len);
        break;
    case KIND_ARENA:
        why = found_arena(state, bytes, len, at);
        break;
    case KIND_ARENA_GONE:
        why = found_arena_gone(state, bytes, len);
        break;
    case KIND_EVENT:
        why = found_event(state, bytes, len, at);
        break;
    default:
        break;
    }
    if (why)
        file_drop(state, why);
}

#define STATE_WALL_END UINT64_C(253402300800000) /* the year 10000 */

/* ---- all that it says ------------------------------------------------------------------------ */

/* A name. */
static bool take_name(const ProtobufCBinaryData *from, char *to, size_t cap)
{
    size_t bad;

    if (from->len >= cap || !codec_text_clean((const char *)from->data, from->len, &bad))
        return false;
    if (from->len)
        memcpy(to, from->data, from->len);
    to[from->len] = 0;
    return true;
}

/* A line for people: what is not clean becomes '?'. */
static bool take_text(const ProtobufCBinaryData *from, char *to, size_t cap)
{
    size_t bad, at = 0;

    if (from->len >= cap)
        return false;
    if (from->len)
        memcpy(to, from->data, from->len);
    to[from->len] = 0;
    while (!codec_text_clean(to + at, from->len - at, &bad)) {
        at += bad;
        to[at++] = '?';
    }
    return true;
}

static bool take_list(const uint64_t *from, size_t n, uint64_t *to, size_t room)
{
    if (n > room)
        return false;
    if (n)
        memcpy(to, from, n * sizeof(*to));
    return true;
}

static bool read_counts(const struct live *live, const uint8_t *bytes, const struct state_ops *ops,
                        void *arg)
{
    DECODED(counts, Counts, bytes, live->len);
    struct core_counts counts = {0};

#define TAKE(list_) take_list(msg->list_, msg->n_##list_, counts.list_, ARRAY_LEN(counts.list_))
    if (!msg || !TAKE(clients_refused) || !TAKE(joins_failed) || !TAKE(groups_broken) ||
        !TAKE(groups_recovered))
        return false;
    counts.clients = msg->clients;
    counts.groups_opened = msg->groups_opened;
    counts.groups_revoked = msg->groups_revoked;
    counts.ranks_lost = msg->ranks_lost;
    counts.engine_starts = msg->engine_starts;
    counts.engine_losses = msg->engine_losses;
    counts.gpu_starts = msg->gpu_starts;
    counts.gpu_losses = msg->gpu_losses;
    counts.gpu_sessions = msg->gpu_sessions;
#undef TAKE
    if (ops->counts)
        ops->counts(arg, &counts);
    return true;
}

static bool read_client(const struct live *live, const uint8_t *bytes, const struct state_ops *ops,
                        void *arg)
{
    DECODED(client, Client, bytes, live->len);
    char program[MSG_NAME_MAX], command[MSG_COMMAND_MAX], job[MSG_NAME_MAX];
    struct state_client client;

    if (!msg || msg->token.len != STATE_TOKEN ||
        !take_name(&msg->program, program, sizeof(program)) ||
        !take_text(&msg->command, command, sizeof(command)) ||
        !take_text(&msg->job, job, sizeof(job)))
        return false;
    client = (struct state_client){.is = {.slot = (unsigned)live->key2,
                                          .uid = msg->uid,
                                          .payer = msg->payer,
                                          .pid = msg->pid,
                                          .since_ms = msg->since_ms,
                                          .program = program},
                                   .command = command,
                                   .job = job};
    memcpy(client.token, msg->token.data, STATE_TOKEN);
    return !ops->client || ops->client(arg, &client);
}

static bool read_arena(struct state *state, const struct live *live, const uint8_t *bytes,
                       const struct state_ops *ops, void *arg)
{
    DECODED(arena, Arena, bytes, live->len);
    struct live *client = live_find(state, KIND_CLIENT, live->key, 0, true);
    struct state_arena arena;

    if (!msg || !client)
        return false;
    arena =
        (struct state_arena){.slot = (unsigned)client->key2, .id = msg->arena, .size = msg->size};
    return !ops->arena || ops->arena(arg, &arena);
}

struct kept_lists {
    char (*nodes)[MSG_NAME_MAX];
    struct msg_member *members;
    struct core_kept_rank *ranks;
};

static void kept_lists_fini(struct kept_lists *lists)
{
    free(lists->nodes);
    free(lists->members);
    free(lists->ranks);
}

/* The request of @rank that waits for an answer; @req: as it was when the group was written down.
 */
static uint32_t asked_last(const struct state *state, uint64_t group, uint32_t rank, uint32_t req)
{
    const struct live *live =
        live_find(state, KIND_GROUP_STEP, group, step_key(STATE_ASKED, rank), false);

    if (!live)
        return req;
    DECODED(group_step, GroupStep, file_record(state, live), live->len);
    return msg ? msg->req : req;
}

static bool take_lists(const struct state *state, const CommdState__Group *msg,
                       struct kept_lists *lists)
{
    size_t nnodes = msg->n_nodes, size = msg->n_member_node, nranks = msg->n_rank;

    if (!nnodes || nnodes > MSG_MAX_NODES || !size || size > MSG_MAX_RANKS || nranks > size ||
        msg->n_member_pid != size || msg->n_rank_req != nranks || msg->n_rank_client != nranks ||
        msg->n_member_was != (msg->follows ? size : 0))
        return false;
    lists->nodes = calloc(nnodes, sizeof(*lists->nodes));
    lists->members = calloc(size, sizeof(*lists->members));
    lists->ranks = calloc(nranks + 1, sizeof(*lists->ranks));
    if (!lists->nodes || !lists->members || !lists->ranks)
        return false;
    for (size_t i = 0; i < nnodes; i++)
        if (!take_name(&msg->nodes[i], lists->nodes[i], sizeof(lists->nodes[i])))
            return false;
    for (size_t i = 0; i < size; i++)
        lists->members[i] = (struct msg_member){.node = msg->member_node[i],
                                                .pid = msg->member_pid[i],
                                                .was = msg->follows ? msg->member_was[i] : 0};
    for (size_t i = 0; i < nranks; i++) {
        struct live *client = live_find(state, KIND_CLIENT, msg->rank_client[i], 0, true);

        lists->ranks[i] = (struct core_kept_rank){
            .rank = msg->rank[i],
            .req = asked_last(state, msg->id, msg->rank[i], msg->rank_req[i]),
            .slot = client ? (unsigned)client->key2 : CORE_NOBODY};
    }
    return true;
}

static enum core_group_state step_of(const struct state *state, const CommdState__Group *msg)
{
    if (live_find(state, KIND_GROUP_STEP, msg->id, STATE_LEFT, false))
        return CORE_GROUP_LEFT;
    return msg->committed && !live_find(state, KIND_GROUP_STEP, msg->id, STATE_OPEN, false)
               ? CORE_GROUP_COMMITTED
               : CORE_GROUP_OPEN;
}

static bool read_group(struct state *state, const struct live *live, const uint8_t *bytes,
                       const struct state_ops *ops, void *arg)
{
    DECODED(group, Group, bytes, live->len);
    _cleanup_(kept_lists_fini) struct kept_lists lists = {0};
    char name[MSG_GROUP_MAX];
    struct core_kept_group group;

    if (!msg || !take_name(&msg->name, name, sizeof(name)) || !take_lists(state, msg, &lists))
        return false;
    group = (struct core_kept_group){.id = msg->id,
                                     .epoch = msg->epoch,
                                     .follows = msg->follows,
                                     .name = name,
                                     .uid = msg->uid,
                                     .payer = msg->payer,
                                     .net = {msg->latency_us, msg->mbytes_s},
                                     .gpu = msg->gpu,
                                     .size = (uint32_t)msg->n_member_node,
                                     .nnodes = (uint32_t)msg->n_nodes,
                                     .nranks = (uint32_t)msg->n_rank,
                                     .nodes = (const char(*)[MSG_NAME_MAX])lists.nodes,
                                     .members = lists.members,
                                     .ranks = lists.ranks,
                                     .state = step_of(state, msg)};
    if (group.state == CORE_GROUP_LEFT)
        group.nranks = 0;
    return !ops->group || ops->group(arg, &group);
}

static bool read_rank_gone(const struct live *live, const uint8_t *bytes,
                           const struct state_ops *ops, void *arg)
{
    DECODED(rank_gone, RankGone, bytes, live->len);
    struct core_rank_gone gone;

    if (!msg || msg->cause >= CAUSE_COUNT)
        return false;
    gone = (struct core_rank_gone){.group = msg->group,
                                   .rank = msg->rank,
                                   .ops = msg->ops,
                                   .pid = msg->pid,
                                   .cause = (enum cause)msg->cause,
                                   .text = "",
                                   .again = true};
    return !ops->rank_gone || ops->rank_gone(arg, &gone);
}

static bool read_broken(const struct live *live, const uint8_t *bytes, const struct state_ops *ops,
                        void *arg)
{
    DECODED(group_broken, GroupBroken, bytes, live->len);
    char node[MSG_NAME_MAX], text[MSG_TEXT_MAX];
    struct core_group_broken broken;

    if (!msg || msg->cause >= CAUSE_COUNT || !take_name(&msg->node, node, sizeof(node)) ||
        !take_text(&msg->text, text, sizeof(text)))
        return false;
    broken = (struct core_group_broken){.group = msg->group,
                                        .cause = (enum cause)msg->cause,
                                        .rank = msg->rank,
                                        .pid = msg->pid,
                                        .node = node,
                                        .text = text,
                                        .again = true};
    return !ops->broken || ops->broken(arg, &broken);
}

static bool read_one(struct state *state, const struct live *live, const struct state_ops *ops,
                     void *arg)
{
    const uint8_t *bytes = file_record(state, live);

    switch (live->kind) {
    case KIND_COUNTS:
        return read_counts(live, bytes, ops, arg);
    case KIND_CLIENT:
        return read_client(live, bytes, ops, arg);
    case KIND_GROUP:
        return read_group(state, live, bytes, ops, arg);
    case KIND_RANK_GONE:
        return read_rank_gone(live, bytes, ops, arg);
    case KIND_BROKEN:
        return read_broken(live, bytes, ops, arg);
    case KIND_ARENA:
        return read_arena(state, live, bytes, ops, arg);
    case KIND_GROUP_STEP:
        return true; /* step_of() */
    case KIND_ENGINE:
    case KIND_GPU:
        return true; /* state_read_program() */
    case KIND_EVENT:
        return true; /* state_read_events() */
    case KIND_CLIENT_GONE:
    case KIND_GROUP_GONE:
    case KIND_ARENA_GONE:
        break; /* these only end others */
    }
    abort();
}

/* It cannot be used: nor can what belongs to it, which came later. */
static void refuse_record(struct state *state, struct live *live)
{
    static const char *const words[] = {
        [KIND_COUNTS] = "counts that cannot be",
        [KIND_CLIENT] = "a client that cannot be",
        [KIND_GROUP] = "a group that cannot be",
        [KIND_RANK_GONE] = "the end of a rank that cannot be",
        [KIND_BROKEN] = "what broke a group cannot be",
        [KIND_ARENA] = "an arena that cannot be",
        [KIND_EVENT] = "an event that cannot be",
    };

    file_drop(state, words[live->kind]);
    if (live->kind == KIND_CLIENT)
        state_client_gone(state, (unsigned)live->key2);
    else if (live->kind == KIND_GROUP)
        state_group_gone(state, live->key);
    else
        live_forget(state, live);
}

static bool read_event(const uint8_t *bytes, size_t len,
                       bool (*event)(void *arg, const struct state_entry *event), void *arg)
{
    char what[STATE_WHAT], text[STATE_TEXT];
    DECODED(event, Event, bytes, len);

    if (!msg || msg->whose > UINT32_MAX + UINT64_C(1) || msg->payer > UINT32_MAX + UINT64_C(1) ||
        msg->wall_ms >= STATE_WALL_END || !take_name(&msg->what, what, sizeof(what)) ||
        !take_text(&msg->text, text, sizeof(text)))
        return false;
    return event(arg, &(struct state_entry){.life = msg->life,
                                            .number = msg->number,
                                            .wall_ms = msg->wall_ms,
                                            .total = msg->total,
                                            .whose = (int64_t)msg->whose - 1,
                                            .payer = (int64_t)msg->payer - 1,
                                            .what = what,
                                            .text = text});
}

void state_read_events(struct state *state,
                       bool (*event)(void *arg, const struct state_entry *event), void *arg)
{
    struct live *live, *next;

    for (live = TAILQ_FIRST(&state->all); live; live = next) {
        bool fits =
            live->kind != KIND_EVENT || read_event(file_record(state, live), live->len, event, arg);

        next = TAILQ_NEXT(live, all); /* now: what came before may be gone */
        if (!fits)
            refuse_record(state, live);
    }
}

bool state_read_program(const struct state *state, enum state_program which,
                        struct state_engine *ret_engine)
{
    const struct live *live =
        live_find(state, which == STATE_GPU ? KIND_GPU : KIND_ENGINE, 0, 0, true);
    _cleanup_(msg_freep) CommdState__Engine *msg =
        live ? commd_state__engine__unpack(NULL, live->len, file_record(state, live)) : NULL;

    if (!msg || !msg->pid || msg->secret.len != STATE_SECRET || msg->addr.len > MSG_ADDR_MAX ||
        !take_text(&msg->text, ret_engine->text, sizeof(ret_engine->text)))
        return false;
    ret_engine->pid = msg->pid;
    ret_engine->uid = msg->uid;
    ret_engine->nodes = msg->nodes;
    ret_engine->incarnation = msg->incarnation;
    memcpy(ret_engine->secret, msg->secret.data, STATE_SECRET);
    explicit_bzero(msg->secret.data, STATE_SECRET); /* @msg is freed */
    ret_engine->addr_len = (uint32_t)msg->addr.len;
    if (msg->addr.len)
        memcpy(ret_engine->addr, msg->addr.data, msg->addr.len);
    return true;
}

void state_read(struct state *state, const struct state_ops *ops, void *arg)
{
    struct live *before = NULL, *live;

    for (;;) {
        live = before ? TAILQ_NEXT(before, all) : TAILQ_FIRST(&state->all);
        if (!live)
            return;
        if (read_one(state, live, ops, arg))
            before = live;
        else
            refuse_record(state, live);
    }
}
