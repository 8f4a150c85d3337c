/* test_gpus.c - commd-gpu with clients on several GPUs of one node, with an NCCL without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>

#include "oracle.h"
#include "shm/board/board.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

enum { GROUPS = 3, OPERATIONS = 15 };

/* ---- groups over GPUs ------------------------------------------------------------------------ */

/* A rank in groups that lie across the GPUs in different ways. It uses them in an order of its own,
 * so that only the service keeps NCCL from standing still. */
struct across {
    struct meeting *meeting;
    unsigned me, n; /* of n processes, process r on GPU device[r] */
    uint8_t device[ORACLE_WORLD];
    uint64_t group, seed;
};

/* Group 0: all; 1: all, the other way round; 2: the even or the odd ones. */
static unsigned seat(const struct across *x, unsigned g, unsigned *ret_world, uint8_t *device)
{
    unsigned rank = x->me;

    *ret_world = x->n;
    if (g == 2) {
        *ret_world = 0;
        for (unsigned r = x->me % 2; r < x->n; r += 2)
            device[(*ret_world)++] = x->device[r];
        return x->me / 2;
    }
    for (unsigned r = 0; r < x->n; r++)
        device[g ? x->n - 1 - r : r] = x->device[r];
    return g ? x->n - 1 - rank : rank;
}

static unsigned gpus_of(const uint8_t *device, unsigned n)
{
    unsigned seen = 0;

    for (unsigned i = 0; i < n; i++)
        seen |= 1u << device[i];
    return (unsigned)__builtin_popcount(seen);
}

static int use_groups(void *arg, int sock)
{
    const struct across *x = arg;
    static struct task tasks[GROUPS][OPERATIONS];
    uint8_t device[GROUPS][ORACLE_WORLD];
    unsigned world[GROUPS], rank[GROUPS], at[GROUPS] = {0}, total = 0;
    uint64_t seeds[GROUPS], own = x->seed * 31 + x->me, step = ORACLE_BYTES + CACHELINE;
    struct buffer in, out;
    struct attaching m;
    struct client c;

    MUST(client_open(&c, sock, x->device[x->me]) == 0);
    MUST(client_alloc(&c, GROUPS * OPERATIONS * step, &in) == 0);
    MUST(client_alloc_chunks(&c, GROUPS * OPERATIONS * step, 4, &out) == 0);
    for (unsigned g = 0; g < GROUPS; g++) {
        rank[g] = seat(x, g, &world[g], device[g]);
        seeds[g] = x->seed + g * 100 + (g == 2 ? x->me % 2 : 0);
        membership_spread(&m, &c, g, x->group + g * 2 + (g == 2 ? x->me % 2 : 0), world[g], rank[g],
                          device[g]);
        MUST(client_attach(&c, &m) == 0);
    }
    while (total < GROUPS * OPERATIONS) {
        unsigned g = draw(&own) % GROUPS;
        struct sample s;

        if (at[g] == OPERATIONS)
            continue;
        sample_draw(&s, &seeds[g], world[g], gpus_of(device[g], world[g]), at[g] + 1);
        task_announce(&tasks[g][at[g]++], &c, &s, g, rank[g], &in, total * step, &out,
                      total * step);
        total++;
    }
    for (unsigned i = 0; i < total; i++) {
        struct task *t = &tasks[i % GROUPS][i / GROUPS];
        struct session_result r;

        if (client_wait(&c, t->n, &r))
            fprintf(stderr, "%s: %d %s\n", coll_name(t->s.coll), r.code, r.text);
        MUST(r.code == 0);
        task_check(t, &c);
    }
    meet(x->meeting, x->n);
    return 0;
}

/* @users users at once, each with groups of @n processes over @gpus GPUs. */
static void run_across(struct service *sv, unsigned users, unsigned n, unsigned gpus, uint64_t seed)
{
    struct across x[4][ORACLE_WORLD];
    pid_t pids[4][ORACLE_WORLD];

    for (unsigned u = 0; u < users; u++) {
        struct across all = {.meeting = meetings_new(1), .n = n, .group = 5, .seed = seed + u};

        for (unsigned r = 0; r < n; r++)
            all.device[r] = (uint8_t)((r + u) % gpus);
        for (unsigned r = 0; r < n; r++) {
            x[u][r] = all;
            x[u][r].me = r;
            pids[u][r] = client_spawn(sv, 1000 + u, use_groups, &x[u][r]);
        }
    }
    for (unsigned u = 0; u < users; u++)
        for (unsigned r = 0; r < n; r++)
            assert_int_equal(client_join(pids[u][r]), 0);
}

