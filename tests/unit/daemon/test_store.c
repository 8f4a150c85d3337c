/* What commd leaves with its manager and finds again, against a socket that plays the manager. */
#include "daemon/process/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct manager {
    int fd, far;
};

static int setup(void **state)
{
    static struct manager m;
    int fds[2];
    char text[32];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
        return -1;
    m = (struct manager){.fd = fds[0], .far = fds[1]};
    snprintf(text, sizeof(text), "fd:%d", m.far);
    setenv("NOTIFY_SOCKET", text, 1);
    *state = &m;
    return fcntl(m.fd, F_SETFL, O_NONBLOCK);
}

static int teardown(void **state)
{
    struct manager *m = *state;

    store_end();
    unsetenv("NOTIFY_SOCKET");
    close_fdp(&m->fd);
    close_fdp(&m->far);
    return 0;
}

/* The next message, and the descriptor that came with it; -1: none came. */
static int expect_message(struct manager *m, const char *expected)
{
    char buf[256] = "", control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf) - 1};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control,
                        .msg_controllen = sizeof(control)};
    int fd = -1;

    if (recvmsg(m->fd, &mh, 0) < 0) {
        assert_int_equal(errno, EAGAIN);
        assert_null(expected);
        return -1;
    }
    assert_non_null(expected);
    assert_string_equal(buf, expected);
    if (CMSG_FIRSTHDR(&mh))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&mh)), sizeof(fd));
    return fd;
}

static bool same_file(int a, int b)
{
    struct stat x, y;

    assert_return_code(fstat(a, &x) | fstat(b, &y), errno);
    return x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* Plays what a manager does before it starts commd; @n descriptors from number 3 on. */
static void hand_over(unsigned n, const char *names)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)getpid());
    setenv("LISTEN_PID", text, 1);
    snprintf(text, sizeof(text), "%u", n);
    setenv("LISTEN_FDS", text, 1);
    if (names)
        setenv("LISTEN_FDNAMES", names, 1);
    store_begin();
    assert_null(getenv("LISTEN_PID"));
    assert_null(getenv("LISTEN_FDS"));
    assert_null(getenv("LISTEN_FDNAMES"));
}

/* Numbers from 3 on that are free, for hand_over(): what is there moves up. */
static void make_room(struct manager *m)
{
    char text[32];
    int up = fcntl(m->far, F_DUPFD_CLOEXEC, 60);

    close(m->far);
    m->far = up;
    up = fcntl(m->fd, F_DUPFD_CLOEXEC, 60);
    close(m->fd);
    m->fd = up;
    snprintf(text, sizeof(text), "fd:%d", m->far);
    setenv("NOTIFY_SOCKET", text, 1);
    for (int fd = 3; fd < 12; fd++)
        assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void give(int fd, const char *path)
{
    int got = open(path, O_RDONLY);

    assert_true(got >= 0);
    if (got == fd)
        return;
    assert_int_equal(dup2(got, fd), fd);
    close(got);
}

static void nobody_keeps_anything_without_a_manager(void **state)
{
    unsetenv("NOTIFY_SOCKET");
    store_begin();
    assert_false(store_is_kept());
    assert_int_equal(store_put("nodes", 0), 0);
    store_drop("nodes");
    assert_int_equal(store_take("nodes"), -1);
}

static void a_name_stands_for_one_descriptor(void **state)
{
    struct manager *m = *state;
    int fd;

    store_begin();
    assert_true(store_is_kept());
    assert_int_equal(store_put("nodes", m->fd), 0);
    fd = expect_message(m, "FDSTORE=1\nFDNAME=nodes\nFDPOLL=0");
    assert_true(same_file(fd, m->fd));
    close(fd);
    assert_int_equal(store_put("nodes", m->far), 0); /* what was kept before goes */
    assert_int_equal(expect_message(m, "FDSTOREREMOVE=1\nFDNAME=nodes"), -1);
    fd = expect_message(m, "FDSTORE=1\nFDNAME=nodes\nFDPOLL=0");
    assert_true(same_file(fd, m->far));
    close(fd);
    store_drop("nodes");
    assert_int_equal(expect_message(m, "FDSTOREREMOVE=1\nFDNAME=nodes"), -1);
    store_drop("nodes"); /* nothing is kept: nothing is said */
    store_drop("engine");
    expect_message(m, NULL);
}

static void what_was_kept_is_taken_by_its_name(void **state)
{
    struct manager *m = *state;
    unsigned i = 0;
    int fd;

    make_room(m);
    give(3, "/dev/null");
    give(4, "/dev/zero");
    give(5, "/dev/full");
    hand_over(3, "state:board.1:pid.7");
    for (fd = 3; fd < 6; fd++)
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(store_take("board.1"), 4);
    assert_int_equal(store_take("board.1"), -1);
    assert_int_equal(store_take("board.2"), -1);
    assert_string_equal(store_next(&i), "state");
    assert_string_equal(store_next(&i), "pid.7");
    assert_null(store_next(&i));
    i = 0;
    store_next(&i);
    store_drop(store_next(&i)); /* of no use: the manager forgets it, too */
    assert_int_equal(fcntl(5, F_GETFD), -1);
    expect_message(m, "FDSTOREREMOVE=1\nFDNAME=pid.7");
    store_drop("board.1"); /* taken, and the manager still has it */
    assert_int_not_equal(fcntl(4, F_GETFD), -1);
    expect_message(m, "FDSTOREREMOVE=1\nFDNAME=board.1");
    expect_message(m, NULL);
    close(4);
    store_drop_rest(); /* "state": nobody has taken it */
    expect_message(m, "FDSTOREREMOVE=1\nFDNAME=state");
    assert_int_equal(fcntl(3, F_GETFD), -1);
    expect_message(m, NULL);
}

static bool is_zero(int fd, const void *arg)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_rdev == *(const dev_t *)arg;
}

