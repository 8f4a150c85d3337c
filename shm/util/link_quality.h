/* link_quality.h - is a link between two engines bad, and how bad? By what its engine told of the
 * last second: commd chooses by it which links it tells of, commctl in which order it shows them,
 * and which one it blames. */
#ifndef COMMD_LINK_QUALITY_H
#define COMMD_LINK_QUALITY_H

#include "shm/util/base.h"

enum {
    LINK_LOST_PCT = 2,    /* of the segments: a network that is well loses less */
    LINK_LOST_LEAST = 20, /* segments; fewer say nothing */
    /* Of a link that crawls: what is sent waits so long (a delayed acknowledgement takes 40 ms),
     * and so much longer than at best; and so much more has got through before. */
    LINK_QUEUED_US = 50000,
    LINK_QUEUED_TIMES = 20,
    LINK_RATE_TIMES = 10,
};

struct link_quality {
    uint64_t segments, retransmits; /* in the last second */
    uint64_t rtt_us, min_rtt_us;
    uint64_t rate, bandwidth; /* bytes in a second: lately, and the most so far */
};

/* What of 1,000 segments is sent again. A node may write any numbers. */
static inline uint64_t link_lost_per_mille(const struct link_quality *link)
{
    uint64_t segments = MIN(link->segments, (uint64_t)1 << 50);

    return segments ? MIN(link->retransmits, segments) * 1000 / segments : 0;
}

static inline bool link_loses(const struct link_quality *link)
{
    return link->retransmits >= LINK_LOST_LEAST && link_lost_per_mille(link) >= 10 * LINK_LOST_PCT;
}

static inline bool link_crawls(const struct link_quality *link)
{
    return link->rtt_us >= LINK_QUEUED_US && link->rtt_us / LINK_QUEUED_TIMES >= link->min_rtt_us &&
           link->rate < link->bandwidth / LINK_RATE_TIMES;
}

/* To compare: 0 if it is well. What loses is worse than what crawls, then by how much. */
static inline uint64_t link_badness(const struct link_quality *link)
{
    if (link_loses(link))
        return ((uint64_t)1 << 32) + link_lost_per_mille(link);
    if (link_crawls(link))
        return MIN(link->bandwidth / MAX(link->rate, (uint64_t)1), (uint64_t)UINT32_MAX);
    return 0;
}

#endif
