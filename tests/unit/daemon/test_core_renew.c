/* test_core_renew.c - the core by itself: an engine, or commd-gpu, of another version makes room as
 * soon as nobody needs it. */
#include "tests/unit/daemon/core_bench.h"

enum { SETTINGS = 5 };

static struct core_config config_of_two(void)
{
    struct core_config config = config_of(2);

    config.heartbeat_ms = 100;
    config.node_timeout_ms = 100000;
    config.restart_timeout_ms = 10000;
    config.engine_timeout_ms = 100000;
    config.engine_settings = SETTINGS;
    return config;
}

static void engine_says_hello(struct bench *bench, const char *build, uint64_t settings)
{
    struct msg msg = {
        .type = MSG_ENGINE_HELLO,
        .engine_hello = {.version = MSG_VERSION, .addr_len = 4, .settings = settings}};

    text_copy(msg.engine_hello.build, sizeof(msg.engine_hello.build), build);
    feed(bench, (struct core_event){.type = CORE_ENGINE_STARTED, .pid = 77});
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    expect(bench, "engine kept\n");
}

static void heartbeat(struct bench *bench, bool free)
{
    feed(bench, (struct core_event){
                    .type = CORE_PEER_MSG,
                    .node = 1,
                    .msg = &(struct msg){.type = MSG_HEARTBEAT, .heartbeat = {.free = free}}});
}

/* A second later, and the ping is answered. */
static void second(struct bench *bench)
{
    struct msg pong = {.type = MSG_PING, .ping = {.pong = 1}};

    bench->now += 1000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    for (pong.ping.seq = 1; pong.ping.seq < 10; pong.ping.seq++)
        feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &pong});
}

static struct bench *with_engine(const char *build, uint64_t settings)
{
    struct core_config config = config_of_two();
    struct bench *bench = bench_new(&config);

    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "engine start\n");
    engine_says_hello(bench, build, settings);
    return bench;
}

static void ends_and_starts(struct bench *bench)
{
    struct core_status status;

    core_status(bench->core, &status);
    assert_int_equal(status.engine, CORE_ENGINE_OFF);
    second(bench);
    expect(bench, ""); /* not before the old one has ended */
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
    expect(bench, "engine start\n");
    assert_int_equal(core_counts(bench->core)->engine_losses, 0);
}

static void one_of_another_version(void **state)
{
    struct bench *bench = with_engine("0.0.9", SETTINGS);
    struct core_status status;

    core_status(bench->core, &status);
    assert_string_equal(status.engine_build, "0.0.9");
    second(bench);
    expect(bench, "to engine message 50\nengine kill\n");
    ends_and_starts(bench);
    engine_says_hello(bench, "0.1.0", SETTINGS);
    second(bench);
    expect(bench, "to engine message 50\n");
    bench_free(bench);
}

static void one_that_does_not_say_what_it_is(void **state)
{
    struct bench *bench = with_engine("", 0);

    second(bench);
    expect(bench, "to engine message 50\n");
    bench_free(bench);
}

static void the_next_one_is_no_better(void **state)
{
    struct bench *bench = with_engine("0.0.9", SETTINGS);
    struct core_config config = config_of_two();

    second(bench);
    expect(bench, "to engine message 50\nengine kill\n");
    ends_and_starts(bench);
    engine_says_hello(bench, "0.0.9", SETTINGS);
    second(bench);
    expect(bench, "to engine message 50\n");
    core_reconfigure(bench->core, &config); /* by then it may be */
    second(bench);
    expect(bench, "to engine message 50\nengine kill\n");
    bench_free(bench);
}

static void another_node_may_need_it(void **state)
{
    struct bench *bench = with_engine("0.0.9", SETTINGS);
    struct msg hello = {.type = MSG_PEER_HELLO, .peer_hello = {MSG_VERSION, 9, "test", "b"}};

    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello});
    expect(bench, "to 1 message 22\n");
    second(bench);
    expect(bench, "to engine message 50\n"); /* it has not said so */
    heartbeat(bench, false);
    second(bench);
    expect(bench, "to engine message 50\n");
    heartbeat(bench, true);
    second(bench);
    expect(bench, "to engine message 50\nengine kill\nto 1 message 22\n");
    ends_and_starts(bench);
    bench_free(bench);
}

