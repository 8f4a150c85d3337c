/* api_group.c - the public calls that make groups, end them and let them go on. */
#include "client/lib/arena/arena.h"
#include "client/lib/async/async.h"
#include "client/lib/coll/early.h"
#include "client/lib/device/device.h"
#include "client/lib/p2p/p2p_api.h"

#include <stdio.h>

enum { ELSEWHERE_MS = 1000 }; /* a commd that was started anew never tells of some groups */

/* The handle of a group that is there; or of none, to be filled. */
static struct commd_group *handle_alloc(struct commd_context *ctx, const char *op)
{
    struct commd_group *h = calloc(1, sizeof *h);

    if (!h)
        error_set(error_mine(), COMMD_E_NOMEM, op, "no memory for a group");
    else
        h->ctx = ctx;
    return h;
}

int group_enter(struct commd_context *ctx, const char *op, const struct msg_client_join *join,
                struct parent *parent, int64_t timeout_ms, struct commd_group **ret_group)
{
    struct commd_group *h = handle_alloc(ctx, op);
    int r;

    if (!h)
        return COMMD_E_NOMEM;
    driver_look();
    r = group_join(ctx, join, NULL, parent, timeout_ms ? timeout_ms : ctx->timeout_ms, &h->now);
    if (r) {
        free(h);
        return r;
    }
    pthread_mutex_lock(&ctx->lock);
    h->next = ctx->groups;
    ctx->groups = h;
    pthread_mutex_unlock(&ctx->lock);
    *ret_group = h;
    return 0;
}

PUBLIC int commd_group_join(struct commd_context *ctx, const char *name, int rank, int size,
                            int64_t timeout_ms, struct commd_group **ret_group)
{
    struct msg_client_join join = {.rank = (uint32_t)rank, .size = (uint32_t)size};
    struct commd_error *e = error_mine();
    int r;

    if (!ctx || !ret_group)
        return error_set(e, COMMD_E_INVALID, "join", "context and ret_group must not be NULL");
    r = usable(ctx, "join");
    if (!r)
        r = job_name_of(name, join.name);
    if (r)
        return r;
    if (size < 1 || size > PLAN_MAX_WORLD || rank < 0 || rank >= size)
        return error_set(e, COMMD_E_INVALID, "join",
                         "group \"%s\": rank %d of size %d; allowed: size 1 to %d and rank 0 to "
                         "size - 1",
                         join.name, rank, size, PLAN_MAX_WORLD);
    return group_enter(ctx, "join", &join, NULL, timeout_ms, ret_group);
}

void group_free(struct membership *g)
{
    if (!g)
        return;
    assert(!g->running && !g->head && !g->held);
    device_group_free(g);
    p2p_free(g);
    peer_arenas_free(g);
    group_close(g);
}

static void membership_leave(struct membership *g)
{
    async_drop_group(g);
    early_wait(g);
    control_leave(g->ctx, g->board.group, atomic_load(&g->board.members[g->local].ops));
    group_free(g);
}

PUBLIC void commd_group_leave(struct commd_group *h)
{
    struct commd_context *ctx;

    if (!h)
        return;
    ctx = h->ctx;
    if (ctx->generation != fork_generation())
        return;
    device_group_flush(h->now);
    pthread_mutex_lock(&ctx->lock);
    list_remove(ctx->groups, h, next);
    pthread_mutex_unlock(&ctx->lock);
    membership_leave(h->now);
    free(h);
}

PUBLIC int commd_group_abort(struct commd_group *h, const char *reason)
{
    int r = usable(h->ctx, "abort");

    if (r)
        return r;
    if (!group_revoke(h, reason && *reason ? reason : "no reason given"))
        return error_set(error_mine(), COMMD_E_NODE_LOST, "abort", "commd on node %s is gone",
                         h->ctx->node);
    return 0;
}

/* ---- recovery -------------------------------------------------------------------------------- */

static int recover_options(const struct commd_recover_options *given, const char *op,
                           struct commd_recover_options *ret)
{
    struct commd_error *e = error_mine();

    memset(ret, 0, sizeof *ret);
    if (given && given->size_of < sizeof(size_t))
        return error_set(e, COMMD_E_INVALID, op,
                         "options.size_of must be sizeof(struct commd_recover_options)");
    if (given)
        memcpy(ret, given, MIN(given->size_of, sizeof *ret));
    if (ret->policy != COMMD_RECOVER_SHRINK && ret->policy != COMMD_RECOVER_WAIT)
        return error_set(e, COMMD_E_INVALID, op,
                         "unknown policy %d; allowed: %d (shrink) and %d (wait)", ret->policy,
                         COMMD_RECOVER_SHRINK, COMMD_RECOVER_WAIT);
    if (ret->size < 0 || ret->size > PLAN_MAX_WORLD || ret->min_size < 0 ||
        ret->min_size > PLAN_MAX_WORLD)
        return error_set(e, COMMD_E_INVALID, op, "size %d, min_size %d; allowed: 0 to %d",
                         ret->size, ret->min_size, PLAN_MAX_WORLD);
    return 0;
}

