/* fabric_tcp_jobs.c - records of large bodies, which other threads make and open (seal_threads.c).
 *
 * A job is some records of one body that follow one another. This thread gives them their numbers,
 * in the order of the stream, so what is on the wire is the same as without. From then on it goes
 * on with the stream:
 *
 *   out   what a job makes has its place in c->out, and is written once it is made (@sealing). The
 *         body is the caller's again when all its jobs are done (@lent).
 *   in    what comes next goes behind what the job opens. That counts as received once this thread
 *         has seen that all tags were right: so a body ends when its last job has, and bodies of a
 *         stream end in its order. A record that is for no large body is opened here, and may be
 *         handed on before a body that came earlier is whole; it proves itself.
 *
 * A tag that is wrong ends the link when this thread sees it. What would end it otherwise
 * (FRAME_BYE, the end of the stream) waits for the jobs of what came before.
 *
 * Memory that a job works on stays until the job is done: who lets go of it waits for that. While
 * all jobs are under way this thread does by itself what comes then, so threads that get no core
 * hold nobody up. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

struct read_buf *chunk_new(void)
{
    struct read_buf *chunk = malloc(sizeof(*chunk));

    if (chunk)
        chunk->refs = 1;
    return chunk;
}

static void chunk_unref(struct read_buf *chunk)
{
    assert(chunk->refs);
    if (--chunk->refs == 0)
        free(chunk);
}

void chunk_next(struct tcp *t)
{
    if (t->chunk->refs == 1)
        return;
    chunk_unref(t->chunk);
    t->chunk = steal_ptr(t->spare);
    t->buf = t->chunk->data;
}

/* ---- on any thread --------------------------------------------------------------------------- */

static void run_seal(struct seal_task *task)
{
    struct seal_job *job = container_of(task, struct seal_job, task);
    const uint8_t *in = job->in;
    uint8_t *out = job->out;

    for (unsigned i = 0; i < job->records && !job->failed; i++) {
        size_t len = MIN(job->len - i * (size_t)SEAL_DATA, (size_t)SEAL_DATA);

        job->failed = seal_batch_put(&job->batch, i, in, len, out);
        in += len;
        out += len + SEAL_MORE;
    }
}

