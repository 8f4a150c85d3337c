/* mini_gpu.c - see mini_gpu.h. It polls everything, in one thread. */
#include "tests/lib/mini_gpu.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm/gpu/session.h"
#include "shm/util/memfd.h"
#include "tests/lib/gpu_ranks.h"

enum { SESSIONS = 16, MEMORIES = 256, WORLD = GPU_RANKS_MOST };
enum { WORDS = 6 * WORLD + sizeof(struct session_declined) / sizeof(uint64_t) };

struct member {
    uint32_t id, rank, world;
    uint64_t group, next;
};

struct mini {
    int sock, bell;
    struct session_region *region;
    struct {
        uint32_t id;
        bool ipc;
        uint8_t *at;
    } memory[MEMORIES];
    struct member member; /* of one group */
    uint64_t seen, ended; /* operations taken from slots; all before are over */
    struct session_slot op[SESSION_SLOTS];
    uint64_t aux[SESSION_SLOTS][WORDS];
};

static struct mini minis[SESSIONS];
static struct { /* broken, with what is announced later, too */
    uint64_t group;
    int code;
    char text[SESSION_TEXT];
} broken;

static void respond(struct mini *s, uint32_t id, int code, const char *text)
{
    struct session_msg m = {.type = SESSION_ANSWER, .id = id};

    m.answer.code = code;
    m.answer.rank = -1;
    snprintf(m.answer.text, sizeof m.answer.text, "%s", text);
    if (send(s->sock, &m, sizeof m, MSG_NOSIGNAL) < 0)
        s->sock = -1;
}

static bool refuses(const char *what)
{
    const char *s = getenv("MINI_GPU_REFUSE");

    return s && !strcmp(s, what);
}

/* ---- operations -------------------------------------------------------------------------------
 */

static uint8_t *mini_place(const struct mini *s, struct session_place place)
{
    if (!place.memory)
        return NULL;
    for (unsigned i = 0; i < MEMORIES; i++)
        if (s->memory[i].id == place.memory)
            return s->memory[i].at + place.offset;
    abort();
}

/* Ends the next operation of the session. */
static void end(struct mini *s, int code, const char *text)
{
    unsigned i = s->ended % SESSION_SLOTS;
    struct session_result *r = &s->region->results[i];

    r->code = code;
    r->rank = -1;
    snprintf(r->text, sizeof r->text, "%s", text);
    atomic_store(&s->region->flags.done[i], session_mark(s->ended));
    s->ended++;
    s->member.next++;
}

static void end_all(uint64_t group, int code, const char *text)
{
    for (unsigned i = 0; i < SESSIONS; i++)
        while (minis[i].region && minis[i].member.group == group && minis[i].ended < minis[i].seen)
            end(&minis[i], code, text);
}

/* Where rank @r's words of a kind begin; NULL: there are none. */
static const uint64_t *words(const struct mini *s, uint32_t bit)
{
    const struct session_slot *op = &s->op[s->ended % SESSION_SLOTS];
    const uint64_t *at = s->aux[s->ended % SESSION_SLOTS];

    if (!(op->aux_bits & bit))
        return NULL;
    for (uint32_t b = 1; b < bit; b *= 2)
        if (op->aux_bits & b)
            at += s->member.world * (b < SESSION_SEND_BLOCKS ? 1 : 2);
    return at;
}

static uint8_t *block_at(const struct mini *s, bool send, unsigned k, size_t esize)
{
    const struct session_slot *op = &s->op[s->ended % SESSION_SLOTS];
    const uint64_t *blocks = words(s, send ? SESSION_SEND_BLOCKS : SESSION_RECV_BLOCKS);
    const uint64_t *counts = words(s, send ? SESSION_SEND_COUNTS : SESSION_RECV_COUNTS);
    uint8_t *at;

    if (blocks)
        return mini_place(s, (struct session_place){.memory = (uint32_t)blocks[2 * k],
                                                    .offset = blocks[2 * k + 1]});
    at = mini_place(s, send ? op->send : op->recv);
    for (unsigned i = 0; i < k && at; i++)
        at += (counts ? counts[i] : op->desc.count) * esize;
    return at;
}

