/* test_core_gpu.c - the life of commd-gpu as the core decides it, the sessions of clients at it,
 * and what commd-gpu may do as a client itself. */
#include "tests/unit/daemon/core_bench.h"

static struct bench *gpu_bench(unsigned nnodes)
{
    struct core_config config = config_of(nnodes);

    config.gpu = true;
    config.gpu_timeout_ms = 2000;
    return bench_new(&config);
}

static void ask(struct bench *bench, unsigned client, uint32_t req)
{
    struct msg msg = {.type = MSG_GPU_ASK, .gpu_ask = {.req = req}};

    say(bench, client, &msg);
}

static void gpu_says(struct bench *bench, const struct msg *msg)
{
    feed(bench, (struct core_event){.type = CORE_GPU_MSG, .msg = msg});
}

static void gpu_hello(struct bench *bench, unsigned devices, const char *text)
{
    struct msg msg = {.type = MSG_GPU_HELLO};

    msg.gpu_hello = (struct msg_gpu_hello){.version = MSG_VERSION, .devices = devices, .nccl = 1};
    text_copy(msg.gpu_hello.text, sizeof(msg.gpu_hello.text), text);
    gpu_says(bench, &msg);
}

static void gpu_dies(struct bench *bench, const char *why)
{
    feed(bench, (struct core_event){.type = CORE_GPU_DOWN, .text = why});
}

/* Clients 0 and 1 are there, nothing has been said of GPUs. */
static struct bench *two_clients(void)
{
    struct bench *bench = gpu_bench(1);

    hello(bench, 0, 1000, false);
    hello(bench, 1, 1001, false);
    bench->got[0] = 0;
    return bench;
}

static struct bench *two_sessions(void)
{
    struct bench *bench = two_clients();

    ask(bench, 0, 1);
    gpu_hello(bench, 2, "fake");
    ask(bench, 1, 1);
    bench->got[0] = 0;
    return bench;
}

static void nothing_before_the_first_ask(void **state)
{
    struct bench *bench = two_clients();
    struct core_gpu_view view;

    for (unsigned i = 0; i < 100; i++) {
        bench->now += 1000;
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "");
    assert_true(core_deadline(bench->core) == CORE_NEVER);
    core_gpu(bench->core, &view);
    assert_int_equal(view.state, CORE_ENGINE_OFF);
    assert_string_equal(view.text, "nobody has asked for it yet");
    ask(bench, 0, 7);
    expect(bench, "gpu start\n");
    bench_free(bench);
}

static void a_node_without_gpus_says_so(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;

    config.gpu_why = "gpu.enabled is no";
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    bench->got[0] = 0;
    ask(bench, 0, 7);
    expect(bench, "0 GPU_ANSWER req 7 cause 9: node a has no GPU service: gpu.enabled is no\n");
    bench_free(bench);
}

static void who_asks_while_it_starts_waits(void **state)
{
    struct bench *bench = two_clients();
    struct core_gpu_view view;

    ask(bench, 0, 7);
    ask(bench, 1, 8);
    expect(bench, "gpu start\n");
    feed(bench, (struct core_event){.type = CORE_GPU_STARTED, .pid = 55});
    gpu_hello(bench, 2, "driver 13.0");
    expect(bench,
           "0 gpu session req 7, user 1000 pid 100\n1 gpu session req 8, user 1001 pid 101\n");
    core_gpu(bench->core, &view);
    assert_int_equal(view.state, CORE_ENGINE_UP);
    assert_int_equal(view.pid, 55);
    assert_int_equal(view.sessions, 2);
    assert_int_equal(view.ndevices, 2);
    assert_string_equal(view.text, "driver 13.0");
    bench_free(bench);
}

static void who_goes_while_it_starts_gets_nothing(void **state)
{
    struct bench *bench = two_clients();

    ask(bench, 0, 7);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    bench->got[0] = 0;
    gpu_hello(bench, 1, "fake");
    expect(bench, "");
    hello(bench, 0, 1002, false); /* another one in its slot has not asked */
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    expect(bench, "0 WELCOME to a of test\n");
    bench_free(bench);
}

static void a_session_ends_with_its_client(void **state)
{
    struct bench *bench = two_sessions();

    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 1});
    expect(bench, "to gpu message 64 of 1\n");
    say(bench, 0, &(struct msg){.type = MSG_COMMIT}); /* it is closed for that */
    assert_non_null(strstr(bench->got, "to gpu message 64 of 0\n"));
    bench_free(bench);
}

