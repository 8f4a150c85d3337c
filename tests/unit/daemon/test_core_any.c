/* test_core_any.c - any client, peer or engine may send anything at any time: the core never
 * aborts, its views hold, nothing is left when all have gone, and the same events give the same
 * actions. Odd seeds are tame: they seldom say what ends everything, so that groups come to
 * life first. */
#include "shm/util/restarts.h"
#include "tests/unit/daemon/core_bench.h"

enum { RANKS = 4, KEPT_IDS = 20 }; /* of groups that are restored */

struct fuzz {
    struct bench *bench;
    uint64_t random;
    bool tame; /* seldom says what ends everything, so that groups come to life */
    struct msg_member members[8];
    char names[4][MSG_NAME_MAX];
};

static uint64_t draw(struct fuzz *fuzz, uint64_t below)
{
    return core_mix(fuzz->random++) % below;
}

/* Small numbers that mean something, and large ones that should not. */
static uint64_t number(struct fuzz *fuzz)
{
    static const uint64_t odd[] = {0, 1, 2, 65535, 65536, INT32_MAX, UINT32_MAX, UINT64_MAX};
    struct core_group_view view;

    switch (draw(fuzz, 4)) {
    case 0:
        return odd[draw(fuzz, ARRAY_LEN(odd))];
    case 1:
        if (core_group_at(fuzz->bench->core, (unsigned)draw(fuzz, 4), &view))
            return view.id;
        return 1;
    case 2:
        return fuzz->bench->core->join_count << 17 | draw(fuzz, 8);
    default:
        return draw(fuzz, 5);
    }
}

/* The id of a group that is there, mostly. */
static uint64_t group_id(struct fuzz *fuzz)
{
    struct core_group_view view;

    if (draw(fuzz, 10) && (core_group_at(fuzz->bench->core, (unsigned)draw(fuzz, 3), &view) ||
                           core_group_at(fuzz->bench->core, 0, &view)))
        return view.id;
    return number(fuzz);
}

static uint32_t small(struct fuzz *fuzz)
{
    return (uint32_t)(draw(fuzz, 30) ? draw(fuzz, 4) : number(fuzz));
}

static void fill_commit(struct fuzz *fuzz, struct msg_commit *m, unsigned from)
{
    unsigned n = 1 + (unsigned)draw(fuzz, 3);

    m->group = draw(fuzz, 3)
                   ? home_group_id(fuzz->bench->core->peers[from % 3].incarnation, draw(fuzz, 1000))
                   : number(fuzz);
    m->uid = 1000;
    m->size = 1 + (uint32_t)draw(fuzz, 8);
    m->nnodes = n;
    for (unsigned i = 0; i < n; i++)
        text_copy(fuzz->names[i], MSG_NAME_MAX, draw(fuzz, 20) ? nodes[i] : "zz");
    for (unsigned i = 0; i < m->size; i++)
        fuzz->members[i] = (struct msg_member){.node = draw(fuzz, 30) ? (uint32_t)draw(fuzz, n) : 9,
                                               .pid = small(fuzz),
                                               .join = number(fuzz)};
    m->members = fuzz->members;
    m->nodes = fuzz->names;
    m->name[0] = 'g';
    m->name[1] = (char)('0' + draw(fuzz, 3));
    text_copy(m->home, sizeof(m->home), nodes[from % 3]);
}

/* A commit that the core has to take: of a member that waits, from a home that may send it. */
static void fill_real_commit(struct fuzz *fuzz, struct msg_commit *m, unsigned from)
{
    struct core *core = fuzz->bench->core;
    struct member *member = NULL, *other;
    struct peer *home = &core->peers[from % 3];

    list_each(other, &core->waiting, waiting)
        if (other->home == (int)from && other->state != MEMBER_COMMITTED)
            member = other;

    fill_commit(fuzz, m, from);
    if (!member || member->size > 8)
        return;
    m->group = home_group_id(home->incarnation, home->committed + 1);
    m->nnodes = 1 + (uint32_t)draw(fuzz, 3);
    m->size = member->size;
    text_copy(m->name, sizeof(m->name), member->name);
    for (unsigned i = 0; i < 3; i++)
        text_copy(fuzz->names[i], MSG_NAME_MAX, nodes[i]);
    for (unsigned i = 0; i < m->size; i++)
        fuzz->members[i] = (struct msg_member){.node = m->nnodes - 1, .join = 1 + i};
    fuzz->members[member->rank] = (struct msg_member){.node = 0, .join = member->join};
}

