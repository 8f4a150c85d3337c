/* test_root.c - is a process of uid 0 root of this machine? (daemon/process/root.c) Under another
 * user and in namespaces: tests/integration/test_verbs.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/process/root.h"

/* As this process is, until it is killed. */
static pid_t child(int *ret_pidfd)
{
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(*ret_pidfd >= 0);
    return pid;
}

static void only_who_can_be_looked_at(void **state)
{
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    (void)state;
    if (geteuid())
        skip();
    assert_true(root_of_machine((uint32_t)getpid(), pidfd));
    assert_false(root_of_machine((uint32_t)getpid(), -1));
    assert_false(root_of_machine(0, pidfd)); /* of another pid namespace */
    close(pidfd);
}

/* Its pid may be another's by then: here it is ours. */
static void who_has_ended(void **state)
{
    struct pollfd gone = {.events = POLLIN};
    pid_t pid;

    (void)state;
    if (geteuid())
        skip();
    pid = child(&gone.fd);
    assert_true(root_of_machine((uint32_t)getpid(), gone.fd));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(poll(&gone, 1, -1), 1);
    assert_false(root_of_machine((uint32_t)getpid(), gone.fd));
    close(gone.fd);
}

/* Its groups alone are more text than a page. */
static void who_is_in_many_groups(void **state)
{
    gid_t groups[1000], before[1000];
    int n = getgroups(1000, before), pidfd;

    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        groups[i] = 100000 + i;
    if (geteuid() || n < 0 || setgroups(1000, groups))
        skip();
    pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    assert_true(root_of_machine((uint32_t)getpid(), pidfd));
    assert_int_equal(setgroups((size_t)n, before), 0);
    close(pidfd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_who_can_be_looked_at),
        cmocka_unit_test(who_has_ended),
        cmocka_unit_test(who_is_in_many_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
