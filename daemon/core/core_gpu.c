/* core_gpu.c - the life of this node's commd-gpu, and the sessions that clients have at it.
 *
 *   OFF --GPU_ASK--> STARTING --GPU_HELLO--> UP --exit, silence--> OFF
 *
 * Nothing is started before the first client asks, and nothing again before the next one does; not
 * sooner than the back-off after a failure, and then who asks is told why. What comes while it
 * starts waits: one request of each client, all answered when it is up, or has failed.
 *
 * A client has one session. Another request ends it first: its socket may have ended without our
 * knowledge. That is all that a client can make us do, and it may ask only so often.
 *
 * commd-gpu is a client of ours too, for what it has to agree on with those of other nodes. The
 * edge knows it by its process, and says that its user is CORE_GPU_UID, which no process can have.
 * That user takes all that others leave of a limit, is not stopped by draining, and alone has group
 * names that begin with CORE_GPU_NAMES. See gpu_spare() for the groups that others leave it.
 *
 * Who wakes me: requests, its messages, its exit, and gpu_deadline(): ping it, give it up.
 * What if the peer (commd-gpu) dies now: CORE_GPU_DOWN; the sockets of its sessions close, by which
 * its clients know. What if a client dies now: GPU_SESSION_DEL.
 * What if I am stopped now: see core_engine.c; gpu_forgive(). */
#include <stdarg.h>

#include "daemon/core/core_internal.h"

/* clang-format off */
static const bool gpu_may[3][3] = { /* rows: from; columns: OFF STARTING UP */
    [CORE_ENGINE_OFF]    = {0, 1, 0},
    [CORE_ENGINE_STARTING] = {1, 0, 1},
    [CORE_ENGINE_UP]       = {1, 0, 0},
};
/* clang-format on */

static void gpu_set_state(struct core *core, enum core_engine_state state)
{
    struct own_gpu *gpu = &core->gpu;

    assert(gpu_may[gpu->state][state]);
    gpu->state = state;
    gpu->since_ms = core->now;
    gpu->killed = false;
    gpu->unanswered_ms = 0;
    gpu->ping_ms = state == CORE_ENGINE_UP ? core->now + CORE_ENGINE_PING_MS : CORE_NEVER;
    if (state != CORE_ENGINE_UP) {
        gpu->ndevices = gpu->nccl = 0;
        memset(gpu->devices, 0, sizeof(gpu->devices));
    }
}

static void kill_gpu(struct core *core, const char *why)
{
    struct own_gpu *gpu = &core->gpu;

    assert(gpu->state != CORE_ENGINE_OFF && !gpu->killed);
    act_log(core, CORE_LOG_ERROR, "commd-gpu: %s -> killing it", why);
    if (why != gpu->text)
        text_copy(gpu->text, sizeof(gpu->text), why);
    gpu->killed = true;
    act_push(core, (struct core_action){.type = CORE_DO_GPU_KILL});
}

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

    assert(core->gpu.state == CORE_ENGINE_UP && !core->gpu.killed);
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
    assert(core->config.gpu && !core->gpu.sessions);
    gpu_set_state(core, CORE_ENGINE_STARTING);
    text_copy(core->gpu.text, sizeof(core->gpu.text), "it starts");
    core->counts.gpu_starts++;
    act_push(core, (struct core_action){.type = CORE_DO_GPU_START});
}

void gpu_ask(struct core *core, unsigned slot, const struct msg_gpu_ask *msg)
{
    struct client *client = &core->clients[slot];
    struct own_gpu *gpu = &core->gpu;
    const char *self = core_self_name(core);

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
        answer_ask(core, slot, CAUSE_NODE_LOST, "commd on node %s is stopping", self);
    } else if (!core->config.gpu) {
        answer_ask(core, slot, CAUSE_NO_DAEMON, "node %s has no GPU service: %s", self, gpu->text);
    } else if (gpu->state == CORE_ENGINE_UP && !gpu->killed) {
        begin_session(core, slot);
    } else if (gpu->state == CORE_ENGINE_OFF && core->now < gpu->start_ms) {
        answer_ask(core, slot, CAUSE_NO_DAEMON,
                   "node %s has no GPU service: %s; who asks in %llu ms starts it again", self,
                   gpu->text, (unsigned long long)(gpu->start_ms - core->now));
    } else {
        client->gpu_waits = true;
        gpu->waiting++;
        if (gpu->state == CORE_ENGINE_OFF)
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
    if (core->gpu.state == CORE_ENGINE_STARTING)
        core->gpu.pid = pid;
}

static void gpu_hello(struct core *core, const struct msg_gpu_hello *msg)
{
    struct own_gpu *gpu = &core->gpu;

    text_copy(gpu->text, sizeof(gpu->text), msg->text);
    if (msg->version != MSG_VERSION) {
        kill_gpu(core, "it speaks another protocol version: install one version of commd");
        return;
    }
    if (!msg->devices || msg->devices > MSG_MAX_GPUS) {
        kill_gpu(core, gpu->text[0] ? gpu->text : "it found no GPU");
        return;
    }
    gpu_set_state(core, CORE_ENGINE_UP);
    gpu->ndevices = msg->devices;
    gpu->nccl = msg->nccl;
    act_note(core, CORE_NOTE_GPU_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "commd-gpu pid %u is up: %s",
             gpu->pid, gpu->text);
    for (unsigned slot = 0; slot < core->client_slots && gpu->waiting; slot++)
        if (core->clients[slot].gpu_waits)
            begin_session(core, slot);
}

