/* test_diary.c - whose entries are kept, who sees which, how many there have been. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "daemon/admin/diary.h"

static struct diary diary;
static const uint32_t alice = 1000, bob = 1001;

static int setup(void **state)
{
    diary_init(&diary);
    return 0;
}

static void many(int64_t whose, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        diary_add(&diary, "test", whose, whose, 7, "text");
}

static unsigned seen(const uint32_t *uid, uint64_t since)
{
    const struct diary_entry *entry;
    unsigned n = 0;

    for (; (entry = diary_next(&diary, since, uid)); since = entry->number)
        n++;
    return n;
}

static void in_order(void **state)
{
    const struct diary_entry *entry;
    char long_text[2 * DIARY_TEXT];

    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = 0;
    assert_null(diary_next(&diary, 0, NULL));
    diary_add(&diary, "first", DIARY_EVERYBODY, DIARY_EVERYBODY, 5, "hello");
    diary_add(&diary, "second", alice, alice, 6, long_text);
    entry = diary_next(&diary, 0, NULL);
    assert_string_equal(entry->what, "first");
    assert_string_equal(entry->text, "hello");
    assert_int_equal(entry->wall_ms, 5);
    entry = diary_next(&diary, entry->number, NULL);
    assert_string_equal(entry->what, "second");
    assert_int_equal(strlen(entry->text), DIARY_TEXT - 1);
    assert_null(diary_next(&diary, entry->number, NULL));
}

static void users_see_their_own(void **state)
{
    many(DIARY_EVERYBODY, 2);
    many(alice, 3);
    many(bob, 4);
    assert_int_equal(seen(NULL, 0), 9);
    assert_int_equal(seen(&alice, 0), 5);
    assert_int_equal(seen(&bob, 0), 6);
    assert_int_equal(seen(&bob, 6), 3);
    assert_int_equal(diary_total(&diary, NULL), 9);
    assert_int_equal(diary_total(&diary, &alice), 5);
    assert_int_equal(diary_total(&diary, &(uint32_t){4711}), 2);
}

static void a_flood_leaves_others_theirs(void **state)
{
    many(DIARY_EVERYBODY, 100);
    many(bob, 50);
    many(alice, 100000);
    assert_int_equal(seen(NULL, 0), DIARY_MAX);
    assert_int_equal(seen(&bob, 0), 150);
    assert_int_equal(seen(&alice, 0), DIARY_MAX - 50);
    assert_int_equal(diary_total(&diary, &alice), 100100);
    many(bob, 100000);
    assert_int_equal(seen(&alice, 0), 100 + (DIARY_MAX - 100) / 2);
}

/* A person's many uids have the room of one user, and see each its own. */
static void uids_of_one_person_share(void **state)
{
    many(bob, 300);
    for (uint32_t i = 0; i < 1000; i++)
        diary_add(&diary, "test", 100000 + i, alice, 7, "text");
    assert_in_range(seen(&bob, 0), DIARY_MAX / 2 - 1, DIARY_MAX / 2);
    assert_int_equal(seen(NULL, 0), DIARY_MAX);
    assert_int_equal(seen(&alice, 0), 0);
    assert_int_equal(seen(&(uint32_t){100999}, 0), 1);
    assert_int_equal(diary_total(&diary, &(uint32_t){100999}), 1);
}

static void the_node_keeps_half(void **state)
{
    many(DIARY_EVERYBODY, 10 * DIARY_MAX);
    assert_int_equal(seen(&bob, 0), DIARY_MAX);
    many(alice, 10 * DIARY_MAX);
    assert_int_equal(seen(&bob, 0), DIARY_NODE);
    many(DIARY_EVERYBODY, 10 * DIARY_MAX);
    assert_int_equal(seen(NULL, 0) - seen(&bob, 0), DIARY_MAX - DIARY_NODE);
}

static void many_users(void **state)
{
    for (uint32_t uid = 1; uid <= 3 * DIARY_MAX; uid++)
        many(uid, 2);
    assert_int_equal(seen(NULL, 0), DIARY_MAX);
    assert_true(seen(&(uint32_t){3 * DIARY_MAX}, 0) >= 1);
}

/* All that the diary has, added to another one. */
static void restore_all(struct diary *to)
{
    const struct diary_entry *entry;
    uint64_t pushed;

    diary_init(to);
    TAILQ_FOREACH(entry, &diary.kept, entry) {
        assert_true(diary_restore(to, entry, &pushed));
        assert_int_equal(pushed, 0);
    }
}

static void another_diary_goes_on(void **state)
{
    static struct diary next;
    const struct diary_entry *entry;

    many(DIARY_EVERYBODY, 300);
    many(alice, 1000);
    many(bob, 1000);
    restore_all(&next);
    TAILQ_FOREACH(entry, &diary.kept, entry)
        assert_int_equal(diary_next(&next, entry->number - 1, NULL)->number, entry->number);
    assert_int_equal(diary_total(&next, NULL), 2300);
    assert_int_equal(diary_total(&next, &alice), diary_total(&diary, &alice));
    assert_int_equal(diary_total(&next, &bob), 1300);
    for (unsigned i = 0; i < 3 * DIARY_MAX; i++) {
        int64_t whose = i % 3 ? (int64_t)alice : DIARY_EVERYBODY;

        assert_int_equal(diary_add(&next, "test", whose, whose, 7, "text"),
                         diary_add(&diary, "test", whose, whose, 7, "text"));
    }
    assert_int_equal(next.last, diary.last);
    assert_int_equal(diary_total(&next, &alice), diary_total(&diary, &alice));
}

/* An entry that a stranger wrote. */
static void no_entry_is_believed(void **state)
{
    const struct diary_entry right = {
        .number = 5, .whose = alice, .payer = bob, .total = 2, .what = "test", .text = "text"};
    struct diary_entry bad[] = {right, right, right, right, right, right, right, right, right};
    uint64_t pushed;

    many(DIARY_EVERYBODY, 4);
    bad[0].number = 4;
    bad[1].number = UINT64_MAX;
    bad[2].total = 0;
    bad[3].total = 6;
    bad[4].whose = -2;
    bad[5].whose = 1ll << 32;
    bad[6].payer = -2;
    bad[7].payer = 1ll << 32;
    bad[8].what[0] = 0;
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(diary_restore(&diary, &bad[i], &pushed));
    assert_int_equal(diary.last, 4);
    assert_true(diary_restore(&diary, &right, &pushed));
    assert_int_equal(diary.last, 5);
    assert_int_equal(diary_total(&diary, &alice), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(in_order, setup),
        cmocka_unit_test_setup(users_see_their_own, setup),
        cmocka_unit_test_setup(a_flood_leaves_others_theirs, setup),
        cmocka_unit_test_setup(uids_of_one_person_share, setup),
        cmocka_unit_test_setup(the_node_keeps_half, setup),
        cmocka_unit_test_setup(another_diary_goes_on, setup),
        cmocka_unit_test_setup(no_entry_is_believed, setup),
        cmocka_unit_test_setup(many_users, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
