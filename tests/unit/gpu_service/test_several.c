/* test_several.c - processes that work on several GPUs: each of their groups takes the device path.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <unistd.h>

#include "client/lib/device/session.h"
#include "tests/lib/env.h"

enum { N = 1000, AGREEING = 2, NGROUPS = 2 };

static void use_gpu(int gpu)
{
    cu_context ctx;

    gpu_ok(cu.primary_retain(&ctx, gpu));
    gpu_ok(cu.ctx_set(ctx));
}

/* One all_reduce in the group of pair.in; rank k's buffer and stream are on gpu[k]. */
static void sum_on(const int gpu[PAIR])
{
    struct commd_op op[PAIR];
    int32_t *x[PAIR];

    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(gpu[k]);
        x[k] = gpu_ints(N, 1 + (int32_t)k);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
        op[k].stream = gpu_stream();
    }
    pair_run(op, gpu);
    for (unsigned k = 0; k < PAIR; k++) {
        for (unsigned i = 0; i < N; i++)
            assert_int_equal(x[k][i], 3);
        use_gpu(gpu[k]);
        gpu_free(x[k]);
        gpu_ok(cu.stream_free(op[k].stream));
    }
    use_gpu(0);
}

static void sum_in_both(const int gpu[NGROUPS][PAIR])
{
    struct gpu_ranks *in[NGROUPS] = {pair.ranks, pair.other};

    for (unsigned i = 0; i < NGROUPS; i++) {
        pair.in = in[i];
        sum_on(gpu[i]);
    }
    pair.in = pair.ranks;
}

static int two_groups(void **state)
{
    int r = pair_setup(state);

    pair.other = gpu_ranks_beside(pair.ranks);
    return r;
}

/* Groups have made so many operations of their own, and GPUs so many of commd-gpu's. */
static void assert_counts(uint64_t agreed, uint64_t operations)
{
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), agreed);
    assert_int_equal(commd_group_seq(pair.other->group[1]), agreed);
    assert_true(service_ask(&pair.service));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pair.service.device[i].clients, PAIR);
        assert_int_equal(pair.service.device[i].operations, operations);
    }
}

static void each_group_has_its_gpu(void **state)
{
    static const int gpu[NGROUPS][PAIR] = {{0, 0}, {1, 1}};

    for (unsigned i = 0; i < 3; i++)
        sum_in_both(gpu);
    assert_counts(AGREEING, 3);
}

static void groups_lie_crosswise(void **state)
{
    static const int gpu[NGROUPS][PAIR] = {{0, 1}, {1, 0}};

    for (unsigned i = 0; i < 3; i++)
        sum_in_both(gpu);
    assert_counts(AGREEING, 6);
}

/* Its death ends all sessions; each is made again, and commd is asked for one only. */
static void another_service_has_them_all(void **state)
{
    static const int gpu[NGROUPS][PAIR] = {{0, 0}, {1, 1}};

    sum_in_both(gpu);
    pair_start_service(NULL);
    for (unsigned k = 0; k < PAIR; k++)
        while (!pair_lost(k))
            sessions_watch(pair.ranks->ctx[k]->device);
    sum_in_both(gpu);
    assert_counts(2 * AGREEING, 1);
}

/* It goes through memory on the group's GPU, if that can be reached. */
static void a_rank_comes_with_another_gpu(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        sum_on((int[PAIR]){0, 0});
        sum_on((int[PAIR]){1, 0});
        sum_on((int[PAIR]){1, 1});
    }
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), AGREEING);
}

