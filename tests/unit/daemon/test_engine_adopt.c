/* test_engine_adopt.c - an engine goes on when its commd dies, and the next one takes it over. Each
 * commd is a child of the test, which plays the manager that keeps descriptors. The engine is this
 * program itself, started again, with the real control.c; orphans become children of the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/link/engine_link.h"
#include "daemon/link/engine_spawn.h"
#include "daemon/process/store.h"
#include "shm/launch/launch.h"
#include "transport/process/control.h"

enum { LIMIT_S = 300, IN_ORDER = 7, KEPT_MAX = 8, MANAGER_FD = 100 };

/* ---- the engine ------------------------------------------------------------------------- */

static void engine_says_hello(struct control *c, bool resumed)
{
    struct msg msg = {.type = MSG_ENGINE_HELLO};

    msg.engine_hello.version = MSG_VERSION;
    msg.engine_hello.resumed = resumed;
    control_send(c, &msg, -1);
}

/* Answers each PING, and with seq 1 sends until the socket is full. */
static void engine_answers(struct control *c, struct msg *msg)
{
    msg->ping.pong = 1;
    for (unsigned i = 0; i < (msg->ping.seq == 1 ? 20000 : 1); i++)
        control_send(c, msg, -1);
}

static int engine_main(void)
{
    struct control c;

    if (control_begin(&c, 3))
        return 1;
    engine_says_hello(&c, false);
    for (;;) {
        struct pollfd p = {.fd = control_fd(&c), .events = POLLIN};
        struct msg msg;
        int fd;

        switch (control_next(&c, &msg, &fd)) {
        case CONTROL_NONE:
            poll(&p, 1, -1);
            break;
        case CONTROL_MSG:
            engine_answers(&c, &msg);
            close_fdp(&fd);
            msg_fini(&msg);
            break;
        case CONTROL_NEW:
            engine_says_hello(&c, true);
            break;
        case CONTROL_END:
            control_fini(&c);
            return IN_ORDER;
        }
    }
}

/* ---- a commd ---------------------------------------------------------------------------- */

/* Asserts of cmocka would go on with the next test, in the child. */
#define check(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

struct commd {
    struct event_base *base;
    struct engine_link *link;
    unsigned starts, hellos, resumed, pongs, downs;
    char down[MSG_TEXT_MAX];
};

/* What one commd leaves for the next in this test. */
static struct engine_kept *record; /* shared */

static void on_started(void *arg, uint32_t pid)
{
    ((struct commd *)arg)->starts++;
}

static void on_msg(void *arg, const struct msg *msg)
{
    struct commd *d = arg;

    d->pongs += msg->type == MSG_PING;
    d->hellos += msg->type == MSG_ENGINE_HELLO;
    d->resumed += msg->type == MSG_ENGINE_HELLO && msg->engine_hello.resumed;
}

static void on_down(void *arg, const char *text)
{
    struct commd *d = arg;

    d->downs++;
    snprintf(d->down, sizeof(d->down), "%s", text);
}

#define run_until(d, condition)                                                                    \
    do {                                                                                           \
        while (!(condition))                                                                       \
            event_base_loop((d)->base, EVLOOP_ONCE);                                               \
    } while (0)

static void commd_begins(struct commd *d)
{
    static const struct engine_link_ops ops = {on_started, on_msg, on_down};
    struct program program;
    struct engine_link_config config = {
        .program = &program, .name = "engine", .pid_file = "", .ops = &ops, .arg = d};
    struct conf *conf;
    char *error = NULL;

    alarm(LIMIT_S);
    setenv("COMMD_ENGINE", "/proc/self/exe", 1);
    store_begin();
    check(store_is_kept());
    d->base = config.base = event_base_new();
    check(!conf_load("test", "", 0, &conf, &error));
    program_engine(conf, "lo", &program);
    conf_free(conf);
    check(!engine_link_new(&config, &d->link));
}

static void ping(struct commd *d, uint64_t seq)
{
    struct msg msg = {.type = MSG_PING, .ping = {.seq = seq}};

    engine_link_send(d->link, &msg, NULL, 0);
}

static void starts_one(struct commd *d)
{
    engine_link_start(d->link);
    run_until(d, d->hellos);
    check(!d->resumed);
    engine_link_kept(d->link, record);
}

static void adopts(struct commd *d)
{
    check(!engine_link_adopt(d->link, record));
    check(engine_link_life(d->link));
    check(engine_link_is(d->link, record->pid, record->uid));
}

