/* test_timeline.c - operations of several nodes put on one clock, from tables that are made up
 * here: the clocks of nodes are wrong by a known time, and what comes out must not be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "client/ctl/timeline.h"

static struct msg_column rank_columns[] = {
    {.key = "group"}, {.key = "name"}, {.key = "node"},     {.key = "command"},
    {.key = "size"},  {.key = "done"}, {.key = "busy_pct"}, {.key = "watched_ms"},
    {.key = "gave"},  {.key = "rank"}, {.key = "pid"},      {.key = "state"},
};
static struct msg_column op_columns[] = {
    {.key = "group"},      {.key = "rank"},     {.key = "node"},  {.key = "number"},
    {.key = "collective"}, {.key = "dtype"},    {.key = "bytes"}, {.key = "begun_ns"},
    {.key = "ended_ns"},   {.key = "clock_ns"}, {.key = "gpu"},
};
enum { NRANK = ARRAY_LEN(rank_columns), NOP = ARRAY_LEN(op_columns), ROWS_MOST = 600 };

#define US         1000ll
#define CLOCK_A    1700000000000000000ll /* of node a: time of day at its boot */
#define BOOTED     3600000000000ll       /* node b booted so much earlier */
#define CLOCK_SKEW 40000000ll            /* and its time of day is wrong by 40 ms */

struct fix {
    char *rank_cells[ROWS_MOST * NRANK], *op_cells[ROWS_MOST * NOP];
    struct msg_table tables[2];
    struct msg_tables answer;
    struct timeline tl;
};

static int setup(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));

    f->tables[0] = (struct msg_table){
        .name = "ranks", .ncolumns = NRANK, .columns = rank_columns, .cells = f->rank_cells};
    f->tables[1] = (struct msg_table){
        .name = "records", .ncolumns = NOP, .columns = op_columns, .cells = f->op_cells};
    f->answer = (struct msg_tables){.ntables = 2, .tables = f->tables};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fix *f = *state;

    timeline_free(&f->tl);
    for (unsigned i = 0; i < ROWS_MOST * NRANK; i++)
        free(f->rank_cells[i]);
    for (unsigned i = 0; i < ROWS_MOST * NOP; i++)
        free(f->op_cells[i]);
    free(f);
    return 0;
}

static void add_rank(struct fix *f, int rank, const char *node, int size)
{
    char **cells = &f->rank_cells[f->tables[0].nrows++ * NRANK];
    char texts[4][24];

    snprintf(texts[0], sizeof(texts[0]), "%d", size);
    snprintf(texts[1], sizeof(texts[1]), "%d", rank);
    snprintf(texts[2], sizeof(texts[2]), "%d", 100 + rank);
    for (unsigned i = 0; i < NRANK; i++)
        cells[i] = strdup("7");
    free(cells[0]), cells[0] = strdup("0123");
    free(cells[1]), cells[1] = strdup("g");
    free(cells[2]), cells[2] = strdup(node);
    free(cells[4]), cells[4] = strdup(texts[0]);
    free(cells[9]), cells[9] = strdup(texts[1]);
    free(cells[10]), cells[10] = strdup(texts[2]);
    free(cells[11]), cells[11] = strdup("open");
}

/* @begun, @ended: as one clock for all would tell; each node writes its own. */
static void add_op(struct fix *f, int rank, const char *node, uint32_t number,
                   const char *collective, int64_t begun, int64_t ended)
{
    char **cells = &f->op_cells[f->tables[1].nrows++ * NOP];
    bool b = !strcmp(node, "b");
    int64_t later = b ? BOOTED : 0, clock = b ? CLOCK_A - BOOTED + CLOCK_SKEW : CLOCK_A;
    char texts[NOP][24] = {"0123", "", "", "", "", "f32", "8", "", "", "", "false"};

    snprintf(texts[1], sizeof(texts[1]), "%d", rank);
    snprintf(texts[2], sizeof(texts[2]), "%s", node);
    snprintf(texts[3], sizeof(texts[3]), "%u", number);
    snprintf(texts[4], sizeof(texts[4]), "%s", collective);
    snprintf(texts[7], sizeof(texts[7]), "%lld", (long long)(begun + later));
    if (ended)
        snprintf(texts[8], sizeof(texts[8]), "%lld", (long long)(ended + later));
    snprintf(texts[9], sizeof(texts[9]), "%lld", (long long)clock);
    for (unsigned i = 0; i < NOP; i++)
        cells[i] = strdup(texts[i]);
}

static void make(struct fix *f)
{
    const char *key;

    assert_int_equal(timeline_make(&f->answer, &f->tl, &key), 0);
}

