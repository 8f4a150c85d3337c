/* check_nccl.c - NCCL as commd-gpu calls it: two ranks, each a process that is on a host of its own
 * for NCCL, so that they may share a GPU. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"
#include "tests/gpu/gpu_exporter.h"
#include "transport/gpu/nccl.h"

enum { N = 100000, WORLD = 2, INIT_MS = 30000, ABORT_MS = 15000 };
enum what { SUM, SUM_IMPORTED, NOTHING, ENDLESS };

static struct nccl nc;

/* What a rank is told. */
struct part {
    struct nccl_id id;
    int rank, what;
};
struct verdict {
    int ok;
    char text[200];
};

static int load(void)
{
    static const char *const recipe[][2] = {
        {"NCCL_NET", "Socket"},     {"NCCL_SOCKET_IFNAME", "=lo"}, {"NCCL_IB_DISABLE", "1"},
        {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_NET_GDR_LEVEL", "LOC"}, {"NCCL_MAX_CTAS", "4"},
        {"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_RAS_ENABLE", "0"}};
    char why[200];

    for (size_t i = 0; i < ARRAY_LEN(recipe); i++)
        setenv(recipe[i][0], recipe[i][1], 0);
    return nccl_load(getenv("COMMD_LIBNCCL"), &nc, why, sizeof why) ? skip("no NCCL: %s", why) : 0;
}

static const char *nccl_says(nccl_comm comm, nccl_result r)
{
    static char text[160];

    nccl_text(&nc, comm, r, text, sizeof text);
    return text;
}

/* Until it is not under way any more. */
static nccl_result settle(nccl_comm comm, unsigned ms)
{
    nccl_result state = NCCL_IN_PROGRESS, r = NCCL_SUCCESS;

    for (; ms-- && !r && state == NCCL_IN_PROGRESS; usleep(1000))
        r = nc.async_error(comm, &state);
    return r ? r : state;
}

static nccl_result begin(const struct nccl_id *id, int rank, nccl_comm *ret_comm)
{
    struct nccl_config config = nccl_config(nc.version);
    nccl_result r;

    config.blocking = 0;
    r = nc.init(ret_comm, WORLD, *id, rank, &config);
    return nccl_failed(r) ? r : settle(*ret_comm, INIT_MS);
}

/* In place in @p, which has room for N floats. 0 or what is wrong. */
static const char *sum_in(nccl_comm comm, int rank, cu_ptr p)
{
    static float host[N];
    cu_stream s = stream_new();
    nccl_result r;

    for (unsigned turn = 1; turn <= 3; turn++) {
        for (unsigned i = 0; i < N; i++)
            host[i] = (float)(i % 64 + 100 * (unsigned)rank * turn);
        copy_now(p, (cu_ptr)(uintptr_t)host, sizeof host);
        r = nc.all_reduce((void *)(uintptr_t)p, (void *)(uintptr_t)p, N, NCCL_F32, NCCL_SUM, comm,
                          s);
        r = nccl_failed(r) ? r : settle(comm, INIT_MS);
        if (r)
            return nccl_says(comm, r);
        if (!drains(s, INIT_MS))
            return "an all_reduce does not end";
        copy_now((cu_ptr)(uintptr_t)host, p, sizeof host);
        for (unsigned i = 0; i < N; i++)
            if (host[i] != (float)(2 * (i % 64) + 100 * turn))
                return "a sum is wrong";
    }
    return NULL;
}

/* Memory of another process, by a handle and by descriptors, is NCCL's buffer. */
static const char *sum_in_imported(nccl_comm comm, int rank, bool by_descriptor)
{
    struct exported shown;
    struct peer peer;
    const char *wrong;
    cu_ptr p;
    int fd;

    export_begin(by_descriptor, 4 * MIB, false, &peer, &shown, &fd);
    if (shown.result)
        return text_of(shown.result);
    if (by_descriptor)
        MUST(import_descriptor(fd, shown.bytes, &p));
    else
        MUST(cu.ipc_open(&p, shown.handle, CU_IPC_LAZY_PEER_ACCESS));
    wrong = sum_in(comm, rank, p);
    peer_kill(&peer);
    return wrong;
}

static const char *work(nccl_comm comm, const struct part *part)
{
    const char *wrong = NULL;

    switch ((enum what)part->what) {
    case SUM:
        return sum_in(comm, part->rank, device_new(N * sizeof(float)));
    case SUM_IMPORTED:
        wrong = sum_in_imported(comm, part->rank, false);
        return wrong ? wrong : sum_in_imported(comm, part->rank, true);
    case ENDLESS: /* it will be killed */
        while (!wrong)
            wrong = sum_in(comm, part->rank, device_new(N * sizeof(float)));
        return wrong;
    case NOTHING: /* it never comes */
        pause();
    }
    return NULL;
}

int child_nccl(int socket)
{
    struct verdict v = {.ok = 1};
    struct part part;
    nccl_comm comm = NULL;
    const char *wrong;
    nccl_result r;

    if (!peer_receive(socket, &part, sizeof part, NULL) || load())
        return CHECK_FAIL;
    r = begin(&part.id, part.rank, &comm);
    v.ok = !r;
    snprintf(v.text, sizeof v.text, "%s", r ? nccl_says(comm, r) : "");
    peer_send(socket, &v, sizeof v, -1);
    if (r)
        return CHECK_PASS;
    wrong = work(comm, &part);
    v.ok = !wrong;
    snprintf(v.text, sizeof v.text, "%s", wrong ? wrong : "");
    peer_send(socket, &v, sizeof v, -1);
    nc.abort(comm);
    return CHECK_PASS;
}

/* Both ranks as processes; @hosts: of their own, or one. */
static struct verdict two(enum what what, bool hosts, double *ret_init_us)
{
    static const char *const names[] = {"one", "two"};
    struct part part = {.what = (int)what};
    struct peer peers[WORLD];
    struct verdict v, worst = {.ok = 1};
    double t0;

    if (nc.get_id(&part.id))
        return (struct verdict){.text = "ncclGetUniqueId failed"};
    t0 = now_us();
    for (int i = 0; i < WORLD; i++) {
        peer_new("nccl", hosts ? names[i] : "same", false, &peers[i]);
        part.rank = i;
        peer_send(peers[i].socket, &part, sizeof part, -1);
    }
    for (unsigned turn = 0; turn < 2 && worst.ok; turn++) {
        for (int i = 0; i < WORLD; i++) {
            if (!peer_receive(peers[i].socket, &v, sizeof v, NULL))
                v = (struct verdict){.text = "a rank has ended"};
            if (!v.ok && worst.ok)
                worst = v;
        }
        if (!turn && ret_init_us)
            *ret_init_us = now_us() - t0;
    }
    for (int i = 0; i < WORLD; i++)
        peer_kill(&peers[i]);
    return worst;
}

int check_nccl_version(void)
{
    int r = load();
    struct nccl_id id;

    if (r)
        return r;
    if (nc.get_id(&id))
        return fail("ncclGetUniqueId");
    return pass("NCCL %d.%d.%d", nc.version / 10000, nc.version / 100 % 100, nc.version % 100);
}

/* Two ranks of a host on one GPU: refused. */
int check_nccl_twice(void)
{
    struct verdict v;
    int r = load();

    if (r)
        return r;
    v = two(SUM, false, NULL);
    return v.ok ? fail("two ranks of one host share a GPU, and NCCL takes it")
                : pass("refused: %s", v.text);
}

int check_nccl_hosts(void)
{
    struct verdict v;
    double us = 0;
    int r = load();

    if (r)
        return r;
    v = two(SUM, true, &us);
    return v.ok ? pass("two ranks on hosts of their own, one GPU: right, init_ms=%.0f", us / 1e3)
                : fail("%s", v.text);
}

int check_nccl_imported(void)
{
    struct verdict v;
    int r = load();

    if (r)
        return r;
    v = two(SUM_IMPORTED, true, NULL);
    return v.ok ? pass("memory of other processes, by handle and by descriptor, is NCCL's buffer")
                : fail("%s", v.text);
}

/* ---- many communicators ------------------------------------------------------------------ */

enum { MANY = 8 };

/* Makes one for each word, and uses it once. */
int child_communicators(int socket)
{
    struct verdict v = {.ok = 1};
    struct part part;
    nccl_comm comm;
    const char *wrong;
    nccl_result r;

    if (load())
        return CHECK_FAIL;
    peer_send(socket, "", 1, -1);
    while (peer_receive(socket, &part, sizeof part, NULL)) {
        r = begin(&part.id, part.rank, &comm);
        wrong = r ? nccl_says(comm, r) : sum_in(comm, part.rank, device_new(N * sizeof(float)));
        v.ok = !wrong;
        snprintf(v.text, sizeof v.text, "%s", wrong ? wrong : "");
        peer_send(socket, &v, sizeof v, -1);
    }
    return CHECK_PASS;
}

/* commd-gpu keeps up to 32 for later groups: what one has of the GPU's memory, on each rank. */
int check_nccl_many(void)
{
    struct peer peers[WORLD];
    struct part part = {.what = SUM};
    size_t before[MANY + 1], total;
    struct verdict v = {.ok = 1};
    double t0;
    char c;
    int r = load();

    if (r)
        return r;
    for (int i = 0; i < WORLD; i++) {
        peer_new("communicators", i ? "two" : "one", false, &peers[i]);
        if (!peer_receive(peers[i].socket, &c, 1, NULL))
            return fail("a rank does not start");
    }
    t0 = now_us();
    for (unsigned n = 0; n < MANY; n++) {
        MUST(cu.mem_info(&before[n], &total));
        if (nc.get_id(&part.id))
            return fail("ncclGetUniqueId");
        for (part.rank = 0; part.rank < WORLD; part.rank++)
            peer_send(peers[part.rank].socket, &part, sizeof part, -1);
        for (int i = 0; i < WORLD; i++)
            if (!peer_receive(peers[i].socket, &v, sizeof v, NULL) || !v.ok)
                return fail("communicator %u: %s", n, v.ok ? "a rank has ended" : v.text);
    }
    MUST(cu.mem_info(&before[MANY], &total));
    t0 = (now_us() - t0) / MANY / 1e3;
    for (int i = 0; i < WORLD; i++)
        peer_kill(&peers[i]);
    return pass("of a rank: first_communicator_mb=%.1f each_more_mb=%.1f made_and_used_ms=%.0f",
                (double)(before[0] - before[1]) / WORLD / MIB,
                (double)(before[1] - before[MANY]) / WORLD / (MANY - 1) / MIB, t0);
}

/* ---- several GPUs of this process -------------------------------------------------------- */

struct local {
    cu_context ctx;
    cu_stream s;
    nccl_comm comm;
    cu_ptr p;
};

static nccl_result settle_both(const struct local *l, nccl_result r)
{
    for (int i = 0; i < WORLD && !nccl_failed(r); i++)
        r = settle(l[i].comm, INIT_MS);
    return r;
}

static nccl_result begin_both(struct local *l)
{
    struct nccl_config config = nccl_config(nc.version);
    nccl_result r, end;
    struct nccl_id id;

    config.blocking = 0;
    r = nc.get_id(&id);
    r = r ? r : nc.group_start();
    for (int i = 0; i < WORLD && !nccl_failed(r); i++) {
        MUST(cu.ctx_set(l[i].ctx));
        r = nc.init(&l[i].comm, WORLD, id, i, &config);
    }
    end = nc.group_end();
    return settle_both(l, nccl_failed(r) ? r : end);
}

static nccl_result sum_both(const struct local *l)
{
    nccl_result r = nc.group_start(), end;

    for (int i = 0; i < WORLD && !nccl_failed(r); i++)
        r = nc.all_reduce((void *)(uintptr_t)l[i].p, (void *)(uintptr_t)l[i].p, N, NCCL_F32,
                          NCCL_SUM, l[i].comm, l[i].s);
    end = nc.group_end();
    return settle_both(l, nccl_failed(r) ? r : end);
}

/* Both ranks are here, as on a node with two GPUs; each buffer is open to its own GPU only. */
int check_nccl_one_process(void)
{
    static float host[N];
    struct local l[WORLD] = {{0}};
    char why[200];
    nccl_result r;
    int n = 0;

    MUST(cu.device_count(&n));
    if (n < WORLD)
        return skip("needs two GPUs");
    setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
    if (nccl_load(getenv("COMMD_LIBNCCL"), &nc, why, sizeof why))
        return skip("no NCCL: %s", why);
    for (int i = 0; i < WORLD; i++) {
        cu_device dev;

        MUST(cu.device_get(&dev, i));
        MUST(cu.primary_retain(&l[i].ctx, dev));
        MUST(cu.ctx_set(l[i].ctx));
        l[i].s = stream_new();
        l[i].p = mapped_new(N * sizeof(float));
        for (unsigned k = 0; k < N; k++)
            host[k] = (float)(k % 64 + 100 * (unsigned)i);
        copy_now(l[i].p, (cu_ptr)(uintptr_t)host, sizeof host);
    }
    r = begin_both(l);
    r = r ? r : sum_both(l);
    if (r)
        return fail("%s", nccl_says(l[0].comm, r));
    for (int i = 0; i < WORLD; i++) {
        MUST(cu.ctx_set(l[i].ctx));
        if (!drains(l[i].s, INIT_MS))
            return fail("GPU %d: an all_reduce does not end", i);
        copy_now((cu_ptr)(uintptr_t)host, l[i].p, sizeof host);
        for (unsigned k = 0; k < N; k++)
            if (host[k] != (float)(2 * (k % 64) + 100))
                return fail("GPU %d: a sum is wrong", i);
    }
    return pass("two GPUs of one process, buffers that are open to their own GPU only");
}

/* ---- an operation that never ends -------------------------------------------------------- */

static _Atomic int aborted;

static void *abort_it(void *arg)
{
    nc.abort(arg);
    atomic_store(&aborted, 1);
    return NULL;
}

/* Aborts from another thread, as long as it may take, and looks whether the stream ends. */
static int abort_now(nccl_comm comm, cu_stream s, const char *what)
{
    double t0 = now_us(), us;
    pthread_t t;

    pthread_create(&t, NULL, abort_it, comm);
    while (!atomic_load(&aborted) && now_us() - t0 < ABORT_MS * 1e3)
        usleep(100);
    us = now_us() - t0;
    if (!atomic_load(&aborted))
        return fail("%s: ncclCommAbort does not return within %d s", what, ABORT_MS / 1000);
    if (!drains(s, 5000))
        return fail("%s: the stream stands still after ncclCommAbort", what);
    if (!context_works())
        return fail("%s: the context is broken after ncclCommAbort", what);
    return pass("%s: abort_ms=%.1f, then the stream is empty and the context works", what,
                us / 1e3);
}

/* This process is rank 0, on host "one"; the other does @what. */
static int with_other(enum what what, struct peer *ret_peer, nccl_comm *ret_comm)
{
    struct part part = {.what = (int)what, .rank = 1};
    struct verdict v;
    nccl_result r;

    setenv("NCCL_HOSTID", "one", 1);
    if (load())
        return CHECK_SKIP;
    if (nc.get_id(&part.id))
        return fail("ncclGetUniqueId");
    peer_new("nccl", "two", false, ret_peer);
    peer_send(ret_peer->socket, &part, sizeof part, -1);
    r = begin(&part.id, 0, ret_comm);
    if (r)
        return fail("%s", nccl_says(*ret_comm, r));
    if (!peer_receive(ret_peer->socket, &v, sizeof v, NULL) || !v.ok)
        return fail("the other rank: %s", v.text);
    return 0;
}

static nccl_result enqueue(nccl_comm comm, cu_ptr p, cu_stream s)
{
    nccl_result r =
        nc.all_reduce((void *)(uintptr_t)p, (void *)(uintptr_t)p, N, NCCL_F32, NCCL_SUM, comm, s);

    return r == NCCL_IN_PROGRESS ? settle(comm, INIT_MS) : r;
}

int check_nccl_abort(void)
{
    cu_stream s = stream_new();
    struct peer peer;
    nccl_comm comm;
    int r = with_other(NOTHING, &peer, &comm);

    if (r)
        return r;
    if (enqueue(comm, device_new(N * sizeof(float)), s))
        return fail("ncclAllReduce");
    if (drains(s, 500))
        return fail("an all_reduce ended although the other rank never came");
    r = abort_now(comm, s, "the other rank never comes");
    peer_kill(&peer);
    return r;
}

int check_nccl_killed(void)
{
    cu_stream s = stream_new();
    nccl_result state = NCCL_SUCCESS;
    struct peer peer;
    nccl_comm comm;
    double t0, us;
    char what[100];
    int r = with_other(NOTHING, &peer, &comm);

    if (r)
        return r;
    if (enqueue(comm, device_new(N * sizeof(float)), s))
        return fail("ncclAllReduce");
    peer_kill(&peer);
    t0 = now_us();
    while (!state && now_us() - t0 < ABORT_MS * 1e3 && !nc.async_error(comm, &state))
        usleep(1000);
    us = now_us() - t0;
    if (state)
        snprintf(what, sizeof what, "a rank was killed: noticed_ms=%.0f (error %d)", us / 1e3,
                 state);
    else
        snprintf(what, sizeof what, "a rank was killed: not noticed within %d s", ABORT_MS / 1000);
    return abort_now(comm, s, what);
}
