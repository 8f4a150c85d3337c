/* test_wait.c - when a waiter goes over from yielding to sleeping, and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

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

static void a_lost_slice_is_remembered(void **state)
{
    struct crowd c = {0};

    assert_false(crowd_here(&c));
    c.until_ns = now_ns() - 1;
    assert_false(crowd_here(&c));
    c.until_ns = now_ns() + 1000000000;
    for (unsigned i = 0; i < 100; i++)
        crowd_next(&c);
    assert_true(crowd_here(&c));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_yield_is_forgotten_with_its_wait),
        cmocka_unit_test(now_and_then_is_no_crowd),
        cmocka_unit_test(who_never_leaves_is_seldom_asked),
        cmocka_unit_test(seldom_is_no_crowd),
        cmocka_unit_test(a_lost_slice_is_remembered),
        cmocka_unit_test(a_long_yield_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
