/* reduce.h - typed reduction kernels, chosen by CPU at run time (AVX-512, AVX2, baseline).
 * Pure: no state but the chosen table, no allocation. Callers validate dtype and redop. */
#ifndef COMMD_REDUCE_H
#define COMMD_REDUCE_H

#include "shm/model/dtype.h"

enum { REDUCE_MAX_SRC = 1024 };

/* dst[i] = src[0][i] op src[1][i] op ... op src[nsrc-1][i], in that order, for @count
 * elements. f16 and bf16 accumulate in f32 and round once. Pointers need no alignment.
 * @dst may be equal to any one src (same address), but may not partly overlap one.
 * nsrc >= 1; nsrc == 1 copies. REDOP_AVG sums here; the division is reduce_finish().
 * REDOP_PREMUL_SUM sums too: the sources have been through reduce_scale(). */
void reduce_n(unsigned dtype, unsigned redop, void *dst, const void *const *src, unsigned nsrc,
              size_t count);

/* As reduce_n, and writes the same result to @dst2 too (one pass over the inputs). */
void reduce_n_dup(unsigned dtype, unsigned redop, void *dst, void *dst2, const void *const *src,
                  unsigned nsrc, size_t count);

/* What is left to do once all @world contributions are in: REDOP_AVG divides by @world in
 * place (floats: true division in f32/f64; integers truncate toward zero); every other
 * operator does nothing. */
void reduce_finish(unsigned dtype, unsigned redop, void *dst, size_t count, unsigned world);

/* dst[i] = src[i] * scale, what a member does to its contribution to a REDOP_PREMUL_SUM. f16,
 * bf16 and f32: the factor is rounded to f32, the product is one of f32 and is rounded once to
 * the type; f64: in f64. @dst may be @src, but may not partly overlap it. @dtype must be a
 * float. */
void reduce_scale(unsigned dtype, void *dst, const void *src, double scale, size_t count);

/* Which table is in use: "avx512", "avx2" or "baseline". */
const char *reduce_kernels(void);
/* Tests: force a table by name; false when this CPU lacks it. NULL returns to automatic. */
bool reduce_force(const char *name);

#endif
