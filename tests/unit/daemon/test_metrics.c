/* What HTTP shows: the text format's rules over all metrics, the quoting of what is not ours, and
 * that doc/metrics.md and the dashboard have the metrics that there are. */
#include "daemon/http/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <ctype.h>

/* Any numbers, three nodes and two groups. */
static void make(struct metrics *m)
{
    memset(m, 0, sizeof(*m));
    m->version = "0.1.0";
    m->state = "degraded";
    m->engine_state = "up";
    snprintf(m->node, sizeof(m->node), "b");
    snprintf(m->cluster, sizeof(m->cluster), "lab");
    snprintf(m->unready, sizeof(m->unready), "node a is down: \"no\" </script>\n");
    m->uptime_ms = 61999;
    m->turns = UINT64_MAX;
    m->turns_us = 12345678;
    m->longest_turn_us = 7;
    m->counts.groups_broken[CAUSE_QUOTA] = 5;
    m->counts.groups_broken[CAUSE_INTERNAL] = 6;
    m->counts.groups_recovered[CORE_RECOVERED_FEWER] = 2;
    m->commd = (struct metrics_process){true, true, 1500000, 4096, 17};
    m->engine.known = true;
    m->http_codes[0] = 3;
    m->operations.of[COLL_BARRIER].ops = 65;
    m->operations.of[COLL_BARRIER].buckets[0] = 60;
    m->operations.of[COLL_BARRIER].buckets[RECORDER_BUCKETS - 1] = 4;
    m->operations.of[COLL_BARRIER].took_ns = 20000000015;
    m->operations.of[COLL_ALL_REDUCE].bytes = 1 << 20;
    m->operations.waits[1] = 7;
    m->ngpus = 2;
    m->gpus[1].operations = 77;
    m->nnodes = 3;
    m->nodes = calloc(3, sizeof(*m->nodes));
    assert_non_null(m->nodes);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(m->nodes[i].name, sizeof(m->nodes[i].name), "%c", 'a' + i);
        m->nodes[i].state = "up";
        m->nodes[i].up = true;
    }
    m->nodes[1].self = true;
    m->nodes[2].losses[CORE_LOSS_SILENCE] = 9;
    m->nodes[2].age_ms = 1234;
    m->nodes[2].traffic = (struct core_traffic){
        .sent = 5, .stalled_us = 7, .rtt_us = 42, .encryption = LINK_AES_128_GCM};
    m->nodes[2].key_ms = 4321;
    m->nodes[0].traffic.encryption = LINK_CLEAR_OFF;
    m->nodes[0].clear = true;
    m->groups = calloc(METRICS_GROUPS_SHOWN, sizeof(*m->groups));
    assert_non_null(m->groups);
    m->groups[0] = (struct metrics_group){.number = 4,
                                          .state = "open",
                                          .cause = "",
                                          .epoch = 3,
                                          .size = 8,
                                          .nodes = 2,
                                          .local = 4,
                                          .has_ops = true,
                                          .ops = 100,
                                          .behind = 2};
    m->groups[1] = (struct metrics_group){
        .state = "joining", .cause = "", .size = 3, .local = 1, .missing = 2};
    m->ngroups = m->groups_open = 2;
}

static char *text_of(const struct metrics *m)
{
    struct body *body = body_new();
    char *text;

    for (unsigned i = 0; metrics_text(m, i, body); i++)
        ;
    assert_int_equal(body->error, 0);
    text = strndup(body->data, body->len);
    body_unref(body);
    return text;
}

static bool has_line(const char *text, const char *line)
{
    const char *at = strstr(text, line);

    while (at && ((at > text && at[-1] != '\n') || at[strlen(line)] != '\n'))
        at = strstr(at + 1, line);
    return at;
}

