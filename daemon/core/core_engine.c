/* core_engine.c - this node's own commd-engine: when it is started (core_life.c), and what it says.
 *
 * Only a commd with other nodes in its configuration has one: one-node groups never need it.
 * Every engine that said hello gets a new random incarnation, by which all nodes tell it from
 * its predecessor.
 *
 * Who wakes me: its messages, its exit, and engine_deadline(): start it, ping it, give it up.
 * What if the peer (the engine) dies now: CORE_ENGINE_DOWN; all groups over several nodes are
 * broken with ENGINE_LOST here, and by the ENGINE_STATE that peers get, there.
 * What if I am stopped now: the oldest unanswered ping would look overdue; core_input() notices
 * that we were late and starts its clock anew (peer_forgive()). */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

void engine_started(struct core *core, uint32_t pid)
{
    if (core->engine.life.state == CORE_ENGINE_STARTING)
        core->engine.life.pid = pid;
}

static void engine_hello(struct core *core, const struct msg_engine_hello *msg)
{
    struct own_engine *engine = &core->engine;
    struct life *life = &engine->life;

    assert(life->state == CORE_ENGINE_STARTING && !engine->incarnation);
    text_copy(life->text, sizeof(life->text), msg->text);
    if (msg->version != MSG_VERSION) {
        life_kill(core, life, "it speaks another protocol version: install one version of commd");
        return;
    }
    if (!msg->addr_len || msg->addr_len > MSG_ADDR_MAX) {
        life_kill(core, life, life->text[0] ? life->text : "it could not open its fabric");
        return;
    }
    life_set_state(core, life, CORE_ENGINE_UP);
    engine->addr_len = msg->addr_len;
    memcpy(engine->addr, msg->addr, msg->addr_len);
    engine->incarnation = core_random(core);
    assert(engine->incarnation); /* 0 says that there is none */
    act_note(core, CORE_NOTE_ENGINE_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "engine pid %u is up: %s",
             life->pid, life->text);
    peer_engine_up(core);
}

static void ping(struct core *core, const struct msg_ping *msg)
{
    assert(core->engine.life.state == CORE_ENGINE_UP);
    if (!msg->pong)
        act_to_engine(core, (struct act_msg){.type = MSG_PING, .ping = {msg->seq, .pong = 1}});
    life_pong(&core->engine.life, msg);
}

void engine_msg(struct core *core, const struct msg *msg)
{
    struct life *life = &core->engine.life;

    assert(msg);
    if (life->state == CORE_ENGINE_OFF || life->killed)
        return; /* last words of one that is going */
    if ((life->state == CORE_ENGINE_STARTING) != (msg->type == MSG_ENGINE_HELLO)) {
        life_kill(core, life,
                  "it broke the protocol: hello has to be its first message and no other");
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
        life_kill(core, life, "it broke the protocol: a message type that is not for engines");
        break;
    }
}

void engine_down(struct core *core, const char *why)
{
    struct own_engine *engine = &core->engine;
    struct life *life = &engine->life;
    char text[MSG_TEXT_MAX];
    bool was_up;

    if (life->state == CORE_ENGINE_OFF)
        return;
    was_up = life_end(core, life, why);
    engine->incarnation = 0;
    assert(life->state == CORE_ENGINE_OFF && !life->pid);
    engine->addr_len = 0;
    text_format(text, sizeof(text), TEXT_ENGINE_LOST ": %s", core_self_name(core), life->text);
    if (!core->stopping)
        act_note(core, CORE_NOTE_ENGINE_LOST, CORE_BY_NOBODY, 0, CORE_LOG_ERROR,
                 "%s -> starting it again in %llu ms", text,
                 (unsigned long long)(life->start_ms - core->now));
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
    struct life *life = &core->engine.life;

    if (life->state == CORE_ENGINE_OFF && core->now >= life->start_ms && !core->stopping) {
        life_set_state(core, life, CORE_ENGINE_STARTING);
        assert(core->config.nnodes > 1 && !core->engine.incarnation);
        core->counts.engine_starts++;
        act_push(core, (struct core_action){.type = CORE_DO_ENGINE_START});
    } else if (life_tick(core, life, start_limit(core), core->config.engine_timeout_ms)) {
        act_to_engine(core, (struct act_msg){.type = MSG_PING, .ping = {life->seq, 0}});
    }
}

uint64_t engine_deadline(const struct core *core)
{
    const struct life *life = &core->engine.life;

    if (life->state == CORE_ENGINE_OFF && !core->stopping)
        return life->start_ms;
    return life_deadline(life, start_limit(core), core->config.engine_timeout_ms);
}
