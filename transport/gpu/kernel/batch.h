/* batch.h - what one launch of a kernel does: a list of moves in its parameters. Shared by C and
 * CUDA (move.cu); how moves get into it is in transport/gpu/move.h. */
#ifndef COMMD_BATCH_H
#define COMMD_BATCH_H

#include <stdint.h>

enum {
    BATCH_MOVES = 64,
    BATCH_WORDS = 480,
    BATCH_SOURCES = 16, /* SESSION_MAX_RANKS */
};

/* A kernel's parameters are 4 KiB at most. A move begins at words[at]: the number of its elements;
 * nsrc | ndst << 8 | divide << 32; then the addresses of its sources and of its destinations, and,
 * for premul_sum, the bits of a double for each source. */
struct gpu_batch {
    uint32_t nmoves, nwords;
    uint16_t at[BATCH_MOVES];
    uint64_t words[BATCH_WORDS];
};

/* For X(name): the kernels, which are named commd_move_<name>. copy: elements are bytes. */
#define BATCH_KERNELS_WRAP(X, t) X(t##_sum) X(t##_prod) X(t##_band) X(t##_bor) X(t##_bxor)
#define BATCH_KERNELS_INT(X, t)  X(t##_avg) X(t##_min) X(t##_max)
#define BATCH_KERNELS_FLOAT(X, t)                                                                  \
    X(t##_sum) X(t##_avg) X(t##_prod) X(t##_min) X(t##_max) X(t##_premul_sum)
#define BATCH_KERNELS(X)                                                                           \
    X(copy)                                                                                        \
    BATCH_KERNELS_WRAP(X, u8)                                                                      \
    BATCH_KERNELS_WRAP(X, u16)                                                                     \
    BATCH_KERNELS_WRAP(X, u32)                                                                     \
    BATCH_KERNELS_WRAP(X, u64)                                                                     \
    BATCH_KERNELS_INT(X, i8)                                                                       \
    BATCH_KERNELS_INT(X, u8)                                                                       \
    BATCH_KERNELS_INT(X, i16)                                                                      \
    BATCH_KERNELS_INT(X, u16)                                                                      \
    BATCH_KERNELS_INT(X, i32)                                                                      \
    BATCH_KERNELS_INT(X, u32)                                                                      \
    BATCH_KERNELS_INT(X, i64)                                                                      \
    BATCH_KERNELS_INT(X, u64)                                                                      \
    BATCH_KERNELS_FLOAT(X, f16)                                                                    \
    BATCH_KERNELS_FLOAT(X, bf16)                                                                   \
    BATCH_KERNELS_FLOAT(X, f32)                                                                    \
    BATCH_KERNELS_FLOAT(X, f64)                                                                    \
    X(bool_or) X(bool_and) X(bool_xor)

#endif
