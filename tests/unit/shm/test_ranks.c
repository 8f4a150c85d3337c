/* test_ranks.c - lists of ranks for people. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shm/util/ranks.h"

enum { END = 9999999 };

static struct rank_list list_of(char *buf, size_t len, const unsigned *ranks)
{
    struct rank_list list;

    rank_list_init(&list, buf, len);
    for (; *ranks != END; ranks++)
        rank_list_add(&list, *ranks);
    rank_list_end(&list);
    return list;
}

static void ranges(void **state)
{
    static const struct {
        unsigned ranks[12];
        const char *text;
    } cases[] = {
        {{END}, ""},
        {{0, END}, "0"},
        {{7, END}, "7"},
        {{0, 1, END}, "0-1"},
        {{0, 2, END}, "0,2"},
        {{1, 4, 5, 6, END}, "1,4-6"},
        {{1, 2, 3, 65535, END}, "1-3,65535"},
        {{0, 1, 3, 4, 6, END}, "0-1,3-4,6"},
    };
    char buf[64];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rank_list list = list_of(buf, sizeof(buf), cases[i].ranks);
        unsigned n = 0;

        while (cases[i].ranks[n] != END)
            n++;
        assert_string_equal(buf, cases[i].text);
        assert_int_equal(list.n, n);
        assert_int_equal(list.lowest, n ? (int)cases[i].ranks[0] : -1);
    }
}

/* For every size of the buffer: whole numbers, and "..." if and only if something is left out. */
static void does_not_fit(void **state)
{
    static const unsigned ranks[] = {10, 12, 14, 15, 16, 20, 30, END};
    static const char whole[] = "10,12,14-16,20,30";

    for (size_t len = 8; len < 40; len++) {
        char *buf = malloc(len); /* of this size exactly, for the sanitizer */
        struct rank_list list = list_of(buf, len, ranks);
        size_t kept = strlen(buf);

        assert_true(kept < len);
        assert_int_equal(list.n, 7);
        if (strcmp(buf, whole)) {
            assert_true(kept >= 3);
            assert_string_equal(buf + kept - 3, "...");
            kept -= 3;
            assert_memory_equal(buf, whole, kept);
            assert_true(kept == 0 || buf[kept - 1] == ',');
            assert_true(len < sizeof(whole) + 4);
        }
        free(buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges),
        cmocka_unit_test(does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
