/* root.c - uid 0 alone is not root of this machine. A user namespace may map its root to uid 0. And
 * root of a container has uid 0 if the container has no user namespace of its own. Both may use
 * root's files, and have none of root's powers.
 *
 * Two things in /proc tell them apart, and everybody may read them: the ids that the process's user
 * namespace maps, and the process's capabilities in that namespace. If the process lives after they
 * have been read, no other process had its pid, so they are its own.
 *
 * A namespace that maps all ids to themselves looks like its parent. Only a process that has all
 * ids of the parent can make such a namespace. */
#include "daemon/process/root.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct rights {
    char uid_map[16384];   /* 340 lines at most */
    uint64_t capabilities; /* effective */
};

static bool read_whole(const char *process, const char *name, char *buf, size_t size)
{
    char path[64];
    _cleanup_(close_fdp) int fd = -1;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%s/%s", process, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, buf, size - 1);
    if (n <= 0 || n == (ssize_t)size - 1)
        return false;
    buf[n] = 0;
    return true;
}

static bool rights_of(const char *process, struct rights *ret)
{
    _cleanup_(freep) char *line = NULL; /* that of the groups may be long */
    bool found = false;
    size_t room = 0;
    char path[64];
    FILE *file;

    if (!read_whole(process, "uid_map", ret->uid_map, sizeof(ret->uid_map)))
        return false;
    snprintf(path, sizeof(path), "/proc/%s/status", process);
    file = fopen(path, "re");
    if (!file)
        return false;
    while (!found && getline(&line, &room, file) > 0)
        found = sscanf(line, "CapEff: %" SCNx64, &ret->capabilities) == 1;
    fclose(file);
    return found;
}

bool root_of_machine(uint32_t pid, int pidfd)
{
    const uint64_t admin = UINT64_C(1) << CAP_SYS_ADMIN;
    struct pollfd gone = {.fd = pidfd, .events = POLLIN};
    struct rights own, its;
    char text[16];

    if (!pid || pidfd < 0)
        return false;
    snprintf(text, sizeof(text), "%u", pid);
    if (!rights_of("self", &own) || !rights_of(text, &its) || strcmp(own.uid_map, its.uid_map))
        return false;
    /* in a container that runs commd, its root has no more capabilities than commd */
    if (!(its.capabilities & admin) && (geteuid() || own.capabilities & admin))
        return false;
    return poll(&gone, 1, 0) == 0;
}
