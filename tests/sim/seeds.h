/* seeds.h - what programs have in common that run a simulation for each of many seeds. */
#ifndef COMMD_SEEDS_H
#define COMMD_SEEDS_H

#include "tests/sim/sim.h"

struct sim_result {
    uint64_t hash, actions, ok, failed, recovered, taken_over, went_on, renewed;
};

/* So far. */
struct sim_result sim_result(const struct sim *sim);

/* One run; @trace: it tells its story. A violation ends the process. */
typedef struct sim_result (*seed_fn)(uint64_t seed, bool trace);

extern unsigned seeds_nodes; /* --nodes: in each run; 0: as the seed says */

/* @name [--seed FIRST] [--seeds N] [--nodes N] [--trace]. Each seed runs twice, and must do the
 * same both times; with --trace the first alone, once. Fills @ret_sum, and says which seeds these
 * were. False: that is no such command line, and that was said. */
bool seeds_run(int argc, char **argv, const char *name, seed_fn run, uint64_t *ret_first,
               uint64_t *ret_n, struct sim_result *ret_sum);

#endif
