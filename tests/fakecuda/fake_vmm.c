/* fake_vmm.c - memory that is made, addressed and mapped in separate steps, and that goes to other
 * processes as a descriptor: as PyTorch's expandable segments do it. */
#include "tests/fakecuda/fake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake_vmm {
    int fd;
    size_t bytes;
    cu_device dev;
    unsigned types; /* CU_HANDLE_... */
    bool own;       /* counted in its context's used bytes */
    int handles;    /* the program's */
    int refs;       /* these and mappings */
    struct fake_vmm *next;
};
static struct reserved {
    uintptr_t p;
    size_t bytes;
    struct reserved *next;
} *reserved;
static struct fake_vmm *list; /* both under memory_lock */

static struct fake_vmm *held(cu_mem mem)
{
    for (struct fake_vmm *v = list; v; v = v->next)
        if ((cu_mem)(uintptr_t)v == mem && v->handles > 0)
            return v;
    return NULL;
}

static cu_result vmm_new(int fd, size_t bytes, cu_device dev, unsigned types, bool own, cu_mem *mem)
{
    struct fake_vmm *v = malloc(sizeof *v);

    if (!v) {
        close(fd);
        return CU_E_OUT_OF_MEMORY;
    }
    pthread_rwlock_wrlock(&memory_lock);
    *v = (struct fake_vmm){fd, bytes, dev, types, own, 1, 1, list};
    list = v;
    pthread_rwlock_unlock(&memory_lock);
    *mem = (cu_mem)(uintptr_t)v;
    return CU_SUCCESS;
}

void fake_vmm_unref(struct fake_vmm *vmm)
{
    struct fake_vmm **at = &list;

    if (--vmm->refs)
        return;
    while (*at != vmm)
        at = &(*at)->next;
    *at = vmm->next;
    if (vmm->own)
        atomic_fetch_sub(&fake_device(vmm->dev)->ctx.used, vmm->bytes);
    close(vmm->fd);
    free(vmm);
}

unsigned fake_vmm_handle_types(const struct fake_vmm *vmm)
{
    return vmm->types;
}

static bool whole(uint64_t n)
{
    return n && n % FAKE_GRANULARITY == 0 && n < SIZE_MAX / 4;
}

static cu_result check(const struct cu_mem_prop *prop)
{
    if (fake_knob("FAKECUDA_NO_VMM", 0))
        return CU_E_NOT_SUPPORTED;
    if (!prop || prop->type != CU_ALLOCATION_PINNED || prop->location.type != CU_LOCATION_DEVICE)
        return CU_E_INVALID_VALUE;
    if (!fake_device(prop->location.id))
        return CU_E_INVALID_DEVICE;
    return prop->handle_types & ~CU_HANDLE_POSIX_FD ? CU_E_NOT_SUPPORTED : CU_SUCCESS;
}

cu_result cuMemGetAllocationGranularity(size_t *bytes, const struct cu_mem_prop *prop, int option)
{
    cu_result r;

    FAKE_ENTER(FAKE_INIT);
    r = bytes && option >= 0 && option <= 1 ? check(prop) : CU_E_INVALID_VALUE;
    if (!r)
        *bytes = FAKE_GRANULARITY;
    return r;
}

cu_result cuMemCreate(cu_mem *mem, size_t bytes, const struct cu_mem_prop *prop,
                      unsigned long long flags)
{
    _Atomic uint64_t *used;
    cu_result r;
    int fd;

    FAKE_ENTER(FAKE_INIT);
    r = mem && !flags && whole(bytes) ? check(prop) : CU_E_INVALID_VALUE;
    if (r)
        return r;
    if (bytes >= fake_knob("FAKECUDA_OOM_AT", UINT64_MAX))
        return CU_E_OUT_OF_MEMORY;
    used = &fake_device(prop->location.id)->ctx.used;
    fd = -1;
    if (atomic_fetch_add(used, bytes) + bytes <= fake_knob("FAKECUDA_MEMORY", 16ull << 30))
        fd = fake_memfd(prop->location.id, bytes);
    r = fd < 0 ? CU_E_OUT_OF_MEMORY
               : vmm_new(fd, bytes, prop->location.id, (unsigned)prop->handle_types, true, mem);
    if (r)
        atomic_fetch_sub(used, bytes);
    return r;
}