static void settings_that_a_reload_changed(void **state)
{
    struct bench *bench = with_engine("0.1.0", SETTINGS);
    struct core_config config = config_of_two();

    second(bench);
    expect(bench, "to engine message 50\n");
    config.engine_settings++;
    core_reconfigure(bench->core, &config);
    second(bench);
    expect(bench, "to engine message 50\nengine kill\n");
    ends_and_starts(bench);
    engine_says_hello(bench, "0.1.0", SETTINGS + 1);
    second(bench);
    expect(bench, "to engine message 50\n");
    bench_free(bench);
}

/* ---- the engine of a group that runs --------------------------------------------------------- */

static void peer_says(struct bench *bench, struct msg *msg)
{
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = msg});
}

/* A group of a rank here and one of node 1, and an engine that has to go. */
static struct bench *with_group(struct group **ret)
{
    struct bench *bench = with_engine("0.0.9", SETTINGS);
    struct msg msg = {.type = MSG_PEER_HELLO, .peer_hello = {MSG_VERSION, 9, "test", "b"}};
    struct core *core = bench->core;
    char name[2] = "a";

    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    core->peers[1].state = CORE_PEER_READY;
    core->peers[1].since_ms = 0; /* not since now */
    hello(bench, 0, 1000, false);
    for (; list_empty(&core->all_groups); name[0]++) { /* until the home of one is here */
        join(bench, 0, (uint32_t)name[0], name, 0, 2);
        msg = (struct msg){.type = MSG_JOIN};
        msg.join = (struct msg_join){
            .join = (uint64_t)name[0] << 17 | 1, .uid = 1000, .pid = 7, .rank = 1, .size = 2};
        strcpy(msg.join.name, name);
        peer_says(bench, &msg);
    }
    *ret = list_first(&core->all_groups, struct group, all);
    msg = (struct msg){.type = MSG_SYNC, .sync.group = (*ret)->id};
    peer_says(bench, &msg);
    assert_int_equal((*ret)->state, GROUP_OPEN);
    bench->got[0] = 0;
    return bench;
}

static void answer(struct bench *bench, const struct group *group, bool peer, unsigned step,
                   uint32_t ops, uint32_t sent, uint32_t came)
{
    struct msg msg = {.type = peer ? MSG_PAUSED : MSG_BOARD_PAUSE};

    msg.pause = (struct msg_pause){.group = group->id,
                                   .attempt = bench->core->pausing.attempt,
                                   .step = step,
                                   .ops = ops,
                                   .sent = sent,
                                   .came = came};
    if (peer)
        peer_says(bench, &msg);
    else
        feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

static void its_groups_come_to_rest(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);

    second(bench);
    expect(bench, "to engine message 50\nto 1 message 38\nto engine message 59\n");
    answer(bench, group, false, PAUSE_POSTED, 4, 0, 0);
    answer(bench, group, false, PAUSE_POSTED, 9, 0, 0); /* again: not believed */
    expect(bench, "");
    answer(bench, group, true, PAUSE_POSTED, 5, 0, 0);
    expect(bench, "to 1 message 38\nto engine message 59\n");
    assert_int_equal(group->pause.ops, 5);
    answer(bench, group, true, PAUSE_QUIET, 4, 1, 2); /* not there */
    answer(bench, group, true, PAUSE_QUIET, 5, 3, 0);
    answer(bench, group, true, PAUSE_QUIET, 5, 0, 1);
    answer(bench, group, false, PAUSE_QUIET, 5, 1, 2);
    expect(bench, ""); /* one message is on its way */
    answer(bench, group, true, PAUSE_QUIET, 5, 0, 1);
    expect(bench, "engine kill\nto 1 message 22\ngroup position?\n");
    assert_int_equal(bench->core->pausing.state, PAUSING_NOT);
    assert_int_equal(group->bond, BOND_READ);
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
    expect(bench, "engine start\n");
    assert_int_equal(core_counts(bench->core)->engine_losses, 0);
    bench_free(bench);
}

static void groups_that_do_not_come_to_rest_go_on(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);
    uint64_t wait = 2000;

    second(bench);
    expect(bench, "to engine message 50\nto 1 message 38\nto engine message 59\n");
    answer(bench, group, true, PAUSE_BUSY, 0, 0, 0);
    expect(bench, "to 1 message 38\nto engine message 59\n"); /* END */
    answer(bench, group, false, PAUSE_POSTED, 5, 0, 0);       /* of what is over */
    second(bench);
    expect(bench, "to engine message 50\n");
    second(bench);
    expect(bench, "to engine message 50\nto 1 message 38\nto engine message 59\n");
    answer(bench, group, false, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, true, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, true, PAUSE_QUIET, 5, 0, 0);
    bench->got[0] = 0;
    bench->now += 500; /* then nobody is believed any more */
    answer(bench, group, false, PAUSE_QUIET, 5, 0, 0);
    expect(bench, "to 1 message 38\nto engine message 59\n");
    assert_int_equal(bench->core->pausing.wait_ms, 2 * wait);
    assert_int_equal(group->bond, BOND_BOUND);
    bench_free(bench);
}

