/* test_heard.c - a node tells of its own ranks, and accuses nobody else by hearsay. */
#include "daemon/admin/heard.h"
#include "tests/unit/daemon/core_bench.h"

enum { COLUMNS = 13 };
static const struct table_column columns[COLUMNS] = {
    {"group", "", MSG_CELL_STRING},      {"state", "", MSG_CELL_STRING},
    {"cause", "", MSG_CELL_STRING},      {"cause_rank", "", MSG_CELL_NUMBER},
    {"cause_text", "", MSG_CELL_STRING}, {"gone", "", MSG_CELL_STRING},
    {"gone_rank", "", MSG_CELL_NUMBER},  {"gone_node", "", MSG_CELL_STRING},
    {"gone_pid", "", MSG_CELL_NUMBER},   {"gone_ops", "", MSG_CELL_NUMBER},
    {"rank", "", MSG_CELL_NUMBER},       {"node", "", MSG_CELL_STRING},
    {"next_epoch", "", MSG_CELL_NUMBER}};

/* Node a is in the group, with nodes b and c: one rank on each. */
static struct bench *bench_with_group(char ret_id[17])
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_PEER_HELLO};
    struct core_group_view view;

    msg.peer_hello.incarnation = 5;
    for (unsigned node = 1; node < 3; node++)
        feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = node, .msg = &msg});
    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 0, 3);
    for (unsigned node = 1; node < 3; node++) {
        struct msg request = {.type = MSG_JOIN};

        request.join = (struct msg_join){
            .join = 1 << 17 | 1, .uid = 1000, .pid = 7, .rank = node, .size = 3, .name = "g"};
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = node, .msg = &request});
    }
    assert_true(core_group_at(bench->core, 0, &view));
    assert_non_null(view.members);
    snprintf(ret_id, 17, "%016llx", (unsigned long long)view.id);
    return bench;
}

/* What is left of one row that node b tells, its cells in a line; "": it is dropped. */
static const char *left_of(const struct bench *bench, const char *const cells[COLUMNS])
{
    static char line[2048];
    struct table told = {0}, table = {0};
    unsigned dropped;

    table_init(&told, "ranks", columns, COLUMNS);
    table_init(&table, "ranks", columns, COLUMNS);
    for (unsigned i = 0; i < COLUMNS; i++)
        table_text(&told, cells[i] ? cells[i] : "");
    dropped = heard_rows(bench->core, 1, "b", &told.t, &table);
    assert_int_equal(dropped + table.t.nrows, 1);
    line[0] = 0;
    for (unsigned i = 0; i < table.ncells; i++) {
        strcat(line, i ? "|" : "");
        strcat(line, table.t.cells[i]);
    }
    table_fini(&told);
    table_fini(&table);
    return line;
}

static void a_node_tells_of_its_own_ranks(void **state)
{
    char id[17];
    struct bench *bench = bench_with_group(id);
    const char *row[COLUMNS] = {id, "open", "", "", "", "", "", "", "", "", "1", "b"};
    const char *link[COLUMNS] = {"", "", "", "", "", "", "", "", "", "", "", "c"};
    char want[128];

    (void)state;
    snprintf(want, sizeof(want), "%s|open|||||||||1|b|", id);
    assert_string_equal(left_of(bench, row), want);
    row[12] = "2"; /* it has not gone on here */
    assert_string_equal(left_of(bench, row), want);
    row[11] = "c"; /* under another's name */
    assert_string_equal(left_of(bench, row), "");
    row[11] = "b";
    row[10] = "2"; /* a rank of c */
    assert_string_equal(left_of(bench, row), "");
    row[10] = "0"; /* one of ours */
    assert_string_equal(left_of(bench, row), "");
    row[10] = "3"; /* none at all */
    assert_string_equal(left_of(bench, row), "");
    row[10] = "1x";
    assert_string_equal(left_of(bench, row), "");
    row[0] = "00000000000000aa"; /* a group that is not known here: its own ranks only */
    row[10] = "2";
    assert_string_equal(left_of(bench, row), "00000000000000aa|open|||||||||2|b|2");
    row[11] = "a";
    assert_string_equal(left_of(bench, row), "");
    assert_string_equal(left_of(bench, link), "");
    bench_free(bench);
}

static void a_node_accuses_nobody_else(void **state)
{
    char id[17], want[256];
    struct bench *bench = bench_with_group(id);
    const char *own[COLUMNS] = {id,  "broken", "rank lost", "1", "rank 1 died", "died",
                                "1", "b",      "7",         "3", "1",           "b"};
    const char *other[COLUMNS] = {id,  "broken", "rank lost", "2", "rank 2 died", "died",
                                  "2", "c",      "7",         "3", "1",           "b"};

    (void)state;
    snprintf(want, sizeof(want), "%s|broken|rank lost|1|rank 1 died|died|1|b|7|3|1|b|", id);
    assert_string_equal(left_of(bench, own), want);
    snprintf(want, sizeof(want), "%s|broken|rank lost||node b says: rank 2 died||||||1|b|", id);
    assert_string_equal(left_of(bench, other), want);
    bench_free(bench);
}

