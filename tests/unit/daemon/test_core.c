/* test_core.c - the core by itself: what it refuses and in which words, its quotas, the life of
 * its engine. How nodes work together is in tests/sim, what strangers may do in
 * test_core_any.c. */
#include "tests/unit/daemon/core_bench.h"

/* ---- hostile clients ------------------------------------------------------------------------- */

static void no_hello(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    open_client(bench, 0, 1000);
    join(bench, 0, 1, "g", 0, 1);
    expect(bench, "0 REFUSED 10 the first message has to be a hello\n0 close\n");
    join(bench, 0, 2, "g", 0, 1); /* was on its way */
    expect(bench, "");
    bench_free(bench);
}

static void wrong_version(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_CLIENT_HELLO};
    char text[200];

    open_client(bench, 0, 1000);
    msg.client_hello.version = MSG_VERSION_OLDEST - 1;
    say(bench, 0, &msg);
    snprintf(
        text, sizeof(text),
        "0 REFUSED 10 the client speaks protocol version %d, commd 0.1.0 on node a understands "
        "%d to %d: upgrade libcommd\n0 close\n",
        MSG_VERSION_OLDEST - 1, MSG_VERSION_OLDEST, MSG_VERSION);
    expect(bench, text);
    bench_free(bench);
}

/* A newer client knows by itself whether it can talk with us. */
static void newer_version(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    open_client(bench, 0, 1000);
    msg.client_hello.version = MSG_VERSION + 1;
    say(bench, 0, &msg);
    expect(bench, "0 WELCOME to a of test\n");
    bench_free(bench);
}

static void second_hello(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    hello(bench, 0, 1000, false);
    expect(bench, "0 WELCOME to a of test\n");
    msg.client_hello.version = MSG_VERSION;
    say(bench, 0, &msg);
    expect(bench, "0 REFUSED 10 a second hello\n0 close\n");
    bench_free(bench);
}

static void not_for_clients(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    hello(bench, 0, 1000, false);
    say(bench, 0, &(struct msg){.type = MSG_COMMIT});
    expect(bench, "0 WELCOME to a of test\n"
                  "0 REFUSED 10 message type 27 is not for clients\n0 close\n");
    bench_free(bench);
}

static void foreign_group(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_CLIENT_LEAVE};
    struct core_group_view view;

    hello(bench, 0, 1000, false);
    hello(bench, 1, 1000, false);
    hello(bench, 2, 1000, false);
    join(bench, 0, 1, "g", 0, 1);
    bench->got[0] = 0;
    msg.client_leave.group = 5;
    say(bench, 1, &msg);
    expect(bench, "1 REFUSED 10 leaves group 5, which it is not in\n1 close\n");
    assert_true(core_group_at(bench->core, 0, &view));
    msg.type = MSG_CLIENT_ABORT;
    msg.client_abort.group = view.id; /* it exists, but is another's */
    msg.client_abort.text[0] = 0;
    say(bench, 2, &msg);
    assert_non_null(strstr(bench->got, "2 REFUSED 10 aborts group "));
    assert_non_null(strstr(bench->got, ", which it is not in\n2 close\n"));
    assert_true(core_group_at(bench->core, 0, &view));
    assert_int_equal(view.state, CORE_GROUP_OPEN);
    bench_free(bench);
}

