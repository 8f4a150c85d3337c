/* base.h - helpers everyone may include: attributes, cleanup, ownership hand-over,
 * overflow-checked arithmetic. Header-only; no state. */
#ifndef COMMD_BASE_H
#define COMMD_BASE_H

#undef NDEBUG /* asserts that cost nothing to speak of are in every build */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define _cleanup_(fn)       __attribute__((cleanup(fn)))
#define _printf_(fmt, args) __attribute__((format(printf, fmt, args)))
#define _unused_            __attribute__((unused))
#define likely(x)           __builtin_expect(!!(x), 1)
#define unlikely(x)         __builtin_expect(!!(x), 0)

#define ARRAY_LEN(a)        (sizeof(a) / sizeof((a)[0]))
#define CACHELINE           64

/* The leak check of a sanitizer traces its own process. A confined process may not do that. */
#ifdef __SANITIZE_ADDRESS__
#define HAS_LEAK_CHECK 1
#else
#define HAS_LEAK_CHECK 0
#endif

/* An assert that costs nothing to speak of is in every build. An invariant costs more, or stands
 * where each nanosecond counts: only builds with a sanitizer look at it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECKED 1
#else
#define CHECKED 0
#endif
#define invariant(x)                    assert(!CHECKED || (x))

#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

#define MIN(a, b)                                                                                  \
    ({                                                                                             \
        __typeof__(a) min_a_ = (a);                                                                \
        __typeof__(b) min_b_ = (b);                                                                \
        min_a_ < min_b_ ? min_a_ : min_b_;                                                         \
    })
#define MAX(a, b)                                                                                  \
    ({                                                                                             \
        __typeof__(a) max_a_ = (a);                                                                \
        __typeof__(b) max_b_ = (b);                                                                \
        max_a_ > max_b_ ? max_a_ : max_b_;                                                         \
    })
#define ALIGN_UP(x, a) (((x) + (__typeof__(x))(a) - 1) & ~((__typeof__(x))(a) - 1))

/* Hand a pointer or fd over: returns it and leaves the variable empty, so that its
 * _cleanup_ does nothing. */
#define steal_ptr(p)                                                                               \
    ({                                                                                             \
        __typeof__(p) stolen_ = (p);                                                               \
        (p) = NULL;                                                                                \
        stolen_;                                                                                   \
    })

static inline int steal_fd(int *fd)
{
    int r = *fd;
    *fd = -1;
    return r;
}

static inline void close_fdp(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
        *fd = -1;
    }
}

static inline void freep(void *p)
{
    free(*(void **)p);
}

/* Of memory that a secret may be in nothing stays. NULL is fine; always returns NULL. */
static inline void *free_wiped(void *p, size_t n)
{
    if (p)
        explicit_bzero(p, n);
    free(p);
    return NULL;
}

static inline bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static inline bool add_overflows(size_t a, size_t b, size_t *ret_sum)
{
    return __builtin_add_overflow(a, b, ret_sum);
}

static inline bool mul_overflows(size_t a, size_t b, size_t *ret_product)
{
    return __builtin_mul_overflow(a, b, ret_product);
}

/* Takes the same time wherever the two differ, so the time does not help to guess a secret. */
static inline bool same_secret(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint8_t differs = 0;

    for (size_t i = 0; i < n; i++)
        differs |= a[i] ^ b[i];
    return !differs;
}

/* Free-running u32 counters: true when @a has reached @b, across the wrap. */
static inline bool seq_reached(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) >= 0;
}

#endif
