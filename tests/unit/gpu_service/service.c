/* service.c - see service.h. */
#include "service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm/launch/engine_exec.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

#define FAKE "tests/fakecuda/libcuda.so.1"

static pid_t tester; /* the process that cmocka runs in */

void must_fail(const char *file, int line, const char *cond)
{
    if (getpid() == tester)
        _fail(file, line);
    fprintf(stderr, "%s:%d: pid %d: not so: %s\n", file, line, (int)getpid(), cond);
    fflush(stderr);
    _exit(99);
}

uint64_t draw(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- knobs of the fake ----------------------------------------------------------------------- */

static char knob_file[64];

void service_turn_knobs(const char *line)
{
    char other[80];
    FILE *f;

    snprintf(other, sizeof other, "%s.new", knob_file);
    f = fopen(other, "w");
    MUST(f && fprintf(f, "%s\n", line) > 0 && fclose(f) == 0 && rename(other, knob_file) == 0);
}

const char *const *service_knobs(const char *line)
{
    static char setting[96];
    static const char *const settings[] = {setting, NULL};

    snprintf(knob_file, sizeof knob_file, "/tmp/commd-knobs-%d", (int)getpid());
    snprintf(setting, sizeof setting, "FAKECUDA_KNOBS=%s", knob_file);
    service_turn_knobs(line);
    return settings;
}

void service_knobs_end(void)
{
    unlink(knob_file);
}

/* ---- the process ----------------------------------------------------------------------------- */

static bool take(struct service *sv, struct msg *m)
{
    const char *why;
    int fd = -1;
    unsigned nfds = 0;

    if (msg_recv_fd(sv->control, m, &fd, 1, &nfds, (int64_t)now_ms() + SERVICE_PATIENCE_MS, &why))
        return false;
    if (m->type == MSG_GPU_DEVICE && m->gpu_device.device < SERVICE_MAX_DEVICES)
        sv->device[m->gpu_device.device] = m->gpu_device;
    return true;
}

void service_start(struct service *sv, const char *const *settings)
{
    int pair[2], line[2];
    struct msg m = {0};

    memset(sv, 0, sizeof *sv);
    tester = getpid();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) == 0);
    sv->pid = fork();
    MUST(sv->pid >= 0);
    if (sv->pid == 0) {
        char fd[16];
        const char *level = getenv("GPU_TEST_LOG");

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        snprintf(fd, sizeof fd, "%d", fcntl(pair[1], F_DUPFD, ENGINE_LINE_FD + 1));
        line[1] = fcntl(line[1], F_DUPFD, ENGINE_LINE_FD + 1); /* dup2() alone may change nothing */
        dup2(line[1], ENGINE_LINE_FD);
        close(line[1]);
        for (; settings && *settings; settings++)
            putenv((char *)*settings);
        execl("transport/commd-gpu", "commd-gpu", "--fd", fd, "--node", "here", "--cuda",
              getenv("TEST_CUDA") ? getenv("TEST_CUDA") : FAKE, "--nccl",
              getenv("TEST_NCCL") ? getenv("TEST_NCCL") : "tests/fakecuda/libnccl.so.2", "--part",
              getenv("TEST_PART") ? getenv("TEST_PART") : "1073741824", "--timeout",
              getenv("TEST_TIMEOUT") ? getenv("TEST_TIMEOUT") : "30000", "--log",
              level ? level : "warn", getenv("TEST_SOCKET") ? "--socket" : NULL,
              getenv("TEST_SOCKET"), (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    close(line[1]);
    sv->line = line[0];
    sv->control = pair[0];
    fcntl(sv->control, F_SETFD, FD_CLOEXEC);
    MUST(take(sv, &m) && m.type == MSG_GPU_HELLO);
    sv->hello = m.gpu_hello;
}

/* The other end of a new control socket, as the next commd sends it. */
static void send_control(int line, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0};
    struct iovec iov = {"c", 1};
    struct msghdr hdr = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};

    *CMSG_FIRSTHDR(&hdr) = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&hdr)), &fd, sizeof fd);
    MUST(sendmsg(line, &hdr, MSG_NOSIGNAL) == 1);
}

