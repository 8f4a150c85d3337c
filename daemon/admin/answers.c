/* answers.c - the tables that answer commctl: one per verb, read from the core's views and from the
 * edges. Nothing here changes anything.
 *
 * Keys are documented in commctl.8 and only grow. A user sees its own groups and clients; root and
 * the user that commd runs as see all. Everybody is told whether this node is well, in the answers
 * that are about the node as a whole (status, nodes). It is not well while another node is down, or
 * while its engine should be up and is not. */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/tenants.h"
#include "daemon/admin/tuning.h"
#include "daemon/admin/verbs.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "shm/proto/codec.h"
#include "shm/util/ranks.h"

enum {
    JOINERS_SHOWN = 256, /* of this node, for one group */
    APART_MS = 3000,     /* engines that have just been told of each other meet within two */
};

static bool may_see(const struct answer *a, uint32_t uid)
{
    return a->uid == 0 || a->uid == geteuid() || a->uid == uid;
}

static uint64_t seconds_since(uint64_t ms)
{
    uint64_t now = clock_ms();

    return now > ms ? (now - ms) / 1000 : 0;
}

/* ---- is it well? ----------------------------------------------------------------------------- */

void answer_unwell(struct answer *a, const char *fmt, ...)
{
    size_t used = strlen(a->unwell);
    va_list ap;

    if (used && used + 2 < sizeof(a->unwell))
        used += (size_t)snprintf(a->unwell + used, sizeof(a->unwell) - used, "; ");
    va_start(ap, fmt);
    vsnprintf(a->unwell + used, sizeof(a->unwell) - used, fmt, ap);
    va_end(ap);
}

uint64_t answer_apart_ms(const struct core_peer_view *peer)
{
    uint64_t ms = peer->apart_ms ? clock_ms() - peer->apart_ms : 0;

    return peer->state == CORE_PEER_READY && ms >= APART_MS ? ms : 0;
}

const char *answer_node_error(const struct daemon *d, unsigned node,
                              const struct core_peer_view *view)
{
    const char *link = d->peers ? peer_links_error(d->peers, node) : "";

    if (view->state == CORE_PEER_UNLINKED && link[0])
        return link;
    if (answer_apart_ms(view))
        return "its engine and ours have no connection: what drops the ports of the engines "
               "(transport.port_range)?";
    return view->last_error ? view->last_error : "";
}

