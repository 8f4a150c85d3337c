/* early.h - over several nodes, who only sends goes on before the others have it: early.c. */
#ifndef COMMD_CLIENT_EARLY_H
#define COMMD_CLIENT_EARLY_H

#include "client/lib/coll/run.h"

/* Can @r, in which this member can do nothing now, end for it alone? */
bool early_ends(const struct run *r);
/* It ends so: takes what there is to take. */
void early_take(struct run *r);
/* It has ended so: in place of the count of operations that all have ended. */
void early_end(struct run *r);
/* What has become of the operation that ended early? @r is the next one; it may have been
 * announced. True: the first was refused. Then @r has to fail on all ranks, at step *ret_base. */
bool early_refused(struct run *r, uint32_t *ret_base);
/* This member leaves the group: waits until what ended early has come to the others, or cannot. */
void early_wait(struct membership *g);

#endif
