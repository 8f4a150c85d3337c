/* cluster.h - whole groups in one process: boards as commd makes them, members as libcommd
 * drives them, engines over the loop fabric. Everything is polled by the test, in an order
 * that a seed chooses, so a failure replays. */
#ifndef COMMD_TEST_CLUSTER_H
#define COMMD_TEST_CLUSTER_H

#include "client/internal.h"
#include "transport/engine.h"

enum { CLUSTER_MAX_NODES = 8, CLUSTER_MAX_RANKS = 64 };

struct cluster_node {
    struct engine *engine;
    struct fabric *fabric;
    struct board_ctl *ctl;
    int fd;
};

struct cluster {
    unsigned world, nnodes;
    uint16_t rank_node[CLUSTER_MAX_RANKS];
    struct commd_context ctx;
    struct fabric_hub *hub;
    struct cluster_node node[CLUSTER_MAX_NODES];
    struct commd_group *group[CLUSTER_MAX_RANKS];
    uint64_t rng;
    unsigned board_errors, peers_down;
    char last_error[256];
};

/* @rank_node: node of each rank; every node 0..nnodes-1 has at least one. */
struct cluster *cluster_new(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                            uint64_t seed);
struct cluster *cluster_free(struct cluster *c);
uint32_t cluster_rand(struct cluster *c, uint32_t below);
/* A turn of a random engine; true if something moved. */
bool cluster_turn(struct cluster *c);

/* Lets all members in @ops (one entry per rank) run to their end in random order. Returns
 * true when all ended; states[r] says how, errs[r] (may be NULL) why. */
bool cluster_run(struct cluster *c, const struct commd_op *ops, enum run_state *states,
                 struct commd_error *errs);

#endif