static void bad_joins(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "", 0, 1);
    join(bench, 0, 2, "g", 0, 0);
    join(bench, 0, 3, "g", 0, 65537);
    join(bench, 0, 4, "g", 3, 3);
    join(bench, 0, 5, "g", 0, 2);
    join(bench, 0, 6, "g", 1, 2);
    hello(bench, 1, 1000, false);
    join(bench, 1, 7, "g", 1, 3);
    join(bench, 1, 8, "g", 0, 2);
    hello(bench, 2, 1001, false); /* another user's group of that name is another group */
    join(bench, 2, 9, "g", 0, 3);
    expect(bench,
           "0 WELCOME to a of test\n"
           "0 JOIN_FAILED req 1 cause 1 rank -1 node a: a group needs a name\n"
           "0 JOIN_FAILED req 2 cause 1 rank -1 node a: group \"g\": size 0, allowed are 1 to "
           "4096 ranks on 1 nodes\n"
           "0 JOIN_FAILED req 3 cause 1 rank -1 node a: group \"g\": size 65537, allowed are 1 to "
           "4096 ranks on 1 nodes\n"
           "0 JOIN_FAILED req 4 cause 1 rank -1 node a: group \"g\": rank 3 of 3, allowed are 0 "
           "to "
           "2\n"
           "0 JOIN_FAILED req 6 cause 1 rank -1 node a: group \"g\": this client is joining it as "
           "rank 0 already, use one context per rank\n"
           "1 WELCOME to a of test\n"
           "1 JOIN_FAILED req 7 cause 1 rank 0 node a: group \"g\": rank 1 joins with size 3, but "
           "rank 0 of node a joined with size 2\n"
           "1 JOIN_FAILED req 8 cause 1 rank 0 node a: group \"g\": rank 0 is already taken by "
           "pid "
           "100 on node a\n"
           "2 WELCOME to a of test\n");
    bench_free(bench);
}

static void admin_sessions(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    hello(bench, 8, 0, true); /* a slot beyond max_clients */
    say(bench, 8, &(struct msg){.type = MSG_ADMIN});
    join(bench, 8, 1, "g", 0, 1);
    expect(bench, "8 WELCOME to a of test\n"
                  "8 REFUSED 10 an admin session cannot join groups\n8 close\n");
    bench_free(bench);
}

static void slots_out_of_range(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    hello(bench, 8 + CORE_ADMIN_CLIENTS, 1000, false);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = UINT32_MAX});
    expect(bench, "");
    bench_free(bench);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

static void client_quotas(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    for (unsigned i = 0; i < 4; i++)
        hello(bench, i, 1000, false);
    bench->got[0] = 0;
    hello(bench, 4, 1000, false);
    expect(bench, "4 REFUSED 3 user 1000 has 4 clients on node a already: close some, or raise "
                  "limits.max_clients_per_user\n4 close\n");
    for (unsigned i = 4; i < 7; i++) /* half of what is left */
        hello(bench, i, 1001, false);
    expect(bench,
           "4 WELCOME to a of test\n5 WELCOME to a of test\n"
           "6 REFUSED 3 user 1001 has 2 clients on node a already, half of what others leave: "
           "close some, or raise limits.max_clients\n6 close\n");
    hello(bench, 6, 1002, false);
    hello(bench, 7, 1003, false);
    bench->got[0] = 0;
    hello(bench, 8, 1004, false);
    expect(bench, "8 REFUSED 3 node a has 8 clients already: close some, or raise "
                  "limits.max_clients\n8 close\n");
    hello(bench, 8, 1002, true); /* an admin still gets in */
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "EOF"});
    hello(bench, 0, 1005, false); /* and a place that is free again is taken */
    expect(bench, "8 WELCOME to a of test\n0 WELCOME to a of test\n");
    bench_free(bench);
}

static void group_quotas(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    char name[16];

    hello(bench, 0, 1000, false);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    expect(bench, "0 WELCOME to a of test\ngroup open\ngroup open\ngroup open\ngroup open\n");
    join(bench, 0, 9, "more", 0, 1);
    expect(bench, "0 JOIN_FAILED req 9 cause 3 rank -1 node a: group \"more\": user 1000 has 4 "
                  "groups on node a already: leave some, or raise limits.max_groups_per_user\n");
    hello(bench, 1, 1001, false);
    for (unsigned i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "f%u", i);
        join(bench, 1, i, name, 0, 2);
    }
    expect(bench,
           "1 WELCOME to a of test\n"
           "1 JOIN_FAILED req 4 cause 3 rank -1 node a: group \"f4\": node a has no room for "
           "one more group of user 1001 that forms: wait for others, or raise limits.max_groups "
           "or limits.max_groups_per_user\n");
    bench_free(bench);
}

