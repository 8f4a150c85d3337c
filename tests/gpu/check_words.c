/* check_words.c - words in host memory that streams write and wait for: what all order between the
 * ranks and commd-gpu is made of. And streams themselves. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"

/* TURNS: of two processes, all enqueued before the first begins: few calls, as check_depth() has to
 * say first how many a stream takes before the next one waits for room. */
enum { PAGE = 4096, LINE = 16 /* words */, ROUNDS = 500, TURNS = 40 };

int check_device(void)
{
    char name[128] = "", bus[32] = "";
    int driver = 0, major = 0, minor = 0, sms = 0, vmm = 0, fds = 0, uva = 0;
    size_t bytes = 0;
    cu_device dev;

    MUST(cu.ctx_device(&dev));
    MUST(cu.device_name(name, sizeof name, dev));
    MUST(cu.device_bus_id(bus, sizeof bus, dev));
    MUST(cu.driver_version(&driver));
    MUST(cu.device_memory(&bytes, dev));
    MUST(cu.device_attribute(&major, CU_ATTR_CC_MAJOR, dev));
    MUST(cu.device_attribute(&minor, CU_ATTR_CC_MINOR, dev));
    MUST(cu.device_attribute(&sms, CU_ATTR_MULTIPROCESSORS, dev));
    MUST(cu.device_attribute(&uva, CU_ATTR_UNIFIED_ADDRESSING, dev));
    MUST(cu.device_attribute(&vmm, CU_ATTR_VMM, dev));
    MUST(cu.device_attribute(&fds, CU_ATTR_POSIX_FD, dev));
    if (!uva)
        return fail("%s has no unified addresses", name);
    return pass("%s, %s, driver=%d.%d sm=%d%d multiprocessors=%d memory_mb=%zu vmm=%d "
                "descriptors=%d",
                name, bus, driver / 1000, driver % 1000 / 10, major, minor, sms, bytes / MIB, vmm,
                fds);
}

/* ---- two processes ----------------------------------------------------------------------- */

struct hello {
    struct cu_ipc_mem handle;
};

/* Round i: waits for words[0] >= i, reads what the other has written before it, answers. */
int child_words(int socket)
{
    struct hello hello;
    cu_ptr words, data = device_new(MIB);
    cu_stream s = stream_new();
    char c;
    int fd = -1;

    if (!peer_receive(socket, &c, 1, &fd))
        return CHECK_FAIL;
    host_new(PAGE, fd, &words);
    if (cu.ipc_get(&hello.handle, data))
        memset(&hello, 0, sizeof hello);
    peer_send(socket, &hello, sizeof hello, -1);
    for (uint32_t i = 1; i <= TURNS; i++) {
        MUST(cu.stream_wait32(s, words, i, CU_WAIT_GEQ));
        MUST(cu.stream_write32(s, data, 3 * i, CU_WRITE_DEFAULT));
        MUST(cu.stream_write32(s, words + 4 * (cu_ptr)LINE, i, CU_WRITE_DEFAULT));
    }
    peer_send(socket, "", 1, -1);
    MUST(cu.stream_synchronize(s));
    peer_receive(socket, &c, 1, NULL); /* the memory stays until the other has read it */
    return CHECK_PASS;
}

