/* state_write.c - records of the state file, written from what commd knows. How they are read back:
 * state_read.c. */
#include "daemon/state/state_priv.h"

#include "daemon/state/state.pb-c.h"

/* protobuf-c only reads it. */
static ProtobufCBinaryData field_of(const char *text)
{
    return (ProtobufCBinaryData){.len = text ? strlen(text) : 0, .data = (uint8_t *)text};
}

/* Returns where it lies. */
static bool append(struct state *state, enum kind kind, const ProtobufCMessage *msg, size_t *ret_at,
                   size_t *ret_len)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *room = file_room(state, len);

    if (!room)
        return false;
    protobuf_c_message_pack(msg, room);
    *ret_at = file_commit(state, kind, len);
    *ret_len = len;
    return true;
}

/* One that counts as long as nothing that was written later says otherwise. */
static bool append_live(struct state *state, enum kind kind, const ProtobufCMessage *msg,
                        uint64_t key, uint64_t key2)
{
    size_t at, len;

    return append(state, kind, msg, &at, &len) && live_add(state, kind, key, key2, at, len);
}

/* One that ends others. */
static void append_end(struct state *state, enum kind kind, const ProtobufCMessage *msg)
{
    size_t at, len;

    append(state, kind, msg, &at, &len);
}

void state_counts(struct state *state, const struct core_counts *counts)
{
    CommdState__Counts msg = COMMD_STATE__COUNTS__INIT;
    struct live *before = live_find(state, KIND_COUNTS, 0, 0, true);

    msg.clients = counts->clients;
    msg.n_clients_refused = msg.n_joins_failed = msg.n_groups_broken = CAUSE_COUNT;
    msg.clients_refused = (uint64_t *)counts->clients_refused;
    msg.joins_failed = (uint64_t *)counts->joins_failed;
    msg.groups_opened = counts->groups_opened;
    msg.groups_broken = (uint64_t *)counts->groups_broken;
    msg.groups_revoked = counts->groups_revoked;
    msg.n_groups_recovered = CORE_RECOVERED_KINDS;
    msg.groups_recovered = (uint64_t *)counts->groups_recovered;
    msg.ranks_lost = counts->ranks_lost;
    msg.engine_starts = counts->engine_starts;
    msg.engine_losses = counts->engine_losses;
    msg.gpu_starts = counts->gpu_starts;
    msg.gpu_losses = counts->gpu_losses;
    msg.gpu_sessions = counts->gpu_sessions;
    if (append_live(state, KIND_COUNTS, &msg.base, 0, 0) && before)
        live_forget(state, before);
}

void state_client(struct state *state, const struct state_client *client)
{
    CommdState__Client msg = COMMD_STATE__CLIENT__INIT;
    unsigned slot = client->is.slot;

    assert(slot < STATE_SLOTS_MAX && !live_client(state, slot));
    msg.id = ++state->last_id;
    msg.slot = slot;
    msg.uid = client->is.uid;
    msg.payer = client->is.payer;
    msg.pid = client->is.pid;
    msg.since_ms = client->is.since_ms;
    msg.program = field_of(client->is.program);
    msg.token = (ProtobufCBinaryData){STATE_TOKEN, (uint8_t *)client->token};
    msg.command = field_of(client->command);
    msg.job = field_of(client->job);
    if (append_live(state, KIND_CLIENT, &msg.base, msg.id, slot))
        live_set_client(state, slot, msg.id);
}

void state_client_gone(struct state *state, unsigned slot)
{
    CommdState__ClientGone msg = COMMD_STATE__CLIENT_GONE__INIT;

    msg.id = live_client(state, slot);
    if (!msg.id)
        return; /* it was never welcome */
    append_end(state, KIND_CLIENT_GONE, &msg.base);
    live_forget_client(state, msg.id);
}

struct group_lists {
    ProtobufCBinaryData *nodes;
    uint32_t *node, *pid, *was, *rank, *req;
    uint64_t *client;
};

static void group_lists_fini(struct group_lists *lists)
{
    free(lists->nodes);
    free(lists->node);
    free(lists->client);
}

