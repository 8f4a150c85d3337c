/* fair.c - see fair.h. Times are bytes times SCALE / weight, and wrap: only differences count. The
 * largest difference is that of the largest message times the number of nodes in the queue. A node
 * that is not listed may have a time that is older than half of the range: fair_return(). */
#include "transport/schedule/fair.h"

enum { SCALE = FAIR_WEIGHT_MAX };
#define AHEAD_BYTES ((uint64_t)1 << 30)

static bool later(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) > 0;
}

static uint64_t span(const struct fair_node *n, size_t bytes)
{
    assert(n->weight > 0);
    assert(n->weight <= FAIR_WEIGHT_MAX);
    return (uint64_t)bytes * SCALE / n->weight;
}

void fair_init(struct fair *f, size_t keep)
{
    TAILQ_INIT(&f->list);
    f->time = 0;
    f->keep = (uint64_t)keep * SCALE / FAIR_WEIGHT;
    fair_most(f, AHEAD_BYTES);
}

void fair_most(struct fair *f, uint64_t bytes)
{
    assert(bytes > 0);
    assert(bytes <= INT64_MAX / SCALE);
    f->ahead = bytes * SCALE;
}

void fair_node_init(struct fair_node *n, uint32_t weight)
{
    *n = (struct fair_node){0};
    fair_node_weigh(n, weight);
}

void fair_node_weigh(struct fair_node *n, uint32_t weight)
{
    n->weight = MAX(1u, MIN(weight, (uint32_t)FAIR_WEIGHT_MAX));
}

/* Most nodes come either behind all others or, after a pause, before them. */
static void fair_insert(struct fair *f, struct fair_node *n)
{
    struct fair_node *at = TAILQ_FIRST(&f->list);

    assert(!n->listed);
    n->listed = true;
    if (at && later(at->time, n->time)) {
        TAILQ_INSERT_HEAD(&f->list, n, link);
        return;
    }
    for (at = TAILQ_LAST(&f->list, fair_list); at && later(at->time, n->time);)
        at = TAILQ_PREV(at, fair_list, link);
    if (at)
        TAILQ_INSERT_AFTER(&f->list, at, n, link);
    else
        TAILQ_INSERT_HEAD(&f->list, n, link);
}

/* @n sends again, or for the first time. A time that seems far ahead is an old one. */
static void fair_return(const struct fair *f, struct fair_node *n)
{
    assert(!n->listed);
    if (later(f->time, n->time + f->keep) || later(n->time, f->time + f->ahead))
        n->time = f->time;
}

void fair_enter(struct fair *f, struct fair_node *n)
{
    if (n->listed)
        return;
    fair_return(f, n);
    fair_insert(f, n);
}

void fair_leave(struct fair *f, struct fair_node *n)
{
    if (!n->listed)
        return;
    assert(!TAILQ_EMPTY(&f->list));
    TAILQ_REMOVE(&f->list, n, link);
    n->listed = false;
}

struct fair_node *fair_first(const struct fair *f)
{
    return TAILQ_FIRST(&f->list);
}

bool fair_may(const struct fair *f, const struct fair_node *n)
{
    const struct fair_node *first = fair_first(f);
    struct fair_node now = *n;

    if (!n->listed)
        fair_return(f, &now);
    return !first || !later(now.time, first->time);
}

void fair_charge(struct fair *f, struct fair_node *n, size_t bytes)
{
    const struct fair_node *first = fair_first(f);
    bool listed = n->listed;
    uint64_t begin;

    if (!listed)
        fair_return(f, n);
    /* a node that goes ahead of the first does not take the queue's time along */
    begin = first && later(n->time, first->time) ? first->time : n->time;
    if (later(begin, f->time))
        f->time = begin;
    fair_leave(f, n);
    n->time += span(n, bytes);
    assert(!n->listed);
    if (listed)
        fair_insert(f, n);
}

bool fair_modest(const struct fair *f, const struct fair_node *n, size_t bytes)
{
    return !later(n->time, f->time + span(n, bytes));
}
