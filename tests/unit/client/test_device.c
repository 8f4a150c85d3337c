/* test_device.c - operations on GPU buffers: what is refused, what streams wait for and what frees
 * them, who is told of a failure, and what memory it takes. That the results are right is tested
 * with random programs: tests/oracle/check_gpu.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <limits.h>
#include <sched.h>
#include <sys/wait.h>

#include "client/lib/device/session.h"
#include "tests/lib/env.h"
#include "tests/fakecuda/fakecuda.h"
#include "tests/lib/gpu_ranks.h"

enum { N = 1000 };

static struct gpu_ranks *ranks;

static int two_ranks(void **state)
{
    ranks = gpu_ranks_new(2);
    return 0;
}

static int free_ranks(void **state)
{
    ranks = gpu_ranks_free(ranks);
    env_set("COMMD_DEVICE_STAGING", NULL);
    return 0;
}

static struct commd_op reduce_op(void *buf, size_t n, cu_stream s)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = COMMD_ALL_REDUCE,
                             .dtype = COMMD_I32,
                             .send = buf,
                             .recv = buf,
                             .count = n,
                             .stream = s};
}

static struct commd_op message_op(int coll, void *buf, size_t n, int peer, cu_stream s)
{
    struct commd_op op = reduce_op(buf, n, s);

    op.coll = coll;
    op.peer = peer;
    op.tag = 7;
    return op;
}

static struct commd_work *start(unsigned rank, const struct commd_op *op)
{
    struct commd_work *w;

    assert_int_equal(commd_start(ranks->group[rank], op, NULL, NULL, &w), 0);
    return w;
}

static int finish(struct commd_work *w)
{
    int r = commd_work_wait(w, 300000);

    commd_work_free(w);
    return r;
}

static void assert_message(const char *part)
{
    if (!strstr(commd_last_error()->message, part))
        fail_msg("\"%s\" lacks \"%s\"", commd_last_error()->message, part);
}

static void assert_all(const int32_t *p, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            fail_msg("element %zu is %d, expected %d", i, p[i], value);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void gpu_buffers_need_a_driver(void **state)
{
    int32_t x[N];
    struct commd_op op = reduce_op(x, N, NULL);

    assert_false(driver_seen);
    op.memory = COMMD_MEMORY_CUDA;
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_message("has not loaded the CUDA driver");
    op.memory = 3;
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_message("unknown memory 3");
    assert_int_equal(commd_group_seq(ranks->group[0]), 0);
}

static void a_capturing_stream_is_refused_by_name(void **state)
{
    cu_result (*capture)(cu_stream, int) = gpu_symbol("fakecuda_capture");
    int32_t *x = gpu_ints(N, 1);
    cu_stream s = gpu_stream();
    struct commd_op op = reduce_op(x, N, s);
    struct commd_work *w, *other;

    gpu_ok(capture(s, 1));
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_message("captured into a graph");
    assert_int_equal(commd_start(ranks->group[0], &op, NULL, NULL, &w), COMMD_E_INVALID);
    op.stream = NULL;
    w = start(0, &op);
    assert_int_equal(commd_work_wait_stream(w, s), COMMD_E_INVALID);
    gpu_ok(capture(s, 0));
    other = start(1, &op);
    assert_int_equal(finish(w) | finish(other), 0);
    gpu_free(x);
}

/* Also the first one, which finds out that the group takes the host path. */
static void an_operation_enters_its_context_once(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 2)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};

    for (unsigned i = 0; i < 2; i++) {
        uint64_t before = calls("cuStreamIsCapturing");
        struct commd_op op[2] = {reduce_op(x[0], N, s[0]), reduce_op(x[1], N, s[1])};

        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(commd_run(ranks->group[k], &op[k]), 0);
        assert_true(gpu_passes(s[0]) && gpu_passes(s[1]));
        assert_int_equal(calls("cuStreamIsCapturing") - before, 2);
    }
    gpu_free(x[0]);
    gpu_free(x[1]);
}

static void buffers_in_both_kinds_of_memory_are_refused(void **state)
{
    int32_t *x = gpu_ints(N, 1), y[N];
    struct commd_op op = reduce_op(x, N, NULL);
    void *pinned;

    op.send = y;
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_message("one buffer is on GPU 0 and another in host memory");
    gpu_ok(cu.host_alloc(&pinned, sizeof y, 0));
    op.send = pinned; /* is host memory too */
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_int_equal(commd_group_seq(ranks->group[0]), 0);
    gpu_ok(cu.host_free(pinned));
    gpu_free(x);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* No call waits, not even for its own stream; what is enqueued behind a blocking call is. */
static void calls_return_before_their_input_is_there(void **state)
{
    _Atomic int gate = 0;
    int32_t *x[2], out[N];
    cu_stream s[2];

    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op;

        x[k] = gpu_ints(N, 0);
        s[k] = gpu_stream();
        gpu_hold(s[k], &gate);
        op = reduce_op(x[k], N, s[k]);
        assert_int_equal(commd_run(ranks->group[k], &op), 0);
    }
    gpu_ok(cu.copy((cu_ptr)(uintptr_t)out, (cu_ptr)(uintptr_t)x[1], 0, s[1]));
    assert_int_equal(cu.stream_query(s[0]), CU_E_NOT_READY);
    for (unsigned k = 0; k < 2; k++)
        for (unsigned i = 0; i < N; i++)
            x[k][i] = 1 + (int32_t)k; /* as a kernel before the call would */
    atomic_store(&gate, 1);
    assert_true(gpu_passes(s[0]) && gpu_passes(s[1]));
    assert_all(x[0], N, 3);
    assert_all(x[1], N, 3);
    for (unsigned k = 0; k < 2; k++)
        gpu_free(x[k]);
}

