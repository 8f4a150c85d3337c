/* gate.h - an operation whose buffers a GPU's stream fills and empties (client/lib/device/): how
 * the stream and the thread that runs the operation tell each other where they are. They use words
 * of host memory, which the GPU can write and wait for.
 *
 *   ready    written by the stream: so many pieces of the input are there
 *   done     written by the host: so many pieces of the result are there; all, if it has failed
 *   landed   written by the stream: all is over, and nothing touches the buffers any more
 *
 * The operation begins when `ready` says so. Words only grow, so their slot is used again and
 * again, and all words count from `base`. A GPU rings no bell, so the progress thread looks again
 * and again. It calls no function of CUDA: some wait for a stream (cuMemFree() does), and the
 * stream may wait for the progress thread. */
#ifndef COMMD_CLIENT_GATE_H
#define COMMD_CLIENT_GATE_H

#include <commd/commd.h>
#include <stdatomic.h>

#include "shm/util/base.h"

struct gate;
struct gate_ops {
    /* With the context's plock held: the host's part has ended, with @e (NULL: well), and `done` is
     * stored next. Must not block. */
    void (*over)(struct gate *gate, const struct commd_error *e);
    void (*unref)(struct gate *gate);
    /* The operation has landed: fills *e if it has failed. May be NULL: then none has failed. */
    void (*result)(struct gate *gate, struct commd_error *e);
    /* The host has waited for @seconds and the input is not there: says so on stderr. May be NULL:
     * then the caller says it. */
    void (*warn)(struct gate *gate, double seconds);
    /* As commd_work_wait_stream(). */
    int (*wait_stream)(struct gate *gate, void *stream);
};

struct gate {
    const struct gate_ops *ops;
    _Atomic uint32_t *ready, *done, *landed;
    _Atomic int lost; /* COMMD_E_*: the operation will not land; else 0 */
    uint32_t base, pieces;
    size_t piece; /* of a vector that is cut: bytes of a piece, but for the last; else 0 */
};

/* Pieces of the input that are there. */
static inline uint32_t gate_ready(const struct gate *g)
{
    return atomic_load_explicit(g->ready, memory_order_acquire) - g->base;
}

static inline bool gate_full(const struct gate *g)
{
    return gate_ready(g) >= g->pieces;
}

static inline bool gate_landed(const struct gate *g)
{
    return seq_reached(atomic_load_explicit(g->landed, memory_order_acquire), g->base + g->pieces);
}

/* The first @pieces pieces of the result are there. */
static inline void gate_tell(const struct gate *g, uint32_t pieces)
{
    /* results are copied past the caches now and then: a release does not order such stores */
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store_explicit(g->done, g->base + pieces, memory_order_release);
}

/* Of a vector: are its first @bytes bytes there? */
static inline bool gate_has(const struct gate *g, size_t bytes)
{
    return !g->piece || gate_ready(g) >= (bytes + g->piece - 1) / g->piece;
}

#endif
