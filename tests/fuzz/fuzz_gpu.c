/* fuzz_gpu.c - clients of commd-gpu that send and write what they like: hello, memory, loans, other
 * sessions, groups, operations, words. The sessions, groups and launches are the real ones, on one
 * thread: jobs run when the input says so, and the GPU works when it says so (gpu_stub.h), on
 * memory that a sanitizer knows. Whatever clients do, commd-gpu must not end, no buffer be left,
 * and nothing remain once they are gone.
 *
 * Input: records of one byte, what is done, modulo ACTS, and then as many as that takes; what is
 * missing at the end is 0. What is built as it should be gets changes on the way: a number of them,
 * then offset (2 bytes), width and value of each. */
#include "tests/fuzz/gpu_stub.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/util/memfd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { CLIENTS = 4, MAX_RECORDS = 300, PART = 4096 };

static struct gpu g;
static struct gpu_gate gate;
static STAILQ_HEAD(, gjob) jobs; /* in one line: their lanes only say which may run at a time */

static struct fuzz_client {
    int sock, more; /* more: the socket of another session that it has been given */
    struct session_region *region;
    uint64_t next;
    uint32_t aux;
    unsigned device;
    uint64_t seq[8]; /* of its groups */
    uint32_t world[8];
    bool there;
} clients[CLIENTS];

static const uint8_t *in;
static size_t left;

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_gpu: %s\n", what);
        abort();
    }
}

static uint8_t byte(void)
{
    if (!left)
        return 0;
    left--;
    return *in++;
}

static uint16_t word(void)
{
    uint16_t low = byte();

    return (uint16_t)(low | byte() << 8);
}

/* ---- what the rest of commd-gpu is to sessions -------------------------------------------------
 */

void gpu_log_user(struct gpu *gpu, uint32_t uid, unsigned level, const char *format, ...)
{
}

void gpu_log(const struct gpu *gpu, unsigned level, const char *format, ...)
{
    static char text[2048];
    va_list args;

    (void)gpu, (void)level;
    va_start(args, format);
    must(vsnprintf(text, sizeof text, format, args) >= 0, "a text");
    va_end(args);
}

void gpu_fatal(struct gpu *gpu, const char *format, ...)
{
    va_list args;

    (void)gpu;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    must(false, ": clients have ended commd-gpu");
    abort();
}

