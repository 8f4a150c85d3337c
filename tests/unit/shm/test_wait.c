/* test_wait.c - when a waiter goes over from yielding to sleeping, and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/board/mail.h"
#include "shm/util/wait.h"

/* Waits until the next one that yields. */
static unsigned asleep(struct crowd *c)
{
    unsigned n = 0;

    while (c->work.left) {
        n++;
        crowd_next(c);
    }
    return n;
}

static void one_long_yield_is_forgotten_with_its_wait(void **state)
{
    struct crowd c = {0};

    crowd_next(&c);
    crowd_met(&c);
    assert_int_equal(asleep(&c), 1);
}

/* Every second wait of ranks that compute between two collectives meets the others' computing. */
static void now_and_then_is_no_crowd(void **state)
{
    struct crowd c = {0};

    for (unsigned i = 0; i < 100; i++) {
        crowd_next(&c);
        crowd_met(&c);
        assert_in_range(asleep(&c), 1, 2);
        crowd_next(&c);
    }
}

static void who_never_leaves_is_seldom_asked(void **state)
{
    struct crowd c = {0};

    for (unsigned waits = 1; waits < CROWD_MOST; waits *= 2) {
        crowd_met(&c);
        assert_int_equal(asleep(&c), waits);
    }
    for (unsigned i = 0; i < 10; i++) {
        crowd_met(&c);
        assert_int_equal(asleep(&c), CROWD_MOST);
    }
    for (unsigned i = 0; i < 13; i++) /* gone */
        crowd_next(&c);
    crowd_met(&c);
    assert_int_equal(asleep(&c), 1);
}

/* One wait of twenty meets work: in the others yielding is the better way. */
static void seldom_is_no_crowd(void **state)
{
    struct crowd c = {0};
    unsigned slept = 0;

    for (unsigned i = 0; i < 20000; i++) {
        crowd_next(&c);
        slept += c.work.left > 0;
        if (i % 20 == 0 && !c.work.left)
            crowd_met(&c);
    }
    assert_in_range(slept, 0, 20000 / 20);
}

enum { CROWDED = 200000, SLICE = 3000000, MS = 1000000 };

/* For how long it sleeps after a slice was lost, in ms. */
static unsigned penalty(struct crowd *c)
{
    crowd_yielded(c, CROWDED, 0, SLICE);
    return (unsigned)((c->until_ns - SLICE) / MS);
}

static void good_yields(struct crowd *c, unsigned n)
{
    while (n--)
        assert_false(crowd_yielded(c, CROWDED, 0, 10000));
}

static void a_lost_slice_is_remembered(void **state)
{
    struct crowd c = {0};

    assert_false(crowd_here(&c));
    c.until_ns = now_ns() + 1000000000;
    for (unsigned i = 0; i < 100; i++)
        crowd_next(&c);
    assert_true(crowd_here(&c));
    c.until_ns = now_ns() - 1;
    crowd_next(&c);
    assert_false(crowd_here(&c));
}

/* A process of the system wants a slice now and then. */
static void slices_far_apart_do_not_add_up(void **state)
{
    struct crowd c = {0};

    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(penalty(&c), 4);
        good_yields(&c, 300);
    }
}

/* Members that copy between two announcements. */
static void slow_yields_save_nothing(void **state)
{
    struct crowd c = {0};

    assert_int_equal(penalty(&c), 4);
    for (unsigned i = 0; i < 1000; i++)
        crowd_yielded(&c, CROWDED, 0, 100000);
    assert_int_equal(penalty(&c), 8);
}

static void yields_that_find_nobody_save_nothing(void **state)
{
    struct crowd c = {0};

    assert_int_equal(penalty(&c), 4);
    for (unsigned i = 0; i < 1000; i++)
        assert_false(crowd_yielded(&c, CROWDED, 0, 900));
    assert_int_equal(penalty(&c), 8);
}

static void who_takes_slice_after_slice_gets_few(void **state)
{
    struct crowd c = {0};

    assert_int_equal(penalty(&c), 4);
    for (unsigned ms = 8; ms < 100; ms *= 2) {
        good_yields(&c, 10);
        assert_int_equal(penalty(&c), ms);
    }
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(penalty(&c), 100);
    good_yields(&c, 300); /* gone */
    assert_int_equal(penalty(&c), 4);
}

