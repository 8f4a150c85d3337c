/* gpu_jobs.c - a thread for calls of the driver that may take long: to make a context takes half a
 * second, to map a large allocation has taken seconds, and what is unmapped waits for the GPU.
 * While they last the loop goes on to serve everybody else.
 *
 * Users take turns: a user's jobs are done in their order, one by one, and after each it is the
 * turn of the next user. `done` is called on the loop. Nothing that a job works on may be freed
 * before: whoever adds one counts it.
 *
 * They are held while NCCL launches over several GPUs: what frees or unmaps memory waits for that
 * GPU and for all that reach it, and holds up launches meanwhile; between the launches on two GPUs
 * it waits for one that waits for the other. Behind a launch one job that waits comes first. */
#include "transport/gpu/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

struct gjobs {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    STAILQ_HEAD(, glane) ready;
    STAILQ_HEAD(, gjob) ended;
    unsigned pending;
    int event;
    bool working; /* on one */
    bool wanted;  /* no other is begun ... */
    bool owed;    /* ... but for one */
    bool held;
};

/* With the lock held. */
static bool may_begin(const struct gjobs *jobs)
{
    return !STAILQ_EMPTY(&jobs->ready) && !jobs->held && (!jobs->wanted || jobs->owed);
}

static void *jobs_thread(void *arg)
{
    struct gjobs *jobs = arg;
    uint64_t one = 1;

    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        struct glane *lane;
        struct gjob *job;

        while (!may_begin(jobs))
            pthread_cond_wait(&jobs->work, &jobs->lock);
        lane = STAILQ_FIRST(&jobs->ready);
        STAILQ_REMOVE_HEAD(&jobs->ready, next);
        job = STAILQ_FIRST(&lane->jobs);
        STAILQ_REMOVE_HEAD(&lane->jobs, next);
        if (STAILQ_EMPTY(&lane->jobs))
            lane->waits = false;
        else
            STAILQ_INSERT_TAIL(&jobs->ready, lane, next);
        jobs->working = true;
        jobs->owed = false;
        pthread_mutex_unlock(&jobs->lock);
        job->work(job);
        pthread_mutex_lock(&jobs->lock);
        jobs->working = false;
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

int jobs_new(struct gjobs **ret)
{
    struct gjobs *jobs = calloc(1, sizeof *jobs);
    sigset_t all, old;
    int r;

    if (!jobs)
        return -ENOMEM;
    STAILQ_INIT(&jobs->ready);
    STAILQ_INIT(&jobs->ended);
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->work, NULL);
    jobs->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (jobs->event < 0) {
        free(jobs);
        return -errno;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&jobs->thread, NULL, jobs_thread, jobs);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r) {
        close(jobs->event);
        free(jobs);
        return -r;
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
    jobs->pending++;
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
        jobs->pending--;
        job->done(job);
    }
}

bool jobs_idle(struct gjobs *jobs)
{
    bool idle;

    pthread_mutex_lock(&jobs->lock);
    idle = jobs->pending == 0;
    pthread_mutex_unlock(&jobs->lock);
    return idle;
}

bool jobs_hold(struct gjobs *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    jobs->wanted = true;
    jobs->held = !jobs->working && !jobs->owed;
    pthread_mutex_unlock(&jobs->lock);
    return jobs->held;
}

void jobs_release(struct gjobs *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    jobs->owed = !STAILQ_EMPTY(&jobs->ready);
    jobs->held = jobs->wanted = false;
    pthread_cond_signal(&jobs->work);
    pthread_mutex_unlock(&jobs->lock);
}
