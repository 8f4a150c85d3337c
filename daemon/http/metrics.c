/* metrics.c - the table of metrics.
 *
 * One row says everything about a metric: its name, type and help, where its number stands, and,
 * where it has labels, the function that writes its samples. doc/metrics.md has
 * the same rows for people; test_metrics compares the two, and etc/grafana.json with both.
 *
 * The number of series is bounded by the number of configured nodes: a label is a node, or one of
 * an enum of ours. None names a user, a group or a process of a user: HTTP does not know who asks.
 *
 * Pure: no clock and no I/O. Numbers are written as integers, times as decimals of seconds. */
#include "daemon/http/metrics.h"

#include <inttypes.h>
#include <stdio.h>

#include "shm/proto/codec.h"

const struct metrics_code metrics_codes[METRICS_CODES] = {
    {200, "OK"},
    {400, "not a request that this server understands"},
    {403, "on loopback ask for localhost or for an address"},
    {404, "there is /, /metrics, /status.json, /healthz and /readyz"},
    {405, "only GET and HEAD"},
    {413, "a request has no body here"},
    {414, "the path is too long"},
    {431, "the head of the request is too long"},
    {503, "not ready"},
    {505, "only HTTP/1.0 and HTTP/1.1"},
};

enum metric_unit { METRIC_NUMBER, METRIC_US, METRIC_MS };

struct metric {
    const char *name, *type, *help;
    size_t at; /* offset in struct metrics, or in the struct of which write() writes samples */
    size_t size;
    size_t known; /* of a process: which bool says that the number is known */
    enum metric_unit unit;
    bool measured; /* of a node: 0 is not known */
    const char *label, *const *words;
    void (*write)(struct body *body, const struct metric *metric, const struct metrics *m);
};

static void add_number(struct body *body, const struct metric *metric, uint64_t number)
{
    if (metric->unit == METRIC_MS)
        number *= 1000;
    if (metric->unit != METRIC_NUMBER)
        body_add(body, "%" PRIu64 ".%06" PRIu64, number / 1000000, number % 1000000);
    else
        body_add(body, "%" PRIu64, number);
}

static void sample(struct body *body, const struct metric *metric, const char *label,
                   const char *value, uint64_t number)
{
    body_add(body, "%s{%s=\"", metric->name, label);
    body_add_label(body, value);
    body_add(body, "\"} ");
    add_number(body, metric, number);
    body_add(body, "\n");
}

/* @base: what metric->at counts from. */
static uint64_t number_of(const struct metric *metric, const void *base)
{
    const void *field = (const char *)base + metric->at;

    switch (metric->size) {
    case sizeof(bool):
        return *(const bool *)field;
    case sizeof(uint32_t):
        return *(const uint32_t *)field;
    default:
        return *(const uint64_t *)field;
    }
}

/* ---- metrics with labels --------------------------------------------------------------------- */

static void write_build_info(struct body *body, const struct metric *metric,
                             const struct metrics *m)
{
    body_add(body, "%s{version=\"", metric->name);
    body_add_label(body, m->version);
    body_add(body, "\",cluster=\"");
    body_add_label(body, m->cluster);
    body_add(body, "\",node=\"");
    body_add_label(body, m->node);
    body_add(body, "\"} 1\n");
}

/* No sample where there is nothing to count. */
static void write_certificate(struct body *body, const struct metric *metric,
                              const struct metrics *m)
{
    if (m->certified_until)
        body_add(body, "%s %" PRIu64 "\n", metric->name, m->certified_until);
}

/* A sample for each other node: struct metrics_node. */
static void write_nodes(struct body *body, const struct metric *metric, const struct metrics *m)
{
    for (unsigned i = 0; i < m->nnodes; i++)
        if (!m->nodes[i].self && (!metric->measured || number_of(metric, &m->nodes[i])))
            sample(body, metric, "node", m->nodes[i].name, number_of(metric, &m->nodes[i]));
}

/* A sample for each node whose engine has told. */
static void write_node_encryption(struct body *body, const struct metric *metric,
                                  const struct metrics *m)
{
    for (unsigned i = 0; i < m->nnodes; i++) {
        if (!m->nodes[i].traffic.encryption)
            continue;
        body_add(body, "%s{node=\"", metric->name);
        body_add_label(body, m->nodes[i].name);
        body_add(body, "\",encryption=\"%s\"} 1\n",
                 link_encryption_word(m->nodes[i].traffic.encryption));
    }
}

