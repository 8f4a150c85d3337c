/* fakenccl_api.c - NCCL's functions: what is called within a group is kept until its end, and then
 * given to the streams in the order of the calls; sends and receives of one communicator and stream
 * become one operation. On a device NCCL's operations run one after the other in the order in which
 * they were issued, so two communicators that are used in different order on two devices stand
 * still, as on hardware. */
#include "tests/fakecuda/fakenccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 16, IN_GROUP = 1024 };

static __thread int depth;
static __thread nccl_result group_error;
static __thread struct fake_ncclop *ops[IN_GROUP];
static __thread unsigned nops;
static __thread nccl_comm comms[FAKE_RANKS];
static __thread unsigned ncomms;

static struct turn { /* of a device: whose operation runs */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t issued, running;
    bool passed[4096]; /* dropped before their turn */
} turns[DEVICES];

__attribute__((constructor)) static void turns_begin(void)
{
    for (unsigned i = 0; i < DEVICES; i++) {
        pthread_mutex_init(&turns[i].lock, NULL);
        pthread_cond_init(&turns[i].changed, NULL);
    }
}

/* ---- giving an operation to its stream ------------------------------------------------------- */

static void op_free(struct fake_ncclop *op)
{
    if (!op)
        return;
    fake_comm_unref(op->comm);
    free(op->transfers);
    free(op);
}

static cu_result run(void *arg)
{
    struct fake_ncclop *op = arg;
    struct turn *t = &turns[op->comm->dev];
    unsigned long us = 5;
    bool mine;

    for (;;) {
        pthread_mutex_lock(&t->lock);
        mine = t->running == op->ticket;
        pthread_mutex_unlock(&t->lock);
        if (mine || fake_comm_stop(op->comm))
            break;
        fake_nap(&us);
    }
    if (mine)
        fake_op_run(op);
    return CU_SUCCESS;
}

static void drop(void *arg)
{
    struct fake_ncclop *op = arg;
    struct turn *t = &turns[op->comm->dev];

    pthread_mutex_lock(&t->lock);
    t->passed[op->ticket % 4096] = true;
    while (t->running < t->issued && t->passed[t->running % 4096])
        t->passed[t->running++ % 4096] = false;
    pthread_mutex_unlock(&t->lock);
    op_free(op);
}

bool fake_device_busy(cu_device dev)
{
    struct turn *t = &turns[dev];
    bool busy;

    pthread_mutex_lock(&t->lock);
    busy = t->running < t->issued;
    pthread_mutex_unlock(&t->lock);
    return busy;
}

static bool stream_fits(const struct fake_ncclop *op)
{
    cu_device dev;

    return !fakecuda_stream_device(op->stream, &dev) && dev == op->comm->dev;
}

