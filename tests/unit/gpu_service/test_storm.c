/* test_storm.c - commd-gpu under clients that send, store and do whatever a seed says, for some
 * seconds: messages that are nearly right, words in the shared region, descriptors, deaths. Two
 * ranks of another user work beside them, and get what is right. At the end nothing is left.
 *
 *     GPU_STORM_SECONDS=n   how long; 3
 *     GPU_STORM_SEED=n      where it begins; printed */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "oracle.h"
#include "shm/gpu/able.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

enum { ACTORS = 6, STEPS = 300, BUFFERS = 6, GROUPS = 8 };

/* ---- who does nothing wrong ------------------------------------------------------------------ */

struct calm {
    _Atomic uint32_t over, done;
};

struct worker {
    struct calm *calm;
    unsigned rank;
};

static int works(void *arg, int sock)
{
    const struct worker *w = arg;
    const uint8_t device[] = {0, 1, 0};
    uint64_t seed = 99;
    struct buffer in, out;
    struct attaching m;
    struct client c;

    MUST(client_open(&c, sock, device[w->rank]) == 0);
    MUST(client_alloc(&c, 1 << 20, &in) == 0 && client_alloc(&c, 1 << 20, &out) == 0);
    membership_spread(&m, &c, 3, 1, 3, w->rank, device);
    MUST(client_attach(&c, &m) == 0);
    for (uint32_t seq = 1;; seq++) {
        struct session_result r;
        struct task t;
        struct sample s;

        sample_draw(&s, &seed, 3, 2, seq);
        task_announce(&t, &c, &s, 3, w->rank, &in, 0, &out, 0);
        if (client_wait(&c, t.n, &r))
            fprintf(stderr, "who works: %d %s\n", r.code, r.text);
        MUST(c.region->results[t.n % SESSION_SLOTS].code == 0);
        task_check(&t, &c);
        if (w->rank == 0)
            atomic_store(&w->calm->done, seq);
        if (w->rank == 0 && atomic_load(&w->calm->over) == 1)
            atomic_store(&w->calm->over, seq + 3);
        if (atomic_load(&w->calm->over) > 1 && seq >= atomic_load(&w->calm->over))
            break;
    }
    meet((struct meeting *)&w->calm[1], 3);
    return 0;
}

/* ---- who does anything ----------------------------------------------------------------------- */

struct actor {
    uint64_t seed;
    unsigned device;
    struct client c;
    struct buffer buffer[BUFFERS];
    unsigned nbuffers;
    struct group {
        uint32_t world;
        uint64_t seq; /* 0: it is not in it, as far as it knows */
    } group[GROUPS];  /* by the client's number */
};

static uint64_t upto(struct actor *x, uint64_t n)
{
    return draw(&x->seed) % n;
}

static bool chance(struct actor *x, unsigned one_of)
{
    return upto(x, one_of) == 0;
}

/* Some bytes of it become others. */
static void mutate(struct actor *x, void *p, size_t n)
{
    static const uint64_t odd[] = {0, 1, 255, 256, UINT32_MAX, 1ull << 31, 1ull << 63, UINT64_MAX};

    for (unsigned i = 0; i < 1 + upto(x, 3); i++) {
        size_t at = upto(x, n), len = MIN((size_t)1 << upto(x, 4), n - at);
        uint64_t word = chance(x, 2) ? odd[upto(x, ARRAY_LEN(odd))] : draw(&x->seed);

        memcpy((char *)p + at, &word, len);
    }
}

