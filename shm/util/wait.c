/* wait.c - spin -> yield -> futex.
 *
 * No wake-up is lost: see "Memory order" in shm/board/board.c. The bell word makes the sleep itself
 * safe: it is read before the condition is checked again, and futex(2) compares it under its lock,
 * so a ring in between makes the wait return at once. A sleeper killed in its sleep leaves
 * `sleepers` raised for ever: the price is a superfluous wake call per ring, never a lost one.
 *
 * Spin or yield. A waiter on a core that the awaited member needs delays that member by a
 * scheduler's slice; a waiter that gives away a core which no member needs loses a slice of its
 * own. So every member says on the board which core it runs on (board_shares_core()). It yields
 * while another member was seen on its core, and spins otherwise, also beside busy processes.
 *
 * An engine on another core is waited for by yields: the kernel does part of the engine's work, on
 * any core. An engine on the waiter's own core does not get that core by a yield: the scheduler
 * gives each user or session its share, and a rank that yields gets the core back until its share
 * is spent. So a rank sleeps
 *
 *   - at once when nobody but the engine is missing;
 *   - after a few yields when other ranks of its node may have to run as well: two ranks that yield
 *     to each other would spend the share of both before the engine has its turn;
 *   - for the answer to a small operation, after the same few yields, as long as they bring it; if
 *     they did not bring the last ones, at once.
 *
 * Yield or sleep. Waiters that yield give each other the core within a microsecond. Beside a busy
 * process a yield gives the core away for a whole slice (0.7 to 3 ms); a sleeper is put before that
 * process when it is woken. So a yield that took long switches the waiter to sleeping (struct
 * crowd):
 *
 *   - for the rest of this wait;
 *   - for twice as many waits each time that the next one meets work again, up to CROWD_MOST. Each
 *     wait that meets none halves the number;
 *   - after a whole slice was lost: for PENALTY_NS, however other waits went. For twice as long
 *     each time that the next slice is lost before yields have saved what the last one cost, up to
 *     PENALTY_MOST_NS.
 *
 * Part. The kernel moves a process that waits for a core to one that is idle, but not if it has
 * just run there. So two waiters that yield to each other stay on one core, once a foreign process
 * has brought them together: 8 B took 2.0 us instead of 0.4 for whole tenths of a second. One of
 * them leaves (struct apart, core_leave()): by its own affinity, which is afterwards what it was.
 */
#include "shm/util/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include "shm/util/topology.h"

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
    /* A yield that finds nobody takes 300 to 930, one that switches 1000 to 5000. */
    SWITCHED_NS = 1000,
    SLICE_NS = 1000000,
    GOOD_NS = 30000,      /* less than sleeping and being woken costs, where somebody computes */
    GOOD_YIELDS = 256,    /* which have saved as much as a slice costs */
    PENALTY_NS = 4000000, /* as long as a slice */
    APART_AFTER_NS = 1000000, /* two on one core for so long: they do not part by themselves */
    APART_GAP_NS = 1000000,
    APART_NS = 10000000, /* before the next try, doubled while they meet again at once */
    APART_MOST_NS = 80000000,
    PENALTY_MOST_NS = 100000000, /* a slice of 3 ms in so much time: 3 % */
};

_Atomic uint64_t wakeups_rescued;
static _Atomic bool any_is_blind;

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

bool futex_any_is_blind(void)
{
    return atomic_load_explicit(&any_is_blind, memory_order_relaxed);
}

bool futex_wait_any(_Atomic uint32_t *const *words, const uint32_t *expected, unsigned n,
                    int64_t timeout_us)
{
    struct waitv w[WAITV_MAX] = {0};
    struct timespec ts;
    uint64_t until = now_ns() + (uint64_t)timeout_us * 1000u;
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
        struct timespec most = {0, (long)MIN(timeout_us * 1000, (int64_t)1000000)};

        atomic_store_explicit(&any_is_blind, true, memory_order_relaxed);
        nanosleep(&most, NULL);
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

bool apart_due(struct apart *a, uint64_t now, bool shares)
{
    bool on = shares && a->since_ns && now - a->last_ns < APART_GAP_NS;

    a->last_ns = now;
    if (!on)
        a->since_ns = shares ? now : 0;
    if (!on || now - a->since_ns < APART_AFTER_NS || now < a->next_ns)
        return false;
    a->pause_ns = a->pause_ns && now - a->next_ns < a->pause_ns
                      ? MIN(2 * a->pause_ns, (uint64_t)APART_MOST_NS)
                      : APART_NS;
    a->next_ns = now + a->pause_ns;
    a->since_ns = 0;
    return true;
}

bool core_leave(_Atomic uint32_t *taken, unsigned n)
{
    cpu_set_t may, free;

    if (sched_getaffinity(0, sizeof may, &may))
        return false;
    free = may;
    for (unsigned i = 0; i < n; i++) {
        uint32_t core = atomic_load_explicit(&taken[i], memory_order_relaxed);

        if (core && core <= CPU_SETSIZE)
            CPU_CLR(core - 1, &free);
    }
    if (!CPU_COUNT(&free))
        return false;
    topology_keep_near("/sys/devices/system", sched_getcpu(), &free);
    if (sched_setaffinity(0, sizeof free, &free))
        return false;
    /* A mask of all is as good as none, where the cpuset alone said where it may run: then it may
     * still run wherever that says later. */
    memset(&free, 0xff, sizeof free);
    if (sched_setaffinity(0, sizeof free, &free) || sched_getaffinity(0, sizeof free, &free) ||
        !CPU_EQUAL(&free, &may))
        sched_setaffinity(0, sizeof may, &may);
    return true;
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

/* A waiter that shares a core with more waiters gets it back later: each does something with the
 * data before it yields again. Ranks that take one another for busy processes sleep, and every
 * announcement wakes all of them (8 ranks on 2 cores, 4 KB: 187 us instead of 17). */
unsigned wait_crowded_ns(unsigned runnable)
{
    unsigned cores = wait_cores(), turns = runnable / cores + (runnable % cores != 0);

    return turns < CROWDED_MOST_NS / CROWDED_NS ? MAX(turns, 1u) * CROWDED_NS : CROWDED_MOST_NS;
}
