/* epoch.c - how many messages a change of epoch takes in a large cluster, and how long in virtual
 * time: epoch [--nodes N] [--ranks R]
 *
 * Real cores, one for each node, whose engines connect at once. Every message takes a millisecond
 * from node to node, so the time that is printed counts rounds of messages. A group of R ranks over
 * N nodes forms; a node is lost; the ranks of the others recover without it (shrink); then as many
 * new processes as were lost come, on other nodes, and all recover together (wait). After each
 * recovery all leave the group before. What is asserted is who is in the new group, and that no
 * step takes more than 4 messages for each rank and 6 for each node. The time is printed and not
 * asserted. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/core_internal.h"

enum { HOP_MS = 1, NODES_MAX = MSG_MAX_NODES, NAMES = 16 };

/* From a node to another one, or from a process of a node to its commd. */
enum from { FROM_PEER, FROM_ENGINE };

struct packet {
    struct packet *next;
    uint64_t due;
    enum from from;
    unsigned node, to;
    size_t len;
    struct msg *msg; /* the first @len bytes of one; tables of a COMMIT are in @sim */
};

struct rank {
    unsigned node, slot;
    uint32_t pid, req;
    uint64_t group, follows; /* that it is in, that it was in before */
    uint32_t rank, was;
    bool dead;
};

struct sim {
    unsigned nodes, ranks, nranks; /* nranks: processes that ever were */
    struct core *cores[NODES_MAX];
    bool down[NODES_MAX];
    unsigned slots[NODES_MAX];
    uint64_t now, hop;
    struct packet *head, **tail;
    struct rank *rank;
    struct msg_commit commit; /* the last one that was sent: all its packets share the tables */
    uint64_t count[64];
    unsigned joined, failed;
    char names[NODES_MAX][MSG_NAME_MAX];
    void *tables[16]; /* of COMMITs, which may be on their way as long as the process lives */
    unsigned ntables;
};

static _Noreturn void fail(const struct sim *sim, const char *what)
{
    fprintf(stderr, "VIOLATION at %llu ms: %s\n", (unsigned long long)sim->now, what);
    abort();
}

static void *take(size_t len)
{
    void *p = calloc(1, len ? len : 1);

    if (!p)
        abort();
    return p;
}

static size_t used(const struct msg *msg)
{
    size_t head = offsetof(struct msg, commit);

    switch ((int)msg->type) {
    case MSG_JOIN:
        return head + sizeof(msg->join);
    case MSG_COMMIT:
        return head + sizeof(msg->commit);
    case MSG_JOIN_NEWS:
        return head + sizeof(msg->join_news);
    case MSG_SYNC:
        return head + sizeof(msg->sync);
    case MSG_HEARTBEAT:
        return head + sizeof(msg->heartbeat);
    case MSG_ENGINE_READY:
        return head + sizeof(msg->engine_ready);
    case MSG_GONE:
        return head + sizeof(msg->gone);
    case MSG_BROKEN:
        return head + sizeof(msg->broken);
    default:
        return sizeof(*msg);
    }
}

static void *same(const void *p, size_t len)
{
    return len ? memcpy(take(len), p, len) : take(1);
}

/* The tables of a COMMIT are the same for all nodes. */
static void keep_tables(struct sim *sim, const struct msg_commit *commit)
{
    if (sim->commit.group == commit->group)
        return;
    assert(sim->ntables + 2 <= ARRAY_LEN(sim->tables));
    sim->commit = *commit;
    sim->commit.members = same(commit->members, commit->size * sizeof(*commit->members));
    sim->commit.nodes = same(commit->nodes, commit->nnodes * sizeof(*commit->nodes));
    sim->tables[sim->ntables++] = sim->commit.members;
    sim->tables[sim->ntables++] = sim->commit.nodes;
}

static void send(struct sim *sim, enum from from, unsigned node, unsigned to, const struct msg *msg)
{
    struct packet *packet = take(sizeof(*packet));

    *packet = (struct packet){
        .due = sim->now + sim->hop, .from = from, .node = node, .to = to, .len = used(msg)};
    packet->msg = same(msg, packet->len);
    if (msg->type == MSG_COMMIT) {
        keep_tables(sim, &msg->commit);
        packet->msg->commit = sim->commit;
    } else if (msg->type == MSG_JOIN_NEWS) {
        packet->msg->join_news.gone =
            same(msg->join_news.gone, msg->join_news.ngone * sizeof(uint32_t));
    }
    *sim->tail = packet;
    sim->tail = &packet->next;
}

