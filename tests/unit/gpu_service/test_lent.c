/* test_lent.c - buffers that no other process can have, as those of cudaMallocAsync(): commd-gpu
 * lends memory in their place. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <unistd.h>

#include "client/lib/device/session.h"
#include "tests/lib/env.h"

enum { N = 1000, MIB = 1 << 20, MANY = 3 * MIB / 4, AGREEING = 2 };

static int32_t *alone(size_t n, int32_t value)
{
    cu_result (*alloc)(cu_ptr *, size_t) = gpu_symbol("fakecuda_alloc_unshareable");
    cu_ptr p;

    gpu_ok(alloc(&p, n * sizeof(int32_t)));
    for (size_t i = 0; i < n; i++)
        ((int32_t *)(uintptr_t)p)[i] = value;
    return (int32_t *)(uintptr_t)p;
}

static void assert_all(const int32_t *p, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            fail_msg("element %zu is %d, expected %d", i, p[i], value);
}

/* So many operations of the group itself: to agree upon the path, and those that did not take it.
 */
static void assert_path(uint64_t operations)
{
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), operations);
}

static void sum(int32_t *first, int32_t *second, size_t n)
{
    int32_t *x[PAIR] = {first, second};
    struct commd_op op[PAIR];

    for (unsigned k = 0; k < PAIR; k++) {
        for (size_t i = 0; i < n; i++)
            x[k][i] = (int32_t)(i + k);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], n);
    }
    pair_run(op, NULL);
    for (unsigned k = 0; k < PAIR; k++)
        for (size_t i = 0; i < n; i++)
            if (x[k][i] != (int32_t)(2 * i + 1))
                fail_msg("rank %u: element %zu is %d", k, i, x[k][i]);
}

static void sum_of_shared(void)
{
    int32_t *x[PAIR] = {gpu_ints(N, 0), gpu_ints(N, 0)};

    sum(x[0], x[1], N);
    gpu_free(x[0]);
    gpu_free(x[1]);
}

/* ---- what works ------------------------------------------------------------------------------ */

