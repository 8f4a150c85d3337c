/* The keeper: what it decides, in virtual time, and what it does with what commd sends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/process/keeper_life.h"
#include "daemon/process/kept.h"
#include "daemon/process/log.h"

static unsigned logged;

void log_write(enum conf_log_level level, const char *fmt, ...)
{
    logged++;
}

/* ---- decisions ------------------------------------------------------------------------------- */

static int killed_by(int signo)
{
    return W_EXITCODE(0, signo);
}

static int ended_with(int code)
{
    return W_EXITCODE(code, 0);
}

/* A commd that serves since @now. */
static struct keeper_life serving(uint64_t now)
{
    struct keeper_life life = {.state = KEEPER_STARTS};

    keeper_starts(&life, now);
    assert_int_equal(keeper_ready(&life), 0);
    assert_int_equal(life.state, KEEPER_RUNS);
    return life;
}

static struct keeper_life pausing(uint64_t now)
{
    struct keeper_life life = serving(1);

    keeper_ended(&life, killed_by(SIGKILL), now);
    assert_int_equal(life.state, KEEPER_PAUSES);
    return life;
}

static void the_first_one_that_fails_ends_it(void **state)
{
    static const int statuses[] = {0, 1 << 8, 77 << 8, 78 << 8, SIGSEGV, SIGKILL};
    static const int codes[] = {0, 1, 77, 78, 128 + SIGSEGV, 128 + SIGKILL};

    for (unsigned i = 0; i < ARRAY_LEN(statuses); i++) {
        struct keeper_life life = {.state = KEEPER_STARTS};

        keeper_starts(&life, 5);
        keeper_ended(&life, statuses[i], 10);
        assert_int_equal(life.state, KEEPER_OVER);
        assert_int_equal(life.exit_code, codes[i]);
    }
}

static void who_served_is_started_again(void **state)
{
    static const int again[] = {SIGKILL, SIGSEGV, SIGABRT, 1 << 8};
    static const int not_again[] = {0, 64 << 8, 77 << 8, 78 << 8};
    int signo;

    for (unsigned i = 0; i < ARRAY_LEN(again); i++) {
        struct keeper_life life = serving(1);

        keeper_ended(&life, again[i], 5000);
        assert_int_equal(life.state, KEEPER_PAUSES);
        assert_true(keeper_due(&life, 5000, &signo)); /* at once */
        keeper_starts(&life, 5000);
        assert_int_equal(life.state, KEEPER_STARTS);
        assert_int_equal(life.due_ms, UINT64_MAX);
    }
    for (unsigned i = 0; i < ARRAY_LEN(not_again); i++) {
        struct keeper_life life = serving(1);

        keeper_ended(&life, not_again[i], 5000);
        assert_int_equal(life.state, KEEPER_OVER);
        assert_int_equal(life.exit_code, not_again[i] >> 8);
    }
}

static void a_restart_that_was_asked_for_comes_at_once(void **state)
{
    struct keeper_life life = serving(1);
    int signo;

    for (uint64_t now = 10; now < 500; now += 10) {
        keeper_ended(&life, killed_by(SIGUSR1), now);
        assert_true(keeper_due(&life, now, &signo));
        keeper_starts(&life, now);
        assert_int_equal(keeper_ready(&life), 0);
    }
}

/* One that serves, and dies soon after: it is tried for ever, less and less often. */
static void early_deaths_make_it_wait(void **state)
{
    static const uint64_t pauses[] = {0, 100, 200, 400, 800, 1600, 3200, 5000, 5000};
    struct keeper_life life = serving(1);
    uint64_t now = 1;
    int signo;

    for (unsigned i = 0; i < 100; i++) {
        unsigned after = i < 10 ? 0 : i - 9; /* ten may be chance */

        now += 20;
        keeper_ended(&life, killed_by(SIGSEGV), now);
        assert_int_equal(life.due_ms - now, pauses[MIN(after, (unsigned)ARRAY_LEN(pauses) - 1)]);
        if (life.due_ms > now)
            assert_false(keeper_due(&life, life.due_ms - 1, &signo));
        now = life.due_ms;
        assert_true(keeper_due(&life, now, &signo));
        keeper_starts(&life, now);
        assert_int_equal(keeper_ready(&life), 0);
    }
    for (unsigned i = 0; i < 300; i++) { /* it serves for half a minute: forgiven */
        now += RESTART_SOON_MS;
        keeper_ended(&life, killed_by(SIGSEGV), now);
        assert_int_equal(life.due_ms, now);
        keeper_starts(&life, now);
        assert_int_equal(keeper_ready(&life), 0);
    }
}

