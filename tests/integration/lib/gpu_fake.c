/* gpu_fake.c - for test_gpu_service.py: both sides of commd's GPU service, without GPUs.
 *
 *   gpu_fake --fd 3 --socket PATH ...   as commd starts commd-gpu. $FAKE_GPU says how it behaves:
 *     ""          two devices; a session is told who it is each time that it sends something
 *     mute        never says hello
 *     no-device   has none, and says so
 *     exit        ends with status 3
 *     join N      the same as "", and becomes rank --node (its last digit) of N in the group
 *                 "commd-gpu/test" at the first session; what becomes of it is in its log
 *   gpu_fake --launcher FD              as systemd starts the launcher of commd-gpu
 *   gpu_fake --ask PATH                 a client; words from stdin, a line to stdout for each:
 *     ask         a request; "answer CAUSE TEXT". The session of the first that succeeds is kept
 *     many N      N requests at once; "causes" and how many of each
 *     send N      N requests at once, whose answers nobody waits for
 *     say         sends something; "client C uid U pid P of N", or "end"
 *     end         waits for the end of the session; "end" */
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "shm/proto/codec.h"
#include "transport/process/control.h"
#include "transport/process/launcher.h"

enum { MOST = 1024, PATIENCE_MS = 300000 };

static int64_t deadline(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000 + PATIENCE_MS;
}

static void die(const char *what, int r)
{
    fprintf(stderr, "gpu_fake: %s: %s\n", what, strerror(r < 0 ? -r : r));
    exit(1);
}

static void send_msg(int sock, const struct msg *msg)
{
    int r = msg_send_fd(sock, msg, NULL, 0, deadline());

    if (r)
        die(msg_type_name(msg->type), r);
}

/* Returns the descriptor that came along, or -1. */
static int receive(int sock, struct msg *ret_msg)
{
    const char *why = "";
    unsigned n = 0;
    int fds[2], r = msg_recv_fd(sock, ret_msg, fds, 2, &n, deadline(), &why);

    if (r)
        die(r == -EPROTO ? why : "receiving", r);
    if (n == 2)
        close(fds[1]);
    return n ? fds[0] : -1;
}

static int connect_to(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    if (sock < 0 || connect(sock, (struct sockaddr *)&addr, sizeof(addr)))
        die(path, errno);
    msg.client_hello.version = MSG_VERSION;
    snprintf(msg.client_hello.program, sizeof(msg.client_hello.program), "gpu_fake");
    send_msg(sock, &msg);
    receive(sock, &msg);
    if (msg.type != MSG_WELCOME)
        die(msg.type == MSG_REFUSED ? msg.refused.text : "no welcome", EPROTO);
    return sock;
}

/* ---- the service ------------------------------------------------------------------------- */

static struct session {
    int fd;
    struct msg_gpu_session who;
} sessions[MOST];
static unsigned nsessions, served;
static struct control control = {.sock = -1, .line = -1};

static void tell_devices(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct msg msg = {.type = MSG_GPU_DEVICE};

        msg.gpu_device = (struct msg_gpu_device){.device = i,
                                                 .clients = nsessions,
                                                 .memory = 80ull << 30,
                                                 .mapped = 1 << 20,
                                                 .groups = 3,
                                                 .communicators = 1,
                                                 .operations = served,
                                                 .moved = 1000ull * served};
        snprintf(msg.gpu_device.uuid, sizeof(msg.gpu_device.uuid), "GPU-fake-%u", i);
        snprintf(msg.gpu_device.name, sizeof(msg.gpu_device.name), "Fake %u", i);
        snprintf(msg.gpu_device.state, sizeof(msg.gpu_device.state), "ok");
        control_send(&control, &msg, -1);
    }
}

static void tell_sessions(void)
{
    for (unsigned i = 0; i < nsessions; i++) {
        struct msg msg = {.type = MSG_GPU_SESSION, .gpu_session = sessions[i].who};

        control_send(&control, &msg, -1);
    }
}