/* There and back, on the streams of two processes; the hosts only enqueue. */
int check_words(void)
{
    struct hello hello, none = {0};
    struct peer peer;
    cu_ptr words, theirs = 0, seen = device_new(TURNS * sizeof(uint32_t));
    cu_stream s = stream_new();
    uint32_t host[TURNS];
    int fd = memory_file(PAGE);
    _Atomic uint32_t *w = host_new(PAGE, fd, &words);
    double begin, us;
    char c;

    peer_new("words", NULL, false, &peer);
    peer_send(peer.socket, "", 1, fd);
    if (!peer_receive(peer.socket, &hello, sizeof hello, NULL))
        return fail("the other process: %d", peer_end(&peer));
    if (memcmp(&hello, &none, sizeof hello) && cu.ipc_open(&theirs, hello.handle, 1))
        theirs = 0;
    MUST(cu.stream_wait32(s, words + 8 * (cu_ptr)LINE, 1, CU_WAIT_GEQ)); /* the start */
    for (uint32_t i = 1; i <= TURNS; i++) {
        MUST(cu.stream_write32(s, words, i, CU_WRITE_DEFAULT));
        MUST(cu.stream_wait32(s, words + 4 * (cu_ptr)LINE, i, CU_WAIT_GEQ));
        if (theirs)
            MUST(cu.copy(seen + (i - 1) * sizeof(uint32_t), theirs, sizeof(uint32_t), s));
    }
    peer_receive(peer.socket, &c, 1, NULL); /* both have enqueued all */
    begin = now_us();
    atomic_store(&w[2 * LINE], 1);
    if (!drains(s, 20000))
        return fail("stands still at round %u, the other at %u", (unsigned)atomic_load(&w[0]),
                    (unsigned)atomic_load(&w[LINE]));
    us = now_us() - begin;
    copy_now((cu_ptr)(uintptr_t)host, seen, sizeof host);
    peer_send(peer.socket, "", 1, -1);
    for (uint32_t i = 1; theirs && i <= TURNS; i++)
        if (host[i - 1] != 3 * i)
            return fail("round %u: %u is read behind the word, not %u", i, host[i - 1], 3 * i);
    if (peer_end(&peer))
        return fail("the other process has failed");
    return pass("round_trip_us=%.2f%s", us / TURNS,
                theirs ? ", data written before a word are there behind it"
                       : ", without legacy IPC: data were not looked at");
}

/* As libcommd and commd-gpu do: the stream writes, a host sees it and stores, the stream goes on.
 */
const char *word_rounds(double *us, unsigned n)
{
    static _Atomic uint32_t *w;
    static cu_ptr words;
    static cu_stream s;
    static uint32_t i;

    if (!w) {
        w = host_new(PAGE, -1, &words);
        s = stream_new();
    }
    for (unsigned k = 0; k < n; k++) {
        double begin = now_us();

        i++;
        MUST(cu.stream_write32(s, words, i, CU_WRITE_DEFAULT));
        MUST(cu.stream_wait32(s, words + 4 * (cu_ptr)LINE, i, CU_WAIT_GEQ));
        MUST(cu.stream_write32(s, words + 8 * (cu_ptr)LINE, i, CU_WRITE_DEFAULT));
        while (atomic_load(&w[0]) != i)
            if (now_us() - begin > 5e6)
                return "no word of the stream within 5 s";
        atomic_store(&w[LINE], i);
        while (atomic_load(&w[2 * LINE]) != i)
            if (now_us() - begin > 5e6)
                return "a store did not let the stream go on within 5 s";
        us[k] = now_us() - begin;
    }
    return NULL;
}

int check_word_host(void)
{
    double us[ROUNDS];
    const char *wrong = word_rounds(us, ROUNDS);

    if (wrong)
        return fail("%s", wrong);
    return pass("enqueue_and_two_words_p50_us=%.2f p99_us=%.2f", percentile(us, ROUNDS, 500),
                percentile(us, ROUNDS, 990));
}

/* All done words of an operation in one call, wrapped around the largest number. */
int check_batch(void)
{
    enum { WORDS = 17 };
    union cu_batch_op ops[2 * WORDS];
    cu_ptr words;
    _Atomic uint32_t *w = host_new(PAGE, -1, &words);
    cu_stream s = stream_new();

    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; i < WORDS; i++) {
        ops[i].value.operation = CU_BATCH_WAIT32;
        ops[i].value.address = words + 4 * (cu_ptr)i;
        ops[i].value.value = 3; /* the word has gone past it, and around: 0xffffffff is behind */
        ops[i].value.flags = CU_WAIT_GEQ;
        atomic_store(&w[i], UINT32_MAX);
        ops[WORDS + i].value.operation = CU_BATCH_WRITE32;
        ops[WORDS + i].value.address = words + 4 * (cu_ptr)(64 + i);
        ops[WORDS + i].value.value = 100 + i;
    }
    MUST(cu.stream_batch(s, 2 * WORDS, ops, 0));
    if (drains(s, 50))
        return fail("a wait for 3 is over at 0xffffffff");
    for (unsigned i = 0; i < WORDS; i++)
        atomic_store(&w[i], 3 + i);
    if (!drains(s, 5000))
        return fail("the waits are not over");
    for (unsigned i = 0; i < WORDS; i++)
        if (atomic_load(&w[64 + i]) != 100 + i)
            return fail("word %u is %u", i, (unsigned)atomic_load(&w[64 + i]));
    return pass("waits and writes of %d words in one call", (int)WORDS);
}

