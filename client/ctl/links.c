/* links.c - is it the network? A group that gets on, whose ranks are in operations for much of the
 * time and none of which is late, over a link that loses data: what is lost is sent again after a
 * round trip at best, and after 200 ms at worst. Nodes report only links that lose (table "links"
 * of the answer). Pure. */
#include "client/ctl/cells.h"
#include "client/ctl/diagnose.h"

#include <stdio.h>

enum {
    BUSY_PCT = 30, /* of the time in operations, on average: less is not the network's doing */
    LOST_PER_MILLE = 20, /* or else it is told because it crawls */
    LINKS_MOST = 256,    /* that are looked at; where so many lose, one is as good as another */
};

struct bad_link {
    const char *node, *peer;
    bool silent; /* the peer did not answer the question */
    uint64_t segments, retransmits, rtt_us, min_rtt_us, rate, bandwidth;
};

static bool has_node(const struct msg_table *ranks, const struct finding *f, const char *node)
{
    uint32_t group = cells_column(ranks, "group"), at = cells_column(ranks, "node");

    for (uint32_t row = 0; row < ranks->nrows; row++)
        if (!strcmp(cells_at(ranks, row, group), f->group) &&
            !strcmp(cells_at(ranks, row, at), node))
            return true;
    return false;
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
    *link = (struct bad_link){
        .node = cells_at(links, row, cells_column(links, "node")),
        .peer = cells_at(links, row, cells_column(links, "peer")),
        .silent = !strcmp(cells_at(links, row, cells_column(links, "state")), "silent"),
        .segments = cells_number(cells_at(links, row, cells_column(links, "segments"))),
        .retransmits = cells_number(cells_at(links, row, cells_column(links, "retransmits"))),
        .rtt_us = cells_number(cells_at(links, row, cells_column(links, "rtt_us"))),
        .rate = cells_number(cells_at(links, row, cells_column(links, "rate"))),
        .bandwidth = cells_number(cells_at(links, row, cells_column(links, "bandwidth"))),
        .min_rtt_us = cells_number(cells_at(links, row, cells_column(links, "min_rtt_us"))),
    };
}

/* The worst link between nodes of the group. */
static bool find_link(const struct msg_table *ranks, const struct msg_table *links,
                      const struct finding *f, struct bad_link *worst)
{
    struct bad_link link;

    *worst = (struct bad_link){0};
    for (uint32_t row = 0; row < MIN(links->nrows, (uint32_t)LINKS_MOST); row++) {
        read_link(links, row, &link);
        if (link.silent)
            continue;
        if (has_node(ranks, f, link.node) && has_node(ranks, f, link.peer) &&
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

static bool accuse_silent(struct finding *f, const struct msg_table *links)
{
    size_t used = strlen(f->evidence);
    struct bad_link link;

    for (uint32_t row = 0; row < links->nrows; row++) {
        read_link(links, row, &link);
        if (!link.silent)
            continue;
        f->verdict = VERDICT_NODE_DEAD;
        f->node = link.peer;
        snprintf(f->evidence + used, sizeof(f->evidence) - used,
                 "%snode %s does not answer; it is lost when it has been silent for timeouts.node",
                 used ? "\n" : "", link.peer);
        snprintf(f->remedy, sizeof(f->remedy),
                 "look at node %s: is it up, is its commd or all of it stopped, is the link?",
                 link.peer);
        return true;
    }
    return false;
}

void judge_links(const struct msg_tables *answer, struct finding *findings, unsigned n)
{
    const struct msg_table *ranks = NULL, *links = NULL;
    struct bad_link link;

    for (uint32_t i = 0; i < answer->ntables; i++) {
        if (!strcmp(answer->tables[i].name, "ranks"))
            ranks = &answer->tables[i];
        if (!strcmp(answer->tables[i].name, "links"))
            links = &answer->tables[i];
    }
    for (unsigned i = 0; i < n && ranks && links && links->nrows; i++) {
        struct finding *f = &findings[i];

        if (f->unseen && accuse_silent(f, links))
            continue;
        if (f->verdict == VERDICT_HEALTHY && f->nodes > 1 && !f->ended &&
            find_link(ranks, links, f, &link) && busy_pct(ranks, f) >= BUSY_PCT)
            accuse(f, &link);
    }
}
