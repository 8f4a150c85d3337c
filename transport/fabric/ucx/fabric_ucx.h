/* fabric_ucx.h - what only benchmark and tests need;
 * the fabric itself is made by fabric_ucx_new() of fabric.h. */
#ifndef COMMD_FABRIC_UCX_H
#define COMMD_FABRIC_UCX_H

#include "transport/fabric/fabric.h"

struct fabric_ucx_tuning {
    size_t eager_max;     /* bodies up to this travel with their header */
    const char *seg_size; /* UCX TX_SEG_SIZE and RX_SEG_SIZE, above eager_max + 1 KiB */
};

/* fabric_ucx_new() with numbers other than the measured ones. */
int fabric_ucx_new_tuned(const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
                         const struct fabric_events *ev, struct fabric **ret_fabric, char why[256]);

#endif