static void a_gpu_that_does_not_reach_it_is_told(void **state)
{
    static const int gpu[PAIR] = {1, 0};
    struct commd_op op[PAIR];
    int32_t *x[PAIR];

    sum_on((int[PAIR]){0, 0});
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(gpu[k]);
        x[k] = gpu_ints(N, 1);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
        op[k].stream = gpu_stream();
    }
    env_set("FAKECUDA_NO_PEER", "1");
    pair_call(op, gpu, NULL);
    env_set("FAKECUDA_NO_PEER", NULL);
    assert_error(0, COMMD_E_INVALID, "began with this rank on GPU 0; now its buffers are on GPU 1");
    assert_error(0, COMMD_E_INVALID, "use a group of its own for each GPU");
    assert_true(gpu_passes(op[1].stream)); /* nobody waits for it */
    use_gpu(0);
    assert_int_equal(commd_run(pair.ranks->group[1], &op[1]), COMMD_E_INVALID);
    assert_non_null(strstr(commd_last_error()->message, "rank 0: all_reduce: the group began"));
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(gpu[k]);
        gpu_free(x[k]);
        gpu_ok(cu.stream_free(op[k].stream));
    }
    use_gpu(0);
}

/* The stream is still on the group's GPU, and nothing says that it reaches the buffer. */
static void a_buffer_on_another_gpu_than_its_stream(void **state)
{
    struct commd_op op[PAIR];
    int32_t *x[PAIR];

    sum_on((int[PAIR]){0, 0});
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(k ? 0 : 1);
        x[k] = gpu_ints(N, 1);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], N);
    }
    pair_call(op, (int[PAIR]){0, 0}, NULL);
    assert_error(0, COMMD_E_INVALID, "its stream on GPU 0");
    assert_true(gpu_passes(op[1].stream));
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(k ? 0 : 1);
        gpu_free(x[k]);
    }
    use_gpu(0);
}

/* ---- other CUDA_VISIBLE_DEVICES ----------------------------------------------------------------
 */

/* commd-gpu counts them otherwise: a uuid says which GPU is meant. */
static void ordinals_differ(void **state)
{
    static const int gpu[NGROUPS][PAIR] = {{0, 0}, {1, 1}};
    const char *settings[] = {"CUDA_VISIBLE_DEVICES=1,0", NULL};

    pair_start_service(settings);
    sum_in_both(gpu);
    assert_counts(AGREEING, 1);
}

/* What it does not see goes through host memory, or the error names it. */
static void a_gpu_that_commd_gpu_does_not_see(void **state)
{
    const char *settings[] = {"CUDA_VISIBLE_DEVICES=0", NULL};
    struct commd_op op[PAIR];

    pair_start_service(settings);
    sum_on((int[PAIR]){1, 1});
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), 1 + 1);
    pair.in = pair.other;
    env_set("COMMD_DEVICE_PATH", "device");
    use_gpu(1);
    for (unsigned k = 0; k < PAIR; k++) {
        op[k] = pair_op(COMMD_ALL_REDUCE, k, gpu_ints(N, 1), N);
        op[k].stream = gpu_stream();
    }
    pair_call(op, (int[PAIR]){1, 1}, NULL);
    env_set("COMMD_DEVICE_PATH", NULL);
    for (unsigned k = 0; k < PAIR; k++) {
        assert_error(k, COMMD_E_INVALID, "rank 0: commd-gpu sees no GPU-");
        gpu_free(op[k].recv);
        gpu_ok(cu.stream_free(op[k].stream));
    }
    sum_on((int[PAIR]){0, 0});
    assert_int_equal(commd_group_seq(pair.other->group[0]), 1 + AGREEING);
    pair.in = pair.ranks;
}

/* ---- while a communicator is given up ---------------------------------------------------------
 */

static void start_with_knobs(const char *line)
{
    const char *const *settings = service_knobs(line);

    env_set("TEST_TIMEOUT", "2000");
    env_set("GPU_TEST_LOG", "warn");
    pair_start_service(settings);
    env_set("GPU_TEST_LOG", NULL);
    env_set("TEST_TIMEOUT", NULL);
}

static const int across[PAIR] = {0, 1};

/* Each rank's part of the sum is computed in room of commd-gpu's own, which GPU 0 has not at first:
 * the operation fails on all ranks, and nothing else does. */
