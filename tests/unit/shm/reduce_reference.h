/* reduce_reference.h - what shm/reduce/reduce.h promises, written without any thought of speed. */
#ifndef COMMD_TESTS_REDUCE_REFERENCE_H
#define COMMD_TESTS_REDUCE_REFERENCE_H

#include "shm/model/dtype.h"

/* One element: signed integers in i, unsigned and bool in u, all floats in f. */
union value {
    int64_t i;
    uint64_t u;
    double f;
};

bool reference_is_float(unsigned dtype);
void reference_encode(unsigned dtype, union value v, uint8_t *ret_p);
/* One source is copied, whatever its bits. */
void reference_reduce(unsigned dtype, unsigned op, const void *const *src, unsigned nsrc,
                      size_t count, uint8_t *ret_result);
/* One element at @x divided by @world, as reduce_finish() does for REDOP_AVG. */
void reference_divide(unsigned dtype, const uint8_t *x, unsigned world, uint8_t *ret_result);
/* One element at @x times @scale, as reduce_scale() does. */
void reference_scale(unsigned dtype, const uint8_t *x, double scale, uint8_t *ret_result);

#endif
