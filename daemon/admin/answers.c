/* answers.c - the tables that answer commctl: one per verb, read from the core's views and from the
 * edges. Nothing here changes anything.
 *
 * Keys are documented in commctl.8 and only grow. A user sees its own groups and clients; root and
 * the user that commd runs as see all. Everybody is told whether this node is well (well.c), in
 * the answers that are about the node as a whole (status, nodes). */
#include "config.h"

#include <stdio.h>
#include <time.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/links.h"
#include "daemon/admin/tuning.h"
#include "daemon/admin/verbs.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "shm/proto/cause_text.h"
#include "shm/proto/codec.h"
#include "shm/util/ranks.h"

enum { JOINERS_SHOWN = 256 }; /* of this node, for one group */

static bool may_see(const struct answer *a, uint32_t uid)
{
    return a->uid == 0 || a->uid == geteuid() || a->uid == uid;
}

static uint64_t seconds_since(uint64_t ms)
{
    uint64_t now = clock_ms();

    return now > ms ? (now - ms) / 1000 : 0;
}

static const char *const level_words[] = {
    [CONF_LOG_ERROR] = "error",
    [CONF_LOG_WARN] = "warn",
    [CONF_LOG_INFO] = "info",
    [CONF_LOG_DEBUG] = "debug",
};

/* Counts the ranks of this node that wait outside commd and that the asker may see. */
static unsigned count_waiting(const struct answer *a)
{
    unsigned n = 0;

    for (unsigned slot = 0; (slot = waits_next(a->d, slot)) < a->d->nslots; slot++)
        n += may_see(a, a->d->commands[slot].uid);
    return n;
}

/* ---- what the tables show: see table.h ------------------------------------------------------- */

/* clang-format off */
#define STATUS_COLUMNS(C)                                                                          \
    C(node, "NODE", text, d->conf->node)                                                           \
    C(cluster, "CLUSTER", text, d->conf->cluster)                                                  \
    C(version, "VERSION", text, COMMD_BUILD_VERSION)                                               \
    C(pid, "PID", number, (uint64_t)getpid())                                                      \
    C(uptime_s, "UPTIME [s]", number, seconds_since(d->started_ms))                                \
    C(state, "STATE", text, answer_state_word(&status, a->unwell[0]))                              \
    C(nodes_up, "NODES UP", number, status.nodes_up)                                               \
    C(nodes, "NODES", number, d->conf->nnodes)                                                     \
    C(engine, "ENGINE", text, answer_engine_word(d, &status))                                      \
    C(engine_pid, "ENGINE PID", number_if, status.engine_pid, status.engine_pid)                   \
    C(fabric, "FABRIC", text, d->engine ? status.engine_text : "")                                 \
    C(clients, "CLIENTS", number, status.clients)                                                  \
    C(groups, "GROUPS", number, status.groups)                                                     \
    C(insecure, "INSECURE", bool, d->insecure)                                                     \
    C(longest_turn_ms, "LONGEST TURN [ms]", number, d->longest_turn_us / 1000)                     \
    C(gpu, "GPU SERVICE", text, answer_gpu_word(&gpu))                                             \
    C(gpu_pid, "GPU PID", number_if, gpu.pid, gpu.pid)                                             \
    C(gpu_text, "GPU TEXT", text, gpu.text)                                                        \
    C(starting, "STARTING RANKS", number, count_waiting(a))                                        \
    C(engine_version, "ENGINE VERSION", text, status.engine_build)                                 \
    C(gpu_version, "GPU VERSION", text, gpu.build)

#define NODES_COLUMNS(C)                                                                           \
    C(node, "NODE", text, peer.name)                                                               \
    C(address, "ADDRESS", text, address)                                                           \
    C(state, "STATE", text, answer_peer_word(&peer))                                               \
    C(since_s, "SINCE [s]", number, seconds_since(peer.since_ms ? peer.since_ms : d->started_ms))  \
    C(engine, "ENGINE", id, peer.engine)                                                           \
    TRAFFIC_TIMES(C, peer.traffic, true)                                                           \
    C(sent, "SENT [bytes]", number, peer.traffic->sent)                                            \
    C(received, "RECEIVED [bytes]", number, peer.traffic->received)                                \
    C(retransmits, "RESENT", number_if, peer.traffic->segments, peer.traffic->retransmits)         \
    TRAFFIC_MOST(C, peer.traffic)                                                                  \
    C(apart_s, "APART [s]", number_if, answer_apart_ms(&peer), answer_apart_ms(&peer) / 1000)      \
    TRAFFIC_ENCRYPTION(C, peer.traffic)                                                            \
    C(last_error, "LAST ERROR", text, answer_node_error(d, i, &peer))

