/* check_load.c - times on a GPU that others use, too: how long a word takes beside processes that
 * wait and one that computes, a kernel behind what another process did last, and a launch while a
 * thread opens much memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"
#include "tests/gpu/gpu_exporter.h"

enum { WAITING = 7, ROUNDS = 200, BATCH = 20, PAGE = 4096 };

/* ---- time slices ------------------------------------------------------------------------- */

/* 'w': a stream of it waits for ever; 'c': it computes for ever. */
int child_busy(int socket)
{
    cu_stream s[2] = {stream_new(), stream_new()};
    cu_ptr words;
    char c;

    host_new(PAGE, -1, &words);
    if (!peer_receive(socket, &c, 1, NULL))
        return CHECK_FAIL;
    if (c == 'w')
        MUST(cu.stream_wait32(s[0], words, 1, CU_WAIT_GEQ));
    else if (!copies_begin(check_fake ? MIB : 256 * (size_t)MIB))
        return CHECK_SKIP;
    peer_send(socket, "", 1, -1);
    for (unsigned i = 0; c == 'c'; i ^= 1) { /* the GPU always has a batch */
        copies_enqueue(s[i], BATCH);
        MUST(cu.stream_synchronize(s[i ^ 1]));
    }
    pause();
    return CHECK_PASS;
}

/* With @n processes of the kind @c beside this one. false: they do not start. */
static bool beside(unsigned n, char c, double *ret_p50, double *ret_p99, const char **ret_wrong)
{
    struct peer peers[WAITING];
    unsigned rounds = c == 'c' ? ROUNDS / 4 : ROUNDS;
    double us[ROUNDS];
    bool ready = true;
    char answer;

    for (unsigned i = 0; i < n; i++) {
        peer_new("busy", NULL, false, &peers[i]);
        peer_send(peers[i].socket, &c, 1, -1);
    }
    for (unsigned i = 0; i < n; i++)
        ready &= peer_receive(peers[i].socket, &answer, 1, NULL);
    if (ready) {
        *ret_wrong = word_rounds(us, rounds);
        *ret_p50 = *ret_wrong ? 0 : percentile(us, rounds, 500);
        *ret_p99 = *ret_wrong ? 0 : percentile(us, rounds, 990);
    }
    for (unsigned i = 0; i < n; i++)
        peer_kill(&peers[i]);
    return ready;
}

int check_slices(void)
{
    static const struct {
        unsigned n;
        char kind;
        const char *what;
    } with[] = {{0, 'w', "alone"},
                {1, 'w', "beside a process whose stream waits"},
                {WAITING, 'w', "beside 7 of them"},
                {1, 'c', "beside a process that computes"}};
    double p50[ARRAY_LEN(with)], p99[ARRAY_LEN(with)];
    const char *wrong = NULL;

    if (!copies_begin(MIB))
        return skip("built without a CUDA compiler");
    for (unsigned i = 0; i < ARRAY_LEN(with) && !wrong; i++) {
        if (!beside(with[i].n, with[i].kind, &p50[i], &p99[i], &wrong))
            return fail("%s: it does not start", with[i].what);
        if (wrong)
            return fail("%s: %s", with[i].what, wrong);
    }
    return pass("two words and a call: alone_p50_us=%.1f p99_us=%.1f, beside processes that wait: "
                "one_p50_us=%.1f p99_us=%.1f seven_p50_us=%.1f p99_us=%.1f, beside one that "
                "computes: computing_p50_us=%.1f computing_p99_us=%.1f",
                p50[0], p99[0], p50[1], p99[1], p50[2], p99[2], p50[3], p99[3]);
}

/* ---- changes of context ------------------------------------------------------------------ */

/* What another process does on the GPU, and has ended, before this one launches a kernel. Without
 * MPS the GPU changes from one context to the other where both have used what computes. Copies of
 * up to 64 KB from plain host memory may use it, too: commd-perf fills its buffers by such. */
static const struct {
    char kind;
    size_t bytes;
} last_deeds[] = {{'n', 0}, {'w', 0}, {'c', 32 << 10}, {'c', 256 << 10}, {'k', 0}};
enum { PLAIN = 256 << 10, CHANGES = 50 };