/* Who is waited for has a core of its own: busy processes that want this one do not end the
 * spinning. */
static void who_is_needed_elsewhere_is_waited_for_by_spinning(void **state)
{
    struct crowd c = {0};

    assert_int_equal(wait_way(&c, WAIT_FOR_OTHERS, 1, WAIT_SPINS), WAIT_SPIN);
    crowd_met(&c);
    c.until_ns = UINT64_MAX;
    assert_int_equal(wait_way(&c, WAIT_FOR_OTHERS, WAIT_SPINS - 1, WAIT_SPINS), WAIT_SPIN);
    assert_int_equal(wait_way(&c, WAIT_FOR_OTHERS, WAIT_SPINS, WAIT_SPINS), WAIT_SLEEP);
}

static void who_is_needed_here_is_let_in_at_once(void **state)
{
    struct crowd c = {0};

    assert_int_equal(wait_way(&c, WAIT_FOR_HERE, 1, WAIT_SPINS), WAIT_YIELD);
    assert_int_equal(wait_way(&c, WAIT_FOR_HERE, WAIT_YIELDS - 1, WAIT_SPINS), WAIT_YIELD);
    assert_int_equal(wait_way(&c, WAIT_FOR_HERE, WAIT_YIELDS, WAIT_SPINS), WAIT_SLEEP);
    crowd_met(&c); /* and so are busy processes, who keep it for a slice */
    assert_int_equal(wait_way(&c, WAIT_FOR_HERE, 1, WAIT_SPINS), WAIT_SLEEP);
}

static void an_engine_on_this_core_gets_it_at_once(void **state)
{
    struct crowd c = {0};

    assert_int_equal(wait_way(&c, WAIT_FOR_ENGINE, 0, WAIT_SPINS), WAIT_SLEEP);
}

static void ranks_beside_an_engine_yield_little(void **state)
{
    struct crowd c = {0};

    assert_int_equal(wait_way(&c, WAIT_FOR_BOTH, 1, WAIT_SPINS), WAIT_YIELD);
    assert_int_equal(wait_way(&c, WAIT_FOR_BOTH, BOTH_YIELDS - 1, WAIT_SPINS), WAIT_YIELD);
    assert_int_equal(wait_way(&c, WAIT_FOR_BOTH, BOTH_YIELDS, WAIT_SPINS), WAIT_SLEEP);
    crowd_met(&c);
    assert_int_equal(wait_way(&c, WAIT_FOR_BOTH, 1, WAIT_SPINS), WAIT_SLEEP);
}

/* One wait in 4096 tries again whether yields bring it. */
static void an_engine_that_does_not_answer_soon_gets_the_core_at_once(void **state)
{
    struct crowd c = {0};
    unsigned tries = 0;

    for (unsigned i = 0; i < 8 * CROWD_MOST; i++) {
        crowd_next(&c);
        crowd_next_answer(&c);
        crowd_next(&c); /* a large operation in between */
        if (wait_way(&c, WAIT_FOR_ANSWER, 1, WAIT_SPINS) == WAIT_YIELD)
            tries++;
        assert_int_equal(wait_way(&c, WAIT_FOR_ANSWER, BOTH_YIELDS, WAIT_SPINS), WAIT_SLEEP);
        crowd_unanswered(&c);
        crowd_unanswered(&c);         /* a second sleep of the same wait */
        assert_false(crowd_here(&c)); /* nothing is known of others */
    }
    assert_in_range(tries, 8, 24);
    for (unsigned i = 0; i < 2 * CROWD_MOST; i++) /* answered: it yields as before */
        crowd_next_answer(&c);
    assert_int_equal(wait_way(&c, WAIT_FOR_ANSWER, 1, WAIT_SPINS), WAIT_YIELD);
}

static void a_long_yield_is_told(void **state)
{
    struct crowd c = {0};

    assert_false(yield_core(UINT32_MAX, &c));
    assert_int_equal(c.work.left, 0);
    assert_true(yield_core(0, &c));
    assert_int_equal(c.work.left, 1);
    assert_true(crowd_here(&c));
}

