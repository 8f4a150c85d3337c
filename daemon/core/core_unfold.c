/* core_unfold.c - the queue of actions, the way out: core_next().
 *
 * Records become whole struct core_actions only here, one at a time, so that the queue stays
 * small however many nodes a message goes to. A record about a group is filled from the group
 * as it is when the action is handed out; the deferred free keeps objects readable until the queue
 * is empty. */
#include "daemon/core/core_act.h"

static const char *act_text(const struct core *core, const struct act *act)
{
    return core->queue.text + act->text;
}

#define COPY(dst, src) text_copy(dst, sizeof(dst), src)

static struct msg *unfold_message(struct core_action *ret, enum core_action_type type,
                                  unsigned target, enum msg_type kind)
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
    struct msg_welcome *m = &unfold_message(ret, CORE_DO_CLIENT_SEND, client, MSG_WELCOME)->welcome;

    m->version = MSG_VERSION;
    m->incarnation = core->config.incarnation;
    COPY(m->node, core_self_name(core));
    COPY(m->cluster, core->cluster);
}

static void join(const struct core *core, const struct act *act, struct core_action *ret)
{
    const struct member *member = pool_at(&core->members, act->object);
    struct msg_join *m = &unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN)->join;

    m->join = act->id;
    m->uid = member->uid;
    m->pid = member->pid;
    m->rank = member->rank;
    m->size = member->size;
    m->gpu = core->config.gpu;
    COPY(m->name, member->name);
}

static void unfold_commit(struct core *core, const struct act *act, unsigned node,
                          struct core_action *ret)
{
    const struct forming *forming = pool_at(&core->formings, act->object);
    struct msg_commit *m = &unfold_message(ret, CORE_DO_PEER_SEND, node, MSG_COMMIT)->commit;

    m->group = forming->id;
    m->epoch = 1;
    m->uid = forming->uid;
    m->latency_us = core->config.net.latency_us;
    m->mbytes_s = core->config.net.mbytes_s;
    m->gpu = home_all_gpu(core, forming);
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
    struct msg_gone *m = &unfold_message(ret, CORE_DO_PEER_SEND, node, MSG_GONE)->gone;

    m->group = group->id;
    m->rank = (uint32_t)act->rank;
    m->ops = act->ops;
    m->pid = act->pid;
    m->cause = act->cause;
    COPY(m->text, act_text(core, act));
}

static void broken(const struct group *group, unsigned node, struct core_action *ret)
{
    struct msg_broken *m = &unfold_message(ret, CORE_DO_PEER_SEND, node, MSG_BROKEN)->broken;

    m->group = group->id;
    m->cause = group->cause;
    m->rank = group->cause_rank;
    m->pid = group->cause_pid;
    COPY(m->node, group->cause_node);
    COPY(m->text, group->cause_text);
}

static void who(const struct act *act, unsigned node, struct core_action *ret)
{
    struct msg_ask_absent *m =
        &unfold_message(ret, CORE_DO_PEER_SEND, node, MSG_ASK_ABSENT)->ask_absent;

    m->group = act->id;
    m->ask = act->id2;
    m->seq = act->seq;
}

static void group_action(const struct core *core, const struct act *act, enum core_action_type type,
                         struct core_action *ret)
{
    ret->type = type;
    ret->group = act->id;
    ret->flag = act->flag;
    ret->cause = (enum cause)act->cause;
    ret->rank = act->rank;
    ret->ops = act->ops;
    ret->pid = act->pid;
    COPY(ret->text, act_text(core, act));
    if (type == CORE_DO_MEMBER_GONE) {
        const struct group *group = pool_at(&core->groups, act->object);

        COPY(ret->name, core_node_name(core, group->nodes[group->members[act->rank].node]));
    }
}

