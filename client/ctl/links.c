/* links.c - is it the network? It may be, if a group gets on, its ranks are in operations for much
 * of the time, no rank is late, and one of its links loses data or is very slow: what is lost is
 * sent again after a round trip at best, and after 200 ms at worst. Nodes report only such links,
 * in the table "links" of the answer; commd adds a row for each node that has not told all. Pure.
 */
#include "client/ctl/cells.h"
#include "client/ctl/finding.h"
#include "shm/util/link_quality.h"

#include <stdio.h>

enum { BUSY_PCT = 30 }; /* of the time in operations, on average: less is not the network's doing */

struct link_row {
    const char *node, *peer;
    enum link_state state;
    struct link_quality quality;
    uint64_t badness;
    uint32_t row; /* in the table */
};

/* Its peer has not told all of its ranks: it is no link. */
static bool is_unheard(const struct link_row *link)
{
    return link->state == LINK_PARTIAL || link->state == LINK_SILENT || link->state == LINK_DOWN ||
           link->state == LINK_RESTARTING;
}

/* The worst first; owned. */
struct link_rows {
    struct link_row *at;
    uint32_t n;
};

/* Those whose ranks were seen; names are the table's. */
struct group_nodes {
    const char **names; /* owned */
    unsigned n;
};

static bool has_node(const struct group_nodes *nodes, const char *name)
{
    for (unsigned i = nodes->n; i--;)
        if (!strcmp(nodes->names[i], name))
            return true;
    return false;
}

/* False: no memory. */
static bool nodes_of(const struct msg_table *ranks, const struct finding *f,
                     struct group_nodes *ret_nodes)
{
    uint32_t group = cells_column(ranks, "group"), at = cells_column(ranks, "node");
    struct group_nodes nodes = {.names = calloc(ranks->nrows + 1, sizeof(*nodes.names))};

    for (uint32_t row = 0; row < ranks->nrows && nodes.names; row++) {
        const char *name = cells_at(ranks, row, at);

        if (*name && !strcmp(cells_at(ranks, row, group), f->group) && !has_node(&nodes, name))
            nodes.names[nodes.n++] = name;
    }
    *ret_nodes = nodes;
    return nodes.names != NULL;
}

/* Mean over the ranks. */
static uint64_t busy_pct(const struct msg_table *ranks, const struct finding *f)
{
    uint32_t group = cells_column(ranks, "group"), watched = cells_column(ranks, "watched_ms"),
             busy = cells_column(ranks, "busy_pct");
    uint64_t sum = 0, n = 0;

    for (uint32_t row = 0; row < ranks->nrows; row++) {
        if (strcmp(cells_at(ranks, row, group), f->group) || !*cells_at(ranks, row, watched))
            continue;
        sum += MIN(cells_number(cells_at(ranks, row, busy)), (uint64_t)100);
        n++;
    }
    return n ? sum / n : 0;
}

static void read_link(const struct msg_table *links, uint32_t row, struct link_row *link)
{
    static const char *const keys[] = {"segments",   "retransmits", "rtt_us",
                                       "min_rtt_us", "rate",        "bandwidth"};
    uint64_t n[ARRAY_LEN(keys)];

    for (unsigned i = 0; i < ARRAY_LEN(keys); i++)
        n[i] = cells_number(cells_at(links, row, cells_column(links, keys[i])));
    *link = (struct link_row){
        .node = cells_at(links, row, cells_column(links, "node")),
        .peer = cells_at(links, row, cells_column(links, "peer")),
        .state = read_word(LINK_WORDS, cells_at(links, row, cells_column(links, "state"))),
        .quality = {n[0], n[1], n[2], n[3], n[4], n[5]},
        .row = row,
    };
    link->badness = link->state != LINK_OTHER ? UINT64_MAX : link_badness(&link->quality);
}

