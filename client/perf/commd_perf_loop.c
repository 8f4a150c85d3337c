/* commd_perf_loop.c - the measurement, the same for every library.
 *
 * All ranks walk the same sizes with the same counts, so nothing has to be agreed on but when the
 * clock ends a warm-up or a size (iterations_for()). At the end of each size the ranks put their
 * times together, by default the mean of each iteration, and their wrong elements. One rank's times
 * are not enough: a root may be done before another rank has anything, and a rank that shares its
 * core with another one may always be the last to begin.
 *
 * Overlap (--async): after the plain iterations each is done twice more, once only computing
 * and once with the computing between start and wait. Computing is a fixed amount of
 * arithmetic, as much as takes one plain operation when nothing else runs. It does not end by the
 * clock, because then a progress thread that takes the core away would seem to cost nothing. How
 * long the computing takes beside the other ranks is measured, since ranks may have to share cores.
 *
 * Interrupted: rank 0 reports the iterations that were done, of the last size as well; then
 * times and wrong elements are only its own. */
#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "client/perf/commd_perf.h"

enum { ALIGN = 4096, CALIBRATE_UNITS = 200000, CALIBRATE_TRIES = 5, BATCH_MOST = 64 };

/* What one group's operation works on; in place recv is send. */
struct buffers {
    uint8_t *send, *recv;         /* owned: filled and checked by the host */
    uint8_t *far_send, *far_recv; /* owned: the same on a GPU, where operations work; else these */
};

struct measurement {
    const struct perf_loop *loop;
    struct perf_data *data;             /* owned */
    struct perf_shape shape;            /* owned */
    struct buffers *buffers;            /* owned, for each group */
    struct commd_op *ops;               /* owned, one for each group */
    double *times, *compute, *together; /* owned */
    uint64_t *ns;                       /* owned: one of them, on its way to the other ranks */
    uint64_t wrong;                     /* of this rank, in this size */
    double units_per_us;                /* of computing */
};

double perf_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
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

    assert(!perf->factor != !perf->step);
    if (perf->factor ? mul_overflows(bytes, (size_t)perf->factor, &next)
                     : add_overflows(bytes, perf->step, &next))
        return 0;
    return next > perf->max_bytes ? 0 : next;
}

/* ---- computing --------------------------------------------------------------------------- */

/* Each step needs the one before: no core does two at a time. It begins far from 1, which a step
 * leaves as it is: a compiler sees that, and drops the loop. */
static void compute(double units)
{
    volatile double out;
    double x = 0;

    for (uint64_t i = (uint64_t)units; i; i--)
        x = x * 0.999999 + 1e-6;
    out = x;
    (void)out;
}

static double calibrate(void)
{
    double best = 0;

    for (int i = 0; i < CALIBRATE_TRIES; i++) {
        double t0 = perf_now_us(), speed;

        compute(CALIBRATE_UNITS);
        speed = CALIBRATE_UNITS / (perf_now_us() - t0);
        best = MAX(best, speed);
    }
    return best;
}

/* ---- one operation in every group -------------------------------------------------------- */

static bool checks(const struct perf *perf)
{
    return perf->check && perf->coll != COMMD_BARRIER;
}

static void check(struct measurement *m)
{
    const struct perf_loop *l = m->loop;

    for (int g = 0; g < l->perf->groups; g++) {
        size_t first = 0,
               wrong = perf_wrong(l->perf, &m->shape, m->data, m->buffers[g].recv, &first);

        if (wrong && !m->wrong)
            fprintf(stderr,
                    "commd-perf: rank %d: %zu B: %zu wrong elements, the first is number %zu\n",
                    l->rank, perf_bytes(l->perf, l->size, m->shape.count), wrong, first);
        m->wrong += wrong;
    }
}

/* What the ranks have, as it goes to the GPU; and what they got, as it comes back. */
static int far_copy(struct measurement *m, bool back)
{
    const struct perf_loop *l = m->loop;
    size_t elem = commd_dtype_size(l->perf->dtype);
    size_t sent = m->shape.send_n * elem, got = m->shape.recv_n * elem;
    int r = 0;

    for (int g = 0; l->memory && g < l->perf->groups && !r; g++) {
        const struct buffers *b = &m->buffers[g];

        if (back && got)
            r = l->memory->copy(l->gpu, b->recv, b->far_recv, got);
        if (!back && sent)
            r = l->memory->copy(l->gpu, b->far_send, b->send, sent);
        if (!back && got && !r && b->far_recv != b->far_send)
            r = l->memory->copy(l->gpu, b->far_recv, b->recv, got);
    }
    return r;
}

