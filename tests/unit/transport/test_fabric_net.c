/* test_fabric_net.c - what the fabrics over a network promise beyond the contract: what opening
 * refuses and how it says so, and a peer that dies by SIGKILL (this program again, as --victim). */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_sides.h"
#include "transport/fabric/fabric_net.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

void refused(const char *kind, const char *device, const char *tls, const char *ports, int want,
             const char *text)
{
    struct fabric_conf conf = {.kind = kind, .device = device, .tls = tls, .port_range = ports};
    struct fabric_events ev = {on_msg, on_peer_down, NULL, NULL};
    struct fabric *f = NULL;
    char why[256] = "";

    assert_int_equal(fabric_new(&conf, &ev, &f, why), want);
    assert_null(f);
    if (strncmp(why, text, strlen(text)) != 0)
        fail_msg("got \"%s\", not \"%s\"", why, text);
}

static void refuses_bad_devices(void **state)
{
    refused(*state, "ethX", "tcp", NULL, -ENODEV,
            "transport.device: no network device \"ethX\" on this node (there are: lo");
    refused(*state, "a-name-that-is-too-long", "tcp", NULL, -ENODEV,
            "transport.device: no network device \"a-name-that-is-too-long\" on this node");
    refused(*state, "", "tcp", NULL, -EINVAL, "transport.device: empty");
}

static void takes_a_port_of_the_range(void **state)
{
    struct fabric_conf conf = {.kind = *state, .device = "lo", .tls = "tcp"};
    struct sockaddr_storage addr = {.ss_family = AF_INET};
    struct fabric_events ev = {on_msg, on_peer_down, NULL, NULL};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char range[32], text[96], why[256];
    unsigned char *p = (unsigned char *)&addr;
    struct fabric *f;

    /* Takes a free port, so that nobody else on this machine has the range we ask for. */
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, 16), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    snprintf(range, sizeof(range), "%u-%u", p[2] << 8 | p[3], p[2] << 8 | p[3]);
    snprintf(text, sizeof(text), "transport.port_range: no free TCP port in %s on device lo",
             range);
    refused(*state, "lo", "tcp", range, -EADDRINUSE, text);
    close(fd);
    conf.port_range = range;
    assert_int_equal(fabric_new(&conf, &ev, &f, why), 0);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, 16), -1); /* it did take it */
    assert_int_equal(errno, EADDRINUSE);
    close(fd);
    fabric_free(f);
}

static unsigned listening(unsigned port, int *ret_fd)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(0x7f000001)}};
    socklen_t len = sizeof(addr);

    *ret_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*ret_fd, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(listen(*ret_fd, 1), 0);
    assert_int_equal(getsockname(*ret_fd, (struct sockaddr *)&addr, &len), 0);
    return ntohs(addr.sin_port);
}

/* A socket that was kept of the engine before is taken, and no other port of the range; where it is
 * out of the range it is closed. */
static void listens_where_the_last_one_did(void **state)
{
    struct fabric_conf conf = {.kind = *state, .device = "lo", .tls = "tcp"};
    struct fabric_events ev = {on_msg, on_peer_down, NULL, NULL};
    char range[32], why[256];
    struct stat kept, ours;
    struct fabric *f;
    unsigned port;
    int fd, other;

    if (strcmp(*state, "tcp") != 0)
        skip();
    port = listening(0, &fd);
    assert_int_equal(fstat(fd, &kept), 0);
    snprintf(range, sizeof(range), "%u-%u", port > 10 ? port - 10 : 1, port);
    conf.port_range = range;
    conf.port = fd;
    assert_int_equal(fabric_new(&conf, &ev, &f, why), 0);
    assert_int_equal(f->port, fd);
    assert_int_equal(fstat(f->port, &ours), 0);
    assert_int_equal(kept.st_ino, ours.st_ino);
    conf.port = dup(fd);
    fabric_free(f);
    listening(0, &other); /* and that one is not in the way of a range without it */
    close(other);
    snprintf(range, sizeof(range), "%u-%u", port > 30000 ? 20000u : 40000u,
             port > 30000 ? 20200u : 40200u);
    assert_int_equal(fabric_new(&conf, &ev, &f, why), 0);
    assert_int_equal(fstat(f->port, &ours), 0);
    assert_int_not_equal(kept.st_ino, ours.st_ino);
    assert_true(fcntl(conf.port, F_GETFD) < 0 || conf.port == f->port);
    fabric_free(f);
}

