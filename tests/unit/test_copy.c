/* test_copy.c - every kernel copies exactly what it should and not a byte more; and which way
 * copy_in() takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shm/copy.h"

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

    for (size_t n = 0; n < 20000; n += n < 200 || n % 64 > 61 || n % 64 < 3 ? 1 : n < 3000 ? 30 : 497)
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
    assert_true((way.around == 0 && way.again == 0) || way.around == way.again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_copy_exactly),
        cmocka_unit_test(around_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