/* All streams share a hardware queue. */
static void what_waits_for_other_ranks_holds_up_no_other_stream(void **state)
{
    struct commd_work *w[2];
    int32_t *x[2];
    cu_stream s;

    env_set("FAKECUDA_QUEUES", "1");
    s = gpu_stream();
    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op;

        x[k] = gpu_ints(N, 1);
        op = reduce_op(x[k], N, s);
        w[k] = start(k, &op);
        if (k == 0) /* rank 1 has not come */
            assert_true(gpu_passes(s));
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(finish(w[k]), 0);
        assert_all(x[k], N, 2);
        gpu_free(x[k]);
    }
    env_set("FAKECUDA_QUEUES", NULL);
}

static void groups_may_be_used_in_different_order(void **state)
{
    struct gpu_ranks *beside = gpu_ranks_beside(ranks);
    struct commd_work *w[4];
    int32_t *x[4];
    cu_stream s;

    env_set("FAKECUDA_QUEUES", "1");
    s = gpu_stream();
    for (unsigned i = 0; i < 4; i++) { /* rank 0: this group, the other one; rank 1: vice versa */
        struct gpu_ranks *in = i == 0 || i == 3 ? ranks : beside;
        struct commd_op op;

        x[i] = gpu_ints(N, 1);
        op = reduce_op(x[i], N, s);
        assert_int_equal(commd_start(in->group[i / 2], &op, NULL, NULL, &w[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(finish(w[i]), 0);
        assert_all(x[i], N, 2);
        gpu_free(x[i]);
    }
    env_set("FAKECUDA_QUEUES", NULL);
    gpu_ranks_free(beside);
}

/* The first result must not land behind the second one, for which a stream waits. */
static void results_land_in_the_order_of_calls(void **state)
{
    int32_t *in[2][2], *out[2];
    struct commd_work *w[2][2];
    cu_stream s = gpu_stream();

    for (unsigned k = 0; k < 2; k++) {
        out[k] = gpu_ints(N, 0);
        for (unsigned i = 0; i < 2; i++) {
            struct commd_op op;

            in[k][i] = gpu_ints(N, 1 + (int32_t)i);
            op = reduce_op(out[k], N, s);
            op.send = in[k][i];
            w[k][i] = start(k, &op);
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_work_wait_stream(w[k][1], s), 0);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(finish(w[k][i]), 0);
    }
    assert_true(gpu_passes(s));
    for (unsigned k = 0; k < 2; k++) {
        assert_all(out[k], N, 4);
        gpu_free(out[k]);
        gpu_free(in[k][0]);
        gpu_free(in[k][1]);
    }
}

/* The host's second operation is behind the GPU's first. */
static void host_operations_keep_their_place(void **state)
{
    _Atomic int gate = 0;
    int32_t *x = gpu_ints(N, 1), y[2][N] = {{0}}, z[N] = {0};
    cu_stream s = gpu_stream();
    struct commd_op gpu = reduce_op(x, N, s),
                    host[2] = {reduce_op(y[0], N, NULL), reduce_op(y[1], N, NULL)};
    struct commd_op first = reduce_op(z, N, NULL);
    struct commd_work *w[4];

    gpu_hold(s, &gate);
    w[0] = start(0, &gpu);
    w[1] = start(0, &host[0]);
    w[2] = start(1, &first);
    w[3] = start(1, &host[1]);
    assert_int_equal(commd_work_wait(w[3], 50), COMMD_E_TIMEOUT);
    assert_int_equal(commd_group_seq(ranks->group[0]), 0);
    atomic_store(&gate, 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(finish(w[i]), 0);
    assert_all(z, N, 1);
    assert_all(x, N, 1);
    gpu_free(x);
}

/* A message in host memory does not overtake one to the same rank that waits for its stream. */
static void messages_keep_their_order(void **state)
{
    _Atomic int gate = 0;
    int32_t *x = gpu_ints(N, 1), y[N], in[2][N] = {{0}};
    cu_stream s = gpu_stream();
    struct commd_op gpu = message_op(COMMD_SEND, x, N, 1, s);
    struct commd_op host = message_op(COMMD_SEND, y, N, 1, NULL);
    struct commd_work *w[2];

    for (unsigned i = 0; i < N; i++)
        y[i] = 2;
    gpu_hold(s, &gate);
    assert_int_equal(commd_run(ranks->group[0], &gpu), 0);
    w[0] = start(0, &host);
    for (unsigned i = 0; i < 2; i++) {
        struct commd_op recv = message_op(COMMD_RECV, in[i], N, 0, NULL);
        struct commd_work *r = start(1, &recv);

        if (i == 0) {
            assert_int_equal(commd_work_wait(r, 50), COMMD_E_TIMEOUT);
            atomic_store(&gate, 1);
        }
        assert_int_equal(finish(r), 0);
    }
    assert_int_equal(finish(w[0]), 0);
    assert_all(in[0], N, 1);
    assert_all(in[1], N, 2);
    gpu_free(x);
}

/* By whomever it is taken: the stream of the call, one that waits, or none. */
static void a_message_lands(void **state)
{
    cu_stream s = gpu_stream(), t = gpu_stream();

    for (unsigned how = 0; how < 4; how++) {
        int32_t *in = gpu_ints(N, 0), out[N], got[N];
        struct commd_op recv = message_op(COMMD_RECV, in, N, COMMD_ANY_SOURCE, s);
        struct commd_op send = message_op(COMMD_SEND, out, N, 0, NULL);
        struct commd_status st = {0};
        struct commd_work *w = NULL;

        for (unsigned i = 0; i < N; i++)
            out[i] = (int32_t)how + 1;
        if (how == 0)
            assert_int_equal(commd_run(ranks->group[0], &recv), 0);
        else if (how < 3)
            w = start(0, &recv);
        if (how == 1)
            assert_int_equal(commd_work_wait_stream(w, t), 0);
        assert_int_equal(commd_run(ranks->group[1], &send), 0);
        if (how == 3)
            assert_int_equal(commd_recv(ranks->group[0], in, N, COMMD_I32, 1, 7, &st), 0);
        if (how == 0 || how == 1) {
            cu_stream u = how ? t : s;

            gpu_ok(cu.copy((cu_ptr)(uintptr_t)got, (cu_ptr)(uintptr_t)in, sizeof got, u));
            assert_true(gpu_passes(u));
            assert_all(got, N, (int32_t)how + 1);
        }
        if (w) {
            assert_int_equal(commd_work_wait(w, 300000), 0);
            commd_work_status(w, &st);
            commd_work_free(w);
        }
        assert_all(in, N, (int32_t)how + 1);
        if (how)
            assert_true(st.source == 1 && st.tag == 7 && st.bytes == sizeof out);
        gpu_free(in);
    }
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void a_lost_rank_releases_the_stream(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    cu_stream s = gpu_stream();
    struct commd_op op = reduce_op(x, N, s);

    assert_int_equal(commd_run(ranks->group[0], &op), 0);
    usleep(20000);
    assert_int_equal(cu.stream_query(s), CU_E_NOT_READY);
    board_mark_gone(ranks->ctl, 1, 0, CAUSE_RANK_LOST, 4711);
    assert_true(gpu_passes(s));
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_RANK_LOST);
    assert_message("rank 1 (pid 4711");
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_RANK_LOST); /* it is broken */
    gpu_free(x);
}

static void a_group_that_is_left_releases_streams(void **state)
{
    _Atomic int gate = 0;
    int32_t *x = gpu_ints(N, 1);
    cu_stream s = gpu_stream(), held = gpu_stream(), t = gpu_stream();
    struct commd_op op[] = {reduce_op(x, N, s), reduce_op(x, N, held),
                            message_op(COMMD_RECV, x, N, 1, s),
                            message_op(COMMD_SEND, x, N, 1, held)};
    struct commd_work *w[4];

    gpu_hold(held, &gate);
    for (unsigned i = 0; i < 4; i++) {
        w[i] = start(0, &op[i]);
        assert_int_equal(commd_work_wait_stream(w[i], t), 0);
    }
    gpu_ranks_leave(ranks, 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(finish(w[i]), COMMD_E_ABORTED);
    atomic_store(&gate, 1); /* the two that had not come so far write into staging that is kept */
    assert_true(gpu_passes(s) && gpu_passes(t) && gpu_passes(held));
    gpu_free(x);
}

static void *leave_main(void *arg)
{
    cu_context current = NULL;

    gpu_ok(cu.ctx_get(&current));
    assert_null(current);
    gpu_ranks_leave(arg, 0);
    return NULL;
}

/* Streams of ours are freed in their context, whatever the caller has. */
static void a_thread_without_a_context_may_leave(void **state)
{
    enum { LARGE = 1 << 19 }; /* small ones need no streams of ours */
    int32_t *x = gpu_ints(LARGE, 1);
    cu_stream s = gpu_stream(), ours;
    struct commd_op op = reduce_op(x, LARGE, s);
    struct commd_work *w = start(0, &op);
    pthread_t thread;

    ours = atomic_load(&ranks->group[0]->now->device)->lanes->down;
    assert_true(gpu_passes(s));
    assert_int_not_equal(cu.stream_query(ours), CU_E_INVALID_HANDLE);
    assert_int_equal(pthread_create(&thread, NULL, leave_main, ranks), 0);
    pthread_join(thread, NULL);
    assert_int_equal(cu.stream_query(ours), CU_E_INVALID_HANDLE);
    assert_int_equal(finish(w), COMMD_E_ABORTED);
    gpu_free(x);
}

struct waiting {
    struct commd_work **works;
    unsigned n;
    cu_stream stream;
    atomic_bool stop;
    pthread_t thread;
};

static void *wait_main(void *arg)
{
    struct waiting *at = arg;
    cu_context ctx;

    gpu_ok(cu.primary_retain(&ctx, 0));
    gpu_ok(cu.ctx_set(ctx));
    do
        for (unsigned i = 0; i < at->n; i++) {
            int r = commd_work_wait_stream(at->works[i], at->stream);

            assert_true(r == 0 || r == COMMD_E_ABORTED);
        }
    while (!atomic_load(&at->stop));
    return NULL;
}

/* Works belong to who holds them, and their words outlive the group. */
static void a_stream_may_be_made_to_wait_while_the_group_is_left(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    cu_stream s = gpu_stream();

    for (unsigned turn = 0; turn < 30; turn++) {
        struct commd_op op[] = {reduce_op(x, N, s), message_op(COMMD_RECV, x, N, 1, s),
                                message_op(COMMD_SEND, x, N, 1, s)};
        struct commd_work *w[3];
        struct waiting at = {.works = w, .n = 3, .stream = gpu_stream()};

        for (unsigned i = 0; i < 3; i++)
            w[i] = start(0, &op[i]);
        assert_int_equal(pthread_create(&at.thread, NULL, wait_main, &at), 0);
        usleep(turn * 20);
        gpu_ranks_leave(ranks, 0);
        atomic_store(&at.stop, true);
        pthread_join(at.thread, NULL);
        assert_true(gpu_passes(at.stream));
        for (unsigned i = 0; i < 3; i++) {
            int r = finish(w[i]);

            assert_true(r == COMMD_E_ABORTED || (i == 2 && r == 0)); /* a small one goes at once */
        }
        gpu_ok(cu.stream_free(at.stream));
        free_ranks(state);
        two_ranks(state);
    }
    assert_true(gpu_passes(s));
    gpu_free(x);
}

/* What it was given is carried out: the work needs it no more. */
static void a_stream_may_go_before_its_operations_are_done(void **state)
{
    _Atomic int gate = 0;
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 2)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()}, t = gpu_stream();
    struct commd_work *w[2];

    gpu_hold(s[0], &gate);
    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op = reduce_op(x[k], N, s[k]);

        w[k] = start(k, &op);
        gpu_ok(cu.stream_free(s[k]));
    }
    assert_int_equal(commd_work_wait_stream(w[0], t), 0);
    atomic_store(&gate, 1);
    assert_int_equal(finish(w[0]) | finish(w[1]), 0);
    assert_true(gpu_passes(t));
    for (unsigned k = 0; k < 2; k++) {
        assert_all(x[k], N, 3);
        gpu_free(x[k]);
    }
}

/* Nobody else can tell of it, and it is told once: the group is fine. */
static void a_mismatch_is_told_by_the_next_call(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};
    struct commd_op op[2] = {reduce_op(x[0], N, s[0]), reduce_op(x[1], N - 1, s[1])};
    struct commd_work *w[2];

    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(commd_run(ranks->group[k], &op[k]), 0);
    assert_true(gpu_passes(s[0]) && gpu_passes(s[1]));
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_run(ranks->group[k], &op[k]), COMMD_E_MISMATCH);
        assert_message("all_reduce i32 sum of 999 elements");
    }
    for (unsigned k = 0; k < 2; k++)
        w[k] = start(k, &op[k]);
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(finish(w[k]), COMMD_E_MISMATCH); /* which have told it */
    op[1].count = N;
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(commd_run(ranks->group[k], &op[k]), 0);
    for (unsigned k = 0; k < 2; k++) {
        assert_true(gpu_passes(s[k]));
        gpu_free(x[k]);
    }
}