static void samples_are_right(void **state)
{
    static const char *const lines[] = {
        "commd_gpu_operations_total{device=\"1\"} 77",
        "commd_build_info{version=\"0.1.0\",cluster=\"lab\",node=\"b\"} 1",
        "commd_ready 0",
        "commd_nodes 3",
        "commd_turns_total 18446744073709551615",
        "commd_turns_cpu_seconds_total 12.345678",
        "commd_longest_turn_cpu_seconds 0.000007",
        "commd_node_up{node=\"a\"} 1",
        "commd_node_state_age_seconds{node=\"c\"} 1.234000",
        "commd_node_losses_total{node=\"c\",cause=\"silence\"} 9",
        "commd_node_losses_total{node=\"c\",cause=\"engine\"} 0",
        "commd_node_sent_bytes_total{node=\"c\"} 5",
        "commd_node_received_bytes_total{node=\"a\"} 0",
        "commd_node_stalled_seconds_total{node=\"c\"} 0.000007",
        "commd_node_rtt_seconds{node=\"c\"} 0.000042",
        "commd_node_encryption_info{node=\"c\",encryption=\"AES-128-GCM\"} 1",
        "commd_node_encryption_info{node=\"a\",encryption=\"clear: transport.encryption is off\"} "
        "1",
        "commd_node_in_the_clear{node=\"a\"} 1",
        "commd_node_in_the_clear{node=\"c\"} 0",
        "commd_node_key_age_seconds{node=\"c\"} 4.321000",
        "commd_groups{state=\"open\"} 2",
        "commd_groups_broken_total{cause=\"quota exceeded\"} 5",
        "commd_groups_broken_total{cause=\"internal error\"} 6",
        "commd_process_cpu_seconds_total{process=\"commd\"} 1.500000",
        "commd_process_resident_memory_bytes{process=\"commd\"} 4096",
        "commd_groups_recovered_total{kind=\"all\"} 0",
        "commd_groups_recovered_total{kind=\"fewer\"} 2",
        "commd_groups_recovered_total{kind=\"new\"} 0",
        "commd_process_open_fds{process=\"commd\"} 17",
        "commd_http_requests_total{code=\"200\"} 3",
        "commd_http_requests_total{code=\"405\"} 0",
        "commd_operations_total{collective=\"barrier\"} 65",
        "commd_operations_total{collective=\"all_to_all_v\"} 0",
        "commd_operation_bytes_total{collective=\"all_reduce\"} 1048576",
        "commd_operation_duration_seconds_bucket{collective=\"barrier\",le=\"0.000000256\"} 60",
        "commd_operation_duration_seconds_bucket{collective=\"barrier\",le=\"4.294967296\"} 60",
        "commd_operation_duration_seconds_bucket{collective=\"barrier\",le=\"+Inf\"} 64",
        "commd_operation_duration_seconds_sum{collective=\"barrier\"} 20.000000015",
        "commd_operation_duration_seconds_count{collective=\"barrier\"} 64",
        "commd_operation_wait_seconds_bucket{le=\"0.000000512\"} 7",
        "commd_operation_wait_seconds_count 7",
        "# TYPE commd_operation_wait_seconds histogram",
        "# TYPE commd_turns_total counter",
        "# TYPE commd_ready gauge",
    };
    struct metrics m;
    char *text;

    make(&m);
    text = text_of(&m);
    for (unsigned i = 0; i < ARRAY_LEN(lines); i++)
        if (!has_line(text, lines[i]))
            fail_msg("no line %s in\n%s", lines[i], text);
    assert_null(strstr(text, "node=\"b\"} 0")); /* a node has no link to itself */
    assert_null(strstr(text, "commd_node_up{node=\"b\"}"));
    assert_null(strstr(text, "commd_process_open_fds{process=\"commd-engine\"}")); /* not known */
    assert_null(strstr(text, "cause=\"?\""));
    assert_null(strstr(text, "commd_node_rtt_seconds{node=\"a\"}")); /* not known */
    /* no histogram of what was never called */
    assert_null(strstr(text, "commd_operation_duration_seconds_count{collective=\"gather\"}"));
    free(text);
    metrics_fini(&m);
}

/* Of the metric that a sample belongs to. */
static size_t base_length(const char *line, size_t len, const char *type)
{
    static const char *const ends[] = {"_bucket", "_sum", "_count"};

    for (unsigned i = 0; i < ARRAY_LEN(ends) && !strcmp(type, "histogram"); i++)
        if (!strncmp(line + len - strlen(ends[i]), ends[i], strlen(ends[i])))
            return len - strlen(ends[i]);
    return len;
}

/* One HELP and one TYPE of each, in this order, before its samples; names are of the convention; no
 * sample comes twice; all ends in a newline. */
