/* test_listener.c - the socket of the clients: what a client may do to us. Clients are sockets
 * of this process, or children where the point is how they die. The log is captured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "daemon/process/clock.h"
#include "daemon/link/listener.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
#include "daemon/link/stream.h"
#include "shm/util/closer.h"
#include "shm/proto/codec.h"

enum { LIMIT_S = 300 };

/* ---- the captured log ------------------------------------------------------------------- */

static char log_text[16 << 10];

void log_write(enum conf_log_level level, const char *fmt, ...)
{
    size_t used = strlen(log_text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(log_text + used, sizeof(log_text) - used, fmt, ap);
    va_end(ap);
    used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "\n");
}

bool log_enabled(enum conf_log_level level)
{
    return true;
}

/* ---- the owner of the listener ---------------------------------------------------------- */

struct world {
    struct event_base *base;
    struct event *limit;
    struct listener *listener;
    struct closer *closer;
    char dir[64], path[96];
    char *error;
    unsigned opens, backs, msgs, leaves, closes;
    unsigned slot;         /* of the last open */
    unsigned by_slot[128]; /* messages */
    unsigned other_at;     /* messages of slot 0 when the first of slot 1 came */
    uint32_t uid, pid;
    char closed[MSG_TEXT_MAX];
    bool welcome; /* answer hellos */
    unsigned max_clients;
    pid_t children[3];
    unsigned nchildren;
};

static void on_open(void *arg, unsigned slot, uint32_t uid, uint32_t pid)
{
    struct world *w = arg;

    w->opens++;
    w->slot = slot;
    w->uid = uid;
    w->pid = pid;
}

static void on_msg(void *arg, unsigned slot, const struct msg *msg)
{
    struct world *w = arg;

    w->msgs++;
    w->leaves += msg->type == MSG_CLIENT_LEAVE;
    if (slot == 1 && w->by_slot[1] == 0)
        w->other_at = w->by_slot[0];
    w->by_slot[slot]++;
    if (msg->type == MSG_CLIENT_HELLO && w->welcome) {
        struct msg welcome = {.type = MSG_WELCOME};

        welcome.welcome.version = MSG_VERSION;
        snprintf(welcome.welcome.node, sizeof(welcome.welcome.node), "a");
        snprintf(welcome.welcome.cluster, sizeof(welcome.welcome.cluster), "c");
        listener_send(w->listener, slot, &welcome, NULL, 0);
    }
}

static void on_closed(void *arg, unsigned slot, const char *text)
{
    struct world *w = arg;

    w->closes++;
    snprintf(w->closed, sizeof(w->closed), "%s", text);
}

static void on_back(void *arg, unsigned slot, uint32_t uid, uint32_t pid, const struct msg *hello)
{
    ((struct world *)arg)->backs++;
    on_msg(arg, slot, hello);
}

static const struct listener_ops ops = {
    .open = on_open, .back = on_back, .msg = on_msg, .closed = on_closed};

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    fail_msg("nothing more happened within %d s; the log says:\n%s", LIMIT_S, log_text);
}

static void world_turn(struct world *w)
{
    event_base_loop(w->base, EVLOOP_ONCE);
    listener_turn(w->listener);
}

#define run_until(w, condition)                                                                    \
    do {                                                                                           \
        while (!(condition))                                                                       \
            world_turn(w);                                                                         \
    } while (0)

static int start(struct world *w, const char *path, unsigned per_user)
{
    struct listener_config config = {
        .base = w->base,
        .path = path,
        .mode = 0600,
        .max_clients = w->max_clients,
        .max_clients_per_user = per_user,
        .closer = w->closer,
        .ops = &ops,
        .arg = w,
    };

    return listener_new(&config, &w->listener, &w->error);
}

/* What is handed over has this number: nothing else gets it. */
static void hold_first_fd(void)
{
    if (fcntl(STORE_FIRST_FD, F_GETFD) < 0)
        assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), STORE_FIRST_FD);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct timeval tv = {.tv_sec = LIMIT_S};

    hold_first_fd();
    log_text[0] = '\0';
    w->welcome = true;
    w->max_clients = 40;
    w->base = event_base_new();
    w->limit = evtimer_new(w->base, too_late, w);
    evtimer_add(w->limit, &tv);
    snprintf(w->dir, sizeof(w->dir), "/tmp/test_listener.XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof(w->path), "%s/commd.sock", w->dir);
    *state = w;
    return 0;
}

static int setup_started(void **state)
{
    struct world *w;

    setup(state);
    w = *state;
    return start(w, w->path, 40);
}

static int teardown(void **state)
{
    struct world *w = *state;

    w->listener = listener_free(w->listener);
    free(w->error);
    event_free(w->limit);
    event_base_free(w->base);
    assert_int_equal(rmdir(w->dir), 0); /* nothing is left in it */
    free(w);
    return 0;
}

/* ---- clients ---------------------------------------------------------------------------- */

static int client(const struct world *w)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w->path);
    assert_return_code(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), errno);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void put(int fd, enum msg_type type)
{
    struct msg msg = {.type = type};
    void *frame;
    size_t len;

    if (type == MSG_CLIENT_HELLO) {
        msg.client_hello.version = MSG_VERSION;
        snprintf(msg.client_hello.program, sizeof(msg.client_hello.program), "test");
    }
    if (type == MSG_ADMIN)
        snprintf(msg.admin.verb, sizeof(msg.admin.verb), "status");
    assert_int_equal(codec_encode(&msg, &frame, &len), 0);
    assert_int_equal(send(fd, frame, len, MSG_NOSIGNAL), (ssize_t)len);
    free(frame);
}

static bool readable(int fd)
{
    char c;

    return recv(fd, &c, 1, MSG_PEEK) >= 0 || errno != EAGAIN;
}

static void get(struct world *w, int fd, struct msg *ret_msg)
{
    const char *why;
    unsigned n;

    run_until(w, readable(fd));
    assert_int_equal(msg_recv_fd(fd, ret_msg, NULL, 0, &n, -1, &why), 0);
}