static void unfold_group_broken(const struct core *core, const struct act *act,
                                struct core_action *ret)
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
            unfold_commit(core, act, node, ret);
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
            if (group->confirmed[place])
                continue;
            unfold_message(ret, CORE_DO_PEER_SEND, node, MSG_SYNC)->sync.group = group->id;
        } else if (act->kind == ACT_ASK_ABSENT) {
            who(act, node, ret);
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
            group_action(core, &one, CORE_DO_MEMBER_GONE, ret);
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

static void unfold_engine_state(const struct core *core, const struct act *act,
                                struct core_action *ret)
{
    struct msg_engine_state *m =
        &unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_ENGINE_STATE)->engine_state;

    m->engine = act->id;
    if (!act->id)
        return;
    m->addr_len = core->engine.addr_len;
    memcpy(m->addr, core->engine.addr, m->addr_len);
}

static void unfold_peer_add(const struct core *core, const struct act *act, struct core_action *ret)
{
    const struct peer *peer = &core->peers[act->target];
    struct msg_engine_peer_add *m =
        &unfold_message(ret, CORE_DO_ENGINE_SEND, act->target, MSG_ENGINE_PEER_ADD)
             ->engine_peer_add;

    m->peer = act->target;
    m->engine = act->id;
    m->addr_len = peer->addr_len;
    memcpy(m->addr, peer->addr, m->addr_len);
    COPY(m->node, core_node_name(core, act->target));
}

static void absent_here(const struct act *act, struct core_action *ret)
{
    ret->type = CORE_DO_GROUP_ABSENT;
    ret->group = act->id;
    ret->flag = act->flag;
    ret->seq = act->seq;
    ret->ask = act->id2;
    if (act->flag)
        ret->node = act->target;
    else
        ret->client = act->target;
}

static void absent(const struct core *core, const struct act *act, struct core_action *ret)
{
    struct msg_absent *m =
        &unfold_message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_ABSENT)->absent;

    m->req = act->req;
    m->count = act->ops;
    m->rank = act->rank;
    COPY(m->node, core_node_name(core, act->about - 1));
    COPY(m->text, act_text(core, act));
}

static void client_message(const struct core *core, const struct act *act, struct core_action *ret)
{
    if (act->kind == ACT_REFUSED) {
        struct msg_refused *m =
            &unfold_message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_REFUSED)->refused;

        m->cause = act->cause;
        COPY(m->text, act_text(core, act));
    } else {
        struct msg_join_failed *m =
            &unfold_message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_JOIN_FAILED)->join_failed;

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
            &unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_BROKEN)->broken;

        m->group = act->id;
        m->cause = act->cause;
        m->rank = act->rank;
        COPY(m->node, core_self_name(core));
        COPY(m->text, act_text(core, act));
    } else {
        struct msg_join_refused *m =
            &unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN_REFUSED)->join_refused;

        m->join = act->id;
        m->cause = act->cause;
        m->rank = act->rank;
        COPY(m->node, core_self_name(core));
        COPY(m->text, act_text(core, act));
    }
}

static void gpu_action(const struct core *core, const struct act *act, struct core_action *ret)
{
    struct msg *m;

    if (act->kind == ACT_GPU_SESSION) {
        ret->type = CORE_DO_GPU_SESSION;
        ret->client = act->target;
        ret->by_id = (uint32_t)act->id;
        ret->pid = act->pid;
        ret->ask = act->req;
    } else if (act->kind == ACT_GPU_SESSION_DEL) {
        m = unfold_message(ret, CORE_DO_GPU_SEND, 0, MSG_GPU_SESSION_DEL);
        m->gpu_session.client = act->target;
    } else if (act->kind == ACT_GPU_PING) {
        unfold_message(ret, CORE_DO_GPU_SEND, 0, MSG_PING)->ping.seq = act->id;
    } else {
        m = unfold_message(ret, CORE_DO_CLIENT_SEND, act->target, MSG_GPU_ANSWER);
        m->gpu_answer.req = act->req;
        m->gpu_answer.cause = act->cause;
        COPY(m->gpu_answer.text, act_text(core, act));
    }
}

