/* bench_threads.c - what an engine moves in a second, by the thread that does its TCP: in the
 * clear, encrypted by itself, and encrypted with one thread more and with two. Each half alone: a
 * fabric that sends into a socket; and one that receives a stream which was recorded before, and is
 * in its socket. What is sent has just been written on another core, and what was received is read
 * there, as by a rank.
 *
 *     bench_threads [--json FILE]
 *
 * The thread under test has a core of its own; threads that encrypt may run on all but that one.
 * What the thread under test has waited for others, or done in their place, is left out: the
 * numbers are what it could move if nobody else were late. Each is of the best of many rounds. "of
 * clear" is of an engine that sends as much as it receives. Not part of make check. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "shm/util/wait.h"
#include "tests/bench/two_ends.h"
#include "transport/fabric/tcp/aead.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum { ROUNDS = 300, BODY = END_BODY, BUFS = END_BUFS /* a core's own cache has them */ };

struct feed {
    struct conn *c;
    uint8_t *bytes;
    size_t len;
};

static uint8_t *bodies[BUFS];
static int first_cpu, last_cpu;
static cpu_set_t others; /* than the first */

static void bind_to(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        die("cannot bind a thread to a core");
}

struct call {
    void *(*fn)(void *);
    void *arg;
};

static void *call_there(void *arg)
{
    struct call *call = arg;

    bind_to(last_cpu);
    return call->fn(call->arg);
}

static void on_last_core(void *(*fn)(void *), void *arg)
{
    struct call call = {fn, arg};
    pthread_t thread;

    if (pthread_create(&thread, NULL, call_there, &call))
        die("no thread");
    pthread_join(thread, NULL);
}

static void find_cpus(void)
{
    first_cpu = -1;
    if (sched_getaffinity(0, sizeof(others), &others) || CPU_COUNT(&others) < 2)
        die("needs two cores");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &others))
            continue;
        first_cpu = first_cpu < 0 ? cpu : first_cpu;
        last_cpu = cpu;
    }
    CPU_CLR(first_cpu, &others);
}

/* ---- two fabrics ----------------------------------------------------------------------------- */

static struct conn *conn_of(struct end *e)
{
    struct tcp *t = container_of(e->f, struct tcp, base);

    return t->slot[0]->conn[0];
}

static void meet(struct end e[2])
{
    ends_meet(e);
    while (!conn_of(&e[0]) || !conn_of(&e[1]) || conn_of(&e[0])->state != CONN_OPEN ||
           conn_of(&e[1])->state != CONN_OPEN)
        ends_turn(e);
}

/* A socket holds all of a round, so the two sides need not run at the same time. */
static void make_room(struct end *e)
{
    int room = 4 << 20, fd = conn_of(e)->fd;

    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)))
        die("run it as root: sockets have to hold 4 MB");
}

/* ---- sending --------------------------------------------------------------------------------- */

static void *throw_away(void *arg)
{
    int fd = *(int *)arg;

    while (recv(fd, NULL, 1 << 20, MSG_TRUNC | MSG_DONTWAIT) > 0)
        continue;
    return NULL;
}

static void *write_bodies(void *arg)
{
    static uint8_t round;

    round++;
    for (unsigned i = 0; i < BUFS; i++)
        memset(bodies[i], round, BODY);
    return NULL;
}

/* ns, in which something was moved */
static uint64_t send_all(struct end *e)
{
    struct conn *c = conn_of(e);
    uint64_t begin, last, waited = 0;

    on_last_core(write_bodies, NULL);
    begin = last = now_ns();
    for (unsigned i = 0; i < BUFS || e->inflight;) {
        unsigned inflight = e->inflight;
        uint64_t sent = c->sent, now;
        bool put = i < BUFS;

        if (put)
            end_send(e, bodies[i++], BODY);
        e->f->ops->progress(e->f);
        now = now_ns();
        waited += put || sent != c->sent || inflight != e->inflight ? 0 : now - last;
        last = now;
    }
    return last - begin - waited;
}

