/* check_kernels.c - the kernels as the GPU runs them, beside their twins in C: the same bits, for
 * all types, operators, numbers of sources, counts and alignments, and nothing written but the
 * destinations. And what a copy kernel and the reductions move in a second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/reduce/reduce.h"
#include "tests/gpu/gpu_check.h"
#include "transport/gpu/kernel/image.h"
#include "transport/gpu/move.h"

enum { MOST = 4100, ROOM = MOST * 8 + 512, MARGIN = 256, SLOTS = 2 * BATCH_SOURCES };
enum placing { ALIKE, SHIFTED, UNLIKE, PLACINGS };

static cu_function functions[GPU_KERNELS];
static uint64_t random_state = 7;
static uint8_t *in, *want, *got; /* of the host: SLOTS * ROOM bytes each */
static cu_ptr on_device;
static int multiprocessors;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* In 256 bytes with random bits every special value of a format comes up: of each kind of exponent
 * and sign, and each integer's ends. */
static void fill(unsigned dtype, uint8_t *p, size_t count)
{
    size_t size = dtype_size(dtype);

    for (size_t i = 0; i < count; i++, p += size) {
        uint64_t bits = random_bits(), kind = random_bits() % 16;

        if (kind < 2) /* all ones above: NaN, infinity, -1 */
            bits |= ~(uint64_t)0 << (size == 2 ? 7 : size == 4 ? 23 : 52);
        if (kind == 2)
            bits &= 0x8000000080008080; /* zeros */
        if (kind == 3)
            bits &= 0x800000ff80ff80ff; /* subnormals */
        if (kind == 4)
            bits = 0x7ff000007f807c00; /* f64's infinity, f32's, f16's */
        if (dtype == DTYPE_BOOL)
            bits &= 1;
        memcpy(p, &bits, size);
    }
}

static int load(void)
{
    cu_module module;
    cu_device dev;
    char text[512];
    cu_result r;

    if (gpu_images[0].kind == GPU_IMAGE_NONE)
        return skip("built without a CUDA compiler");
    MUST(cu.ctx_device(&dev));
    MUST(cu.device_attribute(&multiprocessors, CU_ATTR_MULTIPROCESSORS, dev));
    r = gpu_image_load(&cu, dev, gpu_images, &module, text, sizeof text);
    if (r)
        return fail("%s", text);
    for (unsigned k = 0; k < GPU_KERNELS; k++)
        MUST(cu.module_function(&functions[k], module, gpu_kernel_name(k)));
    return 0;
}

static void launch(struct gpu_launch *l, cu_stream s)
{
    void *params[] = {&l->batch};

    MUST(cu.launch(functions[l->kernel], l->gx, l->gy, 1, l->threads, 1, 1, 0, s, params, NULL));
}

/* ---- bit by bit -------------------------------------------------------------------------- */

/* Addresses of the move are offsets into an arena of slots: @base makes them addresses. */
static void at(struct gpu_move *m, cu_ptr base)
{
    for (unsigned k = 0; k < m->nsrc; k++)
        m->src[k] += base;
    for (unsigned j = 0; j < m->ndst; j++)
        m->dst[j] += base;
}

static void twin(struct gpu_move m)
{
    struct gpu_launch l;
    void *params[] = {&l.batch};

    at(&m, (cu_ptr)(uintptr_t)want);
    gpu_launch_init(&l);
    gpu_launch_add(&l, &m);
    if (gpu_launch_close(&l, (unsigned)multiprocessors))
        gpu_twins[l.kernel].fn(params);
}

/* With the grid that commd-gpu takes, or a smaller one. */
static void kernel(struct gpu_move m, unsigned threads)
{
    struct gpu_launch l;

    at(&m, on_device);
    gpu_launch_init(&l);
    gpu_launch_add(&l, &m);
    if (!gpu_launch_close(&l, (unsigned)multiprocessors))
        return;
    if (threads)
        l.threads = threads;
    launch(&l, NULL);
}

/* 0, or it has said what differs. */
static int differs(const struct gpu_move *m, const char *what)
{
    size_t i = 0;

    if (!memcmp(got, want, (size_t)SLOTS * ROOM))
        return 0;
    while (got[i] == want[i])
        i++;
    return fail("%s %s, %u sources, %u destinations, %llu elements, %s: byte %zu of slot %zu is "
                "%#x, not %#x",
                dtype_name(m->dtype), redop_name(m->redop), m->nsrc, m->ndst,
                (unsigned long long)m->count, what, i % ROOM, i / ROOM, got[i], want[i]);
}

