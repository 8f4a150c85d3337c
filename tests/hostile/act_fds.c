/* act_fds.c - descriptors of all kinds, sent where one is expected, or none, or to the
 * doorbell; and arenas, which are memory that commd hands on. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "tests/hostile/hostile.h"

enum { LINGER_S = 8 };

int fd_memory(struct hostile *h, size_t size, bool sealed)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -1;
    (void)!ftruncate(fd, (off_t)size);
    if (sealed)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

/* Closing the last copy of it waits: data that nobody reads, and SO_LINGER. */
static int fd_lingering(struct hostile *h)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger linger = {1, LINGER_S};
    socklen_t len = sizeof(addr);
    static char page[65536];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd, small = 4096, *end;

    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)); /* there are thousands of them */
    if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&addr, &len) ||
        connect(fd, (struct sockaddr *)&addr, len)) {
        close_fdp(&listener);
        close_fdp(&fd);
        return -1;
    }
    end = &h->far_ends[h->nfar_ends++ % FAR_ENDS];
    close_fdp(end);
    *end = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    while (send(fd, page, sizeof(page), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    return fd;
}

/* A socket with sockets under way in it, some levels deep. */
static int fd_nested(struct hostile *h)
{
    int inner = eventfd(0, EFD_CLOEXEC);

    for (unsigned i = 1 + dice_below(&h->dice, 5); i && inner >= 0; i--) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
            close_fdp(&inner);
            return -1;
        }
        wire_send(pair[0], "x", 1, &inner, 1);
        if (dice_one_in(&h->dice, 2))
            wire_send(pair[0], "x", 1, &pair[1], 1); /* a cycle, for the kernel to collect */
        close(inner);
        close(pair[0]);
        inner = pair[1];
    }
    return inner;
}

static int fd_pair_end(int pair[2], int failed)
{
    if (failed)
        return -1;
    close(pair[1]);
    return pair[0];
}

int fd_of_any_kind(struct hostile *h)
{
    int pair[2], fd;
    sigset_t none;

    switch (dice_below(&h->dice, 20)) {
    case 0:
        return fd_pair_end(pair, pipe2(pair, O_CLOEXEC));
    case 1:
        return fd_pair_end(pair, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair));
    case 2:
        return fd_lingering(h);
    case 3:
        return fd_nested(h);
    case 4:
        return fd_memory(h, 1 + dice_below(&h->dice, 1 << 20), false);
    case 5:
        return fd_memory(h, 4096 * (1 + dice_below(&h->dice, 64)), true);
    case 6:
        return fd_memory(h, (size_t)1 << (30 + dice_below(&h->dice, 33)), dice_below(&h->dice, 2));
    case 7: /* sealed, but not so that it cannot shrink */
        fd = fd_memory(h, 65536, false);
        if (fd >= 0)
            fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
        return fd;
    case 8:
        fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
        if (fd >= 0 && ftruncate(fd, 4 << 20) == 0)
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        return fd;
    case 9:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 10:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    case 11:
        fd = epoll_create1(EPOLL_CLOEXEC);
        for (int i = 0; fd >= 0 && i < CONNS; i++)
            if (h->conns[i].fd >= 0)
                epoll_ctl(fd, EPOLL_CTL_ADD, h->conns[i].fd,
                          &(struct epoll_event){.events = EPOLLIN});
        return fd;
    case 12:
        return (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* user mode only */);
    case 13:
        return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    case 14:
        sigemptyset(&none);
        return signalfd(-1, &none, SFD_CLOEXEC);
    case 15:
        return open("/", O_PATH | O_CLOEXEC);
    case 16:
        return open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    case 17:
        return inotify_init1(IN_CLOEXEC);
    case 18: /* commd's own side of what we have with it */
        fd = stray_any(h);
        return fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    default:
        return (int)syscall(SYS_pidfd_open, getpid(), 0);
    }
}

/* @data with up to FDS_MOST descriptors. Own copies are closed only where that cannot wait. */
void fds_give(struct hostile *h, int fd, const void *data, size_t len)
{
    int fds[FDS_MOST];
    unsigned n = 0, want = 1 + dice_below(&h->dice, dice_one_in(&h->dice, 4) ? FDS_MOST : 4);
    bool sent;

    for (unsigned tries = 0; n < want && tries < 2 * want; tries++) {
        /* many of few: what is made for each costs us more than them */
        fds[n] =
            n > 8 ? fcntl(fds[dice_below(&h->dice, 8)], F_DUPFD_CLOEXEC, 0) : fd_of_any_kind(h);
        if (fds[n] >= 0)
            n++;
    }
    sent = n && wire_send(fd, data, len, fds, n);
    for (unsigned i = 0; i < n; i++) {
        struct linger no = {0, 0};

        if (!sent)
            setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &no, sizeof(no));
        close(fds[i]);
    }
}

/* With a message that carries one, none, or is none. */
static void fds_with_message(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg;
    void *frame;
    size_t len;

    wire_any_msg(h, &msg);
    if (!conn || codec_encode(&msg, &frame, &len))
        return;
    fds_give(h, conn->fd, frame,
             dice_one_in(&h->dice, 3) ? 1 + dice_below(&h->dice, (uint32_t)len) : len);
    free(frame);
}

static void fds_with_a_byte(struct hostile *h)
{
    int fd = wire_connect(h, dice_below(&h->dice, 2));

    if (fd < 0)
        return;
    for (unsigned i = 0; i < 8; i++)
        fds_give(h, fd, "c", 1);
    if (dice_one_in(&h->dice, 2))
        close(fd);
    else
        stray_keep(h, fd);
}

