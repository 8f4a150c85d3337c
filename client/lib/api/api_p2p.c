/* api_p2p.c - the public calls of point-to-point. */
#include "client/lib/api/check.h"
#include "client/lib/device/device.h"
#include "client/lib/p2p/p2p.h"

PUBLIC int commd_send(struct commd_group *group, const void *buf, size_t count, int dtype, int dest,
                      int tag)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_SEND,
                          .dtype = dtype,
                          .send = buf,
                          .count = count,
                          .peer = dest,
                          .tag = tag};

    return commd_run(group, &op);
}

PUBLIC int commd_recv(struct commd_group *group, void *buf, size_t count, int dtype, int source,
                      int tag, struct commd_status *ret_status)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_RECV,
                          .dtype = dtype,
                          .recv = buf,
                          .count = count,
                          .peer = source,
                          .tag = tag};
    struct membership *g = group_now(group);
    int r;

    if (!g)
        return commd_run(group, &op); /* says what is wrong */
    r = p2p_check(g, &op);
    if (unlikely(r))
        return r;
    if (device_takes(g, &op, &r))
        return r ? r : device_run(g, &op, ret_status);
    return device_tells(g, &op, p2p_run(g, &op, ret_status));
}

PUBLIC void commd_work_status(const struct commd_work *work, struct commd_status *ret_status)
{
    *ret_status = work->p2p ? work->p2p->status : (struct commd_status){.source = -1, .tag = -1};
}
