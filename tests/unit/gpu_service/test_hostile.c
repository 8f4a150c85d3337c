/* test_hostile.c - clients that break the rules of a session: each loses itself, and nobody else.
 * While they try, two ranks of another user work, and what they get must be right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "oracle.h"
#include "shm/util/wait.h"
#include "tests/lib/env.h"

/* ---- the two who do nothing wrong ------------------------------------------------------------ */

struct peace {
    _Atomic uint32_t over; /* after this operation */
    _Atomic uint32_t begun;
    struct cu_ipc_mem handle; /* of memory of theirs */
    uint64_t bytes;
};

struct innocent {
    struct peace *peace;
    unsigned rank;
};

static int innocent(void *arg, int sock)
{
    const struct innocent *me = arg;
    struct session_msg gone = {.type = SESSION_DETACH, .id = 3};
    uint64_t seed = 77;
    struct buffer in, out;
    struct attaching m;
    struct client c;

    MUST(client_open(&c, sock, 0) == 0);
    MUST(client_alloc(&c, 1 << 20, &in) == 0 && client_alloc(&c, 1 << 20, &out) == 0);
    membership_one(&m, &c, 3, 1, 2, me->rank);
    MUST(client_attach(&c, &m) == 0);
    if (!me->rank) {
        MUST(!c.cu.ipc_get(&me->peace->handle, in.at));
        me->peace->bytes = in.bytes;
    }
    for (uint32_t seq = 1;; seq++) {
        struct task t;
        struct sample s;

        sample_draw(&s, &seed, 2, 1, seq);
        task_announce(&t, &c, &s, 3, me->rank, &in, 0, &out, 0);
        MUST(client_wait(&c, t.n, NULL) == 0);
        task_check(&t, &c);
        atomic_store(&me->peace->begun, seq);
        if (me->rank == 0 && atomic_load(&me->peace->over) == 1)
            atomic_store(&me->peace->over, seq + 3); /* both will get there */
        if (atomic_load(&me->peace->over) > 1 && seq >= atomic_load(&me->peace->over))
            break;
    }
    MUST(client_send(&c, &gone, NULL, 0, NULL, 0));
    usleep(20000);
    return 0;
}

/* ---- what is tried --------------------------------------------------------------------------- */

static struct peace *peace; /* shared */

static void must_end(struct client *c)
{
    MUST(!client_receive(c));
}

static void open_alone(struct client *c, int sock, struct buffer *b)
{
    struct attaching m;

    MUST(client_open(c, sock, 0) == 0);
    MUST(client_alloc(c, 1 << 20, b) == 0);
    membership_one(&m, c, 0, 50, 1, 0);
    MUST(client_attach(c, &m) == 0);
}

static void raw(int sock, const void *data, size_t n)
{
    MUST(send(sock, data, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void hello_of_another_version(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION + 1};

    c->sock = sock;
    raw(sock, &m, sizeof m);
    MUST(client_receive(c) && c->last.type == SESSION_ANSWER);
    MUST(c->last.answer.code == COMMD_E_PROTOCOL);
    must_end(c);
}

static void hello_of_another_gpu(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};

    c->sock = sock;
    memset(&m.hello.uuid, 0x11, sizeof m.hello.uuid);
    raw(sock, &m, sizeof m);
    MUST(client_receive(c) && c->last.answer.code == COMMD_E_INVALID);
    MUST(strstr(c->last.answer.text, "GPU-11111111-1111-1111-1111-111111111111"));
    must_end(c);
}

static void no_hello(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_FORGET, .id = 1};

    c->sock = sock;
    raw(sock, &m, sizeof m);
    must_end(c);
}

static void short_message(struct client *c, int sock)
{
    c->sock = sock;
    raw(sock, "1234", 4);
    must_end(c);
}

static void long_message(struct client *c, int sock)
{
    static char big[SESSION_MSG_MAX + 2];

    big[0] = SESSION_HELLO;
    c->sock = sock;
    raw(sock, big, sizeof big);
    must_end(c);
}

static void long_forget(struct client *c, int sock)
{
    struct session_msg m[2] = {{.type = SESSION_FORGET, .id = 1}};

    MUST(client_open(c, sock, 0) == 0);
    raw(sock, m, sizeof m);
    must_end(c);
}

static void hello_twice(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};

    MUST(client_open(c, sock, 0) == 0);
    raw(sock, &m, sizeof m);
    must_end(c);
}

static void descriptors_with_hello(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};
    int fds[200];

    c->sock = sock;
    for (unsigned i = 0; i < 200; i++)
        fds[i] = 0;
    MUST(client_send(c, &m, NULL, 0, fds, 200));
    must_end(c);
}

/* ---- memory */

static void memory_message(struct client *c, struct session_msg *m, struct buffer *b)
{
    size_t whole;

    MUST(!c->cu.mem_alloc(&b->at, 1 << 20));
    MUST(!c->cu.mem_range(NULL, &whole, b->at));
    *m = (struct session_msg){.type = SESSION_MEMORY, .id = ++c->memories};
    m->memory.kind = SESSION_IPC;
    m->memory.bytes = whole;
    m->memory.uuid = c->uuid;
    MUST(!c->cu.ipc_get(&m->memory.ipc, b->at));
}

