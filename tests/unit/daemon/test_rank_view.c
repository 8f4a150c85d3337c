/* test_rank_view.c - a look at many ranks does not hold up the loop; how many looks there may be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "daemon/admin/asking.h"
#include "daemon/admin/past.h"
#include "daemon/admin/rank_view.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"

enum { RANKS = 1024 };

/* The diary is of no matter here. */
void daemon_event(struct daemon *d, const char *what, int64_t whose, int64_t payer,
                  const char *text)
{
    (void)d, (void)what, (void)whose, (void)payer, (void)text;
}

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

/* What control groups say is read once for ranks of the same ones, and anew in the next look. */
static void control_groups_are_read_once(void **state)
{
    struct process_groups groups = {0};
    pid_t child = fork();

    (void)state;
    assert_true(child >= 0);
    if (!child) {
        pause();
        _exit(0);
    }
    process_groups((uint32_t)getpid(), &groups);
    if (!*groups.text)
        skip(); /* there is no /proc */
    strcpy(groups.job, "not read again");
    process_groups((uint32_t)child, &groups);
    assert_int_equal(groups.pid, child);
    assert_string_equal(groups.job, "not read again");
    groups = (struct process_groups){0};
    process_groups((uint32_t)child, &groups);
    assert_string_not_equal(groups.job, "not read again");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Ranks that gave up waiting for one group share a record; a user has a few of them. */
static void waits_that_failed_are_kept(void **state)
{
    const struct ranks_wish own = {.uid = 7}, others = {.uid = 8};
    struct client_command client = {.uid = 7,
                                    .payer = 9,
                                    .pid = 4711,
                                    .text = "train.py",
                                    .wait = {.size = 4, .name = "g", .since_ms = 1}};
    struct past past;
    struct ranks ranks;

    (void)state;
    past_init(&past);
    for (unsigned i = 0; i < 6; i++) {
        client.wait.rank = i % 3; /* each again */
        past_wait_failed(&past, &client, CAUSE_TIMEOUT, "missing 3");
    }
    ranks_init(&ranks, &own);
    past_add(&past, &ranks);
    assert_int_equal(ranks.ngroups, 1);
    assert_int_equal(ranks.nrows, 3);
    assert_string_equal(ranks.groups[0].text, "missing 3");
    assert_int_equal(ranks.groups[0].id, 0);
    assert_true(ranks.groups[0].ended_ms);
    assert_string_equal(ranks.rows[2].command, "train.py");
    assert_int_equal(ranks.rows[2].rank, 2);
    ranks_fini(&ranks);
    ranks_init(&ranks, &others);
    past_add(&past, &ranks);
    assert_int_equal(ranks.ngroups, 0);
    ranks_fini(&ranks);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(client.wait.name, sizeof(client.wait.name), "%u", i);
        past_wait_failed(&past, &client, CAUSE_TIMEOUT, "");
    }
    assert_int_equal(past.ngroups, PAST_WAITS_PER_USER);
    snprintf(client.wait.name, sizeof(client.wait.name), "many");
    for (client.wait.rank = 0; client.wait.rank < 2 * PAST_MAX_ROWS; client.wait.rank++)
        past_wait_failed(&past, &client, CAUSE_TIMEOUT, "");
    ranks_init(&ranks, &own);
    past_add(&past, &ranks);
    assert_int_equal(ranks.groups[ranks.ngroups - 1].nrows, PAST_MAX_ROWS);
    ranks_fini(&ranks);
    past_fini(&past);
}

/* What belongs to others is not shown, whatever it is called. */
static void only_ones_own_is_wished(void **state)
{
    struct ranks_wish wish = {.uid = 1000};

    (void)state;
    assert_true(ranks_wished(&wish, 1000, 7, "g"));
    assert_false(ranks_wished(&wish, 1001, 7, "g"));
    assert_false(ranks_wished(&wish, 0, 7, "g"));
    wish.payer = 1001; /* who is charged sees nothing by that */
    assert_false(ranks_wished(&wish, 1001, 7, "g"));
    strcpy(wish.group, "g");
    assert_true(ranks_wished(&wish, 1000, 7, "g"));
    assert_false(ranks_wished(&wish, 1001, 7, "g"));
    assert_false(ranks_wished(&wish, 1000, 7, "h"));
    wish.all = true;
    assert_true(ranks_wished(&wish, 1001, 7, "g"));
    wish.links = true;
    assert_false(ranks_wished(&wish, 1000, 7, "g"));
}

/* Clients of this node: a user has a few questions, and the last place is never taken by one. */
static void questions_of_users_are_shared(void **state)
{
    struct asking asking = {0};

    (void)state;
    for (; asking_here(&asking); asking.own++)
        asking.users++;
    assert_int_equal(asking.own, ASKING_MAX_USER);
    for (unsigned user = 0; user < 3; user++)
        for (asking.own = 0; asking_here(&asking); asking.own++)
            asking.users++;
    asking.own = 0;
    assert_true(asking.users < ASKING_MAX && asking_here(&asking));
}

/* Of another node: a user has no more by asking through many nodes, and takes nothing from root. */
static void questions_from_nodes_are_shared(void **state)
{
    struct asking asking = {.own = ASKING_MAX_USER, .own_there = ASKING_MAX_USER, .users = 4};

    (void)state;
    assert_false(asking_from(&asking, false));
    asking = (struct asking){.own = ASKING_MAX_USER, .own_there = 0, .users = 4};
    assert_true(asking_from(&asking, false));
    asking = (struct asking){.own = 2 * ASKING_MAX_USER};
    assert_false(asking_from(&asking, false));
    asking = (struct asking){.users = ASKING_MAX};
    assert_false(asking_from(&asking, false));
    assert_true(asking_from(&asking, true));
    asking.root = ASKING_MAX_ROOT;
    assert_false(asking_from(&asking, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_looked_at_turn_by_turn),
        cmocka_unit_test(control_groups_are_read_once),
        cmocka_unit_test(waits_that_failed_are_kept),
        cmocka_unit_test(only_ones_own_is_wished),
        cmocka_unit_test(questions_of_users_are_shared),
        cmocka_unit_test(questions_from_nodes_are_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
