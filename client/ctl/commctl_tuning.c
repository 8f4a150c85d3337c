/* commctl_tuning.c - what decides how operations are carried out on this node, and why.
 *
 * The numbers are those that libcommd and the engine of the same installation were built with,
 * taken from the headers that they include; the cores and the kernels are found as a rank would
 * find them. Only the congestion control is the daemon's. The reasons are short forms of the
 * comments beside the constants: whoever changes one there reads this table, too. */
#include <assert.h>
#include <stdio.h>

#include "client/ctl/commctl.h"
#include "shm/util/copy.h"
#include "shm/board/mail.h"
#include "shm/model/eager.h"
#include "shm/model/plan.h"
#include "shm/reduce/reduce.h"
#include "shm/util/wait.h"

struct row {
    const char *name;
    enum { BYTES, COUNT, TEXT } type;
    size_t number;
    const char *text;
    const char *why;
};

/* The value of @key in the answer to "config", or "". */
static const char *setting(const struct msg_tables *config, const char *key)
{
    const struct msg_table *table = config->tables;
    uint32_t key_at = UINT32_MAX, value_at = UINT32_MAX;

    if (config->ntables < 1)
        return "";
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        if (!strcmp(table->columns[i].key, "key"))
            key_at = i;
        else if (!strcmp(table->columns[i].key, "value"))
            value_at = i;
    }
    if (key_at == UINT32_MAX || value_at == UINT32_MAX)
        return "";
    for (uint32_t row = 0; row < table->nrows; row++) {
        char **cells = table->cells + (size_t)row * table->ncolumns;

        if (!strcmp(cells[key_at], key))
            return cells[value_at];
    }
    return "";
}

static void format(const struct row *row, char *buf, size_t len)
{
    if (row->type == TEXT)
        snprintf(buf, len, "%s", row->text);
    else if (row->number == SIZE_MAX)
        snprintf(buf, len, "always");
    else if (row->type == BYTES && row->number % 1024 == 0)
        snprintf(buf, len, "%zuK", row->number / 1024);
    else
        snprintf(buf, len, "%zu", row->number);
}

static bool show_rows(const struct show *show, const struct row *rows, uint32_t n)
{
    enum { COLUMNS = 3, VALUE_MAX = 64, MOST = 40 };
    struct msg_column columns[COLUMNS] = {{"name", "NAME", MSG_CELL_STRING},
                                          {"value", "VALUE", MSG_CELL_STRING},
                                          {"why", "WHY", MSG_CELL_STRING}};
    char values[MOST][VALUE_MAX], *cells[MOST * COLUMNS];
    struct msg_table table = {"tuning", COLUMNS, n, columns, cells};
    struct msg_tables tables = {.ntables = 1, .tables = &table};

    assert(n <= MOST);
    for (uint32_t i = 0; i < n; i++) {
        format(&rows[i], values[i], VALUE_MAX);
        cells[i * COLUMNS] = (char *)rows[i].name;
        cells[i * COLUMNS + 1] = values[i];
        cells[i * COLUMNS + 2] = (char *)rows[i].why;
    }
    return show_tables(show, &tables);
}

/* The network as a group has it whose home is this node. */
static struct plan_net configured_net(const struct msg_tables *config)
{
    const char *bandwidth = setting(config, "transport.bandwidth");
    char *unit;
    uint64_t bytes = strtoull(bandwidth, &unit, 10);
    const char *at = *unit ? strchr("KMGT", *unit) : NULL;

    return (struct plan_net){
        .latency_us = (uint32_t)strtoul(setting(config, "transport.latency_us"), NULL, 10),
        .mbytes_s = (uint32_t)((at ? bytes << 10 * (at - "KMGT" + 1) : bytes) >> 20),
    };
}

