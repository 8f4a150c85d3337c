/* test_faults.c - what fails under commd-gpu: NCCL, memory, the driver. Each failure is named, and
 * ends what it must; other groups, and the next operation, work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>

#include "oracle.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

static void start_with_knobs(struct service *sv, const char *line)
{
    const char *const *settings = service_knobs(line);

    env_set("TEST_TIMEOUT", "1000");
    env_set("GPU_TEST_LOG", getenv("GPU_TEST_TALK") ? "info" : "error");
    service_start(sv, settings);
    env_set("GPU_TEST_LOG", NULL);
    env_set("TEST_TIMEOUT", NULL);
}

/* ---- ranks that add up ------------------------------------------------------------------------
 */

struct crew {
    struct meeting *meetings; /* one of the crew; one of all that is left to them: see @over */
    _Atomic uint32_t *over;   /* the last operation: known to all before they come to it */
    uint64_t group;
    unsigned world, rank;
    uint8_t device[4];
    const char *text; /* part of what operations fail with at first; NULL: they do not */
    unsigned failures;
    uint64_t first; /* the operation that fails first; 0: whichever */
};

static void sum_of(struct request *q, uint64_t seq, const struct buffer *b, uint32_t number)
{
    *q = (struct request){.desc = {.seq = seq,
                                   .count = 1000,
                                   .coll = COLL_ALL_REDUCE,
                                   .dtype = DTYPE_I32,
                                   .redop = REDOP_SUM},
                          .group = number,
                          .send = {.memory = b->id},
                          .recv = {.memory = b->id, .offset = 8192}};
}

/* One operation: its code, and if that is 0 the right sum. */
static int add_up(struct client *c, const struct crew *x, uint64_t seq, const struct buffer *b,
                  uint32_t number, struct session_result *r)
{
    int32_t words[1000];
    struct request q;
    int code;

    for (unsigned i = 0; i < 1000; i++)
        words[i] = (int32_t)(x->rank + seq + i);
    client_put(c, b->at, words, sizeof words);
    sum_of(&q, seq, b, number);
    code = client_wait(c, client_announce(c, &q), r);
    if (code)
        return code;
    client_get(c, words, b->at + 8192, sizeof words);
    for (unsigned i = 0; i < 1000; i++)
        MUST(words[i] == (int32_t)(x->world * (x->world - 1) / 2 + x->world * (seq + i)));
    return 0;
}

static void join_crew(struct client *c, int sock, const struct crew *x, struct buffer *b)
{
    struct attaching m;

    MUST(client_open(c, sock, x->device[x->rank]) == 0);
    MUST(client_alloc(c, 1 << 20, b) == 0);
    membership_spread(&m, c, 0, x->group, x->world, x->rank, x->device);
    MUST(client_attach(c, &m) == 0);
}

/* Who does not fail, while others do. */
static int works_on(void *arg, int sock)
{
    const struct crew *x = arg;
    struct session_result r = {.code = 0};
    struct buffer b;
    struct client c;
    uint64_t seq = 1;

    join_crew(&c, sock, x, &b);
    for (; seq < 20 || atomic_load(x->over) < 2 || seq <= atomic_load(x->over); seq++) {
        int code = add_up(&c, x, seq, &b, 0, &r);

        if (code)
            fprintf(stderr, "who works on: %d %s\n", code, r.text);
        MUST(code == 0);
        if (x->rank == 0 && atomic_load(x->over) == 1)
            atomic_store(x->over, (uint32_t)(seq + 3));
    }
    meet(x->meetings, x->world);
    return 0;
}

/* With memory that is mapped for its own GPU alone. */
static int works_once(void *arg, int sock)
{
    const struct crew *x = arg;
    struct session_result r;
    struct attaching m;
    struct buffer b;
    struct client c;

    MUST(client_open(&c, sock, x->device[x->rank]) == 0);
    MUST(client_alloc_chunks(&c, 4 << 20, 2, &b) == 0);
    membership_spread(&m, &c, 0, x->group, x->world, x->rank, x->device);
    MUST(client_attach(&c, &m) == 0);
    MUST(add_up(&c, x, 1, &b, 0, &r) == 0);
    if (x->meetings)
        meet(x->meetings, x->world + 1);
    return 0;
}

