/* early.c - rooted operations over several nodes, in which who needs nothing of another node does
 * not wait for one. On one node: posts.c.
 *
 * The root of a broadcast or scatter, and all but the root of a reduce or gather, get nothing from
 * others. They are done when their part lies on the board, where the engine finds it. In a small
 * broadcast the ranks on the root's node take from there what it has, if they mean the same as the
 * root. Two things are not known then:
 *
 *   - Do all ranks mean the same? Where data follow the consistency check, a member waits for that
 *     (`ops_agreed`). Where they go with it, nobody waits: that is found later.
 *   - Have the others got it? The engine may still have to read it from the board.
 *
 * One operation of a member may be in that state. The next one may be announced meanwhile, and ends
 * when the state of this one is known. So no rank is further ahead than an operation, and nobody
 * waits for a rank that thinks that it has done its part.
 *
 * If ranks do not mean the same, the operation fails on all who met in it, and all go on BOARD_SKIP
 * steps behind its first. Who ended early learns of it in its next operation. It withdraws what it
 * has announced of that, which nobody will look at, and declines the operation at the step at which
 * the others are. So that one fails on all ranks, here with the descriptions that differ: who has
 * met in the first does not end early in it.
 *
 * Who wakes me: the engine rings the bell when it publishes. What if this rank dies now: in `ops`,
 * which tells the others how far it came, an operation that ended early counts when it is out
 * (`early` is for people). So nobody waits for what died with its node. What if it leaves now: it
 * waits for it, early_wait(). What if the engine is replaced now: what it had not begun lies on the
 * board for the next one, as ever. */
#include "client/lib/coll/early.h"

#include "client/lib/coll/coll_steps.h"

/* Has this member no more part in @r than to put, or to reduce, what it has? */
static bool only_sends(const struct run *r)
{
    return is_root(r) != coll_to_root(r->plan.coll);
}

/* Does what this member waits for come from its own node, in its announcement? */
static bool takes_here(const struct run *r, unsigned *ret_root)
{
    const struct membership *g = r->group;
    unsigned first = g->node_start[g->board.me], pos = g->pos_of[r->plan.root];

    if (r->plan.coll != COLL_BROADCAST || r->plan.path != PATH_SMALL || is_root(r) || pos < first ||
        pos >= first + g->board.nlocal)
        return false;
    *ret_root = pos - first;
    return true;
}

/* Do all ranks mean the same, or is that found later? */
static bool may_go_on(const struct run *r)
{
    const struct board *b = board_of(r);
    unsigned root;

    if (r->plan.path != PATH_SMALL)
        return only_sends(r) && atomic_load_explicit(&b->hdr->ops_agreed, memory_order_acquire) ==
                                    (uint32_t)r->desc.seq + 1;
    if (takes_here(r, &root))
        return board_arrived(b, root, r->base) &&
               board_slot(b, root, r->base)->fingerprint == r->fingerprint;
    return only_sends(r) && r->agreed != AGREED_NOT;
}

/* Have ranks not meant the same in the operation before? Then another one may have gone on in that,
 * and fails this one: all wait for each other in it, or they would take turns at failing for ever.
 */
static bool has_just_failed(const struct run *r)
{
    uint64_t refused = r->group->refused_until;

    return refused && refused + 1 == r->desc.seq;
}

bool early_ends(const struct run *r)
{
    uint32_t done = r->plan.reduces ? r->red : r->put;

    invariant(!one_node(r));
    return coll_table[r->plan.coll].rooted && r->plan.path != PATH_OPEN && done == r->plan.steps &&
           !r->group->early.desc.seq && !has_just_failed(r) && may_go_on(r);
}

void early_take(struct run *r)
{
    unsigned root;

    if (takes_here(r, &root))
        copy(r->recv, payload_of(r, root, 0), step_bytes(r, 0));
    r->early = r->untold = true;
    r->agreed = AGREED_ALL;
    r->got = r->plan.steps;
    atomic_store_explicit(&run_member(r)->consumed, r->base + r->got, memory_order_release);
}

void early_end(struct run *r)
{
    struct early *e = &r->group->early;

    assert(!e->desc.seq && r->early);
    e->desc = r->desc;
    e->base = r->base;
    e->end = r->base + r->plan.steps;
    atomic_store_explicit(&run_member(r)->early, (uint32_t)e->desc.seq, memory_order_release);
}

static void is_out(struct membership *g)
{
    atomic_store_explicit(&g->board.members[g->local].ops, (uint32_t)g->early.desc.seq,
                          memory_order_release);
    g->early.desc.seq = 0;
}

/* Has the engine done with it, one way or another? */
static bool engine_is_done(const struct membership *g)
{
    return seq_reached(atomic_load_explicit(&g->board.hdr->published, memory_order_acquire),
                       g->early.end);
}

bool early_refused(struct run *r, uint32_t *ret_base)
{
    struct membership *g = r->group;
    const struct board_hdr *h = g->board.hdr;
    bool refused;

    assert(g->early.desc.seq && g->early.desc.seq < r->desc.seq);
    if (!engine_is_done(g))
        return false;
    refused = atomic_load_explicit(&h->refused, memory_order_acquire) == g->early.desc.seq;
    if (refused) {
        g->refusal = h->mismatch; /* copied: a member may write there */
        *ret_base = g->early.base + BOARD_SKIP;
    }
    is_out(g);
    return refused;
}

/* For people it has not ended any more: this member is in it, and they may ask who it waits for. */
static void sleep_in(struct run *r, uint32_t ticket)
{
    struct board_member *me = run_member(r);

    atomic_store_explicit(&me->early, atomic_load_explicit(&me->ops, memory_order_relaxed),
                          memory_order_release);
    run_note_sleep(r);
    bell_wait(&r->group->board.hdr->bell, ticket, sleep_limit_ms(r->deadline_ms));
}

void early_wait(struct membership *g)
{
    struct run r = {.group = g,
                    .desc = g->early.desc,
                    .plan.path = PATH_STEPS,
                    .recorded = RECORDED_SHOWN,
                    .slept_at = UINT32_MAX,
                    .warn_ms = g->ctx->warn_ms};
    struct board_hdr *h = g->board.hdr;
    bool over = !g->early.desc.seq;

    r.limit_ms = atomic_load_explicit(&g->timeout_ms, memory_order_relaxed);
    r.deadline_ms = deadline_in(r.limit_ms);
    while (!over) {
        uint32_t ticket = bell_prepare(&h->bell, &h->sleepers);

        over = engine_is_done(g);
        if (over)
            is_out(g);
        else if (run_hopeless_slow(&r) || run_interrupted(&r))
            over = true;
        else
            sleep_in(&r, ticket);
        bell_cancel(&h->sleepers);
    }
    absent_free(&r.question);
}