/* The next message is REFUSED with @text, then end of file. */
static void expect_refused(struct world *w, int fd, enum cause cause, const char *text)
{
    struct msg msg;
    char c;
    ssize_t n;

    get(w, fd, &msg);
    assert_int_equal(msg.type, MSG_REFUSED);
    assert_int_equal(msg.refused.cause, cause);
    assert_string_equal(msg.refused.text, text);
    run_until(w, (n = recv(fd, &c, 1, 0)) == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

/* ---- tests ------------------------------------------------------------------------------ */

static void a_client_comes_gets_descriptors_and_goes(void **state)
{
    struct world *w = *state;
    struct listener_client c;
    struct msg msg = {.type = MSG_JOINED}, got;
    char nodes[1][MSG_NAME_MAX] = {"a"};
    struct msg_member members[1] = {{.pid = 1}};
    struct stat st, st2;
    const char *why;
    int fd = client(w), fds[2], got_fds[2];
    unsigned n;

    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &got);
    assert_int_equal(got.type, MSG_WELCOME);
    assert_int_equal(w->opens, 1);
    assert_int_equal(w->uid, getuid());
    assert_int_equal(w->pid, getpid());
    assert_true(listener_client(w->listener, w->slot, &c));
    assert_true(c.welcome);

    msg.joined = (struct msg_joined){.size = 1,
                                     .nnodes = 1,
                                     .group = 1,
                                     .epoch = 1,
                                     .new_doorbell = 1,
                                     .members = members,
                                     .nodes = nodes};
    assert_int_equal(pipe(fds), 0);
    listener_send(w->listener, w->slot, &msg, fds, 2);
    assert_int_equal(msg_recv_fd(fd, &got, got_fds, 2, &n, -1, &why), 0);
    assert_int_equal(got.type, MSG_JOINED);
    assert_int_equal(n, 2);
    fstat(fds[1], &st);
    fstat(got_fds[1], &st2);
    assert_int_equal(st.st_ino, st2.st_ino);
    msg_fini(&got);
    for (unsigned i = 0; i < 2; i++) {
        close(fds[i]);
        close(got_fds[i]);
    }
    close(fd);
    run_until(w, w->closes);
    assert_string_equal(w->closed, "its connection closed");
    assert_false(listener_client(w->listener, w->slot, &c));
    assert_string_equal(log_text, "");
}

static void garbage_is_refused_and_logged_once(void **state)
{
    static const uint8_t huge[] = {'c', 'd', CODEC_FORMAT, 0, 1, 0, 1, 0};
    static const uint8_t future[] = {'c', 'd', CODEC_FORMAT + 1, 0, 1, 0, 0, 0};
    static const uint8_t junk[] = {'c', 'd', CODEC_FORMAT, 0, 4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff};
    struct world *w = *state;
    char text[256], want[512];
    int fd;

    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(CODEC_E_MAGIC));
    for (unsigned i = 0; i < 3; i++) {
        fd = client(w);
        assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
        expect_refused(w, fd, CAUSE_PROTOCOL, text);
    }
    snprintf(want, sizeof(want), "client pid %d uid %d: %s -> refused\n", getpid(), getuid(), text);
    assert_string_equal(log_text, want);

    fd = client(w);
    assert_int_equal(write(fd, huge, sizeof(huge)), sizeof(huge));
    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(CODEC_E_TOO_LARGE));
    expect_refused(w, fd, CAUSE_PROTOCOL, text);
    fd = client(w);
    assert_int_equal(write(fd, future, sizeof(future)), sizeof(future));
    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(CODEC_E_VERSION));
    expect_refused(w, fd, CAUSE_PROTOCOL, text);
    fd = client(w);
    assert_int_equal(write(fd, junk, sizeof(junk)), sizeof(junk));
    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(CODEC_E_CONTENT));
    expect_refused(w, fd, CAUSE_PROTOCOL, text);
    assert_int_equal(w->opens + w->closes, 0); /* the core never heard of them */
}

static void garbage_after_a_hello_ends_the_session(void **state)
{
    struct world *w = *state;
    struct msg msg;
    char text[256];
    int fd = client(w);

    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &msg);
    assert_int_equal(write(fd, "12345678", 8), 8);
    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(CODEC_E_MAGIC));
    expect_refused(w, fd, CAUSE_PROTOCOL, text);
    assert_int_equal(w->closes, 1);
    assert_string_equal(w->closed, text);
}

/* One byte with @n descriptors; they are of /dev/null, and counted by their number in the process.
 */
static void put_fds(int fd, const void *data, size_t len, unsigned n)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(253 * sizeof(int))];
    } control = {.buf = {0}};
    struct iovec iov = {(void *)data, len};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.buf,
                        .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    for (unsigned i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &null, sizeof(null));
    assert_int_equal(sendmsg(fd, &mh, MSG_NOSIGNAL), (ssize_t)len);
    close(null);
}

