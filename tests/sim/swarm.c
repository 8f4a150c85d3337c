/* swarm.c - random runs of a small cluster: swarm [--seed S] [--seeds N] [--nodes 2..5] [--trace]
 *
 * Each seed draws which classes of faults it has (swarm testing: leaving classes out finds more
 * than always having all), how slow the network is, and then acts at random: clients come, join
 * subsets of ranks, leave, abort, die; links reset; nodes are cut off; engines and commds crash
 * and come back. Then everything is healed, and the cluster has to come to rest: each join
 * answered, each rank that is gone marked, and, once the clients are gone, nothing left. Each
 * seed runs twice and must do the same both times. The first seed is printed before it runs; a
 * violation names its own, and "swarm --seed S --trace" tells the story. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/seeds.h"

enum { GROUPS = 6, STEPS = 150 };

enum fault {
    FAULT_DIE = 1,
    FAULT_LEAVE = 2,
    FAULT_RESET = 4,
    FAULT_CUT = 8,
    FAULT_ENGINE = 16,
    FAULT_CRASH = 32,
    FAULT_REPLAY = 64,
    FAULT_SLOW = 128,
    FAULT_WRONG = 256, /* sizes and ranks that contradict each other */
    FAULT_STOP = 512,
    FAULT_ADMIN = 1024, /* nodes drain, groups and clients are kicked */
    FAULT_KILL = 2048,  /* commd alone, and another one takes over */
    FAULT_ALL = 4095
};

struct run {
    struct sim *sim;
    uint64_t random;
    unsigned nodes, faults;
    bool renews; /* engines are replaced */
    bool stops;  /* commds are stopped, and go on */
    bool here;   /* all clients are on one node: groups that another commd takes over */
    unsigned clients[256], nclients;
    unsigned sizes[GROUPS];
};

static uint64_t draw(struct run *run, uint64_t below)
{
    return core_mix(run->random++) % below;
}

static bool has(const struct run *run, enum fault fault)
{
    return run->faults & fault;
}

/* A client on a node that is up, new or not. */
static unsigned some_client(struct run *run)
{
    unsigned live = 0, pick;

    for (unsigned i = 0; i < run->nclients; i++)
        live += sim_client_alive(run->sim, run->clients[i]);
    if (live < 4 * run->nodes && run->nclients < ARRAY_LEN(run->clients)) {
        unsigned node = run->here ? 0 : (unsigned)draw(run, run->nodes);

        if (sim_alive(run->sim, node)) {
            run->clients[run->nclients] = sim_client(run->sim, node);
            return run->clients[run->nclients++];
        }
    }
    pick = run->nclients ? (unsigned)draw(run, run->nclients) : 0;
    for (unsigned i = 0; i < run->nclients; i++, pick = (pick + 1) % run->nclients)
        if (sim_client_alive(run->sim, run->clients[pick]))
            return run->clients[pick];
    return UINT32_MAX;
}

/* Mostly whole groups, each rank by another client: random ranks alone would seldom complete
 * one. What is skipped is left for the next round of that name, if the others wait that long.
 */
static void join_many(struct run *run)
{
    unsigned group = (unsigned)draw(run, GROUPS), size = run->sizes[group];
    uint64_t limit = 200 + draw(run, 4000);
    bool used[SIM_HANDLES] = {false};
    unsigned skip = 2 + (unsigned)draw(run, 20);
    char name[16];

    snprintf(name, sizeof(name), "g%u", group);
    for (unsigned rank = 0; rank < size; rank++) {
        unsigned client = some_client(run), as = rank, of = size;

        for (unsigned i = 0; i < 8 && client != UINT32_MAX && used[client]; i++)
            client = some_client(run);
        if (client == UINT32_MAX || used[client] || draw(run, skip) == 0)
            continue;
        used[client] = true;
        if (has(run, FAULT_WRONG) && draw(run, 12) == 0)
            as = (unsigned)draw(run, size);
        if (has(run, FAULT_WRONG) && draw(run, 20) == 0)
            of++;
        if (sim_client_pending(run->sim, client) < 8)
            sim_join(run->sim, client, name, as, of, limit);
        if (draw(run, 3) == 0)
            sim_run(run->sim, draw(run, 30));
    }
}

