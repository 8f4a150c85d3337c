/* test_device_path.c - operations that go through commd-gpu, with one that is little more than the
 * protocol (tests/lib/mini_gpu.c): what is agreed upon, announced, ended, and what happens when it
 * dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "client/lib/device/note.h"
#include "client/lib/device/session.h"
#include "tests/lib/env.h"
#include "tests/lib/arena_commd.h"
#include "tests/lib/descriptors.h"
#include "tests/lib/gpu_ranks.h"
#include "tests/lib/mini_gpu.h"

enum { N = 1000, AGREEING = 2 }; /* all_gathers */

static struct gpu_ranks *ranks;
static struct arena_commd *commd;
static cu_stream stream[2];
static pid_t gpu;
static int control = -1;
static const struct context_hooks hooks = {.watch = device_watch};

static void start_gpu(void)
{
    close_fdp(&control);
    gpu = mini_gpu_start(&control);
    arena_commd_gpu(commd, control);
}

static int setup(void **state)
{
    ranks = gpu_ranks_new(2);
    commd = arena_commd_new(ranks->ctx, 2);
    for (unsigned k = 0; k < 2; k++) {
        atomic_store(&ranks->ctx[k]->lost, false);
        ranks->group[k]->now->board.gpu = true;
        ranks->ctx[k]->hooks = &hooks;
        stream[k] = gpu_stream();
    }
    start_gpu();
    return 0;
}

static int teardown(void **state)
{
    ranks = gpu_ranks_free(ranks);
    commd = arena_commd_free(commd);
    mini_gpu_kill(gpu);
    env_set("MINI_GPU_REFUSE", NULL);
    env_set("COMMD_DEVICE_PATH", NULL);
    return 0;
}

/* ---- both ranks, each on its own thread: agreeing waits for the other --------------------------
 */

struct call {
    struct commd_op op;
    unsigned rank;
    int code;
    struct commd_error error;
    struct commd_work **work;
    pthread_t thread;
};

static void *call_main(void *arg)
{
    struct call *c = arg;
    struct commd_group *g = ranks->group[c->rank];
    cu_context ctx;

    gpu_ok(cu.primary_retain(&ctx, 0));
    gpu_ok(cu.ctx_set(ctx));
    c->code = c->work ? commd_start(g, &c->op, NULL, NULL, c->work) : commd_run(g, &c->op);
    c->error = *commd_last_error();
    return NULL;
}

/* commd_run(), or commd_start() with @work. */
static void both(struct call c[2], const struct commd_op op[2], struct commd_work *work[2])
{
    for (unsigned k = 0; k < 2; k++) {
        c[k] = (struct call){.op = op[k], .rank = k, .work = work ? &work[k] : NULL};
        assert_int_equal(pthread_create(&c[k].thread, NULL, call_main, &c[k]), 0);
    }
    for (unsigned k = 0; k < 2; k++)
        pthread_join(c[k].thread, NULL);
}

static void both_succeed(const struct commd_op op[2])
{
    struct call c[2];

    both(c, op, NULL);
    assert_int_equal(c[0].code | c[1].code, 0);
    assert_true(gpu_passes(stream[0]) && gpu_passes(stream[1]));
}

static struct commd_op op_of(int coll, unsigned rank, void *send, void *recv, size_t n)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = coll,
                             .dtype = COMMD_I32,
                             .send = send,
                             .recv = recv,
                             .count = n,
                             .stream = stream[rank]};
}

static void assert_all(const int32_t *p, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            fail_msg("element %zu is %d, expected %d", i, p[i], value);
}

/* In place; @how: so many operations of the group itself are to have been made by then. */
static void all_reduce(uint64_t seq)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 2)};
    struct commd_op op[2];

    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
    both_succeed(op);
    for (unsigned k = 0; k < 2; k++) {
        assert_all(x[k], N, 3);
        assert_int_equal(commd_group_seq(ranks->group[k]), seq);
        gpu_free(x[k]);
    }
}

/* ---- what is agreed upon ----------------------------------------------------------------------
 */

static void ranks_agree_once(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        all_reduce(AGREEING); /* which are the only ones that the hosts do */
}

