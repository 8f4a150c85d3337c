/* peer_arena.c - arenas of other members of a group, mapped here.
 *
 * A group maps an arena when an operation first names it, and finds the mapping again by member and
 * number. Seals and size are read from the file here, although commd has checked them. Every use is
 * checked against the size that is kept here (registered.c).
 *
 * How many. At most PEER_ARENAS of each member: one more unmaps all arenas of that member. So a
 * mapping may outlive the arena. It costs address space but no memory: the owner has taken the
 * pages back with a hole, and only a stray read would fill the hole with zeros. It ends with the
 * group at the latest. No descriptor is kept. A number is random and never used twice, so a mapping
 * that is found under a number is of that arena. That commd does not give an arena is remembered
 * too: it is asked once, and not in each operation. */
#include <sys/mman.h>

#include "client/lib/arena/arena.h"
#include "shm/util/memfd.h"

enum { PEER_ARENAS = 64 };

struct peer_arenas {
    unsigned n;
    struct peer_arena list[PEER_ARENAS];
};

const struct peer_arena *peer_arena_find(const struct membership *g, unsigned member,
                                         uint64_t arena)
{
    const struct peer_arenas *all = g->peer_arenas ? g->peer_arenas[member] : NULL;

    assert(member < g->board.nlocal && member != g->local);
    for (unsigned i = 0; all && i < all->n; i++)
        if (all->list[i].arena == arena)
            return &all->list[i];
    return NULL;
}

static void unmap_all(struct peer_arenas *all)
{
    assert(all->n <= PEER_ARENAS);
    for (unsigned i = 0; i < all->n; i++)
        if (all->list[i].base)
            munmap(all->list[i].base, all->list[i].size);
    all->n = 0;
}

static int map(int fd, struct peer_arena *p)
{
    int r = memfd_check(fd, SIZE_MAX / 2, &p->size);

    assert(fd >= 0);
    if (r)
        return r;
    r = arena_map(fd, p->size, &p->base);
    if (r)
        return r;
    madvise(p->base, p->size, MADV_DONTDUMP); /* it is in its owner's */
    madvise(p->base, p->size, MADV_DONTFORK);
    return 0;
}

bool peer_arena_add(struct membership *g, unsigned member, uint64_t arena, int fd)
{
    struct peer_arena p = {.arena = arena};
    struct peer_arenas *all;

    assert(member < g->board.nlocal && member != g->local);
    if (!g->peer_arenas)
        g->peer_arenas = calloc(g->board.nlocal, sizeof *g->peer_arenas);
    if (g->peer_arenas && !g->peer_arenas[member])
        g->peer_arenas[member] = calloc(1, sizeof **g->peer_arenas);
    all = g->peer_arenas ? g->peer_arenas[member] : NULL;
    if (!all)
        return false;
    if (all->n == PEER_ARENAS)
        unmap_all(all);
    if (fd < 0 || map(fd, &p))
        p.base = NULL;
    assert(all->n < PEER_ARENAS);
    all->list[all->n++] = p;
    return true;
}

void peer_arenas_free(struct membership *g)
{
    for (unsigned m = 0; g->peer_arenas && m < g->board.nlocal; m++) {
        if (g->peer_arenas[m])
            unmap_all(g->peer_arenas[m]);
        free(g->peer_arenas[m]);
    }
    free(steal_ptr(g->peer_arenas));
}
