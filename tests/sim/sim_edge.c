/* sim_edge.c - what the edges of commd do with the core's actions, in the simulator: boards are
 * integers and flags, clients are records, messages go to the fake network. Every action goes
 * into the trace hash; those that people care about also into the text. */
#include "tests/sim/sim_internal.h"

struct board *edge_board(struct sim *sim, unsigned node, uint64_t group)
{
    for (unsigned i = 0; i < SIM_BOARDS; i++)
        if (sim->nodes[node].boards[i].group == group)
            return &sim->nodes[node].boards[i];
    return NULL;
}

void edge_forget(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    memset(n->boards, 0, sizeof(n->boards));
    for (unsigned i = 0; i < ARRAY_LEN(n->slots); i++) {
        if (n->slots[i] >= 0)
            sim->handles[n->slots[i]].alive = false;
        n->slots[i] = -1;
    }
    for (unsigned i = 0; i < sim->nhandles; i++)
        if (sim->handles[i].node == node)
            sim->handles[i].alive = false; /* also one that has not come back */
}

static void hash_words(struct sim *sim, const void *p, size_t len)
{
    const char *bytes = p;

    for (; len >= 8; len -= 8, bytes += 8) {
        uint64_t word;

        memcpy(&word, bytes, 8);
        sim->hash = (sim->hash ^ word) * 0x100000001b3u;
        sim->hash ^= sim->hash >> 29;
    }
}

static void hash_message(struct sim *sim, const struct core_send *send)
{
    const struct msg *msg = send->msg;

    sim->hash ^= send->to;
    if (msg->type == MSG_COMMIT)
        hash_words(sim, msg->commit.members, msg->commit.size * sizeof(struct msg_member));
    else if (msg->type == MSG_JOIN_NEWS)
        hash_words(sim, msg->join_news.gone, msg->join_news.ngone * sizeof(uint32_t) / 8 * 8);
    else if (msg->type != MSG_HEARTBEAT && msg->type != MSG_PING)
        hash_words(sim, msg, sizeof(*msg));
}