#define KEYS_COLUMNS(C)                                                                            \
    C(node, "NODE", text, d->conf->nodes[i].name)                                                  \
    C(key, "KEY", text, theirs.key)                                                                \
    C(other_key, "OTHER KEY", text, theirs.other)                                                  \
    C(link_key, "LINK KEY", text, theirs.link)

#define GROUPS_COLUMNS(C)                                                                          \
    C(group, "GROUP", id, view->id)                                                                \
    C(name, "NAME", text, view->name)                                                              \
    C(uid, "UID", number, view->uid)                                                               \
    C(size, "SIZE", number_if, view->size, view->size)                                             \
    C(nodes, "NODES", number_if, view->nnodes, view->nnodes)                                       \
    C(local_ranks, "LOCAL RANKS", number, view->nlocal)                                            \
    C(state, "STATE", text, state)                                                                 \
    C(missing, "MISSING", text, view->missing)                                                     \
    C(joining, "JOINING", text, joining)                                                           \
    C(joining_s, "FOR [s]", number_if, since_ms != UINT64_MAX, seconds_since(since_ms))            \
    C(ops, "OPS", number_if, local, ops)                                                         \
    C(cause, "CAUSE", text, cause)                                                                 \
    C(gpu, "GPU", flag, !view->id ? "" : view->gpu ? "true" : "false")                             \
    C(epoch, "EPOCH", number_if, view->epoch, view->epoch)                                         \
    C(recovery, "RECOVERY", text, rank_recovery_word(view->recovery))                              \
    C(free_seats, "FREE SEATS", text, view->seats ? view->seats : "")                              \
    C(new_processes, "NEW", number_if, view->comers, view->comers)

/* What commd-gpu tells once a second. A row without a device says why there is no device. */
#define GPUS_COLUMNS(C)                                                                            \
    C(device, "DEVICE", number, i)                                                                 \
    C(uuid, "UUID", text, device->uuid)                                                            \
    C(name, "NAME", text, device->name)                                                            \
    C(state, "STATE", text, device->state)                                                         \
    C(memory, "MEMORY [bytes]", number_if, told, device->memory)                                   \
    C(mapped, "MAPPED [bytes]", number_if, told, device->mapped)                                   \
    C(clients, "CLIENTS", number_if, told, device->clients)                                        \
    C(groups, "GROUPS", number_if, told, device->groups)                                           \
    C(communicators, "COMMUNICATORS", number_if, told, device->communicators)                      \
    C(operations, "OPERATIONS", number_if, told, device->operations)                               \
    C(moved, "MOVED [bytes]", number_if, told, device->moved)                                      \
    C(kernels, "KERNELS", text, device->kernels)
enum { GPU_STATE = 3 }; /* column */

#define CLIENTS_COLUMNS(C)                                                                         \
    C(client, "CLIENT", number, client.client)                                                     \
    C(uid, "UID", number, client.uid)                                                              \
    C(pid, "PID", number, client.pid)                                                              \
    C(program, "PROGRAM", text, client.program)                                                    \
    C(groups, "GROUPS", number, client.groups)                                                     \
    C(age_s, "AGE [s]", number, seconds_since(client.since_ms))                                    \
    C(registered_bytes, "REGISTERED [bytes]", number, arenas_bytes(&a->d->arenas, client.client))  \
    C(gpu, "GPU", bool, client.gpu)

#define CONFIG_COLUMNS(C)                                                                          \
    C(key, "KEY", text, row.key)                                                                   \
    C(value, "VALUE", text, row.value)                                                             \
    C(default, "DEFAULT", text, row.fallback)                                                      \
    C(source, "SOURCE", text, row.source)                                                          \
    C(reloadable, "RELOADABLE", bool, row.reloadable)                                              \
    C(waits, "WAITS", text, waits)

#define LOG_LEVEL_COLUMNS(C)                                                                       \
    C(level, "LEVEL", text, level_words[log_level()])                                              \
    C(configured, "CONFIGURED", text, level_words[a->d->conf->log_level])

#define EVENTS_COLUMNS(C)                                                                          \
    C(number, "NUMBER", number, entry->number)                                                     \
    C(time, "TIME", format, "%s.%03uZ", date, (unsigned)(entry->wall_ms % 1000))                   \
    C(event, "EVENT", text, entry->what)                                                           \
    C(uid, "UID", number_if, entry->whose != DIARY_EVERYBODY, (uint64_t)entry->whose)              \
    C(text, "TEXT", text, entry->text)

