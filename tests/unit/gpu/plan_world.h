/* plan_world.h - a group in one process: ranks' buffers, what an operation must leave in them, and
 * an interpreter of the plans of all its units. For test_gpu_plan.c. */
#ifndef COMMD_TESTS_PLAN_WORLD_H
#define COMMD_TESTS_PLAN_WORLD_H

#include "transport/gpu/gpu_plan.h"

enum { WORLD_MOST = 40, UNITS_MOST = 16, COUNT_MOST = 40, CALLS_MOST = 4096 };

enum world_form { FORM_APART, FORM_IN_PLACE, FORM_LISTS, FORMS };

struct world_rank {
    uint8_t *memory, *want;                      /* of world_bytes() */
    uint64_t send[WORLD_MOST], recv[WORLD_MOST]; /* elements from memory to each block */
    uint64_t send_counts[WORLD_MOST], recv_counts[WORLD_MOST];
    cu_ptr send_list[WORLD_MOST], recv_list[WORLD_MOST];
    double scale;
};

struct world {
    struct op_desc desc;
    uint32_t world, nunits;
    uint16_t unit_of_rank[WORLD_MOST];
    enum world_form form;
    uint64_t counts[WORLD_MOST];            /* of blocks that all know */
    uint64_t cells[WORLD_MOST][WORLD_MOST]; /* from, to */
    uint64_t most_scratch, slice;           /* slice: bytes of a round; 0: it is not cut */
    bool later; /* calls of a group see nothing of each other; else they come one after the other */
    struct world_rank ranks[WORLD_MOST];
    /* what was seen */
    uint32_t rounds;
    uint64_t scratch, nmoves, ncalls;
};

uint64_t world_random(uint64_t below);
/* Places buffers, fills them, and works out what must come: counts are set. */
void world_build(struct world *w);
/* Makes the plans of all units and does them; fails the test where units do not fit each other. */
void world_run(struct world *w);
/* Each byte of each rank's memory is what it must be. */
void world_check(struct world *w);
void world_free(struct world *w);
/* The plan of a unit, not made yet. @ranks: room for it. */
struct gpu_plan world_plan(struct world *w, uint32_t unit, struct gpu_rank *ranks);

#endif
