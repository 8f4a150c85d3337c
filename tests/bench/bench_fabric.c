/* bench_fabric.c - the fabrics tcp and ucx between two processes over TCP on lo, both spinning on
 * progress(): ping-pong latency, and streaming with a window of bodies in flight. The first
 * line is the same ping-pong over a bare TCP socket, non-blocking and spinning, as the floor.
 * Rounds are about a millisecond, and the best and the median one are printed: the best is
 * what two free cores give, the median what the machine had to spare.
 *
 *     bench_fabric [EAGER_MAX_BYTES SEG_SIZE]     (of ucx; default: what it takes itself)
 *
 * What the numbers in fabric_ucx.c rest on (UCX 1.13.1, lo, 2 cores with other work on them;
 * best rounds):
 *
 *     us, one way           8 B    4 K   32 K   64 K  128 K     GB/s  128 K  256 K    1 M
 *     plain TCP             3.9
 *     announced from 32 K   5.2    6.0   11.4   32     46             2.9    3.3    3.7
 *     announced from 64 K   5.3    6.0   11.5   19     40             3.8    4.0    4.4
 *     announced from 128 K  5.2    5.9   11.1   20     25             4.9    4.4    4.5
 *     announced from 256 K  5.3    6.1   11.6   19     25             5.1    6.7    5.4
 *
 * Not part of make check. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "shm/launch/engine_exec.h"
#include "client/perf/commd_perf.h"
#include "transport/fabric/ucx/fabric_ucx.h"

enum { MAX_BODY = 1 << 20, WINDOW = 8, ROUNDS = 61 };

struct head {
    uint32_t batch; /* the answer comes after so many messages are complete */
    uint32_t reply; /* and has a body of so many bytes */
};

struct end {
    struct fabric *f;
    uint8_t *out, *in[WINDOW];
    unsigned next_in;
    bool child; /* the child answers */
    struct head now;
    unsigned got;      /* messages complete */
    unsigned inflight; /* sends not done */
};

static struct fabric_ucx_tuning tuning;
static bool tuned;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the floor: a socket --------------------------------------------------------------------- */

/* false: the other side has closed */
static bool spin_io(int fd, char *buf, size_t len, bool out)
{
    while (len > 0) {
        ssize_t n = out ? send(fd, buf, len, MSG_NOSIGNAL) : recv(fd, buf, len, 0);

        if (n < 0 && errno != EAGAIN)
            die("socket");
        if (n == 0)
            return false;
        if (n > 0) {
            buf += n;
            len -= (size_t)n;
        }
    }
    return true;
}

static int tcp_pair(bool child, int fd)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, l = s;

    if (child) {
        if (recv(fd, &a, sizeof(a), 0) != sizeof(a) || connect(s, (struct sockaddr *)&a, sizeof(a)))
            die("connect");
    } else {
        if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 1) ||
            getsockname(l, (struct sockaddr *)&a, &len))
            die("listen");
        send(fd, &a, sizeof(a), 0);
        s = accept(l, NULL, NULL);
        close(l);
    }
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    fcntl(s, F_SETFL, O_NONBLOCK);
    return s;
}

static void raw_tcp(bool child, int fd)
{
    int s = tcp_pair(child, fd);
    double best[ROUNDS];
    char buf[8] = {0};

    while (child && spin_io(s, buf, 8, false))
        spin_io(s, buf, 8, true);
    if (child) {
        close(s);
        return;
    }
    for (unsigned r = 0; r < ROUNDS; r++) {
        double t = now();

        for (unsigned i = 0; i < 50; i++) {
            spin_io(s, buf, 8, true);
            spin_io(s, buf, 8, false);
        }
        best[r] = (now() - t) / 100 * 1e6;
    }
    close(s);
    perf_sort(best, ROUNDS);
    printf("%-16s %9s  %8s  %8s\n", "us, one way", "bytes", "best", "median");
    printf("%-16s %9d  %8.2f  %8.2f\n", "plain TCP", 8, best[0], best[ROUNDS / 2]);
}

/* ---- the fabric ------------------------------------------------------------------------------ */

static void on_sent(void *arg, int st)
{
    struct end *e = arg;

    if (st)
        exit(!e->child); /* the parent has gone */
    e->inflight--;
}

static void put(struct end *e, uint32_t len, uint32_t batch, uint32_t reply)
{
    struct head h = {batch, reply};
    int r = e->f->ops->send(e->f, 0, &h, sizeof(h), e->out, len, on_sent, e);

    if (r < 0)
        die("send");
    e->inflight += r == 0;
}

static void on_body(void *arg, int st)
{
    struct end *e = arg;

    if (st)
        exit(!e->child);
    if (++e->got == e->now.batch && e->child) {
        e->got = 0;
        put(e, e->now.reply, 1, 0);
    }
}

static void on_msg(void *arg, const struct fabric_msg *m)
{
    struct end *e = arg;
    uint8_t *buf = e->in[e->next_in++ % WINDOW];

    memcpy(&e->now, m->hdr, sizeof(e->now));
    if (!m->claim)
        memcpy(buf, m->body, m->body_len);
    if (!m->claim || e->f->ops->recv(e->f, m->claim, buf, m->body_len, on_body, e) == 1)
        on_body(e, 0);
}

