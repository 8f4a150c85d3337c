/* test_service.c - commd-gpu with clients in processes of their own, on one GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "oracle.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

/* ---- all collectives ------------------------------------------------------------------------- */

struct job {
    struct meeting *meetings;
    unsigned world, rank, operations, depth, units;
    uint8_t device[ORACLE_WORLD]; /* of each rank */
    uint64_t seed, group;
    bool chunks;
    uint32_t first;
};

/* A rank of @job's group: operations that all draw alike, some of them at a time. */
static void do_operations(struct client *c, const struct job *j, uint32_t number,
                          const struct buffer *in, const struct buffer *out)
{
    static struct task tasks[16];
    uint64_t seed = j->seed, own = j->seed + j->rank + 1;

    for (unsigned i = 0; i < j->operations + j->depth; i++) {
        struct task *t = &tasks[i % j->depth];
        uint64_t at = i % j->depth * (ORACLE_BYTES + CACHELINE);
        struct session_result r;
        struct sample s;

        if (i >= j->depth) {
            if (client_wait(c, t->n, &r)) {
                fprintf(stderr, "rank %u: %s: %d %s\n", j->rank, coll_name(t->s.coll), r.code,
                        r.text);
                MUST(!"it succeeds");
            }
            task_check(t, c);
        }
        if (draw(&own) % 16 == 0)
            usleep((useconds_t)(draw(&own) % 2000));
        if (i < j->operations) {
            sample_draw(&s, &seed, j->world, j->units, j->first + i);
            task_announce(t, c, &s, number, j->rank, in, at, out, at);
        }
    }
}

static int collectives(void *arg, int sock)
{
    const struct job *j = arg;
    struct buffer in, out;
    struct attaching m;
    struct client c;

    MUST(client_open(&c, sock, j->device[j->rank]) == 0);
    MUST(client_alloc(&c, 16 * (ORACLE_BYTES + CACHELINE), &in) == 0);
    MUST((j->chunks ? client_alloc_chunks(&c, 16 * (ORACLE_BYTES + CACHELINE), 3, &out)
                    : client_alloc(&c, 16 * (ORACLE_BYTES + CACHELINE), &out)) == 0);
    membership_spread(&m, &c, 7, j->group, j->world, j->rank, j->device);
    m.first = j->first;
    MUST(client_attach(&c, &m) == 0);
    do_operations(&c, j, 7, &in, &out);
    if (j->meetings)
        meet(j->meetings, j->world);
    return 0;
}

/* Ranks are spread over @gpus GPUs. */
static void run_spread(struct service *sv, unsigned world, unsigned gpus, unsigned operations,
                       uint64_t seed)
{
    uint64_t spread = seed;
    uint8_t device[ORACLE_WORLD];

    struct job jobs[ORACLE_WORLD];
    pid_t pids[ORACLE_WORLD];
    struct meeting *meeting = meetings_new(1);

    for (unsigned r = 0; r < world; r++)
        device[r] = (uint8_t)(r < gpus ? r : draw(&spread) % gpus);
    for (unsigned r = 0; r < world; r++) {
        jobs[r] = (struct job){.meetings = meeting,
                               .world = world,
                               .rank = r,
                               .operations = operations,
                               .depth = 1 + seed % 5,
                               .units = gpus,
                               .seed = seed * 1000,
                               .group = 100 + seed,
                               .chunks = r % 2,
                               .first = (uint32_t)(1 + seed)};
        memcpy(jobs[r].device, device, sizeof device);
        pids[r] = client_spawn(sv, 1000, collectives, &jobs[r]);
    }
    for (unsigned r = 0; r < world; r++)
        assert_int_equal(client_join(pids[r]), 0);
}

static void run_collectives(struct service *sv, unsigned world, unsigned operations, uint64_t seed)
{
    run_spread(sv, world, 1, operations, seed);
}

static void collectives_of_one_to_eight_ranks(void **state)
{
    struct service sv;

    (void)state;
    service_start(&sv, NULL);
    for (unsigned world = 1; world <= 8; world++)
        run_collectives(&sv, world, 60, world);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_true(sv.device[0].operations >= 8 * 60);
    assert_int_equal(service_stop(&sv), 0);
}

