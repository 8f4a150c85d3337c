/* team.c - the model of small operations on one node, by which team_size() chooses.
 *
 * A line that another core has written takes NEAR to come if the two share a last-level cache, FAR
 * if not. Further lines overlap, and take MORE_ each. All who want the same line are served one by
 * one, each for READER. With P ranks, C of them to a cache:
 *
 *     no teams     hop + (C-1) MORE_NEAR + (P-C) MORE_FAR + (P-1) READER        hop: FAR if P > C
 *     teams of k   NEAR + (k-2) MORE_NEAR                           leaders read their teams,
 *                  + hop + (T-2) more + (T-1) READER                each other: T = P/k,
 *                  + NEAR + (k-1) READER                            and teams their leader
 *
 * The numbers are those of current servers, not of this one: half of what a word takes to and fro
 * between two cores (60 to 250 ns where they share a cache, 400 and more where not). A choice
 * depends little on them: of 64 ranks each must read 64 lines, or 16 at most. There are teams only
 * where the model gives them a quarter less: two hops more are sure, what they save is not. */
#include "shm/model/team.h"

enum { NEAR = 60, FAR = 200, MORE_NEAR = 10, MORE_FAR = 30, READER = 5 };

static unsigned ranks_of_cache(unsigned nlocal, const struct team_machine *machine)
{
    unsigned caches = MAX(machine->caches, 1u);

    return (nlocal + caches - 1) / caches;
}

/* Of lines to read behind the first. */
static unsigned more(unsigned lines)
{
    return lines > 1 ? lines - 1 : 0;
}

unsigned team_ns(unsigned nlocal, const struct team_machine *machine, unsigned team)
{
    unsigned near = ranks_of_cache(nlocal, machine), teams;
    bool far = nlocal > near;

    assert(nlocal > 0 && team <= nlocal);
    if (!team)
        return (far ? FAR : NEAR) + more(near) * MORE_NEAR + (nlocal - near) * MORE_FAR +
               more(nlocal) * READER;
    teams = (nlocal + team - 1) / team;
    return NEAR + more(team - 1) * MORE_NEAR + (far ? FAR : NEAR) +
           more(teams - 1) * (far ? MORE_FAR : MORE_NEAR) + more(teams) * READER + NEAR +
           more(team) * READER;
}

unsigned team_size(unsigned nlocal, const struct team_machine *machine)
{
    unsigned best = 0, near = ranks_of_cache(nlocal, machine);

    assert(nlocal > 0);
    if (nlocal < TEAM_RANKS_MIN || nlocal > machine->cpus)
        return 0;
    for (unsigned k = 2; k <= near && k < nlocal; k++)
        if (near % k == 0 && /* none sits on two caches */
            team_ns(nlocal, machine, k) < team_ns(nlocal, machine, best))
            best = k;
    return 4 * team_ns(nlocal, machine, best) <= 3 * team_ns(nlocal, machine, 0) ? best : 0;
}
