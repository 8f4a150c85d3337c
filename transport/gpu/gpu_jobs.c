/* gpu_jobs.c - a thread for calls of the driver that may take long: to make a context takes half a
 * second, to map a large allocation has taken seconds, and what is unmapped waits for the GPU.
 * Meanwhile the loop serves everybody else.
 *
 * Users take turns: a user's jobs are done in their order, one by one, and after each job it is the
 * turn of the next user. `done` is called on the loop. Nothing that a job works on may be freed
 * before: whoever adds a job counts it.
 *
 * The gate says when a job may begin, and whoever else makes calls that wait for GPUs asks it
 * through jobs_gate(). gpu_life.c has its rules. */
#include "transport/gpu/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

enum { STACK = 8 << 20 }; /* the driver runs on it */

struct gjobs {
    pthread_mutex_t lock;
    pthread_cond_t work;
    STAILQ_HEAD(, glane) ready;
    STAILQ_HEAD(, gjob) ended;
    int event;
    struct gpu_gate gate;
};

static void *jobs_thread(void *arg)
{
    struct gjobs *jobs = arg;
    uint64_t one = 1;

    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        struct glane *lane;
        struct gjob *job;

        while (!gpu_gate_step(&jobs->gate, GATE_JOB_BEGIN))
            pthread_cond_wait(&jobs->work, &jobs->lock);
        assert(!STAILQ_EMPTY(&jobs->ready));
        lane = STAILQ_FIRST(&jobs->ready);
        STAILQ_REMOVE_HEAD(&jobs->ready, next);
        job = STAILQ_FIRST(&lane->jobs);
        STAILQ_REMOVE_HEAD(&lane->jobs, next);
        if (STAILQ_EMPTY(&lane->jobs))
            lane->waits = false;
        else
            STAILQ_INSERT_TAIL(&jobs->ready, lane, next);
        pthread_mutex_unlock(&jobs->lock);
        job->work(job);
        pthread_mutex_lock(&jobs->lock);
        gpu_gate_step(&jobs->gate, GATE_JOB_END);
        STAILQ_INSERT_TAIL(&jobs->ended, job, next);
        if (write(jobs->event, &one, sizeof one) < 0)
            continue; /* it is readable already */
    }
    return NULL;
}

int thread_start(void *(*fn)(void *), void *arg, size_t stack)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    int r;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, stack);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}

int jobs_new(bool one_abort, struct gjobs **ret)
{
    struct gjobs *jobs = calloc(1, sizeof *jobs);
    int r;

    if (!jobs)
        return -ENOMEM;
    STAILQ_INIT(&jobs->ready);
    STAILQ_INIT(&jobs->ended);
    jobs->gate.one_abort = one_abort;
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->work, NULL);
    jobs->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = jobs->event < 0 ? -errno : thread_start(jobs_thread, jobs, STACK);
    if (r) {
        close_fdp(&jobs->event);
        free(jobs);
        return r;
    }
    *ret = jobs;
    return 0;
}

int jobs_fd(const struct gjobs *jobs)
{
    return jobs->event;
}

void jobs_add(struct gjobs *jobs, struct glane *lane, struct gjob *job)
{
    pthread_mutex_lock(&jobs->lock);
    if (!lane->made)
        STAILQ_INIT(&lane->jobs);
    lane->made = true;
    STAILQ_INSERT_TAIL(&lane->jobs, job, next);
    if (!lane->waits)
        STAILQ_INSERT_TAIL(&jobs->ready, lane, next);
    lane->waits = true;
    gpu_gate_step(&jobs->gate, GATE_JOB_ADD);
    pthread_cond_signal(&jobs->work);
    pthread_mutex_unlock(&jobs->lock);
}

void jobs_turn(struct gjobs *jobs)
{
    STAILQ_HEAD(, gjob) ended = STAILQ_HEAD_INITIALIZER(ended);
    struct gjob *job;
    uint64_t n;

    if (read(jobs->event, &n, sizeof n) < 0)
        return;
    pthread_mutex_lock(&jobs->lock);
    STAILQ_CONCAT(&ended, &jobs->ended);
    pthread_mutex_unlock(&jobs->lock);
    while ((job = STAILQ_FIRST(&ended))) {
        STAILQ_REMOVE_HEAD(&ended, next);
        job->done(job);
    }
}

bool jobs_gate(struct gjobs *jobs, enum gate_event event)
{
    bool may;

    pthread_mutex_lock(&jobs->lock);
    may = gpu_gate_step(&jobs->gate, event);
    pthread_cond_signal(&jobs->work);
    pthread_mutex_unlock(&jobs->lock);
    return may;
}
