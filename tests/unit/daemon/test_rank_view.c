/* test_rank_view.c - a look at many ranks does not hold up the loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "daemon/admin/rank_view.h"
#include "daemon/process/clock.h"

enum { RANKS = 1024 };

/* Each turn that has no time left looks at one rank; all of them are looked at in the end, once. */
static void processes_are_looked_at_turn_by_turn(void **state)
{
    const struct ranks_wish wish = {.all = true};
    struct ranks ranks;
    unsigned turns = 1;

    (void)state;
    ranks_init(&ranks, &wish);
    assert_true(ranks_look_at_cpus(&ranks, 0));
    ranks.rows = calloc(RANKS, sizeof(*ranks.rows));
    assert_non_null(ranks.rows);
    ranks.nrows = ranks.rows_room = RANKS;
    for (unsigned i = 0; i < RANKS; i++)
        ranks.rows[i].pid = (uint32_t)getpid();
    for (; !ranks_look_at_cpus(&ranks, 0); turns++) {
        assert_true(ranks.rows[turns - 1].cpu_since_ns);
        assert_false(ranks.rows[turns].cpu_since_ns);
    }
    assert_int_equal(turns, RANKS);
    assert_true(ranks_look_at_cpus(&ranks, 0));
    ranks.cpu_at = 0;
    assert_true(ranks_look_at_cpus(&ranks, clock_us() + 60000000));
    assert_int_equal(ranks.cpu_at, RANKS);
    ranks_fini(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_looked_at_turn_by_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
