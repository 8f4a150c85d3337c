/* failure.c - which call tells that an operation on a GPU has failed, if no work tells of it.
 *
 * The next call in the group tells, once. One on a GPU starts nothing then. One in host memory
 * takes part first: the other ranks may have called it before they knew of the failure.
 *
 * A rank whose call has started nothing may have stopped. The board does not show that, and a rank
 * that waits for it in host memory would wait until its limit. So the progress thread looks
 * (failure_watch()): if this rank has slept in an operation for STOPPED_MS since the failure was
 * noted, and ranks have not come to that operation, the group is broken, for all ranks. The
 * operation alone cannot fail, because a rank may come to it in this moment. This holds for the
 * operation that is under way when the failure is noted, and for the next one: a rank that comes to
 * the next one has not stopped. An operation on a GPU is left alone: perhaps a rank has called it,
 * and its stream has not come so far.
 *
 * Who wakes me: the calls, and the progress thread. What if a rank dies now: the board says so. */
#include "client/lib/device/failure.h"

#include <assert.h>
#include <stdio.h>

#include "client/lib/device/staged.h"

enum { STOPPED_MS = 10000 };

static const bool failure_may[3][3] = {
    /* to:            NONE OWN SHARED */
    [FAILURE_NONE] = {0, 1, 1},
    [FAILURE_OWN] = {1, 0, 1}, /* a second one, of which the others know */
    [FAILURE_SHARED] = {1, 0, 0},
};

static void failure_set(struct failure *f, enum failure_state to)
{
    assert_held(&f->lock);
    assert(failure_may[atomic_load(&f->state)][to]);
    atomic_store_explicit(&f->state, to, memory_order_release);
}

void failure_note(struct device_group *dg, const struct commd_error *why, enum failure_state kind)
{
    struct failure *f = &dg->failure;

    assert(why->code && kind != FAILURE_NONE);
    pthread_mutex_lock(&f->lock);
    if (f->state == FAILURE_NONE)
        f->why = *why;
    if ((int)kind > f->state) {
        f->since_ms = (int64_t)now_ms();
        f->seq = atomic_load(&dg->group->seq);
        failure_set(f, kind);
    }
    pthread_mutex_unlock(&f->lock);
}

bool failure_take(struct device_group *dg, struct commd_error *ret_why)
{
    struct failure *f = &dg->failure;
    bool any;

    if (likely(atomic_load_explicit(&f->state, memory_order_acquire) == FAILURE_NONE))
        return false;
    pthread_mutex_lock(&f->lock);
    any = f->state != FAILURE_NONE; /* another thread may have been told meanwhile */
    assert(f->state == FAILURE_NONE || f->why.code);
    if (any) {
        *ret_why = f->why;
        failure_set(f, FAILURE_NONE);
    }
    pthread_mutex_unlock(&f->lock);
    return any;
}

int failure_explain(struct device_group *dg)
{
    struct commd_error why, cut = *error_mine();

    assert(cut.code);
    if (failure_take(dg, &why))
        snprintf(error_mine()->message, sizeof cut.message, "%.150s%s; a failure before it: %.300s",
                 cut.message, strlen(cut.message) > 150 ? "..." : "", why.message);
    return cut.code;
}

/* ---- ranks that have stopped ----------------------------------------------------------------- */

/* The operation in host memory that ranks may not come to because of the failure, and in which this
 * rank has slept for long; 0: there is none. */
static uint64_t waits_in_vain(struct failure *f, const struct membership *g)
{
    const struct board_member *me = &g->board.members[g->local];
    uint64_t seq = atomic_load(&g->seq);
    bool late;

    assert_held(&g->ctx->plock);
    if (g->running && g->running->gate)
        return 0;
    pthread_mutex_lock(&f->lock);
    late = f->state == FAILURE_SHARED && (int64_t)now_ms() - f->since_ms >= STOPPED_MS &&
           seq <= f->seq + 1;
    pthread_mutex_unlock(&f->lock);
    return late && atomic_load(&me->asleep_op) == (uint32_t)seq &&
                   (int32_t)((uint32_t)now_ms() - atomic_load(&me->asleep_ms)) >= STOPPED_MS &&
                   !seq_reached(atomic_load(&me->ops), (uint32_t)seq)
               ? seq
               : 0;
}

void failure_watch(struct device_group *dg)
{
    struct failure *f = &dg->failure;
    struct membership *g = dg->group;
    struct commd_error e, why;
    char text[160], node[MSG_NAME_MAX];
    uint64_t seq;
    int rank;

    assert_held(&g->ctx->plock);
    if (likely(atomic_load(&f->state) != FAILURE_SHARED))
        return;
    seq = waits_in_vain(f, g);
    if (!seq) {
        absent_free(&f->question);
        return;
    }
    assert(seq <= atomic_load(&g->seq) && !(g->running && g->running->gate));
    if (!absent_ask(&f->question, g, seq) ||
        !absent_text(f->question, g, seq, NULL, text, sizeof text, &rank, node) ||
        !failure_take(dg, &why))
        return;
    error_set(&e, COMMD_E_ABORTED, "run",
              "operation %llu of group \"%s\", which is broken by it: %s, most likely because of a "
              "failure before it: %.300s",
              (unsigned long long)seq, g->name, text, why.message);
    e.rank = rank;
    e.epoch = g->board.epoch;
    e.seq = seq;
    snprintf(e.node, sizeof e.node, "%s", node);
    group_give_up(g, &e);
    absent_free(&f->question);
}