static void unfold_log_line(const struct core *core, const struct act *act, struct core_action *ret)
{
    ret->type = CORE_DO_LOG;
    ret->level = act->level;
    ret->by = (enum core_by)act->flag;
    ret->by_id = act->target;
    ret->note = (enum core_note)act->cause;
    COPY(ret->text, act_text(core, act));
}

/* Fills *ret from @act; false when it has nothing (more) to give. */
static bool unfold(struct core *core, struct act *act, struct core_action *ret)
{
    struct msg *m;

    switch ((enum act_kind)act->kind) {
    case ACT_LOG:
        unfold_log_line(core, act, ret);
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
        m = unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_HEARTBEAT);
        m->heartbeat.seq = act->id;
        m->heartbeat.draining = core->draining;
        return true;
    case ACT_ENGINE_STATE:
        unfold_engine_state(core, act, ret);
        return true;
    case ACT_ENGINE_READY:
        m = unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_ENGINE_READY);
        m->engine_ready.engine = act->id;
        m->engine_ready.mine = act->id2;
        return true;
    case ACT_JOIN:
        join(core, act, ret);
        return true;
    case ACT_JOIN_CANCEL:
        unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_JOIN_CANCEL)->join_cancel.join =
            act->id;
        return true;
    case ACT_JOIN_REFUSED:
    case ACT_BROKEN_TO:
        peer_message(core, act, ret);
        return true;
    case ACT_COMMIT:
        return next_commit(core, act, ret);
    case ACT_ABSENT_HERE:
        absent_here(act, ret);
        return true;
    case ACT_ABSENT:
        absent(core, act, ret);
        return true;
    case ACT_LOG_LEVEL:
        ret->type = CORE_DO_LOG_LEVEL;
        ret->client = act->target;
        ret->by = CORE_BY_USER;
        ret->by_id = (uint32_t)act->id;
        ret->level = act->level;
        return true;
    case ACT_RELOAD:
        ret->type = CORE_DO_RELOAD;
        ret->client = act->target;
        return true;
    case ACT_CHANGED:
        ret->type = CORE_DO_CHANGED;
        ret->client = act->target;
        ret->flag = act->flag;
        ret->ops = act->ops;
        COPY(ret->text, act_text(core, act));
        return true;
    case ACT_SYNC:
    case ACT_ASK_ABSENT:
    case ACT_GONE:
    case ACT_BROKEN:
        return next_participant(core, act, ret);
    case ACT_SYNC_TO:
        unfold_message(ret, CORE_DO_PEER_SEND, act->target, MSG_SYNC)->sync.group = act->id;
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
    case ACT_GPU_START:
        ret->type = CORE_DO_GPU_START;
        return true;
    case ACT_GPU_KILL:
        ret->type = CORE_DO_GPU_KILL;
        return true;
    case ACT_GPU_PING:
    case ACT_GPU_SESSION:
    case ACT_GPU_SESSION_DEL:
    case ACT_GPU_ANSWER:
        gpu_action(core, act, ret);
        return true;
    case ACT_PING:
    case ACT_PONG:
        m = unfold_message(ret, CORE_DO_ENGINE_SEND, 0, MSG_PING);
        m->ping.seq = act->id;
        m->ping.pong = act->kind == ACT_PONG;
        return true;
    case ACT_PEER_ADD:
        unfold_peer_add(core, act, ret);
        return true;
    case ACT_PEER_DEL:
        m = unfold_message(ret, CORE_DO_ENGINE_SEND, act->target, MSG_ENGINE_PEER_DEL);
        m->engine_peer.peer = act->target;
        m->engine_peer.engine = act->id;
        return true;
    case ACT_GROUP_OPEN:
        group_action(core, act, CORE_DO_GROUP_OPEN, ret);
        return true;
    case ACT_MEMBER_GONE:
        group_action(core, act, CORE_DO_MEMBER_GONE, ret);
        return true;
    case ACT_GROUP_BROKEN:
        unfold_group_broken(core, act, ret);
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
        bool folded = act->kind == ACT_COMMIT || act->kind == ACT_SYNC ||
                      act->kind == ACT_ASK_ABSENT || act->kind == ACT_GONE ||
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
