/* nccl_perf.c - commd-perf over NCCL itself: its options, data, loop and statistics
 * (client/perf/commd_perf_*.c), one process for each rank, with the calls of NCCL in place of
 * libcommd's. NCCL and the driver are loaded at run time.
 *
 *   nccl_perf all_reduce --ranks 2 -b 8 -e 64M -f 8
 *
 * NCCL wants one rank for each GPU. Where there are more ranks than GPUs, those of one GPU say that
 * they are on different hosts (NCCL_HOSTID), which makes NCCL take sockets between them: right, but
 * no measure of NCCL. COMMD_LIBCUDA and COMMD_LIBNCCL name other libraries.
 *
 * What NCCL has no call for (barrier, 16-bit integers, bool, bit operators, premul_sum, --async,
 * --registered, --groups) is refused, not imitated; gather, scatter, all_to_all and the forms with
 * counts are sends and receives in one group, as NCCL's manual has them. */
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "client/perf/commd_perf.h"
#include "transport/gpu/nccl.h"

enum { MEET_VALUES = 1024, MEET_SPINS = 1000 };

/* What the ranks share: they are children of one process. */
struct meeting {
    _Atomic unsigned here, round;
    struct nccl_id id;
    _Atomic int refused; /* NCCL's result for the id */
    uint64_t values[];   /* MEET_VALUES of each rank */
};

struct own_rank {
    const struct perf *perf;
    int rank, size;
    struct perf_gpu *gpu; /* owned */
    struct nccl nccl;
    nccl_comm comm; /* owned */
    nccl_result last;
    double join_us;
};

static struct meeting *meeting;
static volatile sig_atomic_t interrupted; /* never: the launcher kills us */

size_t commd_dtype_size(int dtype)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

    return sizes[dtype];
}

void perf_complain(int rank, const char *format, ...)
{
    char line[1000];
    va_list ap;

    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    fprintf(stderr, "nccl_perf: rank %d: %s\n", rank, line);
}

/* ---- between the ranks' hosts ------------------------------------------------------------ */

static int barrier(void *arg)
{
    const struct own_rank *own = arg;
    unsigned round = atomic_load(&meeting->round);

    if (atomic_fetch_add(&meeting->here, 1) + 1 == (unsigned)own->size) {
        atomic_store(&meeting->here, 0);
        atomic_store(&meeting->round, round + 1);
        return 0;
    }
    for (unsigned i = 0; atomic_load(&meeting->round) == round; i++)
        if (i >= MEET_SPINS)
            sched_yield();
    return 0;
}

static uint64_t combine(uint64_t a, uint64_t b, int redop)
{
    if (redop == COMMD_MIN)
        return MIN(a, b);
    return redop == COMMD_MAX ? MAX(a, b) : a + b;
}

static int reduce(void *arg, uint64_t *values, size_t n, int redop)
{
    const struct own_rank *own = arg;

    for (size_t at = 0, part; at < n; at += part) {
        part = MIN(n - at, (size_t)MEET_VALUES);
        memcpy(meeting->values + (size_t)own->rank * MEET_VALUES, values + at,
               part * sizeof *values);
        barrier(arg);
        for (size_t i = 0; i < part; i++) {
            values[at + i] = meeting->values[i];
            for (size_t r = 1; r < (size_t)own->size; r++)
                values[at + i] =
                    combine(values[at + i], meeting->values[r * MEET_VALUES + i], redop);
        }
        barrier(arg);
    }
    return 0;
}

static void failed(void *arg, const char *what)
{
    const struct own_rank *own = arg;
    char text[200];

    nccl_text(&own->nccl, own->comm, own->last, text, sizeof text);
    perf_complain(own->rank, "%s: %s", what, text);
}

/* ---- operations -------------------------------------------------------------------------- */

static int type_of(int dtype)
{
    switch ((enum commd_dtype)dtype) {
    case COMMD_I8:
        return NCCL_I8;
    case COMMD_U8:
        return NCCL_U8;
    case COMMD_I32:
        return NCCL_I32;
    case COMMD_U32:
        return NCCL_U32;
    case COMMD_I64:
        return NCCL_I64;
    case COMMD_U64:
        return NCCL_U64;
    case COMMD_F16:
        return NCCL_F16;
    case COMMD_BF16:
        return NCCL_BF16;
    case COMMD_F32:
        return NCCL_F32;
    case COMMD_F64:
        return NCCL_F64;
    case COMMD_I16:
    case COMMD_U16:
    case COMMD_BOOL:
        break;
    }
    return -1;
}

static int op_of(int redop)
{
    switch ((enum commd_redop)redop) {
    case COMMD_SUM:
        return NCCL_SUM;
    case COMMD_PROD:
        return NCCL_PROD;
    case COMMD_MIN:
        return NCCL_MIN;
    case COMMD_MAX:
        return NCCL_MAX;
    case COMMD_AVG:
        return NCCL_AVG;
    case COMMD_BAND:
    case COMMD_BOR:
    case COMMD_BXOR:
    case COMMD_PREMUL_SUM:
        break;
    }
    return -1;
}