static void memory_longer_than_it_is(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    m.memory.bytes += 1;
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == COMMD_E_INVALID);
    MUST(strstr(c->last.answer.text, "shorter than the client says"));
    m.memory.bytes -= 1; /* and it was not kept: the same number is free */
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == 0);
}

static void memory_longer_than_any_gpu(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    m.memory.bytes = UINT64_MAX - 1;
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == INT32_MIN);
}

static void memory_of_the_same_number(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == 0);
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == INT32_MIN);
}

static void memory_of_another_gpu(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    m.memory.uuid.bytes[0] ^= 1;
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == COMMD_E_INVALID);
}

static void memory_of_another_user(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    m.memory.ipc = peace->handle;
    m.memory.bytes = peace->bytes;
    MUST(client_ask(c, &m, NULL, 0, NULL, 0) == COMMD_E_INVALID);
    MUST(strstr(c->last.answer.text, "another user"));
}

static void memory_made_up(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;
    uint64_t seed = 9;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    for (unsigned i = 0; i < 200; i++) {
        m.memory.ipc.reserved[draw(&seed) % 64] ^= 1 + (char)(draw(&seed) % 255);
        MUST(client_ask(c, &m, NULL, 0, NULL, 0) <= 0);
        if (c->last.answer.code == 0)
            m.id = ++c->memories;
    }
}

static void chunks_message(struct session_msg *m, struct client *c, unsigned n)
{
    *m = (struct session_msg){.type = SESSION_MEMORY, .id = 5};
    m->memory.kind = SESSION_VMM;
    m->memory.chunks = n;
    m->memory.uuid = c->uuid;
    for (unsigned i = 0; i < MIN(n, (unsigned)SESSION_MAX_CHUNKS); i++) {
        m->memory.chunk_bytes[i] = 2 << 20;
        m->memory.bytes += 2 << 20;
    }
}

static void chunks_that_are_no_memory(struct client *c, int sock)
{
    struct session_msg m;
    int fds[2], null = open("/dev/null", O_RDWR), file = memfd_create("x", 0);

    MUST(client_open(c, sock, 0) == 0);
    MUST(pipe(fds) == 0 && ftruncate(file, 4 << 20) == 0);
    chunks_message(&m, c, 1);
    MUST(client_ask(c, &m, NULL, 0, fds, 1) == COMMD_E_INVALID);
    MUST(client_ask(c, &m, NULL, 0, &null, 1) == COMMD_E_INVALID);
    MUST(client_ask(c, &m, NULL, 0, &file, 1) == COMMD_E_INVALID);
    MUST(client_ask(c, &m, NULL, 0, &c->sock, 1) == COMMD_E_INVALID);
}

static void chunks_without_descriptors(struct client *c, int sock)
{
    struct session_msg m;

    MUST(client_open(c, sock, 0) == 0);
    chunks_message(&m, c, 2);
    m.memory.bytes = m.memory.chunk_bytes[0];
    MUST(client_ask(c, &m, NULL, 0, &sock, 1) == INT32_MIN);
}

static void too_many_chunks(struct client *c, int sock)
{
    struct session_msg m;
    int fds[SESSION_MAX_CHUNKS + 1] = {0};

    MUST(client_open(c, sock, 0) == 0);
    chunks_message(&m, c, SESSION_MAX_CHUNKS + 1);
    MUST(client_ask(c, &m, NULL, 0, fds, SESSION_MAX_CHUNKS + 1) == INT32_MIN);
}

static void chunks_of_another_sum(struct client *c, int sock)
{
    struct session_msg m;
    int fds[2] = {0};

    MUST(client_open(c, sock, 0) == 0);
    chunks_message(&m, c, 2);
    m.memory.bytes += 4096;
    MUST(client_ask(c, &m, NULL, 0, fds, 2) == INT32_MIN);
}

static void chunks_without_end(struct client *c, int sock)
{
    struct session_msg m;
    int fds[2] = {0};

    MUST(client_open(c, sock, 0) == 0);
    chunks_message(&m, c, 2);
    m.memory.chunk_bytes[0] = 1ull << 63; /* the sum is right, modulo 2^64 */
    m.memory.chunk_bytes[1] = (1ull << 63) + m.memory.bytes;
    MUST(client_ask(c, &m, NULL, 0, fds, 2) == INT32_MIN);
}

static void chunks_longer_than_they_are(struct client *c, int sock)
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    struct session_msg m;
    cu_mem mem;
    int fd;

    MUST(client_open(c, sock, 0) == 0);
    MUST(!c->cu.vmm_create(&mem, 2 << 20, &prop, 0));
    MUST(!c->cu.vmm_export(&fd, mem, CU_HANDLE_POSIX_FD, 0));
    chunks_message(&m, c, 1);
    m.memory.bytes = m.memory.chunk_bytes[0] = 4 << 20;
    MUST(client_ask(c, &m, NULL, 0, &fd, 1) == COMMD_E_INVALID);
    m.memory.bytes = m.memory.chunk_bytes[0] = 2 << 20;
    MUST(client_ask(c, &m, NULL, 0, &fd, 1) == 0);
}

