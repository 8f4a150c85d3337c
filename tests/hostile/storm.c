/* storm.c - one user who wants of commd as much as can be had of one thing. Run by
 * tests/integration/test_turns.py.
 *
 *   storm SOCKET joins N        N connections join groups of two that never fill, each for 1 ms, as
 *                               fast as answers come
 *   storm SOCKET questions N    processes ask for all ranks, to be watched for long, and die; N at
 * a time
 *
 * Says "done" when all connections have been made once, and goes on until its input ends. */
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/proto/codec.h"

enum { MOST = 64, PENDING = 960, BURST = 64, BUFFER = 256 << 10 };

struct conn {
    int fd;
    unsigned asked, answers;
    size_t len;
    uint8_t in[BUFFER];
};

static struct conn conns[MOST];
static struct sockaddr_un addr = {.sun_family = AF_UNIX};

static void say(int fd, const struct msg *msg)
{
    void *frame;
    size_t len;

    if (codec_encode(msg, &frame, &len))
        abort();
    (void)!send(fd, frame, len, MSG_NOSIGNAL); /* commd may have had enough of it */
    free(frame);
}

static int session(bool admin)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
        _exit(2);
    msg.client_hello.version = MSG_VERSION;
    msg.client_hello.admin = admin;
    say(fd, &msg);
    return fd;
}

static void join_some(struct conn *conn)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    for (unsigned i = 0; i < BURST && conn->asked - conn->answers < PENDING; i++) {
        msg.client_join =
            (struct msg_client_join){.req = conn->asked++, .size = 2, .timeout_ms = 1};
        snprintf(msg.client_join.name, sizeof(msg.client_join.name), "storm%d.%d.%u", getpid(),
                 conn->fd, conn->asked);
        say(conn->fd, &msg);
    }
}

static void take_answers(struct conn *conn)
{
    ssize_t got = recv(conn->fd, conn->in + conn->len, BUFFER - conn->len, MSG_DONTWAIT);
    size_t need, at = 0;

    if (got <= 0)
        return;
    conn->len += (size_t)got;
    for (; codec_frame_check(conn->in + at, conn->len - at, BUFFER / 2, &need) == CODEC_OK;
         at += need)
        conn->answers++;
    memmove(conn->in, conn->in + at, conn->len -= at);
}

static bool ended(void)
{
    return poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0) != 0;
}

static void joins(unsigned n)
{
    struct pollfd fds[MOST];

    for (unsigned i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = conns[i].fd = session(false), .events = POLLIN};
    puts("done");
    fflush(stdout);
    while (!ended()) {
        for (unsigned i = 0; i < n; i++)
            join_some(&conns[i]);
        poll(fds, n, 10);
        for (unsigned i = 0; i < n; i++)
            take_answers(&conns[i]);
    }
}

static void ask_and_die(void)
{
    struct msg msg = {.type = MSG_ADMIN};
    uint8_t byte;
    int fd = session(true);

    msg.admin.watch_ms = 10000;
    snprintf(msg.admin.verb, sizeof(msg.admin.verb), "ranks");
    say(fd, &msg);
    recv(fd, &byte, 1, 0); /* the welcome: the question is read in the same turn */
    _exit(0);
}

static void questions(unsigned n)
{
    for (unsigned children = 0, dead = 0; !ended();) {
        if (children - dead < n) {
            children++;
            if (fork() == 0)
                ask_and_die();
            continue;
        }
        wait(NULL);
        if (++dead == n) {
            puts("done");
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    unsigned n = argc > 3 ? (unsigned)atoi(argv[3]) : 0;

    if (!n || n > MOST)
        return 2;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", argv[1]);
    if (!strcmp(argv[2], "joins"))
        joins(n);
    else
        questions(n);
    return 0;
}
