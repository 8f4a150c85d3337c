/* arena.h - registered memory: the arenas of this process, and the parts of other members' arenas
 * that a group works in. See arena.c and peer_arena.c for the models. */
#ifndef COMMD_CLIENT_ARENA_H
#define COMMD_CLIENT_ARENA_H

#include "client/lib/context/group.h"

enum { ARENA_PAGE = PLAN_PAGE };

/* ---- ours (arena.c) -------------------------------------------------------------------------- */

/* Are all @len bytes at @p part of one allocation that members of @ctx's groups may work in?
 * Then which arena, and where in it. */
bool arena_find(struct commd_context *ctx, const void *p, size_t len, uint64_t *ret_arena,
                uint64_t *ret_offset);
/* Takes the whole pages in [p, p + len), part of one allocation, away from all others who have
 * mapped them, for good: their contents are lost, and the allocation is ordinary memory. */
void arena_fence(void *p, size_t len);
/* ctx has connected to another commd, which knows no arenas of it. Takes the arenas' lock. */
void arena_announce(struct commd_context *ctx);
/* Around fork(): no other thread may be in the middle of it. */
void arena_lock(void);
void arena_unlock(void);
/* ctx goes: its allocations become ordinary memory, which still has to be freed. */
void arena_forget(struct commd_context *ctx);

/* Maps the whole file so that large pages can be used: at a multiple of their size. */
int arena_map(int fd, size_t size, uint8_t **ret_base);
/* Has the kernel provide the pages now. -ENOMEM: there are not so many. */
int arena_populate(void *p, size_t len);

/* ---- of other members (peer_arena.c) --------------------------------------------------------- */

struct peer_arena {
    uint64_t arena;
    uint8_t *base; /* NULL: it could not be had, and is not asked for again */
    size_t size;
};

/* NULL: not known yet. */
const struct peer_arena *peer_arena_find(const struct commd_group *g, unsigned member,
                                         uint64_t arena);
/* Maps @fd, which stays the caller's, as @arena of local member @member; -1 notes that it cannot
 * be had. False: no memory for even that. */
bool peer_arena_add(struct commd_group *g, unsigned member, uint64_t arena, int fd);
void peer_arenas_free(struct commd_group *g);

#endif
