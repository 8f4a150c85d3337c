/* gpu_user.c - the users of commd-gpu, and what each has of the GPUs: gpu_share.c decides for one
 * GPU, and here an operation asks all on which it works. */
#include "transport/gpu/gpu_op.h"

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
        for (unsigned k = 0; k < SHARES; k++)
            gpu_share_init(&u->share[i][k], uid, u->weight);
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
        for (unsigned k = 0; k < SHARES; k++)
            fair_node_weigh(&u->share[i][k].node, u->weight);
}

void guser_put(struct gpu *g, struct guser *u)
{
    if (u->nsessions || u->ngroups ||
        u->nnodes) /* nnodes: of groups whose wires are not left yet */
        return;
    for (unsigned i = 0; i < g->ndevices; i++)
        for (unsigned k = 0; k < SHARES; k++)
            gpu_share_fini(&g->device[i].shared[k], &u->share[i][k]);
    assert(!u->nactive && !u->nactive_groups && !u->busy);
    assert(!u->nmemories && !u->mapped && !u->njoins && g->line[u->line]);
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
        for (unsigned k = 0; k < SHARES; k++)
            g->device[i].shared[k].turn++;
}

/* ---- shares ---------------------------------------------------------------------------------- */

static uint64_t unit_bytes(const struct gop *op, const struct gunit *unit)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < unit->nranks; i++)
        sum += op->of[unit->at[i]]->counts;
    return sum;
}

/* The two kinds of operations run side by side on a GPU: a user that waits for NCCL, and so for
 * other GPUs and nodes, does not hold up a user that does not. */
static unsigned kind(const struct gop *op)
{
    return op->group->nunits == 1 ? SHARE_MOVES : SHARE_NCCL;
}

static struct gpu_shared *unit_shared(const struct gop *op, const struct gunit *unit)
{
    return &unit->dev->shared[kind(op)];
}

static struct gpu_share *unit_share(const struct gop *op, const struct gunit *unit)
{
    return &op->group->user->share[unit->dev->number][kind(op)];
}

static void user_wait(struct gop *op, unsigned unit, bool waits)
{
    const struct gunit *u = &op->group->here[unit];
    uint64_t bit = 1ull << unit;

    if (waits == !!(op->waits & bit))
        return;
    op->waits ^= bit;
    if (waits)
        gpu_share_wait(unit_shared(op, u), unit_share(op, u));
    else
        gpu_share_unwait(unit_shared(op, u), unit_share(op, u));
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
        bool full = gpu_share_full(unit_shared(op, u), unit_share(op, u), unit_bytes(op, u));

        user_wait(op, i, full);
        may &= !full;
    }
    for (unsigned i = 0; may && i < gr->nhere; i++)
        may = gpu_share_may(unit_shared(op, &gr->here[i]), unit_share(op, &gr->here[i]));
    return may;
}

bool user_beside(const struct gop *op)
{
    uint64_t now = now_ms();
    bool beside = false;

    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        beside |= gpu_share_beside(unit_shared(op, u), unit_share(op, u), now);
    }
    return beside;
}

void user_charge(struct gop *op)
{
    uint64_t now = now_ms();

    user_wait_no_more(op);
    assert(!op->waits && !op->counted);
    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_charge(unit_shared(op, u), unit_share(op, u), unit_bytes(op, u), now);
    }
}

void user_count(struct gop *op)
{
    assert(!op->counted);
    for (unsigned i = 0; i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_take(unit_shared(op, u), unit_share(op, u), unit_bytes(op, u));
    }
    op->counted = true;
}

void user_uncount(struct gop *op)
{
    user_wait_no_more(op);
    for (unsigned i = 0; op->counted && i < op->group->nhere; i++) {
        const struct gunit *u = &op->group->here[i];

        gpu_share_give(unit_shared(op, u), unit_share(op, u), unit_bytes(op, u));
    }
    op->counted = false;
}
