/* core_act.c - the queue of actions: small records in, whole struct core_actions out.
 *
 * One event can cause very many actions (a node that is lost breaks every group it was in), so
 * what is queued is a record of a few words, and a message to all participants of a group is
 * one record that core_next() unfolds. Records name objects by pool index; limbo keeps those
 * readable until the queue is empty. core_alloc.c sizes the queue for the worst event, so that
 * running out of records is a bug of ours and aborts. Texts are shared when equal; running out
 * of their room only costs the text. */
#include <stdarg.h>

#include "daemon/core_internal.h"

enum act_kind {
    ACT_LOG,
    ACT_WELCOME,
    ACT_REFUSED,
    ACT_CLOSE,
    ACT_JOIN_FAILED,
    ACT_PEER_DROP,
    ACT_HEARTBEAT,
    ACT_ENGINE_STATE,
    ACT_ENGINE_READY,
    ACT_JOIN,
    ACT_JOIN_CANCEL,
    ACT_JOIN_REFUSED,
    ACT_COMMIT, /* unfolds over the participants */
    ACT_SYNC,   /* likewise */
    ACT_SYNC_TO,
    ACT_GONE,       /* unfolds over the participants */
    ACT_GONE_AGAIN, /* unfolds over the ranks */
    ACT_BROKEN,     /* unfolds over the participants */
    ACT_BROKEN_TO, /* flag: as the group says, else a text of its own */
    ACT_ENGINE_START,
    ACT_ENGINE_KILL,
    ACT_PING,
    ACT_PONG,
    ACT_PEER_ADD,
    ACT_PEER_DEL,
    ACT_GROUP_OPEN,
    ACT_GROUP_FATES, /* unfolds over the ranks: those that were gone before it opened */
    ACT_GROUP_GONE,
    ACT_GROUP_BROKEN,
    ACT_GROUP_CLOSE,
};

struct act {
    uint8_t kind, cause, level, flag;
    uint32_t object; /* pool index of a seat, group or forming */
    uint32_t target; /* client or node */
    uint32_t at;     /* unfolding: next participant or rank */
    uint32_t ops, pid, req, about; /* about: node a text is about + 1, 0: none */
    int32_t rank;
    uint32_t text;
    uint64_t id, id2;
};

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

/* ---- in ------------------------------------------------------------------------------------- */

void act_log(struct core *core, unsigned level, const char *format, ...)
{
    char buf[MSG_TEXT_MAX];
    struct text text = {buf, sizeof(buf), 0};
    struct act *act = push(core, ACT_LOG);
    va_list args;

    buf[0] = 0;
    va_start(args, format);
    text_vadd(&text, format, args);
    va_end(args);
    act->level = (uint8_t)level;
    act->text = keep_text(core, buf);
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

    act->cause = (uint8_t)cause;
    act->text = keep_text(core, text);
    push_to(core, ACT_CLOSE, client);
}

