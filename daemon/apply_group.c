/* apply_group.c - decisions of the core about groups become effects: on boards, for members, and
 * for the engine. The other decisions: apply.c.
 *
 *  - The board of a group: it is made, and sent to the group's local members, and to the engine if
 *    the group spans nodes. Then the descriptor is closed. boards.c keeps another descriptor and
 *    the mapping of the control pages, and says when the user has no room for a board. A board that
 *    cannot be made is noted in d->news; daemon_dispatch() reports it when the core's queue is
 *    empty.
 *  - A doorbell for each client: an eventfd that the client and the engine have. The client can
 *    wake the engine by it without us, and can send it nothing. We keep it for the next engine.
 *  - The number of operations that a lost rank completed: it is read from the board, and told
 *    to the other nodes. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "daemon/daemon.h"
#include "daemon/process/log.h"
#include "daemon/link/stream.h"
#include "shm/util/memfd.h"
#include "shm/util/ranks.h"

/* What the core has to hear when its queue is empty: CORE_BOARD_FAILED, CORE_BOARD_POSITION. */
struct board_news {
    struct board_news *next;
    struct core_event event;
    char text[MSG_TEXT_MAX];
};

bool apply_next_news(struct daemon *d, struct core_event *ret_event, char ret_text[MSG_TEXT_MAX])
{
    struct board_news *news = d->news;

    if (!news)
        return false;
    *ret_event = news->event;
    snprintf(ret_text, MSG_TEXT_MAX, "%s", news->text);
    ret_event->text = ret_text;
    d->news = news->next;
    free(news);
    return true;
}

static void add_news(struct daemon *d, const struct core_event *event, const char *text)
{
    struct board_news *news = calloc(1, sizeof(*news));

    if (!news) {
        log_error("out of memory -> stopping, rather than leave a group half open");
        d->exit_code = EXIT_INTERNAL;
        loop_stop(d);
        return;
    }
    news->event = *event;
    snprintf(news->text, sizeof(news->text), "%s", text);
    news->next = d->news;
    d->news = news;
}

static void board_failed(struct daemon *d, uint64_t group, int error, const char *text)
{
    struct core_event failed = {.type = CORE_BOARD_FAILED,
                                .group = group,
                                .cause = error == -EDQUOT ? CAUSE_QUOTA : CAUSE_NOMEM};

    add_news(d, &failed, text);
}

/* ---- opening a group ------------------------------------------------------------------------- */

/* What members do among themselves they all have to do alike. One that has not come back since
 * commd was restarted is taken for one that knows none. */
static uint32_t plans_of_members(const struct daemon *d, uint64_t group, unsigned nlocal)
{
    unsigned n = 0, rank, slot;
    uint32_t plans = UINT32_MAX, req;

    for (; core_group_local(d->core, group, n, &rank, &slot, &req); n++)
        plans &= slot < d->nslots ? d->commands[slot].plans : 0;
    return n == nlocal ? plans : 0;
}

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
    geom.plans = plans_of_members(d, view->id, geom.nlocal);
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

/* @goes_on: as in BOARD_ADD. */
static int board_to_engine(struct daemon *d, const struct core_group_view *view, int fd,
                           uint32_t goes_on)
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
        .goes_on = goes_on,
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
    close_fdp(&d->bells[slot]);
    d->bells[slot] = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* for the next engine; it polls without */
    takeover_bell(d, slot);
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

unsigned apply_local_index(const struct core_group_view *view, unsigned rank)
{
    unsigned index = 0;

    for (unsigned i = 0; i < rank; i++)
        index += view->members[i].node == view->me;
    return index;
}

/* Fills all of JOINED but the number of the request and the rank. The names are the caller's to
 * free. */
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
                        struct stream_fd *board, unsigned slot, unsigned rank, uint32_t req)
{
    struct stream_fd *shared[2] = {board, NULL};
    int bell = -1, r = 0;

    if (view->nnodes > 1)
        r = doorbell(d, slot, &bell);
    if (r) /* the client can work without a doorbell, but slowly; it will fail for the same reason
              soon */
        log_no_doorbell(d, slot, view->uid, r);
    msg->joined.req = req;
    msg->joined.rank = rank;
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
        if (boards_hand_out(&d->boards, entry, apply_local_index(view, rank), slot))
            return -ENOMEM;
    r = fill_joined(d, view, &msg);
    if (r)
        return r;
    board = stream_fd_new(board_fd);
    for (unsigned i = 0; board && core_group_waiter(d->core, view->id, i, &rank, &slot, &req); i++)
        send_joined(d, view, &msg, board, slot, rank, req);
    free(msg.joined.nodes);
    r = board ? 0 : -ENOMEM;
    stream_fd_unref(board);
    return r;
}

void apply_joined_again(struct daemon *d, uint64_t group, unsigned slot, unsigned rank,
                        uint32_t req)
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
        send_joined(d, &view, &msg, board, slot, rank, req);
    stream_fd_unref(board);
    free(msg.joined.nodes);
}

void apply_group_close(struct daemon *d, const struct core_group_close *close)
{
    struct board_entry *entry = boards_find(&d->boards, close->group);
    struct msg msg = {.type = MSG_BOARD_DEL};

    if (entry)
        past_closing(&d->gather->past, d, entry);
    takeover_closing(d, close);
    if (!entry)
        return;
    if (entry->engine_life && entry->engine_life == engine_link_life(d->engine)) {
        msg.board = (struct msg_board){.group = close->group, .abort = close->abort, .peer = -1};
        engine_link_send(d->engine, &msg, NULL, 0);
    }
    boards_del(&d->boards, close->group);
    loop_watch_boards(d);
}