static int enter_next(struct commd_group *h, struct msg_client_join *join, int64_t timeout_ms)
{
    struct membership *old = h->now, *next;
    int r;

    if (!*join->name)
        memcpy(join->name, old->name, sizeof join->name);
    join->follows = old->board.group;
    driver_look();
    r = group_join(h->ctx, join, old, NULL, timeout_ms, &next);
    if (r)
        return r;
    atomic_store(&next->timeout_ms, atomic_load(&old->timeout_ms));
    pthread_mutex_lock(&h->ctx->lock); /* group_revoke() */
    h->now = next;
    pthread_mutex_unlock(&h->ctx->lock);
    elsewhere_known(h, old, join->recovery == MSG_RECOVERY_WAIT, ELSEWHERE_MS);
    membership_leave(old);
    return 0;
}

PUBLIC int commd_group_recover(struct commd_group *h, const struct commd_recover_options *options)
{
    struct commd_recover_options o;
    struct msg_client_join join = {0};
    int r;

    if (!h)
        return error_set(error_mine(), COMMD_E_INVALID, "recover", "group must not be NULL");
    r = usable(h->ctx, "recover");
    if (!r)
        r = recover_options(options, "recover", &o);
    if (!r && o.name)
        r = job_name_of(o.name, join.name);
    if (r)
        return r;
    join.least = (uint32_t)MAX(o.min_size, 1);
    if (o.policy == COMMD_RECOVER_WAIT) {
        join.recovery = MSG_RECOVERY_WAIT;
        join.size = (uint32_t)o.size;
        join.wait_ms = o.wait_ms > 0 ? (uint64_t)o.wait_ms : 0;
    } else {
        join.recovery = MSG_RECOVERY_SHRINK;
        join.size = 1;
    }
    if (atomic_exchange(&h->recovering, true))
        return error_set(error_mine(), COMMD_E_INVALID, "recover",
                         "another thread of this process is recovering this group");
    r = enter_next(h, &join, o.timeout_ms ? o.timeout_ms : h->ctx->timeout_ms);
    atomic_store(&h->recovering, false);
    return r;
}

PUBLIC int commd_group_rejoin(struct commd_context *ctx, const char *name, int rank,
                              const struct commd_recover_options *options,
                              struct commd_group **ret_group)
{
    struct msg_client_join join = {.recovery = MSG_RECOVERY_REJOIN};
    struct commd_recover_options o;
    int r;

    if (!ctx || !ret_group)
        return error_set(error_mine(), COMMD_E_INVALID, "rejoin",
                         "context and ret_group must not be NULL");
    r = usable(ctx, "rejoin");
    if (!r)
        r = recover_options(options, "rejoin", &o);
    if (!r)
        r = job_name_of(name, join.name);
    if (r)
        return r;
    if (rank < -1 || rank >= (o.size ? o.size : PLAN_MAX_WORLD))
        return error_set(error_mine(), COMMD_E_INVALID, "rejoin",
                         "group \"%s\": seat %d; allowed: 0 to %d, and -1 for any", join.name, rank,
                         (o.size ? o.size : PLAN_MAX_WORLD) - 1);
    join.rank = rank < 0 ? MSG_ANY_SEAT : (uint32_t)rank;
    join.size = (uint32_t)o.size;
    return group_enter(ctx, "rejoin", &join, NULL, o.timeout_ms, ret_group);
}

PUBLIC int commd_group_rank_before(const struct commd_group *h, int rank)
{
    const struct membership *g = h->now;

    return rank >= 0 && rank < (int)g->board.world ? (int)g->members[rank].was - 1 : -1;
}

PUBLIC int commd_group_check(struct commd_group *h)
{
    int r = usable(h->ctx, "check");

    return r ? r : run_foretold(h->now);
}

/* ---- what it is ------------------------------------------------------------------------------ */

PUBLIC int commd_group_rank(const struct commd_group *h)
{
    return (int)h->now->rank;
}

PUBLIC int commd_group_size(const struct commd_group *h)
{
    return (int)h->now->board.world;
}

PUBLIC int commd_group_nodes(const struct commd_group *h)
{
    return (int)h->now->board.nnodes;
}

PUBLIC uint64_t commd_group_epoch(const struct commd_group *h)
{
    return h->now->board.epoch;
}

PUBLIC uint64_t commd_group_seq(const struct commd_group *h)
{
    return atomic_load(&h->now->seq);
}

PUBLIC void commd_group_set_timeout(struct commd_group *h, int64_t timeout_ms)
{
    atomic_store(&h->now->timeout_ms, timeout_ms < 0 ? -1 : timeout_ms);
}
