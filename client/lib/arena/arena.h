/* arena.h - registered memory: the arenas of this process, and the parts of other members' arenas
 * that a group works in. See arena.c and peer_arena.c for the models. */
#ifndef COMMD_CLIENT_ARENA_H
#define COMMD_CLIENT_ARENA_H

#include "client/lib/context/group.h"

enum { ARENA_PAGE = PLAN_PAGE };

/* ---- ours (arena.c) -------------------------------------------------------------------------- */

/* Are all @len bytes at @p part of one allocation that members of @ctx's groups may work in? Then
 * *ret_arena is its arena and *ret_offset the place of @p in it. */
bool arena_find(struct commd_context *ctx, const void *p, size_t len, uint64_t *ret_arena,
                uint64_t *ret_offset);
/* Takes the whole pages in [p, p + len), part of one allocation, away from all others who have
 * mapped them, for good: their contents are lost, and the allocation is ordinary memory. */
void arena_fence(void *p, size_t len);
/* @ctx has connected to another commd, which does not know its arenas. Takes the arenas' lock. */
void arena_announce(struct commd_context *ctx);
/* Around fork(): the child must not find the lock held by a thread that it does not have. */
void arena_lock(void);
void arena_unlock(void);
/* @ctx ends: its allocations become ordinary memory, which still has to be freed. */
void arena_forget(struct commd_context *ctx);

/* Maps the whole file so that large pages can be used: at a multiple of their size. */
int arena_map(int fd, size_t size, uint8_t **ret_base);
/* Makes the kernel provide the pages now. -ENOMEM: there are not enough. */
int arena_populate(void *p, size_t len);

/* ---- of other members (peer_arena.c) --------------------------------------------------------- */

struct peer_arena {
    uint64_t arena;
    uint8_t *base; /* NULL: commd did not give it, and is not asked again */
    size_t size;
};

/* NULL: commd has not been asked for @arena yet. */
const struct peer_arena *peer_arena_find(const struct membership *g, unsigned member,
                                         uint64_t arena);
/* Maps @fd, which stays the caller's, as @arena of local member @member. @fd -1: notes that commd
 * did not give it. False: there is no memory for the note. */
bool peer_arena_add(struct membership *g, unsigned member, uint64_t arena, int fd);
void peer_arenas_free(struct membership *g);

#endif
