/* seal_threads.h - threads that encrypt and decrypt for a thread which does all else. See
 * seal_threads.c. All but the threads themselves is called by that one thread, the owner. */
#ifndef COMMD_SEAL_THREADS_H
#define COMMD_SEAL_THREADS_H

#include <stdatomic.h>

#include "shm/util/base.h"

struct seal_threads;

enum { SEAL_TASKS = 64 };

struct seal_task {
    void (*run)(struct seal_task *task); /* touches nothing but what the task was given */
    _Atomic bool done;
};

/* At most @most threads, which start with the first task. NULL: no memory, no descriptor. */
struct seal_threads *seal_threads_new(unsigned most);
/* Every task has to be done. NULL ok; returns NULL. */
struct seal_threads *seal_threads_free(struct seal_threads *s);

/* @task stays the caller's, and is not touched by anybody else once it is done. At most SEAL_TASKS
 * may be given and not done. */
void seal_threads_give(struct seal_threads *s, struct seal_task *task);
/* Does a task that no thread has begun, here. False: there is none. */
bool seal_threads_help(struct seal_threads *s);
/* Until @task is done. */
void seal_threads_wait(struct seal_threads *s, struct seal_task *task);
/* What @task has done is seen by whoever has seen this. */
static inline bool seal_task_done(const struct seal_task *task)
{
    return atomic_load(&task->done);
}

/* Each input there is a wake-up of the owner; nobody reads it: for epoll, edge-triggered. */
int seal_threads_fd(const struct seal_threads *s);
/* The owner goes to sleep: looks at its tasks after this call, and sleeps only if none is done. */
void seal_threads_arm(struct seal_threads *s);
/* The owner is awake. */
void seal_threads_disarm(struct seal_threads *s);

#endif