/* Engines that come up, so that groups can open. */
static void fill_real_engine(struct fuzz *fuzz, struct msg *msg, unsigned from)
{
    struct core *core = fuzz->bench->core;

    if (msg->type == MSG_ENGINE_PEER_READY || msg->type == MSG_ENGINE_PEER_DOWN) {
        msg->engine_peer.peer = 1 + (uint32_t)draw(fuzz, 2);
        msg->engine_peer.engine = core->peers[msg->engine_peer.peer].engine;
    } else if (msg->type == MSG_ENGINE_READY) {
        msg->engine_ready.engine = core->engine.incarnation;
        msg->engine_ready.mine = core->peers[from % 3].engine;
    } else if (msg->type == MSG_ENGINE_STATE) {
        msg->engine_state.engine = 1;
        msg->engine_state.addr_len = 8;
    } else if (msg->type == MSG_COMMIT) {
        fill_real_commit(fuzz, &msg->commit, from);
    }
}

/* What the core itself said of the group last. */
static uint64_t bond_key(const struct fuzz *fuzz, uint64_t id)
{
    const struct group *group = group_find(fuzz->bench->core, id);

    return group ? group->bond_key : 0;
}

/* Its groups, those of others, and what is not there. */
static void fill_admin(struct fuzz *fuzz, struct msg_admin *m)
{
    static const char *const verbs[] = {"kick",    "kick_pid",      "kick_rank", "drain",
                                        "undrain", "set_log_level", "reload",    "status"};
    static const char *const texts[] = {"", "debug", "\"%s\\"};

    text_copy(m->verb, sizeof(m->verb), verbs[draw(fuzz, ARRAY_LEN(verbs))]);
    text_copy(m->text, sizeof(m->text), texts[draw(fuzz, ARRAY_LEN(texts))]);
    if (draw(fuzz, 2))
        snprintf(m->group, sizeof(m->group), "g%u", (unsigned)draw(fuzz, 3));
    else
        snprintf(m->group, sizeof(m->group), "%016llx", (unsigned long long)group_id(fuzz));
    m->pid = 100 + small(fuzz);
    m->rank = small(fuzz);
}

