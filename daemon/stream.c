/* stream.c - framing over a UNIX stream socket that never blocks.
 *
 * In: one buffer that begins small and grows to the frame that is announced, which
 * codec_frame_check() has bounded before we allocate: at most max + CODEC_HEADER bytes belong
 * to one peer. It is given back when it is empty.
 *
 * Out: a list of encoded frames. Descriptors ride with the first byte of their frame and are
 * ours until then. How much may pile up is the caller's decision (out_bytes). */
#include "daemon/stream.h"

#include <fcntl.h>
#include <sys/socket.h>

enum { STREAM_READ = 4096 };

struct stream_frame {
    struct stream_frame *next;
    void *data; /* owned */
    size_t len, off;
    int fds[STREAM_MAX_FDS]; /* owned */
    unsigned nfds;
};

static struct stream_frame *frame_free(struct stream_frame *frame)
{
    if (!frame)
        return NULL;
    for (unsigned i = 0; i < frame->nfds; i++)
        close_fdp(&frame->fds[i]);
    free(frame->data);
    free(frame);
    return NULL;
}

static void frame_freep(struct stream_frame **frame)
{
    *frame = frame_free(*frame);
}

void stream_init(struct stream *s, int fd, size_t max)
{
    *s = (struct stream){.fd = fd, .max = max};
    s->out_tail = &s->out;
}

void stream_fini(struct stream *s)
{
    while (s->out) {
        struct stream_frame *frame = s->out;

        s->out = frame->next;
        frame_free(frame);
    }
    s->out_tail = &s->out;
    s->out_bytes = 0;
    while (s->nin_fds)
        close_fdp(&s->in_fds[--s->nin_fds]);
    free(steal_ptr(s->in));
    s->in_off = s->in_len = s->in_size = 0;
    close_fdp(&s->fd);
}

/* Room for at least the frame that has begun, or for one read. */
static int stream_room(struct stream *s)
{
    size_t pending = s->in_len - s->in_off, want = STREAM_READ, need;
    uint8_t *grown;

    if (s->in_off) {
        memmove(s->in, s->in + s->in_off, pending);
        s->in_len = pending;
        s->in_off = 0;
    }
    if (codec_frame_check(s->in, pending, s->max, &need) == CODEC_E_MORE)
        want = MAX(want, need);
    if (s->in_size >= want)
        return 0;
    grown = realloc(s->in, want);
    if (!grown)
        return -ENOMEM;
    s->in = grown;
    s->in_size = want;
    return 0;
}

/* Descriptors belong to messages in the order in which both came. More than may wait are closed:
 * whoever sends them without the messages that take them. */
static void keep_fds(struct stream *s, struct msghdr *mh)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
            if (s->nin_fds < STREAM_MAX_FDS)
                s->in_fds[s->nin_fds++] = fd;
            else
                close(fd);
        }
    }
}

static ssize_t stream_recv(struct stream *s)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * STREAM_MAX_FDS)];
    } control;
    struct iovec iov = {s->in + s->in_len, s->in_size - s->in_len};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = s->keeps_fds ? control.buf : NULL,
                        .msg_controllen = s->keeps_fds ? sizeof(control.buf) : 0};
    ssize_t n = recvmsg(s->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n > 0)
        keep_fds(s, &mh);
    return n;
}

int stream_take_fd(struct stream *s)
{
    int fd;

    if (!s->nin_fds)
        return -1;
    fd = s->in_fds[0];
    memmove(s->in_fds, s->in_fds + 1, --s->nin_fds * sizeof(fd));
    return fd;
}

int stream_fill(struct stream *s)
{
    ssize_t n;
    int r;

    r = stream_room(s);
    if (r)
        return r;
    if (s->in_len == s->in_size)
        return 0; /* full of frames that wait to be decoded */
    n = stream_recv(s);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return STREAM_E_AGAIN;
    /* ECONNRESET: it went with messages of ours unread */
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return STREAM_E_EOF;
    if (n < 0)
        return -errno;
    s->in_len += (size_t)n;
    return 0;
}

int stream_next(struct stream *s, struct msg *ret_msg)
{
    size_t need;
    int r;

    r = codec_frame_check(s->in + s->in_off, s->in_len - s->in_off, s->max, &need);
    if (r == CODEC_E_MORE && s->in_off == s->in_len) {
        free(steal_ptr(s->in)); /* idle peers cost no buffer */
        s->in_off = s->in_len = s->in_size = 0;
    }
    if (r)
        return r;
    r = codec_decode(s->in + s->in_off, need, ret_msg);
    s->in_off += need;
    return r;
}

int stream_send(struct stream *s, const struct msg *msg, const int *fds, unsigned nfds)
{
    _cleanup_(frame_freep) struct stream_frame *frame = calloc(1, sizeof(*frame));
    int r;

    if (!frame)
        return -ENOMEM;
    for (; frame->nfds < nfds; frame->nfds++) {
        frame->fds[frame->nfds] = fcntl(fds[frame->nfds], F_DUPFD_CLOEXEC, 3);
        if (frame->fds[frame->nfds] < 0)
            return -errno;
    }
    r = codec_encode(msg, &frame->data, &frame->len);
    if (r)
        return r;
    s->out_bytes += frame->len;
    *s->out_tail = frame;
    s->out_tail = &frame->next;
    steal_ptr(frame);
    return 0;
}

static ssize_t frame_write(int fd, struct stream_frame *frame)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * STREAM_MAX_FDS)];
    } control;
    struct iovec iov = {(char *)frame->data + frame->off, frame->len - frame->off};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    if (frame->nfds) {
        struct cmsghdr *cmsg;

        memset(&control, 0, sizeof(control));
        mh.msg_control = &control;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * frame->nfds);
        cmsg = CMSG_FIRSTHDR(&mh);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * frame->nfds);
        memcpy(CMSG_DATA(cmsg), frame->fds, sizeof(int) * frame->nfds);
    }
    return sendmsg(fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int stream_flush(struct stream *s)
{
    while (s->out) {
        struct stream_frame *frame = s->out;
        ssize_t n = frame_write(s->fd, frame);

        if (n < 0 && errno == EINTR)
            continue;
        /* ETOOMANYREFS: too many descriptors in flight; they drain as the others read. */
        if (n < 0)
            return errno == EAGAIN || errno == ETOOMANYREFS ? STREAM_E_AGAIN : -errno;
        for (; frame->nfds; frame->nfds--) /* sent with the first byte */
            close_fdp(&frame->fds[frame->nfds - 1]);
        frame->off += (size_t)n;
        s->out_bytes -= (size_t)n;
        if (frame->off < frame->len)
            continue;
        s->out = frame->next;
        if (!s->out)
            s->out_tail = &s->out;
        frame_free(frame);
    }
    return 0;
}
