/* test_engine_link.c - commd's end of the engine: starting, talking, every way to die. The
 * engine is this program itself, started again; "--node" tells it how to behave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "daemon/link/engine_link.h"
#include "daemon/link/engine_spawn.h"
#include "shm/proto/codec.h"
#include "tests/lib/heap_has.h"

enum { LIMIT_S = 300 };

/* ---- the engine ------------------------------------------------------------------------- */

static void say(const char *text)
{
    struct msg msg = {.type = MSG_ENGINE_HELLO};

    msg.engine_hello.version = MSG_VERSION;
    msg.engine_hello.pid = (uint32_t)getpid();
    snprintf(msg.engine_hello.text, sizeof(msg.engine_hello.text), "%s", text);
    msg_send_fd(3, &msg, NULL, 0, -1);
}

static int env_report(int argc, char **argv)
{
    char text[MSG_TEXT_MAX] = "";
    size_t used = 0;

    for (int i = 1; i < argc; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s ", argv[i]);
    snprintf(text + used, sizeof(text) - used, "| %s %s %s %s | fd4 %s",
             getenv("UCX_HANDLE_ERRORS") ? getenv("UCX_HANDLE_ERRORS") : "-",
             getenv("UCX_TLS") ? "UCX_TLS" : "-", getenv("NOTIFY_SOCKET") ? "NOTIFY" : "-",
             getenv("HOME") ? getenv("HOME") : "-", fcntl(4, F_GETFD) < 0 ? "closed" : "open");
    say(text);
    return 0;
}

/* Answers every message with the inode of the descriptor that came with it, or says the same. */
static int echo(bool back)
{
    for (;;) {
        struct msg in, out = {.type = MSG_PING};
        const char *why;
        struct stat st = {0};
        unsigned n = 0;
        int fd = -1;

        if (msg_recv_fd(3, &in, &fd, 1, &n, -1, &why))
            return 0; /* commd closed the socket */
        if (n == 1)
            fstat(fd, &st);
        close_fdp(&fd);
        if (back)
            msg_send_fd(3, &in, NULL, 0, -1);
        msg_fini(&in);
        if (back)
            continue;
        out.ping.seq = st.st_ino;
        out.ping.pong = n;
        msg_send_fd(3, &out, NULL, 0, -1);
    }
}

static int engine_main(int argc, char **argv)
{
    const char *mode = "";

    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--node") == 0)
            mode = argv[i + 1];
    if (strcmp(mode, "env") == 0)
        return env_report(argc, argv);
    if (strcmp(mode, "echo") == 0)
        return echo(false);
    if (strcmp(mode, "echo back") == 0)
        return echo(true);
    if (strcmp(mode, "exit3") == 0) {
        say("last words");
        return 3;
    }
    if (strcmp(mode, "garbage") == 0 && write(3, "what?   ", 8) != 8)
        return 1;
    if (strcmp(mode, "silent") == 0)
        close(3);
    signal(SIGTERM, SIG_IGN);
    for (;;)
        pause();
}

/* ---- commd ------------------------------------------------------------------------------ */

struct world {
    struct event_base *base;
    struct event *limit;
    struct conf *conf;
    struct engine_link *link;
    unsigned starts, msgs, downs;
    uint32_t pid;
    struct msg msg; /* the last */
    char down[MSG_TEXT_MAX];
    char pid_file[64];
};

static void on_started(void *arg, uint32_t pid)
{
    struct world *w = arg;

    w->starts++;
    w->pid = pid;
}

static void on_msg(void *arg, const struct msg *msg)
{
    struct world *w = arg;

    w->msgs++;
    w->msg = *msg;
}

static void on_down(void *arg, const char *text)
{
    struct world *w = arg;

    w->downs++;
    snprintf(w->down, sizeof(w->down), "%s", text);
}

static const struct engine_link_ops ops = {.started = on_started, .msg = on_msg, .down = on_down};

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    fail_msg("nothing more happened within %d s", LIMIT_S);
}