/* Rank 1, on b, comes 300 us late each time; the operation takes 20 us then. */
static void two_nodes(struct fix *f, const char *collective, uint32_t number)
{
    add_rank(f, 1, "b", 2);
    add_rank(f, 0, "a", 2);
    for (int i = 0; i < 40; i++) {
        int64_t t = 1000000000 + i * 1000 * US;

        add_op(f, 0, "a", number + (uint32_t)i, collective, t, t + 320 * US);
        add_op(f, 1, "b", number + (uint32_t)i, collective, t + 300 * US, t + 318 * US);
    }
}

static void operations_tell_how_clocks_lie(void **state)
{
    struct fix *f = *state;
    const struct timeline_rank *ranks;

    two_nodes(f, "all_reduce", 5);
    make(f);
    ranks = f->tl.ranks;
    assert_int_equal(f->tl.nranks, 2);
    assert_int_equal(f->tl.nops, 80);
    assert_int_equal(ranks[0].rank, 0);
    assert_int_equal(ranks[0].to_wall, CLOCK_A);
    assert_int_equal(ranks[0].uncertainty, 0);
    /* no operation took less than 18 us, and all of them the same */
    assert_true(ranks[1].uncertainty > 0 && ranks[1].uncertainty <= 18 * US);
    assert_true(llabs(ranks[1].to_wall + BOOTED - CLOCK_A) <= ranks[1].uncertainty);
    assert_int_equal(ranks[1].compared, 40);
    assert_true(llabs(ranks[1].late_ns - 300 * US) <= ranks[1].uncertainty);
    assert_true(llabs(ranks[0].wait_ns - 300 * US) <= ranks[1].uncertainty);
    assert_int_equal(ranks[0].late_ns, 0);
    assert_true(llabs(ranks[0].took_ns - 320 * US) < US);
    assert_int_equal(f->tl.ops[0].number, 5);
    assert_int_equal(f->tl.ops[0].begun, CLOCK_A + 1000000000);
    assert_int_equal(f->tl.ops[1].rank, 1);
}

/* A rank that often looks late at the end, because it got no processor, does not move the clock
 * beyond what one operation allows. */
static void one_operation_bounds_the_estimate(void **state)
{
    struct fix *f = *state;

    add_rank(f, 0, "a", 2);
    add_rank(f, 1, "b", 2);
    for (uint32_t i = 0; i < 9; i++) {
        int64_t t = 1000000000 + i * 10000 * US;

        add_op(f, 0, "a", i + 1, "barrier", t, t + 20 * US);
        add_op(f, 1, "b", i + 1, "barrier", t, t + 5000 * US);
    }
    add_op(f, 0, "a", 60, "barrier", 2000000000, 2000000000 + 9 * US);
    add_op(f, 1, "b", 60, "barrier", 2000000000 + US, 2000000000 + 10 * US);
    make(f);
    assert_true(f->tl.ranks[1].uncertainty <= 20 * US);
    assert_true(f->tl.ranks[1].late_ns <= 10 * US);
}

/* What nearly all operations take is shown, not what one of them adds to the mean. */
static void one_that_hung_is_one(void **state)
{
    struct fix *f = *state;

    two_nodes(f, "all_reduce", 5);
    add_op(f, 0, "a", 45, "all_reduce", 2000000000, 2000000000 + 900000 * US);
    add_op(f, 1, "b", 45, "all_reduce", 2000000000 + 899990 * US, 2000000000 + 900000 * US);
    make(f);
    assert_int_equal(f->tl.ranks[1].compared, 41);
    assert_true(llabs(f->tl.ranks[0].took_ns - 320 * US) < US);
    assert_true(f->tl.ranks[1].late_ns < 400 * US);
    assert_true(f->tl.ranks[0].wait_ns > 20000 * US); /* of its time that went by so */
}

/* Numbers wrap. */
static void order_goes_on_over_the_wrap(void **state)
{
    struct fix *f = *state;

    two_nodes(f, "all_gather", UINT32_MAX - 20);
    make(f);
    assert_int_equal(f->tl.ranks[1].compared, 40);
    for (unsigned i = 1; i < f->tl.nops; i++)
        assert_true(f->tl.ops[i].begun >= f->tl.ops[i - 1].begun - 400 * US);
}

static void a_broadcast_says_nothing(void **state)
{
    struct fix *f = *state;

    two_nodes(f, "broadcast", 5);
    make(f);
    assert_int_equal(f->tl.ranks[1].uncertainty, -1);
    assert_int_equal(f->tl.ranks[1].to_wall, CLOCK_A - BOOTED + CLOCK_SKEW);
}

static void nonsense_leaves_the_time_of_day(void **state)
{
    struct fix *f = *state;

    two_nodes(f, "all_reduce", 5);
    add_op(f, 0, "a", 60, "all_reduce", 1, 2);
    add_op(f, 1, "b", 60, "all_reduce", 5000000000, 5000000001);
    make(f);
    assert_int_equal(f->tl.ranks[1].uncertainty, -1);
    assert_int_equal(f->tl.ranks[1].to_wall, CLOCK_A - BOOTED + CLOCK_SKEW);
}