static void do_all_reduce(struct mini **m, const struct op_desc *d)
{
    for (uint64_t i = 0; i < d->count; i++) {
        int32_t sum = 0;

        for (unsigned r = 0; r < m[0]->member.world; r++)
            sum += ((int32_t *)(void *)block_at(m[r], true, 0, 4))[i];
        for (unsigned r = 0; r < m[0]->member.world; r++)
            ((int32_t *)(void *)block_at(m[r], false, 0, 4))[i] = sum;
    }
}

static void do_moves(struct mini **m, const struct op_desc *d)
{
    unsigned world = m[0]->member.world;
    size_t esize = d->coll == COLL_BARRIER ? 1 : dtype_size(d->dtype), n = d->count * esize;

    for (unsigned r = 0; r < world; r++)
        for (unsigned k = 0; k < world; k++) {
            if (d->coll == COLL_BROADCAST && r == d->root && k != r)
                memcpy(block_at(m[k], false, 0, esize), block_at(m[r], false, 0, esize), n);
            if (d->coll == COLL_ALL_GATHER)
                memmove(block_at(m[k], false, r, esize), block_at(m[r], true, 0, esize), n);
            if (d->coll == COLL_ALL_TO_ALL_V && words(m[r], SESSION_SEND_COUNTS)[k])
                memcpy(block_at(m[k], false, r, esize), block_at(m[r], true, k, esize),
                       words(m[r], SESSION_SEND_COUNTS)[k] * esize);
            if (d->coll == COLL_GATHER_V && k == d->root && words(m[r], SESSION_SEND_COUNTS)[0])
                memcpy(block_at(m[k], false, r, esize), block_at(m[r], true, 0, esize),
                       words(m[r], SESSION_SEND_COUNTS)[0] * esize);
        }
}

static const struct session_declined *declined_words(const struct mini *s)
{
    unsigned i = s->ended % SESSION_SLOTS;

    return s->op[i].aux_bits == SESSION_DECLINED ? (const void *)s->aux[i] : NULL;
}

static bool is_ready(const struct mini *s)
{
    if (s->ended < s->seen && declined_words(s))
        return true;
    return s->ended < s->seen &&
           seq_reached(atomic_load(&s->region->flags.ready[s->ended % SESSION_SLOTS]),
                       session_mark(s->ended));
}

/* All members of the group of session @s, by rank, if all have announced and are ready. */
static bool gather_members(const struct mini *s, struct mini **m)
{
    unsigned n = 0;

    memset(m, 0, WORLD * sizeof *m);
    for (unsigned i = 0; i < SESSIONS; i++)
        if (minis[i].region && minis[i].member.id && minis[i].member.group == s->member.group &&
            is_ready(&minis[i]) && !m[minis[i].member.rank]) {
            m[minis[i].member.rank] = &minis[i];
            n++;
        }
    return s->member.id && n == s->member.world;
}

static void run_one(struct mini *s)
{
    struct mini *m[WORLD];
    const struct session_declined *why = NULL;
    struct op_desc d;
    bool fit = true;

    if (!is_ready(s) || !gather_members(s, m))
        return;
    d = m[0]->op[m[0]->ended % SESSION_SLOTS].desc;
    for (unsigned r = 0; r < s->member.world; r++) {
        const struct op_desc *other = &m[r]->op[m[r]->ended % SESSION_SLOTS].desc;

        if (other->seq != m[r]->member.next)
            abort();
        fit = fit && !memcmp(&d, other, sizeof d);
    }
    for (unsigned r = 0; r < s->member.world; r++)
        if (!why)
            why = declined_words(m[r]);
    if (fit && !why && d.coll == COLL_ALL_REDUCE)
        do_all_reduce(m, &d);
    else if (fit && !why)
        do_moves(m, &d);
    for (unsigned r = 0; r < s->member.world; r++)
        if (why)
            end(m[r], why->code, why->text);
        else
            end(m[r], fit ? 0 : -CAUSE_MISMATCH, fit ? "" : "ranks called different operations");
}

