/* gpu_group.c - from what members announce to an operation.
 *
 * Each member has a queue of announced operations. When all members of this node have announced
 * one, the first ones of their queues are operation `next` of the group: they are taken off,
 * compared, and become a gop. States of a gop: INPUTS  the ready words of its members are polled
 *   ORDER   it needs other GPUs: it waits for its turn among all that do (gpu_comm.c)
 *   PARTS   likewise, and parts of it are on the streams already
 *   FLYING  all of it is on the streams, and the group goes on with the next operation
 * An operation that a member says it cannot take part in fails for all members, whatever they have
 * announced in its place. What fails before PARTS is told by the host: result, then the done word
 * of each member. If NCCL fails in FLYING, the results are changed, and the streams store the done
 * words as ever, once the communicator is aborted (gpu_nccl.c). If the device fails this process
 * ends.
 *
 * A member that dies: gpu_attach.c breaks the group. What is FLYING goes on, in memory that stays
 * mapped until it has landed. */
#include "transport/gpu/gpu_op.h"

#include <stdio.h>

/* ---- operations ------------------------------------------------------------------------------ */

static void op_free(struct gop *op)
{
    assert(!op->streams && op->group->op != op);
    comm_take(op, NULL);
    user_uncount(op);
    for (unsigned i = 0; i < op->nof; i++)
        announce_free(op->of[i]);
    free(op);
}

static void op_tell(struct gop *op, int code, int rank, uint32_t pid, const char *text)
{
    assert(code && op->state <= OP_ORDER); /* later the streams store the done words */
    for (unsigned i = 0; i < op->nof; i++)
        slot_fail(op->of[i]->session, op->of[i]->n, code, rank, pid, text);
}

void op_retell(struct gop *op, int code, const char *text)
{
    for (unsigned i = 0; !op->failed && i < op->nof; i++)
        slot_retell(op->of[i]->session, op->of[i]->n, code, text);
    op->failed = true;
}

void op_landed(struct gflight *f)
{
    struct gop *op = f->op;
    struct ggroup *gr = op->group;

    assert(f->up && op->streams && op->state >= OP_PARTS);
    f->up = false;
    op->streams--;
    if (op->state != OP_FLYING)
        comm_part_landed(op);
    if (op->state != OP_FLYING || op->streams)
        return;
    for (unsigned i = 0; i < op->nof; i++)
        slot_finish(op->of[i]->session, op->of[i]->n);
    comm_landed(op);
    assert(gr->flying);
    gr->flying--;
    op_free(op);
}

/* One allocation for all that an operation needs. NULL: no memory. */
static struct gop *op_new(struct ggroup *gr)
{
    size_t of = sizeof(struct gop) + gr->nlocal * sizeof(struct gannounce *);
    size_t ranks = of + gr->nhere * GPU_PARTS * sizeof(struct gflight);
    size_t plan = ranks + gr->nlocal * sizeof(struct gpu_rank);
    struct gop *op = calloc(1, plan + gr->nhere * sizeof(struct gpu_plan));

    if (!op)
        return NULL;
    op->group = gr;
    op->seq = gr->next;
    op->flight = (void *)((char *)op + of);
    op->ranks = (void *)((char *)op + ranks);
    op->plan = (void *)((char *)op + plan);
    return op;
}

/* ---- do all mean the same? ------------------------------------------------------------------- */

bool op_same(const struct op_desc *a, const struct op_desc *b)
{
    return a->count == b->count && a->root == b->root && a->coll == b->coll &&
           a->dtype == b->dtype && a->redop == b->redop && a->digest == b->digest;
}

void op_mismatch_text(uint32_t rank_a, const struct op_desc *a, uint32_t rank_b,
                      const struct op_desc *b, char text[SESSION_TEXT])
{
    char ta[80], tb[80];

    op_text(a, ta, sizeof ta);
    op_text(b, tb, sizeof tb);
    snprintf(text, SESSION_TEXT,
             "rank %u called %s, but rank %u called %s; the group can still be used", rank_a, ta,
             rank_b, tb);
}

void op_counts_text(const struct ggroup *gr, const struct op_balance *bal, char text[SESSION_TEXT])
{
    char who[120];

    op_balance_text(bal, gr->world, who, sizeof who);
    snprintf(text, SESSION_TEXT,
             "the counts that ranks gave do not fit: %s; the group can still be used", who);
}

/* How many elements the rank says that it sends to @other, or gets from @other, if each pair of
 * ranks has a count of its own; else 0. */
static uint64_t says(const struct gannounce *a, bool sends, uint32_t other)
{
    const uint64_t *counts = sends ? a->rank.send_counts : a->rank.recv_counts;
    bool many =
        sends == (a->desc.coll == COLL_SCATTER_V); /* at the root, which alone has several */

    switch (a->desc.coll) {
    case COLL_GATHER_V:
    case COLL_SCATTER_V:
        if (many)
            return a->rank.rank == a->desc.root ? counts[other] : 0;
        return other == a->desc.root ? counts[0] : 0;
    case COLL_ALL_TO_ALL_V:
        return counts[other];
    default:
        return 0;
    }
}