static void fill(struct fuzz *fuzz, struct msg *msg, unsigned from)
{
    static const enum msg_type types[] = {MSG_CLIENT_HELLO,
                                          MSG_CLIENT_JOIN,
                                          MSG_CLIENT_WITHDRAW,
                                          MSG_CLIENT_LEAVE,
                                          MSG_CLIENT_ABORT,
                                          MSG_ADMIN,
                                          MSG_HEARTBEAT,
                                          MSG_ENGINE_STATE,
                                          MSG_ENGINE_READY,
                                          MSG_JOIN,
                                          MSG_JOIN_CANCEL,
                                          MSG_JOIN_REFUSED,
                                          MSG_COMMIT,
                                          MSG_GONE,
                                          MSG_BROKEN,
                                          MSG_SYNC,
                                          MSG_HELD,
                                          MSG_BOARD_HELD,
                                          MSG_PAUSE,
                                          MSG_PAUSED,
                                          MSG_BOARD_PAUSE,
                                          MSG_CLIENT_ASK_ABSENT,
                                          MSG_ASK_ABSENT,
                                          MSG_ABSENT_HERE,
                                          MSG_ENGINE_HELLO,
                                          MSG_ENGINE_PEER_READY,
                                          MSG_ENGINE_PEER_DOWN,
                                          MSG_BOARD_ERROR,
                                          MSG_PING,
                                          MSG_ENGINE_TRAFFIC,
                                          MSG_ENGINE_SENT,
                                          MSG_ENGINE_RESUMED,
                                          MSG_GPU_ASK,
                                          MSG_GPU_HELLO,
                                          MSG_GPU_SESSION,
                                          MSG_GPU_DEVICE,
                                          MSG_TABLES};

    memset(msg, 0, sizeof(*msg));
    msg->type = types[draw(fuzz, ARRAY_LEN(types))];
    switch ((int)msg->type) {
    case MSG_CLIENT_HELLO:
        msg->client_hello.version = draw(fuzz, 9) ? MSG_VERSION : small(fuzz);
        msg->client_hello.admin = draw(fuzz, 4) == 0;
        break;
    case MSG_CLIENT_JOIN:
        msg->client_join.req = small(fuzz);
        msg->client_join.size = 1 + small(fuzz);
        msg->client_join.rank = small(fuzz);
        msg->client_join.timeout_ms = number(fuzz);
        msg->client_join.name[0] = 'g';
        msg->client_join.name[1] = (char)('0' + draw(fuzz, 3));
        break;
    case MSG_CLIENT_WITHDRAW:
        msg->client_withdraw.req = small(fuzz);
        break;
    case MSG_CLIENT_LEAVE:
    case MSG_CLIENT_ABORT:
    case MSG_SYNC:
        msg->sync.group = group_id(fuzz);
        msg->sync.again = draw(fuzz, 3);
        msg->sync.told = draw(fuzz, 2) ? small(fuzz) : 0;
        msg->sync.all = draw(fuzz, 3) == 0;
        break;
    case MSG_HELD:
        msg->held.group = group_id(fuzz);
        msg->held.key = draw(fuzz, 2) ? bond_key(fuzz, msg->held.group) : small(fuzz);
        msg->held.ops = small(fuzz) % 2;
        msg->held.sent = msg->held.came = (uint32_t)draw(fuzz, 2);
        msg->held.answer = (uint32_t)draw(fuzz, 2);
        break;
    case MSG_BOARD_HELD:
        msg->board_held.missing = draw(fuzz, 6) == 0;
        msg->board_held.went_on = draw(fuzz, 6) == 0;
        msg->board_held.group = group_id(fuzz);
        msg->board_held.quiet = draw(fuzz, 4) != 0;
        break;
    case MSG_PAUSE:
    case MSG_PAUSED:
    case MSG_BOARD_PAUSE:
        msg->pause.group = group_id(fuzz);
        msg->pause.attempt =
            draw(fuzz, 4) ? fuzz->bench->core->pausing.attempt : (uint32_t)small(fuzz);
        msg->pause.step = (uint32_t)draw(fuzz, 7);
        msg->pause.ops = small(fuzz) % 2;
        msg->pause.sent = msg->pause.came = (uint32_t)draw(fuzz, 2);
        msg->pause.asker = small(fuzz);
        break;
    case MSG_ADMIN:
        fill_admin(fuzz, &msg->admin);
        break;
    case MSG_HEARTBEAT:
        msg->heartbeat.draining = (uint32_t)draw(fuzz, 2);
        break;
    case MSG_CLIENT_ASK_ABSENT:
        msg->client_ask_absent.group = group_id(fuzz);
        msg->client_ask_absent.req = small(fuzz);
        break;
    case MSG_ASK_ABSENT:
        msg->ask_absent.group = group_id(fuzz);
        msg->ask_absent.ask = number(fuzz);
        break;
    case MSG_ABSENT_HERE:
        msg->absent_here.group = group_id(fuzz);
        msg->absent_here.ask = draw(fuzz, 4) ? (uint64_t)small(fuzz) << 32 : number(fuzz);
        msg->absent_here.count = small(fuzz);
        break;
    case MSG_JOIN_CANCEL:
        msg->join_cancel.join = number(fuzz);
        break;
    case MSG_ENGINE_STATE:
        msg->engine_state.engine = small(fuzz);
        msg->engine_state.intro = small(fuzz);
        msg->engine_state.addr_len = small(fuzz);
        break;
    case MSG_ENGINE_READY:
        msg->engine_ready.engine =
            draw(fuzz, 3) ? fuzz->bench->core->engine.incarnation : number(fuzz);
        msg->engine_ready.mine = small(fuzz);
        msg->engine_ready.intro = small(fuzz);
        break;
    case MSG_JOIN:
        msg->join.join = number(fuzz);
        msg->join.uid = 1000;
        msg->join.size = 1 + small(fuzz);
        msg->join.rank = small(fuzz);
        msg->join.name[0] = 'g';
        msg->join.name[1] = (char)('0' + draw(fuzz, 3));
        break;
    case MSG_JOIN_REFUSED:
        msg->join_refused.join = number(fuzz);
        msg->join_refused.cause = small(fuzz);
        msg->join_refused.rank = (int32_t)small(fuzz);
        break;
    case MSG_COMMIT:
        fill_commit(fuzz, &msg->commit, from);
        break;
    case MSG_GONE:
        msg->gone.group = group_id(fuzz);
        msg->gone.rank = small(fuzz);
        msg->gone.ops = small(fuzz);
        msg->gone.cause = small(fuzz);
        break;
    case MSG_BROKEN:
        msg->broken.group = group_id(fuzz);
        msg->broken.cause = (uint32_t)draw(fuzz, 20);
        msg->broken.rank = (int32_t)small(fuzz);
        break;
    case MSG_ENGINE_HELLO:
        msg->engine_hello.version = draw(fuzz, 9) ? MSG_VERSION : 0;
        msg->engine_hello.addr_len = draw(fuzz, 9) ? 8 : small(fuzz);
        msg->engine_hello.resumed = (uint32_t)draw(fuzz, 2);
        break;
    case MSG_ENGINE_PEER_READY:
    case MSG_ENGINE_PEER_DOWN:
        msg->engine_peer.peer = small(fuzz);
        msg->engine_peer.engine = small(fuzz);
        break;
    case MSG_BOARD_ERROR:
        msg->board.group = group_id(fuzz);
        msg->board.cause = small(fuzz);
        msg->board.peer = (int32_t)small(fuzz);
        break;
    case MSG_ENGINE_TRAFFIC:
        msg->engine_traffic.peer = small(fuzz);
        msg->engine_traffic.engine = fuzz->bench->core->peers[msg->engine_traffic.peer % 3].engine;
        msg->engine_traffic.sent = draw(fuzz, 2) ? small(fuzz) : UINT64_MAX;
        msg->engine_traffic.retransmits = small(fuzz);
        msg->engine_traffic.encryption = small(fuzz);
        msg->engine_traffic.key_ms = draw(fuzz, 2) ? small(fuzz) : UINT64_MAX;
        break;
    case MSG_ENGINE_SENT:
        msg->engine_sent.uid = draw(fuzz, 2) ? 1000 + small(fuzz) : number(fuzz);
        msg->engine_sent.ms = small(fuzz);
        msg->engine_sent.bytes = draw(fuzz, 2) ? small(fuzz) : UINT64_MAX;
        break;
    case MSG_GPU_ASK:
        msg->gpu_ask.req = small(fuzz);
        break;
    case MSG_GPU_HELLO:
        msg->gpu_hello.version = draw(fuzz, 9) ? MSG_VERSION : 0;
        msg->gpu_hello.devices = draw(fuzz, 9) ? small(fuzz) : number(fuzz);
        msg->gpu_hello.resumed = (uint32_t)draw(fuzz, 2);
        break;
    case MSG_GPU_SESSION:
        msg->gpu_session.client = draw(fuzz, 9) ? small(fuzz) : number(fuzz);
        msg->gpu_session.pid = 100 + small(fuzz);
        break;
    case MSG_GPU_DEVICE:
        msg->gpu_device.device = small(fuzz);
        break;
    case MSG_PING:
        msg->ping.seq = small(fuzz);
        msg->ping.pong = (uint32_t)draw(fuzz, 2);
        break;
    default:
        break;
    }
}