static void text_follows_the_rules(void **state)
{
    char name[128] = "", type[16], *text, *save = NULL, *line, *seen[1024];
    unsigned n = 0, metrics = 0;
    struct metrics m;

    make(&m);
    text = text_of(&m);
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t len = strcspn(line, " {");

        if (sscanf(line, "# HELP %127s", name) == 1) {
            assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name));
            assert_int_equal(line[strlen(line) - 1], '.');
            line = strtok_r(NULL, "\n", &save);
            assert_non_null(line);
            assert_int_equal(sscanf(line, "# TYPE %*s %15s", type), 1);
            assert_memory_equal(line + 7, name, strlen(name));
            /* counters, and nothing else, end in _total */
            assert_int_equal(!strcmp(type, "counter"), !strcmp(name + strlen(name) - 6, "_total"));
            metrics++;
            continue;
        }
        assert_int_equal(base_length(line, len, type), strlen(name));
        assert_memory_equal(line, name, strlen(name));
        *strrchr(line, ' ') = '\0';
        for (unsigned i = 0; i < n; i++)
            assert_string_not_equal(seen[i], line);
        assert_true(n < ARRAY_LEN(seen));
        seen[n++] = line;
    }
    assert_true(metrics > 40 && n > metrics);
    free(text);
    metrics_fini(&m);
}

static void names_are_there_once(void **state)
{
    const char *name, *other, *type, *help;

    for (unsigned i = 0; metrics_row(i, &name, &type, &help); i++) {
        assert_true(strncmp(name, "commd_", 6) == 0 && help[0]);
        for (unsigned k = 0; k < i; k++) {
            metrics_row(k, &other, &type, &help);
            assert_string_not_equal(name, other);
        }
    }
}

static void assert_added(void (*add)(struct body *, const char *), const char *text,
                         const char *want)
{
    struct body *body = body_new();

    add(body, text);
    assert_int_equal(body->len, strlen(want));
    assert_memory_equal(body->data, want, body->len);
    body_unref(body);
}

static void quoting(void **state)
{
    assert_added(body_add_label, "a\\b\"c\nd\xc3\xa4", "a\\\\b\\\"c\\nd\xc3\xa4");
    assert_added(body_add_json, "a\\b\"c\nd<\x7f\xc3\xa4",
                 "\"a\\u005cb\\u0022c\\u000ad\\u003c\\u007f\xc3\xa4\"");
    assert_added(body_add_json, "", "\"\"");
}

static void bodies_have_an_end(void **state)
{
    static char text[1025];
    struct body *body = body_new(), *other = body_ref(body);

    memset(text, 'x', sizeof(text) - 1);
    for (unsigned i = 0; i < BODY_MAX / 1024; i++)
        body_add(body, "%s", text);
    assert_int_equal(body->error, 0);
    assert_int_equal(body->len, BODY_MAX);
    body_add(body, "y");
    assert_int_equal(body->error, -E2BIG);
    assert_int_equal(body->len, BODY_MAX);
    assert_null(body_unref(other));
    assert_null(body_unref(body));
}

static void json_is_what_the_page_wants(void **state)
{
    static const char *const parts[] = {
        "{\"node\":\"b\",\"cluster\":\"lab\",\"version\":\"0.1.0\",\"state\":\"degraded\",",
        "\"why\":\"node a is down: \\u0022no\\u0022 \\u003c/script>\\u000a\",",
        "{\"node\":\"c\",\"state\":\"up\",\"last_error\":\"\",\"rtt_us\":42,\"min_rtt_us\":null,"
        "\"retransmits\":null,"
        "\"sent\":null,\"received\":null,\"since_s\":1,\"links\":0,\"link_losses\":9}]",
        "\"groups\":[{\"number\":4,\"state\":\"open\",\"cause\":\"\",\"nodes\":2,\"ops\":100,"
        "\"behind\":2,\"epoch\":3,\"size\":8,\"local_ranks\":4,\"missing\":0},{\"number\":null,",
        "\"uptime_s\":61.999,\"nodes\":[{\"node\":\"a\",",
        "\"ops\":null,\"behind\":null,\"epoch\":null,\"size\":3,\"local_ranks\":1,\"missing\":2}]",
        "\"commd_turns_cpu_seconds_total\":12.345678,",
    };
    struct body *body = body_new();
    struct metrics m;
    char *text;

    make(&m);
    status_json(&m, body);
    text = strndup(body->data, body->len);
    for (unsigned i = 0; i < ARRAY_LEN(parts); i++)
        if (!strstr(text, parts[i]))
            fail_msg("no %s in\n%s", parts[i], text);
    free(text);
    body_unref(body);
    metrics_fini(&m);
}