static void gpu_device(struct core *core, const struct msg_gpu_device *msg)
{
    if (msg->device >= core->gpu.ndevices) {
        kill_gpu(core, "it broke the protocol: it tells of a GPU that it does not have");
        return;
    }
    core->gpu.devices[msg->device] = *msg;
}

void gpu_msg(struct core *core, const struct msg *msg)
{
    struct own_gpu *gpu = &core->gpu;

    if (gpu->state == CORE_ENGINE_OFF || gpu->killed)
        return; /* last words of one that is going */
    if ((gpu->state == CORE_ENGINE_STARTING) != (msg->type == MSG_GPU_HELLO)) {
        kill_gpu(core, "it broke the protocol: hello has to be its first message and no other");
        return;
    }
    switch ((int)msg->type) { /* int: of all types it may send three */
    case MSG_GPU_HELLO:
        gpu_hello(core, &msg->gpu_hello);
        break;
    case MSG_GPU_DEVICE:
        gpu_device(core, &msg->gpu_device);
        break;
    case MSG_PING:
        if (msg->ping.pong && msg->ping.seq == gpu->seq)
            gpu->unanswered_ms = 0;
        break;
    default:
        kill_gpu(core, "it broke the protocol: a message type that is not for commd-gpu");
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

void gpu_down(struct core *core, const char *why)
{
    struct own_gpu *gpu = &core->gpu;
    bool was_up = gpu->state == CORE_ENGINE_UP;

    if (gpu->state == CORE_ENGINE_OFF)
        return;
    if (!gpu->killed)
        text_copy(gpu->text, sizeof(gpu->text), why ? why : "it went away");
    if (was_up && core->now - gpu->since_ms >= CORE_ENGINE_STABLE_MS)
        gpu->backoff_ms = CORE_ENGINE_RESTART_MIN_MS;
    gpu_set_state(core, CORE_ENGINE_OFF);
    gpu->pid = 0;
    gpu->start_ms = core->now + gpu->backoff_ms;
    gpu->backoff_ms = MIN(2 * gpu->backoff_ms, (uint64_t)CORE_ENGINE_RESTART_MAX_MS);
    if (was_up)
        core->counts.gpu_losses++;
    if (!core->stopping)
        act_note(core, CORE_NOTE_GPU_LOST, CORE_BY_NOBODY, 0, CORE_LOG_ERROR,
                 "commd-gpu of node %s %s: %s -> the next who asks starts it again",
                 core_self_name(core), was_up ? "was lost" : "could not start", gpu->text);
    forget_sessions(core);
    assert(!gpu->sessions && !gpu->ndevices);
    for (unsigned slot = 0; slot < core->client_slots && gpu->waiting; slot++)
        if (core->clients[slot].gpu_waits)
            answer_ask(core, slot, CAUSE_NO_DAEMON, "node %s has no GPU service: %s",
                       core_self_name(core), gpu->text);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* A start has to make a context on each GPU, and may load the driver first. */
static uint64_t gpu_start_limit(const struct core *core)
{
    return 2 * core->config.gpu_timeout_ms;
}

void gpu_tick(struct core *core)
{
    struct own_gpu *gpu = &core->gpu;

    if (gpu->killed)
        return;
    if (gpu->state == CORE_ENGINE_STARTING && core->now >= gpu->since_ms + gpu_start_limit(core)) {
        kill_gpu(core, "it did not say hello in time");
    } else if (gpu->state == CORE_ENGINE_UP) {
        if (gpu->unanswered_ms && core->now >= gpu->unanswered_ms + core->config.gpu_timeout_ms) {
            kill_gpu(core, "it does not answer");
        } else if (core->now >= gpu->ping_ms) {
            gpu->ping_ms = core->now + CORE_ENGINE_PING_MS;
            if (!gpu->unanswered_ms) {
                gpu->unanswered_ms = core->now;
                act_to_gpu(core, (struct act_msg){.type = MSG_PING, .ping = {++gpu->seq, 0}});
            }
        }
    }
}

uint64_t gpu_deadline(const struct core *core)
{
    const struct own_gpu *gpu = &core->gpu;

    if (gpu->killed || gpu->state == CORE_ENGINE_OFF)
        return CORE_NEVER;
    if (gpu->state == CORE_ENGINE_STARTING)
        return gpu->since_ms + gpu_start_limit(core);
    return gpu->unanswered_ms ? MIN(gpu->ping_ms, gpu->unanswered_ms + core->config.gpu_timeout_ms)
                              : gpu->ping_ms;
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
        .state = gpu->state,
        .pid = gpu->pid,
        .since_ms = gpu->since_ms,
        .unanswered_ms = gpu->unanswered_ms,
        .text = gpu->text,
        .nccl = gpu->nccl,
        .sessions = gpu->sessions,
        .ndevices = gpu->ndevices,
        .devices = gpu->devices,
    };
}
