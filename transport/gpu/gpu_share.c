/* gpu_share.c - whose operation may go to a GPU: start-time fair queueing
 * (transport/schedule/fair.h) among users, by weight. Pure.
 *
 * Model. What is on a GPU cannot be taken back, and what runs there at a time the hardware shares
 * as it likes. So no user has much there: SHARE_DEPTH operations and SHARE_BYTES, less beside
 * others. A user that has so much and wants more is full: it waits for its own operations alone,
 * and only full users have a claim. Another user's operation goes unless a full user has had less,
 * by bytes and weight. So where all want more than they get, they get it by weight; and a user that
 * has little there is held up by others' claims only, each of which ends with an operation that
 * runs.
 *
 * Nothing is held back for a user that is not full: whenever an operation is held back, some user
 * has as much on the GPU as it may. Nobody waits for ever: while a user waits its own time stands
 * still, and the times of the full users go on.
 *
 * An operation on several GPUs goes when all of them let it. On each GPU only a user that is full
 * *there* has a claim, so each wait is for something that runs: no circle of users can wait for
 * each other.
 *
 * A user that was full keeps its claim for two turns: between the end of one of its operations and
 * its next one others would slip in. */
#include "transport/gpu/gpu_share.h"

#include <assert.h>

enum { CLAIM_TURNS = 2 };
#define COUNT_MOST (1ull << 40) /* far above any GPU's memory; times of fair.c hold that */

static struct gpu_share *claim_of(struct fair_node *n)
{
    return container_of(n, struct gpu_share, node);
}

void gpu_shared_init(struct gpu_shared *g)
{
    *g = (struct gpu_shared){0};
    fair_init(&g->queue, SHARE_BYTES_BESIDE);
    fair_most(&g->queue, COUNT_MOST);
}

void gpu_share_init(struct gpu_share *s, uint32_t uid, uint32_t weight)
{
    *s = (struct gpu_share){.uid = uid};
    fair_node_init(&s->node, weight);
}

void gpu_share_fini(struct gpu_shared *g, struct gpu_share *s)
{
    fair_leave(&g->queue, &s->node);
}

/* Claims that have ended go. */
static void sweep_claims(struct gpu_shared *g)
{
    struct fair_node *n;

    while ((n = fair_first(&g->queue)) && !claim_of(n)->waits &&
           g->turn - claim_of(n)->waited > CLAIM_TURNS)
        fair_leave(&g->queue, n);
}

bool gpu_share_full(const struct gpu_shared *g, const struct gpu_share *s, uint64_t bytes)
{
    const struct fair_node *n = fair_first(&g->queue);
    bool beside = g->ops > s->ops || (n && (n != &s->node || TAILQ_NEXT(n, link)));

    return s->ops >= (beside ? SHARE_DEPTH_BESIDE : SHARE_DEPTH) ||
           (s->ops && s->bytes + bytes > (beside ? SHARE_BYTES_BESIDE : SHARE_BYTES));
}

void gpu_share_wait(struct gpu_shared *g, struct gpu_share *s)
{
    s->waits++;
    s->waited = g->turn;
    fair_enter(&g->queue, &s->node);
}

void gpu_share_unwait(struct gpu_shared *g, struct gpu_share *s)
{
    assert(s->waits);
    s->waits--;
    s->waited = g->turn;
}

bool gpu_share_may(struct gpu_shared *g, const struct gpu_share *s)
{
    sweep_claims(g);
    return fair_may(&g->queue, &s->node);
}

void gpu_share_charge(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes, uint64_t now_ms)
{
    fair_charge(&g->queue, &s->node, MIN(MAX(bytes, (uint64_t)SHARE_LEAST), COUNT_MOST));
    if (s->node.listed)
        s->waited = g->turn;
    if (g->last_uid != s->uid)
        g->changed_ms = now_ms;
    g->last_uid = s->uid;
}

void gpu_share_take(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes)
{
    g->ops++;
    s->ops++;
    s->bytes += bytes;
}

void gpu_share_give(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes)
{
    assert(s->ops && s->ops <= g->ops && s->bytes >= bytes);
    g->ops--;
    s->ops--;
    s->bytes -= bytes;
}

bool gpu_share_beside(const struct gpu_shared *g, const struct gpu_share *s, uint64_t now_ms)
{
    return g->last_uid != s->uid || (g->changed_ms && now_ms - g->changed_ms < SHARE_BESIDE_MS);
}
