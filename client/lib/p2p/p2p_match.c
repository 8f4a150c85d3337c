/* p2p_match.c - which message goes to which receive. Pure: lists only.
 *
 * Receives that name their source wait in the list of that rank, all others in one list. Both lists
 * are in the order of posting. A message goes to the first posted of all receives that accept it:
 * of each list the first that accepts it is taken, and the two are compared by `order`. A message
 * that no receive accepts waits in two lists: of its source, and of all messages by arrival. */
#include "client/lib/p2p/p2p.h"

static bool accepts(const struct p2p_op *op, int tag)
{
    return op->tag == COMMD_ANY_TAG || op->tag == tag;
}

void op_move(struct p2p_op *op, struct p2p_list *to)
{
    assert(!op->list || !TAILQ_EMPTY(op->list));
    if (op->list)
        TAILQ_REMOVE(op->list, op, link);
    op->list = to;
    if (to)
        TAILQ_INSERT_TAIL(to, op, link);
}

void match_post(struct p2p *p, struct p2p_op *op)
{
    assert(!op->send && !op->list && op->peer < (int)p->group->board.world);
    op->order = ++p->match.order;
    op->state = P2P_POSTED;
    op_move(op, op->peer == COMMD_ANY_SOURCE ? &p->match.any : &p->peers[op->peer].posted);
}

static struct p2p_op *first_accepting(struct p2p_list *list, int tag)
{
    struct p2p_op *op;

    TAILQ_FOREACH(op, list, link)
        if (accepts(op, tag))
            return op;
    return NULL;
}

struct p2p_op *match_arrived(struct p2p *p, unsigned src, int tag)
{
    assert(src < p->group->board.world);
    struct p2p_op *named = first_accepting(&p->peers[src].posted, tag);
    struct p2p_op *any = first_accepting(&p->match.any, tag);
    struct p2p_op *op = named;

    if (!named || (any && any->order < named->order))
        op = any;
    assert(!op || !op->send);
    if (op)
        op_move(op, NULL);
    return op;
}

static void unlink_unexpected(struct p2p *p, struct p2p_msg *m)
{
    assert(m->src >= 0 && (unsigned)m->src < p->group->board.world);
    TAILQ_REMOVE(&p->match.unexpected, m, by_time);
    TAILQ_REMOVE(&p->peers[m->src].unexpected, m, by_source);
}

struct p2p_msg *match_unexpected(struct p2p *p, const struct p2p_op *op)
{
    struct p2p_msg *m;

    assert(!op->send && op->peer < (int)p->group->board.world);
    if (op->peer == COMMD_ANY_SOURCE) {
        TAILQ_FOREACH(m, &p->match.unexpected, by_time)
            if (accepts(op, m->tag))
                break;
    } else {
        TAILQ_FOREACH(m, &p->peers[op->peer].unexpected, by_source)
            if (accepts(op, m->tag))
                break;
    }
    if (m)
        unlink_unexpected(p, m);
    return m;
}

void match_forget(struct p2p *p, const struct p2p_op *self)
{
    struct p2p_msg *m, *next;

    assert(self->send && self->peer == (int)p->group->rank);
    for (m = TAILQ_FIRST(&p->peers[self->peer].unexpected); m; m = next) {
        next = TAILQ_NEXT(m, by_source);
        if (m->self == self) {
            unlink_unexpected(p, m);
            free(m);
        }
    }
}

void match_keep(struct p2p *p, struct p2p_msg *m)
{
    assert(m->src >= 0 && (unsigned)m->src < p->group->board.world);
    TAILQ_INSERT_TAIL(&p->match.unexpected, m, by_time);
    TAILQ_INSERT_TAIL(&p->peers[m->src].unexpected, m, by_source);
}
