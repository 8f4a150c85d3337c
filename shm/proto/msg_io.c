/* msg_io.c - one message at a time over a blocking UNIX stream socket, with descriptors and a
 * deadline. For clients, commctl and the engine; commd itself reads through libevent.
 *
 * Descriptors leave with the frame's first byte, so the kernel hands them over with the read
 * that returns it: a frame and its descriptors cannot come apart. After any failure the stream
 * may stand within a frame; the caller has to close it.
 *
 * The socket may be blocking or not: every call here is MSG_DONTWAIT, and poll() does the
 * waiting, because a deadline cannot be given to sendmsg() itself. */
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "shm/proto/codec.h"

enum { IO_MAX_FDS = 8 };

union fd_space {
    struct cmsghdr align;
    char buf[CMSG_SPACE(IO_MAX_FDS * sizeof(int))];
};

/* Received descriptors on their way to the caller. */
struct fd_list {
    int fds[IO_MAX_FDS];
    unsigned n;
};

static void fd_list_fini(struct fd_list *list)
{
    for (unsigned i = 0; i < list->n; i++)
        close_fdp(&list->fds[i]);
    list->n = 0;
}

static int64_t msg_now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int wait_for(int sock, short events, int64_t deadline_ms)
{
    struct pollfd p = {.fd = sock, .events = events};

    for (;;) {
        int timeout = -1, n;

        if (deadline_ms >= 0)
            timeout = (int)MIN(MAX(deadline_ms - msg_now_ms(), (int64_t)0), (int64_t)60000);
        n = poll(&p, 1, timeout);
        if (n > 0)
            return 0; /* also for errors and hang-up: the next read or write tells which */
        if (n < 0 && errno != EINTR)
            return -errno;
        if (deadline_ms >= 0 && msg_now_ms() >= deadline_ms)
            return -ETIMEDOUT;
    }
}

/* An EINTR ends up here as well: poll() returns at once if the socket is still ready. */
static bool try_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static int send_all(int sock, const char *buf, size_t len, const int *fds, unsigned nfds,
                    int64_t deadline_ms)
{
    union fd_space space = {.buf = {0}};
    size_t done = 0;
    int r;

    while (done < len) {
        struct iovec iov = {.iov_base = (char *)buf + done, .iov_len = len - done};
        struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (done == 0 && nfds > 0) {
            mh.msg_control = space.buf;
            mh.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
            CMSG_FIRSTHDR(&mh)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&mh)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&mh)->cmsg_len = CMSG_LEN(nfds * sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), fds, nfds * sizeof(int));
        }
        n = sendmsg(sock, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (!try_later(errno))
            return errno == EPIPE ? -ECONNRESET : -errno;
        r = wait_for(sock, POLLOUT, deadline_ms);
        if (r)
            return r;
    }
    return 0;
}

int msg_send_fd(int sock, const struct msg *msg, const int *fds, unsigned nfds, int64_t deadline_ms)
{
    assert(!nfds || fds);
    _cleanup_(freep) void *frame = NULL;
    size_t len;
    int r;

    if (nfds > IO_MAX_FDS)
        return -EINVAL;
    r = codec_encode(msg, &frame, &len);
    if (r)
        return r;
    return send_all(sock, frame, len, fds, nfds, deadline_ms);
}

static void msg_keep_fds(struct msghdr *mh, struct fd_list *list)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
        size_t n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (list->n < IO_MAX_FDS)
                list->fds[list->n++] = fd;
            else
                close(fd);
        }
    }
}

/* One read: up to @len bytes, at least one. Descriptors may come with any read (a peer may send
 * them where it likes); none is leaked. More than fit are dropped by the kernel (MSG_CTRUNC);
 * the caller misses what it needs. Returns the count or negative errno. */
static ssize_t recv_some(int sock, char *buf, size_t len, struct fd_list *list, int64_t deadline_ms)
{
    for (;;) {
        union fd_space space;
        struct iovec iov = {.iov_base = buf, .iov_len = len};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = space.buf,
                            .msg_controllen = sizeof(space.buf)};
        ssize_t n = recvmsg(sock, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        int r;

        if (n > 0) {
            msg_keep_fds(&mh, list);
            return n;
        }
        if (n == 0)
            return -ECONNRESET;
        if (!try_later(errno))
            return -errno;
        r = wait_for(sock, POLLIN, deadline_ms);
        if (r)
            return r;
    }
}

static int codec_failed(int r, const char **ret_why)
{
    *ret_why = codec_strerror(r);
    return r == CODEC_E_NOMEM ? -ENOMEM : r == CODEC_E_VERSION ? -EPROTONOSUPPORT : -EPROTO;
}

/* Judged as it comes: a stranger's first wrong byte ends it, even if it never sends a whole
 * header. */
static int recv_header(int sock, char header[CODEC_HEADER], struct fd_list *list, size_t *ret_need,
                       int64_t deadline_ms, const char **ret_why)
{
    size_t have = 0;
    int r;

    while (have < CODEC_HEADER) {
        ssize_t n = recv_some(sock, header + have, CODEC_HEADER - have, list, deadline_ms);

        if (n < 0)
            return (int)n;
        have += (size_t)n;
        r = codec_frame_check(header, have, CODEC_MAX_FRAME, ret_need);
        if (r != CODEC_OK && r != CODEC_E_MORE)
            return codec_failed(r, ret_why);
    }
    return 0;
}

int msg_recv_fd(int sock, struct msg *ret_msg, int *fds, unsigned max_fds, unsigned *ret_nfds,
                int64_t deadline_ms, const char **ret_why)
{
    _cleanup_(freep) char *frame = NULL;
    _cleanup_(fd_list_fini) struct fd_list list = {.n = 0};
    char header[CODEC_HEADER];
    unsigned nfds;
    size_t need = 0, have;
    int r;

    r = recv_header(sock, header, &list, &need, deadline_ms, ret_why);
    if (r)
        return r;
    frame = malloc(need);
    if (!frame)
        return -ENOMEM;
    memcpy(frame, header, CODEC_HEADER);
    for (have = CODEC_HEADER; have < need;) {
        ssize_t n = recv_some(sock, frame + have, need - have, &list, deadline_ms);

        if (n < 0)
            return (int)n;
        have += (size_t)n;
    }
    r = codec_decode(frame, need, ret_msg);
    if (r)
        return codec_failed(r, ret_why);
    nfds = MIN(list.n, max_fds);
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = steal_fd(&list.fds[i]);
    *ret_nfds = nfds;
    return 0;
}