cu_result cuMemRelease(cu_mem mem)
{
    struct fake_vmm *v;

    FAKE_ENTER(FAKE_INIT);
    pthread_rwlock_wrlock(&memory_lock);
    v = held(mem);
    if (v) {
        v->handles--;
        fake_vmm_unref(v);
    }
    pthread_rwlock_unlock(&memory_lock);
    return v ? CU_SUCCESS : CU_E_INVALID_VALUE;
}

cu_result cuMemRetainAllocationHandle(cu_mem *mem, void *p)
{
    struct fake_memory *m;

    FAKE_ENTER(FAKE_INIT);
    if (!mem)
        return CU_E_INVALID_VALUE;
    pthread_rwlock_wrlock(&memory_lock);
    m = fake_memory_at((cu_ptr)p);
    m = m && m->kind == FAKE_MAPPED ? m : NULL;
    if (m) {
        m->vmm->handles++;
        m->vmm->refs++;
        *mem = (cu_mem)(uintptr_t)m->vmm;
    }
    pthread_rwlock_unlock(&memory_lock);
    return m ? CU_SUCCESS : CU_E_INVALID_VALUE;
}

/* ---- to and from other processes ------------------------------------------------------------- */

cu_result cuMemExportToShareableHandle(void *handle, cu_mem mem, int type, unsigned long long flags)
{
    struct fake_vmm *v;
    int fd = -1;

    FAKE_ENTER(FAKE_INIT);
    if (!handle || flags)
        return CU_E_INVALID_VALUE;
    pthread_rwlock_rdlock(&memory_lock);
    v = held(mem);
    if (v && v->types & (unsigned)type)
        fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
    pthread_rwlock_unlock(&memory_lock);
    if (fd < 0)
        return CU_E_INVALID_VALUE;
    *(int *)handle = fd;
    return CU_SUCCESS;
}

cu_result cuMemImportFromShareableHandle(cu_mem *mem, void *handle, int type)
{
    int given = (int)(intptr_t)handle, fd;
    struct stat st;
    cu_device dev;

    FAKE_ENTER(FAKE_INIT);
    if (!mem || type != CU_HANDLE_POSIX_FD)
        return CU_E_INVALID_VALUE;
    dev = fake_memfd_device(given);
    if (dev < 0 || fstat(given, &st) || !whole((uint64_t)st.st_size))
        return CU_E_INVALID_VALUE;
    fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CU_E_OUT_OF_MEMORY;
    return vmm_new(fd, (size_t)st.st_size, dev, CU_HANDLE_POSIX_FD, false, mem);
}

/* ---- addresses ------------------------------------------------------------------------------- */

cu_result cuMemAddressReserve(cu_ptr *p, size_t bytes, size_t align, cu_ptr hint,
                              unsigned long long flags)
{
    struct reserved *v;
    uintptr_t q;

    FAKE_ENTER(FAKE_INIT);
    if (!p || flags || !whole(bytes) || align & (align - 1))
        return CU_E_INVALID_VALUE;
    v = malloc(sizeof *v);
    q = v ? fake_range_take(bytes, align) : 0;
    if (!q) {
        free(v);
        return CU_E_OUT_OF_MEMORY;
    }
    pthread_rwlock_wrlock(&memory_lock);
    *v = (struct reserved){q, bytes, reserved};
    reserved = v;
    pthread_rwlock_unlock(&memory_lock);
    *p = q;
    return CU_SUCCESS;
}

struct fake_range fake_vmm_reserved(cu_ptr p)
{
    for (const struct reserved *r = reserved; r; r = r->next)
        if (p >= r->p && p - r->p < r->bytes)
            return (struct fake_range){r->p, r->bytes};
    return (struct fake_range){0};
}

