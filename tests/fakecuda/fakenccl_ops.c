/* fakenccl_ops.c - what an operation does when its stream comes to it: all ranks put a chunk of
 * their input on the table, wait for each other, take what they need, wait again. Sums are made in
 * the order of ranks. If the ranks' calls differ, they wait for each other until they are aborted.
 */
#include "tests/fakecuda/fakenccl.h"

#include <string.h>
#include <unistd.h>

#include "shm/reduce/reduce.h"

static const struct {
    int bytes;
    enum dtype dtype;
} types[] = {[NCCL_I8] = {1, DTYPE_I8},    [NCCL_U8] = {1, DTYPE_U8},   [NCCL_I32] = {4, DTYPE_I32},
             [NCCL_U32] = {4, DTYPE_U32},  [NCCL_I64] = {8, DTYPE_I64}, [NCCL_U64] = {8, DTYPE_U64},
             [NCCL_F16] = {2, DTYPE_F16},  [NCCL_F32] = {4, DTYPE_F32}, [NCCL_F64] = {8, DTYPE_F64},
             [NCCL_BF16] = {2, DTYPE_BF16}};
static const enum redop redops[] = {[NCCL_SUM] = REDOP_SUM,
                                    [NCCL_PROD] = REDOP_PROD,
                                    [NCCL_MAX] = REDOP_MAX,
                                    [NCCL_MIN] = REDOP_MIN,
                                    [NCCL_AVG] = REDOP_AVG};

bool fake_type_size(int type, size_t *bytes)
{
    if (type < 0 || (size_t)type >= sizeof types / sizeof types[0])
        return false;
    *bytes = (size_t)types[type].bytes;
    return true;
}

