/* core_unfold.c - the queue of actions, the way out: core_next().
 *
 * Records become whole actions only here, one at a time, so that the queue stays small however
 * many nodes a message goes to. What a message says of a member, a group, a forming or an engine's
 * address is read from there when the message is handed out; the deferred free keeps objects
 * readable until the queue is empty. */
#include "daemon/core/core_internal.h"

#define COPY(dst, src) text_copy(dst, sizeof(dst), src)

/* ---- messages -------------------------------------------------------------------------------- */

static void fill_for_client(const struct core *core, const struct act_msg *msg, struct msg *ret)
{
    switch ((int)msg->type) { /* int: of all types a client gets these from the core */
    case MSG_WELCOME:
        ret->welcome.version = MSG_VERSION;
        ret->welcome.incarnation = core->config.incarnation;
        COPY(ret->welcome.node, core_self_name(core));
        COPY(ret->welcome.cluster, core->cluster);
        break;
    case MSG_REFUSED:
        ret->refused.cause = msg->refused.cause;
        COPY(ret->refused.text, msg->refused.text);
        break;
    case MSG_JOIN_FAILED:
        ret->join_failed.req = msg->join_failed.req;
        ret->join_failed.cause = msg->join_failed.cause;
        ret->join_failed.rank = msg->join_failed.rank;
        COPY(ret->join_failed.node, msg->join_failed.node);
        COPY(ret->join_failed.text, msg->join_failed.text);
        break;
    case MSG_ABSENT:
        ret->absent.req = msg->absent.req;
        ret->absent.count = msg->absent.count;
        ret->absent.rank = msg->absent.rank;
        COPY(ret->absent.node, msg->absent.node);
        COPY(ret->absent.text, msg->absent.text);
        break;
    case MSG_GPU_ANSWER:
        ret->gpu_answer.req = msg->gpu_answer.req;
        ret->gpu_answer.cause = msg->gpu_answer.cause;
        COPY(ret->gpu_answer.text, msg->gpu_answer.text);
        break;
    default:
        abort();
    }
}

/* What a rank's end and a group's end are told by. */
static void fill_end(const struct act_msg *msg, struct msg *ret)
{
    assert(msg->type == MSG_GONE || msg->type == MSG_BROKEN);
    if (msg->type == MSG_GONE) {
        ret->gone.group = msg->gone.group;
        ret->gone.rank = msg->gone.rank;
        ret->gone.ops = msg->gone.ops;
        ret->gone.pid = msg->gone.pid;
        ret->gone.cause = msg->gone.cause;
        COPY(ret->gone.text, msg->gone.text);
        ret->gone.next = msg->gone.next;
    } else {
        ret->broken.group = msg->broken.group;
        ret->broken.cause = msg->broken.cause;
        ret->broken.rank = msg->broken.rank;
        ret->broken.pid = msg->broken.pid;
        COPY(ret->broken.node, msg->broken.node);
        COPY(ret->broken.text, msg->broken.text);
        ret->broken.next = msg->broken.next;
        ret->broken.stray = msg->broken.stray;
        ret->broken.uid = msg->broken.uid;
    }
}

static void fill_for_peer(struct core *core, const struct act *act, struct msg *ret)
{
    const struct act_msg *msg = &act->msg;

    switch ((int)msg->type) { /* int: of all types a peer gets these from the core */
    case MSG_HEARTBEAT:
        ret->heartbeat = msg->heartbeat;
        break;
    case MSG_ENGINE_STATE:
        ret->engine_state.engine = msg->engine_state.engine;
        ret->engine_state.commits = msg->engine_state.commits;
        if (!msg->engine_state.engine)
            break;
        assert(core->engine.addr_len <= MSG_ADDR_MAX);
        ret->engine_state.addr_len = core->engine.addr_len;
        memcpy(ret->engine_state.addr, core->engine.addr, core->engine.addr_len);
        ret->engine_state.intro = core->peers[act->to].our_half;
        break;
    case MSG_ENGINE_READY:
        ret->engine_ready.engine = msg->engine_ready.engine;
        ret->engine_ready.mine = msg->engine_ready.mine;
        ret->engine_ready.end = msg->engine_ready.end;
        ret->engine_ready.intro = msg->engine_ready.intro;
        COPY(ret->engine_ready.text, msg->engine_ready.text);
        break;
    case MSG_JOIN:
        join_fill(core, msg->join.member, msg->join.join, &ret->join);
        break;
    case MSG_JOIN_NEWS:
        follow_fill(core, msg->join.member, msg->join.join, &ret->join_news);
        break;
    case MSG_JOIN_CANCEL:
        ret->join_cancel = msg->join_cancel;
        break;
    case MSG_JOIN_REFUSED:
        ret->join_refused.join = msg->join_refused.join;
        ret->join_refused.cause = msg->join_refused.cause;
        ret->join_refused.rank = msg->join_refused.rank;
        if (msg->join_refused.about >= 0)
            COPY(ret->join_refused.node, core_node_name(core, (unsigned)msg->join_refused.about));
        COPY(ret->join_refused.text, msg->join_refused.text);
        break;
    case MSG_COMMIT:
        home_fill_commit(core, act->forming, &ret->commit);
        break;
    case MSG_SYNC:
        ret->sync = msg->sync;
        break;
    case MSG_HELD:
        ret->held = msg->held;
        break;
    case MSG_PAUSE:
    case MSG_PAUSED:
        ret->pause = msg->pause;
        break;
    case MSG_GONE:
    case MSG_BROKEN:
        fill_end(msg, ret);
        break;
    case MSG_ASK_ABSENT:
        ret->ask_absent = msg->ask_absent;
        break;
    default:
        abort();
    }
}

