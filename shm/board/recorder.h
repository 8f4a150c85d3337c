/* recorder.h - what a member writes down of its operations, for people: how many of which kind,
 * how long they took, and the last ones. See recorder.c for the model. */
#ifndef COMMD_RECORDER_H
#define COMMD_RECORDER_H

#include <stdatomic.h>

#include "shm/model/coll.h"
#include "shm/model/plan.h"

enum {
    RECORDER_RING = 64,      /* operations remembered, by their number */
    RECORDER_GPU_RING = 256, /* by commd-gpu: as many as a process has pending there */
    RECORDER_SAMPLE = 64,    /* of short operations one in so many is timed */
    RECORDER_WAITS = 4,      /* long operations remembered */
    RECORDER_BUCKET0 = 8,    /* the first bucket ends at 2^8 ns, each next one at twice as much */
    RECORDER_BUCKETS = 26,   /* 256 ns to 4.3 s, and more */
    RECORDER_BURST_OF = 16,  /* of so many rings full of operations one is timed in bursts */
    RECORDER_BURST_GAP = 21, /* rings full, at most, from a burst's beginning to the next one's */
};
/* In board_hdr.record: which operations are timed, beside those that always are. */
enum recorder_timing {
    RECORDER_NONE = 0,
    RECORDER_ALL = 1,
    RECORDER_BURSTS = 2, /* some, but those one after the other: recorder_in_burst() */
};
/* Bytes from which on the time for two looks at the clock is nothing to an operation. */
#define RECORDER_LONG (256u << 10)
/* An operation that takes so long waits for a rank, or moves very much. */
#define RECORDER_WAIT_NS 250000000u

/* One operation. `head` is written last: 0 while the rest changes. */
struct recorder_entry {
    _Atomic uint64_t head; /* seq | coll << 32 | dtype << 40 | redop << 48 */
    _Atomic uint64_t bytes;
    _Atomic uint64_t begun_ns, ended_ns; /* now_ns(); ended 0: it is not, or it failed */
};

/* One by commd-gpu. */
struct recorder_gpu_entry {
    _Atomic uint64_t head, bytes, begun_ns, ended_ns; /* likewise; begun: announced */
    _Atomic uint64_t count;
    _Atomic uint32_t root;
    _Atomic int32_t code; /* enum commd_result, when it has ended */
};
_Static_assert(sizeof(struct recorder_gpu_entry) == 48, "part of the layout");

struct recorder_sums {
    _Atomic uint64_t ops, bytes; /* all operations that were completed */
    /* Of those that were timed, each as many times as it stands for. */
    _Atomic uint64_t took_ns, buckets[RECORDER_BUCKETS];
};

struct board_recorder {
    struct recorder_sums of[COLL_COUNT];
    /* Until the last member on this node had begun; likewise. */
    _Atomic uint64_t waited_ns, waits[RECORDER_BUCKETS];
    struct recorder_entry ring[RECORDER_RING] __attribute__((aligned(CACHELINE)));
    /* The last operations that took RECORDER_WAIT_NS and more: how long, and when they had ended.
     * Behind what there was before: of clients that do not know it, it stays 0. */
    struct {
        _Atomic uint64_t took_ns, ended_ns;
    } waits_long[RECORDER_WAITS];
    struct recorder_gpu_entry gpu[RECORDER_GPU_RING] __attribute__((aligned(4096)));
} __attribute__((aligned(4096)));
_Static_assert(sizeof(struct board_recorder) == 20480, "two pages, and three for GPUs");
_Static_assert(offsetof(struct board_recorder, ring) == 3520 &&
                   offsetof(struct board_recorder, gpu) == 8192,
               "part of the layout: BOARD_VERSION");

/* ---- the member's side ----------------------------------------------------------------------- */

/* Is operation @seq one of those that are timed even if they are short? All members choose the
 * same ones. The golden ratio spreads them evenly and in no period that a program might have. */
static inline bool recorder_samples(uint32_t seq)
{
    return seq * 0x9e3779b1u < UINT32_MAX / RECORDER_SAMPLE;
}

