/* absent.c - which ranks have not come? An operation over several nodes that waits for long asks
 * commd, which asks the other nodes (daemon/core/core_absent.c). The error names all ranks that are
 * missing.
 *
 * Nothing here waits: the thread that waits for the operation keeps polling, and the operation may
 * still complete. The answers come over the connection, to the thread that reads it (control.c).
 * They are collected in the question, which is in ctx->questions until absent_free(). Each node of
 * the group sends one answer. When all answers are there, or after ABSENT_MS, the operation fails
 * and names the ranks that are known to be missing. In a group on one node the board says which
 * ranks are missing, and no question is sent. */
#include "client/lib/context/group.h"

#include <stdio.h>

#include "shm/util/ranks.h"

enum { ABSENT_MS = 1000 };

struct question {
    struct question *next;
    uint32_t req;
    int64_t until_ms;
    const struct membership *group; /* borrowed: outlives its operations */
    unsigned nnodes, answered, absent;
    int rank;                /* the first that is absent, -1 */
    char node[MSG_NAME_MAX]; /* of the absent, when they are of one node; else "" */
    char text[300];          /* "rank 3 of node b and ranks 5-7 of node c" */
    bool from[];             /* by node of the group: has answered */
};

/* ---- the answers ----------------------------------------------------------------------------- */

static void add_absent(struct question *q, const char *node, unsigned count, int rank,
                       const char *ranks)
{
    size_t used = strlen(q->text), room = sizeof q->text - used;
    int n;

    if (!count)
        return;
    n = snprintf(q->text + used, room, "%srank%s %s of node %s", used ? ", " : "",
                 count > 1 ? "s" : "", ranks, node);
    if ((size_t)n >= room)
        snprintf(q->text + used, room, room > 6 ? ", ..." : "");
    snprintf(q->node, sizeof q->node, "%s", q->absent ? "" : node);
    if (!q->absent)
        q->rank = rank;
    q->absent = MIN(q->absent + count, (unsigned)MSG_MAX_RANKS);
}

static void take_answer(struct question *q, const struct msg_absent *m)
{
    for (unsigned i = 0; i < q->nnodes; i++) {
        if (q->from[i] || strcmp(q->group->nodes[i], m->node))
            continue;
        q->from[i] = true;
        q->answered++;
        add_absent(q, m->node, m->count, m->rank, m->text);
        return;
    }
}

void absent_answer(struct commd_context *ctx, const struct msg_absent *m)
{
    assert_held(&ctx->lock);
    for (struct question *q = ctx->questions; q; q = q->next)
        if (q->req == m->req)
            take_answer(q, m);
}

/* ---- the question ---------------------------------------------------------------------------- */

static struct question *absent_ask_nodes(const struct membership *g, uint64_t seq)
{
    struct msg m = {.type = MSG_CLIENT_ASK_ABSENT,
                    .client_ask_absent = {.group = g->board.group, .seq = seq}};
    struct question *q = calloc(1, sizeof *q + g->board.nnodes * sizeof q->from[0]);
    struct commd_context *ctx = g->ctx;

    assert(g->board.nnodes > 1);
    if (!q)
        return NULL;
    q->group = g;
    q->nnodes = g->board.nnodes;
    q->rank = -1;
    q->until_ms = (int64_t)now_ms() + ABSENT_MS;
    pthread_mutex_lock(&ctx->lock);
    q->req = m.client_ask_absent.req = ++ctx->next_req;
    q->next = ctx->questions;
    ctx->questions = q;
    pthread_mutex_unlock(&ctx->lock);
    if (control_send_of(ctx, g->board.group, &m))
        q->until_ms = 0; /* nobody is there to answer */
    return q;
}

bool absent_ask(struct question **q, const struct membership *g, uint64_t seq)
{
    bool all;

    if (g->board.nnodes <= 1)
        return true;
    if (!*q) {
        *q = absent_ask_nodes(g, seq);
        return !*q;
    }
    pthread_mutex_lock(&g->ctx->lock);
    all = (*q)->answered == (*q)->nnodes;
    pthread_mutex_unlock(&g->ctx->lock);
    return all || (int64_t)now_ms() >= (*q)->until_ms;
}

void absent_free(struct question **q)
{
    struct question *old = steal_ptr(*q);
    struct commd_context *ctx;

    if (!old)
        return;
    ctx = old->group->ctx;
    pthread_mutex_lock(&ctx->lock);
    list_remove(ctx->questions, old, next);
    pthread_mutex_unlock(&ctx->lock);
    free(old);
}

/* ---- the words ------------------------------------------------------------------------------- */

/* Is the member so far behind that operation @seq cannot be posted (coll/posts.c)? */
static bool is_far_behind(const struct membership *g, unsigned m, uint64_t seq)
{
    return !seq_reached(atomic_load(&g->board.members[m].ops), (uint32_t)seq - BOARD_SLOTS);
}

/* Has the member not begun operation @seq, or met nobody in it, where this rank meets all at step
 * *@base? NULL: this rank does not. */
static bool is_absent(const struct membership *g, unsigned m, uint64_t seq, const uint32_t *base)
{
    const struct board_member *bm = &g->board.members[m];

    if (!seq_reached(atomic_load(&bm->started), (uint32_t)seq))
        return true;
    return base && seq_reached(atomic_load(&bm->ops), (uint32_t)seq) &&
           !board_has_met(&g->board, m, *base);
}

/* Members of this node that are absent, from the board itself. If some are far behind, the others
 * wait for these. */
static void add_here(struct question *q, const struct membership *g, uint64_t seq,
                     const uint32_t *base)
{
    char ranks[160];
    struct rank_list list;
    bool far = false;

    for (unsigned m = 0; m < g->board.nlocal; m++)
        far |= is_far_behind(g, m, seq);
    rank_list_init(&list, ranks, sizeof ranks);
    for (unsigned m = 0; m < g->board.nlocal; m++)
        if (far ? is_far_behind(g, m, seq) : is_absent(g, m, seq, base))
            rank_list_add(&list, g->local_rank[m]);
    rank_list_end(&list);
    add_absent(q, g->ctx->node, list.n, list.lowest, ranks);
}

/* "; nobody could say for node b, c" */
static void add_silent(const struct question *q, char *text, size_t len)
{
    unsigned silent = 0;

    for (unsigned i = 0; i < q->nnodes; i++) {
        size_t used = strlen(text);

        if (!q->from[i] && strcmp(q->group->nodes[i], q->group->ctx->node))
            snprintf(text + used, len - used, "%s%s",
                     silent++ ? ", " : "; nobody could say for node ", q->group->nodes[i]);
    }
}

bool absent_text(const struct question *q, const struct membership *g, uint64_t seq,
                 const uint32_t *base, char *text, size_t len, int *ret_rank,
                 char node[MSG_NAME_MAX])
{
    struct question here = {.group = g, .rank = -1}; /* has no table of nodes: there are 0 */
    const struct question *known = &here;
    bool missing;

    pthread_mutex_lock(&g->ctx->lock);
    if (q && q->answered)
        known = q;
    else
        add_here(&here, g, seq, base);
    missing = known->absent;
    if (missing)
        snprintf(text, len, "%s did not come", known->text);
    else
        snprintf(text, len, "all ranks have come, but it did not end in time");
    if (q)
        add_silent(q, text, len);
    *ret_rank = known->absent == 1 ? known->rank : -1;
    snprintf(node, MSG_NAME_MAX, "%s", known->node);
    pthread_mutex_unlock(&g->ctx->lock);
    return missing;
}