static void a_node_that_is_away_has_to_come_back_first(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);

    second(bench);
    answer(bench, group, false, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, true, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, true, PAUSE_QUIET, 5, 0, 0);
    bench->core->peers[1].state = CORE_PEER_LINKING;
    bench->got[0] = 0;
    answer(bench, group, false, PAUSE_QUIET, 5, 0, 0);
    expect(bench, "to 1 message 38\nto engine message 59\n"); /* END */
    assert_int_equal(bench->core->engine.life.state, CORE_ENGINE_UP);
    for (unsigned i = 0; i < 4; i++)
        second(bench); /* nor is it asked now */
    expect(bench, "to engine message 50\nto engine message 50\nto engine message 50\n"
                  "to engine message 50\n");
    bench_free(bench);
}

/* Engines of other nodes would refuse one that differs in that. */
static void settings_that_engines_share(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);
    struct life *life = &bench->core->engine.life;

    text_copy(life->build, sizeof(life->build), bench->core->version);
    life->settings = SETTINGS + 1;
    second(bench);
    expect(bench, "to engine message 50\n");
    life->settings = SETTINGS + (CORE_SETTINGS_SHARED + 1);
    second(bench);
    expect(bench, "to engine message 50\nto 1 message 38\nto engine message 59\n");
    bench_free(bench);
}

static void a_group_that_came_meanwhile(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);

    second(bench);
    answer(bench, group, false, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, true, PAUSE_POSTED, 5, 0, 0);
    answer(bench, group, false, PAUSE_QUIET, 5, 0, 0);
    bench->got[0] = 0;
    group->pause.attempt--; /* as if it were one */
    bench->core->pausing.left = 1;
    answer(bench, group, true, PAUSE_QUIET, 5, 0, 0);
    expect(bench, "");
    bench->now += 500;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(bench->core->pausing.state, PAUSING_NOT);
    assert_int_equal(bench->core->engine.life.state, CORE_ENGINE_UP);
    bench_free(bench);
}

static void another_node_asks(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);
    struct msg msg = {.type = MSG_PAUSE}, down = {.type = MSG_ENGINE_PEER_DOWN};

    msg.pause = (struct msg_pause){.group = group->id, .attempt = 3, .step = PAUSE_ASK};
    peer_says(bench, &msg);
    expect(bench, "to engine message 59\n");
    bench->core->peers[1].state = CORE_PEER_LINKING;
    peer_says(bench, &msg);
    expect(bench, "to 1 message 39\n"); /* BUSY */
    msg.pause.step = PAUSE_END;
    peer_says(bench, &msg);
    expect(bench, "to engine message 59\n"); /* in any case */
    msg.pause.step = PAUSE_ASK;
    bench->core->peers[1].state = CORE_PEER_READY;
    bench->core->engine.life.settings = bench->core->config.engine_settings;
    text_copy(bench->core->engine.life.build, MSG_NAME_MAX, bench->core->version);
    second(bench);
    bench->got[0] = 0;
    peer_says(bench, &msg);
    expect(bench, "to engine message 59\n");
    msg.type = MSG_BOARD_PAUSE;
    msg.pause.step = PAUSE_POSTED;
    msg.pause.asker = 1;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    expect(bench, "to 1 message 39\n");
    msg.pause.asker = 2; /* there is no such node */
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    expect(bench, "");
    msg.type = MSG_PAUSE;
    msg.pause.step = PAUSE_ASK;
    msg.pause.group++;
    peer_says(bench, &msg);
    expect(bench, "to 1 message 39\n"); /* BUSY */
    /* Its engine is gone, before it could say so: the group waits for the next one, however long
     * that takes to start. */
    bench->core->engine.version = MSG_VERSION;
    bench->core->peers[1].theirs = PEER_ENGINE_ACCEPTED;
    bench->core->peers[1].engine = down.engine_peer.engine = 77;
    bench->core->peers[1].backoff_ms = 100;
    down.engine_peer.peer = 1;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &down});
    expect(bench, "to 1 message 23\n" /* if it is not gone it has to give up the link, too */
                  "to engine message 42\nto engine message 56\n"); /* BOARD_HOLD */
    assert_int_equal(group->bond, BOND_ASKED);
    bench->now += 4000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(group->state, GROUP_OPEN);
    /* Its commd is restarted just then. */
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    assert_int_equal(bench->core->peers[1].state, CORE_PEER_AWAY);
    assert_int_equal(group->state, GROUP_OPEN);
    bench_free(bench);
}