static void pending_quota(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_status status;
    char name[16];

    config.max_groups = config.max_groups_per_user = 4096;
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    bench->got[0] = 0;
    for (unsigned i = 0; i < 10000; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        bench->got[0] = 0;
        join(bench, 0, i, name, 0, 2);
        assert_int_equal(bench->got[0] != 0, i >= CORE_CLIENT_JOINS);
    }
    expect(bench, "0 JOIN_FAILED req 9999 cause 3 rank -1 node a: group \"g9999\": this client has "
                  "1024 joins pending already, wait for some of them\n");
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    core_status(bench->core, &status);
    assert_int_equal(bench->core->members.live, 0);
    assert_int_equal(bench->core->formings.live, 0);
    bench_free(bench);
}

static void board_failed(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_group_view view;

    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 0, 1);
    assert_true(core_group_at(bench->core, 0, &view));
    bench->got[0] = 0;
    feed(bench, (struct core_event){
                    .type = CORE_BOARD_FAILED, .group = view.id, .text = "Cannot allocate memory"});
    expect(bench, "0 JOIN_FAILED req 1 cause 12 rank -1 node a: group \"g\": node a could not make "
                  "its board: Cannot allocate memory\n");
    assert_false(core_group_at(bench->core, 0, &view));
    bench_free(bench);
}

static void timeout_of_config(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 0, 2); /* no limit of its own */
    bench->got[0] = 0;
    assert_int_equal(core_deadline(bench->core), 61000);
    bench->now = 60999;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "");
    bench->now = 61000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench,
           "0 JOIN_FAILED req 1 cause 4 rank -1 node : group \"g\": 1 of 2 ranks did not come "
           "within 60 s: missing 1\n");
    assert_true(core_deadline(bench->core) == UINT64_MAX); /* a node alone sleeps */
    bench_free(bench);
}

/* What is left of a limit is not what was given. */
static void a_limit_is_told_as_it_was_given(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct msg msg = {
        .type = MSG_CLIENT_JOIN,
        .client_join = {.req = 1, .size = 2, .timeout_ms = 19995, .limit_ms = 20000, .name = "g"}};

    (void)state;
    hello(bench, 0, 1000, false);
    say(bench, 0, &msg);
    bench->got[0] = 0;
    bench->now += 19995;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_non_null(strstr(bench->got, "1 of 2 ranks did not come within 20 s: missing 1"));
    bench_free(bench);
}

static void missing_list_is_bounded(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_group_view view;

    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 2047, 4096);
    assert_true(core_group_at(bench->core, 0, &view));
    assert_string_equal(view.missing, "0-2046,2048-4095");
    bench_free(bench);
}

/* ---- the engine's life ----------------------------------------------------------------------- */

static void engine_life(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_ENGINE_HELLO};
    struct core_status status;

    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "engine start\n");
    feed(bench, (struct core_event){.type = CORE_ENGINE_STARTED, .pid = 77});
    msg.engine_hello.version = MSG_VERSION;
    text_copy(msg.engine_hello.text, sizeof(msg.engine_hello.text), "no transport on eth9");
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    expect(bench, "engine kill\n"); /* it has no address */
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
    core_status(bench->core, &status);
    assert_int_equal(status.engine, CORE_ENGINE_STARTING);
    assert_string_equal(status.engine_text, "no transport on eth9");
    expect(bench, "engine start\n");
    msg.engine_hello.addr_len = 4;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    core_status(bench->core, &status);
    assert_int_equal(status.engine, CORE_ENGINE_UP);
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    expect(bench, "engine kept\nengine kill\n"); /* a second hello */
    bench_free(bench);
}

/* Its hello lies in the socket of a commd that was stopped: the time for it begins anew. */
static void an_engine_may_start_while_commd_is_stopped(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);

    feed(bench, (struct core_event){.type = CORE_TICK});
    feed(bench, (struct core_event){.type = CORE_ENGINE_STARTED, .pid = 77});
    bench->got[0] = 0;
    bench->now += 3600 * 1000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "");
    for (uint64_t end = bench->now + 3600 * 1000; bench->now < end && !bench->got[0];) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "engine kill\n");
    bench_free(bench);
}

