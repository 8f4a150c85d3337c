/* test_core_renew.c - the core by itself: an engine, or commd-gpu, of another version makes room as
 * soon as nobody needs it. */
#include "tests/unit/daemon/core_bench.h"

enum { SETTINGS = 5 };

static struct core_config config_of_two(void)
{
    struct core_config config = config_of(2);

    config.heartbeat_ms = 100;
    config.node_timeout_ms = 100000;
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
        cmocka_unit_test(commd_gpu_without_a_session),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
