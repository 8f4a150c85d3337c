/* fabric.c - which fabric a configuration asks for. "auto" takes our own TCP where UCX would use
 * nothing but TCP, else UCX. */
#include "transport/fabric/fabric.h"

int fabric_new(const struct fabric_conf *conf, const struct fabric_events *ev,
               struct fabric **ret_fabric, char why[256])
{
    const char *kind = conf->kind ? conf->kind : "auto";
    bool tcp = !strcmp(kind, "tcp") || (!strcmp(kind, "auto") && !strcmp(conf->tls, "tcp"));

    return tcp ? fabric_tcp_new(conf, ev, ret_fabric, why)
               : fabric_ucx_new(conf, ev, ret_fabric, why);
}