static unsigned open_files(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void descriptors_that_nobody_asked_for(void **state)
{
    static const unsigned counts[] = {1, 2, 3, 253};
    static const char text[] = "protocol error: a descriptor came that nobody asked for";
    struct world *w = *state;
    struct msg msg = {.type = MSG_CLIENT_HELLO}, got;
    unsigned before = open_files();
    void *frame;
    size_t len;
    int fd;

    msg.client_hello.version = MSG_VERSION;
    assert_int_equal(codec_encode(&msg, &frame, &len), 0);
    for (unsigned i = 0; i < ARRAY_LEN(counts); i++) {
        fd = client(w); /* with a message that has no use for them */
        put_fds(fd, frame, len, counts[i]);
        if (counts[i] <= 2) { /* as many may wait; so it is heard first */
            get(w, fd, &got);
            assert_int_equal(got.type, MSG_WELCOME);
        }
        expect_refused(w, fd, CAUSE_PROTOCOL, text);
        fd = client(w); /* in the middle of one */
        put_fds(fd, frame, 1, counts[i]);
        assert_int_equal(send(fd, (char *)frame + 1, len - 1, 0), (ssize_t)len - 1);
        if (counts[i] <= 2) {
            get(w, fd, &got);
            assert_int_equal(got.type, MSG_WELCOME);
        }
        expect_refused(w, fd, CAUSE_PROTOCOL, text);
        run_until(w, open_files() == before);
    }
    free(frame);
}

static int gate[2];

/* A job that lasts until @gate is closed. */
static void wait_at_gate(void *arg)
{
    (void)!read(gate[0], &(char){0}, 1);
}

static void no_job(void *arg)
{
}

/* A user for whom @n jobs wait that do not end. */
static void block(struct world *w, unsigned n)
{
    assert_int_equal(pipe(gate), 0);
    closer_call(w->closer, getuid(), wait_at_gate, NULL);
    for (unsigned i = 1; i < n; i++)
        closer_call(w->closer, getuid(), no_job, NULL);
}

static void unblock(struct world *w)
{
    close(gate[1]);
    while (closer_pending(w->closer, getuid()))
        usleep(1000);
    close(gate[0]);
}

static int setup_closer(void **state)
{
    struct world *w;

    setup(state);
    w = *state;
    assert_int_equal(closer_new(&w->closer), 0);
    return start(w, w->path, 40);
}

static int teardown_closer(void **state)
{
    struct closer *closer = ((struct world *)*state)->closer;

    teardown(state);
    closer_free(closer);
    return 0;
}

/* Descriptors of this user are received no more while too many wait to be closed; all else is. */
static void too_many_descriptors_that_do_not_close(void **state)
{
    struct world *w = *state;
    struct msg msg;
    int fd = client(w), other = client(w);

    block(w, 300);
    put_fds(fd, "cd", 2, 253);
    put(other, MSG_CLIENT_HELLO);
    get(w, other, &msg);
    assert_int_equal(msg.type, MSG_WELCOME);
    assert_int_equal(closer_pending(w->closer, getuid()), 300); /* none came */
    put(other, MSG_CLIENT_HELLO);
    run_until(w, w->msgs == 2);
    unblock(w);
    expect_refused(w, fd, CAUSE_PROTOCOL,
                   "protocol error: a descriptor came that nobody asked for");
    close(other);
}

static void no_connections_for_who_does_not_let_close(void **state)
{
    struct world *w = *state;
    struct msg msg;
    char text[200];
    int fd;

    block(w, 1024);
    fd = client(w);
    snprintf(text, sizeof(text),
             "user %u has sent 1024 descriptors and more that are not closed yet (do they linger?)",
             getuid());
    expect_refused(w, fd, CAUSE_QUOTA, text); /* its end is told at once, though not closed yet */
    assert_int_equal(closer_pending(w->closer, getuid()), 1025);
    unblock(w);
    fd = client(w);
    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &msg);
    assert_int_equal(msg.type, MSG_WELCOME);
    close(fd);
}

static void half_a_frame_is_waited_for(void **state)
{
    struct world *w = *state;
    struct msg hello = {.type = MSG_CLIENT_HELLO}, got;
    void *frame;
    size_t len;
    int fd = client(w), other = client(w);

    hello.client_hello.version = MSG_VERSION;
    snprintf(hello.client_hello.program, sizeof(hello.client_hello.program), "slow");
    assert_int_equal(codec_encode(&hello, &frame, &len), 0);
    for (size_t i = 0; i + 1 < len; i++) {
        assert_int_equal(write(fd, (char *)frame + i, 1), 1);
        event_base_loop(w->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
        listener_turn(w->listener);
    }
    assert_int_equal(w->opens, 0);
    assert_int_equal(write(other, frame, len / 2), (ssize_t)(len / 2));
    close(other); /* in the middle of a frame: as if it had never come */
    assert_int_equal(write(fd, (char *)frame + len - 1, 1), 1);
    free(frame);
    get(w, fd, &got);
    assert_int_equal(got.type, MSG_WELCOME);
    assert_int_equal(w->opens, 1);
    assert_int_equal(w->closes, 0);
    close(fd);
}

static void silence_is_not_waited_for(void **state)
{
    struct world *w = *state;
    int silent = client(w), shy = client(w);

    w->welcome = false; /* the second one says hello, and is not welcomed */
    put(shy, MSG_CLIENT_HELLO);
    run_until(w, w->opens);
    expect_refused(w, silent, CAUSE_PROTOCOL, "no hello within 10 s");
    expect_refused(w, shy, CAUSE_PROTOCOL, "no hello within 10 s");
    assert_int_equal(w->closes, 1);
}

/* A child that leaves and exits at once, while its own child still has the socket. */
static void last_words_come_before_the_end(void **state)
{
    struct world *w = *state;
    int hold[2];
    char c;
    pid_t pid;

    assert_int_equal(pipe(hold), 0);
    pid = fork();
    if (pid == 0) {
        int fd = client(w);

        put(fd, MSG_CLIENT_HELLO);
        if (fork() == 0) { /* holds the socket until the test is over */
            close(hold[1]);
            _exit(read(hold[0], &c, 1) != 0);
        }
        for (unsigned i = 0; i < 200; i++)
            put(fd, MSG_CLIENT_LEAVE);
        _exit(0);
    }
    close(hold[0]);
    run_until(w, w->closes);
    assert_int_equal(w->pid, pid);
    assert_int_equal(w->leaves, 200);
    assert_string_equal(w->closed, "its process ended");
    close(hold[1]);
    waitpid(pid, NULL, 0);
}

/* A child that asks, never says hello, and ends while its own child still has the socket. */
static void who_is_dead_is_not_waited_for(void **state)
{
    struct world *w = *state;
    int hold[2];
    pid_t pid;

    assert_int_equal(pipe(hold), 0);
    pid = fork();
    if (pid == 0) {
        int fd = client(w);

        put(fd, MSG_ADMIN);
        if (fork() == 0) {
            close(hold[1]);
            _exit(read(hold[0], &(char){0}, 1) != 0);
        }
        _exit(fd < 0);
    }
    close(hold[0]);
    assert_int_equal(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    world_turn(w);
    assert_false(listener_idle(w->listener));
    run_until(w, listener_idle(w->listener));
    assert_string_equal(log_text, ""); /* no hello was waited for */
    assert_int_equal(w->opens + w->closes, 0);
    close(hold[1]);
    waitpid(pid, NULL, 0);
}

static void a_killed_process_is_told_from_a_closed_socket(void **state)
{
    struct world *w = *state;

    /* The kernel closes its files before it is gone, and may take its time in between on a
     * busy machine: one of a few will do. */
    for (unsigned i = 1; i <= 10 && strcmp(w->closed, "its process ended"); i++) {
        pid_t pid = fork();

        if (pid == 0) {
            put(client(w), MSG_CLIENT_HELLO);
            pause();
        }
        run_until(w, w->opens == i);
        kill(pid, SIGKILL);
        run_until(w, w->closes == i);
        waitpid(pid, NULL, 0);
    }
    assert_string_equal(w->closed, "its process ended");
}

static void who_does_not_read_is_closed(void **state)
{
    struct world *w = *state;
    struct msg big = {.type = MSG_JOIN_FAILED};
    unsigned sent = 0;
    int fd = client(w), other = client(w);

    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens);
    memset(big.join_failed.text, 'x', sizeof(big.join_failed.text) - 1);
    while (!log_text[0] && sent < 100000) {
        listener_send(w->listener, 0, &big, NULL, 0);
        sent++;
    }
    assert_in_range(sent, 2000, 10000); /* 1 MiB and what the kernel takes, by 0.5 KiB */
    assert_non_null(strstr(log_text, "it does not read what it is sent -> refused\n"));
    assert_int_equal(w->closes, 0); /* not from within a call */
    run_until(w, w->closes);
    assert_string_equal(w->closed, "it does not read what it is sent");
    put(other, MSG_CLIENT_HELLO); /* others notice nothing */
    run_until(w, w->opens == 2);
    close(fd);
    close(other);
}

static void a_busy_client_does_not_starve_others(void **state)
{
    enum { BURST = 3000 };
    struct world *w = *state;
    struct msg leave = {.type = MSG_CLIENT_LEAVE};
    int busy = client(w), other = client(w);
    size_t len, room = 1 << 18;
    void *frame, *burst = malloc(room);

    put(busy, MSG_CLIENT_HELLO);
    run_until(w, w->opens);
    assert_int_equal(codec_encode(&leave, &frame, &len), 0);
    assert_true(len * BURST <= room);
    for (unsigned i = 0; i < BURST; i++)
        memcpy((char *)burst + i * len, frame, len);
    setsockopt(busy, SOL_SOCKET, SO_SNDBUF, &(int){1 << 20}, sizeof(int));
    assert_int_equal(write(busy, burst, len * BURST), (ssize_t)(len * BURST));
    put(other, MSG_CLIENT_HELLO);
    run_until(w, w->by_slot[1] && w->by_slot[0] == BURST + 1);
    assert_in_range(w->other_at, 1, BURST / 2);
    assert_int_equal(w->closes, 0);
    free(frame);
    free(burst);
    close(busy);
    close(other);
}

static void closing_lets_the_last_message_out(void **state)
{
    struct world *w = *state;
    struct msg msg = {.type = MSG_REFUSED};
    int fd = client(w);

    w->welcome = false;
    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens);
    msg.refused.cause = CAUSE_DENIED;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "go away");
    listener_send(w->listener, 0, &msg, NULL, 0);
    listener_close(w->listener, 0);
    put(fd, MSG_CLIENT_LEAVE);  /* too late: nobody is told */
    listener_turn(w->listener); /* the daemon closes within a turn, and this ends it */
    expect_refused(w, fd, CAUSE_DENIED, "go away");
    assert_int_equal(w->closes, 0);
    assert_int_equal(w->msgs, 1);
}

