/* fake_memory.c - device memory, a memfd for each allocation, and host memory that the driver
 * knows. Only addresses that are listed here are the driver's. */
#include "tests/fakecuda/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_rwlock_t memory_lock;
static struct fake_memory *memories;
static uint64_t last_id;
static unsigned exposed;
static const char PREFIX[] = "fakecuda-";

__attribute__((constructor)) static void lock_begins(void)
{
    pthread_rwlockattr_t attr; /* workers must not starve cuMemFree() */

    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&memory_lock, &attr);
    pthread_rwlockattr_destroy(&attr);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What new memory has in it. */
static bool dirty(int fd, size_t bytes)
{
    uint64_t byte = fake_knob("FAKECUDA_DIRTY", 0);
    void *p;

    if (!byte)
        return true;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return false;
    memset(p, (int)byte, bytes);
    munmap(p, bytes);
    return true;
}

int fake_memfd(cu_device dev, size_t bytes)
{
    char name[64];
    int at = snprintf(name, sizeof name, "%s", PREFIX), fd;

    for (unsigned i = 0; i < 16; i++)
        at += snprintf(name + at, sizeof name - (size_t)at, "%02x",
                       (unsigned char)fake_device(dev)->uuid.bytes[i]);
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ||
        !dirty(fd, bytes)) {
        close(fd);
        return -1;
    }
    return fd;
}

cu_device fake_memfd_device(int fd)
{
    char path[32], name[128];
    struct cu_uuid uuid;
    const char *hex;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    n = readlink(path, name, sizeof name - 1);
    if (n < 0)
        return -1;
    name[n] = '\0';
    hex = strstr(name, PREFIX);
    if (strncmp(name, "/memfd:", 7) || hex != name + 7)
        return -1;
    hex += sizeof PREFIX - 1;
    for (unsigned i = 0; i < 16; i++) {
        unsigned byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return -1;
        uuid.bytes[i] = (char)byte;
    }
    return fake_device_of(&uuid);
}

/* ---- the list -------------------------------------------------------------------------------- */

struct fake_memory *fake_memory_at(cu_ptr p)
{
    for (struct fake_memory *m = memories; m; m = m->next)
        if (p >= m->p && p - m->p < m->bytes)
            return m;
    return NULL;
}

struct fake_memory *fake_ipc_find(const struct cu_ipc_mem *handle)
{
    for (struct fake_memory *m = memories; m; m = m->next)
        if (m->kind == FAKE_IMPORTED && !memcmp(&m->handle, handle, sizeof *handle))
            return m;
    return NULL;
}

bool fake_imported(bool (*is)(const struct fake_memory *m, const void *arg), const void *arg)
{
    for (struct fake_memory *m = memories; m; m = m->next)
        if (m->kind == FAKE_IMPORTED && is(m, arg))
            return true;
    return false;
}

cu_result fake_memory_add(struct fake_memory memory, struct fake_memory **ret_memory)
{
    struct fake_memory *m = malloc(sizeof *m);
    bool device = memory.fd >= 0;
    cu_result r = m ? CU_SUCCESS : CU_E_OUT_OF_MEMORY;

    if (!r && device && !memory.p) {
        memory.p = fake_range_take(memory.bytes + FAKE_GRANULARITY, 0); /* nothing lies behind */
        if (!memory.p)
            r = CU_E_OUT_OF_MEMORY;
        else if (!fake_range_map(memory.p, memory.bytes, memory.fd, 0))
            r = CU_E_MAP_FAILED;
    }
    if (r) {
        if (memory.p && device && memory.kind != FAKE_MAPPED)
            fake_range_give(memory.p, memory.bytes);
        if (device)
            close(memory.fd);
        free(m);
        return r;
    }
    pthread_rwlock_wrlock(&memory_lock);
    *m = memory;
    m->id = ++last_id;
    m->next = memories;
    memories = m;
    pthread_rwlock_unlock(&memory_lock);
    if (ret_memory)
        *ret_memory = m;
    return CU_SUCCESS;
}

void fake_memory_remove(struct fake_memory *memory)
{
    struct fake_memory **at = &memories;

    while (*at != memory)
        at = &(*at)->next;
    *at = memory->next;
    switch (memory->kind) {
    case FAKE_PLAIN:
    case FAKE_POOLED:
        atomic_fetch_sub(&fake_device(memory->dev)->ctx.used, memory->bytes);
        __attribute__((fallthrough));
    case FAKE_IMPORTED:
        fake_range_unmap(memory->p, memory->bytes);
        fake_range_give(memory->p, memory->bytes);
        close(memory->fd);
        break;
    case FAKE_MAPPED: /* the addresses stay reserved */
        fake_range_unmap(memory->p, memory->bytes);
        close(memory->fd);
        fake_vmm_unref(memory->vmm);
        break;
    case FAKE_HOST:
        munmap((void *)memory->p, memory->bytes);
        break;
    case FAKE_REGISTERED:
        break;
    }
    free(memory);
}

