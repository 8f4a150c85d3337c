/* test_ended.c - how processes ended that are not ours to wait for, and that few are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
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
        ended_text(&ended, (uint32_t)pid, now_ms(), text);
        assert_string_equal(text, ends[i].text);
        ended_text(&ended, (uint32_t)pid, now_ms() + 60000, text); /* another one of that number */
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
    ended_text(&ended, (uint32_t)pid, now_ms(), text);
    assert_string_equal(text, "");
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    ended_text(&ended, (uint32_t)pid, now_ms(), text);
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
    ended_text(&ended, (uint32_t)first, now_ms(), text);
    assert_string_equal(text, "exit code 3");
    ended_fini(&ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_zombie_tells),
        cmocka_unit_test(who_lives_tells_later),
        cmocka_unit_test(few_are_kept_of_a_user),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