int gpu_watch(struct gpu *gpu, int fd, uint32_t events, struct gwatch *w)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};

    return epoll_ctl(gpu->epoll, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

int thread_start(void *(*fn)(void *), void *arg, size_t stack)
{
    fn(arg);
    return 0;
}

void jobs_add(struct gjobs *none, struct glane *lane, struct gjob *job)
{
    (void)none, (void)lane;
    STAILQ_INSERT_TAIL(&jobs, job, next);
}

bool jobs_gate(struct gjobs *none, enum gate_event event)
{
    (void)none;
    return gpu_gate_step(&gate, event); /* no job is worked on: that is between turns */
}

static bool jobs_run(unsigned n)
{
    bool any = false;
    struct gjob *job;

    for (; n && (job = STAILQ_FIRST(&jobs)); n--, any = true) {
        STAILQ_REMOVE_HEAD(&jobs, next);
        job->work(job);
        job->done(job);
    }
    return any;
}

/* Groups over several nodes: there are none. */
const char *wire_open(struct ggroup *gr, int *ret_code)
{
    *ret_code = COMMD_E_INVALID;
    return gr->nnodes == 1 ? NULL : "one node";
}

void wire_broken(struct ggroup *gr)
{
    (void)gr;
}

void wire_close(struct ggroup *gr)
{
    (void)gr;
}

void wire_free(struct ggroup *gr)
{
    (void)gr;
}

void wire_ready(struct gop *op, uint32_t part, int code, int rank, const char *text)
{
    (void)op, (void)part, (void)code, (void)rank, (void)text;
    must(false, "an operation of several nodes");
}

bool wire_promised(const struct ggroup *gr)
{
    (void)gr;
    return false;
}

/* ---- turns, as gpu_main.c has them -------------------------------------------------------------
 */

static void turn(void)
{
    struct guser *u, *next_user;
    struct gsession *s, *next;
    struct ggroup *gr;

    devices_turn(&g);
    for (u = TAILQ_FIRST(&g.busy); u; u = next_user) {
        next_user = TAILQ_NEXT(u, busy_link);
        for (s = TAILQ_FIRST(&u->active); s; s = next) {
            next = TAILQ_NEXT(s, active_link);
            slot_turn(s);
        }
        for (unsigned n = u->nactive_groups; n && (gr = TAILQ_FIRST(&u->active_groups)); n--) {
            TAILQ_REMOVE(&u->active_groups, gr, active_link);
            TAILQ_INSERT_TAIL(&u->active_groups, gr, active_link);
            group_turn(gr);
        }
    }
    users_turn(&g);
    comm_turn(&g);
    sessions_sweep(&g);
    groups_sweep(&g);
}

static void look(void)
{
    struct epoll_event ev[16];
    int n = epoll_wait(g.epoll, ev, ARRAY_LEN(ev), 0);

    for (int i = 0; i < n; i++) {
        struct gwatch *w = ev[i].data.ptr;

        if (w->kind == WATCH_BELL)
            session_wake(w->of);
        else if (ev[i].events & EPOLLIN)
            session_read(w->of);
        else
            session_close(w->of, "it has closed its socket");
    }
}

/* ---- clients --------------------------------------------------------------------------------- */

/* Changes to @n bytes that were right. */
static void change(void *p, size_t n)
{
    for (unsigned k = byte() & 3; k; k--) {
        size_t at = word() % n, width = (size_t)1 << (byte() & 3);
        uint64_t value = word();

        if (value >> 14 == 3) /* large, or negative */
            value = ~(value & 0x3fff);
        memcpy((char *)p + at, &value, MIN(width, n - at));
    }
}

static void client_send(struct fuzz_client *c, const void *m, size_t n, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0};
    struct iovec iov = {(void *)m, n};
    struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *h = (void *)control;

    if (fd >= 0) {
        hdr.msg_control = control;
        hdr.msg_controllen = sizeof control;
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(h), &fd, sizeof fd);
    }
    if (c->sock >= 0)
        sendmsg(c->sock, &hdr, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void client_take(struct fuzz_client *c, const struct session_msg *m, const int *fds,
                        unsigned nfds)
{
    if (m->type == SESSION_WELCOME && nfds && !c->region) {
        void *p = NULL;

        must(!memfd_map_at(fds[0], sizeof *c->region, SESSION_PAGE, &p), "a region");
        c->region = p;
    }
    for (unsigned i = 0; i < nfds; i++)
        if (m->type == SESSION_MORE && c->more < 0)
            c->more = fds[i];
        else
            close(fds[i]);
}

static void client_hear(struct fuzz_client *c)
{
    char control[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8)));
    struct session_msg m;
    struct iovec iov = {&m, sizeof m};

    for (unsigned i = 0; c->sock >= 0 && i < 8; i++) {
        struct msghdr hdr = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
        ssize_t n = recvmsg(c->sock, &hdr, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        const struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&hdr) : NULL;
        int fds[4];
        unsigned nfds = h ? (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;

        if (n <= 0)
            return;
        must(n == (ssize_t)sizeof m, "a message to a client of another length");
        if (h)
            memcpy(fds, CMSG_DATA(h), nfds * sizeof(int));
        client_take(c, &m, fds, nfds);
    }
}

static void client_leave(struct fuzz_client *c)
{
    if (c->sock >= 0)
        close(c->sock);
    if (c->more >= 0)
        close(c->more);
    if (c->region)
        munmap(c->region, sizeof *c->region);
    *c = (struct fuzz_client){.sock = -1, .more = -1};
}

/* Another one in its place: by commd, or, if @on, on the socket that it asked for. */
static void client_new(struct fuzz_client *c, uint8_t how)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};
    struct msg_gpu_session of = {
        .client = 1 + how, .uid = 1000 + how % 3, .pid = 1, .payer = 1000 + how % 2};
    int pair[2], more = c->more;

    if (how & 128 && more >= 0) {
        for (unsigned i = 0; i < CLIENTS; i++)
            if (!clients[i].there) {
                c->more = -1;
                c = &clients[i];
                c->sock = more;
                break;
            }
    } else {
        client_leave(c);
        must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "sockets");
        c->sock = pair[0];
        of.weight = how;
        session_new(&g, &of, &pair[1]);
        close_fdp(&pair[1]);
    }
    c->there = true;
    c->device = how / 4 % STUB_DEVICES;
    m.hello.uuid = g.device[c->device].uuid;
    change(&m, offsetof(struct session_msg, hello) + sizeof m.hello);
    client_send(c, &m, sizeof m, -1);
}

