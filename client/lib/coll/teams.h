/* teams.h - a small operation in two levels, PATH_TEAM. See teams.c. */
#ifndef COMMD_CLIENT_TEAMS_H
#define COMMD_CLIENT_TEAMS_H

#include "client/lib/coll/run.h"

/* As run_advance(), of an operation whose plan has teams. */
enum run_state teams_advance(struct run *r);
/* Goes one stage further, if that is possible: then true. */
bool teams_move(struct run *r);

#endif
