/* commd_perf_gpu.c - buffers on a GPU, by the CUDA driver, which is loaded when --device cuda asks
 * for it. Ranks take the GPUs of their node in turn, by their number on the node where a launcher
 * tells it. */
#include <stdio.h>

#include "client/perf/commd_perf.h"
#include "shm/gpu/cuda.h"

struct perf_gpu {
    int rank;
    struct cuda cu;
    cu_device device;
    cu_context ctx;
    cu_stream stream;
    char name[128];
};

static int gpu_failed(const struct perf_gpu *gpu, const char *what, cu_result r)
{
    char text[160];

    cuda_text(&gpu->cu, r, text, sizeof(text));
    perf_complain(gpu->rank, "%s: %s", what, text);
    return PERF_FAILED;
}

static int local_rank(int rank)
{
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *text = getenv(names[i]);

        if (text && *text >= '0' && *text <= '9')
            return atoi(text);
    }
    return rank;
}

static int choose(struct perf_gpu *gpu)
{
    struct cuda *cu = &gpu->cu;
    int n = 0;
    cu_result r = cu->init(0);

    if (!r)
        r = cu->device_count(&n);
    if (!r && n == 0)
        r = CU_E_NO_DEVICE;
    if (!r)
        r = cu->device_get(&gpu->device, local_rank(gpu->rank) % n);
    if (!r)
        r = cu->device_name(gpu->name, (int)sizeof(gpu->name), gpu->device);
    if (!r)
        r = cu->primary_retain(&gpu->ctx, gpu->device);
    if (!r)
        r = cu->ctx_set(gpu->ctx);
    if (!r)
        r = cu->stream_new(&gpu->stream, CU_STREAM_NON_BLOCKING);
    return r ? gpu_failed(gpu, "--device cuda", r) : PERF_OK;
}

int perf_gpu_open(int rank, struct perf_gpu **ret_gpu)
{
    struct perf_gpu *gpu = calloc(1, sizeof(*gpu));
    char why[200];

    if (!gpu) {
        perf_complain(rank, "out of memory");
        return PERF_FAILED;
    }
    gpu->rank = rank;
    if (cuda_load(getenv("COMMD_LIBCUDA"), 0, &gpu->cu, why, sizeof(why))) {
        perf_complain(rank, "--device cuda: %s", why);
        free(gpu);
        return PERF_FAILED;
    }
    if (choose(gpu)) {
        perf_gpu_close(gpu);
        return PERF_FAILED;
    }
    *ret_gpu = gpu;
    return PERF_OK;
}

struct perf_gpu *perf_gpu_close(struct perf_gpu *gpu)
{
    if (!gpu)
        return NULL;
    if (gpu->stream)
        gpu->cu.stream_free(gpu->stream);
    if (gpu->ctx)
        gpu->cu.primary_release(gpu->device);
    free(gpu);
    return NULL;
}

const char *perf_gpu_name(const struct perf_gpu *gpu)
{
    return gpu->name;
}

void *perf_gpu_stream(const struct perf_gpu *gpu)
{
    return gpu->stream;
}

static int perf_gpu_alloc(struct perf_gpu *gpu, size_t bytes, void **ret_ptr)
{
    cu_ptr p = 0;
    cu_result r = gpu->cu.mem_alloc(&p, bytes);

    if (r)
        return gpu_failed(gpu, "allocating on the GPU", r);
    *ret_ptr = (void *)(uintptr_t)p; /* NOLINT: libcommd takes it as a pointer */
    return 0;
}

static void perf_gpu_free(struct perf_gpu *gpu, void *ptr)
{
    gpu->cu.mem_free((cu_ptr)(uintptr_t)ptr);
}

static int perf_gpu_wait(struct perf_gpu *gpu)
{
    cu_result r = gpu->cu.stream_synchronize(gpu->stream);

    return r ? gpu_failed(gpu, "waiting for the stream", r) : 0;
}

static int perf_gpu_copy(struct perf_gpu *gpu, void *to, const void *from, size_t bytes)
{
    cu_result r = gpu->cu.copy((cu_ptr)(uintptr_t)to, (cu_ptr)(uintptr_t)from, bytes, gpu->stream);

    return r ? gpu_failed(gpu, "copying", r) : perf_gpu_wait(gpu);
}

const struct perf_memory perf_gpu_memory = {
    .alloc = perf_gpu_alloc, .free = perf_gpu_free, .copy = perf_gpu_copy, .wait = perf_gpu_wait};