static void tell(struct fuzz *fuzz, enum core_event_type type, unsigned node, enum msg_type kind)
{
    struct msg msg;

    memset(&msg, 0, sizeof(msg));
    msg.type = kind;
    if (kind == MSG_PEER_HELLO) {
        msg.peer_hello.incarnation = 1 + draw(fuzz, 3);
        msg.peer_hello.version = draw(fuzz, 4) ? MSG_VERSION : MSG_VERSION_OLDEST;
    } else if (kind == MSG_ENGINE_HELLO) {
        msg.engine_hello.version = MSG_VERSION;
        msg.engine_hello.addr_len = 8;
        msg.engine_hello.resumed = fuzz->bench->core->engine.resuming;
    } else {
        fill_real_engine(fuzz, &msg, node);
        msg.engine_peer.peer = kind == MSG_ENGINE_PEER_READY ? node : msg.engine_peer.peer;
        if (kind == MSG_ENGINE_PEER_READY)
            msg.engine_peer.engine = fuzz->bench->core->peers[node].engine;
    }
    feed(fuzz->bench, (struct core_event){.type = type, .node = node, .msg = &msg});
}

/* Brings the engine up, both peers to READY and clients in, whatever went before. */
static void revive(struct fuzz *fuzz)
{
    feed(fuzz->bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "revived"});
    fuzz->bench->now += RESTART_MAX_MS; /* it may have died again and again */
    feed(fuzz->bench, (struct core_event){.type = CORE_TICK});
    tell(fuzz, CORE_ENGINE_MSG, 0, MSG_ENGINE_HELLO);
    for (unsigned i = 1; i < 3; i++) {
        tell(fuzz, CORE_PEER_UP, i, MSG_PEER_HELLO);
        tell(fuzz, CORE_PEER_MSG, i, MSG_ENGINE_STATE);
        tell(fuzz, CORE_ENGINE_MSG, i, MSG_ENGINE_PEER_READY);
        tell(fuzz, CORE_PEER_MSG, i, MSG_ENGINE_READY);
    }
    assert_int_equal(fuzz->bench->core->peers[1].state, CORE_PEER_READY);
    assert_int_equal(fuzz->bench->core->peers[2].state, CORE_PEER_READY);
    hello(fuzz->bench, 5, 0, true);
    say(fuzz->bench, 5, &(struct msg){.type = MSG_ADMIN, .admin = {.verb = "undrain"}});
    for (unsigned i = 0; i < 4; i++) {
        feed(fuzz->bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = i});
        hello(fuzz->bench, i, 1000, false);
    }
}

