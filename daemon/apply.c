/* apply.c - the one place where decisions of the core become effects.
 *
 * Each action is carried out at once and in order. Nothing here may feed the core. An edge that
 * fails to do what it was asked (client, peer, engine) reports that in its own next turn. A board
 * that cannot be made is noted in d->failed; daemon_dispatch() reports it when the core's queue is
 * empty.
 *
 * What the core leaves to us because it needs memory, descriptors or secrets:
 *  - the board of a group: it is made, and sent to the group's local members, and to the engine if
 * the group spans nodes. Then the descriptor is closed. boards.c keeps another descriptor and the
 *    mapping of the control pages, and says when the user has no room for a board.
 *  - a doorbell for each client in each life of the engine: an eventfd that the client and the
 * engine have. The client can wake the engine by it without us, and can send it nothing.
 *  - the tokens by which engines know each other (our_token()).
 *  - the number of operations that a lost rank completed: it is read from the board, and told
 *    to the other nodes. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "daemon/admin/answers.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/link/stream.h"
#include "shm/util/memfd.h"
#include "shm/util/ranks.h"

struct failed_board {
    struct failed_board *next;
    uint64_t group;
    enum cause cause;
    char text[MSG_TEXT_MAX];
};

bool apply_next_failed(struct daemon *d, uint64_t *ret_group, enum cause *ret_cause, char *ret_text,
                       size_t len)
{
    struct failed_board *failed = d->failed;

    if (!failed)
        return false;
    *ret_group = failed->group;
    *ret_cause = failed->cause;
    snprintf(ret_text, len, "%s", failed->text);
    d->failed = failed->next;
    free(failed);
    return true;
}

static void board_failed(struct daemon *d, uint64_t group, int error, const char *text)
{
    struct failed_board *failed = calloc(1, sizeof(*failed)), **at = &d->failed;

    if (!failed) {
        log_error("out of memory -> stopping, rather than leave a group half open");
        d->exit_code = EXIT_INTERNAL;
        loop_stop(d);
        return;
    }
    failed->group = group;
    failed->cause = error == -EDQUOT ? CAUSE_QUOTA : CAUSE_NOMEM;
    snprintf(failed->text, sizeof(failed->text), "%s", text);
    while (*at)
        at = &(*at)->next;
    *at = failed;
}

/* ---- opening a group ------------------------------------------------------------------------- */

static int make_board(struct daemon *d, const struct core_group_view *view,
                      struct board_entry **ret_entry, int *ret_fd, char *why, size_t why_len)
{
    _cleanup_(freep) uint16_t *rank_node = calloc(view->size, sizeof(*rank_node));
    struct board_geom geom = {
        .group = view->id,
        .epoch = view->epoch,
        .net = view->net,
        .gpu = view->gpu,
        .world = view->size,
        .nnodes = view->nnodes,
        .me = view->me,
        .rank_node = rank_node,
    };
    struct board_limits limits = {
        .bytes = d->conf->max_board_bytes,
        .bytes_per_user = conf_board_bytes_per_user(d->conf),
        .groups = d->conf->max_groups,
        .groups_per_user = d->conf->max_groups_per_user,
    };
    int r;

    if (!rank_node)
        return -ENOMEM;
    if (view->uid == CORE_GPU_UID) {
        limits.bytes_per_user = limits.bytes;
        limits.groups_per_user = limits.groups;
    }
    for (unsigned i = 0; i < view->size; i++) {
        rank_node[i] = (uint16_t)view->members[i].node;
        geom.nlocal += rank_node[i] == view->me;
    }
    if (geom.nlocal > BOARD_MAX_LOCAL) {
        snprintf(why, why_len, "%u ranks on one node, at most %d are possible", geom.nlocal,
                 BOARD_MAX_LOCAL);
        return -E2BIG;
    }
    r = boards_room(&d->boards, view->payer, board_size(&geom), &limits, why, why_len);
    if (r)
        return r;
    r = boards_add(&d->boards, &geom, view->payer, ret_entry, ret_fd);
    if (r == -EMFILE)
        snprintf(why, why_len, "commd has no descriptor left for it: raise its LimitNOFILE");
    else if (r)
        snprintf(why, why_len, "%s", memfd_strerror(r));
    return r;
}