void answer_check_well(struct answer *a)
{
    struct daemon *d = a->d;
    struct core_status status;
    struct core_peer_view peer;

    core_status(d->core, &status);
    if (status.stopping)
        answer_unwell(a, "commd is stopping");
    if (status.draining)
        answer_unwell(a, "node %s is draining: it takes no new groups until commctl drain --undo",
                      d->conf->node);
    if (d->engine && status.engine != CORE_ENGINE_UP)
        answer_unwell(a, "engine %s: %s",
                      status.engine == CORE_ENGINE_STARTING ? "starting" : "down",
                      status.engine_text);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        const char *why = answer_node_error(d, i, &peer);

        if (peer.state == CORE_PEER_UNLINKED)
            answer_unwell(a, "node %s is down%s%s", peer.name, why[0] ? ": " : "", why);
        else if (peer.state == CORE_PEER_LINKING)
            answer_unwell(a, "node %s is linking", peer.name);
        else if (answer_apart_ms(&peer))
            answer_unwell(a, "node %s is linked, and for %llu s no data have come through: %s",
                          peer.name, (unsigned long long)answer_apart_ms(&peer) / 1000, why);
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

static const char *program_word(enum core_engine_state state)
{
    switch (state) {
    case CORE_ENGINE_OFF:
        return "down";
    case CORE_ENGINE_STARTING:
        return "starting";
    case CORE_ENGINE_UP:
        return "up";
    }
    return "";
}

const char *answer_engine_word(const struct daemon *d, const struct core_status *status)
{
    return d->engine ? program_word(status->engine) : "none";
}

const char *answer_gpu_word(const struct core_gpu_view *gpu)
{
    return gpu->wanted ? program_word(gpu->state) : "none";
}

void admin_status_line(struct daemon *d, char *buf, size_t len)
{
    struct core_status status;

    core_status(d->core, &status);
    if (d->engine)
        snprintf(buf, len,
                 "node %s of cluster %s: %u of %u nodes up, engine %s, %u clients, %u groups",
                 d->conf->node, d->conf->cluster, status.nodes_up, d->conf->nnodes,
                 answer_engine_word(d, &status), status.clients, status.groups);
    else
        snprintf(buf, len, "node %s of cluster %s: alone, %u clients, %u groups", d->conf->node,
                 d->conf->cluster, status.clients, status.groups);
}

const char *answer_state_word(const struct core_status *status, bool unwell)
{
    return status->stopping   ? "stopping"
           : status->draining ? "draining"
           : unwell           ? "degraded"
                              : "ready";
}

/* Counts the ranks of this node that wait outside commd and that the asker may see. */
static unsigned count_waiting(const struct answer *a)
{
    unsigned n = 0;

    for (unsigned slot = 0; (slot = waits_next(a->d, slot)) < a->d->nslots; slot++)
        n += may_see(a, a->d->commands[slot].uid);
    return n;
}

static bool fill_status(struct answer *a)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},
        {"cluster", "CLUSTER", MSG_CELL_STRING},
        {"version", "VERSION", MSG_CELL_STRING},
        {"pid", "PID", MSG_CELL_NUMBER},
        {"uptime_s", "UPTIME [s]", MSG_CELL_NUMBER},
        {"state", "STATE", MSG_CELL_STRING},
        {"nodes_up", "NODES UP", MSG_CELL_NUMBER},
        {"nodes", "NODES", MSG_CELL_NUMBER},
        {"engine", "ENGINE", MSG_CELL_STRING},
        {"engine_pid", "ENGINE PID", MSG_CELL_NUMBER},
        {"fabric", "FABRIC", MSG_CELL_STRING},
        {"clients", "CLIENTS", MSG_CELL_NUMBER},
        {"groups", "GROUPS", MSG_CELL_NUMBER},
        {"insecure", "INSECURE", MSG_CELL_BOOL},
        {"longest_turn_ms", "LONGEST TURN [ms]", MSG_CELL_NUMBER},
        {"gpu", "GPU SERVICE", MSG_CELL_STRING},
        {"gpu_pid", "GPU PID", MSG_CELL_NUMBER},
        {"gpu_text", "GPU TEXT", MSG_CELL_STRING},
        {"starting", "STARTING RANKS", MSG_CELL_NUMBER},
    };
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct core_status status;
    struct core_gpu_view gpu;

    answer_check_well(a);
    core_status(d->core, &status);
    core_gpu(d->core, &gpu);
    table_init(t, "status", columns, ARRAY_LEN(columns));
    table_text(t, d->conf->node);
    table_text(t, d->conf->cluster);
    table_text(t, COMMD_BUILD_VERSION);
    table_number(t, (uint64_t)getpid());
    table_number(t, seconds_since(d->started_ms));
    table_text(t, answer_state_word(&status, a->unwell[0]));
    table_number(t, status.nodes_up);
    table_number(t, d->conf->nnodes);
    table_text(t, answer_engine_word(d, &status));
    table_number_if(t, status.engine_pid, status.engine_pid);
    table_text(t, d->engine ? status.engine_text : "");
    table_number(t, status.clients);
    table_number(t, status.groups);
    table_bool(t, d->insecure);
    table_number(t, d->longest_turn_us / 1000);
    table_text(t, answer_gpu_word(&gpu));
    table_number_if(t, gpu.pid, gpu.pid);
    table_text(t, gpu.text);
    table_number(t, count_waiting(a));
    return true;
}

const char *answer_peer_word(const struct core_peer_view *peer)
{
    if (peer->draining && (peer->state == CORE_PEER_SELF || peer->state == CORE_PEER_READY))
        return "draining";
    switch (peer->state) {
    case CORE_PEER_SELF:
        return "self";
    case CORE_PEER_UNLINKED:
        return "down";
    case CORE_PEER_LINKING:
        return "linking";
    case CORE_PEER_READY:
        return answer_apart_ms(peer) ? "linking" : "up";
    }
    return "";
}