static void it_may_come_later(void **state)
{
    int32_t *x = alone(N, 0), *y = gpu_ints(N, 0);

    sum_of_shared();
    for (unsigned i = 0; i < 5; i++)
        sum(x, y, N);
    sum_of_shared();
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

static void it_may_be_the_first(void **state)
{
    int32_t *x = alone(N, 0), *y = alone(N, 0);

    sum(x, y, N);
    sum_of_shared();
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

static void sums_with(const char *knob, const char *value)
{
    env_set(knob, value);
    for (unsigned i = 0; i < 3; i++)
        sum_of_shared();
    env_set(knob, NULL);
}

/* As under MIG, or in containers. */
static void nothing_can_be_exported(void **state)
{
    sums_with("FAKECUDA_NO_IPC", "1");
    assert_path(AGREEING);
}

/* In a sandbox, say: CUDA_ERROR_OPERATING_SYSTEM. Or a full GPU: CUDA_ERROR_OUT_OF_MEMORY. */
static void exporting_fails_in_its_own_way(void **state)
{
    sums_with("FAKECUDA_FAIL", "cuIpcGetMemHandle:0:304");
    sums_with("FAKECUDA_FAIL", "cuIpcGetMemHandle:0:2");
    assert_path(AGREEING);
}

/* That may pass. */
static void exporting_fails_for_a_while(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    int32_t *x = gpu_ints(N, 0), *y = gpu_ints(N, 0);
    uint64_t copied;

    env_set("FAKECUDA_FAIL", "cuIpcGetMemHandle:0:2");
    sum(x, y, N);
    env_set("FAKECUDA_FAIL", NULL);
    for (unsigned i = 0; i < 70; i++)
        sum(x, y, N);
    copied = calls("cuMemcpyAsync");
    sum(x, y, N);
    assert_int_equal(calls("cuMemcpyAsync"), copied);
    gpu_free(x);
    gpu_free(y);
}

/* The driver exports it, but commd-gpu cannot open it: that is tried once. */
static void commd_gpu_cannot_open_it(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    const char *settings[] = {"FAKECUDA_FAIL=cuIpcOpenMemHandle:0:205", NULL};
    int32_t *x = gpu_ints(N, 0), *y = gpu_ints(N, 0);
    uint64_t before = calls("cuIpcGetMemHandle");

    pair_start_service(settings);
    for (unsigned i = 0; i < 5; i++)
        sum(x, y, N);
    assert_int_equal(calls("cuIpcGetMemHandle") - before, PAIR);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* commd-gpu's log says it, once for each session. */
static void assert_told(const char *const *settings, const char *text)
{
    char log[4096], *at = log;
    FILE *f = tmpfile();
    int err = dup(2);
    int32_t *x = gpu_ints(N, 0), *y = gpu_ints(N, 0);
    unsigned said = 0;

    assert_non_null(f);
    env_set("GPU_TEST_LOG", "info");
    dup2(fileno(f), 2);
    pair_start_service(settings);
    dup2(err, 2);
    close(err);
    env_set("GPU_TEST_LOG", NULL);
    for (unsigned i = 0; i < 3; i++)
        sum(x, y, N);
    rewind(f);
    log[fread(log, 1, sizeof log - 1, f)] = 0;
    for (; (at = strstr(at, text)); at++)
        said++;
    assert_int_equal(said, PAIR);
    fclose(f);
    gpu_free(x);
    gpu_free(y);
}

static void the_log_says_what_cannot_be_mapped(void **state)
{
    const char *settings[] = {"FAKECUDA_FAIL=cuIpcOpenMemHandle:0:205", NULL};

    assert_told(settings, "CUDA_ERROR_MAP_FAILED, 205); it is copied in each operation");
}

static void the_log_says_what_is_copied(void **state)
{
    env_set("FAKECUDA_NO_IPC", "1");
    assert_told(NULL, "are copied in each operation: the driver gives none of them to");
    env_set("FAKECUDA_NO_IPC", NULL);
}

/* New memory at the addresses of some that commd-gpu still has open: the driver opens it only when
 * that is closed. None is lent in its place, but for the time that it takes. */
static void memory_comes_where_other_memory_was(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    int32_t *x = gpu_ints(N, 0), *y = gpu_ints(N, 0);
    uint64_t lent = calls("cuMemImportFromShareableHandle"), exported;

    sum(x, y, N);
    for (unsigned i = 0; i < 5; i++) {
        int32_t *before[PAIR] = {x, y};

        gpu_free(x);
        gpu_free(y);
        x = gpu_ints(N, 0);
        y = gpu_ints(N, 0);
        assert_true(x == before[0] && y == before[1]);
        sum(x, y, N);
        sum(x, y, N);
        exported = calls("cuIpcGetMemHandle");
        sum(x, y, N);
        assert_int_equal(calls("cuIpcGetMemHandle"), exported);
    }
    assert_int_equal(calls("cuMemImportFromShareableHandle"), lent);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* The other rank of this process has told of what was there, and does not take it back. */
static void another_session_has_memory_there(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    int32_t *x = gpu_ints(N, 0), *y = gpu_ints(N, 0), *before[PAIR] = {x, y};
    uint64_t exported;

    sum(x, y, N);
    gpu_free(x);
    gpu_free(y);
    x = gpu_ints(N, 0);
    y = gpu_ints(N, 0);
    assert_true(x == before[0] && y == before[1]);
    sum(y, x, N);
    exported = calls("cuIpcGetMemHandle");
    for (unsigned i = 0; i < 30; i++)
        sum(y, x, N);
    assert_in_range(calls("cuIpcGetMemHandle") - exported, PAIR, PAIR * 4);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

static void one_side_of_each_may_be_it(void **state)
{
    int32_t *in[PAIR] = {alone(N, 4), gpu_ints(N, 5)}, *out[PAIR] = {gpu_ints(N, 0), alone(N, 0)};
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned k = 0; k < PAIR; k++) {
        op[k] = pair_op(COMMD_ALL_REDUCE, k, in[k], N);
        op[k].recv = out[k];
    }
    pair_run(op, NULL);
    assert_all(in[0], N, 4);
    assert_all(in[1], N, 5);
    assert_all(out[0], N, 9);
    assert_all(out[1], N, 9);
    assert_path(AGREEING);
    for (unsigned k = 0; k < PAIR; k++) {
        gpu_free(in[k]);
        gpu_free(out[k]);
    }
}

static void broadcasts_and_gathers(void **state)
{
    int32_t *x[PAIR] = {alone(N, 1), alone(N, 2)}, *all[PAIR] = {alone(2 * N, 7), alone(2 * N, 8)};
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned root = 0; root < PAIR; root++) {
        for (unsigned k = 0; k < PAIR; k++) {
            op[k] = pair_op(COMMD_BROADCAST, k, x[k], N);
            op[k].send = NULL;
            op[k].root = (int)root;
            for (unsigned i = 0; i < N; i++)
                x[k][i] = (int32_t)(10 * root + k);
        }
        pair_run(op, NULL);
        assert_all(x[0], N, (int32_t)(11 * root));
        assert_all(x[1], N, (int32_t)(11 * root));
    }
    for (unsigned k = 0; k < PAIR; k++) { /* in place: its block lies in the result */
        for (unsigned i = 0; i < N; i++)
            all[k][k * N + i] = (int32_t)(30 + k);
        op[k] = pair_op(COMMD_ALL_GATHER, k, all[k], N);
        op[k].send = all[k] + k * N;
    }
    pair_run(op, NULL);
    for (unsigned k = 0; k < PAIR; k++) {
        assert_all(all[k], N, 30);
        assert_all(all[k] + N, N, 31);
        op[k] = pair_op(COMMD_GATHER, k, all[k], N);
        op[k].send = x[k];
        op[k].root = 1;
    }
    pair_run(op, NULL);
    assert_all(all[1], 2 * N, 11);
    assert_all(all[0], N, 30);
    assert_path(AGREEING);
    for (unsigned k = 0; k < PAIR; k++) {
        gpu_free(x[k]);
        gpu_free(all[k]);
    }
}

/* They need not lie evenly, nor all be of that kind. */
static void blocks_lie_anywhere(void **state)
{
    static const size_t counts[PAIR][PAIR] = {{3, 500}, {7, 0}}; /* from one to the other */
    size_t send[PAIR][PAIR], recv[PAIR][PAIR];
    const void *from[PAIR][PAIR];
    int32_t *in[PAIR], *out[PAIR], *more = gpu_ints(N, 21);
    void *to[PAIR][PAIR];
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned k = 0; k < PAIR; k++) {
        in[k] = alone(N, 10 * (int32_t)k + 1);
        out[k] = alone(N, 0);
        for (unsigned j = 0; j < PAIR; j++) {
            send[k][j] = counts[k][j];
            recv[k][j] = counts[j][k];
            from[k][j] = counts[k][j] ? in[k] + 100 * j : NULL;
            to[k][j] = counts[j][k] ? out[k] + 500 - 400 * j : NULL;
        }
        op[k] = pair_op(COMMD_ALL_TO_ALL_V, k, NULL, 0);
        op[k].send_counts = send[k];
        op[k].recv_counts = recv[k];
        op[k].send_blocks = from[k];
        op[k].recv_blocks = to[k];
    }
    from[0][0] = more + 9;
    pair_run(op, NULL);
    assert_all(out[0] + 500, 3, 21);
    assert_all(out[0] + 503, N - 503, 0);
    assert_all(out[0] + 100, 7, 11);
    assert_all(out[0] + 107, 393, 0);
    assert_all(out[1] + 500, 500, 1);
    assert_path(AGREEING);
    for (unsigned k = 0; k < PAIR; k++) {
        gpu_free(in[k]);
        gpu_free(out[k]);
    }
    gpu_free(more);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Each one's input is what the one before it writes; nobody waits before the end. */
static void works_follow_each_other(void **state)
{
    int32_t *x[PAIR] = {alone(N, 1), gpu_ints(N, 1)};
    struct commd_work *w[10][PAIR];
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned i = 0; i < 10; i++) {
        for (unsigned k = 0; k < PAIR; k++)
            op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
        pair_call(op, (int[PAIR]){0, 0}, w[i]);
        assert_int_equal(pair_error[0].code | pair_error[1].code, 0);
    }
    for (unsigned k = 0; k < PAIR; k++)
        assert_int_equal(commd_work_wait_stream(w[9][k], pair.stream[k]), 0);
    assert_true(gpu_passes(pair.stream[0]) && gpu_passes(pair.stream[1]));
    for (unsigned k = 0; k < PAIR; k++) {
        assert_all(x[k], N, 1024);
        for (unsigned i = 0; i < 10; i++) {
            assert_int_equal(commd_work_wait(w[i][k], 300000), 0);
            commd_work_free(w[i][k]);
        }
        gpu_free(x[k]);
    }
    assert_path(AGREEING);
}

/* The call returns before the input is there, and the caller's stream does not wait. */
static void works_wait_for_their_input(void **state)
{
    int32_t *x[PAIR] = {alone(N, 0), gpu_ints(N, 0)};
    _Atomic int gate = 0;
    struct commd_work *w[PAIR];
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned k = 0; k < PAIR; k++) {
        gpu_hold(pair.stream[k], &gate);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
    }
    pair_call(op, (int[PAIR]){0, 0}, w);
    assert_int_equal(commd_work_wait(w[0], 50), COMMD_E_TIMEOUT);
    for (unsigned i = 0; i < N; i++)
        x[0][i] = x[1][i] = 4;
    atomic_store(&gate, 1);
    for (unsigned k = 0; k < PAIR; k++) {
        assert_int_equal(commd_work_wait(w[k], 300000), 0);
        assert_all(x[k], N, 8);
        commd_work_free(w[k]);
        gpu_free(x[k]);
    }
}

/* ---- how much -------------------------------------------------------------------------------- */

static int small_setup(void **state)
{
    env_set("COMMD_DEVICE_ARENA", "4M");
    return pair_setup(state);
}

static int small_teardown(void **state)
{
    env_set("COMMD_DEVICE_ARENA", NULL);
    return pair_teardown(state);
}

/* 3 MiB each: there is room for one at a time. */
static void older_ones_are_waited_for(void **state)
{
    enum { WORKS = 4 };
    struct commd_work *w[WORKS][PAIR];
    int32_t *x[WORKS][PAIR];
    struct commd_op op[PAIR];

    sum_of_shared();
    for (unsigned i = 0; i < WORKS; i++) {
        for (unsigned k = 0; k < PAIR; k++) {
            x[i][k] = k ? gpu_ints(MANY, 2) : alone(MANY, 1);
            op[k] = pair_op(COMMD_ALL_REDUCE, k, x[i][k], MANY);
        }
        pair_call(op, (int[PAIR]){0, 0}, w[i]);
        assert_int_equal(pair_error[0].code | pair_error[1].code, 0);
        assert_true(service_ask(&pair.service));
    }
    for (unsigned i = 0; i < WORKS; i++)
        for (unsigned k = 0; k < PAIR; k++) {
            assert_int_equal(commd_work_wait(w[i][k], 300000), 0);
            commd_work_free(w[i][k]);
            assert_all(x[i][k], MANY, 3);
            gpu_free(x[i][k]);
        }
    assert_path(AGREEING);
}

/* The work of a rank ends so. */
static void assert_work(struct commd_work *w, int code, const char *part)
{
    assert_int_equal(commd_work_wait(w, 300000), code);
    if (code && !strstr(commd_last_error()->message, part))
        fail_msg("\"%s\" lacks \"%s\"", commd_last_error()->message, part);
    commd_work_free(w);
}

/* But not for good: the other rank comes only afterwards. */
static void waiting_has_a_limit(void **state)
{
    int32_t *x = alone(MANY, 1), *y = gpu_ints(MANY, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, MANY),
                                pair_op(COMMD_ALL_REDUCE, 1, y, MANY)};
    struct commd_work *w[PAIR], *second;

    sum_of_shared();
    assert_int_equal(commd_start(pair.ranks->group[0], &op[0], NULL, NULL, &w[0]), 0);
    op[0].timeout_ms = 100;
    assert_int_equal(commd_run(pair.ranks->group[0], &op[0]), COMMD_E_NOMEM);
    assert_non_null(strstr(commd_last_error()->message, "COMMD_DEVICE_ARENA allows 4194304 ("));
    assert_non_null(strstr(commd_last_error()->message, "COMMD_DEVICE_PATH=host"));
    assert_int_equal(commd_start(pair.ranks->group[1], &op[1], NULL, NULL, &w[1]), 0);
    assert_int_equal(commd_start(pair.ranks->group[1], &op[1], NULL, NULL, &second), 0);
    assert_work(w[0], 0, NULL);
    assert_work(w[1], 0, NULL);
    assert_work(second, COMMD_E_NOMEM, "rank 0: all_reduce: 3145728 bytes");
    sum(x, y, MANY);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

static void use_gpu(void)
{
    cu_context ctx;

    gpu_ok(cu.primary_retain(&ctx, 0));
    gpu_ok(cu.ctx_set(ctx));
}

static void *start_second(void *arg)
{
    struct commd_work **w = arg;
    struct commd_op op;

    use_gpu();
    op = pair_op(COMMD_ALL_REDUCE, 0, alone(MANY, 1), MANY);
    assert_int_equal(commd_start(pair.ranks->group[0], &op, NULL, NULL, w), 0);
    return op.recv;
}

/* Nor does it hold up another group of the process. */
static void who_waits_holds_nobody_up(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    int32_t *x = alone(MANY, 1), *y = gpu_ints(MANY, 2), *a = gpu_ints(N, 0), *b = gpu_ints(N, 0);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, MANY),
                                pair_op(COMMD_ALL_REDUCE, 1, y, MANY)};
    struct commd_work *first[PAIR], *second[PAIR];
    uint64_t asked;
    pthread_t waits;
    void *last;

    pair.in = pair.other = gpu_ranks_beside(pair.ranks);
    sum_of_shared();
    pair.in = pair.ranks;
    sum_of_shared();
    assert_int_equal(commd_start(pair.ranks->group[0], &op[0], NULL, NULL, &first[0]), 0);
    asked = calls("cuPointerGetAttributes");
    assert_int_equal(pthread_create(&waits, NULL, start_second, &second[0]), 0);
    while (calls("cuPointerGetAttributes") == asked)
        usleep(1000);
    usleep(20000); /* by now it waits, most likely */
    pair.in = pair.other;
    sum(a, b, N); /* freeing memory would wait for the first */
    sum(a, b, N);
    pair.in = pair.ranks;
    for (unsigned i = 0; i < PAIR; i++)
        assert_int_equal(
            commd_start(pair.ranks->group[1], &op[1], NULL, NULL, i ? &second[1] : &first[1]), 0);
    pthread_join(waits, &last);
    for (unsigned k = 0; k < PAIR; k++) {
        assert_int_equal(commd_work_wait(first[k], 300000), 0);
        assert_int_equal(commd_work_wait(second[k], 300000), 0);
        commd_work_free(first[k]);
        commd_work_free(second[k]);
    }
    assert_all(x, MANY, 3);
    assert_all(last, MANY, 4);
    gpu_free(last);
    gpu_free(x);
    gpu_free(y);
    gpu_free(a);
    gpu_free(b);
}