bool show_tuning(const struct show *show, const struct msg_tables *config)
{
    const struct plan_net net = configured_net(config);
    const char *congestion = setting(config, "transport.congestion_control");
    const struct row rows[] = {
        {"small", BYTES, PLAN_SMALL, NULL,
         "one node, few ranks: up to this each reduces all, after one synchronisation"},
        {"small_turns", BYTES, PLAN_SMALL_TURNS, NULL,
         "the same at most, where ranks share cores: a synchronisation costs a turn of each"},
        {"chunk", BYTES, PLAN_CHUNK, NULL, "one node: size of a step; it stays in cache"},
        {"chunk_fine", BYTES, PLAN_CHUNK_FINE, NULL,
         "one node, a core for each rank: smallest step; medium sizes are cut finer, to overlap"},
        {"depth", COUNT, PLAN_DEPTH_ONE, NULL, "one node: steps that a rank may be ahead"},
        {"direct", BYTES, PLAN_REGISTERED, NULL,
         "one node: from here on an all_reduce in registered memory needs no copies"},
        {"direct_turns", BYTES, PLAN_REGISTERED_TURNS, NULL,
         "the same with more ranks than cores, where synchronisations cost more"},
        {"direct_read", BYTES, PLAN_REGISTERED_READ, NULL,
         "one node: the same for broadcast, all_gather, reduce_scatter, all blocks together"},
        {"small_net", BYTES, PLAN_SMALL_NET, NULL,
         "across nodes: up to this data go with the consistency check, without hops of their own"},
        {"small_net_3", BYTES, plan_small_net(&net, 3), NULL,
         "the same, all_reduce over 3 nodes: doubling takes as long as others, by latency, "
         "bandwidth"},
        {"small_net_4", BYTES, plan_small_net(&net, 4), NULL, "over 4 nodes"},
        {"small_net_8", BYTES, plan_small_net(&net, 8), NULL, "over 8 nodes"},
        {"halving_net_4", BYTES, plan_halving_net(&net, 4, COLL_ALL_REDUCE), NULL,
         "larger, over 4 nodes: up to this by halving, then around a ring, likewise"},
        {"halving_net_8", BYTES, plan_halving_net(&net, 8, COLL_ALL_REDUCE), NULL, "over 8 nodes"},
        {"halving_net_32", BYTES, plan_halving_net(&net, 32, COLL_ALL_REDUCE), NULL,
         "over 32 nodes"},
        {"latency_us", TEXT, 0, setting(config, "transport.latency_us"),
         "of a short message from node to node"},
        {"bandwidth", TEXT, 0, setting(config, "transport.bandwidth"),
         "bytes per second, likewise"},
        {"small_alone", BYTES, PLAN_SMALL_ALONE, NULL,
         "across nodes: if a node's ranks have more together, they reduce it, not the engine"},
        {"chunk_net", BYTES, PLAN_CHUNK_NET, NULL,
         "across nodes: largest step, of schedules that divide it by nodes"},
        {"message", BYTES, PLAN_MESSAGE, NULL,
         "across nodes: what one message should carry; it stays in cache"},
        {"chunk_min", BYTES, PLAN_CHUNK_MIN, NULL,
         "across nodes: smallest step; medium sizes are cut finer, to overlap"},
        {"depth_net", COUNT, PLAN_DEPTH_NET, NULL, "across nodes: steps on the wire at a time"},
        {"eager_net", BYTES, FABRIC_EAGER_MAX, NULL,
         "across nodes, by TCP: up to this copying costs less than an announcement"},
        {"eager_net_ucx", BYTES, FABRIC_UCX_EAGER_MAX, NULL, "the same by UCX"},
        {"eager_message", BYTES, MAIL_EAGER_MAX, NULL,
         "send and receive: longer messages wait for their receiver"},
        {"cores", COUNT, wait_cores(), NULL, "that a rank started from here may use"},
        {"spins", COUNT, WAIT_SPINS, NULL,
         "one node: polls before a sleep, of a rank on whose core no other rank of the group is"},
        {"yields", COUNT, WAIT_YIELDS, NULL,
         "polls before a sleep that offer the core, where another rank is or an engine may be"},
        {"reduce_kernels", TEXT, 0, reduce_kernels(), "the fastest that this CPU can run"},
        {"copy_kernels", TEXT, 0, copy_kernels(), "the same, for copies out of windows"},
        {"channels", TEXT, 0, setting(config, "transport.channels"),
         "across nodes: TCP connections to a node, that messages above 32K take in turns"},
        {"congestion_control", TEXT, 0, congestion,
         "auto: CUBIC where the system's default is BBR, which slows bursts down"},
    };

    return show_rows(show, rows, ARRAY_LEN(rows));
}