/* As if the failure of an operation had been known for a minute, and rank 0 had slept for as long
 * in operation @seq of the group. */
static void let_time_pass(uint32_t seq)
{
    struct commd_group *g = ranks->group[0];
    struct board_member *me = &g->now->board.members[g->now->local];
    struct device_group *dg = atomic_load(&g->now->device);

    while (!atomic_load(&dg->failure.state) || atomic_load(&me->asleep_op) != seq)
        usleep(1000);
    pthread_mutex_lock(&dg->failure.lock);
    dg->failure.since_ms -= 60000;
    pthread_mutex_unlock(&dg->failure.lock);
    atomic_fetch_sub(&me->asleep_ms, 60000);
    usleep(500000); /* some looks at the reasons to give up */
}

/* The other rank has called what this one waits for: it has not been told by another call. */
static void a_stream_that_comes_late_breaks_nothing(void **state)
{
    static const struct context_hooks hooks = {.watch = device_watch};
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};
    _Atomic int gate[2] = {0, 0};
    struct commd_error e;

    for (unsigned k = 0; k < 2; k++)
        ranks->ctx[k]->hooks = &hooks;
    for (unsigned i = 0; i < 2; i++) {
        gpu_hold(s[1], &gate[i]);
        for (unsigned k = 0; k < 2; k++) {
            struct commd_op op = reduce_op(x[k], N - (i == 0 && k == 1), s[k]);

            assert_int_equal(commd_run(ranks->group[k], &op), 0);
        }
    }
    atomic_store(&gate[0], 1);
    let_time_pass(2);
    assert_false(group_has_failed(ranks->group[0]->now, &e));
    atomic_store(&gate[1], 1);
    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op = reduce_op(x[k], N, s[k]);

        assert_true(gpu_passes(s[k]));
        assert_all(x[k], N, 2);
        assert_int_equal(commd_run(ranks->group[k], &op), COMMD_E_MISMATCH);
        gpu_free(x[k]);
    }
}

