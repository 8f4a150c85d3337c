/* test_recorder.c - what a member writes down of its operations, and what others read of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shm/board/recorder.h"
#include "shm/model/dtype.h"

static struct board_recorder *recorders(unsigned n)
{
    struct board_recorder *recs = aligned_alloc(4096, n * sizeof(*recs));

    assert_non_null(recs);
    memset(recs, 0, n * sizeof(*recs));
    return recs;
}

static uint64_t head_of(uint32_t seq)
{
    return recorder_head(seq, COLL_ALL_REDUCE, DTYPE_F32, REDOP_SUM);
}

static void entries_of_gpus_are_apart(void **state)
{
    struct board_recorder *rec = recorders(1);
    struct op_desc desc = {.seq = 3,
                           .count = 100,
                           .root = 2,
                           .coll = COLL_REDUCE,
                           .dtype = DTYPE_F32,
                           .redop = REDOP_SUM},
                   got;
    struct recorder_op op;
    int code = 7;

    assert_false(recorder_gpu_read(rec, 3, &op, &got, &code));
    recorder_gpu_begin(rec, &desc, 400, 1000);
    assert_false(recorder_read(rec, 3, &op));
    assert_true(recorder_gpu_read(rec, 3, &op, &got, &code));
    assert_true(op.gpu && op.seq == 3 && op.bytes == 400 && op.begun_ns == 1000 && !op.ended_ns);
    assert_memory_equal(&got, &desc, sizeof(got));
    assert_int_equal(code, 0);
    recorder_gpu_end(rec, 3 + RECORDER_GPU_RING, -5, 2000); /* it is another's place by now */
    assert_true(recorder_gpu_read(rec, 3, &op, &got, &code) && !op.ended_ns);
    recorder_gpu_end(rec, 3, -5, 2000);
    assert_true(recorder_gpu_read(rec, 3, &op, &got, &code) && op.ended_ns == 2000);
    assert_int_equal(code, -5);
    desc.seq = 3 + RECORDER_GPU_RING;
    recorder_gpu_begin(rec, &desc, 4, 3000);
    assert_true(recorder_gpu_read(rec, 3, &op, &got, &code));
    assert_true(op.seq == 3 + RECORDER_GPU_RING && !op.ended_ns && !code);
    free(rec);
}

/* How often a number is less than the one before it. */
static unsigned descents(const struct recorder_op *ops, unsigned n)
{
    unsigned found = 0;

    for (unsigned i = 1; i < n; i++)
        found += ops[i].seq < ops[i - 1].seq;
    return found;
}

static void operations_are_sorted_whatever_their_numbers_are(void **state)
{
    struct recorder_op ops[RECORDER_RING];
    uint32_t number = 1;

    for (unsigned i = 0; i < RECORDER_RING; i++) /* as a ring holds them that has wrapped */
        ops[i] = (struct recorder_op){.seq = (i + 20) % RECORDER_RING - 30};
    recorder_sort(ops, RECORDER_RING);
    for (unsigned i = 0; i < RECORDER_RING; i++)
        assert_int_equal(ops[i].seq, i - 30);
    for (unsigned i = 0; i < RECORDER_RING; i++) { /* as nobody honest writes them */
        number = number * 1664525 + 1013904223;
        ops[i].seq = number;
    }
    recorder_sort(ops, RECORDER_RING);
    assert_true(descents(ops, RECORDER_RING) <= 1); /* once around the circle */
    recorder_sort(ops, 0);
}

/* One in RECORDER_SAMPLE, evenly, whatever the period of a program is. */
static void samples_are_even(void **state)
{
    unsigned all = 0, last = 0, by_period[128] = {0};

    for (uint32_t seq = 1; seq <= 1 << 20; seq++) {
        if (!recorder_samples(seq))
            continue;
        assert_true(seq - last <= 2 * RECORDER_SAMPLE); /* no long time without */
        last = seq;
        all++;
        by_period[seq % 128]++;
    }
    assert_in_range(all, (1 << 20) / RECORDER_SAMPLE - 8, (1 << 20) / RECORDER_SAMPLE + 8);
    for (unsigned i = 0; i < 128; i++)
        assert_in_range(by_period[i], 64, 256); /* 128 on average */
}