static void write_node_losses(struct body *body, const struct metric *metric,
                              const struct metrics *m)
{
    static const char *const words[CORE_LOSS_KINDS] = {
        [CORE_LOSS_LINK] = "link",
        [CORE_LOSS_SILENCE] = "silence",
        [CORE_LOSS_RECONNECT] = "reconnect",
        [CORE_LOSS_ENGINE] = "engine",
    };

    for (unsigned i = 0; i < m->nnodes; i++)
        for (unsigned kind = 0; kind < CORE_LOSS_KINDS && !m->nodes[i].self; kind++) {
            body_add(body, "%s{node=\"", metric->name);
            body_add_label(body, m->nodes[i].name);
            body_add(body, "\",cause=\"%s\"} %" PRIu64 "\n", words[kind], m->nodes[i].losses[kind]);
        }
}

/* A sample for each GPU: struct metrics_gpu. */
static void write_gpus(struct body *body, const struct metric *metric, const struct metrics *m)
{
    char device[16];

    for (unsigned i = 0; i < m->ngpus; i++) {
        snprintf(device, sizeof(device), "%u", i);
        sample(body, metric, "device", device, number_of(metric, &m->gpus[i]));
    }
}

/* A sample for each of metric->words: they stand for the counters of an array. */
static void write_words(struct body *body, const struct metric *metric, const struct metrics *m)
{
    for (unsigned i = 0; metric->words[i]; i++)
        sample(body, metric, metric->label, metric->words[i],
               number_of(metric, (const uint64_t *)m + i));
}

/* Of an array with a counter for each cause: all that there are, so that a rate() has a beginning.
 */
static void write_causes(struct body *body, const struct metric *metric, const struct metrics *m)
{
    for (unsigned cause = CAUSE_NONE + 1; cause < CAUSE_COUNT; cause++)
        if (strcmp(cause_name(cause), "?"))
            sample(body, metric, "cause", cause_name(cause),
                   number_of(metric, (const uint64_t *)m + cause));
}

static void write_http_requests(struct body *body, const struct metric *metric,
                                const struct metrics *m)
{
    char code[16];

    for (unsigned i = 0; i < METRICS_CODES; i++) {
        snprintf(code, sizeof(code), "%u", metrics_codes[i].status);
        sample(body, metric, "code", code, m->http_codes[i]);
    }
}

/* A sample for commd and one for the engine, where /proc tells: struct metrics_process. */
static void write_processes(struct body *body, const struct metric *metric, const struct metrics *m)
{
    const struct metrics_process *const of[] = {&m->commd, &m->engine};
    static const char *const names[] = {"commd", "commd-engine"};

    for (unsigned i = 0; i < ARRAY_LEN(of); i++)
        if (*(const bool *)((const char *)of[i] + metric->known))
            sample(body, metric, "process", names[i], number_of(metric, of[i]));
}

_Static_assert(offsetof(struct metrics, groups_broken) ==
                   offsetof(struct metrics, groups_joining) + 2 * sizeof(uint64_t),
               "counters of groups stand together, as an array");

/* ---- operations ------------------------------------------------------------------------------ */

/* A sample for each collective: struct recorder_totals. */
static void write_collectives(struct body *body, const struct metric *metric,
                              const struct metrics *m)
{
    for (unsigned c = 0; c < COLL_COUNT; c++)
        sample(body, metric, "collective", coll_name(c), number_of(metric, &m->operations.of[c]));
}

static void add_ns(struct body *body, uint64_t ns)
{
    body_add(body, "%" PRIu64 ".%09" PRIu64, ns / 1000000000, ns % 1000000000);
}

/* @labels: "" or one, in the form of name="value". */
static void histogram(struct body *body, const struct metric *metric, const char *labels,
                      const uint64_t buckets[RECORDER_BUCKETS], uint64_t sum_ns)
{
    const char *comma = labels[0] ? "," : "";
    char braced[64] = "";
    uint64_t count = 0;

    if (labels[0])
        snprintf(braced, sizeof(braced), "{%s}", labels);
    for (unsigned b = 0; b < RECORDER_BUCKETS; b++) {
        count += buckets[b];
        body_add(body, "%s_bucket{%s%sle=\"", metric->name, labels, comma);
        if (b + 1 < RECORDER_BUCKETS)
            add_ns(body, recorder_bucket_ns(b));
        else
            body_add(body, "+Inf");
        body_add(body, "\"} %" PRIu64 "\n", count);
    }
    body_add(body, "%s_sum%s ", metric->name, braced);
    add_ns(body, sum_ns);
    body_add(body, "\n%s_count%s %" PRIu64 "\n", metric->name, braced, count);
}

