/* files.c - pid files: written whole or not at all (a new file takes the old one's name), so
 * that a reader never sees half a number. */
#include "daemon/process/files.h"

#include <fcntl.h>
#include <stdio.h>

#include "daemon/process/log.h"

void file_write_pid(const char *path, pid_t pid)
{
    _cleanup_(freep) char *temporary = NULL;
    _cleanup_(close_fdp) int fd = -1;
    char text[32];
    int len = snprintf(text, sizeof(text), "%d\n", (int)pid);

    if (!path[0] || asprintf(&temporary, "%s.new", path) < 0)
        return;
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 || write(fd, text, (size_t)len) != len || rename(temporary, path)) {
        log_warn("%s: %m -> going on without this pid file", path);
        if (fd >= 0)
            unlink(temporary);
    }
}

void file_remove_pid(const char *path)
{
    if (path[0] && unlink(path) && errno != ENOENT)
        log_warn("%s: cannot be removed: %m", path);
}