/* One engine serves for so long, and dies. What commd does then is in bench->got. */
static void one_engine_dies(struct bench *bench, uint64_t served_ms)
{
    struct msg msg = {.type = MSG_ENGINE_HELLO,
                      .engine_hello = {.version = MSG_VERSION, .addr_len = 4}};

    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    while (served_ms) { /* it answers */
        uint64_t step = MIN(served_ms, (uint64_t)500);

        served_ms -= step;
        bench->now += step;
        msg = (struct msg){.type = MSG_PING,
                           .ping = {.seq = bench->core->engine.life.seq, .pong = 1}};
        feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    }
    bench->got[0] = 0;
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
}

/* For however long before one died early; but not for ever. */
static void an_engine_that_has_served_is_started_at_once(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct core_status status;

    (void)state;
    feed(bench, (struct core_event){.type = CORE_TICK});
    for (unsigned i = 0; i < 50; i++) {
        one_engine_dies(bench, 500);
        expect(bench, "engine start\n");
    }
    for (unsigned i = 0; i < 50; i++) {
        one_engine_dies(bench, i % 10 == 9 ? 500 : 0);
        expect(bench, "engine start\n");
    }
    core_status(bench->core, &status);
    assert_int_equal(status.engine_deaths, 0);
    one_engine_dies(bench, 600); /* the 101st in a row that has not served for long */
    expect(bench, "");
    assert_non_null(strstr(bench->error, "not before 100 ms are over: it dies again and again"));
    core_status(bench->core, &status);
    assert_int_equal(status.engine_deaths, 101);
    bench->now += 100;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "engine start\n");
    one_engine_dies(bench, RESTART_SOON_MS);
    expect(bench, "engine start\n");
    core_status(bench->core, &status);
    assert_int_equal(status.engine_deaths, 0);
    bench_free(bench);
}

/* Ten may be chance. Then it waits, longer and longer, and says why. */
static void an_engine_that_dies_again_and_again_waits(void **state)
{
    static const uint64_t waits[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000};
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);

    feed(bench, (struct core_event){.type = CORE_TICK});
    for (unsigned i = 0; i < 10; i++) {
        one_engine_dies(bench, i % 2 ? 499 : 0);
        expect(bench, "engine start\n");
        assert_null(strstr(bench->error, "again and again"));
    }
    for (unsigned i = 0; i < ARRAY_LEN(waits); i++) {
        char text[80];

        one_engine_dies(bench, 499);
        expect(bench, "");
        snprintf(text, sizeof(text), "not before %llu ms are over: it dies again and again",
                 (unsigned long long)waits[i]);
        assert_non_null(strstr(bench->error, text));
        bench->now += waits[i] - 1;
        feed(bench, (struct core_event){.type = CORE_TICK});
        expect(bench, "");
        assert_int_equal(core_deadline(bench->core), bench->now + 1);
        bench->now += 1;
        feed(bench, (struct core_event){.type = CORE_TICK});
        expect(bench, "engine start\n");
    }
    one_engine_dies(bench, 500); /* this one has served */
    expect(bench, "engine start\n");
    one_engine_dies(bench, 0);
    expect(bench, "engine start\n");
    bench_free(bench);
}

static void engine_of_another_version(void **state)
{
    struct core_config config = config_of(2);
    struct msg msg = {.type = MSG_ENGINE_HELLO, .engine_hello.addr_len = 4};

    for (int newer = 0; newer < 2; newer++) {
        struct bench *bench = bench_new(&config);

        feed(bench, (struct core_event){.type = CORE_TICK});
        expect(bench, "engine start\n");
        msg.engine_hello.version = newer ? MSG_VERSION + 1 : MSG_VERSION_OLDEST - 1;
        feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
        expect(bench, newer ? "engine kept\n" : "engine kill\n");
        bench_free(bench);
    }
}

static void engine_that_hangs(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_ENGINE_HELLO};
    uint64_t up;

    feed(bench, (struct core_event){.type = CORE_TICK});
    msg.engine_hello.version = MSG_VERSION;
    msg.engine_hello.addr_len = 4;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    bench->got[0] = 0;
    up = bench->now;
    while (!bench->got[0] || !strstr(bench->got, "kill")) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "to engine message 50\nengine kill\n");
    assert_int_equal(bench->now - up, CORE_ENGINE_PING_MS + config.engine_timeout_ms);
    bench_free(bench);
}

