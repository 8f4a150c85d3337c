/* share.h - how much of a limit one user may hold, so that a newcomer always finds some left. */
#ifndef COMMD_SHARE_H
#define COMMD_SHARE_H

#include "shm/util/base.h"

/* The most that a user may hold of @limit while the other users hold @others of it: @per_user, but
 * not more than half of what the others leave, the last one included. Where one user may have all
 * (@per_user is not below @limit), all that the others leave. */
static inline uint64_t share_of(uint64_t limit, uint64_t per_user, uint64_t others)
{
    uint64_t left = limit - MIN(others, limit);

    return per_user >= limit ? left : MIN(per_user, left - left / 2);
}

#endif