void fake_memory_release_device(cu_device dev)
{
    pthread_rwlock_wrlock(&memory_lock);
    for (struct fake_memory *m = memories, *next; m; m = next) {
        next = m->next;
        if (m->dev == dev && m->kind != FAKE_MAPPED)
            fake_memory_remove(m);
    }
    pthread_rwlock_unlock(&memory_lock);
}

/* ---- what a device may touch ----------------------------------------------------------------- */

static bool may(const struct fake_memory *m, cu_context ctx)
{
    uint32_t own = 1u << ctx->dev;

    if (m->fd < 0)
        return true;
    return m->access & (m->kind == FAKE_MAPPED ? own : own | ctx->peers);
}

bool fake_outruns(cu_ptr p, size_t bytes)
{
    struct fake_memory *m = fake_memory_at(p);

    return m && m->kind != FAKE_MAPPED && bytes > m->bytes - (p - m->p);
}

/* @copy: the driver brings plain allocations over, however it does that. */
static void *reach(cu_ptr p, size_t bytes, cu_context ctx, bool copy)
{
    struct fake_memory *m = fake_memory_at(p);

    if (!m)
        return fake_range_ours(p) || !p ? NULL : (void *)p;
    for (cu_ptr at = p; at - p < bytes; at = m->p + m->bytes) { /* pieces may lie side by side */
        m = fake_memory_at(at);
        if (!m || !(may(m, ctx) || (copy && m->kind == FAKE_PLAIN)) ||
            fake_outruns(at, bytes - (at - p)))
            return NULL;
    }
    m = fake_memory_at(p);
    return m->fd < 0 ? (void *)p : fake_range_view(p);
}

void *fake_reach(cu_ptr p, size_t bytes, cu_context ctx)
{
    return reach(p, bytes, ctx, false);
}

void *fake_reach_copy(cu_ptr p, size_t bytes, cu_context ctx)
{
    return reach(p, bytes, ctx, true);
}

bool fake_foreign(cu_ptr p, cu_context ctx)
{
    struct fake_memory *m = fake_memory_at(p);

    return m && !may(m, ctx);
}

bool fake_value_address(cu_ptr p, size_t bytes, cu_context ctx)
{
    return p % bytes == 0 && fake_memory_at(p) && fake_reach(p, bytes, ctx);
}

void *fakecuda_view(cu_ptr p, size_t bytes, cu_device dev)
{
    void *view;

    pthread_rwlock_rdlock(&memory_lock);
    view =
        fake_device(dev) && fake_memory_at(p) ? fake_reach(p, bytes, &fake_device(dev)->ctx) : NULL;
    if (!view)
        pthread_rwlock_unlock(&memory_lock);
    return view;
}

int fakecuda_peer_reaches(cu_ptr p, size_t bytes, cu_device dev)
{
    bool there;

    pthread_rwlock_rdlock(&memory_lock);
    there = fake_device(dev) && fake_memory_at(p) &&
            fake_reach_copy(p, bytes, &fake_device(dev)->ctx); /* plain memory of any device */
    pthread_rwlock_unlock(&memory_lock);
    return there;
}

void fakecuda_view_end(void)
{
    pthread_rwlock_unlock(&memory_lock);
}

/* Kernels' twins follow the device's addresses, also those that they find in structs: so while one
 * runs, the program can see device memory too. memory_lock is held. */