/* Cells with what the engine has told of its traffic to a node. */
static void traffic_cells(struct table *t, const struct core_traffic *traffic)
{
    table_number_if(t, traffic->rtt_us, traffic->rtt_us);
    table_number_if(t, traffic->min_rtt_us, traffic->min_rtt_us);
    table_number(t, traffic->sent);
    table_number(t, traffic->received);
    table_number_if(t, traffic->segments, traffic->retransmits);
    table_number_if(t, traffic->bandwidth, traffic->bandwidth);
}

static bool fill_nodes(struct answer *a)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},
        {"address", "ADDRESS", MSG_CELL_STRING},
        {"state", "STATE", MSG_CELL_STRING},
        {"since_s", "SINCE [s]", MSG_CELL_NUMBER},
        {"engine", "ENGINE", MSG_CELL_STRING},
        {"rtt_us", "RTT [us]", MSG_CELL_NUMBER},
        {"min_rtt_us", "LEAST [us]", MSG_CELL_NUMBER},
        {"sent", "SENT [bytes]", MSG_CELL_NUMBER},
        {"received", "RECEIVED [bytes]", MSG_CELL_NUMBER},
        {"retransmits", "RESENT", MSG_CELL_NUMBER},
        {"bandwidth", "MOST [bytes/s]", MSG_CELL_NUMBER},
        {"apart_s", "APART [s]", MSG_CELL_NUMBER},
        {"last_error", "LAST ERROR", MSG_CELL_STRING},
    };
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct core_peer_view peer;

    answer_check_well(a);
    table_init(t, "nodes", columns, ARRAY_LEN(columns));
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        const struct conf_node *node = &d->conf->nodes[i];

        table_text(t, peer.name);
        if (d->conf->nnodes == 1)
            table_text(t, "");
        else
            table_format(t, strchr(node->address, ':') ? "[%s]:%u" : "%s:%u", node->address,
                         node->port);
        table_text(t, answer_peer_word(&peer));
        table_number(t, seconds_since(peer.since_ms ? peer.since_ms : d->started_ms));
        table_id(t, peer.engine);
        traffic_cells(t, peer.traffic);
        table_number_if(t, answer_apart_ms(&peer) != 0, answer_apart_ms(&peer) / 1000);
        table_text(t, answer_node_error(d, i, &peer));
    }
    return true;
}

/* Do all nodes that are up have our keys? Names the first node that does not. */
static void check_keys(struct answer *a, const char *node, const struct peer_links_keys *ours,
                       const struct peer_links_keys *theirs)
{
    if (!*theirs->key || a->unwell[0])
        return;
    if (strcmp(ours->key, theirs->key))
        answer_unwell(a, "node %s offers another key than this one: %s, not %s", node, theirs->key,
                      ours->key);
    else if (strcmp(ours->other, theirs->other))
        answer_unwell(a, "node %s does not accept the same second key as this one: %s, not %s",
                      node, *theirs->other ? theirs->other : "none",
                      *ours->other ? ours->other : "none");
}

static bool fill_keys(struct answer *a)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},
        {"key", "KEY", MSG_CELL_STRING},
        {"other_key", "OTHER KEY", MSG_CELL_STRING},
        {"link_key", "LINK KEY", MSG_CELL_STRING},
    };
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct peer_links_keys ours, theirs;

    table_init(t, "keys", columns, ARRAY_LEN(columns));
    if (!d->peers)
        return true; /* a node that is alone needs none */
    peer_links_keys(d->peers, d->conf->self, &ours);
    for (unsigned i = 0; i < d->conf->nnodes; i++) {
        peer_links_keys(d->peers, i, &theirs);
        if (i != d->conf->self)
            check_keys(a, d->conf->nodes[i].name, &ours, &theirs);
        table_text(t, d->conf->nodes[i].name);
        table_text(t, theirs.key);
        table_text(t, theirs.other);
        table_text(t, theirs.link);
    }
    if (!a->unwell[0])
        answer_check_well(a); /* the keys of a node that is down are not known */
    return true;
}

