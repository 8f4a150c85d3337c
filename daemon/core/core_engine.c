/* core_engine.c - this node's own commd-engine: when it is started (core_life.c), and what it says.
 *
 * Only a commd with other nodes in its configuration has one: one-node groups never need it.
 * Every engine that said hello gets a new random incarnation, by which all nodes tell it from
 * its predecessor.
 *
 * An engine outlives its commd. The next commd is given it before its first event
 * (core_restore_engine()): it is STARTING with the incarnation that it had. Its hello says
 * `resumed`; then it tells which engines it has (core_peer.c), and ENGINE_RESUMED. Only then do
 * other nodes hear of it: until then we do not know who has lost whom.
 *
 * Who wakes me: its messages, its exit, and engine_deadline(): start it, ping it, give it up.
 * What if the peer (the engine) dies now: CORE_ENGINE_DOWN; groups over several nodes wait for the
 * next one, or are broken with ENGINE_LOST (core_bond.c); there by the ENGINE_STATE that peers get.
 * What if I am stopped now: the oldest unanswered ping would look overdue; core_input() notices
 * that we were late and starts its clock anew (life_forgive()). */
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

    assert(life->state == CORE_ENGINE_STARTING && engine->resuming == !!engine->incarnation);
    text_copy(life->text, sizeof(life->text), msg->text);
    if (!msg_version_fits(msg->version)) {
        life_kill(core, life, "it speaks an older protocol than commd understands: upgrade it");
        return;
    }
    if (!msg->addr_len || msg->addr_len > MSG_ADDR_MAX) {
        life_kill(core, life, life->text[0] ? life->text : "it could not open its fabric");
        return;
    }
    if (engine->resuming != !!msg->resumed) {
        life_kill(core, life, "it is not the engine that was there before commd was restarted");
        return;
    }
    life_set_state(core, life, CORE_ENGINE_UP);
    engine->version = msg->version;
    renew_hello(core, life, msg->build, msg->settings);
    if (engine->resuming)
        return;
    engine->addr_len = msg->addr_len;
    memcpy(engine->addr, msg->addr, msg->addr_len);
    engine->incarnation = core_random(core);
    assert(engine->incarnation); /* 0 says that there is none */
    act_note(core, CORE_NOTE_ENGINE_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "engine pid %u is up: %s",
             life->pid, life->text);
    act_push(core, (struct core_action){.type = CORE_DO_ENGINE_KEPT,
                                        .engine_kept = {.pid = life->pid,
                                                        .incarnation = engine->incarnation,
                                                        .addr = engine->addr,
                                                        .addr_len = engine->addr_len,
                                                        .text = life->text}});
    peer_engine_up(core);
}

bool core_restore_engine(struct core *core, const struct core_kept_engine *kept)
{
    struct own_engine *engine = &core->engine;

    assert(core->phase == PHASE_RESTORING);
    if (core->config.nnodes < 2 || engine->incarnation || !kept->incarnation || !kept->addr_len ||
        kept->addr_len > MSG_ADDR_MAX)
        return false;
    life_set_state(core, &engine->life, CORE_ENGINE_STARTING);
    engine->life.pid = kept->pid;
    text_copy(engine->life.text, sizeof(engine->life.text), kept->text);
    engine->incarnation = kept->incarnation;
    engine->addr_len = kept->addr_len;
    memcpy(engine->addr, kept->addr, kept->addr_len);
    engine->resuming = true;
    return true;
}

static void engine_resumed(struct core *core)
{
    struct own_engine *engine = &core->engine;

    if (!engine->resuming) {
        life_kill(core, &engine->life, "it broke the protocol: it has resumed already");
        return;
    }
    engine->resuming = false;
    act_note(core, CORE_NOTE_ENGINE_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO,
             "engine pid %u goes on since before commd was restarted: %s", engine->life.pid,
             engine->life.text);
    act_push(core, (struct core_action){.type = CORE_DO_ENGINE_RESUMED});
    peer_engine_resumed(core);
    if (bond_engine_knows(core))
        pause_is_over(core, core->config.self);
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
    switch ((int)msg->type) { /* int: of all types an engine may send ten */
    case MSG_ENGINE_HELLO:
        engine_hello(core, &msg->engine_hello);
        break;
    case MSG_ENGINE_RESUMED:
        engine_resumed(core);
        break;
    case MSG_ENGINE_PEER_READY:
        peer_engine_accepts(core, &msg->engine_peer);
        break;
    case MSG_ENGINE_PEER_DOWN:
        peer_engine_lost(core, &msg->engine_peer);
        break;
    case MSG_BOARD_HELD:
        bond_held(core, &msg->board_held);
        break;
    case MSG_BOARD_PAUSE:
        pause_engine_msg(core, &msg->pause);
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
    char text[MSG_TEXT_MAX], wait[80];
    bool was_up;

    if (life->state == CORE_ENGINE_OFF) {
        renew_ended(core, life);
        return;
    }
    was_up = life_end(core, life, why) || engine->resuming;
    pause_end(core);
    engine->incarnation = 0;
    engine->resuming = false;
    assert(life->state == CORE_ENGINE_OFF && !life->pid);
    engine->addr_len = 0;
    text_format(text, sizeof(text), TEXT_ENGINE_LOST ": %s", core_self_name(core), life->text);
    if (!core->stopping)
        act_note(core, CORE_NOTE_ENGINE_LOST, CORE_BY_NOBODY, 0, CORE_LOG_ERROR,
                 "%s -> starting it again%s", text, life_wait_text(core, life, wait));
    if (was_up) {
        core->counts.engine_losses++;
        peer_engine_down(core);
        group_engine_lost(core, core->config.self, text);
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
        assert(core->config.nnodes > 1 && !core->engine.incarnation && !core->engine.resuming);
        core->counts.engine_starts++;
        act_push(core, (struct core_action){.type = CORE_DO_ENGINE_START});
    } else if (core->engine.resuming && life->state == CORE_ENGINE_UP && !life->killed &&
               core->now >= life->since_ms + start_limit(core)) {
        life_kill(core, life, "it did not tell in time what it has");
    } else if (life_tick(core, life, start_limit(core), core->config.engine_timeout_ms)) {
        act_to_engine(core, (struct act_msg){.type = MSG_PING, .ping = {life->seq, 0}});
        renew_engine(core);
    }
}

void engine_ask(struct core *core)
{
    core->engine.life.ping_ms = MIN(core->engine.life.ping_ms, core->now);
    engine_tick(core);
}

uint64_t engine_deadline(const struct core *core)
{
    const struct life *life = &core->engine.life;

    if (life->state == CORE_ENGINE_OFF && !core->stopping)
        return life->start_ms;
    return life_deadline(life, start_limit(core), core->config.engine_timeout_ms);
}
