/* reduce_kernels.h - what reduce.c and the kernel builds share: the table of one build.
 * reduce_kernels.c is compiled once per instruction set; each build exports one table. */
#ifndef COMMD_REDUCE_KERNELS_H
#define COMMD_REDUCE_KERNELS_H

#include "shm/model/dtype.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* nsrc >= 2, count >= 1; @dst2 may be NULL. */
typedef void (*reduce_fn)(uint8_t *dst, uint8_t *dst2, const uint8_t *const *src, unsigned nsrc,
                          size_t count);
/* x[i] /= world, in f32 or f64. */
typedef void (*reduce_divide_fn)(uint8_t *x, size_t count, unsigned world);
/* dst[i] = src[i] * scale, in f32 or f64. */
typedef void (*reduce_scale_fn)(uint8_t *dst, const uint8_t *src, double scale, size_t count);

struct reduce_table {
    reduce_fn fn[DTYPE_COUNT][REDOP_COUNT]; /* NULL: undefined pair */
    reduce_divide_fn divide[DTYPE_COUNT];   /* NULL: not a float */
    reduce_scale_fn scale[DTYPE_COUNT];     /* NULL: not a float */
};

extern const struct reduce_table reduce_table_baseline;
#if defined(__x86_64__)
extern const struct reduce_table reduce_table_avx2;
extern const struct reduce_table reduce_table_avx512;
#endif

#endif