/* ---- what the edges do ----------------------------------------------------------------------- */

static struct rank *rank_at(struct sim *sim, unsigned node, unsigned slot)
{
    for (unsigned i = node % sim->nodes; i < sim->nranks; i++)
        if (sim->rank[i].node == node && sim->rank[i].slot == slot)
            return &sim->rank[i];
    fail(sim, "a client that never was");
}

static void opened(struct sim *sim, unsigned node, uint64_t id)
{
    unsigned at, slot;
    struct core_group_view view;
    uint32_t req;

    if (!core_group(sim->cores[node], id, &view))
        fail(sim, "a group opens that is not there");
    for (unsigned i = 0; core_group_waiter(sim->cores[node], id, i, &at, &slot, &req); i++) {
        struct rank *rank = rank_at(sim, node, slot);

        if (rank->req != req || view.members[at].pid != rank->pid)
            fail(sim, "a rank is told of a group that is not its own");
        rank->follows = rank->group;
        rank->was = rank->rank;
        rank->group = id;
        rank->rank = at;
        sim->joined++;
    }
}

static void engine_says(struct sim *sim, unsigned node, const struct msg *msg)
{
    send(sim, FROM_ENGINE, node, node, msg);
}

static void to_engine(struct sim *sim, unsigned node, const struct msg *msg)
{
    struct msg answer = {.type = MSG_ENGINE_PEER_READY};

    if (msg->type == MSG_PING) {
        answer.type = MSG_PING;
        answer.ping = (struct msg_ping){.seq = msg->ping.seq, .pong = 1};
    } else if (msg->type == MSG_ENGINE_PEER_ADD) {
        answer.engine_peer.peer = msg->engine_peer_add.peer;
        answer.engine_peer.engine = msg->engine_peer_add.engine;
    } else {
        return;
    }
    engine_says(sim, node, &answer);
}

static void input(struct sim *sim, unsigned node, struct core_event event);

/* What the edge says of a rank whose number of operations stood in its board. */
static void tell_gone(struct sim *sim, unsigned node, const struct core_rank_gone *gone)
{
    struct msg msg = {.type = MSG_GONE};
    struct core_group_view view;

    if (gone->ops != CORE_OPS_FROM_BOARD || !core_group(sim->cores[node], gone->group, &view))
        return;
    msg.gone.group = gone->group;
    msg.gone.rank = gone->rank;
    msg.gone.pid = gone->pid;
    msg.gone.cause = gone->cause;
    for (unsigned i = 0; i < view.nnodes; i++) {
        if (view.nodes[i] == node)
            continue;
        sim->count[MSG_GONE]++;
        if (!sim->down[view.nodes[i]])
            send(sim, FROM_PEER, node, view.nodes[i], &msg);
    }
}

static void act(struct sim *sim, unsigned node, const struct core_action *action)
{
    switch ((int)action->type) { /* int: nothing else matters here */
    case CORE_DO_PEER_SEND:
        if (action->send.msg->type < ARRAY_LEN(sim->count))
            sim->count[action->send.msg->type]++;
        if (!sim->down[action->send.to])
            send(sim, FROM_PEER, node, action->send.to, action->send.msg);
        break;
    case CORE_DO_CLIENT_SEND:
        if (action->send.msg->type == MSG_JOIN_FAILED) {
            fprintf(stderr, "join failed: %s\n", action->send.msg->join_failed.text);
            sim->failed++;
        }
        break;
    case CORE_DO_ENGINE_SEND:
        to_engine(sim, node, action->send.msg);
        break;
    case CORE_DO_RANK_GONE:
        tell_gone(sim, node, &action->rank_gone);
        break;
    case CORE_DO_GROUP_OPEN:
        opened(sim, node, action->group_open.group);
        break;
    default:
        break;
    }
}