static void one_user_cannot_take_all(void **state)
{
    struct world *w = *state;
    int fds[18];
    char want[256];

    assert_int_equal(start(w, w->path, 1), 0); /* and 16 for tools */
    for (unsigned i = 0; i < 17; i++) {
        fds[i] = client(w);
        put(fds[i], MSG_CLIENT_HELLO);
    }
    run_until(w, w->opens == 17);
    fds[17] = client(w);
    snprintf(want, sizeof(want), "user %d has 1 clients already (limits.max_clients_per_user)",
             getuid());
    expect_refused(w, fds[17], CAUSE_QUOTA, want);
    assert_int_equal(listener_refused(w->listener)[CAUSE_QUOTA], 1);
    assert_int_equal(listener_refused(w->listener)[CAUSE_PROTOCOL], 0);
    close(fds[0]);
    run_until(w, w->closes == 1);
    fds[0] = client(w); /* there is room again */
    put(fds[0], MSG_CLIENT_HELLO);
    run_until(w, w->opens == 18);
    for (unsigned i = 0; i < 17; i++)
        close(fds[i]);
}

static void no_descriptor_is_left(void **state)
{
    struct world *w = *state;
    struct rlimit old, tight;
    int fd[8], full, top = dup(0);

    close(top);
    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    for (unsigned i = 0; i < 8; i++)
        fd[i] = client(w);
    tight.rlim_cur = (rlim_t)top + 8 + 5; /* two clients with their pidfds, and one more */
    setrlimit(RLIMIT_NOFILE, &tight);
    run_until(w, log_text[0]);
    assert_string_equal(log_text, "no file descriptor is left for clients (LimitNOFILE=) -> "
                                  "refused\n");
    full = readable(fd[7]) && recv(fd[7], &(char){0}, 1, 0) == 0;
    assert_true(full); /* closed, not left waiting */
    setrlimit(RLIMIT_NOFILE, &old);
    put(fd[0], MSG_CLIENT_HELLO); /* who is in is served */
    run_until(w, w->opens);
    for (unsigned i = 0; i < 8; i++)
        close(fd[i]);
    fd[0] = client(w); /* and so are new ones */
    put(fd[0], MSG_CLIENT_HELLO);
    run_until(w, w->opens == 2);
    close(fd[0]);
}

static void a_socket_that_cannot_be_made(void **state)
{
    struct world *w = *state;
    struct listener *first;
    char path[200], want[512];
    int fd;

    snprintf(path, sizeof(path), "%s/none/commd.sock", w->dir);
    snprintf(want, sizeof(want),
             "%s: its directory does not exist: create it, or set listen.socket", path);
    assert_int_equal(start(w, path, 1), -EINVAL);
    assert_string_equal(w->error, want);
    free(w->error);

    memset(path, 'x', sizeof(path) - 1);
    path[0] = '/';
    path[150] = '\0';
    assert_int_equal(start(w, path, 1), -EINVAL);
    assert_non_null(strstr(w->error, "may have 107 bytes at most: set listen.socket"));
    free(w->error);

    fd = open(w->path, O_CREAT | O_WRONLY, 0600);
    close(fd);
    snprintf(want, sizeof(want),
             "%s: there is something else than a socket: remove it, or set listen.socket", w->path);
    assert_int_equal(start(w, w->path, 1), -EINVAL);
    assert_string_equal(w->error, want);
    free(w->error);
    unlink(w->path);

    assert_int_equal(start(w, w->path, 1), 0);
    first = w->listener;
    snprintf(want, sizeof(want), "%s: already in use by a running commd", w->path);
    assert_int_equal(start(w, w->path, 1), -EADDRINUSE);
    assert_string_equal(w->error, want);
    assert_ptr_equal(w->listener, first);
    assert_int_equal(access(w->path, F_OK), 0);
}