static void another_request_ends_the_first_session(void **state)
{
    struct bench *bench = two_sessions();

    ask(bench, 0, 9);
    expect(bench, "to gpu message 64 of 0\n0 gpu session req 9, user 1000 pid 100\n");
    bench_free(bench);
}

static void who_asks_too_often_is_told_so(void **state)
{
    struct bench *bench = two_clients();
    unsigned sessions = 0;

    ask(bench, 0, 1);
    ask(bench, 0, 2); /* the first one waits */
    expect(bench, "gpu start\n"
                  "0 GPU_ANSWER req 2 cause 3: this client waits for an answer already\n");
    gpu_hello(bench, 1, "fake");
    expect(bench, "0 gpu session req 1, user 1000 pid 100\n");
    for (unsigned i = 0; i < 10000; i++) {
        bench->got[0] = 0;
        ask(bench, 0, i);
        sessions += strstr(bench->got, "gpu session") != NULL;
    }
    assert_int_equal(sessions, CORE_GPU_ASKS - 2);
    bench->now += 1000;
    bench->got[0] = 0;
    ask(bench, 1, 1);
    ask(bench, 0, 1);
    expect(bench, "1 gpu session req 1, user 1001 pid 101\nto gpu message 50 of 1\n"
                  "to gpu message 64 of 0\n0 gpu session req 1, user 1000 pid 100\n");
    bench_free(bench);
}

static void a_failed_start_is_told(void **state)
{
    struct bench *bench = two_clients();
    struct core_gpu_view view;

    ask(bench, 0, 7);
    ask(bench, 1, 8);
    gpu_dies(bench, "exited with status 1");
    expect(bench, "gpu start\n"
                  "0 GPU_ANSWER req 7 cause 9: node a has no GPU service: exited with status 1\n"
                  "1 GPU_ANSWER req 8 cause 9: node a has no GPU service: exited with status 1\n");
    core_gpu(bench->core, &view);
    assert_string_equal(view.text, "exited with status 1");
    ask(bench, 0, 10); /* at once */
    expect(bench, "gpu start\n");
    gpu_hello(bench, 0, "no device");
    expect(bench, "gpu kill\n");
    ask(bench, 1, 11); /* while it is being killed */
    gpu_dies(bench, "killed by signal 9");
    expect(bench, "0 GPU_ANSWER req 10 cause 9: node a has no GPU service: no device\n"
                  "1 GPU_ANSWER req 11 cause 9: node a has no GPU service: no device\n");
    bench_free(bench);
}

static void one_that_dies_again_and_again_waits(void **state)
{
    struct bench *bench = two_clients();

    for (unsigned i = 0; i < 11; i++) {
        bench->now += 200; /* not too often for a client */
        bench->got[0] = 0;
        ask(bench, 0, i);
        expect(bench, "gpu start\n");
        assert_null(strstr(bench->error, "again and again"));
        gpu_dies(bench, "exited with status 1");
    }
    assert_string_equal(bench->error,
                        "commd-gpu of node a could not start: exited with status 1 -> the next who "
                        "asks starts it again, but not before 100 ms are over: it dies again and "
                        "again");
    bench->now += 10;
    bench->got[0] = 0;
    ask(bench, 0, 20);
    expect(bench, "0 GPU_ANSWER req 20 cause 9: node a has no GPU service: exited with status 1; "
                  "who asks in 90 ms starts it again\n");
    bench->now += 90;
    ask(bench, 1, 21);
    gpu_dies(bench, "exited with status 1");
    bench->now += 199; /* twice as long */
    bench->got[0] = 0;
    ask(bench, 1, 22);
    assert_non_null(strstr(bench->got, "in 1 ms"));
    bench_free(bench);
}

static void it_starts_again_for_the_next_who_asks(void **state)
{
    struct bench *bench = two_sessions();

    gpu_dies(bench, "killed by signal 9");
    for (unsigned i = 0; i < 100; i++) {
        bench->now += 1000;
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "");
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 1});
    expect(bench, ""); /* its session was at the old one */
    ask(bench, 0, 5);
    gpu_hello(bench, 1, "again");
    expect(bench, "gpu start\n0 gpu session req 5, user 1000 pid 100\n");
    assert_int_equal(core_counts(bench->core)->gpu_starts, 2);
    assert_int_equal(core_counts(bench->core)->gpu_losses, 1);
    assert_int_equal(core_counts(bench->core)->gpu_sessions, 3);
    bench_free(bench);
}