static void input(struct sim *sim, unsigned node, struct core_event event)
{
    struct core_action action;

    event.now_ms = sim->now;
    core_input(sim->cores[node], &event);
    while (core_next(sim->cores[node], &action))
        act(sim, node, &action);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void deliver(struct sim *sim)
{
    struct packet *packet = sim->head;

    sim->head = packet->next;
    if (!sim->head)
        sim->tail = &sim->head;
    if (!sim->down[packet->node] && !sim->down[packet->to])
        input(
            sim, packet->to,
            (struct core_event){.type = packet->from == FROM_PEER ? CORE_PEER_MSG : CORE_ENGINE_MSG,
                                .node = packet->node,
                                .msg = packet->msg});
    if (packet->msg->type == MSG_JOIN_NEWS)
        free(packet->msg->join_news.gone);
    free(packet->msg);
    free(packet);
}

static uint64_t tick(struct sim *sim)
{
    uint64_t next = UINT64_MAX;

    for (unsigned i = 0; i < sim->nodes; i++) {
        if (sim->down[i])
            continue;
        if (core_deadline(sim->cores[i]) <= sim->now)
            input(sim, i, (struct core_event){.type = CORE_TICK});
        next = MIN(next, core_deadline(sim->cores[i]));
    }
    return next;
}

/* Until @joined ranks were told of their group. @return ms since @from until the last was told. */
static uint64_t run_until(struct sim *sim, unsigned joined, uint64_t from)
{
    uint64_t end = sim->now + 60000;

    while (sim->joined < joined && !sim->failed && sim->now < end) {
        uint64_t next = tick(sim);

        if (sim->head)
            next = MIN(next, sim->head->due);
        sim->now = MAX(sim->now, next);
        while (sim->head && sim->head->due <= sim->now)
            deliver(sim);
    }
    if (sim->joined != joined || sim->failed)
        fail(sim, "not all ranks were told of a group");
    return sim->now - from;
}

/* ---- the cluster ----------------------------------------------------------------------------- */

static void link_pair(struct sim *sim, unsigned a, unsigned b)
{
    struct msg hello = {.type = MSG_PEER_HELLO, .peer_hello.version = MSG_VERSION};

    hello.peer_hello.incarnation = sim->cores[b]->config.incarnation;
    input(sim, a, (struct core_event){.type = CORE_PEER_UP, .node = b, .msg = &hello});
    hello.peer_hello.incarnation = sim->cores[a]->config.incarnation;
    input(sim, b, (struct core_event){.type = CORE_PEER_UP, .node = a, .msg = &hello});
    while (sim->head)
        deliver(sim);
    if (!peer_usable(sim->cores[a], b) || !peer_usable(sim->cores[b], a))
        fail(sim, "two nodes are not ready for each other");
}

static void start_node(struct sim *sim, unsigned node)
{
    struct core_config config = {
        .seed = 7 * node + 1,
        .incarnation = core_mix(node) | 1,
        .cluster = "test",
        .version = "0",
        .nodes = (const char(*)[MSG_NAME_MAX])sim->names,
        .nnodes = sim->nodes,
        .self = node,
        .heartbeat_ms = 3600000, /* silence is not what this is about */
        .node_timeout_ms = 7200000,
        .restart_timeout_ms = 1000,
        .engine_timeout_ms = 3600000,
        .max_clients = 64,
        .max_clients_per_user = 64,
        .max_groups = 16,
        .max_groups_per_user = 16,
        .max_size = 2 * sim->ranks,
        .max_members = 16 * sim->ranks,
    };
    struct msg hello = {.type = MSG_ENGINE_HELLO,
                        .engine_hello = {.version = MSG_VERSION, .pid = 1, .addr_len = 8}};

    sim->cores[node] = core_new(&config);
    if (!sim->cores[node])
        abort();
    input(sim, node, (struct core_event){.type = CORE_TICK});
    input(sim, node, (struct core_event){.type = CORE_ENGINE_STARTED, .pid = 1});
    memcpy(hello.engine_hello.addr, &node, sizeof(node));
    input(sim, node, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &hello});
}

static struct rank *start_rank(struct sim *sim, unsigned node)
{
    struct rank *rank = &sim->rank[sim->nranks];
    struct msg hello = {.type = MSG_CLIENT_HELLO, .client_hello.version = MSG_VERSION};
    struct core_event event = {.uid = 1000};

    *rank = (struct rank){.node = node, .slot = sim->slots[node]++, .pid = 100 + sim->nranks++};
    event.client = rank->slot;
    event.pid = rank->pid;
    event.type = CORE_CLIENT_OPEN;
    input(sim, node, event);
    event.type = CORE_CLIENT_MSG;
    event.msg = &hello;
    input(sim, node, event);
    return rank;
}