void act_join_failed(struct core *core, unsigned client, uint32_t req, enum cause cause,
                     int32_t rank, const char *node, const char *text)
{
    struct act *act = push_to(core, ACT_JOIN_FAILED, client);

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

void act_join(struct core *core, const struct seat *seat)
{
    struct act *act = push_to(core, ACT_JOIN, (unsigned)seat->home);

    act->object = pool_index(&core->seats, seat);
    act->id = seat->join;
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

static void fill_gone(struct core *core, struct act *act, const struct group *group,
                      uint32_t rank, const char *text)
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

void act_broken_to(struct core *core, unsigned node, uint64_t group, enum cause cause,
                   int32_t rank, const char *text)
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

void act_engine_start(struct core *core)
{
    push(core, ACT_ENGINE_START);
}

void act_engine_kill(struct core *core)
{
    push(core, ACT_ENGINE_KILL);
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

void act_group_gone(struct core *core, const struct group *group, uint32_t rank, uint32_t ops,
                    const char *text)
{
    struct act *act = push_group(core, ACT_GROUP_GONE, group);

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

/* ---- out -------------------------------------------------------------------------------------- */

static const char *act_text(const struct core *core, const struct act *act)
{
    return core->queue.text + act->text;
}

#define COPY(dst, src) text_copy(dst, sizeof(dst), src)

static struct msg *message(struct core_action *ret, enum core_action_type type, unsigned target,
                           enum msg_type kind)
{
    ret->type = type;
    if (type == CORE_DO_CLIENT_SEND)
        ret->client = target;
    else
        ret->node = target;
    ret->msg.type = kind;
    return &ret->msg;
}

static void welcome(const struct core *core, unsigned client, struct core_action *ret)
{
    struct msg_welcome *m = &message(ret, CORE_DO_CLIENT_SEND, client, MSG_WELCOME)->welcome;

    m->version = MSG_VERSION;
    m->incarnation = core->config.incarnation;
    COPY(m->node, core_self_name(core));
    COPY(m->cluster, core->cluster);
}

static void join(const struct core *core, const struct act *act, struct core_action *ret)
{
    const struct seat *seat = pool_at(&core->seats, act->object);
    struct msg_join *m = &message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN)->join;

    m->join = act->id;
    m->uid = seat->uid;
    m->pid = seat->pid;
    m->rank = seat->rank;
    m->size = seat->size;
    COPY(m->name, seat->name);
}

static void commit(struct core *core, const struct act *act, unsigned node,
                   struct core_action *ret)
{
    const struct forming *forming = pool_at(&core->formings, act->object);
    struct msg_commit *m = &message(ret, CORE_DO_PEER_SEND, node, MSG_COMMIT)->commit;

    m->group = forming->id;
    m->epoch = 1;
    m->uid = forming->uid;
    m->size = forming->size;
    m->nnodes = forming->nnodes;
    m->members = forming->members;
    m->nodes = core->names;
    for (unsigned i = 0; i < forming->nnodes; i++)
        COPY(core->names[i], core_node_name(core, forming->nodes[i]));
    COPY(m->name, forming->name);
    COPY(m->home, core_self_name(core));
}

static void gone(const struct core *core, const struct act *act, const struct group *group,
                 unsigned node, struct core_action *ret)
{
    struct msg_gone *m = &message(ret, CORE_DO_PEER_SEND, node, MSG_GONE)->gone;

    m->group = group->id;
    m->rank = (uint32_t)act->rank;
    m->ops = act->ops;
    m->pid = act->pid;
    m->cause = act->cause;
    COPY(m->text, act_text(core, act));
}

static void broken(const struct group *group, unsigned node, struct core_action *ret)
{
    struct msg_broken *m = &message(ret, CORE_DO_PEER_SEND, node, MSG_BROKEN)->broken;

    m->group = group->id;
    m->cause = group->cause;
    m->rank = group->cause_rank;
    m->pid = group->cause_pid;
    COPY(m->node, group->cause_node);
    COPY(m->text, group->cause_text);
}

static void group_action(const struct core *core, const struct act *act,
                         enum core_action_type type, struct core_action *ret)
{
    ret->type = type;
    ret->group = act->id;
    ret->flag = act->flag;
    ret->cause = (enum cause)act->cause;
    ret->rank = act->rank;
    ret->ops = act->ops;
    ret->pid = act->pid;
    COPY(ret->text, act_text(core, act));
    if (type == CORE_DO_GROUP_GONE) {
        const struct group *group = pool_at(&core->groups, act->object);

        COPY(ret->name, core_node_name(core, group->nodes[group->members[act->rank].node]));
    }
}

static void group_broken(const struct core *core, const struct act *act, struct core_action *ret)
{
    const struct group *group = pool_at(&core->groups, act->object);

    group_action(core, act, CORE_DO_GROUP_BROKEN, ret);
    ret->cause = group->cause;
    ret->rank = group->cause_rank;
    ret->pid = group->cause_pid;
    COPY(ret->name, group->cause_node);
    COPY(ret->text, group->cause_text);
}

/* Steps of the records that unfold; false when there is nothing left of them. */

static bool next_commit(struct core *core, struct act *act, struct core_action *ret)
{
    const struct forming *forming = pool_at(&core->formings, act->object);

    while (act->at < forming->nnodes) {
        unsigned node = forming->nodes[act->at++];

        if (node != core->config.self && peer_linked(core, node)) {
            commit(core, act, node, ret);
            return true;
        }
    }
    return false;
}

static bool next_participant(struct core *core, struct act *act, struct core_action *ret)
{
    const struct group *group = pool_at(&core->groups, act->object);

    while (act->at < group->nnodes) {
        unsigned place = act->at++, node = group->nodes[place];

        if (place == group->me || !peer_linked(core, node))
            continue;
        if (act->kind == ACT_SYNC) {
            if (group->agreed[place])
                continue;
            message(ret, CORE_DO_PEER_SEND, node, MSG_SYNC)->sync.group = group->id;
        } else if (act->kind == ACT_GONE) {
            gone(core, act, group, node, ret);
        } else {
            broken(group, node, ret);
        }
        return true;
    }
    return false;
}

static bool next_rank(struct core *core, struct act *act, struct core_action *ret)
{
    const struct group *group = pool_at(&core->groups, act->object);

    while (act->at < group->size) {
        uint32_t rank = act->at++;
        const struct fate *fate = runs_fate(&core->runs, &group->members[rank]);
        struct act one = *act;

        if (!fate->cause)
            continue;
        one.text = 0;
        one.rank = (int32_t)rank;
        one.ops = fate->ops == CORE_OPS_FROM_BOARD ? 0 : fate->ops;
        one.cause = fate->cause;
        one.pid = group->members[rank].pid;
        if (act->kind == ACT_GROUP_FATES) {
            group_action(core, &one, CORE_DO_GROUP_GONE, ret);
            COPY(ret->text, "gone before the group opened");
            return true;
        }
        if (group->members[rank].node != group->me)
            continue;
        gone(core, &one, group, act->target, ret);
        COPY(ret->msg.gone.text, "gone before the group opened");
        return true;
    }
    return false;
}

static void engine_state(const struct core *core, const struct act *act, struct core_action *ret)
{
    struct msg_engine_state *m =
        &message(ret, CORE_DO_PEER_SEND, act->target, MSG_ENGINE_STATE)->engine_state;

    m->engine = act->id;
    if (!act->id)
        return;
    m->addr_len = core->engine.addr_len;
    memcpy(m->addr, core->engine.addr, m->addr_len);
}

static void peer_add(const struct core *core, const struct act *act, struct core_action *ret)
{
    const struct peer *peer = &core->peers[act->target];
    struct msg_engine_peer_add *m =
        &message(ret, CORE_DO_ENGINE_SEND, act->target, MSG_ENGINE_PEER_ADD)->engine_peer_add;

    m->peer = act->target;
    m->engine = act->id;
    m->addr_len = peer->addr_len;
    memcpy(m->addr, peer->addr, m->addr_len);
    COPY(m->node, core_node_name(core, act->target));
}

static void client_message(const struct core *core, const struct act *act,
                           struct core_action *ret)
{
    if (act->kind == ACT_REFUSED) {
        struct msg_refused *m =
            &message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_REFUSED)->refused;

        m->cause = act->cause;
        COPY(m->text, act_text(core, act));
    } else {
        struct msg_join_failed *m =
            &message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_JOIN_FAILED)->join_failed;

        m->req = act->req;
        m->cause = act->cause;
        m->rank = act->rank;
        COPY(m->node, act->about ? core_node_name(core, act->about - 1) : "");
        COPY(m->text, act_text(core, act));
    }
}

static void peer_message(const struct core *core, const struct act *act, struct core_action *ret)
{
    if (act->kind == ACT_BROKEN_TO && act->flag) {
        broken(pool_at(&core->groups, act->object), act->target, ret);
    } else if (act->kind == ACT_BROKEN_TO) {
        struct msg_broken *m =
            &message(ret, CORE_DO_PEER_SEND, act->target, MSG_BROKEN)->broken;

        m->group = act->id;
        m->cause = act->cause;
        m->rank = act->rank;
        COPY(m->node, core_self_name(core));
        COPY(m->text, act_text(core, act));
    } else {
        struct msg_join_refused *m =
            &message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN_REFUSED)->join_refused;

        m->join = act->id;
        m->cause = act->cause;
        m->rank = act->rank;
        COPY(m->node, core_self_name(core));
        COPY(m->text, act_text(core, act));
    }
}

