/* fair.h - which sender is next where several want to send: start-time fair queueing (Goyal, Vin,
 * Cheng 1996). Pure.
 *
 * Each sender is a node of a queue, and has a time, which goes on with what it sends: by bytes
 * divided by its weight. A node that has something to send is listed, and the listed node with the
 * least time is next. So bytes follow the weights, whatever the sizes of the messages, to within a
 * message of each node. The queue has a time too: that of the last node that was next. A node that
 * comes back after a pause begins at the queue's time: a pause saves nothing up, and no node waits
 * for longer than the others take for one message each.
 *
 * A queue may forgive short pauses: a node that was away while those of usual weight sent no more
 * than @keep bytes goes on with its own time, before the others, until it has what it missed. So
 * jobs that do one operation after another keep their shares, though they have nothing to send in
 * between. Nothing is held back for a node that is away; one that was away for longer has missed
 * nothing. A node may have a queue of its own: a user has one of groups. */
#ifndef COMMD_FAIR_H
#define COMMD_FAIR_H

#undef NDEBUG /* what is asserted here is cheap: it holds in every build */
#include <assert.h>
#include <sys/queue.h>

#include "shm/util/base.h"
#include "shm/util/weight.h"

enum {
    FAIR_WEIGHT_MAX = USER_WEIGHT_MAX,
    FAIR_WEIGHT = USER_WEIGHT, /* unless told */
};

struct fair_node {
    TAILQ_ENTRY(fair_node) link; /* while listed */
    uint64_t time;               /* where it will go on */
    uint32_t weight;             /* 1 to FAIR_WEIGHT_MAX */
    bool listed;
};

struct fair {
    TAILQ_HEAD(fair_list, fair_node) list; /* by time; of equal ones in the order they came */
    uint64_t time, keep, ahead;
};

/* @keep: bytes; 0: no pause is forgiven. */
void fair_init(struct fair *f, size_t keep);
/* No message has more than @bytes (unless told 1 GiB); what is beyond may be forgotten. */
void fair_most(struct fair *f, uint64_t bytes);
void fair_node_init(struct fair_node *n, uint32_t weight);
void fair_node_weigh(struct fair_node *n, uint32_t weight); /* from now on */
/* @n has something to send. Does nothing if @n is listed already. */
void fair_enter(struct fair *f, struct fair_node *n);
/* @n has nothing to send any more. Does nothing if @n is not listed. */
void fair_leave(struct fair *f, struct fair_node *n);
/* The node that is next; NULL: none is listed. */
struct fair_node *fair_first(const struct fair *f);
/* Would no listed node come before @n, which may be listed or not? */
bool fair_may(const struct fair *f, const struct fair_node *n);
/* @n sends so many bytes; it may be listed or not, and next or not. */
void fair_charge(struct fair *f, struct fair_node *n, size_t bytes);
/* Has @n sent no more than @bytes beyond its share? */
bool fair_modest(const struct fair *f, const struct fair_node *n, size_t bytes);

#endif
