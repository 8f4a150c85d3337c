/* group.c - joining a group: asking commd, mapping the board it hands out, and the tables that
 * collectives look things up in. What commd sends is checked like anything that comes over a
 * socket: a client must not crash because its socket leads to a wrong daemon. */
#include "client/lib/context/group.h"

#include <stdio.h>

#include "shm/board/place.h"

enum { AGAIN_US = 5000, AGAIN_MOST_US = 200000 }; /* doubled each time */

void group_close(struct membership *g)
{
    if (!g)
        return;
    alive_end(g);
    board_unmap(&g->board);
    pthread_mutex_destroy(&g->qlock);
    free(g->members);
    free(g->nodes);
    free(g->node_start);
    free(g->rank_at);
    free(g->pos_of);
    free(g->local_rank);
    free(g);
}

static void group_closep(struct membership **g)
{
    group_close(*g);
}

void group_part(const struct membership *g, struct apart *apart)
{
    const struct board *b = &g->board;
    uint32_t core = core_now();
    bool shares = false;

    if (b->nnodes > 1 || b->nlocal == 1 || b->nlocal > wait_cores())
        return;
    for (unsigned m = 0; m < g->local && core; m++)
        shares |= atomic_load_explicit(&b->on_core[m], memory_order_relaxed) == core;
    if (apart_due(apart, now_ns(), shares))
        core_leave(b->on_core, b->nlocal);
}

const char *group_node_of(const struct membership *g, unsigned rank)
{
    return rank < g->board.world ? g->nodes[g->members[rank].node] : "?";
}

/* False: it had failed before. */
static bool fail_first(struct membership *g, const struct commd_error *why)
{
    if (atomic_exchange(&g->failing, true))
        return false;
    g->first = *why;
    if (!commd_error_breaks_group(why->code))
        g->first.code = COMMD_E_ABORTED;
    atomic_store(&g->failed, true);
    return true;
}

void group_had_ended(const char *op, struct commd_error *e)
{
    char text[sizeof e->message];

    if (!e->seq)
        return; /* no operation is blamed */
    snprintf(text, sizeof text, "%s: the group had ended before: %.440s", op, e->message);
    memcpy(e->message, text, sizeof text);
}

void group_give_up(struct membership *g, const struct commd_error *why)
{
    struct msg m = {.type = MSG_CLIENT_ABORT, .client_abort.group = g->board.group};

    if (!fail_first(g, why))
        return;
    snprintf(m.client_abort.text, sizeof m.client_abort.text, "rank %u gave up: %.440s", g->rank,
             why->message);
    control_abort(g->ctx, &m);
}

void group_fail(struct membership *g, const struct commd_error *why)
{
    if (why->code == COMMD_E_TIMEOUT || why->code == COMMD_E_INTERRUPTED ||
        why->code == COMMD_E_PROTOCOL)
        group_give_up(g, why);
    else
        fail_first(g, why);
}

bool group_revoke(struct commd_group *h, const char *reason)
{
    struct commd_context *ctx = h->ctx;
    struct msg m = {.type = MSG_CLIENT_ABORT};
    struct membership *g;
    struct commd_error e;
    bool told;

    pthread_mutex_lock(&ctx->lock); /* a thread may recover the group just now */
    g = h->now;
    m.client_abort.group = g->board.group;
    snprintf(m.client_abort.text, sizeof m.client_abort.text, "rank %u aborted the group: %.400s",
             g->rank, reason);
    error_set(&e, COMMD_E_ABORTED, "abort", "group \"%s\": %s", g->name, m.client_abort.text);
    e.rank = (int)g->rank;
    e.epoch = g->board.epoch;
    fail_first(g, &e);
    told = control_abort_locked(ctx, &m) == 0;
    pthread_mutex_unlock(&ctx->lock);
    return told;
}

/* Ranks in node order, ascending within a node. */
static int group_tables(struct membership *g)
{
    unsigned n = g->board.world, pos = 0, local = 0;

    g->node_start = calloc(g->board.nnodes + 1, sizeof *g->node_start);
    g->rank_at = calloc(n, sizeof *g->rank_at);
    g->pos_of = calloc(n, sizeof *g->pos_of);
    g->local_rank = calloc(g->board.nlocal, sizeof *g->local_rank);
    if (!g->node_start || !g->rank_at || !g->pos_of || !g->local_rank)
        return -ENOMEM;
    for (unsigned node = 0; node < g->board.nnodes; node++) {
        g->node_start[node] = pos;
        for (unsigned k = 0; k < n; k++) {
            if (g->members[k].node != node)
                continue;
            g->rank_at[pos] = k;
            g->pos_of[k] = pos++;
            if (node != g->board.me)
                continue;
            if (local == g->board.nlocal)
                return -EPROTO;
            if (k == g->rank)
                g->local = local;
            g->local_rank[local++] = k;
        }
    }
    g->node_start[g->board.nnodes] = pos;
    g->geom = (struct plan_geom){.world = n,
                                 .nnodes = g->board.nnodes,
                                 .me = g->board.me,
                                 .nlocal = g->board.nlocal,
                                 .cores = g->board.cores,
                                 .team = g->board.team,
                                 .chunk = (uint32_t)g->board.chunk,
                                 .around = g->board.around,
                                 .net = g->board.net,
                                 .plans = g->board.plans,
                                 .node_start = g->node_start,
                                 .rank_at = g->rank_at};
    return pos == n && local == g->board.nlocal && g->members[g->rank].node == g->board.me
               ? 0
               : -EPROTO;
}

