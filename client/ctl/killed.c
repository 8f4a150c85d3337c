/* killed.c - a job that hung, and that somebody ended. Its ranks die one after the other, so which
 * rank was gone first says nothing; the verdict is on what the job hung in. What each rank did last
 * is still on its board: so all ranks are looked at as if they lived (seats->before), and the chain
 * leads to the rank that kept the others waiting.
 *
 * It is such a job if the rank that was gone first had waited long for others, in any group of the
 * job, or if it was ended by a signal by which people end jobs. It is no such job if that rank
 * crashed in a short wait, if other ranks go on, or if that rank had an end of its own: a crash, or
 * a SIGKILL that no other rank got. */
#include "client/ctl/finding.h"

enum { KILLED_MS = 5000 }; /* nobody ends a job for a hang that is shorter */

/* Did @s end by something that no other rank had? */
static bool ended_by_itself(const struct seats *seats, const struct seat *s)
{
    if (s->end == END_UNKNOWN || was_ended(s))
        return false;
    group_each(other, seats, s)
        if (other != s && other->rank >= 0 && s->end == END_KILLED && other->end == END_KILLED)
            return false;
    return true;
}

/* Where the process of @s had waited for long when it died: in this group or in another, by its
 * host or by its GPU. NULL: nowhere. */
static const struct seat *died_in(const struct seats *seats, const struct seat *s)
{
    const struct seat *in = &seats->before->at[s - seats->at];

    assert(s >= seats->at && s < seats->at + seats->n);
    if (!is_dead(s))
        return NULL;
    if (stuck_ms(in) < KILLED_MS)
        in = blocked_in(in);
    if (!in || stuck_ms(in) < KILLED_MS || !is_dead(&seats->at[in - seats->before->at]))
        return NULL;
    return in;
}

/* The longest wait in which a rank of the group died; NULL: the job was not ended while it hung. */
static const struct seat *killed_in(const struct seats *seats, const struct seat *of)
{
    const struct seat *row = row_of_first(seats, of), *longest = NULL;

    assert(seats->before && seats->before->n == seats->n);
    if (row ? ended_by_itself(seats, row) || (!died_in(seats, row) && !was_ended(row))
            : first_gone(seats, of) != NULL)
        return NULL;
    group_each(s, seats, of) {
        const struct seat *in = died_in(seats, s);

        if (s->rank < 0)
            continue;
        if (!is_dead(s) && !seat_left(s))
            return NULL;
        if (in && (!longest || stuck_ms(in) > stuck_ms(longest)))
            longest = in;
    }
    return longest;
}

/* "signal 15 (TERM)": how the first rank ended, or a rank that a signal told to; "": not known. */
static const char *ended_by(const struct seats *seats, const struct seat *of)
{
    const struct seat *first = row_of_first(seats, of);

    if (first && *first->exit)
        return first->exit;
    group_each(s, seats, of)
        if (was_ended(s))
            return s->exit;
    return "";
}

bool find_killed(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = seats->before ? killed_in(seats, of) : NULL;
    const char *by;

    if (!waiter)
        return false;
    by = ended_by(seats, of);
    f->killed = true;
    f->evidence[0] = 0;
    tell(f->evidence, "its ranks were ended while it hung%s%s; until then:", *by ? ", by " : "",
         by);
    follow_strictly(f, seats->before, waiter);
    return true;
}