static uint64_t sending(struct end e[2])
{
    uint64_t least = UINT64_MAX;

    make_room(&e[1]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        least = MIN(least, send_all(&e[0]));
        on_last_core(throw_away, &conn_of(&e[1])->fd);
    }
    return least;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static size_t record(struct conn *c, const void *p, size_t len, uint8_t *out)
{
    struct iovec iov = {(void *)(uintptr_t)p, len};

    if (!c->seals)
        memcpy(out, p, len);
    else if (seal_put(c->seals, &iov, 1, out))
        die("cannot encrypt");
    return c->seals ? len + SEAL_MORE : len;
}

/* What @c would write for @n bodies. */
static size_t stream_of(struct conn *c, unsigned n, uint8_t *out)
{
    uint8_t *at = out;

    for (unsigned i = 0; i < n; i++) {
        struct {
            struct frame f;
            uint64_t header;
        } head = {{.len = BODY, .hdr_len = 8, .type = FRAME_MSG, .seq = c->peer->seq_out++}, 0};

        at += record(c, &head, sizeof(head), at);
        for (size_t k = 0; k < BODY; k += SEAL_DATA)
            at += record(c, bodies[i % BUFS] + k, SEAL_DATA, at);
    }
    return (size_t)(at - out);
}

static void *read_bodies(void *arg)
{
    struct end *e = arg;
    static volatile uint64_t sum;

    for (unsigned i = 0; i < BUFS; i++)
        for (unsigned k = 0; k < BODY; k += CACHELINE)
            sum += e->in[i][k];
    return NULL;
}

static void *feed(void *arg)
{
    struct feed *f = arg;
    size_t at = 0;

    f->len = stream_of(f->c, BUFS, f->bytes);
    while (at < f->len) {
        ssize_t n = send(f->c->fd, f->bytes + at, f->len - at, MSG_DONTWAIT | MSG_NOSIGNAL);

        at += n > 0 ? (size_t)n : 0;
    }
    return NULL;
}

static uint64_t receive_all(struct end e[2], struct feed *f)
{
    struct conn *c = conn_of(&e[1]);
    uint64_t begin, last, waited = 0;

    on_last_core(feed, f);
    begin = last = now_ns();
    e[1].got = 0;
    while (e[1].got < BUFS) {
        uint64_t came = c->got, now;
        unsigned got = e[1].got;

        e[1].f->ops->progress(e[1].f);
        now = now_ns();
        waited += came != c->got || got != e[1].got ? 0 : now - last;
        last = now;
    }
    on_last_core(read_bodies, &e[1]);
    return last - begin - waited;
}

static uint64_t receiving(struct end e[2])
{
    struct feed f = {conn_of(&e[0]), malloc(BUFS * (size_t)(BODY + 4096)), 0};
    uint64_t least = UINT64_MAX;

    make_room(&e[1]);
    for (unsigned round = 0; round < ROUNDS; round++)
        least = MIN(least, receive_all(e, &f));
    free(f.bytes);
    return least;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* GB/s */
static double half(enum fabric_encryption encryption, unsigned threads,
                   uint64_t (*measure)(struct end e[2]))
{
    struct end e[2];
    uint64_t least;

    for (unsigned i = 0; i < 2; i++)
        end_open(&e[i], encryption, threads, BUFS);
    sched_setaffinity(0, sizeof(others), &others); /* threads start, and stay on these */
    meet(e);
    measure(e);
    bind_to(first_cpu);
    least = measure(e);
    for (unsigned i = 0; i < 2; i++)
        end_close(&e[i]);
    return (double)BUFS * BODY / (double)least;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"in the clear", "encrypted", "with 1 thread",
                                        "with 2 threads"};
    FILE *json = argc == 3 && !strcmp(argv[1], "--json") ? fopen(argv[2], "w") : NULL;
    double clear = 0;

    if (argc > 1 && !json)
        die("usage: bench_threads [--json FILE]");
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* as in an engine */
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
    find_cpus();
    for (unsigned i = 0; i < BUFS; i++)
        bodies[i] = malloc(BODY);
    printf("%d cores, %s\n%-16s %8s %8s %9s\n", CPU_COUNT(&others) + 1,
           aead_best(SEAL_AES_128_GCM) == &aead_libcrypto ? "OpenSSL" : "libipsec-mb", "GB/s",
           "send", "receive", "of clear");
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        enum fabric_encryption on = i ? FABRIC_ENCRYPT_ON : FABRIC_ENCRYPT_OFF;
        double out = half(on, i > 1 ? i - 1 : 0, sending);
        double in = half(on, i > 1 ? i - 1 : 0, receiving), both = 1 / (1 / out + 1 / in);

        clear = i ? clear : both;
        printf("%-16s %8.2f %8.2f %9.2f\n", names[i], out, in, both / clear);
        if (json)
            fprintf(json, "%s{\"what\": \"%s\", \"send\": %.3f, \"receive\": %.3f, \"of\": %.3f}",
                    i ? ", " : "[", names[i], out, in, both / clear);
    }
    if (json) {
        fprintf(json, "]\n");
        fclose(json);
    }
    for (unsigned i = 0; i < BUFS; i++)
        free(bodies[i]);
    return 0;
}
