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
 * where the default is BBR. Others (DCTCP, say) have been chosen by somebody for his network.
 *
 * An engine without privileges, which is the usual one, may take only what the sysctl
 * net.ipv4.tcp_allowed_congestion_control lists: RENO and the default, so perhaps not CUBIC. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef HAVE_UCX

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
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

    if (strcmp(wish, "auto"))
        return wish;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len))
        return NULL;
    return strncmp(now, "bbr", 3) ? NULL : "cubic";
}

int ucx_sockets_tune(const char *wish)
{
    struct dirent *entry;
    int r = 0;
    DIR *dir;

    if (!strcmp(wish, "system"))
        return 0;
    dir = opendir("/proc/self/fd");
    if (!dir)
        return -EIO;
    while ((entry = readdir(dir))) {
        int fd = atoi(entry->d_name);
        const char *name;

        if (entry->d_name[0] == '.' || !is_tcp(fd))
            continue;
        name = choose(fd, wish);
        if (!name)
            continue;
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
            r = -errno;
        else if (r == 0)
            r = 1;
    }
    closedir(dir);
    return r;
}

/* Asked by trying: what the kernel lists as available is more than what we may take. */
static bool may_take(const char *name)
{
    _cleanup_(close_fdp) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return fd >= 0 &&
           setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

void ucx_congestion_names(char *buf, size_t len)
{
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_available_congestion_control", "re");
    char names[512] = "", *save, *name;
    int at = snprintf(buf, len, "auto, system");

    if (!file)
        return;
    if (!fgets(names, sizeof(names), file))
        names[0] = '\0';
    fclose(file);
    for (name = strtok_r(names, " \n", &save); name; name = strtok_r(NULL, " \n", &save)) {
        if (may_take(name) && at + strlen(name) + 2 < len)
            at += snprintf(buf + at, len - (size_t)at, ", %s", name);
    }
}

#endif
