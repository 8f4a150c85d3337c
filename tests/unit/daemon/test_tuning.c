/* The answer to "tuning": names, headings, and numbers that follow from constants and settings; and
 * what fits into an answer. */
#include "daemon/admin/tuning.h"
#include "shm/model/plan.h"
#include "shm/model/team.h"
#include "shm/model/tune.h"
#include "shm/reduce/reduce.h"
#include "shm/util/copy.h"
#include "shm/util/topology.h"
#include "shm/util/wait.h"
#include "tests/unit/daemon/conf_helper.h"

static const char *cell(const struct table *table, const char *name, unsigned column)
{
    for (uint32_t row = 0; row < table->t.nrows; row++) {
        char **cells = table->t.cells + (size_t)row * table->t.ncolumns;

        if (!strcmp(cells[0], name))
            return cells[column];
    }
    fail_msg("no row %s", name);
    return NULL;
}

static void check_number(const struct table *table, const char *name, uint64_t number,
                         const char *unit)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu%s", (unsigned long long)number, unit);
    assert_string_equal(cell(table, name, 1), text);
}

static void numbers_are_those_that_were_built(void **state)
{
    const struct team_machine machine = {topology_here()->cpus, topology_here()->caches};
    struct conf *conf = load_ok("");
    struct table table;
    struct tune tune;

    tuning_fill(&table, conf, conf, "");
    assert_int_equal(table.error, 0);
    assert_string_equal(table.t.name, "tuning");
    assert_int_equal(table.t.ncolumns, 3);
    assert_string_equal(table.t.columns[0].key, "name");
    assert_string_equal(table.t.columns[1].key, "value");
    assert_string_equal(table.t.columns[2].key, "why");
    assert_string_equal(table.t.columns[2].title, "WHY");
    check_number(&table, "small", PLAN_SMALL / 1024, "K");
    check_number(&table, "chunk_net", PLAN_CHUNK_NET / 1024, "K");
    tune_one_node(topology_here(), 2, &tune);
    check_number(&table, "small_pair", tune.chunk / 1024, "K");
    check_number(&table, "chunk", tune.chunk / 1024, "K");
    check_number(&table, "depth", tune.depth, "");
    check_number(&table, "around", tune.around / 1024, tune.around ? "K" : "");
    tune_one_node(topology_here(), topology_here()->cpus, &tune);
    check_number(&table, "depth_full", tune.depth, "");
    check_number(&table, "spins", WAIT_SPINS, "");
    check_number(&table, "cores", wait_cores(), "");
    check_number(&table, "caches", topology_here()->caches, "");
    check_number(&table, "team_64", team_size(64, &machine), "");
    assert_string_equal(cell(&table, "reduce_kernels", 1), reduce_kernels());
    assert_string_equal(cell(&table, "copy_kernels", 1), copy_kernels());
    for (uint32_t row = 0; row < table.t.nrows; row++)
        assert_true(table.t.cells[row * 3 + 2][0]); /* each has its reason */
    table_fini(&table);
    conf_free(conf);
}

static void settings_are_the_daemons(void **state)
{
    struct conf *conf = load_ok("transport: {latency_us: 1, bandwidth: 100G, channels: 3, "
                                "congestion_control: reno, encryption: on, "
                                "encryption_threads: 3}");
    const struct plan_net net = {1, 100 << 10};
    struct table table;

    tuning_fill(&table, conf, conf, "AES-128-GCM: 2 links, oldest key 3 s");
    assert_string_equal(cell(&table, "latency_us", 1), "1");
    assert_string_equal(cell(&table, "bandwidth", 1), "100G");
    assert_string_equal(cell(&table, "channels", 1), "3");
    assert_string_equal(cell(&table, "congestion_control", 1), "reno");
    assert_string_equal(cell(&table, "encryption", 1), "on");
    assert_string_equal(cell(&table, "encryption_threads", 1), "3");
    assert_string_equal(cell(&table, "encrypted", 1), "AES-128-GCM: 2 links, oldest key 3 s");
    check_number(&table, "small_net_4", plan_small_net(&net, 4) / 1024, "K");
    check_number(&table, "halving_net_4", plan_halving_net(&net, 4, COLL_ALL_REDUCE), "");
    assert_string_equal(cell(&table, "halving_net_32", 1), "always");
    table_fini(&table);
    conf_free(conf);
}

/* Each fits into an answer, both together do not. */
static void tables_that_do_not_fit_together(void **state)
{
    static const struct table_column columns[] = {{"a", "A", MSG_CELL_STRING}};
    char text[4096];
    struct table tables[2];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    for (unsigned many = 0; many < 2; many++) {
        for (unsigned i = 0; i < 2; i++) {
            table_init(&tables[i], "t", columns, 1);
            for (unsigned n = 0; n < (many ? MSG_MAX_CELLS / 2 + i : 1100); n++)
                table_text(&tables[i], many ? "" : text);
            assert_int_equal(tables_error(&tables[i], 1), 0);
        }
        assert_int_equal(tables_error(tables, 2), -E2BIG);
        table_fini(&tables[0]);
        assert_int_equal(tables_error(tables, 2), 0);
        table_fini(&tables[1]);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_that_were_built),
        cmocka_unit_test(settings_are_the_daemons),
        cmocka_unit_test(tables_that_do_not_fit_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