static int board_to_engine(struct daemon *d, const struct core_group_view *view, int fd)
{
    _cleanup_(freep) uint32_t *peers = calloc(view->nnodes, sizeof(*peers));
    _cleanup_(freep) uint32_t *rank_node = calloc(view->size, sizeof(*rank_node));
    _cleanup_(freep) uint32_t *clients = calloc(view->nlocal, sizeof(*clients));
    struct msg msg = {.type = MSG_BOARD_ADD};
    unsigned n = 0, rank, slot;
    uint32_t req;

    if (!peers || !rank_node || !clients)
        return -ENOMEM;
    for (unsigned i = 0; i < view->nnodes; i++)
        peers[i] = view->nodes[i];
    for (unsigned i = 0; i < view->size; i++)
        rank_node[i] = view->members[i].node;
    while (n < view->nlocal && core_group_local(d->core, view->id, n, &rank, &slot, &req))
        clients[n++] = slot;
    msg.board_add = (struct msg_board_add){
        .group = view->id,
        .nnodes = view->nnodes,
        .me = view->me,
        .world = view->size,
        .peers = peers,
        .rank_node = rank_node,
        .uid = view->payer,
        .weight = conf_weight(d->conf, view->payer),
        .nclients = n,
        .clients = clients,
    };
    engine_link_send(d->engine, &msg, &fd, 1);
    return 0;
}

/* The client's end of a new doorbell; -1: the client has a doorbell, or needs none. */
static int doorbell(struct daemon *d, unsigned slot, int *ret_fd)
{
    unsigned life = engine_link_life(d->engine);
    struct msg msg = {.type = MSG_DOORBELL_ADD};
    int fd;

    *ret_fd = -1;
    if (life == 0 || d->doorbells[slot] == life)
        return 0;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    msg.doorbell.client = slot;
    engine_link_send(d->engine, &msg, &fd, 1);
    d->doorbells[slot] = life;
    *ret_fd = fd;
    return 0;
}

static void log_no_doorbell(struct daemon *d, unsigned slot, uint32_t uid, int r)
{
    char text[256];

    snprintf(text, sizeof(text),
             "client %u: no doorbell: %s -> its engine finds its work by polling", slot,
             strerror(-r));
    listener_log_user(d->listener, uid, CONF_LOG_WARN, text);
}

/* The index of @rank among the local members, which are in ascending order. */
static unsigned local_index(const struct core_group_view *view, unsigned rank)
{
    unsigned index = 0;

    for (unsigned i = 0; i < rank; i++)
        index += view->members[i].node == view->me;
    return index;
}

/* Fills all of JOINED but the number of the request. The names are the caller's to free. */
static int fill_joined(struct daemon *d, const struct core_group_view *view, struct msg *ret_msg)
{
    char(*names)[MSG_NAME_MAX] = calloc(view->nnodes, sizeof(*names));

    if (!names)
        return -ENOMEM;
    *ret_msg = (struct msg){.type = MSG_JOINED};
    ret_msg->joined = (struct msg_joined){
        .size = view->size,
        .nnodes = view->nnodes,
        .group = view->id,
        .epoch = view->epoch,
        .members = (struct msg_member *)view->members, /* only read */
        .nodes = names,
    };
    for (unsigned i = 0; i < view->nnodes; i++)
        snprintf(names[i], MSG_NAME_MAX, "%s", d->conf->nodes[view->nodes[i]].name);
    return 0;
}

static void send_joined(struct daemon *d, const struct core_group_view *view, struct msg *msg,
                        struct stream_fd *board, unsigned slot, uint32_t req)
{
    struct stream_fd *shared[2] = {board, NULL};
    int bell = -1, r = 0;