int child_deeds(int socket)
{
    void *plain = calloc(1, PLAIN);
    cu_stream s = stream_new();
    cu_ptr words, p = device_new(PLAIN);
    unsigned char i;

    host_new(PAGE, -1, &words);
    if (!plain || !copies_begin(PAGE))
        return CHECK_SKIP;
    while (peer_receive(socket, &i, 1, NULL)) {
        if (last_deeds[i].kind == 'w')
            MUST(cu.stream_write32(s, words, 1, CU_WRITE_DEFAULT));
        if (last_deeds[i].kind == 'c')
            MUST(cu.copy(p, (cu_ptr)(uintptr_t)plain, last_deeds[i].bytes, s));
        if (last_deeds[i].kind == 'k')
            copies_enqueue(s, 1);
        MUST(cu.stream_synchronize(s));
        peer_send(socket, "", 1, -1);
    }
    free(plain);
    return CHECK_PASS;
}

int check_changes(void)
{
    double us[CHANGES], p50[ARRAY_LEN(last_deeds)];
    cu_stream s = stream_new();
    struct peer peer;
    char answer;

    if (!copies_begin(PAGE))
        return skip("built without a CUDA compiler");
    peer_new("deeds", NULL, false, &peer);
    for (unsigned char i = 0; i < ARRAY_LEN(last_deeds); i++) {
        for (unsigned k = 0; k < CHANGES; k++) {
            double begin;

            peer_send(peer.socket, &i, 1, -1);
            if (!peer_receive(peer.socket, &answer, 1, NULL))
                return fail("the other process ends");
            begin = now_us();
            copies_enqueue(s, 1);
            MUST(cu.stream_synchronize(s));
            us[k] = now_us() - begin;
        }
        p50[i] = percentile(us, CHANGES, 500);
    }
    peer_kill(&peer);
    return pass("a kernel and a look, p50, when another process had done: nothing_us=%.1f "
                "word_us=%.1f copy_of_32kb_us=%.1f copy_of_256kb_us=%.1f kernel_us=%.1f",
                p50[0], p50[1], p50[2], p50[3], p50[4]);
}

/* ---- beside a thread that opens memory --------------------------------------------------- */

struct opening {
    cu_context ctx;
    struct exported shown;
    cu_result result;
    double open_us, close_us;
    _Atomic int state; /* 0; 1: opens; 2: closes; 3: has ended */
};

static void *open_and_close(void *arg)
{
    struct opening *o = arg;
    double begin;
    cu_ptr p;

    cu.ctx_set(o->ctx);
    atomic_store(&o->state, 1);
    begin = now_us();
    o->result = cu.ipc_open(&p, o->shown.handle, CU_IPC_LAZY_PEER_ACCESS);
    o->open_us = now_us() - begin;
    atomic_store(&o->state, 2);
    begin = now_us();
    if (!o->result)
        o->result = cu.ipc_close(p);
    o->close_us = now_us() - begin;
    atomic_store(&o->state, 3);
    return NULL;
}

/* Launches until the thread is past @state; the longest time of a launch and its word. */
static double longest_while(struct opening *o, int state)
{
    double us, longest = 0;

    do {
        if (word_rounds(&us, 1))
            return -1;
        longest = us > longest ? us : longest;
    } while (atomic_load(&o->state) <= state);
    return longest;
}

int check_open_large(void)
{
    size_t bytes = check_fake ? 8 * (size_t)MIB : (size_t)40 << 30, free_bytes, total;
    struct opening o = {.result = 0};
    double us[ROUNDS], opens, closes;
    struct peer peer;
    pthread_t t;
    int fd;

    MUST(cu.mem_info(&free_bytes, &total));
    if (bytes > free_bytes / 2)
        bytes = free_bytes / 2 / (2 * MIB) * (2 * MIB);
    export_begin(false, bytes, false, &peer, &o.shown, &fd);
    if (o.shown.result)
        return skip("no legacy IPC: %s", text_of(o.shown.result));
    MUST(cu.ctx_get(&o.ctx));
    if (word_rounds(us, ROUNDS))
        return fail("words do not come");
    pthread_create(&t, NULL, open_and_close, &o);
    opens = longest_while(&o, 1);
    closes = longest_while(&o, 2);
    pthread_join(t, NULL);
    peer_kill(&peer);
    if (o.result)
        return fail("%zu MiB: %s", bytes / MIB, text_of(o.result));
    if (opens < 0 || closes < 0)
        return fail("words do not come while another thread opens or closes %zu MiB", bytes / MIB);
    return pass(
        "opened_mb=%zu open_ms=%.1f close_ms=%.1f; a word and its answer: alone_p99_us=%.1f "
        "longest_while_opening_us=%.1f longest_while_closing_us=%.1f",
        bytes / MIB, o.open_us / 1e3, o.close_us / 1e3, percentile(us, ROUNDS, 990), opens, closes);
}
