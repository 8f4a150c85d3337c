/* commd_perf_run.c - one rank: connect, join, measure every size, leave.
 *
 * All ranks walk the same sizes with the same counts, so nothing has to be agreed on. At the end
 * of each size the numbers of wrong elements are summed by an all_reduce of the same group, which
 * also keeps ranks from running ahead.
 *
 * Ctrl-C: rank 0 alone handles it. It ends the operation it waits in (commd_set_interrupt), says
 * what it has and exits with 130; the other ranks just die of it. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "client/commd_perf.h"

enum { JOIN_TIMEOUT_MS = 60000, ALIGN = 4096 };

struct run {
    const struct perf *perf;
    int rank, size;
    struct commd_context *context; /* owned */
    struct commd_group *group;     /* owned */
    struct perf_data *data;        /* owned */
    uint8_t *send, *recv;          /* owned; the same block for what works in place */
    double *times;                 /* owned */
    struct perf_report report;     /* rank 0 */
    uint64_t wrong;                /* of this rank, in this size */
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

/* Shared by the ranks that one launcher forks: set by the first that complains. */
static int *complained;

void perf_share_complaints(void)
{
    void *p = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p != MAP_FAILED)
        complained = p;
}

void perf_complain(int rank, const char *format, ...)
{
    char line[1200];
    va_list ap;
    int n;

    if (interrupted || (complained && __atomic_exchange_n(complained, 1, __ATOMIC_RELAXED)))
        return;
    n = snprintf(line, sizeof(line), "commd-perf: rank %d: ", rank);
    va_start(ap, format);
    vsnprintf(line + n, sizeof(line) - (size_t)n, format, ap);
    va_end(ap);
    fprintf(stderr, "%s\n", line); /* one write: lines of several processes do not mix */
}

static int failed(const struct run *run, const char *what)
{
    const struct commd_error *e = commd_last_error();

    perf_complain(run->rank, "%s: %s", what, e->message[0] ? e->message : commd_strerror(e->code));
    return PERF_FAILED;
}

/* ---- sizes ------------------------------------------------------------------------------- */

/* all_gather and reduce_scatter: the size is the one of the larger buffer, as in nccl-tests. */
static bool per_rank(const struct perf *perf)
{
    return perf->coll == COMMD_ALL_GATHER || perf->coll == COMMD_REDUCE_SCATTER;
}

/* Elements per call for a wanted size: at least one. */
static size_t count_of(const struct run *run, size_t bytes)
{
    size_t elem = commd_dtype_size(run->perf->dtype);

    return MAX(bytes / elem / (per_rank(run->perf) ? (size_t)run->size : 1), (size_t)1);
}

static size_t bytes_of(const struct run *run, size_t count)
{
    return count * commd_dtype_size(run->perf->dtype) *
           (per_rank(run->perf) ? (size_t)run->size : 1);
}

static int iterations_of(const struct perf *perf, size_t bytes)
{
    if (perf->iterations)
        return perf->iterations;
    return bytes < 64 << 10 ? 2000 : bytes <= 8 << 20 ? 50 : 12;
}

/* The next wanted size, or 0 after the last. */
static size_t next_size(const struct perf *perf, size_t bytes)
{
    size_t next;

    if (perf->factor ? mul_overflows(bytes, perf->factor, &next)
                     : add_overflows(bytes, perf->step, &next))
        return 0;
    return next > perf->max_bytes ? 0 : next;
}

/* ---- one operation ----------------------------------------------------------------------- */

static void fill(const struct run *run, size_t count)
{
    const struct perf *perf = run->perf;
    size_t bytes = count * commd_dtype_size(perf->dtype);

    if (perf->coll == COMMD_REDUCE_SCATTER)
        perf_data_fill(run->data, run->send, 0, count * (size_t)run->size);
    else if (perf->coll != COMMD_BROADCAST || run->rank == perf->root)
        perf_data_fill(run->data, run->send, 0, count);
    else
        memset(run->recv, 0x5a, bytes); /* what the root sends must replace it */
    if (run->recv != run->send) /* what an earlier iteration left would look right */
        memset(run->recv, 0x5a, perf->coll == COMMD_ALL_GATHER ? bytes * (size_t)run->size : bytes);
}

static int operate(const struct run *run, size_t count)
{
    const struct perf *p = run->perf;

    struct commd_op op = {.size = sizeof op, .coll = p->coll, .dtype = p->dtype,
                          .redop = p->redop, .root = p->root, .send = run->send,
                          .recv = run->recv, .count = count};

    return commd_run(run->group, &op);
}

static void check(struct run *run, size_t count)
{
    const struct perf *p = run->perf;
    size_t block = count * commd_dtype_size(p->dtype), wrong = 0, first = 0;

    if (p->coll == COMMD_REDUCE_SCATTER)
        wrong = perf_data_wrong(run->data, run->recv, (size_t)run->rank * count, count, 0, &first);
    else if (p->coll != COMMD_ALL_GATHER)
        wrong = perf_data_wrong(run->data, run->recv, 0, count, p->root, &first);
    else
        for (int r = 0; r < run->size; r++)
            wrong += perf_data_wrong(run->data, run->recv + (size_t)r * block, 0, count, r, &first);
    if (wrong && !run->wrong)
        fprintf(stderr, "commd-perf: rank %d: %zu B: %zu wrong elements, the first is number %zu\n",
                run->rank, bytes_of(run, count), wrong, first);
    run->wrong += wrong;
}

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int iterate(struct run *run, size_t count, double *ret_us)
{
    bool check_it = run->perf->check && run->perf->coll != COMMD_BARRIER;
    double t0;
    int r;

    if (check_it)
        fill(run, count);
    r = commd_barrier(run->group);
    if (r)
        return r;
    t0 = now_us();
    r = operate(run, count);
    *ret_us = now_us() - t0;
    if (r)
        return r;
    if (check_it)
        check(run, count);
    return 0;
}

