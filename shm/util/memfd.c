/* memfd.c - sealed shared memory.
 *
 * A file that can shrink under a mapping kills the mapper with SIGBUS, so nothing is mapped
 * that does not carry SHRINK, GROW and SEAL seals. Files of other kinds fail the seal query
 * itself (EINVAL on disk files), which makes it the type check. What the seals do not stop is
 * hole punching: pages may turn to zeros, which changes values, never control flow, because
 * all that steers us is copied and checked first. */
#include "shm/util/memfd.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Beyond RLIMIT_FSIZE the kernel also sends SIGXFSZ, which would end the process, and a library
 * cannot ignore a signal for all of it. It is for this thread: blocked, and taken back. */
static int set_size(int fd, off_t size)
{
    static const struct timespec at_once;
    sigset_t too_large, before, pending;
    int r;

    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &too_large, &before);
    r = ftruncate(fd, size) < 0 ? -errno : 0;
    if (r == -EFBIG && !sigismember(&pending, SIGXFSZ))
        sigtimedwait(&too_large, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

const char *memfd_strerror(int r)
{
    return r == -EFBIG ? "larger than RLIMIT_FSIZE allows (ulimit -f)" : strerror(-r);
}

int memfd_new(const char *name, size_t size, int *ret_fd)
{
    _cleanup_(close_fdp) int fd = -1;
    int r;

    if (size == 0 || size > INT64_MAX)
        return -EINVAL;
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* kernels before 6.3 do not know NOEXEC_SEAL */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    r = set_size(fd, (off_t)size);
    if (r)
        return r;
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int memfd_reopen(int fd, int *ret_fd)
{
    char path[32];
    int again;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_CLOEXEC);
    if (again < 0)
        return -errno;
    *ret_fd = again;
    return 0;
}

int memfd_check(int fd, size_t max, size_t *ret_size)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & SEALS) != SEALS)
        return MEMFD_E_SEALS;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return MEMFD_E_SEALS;
    if (st.st_size <= 0 || (uint64_t)st.st_size > max)
        return MEMFD_E_SIZE;
    *ret_size = (size_t)st.st_size;
    return 0;
}

int memfd_map(int fd, size_t len, void **ret_map)
{
    void *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    assert(len > 0);
    if (map == MAP_FAILED)
        return -errno;
    *ret_map = map;
    return 0;
}

int memfd_map_at(int fd, size_t len, size_t align, void **ret_map)
{
    size_t room = len + align;
    uint8_t *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *base;

    assert(align > 0 && (align & (align - 1)) == 0);
    if (all == MAP_FAILED)
        return -errno;
    base = (uint8_t *)ALIGN_UP((uintptr_t)all, (uintptr_t)align);
    if (mmap(base, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int r = -errno;

        munmap(all, room);
        return r;
    }
    if (base > all)
        munmap(all, (size_t)(base - all));
    if (all + room > base + len)
        munmap(base + len, (size_t)(all + room - (base + len)));
    *ret_map = base;
    return 0;
}