/* Whoever looks when RECORDER_BURST_GAP + 1 rings full were done finds a ring that one burst has
 * filled since the last look, but for samples that came later. A sixteenth is timed for it. */
static void bursts_fill_the_ring(void **state)
{
    unsigned all = 0, length = 0;
    uint32_t last = 0;

    for (uint32_t seq = RECORDER_RING; seq < 1 << 22; seq++) {
        length = recorder_in_burst(seq) ? length + 1 : 0;
        all += length > 0;
        if (!length || length % RECORDER_RING)
            continue;
        assert_int_equal(seq % RECORDER_RING, RECORDER_RING - 1); /* a whole one ends */
        assert_true(!last || seq - last <= RECORDER_BURST_GAP * RECORDER_RING);
        last = seq;
    }
    assert_in_range(all, (1 << 22) / RECORDER_BURST_OF - 1024,
                    (1 << 22) / RECORDER_BURST_OF + 1024);
    assert_false(recorder_times(RECORDER_NONE, last));
    assert_true(recorder_times(RECORDER_BURSTS, last));
    assert_false(recorder_times(RECORDER_BURSTS, last + 1));
    assert_true(recorder_times(RECORDER_ALL, last + 1));
}

static void an_entry_is_what_was_begun(void **state)
{
    struct board_recorder *rec = recorders(1);
    struct recorder_op op;

    assert_false(recorder_read(rec, 7, &op));
    recorder_begin(rec, head_of(7), 40, 1000);
    assert_true(recorder_read(rec, 7, &op));
    assert_int_equal(op.seq, 7);
    assert_int_equal(op.coll, COLL_ALL_REDUCE);
    assert_int_equal(op.dtype, DTYPE_F32);
    assert_int_equal(op.redop, REDOP_SUM);
    assert_int_equal(op.bytes, 40);
    assert_int_equal(op.begun_ns, 1000);
    assert_int_equal(op.ended_ns, 0);
    recorder_end(rec, 1, 0, head_of(7), 1500, 1);
    assert_true(recorder_read(rec, 7, &op));
    assert_int_equal(op.ended_ns, 1500);
    recorder_begin(rec, head_of(7 + RECORDER_RING), 8, 9000); /* takes its place */
    assert_true(recorder_read(rec, 7, &op));
    assert_int_equal(op.seq, 7 + RECORDER_RING);
    assert_int_equal(op.ended_ns, 0);
    rec->ring[7].head = 0; /* it is being written, or somebody tampers */
    assert_false(recorder_read(rec, 7, &op));
    rec->ring[7].head = recorder_head(7, COLL_COUNT, 0, 0);
    assert_false(recorder_read(rec, 7, &op));
    rec->ring[7].head = UINT64_MAX;
    assert_false(recorder_read(rec, 7, &op));
    free(rec);
}

static unsigned only_bucket(const uint64_t buckets[RECORDER_BUCKETS], uint64_t count)
{
    unsigned found = RECORDER_BUCKETS;

    for (unsigned b = 0; b < RECORDER_BUCKETS; b++)
        if (buckets[b]) {
            assert_int_equal(found, RECORDER_BUCKETS);
            assert_int_equal(buckets[b], count);
            found = b;
        }
    assert_true(found < RECORDER_BUCKETS);
    return found;
}

