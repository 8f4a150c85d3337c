/* fabric_ucx_socket.c - the TCP sockets that UCX has opened, and their congestion control, for
 * which it has no option: see fabric_net.h.
 *
 * UCX does not show its sockets; but the engine's process has no other TCP sockets. A listening
 * socket hands the setting on to those that it accepts. */
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/fabric/ucx/fabric_ucx_priv.h"

static bool is_tcp(int fd)
{
    int protocol = 0;
    socklen_t len = sizeof(protocol);

    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == IPPROTO_TCP;
}

int ucx_sockets_tune(const char *wish)
{
    struct dirent *entry;
    int all = 0;
    DIR *dir;

    if (!strcmp(wish, "system"))
        return 0;
    dir = opendir("/proc/self/fd");
    if (!dir)
        return -EIO;
    while ((entry = readdir(dir))) {
        int fd = atoi(entry->d_name), r;

        if (entry->d_name[0] == '.' || !is_tcp(fd))
            continue;
        r = net_congestion_take(fd, wish);
        if (r < 0 || all == 0)
            all = r;
    }
    closedir(dir);
    return all;
}
