/* closer.c - threads that close descriptors, so that a loop never has to.
 *
 * Whoever closes the last copy of a file waits for what the file's owner has chosen: a TCP socket
 * with SO_LINGER for its unsent data, a file of FUSE for its daemon, a large memfd for its pages to
 * be freed, a UNIX socket for all descriptors that lie unread in it. A process that serves many
 * users therefore closes nothing that came from one of them on its loop; it is handed over to here.
 *
 *   lane      the jobs of one user, in order. At most one thread works for a lane at a time, so a
 *             user who makes closing slow makes it slow for that user alone. It is there as long as
 *             it has jobs.
 *   ready     the lanes that have a job and no thread. A thread does one job, then the lane goes to
 *             the end of the line.
 *   threads   one from the beginning, so that there is one when no more can be had; more when a
 *             lane is ready and all are busy. Those go again after a second without work. At most
 *             CLOSER_THREADS: with as many users stuck at once the lanes of others wait, and
 *             nothing else does.
 *
 * A job that takes longer than CLOSER_FIRST_MS is interrupted by a signal, and again every
 * CLOSER_AGAIN_MS. It ends the waiting for a socket that lingers; the kernel goes on to send what
 * is unsent. What no signal ends (FUSE) keeps its lane until it ends by itself.
 *
 * Memory is one small allocation for a job; who may have how many is the caller's rule, by
 * closer_pending(). Threads are never joined: the last one to leave frees everything.
 *
 * fork(): the child has no such threads and must exec. They have all signals blocked but their own,
 * so those of the process go to its loop as before. */
#include "shm/util/closer.h"

#include "shm/util/held.h"

#include <pthread.h>
#include <signal.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum {
    CLOSER_THREADS = 64,
    CLOSER_BUCKETS = 256,
    CLOSER_IDLE_S = 1,
    CLOSER_STACK = 128 << 10,
    CLOSER_FIRST_MS = 10, /* long for a close; and 1,000 sockets that linger take ten seconds */
    CLOSER_AGAIN_MS = 100,
    CLOSER_MAX_FDS = 253,  /* SCM_MAX_FD of the kernel: with one message */
    CLOSER_RESERVE = 1024, /* descriptors; a quarter of those that there are, if that is less, */
    CLOSER_RESERVE_MIN = CLOSER_MAX_FDS + 3, /* but so many */
    CLOSER_MAX_PENDING = 256,                /* of a user, who may send more descriptors */
    CLOSER_SIGNAL = SIGURG, /* ignored where nobody handles it: a late one hurts nobody */
};

#ifndef sigev_notify_thread_id /* before glibc 2.38 */
#define sigev_notify_thread_id _sigev_un._tid
#endif

struct job {
    STAILQ_ENTRY(job) next;
    void (*fn)(void *); /* NULL: close @fd */
    void *arg;
    int fd;
};

struct lane {
    LIST_ENTRY(lane) entry; /* of its bucket */
    STAILQ_ENTRY(lane) ready;
    STAILQ_HEAD(, job) jobs; /* owned */
    uint32_t uid;
    unsigned pending; /* with the one that is being done */
    bool waits;       /* on closer->ready */
    bool busy;        /* a thread does a job of it */
};

struct closer {
    pthread_mutex_t lock;
    pthread_cond_t work; /* a lane is ready, or we are to end */
    LIST_HEAD(, lane) lanes[CLOSER_BUCKETS];
    STAILQ_HEAD(, lane) ready;
    unsigned pending; /* of all lanes */
    unsigned nthreads, nidle;
    unsigned wakes; /* idle threads that were signalled and have not begun yet */
    bool ending;
};