static void no_hello_is_waited_for_so_long(void **state)
{
    struct bench *bench = two_clients();
    uint64_t begin = bench->now;

    ask(bench, 0, 1);
    expect(bench, "gpu start\n");
    while (!bench->got[0]) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "gpu kill\n");
    assert_int_equal(bench->now - begin, 2 * 2000);
    gpu_hello(bench, 1, "too late");
    expect(bench, "");
    gpu_dies(bench, "killed by signal 9");
    expect(bench, "0 GPU_ANSWER req 1 cause 9: node a has no GPU service: it did not say hello in "
                  "time\n");
    bench_free(bench);
}

static void silence_ends_it(void **state)
{
    struct bench *bench = two_sessions();
    struct msg pong = {.type = MSG_PING, .ping = {.seq = 1, .pong = 1}};
    uint64_t asked;

    bench->now = core_deadline(bench->core);
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "to gpu message 50 of 1\n");
    gpu_says(bench, &pong);
    bench->now = core_deadline(bench->core);
    asked = bench->now;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "to gpu message 50 of 2\n");
    gpu_says(bench, &pong); /* an old one */
    while (!bench->got[0]) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    expect(bench, "gpu kill\n");
    assert_int_equal(bench->now - asked, 2000);
    bench_free(bench);
}

static void devices_are_told(void **state)
{
    struct bench *bench = two_sessions();
    struct msg msg = {.type = MSG_GPU_DEVICE};
    struct core_gpu_view view;

    msg.gpu_device = (struct msg_gpu_device){.device = 1, .operations = 5, .uuid = "GPU-1"};
    gpu_says(bench, &msg);
    core_gpu(bench->core, &view);
    assert_int_equal(view.devices[1].operations, 5);
    assert_string_equal(view.devices[0].uuid, "");
    msg.gpu_device.device = 2;
    gpu_says(bench, &msg);
    expect(bench, "gpu kill\n");
    gpu_dies(bench, NULL);
    core_gpu(bench->core, &view);
    assert_int_equal(view.ndevices, 0);
    bench_free(bench);
}

static void what_is_not_for_it_ends_it(void **state)
{
    static const enum msg_type types[] = {MSG_GPU_HELLO, MSG_GPU_SESSION, MSG_ENGINE_HELLO,
                                          MSG_BOARD_ERROR};

    for (unsigned i = 0; i < ARRAY_LEN(types); i++) {
        struct bench *bench = two_sessions();

        gpu_says(bench, &(struct msg){.type = types[i]});
        expect(bench, "gpu kill\n");
        bench_free(bench);
    }
}

static void an_admin_session_has_none(void **state)
{
    struct bench *bench = two_clients();

    hello(bench, 2, 0, true);
    ask(bench, 2, 1);
    expect(bench, "2 WELCOME to a of test\n"
                  "2 REFUSED 10 an admin session has no use for GPUs\n2 close\n");
    bench_free(bench);
}

/* ---- commd-gpu as a client ------------------------------------------------------------------- */

static void its_names_are_its_own(void **state)
{
    struct bench *bench = two_clients();

    hello(bench, 2, CORE_GPU_UID, false);
    bench->got[0] = 0;
    join(bench, 0, 1, "commd-gpu/1000/7/1", 0, 1);
    expect(bench,
           "0 JOIN_FAILED req 1 cause 11 rank -1 node a: group \"commd-gpu/1000/7/1\": names "
           "that begin with commd-gpu/ are for commd's own GPU service\n");
    join(bench, 2, 1, "commd-gpu/1000/7/1", 0, 1);
    expect(bench, "group open\n");
    ask(bench, 2, 3);
    expect(bench, "2 GPU_ANSWER req 3 cause 11: commd-gpu has no session at itself\n");
    bench_free(bench);
}

static void users_cannot_starve_it(void **state)
{
    struct core_config config = config_of(1);
    char name[32];
    struct bench *bench;
    struct core_status status;

    config.gpu = true;
    config.max_clients = 2;
    config.max_groups = 32;
    config.max_groups_per_user = 32; /* one user may have all */
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    hello(bench, 1, 1000, false);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, i % 2, i, name, 0, 1);
    }
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2);
    assert_int_equal(status.groups, 30); /* two are commd-gpu's, in any case */
    bench->got[0] = 0;
    hello(bench, 2, CORE_GPU_UID, false); /* beyond max_clients */
    join(bench, 2, 1, "commd-gpu/a", 0, 1);
    join(bench, 2, 2, "commd-gpu/b", 0, 1);
    expect(bench, "2 WELCOME to a of test\ngroup open\ngroup open\n");
    join(bench, 0, 50, "more", 0, 1);
    assert_non_null(strstr(bench->got, "JOIN_FAILED req 50 cause 3"));
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2);
    bench_free(bench);
}