static void a_descriptor_is_found_without_its_name(void **state)
{
    struct stat st;

    make_room(*state);
    give(3, "/dev/null");
    give(4, "/dev/zero");
    assert_return_code(stat("/dev/zero", &st), errno);
    hand_over(2, NULL);
    assert_int_equal(store_take_fitting(is_zero, &st.st_rdev), 4);
    assert_int_equal(store_take_fitting(is_zero, &st.st_rdev), -1);
    close(4);
}

static void names_that_are_none_are_unknown(void **state)
{
    char names[300];
    unsigned i = 0, n = 0;
    const char *name;

    make_room(*state);
    for (int fd = 3; fd < 9; fd++)
        give(fd, "/dev/null");
    memset(names, 'a', sizeof(names));
    memcpy(names, "a b::ok:x\ny:", 12); /* a blank, nothing, one that is good, a line's end */
    names[sizeof(names) - 1] = '\0';    /* one that is too long; and one is missing */
    hand_over(6, names);
    while ((name = store_next(&i))) {
        n++;
        assert_string_equal(name, n == 3 ? "ok" : "unknown");
    }
    assert_int_equal(n, 6);
    store_drop("unknown");
    for (int fd = 3; fd < 9; fd++)
        assert_int_equal(fcntl(fd, F_GETFD) >= 0, fd == 5);
}

static void what_is_inherited_is_for_one_process(void **state)
{
    unsigned i = 0;

    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_PID", "1", 1);
    store_begin();
    assert_null(store_next(&i));
    store_end();
    setenv("LISTEN_FDS", "2", 1);
    store_begin();
    assert_null(store_next(&i));
}

static void more_than_is_open_is_no_harm(void **state)
{
    unsigned i = 0;

    make_room(*state);
    give(4, "/dev/null");
    hand_over(50, "state:nodes");
    assert_string_equal(store_next(&i), "nodes");
    assert_null(store_next(&i));
}

/* More could not be handed over: execve() fails with a longer variable. */
static void what_is_kept_is_bounded(void **state)
{
    struct manager *m = *state;
    char name[STORE_NAME_MAX], message[96];
    unsigned n = 0, fitted = 0;
    size_t bytes = 0;
    int fd, r;

    store_begin();
    for (; n < 2 * STORE_MAX; n++) {
        snprintf(name, sizeof(name), "arena.%05u.0123456789abcdef0123456789abcde", n);
        r = store_put(name, m->far);
        assert_true(r == 0 || r == -ENOSPC);
        if (r)
            continue;
        snprintf(message, sizeof(message), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
        fd = expect_message(m, message);
        assert_true(fd >= 0);
        close(fd);
        fitted++;
        bytes += strlen(name) + 1;
    }
    assert_true(fitted > 2000 && fitted < STORE_MAX && bytes < 120 * 1024);
    store_drop("arena.00000.0123456789abcdef0123456789abcde");
    expect_message(m, "FDSTOREREMOVE=1\nFDNAME=arena.00000.0123456789abcdef0123456789abcde");
    assert_int_equal(store_put("pid.1", m->far), 0);
    store_end();
    store_begin();
    for (n = 0; n < 2 * STORE_MAX; n++) {
        snprintf(name, sizeof(name), "p%u", n);
        assert_int_equal(store_put(name, m->far), n < STORE_MAX ? 0 : -ENOSPC);
        while (recv(m->fd, message, sizeof(message), 0) > 0)
            ;
    }
}

static void a_manager_that_is_gone_keeps_nothing(void **state)
{
    struct manager *m = *state;

    store_begin();
    close_fdp(&m->fd);
    assert_int_equal(store_put("nodes", m->far), -EPIPE);
    store_drop("nodes");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(nobody_keeps_anything_without_a_manager),
        TEST(a_name_stands_for_one_descriptor),
        TEST(what_was_kept_is_taken_by_its_name),
        TEST(a_descriptor_is_found_without_its_name),
        TEST(names_that_are_none_are_unknown),
        TEST(what_is_inherited_is_for_one_process),
        TEST(more_than_is_open_is_no_harm),
        TEST(what_is_kept_is_bounded),
        TEST(a_manager_that_is_gone_keeps_nothing),
    };

    closefrom(3);              /* tests hand over descriptors by number */
    unsetenv("NOTIFY_SOCKET"); /* the tests may themselves run in a service */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