static void collectives_with_delays(void **state)
{
    static const char *const settings[] = {"FAKECUDA_DELAY_US=300", "FAKECUDA_SEED=3", NULL};
    struct service sv;

    (void)state;
    service_start(&sv, settings);
    putenv("FAKECUDA_DELAY_US=200");
    for (uint64_t seed = 11; seed < 14; seed++)
        run_collectives(&sv, 2 + (unsigned)seed % 3, 60, seed);
    env_set("FAKECUDA_DELAY_US", NULL);
    assert_int_equal(service_stop(&sv), 0);
}

static void sixteen_ranks(void **state)
{
    struct service sv;

    (void)state;
    service_start(&sv, NULL);
    run_collectives(&sv, 16, 30, 21);
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- groups ---------------------------------------------------------------------------------- */

struct mixed {
    struct meeting *meetings;
    unsigned rank;
    uint64_t group;
    uint64_t seed;
};

/* Four ranks in three groups, each of which they use in an order of their own. */
static int several_groups(void *arg, int sock)
{
    const struct mixed *x = arg;
    static struct task tasks[3][20];
    unsigned world[] = {4, 2, 2}, at[] = {0, 0, 0}, total = 0;
    unsigned rank[] = {x->rank, x->rank / 2, x->rank % 2};
    uint64_t seeds[] = {1, 2 + x->rank % 2, 4 + x->rank / 2}, own = x->seed + x->rank;
    struct buffer in, out;
    struct attaching m;
    struct client c;

    MUST(client_open(&c, sock, 0) == 0);
    MUST(client_alloc(&c, 60 * (ORACLE_BYTES + CACHELINE), &in) == 0);
    MUST(client_alloc(&c, 60 * (ORACLE_BYTES + CACHELINE), &out) == 0);
    for (unsigned g = 0; g < 3; g++) {
        membership_one(&m, &c, g, x->group + seeds[g], world[g], rank[g]);
        MUST(client_attach(&c, &m) == 0);
    }
    while (total < 60) {
        unsigned g = draw(&own) % 3;
        uint64_t where = total * (ORACLE_BYTES + CACHELINE);
        struct sample s;

        if (at[g] == 20)
            continue;
        sample_draw(&s, &seeds[g], world[g], 1, at[g] + 1);
        task_announce(&tasks[g][at[g]++], &c, &s, g, rank[g], &in, where, &out, where);
        total++;
    }
    for (unsigned i = 0; i < 60; i++) {
        MUST(client_wait(&c, tasks[i % 3][i / 3].n, NULL) == 0);
        task_check(&tasks[i % 3][i / 3], &c);
    }
    meet(x->meetings, 4);
    return 0;
}

/* Groups of two users have the same numbers. */
static void groups_in_any_order(void **state)
{
    struct service sv;
    struct mixed x[8];
    pid_t pids[8];

    (void)state;
    service_start(&sv, NULL);
    for (unsigned i = 0; i < 8; i++) {
        x[i] = (struct mixed){
            .meetings = i % 4 ? x[i - 1].meetings : meetings_new(1), .rank = i % 4, .seed = i / 4};
        pids[i] = client_spawn(&sv, 1000 + i / 4, several_groups, &x[i]);
    }
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_stop(&sv), 0);
}

static struct meeting *gate; /* where ranks of a test wait for each other */

/* ---- operations that do not fit -------------------------------------------------------------- */

static void start_sum(struct request *q, uint64_t seq, const struct buffer *b, uint64_t count)
{
    *q = (struct request){.desc = {.seq = seq,
                                   .count = count,
                                   .coll = COLL_ALL_REDUCE,
                                   .dtype = DTYPE_F32,
                                   .redop = REDOP_SUM},
                          .send = {.memory = b->id},
                          .recv = {.memory = b->id}};
}