static void forgetting_what_it_never_had(struct client *c, int sock)
{
    MUST(client_open(c, sock, 0) == 0);
    client_forget(c, 1);
    must_end(c);
}

/* ---- groups */

static char tail[SESSION_MSG_MAX];

static void attach_refused(struct client *c, const struct attaching *m, int code)
{
    struct session_msg msg;
    size_t len;

    membership_message(m, &msg, tail, &len);
    MUST(client_ask(c, &msg, tail, len, NULL, 0) == code);
}

static void groups_that_cannot_be(struct client *c, int sock)
{
    struct attaching m;

    MUST(client_open(c, sock, 0) == 0);
    membership_one(&m, c, 0, 60, 3, 0);
    MUST(client_attach(c, &m) == 0);
    m.number = 1;
    attach_refused(c, &m, COMMD_E_INVALID); /* this rank is there */
    m.rank = 1;
    m.first = 2;
    attach_refused(c, &m, COMMD_E_INVALID); /* the first has said otherwise */
    m.first = 1;
    m.world = m.unit[0].ranks = 4;
    attach_refused(c, &m, COMMD_E_INVALID);
    membership_one(&m, c, 1, 61, 2, 0);
    m.units = 2;
    m.unit_of_rank[1] = 1;
    m.unit[0].ranks = m.unit[1].ranks = 1;
    m.unit[1].uuid.bytes[3] ^= 1;
    attach_refused(c, &m, COMMD_E_INVALID); /* a GPU that nobody has */
    m.unit[1].uuid = m.unit[0].uuid;
    attach_refused(c, &m, COMMD_E_INVALID);
}

/* Each of these ends the session. */
static void break_membership(struct client *c, struct attaching *m, unsigned how, size_t *len)
{
    membership_one(m, c, 0, 62, 2, 0);
    switch (how) {
    case 0:
        m->world = m->unit[0].ranks = 0;
        break;
    case 1:
        m->rank = 2;
        break;
    case 2:
        m->units = 0;
        break;
    case 3:
        m->unit_of_rank[1] = 1;
        break;
    case 4:
        m->unit[0].ranks = 1;
        break;
    case 5:
        m->world = m->unit[0].ranks = 17;
        break;
    case 6:
        m->me = 1;
        break;
    case 7:
        m->unit[0].node = 1;
        break;
    case 8:
        m->unit[0].uuid.bytes[0] ^= 1;
        break;
    case 9:
        m->first = 0;
        break;
    case 10:
        *len -= 1;
        break;
    case 11:
        *len += 1;
        break;
    case 12:
        m->nnodes = 0;
        break;
    case 13:
        m->nnodes = 2;
        break;
    case 14:
        m->unit_of_rank[1] = UINT16_MAX;
        break;
    }
}

enum { MEMBERSHIPS = 15 };

static unsigned how; /* a trial is repeated with each of some numbers */

static void a_group_that_contradicts_itself(struct client *c, int sock)
{
    struct attaching m;
    struct session_msg msg;
    size_t len, more = 0;

    MUST(client_open(c, sock, 0) == 0);
    break_membership(c, &m, how, &more);
    membership_message(&m, &msg, tail, &len);
    MUST(client_ask(c, &msg, tail, len + more, NULL, 0) == INT32_MIN);
}

static void a_group_that_is_too_large(struct client *c, int sock)
{
    struct session_msg msg = {.type = SESSION_ATTACH};

    MUST(client_open(c, sock, 0) == 0);
    msg.attach.world = how ? SESSION_MAX_WORLD + 1 : UINT32_MAX;
    msg.attach.units = how ? 1 : UINT32_MAX;
    msg.attach.nnodes = msg.attach.first = 1;
    MUST(client_ask(c, &msg, tail, 100, NULL, 0) == INT32_MIN);
}

static void group_numbers_twice(struct client *c, int sock)
{
    struct attaching m;

    MUST(client_open(c, sock, 0) == 0);
    membership_one(&m, c, 4, 63, 1, 0);
    MUST(client_attach(c, &m) == 0);
    m.group = 64;
    attach_refused(c, &m, INT32_MIN);
}

static void messages_of_groups_that_are_not(struct client *c, int sock)
{
    static const uint32_t types[] = {SESSION_DETACH, SESSION_ABORT, SESSION_WELCOME, SESSION_ANSWER,
                                     99};
    struct session_msg m = {.type = types[how], .id = 9};

    MUST(client_open(c, sock, 0) == 0);
    MUST(client_send(c, &m, NULL, 0, NULL, 0));
    must_end(c);
}

/* ---- slots */

static void good_request(struct request *q, const struct buffer *b)
{
    *q = (struct request){.desc = {.seq = 1,
                                   .count = 100,
                                   .coll = COLL_ALL_REDUCE,
                                   .dtype = DTYPE_F32,
                                   .redop = REDOP_SUM},
                          .send = {.memory = b->id},
                          .recv = {.memory = b->id}};
}

enum { REQUESTS = 25 };

