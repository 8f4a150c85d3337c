/* mpi_perf.c - commd-perf over MPI: its options, data, loop and statistics
 * (client/perf/commd_perf_*.c), with the calls of MPI in place of libcommd's. compare.py builds it
 * once for each MPI.
 *
 *   mpirun -np 2 mpi_perf all_reduce -b 8 -e 64M -f 8
 *
 * What MPI has no call for (avg, f16, --async here, --registered, --groups) is refused, not
 * imitated. */
#include <mpi.h>
#include <stdarg.h>

#include "client/perf/commd_perf.h"

struct mpi {
    int rank, size;
    int *send_counts, *send_at, *recv_counts, *recv_at; /* owned: MPI wants int, and places */
};

static volatile sig_atomic_t interrupted; /* never: mpirun kills us */

size_t commd_dtype_size(int dtype)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

    return sizes[dtype];
}

void perf_complain(int rank, const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "mpi_perf: rank %d: ", rank);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static MPI_Datatype type_of(int dtype)
{
    switch ((enum commd_dtype)dtype) {
    case COMMD_I8:
        return MPI_INT8_T;
    case COMMD_U8:
        return MPI_UINT8_T;
    case COMMD_I16:
        return MPI_INT16_T;
    case COMMD_U16:
        return MPI_UINT16_T;
    case COMMD_I32:
        return MPI_INT32_T;
    case COMMD_U32:
        return MPI_UINT32_T;
    case COMMD_I64:
        return MPI_INT64_T;
    case COMMD_U64:
        return MPI_UINT64_T;
    case COMMD_F32:
        return MPI_FLOAT;
    case COMMD_F64:
        return MPI_DOUBLE;
    case COMMD_BOOL:
        return MPI_C_BOOL;
    case COMMD_F16:
    case COMMD_BF16:
        break;
    }
    return MPI_DATATYPE_NULL;
}

static MPI_Op op_of(int redop)
{
    switch ((enum commd_redop)redop) {
    case COMMD_SUM:
        return MPI_SUM;
    case COMMD_PROD:
        return MPI_PROD;
    case COMMD_MIN:
        return MPI_MIN;
    case COMMD_MAX:
        return MPI_MAX;
    case COMMD_BAND:
        return MPI_BAND;
    case COMMD_BOR:
        return MPI_BOR;
    case COMMD_BXOR:
        return MPI_BXOR;
    case COMMD_AVG:
    case COMMD_PREMUL_SUM:
        break;
    }
    return MPI_OP_NULL;
}

static int barrier(void *arg)
{
    return MPI_Barrier(MPI_COMM_WORLD);
}

static int reduce(void *arg, uint64_t *values, size_t n, int redop)
{
    return MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_UINT64_T, op_of(redop), MPI_COMM_WORLD);
}

static void failed(void *arg, const char *what)
{
    perf_complain(((struct mpi *)arg)->rank, "%s failed", what);
}

static void places(const struct mpi *m, const size_t *counts, int *ret_counts, int *ret_at)
{
    int at = 0;

    for (int r = 0; counts && r < m->size; r++) {
        ret_counts[r] = (int)counts[r];
        ret_at[r] = at;
        at += ret_counts[r];
    }
}

