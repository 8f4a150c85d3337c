/* p2p_tell.c - the works of messages that have ended are told so. A callback may call the library
 * again, so the lock is dropped for each. */
#include "client/lib/p2p/p2p.h"

struct p2p_op *p2p_take_finished(struct p2p *p)
{
    struct p2p_op *op = TAILQ_FIRST(&p->finished);

    assert_held(&p->lock);
    if (op)
        op_move(op, NULL);
    return op;
}

void p2p_result(const struct p2p_op *op)
{
    assert(op->state == P2P_DONE && op->work);
    if (op->err.code)
        op->work->err = op->err;
}

void p2p_tell(struct p2p *p)
{
    struct p2p_op *op;

    assert_held(&p->lock);
    while (unlikely((op = p2p_take_finished(p)) != NULL)) {
        pthread_mutex_unlock(&p->lock);
        p2p_result(op);
        work_finish_message(op->work);
        pthread_mutex_lock(&p->lock);
    }
}
