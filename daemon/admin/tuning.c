/* tuning.c - what decides how operations are carried out on this node, and why.
 *
 * The numbers are those that the engine and libcommd of the same installation were built with: they
 * include the same headers. Cores and kernels are found as they are for boards and ranks; the
 * network's numbers, channels and congestion control are settings. The reasons are short forms of
 * the comments beside the constants: whoever changes one there reads this table, too. */
#include "daemon/admin/tuning.h"

#include <inttypes.h>

#include "shm/board/mail.h"
#include "shm/board/place.h"
#include "shm/model/eager.h"
#include "shm/model/plan.h"
#include "shm/model/team.h"
#include "shm/model/tune.h"
#include "shm/reduce/reduce_cpu.h"
#include "shm/util/copy.h"
#include "shm/util/encryption.h"
#include "shm/util/topology.h"
#include "shm/util/wait.h"

struct tuning_row {
    const char *name;
    enum { BYTES, COUNT, TEXT } type;
    uint64_t number;
    const char *text;
    const char *why;
};

static void add_row(struct table *table, const struct tuning_row *row)
{
    table_text(table, row->name);
    if (row->type == TEXT)
        table_text(table, row->text);
    else if (row->number == UINT64_MAX)
        table_text(table, "always");
    else if (row->type == BYTES && row->number % 1024 == 0)
        table_format(table, "%" PRIu64 "K", row->number / 1024);
    else
        table_number(table, row->number);
    table_text(table, row->why);
}

void tuning_fill(struct table *table, const struct conf *conf, const struct conf *engine,
                 const char *links)
{
    static const struct table_column columns[] = {
        {"name", "NAME", MSG_CELL_STRING},
        {"value", "VALUE", MSG_CELL_STRING},
        {"why", "WHY", MSG_CELL_STRING},
    };
    const struct plan_net net = conf_net(conf);
    const struct topology *cpus = topology_here();
    const struct team_machine machine = {.cpus = cpus->cpus, .caches = cpus->caches};
    struct tune pair, full;
    struct conf_row latency, bandwidth, channels, congestion, encryption, threads, gpu;

    tune_one_node(cpus, 2, &pair);
    tune_one_node(cpus, cpus->cpus, &full);
    conf_row_of(conf, "transport.latency_us", &latency);
    conf_row_of(conf, "transport.bandwidth", &bandwidth);
    conf_row_of(engine, "transport.channels", &channels);
    conf_row_of(engine, "transport.congestion_control", &congestion);
    conf_row_of(engine, "transport.encryption", &encryption);
    conf_row_of(engine, "transport.encryption_threads", &threads);
    conf_row_of(conf, "gpu.enabled", &gpu);
    const struct tuning_row rows[] = {
        {"small", BYTES, PLAN_SMALL, NULL,
         "one node, few ranks: up to this each reduces all, after one synchronisation"},
        {"small_pair", BYTES, MIN((size_t)PLAN_SMALL_PAIR, pair.chunk), NULL,
         "the same for an all_reduce of 2 ranks with a core each"},
        {"small_turns", BYTES, PLAN_SMALL_TURNS, NULL,
         "the same at most, where ranks share cores: a synchronisation costs a turn of each"},
        {"chunk", BYTES, pair.chunk, NULL,
         "one node, 2 ranks: largest step, a part of a window that stays in a core's own cache"},
        {"chunk_full", BYTES, full.chunk, NULL, "the same with a rank on each CPU"},
        {"chunk_fine", BYTES, PLAN_CHUNK_FINE, NULL,
         "one node, a core for each rank: smallest step; medium sizes are cut finer, to overlap"},
        {"depth", COUNT, pair.depth, NULL,
         "one node, 2 ranks: steps of a window, which is twice a core's own cache, so that lines "
         "have left their reader's before they are written again"},
        {"depth_full", COUNT, full.depth, NULL,
         "the same with a rank on each CPU: all windows stay in half of the shared caches"},
        {"around", BYTES, pair.around, NULL,
         "one node, 2 ranks: from so much on, read and written by a rank, all_gather and "
         "all_to_all begin to write past the caches, which cannot hold it; 0: never. From 4 MB on "
         "each rank measures which is faster"},
        {"around_full", BYTES, full.around, NULL, "the same with a rank on each CPU"},
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
        {"latency_us", TEXT, 0, latency.value, "of a short message from node to node"},
        {"bandwidth", TEXT, 0, bandwidth.value, "bytes per second, likewise"},
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
        {"cores", COUNT, wait_cores(), NULL,
         "that commd may use: with more ranks on this node than these, they take turns"},
        {"threads", COUNT, (cpus->cpus + cpus->cores - 1) / cpus->cores, NULL,
         "of a core, as the kernel says: whoever spins pauses, and leaves the other one most of "
         "it"},
        {"caches", COUNT, cpus->caches, NULL,
         "last-level caches of those: a line from another one takes some three times as long"},
        {"cache", BYTES, cpus->cache_bytes, NULL, "the smallest of these; 0: not known"},
        {"core_cache", BYTES, cpus->core_bytes, NULL,
         "the smallest of the caches before those, a core's own; 0: not known"},
        {"sockets", COUNT, cpus->sockets, NULL, "of those"},
        {"memory_nodes", COUNT, cpus->nodes, NULL,
         "of those: a page lies where who touches it first runs"},
        {"place", TEXT, 0, place_way(),
         "so what one rank alone reads is put on its own one: bind, or touch where that is "
         "refused; "
         "no: there is one"},
        {"team_16", COUNT, team_size(16, &machine), NULL,
         "one node, 16 ranks: so many are a team, whose leader stands for it in small operations; "
         "0: all look at all, with more ranks than cores, or where the model expects too little"},
        {"team_32", COUNT, team_size(32, &machine), NULL, "with 32 ranks"},
        {"team_64", COUNT, team_size(64, &machine), NULL, "with 64 ranks"},
        {"team_128", COUNT, team_size(128, &machine), NULL, "with 128 ranks"},
        {"spins", COUNT, WAIT_SPINS, NULL,
         "one node: polls before a sleep, of a rank on whose core no other rank of the group is"},
        {"yields", COUNT, WAIT_YIELDS, NULL,
         "polls before a sleep that offer the core, where another rank is or an engine may be; few "
         "where an engine is, and a rank that waits for nobody else sleeps at once"},
        {"reduce_kernels", TEXT, 0, reduce_best_isa(), "the fastest that this CPU can run"},
        {"copy_kernels", TEXT, 0, copy_kernels(), "the same, for copies out of windows"},
        {"channels", TEXT, 0, channels.value,
         "across nodes: TCP connections to a node, that messages above 32K take in turns"},
        {"congestion_control", TEXT, 0, congestion.value,
         "auto: CUBIC where the system's default is BBR, which slows bursts down"},
        {"encryption", TEXT, 0, encryption.value,
         "across nodes, by TCP: auto: on, except on loopback; off: where both nodes trust the "
         "network"},
        {"encryption_threads", COUNT, encryption_threads(threads.value, cpus->cores), NULL,
         "that encrypt messages of 64K and more, beside the engine's own; auto: a quarter of the "
         "cores that it may use, at most 2"},
        {"encrypted", TEXT, 0, links,
         "what that has come to, and for how long: the age of the oldest key; \"\": no links"},
        {"gpu", TEXT, 0, gpu.value,
         "tensors on GPUs: no: they go through host memory; auto: if there is no NVIDIA driver"},
    };

    table_init(table, "tuning", columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        add_row(table, &rows[i]);
}
