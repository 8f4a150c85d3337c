/* test_gpu_comms.c - communicators that end, by a clock of the test: whose abort may begin, and how
 * long it may take. Threads that abort end when the test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "transport/gpu/gpu_op.h"

enum { LIMIT_MS = 1000, DEVICES = 4 };

static struct gpu g;
static struct gdevice devices[DEVICES];
static struct gpu_gate gate;
static uint64_t clock_ms;
static jmp_buf ended; /* commd-gpu has ended itself */

/* ---- what the rest of commd-gpu is to communicators -------------------------------------------
 */

int clock_gettime(clockid_t id, struct timespec *ts)
{
    (void)id;
    *ts = (struct timespec){(time_t)(clock_ms / 1000), (long)(clock_ms % 1000) * 1000000};
    return 0;
}

void gpu_log(const struct gpu *gpu, unsigned level, const char *format, ...)
{
    (void)gpu, (void)level, (void)format;
}

void gpu_log_user(struct gpu *gpu, uint32_t uid, unsigned level, const char *format, ...)
{
    (void)gpu, (void)uid, (void)level, (void)format;
}

void gpu_fatal(struct gpu *gpu, const char *format, ...)
{
    (void)gpu, (void)format;
    longjmp(ended, 1);
}

bool jobs_gate(struct gjobs *jobs, enum gate_event event)
{
    (void)jobs;
    return gpu_gate_step(&gate, event);
}

int thread_start(void *(*fn)(void *), void *arg, size_t stack)
{
    (void)fn, (void)arg, (void)stack;
    return 0;
}

void op_retell(struct gop *op, int code, const char *text)
{
    (void)op, (void)code, (void)text;
}

void group_break(struct ggroup *gr, int code, int rank, uint32_t pid, const char *text)
{
    (void)gr, (void)code, (void)rank, (void)pid, (void)text;
}

void device_check(struct gdevice *d, cu_result r, const char *what)
{
    (void)d, (void)r, (void)what;
}

cu_result device_use(struct gdevice *d)
{
    (void)d;
    return CU_SUCCESS;
}

/* ---- communicators ----------------------------------------------------------------------------
 */

static void begin(int version)
{
    g = (struct gpu){.loop = pthread_self(), .timeout_ms = LIMIT_MS, .nccl = {.version = version}};
    gate = (struct gpu_gate){.one_abort = version < NCCL_ABORTS_AT_ONCE};
    clock_ms = 1000000;
    memset(devices, 0, sizeof devices);
    for (unsigned i = 0; i < DEVICES; i++)
        for (unsigned s = 0; s < STREAMS; s++)
            STAILQ_INIT(&devices[i].stream[s].flying);
}

/* One on two GPUs, from @first on. */
static struct gcomm *comm_on(unsigned first)
{
    struct gcomm *c = calloc(1, sizeof *c + 2 * sizeof c->here[0]);

    assert_non_null(c);
    c->g = &g;
    c->nunits = c->nhere = 2;
    c->state = COMM_READY;
    c->used_ms = UINT64_MAX / 2; /* it was used lately */
    for (unsigned i = 0; i < 2; i++)
        c->here[i] = (struct gcomm_rank){.number = i, .dev = &devices[first + i]};
    LIST_INSERT_HEAD(&g.comms, c, link);
    return c;
}

static void turn_at(uint64_t ms)
{
    clock_ms = 1000000 + ms;
    comms_turn(&g);
}

static void aborted(struct gcomm *c)
{
    assert_int_equal(c->state, COMM_ABORTING);
    atomic_store(&c->aborts_left, 0);
}

/* The first abort may wait for what only the second one ends. */
static void an_abort_has_its_time_again_when_another_begins(void **state)
{
    struct gcomm *a, *b;

    (void)state;
    begin(22809);
    a = comm_on(0);
    b = comm_on(1);
    assert_int_equal(setjmp(ended), 0);
    comm_fail(&g, a, "a");
    turn_at(LIMIT_MS - 1);
    comm_fail(&g, b, "b");
    turn_at(2 * LIMIT_MS - 2); /* nobody ends the process: else setjmp() returns 1 */
    aborted(b);
    aborted(a);
    turn_at(2 * LIMIT_MS - 2);
    assert_true(LIST_EMPTY(&g.comms) && !g.nending && !gate.aborts);
}

static void an_abort_that_does_not_come_back_ends_the_process(void **state)
{
    struct gcomm *c;

    (void)state;
    begin(22809);
    c = comm_on(0);
    if (setjmp(ended)) {
        free(c);
        return;
    }
    comm_fail(&g, c, "a");
    turn_at(LIMIT_MS + 1);
    fail_msg("it is waited for");
}

static void an_old_nccl_aborts_one_after_the_other(void **state)
{
    struct gcomm *a, *b;

    (void)state;
    begin(21800);
    a = comm_on(0);
    b = comm_on(2);
    assert_int_equal(setjmp(ended), 0);
    comm_fail(&g, a, "a");
    comm_fail(&g, b, "b");
    turn_at(LIMIT_MS / 2);
    assert_int_equal(b->state, COMM_FAILED);
    aborted(a);
    turn_at(LIMIT_MS / 2);
    turn_at(LIMIT_MS / 2);
    turn_at(LIMIT_MS + LIMIT_MS / 4); /* the time of the second one has begun with its abort */
    aborted(b);
    turn_at(LIMIT_MS + LIMIT_MS / 4);
    assert_true(LIST_EMPTY(&g.comms));
}

static void a_retired_one_waits_for_nccl_on_its_gpus_alone(void **state)
{
    struct gcomm *c;

    (void)state;
    begin(22809);
    c = comm_on(0);
    assert_int_equal(setjmp(ended), 0);
    devices[1].stream[STREAM_NCCL].nflying = 1;
    devices[0].stream[STREAM_MOVES].nflying = 1; /* moves wait for nobody */
    devices[2].stream[STREAM_NCCL].nflying = 1;
    comm_change(c, COMM_RETIRE);
    turn_at(10 * LIMIT_MS);
    assert_int_equal(c->state, COMM_RETIRED);
    devices[1].stream[STREAM_NCCL].nflying = 0;
    g.stage = LAUNCH_CALLS;
    turn_at(10 * LIMIT_MS);
    assert_int_equal(c->state, COMM_RETIRED);
    g.stage = LAUNCH_ROOM;
    turn_at(10 * LIMIT_MS);
    aborted(c);
    turn_at(10 * LIMIT_MS);
    assert_true(LIST_EMPTY(&g.comms));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_has_its_time_again_when_another_begins),
        cmocka_unit_test(an_abort_that_does_not_come_back_ends_the_process),
        cmocka_unit_test(an_old_nccl_aborts_one_after_the_other),
        cmocka_unit_test(a_retired_one_waits_for_nccl_on_its_gpus_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
