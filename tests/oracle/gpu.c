/* gpu.c - buffers on a GPU: that of tests/fakecuda. The input comes late, by a copy on the call's
 * stream, and the result is taken by one on a stream that has been told to wait: so a wait that is
 * missing between streams and operations shows as wrong data, the more so with FAKECUDA_DELAY_US.
 *
 * Each rank has a GPU of its own: on one of all, in one process, their default stream would be one,
 * and a rank that waits on it would be in the way of the rank that it waits for. */
#include "tests/lib/env.h"
#include "tests/oracle/oracle.h"

#include <stdio.h>

#include "client/lib/device/device.h"

static struct cuda cu;
static cu_context primary[MAX_WORLD];

static void must(cu_result r, const char *what)
{
    char text[128];

    if (!r)
        return;
    cuda_text(&cu, r, text, sizeof text);
    fprintf(stderr, "%s: %s\n", what, text);
    abort();
}

void gpu_load(void)
{
    const char *path = getenv("COMMD_LIBCUDA");
    char why[256], devices[16];

    snprintf(devices, sizeof devices, "%d", MAX_WORLD);
    env_set("FAKECUDA_DEVICES", devices);
    env_set("COMMD_LIBCUDA", path ? path : "tests/fakecuda/libcuda.so.1");
    if (cuda_load(getenv("COMMD_LIBCUDA"), 0, &cu, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    must(cu.init(0), "cuInit");
    for (int k = 0; k < MAX_WORLD; k++)
        must(cu.primary_retain(&primary[k], k), "cuDevicePrimaryCtxRetain");
    driver_look();
    if (!driver_seen)
        abort();
}

bool is_on_gpu(const struct op_spec *op, unsigned rank)
{
    return op->gpu >> rank & 1;
}

void gpu_rank_begin(struct gpu_rank *r, unsigned rank)
{
    must(cu.ctx_set(primary[rank]), "cuCtxSetCurrent");
    for (unsigned i = 1; i < GPU_STREAMS; i++) /* 0: the default stream */
        must(cu.stream_new((cu_stream *)&r->stream[i], i % 2 ? CU_STREAM_NON_BLOCKING : 0),
             "stream");
}

void gpu_rank_end(struct gpu_rank *r)
{
    for (unsigned i = 1; i < GPU_STREAMS; i++)
        must(cu.stream_free(r->stream[i]), "cuStreamDestroy");
}

void gpu_memory_new(struct memory *m)
{
    cu_ptr p;
    void *image;

    must(cu.mem_alloc(&p, m->bytes), "cuMemAlloc");
    must(cu.host_alloc(&image, m->bytes, 0), "cuMemHostAlloc");
    m->mem = (uint8_t *)(uintptr_t)p;
    m->image = image;
}

void gpu_memory_free(struct memory *m)
{
    must(cu.mem_free((cu_ptr)(uintptr_t)m->mem), "cuMemFree");
    must(cu.host_free(m->image), "cuMemFreeHost");
}

static void copy(void *to, const void *from, size_t n, void *stream)
{
    must(cu.copy((cu_ptr)(uintptr_t)to, (cu_ptr)(uintptr_t)from, n, stream), "cuMemcpyAsync");
}

static void late(struct memory *m, void *stream)
{
    if (!m->mem)
        return;
    memcpy(m->image, m->mem, m->bytes);
    memset(m->mem, 0x5a, m->bytes); /* what is there before the stream comes to it */
    copy(m->mem, m->image, m->bytes, stream);
}

void gpu_part_fill(struct part *p, void *stream)
{
    p->op.stream = stream;
    /* what has no elements may have no address that says where it is */
    if (p->spec->seed >> 30 & 1 || !(all_elements(p->spec, p->world, true, p->rank) +
                                     all_elements(p->spec, p->world, false, p->rank)))
        p->op.memory = COMMD_MEMORY_CUDA;
    late(&p->send, stream);
    late(&p->recv, stream);
}

void gpu_part_take(struct part *p, void *stream)
{
    struct memory *both[] = {&p->send, &p->recv};

    for (unsigned i = 0; i < 2; i++)
        if (both[i]->mem)
            copy(both[i]->image, both[i]->mem, both[i]->bytes, stream);
    must(cu.stream_synchronize(stream), "cuStreamSynchronize");
    for (unsigned i = 0; i < 2; i++)
        if (both[i]->mem)
            memcpy(both[i]->mem, both[i]->image, both[i]->bytes);
}
