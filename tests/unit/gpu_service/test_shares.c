/* test_shares.c - users of commd-gpu beside one that wants all of it: their operations proceed.
 * What is counted is operations, not time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>

#include "oracle.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

enum { CROWD = 4, PER_GROUP = SESSION_SLOTS / CROWD, SMALL = 1000, SHARE_TRIES = 4 };

/* Shared by the processes of a test. */
struct board {
    struct meeting meeting, over;
    _Atomic uint32_t announced, done; /* of who floods */
    _Atomic uint32_t has[2];          /* operations that have ended, of each user */
};

struct part {
    struct board *board;
    unsigned rank, gpus; /* two ranks, on one GPU or on two */
    uint64_t count;
    unsigned user;
    unsigned coll; /* of one_huge() */
};

static void copy_of(struct request *q, uint64_t seq, const struct buffer *b, uint32_t number,
                    uint64_t count)
{
    *q = (struct request){.desc = {.seq = seq,
                                   .count = count,
                                   .coll = COLL_ALL_REDUCE,
                                   .dtype = DTYPE_F32,
                                   .redop = REDOP_SUM},
                          .group = number,
                          .send = {.memory = b->id},
                          .recv = {.memory = b->id, .offset = b->bytes / 2}};
}

static void open_part(struct client *c, int sock, const struct part *p, struct buffer *b,
                      unsigned groups)
{
    const uint8_t device[] = {0, p->gpus == 2};
    struct attaching m;

    MUST(client_open(c, sock, device[p->rank]) == 0);
    MUST(client_alloc(c, p->count * 8, b) == 0);
    for (unsigned i = 0; i < groups; i++) {
        membership_spread(&m, c, i, 70 + i, 2, p->rank, device);
        MUST(client_attach(c, &m) == 0);
    }
}

/* All that a session can have, at once, in several groups. */
static int floods(void *arg, int sock)
{
    const struct part *p = arg;
    struct request q;
    struct buffer b;
    struct client c;

    open_part(&c, sock, p, &b, CROWD);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        copy_of(&q, i / CROWD + 1, &b, i % CROWD, p->count);
        client_announce(&c, &q);
    }
    MUST(!c.cu.stream_synchronize(c.stream)); /* all inputs are there */
    atomic_fetch_add(&p->board->announced, 1);
    for (unsigned done = 0; done < SESSION_SLOTS && atomic_load(&p->board->over.came) < 2;) {
        done = 0;
        for (unsigned i = 0; i < SESSION_SLOTS; i++)
            done += client_done(&c, i);
        if (p->rank == 0)
            atomic_store(&p->board->done, done);
        usleep(200);
    }
    meet(&p->board->over, 4);
    return 0;
}

/* One small operation after the other, begun when all of the flood is there. */
static int sips(void *arg, int sock)
{
    const struct part *p = arg;
    uint32_t most = 0;
    struct request q;
    struct buffer b;
    struct client c;

    open_part(&c, sock, p, &b, 1);
    while (atomic_load(&p->board->announced) < 2)
        usleep(100);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        uint32_t before;

        meet(&p->board->meeting, 2);
        before = atomic_load(&p->board->done);
        copy_of(&q, seq, &b, 0, p->count);
        MUST(client_wait(&c, client_announce(&c, &q), NULL) == 0);
        most = MAX(most, atomic_load(&p->board->done) - before);
    }
    if (most > SESSION_SLOTS / 2)
        fprintf(stderr, "%u operations of the other user came before one of this one\n", most);
    MUST(most <= SESSION_SLOTS / 2); /* of all: 32, and those that end while this has no core */
    meet(&p->board->over, 4);
    return 0;
}

