/* A group has gone on without a rank: when its recovery returns, the boards of the other groups say
 * that this rank is gone (client/lib/context/elsewhere.c). */
#include <unistd.h>

#include "tests/unit/client/members.h"

enum { DEAD = 2, PID = 4711 };

/* A group of which this process is rank 0. */
struct one {
    struct commd_group *of[MEMBERS];
    struct board_ctl *ctl;
};

static struct commd_context *ctx;

static struct one make(unsigned n, uint64_t id)
{
    struct commd_context *each[MEMBERS] = {ctx, ctx, ctx};
    struct one one;

    one.ctl = members_group(each, n, id, false, one.of);
    for (unsigned k = 0; k < n; k++) {
        one.of[0]->now->members[k].pid = PID + k;
        one.of[0]->now->members[k].was = k + 1;
    }
    one.of[0]->next = ctx->groups;
    ctx->groups = one.of[0];
    return one;
}

static void end(struct one *one, unsigned n)
{
    for (unsigned k = 0; k < n; k++) {
        async_drop_group(one->of[k]->now);
        handle_free(one->of[k]);
    }
    board_ctl_free(one->ctl);
}

struct later {
    struct one *first, *second;
    unsigned cause;
};

/* commd tells of the loss: of one group, and some time after that of the other. */
static void *tell(void *arg)
{
    struct later *l = arg;

    usleep(30000);
    board_mark_gone(l->first->ctl, DEAD, 0, l->cause, PID + DEAD);
    usleep(30000);
    board_mark_gone(l->second->ctl, DEAD, 0, l->cause, PID + DEAD);
    return NULL;
}

static void try_one(unsigned cause, bool seats)
{
    struct one old, others, now;
    pthread_t thread;

    ctx = member_context_new();
    others = make(MEMBERS, 1);
    old = make(MEMBERS, 2);
    now = make(MEMBERS - 1, 3);
    ctx->groups = now.of[0];
    now.of[0]->next = others.of[0]; /* the handle is that of the new epoch */
    if (seats)
        board_mark_gone(old.ctl, DEAD, 0, cause, PID + DEAD);
    assert_int_equal(pthread_create(&thread, NULL, tell,
                                    &(struct later){seats ? &others : &old, &others, cause}),
                     0);
    elsewhere_known(now.of[0], old.of[0]->now, seats, 60000);
    assert_int_equal(board_missed(&old.of[0]->now->board, DEAD), cause);
    if (cause != CAUSE_LEFT) /* who has left the one may be in the other */
        assert_int_equal(board_missed(&others.of[0]->now->board, DEAD), cause);
    pthread_join(thread, NULL);
    end(&now, MEMBERS - 1);
    end(&old, MEMBERS);
    end(&others, MEMBERS);
    async_stop(ctx);
    free(ctx);
}

static void all_groups_know_who_died(void **state)
{
    (void)state;
    try_one(CAUSE_RANK_LOST, false);
    try_one(CAUSE_RANK_LOST, true);
}

static void all_groups_know_of_a_lost_node(void **state)
{
    (void)state;
    try_one(CAUSE_NODE_LOST, false);
}

static void who_has_left_is_known_to_have_left(void **state)
{
    (void)state;
    try_one(CAUSE_LEFT, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_groups_know_who_died),
        cmocka_unit_test(all_groups_know_of_a_lost_node),
        cmocka_unit_test(who_has_left_is_known_to_have_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
