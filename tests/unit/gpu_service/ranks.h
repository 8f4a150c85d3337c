/* ranks.h - two ranks of libcommd, each with a context of its own, at a commd-gpu that is a
 * process: all real but the GPU and commd. */
#ifndef COMMD_TEST_SERVICE_RANKS_H
#define COMMD_TEST_SERVICE_RANKS_H

#include "service.h"
#include "tests/lib/gpu_ranks.h"

enum { PAIR = 2 };

struct pair {
    struct service service;
    struct gpu_ranks *ranks, *other; /* NULL: there is no second group */
    struct gpu_ranks *in;            /* the one that calls are for */
    struct arena_commd *commd;
    cu_stream stream[PAIR];
};
extern struct pair pair;

/* Before the driver is loaded: small sleeps between operations, and @devices GPUs. */
void pair_environment(const char *devices);
/* For cmocka: a new commd-gpu, ranks and streams; and their end, after which nothing is mapped. */
int pair_setup(void **state);
int pair_teardown(void **state);
/* Another commd-gpu in its place. */
void pair_start_service(const char *const *settings);

/* Runs op[k] on rank k, each on a thread of its own, in the primary context of GPU gpu[k]; streams
 * have not passed it yet. With @work: commd_start(). Codes and texts are left in pair_error. */
void pair_call(const struct commd_op op[PAIR], const int gpu[PAIR], struct commd_work **work);
extern struct commd_error pair_error[PAIR]; /* code 0: none */
/* All of it succeeds, and is done on the streams. gpu NULL: all on GPU 0. */
void pair_run(const struct commd_op op[PAIR], const int *gpu);
/* In place, on GPU 0. */
struct commd_op pair_op(int coll, unsigned rank, void *buf, size_t n);

/* Rank @rank's context has no session that works. */
bool pair_lost(unsigned rank);

void assert_error(unsigned rank, int code, const char *part);

#endif
