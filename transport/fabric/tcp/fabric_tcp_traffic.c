/* fabric_tcp_traffic.c - what the kernel counts of the connections to a peer. So sending and
 * receiving need not count. */
#include <linux/tcp.h> /* that of libc lacks what the kernel has added since */
#include <netinet/in.h>

#include "shm/util/wait.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum { LATELY_MS = 2000 };

/* The kernel smooths the round trip while data flow; of a connection that has been idle it tells
 * how full the queues were at the end. So only connections that sent lately count, and of these the
 * slowest. */
uint32_t tcp_rtt_add(uint32_t rtt_us, uint32_t us, uint32_t idle_ms)
{
    return idle_ms <= LATELY_MS ? MAX(rtt_us, us) : rtt_us;
}

/* Data, acknowledgements of ours, and answers to what the kernel asks on a socket without data. */
static void add_quiet(const struct tcp_info *info, struct fabric_traffic *traffic)
{
    uint32_t ms = MAX(MIN(info->tcpi_last_data_recv, info->tcpi_last_ack_recv), 1u);

    traffic->quiet_ms = traffic->quiet_ms ? MIN(traffic->quiet_ms, ms) : ms;
}

void conn_add_traffic(const struct conn *c, struct fabric_traffic *traffic)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    /* an older kernel fills in less, and the rest stays 0 */
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
        return;
    traffic->sent += info.tcpi_bytes_acked;
    traffic->received += info.tcpi_bytes_received;
    traffic->segments += info.tcpi_segs_out;
    /* a segment that the other side had already was not lost: the other side was slow */
    traffic->retransmits +=
        info.tcpi_total_retrans - MIN(info.tcpi_total_retrans, info.tcpi_dsack_dups);
    traffic->stalled_us += info.tcpi_rwnd_limited;
    traffic->rate += info.tcpi_delivery_rate; /* of a flight, not over the time between two */
    add_quiet(&info, traffic);
    traffic->rtt_us = tcp_rtt_add(traffic->rtt_us, info.tcpi_rtt, info.tcpi_last_data_sent);
    if (info.tcpi_min_rtt && info.tcpi_min_rtt != UINT32_MAX)
        traffic->min_rtt_us =
            traffic->min_rtt_us ? MIN(traffic->min_rtt_us, info.tcpi_min_rtt) : info.tcpi_min_rtt;
}

static void add_key(const struct seal *s, uint64_t now, struct fabric_traffic *traffic)
{
    uint64_t ms = now - seal_since_ms(s);

    if (link_is_encrypted(traffic->encryption) && ms <= traffic->key_ms)
        return;
    traffic->encryption = seal_by_ipsec_mb(s)                ? LINK_AES_128_GCM_IPSEC_MB
                          : seal_kind(s) == SEAL_AES_128_GCM ? LINK_AES_128_GCM
                                                             : LINK_CHACHA20_POLY1305;
    traffic->key_ms = ms;
    traffic->generation = seal_generation(s);
}

static void add_encryption(const struct tcp_peer *peer, struct fabric_traffic *traffic)
{
    uint64_t now = now_ms();

    traffic->key_ms = now - peer->up_ms;
    traffic->encryption = both_on_loopback(peer->t, &peer->addr) ? LINK_CLEAR_LOOPBACK
                          : peer_is_old(peer)                    ? LINK_CLEAR_OLD
                                                                 : LINK_CLEAR_OFF;
    for (unsigned i = 0; i < ARRAY_LEN(peer->conn); i++) {
        const struct conn *c = peer->conn[i];

        if (c && c->seals) {
            add_key(c->seals, now, traffic);
            add_key(c->opens, now, traffic);
        }
    }
}

bool tcp_traffic(struct fabric *f, unsigned index, struct fabric_traffic *ret_traffic)
{
    struct tcp *t = container_of(f, struct tcp, base);
    const struct tcp_peer *peer = index < FABRIC_MAX_PEERS ? t->slot[index] : NULL;

    *ret_traffic = (struct fabric_traffic){0};
    if (!peer || !peer_connected(peer))
        return false;
    ret_traffic->mends = peer->mends;
    add_encryption(peer, ret_traffic);
    for (unsigned i = 0; i < ARRAY_LEN(peer->conn); i++) {
        const struct conn *c = peer->conn[i];

        if (!c)
            continue;
        ret_traffic->sent += c->past.sent;
        ret_traffic->received += c->past.received;
        ret_traffic->segments += c->past.segments;
        ret_traffic->retransmits += c->past.retransmits;
        ret_traffic->stalled_us += c->past.stalled_us;
        if (c->state == CONN_OPEN)
            conn_add_traffic(c, ret_traffic);
    }
    return true;
}