static void act_memory(struct fuzz_client *c)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = byte() % 16};
    uint8_t kind = byte();
    int fd = kind % 4 == 1 && c->region ? c->sock : -1;

    m.memory.bytes = STUB_SHARED_BYTES;
    m.memory.uuid = g.device[c->device].uuid;
    m.memory.kind = fd >= 0 ? SESSION_VMM : SESSION_IPC;
    m.memory.ipc.reserved[0] = (char)(kind / 4 % (STUB_SHARED + 1));
    m.memory.ipc.reserved[1] = (char)m.id;
    m.memory.chunks = fd >= 0;
    m.memory.chunk_bytes[0] = m.memory.bytes;
    if (kind % 4 == 2) {
        m.type = SESSION_LEND;
        m.memory.bytes = 1 + word() * 4u;
    }
    if (fd >= 0) { /* sealed memory is what a driver could have given out */
        fd = memfd_create("chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        change(&m, offsetof(struct session_msg, memory.chunk_bytes) + 32);
        client_send(c, &m, sizeof m, fd);
        close_fdp(&fd);
        return;
    }
    change(&m, offsetof(struct session_msg, memory.chunk_bytes) + 32);
    client_send(c, &m, sizeof m, -1);
}

static void act_attach(struct fuzz_client *c)
{
    static struct {
        struct session_msg m;
        uint8_t tail[SESSION_MSG_MAX - sizeof(struct session_msg)];
    } a;
    uint8_t how = byte(), number = byte() % 8;
    uint32_t world = 1 + (how & 3) % 3, units = how & 64 && world > 1 ? 2 : 1;
    struct session_unit unit[2] = {{.uuid = g.device[how / 16 % 2].uuid},
                                   {.uuid = g.device[1 - how / 16 % 2].uuid}};
    uint16_t unit_of_rank[3];
    size_t n = sizeof a.m + units * sizeof *unit + world * sizeof *unit_of_rank;

    memset(&a, 0, sizeof a);
    a.m.type = SESSION_ATTACH;
    a.m.id = number;
    a.m.attach.group = 7 + number;
    a.m.attach.first = 1;
    a.m.attach.world = world;
    a.m.attach.nnodes = 1;
    a.m.attach.units = units;
    a.m.attach.rank = how / 4 % world;
    for (uint32_t r = 0; r < world; r++) {
        unit_of_rank[r] = (uint16_t)(r % units);
        unit[r % units].ranks++;
    }
    memcpy(a.tail, unit, units * sizeof *unit);
    memcpy(a.tail + units * sizeof *unit, unit_of_rank, world * sizeof *unit_of_rank);
    c->seq[number] = 1;
    c->world[number] = world;
    change(&a, n);
    client_send(c, &a, n - (how & 128 ? byte() % n : 0), -1);
}

static void act_small(struct fuzz_client *c)
{
    static const uint8_t types[] = {SESSION_FORGET, SESSION_DETACH, SESSION_ABORT, SESSION_MORE};
    struct session_msg m = {.type = types[byte() % ARRAY_LEN(types)], .id = byte() % 16};

    m.answer.code = COMMD_E_TIMEOUT;
    change(&m, sizeof m);
    client_send(c, &m, sizeof m, -1);
}

static void act_raw(struct fuzz_client *c)
{
    static uint8_t bytes[sizeof(struct session_msg) + 64];
    size_t n = word() % sizeof bytes, said = MIN(n, (size_t)byte());

    memset(bytes, 0, sizeof bytes);
    for (size_t i = 0; i < said; i++)
        bytes[i] = byte();
    client_send(c, bytes, n, byte() & 1 ? c->sock : -1);
}

static void act_announce(struct fuzz_client *c)
{
    uint8_t coll = byte(), type = byte(), number = byte() % 8, from = byte();
    struct session_slot *s, slot = {.group = number, .scale = 2};
    uint64_t n = c->next;

    if (!c->region)
        return;
    slot.desc = (struct op_desc){.seq = c->seq[number]++,
                                 .count = word() % 4096,
                                 .coll = coll % COLL_COUNT,
                                 .dtype = type % DTYPE_COUNT,
                                 .redop = type / 16 % 9};
    slot.send = (struct session_place){.memory = from % 4};
    slot.recv = (struct session_place){.memory = from / 4 % 4, .offset = from & 128 ? 32768 : 0};
    if (coll & 64 || coll % COLL_COUNT >= COLL_ALL_GATHER_V) {
        uint32_t words = 0;

        slot.aux_bits = byte() & 15;
        for (unsigned b = 0; b < 4; b++)
            words += slot.aux_bits >> b & 1 ? b < 2 ? 1 : 2 : 0;
        words *= c->world[number];
        slot.aux_len = words * 8;
        slot.aux_offset = c->aux % 4096 / 8 * 8;
        for (uint32_t i = 0; i < words; i++) {
            uint64_t value = byte() * 8u;

            memcpy(c->region->aux + slot.aux_offset + i * 8, &value, sizeof value);
        }
        c->aux += slot.aux_len;
    }
    change((char *)&slot + 4, sizeof slot - 4);
    s = &c->region->slots[n % SESSION_SLOTS];
    memcpy((char *)s + 4, (char *)&slot + 4, sizeof slot - 4);
    atomic_store(&s->seq, session_mark(n));
    if (!(type & 128))
        atomic_store(&c->region->flags.ready[n % SESSION_SLOTS], session_mark(n));
    c->next++;
}

