/* test_wait.c - when a waiter goes over from yielding to sleeping, and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "shm/wait.h"

/* Waits until the next one that yields. */
static unsigned asleep(struct crowd *c)
{
    unsigned n = 0;

    while (c->left) {
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
        slept += c.left > 0;
        if (i % 20 == 0 && !c.left)
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
        assert_int_equal(crowd_yielded(c, CROWDED, 0, 10000), YIELD_SHARED);
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

/* The kernel gives a yielder the core back if it had less of it than the one it waits for. */
static void a_yield_that_comes_back_at_once_proves_little(void **state)
{
    struct crowd c = {0};
    unsigned alone = 0;

    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 300), YIELD_ALONE);
    assert_false(crowd_shared(&c));
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 1200), YIELD_SHARED); /* or an interrupt */
    assert_true(crowd_shared(&c));
    crowd_yielded(&c, CROWDED, 0, 300);
    assert_false(crowd_shared(&c));
    good_yields(&c, 1);
    for (; crowd_shared(&c); alone++)
        crowd_yielded(&c, CROWDED, 0, 300);
    assert_in_range(alone, 6, 20);
    good_yields(&c, 1000);
    for (unsigned again = 0; again < alone; again++) {
        assert_true(crowd_shared(&c));
        crowd_yielded(&c, CROWDED, 0, 300);
    }
    assert_false(crowd_shared(&c));
}

/* On a slow machine a yield that finds nobody takes as long as one that switches on a fast one. */
static void what_a_yield_takes_is_learned(void **state)
{
    struct crowd c = {0};

    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 850), YIELD_SHARED); /* nothing is known yet */
    crowd_alone(&c, 600);
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 850), YIELD_ALONE);
    assert_false(crowd_shared(&c));
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 3600), YIELD_SHARED);
    for (unsigned i = 0; i < 20; i++) /* it becomes faster, */
        crowd_alone(&c, 300);
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 1000), YIELD_SHARED);
    for (unsigned i = 0; i < 20; i++) /* and slower */
        crowd_alone(&c, 900);
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 1000), YIELD_ALONE);
    crowd_alone(&c, 45000); /* an interrupt */
    assert_int_equal(crowd_yielded(&c, CROWDED, 0, 3600), YIELD_SHARED);
    c = (struct crowd){0};
    crowd_alone(&c, 1000000);
    assert_in_range(c.alone_ns, 1, 2500);
}

static void a_long_yield_is_told(void **state)
{
    struct crowd c = {0};

    assert_int_equal(yield_core(UINT32_MAX, &c) == YIELD_CROWDED, 0);
    assert_int_equal(c.left, 0);
    assert_int_equal(yield_core(0, &c), YIELD_CROWDED);
    assert_int_equal(c.left, 1);
    assert_true(crowd_here(&c));
}

static long switches(void)
{
    struct rusage u;

    assert_int_equal(getrusage(RUSAGE_THREAD, &u), 0);
    return u.ru_nivcsw;
}

/* Of some yields in a row one asks the kernel. Where another test has the core each of them may switch. */
static void yields_learn(void **state)
{
    struct crowd c = {0};
    uint64_t end = now_ns() + 5000000000;
    unsigned quiet = 0;

    while (quiet < 64 && now_ns() < end) {
        long before = switches();

        yield_core(UINT32_MAX, &c);
        quiet = switches() == before ? quiet + 1 : 0;
    }
    if (quiet < 64)
        skip();
    assert_in_range(c.alone_ns, 1, 1000000);
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
        cmocka_unit_test(a_yield_that_comes_back_at_once_proves_little),
        cmocka_unit_test(what_a_yield_takes_is_learned),
        cmocka_unit_test(a_long_yield_is_told),
        cmocka_unit_test(yields_learn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
