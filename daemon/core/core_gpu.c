/* core_gpu.c - this node's commd-gpu (its life: core_life.c), and the sessions that clients have at
 * it.
 *
 * Nothing is started before the first client asks, and nothing again before the next one does. If
 * it dies again and again it is not started for a while, and who asks then is told why. What comes
 * while it starts waits: one request of each client, all answered when it is up, or has failed.
 *
 * A client has one session. Another request ends it first: its socket may have ended without our
 * knowledge. That is all that a client can make us do, and it may ask only so often.
 *
 * commd-gpu is a client of ours too, for what it has to agree on with those of other nodes. The
 * edge knows it by its process, and says that its user is CORE_GPU_UID, which no process can have.
 * That user takes all that others leave of a limit, is not stopped by draining, and alone has group
 * names that begin with CORE_GPU_NAMES. See gpu_spare() for the groups that others leave it.
 *
 * It outlives commd. The next commd finds it STARTING, and hears from it whose sessions it has
 * before it says hello (session_goes_on()). Who asks meanwhile waits.
 *
 * Who wakes me: requests, its messages, its exit, and gpu_deadline(): ping it, give it up.
 * What if the peer (commd-gpu) dies now: CORE_GPU_DOWN; the sockets of its sessions close, by which
 * its clients know. What if a client dies now: GPU_SESSION_DEL.
 * What if I am stopped now: see core_engine.c; gpu_forgive(). What if another commd takes over now:
 * core_restore_gpu(); a session that only one side heard of ends, and its client asks again. */
#include <stdarg.h>

#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* ---- who asks -------------------------------------------------------------------------------- */

static void wait_no_more(struct core *core, struct client *client)
{
    assert(core->gpu.waiting >= client->gpu_waits);
    core->gpu.waiting -= client->gpu_waits;
    client->gpu_waits = false;
}

static void send_gpu_answer(struct core *core, unsigned slot, uint32_t req, enum cause cause,
                            const char *text)
{
    assert(core->clients[slot].state == CLIENT_READY);
    act_to_client(
        core, slot,
        (struct act_msg){.type = MSG_GPU_ANSWER,
                         .gpu_answer = {.req = req, .cause = cause, .text = act_text(core, text)}});
}

static void answer_ask(struct core *core, unsigned slot, enum cause cause, const char *format, ...)
    _printf_(4, 5);

static void answer_ask(struct core *core, unsigned slot, enum cause cause, const char *format, ...)
{
    struct client *client = &core->clients[slot];
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};
    va_list args;

    wait_no_more(core, client);
    va_start(args, format);
    text_vadd(&text, format, args);
    va_end(args);
    act_log_user(core, client->uid, CORE_LOG_DEBUG, "client pid %u asked for GPUs: %s", client->pid,
                 buf);
    send_gpu_answer(core, slot, client->gpu_req, cause, buf);
}

static void end_session(struct core *core, unsigned slot)
{
    struct client *client = &core->clients[slot];

    if (client->gpu_session) {
        assert(core->gpu.sessions);
        core->gpu.sessions--;
        act_to_gpu(core, (struct act_msg){.type = MSG_GPU_SESSION_DEL, .gpu_session.client = slot});
    }
    client->gpu_session = false;
}

static void begin_session(struct core *core, unsigned slot)
{
    struct client *client = &core->clients[slot];

    assert(core->gpu.life.state == CORE_ENGINE_UP && !core->gpu.life.killed);
    assert(client->state == CLIENT_READY && client->uid != CORE_GPU_UID);
    end_session(core, slot);
    wait_no_more(core, client);
    client->gpu_session = true;
    core->gpu.sessions++;
    core->counts.gpu_sessions++;
    act_push(core, (struct core_action){.type = CORE_DO_GPU_SESSION,
                                        .gpu_session = {.client = slot,
                                                        .uid = client->uid,
                                                        .pid = client->pid,
                                                        .req = client->gpu_req}});
}