/* Whether the range is mapped in whole pieces; @some: whether any of it is. memory_lock is held. */
static bool mapped(cu_ptr p, size_t bytes, bool *some)
{
    cu_ptr at = p;

    *some = false;
    for (cu_ptr q = p; q - p < bytes; q += FAKE_GRANULARITY)
        *some |= fake_memory_at(q) != NULL;
    while (at - p < bytes) {
        struct fake_memory *m = fake_memory_at(at);

        if (!m || m->kind != FAKE_MAPPED || m->p != at)
            return false;
        at += m->bytes;
    }
    return at - p == bytes;
}

cu_result cuMemAddressFree(cu_ptr p, size_t bytes)
{
    struct reserved *found = NULL;
    bool some;

    FAKE_ENTER(FAKE_INIT);
    pthread_rwlock_wrlock(&memory_lock);
    mapped(p, whole(bytes) ? bytes : 0, &some);
    for (struct reserved **at = &reserved; *at && !some; at = &(*at)->next) {
        if ((*at)->p != p || (*at)->bytes != bytes)
            continue;
        found = *at;
        *at = found->next;
        break;
    }
    pthread_rwlock_unlock(&memory_lock);
    if (!found)
        return CU_E_INVALID_VALUE;
    fake_range_give(p, bytes);
    free(found);
    return CU_SUCCESS;
}

cu_result cuMemMap(cu_ptr p, size_t bytes, size_t offset, cu_mem mem, unsigned long long flags)
{
    struct fake_memory memory = {.kind = FAKE_MAPPED, .p = p, .bytes = bytes, .fd = -1};
    struct fake_vmm *v;
    bool inside = false, some = true;

    FAKE_ENTER(FAKE_INIT);
    if (flags || offset || !whole(bytes) || p % FAKE_GRANULARITY)
        return CU_E_INVALID_VALUE;
    pthread_rwlock_wrlock(&memory_lock);
    v = held(mem);
    for (struct reserved *r = reserved; r; r = r->next)
        inside |= p >= r->p && p - r->p < r->bytes && bytes <= r->bytes - (p - r->p);
    if (v && inside)
        mapped(p, bytes, &some);
    if (!some && bytes <= v->bytes)
        memory.fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
    if (memory.fd >= 0) {
        v->refs++;
        memory.vmm = v;
        memory.dev = v->dev;
    }
    pthread_rwlock_unlock(&memory_lock);
    return memory.fd >= 0 ? fake_memory_add(memory, NULL) : CU_E_INVALID_VALUE;
}

cu_result cuMemUnmap(cu_ptr p, size_t bytes)
{
    bool some, ok;

    FAKE_ENTER(FAKE_INIT);
    if (!whole(bytes))
        return CU_E_INVALID_VALUE;
    pthread_rwlock_wrlock(&memory_lock);
    ok = mapped(p, bytes, &some);
    for (cu_ptr at = p; ok && at - p < bytes;) {
        struct fake_memory *m = fake_memory_at(at);

        at += m->bytes;
        fake_memory_remove(m);
    }
    pthread_rwlock_unlock(&memory_lock);
    return ok ? CU_SUCCESS : CU_E_INVALID_VALUE;
}

cu_result cuMemSetAccess(cu_ptr p, size_t bytes, const struct cu_access *access, size_t n)
{
    uint32_t mask = 0;
    bool some, ok;

    FAKE_ENTER(FAKE_INIT);
    if (!access || !n || !whole(bytes))
        return CU_E_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        if (access[i].location.type != CU_LOCATION_DEVICE || !fake_device(access[i].location.id))
            return CU_E_INVALID_DEVICE;
        mask |= access[i].flags == CU_ACCESS_READWRITE ? 1u << access[i].location.id : 0;
    }
    pthread_rwlock_wrlock(&memory_lock);
    ok = mapped(p, bytes, &some);
    for (cu_ptr at = p; ok && at - p < bytes;) {
        struct fake_memory *m = fake_memory_at(at);

        ok = fake_range_map(m->p, m->bytes, m->fd, 0);
        m->access |= mask;
        at += m->bytes;
    }
    pthread_rwlock_unlock(&memory_lock);
    return ok ? CU_SUCCESS : CU_E_INVALID_VALUE;
}
