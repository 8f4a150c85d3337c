/* recorder.c - the flight recorder of a member, in the board's control pages, so that commd reads
 * it while the member runs, hangs, or is dead. The model:
 *
 * All operations are counted. Long ones are timed, and of short ones one in RECORDER_SAMPLE,
 * because two looks at the clock take a fifth of the time of the shortest operation. In the sums
 * such a sample stands for RECORDER_SAMPLE operations. While somebody watches (board_hdr.record)
 * all are timed, or bursts of them, but the others do not go into the sums. An operation that goes
 * to sleep is always remembered, so that a hang can be seen.
 *
 * Entry seq % RECORDER_RING belongs to operation seq on all members, and no member can begin
 * operation seq + RECORDER_RING while another one is in seq. So a member that ends an operation
 * finds there when the others began it, and knows how long it waited for the last one.
 *
 * Operations by commd-gpu have numbers and a ring of their own; all of them are timed, since they
 * cost microseconds to announce. They are in no sum. What a member had pending there when it died
 * is remembered: the ring holds as many as it can have.
 *
 * Who writes: the member, alone. Who reads: the other members, begun_ns only, and commd. Whatever
 * they read is shown, never decided by. What if the member dies now: the entry stays as it is. */
#include "shm/board/recorder.h"

/* Above what is honest: a year in nanoseconds, operations or bytes at any rate there is. */
#define MOST (1ull << 55)
/* A long operation counts for a minute, and 20 times as long as it took. */
#define LATELY_NS    60000000000ull
#define LATELY_TIMES 20u

void recorder_begin(struct board_recorder *rec, uint64_t head, uint64_t bytes, uint64_t begun_ns)
{
    struct recorder_entry *e = &rec->ring[(uint32_t)head % RECORDER_RING];

    assert((head >> 32 & 0xff) < COLL_COUNT);
    atomic_store_explicit(&e->head, 0, memory_order_relaxed);
    /* release: who sees what comes behind sees that it is being written */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&e->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&e->begun_ns, begun_ns, memory_order_relaxed);
    atomic_store_explicit(&e->ended_ns, 0, memory_order_relaxed);
    /* release: pairs with acquire in recorder_read() and began_last() */
    atomic_store_explicit(&e->head, head, memory_order_release);
}

static unsigned bucket_of(uint64_t ns)
{
    unsigned bits = ns > 1 ? 64 - (unsigned)__builtin_clzll(ns - 1) : 0; /* 2^bits >= ns */

    if (bits <= RECORDER_BUCKET0)
        return 0;
    return MIN(bits - RECORDER_BUCKET0, (unsigned)RECORDER_BUCKETS - 1);
}