#define CHANGE_COLUMNS(C)                                                                          \
    C(node, "NODE", text, d->conf->node)                                                           \
    C(done, "DONE", text, done ? text : "")                                                        \
    C(groups, "GROUPS", number, groups)                                                            \
    C(error, "ERROR", text, done ? "" : text)
/* clang-format on */

/* ---- the tables ------------------------------------------------------------------------------ */

static const char *plural_s(unsigned n)
{
    return n == 1 ? "" : "s";
}

void admin_status_line(struct daemon *d, char *buf, size_t len)
{
    struct core_status status;

    core_status(d->core, &status);
    if (d->engine)
        snprintf(buf, len,
                 "node %s of cluster %s: %u of %u nodes up, engine %s, %u client%s, %u group%s",
                 d->conf->node, d->conf->cluster, status.nodes_up, d->conf->nnodes,
                 answer_engine_word(d, &status), status.clients, plural_s(status.clients),
                 status.groups, plural_s(status.groups));
    else
        snprintf(buf, len, "node %s of cluster %s: alone, %u client%s, %u group%s", d->conf->node,
                 d->conf->cluster, status.clients, plural_s(status.clients), status.groups,
                 plural_s(status.groups));
}

static bool fill_status(struct answer *a)
{
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct core_status status;
    struct core_gpu_view gpu;

    answer_check_well(a);
    core_status(d->core, &status);
    core_gpu(d->core, &gpu);
    table_begin(t, "status", STATUS_COLUMNS);
    TABLE_ADD(STATUS_COLUMNS)
    return true;
}

