/* fabric_ucx.h - what only fabric_ucx.c's launcher, benchmark and tests need, and commctl to show;
 * the fabric itself is made by fabric_ucx_new() of fabric.h. */
#ifndef COMMD_FABRIC_UCX_H
#define COMMD_FABRIC_UCX_H

#include "transport/fabric/fabric.h"

/* "NAME=value" strings, NULL at the end: what must be in the environment before a process
 * that links UCX is exec'ed. Lives in fabric_ucx_env.c, which links no UCX. */
extern const char *const fabric_ucx_env[];

/* Bodies up to this travel with their header, unless tuned: see fabric_ucx.c. */
enum { FABRIC_UCX_EAGER_MAX = 128 << 10 };

struct fabric_ucx_tuning {
    size_t eager_max;     /* bodies up to this travel with their header */
    const char *seg_size; /* UCX TX_SEG_SIZE and RX_SEG_SIZE, above eager_max + 1 KiB */
};

/* fabric_ucx_new() with numbers other than the measured ones. */
int fabric_ucx_new_tuned(const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
                         const struct fabric_events *ev, struct fabric **ret_fabric,
                         char why[256]);

#endif
