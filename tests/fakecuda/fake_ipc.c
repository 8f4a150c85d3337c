/* fake_ipc.c - device memory of another process. A handle says of which process and descriptor the
 * memory is, and of which file, so that a descriptor that is another file by now is found out. */
#include "tests/fakecuda/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0xfac0da01u

struct handle {
    uint32_t magic;
    int32_t pid, fd;
    uint32_t sum; /* over all else */
    uint64_t bytes, id, inode;
    uint64_t at; /* in its process */
    struct cu_uuid uuid;
};
_Static_assert(sizeof(struct handle) == sizeof(struct cu_ipc_mem), "all of it");

static uint32_t sum_of(struct handle h)
{
    const unsigned char *bytes = (const unsigned char *)&h;
    uint32_t sum = 0x811c9dc5u;

    h.sum = 0;
    for (size_t i = 0; i < sizeof h; i++)
        sum = (sum ^ bytes[i]) * 0x01000193u;
    return sum;
}

cu_result cuIpcGetMemHandle(struct cu_ipc_mem *handle, cu_ptr p)
{
    struct handle h = {.magic = MAGIC, .pid = getpid()};
    struct fake_memory *m;
    struct stat st;
    cu_result r = CU_SUCCESS;

    FAKE_ENTER(FAKE_CONTEXT);
    if (!handle)
        return CU_E_INVALID_VALUE;
    if (fake_knob("FAKECUDA_NO_IPC", 0))
        return CU_E_NOT_SUPPORTED;
    pthread_rwlock_rdlock(&memory_lock);
    m = fake_memory_at(p);
    if (!m || m->kind != FAKE_PLAIN || fstat(m->fd, &st)) {
        r = CU_E_INVALID_VALUE;
    } else {
        h.fd = m->fd;
        h.bytes = m->bytes;
        h.at = m->p;
        h.id = m->id;
        h.inode = st.st_ino;
        h.uuid = fake_device(m->dev)->uuid;
    }
    pthread_rwlock_unlock(&memory_lock);
    h.sum = sum_of(h);
    if (!r)
        memcpy(handle, &h, sizeof h);
    return r;
}

/* The exporter's descriptor, as a descriptor of ours. */
static cu_result fetch(const struct handle *h, int *ret_fd)
{
    int process = (int)syscall(SYS_pidfd_open, h->pid, 0), fd, e;
    char path[64];

    if (process < 0)
        return CU_E_INVALID_VALUE; /* the exporter is gone */
    fd = (int)syscall(SYS_pidfd_getfd, process, h->fd, 0);
    e = errno;
    close(process);
    if (fd < 0 && (e == EPERM || e == ENOSYS)) { /* by the kernel's rules, or by seccomp's */
        snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 && errno != ENOENT)
            return CU_E_MAP_FAILED;
    }
    *ret_fd = fd;
    return fd < 0 ? CU_E_INVALID_VALUE : CU_SUCCESS;
}

/* Where a process has freed memory and got other memory at the same addresses, the old one must be
 * closed before the new one is opened. memory_lock is held. */
static bool in_the_way(const struct fake_memory *m, const void *arg)
{
    const struct handle *h = arg;
    struct handle old;

    memcpy(&old, &m->handle, sizeof old);
    return old.pid == h->pid && old.at < h->at + h->bytes && h->at < old.at + old.bytes;
}

static cu_result import(const struct handle *h, const struct cu_ipc_mem *handle, cu_ptr *p)
{
    cu_device dev = fake_device_of(&h->uuid), here = fake_current()->dev;
    struct fake_memory *m;
    struct stat st;
    cu_result r;
    bool stale;
    int fd;

    pthread_rwlock_rdlock(&memory_lock);
    stale = !fake_knob("FAKECUDA_REOPEN", 0) && fake_imported(in_the_way, h);
    pthread_rwlock_unlock(&memory_lock);
    if (stale)
        return CU_E_ALREADY_MAPPED;
    if (dev < 0 || (dev != here && fake_knob("FAKECUDA_NO_PEER", 0)))
        return CU_E_INVALID_VALUE;
    r = fetch(h, &fd);
    if (r)
        return r;
    if (fstat(fd, &st) || st.st_ino != h->inode || (uint64_t)st.st_size != h->bytes ||
        fake_memfd_device(fd) != dev) {
        close(fd);
        return CU_E_INVALID_VALUE; /* freed since */
    }
    r = fake_memory_add((struct fake_memory){.kind = FAKE_IMPORTED,
                                             .bytes = h->bytes,
                                             .fd = fd,
                                             .dev = dev,
                                             .access = 1u << dev | 1u << here,
                                             .refs = 1,
                                             .handle = *handle},
                        &m);
    if (!r)
        *p = m->p;
    return r;
}

cu_result cuIpcOpenMemHandle_v2(cu_ptr *p, struct cu_ipc_mem handle, unsigned flags)
{
    struct fake_memory *m;
    struct handle h;

    FAKE_ENTER(FAKE_CONTEXT);
    memcpy(&h, &handle, sizeof h);
    if (!p || flags != CU_IPC_LAZY_PEER_ACCESS || h.magic != MAGIC || h.sum != sum_of(h))
        return CU_E_INVALID_VALUE;
    if (h.pid == getpid())
        return CU_E_INVALID_CONTEXT; /* the driver does not open a process's own memory */
    while (fake_knob("FAKECUDA_OPEN_HANGS", 0))
        usleep(1000);
    pthread_rwlock_wrlock(&memory_lock);
    m = fake_ipc_find(&handle);
    if (m) {
        m->refs++;
        *p = m->p;
    }
    pthread_rwlock_unlock(&memory_lock);
    return m ? CU_SUCCESS : import(&h, &handle, p);
}

cu_result cuIpcCloseMemHandle(cu_ptr p)
{
    struct fake_memory *m;
    cu_result r;

    FAKE_ENTER(FAKE_CONTEXT);
    r = fake_context_settle(fake_current());
    if (r)
        return r;
    pthread_rwlock_wrlock(&memory_lock);
    m = fake_memory_at(p);
    m = m && m->p == p && m->kind == FAKE_IMPORTED ? m : NULL;
    if (m && --m->refs == 0)
        fake_memory_remove(m);
    pthread_rwlock_unlock(&memory_lock);
    return m ? CU_SUCCESS : CU_E_INVALID_VALUE;
}
