/* restarts.h - when a process that has died is started again: commd, its engine and commd-gpu.
 *
 * At once, unless it dies again and again. A death is early if the process had not served for
 * RESTART_EARLY_MS. RESTARTS_AT_ONCE such deaths in a row may be chance, or somebody who tries us.
 * A death is soon if it had not served for RESTART_SOON_MS: RESTARTS_SOON of these in a row are
 * none. After more of either the next start waits: RESTART_MIN_MS, then twice as long each time, up
 * to RESTART_MAX_MS. So what never serves for long costs a start each RESTART_MAX_MS in the end. */
#ifndef COMMD_RESTARTS_H
#define COMMD_RESTARTS_H

#include "shm/util/base.h"

enum {
    RESTART_EARLY_MS = 500,
    RESTARTS_AT_ONCE = 10,
    RESTART_SOON_MS = 30000,
    RESTARTS_SOON = 100,
    RESTART_MIN_MS = 100,
    RESTART_MAX_MS = 5000,
    RESTART_DOUBLINGS = 6, /* from the one to the other */
};

/* Deaths in a row, each of them early, or soon. All 0: none. */
struct restarts {
    unsigned early, soon;
};

/* It has died after so long a service; 0: it did not serve. Returns how long the next start waits,
 * in ms. */
static inline uint64_t restart_wait(struct restarts *r, uint64_t served_ms)
{
    unsigned over;

    r->early = served_ms < RESTART_EARLY_MS ? r->early + 1 : 0;
    r->soon = served_ms < RESTART_SOON_MS ? r->soon + 1 : 0;
    over = MAX(r->early - MIN(r->early, (unsigned)RESTARTS_AT_ONCE),
               r->soon - MIN(r->soon, (unsigned)RESTARTS_SOON));
    if (!over)
        return 0;
    return MIN(RESTART_MIN_MS << MIN(over - 1, (unsigned)RESTART_DOUBLINGS), (int)RESTART_MAX_MS);
}

/* Is it told to people? From the first start that waits on. */
static inline bool restarts_wait(const struct restarts *r)
{
    return r->early > RESTARTS_AT_ONCE || r->soon > RESTARTS_SOON;
}

#endif