    if (view->nnodes > 1)
        r = doorbell(d, slot, &bell);
    if (r) /* the client can work without a doorbell, but slowly; it will fail for the same reason
              soon */
        log_no_doorbell(d, slot, view->uid, r);
    msg->joined.req = req;
    waits_joined(d, slot, req);
    if (bell >= 0)
        shared[1] = stream_fd_new(&bell);
    msg->joined.new_doorbell = shared[1] != NULL;
    listener_send_shared(d->listener, slot, msg, shared, shared[1] ? 2 : 1);
    stream_fd_unref(shared[1]);
    close_fdp(&bell);
}

/* Sends JOINED to every local member, with the board, and with the doorbell if that is new. Takes
 * the board on success. */
static int tell_members(struct daemon *d, const struct core_group_view *view,
                        struct board_entry *entry, int *board_fd)
{
    struct stream_fd *board = NULL;
    unsigned rank, slot;
    struct msg msg;
    uint32_t req;
    int r;

    for (unsigned i = 0; core_group_local(d->core, view->id, i, &rank, &slot, &req); i++)
        if (boards_hand_out(&d->boards, entry, local_index(view, rank), slot))
            return -ENOMEM;
    r = fill_joined(d, view, &msg);
    if (r)
        return r;
    board = stream_fd_new(board_fd);
    for (unsigned i = 0; board && core_group_local(d->core, view->id, i, &rank, &slot, &req); i++)
        send_joined(d, view, &msg, board, slot, req);
    free(msg.joined.nodes);
    r = board ? 0 : -ENOMEM;
    stream_fd_unref(board);
    return r;
}

/* The answer of a commd before this one did not reach the client. */
static void joined_again(struct daemon *d, uint64_t group, unsigned slot, uint32_t req)
{
    const struct board_entry *entry = boards_find(&d->boards, group);
    _cleanup_(close_fdp) int fd = -1;
    struct core_group_view view;
    struct stream_fd *board;
    struct msg msg;

    if (!entry || !core_group(d->core, group, &view) || boards_reopen(entry, &fd) ||
        fill_joined(d, &view, &msg))
        return; /* the client waits until its limit has passed */
    board = stream_fd_new(&fd);
    if (board)
        send_joined(d, &view, &msg, board, slot, req);
    stream_fd_unref(board);
    free(msg.joined.nodes);
}

/* @abort: the engine drops the group's operations at once. Else it finishes what other nodes still
 * need. Messages that members have sent go out in any case. */
static void apply_group_close(struct daemon *d, uint64_t id, bool abort)
{
    struct board_entry *entry = boards_find(&d->boards, id);
    struct msg msg = {.type = MSG_BOARD_DEL};

    if (!entry)
        return;
    past_closing(&d->gather->past, d, entry);
    takeover_group_gone(d, entry);
    if (entry->engine_life && entry->engine_life == engine_link_life(d->engine)) {
        msg.board = (struct msg_board){.group = id, .abort = abort, .peer = -1};
        engine_link_send(d->engine, &msg, NULL, 0);
    }
    boards_del(&d->boards, id);
    loop_watch_boards(d);
}

static void group_open(struct daemon *d, uint64_t id)
{
    _cleanup_(close_fdp) int fd = -1;
    struct core_group_view view;
    struct board_entry *entry;
    char why[MSG_TEXT_MAX] = "no memory";
    int r;

    if (!core_group(d->core, id, &view))
        return;
    r = make_board(d, &view, &entry, &fd, why, sizeof(why));
    if (r)
        return board_failed(d, id, r, why);
    if (view.nnodes > 1) {
        r = board_to_engine(d, &view, fd);
        entry->engine_life = engine_link_life(d->engine);
    }
    takeover_group(d, &view, entry);
    if (r == 0)
        r = tell_members(d, &view, entry, &fd);
    if (r) { /* before any member was told */
        apply_group_close(d, id, true);
        board_failed(d, id, r, why);
    }
}

/* ---- what happens to an open group ----------------------------------------------------------- */