static void draining_does_not_stop_it(void **state)
{
    struct bench *bench = gpu_bench(1);

    hello(bench, 5, 0, true);
    say(bench, 5, &(struct msg){.type = MSG_ADMIN, .admin = {.verb = "drain"}});
    bench->got[0] = 0;
    hello(bench, 2, CORE_GPU_UID, false);
    join(bench, 2, 1, "commd-gpu/a", 0, 1);
    expect(bench, "2 WELCOME to a of test\ngroup open\n");
    bench_free(bench);
}

/* ---- taking over ----------------------------------------------------------------------------- */

static bool restore_client(struct bench *bench, unsigned slot, uint32_t uid, uint32_t pid)
{
    return core_restore_client(
        bench->core, &(struct core_kept_client){
                         .slot = slot, .uid = uid, .payer = uid, .pid = pid, .program = "train"});
}

/* Clients 0 and 1 are away, and so is commd-gpu, which has pid 55. */
static struct bench *gpu_resuming(void)
{
    struct bench *bench = gpu_bench(1);

    core_restore_begin(bench->core, bench->now);
    assert_true(core_restore_gpu(bench->core, 55));
    assert_true(restore_client(bench, 0, 1000, 100));
    assert_true(restore_client(bench, 1, 1001, 101));
    assert_true(restore_client(bench, 2, CORE_GPU_UID, 55));
    assert_false(restore_client(bench, 3, CORE_GPU_UID, 56)); /* another process */
    feed(bench, (struct core_event){.type = CORE_TAKEN_OVER});
    expect(bench, "");
    return bench;
}

static void has_session(struct bench *bench, uint32_t client, uint32_t pid)
{
    struct msg msg = {.type = MSG_GPU_SESSION, .gpu_session = {.client = client, .pid = pid}};

    gpu_says(bench, &msg);
}

static void resumes(struct bench *bench)
{
    struct msg msg = {.type = MSG_GPU_HELLO};

    msg.gpu_hello =
        (struct msg_gpu_hello){.version = MSG_VERSION, .devices = 1, .nccl = 1, .resumed = 1};
    text_copy(msg.gpu_hello.text, sizeof(msg.gpu_hello.text), "fake");
    gpu_says(bench, &msg);
}

static void back(struct bench *bench, unsigned client)
{
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    msg.client_hello.version = MSG_VERSION;
    feed(bench, (struct core_event){.type = CORE_CLIENT_BACK,
                                    .client = client,
                                    .uid = client == 2 ? CORE_GPU_UID : 1000 + client,
                                    .pid = client == 2 ? 55 : 100 + client,
                                    .msg = &msg});
    bench->got[0] = 0;
}

static void sessions_go_on(void **state)
{
    struct bench *bench = gpu_resuming();
    struct core_gpu_view view;
    struct core_status status;

    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2); /* commd-gpu is not counted, away or not */
    has_session(bench, 0, 100);
    has_session(bench, 1, 101);
    has_session(bench, 1, 101);
    resumes(bench);
    expect(bench, "");
    core_gpu(bench->core, &view);
    assert_true(view.state == CORE_ENGINE_UP && view.pid == 55 && view.sessions == 2);
    assert_int_equal(core_counts(bench->core)->gpu_starts, 0);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    expect(bench, "to gpu message 64 of 0\n");
    back(bench, 1);
    back(bench, 2);
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 1);
    ask(bench, 1, 5);
    expect(bench, "to gpu message 64 of 1\n1 gpu session req 5, user 1001 pid 101\n");
    has_session(bench, 1, 101); /* not any more */
    expect(bench, "gpu kill\n");
    gpu_dies(bench, NULL);
    assert_int_equal(core_counts(bench->core)->gpu_losses, 1);
    bench_free(bench);
}

static void sessions_of_who_has_ended_end(void **state)
{
    struct bench *bench = gpu_resuming();

    has_session(bench, 0, 100);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    expect(bench, "to gpu message 64 of 0\n");
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 1});
    expect(bench, "");
    has_session(bench, 1, 101);
    has_session(bench, 0, 100);
    has_session(bench, 2, 55); /* its own slot */
    has_session(bench, 1000000, 7);
    expect(bench, "to gpu message 64 of 1\nto gpu message 64 of 0\nto gpu message 64 of 2\n"
                  "to gpu message 64 of 1000000\n");
    hello(bench, 0, 1000, true);
    hello(bench, 1, 1001, false);
    bench->got[0] = 0;
    has_session(bench, 0, 100); /* a tool of the admin has none */
    has_session(bench, 1, 7);   /* another process */
    expect(bench, "to gpu message 64 of 0\nto gpu message 64 of 1\n");
    bench_free(bench);
}

