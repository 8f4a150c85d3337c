/* notify.c - sd_notify(3) without libsystemd: one datagram per message to the socket in
 * NOTIFY_SOCKET, a path or, behind '@', an abstract name. From a keeper (keeper.h) it is "fd:" and
 * the number of a connected socket. The environment is read at each call. The socket belongs to the
 * service manager, which answers nothing, so a message is either queued or not. A full queue may
 * hold the loop up for SEND_LIMIT_S. After that nothing waits for this manager until it has taken a
 * message again: a manager that is stopped does not stop commd. */
#include "daemon/process/notify.h"
#include "shm/util/fds.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

enum { SEND_LIMIT_S = 1 };

static bool manager_stands; /* it has not taken the last message within the limit */

static int manager_address(const char *name, struct sockaddr_un *ret_addr, socklen_t *ret_len)
{
    size_t len = strlen(name);
    bool abstract = name[0] == '@';

    if (name[0] != '/' && !abstract)
        return -EAFNOSUPPORT; /* "vsock:...", for virtual machines */
    if (len < 2)
        return -EINVAL;
    /* a path keeps room for its NUL, an abstract name has none */
    if (len > sizeof(ret_addr->sun_path) - !abstract)
        return -ENAMETOOLONG;
    *ret_addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_addr->sun_path, name, len);
    if (abstract)
        ret_addr->sun_path[0] = '\0';
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + !abstract);
    return 0;
}

/* A socket for one message, or the one that a keeper has given, which stays open. */
static int manager_socket(const char *name, struct msghdr *mh, struct sockaddr_un *addr,
                          int *ret_fd)
{
    static const struct timeval limit = {.tv_sec = SEND_LIMIT_S};
    unsigned given;
    int r;

    if (sscanf(name, NOTIFY_FD_PREFIX "%u", &given) == 1) {
        *ret_fd = (int)given;
    } else {
        r = manager_address(name, addr, &mh->msg_namelen);
        if (r < 0)
            return r;
        mh->msg_name = addr;
        *ret_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (*ret_fd < 0)
            return -errno;
    }
    return setsockopt(*ret_fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ? -errno : 0;
}

/* @store goes along if it is not -1. */
static int send_text(const char *name, const char *text, size_t len, int store)
{
    union fds_space space;
    struct iovec iov = {.iov_base = (void *)text, .iov_len = len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    struct sockaddr_un addr;
    int fd = -1, r;
    ssize_t n;

    r = manager_socket(name, &mh, &addr, &fd);
    if (!r && store >= 0)
        fds_put(&mh, &space, &store, 1);
    while (!r) {
        n = sendmsg(fd, &mh, MSG_NOSIGNAL | (manager_stands ? MSG_DONTWAIT : 0));
        if (n >= 0)
            break;
        if (errno != EINTR)
            r = -errno;
    }
    manager_stands = r == -EAGAIN;
    if (mh.msg_name)
        close_fdp(&fd);
    return r;
}

int notify_send(const char *fmt, ...)
{
    const char *name = getenv("NOTIFY_SOCKET");
    _cleanup_(freep) char *text = NULL;
    va_list args;
    int len;

    if (!name || !name[0])
        return 0;
    va_start(args, fmt);
    len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0) {
        text = NULL; /* undefined after a failure */
        return -ENOMEM;
    }
    return send_text(name, text, (size_t)len, -1);
}

int notify_send_fd(const char *text, int fd)
{
    const char *name = getenv("NOTIFY_SOCKET");

    return name && name[0] ? send_text(name, text, strlen(text), fd) : 0;
}

bool notify_variable(const char *name, uint64_t *ret_value)
{
    const char *text = getenv(name);
    char *end;
    uintmax_t v;

    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    v = strtoumax(text, &end, 10);
    if (errno || *end)
        return false;
    *ret_value = v;
    return true;
}

uint64_t notify_watchdog_ms(void)
{
    uint64_t usec, pid;

    /* the variables are inherited: they count for the process that systemd started */
    if (getenv("WATCHDOG_PID") &&
        (!notify_variable("WATCHDOG_PID", &pid) || pid != (uint64_t)getpid()))
        return 0;
    return notify_variable("WATCHDOG_USEC", &usec) ? usec / 1000 : 0;
}