void op_balance_of(const struct gop *op, uint64_t key, struct op_balance *bal)
{
    uint32_t world = op->group->world;

    *bal = (struct op_balance){0};
    for (unsigned i = 0; i < op->nof; i++) {
        const struct gannounce *a = op->of[i];
        uint32_t me = a->rank.rank;

        for (uint32_t k = 0; k < world; k++) {
            op_balance_add_by(key, bal, world, me, k, says(a, true, k), 1);
            op_balance_add_by(key, bal, world, k, me, says(a, false, k), -1);
        }
    }
}

/* The counts that all ranks must give alike; NULL: the operation has others, or none. */
static const uint64_t *same_counts(const struct gannounce *a)
{
    return a->desc.coll == COLL_ALL_GATHER_V       ? a->rank.recv_counts
           : a->desc.coll == COLL_REDUCE_SCATTER_V ? a->rank.send_counts
                                                   : NULL;
}

uint64_t op_counts_digest(const struct gop *op, uint64_t key)
{
    const uint64_t *counts = same_counts(op->of[0]);
    struct op_balance bal;

    if (!coll_table[op->of[0]->desc.coll].counted)
        return 0;
    if (counts)
        return op_digest_by(key, counts, op->group->world);
    op_balance_of(op, key, &bal);
    return bal.hash;
}

bool op_counts_same(const struct gop *op)
{
    return same_counts(op->of[0]);
}

/* Do the counts of each pair of ranks here agree? Counts that do not can be made so that a balance
 * is zero all the same. */
static bool pairs_alike(const struct gop *op)
{
    for (unsigned i = 0; i < op->nof; i++)
        for (unsigned k = 0; k < op->nof; k++)
            if (says(op->of[i], true, op->of[k]->rank.rank) !=
                says(op->of[k], false, op->of[i]->rank.rank))
                return false;
    return true;
}

/* Honest clients whose counts differ have descriptions that differ, by the digest. Other clients
 * would have NCCL wait for ever. */
static bool counts_alike(const struct gop *op, int *ret_rank, char text[SESSION_TEXT])
{
    const uint64_t *first = same_counts(op->of[0]);

    for (unsigned i = 1; first && i < op->nof; i++) {
        const struct gannounce *a = op->of[i];

        if (!memcmp(same_counts(a), first, op->group->world * sizeof *first))
            continue;
        *ret_rank = (int)a->rank.rank;
        snprintf(text, SESSION_TEXT, "%s", OP_COUNTS_DIFFER);
        return false;
    }
    return true;
}

