/* commd_perf_coll.c - the collectives: how large, from where to where, and what comes out. What a
 * collective is stands in coll_table[] (shm/model/coll.c).
 *
 * A collective has one vector (all_reduce, reduce, broadcast) or blocks, one per rank, on the
 * sending side, the receiving side or both. Its size is that of a vector, or of all blocks
 * together, as in nccl-tests; so is the bandwidth factor (doc/PERFORMANCE.md there): busbw is
 * what each link of an ideal ring carries, and can be compared with the hardware.
 *
 * The _v forms get blocks of different sizes, so that a block in a wrong place is noticed. The
 * block from rank i to rank j has half as many elements again as the average if i + j is even, and
 * half as many if it is odd; the last of an odd number of ranks has the average. So the sum stays
 * the same. If only one side has blocks, their sizes are those that rank 0 would send. */
#include "client/perf/commd_perf.h"
#include "shm/model/coll.h"

/* Beside coll_table[]: messages, which have one vector on each side. */
static const struct coll_info messages[] = {
    {.name = "sendrecv", .send = EXTENT_ONE, .recv = EXTENT_ONE},
    {.name = "pingpong", .send = EXTENT_ONE, .recv = EXTENT_ONE},
};
_Static_assert(PERF_PINGPONG == PERF_SENDRECV + 1, "messages[] is in the order of the numbers");

static const struct coll_info *info(int coll)
{
    return coll < COLL_COUNT ? &coll_table[coll] : &messages[coll - PERF_SENDRECV];
}

static bool sends_blocks(int coll)
{
    return coll_blocks(info(coll)->send);
}

static bool receives_blocks(int coll)
{
    return coll_blocks(info(coll)->recv);
}

const char *perf_coll_name(int coll)
{
    return info(coll)->name;
}

int perf_coll_find(const char *name, int *ret_coll)
{
    int coll = coll_from_name(name);

    for (size_t i = 0; i < ARRAY_LEN(messages) && coll < 0; i++)
        if (!strcmp(messages[i].name, name))
            coll = PERF_SENDRECV + (int)i;
    if (coll < 0)
        return -ENOENT;
    *ret_coll = coll;
    return 0;
}

void perf_coll_names(FILE *to)
{
    for (int coll = 0; coll < COLL_COUNT; coll++)
        fprintf(to, "%s, ", coll_name((unsigned)coll));
    for (size_t i = 0; i < ARRAY_LEN(messages); i++)
        fprintf(to, "%s%s", i ? ", " : "", messages[i].name);
}

bool perf_reduces(int coll)
{
    return info(coll)->reduces;
}

bool perf_in_place(int coll)
{
    return info(coll)->window == WINDOW_VECTOR;
}

bool perf_point_to_point(int coll)
{
    return coll >= PERF_SENDRECV;
}

int perf_dest(int coll, int rank, int size)
{
    assert(perf_point_to_point(coll) && rank >= 0 && rank < size);
    if (coll == PERF_SENDRECV)
        return (rank + 1) % size;
    return rank >= size / 2 * 2 ? -1 : (rank + size / 2) % (size / 2 * 2);
}

int perf_source(int coll, int rank, int size)
{
    return coll == PERF_SENDRECV ? (rank + size - 1) % size : perf_dest(coll, rank, size);
}

int perf_timed(int coll, int size)
{
    return coll == PERF_PINGPONG ? size / 2 : size;
}

bool perf_is_timed(int coll, int rank, int size)
{
    assert(rank >= 0 && rank < size);
    return rank < perf_timed(coll, size);
}

double perf_bus_factor(int coll, int ranks)
{
    double n = ranks;

    if (coll == COMMD_ALL_REDUCE)
        return 2 * (n - 1) / n;
    return sends_blocks(coll) || receives_blocks(coll) ? (n - 1) / n : 1;
}

/* ---- sizes ------------------------------------------------------------------------------- */

static size_t blocks(const struct perf *perf, int size)
{
    return sends_blocks(perf->coll) || receives_blocks(perf->coll) ? (size_t)size : 1;
}

size_t perf_count(const struct perf *perf, int size, size_t bytes)
{
    size_t elem = commd_dtype_size(perf->dtype);

    return MAX(bytes / elem / blocks(perf, size), (size_t)1);
}

size_t perf_bytes(const struct perf *perf, int size, size_t count)
{
    if (perf->coll == COMMD_BARRIER)
        return 0;
    return count * commd_dtype_size(perf->dtype) * blocks(perf, size);
}

/* Elements that rank @i sends to rank @j. */
static size_t block(const struct perf *perf, const struct perf_shape *s, int i, int j)
{
    int last = s->size % 2 ? s->size - 1 : -1;

    assert(i >= 0 && i < s->size && j >= 0 && j < s->size);
    if (!info(perf->coll)->counted || i == last || j == last)
        return s->count;
    return (i + j) % 2 ? s->count - s->count / 2 : s->count + s->count / 2;
}

/* Whose blocks rank @rank sends: its own, or where only one side has blocks those of rank 0. */
static int sender(const struct perf *perf, int rank)
{
    return sends_blocks(perf->coll) && receives_blocks(perf->coll) ? rank : 0;
}

