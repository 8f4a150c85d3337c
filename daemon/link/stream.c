/* stream.c - framing over a UNIX stream socket that never blocks.
 *
 * A descriptor that comes in can be of any file, and to close it may take as long as its sender
 * likes. So the closer's threads close these descriptors, and the socket, too, because more may be
 * in it. The kernel itself closes those that find no room in recvmsg(), and we would wait for that;
 * so there is always room for as many as one message can carry. Descriptors that go out are closed
 * by the closer, too: ours may be the last copy.
 *
 * In: one buffer begins small and grows to the frame that is announced. codec_frame_check() bounds
 * the frame before we allocate, so one peer has at most max + CODEC_HEADER bytes. An empty buffer
 * is freed, and wiped before: tokens and keys come and go here, as they do in the frames below.
 *
 * Out: a list of encoded frames. Descriptors ride with the first byte of their frame and are
 * ours until then. How much may pile up is the caller's decision (out_bytes, out_fds, held).
 *
 * The kernel counts descriptors that were sent and not taken out, for the user that commd runs as.
 * At RLIMIT_NOFILE of them it refuses to send more, to any receiver (ETOOMANYREFS). The socket
 * stays writable, so to wait for that would be a busy loop: the answer is STREAM_LATER. The owner
 * of the stream may have the same answer given (may_send). */
#include "daemon/link/stream.h"
#include "shm/util/fds.h"

#include <fcntl.h>
#include <sys/socket.h>

enum { STREAM_READ = 4096, STREAM_SCM_MAX = 253 /* SCM_MAX_FD of the kernel */ };

struct stream_frame {
    struct stream_frame *next;
    void *data; /* owned */
    size_t len, off;
    struct stream_fd *fds[STREAM_MAX_FDS]; /* a reference each */
    unsigned nfds;
};

struct stream_fd {
    int fd; /* owned */
    unsigned refs;
    struct stream_count *count; /* borrowed: held of the stream that first queued it, or NULL */
    struct closer *closer;      /* borrowed; NULL: closing it is quick */
    uint32_t uid;
};

struct stream_fd *stream_fd_new(int *fd)
{
    struct stream_fd *shared = calloc(1, sizeof(*shared));

    if (!shared)
        return NULL;
    shared->fd = steal_fd(fd);
    shared->refs = 1;
    return shared;
}

struct stream_fd *stream_fd_unref(struct stream_fd *shared)
{
    if (!shared || --shared->refs)
        return NULL;
    for (struct stream_count *count = shared->count; count; count = count->up) {
        assert(count->n);
        count->n--;
    }
    closer_fd(shared->closer, shared->uid, shared->fd);
    free(shared);
    return NULL;
}

static struct stream_frame *frame_free(struct stream_frame *frame)
{
    if (!frame)
        return NULL;
    for (unsigned i = 0; i < frame->nfds; i++)
        stream_fd_unref(frame->fds[i]);
    free_wiped(frame->data, frame->len);
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

void stream_drop(struct stream *s)
{
    while (s->out) {
        struct stream_frame *frame = s->out;

        s->out = frame->next;
        frame_free(frame);
    }
    s->out_tail = &s->out;
    s->out_bytes = s->out_fds = 0;
}

void stream_fini(struct stream *s)
{
    stream_drop(s);
    while (s->nin_fds)
        closer_fd(s->closer, s->uid, s->in_fds[--s->nin_fds]);
    s->in = free_wiped(s->in, s->in_size);
    s->in_off = s->in_len = s->in_size = 0;
    closer_sock(s->closer, s->uid, steal_fd(&s->fd));
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
    grown = malloc(want);
    if (!grown)
        return -ENOMEM;
    if (pending)
        memcpy(grown, s->in, pending);
    free_wiped(s->in, s->in_size);
    s->in = grown;
    s->in_size = want;
    return 0;
}

/* Descriptors belong to messages in the order in which both came. False: more than may wait, which
 * are being closed. */
static bool stream_keep_fds(struct stream *s, struct msghdr *mh)
{
    unsigned max = s->keeps_fds ? STREAM_MAX_FDS : 0;
    int reserve = CMSG_FIRSTHDR(mh) ? closer_reserve() : 0;
    bool fit = !(mh->msg_flags & MSG_CTRUNC);

    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
            if (s->nin_fds < max && fd < reserve) {
                s->in_fds[s->nin_fds++] = fd;
            } else {
                closer_fd(s->closer, s->uid, fd);
                fit = false;
            }
        }
    }
    return fit;
}

/* Does what comes next have descriptors? (To look costs a system call, and nothing is received.) */
static bool fds_next(const struct stream *s)
{
    char byte;
    struct iovec iov = {&byte, 1};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    return recvmsg(s->fd, &mh, MSG_DONTWAIT | MSG_PEEK) > 0 && mh.msg_flags & MSG_CTRUNC;
}

