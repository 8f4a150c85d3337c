/* held.h - "with the lock held", as an assert. */
#ifndef COMMD_HELD_H
#define COMMD_HELD_H

#include <pthread.h>
#include <sys/syscall.h>

#include "shm/util/base.h"

/* Asserts that the caller holds @m. glibc writes the holder into the mutex: builds with a sanitizer
 * compare it with the caller; others look only whether there is one, which costs a load. */
static inline void assert_held(const pthread_mutex_t *m)
{
#ifdef __GLIBC__
    assert(CHECKED ? m->__data.__owner == (int)syscall(SYS_gettid) : m->__data.__owner != 0);
#else
    assert(pthread_mutex_trylock((pthread_mutex_t *)m) == EBUSY);
#endif
}

#endif
