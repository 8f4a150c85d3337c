/* status_json.c - /status.json, the content of the page. A thing that commctl --json also shows has
 * the same key. Names of groups, of users and of their processes are left out. Pure. */
#include "daemon/http/metrics.h"
#include "shm/proto/msg.h"

#include <inttypes.h>

static void add_text(struct body *body, const char *key, const char *text)
{
    body_add(body, "\"%s\":", key);
    body_add_json(body, text);
    body_add(body, ",");
}

static void add_or_null(struct body *body, const char *key, bool known, uint64_t number)
{
    if (known)
        body_add(body, "\"%s\":%" PRIu64 ",", key, number);
    else
        body_add(body, "\"%s\":null,", key);
}

static void add_nodes(struct body *body, const struct metrics *m)
{
    for (unsigned i = 0; i < m->nnodes; i++) {
        const struct metrics_node *node = &m->nodes[i];
        uint64_t losses = 0;

        for (unsigned kind = 0; kind < CORE_LOSS_ENGINE;
             kind++) /* when an engine is lost, the link stays */
            losses += node->losses[kind];
        body_add(body, "%s{", i ? "," : "");
        add_text(body, "node", node->name);
        add_text(body, "state", node->state);
        add_text(body, "last_error", node->error);
        add_or_null(body, "rtt_us", node->traffic.rtt_us, node->traffic.rtt_us);
        add_or_null(body, "min_rtt_us", node->traffic.min_rtt_us, node->traffic.min_rtt_us);
        add_or_null(body, "retransmits", node->traffic.segments, node->traffic.retransmits);
        add_or_null(body, "sent", node->traffic.told_ms, node->traffic.sent);
        add_or_null(body, "received", node->traffic.told_ms, node->traffic.received);
        body_add(body, "\"since_s\":%" PRIu64 ",\"links\":%" PRIu64 ",\"link_losses\":%" PRIu64 "}",
                 node->age_ms / 1000, node->links, losses);
    }
}

static void add_groups(struct body *body, const struct metrics *m)
{
    for (unsigned i = 0; i < m->ngroups; i++) {
        const struct metrics_group *group = &m->groups[i];

        body_add(body, "%s{", i ? "," : "");
        add_or_null(body, "number", group->number, group->number);
        add_text(body, "state", group->state);
        add_text(body, "cause", group->cause);
        add_or_null(body, "nodes", group->nodes, group->nodes);
        add_or_null(body, "ops", group->has_ops, group->ops);
        add_or_null(body, "behind", group->has_ops, group->behind);
        add_or_null(body, "epoch", group->epoch, group->epoch);
        add_or_null(body, "size", group->size, group->size);
        body_add(body, "\"local_ranks\":%u,\"missing\":%u}", group->local, group->missing);
    }
}

/* Another node wrote it: a number, or null. */
static void add_number_cell(struct body *body, const char *cell)
{
    uint64_t number = 0;
    bool known = *cell;

    for (; *cell && known; cell++) {
        known = *cell >= '0' && *cell <= '9' && number < UINT64_MAX / 100;
        number = number * 10 + (uint64_t)(*cell - '0');
    }
    if (known)
        body_add(body, ",%" PRIu64, number);
    else
        body_add(body, ",null");
}

/* A row of the table as an array, and the names of the columns apart: with 64 nodes there are 4,032
 * rows. */
static void add_links(struct body *body, const struct msg_table *links)
{
    if (!links) {
        body_add(body, "\"link_columns\":null,\"links\":null,");
        return;
    }
    for (uint32_t i = 0; i < links->ncolumns; i++) {
        body_add(body, "%s", i ? "," : "\"link_columns\":[");
        body_add_json(body, links->columns[i].key);
    }
    body_add(body, "],\"links\":[");
    for (uint32_t row = 0; row < links->nrows; row++) {
        for (uint32_t i = 0; i < links->ncolumns; i++) {
            const char *cell = links->cells[(size_t)row * links->ncolumns + i];

            if (links->columns[i].type == MSG_CELL_NUMBER) {
                add_number_cell(body, cell);
            } else {
                body_add(body, "%s", i ? "," : row ? ",[" : "[");
                body_add_json(body, cell);
            }
        }
        body_add(body, "]");
    }
    body_add(body, "],");
}

static void add_events(struct body *body, const struct metrics *m)
{
    for (unsigned i = 0; i < m->nevents; i++) {
        body_add(body, "%s{", i ? "," : "");
        add_text(body, "event", m->events[i].what);
        add_text(body, "text", m->events[i].text);
        body_add(body, "\"wall_ms\":%" PRIu64 "}", m->events[i].wall_ms);
    }
}

void status_json(const struct metrics *m, struct body *body)
{
    body_add(body, "{");
    add_text(body, "node", m->node);
    add_text(body, "cluster", m->cluster);
    add_text(body, "version", m->version);
    add_text(body, "state", m->state);
    add_text(body, "why", m->unready);
    add_text(body, "engine", m->engine_state);
    add_text(body, "fabric", m->fabric);
    body_add(body, "\"uptime_s\":%" PRIu64 ".%03u,\"nodes\":[", m->uptime_ms / 1000,
             (unsigned)(m->uptime_ms % 1000));
    add_nodes(body, m);
    body_add(body, "],");
    add_links(body, m->matrix);
    body_add(body, "\"groups\":[");
    add_groups(body, m);
    body_add(body, "],\"events\":[");
    add_events(body, m);
    body_add(body, "],\"groups_of_all\":%" PRIu64 ",\"metrics\":",
             m->groups_joining + m->groups_open + m->groups_broken);
    metrics_json(m, body);
    body_add(body, "}\n");
}
