/* links.c - is it the network? A group that gets on, whose ranks are in operations for much of the
 * time and none of which is late, over a link that loses data: what is lost is sent again after a
 * round trip at best, and after 200 ms at worst. Nodes report only links that lose (table "links"
 * of the answer). Pure. */
#include "client/ctl/cells.h"
#include "client/ctl/finding.h"

#include <stdio.h>

enum {
    BUSY_PCT = 30, /* of the time in operations, on average: less is not the network's doing */
    LOST_PER_MILLE = 20, /* or else it is told because it crawls */
    LINKS_MOST = 256,    /* that are looked at; where so many lose, one is as good as another */
};

struct bad_link {
    const char *node, *peer;
    bool unheard; /* the peer has not told all of its ranks: it is no link */
    bool silent;  /* it did not answer the question */
    bool down;    /* it could not be asked */
    uint64_t segments, retransmits, rtt_us, min_rtt_us, rate, bandwidth;
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

/* What of 1,000 segments is sent again. */
static uint64_t per_mille(const struct bad_link *link)
{
    uint64_t segments = MIN(link->segments, 1ull << 50);

    return segments ? MIN(link->retransmits, segments) * 1000 / segments : 0;
}

static void read_link(const struct msg_table *links, uint32_t row, struct bad_link *link)
{
    const char *state = cells_at(links, row, cells_column(links, "state"));

    *link = (struct bad_link){
        .node = cells_at(links, row, cells_column(links, "node")),
        .peer = cells_at(links, row, cells_column(links, "peer")),
        .unheard = is(state, "silent") || is(state, "partial") || is(state, "down"),
        .silent = is(state, "silent"),
        .down = is(state, "down"),
        .segments = cells_number(cells_at(links, row, cells_column(links, "segments"))),
        .retransmits = cells_number(cells_at(links, row, cells_column(links, "retransmits"))),
        .rtt_us = cells_number(cells_at(links, row, cells_column(links, "rtt_us"))),
        .rate = cells_number(cells_at(links, row, cells_column(links, "rate"))),
        .bandwidth = cells_number(cells_at(links, row, cells_column(links, "bandwidth"))),
        .min_rtt_us = cells_number(cells_at(links, row, cells_column(links, "min_rtt_us"))),
    };
}

/* The worst link between nodes of the group. */
static bool find_link(const struct group_nodes *nodes, const struct msg_table *links,
                      struct bad_link *worst)
{
    struct bad_link link;

    *worst = (struct bad_link){0};
    for (uint32_t row = 0; row < MIN(links->nrows, (uint32_t)LINKS_MOST); row++) {
        read_link(links, row, &link);
        if (link.unheard)
            continue;
        if (has_node(nodes, link.node) && has_node(nodes, link.peer) &&
            (!worst->node || per_mille(&link) > per_mille(worst)))
            *worst = link;
    }
    return worst->node != NULL;
}

static void accuse(struct finding *f, const struct bad_link *link)
{
    size_t used = strlen(f->evidence);

    f->verdict = VERDICT_SLOW_LINK;
    if (per_mille(link) < LOST_PER_MILLE) {
        snprintf(f->evidence + used, sizeof(f->evidence) - used,
                 "%swhat node %s sends to node %s waits: %.1f ms there and back, at best %.1f ms; "
                 "%.1f MB/s get through, where up to %.1f did",
                 used ? "\n" : "", link->node, link->peer, (double)link->rtt_us / 1000,
                 (double)link->min_rtt_us / 1000, (double)link->rate / 1e6,
                 (double)link->bandwidth / 1e6);
        snprintf(f->remedy, sizeof(f->remedy),
                 "who else uses the way from node %s to node %s, and what limits it: ethtool (the "
                 "speed), tc qdisc show, the counters of the switch ports",
                 link->node, link->peer);
        return;
    }
    snprintf(f->evidence + used, sizeof(f->evidence) - used,
             "%snode %s sends %.1f %% of what goes to node %s again: %llu of %llu segments in the "
             "last second; there and back %.1f ms, at best %.1f ms",
             used ? "\n" : "", link->node, (double)per_mille(link) / 10, link->peer,
             (unsigned long long)link->retransmits, (unsigned long long)link->segments,
             (double)link->rtt_us / 1000, (double)link->min_rtt_us / 1000);
    snprintf(f->remedy, sizeof(f->remedy),
             "look for drops and errors on the way from node %s to node %s: ip -s link on both, "
             "the counters of the switch ports, cables, the MTU",
             link->node, link->peer);
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

/* Of a group some nodes were not seen, and some nodes were not heard of. Where these are as many,
 * they are the same. Otherwise nobody knows which of them is in the group: it is on the nodes that
 * would have told. A node that is down to one of the group is not in it: it would have ended. */
static bool accuse_silent(struct finding *f, const struct group_nodes *seen,
                          const struct msg_table *links)
{
    uint64_t missing = f->nodes > seen->n ? f->nodes - seen->n : 0, unheard = 0;
    const char *first = "";
    unsigned silent = 0;
    char list[200] = "";
    struct bad_link link;

    for (uint32_t row = 0; row < links->nrows; row++) {
        read_link(links, row, &link);
        if (!link.unheard || has_node(seen, link.peer) || (link.down && has_node(seen, link.node)))
            continue;
        unheard++;
        if (!link.silent)
            continue;
        if (!silent++)
            first = link.peer;
        add_name(list, sizeof(list), link.peer);
    }
    if (!silent || !missing)
        return false;
    if (unheard == missing) {
        f->verdict = VERDICT_NODE_DEAD;
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

/* Of one finding. */
static void judge_finding(struct finding *f, const struct msg_table *ranks,
                          const struct msg_table *links)
{
    bool healthy = f->verdict == VERDICT_HEALTHY && f->nodes > 1 && !f->ended &&
                   busy_pct(ranks, f) >= BUSY_PCT;
    struct group_nodes nodes;
    struct bad_link link;

    if (!healthy && !f->unseen)
        return;
    if (nodes_of(ranks, f, &nodes) && !(f->unseen && accuse_silent(f, &nodes, links)) && healthy &&
        find_link(&nodes, links, &link))
        accuse(f, &link);
    free(nodes.names);
}

void judge_links(const struct msg_tables *answer, struct finding *findings, unsigned n)
{
    const struct msg_table *ranks = NULL, *links = NULL;

    for (uint32_t i = 0; i < answer->ntables; i++) {
        if (!strcmp(answer->tables[i].name, "ranks"))
            ranks = &answer->tables[i];
        if (!strcmp(answer->tables[i].name, "links"))
            links = &answer->tables[i];
    }
    for (unsigned i = 0; i < n && ranks && links && links->nrows; i++)
        judge_finding(&findings[i], ranks, links);
}