/* Of three nodes with a rank each, one that lies about the ranks of another is not heard. */
static void a_node_speaks_for_its_own_ranks(void **state)
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    struct group *group;

    msg.peer_hello.incarnation = 5;
    for (unsigned node = 1; node < 3; node++)
        feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = node, .msg = &msg});
    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 0, 3);
    for (unsigned node = 1; node < 3; node++) {
        msg = (struct msg){.type = MSG_JOIN};
        msg.join =
            (struct msg_join){.join = 1u << 17 | 1, .uid = 1000, .pid = 7, .rank = node, .size = 3};
        strcpy(msg.join.name, "g");
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = node, .msg = &msg});
    }
    group = list_first(&bench->core->all_groups, struct group, all);
    assert_non_null(group);
    for (unsigned rank = 0; rank < 3; rank++) { /* node 1 about all of them */
        msg = (struct msg){.type = MSG_GONE};
        msg.gone = (struct msg_gone){.group = group->id, .rank = rank, .cause = CAUSE_RANK_LOST};
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    }
    for (unsigned rank = 0; rank < 3; rank++)
        assert_int_equal(runs_fate(&bench->core->runs, &group->members[rank])->cause,
                         rank == 1 ? CAUSE_RANK_LOST : CAUSE_NONE);
    bench_free(bench);
}

/* Client 0 and a rank of node 1 join two groups, of which the home of one is here: that one. */
static struct group *join_with_node_1(struct bench *bench)
{
    struct group *group;

    for (unsigned i = 0; i < 2; i++) {
        char name[2] = {(char)('a' + i), 0};
        struct msg msg = {.type = MSG_JOIN};

        join(bench, 0, 1 + i, name, 0, 2);
        msg.join = (struct msg_join){
            .join = (uint64_t)(i + 1) << 17 | 1, .uid = 1000, .pid = 7, .rank = 1, .size = 2};
        strcpy(msg.join.name, name);
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    }
    group = list_first(&bench->core->all_groups, struct group, all);
    assert_non_null(group);
    return group;
}

/* Ranks of a client that is gone end a part at a time, and belong to the place behind all slots
 * meanwhile: another node that answers a question for that place is not heard. */
static void an_answer_for_nobody(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    struct group *group;

    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    bench->core->peers[1].state = CORE_PEER_READY;
    bench->core->part_batch = 0;
    hello(bench, 0, 1000, false);
    group = join_with_node_1(bench);
    msg = (struct msg){.type = MSG_SYNC};
    msg.sync.group = group->id;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "x"});
    assert_int_equal(bench->core->partings.live, 1);
    bench->got[0] = 0;
    msg = (struct msg){.type = MSG_ABSENT_HERE};
    msg.absent_here.group = group->id;
    msg.absent_here.ask = (uint64_t)bench->core->client_slots << 32;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    expect(bench, "");
    bench_free(bench);
}

/* What another node said about engines that are not those of now does not let a group go on. */
static void said_of_other_engines(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct core *core = bench->core;
    struct msg msg = {.type = MSG_PEER_HELLO};
    struct group *group;

    msg.peer_hello.incarnation = 5;
    msg.peer_hello.version = MSG_VERSION;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    core->peers[1].state = CORE_PEER_READY;
    hello(bench, 0, 1000, false);
    group = join_with_node_1(bench);
    msg = (struct msg){.type = MSG_SYNC};
    msg.sync.group = group->id;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_int_equal(group->state, GROUP_OPEN);
    assert_true(bond_loosen(core, group, core->config.self, "lost"));
    feed(bench, (struct core_event){.type = CORE_BOARD_POSITION,
                                    .group = group->id,
                                    .quiet = true,
                                    .position = {.ops = 4}});
    assert_int_equal(group->bond, BOND_LOOSE);
    core->engine.life.state = CORE_ENGINE_UP;
    core->engine.life.ping_ms = CORE_NEVER;
    core->engine.incarnation = 9;
    bond_look(core);
    assert_true(group->bond_key != 0);
    msg = (struct msg){.type = MSG_HELD};
    msg.held = (struct msg_held){.group = group->id, .key = group->bond_key ^ 1, .ops = 4};
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_int_equal(group->bond, BOND_LOOSE);
    bench->got[0] = 0;
    msg.held.key ^= 1;
    msg.held.answer = 1;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_int_equal(group->bond, BOND_BOUND);
    expect(bench, "group bind, 4 ops\n");
    bench_free(bench);
}