struct told_call {
    struct commd_op op;
    struct commd_error error;
    pthread_t thread;
};

static void *told_main(void *arg)
{
    struct told_call *c = arg;

    if (commd_run(ranks->group[0], &c->op))
        c->error = *commd_last_error();
    return NULL;
}

/* Nobody but this rank knows of it, and has been told. */
static void a_message_that_fails_breaks_nothing(void **state)
{
    static const struct context_hooks hooks = {.watch = device_watch};
    int32_t *in = gpu_ints(N, 0), out[N] = {0};
    struct commd_op recv = message_op(COMMD_RECV, in, N - 1, 1, gpu_stream());
    struct commd_op send = message_op(COMMD_SEND, out, N, 0, NULL);
    struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
    struct told_call c = {.op = barrier};

    ranks->ctx[0]->hooks = &hooks;
    assert_int_equal(commd_run(ranks->group[0], &recv), 0);
    assert_int_equal(pthread_create(&c.thread, NULL, told_main, &c), 0);
    assert_int_equal(commd_run(ranks->group[1], &send), 0);
    let_time_pass(1);
    assert_int_equal(commd_run(ranks->group[1], &barrier), 0);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.error.code, COMMD_E_MISMATCH);
    assert_int_equal(commd_run(ranks->group[1], &send), 0);
    recv.count = N;
    assert_int_equal(commd_run(ranks->group[0], &recv), 0);
    assert_true(gpu_passes(recv.stream));
    gpu_free(in);
}