/* Operations that the slowest rank here has completed. */
static void group_ops(struct answer *a, const struct core_group_view *view)
{
    struct board_entry *entry = view->id ? boards_find(&a->d->boards, view->id) : NULL;
    uint32_t least = UINT32_MAX;
    unsigned local = 0;

    for (unsigned i = 0; i < view->size && entry && view->members; i++)
        if (view->members[i].node == view->me)
            least = MIN(least, board_rank_ops(entry->ctl, local++));
    table_number_if(&a->table, local, least);
}

static bool waits_alike(const struct client_command *a, const struct client_command *b)
{
    return a->uid == b->uid && a->wait.size == b->wait.size && !strcmp(a->wait.name, b->wait.name);
}

static int joiners_by_rank(const void *a, const void *b)
{
    const struct core_joiner *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* For a joining group: the ranks of this node that wait, and since when the first one waits. */
static void group_joiners(struct answer *a, const struct core_group_view *view)
{
    struct core_joiner joiners[JOINERS_SHOWN];
    uint64_t since_ms = UINT64_MAX;
    struct rank_list list;
    char text[128];
    unsigned n = 0;

    if (view->state == CORE_GROUP_JOINING)
        n = core_joiners(a->d->core, view->uid, view->name, joiners, JOINERS_SHOWN);
    qsort(joiners, n, sizeof(joiners[0]), joiners_by_rank);
    rank_list_init(&list, text, sizeof(text));
    for (unsigned i = 0; i < n; i++) {
        if (!i || joiners[i].rank != joiners[i - 1].rank)
            rank_list_add(&list, joiners[i].rank);
        since_ms = MIN(since_ms, joiners[i].since_ms);
    }
    rank_list_end(&list);
    table_text(&a->table, text);
    table_number_if(&a->table, n != 0, (clock_ms() - since_ms) / 1000);
}

static void group_row(struct answer *a, const struct core_group_view *view)
{
    struct table *t = &a->table;

    table_id(t, view->id);
    table_text(t, view->name);
    table_number(t, view->uid);
    table_number(t, view->size);
    table_number_if(t, view->nnodes, view->nnodes);
    table_number(t, view->nlocal);
    table_text(t, core_group_word(view->state));
    table_text(t, view->missing);
    group_joiners(a, view);
    group_ops(a, view);
    if (view->state == CORE_GROUP_BROKEN)
        table_format(t, "%s: %s", cause_name(view->cause), view->cause_text);
    else
        table_text(t, "");
    table_text(t, !view->id ? "" : view->gpu ? "true" : "false");
}

/* Rows for ranks of this node that wait outside commd. Clients in successive slots share a row if
 * they wait for the same thing, in the order of their ranks. */
static void waiting_rows(struct answer *a)
{
    const struct daemon *d = a->d;
    struct table *t = &a->table;
    unsigned slot = waits_next(d, 0), last;

    for (; slot < d->nslots; slot = last) {
        const struct client_command *first = &d->commands[slot];
        uint64_t since_ms = first->wait.since_ms;
        struct rank_list list;
        char text[128];
        unsigned n = 0, rank = 0;

        rank_list_init(&list, text, sizeof(text));
        for (last = slot; last < d->nslots && waits_alike(first, &d->commands[last]) &&
                          (!n || d->commands[last].wait.rank > rank);
             last = waits_next(d, last + 1)) {
            rank = d->commands[last].wait.rank;
            rank_list_add(&list, rank);
            since_ms = MIN(since_ms, d->commands[last].wait.since_ms);
            n++;
        }
        rank_list_end(&list);
        if (!may_see(a, first->uid))
            continue;
        table_text(t, "");
        table_text(t, first->wait.name);
        table_number(t, first->uid);
        table_number(t, first->wait.size);
        table_text(t, "");
        table_number(t, n);
        table_text(t, "starting");
        table_text(t, "");
        table_text(t, text);
        table_number(t, seconds_since(since_ms));
        for (unsigned i = 0; i < 3; i++)
            table_text(t, "");
    }
}

static bool fill_groups(struct answer *a)
{
    static const struct table_column columns[] = {
        {"group", "GROUP", MSG_CELL_STRING},     {"name", "NAME", MSG_CELL_STRING},
        {"uid", "UID", MSG_CELL_NUMBER},         {"size", "SIZE", MSG_CELL_NUMBER},
        {"nodes", "NODES", MSG_CELL_NUMBER},     {"local_ranks", "LOCAL RANKS", MSG_CELL_NUMBER},
        {"state", "STATE", MSG_CELL_STRING},     {"missing", "MISSING", MSG_CELL_STRING},
        {"joining", "JOINING", MSG_CELL_STRING}, {"joining_s", "FOR [s]", MSG_CELL_NUMBER},
        {"ops", "OPS", MSG_CELL_NUMBER},         {"cause", "CAUSE", MSG_CELL_STRING},
        {"gpu", "GPU", MSG_CELL_BOOL},
    };

    const uint32_t *uid = may_see(a, UINT32_MAX) ? NULL : &a->uid;
    struct core_group_view view;
    int r;

    if (!a->table.t.ncolumns)
        table_init(&a->table, "groups", columns, ARRAY_LEN(columns));
    do {
        r = core_group_scan(a->d->core, &a->scan, uid, &view);
        if (r == CORE_SCAN_FOUND)
            group_row(a, &view);
        if (r == CORE_SCAN_END)
            waiting_rows(a);
        if (r == CORE_SCAN_END || a->table.error)
            return true;
    } while (clock_us() < a->until_us);
    return false;
}

/* What commd-gpu tells once a second. A row without a device says why there is no device. */
enum { GPU_STATE = 3 }; /* column */

static bool fill_gpus(struct answer *a)
{
    static const struct table_column columns[] = {
        {"device", "DEVICE", MSG_CELL_NUMBER},
        {"uuid", "UUID", MSG_CELL_STRING},
        {"name", "NAME", MSG_CELL_STRING},
        {"state", "STATE", MSG_CELL_STRING},
        {"memory", "MEMORY [bytes]", MSG_CELL_NUMBER},
        {"mapped", "MAPPED [bytes]", MSG_CELL_NUMBER},
        {"clients", "CLIENTS", MSG_CELL_NUMBER},
        {"groups", "GROUPS", MSG_CELL_NUMBER},
        {"communicators", "COMMUNICATORS", MSG_CELL_NUMBER},
        {"operations", "OPERATIONS", MSG_CELL_NUMBER},
        {"moved", "MOVED [bytes]", MSG_CELL_NUMBER},
        {"kernels", "KERNELS", MSG_CELL_STRING},
    };
    struct table *t = &a->table;
    struct core_gpu_view gpu;

    core_gpu(a->d->core, &gpu);
    table_init(t, "gpus", columns, ARRAY_LEN(columns));
    for (unsigned i = 0; i < gpu.ndevices; i++) {
        const struct msg_gpu_device *device = &gpu.devices[i];
        bool told = device->uuid[0];

        table_number(t, i);
        table_text(t, device->uuid);
        table_text(t, device->name);
        table_text(t, device->state);
        table_number_if(t, told, device->memory);
        table_number_if(t, told, device->mapped);
        table_number_if(t, told, device->clients);
        table_number_if(t, told, device->groups);
        table_number_if(t, told, device->communicators);
        table_number_if(t, told, device->operations);
        table_number_if(t, told, device->moved);
        table_text(t, device->kernels);
    }
    if (gpu.ndevices)
        return true;
    table_row(t);
    table_set_format(t, GPU_STATE, "%s: %s", gpu.wanted ? answer_gpu_word(&gpu) : "no GPU service",
                     gpu.text);
    return true;
}

static bool fill_clients(struct answer *a)
{
    static const struct table_column columns[] = {
        {"client", "CLIENT", MSG_CELL_NUMBER},
        {"uid", "UID", MSG_CELL_NUMBER},
        {"pid", "PID", MSG_CELL_NUMBER},
        {"program", "PROGRAM", MSG_CELL_STRING},
        {"groups", "GROUPS", MSG_CELL_NUMBER},
        {"age_s", "AGE [s]", MSG_CELL_NUMBER},
        {"registered_bytes", "REGISTERED [bytes]", MSG_CELL_NUMBER},
        {"gpu", "GPU", MSG_CELL_BOOL},
    };
    struct table *t = &a->table;
    struct core_client_view client;

    if (!t->t.ncolumns)
        table_init(t, "clients", columns, ARRAY_LEN(columns));
    while (core_client_scan(a->d->core, &a->slot, &client)) {
        if (clock_us() >= a->until_us) {
            a->slot = client.client; /* the next turn begins with this client again */
            return false;
        }
        if (client.admin || !may_see(a, client.uid))
            continue;
        table_number(t, client.client);
        table_number(t, client.uid);
        table_number(t, client.pid);
        table_text(t, client.program);
        table_number(t, client.groups);
        table_number(t, seconds_since(client.since_ms));
        table_number(t, arenas_bytes(&a->d->arenas, client.client));
        table_bool(t, client.gpu);
    }
    return true;
}

/* Does the file say what is in force? Somebody may have changed it. It is read anew only for users
 * that may change something here, because reading takes milliseconds for a large cluster. */
static void check_config_file(struct answer *a)
{
    _cleanup_(freep) char *error = NULL;
    const char *file = a->d->config_file;
    struct conf *conf = NULL;
    char keys[MSG_TEXT_MAX / 2];

    if (!*file || !may_see(a, UINT32_MAX))
        return;
    if (conf_load(file, NULL, 0, &conf, &error)) {
        if (error)
            answer_unwell(a, "what is in force goes on, for its file is wrong by now: %.*s",
                          (int)strcspn(error, "\n"), error);
        return;
    }
    conf_changes(a->d->conf, conf, keys, sizeof(keys));
    if (*keys)
        answer_unwell(a, "%s was changed, and is not in force: %s", file, keys);
    conf_free(conf);
}

static bool fill_config(struct answer *a)
{
    static const struct table_column columns[] = {
        {"key", "KEY", MSG_CELL_STRING},
        {"value", "VALUE", MSG_CELL_STRING},
        {"default", "DEFAULT", MSG_CELL_STRING},
        {"source", "SOURCE", MSG_CELL_STRING},
        {"reloadable", "RELOADABLE", MSG_CELL_BOOL},
    };
    struct table *t = &a->table;
    struct conf_row row;

    table_init(t, "config", columns, ARRAY_LEN(columns));
    for (unsigned i = 0; conf_row(a->d->conf, i, &row); i++) {
        table_text(t, row.key);
        table_text(t, row.value);
        table_text(t, row.fallback);
        table_text(t, row.source);
        table_bool(t, row.reloadable);
    }
    check_config_file(a);
    return true;
}

static bool fill_tenants(struct answer *a)
{
    return tenants_fill(a, may_see(a, UINT32_MAX) ? NULL : &a->uid);
}

static const char *const level_words[] = {
    [CONF_LOG_ERROR] = "error",
    [CONF_LOG_WARN] = "warn",
    [CONF_LOG_INFO] = "info",
    [CONF_LOG_DEBUG] = "debug",
};

static bool fill_log_level(struct answer *a)
{
    static const struct table_column columns[] = {
        {"level", "LEVEL", MSG_CELL_STRING},
        {"configured", "CONFIGURED", MSG_CELL_STRING},
    };

    table_init(&a->table, "log_level", columns, ARRAY_LEN(columns));
    table_text(&a->table, level_words[log_level()]);
    table_text(&a->table, level_words[a->d->conf->log_level]);
    return true;
}

/* All in one turn: there are at most DIARY_MAX. */
static bool fill_events(struct answer *a)
{
    static const struct table_column columns[] = {
        {"number", "NUMBER", MSG_CELL_NUMBER}, {"time", "TIME", MSG_CELL_STRING},
        {"event", "EVENT", MSG_CELL_STRING},   {"uid", "UID", MSG_CELL_NUMBER},
        {"text", "TEXT", MSG_CELL_STRING},
    };
    const uint32_t *uid = may_see(a, UINT32_MAX) ? NULL : &a->uid;
    const struct diary_entry *entry;
    struct table *t = &a->table;

    table_init(t, "events", columns, ARRAY_LEN(columns));
    for (; (entry = diary_next(a->d->diary, a->since, uid)); a->since = entry->number) {
        time_t seconds = (time_t)(entry->wall_ms / 1000);
        char date[32] = "";
        struct tm tm;

        if (gmtime_r(&seconds, &tm))
            strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
        table_number(t, entry->number);
        table_format(t, "%s.%03uZ", date, (unsigned)(entry->wall_ms % 1000));
        table_text(t, entry->what);
        if (entry->whose == DIARY_EVERYBODY)
            table_text(t, "");
        else
            table_number(t, (uint64_t)entry->whose);
        table_text(t, entry->text);
    }
    a->total = diary_total(a->d->diary, uid);
    return true;
}

static bool fill_tuning(struct answer *a)
{
    tuning_fill(&a->table, a->d->conf);
    return true;
}

/* ---- changes --------------------------------------------------------------------------------- */

bool answer_is_change(const char *verb)
{
#define NAME(name) #name,
    static const char *const names[] = {CHANGE_VERBS(NAME)};
#undef NAME

    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(names[i], verb))
            return true;
    return false;
}

