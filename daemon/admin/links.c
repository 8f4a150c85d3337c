/* links.c - see links.h. What the engine told last is of the last second; if that is longer ago,
 * the engine is not well, and there are other words for it. */
#include "daemon/admin/links.h"

#include "daemon/admin/table.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"

enum {
    LINKS_MOST = 16,
    LOST_PCT = 2,    /* of the segments: a network that is well loses less */
    LOST_LEAST = 20, /* fewer say nothing */
    OLD_MS = 3000,
};

struct losing {
    unsigned node;
    const struct core_traffic *traffic;
};

void links_table(struct table *table)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},         {"peer", "PEER", MSG_CELL_STRING},
        {"segments", "SEGMENTS", MSG_CELL_NUMBER}, {"retransmits", "RESENT", MSG_CELL_NUMBER},
        {"rtt_us", "RTT [us]", MSG_CELL_NUMBER},   {"min_rtt_us", "LEAST [us]", MSG_CELL_NUMBER},
    };

    table_init(table, "links", columns, ARRAY_LEN(columns));
}

static bool loses(const struct core_traffic *traffic)
{
    return traffic->told_ms && clock_ms() - traffic->told_ms <= OLD_MS &&
           traffic->recent_retransmits >= LOST_LEAST &&
           traffic->recent_retransmits * 100 >= traffic->recent_segments * LOST_PCT;
}

/* Keeps @worst in order; the last one falls out. */
static void insert(struct losing worst[LINKS_MOST + 1], unsigned n, struct losing new)
{
    unsigned i = n;

    for (; i && worst[i - 1].traffic->recent_retransmits < new.traffic->recent_retransmits; i--)
        worst[i] = worst[i - 1];
    worst[i] = new;
}

void links_fill(struct daemon *d, struct table *table)
{
    struct losing worst[LINKS_MOST + 1];
    struct core_peer_view peer;
    unsigned n = 0;

    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++)
        if (peer.state == CORE_PEER_READY && loses(peer.traffic)) {
            insert(worst, n, (struct losing){i, peer.traffic});
            n = MIN(n + 1, (unsigned)LINKS_MOST);
        }
    for (unsigned i = 0; i < n; i++) {
        table_text(table, d->conf->node);
        table_text(table, d->conf->nodes[worst[i].node].name);
        table_number(table, worst[i].traffic->recent_segments);
        table_number(table, worst[i].traffic->recent_retransmits);
        table_number(table, worst[i].traffic->rtt_us);
        table_number(table, worst[i].traffic->min_rtt_us);
    }
}