/* commd_start() tells of nothing, so it may have been known for hours. Who came to an operation
 * after it goes on, and may come late to the next one. */
static void who_came_since_may_come_late(void **state)
{
    static const struct context_hooks hooks = {.watch = device_watch};
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};
    struct commd_op op[2] = {reduce_op(x[0], N, s[0]), reduce_op(x[1], N - 1, s[1])};
    struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
    struct commd_work *w[2];

    ranks->ctx[0]->hooks = &hooks;
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(commd_run(ranks->group[k], &op[k]), 0);
    assert_true(gpu_passes(s[0]) && gpu_passes(s[1]));
    for (unsigned i = 0; i < 2; i++) {
        w[0] = start(0, &barrier);
        if (i == 1)
            let_time_pass(3);
        w[1] = start(1, &barrier);
        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(finish(w[k]), 0);
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_run(ranks->group[k], &op[k]), COMMD_E_MISMATCH);
        gpu_free(x[k]);
    }
}

static void all_reduce(size_t n)
{
    cu_stream s[2] = {gpu_stream(), gpu_stream()};
    int32_t *x[2];

    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op;

        x[k] = gpu_ints(n, 1);
        op = reduce_op(x[k], n, s[k]);
        assert_int_equal(commd_run(ranks->group[k], &op), 0);
    }
    for (unsigned k = 0; k < 2; k++) {
        assert_true(gpu_passes(s[k]));
        assert_all(x[k], n, 2);
        gpu_free(x[k]);
        gpu_ok(cu.stream_free(s[k]));
    }
}

/* Rank 0 knows of a failure that no call has told of. The failure may have nothing to do with it
 * that the group is aborted: the text has both. */
static void who_waits_in_an_aborted_group_hears_of_the_failure(void **state)
{
    static const struct commd_error why = {.code = COMMD_E_GPU_LOST, .message = "the GPU burnt"};
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};
    struct told_call c = {.op = op};

    all_reduce(N);
    assert_int_equal(pthread_create(&c.thread, NULL, told_main, &c), 0);
    while (commd_group_seq(ranks->group[0]) == 1)
        usleep(1000);
    failure_note(atomic_load(&ranks->group[0]->now->device), &why, FAILURE_SHARED);
    board_mark_broken(ranks->ctl, CAUSE_ABORTED, 1, 4711, "a", "rank 1 has had enough");
    pthread_join(c.thread, NULL);
    assert_int_equal(c.error.code, COMMD_E_ABORTED);
    assert_non_null(strstr(c.error.message, "rank 1 has had enough; a failure before it: the GPU"));
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_ABORTED);
    assert_null(strstr(commd_last_error()->message, "a failure before it")); /* it has been told */
}

/* Whoever reads the code of an error knows whether the group is broken. */
static void a_broken_group_has_a_code_that_says_so(void **state)
{
    static const int alone[] = {COMMD_OK,      COMMD_E_INVALID, COMMD_E_MISMATCH,
                                COMMD_E_QUOTA, COMMD_E_DENIED,  COMMD_E_NO_DAEMON,
                                COMMD_E_NOMEM, COMMD_E_FORKED,  COMMD_E_GPU_LOST};
    const struct commd_error why = {.code = COMMD_E_GPU_LOST};
    struct commd_error e;

    for (int code = 1; code >= -20; code--) {
        bool breaks = true;

        for (unsigned i = 0; i < ARRAY_LEN(alone); i++)
            breaks &= code != alone[i];
        assert_int_equal(commd_error_breaks_group(code), breaks);
    }
    assert_true(commd_error_breaks_group(INT_MIN) && commd_error_breaks_group(INT_MAX));
    group_give_up(ranks->group[0]->now, &why);
    assert_true(group_has_failed(ranks->group[0]->now, &e));
    assert_int_equal(e.code, COMMD_E_ABORTED);
}

enum { CALLERS = 2, TELLINGS = 20000 };

struct telling_all {
    struct device_group dg;
    _Atomic unsigned round, looked, told;
};

static void *caller_main(void *arg)
{
    struct telling_all *t = arg;

    for (unsigned i = 1; i <= TELLINGS; i++) {
        while (atomic_load(&t->round) < i)
            sched_yield();
        if (session_tell_failure(&t->dg))
            atomic_fetch_add(&t->told, 1);
        atomic_fetch_add(&t->looked, 1);
    }
    return NULL;
}

