/* tenants.h - what each user of this node has of what they share, for commctl tenants. */
#ifndef COMMD_TENANTS_H
#define COMMD_TENANTS_H

#include "daemon/admin/answers.h"

/* An answer_fill_fn. @uid: of this user alone; NULL: of all. */
bool tenants_fill(struct answer *a, const uint32_t *uid);
/* What it has taken for it. */
void tenants_fini(struct answer *a);

#endif