/* Sessions are at one that is up, or resumes; requests wait for one that is not yet up, or is being
 * killed. */
static void look_at_gpu(const struct core *core)
{
    unsigned waiting = 0, sessions = 0;
    struct core_gpu_view view;

    core_gpu(core, &view);
    for (unsigned i = 0; i < core->client_slots; i++) {
        waiting += core->clients[i].gpu_waits;
        sessions += core->clients[i].gpu_session;
    }
    assert_int_equal(core->gpu.waiting, waiting);
    assert_int_equal(view.sessions, sessions);
    assert_true(!sessions || view.state != CORE_ENGINE_OFF);
    assert_true(!waiting || view.state == CORE_ENGINE_STARTING || core->gpu.life.killed);
    assert_true(view.ndevices <= MSG_MAX_GPUS);
}

/* The views have to hold in every state. */
static void look(struct core *core)
{
    struct core_group_view view;
    struct core_client_view client;
    struct core_peer_view peer;
    struct core_status status;
    unsigned rank, slot;
    uint32_t req;

    for (unsigned i = 0; core_group_at(core, i, &view); i++) {
        assert_non_null(view.name);
        if (!view.id)
            continue;
        for (unsigned j = 0; j < view.nlocal; j++) {
            assert_true(core_group_local(core, view.id, j, &rank, &slot, &req));
            assert_int_equal(view.members[rank].node, view.me);
        }
        assert_false(core_group_local(core, view.id, view.nlocal, &rank, &slot, &req));
    }
    for (unsigned i = 0; core_client_at(core, i, &client); i++)
        assert_true(client.client < core->client_slots);
    for (unsigned i = 0; core_peer_at(core, i, &peer); i++)
        assert_string_equal(peer.name, nodes[i]);
    core_status(core, &status);
    look_at_gpu(core);
}

static void anything(struct fuzz *fuzz)
{
    struct core_event event = {.type = (enum core_event_type)draw(fuzz, CORE_BOARD_FAILED + 1)};
    struct msg msg;

    event.client = draw(fuzz, 50) ? (unsigned)draw(fuzz, 6) : small(fuzz);
    event.node = draw(fuzz, 50) ? (unsigned)draw(fuzz, 3) : small(fuzz);
    event.uid = event.client == 5 ? 0 : 1000;
    event.group = draw(fuzz, 5) && event.type != CORE_BOARD_POSITION ? 0 : group_id(fuzz);
    event.quiet = draw(fuzz, 3) != 0;
    if (event.group < KEPT_IDS && event.type != CORE_BOARD_POSITION)
        event.group = 0; /* boards of groups that were restored are there */
    event.msg = &msg;
    if (draw(fuzz, fuzz->tame ? 40 : 3)) /* the fatal kinds are not so frequent */
        event.type = (enum core_event_type[]){CORE_CLIENT_MSG, CORE_PEER_MSG, CORE_ENGINE_MSG,
                                              CORE_GPU_MSG, CORE_TICK}[draw(fuzz, 5)];
    if (event.type == CORE_CLIENT_OPEN && event.client < 6 &&
        fuzz->bench->core->clients[event.client].state != CLIENT_FREE)
        return;
    fill(fuzz, &msg, event.node);
    if (fuzz->tame ? draw(fuzz, 30) : draw(fuzz, 3) == 0)
        fill_real_engine(fuzz, &msg, event.node);
    if (fuzz->tame && event.type == CORE_ENGINE_MSG && msg.type == MSG_ENGINE_HELLO &&
        fuzz->bench->core->engine.life.state == CORE_ENGINE_UP)
        return; /* would only kill it */
    if (fuzz->tame && event.type == CORE_ENGINE_MSG && msg.type < MSG_ENGINE_HELLO)
        return;
    if (fuzz->tame && event.type == CORE_CLIENT_MSG && msg.type != MSG_CLIENT_JOIN &&
        draw(fuzz, 10))
        return;
    if (event.type == CORE_PEER_UP) {
        memset(&msg, 0, sizeof(msg));
        msg.type = MSG_PEER_HELLO;
        msg.peer_hello.incarnation = 1 + draw(fuzz, 3);
        msg.peer_hello.version = draw(fuzz, 4) ? MSG_VERSION : MSG_VERSION_OLDEST;
    }
    fuzz->bench->now += draw(fuzz, 20) ? draw(fuzz, 20) : draw(fuzz, fuzz->tame ? 200 : 5000);
    fuzz->bench->got[0] = 0;
    feed(fuzz->bench, event);
    look(fuzz->bench->core);
}

