/* engine_op.h - what only the files of an operation share: engine_op.c, engine_check.c,
 * engine_data.c and engine_flow.c. Inline functions, because each operation calls them. */
#ifndef COMMD_ENGINE_OP_H
#define COMMD_ENGINE_OP_H

#include "shm/util/wait.h"
#include "transport/engine/engine_internal.h"

static inline void members_wake(const struct eboard *eb)
{
    bell_ring(&eb->b.hdr->bell, &eb->b.hdr->sleepers);
}

/* Moves `sent` towards `published` as far as no send reads the window. True if it has moved. */
static inline bool op_follow_sent(struct eboard *eb)
{
    uint32_t old = eb->sent;

    while (eb->sent != eb->published) {
        const struct estep *s = &eb->steps[eb->sent % PLAN_DEPTH_NET];

        if (s->g == eb->sent && s->sends)
            break;
        eb->sent++;
    }
    assert(seq_reached(eb->published, eb->sent));
    if (eb->sent != old)
        atomic_store_explicit(&eb->b.hdr->sent, eb->sent, memory_order_release);
    return eb->sent != old;
}

static inline void op_publish(struct eboard *eb, uint32_t upto)
{
    assert(seq_reached(upto, eb->published));
    eb->published = upto;
    eb->e->published = true;
    atomic_store_explicit(&eb->b.hdr->published, upto, memory_order_release);
    op_follow_sent(eb);
    members_wake(eb);
}

static inline bool members_announced(struct eboard *eb, uint32_t step)
{
    if (eb->seen_step != step) {
        eb->seen_step = step;
        eb->seen = 0;
    }
    while (eb->seen < eb->b.nlocal && board_arrived(&eb->b, eb->seen, step))
        eb->seen++;
    return eb->seen == eb->b.nlocal;
}

static inline bool members_reduced(const struct eboard *eb, uint32_t step)
{
    for (unsigned m = 0; m < eb->b.nlocal; m++)
        if (!seq_reached(atomic_load_explicit(&eb->b.members[m].reduced, memory_order_acquire),
                         step + 1))
            return false;
    return true;
}

/* Does the consistency check carry all of the current operation? */
static inline bool op_is_small(const struct eboard *eb)
{
    return eb->plan.path == PATH_SMALL;
}

/* The result window of step @c of the current operation. */
static inline uint8_t *result_at(const struct eboard *eb, uint32_t c)
{
    assert(c < eb->plan.steps);
    return board_result(&eb->b, eb->base + c, plan_result(&eb->plan, &eb->geom, c));
}

/* Where received bytes go that the engine does not reduce. */
static inline uint8_t *receive_at(const struct eboard *eb, uint32_t c)
{
    size_t len = plan_result(&eb->plan, &eb->geom, c);

    return plan_swaps(&eb->plan) ? board_theirs(&eb->b, eb->base + c, len) : result_at(eb, c);
}

static inline unsigned op_root_node(const struct eboard *eb)
{
    return coll_table[eb->plan.coll].rooted ? eb->rank_node[eb->plan.root] : 0;
}

static inline struct sched_move op_move(const struct eboard *eb, unsigned i)
{
    return sched_move(eb->plan.schedule, eb->geom.nnodes, eb->geom.me, op_root_node(eb), i);
}

static inline unsigned op_moves(const struct eboard *eb)
{
    return sched_len(eb->plan.schedule, eb->geom.nnodes, eb->geom.me, op_root_node(eb));
}

/* engine_op.c */
void eboard_set_state(struct eboard *eb, enum eboard_state state);
void op_done(struct eboard *eb, uint32_t steps); /* the next operation may begin */
void op_refuse(struct eboard *eb); /* ranks differ: members are told, all skip the operation */

/* engine_check.c: the consistency check, with a small payload */
size_t check_result_len(const struct eboard *eb); /* bytes of a small operation's result */
bool check_room(struct eboard *eb, size_t len); /* makes acc and tmp; false: the board was failed */
/* Copies the members' small payload into acc. False: the board was failed. */
bool check_gather(struct eboard *eb);
void check_differ(struct eboard *eb, uint32_t rank_a, const struct op_desc *a, uint32_t rank_b,
                  const struct op_desc *b); /* these two descriptions differ */
bool check_poll(struct eboard *eb);         /* true if something moved */

/* engine_data.c: the steps of a larger operation */
static inline bool data_starts_ahead(const struct eboard *eb)
{
    return !eb->bad && !op_is_small(eb) && eb->op > 0;
}
void data_start_ahead(struct eboard *eb);
bool data_poll(struct eboard *eb); /* true if something moved */

#endif