static void log_line(const struct core *core, const struct act *act, struct core_action *ret)
{
    ret->type = CORE_DO_LOG;
    ret->level = act->level;
    COPY(ret->text, act_text(core, act));
}

/* Fills *ret from @act; false when it has nothing (more) to give. */
static bool unfold(struct core *core, struct act *act, struct core_action *ret)
{
    struct msg *m;

    switch ((enum act_kind)act->kind) {
    case ACT_LOG:
        log_line(core, act, ret);
        return true;
    case ACT_WELCOME:
        welcome(core, act->target, ret);
        return true;
    case ACT_REFUSED:
    case ACT_JOIN_FAILED:
        client_message(core, act, ret);
        return true;
    case ACT_CLOSE:
        ret->type = CORE_DO_CLIENT_CLOSE;
        ret->client = act->target;
        return true;
    case ACT_PEER_DROP:
        ret->type = CORE_DO_PEER_DROP;
        ret->node = act->target;
        COPY(ret->text, act_text(core, act));
        return true;
    case ACT_HEARTBEAT:
        message(ret, CORE_DO_PEER_SEND, act->target, MSG_HEARTBEAT)->heartbeat.seq = act->id;
        return true;
    case ACT_ENGINE_STATE:
        engine_state(core, act, ret);
        return true;
    case ACT_ENGINE_READY:
        m = message(ret, CORE_DO_PEER_SEND, act->target, MSG_ENGINE_READY);
        m->engine_ready.engine = act->id;
        m->engine_ready.mine = act->id2;
        return true;
    case ACT_JOIN:
        join(core, act, ret);
        return true;
    case ACT_JOIN_CANCEL:
        message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN_CANCEL)->join_cancel.join = act->id;
        return true;
    case ACT_JOIN_REFUSED:
    case ACT_BROKEN_TO:
        peer_message(core, act, ret);
        return true;
    case ACT_COMMIT:
        return next_commit(core, act, ret);
    case ACT_SYNC:
    case ACT_GONE:
    case ACT_BROKEN:
        return next_participant(core, act, ret);
    case ACT_SYNC_TO:
        message(ret, CORE_DO_PEER_SEND, act->target, MSG_SYNC)->sync.group = act->id;
        return true;
    case ACT_GONE_AGAIN:
    case ACT_GROUP_FATES:
        return next_rank(core, act, ret);
    case ACT_ENGINE_START:
        ret->type = CORE_DO_ENGINE_START;
        return true;
    case ACT_ENGINE_KILL:
        ret->type = CORE_DO_ENGINE_KILL;
        return true;
    case ACT_PING:
    case ACT_PONG:
        m = message(ret, CORE_DO_ENGINE_SEND, 0, MSG_PING);
        m->ping.seq = act->id;
        m->ping.pong = act->kind == ACT_PONG;
        return true;
    case ACT_PEER_ADD:
        peer_add(core, act, ret);
        return true;
    case ACT_PEER_DEL:
        m = message(ret, CORE_DO_ENGINE_SEND, act->target, MSG_ENGINE_PEER_DEL);
        m->engine_peer.peer = act->target;
        m->engine_peer.engine = act->id;
        return true;
    case ACT_GROUP_OPEN:
        group_action(core, act, CORE_DO_GROUP_OPEN, ret);
        return true;
    case ACT_GROUP_GONE:
        group_action(core, act, CORE_DO_GROUP_GONE, ret);
        return true;
    case ACT_GROUP_BROKEN:
        group_broken(core, act, ret);
        return true;
    case ACT_GROUP_CLOSE:
        group_action(core, act, CORE_DO_GROUP_CLOSE, ret);
        return true;
    }
    abort();
}

bool core_next(struct core *core, struct core_action *ret_action)
{
    struct queue *queue = &core->queue;

    while (queue->head < queue->tail) {
        struct act *act = &queue->acts[queue->head];
        bool folded = act->kind == ACT_COMMIT || act->kind == ACT_SYNC || act->kind == ACT_GONE ||
                      act->kind == ACT_BROKEN || act->kind == ACT_GONE_AGAIN ||
                      act->kind == ACT_GROUP_FATES;
        bool more;

        memset(ret_action, 0, sizeof(*ret_action));
        more = unfold(core, act, ret_action);
        if (!folded || !more)
            queue->head++;
        if (more)
            return true;
    }
    return false;
}
