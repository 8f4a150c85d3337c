/* cluster.c - see cluster.h. */
#include "tests/lib/cluster.h"

#include <stdio.h>

enum { MAX_IDLE_ROUNDS = 20000 };

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
    snprintf(c->last_error, sizeof c->last_error, "%s", text);
}

static void on_peer_down(void *arg, unsigned peer, const char *text)
{
    struct cluster *c = arg;

    c->peers_down++;
    snprintf(c->last_error, sizeof c->last_error, "%s", text);
}

static void engines_new(struct cluster *c)
{
    uint8_t addr[FABRIC_ADDR_MAX];
    struct engine_events ev = {on_board_error, on_peer_down, c};

    c->hub = fabric_hub_new();
    for (unsigned n = 0; n < c->nnodes; n++) {
        char name[16];

        snprintf(name, sizeof name, "node%u", n);
        c->node[n].engine = engine_new(name, &ev);
        fabric_loop_new(c->hub, engine_fabric_events(c->node[n].engine), &c->node[n].fabric);
        fabric_loop_set_rndv(c->node[n].fabric, 1 + cluster_rand(c, 100000));
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

static void board_new(struct cluster *c, unsigned n)
{
    uint32_t peers[CLUSTER_MAX_NODES], rank_node[CLUSTER_MAX_RANKS];
    struct board_geom g = {.group = 0x77, .epoch = 1, .world = c->world, .nnodes = c->nnodes,
                           .me = n, .rank_node = c->rank_node};
    struct msg_board_add m = {.group = 0x77, .nnodes = c->nnodes, .me = n, .world = c->world,
                              .peers = peers, .rank_node = rank_node};

    for (unsigned k = 0; k < c->world; k++) {
        rank_node[k] = c->rank_node[k];
        g.nlocal += c->rank_node[k] == n;
    }
    for (unsigned k = 0; k < c->nnodes; k++)
        peers[k] = k;
    if (board_create(&g, &c->node[n].fd, &c->node[n].ctl))
        abort();
    if (c->nnodes > 1 && engine_board_add(c->node[n].engine, &m, c->node[n].fd))
        abort();
}

static void member_new(struct cluster *c, unsigned rank)
{
    struct join_wait w = {.board_fd = c->node[c->rank_node[rank]].fd, .doorbell = -1};
    struct msg_joined *j = &w.reply.joined;

    j->size = c->world;
    j->nnodes = c->nnodes;
    j->group = 0x77;
    j->epoch = 1;
    j->members = calloc(c->world, sizeof *j->members);
    j->nodes = calloc(c->nnodes, sizeof *j->nodes);
    for (unsigned k = 0; k < c->world; k++)
        j->members[k].node = c->rank_node[k];
    for (unsigned k = 0; k < c->nnodes; k++)
        snprintf(j->nodes[k], sizeof j->nodes[k], "node%u", k);
    if (group_from_joined(&c->ctx, "test", rank, c->world, -1, &w, &c->group[rank]))
        abort();
}

struct cluster *cluster_new(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                            uint64_t seed)
{
    struct cluster *c = calloc(1, sizeof *c);

    c->world = world;
    c->nnodes = nnodes;
    c->rng = seed * 0x9e3779b97f4a7c15ull + 1;
    c->ctx.sock = c->ctx.doorbell = -1;
    memcpy(c->rank_node, rank_node, world * sizeof *rank_node);
    if (nnodes > 1)
        engines_new(c);
    for (unsigned n = 0; n < nnodes; n++)
        board_new(c, n);
    for (unsigned k = 0; k < world; k++)
        member_new(c, k);
    return c;
}

struct cluster *cluster_free(struct cluster *c)
{
    for (unsigned k = 0; k < c->world; k++)
        group_free(c->group[k]);
    for (unsigned n = 0; n < c->nnodes; n++) {
        if (c->node[n].engine)
            engine_board_del(c->node[n].engine, 0x77, true);
        fabric_free(c->node[n].fabric);
        engine_free(c->node[n].engine);
        board_ctl_free(c->node[n].ctl);
        close_fdp(&c->node[n].fd);
    }
    if (c->hub)
        fabric_hub_free(c->hub);
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

        if (states[k] == RUN_WAIT) {
            if (!begun[k]) {
                begun[k] = true;
                if (lists_make(c->group[k], &ops[k], &runs[k].lists) ||
                    run_begin(&runs[k], c->group[k], &ops[k]))
                    abort();
            }
            states[k] = run_poll(&runs[k]);
            moved |= runs[k].moved;
            if (states[k] == RUN_WAIT && run_hopeless(&runs[k]))
                states[k] = RUN_FAILED;
            if (states[k] != RUN_WAIT) {
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