static void break_request(struct request *q, const struct buffer *b, struct client *c)
{
    static const uint64_t huge[] = {UINT64_MAX / 4 + 2}, ones[] = {1, 1};
    static uint64_t block[2], refusal[sizeof(struct session_declined) / 8 + 1];

    switch (how) {
    case 0:
        q->group = 1;
        break;
    case 1:
        q->desc.seq = 2;
        break;
    case 2:
        q->send.memory = 77;
        break;
    case 3:
        q->send.memory = 0;
        break;
    case 4:
        q->send.offset = b->bytes - 396;
        break;
    case 5:
        q->send.offset = UINT64_MAX - 399;
        break;
    case 6:
        q->recv.offset = b->bytes;
        break;
    case 7:
        q->desc.count = b->bytes / 4 + 1;
        break;
    case 8:
        q->desc.count = UINT64_MAX / 4 + 2; /* four bytes, modulo 2^64 */
        break;
    case 9:
        q->desc.coll = COLL_COUNT;
        break;
    case 10:
        q->desc.dtype = DTYPE_COUNT;
        break;
    case 11:
        q->desc.redop = REDOP_BAND;
        break;
    case 12:
        q->desc.coll = COLL_REDUCE;
        q->desc.root = 1;
        break;
    case 13:
        q->aux_bits = SESSION_SEND_COUNTS;
        break;
    case 14:
        q->aux_bits = 32;
        break;
    case 15:
        q->desc.coll = COLL_ALL_GATHER_V; /* without counts */
        break;
    case 16:
        q->desc.coll = COLL_ALL_GATHER_V;
        q->aux_bits = SESSION_RECV_COUNTS;
        q->aux = huge;
        q->aux_words = 1;
        break;
    case 17:
        q->desc.coll = COLL_ALL_GATHER_V;
        q->aux_bits = SESSION_RECV_COUNTS;
        q->aux = ones;
        q->aux_words = 2; /* one rank */
        break;
    case 18:
        q->desc.coll = COLL_ALL_TO_ALL;
        q->aux_bits = SESSION_RECV_BLOCKS;
        block[0] = b->id;
        block[1] = b->bytes - 399;
        q->aux = block;
        q->aux_words = 2;
        break;
    case 19:
        q->aux_words = 1;
        q->aux = ones;
        q->aux_bits = SESSION_SEND_COUNTS;
        break;
    case 20:
        q->desc.coll = COLL_ALL_TO_ALL;
        q->desc.count = UINT64_MAX / 4 + 2;
        break;
    case 21:
        client_forget(c, b->id);
        usleep(20000);
        break;
    case 22:
        q->aux_bits = SESSION_DECLINED; /* without the words */
        break;
    case 23:
        q->aux_bits = SESSION_DECLINED;
        q->aux = refusal;
        q->aux_words = ARRAY_LEN(refusal); /* one too many */
        break;
    case 24:
        q->desc.coll = COLL_ALL_GATHER_V;
        q->aux_bits = SESSION_DECLINED | SESSION_RECV_COUNTS;
        q->aux = refusal;
        q->aux_words = ARRAY_LEN(refusal);
        break;
    }
}

static void a_slot_that_breaks_the_rules(struct client *c, int sock)
{
    struct buffer b;
    struct request q;

    open_alone(c, sock, &b);
    good_request(&q, &b);
    break_request(&q, &b, c);
    client_announce_only(c, &q);
    must_end(c);
}

/* Others may read it. */
static void what_it_refuses_is_cleaned(struct client *c, int sock)
{
    static const int codes[] = {7, -1000, INT32_MIN, COMMD_E_NOMEM};
    struct session_declined why = {.code = codes[how]};
    struct session_result result;
    struct buffer b;
    struct request q;
    uint64_t n;

    open_alone(c, sock, &b);
    good_request(&q, &b);
    memset(why.text, '\n', sizeof why.text); /* nor does it end */
    q.aux_bits = SESSION_DECLINED;
    q.aux = (void *)&why;
    q.aux_words = sizeof why / 8;
    q.send.memory = q.recv.memory = 77; /* not looked at */
    n = client_announce_only(c, &q);
    MUST(client_wait(c, n, &result) == (how == 3 ? COMMD_E_NOMEM : COMMD_E_ABORTED));
    MUST(strlen(result.text) == sizeof result.text - 1);
    MUST(!memcmp(result.text, "rank 0: ??", 10) && !strchr(result.text, '\n'));
    good_request(&q, &b);
    q.desc.seq = 2;
    MUST(client_wait(c, client_announce(c, &q), NULL) == 0);
}

static void aux_beyond_the_end(struct client *c, int sock)
{
    struct buffer b;
    struct request q;
    struct session_slot *s;

    open_alone(c, sock, &b);
    good_request(&q, &b);
    s = &c->region->slots[0];
    s->desc = q.desc;
    s->desc.coll = COLL_ALL_GATHER_V;
    s->send = q.send;
    s->recv = q.recv;
    s->aux_bits = SESSION_RECV_COUNTS;
    s->aux_len = 8;
    s->aux_offset = how == 0 ? SESSION_AUX : how == 1 ? SESSION_AUX - 4 : UINT32_MAX - 7;
    atomic_store(&s->seq, 1);
    MUST(write(c->bell, &(uint64_t){1}, 8) == 8);
    must_end(c);
}

