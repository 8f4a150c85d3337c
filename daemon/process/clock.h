/* clock.h - the monotonic clock in milliseconds, for the edges. The core gets its time with
 * each event. */
#ifndef COMMD_CLOCK_H
#define COMMD_CLOCK_H

#include <sys/time.h>
#include <time.h>

#include "shm/util/base.h"

static inline uint64_t clock_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static inline uint64_t clock_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* The time of day, for people. Somebody may set it back. */
static inline uint64_t clock_wall_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static inline struct timeval clock_timeval(uint64_t ms)
{
    return (struct timeval){.tv_sec = (time_t)(ms / 1000), .tv_usec = (ms % 1000) * 1000};
}

#endif