/* Has it asked too often within this second? */
static bool asks_too_often(struct core *core, struct client *client)
{
    if (!client->gpu_asks || core->now >= client->gpu_asked_ms + 1000) {
        client->gpu_asked_ms = core->now;
        client->gpu_asks = 0;
    }
    return client->gpu_asks++ >= CORE_GPU_ASKS;
}

static void start(struct core *core)
{
    assert(core->config.gpu && !core->gpu.sessions && !core->gpu.resuming);
    assert(core->gpu.waiting && !core->gpu.ndevices);
    life_set_state(core, &core->gpu.life, CORE_ENGINE_STARTING);
    text_copy(core->gpu.life.text, sizeof(core->gpu.life.text), "it starts");
    core->counts.gpu_starts++;
    act_push(core, (struct core_action){.type = CORE_DO_GPU_START});
}

void gpu_ask(struct core *core, unsigned slot, const struct msg_gpu_ask *msg)
{
    struct client *client = &core->clients[slot];
    struct own_gpu *gpu = &core->gpu;
    const char *self = core_self_name(core);

    assert(client->state == CLIENT_READY);
    if (client->admin) {
        core_client_refuse(core, slot, CAUSE_PROTOCOL, "an admin session has no use for GPUs");
        return;
    }
    if (asks_too_often(core, client) || client->gpu_waits) {
        /* not answer_ask(): the request that waits still does */
        send_gpu_answer(core, slot, msg->req, CAUSE_QUOTA,
                        client->gpu_waits ? "this client waits for an answer already"
                                          : "this client asks for GPUs too often");
        return;
    }
    client->gpu_req = msg->req;
    if (client->uid == CORE_GPU_UID) {
        answer_ask(core, slot, CAUSE_DENIED, "commd-gpu has no session at itself");
    } else if (core->stopping) {
        answer_ask(core, slot, CAUSE_NODE_LOST, TEXT_COMMD_STOPS, self);
    } else if (!core->config.gpu) {
        answer_ask(core, slot, CAUSE_NO_DAEMON, "node %s has no GPU service: %s", self,
                   gpu->life.text);
    } else if (gpu->life.state == CORE_ENGINE_UP && !gpu->life.killed) {
        begin_session(core, slot);
    } else if (gpu->life.state == CORE_ENGINE_OFF && core->now < gpu->life.start_ms &&
               !gpu->life.renews) {
        answer_ask(core, slot, CAUSE_NO_DAEMON,
                   "node %s has no GPU service: %s; who asks in %llu ms starts it again", self,
                   gpu->life.text, (unsigned long long)(gpu->life.start_ms - core->now));
    } else {
        client->gpu_waits = true;
        gpu->waiting++;
        if (gpu->life.state == CORE_ENGINE_OFF && !gpu->life.renews)
            start(core);
    }
}

void gpu_client_closed(struct core *core, unsigned slot)
{
    struct client *client = &core->clients[slot];

    end_session(core, slot);
    wait_no_more(core, client);
}

/* ---- what it says ---------------------------------------------------------------------------- */

void gpu_started(struct core *core, uint32_t pid)
{
    if (core->gpu.life.state == CORE_ENGINE_STARTING)
        core->gpu.life.pid = pid;
}

static void gpu_hello(struct core *core, const struct msg_gpu_hello *msg)
{
    struct own_gpu *gpu = &core->gpu;

    assert(gpu->life.state == CORE_ENGINE_STARTING && (gpu->resuming || !gpu->sessions));
    text_copy(gpu->life.text, sizeof(gpu->life.text), msg->text);
    if (!msg_version_fits(msg->version)) {
        life_kill(core, &core->gpu.life,
                  "it speaks an older protocol than commd understands: upgrade it");
        return;
    }
    if (gpu->resuming != !!msg->resumed) {
        life_kill(core, &gpu->life, "it is not the one that was there before commd was restarted");
        return;
    }
    if (!msg->devices || msg->devices > MSG_MAX_GPUS) {
        life_kill(core, &core->gpu.life, gpu->life.text[0] ? gpu->life.text : "it found no GPU");
        return;
    }
    life_set_state(core, &gpu->life, CORE_ENGINE_UP);
    gpu->resuming = false;
    gpu->ndevices = msg->devices;
    gpu->nccl = msg->nccl;
    renew_hello(core, &gpu->life, msg->build, msg->settings);
    act_note(core, CORE_NOTE_GPU_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "commd-gpu pid %u %s: %s",
             gpu->life.pid, msg->resumed ? "goes on since before commd was restarted" : "is up",
             gpu->life.text);
    for (unsigned slot = 0; slot < core->client_slots && gpu->waiting; slot++)
        if (core->clients[slot].gpu_waits)
            begin_session(core, slot);
    assert(!gpu->waiting);
}

