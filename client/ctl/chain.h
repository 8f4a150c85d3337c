/* chain.h - a chain of who waits for whom, between its walk (chain.c) and what its end means
 * (chain_end.c). */
#ifndef COMMCTL_CHAIN_H
#define COMMCTL_CHAIN_H

#include "client/ctl/finding.h"

/* One step of a chain. */
enum step_kind {
    STEP_ON,        /* s waits itself, in: the chain goes on there */
    STEP_NOBODY,    /* nobody is waited for, as far as can be seen */
    STEP_DEAD,      /* s is dead */
    STEP_STOPPED,   /* s is stopped */
    STEP_BEHIND,    /* s has called the operation, and its GPU has not come to it */
    STEP_ABSENT,    /* s does something else. in: s has begun to wait just now; NULL: s does not */
    STEP_UNDER_WAY, /* s waits at the other end of the message, in */
};

struct step {
    enum step_kind kind;
    const struct seat *s; /* the rank that is waited for */
    const struct seat *in;
};

/* What a chain that has ended says besides. */
struct chain_end {
    /* The rank whose host has not come and waits in nothing. NULL also where GPUs wait, because a
     * host that runs may only poll its own GPU. */
    const struct seat *absent;
    bool moves; /* the last rank of the chain has moved just now: nobody is stuck at the end */
};

/* The verdict on the end of a chain: @step from @waiter leads nowhere else. */
void find_end(struct finding *f, const struct seats *seats, const struct seat *waiter,
              const struct step *step, struct chain_end *ret_end);

#endif