static void hello(bool resumed, bool has_devices)
{
    struct msg msg = {.type = MSG_GPU_HELLO};

    msg.gpu_hello.version = MSG_VERSION;
    msg.gpu_hello.pid = (uint32_t)getpid();
    msg.gpu_hello.resumed = resumed;
    msg.gpu_hello.devices = has_devices ? 2 : 0;
    msg.gpu_hello.nccl = 22809;
    snprintf(msg.gpu_hello.text, sizeof(msg.gpu_hello.text), "%s",
             has_devices ? "two fake GPUs" : "the driver found no device");
    control_send(&control, &msg, -1);
    if (has_devices)
        tell_devices();
}

static void session_del(unsigned i)
{
    close(sessions[i].fd);
    sessions[i] = sessions[--nsessions];
}

/* A rank of a group over several nodes, for as long as this process lives. */
static void become_member(const char *socket_path, const char *node, unsigned size)
{
    static int sock = -1;
    struct msg msg = {.type = MSG_CLIENT_JOIN};
    int fd;

    if (sock >= 0)
        return;
    sock = connect_to(socket_path);
    msg.client_join.req = 1;
    msg.client_join.rank = (uint32_t)(node[strlen(node) - 1] - '0');
    msg.client_join.size = size;
    snprintf(msg.client_join.name, sizeof(msg.client_join.name), "commd-gpu/test");
    send_msg(sock, &msg);
    fd = receive(sock, &msg);
    fprintf(stderr, "gpu_fake: %s\n",
            msg.type == MSG_JOINED        ? "joined commd-gpu/test"
            : msg.type == MSG_JOIN_FAILED ? msg.join_failed.text
                                          : "no answer to a join");
    close(fd);
    msg_fini(&msg);
}

static void take(const struct msg *msg, int fd, const char *join, const char *socket_path,
                 const char *node)
{
    struct msg pong = {.type = MSG_PING};

    if (msg->type == MSG_PING) {
        tell_devices();
        pong.ping.seq = msg->ping.seq;
        pong.ping.pong = 1;
        control_send(&control, &pong, -1);
    } else if (msg->type == MSG_GPU_SESSION && fd >= 0 && nsessions < MOST) {
        sessions[nsessions++] = (struct session){fd, msg->gpu_session};
        if (join)
            become_member(socket_path, node, (unsigned)atoi(join));
    } else if (msg->type == MSG_GPU_SESSION_DEL && fd < 0) {
        for (unsigned i = 0; i < nsessions; i++)
            if (sessions[i].who.client == msg->gpu_session.client) {
                session_del(i);
                break;
            }
    } else {
        die(msg_type_name(msg->type), EPROTO);
    }
}

/* False: commd is gone, and none will follow. */
static bool control_turn(const char *join, const char *socket_path, const char *node)
{
    struct msg msg;
    int fd;

    switch (control_next(&control, &msg, &fd)) {
    case CONTROL_NONE:
        break;
    case CONTROL_MSG:
        take(&msg, fd, join, socket_path, node);
        break;
    case CONTROL_NEW:
        tell_sessions();
        hello(true, true);
        break;
    case CONTROL_END:
        return false;
    }
    return true;
}

