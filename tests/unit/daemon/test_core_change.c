/* test_core_change.c - the core by itself: a node that drains, groups and clients that are kicked,
 * and who may ask for it. */
#include "tests/unit/daemon/core_bench.h"

static struct bench *bench_with_admin(uint32_t uid)
{
    struct core_config config = config_of(1);
    struct bench *bench;

    config.own_uid = 42;
    bench = bench_new(&config);
    hello(bench, 7, uid, true);
    bench->got[0] = 0;
    return bench;
}

static void ask(struct bench *bench, const char *verb, const char *group, uint32_t number,
                const char *reason)
{
    struct msg msg = {.type = MSG_ADMIN};

    text_copy(msg.admin.verb, sizeof(msg.admin.verb), verb);
    text_copy(msg.admin.group, sizeof(msg.admin.group), group);
    text_copy(msg.admin.text, sizeof(msg.admin.text), reason);
    msg.admin.pid = msg.admin.rank = number;
    say(bench, 7, &msg);
}

/* A client of @uid alone in a group, or waiting there for @size - 1 others. */
static void client_in(struct bench *bench, unsigned client, uint32_t uid, const char *group,
                      unsigned size)
{
    hello(bench, client, uid, false);
    join(bench, client, 1, group, 0, size);
    bench->got[0] = 0;
}

#define DRAINING                                                                                   \
    "node a is draining, it takes no new clients and groups: use another node, or have it take "   \
    "them again with commctl drain --undo"

/* ---- draining -------------------------------------------------------------------------------- */

static void draining_lets_in_nobody_new(void **state)
{
    struct bench *bench = bench_with_admin(0);

    hello(bench, 0, 1000, false);
    bench->got[0] = 0;
    ask(bench, "drain", "", 0, "");
    expect(bench, "7 changed 0: node a is draining: no group is left\n");
    hello(bench, 1, 1000, false);
    expect(bench, "1 REFUSED 11 " DRAINING "\n1 close\n");
    join(bench, 0, 1, "g", 0, 1);
    expect(bench, "0 JOIN_FAILED req 1 cause 11 rank -1 node a: " DRAINING "\n");
    hello(bench, 2, 1000, true); /* commctl gets in */
    expect(bench, "2 WELCOME to a of test\n");
    ask(bench, "undrain", "", 0, "");
    expect(bench, "7 changed 0: node a takes new groups\n");
    join(bench, 0, 2, "g", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

static void what_runs_goes_on(void **state)
{
    struct bench *bench = bench_with_admin(42);
    struct core_status status;

    client_in(bench, 0, 1000, "g", 1);
    ask(bench, "drain", "", 0, "");
    expect(bench, "7 changed 1: node a is draining; groups that go on until they end: 1\n");
    join(bench, 0, 2, "part of g", 0, 1); /* of a process that is in a group */
    expect(bench, "group open\n");
    feed(bench,
         (struct core_event){.type = CORE_CLIENT_OPEN, .client = 1, .uid = 1000, .pid = 100});
    say(bench, 1,
        &(struct msg){.type = MSG_CLIENT_HELLO, .client_hello = {.version = MSG_VERSION}});
    expect(bench, "1 WELCOME to a of test\n"); /* another connection of that process */
    feed(bench,
         (struct core_event){.type = CORE_CLIENT_OPEN, .client = 2, .uid = 1001, .pid = 100});
    say(bench, 2,
        &(struct msg){.type = MSG_CLIENT_HELLO, .client_hello = {.version = MSG_VERSION}});
    expect(bench, "2 REFUSED 11 " DRAINING "\n2 close\n"); /* another user's, whatever its pid */
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "exited"});
    bench->got[0] = 0;
    core_status(bench->core, &status);
    assert_true(status.draining);
    assert_int_equal(status.groups, 0);
    join(bench, 1, 3, "h", 0, 1); /* its process is in no group any more */
    expect(bench, "1 JOIN_FAILED req 3 cause 11 rank -1 node a: " DRAINING "\n");
    bench_free(bench);
}

static void who_waits_for_others_is_told(void **state)
{
    struct bench *bench = bench_with_admin(0);

    client_in(bench, 0, 1000, "g", 2);
    client_in(bench, 1, 1000, "h", 3);
    ask(bench, "drain", "", 0, "");
    expect(bench, "0 JOIN_FAILED req 1 cause 11 rank -1 node a: " DRAINING "\n"
                  "1 JOIN_FAILED req 1 cause 11 rank -1 node a: " DRAINING "\n"
                  "7 changed 0: node a is draining: no group is left\n");
    bench_free(bench);
}

