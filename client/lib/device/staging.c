/* staging.c - host memory that operations on GPU buffers go through. It is from the arenas of
 * commd_alloc(), so that ranks of one node work in each other's memory. It is registered with the
 * driver, because only registered memory is copied without the host. Both take long (about 0.3 ms
 * per MiB), so chunks are kept, up to COMMD_DEVICE_STAGING bytes. An operation that needs more than
 * that takes it, and gives it back afterwards: to wait for room would be to wait for other ranks,
 * which may wait for this one.
 *
 * The pool has no lock of its own: the lock of its owner is held. */
#include "client/lib/device/memory.h"

#include <sys/mman.h>

#include "client/lib/device/driver.h"

enum { CHUNK_MIN = 64 << 10, STAGING_MIB = 256 };

static int bad_bytes(const char *name, const char *s)
{
    return error_set(error_mine(), COMMD_E_INVALID, "run",
                     "%s is \"%.40s\"; allowed: a number of bytes, or one with K, M or G behind it",
                     name, s);
}

int bytes_setting(const char *name, size_t otherwise, size_t *ret)
{
    const char *text = getenv(name);
    static const char units[] = "KMG";
    unsigned long long n;
    const char *unit;
    char *end;

    *ret = otherwise;
    if (!text || !*text)
        return 0;
    errno = 0;
    n = strtoull(text, &end, 10);
    if (end == text || errno || *text == '-' || n > SIZE_MAX >> 31)
        return bad_bytes(name, text);
    unit = *end ? strchr(units, *end) : NULL;
    if (*end && (!unit || end[1]))
        return bad_bytes(name, text);
    *ret = (size_t)n << (unit ? 10 * (unit - units + 1) : 0);
    return 0;
}

int staging_init(struct staging *s, struct commd_context *ctx)
{
    *s = (struct staging){.ctx = ctx};
    return bytes_setting("COMMD_DEVICE_STAGING", (size_t)STAGING_MIB << 20, &s->limit);
}

size_t size_class(size_t bytes, size_t least)
{
    assert(bytes > 0 && least > 0 && (least & (least - 1)) == 0);
    while (least * 8 <= bytes)
        least *= 2;
    return ALIGN_UP(bytes, least);
}

static void chunk_unmap(struct staging_chunk *c)
{
    assert(c->bytes > 0);
    if (c->p && c->arena)
        commd_free(c->p);
    else if (c->p)
        munmap(c->p, c->bytes);
    free(c);
}

static void chunk_free(struct staging_chunk *c)
{
    const struct cuda *cu = driver(NULL);
    struct scope scope;

    assert(c->p && c->ctx);
    if (scope_enter_context("free", c->ctx, &scope) == 0) {
        cu->host_unregister(c->p);
        scope_leave(&scope);
    }
    chunk_unmap(c);
}

static void chunk_map(const struct staging *s, struct staging_chunk *c)
{
    void *p = NULL;

    assert(c->bytes > 0 && !c->p);
    c->arena = s->ctx && commd_alloc(s->ctx, c->bytes, &p) == 0;
    if (!c->arena) { /* commd may be gone, and groups on one node go on without it */
        p = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            p = NULL;
    }
    c->p = p;
}

static int no_room(const struct staging *s, const char *op, size_t bytes, const char *why)
{
    return error_set(
        error_mine(), COMMD_E_NOMEM, op,
        "%s: no %zu bytes of host memory that the GPU can copy to: %s; operations that "
        "are not done hold %zu bytes: wait for some, or make the operation smaller",
        op, bytes, why, s->used);
}

static int chunk_new(const struct staging *s, const char *op, size_t bytes,
                     struct staging_chunk **ret_chunk)
{
    const struct cuda *cu = driver(NULL);
    struct staging_chunk *c = calloc(1, sizeof *c);
    cu_result r;

    assert(bytes > 0);
    if (!c)
        return no_room(s, op, bytes, "out of memory");
    c->bytes = bytes;
    chunk_map(s, c);
    if (!c->p) {
        chunk_unmap(c);
        return no_room(s, op, bytes, strerror(ENOMEM));
    }
    cu->ctx_get(&c->ctx);
    r = cu->host_register(c->p, bytes, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    if (r) {
        char text[200];

        chunk_unmap(c);
        cuda_text(cu, r, text, sizeof text);
        return no_room(s, op, bytes, text);
    }
    *ret_chunk = c;
    return 0;
}

static struct staging_chunk *staging_find(struct staging *s, size_t bytes)
{
    struct staging_chunk **best = NULL, *c;

    assert(bytes > 0);
    for (struct staging_chunk **p = &s->free; *p; p = &(*p)->next)
        if ((*p)->bytes >= bytes && (*p)->bytes / 2 <= bytes &&
            (!best || (*p)->bytes < (*best)->bytes))
            best = p;
    if (!best)
        return NULL;
    c = *best;
    *best = c->next;
    assert(s->kept >= c->bytes);
    s->kept -= c->bytes;
    return c;
}

/* Frees the ones that were used longest ago until @bytes more are within the limit. */
static void staging_evict(struct staging *s, size_t bytes)
{
    while (s->free && s->used + s->kept + bytes > s->limit) {
        struct staging_chunk **p = &s->free, *c;

        while ((*p)->next)
            p = &(*p)->next;
        c = *p;
        *p = NULL;
        assert(s->kept >= c->bytes);
        s->kept -= c->bytes;
        chunk_free(c);
    }
}

int staging_take(struct staging *s, const char *op, size_t bytes, struct staging_chunk **ret_chunk)
{
    size_t size = size_class(bytes, CHUNK_MIN);
    struct staging_chunk *c = staging_find(s, size);
    int r;

    if (!c) {
        staging_evict(s, size);
        r = chunk_new(s, op, size, &c);
        if (r)
            return r;
    }
    s->used += c->bytes;
    *ret_chunk = c;
    return 0;
}

void staging_give(struct staging *s, struct staging_chunk *c)
{
    assert(s->used >= c->bytes);
    assert(c->bytes > 0);
    s->used -= c->bytes;
    if (!c->spoiled)
        staging_evict(s, c->bytes);
    if (c->spoiled || s->used + c->bytes > s->limit) {
        chunk_free(c);
        return;
    }
    c->next = s->free;
    s->free = c;
    s->kept += c->bytes;
}

void staging_fini(struct staging *s)
{
    for (struct staging_chunk *next; s->free; s->free = next) {
        next = s->free->next;
        chunk_free(s->free);
    }
    s->kept = 0;
    s->ctx = NULL;
}
