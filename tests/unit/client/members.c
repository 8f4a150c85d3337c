/* members.c - see members.h. */
#include "tests/unit/client/members.h"

struct commd_context *member_context_new(void)
{
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    ctx->pid = getpid();
    ctx->sock = ctx->doorbell = ctx->back.sock = -1;
    ctx->finished_tail = &ctx->finished;
    atomic_store(&ctx->lost, true); /* there is no commd in this test */
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

struct board_ctl *members_group(struct commd_context *const *ctx, unsigned n, uint64_t id,
                                bool one_mapping, struct commd_group **ret_group)
{
    static const uint16_t rank_node[MEMBERS];
    struct board_geom g = {.group = id,
                           .epoch = 1,
                           .world = n,
                           .nnodes = 1,
                           .nlocal = n,
                           .plans = PLAN_KNOWN,
                           .rank_node = rank_node};
    struct board_ctl *ctl;
    int fd;

    assert_int_equal(board_create(&g, &fd, &ctl), 0);
    for (unsigned k = 0; k < n; k++) {
        struct awaited w = {.fd = fd, .doorbell = -1};

        w.reply.joined.size = n;
        w.reply.joined.nnodes = 1;
        w.reply.joined.group = id;
        w.reply.joined.epoch = 1;
        w.reply.joined.members = calloc(n, sizeof(struct msg_member));
        w.reply.joined.nodes = calloc(1, MSG_NAME_MAX);
        ret_group[k] = handle_new(ctx[k]);
        assert_int_equal(group_from_joined(ctx[k], "threads", k, n, 60000, &w, &ret_group[k]->now),
                         0);
        if (one_mapping && k > 0) {
            board_unmap(&ret_group[k]->now->board);
            ret_group[k]->now->board = ret_group[0]->now->board;
        }
    }
    close(fd);
    return ctl;
}

struct board_ctl *members_new(struct member *m)
{
    struct commd_context *ctx[MEMBERS];
    struct commd_group *group[MEMBERS];
    struct board_ctl *ctl;

    for (unsigned k = 0; k < MEMBERS; k++)
        ctx[k] = member_context_new();
    ctl = members_group(ctx, MEMBERS, 1, true, group);
    for (unsigned k = 0; k < MEMBERS; k++)
        m[k] = (struct member){.ctx = ctx[k], .group = group[k], .me = k};
    return ctl;
}

void member_leave(struct commd_group *g)
{
    async_drop_group(g->now);
    alive_end(g->now); /* its word is in the mapping */
    memset(&g->now->board, 0, sizeof g->now->board);
    handle_free(g);
}

void members_free(struct member *m, struct board_ctl *ctl)
{
    for (unsigned k = MEMBERS; k-- > 0;) {
        async_drop_group(m[k].group->now);
        async_stop(m[k].ctx);
        alive_end(m[k].group->now); /* its word is in the mapping */
        if (k > 0)
            memset(&m[k].group->now->board, 0, sizeof m[k].group->now->board);
        handle_free(m[k].group);
        free(m[k].ctx);
    }
    board_ctl_free(ctl);
}