static int one(unsigned dtype, unsigned op, unsigned nsrc, uint64_t count, enum placing placing)
{
    static const char *const places[] = {"aligned", "shifted alike", "shifted unlike"};
    static const unsigned threads[] = {0, 32, 512};
    size_t size = dtype_size(dtype), bytes = (size_t)SLOTS * ROOM;
    struct gpu_move m = {.count = count,
                         .dtype = (uint8_t)dtype,
                         .redop = (uint8_t)op,
                         .nsrc = (uint8_t)nsrc,
                         .ndst = (uint8_t)(1 + random_bits() % 3),
                         .divide = op == REDOP_AVG && count % 2 ? 3 : 0};

    for (unsigned k = 0; k < nsrc + m.ndst; k++) {
        cu_ptr p = (cu_ptr)(k < nsrc ? k : k - nsrc + BATCH_SOURCES) * ROOM + MARGIN;

        if (placing == SHIFTED)
            p += size * (count % 5);
        if (placing == UNLIKE)
            p += size * (random_bits() % 17);
        *(k < nsrc ? &m.src[k] : &m.dst[k - nsrc]) = p;
    }
    for (unsigned k = 0; k < nsrc; k++) {
        m.scale[k] = k % 3 ? 1.0 / (k + 1) : -3e4;
        fill(dtype, in + m.src[k], count);
    }
    if (random_bits() % 2)
        m.dst[random_bits() % m.ndst] = m.src[random_bits() % nsrc];
    memcpy(want, in, bytes);
    MUST(cu.copy(on_device, (cu_ptr)(uintptr_t)in, bytes, NULL));
    kernel(m, threads[count % ARRAY_LEN(threads)]);
    MUST(cu.copy((cu_ptr)(uintptr_t)got, on_device, bytes, NULL));
    twin(m);
    MUST(cu.ctx_synchronize());
    return differs(&m, places[placing]);
}

/* Many blocks, each of which goes round several times. */
static int large(unsigned dtype, unsigned nsrc)
{
    uint64_t count = check_quick ? 300007 : 5000011;
    size_t each = (size_t)count * dtype_size(dtype) + 16, n = each * (nsrc + 1);
    uint8_t *host = malloc(n), *back = malloc(n);
    cu_ptr p = device_new(n);
    struct gpu_move m = {.count = count, .dtype = (uint8_t)dtype, .nsrc = (uint8_t)nsrc, .ndst = 1};
    struct gpu_launch l;
    void *params[] = {&l.batch};
    int differ;

    each -= each % 16;
    for (unsigned k = 0; k <= nsrc; k++) {
        *(k < nsrc ? &m.src[k] : &m.dst[0]) = (cu_ptr)k * each;
        fill(dtype, host + k * each, count);
    }
    copy_now(p, (cu_ptr)(uintptr_t)host, n);
    at(&m, p);
    gpu_launch_init(&l);
    gpu_launch_add(&l, &m);
    gpu_launch_close(&l, (unsigned)multiprocessors);
    launch(&l, NULL);
    copy_now((cu_ptr)(uintptr_t)back, p, n);
    at(&m, (cu_ptr)(uintptr_t)host - p);
    gpu_launch_init(&l);
    gpu_launch_add(&l, &m);
    gpu_twins[l.kernel].fn(params);
    differ = memcmp(back, host, n);
    MUST(cu.mem_free(p));
    free(host);
    free(back);
    return differ ? fail("%s sum, %u sources, %llu elements: wrong", dtype_name(dtype), nsrc,
                         (unsigned long long)count)
                  : 0;
}

