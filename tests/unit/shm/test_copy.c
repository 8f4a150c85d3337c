/* test_copy.c - every kernel copies exactly what it should and not a byte more; and which way
 * copy_in() takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shm/util/copy.h"

enum { SIZE = 70000, EDGE = 64 };

static uint8_t from[SIZE], to[SIZE + 2 * EDGE] __attribute__((aligned(CACHELINE)));

static void check(void (*copy)(void *, const void *, size_t), size_t n, size_t skew_to,
                  size_t skew_from)
{
    uint8_t *at = to + EDGE + skew_to;

    memset(to, 0xee, EDGE + n + EDGE);
    copy(at, from + skew_from, n);
    assert_memory_equal(at, from + skew_from, n);
    assert_int_equal(at[-1], 0xee);
    assert_int_equal(at[n], 0xee);
}

static void check_sizes(void (*copy)(void *, const void *, size_t))
{
    static const size_t skews[] = {0, 1, 17, 63};

    for (size_t n = 0; n < 20000; n += n < 200 || n % 64 > 61 || n % 64 < 3 ? 1
                                       : n < 3000                           ? 30
                                                                            : 497)
        for (unsigned k = 0; k < ARRAY_LEN(skews) * ARRAY_LEN(skews); k++)
            check(copy, n, skews[k % ARRAY_LEN(skews)], skews[k / ARRAY_LEN(skews)]);
}

static void in_through(void *dst, const void *src, size_t n)
{
    copy_in(&(struct copy_way){0}, dst, src, n);
}

static void in_around(void *dst, const void *src, size_t n)
{
    copy_in(&(struct copy_way){.around = 1}, dst, src, n);
}

static void kernels_copy_exactly(void **state)
{
    static const char *const names[] = {"avx512", "avx2", "sse2", "libc"};
    unsigned tried = 0;

    for (size_t i = 0; i < SIZE; i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        if (!copy_force(names[i]))
            continue; /* another CPU's */
        tried++;
        assert_string_equal(copy_kernels(), names[i]);
        check_sizes(copy_out);
        check_sizes(copy_around);
        check_sizes(in_through);
        check_sizes(in_around);
    }
    assert_true(tried > 0);
    assert_false(copy_force("none"));
    assert_true(copy_force(NULL));
}

/* Copies that are announced to go around the caches do so, as many as were announced; short ones
 * are not counted. */
static void around_ends(void **state)
{
    struct copy_way way = {.around = 3, .again = 3};

    copy_in(&way, to + EDGE, from, 100);
    assert_int_equal(way.around, 3);
    for (unsigned left = 3; left; left--) {
        assert_int_equal(way.around, left);
        copy_in(&way, to + EDGE, from, 20000);
    }
    assert_int_equal(way.around, 0);
    copy_in(&way, to + EDGE, from, 20000); /* tries again; what it finds depends on the machine */
    assert_int_equal(way.around, 0);
    assert_true(way.again == 0 || way.slow_ps > 0);
}

/* @rounds of a machine on which a line takes @through_ps, or @around_ps past the caches. How many
 * went around. */
static unsigned rounds_around(struct copy_choice *c, unsigned rounds, unsigned through_ps,
                              unsigned around_ps)
{
    unsigned n = 0;

    for (unsigned i = 0; i < rounds; i++) {
        n += c->around;
        choice_round(c, c->around ? around_ps : through_ps);
    }
    return n;
}

/* Whatever is thought of the machine at first; and ever fewer rounds are spent on the slower way.
 */
static void the_faster_way_is_found(void **state)
{
    for (unsigned begins = 0; begins < 2; begins++) {
        struct copy_choice c;

        choice_begin(&c, begins);
        rounds_around(&c, 40, 3000, 2000);
        assert_true(rounds_around(&c, 1000, 3000, 2000) > 980);
        rounds_around(&c, 1100, 2000, 3000); /* the machine is another one now */
        assert_true(rounds_around(&c, 1000, 2000, 3000) < 20);
        assert_true(c.again == 512 || c.left > 100);
    }
}

/* Where both take about the same, nothing changes. */
static void no_way_is_taken_by_chance(void **state)
{
    struct copy_choice c;

    choice_begin(&c, true);
    for (unsigned i = 0; i < 1000; i++)
        choice_round(&c, 2000 + (i * 7919) % 60);
    assert_true(rounds_around(&c, 1000, 2000, 2100) > 990);
}