/* Whichever of a process's threads calls next, and however many do at once. */
static void one_of_several_threads_is_told(void **state)
{
    static const struct commd_error why = {.code = COMMD_E_MISMATCH};
    struct membership group = {.rank = 0};
    struct telling_all t = {.dg = {.group = &group}};
    pthread_t thread[CALLERS];

    pthread_mutex_init(&t.dg.failure.lock, NULL);
    for (unsigned k = 0; k < CALLERS; k++)
        assert_int_equal(pthread_create(&thread[k], NULL, caller_main, &t), 0);
    for (unsigned i = 1; i <= TELLINGS; i++) {
        failure_note(&t.dg, &why, FAILURE_SHARED);
        atomic_store(&t.round, i);
        while (atomic_load(&t.looked) < CALLERS * i)
            sched_yield();
    }
    for (unsigned k = 0; k < CALLERS; k++)
        pthread_join(thread[k], NULL);
    pthread_mutex_destroy(&t.dg.failure.lock);
    assert_int_equal(atomic_load(&t.told), TELLINGS);
}

/* A stream that computes for long has not waited for anybody. */
static void the_limit_begins_when_the_input_is_there(void **state)
{
    _Atomic int gate = 0;
    int32_t *x = gpu_ints(N, 1), y[N] = {0};
    cu_stream s = gpu_stream();
    struct commd_op op = reduce_op(x, N, s);
    struct commd_work *w, *other;

    op.timeout_ms = 3000;
    gpu_hold(s, &gate);
    w = start(0, &op);
    assert_int_equal(commd_work_wait(w, 3200), COMMD_E_TIMEOUT);
    assert_message("still pending");
    atomic_store(&gate, 1);
    assert_int_equal(commd_work_wait(w, 200), COMMD_E_TIMEOUT); /* the other rank is late, too */
    assert_message("still pending");
    op.send = op.recv = y;
    other = start(1, &op);
    assert_int_equal(finish(w) | finish(other), 0);
    op = reduce_op(x, N, s);
    op.timeout_ms = 100;
    w = start(0, &op);
    assert_int_equal(finish(w), COMMD_E_TIMEOUT);
    assert_message("ran into its timeout of 100 ms");
    gpu_free(x);
}

static void a_failing_driver_is_named(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    cu_stream s = gpu_stream();
    struct commd_op op = reduce_op(x, N, s);

    env_set("FAKECUDA_FAIL", "cuStreamWaitValue32_v2:0:700");
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_GPU_LOST);
    assert_message("cuStreamWaitValue32");
    env_set("FAKECUDA_FAIL", "cuMemHostRegister_v2:0:2");
    op = reduce_op(x, N, s);
    op.send = op.recv = x = gpu_ints(4 << 20, 1);
    op.count = 4 << 20;
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_NOMEM);
    assert_message("that the GPU can copy to: out of memory");
    env_set("FAKECUDA_FAIL", NULL);
    assert_true(gpu_passes(s));
    assert_int_equal(finish(start(1, &op)), COMMD_E_GPU_LOST);
    assert_message("rank 0 (node");
    assert_int_equal(finish(start(1, &op)), COMMD_E_NOMEM);
    gpu_free(x);
}

/* Rank @k gets no memory for @op. */
static void lacks_memory(unsigned k, const struct commd_op *op)
{
    env_set("FAKECUDA_FAIL", "cuMemHostRegister_v2:0:2");
    assert_int_equal(commd_run(ranks->group[k], op), COMMD_E_NOMEM);
    env_set("FAKECUDA_FAIL", NULL);
    assert_message("make the operation smaller");
}

/* Whether the others have called it by then or do so later, with a work or without; also if none
 * can. Whoever was told once is not told again. */
static void what_a_rank_cannot_do_fails_on_all(void **state)
{
    enum { HUGE = 4 << 20 };
    int32_t *x[2] = {gpu_ints(HUGE, 1), gpu_ints(2 * HUGE, 1)};
    int32_t *y[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};
    struct commd_op op[2] = {reduce_op(x[0], HUGE, s[0]), reduce_op(x[1], HUGE, s[1])};
    struct commd_op small[2] = {reduce_op(y[0], N, s[0]), reduce_op(y[1], N, s[1])};
    struct commd_work *w;

    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(commd_run(ranks->group[k], &small[k]), 0);
    w = start(1, &op[1]);
    assert_int_equal(commd_work_wait(w, 50), COMMD_E_TIMEOUT);
    lacks_memory(0, &op[0]);
    assert_int_equal(finish(w), COMMD_E_NOMEM);
    assert_message("rank 0 (node");
    assert_message("cannot take part: it has no more host memory that its GPU can copy to");
    lacks_memory(0, &op[0]);
    lacks_memory(0, &op[0]);
    assert_int_equal(commd_run(ranks->group[1], &op[1]), 0);
    assert_true(gpu_passes(s[1]));
    assert_int_equal(commd_run(ranks->group[1], &small[1]), COMMD_E_NOMEM); /* starts nothing */
    assert_int_equal(finish(start(1, &op[1])), COMMD_E_NOMEM);
    lacks_memory(0, &op[0]);
    op[1].count = 2 * HUGE; /* what was used for the others is kept */
    lacks_memory(1, &op[1]);
    for (unsigned k = 0; k < 2; k++)
        assert_int_equal(commd_run(ranks->group[k], &small[k]), 0);
    for (unsigned k = 0; k < 2; k++) {
        assert_true(gpu_passes(s[k]));
        assert_all(y[k], N, 4);
        gpu_free(x[k]);
        gpu_free(y[k]);
    }
}

