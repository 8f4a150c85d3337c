/* core_pool.c - memory of the core after core_new(): fixed pools, and runs of members.
 *
 * A pool hands out items of one size. An item that ends goes to limbo, where actions that are
 * still queued may read it, and becomes free at the next core_input(). Items are taken from the
 * free list first, so an idle commd never touches most of its pools' memory.
 *
 * Runs are contiguous because msg_commit and the group views want the members of a group by
 * rank in one array. A buddy allocator (Knuth 2.5C) keeps them in one table: split on take,
 * merge on leave. A table of fates runs beside it, and holds the lists of free runs too. */
#include "daemon/core_internal.h"

enum { RUN_USED = 0x80 };

void *pool_take(struct pool *pool)
{
    struct pooled *item;

    if (pool->free) {
        item = pool_at(pool, pool->free - 1);
        pool->free = item->next;
        memset(item, 0, pool->size);
    } else if (pool->used < pool->cap) {
        item = pool_at(pool, pool->used++); /* calloc'ed and never used */
    } else {
        return NULL;
    }
    pool->live++;
    return item;
}

void pool_leave(struct pool *pool, void *item)
{
    ((struct pooled *)item)->next = pool->limbo;
    pool->limbo = pool_index(pool, item) + 1;
    pool->live--;
}

void pool_reap(struct pool *pool)
{
    while (pool->limbo) {
        struct pooled *item = pool_at(pool, pool->limbo - 1);
        uint32_t next = item->next;

        item->next = pool->free;
        pool->free = pool->limbo;
        pool->limbo = next;
    }
}

static void run_link(struct runs *runs, uint32_t i, unsigned order)
{
    runs->order[i] = (uint8_t)(order + 1);
    runs->fates[i].prev = 0;
    runs->fates[i].next = runs->free[order];
    if (runs->free[order])
        runs->fates[runs->free[order] - 1].prev = i + 1;
    runs->free[order] = i + 1;
}

static void run_unlink(struct runs *runs, uint32_t i, unsigned order)
{
    struct fate *fate = &runs->fates[i];

    if (fate->prev)
        runs->fates[fate->prev - 1].next = fate->next;
    else
        runs->free[order] = fate->next;
    if (fate->next)
        runs->fates[fate->next - 1].prev = fate->prev;
    runs->order[i] = 0;
}

static unsigned order_of(uint32_t n)
{
    unsigned order = 0;

    while ((UINT32_C(1) << order) < n)
        order++;
    return order;
}

void runs_init(struct runs *runs)
{
    run_link(runs, 0, order_of(runs->total));
}

struct msg_member *runs_take(struct runs *runs, uint32_t n)
{
    unsigned want = order_of(n), order = want;
    uint32_t i;

    while (order < RUN_ORDERS && !runs->free[order])
        order++;
    if (order >= RUN_ORDERS)
        return NULL;
    i = runs->free[order] - 1;
    run_unlink(runs, i, order);
    while (order > want) {
        order--;
        run_link(runs, i + (UINT32_C(1) << order), order);
    }
    runs->order[i] = (uint8_t)(RUN_USED | (want + 1));
    memset(&runs->members[i], 0, n * sizeof(runs->members[0]));
    memset(&runs->fates[i], 0, n * sizeof(runs->fates[0]));
    return &runs->members[i];
}

void runs_leave(struct runs *runs, struct msg_member *run)
{
    uint32_t i = (uint32_t)(run - runs->members);
    unsigned order = (runs->order[i] & ~RUN_USED) - 1u;

    if (!(runs->order[i] & RUN_USED))
        abort(); /* freed twice */
    runs->order[i] = 0;
    while ((UINT32_C(1) << order) < runs->total) {
        uint32_t buddy = i ^ (UINT32_C(1) << order);

        if (runs->order[buddy] != order + 1)
            break;
        run_unlink(runs, buddy, order);
        i &= ~(UINT32_C(1) << order);
        order++;
    }
    run_link(runs, i, order);
}