unsigned service_resume(struct service *sv, struct msg_gpu_session *ret, unsigned most)
{
    unsigned n = 0;
    struct msg m;
    int pair[2];

    close(sv->control);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    send_control(sv->line, pair[1]);
    close(pair[1]);
    sv->control = pair[0];
    for (;;) {
        MUST(take(sv, &m));
        if (m.type != MSG_GPU_SESSION)
            break;
        if (n++ < most)
            ret[n - 1] = m.gpu_session;
    }
    MUST(m.type == MSG_GPU_HELLO && m.gpu_hello.resumed && !sv->hello.resumed);
    MUST(m.gpu_hello.devices == sv->hello.devices);
    return n;
}

bool service_ask(struct service *sv)
{
    struct msg m = {.type = MSG_PING};

    m.ping.seq = ++sv->pings;
    if (msg_send_fd(sv->control, &m, NULL, 0, (int64_t)now_ms() + SERVICE_PATIENCE_MS))
        return false;
    do {
        if (!take(sv, &m))
            return false;
    } while (m.type != MSG_PING || m.ping.seq != sv->pings);
    return true;
}

unsigned open_fds(pid_t pid)
{
    char path[64];
    unsigned n = 0;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    d = opendir(path);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

bool service_until(struct service *sv, uint32_t clients, uint32_t groups, uint64_t mapped)
{
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    while (now_ms() < end) {
        MUST(service_ask(sv));
        if (sv->device[0].clients == clients && sv->device[0].groups == groups &&
            sv->device[0].mapped == mapped)
            return true;
        usleep(2000);
    }
    return false;
}

void service_give(struct service *sv, uint32_t uid, uint32_t pid, uint32_t client, int fd)
{
    struct msg m = {.type = MSG_GPU_SESSION};

    m.gpu_session.client = client;
    m.gpu_session.uid = uid;
    m.gpu_session.payer = sv->payer ? sv->payer : uid;
    m.gpu_session.pid = pid;
    m.gpu_session.weight = sv->weight;
    MUST(msg_send_fd(sv->control, &m, &fd, 1, (int64_t)now_ms() + SERVICE_PATIENCE_MS) == 0);
    close(fd);
}

static void give(struct service *sv, uint32_t uid, uint32_t pid, int fd, uint32_t *ret_client)
{
    service_give(sv, uid, pid, ++sv->clients, fd);
    if (ret_client)
        *ret_client = sv->clients;
}

int service_session(struct service *sv, uint32_t uid, uint32_t pid, uint32_t *ret_client)
{
    int pair[2];

    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    give(sv, uid, pid, pair[1], ret_client);
    return pair[0];
}

void service_session_del(struct service *sv, uint32_t client)
{
    struct msg m = {.type = MSG_GPU_SESSION_DEL};

    m.gpu_session.client = client;
    MUST(msg_send_fd(sv->control, &m, NULL, 0, (int64_t)now_ms() + SERVICE_PATIENCE_MS) == 0);
}

int client_join(pid_t pid)
{
    int status = 0;

    MUST(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int service_status(struct service *sv)
{
    struct msg m = {0};

    while (take(sv, &m))
        ;
    close(sv->control);
    close(sv->line);
    return client_join(sv->pid);
}

int service_stop(struct service *sv)
{
    close(sv->control);
    close(sv->line);
    return client_join(sv->pid);
}

/* ---- processes ------------------------------------------------------------------------------- */

pid_t client_spawn(struct service *sv, uint32_t uid, client_fn fn, void *arg)
{
    int pair[2];
    pid_t pid;

    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[1]);
        close(sv->control);
        _exit(fn(arg, pair[0]));
    }
    close(pair[0]);
    give(sv, uid, (uint32_t)pid, pair[1], NULL);
    return pid;
}

struct meeting *meetings_new(unsigned n)
{
    void *p = mmap(NULL, n * sizeof(struct meeting), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    MUST(p != MAP_FAILED);
    return p;
}

void meet(struct meeting *m, uint32_t n)
{
    uint32_t mine = atomic_fetch_add(&m->came, 1) / n * n + n;
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    while (!seq_reached(atomic_load(&m->came), mine)) {
        MUST(now_ms() < end);
        usleep(100);
    }
}