static void who_asks_while_it_resumes_waits(void **state)
{
    struct bench *bench = gpu_resuming();

    back(bench, 0);
    back(bench, 1);
    ask(bench, 0, 5);
    ask(bench, 1, 6);
    has_session(bench, 0, 100); /* of which the client has not heard */
    expect(bench, "");
    resumes(bench);
    expect(bench, "to gpu message 64 of 0\n0 gpu session req 5, user 1000 pid 100\n"
                  "1 gpu session req 6, user 1001 pid 101\n");
    bench_free(bench);
}

static void it_ends_instead_of_resuming(void **state)
{
    struct bench *bench = gpu_resuming();

    back(bench, 1);
    has_session(bench, 0, 100);
    ask(bench, 1, 5);
    gpu_dies(bench, "it ended while commd was restarted");
    expect(bench, "1 GPU_ANSWER req 5 cause 9: node a has no GPU service: it ended while commd was "
                  "restarted\n");
    assert_int_equal(core_counts(bench->core)->gpu_losses, 1);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    expect(bench, "");
    bench->now += 1000;
    ask(bench, 1, 6);
    has_session(bench, 1, 101); /* a new one has none yet */
    expect(bench, "gpu start\ngpu kill\n");
    bench_free(bench);
}

static void one_that_does_not_resume_is_killed(void **state)
{
    struct bench *bench = gpu_resuming();

    bench->now = core_deadline(bench->core);
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "gpu kill\n");
    bench_free(bench);
    bench = gpu_resuming();
    gpu_hello(bench, 1, "as if it were new");
    expect(bench, "gpu kill\n");
    bench_free(bench);
    bench = two_clients();
    ask(bench, 0, 1);
    resumes(bench); /* a new one */
    expect(bench, "gpu start\ngpu kill\n");
    bench_free(bench);
}

static void none_is_taken_over_where_none_is_wanted(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    core_restore_begin(bench->core, bench->now);
    assert_false(core_restore_gpu(bench->core, 55));
    assert_false(restore_client(bench, 2, CORE_GPU_UID, 55));
    bench_free(bench);
    bench = gpu_bench(1);
    core_restore_begin(bench->core, bench->now);
    assert_false(core_restore_gpu(bench->core, 0));
    assert_false(restore_client(bench, 2, CORE_GPU_UID, 0)); /* as pid of none */
    bench_free(bench);
}

static void one_that_has_ended_meanwhile_is_counted(void **state)
{
    struct core_counts counts = {.gpu_losses = 3};
    struct bench *bench = gpu_bench(1);

    core_restore_begin(bench->core, bench->now);
    core_restore_gpu_lost(bench->core, 55);
    core_restore_counts(bench->core, &counts);
    feed(bench, (struct core_event){.type = CORE_TAKEN_OVER});
    assert_int_equal(core_counts(bench->core)->gpu_losses, 4);
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_before_the_first_ask),
        cmocka_unit_test(a_node_without_gpus_says_so),
        cmocka_unit_test(who_asks_while_it_starts_waits),
        cmocka_unit_test(who_goes_while_it_starts_gets_nothing),
        cmocka_unit_test(a_session_ends_with_its_client),
        cmocka_unit_test(another_request_ends_the_first_session),
        cmocka_unit_test(who_asks_too_often_is_told_so),
        cmocka_unit_test(a_failed_start_is_told),
        cmocka_unit_test(one_that_dies_again_and_again_waits),
        cmocka_unit_test(it_starts_again_for_the_next_who_asks),
        cmocka_unit_test(no_hello_is_waited_for_so_long),
        cmocka_unit_test(silence_ends_it),
        cmocka_unit_test(devices_are_told),
        cmocka_unit_test(what_is_not_for_it_ends_it),
        cmocka_unit_test(an_admin_session_has_none),
        cmocka_unit_test(its_names_are_its_own),
        cmocka_unit_test(users_cannot_starve_it),
        cmocka_unit_test(draining_does_not_stop_it),
        cmocka_unit_test(sessions_go_on),
        cmocka_unit_test(one_that_has_ended_meanwhile_is_counted),
        cmocka_unit_test(sessions_of_who_has_ended_end),
        cmocka_unit_test(who_asks_while_it_resumes_waits),
        cmocka_unit_test(it_ends_instead_of_resuming),
        cmocka_unit_test(one_that_does_not_resume_is_killed),
        cmocka_unit_test(none_is_taken_over_where_none_is_wanted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