/* A session that a commd before this one made. Its client may have ended since. */
static void session_goes_on(struct core *core, const struct msg_gpu_session *msg)
{
    struct client *client = msg->client < core->client_slots ? &core->clients[msg->client] : NULL;

    assert(core->gpu.resuming);
    if (!client || !client_counts(client) || client->uid == CORE_GPU_UID ||
        client->pid != msg->pid) {
        act_to_gpu(
            core, (struct act_msg){.type = MSG_GPU_SESSION_DEL, .gpu_session.client = msg->client});
        return;
    }
    core->gpu.sessions += !client->gpu_session;
    client->gpu_session = true;
}

static void gpu_device(struct core *core, const struct msg_gpu_device *msg)
{
    assert(core->gpu.ndevices && core->gpu.ndevices <= MSG_MAX_GPUS);
    if (msg->device >= core->gpu.ndevices) {
        life_kill(core, &core->gpu.life,
                  "it broke the protocol: it tells of a GPU that it does not have");
        return;
    }
    core->gpu.devices[msg->device] = *msg;
}

void gpu_msg(struct core *core, const struct msg *msg)
{
    struct own_gpu *gpu = &core->gpu;

    if (gpu->life.state == CORE_ENGINE_OFF || gpu->life.killed)
        return; /* last words of one that is going */
    if (gpu->resuming && msg->type == MSG_GPU_SESSION) {
        session_goes_on(core, &msg->gpu_session);
        return;
    }
    if ((gpu->life.state == CORE_ENGINE_STARTING) != (msg->type == MSG_GPU_HELLO)) {
        life_kill(core, &core->gpu.life,
                  "it broke the protocol: hello has to be its first message and no other");
        return;
    }
    switch ((int)msg->type) { /* int: of all types it may send three here */
    case MSG_GPU_HELLO:
        gpu_hello(core, &msg->gpu_hello);
        break;
    case MSG_GPU_DEVICE:
        gpu_device(core, &msg->gpu_device);
        break;
    case MSG_PING:
        life_pong(&gpu->life, &msg->ping);
        break;
    default:
        life_kill(core, &core->gpu.life,
                  "it broke the protocol: a message type that is not for commd-gpu");
        break;
    }
}

/* Its sessions ended with it. */
static void forget_sessions(struct core *core)
{
    for (unsigned slot = 0; slot < core->client_slots && core->gpu.sessions; slot++) {
        core->gpu.sessions -= core->clients[slot].gpu_session;
        core->clients[slot].gpu_session = false;
    }
}

static void forget_devices(struct own_gpu *gpu)
{
    gpu->ndevices = gpu->nccl = 0;
    memset(gpu->devices, 0, sizeof(gpu->devices));
}