/* ---- one size ---------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int finish_size(struct run *run, size_t count, int n)
{
    struct perf_row row = {.count = count, .wrong = run->wrong};

    if (run->perf->coll == COMMD_BARRIER)
        row.count = 0;
    row.bytes = row.count ? bytes_of(run, count) : 0;
    if (commd_all_reduce(run->group, &run->wrong, &row.wrong, 1, COMMD_U64, COMMD_SUM))
        return failed(run, "summing up the errors");
    qsort(run->times, (size_t)n, sizeof(*run->times), by_value);
    row.min_us = run->times[0];
    row.p50_us = run->times[n / 2];
    row.p99_us = run->times[MIN(n - 1, n * 99 / 100)];
    return run->rank == 0 ? report_row(&run->report, &row) : PERF_OK;
}

static int measure_size(struct run *run, size_t count)
{
    size_t bytes = run->perf->coll == COMMD_BARRIER ? 0 : bytes_of(run, count);
    int n = iterations_of(run->perf, bytes), warmup = run->perf->warmup;
    char what[64];
    double us;

    free(run->times);
    run->times = malloc((size_t)n * sizeof(*run->times));
    if (!run->times) {
        perf_complain(run->rank, "out of memory");
        return PERF_FAILED;
    }
    run->wrong = 0;
    for (int i = -warmup; i < n; i++) {
        if (iterate(run, count, &us)) {
            snprintf(what, sizeof(what), "%s of %zu B", perf_coll_name(run->perf->coll), bytes);
            return failed(run, what);
        }
        if (i >= 0)
            run->times[i] = us;
        if (interrupted)
            return PERF_INTERRUPTED;
        if (run->rank == 0)
            report_progress(&run->report, bytes, MAX(i + 1, 0), n);
    }
    return finish_size(run, count, n);
}

static int measure(struct run *run)
{
    size_t last = 0;

    if (run->perf->coll == COMMD_BARRIER)
        return measure_size(run, 1);
    for (size_t bytes = run->perf->min_bytes; bytes; bytes = next_size(run->perf, bytes)) {
        size_t count = count_of(run, bytes);
        int r;

        if (count == last)
            continue; /* sizes below one element per rank are all the same */
        last = count;
        r = measure_size(run, count);
        if (r)
            return r;
    }
    return PERF_OK;
}

/* ---- one rank ---------------------------------------------------------------------------- */

/* Page-aligned, with every page touched. */
static uint8_t *buffer(size_t bytes)
{
    void *p;

    if (posix_memalign(&p, ALIGN, bytes))
        return NULL;
    return memset(p, 0, bytes);
}

/* In place where torch calls it in place; else from one buffer to another. */
static bool make_buffers(struct run *run)
{
    size_t count = count_of(run, run->perf->max_bytes);
    size_t block = count * commd_dtype_size(run->perf->dtype), whole;

    if (!per_rank(run->perf)) {
        run->send = run->recv = buffer(block);
        return run->send;
    }
    if (mul_overflows(block, (size_t)run->size, &whole))
        return false;
    run->send = buffer(run->perf->coll == COMMD_ALL_GATHER ? block : whole);
    run->recv = buffer(run->perf->coll == COMMD_ALL_GATHER ? whole : block);
    return run->send && run->recv;
}

static int allocate(struct run *run)
{
    if (!perf_data_new(run->perf, run->rank, run->size, &run->data) && make_buffers(run))
        return PERF_OK;
    perf_complain(run->rank, "not enough memory for %zu bytes", run->perf->max_bytes);
    return PERF_FAILED;
}

static int connect_and_join(struct run *run, const char *socket)
{
    struct commd_options options = {.size = sizeof(options), .socket = socket};
    char what[200];

    snprintf(what, sizeof(what), "connecting%s%s", socket ? " to " : "", socket ? socket : "");
    if (commd_connect(&options, &run->context))
        return failed(run, what);
    if (run->rank == 0)
        commd_set_interrupt(run->context, is_interrupted, NULL);
    if (commd_group_join(run->context, run->perf->group, run->rank, run->size, JOIN_TIMEOUT_MS,
                         &run->group))
        return failed(run, "joining the group");
    return PERF_OK;
}

static void run_fini(struct run *run)
{
    commd_group_leave(run->group);
    commd_disconnect(run->context);
    perf_data_free(run->data);
    if (run->recv != run->send)
        free(run->recv);
    free(run->send);
    free(run->times);
}

int perf_rank(const struct perf *perf, int rank, int size, const char *socket)
{
    _cleanup_(run_fini) struct run run = {.perf = perf, .rank = rank, .size = size};
    struct sigaction sa = {.sa_handler = rank == 0 ? on_interrupt : SIG_DFL};
    int r, r_end;

    sigaction(SIGINT, &sa, NULL);
    sa.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &sa, NULL);
    r = connect_and_join(&run, socket);
    if (!r)
        r = allocate(&run);
    if (!r && rank == 0)
        report_begin(&run.report, perf, size, commd_group_nodes(run.group));
    if (!r)
        r = measure(&run);
    if (interrupted)
        r = PERF_INTERRUPTED;
    if (rank == 0 && run.report.perf) {
        r_end = report_end(&run.report, interrupted);
        r = r ? r : r_end;
    }
    return r;
}
