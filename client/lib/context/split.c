/* split.c - new groups out of one, the parent.
 *
 * By a split every rank learns what all ranks have chosen by one all_gather over the parent, and
 * computes its new rank. The ranks of one colour join a group, under a name that all of them derive
 * alike. For a subgroup its ranks know all of this, and the others do not take part. */
#include "client/lib/context/group.h"

#include <stdio.h>

struct choice {
    int32_t colour, key;
};

/* My rank among those of my colour; *ret_size: how many they are. */
static unsigned new_rank(const struct choice *all, unsigned n, unsigned me, unsigned *ret_size)
{
    unsigned before = 0, size = 0;

    for (unsigned k = 0; k < n; k++) {
        if (all[k].colour != all[me].colour)
            continue;
        size++;
        before += all[k].key < all[me].key || (all[k].key == all[me].key && k < me);
    }
    *ret_size = size;
    return before;
}

/* Readable, and unique by the parent's number, the count of its splits, and the colour. The
 * parent's name has the job in it. */
static void new_name(struct membership *parent, unsigned split, int colour, char *buf, size_t len)
{
    size_t keep = strnlen(parent->name, 128);

    while (keep && ((uint8_t)parent->name[keep] & 0xc0) == 0x80) /* no half characters */
        keep--;
    snprintf(buf, len, "%.*s/split-%llx-%u-%d", (int)keep, parent->name,
             (unsigned long long)parent->board.group, split, colour);
}

PUBLIC int commd_group_split(struct commd_group *group, int colour, int key, int64_t timeout_ms,
                             struct commd_group **ret_group)
{
    struct membership *parent = group_now(group);
    struct choice mine = {colour < 0 ? -1 : colour, key};
    struct choice *all;
    unsigned split, rank, size = 0;
    struct msg_client_join join = {0};
    struct parent from = {.group = parent};
    struct commd_op op;
    int r;

    if (!parent || !ret_group)
        return error_set(error_mine(), COMMD_E_INVALID, "split",
                         "parent and ret_group must not be NULL");
    *ret_group = NULL;
    all = malloc(parent->board.world * sizeof *all);
    if (!all)
        return error_set(error_mine(), COMMD_E_NOMEM, "split", "no memory for %u ranks",
                         parent->board.world);
    split = atomic_fetch_add(&parent->splits, 1);
    op = (struct commd_op){.size = sizeof op,
                           .coll = COMMD_ALL_GATHER,
                           .dtype = COMMD_I32,
                           .send = &mine,
                           .recv = all,
                           .count = 2,
                           .timeout_ms = timeout_ms};
    r = commd_run(group, &op);
    rank = r ? 0 : new_rank(all, parent->board.world, parent->rank, &size);
    free(all);
    if (r || mine.colour < 0)
        return r;
    new_name(parent, split, mine.colour, join.name, sizeof join.name);
    join.rank = rank;
    join.size = size;
    r = group_enter(parent->ctx, "split", &join, &from,
                    timeout_ms ? timeout_ms : atomic_load(&parent->timeout_ms), ret_group);
    if (r != COMMD_E_ABORTED)
        return r;
    r = commd_group_check(group); /* what it is broken by */
    snprintf(error_mine()->op, sizeof error_mine()->op, "split");
    return r ? r : COMMD_E_ABORTED;
}

PUBLIC int commd_group_subgroup(struct commd_group *group, const char *name, const int *ranks,
                                int size, int64_t timeout_ms, struct commd_group **ret_group)
{
    struct membership *g = group_now(group);
    struct parent from = {.group = g, .ranks = ranks, .count = (unsigned)size};
    struct msg_client_join join = {.rank = UINT32_MAX, .size = (uint32_t)size};
    uint64_t given[MSG_MAX_RANKS / 64] = {0}, bit;
    struct commd_error *e = error_mine(), revoked;
    int r;

    if (!g || !ret_group || !ranks)
        return error_set(e, COMMD_E_INVALID, "subgroup",
                         "parent, ranks and ret_group must not be NULL");
    r = usable(g->ctx, "subgroup");
    if (!r)
        r = job_name_of(name, join.name);
    if (r)
        return r;
    if (size < 1 || size > (int)g->board.world)
        return error_set(e, COMMD_E_INVALID, "subgroup", "group \"%s\": %d of %u ranks", join.name,
                         size, g->board.world);
    for (int i = 0; i < size; i++) {
        if (ranks[i] < 0 || ranks[i] >= (int)g->board.world)
            return error_set(e, COMMD_E_INVALID, "subgroup",
                             "group \"%s\": rank %d; group \"%s\" has ranks 0 to %u", join.name,
                             ranks[i], g->name, g->board.world - 1);
        bit = UINT64_C(1) << ranks[i] % 64;
        if (given[ranks[i] / 64] & bit)
            return error_set(e, COMMD_E_INVALID, "subgroup",
                             "group \"%s\": rank %d of group \"%s\" is given twice", join.name,
                             ranks[i], g->name);
        given[ranks[i] / 64] |= bit;
        if (ranks[i] == (int)g->rank)
            join.rank = (uint32_t)i;
    }
    if (join.rank == UINT32_MAX)
        return error_set(e, COMMD_E_INVALID, "subgroup",
                         "group \"%s\": this rank, %u, is not one of its ranks", join.name,
                         g->rank);
    from.broken = group_has_failed(g, e);
    r = group_enter(g->ctx, "subgroup", &join, &from,
                    timeout_ms ? timeout_ms : atomic_load(&g->timeout_ms), ret_group);
    if (!r)
        return 0;
    if (from.revoked) {
        revoked = *e;
        if (commd_group_check(group) != COMMD_E_ABORTED) /* else by whom, and why */
            *e = revoked;
    } else if (!from.named) { /* commd counts in the new group */
        e->rank = e->rank >= 0 && e->rank < size ? ranks[e->rank] : -1;
    }
    snprintf(e->op, sizeof e->op, "subgroup");
    return r;
}