static void *sum_in_other(void *arg)
{
    int32_t **x = arg;
    struct commd_op op[PAIR];

    use_gpu();
    for (unsigned k = 0; k < PAIR; k++) {
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
        op[k].stream = gpu_stream(); /* else what rank 1 has not called yet would come behind it */
    }
    pair_call(op, (int[PAIR]){0, 0}, NULL);
    for (unsigned k = 0; k < PAIR; k++)
        assert_true(gpu_passes(op[k].stream));
    return NULL;
}

static void *start_one_more(void *arg)
{
    struct commd_op *op = arg;
    struct commd_work *w;

    use_gpu();
    assert_int_equal(commd_start(pair.ranks->group[0], op, NULL, NULL, &w), 0);
    return w;
}

static void *start_lost(void *arg)
{
    struct commd_work *w;

    use_gpu();
    assert_int_equal(commd_start(pair.ranks->group[0], arg, NULL, NULL, &w), COMMD_E_GPU_LOST);
    return NULL;
}

/* All slots are taken, by operations to which the other rank has not come: another group agrees all
 * the same. */
static void who_waits_for_a_slot_holds_nobody_up(void **state)
{
    int32_t *x = gpu_ints(N, 1), *y = gpu_ints(N, 1), *z[PAIR] = {gpu_ints(N, 1), gpu_ints(N, 2)};
    struct commd_op op[PAIR] = {pair_op(COMMD_BROADCAST, 0, x, N),
                                pair_op(COMMD_BROADCAST, 1, y, N)};
    struct commd_work *w;
    pthread_t waits, agrees;
    void *last;

    op[0].send = op[1].send = NULL;
    sum_of_shared();
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        assert_int_equal(commd_start(pair.ranks->group[0], &op[0], NULL, NULL, &w), 0);
        commd_work_free(w);
    }
    assert_int_equal(pthread_create(&waits, NULL, start_one_more, &op[0]), 0);
    usleep(20000); /* by now it waits, most likely */
    pair.in = pair.other = gpu_ranks_beside(pair.ranks);
    assert_int_equal(pthread_create(&agrees, NULL, sum_in_other, z), 0);
    for (unsigned i = 0; commd_group_seq(pair.other->group[0]) < AGREEING ||
                         commd_group_seq(pair.other->group[1]) < AGREEING;
         i++) {
        if (i == 5000)
            fail_msg("the other group has not agreed");
        usleep(1000);
    }
    for (unsigned i = 0; i <= SESSION_SLOTS; i++)
        assert_int_equal(commd_run(pair.ranks->group[1], &op[1]), 0);
    pthread_join(waits, &last);
    pthread_join(agrees, NULL);
    assert_int_equal(pair_error[0].code | pair_error[1].code, 0);
    assert_true(gpu_passes(pair.stream[0]) && gpu_passes(pair.stream[1]));
    assert_all(z[0], N, 3);
    assert_int_equal(commd_work_wait(last, 300000), 0);
    commd_work_free(last);
    pair.in = pair.ranks;
    gpu_free(x);
    gpu_free(y);
    gpu_free(z[0]);
    gpu_free(z[1]);
}