static void a_stale_socket_is_replaced(void **state)
{
    struct world *w = *state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct stat st;

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", w->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    close(fd); /* its commd is gone, the file stayed */
    assert_int_equal(start(w, w->path, 40), 0);
    assert_non_null(strstr(log_text, "left over from a commd that is gone -> removed"));
    assert_int_equal(stat(w->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    fd = client(w);
    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens);
    close(fd);
}

/* A commd that is killed, and whose manager keeps descriptors: the name of what it keeps. The
 * descriptor is STORE_FIRST_FD then. */
static void killed_commd(struct world *w, char name[STORE_NAME_MAX])
{
    char text[128] = "", control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control,
                        .msg_controllen = sizeof(control)};
    int ends[2], fd, status;
    pid_t pid;

    hold_first_fd();
    assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), errno);
    pid = fork();
    if (pid == 0) {
        snprintf(text, sizeof(text), "fd:%d", ends[1]);
        setenv("NOTIFY_SOCKET", text, 1);
        store_begin();
        event_reinit(w->base);
        start(w, w->path, 40);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(recvmsg(ends[0], &mh, MSG_DONTWAIT) > 0);
    assert_int_equal(sscanf(text, "FDSTORE=1\nFDNAME=%47[^\n]", name), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&mh)), sizeof(fd));
    assert_int_equal(dup2(fd, STORE_FIRST_FD), STORE_FIRST_FD);
    close(fd);
    close(ends[0]);
    close(ends[1]);
    snprintf(text, sizeof(text), "%d", getpid());
    setenv("LISTEN_PID", text, 1);
    setenv("LISTEN_FDS", "1", 1);
}

static void clients_queue_while_commd_is_gone(void **state)
{
    struct world *w = *state;
    char name[STORE_NAME_MAX];
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int early, late;

    killed_commd(w, name);
    early = client(w); /* nobody is there, and it is not refused */
    put(early, MSG_CLIENT_HELLO);
    chmod(w->path, 0666); /* the configuration says something else by now */
    setenv("LISTEN_FDNAMES", name, 1);
    store_begin();
    assert_int_equal(start(w, w->path, 40), 0);
    run_until(w, w->opens == 1);
    late = client(w);
    put(late, MSG_CLIENT_HELLO);
    run_until(w, w->opens == 2);
    assert_return_code(getsockopt(late, SOL_SOCKET, SO_PEERCRED, &cred, &len), errno);
    assert_int_equal(cred.pid, getpid()); /* and not that of the dead one */
    close(early);
    close(late);
    store_end();
}

/* Nobody could reach a socket whose file is gone, or is another's. */
static void a_kept_socket_without_its_file_is_of_no_use(void **state)
{
    struct world *w = *state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char name[STORE_NAME_MAX], path[100];
    struct stat st;
    int fd;

    killed_commd(w, name);
    unlink(w->path);
    setenv("LISTEN_FDNAMES", name, 1);
    store_begin();
    assert_int_equal(start(w, w->path, 40), 0);
    assert_int_equal(store_take(name), -1);
    fd = client(w);
    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens == 1);
    close(fd);
    w->listener = listener_free(w->listener);
    store_end();

    killed_commd(w, name); /* and the next one is to listen elsewhere */
    snprintf(path, sizeof(path), "%s", w->path);
    snprintf(w->path, sizeof(w->path), "%s/other.sock", w->dir);
    setenv("LISTEN_FDNAMES", name, 1);
    store_begin();
    assert_int_equal(start(w, w->path, 40), 0);
    assert_int_equal(lstat(path, &st), -1);
    fd = client(w);
    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens == 2);
    close(fd);
    w->listener = listener_free(w->listener);
    store_end();

    killed_commd(w, name); /* a name that lies */
    setenv("LISTEN_FDNAMES", name, 1);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_return_code(bind(fd, (struct sockaddr *)&addr, sizeof(addr)) | listen(fd, 1), errno);
    dup2(fd, STORE_FIRST_FD);
    close(fd);
    store_begin();
    assert_int_equal(start(w, w->path, 40), 0);
    fd = client(w);
    put(fd, MSG_CLIENT_HELLO);
    run_until(w, w->opens == 3);
    close(fd);
    unlink(path);
    store_end();
}

static void draining_ends_everything(void **state)
{
    struct world *w = *state;
    struct msg msg;
    int fd = client(w);
    char c;

    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &msg);
    listener_drain(w->listener);
    assert_int_equal(access(w->path, F_OK), -1);
    assert_true(listener_idle(w->listener));
    listener_turn(w->listener);
    assert_int_equal(recv(fd, &c, 1, 0), 0);
    close(fd);
}

/* The owner is not told who is closed by that, and may close it, too. */
static void closing_who_is_drained(void **state)
{
    struct world *w = *state;
    struct msg big = {.type = MSG_JOIN_FAILED}, msg;
    unsigned sent = 0, n;
    int fd = client(w);
    const char *why;

    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &msg);
    memset(big.join_failed.text, 'x', sizeof(big.join_failed.text) - 1);
    for (; sent < 50; sent++)
        listener_send(w->listener, 0, &big, NULL, 0);
    listener_drain(w->listener);
    listener_close(w->listener, 0);
    listener_close(w->listener, 0);
    assert_false(listener_idle(w->listener));
    while (sent--) {
        run_until(w, readable(fd));
        assert_int_equal(msg_recv_fd(fd, &msg, NULL, 0, &n, -1, &why), 0);
    }
    run_until(w, listener_idle(w->listener));
    assert_int_equal(w->closes, 0);
    close(fd);
}

/* ---- descriptors that nobody takes ------------------------------------------------------ */

/* Listens as if @files were all that we may have open. */
static void start_with(struct world *w, rlim_t files, unsigned per_user)
{
    struct rlimit old, tight;

    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    tight.rlim_cur = files;
    setrlimit(RLIMIT_NOFILE, &tight);
    assert_int_equal(start(w, w->path, per_user), 0);
    setrlimit(RLIMIT_NOFILE, &old);
}

static int welcomed(struct world *w)
{
    int fd = client(w);
    struct msg msg;

    put(fd, MSG_CLIENT_HELLO);
    get(w, fd, &msg);
    assert_int_equal(msg.type, MSG_WELCOME);
    return fd;
}

