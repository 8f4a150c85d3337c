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

/* Adds to @mv a send of the @n segments from @lo on. */
static inline void sched_sends(struct sched_move *mv, unsigned to, unsigned lo, unsigned n)
{
    mv->to = (int16_t)to;
    mv->send_lo = (uint16_t)lo;
    mv->send_n = (uint16_t)n;
}

static inline void sched_receives(struct sched_move *mv, unsigned from, unsigned lo, unsigned n,
                                  unsigned tag)
{
    mv->from = (int16_t)from;
    mv->recv_lo = (uint16_t)lo;
    mv->recv_n = (uint16_t)n;
    mv->recv_tag = (uint16_t)tag;
}

#endif
