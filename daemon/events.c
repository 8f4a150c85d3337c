/* events.c - what the edges report becomes events of the core. The way back, from the core's
 * actions to the edges, is apply.c.
 *
 * An edge calls a callback in its own turn. The callback makes an event at once: daemon_dispatch()
 * gives it to the core and carries out what the core decides. Messages and texts in an event belong
 * to the edge and live until the callback returns. Three kinds of messages do not reach the core:
 * questions of commctl (admin.c), questions about ranks that nodes ask each other (gather.c), and
 * messages about arenas (memory/arena_link.c). */
#include "daemon/daemon.h"

#include <stdio.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/verbs.h"
#include "daemon/process/log.h"
#include "daemon/process/root.h"

/* The kernel tells pid 0 for a process outside of our pid namespace. */
static void tell_unseen(struct daemon *d)
{
    if (d->unseen)
        return;
    d->unseen = true;
    log_warn(
        "a client is outside of the pid namespace that commd is in -> its pid is told as 0, and "
        "commctl why cannot look at it: give commd the host's (podman --pid=host, hostPID)");
}

static void edge_client_open(void *arg, unsigned slot, uint32_t uid, uint32_t pid)
{
    struct core_event e = {.type = CORE_CLIENT_OPEN, .client = slot, .uid = uid, .pid = pid};
    struct daemon *d = arg;

    if (!pid)
        tell_unseen(d);
    d->commands[slot] = (struct client_command){
        .uid = uid, .payer = payer_of(d->payers, uid), .pid = pid, .here = true};
    daemon_dispatch(d, &e);
}

static void edge_client_msg(void *arg, unsigned slot, const struct msg *msg)
{
    struct daemon *d = arg;
    struct core_event e = {.type = CORE_CLIENT_MSG, .client = slot, .msg = msg};
    struct listener_client client;
    bool welcome = listener_client(d->listener, slot, &client) && client.welcome;

    if (welcome)
        takeover_heard(d, slot);
    if (welcome == (msg->type != MSG_CLIENT_HELLO))
        waits_msg(d, slot, msg);
    /* Questions change nothing and arenas decide nothing, so after the hello the core does not see
     * them. Before the hello the core refuses them. What commctl wants to change, the core decides.
     */
    if (welcome && msg->type == MSG_ADMIN && !strcmp(msg->admin.verb, GATHER_VERB))
        gather_ask(d, slot, &client, &msg->admin);
    else if (welcome && msg->type == MSG_ADMIN && !answer_is_change(msg->admin.verb))
        admin_ask(d, slot, &msg->admin);
    else if (welcome && (msg->type == MSG_ARENA_ADD || msg->type == MSG_ARENA_DEL ||
                         msg->type == MSG_ARENA_ASK))
        arena_msg(d, slot, client.payer, msg);
    else
        daemon_dispatch(d, &e);
}

static void edge_client_closed(void *arg, unsigned slot, const char *text)
{
    struct core_event e = {.type = CORE_CLIENT_CLOSED, .client = slot, .text = text};

    takeover_farewell(arg, slot);
    apply_client_gone(arg, slot);
    daemon_dispatch(arg, &e);
}

static void edge_client_ended(void *arg, uint32_t uid, uint32_t pid, int pidfd)
{
    struct daemon *d = arg;

    ended_note(d->ended, payer_of(d->payers, uid), pid, pidfd);
}

static void edge_client_back(void *arg, unsigned slot, uint32_t uid, uint32_t pid,
                             const struct msg *hello)
{
    struct core_event e = {.type = CORE_CLIENT_BACK,
                           .client = slot,
                           .uid = uid,
                           .pid = pid,
                           .msg = hello,
                           .groups = hello->client_hello.kept,
                           .joins = hello->client_hello.asks,
                           .ngroups = hello->client_hello.nkept,
                           .njoins = hello->client_hello.nasks};
    struct daemon *d = arg;

    assert(core_client_may_return(d->core, slot, uid, pid)); /* else nobody watches it any more */
    takeover_back(d, slot, &hello->client_hello);
    d->commands[slot].plans = hello->client_hello.plans;
    daemon_dispatch(d, &e);
}