/* Its own node has told that it is gone, and how: whom of those b missed first it may say. */
static void a_node_tells_whom_it_missed_first(void **state)
{
    char id[17];
    struct bench *bench = bench_with_group(id);
    const char *row[COLUMNS] = {id, "open", "", "", "", "died", "2", "c", "7", "3", "1", "b"};
    struct msg gone = {.type = MSG_GONE};

    (void)state;
    assert_null(strstr(left_of(bench, row), "died|2|c"));
    gone.gone = (struct msg_gone){
        .group = strtoull(id, NULL, 16), .rank = 2, .cause = CAUSE_RANK_LOST, .pid = 7};
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 2, .msg = &gone});
    assert_non_null(strstr(left_of(bench, row), "died|2|c|7|3"));
    row[5] = "left";
    assert_null(strstr(left_of(bench, row), "left|2|c"));
    bench_free(bench);
}

static void add_row(struct table *table, const char *group, const char *rank, const char *node)
{
    const char *row[COLUMNS] = {group, "open", "", "", "", "", "", "", "", "", rank, node};

    for (unsigned i = 0; i < COLUMNS; i++)
        table_text(table, row[i]);
}

/* Rows are taken apart by our columns. */
static void other_columns_are_not_heard(void **state)
{
    struct table ours = {0}, told = {0};

    (void)state;
    table_init(&ours, "ranks", columns, COLUMNS);
    table_init(&told, "ranks", columns, COLUMNS);
    assert_true(heard_columns(&told.t, &ours.t));
    told.t.ncolumns = COLUMNS - 1;
    assert_false(heard_columns(&told.t, &ours.t));
    told.t.ncolumns = COLUMNS;
    strcpy(told.t.columns[COLUMNS - 1].key, "rank");
    assert_false(heard_columns(&told.t, &ours.t));
    table_fini(&ours);
    table_fini(&told);
}

/* Of a group that is not known here: who tells of another node's rank is not believed, and named.
 */
static void a_rank_is_on_one_node(void **state)
{
    char id[17], first[200] = "";
    struct bench *bench = bench_with_group(id);
    const char *unknown = "00000000000000aa", *other = "00000000000000ab";
    struct table table = {0};

    (void)state;
    table_init(&table, "ranks", columns, COLUMNS);
    add_row(&table, unknown, "0", "b");
    add_row(&table, unknown, "1", "b"); /* it is on c */
    add_row(&table, unknown, "2", "c");
    add_row(&table, unknown, "01", "c");
    add_row(&table, other, "1", "c"); /* another group */
    add_row(&table, "", "7", "b");    /* two that wait in a join */
    add_row(&table, "", "7", "b");
    add_row(&table, id, "1", "b"); /* known: looked at before */
    assert_int_equal(heard_disputes(bench->core, "a", &table, first, sizeof(first)), 1);
    assert_string_equal(first, "nodes b and c both tell of rank 1 of group 00000000000000aa");
    assert_int_equal(table.t.nrows, 6);
    assert_string_equal(table.t.cells[10], "0");
    assert_string_equal(table.t.cells[COLUMNS + 10], "2");
    assert_string_equal(table.t.cells[2 * COLUMNS], other);
    table_fini(&table);
    table_init(&table, "ranks", columns, COLUMNS);
    add_row(&table, unknown, "3", "b"); /* twice by one node, and what we know ourselves */
    add_row(&table, unknown, "3", "b");
    add_row(&table, unknown, "4", "a");
    add_row(&table, unknown, "4", "b");
    assert_int_equal(heard_disputes(bench->core, "a", &table, first, sizeof(first)), 2);
    assert_int_equal(table.t.nrows, 1);
    assert_string_equal(table.t.cells[11], "a");
    table_row(&table); /* cells that nothing was written to, as in a row of ours */
    assert_int_equal(heard_disputes(bench->core, "a", &table, first, sizeof(first)), 0);
    assert_int_equal(table.t.nrows, 2);
    table_fini(&table);
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_tells_of_its_own_ranks),
        cmocka_unit_test(a_node_accuses_nobody_else),
        cmocka_unit_test(a_node_tells_whom_it_missed_first),
        cmocka_unit_test(other_columns_are_not_heard),
        cmocka_unit_test(a_rank_is_on_one_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