static void only_masters_drain(void **state)
{
    struct bench *bench = bench_with_admin(1000);
    struct core_status status;

    ask(bench, "drain", "", 0, "");
    expect(bench, "7 REFUSED 11 only root, and the user that commd runs as (uid 42), may drain "
                  "node a\n7 close\n");
    core_status(bench->core, &status);
    assert_false(status.draining);
    hello(bench, 6, 0, false); /* a training client is not asked, even root's */
    bench->got[0] = 0;
    say(bench, 6, &(struct msg){.type = MSG_ADMIN, .admin = {.verb = "drain"}});
    expect(bench, "6 REFUSED 10 only an admin session may change something\n6 close\n");
    bench_free(bench);
}

static void the_log_level(void **state)
{
    struct bench *bench = bench_with_admin(42);

    ask(bench, "set_log_level", "", 0, "debug");
    expect(bench, "7 log level 3 for 42\n");
    ask(bench, "set_log_level", "", 0, "loud");
    expect(bench, "7 unchanged 0: the level of a log is error, warn, info or debug\n");
    bench_free(bench);
    bench = bench_with_admin(1000);
    ask(bench, "set_log_level", "", 0, "debug");
    expect(bench, "7 REFUSED 11 only root, and the user that commd runs as (uid 42), may change "
                  "the log of node a\n7 close\n");
    bench_free(bench);
}

static void a_reload(void **state)
{
    struct bench *bench = bench_with_admin(42);

    ask(bench, "reload", "", 0, "");
    expect(bench, "7 reload\n");
    bench_free(bench);
    bench = bench_with_admin(1000);
    ask(bench, "reload", "", 0, "");
    expect(bench, "7 REFUSED 11 only root, and the user that commd runs as (uid 42), may change "
                  "the settings of node a\n7 close\n");
    bench_free(bench);
}

/* ---- kicking --------------------------------------------------------------------------------- */

static void a_group_is_kicked(void **state)
{
    struct bench *bench = bench_with_admin(1000);
    struct core_group_view view;
    char id[17];

    client_in(bench, 0, 1000, "g", 1);
    client_in(bench, 1, 1000, "g", 1); /* of the same name, beside it */
    client_in(bench, 2, 1000, "h", 1);
    ask(bench, "kick", "g", 0, "it \"hangs\"");
    expect(bench, "group broken 8: ended by user 1000 with commctl kick on node a: "
                  "\"it \\\"hangs\\\"\"\n"
                  "group broken 8: ended by user 1000 with commctl kick on node a: "
                  "\"it \\\"hangs\\\"\"\n"
                  "7 changed 2: ended of user 1000: groups 2, waiting joins 0\n");
    ask(bench, "kick", "g", 0, "");
    expect(bench, "7 unchanged 0: group \"g\" is broken already; its ranks have not left it yet\n");
    for (unsigned i = 0; core_group_at(bench->core, i, &view); i++)
        if (!strcmp(view.name, "h"))
            snprintf(id, sizeof(id), "%016llx", (unsigned long long)view.id);
    ask(bench, "kick", id, 0, "");
    expect(bench, "group broken 8: ended by user 1000 with commctl kick on node a\n"
                  "7 changed 1: ended of user 1000: groups 1, waiting joins 0\n");
    bench_free(bench);
}

static void joins_are_kicked(void **state)
{
    struct bench *bench = bench_with_admin(0);

    client_in(bench, 0, 1000, "g", 3);
    client_in(bench, 1, 1000, "other", 3);
    ask(bench, "kick", "g", 0, "");
    expect(bench, "0 JOIN_FAILED req 1 cause 8 rank -1 node a: ended by root with commctl kick on "
                  "node a\n"
                  "7 changed 0: ended of user 1000: groups 0, waiting joins 1\n");
    bench_free(bench);
}