/* Another user, who tells of memory and takes it back until it is told to end. */
static int come_and_go(void *arg, int sock)
{
    struct meeting *end = arg;
    struct buffer b;
    struct client c;

    MUST(client_open(&c, sock, 0) == 0);
    for (unsigned i = 0; i < 3000 && !atomic_load(&end->came); i++) {
        MUST(client_alloc(&c, 4096, &b) == 0);
        client_forget(&c, b.id);
    }
    return 0;
}

/* What commd-gpu closes waits for the GPU and for those that reach it, and holds up launches there:
 * between NCCL's launches on two GPUs it would wait for ever. */
static void memory_goes_while_nccl_launches(void **state)
{
    static const char *const settings[] = {"FAKENCCL_LAUNCH_US=200", NULL};
    struct meeting *end = meetings_new(1);
    struct service sv;
    pid_t pid;

    (void)state;
    service_start(&sv, settings);
    pid = client_spawn(&sv, 2000, come_and_go, end);
    for (unsigned n = 2; n <= 4; n += 2)
        run_across(&sv, 2, n, 2, 70 + n);
    atomic_store(&end->came, 1);
    assert_int_equal(client_join(pid), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

static void collectives_over_gpus(void **state)
{
    struct service sv;

    (void)state;
    service_start(&sv, NULL);
    assert_int_equal(sv.hello.devices, 4);
    assert_int_equal(sv.hello.nccl, 22809);
    for (unsigned gpus = 2; gpus <= 4; gpus++)
        for (unsigned n = gpus; n <= 2 * gpus; n += gpus - 1)
            run_across(&sv, 1, n, gpus, gpus * 10 + n);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_true(sv.device[0].communicators > 0);
    assert_int_equal(service_stop(&sv), 0);
}

/* Each operation that can be cut in many parts, which take turns; the bytes are the same. */
static void collectives_in_parts(void **state)
{
    static const char *const settings[] = {"TEST_PART=8192", "FAKENCCL_PROGRESS=1", NULL};
    struct service sv;

    (void)state;
    service_start(&sv, settings);
    run_across(&sv, 1, 3, 3, 11);
    run_across(&sv, 3, 4, 2, 12);
    run_across(&sv, 2, 6, 3, 13);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

/* What is there for a first group is there for the next: NCCL starts no second time. */
static void groups_in_any_order_of_two_users(void **state)
{
    static const char *const settings[] = {"FAKENCCL_PROGRESS=3", "FAKECUDA_DELAY_US=100", NULL};
    struct service sv;
    uint32_t communicators;

    (void)state;
    service_start(&sv, settings);
    run_across(&sv, 1, 4, 2, 3);
    assert_true(service_ask(&sv));
    communicators = sv.device[0].communicators;
    run_across(&sv, 3, 4, 2, 4);
    assert_true(service_ask(&sv));
    assert_int_equal(sv.device[0].communicators, communicators);
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static int without(void *arg, int sock)
{
    struct attaching m;
    struct client c;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    membership_spread(&m, &c, 0, 7, 2, 0, (const uint8_t[]){0, 1});
    MUST(client_attach(&c, &m) == COMMD_E_INVALID);
    MUST(strstr(c.last.answer.text, "no NCCL"));
    return 0;
}

static void without_nccl(void **state)
{
    struct service sv;

    (void)state;
    env_set("TEST_NCCL", "/nowhere/libnccl.so.2");
    service_start(&sv, NULL);
    env_set("TEST_NCCL", NULL);
    assert_int_equal(sv.hello.nccl, 0);
    assert_int_equal(client_join(client_spawn(&sv, 1000, without, NULL)), 0);
    assert_int_equal(service_stop(&sv), 0);
}

struct doomed {
    unsigned rank;
    useconds_t after;
    uint64_t group;
    struct meeting *meeting;
};

/* Rank 2 of four, on two GPUs, is killed while they work. */
static int killed_or_told(void *arg, int sock)
{
    const struct doomed *d = arg;
    uint64_t begin = now_ms();
    struct session_result r;
    struct attaching m;
    struct buffer b;
    struct client c;
    int code = 0;

    MUST(client_open(&c, sock, (int)d->rank % 2) == 0);
    MUST(client_alloc(&c, 4 << 20, &b) == 0);
    membership_spread(&m, &c, 0, d->group, 4, d->rank, (const uint8_t[]){0, 1, 0, 1});
    MUST(client_attach(&c, &m) == 0);
    meet(d->meeting, 4);
    for (uint64_t seq = 1; !code; seq++) {
        struct request q = {.desc = {.seq = seq,
                                     .count = 100000,
                                     .coll = seq % 2 ? COLL_ALL_REDUCE : COLL_ALL_GATHER,
                                     .dtype = DTYPE_F32,
                                     .redop = REDOP_SUM},
                            .send = {.memory = b.id},
                            .recv = {.memory = b.id, .offset = 1 << 20}};

        if (d->rank == 2 && now_ms() - begin > d->after)
            raise(SIGKILL);
        code = client_wait(&c, client_announce(&c, &q), &r);
    }
    MUST(code == COMMD_E_RANK_LOST && r.rank == 2);
    return 0;
}

static void run_deaths(const char *const *settings)
{
    struct service sv;
    uint64_t seed = 3;

    service_start(&sv, settings);
    for (unsigned round = 0; round < 8; round++) {
        struct meeting *meeting = meetings_new(1);
        useconds_t after = (useconds_t)(draw(&seed) % 60);
        struct doomed d[4];
        pid_t pids[4];

        for (unsigned i = 0; i < 4; i++) {
            d[i] = (struct doomed){i, after, round, meeting};
            pids[i] = client_spawn(&sv, 1000, killed_or_told, &d[i]);
        }
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(client_join(pids[i]), i == 2 ? 128 + SIGKILL : 0);
    }
    run_across(&sv, 1, 4, 2, 9);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

static void deaths(void **state)
{
    (void)state;
    run_deaths(NULL);
}

static void deaths_between_parts(void **state)
{
    static const char *const settings[] = {"TEST_PART=32768", NULL};

    (void)state;
    run_deaths(settings);
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* The counts of all its operations lie in the same words; each of them is kept by the service. */
static int repeats_its_counts(void *arg, int sock)
{
    static const uint64_t words[6 * 128];
    static struct attaching m;
    struct request q = {.desc = {.coll = COLL_ALL_TO_ALL_V, .dtype = DTYPE_F32},
                        .aux_bits = 15,
                        .aux = words,
                        .aux_words = 6 * 128};
    uint8_t device[128];
    struct client c;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    for (unsigned r = 0; r < 128; r++)
        device[r] = (uint8_t)(r / 16);
    membership_spread(&m, &c, 0, 9, 128, 0, device);
    MUST(client_attach(&c, &m) == 0);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        q.desc.seq = i + 1;
        c.aux = 0;
        client_announce_only(&c, &q);
    }
    MUST(!client_receive(&c)); /* 1.5 MiB of them */
    return 0;
}

static void no_more_counts_than_fit_into_a_region(void **state)
{
    struct service sv;

    (void)state;
    env_set("FAKECUDA_DEVICES", "8");
    env_set("GPU_TEST_LOG", "error");
    service_start(&sv, NULL);
    env_set("GPU_TEST_LOG", NULL);
    assert_int_equal(client_join(client_spawn(&sv, 1000, repeats_its_counts, NULL)), 0);
    env_set("FAKECUDA_DEVICES", "4");
    assert_int_equal(service_stop(&sv), 0);
}

/* ---- counts that differ ------------------------------------------------------------------------
 */

/* Says that its counts are those of the other rank, and they are not: NCCL would wait for ever. */
static int lies_about_its_counts(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    uint64_t counts[] = {100, rank ? 50 : 100};
    static const uint8_t device[] = {0, 1};
    struct session_result result;
    struct attaching m;
    struct buffer b;
    struct client c;
    struct request q = {.group = 1, .aux = counts, .aux_words = 2};

    MUST(client_open(&c, sock, device[rank]) == 0);
    MUST(client_alloc(&c, 1 << 16, &b) == 0);
    membership_spread(&m, &c, 1, 7, 2, rank, device);
    MUST(client_attach(&c, &m) == 0);
    for (uint64_t seq = 1; seq <= 2; seq++) {
        bool sends = seq == 2;

        q.desc = (struct op_desc){.seq = seq,
                                  .coll = sends ? COLL_REDUCE_SCATTER_V : COLL_ALL_GATHER_V,
                                  .dtype = DTYPE_I32,
                                  .redop = REDOP_SUM,
                                  .digest = op_digest((uint64_t[]){100, 100}, 2)};
        q.aux_bits = sends ? SESSION_SEND_COUNTS : SESSION_RECV_COUNTS;
        q.send = (struct session_place){.memory = b.id};
        q.recv = (struct session_place){.memory = b.id, .offset = b.bytes / 2};
        MUST(client_wait(&c, client_announce(&c, &q), &result) == COMMD_E_MISMATCH);
        MUST(strstr(result.text, "different counts"));
    }
    return 0;
}

/* What each rank says that it sends to the two, and receives from them: no pair fits, and yet the
 * sums that are compared first are zero. Four lists of four million counts have such ones. */
static const uint64_t made_counts[2][4] = {
    {913820, 89218, 913819, 698287},
    {698286, 395210, 89219, 395209},
};

static int gives_made_counts(void *arg, int sock)
{
    unsigned rank = *(unsigned *)arg;
    static const uint8_t device[] = {0, 1};
    struct session_result result;
    struct attaching m;
    struct buffer b;
    struct client c;
    struct request q = {.desc = {.seq = 1, .coll = COLL_ALL_TO_ALL_V, .dtype = DTYPE_I8},
                        .group = 1,
                        .aux_bits = SESSION_SEND_COUNTS | SESSION_RECV_COUNTS,
                        .aux = made_counts[rank],
                        .aux_words = 4};

    MUST(client_open(&c, sock, device[rank]) == 0);
    MUST(client_alloc(&c, 8 << 20, &b) == 0);
    membership_spread(&m, &c, 1, 7, 2, rank, device);
    MUST(client_attach(&c, &m) == 0);
    q.send = (struct session_place){.memory = b.id};
    q.recv = (struct session_place){.memory = b.id, .offset = b.bytes / 2};
    MUST(client_wait(&c, client_announce(&c, &q), &result) == COMMD_E_MISMATCH);
    MUST(strstr(result.text, "do not fit"));
    return 0;
}

static void run_two(client_fn fn)
{
    unsigned rank[] = {0, 1};
    struct service sv;
    pid_t pids[2];

    service_start(&sv, NULL);
    for (unsigned i = 0; i < 2; i++)
        pids[i] = client_spawn(&sv, 1000, fn, &rank[i]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_int_equal(service_stop(&sv), 0);
}

static void counts_that_differ_are_told(void **state)
{
    (void)state;
    run_two(lies_about_its_counts);
}

static void counts_made_to_fit_in_sum_are_told(void **state)
{
    struct op_balance bal = {0};

    (void)state;
    for (unsigned r = 0; r < 2; r++)
        for (unsigned k = 0; k < 2; k++) {
            op_balance_add(&bal, 2, r, k, made_counts[r][k], 1);
            op_balance_add(&bal, 2, k, r, made_counts[r][2 + k], -1);
        }
    assert_true(op_balanced(&bal));
    run_two(gives_made_counts);
}

/* Nodes compare by a number that nobody could know. */
static void counts_made_to_fit_do_not_by_another_number(void **state)
{
    (void)state;
    for (uint64_t key = 1; key <= 1000; key++) {
        struct op_balance bal = {0};

        for (unsigned r = 0; r < 2; r++)
            for (unsigned k = 0; k < 2; k++) {
                op_balance_add_by(key, &bal, 2, r, k, made_counts[r][k], 1);
                op_balance_add_by(key, &bal, 2, k, r, made_counts[r][2 + k], -1);
            }
        assert_true(bal.hash != 0 && !bal.diff && !bal.checksum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_over_gpus),
        cmocka_unit_test(memory_goes_while_nccl_launches),
        cmocka_unit_test(collectives_in_parts),
        cmocka_unit_test(groups_in_any_order_of_two_users),
        cmocka_unit_test(without_nccl),
        cmocka_unit_test(deaths),
        cmocka_unit_test(deaths_between_parts),
        cmocka_unit_test(no_more_counts_than_fit_into_a_region),
        cmocka_unit_test(counts_that_differ_are_told),
        cmocka_unit_test(counts_made_to_fit_in_sum_are_told),
        cmocka_unit_test(counts_made_to_fit_do_not_by_another_number),
    };

    env_set("FAKECUDA_DEVICES", "4");
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
