/* core_act.c - the queue of actions, the way in: what the decisions put there.
 *
 * One event can cause very many actions (a node that is lost breaks every group it was in), so
 * what is queued is a record of a few words, and a message to all participants of a group is
 * one record that core_next() (core_unfold.c) unfolds. Records point to objects of the core;
 * the deferred free keeps those readable until the queue is empty. core_alloc.c sizes the queue for
 * the worst event, so that running out of records is a bug of ours and aborts. Texts are shared
 * when equal; running out of their room only costs the text. */
#include <stdarg.h>

#include "daemon/core/core_internal.h"

void act_reset(struct core *core)
{
    assert(core->queue.head == core->queue.tail);
    core->queue.head = core->queue.tail = 0;
    core->queue.text_used = 1;
    core->queue.text_last = 0;
}

bool act_room(const struct core *core)
{
    return core->queue.cap - core->queue.tail > core->queue.cap / 4;
}

const char *act_text(struct core *core, const char *text)
{
    struct queue *queue = &core->queue;
    size_t len = text ? strnlen(text, MSG_TEXT_MAX - 1) : 0;
    const char *last = queue->text + queue->text_last;

    assert(queue->text_used && queue->text_used <= queue->text_cap);
    assert(queue->text_last < queue->text_used);
    if (!len)
        return queue->text;
    if (queue->text_last && strlen(last) == len && !memcmp(last, text, len))
        return last;
    if (queue->text_used + len + 1 > queue->text_cap)
        return queue->text;
    queue->text_last = queue->text_used;
    memcpy(queue->text + queue->text_last, text, len);
    queue->text[queue->text_last + len] = 0;
    queue->text_used += (uint32_t)len + 1;
    return queue->text + queue->text_last;
}

static void push(struct core *core, struct act act)
{
    assert(core->queue.tail < core->queue.cap);
    assert(act.type > CORE_DO_GPU_SEND || act.msg.type != MSG_NONE);
    assert(act.each == ACT_ONCE || act.group);
    core->queue.acts[core->queue.tail++] = act;
}

void act_push(struct core *core, struct core_action action)
{
    assert(action.type > CORE_DO_GPU_SEND && action.type <= CORE_DO_LOG);
    push(core, (struct act){.type = action.type, .action = action});
}

void act_to_client(struct core *core, unsigned client, struct act_msg msg)
{
    assert(client < core->client_slots);
    assert(core->clients[client].state == CLIENT_NEW ||
           core->clients[client].state == CLIENT_READY);
    push(core, (struct act){.type = CORE_DO_CLIENT_SEND, .to = client, .msg = msg});
}

void act_to_peer(struct core *core, unsigned node, struct act_msg msg)
{
    assert(node < core->config.nnodes && node != core->config.self);
    push(core, (struct act){.type = CORE_DO_PEER_SEND, .to = node, .msg = msg});
}

void act_to_engine(struct core *core, struct act_msg msg)
{
    assert(core->engine.life.state == CORE_ENGINE_UP);
    push(core, (struct act){.type = CORE_DO_ENGINE_SEND, .msg = msg});
}

void act_to_gpu(struct core *core, struct act_msg msg)
{
    assert(core->gpu.life.state != CORE_ENGINE_OFF);
    push(core, (struct act){.type = CORE_DO_GPU_SEND, .msg = msg});
}

void act_to_group(struct core *core, const struct group *group, enum act_each each,
                  struct act_msg msg)
{
    assert(each == ACT_EACH_NODE || each == ACT_EACH_UNCONFIRMED);
    assert(each == ACT_EACH_NODE || group->state == GROUP_COMMITTED || group->state == GROUP_LEFT);
    push(core, (struct act){.type = CORE_DO_PEER_SEND, .each = each, .group = group, .msg = msg});
}

void act_to_group_but(struct core *core, const struct group *group, const struct group *but,
                      struct act_msg msg)
{
    push(core, (struct act){.type = CORE_DO_PEER_SEND,
                            .each = ACT_EACH_NODE,
                            .group = group,
                            .but = but,
                            .msg = msg});
}

void act_commit(struct core *core, const struct forming *forming)
{
    assert(forming->id && forming->count == forming->size);
    push(core, (struct act){.type = CORE_DO_PEER_SEND,
                            .each = ACT_EACH_COMMITTED,
                            .forming = forming,
                            .msg = {.type = MSG_COMMIT}});
}

void act_fates(struct core *core, const struct group *group, bool again)
{
    assert(group->state == GROUP_OPEN || group->state == GROUP_BROKEN);
    push(core, (struct act){.type = CORE_DO_RANK_GONE,
                            .each = ACT_EACH_GONE,
                            .group = group,
                            .action = {.rank_gone = {.missed = group->state == GROUP_BROKEN,
                                                     .again = again}}});
}

void act_fates_to(struct core *core, const struct group *group, unsigned node)
{
    assert(node < core->config.nnodes && node != core->config.self);
    push(core, (struct act){.type = CORE_DO_PEER_SEND,
                            .each = ACT_EACH_GONE,
                            .to = node,
                            .group = group,
                            .msg = {.type = MSG_GONE}});
}

/* ---- lines of the log ------------------------------------------------------------------------ */

static void push_log(struct core *core, struct core_log log, const char *format, va_list args)
{
    char buf[MSG_TEXT_MAX] = "";
    struct text text = {buf, sizeof(buf), 0};

    text_vadd(&text, format, args);
    assert(log.level <= CORE_LOG_DEBUG && log.note < CORE_NOTE_COUNT);
    assert(log.by != CORE_BY_NODE || log.by_id < core->config.nnodes);
    log.text = act_text(core, buf);
    act_push(core, (struct core_action){.type = CORE_DO_LOG, .log = log});
}

/* @log, a struct core_log, with the text that follows the argument @format. */
#define PUSH_LOG(...)                                                                              \
    ({                                                                                             \
        va_list args;                                                                              \
                                                                                                   \
        va_start(args, format);                                                                    \
        push_log(core, (struct core_log){.level = level, __VA_ARGS__}, format, args);              \
        va_end(args);                                                                              \
    })

void act_log(struct core *core, unsigned level, const char *format, ...)
{
    PUSH_LOG(.by = CORE_BY_NOBODY);
}

void act_log_user(struct core *core, uint32_t uid, unsigned level, const char *format, ...)
{
    PUSH_LOG(.by = CORE_BY_USER, .by_id = uid);
}

void act_log_node(struct core *core, unsigned node, unsigned level, const char *format, ...)
{
    PUSH_LOG(.by = CORE_BY_NODE, .by_id = node);
}

void act_note(struct core *core, enum core_note note, enum core_by by, uint32_t id, unsigned level,
              const char *format, ...)
{
    PUSH_LOG(.by = by, .by_id = id, .note = note);
}