static int ping_or_pong(const struct mpi *m, const struct commd_op *op, MPI_Datatype t)
{
    int peer = perf_dest(op->coll, m->rank, m->size), n = (int)op->count, r;

    if (peer < 0)
        return 0;
    if (m->rank < peer) {
        r = MPI_Send(op->send, n, t, peer, 0, MPI_COMM_WORLD);
        return r ? r : MPI_Recv(op->recv, n, t, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    r = MPI_Recv(op->recv, n, t, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return r ? r : MPI_Send(op->send, n, t, peer, 0, MPI_COMM_WORLD);
}

/* The _v forms; the places were computed before the clock started. */
static int run_v(const struct mpi *m, const struct commd_op *op, MPI_Datatype t, MPI_Op o)
{
    MPI_Comm c = MPI_COMM_WORLD;

    switch (op->coll) {
    case COMMD_ALL_GATHER_V:
        return MPI_Allgatherv(op->send, m->send_counts[0], t, op->recv, m->recv_counts, m->recv_at,
                              t, c);
    case COMMD_GATHER_V:
        return MPI_Gatherv(op->send, m->send_counts[0], t, op->recv, m->recv_counts, m->recv_at, t,
                           op->root, c);
    case COMMD_SCATTER_V:
        return MPI_Scatterv(op->send, m->send_counts, m->send_at, t, op->recv, m->recv_counts[0], t,
                            op->root, c);
    case COMMD_REDUCE_SCATTER_V:
        return MPI_Reduce_scatter(op->send, op->recv, m->send_counts, t, o, c);
    case COMMD_ALL_TO_ALL_V:
        return MPI_Alltoallv(op->send, m->send_counts, m->send_at, t, op->recv, m->recv_counts,
                             m->recv_at, t, c);
    default:
        return MPI_ERR_OTHER;
    }
}

static int run(void *arg, const struct commd_op *op)
{
    const struct mpi *m = arg;
    MPI_Datatype t = type_of(op->dtype);
    MPI_Op o = op_of(op->redop);
    MPI_Comm c = MPI_COMM_WORLD;
    int n = (int)op->count;

    switch (op->coll) {
    case COMMD_BARRIER:
        return MPI_Barrier(c);
    case COMMD_ALL_REDUCE:
        return MPI_Allreduce(MPI_IN_PLACE, op->recv, n, t, o, c);
    case COMMD_REDUCE:
        return MPI_Reduce(m->rank == op->root ? MPI_IN_PLACE : op->send, op->recv, n, t, o,
                          op->root, c);
    case COMMD_BROADCAST:
        return MPI_Bcast(op->recv, n, t, op->root, c);
    case COMMD_ALL_GATHER:
        return MPI_Allgather(op->send, n, t, op->recv, n, t, c);
    case COMMD_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(op->send, op->recv, n, t, o, c);
    case COMMD_GATHER:
        return MPI_Gather(op->send, n, t, op->recv, n, t, op->root, c);
    case COMMD_SCATTER:
        return MPI_Scatter(op->send, n, t, op->recv, n, t, op->root, c);
    case COMMD_ALL_TO_ALL:
        return MPI_Alltoall(op->send, n, t, op->recv, n, t, c);
    case PERF_SENDRECV:
        return MPI_Sendrecv(op->send, n, t, perf_dest(op->coll, m->rank, m->size), 0, op->recv, n,
                            t, perf_source(op->coll, m->rank, m->size), 0, c, MPI_STATUS_IGNORE);
    case PERF_PINGPONG:
        return ping_or_pong(m, op, t);
    default:
        return run_v(m, op, t, o);
    }
}

static int prepare(void *arg, const struct commd_op *op)
{
    struct mpi *m = arg;

    if (op->count > INT32_MAX / (size_t)m->size || type_of(op->dtype) == MPI_DATATYPE_NULL ||
        (perf_reduces(op->coll) && op_of(op->redop) == MPI_OP_NULL)) {
        perf_complain(m->rank, "MPI has no such type, operator or count");
        return PERF_USAGE;
    }
    places(m, op->send_counts, m->send_counts, m->send_at);
    places(m, op->recv_counts, m->recv_counts, m->recv_at);
    return 0;
}

static int measure(const struct perf *perf, struct mpi *m)
{
    static const struct perf_library library = {
        .prepare = prepare, .barrier = barrier, .run = run, .reduce = reduce, .failed = failed};
    struct perf_report report;
    struct perf_loop loop = {.perf = perf,
                             .library = &library,
                             .arg = m,
                             .rank = m->rank,
                             .size = m->size,
                             .interrupted = &interrupted};
    int r, r_end;

    if (perf->turns)
        return perf_take_turns(&loop);
    if (m->rank)
        return perf_measure(&loop);
    loop.report = &report;
    report_begin(&report, perf, m->size, 0, 0, NULL);
    r = perf_measure(&loop);
    r_end = report_end(&report, false);
    return r ? r : r_end;
}

int main(int argc, char **argv)
{
    struct perf perf;
    struct mpi m;
    int r;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &m.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m.size);
    m.send_counts = calloc(4 * (size_t)m.size, sizeof(int));
    if (!m.send_counts)
        MPI_Abort(MPI_COMM_WORLD, PERF_FAILED);
    m.send_at = m.send_counts + m.size;
    m.recv_counts = m.send_at + m.size;
    m.recv_at = m.recv_counts + m.size;
    r = perf_parse(argc, argv, &perf);
    if (r < 0 && (perf.async || perf.registered || perf.on_gpu || perf.groups > 1)) {
        perf_complain(m.rank, "neither --async nor --registered nor --device cuda nor --groups");
        r = PERF_USAGE;
    }
    if (r < 0)
        r = measure(&perf, &m);
    if (r)
        MPI_Abort(MPI_COMM_WORLD, r);
    free(m.send_counts);
    MPI_Finalize();
    return 0;
}
