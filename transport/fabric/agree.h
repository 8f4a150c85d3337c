/* agree.h - do data between two engines go encrypted, in the clear, or not at all? Decided from
 * what the two sides want, so both come to the same. */
#ifndef COMMD_FABRIC_AGREE_H
#define COMMD_FABRIC_AGREE_H

#include "transport/fabric/fabric.h"

enum agreed {
    AGREED_CLEAR,
    AGREED_ENCRYPTED,
    AGREED_ON_AND_OFF, /* one side wants the one and the other the other */
    AGREED_UNTRUSTED,  /* one side is off, and for one of them others may be on the network */
};

/* @loopback: both sides are. Each order of the two sides gives the same. */
enum agreed fabric_agree(const struct fabric_wants *one, const struct fabric_wants *other,
                         bool loopback);
/* What two nodes that do not agree are told: both, what they say, and what to do. */
void fabric_disagree(const struct fabric_wants *one, const char *name,
                     const struct fabric_wants *other, const char *other_name, char *why,
                     size_t size);

#endif