/* Enqueues several operations, and waits for all of them. */
static int run_queue(const struct measurement *m)
{
    const struct perf_loop *l = m->loop;
    int r = 0;

    assert(l->memory && l->perf->queue > 0);
    for (int i = 0; i < l->perf->queue && !r; i++)
        r = l->library->run(l->arg, m->ops);
    return r ? r : l->memory->wait(l->gpu);
}

/* With @units the computing comes between start and wait. */
static int operate(const struct measurement *m, double units)
{
    const struct perf_library *lib = m->loop->library;
    int r;

    if (m->loop->memory && !m->loop->perf->async)
        return run_queue(m);
    if (!m->loop->perf->async)
        return lib->run(m->loop->arg, m->ops);
    r = lib->start(m->loop->arg, m->ops);
    if (r)
        return r;
    if (units > 0)
        compute(units);
    return lib->wait(m->loop->arg);
}

static int iterate(struct measurement *m, double units, double *ret_us)
{
    const struct perf_loop *l = m->loop;
    double t0;
    int r;

    if (checks(l->perf))
        for (int g = 0; g < l->perf->groups; g++)
            perf_fill(l->perf, &m->shape, m->data, m->buffers[g].send, m->buffers[g].recv);
    r = checks(l->perf) ? far_copy(m, false) : 0;
    if (!r)
        r = l->library->barrier(l->arg);
    if (r)
        return r;
    t0 = perf_now_us();
    r = operate(m, units);
    *ret_us = perf_now_us() - t0;
    if (l->perf->coll == PERF_PINGPONG)
        *ret_us /= 2;
    if (l->memory && !l->perf->async)
        *ret_us /= l->perf->queue;
    if (!r && checks(l->perf)) {
        r = far_copy(m, true);
        if (!r)
            check(m);
    }
    return r;
}

/* What computing as much takes while the other ranks do so too. */
static int iterate_compute(struct measurement *m, double units, double *ret_us)
{
    const struct perf_loop *l = m->loop;
    int r = l->library->barrier(l->arg);
    double t0 = perf_now_us();

    if (r)
        return r;
    compute(units);
    *ret_us = perf_now_us() - t0;
    return 0;
}

/* ---- one size ---------------------------------------------------------------------------- */

static int library_failed(const struct measurement *m)
{
    const struct perf_loop *l = m->loop;
    char what[64];

    if (*l->interrupted)
        return PERF_INTERRUPTED;
    snprintf(what, sizeof(what), "%s of %zu B", perf_coll_name(l->perf->coll),
             perf_bytes(l->perf, l->size, m->shape.count));
    l->library->failed(l->arg, what);
    return PERF_FAILED;
}

/* *ret_us: what each of the @n took; may be NULL. *io_done is one more for each that was done. */
static int iterations(struct measurement *m, int n, double *ret_us, int *io_done)
{
    const struct perf_loop *l = m->loop;
    size_t bytes = perf_bytes(l->perf, l->size, m->shape.count);

    for (int i = 0; i < n; i++) {
        double us;

        if (iterate(m, 0, &us))
            return library_failed(m);
        if (ret_us)
            ret_us[i] = us;
        ++*io_done;
        if (*l->interrupted)
            return PERF_INTERRUPTED;
        if (l->report)
            report_progress(l->report, bytes, *io_done, ret_us ? iterations_of(l->perf, bytes) : 0,
                            us);
    }
    return PERF_OK;
}

/* Iterates until @ms are over, at most @most times. The ranks agree on the end after 1, 3, 7, ...
 * iterations. */
static int iterations_for(struct measurement *m, int ms, int most, double *ret_us, int *io_done)
{
    const struct perf_loop *l = m->loop;
    double until = perf_now_us() + ms * 1e3;
    uint64_t more = 1;
    int r = 0;

    assert(ms > 0 && *io_done < most);
    for (int n = 1; !r && more && *io_done < most; n = MIN(2 * n, BATCH_MOST)) {
        r = iterations(m, MIN(n, most - *io_done), ret_us ? ret_us + *io_done : NULL, io_done);
        more = perf_now_us() < until;
        if (!r && l->library->reduce(l->arg, &more, 1, COMMD_MAX))
            r = library_failed(m);
    }
    return r;
}

static int warm_up(struct measurement *m)
{
    const struct perf *perf = m->loop->perf;
    int done = 0, r = iterations(m, perf->warmup, NULL, &done);

    return r || !perf->warmup_ms ? r : iterations_for(m, perf->warmup_ms, INT_MAX, NULL, &done);
}