static nccl_result issue(struct fake_ncclop *op) /* takes it */
{
    struct turn *t = &turns[op->comm->dev];
    nccl_comm comm = op->comm;
    cu_result r;

    op->code = NCCL_E_REMOTE;
    comm->ops++;
    op->hang = fake_knob_hits("FAKENCCL_HANG_AT", comm->rank, comm->ops, &op->code);
    op->fail = fake_knob_hits("FAKENCCL_FAIL_AT", comm->rank, comm->ops, &op->code);
    pthread_mutex_lock(&t->lock);
    if (t->issued - t->running >= 4096) {
        pthread_mutex_unlock(&t->lock);
        op_free(op);
        return fake_fail(NCCL_E_INTERNAL, "too many operations on a device");
    }
    op->ticket = t->issued++;
    pthread_mutex_unlock(&t->lock);
    r = fakecuda_enqueue(op->stream, run, drop, op);
    if (r)
        return fake_fail(NCCL_E_CUDA, "the stream takes nothing: %d", r);
    if (!comm->blocking)
        atomic_store(&comm->polls, (int)fake_knob_number("FAKENCCL_PROGRESS", 0));
    return NCCL_SUCCESS;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* FAKENCCL_LAUNCH_US: operations on several devices, of communicators that do not block, are given
 * to their streams by a thread, one device after the other. Until then all are "in progress". */
struct launch {
    unsigned long us;
    unsigned n;
    struct {
        struct fake_ncclop *op;
        nccl_comm comm;
    } at[];
};

static void *launch_main(void *arg)
{
    struct launch *l = arg;

    for (unsigned i = 0; i < l->n; i++) {
        nccl_comm comm = l->at[i].comm;
        unsigned long us = l->us;
        nccl_result r = NCCL_SUCCESS;

        if (i && l->at[i - 1].comm != comm)
            fake_nap(&us);
        while (fake_knob_number("FAKENCCL_CONNECT_HANGS", -1) == comm->rank &&
               !atomic_load(&comm->aborted))
            fake_nap(&us);
        if (atomic_load(&comm->aborted))
            op_free(l->at[i].op);
        else
            r = issue(l->at[i].op);
        if (r)
            fake_comm_set(comm, r);
    }
    for (unsigned i = 0; i < l->n; i++) {
        atomic_fetch_sub(&l->at[i].comm->launching, 1);
        fake_comm_unref(l->at[i].comm);
    }
    free(l);
    return NULL;
}

/* False: they are to be launched by the caller. */
static bool launch_behind(void)
{
    long us = fake_knob_number("FAKENCCL_LAUNCH_US", 0);
    struct launch *l;
    pthread_t thread;
    bool several = false;

    for (unsigned i = 1; i < nops; i++)
        several |= ops[i]->comm != ops[0]->comm;
    if (us <= 0 || !several || ops[0]->comm->blocking)
        return false;
    l = malloc(sizeof *l + nops * sizeof l->at[0]);
    if (!l)
        return false;
    l->us = (unsigned long)us;
    l->n = nops;
    for (unsigned i = 0; i < nops; i++) {
        l->at[i].op = ops[i];
        l->at[i].comm = ops[i]->comm;
        fake_comm_ref(ops[i]->comm);
        atomic_fetch_add(&ops[i]->comm->launching, 1);
    }
    if (pthread_create(&thread, NULL, launch_main, l))
        launch_main(l);
    else
        pthread_detach(thread);
    return true;
}

/* ---- groups ---------------------------------------------------------------------------------- */

nccl_result ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

static bool joined(struct fake_ncclop *op) /* a transfer that goes into an operation of before */
{
    for (unsigned i = 0; i < nops && op->what == EXCHANGE; i++) {
        struct fake_ncclop *o = ops[i];
        struct fake_transfer *more;

        if (o->what != EXCHANGE || o->comm != op->comm || o->stream != op->stream)
            continue;
        more = realloc(o->transfers, (o->ntransfers + 1) * sizeof *more);
        if (!more)
            return false;
        more[o->ntransfers++] = op->transfers[0];
        o->transfers = more;
        op_free(op);
        return true;
    }
    return false;
}

static nccl_result end(void)
{
    nccl_result r = group_error, state;
    bool waits = false;

    depth = 0;
    for (unsigned i = 0; i < ncomms; i++)
        waits |= comms[i]->blocking;
    for (unsigned i = 0; i < ncomms; i++)
        if (!fake_comm_begin(comms[i]))
            r = NCCL_E_SYSTEM;
    for (unsigned i = 0; i < ncomms && waits; i++) {
        state = fake_comm_wait(comms[i]);
        r = r ? r : state;
    }
    if (ncomms && !waits && !r)
        r = NCCL_IN_PROGRESS;
    for (unsigned i = 0; i < nops && !nccl_failed(r); i++)
        if (!stream_fits(ops[i]))
            r = fake_fail(NCCL_E_CUDA, "the stream is not of the communicator's device");
    if (nops && !nccl_failed(r) && launch_behind()) {
        nops = 0;
        r = NCCL_IN_PROGRESS;
    }
    for (unsigned i = 0; i < nops; i++) {
        if (nccl_failed(r)) {
            op_free(ops[i]);
            continue;
        }
        state = issue(ops[i]);
        r = state ? state : r;
    }
    ncomms = nops = 0;
    group_error = NCCL_SUCCESS;
    return r;
}

nccl_result ncclGroupEnd(void)
{
    if (!depth)
        return fake_fail(NCCL_E_USAGE, "ncclGroupEnd: not in a group call.");
    return --depth ? NCCL_SUCCESS : end();
}

static nccl_result add(nccl_comm comm, struct fake_ncclop given)
{
    nccl_result r = fake_comm_ready(comm);
    struct fake_ncclop *op;

    given.comm = comm;
    if (!r)
        r = fake_op_check(&given);
    if (!r && (nops == IN_GROUP || !(op = malloc(sizeof *op))))
        r = fake_fail(NCCL_E_INTERNAL, "too many operations in a group");
    if (r) {
        free(given.transfers);
        group_error = depth ? r : group_error;
        return r;
    }
    *op = given;
    fake_comm_ref(comm);
    depth++;
    if (!joined(op))
        ops[nops++] = op;
    return ncclGroupEnd();
}

/* ---- communicators --------------------------------------------------------------------------- */

nccl_result ncclGetVersion(int *version)
{
    if (!version)
        return NCCL_E_ARGUMENT;
    *version = (int)fake_knob_number("FAKENCCL_VERSION", 22809);
    return NCCL_SUCCESS;
}

nccl_result ncclGetUniqueId(struct nccl_id *id)
{
    return id ? fake_table_offer(id) : NCCL_E_ARGUMENT;
}

static cu_result current_device(cu_device *dev, char bus_id[16])
{
    cu_result r = cuCtxGetDevice(dev);

    return r ? r : cuDeviceGetPCIBusId(bus_id, 16, *dev);
}

nccl_result ncclCommInitRankConfig(nccl_comm *ret_comm, int n, struct nccl_id id, int rank,
                                   struct nccl_config *config)
{
    nccl_comm comm;

    if (!ret_comm || n < 1 || n > FAKE_RANKS || rank < 0 || rank >= n ||
        memcmp(id.bytes, "fakenccl", 8))
        return fake_fail(NCCL_E_ARGUMENT, "bad rank, number of ranks or unique id");
    if (config && (config->size < offsetof(struct nccl_config, cga_cluster_size) ||
                   config->magic != (unsigned)NCCL_CONFIG_MAGIC))
        return fake_fail(NCCL_E_ARGUMENT, "ncclConfig_t is not initialized");
    comm = calloc(1, sizeof *comm);
    if (!comm || ncomms == FAKE_RANKS || current_device(&comm->dev, comm->bus_id)) {
        free(comm);
        return fake_fail(NCCL_E_CUDA, "no current context");
    }
    comm->id = id;
    comm->world = n;
    comm->rank = rank;
    comm->blocking = !config || config->blocking != 0;
    comm->refs = 1;
    atomic_store(&comm->state, NCCL_IN_PROGRESS);
    atomic_store(&comm->polls, (int)fake_knob_number("FAKENCCL_PROGRESS", 0));
    memset(comm->watches, -1, sizeof comm->watches);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->idle, NULL);
    *ret_comm = comm;
    comms[ncomms++] = comm;
    depth++;
    return ncclGroupEnd();
}