static void one_that_may_not_is_enough(void **state)
{
    env_set("COMMD_DEVICE_PATH", "host");
    all_reduce(1 + 1); /* all know it after the first gathering */
    all_reduce(3);
}

static void no_service_is_the_host_path(void **state)
{
    ranks->group[0]->now->board.gpu = ranks->group[1]->now->board.gpu = false;
    all_reduce(1);
}

static void no_session_is_the_host_path(void **state)
{
    arena_commd_gpu(commd, -1);
    all_reduce(1 + 1);
}

/* The next commd is asked. */
static void a_session_of_which_there_is_one_end(void **state)
{
    env_set("COMMD_DEVICE_PATH", "device");
    arena_commd_halves(commd, 2);
    all_reduce(AGREEING);
}

static void many_sessions_of_which_there_is_one_end(void **state)
{
    arena_commd_halves(commd, 2 * 3); /* tries */
    all_reduce(1 + 1);                /* the host path */
}

static void who_cannot_attach_says_so(void **state)
{
    mini_gpu_kill(gpu);
    env_set("MINI_GPU_REFUSE", "attach");
    start_gpu();
    all_reduce(AGREEING + 1);
    all_reduce(AGREEING + 2);
}

/* Else each question would get the answer of the one before. */
static void who_answers_something_else_is_lost(void **state)
{
    mini_gpu_kill(gpu);
    env_set("MINI_GPU_REFUSE", "order");
    start_gpu();
    all_reduce(1 + 1);
    for (unsigned k = 0; k < 2; k++)
        assert_true(atomic_load(&atomic_load(&ranks->ctx[k]->device->session)->lost));
}

static void both_refuse(const char *why)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 2)};
    struct commd_op op[2];
    struct call c[2];

    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
    both(c, op, NULL);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(c[k].code, COMMD_E_INVALID);
        assert_non_null(strstr(c[k].error.message, "cannot take the device path"));
        assert_non_null(strstr(c[k].error.message, why));
        gpu_free(x[k]);
    }
}

/* As often as it is tried; the group stays usable. */
static void the_device_path_or_none(void **state)
{
    env_set("COMMD_DEVICE_PATH", "device");
    ranks->group[0]->now->board.gpu = ranks->group[1]->now->board.gpu = false;
    both_refuse("a node of it has no GPU service");
    ranks->group[0]->now->board.gpu = ranks->group[1]->now->board.gpu = true;
    arena_commd_gpu(commd, -1);
    both_refuse("rank 0: ");
    mini_gpu_kill(gpu);
    env_set("MINI_GPU_REFUSE", "attach");
    start_gpu();
    both_refuse("rank 0: ");
    both_refuse("rank 0: ");
    env_set("COMMD_DEVICE_PATH", NULL);
    all_reduce(1 + 2 * AGREEING + AGREEING + 1);
}

/* Where memory cannot be opened by another process, or one allocation cannot. */
static void memory_that_cannot_be_shared_is_copied(void **state)
{
    cu_result (*alloc)(cu_ptr *, size_t) = gpu_symbol("fakecuda_alloc_unshareable");
    struct commd_op op[2];
    int32_t *x[2];
    cu_ptr p;

    gpu_ok(alloc(&p, N * sizeof(int32_t)));
    x[0] = (int32_t *)(uintptr_t)p;
    x[1] = gpu_ints(N, 2);
    for (unsigned i = 0; i < N; i++)
        x[0][i] = 1;
    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
    both_succeed(op);
    assert_all(x[0], N, 3);
    assert_all(x[1], N, 3);
    all_reduce(1 + 2); /* it is the host path for good */
}

/* If it comes later, the others hear of it, and the group goes on; this commd-gpu lends nothing. */
static void memory_that_nothing_stands_in_for_is_an_error_of_all(void **state)
{
    cu_result (*alloc)(cu_ptr *, size_t) = gpu_symbol("fakecuda_alloc_unshareable");
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op[2];
    struct call c[2];
    cu_ptr p;

    all_reduce(AGREEING);
    gpu_ok(alloc(&p, N * sizeof(int32_t)));
    op[0] = op_of(COMMD_ALL_REDUCE, 0, (void *)(uintptr_t)p, (void *)(uintptr_t)p, N);
    op[1] = op_of(COMMD_ALL_REDUCE, 1, x, x, N);
    both(c, op, NULL);
    assert_int_equal(c[0].code, COMMD_E_INVALID);
    assert_non_null(strstr(c[0].error.message, "cannot be given to another process"));
    assert_non_null(strstr(c[0].error.message, "COMMD_DEVICE_PATH=host"));
    assert_true(gpu_passes(stream[1]));
    assert_int_equal(commd_run(ranks->group[1], &op[1]), COMMD_E_INVALID);
    assert_non_null(strstr(commd_last_error()->message, "all_reduce: 4000 bytes of its buffers"));
    all_reduce(AGREEING);
    gpu_free(x);
}