static void durations_lie_in_their_buckets(void **state)
{
    static const struct {
        uint64_t ns;
        unsigned bucket;
    } cases[] = {{0, 0},
                 {1, 0},
                 {256, 0},
                 {257, 1},
                 {512, 1},
                 {513, 2},
                 {1ull << 32, RECORDER_BUCKETS - 2},
                 {(1ull << 32) + 1, RECORDER_BUCKETS - 1},
                 {1ull << 50, RECORDER_BUCKETS - 1}};

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct board_recorder *rec = recorders(1);
        struct recorder_totals totals = {0};
        unsigned b;

        recorder_begin(rec, head_of(1), 8, 5);
        recorder_end(rec, 1, 0, head_of(1), 5 + cases[i].ns, 3);
        recorder_count(rec, COLL_ALL_REDUCE, 8);
        recorder_add(rec, &totals);
        b = only_bucket(totals.of[COLL_ALL_REDUCE].buckets, 3);
        assert_int_equal(b, cases[i].bucket);
        assert_int_equal(totals.of[COLL_ALL_REDUCE].took_ns, 3 * cases[i].ns);
        if (b + 1 < RECORDER_BUCKETS)
            assert_true(cases[i].ns <= recorder_bucket_ns(b));
        free(rec);
    }
}

/* Who comes first waits until the last one has come, and not until it is done. */
static void waits_end_with_the_last_arrival(void **state)
{
    struct board_recorder *recs = recorders(3);
    struct recorder_totals totals[3] = {{.waited_ns = 0}};

    recorder_begin(&recs[0], head_of(1), 8, 1000);
    recorder_begin(&recs[2], head_of(1), 8, 2000);
    recorder_begin(&recs[1], head_of(1), 8, 5000);
    for (unsigned m = 0; m < 3; m++) {
        recorder_end(recs, 3, m, head_of(1), 6000, 64);
        recorder_count(&recs[m], COLL_ALL_REDUCE, 8);
        recorder_add(&recs[m], &totals[m]);
    }
    assert_int_equal(totals[0].waited_ns, 64 * 4000);
    assert_int_equal(totals[2].waited_ns, 64 * 3000);
    assert_int_equal(totals[1].waited_ns, 0);
    assert_int_equal(only_bucket(totals[1].waits, 64), 0);

    /* of another operation, or from beyond the end, nothing is believed */
    recorder_begin(&recs[0], head_of(2), 8, 7000);
    recs[2].ring[2].head = head_of(2 + RECORDER_RING);
    recs[2].ring[2].begun_ns = 7500;
    recorder_begin(&recs[1], head_of(2), 8, UINT64_MAX);
    recorder_end(recs, 3, 0, head_of(2), 8000, 1);
    totals[0] = (struct recorder_totals){0};
    recorder_add(&recs[0], &totals[0]);
    assert_int_equal(totals[0].waited_ns, 64 * 4000 + 1000);
    free(recs);
}

/* Whether an operation is only remembered: the sums are of those that stand for others. */
static void what_is_only_remembered_is_not_summed(void **state)
{
    struct board_recorder *rec = recorders(1);
    struct recorder_totals totals = {0};

    recorder_begin(rec, head_of(1), 8, 1000);
    recorder_end(rec, 1, 0, head_of(1), 2000, 0);
    recorder_count(rec, COLL_ALL_REDUCE, 8);
    recorder_add(rec, &totals);
    assert_int_equal(totals.of[COLL_ALL_REDUCE].ops, 1);
    assert_int_equal(totals.of[COLL_ALL_REDUCE].bytes, 8);
    assert_int_equal(totals.of[COLL_ALL_REDUCE].took_ns, 0);
    free(rec);
}

static void wait_for(struct board_recorder *rec, uint32_t seq, uint64_t begun, uint64_t took)
{
    recorder_begin(rec, head_of(seq), 4, begun);
    recorder_end(rec, 1, 0, head_of(seq), begun + took, 0);
}

