/* cluster.h - whole groups in one process: boards as commd makes them, members as libcommd
 * drives them, engines over the loop fabric. Everything is polled by the test, in an order
 * that a seed chooses, so a failure replays. */
#ifndef COMMD_TEST_CLUSTER_H
#define COMMD_TEST_CLUSTER_H

#include "client/lib/async/async.h"
#include "transport/engine/engine.h"
#include "tests/lib/fabric_fault.h"
#include "tests/lib/fabric_loop.h"
#include "tests/lib/handle.h"

enum { CLUSTER_MAX_NODES = 8, CLUSTER_MAX_RANKS = 64 };

struct cluster_node {
    struct engine *engine;
    struct fabric *fabric;
    struct board_ctl *ctl; /* borrowed: the main group's */
};

/* One group of a cluster: any of its ranks in any order. */
struct cluster_group {
    uint64_t id;
    unsigned world, nnodes;           /* of the group */
    uint16_t rank[CLUSTER_MAX_RANKS]; /* in the cluster, of each rank of the group */
    uint16_t node[CLUSTER_MAX_NODES]; /* in the cluster, of each node of the group */
    uint16_t pos[CLUSTER_MAX_RANKS];  /* node in the group of each rank of the group */
    struct board_ctl *ctl[CLUSTER_MAX_NODES];
    int fd[CLUSTER_MAX_NODES];
    struct commd_group *member[CLUSTER_MAX_RANKS];
    bool one_mapping;
};

struct cluster {
    unsigned world, nnodes;
    uint16_t rank_node[CLUSTER_MAX_RANKS];
    struct commd_context ctx;
    struct fabric_hub *hub;
    struct cluster_node node[CLUSTER_MAX_NODES];
    struct cluster_group *main; /* of all ranks, in their order */
    struct commd_group **group; /* its members */
    const int *declined; /* borrowed; by rank, of cluster_run(): run_decline(); 0: it takes part */
    uint64_t stopped;    /* a bit for each rank: it moves in cluster_run() when nothing else does */
    void (*at_rest)(struct cluster *c); /* called before that; or NULL */
    uint64_t rng;
    uint32_t uid;         /* whose the groups are that are made next */
    uint32_t weight;      /* of that user; 0: the default's */
    uint64_t last_failed; /* group */
    unsigned board_errors, peers_down;
    char last_error[256];
};

/* The plans that members of boards know that are made from now on; else PLAN_KNOWN. */
void cluster_plans(uint32_t plans);
/* @rank_node: node of each rank; every node 0..nnodes-1 has at least one. */
struct cluster *cluster_new(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                            uint64_t seed);
/* The same over a network with such faults. */
struct cluster *cluster_new_faulty(unsigned world, unsigned nnodes, const uint16_t *rank_node,
                                   uint64_t seed, const struct fabric_fault_conf *faults);
struct cluster *cluster_free(struct cluster *c);
uint32_t cluster_rand(struct cluster *c, uint32_t below);
/* A turn of a random engine; true if something moved. */
bool cluster_turn(struct cluster *c);

/* A further group: rank r of it is rank @ranks[r] of the cluster, and its member's context is
 * @ctx[ranks[r]]. Members ring @doorbell (-1: none) for an engine that sleeps. */
struct cluster_group *cluster_group_new(struct cluster *c, uint64_t id, const uint16_t *ranks,
                                        unsigned n, struct commd_context *const *ctx, int doorbell);
/* Lets members of a node and its engine see the board through one mapping, as if they were one
 * process, so that a thread sanitizer recognises what they share. */
void cluster_group_one_mapping(struct cluster *c, struct cluster_group *g);
struct cluster_group *cluster_group_free(struct cluster *c, struct cluster_group *g);

/* Lets all members in @ops (one entry per rank) run to their end in random order. Returns
 * true when all ended; states[r] says how, errs[r] (may be NULL) why. */
bool cluster_run(struct cluster *c, const struct commd_op *ops, enum run_state *states,
                 struct commd_error *errs);

#endif