/* For the engine, and for commd-gpu. */
static void fill_for_process(const struct core *core, const struct act_msg *msg, struct msg *ret)
{
    const struct peer *peer;

    switch ((int)msg->type) { /* int: of all types they get these from the core */
    case MSG_PING:
        ret->ping = msg->ping;
        break;
    case MSG_GPU_SESSION_DEL:
        ret->gpu_session = msg->gpu_session;
        break;
    case MSG_BOARD_HOLD:
    case MSG_BOARD_GO:
        ret->board_held.group = msg->board_held;
        break;
    case MSG_BOARD_PAUSE:
        ret->pause = msg->pause;
        break;
    case MSG_ENGINE_PEER_DEL:
        ret->engine_peer.peer = msg->engine_peer.peer;
        ret->engine_peer.engine = msg->engine_peer.engine;
        break;
    case MSG_ENGINE_PEER_ADD:
        peer = &core->peers[msg->engine_peer.peer];
        assert(peer->addr_len <= MSG_ADDR_MAX);
        ret->engine_peer_add.peer = msg->engine_peer.peer;
        ret->engine_peer_add.engine = msg->engine_peer.engine;
        ret->engine_peer_add.intro = msg->engine_peer.intro;
        ret->engine_peer_add.addr_len = peer->addr_len;
        memcpy(ret->engine_peer_add.addr, peer->addr, peer->addr_len);
        COPY(ret->engine_peer_add.node, core_node_name(core, msg->engine_peer.peer));
        break;
    default:
        abort();
    }
}

/* ---- records that become several ------------------------------------------------------------- */

/* Has @node ranks in @group? Without loss all participants have. */
static bool is_in(const struct core *core, const struct group *group, unsigned node)
{
    int place = group_place(group, node);

    return place >= 0 && (!group->unclean || !group_all_gone(core, group, (unsigned)place));
}

/* The next node that the message of @act goes to. */
static bool next_node(const struct core *core, struct act *act)
{
    bool committed = act->each == ACT_EACH_COMMITTED;
    const uint16_t *nodes = committed ? act->forming->nodes : act->group->nodes;
    unsigned nnodes = committed ? act->forming->nnodes : act->group->nnodes;

    assert(nnodes && nnodes <= core->config.nnodes);
    while (act->at < nnodes) {
        unsigned place = act->at++;

        act->to = nodes[place];
        assert(act->to < core->config.nnodes);
        if (act->to != core->config.self && peer_linked(core, act->to) &&
            (act->each != ACT_EACH_UNCONFIRMED || !act->group->confirmed[place]) &&
            (!act->but || !is_in(core, act->but, act->to)))
            return true;
    }
    return false;
}

/* The next rank that is gone already. Other nodes hear of ours only. */
static bool next_gone(const struct core *core, struct act *act)
{
    const struct group *group = act->group;
    bool marks = act->type == CORE_DO_RANK_GONE;
    bool again = marks && act->action.rank_gone.again;
    bool missed = marks && act->action.rank_gone.missed;

    assert(act->type == CORE_DO_PEER_SEND || marks);
    while (act->at < group->size) {
        uint32_t rank = act->at++;
        const struct msg_member *member = &group->members[rank];
        const struct fate *fate = runs_fate(&core->runs, member);
        struct core_rank_gone gone = {.group = group->id,
                                      .rank = rank,
                                      .ops = fate->ops == CORE_OPS_FROM_BOARD ? 0 : fate->ops,
                                      .pid = member->pid,
                                      .cause = (enum cause)fate->cause,
                                      .text = again ? "gone before commd was restarted"
                                                    : "gone before the group opened",
                                      .next = group->next_epoch,
                                      .missed = missed,
                                      .again = again};

        assert(member->node < group->nnodes);
        if (!fate->cause || (act->type == CORE_DO_PEER_SEND && member->node != group->me))
            continue;
        if (act->type == CORE_DO_PEER_SEND)
            act->msg.gone = gone;
        else
            act->action = (struct core_action){.type = CORE_DO_RANK_GONE, .rank_gone = gone};
        return true;
    }
    return false;
}

static void hand_out(struct core *core, const struct act *act, struct core_action *ret)
{
    struct msg *msg = &core->queue.msg;

    if (act->type > CORE_DO_GPU_SEND) {
        assert(act->action.type == act->type);
        *ret = act->action;
        return;
    }
    assert(act->msg.type != MSG_NONE);
    memset(msg, 0, sizeof(*msg));
    msg->type = act->msg.type;
    if (act->type == CORE_DO_CLIENT_SEND)
        fill_for_client(core, &act->msg, msg);
    else if (act->type == CORE_DO_PEER_SEND)
        fill_for_peer(core, act, msg);
    else
        fill_for_process(core, &act->msg, msg);
    *ret = (struct core_action){.type = act->type, .send = {.to = act->to, .msg = msg}};
}

bool core_next(struct core *core, struct core_action *ret_action)
{
    struct queue *queue = &core->queue;

    while (queue->head < queue->tail) {
        struct act *act = &queue->acts[queue->head];
        bool found = act->each == ACT_ONCE        ? true
                     : act->each == ACT_EACH_GONE ? next_gone(core, act)
                                                  : next_node(core, act);

        if (act->each == ACT_ONCE || !found)
            queue->head++;
        if (!found)
            continue;
        hand_out(core, act, ret_action);
        return true;
    }
    return false;
}
