/* sim_state.c - commd is killed and another one takes over, in the simulator.
 *
 * The real state file is used, in memory that outlives the core. The edges (sim_edge.c) write to it
 * as apply.c does, and at each place where commd can be killed they ask state_cut(): between two
 * inputs, between an input and its actions, before something is written down, before it is told.
 *
 * What must hold: when all actions of the last input were carried out, a successor knows exactly
 * what the live core shows (check_kept()). After a taking-over no client that was welcome is lost,
 * and no group that a client is in; what must hold in any case (sim_check.c, sim_edge.c) holds: no
 * join is answered twice, no rank is told twice to be gone, each one that is gone is marked. */
#include "tests/sim/sim_internal.h"

enum {
    STATE_BYTES = 64 << 10, /* small, so that its halves turn often */
};

void state_start(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    state_stop(sim, node);
    n->memory = calloc(1, STATE_BYTES);
    if (!n->memory || state_on(n->memory, STATE_BYTES, true, &n->state))
        abort();
    n->counted = (struct core_counts){0};
}

void state_stop(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    n->state = state_free(n->state);
    free(n->memory);
    n->memory = NULL;
    n->kill_after = 0;
}

uint64_t sim_taken_over(const struct sim *sim)
{
    return sim->taken_over;
}

void sim_kill_after(struct sim *sim, unsigned node, unsigned n)
{
    if (sim->nodes[node].alive)
        sim->nodes[node].kill_after = n;
    sim->options.kills_renewed &= n > 0;
}

bool state_cut(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (n->kill_after && --n->kill_after == 0)
        n->dying = true;
    return n->dying;
}

void state_count(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (!memcmp(&n->counted, core_counts(n->core), sizeof(n->counted)))
        return;
    n->counted = *core_counts(n->core);
    state_counts(n->state, &n->counted);
}

/* ---- a successor knows what the live core shows ---------------------------------------------- */

struct taker {
    struct sim *sim;
    unsigned node;
    struct core *core;
};

static bool must(const struct taker *taker, bool ok, const char *what)
{
    if (!ok)
        sim_fail(taker->sim, "the successor on node %s refuses %s",
                 sim_node_name(taker->sim, taker->node), what);
    return true;
}

static void take_counts(void *arg, const struct core_counts *counts)
{
    core_restore_counts(((struct taker *)arg)->core, counts);
}

static bool take_client(void *arg, const struct state_client *client)
{
    struct taker *taker = arg;

    return must(taker, core_restore_client(taker->core, &client->is), "a client");
}

static bool take_group(void *arg, const struct core_kept_group *group)
{
    struct taker *taker = arg;
    struct board *board = edge_board(taker->sim, taker->node, group->id);

    if (board)
        memset(board->lost, 0, sizeof(board->lost)); /* as board_adopt() */
    return must(taker, group->state != CORE_GROUP_OPEN || board, "a group without a board") &&
           must(taker, core_restore_group(taker->core, group), "a group");
}

static bool take_gone(void *arg, const struct core_rank_gone *gone)
{
    struct taker *taker = arg;

    return must(taker, core_restore_rank_gone(taker->core, gone), "the end of a rank");
}

static bool take_broken(void *arg, const struct core_group_broken *broken)
{
    struct taker *taker = arg;

    return must(taker, core_restore_broken(taker->core, broken), "a broken group");
}

static void restore(struct sim *sim, unsigned node, struct core *core, struct state *state)
{
    static const struct state_ops ops = {.counts = take_counts,
                                         .client = take_client,
                                         .group = take_group,
                                         .rank_gone = take_gone,
                                         .broken = take_broken};
    struct taker taker = {.sim = sim, .node = node, .core = core};
    const char *why;

    core_restore_begin(core, sim->now);
    state_read(state, &ops, &taker);
    if (state_dropped(state, &why) || !state_is_whole(state))
        sim_fail(sim, "the state of node %s is not whole: %s", sim_node_name(sim, node), why);
}

