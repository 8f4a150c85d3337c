/* arena.c - memory that this process registers: arenas, and what is allocated in them.
 *
 * An arena is a memfd that we make, size and seal, so that nobody can shrink it under a mapping. We
 * hand it to commd, which gives it to members of our groups on this node when they ask. Small
 * allocations share arenas of ARENA_SHARED bytes; a large one has its own. Allocations are whole
 * pages: two allocations never share a page, which arena_fence() depends on. Which blocks of an
 * arena are allocated stands in a list in private memory. Nothing that is written in the arena
 * decides anything.
 *
 * Pages. They are taken when memory is allocated, so that a shortage is an error of commd_alloc()
 * and not a signal later. They are given back when the memory is freed, by punching a hole in the
 * file. A hole frees pages also while other members have the file mapped: they may keep the mapping
 * for long, but not the memory. A hole reads as zeros, and so does every new allocation. An arena
 * in which nothing is allocated is unmapped and closed.
 *
 * Life. Allocations belong to the process. When their context ends they become ordinary memory.
 * A forked child shares the pages with its parent (MAP_SHARED). What the child frees stays
 * allocated.
 *
 * Locks: the arenas' lock, then a context's. Allocating holds none while it waits for commd. */
#include "client/lib/arena/arena.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "shm/util/memfd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    ARENA_SHARED = 32 << 20,
    ARENA_OWN = 4 << 20,  /* from here on an allocation has an arena of its own */
    ARENA_HUGE = 2 << 20, /* a large page, where there are any */
};

/* In ascending order, without gaps: the next one begins where this one ends. */
struct block {
    struct block *next;
    size_t offset, len;
    bool used;
    bool fenced; /* not the file's pages any more; nor is it used again when it was freed */
};