void fake_memory_expose(bool on)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    if (!fake_range_hidden())
        return;
    pthread_mutex_lock(&lock);
    if (on ? exposed++ == 0 : --exposed == 0)
        for (struct fake_memory *m = memories; m; m = m->next)
            if (m->fd >= 0)
                mprotect((void *)m->p, m->bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* ---- device memory --------------------------------------------------------------------------- */

static cu_result allocate(cu_ptr *p, size_t bytes, enum fake_kind kind)
{
    cu_context ctx = fake_current();
    struct fake_memory *m;
    cu_result r;
    int fd;

    if (!p || !bytes)
        return CU_E_INVALID_VALUE;
    if (bytes >= fake_knob("FAKECUDA_OOM_AT", UINT64_MAX) || bytes > SIZE_MAX / 2)
        return CU_E_OUT_OF_MEMORY;
    bytes = (bytes + FAKE_GRANULARITY - 1) & ~((size_t)FAKE_GRANULARITY - 1);
    if (atomic_fetch_add(&ctx->used, bytes) + bytes > fake_knob("FAKECUDA_MEMORY", 16ull << 30))
        fd = -1;
    else
        fd = fake_memfd(ctx->dev, bytes);
    r = fd < 0 ? CU_E_OUT_OF_MEMORY
               : fake_memory_add((struct fake_memory){.kind = kind,
                                                      .bytes = bytes,
                                                      .fd = fd,
                                                      .dev = ctx->dev,
                                                      .access = 1u << ctx->dev},
                                 &m);
    if (r)
        atomic_fetch_sub(&ctx->used, bytes);
    else
        *p = m->p;
    return r;
}

cu_result cuMemAlloc_v2(cu_ptr *p, size_t bytes)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return allocate(p, bytes, FAKE_PLAIN);
}

cu_result fakecuda_alloc_unshareable(cu_ptr *p, size_t bytes)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return allocate(p, bytes, FAKE_POOLED);
}

/* As the hardware's, this waits for everything that the device has to do, so it never returns
 * where that waits for the caller. */
cu_result cuMemFree_v2(cu_ptr p)
{
    struct fake_memory *m;
    cu_context ctx;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!p)
        return CU_SUCCESS;
    pthread_rwlock_rdlock(&memory_lock);
    m = fake_memory_at(p);
    ctx = m && m->p == p && m->kind <= FAKE_POOLED ? &fake_device(m->dev)->ctx : NULL;
    pthread_rwlock_unlock(&memory_lock);
    if (!ctx)
        return CU_E_INVALID_VALUE;
    r = fake_context_settle(ctx);
    if (r)
        return r;
    pthread_rwlock_wrlock(&memory_lock);
    if (fake_memory_at(p) == m)
        fake_memory_remove(m);
    else
        r = CU_E_INVALID_VALUE;
    pthread_rwlock_unlock(&memory_lock);
    return r;
}

cu_result cuMemGetAddressRange_v2(cu_ptr *base, size_t *bytes, cu_ptr p)
{
    struct fake_memory *m;

    FAKE_ENTER(FAKE_CONTEXT);
    pthread_rwlock_rdlock(&memory_lock);
    m = fake_memory_at(p);
    m = m && m->fd >= 0 ? m : NULL;
    if (m && base)
        *base = m->p;
    if (m && bytes)
        *bytes = m->bytes;
    pthread_rwlock_unlock(&memory_lock);
    return m ? CU_SUCCESS : CU_E_NOT_FOUND;
}

/* ---- what a pointer is ----------------------------------------------------------------------- */

enum {
    WIDE = 1 << CU_POINTER_BUFFER_ID | 1 << CU_POINTER_RANGE_START | 1 << CU_POINTER_RANGE_SIZE |
           1 << CU_POINTER_ALLOWED_HANDLES | 1 << CU_POINTER_MAPPING_SIZE |
           1 << CU_POINTER_MAPPING_BASE | 1 << CU_POINTER_BLOCK_ID,
    KNOWN = WIDE | 1 << CU_POINTER_MEMORY_TYPE | 1 << CU_POINTER_IS_MANAGED |
            1 << CU_POINTER_DEVICE_ORDINAL | 1 << CU_POINTER_IS_LEGACY_IPC,
};

/* Of what is mapped it is all that was reserved (H100, driver 580). */
static struct fake_range range_of(const struct fake_memory *m)
{
    return m->kind == FAKE_MAPPED ? fake_vmm_reserved(m->p) : (struct fake_range){m->p, m->bytes};
}

static void attribute(int which, void *data, const struct fake_memory *m)
{
    bool device = m && m->fd >= 0;
    uint32_t word = 0;
    uint64_t wide = 0;

    switch (which) {
    case CU_POINTER_MEMORY_TYPE:
        word = !m ? 0 : device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_DEVICE_ORDINAL:
        word = m ? (uint32_t)m->dev : (uint32_t)-2;
        break;
    case CU_POINTER_IS_LEGACY_IPC:
        word = m && m->kind == FAKE_PLAIN && !fake_knob("FAKECUDA_NO_IPC", 0);
        break;
    case CU_POINTER_BUFFER_ID:
    case CU_POINTER_BLOCK_ID:
        wide = m ? m->id : 0;
        break;
    case CU_POINTER_RANGE_START:
        wide = m ? range_of(m).p : 0;
        break;
    case CU_POINTER_RANGE_SIZE:
        wide = m ? range_of(m).bytes : 0;
        break;
    case CU_POINTER_MAPPING_BASE:
        wide = m ? m->p : 0;
        break;
    case CU_POINTER_MAPPING_SIZE:
        wide = m ? m->bytes : 0;
        break;
    case CU_POINTER_ALLOWED_HANDLES: /* 64 bits: who passes less finds out here */
        wide = m && m->kind == FAKE_MAPPED ? fake_vmm_handle_types(m->vmm) : 0;
        break;
    default: /* CU_POINTER_IS_MANAGED: never */
        break;
    }
    if (WIDE >> which & 1)
        memcpy(data, &wide, sizeof wide);
    else
        memcpy(data, &word, sizeof word);
}