/* Everybody goes; whatever they said before, nothing may be left of it. */
static void assert_all_forgotten(struct bench *bench)
{
    struct core *core = bench->core;

    for (unsigned i = 0; i < core->client_slots; i++)
        feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = i});
    for (unsigned i = 0; i < 3; i++)
        feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = i});
    for (unsigned i = 0; i < 3; i++) { /* accounts of who joined often are kept for a second; nodes
                                          that are away are lost, and forgiven once before */
        bench->now += 1000;
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(core->members.live, 0);
    assert_int_equal(core->groups.live, 0);
    assert_int_equal(core->formings.live, 0);
    assert_int_equal(core->users.live, 0);
    assert_int_equal(core->nclients, 0);
    assert_int_equal(core->runs.used, 0); /* no user has a block of members */
}

/* ---- what a commd before this one may have left -------------------------------------------- */

static void restore_group(struct fuzz *fuzz)
{
    char names[3][MSG_NAME_MAX] = {"a", "b", "c"};
    struct msg_member members[RANKS];
    struct core_kept_rank ranks[RANKS];
    struct core_kept_group group = {.id = draw(fuzz, KEPT_IDS),
                                    .epoch = 1,
                                    .state = (enum core_group_state)draw(fuzz, 5),
                                    .name = draw(fuzz, 20) ? "kept" : "",
                                    .uid = draw(fuzz, 20) ? 1000 : small(fuzz),
                                    .payer = draw(fuzz, 4) ? 1000 : small(fuzz),
                                    .size = draw(fuzz, 20) ? 1 + (uint32_t)draw(fuzz, RANKS) : 0,
                                    .nnodes = draw(fuzz, 20) ? 1 + (uint32_t)draw(fuzz, 3) : 0,
                                    .nodes = (const char(*)[MSG_NAME_MAX])names,
                                    .members = members,
                                    .ranks = ranks};

    if (draw(fuzz, 10) == 0)
        names[draw(fuzz, 3)][0] = (char)('a' + draw(fuzz, 4));
    for (unsigned i = 0; i < RANKS; i++) {
        unsigned slot = (unsigned)draw(fuzz, 7);

        members[i] = (struct msg_member){.node = draw(fuzz, 3) ? 0 : (uint32_t)draw(fuzz, 4),
                                         .pid = 100 + slot};
        ranks[group.nranks] = (struct core_kept_rank){.rank = draw(fuzz, 30) ? i : small(fuzz),
                                                      .req = (uint32_t)draw(fuzz, 4),
                                                      .slot = draw(fuzz, 30) ? slot : small(fuzz)};
        group.nranks += i < group.size && (members[i].node == 0 || draw(fuzz, 20) == 0);
    }
    core_restore_group(fuzz->bench->core, &group);
}