struct arena {
    struct arena *next;
    struct commd_context *ctx; /* borrowed; NULL: it is gone */
    unsigned generation;       /* of the process that made it, see fork_generation() */
    uint64_t id;
    int fd; /* owned */
    uint8_t *base;
    size_t size;
    unsigned live;        /* allocations */
    struct block *blocks; /* owned */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena *arenas; /* owned */

void arena_lock(void)
{
    pthread_mutex_lock(&lock);
}

void arena_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- mappings -------------------------------------------------------------------------------- */

int arena_map(int fd, size_t size, uint8_t **ret_base)
{
    size_t align = size >= ARENA_HUGE ? ARENA_HUGE : ARENA_PAGE;
    void *base;
    int r;

    assert(fd >= 0 && size > 0);
    size = ALIGN_UP(size, (size_t)ARENA_PAGE);
    r = memfd_map_at(fd, size, align, &base);
    if (r)
        return r;
    madvise(base, size, MADV_HUGEPAGE); /* a wish */
    *ret_base = base;
    return 0;
}

int arena_populate(void *p, size_t len)
{
    uintptr_t at = (uintptr_t)p & ~(uintptr_t)(ARENA_PAGE - 1);
    int r;

    assert(len > 0);
    do
        r = madvise((void *)at, len + ((uintptr_t)p - at), MADV_POPULATE_WRITE);
    while (r && errno == EINTR);
    /* EINVAL: an older kernel; then pages come when they are touched */
    return r && errno != EINVAL ? -ENOMEM : 0;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

static struct arena *arena_free(struct arena *a)
{
    if (!a)
        return NULL;
    assert(!a->live);
    for (struct block *next; a->blocks; a->blocks = next) {
        next = a->blocks->next;
        free(a->blocks);
    }
    if (a->base)
        munmap(a->base, a->size);
    close_fdp(&a->fd);
    free(a);
    return NULL;
}

static void arena_freep(struct arena **a)
{
    arena_free(*a);
}

/* Known to nobody but commd. */
static int arena_new(struct commd_context *ctx, size_t size, struct arena **ret_arena)
{
    _cleanup_(arena_freep) struct arena *a = calloc(1, sizeof *a);
    int r;

    assert(size > 0 && size % ARENA_PAGE == 0);
    if (!a)
        return error_set(error_mine(), COMMD_E_NOMEM, "alloc", "no memory for an arena");
    a->fd = -1;
    a->ctx = ctx;
    a->generation = fork_generation();
    a->size = size;
    a->blocks = calloc(1, sizeof *a->blocks);
    r = a->blocks ? 0 : -ENOMEM;
    if (r == 0 && getrandom(&a->id, sizeof a->id, 0) != sizeof a->id)
        r = -errno;
    if (r == 0)
        r = memfd_new("commd-arena", size, &a->fd);
    if (r == 0)
        r = arena_map(a->fd, size, &a->base);
    if (r)
        return error_set(error_mine(), COMMD_E_NOMEM, "alloc", "an arena of %zu bytes: %s", size,
                         memfd_strerror(r));
    a->blocks->len = size;
    r = control_arena_add(ctx, a->id, size, a->fd);
    if (r)
        return r;
    *ret_arena = steal_ptr(a);
    return 0;
}

/* Takes @len bytes of a free block; NULL: there is none, or no memory to split it. */
static struct block *arena_block_take(struct arena *a, size_t len)
{
    assert_held(&lock);
    assert(len > 0 && len % ARENA_PAGE == 0);
    for (struct block *b = a->blocks; b; b = b->next) {
        if (b->used || b->fenced || b->len < len)
            continue;
        if (b->len > len) {
            struct block *rest = calloc(1, sizeof *rest);

            if (!rest)
                return NULL;
            *rest = (struct block){.next = b->next, .offset = b->offset + len, .len = b->len - len};
            b->next = rest;
            b->len = len;
        }
        b->used = true;
        a->live++;
        return b;
    }
    return NULL;
}

static bool block_is_free(const struct block *b)
{
    assert(b->len > 0 && b->len % ARENA_PAGE == 0);
    return !b->used && !b->fenced;
}

static void block_give(struct arena *a, struct block *block)
{
    assert_held(&lock);
    assert(block->used && a->live > 0);
    block->used = false;
    a->live--;
    for (struct block *b = a->blocks; b;) {
        struct block *next = b->next;

        if (next && block_is_free(b) && block_is_free(next)) {
            b->len += next->len;
            b->next = next->next;
            free(next);
        } else {
            b = next;
        }
    }
}

/* The block that @p lies in, if it is used, and its arena. */
static struct block *block_of(const void *p, struct arena **ret_arena)
{
    assert_held(&lock);
    for (struct arena *a = arenas; a; a = a->next) {
        size_t at = (size_t)((const uint8_t *)p - a->base);

        if ((const uint8_t *)p < a->base || at >= a->size)
            continue;
        for (struct block *b = a->blocks; b; b = b->next)
            if (at - b->offset < b->len && b->used) {
                *ret_arena = a;
                return b;
            }
    }
    return NULL;
}

/* ---- what the library asks ------------------------------------------------------------------- */

bool arena_find(struct commd_context *ctx, const void *p, size_t len, uint64_t *ret_arena,
                uint64_t *ret_offset)
{
    struct arena *a;
    struct block *b;
    bool found;

    assert(len > 0);
    pthread_mutex_lock(&lock);
    b = block_of(p, &a);
    found = b && a->ctx == ctx && !b->fenced;
    if (found) {
        size_t at = (size_t)((const uint8_t *)p - a->base);

        found = len <= b->offset + b->len - at;
        *ret_arena = a->id;
        *ret_offset = at;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void arena_fence(void *p, size_t len)
{
    uintptr_t lo = ALIGN_UP((uintptr_t)p, (uintptr_t)ARENA_PAGE);
    uintptr_t hi = ((uintptr_t)p + len) & ~(uintptr_t)(ARENA_PAGE - 1);
    struct arena *a;
    struct block *b;

    assert(len > 0);
    if (hi <= lo)
        return;
    pthread_mutex_lock(&lock);
    b = block_of(p, &a);
    if (b)
        b->fenced = true;
    /* It fails if this process has as many mappings as it may; then there is nothing to be done. */
    (void)!mmap((void *)lo, hi - lo, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    pthread_mutex_unlock(&lock);
}

void arena_announce(struct commd_context *ctx)
{
    pthread_mutex_lock(&lock);
    for (struct arena *a = arenas; a; a = a->next)
        if (a->ctx == ctx)
            control_arena_again(ctx, a->id, a->size, a->fd);
    pthread_mutex_unlock(&lock);
}

void arena_forget(struct commd_context *ctx)
{
    pthread_mutex_lock(&lock);
    for (struct arena *a = arenas; a; a = a->next)
        if (a->ctx == ctx)
            a->ctx = NULL;
    pthread_mutex_unlock(&lock);
}

static void let_go(struct arena *a)
{
    struct arena **p = &arenas;

    assert_held(&lock);
    if (a->live)
        return;
    while (*p != a)
        p = &(*p)->next;
    *p = a->next;
    if (a->ctx)
        control_arena_del(a->ctx, a->id);
    arena_free(a);
}

/* ---- the API --------------------------------------------------------------------------------- */

static struct block *take_shared(struct commd_context *ctx, size_t len, struct arena **ret_arena)
{
    assert_held(&lock);
    assert(len > 0 && len < ARENA_OWN);
    for (struct arena *a = arenas; a; a = a->next) {
        struct block *b =
            a->ctx == ctx && a->size == ARENA_SHARED ? arena_block_take(a, len) : NULL;

        if (b) {
            *ret_arena = a;
            return b;
        }
    }
    return NULL;
}

static int arena_take(struct commd_context *ctx, size_t len, struct arena **ret_arena,
                      struct block **ret_block)
{
    bool own = len >= ARENA_OWN;
    struct arena *a = NULL;
    int r;

    assert(len > 0 && len % ARENA_PAGE == 0);
    pthread_mutex_lock(&lock);
    *ret_block = own ? NULL : take_shared(ctx, len, ret_arena);
    pthread_mutex_unlock(&lock);
    if (*ret_block)
        return 0;
    r = arena_new(ctx, own ? ALIGN_UP(len, (size_t)ARENA_HUGE) : (size_t)ARENA_SHARED, &a);
    if (r)
        return r;
    pthread_mutex_lock(&lock);
    a->next = arenas;
    arenas = a;
    *ret_block = arena_block_take(a, len);
    *ret_arena = a;
    let_go(a);
    pthread_mutex_unlock(&lock);
    if (!*ret_block) /* to split a block takes memory */
        return error_set(error_mine(), COMMD_E_NOMEM, "alloc", "no memory for %zu bytes", len);
    return 0;
}

static void punch(const struct arena *a, const struct block *b)
{
    assert(b->used && b->offset + b->len <= a->size);
    fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset, (off_t)b->len);
}

PUBLIC int commd_alloc(struct commd_context *ctx, size_t bytes, void **ret_ptr)
{
    size_t len = ALIGN_UP(MAX(bytes, (size_t)1), (size_t)ARENA_PAGE);
    struct arena *a;
    struct block *b;
    int r;

    if (!ctx || !ret_ptr)
        return error_set(error_mine(), COMMD_E_INVALID, "alloc",
                         "context and ret_ptr must not be NULL");
    r = usable(ctx, "alloc");
    if (r)
        return r;
    if (bytes > INT64_MAX / 2)
        return error_set(error_mine(), COMMD_E_INVALID, "alloc", "%zu bytes are too many", bytes);
    r = arena_take(ctx, len, &a, &b);
    if (r)
        return r;
    assert(b->used && b->len >= len);
    /* without the lock: the block is ours alone, and keeps its arena alive */
    if (arena_populate(a->base + b->offset, b->len) == 0) {
        *ret_ptr = a->base + b->offset;
        return 0;
    }
    pthread_mutex_lock(&lock);
    punch(a, b);
    block_give(a, b);
    let_go(a);
    pthread_mutex_unlock(&lock);
    return error_set(error_mine(), COMMD_E_NOMEM, "alloc", "no memory for %zu bytes", bytes);
}

PUBLIC int commd_free(void *ptr)
{
    struct arena *a;
    struct block *b;
    int r = 0;

    if (!ptr)
        return 0;
    pthread_mutex_lock(&lock);
    b = block_of(ptr, &a);
    if (b && a->generation != fork_generation()) {
        /* the parent's, and not ours to free */
    } else if (b && a->base + b->offset == ptr) {
        punch(a, b);
        block_give(a, b);
        let_go(a);
    } else {
        r = error_set(error_mine(), COMMD_E_INVALID, "free",
                      "%p is not the beginning of memory that commd_alloc() gave", ptr);
    }
    pthread_mutex_unlock(&lock);
    return r;
}