static void no_op(int sig)
{
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static struct lane *lane_find(struct closer *c, uint32_t uid)
{
    struct lane *lane;

    LIST_FOREACH(lane, &c->lanes[uid % CLOSER_BUCKETS], entry)
        if (lane->uid == uid)
            return lane;
    return NULL;
}

static struct lane *lane_get(struct closer *c, uint32_t uid)
{
    struct lane *lane = lane_find(c, uid);

    if (lane)
        return lane;
    lane = calloc(1, sizeof(*lane));
    if (!lane)
        return NULL;
    lane->uid = uid;
    STAILQ_INIT(&lane->jobs);
    LIST_INSERT_HEAD(&c->lanes[uid % CLOSER_BUCKETS], lane, entry);
    return lane;
}

static void lane_ready(struct closer *c, struct lane *lane)
{
    assert_held(&c->lock);
    if (lane->waits || lane->busy || STAILQ_EMPTY(&lane->jobs))
        return;
    lane->waits = true;
    STAILQ_INSERT_TAIL(&c->ready, lane, ready);
}

/* The next job of the lane that waits longest. */
static struct lane *lane_take(struct closer *c, struct job **ret_job)
{
    struct lane *lane = STAILQ_FIRST(&c->ready);

    assert_held(&c->lock);
    if (!lane)
        return NULL;
    STAILQ_REMOVE_HEAD(&c->ready, ready);
    lane->waits = false;
    lane->busy = true;
    *ret_job = STAILQ_FIRST(&lane->jobs);
    STAILQ_REMOVE_HEAD(&lane->jobs, next);
    return lane;
}

static void lane_done(struct closer *c, struct lane *lane)
{
    lane->busy = false;
    lane->pending--;
    c->pending--;
    lane_ready(c, lane);
    if (!lane->pending) {
        LIST_REMOVE(lane, entry);
        free(lane);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

/* A timer whose signal goes to the calling thread. Without one (a limit of the machine) whatever
 * lingers does so to its end, in its lane. */
static bool timer_new(timer_t *ret_timer)
{
    struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = CLOSER_SIGNAL};

    ev.sigev_notify_thread_id = gettid();
    return timer_create(CLOCK_MONOTONIC, &ev, ret_timer) == 0;
}

static void timer_arm(timer_t timer, bool on)
{
    struct itimerspec its = {
        .it_value.tv_nsec = on ? CLOSER_FIRST_MS * 1000000L : 0,
        .it_interval.tv_nsec = on ? CLOSER_AGAIN_MS * 1000000L : 0,
    };

    timer_settime(timer, 0, &its, NULL);
}

static void job_do(struct job *job)
{
    if (job->fn)
        job->fn(job->arg);
    else
        close(job->fd); /* the descriptor is gone even when a signal came */
    free(job);
}

/* False when this thread is one too many. */
static bool wait_for_work(struct closer *c, bool first)
{
    struct timespec ts;
    int r = 0;

    assert_held(&c->lock);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += CLOSER_IDLE_S;
    c->nidle++;
    while (STAILQ_EMPTY(&c->ready) && !c->ending && r != ETIMEDOUT) {
        r = first ? pthread_cond_wait(&c->work, &c->lock)
                  : pthread_cond_timedwait(&c->work, &c->lock, &ts);
        c->wakes -= c->wakes > 0; /* also when it finds that another was faster */
    }
    c->nidle--;
    return !STAILQ_EMPTY(&c->ready);
}

static void closer_end(struct closer *c)
{
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    free(c);
}

static void closer_work(struct closer *c, bool first)
{
    timer_t timer;
    bool timed = timer_new(&timer), last;
    struct lane *lane;
    struct job *job;

    pthread_mutex_lock(&c->lock);
    do {
        while ((lane = lane_take(c, &job))) {
            pthread_mutex_unlock(&c->lock);
            if (timed)
                timer_arm(timer, true);
            job_do(job);
            if (timed)
                timer_arm(timer, false);
            pthread_mutex_lock(&c->lock);
            lane_done(c, lane);
        }
    } while (!c->ending && wait_for_work(c, first));
    last = --c->nthreads == 0 && c->ending;
    pthread_mutex_unlock(&c->lock);
    if (timed)
        timer_delete(timer);
    if (last)
        closer_end(c);
}

static void *first_thread(void *arg)
{
    closer_work(arg, true);
    return NULL;
}

static void *more_thread(void *arg)
{
    closer_work(arg, false);
    return NULL;
}

static int thread_new(struct closer *c, void *(*fn)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t blocked, before;
    int r;

    sigfillset(&blocked);
    sigdelset(&blocked, CLOSER_SIGNAL);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, CLOSER_STACK);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    r = pthread_create(&thread, &attr, fn, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (r == 0)
        c->nthreads++;
    return -r;
}

static void wake_or_start(struct closer *c)
{
    assert_held(&c->lock);
    if (c->nidle > c->wakes) {
        c->wakes++;
        pthread_cond_signal(&c->work);
    } else if (c->nthreads < CLOSER_THREADS) {
        (void)thread_new(c, more_thread); /* else one of those that are there gets to it */
    }
}

/* ---- what others call ------------------------------------------------------------------------ */

int closer_new(struct closer **ret)
{
    struct sigaction sa = {.sa_handler = no_op};
    struct closer *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    int r;

    if (!c)
        return -ENOMEM;
    sigemptyset(&sa.sa_mask);
    sigaction(CLOSER_SIGNAL, &sa, NULL);
    STAILQ_INIT(&c->ready);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->work, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_lock(&c->lock);
    r = thread_new(c, first_thread);
    pthread_mutex_unlock(&c->lock);
    if (r) {
        closer_end(c);
        return r;
    }
    *ret = c;
    return 0;
}

struct closer *closer_free(struct closer *c)
{
    if (!c)
        return NULL;
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int enqueue_job(struct closer *c, uint32_t uid, const struct job *what)
{
    struct job *job = malloc(sizeof(*job));
    struct lane *lane = NULL;

    if (job) {
        *job = *what;
        pthread_mutex_lock(&c->lock);
        lane = lane_get(c, uid);
        if (lane) {
            STAILQ_INSERT_TAIL(&lane->jobs, job, next);
            lane->pending++;
            c->pending++;
            if (!lane->waits && !lane->busy) {
                lane_ready(c, lane);
                wake_or_start(c);
            }
        }
        pthread_mutex_unlock(&c->lock);
    }
    if (lane)
        return 0;
    free(job);
    return -ENOMEM;
}

int closer_fd(struct closer *c, uint32_t uid, int fd)
{
    int saved = errno, r = 0;

    if (fd >= 0 && (!c || (r = enqueue_job(c, uid, &(struct job){.fd = fd}))))
        close(fd);
    errno = saved;
    return r;
}

int closer_sock(struct closer *c, uint32_t uid, int fd)
{
    int saved = errno;

    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
    errno = saved;
    return closer_fd(c, uid, fd);
}

int closer_call(struct closer *c, uint32_t uid, void (*fn)(void *), void *arg)
{
    int r = 0;

    if (!c || (r = enqueue_job(c, uid, &(struct job){.fn = fn, .arg = arg, .fd = -1})))
        fn(arg);
    return r;
}

unsigned closer_pending(struct closer *c, uint32_t uid)
{
    struct lane *lane;
    unsigned n;

    if (!c)
        return 0;
    pthread_mutex_lock(&c->lock);
    lane = lane_find(c, uid);
    n = lane ? lane->pending : 0;
    pthread_mutex_unlock(&c->lock);
    return n;
}

static unsigned reserve(rlim_t *ret_limit)
{
    struct rlimit files = {.rlim_cur = 1024};

    getrlimit(RLIMIT_NOFILE, &files);
    *ret_limit = MIN(files.rlim_cur, (rlim_t)INT32_MAX);
    return (unsigned)MIN(MAX(*ret_limit / 4, (rlim_t)CLOSER_RESERVE_MIN), (rlim_t)CLOSER_RESERVE);
}

int closer_reserve(void)
{
    rlim_t limit;
    unsigned n = reserve(&limit);

    return limit > n ? (int)(limit - n) : 0;
}

bool closer_room(struct closer *c, uint32_t uid)
{
    unsigned own, all;
    rlim_t limit;

    if (!c)
        return true;
    own = closer_pending(c, uid);
    pthread_mutex_lock(&c->lock);
    all = c->pending;
    pthread_mutex_unlock(&c->lock);
    return own <= CLOSER_MAX_PENDING && (!all || all + CLOSER_MAX_FDS <= reserve(&limit));
}
