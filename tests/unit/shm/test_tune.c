/* test_tune.c - chunk, depth and stores past the caches on machines like those that exist, in parts
 * of them, and where nothing is known; and boards that say what no machine would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/board/board.h"

#define KIB *UINT64_C(1024)
#define MIB *UINT64_C(1048576)

/* CPUs, cores, last-level caches, sockets, nodes; bytes of such a cache, and of a core's own. */
static const struct topology two_cores_zen4 = {2, 2, 1, 1, 1, 32 MIB, 1 MIB},
                             two_threads_zen4 = {2, 1, 1, 1, 1, 32 MIB, 1 MIB},
                             two_cores_zen3 = {2, 2, 1, 1, 1, 32 MIB, 512 KIB},
                             two_threads_zen3 = {2, 1, 1, 1, 1, 32 MIB, 512 KIB},
                             genoa = {256, 128, 16, 2, 2, 32 MIB, 1 MIB},
                             genoa_slice = {4, 4, 1, 1, 1, 32 MIB, 1 MIB}, /* a cpuset */
    sapphire = {224, 112, 2, 2, 2, 105 MIB, 2 MIB}, grace = {72, 72, 1, 1, 1, 114 MIB, 1 MIB},
                             small_arm = {4, 4, 1, 1, 1, 1 MIB, 32 KIB},
                             silent = {6, 6, 1, 1, 1, 0, 0}, half = {6, 6, 1, 1, 1, 32 MIB, 0};

static void machines_have_their_plan(void **state)
{
    static const struct {
        const struct topology *machine;
        unsigned nlocal;
        struct tune want;
    } rows[] = {
        {&two_cores_zen4, 2, {256 KIB, 8, 16 MIB}},
        {&two_cores_zen4, 8, {256 KIB, 8, 4 MIB}}, /* they take turns: all windows are live */
        {&two_threads_zen4, 2, {256 KIB, 8, 16 MIB}},
        {&two_cores_zen3, 2, {256 KIB, 4, 16 MIB}},
        {&two_threads_zen3, 2, {256 KIB, 4, 16 MIB}},
        {&genoa, 2, {256 KIB, 8, 256 MIB}},
        {&genoa, 128, {256 KIB, 8, 4 MIB}},
        {&genoa, 256, {256 KIB, 8, 2 MIB}}, /* 1.5 MB is as near to 2 as to 1 */
        {&genoa_slice, 4, {256 KIB, 8, 8 MIB}},
        {&sapphire, 2, {256 KIB, 16, 105 MIB}},
        {&sapphire, 8, {256 KIB, 16, 26 MIB + 256 KIB}},
        {&sapphire, 112, {256 KIB, 8, 1920 KIB}},
        {&grace, 4, {256 KIB, 8, 28 MIB + 512 KIB}},
        {&grace, 72, {256 KIB, 4, 114 MIB / 72}},
        {&small_arm, 4, {128 KIB, 4, 256 KIB}},
        {&silent, 4, {PLAN_CHUNK, PLAN_DEPTH_ONE, 0}},
        {&half, 4, {PLAN_CHUNK, PLAN_DEPTH_ONE, 0}},
        {NULL, 4, {PLAN_CHUNK, PLAN_DEPTH_ONE, 0}},
        {&genoa, 0, {PLAN_CHUNK, PLAN_DEPTH_ONE, 0}},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        const struct tune *w = &rows[i].want;
        struct tune t;

        tune_one_node(rows[i].machine, rows[i].nlocal, &t);
        if (t.chunk != w->chunk || t.depth != w->depth || t.around != w->around)
            fail_msg("row %u: chunk %u depth %u around %llu", i, t.chunk, t.depth,
                     (unsigned long long)t.around);
    }
}

/* Whatever sysfs says, boards can have it. */
static void no_machine_gives_a_board_that_cannot_be(void **state)
{
    for (unsigned a = 0; a < 64; a++)
        for (unsigned b = 0; b < 64; b++)
            for (unsigned nlocal = 1; nlocal <= BOARD_MAX_LOCAL; nlocal *= 2) {
                const struct topology m = {.caches = 1 + a % 17,
                                           .cache_bytes = UINT64_MAX >> a,
                                           .core_bytes = UINT64_MAX >> b};
                struct tune t;

                tune_one_node(&m, nlocal, &t);
                assert_true(tune_valid(t.chunk, t.depth));
            }
}

static void make_board(const struct topology *machine, int *ret_fd, struct board *ret_board)
{
    static const uint16_t rank_node[] = {0, 0};
    const struct board_geom g = {.group = 1,
                                 .epoch = 1,
                                 .world = 2,
                                 .nnodes = 1,
                                 .nlocal = 2,
                                 .rank_node = rank_node,
                                 .machine = machine};
    struct board_ctl *ctl;

    assert_int_equal(board_create(&g, ret_fd, &ctl), 0);
    assert_int_equal(board_ctl_bytes(ctl), board_size(&g));
    board_ctl_free(ctl);
    assert_int_equal(board_map(*ret_fd, ret_board), 0);
}

