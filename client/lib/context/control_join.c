/* control_join.c - a join, as the thread that asks sees it: it waits for commd's answer, which may
 * be that of the next commd. So the question is sent again then, with what is left of its limits.
 *
 * A join may be a recovery (struct msg_client_join): the next epoch of a group in which this
 * process is. Ranks of that group may still be blocked in it, by ranks that have come here already:
 * a receive from a rank that lives does not end by the death of another. So the group is revoked
 * when the recovery is not over in a moment, if it has lost a rank. In a moment those that can have
 * seen that themselves, and know who it was.
 *
 * A commd that was started anew does not know that group. If it is on this node alone, its ranks
 * tell what they know of it (daemon/core/core_stray.c), and again when one more has died meanwhile.
 *
 * A join that is interrupted is withdrawn: else commd would count this rank in when the others
 * come, and they would lose it at once. commd's answer is awaited, for it may be that all had
 * agreed. So is the join of a group that is made of ranks of another, when one of these cannot come
 * any more (parent.c). */
#include "client/lib/context/group.h"

#include <stdio.h>

enum {
    JOIN_GRACE_MS = 10000,
    WARN_TRIES = 5, /* to learn who is missing */
    REVOKE_MS = 80,
    WITHDRAW_MS = 1000, /* for commd's answer */
};

/* Ends the epoch that others go on from, if a rank of it is lost. True: that need not be asked
 * again.
 */
static bool revoke_torn(const struct membership *g)
{
    struct msg m = {.type = MSG_CLIENT_ABORT, .client_abort.group = g->board.group};
    const struct board *b = &g->board;
    struct board_cause c;
    int lost = board_first_dead(b);

    assert_held(&g->ctx->lock);
    if (board_broken(b->hdr, &c))
        return true;
    for (unsigned k = 0; k < b->world && lost < 0; k++)
        if (board_is_gone(b, k))
            lost = (int)k; /* it left */
    if (lost < 0)
        return false; /* all live, as far as is known: nothing is to be disturbed */
    snprintf(m.client_abort.text, sizeof m.client_abort.text,
             "rank %u aborted the group, since rank %d (pid %u on node %s) is gone and others "
             "recover it: call commd_group_recover()",
             g->rank, lost, b->ranks[lost].pid, g->nodes[g->members[lost].node]);
    control_abort_locked(g->ctx, &m);
    return true;
}

/* Until commd has answered for certain. One that is gone knows of no join that nobody awaits. @why:
 * what it is withdrawn for. */
static int withdraw(struct commd_context *ctx, const struct awaited *w,
                    const struct commd_error *why)
{
    struct msg m = {.type = MSG_CLIENT_WITHDRAW, .client_withdraw.req = w->req};
    int64_t deadline = deadline_in(WITHDRAW_MS);

    if (ctx->version >= RECOVERY_VERSION && !control_send_locked(ctx, &m))
        while (!w->done && !atomic_load(&ctx->lost) && (int64_t)now_ms() < deadline)
            control_wait_slice(ctx);
    if (w->done && w->reply.type == MSG_JOINED)
        return 0;
    *error_mine() = *why;
    return why->code;
}

static int await_join(struct commd_context *ctx, struct awaited *w,
                      const struct msg_client_join *join, int64_t deadline_ms)
{
    const int64_t since_ms = (int64_t)now_ms();
    struct commd_error *e = error_mine(), why;
    const char *name = join->name;
    unsigned warnings = ctx->warn_ms ? WARN_TRIES : 0;
    _cleanup_(close_fdp) int speaker = -1;
    int r;

    while (!w->done) {
        if (atomic_load(&ctx->lost) && (r = back_wait(ctx, "join", deadline_ms))) {
            if (r != COMMD_E_NO_DAEMON && r != COMMD_E_NODE_LOST)
                return r;
            error_set(e, COMMD_E_NODE_LOST, "join",
                      "group \"%s\": commd on node %s went away while this rank was joining", name,
                      ctx->node);
            snprintf(e->node, sizeof e->node, "%s", ctx->node);
            return e->code;
        }
        if (deadline_ms >= 0 && (int64_t)now_ms() > deadline_ms + JOIN_GRACE_MS)
            return error_set(
                e, COMMD_E_TIMEOUT, "join",
                "group \"%s\": commd on node %s does not answer (the limit passed %d s "
                "ago)",
                name, ctx->node, JOIN_GRACE_MS / 1000);
        if (!w->done && !atomic_load(&ctx->lost))
            control_wait_slice(ctx);
        if (!w->done && w->follows && !w->over && (int64_t)now_ms() - since_ms >= REVOKE_MS)
            w->over = revoke_torn(w->follows);
        if (!w->done && !atomic_load(&ctx->lost) && control_tells_gone(w))
            control_ask_again(ctx, w);
        if (!w->done && !atomic_load(&ctx->lost) && warnings &&
            (int64_t)now_ms() - since_ms >= ctx->warn_ms) {
            warnings--;
            pthread_mutex_unlock(&ctx->lock);
            if (join_warn(ctx, join, (int64_t)now_ms() - since_ms, !warnings, &speaker))
                warnings = 0;
            pthread_mutex_lock(&ctx->lock);
        }
        if (!w->done && w->parent && parent_fails(w->parent, name, &why))
            return withdraw(ctx, w, &why);
        if (!w->done && context_interrupted_unlocked(ctx) && !w->done) {
            error_set(&why, COMMD_E_INTERRUPTED, "join", "group \"%s\": interrupted", name);
            return withdraw(ctx, w, &why);
        }
    }
    return 0;
}

int control_join(struct commd_context *ctx, const struct msg *msg, struct awaited *w,
                 int64_t deadline_ms)
{
    int r = 0;

    w->ask = *msg;
    w->ask_fd = -1;
    w->deadline_ms = deadline_ms;
    pthread_mutex_lock(&ctx->lock);
    ctx->waits_size = 0; /* a later commd shall not hear of it */
    control_wait_begin(ctx, MSG_JOINED, w);
    w->ask.client_join.req = w->req;
    if (control_is_lost(ctx))
        r = back_need(ctx, "join"); /* the hello names it, and it is sent: say_again() */
    else
        control_ask_again(ctx, w);
    if (r == 0)
        r = await_join(ctx, w, &w->ask.client_join, deadline_ms);
    control_wait_end(ctx, w);
    /* the answer may have come after the decision to give up */
    if (r && w->done && w->reply.type == MSG_JOINED)
        control_leave_unwanted(ctx, w->reply.joined.group);
    pthread_mutex_unlock(&ctx->lock);
    free(w->gone);
    w->gone = w->ask.client_join.gone = NULL;
    if (r) {
        close_fdp(&w->fd);
        msg_fini(&w->reply);
    }
    return r;
}
