/* The sd_notify protocol, against a socket that plays the service manager. */
#include "daemon/process/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <sys/socket.h>
#include <time.h>
#include <sys/un.h>

struct manager {
    char dir[64];
    char path[80];
    int fd;
};

static void manager_bind(struct manager *m, const char *name, size_t len)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    assert_true(len <= sizeof(addr.sun_path));
    memcpy(addr.sun_path, name, len);
    m->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(m->fd >= 0);
    assert_int_equal(bind(m->fd, (struct sockaddr *)&addr,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)),
                     0);
}

static int setup(void **state)
{
    static struct manager m;

    m.fd = -1;
    strcpy(m.dir, "/tmp/test_notify.XXXXXX");
    if (!mkdtemp(m.dir))
        return -1;
    snprintf(m.path, sizeof(m.path), "%s/notify", m.dir);
    *state = &m;
    return 0;
}

static int teardown(void **state)
{
    struct manager *m = *state;

    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    close_fdp(&m->fd);
    unlink(m->path);
    return rmdir(m->dir);
}

static void expect_message(struct manager *m, const char *expected)
{
    char buf[4096];
    ssize_t n = recv(m->fd, buf, sizeof(buf) - 1, 0);

    if (!expected) {
        assert_int_equal(n, -1);
        assert_int_equal(errno, EAGAIN);
        return;
    }
    assert_true(n >= 0);
    buf[n] = '\0';
    assert_string_equal(buf, expected);
}

static void does_nothing_without_a_manager(void **state)
{
    assert_int_equal(notify_send("READY=1"), 0);
    setenv("NOTIFY_SOCKET", "", 1);
    assert_int_equal(notify_send("READY=1"), 0);
}

static void sends_one_datagram_to_a_path(void **state)
{
    struct manager *m = *state;

    manager_bind(m, m->path, strlen(m->path) + 1);
    setenv("NOTIFY_SOCKET", m->path, 1);
    assert_int_equal(notify_send("READY=1\nSTATUS=%d of %d nodes linked", 2, 3), 0);
    assert_int_equal(notify_send("WATCHDOG=1"), 0);
    expect_message(m, "READY=1\nSTATUS=2 of 3 nodes linked");
    expect_message(m, "WATCHDOG=1");
    expect_message(m, NULL);
}

static void sends_to_an_abstract_name(void **state)
{
    struct manager *m = *state;
    char name[96];

    snprintf(name, sizeof(name), "@%s", m->path);
    name[0] = '\0';
    manager_bind(m, name, 1 + strlen(m->path)); /* no NUL at the end: it would be of the name */
    name[0] = '@';
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify_send("STOPPING=1"), 0);
    expect_message(m, "STOPPING=1");
}

static void long_messages_are_not_cut(void **state)
{
    struct manager *m = *state;
    char text[3001], expected[3009];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    snprintf(expected, sizeof(expected), "STATUS=%s", text);
    manager_bind(m, m->path, strlen(m->path) + 1);
    setenv("NOTIFY_SOCKET", m->path, 1);
    assert_int_equal(notify_send("STATUS=%s", text), 0);
    expect_message(m, expected);
}

static void refuses_what_is_no_address(void **state)
{
    struct sockaddr_un addr;
    char name[sizeof(addr.sun_path) + 2];

    setenv("NOTIFY_SOCKET", "vsock:2:1", 1);
    assert_int_equal(notify_send("READY=1"), -EAFNOSUPPORT);
    setenv("NOTIFY_SOCKET", "relative", 1);
    assert_int_equal(notify_send("READY=1"), -EAFNOSUPPORT);
    setenv("NOTIFY_SOCKET", "@", 1);
    assert_int_equal(notify_send("READY=1"), -EINVAL);
    memset(name, 'a', sizeof(name));
    name[0] = '/';
    name[sizeof(addr.sun_path)] = '\0'; /* its NUL does not fit */
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify_send("READY=1"), -ENAMETOOLONG);
    name[0] = '@'; /* an abstract name needs none: nobody listens there */
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify_send("READY=1"), -ECONNREFUSED);
    name[sizeof(addr.sun_path)] = 'a';
    name[sizeof(addr.sun_path) + 1] = '\0';
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify_send("READY=1"), -ENAMETOOLONG);
}

static void reports_a_manager_that_is_gone(void **state)
{
    struct manager *m = *state;

    setenv("NOTIFY_SOCKET", m->path, 1);
    assert_int_equal(notify_send("READY=1"), -ENOENT);
    manager_bind(m, m->path, strlen(m->path) + 1);
    close_fdp(&m->fd);
    assert_int_equal(notify_send("READY=1"), -ECONNREFUSED);
}

