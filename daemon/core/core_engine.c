/* core_engine.c - the life of this node's own commd-engine.
 *
 *   OFF --start_ms--> STARTING --ENGINE_HELLO--> UP --exit, silence--> OFF
 *
 * Only a commd with other nodes in its configuration has one: one-node groups never need it.
 * Every engine that said hello gets a new random incarnation, by which all nodes tell it from
 * its predecessor. A life of 10 s resets the back-off of restarts.
 *
 * Who wakes me: its messages, its exit, and engine_deadline(): start it, ping it, give it up.
 * What if the peer (the engine) dies now: CORE_ENGINE_DOWN; all groups over several nodes are
 * broken with ENGINE_LOST here, and by the ENGINE_STATE that peers get, there.
 * What if I am stopped now: the oldest unanswered ping would look overdue; core_input() notices
 * that we were late and starts its clock anew (peer_forgive()). */
#include "daemon/core/core_internal.h"

/* clang-format off */
static const bool engine_may[3][3] = { /* rows: from; columns: OFF STARTING UP */
    [CORE_ENGINE_OFF]    = {0, 1, 0},
    [CORE_ENGINE_STARTING] = {1, 0, 1},
    [CORE_ENGINE_UP]       = {1, 0, 0},
};
/* clang-format on */

static void engine_set_state(struct core *core, enum core_engine_state state)
{
    struct own_engine *engine = &core->engine;

    assert(engine_may[engine->state][state]);
    engine->state = state;
    engine->since_ms = core->now;
    engine->killed = false;
    engine->unanswered_ms = 0;
    engine->ping_ms = state == CORE_ENGINE_UP ? core->now + CORE_ENGINE_PING_MS : CORE_NEVER;
    engine->start_ms = CORE_NEVER;
    if (state != CORE_ENGINE_UP) {
        engine->incarnation = 0;
        engine->addr_len = 0;
    }
}

/* @why stays as its status text until the next hello. */
static void kill_engine(struct core *core, const char *why)
{
    assert(core->engine.state != CORE_ENGINE_OFF && !core->engine.killed);
    act_log(core, CORE_LOG_ERROR, "engine: %s -> killing it", why);
    if (why != core->engine.text)
        text_copy(core->engine.text, sizeof(core->engine.text), why);
    core->engine.killed = true;
    act_push(core, (struct core_action){.type = CORE_DO_ENGINE_KILL});
}

void engine_started(struct core *core, uint32_t pid)
{
    if (core->engine.state == CORE_ENGINE_STARTING)
        core->engine.pid = pid;
}

static void engine_hello(struct core *core, const struct msg_engine_hello *msg)
{
    struct own_engine *engine = &core->engine;

    text_copy(engine->text, sizeof(engine->text), msg->text);
    if (msg->version != MSG_VERSION) {
        kill_engine(core, "it speaks another protocol version: install one version of commd");
        return;
    }
    if (!msg->addr_len || msg->addr_len > MSG_ADDR_MAX) {
        kill_engine(core, engine->text[0] ? engine->text : "it could not open its fabric");
        return;
    }
    engine_set_state(core, CORE_ENGINE_UP);
    engine->addr_len = msg->addr_len;
    memcpy(engine->addr, msg->addr, msg->addr_len);
    engine->incarnation = core_random(core);
    assert(engine->incarnation); /* 0 says that there is none */
    act_note(core, CORE_NOTE_ENGINE_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "engine pid %u is up: %s",
             engine->pid, engine->text);
    peer_engine_up(core);
}

static void ping(struct core *core, const struct msg_ping *msg)
{
    if (!msg->pong)
        act_to_engine(core, (struct act_msg){.type = MSG_PING, .ping = {msg->seq, .pong = 1}});
    else if (msg->seq == core->engine.seq)
        core->engine.unanswered_ms = 0;
}

