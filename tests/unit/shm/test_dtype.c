/* test_dtype.c - the numbers, sizes and names of shm/model/dtype.h. The numbers are written out
 * here: they stand in boards and on the wire, so changing one must fail a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shm/model/coll.h"
#include "shm/model/dtype.h"

static void numbers_sizes_and_names(void **state)
{
    static const struct {
        unsigned number;
        size_t size;
        const char *name;
    } rows[] = {
        {0, 1, "i8"},   {1, 1, "u8"},   {2, 2, "i16"},   {3, 2, "u16"}, {4, 4, "i32"},
        {5, 4, "u32"},  {6, 8, "i64"},  {7, 8, "u64"},   {8, 2, "f16"}, {9, 2, "bf16"},
        {10, 4, "f32"}, {11, 8, "f64"}, {12, 1, "bool"},
    };

    assert_int_equal(ARRAY_LEN(rows), DTYPE_COUNT);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(dtype_size(rows[i].number), rows[i].size);
        assert_string_equal(dtype_name(rows[i].number), rows[i].name);
    }
    assert_int_equal(DTYPE_BF16, 9);
    assert_int_equal(DTYPE_BOOL, 12);
}

static void names_of_operators_and_collectives(void **state)
{
    static const char *const ops[] = {"sum",  "avg", "prod", "min",       "max",
                                      "band", "bor", "bxor", "premul_sum"};
    static const char *const colls[] = {
        "barrier",          "all_reduce", "broadcast", "all_gather",  "reduce_scatter",
        "reduce",           "gather",     "scatter",   "all_to_all",  "all_gather_v",
        "reduce_scatter_v", "gather_v",   "scatter_v", "all_to_all_v"};

    assert_int_equal(ARRAY_LEN(ops), REDOP_COUNT);
    for (unsigned i = 0; i < ARRAY_LEN(ops); i++) {
        assert_string_equal(redop_name(i), ops[i]);
    }
    assert_int_equal(ARRAY_LEN(colls), COLL_COUNT);
    for (unsigned i = 0; i < ARRAY_LEN(colls); i++) {
        assert_string_equal(coll_name(i), colls[i]);
        assert_int_equal(coll_from_name(colls[i]), i);
    }
}

static void values_outside_the_tables(void **state)
{
    static const unsigned far[] = {1000, 0x80000000u, UINT32_MAX};

    assert_int_equal(dtype_size(DTYPE_COUNT), 0);
    assert_string_equal(dtype_name(DTYPE_COUNT), "?");
    assert_string_equal(redop_name(REDOP_COUNT), "?");
    assert_string_equal(coll_name(COLL_COUNT), "?");
    assert_false(redop_defined(DTYPE_COUNT, REDOP_SUM));
    assert_false(redop_defined(DTYPE_F32, REDOP_COUNT));
    for (size_t i = 0; i < ARRAY_LEN(far); i++) {
        assert_int_equal(dtype_size(far[i]), 0);
        assert_string_equal(dtype_name(far[i]), "?");
        assert_string_equal(redop_name(far[i]), "?");
        assert_string_equal(coll_name(far[i]), "?");
        assert_false(redop_defined(far[i], REDOP_SUM));
        assert_false(redop_defined(DTYPE_F32, far[i]));
    }
    assert_int_equal(coll_from_name("?"), -1);
}

/* One letter for each type in the order of the numbers. */
static void which_pairs_are_defined(void **state)
{
    static const char *const rows[] = {
        "iiiiiiiiffffb", /* sum */
        "iiiiiiiiffff-", /* avg */
        "iiiiiiiiffffb", /* prod */
        "iiiiiiiiffffb", /* min */
        "iiiiiiiiffffb", /* max */
        "iiiiiiii----b", /* band */
        "iiiiiiii----b", /* bor */
        "iiiiiiii----b", /* bxor */
        "--------ffff-", /* premul_sum */
    };

    assert_int_equal(ARRAY_LEN(rows), REDOP_COUNT);
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        for (unsigned op = 0; op < REDOP_COUNT; op++)
            assert_int_equal(redop_defined(d, op), rows[op][d] != '-');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_sizes_and_names),
        cmocka_unit_test(names_of_operators_and_collectives),
        cmocka_unit_test(values_outside_the_tables),
        cmocka_unit_test(which_pairs_are_defined),
    };

    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