/* False: the session has ended. What comes back is only looked at for that. */
static bool tell(struct actor *x, const void *m, size_t n, const int *fds, unsigned nfds)
{
    char control[CMSG_SPACE(8 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {(void *)m, n};
    struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
    char answer[sizeof(struct session_msg)];
    ssize_t got;

    if (nfds) {
        struct cmsghdr *h = (void *)control;

        hdr.msg_control = control;
        hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    if (sendmsg(x->c.sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN)
        return false;
    while ((got = recv(x->c.sock, answer, sizeof answer, MSG_DONTWAIT)) > 0)
        ;
    return got < 0;
}

static bool act_memory(struct actor *x)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = ++x->c.memories};
    struct buffer *b = &x->buffer[upto(x, BUFFERS)];
    size_t whole;
    int fds[8];
    unsigned nfds = 0;

    if (x->nbuffers < BUFFERS) {
        b = &x->buffer[x->nbuffers++];
        MUST(!x->c.cu.mem_alloc(&b->at, 1 << 20));
    }
    if (!b->at)
        return true;
    MUST(!x->c.cu.mem_range(NULL, &whole, b->at));
    b->id = m.id; /* what it had before stays told of */
    b->bytes = whole;
    m.memory.kind = SESSION_IPC;
    m.memory.bytes = whole;
    m.memory.uuid = x->c.uuid;
    MUST(!x->c.cu.ipc_get(&m.memory.ipc, b->at));
    if (chance(x, 4)) {
        m.memory.kind = SESSION_VMM;
        m.memory.chunks = nfds = 1u << upto(x, 4);
        for (unsigned i = 0; i < nfds; i++) {
            fds[i] = chance(x, 2) ? x->c.bell : chance(x, 2) ? x->c.sock : x->c.fds[0];
            m.memory.chunk_bytes[i] = m.memory.bytes / nfds;
        }
    }
    if (chance(x, 16))
        mutate(x, &m, offsetof(struct session_msg, memory.chunk_bytes) + 64);
    return tell(x, &m, sizeof m, fds, nfds);
}

/* In groups of the same few numbers: so those of one user come together, now and then. */
static bool act_attach(struct actor *x)
{
    static char bytes[SESSION_MSG_MAX];
    uint32_t number = (uint32_t)upto(x, GROUPS), world = 1 + (uint32_t)upto(x, 3), rank;
    uint8_t device[4];
    struct session_msg msg;
    struct attaching m;
    size_t len;

    if (x->group[number].seq && !chance(x, 30))
        return true;
    rank = (uint32_t)upto(x, world);
    for (unsigned i = 0; i < 4; i++) /* of both GPUs, or of its own alone */
        device[i] = (uint8_t)((x->device + (number & 1 ? i + rank : 0)) % 2);
    membership_spread(&m, &x->c, number, number + 10 + device[0] * 100, world, rank, device);
    m.epoch = upto(x, 3);
    x->group[number].world = world;
    x->group[number].seq = 1;
    membership_message(&m, &msg, bytes + sizeof msg, &len);
    memcpy(bytes, &msg, sizeof msg);
    if (chance(x, 12))
        mutate(x, bytes, sizeof msg + len);
    return tell(x, bytes, sizeof msg + len - (chance(x, 60) ? 1 : 0), NULL, 0);
}

/* Memory of commd-gpu's own, which operations may name then; or another session. */
static bool act_lend(struct actor *x)
{
    struct session_msg m = {.type = SESSION_LEND, .id = ++x->c.memories};
    struct buffer *b = &x->buffer[upto(x, BUFFERS)];

    if (!chance(x, 4))
        return true;
    if (chance(x, 8))
        m.type = SESSION_MORE;
    else
        b->id = m.id;
    m.memory.bytes = 1 + upto(x, 3 << 20);
    if (chance(x, 16))
        mutate(x, &m, offsetof(struct session_msg, memory.uuid));
    return tell(x, &m, sizeof m, NULL, 0);
}

static bool act_small(struct actor *x)
{
    static const uint32_t types[] = {SESSION_FORGET, SESSION_FORGET, SESSION_DETACH, SESSION_ABORT};
    struct session_msg m = {.type = types[upto(x, ARRAY_LEN(types))]};

    m.id =
        m.type == SESSION_FORGET ? (uint32_t)upto(x, x->c.memories + 1) : (uint32_t)upto(x, GROUPS);
    memset(m.answer.text, 'x', sizeof m.answer.text);
    m.answer.code = (int32_t)draw(&x->seed) % 30;
    m.answer.rank = (int32_t)upto(x, 5) - 1;
    if (m.type == SESSION_DETACH || m.type == SESSION_ABORT) {
        if (!x->group[m.id].seq && !chance(x, 30))
            return true;
        x->group[m.id].seq *= m.type == SESSION_ABORT;
    } else if (!chance(x, 30)) { /* the last of its buffers, once */
        struct buffer *b = &x->buffer[upto(x, BUFFERS)];

        if (!b->id)
            return true;
        m.id = b->id;
        b->id = 0;
    }
    if (chance(x, 20))
        mutate(x, &m, 16);
    return tell(x, &m, chance(x, 20) ? 1 + upto(x, sizeof m) : sizeof m, NULL, 0);
}

/* An operation that could be right: in a group and memory that it told of, perhaps. */
static bool act_announce(struct actor *x)
{
    uint32_t number = (uint32_t)upto(x, GROUPS);
    struct group *g = &x->group[number];
    static uint64_t words[6 * 4];
    struct session_slot *s;
    struct request q = {.group = number};
    uint64_t n = x->c.next;

    if (n >= SESSION_SLOTS && !client_done(&x->c, n - SESSION_SLOTS))
        return true;
    if (!g->seq && !chance(x, 50))
        return true;
    q.desc = (struct op_desc){.seq = g->seq++,
                              .count = upto(x, 3) * 100,
                              .coll = (uint8_t)upto(x, COLL_ALL_TO_ALL_V + 1),
                              .dtype = chance(x, 2) ? DTYPE_F32 : (uint8_t)upto(x, DTYPE_F32 + 1),
                              .redop = chance(x, 2) ? REDOP_SUM : (uint8_t)upto(x, 6),
                              .root = (uint32_t)upto(x, 2)};
    if (!gpu_able(&q.desc, number & 1 ? 2 : 1) && !chance(x, 30)) {
        q.desc.coll = COLL_ALL_REDUCE;
        q.desc.dtype = DTYPE_F32;
        q.desc.redop = REDOP_SUM;
    }
    q.send = (struct session_place){.memory = x->buffer[upto(x, BUFFERS)].id,
                                    .offset = upto(x, 64) * 64};
    q.recv = (struct session_place){.memory = x->buffer[upto(x, BUFFERS)].id,
                                    .offset = 65536 + upto(x, 64) * 64};
    for (unsigned i = 0; i < ARRAY_LEN(words); i++)
        words[i] = upto(x, 50);
    if (q.desc.coll > COLL_ALL_TO_ALL || chance(x, 20)) {
        q.aux_bits = chance(x, 4) ? (uint32_t)upto(x, 16) : SESSION_SEND_COUNTS;
        q.aux = words;
        q.aux_words = (uint32_t)MIN((uint64_t)__builtin_popcount(q.aux_bits) * g->world, 24ull);
    }
    client_announce_only(&x->c, &q);
    s = &x->c.region->slots[n % SESSION_SLOTS];
    if (chance(x, 12)) /* after it was announced: the copy may have both */
        mutate(x, (char *)s + 4, sizeof *s - 4);
    if (!chance(x, 20))
        client_ready(&x->c, n);
    return true;
}

/* Words of the region, whoever they are of. */
static bool act_scribble(struct actor *x)
{
    struct session_region *r = x->c.region;

    for (unsigned i = 0; i < 1 + upto(x, 8); i++)
        switch (upto(x, 4)) {
        case 0:
            mutate(x, &r->flags.ready, sizeof r->flags.ready);
            break;
        case 1:
            mutate(x, &r->flags.done, sizeof r->flags.done);
            break;
        case 2:
            mutate(x, r->results, sizeof r->results);
            break;
        case 3:
            mutate(x, &r->asleep, 4);
            break;
        }
    if (chance(x, 3))
        MUST(write(x->c.bell, &(uint64_t){1}, 8) == 8 || errno == EAGAIN);
    return true;
}

static bool act_garbage(struct actor *x)
{
    struct session_msg m;
    int fds[8];
    unsigned nfds = chance(x, 3) ? 1 + (unsigned)upto(x, 8) : 0;

    for (unsigned i = 0; i < sizeof m / 8; i++)
        ((uint64_t *)&m)[i] = draw(&x->seed);
    m.type = (uint32_t)upto(x, SESSION_LEND + 2);
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = x->c.sock;
    return tell(x, &m, 1 + upto(x, sizeof m), fds, nfds);
}

static int acts(void *arg, int sock)
{
    static struct actor x;
    static bool (*const often[])(struct actor *) = {act_memory,   act_attach,   act_announce,
                                                    act_announce, act_announce, act_small,
                                                    act_scribble, act_lend};
    bool on = true;

    x.seed = *(uint64_t *)arg;
    if (chance(&x, 30)) { /* it does not even say hello */
        x.c.sock = sock;
        act_garbage(&x);
        return 0;
    }
    x.device = (unsigned)upto(&x, 2);
    if (client_open(&x.c, sock, (int)x.device))
        return 0;
    fcntl(x.c.bell, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 3; i++)
        on = on && act_memory(&x) && act_attach(&x);
    usleep(2000); /* what it has told of is there */
    for (unsigned step = 0; on && step < STEPS; step++) {
        on = chance(&x, 100) ? act_garbage(&x) : often[upto(&x, ARRAY_LEN(often))](&x);
        if (chance(&x, 20))
            usleep((useconds_t)upto(&x, 3000));
        if (chance(&x, 400))
            raise(SIGKILL);
    }
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    return getenv(name) ? strtoull(getenv(name), NULL, 0) : otherwise;
}

/* Until @end; each that has ended is followed by another one. */
static unsigned storm(struct service *sv, uint64_t *seed, uint64_t end)
{
    uint64_t seeds[ACTORS];
    pid_t pids[ACTORS];
    unsigned n = 0;

    for (unsigned i = 0; i < ACTORS; i++, n++) {
        seeds[i] = draw(seed);
        pids[i] = client_spawn(sv, 2000 + i % 2, acts, &seeds[i]);
    }
    for (unsigned left = ACTORS; left;) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0);
        unsigned i = 0;

        while (i < ACTORS && pids[i] != pid)
            i++;
        if (i == ACTORS) {
            print_error("pid %d has ended with 0x%x\n", (int)pid, status);
            fail();
        }
        if (status && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)) {
            print_error("seed %#llx: 0x%x\n", (unsigned long long)seeds[i], status);
            fail();
        }
        left--;
        pids[i] = 0;
        if (now_ms() >= end)
            continue;
        seeds[i] = draw(seed);
        pids[i] = client_spawn(sv, 2000 + i % 2, acts, &seeds[i]);
        left++;
        n++;
    }
    return n;
}