static void use_groups(struct run *run)
{
    unsigned client = some_client(run), n;
    const char *name;

    if (client == UINT32_MAX || !(n = sim_client_open(run->sim, client)))
        return;
    name = sim_client_group(run->sim, client, (unsigned)draw(run, n));
    sim_ops(run->sim, client, name, (unsigned)draw(run, 5));
    if (draw(run, 4) == 0)
        sim_ask_absent(run->sim, client, name, draw(run, 10));
    if (has(run, FAULT_LEAVE))
        sim_leave(run->sim, client, name);
    else if (draw(run, 4) == 0)
        sim_abort(run->sim, client, name, "the caller gave up");
}

/* An old message comes again: a duplicate, or one from an earlier life. */
static void replay(struct run *run)
{
    unsigned from = (unsigned)draw(run, run->nodes),
             to = (from + 1 + (unsigned)draw(run, run->nodes - 1)) % run->nodes;
    struct core *core = sim_core(run->sim, to);
    struct core_group_view view;
    char names[SIM_NODES][MSG_NAME_MAX];
    struct msg msg = {.type = MSG_COMMIT};

    if (!sim_alive(run->sim, from) || !sim_alive(run->sim, to) ||
        !core_group_at(core, (unsigned)draw(run, 3), &view) || !view.id)
        return;
    msg.commit.group = view.id;
    msg.commit.epoch = view.epoch;
    msg.commit.uid = view.uid;
    msg.commit.size = view.size;
    msg.commit.nnodes = view.nnodes;
    msg.commit.members = (struct msg_member *)(uintptr_t)view.members;
    msg.commit.nodes = names;
    for (unsigned i = 0; i < view.nnodes; i++)
        text_copy(names[i], sizeof(names[i]), core_node_name(core, view.nodes[i]));
    text_copy(msg.commit.name, sizeof(msg.commit.name), view.name);
    text_copy(msg.commit.home, sizeof(msg.commit.home), core_node_name(core, from));
    sim_peer_says(run->sim, from, to, &msg);
}

/* Our engine answers about a life of the peer's engine that is over. */
static void replay_engine(struct run *run)
{
    unsigned node = (unsigned)draw(run, run->nodes), peer = (unsigned)draw(run, run->nodes);
    struct core_peer_view view;
    struct msg msg = {.type = MSG_ENGINE_PEER_READY};

    if (!sim_alive(run->sim, node) || node == peer ||
        !core_peer_at(sim_core(run->sim, node), peer, &view))
        return;
    msg.engine_peer.peer = peer;
    msg.engine_peer.engine = view.engine ^ 1;
    sim_engine_says(run->sim, node, &msg);
}

static void crash_or_start(struct run *run)
{
    unsigned node = (unsigned)draw(run, run->nodes);

    if (!sim_alive(run->sim, node))
        sim_start(run->sim, node);
    else if (draw(run, 2) == 0)
        sim_crash_after(run->sim, node,
                        (enum msg_type[]){MSG_COMMIT, MSG_SYNC, MSG_GONE, MSG_JOIN,
                                          MSG_JOIN_REFUSED, MSG_BROKEN}[draw(run, 6)],
                        1 + (unsigned)draw(run, 2));
    else
        sim_crash(run->sim, node);
}