static void goes_on(struct commd *d)
{
    struct engine_kept is;

    adopts(d);
    ping(d, 5);
    run_until(d, d->pongs);
    check(d->hellos == 1 && d->resumed == 1 && !d->starts && !d->downs);
    engine_link_kept(d->link, &is);
    check(!memcmp(&is, record, sizeof(is)));
}

static void ends_it(struct commd *d)
{
    goes_on(d);
    engine_link_free(d->link);
}

/* ---- the manager ------------------------------------------------------------------------ */

static struct kept {
    char name[STORE_NAME_MAX];
    int fd;
} kept[KEPT_MAX];
static unsigned nkept;

static void forget(const char *name)
{
    for (unsigned i = 0; i < nkept; i++)
        if (!strcmp(kept[i].name, name)) {
            close(kept[i].fd);
            kept[i] = kept[--nkept];
        }
}

static void manager_takes(int manager)
{
    char buf[256], control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));

    for (;;) {
        struct iovec iov = {buf, sizeof(buf) - 1};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(manager, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        char *name;

        if (n <= 0)
            return;
        buf[n] = '\0';
        name = strstr(buf, "FDNAME=") + strlen("FDNAME=");
        name[strcspn(name, "\n")] = '\0';
        forget(name);
        if (!CMSG_FIRSTHDR(&mh))
            continue;
        assert_true(nkept < KEPT_MAX);
        snprintf(kept[nkept].name, STORE_NAME_MAX, "%s", name);
        memcpy(&kept[nkept++].fd, CMSG_DATA(CMSG_FIRSTHDR(&mh)), sizeof(int));
    }
}

static void hands_over(void)
{
    char names[512] = "", text[16];
    int up[KEPT_MAX];

    for (unsigned i = 0; i < nkept; i++) {
        up[i] = fcntl(kept[i].fd, F_DUPFD, 200);
        strcat(strcat(names, kept[i].name), ":");
    }
    for (unsigned i = 0; i < nkept; i++)
        dup2(up[i], 3 + (int)i);
    close_range(3 + nkept, MANAGER_FD - 1, 0);
    close_range(MANAGER_FD + 1, ~0u, 0);
    snprintf(text, sizeof(text), "%d", (int)getpid());
    setenv("LISTEN_PID", text, 1);
    snprintf(text, sizeof(text), "%u", nkept);
    setenv("LISTEN_FDS", text, 1);
    setenv("LISTEN_FDNAMES", names, 1);
    snprintf(text, sizeof(text), "fd:%d", MANAGER_FD);
    setenv("NOTIFY_SOCKET", text, 1);
}

