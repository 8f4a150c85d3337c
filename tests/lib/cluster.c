/* cluster.c - see cluster.h. */
#include "tests/lib/cluster.h"

#include <stdio.h>

#include "transport/engine/engine_internal.h"

enum {
    MAX_IDLE_ROUNDS = 20000,
    REST_ROUNDS = 500, /* without a move: then whoever is not stopped has done what it can */
};

uint32_t cluster_rand(struct cluster *c, uint32_t below)
{
    /* xorshift64* (Vigna 2016) */
    c->rng ^= c->rng >> 12;
    c->rng ^= c->rng << 25;
    c->rng ^= c->rng >> 27;
    return (uint32_t)((c->rng * 2685821657736338717ull) >> 33) % below;
}

static void on_board_error(void *arg, uint64_t group, unsigned cause, int peer, const char *text)
{
    struct cluster *c = arg;

    c->board_errors++;
    c->last_failed = group;
    snprintf(c->last_error, sizeof c->last_error, "%s", text);
}

static void on_peer_down(void *arg, unsigned peer, enum link_end end, const char *text)
{
    struct cluster *c = arg;

    c->peers_down++;
    snprintf(c->last_error, sizeof c->last_error, "%s", text);
}

/* Over the loop fabric, which @faults make worse; NULL: as it is. */
static struct fabric *fabric_of(struct cluster *c, struct engine *e,
                                const struct fabric_fault_conf *faults)
{
    const struct fabric_events *ev = engine_fabric_events(e);
    struct fabric *f = NULL, *inner;
    struct fabric_events inner_ev;

    if (faults) {
        if (fabric_fault_new(faults, ev, &inner_ev, &f))
            abort();
        ev = &inner_ev;
    }
    fabric_loop_new(c->hub, ev, &inner);
    fabric_loop_set_rndv(inner, 1 + cluster_rand(c, 100000));
    if (faults)
        fabric_fault_attach(f, inner);
    return faults ? f : inner;
}

static void engines_new(struct cluster *c, const struct fabric_fault_conf *faults)
{
    uint8_t addr[FABRIC_ADDR_MAX];
    struct engine_events ev = {on_board_error, on_peer_down, c, NULL, NULL, NULL};

    c->hub = fabric_hub_new();
    for (unsigned n = 0; n < c->nnodes; n++) {
        char name[16];

        snprintf(name, sizeof name, "node%u", n);
        c->node[n].engine = engine_new(name, &ev);
        c->node[n].fabric = fabric_of(c, c->node[n].engine, faults);
        engine_set_fabric(c->node[n].engine, c->node[n].fabric);
    }
    for (unsigned n = 0; n < c->nnodes; n++)
        for (unsigned k = 0; k < c->nnodes; k++) {
            uint8_t token[32] = {(uint8_t)n, (uint8_t)k}, expect[32] = {(uint8_t)k, (uint8_t)n};
            size_t len = sizeof addr;

            if (k == n)
                continue;
            c->node[k].fabric->ops->address(c->node[k].fabric, addr, &len);
            if (c->node[n].fabric->ops->peer_add(c->node[n].fabric, k, addr, len, token, expect))
                abort();
        }
}

/* ---- groups ------------------------------------------------------------------------------ */

/* The nodes that have members, ascending; which of them each rank is on. */
static void group_places(const struct cluster *c, struct cluster_group *g)
{
    for (unsigned n = 0; n < c->nnodes; n++) {
        bool used = false;

        for (unsigned k = 0; k < g->world; k++) {
            if (c->rank_node[g->rank[k]] != n)
                continue;
            g->pos[k] = (uint16_t)g->nnodes;
            used = true;
        }
        if (used)
            g->node[g->nnodes++] = (uint16_t)n;
    }
}

/* Latency and bandwidth decide how more nodes than two carry out an operation: chosen by the seed,
 * among them a slow network, where little goes with the consistency check and much by halving, and
 * one far away, where nodes that need others to stand in for them halve, too. */
static struct plan_net choose_net(const struct cluster *c, const struct cluster_group *g)
{
    static const struct plan_net nets[] = {{0, 0}, {1, 100000}, {10, 50}, {2000, 100000}, {1, 50}};

    return nets[((c->rng >> 23) + g->id) % ARRAY_LEN(nets)];
}

/* And what the caches of a node hold decides how it cuts what its ranks do alone: chosen likewise,
 * among them caches so small that results of some kilobytes go past them. */
static const struct topology *choose_caches(const struct cluster *c, const struct cluster_group *g)
{
    static const struct topology machines[] = {
        {.cpus = 1, .cores = 1, .caches = 1, .sockets = 1, .nodes = 1}, /* says nothing */
        {.cpus = 2, .caches = 1, .cache_bytes = 32 << 10, .core_bytes = 16 << 10},
        {.cpus = 8, .caches = 2, .cache_bytes = 1 << 20, .core_bytes = 512 << 10},
        {.cpus = 2, .caches = 1, .cache_bytes = 64 << 20, .core_bytes = 2 << 20},
    };

    return &machines[((c->rng >> 27) + g->id) % ARRAY_LEN(machines)];
}