static void ask(struct sim *sim, struct rank *rank, struct msg_client_join join)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN, .client_join = join};

    msg.client_join.req = ++rank->req;
    text_copy(msg.client_join.name, sizeof(msg.client_join.name), "train");
    input(sim, rank->node,
          (struct core_event){.type = CORE_CLIENT_MSG, .client = rank->slot, .msg = &msg});
}

/* ---- the numbers ----------------------------------------------------------------------------- */

static void begin(struct sim *sim)
{
    memset(sim->count, 0, sizeof(sim->count));
    sim->joined = 0;
}

/* Of all kinds, and which: HEARTBEATs are of their time, and not of a group. */
static void report(struct sim *sim, const char *what, unsigned ranks, unsigned nodes, uint64_t ms)
{
    static const struct {
        enum msg_type type;
        const char *name;
    } kinds[] = {{MSG_JOIN, "JOIN"},
                 {MSG_JOIN_NEWS, "JOIN_NEWS"},
                 {MSG_JOIN_CANCEL, "JOIN_CANCEL"},
                 {MSG_JOIN_REFUSED, "JOIN_REFUSED"},
                 {MSG_COMMIT, "COMMIT"},
                 {MSG_SYNC, "SYNC"},
                 {MSG_GONE, "GONE"},
                 {MSG_BROKEN, "BROKEN"}};
    uint64_t all = 0;

    printf("%-7s %5u ranks on %4u nodes, %3llu ms:", what, ranks, nodes, (unsigned long long)ms);
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        all += sim->count[kinds[i].type];
        if (sim->count[kinds[i].type])
            printf(" %llu %s,", (unsigned long long)sim->count[kinds[i].type], kinds[i].name);
    }
    printf(" %llu in all\n", (unsigned long long)all);
    fflush(stdout);
    if (all > 4ull * ranks + 6ull * nodes)
        fail(sim, "more than 4 messages for each rank and 6 for each node");
}

/* ---- the story ------------------------------------------------------------------------------- */

static void form(struct sim *sim)
{
    uint64_t from = sim->now;

    begin(sim);
    for (unsigned i = 0; i < sim->ranks; i++)
        ask(sim, start_rank(sim, i % sim->nodes),
            (struct msg_client_join){.rank = i, .size = sim->ranks});
    report(sim, "join", sim->ranks, sim->nodes, run_until(sim, sim->ranks, from));
}