/* One that serves for a while each time is started at once, but not for ever. */
static void deaths_that_are_not_so_early_make_it_wait_in_the_end(void **state)
{
    struct keeper_life life = serving(1);
    uint64_t now = 1, most = 0;

    (void)state;
    for (unsigned i = 0; i < 120; i++) {
        now += 600;
        keeper_ended(&life, killed_by(SIGSEGV), now);
        assert_int_equal(restarts_wait(&life.restarts), i >= RESTARTS_SOON);
        assert_int_equal(life.due_ms > now, i >= RESTARTS_SOON);
        assert_true(life.due_ms - now >= most);
        most = life.due_ms - now;
        now = life.due_ms;
        keeper_starts(&life, now);
        assert_int_equal(keeper_ready(&life), 0);
    }
    assert_int_equal(most, RESTART_MAX_MS);
}

/* One that does not come up any more is given up, in the end. */
static void who_never_serves_again_is_given_up(void **state)
{
    struct keeper_life life = pausing(5000);
    unsigned starts = 0;
    int signo;

    for (uint64_t now; life.state == KEEPER_PAUSES; starts++) {
        now = life.due_ms;
        assert_true(keeper_due(&life, now, &signo));
        keeper_starts(&life, now);
        keeper_ended(&life, ended_with(1), now + 10);
    }
    assert_int_equal(life.state, KEEPER_OVER);
    assert_int_equal(life.exit_code, 1);
    assert_true(starts > 10 && starts < 30);
}

static void a_signal_is_passed_on(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

    for (unsigned i = 0; i < ARRAY_LEN(signals); i++) {
        struct keeper_life life = serving(1);
        bool ends = signals[i] == SIGTERM || signals[i] == SIGINT;

        assert_int_equal(keeper_asked(&life, signals[i], 10), signals[i]);
        assert_int_equal(life.state, ends ? KEEPER_ENDS : KEEPER_RUNS);
    }
}