static int worse_first(const void *a, const void *b)
{
    const struct link_row *x = a, *y = b;

    if (x->badness != y->badness)
        return x->badness > y->badness ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* False: no memory. */
static bool read_links(const struct msg_table *links, struct link_rows *ret_rows)
{
    struct link_rows rows = {.at = calloc(links->nrows + 1, sizeof(*rows.at)), .n = links->nrows};

    if (!rows.at)
        return false;
    for (uint32_t row = 0; row < rows.n; row++)
        read_link(links, row, &rows.at[row]);
    qsort(rows.at, rows.n, sizeof(*rows.at), worse_first);
    *ret_rows = rows;
    return true;
}

/* The worst link between nodes of the group, and how many more there are; NULL: none. */
static const struct link_row *find_link(const struct group_nodes *nodes,
                                        const struct link_rows *links, unsigned *ret_more)
{
    const struct link_row *worst = NULL;

    *ret_more = 0;
    for (uint32_t i = 0; i < links->n; i++) {
        const struct link_row *link = &links->at[i];

        if (is_unheard(link) || !has_node(nodes, link->node) || !has_node(nodes, link->peer))
            continue;
        if (worst)
            ++*ret_more;
        else
            worst = link;
    }
    return worst;
}

static void accuse(struct finding *f, const struct link_row *link, unsigned more)
{
    const struct link_quality *q = &link->quality;
    bool apart = link->state == LINK_APART;

    f->verdict = apart ? VERDICT_LINK_DEAD : VERDICT_SLOW_LINK;
    f->remedy[0] = 0;
    if (apart) {
        tell(f->evidence,
             "the engines of nodes %s and %s have no connection, and their commds have", link->node,
             link->peer);
        tell(f->remedy,
             "does a firewall on node %s or %s drop the ports of the engines? Let "
             "transport.port_range through in both directions: nft list ruleset; commctl doctor",
             link->node, link->peer);
    } else if (link_crawls(q) && !link_loses(q)) {
        tell(f->evidence,
             "what node %s sends to node %s waits: %.1f ms there and back, at best %.1f ms; "
             "%.1f MB/s get through, where up to %.1f did",
             link->node, link->peer, (double)q->rtt_us / 1000, (double)q->min_rtt_us / 1000,
             (double)q->rate / 1e6, (double)q->bandwidth / 1e6);
        tell(f->remedy,
             "who else uses the way from node %s to node %s, and what limits it: ethtool (the "
             "speed), tc qdisc show, the counters of the switch ports",
             link->node, link->peer);
    } else {
        tell(f->evidence,
             "node %s sends %.1f %% of what goes to node %s again: %llu of %llu segments in the "
             "last second; there and back %.1f ms, at best %.1f ms",
             link->node, (double)link_lost_per_mille(q) / 10, link->peer,
             (unsigned long long)q->retransmits, (unsigned long long)q->segments,
             (double)q->rtt_us / 1000, (double)q->min_rtt_us / 1000);
        tell(f->remedy,
             "look for drops and errors on the way from node %s to node %s: ip -s link on both, "
             "the counters of the switch ports, cables, the MTU",
             link->node, link->peer);
    }
    if (more)
        tell(f->evidence, "%u more link%s between its nodes %s not well: commctl links", more,
             more > 1 ? "s" : "", more > 1 ? "are" : "is");
}

/* "b, c" */
static void add_name(char *list, size_t len, const char *name)
{
    size_t used = strlen(list);

    if (used + strlen(name) + 8 < len)
        snprintf(list + used, len - used, "%s%s", used ? ", " : "", name);
    else if (len - used > 6 && (used < 3 || strcmp(list + used - 3, "...")))
        snprintf(list + used, len - used, ", ...");
}

/* Some nodes of the group have no row, and some nodes have not answered. If these are as many, they
 * are the same nodes. If not, it is not known which of the silent nodes are in the group. A node
 * that is down for a node of the group is not in the group, or the group would have ended. */
static bool accuse_silent(struct finding *f, const struct group_nodes *seen,
                          const struct link_rows *links)
{
    uint64_t missing = f->nodes > seen->n ? f->nodes - seen->n : 0, unheard = 0;
    const char *first = "";
    unsigned silent = 0;
    char list[200] = "";

    for (uint32_t i = 0; i < links->n; i++) {
        const struct link_row *link = &links->at[i];

        if (!is_unheard(link) || has_node(seen, link->peer) ||
            (link->state == LINK_DOWN && has_node(seen, link->node)))
            continue;
        unheard++;
        if (link->state != LINK_SILENT)
            continue;
        if (!silent++)
            first = link->peer;
        add_name(list, sizeof(list), link->peer);
    }
    if (!silent || !missing)
        return false;
    if (unheard == missing) {
        f->verdict = VERDICT_NODE_SILENT;
        f->node = first;
        f->remedy[0] = 0;
        tell(f->evidence,
             silent == 1 ? "node %s does not answer; it is lost when it has been silent for "
                           "timeouts.node"
                         : "nodes %s do not answer; they are lost when they have been silent for "
                           "timeouts.node",
             list);
    } else {
        tell(f->evidence,
             silent == 1 ? "node %s does not answer: it is not known whether it is in the group"
                         : "nodes %s do not answer: it is not known which of them are in the group",
             list);
    }
    tell(f->remedy, "look at node%s %s: is it up, is its commd or all of it stopped, is the link?",
         silent > 1 ? "s" : "", list);
    return true;
}

/* A join waits while the commd of a node that it needs is restarted; whether it needs these is not
 * known. A group that runs goes on without, and the answer lacks its ranks there. */
static void tell_restarting(struct finding *f, const struct link_rows *links, bool joins)
{
    const char *first = "";
    unsigned n = 0;
    char list[200] = "";

    for (uint32_t i = 0; i < links->n; i++) {
        if (links->at[i].state != LINK_RESTARTING)
            continue;
        if (!n++)
            first = links->at[i].peer;
        add_name(list, sizeof(list), links->at[i].peer);
    }
    if (!n)
        return;
    tell(f->evidence,
         joins ? "commd of node%s %s is restarting: a join with ranks there waits until it is back"
               : "commd of node%s %s is restarting: what ranks do there is not known until it is "
                 "back",
         n == 1 ? "" : "s", list);
    if (!joins && verdict_is_well(f->verdict) && f->verdict != VERDICT_RECOVERED)
        f->verdict = VERDICT_COMMD_AWAY;
    if (!*f->node)
        snprintf(f->lost_node, sizeof(f->lost_node), "%s", first);
    tell(f->remedy,
         "if it is not back within timeouts.restart it is lost: on node %s systemctl status commd, "
         "journalctl -u commd; is it stopped?",
         first);
}

/* A join waits, and whether it needs both of two nodes that have no connection is not known. Why
 * they have none, as a certificate that has expired, commctl nodes tells. */
static void tell_apart(struct finding *f, const struct link_rows *links)
{
    for (uint32_t i = 0; i < links->n; i++) {
        const struct link_row *link = &links->at[i];

        if (link->state != LINK_APART && link->state != LINK_DOWN)
            continue;
        tell(f->evidence,
             link->state == LINK_APART
                 ? "the engines of nodes %s and %s have no connection: a join with ranks on both "
                   "waits"
                 : "node %s has no link to node %s: a join with ranks on both waits",
             link->node, link->peer);
        return tell(f->remedy, "commctl nodes on node %s says why that is, and what to do",
                    link->node);
    }
}

/* Of one finding. */
static void judge_finding(struct finding *f, const struct msg_table *ranks,
                          const struct link_rows *links)
{
    bool healthy = (f->verdict == VERDICT_HEALTHY || f->verdict == VERDICT_COMM_BOUND) &&
                   f->nodes > 1 && !f->ended && busy_pct(ranks, f) >= BUSY_PCT,
         stalls = f->verdict == VERDICT_LINK_STALL;
    const struct link_row *link = NULL;
    struct group_nodes nodes;
    unsigned more = 0;

    bool asks = f->unseen || (verdict_is_well(f->verdict) && f->nodes > 1 && !f->ended);

    if (f->verdict == VERDICT_NOT_JOINED && !f->ended) {
        tell_restarting(f, links, true);
        return tell_apart(f, links);
    }
    if ((!healthy && !asks && !stalls) || !nodes_of(ranks, f, &nodes))
        return;
    if (asks && nodes.n < f->nodes)
        tell_restarting(f, links, false);
    if (!(asks && accuse_silent(f, &nodes, links)) && (healthy || stalls))
        link = find_link(&nodes, links, &more);
    if (link && (healthy || link->state == LINK_APART))
        accuse(f, link, more);
    free(nodes.names);
}

void judge_links(const struct msg_tables *answer, struct finding *findings, unsigned n)
{
    const struct msg_table *ranks = table_named(answer, "ranks"),
                           *links = table_named(answer, "links");
    struct link_rows rows;

    if (!ranks || !links || !links->nrows || !read_links(links, &rows))
        return;
    for (unsigned i = 0; i < n; i++)
        judge_finding(&findings[i], ranks, &rows);
    free(rows.at);
}

void links_worst_first(struct msg_table *links)
{
    size_t width = links->ncolumns * sizeof(*links->cells);
    char **cells = malloc(links->nrows * width + 1);
    struct link_rows rows = {0};

    if (cells && links->nrows && read_links(links, &rows)) {
        memcpy(cells, links->cells, links->nrows * width);
        for (uint32_t i = 0; i < rows.n; i++)
            memcpy(links->cells + (size_t)i * links->ncolumns,
                   cells + (size_t)rows.at[i].row * links->ncolumns, width);
    }
    free(rows.at);
    free(cells);
}
