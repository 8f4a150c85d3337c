/* apply.c - decisions of the core become effects: here, those about groups in
 * apply_group.c, and nowhere else.
 *
 * Each action is carried out at once and in order. Nothing here may feed the core. An edge that
 * fails to do what it was asked (client, peer, engine) reports that in its own next turn.
 *
 * What the core leaves to us because it needs memory, descriptors or secrets:
 *  - boards and doorbells, and what a lost rank has completed: apply_group.c.
 *  - the tokens by which engines know each other (our_token()), and what of the TLS sessions goes
 *    into their keys: a token alone, which is written down for the next commd, opens nothing. */
#include <stdio.h>
#include <sys/socket.h>

#include "daemon/admin/answers.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"

/* ---- messages that we complete --------------------------------------------------------------- */

static void welcome(struct daemon *d, unsigned slot, const struct msg *half)
{
    struct msg msg = *half;

    takeover_welcome(d, slot, &msg.welcome);
    listener_send(d->listener, slot, &msg, NULL, 0);
    takeover_welcomed(d, slot);
}

/* The token that @node's engine has to show to our engine. Each link has another token: a late
 * message of an earlier link, such as a good-bye, must not be taken for one of the present link. A
 * commd begins to count anew, with the same engine. */
static int our_token(struct daemon *d, unsigned node, uint8_t ret_token[32])
{
    char text[CONF_NAME_MAX + 48];

    snprintf(text, sizeof(text), "%s %llx %u", d->conf->nodes[node].name,
             (unsigned long long)d->incarnation, d->token_turns[node]);
    return engine_link_token(d->engine, text, ret_token);
}

static void peer_send(struct daemon *d, const struct core_send *send)
{
    struct msg msg;

    if (send->msg->type != MSG_ENGINE_STATE || send->msg->engine_state.engine == 0)
        return peer_links_send(d->peers, send->to, send->msg);
    msg = *send->msg;
    d->token_turns[send->to]++;
    msg.engine_state.exports = 1;
    if (our_token(d, send->to, msg.engine_state.token) == 0)
        peer_links_send(d->peers, send->to, &msg);
    explicit_bzero(msg.engine_state.token, sizeof(msg.engine_state.token));
}

/* Both commds do so, over the same session: the one over which they have told each other tokens. */
static int mix_tokens(struct daemon *d, struct msg_engine_peer_add *add)
{
    int r;

    if (!d->peer_secrets[add->peer].exports)
        return 0;
    r = peer_links_mix(d->peers, add->peer, add->token);
    return r ? r : peer_links_mix(d->peers, add->peer, add->expect);
}

static void engine_send(struct daemon *d, const struct core_send *send)
{
    uint32_t peer = send->msg->engine_peer_add.peer;
    struct msg msg;

    if (send->msg->type != MSG_ENGINE_PEER_ADD)
        return engine_link_send(d->engine, send->msg, NULL, 0);
    msg = *send->msg;
    memcpy(msg.engine_peer_add.token, d->peer_tokens[peer], sizeof(d->peer_tokens[peer]));
    d->peer_secrets[peer].engine = 0;
    if (our_token(d, peer, msg.engine_peer_add.expect) == 0 &&
        mix_tokens(d, &msg.engine_peer_add) == 0)
        engine_link_send(d->engine, &msg, NULL, 0);
    explicit_bzero(&msg, sizeof(msg));
}

static void peer_key_send(struct daemon *d, unsigned node)
{
    struct msg msg = {.type = MSG_ENGINE_PEER_KEY};

    msg.engine_peer_key.peer = node;
    msg.engine_peer_key.engine = d->peer_secrets[node].engine;
    d->peer_secrets[node].engine = 0;
    if (peer_links_export(d->peers, node, msg.engine_peer_key.secret) == 0)
        engine_link_send(d->engine, &msg, NULL, 0);
    explicit_bzero(&msg, sizeof(msg));
}

/* Hands one end to the client and one to commd-gpu. If either is gone, the other finds end of file.
 */
static void gpu_session(struct daemon *d, const struct core_gpu_session *wanted)
{
    _cleanup_(close_fdp) int client = -1, service = -1;
    struct msg session = {.type = MSG_GPU_SESSION}, answer = {.type = MSG_GPU_ANSWER};
    int pair[2];

    answer.gpu_answer.req = wanted->req;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        answer.gpu_answer.cause = CAUSE_NOMEM;
        snprintf(answer.gpu_answer.text, sizeof(answer.gpu_answer.text),
                 "commd on node %s has no socket for a session with GPUs: %s", d->conf->node,
                 strerror(errno));
        return listener_send(d->listener, wanted->client, &answer, NULL, 0);
    }
    client = pair[0];
    service = pair[1];
    session.gpu_session.client = wanted->client;
    session.gpu_session.uid = wanted->uid;
    session.gpu_session.pid = wanted->pid;
    session.gpu_session.payer = payer_of(d->payers, wanted->uid);
    session.gpu_session.weight = conf_weight(d->conf, session.gpu_session.payer);
    engine_link_send(d->gpu, &session, &service, 1);
    listener_send(d->listener, wanted->client, &answer, &client, 1);
}

void apply_peer_keys(struct daemon *d)
{
    for (unsigned i = 0; d->engine_takes_keys && i < d->conf->nnodes; i++)
        if (d->peer_secrets[i].engine && d->peer_secrets[i].exports)
            peer_key_send(d, i);
}

