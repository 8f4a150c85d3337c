/* client.c - the client's side of a session, for tests. See service.h. */
#include "shm/util/memfd.h"
#include "service.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "shm/util/memfd.h"
#include "shm/util/wait.h"

/* ---- the socket ------------------------------------------------------------------------------ */

bool client_send(struct client *c, const struct session_msg *m, const void *tail, size_t n,
                 const int *fds, unsigned nfds)
{
    static char control[CMSG_SPACE(SESSION_MAX_CHUNKS * 2 * sizeof(int))]
        __attribute__((aligned(8)));
    struct iovec iov[] = {{(void *)m, sizeof *m}, {(void *)tail, n}};
    struct msghdr hdr = {.msg_iov = iov, .msg_iovlen = 2};

    if (nfds) {
        struct cmsghdr *h = (void *)control;

        hdr.msg_control = control;
        hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    return sendmsg(c->sock, &hdr, MSG_NOSIGNAL) == (ssize_t)(sizeof *m + n);
}

bool client_receive(struct client *c)
{
    char control[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8)));
    struct iovec iov = {&c->last, sizeof c->last};
    struct msghdr hdr = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct pollfd p = {.fd = c->sock, .events = POLLIN};

    MUST(poll(&p, 1, SERVICE_PATIENCE_MS) == 1);
    if (recvmsg(c->sock, &hdr, MSG_CMSG_CLOEXEC) <= 0)
        return false;
    c->nfds = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&hdr); h; h = CMSG_NXTHDR(&hdr, h)) {
        c->nfds = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(c->fds, CMSG_DATA(h), c->nfds * sizeof(int));
    }
    return true;
}

int client_ask(struct client *c, const struct session_msg *m, const void *tail, size_t n,
               const int *fds, unsigned nfds)
{
    if (!client_send(c, m, tail, n, fds, nfds) || !client_receive(c))
        return INT32_MIN;
    MUST(c->last.type == SESSION_ANSWER && c->last.id == m->id);
    return c->last.answer.code;
}

void client_driver(struct client *c, int device)
{
    char why[256];
    cu_device dev;

    MUST(cuda_load("tests/fakecuda/libcuda.so.1", 0, &c->cu, why, sizeof why) == 0);
    MUST(!c->cu.init(0) && !c->cu.device_get(&dev, device));
    MUST(!c->cu.device_uuid(&c->uuid, dev) && !c->cu.primary_retain(&c->ctx, dev));
    MUST(!c->cu.ctx_set(c->ctx) && !c->cu.stream_new(&c->stream, CU_STREAM_NON_BLOCKING));
}

int client_open(struct client *c, int sock, int device)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};
    void *map;

    memset(c, 0, sizeof *c);
    c->sock = sock;
    client_driver(c, device);
    m.hello.uuid = c->uuid;
    if (!client_send(c, &m, NULL, 0, NULL, 0) || !client_receive(c))
        return INT32_MIN;
    if (c->last.type == SESSION_ANSWER)
        return c->last.answer.code;
    MUST(c->last.type == SESSION_WELCOME && c->nfds == 2);
    MUST(memfd_map_at(c->fds[0], sizeof *c->region, SESSION_PAGE, &map) == 0);
    c->region = map;
    c->bell = c->fds[1];
    MUST(c->region->magic == SESSION_MAGIC && c->region->version == SESSION_VERSION);
    MUST(!c->cu.host_register(&c->region->flags, sizeof c->region->flags,
                              CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    MUST(!c->cu.host_pointer(&c->flags, &c->region->flags, 0));
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int client_alloc(struct client *c, uint64_t bytes, struct buffer *ret)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = ++c->memories};
    size_t whole;
    cu_ptr base;

    MUST(!c->cu.mem_alloc(&ret->at, bytes));
    MUST(!c->cu.mem_range(&base, &whole, ret->at) && base == ret->at);
    m.memory.kind = SESSION_IPC;
    m.memory.bytes = ret->bytes = whole;
    m.memory.uuid = c->uuid;
    MUST(!c->cu.ipc_get(&m.memory.ipc, ret->at));
    ret->id = m.id;
    return client_ask(c, &m, NULL, 0, NULL, 0);
}

