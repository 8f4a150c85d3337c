/* members.c - see members.h. */
#include "tests/unit/client/members.h"

static struct commd_context *context_new(void)
{
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    ctx->pid = getpid();
    ctx->sock = ctx->doorbell = -1;
    ctx->finished_tail = &ctx->finished;
    atomic_store(&ctx->lost, true); /* there is no commd in this test */
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

struct board_ctl *members_new(struct member *m)
{
    static const uint16_t rank_node[MEMBERS];
    struct board_geom g = {.group = 1,
                           .epoch = 1,
                           .world = MEMBERS,
                           .nnodes = 1,
                           .nlocal = MEMBERS,
                           .rank_node = rank_node};
    struct board_ctl *ctl;
    int fd;

    assert_int_equal(board_create(&g, &fd, &ctl), 0);
    for (unsigned k = 0; k < MEMBERS; k++) {
        struct join_wait w = {.board_fd = fd, .doorbell = -1};

        m[k].me = k;
        m[k].ctx = context_new();
        w.reply.joined.size = MEMBERS;
        w.reply.joined.nnodes = 1;
        w.reply.joined.group = 1;
        w.reply.joined.epoch = 1;
        w.reply.joined.members = calloc(MEMBERS, sizeof(struct msg_member));
        w.reply.joined.nodes = calloc(1, MSG_NAME_MAX);
        assert_int_equal(group_from_joined(m[k].ctx, "threads", k, MEMBERS, 60000, &w, &m[k].group),
                         0);
        if (k > 0) {
            board_unmap(&m[k].group->board);
            m[k].group->board = m[0].group->board;
        }
    }
    close(fd);
    return ctl;
}

void members_free(struct member *m, struct board_ctl *ctl)
{
    for (unsigned k = MEMBERS; k-- > 0;) {
        async_drop_group(m[k].group);
        async_stop(m[k].ctx);
        alive_end(m[k].group); /* its word is in the mapping */
        if (k > 0)
            memset(&m[k].group->board, 0, sizeof m[k].group->board);
        group_free(m[k].group);
        free(m[k].ctx);
    }
    board_ctl_free(ctl);
}
