/* test_segments.c - memory that is mapped piece by piece, as PyTorch's expandable segments are:
 * buffers across pieces, pieces that go and others that come, segments that grow. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <unistd.h>

enum { MIB = 1 << 20, SMALL = 2 * MIB, LARGE = 20 * MIB, MOST = 160 };
enum { PIECE_INTS = SMALL / sizeof(int32_t) };

struct segment {
    cu_ptr at;
    size_t piece;
    cu_mem mem[MOST];
    bool there[MOST];
};

static struct segment *segment_new(size_t piece)
{
    struct segment *s = calloc(1, sizeof *s);

    s->piece = piece;
    gpu_ok(cu.vmm_reserve(&s->at, MOST * piece, 0, 0, 0));
    return s;
}

static int32_t *segment_ints(const struct segment *s, size_t from)
{
    return (int32_t *)(uintptr_t)s->at + from;
}

static void segment_map(struct segment *s, unsigned from, unsigned to)
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    struct cu_access access = {prop.location, CU_ACCESS_READWRITE};

    for (unsigned i = from; i < to; i++) {
        gpu_ok(cu.vmm_create(&s->mem[i], s->piece, &prop, 0));
        gpu_ok(cu.vmm_map(s->at + i * s->piece, s->piece, 0, s->mem[i], 0));
        gpu_ok(cu.vmm_access(s->at + i * s->piece, s->piece, &access, 1));
        s->there[i] = true;
    }
}

static void segment_unmap(struct segment *s, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        gpu_ok(cu.vmm_unmap(s->at + i * s->piece, s->piece));
        gpu_ok(cu.vmm_release(s->mem[i]));
        s->there[i] = false;
    }
}

static void segment_free(struct segment *s)
{
    for (unsigned i = 0; i < MOST; i++)
        if (s->there[i])
            segment_unmap(s, i, i + 1);
    gpu_ok(cu.vmm_unreserve(s->at, MOST * s->piece));
    free(s);
}

/* Rank 0's buffer in place of [from, from + n) of the segment; rank 1 has an allocation. Each
 * element has a value of its own, so a piece in another one's place shows. */
static void sum(const struct segment *s, size_t from, size_t n)
{
    int32_t *x[PAIR] = {segment_ints(s, from), gpu_ints(n, 0)};
    struct commd_op op[PAIR];

    for (unsigned k = 0; k < PAIR; k++) {
        for (size_t i = 0; i < n; i++)
            x[k][i] = (int32_t)(k ? 1000000000 : i + from);
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], n);
    }
    pair_run(op, NULL);
    for (unsigned k = 0; k < PAIR; k++)
        for (size_t i = 0; i < n; i++)
            if (x[k][i] != (int32_t)(1000000000 + i + from))
                fail_msg("rank %u: element %zu is %d", k, i, x[k][i]);
    gpu_free(x[1]);
}

/* All of it went through commd-gpu: to agree upon that the group has made two operations. */
static void assert_path(void)
{
    assert_int_equal(commd_group_seq(pair.ranks->group[0]), 2);
}

static uint64_t exports(void)
{
    uint64_t (*calls)(const char *) = gpu_symbol("fakecuda_calls");

    return calls("cuMemExportToShareableHandle");
}

static void buffers_lie_across_pieces(void **state)
{
    struct segment *small = segment_new(SMALL), *large = segment_new(LARGE);

    segment_map(small, 0, 4);
    segment_map(large, 0, 2);
    sum(small, PIECE_INTS - 5, 10);
    sum(small, 17, 3 * PIECE_INTS + 11);
    sum(small, 2 * PIECE_INTS, PIECE_INTS);
    sum(large, LARGE / sizeof(int32_t) - 70000, 100000);
    assert_path();
    segment_free(small);
    segment_free(large);
}

/* The first and the last one are the same, and so are all addresses. */
static void a_piece_in_the_middle_is_another_one(void **state)
{
    struct segment *s = segment_new(SMALL);

    segment_map(s, 0, 3);
    for (unsigned i = 0; i < 3; i++) {
        sum(s, 10, 3 * PIECE_INTS - 20);
        segment_unmap(s, 1, 2);
        segment_map(s, 1, 2);
    }
    sum(s, PIECE_INTS + 3, 100);
    assert_path();
    segment_free(s);
}

static void all_of_it_is_another_one(void **state)
{
    struct segment *s = segment_new(SMALL);

    for (unsigned i = 0; i < 3; i++) {
        segment_map(s, 0, 2);
        sum(s, 5, 2 * PIECE_INTS - 10);
        segment_unmap(s, 0, 2);
    }
    assert_path();
    segment_free(s);
}

/* Each buffer needs one entry in the end, however they lie: nothing is told of again. */
static void a_segment_grows(void **state)
{
    struct segment *s = segment_new(SMALL);
    uint64_t before;

    for (unsigned n = 1; n < 6; n++) {
        segment_map(s, n - 1, n);
        sum(s, (n - 1) * PIECE_INTS, 100);
        if (n > 1)
            sum(s, (n - 1) * PIECE_INTS - 50, 100);
    }
    before = exports();
    for (unsigned i = 0; i < 3; i++)
        for (unsigned n = 1; n < 5; n++) {
            sum(s, n * PIECE_INTS - 50, 100);
            sum(s, n * PIECE_INTS, 100);
        }
    assert_int_equal(exports(), before);
    assert_path();
    segment_free(s);
}