static void what_is_usual_has_come_thrice(void **state)
{
    const uint64_t ms = 1000000, s = 1000 * ms;
    struct board_recorder *rec = recorders(1);

    wait_for(rec, 1, 1 * s, 9 * s);
    wait_for(rec, 2, 10 * s, 2 * s);
    wait_for(rec, 3, 12 * s, RECORDER_WAIT_NS - 1); /* short */
    assert_int_equal(recorder_usual_ns(rec, 15 * s), 0);
    wait_for(rec, 67, 14 * s, 1 * s);
    assert_int_equal(recorder_usual_ns(rec, 15 * s), 1 * s);
    wait_for(rec, 68, 15 * s, 3 * s);
    assert_int_equal(recorder_usual_ns(rec, 18 * s), 2 * s);
    wait_for(rec, 69, 18 * s, 300 * ms); /* the first one, of 9 s, is forgotten */
    assert_int_equal(recorder_usual_ns(rec, 19 * s), 1 * s);
    assert_int_equal(recorder_usual_ns(rec, 1000 * s), 0); /* so are all */
    free(rec);
}

/* A client of before writes its last operations where it always did, and what is usual nowhere. */
static void what_an_older_client_writes(void **state)
{
    enum { RING_AT = 3520 };
    struct board_recorder *rec = recorders(1);
    struct recorder_entry *ring = (void *)((uint8_t *)rec + RING_AT);
    struct recorder_op op;

    for (uint32_t i = 0; i < RECORDER_RING; i++) {
        atomic_store(&ring[i].head, recorder_head(64 + i, COLL_ALL_REDUCE, 0, 0));
        atomic_store(&ring[i].bytes, 4096);
        atomic_store(&ring[i].begun_ns, 5000000000000 + i);
        atomic_store(&ring[i].ended_ns, 5000000001000 + i);
    }
    for (uint32_t i = 0; i < RECORDER_RING; i++) {
        assert_true(recorder_read(rec, i, &op));
        assert_int_equal(op.seq, 64 + i);
    }
    assert_int_equal(recorder_usual_ns(rec, 5000000002000), 0);
    free(rec);
}

/* A member writes what it likes: sums do not wrap, and never go back. */
static void tampered_sums_stay_sums(void **state)
{
    struct board_recorder *rec = recorders(1);
    struct recorder_totals totals = {0}, before = {0}, now = {0};

    memset((void *)rec, 0xff, sizeof(*rec));
    for (unsigned i = 0; i < 100000; i++)
        recorder_add(rec, &now);
    assert_true(now.waited_ns < 1ull << 56);
    recorder_gain(&now, &before, &totals);
    assert_true(totals.of[COLL_BARRIER].ops > 0);
    before = now;
    memset((void *)rec, 0, sizeof(*rec));
    recorder_count(rec, COLL_BARRIER, 1);
    now = (struct recorder_totals){0};
    recorder_add(rec, &now);
    recorder_gain(&now, &before, &totals);
    assert_int_equal(totals.of[COLL_BARRIER].ops, before.of[COLL_BARRIER].ops);
    before = now;
    recorder_count(rec, COLL_BARRIER, 1);
    now = (struct recorder_totals){0};
    recorder_add(rec, &now);
    recorder_gain(&now, &before, &totals);
    assert_int_equal(now.of[COLL_BARRIER].ops, 2);
    free(rec);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_of_gpus_are_apart),
        cmocka_unit_test(operations_are_sorted_whatever_their_numbers_are),
        cmocka_unit_test(samples_are_even),
        cmocka_unit_test(bursts_fill_the_ring),
        cmocka_unit_test(an_entry_is_what_was_begun),
        cmocka_unit_test(durations_lie_in_their_buckets),
        cmocka_unit_test(waits_end_with_the_last_arrival),
        cmocka_unit_test(what_is_only_remembered_is_not_summed),
        cmocka_unit_test(what_is_usual_has_come_thrice),
        cmocka_unit_test(what_an_older_client_writes),
        cmocka_unit_test(tampered_sums_stay_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