static int prepare(void *arg, const struct commd_op *op)
{
    struct own_rank *own = arg;

    own->last = NCCL_E_ARGUMENT;
    if (op->coll != COMMD_BARRIER && type_of(op->dtype) >= 0 &&
        (!perf_reduces(op->coll) || op_of(op->redop) >= 0))
        return 0;
    perf_complain(own->rank, "NCCL has no such operation, type or operator");
    return PERF_USAGE;
}

static bool blocks_from_all(int coll)
{
    return coll == COMMD_GATHER || coll == COMMD_GATHER_V || coll == COMMD_ALL_GATHER_V ||
           coll == COMMD_ALL_TO_ALL || coll == COMMD_ALL_TO_ALL_V;
}

static bool blocks_to_all(int coll)
{
    return coll == COMMD_SCATTER || coll == COMMD_SCATTER_V || coll == COMMD_ALL_TO_ALL ||
           coll == COMMD_ALL_TO_ALL_V;
}

static bool rooted(int coll)
{
    return coll == COMMD_GATHER || coll == COMMD_GATHER_V || coll == COMMD_SCATTER ||
           coll == COMMD_SCATTER_V;
}

/* Elements of the block for or from rank @r. */
static size_t block(const struct commd_op *op, const size_t *counts, bool blocks, int r)
{
    return counts ? counts[blocks ? r : 0] : op->count;
}

/* Whoever sends a block sends it, whoever gets one gets it, all at once. */
static nccl_result exchange(const struct own_rank *own, const struct commd_op *op)
{
    const struct nccl *nc = &own->nccl;
    int t = type_of(op->dtype), coll = op->coll;
    bool to_all = blocks_to_all(coll), from_all = blocks_from_all(coll);
    bool root = own->rank == op->root || !rooted(coll);
    size_t elem = commd_dtype_size(op->dtype);
    const uint8_t *from = op->send;
    uint8_t *to = op->recv;
    nccl_result r = nc->group_start();

    for (int peer = 0; peer < own->size && !r; peer++) {
        bool peer_is_root = peer == op->root || !rooted(coll);

        if (to_all ? root : peer_is_root) {
            size_t n = block(op, op->send_counts, to_all, peer);

            r = nc->send(from, n, t, peer, own->comm, op->stream);
            from += to_all ? n * elem : 0;
        }
        if (!r && (from_all ? root : peer_is_root)) {
            size_t n = block(op, op->recv_counts, from_all, peer);

            r = nc->recv(to, n, t, peer, own->comm, op->stream);
            to += from_all ? n * elem : 0;
        }
    }
    return r ? r : nc->group_end();
}

/* NCCL has it only for blocks of one size: a reduction to each rank. */
static nccl_result reduce_scatter_v(const struct own_rank *own, const struct commd_op *op)
{
    const struct nccl *nc = &own->nccl;
    size_t elem = commd_dtype_size(op->dtype);
    const uint8_t *from = op->send;
    nccl_result r = nc->group_start();

    for (int to = 0; to < own->size && !r; from += op->send_counts[to] * elem, to++)
        r = nc->reduce(from, op->recv, op->send_counts[to], type_of(op->dtype), op_of(op->redop),
                       to, own->comm, op->stream);
    return r ? r : nc->group_end();
}

static nccl_result half(const struct own_rank *own, const struct commd_op *op, bool sends)
{
    int t = type_of(op->dtype);

    if (sends)
        return own->nccl.send(op->send, op->count, t, perf_dest(op->coll, own->rank, own->size),
                              own->comm, op->stream);
    return own->nccl.recv(op->recv, op->count, t, perf_source(op->coll, own->rank, own->size),
                          own->comm, op->stream);
}

static nccl_result send_and_receive(const struct own_rank *own, const struct commd_op *op)
{
    nccl_result r = own->nccl.group_start();

    r = r ? r : half(own, op, true);
    r = r ? r : half(own, op, false);
    return r ? r : own->nccl.group_end();
}

static nccl_result ping_or_pong(const struct own_rank *own, const struct commd_op *op)
{
    int peer = perf_dest(op->coll, own->rank, own->size);
    bool first = own->rank < peer;
    nccl_result r;

    if (peer < 0)
        return NCCL_SUCCESS;
    r = half(own, op, first);
    return r ? r : half(own, op, !first);
}