/* All members take it from the board, whatever they would find themselves. */
static void members_have_what_the_board_says(void **state)
{
    struct board b, again;
    int fd;

    make_board(&sapphire, &fd, &b);
    assert_int_equal(b.chunk, 256 KIB);
    assert_int_equal(b.depth, 16);
    assert_int_equal(b.around, 105 MIB);
    /* windows follow each other, and so does what is behind them */
    assert_ptr_equal(board_window(&b, 1, 0, b.chunk), b.window + 16 * b.chunk);
    assert_ptr_equal(b.result, b.window + 2 * 16 * b.chunk);
    assert_int_equal(board_map(fd, &again), 0);
    assert_int_equal(again.depth, 16);
    board_unmap(&again);
    board_unmap(&b);
    close(fd);
}

static void a_board_that_says_what_no_machine_would_is_refused(void **state)
{
    static const struct {
        uint32_t chunk, depth;
    } bad[] = {{0, 8},        {64 KIB, 8},           {512 KIB, 8},    {192 KIB, 8}, {256 KIB, 0},
               {256 KIB, 17}, {256 KIB, UINT32_MAX}, {UINT32_MAX, 8}, {256 KIB, 6}, /* steps wrap */
               {256 KIB, 4} /* the file is longer */};
    struct board b, again;
    int fd;

    make_board(&two_cores_zen4, &fd, &b);
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        b.hdr->chunk = bad[i].chunk;
        b.hdr->depth = bad[i].depth;
        assert_int_equal(board_map(fd, &again), BOARD_E_BAD);
    }
    b.hdr->chunk = 256 KIB;
    b.hdr->depth = 8;
    assert_int_equal(board_map(fd, &again), 0);
    board_unmap(&again);
    board_unmap(&b);
    close(fd);
}

static struct plan plan_of(unsigned coll, uint64_t count, uint64_t around, unsigned nnodes)
{
    static const uint32_t one[] = {0, 2}, two[] = {0, 1, 2}, ranks[] = {0, 1};
    const struct plan_geom g = {.world = 2,
                                .nnodes = nnodes,
                                .nlocal = 2 / nnodes,
                                .cores = 2,
                                .chunk = 128 KIB,
                                .around = around,
                                .node_start = nnodes == 1 ? one : two,
                                .rank_at = ranks};
    const struct op_desc d = {.coll = (uint8_t)coll, .dtype = DTYPE_U8, .count = count};
    struct plan p;

    assert_true(plan_make(&d, &g, NULL, &p));
    assert_true(nnodes > 1 || plan_payload(&p, &g, 0) <= 128 KIB);
    return p;
}

/* Of what all ranks get in blocks, once that and what they give are more than the caches hold. */
static void large_results_go_past_the_caches(void **state)
{
    assert_true(plan_of(COLL_ALL_GATHER, 4 MIB, 12 MIB, 1).around);
    assert_false(plan_of(COLL_ALL_GATHER, 4 MIB - 1, 12 MIB, 1).around);
    assert_true(plan_of(COLL_ALL_TO_ALL, 4 MIB, 16 MIB, 1).around);
    assert_false(plan_of(COLL_ALL_TO_ALL, 4 MIB - 1, 16 MIB, 1).around);
    assert_false(plan_of(COLL_ALL_TO_ALL, 64 MIB, 0, 1).around); /* not known */
    assert_true(plan_of(COLL_ALL_TO_ALL, 64 MIB, 0, 1).measured);
    assert_false(plan_of(COLL_ALL_GATHER, 1 MIB, 1 MIB, 1).around); /* so little is not measured */
    assert_false(plan_of(COLL_ALL_TO_ALL, 64 MIB, 4 MIB, 2).measured);
    assert_false(plan_of(COLL_BROADCAST, 64 MIB, 4 MIB, 1).measured); /* one reads, one writes */
    assert_false(plan_of(COLL_ALL_REDUCE, 64 MIB, 4 MIB, 1).measured);
    assert_false(plan_of(COLL_GATHER, 64 MIB, 4 MIB, 1).measured);
}

static void steps_follow_the_chunk(void **state)
{
    assert_int_equal(plan_of(COLL_ALL_REDUCE, 4 MIB, 0, 1).steps, 32);
    assert_int_equal(plan_of(COLL_ALL_REDUCE, 256 KIB, 0, 1).steps, 4); /* finer, to overlap */
    assert_int_equal(plan_of(COLL_ALL_REDUCE, 128 KIB, 0, 1).steps, 1); /* two have one meeting */
    assert_int_equal(plan_of(COLL_ALL_GATHER, 4 MIB, 0, 1).steps, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_have_their_plan),
        cmocka_unit_test(no_machine_gives_a_board_that_cannot_be),
        cmocka_unit_test(members_have_what_the_board_says),
        cmocka_unit_test(a_board_that_says_what_no_machine_would_is_refused),
        cmocka_unit_test(large_results_go_past_the_caches),
        cmocka_unit_test(steps_follow_the_chunk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