/* Whether the other rank has called it by then or does so later. */
static void a_message_that_a_rank_cannot_do_fails_on_both(void **state)
{
    enum { HUGE = 1 << 20 };
    int32_t *x[2] = {gpu_ints(HUGE << 3, 1), gpu_ints(HUGE << 3, 2)};
    struct commd_op huge[2] = {message_op(COMMD_SEND, x[0], HUGE, 1, gpu_stream()),
                               message_op(COMMD_RECV, x[1], HUGE, 0, gpu_stream())};
    struct commd_op small[2] = {huge[0], huge[1]};

    small[0].count = small[1].count = N;
    for (unsigned i = 0; i < 4; i++) {
        unsigned k = i & 1, other = 1 - k;
        bool early = i & 2;
        struct commd_work *w = early ? start(other, &huge[other]) : NULL;

        lacks_memory(k, &huge[k]);
        assert_int_equal(finish(w ? w : start(other, &huge[other])), COMMD_E_NOMEM);
        assert_message(k ? "rank 1 (node" : "rank 0 (node");
        assert_message(k ? "cannot receive it: it has no more host memory that its GPU can copy to"
                         : "cannot send it: it has no more host memory that its GPU can copy to");
        w = start(0, &small[0]);
        assert_int_equal(finish(start(1, &small[1])) | finish(w), 0);
        huge[0].count = huge[1].count *= 2; /* what was used for one of these is kept */
    }
    gpu_free(x[0]);
    gpu_free(x[1]);
}

static void what_a_rank_cannot_send_overtakes_nothing(void **state)
{
    static _Atomic int gate;
    int32_t *x = gpu_ints(1 << 20, 1), y[N], in[3][N];
    struct commd_op gpu = message_op(COMMD_SEND, x, N, 1, gpu_stream()), huge = gpu;
    struct commd_op host = message_op(COMMD_SEND, y, N, 1, NULL);
    struct commd_work *sent, *w[3];

    memset(y, 0, sizeof y);
    huge.count = 1 << 20;
    for (unsigned i = 0; i < 3; i++) {
        struct commd_op recv = message_op(COMMD_RECV, in[i], N, 0, NULL);

        w[i] = start(1, &recv);
    }
    gpu_hold(gpu.stream, &gate);
    assert_int_equal(commd_run(ranks->group[0], &gpu), 0);
    lacks_memory(0, &huge);
    sent = start(0, &host);
    assert_int_equal(commd_work_wait(w[0], 50), COMMD_E_TIMEOUT);
    atomic_store(&gate, 1);
    assert_int_equal(finish(w[0]), 0);
    assert_int_equal(finish(w[1]), COMMD_E_NOMEM);
    assert_int_equal(finish(w[2]) | finish(sent), 0);
    assert_all(in[0], N, 1);
    assert_all(in[2], N, 0);
    gpu_free(x);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void staging_is_used_again(void **state)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");
    uint64_t before;

    for (unsigned i = 0; i < 3; i++)
        all_reduce(100000 + i);
    before = calls("cuMemHostRegister_v2");
    for (unsigned i = 0; i < 20; i++)
        all_reduce(100000 + i);
    assert_int_equal(calls("cuMemHostRegister_v2"), before);
}

/* Of the first rank, once all has landed. */
static size_t kept_staging(void)
{
    struct device *dev = ranks->ctx[0]->device;
    size_t kept;

    pthread_mutex_lock(&dev->lock);
    staged_reap(dev);
    assert_int_equal(dev->staging.used, 0);
    kept = dev->staging.kept;
    pthread_mutex_unlock(&dev->lock);
    return kept;
}

static void staging_above_the_limit_is_given_back(void **state)
{
    ranks = gpu_ranks_free(ranks);
    env_set("COMMD_DEVICE_STAGING", "256K");
    ranks = gpu_ranks_new(2);
    all_reduce(1 << 20); /* 4 MiB: it takes what it needs */
    assert_int_equal(kept_staging(), 0);
    all_reduce(100);
    assert_in_range(kept_staging(), 1, 256 << 10);
}

static void bad_settings_are_refused(void **state)
{
    static const char *const bad[] = {"many", "12X", "-1", "1KK", "99999999999999999999"};
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = reduce_op(x, N, NULL);

    ranks = gpu_ranks_free(ranks);
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        ranks = gpu_ranks_new(2);
        env_set("COMMD_DEVICE_STAGING", bad[i]);
        assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
        assert_message("COMMD_DEVICE_STAGING is");
        ranks = gpu_ranks_free(ranks);
    }
    ranks = gpu_ranks_new(2);
    env_set("COMMD_DEVICE_STAGING", NULL);
    env_set("COMMD_DEVICE_PATH", "hsot");
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_INVALID);
    assert_message("COMMD_DEVICE_PATH is \"hsot\"; allowed: auto, device, host");
    env_set("COMMD_DEVICE_PATH", NULL);
    gpu_free(x);
}