static void run_open(struct seal_task *task)
{
    struct seal_job *job = container_of(task, struct seal_job, task);
    const uint8_t *in = job->in;
    uint8_t *out = job->out;

    for (unsigned i = 0; i < job->records && !job->failed; i++) {
        job->failed = seal_batch_get(&job->batch, i, in, out);
        out += seal_length(in);
        in += seal_length(in) + SEAL_MORE;
    }
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* NULL: there are no threads, or all jobs are under way, or there is no memory. @records: as many
 * as there are, at most; then as many as it has. */
static struct seal_job *job_new(struct conn *c, struct seal *s, unsigned records)
{
    struct seal_job *job = TAILQ_FIRST(&c->t->free_jobs);
    struct seal_batch batch;

    if (!job || records < JOB_RECORDS_MIN)
        return NULL;
    records = seal_lend(s, records, &batch);
    if (!records)
        return NULL;
    TAILQ_REMOVE(&c->t->free_jobs, job, link);
    *job = (struct seal_job){.c = c, .batch = batch, .records = records};
    return job;
}

static void job_begin(struct seal_job *job, void (*run)(struct seal_task *))
{
    struct tcp *t = job->c->t;

    job->c->jobs++;
    job->task.run = run;
    TAILQ_INSERT_TAIL(&t->jobs, job, link);
    seal_threads_give(t->threads, &job->task);
}

size_t job_seal(struct conn *c, struct fabric_req *sealed, uint8_t *to, struct fabric_req *whole,
                const uint8_t *body, size_t len)
{
    struct seal_job *job = job_new(c, c->seals, (unsigned)((len + SEAL_DATA - 1) / SEAL_DATA));

    if (!job)
        return 0;
    job->in = body;
    job->len = MIN(len, job->records * (size_t)SEAL_DATA);
    job->out = to;
    job->sealed = sealed;
    job->whole = whole;
    sealed->sealing = true;
    whole->lent++;
    job_begin(job, run_seal);
    return job->len;
}

size_t job_open(struct conn *c, const uint8_t *p, size_t len)
{
    struct tcp *t = c->t;
    struct inbound *b = c->sink;
    unsigned records = 0;
    size_t at = 0, data = 0;
    struct seal_job *job;

    assert(b);
    if (!t->threads)
        return 0;
    while (records < JOB_RECORDS && len - at >= SEAL_HEAD) {
        size_t n = seal_length(p + at);

        if (!n || len - at < n + SEAL_MORE || !conn_sink(c, data + n) ||
            !seal_goes_on(c->opens, p + at))
            break;
        at += n + SEAL_MORE;
        data += n;
        records++;
    }
    if ((!t->spare && !(t->spare = chunk_new())) || !(job = job_new(c, c->opens, records)))
        return 0;
    assert(job->records == records && p >= t->buf && p + at <= t->buf + READ_SEALED);
    job->in = p;
    job->len = data;
    job->out = b->buf + c->sink_at;
    job->body = b;
    job->chunk = t->chunk;
    t->chunk->refs++;
    b->jobs++;
    sink_pass(c, data);
    job_begin(job, run_open);
    return at;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* @job is done, and goes; what it did is left to the caller. */
static struct seal_job job_take(struct seal_job *job)
{
    struct tcp *t = job->c->t;
    struct seal_job was;

    seal_threads_wait(t->threads, &job->task);
    TAILQ_REMOVE(&t->jobs, job, link);
    assert(job->c->jobs);
    job->c->jobs--;
    seal_return(job->sealed ? job->c->seals : job->c->opens, &job->batch);
    if (job->chunk)
        chunk_unref(job->chunk);
    if (job->body)
        job->body->jobs--;
    was = *job;
    TAILQ_INSERT_HEAD(&t->free_jobs, job, link);
    return was;
}

/* Waits for it, if need be; tells callers. */
static void job_end(struct seal_job *job)
{
    struct seal_job was = job_take(job);
    struct tcp_peer *peer = was.c->peer;

    if (was.failed)
        peer_fail(peer, was.sealed ? -EIO : -EBADMSG,
                  was.sealed ? "cannot encrypt what is to be sent" : TEXT_NOT_SENT_SO);
    if (was.sealed && !was.failed) {
        was.sealed->sealing = false;
        conn_want_write(was.c);
    }
    if (was.whole)
        req_sealed(was.whole, true);
    if (was.body && peer_lives(peer))
        body_got(was.body, was.len);
}

/* The first job of @c that opens; NULL: there is none. */
static struct seal_job *first_open(const struct conn *c)
{
    struct seal_job *job = NULL;

    if (c->jobs)
        TAILQ_FOREACH(job, &c->t->jobs, link)
            if (job->c == c && !job->sealed)
                break;
    return job;
}

bool jobs_turn(struct tcp *t)
{
    struct seal_job *job;
    bool any = false, more;

    if (t->armed)
        seal_threads_disarm(t->threads);
    do {
        more = false;
        TAILQ_FOREACH(job, &t->jobs, link) {
            if (!seal_task_done(&job->task) || (!job->sealed && job != first_open(job->c)))
                continue;
            job_end(job);
            more = any = true;
            break; /* a handler may have ended others */
        }
    } while (more);
    return any;
}

bool jobs_arm(struct tcp *t)
{
    struct seal_job *job;

    if (TAILQ_EMPTY(&t->jobs))
        return true;
    seal_threads_arm(t->threads);
    TAILQ_FOREACH(job, &t->jobs, link)
        if (seal_task_done(&job->task)) {
            seal_threads_disarm(t->threads);
            return false;
        }
    return true;
}

void conn_await_opens(struct conn *c)
{
    struct seal_job *job;

    while ((job = first_open(c)))
        job_end(job);
}

void jobs_of_body(struct inbound *b)
{
    struct seal_job *job, *next;

    for (job = b->jobs ? TAILQ_FIRST(&b->peer->t->jobs) : NULL; job; job = next) {
        next = TAILQ_NEXT(job, link);
        assert(!b->taken); /* so nobody is told */
        if (job->body == b)
            job_end(job);
    }
    assert(!b->jobs);
}

void jobs_of_req(struct fabric_req *req)
{
    struct seal_job *job;

    TAILQ_FOREACH(job, &req->peer->t->jobs, link) {
        if (job->whole != req)
            continue;
        seal_threads_wait(req->peer->t->threads, &job->task);
        job->whole = NULL;
        req->lent--;
    }
}

void conn_end_jobs(struct conn *c, struct req_list *ret_doomed)
{
    struct seal_job *job, *next;

    for (job = c->jobs ? TAILQ_FIRST(&c->t->jobs) : NULL; job; job = next) {
        next = TAILQ_NEXT(job, link);
        if (job->c == c) {
            struct seal_job was = job_take(job);

            if (was.whole && --was.whole->lent == 0)
                TAILQ_INSERT_TAIL(ret_doomed, was.whole, link);
        }
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

int jobs_init(struct tcp *t, unsigned threads)
{
    unsigned n = MIN(threads * JOBS_PER_THREAD, (unsigned)SEAL_TASKS);
    /* each wake-up is an edge: nobody reads it */
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = &t->threads};

    if (!threads)
        return 0;
    t->job_memory = aligned_alloc(CACHELINE, n * sizeof(*t->job_memory));
    t->threads = t->job_memory ? seal_threads_new(threads) : NULL;
    if (!t->threads)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        TAILQ_INSERT_TAIL(&t->free_jobs, &t->job_memory[i], link);
    return epoll_ctl(t->epoll, EPOLL_CTL_ADD, seal_threads_fd(t->threads), &ev) ? -errno : 0;
}

void jobs_fini(struct tcp *t)
{
    assert(TAILQ_EMPTY(&t->jobs));
    t->threads = seal_threads_free(t->threads);
    free(t->job_memory);
    free(t->chunk);
    free(t->spare);
}