static void hash_action(struct sim *sim, unsigned node, const struct core_action *action)
{
    uint64_t head[] = {sim->now, node, action->type};

    sim->actions++;
    hash_words(sim, head, sizeof(head));
    if (action->type <= CORE_DO_GPU_SEND)
        hash_message(sim, &action->send);
    else if (action->type == CORE_DO_GROUP_OPEN || action->type == CORE_DO_GROUP_CLOSE)
        sim->hash ^= action->group_open.group;
    else if (action->type == CORE_DO_RANK_GONE)
        sim->hash ^= action->rank_gone.group ^ text_hash(0, action->rank_gone.text);
    else if (action->type == CORE_DO_GROUP_BROKEN)
        sim->hash ^= action->group_broken.group ^ text_hash(0, action->group_broken.text);
    else if (action->type == CORE_DO_LOG)
        sim->hash ^= text_hash(0, action->log.text);
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct handle *client_of(struct sim *sim, unsigned node, unsigned slot)
{
    int i = slot < ARRAY_LEN(sim->nodes[node].slots) ? sim->nodes[node].slots[slot] : -1;

    if (i < 0)
        sim_fail(sim, "node %s speaks to a client that is not there", sim_node_name(sim, node));
    return &sim->handles[i];
}

static struct join *answered(struct sim *sim, const struct handle *handle_, uint32_t req)
{
    struct handle *handle = (struct handle *)handle_;

    for (unsigned i = 0; i < handle->njoins; i++) {
        struct join *join = &handle->joins[i];

        if (join->req != req)
            continue;
        if (join->answers++)
            sim_fail(sim, "join %u of pid %u is answered twice", req, handle->pid);
        return join;
    }
    sim_fail(sim, "pid %u gets an answer to a join that it never made", handle->pid);
}

static void client_send(struct sim *sim, unsigned node, unsigned client, const struct msg *msg)
{
    struct handle *handle;
    struct join *join;

    if (client == SIM_CLIENTS)
        return; /* sim_admin() */
    handle = client_of(sim, node, client);
    if (msg->type == MSG_WELCOME) {
        state_welcome(sim, node, handle);
    } else if (msg->type == MSG_JOIN_FAILED) {
        if (state_cut(sim, node))
            return;
        sim_note(sim, "%s: pid %u JOIN_FAILED %u%s%s: %s", sim_node_name(sim, node), handle->pid,
                 msg->join_failed.cause, msg->join_failed.node[0] ? " node " : "",
                 msg->join_failed.node, msg->join_failed.text);
        join = answered(sim, handle, msg->join_failed.req);
        join->cause = (enum cause)msg->join_failed.cause;
        recover_refused(sim, handle, join, msg->join_failed.text);
        sim->failed++;
        if (msg->join_failed.cause != CAUSE_TIMEOUT)
            check_broken(sim, node, 0, msg->join_failed.cause, msg->join_failed.node,
                         msg->join_failed.text);
    } else if (msg->type == MSG_ABSENT) {
        sim_note(sim, "%s: pid %u ABSENT node %s: %u, first %d: %s", sim_node_name(sim, node),
                 handle->pid, msg->absent.node, msg->absent.count, msg->absent.rank,
                 msg->absent.text);
    } else if (msg->type == MSG_REFUSED) {
        sim_note(sim, "%s: pid %u REFUSED %u: %s", sim_node_name(sim, node), handle->pid,
                 msg->refused.cause, msg->refused.text);
    }
}

static void client_close(struct sim *sim, unsigned node, unsigned slot)
{
    struct handle *handle;

    state_client_gone(sim->nodes[node].state, slot);
    if (slot == SIM_CLIENTS)
        return;
    handle = client_of(sim, node, slot);
    sim->nodes[node].slots[slot] = -1;
    if (handle->slot != slot)
        return; /* it did not know that it was welcome, and has connected anew */
    sim_note(sim, "%s: pid %u closed", sim_node_name(sim, node), handle->pid);
    handle->alive = false;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* JOINED to one client. */
static void tell_joined(struct sim *sim, unsigned node, const struct core_group_view *view,
                        unsigned slot, uint32_t rank, uint32_t req)
{
    struct handle *handle = client_of(sim, node, slot);
    struct join *join = answered(sim, handle, req);

    if (handle->away)
        sim_fail(sim, "pid %u is told of a group while it is away", handle->pid);
    if (strcmp(join->name, view->name) || view->members[rank].pid != handle->pid ||
        (join->how.policy == SIM_JOIN && (join->rank != rank || join->size != view->size)))
        sim_fail(sim, "pid %u gets a rank that is not its own", handle->pid);
    recover_told(sim, handle, join, view, rank);
    join->group = view->id;
    sim->ok++;
}

static void joined_again(struct sim *sim, unsigned node, const struct core_action *action)
{
    uint64_t id = action->joined_again.group;
    struct core_group_view view;

    if (!core_group(sim->nodes[node].core, id, &view) || !edge_board(sim, node, id))
        sim_fail(sim, "node %s tells of a group again that it does not have",
                 sim_node_name(sim, node));
    if (!state_cut(sim, node))
        tell_joined(sim, node, &view, action->joined_again.client, action->joined_again.rank,
                    action->joined_again.req);
}

static void group_open(struct sim *sim, unsigned node, uint64_t id)
{
    struct core_group_view view;
    struct board *board = edge_board(sim, node, 0);
    unsigned rank, slot;
    uint32_t req;
    char name[64];

    if (!core_group(sim->nodes[node].core, id, &view) || !board || edge_board(sim, node, id))
        sim_fail(sim, "node %s opens a group that cannot be", sim_node_name(sim, node));
    *board = (struct board){.group = id,
                            .size = view.size,
                            .spans = view.nnodes > 1,
                            .engine_gen = sim->nodes[node].engine_gen};
    check_opened(sim, node, &view);
    if (state_cut(sim, node))
        return;
    if (view.nnodes == 1)
        state_group(sim->nodes[node].state, sim->nodes[node].core, id, false);
    else
        state_group_step(sim->nodes[node].state, id, STATE_OPEN);
    if (state_cut(sim, node))
        return;
    sim_note(sim, "%s: %s open, %u ranks on %u nodes", sim_node_name(sim, node),
             sim_group_name(sim, id, name), view.size, view.nnodes);
    for (unsigned i = 0; core_group_waiter(sim->nodes[node].core, id, i, &rank, &slot, &req); i++) {
        tell_joined(sim, node, &view, slot, rank, req);
        if (state_cut(sim, node))
            return;
    }
}

static void keep_gone(struct sim *sim, unsigned node, const struct core_rank_gone *gone,
                      uint32_t ops)
{
    struct core_rank_gone kept = *gone;

    kept.ops = ops;
    state_rank_gone(sim->nodes[node].state, &kept);
}

static void rank_gone(struct sim *sim, unsigned node, const struct core_rank_gone *gone)
{
    struct board *board = edge_board(sim, node, gone->group);
    struct core_group_view view;
    struct msg msg = {.type = MSG_GONE};
    struct join *join;
    char name[64];

    if (!board || gone->rank >= board->size)
        sim_fail(sim, "a rank is gone in a group that node %s does not have",
                 sim_node_name(sim, node));
    check_gone(sim, node, gone);
    if (board->gone[gone->rank] && !gone->again)
        sim_fail(sim, "node %s tells twice that a rank is gone", sim_node_name(sim, node));
    msg.gone.group = gone->group;
    msg.gone.rank = gone->rank;
    msg.gone.ops = gone->ops;
    msg.gone.pid = gone->pid;
    msg.gone.cause = gone->cause;
    text_copy(msg.gone.text, sizeof(msg.gone.text), gone->text);
    if (gone->ops == CORE_OPS_FROM_BOARD) {
        check_member(sim, gone->group, gone->rank, &join);
        msg.gone.ops = join ? join->ops : 0; /* it may never have heard of it */
    }
    core_rank_counted(sim->nodes[node].core, gone->group, gone->rank, msg.gone.ops);
    keep_gone(sim, node, gone, msg.gone.ops);
    if (state_cut(sim, node))
        return;
    board->gone[gone->rank] = true;
    sim_note(sim, "%s: %s rank %u gone after %u ops, %u: %s", sim_node_name(sim, node),
             sim_group_name(sim, gone->group, name), gone->rank, msg.gone.ops, gone->cause,
             gone->text);
    if (gone->ops != CORE_OPS_FROM_BOARD || !core_group(sim->nodes[node].core, gone->group, &view))
        return;
    for (unsigned i = 0; i < view.nnodes; i++)
        if (i != view.me)
            net_send(sim, node, view.nodes[i], &msg);
}

static void nodes_missed(struct sim *sim, unsigned node, uint64_t group)
{
    struct board *board = edge_board(sim, node, group);
    struct core_group_view view;

    if (!board || !core_group(sim->nodes[node].core, group, &view) || !view.lost)
        return;
    if (view.lost[view.me])
        sim_fail(sim, "node %s is lost for itself", sim_node_name(sim, node));
    for (uint32_t i = 0; i < view.size; i++)
        board->lost[i] = view.lost[view.members[i].node];
}

static void rank_ended(struct sim *sim, unsigned node, const struct core_rank_gone *gone)
{
    keep_gone(sim, node, gone, gone->ops == CORE_OPS_FROM_BOARD ? 0 : gone->ops);
}

static void group_broken(struct sim *sim, unsigned node, const struct core_group_broken *broken)
{
    struct board *board = edge_board(sim, node, broken->group);
    const struct group *group = group_find(sim->nodes[node].core, broken->group);
    char name[64];

    if (!board && group &&
        group->state != GROUP_LEFT) /* and of one that all have left it says so */
        sim_fail(sim, "a group is broken that node %s does not have", sim_node_name(sim, node));
    if (board && board->broken && !broken->again)
        sim_fail(sim, "a group is broken twice on node %s", sim_node_name(sim, node));
    state_broken(sim->nodes[node].state, broken);
    if (!board || board->broken || state_cut(sim, node))
        return;
    board->broken = true;
    sim_note(sim, "%s: %s broken, %u node %s: %s", sim_node_name(sim, node),
             sim_group_name(sim, broken->group, name), broken->cause, broken->node, broken->text);
    check_broken(sim, node, broken->group, broken->cause, broken->node, broken->text);
}

static void close_group(struct sim *sim, unsigned node, const struct core_group_close *close)
{
    struct board *board = edge_board(sim, node, close->group);
    char name[64];

    if (!board && !close->left)
        sim_fail(sim, "node %s closes a group that it does not have", sim_node_name(sim, node));
    if (close->left)
        state_group_step(sim->nodes[node].state, close->group, STATE_LEFT);
    else
        state_group_gone(sim->nodes[node].state, close->group);
    if (state_cut(sim, node) || !board)
        return;
    sim_note(sim, "%s: %s close%s", sim_node_name(sim, node),
             sim_group_name(sim, close->group, name), close->abort ? ", abort" : "");
    board->group = 0;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void note_message(struct sim *sim, unsigned from, unsigned to, const struct msg *msg)
{
    const char *a = sim_node_name(sim, from), *b = sim_node_name(sim, to);
    char name[64];

    if (!sim->options.trace)
        return;
    switch ((int)msg->type) {
    case MSG_JOIN:
        sim_note(sim, "%s -> %s JOIN %s rank %u of %u", a, b, msg->join.name,
                 msg->join.follows ? msg->join.was_rank : msg->join.rank,
                 msg->join.follows ? msg->join.was_size : msg->join.size);
        break;
    case MSG_JOIN_NEWS:
        sim_note(sim, "%s -> %s JOIN_NEWS %u gone%s", a, b, msg->join_news.ngone,
                 msg->join_news.enough ? ", enough" : "");
        break;
    case MSG_JOIN_CANCEL:
        sim_note(sim, "%s -> %s JOIN_CANCEL%s", a, b,
                 msg->join_cancel.join & CORE_CANCEL_QUIET ? "" : ", who is missing?");
        break;
    case MSG_JOIN_REFUSED:
        sim_note(sim, "%s -> %s JOIN_REFUSED %u: %s", a, b, msg->join_refused.cause,
                 msg->join_refused.text);
        break;
    case MSG_COMMIT:
        sim_note(sim, "%s -> %s COMMIT %s", a, b, sim_group_name(sim, msg->commit.group, name));
        break;
    case MSG_SYNC:
        if ((msg->sync.again || msg->sync.told) && !sim->taken_over)
            break; /* that a group has ended was heard */
        sim_note(sim, "%s -> %s SYNC %s%s%s%s", a, b, sim_group_name(sim, msg->sync.group, name),
                 msg->sync.again ? " again" : "", msg->sync.told ? " told" : "",
                 msg->sync.all ? " all" : "");
        break;
    case MSG_GONE:
        sim_note(sim, "%s -> %s GONE %s rank %u", a, b, sim_group_name(sim, msg->gone.group, name),
                 msg->gone.rank);
        break;
    case MSG_BROKEN:
        sim_note(sim, "%s -> %s BROKEN %s %u: %s", a, b,
                 sim_group_name(sim, msg->broken.group, name), msg->broken.cause, msg->broken.text);
        break;
    case MSG_ASK_ABSENT:
        sim_note(sim, "%s -> %s ASK_ABSENT %s %llu", a, b,
                 sim_group_name(sim, msg->ask_absent.group, name),
                 (unsigned long long)msg->ask_absent.seq);
        break;
    case MSG_ABSENT_HERE:
        sim_note(sim, "%s -> %s ABSENT_HERE %u: %s", a, b, msg->absent_here.count,
                 msg->absent_here.text);
        break;
    default:
        break;
    }
}

static void peer_send(struct sim *sim, unsigned node, unsigned to, const struct msg *msg)
{
    struct msg state;

    if (sim->crash_now || state_cut(sim, node))
        return; /* its last messages never leave */
    if (msg->type == MSG_ENGINE_STATE && msg->engine_state.engine) {
        state = *msg;
        sim->nodes[node].said_token[to] = ++sim->tokens;
        memcpy(state.engine_state.token, &sim->tokens, sizeof(sim->tokens));
        msg = &state;
    }
    note_message(sim, node, to, msg);
    net_send(sim, node, to, msg);
    if (sim->crash_after && node == sim->crash_from && msg->type == sim->crash_type &&
        --sim->crash_after == 0)
        sim->crash_now = true;
}
/* As the board's counters have it: here, those of sim_ops(). */
static void group_absent(struct sim *sim, unsigned node, const struct core_group_absent *absent)
{
    struct msg answer = {.type = MSG_ABSENT};
    struct msg_absent list = {.req = (uint32_t)absent->ask, .rank = -1};
    struct text text = {list.text, sizeof(list.text), 0};
    struct core_group_view view;
    struct join *join;

    if (!edge_board(sim, node, absent->group) ||
        !core_group(sim->nodes[node].core, absent->group, &view))
        sim_fail(sim, "node %s is asked about a group without a board", sim_node_name(sim, node));
    for (unsigned rank = 0; rank < view.size; rank++) {
        check_member(sim, absent->group, rank, &join);
        if (view.members[rank].node != view.me || (join && join->ops >= absent->seq))
            continue;
        text_add(&text, "%s%u", list.count++ ? "," : "", rank);
        list.rank = list.rank < 0 ? (int32_t)rank : list.rank;
    }
    if (absent->asker == CORE_ASKER_CLIENT) {
        text_copy(list.node, sizeof(list.node), sim_node_name(sim, node));
        answer.absent = list;
        return client_send(sim, node, absent->to, &answer);
    }
    answer.type = MSG_ABSENT_HERE;
    answer.absent_here = (struct msg_absent_here){
        .group = absent->group, .ask = absent->ask, .count = list.count, .rank = list.rank};
    text_copy(answer.absent_here.text, MSG_TEXT_MAX, list.text);
    peer_send(sim, node, absent->to, &answer);
}

void edge_action(struct sim *sim, unsigned node, const struct core_action *action)
{
    hash_action(sim, node, action);
    switch (action->type) {
    case CORE_DO_CLIENT_SEND:
        client_send(sim, node, action->send.to, action->send.msg);
        break;
    case CORE_DO_PEER_SEND:
        peer_send(sim, node, action->send.to, action->send.msg);
        break;
    case CORE_DO_ENGINE_SEND:
        engine_receive(sim, node, action->send.msg);
        break;
    case CORE_DO_CLIENT_CLOSE:
        client_close(sim, node, action->client_close.client);
        break;
    case CORE_DO_PEER_LOOK:
        net_look(sim, node, action->peer_look.node);
        break;
    case CORE_DO_PEER_DROP:
        sim_note(sim, "%s drops the link to %s: %s", sim_node_name(sim, node),
                 sim_node_name(sim, action->peer_drop.node), action->peer_drop.why);
        net_drop(sim, node, action->peer_drop.node);
        break;
    case CORE_DO_ENGINE_START:
        engine_start_process(sim, node);
        break;
    case CORE_DO_ENGINE_KILL:
        if (sim->nodes[node].core->engine.life.renews)
            pause_ended(sim, node);
        else
            sim->oracle.engine_fault[node] = true;
        engine_kill_process(sim, node, true);
        break;
    case CORE_DO_ENGINE_KEPT:
        if (state_cut(sim, node))
            break;
        sim->nodes[node].engine_kept = action->engine_kept.incarnation;
        sim->nodes[node].engine_renews = false;
        break;
    case CORE_DO_ENGINE_RESUMED:
        hold_given(sim, node);
        break;
    case CORE_DO_GROUP_COMMITTED:
        if (!state_cut(sim, node))
            state_group(sim->nodes[node].state, sim->nodes[node].core,
                        action->group_committed.group, true);
        break;
    case CORE_DO_RANK_ASKED:
        if (!state_cut(sim, node))
            state_rank_asked(sim->nodes[node].state, action->rank_asked.group,
                             action->rank_asked.rank, action->rank_asked.req);
        break;
    case CORE_DO_GROUP_FORGET:
        check_withdraws(sim, node, action->group_forget.group);
        state_group_gone(sim->nodes[node].state, action->group_forget.group);
        break;
    case CORE_DO_GROUP_OPEN:
        group_open(sim, node, action->group_open.group);
        break;
    case CORE_DO_GROUP_POSITION:
        hold_asked(sim, node, action->group_position.group, true);
        break;
    case CORE_DO_GROUP_BIND:
        hold_ends(sim, node, action->group_bind.group, true);
        break;
    case CORE_DO_RANK_GONE:
        rank_gone(sim, node, &action->rank_gone);
        break;
    case CORE_DO_JOINED_AGAIN:
        joined_again(sim, node, action);
        break;
    case CORE_DO_RANK_ENDED:
        rank_ended(sim, node, &action->rank_gone);
        break;
    case CORE_DO_NODES_MISSED:
        nodes_missed(sim, node, action->nodes_missed.group);
        break;
    case CORE_DO_GROUP_BROKEN:
        group_broken(sim, node, &action->group_broken);
        break;
    case CORE_DO_GROUP_CLOSE:
        close_group(sim, node, &action->group_close);
        break;
    case CORE_DO_GROUP_ABSENT:
        group_absent(sim, node, &action->group_absent);
        break;
    case CORE_DO_GPU_START:
    case CORE_DO_GPU_KILL:
    case CORE_DO_GPU_SEND:
    case CORE_DO_GPU_SESSION:
        sim_fail(sim, "node %s does something for GPUs, and nobody has asked",
                 sim_node_name(sim, node));
    case CORE_DO_CHANGED:
    case CORE_DO_LOG_LEVEL:
    case CORE_DO_RELOAD:
        break;
    case CORE_DO_LOG:
        if (action->log.note == CORE_NOTE_GROUP_RECOVERED)
            sim_note(sim, "%s: %s", sim_node_name(sim, node), action->log.text);
        break;
    }
}