static void watch_until_lost(unsigned rank)
{
    while (!atomic_load(&atomic_load(&ranks->ctx[rank]->device->session)->lost))
        sessions_watch(ranks->ctx[rank]->device);
}

/* What it says of memory that it lends is not believed: a copy would run beyond it. */
static void wrong_sizes_are_not_taken(void **state)
{
    static const char *const how[] = {"lend_less", "lend_more"};
    cu_result (*alloc)(cu_ptr *, size_t) = gpu_symbol("fakecuda_alloc_unshareable");
    struct commd_op op;
    cu_ptr p;

    gpu_ok(alloc(&p, N * sizeof(int32_t)));
    op = op_of(COMMD_ALL_REDUCE, 0, (void *)(uintptr_t)p, (void *)(uintptr_t)p, N);
    for (unsigned i = 0; i < 2; i++) {
        mini_gpu_kill(gpu);
        env_set("MINI_GPU_REFUSE", how[i]);
        start_gpu();
        for (unsigned k = 0; k < 2 && i; k++)
            watch_until_lost(k);
        all_reduce((i + 1) * AGREEING);
        assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_PROTOCOL);
        assert_non_null(strstr(commd_last_error()->message, "bytes where 2097152 were asked for"));
        assert_true(atomic_load(&atomic_load(&ranks->ctx[0]->device->session)->lost));
    }
    gpu_free((void *)(uintptr_t)p);
}

/* ---- what people are told ----------------------------------------------------------------------
 */

static void assert_seat(uint32_t ended, bool pending, bool ready)
{
    struct board_seat seat;

    board_seat(ranks->ctl, 0, now_ms(), &seat);
    assert_int_equal(seat.gpu.ended, ended);
    assert_int_equal(seat.gpu.pending, pending);
    assert_int_equal(seat.gpu.ready, ready);
    if (pending)
        assert_int_equal(seat.gpu.now.seq, ended + 1);
}

/* What is lent ends when it has landed, and later operations may be over by then. */
static void the_oldest_is_named_whatever_ends_first(void **state)
{
    struct commd_group *g = ranks->group[0];
    struct board_member *m = &g->now->board.members[g->now->local];
    struct op_desc desc = {.coll = COLL_BARRIER};
    uint32_t last = 2 * RECORDER_GPU_RING;

    for (desc.seq = 1; desc.seq <= 5; desc.seq++)
        note_announced(g->now, &desc, 0);
    note_ended(g->now, 3, 0);
    assert_seat(0, true, false);
    note_ready(g->now, 2, now_ms());
    assert_seat(0, true, false);
    note_ready(g->now, 1, now_ms());
    assert_seat(0, true, true);
    note_ended(g->now, 1, 0);
    assert_seat(1, true, false);
    note_ended(g->now, 2, COMMD_E_TIMEOUT);
    assert_seat(3, true, false);
    note_ended(g->now, 5, 0);
    note_ended(g->now, 4, 0);
    assert_seat(5, false, false);
    for (desc.seq = 6; desc.seq <= last; desc.seq++) { /* one stays, until it is forgotten */
        note_announced(g->now, &desc, 0);
        if (desc.seq > 6)
            note_ended(g->now, (uint32_t)desc.seq, 0);
    }
    assert_seat(last, false, false);
    note_ended(g->now, 6, 0);
    assert_seat(last, false, false);
    /* somebody has written what cannot be: nobody counts around to it */
    atomic_store(&m->gpu_begun, last - 10);
    note_ended(g->now, last, 0);
    assert_int_equal(atomic_load(&m->gpu_ended), last);
}

