/* rivals.h - of connections that want the same places, which one has to go: so that who floods is
 * turned away, and nobody else. Those of the greatest rank go first, which the caller gives; of
 * these, those of the address that has most connections; of these, the oldest.
 *
 * All are counted first, then looked at from the oldest on. An address is known by a hash of all
 * its bytes, of 64 bits: two addresses are not taken for one. */
#ifndef COMMD_RIVALS_H
#define COMMD_RIVALS_H

#include <netinet/in.h>

#include "shm/util/hash.h"

enum { RIVALS_MAX = 128, RIVALS_SLOTS = 2 * RIVALS_MAX };

struct rivals {
    uint64_t host[RIVALS_SLOTS];
    uint8_t held[RIVALS_SLOTS]; /* connections of the host there; 0: it is free */
    void *victim;               /* NULL: nobody has to go */
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

static inline uint64_t rivals_host(const void *addr)
{
    size_t len;
    const uint8_t *bytes = addr_bytes(addr, &len);

    return hash_bytes(HASH_BEGIN, bytes, len);
}

static inline unsigned rivals_slot(const struct rivals *c, uint64_t host)
{
    unsigned at = host % RIVALS_SLOTS;

    while (c->held[at] && c->host[at] != host)
        at = (at + 1) % RIVALS_SLOTS;
    return at;
}

/* Of RIVALS_MAX at most. */
static inline void rivals_count(struct rivals *c, uint64_t host)
{
    unsigned at = rivals_slot(c, host);

    assert(c->held[at] < RIVALS_MAX);
    c->host[at] = host;
    c->held[at]++;
}

/* @rank from 1 on. @then: 1 goes before 0 of the same rank and address. */
static inline void rivals_look(struct rivals *c, void *who, uint64_t host, unsigned rank, bool then)
{
    unsigned weight = rank << 16 | 2u * c->held[rivals_slot(c, host)] | then;

    if (weight <= c->most)
        return;
    c->most = weight;
    c->victim = who;
}

#endif
