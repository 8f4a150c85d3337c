/* fake_device.c - devices, as many as FAKECUDA_DEVICES says, and their primary contexts. What tells
 * devices apart, uuid and bus id, follows from the box's name (FAKECUDA_HOST) and the ordinal, so
 * processes of one "box" agree on it, and two boxes on one machine never have the same. */
#include "tests/fakecuda/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
__thread bool fake_in_host_fn;

static struct fake_device devices[FAKE_DEVICES];
static atomic_int count = -1; /* -1: not initialized */
static atomic_bool forked;    /* the driver does not survive fork() */
static __thread cu_context stack[16];
static __thread unsigned depth;

/* ---- which there are ------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void identify(struct fake_device *d, unsigned physical)
{
    uint64_t h = 0xcbf29ce484222325u, words[2];
    char host[128];

    if (!fake_knob_text("FAKECUDA_HOST", host, sizeof host) && gethostname(host, sizeof host))
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    for (const char *c = host; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    words[0] = mix(h + physical);
    words[1] = mix(words[0] ^ h);
    memcpy(d->uuid.bytes, words, sizeof d->uuid.bytes);
    snprintf(d->bus_id, sizeof d->bus_id, "%04x:%02x:00.0", (unsigned)(h >> 48) & 0xffff,
             (physical + 1) & 0xff);
}

static void uuid_text(const struct cu_uuid *uuid, char *text, size_t len)
{
    size_t at = (size_t)snprintf(text, len, "GPU");

    for (unsigned i = 0; i < 16 && at < len; i++)
        at += (size_t)snprintf(text + at, len - at, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               (unsigned char)uuid->bytes[i]);
}

/* CUDA_VISIBLE_DEVICES: ordinals or uuids; what follows the first that does not exist is left out.
 */
static int choose(const char *list, unsigned physical)
{
    int n = 0;

    for (const char *item = list; *item && n < FAKE_DEVICES;) {
        size_t len = strcspn(item, ",");
        char *end, text[64];
        unsigned long k = strtoul(item, &end, 10);

        if (end == item || (size_t)(end - item) != len) {
            for (k = 0; k < physical; k++) {
                identify(&devices[n], (unsigned)k);
                uuid_text(&devices[n].uuid, text, sizeof text);
                if (len >= 5 && !strncasecmp(item, text, len))
                    break;
            }
        }
        if (k >= physical)
            break;
        identify(&devices[n++], (unsigned)k);
        item += len;
        item += *item == ',';
    }
    return n;
}

static void after_fork(void)
{
    atomic_store(&forked, true);
}

cu_result cuInit(unsigned flags)
{
    unsigned physical;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;

    FAKE_ENTER(FAKE_ANYTIME);
    if (flags)
        return CU_E_INVALID_VALUE;
    if (atomic_load(&forked))
        return CU_E_NOT_INITIALIZED;
    pthread_mutex_lock(&fake_lock);
    if (atomic_load(&count) < 0) {
        physical = (unsigned)fake_knob("FAKECUDA_DEVICES", 1);
        physical = physical < FAKE_DEVICES ? physical : FAKE_DEVICES;
        if (list)
            n = choose(list, physical);
        else
            for (; n < (int)physical; n++)
                identify(&devices[n], (unsigned)n);
        for (int i = 0; i < n; i++)
            devices[i].ctx.dev = i;
        if (n > 0) {
            pthread_atfork(NULL, NULL, after_fork);
            atomic_store(&count, n);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return atomic_load(&count) > 0 ? CU_SUCCESS : CU_E_NO_DEVICE;
}

cu_result fake_initialized(void)
{
    return atomic_load(&count) < 0 || atomic_load(&forked) ? CU_E_NOT_INITIALIZED : CU_SUCCESS;
}

int fake_device_count(void)
{
    return atomic_load(&count);
}

struct fake_device *fake_device(cu_device dev)
{
    return dev >= 0 && dev < atomic_load(&count) ? &devices[dev] : NULL;
}

cu_device fake_device_of(const struct cu_uuid *uuid)
{
    for (int i = 0; i < atomic_load(&count); i++)
        if (!memcmp(&devices[i].uuid, uuid, sizeof *uuid))
            return i;
    return -1;
}

/* ---- what the driver says of them ------------------------------------------------------------ */

cu_result cuDriverGetVersion(int *version)
{
    FAKE_ENTER(FAKE_ANYTIME);
    if (!version)
        return CU_E_INVALID_VALUE;
    *version = (int)fake_knob("FAKECUDA_VERSION", 13000);
    return CU_SUCCESS;
}

cu_result cuDeviceGetCount(int *n)
{
    FAKE_ENTER(FAKE_INIT);
    if (!n)
        return CU_E_INVALID_VALUE;
    *n = atomic_load(&count);
    return CU_SUCCESS;
}

cu_result cuDeviceGet(cu_device *dev, int ordinal)
{
    FAKE_ENTER(FAKE_INIT);
    if (!dev)
        return CU_E_INVALID_VALUE;
    if (!fake_device(ordinal))
        return CU_E_INVALID_DEVICE;
    *dev = ordinal;
    return CU_SUCCESS;
}

cu_result cuDeviceGetName(char *name, int len, cu_device dev)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev))
        return CU_E_INVALID_DEVICE;
    if (!name || len <= 0)
        return CU_E_INVALID_VALUE;
    snprintf(name, (size_t)len, "Fake GPU");
    return CU_SUCCESS;
}

cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device dev)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev))
        return CU_E_INVALID_DEVICE;
    if (!uuid)
        return CU_E_INVALID_VALUE;
    *uuid = fake_device(dev)->uuid;
    return CU_SUCCESS;
}

cu_result cuDeviceGetPCIBusId(char *id, int len, cu_device dev)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev))
        return CU_E_INVALID_DEVICE;
    if (!id || len < 13)
        return CU_E_INVALID_VALUE;
    snprintf(id, (size_t)len, "%s", fake_device(dev)->bus_id);
    return CU_SUCCESS;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device dev)
{
    bool vmm = !fake_knob("FAKECUDA_NO_VMM", 0);

    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev))
        return CU_E_INVALID_DEVICE;
    if (!value || attribute < 1 || attribute > 200)
        return CU_E_INVALID_VALUE;
    *value = attribute == CU_ATTR_MAX_SHARED_MEMORY    ? 48 << 10
             : attribute == CU_ATTR_MULTIPROCESSORS    ? 4
             : attribute == CU_ATTR_UNIFIED_ADDRESSING ? 1
             : attribute == CU_ATTR_CC_MAJOR           ? (int)fake_knob("FAKECUDA_CC", FAKE_CC) / 10
             : attribute == CU_ATTR_CC_MINOR           ? (int)fake_knob("FAKECUDA_CC", FAKE_CC) % 10
             : attribute == CU_ATTR_VMM                ? vmm
             : attribute == CU_ATTR_POSIX_FD           ? vmm
                                                       : 0;
    return CU_SUCCESS;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device dev)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev))
        return CU_E_INVALID_DEVICE;
    if (!bytes)
        return CU_E_INVALID_VALUE;
    *bytes = fake_knob("FAKECUDA_MEMORY", 16ull << 30);
    return CU_SUCCESS;
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    uint64_t used;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!free_bytes || !total)
        return CU_E_INVALID_VALUE;
    used = atomic_load(&fake_current()->used);
    *total = fake_knob("FAKECUDA_MEMORY", 16ull << 30);
    *free_bytes = *total > used ? *total - used : 0;
    return CU_SUCCESS;
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device dev, cu_device peer)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_device(dev) || !fake_device(peer))
        return CU_E_INVALID_DEVICE;
    if (!can)
        return CU_E_INVALID_VALUE;
    *can = dev != peer && !fake_knob("FAKECUDA_NO_PEER", 0);
    return CU_SUCCESS;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static bool is_context(cu_context ctx)
{
    for (int i = 0; i < atomic_load(&count); i++)
        if (ctx == &devices[i].ctx)
            return true;
    return false;
}

cu_context fake_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *ctx, cu_device dev)
{
    struct fake_device *d;

    FAKE_ENTER(FAKE_INIT);
    d = fake_device(dev);
    if (!d)
        return CU_E_INVALID_DEVICE;
    if (!ctx)
        return CU_E_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    d->ctx.retained++;
    pthread_mutex_unlock(&fake_lock);
    *ctx = &d->ctx;
    return fake_stream_default(&d->ctx);
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device dev)
{
    struct fake_device *d;
    int left;

    FAKE_ENTER(FAKE_INIT);
    d = fake_device(dev);
    if (!d)
        return CU_E_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    left = d->ctx.retained ? --d->ctx.retained : -1;
    pthread_mutex_unlock(&fake_lock);
    if (left < 0)
        return CU_E_INVALID_CONTEXT;
    if (left == 0) {
        fake_context_drain(&d->ctx);
        fake_memory_release_device(dev);
    }
    return CU_SUCCESS;
}