nccl_result fake_op_check(const struct fake_ncclop *op)
{
    bool reduces = op->what == ALL_REDUCE || op->what == REDUCE || op->what == REDUCE_SCATTER;
    size_t size;

    if (!fake_type_size(op->type, &size))
        return fake_fail(NCCL_E_ARGUMENT, "there is no type %d", op->type);
    if (reduces && (op->op < 0 || (size_t)op->op >= sizeof redops / sizeof redops[0]))
        return fake_fail(NCCL_E_ARGUMENT, "there is no operator %d", op->op);
    if (op->root < 0 || op->root >= op->comm->world)
        return fake_fail(NCCL_E_ARGUMENT, "there is no rank %d", op->root);
    return NCCL_SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Between the device and the table; breaks the device if there is no such memory. */
static bool move(nccl_comm comm, cu_ptr p, void *table, size_t bytes, bool to_table)
{
    void *view = bytes ? fakecuda_view(p, bytes, comm->dev) : NULL;

    if (!bytes)
        return true;
    if (!view) {
        fakecuda_break(comm->dev, CU_E_ILLEGAL_ADDRESS);
        return false;
    }
    if (to_table)
        memcpy(table, view, bytes);
    else
        memcpy(view, table, bytes);
    fakecuda_view_end();
    return true;
}

static bool put(const struct fake_ncclop *op, cu_ptr p, size_t bytes)
{
    return move(op->comm, p, op->comm->table->chunks[op->comm->rank], bytes, true) &&
           fake_comm_barrier(op->comm);
}

static bool take(const struct fake_ncclop *op, int rank, cu_ptr p, size_t bytes)
{
    return move(op->comm, p, op->comm->table->chunks[rank], bytes, false);
}

static bool reduce(const struct fake_ncclop *op, cu_ptr p, size_t n)
{
    struct fake_table *t = op->comm->table;
    const void *sources[FAKE_RANKS];
    unsigned world = (unsigned)op->comm->world, dtype = types[op->type].dtype,
             redop = redops[op->op];
    void *view = fakecuda_view(p, n * (size_t)types[op->type].bytes, op->comm->dev);

    if (!view) {
        fakecuda_break(op->comm->dev, CU_E_ILLEGAL_ADDRESS);
        return false;
    }
    for (unsigned i = 0; i < world; i++)
        sources[i] = t->chunks[i];
    reduce_n(dtype, redop, view, sources, world, n);
    reduce_finish(dtype, redop, view, n, world);
    fakecuda_view_end();
    return true;
}

/* Between GPUs of one process NCCL before 2.24 reads and writes the ranks' own buffers across them
 * ("P2P/direct pointer"), unless it is told not to. */
static bool peers_reach(const struct fake_ncclop *op, cu_ptr p, size_t bytes)
{
    const struct fake_seat *seats = op->comm->table->seats;

    for (int i = 0; bytes && i < op->comm->world; i++)
        if (i != op->comm->rank && atomic_load(&seats[i].pid) == getpid() &&
            !fakecuda_peer_reaches(p, bytes, seats[i].dev)) {
            fakecuda_break(seats[i].dev, CU_E_ILLEGAL_ADDRESS);
            return false;
        }
    return true;
}

static bool direct(const struct fake_ncclop *op)
{
    size_t bytes = op->what == EXCHANGE ? 0 : op->n * (size_t)types[op->type].bytes;
    size_t world = (size_t)op->comm->world;
    bool sends = op->what != BROADCAST || op->comm->rank == op->root;
    bool receives = op->what != REDUCE || op->comm->rank == op->root;
    bool ok;

    if (fake_knob_number("NCCL_P2P_DIRECT_DISABLE", 0))
        return true;
    ok = !sends || peers_reach(op, op->send, op->what == REDUCE_SCATTER ? world * bytes : bytes);
    ok = ok &&
         (!receives || peers_reach(op, op->recv, op->what == ALL_GATHER ? world * bytes : bytes));
    for (unsigned i = 0; ok && i < op->ntransfers; i++)
        ok = peers_reach(op, op->transfers[i].p, op->transfers[i].bytes);
    return ok;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static bool agree(const struct fake_ncclop *op)
{
    struct fake_seat *seats = op->comm->table->seats;
    uint64_t what[] = {op->what, op->n, (uint64_t)op->type, (uint64_t)op->op, (uint64_t)op->root};

    seats[op->comm->rank].what = fake_hash(what, sizeof what, 1);
    if (!fake_comm_barrier(op->comm))
        return false;
    for (int i = 0; i < op->comm->world; i++) {
        unsigned long us = 100;

        if (seats[i].what == seats[op->comm->rank].what)
            continue;
        fake_fail(NCCL_E_USAGE, "rank %d calls something else", i);
        while (!fake_comm_stop(op->comm))
            fake_nap(&us);
        return false;
    }
    return fake_comm_barrier(op->comm); /* all have looked */
}

/* One chunk of @n elements, @at elements from the start of each block. */
static bool chunk(const struct fake_ncclop *op, size_t at, size_t n)
{
    size_t size = (size_t)types[op->type].bytes, bytes = n * size;
    int world = op->comm->world, rank = op->comm->rank;
    cu_ptr send = op->send + at * size, recv = op->recv + at * size;
    bool ok = true;

    switch (op->what) {
    case ALL_REDUCE:
    case REDUCE:
        ok = put(op, send, bytes);
        if (ok && (op->what == ALL_REDUCE || rank == op->root))
            ok = reduce(op, recv, n);
        break;
    case BROADCAST:
        ok = put(op, send, rank == op->root ? bytes : 0) && take(op, op->root, recv, bytes);
        break;
    case ALL_GATHER:
        ok = put(op, send, bytes);
        for (int i = 0; ok && i < world; i++)
            ok = take(op, i, recv + (cu_ptr)i * op->n * size, bytes);
        break;
    case REDUCE_SCATTER:
        for (int i = 0; ok && i < world; i++) {
            ok = put(op, send + (cu_ptr)i * op->n * size, bytes);
            if (ok && i == rank)
                ok = reduce(op, recv, n);
            ok = ok && (i == world - 1 || fake_comm_barrier(op->comm));
        }
        break;
    case EXCHANGE:
        break;
    }
    return ok && fake_comm_barrier(op->comm);
}

/* ---- between two ranks ----------------------------------------------------------------------- */

static bool step(const struct fake_ncclop *op, struct fake_transfer *t, bool *moved)
{
    nccl_comm comm = op->comm;
    struct fake_mail *m =
        t->out ? &comm->table->mail[comm->rank][t->peer] : &comm->table->mail[t->peer][comm->rank];
    uint64_t written = atomic_load_explicit(&m->written, memory_order_acquire);
    uint64_t read = atomic_load_explicit(&m->read, memory_order_acquire);
    uint64_t pos = t->out ? written : read;
    size_t n = t->out ? sizeof m->bytes - (written - read) : written - read;
    size_t end = sizeof m->bytes - pos % sizeof m->bytes;

    n = n < end ? n : end;
    n = n < t->bytes - t->done ? n : t->bytes - t->done;
    if (!n)
        return true;
    if (!move(comm, t->p + t->done, m->bytes + pos % sizeof m->bytes, n, t->out))
        return false;
    t->done += n;
    *moved = true;
    atomic_store_explicit(t->out ? &m->written : &m->read, pos + n, memory_order_release);
    return true;
}

/* All at once: but of those between the same two ranks, one after the other. */
static bool exchange(const struct fake_ncclop *op)
{
    unsigned long us = 5;

    for (;;) {
        uint64_t busy[2] = {0, 0};
        bool moved = false, left = false;

        for (unsigned i = 0; i < op->ntransfers; i++) {
            struct fake_transfer *t = &op->transfers[i];

            if (t->done == t->bytes || busy[t->out] >> t->peer & 1)
                continue;
            if (!step(op, t, &moved))
                return false;
            if (t->done < t->bytes) {
                busy[t->out] |= 1ull << t->peer;
                left = true;
            }
        }
        if (!left)
            return true;
        if (fake_comm_stop(op->comm))
            return false;
        if (moved) {
            us = 5;
        } else {
            fake_comm_watch(op->comm);
            fake_nap(&us);
        }
    }
}

bool fake_op_run(struct fake_ncclop *op)
{
    size_t most = op->what == EXCHANGE ? 1 : FAKE_CHUNK / (size_t)types[op->type].bytes;
    unsigned long us = 100;
    bool ok;

    if (op->fail)
        fake_comm_set(op->comm, op->code);
    while ((op->hang || op->fail) && !fake_comm_stop(op->comm))
        fake_nap(&us);
    if (fake_comm_stop(op->comm))
        return false;
    if (!direct(op))
        return false;
    if (op->what == EXCHANGE)
        return exchange(op);
    ok = agree(op);
    for (size_t at = 0; ok && at < op->n; at += most)
        ok = chunk(op, at, op->n - at < most ? op->n - at : most);
    return ok;
}