/* True if the members here agree; else @text says why not, and @ret_rank who. */
static bool op_agrees(const struct gop *op, int *ret_code, int *ret_rank, char text[SESSION_TEXT])
{
    const struct op_desc *first = &op->of[0]->desc;
    struct op_balance bal;

    *ret_code = COMMD_E_MISMATCH;
    for (unsigned i = 1; i < op->nof; i++) {
        const struct gannounce *a = op->of[i];

        *ret_rank = (int)a->rank.rank;
        if (!op_same(first, &a->desc)) {
            op_mismatch_text(op->of[0]->rank.rank, first, a->rank.rank, &a->desc, text);
            return false;
        }
    }
    for (unsigned i = 0; i < op->nof; i++)
        if (op->of[i]->bad) {
            *ret_rank = (int)op->of[i]->rank.rank;
            *ret_code = op->of[i]->bad_code;
            snprintf(text, SESSION_TEXT, "rank %d: %s", *ret_rank, op->of[i]->bad);
            return false;
        }
    if (!counts_alike(op, ret_rank, text))
        return false;
    *ret_rank = -1;
    if (!coll_table[first->coll].counted || op->nof < op->group->world)
        return true; /* with the ranks of other nodes: gpu_agree.c */
    if (pairs_alike(op))
        return true;
    op_balance_of(op, OP_BALANCE_KEY, &bal);
    op_counts_text(op->group, &bal, text);
    return false;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void group_activate(struct ggroup *gr)
{
    if (gr->active)
        return;
    gr->active = true;
    TAILQ_INSERT_TAIL(&gr->user->active_groups, gr, active_link);
    gr->user->nactive_groups++;
    guser_touch(gr->g, gr->user);
}

void group_rest(struct ggroup *gr)
{
    if (!gr->active)
        return;
    assert(gr->user->nactive_groups);
    gr->active = false;
    TAILQ_REMOVE(&gr->user->active_groups, gr, active_link);
    gr->user->nactive_groups--;
    guser_touch(gr->g, gr->user);
}

static void pop(struct gmember *m)
{
    assert(m->group->arrived && m->group->arrived <= m->group->nmembers);
    STAILQ_REMOVE_HEAD(&m->announced, next);
    if (STAILQ_EMPTY(&m->announced))
        m->group->arrived--;
}

/* What members have announced fails, if it is no operation yet. */
static void group_fail_announced(struct ggroup *gr)
{
    for (uint32_t i = 0; i < gr->nlocal; i++) {
        struct gmember *m = gr->member[i];
        struct gannounce *a;

        while (m && (a = STAILQ_FIRST(&m->announced))) {
            pop(m);
            slot_fail(a->session, a->n, gr->broken, gr->broken_rank, gr->broken_pid,
                      gr->broken_text);
            announce_free(a);
        }
    }
}

/* The group's operation is launched, or has failed. */
static void group_next(struct ggroup *gr)
{
    assert(gr->op);
    gr->op = NULL;
    gr->next++;
}

/* Makes an operation of what all have announced; operations that are wrong end here. */
static void group_gather(struct ggroup *gr)
{
    char text[SESSION_TEXT];
    int code, rank;

    while (!gr->op && !gr->broken && gr->arrived == gr->nlocal) {
        struct gop *op = op_new(gr);

        if (!op) {
            group_break(gr, COMMD_E_NOMEM, -1, 0, "commd-gpu has no memory for an operation");
            return;
        }
        for (; op->nof < gr->nlocal; op->nof++) {
            op->of[op->nof] = STAILQ_FIRST(&gr->member[op->nof]->announced);
            pop(gr->member[op->nof]);
        }
        gr->op = op;
        if (op_agrees(op, &code, &rank, text)) {
            group_activate(gr);
            return;
        }
        if (gr->nnodes > 1) { /* the other nodes are to fail it, too */
            wire_ready(op, false, code, rank, text);
            return;
        }
        op_tell(op, code, rank, 0, text);
        group_next(gr);
        op_free(op);
    }
}

void op_launched(struct ggroup *gr)
{
    assert(gr->op->state == OP_FLYING);
    group_next(gr);
    group_gather(gr);
}

void op_fail(struct gop *op, int code, int rank, uint32_t pid, const char *text)
{
    struct ggroup *gr = op->group;

    assert(gr->op == op && !gr->broken);
    op_tell(op, code, rank, pid, text);
    group_next(gr);
    op_free(op);
    group_gather(gr);
}

void group_drop_op(struct ggroup *gr)
{
    struct gop *op = gr->op;

    assert(gr->broken && op != gr->g->now);
    gpu_order_drop(&gr->g->order, &op->order);
    op_tell(op, gr->broken, gr->broken_rank, gr->broken_pid, gr->broken_text);
    group_next(gr);
    op_free(op);
}

void group_break(struct ggroup *gr, int code, int rank, uint32_t pid, const char *text)
{
    struct gop *op = gr->op;

    assert_loop(gr->g);
    assert(code);
    if (gr->broken)
        return;
    gr->broken = code;
    gr->broken_rank = rank;
    gr->broken_pid = pid;
    snprintf(gr->broken_text, sizeof gr->broken_text, "%s", text);
    if (code == COMMD_E_GPU_LOST) { /* a member that attaches from here on begins anew */
        LIST_REMOVE(gr, link);
        LIST_INSERT_HEAD(&gr->g->broken, gr, link);
    }
    if (op && comm_drop(op))
        group_drop_op(gr);
    group_fail_announced(gr);
    wire_broken(gr);
}

void group_announced(struct gmember *m, struct gannounce *a)
{
    struct ggroup *gr = m->group;

    assert(gr->member[m->at] == m && a->session == m->session);
    if (gr->broken) {
        slot_fail(a->session, a->n, gr->broken, gr->broken_rank, gr->broken_pid, gr->broken_text);
        announce_free(a);
        return;
    }
    if (STAILQ_EMPTY(&m->announced))
        gr->arrived++;
    STAILQ_INSERT_TAIL(&m->announced, a, next);
    group_gather(gr);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Launches an operation on one GPU, unless the stream or the user is full, or scratch is on its
 * way. */
static bool op_try(struct gop *op)
{
    struct gstream *s = launch_stream(op);
    struct ggroup *gr = op->group;
    const char *why;
    int r;

    if (!user_may(op))
        return false;
    if (s->nflying >= GPU_STREAM_DEPTH) {
        user_waits(op, 0);
        return false;
    }
    why = launch_plan(op);
    if (why) {
        op_fail(op, COMMD_E_INVALID, -1, 0, why);
        return true;
    }
    r = stream_scratch(s, launch_scratch(op, 0));
    if (r == 0)
        user_waits(op, 0);
    if (r < 0)
        op_fail(op, r, -1, 0, s->why);
    if (r <= 0)
        return r < 0;
    user_charge(op);
    user_count(op);
    launch_local(op);
    op_launched(gr);
    return true;
}

bool group_turn(struct ggroup *gr)
{
    struct gop *op = gr->op;
    bool moved = false;

    if (!op || op->state != OP_INPUTS) {
        group_rest(gr);
        return false;
    }
    while (op->ready < op->nof && slot_ready(op->of[op->ready]->session, op->of[op->ready]->n)) {
        op->ready++;
        moved = true;
    }
    if (op->ready < op->nof)
        return moved;
    return (gr->nunits == 1 ? op_try(op) : comm_ready(op)) || moved;
}
