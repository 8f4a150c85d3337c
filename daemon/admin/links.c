/* links.c - see links.h. What the engine told last is of the last second; if that is longer ago,
 * the engine is not well, and there are other words for it. */
#include "daemon/admin/links.h"

#include "daemon/admin/answers.h"
#include "daemon/admin/table.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"

enum {
    LINKS_MOST = 16,
    LOST_PCT = 2,    /* of the segments: a network that is well loses less */
    LOST_LEAST = 20, /* fewer say nothing */
    OLD_MS = 3000,
    /* Of a link that crawls: what is sent waits so long (a delayed acknowledgement takes 40 ms),
     * and so much longer than at best; and so much more has got through before. */
    QUEUED_US = 50000,
    QUEUED_TIMES = 20,
    RATE_TIMES = 10,
};

struct losing {
    unsigned node;
    const struct core_traffic *traffic;
};

void links_table(struct table *table)
{
    static const struct table_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},
        {"peer", "PEER", MSG_CELL_STRING},
        {"state", "STATE", MSG_CELL_STRING},
        {"segments", "SEGMENTS", MSG_CELL_NUMBER},
        {"retransmits", "RESENT", MSG_CELL_NUMBER},
        {"rtt_us", "RTT [us]", MSG_CELL_NUMBER},
        {"min_rtt_us", "LEAST [us]", MSG_CELL_NUMBER},
        {"rate", "SENDS [bytes/s]", MSG_CELL_NUMBER},
        {"bandwidth", "MOST [bytes/s]", MSG_CELL_NUMBER},
    };

    table_init(table, "links", columns, ARRAY_LEN(columns));
}

static bool is_fresh(const struct core_traffic *traffic)
{
    return traffic->told_ms && clock_ms() - traffic->told_ms <= OLD_MS;
}

static bool loses(const struct core_traffic *traffic)
{
    return is_fresh(traffic) && traffic->recent_retransmits >= LOST_LEAST &&
           traffic->recent_retransmits * 100 >= traffic->recent_segments * LOST_PCT;
}

static uint64_t rate_of(const struct core_traffic *traffic)
{
    return traffic->recent_ms ? traffic->recent_sent * 1000 / traffic->recent_ms : 0;
}

static bool crawls(const struct core_traffic *traffic)
{
    return is_fresh(traffic) && traffic->rtt_us >= QUEUED_US &&
           traffic->rtt_us / QUEUED_TIMES >= traffic->min_rtt_us &&
           rate_of(traffic) < traffic->bandwidth / RATE_TIMES;
}

/* Keeps @worst in order; the last one falls out. */
static void insert(struct losing worst[LINKS_MOST + 1], unsigned n, struct losing new)
{
    unsigned i = n;

    for (; i && worst[i - 1].traffic->recent_retransmits < new.traffic->recent_retransmits; i--)
        worst[i] = worst[i - 1];
    worst[i] = new;
}

static void fill_link(struct daemon *d, const struct core_peer_view *peer, struct table *table)
{
    const struct core_traffic *traffic = peer->traffic;
    bool fresh = peer->state == CORE_PEER_READY && is_fresh(traffic);

    table_text(table, d->conf->node);
    table_text(table, peer->name);
    table_text(table, answer_peer_word(peer));
    table_number_if(table, fresh, traffic->recent_segments);
    table_number_if(table, fresh, traffic->recent_retransmits);
    table_number_if(table, fresh && traffic->rtt_us, traffic->rtt_us);
    table_number_if(table, fresh && traffic->min_rtt_us, traffic->min_rtt_us);
    table_number_if(table, fresh && traffic->recent_ms, rate_of(traffic));
    table_number_if(table, traffic->bandwidth, traffic->bandwidth);
}

static void fill_all(struct daemon *d, struct table *table)
{
    unsigned room = d->conf->nnodes <= LINKS_ALL_NODES ? UINT32_MAX : LINKS_ALL_NODES;
    struct core_peer_view peer;

    for (unsigned i = 0; core_peer_at(d->core, i, &peer) && room; i++) {
        if (peer.state == CORE_PEER_SELF || (d->conf->nnodes > LINKS_ALL_NODES &&
                                             peer.state == CORE_PEER_READY && !loses(peer.traffic)))
            continue;
        fill_link(d, &peer, table);
        room--;
    }
}

void links_fill(struct daemon *d, bool all, struct table *table)
{
    struct losing worst[LINKS_MOST + 1];
    struct core_peer_view peer;
    unsigned n = 0;

    if (all)
        return fill_all(d, table);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++)
        if (peer.state == CORE_PEER_READY && (loses(peer.traffic) || crawls(peer.traffic))) {
            insert(worst, n, (struct losing){i, peer.traffic});
            n = MIN(n + 1, (unsigned)LINKS_MOST);
        }
    for (unsigned i = 0; i < n; i++)
        if (core_peer_at(d->core, worst[i].node, &peer))
            fill_link(d, &peer, table);
}

void links_unheard(struct daemon *d, const char *peer, const char *state, struct table *table)
{
    table_text(table, d->conf->node);
    table_text(table, peer);
    table_text(table, state);
    for (unsigned i = 3; i < table->t.ncolumns; i++)
        table_text(table, "");
}