/* Both ranks of group 0, whose number is 0. */
static void open_pair(struct client *c, int sock, unsigned rank, uint64_t group, struct buffer *b)
{
    struct attaching m;

    MUST(client_open(c, sock, 0) == 0);
    MUST(client_alloc(c, 1 << 20, b) == 0);
    membership_one(&m, c, 0, group, 2, rank);
    MUST(client_attach(c, &m) == 0);
}

/* Each does @fn. */
static void two_ranks(struct service *sv, client_fn fn)
{
    unsigned ranks[] = {0, 1};
    pid_t pids[2];

    service_start(sv, NULL);
    gate = meetings_new(1);
    for (unsigned i = 0; i < 2; i++)
        pids[i] = client_spawn(sv, 1000, fn, &ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
}

static int mismatch(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    uint64_t counts[] = {1, 2, 3, rank ? 2 : 4}; /* rank 0 sends 2, rank 1 expects 3 */
    struct session_result r;
    struct request q;
    struct buffer b;
    struct client c;

    open_pair(&c, sock, rank, 5, &b);
    start_sum(&q, 1, &b, 100 + rank);
    MUST(client_wait(&c, client_announce(&c, &q), &r) == COMMD_E_MISMATCH);
    MUST(!strcmp(r.text, "rank 0 called all_reduce f32 sum of 100 elements, but rank 1 called "
                         "all_reduce f32 sum of 101 elements; the group can still be used"));
    MUST(r.rank == 1);
    start_sum(&q, 2, &b, 100);
    q.desc.coll = COLL_ALL_TO_ALL_V;
    q.desc.count = q.desc.redop = 0;
    q.recv.offset = 1000;
    q.aux = counts;
    q.aux_words = 4;
    q.aux_bits = SESSION_SEND_COUNTS | SESSION_RECV_COUNTS;
    MUST(client_wait(&c, client_announce(&c, &q), &r) == COMMD_E_MISMATCH);
    MUST(strstr(r.text, "the counts that ranks gave do not fit"));
    start_sum(&q, 3, &b, 100);
    q.recv.offset = rank ? 2 : 0;
    MUST(client_wait(&c, client_announce(&c, &q), &r) == COMMD_E_INVALID);
    MUST(!strcmp(r.text, "rank 1: a buffer's address is no multiple of its elements' size"));
    start_sum(&q, 4, &b, 100);
    MUST(client_wait(&c, client_announce(&c, &q), &r) == 0);
    meet(gate, 2);
    return 0;
}

static void operations_that_differ(void **state)
{
    struct service sv;

    (void)state;
    two_ranks(&sv, mismatch);
    assert_int_equal(service_stop(&sv), 0);
}

/* Inputs that are not there yet are waited for, however long, and other operations go on. */
static int late_input(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    struct request q;
    struct buffer b;
    struct client c;
    struct attaching m;
    uint64_t n, other;

    open_pair(&c, sock, rank, 6, &b);
    membership_one(&m, &c, 1, 70 + rank, 1, 0);
    MUST(client_attach(&c, &m) == 0);
    start_sum(&q, 1, &b, 1000);
    n = client_announce_only(&c, &q);
    q.group = 1;
    q.send.offset = q.recv.offset = 8192;
    other = client_announce(&c, &q);
    MUST(client_wait(&c, other, NULL) == 0);
    usleep(20000);
    MUST(!client_done(&c, n));
    meet(gate, 2);
    if (!rank)
        client_ready(&c, n);
    usleep(20000);
    MUST(!client_done(&c, n));
    meet(gate, 2);
    if (rank)
        client_ready(&c, n);
    MUST(client_wait(&c, n, NULL) == 0);
    meet(gate, 2); /* who leaves first breaks the group */
    return 0;
}

static void inputs_that_come_late(void **state)
{
    struct service sv;

    (void)state;
    two_ranks(&sv, late_input);
    assert_int_equal(service_stop(&sv), 0);
}

/* Who frees memory that an operation names breaks the rules; the others of the GPU are not hurt. */
static int frees_too_early(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    struct request q;
    struct buffer b;
    struct client c;
    uint64_t n;

    open_pair(&c, sock, rank, 7, &b);
    start_sum(&q, 1, &b, 1000);
    n = client_announce_only(&c, &q);
    meet(gate, 2);
    usleep(20000); /* so that it has been seen */
    if (!rank)
        client_forget(&c, b.id);
    usleep(50000);
    meet(gate, 2);
    client_ready(&c, n);
    MUST(client_wait(&c, n, NULL) == 0);
    meet(gate, 2);
    return 0;
}

static void memory_stays_while_it_is_used(void **state)
{
    struct service sv;

    (void)state;
    two_ranks(&sv, frees_too_early);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

struct doomed {
    unsigned rank, victim, world;
    uint64_t group;
    useconds_t after;
    uint32_t *pids;
    struct meeting *gate;
};

static int until_somebody_dies(void *arg, int sock)
{
    const struct doomed *d = arg;
    struct session_result r;
    struct attaching m;
    struct request q;
    struct buffer b;
    struct client c;
    int code;

    MUST(client_open(&c, sock, 0) == 0);
    MUST(client_alloc(&c, 4 << 20, &b) == 0);
    membership_one(&m, &c, 0, d->group, d->world, d->rank);
    code = client_attach(&c, &m);
    MUST(code == 0);
    meet(d->gate, d->world);
    if (d->rank == d->victim) {
        struct itimerspec when = {.it_value.tv_nsec = d->after * 1000l + 1};
        struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
        timer_t timer;

        MUST(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
        MUST(timer_settime(timer, 0, &when, NULL) == 0);
    }
    for (uint64_t seq = 1; code == 0; seq++) {
        start_sum(&q, seq, &b, 200000);
        code = client_wait(&c, client_announce(&c, &q), &r);
        if (code == 0)
            continue;
        MUST(code == COMMD_E_RANK_LOST && r.rank == (int)d->victim);
        MUST(r.pid == d->pids[d->victim] && strstr(r.text, "has died or left"));
        /* and everything after it */
        start_sum(&q, seq + 1, &b, 10);
        MUST(client_wait(&c, client_announce(&c, &q), &r) == COMMD_E_RANK_LOST);
    }
    return 0;
}

static void deaths_at_any_time(void **state)
{
    struct service sv;
    uint32_t *shared = (uint32_t *)meetings_new(16);
    uint64_t seed = 5;

    (void)state;
    service_start(&sv, NULL);
    for (unsigned round = 0; round < 12; round++) {
        struct doomed d[4];
        pid_t pids[4];
        unsigned victim = draw(&seed) % 4;
        useconds_t after = (useconds_t)(draw(&seed) % 30000);
        struct meeting *all = meetings_new(1);

        for (unsigned i = 0; i < 4; i++) {
            d[i] = (struct doomed){i, victim, 4, round, after, shared, all};
            shared[i] = (uint32_t)(pids[i] = client_spawn(&sv, 1000, until_somebody_dies, &d[i]));
        }
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(client_join(pids[i]), i == victim ? 128 + SIGKILL : 0);
    }
    run_collectives(&sv, 3, 10, 31);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

static int leaves(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    struct session_msg m = {.type = rank ? SESSION_DETACH : SESSION_ABORT, .id = 0};
    struct session_result r;
    struct request q;
    struct buffer b;
    struct client c;
    uint64_t n;

    open_pair(&c, sock, rank % 2, 8 + rank / 2, &b);
    start_sum(&q, 1, &b, 100);
    meet(gate, 4);
    if (rank == 0 || rank == 3) { /* 0 gives up what 1 waits for, 3 leaves 2 alone */
        m.answer.code = COMMD_E_TIMEOUT;
        m.answer.rank = 5;
        snprintf(m.answer.text, sizeof m.answer.text, "no\npatience");
        MUST(client_send(&c, &m, NULL, 0, NULL, 0));
        meet(gate, 4);
        return 0;
    }
    n = client_announce(&c, &q);
    if (rank == 1) {
        MUST(client_wait(&c, n, &r) == COMMD_E_TIMEOUT && r.rank == -1);
        MUST(!strcmp(r.text, "no?patience"));
    } else {
        MUST(client_wait(&c, n, &r) == COMMD_E_RANK_LOST && r.rank == 1);
        MUST(strstr(r.text, "has left"));
    }
    meet(gate, 4);
    return 0;
}

static void who_leaves_and_who_gives_up(void **state)
{
    struct service sv;
    unsigned ranks[] = {0, 1, 2, 3};
    pid_t pids[4];

    (void)state;
    service_start(&sv, NULL);
    gate = meetings_new(1);
    for (unsigned i = 0; i < 4; i++)
        pids[i] = client_spawn(&sv, 1000, leaves, &ranks[i]);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- the process ----------------------------------------------------------------------------- */

static void without_a_gpu(void **state)
{
    static const char *const none[] = {"FAKECUDA_DEVICES=0", NULL};
    struct service sv;

    (void)state;
    service_start(&sv, none);
    assert_int_equal(sv.hello.devices, 0);
    assert_true(strlen(sv.hello.text) > 5);
    assert_true(service_ask(&sv));
    assert_int_equal(service_stop(&sv), 0);
    env_set("TEST_CUDA", "/nowhere/libcuda.so.1");
    service_start(&sv, NULL);
    env_set("TEST_CUDA", NULL);
    assert_int_equal(sv.hello.devices, 0);
    assert_non_null(strstr(sv.hello.text, "/nowhere/libcuda.so.1"));
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Operations of two ranks under such a driver; @ret: the kernels that it has loaded. */
static void kernels_under(const char *version, const char *cc, char ret[MSG_TEXT_MAX])
{
    const char *settings[] = {version, cc, "FAKECUDA_LOADED=1", NULL};
    struct service sv;

    service_start(&sv, settings);
    run_collectives(&sv, 2, 10, 1);
    assert_true(service_ask(&sv));
    snprintf(ret, MSG_TEXT_MAX, "%s", sv.device[0].kernels);
    assert_int_equal(service_stop(&sv), 0);
}

static int is_refused(void *arg, int sock)
{
    struct client c;

    MUST(client_open(&c, sock, 0) == COMMD_E_GPU_LOST);
    MUST(strstr(c.last.answer.text, arg));
    return 0;
}

/* Machine code of an assembler of CUDA 12, if the build has one; else what the driver compiles. And
 * all kernels are loaded before one is launched. */
static void kernels_that_the_driver_loads(void **state)
{
    const char *none[] = {"FAKECUDA_FAIL=cuModuleLoadData:0:200", NULL};
    char why[] = "driver 13.0 loads no kernels for compute capability 9.0; sm_90 by CUDA ";
    char text[MSG_TEXT_MAX];
    struct service sv;
    bool twelve;

    (void)state;
    kernels_under("FAKECUDA_VERSION=13000", "FAKECUDA_CC=90", text);
    if (strstr(text, "built without"))
        skip();
    twelve = strstr(text, "by CUDA 12.");
    if (!twelve)
        assert_memory_equal(text, "sm_90 by CUDA 13.", strlen("sm_90 by CUDA 13."));
    kernels_under("FAKECUDA_VERSION=12000", "FAKECUDA_CC=86", text);
    assert_non_null(strstr(text, twelve ? "sm_80 by CUDA 12." : "PTX 7.7, compiled by"));
    kernels_under("FAKECUDA_VERSION=12080", "FAKECUDA_CC=100", text);
    assert_string_equal(text, "PTX 7.7, compiled by the driver");
    service_start(&sv, none);
    assert_int_equal(client_join(client_spawn(&sv, 1000, is_refused, why)), 0);
    assert_true(service_ask(&sv));
    assert_non_null(strstr(sv.device[0].kernels, why));
    assert_int_equal(service_stop(&sv), 0);
}

static int status_of(const char *command)
{
    int status = system(command);

    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void words(void **state)
{
    (void)state;
    assert_int_equal(status_of("transport/commd-gpu --version | grep -q '^commd-gpu [0-9]'"), 0);
    assert_int_equal(status_of("transport/commd-gpu --help | grep -q -- --nccl"), 0);
    assert_int_equal(status_of("transport/commd-gpu --nothing 2>/dev/null"), 64);
    assert_int_equal(status_of("transport/commd-gpu --node here 2>/dev/null"), 64);
    assert_int_equal(status_of("transport/commd-gpu --fd 3 --node here --log loud 2>/dev/null"),
                     64);
}

/* In any order. */
static bool is_named(const struct msg_gpu_session *named, unsigned n, uint32_t client, uint32_t pid)
{
    for (unsigned i = 0; i < n; i++)
        if (named[i].client == client)
            return named[i].uid == 1000 && named[i].pid == pid;
    return false;
}

static void it_tells_the_next_commd_whose_sessions_it_has(void **state)
{
    struct msg_gpu_session named[3];
    struct service sv;
    uint32_t client[3];
    int sock[3];
    char byte;

    (void)state;
    service_start(&sv, NULL);
    for (uint32_t i = 0; i < 3; i++)
        sock[i] = service_session(&sv, 1000, 10 + i, &client[i]);
    service_session_del(&sv, client[1]);
    assert_true(service_ask(&sv));
    assert_int_equal(write(sv.control, "C", 1), 1); /* of a frame that ends with this commd */
    assert_int_equal(service_resume(&sv, named, 3), 2);
    assert_true(is_named(named, 2, client[0], 10) && is_named(named, 2, client[2], 12));
    service_session_del(&sv, client[0]);
    assert_int_equal(read(sock[0], &byte, 1), 0);
    assert_int_equal(service_resume(&sv, named, 3), 1);
    assert_true(is_named(named, 1, client[2], 12));
    assert_int_equal(service_stop(&sv), 0);
    for (unsigned i = 0; i < 3; i++)
        close(sock[i]);
}

static int eight_bytes(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    struct request q;
    struct buffer b;
    struct client c;
    int code = 0;

    open_pair(&c, sock, rank, 9, &b);
    for (uint64_t seq = 1; seq <= 11 && code == 0; seq++) {
        start_sum(&q, seq, &b, 2);
        code = client_wait(&c, client_announce(&c, &q), NULL);
        MUST(seq <= 10 ? code == 0 : code == INT32_MIN || code == COMMD_E_GPU_LOST);
    }
    return 0;
}

/* @setting breaks the device in the eleventh of a kind of call: ten operations need no more. */
static void run_eight_bytes(const char *setting)
{
    const char *const settings[] = {setting, NULL};
    struct service sv;
    unsigned ranks[] = {0, 1};
    pid_t pids[2];

    env_set("GPU_TEST_LOG", "error");
    service_start(&sv, settings);
    env_set("GPU_TEST_LOG", NULL);
    for (unsigned i = 0; i < 2; i++)
        pids[i] = client_spawn(&sv, 1000, eight_bytes, &ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_status(&sv), 1);
    assert_string_not_equal(sv.device[0].state, "ok");
    assert_true(strlen(sv.device[0].state) > 3);
}

static void a_small_operation_costs_two_calls_and_a_fault_ends_the_process(void **state)
{
    (void)state;
    run_eight_bytes("FAKECUDA_STICKY_AFTER=10");
    run_eight_bytes("FAKECUDA_FAIL=cuStreamBatchMemOp_v2:11:700");
    run_eight_bytes("FAKECUDA_FAIL=cuLaunchKernel:11:700");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),
        cmocka_unit_test(it_tells_the_next_commd_whose_sessions_it_has),
        cmocka_unit_test(without_a_gpu),
        cmocka_unit_test(kernels_that_the_driver_loads),
        cmocka_unit_test(collectives_of_one_to_eight_ranks),
        cmocka_unit_test(collectives_with_delays),
        cmocka_unit_test(sixteen_ranks),
        cmocka_unit_test(groups_in_any_order),
        cmocka_unit_test(operations_that_differ),
        cmocka_unit_test(inputs_that_come_late),
        cmocka_unit_test(memory_stays_while_it_is_used),
        cmocka_unit_test(deaths_at_any_time),
        cmocka_unit_test(who_leaves_and_who_gives_up),
        cmocka_unit_test(a_small_operation_costs_two_calls_and_a_fault_ends_the_process),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
