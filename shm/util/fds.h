/* fds.h - descriptors that travel beside bytes over a UNIX socket (SCM_RIGHTS). */
#ifndef COMMD_FDS_H
#define COMMD_FDS_H

#include <sys/socket.h>
#include <sys/uio.h>

#include "shm/util/base.h"

enum { FDS_MOST = 253 }; /* with one message: SCM_MAX_FD of the kernel */

union fds_space {
    struct cmsghdr head;
    char buf[CMSG_SPACE(FDS_MOST * sizeof(int))];
};

/* Puts @fds, at least one, beside the bytes of @mh. They stay the caller's. */
static inline void fds_put(struct msghdr *mh, union fds_space *space, const int *fds, unsigned nfds)
{
    assert(nfds && nfds <= FDS_MOST);
    space->head = (struct cmsghdr){CMSG_LEN(nfds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&space->head), fds, nfds * sizeof(int));
    mh->msg_control = space;
    mh->msg_controllen = CMSG_SPACE(nfds * sizeof(int));
}

/* sendmsg() of @bytes and @fds, without SIGPIPE. The count of bytes, or negative errno. */
static inline ssize_t fds_send(int sock, const void *bytes, size_t len, const int *fds,
                               unsigned nfds, int flags)
{
    struct iovec iov = {(void *)bytes, len}; /* it is only read */
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    union fds_space space;
    ssize_t n;

    if (nfds)
        fds_put(&mh, &space, fds, nfds);
    do
        n = sendmsg(sock, &mh, flags | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

/* recvmsg(). Up to @most descriptors are the caller's, close-on-exec; the kernel keeps no more than
 * that. *ret_cut: bytes or descriptors did not fit, and are lost. The count of bytes, or negative
 * errno. */
static inline ssize_t fds_recv(int sock, void *bytes, size_t len, int *fds, unsigned most,
                               unsigned *ret_nfds, int flags, bool *ret_cut)
{
    union fds_space space;
    struct iovec iov = {bytes, len};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = &space,
                        /* not CMSG_SPACE, whose padding has room for one more */
                        .msg_controllen = CMSG_LEN(most * sizeof(int))};
    ssize_t n = recvmsg(sock, &mh, flags | MSG_CMSG_CLOEXEC);

    assert(most && most <= FDS_MOST);
    *ret_nfds = 0;
    *ret_cut = n >= 0 && mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&mh); c; c = CMSG_NXTHDR(&mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        *ret_nfds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        assert(*ret_nfds <= most); /* one block of them comes with a message */
        memcpy(fds, CMSG_DATA(c), *ret_nfds * sizeof(int));
    }
    return n;
}

#endif