/* Histograms, only for collectives that were called: each has 28 series. */
static void write_durations(struct body *body, const struct metric *metric, const struct metrics *m)
{
    char label[48];

    for (unsigned c = 0; c < COLL_COUNT; c++) {
        if (!m->operations.of[c].ops)
            continue;
        snprintf(label, sizeof(label), "collective=\"%s\"", coll_name(c));
        histogram(body, metric, label, m->operations.of[c].buckets, m->operations.of[c].took_ns);
    }
}

static void write_waits(struct body *body, const struct metric *metric, const struct metrics *m)
{
    histogram(body, metric, "", m->operations.waits, m->operations.waited_ns);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define FIELD(type_, field_) .at = offsetof(type_, field_), .size = sizeof(((type_ *)0)->field_)
#define AT(field_)           FIELD(struct metrics, field_)
#define NODE(field_)         FIELD(struct metrics_node, field_), .write = write_nodes
#define MEASURED(field_)     NODE(field_), .measured = true
#define PROCESS(field_, known_)                                                                    \
    FIELD(struct metrics_process, field_), .known = offsetof(struct metrics_process, known_),      \
        .write = write_processes
#define GPU(field_) FIELD(struct metrics_gpu, field_), .write = write_gpus
#define WORDS(field_, label_, ...)                                                                 \
    FIELD(struct metrics, field_), .write = write_words, .label = label_,                          \
        .words = (const char *const[])                                                             \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define CAUSES(field_) FIELD(struct metrics, field_[0]), .write = write_causes
#define COLLECTIVES(field_)                                                                        \
    FIELD(__typeof__(((struct metrics *)0)->operations.of[0]), field_), .write = write_collectives
#define GAUGE(name_, help_)     .name = "commd_" name_, .type = "gauge", .help = help_
#define COUNTER(name_, help_)   .name = "commd_" name_, .type = "counter", .help = help_
#define HISTOGRAM(name_, help_) .name = "commd_" name_, .type = "histogram", .help = help_

/* clang-format off */
static const struct metric rows[] = {
    { GAUGE("build_info", "Always 1; the labels say what runs here."), .write = write_build_info },
    { GAUGE("ready", "1 if this node is well: not draining, its engine and all other nodes up."),
      AT(ready) },
    { GAUGE("start_time_seconds", "When commd was started, in seconds since 1970."),
      AT(start_us), .unit = METRIC_US },

    { GAUGE("nodes", "Nodes of the cluster as configured, this one included."), AT(nnodes) },
    { GAUGE("nodes_up", "Nodes over which groups may run, this one included."), AT(nodes_up) },
    { GAUGE("node_up", "1 if groups of this node may run over that one."), NODE(up) },
    { GAUGE("node_linked", "1 if the two commds have a link."), NODE(linked) },
    { GAUGE("node_state_age_seconds", "Time since the state of that node changed."),
      NODE(age_ms), .unit = METRIC_MS },
    { COUNTER("node_links_total", "How often the link to that node came up."),
      NODE(links) },
    { COUNTER("node_losses_total", "How often that node was lost, by how."),
      .write = write_node_losses },
    { COUNTER("node_sent_bytes_total", "Data sent to that node, as the other side has it."),
      NODE(traffic.sent) },
    { COUNTER("node_received_bytes_total", "Data that came from that node."),
      NODE(traffic.received) },
    { COUNTER("node_segments_total", "Segments of TCP sent to that node."),
      NODE(traffic.segments) },
    { COUNTER("node_retransmits_total", "Of these, those that were sent again."),
      NODE(traffic.retransmits) },
    { COUNTER("node_mended_connections_total",
              "Data connections to that node that broke and were made again, nothing lost."),
      NODE(traffic.mends) },
    { COUNTER("node_stalled_seconds_total", "Time in which that node took no data."),
      NODE(traffic.stalled_us), .unit = METRIC_US },
    { GAUGE("node_rtt_seconds", "To that node and back, smoothed; the slowest that sent in 2 s."),
      MEASURED(traffic.rtt_us), .unit = METRIC_US },
    { GAUGE("node_min_rtt_seconds", "The least that was seen."),
      MEASURED(traffic.min_rtt_us), .unit = METRIC_US },
    { GAUGE("node_bandwidth_bytes_per_second",
            "The highest rate at which data arrived at that node."),
      MEASURED(traffic.bandwidth) },
    { GAUGE("node_encryption_info",
            "Always 1; the label says how data between the two engines are encrypted, or why not."),
      .write = write_node_encryption },
    { GAUGE("node_in_the_clear", "1 if who is on the network can read and forge those data."),
      NODE(clear) },
    { GAUGE("node_key_age_seconds", "Age of the oldest key in use for those data."),
      MEASURED(key_ms), .unit = METRIC_MS },
    { COUNTER("tls_handshakes_failed_total",
              "TLS handshakes between nodes that failed; cause stranger: with who came from no "
              "address of a node."),
      WORDS(links.handshakes_failed[0], "cause", [PEER_HANDSHAKE_CLOSED] = "closed",
            [PEER_HANDSHAKE_WRONG_KEY] = "wrong key", [PEER_HANDSHAKE_REFUSED_US] = "refused us",
            [PEER_HANDSHAKE_NOT_TLS] = "not TLS", [PEER_HANDSHAKE_CERTIFICATE] = "certificate",
            [PEER_HANDSHAKE_SLOW] = "too slow", [PEER_HANDSHAKE_STRANGER] = "stranger") },
    { GAUGE("certificate_expires_seconds",
            "When this node's certificate expires, in seconds since 1970, if it has one."),
      .write = write_certificate },
    { COUNTER("node_connections_refused_total", "Connections to the port of the nodes refused."),
      AT(links.refused) },

    { GAUGE("engine_up", "1 if the engine is up; 0 too on a node that is alone and needs none."),
      AT(engine_up) },
    { COUNTER("engine_starts_total", "How often the engine was started."),
      AT(counts.engine_starts) },
    { COUNTER("engine_losses_total", "How often an engine that was up was lost."),
      AT(counts.engine_losses) },

    { GAUGE("gpu_up", "1 if commd-gpu is up; 0 too before anybody asks, and where there is none."),
      AT(gpu_up) },
    { COUNTER("gpu_starts_total", "How often commd-gpu was started."), AT(counts.gpu_starts) },
    { COUNTER("gpu_losses_total", "How often a commd-gpu that was up was lost."),
      AT(counts.gpu_losses) },
    { GAUGE("gpu_clients", "Clients with a session at commd-gpu."), AT(gpu_clients) },
    { COUNTER("gpu_operations_total", "Operations on that GPU that have ended."),
      GPU(operations) },
    { COUNTER("gpu_moved_bytes_total", "Bytes of its memory that they have read."),
      GPU(moved) },

    { GAUGE("clients", "Clients connected, commctl apart."), AT(clients) },
    { GAUGE("clients_limit", "limits.max_clients."), AT(max_clients) },
    { GAUGE("clients_user_limit", "limits.max_clients_per_user."), AT(max_clients_user) },
    { GAUGE("clients_of_one_user", "Clients of the user who has most."), AT(most_clients) },
    { COUNTER("clients_total", "Clients that were let in, commctl apart."), AT(counts.clients) },
    { COUNTER("clients_refused_total", "Clients refused, or closed for what they sent."),
      CAUSES(clients_refused) },
    { GAUGE("users", "Users who have clients or groups."), AT(users) },

    { GAUGE("groups", "Groups with a rank or their home here, by state."),
      WORDS(groups_joining, "state", "joining", "open", "broken") },
    { GAUGE("groups_limit", "limits.max_groups."), AT(max_groups) },
    { GAUGE("groups_user_limit", "limits.max_groups_per_user."), AT(max_groups_user) },
    { GAUGE("groups_of_one_user", "Groups of the user who has most."), AT(most_groups) },
    { COUNTER("groups_opened_total", "Groups that opened."), AT(counts.groups_opened) },
    { COUNTER("groups_broken_total", "Groups that broke, by the first cause."),
      CAUSES(counts.groups_broken) },
    { COUNTER("groups_revoked_total", "Groups that a rank ended after the loss of another one."),
      AT(counts.groups_revoked) },
    { COUNTER("groups_recovered_total",
              "Groups that went on: with all ranks, fewer, or new processes."),
      WORDS(counts.groups_recovered[0], "kind", [CORE_RECOVERED_ALL] = "all",
            [CORE_RECOVERED_FEWER] = "fewer", [CORE_RECOVERED_NEW] = "new") },
    { GAUGE("groups_to_recover", "Of those that join, groups whose ranks wait to go on."),
      AT(groups_to_recover) },
    { GAUGE("free_seats", "Seats of these that new processes are awaited for; told by their home."),
      AT(free_seats) },
    { GAUGE("new_processes", "New processes that wait for a seat; told by the home of the group."),
      AT(new_processes) },
    { COUNTER("joins_failed_total", "Ranks of this node whose join failed."),
      CAUSES(counts.joins_failed) },
    { COUNTER("ranks_lost_total", "Ranks of this node that ended without leaving their group."),
      AT(counts.ranks_lost) },
    { COUNTER("collectives_total", "Operations completed in groups with ranks here."),
      AT(collectives) },
    { COUNTER("operations_total", "The same, by collective; each rank here counts for itself."),
      COLLECTIVES(ops) },
    { COUNTER("operation_bytes_total", "What ranks here gave to these operations."),
      COLLECTIVES(bytes) },
    { HISTOGRAM("operation_duration_seconds", "From the call of a rank here to its return."),
      .write = write_durations },
    { HISTOGRAM("operation_wait_seconds", "Of that, until the last rank here had called."),
      .write = write_waits },

    { GAUGE("boards", "Boards of groups, those that were left but are held included."),
      AT(boards) },
    { GAUGE("boards_bytes", "Their sizes together, used or not."), AT(board_bytes) },
    { GAUGE("boards_limit_bytes", "limits.max_board_bytes."), AT(max_board_bytes) },
    { GAUGE("boards_user_limit_bytes", "limits.max_board_bytes_per_user."),
      AT(max_board_bytes_user) },
    { GAUGE("boards_of_one_user_bytes", "Boards of the user who has most."),
      AT(most_board_bytes) },
    { GAUGE("arenas", "Pieces of registered memory."), AT(arenas) },
    { GAUGE("arenas_limit", "Pieces of registered memory that there may be."), AT(max_arenas) },

    { COUNTER("turns_total", "Turns of commd's loop."), AT(turns) },
    { COUNTER("turns_cpu_seconds_total", "Time of the processor that these turns took."),
      AT(turns_us), .unit = METRIC_US },
    { GAUGE("longest_turn_cpu_seconds", "Time of the processor that the longest turn took."),
      AT(longest_turn_us), .unit = METRIC_US },
    { COUNTER("process_cpu_seconds_total", "Time of the processor, all threads, user and system."),
      PROCESS(cpu_us, known), .unit = METRIC_US },
    { GAUGE("process_resident_memory_bytes", "Memory in use, shared memory included."),
      PROCESS(resident_bytes, known) },
    { GAUGE("process_open_fds", "Open descriptors."), PROCESS(fds, fds_known) },
    { GAUGE("process_max_fds", "Descriptors that commd may have open."), AT(max_fds) },

    { COUNTER("log_lines_total", "Lines written to the log, by level."),
      WORDS(log_written[0], "level", "error", "warn", "info", "debug") },
    { COUNTER("log_lines_left_out_total", "Lines left out, because one cause had too many."),
      AT(log_left_out) },
    { COUNTER("log_lines_lost_total", "Lines that could not be written."), AT(log_lost) },

    { COUNTER("http_requests_total", "HTTP requests answered, by status."),
      .write = write_http_requests },
    { GAUGE("http_connections", "HTTP connections, this one included."), AT(http_connections) },
    { COUNTER("http_dropped_total", "HTTP connections closed early: too slow, or too many."),
      AT(http_dropped) },
};
/* clang-format on */

bool metrics_row(unsigned i, const char **ret_name, const char **ret_type, const char **ret_help)
{
    if (i >= ARRAY_LEN(rows))
        return false;
    *ret_name = rows[i].name;
    *ret_type = rows[i].type;
    *ret_help = rows[i].help;
    return true;
}

bool metrics_text(const struct metrics *m, unsigned i, struct body *body)
{
    const struct metric *metric = &rows[i];

    assert(i < ARRAY_LEN(rows));
    body_add(body, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name,
             metric->type);
    if (metric->write) {
        metric->write(body, metric, m);
    } else {
        body_add(body, "%s ", metric->name);
        add_number(body, metric, number_of(metric, m));
        body_add(body, "\n");
    }
    return i + 1 < ARRAY_LEN(rows);
}

void metrics_json(const struct metrics *m, struct body *body)
{
    const char *comma = "";

    body_add(body, "{");
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].write)
            continue;
        body_add(body, "%s\"%s\":", comma, rows[i].name);
        add_number(body, &rows[i], number_of(&rows[i], m));
        comma = ",";
    }
    body_add(body, "}");
}

void metrics_fini(struct metrics *m)
{
    free(m->nodes);
    free(m->groups);
    free(m->events);
    *m = (struct metrics){0};
}