nccl_result ncclCommInitRank(nccl_comm *comm, int n, struct nccl_id id, int rank)
{
    return ncclCommInitRankConfig(comm, n, id, rank, NULL);
}

const char *ncclGetErrorString(nccl_result r)
{
    static const char *const texts[] = {
        [NCCL_SUCCESS] = "no error",
        [NCCL_E_CUDA] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        [NCCL_E_SYSTEM] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        [NCCL_E_INTERNAL] = "internal error - please report this issue to the NCCL developers",
        [NCCL_E_ARGUMENT] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
        [NCCL_E_USAGE] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
        [NCCL_E_REMOTE] = "remote process exited or there was a network error",
        [NCCL_IN_PROGRESS] = "NCCL operation in progress",
    };

    return r >= 0 && (size_t)r < sizeof texts / sizeof texts[0] ? texts[r] : "unknown result code";
}

/* ---- operations ------------------------------------------------------------------------------ */

nccl_result ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, nccl_comm comm,
                          cu_stream s)
{
    return add(comm, (struct fake_ncclop){.what = ALL_REDUCE,
                                          .send = (cu_ptr)send,
                                          .recv = (cu_ptr)recv,
                                          .n = n,
                                          .type = type,
                                          .op = op,
                                          .stream = s});
}

nccl_result ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root,
                       nccl_comm comm, cu_stream s)
{
    return add(comm, (struct fake_ncclop){.what = REDUCE,
                                          .send = (cu_ptr)send,
                                          .recv = (cu_ptr)recv,
                                          .n = n,
                                          .type = type,
                                          .op = op,
                                          .root = root,
                                          .stream = s});
}

nccl_result ncclBroadcast(const void *send, void *recv, size_t n, int type, int root,
                          nccl_comm comm, cu_stream s)
{
    return add(comm, (struct fake_ncclop){.what = BROADCAST,
                                          .send = (cu_ptr)send,
                                          .recv = (cu_ptr)recv,
                                          .n = n,
                                          .type = type,
                                          .root = root,
                                          .stream = s});
}

nccl_result ncclAllGather(const void *send, void *recv, size_t send_n, int type, nccl_comm comm,
                          cu_stream s)
{
    return add(comm, (struct fake_ncclop){.what = ALL_GATHER,
                                          .send = (cu_ptr)send,
                                          .recv = (cu_ptr)recv,
                                          .n = send_n,
                                          .type = type,
                                          .stream = s});
}

nccl_result ncclReduceScatter(const void *send, void *recv, size_t recv_n, int type, int op,
                              nccl_comm comm, cu_stream s)
{
    return add(comm, (struct fake_ncclop){.what = REDUCE_SCATTER,
                                          .send = (cu_ptr)send,
                                          .recv = (cu_ptr)recv,
                                          .n = recv_n,
                                          .type = type,
                                          .op = op,
                                          .stream = s});
}

static nccl_result transfer(bool out, cu_ptr p, size_t n, int type, int peer, nccl_comm comm,
                            cu_stream s)
{
    struct fake_transfer *t = calloc(1, sizeof *t);
    size_t size = 0;

    fake_type_size(type, &size);
    if (!t)
        return fake_fail(NCCL_E_SYSTEM, "no memory");
    *t = (struct fake_transfer){out, peer, p, n * size, 0};
    return add(comm, (struct fake_ncclop){.what = EXCHANGE,
                                          .transfers = t,
                                          .ntransfers = 1,
                                          .type = type,
                                          .root = peer,
                                          .stream = s});
}

nccl_result ncclSend(const void *send, size_t n, int type, int peer, nccl_comm comm, cu_stream s)
{
    return transfer(true, (cu_ptr)send, n, type, peer, comm, s);
}

nccl_result ncclRecv(void *recv, size_t n, int type, int peer, nccl_comm comm, cu_stream s)
{
    return transfer(false, (cu_ptr)recv, n, type, peer, comm, s);
}