/* In each state: commd gets SIGTERM once it can take it, and nothing is started after that. */
static void sigterm_ends_it_in_every_state(void **state)
{
    struct keeper_life life = {.state = KEEPER_STARTS};
    int signo;

    keeper_starts(&life, 1); /* the first start: nobody needs a farewell */
    assert_int_equal(keeper_asked(&life, SIGTERM, 2), SIGTERM);
    assert_int_equal(life.state, KEEPER_ENDS);
    assert_int_equal(keeper_ready(&life), 0);
    keeper_ended(&life, killed_by(SIGTERM), 3);
    assert_int_equal(life.state, KEEPER_OVER);
    assert_int_equal(life.exit_code, 128 + SIGTERM);
    assert_int_equal(keeper_asked(&life, SIGTERM, 4), 0);

    life = serving(1);
    assert_int_equal(keeper_asked(&life, SIGTERM, 10), SIGTERM);
    assert_int_equal(keeper_asked(&life, SIGTERM, 11), SIGTERM); /* commd ends at once by it */
    keeper_ended(&life, ended_with(0), 12);
    assert_int_equal(life.state, KEEPER_OVER);
    assert_int_equal(life.exit_code, 0);

    life = serving(1);
    assert_int_equal(keeper_asked(&life, SIGTERM, 10), SIGTERM);
    keeper_ended(&life, killed_by(SIGKILL), 12); /* and not started again */
    assert_int_equal(life.state, KEEPER_OVER);

    life = pausing(5000); /* a commd comes, to say farewell to clients and remove its files */
    assert_int_equal(keeper_asked(&life, SIGTERM, 5010), 0);
    assert_int_equal(keeper_asked(&life, SIGTERM, 5011), 0);
    assert_true(keeper_due(&life, 5011, &signo));
    keeper_starts(&life, 5012);
    assert_int_equal(keeper_ready(&life), SIGTERM);
    assert_int_equal(life.state, KEEPER_ENDS);
    keeper_ended(&life, ended_with(0), 5020);
    assert_int_equal(life.exit_code, 0);

    life = pausing(5000); /* this one does not get ready */
    keeper_asked(&life, SIGINT, 5010);
    keeper_starts(&life, 5012);
    assert_false(keeper_due(&life, life.due_ms - 1, &signo));
    assert_int_equal(signo, 0);
    assert_false(keeper_due(&life, life.due_ms, &signo));
    assert_int_equal(signo, SIGINT);
    assert_int_equal(life.state, KEEPER_ENDS);
    assert_int_equal(life.due_ms, UINT64_MAX);

    life = pausing(5000); /* neither does this one, and somebody has no patience */
    keeper_starts(&life, 5100);
    assert_int_equal(keeper_asked(&life, SIGTERM, 5110), 0);
    assert_int_equal(keeper_asked(&life, SIGTERM, 5111), SIGTERM);
    keeper_ended(&life, killed_by(SIGTERM), 5112);
    assert_int_equal(life.state, KEEPER_OVER);

    life = pausing(5000); /* this one dies: it is not tried again */
    keeper_asked(&life, SIGTERM, 5010);
    keeper_starts(&life, 5012);
    keeper_ended(&life, killed_by(SIGSEGV), 5015);
    assert_int_equal(life.state, KEEPER_OVER);
}

static void sighup_waits_for_commd(void **state)
{
    struct keeper_life life = pausing(5000);

    assert_int_equal(keeper_asked(&life, SIGHUP, 5010), 0); /* the next one reads the file anyway */
    keeper_starts(&life, 5100);
    assert_int_equal(keeper_asked(&life, SIGHUP, 5110), 0); /* it may have read it already */
    assert_int_equal(keeper_asked(&life, SIGUSR1, 5110), 0);
    assert_int_equal(keeper_ready(&life), SIGHUP);
    assert_int_equal(keeper_ready(&life), 0); /* commd says it again when it has reloaded */
    assert_int_equal(life.state, KEEPER_RUNS);
}

/* Any order of events: the table of states holds, and the keeper can always be ended. */
static void any_order_of_events(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    static const int statuses[] = {0, 1 << 8, 78 << 8, SIGKILL, SIGUSR1, SIGTERM};

    for (unsigned seed = 0; seed < 20000; seed++) {
        struct keeper_life life = {.state = KEEPER_STARTS};
        unsigned random = seed * 2654435761u;
        uint64_t now = 1;
        int signo;

        keeper_starts(&life, now);
        for (unsigned i = 0; i < 40 && life.state != KEEPER_OVER; i++) {
            random = random * 1664525u + 1013904223u;
            now += random >> 21;
            switch (random >> 8 & 7) {
            case 0:
            case 1:
                if (life.state != KEEPER_PAUSES)
                    keeper_ended(&life, statuses[(random >> 12) % ARRAY_LEN(statuses)], now);
                break;
            case 2:
                keeper_asked(&life, signals[(random >> 12) % ARRAY_LEN(signals)], now);
                break;
            case 3:
            case 4:
                if (life.state != KEEPER_PAUSES)
                    keeper_ready(&life);
                break;
            default:
                if (keeper_due(&life, now, &signo))
                    keeper_starts(&life, now);
            }
        }
        if (life.state == KEEPER_OVER)
            continue;
        keeper_asked(&life, SIGTERM, now);
        if (keeper_due(&life, MAX(now, life.state == KEEPER_PAUSES ? life.due_ms : now), &signo))
            keeper_starts(&life, now);
        keeper_ready(&life);
        assert_int_equal(life.state, KEEPER_ENDS);
        keeper_ended(&life, killed_by(SIGKILL), now);
        assert_int_equal(life.state, KEEPER_OVER);
    }
}