static void same(const struct taker *taker, bool ok, const char *what)
{
    if (!ok)
        sim_fail(taker->sim, "a successor on node %s would be wrong about %s",
                 sim_node_name(taker->sim, taker->node), what);
}

static bool is_kept(const struct core_group_view *view)
{
    return view->state == CORE_GROUP_OPEN || view->state == CORE_GROUP_BROKEN ||
           view->state == CORE_GROUP_COMMITTED;
}

static void same_ranks(const struct taker *taker, const struct core *live, uint64_t id)
{
    unsigned rank[2], slot[2];
    uint32_t req[2];

    for (unsigned i = 0; core_group_local(live, id, i, &rank[0], &slot[0], &req[0]); i++)
        same(taker,
             core_group_local(taker->core, id, i, &rank[1], &slot[1], &req[1]) &&
                 rank[0] == rank[1] && slot[0] == slot[1] && req[0] == req[1],
             "a rank of a group");
}

static void same_group(const struct taker *taker, const struct core *live,
                       const struct core_group_view *a)
{
    const struct group *ours = group_find(live, a->id), *theirs = group_find(taker->core, a->id);
    struct core_group_view b;

    same(taker, core_group(taker->core, a->id, &b), "a group");
    same(taker,
         a->state == b.state && a->epoch == b.epoch && a->follows == b.follows && a->uid == b.uid &&
             a->payer == b.payer && a->gpu == b.gpu && a->size == b.size && a->nnodes == b.nnodes &&
             a->me == b.me && !strcmp(a->name, b.name) &&
             !memcmp(&a->net, &b.net, sizeof(a->net)) &&
             !memcmp(a->nodes, b.nodes, a->nnodes * sizeof(*a->nodes)),
         "what a group is");
    if (a->state == CORE_GROUP_COMMITTED)
        ours = theirs; /* what others told of their ranks they tell again */
    same(taker,
         a->cause == b.cause && a->cause_rank == b.cause_rank &&
             !strcmp(a->cause_text, b.cause_text) && ours->cause_pid == theirs->cause_pid &&
             ours->cause_node == theirs->cause_node && ours->unclean == theirs->unclean &&
             ours->boarded == theirs->boarded,
         "what broke a group");
    same(taker, a->nlocal == b.nlocal, "how many ranks a group has here");
    for (unsigned rank = 0; rank < a->size; rank++) {
        same(taker,
             a->members[rank].node == b.members[rank].node &&
                 a->members[rank].pid == b.members[rank].pid &&
                 a->members[rank].was == b.members[rank].was,
             "a member of a group");
        same(taker,
             core_rank_fate(live, a->id, rank) == core_rank_fate(taker->core, a->id, rank) ||
                 (a->state == CORE_GROUP_COMMITTED && a->members[rank].node != a->me),
             "what became of a rank");
    }
    same_ranks(taker, live, a->id);
}

static void same_groups(const struct taker *taker, const struct core *live)
{
    struct core_scan ours = {0}, theirs = {0};
    struct core_group_view view;
    unsigned n = 0;
    int r;

    while ((r = core_group_scan(live, &ours, NULL, &view)) != CORE_SCAN_END)
        if (r == CORE_SCAN_FOUND && is_kept(&view)) {
            same_group(taker, live, &view);
            n++;
        }
    while ((r = core_group_scan(taker->core, &theirs, NULL, &view)) != CORE_SCAN_END)
        n -= r == CORE_SCAN_FOUND;
    same(taker, n == 0, "how many groups there are");
}

