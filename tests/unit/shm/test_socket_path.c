/* test_socket_path.c - connecting to a daemon that is too busy to accept, while signals arrive. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "shm/util/socket_path.h"
#include "shm/util/wait.h"

static _Atomic unsigned signals;

static void on_alarm(int sig)
{
    atomic_fetch_add(&signals, 1);
}

struct busy {
    char dir[32], path[64];
    int listener, queued;
};

/* A listener whose backlog is full: one has connected, and nobody accepts. */
static void busy_start(struct busy *b)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    strcpy(b->dir, "/tmp/commd-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->path, sizeof b->path, "%s/sock", b->dir);
    strcpy(un.sun_path, b->path);
    b->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(b->listener, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(b->listener, 0), 0);
    assert_int_equal(place_connect(b->path, 1000, &b->queued), 0);
}

static void busy_end(struct busy *b)
{
    close(b->listener);
    close(b->queued);
    unlink(b->path);
    rmdir(b->dir);
}

/* Every 2 ms, without SA_RESTART. */
static void signals_on(bool on)
{
    struct sigaction sa = {.sa_handler = on ? on_alarm : SIG_IGN};
    struct itimerval every = {{0, on ? 2000 : 0}, {0, on ? 2000 : 0}};

    assert_int_equal(sigaction(SIGALRM, &sa, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
}

/* Accepts when a few signals have interrupted the other thread. */
static void *accept_late(void *arg)
{
    struct busy *b = arg;
    unsigned from = atomic_load(&signals);
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (atomic_load(&signals) - from < 5)
        sched_yield();
    close(accept(b->listener, NULL, NULL));
    return NULL;
}

static void a_signal_does_not_end_a_connect(void **state)
{
    int64_t limits[] = {20000, 0};
    struct busy b;
    pthread_t t;
    int sock;

    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        busy_start(&b);
        signals_on(true);
        assert_int_equal(pthread_create(&t, NULL, accept_late, &b), 0);
        assert_int_equal(place_connect(b.path, limits[i], &sock), 0);
        signals_on(false);
        pthread_join(t, NULL);
        close(sock);
        busy_end(&b);
    }
}

/* Nor do they put its end off for ever. */
static void signals_do_not_lengthen_a_connect(void **state)
{
    struct busy b;
    int sock;

    busy_start(&b);
    signals_on(true);
    assert_int_equal(place_connect(b.path, 100, &sock), -ETIMEDOUT);
    signals_on(false);
    busy_end(&b);
}

/* Two users whom nothing else on the machine has, nor another run of this test. */
static unsigned somebody, stranger;

enum { NAMES = 16 };

static const char *name_of(int i)
{
    static char names[2][PLACE_MAX];
    static unsigned turn;
    char *name = names[turn++ % 2];

    if (i)
        snprintf(name, PLACE_MAX, "/tmp/commd-%u.%d", somebody, i);
    else
        snprintf(name, PLACE_MAX, "/tmp/commd-%u", somebody);
    return name;
}

static const char *run_user(void)
{
    static char name[PLACE_MAX];

    snprintf(name, sizeof name, "/run/user/%u", somebody);
    return name;
}

static int names_begin(void **state)
{
    somebody = 1000000000 + 2 * (unsigned)getpid();
    stranger = somebody + 1;
    unsetenv("XDG_RUNTIME_DIR");
    return 0;
}

/* Also after an assertion that failed. */
static int names_end(void **state)
{
    char dir[PLACE_MAX + 8];

    if (geteuid() && seteuid(0))
        return 0;
    for (int i = 0; i < NAMES; i++)
        remove(name_of(i));
    snprintf(dir, sizeof dir, "%s/commd", run_user());
    remove(dir);
    remove(run_user());
    return 0;
}

static void made_by(unsigned uid, const char *dir, mode_t mode)
{
    assert_int_equal(mkdir(dir, 0755), 0);
    assert_int_equal(chown(dir, uid, uid), 0);
    assert_int_equal(chmod(dir, mode), 0);
}

static void own_dir_is(const char *wanted, int result)
{
    const char *why;
    char dir[PLACE_MAX];
    int fd = -1;

    assert_int_equal(seteuid(somebody), 0);
    place_own_dir(dir);
    assert_string_equal(dir, wanted);
    assert_int_equal(place_open_dir(dir, true, &fd, &why), result);
    assert_int_equal(seteuid(0), 0);
    if (fd >= 0)
        close(fd);
}

/* Who has taken the name of another user's directory does not keep that user from having one, and
 * does not move it when it is there. */
static void a_name_that_others_have_taken(void **state)
{
    if (geteuid())
        skip();
    made_by(stranger, name_of(0), 0755);
    assert_int_equal(symlink("/", name_of(1)), 0);
    own_dir_is(name_of(2), 0);
    rmdir(name_of(0));
    own_dir_is(name_of(2), 0);
    rmdir(name_of(2));
    own_dir_is(name_of(0), 0);
    rmdir(name_of(0));
    unlink(name_of(1));
    for (int i = 0; i < NAMES; i++)
        made_by(stranger, name_of(i), 0755);
    own_dir_is(name_of(0), -EPERM);
}

/* Only a directory is one. */
static void a_file_or_link_of_ones_own(void **state)
{
    if (geteuid())
        skip();
    assert_int_equal(seteuid(somebody), 0);
    close(open(name_of(0), O_WRONLY | O_CREAT | O_EXCL, 0600));
    assert_int_equal(symlink("/", name_of(1)), 0);
    assert_int_equal(seteuid(0), 0);
    own_dir_is(name_of(2), 0);
}

static void the_directory_of_logind_comes_before_tmp(void **state)
{
    char wanted[PLACE_MAX + 8];

    if (geteuid() || (mkdir("/run/user", 0755) && errno != EEXIST))
        skip();
    snprintf(wanted, sizeof wanted, "%s/commd", run_user());
    made_by(somebody, run_user(), 0755); /* not as logind makes it */
    own_dir_is(name_of(0), 0);
    chmod(run_user(), 0700);
    own_dir_is(wanted, 0);
    assert_int_equal(chown(run_user(), stranger, stranger), 0);
    own_dir_is(name_of(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_does_not_end_a_connect),
        cmocka_unit_test(signals_do_not_lengthen_a_connect),
        cmocka_unit_test_setup_teardown(a_name_that_others_have_taken, names_begin, names_end),
        cmocka_unit_test_setup_teardown(a_file_or_link_of_ones_own, names_begin, names_end),
        cmocka_unit_test_setup_teardown(the_directory_of_logind_comes_before_tmp, names_begin,
                                        names_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
