/* commd_perf_run.c - one rank over libcommd: connect, join, measure, leave.
 *
 * sendrecv and pingpong are two operations each. With several groups an operation is started in
 * each and then all are waited for; with one it is the blocking call, unless --async asks for
 * start and wait.
 *
 * Ctrl-C: rank 0 ends the operation that it waits in (commd_set_interrupt), reports what it has and
 * exits with 130. The signal ends the other ranks. */
#include <stdarg.h>
#include <stdio.h>

#include "client/perf/commd_perf.h"

enum { JOIN_TIMEOUT_MS = 60000 };

struct own_rank {
    const struct perf *perf;
    int rank, size;
    struct commd_context *context; /* owned */
    struct commd_group **groups;   /* owned, perf->groups of them */
    struct commd_work **works;     /* owned, one for each group */
    struct perf_gpu *gpu;          /* owned; NULL: buffers in host memory */
    double join_us;
    struct perf_report report; /* rank 0 */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    interrupted = 1;
}

static int is_interrupted(void *arg)
{
    return interrupted;
}

void perf_complain(int rank, const char *format, ...)
{
    char line[1200];
    va_list ap;
    int n;

    if (interrupted || !perf_begin_complaint(&interrupted))
        return;
    n = snprintf(line, sizeof(line), "commd-perf: rank %d: ", rank);
    va_start(ap, format);
    vsnprintf(line + n, sizeof(line) - (size_t)n, format, ap);
    va_end(ap);
    fprintf(stderr, "%s\n", line); /* one write: lines of several processes do not mix */
    perf_end_complaint();
}

/* ---- libcommd as a library to measure ---------------------------------------------------- */

static void run_failed(void *arg, const char *what)
{
    const struct commd_error *e = commd_last_error();
    struct own_rank *run = arg;

    perf_complain(run->rank, "%s: %s", what, e->message[0] ? e->message : commd_strerror(e->code));
}

static int run_barrier(void *arg)
{
    struct own_rank *run = arg;

    return commd_barrier(run->groups[0]);
}

/* The two halves of PERF_SENDRECV and PERF_PINGPONG. */
static struct commd_op half(const struct own_rank *run, const struct commd_op *op, int coll)
{
    struct commd_op h = *op;

    assert(perf_point_to_point(op->coll));
    h.coll = coll;
    h.peer = coll == COMMD_SEND ? perf_dest(op->coll, run->rank, run->size)
                                : perf_source(op->coll, run->rank, run->size);
    return h;
}

static int run_start_one(struct own_rank *run, int g, const struct commd_op *op)
{
    struct commd_op both[2];

    assert(!run->works[g]);
    if (!perf_point_to_point(op->coll))
        return commd_start(run->groups[g], op, NULL, NULL, &run->works[g]);
    both[0] = half(run, op, COMMD_RECV);
    both[1] = half(run, op, COMMD_SEND);
    return commd_start_batch(run->groups[g], both, 2, NULL, NULL, &run->works[g]);
}

static int run_start(void *arg, const struct commd_op *ops)
{
    struct own_rank *run = arg;
    int r = 0;

    for (int g = 0; g < run->perf->groups && !r; g++)
        r = run_start_one(run, g, &ops[g]);
    return r;
}

/* Frees all of them; the result is that of the first that failed. */
static int run_wait(void *arg)
{
    struct own_rank *run = arg;
    int r = 0;

    for (int g = 0; g < run->perf->groups; g++) {
        if (!r)
            r = commd_work_wait(run->works[g], -1);
        commd_work_free(run->works[g]);
        run->works[g] = NULL;
    }
    return r;
}

/* As a program does it that must not depend on how much a send buffers. */
static int send_and_receive(struct own_rank *run, const struct commd_op *op)
{
    struct commd_op send = half(run, op, COMMD_SEND), recv = half(run, op, COMMD_RECV);
    int r = commd_start(run->groups[0], &recv, NULL, NULL, &run->works[0]);

    assert(op->coll == PERF_SENDRECV);
    if (!r)
        r = commd_run(run->groups[0], &send);
    return r ? r : run_wait(run);
}

static int ping_or_pong(struct own_rank *run, const struct commd_op *op)
{
    struct commd_op send = half(run, op, COMMD_SEND), recv = half(run, op, COMMD_RECV);
    bool first = run->rank < send.peer;
    int r;

    assert(op->coll == PERF_PINGPONG);
    if (send.peer < 0)
        return 0;
    r = commd_run(run->groups[0], first ? &send : &recv);
    return r ? r : commd_run(run->groups[0], first ? &recv : &send);
}