static void on_down(void *arg, unsigned peer, int err, const char *why)
{
    struct end *e = arg;

    if (!e->child)
        fprintf(stderr, "link down: %s\n", why);
    exit(!e->child);
}

static void end_open(struct end *e, const char *kind, bool child, int fd)
{
    struct fabric_conf conf = {.kind = kind, .device = "lo", .tls = "tcp"};
    static const uint8_t token[2][32] = {{1}, {2}};
    struct fabric_events ev = {on_msg, on_down, e, NULL};
    uint8_t addr[FABRIC_ADDR_MAX];
    size_t len = sizeof(addr);
    char why[256];
    ssize_t n;
    int r;

    *e = (struct end){.child = child, .out = malloc(MAX_BODY)};
    memset(e->out, 1, MAX_BODY);
    for (unsigned i = 0; i < WINDOW; i++) {
        e->in[i] = malloc(MAX_BODY);
        memset(e->in[i], 2, MAX_BODY);
    }
    r = tuned && !strcmp(kind, "ucx") ? fabric_ucx_new_tuned(&conf, &tuning, &ev, &e->f, why)
                                      : fabric_new(&conf, &ev, &e->f, why);
    if (r) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    if (e->f->ops->address(e->f, addr, &len) || send(fd, addr, len, 0) < 0)
        die("address");
    n = recv(fd, addr, sizeof(addr), 0);
    if (n <= 0 || e->f->ops->peer_add(e->f, 0, addr, (size_t)n, token[child], token[!child]))
        die("peer");
}

static void wait_for(struct end *e, unsigned got, unsigned inflight)
{
    while (e->got < got || e->inflight > inflight)
        e->f->ops->progress(e->f);
    if (got)
        e->got = 0;
}

static void ping_pong(struct end *e, uint32_t len)
{
    unsigned n = len < 20000 ? 50 : 10;
    double us[ROUNDS + 1];

    for (unsigned r = 0; r <= ROUNDS; r++) {
        double t = now();

        for (unsigned i = 0; i < n; i++) {
            put(e, len, 1, len);
            wait_for(e, 1, 0);
        }
        us[r] = (now() - t) / (2.0 * n) * 1e6;
    }
    perf_sort(us + 1, ROUNDS); /* the first one warmed up */
    printf("%-16s %9u  %8.2f  %8.2f\n", e->f->ops->name, len, us[1], us[1 + ROUNDS / 2]);
}

static void stream(struct end *e, uint32_t len)
{
    unsigned n = MIN((8u << 20) / len, 1000u);
    double gbs[ROUNDS];

    for (unsigned r = 0; r < ROUNDS; r++) {
        double t = now();

        for (unsigned i = 0; i < n; i++) {
            put(e, len, n, 8);
            wait_for(e, 0, WINDOW - 1);
        }
        wait_for(e, 1, 0);
        gbs[r] = (double)n * len / (now() - t) / 1e9;
    }
    perf_sort(gbs, ROUNDS);
    printf("%-16s %9u  %8.2f  %8.2f\n", e->f->ops->name, len, gbs[ROUNDS - 1], gbs[ROUNDS / 2]);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_fabric [EAGER_MAX_BYTES SEG_SIZE]\n");
    return 64;
}

/* UCX does not survive a fork: the child comes first. */
static void compare(const char *kind, bool first)
{
    static const uint32_t pings[] = {8, 1024, 4096, 16384, 32768, 65536, 131072, 1 << 20};
    static const uint32_t streams[] = {1024, 16384, 32768, 65536, 131072, 262144, 1 << 20};
    struct end e;
    pid_t child;
    int sv[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv))
        die("socketpair");
    child = fork();
    close(sv[!child]);
    if (!child)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (first)
        raw_tcp(!child, sv[!!child]);
    end_open(&e, kind, !child, sv[!!child]);
    while (!child)
        e.f->ops->progress(e.f);
    for (unsigned i = 0; i < ARRAY_LEN(pings); i++)
        ping_pong(&e, pings[i]);
    printf("%-16s %9s  %8s  %8s\n", "GB/s, streaming", "bytes", "best", "median");
    for (unsigned i = 0; i < ARRAY_LEN(streams); i++)
        stream(&e, streams[i]);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    fabric_free(e.f);
    close(sv[1]);
}

int main(int argc, char **argv)
{
    if (argc != 1 && argc != 3)
        return usage();
    if (!getenv("UCX_HANDLE_ERRORS")) { /* libucs reads it before main() */
        for (const char *const *v = ucx_env; *v; v++)
            putenv((char *)(uintptr_t)*v);
        execv("/proc/self/exe", argv);
        die("exec");
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    tuned = argc == 3;
    if (tuned)
        tuning = (struct fabric_ucx_tuning){strtoul(argv[1], NULL, 0), argv[2]};
    compare("tcp", true);
    compare("ucx", false);
    return 0;
}