static int run(void *arg, const struct commd_op *op)
{
    struct own_rank *own = arg;
    const struct nccl *nc = &own->nccl;
    int t = type_of(op->dtype), o = op_of(op->redop);
    size_t n = op->count;
    nccl_comm c = own->comm;
    cu_stream s = op->stream;

    switch (op->coll) {
    case COMMD_ALL_REDUCE:
        return own->last = nc->all_reduce(op->send, op->recv, n, t, o, c, s);
    case COMMD_REDUCE:
        return own->last = nc->reduce(op->send, op->recv, n, t, o, op->root, c, s);
    case COMMD_BROADCAST:
        return own->last = nc->broadcast(op->send, op->recv, n, t, op->root, c, s);
    case COMMD_ALL_GATHER:
        return own->last = nc->all_gather(op->send, op->recv, n, t, c, s);
    case COMMD_REDUCE_SCATTER:
        return own->last = nc->reduce_scatter(op->send, op->recv, n, t, o, c, s);
    case COMMD_REDUCE_SCATTER_V:
        return own->last = reduce_scatter_v(own, op);
    case PERF_SENDRECV:
        return own->last = send_and_receive(own, op);
    case PERF_PINGPONG:
        return own->last = ping_or_pong(own, op);
    default:
        return own->last = exchange(own, op);
    }
}

/* ---- one rank ---------------------------------------------------------------------------- */

/* Before NCCL is loaded, which reads these once: the ranks of a GPU are on hosts of their own. */
static int tell_hosts(const struct own_rank *own)
{
    static const char *const recipe[][2] = {
        {"NCCL_NET", "Socket"},     {"NCCL_SOCKET_IFNAME", "=lo"}, {"NCCL_IB_DISABLE", "1"},
        {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_NET_GDR_LEVEL", "LOC"}, {"NCCL_MAX_CTAS", "4"},
        {"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_RAS_ENABLE", "0"}};
    char host[32], why[200];
    struct cuda cu;
    int n = 0;

    if (cuda_load(getenv("COMMD_LIBCUDA"), 0, &cu, why, sizeof why) || cu.device_count(&n) || !n)
        return PERF_FAILED;
    if (own->size <= n)
        return PERF_OK;
    snprintf(host, sizeof host, "host%d", own->rank / n);
    setenv("NCCL_HOSTID", host, 1);
    for (size_t i = 0; i < ARRAY_LEN(recipe); i++)
        setenv(recipe[i][0], recipe[i][1], 0);
    return PERF_OK;
}

static int join(struct own_rank *own)
{
    struct nccl_config config;
    double begin;
    char why[200];

    if (nccl_load(getenv("COMMD_LIBNCCL"), &own->nccl, why, sizeof why)) {
        perf_complain(own->rank, "NCCL: %s", why);
        return PERF_FAILED;
    }
    if (own->rank == 0)
        atomic_store(&meeting->refused, own->nccl.get_id(&meeting->id));
    barrier(own);
    begin = perf_now_us();
    config = nccl_config(own->nccl.version);
    config.blocking = 1;
    own->last = atomic_load(&meeting->refused);
    if (!own->last)
        own->last = own->nccl.init(&own->comm, own->size, meeting->id, own->rank, &config);
    own->join_us = perf_now_us() - begin;
    if (!own->last)
        return PERF_OK;
    failed(own, "making the communicator");
    return PERF_FAILED;
}

static int measure(struct own_rank *own)
{
    static const struct perf_library library = {
        .prepare = prepare, .barrier = barrier, .run = run, .reduce = reduce, .failed = failed};
    struct perf_report report;
    struct perf_loop loop = {.perf = own->perf,
                             .library = &library,
                             .arg = own,
                             .rank = own->rank,
                             .size = own->size,
                             .interrupted = &interrupted,
                             .memory = &perf_gpu_memory,
                             .gpu = own->gpu,
                             .stream = perf_gpu_stream(own->gpu)};
    int r, r_end;

    if (own->perf->turns)
        return perf_take_turns(&loop);
    if (own->rank)
        return perf_measure(&loop);
    loop.report = &report;
    report_begin(&report, own->perf, own->size, 1, own->join_us, perf_gpu_name(own->gpu));
    r = perf_measure(&loop);
    r_end = report_end(&report, false);
    return r ? r : r_end;
}

int perf_rank(const struct perf *perf, int rank, int size, const char *socket)
{
    struct own_rank own = {.perf = perf, .rank = rank, .size = size};
    int r = perf_gpu_open(rank, &own.gpu);

    r = r ? r : tell_hosts(&own);
    r = r ? r : join(&own);
    r = r ? r : measure(&own);
    if (own.comm && !r)
        own.nccl.destroy(own.comm);
    perf_gpu_close(own.gpu);
    return r;
}

int main(int argc, char **argv)
{
    _cleanup_(freep) char **args = calloc((size_t)argc + 3, sizeof *args);
    struct perf perf;
    size_t bytes;
    int r;

    if (!args)
        return PERF_FAILED;
    memcpy(args, argv, (size_t)argc * sizeof *args);
    args[argc] = "--device";
    args[argc + 1] = "cuda";
    r = perf_parse(argc + 2, args, &perf);
    if (r >= 0)
        return r;
    if (perf.async || perf.groups > 1 || perf.nnodes > 1 || perf.launched) {
        perf_complain(0, "neither --async nor --groups nor --nodes nor a launcher: --ranks N");
        return PERF_USAGE;
    }
    bytes = sizeof *meeting + (size_t)perf.size * MEET_VALUES * sizeof(uint64_t);
    meeting = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return PERF_FAILED;
    return perf_launch(&perf);
}