/* A home that refuses a join and gives no cause: the client is not told that nothing is wrong. */
static void refused_without_a_cause(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    const struct member *member;
    char name[2] = "a";

    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    bench->core->peers[1].state = CORE_PEER_READY;
    hello(bench, 0, 1000, false);
    do { /* until the home of one is node 1 */
        join(bench, 0, 1, name, 0, 2);
        member = container_of(bench->core->waiting.prev, struct member, waiting);
    } while (member->home != 1 && name[0]++ < 'z');
    bench->got[0] = 0;
    msg = (struct msg){.type = MSG_JOIN_REFUSED};
    msg.join_refused.join = member->join;
    strcpy(msg.join_refused.node, "b");
    strcpy(msg.join_refused.text, "so");
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    expect(bench, "0 JOIN_FAILED req 1 cause 14 rank 0 node b: so\n");
    bench_free(bench);
}

/* A commd that was stopped does not blame the others for its own silence. */
static void stopped_ourselves(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    struct core_peer_view view;

    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    bench->got[0] = 0;
    bench->now += 60000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_LINKING);
    for (unsigned i = 0; i < 4; i++) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_non_null(strstr(bench->got, "drop 1: silent for 3 s\n"));
    bench_free(bench);
}

/* One that is late in each call reads in between, and gives up who is silent all the same. */
static void late_again_and_again(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};

    (void)state;
    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    bench->got[0] = 0;
    for (unsigned i = 0; i < 20; i++) {
        bench->now = core_deadline(bench->core) + config.heartbeat_ms + 1;
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_non_null(strstr(bench->got, "drop 1: silent for 3 s\n"));
    bench_free(bench);
}

/* Lower limits hold from the reload on, not from the next heartbeat of the old ones on. */
static void reload_lowers_limits(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    uint64_t heard = bench->now;

    feed(bench, (struct core_event){.type = CORE_TICK});
    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    bench->now += 20;
    feed(bench, (struct core_event){.type = CORE_TICK});
    bench->got[0] = 0;
    config.heartbeat_ms = 50;
    config.node_timeout_ms = 200;
    core_reconfigure(bench->core, &config);
    bench->now = core_deadline(bench->core);
    assert_true(bench->now <= heard + 20);
    feed(bench, (struct core_event){.type = CORE_TICK});
    while (!strstr(bench->got, "drop")) {
        assert_true(core_deadline(bench->core) <= bench->now + 50);
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_non_null(strstr(bench->got, "drop 1: silent for 200 ms\n"));
    assert_int_equal(bench->now, heard + 200);
    bench_free(bench);
}

/* Groups come and go between the steps of a scan: who is there all the while is met once. */
static void a_scan_that_takes_long(void **state)
{
    enum { GROUPS = 1500 };
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_group_view view;
    struct core_scan scan = {0};
    static uint64_t ids[GROUPS];
    static unsigned met[2 * GROUPS];
    unsigned steps = 0, more = 0;
    uint32_t uid = 1000, nobody = 1;
    char name[16];
    int r;

    config.max_groups = config.max_groups_per_user = 2 * GROUPS;
    bench = bench_new(&config);
    memset(met, 0, sizeof(met));
    hello(bench, 0, uid, false);
    for (unsigned i = 0; i < GROUPS; i++) {
        bench->got[0] = 0;
        snprintf(name, sizeof(name), "%u", i);
        join(bench, 0, i, name, 0, i % 3 ? 1 : 2); /* each third one waits */
    }
    for (unsigned i = 0; core_group_at(bench->core, i, &view) && view.id; i++)
        ids[strtoul(view.name, NULL, 10)] = view.id;
    while ((r = core_group_scan(bench->core, &scan, &uid, &view)) != CORE_SCAN_END) {
        struct msg msg = {.type = MSG_CLIENT_LEAVE};

        if (r == CORE_SCAN_FOUND)
            met[strtoul(view.name, NULL, 10)]++;
        /* those with an even number leave, from the end; others come into their places */
        if (steps < GROUPS && ids[GROUPS - 1 - steps] && (GROUPS - 1 - steps) % 2 == 0) {
            bench->got[0] = 0;
            msg.client_leave.group = ids[GROUPS - 1 - steps];
            say(bench, 0, &msg);
            snprintf(name, sizeof(name), "%u", GROUPS + steps);
            join(bench, 0, GROUPS + steps, name, 0, 1);
        }
        steps++;
    }
    for (unsigned i = 0; i < 2 * GROUPS; i++)
        assert_in_range(met[i], i < GROUPS && (i % 2 || i % 3 == 0), 1);
    /* of somebody else there is nothing, but it takes its time to find that */
    memset(&scan, 0, sizeof(scan));
    while ((r = core_group_scan(bench->core, &scan, &nobody, &view)) == CORE_SCAN_MORE)
        more++;
    assert_int_equal(r, CORE_SCAN_END);
    assert_true(more >= GROUPS / 256);
    bench_free(bench);
}

static void join_within(struct bench *bench, unsigned client, uint32_t req, const char *name,
                        uint32_t rank, uint32_t size, uint64_t timeout_ms)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    msg.client_join.req = req;
    msg.client_join.rank = rank;
    msg.client_join.size = size;
    msg.client_join.timeout_ms = timeout_ms;
    text_copy(msg.client_join.name, sizeof(msg.client_join.name), name);
    say(bench, client, &msg);
}