static void memory_of_another_session(struct client *c, int sock)
{
    struct attaching m;
    struct buffer b = {.id = 1, .bytes = 1 << 20};
    struct request q;

    MUST(client_open(c, sock, 0) == 0);
    membership_one(&m, c, 0, 66, 1, 0);
    MUST(client_attach(c, &m) == 0);
    good_request(&q, &b); /* 1 is what everybody else has */
    client_announce(c, &q);
    must_end(c);
}

/* Words that others read, in any state. */
static void garbage_in_the_region(struct client *c, int sock)
{
    uint64_t seed = how, *words;
    struct buffer b;
    struct request q;

    open_alone(c, sock, &b);
    words = (uint64_t *)c->region;
    for (unsigned i = 0; i < 300000; i++)
        words[draw(&seed) % (sizeof *c->region / 8)] = draw(&seed) % 3;
    for (unsigned i = 0; i < 1000; i++)
        MUST(write(c->bell, &(uint64_t){1}, 8) == 8);
    good_request(&q, &b);
    client_announce(c, &q);
    usleep(5000);
}

static atomic_bool quiet;

static void *change_the_slot(void *arg)
{
    struct client *c = arg;
    uint64_t seed = how;

    while (!atomic_load(&quiet)) {
        struct session_slot *s = &c->region->slots[c->next % SESSION_SLOTS];
        volatile uint64_t *count = &s->desc.count, *offset = &s->send.offset;

        *count = draw(&seed) % 2 ? 100 : 1ull << 40;
        *offset = draw(&seed) % 2 ? 0 : 1ull << 50;
    }
    return NULL;
}

/* Whatever it changes after it announced: the copy counts, which is right or ends it. */
static void slots_that_change(struct client *c, int sock)
{
    struct buffer b;
    struct request q;
    pthread_t thread;
    int code = 0;

    open_alone(c, sock, &b);
    MUST(pthread_create(&thread, NULL, change_the_slot, c) == 0);
    for (uint64_t seq = 1; seq < 200 && code != INT32_MIN; seq++) {
        good_request(&q, &b);
        q.desc.seq = seq;
        code = client_wait(c, client_announce(c, &q), NULL);
        MUST(code == 0 || code == INT32_MIN);
    }
    atomic_store(&quiet, true);
    pthread_join(thread, NULL);
}

static void deaf(struct client *c, int sock)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = 1};
    unsigned sent = 0;

    MUST(client_open(c, sock, 0) == 0);
    m.memory.kind = SESSION_IPC;
    m.memory.bytes = 4096;
    m.memory.uuid = c->uuid;
    m.memory.uuid.bytes[0] ^= 1;
    while (sent < 1000000 && client_send(c, &m, NULL, 0, NULL, 0))
        sent++;
    MUST(sent < 1000000);
}

static void too_many_groups(struct client *c, int sock)
{
    struct attaching m;
    unsigned n = 0;
    int code;

    MUST(client_open(c, sock, 0) == 0);
    do {
        membership_one(&m, c, n, 1000 + n, 1, 0);
        code = client_attach(c, &m);
    } while (!code && n++ < 5000);
    MUST(code == COMMD_E_QUOTA && n == 1024);
}

static void too_many_memories(struct client *c, int sock)
{
    struct session_msg m;
    struct buffer b;
    int code;

    MUST(client_open(c, sock, 0) == 0);
    memory_message(c, &m, &b);
    do {
        code = client_ask(c, &m, NULL, 0, NULL, 0);
        m.id++;
    } while (!code && m.id < 10000);
    MUST(code == COMMD_E_QUOTA);
    MUST(m.id > 4000);
}

/* ---- sessions of other GPUs ------------------------------------------------------------------ */

static int ask_for_more(struct client *c)
{
    struct session_msg m = {.type = SESSION_MORE, .id = 5};

    MUST(client_send(c, &m, NULL, 0, NULL, 0) && client_receive(c) && c->last.id == 5);
    if (c->last.type == SESSION_ANSWER)
        return c->last.answer.code;
    MUST(c->last.type == SESSION_MORE && c->nfds == 1);
    return 0;
}

static void more_sessions_than_there_are_gpus(struct client *c, int sock)
{
    struct buffer b;
    unsigned n = 0;

    open_alone(c, sock, &b);
    while (!ask_for_more(c))
        n++;
    MUST(n == MSG_MAX_GPUS && c->last.answer.code == COMMD_E_QUOTA);
}

static void more_sessions_of_one_that_was_asked_for(struct client *c, int sock)
{
    static struct client second;
    struct session_msg m = {.type = SESSION_MORE, .id = 5};
    struct buffer b;

    open_alone(c, sock, &b);
    MUST(ask_for_more(c) == 0);
    MUST(client_open(&second, c->fds[0], 0) == 0);
    MUST(client_send(&second, &m, NULL, 0, NULL, 0));
    must_end(&second);
    MUST(ask_for_more(c) == 0); /* the first one goes on */
}

