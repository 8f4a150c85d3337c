/* test_ended.c - how processes ended that are not ours to wait for, and that few are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "daemon/process/ended.h"
#include "shm/util/wait.h"

/* A child that has ended, and that nobody has taken note of; @code: what it exits with, or < 0: the
 * signal that ends it. */
static pid_t child(int code, int *ret_pidfd)
{
    siginfo_t info;
    pid_t pid = fork();

    if (pid == 0) {
        if (code < 0)
            raise(-code);
        _exit(code);
    }
    *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(*ret_pidfd >= 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    return pid;
}

static void what_a_zombie_tells(void **state)
{
    static const struct {
        int code;
        const char *text;
    } ends[] = {{0, "exit code 0"}, {7, "exit code 7"}, {-SIGKILL, "signal 9 (KILL)"}};
    char text[ENDED_TEXT];
    struct ended ended;
    int pidfd;

    (void)state;
    ended_init(&ended);
    for (unsigned i = 0; i < ARRAY_LEN(ends); i++) {
        pid_t pid = child(ends[i].code, &pidfd);

        ended_note(&ended, getuid(), (uint32_t)pid, pidfd);
        close(pidfd);
        waitpid(pid, NULL, 0);
        ended_text(&ended, (uint32_t)pid, now_ms(), false, text);
        assert_string_equal(text, ends[i].text);
        ended_text(&ended, (uint32_t)pid, now_ms() - 2000, true, text);
        assert_memory_equal(text, ends[i].text, strlen(ends[i].text));
        assert_string_equal(text + strlen(ends[i].text), ", 2 s ago");
        ended_text(&ended, (uint32_t)pid, now_ms() + 60000, false,
                   text); /* another one of that number */
        assert_string_equal(text, "");
    }
    ended_fini(&ended);
}

/* Who lives, and has only closed its connection, tells nothing; later it does, where the kernel
 * can.
 */
static void who_lives_tells_later(void **state)
{
    char text[ENDED_TEXT];
    struct ended ended;
    pid_t pid = fork();
    int pidfd;

    (void)state;
    if (pid == 0) {
        pause();
        _exit(0);
    }
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    ended_init(&ended);
    ended_note(&ended, getuid(), (uint32_t)pid, pidfd);
    close(pidfd);
    ended_text(&ended, (uint32_t)pid, now_ms(), false, text);
    assert_string_equal(text, "");
    ended_text(&ended, (uint32_t)pid, now_ms(), true, text); /* else it is an end, to commctl */
    assert_string_equal(text, "");
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    ended_text(&ended, (uint32_t)pid, now_ms(), false, text);
    if (*text) /* Linux 6.15 */
        assert_string_equal(text, "signal 15 (TERM)");
    ended_fini(&ended);
}

/* One user's crowd does not push out what others ask about. */
static void few_are_kept_of_a_user(void **state)
{
    char text[ENDED_TEXT];
    struct ended ended;
    pid_t first, last = 0;
    int pidfd;

    (void)state;
    ended_init(&ended);
    first = child(3, &pidfd);
    ended_note(&ended, getuid(), (uint32_t)first, pidfd);
    close(pidfd);
    waitpid(first, NULL, 0);
    for (unsigned i = 0; i < 2 * ENDED_MOST; i++) {
        last = child(4, &pidfd);
        ended_note(&ended, getuid() + 1, (uint32_t)last, pidfd);
        close(pidfd);
        waitpid(last, NULL, 0);
    }
    ended_text(&ended, (uint32_t)first, now_ms(), false, text);
    assert_string_equal(text, "exit code 3");
    ended_fini(&ended);
}

/* Nor does the user's own crowd of programs that ended well, as each commctl does. */
static void a_failed_one_outlasts_those_that_ended_well(void **state)
{
    char text[ENDED_TEXT];
    struct ended ended;
    pid_t failed, well;
    int pidfd;

    (void)state;
    ended_init(&ended);
    failed = child(-SIGKILL, &pidfd);
    ended_note(&ended, getuid(), (uint32_t)failed, pidfd);
    close(pidfd);
    waitpid(failed, NULL, 0);
    for (unsigned i = 0; i < 2 * ENDED_MAX_USER; i++) {
        well = child(0, &pidfd);
        ended_note(&ended, getuid(), (uint32_t)well, pidfd);
        close(pidfd);
        waitpid(well, NULL, 0);
        ended_text(&ended, (uint32_t)well, now_ms(), false, text);
        assert_string_equal(text, "exit code 0");
    }
    ended_text(&ended, (uint32_t)failed, now_ms(), false, text);
    assert_string_equal(text, "signal 9 (KILL)");
    ended_fini(&ended);
}

/* Root without CAP_SYS_PTRACE reads a 0 in proc(5) of others: that is no exit code. */
static int ask_unprivileged(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
    char text[ENDED_TEXT];
    struct ended ended;
    siginfo_t info;
    pid_t pid = fork();
    int pidfd;

    if (pid == 0) {
        if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
            _exit(1);
        raise(SIGKILL);
    }
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    syscall(SYS_capget, &header, caps);
    caps[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
    syscall(SYS_capset, &header, caps);
    ended_init(&ended);
    ended_note(&ended, 65534, (uint32_t)pid, pidfd);
    ended_text(&ended, (uint32_t)pid, now_ms(), false, text);
    ended_fini(&ended);
    return *text && strcmp(text, "signal 9 (KILL)");
}

static void what_the_kernel_hides_is_not_known(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    if (geteuid())
        skip();
    pid = fork();
    if (pid == 0)
        _exit(ask_unprivileged());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_zombie_tells),
        cmocka_unit_test(who_lives_tells_later),
        cmocka_unit_test(what_the_kernel_hides_is_not_known),
        cmocka_unit_test(few_are_kept_of_a_user),
        cmocka_unit_test(a_failed_one_outlasts_those_that_ended_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