/* ---- what commd sends ------------------------------------------------------------------------ */

static int some_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static unsigned open_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 20000; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int setup(void **state)
{
    static struct kept kept;

    logged = 0;
    *state = &kept;
    return kept_init(&kept);
}

static int teardown(void **state)
{
    kept_fini(*state);
    return 0;
}

static bool tell(struct kept *kept, const char *text, unsigned nfds)
{
    int fds[KEPT_FDS_MAX];

    for (unsigned i = 0; i < nfds; i++)
        fds[i] = some_fd();
    return kept_message(kept, text, fds, nfds);
}

static void a_name_is_there_once(void **state)
{
    struct kept *kept = *state;
    unsigned before = open_fds();
    struct stat st;
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    assert_true(tell(kept, "FDSTORE=1\nFDNAME=state\nFDPOLL=0", 1));
    assert_true(kept_message(kept, "FDNAME=state\nFDSTORE=1", &fd, 1));
    assert_int_equal(kept->n, 1);
    assert_string_equal(kept->fds[0].name, "state");
    assert_return_code(fstat(kept->fds[0].fd, &st), errno);
    assert_int_equal(st.st_rdev, 0x105); /* the later one: /dev/zero */
    assert_int_equal(open_fds(), before + 1);
    assert_true(tell(kept, "FDSTORE=1\nFDNAME=nodes", 1));
    assert_true(tell(kept, "FDSTOREREMOVE=1\nFDNAME=state", 0));
    assert_true(tell(kept, "FDSTOREREMOVE=1\nFDNAME=state", 0));
    assert_true(tell(kept, "FDSTOREREMOVE=1\nFDNAME=never", 0));
    assert_int_equal(kept->n, 1);
    assert_string_equal(kept->fds[0].name, "nodes");
    assert_int_equal(kept->name_bytes, strlen("nodes") + 1);
    assert_int_equal(open_fds(), before + 1);
}

static void what_is_no_message_keeps_nothing(void **state)
{
    static const struct {
        const char *text;
        unsigned nfds;
        bool about_fds;
    } bad[] = {
        {"", 3, false},
        {"READY=1", 1, false},
        {"FDNAME=state", 1, false},
        {"FDSTORE=1", 1, true},
        {"FDSTORE=1\nFDNAME=", 1, true},
        {"FDSTORE=1\nFDNAME=state", 0, true},
        {"FDSTORE=1\nFDNAME=state", 2, true},
        {"FDSTORE=1\nFDNAME=state", KEPT_FDS_MAX, true},
        {"FDSTORE=2\nFDNAME=state", 1, true},
        {"FDSTORE=1\nFDNAME=a:b", 1, true},
        {"FDSTORE=1\nFDNAME=a b", 1, true},
        {"FDSTORE=1\nFDNAME=\x80", 1, true},
        {"FDSTORE=1\nFDNAME=../../etc", 1, true},
        {"FDSTOREREMOVE=1\nFDNAME=a b", 1, true},
        {"FDSTOREREMOVE=1", 1, true},
        {"FDSTORE=1\nFDNAME=0123456789012345678901234567890123456789012345678", 1, true},
        {"FDSTORE=11111111111111111111111111111111111111111111111111\nFDNAME=a", 1, false},
        {"\n\n\n", 1, false},
    };
    struct kept *kept = *state;
    unsigned before = open_fds();

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(tell(kept, bad[i].text, bad[i].nfds), bad[i].about_fds);
        assert_int_equal(kept->n, 0);
        assert_int_equal(open_fds(), before);
    }
}

