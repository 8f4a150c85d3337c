/* held.h - what a function that wants a lock held asserts. */
#ifndef COMMD_CLIENT_HELD_H
#define COMMD_CLIENT_HELD_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>

/* Somebody holds @m: the caller, unless it has forgotten to. */
static inline void assert_held(const pthread_mutex_t *m)
{
    assert(pthread_mutex_trylock((pthread_mutex_t *)m) == EBUSY);
}

#endif
