/* seats.h - the table "ranks" as what ranks are doing: one seat for each row, and what it says. Of
 * `commctl why` and `commctl ops` alone; no I/O.
 *
 * A rank is stuck if it has waited for STUCK_MS, and completed no operation while it was watched.
 * Counters of operations wrap: is_late() compares. */
#ifndef COMMCTL_SEATS_H
#define COMMCTL_SEATS_H

#include "client/ctl/words.h"
#include "shm/proto/ranks_table.h"

enum { STUCK_MS = 500 };

#define SEAT_TEXT                       const char *
#define SEAT_NUMBER                     uint64_t
#define SEAT_COUNT                      uint32_t
#define SEAT_INDEX                      int64_t
#define SEAT_FLAG                       bool
#define SEAT_FIELD(key_, kind_, title_) SEAT_##kind_ key_;

/* A row of the table, a field for each column; strings are the table's. */
struct seat {
    RANKS_COLUMNS(SEAT_FIELD)
    bool joining; /* it waits in its join: for joining_ms */
    bool asleep, watched;
    bool ended;   /* its group has, whatever state it is looked at in */
    bool unready; /* the operation after `started` was called; its stream has not come to it */
    enum group_state group_state; /* this and the next: what words of the row say */
    enum process_state process_state;
    enum process_end end;
    enum cause cause_code;
    enum gpu_end gpu_end;
    bool sends;        /* the message that it waits in; false: it receives */
    bool gone_left;    /* who was gone first, as its node saw it, left; false: died, or nobody */
    unsigned number;   /* of its group: that of the group's first row */
    unsigned group_at; /* where its group begins in by_rank */
    const struct seat *sleeps_in; /* where its process sleeps longest; NULL: nowhere for long */
    const struct seat *gpu_in;    /* likewise, where its GPU waits */
    /* Of the same process in its largest group, which is the job: as that rank it is known outside.
     * One that has ended is the job only of those that have ended, too.
     * NULL: it is in no larger group. */
    const struct seat *world;
};

struct seats {
    struct seat *at;       /* owned */
    struct seat **by_rank; /* owned: group by group, each in the order of its ranks */
    unsigned n;
    struct seats *before; /* owned: as it was when all lived; NULL: no rank that waited has died */
};