void gpu_down(struct core *core, const char *why)
{
    struct own_gpu *gpu = &core->gpu;
    char wait[80];
    bool was_up;

    if (gpu->life.state == CORE_ENGINE_OFF) {
        if (renew_ended(core, &gpu->life) && gpu->waiting)
            start(core);
        return;
    }
    was_up = life_end(core, &gpu->life, why) || gpu->resuming;
    gpu->resuming = false;
    forget_devices(gpu);
    if (was_up)
        core->counts.gpu_losses++;
    if (!core->stopping)
        act_note(core, CORE_NOTE_GPU_LOST, CORE_BY_NOBODY, 0, CORE_LOG_ERROR,
                 "commd-gpu of node %s %s: %s -> the next who asks starts it again%s",
                 core_self_name(core), was_up ? "was lost" : "could not start", gpu->life.text,
                 life_wait_text(core, &gpu->life, wait));
    forget_sessions(core);
    assert(!gpu->sessions && !gpu->ndevices);
    for (unsigned slot = 0; slot < core->client_slots && gpu->waiting; slot++)
        if (core->clients[slot].gpu_waits)
            answer_ask(core, slot, CAUSE_NO_DAEMON, "node %s has no GPU service: %s",
                       core_self_name(core), gpu->life.text);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* A start has to make a context on each GPU, and may load the driver first. */
static uint64_t gpu_start_limit(const struct core *core)
{
    return 2 * core->config.gpu_timeout_ms;
}

void gpu_tick(struct core *core)
{
    struct life *life = &core->gpu.life;

    if (!life_tick(core, life, gpu_start_limit(core), core->config.gpu_timeout_ms))
        return;
    act_to_gpu(core, (struct act_msg){.type = MSG_PING, .ping = {life->seq, 0}});
    if (renew_gpu(core))
        forget_devices(&core->gpu);
}

uint64_t gpu_deadline(const struct core *core)
{
    return life_deadline(&core->gpu.life, gpu_start_limit(core), core->config.gpu_timeout_ms);
}

/* ---- taking over ----------------------------------------------------------------------------- */

bool core_restore_gpu(struct core *core, uint32_t pid)
{
    struct life *life = &core->gpu.life;

    assert(core->phase == PHASE_RESTORING && !core->naway);
    assert(life->state == CORE_ENGINE_OFF);
    if (!core->config.gpu || !pid)
        return false;
    life_set_state(core, life, CORE_ENGINE_STARTING);
    life->pid = pid;
    core->gpu.resuming = true;
    text_copy(life->text, sizeof(life->text), "it goes on, and was not heard yet");
    return true;
}

void core_restore_gpu_lost(struct core *core, uint32_t pid)
{
    assert(core->phase == PHASE_RESTORING && core->gpu.life.state == CORE_ENGINE_OFF);
    core->gpu.lost_pid = pid;
}

void gpu_taken_over(struct core *core)
{
    if (!core->gpu.lost_pid)
        return;
    core->counts.gpu_losses++;
    act_note(core, CORE_NOTE_GPU_LOST, CORE_BY_NOBODY, 0, CORE_LOG_WARN,
             "commd-gpu pid %u has ended while no commd was there -> the next who asks starts it "
             "again",
             core->gpu.lost_pid);
    core->gpu.lost_pid = 0;
}

/* ---- its share ------------------------------------------------------------------------------- */

/* Groups that users leave free for commd-gpu where there is one: it has one for each group of
 * theirs that spans several nodes and works on GPUs. */
uint32_t gpu_spare(const struct core *core)
{
    const struct user *user = user_get((struct core *)core, CORE_GPU_UID, false); /* only reads */
    uint32_t spare = core->config.gpu ? core->config.max_groups / CORE_GPU_SPARE : 0;
    uint32_t used = user ? user->groups : 0;

    return spare - MIN(used, spare);
}

void core_gpu(const struct core *core, struct core_gpu_view *ret_view)
{
    const struct own_gpu *gpu = &core->gpu;

    *ret_view = (struct core_gpu_view){
        .wanted = core->config.gpu,
        .state = gpu->life.state,
        .pid = gpu->life.pid,
        .since_ms = gpu->life.since_ms,
        .unanswered_ms = gpu->life.unanswered_ms,
        .text = gpu->life.text,
        .build = gpu->life.build,
        .nccl = gpu->nccl,
        .sessions = gpu->sessions,
        .ndevices = gpu->ndevices,
        .devices = gpu->devices,
    };
}