/* ---- operations --------------------------------------------------------------------------------
 */

static void blocks_and_counts_arrive(void **state)
{
    static const size_t counts[2][2] = {{3, 500}, {7, 0}}; /* from one to the other */
    static const size_t gathered[2] = {5, 6};
    int32_t *in[2], *out[2], *all[2];
    size_t send[2][2], recv[2][2];
    const void *from[2][2];
    void *to[2][2];
    struct commd_op op[2];

    for (unsigned k = 0; k < 2; k++) {
        in[k] = gpu_ints(N, 10 * (int32_t)k + 1);
        out[k] = gpu_ints(N, 0);
        all[k] = gpu_ints(2 * N, 0);
        for (unsigned j = 0; j < 2; j++) {
            send[k][j] = counts[k][j];
            recv[k][j] = counts[j][k];
            from[k][j] = counts[k][j] ? in[k] + 100 * j : NULL;
            to[k][j] = counts[j][k] ? out[k] + 500 - 400 * j : NULL;
        }
        op[k] = op_of(COMMD_ALL_TO_ALL_V, k, NULL, NULL, 0);
        op[k].send_counts = send[k];
        op[k].recv_counts = recv[k];
        op[k].send_blocks = from[k];
        op[k].recv_blocks = to[k];
    }
    both_succeed(op);
    assert_all(out[0] + 500, 3, 1);
    assert_all(out[0] + 503, N - 503, 0);
    assert_all(out[0] + 100, 7, 11);
    assert_all(out[1] + 500, 500, 1);
    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_GATHER, k, in[k], all[k], N);
    both_succeed(op);
    assert_all(all[1], N, 1);
    assert_all(all[0] + N, N, 11);
    for (unsigned k = 0; k < 2; k++) {
        op[k] = op_of(COMMD_BROADCAST, k, NULL, in[k], N);
        op[k].root = 1;
    }
    both_succeed(op);
    assert_all(in[0], N, 11);
    for (unsigned k = 0; k < 2; k++) {
        op[k] = op_of(COMMD_GATHER_V, k, all[k], out[k], 0);
        op[k].send_counts = &gathered[k];
        op[k].recv_counts = k ? NULL : gathered;
    }
    both_succeed(op);
    assert_all(out[0], 11, 1);
    assert_int_equal(commd_group_seq(ranks->group[0]), AGREEING);
    for (unsigned k = 0; k < 2; k++) {
        gpu_free(in[k]);
        gpu_free(out[k]);
        gpu_free(all[k]);
    }
}

/* More than there are slots, and nobody waits for any. */
static void slots_are_used_again(void **state)
{
    int32_t *x[2] = {gpu_ints(8, 1), gpu_ints(8, 0)};
    struct commd_op op[2];

    all_reduce(AGREEING);
    for (unsigned k = 0; k < 2; k++) {
        op[k] = op_of(COMMD_BROADCAST, k, NULL, x[k], 8);
    }
    for (unsigned i = 0; i < 2 * SESSION_SLOTS + 7; i++)
        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(commd_run(ranks->group[k], &op[k]), 0);
    assert_true(gpu_passes(stream[0]) && gpu_passes(stream[1]));
    assert_all(x[1], 8, 1);
    for (unsigned k = 0; k < 2; k++)
        gpu_free(x[k]);
}

/* A stream waits only if it is told to; the input is what the stream has made of it. */
static void works_wait_for_their_input(void **state)
{
    _Atomic int gate = 0;
    int32_t *x[2] = {gpu_ints(N, 0), gpu_ints(N, 0)}, got[N];
    struct commd_op op[2];
    struct commd_work *w[2];
    cu_stream t = gpu_stream();
    struct call c[2];

    all_reduce(AGREEING);
    for (unsigned k = 0; k < 2; k++) {
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
        gpu_hold(stream[k], &gate);
    }
    both(c, op, w);
    assert_int_equal(c[0].code | c[1].code, 0);
    assert_int_equal(commd_work_wait_stream(w[1], t), 0);
    gpu_ok(cu.copy((cu_ptr)(uintptr_t)got, (cu_ptr)(uintptr_t)x[1], 0, t));
    assert_int_equal(commd_work_wait(w[0], 50), COMMD_E_TIMEOUT);
    assert_int_equal(cu.stream_query(t), CU_E_NOT_READY);
    for (unsigned i = 0; i < N; i++)
        x[0][i] = x[1][i] = 4;
    atomic_store(&gate, 1);
    assert_true(gpu_passes(t));
    assert_all(x[1], N, 8);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_work_wait(w[k], 300000), 0);
        commd_work_free(w[k]);
        gpu_free(x[k]);
    }
}

