/* core_pool.c - memory of the core after core_new(): fixed pools, and runs of members.
 *
 * A pool hands out items of one size. The free of an item that ends is deferred, where actions that
 * are still queued may read it, and becomes free at the next core_input(). Items are taken from the
 * free list first, so an idle commd never touches most of its pools' memory.
 *
 * Runs are contiguous because msg_commit and the group views want the members of a group by
 * rank in one array. The table is cut into blocks, each as large as the largest group. A block
 * belongs to one user as long as that user has a run in it, and is what counts against the user's
 * share; so nobody's small runs ever lie in the way of another's large ones. Within the blocks of a
 * user a buddy allocator (Knuth 2.5C) keeps the runs: split on take, merge on leave. A table of
 * fates runs beside it, and holds the lists of free runs and blocks too. */
#include "daemon/core/core_internal.h"

enum { RUN_USED = 0x80 };

void *pool_take(struct pool *pool)
{
    struct pooled *item;

    if (pool->free) {
        item = pool_at(pool, pool->free - 1);
        pool->free = item->next;
        memset(item, 0, pool->size);
    } else if (pool->used < pool->cap) {
        pool->used++;
        item = pool_at(pool, pool->used - 1); /* calloc'ed and never used */
    } else {
        return NULL;
    }
    pool->live++;
    assert(pool->live <= pool->used);
    return item;
}

void pool_leave(struct pool *pool, void *item)
{
    assert(pool->live);
    assert(pool->ended != pool_index(pool, item) + 1); /* not twice */
    ((struct pooled *)item)->next = pool->ended;
    pool->ended = pool_index(pool, item) + 1;
    pool->live--;
}

void pool_reap(struct pool *pool)
{
    while (pool->ended) {
        struct pooled *item = pool_at(pool, pool->ended - 1);
        uint32_t next = item->next;

        item->next = pool->free;
        pool->free = pool->ended;
        pool->ended = next;
    }
}

static void run_link(struct runs *runs, struct run_owner *owner, uint32_t i, unsigned order)
{
    assert(!(i & ((UINT32_C(1) << order) - 1)) && !runs->order[i]);
    runs->order[i] = (uint8_t)(order + 1);
    runs->fates[i].prev = 0;
    runs->fates[i].next = owner->free[order];
    if (owner->free[order])
        runs->fates[owner->free[order] - 1].prev = i + 1;
    owner->free[order] = i + 1;
}

static void run_unlink(struct runs *runs, struct run_owner *owner, uint32_t i, unsigned order)
{
    struct fate *fate = &runs->fates[i];

    assert(runs->order[i] == order + 1); /* free */
    assert(fate->prev || owner->free[order] == i + 1);
    if (fate->prev)
        runs->fates[fate->prev - 1].next = fate->next;
    else
        owner->free[order] = fate->next;
    if (fate->next)
        runs->fates[fate->next - 1].prev = fate->prev;
    runs->order[i] = 0;
}

static unsigned order_of(uint32_t n)
{
    unsigned order = 0;

    assert(n && n <= UINT32_C(1) << (RUN_ORDERS - 1));
    while ((UINT32_C(1) << order) < n)
        order++;
    return order;
}

void runs_init(struct runs *runs, uint32_t largest, uint32_t total)
{
    runs->block = order_of(largest);
    assert(runs->block < RUN_ORDERS);
    runs->nblocks = MAX(MIN(total, UINT32_C(1) << (RUN_ORDERS - 1)) >> runs->block, 2u);
}

/* A block that nobody has; memory of those that never had an owner was never touched. */
static bool runs_block_take(struct runs *runs, struct run_owner *owner)
{
    uint32_t i;

    if (runs->spare) {
        i = runs->spare - 1;
        runs->spare = runs->fates[i].next;
    } else if (runs->touched < runs->nblocks) {
        i = runs->touched++ << runs->block;
    } else {
        return false;
    }
    runs->used++;
    owner->blocks++;
    assert(runs->used <= runs->nblocks && owner->blocks <= runs->used);
    run_link(runs, owner, i, runs->block);
    return true;
}

struct msg_member *runs_take(struct runs *runs, struct run_owner *owner, uint32_t most, uint32_t n)
{
    unsigned want = order_of(n), order = want;
    uint32_t i;

    assert(n);
    if (want > runs->block)
        return NULL;
    while (order <= runs->block && !owner->free[order])
        order++;
    if (order > runs->block) {
        if (owner->blocks >= most || !runs_block_take(runs, owner))
            return NULL;
        order = runs->block;
    }
    i = owner->free[order] - 1;
    run_unlink(runs, owner, i, order);
    assert(!runs->order[i] && order >= want);
    while (order > want) {
        order--;
        run_link(runs, owner, i + (UINT32_C(1) << order), order);
    }
    runs->order[i] = (uint8_t)(RUN_USED | (want + 1));
    memset(&runs->members[i], 0, n * sizeof(runs->members[0]));
    memset(&runs->fates[i], 0, n * sizeof(runs->fates[0]));
    return &runs->members[i];
}

void runs_leave(struct runs *runs, struct run_owner *owner, struct msg_member *run)
{
    uint32_t i = (uint32_t)(run - runs->members);
    unsigned order = (runs->order[i] & ~RUN_USED) - 1u;

    assert(runs->order[i] & RUN_USED); /* not freed twice */
    assert(run >= runs->members && i < runs->nblocks << runs->block);
    assert(order <= runs->block);
    runs->order[i] = 0;
    while (order < runs->block) {
        uint32_t buddy = i ^ (UINT32_C(1) << order);

        if (runs->order[buddy] != order + 1)
            break;
        run_unlink(runs, owner, buddy, order);
        i &= ~(UINT32_C(1) << order);
        order++;
    }
    if (order < runs->block) {
        run_link(runs, owner, i, order);
        return;
    }
    assert(runs->used && owner->blocks);
    runs->fates[i].next = runs->spare;
    runs->spare = i + 1;
    runs->used--;
    owner->blocks--;
}
