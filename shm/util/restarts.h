/* restarts.h - when a process that has died is started again: commd, its engine and commd-gpu.
 *
 * At once, unless it dies again and again. A death is early if the process had not served for
 * RESTART_EARLY_MS. RESTARTS_AT_ONCE such deaths in a row may be chance, or somebody who tries us.
 * After more the next start waits: RESTART_MIN_MS, then twice as long each time, up to
 * RESTART_MAX_MS. Who has served for half a second never waits, whatever was before. */
#ifndef COMMD_RESTARTS_H
#define COMMD_RESTARTS_H

#include "shm/util/base.h"

enum {
    RESTART_EARLY_MS = 500,
    RESTARTS_AT_ONCE = 10,
    RESTART_MIN_MS = 100,
    RESTART_MAX_MS = 5000,
    RESTART_DOUBLINGS = 6, /* from the one to the other */
};

/* It has died after so long a service; 0: it did not serve. @early: early deaths in a row, kept by
 * the caller. Returns how long the next start waits, in ms. */
static inline uint64_t restart_wait(unsigned *early, uint64_t served_ms)
{
    unsigned doublings;

    *early = served_ms < RESTART_EARLY_MS ? *early + 1 : 0;
    if (*early <= RESTARTS_AT_ONCE)
        return 0;
    doublings = MIN(*early - RESTARTS_AT_ONCE - 1, (unsigned)RESTART_DOUBLINGS);
    return MIN(RESTART_MIN_MS << doublings, (int)RESTART_MAX_MS);
}

#endif