static void apply_rank_gone(struct daemon *d, const struct core_rank_gone *gone)
{
    struct board_entry *entry = boards_find(&d->boards, gone->group);
    struct msg msg = {.type = MSG_GONE};
    struct core_group_view view;
    uint32_t ops = gone->ops == CORE_OPS_FROM_BOARD ? 0 : gone->ops;
    struct core_rank_gone kept = *gone;
    bool known = core_group(d->core, gone->group, &view) && view.members && gone->rank < view.size;

    if (gone->ops == CORE_OPS_FROM_BOARD && entry && known)
        ops = board_rank_ops(entry->ctl, local_index(&view, gone->rank));
    kept.ops = ops;
    takeover_rank_gone(d, &kept);
    if (entry)
        board_mark_gone(entry->ctl, gone->rank, ops, gone->cause, gone->pid);
    if (gone->ops != CORE_OPS_FROM_BOARD || !known)
        return;
    msg.gone = (struct msg_gone){
        .group = gone->group,
        .rank = gone->rank,
        .ops = ops,
        .pid = gone->pid,
        .cause = gone->cause,
    };
    snprintf(msg.gone.text, sizeof(msg.gone.text), "%s", gone->text);
    for (unsigned i = 0; i < view.nnodes; i++)
        if (i != view.me)
            peer_links_send(d->peers, view.nodes[i], &msg);
}

/* The counters are the clients' to write: whatever they hold, it is a number that is compared. */
static void list_absent(const struct board_entry *entry, const struct core_group_view *view,
                        uint64_t seq, struct rank_list *list)
{
    unsigned local = 0;

    for (unsigned rank = 0; rank < view->size; rank++)
        if (view->members[rank].node == view->me &&
            !seq_reached(board_rank_started(entry->ctl, local++), (uint32_t)seq))
            rank_list_add(list, rank);
    rank_list_end(list);
}

static void group_absent(struct daemon *d, const struct core_group_absent *absent)
{
    struct board_entry *entry = boards_find(&d->boards, absent->group);
    bool for_node = absent->asker == CORE_ASKER_NODE;
    struct core_group_view view;
    struct msg msg = {.type = for_node ? MSG_ABSENT_HERE : MSG_ABSENT};
    struct rank_list list;

    if (!entry || !core_group(d->core, absent->group, &view) || !view.members)
        return; /* the board could not be made, and all members are being told */
    rank_list_init(&list, for_node ? msg.absent_here.text : msg.absent.text, MSG_TEXT_MAX);
    list_absent(entry, &view, absent->seq, &list);
    if (for_node) {
        msg.absent_here.group = absent->group;
        msg.absent_here.ask = absent->ask;
        msg.absent_here.count = list.n;
        msg.absent_here.rank = list.lowest;
        peer_links_send(d->peers, absent->to, &msg);
        return;
    }
    msg.absent.req = (uint32_t)absent->ask;
    msg.absent.count = list.n;
    msg.absent.rank = list.lowest;
    snprintf(msg.absent.node, sizeof(msg.absent.node), "%s", d->conf->node);
    listener_send(d->listener, absent->to, &msg, NULL, 0);
}

static void apply_group_broken(struct daemon *d, const struct core_group_broken *broken)
{
    struct board_entry *entry = boards_find(&d->boards, broken->group);

    takeover_broken(d, broken);
    if (entry)
        board_mark_broken(entry->ctl, broken->cause, broken->rank, broken->pid, broken->node,
                          broken->text);
}

/* ---- messages that we complete --------------------------------------------------------------- */

static void welcome(struct daemon *d, unsigned slot, const struct msg *half)
{
    struct msg msg = *half;

    takeover_welcome(d, slot, &msg.welcome);
    listener_send(d->listener, slot, &msg, NULL, 0);
    takeover_welcomed(d, slot);
}

/* The token that @node's engine has to show to our engine. Each link has another token: a late
 * message of an earlier link, such as a good-bye, must not be taken for one of the present link. */
static int our_token(struct daemon *d, unsigned node, uint8_t ret_token[32])
{
    char text[CONF_NAME_MAX + 16];

    snprintf(text, sizeof(text), "%s %u", d->conf->nodes[node].name, d->token_turns[node]);
    return engine_link_token(d->engine, text, ret_token);
}

static void peer_send(struct daemon *d, const struct core_send *send)
{
    struct msg msg;

    if (send->msg->type != MSG_ENGINE_STATE || send->msg->engine_state.engine == 0)
        return peer_links_send(d->peers, send->to, send->msg);
    msg = *send->msg;
    d->token_turns[send->to]++;
    if (our_token(d, send->to, msg.engine_state.token) == 0)
        peer_links_send(d->peers, send->to, &msg);
}