int group_from_joined(struct commd_context *ctx, const char *name, unsigned rank, unsigned size,
                      int64_t timeout_ms, struct awaited *w, struct membership **ret_group)
{
    _cleanup_(group_closep) struct membership *g = calloc(1, sizeof *g);
    struct msg_joined *j = &w->reply.joined;
    int r;

    if (!g)
        return -ENOMEM;
    pthread_mutex_init(&g->qlock, NULL);
    g->tail = &g->head;
    g->alive.fd = -1;
    g->ctx = ctx;
    g->rank = rank;
    g->doorbell = w->doorbell;
    snprintf(g->name, sizeof g->name, "%s", name);
    atomic_init(&g->timeout_ms, timeout_ms);
    g->members = steal_ptr(j->members);
    g->nodes = steal_ptr(j->nodes);
    r = board_map(w->fd, &g->board);
    if (r)
        return r < 0 ? r : -EPROTO;
    if (j->size != size || g->board.world != size || g->board.nnodes != j->nnodes ||
        g->board.group != j->group || g->board.epoch != j->epoch)
        return -EPROTO;
    r = group_tables(g);
    if (r)
        return r;
    /* the engine needs a core as well while it works for us */
    g->crowded_ns = wait_crowded_ns(g->board.nlocal + (g->board.nnodes > 1));
    g->next_step = g->consumed_seen = BOARD_FIRST_STEP;
    place_joined(&g->board, g->local);
    alive_begin(g, w->fd);
    *ret_group = steal_ptr(g);
    return 0;
}

static const char *join_word(const struct msg_client_join *join)
{
    switch ((enum msg_recovery)join->recovery) {
    case MSG_RECOVERY_SHRINK:
    case MSG_RECOVERY_WAIT:
        return "recover";
    case MSG_RECOVERY_REJOIN:
        return "rejoin";
    case MSG_RECOVERY_NONE:
    case MSG_RECOVERY_COUNT:
        break;
    }
    return "join";
}

static int join_error(const struct awaited *w, struct commd_error *e)
{
    const struct msg_join_failed *f = &w->reply.join_failed;

    error_set(e, -(int)f->cause, "join", "%s", f->text);
    e->rank = f->rank;
    snprintf(e->node, sizeof e->node, "%s", f->node);
    return e->code;
}

/* The answer has come: makes the group of it. */
static int group_answered(struct commd_context *ctx, const struct msg_client_join *join,
                          struct awaited *w, struct membership **ret_group)
{
    const struct msg_joined *j = &w->reply.joined;
    struct commd_error *e = error_mine();
    uint64_t id = j->group;
    int r;

    if (w->reply.type == MSG_JOIN_FAILED)
        return join_error(w, e);
    if (join->recovery) /* commd alone knows who is left, and in which order */
        r = group_from_joined(ctx, join->name, j->rank, j->size, ctx->timeout_ms, w, ret_group);
    else
        r = group_from_joined(ctx, join->name, join->rank, join->size, ctx->timeout_ms, w,
                              ret_group);
    if (r) /* commd counts this rank in, and the others shall not wait for it */
        control_leave(ctx, id, 0);
    if (r == -ENOMEM)
        return error_set(e, COMMD_E_NOMEM, "join", "group \"%s\": no memory for its ranks",
                         join->name);
    if (r)
        return error_set(e, COMMD_E_PROTOCOL, "join",
                         "group \"%s\": commd on node %s sent a board that does not fit the group "
                         "(%s); libcommd is version %s: do both come from one release?",
                         join->name, ctx->node, strerror(-r), commd_version());
    return 0;
}

/* A recovery that came to nothing, because a node or an engine was lost after its ranks had asked
 * for it. Nobody has to have survived: the others go on, if they ask once more. */
static bool others_go_on(const struct commd_context *ctx, const struct awaited *w,
                         int64_t deadline_ms)
{
    const struct msg_join_failed *f = &w->reply.join_failed;

    if (!w->ask.client_join.recovery || w->reply.type != MSG_JOIN_FAILED ||
        (deadline_ms >= 0 && (int64_t)now_ms() >= deadline_ms))
        return false;
    if (f->cause == CAUSE_NODE_LOST) /* if it is this one its commd stops */
        return *f->node && strcmp(f->node, ctx->node);
    return f->cause == CAUSE_ENGINE_LOST;
}

int group_join(struct commd_context *ctx, const struct msg_client_join *join,
               const struct membership *follows, struct parent *parent, int64_t timeout_ms,
               struct membership **ret_group)
{
    struct commd_error *e = error_mine();
    const struct awaited question = {.fd = -1,
                                     .doorbell = -1,
                                     .follows = follows,
                                     .parent = parent,
                                     .patient_ms =
                                         join->wait_ms ? deadline_in((int64_t)join->wait_ms) : 0};
    struct msg m = {.type = MSG_CLIENT_JOIN, .client_join = *join};
    int64_t deadline_ms = deadline_in(timeout_ms);
    struct awaited w = question;
    useconds_t again_us = AGAIN_US;
    int r;

    assert(!follows || join->follows == follows->board.group);
    m.client_join.timeout_ms = timeout_ms < 0 ? 0 : (uint64_t)timeout_ms;
    m.client_join.limit_ms = m.client_join.timeout_ms;
    while (!(r = control_join(ctx, &m, &w, deadline_ms)) && others_go_on(ctx, &w, deadline_ms)) {
        close_fdp(&w.fd);
        msg_fini(&w.reply);
        w = question;
        usleep(again_us);
        again_us = MIN(2 * again_us, (useconds_t)AGAIN_MOST_US);
    }
    if (r && e->rank < 0 && !join->recovery)
        e->rank = (int)join->rank;
    if (!r) {
        r = group_answered(ctx, join, &w, ret_group);
        close_fdp(&w.fd);
        msg_fini(&w.reply);
    }
    if (r)
        snprintf(e->op, sizeof e->op, "%s", join_word(join));
    return r;
}