#define run_until(w, condition)                                                                    \
    do {                                                                                           \
        while (!(condition))                                                                       \
            event_base_loop((w)->base, EVLOOP_ONCE);                                               \
    } while (0)

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct timeval tv = {.tv_sec = LIMIT_S};
    char *error = NULL;

    w->base = event_base_new();
    w->limit = evtimer_new(w->base, too_late, w);
    evtimer_add(w->limit, &tv);
    assert_int_equal(conf_load("test", "", 0, &w->conf, &error), 0);
    snprintf(w->pid_file, sizeof(w->pid_file), "/tmp/test_engine_link.%d.pid", getpid());
    snprintf(w->conf->engine_pid_file, sizeof(w->conf->engine_pid_file), "%s", w->pid_file);
    setenv("COMMD_ENGINE", "/proc/self/exe", 1);
    *state = w;
    return 0;
}

static void make(struct world *w, const char *mode)
{
    struct program program;
    struct engine_link_config config = {.base = w->base,
                                        .program = &program,
                                        .name = "engine",
                                        .pid_file = w->conf->engine_pid_file,
                                        .ops = &ops,
                                        .arg = w};

    snprintf(w->conf->node, sizeof(w->conf->node), "%s", mode);
    program_engine(w->conf, "lo", &program);
    assert_int_equal(engine_link_new(&config, &w->link), 0);
}

static void start(struct world *w, const char *mode)
{
    make(w, mode);
    engine_link_start(w->link);
    assert_int_equal(w->starts + w->downs, 0); /* not from within a call */
    run_until(w, w->starts || w->downs);
}

