/* rivals.h - of connections that want the same places, which one has to go: so that who floods is
 * turned away, and nobody else. Those of the greatest rank go first, which the caller gives; of
 * these, those of the net that has most connections; of these, those of the address that has most;
 * of these, the oldest. The net of an IPv6 address is its /64, since who has one address there has
 * all of them; an IPv4 address is a net by itself.
 *
 * All are counted first, then looked at from the oldest on. Nets and addresses are known by hashes
 * of 64 bits: two are not taken for one. */
#ifndef COMMD_RIVALS_H
#define COMMD_RIVALS_H

#include <netinet/in.h>

#include "shm/util/hash.h"

enum { RIVALS_MAX = 128, RIVALS_SLOTS = 2 * RIVALS_MAX };

/* Hashes. */
struct rival {
    uint64_t net, host;
};

struct rivals_table {
    uint64_t key[RIVALS_SLOTS];
    uint8_t held[RIVALS_SLOTS]; /* connections of the key there; 0: it is free */
};

struct rivals {
    struct rivals_table nets, hosts;
    void *victim; /* NULL: nobody has to go */
    unsigned most;
};

/* The bytes alone of a socket's address, of whatever type; an IPv4 address inside IPv6 counts as
 * IPv4.
 */
static inline const uint8_t *addr_bytes(const void *addr, size_t *ret_len)
{
    static const uint8_t mapped[] = {[10] = 0xff, 0xff};
    const uint8_t *in6 = (const uint8_t *)addr + offsetof(struct sockaddr_in6, sin6_addr);
    sa_family_t family;

    memcpy(&family, addr, sizeof(family));
    *ret_len = family == AF_INET ? 4 : family == AF_INET6 ? 16 : 0;
    if (family == AF_INET)
        return (const uint8_t *)addr + offsetof(struct sockaddr_in, sin_addr);
    if (family != AF_INET6 || memcmp(in6, mapped, sizeof(mapped)))
        return in6;
    *ret_len = 4;
    return in6 + sizeof(mapped);
}

/* How many bytes of an address of @len bytes are those of its net. */
static inline size_t addr_net_len(size_t len)
{
    return len == 16 ? 8 : len;
}

/* @alone: its net is none but itself, as that of an address which the configuration names. */
static inline struct rival rival_at(const void *addr, bool alone)
{
    size_t len;
    const uint8_t *bytes = addr_bytes(addr, &len);

    return (struct rival){hash_bytes(HASH_BEGIN, bytes, alone ? len : addr_net_len(len)),
                          hash_bytes(HASH_BEGIN, bytes, len)};
}

static inline uint8_t *rivals_held(struct rivals_table *table, uint64_t key)
{
    unsigned at = key % RIVALS_SLOTS;

    while (table->held[at] && table->key[at] != key)
        at = (at + 1) % RIVALS_SLOTS;
    table->key[at] = key;
    return &table->held[at];
}

/* Of RIVALS_MAX at most. */
static inline void rivals_count(struct rivals *c, const struct rival *one)
{
    uint8_t *net = rivals_held(&c->nets, one->net);

    assert(*net < RIVALS_MAX);
    ++*net;
    ++*rivals_held(&c->hosts, one->host);
}

/* @rank from 1 on. @then: 1 goes before 0 of the same rank and address. */
static inline void rivals_look(struct rivals *c, void *who, const struct rival *one, unsigned rank,
                               bool then)
{
    unsigned net = *rivals_held(&c->nets, one->net), host = *rivals_held(&c->hosts, one->host);
    unsigned weight = rank << 24 | net << 16 | 2u * host | then;

    if (weight <= c->most)
        return;
    c->most = weight;
    c->victim = who;
}

#endif
