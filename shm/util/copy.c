/* copy.c - copies through memory that two cores share. A store takes longer the farther away
 * its line is, and that depends on where the other core is:
 *
 *   in a cache that both share                    2 ns a line (EPYCs of 2023)
 *   in the reader's own, behind a shared one      6
 *   in the reader's, with no shared cache         9 to 50, one after the other, in order
 *
 * A store past all caches takes 2 to 3 ns. The reader then reads from memory, which takes 2 to 4 ns
 * more, or no more if the line would have come from a cache that is as far away. So going around
 * the caches pays in the third case, and only there.
 *
 * Which case it is changes while a process runs: the process moves to another core, and so does the
 * core of a virtual machine. So copy_in() times the first part of what it writes through the
 * caches. After a slow copy the next one goes around, and is timed too: perhaps the memory that it
 * reads is slow. If that is faster by more than a reader loses (GAIN_PS) the next copies go around
 * as well; then it tries again. A reduction into a window does the same (copy_begin(), copy_end()).
 *
 * The processor's own prefetching stops at the end of a page, so who reads asks for the lines of
 * the next one itself. To make the second case rare, a writer of payload takes turns over more
 * memory than the reader's cache holds (board_offset()).
 *
 * copy_out() is not memcpy(): for more than 2 KB libc takes "rep movsb", which as the processor
 * pleases writes past the caches. That is right for a window whose lines are elsewhere, and wrong
 * for the caller's buffer. */
#include "shm/util/copy.h"

#include <stdatomic.h>

#include "shm/util/wait.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    WIDE_MIN = 2048, /* below, libc does it with vectors */
    AROUND_MIN = 1024,
    TIMED = 16384,    /* so much tells */
    SLOW_PS = 5000,   /* a line; to and from a cache that both share takes less */
    GAIN_PS = 3000,   /* what the reader of a line loses at most if it is in no cache */
    COPIES_FIRST = 8, /* before a way is tried again, doubled each time */
    COPIES_MOST = 512,
    ROUNDS_FIRST = 16, /* before the other way is tried, doubled each time that it is no better */
    ROUNDS_MOST = 512,
    BETTER = 16, /* by so much of the whole, a 16th, a way is better, and not by chance */
    UNTIMED = 7, /* after a fast one: two looks at the clock are 4 % of 16 KB by two ranks */
};

/* @to begins a cache line; whole lines. */
typedef void (*lines_fn)(uint8_t *to, const uint8_t *from, size_t lines);

struct kernels {
    const char *name;
    lines_fn through, around;
    lines_fn ahead; /* through, and asks for the line that is COPY_AHEAD further on */
};

#if defined(__x86_64__)
/* The barrier keeps compilers from recognising a memcpy(). */
#define LINES(name, isa, vec, load_one, store_one, ahead)                                          \
    static isa void name(uint8_t *to, const uint8_t *from, size_t lines)                           \
    {                                                                                              \
        for (; lines; lines--, to += CACHELINE, from += CACHELINE) {                               \
            if (ahead)                                                                             \
                __builtin_prefetch(from + (ahead));                                                \
            _Pragma("GCC unroll 4") for (size_t k = 0; k < CACHELINE; k += sizeof(vec))            \
                store_one((void *)(to + k), load_one((const void *)(from + k)));                   \
            __asm__ volatile("" ::: "memory");                                                     \
        }                                                                                          \
    }
#define ALL_LINES(name, isa, vec, load_one, store_one, stream_one)                                 \
    LINES(name##_through, isa, vec, load_one, store_one, 0)                                        \
    LINES(name##_around, isa, vec, load_one, stream_one, 0)                                        \
    LINES(name##_ahead, isa, vec, load_one, store_one, COPY_AHEAD)
#define KERNELS(name) {#name, name##_through, name##_around, name##_ahead}

#define ISA(text)     __attribute__((target(text)))
ALL_LINES(sse2, , __m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128)
ALL_LINES(avx2, ISA("avx2"), __m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256)
ALL_LINES(avx512, ISA("avx512f"), __m512i, _mm512_loadu_si512, _mm512_store_si512,
          _mm512_stream_si512)

static void after_streams(void)
{
    _mm_sfence(); /* a release does not order these stores */
}
#else
static void libc_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    memcpy(to, from, lines * CACHELINE);
}

static void after_streams(void)
{
}
#endif

/* Best first. */
static const struct kernels all_kernels[] = {
#if defined(__x86_64__)
    KERNELS(avx512),
    KERNELS(avx2),
    KERNELS(sse2),
#else
    {"libc", libc_lines, libc_lines, libc_lines},
#endif
};

static bool have(const struct kernels *k)
{
#if defined(__x86_64__)
    if (k == &all_kernels[0])
        return __builtin_cpu_supports("avx512f");
    if (k == &all_kernels[1])
        return __builtin_cpu_supports("avx2");
#endif
    return true;
}

static _Atomic(const struct kernels *) chosen;

static const struct kernels *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(all_kernels); i++)
        if ((!name || !strcmp(all_kernels[i].name, name)) && have(&all_kernels[i]))
            return &all_kernels[i];
    return NULL;
}

/* relaxed: constants; threads that race to choose choose the same */
static inline const struct kernels *kernels(void)
{
    const struct kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (unlikely(!k)) {
        k = find(NULL);
        atomic_store_explicit(&chosen, k, memory_order_relaxed);
    }
    return k;
}

