/* wait.c - spin -> yield -> futex.
 *
 * The sleep handshake is Dekker's: the sleeper stores "I sleep" and then loads the condition;
 * the waker stores the condition and then loads "does anybody sleep". On x86 and everywhere
 * else a store may be delayed past a later load, so without a full fence between the two on
 * BOTH sides each can miss the other's store, and the sleeper sleeps for ever (measured: 107
 * lost wake-ups in 298,221 sleeps without, none in 299,999 with). The sleeper's fence is the
 * seq_cst increment in bell_prepare(), the waker's the fence in bell_ring().
 *
 * The bell word makes the sleep itself safe: it is read before the condition is checked again,
 * and futex(2) compares it under its lock, so a ring in between makes the wait return at once.
 * A sleeper killed in its sleep leaves `sleepers` raised for ever: the price is a superfluous
 * wake call per ring, never a lost one.
 *
 * Who waits on a core that the other one needs delays it by a scheduler's slice; who waits on
 * another core and gives that away loses a slice of its own to whatever else wants to run there. So
 * it has to be known which of the two it is: every member says on the board which core it runs on
 * (board_shares_core()). It yields while another member was seen on its core, and spins otherwise,
 * busy processes beside it or not: they get the core when its slice ends, as they would if it
 * computed. Spinning also keeps it where it is: who sleeps often is light, and is put beside
 * another one who is. With a process that never sleeps on each of two cores, 256 KB between two
 * ranks took 62 us when that was guessed from how long yields took, and 18 so.
 *
 * Who waits for an engine always yields: the kernel does part of its work, on any core, and the
 * network takes longer than a yield does.
 *
 * Yielding is for waiters among themselves: each gives the core on within a microsecond. Beside
 * a process that computes, a yield gives it the core for a whole slice (0.7 to 3 ms), and the
 * message that arrives meanwhile waits. A sleeper, in contrast, is put before it when it is
 * woken, because it has used less than its share. So a yield that took long switches the waiter
 * to sleeping (struct crowd): for the rest of this wait at first, for it may have met a timer's
 * work, a host that took the core away, or a member that was late because it computed, as it
 * should; for twice as many waits each time that the next one meets work again, so that in the end
 * one in 4096 pays for a slice. Each wait that meets none halves that: with one taken back for
 * each, an engine that met work in one wait of five hundred slept in all of them.
 *
 * Who lost a whole slice sleeps for as long, however its other waits went, and for twice as long
 * each time that the next slice is lost before yielding has saved as much as the last one cost: up
 * to a tenth of a second, for where every second chunk of a gradient met the backward pass of a
 * rank, half of them would have cost 3 ms. A tenth of a second from the first on was too much: some
 * process of the system takes a slice a few times each second, and a sixth of all waits were slept.
 */
#include "shm/util/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* Layout of struct futex_waitv (linux/futex.h, 5.16), which older headers lack. */
struct waitv {
    uint64_t val;
    uint64_t uaddr;
    uint32_t flags;
    uint32_t reserved;
};
enum {
    WAITV_U32 = 2,
    WAITV_MAX = 128,
    CROWDED_NS = 500000, /* of few who share a core, a slice takes longer: wait_crowded_ns() */
    CROWDED_MOST_NS = 2000000, /* slices end */
    SWITCHED_NS =
        1000, /* a yield that finds nobody takes 300 to 930, one that switches 1000 to 5000 */
    SLICE_NS = 1000000,
    GOOD_NS = 30000,      /* less than sleeping and being woken costs, where somebody computes */
    GOOD_YIELDS = 256,    /* which have saved as much as a slice costs */
    PENALTY_NS = 4000000, /* as long as a slice */
    PENALTY_MOST_NS = 100000000, /* a slice of 3 ms in so much time: 3 % */
};

_Atomic uint64_t wakeups_rescued;

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ms(void)
{
    return now_ns() / 1000000u;
}

