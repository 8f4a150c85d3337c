/* eager.h - up to which size a message between nodes is sent without asking. The fabrics keep to
 * it, and commctl shows it. */
#ifndef COMMD_EAGER_H
#define COMMD_EAGER_H

enum {
    FABRIC_EAGER_MAX = 256 << 10, /* by TCP: up to this copying costs less than an announcement */
    FABRIC_UCX_EAGER_MAX = 128 << 10, /* by UCX, unless tuned: see fabric_ucx.c */
};

#endif