/* ---- hardware queues --------------------------------------------------------------------- */

/* One of the highest priority; NULL: it cannot be made. */
static cu_stream urgent_new(void)
{
    cu_result (*range)(int *, int *) = dlsym(cu.library, "cuCtxGetStreamPriorityRange");
    cu_result (*make)(cu_stream *, unsigned, int) = dlsym(cu.library, "cuStreamCreateWithPriority");
    int least, greatest;
    cu_stream s;

    if (!range || !make)
        return NULL;
    MUST(range(&least, &greatest));
    MUST(make(&s, CU_STREAM_NON_BLOCKING, greatest));
    return s;
}

/* Does it run beside streams that wait? */
static const char *urgent_runs(cu_stream s, cu_ptr word)
{
    if (!s)
        return "cannot be made";
    MUST(cu.stream_write32(s, word, 1, CU_WRITE_DEFAULT));
    return drains(s, 300) ? "runs" : "stands, too";
}

/* Streams of one process that wait, until one more does not run any more. */
int check_queues(void)
{
    enum { STREAMS = 130 };
    cu_ptr words;
    _Atomic uint32_t *w = host_new(PAGE, -1, &words);
    cu_stream waiting[STREAMS];
    unsigned n = 0;
    bool runs = true, all = true;
    cu_stream early = urgent_new();
    const char *first, *last;

    while (n < STREAMS && runs) {
        cu_stream next = stream_new();

        waiting[n] = stream_new();
        MUST(cu.stream_wait32(waiting[n], words, 1, CU_WAIT_GEQ));
        n++;
        MUST(cu.stream_write32(next, words + 4 * (cu_ptr)LINE, n, CU_WRITE_DEFAULT));
        runs = drains(next, 300);
        if (runs)
            MUST(cu.stream_free(next));
    }
    first = urgent_runs(early, words + 8 * (cu_ptr)LINE);
    last = urgent_runs(urgent_new(), words + 8 * (cu_ptr)LINE);
    atomic_store(&w[0], 1); /* a store of the host frees all of them */
    for (unsigned i = 0; i < n; i++)
        all &= drains(waiting[i], 5000);
    if (!all)
        return fail("%u streams waited; not all went on after the store", n);
    return pass(
        "%s=%u; of high priority: one made before them %s, one made behind them %s; all went "
        "on after a store of the host",
        runs ? "waiting_streams_and_another_runs" : "a_stream_stands_behind_waiting_ones", n, first,
        last);
}

/* How many calls may stand behind a wait before the host waits in the next one? Then it waits for
 * other ranks. */
struct enqueuing {
    cu_context ctx;
    cu_stream s;
    cu_ptr word;
    _Atomic unsigned done;
    cu_result result;
};
enum { DEEP = 20000 };

static void *enqueue_many(void *arg)
{
    struct enqueuing *q = arg;

    cu.ctx_set(q->ctx);
    for (unsigned i = 1; i <= DEEP && !q->result; i++) {
        q->result = cu.stream_write32(q->s, q->word, i, CU_WRITE_DEFAULT);
        atomic_store(&q->done, i);
    }
    return NULL;
}

int check_depth(void)
{
    struct enqueuing q = {.s = stream_new()};
    cu_ptr words;
    _Atomic uint32_t *w = host_new(PAGE, -1, &words);
    unsigned before, seen = 0;
    pthread_t t;

    MUST(cu.ctx_get(&q.ctx));
    MUST(cu.stream_wait32(q.s, words, 1, CU_WAIT_GEQ));
    q.word = words + 4 * (cu_ptr)LINE;
    pthread_create(&t, NULL, enqueue_many, &q);
    do {
        before = seen;
        usleep(300000);
        seen = atomic_load(&q.done);
    } while (seen != before && seen < DEEP);
    atomic_store(&w[0], 1);
    pthread_join(t, NULL);
    if (q.result)
        return fail("call %u: %s", atomic_load(&q.done), text_of(q.result));
    if (!drains(q.s, 10000) || atomic_load(&w[LINE]) != DEEP)
        return fail("not all is done after the wait: %u", (unsigned)atomic_load(&w[LINE]));
    return pass("calls_behind_a_wait=%u%s", seen,
                seen < DEEP ? ", then the host waits" : " and more");
}