/* The allocator gives the same addresses again: they are other memory. */
static void freed_memory_is_told_of_anew(void **state)
{
    int32_t *before = NULL;
    bool same = false;

    for (unsigned i = 0; i < 5; i++) {
        int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 2)};
        struct commd_op op[2];

        same |= x[0] == before;
        before = x[0];
        for (unsigned k = 0; k < 2; k++)
            op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
        both_succeed(op);
        assert_all(x[0], N, 3);
        assert_all(x[1], N, 3);
        gpu_free(x[1]);
        gpu_free(x[0]);
    }
    assert_true(same);
}

/* ---- what goes wrong ---------------------------------------------------------------------------
 */

static void a_mismatch_is_an_error_of_all(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct commd_op op[2];
    struct commd_work *w[2];
    struct call c[2];

    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N - k);
    both(c, op, w);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_work_wait(w[k], 300000), COMMD_E_MISMATCH);
        assert_non_null(strstr(commd_last_error()->message, "operation 1 on GPUs (all_reduce)"));
        commd_work_free(w[k]);
        gpu_free(x[k]);
    }
    all_reduce(AGREEING);
}

/* Whoever knows that a stream has passed it need not wait for a thread of ours. */
static void what_a_stream_has_passed_is_done(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct commd_op op[2];
    struct commd_work *w[2];
    struct call c[2];

    all_reduce(AGREEING);
    for (unsigned i = 0; i < 50; i++) {
        for (unsigned k = 0; k < 2; k++)
            op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N - k * (i % 2));
        both(c, op, w);
        for (unsigned k = 0; k < 2; k++)
            commd_work_wait_stream(w[k], stream[k]); /* says how it ended, if it has */
        for (unsigned k = 0; k < 2; k++) {
            int code = 1;

            assert_true(gpu_passes(stream[k]));
            assert_int_equal(commd_work_test(w[k], &code), 1);
            assert_int_equal(code, i % 2 ? COMMD_E_MISMATCH : 0);
            commd_work_free(w[k]);
        }
    }
    gpu_free(x[0]);
    gpu_free(x[1]);
}

struct busy {
    _Atomic unsigned in, out;
    _Atomic bool end;
};

static void keep_busy(void *arg, const struct commd_error *e)
{
    struct busy *b = arg;

    atomic_fetch_add(&b->in, 1);
    while (!atomic_load(&b->end))
        usleep(100);
    atomic_fetch_add(&b->out, 1);
}

/* Also while our thread has no time to look. One of the batch's operations may have failed. */
static void a_batch_that_a_stream_has_passed_is_done(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};

    all_reduce(AGREEING);
    for (unsigned i = 0; i < 2; i++) {
        struct busy busy = {0};
        struct commd_work *first[2], *w[2];
        int done[2], code[2] = {1, 1};

        for (unsigned k = 0; k < 2; k++) {
            struct commd_op op = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);

            assert_int_equal(commd_start(ranks->group[k], &op, keep_busy, &busy, &first[k]), 0);
        }
        while (atomic_load(&busy.in) < 2)
            usleep(100);
        for (unsigned k = 0; k < 2; k++) {
            struct commd_op ops[2] = {op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N),
                                      op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N - k * i)};

            assert_int_equal(commd_start_batch(ranks->group[k], ops, 2, NULL, NULL, &w[k]), 0);
        }
        for (unsigned k = 0; k < 2; k++)
            commd_work_wait_stream(w[k], stream[k]);
        for (unsigned k = 0; k < 2; k++)
            done[k] = gpu_passes(stream[k]) && commd_work_test(w[k], &code[k]);
        atomic_store(&busy.end, true);
        while (atomic_load(&busy.out) < 2)
            usleep(100);
        for (unsigned k = 0; k < 2; k++) {
            assert_true(done[k]);
            assert_int_equal(code[k], i ? COMMD_E_MISMATCH : 0);
            assert_int_equal(commd_work_wait(first[k], 300000), 0);
            commd_work_free(first[k]);
            commd_work_free(w[k]);
        }
    }
    gpu_free(x[0]);
    gpu_free(x[1]);
}

