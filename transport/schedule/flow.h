/* flow.h - how far a node that sends may be ahead of the node that receives, in one operation of a
 * group. Pure.
 *
 * In most schedules no node gets far ahead: to end a step it needs something of every other node.
 * Where data go one way only (sched_one_way()) nothing comes back, and a receiver that is slow has
 * to slow its sender down. So it says how many steps it is through with (it has passed them), and
 * the sender has credit for FLOW_CREDIT steps beyond that.
 *
 * Why nobody waits for ever: look at the first step that not all nodes are through with. All nodes
 * have passed the steps before it, and have said so of all but the last FLOW_TELL - 1 of them. So
 * every node may send in this step. A message that says so waits for nothing itself.
 *
 * No credit goes from one operation to the next. The consistency check is a round of all nodes: a
 * node that is through with the check of an operation knows that all others are through with the
 * operation before. So a node begins an operation with all of its credit; and before the check has
 * ended it sends of the first FLOW_AHEAD steps at most. Each group has credits of its own: if its
 * receiver stands still, no other group is held up.
 *
 * The receiver checks what comes by the same numbers (flow_may_come()). It knows better than the
 * sender what it has passed, so a sender that keeps the rule is never refused. */
#ifndef COMMD_FLOW_H
#define COMMD_FLOW_H

#undef NDEBUG /* what is asserted here is cheap: it holds in every build */
#include <assert.h>

#include "shm/util/base.h"

enum {
    /* Steps; of PLAN_MESSAGE bytes mostly, so 4 MiB. The receiver has begun 8 of them, and passed 8
     * without having told so yet; the rest fills a link of 400 Gbit/s with 40 us to and fro. */
    FLOW_CREDIT = 32,
    FLOW_TELL = 8,  /* the receiver tells each time it has passed so many more */
    FLOW_AHEAD = 8, /* of the next operation: as many as a board has slots, PLAN_DEPTH_NET */
};

/* May a message of step @c go to a node that has said that it has passed @passed? */
bool flow_may_send(uint32_t c, uint32_t passed);
/* The receiver has passed @now steps of the @steps that it has, and @before when it looked last: is
 * that to be told? Not if the sender may send all of the rest anyhow. */
bool flow_tells(uint32_t before, uint32_t now, uint32_t steps);
/* May a message of step @c of operation @op come to a node that is at operation @mine, and has
 * passed @passed steps of it? */
bool flow_may_come(uint32_t op, uint32_t c, uint32_t mine, uint32_t passed);
/* May the consistency check of operation @op come to a node that is at operation @mine? */
bool flow_check_may_come(uint32_t op, uint32_t mine);

#endif
