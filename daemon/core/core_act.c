/* core_act.c - the queue of actions, the way in: what the decisions put there.
 *
 * One event can cause very many actions (a node that is lost breaks every group it was in), so
 * what is queued is a record of a few words, and a message to all participants of a group is
 * one record that core_next() (core_unfold.c) unfolds. Records name objects by pool index;
 * the deferred free keeps those readable until the queue is empty. core_alloc.c sizes the queue for
 * the worst event, so that running out of records is a bug of ours and aborts. Texts are shared
 * when equal; running out of their room only costs the text. */
#include <stdarg.h>

#include "daemon/core/core_act.h"

size_t act_size(void)
{
    return sizeof(struct act);
}

void act_reset(struct core *core)
{
    core->queue.head = core->queue.tail = 0;
    core->queue.text_used = 1;
    core->queue.text_last = 0;
}

static struct act *push(struct core *core, enum act_kind kind)
{
    struct act *act;

    if (core->queue.tail == core->queue.cap)
        abort();
    act = &core->queue.acts[core->queue.tail++];
    memset(act, 0, sizeof(*act));
    act->kind = (uint8_t)kind;
    act->rank = -1;
    return act;
}

bool act_room(const struct core *core)
{
    return core->queue.cap - core->queue.tail > core->queue.cap / 4;
}

static uint32_t keep_text(struct core *core, const char *text)
{
    struct queue *queue = &core->queue;
    size_t len = text ? strnlen(text, MSG_TEXT_MAX - 1) : 0;

    if (!len)
        return 0;
    if (queue->text_last && strlen(queue->text + queue->text_last) == len &&
        !memcmp(queue->text + queue->text_last, text, len))
        return queue->text_last;
    if (queue->text_used + len + 1 > queue->text_cap)
        return 0;
    queue->text_last = queue->text_used;
    memcpy(queue->text + queue->text_last, text, len);
    queue->text[queue->text_last + len] = 0;
    queue->text_used += (uint32_t)len + 1;
    return queue->text_last;
}

/* ---- in -------------------------------------------------------------------------------------- */

static void push_log(struct core *core, enum core_note note, enum core_by by, uint32_t id,
                     unsigned level, const char *format, va_list args)
{
    char buf[MSG_TEXT_MAX];
    struct text text = {buf, sizeof(buf), 0};
    struct act *act = push(core, ACT_LOG);

    buf[0] = 0;
    text_vadd(&text, format, args);
    act->level = (uint8_t)level;
    act->cause = (uint8_t)note;
    act->flag = (uint8_t)by;
    act->target = id;
    act->text = keep_text(core, buf);
}

void act_log(struct core *core, unsigned level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    push_log(core, CORE_NOTE_NONE, CORE_BY_NOBODY, 0, level, format, args);
    va_end(args);
}

void act_log_user(struct core *core, uint32_t uid, unsigned level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    push_log(core, CORE_NOTE_NONE, CORE_BY_USER, uid, level, format, args);
    va_end(args);
}

void act_log_node(struct core *core, unsigned node, unsigned level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    push_log(core, CORE_NOTE_NONE, CORE_BY_NODE, node, level, format, args);
    va_end(args);
}

void act_note(struct core *core, enum core_note note, enum core_by by, uint32_t id, unsigned level,
              const char *format, ...)
{
    va_list args;

    va_start(args, format);
    push_log(core, note, by, id, level, format, args);
    va_end(args);
}

static struct act *push_to(struct core *core, enum act_kind kind, unsigned target)
{
    struct act *act = push(core, kind);

    act->target = target;
    return act;
}

void act_welcome(struct core *core, unsigned client)
{
    push_to(core, ACT_WELCOME, client);
}

void act_refused(struct core *core, unsigned client, enum cause cause, const char *text)
{
    struct act *act = push_to(core, ACT_REFUSED, client);

    count_cause(core->counts.clients_refused, cause);
    act->cause = (uint8_t)cause;
    act->text = keep_text(core, text);
    push_to(core, ACT_CLOSE, client);
}