/* Its death frees streams; the next operation finds another one. */
static void a_dead_service_is_told_and_replaced(void **state)
{
    _Atomic int gate = 0;
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct commd_op op[2];
    struct commd_work *w[2];
    struct call c[2];

    all_reduce(AGREEING);
    gpu_hold(stream[1], &gate);
    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);
    both(c, op, w);
    assert_int_equal(commd_work_wait_stream(w[0], stream[0]), 0);
    mini_gpu_kill(gpu);
    start_gpu();
    assert_true(gpu_passes(stream[0]));
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(commd_work_wait(w[k], 300000), COMMD_E_GPU_LOST);
        commd_work_free(w[k]);
    }
    atomic_store(&gate, 1);
    all_reduce(2 * AGREEING);
    for (unsigned k = 0; k < 2; k++)
        gpu_free(x[k]);
}

/* Also if that is seen only after the call has begun: the other rank was told and stays away. */
static void a_failure_is_told_before_anybody_agrees_anew(void **state)
{
    struct device_group *dg;
    int32_t *x = gpu_ints(N, 1);
    struct call c = {.op = op_of(COMMD_ALL_REDUCE, 0, x, x, N)};

    all_reduce(AGREEING);
    assert_int_equal(commd_run(ranks->group[0], &c.op), 0); /* the other does not come */
    dg = atomic_load(&ranks->group[0]->now->device);
    pthread_mutex_lock(&dg->lock);
    assert_int_equal(pthread_create(&c.thread, NULL, call_main, &c), 0);
    usleep(20000); /* by now it waits for the lock, most likely */
    mini_gpu_kill(gpu);
    start_gpu();
    while (!atomic_load(&dg->failure.state))
        usleep(1000);
    pthread_mutex_unlock(&dg->lock);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.code, COMMD_E_GPU_LOST);
    gpu_free(x);
}

/* ---- in host memory, behind a failure ---------------------------------------------------------
 */

static struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};

/* It is told by the call, which takes part: nobody waits for who has been told. */
static void an_operation_in_host_memory_takes_part(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct commd_op op[2], two[2] = {barrier, barrier};
    struct call c[2];

    all_reduce(AGREEING);
    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N - k);
    both_succeed(op);
    both(c, two, NULL);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(c[k].code, COMMD_E_MISMATCH);
        assert_non_null(strstr(c[k].error.message, "operation 2 on GPUs (all_reduce)"));
        gpu_free(x[k]);
    }
    all_reduce(AGREEING + 1);
}

/* Both have called an operation that cannot end before *@gate, and rank 0 waits in a barrier when
 * commd-gpu dies. */
static void wait_in_barrier(struct call *c, int32_t *x[2], _Atomic int *gate)
{
    all_reduce(AGREEING);
    gpu_hold(stream[1], gate);
    for (unsigned k = 0; k < 2; k++) {
        struct commd_op op = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N);

        assert_int_equal(commd_run(ranks->group[k], &op), 0);
    }
    *c = (struct call){.op = barrier, .rank = 0};
    assert_int_equal(pthread_create(&c->thread, NULL, call_main, c), 0);
    while (commd_group_seq(ranks->group[0]) == AGREEING)
        usleep(1000);
    mini_gpu_kill(gpu);
    start_gpu();
}

static void one_that_waits_goes_on_if_all_come(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    _Atomic int gate = 0;
    struct call c;

    wait_in_barrier(&c, x, &gate);
    assert_int_equal(commd_run(ranks->group[1], &barrier), COMMD_E_GPU_LOST);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.code, COMMD_E_GPU_LOST);
    assert_non_null(strstr(c.error.message, "operation 2 on GPUs (all_reduce)"));
    atomic_store(&gate, 1);
    all_reduce(2 * AGREEING + 1);
    gpu_free(x[0]);
    gpu_free(x[1]);
}

/* However long nobody has called anything, and so was told: who comes first waits for the others.
 */