static void same_clients(const struct taker *taker, const struct core *live)
{
    struct core_client_view ours, theirs;
    unsigned at[2] = {0, 0};

    while (core_client_scan(live, &at[0], &ours)) {
        if (ours.admin)
            continue;
        same(taker,
             core_client_scan(taker->core, &at[1], &theirs) && theirs.away &&
                 ours.client == theirs.client && ours.uid == theirs.uid && ours.pid == theirs.pid &&
                 ours.groups == theirs.groups && ours.since_ms == theirs.since_ms &&
                 !strcmp(ours.program, theirs.program),
             "a client");
    }
    same(taker, !core_client_scan(taker->core, &at[1], &theirs), "how many clients there are");
}

/* Groups of which others have to hear yet. @return how many need not be known: withdrawn ones. */
static unsigned same_left(const struct taker *taker, const struct core *live)
{
    const struct group *theirs;
    struct group *group;
    unsigned withdrawn = 0;

    list_each(group, &live->all_groups, all) {
        if (group->state != GROUP_LEFT)
            continue;
        theirs = group_find(taker->core, group->id);
        withdrawn += !theirs;
        same(taker,
             theirs ? theirs->state == GROUP_LEFT && theirs->cause == group->cause : group->cause,
             "a group that all have left");
        for (uint32_t i = 0; theirs && i < group->size; i++)
            same(taker,
                 group->members[i].node != group->me ||
                     core_rank_fate(taker->core, group->id, i) != CAUSE_NONE,
                 "a rank that was told to be gone");
    }
    return withdrawn;
}

/* Of what is kept: joins that wait are asked for again. */
static void same_shares(const struct taker *taker, const struct core *live)
{
    struct core_share ours[CORE_SHARES], theirs[CORE_SHARES];
    unsigned withdrawn = same_left(taker, live);

    core_user_shares(live, 1000, ours);
    core_user_shares(taker->core, 1000, theirs);
    same(taker, ours[CORE_SHARE_CLIENTS].used == theirs[CORE_SHARE_CLIENTS].used,
         "the clients of a user");
    same(taker, ours[CORE_SHARE_GROUPS].used == theirs[CORE_SHARE_GROUPS].used + withdrawn,
         "the groups of a user");
    same(taker, ours[CORE_SHARE_MEMBERS].used >= theirs[CORE_SHARE_MEMBERS].used,
         "the room for members of a user");
    for (uint32_t i = 0, waiting = 0; i <= live->members.used; i++) {
        const struct member *member = i < live->members.used ? pool_at(&live->members, i) : NULL;

        if (!member)
            same(taker, ours[CORE_SHARE_RANKS].used == theirs[CORE_SHARE_RANKS].used + waiting,
                 "the ranks of a user");
        else
            waiting += member->state == MEMBER_ASKING || member->state == MEMBER_EXPIRING;
    }
}

/* All actions of the last input have been carried out. */
static void check_kept(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct core *live = n->core;
    void *copy = malloc(STATE_BYTES);
    struct state *state;
    struct taker taker = {.sim = sim, .node = node};

    if (!copy)
        abort();
    memcpy(copy, n->memory, STATE_BYTES);
    if (state_on(copy, STATE_BYTES, false, &state))
        sim_fail(sim, "node %s has written no state", sim_node_name(sim, node));
    n->core = NULL;
    sim_open(sim, node);
    taker.core = n->core;
    n->core = live;
    restore(sim, node, taker.core, state);
    same_groups(&taker, live);
    same_clients(&taker, live);
    same_shares(&taker, live);
    same(&taker, !memcmp(core_counts(live), core_counts(taker.core), sizeof(struct core_counts)),
         "what it has counted");
    core_free(taker.core);
    state_free(state);
    free(copy);
}

/* ---- killed ---------------------------------------------------------------------------------- */

/* A group with @node rests, because an engine of it is replaced. */
static bool waits_for_engine(const struct core *core, unsigned node)
{
    const struct group *group;

    list_each(group, &core->all_groups, all)
        if (group->state == GROUP_OPEN && group->bond_planned && group->bond != BOND_BOUND &&
            group_place(group, node) >= 0)
            return true;
    return false;
}

