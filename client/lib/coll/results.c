/* results.c - whether large results are written past the caches: each rank measures what its own
 * copies into its result take (struct copy_choice), for each magnitude of operations. Through the
 * caches a line of the result is read before it is written, which costs nothing if it is there. So
 * what a copy takes says whether the caches hold the result, whatever the system says of them.
 *
 * Ranks need not choose alike. A copy that took several times as long as the fastest of its
 * operation does not count: the rank lost its core meanwhile. */
#include "client/lib/coll/coll_steps.h"

enum { LOST_CORE = 4 };

static struct result_way *result_way(const struct run *r)
{
    uint64_t n = r->plan.count * r->plan.esize * r->group->board.world / PLAN_AROUND_LEAST;
    unsigned i = n ? 63 - (unsigned)__builtin_clzll(n) : 0;

    return &r->group->results[MIN(i, (unsigned)RESULT_WAYS - 1)];
}

static void next_round(const struct run *r, struct result_way *w)
{
    if (!w->seq)
        choice_begin(&w->choice, r->plan.around);
    else if (w->lines)
        choice_round(&w->choice, (unsigned)MIN(w->ns * 1000 / w->lines, (uint64_t)UINT32_MAX));
    w->seq = r->desc.seq;
    w->ns = w->lines = 0;
    w->fastest_ps = UINT32_MAX;
}

static void add_copy(struct result_way *w, uint64_t ns, uint64_t lines)
{
    unsigned ps = (unsigned)MIN(ns * 1000 / lines, (uint64_t)UINT32_MAX);

    if (ps / LOST_CORE > w->fastest_ps)
        return;
    w->fastest_ps = MIN(w->fastest_ps, ps);
    w->ns += ns;
    w->lines += lines;
}

void copy_large(struct run *r, void *dst, const void *src, size_t n)
{
    struct result_way *w = result_way(r);
    uint64_t begin;

    assert(n && dst != src);
    if (w->seq != r->desc.seq)
        next_round(r, w);
    begin = now_ns();
    if (w->choice.around)
        copy_around(dst, src, n);
    else
        copy_out(dst, src, n);
    if (n >= COPY_TIMED_MIN)
        add_copy(w, now_ns() - begin, n / CACHELINE);
}
