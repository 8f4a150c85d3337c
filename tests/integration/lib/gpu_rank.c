/* gpu_rank.c - a rank whose buffers are on a GPU, by libcommd, over the driver without a GPU.
 *
 *     gpu_rank GROUP RANK WORLD DEVICE OPERATIONS
 *
 * Does one collective after the other, all ranks the same, and checks what it gets. Prints
 * "joined", then "done N" after the last; or "error CODE RANK TEXT" and ends. When stdin ends, it
 * does. With OPERATIONS 0 it goes on until something fails. */
#include <commd/commd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/gpu/cuda.h"

enum { COUNT = 1000, MOST = 64 };

static struct cuda cu;
static cu_stream stream;
static int rank, world;

static void must(cu_result r, const char *what)
{
    if (r == CU_SUCCESS)
        return;
    printf("error 0 -1 %s: %d\n", what, r);
    exit(1);
}

/* What rank @r has at @i in operation @n: whole numbers, whose sums are exact. */
static float value(unsigned n, int r, size_t i)
{
    return (float)((n * 7 + (unsigned)r * 13 + i * 3) % 64);
}

static float sum(unsigned n, size_t i)
{
    float s = 0;

    for (int r = 0; r < world; r++)
        s += value(n, r, i);
    return s;
}

/* What must be at @i of the result; elements that are not the operation's are not asked for. */
static float wanted(unsigned n, int coll, int root, size_t i)
{
    switch (coll) {
    case COMMD_ALL_REDUCE:
    case COMMD_REDUCE:
        return sum(n, i);
    case COMMD_BROADCAST:
        return value(n, root, i);
    case COMMD_ALL_GATHER:
    case COMMD_GATHER:
        return value(n, (int)(i / COUNT), i % COUNT);
    case COMMD_REDUCE_SCATTER:
        return sum(n, (size_t)rank * COUNT + i);
    case COMMD_SCATTER:
        return value(n, root, (size_t)rank * COUNT + i);
    default: /* all_to_all */
        return value(n, (int)(i / COUNT), (size_t)rank * COUNT + i % COUNT);
    }
}

static size_t result_len(int coll, int root)
{
    switch (coll) {
    case COMMD_BARRIER:
        return 0;
    case COMMD_REDUCE:
        return rank == root ? COUNT : 0;
    case COMMD_GATHER:
        return rank == root ? (size_t)world * COUNT : 0;
    case COMMD_ALL_GATHER:
    case COMMD_ALL_TO_ALL:
        return (size_t)world * COUNT;
    default:
        return COUNT;
    }
}

/* In every second round: the same, with counts. */
static int counted(unsigned n, int coll)
{
    if (!(n / (COMMD_ALL_TO_ALL + 1) % 2))
        return coll;
    switch (coll) {
    case COMMD_ALL_GATHER:
        return COMMD_ALL_GATHER_V;
    case COMMD_GATHER:
        return COMMD_GATHER_V;
    case COMMD_REDUCE_SCATTER:
        return COMMD_REDUCE_SCATTER_V;
    case COMMD_SCATTER:
        return COMMD_SCATTER_V;
    case COMMD_ALL_TO_ALL:
        return COMMD_ALL_TO_ALL_V;
    default:
        return coll;
    }
}

/* Elements of a cell where all have counts of their own. */
static size_t cell(size_t from, size_t to)
{
    return COUNT - (from * 5 + to * 3) % 7 * 100;
}

/* What must be at @i of an all_to_all with such cells, one behind the other. */
static float wanted_cell(unsigned n, size_t i)
{
    size_t at = 0, from = 0;

    while (i >= cell(from, (size_t)rank))
        i -= cell(from++, (size_t)rank);
    for (size_t to = 0; to < (size_t)rank; to++)
        at += cell(from, to);
    return value(n, (int)from, at + i);
}

/* Returns how many elements come. */
static size_t use_cells(struct commd_op *op)
{
    static size_t sends[MOST], gets[MOST];
    size_t sum = 0;

    for (size_t i = 0; i < (size_t)world; i++) {
        sends[i] = cell((size_t)rank, i);
        gets[i] = cell(i, (size_t)rank);
        sum += gets[i];
    }
    op->send_counts = sends;
    op->recv_counts = gets;
    return sum;
}

static int fail(void)
{
    const struct commd_error *e = commd_last_error();

    printf("error %d %d %s\n", e->code, e->rank, e->message);
    fflush(stdout);
    return 0;
}