cu_result cuPointerGetAttributes(unsigned n, int *attributes, void **data, cu_ptr p)
{
    FAKE_ENTER(FAKE_INIT);
    if (!n || !attributes || !data)
        return CU_E_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if (attributes[i] < 0 || attributes[i] > 31 || !(KNOWN >> attributes[i] & 1) || !data[i])
            return CU_E_INVALID_VALUE;
    pthread_rwlock_rdlock(&memory_lock);
    for (unsigned i = 0; i < n; i++)
        attribute(attributes[i], data[i], fake_memory_at(p));
    pthread_rwlock_unlock(&memory_lock);
    return CU_SUCCESS;
}

/* ---- host memory ----------------------------------------------------------------------------- */

cu_result cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    struct fake_memory *m;
    cu_result r;
    void *q;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!p || !bytes || flags & ~7u)
        return CU_E_INVALID_VALUE;
    bytes = (bytes + 4095) & ~(size_t)4095;
    q = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (q == MAP_FAILED)
        return CU_E_OUT_OF_MEMORY;
    r = fake_memory_add((struct fake_memory){.kind = FAKE_HOST,
                                             .p = (uintptr_t)q,
                                             .bytes = bytes,
                                             .fd = -1,
                                             .dev = fake_current()->dev},
                        &m);
    if (r)
        munmap(q, bytes);
    else
        *p = q;
    return r;
}

static cu_result forget(void *p, enum fake_kind kind, cu_result unknown)
{
    struct fake_memory *m;

    pthread_rwlock_wrlock(&memory_lock);
    m = fake_memory_at((cu_ptr)p);
    m = m && m->p == (uintptr_t)p && m->kind == kind ? m : NULL;
    if (m)
        fake_memory_remove(m);
    pthread_rwlock_unlock(&memory_lock);
    return m ? CU_SUCCESS : unknown;
}

cu_result cuMemFreeHost(void *p)
{
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_context_settle(fake_current());
    return r ? r : forget(p, FAKE_HOST, CU_E_INVALID_VALUE);
}

cu_result cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    uintptr_t from = (uintptr_t)p & ~(uintptr_t)4095, to;
    unsigned char there;
    bool taken = false;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!p || !bytes || flags & ~15u || __builtin_add_overflow((uintptr_t)p, bytes, &to))
        return CU_E_INVALID_VALUE;
    for (uintptr_t at = from; at < to; at += 4096)
        if (mincore((void *)at, 1, &there))
            return CU_E_INVALID_VALUE; /* nothing is mapped there */
    pthread_rwlock_rdlock(&memory_lock);
    for (struct fake_memory *m = memories; m; m = m->next)
        taken |= m->p < to && (uintptr_t)p < m->p + m->bytes;
    pthread_rwlock_unlock(&memory_lock);
    if (taken)
        return FAKE_E_REGISTERED;
    return fake_memory_add((struct fake_memory){.kind = FAKE_REGISTERED,
                                                .p = (uintptr_t)p,
                                                .bytes = bytes,
                                                .fd = -1,
                                                .dev = fake_current()->dev},
                           NULL);
}

cu_result cuMemHostUnregister(void *p)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return forget(p, FAKE_REGISTERED, FAKE_E_NOT_REGISTERED);
}

cu_result cuMemHostGetDevicePointer_v2(cu_ptr *dev, void *p, unsigned flags)
{
    struct fake_memory *m;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!dev || flags)
        return CU_E_INVALID_VALUE;
    pthread_rwlock_rdlock(&memory_lock);
    m = fake_memory_at((cu_ptr)p);
    m = m && m->fd < 0 ? m : NULL;
    pthread_rwlock_unlock(&memory_lock);
    if (!m)
        return CU_E_INVALID_VALUE;
    *dev = (cu_ptr)p;
    return CU_SUCCESS;
}
