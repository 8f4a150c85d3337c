/* gpu_order.c - a total order of NCCL operations, without a node that decides it. Pure.
 *
 * Model. An NCCL operation occupies its GPUs until its peers have launched it too. If two nodes
 * launch two operations in different orders, each waits for the other for ever. So operations that
 * share GPUs on two nodes must be launched in one order on both. Groups overlap as they like, and
 * nobody but its members knows of a group: this is Skeen's total order multicast, as it stands in
 * Birman and Joseph, "Reliable communication in the presence of failures" (1987).
 *
 * Phase 1: a node says that all its inputs of an operation are there. Phase 2, once all nodes have
 * said so: each node proposes a ticket, larger than all that it has proposed or seen; the largest
 * proposal is the operation's ticket. A node launches the operation with the smallest ticket, once
 * that ticket is known, and no operation whose ticket is not known could get a smaller one: an
 * operation's ticket is not below what this node proposed for it. An operation that the node has
 * not proposed for yet gets a larger ticket, as the node's clock has passed all tickets it has
 * seen.
 *
 * Why two phases: an operation that waits for a ticket holds up all behind it. Proposals are made
 * only when all nodes are ready, so a ticket comes after one exchange of messages, which waits for
 * no program. If a node proposed as soon as its own inputs are there, another group's operation
 * could wait behind one whose inputs elsewhere come only after that.
 *
 * An operation in which no other node takes part gets the next ticket at once: it comes behind what
 * is agreed upon by then, and before what is agreed upon later, so neither kind starves the other.
 * It does not wait for proposals, since no other node waits for it.
 *
 * Equal tickets: a number decides (tie) that one node draws for each operation, and all know before
 * they propose. A group's own number will not do: clients say it, and if two were equal each node
 * would have an order of its own. In a group, tickets grow with the operations' numbers, on all
 * nodes, since each node proposes in that order.
 *
 * A long operation is launched in parts, and each is a step of the order. All are agreed upon with
 * the first one: the k-th has its ticket and k times GPU_ORDER_APART, on all nodes, so no message
 * is needed. What is proposed meanwhile comes between the parts, as a proposal is above what this
 * node has launched, not above what it will launch. A node may hold a part back until earlier parts
 * have ended, which keeps its clock down for others; if other nodes take part in the operation,
 * nothing in which other nodes take part goes before that part then. Nobody waits for ever by that:
 * of all parts that have not ended the one with the least ticket is held back by earlier parts
 * only, and those have ended.
 *
 * A group's operations come in the order of their numbers, in each phase; the exchanges of one
 * phase must not be mistaken for those of the other: two groups for the two, or one operation at a
 * time. What a lost node had agreed to is dropped with its group, by every node that hears of the
 * loss. */
#include "transport/gpu/gpu_order.h"

#include <assert.h>

/* Launch order. An operation that is not agreed upon yet stands at the earliest place that it can
 * get. Before its proposal it holds up nobody. */
static bool order_before(const struct gpu_order_op *a, const struct gpu_order_op *b)
{
    if (a->ticket != b->ticket)
        return a->ticket < b->ticket;
    return a->tie != b->tie ? a->tie < b->tie : a->seq < b->seq;
}

static void order_insert(struct gpu_order *o, struct gpu_order_op *op)
{
    struct gpu_order_op **at = &o->head;

    while (*at && order_before(*at, op))
        at = &(*at)->next;
    op->next = *at;
    *at = op;
}

static void order_remove(struct gpu_order *o, struct gpu_order_op *op)
{
    struct gpu_order_op **at = &o->head;

    while (*at != op) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = op->next;
    op->next = NULL;
}

void gpu_order_ready(struct gpu_order *o, struct gpu_order_op *op, bool alone)
{
    assert(op->state == GPU_ORDER_IDLE);
    op->alone = alone;
    op->ticket = alone ? ++o->clock : UINT64_MAX;
    op->state = alone ? GPU_ORDER_AGREED : GPU_ORDER_READY;
    order_insert(o, op);
}

uint64_t gpu_order_propose(struct gpu_order *o, struct gpu_order_op *op)
{
    assert(op->state == GPU_ORDER_READY);
    order_remove(o, op);
    op->ticket = ++o->clock;
    op->state = GPU_ORDER_PROPOSED;
    order_insert(o, op);
    return op->ticket;
}

bool gpu_order_agree(struct gpu_order *o, struct gpu_order_op *op, uint64_t ticket)
{
    assert(op->state == GPU_ORDER_PROPOSED);
    if (ticket < op->ticket || ticket > GPU_ORDER_LAST)
        return false;
    order_remove(o, op);
    o->clock = MAX(o->clock, ticket);
    op->ticket = ticket;
    op->state = GPU_ORDER_AGREED;
    order_insert(o, op);
    return true;
}

struct gpu_order_op *gpu_order_next(struct gpu_order *o)
{
    struct gpu_order_op *op = o->head;

    while (op && op->alone && op->held) /* no other node waits for it */
        op = op->next;
    if (op && (op->state != GPU_ORDER_AGREED || op->held))
        while (op && (!op->alone || op->held))
            op = op->next;
    if (!op)
        return NULL;
    order_remove(o, op);
    o->clock = MAX(o->clock, op->ticket); /* the ticket of a later part was not seen yet */
    op->state = GPU_ORDER_IDLE;
    return op;
}

void gpu_order_again(struct gpu_order *o, struct gpu_order_op *op)
{
    assert(op->state == GPU_ORDER_IDLE);
    op->ticket = op->alone ? ++o->clock : op->ticket + GPU_ORDER_APART;
    op->state = GPU_ORDER_AGREED;
    order_insert(o, op);
}

void gpu_order_drop(struct gpu_order *o, struct gpu_order_op *op)
{
    if (op->state == GPU_ORDER_IDLE)
        return;
    order_remove(o, op);
    op->state = GPU_ORDER_IDLE;
}