const char *copy_kernels(void)
{
    return kernels()->name;
}

bool copy_force(const char *name)
{
    const struct kernels *k = find(name);

    if (k)
        atomic_store_explicit(&chosen, k, memory_order_relaxed);
    return k != NULL;
}

/* Whole lines of @to by @lines, what is before and behind them by libc. */
static void copy_by(lines_fn lines, uint8_t *to, const uint8_t *from, size_t n)
{
    size_t head = -(uintptr_t)to % CACHELINE, middle;

    if (head) {
        memcpy(to, from, head);
        to += head;
        from += head;
        n -= head;
    }
    middle = n / CACHELINE * CACHELINE;
    lines(to, from, middle / CACHELINE);
    if (n > middle)
        memcpy(to + middle, from + middle, n - middle);
}

void copy_out(void *to, const void *from, size_t n)
{
    size_t most = n >= COPY_AHEAD_MIN ? n - COPY_AHEAD : 0;

    if (most) { /* what lies behind @n is not asked for: another core may be writing there */
        copy_by(kernels()->ahead, to, from, most);
        to = (uint8_t *)to + most;
        from = (const uint8_t *)from + most;
        n -= most;
    }
    if (n >= WIDE_MIN)
        copy_by(kernels()->through, to, from, n);
    else if (n)
        memcpy(to, from, n);
}

void copy_around(void *to, const void *from, size_t n)
{
    if (n >= AROUND_MIN) {
        copy_by(kernels()->around, to, from, n);
        after_streams();
    } else if (n) {
        memcpy(to, from, n);
    }
}

static unsigned longer(unsigned copies)
{
    return MIN(MAX(2 * copies, (unsigned)COPIES_FIRST), (unsigned)COPIES_MOST);
}

void copy_went_through(struct copy_way *way, unsigned line_ps)
{
    if (likely(line_ps < SLOW_PS)) {
        way->again = 0;
        way->untimed = UNTIMED;
    } else if (way->sure) {
        way->sure--;
    } else {
        way->slow_ps = line_ps;
    }
}

void copy_went_around(struct copy_way *way, unsigned line_ps)
{
    if (way->slow_ps > line_ps + GAIN_PS) {
        way->around = way->again = longer(way->again);
        way->sure_again = 0;
    } else {
        way->sure = way->sure_again = longer(way->sure_again);
        way->again = 0;
    }
    way->slow_ps = 0;
}

void choice_begin(struct copy_choice *c, bool around)
{
    *c = (struct copy_choice){.around = around, .left = ROUNDS_FIRST, .again = ROUNDS_FIRST};
}

static void choice_use(struct copy_choice *c, unsigned rounds)
{
    c->state = CHOICE_USES;
    c->left = c->again = rounds;
}

void choice_round(struct copy_choice *c, unsigned line_ps)
{
    bool better = line_ps < c->line_ps - c->line_ps / BETTER;

    switch (c->state) {
    case CHOICE_USES:
        c->line_ps = c->line_ps ? c->line_ps - c->line_ps / 4 + line_ps / 4 : line_ps;
        if (--c->left)
            return;
        c->around = !c->around;
        c->state = CHOICE_CHANGES;
        return;
    case CHOICE_CHANGES:
        c->state = CHOICE_TRIES;
        return;
    case CHOICE_TRIES:
        choice_use(c, better ? ROUNDS_FIRST : MIN(2 * c->again, (unsigned)ROUNDS_MOST));
        if (better)
            c->line_ps = line_ps;
        else
            c->around = !c->around;
        return;
    }
    assert(!"no such state");
}

static unsigned line_ps(uint64_t begin, size_t n)
{
    return (unsigned)MIN((now_ns() - begin) * 1000 / (n / CACHELINE), (uint64_t)UINT32_MAX / 2);
}

struct copy_turn copy_begin(struct copy_way *way)
{
    if (unlikely(way->around)) {
        way->around--;
        return (struct copy_turn){.around = true};
    }
    if (way->untimed) {
        way->untimed--;
        return (struct copy_turn){0};
    }
    return (struct copy_turn){.begin = now_ns(), .around = way->slow_ps};
}

void copy_end(struct copy_way *way, const struct copy_turn *turn, size_t n)
{
    if (turn->begin && turn->around)
        copy_went_around(way, line_ps(turn->begin, n));
    else if (turn->begin)
        copy_went_through(way, line_ps(turn->begin, n));
}

void copy_in(struct copy_way *way, void *to, const void *from, size_t n)
{
    struct copy_turn turn;
    size_t first;

    if (n < COPY_TIMED_MIN) {
        if (n)
            memcpy(to, from, n);
        return;
    }
    turn = copy_begin(way);
    first = turn.begin ? MIN(n, (size_t)TIMED) : n;
    if (unlikely(turn.around))
        copy_around(to, from, first);
    else
        memcpy(to, from, first);
    copy_end(way, &turn, first);
    if (first == n)
        return;
    if (unlikely(turn.around))
        copy_around((uint8_t *)to + first, (const uint8_t *)from + first, n - first);
    else
        memcpy((uint8_t *)to + first, (const uint8_t *)from + first, n - first);
}