/* Whose name hashes as another user's does, and is the same. */
static void joiners_are_of_one_user(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_group_view mine = {.uid = 1000, .name = "g"}, its = mine, none = mine;
    struct core_joiner joiners[2];
    uint64_t since = bench->now;
    uint32_t other = 1001;

    (void)state;
    while (text_hash(other, "g") % HASH_GROUPS != text_hash(1000, "g") % HASH_GROUPS)
        other++;
    its.uid = other;
    none.name = "h";
    hello(bench, 0, 1000, false);
    hello(bench, 1, 1000, false);
    hello(bench, 2, other, false);
    join(bench, 0, 1, "g", 2, 4);
    join(bench, 2, 1, "g", 1, 3);
    bench->now += 70;
    join(bench, 1, 1, "g", 0, 4);
    assert_int_equal(core_joiners(bench->core, &its, joiners, 2), 1);
    assert_int_equal(joiners[0].rank, 1);
    assert_int_equal(core_joiners(bench->core, &mine, joiners, 1), 1);
    assert_int_equal(core_joiners(bench->core, &mine, joiners, 2), 2);
    assert_int_equal(joiners[0].rank + joiners[1].rank, 2);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(joiners[i].since_ms, joiners[i].rank ? since : since + 70);
    assert_int_equal(core_joiners(bench->core, &none, joiners, 2), 0);
    bench_free(bench);
}

/* The list ends where looking ends; the number of those who are missing is right all the same. */
static void missing_of_a_huge_group(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_group_view view;

    config.max_size = 65536;
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    hello(bench, 1, 1000, false);
    join_within(bench, 0, 1, "g", 9, 65536, 50);
    join_within(bench, 1, 2, "g", 60000, 65536, 100);
    assert_true(core_group_at(bench->core, 0, &view));
    assert_string_equal(view.missing, "0-8,10-4095...");
    bench->got[0] = 0;
    bench->now += 50;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_non_null(strstr(bench->got, "65534 of 65536 ranks did not come within 50 ms"));
    bench->got[0] = 0;
    bench->now += 50; /* the other one came, and was late: it is not missing */
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_non_null(strstr(bench->got, "65534 of 65536 ranks did not come within 100 ms"));
    bench_free(bench);
}

/* The other nodes cannot tell whose questions they are, so they are few for all clients of a user
 * together. */