static void the_first_session_ends_all(struct client *c, int sock)
{
    static struct client second;
    struct session_msg m = {.type = SESSION_WELCOME};
    struct buffer b;

    open_alone(c, sock, &b);
    MUST(ask_for_more(c) == 0);
    MUST(client_open(&second, c->fds[0], 0) == 0);
    MUST(client_alloc(&second, 1 << 20, &b) == 0);
    MUST(client_send(c, &m, NULL, 0, NULL, 0)); /* which is none for it */
    must_end(c);
    must_end(&second);
}

/* ---- memory that is lent ----------------------------------------------------------------------
 */

/* The code of the answer; its descriptor is in *ret_fd. */
static int ask_to_lend(struct client *c, uint32_t id, uint64_t bytes, int *ret_fd)
{
    struct session_msg m = {.type = SESSION_LEND, .id = id};

    m.memory.bytes = bytes;
    if (!client_send(c, &m, NULL, 0, NULL, 0) || !client_receive(c))
        return INT32_MIN;
    MUST(c->last.id == id);
    if (c->last.type == SESSION_ANSWER)
        return c->last.answer.code;
    MUST(c->last.type == SESSION_LEND && c->nfds == 1 && c->last.memory.bytes >= bytes);
    *ret_fd = c->fds[0];
    return 0;
}

static void memory_lent_twice_by_one_number(struct client *c, int sock)
{
    struct buffer b;
    int fd;

    open_alone(c, sock, &b);
    MUST(ask_to_lend(c, 100, 1, &fd) == 0);
    MUST(ask_to_lend(c, 100, 1, &fd) == INT32_MIN);
}

static void memory_lent_in_odd_sizes(struct client *c, int sock)
{
    static const uint64_t odd[] = {0, SESSION_LENT_MOST + 1ull, UINT64_MAX};
    struct buffer b;
    int fd;

    open_alone(c, sock, &b);
    MUST(ask_to_lend(c, 100, odd[how], &fd) == INT32_MIN);
}

static void more_lent_than_one_gets(struct client *c, int sock)
{
    struct buffer b;
    int fd;

    open_alone(c, sock, &b);
    MUST(ask_to_lend(c, 100, SESSION_LENT_MOST / 2, &fd) == 0);
    MUST(ask_to_lend(c, 101, SESSION_LENT_MOST / 2, &fd) == 0);
    MUST(ask_to_lend(c, 102, 1, &fd) == COMMD_E_QUOTA);
    client_forget(c, 100);
    for (unsigned i = 0; ask_to_lend(c, 103, 1, &fd); i++) { /* it takes a moment */
        MUST(c->last.answer.code == COMMD_E_QUOTA && i < 10000);
        usleep(100);
    }
}

/* Half of a quarter of a GPU of 16 GiB, in several sessions. */
static void more_lent_than_a_user_gets(struct client *c, int sock)
{
    static struct client more[2];
    struct buffer b;
    int fd;

    open_alone(c, sock, &b);
    MUST(ask_to_lend(c, 100, SESSION_LENT_MOST, &fd) == 0);
    for (unsigned i = 0; i < ARRAY_LEN(more); i++) {
        MUST(ask_for_more(c) == 0);
        MUST(client_open(&more[i], c->fds[0], 0) == 0);
        MUST(ask_to_lend(&more[i], 1, SESSION_LENT_MOST, &fd) == (i ? COMMD_E_QUOTA : 0));
    }
}