/* Where the block for rank @j begins in the input of rank @i. */
static size_t place(const struct perf *perf, const struct perf_shape *s, int i, int j)
{
    size_t at = 0;

    if (sends_blocks(perf->coll))
        for (int k = 0; k < j; k++)
            at += block(perf, s, sender(perf, i), k);
    return at;
}

static void shape_counts(const struct perf *perf, const struct perf_shape *s)
{
    int coll = perf->coll, me = s->rank;

    for (int r = 0; r < s->size; r++) {
        s->send_counts[r] = block(perf, s, sender(perf, me), r);
        s->recv_counts[r] = block(perf, s, sender(perf, r), sends_blocks(coll) ? me : r);
    }
    if (!sends_blocks(coll))
        s->send_counts[0] = block(perf, s, 0, me);
    if (!receives_blocks(coll))
        s->recv_counts[0] = block(perf, s, 0, me);
}

static size_t total(const size_t *counts, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

int perf_shape_init(const struct perf *perf, int rank, int size, size_t count,
                    struct perf_shape *ret_shape)
{
    struct perf_shape s = {.rank = rank, .size = size, .count = count};
    bool root = !info(perf->coll)->rooted || rank == perf->root;
    int coll = perf->coll;

    s.send_counts = calloc((size_t)size, sizeof(*s.send_counts));
    s.recv_counts = calloc((size_t)size, sizeof(*s.recv_counts));
    if (!s.send_counts || !s.recv_counts) {
        perf_shape_fini(&s);
        return -ENOMEM;
    }
    shape_counts(perf, &s);
    if (coll != COMMD_BARRIER) {
        s.send_n = sends_blocks(coll) ? total(s.send_counts, size) : s.send_counts[0];
        s.recv_n = receives_blocks(coll) ? total(s.recv_counts, size) : s.recv_counts[0];
    }
    if (perf_point_to_point(coll) && perf_dest(coll, rank, size) < 0)
        s.send_n = s.recv_n = 0;
    if (sends_blocks(coll) && !root)
        s.send_n = 0;
    if (receives_blocks(coll) && !root)
        s.recv_n = 0;
    *ret_shape = s;
    return 0;
}

void perf_shape_fini(struct perf_shape *shape)
{
    free(shape->send_counts);
    free(shape->recv_counts);
    shape->send_counts = shape->recv_counts = NULL;
}

/* ---- one operation ----------------------------------------------------------------------- */

void perf_fill(const struct perf *perf, const struct perf_shape *shape,
               const struct perf_data *data, void *send, void *recv)
{
    size_t elem = commd_dtype_size(perf->dtype);

    if (shape->send_n && (perf->coll != COMMD_BROADCAST || shape->rank == perf->root))
        perf_data_fill(data, send, 0, shape->send_n);
    else if (perf->coll == COMMD_BROADCAST)
        memset(recv, 0x5a, shape->recv_n * elem); /* what the root sends must replace it */
    if (recv != send && shape->recv_n) /* what an earlier iteration left would look right */
        memset(recv, 0x5a, shape->recv_n * elem);
}

void perf_op(const struct perf *perf, const struct perf_shape *shape, const void *send, void *recv,
             struct commd_op *ret_op)
{
    *ret_op = (struct commd_op){.size = sizeof(*ret_op),
                                .coll = perf->coll,
                                .dtype = perf->dtype,
                                .redop = perf->redop,
                                .root = perf->root,
                                .send = send,
                                .recv = recv,
                                .count = shape->count,
                                .scale = perf_data_scale(shape->rank)};
    if (info(perf->coll)->counted) {
        ret_op->send_counts = shape->send_counts;
        ret_op->recv_counts = shape->recv_counts;
    }
}

/* Every block comes from its rank, and from its place in that rank's input. */
static size_t wrong_blocks(const struct perf *perf, const struct perf_shape *shape,
                           struct perf_data *data, const uint8_t *recv, size_t *ret_first)
{
    size_t elem = commd_dtype_size(perf->dtype), wrong = 0, at = 0;

    for (int r = 0; r < shape->size; r++) {
        size_t n = shape->recv_counts[r];

        wrong += perf_data_wrong(data, recv + at * elem, place(perf, shape, r, shape->rank), n, r,
                                 ret_first);
        at += n;
    }
    return wrong;
}

size_t perf_wrong(const struct perf *perf, const struct perf_shape *shape, struct perf_data *data,
                  const void *recv, size_t *ret_first)
{
    int coll = perf->coll, me = shape->rank;

    if (shape->recv_n == 0 || (coll == COMMD_REDUCE && me != perf->root))
        return 0;
    if (receives_blocks(coll))
        return wrong_blocks(perf, shape, data, recv, ret_first);
    if (perf_point_to_point(coll))
        return perf_data_wrong(data, recv, 0, shape->recv_n, perf_source(coll, me, shape->size),
                               ret_first);
    return perf_data_wrong(data, recv, place(perf, shape, 0, me), shape->recv_n, perf->root,
                           ret_first);
}