/* In a process that may not call it, as under podman's filter. */
static void where_futex_waitv_is_missing_one_is_told(void **state)
{
    struct sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {ARRAY_LEN(refuse), refuse};
    _Atomic uint32_t word = 1;
    _Atomic uint32_t *const words[] = {&word};
    const uint32_t expect[] = {1};
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        if (futex_any_is_blind() || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
            _exit(2);
        futex_wait_any(words, expect, 1, 100);
        _exit(futex_any_is_blind() ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- nobody sleeps through a ring ------------------------------------------------------------ */

enum { ROUNDS = 400000, LATE_MS = 20, ENOUGH_MS = 4000 };

/* Two threads in turns. The sleeper goes to sleep just when the other one stores what it waits for:
 * each takes a little longer or shorter in every round, so that all ways in which the two meet come
 * up. */
struct turns {
    _Atomic uint32_t want __attribute__((aligned(CACHELINE))); /* the sleeper's */
    _Atomic uint32_t have __attribute__((aligned(CACHELINE))); /* the waker's */
    _Atomic uint32_t rung __attribute__((aligned(CACHELINE))); /* it has rung for that, too */
    _Atomic uint32_t bell __attribute__((aligned(CACHELINE)));
    _Atomic uint32_t sleepers;
    _Atomic uint64_t bits __attribute__((aligned(CACHELINE))); /* of a mailbox */
    bool mail;
};

static void dally(uint32_t *rng, unsigned shift)
{
    *rng = *rng * 1664525u + 1013904223u;
    for (volatile uint32_t i = 0; i < *rng >> shift; i++)
        ;
}

static void *ring_in_turns(void *arg)
{
    struct turns *t = arg;
    uint32_t rng = 12345, n;

    for (n = 1; n; n++) {
        uint32_t want;

        while ((want = atomic_load_explicit(&t->want, memory_order_acquire)) != n && want)
            cpu_relax();
        if (!want)
            break;
        dally(&rng, 26);
        atomic_store_explicit(&t->have, n, memory_order_release);
        if (t->mail) {
            mail_flag(&t->bits, 1);
            bell_ring_fenced(&t->bell, &t->sleepers);
        } else {
            bell_ring(&t->bell, &t->sleepers);
        }
        atomic_store_explicit(&t->rung, n, memory_order_release);
    }
    return NULL;
}

/* How many wake-ups were lost. */
static unsigned sleep_in_turns(bool mail)
{
    static struct turns t;
    uint64_t end = now_ms() + ENOUGH_MS;
    unsigned lost = 0, slept = 0;
    uint32_t rng = 999;
    pthread_t waker;

    memset(&t, 0, sizeof t);
    t.mail = mail;
    atomic_store(&t.want, UINT32_MAX);
    assert_int_equal(pthread_create(&waker, NULL, ring_in_turns, &t), 0);
    for (uint32_t n = 1; n <= ROUNDS && now_ms() < end; n++) {
        atomic_store_explicit(&t.want, n, memory_order_release);
        while (atomic_load_explicit(&t.have, memory_order_acquire) != n) {
            uint32_t ticket;

            dally(&rng, 26);
            ticket = bell_prepare(&t.bell, &t.sleepers);
            mail_collect(&t.bits, 1); /* it waits for this one: the bit stays */
            if (atomic_load_explicit(&t.have, memory_order_acquire) != n) {
                slept++;
                /* a waker that has not rung yet has no core */
                if (bell_wait(&t.bell, ticket, LATE_MS) && atomic_load(&t.rung) == n &&
                    atomic_load(&t.bell) == ticket)
                    lost++;
            }
            bell_cancel(&t.sleepers);
        }
    }
    atomic_store(&t.want, 0);
    pthread_join(waker, NULL);
    print_message("%u sleeps, %u wake-ups lost\n", slept, lost);
    return lost;
}

static void no_ring_is_slept_through(void **state)
{
    assert_int_equal(sleep_in_turns(false), 0);
}

static void no_mail_is_slept_through(void **state)
{
    assert_int_equal(sleep_in_turns(true), 0);
}

#define PER_US 1000ull
#define PER_MS 1000000ull

/* At @every ns it yields and shares its core, until @ns are over. How often it should leave. */
static unsigned leaves(struct apart *a, uint64_t *now, uint64_t every, uint64_t ns, bool shares)
{
    unsigned n = 0;

    for (uint64_t end = *now + ns; *now < end; *now += every)
        n += apart_due(a, *now, shares);
    return n;
}

/* Once, after a while; and ever more seldom if it is of no use. */
static void two_on_one_core_part(void **state)
{
    struct apart a = {0};
    uint64_t now = 5 * PER_MS;

    assert_int_equal(leaves(&a, &now, 2 * PER_US, 500 * PER_US, true), 0);
    assert_int_equal(leaves(&a, &now, 2 * PER_US, PER_MS, true), 1);
    assert_int_equal(leaves(&a, &now, 2 * PER_US, 5 * PER_MS, true), 0);
    assert_in_range(leaves(&a, &now, 2 * PER_US, 150 * PER_MS, true), 3, 5);
    assert_in_range(leaves(&a, &now, 20 * PER_US, 8000 * PER_MS, true), 95, 105);
    leaves(&a, &now, 2 * PER_US, 3000 * PER_MS, false); /* it was of use for long */
    assert_int_equal(leaves(&a, &now, 2 * PER_US, 2 * PER_MS, true), 1);
}

static void who_meets_now_and_then_stays(void **state)
{
    struct apart a = {0};
    uint64_t now = 5 * PER_MS;

    assert_int_equal(leaves(&a, &now, 2 * PER_US, 100 * PER_MS, false), 0);
    assert_int_equal(leaves(&a, &now, 3 * PER_MS, 1000 * PER_MS, true),
                     0); /* between them it computes */
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(leaves(&a, &now, 2 * PER_US, 800 * PER_US, true), 0);
        assert_int_equal(leaves(&a, &now, 2 * PER_US, 2 * PER_US, false), 0);
    }
}

/* To another core, and it may run where it could before. */
static void who_leaves_may_come_back(void **state)
{
    _Atomic uint32_t taken[CPU_SETSIZE];
    cpu_set_t before, after;
    unsigned moved = 0, n = 0;

    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2)
        skip();
    for (unsigned i = 0; i < 100; i++) {
        taken[0] = core_now();
        assert_true(core_leave(taken, 1));
        moved += core_now() != taken[0];
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
    }
    assert_true(moved > 0);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &before))
            taken[n++] = cpu + 1;
    assert_false(core_leave(taken, n));
    CPU_CLR(taken[0] - 1, &after); /* as its user has bound it */
    assert_int_equal(sched_setaffinity(0, sizeof after, &after), 0);
    core_leave(taken, 0);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_true(CPU_EQUAL(&before, &after));
    CPU_SET(taken[0] - 1, &after);
    assert_int_equal(sched_setaffinity(0, sizeof after, &after), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_yield_is_forgotten_with_its_wait),
        cmocka_unit_test(now_and_then_is_no_crowd),
        cmocka_unit_test(who_never_leaves_is_seldom_asked),
        cmocka_unit_test(seldom_is_no_crowd),
        cmocka_unit_test(a_lost_slice_is_remembered),
        cmocka_unit_test(slices_far_apart_do_not_add_up),
        cmocka_unit_test(slow_yields_save_nothing),
        cmocka_unit_test(who_takes_slice_after_slice_gets_few),
        cmocka_unit_test(yields_that_find_nobody_save_nothing),
        cmocka_unit_test(who_is_needed_elsewhere_is_waited_for_by_spinning),
        cmocka_unit_test(who_is_needed_here_is_let_in_at_once),
        cmocka_unit_test(an_engine_on_this_core_gets_it_at_once),
        cmocka_unit_test(ranks_beside_an_engine_yield_little),
        cmocka_unit_test(an_engine_that_does_not_answer_soon_gets_the_core_at_once),
        cmocka_unit_test(a_long_yield_is_told),
        cmocka_unit_test(two_on_one_core_part),
        cmocka_unit_test(who_meets_now_and_then_stays),
        cmocka_unit_test(who_leaves_may_come_back),
        cmocka_unit_test(where_futex_waitv_is_missing_one_is_told),
        cmocka_unit_test(no_ring_is_slept_through),
        cmocka_unit_test(no_mail_is_slept_through),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