void act_join_failed(struct core *core, unsigned client, uint32_t req, enum cause cause,
                     int32_t rank, const char *node, const char *text)
{
    struct act *act = push_to(core, ACT_JOIN_FAILED, client);

    count_cause(core->counts.joins_failed, cause);
    act->req = req;
    act->cause = (uint8_t)cause;
    act->rank = rank;
    act->text = keep_text(core, text);
    for (unsigned i = 0; node && i < core->config.nnodes; i++)
        if (!strcmp(node, core_node_name(core, i)))
            act->about = i + 1;
}

void act_peer_drop(struct core *core, unsigned node, const char *text)
{
    push_to(core, ACT_PEER_DROP, node)->text = keep_text(core, text);
}

void act_heartbeat(struct core *core, unsigned node)
{
    push_to(core, ACT_HEARTBEAT, node)->id = core->heartbeat_seq;
}

void act_engine_state(struct core *core, unsigned node)
{
    push_to(core, ACT_ENGINE_STATE, node)->id =
        core->engine.state == CORE_ENGINE_UP ? core->engine.incarnation : 0;
}

void act_engine_ready(struct core *core, unsigned node)
{
    struct act *act = push_to(core, ACT_ENGINE_READY, node);

    act->id = core->peers[node].engine;
    act->id2 = core->engine.incarnation;
}

void act_join(struct core *core, const struct member *member)
{
    struct act *act = push_to(core, ACT_JOIN, (unsigned)member->home);

    act->object = pool_index(&core->members, member);
    act->id = member->join;
}

void act_join_cancel(struct core *core, unsigned node, uint64_t join)
{
    push_to(core, ACT_JOIN_CANCEL, node)->id = join;
}

void act_join_refused(struct core *core, unsigned node, uint64_t join, enum cause cause,
                      int32_t rank, const char *text)
{
    struct act *act = push_to(core, ACT_JOIN_REFUSED, node);

    act->id = join;
    act->cause = (uint8_t)cause;
    act->rank = rank;
    act->text = keep_text(core, text);
}

void act_commit(struct core *core, const struct forming *forming)
{
    push(core, ACT_COMMIT)->object = pool_index(&core->formings, forming);
}

static struct act *push_group(struct core *core, enum act_kind kind, const struct group *group)
{
    struct act *act = push(core, kind);

    act->object = pool_index(&core->groups, group);
    act->id = group->id;
    return act;
}

void act_sync(struct core *core, const struct group *group)
{
    push_group(core, ACT_SYNC, group);
}

void act_sync_to(struct core *core, const struct group *group, unsigned node)
{
    push_group(core, ACT_SYNC_TO, group)->target = node;
}

void act_gone_again(struct core *core, const struct group *group, unsigned node)
{
    push_group(core, ACT_GONE_AGAIN, group)->target = node;
}

void act_absent_here(struct core *core, const struct group *group, unsigned client, uint32_t req,
                     uint64_t seq)
{
    struct act *act = push_group(core, ACT_ABSENT_HERE, group);

    act->target = client;
    act->id2 = req;
    act->seq = seq;
}

void act_absent_to(struct core *core, const struct group *group, unsigned node, uint64_t ask,
                   uint64_t seq)
{
    struct act *act = push_group(core, ACT_ABSENT_HERE, group);

    act->flag = true;
    act->target = node;
    act->id2 = ask;
    act->seq = seq;
}

void act_ask_absent(struct core *core, const struct group *group, uint64_t ask, uint64_t seq)
{
    struct act *act = push_group(core, ACT_ASK_ABSENT, group);

    act->id2 = ask;
    act->seq = seq;
}

void act_absent(struct core *core, unsigned client, unsigned node,
                const struct msg_absent_here *answer)
{
    struct act *act = push_to(core, ACT_ABSENT, client);

    act->req = (uint32_t)answer->ask;
    act->ops = answer->count;
    act->rank = answer->rank;
    act->about = node + 1;
    act->text = keep_text(core, answer->text);
}