/* ---- functions of the host --------------------------------------------------------------- */

static void tell(void *arg)
{
    eventfd_write(*(int *)arg, 1);
}

int check_host_func(void)
{
    cu_stream s = stream_new();
    int fd = eventfd(0, EFD_CLOEXEC);
    double us[ROUNDS];
    eventfd_t value;

    must_sys(fd, "eventfd");
    for (unsigned i = 0; i < ROUNDS; i++) {
        double begin = now_us();

        MUST(cu.host_func(s, tell, &fd));
        must_sys(eventfd_read(fd, &value), "read");
        us[i] = now_us() - begin;
    }
    return pass("enqueue_to_eventfd_p50_us=%.2f p99_us=%.2f", percentile(us, ROUNDS, 500),
                percentile(us, ROUNDS, 990));
}

/* ---- what tests/fakecuda does because hardware does so ----------------------------------- */

static char differences[800];

static void fact(const char *what, int got, int want)
{
    size_t n = strlen(differences);

    if (got != want)
        snprintf(differences + n, sizeof differences - n, "%s%s: %d, not %d", n ? "; " : "", what,
                 got, want);
}

static void *without_context(void *arg)
{
    cu_ptr p;

    *(cu_result *)arg = cu.mem_alloc(&p, 1);
    return NULL;
}

static void call_driver(void *arg)
{
    *(cu_result *)arg = cu.stream_query(NULL);
}

static uint64_t attribute(cu_ptr p, int what)
{
    uint64_t value = 0;
    void *data = &value;

    MUST(cu.pointer_attributes(1, &what, &data, p));
    return value;
}

/* Memory of which the driver knows nothing: it is asked of every buffer. */
static void facts_of_plain_memory(void)
{
    int ask[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_IS_MANAGED, CU_POINTER_DEVICE_ORDINAL};
    uint32_t type = 7, managed = 7, plain = 0;
    int gpu = 7;
    void *answers[] = {&type, &managed, &gpu};
    cu_result r = cu.pointer_attributes(ARRAY_LEN(ask), ask, answers, (cu_ptr)(uintptr_t)&plain);

    if (!r) {
        fact("memory type of plain memory", (int)type, 0);
        fact("plain memory is managed", (int)managed, 0);
    } else { /* libcommd takes that for host memory, too */
        fact("what is asked of plain memory", r, CU_E_INVALID_VALUE);
    }
}