/* Ends at all only because the wait is limited. */
static void gives_up_on_a_full_queue(void **state)
{
    struct manager *m = *state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    strcpy(addr.sun_path, m->path);
    manager_bind(m, m->path, strlen(m->path) + 1);
    while (sendto(fd, "x", 1, 0, (struct sockaddr *)&addr, sizeof(addr)) == 1)
        ;
    assert_int_equal(errno, EAGAIN);
    close(fd);
    setenv("NOTIFY_SOCKET", m->path, 1);
    assert_int_equal(notify_send("READY=1"), -EAGAIN);
}

static uint64_t ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void waits_once_for_a_manager_that_stands(void **state)
{
    int fds[2];
    char text[32];
    uint64_t begin;

    assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), errno);
    snprintf(text, sizeof(text), "fd:%d", fds[1]);
    setenv("NOTIFY_SOCKET", text, 1);
    while (notify_send("READY=1") == 0)
        ;
    begin = ms();
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(notify_send("READY=1"), -EAGAIN);
    assert_true(ms() - begin < 50 * 1000); /* each would wait for a second */
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(recv(fds[0], text, sizeof(text), 0), strlen("READY=1"));
    assert_int_equal(notify_send("READY=1"), 0);
    close(fds[0]);
    close(fds[1]);
}

static void sends_to_a_socket_that_is_open(void **state)
{
    int fds[2];
    char text[32];

    assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), errno);
    snprintf(text, sizeof(text), "fd:%d", fds[1]);
    setenv("NOTIFY_SOCKET", text, 1);
    assert_int_equal(notify_send("READY=1"), 0);
    assert_int_equal(notify_send("STATUS=1"), 0);
    assert_int_equal(recv(fds[0], text, sizeof(text), 0), strlen("READY=1"));
    assert_memory_equal(text, "READY=1", strlen("READY=1"));
    assert_int_equal(recv(fds[0], text, sizeof(text), 0), strlen("STATUS=1"));
    close(fds[0]);
    assert_int_equal(notify_send("READY=1"), -EPIPE);
    close(fds[1]);
}

static void leaves_no_descriptor_behind(void **state)
{
    struct manager *m = *state;
    int before, after;

    manager_bind(m, m->path, strlen(m->path) + 1);
    setenv("NOTIFY_SOCKET", m->path, 1);
    before = dup(m->fd);
    assert_true(before >= 0);
    close(before);
    assert_int_equal(notify_send("READY=1"), 0);
    setenv("NOTIFY_SOCKET", "/nowhere/at/all", 1);
    assert_int_equal(notify_send("READY=1"), -ENOENT);
    after = dup(m->fd);
    assert_int_equal(after, before);
    close(after);
}

static void watchdog_is_for_this_process_only(void **state)
{
    char pid[32];

    assert_int_equal(notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "10000000", 1);
    assert_int_equal(notify_watchdog_ms(), 10000); /* no pid: for whoever reads it */
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(notify_watchdog_ms(), 10000);
    snprintf(pid, sizeof(pid), "%d", (int)getppid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(notify_watchdog_ms(), 0);
    setenv("WATCHDOG_PID", "x", 1);
    assert_int_equal(notify_watchdog_ms(), 0);
}

static void watchdog_ignores_what_is_no_number(void **state)
{
    static const char *const bad[] = {"", "x", "-1", "5s", " 5", "99999999999999999999999"};

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        setenv("WATCHDOG_USEC", bad[i], 1);
        assert_int_equal(notify_watchdog_ms(), 0);
    }
    setenv("WATCHDOG_USEC", "1500", 1);
    assert_int_equal(notify_watchdog_ms(), 1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(does_nothing_without_a_manager),    TEST(sends_one_datagram_to_a_path),
        TEST(sends_to_a_socket_that_is_open),    TEST(waits_once_for_a_manager_that_stands),
        TEST(sends_to_an_abstract_name),         TEST(long_messages_are_not_cut),
        TEST(refuses_what_is_no_address),        TEST(reports_a_manager_that_is_gone),
        TEST(gives_up_on_a_full_queue),          TEST(leaves_no_descriptor_behind),
        TEST(watchdog_is_for_this_process_only), TEST(watchdog_ignores_what_is_no_number),
    };

    unsetenv("NOTIFY_SOCKET"); /* the tests may themselves run in a service */
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