/* Begins anew after each failure, as libcommd does. */
static int fails_at_first(void *arg, int sock)
{
    const struct crew *x = arg;
    uint32_t number = 0;
    struct session_result r;
    struct attaching m;
    struct buffer b;
    struct client c;
    unsigned failed = 0;

    join_crew(&c, sock, x, &b);
    for (uint64_t seq = 1, right = 0; right < 10; seq++) {
        struct session_msg gone = {.type = SESSION_DETACH, .id = number};

        if (!add_up(&c, x, seq, &b, number, &r)) {
            right += failed == x->failures;
            continue;
        }
        if (r.code != COMMD_E_GPU_LOST || !strstr(r.text, x->text) || ++failed > x->failures)
            fprintf(stderr, "rank %u, failure %u: %d %s\n", x->rank, failed, r.code, r.text);
        MUST(r.code == COMMD_E_GPU_LOST && strstr(r.text, x->text) && failed <= x->failures);
        MUST(failed > 1 || !x->first || seq == x->first);
        if (failed == x->failures && x->rank == 0)
            service_turn_knobs("");
        meet(x->meetings, x->world);
        MUST(client_send(&c, &gone, NULL, 0, NULL, 0));
        membership_spread(&m, &c, ++number, x->group, x->world, x->rank, x->device);
        m.first = seq + 1;
        MUST(client_attach(&c, &m) == 0);
    }
    meet(x->meetings, x->world);
    return 0;
}

/* Three ranks on GPUs 0, 1, 2 whose NCCL fails as @line says. Beside them two on GPUs 2 and 3, and
 * two on GPU 0. */
