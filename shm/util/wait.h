/* wait.h - how a process waits for words in shared memory: spin, yield, sleep. The model
 * is in wait.c, the argument for the fences under "Memory order" in shm/board/board.c. */
#ifndef COMMD_WAIT_H
#define COMMD_WAIT_H

#include <sched.h>
#include <stdatomic.h>

#include "shm/util/base.h"

/* A bell: sleepers futex-wait on @bell; whoever changes a word that someone may wait for
 * calls bell_ring() afterwards. */
void bell_ring_slow(_Atomic uint32_t *bell);

/* After the store that others may wait for, and a seq_cst fence. */
static inline void bell_ring_fenced(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
    if (unlikely(atomic_load_explicit(sleepers, memory_order_relaxed)))
        bell_ring_slow(bell);
}

/* After the store that others may wait for. */
static inline void bell_ring(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
    atomic_thread_fence(memory_order_seq_cst); /* store before load: see board.c */
    bell_ring_fenced(bell, sleepers);
}

/* Sleep protocol: t = bell_prepare(); check the condition again; then bell_sleep(t) or
 * bell_cancel(). bell_sleep returns on a ring, a signal, or after @timeout_ms. */
uint32_t bell_prepare(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers);
void bell_cancel(_Atomic uint32_t *sleepers);
/* The first half of bell_sleep(): the sleeper stays announced. True: all of the time has passed. */
bool bell_wait(_Atomic uint32_t *bell, uint32_t ticket, int timeout_ms);
void bell_sleep(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers, uint32_t ticket,
                int timeout_ms);

/* Sleeps until one of the @n words differs from its expected value (futex_waitv, Linux 5.16;
 * elsewhere a sleep of at most 1 ms). True: all of the time has passed. */
bool futex_wait_any(_Atomic uint32_t *const *words, const uint32_t *expected, unsigned n,
                    int64_t timeout_us);
/* Has it found that there is no futex_waitv(2), as in containers whose filter of system calls does
 * not know it? Then no ring ends its sleep, and who can had better yield. */
bool futex_any_is_blind(void);
void futex_wake_all(_Atomic uint32_t *word);

/* Sleeps of this process that ended by their time-out alone, though what they waited for had come:
 * nobody rang. Sleeps are short, so that a lost wake-up costs some of them 50 ms and nobody hangs;
 * but there must be none, and tests demand it. */
extern _Atomic uint64_t wakeups_rescued;

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Who has waited for so long for others is told of, however usual that is in its job: by the rank
 * itself (COMMD_WARN_AFTER, unless it says otherwise), and by commctl why. */
enum { WAIT_LONG_MS = 30000 };

uint64_t now_ms(void);
uint64_t now_ns(void);

/* The number of the core that the caller runs on, and 1; 0: the system does not tell. No system
 * call. */
static inline uint32_t core_now(void)
{
    return (uint32_t)(sched_getcpu() + 1);
}

/* Polls before a sleep. A poll and a pause take 30 to 70 ns: spins that cover what ranks differ by
 * within an operation, and are worth a sleep and its wake-up many times over. A yield that finds
 * nobody takes 0.3 to 0.9 us. */
enum {
    WAIT_SPINS = 4000, /* with a pause between, if nobody who is waited for needs this core */
    WAIT_YIELDS = 400, /* with sched_yield between, if somebody may */
    BOTH_YIELDS = 16,  /* the same, if an engine does: see wait.c */
};
unsigned wait_cores(void); /* on which this process may run */
/* A yield that takes longer has met work of its own; of @runnable processes that may all want a
 * core. */
unsigned wait_crowded_ns(unsigned runnable);

/* In how many of the next waits to sleep at once, and in how many when that happens again. */
struct backoff {
    unsigned left, step;
};

/* What a waiter has learned from its yields about the others on its core. All zero at first. */
struct crowd {
    struct backoff work;   /* because a yield met work */
    struct backoff engine; /* because yields did not bring the engine's answer */
    unsigned good; /* yields since the last lost slice that went to a waiter and came back soon */
    uint64_t until_ns;   /* sleeps at once until then, because a whole slice was lost */
    uint64_t penalty_ns; /* for how long the last time */
};
enum { CROWD_MOST = 4096 };