/* Its links close, and the engines lose its engine. */
static void lose_node(struct sim *sim, unsigned node)
{
    struct msg msg = {.type = MSG_ENGINE_PEER_DOWN, .engine_peer = {.peer = node}};

    sim->down[node] = true;
    for (unsigned i = 0; i < sim->nranks; i++)
        sim->rank[i].dead |= sim->rank[i].node == node;
    for (unsigned i = 0; i < sim->nodes; i++) {
        if (sim->down[i])
            continue;
        msg.engine_peer.engine = sim->cores[i]->peers[node].engine;
        text_copy(msg.engine_peer.text, sizeof(msg.engine_peer.text), "connection reset");
        input(sim, i, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
        input(
            sim, i,
            (struct core_event){.type = CORE_PEER_DOWN, .node = node, .text = "connection reset"});
        input(sim, i, (struct core_event){.type = CORE_PEER_VACANT, .node = node}); /* it looks */
    }
}

static void kill_rank(struct sim *sim, struct rank *rank)
{
    rank->dead = true;
    input(sim, rank->node,
          (struct core_event){
              .type = CORE_CLIENT_CLOSED, .client = rank->slot, .text = "killed by signal 9"});
}

/* All that live ask to go on. @return how many they are. */
static unsigned recover(struct sim *sim, struct msg_client_join how)
{
    unsigned n = 0;

    for (unsigned i = 0; i < sim->nranks; i++) {
        struct rank *rank = &sim->rank[i];

        if (rank->dead || !rank->group)
            continue;
        how.follows = rank->group;
        ask(sim, rank, how);
        n++;
    }
    return n;
}

/* All are in one group, the ranks are dense, and each knows which one it was. */
static void check(struct sim *sim, unsigned size, uint64_t epoch)
{
    const struct rank *first = NULL;
    bool *seen = take(size);
    struct core_group_view view;

    for (unsigned i = 0; i < sim->nranks; i++) {
        const struct rank *rank = &sim->rank[i];

        if (rank->dead)
            continue;
        first = first ? first : rank;
        if (rank->group != first->group || rank->rank >= size || seen[rank->rank] ||
            !core_group(sim->cores[rank->node], rank->group, &view) || view.size != size ||
            view.epoch != epoch || view.members[rank->rank].pid != rank->pid ||
            view.members[rank->rank].was != (rank->follows ? rank->was + 1 : 0))
            fail(sim, "a rank is not in its place");
        seen[rank->rank] = true;
    }
    for (unsigned i = 0; i < size; i++)
        if (!seen[i])
            fail(sim, "a rank is missing");
    free(seen);
}

static void leave_old(struct sim *sim)
{
    struct msg msg = {.type = MSG_CLIENT_LEAVE};
    uint64_t from = sim->now;
    unsigned left = 0;

    begin(sim);
    for (unsigned i = 0; i < sim->nranks; i++) {
        const struct rank *rank = &sim->rank[i];

        if (rank->dead || !rank->follows)
            continue;
        left++;
        msg.client_leave.group = rank->follows;
        input(sim, rank->node,
              (struct core_event){.type = CORE_CLIENT_MSG, .client = rank->slot, .msg = &msg});
    }
    while (sim->head) {
        sim->now = MAX(sim->now, sim->head->due);
        deliver(sim);
    }
    report(sim, "leave", left, sim->nodes, sim->now - from);
}

/* A node is lost, and the others go on without its ranks. */
static void shrink(struct sim *sim)
{
    uint64_t from = sim->now;
    unsigned size, nodes = sim->nodes - 1;

    begin(sim);
    lose_node(sim, sim->nodes - 1);
    size = recover(sim, (struct msg_client_join){.recovery = MSG_RECOVERY_SHRINK, .size = 1});
    report(sim, "shrink", size, nodes, run_until(sim, size, from));
    check(sim, size, 2);
    leave_old(sim);
}

/* One more dies, and as many as were lost by now come on the other nodes. */
static void wait_for_all(struct sim *sim)
{
    uint64_t from = sim->now;
    unsigned size, nodes = sim->nodes - 1;
    struct msg_client_join how = {.recovery = MSG_RECOVERY_WAIT, .size = sim->ranks};

    begin(sim);
    kill_rank(sim, &sim->rank[1]);
    size = recover(sim, how);
    how.recovery = MSG_RECOVERY_REJOIN;
    how.rank = MSG_ANY_SEAT;
    for (unsigned i = 0; size < sim->ranks; i++, size++)
        ask(sim, start_rank(sim, i % nodes), how);
    report(sim, "wait", size, nodes, run_until(sim, size, from));
    check(sim, size, 3);
    leave_old(sim);
}

static bool options(struct sim *sim, int argc, char **argv)
{
    sim->nodes = 64;
    sim->ranks = 512;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 0);

        if (!strcmp(argv[i], "--nodes"))
            sim->nodes = value;
        else if (!strcmp(argv[i], "--ranks"))
            sim->ranks = value;
        else
            return false;
    }
    return argc % 2 && sim->nodes > 2 && sim->nodes <= NODES_MAX && sim->ranks >= sim->nodes &&
           sim->ranks <= MSG_MAX_RANKS / 2 && sim->ranks / sim->nodes < 32;
}

int main(int argc, char **argv)
{
    static struct sim *sim; /* and all that it has: until the end of the process */

    sim = take(sizeof(*sim));
    if (!options(sim, argc, argv)) {
        fprintf(stderr, "usage: epoch [--nodes N] [--ranks R]\n");
        return 64;
    }
    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* tables of cores come from the kernel, as zeros */
    sim->now = 1000;
    sim->tail = &sim->head;
    sim->rank = take(2 * sim->ranks * sizeof(*sim->rank));
    for (unsigned i = 0; i < sim->nodes; i++)
        snprintf(sim->names[i], sizeof(sim->names[i]), "n%04u", i);
    for (unsigned i = 0; i < sim->nodes; i++)
        start_node(sim, i);
    for (unsigned a = 0; a < sim->nodes; a++)
        for (unsigned b = a + 1; b < sim->nodes; b++)
            link_pair(sim, a, b);
    sim->hop = HOP_MS;
    form(sim);
    shrink(sim);
    wait_for_all(sim);
    return 0;
}