int check_kernels(void)
{
    static const unsigned large_dtypes[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
    static const uint64_t counts[] = {1,  2,  3,   5,   15,  16,   17,  31,
                                      33, 64, 127, 259, 515, 2051, MOST};
    unsigned done = 0, step = check_quick ? 5 : 1;
    int r = load();

    if (r)
        return r;
    in = host_new((size_t)SLOTS * ROOM, -1, NULL);
    want = malloc((size_t)SLOTS * ROOM);
    got = host_new((size_t)SLOTS * ROOM, -1, NULL);
    on_device = device_new((size_t)SLOTS * ROOM);
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned op = 0; op < REDOP_COUNT; op++) {
            for (unsigned k = 1; redop_defined(d, op) && k <= BATCH_SOURCES; k += step) {
                for (unsigned i = 0; i < ARRAY_LEN(counts) && !r; i += step, done++)
                    r = one(d, op, k, counts[i], (i + k + op) % PLACINGS);
            }
        }
    }
    for (unsigned i = 0; i < ARRAY_LEN(large_dtypes); i++)
        for (unsigned k = 1; k <= BATCH_SOURCES && !r; k = k == 2 ? 3 : k == 3 ? 8 : 2 * k, done++)
            r = large(large_dtypes[i], k);
    if (r)
        return r;
    return pass("moves=%u, the same bits as the twins in C", done);
}

/* ---- load for others ------------------------------------------------------------------------- */

static struct gpu_launch a_copy;

bool copies_begin(size_t bytes)
{
    struct gpu_move m = {.count = bytes / 4, .dtype = DTYPE_F32, .nsrc = 1, .ndst = 1};

    if (gpu_images[0].kind == GPU_IMAGE_NONE || load())
        return false;
    m.src[0] = device_new(2 * bytes);
    m.dst[0] = m.src[0] + bytes;
    gpu_launch_init(&a_copy);
    gpu_launch_add(&a_copy, &m);
    gpu_launch_close(&a_copy, (unsigned)multiprocessors);
    return true;
}

void copies_enqueue(cu_stream s, unsigned n)
{
    while (n--)
        launch(&a_copy, s);
}

/* ---- how fast ---------------------------------------------------------------------------- */

enum { TURNS = 20, BYTES = 256 * MIB, VECTORS = 16 };

/* Median time of a launch, of several rounds; bytes that are read and written in it. */
static double gigabytes_per_second(struct gpu_launch *l, cu_ptr to, cu_ptr from, double bytes)
{
    cu_stream s = stream_new();
    double us[7];

    for (unsigned i = 0; i < ARRAY_LEN(us); i++) {
        double begin = now_us();

        for (unsigned j = 0; j < TURNS; j++) {
            if (l)
                launch(l, s);
            else
                MUST(cu.copy(to, from, (size_t)(bytes / 2), s));
        }
        MUST(cu.stream_synchronize(s));
        us[i] = (now_us() - begin) / TURNS;
    }
    MUST(cu.stream_free(s));
    return bytes / percentile(us, ARRAY_LEN(us), 500) / 1e3;
}

static double reduction(cu_ptr memory, size_t each, unsigned nsrc, unsigned ndst)
{
    struct gpu_launch l;
    struct gpu_move m = {.count = each / 4,
                         .dtype = DTYPE_F32,
                         .redop = REDOP_SUM,
                         .nsrc = (uint8_t)nsrc,
                         .ndst = (uint8_t)ndst};

    for (unsigned k = 0; k < nsrc; k++)
        m.src[k] = memory + k * each;
    for (unsigned j = 0; j < ndst; j++)
        m.dst[j] = nsrc == 1 ? memory + each : m.src[j]; /* in place, as all_reduce is called */
    gpu_launch_init(&l);
    gpu_launch_add(&l, &m);
    gpu_launch_close(&l, (unsigned)multiprocessors);
    return gigabytes_per_second(&l, 0, 0, (double)each * (nsrc + ndst));
}

int check_bandwidth(void)
{
    size_t each = check_fake ? MIB : BYTES, free_bytes = 0, total;
    cu_ptr memory;
    double driver, copy, sums[4];
    int r = load();

    if (r)
        return r;
    MUST(cu.mem_info(&free_bytes, &total));
    while (each > MIB && each * VECTORS > free_bytes / 2)
        each /= 2;
    memory = device_new(each * VECTORS);
    driver = gigabytes_per_second(NULL, memory + each, memory, 2.0 * (double)each);
    copy = reduction(memory, each, 1, 1);
    for (unsigned i = 0; i < ARRAY_LEN(sums); i++)
        sums[i] = reduction(memory, each, 2u << i, 2u << i);
    MUST(cu.mem_free(memory));
    return pass("vector_mb=%zu driver_copy_gbs=%.0f copy_kernel_gbs=%.0f sum2_gbs=%.0f "
                "sum4_gbs=%.0f sum8_gbs=%.0f sum16_gbs=%.0f (bytes read and written)",
                each / MIB, driver, copy, sums[0], sums[1], sums[2], sums[3]);
}
