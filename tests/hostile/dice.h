/* dice.h - choices that a seed replays: splitmix64, and the numbers that tend to hurt. */
#ifndef COMMD_TEST_DICE_H
#define COMMD_TEST_DICE_H

#include "shm/util/base.h"

struct dice {
    uint64_t state;
};

static inline uint64_t dice_roll(struct dice *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint32_t dice_below(struct dice *d, uint32_t n)
{
    return (uint32_t)(dice_roll(d) % n);
}

static inline bool dice_one_in(struct dice *d, uint32_t n)
{
    return dice_below(d, n) == 0;
}

/* Small, at an edge, or anything. */
static inline uint64_t dice_odd(struct dice *d)
{
    static const uint64_t edges[] = {
        0,     1,      2,         63,         64,         255,       1024,       65535,
        65536, 262144, INT32_MAX, UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX, UINT64_MAX - 63};

    switch (dice_below(d, 3)) {
    case 0:
        return dice_below(d, 8);
    case 1:
        return edges[dice_below(d, ARRAY_LEN(edges))];
    default:
        return dice_roll(d) >> dice_below(d, 64);
    }
}

static inline void dice_bytes(struct dice *d, void *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)p)[i] = (uint8_t)dice_roll(d);
}

#endif