static void one_that_begins_late_waits_all_the_same(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct call c = {.op = barrier, .rank = 0};
    struct commd_op op[2];

    all_reduce(AGREEING);
    for (unsigned k = 0; k < 2; k++)
        op[k] = op_of(COMMD_ALL_REDUCE, k, x[k], x[k], N - k);
    both_succeed(op);
    for (unsigned k = 0; k < 2; k++) {
        struct device_group *dg = atomic_load(&ranks->group[k]->now->device);

        while (!atomic_load(&dg->failure.state))
            session_collect(dg);
        dg->failure.since_ms -= 60000;
    }
    assert_int_equal(pthread_create(&c.thread, NULL, call_main, &c), 0);
    usleep(500000);
    assert_int_equal(commd_run(ranks->group[1], &barrier), COMMD_E_MISMATCH);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.code, COMMD_E_MISMATCH);
    all_reduce(AGREEING + 1);
    gpu_free(x[0]);
    gpu_free(x[1]);
}

/* Rank 1 was told by another call. */
static void one_that_waits_for_who_was_told_ends(void **state)
{
    int32_t *x[2] = {gpu_ints(N, 1), gpu_ints(N, 1)};
    struct commd_op op = op_of(COMMD_ALL_REDUCE, 1, x[1], x[1], N);
    _Atomic int gate = 0;
    struct call c;

    wait_in_barrier(&c, x, &gate);
    watch_until_lost(1);
    assert_int_equal(commd_run(ranks->group[1], &op), COMMD_E_GPU_LOST);
    pthread_join(c.thread, NULL); /* after 10 s */
    assert_int_equal(c.code, COMMD_E_ABORTED);
    assert_non_null(strstr(c.error.message, "rank 1"));
    assert_non_null(strstr(c.error.message, "which is broken by it"));
    assert_non_null(strstr(c.error.message, "operation 2 on GPUs (all_reduce)"));
    assert_int_equal(commd_run(ranks->group[0], &barrier), COMMD_E_ABORTED);
    atomic_store(&gate, 1);
    gpu_free(x[0]);
    gpu_free(x[1]);
}

/* ---- what is lost ------------------------------------------------------------------------------
 */

struct losing {
    struct session s;
    _Atomic bool go;
};

static void *lose_main(void *arg)
{
    struct losing *l = arg;

    while (!atomic_load(&l->go))
        ;
    session_lose(&l->s, "commd-gpu is gone");
    return NULL;
}

/* Whoever sees the loss first, and however many find it at once. */
static void who_sees_a_loss_sees_why(void **state)
{
    for (unsigned i = 0; i < 500; i++) {
        struct losing *l = calloc(1, sizeof *l);
        pthread_t thread[2];

        l->s.sock = l->s.bell = -1;
        pthread_mutex_init(&l->s.pend, NULL);
        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(pthread_create(&thread[k], NULL, lose_main, l), 0);
        atomic_store(&l->go, true);
        while (!atomic_load(&l->s.lost))
            ;
        assert_memory_equal(l->s.why, "commd-gpu is gone; the next", 27);
        for (unsigned k = 0; k < 2; k++)
            pthread_join(thread[k], NULL);
        pthread_mutex_destroy(&l->s.pend);
        free(l);
    }
}

/* However often it dies: the sessions that were lost have none any more. */
static void dead_services_leave_no_descriptors(void **state)
{
    unsigned before = 0;

    for (unsigned i = 1; i <= 4; i++) {
        all_reduce(i * AGREEING);
        if (i == 1)
            before = open_descriptors();
        assert_int_equal(open_descriptors(), before);
        mini_gpu_kill(gpu);
        start_gpu();
        for (unsigned k = 0; k < 2; k++)
            watch_until_lost(k);
    }
}