static void engine_send(struct daemon *d, const struct core_send *send)
{
    uint32_t peer = send->msg->engine_peer_add.peer;
    struct msg msg;

    if (send->msg->type != MSG_ENGINE_PEER_ADD)
        return engine_link_send(d->engine, send->msg, NULL, 0);
    msg = *send->msg;
    memcpy(msg.engine_peer_add.token, d->peer_tokens[peer], sizeof(d->peer_tokens[peer]));
    if (our_token(d, peer, msg.engine_peer_add.expect) == 0)
        engine_link_send(d->engine, &msg, NULL, 0);
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

void apply_client_gone(struct daemon *d, unsigned slot)
{
    struct msg msg = {.type = MSG_DOORBELL_DEL};
    unsigned life = d->doorbells[slot];

    d->doorbells[slot] = 0;
    takeover_client_gone(d, slot);
    boards_client_gone(&d->boards, slot);
    arenas_drop(&d->arenas, slot);
    admin_drop(d, slot);
    gather_drop(d, slot);
    waits_gone(d, slot);
    if (!life || life != engine_link_life(d->engine))
        return;
    msg.doorbell.client = slot;
    engine_link_send(d->engine, &msg, NULL, 0);
}

static void write_down(struct daemon *d, const struct core_log *line)
{
    static const char *const words[CORE_NOTE_COUNT] = {
        [CORE_NOTE_NODE_UP] = "node_up",         [CORE_NOTE_NODE_LOST] = "node_lost",
        [CORE_NOTE_NODE_DRAINS] = "drain",       [CORE_NOTE_ENGINE_UP] = "engine_up",
        [CORE_NOTE_ENGINE_LOST] = "engine_lost", [CORE_NOTE_DATA_MENDED] = "data_mended",
        [CORE_NOTE_GPU_UP] = "gpu_up",           [CORE_NOTE_GPU_LOST] = "gpu_lost",
        [CORE_NOTE_GROUP_OPEN] = "group_open",   [CORE_NOTE_GROUP_FAILED] = "group_failed",
        [CORE_NOTE_GROUP_ENDED] = "group_ended", [CORE_NOTE_RANK_LOST] = "rank_lost",
        [CORE_NOTE_CLIENT_COME] = "client_come", [CORE_NOTE_CLIENT_GONE] = "client_gone",
        [CORE_NOTE_CLIENT_BACK] = "client_back", [CORE_NOTE_CLIENT_REFUSED] = "client_refused",
    };

    int64_t whose = DIARY_EVERYBODY, payer = DIARY_EVERYBODY;

    if (line->by == CORE_BY_USER) {
        whose = line->by_id;
        payer = payer_of(d->payers, line->by_id);
    }
    diary_add(d->diary, words[line->note], whose, payer, clock_wall_ms(), line->text);
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
    case CORE_DO_GPU_START:
        engine_link_start(d->gpu);
        break;
    case CORE_DO_GPU_KILL:
        engine_link_kill(d->gpu);
        break;
    case CORE_DO_GPU_SESSION:
        gpu_session(d, &a->gpu_session);
        break;
    case CORE_DO_GROUP_OPEN:
        group_open(d, a->group_open.group);
        break;
    case CORE_DO_RANK_GONE:
        apply_rank_gone(d, &a->rank_gone);
        break;
    case CORE_DO_JOINED_AGAIN:
        joined_again(d, a->joined_again.group, a->joined_again.client, a->joined_again.req);
        break;
    case CORE_DO_RANK_ENDED:
        takeover_rank_gone(d, &a->rank_gone);
        break;
    case CORE_DO_GROUP_BROKEN:
        apply_group_broken(d, &a->group_broken);
        break;
    case CORE_DO_GROUP_CLOSE:
        apply_group_close(d, a->group_close.group, a->group_close.abort);
        break;
    case CORE_DO_GROUP_ABSENT:
        group_absent(d, &a->group_absent);
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
