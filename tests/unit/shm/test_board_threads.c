/* test_board_threads.c - members as threads over ONE mapping of the board, so that a thread
 * sanitizer sees every access to shared memory from both sides (with a mapping each, as
 * processes have, it would see unrelated addresses). Blocking and asynchronous operations,
 * several groups, sleeping waiters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/handle.h"

enum { MEMBERS = 3, GROUPS = 2, ROUNDS = 150, MAX_COUNT = 200000, TRIES = 20 };

struct member {
    pthread_t thread;
    struct commd_context *ctx;
    struct commd_group *group[GROUPS];
    unsigned me;
    int errors;
};

static struct commd_context *context_new(void)
{
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    ctx->pid = getpid();
    ctx->sock = ctx->doorbell = ctx->back.sock = -1;
    ctx->finished_tail = &ctx->finished;
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

static void groups_new(struct member *m, unsigned which, struct board_ctl **ret_ctl)
{
    static const uint16_t rank_node[MEMBERS];
    struct board_geom g = {.group = which + 1,
                           .epoch = 1,
                           .world = MEMBERS,
                           .nnodes = 1,
                           .nlocal = MEMBERS,
                           .rank_node = rank_node};
    int fd;

    assert_int_equal(board_create(&g, &fd, ret_ctl), 0);
    for (unsigned k = 0; k < MEMBERS; k++) {
        struct awaited w = {.fd = fd, .doorbell = -1};

        w.reply.joined.size = MEMBERS;
        w.reply.joined.nnodes = 1;
        w.reply.joined.group = which + 1;
        w.reply.joined.epoch = 1;
        w.reply.joined.members = calloc(MEMBERS, sizeof(struct msg_member));
        w.reply.joined.nodes = calloc(1, MSG_NAME_MAX);
        m[k].group[which] = handle_new(m[k].ctx);
        assert_int_equal(
            group_from_joined(m[k].ctx, "threads", k, MEMBERS, 20000, &w, &m[k].group[which]->now),
            0);
        m[k].group[which]->now->geom.team = which ? 2 : 0;
        if (k > 0) {
            board_unmap(&m[k].group[which]->now->board);
            m[k].group[which]->now->board = m[0].group[which]->now->board;
        }
    }
    close(fd);
}

static size_t count_of(unsigned round)
{
    static const size_t counts[] = {1, 9, 700, 5000, 70000, MAX_COUNT};

    return counts[round % 6];
}

static struct commd_op op_of(unsigned round, unsigned g, int32_t *buf)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_REDUCE,
                          .dtype = COMMD_I32,
                          .redop = COMMD_SUM,
                          .send = buf,
                          .recv = buf,
                          .count = count_of(round + g)};

    if (round % 5 == 4) {
        op.coll = COMMD_BROADCAST;
        op.root = (int)(round % MEMBERS);
    }
    return op;
}

static int check(unsigned round, const int32_t *buf, const struct commd_op *op)
{
    int want = op->coll == COMMD_BROADCAST ? (int)round + op->root
                                           : MEMBERS * (int)round + MEMBERS * (MEMBERS - 1) / 2;

    for (size_t i = 0; i < op->count; i++)
        if (buf[i] != want)
            return 1;
    return 0;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    int32_t *buf[GROUPS];

    for (unsigned g = 0; g < GROUPS; g++)
        buf[g] = malloc(MAX_COUNT * sizeof *buf[g]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct commd_work *work[GROUPS] = {0};
        struct commd_op op[GROUPS];

        if (round % 3 == 0)
            m->errors += commd_barrier(m->group[0]) != 0;
        for (unsigned k = 0; k < GROUPS; k++) {
            /* ranks take the groups in different orders: they must not wait for each other */
            unsigned g = m->me % 2 ? GROUPS - 1 - k : k;

            op[g] = op_of(round, g, buf[g]);
            for (size_t i = 0; i < op[g].count; i++)
                buf[g][i] = (int32_t)(round + m->me);
            m->errors += commd_start(m->group[g], &op[g], NULL, NULL, &work[g]) != 0;
        }
        for (unsigned g = 0; g < GROUPS; g++) {
            m->errors += commd_work_wait(work[g], -1) != 0;
            commd_work_free(work[g]);
            m->errors += check(round, buf[g], &op[g]);
        }
        if (round % 4 == 0) { /* a blocking one, on the caller's thread */
            int32_t one = 1;
            m->errors += commd_all_reduce(m->group[1], &one, &one, 1, COMMD_I32, COMMD_SUM) != 0;
            m->errors += one != MEMBERS;
        }
    }
    for (unsigned g = 0; g < GROUPS; g++)
        free(buf[g]);
    return NULL;
}

static void all_rounds(void)
{
    struct member m[MEMBERS] = {0};
    struct board_ctl *ctl[GROUPS];

    for (unsigned k = 0; k < MEMBERS; k++) {
        m[k].me = k;
        m[k].ctx = context_new();
        atomic_store(&m[k].ctx->lost, true); /* there is no commd in this test */
    }
    for (unsigned g = 0; g < GROUPS; g++)
        groups_new(m, g, &ctl[g]);
    for (unsigned k = 0; k < MEMBERS; k++)
        assert_int_equal(pthread_create(&m[k].thread, NULL, member_main, &m[k]), 0);
    for (unsigned k = 0; k < MEMBERS; k++) {
        pthread_join(m[k].thread, NULL);
        assert_int_equal(m[k].errors, 0);
    }
    for (unsigned k = 0; k < MEMBERS; k++) {
        async_stop(m[k].ctx);
        for (unsigned g = 0; g < GROUPS; g++) {
            alive_end(m[k].group[g]->now); /* its word is in the mapping */
            if (k > 0)
                memset(&m[k].group[g]->now->board, 0, sizeof m[k].group[g]->now->board);
        }
    }
    for (unsigned k = 0; k < MEMBERS; k++) {
        for (unsigned g = 0; g < GROUPS; g++)
            handle_free(m[k].group[g]);
        free(m[k].ctx);
    }
    for (unsigned g = 0; g < GROUPS; g++)
        board_ctl_free(ctl[g]);
}

/* Who waits and finds after a whole slice what nobody has rung for has been rescued. So it seems,
 * too, if who comes has lost its core just before it rings: that does not happen each time. */
static void threads_agree(void **state)
{
    unsigned tries = 0;
    uint64_t before;

    do {
        assert_true(tries++ < TRIES);
        before = atomic_load(&wakeups_rescued);
        all_rounds();
    } while (atomic_load(&wakeups_rescued) != before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_agree)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