static void restore_anything(struct fuzz *fuzz)
{
    struct core *core = fuzz->bench->core;

    core_restore_begin(core, fuzz->bench->now);
    if (draw(fuzz, 2))
        core_restore_engine(core, &(struct core_kept_engine){.pid = 102,
                                                             .incarnation = 1 + draw(fuzz, 3),
                                                             .addr = (const uint8_t *)"a",
                                                             .addr_len = 1,
                                                             .text = "fake"});
    if (draw(fuzz, 2))
        core_restore_gpu(core, 103);
    for (unsigned i = 0; i < 200; i++) {
        unsigned slot = draw(fuzz, 30) ? (unsigned)draw(fuzz, 7) : small(fuzz);
        uint64_t what = draw(fuzz, i < 10 ? 1 : 4);

        if (what == 0)
            core_restore_client(
                core, &(struct core_kept_client){.slot = slot,
                                                 .uid = draw(fuzz, 20)  ? 1000
                                                        : draw(fuzz, 2) ? CORE_GPU_UID
                                                                        : small(fuzz),
                                                 .payer = draw(fuzz, 20) ? 1000 : CORE_GPU_UID,
                                                 .pid = 100 + slot,
                                                 .since_ms = draw(fuzz, 2 * fuzz->bench->now),
                                                 .program = "train"});
        else if (what == 1)
            restore_group(fuzz);
        else if (what == 2)
            core_restore_rank_gone(
                core, &(struct core_rank_gone){
                          .group = draw(fuzz, KEPT_IDS),
                          .rank = (uint32_t)draw(fuzz, RANKS + 1),
                          .ops = small(fuzz),
                          .cause = draw(fuzz, 2) ? CAUSE_LEFT : (enum cause)draw(fuzz, 20)});
        else
            core_restore_broken(
                core, &(struct core_group_broken){.group = draw(fuzz, 60),
                                                  .cause = (enum cause)draw(fuzz, 20),
                                                  .rank = (int32_t)draw(fuzz, RANKS + 3) - 2,
                                                  .node = draw(fuzz, 2) ? "b" : "z",
                                                  .text = "why"});
    }
    feed(fuzz->bench, (struct core_event){.type = CORE_TAKEN_OVER});
    look(core);
}

/* One that is away says what it likes. */
static void come_back(struct fuzz *fuzz)
{
    uint64_t groups[4];
    uint32_t joins[4];
    struct msg msg = {.type = MSG_CLIENT_HELLO};
    unsigned slot = (unsigned)draw(fuzz, 7);

    msg.client_hello.version = draw(fuzz, 10) ? MSG_VERSION : 0;
    for (unsigned i = 0; i < 4; i++) {
        groups[i] = draw(fuzz, KEPT_IDS);
        joins[i] = (uint32_t)draw(fuzz, 4);
    }
    feed(fuzz->bench, (struct core_event){.type = CORE_CLIENT_BACK,
                                          .client = slot,
                                          .uid = 1000,
                                          .pid = 100 + slot,
                                          .msg = &msg,
                                          .groups = groups,
                                          .ngroups = (unsigned)draw(fuzz, 5),
                                          .joins = joins,
                                          .njoins = (unsigned)draw(fuzz, 5)});
}

static uint64_t fuzz_run(uint64_t seed, unsigned steps)
{
    struct core_config config = config_of(3);
    struct fuzz fuzz = {.random = core_mix(seed), .tame = seed % 2};
    uint64_t hash;

    config.gpu = true;
    config.gpu_timeout_ms = 1000;
    fuzz.bench = bench_new(&config);
    if (seed % 4 > 1)
        restore_anything(&fuzz);
    for (unsigned i = 0; i < steps; i++) {
        if (seed % 4 > 1 && draw(&fuzz, 20) == 0)
            come_back(&fuzz);
        if (fuzz.tame && i % 200 == 0)
            revive(&fuzz);
        anything(&fuzz);
    }
    assert_all_forgotten(fuzz.bench);
    hash = fuzz.bench->hash;
    bench_free(fuzz.bench);
    return hash;
}

static void anything_at_any_time(void **state)
{
    for (uint64_t seed = 0; seed < 40; seed++)
        fuzz_run(seed, 4000);
}

static void anything_that_is_left_of_another_commd(void **state)
{
    for (uint64_t seed = 0; seed < 500; seed++)
        fuzz_run(4 * seed + 2 + seed % 2, 40);
}

static void same_events_same_actions(void **state)
{
    for (uint64_t seed = 100; seed < 105; seed++)
        assert_true(fuzz_run(seed, 2000) == fuzz_run(seed, 2000));
    assert_false(fuzz_run(100, 2000) == fuzz_run(101, 2000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anything_at_any_time),
        cmocka_unit_test(anything_that_is_left_of_another_commd),
        cmocka_unit_test(same_events_same_actions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
