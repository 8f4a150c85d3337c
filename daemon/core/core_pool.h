/* core_pool.h - what objects of the core lie in and hang on: lists, pools of one size, and runs of
 * members. See core_pool.c for the model. */
#ifndef COMMD_CORE_POOL_H
#define COMMD_CORE_POOL_H

#undef NDEBUG /* what the core asserts is cheap: it holds in every build */
#include <assert.h>

#include "shm/proto/msg.h"

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *head)
{
    head->prev = head->next = head;
}
static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}
/* Zeroed, or taken off its list. */
static inline bool list_is_off(const struct list *item)
{
    return !item->next || item->next == item;
}
static inline void list_add(struct list *head, struct list *item) /* at the end */
{
    assert(list_is_off(item));
    assert(head->prev->next == head);
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}
static inline void list_del(struct list *item) /* harmless when it is on no list */
{
    assert(item->prev->next == item && item->next->prev == item);
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}
/* Safe when the body removes @pos, and nothing else, from the list. */
#define list_each(pos, head, member)                                                               \
    for (__typeof__(pos) next_##pos = (pos = container_of((head)->next, __typeof__(*pos), member), \
                                      container_of(pos->member.next, __typeof__(*pos), member));   \
         &pos->member != (head);                                                                   \
         pos = next_##pos, next_##pos = container_of(pos->member.next, __typeof__(*pos), member))
#define list_first(head, type, member)                                                             \
    (list_empty(head) ? NULL : container_of((head)->next, type, member))

/* ---- pools (core_pool.c) ------------------------------------------------------------------ */

/* Items begin with a struct pooled. Memory beyond @used has never been touched. */
struct pooled {
    uint32_t next; /* index + 1 of the next free or ended item */
};
struct pool {
    char *items;
    size_t size;
    uint32_t cap, used, live;
    uint32_t free, ended;
};
void *pool_take(struct pool *pool);             /* zeroed; NULL: full */
void pool_leave(struct pool *pool, void *item); /* freed later: still readable */
void pool_reap(struct pool *pool);              /* what ended becomes free */
static inline uint32_t pool_index(const struct pool *pool, const void *item)
{
    assert((const char *)item >= pool->items &&
           (const char *)item < pool->items + pool->used * pool->size);
    return (uint32_t)(((const char *)item - pool->items) / pool->size);
}
static inline void *pool_at(const struct pool *pool, uint32_t i)
{
    assert(i < pool->used);
    return pool->items + i * pool->size;
}

/* What became of one rank; runs beside the member table, same index. */
struct fate {
    uint32_t ops;        /* GONE: operations completed; REJOIN: the seat it asks for */
    uint32_t next, prev; /* forming: hash chain; free run: list (index + 1); REJOIN, @prev: of so
                            many seats */
    uint32_t owner;      /* forming: its pool index */
    uint8_t cause;       /* CAUSE_NONE: the rank is there. In a forming, CAUSE_TIMEOUT: it came, and
                             its time ran out */
    bool gone;           /* forming: another says that the rank of the last epoch is gone */
};
enum { RUN_ORDERS = 24 };
/* Runs of members, one per rank, in blocks that belong to users. */
struct runs {
    struct msg_member *members;
    struct fate *fates;
    uint8_t *order; /* at the first index of a run: order + 1, RUN_USED set when taken */
    unsigned block; /* order of a block, and of the largest run */
    uint32_t nblocks, used;
    uint32_t touched, spare; /* blocks that have had an owner; of these the free ones (index + 1) */
};
struct run_owner {
    uint32_t free[RUN_ORDERS]; /* lists of free runs (index + 1) */
    uint32_t blocks;
};
/* @largest: longest run that there may be; @total: room for so many members, at least two blocks.
 */
void runs_init(struct runs *runs, uint32_t largest, uint32_t total);
/* Zeroed. NULL: longer than a block, or @owner has @most blocks, or none is left. */
struct msg_member *runs_take(struct runs *runs, struct run_owner *owner, uint32_t most, uint32_t n);
void runs_leave(struct runs *runs, struct run_owner *owner, struct msg_member *run);
static inline struct fate *runs_fate(const struct runs *runs, const struct msg_member *member)
{
    return &runs->fates[member - runs->members];
}

#endif