/* Groups over it go on if it is back soon, and was there before. */
static void blame(struct sim *sim, unsigned node, uint64_t gap)
{
    struct node *n = &sim->nodes[node];

    n->kills = n->killed_at && sim->now - n->killed_at < 4000 ? n->kills + 1 : 1;
    n->killed_at = sim->now;
    n->forgot = n->nwithdrew;
    if (gap > 1000 || n->kills > 3)
        sim->oracle.node_fault[node] = true;
    for (unsigned i = 0; i < sim->options.nodes; i++) {
        const struct core *other = sim->nodes[i].core;

        if (i == node || !sim->nodes[i].alive || peer_usable(other, node))
            continue;
        if (peer_is_missed(other, node) ? other->peers[node].lost_ms < sim->now + gap + READY_MS
                                        : !waits_for_engine(other, node))
            sim->oracle.node_fault[node] = true;
    }
}

static void kill_commd(struct sim *sim, unsigned node, bool at_rest, uint64_t gap)
{
    struct node *n = &sim->nodes[node];

    sim_note(sim, "commd of %s is killed", sim_node_name(sim, node));
    if (at_rest)
        check_kept(sim, node);
    n->alive = n->dying = false;
    n->gap = true;
    sim->crash_now = false;
    blame(sim, node, gap);
    if (!n->engine_kept || !n->engine_alive) {
        if (!n->engine_renews)
            sim->oracle.engine_fault[node] = sim->oracle.node_fault[node] = true;
        engine_kill_process(sim, node, false);
        n->engine_kept = 0;
        n->engine_gen++;
    } else if (sim_random(sim, STREAM_ENGINE, 8) == 0 && !sim->options.calm) {
        sim_at(sim, sim_random(sim, STREAM_ENGINE, gap + 20),
               (struct ev){.type = EV_ENGINE_DIES, .a = node, .gen = n->engine_gen});
    }
    n->engine_hello = false;
    for (unsigned i = 0; i < sim->nhandles + 1 && i < SIM_HANDLES; i++)
        if (sim->handles[i].node == node && sim->handles[i].alive)
            sim->handles[i].away = true; /* also the one that connects right now */
    net_node_gone(sim, node, sim_random(sim, STREAM_NODE, 2));
    sim_at(sim, gap, (struct ev){.type = EV_TAKE_OVER, .a = node});
}

void state_kill(struct sim *sim, unsigned node, bool at_rest)
{
    bool soon = sim_random(sim, STREAM_NODE, 10) || sim->options.calm;

    kill_commd(sim, node, at_rest, 1 + sim_random(sim, STREAM_NODE, soon ? 200 : 6000));
}

void sim_kill_both(struct sim *sim, unsigned node, uint64_t gap)
{
    if (!sim->nodes[node].alive)
        return;
    sim->nodes[node].engine_kept = 0; /* it dies, too */
    kill_commd(sim, node, true, gap);
}

/* ---- another one takes over ------------------------------------------------------------------ */

static bool is_in(const struct handle *handle, uint64_t id)
{
    for (unsigned i = 0; i < handle->njoins; i++)
        if (handle->joins[i].group == id && !handle->joins[i].left)
            return true;
    return false;
}

/* The board said that the group is broken, and commd had taken this client out of it: it hears so
 * when it comes back. */
static void take_out(struct handle *handle, uint64_t id)
{
    for (unsigned i = 0; i < handle->njoins; i++)
        handle->joins[i].left |= handle->joins[i].group == id;
}

/* Boards of groups that it does not know: none that goes on for anybody. */
static void close_boards(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct core_group_view view;

    for (unsigned b = 0; b < SIM_BOARDS; b++) {
        if (!n->boards[b].group ||
            (core_group(n->core, n->boards[b].group, &view) &&
             (view.state == CORE_GROUP_OPEN || view.state == CORE_GROUP_BROKEN)))
            continue;
        for (unsigned i = 0; i < sim->nhandles; i++) {
            struct handle *handle = &sim->handles[i];

            if (handle->node != node || !handle->alive || !is_in(handle, n->boards[b].group))
                continue;
            if (!n->boards[b].broken)
                sim_fail(sim, "pid %u is in a group that was not taken over", handle->pid);
            take_out(handle, n->boards[b].group);
        }
        n->boards[b].group = 0;
    }
}