static void what_is_kept_is_bounded(void **state)
{
    struct kept *kept = *state;
    unsigned before = open_fds();
    char text[96];

    for (unsigned i = 0; i < STORE_MAX + 10; i++) {
        snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=n%u", i);
        tell(kept, text, 1);
    }
    assert_int_equal(kept->n, kept->max);
    assert_int_equal(open_fds(), before + kept->max);
    assert_int_equal(logged, STORE_MAX + 10 - kept->max);
    kept_fini(kept);
    assert_int_equal(open_fds(), before);
    kept_init(kept);
    for (unsigned i = 0; i < STORE_MAX; i++) {
        snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=arena.%06u.0123456789abcdef01234567", i);
        tell(kept, text, 1);
    }
    assert_true(kept->name_bytes <= STORE_NAMES_MAX && kept->n > 2000);
}

/* With few descriptors to be had, few are kept, and all of them can be handed over. */
static void few_descriptors_are_enough(void **state)
{
    struct kept *kept = *state;
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = 100};
    pid_t pid = fork();
    char text[64];
    int status;

    if (pid == 0) {
        kept_fini(kept);
        if (setrlimit(RLIMIT_NOFILE, &limit) || kept_init(kept))
            _exit(2);
        for (unsigned i = 0; i < 200; i++) {
            snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=n%u", i);
            tell(kept, text, 1);
        }
        if (kept->n < 10 || kept_hand_over(kept, 0))
            _exit(3);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* As the new commd finds it. */
static void all_is_handed_over(void **state)
{
    struct kept *kept = *state;
    int pipe_ends[2], status;
    char text[64];
    pid_t pid;

    assert_return_code(pipe2(pipe_ends, O_CLOEXEC), errno);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=n%u", i);
        tell(kept, text, 1);
    }
    tell(kept, "FDSTOREREMOVE=1\nFDNAME=n7", 0);
    setenv("WATCHDOG_PID", "1", 1);
    pid = fork();
    if (pid == 0) {
        unsigned n = 0, i = 0;

        if (kept_hand_over(kept, pipe_ends[1]))
            _exit(2);
        kept_fini(kept); /* as FD_CLOEXEC does */
        for (int fd = STORE_FIRST_FD; fd < STORE_FIRST_FD + 300; fd++)
            if (fcntl(fd, F_GETFD) != 0)
                _exit(3);
        if (strcmp(getenv("NOTIFY_SOCKET"), "fd:302") != 0 || write(302, "x", 1) != 1 ||
            atoi(getenv("WATCHDOG_PID")) != getpid())
            _exit(4);
        store_begin();
        for (; store_next(&i); n++)
            ;
        if (n != 299 || !store_is_kept() || fcntl(302, F_GETFD) != FD_CLOEXEC)
            _exit(5);
        if (store_take("n7") >= 0 || store_take("n8") < 0 || store_take("n299") < 0)
            _exit(6);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    unsetenv("WATCHDOG_PID");
    assert_int_equal(read(pipe_ends[0], text, 1), 1);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_one_that_fails_ends_it),
        cmocka_unit_test(who_served_is_started_again),
        cmocka_unit_test(a_restart_that_was_asked_for_comes_at_once),
        cmocka_unit_test(early_deaths_make_it_wait),
        cmocka_unit_test(deaths_that_are_not_so_early_make_it_wait_in_the_end),
        cmocka_unit_test(who_never_serves_again_is_given_up),
        cmocka_unit_test(a_signal_is_passed_on),
        cmocka_unit_test(sigterm_ends_it_in_every_state),
        cmocka_unit_test(sighup_waits_for_commd),
        cmocka_unit_test(any_order_of_events),
        TEST(a_name_is_there_once),
        TEST(what_is_no_message_keeps_nothing),
        TEST(what_is_kept_is_bounded),
        TEST(few_descriptors_are_enough),
        TEST(all_is_handed_over),
    };

    closefrom(3); /* descriptors are counted, and handed over by number */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