/* @congestion as a user without privileges. */
static int open_unprivileged(const char *kind, const char *congestion, char why[256])
{
    struct fabric_conf conf = {
        .kind = kind, .device = "lo", .tls = "tcp", .congestion = congestion};
    struct fabric_events ev = {on_msg, on_peer_down, NULL, NULL};
    struct {
        int r;
        char why[256];
    } answer = {-ECHILD, ""};
    int pair[2], status;
    struct fabric *f;
    pid_t pid;

    assert_int_equal(pipe(pair), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(1);
        answer.r = fabric_new(&conf, &ev, &f, answer.why);
        _exit(write(pair[1], &answer, sizeof(answer)) != sizeof(answer));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(read(pair[0], &answer, sizeof(answer)), sizeof(answer));
    close(pair[0]);
    close(pair[1]);
    strcpy(why, answer.why);
    return answer.r;
}

/* The kernel's default and RENO are for everybody. CUBIC may be for root only, and an engine
 * that merely prefers it must start without. */
static void congestion_control(void **state)
{
    static const char lacks[] = "the sysctl net.ipv4.tcp_allowed_congestion_control lacks";
    char why[256];

    assert_int_equal(open_unprivileged(*state, "nosuchcc", why), -ENOENT);
    assert_non_null(strstr(why, "transport.congestion_control: the kernel has no \"nosuchcc\" "
                                "(allowed here: auto, system, "));
    assert_int_equal(open_unprivileged(*state, "reno", why), 0);
    assert_string_equal(why, "");
    assert_int_equal(open_unprivileged(*state, "system", why), 0);
    assert_string_equal(why, "");
    assert_int_equal(open_unprivileged(*state, "auto", why), 0);
    if (*why) { /* the default is BBR */
        assert_non_null(strstr(why, "congestion control stays the system's, "));
        assert_int_not_equal(open_unprivileged(*state, "cubic", why), 0);
        assert_true(strstr(why, lacks) || strstr(why, "the kernel has no \"cubic\""));
        assert_null(strstr(why, ", cubic")); /* not among what is allowed */
    }
}

static void congestion_of(int fd, char name[17])
{
    socklen_t len = 16;

    memset(name, 0, 17);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
}

/* What an earlier engine has set on the socket that listens says nothing of new sockets: each that
 * this engine connects gets what this engine wants, and so does each that it accepts. */
static void congestion_control_behind_another_engine(void **state)
{
    char ours[17], now[17], wish[17], why[256] = "";
    int fresh = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), listener;

    (void)state;
    listening(0, &listener);
    congestion_of(fresh, ours);
    assert_int_equal(setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    assert_int_equal(net_congestion_settle(strcpy(wish, "system"), listener, why), 0);
    congestion_of(listener, now);
    assert_string_equal(now, ours);

    assert_int_equal(setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    assert_int_equal(net_congestion_settle(strcpy(wish, "auto"), listener, why), 0);
    net_congestion_take(fresh, wish);
    congestion_of(fresh, ours);
    congestion_of(listener, now);
    assert_string_equal(now, ours);
    if (!*why) /* else CUBIC is not for us */
        assert_string_not_equal(now, "bbr");

    assert_int_equal(net_congestion_settle(strcpy(wish, "reno"), listener, why), 0);
    assert_string_equal(wish, "reno");
    congestion_of(listener, now);
    assert_string_equal(now, "reno");
    close(listener);
    close(fresh);
}

struct child {
    pid_t pid;
    int fd;
};

/* This program again, as "--victim FD KIND": the other end of @ret's socket. */
static void spawn_victim(struct child *ret, const char *kind)
{
    char *argv[] = {(char *)"test_fabric", (char *)"--victim", (char *)"3", (char *)(uintptr_t)kind,
                    NULL};
    posix_spawn_file_actions_t fa;
    extern char **environ;
    int sv[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(posix_spawn_file_actions_init(&fa), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&fa, sv[1], 3), 0);
    assert_int_equal(posix_spawn(&ret->pid, "/proc/self/exe", &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    close(sv[1]);
    ret->fd = sv[0];
}

/* Links up over @fd as side 0 with number @me; the other one is @you. */
static void meet(struct world *w, int fd, unsigned me, unsigned you)
{
    struct side *s = &w->side[0];
    uint8_t mine[32], theirs[32], addr[FABRIC_ADDR_MAX];
    ssize_t n;

    token(mine, me, you, 1);
    token(theirs, you, me, 1);
    assert_int_equal(send(fd, s->addr, s->addr_len, MSG_NOSIGNAL), s->addr_len);
    n = recv(fd, addr, sizeof(addr), 0);
    assert_true(n > 0);
    assert_int_equal(s->f->ops->peer_add(s->f, you, addr, (size_t)n, mine, theirs), 0);
}

/* Starts to take four bodies, or gets an eager one, reports, and never moves again. */
int run_victim(int fd, const char *kind)
{
    struct world *w = world_new(kind, 1);
    char end[1];

    meet(w, fd, 1, 0);
    w->side[0].take = TAKE_LATER;
    pump_until(w, w->side[0].bodies == 4 || w->side[0].msgs > w->side[0].bodies);
    for (unsigned i = 0; i < w->side[0].bodies; i++)
        take_body(w->side[0].body[i]);
    send(fd, "!", 1, MSG_NOSIGNAL);
    recv(fd, end, sizeof(end), 0); /* until the killer strikes, or is gone itself */
    return 0;
}

/* Until the victim has reported. */
static void wait_victim(struct world *w, const struct child *child)
{
    struct pollfd pfd = {.fd = child->fd, .events = POLLIN};
    char c;

    pump_until(w, poll(&pfd, 1, 0) > 0);
    assert_int_equal(recv(child->fd, &c, 1, 0), 1);
}

static void kill_victim(const struct child *child)
{
    int status;

    assert_int_equal(kill(child->pid, SIGKILL), 0);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->fd);
}

static void kill_9(void **state)
{
    struct world *w = world_new(*state, 1);
    struct sending s[4];
    struct child child;

    spawn_victim(&child, *state);
    meet(w, child.fd, 0, 1);
    for (unsigned i = 0; i < 4; i++)
        put(&w->side[0], 1, i, 8, 8 * MB, &s[i]);
    wait_victim(w, &child);
    kill_victim(&child);
    pump_until(w, count_done(s, 4) == 4 && w->side[0].down == 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(s[i].st, -EIO);
    pump_until_quiet(w);
    assert_int_equal(w->side[0].down, 1);
    w->side[0].f->ops->peer_del(w->side[0].f, 1);
    free_sendings(s, 4);
    world_free(w);
}

/* The socket is full and a send half written: UCX (seen in 1.13.1) aborts here when bodies of
 * active messages go out without a copy, see ZCOPY_THRESH in fabric_ucx_init.c. */
static void kill_9_with_a_full_socket(void **state)
{
    enum { N = 200 };
    struct world *w = world_new(*state, 1);
    struct sending *s = calloc(N, sizeof(*s));
    struct child child;
    unsigned before;

    assert_non_null(s);
    spawn_victim(&child, *state);
    meet(w, child.fd, 0, 1);
    put(&w->side[0], 1, 0, 8, 10, &s[0]);
    wait_victim(w, &child);
    for (unsigned i = 1; i < N; i++)
        put(&w->side[0], 1, i, 8, 100000, &s[i]);
    pump_until_quiet(w);
    before = count_done(s, N);
    assert_true(before < N);
    kill_victim(&child);
    pump_until(w, count_done(s, N) == N && w->side[0].down == 1);
    for (unsigned i = 0; i < N; i++)
        assert_true(s[i].st == 0 || s[i].st == -EIO);
    assert_int_equal(s[N - 1].st, -EIO);
    free_sendings(s, N);
    free(s);
    world_free(w);
}

int run_net_tests(const char *kind)
{
    void *arg = (void *)(uintptr_t)kind;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(refuses_bad_devices, arg),
        cmocka_unit_test_prestate(takes_a_port_of_the_range, arg),
        cmocka_unit_test_prestate(listens_where_the_last_one_did, arg),
        cmocka_unit_test_prestate(congestion_control, arg),
        cmocka_unit_test_prestate(congestion_control_behind_another_engine, arg),
        cmocka_unit_test_prestate(kill_9, arg),
        cmocka_unit_test_prestate(kill_9_with_a_full_socket, arg),
    };

    return cmocka_run_group_tests_name(kind, tests, NULL, NULL);
}