/* One piece for what has four bytes. */
static bool group_lists_init(struct group_lists *lists, const struct core_group_view *view)
{
    lists->nodes = calloc(view->nnodes, sizeof(*lists->nodes));
    lists->node = calloc((size_t)view->size * 3 + (size_t)view->nlocal * 2, sizeof(*lists->node));
    lists->client = calloc(view->nlocal + 1, sizeof(*lists->client));
    if (!lists->nodes || !lists->node || !lists->client)
        return false;
    lists->pid = lists->node + view->size;
    lists->was = lists->pid + view->size;
    lists->rank = lists->was + view->size;
    lists->req = lists->rank + view->nlocal;
    return true;
}

static void fill_group_lists(const struct state *state, const struct core *core,
                             const struct core_group_view *view, struct group_lists *lists,
                             CommdState__Group *msg)
{
    unsigned rank, slot;
    uint32_t req;

    for (unsigned i = 0; i < view->nnodes; i++) {
        struct core_peer_view peer;

        if (core_peer_at(core, view->nodes[i], &peer))
            lists->nodes[i] = field_of(peer.name);
    }
    for (uint32_t i = 0; i < view->size; i++) {
        lists->node[i] = view->members[i].node;
        lists->pid[i] = view->members[i].pid;
        lists->was[i] = view->members[i].was;
    }
    for (unsigned i = 0;
         i < view->nlocal && core_group_local(core, view->id, i, &rank, &slot, &req); i++) {
        lists->rank[i] = rank;
        lists->req[i] = req;
        lists->client[i] = live_client(state, slot); /* 0: its client is not kept */
        msg->n_rank = i + 1;
    }
    msg->n_nodes = view->nnodes;
    msg->nodes = lists->nodes;
    msg->n_member_node = msg->n_member_pid = view->size;
    msg->member_node = lists->node;
    msg->member_pid = lists->pid;
    msg->n_member_was = view->follows ? view->size : 0;
    msg->member_was = lists->was;
    msg->n_rank_req = msg->n_rank_client = msg->n_rank;
    msg->rank = lists->rank;
    msg->rank_req = lists->req;
    msg->rank_client = lists->client;
}

void state_group(struct state *state, const struct core *core, uint64_t id, bool committed)
{
    CommdState__Group msg = COMMD_STATE__GROUP__INIT;
    _cleanup_(group_lists_fini) struct group_lists lists = {0};
    struct core_group_view view;

    assert(!live_find(state, KIND_GROUP, id, 0, true));
    if (!core_group(core, id, &view) || !view.members)
        return;
    if (!group_lists_init(&lists, &view)) {
        file_room(state, SIZE_MAX); /* it cannot be written down: nothing is kept any more */
        return;
    }
    fill_group_lists(state, core, &view, &lists, &msg);
    msg.id = id;
    msg.epoch = view.epoch;
    msg.name = field_of(view.name);
    msg.uid = view.uid;
    msg.payer = view.payer;
    msg.latency_us = view.net.latency_us;
    msg.mbytes_s = view.net.mbytes_s;
    msg.gpu = view.gpu;
    msg.committed = committed;
    msg.follows = view.follows;
    append_live(state, KIND_GROUP, &msg.base, id, 0);
}

static void put_step(struct state *state, uint64_t id, enum state_step step, uint32_t rank,
                     uint32_t req)
{
    CommdState__GroupStep msg = COMMD_STATE__GROUP_STEP__INIT;
    struct live *before = live_find(state, KIND_GROUP_STEP, id, step_key(step, rank), false);

    if (!live_find(state, KIND_GROUP, id, 0, true))
        return; /* nothing is kept of it */
    msg.group = id;
    msg.step = step;
    msg.rank = rank;
    msg.req = req;
    if (append_live(state, KIND_GROUP_STEP, &msg.base, id, step_key(step, rank)) && before)
        live_forget(state, before);
}

void state_group_step(struct state *state, uint64_t id, enum state_step step)
{
    put_step(state, id, step, 0, 0);
}

void state_rank_asked(struct state *state, uint64_t id, uint32_t rank, uint32_t req)
{
    put_step(state, id, STATE_ASKED, rank, req);
}