/* Our own commd-gpu counts as a user of its own. So does uid 0 that is not root of this machine. */
static uint32_t edge_client_user(void *arg, uint32_t uid, uint32_t pid, int pidfd)
{
    struct daemon *d = arg;

    if (engine_link_is(d->gpu, pid, uid))
        return CORE_GPU_UID;
    return uid || root_of_machine(pid, pidfd) ? uid : CORE_CONTAINED_UID;
}

const struct listener_ops listener_ops = {
    .user = edge_client_user,
    .open = edge_client_open,
    .msg = edge_client_msg,
    .closed = edge_client_closed,
    .back = edge_client_back,
    .gone = edge_client_closed,
    .ended = edge_client_ended,
};

static void edge_peer_up(void *arg, unsigned node, const struct msg *hello)
{
    struct core_event e = {.type = CORE_PEER_UP, .node = node, .msg = hello};

    daemon_dispatch(arg, &e);
}

static void edge_peer_msg(void *arg, unsigned node, const struct msg *msg)
{
    struct daemon *d = arg;
    struct core_event e = {.type = CORE_PEER_MSG, .node = node, .msg = msg};

    if (msg->type == MSG_ASK_RANKS || msg->type == MSG_RANKS_HERE)
        return gather_msg(d, node, msg);
    if (msg->type == MSG_ENGINE_STATE) {
        memcpy(d->peer_tokens[node], msg->engine_state.token, sizeof(d->peer_tokens[node]));
        d->peer_secrets[node].exports = msg->engine_state.exports;
        d->peer_secrets[node].engine = msg->engine_state.engine;
    }
    daemon_dispatch(d, &e);
    if (msg->type == MSG_ENGINE_STATE)
        apply_peer_keys(d);
}

static void edge_peer_down(void *arg, unsigned node, bool refused, const char *text)
{
    struct core_event e = {.type = CORE_PEER_DOWN, .node = node, .refused = refused, .text = text};

    daemon_dispatch(arg, &e);
    gather_node_lost(arg, node); /* afterwards the core knows whether it is being restarted */
}

static void edge_peer_vacant(void *arg, unsigned node)
{
    daemon_dispatch(arg, &(struct core_event){.type = CORE_PEER_VACANT, .node = node});
}

const struct peer_links_ops peer_ops = {
    .up = edge_peer_up,
    .msg = edge_peer_msg,
    .down = edge_peer_down,
    .vacant = edge_peer_vacant,
};

/* The engine, or commd-gpu. */
static void edge_program_started(void *arg, uint32_t pid)
{
    const struct program_edge *edge = arg;
    struct core_event e = {.type = edge->started, .pid = pid};

    daemon_dispatch(edge->d, &e);
}

static void edge_program_msg(void *arg, const struct msg *msg)
{
    const struct program_edge *edge = arg;
    struct core_event e = {.type = edge->msg, .msg = msg};

    if (msg->type == MSG_GPU_HELLO)
        takeover_program(edge->d, edge->d->gpu, NULL);
    if (msg->type == MSG_ENGINE_HELLO)
        edge->d->engine_takes_keys = msg->engine_hello.takes_keys;
    daemon_dispatch(edge->d, &e);
    if (msg->type == MSG_ENGINE_HELLO)
        apply_peer_keys(edge->d);
}

static void edge_program_down(void *arg, const char *text)
{
    const struct program_edge *edge = arg;
    struct core_event e = {.type = edge->down, .text = text};
    struct daemon *d = edge->d;

    takeover_program_gone(d, edge == &d->gpu_edge ? d->gpu : d->engine);
    if (edge != &d->gpu_edge)
        d->engine_takes_keys = false;
    daemon_dispatch(edge->d, &e);
}

const struct engine_link_ops program_ops = {
    .started = edge_program_started,
    .msg = edge_program_msg,
    .down = edge_program_down,
};