/* What not all have recorded is shown and not compared; what has not ended keeps the others. */
static void what_is_missing_is_not_compared(void **state)
{
    struct fix *f = *state;

    add_rank(f, 0, "a", 2);
    add_rank(f, 1, "a", 2);
    add_op(f, 0, "a", 1, "all_reduce", 1000, 5000);
    add_op(f, 0, "a", 2, "all_reduce", 6000, 0);
    add_op(f, 1, "a", 2, "all_reduce", 7000, 0);
    add_op(f, 0, "a", 9, "all_reduce", 9000, 0);
    add_op(f, 5, "a", 9, "all_reduce", 9000, 9100); /* there is no such rank */
    make(f);
    assert_int_equal(f->tl.nops, 4);
    assert_int_equal(f->tl.ops[0].late, -1);
    assert_int_equal(f->tl.ops[1].late, 0);
    assert_int_equal(f->tl.ops[1].wait, 1000);
    assert_int_equal(f->tl.ops[2].late, 1000);
    assert_int_equal(f->tl.ops[3].late, -1);
    assert_int_equal(f->tl.ranks[0].compared, 0);
}

static void any_numbers_do_no_harm(void **state)
{
    static const char *const texts[] = {"",  "18446744073709551615", "-9223372036854775808", "x",
                                        "0", "9223372036854775807"};
    struct fix *f = *state;

    for (int rank = 0; rank < 4; rank++)
        add_rank(f, rank, rank % 2 ? "b" : "a", 4);
    for (uint32_t i = 0; i < 400; i++)
        add_op(f, (int)(i % 4), i % 2 ? "b" : "a", i / 7, "all_reduce", i, i + 5);
    for (unsigned i = 0; i < 400 * NOP; i++)
        if (i * 2654435761u >> 29 == 0 && i % NOP != 0) {
            free(f->op_cells[i]);
            f->op_cells[i] = strdup(texts[(i * 40503u >> 4) % ARRAY_LEN(texts)]);
        }
    make(f);
}

/* They lie around the whole circle; sorted, they go around it once. */
static void numbers_that_nobody_honest_writes_are_sorted(void **state)
{
    struct fix *f = *state;
    uint32_t number = 1;
    unsigned descents = 0;

    add_rank(f, 0, "a", 1);
    for (unsigned i = 0; i < 500; i++)
        add_op(f, 0, "a", number = number * 1664525 + 1013904223, "all_reduce", i, i + 5);
    make(f);
    assert_int_equal(f->tl.nops, 500);
    for (unsigned i = 1; i < f->tl.nops; i++)
        descents += f->tl.ops[i].number < f->tl.ops[i - 1].number;
    assert_true(descents <= 1);
}

static void lacking_columns_are_named(void **state)
{
    struct fix *f = *state;
    const char *key;

    f->tables[1].ncolumns--;
    add_rank(f, 0, "a", 1);
    f->tables[1].nrows = 1;
    f->op_cells[0] = strdup("0123");
    assert_int_equal(timeline_make(&f->answer, &f->tl, &key), -EPROTO);
    assert_string_equal(key, "gpu");
    f->answer.ntables = 1;
    assert_int_equal(timeline_make(&f->answer, &f->tl, &key), -EPROTO);
    assert_string_equal(key, "records");
}

/* Who hangs completes nothing: it waits all the same. */
static void who_hangs_waits(void **state)
{
    struct timeline_rank rank = {.watched_ms = 1000, .asleep_ms = 90000};

    (void)state;
    assert_int_equal((int)timeline_waiting_pct(&rank), 100);
    rank.asleep_ms = 250;
    assert_int_equal((int)timeline_waiting_pct(&rank), 25);
    rank.compared = 3;
    rank.done = 10;
    rank.wait_ns = 10000000;
    assert_int_equal((int)timeline_waiting_pct(&rank), 10);
    rank = (struct timeline_rank){.watched_ms = 1000};
    assert_true(timeline_waiting_pct(&rank) < 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_hangs_waits),
        cmocka_unit_test_setup_teardown(operations_tell_how_clocks_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_hung_is_one, setup, teardown),
        cmocka_unit_test_setup_teardown(one_operation_bounds_the_estimate, setup, teardown),
        cmocka_unit_test_setup_teardown(order_goes_on_over_the_wrap, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broadcast_says_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_leaves_the_time_of_day, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_missing_is_not_compared, setup, teardown),
        cmocka_unit_test_setup_teardown(any_numbers_do_no_harm, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_that_nobody_honest_writes_are_sorted, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(lacking_columns_are_named, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
