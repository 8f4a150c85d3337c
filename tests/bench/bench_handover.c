/* bench_handover.c - what small operations cost at least on the cores that there are.
 *
 * Between two nodes on a machine with a core for each of them: two ranks exchange a small message
 * over TCP on lo, themselves (as MPI's do), or each through an engine on its core, which it tells
 * by a word in shared memory. Nothing else is done: no agreement, no check, no group. Who waits
 * yields.
 *
 *     bench_handover [EXCHANGES] [BYTES]      (default: 50000 of 160 bytes)
 *
 * And on one node: 2, 4 and 8 ranks tell each other by a counter each that they are there. Who
 * waits yields, if there are fewer cores.
 *
 * Engines are in the ranks' session, or in one of their own, as services are. In its own it has a
 * share of the core of its own too (sched_autogroup, or cpu cgroups): there a yield gives the core
 * on only if the one who yields had more of it, so a rank, whose engine has more to do, wastes as
 * much time before the engine runs again.
 *
 * Not part of make check. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/perf/commd_perf.h"
#include "shm/util/wait.h"

enum { MOST_BYTES = 65536, WARMUP = 1000, MOST_RANKS = 8 };
enum way { DIRECT, ENGINE, ENGINE_SESSION };

struct words {
    alignas(64) _Atomic unsigned asked;
    alignas(64) _Atomic unsigned answered;
};

static unsigned exchanges = 50000;
static size_t bytes = 160;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void keep_to(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set); /* one core only: then they share it */
}

static void connected(int fd[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, len) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&a, &len) ||
        connect(fd[0], (struct sockaddr *)&a, len) || (fd[1] = accept(listener, NULL, NULL)) < 0)
        die("a connection on lo");
    close(listener);
    for (int i = 0; i < 2; i++) {
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (fcntl(fd[i], F_SETFL, O_NONBLOCK))
            die("O_NONBLOCK");
    }
}

static void send_one(int fd)
{
    static const char data[MOST_BYTES];
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = write(fd, data + done, bytes - done);
        if (n < 0 && errno != EAGAIN)
            die("write");
        done += n > 0 ? (size_t)n : 0;
    }
}

/* Has all of a message come? */
static bool received(int fd, size_t *have)
{
    static char data[MOST_BYTES];
    ssize_t n = read(fd, data, bytes - *have);

    if (n == 0 || (n < 0 && errno != EAGAIN))
        die("read");
    *have += n > 0 ? (size_t)n : 0;
    if (*have < bytes)
        return false;
    *have = 0;
    return true;
}

static _Noreturn void engine(int fd, struct words *w, unsigned total)
{
    unsigned sent = 0, got = 0;
    size_t have = 0;

    while (got < total) {
        if (atomic_load_explicit(&w->asked, memory_order_acquire) != sent) {
            send_one(fd);
            sent++;
        }
        if (received(fd, &have))
            atomic_store_explicit(&w->answered, ++got, memory_order_release);
        sched_yield();
    }
    exit(0);
}

static _Noreturn void done(double *us, bool tells)
{
    if (tells) {
        perf_sort(us + WARMUP, (int)exchanges);
        printf("%8.1f %8.1f\n", perf_percentile(us + WARMUP, (int)exchanges, 500),
               perf_percentile(us + WARMUP, (int)exchanges, 990));
    }
    exit(0);
}

static _Noreturn void rank(enum way way, int fd, struct words *w, unsigned total, bool tells)
{
    double *us = calloc(total, sizeof *us);
    size_t have = 0;

    if (!us)
        die("memory");
    for (unsigned k = 1; k <= total; k++) {
        uint64_t begin = now_ns();

        if (way == DIRECT) {
            send_one(fd);
            while (!received(fd, &have))
                cpu_relax();
        } else {
            atomic_store_explicit(&w->asked, k, memory_order_release);
            while (atomic_load_explicit(&w->answered, memory_order_acquire) < k) /* or one more */
                sched_yield();
        }
        us[k - 1] = (double)(now_ns() - begin) / 1e3;
    }
    done(us, tells);
}

static void all_here(struct words *w, unsigned n, unsigned me, unsigned turn)
{
    atomic_store_explicit(&w[me].asked, turn, memory_order_release);
    for (unsigned k = 0; k < n; k++)
        while (atomic_load_explicit(&w[k].asked, memory_order_acquire) < turn)
            n > wait_cores() ? (void)sched_yield() : cpu_relax();
}

/* As commd-perf does: once to begin together, and once that counts. */
static _Noreturn void rank_of(struct words *w, unsigned n, unsigned me, unsigned total)
{
    double *us = calloc(total, sizeof *us);

    if (!us)
        die("memory");
    for (unsigned k = 0; k < total; k++) {
        uint64_t begin;

        all_here(w, n, me, 2 * k + 1);
        begin = now_ns();
        all_here(w, n, me, 2 * k + 2);
        us[k] = (double)(now_ns() - begin) / 1e3;
    }
    done(us, me == 0);
}

/* A process on @core that does not outlive us. */
static bool in_child(int core)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        die("fork");
    if (pid)
        return false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        exit(1);
    if (core >= 0)
        keep_to(core);
    return true;
}

static struct words *shared_words(unsigned n)
{
    struct words *w =
        mmap(NULL, n * sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (w == MAP_FAILED)
        die("shared memory");
    return w;
}

/* One that fails has told why, and takes the others with it. */
static void wait_for_all(void)
{
    int status;

    while (wait(&status) > 0)
        if (status)
            exit(1);
}

static void measure_node(unsigned n)
{
    struct words *w = shared_words(n);
    char name[40];

    snprintf(name, sizeof name, "%u ranks on %u cores", n, wait_cores());
    printf("%-36s %-6s", name, "free");
    fflush(stdout);
    for (unsigned i = 0; i < n; i++)
        if (in_child(-1))
            rank_of(w, n, i, exchanges + WARMUP);
    wait_for_all();
    munmap(w, n * sizeof *w);
}

static void measure(const char *name, enum way way, bool bound)
{
    struct words *w = shared_words(2);
    unsigned total = exchanges + WARMUP;
    int fd[2];

    connected(fd);
    printf("%-36s %-6s", name, bound ? "bound" : "free");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        if (way != DIRECT && in_child(bound ? i : -1)) {
            if (way == ENGINE_SESSION)
                setsid();
            engine(fd[i], &w[i], total);
        }
        if (in_child(bound ? i : -1))
            rank(way, fd[i], &w[i], total, i == 0);
    }
    wait_for_all();
    close(fd[0]);
    close(fd[1]);
    munmap(w, 2 * sizeof *w);
}

static size_t number(const char *text, size_t least, size_t most)
{
    char *end;
    size_t n = strtoul(text, &end, 10);

    if (*end || n < least || n > most) {
        fprintf(stderr,
                "bench_handover: \"%s\" is no number from %zu to %zu\n"
                "Usage: bench_handover [EXCHANGES] [BYTES]\n",
                text, least, most);
        exit(64);
    }
    return n;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        exchanges = (unsigned)number(argv[1], 100, 10000000);
    if (argc > 2)
        bytes = number(argv[2], 1, MOST_BYTES);
    printf("us per exchange of %zu bytes                      p50      p99\n", bytes);
    for (int bound = 0; bound < 2; bound++) {
        measure("ranks by themselves", DIRECT, bound);
        measure("an engine each, in their session", ENGINE, bound);
        measure("an engine each, in its own session", ENGINE_SESSION, bound);
    }
    printf("us until all ranks of one node know of all\n");
    for (unsigned n = 2; n <= MOST_RANKS; n *= 2)
        measure_node(n);
    return 0;
}