static void fd_linger_byte(struct hostile *h)
{
    int fd = wire_connect(h, dice_below(&h->dice, 2)), lingering = fd_lingering(h);

    if (fd < 0 || lingering < 0 || !wire_send(fd, "c", 1, &lingering, 1)) {
        if (lingering >= 0)
            setsockopt(lingering, SOL_SOCKET, SO_LINGER, &(struct linger){0, 0},
                       sizeof(struct linger));
    }
    close_fdp(&lingering);
    close_fdp(&fd);
}

/* ---- arenas --------------------------------------------------------------------------- */

static void arena_add(struct hostile *h, int fd, uint64_t arena, uint64_t size)
{
    struct conn *conn = conn_any(h);
    struct msg msg = {.type = MSG_ARENA_ADD, .arena_add = {dice_below(&h->dice, 100), arena, size}};

    if (conn && fd >= 0)
        wire_msg(conn->fd, &msg, &fd, 1);
    close_fdp(&fd);
}

static void arena_register(struct hostile *h)
{
    for (unsigned i = 0; i < 16; i++) {
        size_t size = 4096 * (1 + dice_below(&h->dice, 64));

        arena_add(h, fd_memory(h, size, true), 1 + dice_below(&h->dice, 50), size);
    }
}

static void arena_bad(struct hostile *h)
{
    int fd =
        dice_one_in(&h->dice, 4) ? fd_of_any_kind(h) : fd_memory(h, 8192, dice_below(&h->dice, 2));

    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){0, 0}, sizeof(struct linger));
    arena_add(h, fd, dice_below(&h->dice, 50), dice_odd(&h->dice));
}

static void arena_ask(struct hostile *h)
{
    for (unsigned i = 0; i < 20; i++) {
        struct conn *conn = conn_any(h);
        struct msg msg = {
            .type = MSG_ARENA_ASK,
            .arena_ask = {i, dice_below(&h->dice, 5), id_any(h), dice_below(&h->dice, 50)}};

        if (conn)
            wire_msg(conn->fd, &msg, NULL, 0);
    }
}

static void arena_del(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg = {.type = MSG_ARENA_DEL, .arena_del.arena = dice_below(&h->dice, 50)};

    if (conn)
        wire_msg(conn->fd, &msg, NULL, 0);
}

/* ---- the doorbell --------------------------------------------------------------------- */

static int bell_any(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);

    return rank ? rank->doorbell : -1;
}

static void bell_write(struct hostile *h)
{
    bell_put(bell_any(h), 1 + dice_odd(&h->dice) % 8);
}

/* A counter at its end, or a full socket. */
static void bell_fill(struct hostile *h)
{
    int bell = bell_any(h), flags = fcntl(bell, F_GETFL);
    static const uint64_t most = UINT64_MAX - 1;

    if (bell < 0 || flags < 0)
        return;
    fcntl(bell, F_SETFL, flags | O_NONBLOCK);
    for (int i = 0; i < 1000 && write(bell, &most, sizeof(most)) > 0; i++)
        ;
    bell_put(bell, 1);
}

static void bell_fds(struct hostile *h)
{
    int bell = bell_any(h);

    if (bell >= 0)
        fds_give(h, bell, "x", 1);
}

static void bell_linger(struct hostile *h)
{
    int bell = bell_any(h), fd = fd_lingering(h);

    if (bell < 0 || fd < 0 || !wire_send(bell, "x", 1, &fd, 1))
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){0, 0}, sizeof(struct linger));
    close_fdp(&fd);
}

/* Flags of the open file, which is the engine's too where a doorbell is one file. */
static void bell_flags(struct hostile *h)
{
    int bell = bell_any(h), one = 1, size = 1;

    if (bell < 0)
        return;
    switch (dice_below(&h->dice, 6)) {
    case 0:
        fcntl(bell, F_SETFL, 0);
        break;
    case 1:
        fcntl(bell, F_SETFL, O_NONBLOCK | O_ASYNC | O_APPEND);
        break;
    case 2:
        setsockopt(bell, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
        setsockopt(bell, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one));
        break;
    case 3:
        shutdown(bell, (int)dice_below(&h->dice, 3));
        break;
    case 4:
        fcntl(bell, F_SETPIPE_SZ, 4096);
        fcntl(bell, F_SETOWN, getpid());
        break;
    default: { /* take away what others put into it */
        char bytes[256];
        int flags = fcntl(bell, F_GETFL);

        fcntl(bell, F_SETFL, flags | O_NONBLOCK);
        for (int i = 0; i < 50 && read(bell, bytes, sizeof(bytes)) > 0; i++)
            ;
    }
    }
}

static void bell_close(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);

    if (rank) {
        conn_close(&h->conns[rank->conn]);
        close_fdp(&rank->doorbell);
    }
}

/* To commd, as a descriptor of a message. */
static void bell_pass(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    int bell = bell_any(h);

    if (conn && bell >= 0)
        wire_send(conn->fd, "c", 1, &bell, 1);
}

const struct action fd_actions[] = {
    {"fds_with_message", 6, fds_with_message},
    {"fds_with_a_byte", 3, fds_with_a_byte},
    {"fd_linger_byte", 1, fd_linger_byte},
    {"arena_register", 4, arena_register},
    {"arena_bad", 4, arena_bad},
    {"arena_ask", 4, arena_ask},
    {"arena_del", 4, arena_del},
    {"bell_write", 6, bell_write},
    {"bell_fill", 3, bell_fill},
    {"bell_fds", 2, bell_fds},
    {"bell_linger", 1, bell_linger},
    {"bell_flags", 3, bell_flags},
    {"bell_close", 2, bell_close},
    {"bell_pass", 2, bell_pass},
    {NULL, 0, NULL},
};