static void no_memory_for_an_intermediate_result(void **state)
{
    struct commd_work *w[PAIR];
    struct commd_op op[PAIR];
    float *x[PAIR];

    start_with_knobs("");
    sum_on(across);
    service_turn_knobs("FAKECUDA_FAIL=cuMemAlloc:1:2");
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(across[k]);
        x[k] = (void *)gpu_ints(N, 0);
        for (unsigned i = 0; i < N; i++)
            x[k][i] = 1 + (float)k;
        op[k] = pair_op(COMMD_REDUCE, k, x[k], N);
        op[k].dtype = COMMD_F32;
        op[k].redop = COMMD_PREMUL_SUM;
        op[k].scale = 2;
        op[k].stream = gpu_stream();
    }
    for (unsigned tries = 0; tries < 2; tries++) {
        pair_call(op, across, w);
        for (unsigned k = 0; k < PAIR; k++) {
            assert_int_equal(pair_error[k].code, 0);
            assert_int_equal(commd_work_wait(w[k], 300000), tries ? 0 : COMMD_E_NOMEM);
            if (!tries)
                assert_non_null(strstr(commd_last_error()->message,
                                       "GPU 0 has no 8 MiB for an intermediate result"));
            commd_work_free(w[k]);
            assert_true(x[k][N - 1] == (tries && !k ? 6 : 1 + (float)k));
        }
    }
    service_knobs_end();
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), AGREEING);
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(across[k]);
        gpu_free(x[k]);
        gpu_ok(cu.stream_free(op[k].stream));
    }
    use_gpu(0);
}

/* One in the group over both GPUs, that nobody waits for yet. */
struct started {
    struct commd_op op[PAIR];
    struct commd_work *work[PAIR];
};

static void start_across(struct started *st, int64_t timeout_ms, _Atomic int *gate)
{
    for (unsigned k = 0; k < PAIR; k++) {
        use_gpu(across[k]);
        st->op[k] = pair_op(COMMD_ALL_REDUCE, k, gpu_ints(N, 1), N);
        st->op[k].stream = gpu_stream();
        st->op[k].timeout_ms = timeout_ms;
        if (gate)
            gpu_hold(st->op[k].stream, gate);
    }
    pair_call(st->op, across, st->work);
    assert_int_equal(pair_error[0].code | pair_error[1].code, 0);
    use_gpu(0);
}

static void end_across(struct started *st, int code)
{
    for (unsigned k = 0; k < PAIR; k++) {
        assert_int_equal(commd_work_wait(st->work[k], 300000), code);
        commd_work_free(st->work[k]);
        assert_true(gpu_passes(st->op[k].stream));
        use_gpu(across[k]);
        gpu_free(st->op[k].recv);
        gpu_ok(cu.stream_free(st->op[k].stream));
    }
    use_gpu(0);
}

/* The group begins anew while one that hangs is still pending: when that runs into its limit the
 * group as it is now must not end. */
static void a_limit_is_not_that_of_the_next_group(void **state)
{
    struct started hangs, behind, next;
    _Atomic int gate = 0;

    start_with_knobs("FAKENCCL_HANG_AT=1:2");
    sum_on(across);
    start_across(&hangs, 2500, NULL);
    start_across(&behind, 0, &gate);
    usleep(500000);
    service_turn_knobs("FAKENCCL_ABORT_HANGS=1");
    for (unsigned k = 0; k < PAIR; k++)
        while (atomic_load(&pair.ranks->group[k]->now->device->path) != GROUP_PATH_LOST)
            usleep(1000);
    start_across(&next, 0, NULL);
    usleep(900000);
    service_turn_knobs("");
    atomic_store(&gate, 1);
    end_across(&hangs, COMMD_E_GPU_LOST);
    end_across(&behind, COMMD_E_GPU_LOST);
    end_across(&next, 0);
    sum_on(across);
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), 2 * AGREEING);
    service_knobs_end();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, two_groups, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_group_has_its_gpu),
        TEST(groups_lie_crosswise),
        TEST(another_service_has_them_all),
        TEST(a_rank_comes_with_another_gpu),
        TEST(a_gpu_that_does_not_reach_it_is_told),
        TEST(a_buffer_on_another_gpu_than_its_stream),
        TEST(ordinals_differ),
        TEST(a_gpu_that_commd_gpu_does_not_see),
        TEST(no_memory_for_an_intermediate_result),
        TEST(a_limit_is_not_that_of_the_next_group),
    };

    pair_environment("2");
    gpu_load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