void state_rank_gone(struct state *state, const struct core_rank_gone *gone)
{
    CommdState__RankGone msg = COMMD_STATE__RANK_GONE__INIT;

    if (!live_find(state, KIND_GROUP, gone->group, 0, true) ||
        live_find(state, KIND_RANK_GONE, gone->group, gone->rank, false))
        return; /* nothing is kept of the group; or it stands there already */
    msg.group = gone->group;
    msg.rank = gone->rank;
    msg.ops = gone->ops;
    msg.pid = gone->pid;
    msg.cause = gone->cause;
    append_live(state, KIND_RANK_GONE, &msg.base, gone->group, gone->rank);
}

void state_broken(struct state *state, const struct core_group_broken *broken)
{
    CommdState__GroupBroken msg = COMMD_STATE__GROUP_BROKEN__INIT;

    if (broken->again || !live_find(state, KIND_GROUP, broken->group, 0, true))
        return;
    msg.group = broken->group;
    msg.cause = broken->cause;
    msg.rank = broken->rank;
    msg.pid = broken->pid;
    msg.node = field_of(broken->node);
    msg.text = field_of(broken->text);
    append_live(state, KIND_BROKEN, &msg.base, broken->group, 0);
}

void state_group_gone(struct state *state, uint64_t id)
{
    CommdState__GroupGone msg = COMMD_STATE__GROUP_GONE__INIT;

    if (!live_find(state, KIND_GROUP, id, 0, true))
        return;
    msg.group = id;
    append_end(state, KIND_GROUP_GONE, &msg.base);
    live_forget_group(state, id);
}

void state_program(struct state *state, enum state_program which, const struct state_engine *engine)
{
    CommdState__Engine msg = COMMD_STATE__ENGINE__INIT;
    enum kind kind = which == STATE_GPU ? KIND_GPU : KIND_ENGINE;
    struct live *before = live_find(state, kind, 0, 0, true);

    if (!engine && !before)
        return;
    if (engine) {
        msg.pid = engine->pid;
        msg.uid = engine->uid;
        msg.nodes = engine->nodes;
        msg.incarnation = engine->incarnation;
        msg.secret = (ProtobufCBinaryData){STATE_SECRET, (uint8_t *)engine->secret};
        msg.addr = (ProtobufCBinaryData){engine->addr_len, (uint8_t *)engine->addr};
        msg.text = field_of(engine->text);
    }
    if (append_live(state, kind, &msg.base, 0, 0) && before)
        live_forget(state, before);
}

void state_arena(struct state *state, const struct state_arena *arena)
{
    CommdState__Arena msg = COMMD_STATE__ARENA__INIT;

    msg.client = live_client(state, arena->slot);
    if (!msg.client)
        return;
    msg.arena = arena->id;
    msg.size = arena->size;
    append_live(state, KIND_ARENA, &msg.base, msg.client, arena->id);
}

void state_entry(struct state *state, const struct state_entry *event)
{
    CommdState__Event msg = COMMD_STATE__EVENT__INIT;

    msg.number = event->number;
    msg.life = event->life;
    msg.wall_ms = event->wall_ms;
    msg.total = event->total;
    msg.whose = (uint64_t)(event->whose + 1);
    msg.payer = (uint64_t)(event->payer + 1);
    msg.what = field_of(event->what);
    msg.text = field_of(event->text);
    if (file_event_room(state, commd_state__event__get_packed_size(&msg)))
        append_live(state, KIND_EVENT, &msg.base, msg.number, 0);
}

/* No record says so: who reads them adds them to a diary in their order, which pushes out the same.
 */
void state_entry_gone(struct state *state, uint64_t number)
{
    struct live *live = live_find(state, KIND_EVENT, number, 0, true);

    if (live)
        live_forget(state, live);
}

void state_arena_gone(struct state *state, unsigned slot, uint64_t id)
{
    CommdState__ArenaGone msg = COMMD_STATE__ARENA_GONE__INIT;
    uint64_t client = live_client(state, slot);
    struct live *live = client ? live_find(state, KIND_ARENA, client, id, false) : NULL;

    if (!live)
        return;
    msg.client = client;
    msg.arena = id;
    append_end(state, KIND_ARENA_GONE, &msg.base);
    live_forget(state, live);
}