/* Nor for good, if commd-gpu dies. */
static void who_waits_for_a_slot_hears_of_a_loss(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, x, N);
    struct commd_work *w;
    pthread_t waits;

    sum_of_shared();
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        assert_int_equal(commd_start(pair.ranks->group[0], &op, NULL, NULL, &w), 0);
        commd_work_free(w);
    }
    assert_int_equal(pthread_create(&waits, NULL, start_lost, &op), 0);
    usleep(20000); /* by now it waits, most likely */
    pair_start_service(NULL);
    pthread_join(waits, NULL);
    gpu_free(x);
}

static void larger_ones_are_refused(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(2 * MIB, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, 2 * MIB),
                                pair_op(COMMD_ALL_REDUCE, 1, y, 2 * MIB)};

    sum_of_shared();
    pair_call(op, (int[PAIR]){0, 0}, NULL);
    assert_error(0, COMMD_E_NOMEM, "8388608 bytes");
    assert_error(0, COMMD_E_NOMEM, "COMMD_DEVICE_ARENA allows 4194304");
    assert_true(gpu_passes(pair.stream[1]));
    assert_int_equal(commd_run(pair.ranks->group[1], &op[1]), COMMD_E_NOMEM);
    assert_non_null(strstr(commd_last_error()->message, "COMMD_DEVICE_ARENA allows 4194304"));
    assert_non_null(strstr(commd_last_error()->message, "goes through host memory"));
    sum(x, y, MANY);
    sum_of_shared();
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* Whoever comes first, or has announced more by then: it is that operation, on all ranks. */
static void a_refused_one_fails_alone(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(2 * MIB, 2), *more = gpu_ints(N, 1);
    struct commd_op large[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, 2 * MIB),
                                   pair_op(COMMD_ALL_REDUCE, 1, y, 2 * MIB)};
    struct commd_op small[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, N),
                                   pair_op(COMMD_ALL_REDUCE, 1, more, N)};

    sum_of_shared();
    for (unsigned first = 0; first < PAIR; first++) {
        struct commd_work *after[PAIR], *refused, *none;

        for (unsigned i = 0; i < PAIR; i++) {
            unsigned k = i ? 1 - first : first;

            if (k)
                assert_int_equal(commd_start(pair.ranks->group[1], &large[1], NULL, NULL, &refused),
                                 0);
            else
                assert_int_equal(commd_start(pair.ranks->group[0], &large[0], NULL, NULL, &none),
                                 COMMD_E_NOMEM);
            assert_int_equal(commd_start(pair.ranks->group[k], &small[k], NULL, NULL, &after[k]),
                             0);
        }
        assert_work(refused, COMMD_E_NOMEM, "rank 0: all_reduce: 8388608 bytes");
        for (unsigned k = 0; k < PAIR; k++)
            assert_work(after[k], 0, NULL);
        assert_all(x, N, 2 + 2 * (int32_t)first);
        assert_all(more, N, 2 + 2 * (int32_t)first);
    }
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
    gpu_free(more);
}