static void administer(struct run *run, unsigned node)
{
    unsigned client = some_client(run), what = (unsigned)draw(run, 5);
    char name[16];

    snprintf(name, sizeof(name), "g%u", (unsigned)draw(run, GROUPS));
    if (what < 2)
        sim_admin(run->sim, node, draw(run, 2) ? "undrain" : "drain", "", 0);
    else if (what == 2)
        sim_admin(run->sim, node, "kick", name, 0);
    else if (what == 3)
        sim_admin(run->sim, node, "kick_rank", name, (unsigned)draw(run, 4));
    else if (client != UINT32_MAX)
        sim_admin(run->sim, sim_client_node(run->sim, client), "kick_pid", "",
                  sim_client_pid(run->sim, client));
}

/* At once, or somewhere in what it does next. */
static void kill_commd(struct run *run, unsigned node)
{
    sim_kill_after(run->sim, node, 1 + (unsigned)draw(run, draw(run, 2) ? 4 : 60));
}

static void hurt(struct run *run)
{
    unsigned a = (unsigned)draw(run, run->nodes),
             b = (a + 1 + (unsigned)draw(run, run->nodes - 1)) % run->nodes;
    enum fault fault = (enum fault)(1u << draw(run, 12));
    unsigned client;

    if (!has(run, fault))
        return;
    switch ((int)fault) {
    case FAULT_DIE:
        client = some_client(run);
        if (client != UINT32_MAX)
            sim_die(run->sim, client, "killed by signal 9");
        break;
    case FAULT_RESET:
        sim_reset(run->sim, a, b);
        break;
    case FAULT_CUT:
        if (draw(run, 2))
            sim_cut(run->sim, a, b);
        else
            sim_heal(run->sim);
        break;
    case FAULT_ENGINE:
        if (draw(run, 2))
            sim_crash_engine(run->sim, a);
        else
            sim_engine_lost(run->sim, a, b);
        break;
    case FAULT_CRASH:
        crash_or_start(run);
        break;
    case FAULT_REPLAY:
        replay(run);
        for (unsigned i = 0; i < 3; i++)
            replay_engine(run);
        break;
    case FAULT_STOP:
        if (draw(run, 8) == 0)
            sim_shutdown(run->sim, a);
        break;
    case FAULT_ADMIN:
        if (sim_alive(run->sim, a))
            administer(run, a);
        break;
    case FAULT_KILL:
        kill_commd(run, a);
        break;
    default:
        break;
    }
}

/* A cluster at rest grants a whole join over all nodes. */
static void join_all(struct run *run)
{
    uint64_t granted = sim_answers(run->sim, true);
    unsigned clients[SIM_NODES];

    for (unsigned i = 0; i < run->nodes; i++) {
        clients[i] = sim_client(run->sim, i);
        sim_join(run->sim, clients[i], "last", i, run->nodes, 2000);
    }
    sim_run(run->sim, 3000);
    if (sim_answers(run->sim, true) != granted + run->nodes) {
        fprintf(stderr, "%sVIOLATION: the cluster is at rest and grants no join\n",
                sim_trace(run->sim));
        abort();
    }
    for (unsigned i = 0; i < run->nodes; i++)
        sim_die(run->sim, clients[i], "end of run");
}

static void come_to_rest(struct run *run)
{
    struct sim *sim = run->sim;

    sim_crash_after(sim, 0, MSG_NONE, 0);
    for (unsigned i = 0; i < run->nodes; i++)
        sim_kill_after(sim, i, 0);
    for (unsigned i = 0; i < run->nodes; i++) {
        struct core_status status;

        core_status(sim_core(sim, i), &status);
        if (status.stopping)
            sim_crash(sim, i); /* it was asked to go */
        else if (sim_alive(sim, i))
            sim_admin(sim, i, "undrain", "", 0);
    }
    sim_heal(sim);
    sim_run(sim, 15000);
    sim_check_marks(sim);
    for (unsigned i = 0; i < run->nclients; i++)
        if (sim_client_alive(sim, run->clients[i]) && sim_client_pending(sim, run->clients[i])) {
            fprintf(stderr, "%sVIOLATION: client %u still waits\n", sim_trace(sim),
                    run->clients[i]);
            abort();
        }
    for (unsigned i = 0; i < run->nclients; i++)
        sim_die(sim, run->clients[i], "end of run");
    for (unsigned i = 0; i < run->nodes; i++)
        sim_start(sim, i);
    sim_settle(sim);
    join_all(run);
    sim_run(sim, 3000);
    sim_check_idle(sim);
}