/* Is operation @seq in a burst, which fills the ring? In the same way. */
static inline bool recorder_in_burst(uint32_t seq)
{
    return seq / RECORDER_RING * 0x9e3779b1u < UINT32_MAX / RECORDER_BURST_OF;
}

static inline bool recorder_times(uint32_t timing, uint32_t seq)
{
    return timing != RECORDER_NONE && (timing != RECORDER_BURSTS || recorder_in_burst(seq));
}

void recorder_begin(struct board_recorder *rec, uint64_t head, uint64_t bytes, uint64_t begun_ns);
/* Member @me of @n is done with the operation of @head, which it has begun with recorder_begin().
 * It stands for @weight like it; 0: it is only remembered. */
void recorder_end(struct board_recorder *recs, unsigned n, unsigned me, uint64_t head,
                  uint64_t ended_ns, unsigned weight);

/* The same of an operation by commd-gpu, that @desc.seq is the number of. It ends with @code. */
void recorder_gpu_begin(struct board_recorder *rec, const struct op_desc *desc, uint64_t bytes,
                        uint64_t begun_ns);
void recorder_gpu_end(struct board_recorder *rec, uint32_t seq, int code, uint64_t ended_ns);
/* Has @seq, which had begun, ended? One that is not remembered any more counts as ended. */
bool recorder_gpu_ended(const struct board_recorder *rec, uint32_t seq);

static inline uint64_t recorder_head(uint32_t seq, unsigned coll, unsigned dtype, unsigned redop)
{
    return seq | (uint64_t)coll << 32 | (uint64_t)dtype << 40 | (uint64_t)redop << 48;
}

static inline void recorder_count(struct board_recorder *rec, unsigned coll, uint64_t bytes)
{
    struct recorder_sums *s = &rec->of[coll];

    invariant(coll < COLL_COUNT);
    /* the only writer: no read-modify-write is needed */
    atomic_store_explicit(&s->ops, atomic_load_explicit(&s->ops, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&s->bytes, atomic_load_explicit(&s->bytes, memory_order_relaxed) + bytes,
                          memory_order_relaxed);
}

/* ---- the reader's side ----------------------------------------------------------------------- */

/* A copy of an entry. */
struct recorder_op {
    uint32_t seq; /* 0: none */
    uint8_t coll, dtype, redop;
    bool gpu; /* by commd-gpu */
    uint64_t bytes, begun_ns, ended_ns;
};

/* A copy of the sums. Numbers that no honest member could have are cut down to the largest that one
 * could have, so that sums of them do not wrap. */
struct recorder_totals {
    struct {
        uint64_t ops, bytes, took_ns, buckets[RECORDER_BUCKETS];
    } of[COLL_COUNT];
    uint64_t waited_ns, waits[RECORDER_BUCKETS];
};

/* Entry @i of the ring; false: there is none, or it is being written. */
bool recorder_read(const struct board_recorder *rec, unsigned i, struct recorder_op *ret_op);
/* The same of those by commd-gpu. *ret_desc without a digest; *ret_code if it has ended. */
bool recorder_gpu_read(const struct board_recorder *rec, unsigned i, struct recorder_op *ret_op,
                       struct op_desc *ret_desc, int *ret_code);
/* How long operations take again and again: the third longest of the last long ones, of those that
 * ended lately. 0: there were fewer. Not the longest: the first waits of a job say nothing. */
uint64_t recorder_usual_ns(const struct board_recorder *rec, uint64_t now_ns);
/* The oldest first, by their numbers, which wrap. A member may have written any numbers: then the
 * order means nothing, but it is one. */
void recorder_sort(struct recorder_op *ops, unsigned n);
/* Adds what @rec holds. */
void recorder_add(const struct board_recorder *rec, struct recorder_totals *totals);
/* Adds to @totals what @now has more than @before. Sums never shrink, but of a board that somebody
 * has tampered with. */
void recorder_gain(const struct recorder_totals *now, const struct recorder_totals *before,
                   struct recorder_totals *totals);
/* What the buckets end at: nanoseconds; the last one ends nowhere. */
static inline uint64_t recorder_bucket_ns(unsigned bucket)
{
    return 1ull << (RECORDER_BUCKET0 + bucket);
}

#endif
