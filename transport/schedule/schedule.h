/* schedule.h - which node sends what to whom, in which order. Pure functions: no clock, no
 * I/O, no allocation. The plan of an operation says which schedule it takes (shm/model/plan.h).
 *
 * A schedule is a list of moves for one node. Data are divided into @nodes segments, in node
 * order (a broadcast has one segment). In each move the node may send a run of segments to one
 * node and receive a run from one node. Each message carries the index of the move in which it was
 * sent; the receiver compares it with recv_tag. A move may start once the receive of the move
 * before it has been applied. In an independent schedule (sched_independent) all sends may start at
 * once; there data are divided by sender and receiver: send_lo is the node that the data are for,
 * recv_lo the node that they are from. */
#ifndef COMMD_SCHEDULE_H
#define COMMD_SCHEDULE_H

#undef NDEBUG /* what is asserted here is cheap: it holds in every build */
#include <assert.h>

#include "shm/model/sched.h"
#include "shm/util/base.h"

enum sched_act { SCHED_STORE, SCHED_REDUCE };

struct sched_move {
    int16_t to;               /* node to send to, -1: none */
    int16_t from;             /* node to receive from, -1: none */
    uint16_t send_lo, send_n; /* run of segments; send_n may be 0: an empty message is sent */
    uint16_t recv_lo, recv_n;
    uint16_t recv_tag;   /* index of the matching move in the sender's list */
    uint8_t act;         /* enum sched_act: what to do with the received run */
    uint8_t recv_first;  /* REDUCE: received value is the left operand (lower nodes first) */
    uint8_t last_reduce; /* REDUCE: after this the run holds all contributions (finish avg) */
};

enum { SCHED_MAX_NODES = 1024, SCHED_MAX_MOVES = 2 * SCHED_MAX_NODES + 4 };

/* Number of moves of node @me, at most SCHED_MAX_MOVES. */
unsigned sched_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root);
/* Move @i of node @me. */
struct sched_move sched_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                             unsigned i);
bool sched_independent(enum sched_kind kind);
/* Can a node end its moves before all others have begun theirs? If not, it has received something
 * of every other node by then, directly or not. (An exchange: if no message of it is empty.) */
bool sched_one_way(enum sched_kind kind);

#endif