static int run_run(void *arg, const struct commd_op *ops)
{
    struct own_rank *run = arg;
    int r;

    if (ops->coll == PERF_PINGPONG)
        return ping_or_pong(run, ops);
    if (run->perf->groups == 1)
        return ops->coll == PERF_SENDRECV ? send_and_receive(run, ops)
                                          : commd_run(run->groups[0], ops);
    r = run_start(run, ops);
    return r ? r : run_wait(run);
}

static int run_reduce(void *arg, uint64_t *values, size_t n, int redop)
{
    struct own_rank *run = arg;

    return commd_all_reduce(run->groups[0], values, values, n, COMMD_U64, redop);
}

static int run_alloc(void *arg, size_t bytes, void **ret_ptr)
{
    struct own_rank *run = arg;

    return commd_alloc(run->context, bytes, ret_ptr);
}

static void run_free(void *arg, void *ptr)
{
    (void)arg;
    commd_free(ptr);
}

static const struct perf_library libcommd = {.barrier = run_barrier,
                                             .run = run_run,
                                             .start = run_start,
                                             .wait = run_wait,
                                             .reduce = run_reduce,
                                             .alloc = run_alloc,
                                             .free = run_free,
                                             .failed = run_failed};

/* ---- one rank ---------------------------------------------------------------------------- */

static int join_groups(struct own_rank *run)
{
    int n = run->perf->groups;
    _cleanup_(freep) double *times = calloc((size_t)n, sizeof(*times));

    run->groups = calloc((size_t)n, sizeof(*run->groups));
    run->works = calloc((size_t)n, sizeof(*run->works));
    if (!times || !run->groups || !run->works) {
        perf_complain(run->rank, "out of memory");
        return PERF_FAILED;
    }
    for (int g = 0; g < n; g++) {
        double t0 = perf_now_us();
        char name[160];

        /* "/": it has what tells one run of a launcher from another already */
        snprintf(name, sizeof(name), g ? "/%s-%d" : "/%s", run->perf->group, g);
        if (commd_group_join(run->context, name, run->rank, run->size, JOIN_TIMEOUT_MS,
                             &run->groups[g])) {
            run_failed(run, "joining the group");
            return PERF_FAILED;
        }
        times[g] = perf_now_us() - t0;
    }
    perf_sort(times, n);
    run->join_us = perf_percentile(times, n, 500);
    return PERF_OK;
}

static int connect_and_join(struct own_rank *run, const char *socket)
{
    struct commd_options options = {.size = sizeof(options), .socket = socket};
    char what[200];

    snprintf(what, sizeof(what), "connecting%s%s", socket ? " to " : "", socket ? socket : "");
    if (commd_connect(&options, &run->context)) {
        run_failed(run, what);
        return PERF_FAILED;
    }
    if (run->rank == 0)
        commd_set_interrupt(run->context, is_interrupted, NULL);
    return join_groups(run);
}

static int measure_rank(struct own_rank *run)
{
    struct perf_loop loop = {.perf = run->perf,
                             .library = &libcommd,
                             .arg = run,
                             .rank = run->rank,
                             .size = run->size,
                             .interrupted = &interrupted};
    int r, r_end;

    if (run->gpu) {
        loop.memory = &perf_gpu_memory;
        loop.gpu = run->gpu;
        loop.stream = perf_gpu_stream(run->gpu);
    }
    if (run->perf->turns)
        return perf_take_turns(&loop);
    if (run->rank)
        return perf_measure(&loop);
    loop.report = &run->report;
    report_begin(&run->report, run->perf, run->size, commd_group_nodes(run->groups[0]),
                 run->join_us, run->gpu ? perf_gpu_name(run->gpu) : NULL);
    r = perf_measure(&loop);
    if (interrupted)
        r = PERF_INTERRUPTED;
    r_end = report_end(&run->report, interrupted);
    return r ? r : r_end;
}

static void own_rank_fini(struct own_rank *run)
{
    for (int g = 0; run->works && g < run->perf->groups; g++)
        commd_work_free(run->works[g]);
    commd_disconnect(run->context); /* leaves the groups */
    perf_gpu_close(run->gpu);
    free(run->groups);
    free(run->works);
}

int perf_rank(const struct perf *perf, int rank, int size, const char *socket)
{
    _cleanup_(own_rank_fini) struct own_rank run = {.perf = perf, .rank = rank, .size = size};
    struct sigaction sa = {.sa_handler = rank == 0 ? on_interrupt : SIG_DFL};
    int r;

    sigaction(SIGINT, &sa, NULL);
    sa.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &sa, NULL);
    r = perf->on_gpu ? perf_gpu_open(rank, &run.gpu) : 0; /* before libcommd looks for it */
    if (!r)
        r = connect_and_join(&run, socket);
    if (!r)
        r = measure_rank(&run);
    return interrupted ? PERF_INTERRUPTED : r;
}