static void questions_of_one_user(void **state)
{
    enum { CLIENTS = 70, EACH = 64 };
    struct core_config config = config_of(1);
    struct msg msg = {.type = MSG_CLIENT_ASK_ABSENT};
    struct core_group_view view;
    struct bench *bench;
    unsigned heard = 0;
    char name[16];

    config.max_clients = config.max_clients_per_user = CLIENTS;
    config.max_groups = config.max_groups_per_user = CLIENTS;
    bench = bench_new(&config);
    for (unsigned i = 0; i < CLIENTS; i++) {
        bench->got[0] = 0;
        hello(bench, i, 1000, false);
        snprintf(name, sizeof(name), "%u", i);
        join(bench, i, 1, name, 0, 1);
    }
    for (unsigned i = 0; i < CLIENTS * EACH; i++) {
        bench->got[0] = 0;
        assert_true(core_group_at(bench->core, i / EACH, &view));
        msg.client_ask_absent.group = view.id;
        say(bench, i / EACH, &msg);
        heard += strstr(bench->got, "who has not begun") != NULL;
    }
    assert_int_equal(heard, (1 << 22) / 1024);
    bench->got[0] = 0;
    bench->now += 1000;
    say(bench, CLIENTS - 1, &msg);
    assert_non_null(strstr(bench->got, "who has not begun"));
    bench_free(bench);
}

/* Thousands of ranks wait, and the time of one runs out each ms: not all are looked at each time.
 */
static void a_crowd_whose_time_runs_out(void **state)
{
    enum { CLIENTS = 4, EACH = 1000 };
    struct core_config config = config_of(1);
    struct bench *bench;
    unsigned ticks = 0;
    char name[16];

    config.max_groups = config.max_groups_per_user = CLIENTS * EACH;
    config.max_members = 65536;
    bench = bench_new(&config);
    for (unsigned i = 0; i < CLIENTS; i++)
        hello(bench, i, 1000, false);
    for (unsigned i = 0; i < CLIENTS * EACH; i++) {
        snprintf(name, sizeof(name), "%u", i);
        join_within(bench, i % CLIENTS, i, name, 0, 2, 1000 + i);
    }
    for (uint64_t end = bench->now + 1100; core_deadline(bench->core) <= end; ticks++) {
        bench->now = core_deadline(bench->core);
        bench->got[0] = 0;
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_in_range(ticks, 20, 40); /* for 100 of them, one each 3 ms */
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_hello),
        cmocka_unit_test(wrong_version),
        cmocka_unit_test(newer_version),
        cmocka_unit_test(second_hello),
        cmocka_unit_test(not_for_clients),
        cmocka_unit_test(foreign_group),
        cmocka_unit_test(bad_joins),
        cmocka_unit_test(admin_sessions),
        cmocka_unit_test(slots_out_of_range),
        cmocka_unit_test(client_quotas),
        cmocka_unit_test(group_quotas),
        cmocka_unit_test(pending_quota),
        cmocka_unit_test(board_failed),
        cmocka_unit_test(timeout_of_config),
        cmocka_unit_test(a_limit_is_told_as_it_was_given),
        cmocka_unit_test(missing_list_is_bounded),
        cmocka_unit_test(engine_life),
        cmocka_unit_test(an_engine_may_start_while_commd_is_stopped),
        cmocka_unit_test(an_engine_that_has_served_is_started_at_once),
        cmocka_unit_test(an_engine_that_dies_again_and_again_waits),
        cmocka_unit_test(engine_of_another_version),
        cmocka_unit_test(engine_that_hangs),
        cmocka_unit_test(stopped_ourselves),
        cmocka_unit_test(late_again_and_again),
        cmocka_unit_test(reload_lowers_limits),
        cmocka_unit_test(a_scan_that_takes_long),
        cmocka_unit_test(missing_of_a_huge_group),
        cmocka_unit_test(joiners_are_of_one_user),
        cmocka_unit_test(a_node_speaks_for_its_own_ranks),
        cmocka_unit_test(refused_without_a_cause),
        cmocka_unit_test(an_answer_for_nobody),
        cmocka_unit_test(said_of_other_engines),
        cmocka_unit_test(questions_of_one_user),
        cmocka_unit_test(a_crowd_whose_time_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