int client_alloc_chunks(struct client *c, uint64_t bytes, unsigned chunks, struct buffer *ret)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = ++c->memories};
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    struct cu_access access;
    int fds[SESSION_MAX_CHUNKS], code;
    size_t grain;

    MUST(!c->cu.ctx_device(&prop.location.id));
    access = (struct cu_access){prop.location, CU_ACCESS_READWRITE};
    MUST(!c->cu.vmm_granularity(&grain, &prop, CU_GRANULARITY_MINIMUM));
    bytes = ALIGN_UP(bytes / chunks, grain);
    MUST(!c->cu.vmm_reserve(&ret->at, bytes * chunks, 0, 0, 0));
    for (unsigned i = 0; i < chunks; i++) {
        cu_mem mem;

        MUST(!c->cu.vmm_create(&mem, bytes, &prop, 0));
        MUST(!c->cu.vmm_map(ret->at + i * bytes, bytes, 0, mem, 0));
        MUST(!c->cu.vmm_export(&fds[i], mem, CU_HANDLE_POSIX_FD, 0));
        m.memory.chunk_bytes[i] = bytes;
    }
    ret->bytes = bytes * chunks;
    MUST(!c->cu.vmm_access(ret->at, ret->bytes, &access, 1));
    m.memory.kind = SESSION_VMM;
    m.memory.chunks = chunks;
    m.memory.bytes = ret->bytes;
    m.memory.uuid = c->uuid;
    ret->id = m.id;
    code = client_ask(c, &m, NULL, 0, fds, chunks);
    for (unsigned i = 0; i < chunks; i++)
        close(fds[i]);
    return code;
}

void client_forget(struct client *c, uint32_t id)
{
    struct session_msg m = {.type = SESSION_FORGET, .id = id};

    MUST(client_send(c, &m, NULL, 0, NULL, 0));
}

void client_put(struct client *c, cu_ptr to, const void *from, size_t n)
{
    MUST(!n || !c->cu.copy(to, (cu_ptr)(uintptr_t)from, n, c->stream));
}

void client_get(struct client *c, void *to, cu_ptr from, size_t n)
{
    MUST(!n || !c->cu.copy((cu_ptr)(uintptr_t)to, from, n, c->stream));
    MUST(!c->cu.stream_synchronize(c->stream));
}

/* ---- groups ---------------------------------------------------------------------------------- */

void membership_one(struct attaching *m, const struct client *c, uint32_t number, uint64_t group,
                    uint32_t world, uint32_t rank)
{
    memset(m, 0, sizeof *m);
    m->number = number;
    m->group = group;
    m->epoch = 1;
    m->first = 1;
    m->world = world;
    m->rank = rank;
    m->units = m->nnodes = 1;
    m->unit[0].ranks = world;
    m->unit[0].uuid = c->uuid;
}

void membership_spread(struct attaching *m, struct client *c, uint32_t number, uint64_t group,
                       uint32_t world, uint32_t rank, const uint8_t *device)
{
    membership_one(m, c, number, group, world, rank);
    m->units = 0;
    m->unit[0].ranks = 0;
    for (uint32_t r = 0; r < world; r++) {
        struct cu_uuid uuid;
        uint32_t u = 0;
        cu_device dev;

        MUST(!c->cu.device_get(&dev, device[r]) && !c->cu.device_uuid(&uuid, dev));
        while (u < m->units && memcmp(&m->unit[u].uuid, &uuid, sizeof uuid))
            u++;
        m->units = u == m->units ? u + 1 : m->units;
        m->unit[u].uuid = uuid;
        m->unit[u].ranks++;
        m->unit_of_rank[r] = (uint16_t)u;
    }
}

