/* notify.c - sd_notify(3) without libsystemd: one datagram per message to the socket in
 * NOTIFY_SOCKET, a path or, behind '@', an abstract name. The environment is read at each call;
 * nothing is kept. The socket belongs to the service manager, which answers nothing, so a message
 * is either queued or not; a full queue may hold the loop up for SEND_LIMIT_S and no longer. */
#include "daemon/process/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

enum { SEND_LIMIT_S = 1 };

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

/* @store goes along if it is not -1. */
static int send_text(const char *name, const char *text, size_t len, int store)
{
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = (void *)text, .iov_len = len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    static const struct timeval limit = {.tv_sec = SEND_LIMIT_S};
    _cleanup_(close_fdp) int fd = -1;
    struct sockaddr_un addr;
    socklen_t addr_len;
    ssize_t n;
    int r;

    r = manager_address(name, &addr, &addr_len);
    if (r < 0)
        return r;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
        return -errno;
    mh.msg_name = &addr;
    mh.msg_namelen = addr_len;
    if (store >= 0) {
        struct cmsghdr *cmsg = (struct cmsghdr *)control;

        *cmsg = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(cmsg), &store, sizeof(int));
        mh.msg_control = control;
        mh.msg_controllen = sizeof(control);
    }
    do {
        n = sendmsg(fd, &mh, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
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

int notify_store(const char *name, int fd)
{
    const char *manager = getenv("NOTIFY_SOCKET");
    char text[64];

    if (!manager || !manager[0])
        return 0;
    notify_send("FDSTOREREMOVE=1\nFDNAME=%s", name);
    snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
    return send_text(manager, text, strlen(text), fd);
}

static bool parse_u64(const char *text, uint64_t *ret_value)
{
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

unsigned notify_inherited(void)
{
    uint64_t n, pid;

    if (!parse_u64(getenv("LISTEN_PID"), &pid) || pid != (uint64_t)getpid() ||
        !parse_u64(getenv("LISTEN_FDS"), &n))
        return 0;
    return (unsigned)MIN(n, (uint64_t)64);
}

uint64_t notify_watchdog_ms(void)
{
    const char *pid_text = getenv("WATCHDOG_PID");
    uint64_t usec, pid;

    /* the variables are inherited: they count for the process that systemd started */
    if (pid_text && (!parse_u64(pid_text, &pid) || pid != (uint64_t)getpid()))
        return 0;
    return parse_u64(getenv("WATCHDOG_USEC"), &usec) ? usec / 1000 : 0;
}