void apply_group_open(struct daemon *d, uint64_t id)
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
    if (view.nnodes > 1 && view.state != CORE_GROUP_BROKEN) {
        r = board_to_engine(d, &view, fd, 0);
        entry->engine_life = engine_link_life(d->engine);
    }
    takeover_group(d, &view, entry);
    if (r == 0)
        r = tell_members(d, &view, entry, &fd);
    if (r) { /* before any member was told */
        apply_group_close(d, &(struct core_group_close){.group = id, .abort = true});
        board_failed(d, id, r, why);
    }
}

/* The engine of a commd before this one has those boards of which it was told. */
static bool board_again(void *daemon, const struct core_group_view *view)
{
    struct daemon *d = daemon;
    struct board_entry *entry = view->id ? boards_find(&d->boards, view->id) : NULL;
    unsigned life = engine_link_life(d->engine);

    if (!entry || view->nnodes < 2 || entry->engine_life == life)
        return true;
    if (board_to_engine(d, view, boards_own_fd(entry), 0))
        engine_link_kill(d->engine); /* no memory: it would drop the board */
    entry->engine_life = life;
    return true;
}

void apply_engine_resumed(struct daemon *d)
{
    struct msg msg = {.type = MSG_ENGINE_KEEP};

    core_group_each(d->core, board_again, d);
    engine_link_send(d->engine, &msg, NULL, 0);
}

/* ---- a group whose engine was lost ----------------------------------------------------------- */

void apply_group_position(struct daemon *d, uint64_t group)
{
    const struct board_entry *entry = boards_find(&d->boards, group);
    struct core_event event = {.type = CORE_BOARD_POSITION, .group = group};
    struct board_position position = {0};

    event.quiet = entry && board_quiet(entry->ctl, &position);
    event.position = (struct core_position){position.ops, position.sent, position.came};
    add_news(d, &event, "");
}

/* The engine that there is now gets the doorbell that the client has. */
static void doorbell_again(struct daemon *d, unsigned slot)
{
    unsigned life = engine_link_life(d->engine);
    struct msg msg = {.type = MSG_DOORBELL_ADD};

    if (d->bells[slot] < 0 || d->doorbells[slot] == life)
        return;
    msg.doorbell.client = slot;
    engine_link_send(d->engine, &msg, &d->bells[slot], 1);
    d->doorbells[slot] = life;
}

void apply_group_bind(struct daemon *d, uint64_t group, uint32_t ops)
{
    struct board_entry *entry = boards_find(&d->boards, group);
    struct core_group_view view;
    unsigned rank, slot;
    uint32_t req;

    if (!entry || !core_group(d->core, group, &view))
        return;
    if (board_to_engine(d, &view, boards_own_fd(entry), ops + 1))
        engine_link_kill(d->engine); /* no memory: the next one is asked */
    entry->engine_life = engine_link_life(d->engine);
    for (unsigned i = 0; core_group_local(d->core, group, i, &rank, &slot, &req); i++)
        doorbell_again(d, slot);
}

/* ---- what happens to an open group ----------------------------------------------------------- */

void apply_rank_gone(struct daemon *d, const struct core_rank_gone *gone)
{
    struct board_entry *entry = boards_find(&d->boards, gone->group);
    struct msg msg = {.type = MSG_GONE};
    struct core_group_view view;
    uint32_t ops = gone->ops == CORE_OPS_FROM_BOARD ? 0 : gone->ops;
    struct core_rank_gone kept = *gone;
    bool known = core_group(d->core, gone->group, &view) && view.members && gone->rank < view.size;

    if (gone->ops == CORE_OPS_FROM_BOARD && entry && known)
        ops = board_rank_ops(entry->ctl, apply_local_index(&view, gone->rank));
    kept.ops = ops;
    core_rank_counted(d->core, gone->group, gone->rank, ops);
    takeover_rank_gone(d, &kept);
    if (entry && gone->missed)
        board_mark_missed(entry->ctl, gone->rank, gone->cause);
    else if (entry)
        board_mark_gone(entry->ctl, gone->rank, ops, gone->cause, gone->pid);
    if (gone->ops != CORE_OPS_FROM_BOARD || !known)
        return;
    msg.gone = (struct msg_gone){
        .group = gone->group,
        .rank = gone->rank,
        .ops = ops,
        .pid = gone->pid,
        .cause = gone->cause,
        .next = gone->next,
    };
    snprintf(msg.gone.text, sizeof(msg.gone.text), "%s", gone->text);
    for (unsigned i = 0; i < view.nnodes; i++)
        if (i != view.me)
            peer_links_send(d->peers, view.nodes[i], &msg);
}

void apply_nodes_missed(struct daemon *d, uint64_t group)
{
    struct board_entry *entry = boards_find(&d->boards, group);
    struct core_group_view view;

    if (!entry || !core_group(d->core, group, &view))
        return;
    for (uint32_t i = 0; i < view.size && view.lost; i++)
        board_mark_missed(entry->ctl, i,
                          view.lost[view.members[i].node] ? CAUSE_NODE_LOST : CAUSE_NONE);
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

void apply_group_absent(struct daemon *d, const struct core_group_absent *absent)
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

void apply_group_broken(struct daemon *d, const struct core_group_broken *broken)
{
    struct board_entry *entry = boards_find(&d->boards, broken->group);

    takeover_broken(d, broken);
    if (entry)
        board_mark_broken(entry->ctl, broken->cause, broken->rank, broken->pid, broken->node,
                          broken->text);
}