static void a_forked_child_is_told(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = reduce_op(x, N, NULL);
    int status;
    pid_t pid = fork();

    if (!pid) {
        fork_counted();
        _exit(commd_run(ranks->group[0], &op) == COMMD_E_FORKED ? 0 : 1);
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
    all_reduce(N); /* the parent is not disturbed */
    gpu_free(x);
}

/* ---- works ----------------------------------------------------------------------------------- */

static void told(void *arg, const struct commd_error *e)
{
    atomic_fetch_add((_Atomic int *)arg, e ? 100 : 1);
}

/* A batch is done when all of it has landed, one after the other; of one that is in host memory too
 * the caller waits. */
static void batches_may_be_mixed(void **state)
{
    for (unsigned mixed = 0; mixed < 2; mixed++) {
        _Atomic int calls = 0;
        int32_t *x[2], y[2][N], *z[2], got[N];
        cu_stream t = gpu_stream();
        struct commd_work *w[2];

        for (unsigned k = 0; k < 2; k++) {
            struct commd_op ops[3];

            x[k] = gpu_ints(N, 1);
            z[k] = gpu_ints(N, (int32_t)k + 5);
            for (unsigned i = 0; i < N; i++)
                y[k][i] = 10;
            ops[0] = reduce_op(x[k], N, NULL);
            ops[1] = mixed ? reduce_op(y[k], N, NULL) : ops[0];
            ops[2] = message_op(k ? COMMD_RECV : COMMD_SEND, z[k], N, 1 - (int)k, NULL);
            assert_int_equal(commd_start_batch(ranks->group[k], ops, 3, told, &calls, &w[k]), 0);
        }
        assert_int_equal(commd_work_wait_stream(w[1], t), 0);
        gpu_ok(cu.copy((cu_ptr)(uintptr_t)got, (cu_ptr)(uintptr_t)z[1], sizeof got, t));
        assert_true(gpu_passes(t));
        assert_all(got, N, 5);
        assert_int_equal(finish(w[0]) | finish(w[1]), 0);
        assert_all(x[1], N, mixed ? 2 : 4);
        assert_all(y[0], N, mixed ? 20 : 10);
        while (atomic_load(&calls) < 2)
            usleep(100);
        assert_int_equal(atomic_load(&calls), 2);
        for (unsigned k = 0; k < 2; k++) {
            gpu_free(x[k]);
            gpu_free(z[k]);
        }
    }
}

static void barriers_are_on_streams_too(void **state)
{
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER, .memory = COMMD_MEMORY_CUDA};
    cu_stream s[2] = {gpu_stream(), gpu_stream()};

    op.stream = s[0];
    assert_int_equal(commd_run(ranks->group[0], &op), 0);
    usleep(20000);
    assert_int_equal(cu.stream_query(s[0]), CU_E_NOT_READY);
    op.stream = s[1];
    assert_int_equal(commd_run(ranks->group[1], &op), 0);
    assert_true(gpu_passes(s[0]) && gpu_passes(s[1]));
}

/* An older program's struct commd_op ends before `memory`. */
static void shorter_operations_go_on_working(void **state)
{
    size_t old = offsetof(struct commd_op, memory);
    uint8_t buf[2 * sizeof(struct commd_op)];
    int32_t x[2][N] = {{0}};
    struct commd_work *w[2];

    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op = reduce_op(x[k], N, NULL);

        x[k][0] = 1;
        op.size = old;
        memset(buf, 0xff, sizeof buf);
        memcpy(buf, &op, old);
        memcpy(buf + old, &op, old);
        assert_int_equal(commd_start_batch(ranks->group[k], (void *)buf, 2, NULL, NULL, &w[k]), 0);
    }
    assert_int_equal(finish(w[0]) | finish(w[1]), 0);
    assert_int_equal(x[0][0], 4);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, two_ranks, free_ranks)

int main(void)
{
    const struct CMUnitTest before[] = {TEST(gpu_buffers_need_a_driver)};
    const struct CMUnitTest tests[] = {
        TEST(a_capturing_stream_is_refused_by_name),
        TEST(an_operation_enters_its_context_once),
        TEST(buffers_in_both_kinds_of_memory_are_refused),
        TEST(calls_return_before_their_input_is_there),
        TEST(what_waits_for_other_ranks_holds_up_no_other_stream),
        TEST(groups_may_be_used_in_different_order),
        TEST(results_land_in_the_order_of_calls),
        TEST(host_operations_keep_their_place),
        TEST(messages_keep_their_order),
        TEST(a_message_lands),
        TEST(a_lost_rank_releases_the_stream),
        TEST(a_group_that_is_left_releases_streams),
        TEST(a_thread_without_a_context_may_leave),
        TEST(a_stream_may_be_made_to_wait_while_the_group_is_left),
        TEST(a_stream_may_go_before_its_operations_are_done),
        TEST(a_mismatch_is_told_by_the_next_call),
        TEST(a_stream_that_comes_late_breaks_nothing),
        TEST(a_message_that_fails_breaks_nothing),
        TEST(who_came_since_may_come_late),
        TEST(who_waits_in_an_aborted_group_hears_of_the_failure),
        TEST(a_broken_group_has_a_code_that_says_so),
        TEST(one_of_several_threads_is_told),
        TEST(the_limit_begins_when_the_input_is_there),
        TEST(a_failing_driver_is_named),
        TEST(what_a_rank_cannot_do_fails_on_all),
        TEST(a_message_that_a_rank_cannot_do_fails_on_both),
        TEST(what_a_rank_cannot_send_overtakes_nothing),
        TEST(staging_is_used_again),
        TEST(staging_above_the_limit_is_given_back),
        TEST(bad_settings_are_refused),
        TEST(a_forked_child_is_told),
        TEST(batches_may_be_mixed),
        TEST(barriers_are_on_streams_too),
        TEST(shorter_operations_go_on_working),
    };
    int failed = cmocka_run_group_tests(before, NULL, NULL);

    gpu_load();
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