static void facts_of_memory(void)
{
    cu_ptr p = device_new(4 * MIB), base = 0, again;
    uint64_t id = attribute(p, CU_POINTER_BUFFER_ID);
    struct cu_ipc_mem handle;
    size_t bytes = 0;
    void *host = host_new(PAGE, -1, NULL);
    cu_stream s = stream_new();

    fact("memory type", (int)attribute(p, CU_POINTER_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
    fact("memory type of the host's",
         (int)attribute((cu_ptr)(uintptr_t)host, CU_POINTER_MEMORY_TYPE), CU_MEMORYTYPE_HOST);
    fact("legacy IPC of cuMemAlloc", (int)attribute(p, CU_POINTER_IS_LEGACY_IPC), 1);
    fact("begin of the range", attribute(p + 5, CU_POINTER_RANGE_START) == p, 1);
    fact("length of the range", attribute(p + 5, CU_POINTER_RANGE_SIZE) == 4 * MIB, 1);
    fact("cuMemGetAddressRange", cu.mem_range(&base, &bytes, p + MIB), 0);
    fact("its base", base == p, 1);
    fact("a copy past the end", cu.copy(p + 3 * MIB, p, 2 * MIB, s), CU_E_INVALID_VALUE);
    fact("a registration of the same", cu.host_register(host, PAGE, CU_HOST_PORTABLE), 712);
    fact("export", cu.ipc_get(&handle, p), 0);
    fact("own memory is opened", cu.ipc_open(&base, handle, CU_IPC_LAZY_PEER_ACCESS) != 0, 1);
    fact("free", cu.mem_free(p), 0);
    fact("free again", cu.mem_free(p), CU_E_INVALID_VALUE);
    again = device_new(4 * MIB);
    fact("another BUFFER_ID", attribute(again, CU_POINTER_BUFFER_ID) != id, 1);
    fact("free", cu.mem_free(again), 0);
}

static void facts_of_streams(void)
{
    cu_ptr words;
    _Atomic uint32_t *w = host_new(PAGE, -1, &words);
    cu_stream s = stream_new(), other = stream_new(), plain;
    cu_event e;
    cu_result inside = -1;

    MUST(cu.event_new(&e, CU_EVENT_DISABLE_TIMING));
    fact("an event never recorded", cu.event_query(e), 0);
    MUST(cu.stream_wait32(s, words, 1, CU_WAIT_GEQ));
    MUST(cu.event_record(e, s));
    MUST(cu.stream_wait_event(other, e, 0));
    fact("an event behind a wait", cu.event_query(e), CU_E_NOT_READY);
    fact("a stream behind it", drains(other, 20), 0);
    atomic_store(&w[0], 1);
    fact("it after the store", drains(other, 5000), 1);
    MUST(cu.stream_new(&plain, CU_STREAM_DEFAULT));
    MUST(cu.stream_wait32(plain, words, 2, CU_WAIT_GEQ));
    MUST(cu.stream_write32(NULL, words + 4, 1, CU_WRITE_DEFAULT));
    fact("the default stream behind another", drains(NULL, 20), 0);
    atomic_store(&w[0], 2);
    fact("it after the store", drains(NULL, 5000), 1);
    MUST(cu.host_func(s, call_driver, &inside));
    MUST(cu.stream_synchronize(s));
    fact("a call in a host function", inside, CU_E_NOT_PERMITTED);
}

/* cuMemFree() waits for what runs: so nobody may free what others wait for on this device. */
static void *free_it(void *arg)
{
    cu_context ctx = ((void **)arg)[0];

    cu.ctx_set(ctx);
    cu.mem_free((cu_ptr)(uintptr_t)((void **)arg)[1]);
    atomic_store((_Atomic int *)((void **)arg)[2], 1);
    return NULL;
}

static void facts_of_freeing(void)
{
    cu_ptr words, p = device_new(MIB);
    _Atomic uint32_t *w = host_new(PAGE, -1, &words);
    _Atomic int freed = 0;
    cu_context ctx;
    void *arg[] = {NULL, (void *)(uintptr_t)p, &freed};
    cu_stream s = stream_new();
    pthread_t t;

    MUST(cu.ctx_get(&ctx));
    arg[0] = ctx;
    MUST(cu.stream_wait32(s, words, 1, CU_WAIT_GEQ));
    pthread_create(&t, NULL, free_it, arg);
    usleep(100000);
    fact("freeing waits", atomic_load(&freed), 0);
    atomic_store(&w[0], 1);
    pthread_join(t, NULL);
}

int check_facts(void)
{
    cu_result r = CU_SUCCESS;
    cu_stream s = stream_new();
    pthread_t t;
    int n, status;
    pid_t pid = fork();

    if (!pid)
        _exit(cu.device_count(&n));
    must_sys(waitpid(pid, &status, 0), "waitpid");
    fact("the driver in a forked child", WEXITSTATUS(status), CU_E_NOT_INITIALIZED);
    pthread_create(&t, NULL, without_context, &r);
    pthread_join(t, NULL);
    fact("a thread without a context", r, CU_E_INVALID_CONTEXT);
    fact("an idle stream", cu.stream_query(s), 0);
    facts_of_plain_memory();
    facts_of_memory();
    facts_of_streams();
    facts_of_freeing();
    if (differences[0])
        return fail("differs from tests/fakecuda: %s", differences);
    return pass("as tests/fakecuda has it");
}
