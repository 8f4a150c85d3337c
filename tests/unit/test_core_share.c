/* test_core_share.c - one user cannot take what all need from the others: places in tables, ranks, room
 * for members; and the numbers of groups go on after 2^32 of them. */
#include "tests/unit/core_bench.h"

enum { HOSTILE = 4001, VICTIM = 4002 };

/* Every size that there is, largest first, joined by one client that never fills any. */
static void sizes_that_never_fill(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups = 4096;
    config.max_groups_per_user = 2048;
    bench = bench_new(&config);
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 4096 >> i / 100);
    }
    assert_non_null(strstr(bench->got, "has no room for one more group of user 4001"));
    assert_in_range(bench->core->runs.used, 1, bench->core->runs.nblocks / 2);
    hello(bench, 1, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 1, 1, "largest", 0, 4096);
    join(bench, 1, 2, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

/* Runs that are given back in an order that leaves a small one in each large one. */
static void small_runs_lie_in_nobodys_way(void **state)
{
    struct runs runs = {0};
    struct run_owner hostile = {.blocks = 0}, victim = {.blocks = 0};
    struct msg_member *small[16], *large;

    runs_init(&runs, 64, 16 * 64);
    runs.members = calloc(16 * 64, sizeof(*runs.members));
    runs.fates = calloc(16 * 64, sizeof(*runs.fates));
    runs.order = calloc(16 * 64, 1);
    for (unsigned i = 0; i < 8; i++) { /* its share is 8 blocks */
        assert_non_null(large = runs_take(&runs, &hostile, 8, 64));
        runs_leave(&runs, &hostile, large);
        assert_non_null(small[i] = runs_take(&runs, &hostile, 8, 1));
    }
    assert_int_equal(hostile.blocks, 1); /* they are beside each other */
    while (runs_take(&runs, &hostile, 8, 33)) /* more than half of a block: one in each */
        ;
    assert_int_equal(hostile.blocks, 8);
    assert_int_equal(runs.used, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_non_null(runs_take(&runs, &victim, 8, 64));
    assert_null(runs_take(&runs, &victim, 8, 1));
    assert_null(runs_take(&runs, &victim, 9, 65)); /* no group is larger */
    for (unsigned i = 0; i < 8; i++)
        runs_leave(&runs, &hostile, small[i]);
    assert_int_equal(hostile.blocks, 7);
    assert_non_null(runs_take(&runs, &victim, 9, 64)); /* the block that came back */
    free(runs.members);
    free(runs.fates);
    free(runs.order);
}

/* Joins that wait take ranks of the node's table: half of what others leave, then no more. */
static void ranks_are_shared(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    unsigned joined = 0;
    char name[16];

    config.max_clients = config.max_groups = 64;
    config.max_clients_per_user = 32;
    config.max_groups_per_user = 63;
    config.max_size = 16;
    config.max_members = 64; /* as many ranks of this node */
    bench = bench_new(&config);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "h%u", i / 16);
        hello(bench, i % 20, HOSTILE, false);
        bench->got[0] = 0;
        join(bench, i % 20, i, name, i % 15, 16);
        joined += !bench->got[0];
    }
    assert_in_range(bench->core->seats.live, 1, 32);
    hello(bench, 60, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 60, 1, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

static void too_many_ranks_of_one_user(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups = 4096;
    config.max_groups_per_user = 2048;
    bench = bench_new(&config);
    bench->core->max_seats = 64;
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < 33; i++) {
        bench->got[0] = 0;
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    expect(bench, "0 JOIN_FAILED req 32 cause 3 rank -1 node a: group \"h32\": user 4001 has 32 ranks in "
                  "groups or joining on node a already, half of what others leave of 64: leave some\n");
    hello(bench, 1, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 1, 1, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

/* Groups: the configuration's bound for one user, and half of what others leave. */
static void groups_are_shared(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    unsigned open[3] = {0};
    char name[16];

    config.max_groups = 16;
    config.max_groups_per_user = 12;
    bench = bench_new(&config);
    for (unsigned user = 0; user < 3; user++) {
        hello(bench, user, HOSTILE + user, false);
        for (unsigned i = 0; i < 20; i++) {
            bench->got[0] = 0;
            snprintf(name, sizeof(name), "g%u", i);
            join(bench, user, i, name, 0, 1);
            open[user] += !strcmp(bench->got, "group open\n");
        }
    }
    assert_int_equal(open[0], 8);
    assert_int_equal(open[1], 4);
    assert_int_equal(open[2], 2);
    assert_non_null(strstr(bench->got, "user 4003 has 2 groups on node a already, half of what others leave"));
    bench_free(bench);
}

/* Where the configuration lets one user have all groups, one may have all of the rest as well. */
static void one_user_may_have_all(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_status status;
    char name[16];

    config.max_groups = config.max_groups_per_user = 40;
    config.max_size = 1;
    config.max_members = 80; /* a group that opens needs room twice for a moment */
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    core_status(bench->core, &status);
    assert_int_equal(status.groups, 40);
    bench_free(bench);
}

static void ids_go_on_after_all_numbers(void **state)
{
    uint64_t last = UINT32_MAX - 1ull, inc = 0x1234567890abcdefull;

    for (uint64_t n = last; n < last + 4; n++) {
        uint64_t id = home_group_id(inc, n);

        assert_true(home_group_number(inc, last, id) == n);
        assert_true(home_group_number(inc, n, id) == n); /* known again, so told to be past */
        assert_true(home_group_number(inc + 77, last, id) == 0);
        for (uint64_t m = last; m < n; m++)
            assert_true(home_group_id(inc, m) != id);
    }
}

/* The home counts past 2^32: its groups open, and their ids are new. */
static void a_home_counts_past_the_wrap(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_group_view view;
    uint64_t ids[4];
    char name[16];

    bench->core->commits = bench->core->peers[0].committed = UINT32_MAX - 2ull;
    hello(bench, 0, 1000, false);
    bench->got[0] = 0;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, 0, i, name, 0, 1);
        expect(bench, "group open\n");
        assert_true(core_group_at(bench->core, i, &view));
        ids[i] = view.id;
        for (unsigned k = 0; k < i; k++)
            assert_true(ids[k] != ids[i]);
    }
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_never_fill),   cmocka_unit_test(small_runs_lie_in_nobodys_way),
        cmocka_unit_test(ranks_are_shared),        cmocka_unit_test(too_many_ranks_of_one_user),
        cmocka_unit_test(groups_are_shared),       cmocka_unit_test(one_user_may_have_all),
        cmocka_unit_test(ids_go_on_after_all_numbers),
        cmocka_unit_test(a_home_counts_past_the_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
