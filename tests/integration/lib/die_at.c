/* die_at.c - loaded into commd by LD_PRELOAD: ends it, as by kill -9, at a system call that a test
 * has chosen.
 *
 * DIE_AT names a file with a number. Each sendmsg(), recvmsg() and accept4() counts it down twice,
 * before the call and after it; at 0 the file is removed, and the process is killed. DIE_LISTEN
 * names a file with a number of commds that are still to die in the listen() of HTTP, while they
 * take over. The keeper is left alone, and so is what commd starts. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "shm/util/base.h"

static bool is_commd; /* and not its keeper */

static void __attribute__((constructor)) begin(void)
{
    char line[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof(line) - 1);

    is_commd = !strcmp(program_invocation_short_name, "commd");
    for (ssize_t i = 0; i + 6 < n; i++)
        is_commd &= !!memcmp(line + i, "--keep", 7);
    close(fd);
}

/* Counts down the number in the file that @variable names. True: it was the last one. */
static bool count_down(const char *variable)
{
    const char *path = getenv(variable);
    int saved = errno, fd = !is_commd || !path ? -1 : open(path, O_RDWR | O_CLOEXEC), n = 0;
    char text[32] = "";

    if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0) {
        n = atoi(text) - 1;
        snprintf(text, sizeof(text), "%-12d", n);
        (void)!pwrite(fd, text, strlen(text), 0);
        if (n <= 0)
            unlink(path);
    }
    if (fd >= 0)
        close(fd);
    errno = saved;
    return fd >= 0 && n <= 0;
}

static void step(void)
{
    if (count_down("DIE_AT"))
        kill(getpid(), SIGKILL);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    ssize_t (*real)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    ssize_t n;

    step();
    n = real(fd, msg, flags);
    step();
    return n;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int) = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t n;

    step();
    n = real(fd, msg, flags);
    step();
    return n;
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    int r;

    step();
    r = real(fd, addr, len, flags);
    step();
    return r;
}

/* The state is looked at before a commd takes over, and a board while it does. */
int fcntl(int fd, int cmd, ...)
{
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, "fcntl");
    const char *path = getenv("DIE_TAKING");
    static unsigned seals;
    va_list args;
    void *arg;

    va_start(args, cmd);
    arg = va_arg(args, void *);
    va_end(args);
    if (cmd == F_GET_SEALS && ++seals == 2 && path && is_commd && access(path, F_OK) == 0) {
        count_down("DIE_TAKING");
        kill(getpid(), SIGKILL);
    }
    return real(fd, cmd, arg);
}