/* *ret_done: of the @n, also on failure. */
static int timed(struct measurement *m, int n, int *ret_done)
{
    int limit_ms = m->loop->perf->limit_ms;

    *ret_done = 0;
    return limit_ms ? iterations_for(m, limit_ms, n, m->times, ret_done)
                    : iterations(m, n, m->times, ret_done);
}

/* Makes of @times, this rank's, what the @n iterations took over all ranks. */
static int over_ranks(const struct measurement *m, double *times, int n)
{
    static const int redops[] = {
        [PERF_AVG] = COMMD_SUM, [PERF_MIN] = COMMD_MIN, [PERF_MAX] = COMMD_MAX};
    const struct perf_loop *l = m->loop;
    int how = l->perf->average, ranks = perf_timed(l->perf->coll, l->size);
    bool counts = perf_is_timed(l->perf->coll, l->rank, l->size);

    assert(how >= PERF_RANK0 && how <= PERF_MAX);
    if (how == PERF_RANK0 || ranks == 0)
        return PERF_OK;
    for (int i = 0; i < n; i++)
        m->ns[i] = counts ? (uint64_t)(times[i] * 1e3 + 0.5) : how == PERF_MIN ? UINT64_MAX : 0;
    if (l->library->reduce(l->arg, m->ns, (size_t)n, redops[how]))
        return library_failed(m);
    for (int i = 0; i < n; i++)
        times[i] = (double)m->ns[i] / 1e3 / (how == PERF_AVG ? ranks : 1);
    return PERF_OK;
}

static int overlapped(struct measurement *m, int n, struct perf_row *row)
{
    double units = row->p50_us * m->units_per_us;
    int r;

    assert(n > 0 && m->units_per_us > 0);
    for (int i = 0; i < n; i++) {
        if (iterate_compute(m, units, &m->compute[i]) || iterate(m, units, &m->together[i]))
            return library_failed(m);
        if (*m->loop->interrupted)
            return PERF_INTERRUPTED;
    }
    r = over_ranks(m, m->compute, n);
    if (!r)
        r = over_ranks(m, m->together, n);
    if (r)
        return r;
    perf_sort(m->compute, n);
    perf_sort(m->together, n);
    row->compute_us = perf_percentile(m->compute, n, 500);
    row->together_us = perf_percentile(m->together, n, 500);
    row->overlap = perf_overlap(row->p50_us, row->compute_us, row->together_us);
    return PERF_OK;
}

static int measure_times(struct measurement *m, int n)
{
    const struct perf_loop *l = m->loop;
    struct perf_row row = {.count = l->perf->coll == COMMD_BARRIER ? 0 : m->shape.count};
    int done = 0, r = warm_up(m);

    if (!r)
        r = timed(m, n, &done);
    row.bytes = perf_bytes(l->perf, l->size, m->shape.count);
    if (!r)
        r = over_ranks(m, m->times, done);
    if (done > 0)
        perf_row_times(&row, m->times, done);
    if (!r && l->perf->async)
        r = overlapped(m, done, &row);
    row.wrong = m->wrong;
    if (!r && l->library->reduce(l->arg, &row.wrong, 1, COMMD_SUM))
        r = library_failed(m);
    if (l->report && done > 0 && (r == PERF_OK || r == PERF_INTERRUPTED)) {
        int r_row = report_row(l->report, &row);

        r = r ? r : r_row;
    }
    return r;
}

static void measure_op(struct measurement *m, int g)
{
    const struct perf_loop *l = m->loop;

    perf_op(l->perf, &m->shape, m->buffers[g].far_send, m->buffers[g].far_recv, &m->ops[g]);
    m->ops[g].memory = l->memory ? COMMD_MEMORY_CUDA : COMMD_MEMORY_HOST;
    m->ops[g].stream = l->stream;
}

static int measure_size(struct measurement *m, size_t count)
{
    const struct perf_loop *l = m->loop;
    int n = iterations_of(l->perf, perf_bytes(l->perf, l->size, count));

    assert(count > 0);
    perf_shape_fini(&m->shape);
    free(m->times);
    free(m->ns);
    m->times = calloc((size_t)n * 3, sizeof(*m->times));
    m->ns = calloc((size_t)n, sizeof(*m->ns));
    if (!m->times || !m->ns || perf_shape_init(l->perf, l->rank, l->size, count, &m->shape)) {
        perf_complain(l->rank, "out of memory");
        return PERF_FAILED;
    }
    m->compute = m->times + n;
    m->together = m->compute + n;
    m->wrong = 0;
    for (int g = 0; g < l->perf->groups; g++)
        measure_op(m, g);
    if (l->library->prepare && l->library->prepare(l->arg, m->ops))
        return library_failed(m);
    return measure_times(m, n);
}