/* A commd that does @does and dies. */
static void commd(void (*does)(struct commd *d))
{
    int pair[2], status;
    pid_t pid;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid = fork();
    if (pid == 0) {
        struct commd d = {0};

        dup2(pair[1], MANAGER_FD);
        hands_over();
        commd_begins(&d);
        does(&d);
        _exit(0);
    }
    close(pair[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    manager_takes(pair[0]);
    close(pair[0]);
    assert_int_equal(status, 0);
}

static bool is_kept(const char *name)
{
    for (unsigned i = 0; i < nkept; i++)
        if (!strcmp(kept[i].name, name))
            return true;
    return false;
}

/* The end of the engine, which is an orphan. */
static int engine_status(void)
{
    int status = -1;
    pid_t pid = 0;

    for (unsigned ms = 0; !pid && ms < LIMIT_S * 1000; ms += 5) {
        pid = waitpid((pid_t)record->pid, &status, WNOHANG);
        if (!pid)
            poll(NULL, 0, 5);
    }
    assert_int_equal(pid, record->pid);
    return status;
}

static int setup(void **state)
{
    record = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static int teardown(void **state)
{
    while (nkept)
        forget(kept[0].name);
    munmap(record, 4096);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------ */

static void the_next_commd_takes_it_over(void **state)
{
    commd(starts_one);
    assert_true(is_kept("engine.line") && is_kept("engine.pid") && !is_kept("engine.launch"));
    for (unsigned i = 0; i < 3; i++)
        commd(goes_on);
    commd(ends_it);
    assert_int_equal(nkept, 0);
    assert_int_equal(engine_status(), W_EXITCODE(IN_ORDER, 0));
}

static void it_ends_when_nobody_keeps_its_line(void **state)
{
    commd(starts_one);
    forget("engine.line");
    assert_int_equal(engine_status(), W_EXITCODE(IN_ORDER, 0));
}

/* The socket lies in the line when its commd dies. */
static void of_many_commds_the_last_counts(void **state)
{
    commd(starts_one);
    kill((pid_t)record->pid, SIGSTOP);
    commd(adopts);
    commd(adopts);
    kill((pid_t)record->pid, SIGCONT);
    commd(ends_it);
    assert_int_equal(engine_status(), W_EXITCODE(IN_ORDER, 0));
}

/* It dies in the middle of a frame that it writes, and of those that it is sent. */
static void starts_and_writes_a_part(struct commd *d)
{
    struct msg msg = {.type = MSG_BOARD_DEL};

    starts_one(d);
    ping(d, 1);
    run_until(d, d->pongs > 10);
    memset(msg.board.text, 'x', sizeof(msg.board.text) - 1);
    kill((pid_t)record->pid, SIGSTOP);
    for (unsigned i = 0; i < 2000; i++)
        engine_link_send(d->link, &msg, NULL, 0);
}

static void parts_of_frames_are_forgotten(void **state)
{
    commd(starts_and_writes_a_part);
    kill((pid_t)record->pid, SIGCONT);
    commd(ends_it);
    assert_int_equal(engine_status(), W_EXITCODE(IN_ORDER, 0));
}

static void finds_none(struct commd *d)
{
    check(engine_link_adopt(d->link, record));
    check(!engine_link_life(d->link) && !d->downs);
    starts_one(d); /* a new one */
    engine_link_free(d->link);
}

static void one_that_ended_in_the_gap_is_not_taken(void **state)
{
    commd(starts_one);
    kill((pid_t)record->pid, SIGKILL);
    assert_int_equal(engine_status(), W_EXITCODE(0, SIGKILL));
    commd(finds_none);
    assert_int_equal(nkept, 0);
}

static void does_not_want_it(struct commd *d)
{
    check(engine_link_adopt(d->link, NULL));
    check(!engine_link_life(d->link));
}

static void one_that_is_not_wanted_is_ended(void **state)
{
    commd(starts_one);
    commd(does_not_want_it);
    assert_int_equal(nkept, 0);
    assert_int_equal(engine_status(), W_EXITCODE(IN_ORDER, 0));
}

static void one_that_hangs_is_killed(void **state)
{
    commd(starts_one);
    kill((pid_t)record->pid, SIGSTOP);
    commd(does_not_want_it);
    assert_int_equal(engine_status(), W_EXITCODE(0, SIGKILL));
}

static void sees_it_die(struct commd *d)
{
    goes_on(d);
    engine_link_kill(d->link);
    run_until(d, d->downs);
    check(!strcmp(d->down, "it has ended; how is not known, because the commd before this one had "
                           "started it"));
    check(!engine_link_life(d->link));
}

static void how_it_ended_cannot_be_asked(void **state)
{
    commd(starts_one);
    commd(sees_it_die);
    assert_int_equal(nkept, 0);
    assert_int_equal(engine_status(), W_EXITCODE(0, SIGKILL));
}

/* ---- by a launcher ---------------------------------------------------------------------- */

static void is_told_by_the_launcher(struct commd *d)
{
    check(!engine_link_adopt(d->link, record));
    run_until(d, d->downs);
    check(!strcmp(d->down, "killed by signal 6"));
}

/* The launcher told the end when no commd was there; the line is open, as by a leaked descriptor.
 */
static void the_launchers_last_word_is_read(void **state)
{
    struct launch_answer end = {.kind = LAUNCH_EXITED, .code = CLD_KILLED, .value = SIGABRT};
    int line[2], launcher[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, launcher), 0);
    kept[0] = (struct kept){"engine.line", line[0]};
    kept[1] = (struct kept){"engine.launch", launcher[0]};
    nkept = 2;
    *record = (struct engine_kept){.pid = 1, .uid = 4003};
    assert_int_equal(write(launcher[1], &end, sizeof(end)), sizeof(end));
    commd(is_told_by_the_launcher);
    assert_int_equal(nkept, 0);
    close(line[1]);
    close(launcher[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(the_next_commd_takes_it_over),
        T(it_ends_when_nobody_keeps_its_line),
        T(of_many_commds_the_last_counts),
        T(parts_of_frames_are_forgotten),
        T(one_that_ended_in_the_gap_is_not_taken),
        T(one_that_is_not_wanted_is_ended),
        T(one_that_hangs_is_killed),
        T(how_it_ended_cannot_be_asked),
        T(the_launchers_last_word_is_read),
#undef T
    };

    if (argc > 1 && strcmp(argv[1], "--fd") == 0)
        return engine_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