/* What other nodes wrote: a number, or none; a text, whatever is in it. */
static void links_in_the_status(void **state)
{
    struct msg_column columns[] = {{.key = "node", .type = MSG_CELL_STRING},
                                   {.key = "peer", .type = MSG_CELL_STRING},
                                   {.key = "rtt_us", .type = MSG_CELL_NUMBER},
                                   {.key = "segments", .type = MSG_CELL_NUMBER}};
    char *cells[] = {
        "a", "b\"</script>", "42", "", "b", "a", "1e9", "-1", "c", "a", "99999999999999999999999",
        "0"};
    struct msg_table links = {"links", ARRAY_LEN(columns), 3, columns, cells};
    struct body *body = body_new();
    struct metrics m;
    char *text;

    make(&m);
    status_json(&m, body);
    body_add(body, "%c", '\0');
    assert_non_null(strstr(body->data, "],\"link_columns\":null,\"links\":null,\"groups\":["));
    body_unref(body);
    body = body_new();
    m.matrix = &links;
    status_json(&m, body);
    text = strndup(body->data, body->len);
    if (!strstr(text, "],\"link_columns\":[\"node\",\"peer\",\"rtt_us\",\"segments\"],\"links\":["
                      "[\"a\",\"b\\u0022\\u003c/script>\",42,null],[\"b\",\"a\",null,null],"
                      "[\"c\",\"a\",null,0]],\"groups\":["))
        fail_msg("%s", text);
    free(text);
    body_unref(body);
    metrics_fini(&m);
}

/* ---- for people ------------------------------------------------------------------------- */

static char *read_file_of_tree(const char *path)
{
    const char *top = getenv("srcdir");
    char full[4096];
    size_t len = 0;
    char *text = calloc(1, 1 << 20);
    FILE *file;

    snprintf(full, sizeof(full), "%s/%s", top ? top : ".", path);
    file = fopen(full, "re");
    if (!file)
        fail_msg("%s: %s", full, strerror(errno));
    else
        len = fread(text, 1, (1 << 20) - 1, file);
    assert_true(len > 1000);
    fclose(file);
    return text;
}

/* Of a histogram there are three. */
static bool is_part(const char *rest, size_t len)
{
    static const char *const parts[] = {"_bucket", "_sum", "_count"};

    for (unsigned i = 0; i < ARRAY_LEN(parts); i++)
        if (strlen(parts[i]) == len && memcmp(parts[i], rest, len) == 0)
            return true;
    return false;
}

static bool is_metric(const char *word, size_t len)
{
    const char *name, *type, *help;

    for (unsigned i = 0; metrics_row(i, &name, &type, &help); i++) {
        size_t n = strlen(name);

        if (n > len || memcmp(name, word, n) != 0)
            continue;
        if (n == len || (strcmp(type, "histogram") == 0 && is_part(word + n, len - n)))
            return true;
    }
    return false;
}

/* Whatever looks like a metric in @text is one. */
static unsigned check_words(const char *text)
{
    unsigned n = 0;

    for (const char *at = text; (at = strstr(at, "commd_")); n++) {
        size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");

        if (!is_metric(at, len))
            fail_msg("there is no metric %.*s", (int)len, at);
        at += len;
    }
    return n;
}

static void manual_has_each_metric_as_it_is(void **state)
{
    char *text = read_file_of_tree("doc/metrics.md"), row[512];
    const char *name, *type, *help;

    for (unsigned i = 0; metrics_row(i, &name, &type, &help); i++) {
        snprintf(row, sizeof(row), "\n| `%s` | %s | ", name, type);
        if (!strstr(text, row))
            fail_msg("doc/metrics.md lacks %s", row + 1);
        snprintf(row, sizeof(row), "| %s |\n", help);
        if (!strstr(text, row))
            fail_msg("doc/metrics.md says otherwise than: %s", help);
    }
    check_words(text);
    free(text);
}

static void dashboard_names_metrics_that_there_are(void **state)
{
    char *text = read_file_of_tree("etc/grafana-commd.json");

    assert_true(check_words(text) > 15);
    free(text);
}

static void page_names_metrics_that_there_are(void **state)
{
    char *text = read_file_of_tree("daemon/http/page.html");

    assert_true(check_words(text) > 10);
    for (const char *at = text; *at; at++)
        assert_true(isascii(*at)); /* page.c takes it as plain chars */
    free(text);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_right),
        cmocka_unit_test(text_follows_the_rules),
        cmocka_unit_test(names_are_there_once),
        cmocka_unit_test(quoting),
        cmocka_unit_test(bodies_have_an_end),
        cmocka_unit_test(json_is_what_the_page_wants),
        cmocka_unit_test(links_in_the_status),
        cmocka_unit_test(manual_has_each_metric_as_it_is),
        cmocka_unit_test(dashboard_names_metrics_that_there_are),
        cmocka_unit_test(page_names_metrics_that_there_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