static void fill_gone(struct core *core, struct act *act, const struct group *group, uint32_t rank,
                      const char *text)
{
    const struct fate *fate = runs_fate(&core->runs, &group->members[rank]);

    act->rank = (int32_t)rank;
    act->ops = fate->ops;
    act->cause = fate->cause;
    act->pid = group->members[rank].pid;
    act->text = keep_text(core, text);
}

void act_gone(struct core *core, const struct group *group, uint32_t rank, const char *text)
{
    fill_gone(core, push_group(core, ACT_GONE, group), group, rank, text);
}

void act_broken(struct core *core, const struct group *group)
{
    push_group(core, ACT_BROKEN, group);
}

void act_broken_to(struct core *core, unsigned node, uint64_t group, enum cause cause, int32_t rank,
                   const char *text)
{
    struct act *act = push_to(core, ACT_BROKEN_TO, node);

    act->id = group;
    act->cause = (uint8_t)cause;
    act->rank = rank;
    act->text = keep_text(core, text);
}

void act_broken_again(struct core *core, const struct group *group, unsigned node)
{
    struct act *act = push_group(core, ACT_BROKEN_TO, group);

    act->target = node;
    act->flag = true;
}

void act_changed(struct core *core, unsigned client, bool done, unsigned groups, const char *text)
{
    struct act *act = push_to(core, ACT_CHANGED, client);

    act->flag = done;
    act->ops = groups;
    act->text = keep_text(core, text);
}

void act_log_level(struct core *core, unsigned client, uint32_t uid, unsigned level)
{
    struct act *act = push_to(core, ACT_LOG_LEVEL, client);

    act->level = (uint8_t)level;
    act->id = uid;
}

void act_reload(struct core *core, unsigned client)
{
    push_to(core, ACT_RELOAD, client);
}

void act_engine_start(struct core *core)
{
    push(core, ACT_ENGINE_START);
}

void act_engine_kill(struct core *core)
{
    push(core, ACT_ENGINE_KILL);
}

void act_gpu_start(struct core *core)
{
    push(core, ACT_GPU_START);
}

void act_gpu_kill(struct core *core)
{
    push(core, ACT_GPU_KILL);
}

void act_gpu_ping(struct core *core, uint64_t seq)
{
    push(core, ACT_GPU_PING)->id = seq;
}

void act_gpu_session(struct core *core, unsigned client, uint32_t req)
{
    struct act *act = push_to(core, ACT_GPU_SESSION, client);

    act->req = req;
    act->pid = core->clients[client].pid;
    act->id = core->clients[client].uid;
}

void act_gpu_session_del(struct core *core, unsigned client)
{
    push_to(core, ACT_GPU_SESSION_DEL, client);
}

void act_gpu_answer(struct core *core, unsigned client, uint32_t req, enum cause cause,
                    const char *text)
{
    struct act *act = push_to(core, ACT_GPU_ANSWER, client);

    act->req = req;
    act->cause = (uint8_t)cause;
    act->text = keep_text(core, text);
}

void act_ping(struct core *core, uint64_t seq)
{
    push(core, ACT_PING)->id = seq;
}

void act_pong(struct core *core, uint64_t seq)
{
    push(core, ACT_PONG)->id = seq;
}

void act_peer_add(struct core *core, unsigned node)
{
    push_to(core, ACT_PEER_ADD, node)->id = core->peers[node].engine;
}

void act_peer_del(struct core *core, unsigned node, uint64_t engine)
{
    push_to(core, ACT_PEER_DEL, node)->id = engine;
}

void act_group_open(struct core *core, const struct group *group)
{
    push_group(core, ACT_GROUP_OPEN, group);
    push_group(core, ACT_GROUP_FATES, group);
}

void act_member_gone(struct core *core, const struct group *group, uint32_t rank, uint32_t ops,
                     const char *text)
{
    struct act *act = push_group(core, ACT_MEMBER_GONE, group);

    fill_gone(core, act, group, rank, text);
    act->ops = ops;
}

void act_group_broken(struct core *core, const struct group *group)
{
    push_group(core, ACT_GROUP_BROKEN, group);
}

void act_group_close(struct core *core, const struct group *group, bool abort)
{
    push_group(core, ACT_GROUP_CLOSE, group)->flag = abort;
}
