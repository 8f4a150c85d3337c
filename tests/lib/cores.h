/* cores.h - a test that stays on one core. */
#ifndef COMMD_TEST_CORES_H
#define COMMD_TEST_CORES_H

#include <sched.h>
#include <stdlib.h>

/* Keeps the caller on the core that it runs on. Returns where it might run, for leave_core(). */
static inline cpu_set_t stay_on_core(void)
{
    int core = sched_getcpu();
    cpu_set_t all, one;

    CPU_ZERO(&one);
    if (core < 0 || sched_getaffinity(0, sizeof(all), &all))
        abort();
    CPU_SET((unsigned)core, &one);
    if (sched_setaffinity(0, sizeof(one), &one))
        abort();
    return all;
}

static inline void leave_core(const cpu_set_t *all)
{
    if (sched_setaffinity(0, sizeof(*all), all))
        abort();
}

#endif