static void run_flood(unsigned gpus)
{
    static const char *const settings[] = {"FAKECUDA_DELAY_US=4000", "FAKECUDA_SEED=5", NULL};
    struct board *board = (struct board *)meetings_new(sizeof(struct board) / sizeof(uint32_t) + 1);
    struct part x[4];
    struct service sv;
    pid_t pids[4];

    service_start(&sv, settings);
    for (unsigned i = 0; i < 4; i++) {
        x[i] = (struct part){.board = board, .rank = i % 2, .gpus = gpus, .count = SMALL};
        pids[i] = client_spawn(&sv, i < 2 ? 1000 : 2000, i < 2 ? floods : sips, &x[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

static void beside_thousands_on_one_gpu(void **state)
{
    (void)state;
    run_flood(1);
}

static void beside_thousands_over_nccl(void **state)
{
    (void)state;
    run_flood(2);
}

/* ---- users that both want all, and have weights ------------------------------------------------
 */

/* Has always as much announced as a session can have. */
static int wants_all(void *arg, int sock)
{
    const struct part *p = arg;
    uint64_t low = 0;
    struct request q;
    struct buffer b;
    struct client c;

    open_part(&c, sock, p, &b, 1);
    meet(&p->board->meeting, 4);
    while (!atomic_load(&p->board->over.came)) {
        bool moved = false;

        for (; low < c.next && client_done(&c, low); moved = true)
            low++;
        if (p->rank == 0)
            atomic_store(&p->board->has[p->user], (uint32_t)low);
        for (; c.next < low + SESSION_SLOTS; moved = true) {
            copy_of(&q, c.next + 1, &b, 0, p->count);
            client_announce(&c, &q);
        }
        if (!moved)
            usleep(200);
    }
    return 0;
}

/* How many operations of the one user end while one of the other does. */
static double measured_share(unsigned gpus, uint32_t weight)
{
    static const char *const settings[] = {"FAKECUDA_DELAY_US=1000", "FAKECUDA_SEED=5", NULL};
    struct board *board = (struct board *)meetings_new(sizeof(struct board) / sizeof(uint32_t) + 1);
    uint32_t begin[2], end[2] = {0, 0};
    struct part x[4];
    struct service sv;
    pid_t pids[4];

    service_start(&sv, settings);
    for (unsigned i = 0; i < 4; i++) {
        x[i] = (struct part){.board = board, .rank = i % 2, .gpus = gpus, .count = SMALL};
        x[i].user = i / 2;
        sv.weight = i < 2 ? weight : 0;
        pids[i] = client_spawn(&sv, i < 2 ? 1000 : 2000, wants_all, &x[i]);
    }
    for (; end[0] < 50 || end[1] < 50; usleep(500))
        for (unsigned i = 0; i < 2; i++)
            begin[i] = end[i] = atomic_load(&board->has[i]);
    for (; end[0] - begin[0] + end[1] - begin[1] < (gpus == 1 ? 800u : 400u); usleep(500))
        for (unsigned i = 0; i < 2; i++)
            end[i] = atomic_load(&board->has[i]);
    atomic_store(&board->over.came, 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    return (double)(end[0] - begin[0]) / (double)MAX(end[1] - begin[1], 1u);
}

/* A process that has no core for a tenth of a second has nothing announced by then, and its user
 * gets less: that is measured again. */
static void run_weights(unsigned gpus, uint32_t weight, double least, double most)
{
    double ratio = 0;

    for (unsigned i = 0; i < SHARE_TRIES; i++) {
        ratio = measured_share(gpus, weight);
        if (ratio >= least && ratio <= most)
            return;
        fprintf(stderr, "%.2f operations to one\n", ratio);
    }
    fail_msg("%.2f operations to one", ratio);
}

static void by_weight_on_one_gpu(void **state)
{
    (void)state;
    run_weights(1, 30, 2.7, 3.3);
}

static void by_weight_over_nccl(void **state)
{
    (void)state;
    run_weights(2, 30, 2.7, 3.3);
}

static void without_weights_alike(void **state)
{
    (void)state;
    run_weights(1, 0, 0.9, 1.1);
}

/* ---- one that does not end --------------------------------------------------------------------
 */

static int one_huge(void *arg, int sock)
{
    const struct part *p = arg;
    struct request q;
    struct buffer b;
    struct client c;
    uint64_t n;

    open_part(&c, sock, p, &b, 1);
    copy_of(&q, 1, &b, 0, p->count);
    q.desc.coll = (uint8_t)p->coll;
    if (!coll_table[p->coll].reduces)
        q.desc.redop = 0;
    if (coll_table[p->coll].window != WINDOW_VECTOR)
        q.desc.count /= 2; /* a block */
    n = client_announce(&c, &q);
    MUST(!c.cu.stream_synchronize(c.stream));
    atomic_fetch_add(&p->board->announced, 1);
    while (atomic_load(&p->board->over.came) < 2) {
        MUST(!client_done(&c, n)); /* or the test shows nothing */
        usleep(1000);
    }
    return 0;
}

static int some_small(const struct part *p, int sock, uint64_t n)
{
    struct request q;
    struct buffer b;
    struct client c;

    open_part(&c, sock, p, &b, 1);
    while (atomic_load(&p->board->announced) < 3)
        usleep(100);
    for (uint64_t seq = 1; seq <= n; seq++) {
        copy_of(&q, seq, &b, 0, p->count);
        MUST(client_wait(&c, client_announce(&c, &q), NULL) == 0);
    }
    atomic_fetch_add(&p->board->over.came, 1);
    return 0;
}

static int fifty_small(void *arg, int sock)
{
    return some_small(arg, sock, 50);
}

static int ten_small(void *arg, int sock)
{
    return some_small(arg, sock, 10);
}

/* Two users on one GPU: the kernel of one takes a minute. */
static void beside_one_that_takes_long(void **state)
{
    struct board *board = (struct board *)meetings_new(sizeof(struct board) / sizeof(uint32_t) + 1);
    struct part x[4];
    struct service sv;
    pid_t pids[4];

    (void)state;
    service_start(&sv, service_knobs("FAKECUDA_DELAY_US=0"));
    for (unsigned i = 0; i < 4; i++) {
        x[i] = (struct part){board, i % 2, 1, SMALL, 0, COLL_ALL_REDUCE};
        if (i == 0)
            service_turn_knobs("FAKECUDA_DELAY_US=60000000\nFAKECUDA_SEED=1");
        pids[i] = client_spawn(&sv, i < 2 ? 1000 : 2000, i < 2 ? one_huge : fifty_small, &x[i]);
    }
    while (atomic_load(&board->announced) < 2)
        usleep(1000);
    for (service_ask(&sv); !sv.device[0].operations; service_ask(&sv))
        usleep(1000); /* until it is on the GPU */
    usleep(100000);
    service_turn_knobs("FAKECUDA_DELAY_US=0");
    atomic_fetch_add(&board->announced, 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[3 - i]), 0);
    assert_int_equal(service_stop(&sv), 0);
    service_knobs_end();
}

/* NCCL stands still, with all that a user may have there: another one, who stays on its GPU, goes
 * on, for longer than it takes to have had more. */
static void beside_nccl_that_hangs(void **state)
{
    static const char *const settings[] = {"FAKENCCL_HANG_AT=1:2", NULL};
    struct board *board = (struct board *)meetings_new(sizeof(struct board) / sizeof(uint32_t) + 1);
    struct part x[4];
    struct service sv;
    pid_t pids[4];

    (void)state;
    service_start(&sv, settings);
    atomic_store(&board->announced, 1);
    for (unsigned i = 0; i < 4; i++) {
        x[i] = (struct part){.board = board, .rank = i % 2, .gpus = i < 2 ? 2 : 1, .count = SMALL};
        pids[i] = client_spawn(&sv, i < 2 ? 1000 : 2000, i < 2 ? floods : fifty_small, &x[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[3 - i]), 0);
    assert_true(atomic_load(&board->done) < CROWD);
    assert_int_equal(service_stop(&sv), 0);
}

static void run_parts(unsigned coll)
{
    static const char *const settings[] = {"FAKECUDA_DELAY_US=20000", "FAKECUDA_SEED=5",
                                           "TEST_PART=256", NULL};
    struct board *board = (struct board *)meetings_new(sizeof(struct board) / sizeof(uint32_t) + 1);
    struct part x[4];
    struct service sv;
    pid_t pids[4];

    service_start(&sv, settings);
    atomic_store(&board->announced, 1);
    for (unsigned i = 0; i < 4; i++) {
        x[i] = (struct part){board, i % 2, 2, i < 2 ? 64000 : 64, 0, coll};
        pids[i] = client_spawn(&sv, i < 2 ? 1000 : 2000, i < 2 ? one_huge : ten_small, &x[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(client_join(pids[3 - i]), 0);
    assert_int_equal(service_stop(&sv), 0);
}

/* An operation between GPUs that takes seconds: small ones of another user come between its parts.
 */
static void between_the_parts_of_a_long_one(void **state)
{
    static const uint8_t colls[] = {COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER,
                                    COLL_GATHER,     COLL_SCATTER,    COLL_ALL_TO_ALL};

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(colls); i++)
        run_parts(colls[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_thousands_on_one_gpu),
        cmocka_unit_test(beside_thousands_over_nccl),
        cmocka_unit_test(by_weight_on_one_gpu),
        cmocka_unit_test(by_weight_over_nccl),
        cmocka_unit_test(without_weights_alike),
        cmocka_unit_test(beside_one_that_takes_long),
        cmocka_unit_test(beside_nccl_that_hangs),
        cmocka_unit_test(between_the_parts_of_a_long_one),
    };

    env_set("FAKECUDA_DEVICES", "2");
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