static uint32_t plans_known = PLAN_KNOWN;

void cluster_plans(uint32_t plans)
{
    plans_known = plans;
}

static void board_new(struct cluster *c, struct cluster_group *grp, unsigned n, struct plan_net net)
{
    uint32_t peers[CLUSTER_MAX_NODES], rank_node[CLUSTER_MAX_RANKS], clients[CLUSTER_MAX_RANKS];
    struct board_geom g = {.group = grp->id,
                           .epoch = 1,
                           .world = grp->world,
                           .nnodes = grp->nnodes,
                           .me = n,
                           .net = net,
                           .plans = plans_known,
                           .machine = choose_caches(c, grp),
                           .rank_node = grp->pos};
    struct msg_board_add m = {.group = grp->id,
                              .nnodes = grp->nnodes,
                              .me = n,
                              .world = grp->world,
                              .peers = peers,
                              .rank_node = rank_node,
                              .clients = clients,
                              .uid = c->uid,
                              .weight = c->weight};

    for (unsigned k = 0; k < grp->world; k++) {
        rank_node[k] = grp->pos[k];
        g.nlocal += grp->pos[k] == n;
        if (grp->pos[k] == n)
            clients[m.nclients++] = k;
    }
    for (unsigned k = 0; k < grp->nnodes; k++)
        peers[k] = grp->node[k];
    if (board_create(&g, &grp->fd[n], &grp->ctl[n]))
        abort();
    if (grp->nnodes > 1 && engine_board_add(c->node[grp->node[n]].engine, &m, grp->fd[n]))
        abort();
}

static void member_new(struct cluster_group *grp, unsigned rank, struct commd_context *ctx,
                       int doorbell)
{
    struct awaited w = {.fd = grp->fd[grp->pos[rank]], .doorbell = doorbell};
    struct msg_joined *j = &w.reply.joined;

    j->size = grp->world;
    j->nnodes = grp->nnodes;
    j->group = grp->id;
    j->epoch = 1;
    j->members = calloc(grp->world, sizeof *j->members);
    j->nodes = calloc(grp->nnodes, sizeof *j->nodes);
    for (unsigned k = 0; k < grp->world; k++)
        j->members[k].node = grp->pos[k];
    for (unsigned k = 0; k < grp->nnodes; k++)
        snprintf(j->nodes[k], sizeof j->nodes[k], "node%u", grp->node[k]);
    grp->member[rank] = handle_new(ctx);
    if (group_from_joined(ctx, "test", rank, grp->world, -1, &w, &grp->member[rank]->now))
        abort();
    pthread_mutex_lock(&ctx->lock);
    back_joined(ctx, grp->id, false);
    pthread_mutex_unlock(&ctx->lock);
}

/* What members find out of the machine decides how they cut operations, and how they write to
 * windows: here it is chosen by the seed. */
static void choose_machine(struct cluster_group *g, uint64_t rng)
{
    unsigned mood = (unsigned)(rng >> 33) + (unsigned)g->id;

    for (unsigned k = 0; k < g->world; k++) {
        g->member[k]->now->geom.cores = mood % 2 ? g->world : 1;
        if (g->world > 2 && mood % 5 < 3)
            g->member[k]->now->geom.team = 2 + mood / 5 % (g->world - 1);
        if ((mood / 2 + k) % 3 == 0)
            g->member[k]->now->way.around = g->member[k]->now->reduced.around =
                UINT32_MAX; /* as if stores were slow for it */
    }
}

struct cluster_group *cluster_group_new(struct cluster *c, uint64_t id, const uint16_t *ranks,
                                        unsigned n, struct commd_context *const *ctx, int doorbell)
{
    struct cluster_group *g = calloc(1, sizeof *g);
    struct plan_net net;

    g->id = id;
    g->world = n;
    memcpy(g->rank, ranks, n * sizeof *ranks);
    group_places(c, g);
    net = choose_net(c, g);
    for (unsigned k = 0; k < g->nnodes; k++)
        board_new(c, g, k, net);
    for (unsigned k = 0; k < n; k++)
        member_new(g, k, ctx[ranks[k]], doorbell);
    choose_machine(g, c->rng);
    return g;
}

/* Whose mapping all on the node share: the engine's, which may still be sending from it when the
 * members have left; without an engine that of the first member. */
static struct board *shared_mapping(struct cluster *c, struct cluster_group *g, unsigned node)
{
    unsigned k = 0;

    if (g->nnodes > 1)
        return &eboard_find(c->node[g->node[node]].engine, g->id)->b;
    while (g->pos[k] != node)
        k++;
    return &g->member[k]->now->board;
}

void cluster_group_one_mapping(struct cluster *c, struct cluster_group *g)
{
    g->one_mapping = true;
    for (unsigned k = 0; k < g->world; k++) {
        struct board *shared = shared_mapping(c, g, g->pos[k]), *own = &g->member[k]->now->board;

        if (own == shared)
            continue;
        board_unmap(own);
        *own = *shared;
    }
}