/* What the caches are like just after the other way does not count. */
static void the_first_round_of_a_way_does_not_count(void **state)
{
    struct copy_choice c;

    choice_begin(&c, false);
    while (c.state == CHOICE_USES)
        choice_round(&c, 2000);
    choice_round(&c, 1);
    choice_round(&c, 2500);
    assert_false(c.around);
    while (c.state == CHOICE_USES)
        choice_round(&c, 2000);
    choice_round(&c, 9000);
    choice_round(&c, 1500);
    assert_true(c.around);
}

/* A slow copy through the caches, and one around them; how many go around from then on. */
static unsigned compared(struct copy_way *way, unsigned through_ps, unsigned around_ps)
{
    copy_went_through(way, through_ps);
    assert_int_equal(way->slow_ps, through_ps);
    copy_went_around(way, around_ps);
    assert_int_equal(way->slow_ps, 0);
    return way->around;
}

/* The other core shares no cache with ours: 9 ns a line. One of 2023 took 27. */
static void a_reader_far_away_is_written_to_around_the_caches(void **state)
{
    static const unsigned slow_ps[] = {9000, 27000};

    for (unsigned i = 0; i < ARRAY_LEN(slow_ps); i++) {
        struct copy_way way = {0};

        for (unsigned n = 8; n <= 512; n *= 2) {
            assert_int_equal(compared(&way, slow_ps[i], 2700), n);
            way.around = 0; /* they went */
        }
        assert_int_equal(compared(&way, slow_ps[i], 2700), 512);
        way.around = 0;
        copy_went_through(&way, 1800); /* it has moved next to us */
        assert_int_equal(compared(&way, slow_ps[i], 2700), 8);
    }
}

/* What is slow is where it comes from: that is found out again and again, but ever more rarely. */
static void a_slow_source_is_no_reason(void **state)
{
    struct copy_way way = {0};
    unsigned tried = 0;

    for (unsigned i = 0; i < 100000; i++) {
        copy_went_through(&way, i % 3 ? 7000 : 4000);
        if (way.slow_ps) {
            copy_went_around(&way, 6500);
            tried++;
        }
        assert_int_equal(way.around, 0);
    }
    assert_in_range(tried, 2, 200);
}

static void near_readers_are_written_to_through_the_caches(void **state)
{
    struct copy_way way = {0};

    for (unsigned i = 0; i < 1000; i++) {
        copy_went_through(&way, 2000);
        assert_int_equal(way.slow_ps, 0);
    }
}

/* Both ways in one: the copy that compares is one, too. */
static void who_compares_copies_all(void **state)
{
    struct copy_way way = {.slow_ps = 1};

    memset(to, 0, sizeof to);
    copy_in(&way, to + EDGE, from, 65000);
    assert_memory_equal(to + EDGE, from, 65000);
    assert_int_equal(way.slow_ps, 0);
    assert_int_equal(way.around, 0);
    assert_int_equal(way.sure, 8);
}

/* Who writes without copy_in() is told the same: through, timed; if that was slow around, timed; if
 * that was faster as often around as announced, and not timed. */
static void another_writer_is_told_its_way(void **state)
{
    struct copy_way way = {0};
    struct copy_turn turn = copy_begin(&way);

    assert_false(turn.around);
    assert_true(turn.begin);
    turn.begin -= 10 * 1000 * 100; /* 100 lines in a millisecond */
    copy_end(&way, &turn, 100 * CACHELINE);
    assert_true(way.slow_ps);
    turn = copy_begin(&way);
    assert_true(turn.around && turn.begin);
    copy_end(&way, &turn, 1 << 20); /* in no time */
    for (unsigned left = 8; left; left--) {
        assert_int_equal(way.around, left);
        turn = copy_begin(&way);
        assert_true(turn.around && !turn.begin);
        copy_end(&way, &turn, 100);
    }
    turn = copy_begin(&way);
    assert_true(!turn.around && turn.begin);
    copy_end(&way, &turn, 1 << 30); /* fast: it is not asked again for some time */
    for (unsigned left = 7; left; left--) {
        turn = copy_begin(&way);
        assert_true(!turn.around && !turn.begin);
        copy_end(&way, &turn, 100);
    }
    turn = copy_begin(&way);
    assert_true(!turn.around && turn.begin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_copy_exactly),
        cmocka_unit_test(around_ends),
        cmocka_unit_test(a_reader_far_away_is_written_to_around_the_caches),
        cmocka_unit_test(the_faster_way_is_found),
        cmocka_unit_test(no_way_is_taken_by_chance),
        cmocka_unit_test(the_first_round_of_a_way_does_not_count),
        cmocka_unit_test(a_slow_source_is_no_reason),
        cmocka_unit_test(near_readers_are_written_to_through_the_caches),
        cmocka_unit_test(who_compares_copies_all),
        cmocka_unit_test(another_writer_is_told_its_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