/* What went shrinks what there is: its neighbours are told of without it. */
static void a_segment_shrinks(void **state)
{
    struct segment *s = segment_new(SMALL);

    segment_map(s, 0, 4);
    sum(s, 0, 4 * PIECE_INTS);
    segment_unmap(s, 2, 3);
    sum(s, PIECE_INTS - 50, 100);
    sum(s, 3 * PIECE_INTS, 100);
    assert_path();
    segment_free(s);
}

static void descriptors_are_closed(void **state)
{
    struct segment *s = segment_new(SMALL);
    unsigned ours = 0, theirs = 0;

    for (unsigned i = 0; i < 12; i++) {
        segment_map(s, 0, 6);
        sum(s, 9, 6 * PIECE_INTS - 20);
        if (i == 2) {
            ours = open_fds(getpid());
            theirs = open_fds(pair.service.pid);
        }
        if (i > 2) /* the pieces of the last round may not be unmapped there yet */
            assert_true(open_fds(getpid()) <= ours + 1 &&
                        open_fds(pair.service.pid) <= theirs + 2 * 2 * 6);
        segment_unmap(s, 0, 6);
    }
    assert_path();
    segment_free(s);
}

/* More than commd-gpu maps of one: it lends as much. */
static void a_buffer_of_too_many_pieces(void **state)
{
    struct segment *s = segment_new(SMALL);
    struct commd_op op[PAIR];
    int32_t *x = gpu_ints(130 * PIECE_INTS, 7);

    segment_map(s, 0, 130);
    for (unsigned k = 0; k < PAIR; k++)
        op[k] = pair_op(COMMD_BROADCAST, k, k ? x : segment_ints(s, 0), 129 * PIECE_INTS);
    segment_ints(s, 0)[0] = segment_ints(s, 0)[129 * PIECE_INTS - 1] = 5;
    pair_run(op, NULL);
    assert_int_equal(x[0], 5);
    assert_int_equal(x[PIECE_INTS], 0);
    assert_int_equal(x[129 * PIECE_INTS - 1], 5);
    assert_int_equal(x[129 * PIECE_INTS], 7);
    assert_path();
    gpu_free(x);
    segment_free(s);
}

/* The second block shares a piece with the first: both are told of together then, and the first
 * alone is not forgotten before the operation that names it. */
static void blocks_share_a_piece(void **state)
{
    enum { BLOCK = 100 };
    struct segment *s = segment_new(SMALL);
    int32_t *got = gpu_ints(PAIR * BLOCK, 0), *x = gpu_ints(PAIR * BLOCK, 7);
    const void *send[PAIR] = {segment_ints(s, 0), segment_ints(s, PIECE_INTS - 50)};
    void *recv[PAIR] = {got, got + BLOCK};
    struct commd_op op[PAIR];

    segment_map(s, 0, 3);
    sum(s, 2 * PIECE_INTS, 10); /* the path is agreed upon with other buffers */
    for (unsigned k = 0; k < PAIR; k++) {
        for (unsigned i = 0; i < BLOCK; i++)
            ((int32_t *)send[k])[i] = 3 + (int32_t)k;
        op[k] = pair_op(COMMD_ALL_TO_ALL, k, x, BLOCK);
    }
    op[0].send = op[0].recv = NULL;
    op[0].send_blocks = send;
    op[0].recv_blocks = recv;
    op[1].recv = gpu_ints(PAIR * BLOCK, 0);
    pair_run(op, NULL);
    for (unsigned i = 0; i < BLOCK; i++) {
        assert_int_equal(got[i], 3);
        assert_int_equal(got[BLOCK + i], 7);
        assert_int_equal(((int32_t *)op[1].recv)[i], 4);
    }
    assert_path();
    assert_false(pair_lost(0));
    gpu_free(op[1].recv);
    gpu_free(got);
    gpu_free(x);
    segment_free(s);
}

static uint64_t mapped_by(int32_t *const x[PAIR])
{
    struct commd_op op[PAIR];

    for (unsigned k = 0; k < PAIR; k++)
        op[k] = pair_op(COMMD_ALL_REDUCE, k, x[k], 1000);
    pair_run(op, NULL);
    assert_true(service_ask(&pair.service));
    return pair.service.device[0].mapped;
}

/* Although nothing else comes to its addresses. */
static void what_was_freed_is_closed(void **state)
{
    int32_t *x[PAIR], *y[PAIR];
    uint64_t one, both, now;

    for (unsigned k = 0; k < PAIR; k++) {
        x[k] = gpu_ints(1000, 1);
        y[k] = gpu_ints(1000, 1);
    }
    one = mapped_by(x);
    both = mapped_by(y);
    assert_true(one && both > one);
    for (unsigned k = 0; k < PAIR; k++)
        gpu_free(x[k]);
    now = both;
    for (unsigned i = 0; i < 200 && now > both - one; i++)
        now = mapped_by(y);
    assert_int_equal(now, both - one);
    for (unsigned k = 0; k < PAIR; k++)
        gpu_free(y[k]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_freed_is_closed),
        TEST(buffers_lie_across_pieces),
        TEST(a_piece_in_the_middle_is_another_one),
        TEST(all_of_it_is_another_one),
        TEST(a_segment_grows),
        TEST(a_segment_shrinks),
        TEST(descriptors_are_closed),
        TEST(a_buffer_of_too_many_pieces),
        TEST(blocks_share_a_piece),
    };

    pair_environment("1");
    gpu_load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
