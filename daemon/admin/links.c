/* links.c - see links.h. The engine reports its traffic every second. If the last report is older,
 * the engine is not well, which other lines of the answer say. */
#include "daemon/admin/links.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/table.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/util/link_quality.h"

enum {
    LINKS_MOST = 16, /* for commctl why */
    OLD_MS = 3000,
};

struct bad_link {
    unsigned node;
    uint64_t badness;
};

/* clang-format off */
#define LINKS_COLUMNS(C)                                                                           \
    C(node, "NODE", text, d->conf->node)                                                           \
    C(peer, "PEER", text, peer->name)                                                              \
    C(state, "STATE", text, answer_peer_word(peer))                                                \
    C(segments, "SEGMENTS", number_if, fresh, traffic->recent_segments)                            \
    C(retransmits, "RESENT", number_if, fresh, traffic->recent_retransmits)                        \
    TRAFFIC_TIMES(C, traffic, fresh)                                                               \
    C(rate, "SENDS [bytes/s]", number_if, fresh && traffic->recent_ms, rate_of(traffic))           \
    TRAFFIC_MOST(C, traffic)                                                                       \
    C(mends, "MENDED", number_if, traffic->told_ms, traffic->mends)                                \
    TRAFFIC_ENCRYPTION(C, traffic)
/* clang-format on */

void links_table(struct table *table)
{
    table_begin(table, "links", LINKS_COLUMNS);
}

uint64_t links_key_ms(const struct core_traffic *traffic)
{
    return clock_ms() - MIN(traffic->key_since_ms, clock_ms());
}

void links_encryption(struct daemon *d, char *text, size_t size)
{
    unsigned links[LINK_ENCRYPTIONS] = {0};
    uint64_t oldest_ms[LINK_ENCRYPTIONS] = {0};
    struct core_peer_view peer;
    size_t used = 0;

    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        enum link_encryption e = peer.traffic->encryption;

        links[e]++;
        oldest_ms[e] = MAX(oldest_ms[e], links_key_ms(peer.traffic));
    }
    *text = '\0';
    for (unsigned e = LINK_UNTOLD + 1; e < LINK_ENCRYPTIONS; e++)
        if (links[e] && used < size)
            used += (size_t)snprintf(
                text + used, size - used, "%s%s: %u link%s%s%" PRIu64 " s", used ? ", " : "",
                link_encryption_word(e), links[e], links[e] == 1 ? "" : "s",
                link_is_encrypted(e) ? ", oldest key " : " for ", oldest_ms[e] / 1000);
}

static bool is_fresh(const struct core_traffic *traffic)
{
    return traffic->told_ms && clock_ms() - traffic->told_ms <= OLD_MS;
}

static uint64_t rate_of(const struct core_traffic *traffic)
{
    return traffic->recent_ms ? traffic->recent_sent * 1000 / traffic->recent_ms : 0;
}

/* 0 if it is well. */
static uint64_t badness_of(const struct core_peer_view *peer)
{
    const struct core_traffic *traffic = peer->traffic;
    const struct link_quality quality = {
        .segments = traffic->recent_segments,
        .retransmits = traffic->recent_retransmits,
        .rtt_us = traffic->rtt_us,
        .min_rtt_us = traffic->min_rtt_us,
        .rate = rate_of(traffic),
        .bandwidth = traffic->bandwidth,
    };

    if (peer->state != CORE_PEER_READY || answer_apart_ms(peer))
        return UINT64_MAX;
    return is_fresh(traffic) ? link_badness(&quality) : 0;
}

/* Inserts @new into the @n sorted entries of @worst, which has room for n + 1. The caller drops the
 * last entry. */
static void insert(struct bad_link *worst, unsigned n, struct bad_link new)
{
    unsigned i = n;

    for (; i && worst[i - 1].badness < new.badness; i--)
        worst[i] = worst[i - 1];
    worst[i] = new;
}

static void fill_link(struct daemon *d, const struct core_peer_view *peer, struct table *t)
{
    const struct core_traffic *traffic = peer->traffic;
    bool fresh = badness_of(peer) < UINT64_MAX && is_fresh(traffic);

    TABLE_ADD(LINKS_COLUMNS)
}

static void fill_all(struct daemon *d, struct table *table)
{
    struct core_peer_view peer;

    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++)
        if (peer.state != CORE_PEER_SELF)
            fill_link(d, &peer, table);
}

unsigned links_fill(struct daemon *d, bool all, struct table *table)
{
    struct bad_link worst[LINKS_ALL_NODES + 1];
    unsigned n = 0, left = 0, most;
    struct core_peer_view peer;

    if (table->error)
        return 0;
    if (all && d->conf->nnodes <= LINKS_ALL_NODES) {
        fill_all(d, table);
        return 0;
    }
    most = LINKS_MOST;
    if (all) /* all nodes share the cells of one answer */
        most = MIN((unsigned)LINKS_ALL_NODES,
                   (unsigned)MSG_MAX_CELLS / table->t.ncolumns / d->conf->nnodes);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        struct bad_link link = {.node = i};

        if (peer.state == CORE_PEER_SELF ||
            (!all && peer.state != CORE_PEER_READY && peer.state != CORE_PEER_LINKING))
            continue;
        link.badness = badness_of(&peer);
        if (!link.badness)
            continue;
        insert(worst, n, link);
        if (n < most)
            n++;
        else
            left++;
    }
    for (unsigned i = 0; i < n; i++)
        if (core_peer_at(d->core, worst[i].node, &peer))
            fill_link(d, &peer, table);
    return left;
}

void links_unheard(struct daemon *d, const char *peer, const char *state, struct table *table)
{
    table_text(table, d->conf->node);
    table_text(table, peer);
    table_text(table, state);
    for (unsigned i = 3; i < table->t.ncolumns; i++)
        table_text(table, "");
}
