/* direct.h - an operation in registered memory. See direct.c for the protocol. */
#ifndef COMMD_CLIENT_DIRECT_H
#define COMMD_CLIENT_DIRECT_H

#include "client/internal.h"

/* An operation whose plan is direct begins: r->direct is set if this member can offer its buffers. */
void direct_begin(struct run *r);
/* With all first announcements there and in agreement: has any member offered its buffers? */
bool direct_offered(const struct run *r);
/* As run_poll(). When it has cleared r->direct and does not say RUN_DONE, the operation goes on as
 * any other. */
enum run_state direct_poll(struct run *r);
/* The operation is over, one way or another: afterwards nobody writes into its buffers. */
void direct_end(struct run *r, bool done);
bool direct_asks(const struct run *r);

#endif
