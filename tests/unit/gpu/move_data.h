/* move_data.h - what the tests of the kernels move, and what the host makes of it. */
#ifndef COMMD_TEST_MOVE_DATA_H
#define COMMD_TEST_MOVE_DATA_H

#include "transport/gpu/move.h"

/* The same numbers in each run. */
uint64_t move_random(void);
/* Random elements, and many where their format ends. */
void move_fill(unsigned dtype, uint8_t *p, size_t count);
/* Each destination's elements, by shm/reduce. */
void move_expect(const struct gpu_move *m, void *ret_want);

#endif
