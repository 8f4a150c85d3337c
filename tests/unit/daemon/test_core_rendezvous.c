/* test_core_rendezvous.c - which node is the home of a group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "daemon/core/core_internal.h"

static void home_none_up(void **state)
{
    const uint64_t ids[] = {1, 2, 3};
    const bool up[] = {false, false, false};

    assert_int_equal(rendezvous(7, ids, up, 3), -1);
    assert_int_equal(rendezvous(7, ids, up, 0), -1);
}

/* Nodes may know each other in another order: the same *id* must win. */
static void home_is_independent_of_order(void **state)
{
    const uint64_t ids[] = {11, 22, 33, 44, 55}, turned[] = {55, 44, 33, 22, 11};
    const bool up[] = {true, true, true, true, true};

    for (uint64_t key = 0; key < 1000; key++)
        assert_int_equal(ids[rendezvous(key, ids, up, 5)], turned[rendezvous(key, turned, up, 5)]);
}

/* Losing a node moves only the groups that lived there, and they spread over the rest. */
static void home_moves_little(void **state)
{
    enum { KEYS = 4000 };
    const uint64_t ids[] = {11, 22, 33, 44};
    bool up[] = {true, true, true, true};
    unsigned had[4] = {0}, took[4] = {0};

    for (uint64_t key = 0; key < KEYS; key++) {
        int before, after;

        up[2] = true;
        before = rendezvous(key, ids, up, 4);
        up[2] = false;
        after = rendezvous(key, ids, up, 4);
        assert_true(before >= 0 && after >= 0 && after != 2);
        had[before]++;
        if (before == 2)
            took[after]++;
        else
            assert_int_equal(before, after);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_in_range(had[i], KEYS / 5, KEYS * 3 / 10);
    assert_true(took[0] > KEYS / 20 && took[1] > KEYS / 20 && took[3] > KEYS / 20);
}

/* Nodes of another version find the same ones: from splitmix64, computed elsewhere. */
static void home_is_what_it_was(void **state)
{
    const uint64_t ids[] = {11, 22, 33, 44, 55};
    const bool up[] = {true, true, true, true, true};
    const int want[] = {4, 0, 2, 2, 0, 4, 2, 2, 0, 4, 3, 2, 3, 2, 4, 2};

    for (uint64_t key = 0; key < ARRAY_LEN(want); key++)
        assert_int_equal(rendezvous(key, ids, up, 5), want[key]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(home_none_up),
        cmocka_unit_test(home_is_independent_of_order),
        cmocka_unit_test(home_moves_little),
        cmocka_unit_test(home_is_what_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
