/* payers.h - the payer of a uid: the person who is charged for what the uid takes.
 *
 * A person has one uid, and by /etc/subuid often 65,536 more, for the users of its containers. Of
 * each thing that users share all of them together get one share: that of the payer. Who may see
 * and end what is asked of the uid itself, never of its payer. */
#ifndef COMMD_PAYERS_H
#define COMMD_PAYERS_H

#include "shm/util/base.h"

struct payer_range {
    uint32_t first, last; /* uids, both included */
    uint32_t payer;
};

/* Never changes. A new one may charge a uid to somebody else, so what is charged is remembered
 * with its payer. */
struct payers {
    unsigned n;
    struct payer_range ranges[]; /* ascending, none overlaps another */
};

/* @payers: NULL, or what subuid_load() made. */
static inline uint32_t payer_of(const struct payers *payers, uint32_t uid)
{
    unsigned low = 0, high = payers ? payers->n : 0;

    while (low < high) {
        unsigned middle = (low + high) / 2;
        const struct payer_range *range = &payers->ranges[middle];

        if (uid < range->first)
            high = middle;
        else if (uid > range->last)
            low = middle + 1;
        else
            return range->payer;
    }
    return uid;
}

#endif