/* Slots of clients that it does not know. */
static void free_slots(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    for (unsigned slot = 0; slot < SIM_CLIENTS; slot++) {
        const struct handle *handle = n->slots[slot] < 0 ? NULL : &sim->handles[n->slots[slot]];

        if (!handle || n->core->clients[slot].state == CLIENT_AWAY)
            continue;
        if (handle->alive && handle->welcome && handle->slot == slot)
            sim_fail(sim, "pid %u was not taken over", handle->pid);
        n->slots[slot] = -1;
    }
}

/* Their pidfds say so. */
static bool end_dead_clients(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    for (unsigned slot = 0; slot < SIM_CLIENTS; slot++) {
        if (n->slots[slot] < 0 || sim->handles[n->slots[slot]].alive)
            continue;
        state_client_gone(n->state, slot);
        n->slots[slot] = -1;
        sim_input(sim, node,
                  (struct core_event){
                      .type = CORE_CLIENT_CLOSED, .client = slot, .text = "its process ended"});
        if (!n->alive)
            return false;
    }
    return true;
}

void sim_forget(struct sim *sim, unsigned node, uint64_t gap)
{
    sim->nodes[node].forgets = sim->nodes[node].alive;
    sim_kill_both(sim, node, gap);
}

static void clients_come(struct sim *sim, unsigned node)
{
    for (unsigned i = 0; i < sim->nhandles; i++)
        if (sim->handles[i].node == node && sim->handles[i].alive && sim->handles[i].away)
            sim_at(
                sim,
                1 + sim_random(sim, STREAM_NODE, sim->options.back_ms ? sim->options.back_ms : 60),
                (struct ev){.type = EV_CLIENT_BACK, .a = i});
}

/* It knows none of the groups that its clients are in. */
static void start_anew(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    for (unsigned i = 0; i < sim->nhandles; i++)
        for (unsigned j = 0; sim->handles[i].node == node && j < sim->handles[i].njoins; j++)
            sim->handles[i].joins[j].unknown |= sim->handles[i].joins[j].group != 0;
    for (unsigned i = 0; i < SIM_BOARDS; i++)
        n->boards[i].group = 0;
    for (unsigned i = 0; i < ARRAY_LEN(n->slots); i++)
        n->slots[i] = -1;
    n->gap = n->forgets = false;
    sim_start(sim, node);
    clients_come(sim, node);
}

static void take_over(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (n->forgets) {
        start_anew(sim, node);
        return;
    }
    n->state = state_free(n->state);
    if (state_on(n->memory, STATE_BYTES, false, &n->state))
        sim_fail(sim, "node %s has written no state", sim_node_name(sim, node));
    sim_open(sim, node);
    restore(sim, node, n->core, n->state);
    engine_restore(sim, node);
    n->gap = false;
    n->alive = true;
    sim->taken_over++;
    sim_note(sim, "commd of %s takes over", sim_node_name(sim, node));
    close_boards(sim, node);
    free_slots(sim, node);
    sim_input(sim, node, (struct core_event){.type = CORE_TAKEN_OVER});
    if (n->alive)
        engine_adopted(sim, node);
    if (!n->alive || !end_dead_clients(sim, node))
        return; /* it was killed, too */
    net_node_started(sim, node);
    clients_come(sim, node);
}

/* ---- clients --------------------------------------------------------------------------------- */