void membership_message(const struct attaching *m, struct session_msg *ret, void *tail,
                        size_t *ret_len)
{
    *ret = (struct session_msg){.type = SESSION_ATTACH, .id = m->number};
    ret->attach.group = m->group;
    ret->attach.epoch = m->epoch;
    ret->attach.first = m->first;
    ret->attach.world = m->world;
    ret->attach.nnodes = m->nnodes;
    ret->attach.me = m->me;
    ret->attach.rank = m->rank;
    ret->attach.units = m->units;
    snprintf(ret->attach.name, sizeof ret->attach.name, "group %llu", (unsigned long long)m->group);
    memcpy(tail, m->unit, m->units * sizeof m->unit[0]);
    memcpy((char *)tail + m->units * sizeof m->unit[0], m->unit_of_rank,
           m->world * sizeof m->unit_of_rank[0]);
    *ret_len = m->units * sizeof m->unit[0] + m->world * sizeof m->unit_of_rank[0];
}

int client_attach(struct client *c, const struct attaching *m)
{
    static char tail[SESSION_MSG_MAX];
    struct session_msg msg;
    size_t len;

    membership_message(m, &msg, tail, &len);
    return client_ask(c, &msg, tail, len, NULL, 0);
}

/* ---- operations ------------------------------------------------------------------------------ */

uint64_t client_announce_only(struct client *c, const struct request *q)
{
    uint64_t n = c->next++;
    struct session_slot *s = &c->region->slots[n % SESSION_SLOTS];
    uint32_t len = q->aux_words * 8, one = 1;
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    while (n >= SESSION_SLOTS && !client_done(c, n - SESSION_SLOTS)) {
        MUST(now_ms() < end);
        cpu_relax();
    }
    if (c->aux + len > SESSION_AUX)
        c->aux = 0;
    if (len)
        memcpy(c->region->aux + c->aux, q->aux, len);
    s->group = q->group;
    s->desc = q->desc;
    s->send = q->send;
    s->recv = q->recv;
    s->scale = q->scale;
    s->aux_bits = q->aux_bits;
    s->aux_offset = c->aux;
    s->aux_len = len;
    c->aux += len;
    atomic_store_explicit(&s->seq, session_mark(n), memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&c->region->asleep, memory_order_relaxed) &&
        atomic_exchange(&c->region->asleep, 0)) {
        uint64_t ring = one;

        MUST(write(c->bell, &ring, sizeof ring) == sizeof ring);
    }
    return n;
}

void client_ready(struct client *c, uint64_t n)
{
    size_t at = offsetof(struct session_flags, ready) + n % SESSION_SLOTS * 4;

    MUST(!c->cu.stream_write32(c->stream, c->flags + at, session_mark(n), CU_WRITE_DEFAULT));
}

uint64_t client_announce(struct client *c, const struct request *q)
{
    uint64_t n = client_announce_only(c, q);

    client_ready(c, n);
    return n;
}

bool client_done(const struct client *c, uint64_t n)
{
    return seq_reached(
        atomic_load_explicit(&c->region->flags.done[n % SESSION_SLOTS], memory_order_acquire),
        session_mark(n));
}

int client_wait(struct client *c, uint64_t n, struct session_result *ret)
{
    uint64_t end = now_ms() + SERVICE_PATIENCE_MS;

    for (unsigned turn = 0; !client_done(c, n); turn++) {
        struct pollfd p = {.fd = c->sock, .events = POLLIN};

        if (turn % 64 == 63) {
            if (poll(&p, 1, 0) && (p.revents & (POLLHUP | POLLERR | POLLIN)) && !client_done(c, n))
                return INT32_MIN;
            if (now_ms() >= end)
                return INT32_MAX;
            usleep(50);
        }
        cpu_relax();
    }
    if (ret)
        *ret = c->region->results[n % SESSION_SLOTS];
    return c->region->results[n % SESSION_SLOTS].code;
}
