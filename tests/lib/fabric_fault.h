/* fabric_fault.h - wraps a fabric and makes it worse, for tests: seeded, so a run repeats. */
#ifndef COMMD_FABRIC_FAULT_H
#define COMMD_FABRIC_FAULT_H

#include "transport/fabric/fabric.h"

struct fabric_fault_conf {
    uint64_t seed;
    unsigned max_delay;   /* an arrived message waits for 0..max_delay calls of progress() */
    unsigned stop_every;  /* so many messages of a peer, then nothing of it for stop_for calls of */
    unsigned stop_for;    /* progress(); 0: never */
    unsigned break_after; /* a link breaks after this many messages, both ways; 0: never */
};

/* Makes the wrapper. The inner fabric is then created with *ret_inner as its events and
 * given to fabric_fault_attach(), which owns it from then on. */
int fabric_fault_new(const struct fabric_fault_conf *conf, const struct fabric_events *ev,
                     struct fabric_events *ret_inner, struct fabric **ret_fabric);
void fabric_fault_attach(struct fabric *fault, struct fabric *inner);

#endif