/* Nobody comes any more: the other rank dies, or commd-gpu. */
static void a_refused_one_ends_with_its_group(void **state)
{
    int32_t *x = alone(2 * MIB, 1);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, x, 2 * MIB);

    sum_of_shared();
    assert_int_equal(commd_run(pair.ranks->group[0], &op), COMMD_E_NOMEM);
    pair_start_service(NULL);
    while (!pair_lost(0))
        sessions_watch(pair.ranks->ctx[0]->device);
    assert_int_equal(atomic_load(&atomic_load(&pair.ranks->group[0]->now->device)->pending), 0);
    gpu_free(x);
}

/* All slots are taken by such to which the other rank does not come, and nothing is to land: the
 * next operation waits until the service is lost, or their limit has passed. */
static void refuse_all(const int32_t *x, int64_t timeout_ms)
{
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, (void *)x, 2 * MIB);

    op.timeout_ms = timeout_ms;
    sum_of_shared();
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        assert_int_equal(commd_run(pair.ranks->group[0], &op), COMMD_E_NOMEM);
}

static void declined_ones_that_nobody_comes_to_are_lost(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(N, 1);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, y, N);
    pthread_t waits;

    refuse_all(x, 0);
    assert_int_equal(pthread_create(&waits, NULL, start_lost, &op), 0);
    usleep(20000); /* by now it waits, most likely */
    pair_start_service(NULL);
    pthread_join(waits, NULL);
    gpu_free(x);
    gpu_free(y);
}

