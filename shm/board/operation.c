/* operation.c - what ranks compare before they believe a result: the fingerprint of a description,
 * the digest of counts that all give alike, and the balance of counts that they give for each
 * other. Then the words in which a difference is told. See board.h. */
#include "shm/board/board.h"

#include <stdio.h>

/* Finalizer of MurmurHash3 (Appleby, public domain), folded over the fields: this guards
 * against mistakes, not against malice. */
static uint64_t hash_add(uint64_t h, uint64_t v)
{
    h ^= v;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

uint64_t op_fingerprint(const struct op_desc *d)
{
    uint64_t h = hash_add(0x636f6d6d64ull, d->seq);

    h = hash_add(h, d->count);
    h = hash_add(h, (uint64_t)d->root << 32 | (uint64_t)d->declined << 24 |
                        (uint64_t)d->coll << 16 | (uint64_t)d->dtype << 8 | d->redop);
    return d->digest ? hash_add(h, d->digest) : h;
}

uint64_t op_digest(const uint64_t *counts, unsigned world)
{
    return op_digest_by(1, counts, world);
}

uint64_t op_digest_by(uint64_t key, const uint64_t *counts, unsigned world)
{
    uint64_t h = key;

    for (unsigned k = 0; k < world; k++)
        h = hash_add(h, counts[k]);
    return h;
}

void op_balance_add(struct op_balance *bal, unsigned world, unsigned from, unsigned to,
                    uint64_t count, int sign)
{
    op_balance_add_by(OP_BALANCE_KEY, bal, world, from, to, count, sign);
}

void op_balance_add_by(uint64_t key, struct op_balance *bal, unsigned world, unsigned from,
                       unsigned to, uint64_t count, int sign)
{
    uint64_t pair = (uint64_t)from * world + to + 1, n = sign < 0 ? -count : count;
    uint64_t h = hash_add(hash_add(key, pair), count);

    assert(from < world && to < world && (sign == 1 || sign == -1));
    if (!count)
        return;
    bal->hash += sign < 0 ? -h : h;
    bal->diff += n;
    bal->checksum += n * pair;
}

void op_balance_text(const struct op_balance *bal, unsigned world, char *buf, size_t len)
{
    bool less = (int64_t)bal->diff < 0;
    uint64_t n = less ? -bal->diff : bal->diff, checksum = less ? -bal->checksum : bal->checksum;
    uint64_t pair = n ? checksum / n : 0;

    if (pair >= 1 && pair <= (uint64_t)world * world && pair * n == checksum)
        snprintf(buf, len, "rank %u sends rank %u %llu elements %s than that expects",
                 (unsigned)((pair - 1) / world), (unsigned)((pair - 1) % world),
                 (unsigned long long)n, less ? "less" : "more");
    else
        snprintf(buf, len, "several ranks send others more or less than those expect");
}

void op_text(const struct op_desc *d, char *buf, size_t len)
{
    const struct coll_info *info;
    char root[24] = "";

    if (d->coll >= COLL_COUNT) {
        snprintf(buf, len, "an unknown operation");
        return;
    }
    if (d->declined) {
        snprintf(buf, len, "an operation that it cannot do");
        return;
    }
    info = &coll_table[d->coll];
    if (info->rooted)
        snprintf(root, sizeof root, " %s rank %u", info->send == EXTENT_ONE ? "to" : "from",
                 d->root);
    if (info->window == WINDOW_NONE)
        snprintf(buf, len, "%s", info->name);
    else if (info->counted && info->window == WINDOW_CELLS)
        snprintf(buf, len, "%s %s%s", info->name, dtype_name(d->dtype), root);
    else
        snprintf(buf, len, "%s %s%s%s of %s%llu element%s%s", info->name, dtype_name(d->dtype),
                 info->reduces ? " " : "", info->reduces ? redop_name(d->redop) : "",
                 info->counted ? "blocks of up to " : "", (unsigned long long)d->count,
                 d->count == 1 ? "" : "s", root);
}
