/* test_stream.c - descriptors on their way out: shared, counted, in order, and what happens when
 * they may not go. The way in is seen through test_listener.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/link/stream.h"

enum { OTHER_USER = 4003 };

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int pair(struct stream *s)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    stream_init(s, fds[0], CODEC_MAX_CLIENT_FRAME);
    return fds[1];
}

/* The number of the next message, and its descriptor or -1. */
static uint32_t take(int fd, int *ret_fd)
{
    const char *why;
    struct msg msg;
    unsigned nfds;

    *ret_fd = -1;
    assert_int_equal(msg_recv_fd(fd, &msg, ret_fd, 1, &nfds, -1, &why), 0);
    assert_int_equal(msg.type, MSG_ARENA_ANSWER);
    return msg.arena_answer.req;
}

static struct msg numbered(uint32_t number)
{
    struct msg msg = {.type = MSG_ARENA_ANSWER};

    msg.arena_answer.req = number;
    return msg;
}

static struct stream_fd *some_file(int *ret_fd)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct stream_fd *shared;

    *ret_fd = fd;
    shared = stream_fd_new(&fd);
    assert_non_null(shared);
    assert_int_equal(fd, -1); /* it has it now */
    return shared;
}

static void one_descriptor_for_many_is_open_once(void **state)
{
    struct stream_count all = {0}, held[2] = {{.up = &all}, {.up = &all}};
    struct msg msg = numbered(1);
    struct stream s[8];
    int far[8], fd, lowest = dup(0), got;
    struct stream_fd *shared;

    close(lowest);
    for (unsigned i = 0; i < 8; i++) {
        far[i] = pair(&s[i]);
        s[i].held = &held[0];
    }
    shared = some_file(&fd);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(stream_send_shared(&s[i], &msg, &shared, 1), 0);
    assert_int_equal(held[0].n, 1);
    assert_int_equal(all.n, 1);
    assert_int_equal(s[7].out_fds, 1);
    got = dup(0); /* nothing else was opened */
    assert_int_equal(got, fd + 1);
    close(got);
    stream_fd_unref(shared);
    for (unsigned i = 0; i < 7; i++) {
        assert_true(is_open(fd));
        assert_int_equal(stream_flush(&s[i]), 0);
        assert_int_equal(s[i].out_fds, 0);
        assert_int_equal(s[i].sent_fds, 1);
        assert_int_equal(take(far[i], &got), 1);
        assert_true(got >= 0);
        close(got);
    }
    assert_true(is_open(fd));
    assert_int_equal(all.n, 1);
    stream_fini(&s[7]); /* never sent */
    assert_false(is_open(fd));
    assert_int_equal(held[0].n + all.n, 0);
    for (unsigned i = 0; i < 8; i++) {
        stream_fini(&s[i]);
        close(far[i]);
    }
}

static bool ask(void *arg, unsigned nfds)
{
    return *(bool *)arg;
}

static void what_waits_for_a_descriptor_waits_in_order(void **state)
{
    struct stream s;
    bool may = false;
    int far = pair(&s), got;

    s.may_send = ask;
    s.arg = &may;
    for (uint32_t i = 1; i <= 4; i++) {
        struct msg msg = numbered(i);

        assert_int_equal(stream_send(&s, &msg, &(int){0}, i == 2), 0);
    }
    assert_int_equal(stream_flush(&s), STREAM_LATER);
    assert_int_equal(take(far, &got), 1);
    assert_int_equal(recv(far, &(char){0}, 1, MSG_DONTWAIT), -1); /* 3 and 4 do not overtake */
    assert_int_equal(stream_flush(&s), STREAM_LATER);
    may = true;
    assert_int_equal(stream_flush(&s), 0);
    for (uint32_t i = 2; i <= 4; i++) {
        assert_int_equal(take(far, &got), i);
        assert_int_equal(got >= 0, i == 2);
        close_fdp(&got);
    }
    stream_fini(&s);
    close(far);
}

/* As a user whom the kernel limits. */
static void send_too_many(void)
{
    struct rlimit few = {64, 64};
    struct msg msg = numbered(1);
    struct stream s[2];
    int far[2], got, r = 0;

    if (setrlimit(RLIMIT_NOFILE, &few) || setgid(OTHER_USER) || setuid(OTHER_USER))
        _exit(1);
    for (unsigned i = 0; i < 2; i++)
        far[i] = pair(&s[i]);
    for (unsigned i = 0; i < 200 && r == 0; i++)
        r = stream_send(&s[0], &msg, &far[1], 1) ? 99 : stream_flush(&s[0]);
    if (r != STREAM_LATER || s[0].sent_fds < 10) /* more of this user's may fly elsewhere */
        _exit(2);
    if (stream_send(&s[1], &msg, &far[1], 1) || stream_flush(&s[1]) != STREAM_LATER)
        _exit(3);                 /* the socket is empty, and yet */
    while (stream_flush(&s[1])) { /* as the other one is read */
        take(far[0], &got);
        close(got);
    }
    _exit(take(far[1], &got) != 1);
}

static void the_kernel_says_later(void **state)
{
    int status;
    pid_t pid;

    if (getuid())
        skip(); /* cannot be another user */
    pid = fork();
    if (pid == 0)
        send_too_many();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_descriptor_for_many_is_open_once),
        cmocka_unit_test(what_waits_for_a_descriptor_waits_in_order),
        cmocka_unit_test(the_kernel_says_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