void state_hello(struct sim *sim, struct handle *handle)
{
    struct msg hello = {.type = MSG_CLIENT_HELLO};

    hello.client_hello.version = MSG_VERSION;
    text_copy(hello.client_hello.program, sizeof(hello.client_hello.program), "train");
    sim_input(
        sim, handle->node,
        (struct core_event){
            .type = CORE_CLIENT_OPEN, .client = handle->slot, .uid = 1000, .pid = handle->pid});
    if (handle->alive && !handle->away)
        sim_input(
            sim, handle->node,
            (struct core_event){.type = CORE_CLIENT_MSG, .client = handle->slot, .msg = &hello});
}

void state_welcome(struct sim *sim, unsigned node, struct handle *handle)
{
    const struct client *client = &sim->nodes[node].core->clients[handle->slot];
    struct state_client kept = {.is = {.slot = handle->slot,
                                       .uid = client->uid,
                                       .payer = client->payer,
                                       .pid = client->pid,
                                       .since_ms = client->since_ms,
                                       .program = client->program}};

    if (!handle->kept)
        state_client(sim->nodes[node].state, &kept);
    handle->kept = true;
    if (!state_cut(sim, node))
        handle->welcome = true;
}

static void come_back(struct sim *sim, struct handle *handle)
{
    uint64_t groups[ARRAY_LEN(handle->joins)];
    uint32_t joins[ARRAY_LEN(handle->joins)];
    struct msg hello = {.type = MSG_CLIENT_HELLO};
    struct core_event event = {.type = CORE_CLIENT_BACK,
                               .client = handle->slot,
                               .uid = 1000,
                               .pid = handle->pid,
                               .msg = &hello,
                               .groups = groups,
                               .joins = joins};

    hello.client_hello.version = MSG_VERSION;
    for (unsigned i = 0; i < handle->njoins; i++) {
        const struct join *join = &handle->joins[i];

        if (join->group && !join->left && !join->unknown)
            groups[event.ngroups++] = join->group;
        if (!join->answers)
            joins[event.njoins++] = join->req;
    }
    handle->away = false;
    sim_input(sim, handle->node, event);
}

/* It does not know that it was welcome, or was not. */
static bool come_anew(struct sim *sim, unsigned client)
{
    struct handle *handle = &sim->handles[client];
    struct node *n = &sim->nodes[handle->node];
    unsigned slot = 0;

    for (unsigned i = 0; i < handle->njoins; i++)
        if (handle->joins[i].group && !handle->joins[i].left && !handle->joins[i].unknown)
            sim_fail(sim, "pid %u has lost its groups", handle->pid);
    while (slot < SIM_CLIENTS &&
           (n->slots[slot] >= 0 || n->core->clients[slot].state != CLIENT_FREE))
        slot++;
    if (slot == SIM_CLIENTS)
        return false;
    handle->slot = slot;
    handle->kept = handle->welcome = handle->away = false;
    n->slots[slot] = (int)client;
    state_hello(sim, handle);
    return true;
}

static void client_back(struct sim *sim, unsigned client)
{
    struct handle *handle = &sim->handles[client];
    const struct node *n = &sim->nodes[handle->node];

    if (!handle->alive || !handle->away || !n->alive)
        return;
    sim_note(sim, "%s: pid %u comes back", sim_node_name(sim, handle->node), handle->pid);
    if (handle->welcome && core_client_may_return(n->core, handle->slot, 1000, handle->pid))
        come_back(sim, handle);
    else if (!come_anew(sim, client))
        sim_at(sim, 50, (struct ev){.type = EV_CLIENT_BACK, .a = client});
    for (unsigned i = 0; i < handle->njoins && handle->alive && !handle->away; i++) {
        if (handle->joins[i].answers)
            continue;
        handle->joins[i].at = sim->now;
        sim_send_join(sim, client, &handle->joins[i]);
    }
}

void state_event(struct sim *sim, const struct ev *ev)
{
    if (ev->type == EV_TAKE_OVER)
        take_over(sim, ev->a);
    else if (ev->type == EV_CLIENT_BACK)
        client_back(sim, ev->a);
}