void answer_changed(struct daemon *d, unsigned slot, bool done, unsigned groups, const char *text)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},
        {"done", "DONE", MSG_CELL_STRING},
        {"groups", "GROUPS", MSG_CELL_NUMBER},
        {"error", "ERROR", MSG_CELL_STRING},
    };
    struct msg msg = {.type = MSG_TABLES};
    struct table table = {0};

    table_init(&table, "change", columns, ARRAY_LEN(columns));
    table_text(&table, d->conf->node);
    table_text(&table, done ? text : "");
    table_number(&table, groups);
    table_text(&table, done ? "" : text);
    if (!done)
        snprintf(msg.tables.text, sizeof(msg.tables.text), "%s", text);
    else if (table.error)
        snprintf(msg.tables.text, sizeof(msg.tables.text),
                 "done, but there is no memory to say it");
    msg.tables.healthy = done;
    msg.tables.ntables = !table.error;
    msg.tables.tables = &table.t;
    listener_send(d->listener, slot, &msg, NULL, 0);
    table_fini(&table);
}

void answer_log_level(struct daemon *d, unsigned slot, uint32_t uid, unsigned level)
{
    char text[MSG_TEXT_MAX], user[32];

    snprintf(text, sizeof(text),
             "the log level of node %s is %s (it was %s), until a reload or a restart",
             d->conf->node, level_words[level], level_words[log_level()]);
    log_set_level((enum conf_log_level)level);
    daemon_note(d, "log_level", "commctl log-level by %s -> %s", core_user_name(uid, user),
                level_words[level]);
    answer_changed(d, slot, true, 0, text);
}

void answer_reload(struct daemon *d, unsigned slot)
{
    char text[MSG_TEXT_MAX];
    enum reload result = daemon_reload(d, text, sizeof(text));

    answer_changed(d, slot, result == RELOAD_DONE, 0, text);
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static const struct verb {
    const char *name;
    answer_fill_fn *fill;
} verbs[] = {
#define VERB(name) {#name, fill_##name},
    ADMIN_VERBS(VERB)
#undef VERB
};

answer_fill_fn *answer_fill(const char *verb)
{
    for (unsigned i = 0; i < ARRAY_LEN(verbs); i++)
        if (strcmp(verbs[i].name, verb) == 0)
            return verbs[i].fill;
    return NULL;
}

void answer_unknown(struct answer *a, const char *verb)
{
    char known[128] = "";
    size_t at = 0;

    for (unsigned i = 0; i < ARRAY_LEN(verbs) && at < sizeof(known); i++)
        at +=
            (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "", verbs[i].name);
    answer_unwell(a, "commd %s does not know \"%s\"; it knows %s", COMMD_BUILD_VERSION, verb,
                  known);
}