static void take_slots(struct mini *s)
{
    for (;;) {
        unsigned i = s->seen % SESSION_SLOTS;
        struct session_slot *from = &s->region->slots[i];

        if (s->seen - s->ended == SESSION_SLOTS || atomic_load(&from->seq) != session_mark(s->seen))
            return;
        memcpy(&s->op[i], from, sizeof *from);
        if (s->op[i].aux_len > sizeof s->aux[i] || s->op[i].group != s->member.id)
            abort();
        memcpy(s->aux[i], s->region->aux + s->op[i].aux_offset, s->op[i].aux_len);
        s->seen++;
    }
}

/* ---- what clients say -------------------------------------------------------------------------
 */

static bool send_fds(const struct mini *s, struct session_msg *m, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr h;
        char buf[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec iov = {m, sizeof *m};
    struct msghdr hdr = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = CMSG_SPACE(nfds * sizeof *fds)};

    control.h.cmsg_level = SOL_SOCKET;
    control.h.cmsg_type = SCM_RIGHTS;
    control.h.cmsg_len = CMSG_LEN(nfds * sizeof *fds);
    memcpy(CMSG_DATA(&control.h), fds, nfds * sizeof *fds);
    return sendmsg(s->sock, &hdr, MSG_NOSIGNAL) >= 0;
}

static void welcome(struct mini *s)
{
    struct session_msg m = {.type = SESSION_WELCOME};
    void *map;
    int fds[2];

    if (memfd_new("mini", sizeof *s->region, &fds[0]) ||
        memfd_map_at(fds[0], sizeof *s->region, SESSION_PAGE, &map))
        abort();
    fds[1] = s->bell = eventfd(0, EFD_NONBLOCK);
    s->region = map;
    s->region->magic = SESSION_MAGIC;
    s->region->version = SESSION_VERSION;
    if (!send_fds(s, &m, fds, 2))
        abort();
    close(fds[0]);
}

/* @id 0: all. */
static void drop_memory(struct mini *s, uint32_t id)
{
    for (unsigned i = 0; i < MEMORIES; i++) {
        if (!s->memory[i].id || (id && s->memory[i].id != id))
            continue;
        if (s->memory[i].ipc)
            gpu_ok(cu.ipc_close((cu_ptr)(uintptr_t)s->memory[i].at));
        s->memory[i].id = 0;
    }
}

static void add_memory(struct mini *s, const struct session_msg *m, const int *fds, unsigned nfds)
{
    unsigned i = 0;
    cu_ptr at = 0;
    cu_mem mem;

    while (s->memory[i].id)
        i++;
    if (refuses("memory") || refuses("order")) {
        respond(s, m->id + refuses("order"), -CAUSE_INVALID, "refused");
        return;
    }
    if (m->memory.kind == SESSION_IPC) {
        gpu_ok(cu.ipc_open(&at, m->memory.ipc, CU_IPC_LAZY_PEER_ACCESS));
    } else {
        struct cu_access access = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
        uint64_t done = 0;

        gpu_ok(cu.vmm_reserve(&at, m->memory.bytes, 0, 0, 0));
        for (unsigned k = 0; k < nfds; k++) {
            gpu_ok(cu.vmm_import(&mem, (void *)(intptr_t)fds[k], CU_HANDLE_POSIX_FD));
            gpu_ok(cu.vmm_map(at + done, m->memory.chunk_bytes[k], 0, mem, 0));
            done += m->memory.chunk_bytes[k];
        }
        gpu_ok(cu.vmm_access(at, m->memory.bytes, &access, 1));
    }
    s->memory[i].id = m->id;
    s->memory[i].ipc = m->memory.kind == SESSION_IPC;
    s->memory[i].at = (uint8_t *)(uintptr_t)at;
    respond(s, m->id, 0, "");
}