static void declined_ones_have_a_limit(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(N, 1);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, y, N);
    pthread_t waits;
    void *last;

    refuse_all(x, 100);
    assert_int_equal(pthread_create(&waits, NULL, start_one_more, &op), 0);
    pthread_join(waits, &last);
    assert_work(last, COMMD_E_TIMEOUT, "rank 0 ran into its timeout of 100 ms");
    gpu_free(x);
    gpu_free(y);
}

/* Slots are used again, and so are the words beside them. */
static void many_are_refused(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(2 * MIB, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, 2 * MIB),
                                pair_op(COMMD_ALL_REDUCE, 1, y, 2 * MIB)};

    sum_of_shared();
    for (unsigned i = 0; i < 6000; i++) { /* more than SESSION_AUX holds */
        struct commd_work *w;

        assert_int_equal(commd_run(pair.ranks->group[0], &op[0]), COMMD_E_NOMEM);
        assert_int_equal(commd_start(pair.ranks->group[1], &op[1], NULL, NULL, &w), 0);
        if (i % 100 == 99)
            assert_work(w, COMMD_E_NOMEM, "rank 0: all_reduce: 8388608 bytes");
        else
            commd_work_free(w);
    }
    sum(x, y, MANY);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* Half of a quarter of the GPU, as nobody else has any. */
static void a_quarter_of_the_gpu_is_lent(void **state)
{
    const char *settings[] = {"FAKECUDA_MEMORY=33554432", NULL};
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(2 * MIB, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, 2 * MIB),
                                pair_op(COMMD_ALL_REDUCE, 1, y, 2 * MIB)};
    struct commd_work *w;

    pair_start_service(settings);
    sum_of_shared();
    assert_int_equal(commd_run(pair.ranks->group[0], &op[0]), COMMD_E_NOMEM);
    assert_non_null(strstr(commd_last_error()->message, "it lends this user 4194304 at most"));
    assert_non_null(strstr(commd_last_error()->message, "goes through host memory"));
    assert_int_equal(commd_start(pair.ranks->group[1], &op[1], NULL, NULL, &w), 0);
    assert_work(w, COMMD_E_NOMEM,
                "it lends this user 4194304 at most, of a quarter of GPU 0; "
                "COMMD_DEVICE_PATH=host goes through host memory");
    sum(x, y, MANY);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* If it is the first, the group takes the other path. */
