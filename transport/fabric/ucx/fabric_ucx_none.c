/* fabric_ucx_none.c - what stands for the fabric over UCX in a build without UCX. */
#include "transport/fabric/ucx/fabric_ucx.h"

int fabric_ucx_new_tuned(const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
                         const struct fabric_events *ev, struct fabric **ret_fabric, char why[256])
{
    return fabric_ucx_new(conf, ev, ret_fabric, why);
}

int fabric_ucx_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256])
{
    strcpy(why, "built without UCX (configure --without-ucx): transport.fabric can only be tcp");
    return -ENOTSUP;
}
