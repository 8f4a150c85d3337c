/* fake_range.c - addresses for device memory: one range of this process, of which the lowest free
 * part is given out, so that an address that became free is soon that of other memory. Nothing lies
 * there but what is mapped; all else is PROT_NONE. With FAKECUDA_PROTECT=1 all of it is PROT_NONE
 * for the program, and workers use a second range where the same memory lies at the same distance
 * from the start. */
#include "tests/fakecuda/fake.h"

#include <stdlib.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t start, views;
static size_t size;
static bool hidden;
static struct used {
    uintptr_t p;
    size_t bytes;
    struct used *next;
} *first; /* by address */

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static bool begin(void) /* under lock */
{
    char *p = NULL;

    if (start)
        return true;
    for (size = 256ull << 30; !p && size >= 1ull << 30; size = p ? size : size / 2)
        p = reserve(size + FAKE_GRANULARITY);
    if (!p)
        return false;
    start = ((uintptr_t)p + FAKE_GRANULARITY - 1) & ~((uintptr_t)FAKE_GRANULARITY - 1);
    hidden = fake_knob("FAKECUDA_PROTECT", 0);
    views = hidden ? (uintptr_t)reserve(size) : start;
    return views != 0;
}

uintptr_t fake_range_take(size_t bytes, size_t align)
{
    struct used **at = &first, *u = malloc(sizeof *u);
    uintptr_t p = 0;

    align = align < FAKE_GRANULARITY ? FAKE_GRANULARITY : align;
    pthread_mutex_lock(&lock);
    if (u && begin() && bytes <= size && align <= size) {
        p = (start + align - 1) & ~(align - 1);
        while (*at && (*at)->p < p + bytes) {
            p = ((*at)->p + (*at)->bytes + align - 1) & ~(align - 1);
            at = &(*at)->next;
        }
        if (p + bytes > start + size)
            p = 0;
    }
    if (p) {
        *u = (struct used){p, bytes, *at};
        *at = u;
    } else {
        free(u);
    }
    pthread_mutex_unlock(&lock);
    return p;
}

void fake_range_give(uintptr_t p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (struct used **at = &first, *u; (u = *at); at = &u->next) {
        if (u->p != p)
            continue;
        *at = u->next;
        free(u);
        break;
    }
    pthread_mutex_unlock(&lock);
}

bool fake_range_ours(uintptr_t p)
{
    bool ours;

    pthread_mutex_lock(&lock);
    ours = start && p >= start && p < start + size;
    pthread_mutex_unlock(&lock);
    return ours;
}

/* Lays @fd's bytes at @p: for workers at once, for the program if it may see them. */
bool fake_range_map(uintptr_t p, size_t bytes, int fd, off_t offset)
{
    char *view = fake_range_view(p);
    int seen = hidden ? PROT_NONE : PROT_READ | PROT_WRITE;

    if (mmap((void *)p, bytes, seen, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED)
        return false;
    if (hidden &&
        mmap(view, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED)
        return false;
    madvise((void *)p, bytes, MADV_DONTFORK);
    return true;
}

void fake_range_unmap(uintptr_t p, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

    mmap((void *)p, bytes, PROT_NONE, flags, -1, 0);
    if (hidden)
        mmap(fake_range_view(p), bytes, PROT_NONE, flags, -1, 0);
}

void *fake_range_view(uintptr_t p)
{
    return (void *)(p - start + views);
}

bool fake_range_hidden(void)
{
    return hidden;
}