/* For each row @s_ of @of_'s group, in the order of ranks. */
#define group_each(s_, seats_, of_)                                                                \
    for (const struct seat *const *                                                                \
             s_##_at = (const struct seat *const *)(seats_)->by_rank + (of_)->group_at,            \
            *s_;                                                                                   \
         s_##_at < (const struct seat *const *)(seats_)->by_rank + (seats_)->n &&                  \
         same_group(s_ = *s_##_at, of_);                                                           \
         s_##_at++)

/* *ret_seats is the caller's, to seats_free(). -ENOMEM; -EPROTO: the table lacks the column
 * *ret_key. */
int seats_read(const struct msg_table *t, struct seats *ret_seats, const char **ret_key);
void seats_free(struct seats *seats);

/* The ranks of @of's group for which @match holds, "0-2,5". What it costs matters: a user may have
 * thousands of ranks, each in another operation, and each has such a list. */
typedef bool seat_match_fn(const struct seat *s, const struct seat *than);
unsigned list_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char *buf, size_t len);

/* The same by their numbers in the job. 0: there are none, or they are the same numbers. */
unsigned list_world(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char *buf, size_t len);

/* ---- what a row says -------------------------------------------------------------------- */

static inline bool same_group(const struct seat *a, const struct seat *b)
{
    return a->number == b->number;
}

/* Pid 0 stands for any process that commd cannot see, in a pid namespace that is not below its own:
 * then only the same rank of the same group is known to be the same process. */
static inline bool same_process(const struct seat *a, const struct seat *b)
{
    if (!a->pid && (!same_group(a, b) || a->rank != b->rank))
        return false;
    return a->pid == b->pid && !strcmp(a->node, b->node);
}

/* -1: commd does not see the process. */
static inline int64_t seat_pid(const struct seat *s)
{
    return s->pid ? (int64_t)s->pid : -1;
}

static inline bool is(const char *text, const char *word)
{
    return !strcmp(text, word);
}

static inline bool is_stopped(const struct seat *s)
{
    return s->process_state == PROCESS_STOPPED || s->process_state == PROCESS_TRACED ||
           s->process_state == PROCESS_FROZEN;
}

static inline bool is_dead(const struct seat *s)
{
    return s->process_state == PROCESS_DIED;
}

static inline bool seat_left(const struct seat *s)
{
    return s->process_state == PROCESS_LEFT;
}

static inline bool is_running(const struct seat *s)
{
    return s->process_state == PROCESS_RUNNING;
}

static inline bool is_open(const struct seat *s)
{
    return s->group_state == GROUP_OPEN && s->rank >= 0;
}

/* Where the process of @s is blocked; NULL: nowhere that can be seen. A host that sleeps while its
 * GPU waits most likely waits for its GPU. */
static inline const struct seat *blocked_in(const struct seat *s)
{
    if (is_running(s))
        return NULL;
    return s->sleeps_in ? s->sleeps_in : s->gpu_in;
}

/* Has @s not begun the operation that @waiter is in? */
static inline bool is_late(const struct seat *s, const struct seat *waiter)
{
    return (int32_t)(s->started - waiter->started) < 0;
}

static inline bool in_operation(const struct seat *s)
{
    return s->started != s->ops;
}

static inline bool on_gpu(const struct seat *s)
{
    return (int32_t)(s->gpu_begun - s->gpu_ended) > 0;
}

static inline bool died_waiting(const struct seat *s)
{
    return is_dead(s) && ((in_operation(s) && s->asleep) || *s->message || on_gpu(s));
}

/* By a signal that people and launchers send to end a job. */
static inline bool was_ended(const struct seat *s)
{
    return is_dead(s) && s->end == END_TOLD;
}

static inline bool waits_in_operation(const struct seat *s)
{
    return is_open(s) && in_operation(s) && s->asleep && s->asleep_ms >= STUCK_MS && !s->done;
}

/* A rank that is stopped does not wait: what it slept in may have come long ago. */
static inline bool stuck_in_operation(const struct seat *s)
{
    return waits_in_operation(s) && !is_stopped(s);
}

/* Of use only where another rank has not begun the operation. */
static inline bool held_in_operation(const struct seat *s)
{
    return waits_in_operation(s) && is_stopped(s);
}

static inline bool stuck_in_message(const struct seat *s)
{
    return is_open(s) && !is_stopped(s) && *s->message && s->message_ms >= STUCK_MS;
}

/* It has begun to wait for a message only just now. */
static inline bool briefly_in_message(const struct seat *s)
{
    return is_open(s) && !is_stopped(s) && *s->message && s->message_ms < STUCK_MS;
}

/* Likewise in an operation, or it completes one after the other. */
static inline bool briefly_in_operation(const struct seat *s)
{
    return is_open(s) && !is_stopped(s) && in_operation(s) && s->asleep && !stuck_in_operation(s);
}

/* Its stream waits there, whatever the host does. */
static inline bool stuck_on_gpu(const struct seat *s)
{
    return is_open(s) && !is_stopped(s) && on_gpu(s) && s->gpu_ready && s->gpu_ms >= STUCK_MS &&
           !s->gpu_done;
}

/* How long its host waits. */
static inline uint64_t host_ms(const struct seat *s)
{
    uint64_t ms = stuck_in_operation(s) ? s->asleep_ms : 0;

    return stuck_in_message(s) ? MAX(ms, s->message_ms) : ms;
}

static inline uint64_t stuck_ms(const struct seat *s)
{
    return stuck_on_gpu(s) ? MAX(host_ms(s), s->gpu_ms) : host_ms(s);
}

/* What @s waits in is an operation by commd-gpu: what the host waits in comes first. */
static inline bool waits_on_gpu(const struct seat *s)
{
    return !host_ms(s) && stuck_on_gpu(s);
}

/* Has @s not announced what @waiter's GPU waits in? */
static inline bool gpu_late(const struct seat *s, const struct seat *waiter)
{
    return (int32_t)(s->gpu_begun - (waiter->gpu_ended + 1)) < 0;
}

/* It has, but its stream has not come to it. */
static inline bool gpu_unready(const struct seat *s, const struct seat *waiter)
{
    return !gpu_late(s, waiter) && (int32_t)(s->gpu_ended - (waiter->gpu_ended + 1)) < 0 &&
           (s->gpu_ended != waiter->gpu_ended || !s->gpu_ready);
}

static inline bool waits_like(const struct seat *s, const struct seat *than)
{
    return in_operation(s) && s->started == than->started;
}

/* How good an explanation @s is for others having to wait. */
static inline unsigned weight(const struct seat *s)
{
    if (is_dead(s))
        return 4;
    if (is_stopped(s))
        return 3;
    return blocked_in(s) ? 2 : 1;
}

static inline bool heavier(const struct seat *s, const struct seat *best)
{
    return !best || weight(s) > weight(best) || (weight(s) == weight(best) && s->rank < best->rank);
}

#endif