void apply_client_gone(struct daemon *d, unsigned slot)
{
    struct msg msg = {.type = MSG_DOORBELL_DEL};
    unsigned life = d->doorbells[slot];

    d->doorbells[slot] = 0;
    close_fdp(&d->bells[slot]);
    takeover_client_gone(d, slot);
    boards_client_gone(&d->boards, slot);
    arenas_drop(&d->arenas, slot);
    admin_drop(d, slot);
    gather_drop(d, slot);
    waits_gone(d, slot);
    if (!life || (life != DOORBELL_BEFORE && life != engine_link_life(d->engine)))
        return;
    msg.doorbell.client = slot;
    engine_link_send(d->engine, &msg, NULL, 0);
}

#define WORD(note_, word_) [CORE_NOTE_##note_] = word_,
static void write_down(struct daemon *d, const struct core_log *line)
{
    static const char *const words[CORE_NOTE_COUNT] = {CORE_EVENTS(WORD)};

    int64_t whose = DIARY_EVERYBODY, payer = DIARY_EVERYBODY;

    if (line->by == CORE_BY_USER) {
        whose = line->by_id;
        payer = payer_of(d->payers, line->by_id);
    }
    daemon_event(d, words[line->note], whose, payer, line->text);
}

static void apply_log_line(struct daemon *d, const struct core_log *line)
{
    enum conf_log_level level = (enum conf_log_level)line->level;

    if (line->note)
        write_down(d, line);
    if (line->by == CORE_BY_USER)
        listener_log_user(d->listener, line->by_id, level, line->text);
    else if (line->by == CORE_BY_NODE && d->peers)
        peer_links_log(d->peers, line->by_id, level, line->text);
    else
        log_write(level, "%s", line->text);
}

void apply_action(struct daemon *d, const struct core_action *a)
{
    switch (a->type) {
    case CORE_DO_CLIENT_SEND:
        if (a->send.msg->type == MSG_JOIN_FAILED)
            waits_failed(d, a->send.to, &a->send.msg->join_failed);
        if (a->send.msg->type == MSG_WELCOME)
            welcome(d, a->send.to, a->send.msg);
        else
            listener_send(d->listener, a->send.to, a->send.msg, NULL, 0);
        break;
    case CORE_DO_PEER_SEND:
        peer_send(d, &a->send);
        break;
    case CORE_DO_ENGINE_SEND:
        engine_send(d, &a->send);
        break;
    case CORE_DO_GPU_SEND:
        engine_link_send(d->gpu, a->send.msg, NULL, 0);
        break;
    case CORE_DO_CLIENT_CLOSE:
        apply_client_gone(d, a->client_close.client);
        listener_close(d->listener, a->client_close.client);
        break;
    case CORE_DO_PEER_LOOK:
        peer_links_look(d->peers, a->peer_look.node);
        break;
    case CORE_DO_PEER_DROP:
        peer_links_drop(d->peers, a->peer_drop.node, a->peer_drop.why);
        gather_node_lost(d, a->peer_drop.node);
        break;
    case CORE_DO_ENGINE_START:
        engine_link_start(d->engine);
        break;
    case CORE_DO_ENGINE_KILL:
        engine_link_kill(d->engine);
        break;
    case CORE_DO_ENGINE_KEPT:
        takeover_program(d, d->engine, &a->engine_kept);
        break;
    case CORE_DO_ENGINE_RESUMED:
        apply_engine_resumed(d);
        break;
    case CORE_DO_GPU_START:
        engine_link_start(d->gpu);
        break;
    case CORE_DO_GPU_KILL:
        engine_link_kill(d->gpu);
        break;
    case CORE_DO_GPU_SESSION:
        gpu_session(d, &a->gpu_session);
        break;
    case CORE_DO_GROUP_COMMITTED:
        takeover_committed(d, a->group_committed.group);
        break;
    case CORE_DO_RANK_ASKED:
        takeover_rank_asked(d, a->rank_asked.group, a->rank_asked.rank, a->rank_asked.req);
        break;
    case CORE_DO_GROUP_OPEN:
        apply_group_open(d, a->group_open.group);
        break;
    case CORE_DO_GROUP_POSITION:
        apply_group_position(d, a->group_position.group);
        break;
    case CORE_DO_GROUP_BIND:
        apply_group_bind(d, a->group_bind.group, a->group_bind.ops);
        break;
    case CORE_DO_RANK_GONE:
        apply_rank_gone(d, &a->rank_gone);
        break;
    case CORE_DO_JOINED_AGAIN:
        apply_joined_again(d, a->joined_again.group, a->joined_again.client, a->joined_again.rank,
                           a->joined_again.req);
        break;
    case CORE_DO_RANK_ENDED:
        takeover_rank_gone(d, &a->rank_gone);
        break;
    case CORE_DO_NODES_MISSED:
        apply_nodes_missed(d, a->nodes_missed.group);
        break;
    case CORE_DO_GROUP_BROKEN:
        apply_group_broken(d, &a->group_broken);
        break;
    case CORE_DO_GROUP_CLOSE:
        apply_group_close(d, &a->group_close);
        break;
    case CORE_DO_GROUP_FORGET:
        takeover_forget(d, a->group_forget.group);
        break;
    case CORE_DO_GROUP_ABSENT:
        apply_group_absent(d, &a->group_absent);
        break;
    case CORE_DO_CHANGED:
        answer_changed(d, a->changed.client, a->changed.done, a->changed.groups, a->changed.text);
        break;
    case CORE_DO_LOG_LEVEL:
        answer_log_level(d, a->log_level.client, a->log_level.uid, a->log_level.level);
        break;
    case CORE_DO_RELOAD:
        answer_reload(d, a->reload.client);
        break;
    case CORE_DO_LOG:
        apply_log_line(d, &a->log);
        break;
    }
}
