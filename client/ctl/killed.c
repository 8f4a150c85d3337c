/* killed.c - a job that hung, and was ended: its ranks die one after the other, and who was gone
 * first says nothing. What it hung in does. Who was gone first slept in a wait for others, so it
 * did not end because of them; or it has a signal by which jobs are ended, while others slept. The
 * words of the dead are on their boards still: so all ranks are looked at as if they lived
 * (seats->before), and the chain leads to who kept them waiting.
 *
 * One that crashes in a short wait, or whose others go on, is no such job. */
#include "client/ctl/finding.h"

enum { KILLED_MS = 5000 }; /* nobody ends a job for a hang that is shorter */

/* Of those who died in a long wait one, if all are gone and that is why; or NULL. */
static const struct seat *killed_waiter(const struct seats *seats, const struct seat *of)
{
    const struct seat *first = first_gone(seats, of), *waiter = NULL;
    bool waits = false, ended = false;

    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank < 0)
            continue;
        if (!is_dead(s) && !is(s->process, "left"))
            return NULL;
        if (first && s->rank == first->gone_rank) {
            waits = died_ms(s) >= KILLED_MS;
            ended = was_ended(s);
        }
        if (!waiter || died_ms(s) > died_ms(waiter))
            waiter = s;
    }
    return waiter && died_ms(waiter) >= KILLED_MS && (!first || waits || ended) ? waiter : NULL;
}

/* "SIGTERM", if one of them is known to have had it; or "". */
static const char *ended_by(const struct seats *seats, const struct seat *of)
{
    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++)
        if (was_ended(seats->by_rank[i]))
            return seats->by_rank[i]->exit;
    return "";
}

bool find_killed(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = seats->before ? killed_waiter(seats, of) : NULL;
    const char *by;

    if (!waiter)
        return false;
    by = ended_by(seats, of);
    f->killed = true;
    f->evidence[0] = 0;
    tell(f->evidence, "its ranks were ended while it hung%s%s; until then:", *by ? ", by " : "",
         by);
    follow_strictly(f, seats->before, &seats->before->at[waiter - seats->at]);
    return true;
}