void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void bell_ring_slow(_Atomic uint32_t *bell)
{
    atomic_fetch_add(bell, 1);
    futex_wake_all(bell);
}

uint32_t bell_prepare(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers)
{
    atomic_fetch_add(sleepers, 1); /* seq_cst: the sleeper's fence */
    return atomic_load(bell);
}

void bell_cancel(_Atomic uint32_t *sleepers)
{
    atomic_fetch_sub(sleepers, 1);
}

bool bell_wait(_Atomic uint32_t *bell, uint32_t ticket, int timeout_ms)
{
    struct timespec ts = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};

    return syscall(SYS_futex, bell, FUTEX_WAIT, ticket, &ts, NULL, 0) < 0 && errno == ETIMEDOUT;
}

void bell_sleep(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers, uint32_t ticket, int timeout_ms)
{
    bell_wait(bell, ticket, timeout_ms);
    atomic_fetch_sub(sleepers, 1);
}

bool futex_wait_any(_Atomic uint32_t *const *words, const uint32_t *expected, unsigned n,
                    int timeout_ms)
{
    struct waitv w[WAITV_MAX] = {0};
    struct timespec ts;
    uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000u;
    bool all = n <= WAITV_MAX;

    n = MIN(n, (unsigned)WAITV_MAX);
    for (unsigned i = 0; i < n; i++) {
        w[i].uaddr = (uintptr_t)words[i];
        w[i].val = expected[i];
        w[i].flags = WAITV_U32;
    }
    if (!all) /* words beyond the kernel's limit are polled */
        until = now_ns() + 1000000u;
    ts.tv_sec = (time_t)(until / 1000000000u);
    ts.tv_nsec = (long)(until % 1000000000u);
    if (syscall(SYS_futex_waitv, w, n, 0, &ts, CLOCK_MONOTONIC) >= 0)
        return false;
    if (errno == ENOSYS || errno == EPERM) {
        struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
    return errno == ETIMEDOUT && all;
}

static void slice_lost(struct crowd *c, uint64_t now)
{
    if (c->good < GOOD_YIELDS && c->penalty_ns)
        c->penalty_ns = MIN(2 * c->penalty_ns, (uint64_t)PENALTY_MOST_NS);
    else
        c->penalty_ns = PENALTY_NS;
    c->good = 0;
    c->until_ns = now + c->penalty_ns;
}

bool crowd_yielded(struct crowd *c, unsigned crowded_ns, uint64_t begin, uint64_t took)
{
    if (took > crowded_ns) {
        crowd_met(c);
        if (took > SLICE_NS)
            slice_lost(c, begin + took);
        return true;
    }
    c->good += took > SWITCHED_NS && took < GOOD_NS && c->good < GOOD_YIELDS;
    return false;
}

bool yield_core(unsigned crowded_ns, struct crowd *c)
{
    uint64_t begin = now_ns();

    sched_yield();
    return crowd_yielded(c, crowded_ns, begin, now_ns() - begin);
}

unsigned wait_cores(void)
{
    static _Atomic unsigned cached;
    unsigned cores = atomic_load_explicit(&cached, memory_order_relaxed);

    if (cores == 0) {
        cpu_set_t set;
        cores = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
        atomic_store_explicit(&cached, cores, memory_order_relaxed);
    }
    return cores;
}

/* Who shares a core with more waiters gets it back later: each does something with the data before
 * it yields again. 8 ranks on 2 cores took one another for busy processes and slept, and every
 * announcement woke all of them: 4 KB 187 us, 17 without. Nor is one who moves eight chunks at once
 * a busy process: two nodes with two ranks each on two cores took 2.6 ms for 2 MB with a limit of
 * 200 us, 2.3 with this. */
unsigned wait_crowded_ns(unsigned runnable)
{
    unsigned cores = wait_cores(), turns = runnable / cores + (runnable % cores != 0);

    return turns < CROWDED_MOST_NS / CROWDED_NS ? MAX(turns, 1u) * CROWDED_NS : CROWDED_MOST_NS;
}
