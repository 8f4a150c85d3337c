/* seal_threads.c - threads that encrypt and decrypt for the engine's thread.
 *
 * The owner decides everything: which record has which number, what is sent when, what is handed
 * on. A task is memory to read, memory to write, and a key of its own; it is one thread's from its
 * beginning to its end, and then the owner's again.
 *
 * The owner helps: a task that no thread has begun is done by it when it has nothing else to do, or
 * has to wait. So nothing hangs where no thread can be started, or none gets a core.
 *
 * A thread without work looks for some for SPIN_NS, which covers the gap between two pieces of a
 * stream, and offers its core to others in between; then it sleeps, and after IDLE_S it ends. Who
 * sleeps costs the owner a system call for the next task. The owner looks at its tasks in each
 * turn; while it sleeps, the end of a task writes to an eventfd.
 *
 * The process must not fork. Threads have what the owner has: its confinement, its CPUs. All
 * signals are the owner's. */
#include "transport/fabric/tcp/seal_threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>

#include "shm/util/held.h"
#include "shm/util/wait.h"

enum {
    SPIN_NS = 50000,
    SPIN_LOOKS = 32, /* between two yields */
    IDLE_S = 10,
    STACK = 256 << 10,
    SLOTS = SEAL_TASKS,
};

/* The owner writes @slot and @given, whoever takes a task writes @taken: to hand one over costs a
 * line of the cache each way, and no lock. A task has left its slot before that is written again,
 * as there are at most SLOTS tasks. */
struct seal_threads {
    _Alignas(CACHELINE) _Atomic unsigned given;
    struct seal_task *_Atomic slot[SLOTS];
    _Alignas(CACHELINE) _Atomic unsigned taken;
    _Alignas(CACHELINE) _Atomic unsigned nidle; /* changed with the lock held, as what follows */
    _Atomic unsigned nthreads;
    _Atomic bool ending, asleep; /* @asleep: the owner is to be woken */
    unsigned most;
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t work; /* a task waits, or we are to end */
    pthread_cond_t left; /* a thread has ended */
};

static bool any_waits(const struct seal_threads *s)
{
    return atomic_load(&s->given) != atomic_load(&s->taken);
}

static struct seal_task *task_take(struct seal_threads *s)
{
    unsigned at = atomic_load(&s->taken);

    while (at != atomic_load(&s->given)) {
        struct seal_task *task = atomic_load_explicit(&s->slot[at % SLOTS], memory_order_relaxed);

        if (atomic_compare_exchange_weak(&s->taken, &at, at + 1))
            return task;
    }
    return NULL;
}

static void spin(struct seal_threads *s)
{
    uint64_t end = now_ns() + SPIN_NS;

    while (!any_waits(s) && !atomic_load(&s->ending) && now_ns() < end) {
        for (unsigned i = 0; i < SPIN_LOOKS && !any_waits(s); i++)
            cpu_relax();
        sched_yield();
    }
}

/* False: there is none for so long that this thread may end. */
static bool sleep_for_work(struct seal_threads *s)
{
    struct timespec until;
    int r = 0;

    assert_held(&s->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_S;
    atomic_fetch_add(&s->nidle, 1); /* before the look at tasks; in give() it is the other way */
    while (!any_waits(s) && !s->ending && r != ETIMEDOUT)
        r = pthread_cond_timedwait(&s->work, &s->lock, &until);
    atomic_fetch_sub(&s->nidle, 1);
    return any_waits(s);
}

/* The end of a task comes before the look at @asleep here, and @asleep before the look at the task
 * in arm(): one of the two sees the other. */
static void finish(struct seal_threads *s, struct seal_task *task)
{
    atomic_store(&task->done, true);
    if (atomic_load(&s->asleep) && atomic_exchange(&s->asleep, false))
        eventfd_write(s->fd, 1);
}

static void *work(void *arg)
{
    struct seal_threads *s = arg;
    struct seal_task *task;
    bool more;

    prctl(PR_SET_NAME, "commd-seal");
    do {
        while ((task = task_take(s))) {
            task->run(task);
            finish(s, task);
            spin(s);
        }
        pthread_mutex_lock(&s->lock);
        more = !s->ending && sleep_for_work(s);
        if (more)
            pthread_mutex_unlock(&s->lock);
    } while (more);
    s->nthreads--;
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void thread_start(struct seal_threads *s)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;

    assert_held(&s->lock);
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, &attr, work, s))
        s->nthreads++; /* else the owner helps, and the next task tries again */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

void seal_threads_give(struct seal_threads *s, struct seal_task *task)
{
    unsigned at = atomic_load_explicit(&s->given, memory_order_relaxed);

    assert(at - atomic_load_explicit(&s->taken, memory_order_relaxed) < SLOTS);
    atomic_store_explicit(&task->done, false, memory_order_relaxed);
    atomic_store_explicit(&s->slot[at % SLOTS], task, memory_order_relaxed);
    atomic_store(&s->given, at + 1);
    if (likely(!atomic_load(&s->nidle) && atomic_load(&s->nthreads) == s->most))
        return;
    pthread_mutex_lock(&s->lock);
    if (s->nidle)
        pthread_cond_signal(&s->work);
    else if (s->nthreads < s->most)
        thread_start(s);
    pthread_mutex_unlock(&s->lock);
}

bool seal_threads_help(struct seal_threads *s)
{
    struct seal_task *task = task_take(s);

    if (!task)
        return false;
    task->run(task);
    atomic_store(&task->done, true);
    return true;
}

void seal_threads_wait(struct seal_threads *s, struct seal_task *task)
{
    while (!seal_task_done(task))
        if (!seal_threads_help(s))
            sched_yield();
}

int seal_threads_fd(const struct seal_threads *s)
{
    return s->fd;
}

void seal_threads_arm(struct seal_threads *s)
{
    atomic_store(&s->asleep, true);
}

void seal_threads_disarm(struct seal_threads *s)
{
    atomic_store(&s->asleep, false);
}

struct seal_threads *seal_threads_new(unsigned most)
{
    struct seal_threads *s = aligned_alloc(CACHELINE, sizeof(*s));
    pthread_condattr_t attr;

    assert(most > 0);
    if (!s)
        return NULL;
    memset(s, 0, sizeof(*s));
    s->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (s->fd < 0) {
        free(s);
        return NULL;
    }
    s->most = most;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->left, &attr);
    pthread_condattr_destroy(&attr);
    return s;
}

struct seal_threads *seal_threads_free(struct seal_threads *s)
{
    if (!s)
        return NULL;
    pthread_mutex_lock(&s->lock);
    assert(!any_waits(s));
    s->ending = true;
    pthread_cond_broadcast(&s->work);
    while (s->nthreads)
        pthread_cond_wait(&s->left, &s->lock);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->left);
    close(s->fd);
    free(s);
    return NULL;
}