static void session(unsigned i)
{
    struct session *s = &sessions[i];
    char text[128];

    if (recv(s->fd, text, sizeof(text), MSG_DONTWAIT) <= 0) {
        session_del(i);
        return;
    }
    served++;
    snprintf(text, sizeof(text), "client %u uid %u pid %u of %u", s->who.client, s->who.uid,
             s->who.pid, nsessions);
    (void)!send(s->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int serve(int sock, const char *socket_path, const char *node)
{
    const char *mode = getenv("FAKE_GPU") ? getenv("FAKE_GPU") : "";
    const char *join = strncmp(mode, "join ", 5) ? NULL : mode + 5;

    if (!strcmp(mode, "exit"))
        return 3;
    if (control_begin(&control, sock))
        die("the control socket", errno);
    if (strcmp(mode, "mute"))
        hello(false, strcmp(mode, "no-device"));
    for (;;) {
        struct pollfd p[1 + MOST] = {{.fd = control_fd(&control), .events = POLLIN}};
        unsigned n = nsessions;

        for (unsigned i = 0; i < n; i++)
            p[1 + i] = (struct pollfd){.fd = sessions[i].fd, .events = POLLIN};
        if (poll(p, 1 + n, -1) < 0)
            die("poll", errno);
        for (unsigned i = n; i-- > 0;) /* from behind: what ends is replaced by the last */
            if (p[1 + i].revents)
                session(i);
        if (p[0].revents && !control_turn(join, socket_path, node))
            return 0;
    }
}

/* ---- a client ------------------------------------------------------------------------------ */

static unsigned request;

static void send_asks(int sock, unsigned n)
{
    struct msg msg = {.type = MSG_GPU_ASK};

    for (unsigned i = 0; i < n; i++) {
        msg.gpu_ask.req = ++request;
        send_msg(sock, &msg);
    }
}

static void ask(int sock, int *session_fd)
{
    struct msg msg;
    int fd;

    send_asks(sock, 1);
    fd = receive(sock, &msg);
    if (msg.type != MSG_GPU_ANSWER || msg.gpu_answer.req != request ||
        (fd >= 0) != (msg.gpu_answer.cause == CAUSE_NONE))
        die("a wrong answer", EPROTO);
    printf("answer %u %s\n", msg.gpu_answer.cause, msg.gpu_answer.text);
    if (*session_fd < 0)
        *session_fd = fd;
    else
        close(fd);
}

static void many(int sock, unsigned n)
{
    unsigned causes[CAUSE_COUNT] = {0}, got = 0;

    while (got < n) { /* not so many at a time that both sides wait for the other one to read */
        unsigned some = MIN(n - got, 100u);

        send_asks(sock, some);
        for (unsigned i = 0; i < some; i++, got++) {
            struct msg msg;
            int fd = receive(sock, &msg);

            if (msg.type != MSG_GPU_ANSWER)
                die(msg_type_name(msg.type), EPROTO);
            causes[msg.gpu_answer.cause]++;
            close(fd);
        }
    }
    printf("causes");
    for (unsigned i = 0; i < CAUSE_COUNT; i++)
        if (causes[i])
            printf(" %u:%u", i, causes[i]);
    printf("\n");
}

static void hear(int fd, bool only_end)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char text[128];
    ssize_t n;

    do {
        if (poll(&p, 1, PATIENCE_MS) != 1)
            die("nothing from the session", ETIMEDOUT);
        n = recv(fd, text, sizeof(text) - 1, 0);
    } while (n > 0 && only_end);
    text[MAX(n, 0)] = 0;
    printf("%s\n", n > 0 ? text : "end");
}

static int be_client(const char *path)
{
    int sock = connect_to(path), session_fd = -1;
    char line[64];

    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("pid %d\n", (int)getpid());
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "ask")) {
            ask(sock, &session_fd);
        } else if (!strncmp(line, "many ", 5)) {
            many(sock, (unsigned)atoi(line + 5));
        } else if (!strncmp(line, "send ", 5)) {
            send_asks(sock, (unsigned)atoi(line + 5));
            printf("sent\n");
        } else if (!strcmp(line, "say")) {
            (void)!send(session_fd, "?", 1, MSG_NOSIGNAL);
            hear(session_fd, false);
        } else if (!strcmp(line, "end")) {
            hear(session_fd, true);
        } else {
            die(line, EINVAL);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *socket_path = "", *node = "";
    int fd = -1;

    if (argc == 3 && !strcmp(argv[1], "--ask"))
        return be_client(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--launcher"))
        return launcher_run(atoi(argv[2]), gpu_env);
    fprintf(stderr, "gpu_fake:");
    for (int i = 1; i + 1 < argc; i += 2) {
        fprintf(stderr, " %s %s", argv[i], argv[i + 1]);
        if (!strcmp(argv[i], "--fd"))
            fd = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--socket"))
            socket_path = argv[i + 1];
        else if (!strcmp(argv[i], "--node"))
            node = argv[i + 1];
    }
    fprintf(stderr, "; CUDA_VISIBLE_DEVICES=%s NCCL_DEBUG=%s COMMD_GPU=%s\n",
            getenv("CUDA_VISIBLE_DEVICES"), getenv("NCCL_DEBUG"), getenv("COMMD_GPU"));
    return fd < 0 ? 64 : serve(fd, socket_path, node);
}