static struct sim_result run_seed(uint64_t seed, bool trace)
{
    struct run run = {.random = core_mix(seed ^ 0x5eed)};
    struct sim_options options = {.seed = seed, .delay_min = 1, .trace = trace};
    struct sim_result result;

    run.nodes = options.nodes = seeds_nodes ? seeds_nodes : seed % 8 ? 3 : 2 + seed / 8 % 4;
    run.faults = (unsigned)draw(&run, FAULT_ALL + 1) & (unsigned)(draw(&run, 4) ? FAULT_ALL : 0);
    run.here = has(&run, FAULT_KILL) && draw(&run, 2);
    run.renews = seed % 2;
    run.stops = seed % 16 == 9;
    /* Nothing happens but that engines are replaced, and commds restarted then: no group ends. */
    options.calm = seed % 10 == 1 || seed % 10 == 5;
    run.faults = options.calm ? 0 : run.faults;
    options.delay_max = has(&run, FAULT_SLOW) ? 80 : 1 + draw(&run, 8);
    options.engine_delay = draw(&run, 3) ? 20 : 600;
    options.part = seed % 3 ? 0 : 1;
    options.ration = seed % 4 ? 0 : 4; /* joins are held */
    options.kills_renewed = options.calm || (has(&run, FAULT_KILL) && seed % 5 < 2);
    options.old = seed % 5 != 2 ? 0 : 1 + (unsigned)(seed / 5) % run.nodes;
    for (unsigned i = 0; i < GROUPS; i++)
        run.sizes[i] = 1 + (unsigned)draw(&run, 6);
    run.sim = sim_new(&options);
    /* Half the seeds start to join while the nodes are still looking for each other. */
    if (draw(&run, 2))
        sim_settle(run.sim);
    for (unsigned i = 0; i < STEPS; i++) {
        unsigned what = (unsigned)draw(&run, 10);

        if (has(&run, FAULT_KILL) && draw(&run, 6) == 0)
            kill_commd(&run, run.here ? 0 : (unsigned)draw(&run, run.nodes));
        if (run.renews && core_mix(seed + i) % 8 == 0)
            sim_renew(run.sim, (unsigned)(core_mix(seed + i) / 8 % run.nodes));
        if (run.stops && core_mix(seed + i) % 8 == 3)
            sim_stop(run.sim, (unsigned)(core_mix(seed + i) / 8 % run.nodes),
                     1 + core_mix(seed + i) / 64 % (core_mix(seed + i) / 32 % 2 ? 900 : 6000));
        if (what < 3)
            join_many(&run);
        else if (what < 6)
            use_groups(&run);
        else
            hurt(&run);
        sim_run(run.sim, draw(&run, draw(&run, 4) ? 40 : 700));
    }
    come_to_rest(&run);
    result = sim_result(run.sim);
    sim_free(run.sim);
    return result;
}

int main(int argc, char **argv)
{
    struct sim_result sum;
    uint64_t seed, seeds;

    if (!seeds_run(argc, argv, "swarm", run_seed, &seed, &seeds, &sum))
        return 64;
    printf(
        "%llu seeds from %llu: %llu actions, %llu joins granted, %llu failed, %llu times another "
        "commd took over, %llu times a node went on with a group over another engine, "
        "%llu engines replaced, no violation\n",
        (unsigned long long)seeds, (unsigned long long)seed, (unsigned long long)sum.actions,
        (unsigned long long)sum.ok, (unsigned long long)sum.failed,
        (unsigned long long)sum.taken_over, (unsigned long long)sum.went_on,
        (unsigned long long)sum.renewed);
    return 0;
}
