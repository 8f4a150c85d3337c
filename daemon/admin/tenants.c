/* tenants.c - a row for each user, a payer, and each thing that has a limit (doc/security.md): what
 * the user has, the most that the user may have while the others keep what they have, what all
 * users have, and the limit. The network has no limit. There, and on GPUs that several users want,
 * a weight says how much each of them gets.
 *
 * First the users are collected: those with clients or groups, and those with memory only. Then
 * rows are made, user by user, in each turn a part. A user that comes or goes meanwhile may be in
 * the table or not. */
#include "daemon/admin/answers.h"
#include "daemon/core/share.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/util/weight.h"

static int by_uid(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* All users, each once, in order. */
static int collect_users(struct answer *a)
{
    const struct daemon *d = a->d;
    size_t boards = boards_users(&d->boards, NULL, 0), arenas = arenas_users(&d->arenas, NULL, 0);
    size_t room = core_users(d->core, NULL, 0) + boards + arenas, n, kept = 0;

    a->uids = calloc(room + 1, sizeof(*a->uids));
    if (!a->uids)
        return -ENOMEM;
    n = core_users(d->core, a->uids, room);
    n += boards_users(&d->boards, a->uids + n, room - n);
    n += arenas_users(&d->arenas, a->uids + n, room - n);
    qsort(a->uids, n, sizeof(*a->uids), by_uid);
    for (size_t i = 0; i < n; i++)
        if (!kept || a->uids[kept - 1] != a->uids[i])
            a->uids[kept++] = a->uids[i];
    a->nuids = kept;
    return 0;
}

/* clang-format off */
#define TENANTS_COLUMNS(C)                                                                         \
    C(uid, "UID", number, uid)                                                                     \
    C(resource, "RESOURCE", text, what)                                                            \
    C(used, "USED", number, share.used)                                                            \
    C(may, "MAY HAVE", number_if, !weight, share.may)                                              \
    C(all, "ALL USE", number, share.all)                                                           \
    C(limit, "LIMIT", number_if, !weight, share.limit)                                             \
    C(weight, "WEIGHT", number_if, weight, weight)
/* clang-format on */

/* @weight: not 0 for the network, which has no limit. */
static void tenant_row(struct table *t, uint32_t uid, const char *what, struct core_share share,
                       uint32_t weight)
{
    TABLE_ADD(TENANTS_COLUMNS)
}

static void add_share(struct table *t, uint32_t uid, const char *what, struct core_share share)
{
    tenant_row(t, uid, what, share, 0);
}

static void add_network(struct answer *a, uint32_t uid)
{
    uint32_t weight = conf_weight(a->d->conf, uid);
    struct core_share share = {.used = core_sent_rate(a->d->core, &uid), .all = a->sent_rate};

    tenant_row(&a->table, uid, "network_bytes_s", share, weight ? weight : USER_WEIGHT);
}

static void add_memory(struct table *t, const struct daemon *d, uint32_t uid)
{
    const struct arenas *arenas = &d->arenas;
    struct core_share share;
    uint64_t registered, all;
    unsigned count;
    size_t bytes;

    boards_held(&d->boards, uid, &bytes, &count);
    share = (struct core_share){bytes, 0, d->boards.bytes, d->conf->max_board_bytes};
    share.may = share_of(share.limit, conf_board_bytes_per_user(d->conf), share.all - bytes);
    add_share(t, uid, "board_bytes", share);
    arenas_held(arenas, uid, &registered, &count, &all);
    share = (struct core_share){count, 0, arenas->count, arenas->max};
    share.may = share_of(share.limit, arenas->max_per_user, share.all - count);
    add_share(t, uid, "arenas", share);
    add_share(t, uid, "registered_bytes",
              (struct core_share){registered, arenas->max_bytes, all, arenas->max_bytes});
}

static void add_user(struct answer *a, uint32_t uid)
{
    static const char *const words[CORE_SHARES] = {
        [CORE_SHARE_CLIENTS] = "clients", [CORE_SHARE_GROUPS] = "groups",
        [CORE_SHARE_FORMING] = "forming", [CORE_SHARE_RANKS] = "ranks",
        [CORE_SHARE_MEMBERS] = "members",
    };
    struct core_share shares[CORE_SHARES], connections;
    const struct daemon *d = a->d;
    struct table *t = &a->table;

    listener_held(d->listener, uid, &connections.used, &connections.may, &connections.all,
                  &connections.limit);
    add_share(t, uid, "connections", connections);
    core_user_shares(d->core, uid, shares);
    for (unsigned i = 0; i < CORE_SHARES; i++)
        add_share(t, uid, words[i], shares[i]);
    add_memory(t, d, uid);
    add_network(a, uid);
}

bool tenants_fill(struct answer *a, const uint32_t *uid)
{
    if (!a->table.t.ncolumns) {
        table_begin(&a->table, "tenants", TENANTS_COLUMNS);
        a->sent_rate = core_sent_rate(a->d->core, NULL);
        if (!uid && collect_users(a))
            a->table.error = -ENOMEM;
    }
    if (a->table.error)
        return true;
    if (uid) {
        add_user(a, payer_of(a->d->payers, *uid));
        return true;
    }
    while (a->at < a->nuids && !a->table.error) {
        add_user(a, a->uids[a->at++]);
        if (clock_us() >= a->until_us)
            return false;
    }
    return true;
}

void tenants_fini(struct answer *a)
{
    free(a->uids);
    a->uids = NULL;
}
