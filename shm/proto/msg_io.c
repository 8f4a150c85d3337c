/* msg_io.c - one message at a time over a UNIX stream socket, with descriptors: with a deadline, or
 * in parts as they come. For clients, commctl and the engine; commd itself reads through libevent.
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
#include "shm/util/fds.h"

enum { IO_MAX_FDS = MSG_READER_FDS };

void msg_reader_fini(struct msg_reader *reader)
{
    for (unsigned i = 0; i < reader->nfds; i++)
        close_fdp(&reader->fds[i]);
    free_wiped(reader->frame, reader->need);
    *reader = (struct msg_reader){0};
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
    size_t done = 0;
    int r;

    while (done < len) {
        ssize_t n = fds_send(sock, buf + done, len - done, fds, done ? 0 : nfds, MSG_DONTWAIT);

        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (!try_later((int)-n))
            return n == -EPIPE ? -ECONNRESET : (int)n;
        r = wait_for(sock, POLLOUT, deadline_ms);
        if (r)
            return r;
    }
    return 0;
}

int msg_send_fd(int sock, const struct msg *msg, const int *fds, unsigned nfds, int64_t deadline_ms)
{
    assert(!nfds || fds);
    void *frame;
    size_t len;
    int r;

    if (nfds > IO_MAX_FDS)
        return -EINVAL;
    r = codec_encode(msg, &frame, &len);
    if (r)
        return r;
    r = send_all(sock, frame, len, fds, nfds, deadline_ms);
    free_wiped(frame, len);
    return r;
}

/* One read: up to @len bytes, at least one. Descriptors may come with any read (a peer may send
 * them where it likes); none is leaked. More than fit are dropped by the kernel (MSG_CTRUNC);
 * the caller misses what it needs. Returns the count or negative errno, -EAGAIN: not now. */
static ssize_t recv_some(int sock, char *buf, size_t len, struct msg_reader *reader)
{
    int fds[MSG_READER_FDS];
    unsigned nfds;
    bool cut;
    ssize_t n = fds_recv(sock, buf, len, fds, MSG_READER_FDS, &nfds, MSG_DONTWAIT, &cut);

    for (unsigned i = 0; i < nfds; i++) {
        if (reader->nfds < MSG_READER_FDS)
            reader->fds[reader->nfds++] = fds[i];
        else
            close(fds[i]);
    }
    if (n < 0)
        return try_later((int)-n) ? -EAGAIN : n;
    return n ? n : -ECONNRESET;
}

static int codec_failed(int r, const char **ret_why)
{
    *ret_why = codec_strerror(r);
    return r == CODEC_E_NOMEM ? -ENOMEM : r == CODEC_E_VERSION ? -EPROTONOSUPPORT : -EPROTO;
}

/* Judged as it comes: a stranger's first wrong byte ends it, even if it never sends a whole
 * header. */
static int recv_header(int sock, struct msg_reader *reader, const char **ret_why)
{
    while (reader->have < CODEC_HEADER) {
        ssize_t n =
            recv_some(sock, reader->header + reader->have, CODEC_HEADER - reader->have, reader);
        int r;

        if (n < 0)
            return (int)n;
        reader->have += (size_t)n;
        r = codec_frame_check(reader->header, reader->have, CODEC_MAX_FRAME, &reader->need);
        if (r != CODEC_OK && r != CODEC_E_MORE)
            return codec_failed(r, ret_why);
    }
    return 0;
}

int msg_read_fd(int sock, struct msg_reader *reader, struct msg *ret_msg, int *fds,
                unsigned max_fds, unsigned *ret_nfds, const char **ret_why)
{
    unsigned nfds;
    int r = recv_header(sock, reader, ret_why);

    if (r)
        return r;
    if (!reader->frame) {
        reader->frame = malloc(reader->need);
        if (!reader->frame)
            return -ENOMEM;
        memcpy(reader->frame, reader->header, CODEC_HEADER);
    }
    while (reader->have < reader->need) {
        ssize_t n =
            recv_some(sock, reader->frame + reader->have, reader->need - reader->have, reader);

        if (n < 0)
            return (int)n;
        reader->have += (size_t)n;
    }
    r = codec_decode(reader->frame, reader->need, ret_msg);
    if (r)
        return codec_failed(r, ret_why);
    nfds = MIN(reader->nfds, max_fds);
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = steal_fd(&reader->fds[i]);
    *ret_nfds = nfds;
    msg_reader_fini(reader);
    return 0;
}

int msg_recv_fd(int sock, struct msg *ret_msg, int *fds, unsigned max_fds, unsigned *ret_nfds,
                int64_t deadline_ms, const char **ret_why)
{
    _cleanup_(msg_reader_fini) struct msg_reader reader = {0};
    int r;

    do {
        r = msg_read_fd(sock, &reader, ret_msg, fds, max_fds, ret_nfds, ret_why);
        if (r != -EAGAIN)
            return r;
        r = wait_for(sock, POLLIN, deadline_ms);
    } while (r == 0);
    return r;
}
