/* team.h - small operations among many ranks of one node, in two levels: how many ranks are a team.
 * Pure. The ranks of a node in their order: the first @team of them are one team, the next ones
 * another; the first of each is its leader. What they do is in client/lib/coll/teams.c. */
#ifndef COMMD_TEAM_H
#define COMMD_TEAM_H

#include "shm/util/base.h"

enum { TEAM_RANKS_MIN = 16 /* on a node: with fewer all look at all */ };

/* What of a machine decides. Launchers bind ranks to cores in their order, so that ranks which
 * share a cache follow each other; where they do not, results are the same. */
struct team_machine {
    unsigned cpus;   /* that commd may run on */
    unsigned caches; /* last-level caches of them */
};

/* Ranks of a team, 0: no teams. */
unsigned team_size(unsigned nlocal, const struct team_machine *machine);
/* What the model says that a small operation takes, ns; @team 0: without teams. */
unsigned team_ns(unsigned nlocal, const struct team_machine *machine, unsigned team);

#endif