/* Other bytes than were asked for, with memory of some size. */
static void lend(struct mini *s, const struct session_msg *m)
{
    struct session_msg answer = {.type = SESSION_LEND, .id = m->id};
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    cu_mem mem;
    int fd;

    if (!refuses("lend_less") && !refuses("lend_more")) {
        respond(s, m->id, -CAUSE_INVALID, "it has nothing to lend");
        return;
    }
    answer.memory.bytes = refuses("lend_less") ? 4096 : UINT64_MAX - 4095;
    gpu_ok(cu.vmm_create(&mem, 4 << 20, &prop, 0));
    gpu_ok(cu.vmm_export(&fd, mem, CU_HANDLE_POSIX_FD, 0));
    if (!send_fds(s, &answer, &fd, 1))
        s->sock = -1;
    close(fd);
}

static void take(struct mini *s, const struct session_msg *m, const int *fds, unsigned nfds)
{
    switch ((enum session_type)m->type) {
    case SESSION_HELLO:
        welcome(s);
        break;
    case SESSION_MEMORY:
        add_memory(s, m, fds, nfds);
        break;
    case SESSION_FORGET:
        drop_memory(s, m->id);
        break;
    case SESSION_ATTACH:
        if (!refuses("attach"))
            s->member = (struct member){m->id, m->attach.rank, m->attach.world, m->attach.group,
                                        m->attach.first};
        respond(s, m->id, refuses("attach") ? -CAUSE_INVALID : 0, "refused");
        break;
    case SESSION_DETACH:
        end_all(s->member.group, -CAUSE_RANK_LOST, "a rank has left");
        s->member.id = 0;
        break;
    case SESSION_ABORT:
        broken.group = s->member.group;
        broken.code = m->answer.code;
        snprintf(broken.text, sizeof broken.text, "%s", m->answer.text);
        break;
    case SESSION_LEND:
        lend(s, m);
        break;
    case SESSION_WELCOME:
    case SESSION_ANSWER:
    case SESSION_MORE:
        abort();
    }
}

static ssize_t receive(int sock, void *data, size_t len, int *fds, unsigned *ret_nfds)
{
    union {
        struct cmsghdr h;
        char buf[CMSG_SPACE(SESSION_MAX_CHUNKS * sizeof(int))];
    } control;
    struct iovec iov = {data, len};
    struct msghdr hdr = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t n = recvmsg(sock, &hdr, MSG_DONTWAIT);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&hdr) : NULL;

    *ret_nfds = 0;
    if (c) {
        *ret_nfds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), *ret_nfds * sizeof(int));
    }
    return n;
}

static void turn(struct mini *s)
{
    static union {
        struct session_msg m;
        char bytes[SESSION_MSG_MAX];
    } in;
    int fds[SESSION_MAX_CHUNKS];
    unsigned nfds;
    ssize_t n = receive(s->sock, &in, sizeof in, fds, &nfds);

    if (n > 0) {
        if (s->region)
            take_slots(s); /* what was announced before it was said */
        take(s, &in.m, fds, nfds);
    } else if (n == 0) {
        drop_memory(s, 0);
    }
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
    if (s->region) {
        take_slots(s);
        if (broken.group && broken.group == s->member.group)
            end_all(broken.group, broken.code, broken.text);
        run_one(s);
    }
}

static void serve(int control)
{
    for (;;) {
        struct pollfd p = {.fd = control, .events = POLLIN};
        unsigned nfds;
        int fds[4];
        char byte;

        if (poll(&p, 1, 1) > 0) {
            if (receive(control, &byte, 1, fds, &nfds) <= 0)
                _exit(0);
            for (unsigned i = 0; i < SESSIONS && nfds; i++)
                if (!minis[i].sock) {
                    minis[i].sock = fds[0];
                    break;
                }
        }
        for (unsigned i = 0; i < SESSIONS; i++)
            if (minis[i].sock > 0)
                turn(&minis[i]);
    }
}

void mini_gpu_main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "mini_gpu"))
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gpu_load();
    serve(atoi(argv[2]));
}

pid_t mini_gpu_start(int *ret_control)
{
    int pair[2];
    char fd[16];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
        abort();
    snprintf(fd, sizeof fd, "%d", pair[1]);
    pid = fork();
    if (pid < 0)
        abort();
    if (!pid) {
        close(pair[0]);
        execl("/proc/self/exe", "mini_gpu", "mini_gpu", fd, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *ret_control = pair[0];
    return pid;
}

void mini_gpu_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
