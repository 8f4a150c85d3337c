/* schedule_priv.h - the families behind schedule.c, which has checked their arguments. */
#ifndef COMMD_SCHEDULE_PRIV_H
#define COMMD_SCHEDULE_PRIV_H

#include "transport/schedule/schedule.h"

unsigned sched_rd_len(enum sched_kind kind, unsigned nodes, unsigned me);
struct sched_move sched_rd_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                                unsigned i);
unsigned sched_ring_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root);
struct sched_move sched_ring_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                                  unsigned i);

unsigned sched_direct_len(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root);
struct sched_move sched_direct_move(enum sched_kind kind, unsigned nodes, unsigned me,
                                    unsigned root, unsigned i);

static inline struct sched_move sched_no_move(void)
{
    return (struct sched_move){.to = -1, .from = -1, .act = SCHED_STORE};
}

#endif