static int measure_sizes(struct measurement *m)
{
    const struct perf_loop *l = m->loop;
    size_t last = 0;

    if (l->perf->coll == COMMD_BARRIER)
        return measure_size(m, 1);
    for (size_t bytes = l->perf->min_bytes; bytes; bytes = next_size(l->perf, bytes)) {
        size_t count = perf_count(l->perf, l->size, bytes);
        int r;

        if (count == last)
            continue; /* sizes below one element per rank are all the same */
        last = count;
        r = measure_size(m, count);
        if (r)
            return r;
    }
    return PERF_OK;
}

/* ---- memory ------------------------------------------------------------------------------ */

/* Page-aligned, with every page touched. */
static uint8_t *buffer(const struct perf_loop *loop, size_t elements, size_t elem)
{
    size_t bytes;
    void *p;

    if (mul_overflows(elements, elem, &bytes))
        return NULL;
    if (loop->perf->registered) {
        if (!loop->library->alloc(loop->arg, MAX(bytes, (size_t)1), &p))
            return p;
        loop->library->failed(loop->arg, "allocating registered memory");
        return NULL;
    }
    if (posix_memalign(&p, ALIGN, MAX(bytes, (size_t)1)))
        return NULL;
    return memset(p, 0, bytes);
}

static uint8_t *far_buffer(const struct perf_loop *loop, size_t elements, size_t elem)
{
    void *p;

    return loop->memory->alloc(loop->gpu, MAX(elements * elem, (size_t)1), &p) ? NULL : p;
}

/* What is made so far is in *b, also on failure. */
static int make_pair(const struct measurement *m, struct buffers *b)
{
    const struct perf_loop *l = m->loop;
    bool in_place = perf_in_place(l->perf->coll);
    size_t elem = commd_dtype_size(l->perf->dtype);

    b->send = buffer(l, m->shape.send_n, elem);
    b->recv = in_place ? b->send : buffer(l, m->shape.recv_n, elem);
    if (!b->send || !b->recv)
        return -ENOMEM;
    b->far_send = l->memory ? far_buffer(l, m->shape.send_n, elem) : b->send;
    b->far_recv = !l->memory ? b->recv
                  : in_place ? b->far_send
                             : far_buffer(l, m->shape.recv_n, elem);
    return b->far_send && b->far_recv ? 0 : -ENOMEM;
}

static int make_buffers(struct measurement *m)
{
    const struct perf *perf = m->loop->perf;
    size_t n = (size_t)perf->groups;
    int r = 0;

    m->buffers = calloc(n, sizeof(*m->buffers));
    m->ops = calloc(n, sizeof(*m->ops));
    if (!m->buffers || !m->ops ||
        perf_shape_init(perf, m->loop->rank, m->loop->size,
                        perf_count(perf, m->loop->size, perf->max_bytes), &m->shape))
        return -ENOMEM;
    for (size_t g = 0; g < n && !r; g++)
        r = make_pair(m, &m->buffers[g]);
    return r ? r : perf_data_new(perf, m->loop->rank, m->loop->size, &m->data);
}

static void free_buffer(const struct perf_loop *loop, void *buffer)
{
    if (loop->perf->registered)
        loop->library->free(loop->arg, buffer);
    else
        free(buffer);
}

static void free_pair(const struct perf_loop *l, const struct buffers *b)
{
    if (l->memory && b->far_recv && b->far_recv != b->far_send)
        l->memory->free(l->gpu, b->far_recv);
    if (l->memory && b->far_send)
        l->memory->free(l->gpu, b->far_send);
    if (b->recv != b->send)
        free_buffer(l, b->recv);
    free_buffer(l, b->send);
}

static void measurement_fini(struct measurement *m)
{
    for (int g = 0; m->buffers && g < m->loop->perf->groups; g++)
        free_pair(m->loop, &m->buffers[g]);
    free(m->buffers);
    free(m->ops);
    free(m->times);
    free(m->ns);
    perf_shape_fini(&m->shape);
    perf_data_free(m->data);
}

int perf_measure(const struct perf_loop *loop)
{
    _cleanup_(measurement_fini) struct measurement m = {.loop = loop};

    assert(loop->rank >= 0 && loop->rank < loop->size);
    if (make_buffers(&m)) {
        perf_complain(loop->rank, "not enough memory for %zu bytes in each of %d group%s",
                      loop->perf->max_bytes, loop->perf->groups,
                      loop->perf->groups == 1 ? "" : "s");
        return PERF_FAILED;
    }
    if (loop->perf->async)
        m.units_per_us = calibrate();
    return measure_sizes(&m);
}