/* 0, or it has failed and said so. */
static int one(struct commd_group *g, unsigned n, cu_ptr send, cu_ptr recv)
{
    static float host[MOST * COUNT];
    size_t counts[MOST];
    int coll = (int)(n % (COMMD_ALL_TO_ALL + 1)), root = (int)(n / 3) % world, r;
    size_t all = (size_t)world * COUNT, len = result_len(coll, root);
    struct commd_op op = {.size = sizeof op,
                          .coll = counted(n, coll),
                          .dtype = COMMD_F32,
                          .redop = COMMD_SUM,
                          .root = root,
                          .count = COUNT,
                          .send = (void *)(uintptr_t)send,
                          .recv = (void *)(uintptr_t)recv,
                          .memory = COMMD_MEMORY_CUDA,
                          .stream = stream};

    for (int i = 0; i < world; i++)
        counts[i] = COUNT;
    if (op.coll != coll)
        op.send_counts = op.recv_counts = counts;
    if (op.coll == COMMD_ALL_TO_ALL_V)
        len = use_cells(&op);
    for (size_t i = 0; i < all; i++)
        host[i] = value(n, rank, i);
    must(cu.copy(coll == COMMD_BROADCAST ? recv : send, (cu_ptr)(uintptr_t)host, all * sizeof *host,
                 stream),
         "copy");
    r = commd_run(g, &op);
    if (r)
        return r;
    must(cu.copy((cu_ptr)(uintptr_t)host, recv, all * sizeof *host, stream), "copy");
    must(cu.stream_synchronize(stream), "synchronize");
    for (size_t i = 0; i < len; i++) {
        float want = op.coll == COMMD_ALL_TO_ALL_V ? wanted_cell(n, i) : wanted(n, coll, root, i);

        if (host[i] != want) {
            struct commd_op barrier = {.size = sizeof op, .coll = COMMD_BARRIER};

            /* It tells of an operation that failed. The other rank may have been told already, and
             * calls nothing any more: then it ends all the same. */
            r = commd_run(g, &barrier);
            if (r)
                return r;
            printf("error 0 %d operation %u, collective %d: %g at %zu, not %g\n", rank, n, coll,
                   host[i], i, want);
            exit(1);
        }
    }
    return 0;
}

static void prepare(int device, cu_ptr *ret_send, cu_ptr *ret_recv)
{
    cu_context ctx;
    cu_device dev;
    char why[256];

    if (cuda_load(getenv("COMMD_LIBCUDA"), 0, &cu, why, sizeof why)) {
        printf("error 0 -1 %s\n", why);
        exit(1);
    }
    must(cu.init(0), "init");
    must(cu.device_get(&dev, device), "device");
    must(cu.primary_retain(&ctx, dev), "context");
    must(cu.ctx_set(ctx), "context");
    must(cu.stream_new(&stream, CU_STREAM_NON_BLOCKING), "stream");
    must(cu.mem_alloc(ret_send, MOST * COUNT * sizeof(float)), "memory");
    must(cu.mem_alloc(ret_recv, MOST * COUNT * sizeof(float)), "memory");
}

/* @op fails, and is told of by the next one at the latest: each rank says what it was told, and the
 * group goes on. */
static void must_fail(struct commd_group *g, const struct commd_op *op)
{
    struct commd_op barrier = {.size = sizeof barrier, .coll = COMMD_BARRIER};
    int told = commd_run(g, op);

    if (told)
        fail();
    must(cu.stream_synchronize(stream), "synchronize");
    if (commd_run(g, &barrier))
        fail();
    else if (!told)
        printf("error 0 -1 nobody has told of it\n");
}

/* Three ranks give counts of which no pair fits, and whose sums fit (test_gpus.c has how): the
 * operation fails, and the next one does not. */
static void made_counts(struct commd_group *g, cu_ptr send, cu_ptr recv)
{
    static const size_t sends[3][3] = {{0, 3255666, 1412945}, {0}, {115119, 863954, 0}};
    static const size_t gets[3][3] = {{0, 0, 115120}, {3255665, 0, 863953}, {1412946, 0, 0}};
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_TO_ALL_V,
                          .dtype = COMMD_I8,
                          .send_counts = sends[rank],
                          .recv_counts = gets[rank],
                          .memory = COMMD_MEMORY_CUDA,
                          .stream = stream};
    cu_ptr blocks;

    must(cu.mem_alloc(&blocks, 16 << 20), "memory");
    op.send = (void *)(uintptr_t)blocks;
    op.recv = (void *)(uintptr_t)(blocks + (8 << 20));
    must_fail(g, &op);
    if (one(g, 0, send, recv) || one(g, 1, send, recv))
        fail();
}

static void first_fails(struct commd_group *g, cu_ptr send, cu_ptr recv)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_REDUCE,
                          .dtype = COMMD_F32,
                          .count = COUNT,
                          .send = (void *)(uintptr_t)send,
                          .recv = (void *)(uintptr_t)recv,
                          .memory = COMMD_MEMORY_CUDA,
                          .stream = stream};

    must_fail(g, &op);
}

int main(int argc, char **argv)
{
    struct commd_context *ctx;
    struct commd_group *g;
    cu_ptr send, recv;
    unsigned n = 0, most;
    char c;

    if (argc != 6)
        return 64;
    rank = atoi(argv[2]);
    world = atoi(argv[3]);
    most = (unsigned)atoi(argv[5]);
    setlinebuf(stdout);
    prepare(atoi(argv[4]), &send, &recv);
    if (commd_connect(NULL, &ctx) || commd_group_join(ctx, argv[1], rank, world, 60000, &g))
        return fail();
    puts("joined");
    if (getenv("GPU_RANK_MADE_COUNTS"))
        made_counts(g, send, recv);
    if (getenv("GPU_RANK_FIRST_FAILS"))
        first_fails(g, send, recv);
    while ((!most || n < most) && one(g, n, send, recv) == 0) {
        n++;
        if (!most) /* who works until it is ended leaves the others a core */
            usleep(1000);
    }
    if (!most || n < most)
        fail();
    else
        printf("done %u\n", n);
    while (read(0, &c, 1) > 0)
        ;
    commd_disconnect(ctx);
    return 0;
}
