/* fake_test.c - see fake_test.h. */
#include "tests/fakecuda/fake_test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct cuda cu;

void fake_test_load(void)
{
    const char *path = getenv("COMMD_LIBCUDA");
    char why[256];

    if (cuda_load(path ? path : "tests/fakecuda/libcuda.so.1", 0, &cu, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    if (cu.init(0))
        exit(1);
}

void *fake_test_symbol(const char *name)
{
    void *p = dlsym(cu.library, name);

    assert_non_null(p);
    return p;
}

cu_context fake_test_begin(cu_device dev)
{
    cu_context ctx;

    OK(cu.primary_retain(&ctx, dev));
    OK(cu.ctx_set(ctx));
    return ctx;
}

pid_t fake_test_spawn(const char *name, int *ret_socket)
{
    int pair[2];
    char number[16];
    pid_t pid;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    snprintf(number, sizeof number, "%d", pair[1]);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        close(pair[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test", "child", name, number, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *ret_socket = pair[0];
    return pid;
}

void fake_test_end(pid_t pid, int expected)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), expected);
}

void fake_test_send(int socket, const void *data, size_t bytes, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)data, bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *c;

    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    assert_int_equal(sendmsg(socket, &m, 0), (int)bytes);
}

int fake_test_receive(int socket, void *data, size_t bytes)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {data, bytes};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c;
    int fd = -1;

    assert_int_equal(recvmsg(socket, &m, 0), (int)bytes);
    c = CMSG_FIRSTHDR(&m);
    if (c)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

int fake_test_within(unsigned ms, int (*done)(void *arg), void *arg)
{
    struct timespec t = {0, 1000000};

    for (unsigned i = 0; i < ms && !done(arg); i++)
        nanosleep(&t, NULL);
    return done(arg);
}