static void send_fd(struct world *w, unsigned slot)
{
    struct msg msg = {.type = MSG_ARENA_ANSWER};

    listener_send(w->listener, slot, &msg, &(int){0}, 1);
}

/* How many messages wait there; they are taken, with their descriptors. */
static unsigned take_fds(int fd)
{
    unsigned count = 0, n;
    struct msg msg;
    const char *why;
    int got;

    for (; readable(fd) && recv(fd, &(char){0}, 1, MSG_PEEK) > 0; count++) {
        assert_int_equal(msg_recv_fd(fd, &msg, &got, 1, &n, -1, &why), 0);
        assert_int_equal(n, 1);
        close(got);
    }
    return count;
}

static void who_does_not_take_descriptors_is_closed(void **state)
{
    struct world *w = *state;
    struct msg msg = {.type = MSG_ARENA_ANSWER};
    int file = dup(0), fd;
    struct stream_fd *shared = stream_fd_new(&file);
    unsigned sent = 0;

    start_with(w, 1 << 20, 40);
    fd = welcomed(w);
    for (; !log_text[0] && sent < 5000; sent++)
        listener_send_shared(w->listener, w->slot, &msg, &shared, 1);
    assert_in_range(sent, 1280, 1310); /* and what the socket takes */
    run_until(w, w->closes);
    assert_string_equal(w->closed, "it does not read what it is sent");
    assert_in_range(take_fds(fd), 5, 20);
    stream_fd_unref(shared);
    close(fd);
}

static void what_one_user_holds_is_bounded(void **state)
{
    struct world *w = *state;
    unsigned sent = 0;
    int some, most;

    start_with(w, 4096, 40); /* 256 may wait, of one user 128 */
    some = welcomed(w);
    for (unsigned i = 0; i < 20; i++)
        send_fd(w, w->slot);
    most = welcomed(w);
    for (; !log_text[0] && sent < 500; sent++)
        send_fd(w, w->slot);
    assert_in_range(sent, 100, 140);
    run_until(w, w->closes);
    assert_string_equal(w->closed, "it does not read what it is sent");
    take_fds(most);
    assert_int_equal(recv(most, &(char){0}, 1, 0), 0); /* that one, and not the other */
    take_fds(some);
    run_until(w, readable(some));
    assert_true(take_fds(some) > 0);
    close(some);
    close(most);
}

/* Of one user few may fly. Who is held up by that comes to his turn when others take theirs, and
 * the loop sleeps until then. */
static void what_flies_is_shared(void **state)
{
    enum { EACH = 9 };
    struct world *w = *state;
    int fd[4], turns = 0;

    start_with(w, 128, 40); /* 64 may fly, of one user 32 */
    for (unsigned i = 0; i < 4; i++) {
        fd[i] = welcomed(w);
        for (unsigned k = 0; k < EACH; k++)
            send_fd(w, i);
    }
    for (uint64_t begin = clock_ms(); clock_ms() < begin + 200; turns++)
        world_turn(w);
    assert_true(turns < 50);
    assert_int_equal(take_fds(fd[3]), 32 - 3 * EACH);
    assert_int_equal(take_fds(fd[0]), EACH);
    run_until(w, readable(fd[3]));
    assert_int_equal(take_fds(fd[3]), 4 * EACH - 32);
    assert_int_equal(w->closes, 0);
    for (unsigned i = 0; i < 4; i++)
        close(fd[i]);
}

static void who_holds_up_his_user_is_closed(void **state)
{
    enum { EACH = 9 };
    struct world *w = *state;
    int fd[4];

    start_with(w, 128, 40);
    for (unsigned i = 0; i < 4; i++) {
        fd[i] = welcomed(w);
        for (unsigned k = 0; k < EACH - (i == 1 || i == 2); k++)
            send_fd(w, i);
    }
    run_until(w, w->closes);
    assert_string_equal(w->closed, "it does not read what it is sent");
    assert_non_null(strstr(log_text, "it does not read what it is sent -> refused\n"));
    assert_int_equal(take_fds(fd[0]), EACH);
    assert_int_equal(recv(fd[0], &(char){0}, 1, 0), 0); /* it had most */
    for (unsigned i = 0; i < 4; i++)
        close(fd[i]);
}

/* We close, but the descriptors are in its socket still: it counts until they are taken. */
static void what_is_left_unread_counts(void **state)
{
    struct world *w = *state;
    int fds[17], fd;
    unsigned old;

    start_with(w, 1024, 1); /* and 16 for tools */
    for (unsigned i = 0; i < 17; i++)
        fds[i] = welcomed(w);
    old = w->slot;
    send_fd(w, old);
    listener_close(w->listener, old);
    listener_turn(w->listener);
    fd = client(w);
    run_until(w, log_text[0]);
    assert_non_null(strstr(log_text, "has 1 clients already"));
    close(fd);
    assert_int_equal(take_fds(fds[16]), 1);
    assert_int_equal(recv(fds[16], &(char){0}, 1, 0), 0);
    close(fds[16]);
    for (unsigned tries = 0; w->opens < 18; tries++) { /* it is not looked at all the time */
        fd = client(w);
        put(fd, MSG_CLIENT_HELLO);
        run_until(w, readable(fd));
        if (w->opens < 18)
            close(fd);
    }
    close(fd);
    for (unsigned i = 0; i < 16; i++)
        close(fds[i]);
}

/* Another user, in a process of its own, that wants so many connections, and gets them; but for the
 * last one, which is refused with @text, if not NULL. */
