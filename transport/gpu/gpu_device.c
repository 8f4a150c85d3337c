/* gpu_device.c - the GPUs of this node.
 *
 * A device is closed until the first session wants it, for a context takes memory of it. Then a job
 * opens it: the primary context, streams that do not wait for the legacy one, and the kernels.
 * It stays open.
 *
 * Streams: some for moves on this GPU alone, which users share, so that a long move of one user
 * does not hold up another user; one for operations in which NCCL takes part, which can wait for
 * other GPUs. At the end of an operation's part on a stream the device writes a number into a page
 * of ours, in the same call as the done words of the members: a look at that page costs nothing. It
 * does not tell of errors, so streams are asked for them now and then.
 *
 * An error of a device is sticky: nothing that the device did can be trusted, and only a new
 * process gets a new context. So the error ends this process; clients see their sockets end. */
#include "transport/gpu/gpu_op.h"

#include <stdio.h>

#include "shm/util/wait.h"
#include "transport/gpu/kernel/image.h"

enum {
    CHECK_MS = 20, /* between two questions to the streams that work */
    SCRATCH_LEAST = 8 << 20,
    SCRATCH_PAGE = 2 << 20,
};

/* ---- which there are ------------------------------------------------------------------------- */

void device_text(const struct cu_uuid *uuid, char text[48])
{
    const unsigned char *u = (const unsigned char *)uuid->bytes;
    char *p = text + sprintf(text, "GPU-");

    for (unsigned i = 0; i < sizeof uuid->bytes; i++)
        p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

struct gdevice *device_find(struct gpu *g, const struct cu_uuid *uuid)
{
    for (unsigned i = 0; i < g->ndevices; i++)
        if (!memcmp(&g->device[i].uuid, uuid, sizeof *uuid))
            return &g->device[i];
    return NULL;
}

static cu_result device_ask(struct gpu *g, struct gdevice *d)
{
    const struct cuda *cu = &g->cu;
    size_t bytes = 0;
    cu_result r = cu->device_get(&d->ordinal, (int)d->number);

    r = r ? r : cu->device_uuid(&d->uuid, d->ordinal);
    r = r ? r : cu->device_name(d->name, sizeof d->name, d->ordinal);
    r = r ? r : cu->device_memory(&bytes, d->ordinal);
    r = r ? r : cu->device_attribute(&d->multiprocessors, CU_ATTR_MULTIPROCESSORS, d->ordinal);
    d->name[sizeof d->name - 1] = 0;
    d->bytes = bytes;
    d->g = g;
    for (unsigned k = 0; k < SHARES; k++)
        gpu_shared_init(&d->shared[k]);
    for (unsigned i = 0; i < STREAMS; i++) {
        d->stream[i].dev = d;
        STAILQ_INIT(&d->stream[i].flying);
    }
    return r;
}

static void devices_say(struct gpu *g)
{
    int n = snprintf(g->runs_on, sizeof g->runs_on, "driver %d.%d, ", g->driver / 1000,
                     g->driver % 1000 / 10);

    if (g->nccl.version)
        n += snprintf(g->runs_on + n, sizeof g->runs_on - (size_t)n, "NCCL %d.%d.%d, ",
                      g->nccl.version / 10000, g->nccl.version / 100 % 100, g->nccl.version % 100);
    snprintf(g->runs_on + n, sizeof g->runs_on - (size_t)n, "%u GPU%s", g->ndevices,
             g->ndevices == 1 ? "" : "s");
}

void devices_find(struct gpu *g)
{
    const struct cuda *cu = &g->cu;
    const char *what = "cuInit";
    cu_result r = cu->init(0);
    int n = 0;

    if (!r && (what = "cuDriverGetVersion"))
        r = cu->driver_version(&g->driver);
    if (!r && (what = "cuDeviceGetCount"))
        r = cu->device_count(&n);
    n = MIN(n, (int)GPU_MAX_DEVICES);
    if (!r && n > 0) {
        g->device = calloc((size_t)n, sizeof *g->device);
        what = "a device";
        for (int i = 0; g->device && i < n && !r; i++) {
            g->device[i].number = (unsigned)i;
            r = device_ask(g, &g->device[i]);
            g->total_bytes += g->device[i].bytes;
        }
    }
    if (r) {
        char text[128];

        cuda_text(cu, r, text, sizeof text);
        snprintf(g->why, sizeof g->why, "%s: %s", what, text);
    } else if (n <= 0 || !g->device) {
        snprintf(g->why, sizeof g->why, "the driver knows no GPU");
    } else {
        g->ndevices = (unsigned)n;
        devices_say(g);
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_failed(struct gdevice *d, const char *what, cu_result r, char why[SESSION_TEXT])
{
    char text[128];

    cuda_text(&d->g->cu, r, text, sizeof text);
    snprintf(why, SESSION_TEXT, "GPU %u, %.60s: %s", d->number, what, text);
    return COMMD_E_GPU_LOST;
}

static cu_result open_streams(struct gdevice *d)
{
    const struct cuda *cu = &d->g->cu;
    cu_ptr page = 0;
    cu_result r = CU_SUCCESS;

    if (!d->page)
        r = cu->host_alloc(&d->page, SESSION_PAGE, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    r = r ? r : cu->host_pointer(&page, d->page, 0);
    if (r)
        return r;
    memset(d->page, 0, SESSION_PAGE);
    for (unsigned i = 0; i < STREAMS && !r; i++) {
        struct gstream *s = &d->stream[i];

        s->passed = (_Atomic uint32_t *)((char *)d->page + i * CACHELINE);
        s->passed_dev = page + i * CACHELINE;
        if (!s->s)
            r = cu->stream_new(&s->s, CU_STREAM_NON_BLOCKING);
    }
    return r;
}

/* To load a kernel may wait for all that the GPU has to do. By default the driver puts that off
 * until the kernel is launched, behind whatever waits on the streams then. */
static int open_kernels(struct gdevice *d, char text[SESSION_TEXT])
{
    const struct cuda *cu = &d->g->cu;
    cu_result r = CU_SUCCESS;

    if (!d->module)
        r = gpu_image_load(cu, d->ordinal, gpu_images, &d->module, d->image, sizeof d->image);
    snprintf(text, SESSION_TEXT, "%s", d->image);
    if (r)
        return COMMD_E_GPU_LOST;
    for (unsigned i = 0; i < GPU_KERNELS; i++) {
        r = cu->module_function(&d->kernel[i], d->module, gpu_kernel_name(i));
        if (!r && cu->function_load)
            r = cu->function_load(d->kernel[i]);
        if (r)
            return open_failed(d, gpu_kernel_name(i), r, text);
    }
    return 0;
}

int device_open(struct gdevice *d, char text[SESSION_TEXT])
{
    const struct cuda *cu = &d->g->cu;
    cu_result r = d->ctx ? CU_SUCCESS : cu->primary_retain(&d->ctx, d->ordinal);

    r = r ? r : cu->ctx_set(d->ctx);
    if (r)
        return open_failed(d, "making a context", r, text);
    r = open_streams(d);
    if (r)
        return open_failed(d, "making streams", r, text);
    return open_kernels(d, text);
}

cu_result device_use(struct gdevice *d)
{
    cu_result r = CU_SUCCESS;

    assert_loop(d->g);
    assert(d->open);
    if (d->g->current != d)
        r = d->g->cu.ctx_set(d->ctx);
    if (!r)
        d->g->current = d;
    return r;
}

/* ---- streams --------------------------------------------------------------------------------- */

void device_check(struct gdevice *d, cu_result r, const char *what)
{
    char text[128], uuid[48];

    if (likely(r == CU_SUCCESS))
        return;
    cuda_text(&d->g->cu, r, text, sizeof text);
    device_text(&d->uuid, uuid);
    snprintf(d->state, sizeof d->state, "%.62s", text);
    gpu_fatal(d->g, "GPU %u (%s, %s) failed: %s: %s", d->number, d->name, uuid, what, text);
}

static bool stream_turn(struct gstream *s)
{
    uint32_t passed = atomic_load_explicit(s->passed, memory_order_acquire);
    struct gflight *f;
    bool moved = false;

    while ((f = STAILQ_FIRST(&s->flying)) && seq_reached(passed, f->ticket)) {
        assert(s->nflying && s->dev->g->nflying);
        STAILQ_REMOVE_HEAD(&s->flying, next);
        s->nflying--;
        s->dev->g->nflying--;
        op_landed(f);
        moved = true;
    }
    if (moved)
        s->since_ms = now_ms();
    return moved;
}

/* Does the flight wait for another operation, on another GPU of this node? */
static bool flight_is_behind(const struct gflight *f)
{
    const struct gop *op = f->op;
    const struct gflight *part =
        &op->flight[(f - op->flight) / op->group->nhere * op->group->nhere]; /* of the first GPU */

    for (unsigned u = 0; op->comm && u < op->group->nhere; u++) {
        const struct gstream *s = &op->group->here[u].dev->stream[STREAM_NCCL];
        const struct gflight *first = STAILQ_FIRST(&s->flying);

        if (first && first->op != op && !seq_reached(atomic_load(s->passed), part[u].ticket))
            return true;
    }
    return false;
}

/* Errors of what runs only show when they are asked for. */
static void stream_check(struct gstream *s, uint64_t now)
{
    struct gpu *g = s->dev->g;
    cu_result r = g->cu.stream_query(s->s);
    const struct gop *op = STAILQ_FIRST(&s->flying)->op;
    char text[SESSION_TEXT];

    if (r != CU_E_NOT_READY)
        device_check(s->dev, r, "a stream");
    if (flight_is_behind(STAILQ_FIRST(&s->flying)))
        s->since_ms = now;
    if (now <= s->since_ms + (uint64_t)g->timeout_ms) /* since_ms may be a little later */
        return;
    if (op->comm && op->comm->state == COMM_FAILED) /* its abort waits for the gate */
        return;
    snprintf(text, sizeof text, "GPU %u stands still for %d ms in %s of group \"%s\"",
             s->dev->number, g->timeout_ms, coll_name(op->of[0]->desc.coll), op->group->name);
    if (!op->comm || !comm_lives(op->comm->state))
        gpu_fatal(g, "%s", text);
    comm_fail(g, op->comm, "%s", text);
}

bool devices_turn(struct gpu *g)
{
    bool moved = false, check;
    uint64_t now;

    if (!g->nflying)
        return false;
    now = now_ms();
    check = now - g->looked_ms >= CHECK_MS;
    for (unsigned i = 0; i < g->ndevices * STREAMS; i++) {
        struct gstream *s = &g->device[i / STREAMS].stream[i % STREAMS];

        if (!s->nflying)
            continue;
        moved |= stream_turn(s);
        if (check && s->nflying)
            stream_check(s, now);
    }
    if (check)
        g->looked_ms = now;
    return moved;
}

/* ---- scratch --------------------------------------------------------------------------------- */

static void scratch_work(struct gjob *job)
{
    struct gstream *s = container_of(job, struct gstream, job);
    const struct cuda *cu = &s->dev->g->cu;
    cu_ptr more = 0;
    cu_result r = cu->ctx_set(s->dev->ctx);

    r = r ? r : cu->mem_alloc(&more, s->wanted);
    if (r) { /* the old scratch stays: operations may count on it */
        char text[128];

        s->failed = s->asked;
        cuda_text(cu, r, text, sizeof text);
        snprintf(s->why, sizeof s->why, "GPU %u has no %llu MiB for an intermediate result: %.60s",
                 s->dev->number, (unsigned long long)(s->wanted >> 20), text);
    } else {
        if (s->scratch)
            cu->mem_free(s->scratch);
        s->scratch = more;
        s->scratch_bytes = s->wanted;
    }
}

static void scratch_done(struct gjob *job)
{
    struct gstream *s = container_of(job, struct gstream, job);

    assert(s->growing && !s->nflying);
    s->growing = false;
}

int stream_scratch(struct gstream *s, uint64_t bytes)
{
    if (s->growing)
        return 0;
    if (bytes <= s->scratch_bytes)
        return 1;
    if (s->failed && bytes >= s->failed) {
        s->failed = 0;
        return COMMD_E_NOMEM;
    }
    if (s->nflying || s->dev->g->now) /* operations use the scratch that is there */
        return 0;
    s->failed = 0;
    s->asked = bytes;
    s->wanted = ALIGN_UP(MAX(bytes, (uint64_t)SCRATCH_LEAST), SCRATCH_PAGE);
    s->growing = true;
    s->job = (struct gjob){.work = scratch_work, .done = scratch_done};
    jobs_add(s->dev->g->jobs, &s->dev->g->lane, &s->job);
    return 0;
}