static int teardown(void **state)
{
    struct world *w = *state;

    w->link = engine_link_free(w->link);
    assert_int_equal(access(w->pid_file, F_OK), -1);
    event_free(w->limit);
    event_base_free(w->base);
    conf_free(w->conf);
    free(w);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------ */

static void it_gets_its_arguments_and_no_secrets(void **state)
{
    struct world *w = *state;

    setenv("UCX_TLS", "rc", 1);
    setenv("NOTIFY_SOCKET", "/run/x", 1);
    setenv("HOME", "/h", 1);
    start(w, "env");
    unsetenv("NOTIFY_SOCKET");
    run_until(w, w->downs);
    assert_int_equal(w->msgs, 1);
    assert_string_equal(
        w->msg.engine_hello.text,
        "--fd 3 --device lo --fabric tcp --tls tcp --ports 18500-18599 --channels 1 "
        "--congestion auto --encryption auto --encryption-threads auto --trusted no "
        "--mend-ms 3000 --node env --log info "
        "| none - - /h | fd4 closed");
    assert_string_equal(w->down, "exited with status 0");
}

static void descriptors_ride_along(void **state)
{
    struct world *w = *state;
    struct msg msg = {.type = MSG_DOORBELL_ADD};
    int fds[2];
    struct stat st;
    uint32_t pid;

    start(w, "echo");
    assert_int_equal(w->starts, 1);
    assert_int_equal(access(w->pid_file, R_OK), 0);
    assert_int_equal(pipe(fds), 0);
    fstat(fds[0], &st);
    for (unsigned i = 0; i < 1000; i++)
        engine_link_send(w->link, &msg, fds, 1);
    close(fds[0]);
    close(fds[1]);
    run_until(w, w->msgs == 1000);
    assert_int_equal(w->msg.type, MSG_PING);
    assert_int_equal(w->msg.ping.pong, 1);
    assert_int_equal(w->msg.ping.seq, st.st_ino);
    pid = w->pid;
    w->link = engine_link_free(w->link); /* ends it, and reaps it */
    assert_int_equal(kill((pid_t)pid, 0), -1);
    assert_int_equal(w->downs, 0);
}

static void last_words_come_before_the_exit(void **state)
{
    struct world *w = *state;

    start(w, "exit3");
    run_until(w, w->downs);
    assert_int_equal(w->msgs, 1);
    assert_string_equal(w->msg.engine_hello.text, "last words");
    assert_string_equal(w->down, "exited with status 3");
    assert_int_equal(engine_link_life(w->link), 0);
}

static void it_is_killed(void **state)
{
    struct world *w = *state;

    start(w, "hang");
    engine_link_kill(w->link);
    run_until(w, w->downs);
    assert_string_equal(w->down, "killed by signal 9");
}

static void a_closed_socket_is_its_end(void **state)
{
    struct world *w = *state;

    start(w, "silent");
    run_until(w, w->downs);
    assert_string_equal(w->down, "killed by signal 9");
}

static void nonsense_is_its_end(void **state)
{
    struct world *w = *state;

    start(w, "garbage");
    run_until(w, w->downs);
    assert_int_equal(w->msgs, 0);
    assert_string_equal(w->down, "killed by signal 9");
}

static void who_does_not_read_is_killed(void **state)
{
    struct world *w = *state;
    struct msg msg = {.type = MSG_BOARD_DEL};

    start(w, "hang");
    memset(msg.board.text, 'x', sizeof(msg.board.text) - 1);
    for (unsigned i = 0; i < 200000 && !w->downs; i++)
        engine_link_send(w->link, &msg, NULL, 0);
    run_until(w, w->downs);
    assert_string_equal(w->down,
                        "killed: BOARD_DEL could not be sent to it: No buffer space available");
}

static void there_is_no_such_program(void **state)
{
    struct world *w = *state;

    setenv("COMMD_ENGINE", "/none/commd-engine", 1);
    start(w, "x");
    assert_int_equal(w->starts, 0);
    assert_string_equal(w->down, "cannot start /none/commd-engine: No such file or directory");
    engine_link_start(w->link); /* the core tries again, and is answered again */
    run_until(w, w->downs == 2);
}

static void tokens_are_of_one_life_and_one_node(void **state)
{
    struct world *w = *state;
    uint8_t a[32], again[32], b[32], next[32];
    unsigned life;

    start(w, "hang");
    life = engine_link_life(w->link);
    assert_int_not_equal(life, 0);
    assert_int_equal(engine_link_token(w->link, "a", a), 0);
    assert_int_equal(engine_link_token(w->link, "a", again), 0);
    assert_int_equal(engine_link_token(w->link, "b", b), 0);
    assert_memory_equal(a, again, 32);
    assert_memory_not_equal(a, b, 32);
    engine_link_kill(w->link);
    run_until(w, w->downs);
    engine_link_start(w->link);
    run_until(w, w->starts == 2);
    assert_int_not_equal(engine_link_life(w->link), life);
    assert_int_equal(engine_link_token(w->link, "a", next), 0);
    assert_memory_not_equal(a, next, 32);
}

/* Neither of what went to the engine nor of what came from it. */
static void secrets_do_not_stay(void **state)
{
    struct world *w = *state;
    struct msg msg = {.type = MSG_ENGINE_PEER_KEY};
    uint8_t secret[32];

    if (!heap_is_seen())
        skip();
    memset(secret, 0xc4, sizeof(secret));
    memset(msg.engine_peer_key.secret, 0xc4, 32);
    hide(secret, sizeof(secret));
    msg.engine_peer_key.engine = 1;
    start(w, "echo back");
    for (unsigned i = 0; i < 200; i++) /* so buffers grow */
        engine_link_send(w->link, &msg, NULL, 0);
    run_until(w, w->msgs == 200);
    assert_int_equal(w->msg.type, MSG_ENGINE_PEER_KEY);
    explicit_bzero(&w->msg, sizeof(w->msg));
    assert_int_equal(heap_has(secret), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(it_gets_its_arguments_and_no_secrets), T(descriptors_ride_along),
        T(last_words_come_before_the_exit),      T(it_is_killed),
        T(a_closed_socket_is_its_end),           T(nonsense_is_its_end),
        T(who_does_not_read_is_killed),          T(there_is_no_such_program),
        T(tokens_are_of_one_life_and_one_node),  T(secrets_do_not_stay),
#undef T
    };

    if (argc > 1 && strcmp(argv[1], "--fd") == 0)
        return engine_main(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