static void connections_of(struct world *w, uint32_t uid, unsigned wanted, const char *text)
{
    unsigned before = w->opens;
    int status, ready[2];
    pid_t pid;

    assert_return_code(pipe(ready), errno);
    pid = fork();
    if (pid == 0) {
        struct msg msg;
        const char *why;
        unsigned n;
        int fd = -1;

        if (setgid(uid) || setuid(uid) || prctl(PR_SET_PDEATHSIG, SIGKILL))
            _exit(2);
        for (unsigned i = 0; i < wanted; i++)
            put(fd = client(w), MSG_CLIENT_HELLO);
        if (text && (msg_recv_fd(fd, &msg, NULL, 0, &n, -1, &why) || msg.type != MSG_REFUSED ||
                     strcmp(msg.refused.text, text) != 0))
            _exit(3);
        close(ready[1]);
        pause();
    }
    close(ready[1]);
    fcntl(ready[0], F_SETFL, O_NONBLOCK);
    for (char c; read(ready[0], &c, 1) < 0 && errno == EAGAIN; poll(NULL, 0, 1)) {
        event_base_loop(w->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
        listener_turn(w->listener);
    }
    close(ready[0]);
    if (waitpid(pid, &status, WNOHANG) == pid)
        fail_msg("the process of user %u ended with %d", uid, status);
    run_until(w, w->opens == before + wanted - (text != NULL));
    w->children[w->nchildren++] = pid;
}

/* With few descriptors one user has half of what is for connections, and others the rest. */
static void descriptors_are_shared(void **state)
{
    struct world *w = *state;

    if (getuid())
        skip();
    w->max_clients = 150;
    start_with(w, 512, 1000);
    assert_non_null(strstr(log_text,
                           "only 512 files may be open (LimitNOFILE=), which is enough for "
                           "128 connections: raise it to 600 for limits.max_clients: 150"));
    log_text[0] = 0;
    chmod(w->dir, 0755);
    chmod(w->path, 0666);
    connections_of(w, 4004, 65,
                   "user 4004 has 64 connections already, half of what others "
                   "leave (LimitNOFILE=)");
    connections_of(w, 4005, 32, NULL);
    while (w->nchildren) {
        kill(w->children[--w->nchildren], SIGKILL);
        waitpid(w->children[w->nchildren], NULL, 0);
    }
    run_until(w, w->closes == 96);
}

/* The uids of one person have the connections of one user; each is told to the owner as itself. */
static void uids_of_one_person_share(void **state)
{
    struct world *w = *state;
    struct listener_client client;
    union {
        struct payers payers;
        char room[sizeof(struct payers) + sizeof(struct payer_range)];
    } of = {.payers = {.n = 1}};

    if (getuid())
        skip();
    of.payers.ranges[0] = (struct payer_range){100000, 100009, 4004};
    w->max_clients = 150;
    start_with(w, 512, 1000);
    listener_set_payers(w->listener, &of.payers);
    log_text[0] = 0;
    chmod(w->dir, 0755);
    chmod(w->path, 0666);
    connections_of(w, 100000, 32, NULL);
    assert_true(listener_client(w->listener, w->slot, &client));
    assert_int_equal(client.uid, 100000);
    assert_int_equal(client.payer, 4004);
    connections_of(w, 100009, 33,
                   "user 4004 has 64 connections already, half of what others "
                   "leave (LimitNOFILE=)");
    connections_of(w, 100010, 32, NULL);
    while (w->nchildren) {
        kill(w->children[--w->nchildren], SIGKILL);
        waitpid(w->children[w->nchildren], NULL, 0);
    }
    run_until(w, w->closes == 96);
}

enum { AWAY_USER = 4004, AWAY_CLIENTS = 28 };

/* All its connections are there before it says anything in one, and it wants one more. */
static void __attribute__((noreturn)) come_back(const struct world *w, int go)
{
    struct msg msg = {.type = MSG_CLIENT_HELLO, .client_hello.version = MSG_VERSION};
    int fds[AWAY_CLIENTS + 1];
    const char *why;
    unsigned n;

    if (setgid(AWAY_USER) || setuid(AWAY_USER) || prctl(PR_SET_PDEATHSIG, SIGKILL) ||
        read(go, &(char){0}, 1) != 1)
        _exit(2);
    fds[0] = client(w); /* that room is only for who comes back */
    if (msg_send_fd(fds[0], &msg, NULL, 0, -1) ||
        msg_recv_fd(fds[0], &msg, NULL, 0, &n, -1, &why) || msg.type != MSG_REFUSED ||
        msg.refused.cause != CAUSE_QUOTA)
        _exit(5);
    close(fds[0]);
    for (unsigned i = 0; i <= AWAY_CLIENTS; i++)
        fds[i] = client(w);
    if (msg_recv_fd(fds[AWAY_CLIENTS], &msg, NULL, 0, &n, -1, &why) || msg.type != MSG_REFUSED ||
        msg.refused.cause != CAUSE_QUOTA) /* and not for its silence */
        _exit(3);
    for (unsigned i = 0; i < AWAY_CLIENTS; i++) {
        msg = (struct msg){.type = MSG_CLIENT_HELLO, .client_hello.version = MSG_VERSION};
        msg.client_hello.resume[0] = (uint8_t)(i + 1);
        if (msg_send_fd(fds[i], &msg, NULL, 0, -1) ||
            msg_recv_fd(fds[i], &msg, NULL, 0, &n, -1, &why) || msg.type != MSG_WELCOME)
            _exit(4);
    }
    _exit(0);
}

/* Others get no more than before commd was restarted, and whatever they have by then, who was there
 * comes back. */
static void who_is_away_keeps_his_place(void **state)
{
    struct world *w = *state;
    uint8_t key[MSG_KEY] = {0};
    int status, go[2];
    pid_t pid;

    if (getuid())
        skip();
    w->max_clients = 60;
    assert_int_equal(start(w, w->path, 40), 0);
    chmod(w->dir, 0755);
    chmod(w->path, 0666);
    assert_return_code(pipe2(go, O_CLOEXEC), errno);
    pid = fork();
    if (pid == 0) {
        close(go[1]);
        come_back(w, go[0]);
    }
    for (unsigned i = 0; i < AWAY_CLIENTS; i++) {
        int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

        key[0] = (uint8_t)(i + 1);
        assert_int_equal(
            listener_away(w->listener, i, AWAY_USER, AWAY_USER, (uint32_t)pid, &pidfd, key), 0);
    }
    connections_of(w, 4005, 41,
                   "user 4005 has 40 connections already, half of what others leave "
                   "(limits.max_clients)");
    connections_of(w, 4006, 21,
                   "user 4006 has 20 connections already, half of what others leave "
                   "(limits.max_clients)");
    assert_int_equal(write(go[1], "", 1), 1); /* the other users hold that end, too */
    close(go[0]);
    close(go[1]);
    run_until(w, w->backs == AWAY_CLIENTS && w->closes == AWAY_CLIENTS);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    while (w->nchildren) {
        kill(w->children[--w->nchildren], SIGKILL);
        waitpid(w->children[w->nchildren], NULL, 0);
    }
    run_until(w, w->closes == AWAY_CLIENTS + 60);
}

static void few_descriptors_are_left(void **state)
{
    struct world *w = *state;
    int status, fill[200];
    unsigned nfill = 0;
    pid_t pid;

    if (getuid())
        skip();
    start_with(w, 200, 40); /* from 180 on they are for us */
    chmod(w->dir, 0755);
    chmod(w->path, 0666);
    do
        fill[nfill] = dup(0);
    while (fill[nfill++] < 180);
    pid = fork();
    if (pid == 0) {
        struct msg msg;
        const char *why;
        unsigned n;
        int fd;

        if (setgid(4004) || setuid(4004))
            _exit(2);
        fd = client(w);
        if (msg_recv_fd(fd, &msg, NULL, 0, &n, -1, &why) || msg.type != MSG_REFUSED)
            _exit(3);
        _exit(strcmp(msg.refused.text, "commd has few descriptors left (LimitNOFILE=)") != 0);
    }
    run_until(w, log_text[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(welcomed(w)); /* root still comes in */
    while (nfill)
        close(fill[--nfill]);
}

/* ---- turns ------------------------------------------------------------------------------ */

enum { FLOOD = 6000 };

/* A child of user @uid with @count connections, all of which have sent FLOOD messages when it
 * says so. */
static pid_t flooder(const struct world *w, uint32_t uid, unsigned count)
{
    struct msg msg = {.type = MSG_CLIENT_LEAVE};
    void *frame, *flood;
    size_t len;
    int tell[2];
    pid_t pid;

    assert_int_equal(pipe(tell), 0);
    pid = fork();
    if (pid) {
        assert_int_equal(read(tell[0], &(char){0}, 1), 1);
        close(tell[0]);
        close(tell[1]);
        return pid;
    }
    if (setgid(uid) || setuid(uid) || codec_encode(&msg, &frame, &len))
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    flood = malloc(len * FLOOD);
    for (unsigned i = 0; i < FLOOD; i++)
        memcpy((char *)flood + i * len, frame, len);
    for (unsigned i = 0; i < count; i++) {
        int fd = client(w);

        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){1 << 20}, sizeof(int));
        put(fd, MSG_CLIENT_HELLO);
        if (send(fd, flood, len * FLOOD, 0) != (ssize_t)(len * FLOOD))
            _exit(2);
    }
    if (write(tell[1], "", 1) != 1)
        _exit(3);
    pause();
    _exit(0);
}

static void many_connections_of_one_user_weigh_like_one(void **state)
{
    struct world *w = *state;
    pid_t many, one;
    unsigned rest = 0;

    if (getuid())
        skip();
    chmod(w->dir, 0755);
    chmod(w->path, 0666);
    many = flooder(w, 4005, 8);
    one = flooder(w, 4006, 1);
    run_until(w, w->by_slot[8] == FLOOD + 1); /* accepted last */
    for (unsigned i = 0; i < 8; i++)
        rest += w->by_slot[i];
    assert_in_range(rest, 1, 6 * FLOOD); /* of 8 FLOOD, which a fair share for each connection is */
    kill(many, SIGKILL);
    kill(one, SIGKILL);
    waitpid(many, NULL, 0);
    waitpid(one, NULL, 0);
    run_until(w, w->closes == 9);
}

static void who_is_paused_is_not_read_from(void **state)
{
    struct world *w = *state;
    struct msg big = {.type = MSG_JOIN_FAILED}, msg;
    int fd = welcomed(w), other = welcomed(w);
    const char *why;
    unsigned sent = 0, n;

    listener_pause(w->listener, 0);
    put(fd, MSG_CLIENT_LEAVE);
    put(other, MSG_CLIENT_LEAVE);
    run_until(w, w->by_slot[1] == 2);
    assert_int_equal(w->by_slot[0], 1);
    memset(big.join_failed.text, 'x', sizeof(big.join_failed.text) - 1);
    for (; sent < 50; sent++)
        listener_send(w->listener, 0, &big, NULL, 0);
    listener_resume(w->listener, 0); /* not before it has read that */
    put(other, MSG_CLIENT_LEAVE);
    run_until(w, w->by_slot[1] == 3);
    assert_int_equal(w->by_slot[0], 1);
    while (sent--) {
        run_until(w, readable(fd));
        assert_int_equal(msg_recv_fd(fd, &msg, NULL, 0, &n, -1, &why), 0);
    }
    run_until(w, w->by_slot[0] == 2);
    close(fd);
    close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name)    cmocka_unit_test_setup_teardown(name, setup_started, teardown)
#define BARE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_client_comes_gets_descriptors_and_goes),
        T(garbage_is_refused_and_logged_once),
        T(garbage_after_a_hello_ends_the_session),
        T(descriptors_that_nobody_asked_for),
        cmocka_unit_test_setup_teardown(too_many_descriptors_that_do_not_close, setup_closer,
                                        teardown_closer),
        cmocka_unit_test_setup_teardown(no_connections_for_who_does_not_let_close, setup_closer,
                                        teardown_closer),
        T(half_a_frame_is_waited_for),
        T(silence_is_not_waited_for),
        T(last_words_come_before_the_end),
        T(who_is_dead_is_not_waited_for),
        T(a_killed_process_is_told_from_a_closed_socket),
        T(who_does_not_read_is_closed),
        BARE(who_does_not_take_descriptors_is_closed),
        BARE(what_one_user_holds_is_bounded),
        BARE(what_flies_is_shared),
        BARE(who_holds_up_his_user_is_closed),
        BARE(what_is_left_unread_counts),
        BARE(descriptors_are_shared),
        BARE(uids_of_one_person_share),
        BARE(who_is_away_keeps_his_place),
        BARE(few_descriptors_are_left),
        T(many_connections_of_one_user_weigh_like_one),
        T(who_is_paused_is_not_read_from),
        T(a_busy_client_does_not_starve_others),
        T(closing_lets_the_last_message_out),
        BARE(one_user_cannot_take_all),
        T(no_descriptor_is_left),
        BARE(a_socket_that_cannot_be_made),
        BARE(a_stale_socket_is_replaced),
        BARE(clients_queue_while_commd_is_gone),
        BARE(a_kept_socket_without_its_file_is_of_no_use),
        T(draining_ends_everything),
        T(closing_who_is_drained),
#undef T
#undef BARE
    };

    signal(SIGPIPE, SIG_IGN);
    closefrom(STORE_FIRST_FD);
    hold_first_fd();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
