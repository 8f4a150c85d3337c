/* memory.h - host memory that the GPU reaches: flags (flags.c) and staging buffers (staging.c). */
#ifndef COMMD_CLIENT_DEVICE_MEMORY_H
#define COMMD_CLIENT_DEVICE_MEMORY_H

#include <pthread.h>

#include "client/lib/context/context.h"
#include "shm/gpu/cuda.h"

/* ---- flags.c --------------------------------------------------------------------------------- */

/* The words of a gate, a cache line of their own. */
struct flag_words {
    _Atomic uint32_t ready, done, landed;
} __attribute__((aligned(CACHELINE)));

struct flag_slot {
    struct flag_slot *next;
    struct flag_words *words;
    cu_ptr at;     /* address of *words for streams */
    uint32_t mark; /* what the words reach when all operations that used the slot have ended */
};

/* Pages that the GPU reaches, zero at first and never freed. 0 or COMMD_E_*. */
int flags_page(const char *op, size_t bytes, void **ret_page, cu_ptr *ret_at);
/* A slot, with a context current. 0 or COMMD_E_*. */
int flags_take(const char *op, struct flag_slot **ret_slot);
/* No stream writes to the slot any more. A stream may still wait for its words: they only grow. */
void flags_give(struct flag_slot *slot);

/* ---- staging.c ------------------------------------------------------------------------------- */

struct staging_chunk {
    struct staging_chunk *next;
    uint8_t *p;
    size_t bytes;
    cu_context ctx; /* in which it is registered */
    bool arena;     /* p is memory of commd_alloc() */
    bool spoiled;   /* arena_fence() may have replaced pages that the GPU knows */
};

struct staging {
    struct commd_context *ctx;  /* borrowed; NULL: ended, and its arenas are ordinary memory */
    size_t limit, used, kept;   /* bytes: at most, of operations, not in use */
    struct staging_chunk *free; /* owned; used last first */
};

/* Rounds @bytes, not 0, up to a multiple of @least, or of a quarter of the power of two below
 * @bytes. There are few such sizes, so chunks that are kept fit again. */
size_t size_class(size_t bytes, size_t least);
/* A number of bytes from the environment, as "64M". 0 or COMMD_E_INVALID. */
int bytes_setting(const char *name, size_t otherwise, size_t *ret);
int staging_init(struct staging *s, struct commd_context *ctx);
/* Room for @bytes, not 0, with a context current. 0 or COMMD_E_*. */
int staging_take(struct staging *s, const char *op, size_t bytes, struct staging_chunk **ret_chunk);
/* Called when no stream uses @c any more. */
void staging_give(struct staging *s, struct staging_chunk *c);
void staging_fini(struct staging *s);

#endif