/* Words that are nobody's, or commd-gpu's. */
static void act_scribble(struct fuzz_client *c)
{
    uint8_t where = byte(), at = byte();
    uint32_t value = word();

    if (!c->region)
        return;
    switch (where % 5) {
    case 0:
        atomic_store(&c->region->flags.ready[at], session_mark(at));
        break;
    case 1:
        atomic_store(&c->region->flags.ready[at], value);
        break;
    case 2:
        atomic_store(&c->region->flags.done[at], value);
        break;
    case 3:
        atomic_store(&c->region->slots[at].seq, value);
        break;
    case 4:
        c->region->results[at].code = (int32_t)value;
        break;
    }
}

enum { ACTS = 12 };

static void act(void)
{
    uint8_t what = byte(), who = byte();
    struct fuzz_client *c = &clients[who % CLIENTS];

    switch (what % ACTS) {
    case 0:
        client_new(c, byte());
        break;
    case 1:
        act_memory(c);
        break;
    case 2:
        act_attach(c);
        break;
    case 3:
    case 4:
        act_announce(c);
        break;
    case 5:
        act_small(c);
        break;
    case 6:
        act_raw(c);
        break;
    case 7:
        act_scribble(c);
        break;
    case 8:
        stub_run(who, 1 + byte() % 32);
        break;
    case 9:
        jobs_run(1 + who % 4);
        break;
    case 10:
        client_leave(c);
        break;
    case 11:
        (who & 1 ? stub_fail_memory : stub_fail_nccl)();
        return;
    }
    if (what < 128) { /* else several records come to one turn */
        look();
        jobs_run(UINT32_MAX);
        client_hear(c);
    }
    turn();
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void begin(void)
{
    g = (struct gpu){.key = 0x9e3779b1,
                     .control = {.sock = -1, .line = -1, .epoll = -1},
                     .running = true,
                     .timeout_ms = 1 << 30,
                     .part = PART};
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    must(g.epoll >= 0, "epoll");
    gate = (struct gpu_gate){.state = GATE_OPEN};
    g.loop = pthread_self();
    TAILQ_INIT(&g.busy);
    STAILQ_INIT(&jobs);
    stub_begin(&g.cu, &g.nccl);
    devices_find(&g);
    must(g.ndevices == STUB_DEVICES, "devices");
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = (struct fuzz_client){.sock = -1, .more = -1};
}

static void end(void)
{
    struct gcomm *c;

    for (unsigned i = 0; i < CLIENTS; i++)
        client_leave(&clients[i]);
    for (unsigned still = 0; still < 100; still++) {
        look();
        turn();
        if (stub_run_all() || jobs_run(UINT32_MAX))
            still = 0;
    }
    must(!g.nsessions && !g.ngroups && LIST_EMPTY(&g.users), "somebody is still there");
    must(!g.nflying && !g.now && !g.order.head, "an operation is still there");
    for (unsigned i = 0; i < g.ndevices; i++) {
        must(!g.device[i].mapped && !g.device[i].nsessions, "a device is still mapped");
        for (unsigned k = 0; k < SHARES; k++)
            must(!g.device[i].shared[k].ops && !fair_first(&g.device[i].shared[k].queue),
                 "something of a device is still taken");
    }
    LIST_FOREACH(c, &g.comms, link) {
        must(!c->users && !c->flying, "a communicator is still held");
        comm_fail(&g, c, "the end");
    }
    g.comms_ms = 0;
    comms_turn(&g);
    must(LIST_EMPTY(&g.comms) && !g.nending, "a communicator is still there");
    must(gate.state == GATE_OPEN && !gate.aborts, "the gate is not open");
    must(stub_end() == 0, "memory of a client is still mapped");
    free(g.device);
    close(g.epoll);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    in = data;
    left = len;
    begin();
    for (unsigned i = 0; left && i < MAX_RECORDS; i++)
        act();
    end();
    return 0;
}