static void whatever_clients_do(void **state)
{
    static const char *const settings[] = {"FAKECUDA_DELAY_US=200", NULL};
    uint64_t seed = setting("GPU_STORM_SEED", 1), begin = seed;
    uint64_t end = now_ms() + 1000 * setting("GPU_STORM_SECONDS", 3);
    struct calm *calm = (struct calm *)meetings_new(64);
    struct worker w[3];
    struct service sv;
    unsigned n, fds;
    pid_t pids[3];

    (void)state;
    env_set("GPU_TEST_LOG", getenv("GPU_TEST_TALK") ? "info" : "error");
    service_start(&sv, settings);
    env_set("GPU_TEST_LOG", NULL);
    fds = open_fds(sv.pid);
    for (unsigned i = 0; i < 3; i++) {
        w[i] = (struct worker){calm, i};
        pids[i] = client_spawn(&sv, 1000, works, &w[i]);
    }
    n = storm(&sv, &seed, end);
    print_message("seed %llu: %u clients, %u operations beside them\n", (unsigned long long)begin,
                  n, atomic_load(&calm->done));
    assert_true(atomic_load(&calm->done) > 10);
    atomic_store(&calm->over, 1);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    for (unsigned i = 0; i < 100 && open_fds(sv.pid) > fds + 16; i++)
        usleep(20000); /* those of NCCL and of the closer may come and go */
    assert_in_range(open_fds(sv.pid), 1, fds + 16);
    assert_int_equal(service_stop(&sv), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whatever_clients_do)};

    env_set("FAKECUDA_DEVICES", "2");
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