static void larger_ones_that_come_first(void **state)
{
    int32_t *x = alone(2 * MIB, 1), *y = gpu_ints(2 * MIB, 2);

    sum(x, y, 2 * MIB);
    assert_path(1 + 1);
    gpu_free(x);
    gpu_free(y);
}

/* In place, or of one side: what it needs is there once, by the first and by a later one. */
static void no_more_is_lent_than_needed(void **state)
{
    int32_t *x = alone(MANY, 1), *y = gpu_ints(MANY, 2), *z = gpu_ints(MANY, 0);
    struct commd_op op[PAIR];

    sum(x, y, MANY);
    for (unsigned k = 0; k < PAIR; k++)
        op[k] = pair_op(COMMD_ALL_REDUCE, k, y, MANY);
    op[0].send = x;
    op[0].recv = z;
    for (size_t i = 0; i < MANY; i++) {
        x[i] = 4;
        y[i] = 5;
    }
    pair_run(op, NULL);
    assert_all(z, MANY, 9);
    assert_all(y, MANY, 9);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
    gpu_free(z);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void nothing_can_be_lent(void **state)
{
    const char *settings[] = {"FAKECUDA_NO_VMM=1", NULL};
    int32_t *x = alone(N, 1), *y = gpu_ints(N, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, N),
                                pair_op(COMMD_ALL_REDUCE, 1, y, N)};

    pair_start_service(settings);
    sum_of_shared();
    pair_call(op, (int[PAIR]){0, 0}, NULL);
    assert_error(0, COMMD_E_INVALID, "cuMemGetAllocationGranularity");
    assert_error(0, COMMD_E_INVALID, "COMMD_DEVICE_PATH=host goes through host memory");
    assert_true(gpu_passes(pair.stream[1]));
    assert_int_equal(commd_run(pair.ranks->group[1], &op[1]), COMMD_E_INVALID);
    sum_of_shared();
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

/* All ranks are told; commd-gpu lives, and the group has what it needs the next time. */
static void the_gpu_is_full_once(void **state)
{
    const char *settings[] = {"FAKECUDA_FAIL=cuMemCreate:1:2", NULL};
    int32_t *x = alone(N, 1), *y = gpu_ints(N, 2);
    struct commd_op op[PAIR] = {pair_op(COMMD_ALL_REDUCE, 0, x, N),
                                pair_op(COMMD_ALL_REDUCE, 1, y, N)};

    pair_start_service(settings);
    sum_of_shared();
    pair_call(op, (int[PAIR]){0, 0}, NULL);
    assert_error(0, COMMD_E_NOMEM, "GPU 0 has no memory to lend: cuMemCreate: ");
    assert_true(gpu_passes(pair.stream[1]));
    assert_int_equal(commd_run(pair.ranks->group[1], &op[1]), COMMD_E_NOMEM);
    assert_non_null(strstr(commd_last_error()->message, "rank 0: all_reduce: 4000 bytes"));
    sum(x, y, N);
    assert_path(AGREEING);
    gpu_free(x);
    gpu_free(y);
}

static void nothing_can_be_lent_to_the_first(void **state)
{
    const char *settings[] = {"FAKECUDA_NO_VMM=1", NULL};
    int32_t *x = alone(N, 0), *y = gpu_ints(N, 0);

    pair_start_service(settings);
    sum(x, y, N);
    sum_of_shared();
    assert_path(1 + 2);
    gpu_free(x);
    gpu_free(y);
}

static void commd_gpu_dies(void **state)
{
    int32_t *x = alone(N, 1), *y = gpu_ints(N, 2);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, x, N);
    struct commd_work *w;

    sum_of_shared();
    sum(x, y, N);
    assert_int_equal(commd_start(pair.ranks->group[0], &op, NULL, NULL, &w), 0);
    assert_int_equal(commd_work_wait_stream(w, pair.stream[0]), 0);
    pair_start_service(NULL);
    assert_int_equal(commd_work_wait(w, 300000), COMMD_E_GPU_LOST);
    commd_work_free(w);
    assert_true(gpu_passes(pair.stream[0]));
    gpu_free(x);
    gpu_free(y);
}

/* Two operations of rank 0, of which the second waits for the first and that for a gate, when
 * commd-gpu dies; the group goes on with another one before they have landed. */
struct late {
    struct commd_op op[PAIR]; /* the next one */
    struct commd_work *second;
    int32_t *x, *y;
    _Atomic int gate;
};

