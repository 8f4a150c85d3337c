/* fabric_ucx_socket.c - the TCP sockets that UCX has opened, and their congestion control.
 *
 * UCX neither lets its sockets be seen nor has an option for this; the engine's process has no
 * other TCP sockets, so all that it has are UCX's. A listening socket hands the setting on to
 * those that it accepts.
 *
 * Why at all: BBR, the default on many machines, sends at the rate that it has seen arrive. A
 * collective sends in bursts, between which the receiver reduces, so that rate is the one of the
 * reduction and falls ever lower: between two namespaces of one machine 20 Gbit/s both ways
 * together with BBR, 34 with CUBIC, and 1 MB in 1400 us where 600 would do. Hence "auto": CUBIC
 * where the default is BBR. Others (DCTCP, say) have been chosen by somebody for his network. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef HAVE_UCX

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/fabric_ucx_priv.h"

enum { NAME_MAX_CC = 16 }; /* TCP_CA_NAME_MAX */

static bool is_tcp(int fd)
{
    int protocol = 0;
    socklen_t len = sizeof(protocol);

    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == IPPROTO_TCP;
}

/* What @wish means for this socket; NULL: leave it. */
static const char *choose(int fd, const char *wish)
{
    char now[NAME_MAX_CC + 1] = "";
    socklen_t len = NAME_MAX_CC;

    if (!strcmp(wish, "system"))
        return NULL;
    if (strcmp(wish, "auto"))
        return wish;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len))
        return NULL;
    return strncmp(now, "bbr", 3) ? NULL : "cubic";
}

int ucx_sockets_tune(const char *wish)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int r = 0;

    if (!dir)
        return -errno;
    while ((entry = readdir(dir))) {
        int fd = atoi(entry->d_name);
        const char *name;

        if (entry->d_name[0] == '.' || !is_tcp(fd))
            continue;
        name = choose(fd, wish);
        if (name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
            r = -errno;
    }
    closedir(dir);
    return r;
}

#endif
