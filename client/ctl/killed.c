/* killed.c - a job that hung, and was ended: its ranks die one after the other, and who was gone
 * first says nothing. What it hung in does: who was gone first slept in a wait for others, so it
 * did not end because of them, and the words of the dead are on their boards still. So all ranks
 * are looked at as if they lived (seats->before), and the chain leads to who kept them waiting.
 *
 * One that crashes in a short wait, or whose others go on, is no such job. */
#include "client/ctl/finding.h"

enum { KILLED_MS = 5000 }; /* nobody ends a job for a hang that is shorter */

/* Who was gone first, if it died in a long wait and all the others are gone, too; or NULL. */
static const struct seat *killed_waiter(const struct seats *seats, const struct seat *of)
{
    const struct seat *first = first_gone(seats, of), *waiter = NULL;

    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank < 0)
            continue;
        if (!is_dead(s) && !is(s->process, "left"))
            return NULL;
        if (first ? s->rank == first->gone_rank : !waiter || died_ms(s) > died_ms(waiter))
            waiter = s;
    }
    return waiter && died_ms(waiter) >= KILLED_MS ? waiter : NULL;
}

bool find_killed(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = seats->before ? killed_waiter(seats, of) : NULL;

    if (!waiter)
        return false;
    f->killed = true;
    f->evidence[0] = 0;
    tell(f->evidence, "its ranks were ended while it hung; until then:");
    follow_strictly(f, seats->before, &seats->before->at[waiter - seats->at]);
    return true;
}