void engine_msg(struct core *core, const struct msg *msg)
{
    struct own_engine *engine = &core->engine;

    if (engine->state == CORE_ENGINE_OFF || engine->killed)
        return; /* last words of one that is going */
    if ((engine->state == CORE_ENGINE_STARTING) != (msg->type == MSG_ENGINE_HELLO)) {
        kill_engine(core, "it broke the protocol: hello has to be its first message and no other");
        return;
    }
    switch ((int)msg->type) { /* int: of all types an engine may send seven */
    case MSG_ENGINE_HELLO:
        engine_hello(core, &msg->engine_hello);
        break;
    case MSG_ENGINE_PEER_READY:
        peer_engine_accepts(core, &msg->engine_peer);
        break;
    case MSG_ENGINE_PEER_DOWN:
        peer_engine_lost(core, &msg->engine_peer);
        break;
    case MSG_BOARD_ERROR:
        group_board_error(core, &msg->board);
        break;
    case MSG_PING:
        ping(core, &msg->ping);
        break;
    case MSG_ENGINE_TRAFFIC:
        peer_engine_traffic(core, &msg->engine_traffic);
        break;
    case MSG_ENGINE_SENT:
        user_sent(core, &msg->engine_sent);
        break;
    default:
        kill_engine(core, "it broke the protocol: a message type that is not for engines");
        break;
    }
}

void engine_down(struct core *core, const char *why)
{
    struct own_engine *engine = &core->engine;
    bool was_up = engine->state == CORE_ENGINE_UP, killed = engine->killed;
    char text[MSG_TEXT_MAX];

    if (engine->state == CORE_ENGINE_OFF)
        return;
    why = why ? why : "it went away";
    text_format(text, sizeof(text), "the engine of node %s was lost: %s", core_self_name(core),
                killed ? engine->text : why);
    if (was_up && core->now - engine->since_ms >= CORE_ENGINE_STABLE_MS)
        engine->backoff_ms = CORE_ENGINE_RESTART_MIN_MS;
    engine_set_state(core, CORE_ENGINE_OFF);
    engine->pid = 0;
    if (!killed)
        text_copy(engine->text, sizeof(engine->text), why);
    if (!core->stopping) {
        engine->start_ms = core->now + engine->backoff_ms;
        act_note(core, CORE_NOTE_ENGINE_LOST, CORE_BY_NOBODY, 0, CORE_LOG_ERROR,
                 "%s -> starting it again in %llu ms", text,
                 (unsigned long long)engine->backoff_ms);
        engine->backoff_ms = MIN(2 * engine->backoff_ms, (uint64_t)CORE_ENGINE_RESTART_MAX_MS);
    }
    assert(!engine->incarnation && !engine->addr_len);
    if (was_up) {
        core->counts.engine_losses++;
        peer_engine_down(core);
        group_node_lost(core, core->config.self, CAUSE_ENGINE_LOST, text, false);
    }
}

/* A start has to open a fabric and may take longer than an answer. */
static uint64_t start_limit(const struct core *core)
{
    return MAX(2 * core->config.engine_timeout_ms, (uint64_t)10000);
}

void engine_tick(struct core *core)
{
    struct own_engine *engine = &core->engine;

    if (engine->state == CORE_ENGINE_OFF && core->now >= engine->start_ms && !core->stopping) {
        engine_set_state(core, CORE_ENGINE_STARTING);
        core->counts.engine_starts++;
        act_push(core, (struct core_action){.type = CORE_DO_ENGINE_START});
    } else if (engine->state == CORE_ENGINE_STARTING && !engine->killed &&
               core->now >= engine->since_ms + start_limit(core)) {
        kill_engine(core, "it did not say hello in time");
    } else if (engine->state == CORE_ENGINE_UP && !engine->killed) {
        if (engine->unanswered_ms &&
            core->now >= engine->unanswered_ms + core->config.engine_timeout_ms) {
            kill_engine(core, "it does not answer");
        } else if (core->now >= engine->ping_ms) {
            engine->ping_ms = core->now + CORE_ENGINE_PING_MS;
            if (!engine->unanswered_ms) {
                engine->unanswered_ms = core->now;
                act_to_engine(core, (struct act_msg){.type = MSG_PING, .ping = {++engine->seq, 0}});
            }
        }
    }
}

uint64_t engine_deadline(const struct core *core)
{
    const struct own_engine *engine = &core->engine;
    uint64_t due = CORE_NEVER;

    switch (engine->state) {
    case CORE_ENGINE_OFF:
        return core->stopping ? CORE_NEVER : engine->start_ms;
    case CORE_ENGINE_STARTING:
        return engine->killed ? CORE_NEVER : engine->since_ms + start_limit(core);
    case CORE_ENGINE_UP:
        if (engine->killed)
            return CORE_NEVER;
        due = engine->ping_ms;
        if (engine->unanswered_ms)
            due = MIN(due, engine->unanswered_ms + core->config.engine_timeout_ms);
        return due;
    }
    return due;
}