static void clients_are_kicked(void **state)
{
    struct bench *bench = bench_with_admin(0);

    client_in(bench, 0, 1000, "g", 1);
    join(bench, 0, 2, "waits", 0, 2);
    ask(bench, "kick_pid", "", 100, "too slow");
    expect(bench,
           "0 JOIN_FAILED req 2 cause 8 rank -1 node a: pid 100 was disconnected by root with "
           "commctl kick on node a: \"too slow\"\n"
           "group broken 8: pid 100 was disconnected by root with commctl kick on node a: "
           "\"too slow\"\n"
           "rank 0 missed: rank 0 (pid 100 on node a) was lost: it was kicked\ngroup close\n"
           "0 REFUSED 8 pid 100 was disconnected by root with commctl kick on node a: "
           "\"too slow\"\n0 close\n"
           "7 changed 1: disconnected pid 100, groups that ended: 1\n");
    client_in(bench, 1, 1000, "h", 1);
    ask(bench, "kick_rank", "h", 1, "");
    expect(bench, "7 unchanged 0: group \"h\" has no rank 1 (any more)\n");
    ask(bench, "kick_rank", "h", 0, "");
    assert_non_null(strstr(bench->got, "group broken 8: pid 101 was disconnected by root "));
    assert_non_null(strstr(bench->got, "7 changed 1: disconnected rank 0 of group \"h\", pid 101"));
    bench_free(bench);
}

/* What belongs to others is answered like what does not exist. */
static void others_are_not_there(void **state)
{
    struct bench *bench = bench_with_admin(1001);
    struct core_group_view view;
    char id[17], expected[1024];

    client_in(bench, 0, 1000, "g", 1);
    client_in(bench, 1, 1000, "forms", 2);
    assert_true(core_group_at(bench->core, 0, &view));
    snprintf(id, sizeof(id), "%016llx", (unsigned long long)view.id);
    for (const char *const *name = (const char *const[]){"g", "forms", id, "nothing", NULL}; *name;
         name++) {
        snprintf(expected, sizeof(expected),
                 "7 unchanged 0: no group \"%s\" with ranks on node a that this user may kick: "
                 "commctl groups lists them\n",
                 *name);
        ask(bench, "kick", *name, 0, "");
        expect(bench, expected);
        ask(bench, "kick_rank", *name, 0, "");
        expect(bench, expected);
    }
    for (uint32_t pid = 100; pid < 103; pid++) { /* the last is nobody's */
        snprintf(expected, sizeof(expected),
                 "7 unchanged 0: no client with pid %u on node a that this user may kick: commctl "
                 "clients lists them\n",
                 pid);
        ask(bench, "kick_pid", "", pid, "");
        expect(bench, expected);
    }
    bench_free(bench);
}

/* Also of two users whose names are in one place of the tables: what is joined and ended is each
 * one's own. */
static void a_name_is_of_one_user(void **state)
{
    struct core_group_view view;
    uint32_t other = 1001;
    struct bench *bench;
    unsigned n = 0;

    while (text_hash(other, "g") % HASH_GROUPS != text_hash(1000, "g") % HASH_GROUPS)
        other++;
    bench = bench_with_admin(other);
    client_in(bench, 0, 1000, "g", 2);
    hello(bench, 1, other, false);
    bench->got[0] = 0;
    join(bench, 1, 1, "g", 1, 2);
    expect(bench, "");
    while (core_group_at(bench->core, n, &view))
        n++;
    assert_int_equal(n, 2);
    ask(bench, "kick", "g", 0, "");
    assert_null(strstr(bench->got, "0 JOIN_FAILED"));
    assert_non_null(strstr(bench->got, "1 JOIN_FAILED"));
    for (n = 0; core_group_at(bench->core, n, &view); n++)
        assert_int_equal(view.uid, 1000);
    assert_int_equal(n, 1);
    bench_free(bench);
}

static void a_name_of_several_users(void **state)
{
    struct bench *bench = bench_with_admin(0);

    client_in(bench, 0, 1000, "g", 1);
    client_in(bench, 1, 1001, "g", 2);
    ask(bench, "kick", "g", 0, "");
    expect(bench, "7 unchanged 0: several users have a group \"g\" on node a: name it by its id "
                  "(commctl groups)\n");
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draining_lets_in_nobody_new),
        cmocka_unit_test(what_runs_goes_on),
        cmocka_unit_test(who_waits_for_others_is_told),
        cmocka_unit_test(only_masters_drain),
        cmocka_unit_test(a_group_is_kicked),
        cmocka_unit_test(joins_are_kicked),
        cmocka_unit_test(clients_are_kicked),
        cmocka_unit_test(others_are_not_there),
        cmocka_unit_test(a_name_is_of_one_user),
        cmocka_unit_test(a_name_of_several_users),
        cmocka_unit_test(the_log_level),
        cmocka_unit_test(a_reload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
