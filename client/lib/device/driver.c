/* driver.c - see driver.h. The driver is found by RTLD_NOLOAD: at commd_connect() and when a group
 * is joined, and when a caller says that buffers are on a GPU. It stays loaded for good, so what
 * was found once needs no lock. Primary contexts are retained for good, too: the CUDA runtime uses
 * the same contexts, and a release could end them while it does. */
#include "client/lib/device/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>

enum { MOST_GPUS = 64, LAST_SPECIAL_STREAM = 2, CAPTURE_FIRST = 900, CAPTURE_LAST = 908 };

bool driver_seen;
static struct cuda table;
static char why_not[160];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cu_context primary[MOST_GPUS];

void driver_look(void)
{
    const char *path = getauxval(AT_SECURE) ? NULL : getenv("COMMD_LIBCUDA");

    pthread_mutex_lock(&lock);
    if (!driver_seen && cuda_load(path, 1, &table, why_not, sizeof why_not) == 0)
        __atomic_store_n(&driver_seen, true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

const struct cuda *driver(const char **ret_why)
{
    if (likely(__atomic_load_n(&driver_seen, __ATOMIC_ACQUIRE)))
        return &table;
    driver_look();
    if (ret_why)
        *ret_why = why_not[0] ? why_not : "this process has not loaded the CUDA driver";
    return __atomic_load_n(&driver_seen, __ATOMIC_ACQUIRE) ? &table : NULL;
}

static int code_of(cu_result r)
{
    switch (r) {
    case CU_E_OUT_OF_MEMORY:
        return COMMD_E_NOMEM;
    case CU_E_INVALID_VALUE:
    case CU_E_INVALID_CONTEXT:
    case CU_E_INVALID_HANDLE:
    case CU_E_INVALID_DEVICE:
    case CU_E_NOT_INITIALIZED:
    case CU_E_NOT_SUPPORTED:
        return COMMD_E_INVALID;
    default:
        return COMMD_E_GPU_LOST;
    }
}

int driver_error(const char *op, const char *call, cu_result r)
{
    char text[200];

    assert(driver_seen);
    if (likely(r == CU_SUCCESS))
        return 0;
    cuda_text(&table, r, text, sizeof text);
    return error_set(error_mine(), code_of(r), op, "%s: %s: %s", op, call, text);
}

bool driver_owns(const void *p, int *ret_gpu)
{
    int ask[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_IS_MANAGED, CU_POINTER_DEVICE_ORDINAL};
    unsigned type = 0, managed = 0;
    int gpu = -1;
    void *answers[] = {&type, &managed, &gpu};

    assert(driver_seen);
    if (!p || table.pointer_attributes(ARRAY_LEN(ask), ask, answers, (cu_ptr)(uintptr_t)p))
        return false;
    *ret_gpu = gpu;
    return type == CU_MEMORYTYPE_DEVICE || managed;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int primary_of(const char *op, int gpu, cu_context *ret_ctx)
{
    cu_result r = 0;

    assert(driver_seen);
    if (gpu < 0 || gpu >= MOST_GPUS)
        return error_set(error_mine(), COMMD_E_INVALID, op,
                         "%s: GPU %d is more than libcommd knows", op, gpu);
    pthread_mutex_lock(&lock);
    if (!primary[gpu]) {
        cu_device dev;

        r = table.device_get(&dev, gpu);
        if (!r)
            r = table.primary_retain(&primary[gpu], dev);
    }
    *ret_ctx = primary[gpu];
    pthread_mutex_unlock(&lock);
    return driver_error(op, "cuDevicePrimaryCtxRetain", r);
}

/* The GPU of the current context; -1: no context is current. */
static int current_gpu(void)
{
    cu_device dev;

    return table.ctx_device(&dev) ? -1 : dev;
}

static int context_of(const char *op, void *stream, int gpu, cu_context current,
                      cu_context *ret_ctx)
{
    cu_result r;

    assert(gpu >= -1);
    if ((uintptr_t)stream > LAST_SPECIAL_STREAM) {
        r = table.stream_context(stream, ret_ctx);
        return driver_error(op, "the stream (cuStreamGetCtx)", r);
    }
    *ret_ctx = current;
    if (current && (gpu < 0 || current_gpu() == gpu))
        return 0;
    return primary_of(op, MAX(gpu, 0), ret_ctx);
}

static int refuse_capture(const char *op, void *stream)
{
    int status = CU_CAPTURE_NONE;
    cu_result r = table.stream_capturing(stream, &status);

    if (r && (r < CAPTURE_FIRST || r > CAPTURE_LAST))
        return driver_error(op, "the stream (cuStreamIsCapturing)", r);
    if (!r && status == CU_CAPTURE_NONE)
        return 0;
    return error_set(error_mine(), COMMD_E_INVALID, op,
                     "%s: the stream is being captured into a graph, of which operations of commd "
                     "cannot be part; call it outside of the capture",
                     op);
}

int scope_enter_context(const char *op, cu_context ctx, struct scope *ret_scope)
{
    cu_context current = NULL;
    cu_result r = 0;

    assert(driver_seen);
    table.ctx_get(&current);
    *ret_scope = (struct scope){.ctx = ctx};
    if (ctx != current) {
        r = table.ctx_push(ctx);
        ret_scope->pushed = !r;
    }
    return driver_error(op, "cuCtxPushCurrent", r);
}

int scope_enter(const char *op, void *stream, int gpu, struct scope *ret_scope)
{
    cu_context current = NULL, ctx = NULL;
    int r;

    assert(gpu >= -1);
    table.ctx_get(&current);
    r = context_of(op, stream, gpu, current, &ctx);
    if (!r)
        r = scope_enter_context(op, ctx, ret_scope);
    if (r)
        return r;
    r = refuse_capture(op, stream);
    if (r)
        scope_leave(ret_scope);
    return r;
}

int scope_enter_known(const char *op, void *stream, cu_context ctx, struct scope *ret_scope)
{
    return stream ? scope_enter(op, stream, -1, ret_scope)
                  : scope_enter_context(op, ctx, ret_scope);
}

void scope_leave(struct scope *s)
{
    cu_context unused;

    assert(driver_seen || !s->pushed);
    if (s->pushed)
        table.ctx_pop(&unused);
}