cu_result cuCtxGetCurrent(cu_context *ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (!ctx)
        return CU_E_INVALID_VALUE;
    *ctx = fake_current();
    return CU_SUCCESS;
}

cu_result cuCtxSetCurrent(cu_context ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (ctx && !is_context(ctx))
        return CU_E_INVALID_CONTEXT;
    depth -= depth > 0;
    if (ctx)
        stack[depth++] = ctx;
    return CU_SUCCESS;
}

cu_result cuCtxPushCurrent_v2(cu_context ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (!ctx || !is_context(ctx))
        return CU_E_INVALID_CONTEXT;
    if (depth == sizeof stack / sizeof stack[0])
        return CU_E_OUT_OF_MEMORY;
    stack[depth++] = ctx;
    return CU_SUCCESS;
}

cu_result cuCtxPopCurrent_v2(cu_context *ctx)
{
    FAKE_ENTER(FAKE_INIT);
    if (!depth)
        return CU_E_INVALID_CONTEXT;
    depth--;
    if (ctx)
        *ctx = stack[depth];
    return CU_SUCCESS;
}

cu_result cuCtxGetDevice(cu_device *dev)
{
    FAKE_ENTER(FAKE_INIT);
    if (!fake_current())
        return CU_E_INVALID_CONTEXT;
    if (!dev)
        return CU_E_INVALID_VALUE;
    *dev = fake_current()->dev;
    return CU_SUCCESS;
}

cu_result cuCtxSynchronize(void)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return fake_context_drain(fake_current());
}

cu_result cuCtxEnablePeerAccess(cu_context peer, unsigned flags)
{
    uint32_t bit;
    bool had;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!peer || !is_context(peer))
        return CU_E_INVALID_CONTEXT;
    if (flags || peer == fake_current())
        return peer == fake_current() ? CU_E_INVALID_DEVICE : CU_E_INVALID_VALUE;
    if (fake_knob("FAKECUDA_NO_PEER", 0))
        return FAKE_E_PEER_UNSUPPORTED;
    bit = 1u << peer->dev;
    pthread_rwlock_wrlock(&memory_lock);
    had = atomic_fetch_or(&fake_current()->peers, bit) & bit;
    pthread_rwlock_unlock(&memory_lock);
    return had ? FAKE_E_PEER_ENABLED : CU_SUCCESS;
}

void fakecuda_tie(cu_device dev, cu_device peer)
{
    if (fake_device(dev) && fake_device(peer) && dev != peer && !fake_knob("FAKECUDA_NO_PEER", 0))
        atomic_fetch_or(&fake_device(dev)->ctx.peers, 1u << peer);
}

void fakecuda_settle(cu_device dev)
{
    if (fake_device(dev))
        fake_context_settle(&fake_device(dev)->ctx);
}

void fake_break(cu_context ctx, cu_result code)
{
    cu_result none = CU_SUCCESS;

    atomic_compare_exchange_strong(&ctx->sticky, &none, code);
    pthread_mutex_lock(&fake_lock);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void fakecuda_break(cu_device dev, cu_result code)
{
    if (fake_device(dev))
        fake_break(&fake_device(dev)->ctx, code);
}

int fakecuda_broken(cu_device dev)
{
    return fake_device(dev) ? atomic_load(&fake_device(dev)->ctx.sticky) : CU_E_INVALID_DEVICE;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct {
    cu_result code;
    const char *name, *text;
} errors[] = {
    {CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CU_E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_E_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CU_E_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CU_E_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {CU_E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CU_E_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CU_E_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CU_E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_E_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CU_E_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CU_E_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {FAKE_E_PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CU_E_UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {CU_E_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CU_E_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CU_E_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CU_E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {FAKE_E_PEER_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {FAKE_E_CONTEXT_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {FAKE_E_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {FAKE_E_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {FAKE_E_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CU_E_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CU_E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {FAKE_E_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CU_E_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static cu_result describe(cu_result r, const char **said, bool name)
{
    if (!said)
        return CU_E_INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code != r)
            continue;
        *said = name ? errors[i].name : errors[i].text;
        return CU_SUCCESS;
    }
    *said = NULL;
    return CU_E_INVALID_VALUE;
}

cu_result cuGetErrorName(cu_result r, const char **name)
{
    return describe(r, name, true);
}

cu_result cuGetErrorString(cu_result r, const char **text)
{
    return describe(r, text, false);
}
