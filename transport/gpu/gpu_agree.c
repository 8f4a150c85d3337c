/* gpu_agree.c - an operation over several nodes, before NCCL is called: the commd-gpus agree by two
 * exchanges that all have come (gpu_order.c says why in two phases):
 *   READY   all inputs of this node are there; what the operation is, what its counts add up to,
 *           which communicator this node has, in parts of how many bytes it wants it launched, how
 *           large its largest cell is, or what is wrong with it here. All nodes see all of it: they
 *           fail it alike, or go on, and cut it alike.
 *   TICKET  where in the order it comes; and what a new communicator is made with, by the first
 *           node, if not all have the same.
 * A group does this with one operation at a time, so no exchange is mistaken for another. */
#include "transport/gpu/gpu_wire.h"

#include <stdio.h>
#include <sys/random.h>

void wire_ready(struct gop *op, uint32_t part, int code, int rank, const char *text)
{
    struct gwire *w = op->group->wire;
    struct wire_ready *mine = &w->ready[w->me];

    assert(op->state <= OP_ORDER && op == op->group->op);
    memset(mine, 0, sizeof *mine);
    op->state = OP_ORDER;
    mine->seq = op->seq;
    mine->comm = op->comm ? op->comm->number : 0;
    mine->code = code;
    mine->rank = rank;
    mine->first = op->of[0]->rank.rank;
    mine->part = part;
    if (w->me == 0 && getrandom(&mine->tie, sizeof mine->tie, 0) < 0)
        mine->tie = 0; /* two operations with equal numbers may wait for --timeout */
    mine->desc = op->of[0]->desc;
    snprintf(mine->text, sizeof mine->text, "%s", text);
    if (!code && coll_table[mine->desc.coll].counted) {
        op_balance_of(op, OP_BALANCE_KEY, &mine->balance);
        mine->cell = launch_cell(op);
    }
    wire_say(w, WIRE_SAY_READY);
}

/* What all nodes have said. 0: the operation goes on; else why it fails, for all ranks alike. */
static int agree_judge(const struct gwire *w, int *ret_rank, char text[SESSION_TEXT])
{
    const struct wire_ready *first = &w->ready[0];
    struct op_balance sum = {0};

    *ret_rank = -1;
    for (uint32_t n = 0; n < w->nnodes; n++) {
        const struct wire_ready *r = &w->ready[n];

        if (r->code) {
            *ret_rank = r->rank;
            snprintf(text, SESSION_TEXT, "%.*s", SESSION_TEXT - 1, r->text);
            return r->code;
        }
        sum.hash += r->balance.hash;
        sum.diff += r->balance.diff;
        sum.checksum += r->balance.checksum;
    }
    for (uint32_t n = 1; n < w->nnodes; n++)
        if (!op_same(&first->desc, &w->ready[n].desc)) {
            *ret_rank = (int)w->ready[n].first;
            op_mismatch_text(first->first, &first->desc, w->ready[n].first, &w->ready[n].desc,
                             text);
            return COMMD_E_MISMATCH;
        }
    if (op_balanced(&sum))
        return 0;
    op_counts_text(w->gr, &sum, text);
    return COMMD_E_MISMATCH;
}

void agree_ready(struct gwire *w)
{
    struct gop *op = w->gr->op;
    struct wire_ticket *mine = &w->ticket[w->me];
    char text[SESSION_TEXT] = "";
    int rank, code = agree_judge(w, &rank, text);
    uint32_t part = UINT32_MAX;
    uint64_t cell = 0;

    assert(op->state == OP_ORDER && !w->gr->broken);
    if (code) {
        gpu_order_drop(&w->g->order, &op->order);
        op_fail(op, code, rank, 0, text);
        return;
    }
    for (uint32_t n = 1; n < w->nnodes; n++)
        if (w->ready[n].comm != w->ready[0].comm)
            comm_take(op, NULL);
    memset(mine, 0, sizeof *mine);
    mine->seq = op->seq;
    if (w->me == 0 && !op->comm && comm_new_id(w->g, &mine->id, text)) {
        group_break(w->gr, COMMD_E_GPU_LOST, -1, 0, text);
        return;
    }
    for (uint32_t n = 0; n < w->nnodes; n++) {
        part = MIN(part, w->ready[n].part);
        cell = MAX(cell, w->ready[n].cell);
    }
    launch_cut(op, part, cell);
    user_count(op);
    op->order.tie = w->ready[0].tie;
    mine->counts = op_counts_digest(op, w->ready[0].tie);
    mine->ticket = gpu_order_propose(&w->g->order, &op->order);
    wire_say(w, WIRE_SAY_TICKET);
}

static bool tickets_fit(const struct gwire *w)
{
    bool same = op_counts_same(w->gr->op);
    uint64_t sum = 0;

    for (uint32_t n = 0; n < w->nnodes; n++) {
        if (same && w->ticket[n].counts != w->ticket[0].counts)
            return false;
        sum += w->ticket[n].counts;
    }
    return same || !sum;
}

/* All nodes find that the counts differ, so none of them launches the operation. */
static void counts_differ(struct gwire *w)
{
    static const struct op_balance several;
    char text[SESSION_TEXT] = OP_COUNTS_DIFFER;
    struct gop *op = w->gr->op;

    if (!op_counts_same(op))
        op_counts_text(w->gr, &several, text);
    gpu_order_drop(&w->g->order, &op->order);
    if (w->gr->broken)
        group_drop_op(w->gr);
    else
        op_fail(op, COMMD_E_MISMATCH, -1, 0, text);
}

void agree_ticket(struct gwire *w)
{
    struct gop *op = w->gr->op;
    uint64_t ticket = 0;

    assert(op->order.state == GPU_ORDER_PROPOSED);
    if (!tickets_fit(w)) {
        counts_differ(w);
        return;
    }
    for (uint32_t n = 0; n < w->nnodes; n++)
        ticket = MAX(ticket, w->ticket[n].ticket);
    op->id = w->ticket[0].id;
    if (!gpu_order_agree(&w->g->order, &op->order, ticket))
        gpu_fatal(w->g, "the order of operations with other nodes is broken in group \"%s\"",
                  w->gr->name);
}
