/* gpu_user.c - the users of commd-gpu, and what each has of the GPUs: gpu_share.c decides for one
 * GPU, and here an operation asks all on which it works. */
#include "transport/gpu/gpu.h"

#include "shm/util/wait.h"

struct guser *guser_get(struct gpu *g, uint32_t uid)
{
    struct guser *u;

    LIST_FOREACH(u, &g->users, link)
        if (u->uid == uid)
            return u;
    u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    u->weight = FAIR_WEIGHT;
    for (unsigned i = 0; i < g->ndevices; i++)
        gpu_share_init(&u->share[i], uid, u->weight);
    for (unsigned i = 1; i < GPU_USER_LINES; i++)
        if (g->line[i] < g->line[u->line])
            u->line = i;
    g->line[u->line]++;
    TAILQ_INIT(&u->active);
    TAILQ_INIT(&u->active_groups);
    LIST_INSERT_HEAD(&g->users, u, link);
    return u;
}

void guser_weigh(struct guser *u, uint32_t weight)
{
    u->weight = weight ? weight : FAIR_WEIGHT;
    for (unsigned i = 0; i < GPU_MAX_DEVICES; i++)
        fair_node_weigh(&u->share[i].node, u->weight);
}

void guser_put(struct gpu *g, struct guser *u)
{
    if (u->nsessions || u->ngroups || u->nnodes) /* nodes: of groups that are not left yet */
        return;
    for (unsigned i = 0; i < g->ndevices; i++)
        gpu_share_fini(&g->device[i].shared, &u->share[i]);
    g->line[u->line]--;
    LIST_REMOVE(u, link);
    free(u);
}

void guser_touch(struct gpu *g, struct guser *u)
{
    bool busy = u->nactive || u->nactive_groups;

    if (busy == u->busy)
        return;
    u->busy = busy;
    if (busy)
        TAILQ_INSERT_TAIL(&g->busy, u, busy_link);
    else
        TAILQ_REMOVE(&g->busy, u, busy_link);
}

void users_turn(struct gpu *g)
{
    for (unsigned i = 0; i < g->ndevices; i++)
        g->device[i].shared.turn++;
}

/* ---- shares ---------------------------------------------------------------------------------- */

static uint64_t unit_bytes(const struct gop *op, const struct gunit *unit)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < unit->nranks; i++)
        sum += op->of[unit->at[i]]->counts;
    return sum;
}

static struct gpu_share *unit_share(const struct gop *op, const struct gunit *unit)
{
    return &op->group->user->share[unit->dev->number];
}

static void user_wait(struct gop *op, unsigned unit, bool waits)
{
    const struct gunit *u = &op->group->here[unit];
    uint64_t bit = 1ull << unit;

    if (waits == !!(op->waits & bit))
        return;
    op->waits ^= bit;
    if (waits)
        gpu_share_wait(&u->dev->shared, unit_share(op, u));
    else
        gpu_share_unwait(&u->dev->shared, unit_share(op, u));
}

static void user_wait_no_more(struct gop *op)
{
    for (unsigned i = 0; op->waits && i < op->group->nhere; i++)
        user_wait(op, i, false);
}

void user_waits(struct gop *op, unsigned unit)
{
    user_wait(op, unit, true);
}

bool user_may(struct gop *op)
{
    const struct ggroup *gr = op->group;
    bool may = true;

    for (unsigned i = 0; i < gr->nhere; i++) {
        const struct gunit *u = &gr->here[i];
        bool full = gpu_share_full(&u->dev->shared, unit_share(op, u), unit_bytes(op, u));

        user_wait(op, i, full);
        may &= !full;
    }
    for (unsigned i = 0; may && i < gr->nhere; i++)
        may = gpu_share_may(&gr->here[i].dev->shared, unit_share(op, &gr->here[i]));
    return may;
}

bool user_beside(const struct gop *op)
{
    uint64_t now = now_ms();
    bool beside = false;

    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        beside |= gpu_share_beside(&u->dev->shared, unit_share(op, u), now);
    }
    return beside;
}

void user_charge(struct gop *op)
{
    uint64_t now = now_ms();

    user_wait_no_more(op);
    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_charge(&u->dev->shared, unit_share(op, u), unit_bytes(op, u), now);
    }
}

void user_count(struct gop *op)
{
    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_take(&u->dev->shared, unit_share(op, u), unit_bytes(op, u));
    }
    op->counted = true;
}

void user_uncount(struct gop *op)
{
    user_wait_no_more(op);
    for (unsigned i = 0; op->counted && i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_give(&u->dev->shared, unit_share(op, u), unit_bytes(op, u));
    }
    op->counted = false;
}