static void lent_memory_of_another_session(struct client *c, int sock)
{
    static struct client second;
    struct request q;
    struct buffer b;
    int fd;

    open_alone(c, sock, &b);
    MUST(ask_for_more(c) == 0);
    MUST(client_open(&second, c->fds[0], 0) == 0);
    MUST(ask_to_lend(&second, 100, b.bytes, &fd) == 0);
    b.id = 100;
    good_request(&q, &b);
    client_announce(c, &q);
    must_end(c);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static struct {
    const char *name;
    void (*fn)(struct client *c, int sock);
    unsigned times;
} trials[] = {
#define TRIAL(fn, times) {#fn, fn, times}
    TRIAL(hello_of_another_version, 1),
    TRIAL(hello_of_another_gpu, 1),
    TRIAL(no_hello, 1),
    TRIAL(short_message, 1),
    TRIAL(long_message, 1),
    TRIAL(long_forget, 1),
    TRIAL(hello_twice, 1),
    TRIAL(descriptors_with_hello, 1),
    TRIAL(memory_longer_than_it_is, 1),
    TRIAL(memory_longer_than_any_gpu, 1),
    TRIAL(memory_of_the_same_number, 1),
    TRIAL(memory_of_another_gpu, 1),
    TRIAL(memory_of_another_user, 2),
    TRIAL(memory_made_up, 1),
    TRIAL(chunks_that_are_no_memory, 1),
    TRIAL(chunks_without_descriptors, 1),
    TRIAL(too_many_chunks, 1),
    TRIAL(chunks_of_another_sum, 1),
    TRIAL(chunks_without_end, 1),
    TRIAL(chunks_longer_than_they_are, 1),
    TRIAL(forgetting_what_it_never_had, 1),
    TRIAL(groups_that_cannot_be, 1),
    TRIAL(a_group_that_contradicts_itself, MEMBERSHIPS),
    TRIAL(a_group_that_is_too_large, 2),
    TRIAL(group_numbers_twice, 1),
    TRIAL(messages_of_groups_that_are_not, 5),
    TRIAL(a_slot_that_breaks_the_rules, REQUESTS),
    TRIAL(what_it_refuses_is_cleaned, 4),
    TRIAL(aux_beyond_the_end, 3),
    TRIAL(memory_of_another_session, 1),
    TRIAL(garbage_in_the_region, 5),
    TRIAL(slots_that_change, 3),
    TRIAL(deaf, 1),
    TRIAL(too_many_groups, 1),
    TRIAL(too_many_memories, 1),
    TRIAL(more_sessions_than_there_are_gpus, 1),
    TRIAL(more_sessions_of_one_that_was_asked_for, 1),
    TRIAL(the_first_session_ends_all, 1),
    TRIAL(memory_lent_twice_by_one_number, 1),
    TRIAL(memory_lent_in_odd_sizes, 3),
    TRIAL(more_lent_than_one_gets, 1),
    TRIAL(more_lent_than_a_user_gets, 1),
    TRIAL(lent_memory_of_another_session, 1),
#undef TRIAL
};

static int run_trial(void *arg, int sock)
{
    static struct client c;

    trials[*(unsigned *)arg].fn(&c, sock);
    return 0;
}

static void nobody_else_is_hurt(void **state)
{
    struct innocent both[2];
    struct service sv;
    pid_t pids[2];

    (void)state;
    env_set("GPU_TEST_LOG", getenv("GPU_TEST_TALK") ? "info" : "error");
    service_start(&sv, NULL);
    env_set("GPU_TEST_LOG", NULL);
    peace = (struct peace *)meetings_new(64);
    for (unsigned i = 0; i < 2; i++) {
        both[i] = (struct innocent){peace, i};
        pids[i] = client_spawn(&sv, 1000, innocent, &both[i]);
    }
    while (!atomic_load(&peace->begun))
        usleep(1000);
    for (unsigned i = 0; i < ARRAY_LEN(trials); i++)
        for (how = 0; how < trials[i].times; how++) {
            int status;

            /* who is charged to the other one has nothing of its memory by that */
            sv.payer = trials[i].fn == memory_of_another_user && how ? 1000 : 0;
            status = client_join(client_spawn(&sv, 2000, run_trial, &i));
            if (status)
                print_error("%s %u: %d\n", trials[i].name, how, status);
            assert_int_equal(status, 0);
        }
    atomic_store(&peace->over, 1);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

static int looks_into_what_is_lent(void *arg, int sock)
{
    struct cu_access access = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
    struct client c;
    uint64_t n;
    cu_mem mem;
    cu_ptr at;
    int fd;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    MUST(ask_to_lend(&c, 1, 3 << 20, &fd) == 0);
    n = c.last.memory.bytes;
    MUST(!c.cu.vmm_import(&mem, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD));
    MUST(!c.cu.vmm_reserve(&at, n, 0, 0, 0) && !c.cu.vmm_map(at, n, 0, mem, 0));
    MUST(!c.cu.vmm_access(at, n, &access, 1));
    for (uint64_t i = 0; i < n; i++)
        MUST(!((uint8_t *)(uintptr_t)at)[i]);
    return 0;
}

/* Memory that the driver gives out may have been another client's. */
static void what_is_lent_is_empty(void **state)
{
    const char *settings[] = {"FAKECUDA_DIRTY=171", NULL};
    struct service sv;

    (void)state;
    service_start(&sv, settings);
    assert_int_equal(client_join(client_spawn(&sv, 1000, looks_into_what_is_lent, NULL)), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

/* A session takes a socket; it need not even speak. A person has no more by having many uids. */
static void no_more_sessions_than_a_user_may_have(void **state)
{
    struct service sv;
    struct client c = {0};
    unsigned n = 0;
    int socks[600];

    (void)state;
    service_start(&sv, NULL);
    sv.payer = 2000;
    for (; n < 513; n++)
        socks[n] = service_session(&sv, 100000 + n, 1, NULL); /* uids of one person */
    sv.payer = 0;
    c.sock = socks[512];
    assert_true(client_receive(&c));
    assert_int_equal(c.last.answer.code, COMMD_E_QUOTA);
    assert_false(client_receive(&c));
    c.sock = service_session(&sv, 1000, 1, NULL); /* another user is not concerned */
    assert_int_equal(send(c.sock, "1234", 4, MSG_NOSIGNAL), 4);
    assert_false(client_receive(&c));
    for (unsigned i = 0; i < n; i++)
        close(socks[i]);
    assert_int_equal(service_stop(&sv), 0);
}

/* Rank 0 of a group of @nodes nodes, the others of which never come. */
static int attach_over(struct client *c, uint32_t number, uint32_t nodes)
{
    static struct attaching m;
    struct session_msg msg;
    size_t len;

    membership_one(&m, c, number, 5000 + number, 2, 0);
    m.nnodes = m.units = 2;
    m.unit[0].ranks = m.unit[1].ranks = 1;
    m.unit[1].node = 1;
    m.unit_of_rank[1] = 1;
    membership_message(&m, &msg, tail, &len);
    if (nodes > 2) {
        struct session_unit *units = (void *)tail;
        uint16_t *unit_of_rank = (void *)(units + nodes);

        msg.attach.world = msg.attach.nnodes = msg.attach.units = nodes;
        for (uint32_t i = 0; i < nodes; i++) {
            units[i] = (struct session_unit){.node = (uint16_t)i, .ranks = 1, .uuid = c->uuid};
            unit_of_rank[i] = (uint16_t)i;
        }
        len = nodes * (sizeof *units + sizeof *unit_of_rank);
    }
    return client_ask(c, &msg, tail, len, NULL, 0);
}

static int joins_without_end(void *arg, int sock)
{
    uint32_t nodes = *(uint32_t *)arg, n = 0;
    struct client c;
    int code;

    MUST(client_open(&c, sock, 0) == 0);
    do
        code = attach_over(&c, n++, nodes);
    while (!code);
    MUST(code == COMMD_E_QUOTA);
    MUST(strstr(c.last.answer.text, nodes == 2 ? "as may wait for the other nodes"
                                               : "as many nodes as commd-gpu keeps for one"));
    MUST(n == (nodes == 2 ? 257 : 17));
    meet((struct meeting *)peace, 3);
    return 0;
}

static int joins_once(void *arg, int sock)
{
    struct client c;

    (void)arg;
    meet((struct meeting *)peace, 3);
    MUST(client_open(&c, sock, 0) == 0);
    MUST(attach_over(&c, 1, 4096) == 0);
    return 0;
}

/* Joins wait on threads, of which there are so many: one user cannot have all of them. Nor as much
 * memory as it likes, for nodes that it made up. */
static void no_more_joins_than_a_user_may_have(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    uint32_t nodes[] = {2, 4096};
    struct service sv;
    pid_t pids[3];
    int listens = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/commd-deaf-%d", (int)getpid());
    assert_int_equal(bind(listens, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listens, 1), 0);
    env_set("TEST_SOCKET", at.sun_path);
    service_start(&sv, NULL);
    env_set("TEST_SOCKET", NULL);
    peace = (struct peace *)meetings_new(64);
    for (unsigned i = 0; i < 2; i++)
        pids[i] = client_spawn(&sv, 2000 + i, joins_without_end, &nodes[i]);
    pids[2] = client_spawn(&sv, 1000, joins_once, NULL);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(client_join(pids[i]), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
    close(listens);
    unlink(at.sun_path);
}

/* Told of again and again, memory counts each time: it is mapped each time. */
static int maps_too_much(void *arg, int sock)
{
    struct session_msg m;
    struct buffer b;
    struct client c;
    unsigned n = 0;
    int code;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    memory_message(&c, &m, &b);
    do {
        code = client_ask(&c, &m, NULL, 0, NULL, 0);
        m.id++;
        n++;
    } while (!code);
    MUST(code == COMMD_E_QUOTA);
    MUST(strstr(c.last.answer.text, "this user's mapped allocations are as large as they may be"));
    MUST(n == 4 * 16 / (m.memory.bytes >> 20) + 1);
    return 0;
}

static void no_more_memory_than_a_user_may_map(void **state)
{
    static const char *const settings[] = {"FAKECUDA_MEMORY=16777216", NULL};
    struct service sv;

    (void)state;
    service_start(&sv, settings);
    assert_int_equal(client_join(client_spawn(&sv, 2000, maps_too_much, NULL)), 0);
    assert_int_equal(service_stop(&sv), 0);
}

static int waits_for_the_end(void *arg, int sock)
{
    struct attaching m;
    struct client c, second;

    (void)arg;
    MUST(client_open(&c, sock, 0) == 0);
    MUST(ask_for_more(&c) == 0);
    MUST(client_open(&second, c.fds[0], 0) == 0);
    membership_one(&m, &c, 0, 1, 1, 0);
    MUST(client_attach(&c, &m) == 0);
    MUST(!client_receive(&second));
    MUST(!client_receive(&c));
    return 0;
}

static void commd_ends_a_session(void **state)
{
    struct service sv;
    pid_t pid;

    (void)state;
    service_start(&sv, NULL);
    pid = client_spawn(&sv, 1000, waits_for_the_end, NULL);
    assert_true(service_until(&sv, 2, 1, 0)); /* it has its answers */
    service_session_del(&sv, 99);
    service_session_del(&sv, sv.clients);
    assert_int_equal(client_join(pid), 0);
    assert_true(service_until(&sv, 0, 0, 0));
    assert_int_equal(service_stop(&sv), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_else_is_hurt),
        cmocka_unit_test(no_more_sessions_than_a_user_may_have),
        cmocka_unit_test(no_more_joins_than_a_user_may_have),
        cmocka_unit_test(no_more_memory_than_a_user_may_map),
        cmocka_unit_test(commd_ends_a_session),
        cmocka_unit_test(what_is_lent_is_empty),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