/* Sleep rather than yield? */
static inline bool crowd_here(const struct crowd *c)
{
    return unlikely(c->work.left) || unlikely(c->until_ns);
}

static inline void backoff_next(struct backoff *b)
{
    if (unlikely(b->left))
        b->left--;
    else if (unlikely(b->step))
        b->step /= 2;
}

static inline void backoff_more(struct backoff *b)
{
    b->left = b->step ? b->step : 1;
    b->step = MIN(2 * b->left, (unsigned)CROWD_MOST);
}

/* A new wait begins. */
static inline void crowd_next(struct crowd *c)
{
    if (unlikely(c->until_ns) && now_ns() >= c->until_ns)
        c->until_ns = 0;
    backoff_next(&c->work);
}

/* The same for an operation that may come to WAIT_FOR_ANSWER. Others say nothing of how soon an
 * engine answers, so they do not count: a barrier between large operations would yield in vain. */
static inline void crowd_next_answer(struct crowd *c)
{
    backoff_next(&c->engine);
}

static inline void crowd_met(struct crowd *c)
{
    backoff_more(&c->work);
}

/* The yields of WAIT_FOR_ANSWER are over: who sleeps now has not got it by them. */
static inline void crowd_unanswered(struct crowd *c)
{
    if (!c->engine.left)
        backoff_more(&c->engine);
}

/* A yield of @took ns began at @begin. True: it met work of its own. */
bool crowd_yielded(struct crowd *c, unsigned crowded_ns, uint64_t begin, uint64_t took);
/* Offers the core to others; the same. */
bool yield_core(unsigned crowded_ns, struct crowd *c);

/* Waiters that yield to each other on one core while there is one for each. The kernel leaves them
 * there as long as both have just run, though another core is idle. So one of them leaves. */
struct apart {
    uint64_t since_ns; /* it shares its core; 0: it does not */
    uint64_t last_ns;  /* when that was seen last */
    uint64_t next_ns;  /* not before then again */
    uint64_t pause_ns;
};
/* It yields or sleeps at @now, and shares its core if @shares. True: it should leave. */
bool apart_due(struct apart *a, uint64_t now, bool shares);
/* The caller's thread goes to one of its cores that is not in @taken, n numbers as of core_now(),
 * by the same last-level cache if there is one, and may run where it could before. False: it has
 * none. */
bool core_leave(_Atomic uint32_t *taken, unsigned n);

/* Who is waited for. */
enum wait_for {
    WAIT_FOR_OTHERS, /* only processes on other cores */
    WAIT_FOR_HERE,   /* somebody may have to run on this core */
    WAIT_FOR_ENGINE, /* the engine alone, and it runs on this core */
    WAIT_FOR_ANSWER, /* the same, of several ranks here, whose small operation it soon has done */
    WAIT_FOR_BOTH,   /* other ranks, perhaps, and the engine, which runs on this core */
};

/* What to do after the @idle-th poll in a row that found nothing, if @spins of them fit into a
 * wait. */
enum wait_way { WAIT_SPIN, WAIT_YIELD, WAIT_SLEEP };
static inline enum wait_way wait_way(const struct crowd *c, enum wait_for who, unsigned idle,
                                     unsigned spins)
{
    unsigned yields = 0;

    switch (who) {
    case WAIT_FOR_OTHERS:
        return idle < spins ? WAIT_SPIN : WAIT_SLEEP;
    case WAIT_FOR_HERE:
        yields = WAIT_YIELDS;
        break;
    case WAIT_FOR_BOTH:
        yields = BOTH_YIELDS;
        break;
    case WAIT_FOR_ANSWER:
        yields = c->engine.left ? 0 : BOTH_YIELDS;
        break;
    case WAIT_FOR_ENGINE:
        break;
    }
    return idle < yields && !crowd_here(c) ? WAIT_YIELD : WAIT_SLEEP;
}

#endif
