/* fabric_loop.h - a fabric in one process, for tests: all that are made from one hub reach each
 * other by address. */
#ifndef COMMD_FABRIC_LOOP_H
#define COMMD_FABRIC_LOOP_H

#include "transport/fabric/fabric.h"

struct fabric_hub;
struct fabric_hub *fabric_hub_new(void);
struct fabric_hub *fabric_hub_free(struct fabric_hub *hub);
int fabric_loop_new(struct fabric_hub *hub, const struct fabric_events *ev,
                    struct fabric **ret_fabric);
/* Makes the loop fabric hand bodies of at least @bytes over as rendezvous claims. */
void fabric_loop_set_rndv(struct fabric *f, size_t bytes);
/* Breaks the link to @peer as if the cable had gone: both sides report it. */
void fabric_loop_break(struct fabric *f, unsigned peer);

#endif