/* One rank had called an operation more when it died: nothing fits any more. */
static void different_numbers_break_the_group(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op[2] = {op_of(COMMD_ALL_REDUCE, 0, x, x, N)};
    struct commd_work *w;
    struct call c[2];

    all_reduce(AGREEING);
    assert_int_equal(commd_start(ranks->group[0], &op[0], NULL, NULL, &w), 0);
    mini_gpu_kill(gpu);
    start_gpu();
    assert_int_equal(commd_work_wait(w, 300000), COMMD_E_GPU_LOST);
    commd_work_free(w);
    watch_until_lost(1);
    op[1] = op_of(COMMD_ALL_REDUCE, 1, x, x, N);
    both(c, op, NULL);
    for (unsigned k = 0; k < 2; k++) {
        assert_int_equal(c[k].code, COMMD_E_ABORTED);
        assert_non_null(
            strstr(c[k].error.message, "rank 0 had made 2 operations on GPUs and rank 1 1"));
        assert_int_equal(commd_run(ranks->group[k], &op[k]), COMMD_E_ABORTED);
    }
    gpu_free(x);
}

static void the_limit_ends_it(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = op_of(COMMD_ALL_REDUCE, 0, x, x, N);

    all_reduce(AGREEING);
    op.timeout_ms = 100;
    assert_int_equal(commd_run(ranks->group[0], &op), 0);
    assert_true(gpu_passes(stream[0]));
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_TIMEOUT);
    assert_non_null(strstr(commd_last_error()->message, "rank 0 ran into its timeout of 100 ms"));
    gpu_free(x);
}

static void a_broken_group_ends_it(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = op_of(COMMD_ALL_REDUCE, 0, x, x, N);

    all_reduce(AGREEING);
    assert_int_equal(commd_run(ranks->group[0], &op), 0);
    board_mark_broken(ranks->ctl, CAUSE_NODE_LOST, -1, 0, "elsewhere", "node elsewhere is gone");
    assert_true(gpu_passes(stream[0]));
    assert_int_equal(commd_run(ranks->group[0], &op), COMMD_E_NODE_LOST);
    gpu_free(x);
}

static void a_group_that_is_left_ends_it(void **state)
{
    int32_t *x = gpu_ints(N, 1);
    struct commd_op op = op_of(COMMD_ALL_REDUCE, 0, x, x, N);
    struct commd_work *w;

    all_reduce(AGREEING);
    assert_int_equal(commd_start(ranks->group[0], &op, NULL, NULL, &w), 0);
    assert_int_equal(commd_work_wait_stream(w, stream[0]), 0);
    gpu_ranks_leave(ranks, 0);
    assert_int_equal(commd_work_wait(w, 300000), COMMD_E_ABORTED);
    commd_work_free(w);
    assert_true(gpu_passes(stream[0]));
    gpu_free(x);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(ranks_agree_once),
        TEST(one_that_may_not_is_enough),
        TEST(no_service_is_the_host_path),
        TEST(no_session_is_the_host_path),
        TEST(a_session_of_which_there_is_one_end),
        TEST(many_sessions_of_which_there_is_one_end),
        TEST(who_cannot_attach_says_so),
        TEST(who_answers_something_else_is_lost),
        TEST(the_device_path_or_none),
        TEST(memory_that_cannot_be_shared_is_copied),
        TEST(memory_that_nothing_stands_in_for_is_an_error_of_all),
        TEST(wrong_sizes_are_not_taken),
        TEST(the_oldest_is_named_whatever_ends_first),
        TEST(blocks_and_counts_arrive),
        TEST(slots_are_used_again),
        TEST(works_wait_for_their_input),
        TEST(freed_memory_is_told_of_anew),
        TEST(a_mismatch_is_an_error_of_all),
        TEST(what_a_stream_has_passed_is_done),
        TEST(a_batch_that_a_stream_has_passed_is_done),
        TEST(a_dead_service_is_told_and_replaced),
        TEST(a_failure_is_told_before_anybody_agrees_anew),
        TEST(an_operation_in_host_memory_takes_part),
        TEST(one_that_waits_goes_on_if_all_come),
        TEST(one_that_begins_late_waits_all_the_same),
        TEST(one_that_waits_for_who_was_told_ends),
        TEST(who_sees_a_loss_sees_why),
        TEST(dead_services_leave_no_descriptors),
        TEST(different_numbers_break_the_group),
        TEST(the_limit_ends_it),
        TEST(a_broken_group_ends_it),
        TEST(a_group_that_is_left_ends_it),
    };

    /* the ranks are one process here: what one has freed may be the other's next */
    env_set("FAKECUDA_REOPEN", "1");
    mini_gpu_main(argc, argv);
    gpu_load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