static void begin_late(struct late *l)
{
    struct commd_work *w[PAIR];

    l->x = alone(N, 1);
    l->y = gpu_ints(N, 2);
    atomic_init(&l->gate, 0);
    l->op[0] = pair_op(COMMD_ALL_REDUCE, 0, l->x, N);
    l->op[1] = pair_op(COMMD_ALL_REDUCE, 1, l->y, N);
    sum_of_shared();
    gpu_hold(pair.stream[0], &l->gate);
    assert_int_equal(commd_run(pair.ranks->group[0], &l->op[0]), 0);
    l->op[0].stream = gpu_stream();
    assert_int_equal(commd_start(pair.ranks->group[0], &l->op[0], NULL, NULL, &l->second), 0);
    for (unsigned i = 0; i < PAIR; i++)
        assert_int_equal(commd_start(pair.ranks->group[1], &l->op[1], NULL, NULL, &w[i]), 0);
    pair_start_service(NULL);
    for (unsigned k = 0; k < PAIR; k++)
        while (!pair_lost(k))
            sessions_watch(pair.ranks->ctx[k]->device);
    for (unsigned i = 0; i < PAIR; i++) {
        assert_int_equal(commd_work_wait(w[i], 300000), COMMD_E_GPU_LOST);
        commd_work_free(w[i]);
    }
    l->op[0].send = l->op[0].recv = gpu_ints(N, 1);
    pair_run(l->op, NULL);
    assert_int_equal(commd_work_wait(l->second, 50), COMMD_E_TIMEOUT);
}

static void end_late(struct late *l, int code)
{
    atomic_store(&l->gate, 1);
    assert_int_equal(commd_work_wait(l->second, 300000), code);
    commd_work_free(l->second);
    assert_true(gpu_passes(pair.stream[0]) && gpu_passes(l->op[0].stream));
}

static void free_late(struct late *l)
{
    gpu_ok(cu.stream_free(l->op[0].stream));
    gpu_free(l->op[0].recv);
    gpu_free(l->x);
    gpu_free(l->y);
}

static void what_lands_late_is_of_the_past(void **state)
{
    struct late l;

    begin_late(&l);
    end_late(&l, COMMD_E_GPU_LOST);
    assert_int_equal(commd_run(pair.ranks->group[0], &l.op[0]), COMMD_E_GPU_LOST); /* the first */
    pair_run(l.op, NULL);
    assert_path(2 * AGREEING);
    free_late(&l);
}

static void a_group_is_left_before_all_has_landed(void **state)
{
    struct late l;

    begin_late(&l);
    gpu_ranks_leave(pair.ranks, 0);
    end_late(&l, COMMD_E_ABORTED);
    free_late(&l);
}

static void a_group_that_is_left(void **state)
{
    int32_t *x = alone(N, 1);
    struct commd_op op = pair_op(COMMD_ALL_REDUCE, 0, x, N);
    struct commd_work *w;

    sum_of_shared();
    assert_int_equal(commd_start(pair.ranks->group[0], &op, NULL, NULL, &w), 0);
    assert_int_equal(commd_work_wait_stream(w, pair.stream[0]), 0);
    gpu_ranks_leave(pair.ranks, 0);
    assert_int_equal(commd_work_wait(w, 300000), COMMD_E_ABORTED);
    commd_work_free(w);
    assert_true(gpu_passes(pair.stream[0]));
    gpu_free(x);
}

#define TEST(f)  cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)
#define SMALL(f) cmocka_unit_test_setup_teardown(f, small_setup, small_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_may_come_later),
        TEST(it_may_be_the_first),
        TEST(nothing_can_be_exported),
        TEST(exporting_fails_in_its_own_way),
        TEST(exporting_fails_for_a_while),
        TEST(commd_gpu_cannot_open_it),
        TEST(the_log_says_what_cannot_be_mapped),
        TEST(the_log_says_what_is_copied),
        TEST(memory_comes_where_other_memory_was),
        TEST(another_session_has_memory_there),
        TEST(one_side_of_each_may_be_it),
        TEST(broadcasts_and_gathers),
        TEST(blocks_lie_anywhere),
        TEST(works_follow_each_other),
        TEST(works_wait_for_their_input),
        SMALL(older_ones_are_waited_for),
        SMALL(waiting_has_a_limit),
        SMALL(who_waits_holds_nobody_up),
        TEST(who_waits_for_a_slot_holds_nobody_up),
        TEST(who_waits_for_a_slot_hears_of_a_loss),
        SMALL(larger_ones_are_refused),
        SMALL(a_refused_one_fails_alone),
        SMALL(a_refused_one_ends_with_its_group),
        SMALL(declined_ones_that_nobody_comes_to_are_lost),
        SMALL(declined_ones_have_a_limit),
        SMALL(many_are_refused),
        TEST(a_quarter_of_the_gpu_is_lent),
        SMALL(larger_ones_that_come_first),
        SMALL(no_more_is_lent_than_needed),
        TEST(nothing_can_be_lent),
        TEST(the_gpu_is_full_once),
        TEST(nothing_can_be_lent_to_the_first),
        TEST(commd_gpu_dies),
        TEST(a_group_that_is_left),
        TEST(what_lands_late_is_of_the_past),
        TEST(a_group_is_left_before_all_has_landed),
    };

    pair_environment("1");
    gpu_load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