static ssize_t stream_recv(struct stream *s, bool *ret_fit)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * STREAM_SCM_MAX)];
    } control;
    struct iovec iov = {s->in + s->in_len, s->in_size - s->in_len};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.buf,
                        .msg_controllen = sizeof(control.buf)};
    ssize_t n = recvmsg(s->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *ret_fit = n <= 0 || stream_keep_fds(s, &mh);
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

/* Reads once. STREAM_GARBAGE: more descriptors came than a message can have, or any at all where
 * none may come. */
static enum stream_result stream_fill(struct stream *s)
{
    ssize_t n;
    bool fit;

    if (stream_room(s))
        return STREAM_FAILED;
    assert(s->in_len < s->in_size); /* else in[] would have a whole frame */
    if (!closer_room(s->closer, s->uid) && fds_next(s))
        return STREAM_LATER;
    n = stream_recv(s, &fit);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return STREAM_AGAIN;
    /* ECONNRESET: the other side has closed with unread messages of ours */
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return STREAM_EOF;
    if (n < 0)
        return STREAM_FAILED;
    s->in_len += (size_t)n;
    return fit ? STREAM_OK : STREAM_GARBAGE;
}

static enum codec_result stream_decode(struct stream *s, struct msg *ret_msg)
{
    size_t need;
    int r;

    r = codec_frame_check(s->in + s->in_off, s->in_len - s->in_off, s->max, &need);
    if (r == CODEC_E_MORE && s->in_off == s->in_len) {
        s->in = free_wiped(s->in, s->in_size); /* idle peers cost no buffer */
        s->in_off = s->in_len = s->in_size = 0;
    }
    if (r)
        return r;
    r = codec_decode(s->in + s->in_off, need, ret_msg);
    s->in_off += need;
    return r;
}

enum stream_result stream_next(struct stream *s, struct msg *ret_msg, const char **ret_why)
{
    for (;;) {
        enum codec_result decoded = stream_decode(s, ret_msg);
        enum stream_result r;

        if (decoded == CODEC_OK)
            return STREAM_OK;
        *ret_why = decoded == CODEC_E_MORE ? "a descriptor came that nobody asked for"
                                           : codec_strerror(decoded);
        if (decoded != CODEC_E_MORE || (s->nin_fds && s->in_off == s->in_len))
            return STREAM_GARBAGE;
        r = stream_fill(s);
        if (r != STREAM_OK)
            return r;
    }
}

int stream_send_shared(struct stream *s, const struct msg *msg, struct stream_fd *const *fds,
                       unsigned nfds)
{
    _cleanup_(frame_freep) struct stream_frame *frame = calloc(1, sizeof(*frame));
    int r;

    assert(nfds <= STREAM_MAX_FDS);
    if (!frame)
        return -ENOMEM;
    r = codec_encode(msg, &frame->data, &frame->len);
    if (r)
        return r;
    for (; frame->nfds < nfds; frame->nfds++) {
        struct stream_fd *shared = frame->fds[frame->nfds] = fds[frame->nfds];

        shared->refs++;
        if (shared->count)
            continue; /* whoever was the first to wait for it */
        shared->count = s->held;
        for (struct stream_count *count = shared->count; count; count = count->up)
            count->n++;
    }
    s->out_bytes += frame->len;
    s->out_fds += nfds;
    *s->out_tail = frame;
    s->out_tail = &frame->next;
    steal_ptr(frame);
    return 0;
}

int stream_send(struct stream *s, const struct msg *msg, const int *fds, unsigned nfds)
{
    struct stream_fd *shared[STREAM_MAX_FDS] = {NULL};
    int r = 0;

    for (unsigned i = 0; i < nfds && !r; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

        if (fd < 0)
            r = -errno;
        else if (s->uid && fd >= closer_reserve())
            r = -EMFILE; /* the last free descriptors are for those that come in */
        else if (!(shared[i] = stream_fd_new(&fd)))
            r = -ENOMEM;
        close_fdp(&fd);
        if (shared[i] && s->keeps_fds) { /* a client: it may be the last copy of another's memory */
            shared[i]->closer = s->closer;
            shared[i]->uid = s->uid;
        }
    }
    if (!r)
        r = stream_send_shared(s, msg, shared, nfds);
    for (unsigned i = 0; i < nfds; i++)
        stream_fd_unref(shared[i]);
    return r;
}

static ssize_t frame_write(int fd, struct stream_frame *frame)
{
    int fds[STREAM_MAX_FDS];

    assert(frame->nfds <= STREAM_MAX_FDS);
    for (unsigned i = 0; i < frame->nfds; i++)
        fds[i] = frame->fds[i]->fd;
    return fds_send(fd, frame->data + frame->off, frame->len - frame->off, fds, frame->nfds,
                    MSG_DONTWAIT);
}

enum stream_result stream_flush(struct stream *s)
{
    while (s->out) {
        struct stream_frame *frame = s->out;
        ssize_t n;

        if (frame->nfds && s->may_send && !s->may_send(s->arg, frame->nfds))
            return STREAM_LATER;
        n = frame_write(s->fd, frame);
        if (n < 0)
            return n == -EAGAIN ? STREAM_AGAIN : n == -ETOOMANYREFS ? STREAM_LATER : STREAM_FAILED;
        s->sent_fds += frame->nfds;
        assert(s->out_fds >= frame->nfds && s->out_bytes >= (size_t)n);
        s->out_fds -= frame->nfds;
        while (frame->nfds) /* sent with the first byte */
            stream_fd_unref(frame->fds[--frame->nfds]);
        frame->off += (size_t)n;
        s->out_bytes -= (size_t)n;
        if (frame->off < frame->len)
            continue;
        s->out = frame->next;
        if (!s->out)
            s->out_tail = &s->out;
        frame_free(frame);
    }
    return STREAM_OK;
}