static void forget_mappings(struct cluster *c, struct cluster_group *g)
{
    for (unsigned k = 0; k < g->world; k++)
        alive_end(g->member[k]->now);
    for (unsigned k = 0; k < g->world; k++)
        if (&g->member[k]->now->board != shared_mapping(c, g, g->pos[k]))
            g->member[k]->now->board.hdr = NULL; /* nothing to unmap */
}

struct cluster_group *cluster_group_free(struct cluster *c, struct cluster_group *g)
{
    if (g->one_mapping)
        forget_mappings(c, g);
    for (unsigned k = 0; k < g->world; k++)
        handle_free(g->member[k]);
    for (unsigned n = 0; n < g->nnodes; n++) {
        if (c->node[g->node[n]].engine)
            engine_board_del(c->node[g->node[n]].engine, g->id, true);
        board_ctl_free(g->ctl[n]);
        close_fdp(&g->fd[n]);
    }
    free(g);
    return NULL;
}

/* ---- clusters ---------------------------------------------------------------------------- */

struct cluster *cluster_new(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                            uint64_t seed)
{
    return cluster_new_faulty(world, nnodes, rank_node, seed, NULL);
}

struct cluster *cluster_new_faulty(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                                   uint64_t seed, const struct fabric_fault_conf *faults)
{
    struct cluster *c = calloc(1, sizeof *c);
    struct commd_context *ctx[CLUSTER_MAX_RANKS] = {0};
    uint16_t ranks[CLUSTER_MAX_RANKS];

    c->world = world;
    c->nnodes = nnodes;
    c->rng = seed * 0x9e3779b97f4a7c15ull + 1;
    c->ctx.sock = c->ctx.doorbell = c->ctx.back.sock = -1;
    c->ctx.back.refused_ms = 1; /* there is no commd, and nobody waits for one */
    memcpy(c->rank_node, rank_node, world * sizeof *rank_node);
    if (nnodes > 1)
        engines_new(c, faults);
    for (unsigned k = 0; k < world; k++) {
        ranks[k] = (uint16_t)k;
        ctx[k] = &c->ctx;
    }
    c->main = cluster_group_new(c, 0x77, ranks, world, ctx, -1);
    c->group = c->main->member;
    for (unsigned n = 0; n < nnodes; n++)
        c->node[n].ctl = c->main->ctl[n];
    return c;
}

struct cluster *cluster_free(struct cluster *c)
{
    cluster_group_free(c, c->main);
    for (unsigned n = 0; n < c->nnodes; n++) {
        fabric_free(c->node[n].fabric);
        engine_free(c->node[n].engine);
    }
    if (c->hub)
        fabric_hub_free(c->hub);
    back_fini(&c->ctx);
    free(c);
    return NULL;
}

bool cluster_turn(struct cluster *c)
{
    struct cluster_node *n = &c->node[cluster_rand(c, c->nnodes)];
    bool moved;

    if (!n->engine)
        return false;
    moved = n->fabric->ops->progress(n->fabric);
    /* now and then as if it slept: armed boards, woken by the rescue look */
    if (cluster_rand(c, 8) == 0) {
        moved |= engine_arm(n->engine);
        return moved | engine_poll_all(n->engine);
    }
    return moved | engine_poll(n->engine);
}

/* A stopped rank gets a turn when nothing else moves. */
static bool rank_is_stopped(struct cluster *c, unsigned rank, unsigned idle)
{
    if (!(c->stopped >> rank & 1))
        return false;
    if (idle < REST_ROUNDS)
        return true;
    if (c->at_rest)
        c->at_rest(c);
    return false;
}

bool cluster_run(struct cluster *c, const struct commd_op *ops, enum run_state *states,
                 struct commd_error *errs)
{
    struct run *runs = calloc(c->world, sizeof *runs);
    unsigned left = c->world, idle = 0;
    bool *begun = calloc(c->world, sizeof *begun);

    for (unsigned k = 0; k < c->world; k++)
        states[k] = RUN_WAIT;
    while (left && idle < MAX_IDLE_ROUNDS) {
        unsigned k = cluster_rand(c, c->world);
        bool moved = cluster_turn(c);

        if (states[k] < RUN_DONE && !rank_is_stopped(c, k, idle)) {
            if (!begun[k]) {
                begun[k] = true;
                if (lists_make(c->group[k]->now, &ops[k], &runs[k].lists) ||
                    run_begin(&runs[k], c->group[k]->now, &ops[k]))
                    abort();
                if (c->declined && c->declined[k])
                    run_decline(&runs[k], c->declined[k]);
            }
            states[k] = run_poll(&runs[k]);
            moved |= states[k] == RUN_MOVED || run_asks(&runs[k]);
            if (states[k] < RUN_DONE && run_hopeless(&runs[k]))
                states[k] = RUN_FAILED;
            if (states[k] >= RUN_DONE) {
                run_end(&runs[k], states[k]);
                left--;
                moved = true;
                if (errs)
                    errs[k] = runs[k].err;
            }
        }
        idle = moved ? 0 : idle + 1;
    }
    free(begun);
    free(runs);
    return left == 0;
}