/* Likewise, where the commd is restarted before its engine is found to be gone. */
static void another_node_asks_and_is_restarted(void **state)
{
    struct group *group;
    struct bench *bench = with_group(&group);
    struct msg msg = {.type = MSG_PAUSE}, down = {.type = MSG_ENGINE_PEER_DOWN};
    struct peer *peer = &bench->core->peers[1];

    msg.pause = (struct msg_pause){.group = group->id, .attempt = 3, .step = PAUSE_ASK};
    peer_says(bench, &msg);
    peer->theirs = PEER_ENGINE_ACCEPTED;
    peer->engine = down.engine_peer.engine = 77;
    peer->backoff_ms = 100;
    down.engine_peer.peer = 1;
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &down});
    assert_int_equal(peer->state, CORE_PEER_AWAY);
    assert_int_equal(group->bond, BOND_ASKED);
    bench_free(bench);
}

/* ---- commd-gpu ------------------------------------------------------------------------------- */

static void ask_for_gpus(struct bench *bench, unsigned client, uint32_t req)
{
    say(bench, client, &(struct msg){.type = MSG_GPU_ASK, .gpu_ask.req = req});
}

static void gpu_says_hello(struct bench *bench, const char *build)
{
    struct msg msg = {.type = MSG_GPU_HELLO,
                      .gpu_hello = {.version = MSG_VERSION, .devices = 1, .nccl = 1}};

    text_copy(msg.gpu_hello.build, sizeof(msg.gpu_hello.build), build);
    feed(bench, (struct core_event){.type = CORE_GPU_MSG, .msg = &msg});
}

static void commd_gpu_without_a_session(void **state)
{
    struct core_config config = config_of(1);
    struct core_gpu_view view;
    struct bench *bench;

    config.gpu = true;
    config.gpu_timeout_ms = 100000;
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    ask_for_gpus(bench, 0, 1);
    expect(bench, "0 WELCOME to a of test\ngpu start\n");
    gpu_says_hello(bench, "0.0.9");
    expect(bench, "0 gpu session req 1, user 1000 pid 100\n");
    bench->now += 1000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "to gpu message 50 of 1\n"); /* it serves somebody */
    feed(bench, (struct core_event){.type = CORE_GPU_MSG,
                                    .msg = &(struct msg){.type = MSG_PING, .ping = {1, 1}}});
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "exited"});
    bench->got[0] = 0;
    bench->now += 1000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "to gpu message 50 of 2\ngpu kill\n");
    hello(bench, 1, 1000, false);
    ask_for_gpus(bench, 1, 7); /* while it ends: who asks waits */
    expect(bench, "1 WELCOME to a of test\n");
    feed(bench, (struct core_event){.type = CORE_GPU_DOWN, .text = "killed by signal 9"});
    expect(bench, "gpu start\n");
    gpu_says_hello(bench, "0.1.0");
    expect(bench, "1 gpu session req 7, user 1000 pid 101\n");
    core_gpu(bench->core, &view);
    assert_string_equal(view.build, "0.1.0");
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_another_version),
        cmocka_unit_test(one_that_does_not_say_what_it_is),
        cmocka_unit_test(the_next_one_is_no_better),
        cmocka_unit_test(another_node_may_need_it),
        cmocka_unit_test(settings_that_a_reload_changed),
        cmocka_unit_test(its_groups_come_to_rest),
        cmocka_unit_test(groups_that_do_not_come_to_rest_go_on),
        cmocka_unit_test(a_node_that_is_away_has_to_come_back_first),
        cmocka_unit_test(settings_that_engines_share),
        cmocka_unit_test(a_group_that_came_meanwhile),
        cmocka_unit_test(another_node_asks),
        cmocka_unit_test(another_node_asks_and_is_restarted),
        cmocka_unit_test(commd_gpu_without_a_session),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