static void run_failing_at(uint64_t first, const char *line, const char *text)
{
    struct crew fails = {.meetings = meetings_new(1),
                         .group = 7,
                         .world = 3,
                         .device = {0, 1, 2},
                         .text = text,
                         .failures = 2,
                         .first = first},
                across = {.meetings = meetings_new(2), .group = 8, .world = 2, .device = {2, 3}},
                alone = {.meetings = meetings_new(2), .group = 9, .world = 2, .device = {0, 0}};
    struct crew x[7];
    struct service sv;
    pid_t pids[7];

    start_with_knobs(&sv, line);
    across.over = &across.meetings[1].came;
    alone.over = &alone.meetings[1].came;
    for (unsigned i = 0; i < 7; i++) {
        x[i] = i < 3 ? fails : i < 5 ? across : alone;
        x[i].rank = i < 3 ? i : (i - 3) % 2;
        pids[i] = client_spawn(&sv, 1000 + (i < 3), i < 3 ? fails_at_first : works_on, &x[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(client_join(pids[i]), 0);
    atomic_store(across.over, 1);
    atomic_store(alone.over, 1);
    for (unsigned i = 3; i < 7; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

static void run_failing(const char *line, const char *text)
{
    run_failing_at(0, line, text);
}

static void nccl_that_fails_at_init(void **state)
{
    (void)state;
    run_failing("FAKENCCL_FAIL_INIT=2:2",
                "NCCL failed in making a communicator of group \"group 7\"");
}

static void nccl_that_fails(void **state)
{
    (void)state;
    run_failing("FAKENCCL_FAIL_AT=2:3:6", "NCCL failed in an operation of group \"group 7\"");
}

/* As NCCL connects to other ranks: in a thread, which every abort waits for. */
static void a_connection_that_hangs(void **state)
{
    (void)state;
    run_failing("FAKENCCL_LAUNCH_US=10\nFAKENCCL_CONNECT_HANGS=2",
                "NCCL does not come forward: all_reduce of group \"group 7\" stands still");
}

static void nccl_that_hangs(void **state)
{
    (void)state;
    run_failing("FAKENCCL_HANG_AT=2:3",
                "stands still for 1000 ms in all_reduce of group \"group 7\"");
}

/* Its ranks must not be aborted at once. */
static void an_old_nccl_that_hangs(void **state)
{
    env_set("FAKENCCL_VERSION", "21800");
    nccl_that_hangs(state);
    env_set("FAKENCCL_VERSION", NULL);
}

/* As above, while NCCL says "in progress" for long, and streams are late. */
static void nccl_that_fails_late(void **state)
{
    (void)state;
    env_set("FAKENCCL_PROGRESS", "5");
    env_set("FAKECUDA_DELAY_US", "2000");
    run_failing("FAKENCCL_FAIL_AT=2:2:3", "NCCL failed in ");
    env_set("FAKENCCL_PROGRESS", NULL);
    env_set("FAKECUDA_DELAY_US", NULL);
}

/* Each operation has eight parts, so the first one fails. */
static void nccl_that_fails_between_parts(void **state)
{
    (void)state;
    env_set("TEST_PART", "512");
    run_failing_at(1, "FAKENCCL_FAIL_AT=2:3:6", "NCCL failed in an operation of group \"group 7\"");
    run_failing_at(1, "FAKENCCL_HANG_AT=2:6",
                   "stands still for 1000 ms in all_reduce of group \"group 7\"");
    env_set("TEST_PART", NULL);
}

static void wait_for_communicators(struct service *sv, unsigned device, uint32_t n)
{
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    do {
        assert_true(now_ms() < end);
        usleep(1000);
        assert_true(service_ask(sv));
    } while (sv->device[device].communicators != n);
}

/* Nobody is left to use it. */
static void a_communicator_of_no_group_goes(void **state)
{
    struct crew x[2];
    struct service sv;
    pid_t pids[2];

    (void)state;
    start_with_knobs(&sv, "");
    for (unsigned i = 0; i < 2; i++) {
        x[i] = (struct crew){.group = 7, .world = 2, .rank = i, .device = {0, 1}};
        pids[i] = client_spawn(&sv, 1000, works_once, &x[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_ask(&sv));
    assert_int_equal(sv.device[0].operations, 1);
    wait_for_communicators(&sv, 0, 0);
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

static int fails_for_good(void *arg, int sock)
{
    const struct crew *x = arg;
    struct session_result r = {.code = 0};
    struct buffer b;
    struct client c;
    uint64_t seq = 1;

    join_crew(&c, sock, x, &b);
    while (!add_up(&c, x, seq, &b, 0, &r))
        seq++;
    MUST(seq == 3 && r.code == COMMD_E_GPU_LOST && strstr(r.text, x->text));
    MUST(!client_receive(&c));
    return 0;
}

/* The last resort: what does not come back is ended with the process. */
static void an_abort_that_hangs_ends_the_process(void **state)
{
    struct crew x[3];
    struct service sv;
    pid_t pids[3];

    (void)state;
    start_with_knobs(&sv, "FAKENCCL_HANG_AT=2:3\nFAKENCCL_ABORT_HANGS=1");
    for (unsigned i = 0; i < 3; i++) {
        x[i] = (struct crew){.group = 7,
                             .world = 3,
                             .rank = i,
                             .device = {0, 1, 2},
                             .text = "stands still for 1000 ms in all_reduce of group"};
        pids[i] = client_spawn(&sv, 1000, fails_for_good, &x[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_status(&sv), 1);
    service_knobs_end();
}

/* One on each of the first @n devices. */
static void wait_for_operations(struct service *sv, unsigned n)
{
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    for (unsigned i = 0; i < n; i++)
        while (!sv->device[i].operations) {
            assert_true(now_ms() < end);
            usleep(1000);
            assert_true(service_ask(sv));
        }
}

/* One operation, which fails; then all is given up. */
static int fails_once(void *arg, int sock)
{
    const struct crew *x = arg;
    struct session_result r = {.code = 0};
    struct buffer b;
    struct client c;

    join_crew(&c, sock, x, &b);
    MUST(add_up(&c, x, 1, &b, 0, &r) == COMMD_E_GPU_LOST);
    if (!strstr(r.text, x->text))
        fprintf(stderr, "rank %u: %s\n", x->rank, r.text);
    MUST(strstr(r.text, x->text));
    return 0;
}

/* Three ranks whose operation never ends on the streams; behind it two are being connected, which
 * hangs, too. Their abort frees memory, and so waits for that of the first. */
static void aborts_that_wait_for_each_other(void **state)
{
    struct crew hangs = {.group = 7,
                         .world = 3,
                         .device = {0, 1, 2},
                         .text = "stands still for 1000 ms in all_reduce of group \"group 7\""},
                connects = {.group = 8, .world = 2, .device = {0, 1}, .text = "stands still"};
    struct crew x[5];
    struct service sv;
    pid_t pids[5];

    (void)state;
    start_with_knobs(&sv, "FAKENCCL_HANG_AT=2:1\nFAKENCCL_ABORT_FREES=1");
    for (unsigned i = 0; i < 5; i++) {
        x[i] = i < 3 ? hangs : connects;
        x[i].rank = i % 3;
        if (i == 3) {
            wait_for_operations(&sv, 3); /* the first runs */
            service_turn_knobs("FAKENCCL_LAUNCH_US=10\nFAKENCCL_CONNECT_HANGS=1\n"
                               "FAKENCCL_ABORT_FREES=1");
        }
        pids[i] = client_spawn(&sv, 1000, fails_once, &x[i]);
    }
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

/* While a communicator is to go that nobody uses any more, another one hangs on its GPUs. An abort
 * of the first frees memory, and would wait for what hangs. */
static void a_communicator_goes_behind_one_that_hangs(void **state)
{
    struct crew goes = {.meetings = meetings_new(1), .group = 7, .world = 3, .device = {0, 1, 2}},
                hangs = {.group = 8,
                         .world = 2,
                         .device = {0, 1},
                         .text = "stands still for 1000 ms in all_reduce of group \"group 8\""},
                alone = {.meetings = meetings_new(2), .group = 9, .world = 2, .device = {3, 3}};
    struct crew x[7];
    struct service sv;
    pid_t pids[7];

    (void)state;
    start_with_knobs(&sv, "FAKENCCL_ABORT_FREES=1");
    alone.over = &alone.meetings[1].came;
    for (unsigned i = 0; i < 7; i++) {
        x[i] = i < 3 ? goes : i < 5 ? hangs : alone;
        x[i].rank = i < 3 ? i : (i - 3) % 2;
    }
    for (unsigned i = 5; i < 7; i++)
        pids[i] = client_spawn(&sv, 1001, works_on, &x[i]);
    for (unsigned i = 0; i < 3; i++)
        pids[i] = client_spawn(&sv, 1000, works_once, &x[i]);
    while (atomic_load(&goes.meetings->came) < 3)
        usleep(1000);
    service_turn_knobs("FAKENCCL_HANG_AT=1:1\nFAKENCCL_ABORT_FREES=1");
    for (unsigned i = 3; i < 5; i++)
        pids[i] = client_spawn(&sv, 1000, fails_once, &x[i]);
    wait_for_communicators(&sv, 0, 2);
    meet(goes.meetings, 4);
    wait_for_communicators(&sv, 2, 0);
    assert_int_equal(sv.device[0].communicators, 0); /* the other one has failed before */
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(client_join(pids[i]), 0);
    atomic_store(alone.over, 1);
    for (unsigned i = 5; i < 7; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

/* A user has as many communicators as it may, and makes another one, while one of them hangs on its
 * GPUs. An abort of the one that goes for it would wait for what hangs, and could come to its limit
 * together with that: so it waits before. */
static void a_communicator_makes_room_behind_one_that_hangs(void **state)
{
    enum { KEPT = 16 };
    static const uint8_t devices[KEPT][3] = {
        {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 2},    {1, 3},    {2, 0},    {2, 1},
        {2, 3}, {3, 0}, {3, 1}, {3, 2}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}};
    struct meeting *meetings = meetings_new(KEPT);
    struct crew kept[KEPT][3], x[5];
    struct service sv;
    pid_t pids[KEPT][3], more[5];
    uint64_t before;

    (void)state;
    start_with_knobs(&sv, "FAKENCCL_HANG_AT=1:2\nFAKENCCL_ABORT_FREES=1\nFAKENCCL_ABORT_ALONE=1");
    for (unsigned k = 0; k < KEPT; k++) {
        unsigned world = k < 12 ? 2 : 3;

        for (unsigned i = 0; i < world; i++) {
            kept[k][i] = (struct crew){
                .meetings = &meetings[k], .group = 100 + k, .world = world, .rank = i};
            memcpy(kept[k][i].device, devices[k], sizeof devices[k]);
            pids[k][i] = client_spawn(&sv, 1000, works_once, &kept[k][i]);
        }
        while (atomic_load(&meetings[k].came) < world)
            usleep(1000);
    }
    assert_true(service_ask(&sv));
    before = sv.device[0].operations;
    for (unsigned i = 0; i < 5; i++) {
        x[i] = i < 2 ? (struct crew){.group = 7, .world = 2, .rank = i, .device = {0, 1}}
                     : (struct crew){.group = 8, .world = 3, .rank = i - 2, .device = {2, 0, 1}};
        x[i].text = "stands still for 1000 ms in all_reduce of group \"group 7\"";
        while (i == 2 && sv.device[0].operations == before)
            assert_true(service_ask(&sv)); /* the first one is to hang */
        more[i] = client_spawn(&sv, 1000 + (i < 2), i < 2 ? fails_once : works_once, &x[i]);
    }
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(client_join(more[i]), 0);
    for (unsigned k = 0; k < KEPT; k++) {
        meet(&meetings[k], kept[k][0].world + 1);
        for (unsigned i = 0; i < kept[k][0].world; i++)
            assert_int_equal(client_join(pids[k][i]), 0);
    }
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

/* The first succeeds, the second not. */
static int fails_second(void *arg, int sock)
{
    const struct crew *x = arg;
    struct session_result r = {.code = 0};
    struct buffer b;
    struct client c;

    join_crew(&c, sock, x, &b);
    MUST(add_up(&c, x, 1, &b, 0, &r) == 0);
    meet(&x->meetings[0], x->world + 1);
    meet(&x->meetings[1], x->world + 1);
    MUST(add_up(&c, x, 2, &b, 0, &r) == COMMD_E_GPU_LOST && strstr(r.text, x->text));
    return 0;
}

static int tells_of_memory(void *arg, int sock)
{
    struct buffer b;
    struct client c;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    MUST(client_alloc(&c, 1 << 20, &b) == 0);
    return 0;
}

/* NCCL must not launch beside a call that frees or maps memory. */
static void a_call_of_the_driver_that_hangs(void **state)
{
    struct crew x[2];
    struct service sv;
    pid_t pids[3];

    (void)state;
    start_with_knobs(&sv, "");
    x[0] = (struct crew){.meetings = meetings_new(2),
                         .group = 7,
                         .world = 2,
                         .device = {0, 1},
                         .text = "a call of the driver does not come back: all_reduce of group"};
    x[1] = x[0];
    x[1].rank = 1;
    for (unsigned i = 0; i < 2; i++)
        pids[i] = client_spawn(&sv, 1000, fails_second, &x[i]);
    meet(&x->meetings[0], 3);
    service_turn_knobs("FAKECUDA_OPEN_HANGS=1");
    pids[2] = client_spawn(&sv, 1001, tells_of_memory, NULL);
    usleep(300000); /* the call has begun */
    meet(&x->meetings[1], 3);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    service_turn_knobs("");
    assert_int_equal(client_join(pids[2]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

/* What commd's own environment says of it does not count: NCCL would reach into buffers that are
 * open to one GPU only. */
static void an_environment_with_settings_of_nccl(void **state)
{
    const char *settings[] = {"NCCL_P2P_DIRECT_DISABLE=0", NULL};
    struct crew x[2];
    struct service sv;
    pid_t pids[2];

    (void)state;
    service_start(&sv, settings);
    for (unsigned i = 0; i < 2; i++) {
        x[i] = (struct crew){.group = 7, .world = 2, .rank = i, .device = {0, 1}};
        pids[i] = client_spawn(&sv, 1000, works_once, &x[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_stop(&sv), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_that_fails_at_init),
        cmocka_unit_test(nccl_that_fails),
        cmocka_unit_test(nccl_that_hangs),
        cmocka_unit_test(an_old_nccl_that_hangs),
        cmocka_unit_test(a_connection_that_hangs),
        cmocka_unit_test(nccl_that_fails_late),
        cmocka_unit_test(nccl_that_fails_between_parts),
        cmocka_unit_test(aborts_that_wait_for_each_other),
        cmocka_unit_test(a_call_of_the_driver_that_hangs),
        cmocka_unit_test(an_environment_with_settings_of_nccl),
        cmocka_unit_test(a_communicator_of_no_group_goes),
        cmocka_unit_test(a_communicator_goes_behind_one_that_hangs),
        cmocka_unit_test(a_communicator_makes_room_behind_one_that_hangs),
        cmocka_unit_test(an_abort_that_hangs_ends_the_process),
    };

    env_set("FAKECUDA_DEVICES", "4");
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
