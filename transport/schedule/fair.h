/* fair.h - who is next where several want to send: start-time fair queueing (Goyal, Vin, Cheng
 * 1996). Pure.
 *
 * Each who sends (a node of the queue) has a time of its own, which goes on with what it sends: by
 * bytes divided by its weight. Who has something to send stands in the queue, and the one with the
 * least time is next; so bytes follow the weights, whatever the sizes of the messages, to within a
 * message of each. The queue has a time too: that of the last who was first. Who comes back after a
 * pause begins there: a pause saves nothing up, and nobody waits for longer than the others take
 * for one message each.
 *
 * A queue may forgive short pauses: who was away while those of usual weight sent no more than
 * @keep bytes goes on with its own time, before the others, until it has what it missed. So jobs
 * that do one operation after another keep their shares, though they have nothing to send in
 * between. Nothing is held back for who is away, and who was away for longer has missed nothing.
 *
 * Levels: what stands in the queue may have a queue of its own, of groups in a user. */
#ifndef COMMD_FAIR_H
#define COMMD_FAIR_H

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
/* So much is sent at a time at most, instead of 1 GiB; what is beyond that may be forgotten. */
void fair_most(struct fair *f, uint64_t bytes);
void fair_node_init(struct fair_node *n, uint32_t weight);
void fair_node_weigh(struct fair_node *n, uint32_t weight); /* from now on */
/* It has something to send. Nothing, if it is listed already. */
void fair_enter(struct fair *f, struct fair_node *n);
/* It has nothing to send any more. Nothing, if it is not listed. */
void fair_leave(struct fair *f, struct fair_node *n);
/* Who is next; NULL: nobody. */
struct fair_node *fair_first(const struct fair *f);
/* Does nobody who stands in the queue come before it, listed or not? */
bool fair_may(const struct fair *f, const struct fair_node *n);
/* It sends so many bytes, being the first or not, listed or not. */
void fair_charge(struct fair *f, struct fair_node *n, size_t bytes);
/* Has it sent no more than @bytes beyond its share? One who sends little always has. */
bool fair_modest(const struct fair *f, const struct fair_node *n, size_t bytes);

#endif
