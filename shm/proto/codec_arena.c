/* codec_arena.c - a bump allocator with a limit.
 *
 * protobuf-c allocates a piece per field and per list, so that a small hostile frame (two
 * bytes per field) turns into a lot of memory and of malloc() calls. Here all pieces of one
 * decode come from a 4 KiB buffer on the stack and, beyond it, from few blocks; they are never
 * freed one by one, and their sum has a limit that is proportional to the frame. A client's
 * small message is decoded without a single malloc(). What was given out is wiped at the end:
 * tokens and keys are decoded here. */
#include "shm/proto/codec_priv.h"

enum { ARENA_BLOCK = 64 << 10 };

struct arena_block {
    struct arena_block *next;
    size_t size;
    _Alignas(16) char data[];
};

void arena_init(struct codec_arena *arena, size_t limit)
{
    /* Not = {}: that would clear the 4 KiB buffer too. */
    arena->next = arena->first;
    arena->left = sizeof(arena->first);
    arena->total = 0;
    arena->limit = limit;
    arena->oom = false;
    arena->blocks = NULL;
}

void arena_fini(struct codec_arena *arena)
{
    struct arena_block *block;

    explicit_bzero(arena->first, MIN(arena->total, sizeof(arena->first)));
    while ((block = arena->blocks)) {
        arena->blocks = block->next;
        free_wiped(block, block->size);
    }
}

static bool arena_grow(struct codec_arena *arena, size_t size)
{
    size_t data = MAX(size, (size_t)ARENA_BLOCK);
    size_t all = sizeof(struct arena_block) + data;
    struct arena_block *block = malloc(all);

    if (!block) {
        arena->oom = true;
        return false;
    }
    *block = (struct arena_block){arena->blocks, all};
    arena->blocks = block;
    arena->next = block->data;
    arena->left = data;
    return true;
}

void *arena_alloc(struct codec_arena *arena, size_t size)
{
    void *p;

    if (size > arena->limit - arena->total)
        return NULL;
    size = ALIGN_UP(MAX(size, (size_t)1), 16);
    if (size > arena->limit - arena->total)
        return NULL;
    if (size > arena->left && !arena_grow(arena, size))
        return NULL;
    p = arena->next;
    arena->next += size;
    arena->left -= size;
    arena->total += size;
    return p;
}
