/* check.h - argument checks of the public calls. */
#ifndef COMMD_CLIENT_CHECK_H
#define COMMD_CLIENT_CHECK_H

#include "client/lib/context/group.h"

/* What the public calls fill in: an operation in which no argument is given. */
extern const struct commd_op op_nothing;

/* Argument checks, of op->memory and of a collective: 0 or COMMD_E_*. */
int check_memory(const struct commd_op *op);
int check_op(const struct membership *g, const struct commd_op *op);

#endif
