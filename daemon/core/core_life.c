/* core_life.c - the life of a process of this node: commd-engine or commd-gpu.
 *
 *   OFF --start--> STARTING --hello--> UP --exit, silence--> OFF
 *
 * When it is started is decided in core_engine.c and core_gpu.c. It has a limit for its hello, and
 * is asked each second, with a limit for the answer; one that keeps neither is killed. After its
 * end the next one may be started at once, or after a while if it dies again and again
 * (shm/util/restarts.h). */
#include "daemon/core/core_internal.h"

/* clang-format off */
static const bool life_may[3][3] = { /* rows: from; columns: OFF STARTING UP */
    [CORE_ENGINE_OFF]      = {0, 1, 0},
    [CORE_ENGINE_STARTING] = {1, 0, 1},
    [CORE_ENGINE_UP]       = {1, 0, 0},
};
/* clang-format on */

void life_set_state(struct core *core, struct life *life, enum core_engine_state state)
{
    assert(life_may[life->state][state]);
    life->state = state;
    life->since_ms = core->now;
    life->killed = false;
    life->unanswered_ms = 0;
    life->build[0] = '\0';
    life->settings = 0;
    life->ping_ms = state == CORE_ENGINE_UP ? core->now + CORE_ENGINE_PING_MS : CORE_NEVER;
}

void life_kill(struct core *core, struct life *life, const char *why)
{
    bool engine = life == &core->engine.life;

    assert(life->state != CORE_ENGINE_OFF && !life->killed);
    act_log(core, CORE_LOG_ERROR, "%s: %s -> killing it", engine ? "engine" : "commd-gpu", why);
    if (why != life->text)
        text_copy(life->text, sizeof(life->text), why);
    life->killed = true;
    act_push(core, (struct core_action){.type = engine ? CORE_DO_ENGINE_KILL : CORE_DO_GPU_KILL});
}

bool life_end(struct core *core, struct life *life, const char *why)
{
    bool was_up = life->state == CORE_ENGINE_UP;
    uint64_t served_ms = was_up ? core->now - life->since_ms : 0;

    assert(life->state != CORE_ENGINE_OFF);
    if (!life->killed)
        text_copy(life->text, sizeof(life->text), why ? why : "it went away");
    life_set_state(core, life, CORE_ENGINE_OFF);
    life->pid = 0;
    life->start_ms = core->now + restart_wait(&life->restarts, served_ms);
    return was_up;
}

const char *life_wait_text(const struct core *core, const struct life *life, char buf[80])
{
    struct text text = {buf, 80, 0};

    buf[0] = '\0';
    if (life->start_ms > core->now)
        text_add(&text, ", but not before %llu ms are over: it dies again and again",
                 (unsigned long long)(life->start_ms - core->now));
    return buf;
}

unsigned life_deaths(const struct core *core, const struct life *life)
{
    bool lasts = life->state == CORE_ENGINE_UP && core->now - life->since_ms >= RESTART_SOON_MS;

    return restarts_wait(&life->restarts) && !lasts ? MAX(life->restarts.early, life->restarts.soon)
                                                    : 0;
}

bool life_tick(struct core *core, struct life *life, uint64_t start_limit, uint64_t answer_limit)
{
    if (life->killed || life->state == CORE_ENGINE_OFF)
        return false;
    if (life->state == CORE_ENGINE_STARTING) {
        if (core->now >= life->since_ms + start_limit)
            life_kill(core, life, "it did not say hello in time");
        return false;
    }
    if (life->unanswered_ms && core->now >= life->unanswered_ms + answer_limit) {
        life_kill(core, life, "it does not answer");
        return false;
    }
    if (core->now < life->ping_ms)
        return false;
    assert(life->state == CORE_ENGINE_UP);
    life->ping_ms = core->now + CORE_ENGINE_PING_MS;
    if (life->unanswered_ms)
        return false;
    life->unanswered_ms = core->now;
    life->seq++;
    return true;
}

uint64_t life_deadline(const struct life *life, uint64_t start_limit, uint64_t answer_limit)
{
    if (life->killed || life->state == CORE_ENGINE_OFF)
        return CORE_NEVER;
    if (life->state == CORE_ENGINE_STARTING)
        return life->since_ms + start_limit;
    return life->unanswered_ms ? MIN(life->ping_ms, life->unanswered_ms + answer_limit)
                               : life->ping_ms;
}

void life_pong(struct life *life, const struct msg_ping *msg)
{
    assert(life->state == CORE_ENGINE_UP);
    if (msg->pong && msg->seq == life->seq)
        life->unanswered_ms = 0;
}

void life_forgive(struct core *core, struct life *life)
{
    if (life->unanswered_ms)
        life->unanswered_ms = core->now;
    if (life->state == CORE_ENGINE_STARTING)
        life->since_ms = core->now;
}
