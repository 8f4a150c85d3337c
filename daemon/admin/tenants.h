/* tenants.h - what each user of this node holds of each limit, for commctl tenants. */
#ifndef COMMD_TENANTS_H
#define COMMD_TENANTS_H

#include "daemon/admin/answers.h"

/* As an answer_fill_fn. @uid: this user alone; NULL: all users. */
bool tenants_fill(struct answer *a, const uint32_t *uid);
/* Frees what tenants_fill() has allocated. */
void tenants_fini(struct answer *a);

#endif