static bool fill_nodes(struct answer *a)
{
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct core_peer_view peer;

    answer_check_well(a);
    table_begin(t, "nodes", NODES_COLUMNS);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        const struct conf_node *node = &d->conf->nodes[i];
        char address[CONF_ADDR_MAX + 16];

        snprintf(address, sizeof(address), strchr(node->address, ':') ? "[%s]:%u" : "%s:%u",
                 node->address, node->port);
        if (d->conf->nnodes == 1)
            address[0] = 0;
        TABLE_ADD(NODES_COLUMNS)
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
    struct daemon *d = a->d;
    struct table *t = &a->table;
    struct peer_links_keys ours, theirs;
    char expiry[MSG_TEXT_MAX];

    table_begin(t, "keys", KEYS_COLUMNS);
    if (!d->peers)
        return true; /* a node that is alone needs none */
    peer_links_keys(d->peers, d->conf->self, &ours);
    for (unsigned i = 0; i < d->conf->nnodes; i++) {
        peer_links_keys(d->peers, i, &theirs);
        if (i != d->conf->self)
            check_keys(a, d->conf->nodes[i].name, &ours, &theirs);
        TABLE_ADD(KEYS_COLUMNS)
    }
    if (!a->unwell[0] && peer_links_expiry(d->peers, expiry, sizeof(expiry)))
        answer_unwell(a, "%s", expiry);
    if (!a->unwell[0])
        answer_check_well(a); /* the keys of a node that is down are not known */
    return true;
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

/* For a joining group: the ranks of this node that wait, and since when the first one waits;
 * UINT64_MAX: none does. New processes that take any seat are not listed. */
static uint64_t list_joiners(const struct answer *a, const struct core_group_view *view,
                             struct rank_list *list)
{
    struct core_joiner joiners[JOINERS_SHOWN];
    uint64_t since_ms = UINT64_MAX;
    unsigned n = 0;

    if (view->state == CORE_GROUP_JOINING)
        n = core_joiners(a->d->core, view, joiners, JOINERS_SHOWN);
    qsort(joiners, n, sizeof(joiners[0]), joiners_by_rank);
    for (unsigned i = 0; i < n; i++) {
        if (joiners[i].rank != MSG_ANY_SEAT && (!i || joiners[i].rank != joiners[i - 1].rank))
            rank_list_add(list, joiners[i].rank);
        since_ms = MIN(since_ms, joiners[i].since_ms);
    }
    return since_ms;
}

/* @joining: the ranks of this node that wait, the first of them since @since_ms. */
static void group_row(struct answer *a, const struct core_group_view *view, const char *state,
                      const char *joining, uint64_t since_ms)
{
    struct board_entry *entry = view->id ? boards_find(&a->d->boards, view->id) : NULL;
    uint32_t ops = UINT32_MAX; /* that the slowest rank here has completed */
    char cause[MSG_TEXT_MAX + MSG_NAME_MAX] = "";
    struct table *t = &a->table;
    unsigned local = 0;

    for (unsigned i = 0; i < view->size && entry && view->members; i++)
        if (view->members[i].node == view->me)
            ops = MIN(ops, board_rank_ended(entry->ctl, local++));
    if (view->state == CORE_GROUP_BROKEN)
        snprintf(cause, sizeof(cause), "%s: %s",
                 view->revoked ? "revoked" : cause_name(view->cause), view->cause_text);
    TABLE_ADD(GROUPS_COLUMNS)
}

static void seen_group(struct answer *a, const struct core_group_view *view)
{
    struct rank_list list;
    uint64_t since_ms;
    char text[128];

    rank_list_init(&list, text, sizeof(text));
    since_ms = list_joiners(a, view, &list);
    rank_list_end(&list);
    group_row(a, view, core_group_word(view->state), text, since_ms);
}

/* Rows for ranks of this node that wait outside commd. Clients in successive slots share a row if
 * they wait for the same thing, in the order of their ranks. */
static void waiting_rows(struct answer *a)
{
    const struct daemon *d = a->d;
    unsigned slot = waits_next(d, 0), last;

    for (; slot < d->nslots; slot = last) {
        const struct client_command *first = &d->commands[slot];
        uint64_t since_ms = first->wait.since_ms;
        struct core_group_view view;
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
        view = (struct core_group_view){.name = first->wait.name,
                                        .uid = first->uid,
                                        .size = first->wait.size,
                                        .nlocal = n,
                                        .state = CORE_GROUP_JOINING,
                                        .missing = ""};
        if (may_see(a, first->uid))
            group_row(a, &view, "starting", text, since_ms);
    }
}

static bool fill_groups(struct answer *a)
{

    const uint32_t *uid = may_see(a, UINT32_MAX) ? NULL : &a->uid;
    struct core_group_view view;
    int r;

    if (!a->table.t.ncolumns)
        table_begin(&a->table, "groups", GROUPS_COLUMNS);
    do {
        r = core_group_scan(a->d->core, &a->scan, uid, &view);
        if (r == CORE_SCAN_FOUND)
            seen_group(a, &view);
        if (r == CORE_SCAN_END)
            waiting_rows(a);
        if (r == CORE_SCAN_END || a->table.error)
            return true;
    } while (clock_us() < a->until_us);
    return false;
}

static bool fill_gpus(struct answer *a)
{
    struct table *t = &a->table;
    struct core_gpu_view gpu;

    core_gpu(a->d->core, &gpu);
    table_begin(t, "gpus", GPUS_COLUMNS);
    for (unsigned i = 0; i < gpu.ndevices; i++) {
        const struct msg_gpu_device *device = &gpu.devices[i];
        bool told = device->uuid[0];

        TABLE_ADD(GPUS_COLUMNS)
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
    struct table *t = &a->table;
    struct core_client_view client;

    if (!t->t.ncolumns)
        table_begin(t, "clients", CLIENTS_COLUMNS);
    while (core_client_scan(a->d->core, &a->slot, &client)) {
        if (clock_us() >= a->until_us) {
            a->slot = client.client; /* the next turn begins with this client again */
            return false;
        }
        if (client.admin || !may_see(a, client.uid))
            continue;
        TABLE_ADD(CLIENTS_COLUMNS)
    }
    return true;
}

/* Does the file say what is in force, and would it be taken? Somebody may have changed it. It is
 * read anew only for users that may change something here, because reading takes milliseconds for a
 * large cluster. */
static void check_config_file(struct answer *a)
{
    _cleanup_(freep) char *error = NULL;
    const struct daemon *d = a->d;
    struct conf *conf = NULL;
    char keys[MSG_TEXT_MAX / 2], text[MSG_TEXT_MAX];

    if (!*d->config_file || !may_see(a, UINT32_MAX))
        return;
    if (d->refused_s)
        answer_unwell(a, TEXT_RELOAD_REFUSED "%lld s ago, and what is in force is older",
                      (long long)(time(NULL) - d->refused_s));
    if (conf_load(d->config_file, NULL, 0, &conf, &error) || daemon_check_change(d, conf, &error)) {
        if (error)
            answer_unwell(a, TEXT_FILE_WRONG "%.*s", (int)strcspn(error, "\n"), error);
        conf_free(conf);
        return;
    }
    if (!daemon_check_proofs(d, conf, text, sizeof(text)))
        answer_unwell(a, "%s", text);
    conf_changes(d->conf, conf, keys, sizeof(keys));
    if (*keys)
        answer_unwell(a, "%s was changed, and is not in force: %s", d->config_file, keys);
    conf_free(conf);
}

/* Which value another process than commd goes on with until the next one can take over. */
static void tell_waits(const struct daemon *d, const struct core_status *status, unsigned i,
                       char *buf, size_t len)
{
    char value[CONF_PATH_MAX];
    bool gpu;

    buf[0] = '\0';
    if (d->served && conf_waits(d->served, d->conf, i, &gpu, value, sizeof(value)) &&
        (gpu ? status->gpu_waits : status->engine_waits))
        snprintf(buf, len, "%s has \"%s\" until the next one can take over",
                 gpu ? "commd-gpu" : "the engine", value);
}

static bool fill_config(struct answer *a)
{
    struct table *t = &a->table;
    struct core_status status;
    struct conf_row row;
    char waits[CONF_PATH_MAX + 64];

    core_status(a->d->core, &status);
    table_begin(t, "config", CONFIG_COLUMNS);
    for (unsigned i = 0; conf_row(a->d->conf, i, &row); i++) {
        tell_waits(a->d, &status, i, waits, sizeof(waits));
        TABLE_ADD(CONFIG_COLUMNS)
    }
    check_config_file(a);
    return true;
}

static bool fill_tenants(struct answer *a)
{
    return tenants_fill(a, may_see(a, UINT32_MAX) ? NULL : &a->uid);
}

static bool fill_log_level(struct answer *a)
{
    struct table *t = &a->table;

    table_begin(t, "log_level", LOG_LEVEL_COLUMNS);
    TABLE_ADD(LOG_LEVEL_COLUMNS)
    return true;
}

/* All in one turn: there are at most DIARY_MAX. */
static bool fill_events(struct answer *a)
{
    const uint32_t *uid = may_see(a, UINT32_MAX) ? NULL : &a->uid;
    const struct diary_entry *entry;
    struct table *t = &a->table;

    table_begin(t, "events", EVENTS_COLUMNS);
    for (; (entry = diary_next(a->d->diary, a->since, uid)); a->since = entry->number) {
        time_t seconds = (time_t)(entry->wall_ms / 1000);
        char date[32] = "";
        struct tm tm;

        if (gmtime_r(&seconds, &tm))
            strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
        TABLE_ADD(EVENTS_COLUMNS)
    }
    a->total = diary_total(a->d->diary, uid);
    return true;
}

static bool fill_tuning(struct answer *a)
{
    const struct daemon *d = a->d;
    char links[MSG_TEXT_MAX];

    links_encryption(a->d, links, sizeof(links));
    tuning_fill(&a->table, d->conf, daemon_served(d), links);
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

void answer_send(struct daemon *d, unsigned slot, bool healthy, struct table *table,
                 const char *text, uint64_t ask)
{
    struct msg msg = {.type = MSG_TABLES, .tables = {.healthy = healthy, .ask = ask}};

    msg.tables.ntables = table != NULL;
    msg.tables.tables = table ? &table->t : NULL;
    msg.tables.life = ask ? d->diary->life : 0;
    snprintf(msg.tables.text, sizeof(msg.tables.text), "%s", text);
    listener_send(d->listener, slot, &msg, NULL, 0);
}

void answer_changed(struct daemon *d, unsigned slot, bool done, unsigned groups, const char *text)
{
    struct table table = {0}, *t = &table;

    table_begin(t, "change", CHANGE_COLUMNS);
    TABLE_ADD(CHANGE_COLUMNS)
    if (done)
        text = table.error ? "done, but there is no memory to say it" : "";
    answer_send(d, slot, done, table.error ? NULL : t, text, 0);
    table_fini(&table);
}

void answer_log_level(struct daemon *d, unsigned slot, uint32_t uid, unsigned level)
{
    char text[MSG_TEXT_MAX], user[32];

    assert(level < ARRAY_LEN(level_words));
    snprintf(text, sizeof(text),
             "the log level of node %s is %s (it was %s), until a reload or a restart",
             d->conf->node, level_words[level], level_words[log_level()]);
    log_set_level((enum conf_log_level)level);
    daemon_note(d, EVENT_LOG_LEVEL, "commctl log-level by %s -> %s", core_user_name(uid, user),
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