/* The only writer of @sum. */
static void sum_add(_Atomic uint64_t *sum, uint64_t n)
{
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* When the last of the members of this node had begun it, as far as they wrote that down. */
static uint64_t began_last(const struct board_recorder *recs, unsigned n, uint64_t head)
{
    uint64_t last = 0;

    for (unsigned m = 0; m < n; m++) {
        const struct recorder_entry *e = &recs[m].ring[(uint32_t)head % RECORDER_RING];

        if ((uint32_t)atomic_load_explicit(&e->head, memory_order_acquire) == (uint32_t)head)
            last = MAX(last, atomic_load_explicit(&e->begun_ns, memory_order_relaxed));
    }
    return last;
}

/* In place of the oldest one. */
static void keep_wait(struct board_recorder *rec, uint64_t took_ns, uint64_t ended_ns)
{
    unsigned oldest = 0;

    for (unsigned i = 1; i < RECORDER_WAITS; i++)
        if (atomic_load_explicit(&rec->waits_long[i].ended_ns, memory_order_relaxed) <
            atomic_load_explicit(&rec->waits_long[oldest].ended_ns, memory_order_relaxed))
            oldest = i;
    atomic_store_explicit(&rec->waits_long[oldest].took_ns, took_ns, memory_order_relaxed);
    atomic_store_explicit(&rec->waits_long[oldest].ended_ns, ended_ns, memory_order_relaxed);
}

void recorder_end(struct board_recorder *recs, unsigned n, unsigned me, uint64_t head,
                  uint64_t ended_ns, unsigned weight)
{
    struct board_recorder *rec = &recs[me];
    struct recorder_entry *e = &rec->ring[(uint32_t)head % RECORDER_RING];
    struct recorder_sums *sums = &rec->of[head >> 32 & 0xff];
    uint64_t begun = atomic_load_explicit(&e->begun_ns, memory_order_relaxed);
    uint64_t took = ended_ns > begun ? ended_ns - begun : 0, last, waited;

    assert(me < n && (head >> 32 & 0xff) < COLL_COUNT);
    if (weight) {
        last = began_last(recs, n, head);
        waited = last > begun ? MIN(last - begun, took) : 0;
        sum_add(&sums->took_ns, took * weight);
        sum_add(&sums->buckets[bucket_of(took)], weight);
        sum_add(&rec->waited_ns, waited * weight);
        sum_add(&rec->waits[bucket_of(waited)], weight);
    }
    if (took >= RECORDER_WAIT_NS)
        keep_wait(rec, took, ended_ns);
    /* release: who sees the end has seen the rest */
    atomic_store_explicit(&e->ended_ns, ended_ns, memory_order_release);
}

uint64_t recorder_usual_ns(const struct board_recorder *rec, uint64_t now_ns)
{
    uint64_t longest[3] = {0};

    for (unsigned i = 0; i < RECORDER_WAITS; i++) {
        uint64_t took = atomic_load_explicit(&rec->waits_long[i].took_ns, memory_order_relaxed);
        uint64_t ended = atomic_load_explicit(&rec->waits_long[i].ended_ns, memory_order_relaxed);

        took = MIN(took, MOST);
        if (now_ns > ended && now_ns - ended > LATELY_NS + LATELY_TIMES * took)
            continue;
        for (unsigned k = 0; k < ARRAY_LEN(longest); k++)
            if (took > longest[k]) {
                uint64_t less = longest[k];

                longest[k] = took;
                took = less;
            }
    }
    return longest[2];
}

/* Of an entry of either ring, whose @word was read before. */
#define COPY_OF(e, word)                                                                           \
    {                                                                                              \
        .seq = (uint32_t)(word),                                                                   \
        .coll = (uint8_t)((word) >> 32),                                                           \
        .dtype = (uint8_t)((word) >> 40),                                                          \
        .redop = (uint8_t)((word) >> 48),                                                          \
        .ended_ns = atomic_load_explicit(&(e)->ended_ns, memory_order_acquire),                    \
        .bytes = atomic_load_explicit(&(e)->bytes, memory_order_relaxed),                          \
        .begun_ns = atomic_load_explicit(&(e)->begun_ns, memory_order_relaxed),                    \
    }

bool recorder_read(const struct board_recorder *rec, unsigned i, struct recorder_op *ret_op)
{
    const struct recorder_entry *e = &rec->ring[i % RECORDER_RING];
    uint64_t head = atomic_load_explicit(&e->head, memory_order_acquire);
    struct recorder_op op = COPY_OF(e, head);

    /* acquire: what was read belongs to the head that was read before, or it has changed */
    atomic_thread_fence(memory_order_acquire);
    if (!op.seq || op.coll >= COLL_COUNT ||
        atomic_load_explicit(&e->head, memory_order_relaxed) != head)
        return false;
    *ret_op = op;
    return true;
}

/* ---- by commd-gpu -------------------------------------------------------------------------------
 */

void recorder_gpu_begin(struct board_recorder *rec, const struct op_desc *desc, uint64_t bytes,
                        uint64_t begun_ns)
{
    struct recorder_gpu_entry *e = &rec->gpu[(uint32_t)desc->seq % RECORDER_GPU_RING];

    assert(desc->seq && desc->coll < COLL_COUNT);
    atomic_store_explicit(&e->head, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* as in recorder_begin() */
    atomic_store_explicit(&e->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&e->begun_ns, begun_ns, memory_order_relaxed);
    atomic_store_explicit(&e->ended_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&e->count, desc->count, memory_order_relaxed);
    atomic_store_explicit(&e->root, desc->root, memory_order_relaxed);
    atomic_store_explicit(&e->code, 0, memory_order_relaxed);
    /* release: pairs with acquire in recorder_gpu_read() */
    atomic_store_explicit(&e->head,
                          recorder_head((uint32_t)desc->seq, desc->coll, desc->dtype, desc->redop),
                          memory_order_release);
}

void recorder_gpu_end(struct board_recorder *rec, uint32_t seq, int code, uint64_t ended_ns)
{
    struct recorder_gpu_entry *e = &rec->gpu[seq % RECORDER_GPU_RING];

    if ((uint32_t)atomic_load_explicit(&e->head, memory_order_relaxed) != seq)
        return;
    atomic_store_explicit(&e->code, code, memory_order_relaxed);
    /* release: who sees the end has seen how */
    atomic_store_explicit(&e->ended_ns, ended_ns, memory_order_release);
}

bool recorder_gpu_ended(const struct board_recorder *rec, uint32_t seq)
{
    const struct recorder_gpu_entry *e = &rec->gpu[seq % RECORDER_GPU_RING];

    return (uint32_t)atomic_load_explicit(&e->head, memory_order_relaxed) != seq ||
           atomic_load_explicit(&e->ended_ns, memory_order_relaxed);
}

bool recorder_gpu_read(const struct board_recorder *rec, unsigned i, struct recorder_op *ret_op,
                       struct op_desc *ret_desc, int *ret_code)
{
    const struct recorder_gpu_entry *e = &rec->gpu[i % RECORDER_GPU_RING];
    uint64_t head = atomic_load_explicit(&e->head, memory_order_acquire);
    struct recorder_op op = COPY_OF(e, head);
    struct op_desc desc = {
        .seq = op.seq,
        .count = atomic_load_explicit(&e->count, memory_order_relaxed),
        .root = atomic_load_explicit(&e->root, memory_order_relaxed),
        .coll = op.coll,
        .dtype = op.dtype,
        .redop = op.redop,
    };
    int code = atomic_load_explicit(&e->code, memory_order_relaxed);

    op.gpu = true;
    atomic_thread_fence(memory_order_acquire); /* as in recorder_read() */
    if (!op.seq || op.coll >= COLL_COUNT ||
        atomic_load_explicit(&e->head, memory_order_relaxed) != head)
        return false;
    *ret_op = op;
    *ret_desc = desc;
    *ret_code = op.ended_ns ? code : 0;
    return true;
}

/* By their distance from one of them: "before" between two alone is no order of numbers that lie
 * around the whole circle, and qsort(3) may go anywhere with such a one. */
static int older_first(const void *a, const void *b, void *arg)
{
    const struct recorder_op *x = a, *y = b;
    const uint32_t *from = arg;
    int32_t dx = (int32_t)(x->seq - *from), dy = (int32_t)(y->seq - *from);

    return (dx > dy) - (dx < dy);
}

void recorder_sort(struct recorder_op *ops, unsigned n)
{
    uint32_t from = n ? ops[0].seq : 0;

    qsort_r(ops, n, sizeof(ops[0]), older_first, &from);
}

/* ---- sums ---------------------------------------------------------------------------------------
 */

static void totals_add(uint64_t *total, const _Atomic uint64_t *sum)
{
    uint64_t n = atomic_load_explicit(sum, memory_order_relaxed);

    *total = MIN(*total + MIN(n, MOST), MOST);
}

void recorder_add(const struct board_recorder *rec, struct recorder_totals *totals)
{
    for (unsigned c = 0; c < COLL_COUNT; c++) {
        const struct recorder_sums *s = &rec->of[c];

        if (!atomic_load_explicit(&s->ops, memory_order_relaxed))
            continue;
        totals_add(&totals->of[c].ops, &s->ops);
        totals_add(&totals->of[c].bytes, &s->bytes);
        totals_add(&totals->of[c].took_ns, &s->took_ns);
        for (unsigned b = 0; b < RECORDER_BUCKETS; b++)
            totals_add(&totals->of[c].buckets[b], &s->buckets[b]);
    }
    totals_add(&totals->waited_ns, &rec->waited_ns);
    for (unsigned b = 0; b < RECORDER_BUCKETS; b++)
        totals_add(&totals->waits[b], &rec->waits[b]);
}

static void gain(uint64_t now, uint64_t before, uint64_t *total)
{
    if (now > before)
        *total += now - before;
}

void recorder_gain(const struct recorder_totals *now, const struct recorder_totals *before,
                   struct recorder_totals *totals)
{
    for (unsigned c = 0; c < COLL_COUNT; c++) {
        if (!now->of[c].ops)
            continue;
        gain(now->of[c].ops, before->of[c].ops, &totals->of[c].ops);
        gain(now->of[c].bytes, before->of[c].bytes, &totals->of[c].bytes);
        gain(now->of[c].took_ns, before->of[c].took_ns, &totals->of[c].took_ns);
        for (unsigned b = 0; b < RECORDER_BUCKETS; b++)
            gain(now->of[c].buckets[b], before->of[c].buckets[b], &totals->of[c].buckets[b]);
    }
    gain(now->waited_ns, before->waited_ns, &totals->waited_ns);
    for (unsigned b = 0; b < RECORDER_BUCKETS; b++)
        gain(now->waits[b], before->waits[b], &totals->waits[b]);
}
