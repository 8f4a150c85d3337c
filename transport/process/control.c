/* control.c - the socket on which commd gives orders and is told what happens, for commd-engine and
 * commd-gpu. What commd says is believed.
 *
 *   ATTACHED   a commd is there                     wakes: the socket, the line
 *   DETACHED   it is gone; the data go on           wakes: the line
 *   ENDED      there will be none any more: the caller ends
 *
 * The line is a pair of sockets of which the other end is kept by whoever starts commd again
 * (daemon/process/store.h). The next commd sends one end of a new control socket over it; of
 * several that wait the last one counts, because those before it are of commds that have died. What
 * the old socket had in part, in and out, is forgotten then. The end of the line says that nobody
 * keeps it: commd has ended for good. Without a line that is said by the end of the socket. A
 * process that has no descriptor left has one in reserve for that, since it must not end at a
 * take-over.
 *
 * commd may be there and not read: it hangs, or is stopped. Reports wait in memory then and the
 * data go on, up to OUT_MAX; after that we are detached, and this commd finds the end of its
 * socket. So nothing here waits for commd, and no report is lost in the middle of what a commd is
 * told. */
#include "transport/process/control.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "shm/launch/engine_exec.h"
#include "shm/util/fds.h"

enum { OUT_MAX = 4 << 20 }; /* several errors for each board that there can be */

static int control_watch(struct control *c, int fd, int op, uint32_t events)
{
    struct epoll_event ev = {.events = events};

    return epoll_ctl(c->epoll, op, fd, &ev) ? -errno : 0;
}

/* The file at that number may be something else, if we were started by hand. */
static int line_given(void)
{
    int type = 0;
    socklen_t len = sizeof type;

    return !getsockopt(ENGINE_LINE_FD, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_SEQPACKET
               ? ENGINE_LINE_FD
               : -1;
}

static void keep_spare(struct control *c)
{
    if (c->spare < 0)
        c->spare = fcntl(c->epoll, F_DUPFD_CLOEXEC, 0);
}

int control_begin(struct control *c, int sock)
{
    int r;

    *c = (struct control){
        .sock = sock, .line = line_given(), .epoll = epoll_create1(EPOLL_CLOEXEC), .spare = -1};
    keep_spare(c);
    if (c->epoll < 0 || fcntl(sock, F_SETFD, FD_CLOEXEC))
        return -errno;
    r = control_watch(c, sock, EPOLL_CTL_ADD, EPOLLIN);
    if (r || c->line < 0)
        return r;
    fcntl(c->line, F_SETFD, FD_CLOEXEC);
    return control_watch(c, c->line, EPOLL_CTL_ADD, EPOLLIN);
}

static void forget_parts(struct control *c)
{
    msg_reader_fini(&c->in);
    free(c->out);
    c->out = NULL;
    c->out_at = c->out_len = c->out_room = 0;
    c->writes = false;
}

void control_fini(struct control *c)
{
    forget_parts(c);
    close_fdp(&c->sock);
    close_fdp(&c->line);
    close_fdp(&c->spare);
    close_fdp(&c->epoll);
}

static void control_lost(struct control *c)
{
    forget_parts(c);
    close_fdp(&c->sock);
    keep_spare(c);
    c->ended |= c->line < 0;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* How much of it the socket takes now; negative errno: nothing any more. */
static ssize_t send_some(struct control *c, const char *bytes, size_t len, int fd)
{
    ssize_t n = fds_send(c->sock, bytes, len, &fd, fd >= 0, MSG_DONTWAIT);

    return n == -EAGAIN ? 0 : n;
}

static void out_flush(struct control *c)
{
    ssize_t n = 0;

    while (c->out_at < c->out_len &&
           (n = send_some(c, c->out + c->out_at, c->out_len - c->out_at, -1)) > 0)
        c->out_at += (size_t)n;
    if (n < 0)
        return control_lost(c);
    if (c->out_at == c->out_len)
        c->out_at = c->out_len = 0;
    if (c->writes != (c->out_len > 0)) {
        c->writes = !c->writes;
        control_watch(c, c->sock, EPOLL_CTL_MOD, EPOLLIN | (c->writes ? EPOLLOUT : 0));
    }
}

static bool out_add(struct control *c, const char *bytes, size_t len)
{
    char *more;

    if (c->out_at) {
        memmove(c->out, c->out + c->out_at, c->out_len -= c->out_at);
        c->out_at = 0;
    }
    if (c->out_len + len > OUT_MAX)
        return false;
    if (c->out_len + len > c->out_room) {
        more = realloc(c->out, 2 * (c->out_len + len));
        if (!more)
            return false;
        c->out = more;
        c->out_room = 2 * (c->out_len + len);
    }
    memcpy(c->out + c->out_len, bytes, len);
    c->out_len += len;
    return true;
}

void control_send(struct control *c, const struct msg *msg, int fd)
{
    _cleanup_(freep) void *frame = NULL;
    ssize_t n = 0;
    size_t len;

    if (c->sock < 0)
        return;
    if (codec_encode(msg, &frame, &len))
        return control_lost(c);
    if (!c->out_len)
        n = send_some(c, frame, len, fd);
    else if (fd >= 0)
        n = -ENOBUFS; /* only a hello has one, and is the first */
    if (n < 0 || ((size_t)n < len && !out_add(c, (char *)frame + n, len - (size_t)n)))
        return control_lost(c);
    if (c->out_len)
        out_flush(c);
}

/* ---- in -------------------------------------------------------------------------------------- */

/* A packet of the line. 0: there is none; 1: it is another control socket, or -1 if there was no
 * descriptor left for it: that commd hears that its end is closed. Negative: the line's end. */
static int line_read(struct control *c, int *ret_sock)
{
    char byte;
    unsigned nfds = 0;
    bool cut = false;
    ssize_t n = recv(c->line, &byte, 1, MSG_DONTWAIT | MSG_PEEK); /* takes no descriptor */

    *ret_sock = -1;
    if (n > 0) {
        close_fdp(&c->spare);
        n = fds_recv(c->line, &byte, 1, ret_sock, 1, &nfds, MSG_DONTWAIT, &cut);
    } else if (n < 0) {
        n = -errno;
    }
    if (n == -EAGAIN || n == -EINTR)
        return 0;
    return n > 0 && (nfds || cut) ? 1 : -ECONNRESET;
}

/* True: there is another commd. */
static bool line_turn(struct control *c)
{
    bool is_new = false;
    int sock = -1, r;

    while (c->line >= 0 && (r = line_read(c, &sock))) {
        if (r < 0) {
            c->ended = true;
            break;
        }
        forget_parts(c);
        close_fdp(&c->sock);
        keep_spare(c);
        c->sock = sock;
        is_new = sock >= 0 && control_watch(c, sock, EPOLL_CTL_ADD, EPOLLIN) == 0;
    }
    return is_new;
}

enum control_event control_next(struct control *c, struct msg *ret_msg, int *ret_fd)
{
    const char *why;
    unsigned nfds = 0;
    bool is_new = line_turn(c);
    int r;

    if (c->ended)
        return CONTROL_END;
    if (is_new)
        return CONTROL_NEW;
    if (c->sock >= 0 && c->writes)
        out_flush(c);
    *ret_fd = -1;
    *ret_msg = (struct msg){0};
    r = c->sock < 0 ? -EAGAIN : msg_read_fd(c->sock, &c->in, ret_msg, ret_fd, 1, &nfds, &why);
    if (r == 0)
        return CONTROL_MSG;
    if (r != -EAGAIN)
        control_lost(c);
    return c->ended ? CONTROL_END : CONTROL_NONE;
}
