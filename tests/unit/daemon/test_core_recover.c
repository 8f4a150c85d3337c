/* test_core_recover.c - one core as the home of recoveries, and as their origin: what it promises
 * to each rank, and to nodes that lie. Whole clusters: tests/sim. */
#include "tests/unit/daemon/core_bench.h"

/* Node a is the home; b and c are linked and no more, so that no home moves. */
static struct bench *home(void)
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);

    for (unsigned node = 1; node < 3; node++) {
        struct msg msg = {.type = MSG_PEER_HELLO, .peer_hello = {MSG_VERSION, node, "test", ""}};

        feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = node, .msg = &msg});
    }
    bench->got[0] = 0;
    return bench;
}

static void says(struct bench *bench, unsigned node, const struct msg *msg)
{
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = node, .msg = msg});
}

struct ask {
    unsigned recovery, rank, of, seats, least;
};

/* Rank @rank of 4 of epoch 3 of group 99, on node @node; its request has the number @join. */
static void asks(struct bench *bench, unsigned node, unsigned join, struct ask ask)
{
    bool follows = ask.recovery != MSG_RECOVERY_REJOIN;
    struct msg msg = {.type = MSG_JOIN,
                      .join = {.join = join,
                               .uid = 7,
                               .pid = 1000 + join,
                               .rank = follows ? 0 : ask.rank,
                               .size = ask.recovery == MSG_RECOVERY_SHRINK ? 1 : ask.seats,
                               .recovery = ask.recovery,
                               .least = ask.least,
                               .follows = follows ? 99 : 0,
                               .was_rank = follows ? ask.rank : 0,
                               .was_size = follows ? (ask.of ? ask.of : 4) : 0,
                               .was_epoch = follows ? 3 : 0,
                               .name = "g"}};

    says(bench, node, &msg);
}

static void news(struct bench *bench, unsigned node, unsigned join, bool enough, unsigned n,
                 uint32_t first)
{
    uint32_t gone[4] = {first, first + 1, first + 2, first + 3};
    struct msg msg = {.type = MSG_JOIN_NEWS, .join_news = {join, enough, n, gone}};

    says(bench, node, &msg);
}

#define SHRINK(rank)                                                                               \
    (struct ask)                                                                                   \
    {                                                                                              \
        MSG_RECOVERY_SHRINK, rank, 0, 0, 0                                                         \
    }
#define WAIT(rank)                                                                                 \
    (struct ask)                                                                                   \
    {                                                                                              \
        MSG_RECOVERY_WAIT, rank, 0, 0, 0                                                           \
    }
#define REJOIN(seat)                                                                               \
    (struct ask)                                                                                   \
    {                                                                                              \
        MSG_RECOVERY_REJOIN, seat, 0, 0, 0                                                         \
    }

static void shrinks_to_who_is_left(void **state)
{
    struct bench *bench = home();

    asks(bench, 1, 10, SHRINK(0));
    asks(bench, 2, 20, SHRINK(3));
    news(bench, 1, 10, false, 1, 1);
    expect(bench, ""); /* rank 2 is awaited */
    news(bench, 2, 20, false, 1, 2);
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 0, 1 was 3\n"
                  "to 2 COMMIT epoch 4 of 99: 0 was 0, 1 was 3\n");
    bench_free(bench);
}

/* Its link was cut for a moment: it lives, and is no reason to go on without it. */
static void one_that_is_said_to_be_gone_comes(void **state)
{
    struct bench *bench = home();

    asks(bench, 1, 10, SHRINK(0));
    news(bench, 1, 10, false, 2, 1);
    asks(bench, 2, 20, SHRINK(2));
    asks(bench, 2, 21, SHRINK(3));
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 0, 1 was 2, 2 was 3\n"
                  "to 2 COMMIT epoch 4 of 99: 0 was 0, 1 was 2, 2 was 3\n");
    bench_free(bench);
}

static void too_few_are_told_at_once(void **state)
{
    struct ask least = {MSG_RECOVERY_SHRINK, 0, 0, 0, 3};
    struct bench *bench = home();

    asks(bench, 1, 10, least);
    news(bench, 1, 10, false, 1, 2);
    expect(bench, "");
    least.rank = 1;
    asks(bench, 2, 20, least);
    news(bench, 2, 20, false, 2, 2);
    expect(bench,
           "to 1 JOIN_REFUSED 10 cause 5 rank 2: group \"g\": 2 of its 4 ranks are left, and "
           "at least 3 are wanted: gone are ranks 2,3 of epoch 3\n"
           "to 2 JOIN_REFUSED 20 cause 5 rank 2: group \"g\": 2 of its 4 ranks are left, and "
           "at least 3 are wanted: gone are ranks 2,3 of epoch 3\n");
    bench_free(bench);
}

/* By number first, then the lowest. Survivors keep theirs. */
static void new_processes_take_seats(void **state)
{
    struct ask four = {MSG_RECOVERY_WAIT, 1, 0, 5, 0};
    struct bench *bench = home();

    asks(bench, 2, 30, REJOIN(MSG_ANY_SEAT));
    asks(bench, 2, 31, REJOIN(0));
    asks(bench, 1, 10, four);
    four.rank = 3;
    asks(bench, 1, 11, four);
    news(bench, 1, 10, false, 1, 0);
    expect(bench, "");               /* rank 2 is awaited */
    news(bench, 1, 10, false, 3, 0); /* rank 1 is here */
    expect(bench, "");               /* seat 4 is free */
    asks(bench, 2, 32, REJOIN(2));
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 new, 1 was 1, 2 new, 3 was 3, 4 new\n"
                  "to 2 COMMIT epoch 4 of 99: 0 new, 1 was 1, 2 new, 3 was 3, 4 new\n");
    bench_free(bench);
}

static void one_has_waited_enough(void **state)
{
    struct bench *bench = home();

    asks(bench, 1, 10, WAIT(1));
    asks(bench, 1, 11, WAIT(2));
    asks(bench, 2, 30, REJOIN(3));
    news(bench, 1, 10, true, 1, 0);
    expect(bench, ""); /* rank 3 is awaited, whatever the time */
    news(bench, 1, 11, false, 1, 3);
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 1, 1 was 2, 2 new\n"
                  "to 2 COMMIT epoch 4 of 99: 0 was 1, 1 was 2, 2 new\n");
    bench_free(bench);
}

static void a_process_that_is_not_needed_waits_on(void **state)
{
    struct bench *bench = home();

    asks(bench, 2, 30, REJOIN(1));
    for (unsigned rank = 0; rank < 4; rank++)
        asks(bench, 1, 10 + rank, WAIT(rank));
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 0, 1 was 1, 2 was 2, 3 was 3\n");
    says(bench, 2, &(struct msg){.type = MSG_JOIN_CANCEL, .join_cancel = {30}});
    expect(bench, "to 2 JOIN_REFUSED 30 cause 4 rank 0: no rank of a group of that name waits for "
                  "new processes\n");
    bench_free(bench);
}

/* Its time runs out while the group waits for somebody else: it is told who has its seat. */
static void who_asks_for_a_taken_seat_is_told(void **state)
{
    struct bench *bench = home();

    asks(bench, 2, 30, REJOIN(1));
    asks(bench, 1, 10, WAIT(0));
    asks(bench, 1, 11, WAIT(1));
    says(bench, 2, &(struct msg){.type = MSG_JOIN_CANCEL, .join_cancel = {30}});
    expect(bench, "to 2 JOIN_REFUSED 30 cause 4 rank 0: seat 1 is taken: pid 1011 on node b lives, "
                  "and goes on with it; ask for another seat, or for any\n");
    asks(bench, 2, 31, REJOIN(2));
    says(bench, 2, &(struct msg){.type = MSG_JOIN_CANCEL, .join_cancel = {31}});
    expect(bench, "to 2 JOIN_REFUSED 31 cause 4 rank 0: the group still waits for ranks 2,3 of its "
                  "epoch 3\n");
    bench_free(bench);
}

static void contradictions_name_both(void **state)
{
    struct ask other = {MSG_RECOVERY_WAIT, 1, 0, 6, 2};
    struct bench *bench = home();

    asks(bench, 1, 10, SHRINK(0));
    asks(bench, 2, 20, other);
    expect(bench,
           "to 2 JOIN_REFUSED 20 cause 1 rank 1: group \"g\": rank 1 of epoch 3 asks for "
           "policy wait, size 6, min_size 2, but others of it asked for policy shrink, min_size 0: "
           "give the same policy, size and min_size on all ranks\n");
    says(bench, 1, &(struct msg){.type = MSG_JOIN_CANCEL, .join_cancel = {10}});
    expect(bench,
           "to 1 JOIN_REFUSED 10 cause 4 rank 0: ranks 1-3 of epoch 3 have not asked to go on, "
           "but rank 1 was refused, because it asked for policy wait, size 6, min_size 2\n");
    asks(bench, 1, 10, SHRINK(0));
    asks(bench, 2, 21, SHRINK(0));
    expect(bench,
           "to 2 JOIN_REFUSED 21 cause 1 rank 0: group \"g\": for rank 0 of epoch 3 pid 1010 "
           "on node b has asked already\n");
    asks(bench, 1, 30, REJOIN(2));
    asks(bench, 2, 31, REJOIN(2));
    expect(bench, "to 2 JOIN_REFUSED 31 cause 1 rank 2: group \"g\": for seat 2 pid 1030 on node b "
                  "has asked already\n");
    other = (struct ask){MSG_RECOVERY_WAIT, 3, 0, 2, 0};
    asks(bench, 2, 22, other);
    expect(bench,
           "to 2 JOIN_REFUSED 22 cause 1 rank 3: group \"g\": rank 3 of epoch 3 cannot go on "
           "with at least 0 of 2 ranks\n");
    bench_free(bench);
}

/* What a node says of other sizes, of no group, or of a join that is not its own changes nothing.
 */
static void lies(void **state)
{
    struct bench *bench = home();
    struct ask larger = {MSG_RECOVERY_SHRINK, 5, 8, 0, 0};

    asks(bench, 1, 10, SHRINK(0));
    asks(bench, 2, 20, larger);
    expect(bench, "to 2 JOIN_REFUSED 20 cause 1 rank 5: group \"g\": rank 5 of epoch 3 asks for "
                  "policy shrink, min_size 0, but others of it asked for policy shrink, min_size "
                  "0: give the same policy, size and min_size "
                  "on all ranks\n");
    news(bench, 2, 10, false, 3, 1); /* of a join of node b */
    news(bench, 1, 10, false, 2, 3); /* rank 4 of 4 */
    asks(bench, 2, 21, (struct ask){MSG_RECOVERY_SHRINK, 9, 4, 0, 0});
    asks(bench, 2, 22, (struct ask){MSG_RECOVERY_COUNT, 0, 4, 0, 0});
    expect(bench, "");
    news(bench, 1, 10, false, 3, 1);
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 0\n");
    bench_free(bench);
}

/* A place that is free again is awaited again, unless the rank is gone. */
static void survivors_give_up(void **state)
{
    struct bench *bench = home();

    asks(bench, 1, 10, WAIT(0));
    asks(bench, 2, 20, WAIT(1));
    news(bench, 1, 10, false, 1, 3);
    says(bench, 2, &(struct msg){.type = MSG_JOIN_CANCEL, .join_cancel = {20}});
    expect(bench, "to 2 JOIN_REFUSED 20 cause 4 rank 0: rank 2 of epoch 3 has not asked to go on; "
                  "seat 3 is free\n");
    asks(bench, 1, 12, WAIT(2));
    asks(bench, 1, 30, REJOIN(MSG_ANY_SEAT));
    expect(bench, "");
    asks(bench, 2, 21, WAIT(1));
    expect(bench, "to 1 COMMIT epoch 4 of 99: 0 was 0, 1 was 1, 2 was 2, 3 new\n"
                  "to 2 COMMIT epoch 4 of 99: 0 was 0, 1 was 1, 2 was 2, 3 new\n");
    bench_free(bench);
}

/* ---- the origin, on one node ----------------------------------------------------------------- */

static uint64_t group_id(const struct bench *bench, unsigned i)
{
    struct core_group_view view;

    assert_true(core_group_at(bench->core, i, &view));
    return view.id;
}

static void recover(struct bench *bench, unsigned client, uint32_t req, const char *name,
                    unsigned recovery, uint64_t follows, uint32_t least)
{
    bool rejoins = recovery == MSG_RECOVERY_REJOIN;
    struct msg msg = {.type = MSG_CLIENT_JOIN,
                      .client_join = {.req = req,
                                      .rank = rejoins ? MSG_ANY_SEAT : 0,
                                      .size = recovery == MSG_RECOVERY_SHRINK,
                                      .recovery = recovery,
                                      .follows = follows,
                                      .least = least}};

    text_copy(msg.client_join.name, sizeof(msg.client_join.name), name);
    say(bench, client, &msg);
}

static struct bench *three_ranks(void)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    for (unsigned i = 0; i < 4; i++)
        hello(bench, i, 7, false);
    for (unsigned i = 0; i < 3; i++)
        join(bench, i, 1, "g", i, 3);
    bench->got[0] = 0;
    return bench;
}

static void kill_client(struct bench *bench, unsigned client)
{
    feed(bench,
         (struct core_event){.type = CORE_CLIENT_CLOSED, .client = client, .text = "killed"});
}

/* What a rank aborts when another one was lost is revoked, and has not broken by an abort. */
static void revoked_after_a_loss(void **state)
{
    for (unsigned lost = 0; lost < 2; lost++) {
        struct bench *bench = three_ranks();
        struct msg msg = {.type = MSG_CLIENT_ABORT, .client_abort.group = group_id(bench, 0)};
        const struct core_counts *counts = core_counts(bench->core);
        struct core_group_view view;

        if (lost)
            kill_client(bench, 1);
        feed(bench, (struct core_event){.type = CORE_CLIENT_MSG, .client = 0, .msg = &msg});
        assert_true(core_group_at(bench->core, 0, &view));
        assert_int_equal(view.state, CORE_GROUP_BROKEN);
        assert_int_equal(view.cause, CAUSE_ABORTED);
        assert_int_equal(view.revoked, lost);
        assert_int_equal(counts->groups_revoked, lost);
        assert_int_equal(counts->groups_broken[CAUSE_ABORTED], 1 - lost);
        bench_free(bench);
    }
    (void)state;
}

/* Operations fail by what broke the group; the boards say besides who is not there any more. */
static void who_ends_in_a_broken_group_is_missed(void **state)
{
    const struct msg hello_ = {.type = MSG_PEER_HELLO, .peer_hello = {MSG_VERSION, 1, "test", ""}};
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_JOIN,
                      .join = {.join = 1u << 17 | 1, .uid = 7, .pid = 9, .size = 4}};
    struct core_group_view view;
    struct group *group = NULL;

    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello_});
    bench->core->peers[1].state = CORE_PEER_READY;
    for (unsigned i = 0; i < 2; i++)
        hello(bench, i, 7, false);
    for (char name[] = "a"; !group; name[0]++) { /* of one of them the home is here */
        for (unsigned i = 0; i < 2; i++)
            join(bench, i, (unsigned)name[0], name, i, 4);
        text_copy(msg.join.name, sizeof(msg.join.name), name);
        for (msg.join.rank = 2; msg.join.rank < 4; msg.join.rank++, msg.join.join++)
            says(bench, 1, &msg);
        group = list_first(&bench->core->all_groups, struct group, all);
    }
    says(bench, 1, &(struct msg){.type = MSG_SYNC, .sync = {.group = group->id, .all = true}});
    assert_int_equal(group->state, GROUP_OPEN);
    says(bench, 1,
         &(struct msg){.type = MSG_BROKEN,
                       .broken = {.group = group->id,
                                  .cause = CAUSE_ABORTED,
                                  .rank = 2,
                                  .node = "b",
                                  .text = "enough"}});
    assert_int_equal(group->state, GROUP_BROKEN);
    bench->got[0] = 0;
    says(bench, 1,
         &(struct msg){.type = MSG_GONE,
                       .gone = {.group = group->id,
                                .rank = 3,
                                .cause = CAUSE_RANK_LOST,
                                .text = "rank 3 was killed"}});
    expect(bench, "rank 3 missed: rank 3 was killed\n");
    kill_client(bench, 1);
    assert_non_null(strstr(bench->got, "rank 1 missed: rank 1 (pid "));
    bench->got[0] = 0;
    feed(bench,
         (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "no", .refused = true});
    assert_non_null(strstr(bench->got, "nodes missed\n"));
    assert_true(core_group(bench->core, group->id, &view) && view.lost[1] && !view.lost[0]);
    bench->got[0] = 0;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello_});
    says(bench, 1, &(struct msg){.type = MSG_SYNC, .sync = {.group = group->id, .again = 1}});
    assert_null(strstr(bench->got, "nodes missed")); /* it may never have opened there */
    says(bench, 1, &(struct msg){.type = MSG_SYNC, .sync = {.group = group->id, .all = true}});
    assert_non_null(strstr(bench->got, "nodes missed\n"));
    assert_true(core_group(bench->core, group->id, &view) && !view.lost[1]);
    bench_free(bench);
    (void)state;
}

static void goes_on_in_place(void **state)
{
    struct bench *bench = three_ranks();
    struct core_group_view view;
    uint64_t old = group_id(bench, 0);

    recover(bench, 2, 2, "g", MSG_RECOVERY_SHRINK, old, 0);
    recover(bench, 0, 2, "g", MSG_RECOVERY_SHRINK, old, 0);
    expect(bench, "");
    kill_client(bench, 1);
    expect(bench, "rank 1 gone: rank 1 (pid 101 on node a) was lost: killed\ngroup open\n");
    assert_true(core_group_at(bench->core, 1, &view));
    assert_int_equal(view.follows, old);
    assert_int_equal(view.epoch, 2);
    assert_int_equal(view.size, 2);
    assert_int_equal(view.members[0].was, 1);
    assert_int_equal(view.members[1].was, 3);
    assert_int_equal(view.members[1].pid, 102);
    assert_int_equal(view.next_epoch, 0);
    assert_int_equal(core_counts(bench->core)->groups_recovered[CORE_RECOVERED_FEWER], 1);
    assert_int_equal(core_counts(bench->core)->groups_opened, 2);
    assert_true(core_group(bench->core, old, &view));
    assert_int_equal(view.next_epoch, 2);
    /* Once is enough. */
    recover(bench, 0, 3, "h", MSG_RECOVERY_SHRINK, old, 0);
    expect(bench,
           "0 JOIN_FAILED req 3 cause 1 rank -1 node a: group \"h\": this client has gone on "
           "from its epoch 1 already, as group \"g\"\n");
    bench_free(bench);
}

static void remember(struct bench *bench, uint64_t follows, uint32_t uid)
{
    struct group group = {.follows = follows, .epoch = 2, .uid = uid, .payer = uid};

    follow_remember(bench->core, &group);
}

/* Who is told that others have gone on without it is told so whatever other users do. */
static void many_epochs_of_one_user_push_out_nobody_else(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    uint32_t quiet = 8, other = 9;

    remember(bench, 1, quiet);
    remember(bench, 2, other);
    for (uint64_t i = 0; i < 2 * CORE_PASSED; i++)
        remember(bench, 1000 + i, 7);
    assert_int_equal(follow_gone_as(bench->core, &quiet, 1), 2);
    assert_int_equal(follow_gone_as(bench->core, &other, 2), 2);
    assert_int_equal(follow_gone_as(bench->core, NULL, 1000), 0);
    assert_int_equal(follow_gone_as(bench->core, NULL, 1000 + 2 * CORE_PASSED - 1), 2);
    for (uint64_t i = 0; i < CORE_PASSED; i++) /* each has a half in the end */
        remember(bench, 5000 + i, other);
    assert_int_equal(follow_gone_as(bench->core, &quiet, 1), 2);
    assert_int_equal(follow_gone_as(bench->core, NULL, 1000 + 2 * CORE_PASSED - 100), 2);
    assert_int_equal(follow_gone_as(bench->core, NULL, 5000 + CORE_PASSED - 100), 2);
    assert_int_equal(follow_gone_as(bench->core, NULL, 5000), 0);
    bench_free(bench);
    (void)state;
}

/* A group of which this commd knows nothing, because it was started anew. */
enum { STRAY = 4711 };

/* Client @client, rank @rank of @of of its epoch 5, which says that ranks are gone. */
static void strays(struct bench *bench, unsigned client, unsigned recovery, uint32_t rank,
                   uint32_t of, uint32_t ngone, uint32_t *gone)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN,
                      .client_join = {.req = 7,
                                      .size = recovery == MSG_RECOVERY_SHRINK,
                                      .recovery = recovery,
                                      .follows = STRAY,
                                      .was_rank = rank,
                                      .was_size = of,
                                      .was_epoch = 5,
                                      .ngone = ngone,
                                      .gone = gone,
                                      .name = "g"}};

    say(bench, client, &msg);
}

static struct bench *anew(void)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    for (unsigned i = 0; i < 4; i++)
        hello(bench, i, i == 3 ? 8 : 7, false);
    bench->got[0] = 0;
    return bench;
}

static void goes_on_from_a_group_that_is_not_known(void **state)
{
    uint32_t gone[] = {1, 3};
    struct bench *bench = anew();
    struct core_group_view view;

    strays(bench, 0, MSG_RECOVERY_SHRINK, 4, 5, 1, gone);
    strays(bench, 1, MSG_RECOVERY_SHRINK, 0, 5, 0, NULL); /* it need not see that */
    strays(bench, 2, MSG_RECOVERY_SHRINK, 2, 5, 0, NULL);
    expect(bench, ""); /* rank 3 is awaited */
    assert_int_equal(bench->core->strays.live, 1);
    strays(bench, 0, MSG_RECOVERY_SHRINK, 4, 5, 2, gone); /* asked again: it has died, too */
    expect(bench, "group open\n");
    assert_true(core_group_at(bench->core, 0, &view));
    assert_int_equal(view.follows, STRAY);
    assert_int_equal(view.epoch, 6);
    assert_int_equal(view.size, 3);
    assert_int_equal(view.members[0].was, 1);
    assert_int_equal(view.members[1].was, 3);
    assert_int_equal(view.members[2].was, 5);
    assert_int_equal(bench->core->strays.live, 0);
    bench_free(bench);
    (void)state;
}

/* Whoever dies while it waits is said to be gone by the others; nothing of it stays. */
static void one_that_had_asked_dies(void **state)
{
    uint32_t gone[] = {1, 2};
    struct bench *bench = anew();

    strays(bench, 0, MSG_RECOVERY_SHRINK, 0, 3, 1, gone);
    strays(bench, 1, MSG_RECOVERY_SHRINK, 2, 3, 1, gone);
    assert_non_null(strstr(bench->got, "group open\n"));
    bench_free(bench);

    bench = anew();
    strays(bench, 0, MSG_RECOVERY_WAIT, 0, 3, 1, gone);
    strays(bench, 1, MSG_RECOVERY_WAIT, 2, 3, 1, gone);
    kill_client(bench, 1);
    strays(bench, 0, MSG_RECOVERY_WAIT, 0, 3, 2, gone);
    expect(bench, ""); /* two seats are free */
    for (unsigned client = 1; client < 3; client++) {
        if (client == 1)
            hello(bench, client, 7, false);
        recover(bench, client, 9, "g", MSG_RECOVERY_REJOIN, 0, 0);
    }
    assert_non_null(strstr(bench->got, "group open\n"));
    for (unsigned client = 0; client < 4; client++)
        kill_client(bench, client);
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(bench->core->strays.live, 0);
    assert_int_equal(bench->core->runs.used, 0);
    bench_free(bench);
    (void)state;
}

/* A client can say what it likes of a group that nobody knows: of its own user, once, and as others
 * of it say. Of one that is known it can say nothing. */
static void what_is_said_of_an_unknown_group(void **state)
{
    uint32_t gone[] = {1}, beyond[] = {3};
    struct bench *bench = anew();
    uint64_t known;

    strays(bench, 0, MSG_RECOVERY_SHRINK, 0, 3, 0, NULL);
    strays(bench, 1, MSG_RECOVERY_SHRINK, 1, 4, 0, NULL);
    expect(bench,
           "1 JOIN_FAILED req 7 cause 1 rank -1 node a: group \"g\": this client says that it goes "
           "on from epoch 5 of 4 ranks, others of this node say epoch 5 of 3\n");
    strays(bench, 1, MSG_RECOVERY_SHRINK, 3, 3, 0, NULL);
    expect(bench, "1 JOIN_FAILED req 7 cause 1 rank -1 node a: group \"g\": there is no rank 3 of "
                  "3 of epoch 5 that lives, as this client says\n");
    strays(bench, 1, MSG_RECOVERY_SHRINK, 1, 3, 1, beyond);
    expect(bench, "1 JOIN_FAILED req 7 cause 1 rank -1 node a: group \"g\": there is no rank 1 of "
                  "3 of epoch 5 that lives, as this client says\n");
    strays(bench, 1, MSG_RECOVERY_SHRINK, 0, 3, 0, NULL);
    expect(bench, "1 JOIN_FAILED req 7 cause 1 rank 0 node a: group \"g\": for rank 0 of epoch 5 "
                  "pid 100 on node a has asked already\n");
    strays(bench, 3, MSG_RECOVERY_SHRINK, 1, 2, 1, gone); /* of another user: another group */
    expect(bench, "");
    assert_int_equal(bench->core->strays.live, 2);
    strays(bench, 1, MSG_RECOVERY_SHRINK, 2, 3, 1, gone);
    expect(bench, "group open\n");
    /* Whom the others took for gone comes later. */
    strays(bench, 2, MSG_RECOVERY_SHRINK, 1, 3, 0, NULL);
    expect(bench, "2 JOIN_FAILED req 7 cause 5 rank 1 node : group \"g\": the others have gone on "
                  "as epoch 6 without rank 1 of the epoch before: rejoin as a new process\n");
    strays(bench, 0, MSG_RECOVERY_WAIT, 0, 3, 0, NULL);
    expect(bench,
           "0 JOIN_FAILED req 7 cause 1 rank -1 node a: group \"g\": this client has gone on "
           "from its epoch 5 already, as group \"g\"\n");
    known = group_id(bench, 0);
    say(bench, 2,
        &(struct msg){.type = MSG_CLIENT_JOIN,
                      .client_join = {.req = 8,
                                      .size = 1,
                                      .recovery = MSG_RECOVERY_SHRINK,
                                      .follows = known,
                                      .was_rank = 0,
                                      .was_size = 2,
                                      .was_epoch = 6,
                                      .name = "g"}});
    assert_non_null(strstr(bench->got, "2 JOIN_FAILED req 8 cause 1 rank -1 node a: group \"g\": "
                                       "this client is not in the group that it wants to go on"));
    bench_free(bench);
    (void)state;
}

/* Who is in no such group, of whatever user, gets nothing. */
static void only_members_follow(void **state)
{
    struct bench *bench = three_ranks();
    uint64_t old = group_id(bench, 0);

    recover(bench, 3, 2, "g", MSG_RECOVERY_SHRINK, old, 0);
    expect(bench,
           "3 JOIN_FAILED req 2 cause 1 rank -1 node a: group \"g\": this client is not in the "
           "group that it wants to go on from\n");
    recover(bench, 0, 2, "g", MSG_RECOVERY_SHRINK, old + 1, 0);
    expect(bench,
           "0 JOIN_FAILED req 2 cause 5 rank -1 node a: group \"g\": commd does not know "
           "the group that this client wants to go on from; it does not after a start without "
           "what the commd before it knew: leave the group and rejoin, or make a subgroup of "
           "the ranks that live\n");
    recover(bench, 0, 2, "g", MSG_RECOVERY_WAIT, old, 4);
    expect(bench, "0 JOIN_FAILED req 2 cause 1 rank -1 node a: group \"g\": at least 4 ranks are "
                  "wanted, and it has 3\n");
    recover(bench, 0, 2, "g", MSG_RECOVERY_REJOIN, old, 0);
    expect(bench,
           "0 JOIN_FAILED req 2 cause 1 rank -1 node a: group \"g\": this is no way to go on "
           "from a group\n");
    bench_free(bench);
}

/* The program gave up, and asks again: the older request is out of the way. */
static void asked_anew(void **state)
{
    struct bench *bench = three_ranks();
    uint64_t old = group_id(bench, 0);
    struct core_group_view view;

    recover(bench, 0, 2, "g", MSG_RECOVERY_SHRINK, old, 0);
    recover(bench, 0, 3, "g", MSG_RECOVERY_WAIT, old, 0);
    recover(bench, 1, 2, "g", MSG_RECOVERY_WAIT, old, 0);
    kill_client(bench, 2);
    expect(bench, "rank 2 gone: rank 2 (pid 102 on node a) was lost: killed\n");
    assert_true(core_group_at(bench->core, 1, &view));
    assert_int_equal(view.recovery, MSG_RECOVERY_WAIT);
    assert_int_equal(view.epoch, 2);
    assert_string_equal(view.seats, "2");
    assert_string_equal(view.missing, "");
    recover(bench, 3, 2, "g", MSG_RECOVERY_REJOIN, 0, 0);
    expect(bench, "group open\n");
    assert_int_equal(core_counts(bench->core)->groups_recovered[CORE_RECOVERED_NEW], 1);
    bench_free(bench);
}

/* New processes are waited for so long, and no longer. */
static void the_origin_keeps_the_time(void **state)
{
    struct bench *bench = three_ranks();
    struct msg msg = {.type = MSG_CLIENT_JOIN,
                      .client_join = {.req = 2,
                                      .recovery = MSG_RECOVERY_WAIT,
                                      .follows = group_id(bench, 0),
                                      .wait_ms = 500,
                                      .name = "g"}};

    kill_client(bench, 1);
    say(bench, 0, &msg);
    say(bench, 2, &msg);
    bench->got[0] = 0;
    bench->now += 499;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "");
    bench->now += 1;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "group open\n");
    bench_free(bench);
}

static bool view_of(const struct bench *bench, unsigned recovery, struct core_group_view *ret_view)
{
    for (unsigned i = 0; core_group_at(bench->core, i, ret_view); i++)
        if (!ret_view->id && ret_view->recovery == recovery)
            return true;
    return false;
}

/* Under one name: ranks of a group, new processes, and one that joins as if nothing had been. */
static void who_waits_is_told_apart(void **state)
{
    enum { NEW = 70 }; /* more than one forming has room for */
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_joiner joiners[NEW + 1];
    struct core_group_view view;
    unsigned views = 0;
    uint64_t old;

    (void)state;
    config.max_clients = config.max_clients_per_user = 4 * NEW;
    bench = bench_new(&config);
    for (unsigned i = 0; i < NEW + 4; i++)
        hello(bench, i, 7, false);
    for (unsigned i = 0; i < 3; i++)
        join(bench, i, 1, "g", i, 3);
    old = group_id(bench, 0);
    recover(bench, 0, 2, "g", MSG_RECOVERY_WAIT, old, 0);
    for (unsigned i = 0; i < NEW; i++)
        recover(bench, 3 + i, 2, "g", MSG_RECOVERY_REJOIN, 0, 0);
    join(bench, NEW + 3, 1, "g", 1, 4);
    while (core_group_at(bench->core, views, &view))
        views++;
    assert_int_equal(views, 4); /* with the group itself */
    assert_true(view_of(bench, MSG_RECOVERY_WAIT, &view));
    assert_int_equal(view.size, 3);
    assert_int_equal(view.nlocal, 1);
    assert_int_equal(view.comers, NEW);
    assert_string_equal(view.missing, "1,2");
    assert_int_equal(core_joiners(bench->core, &view, joiners, NEW + 1), 1);
    assert_int_equal(joiners[0].pid, 100);
    assert_true(view_of(bench, MSG_RECOVERY_REJOIN, &view));
    assert_int_equal(view.size, 0);
    assert_int_equal(view.nlocal, NEW);
    assert_int_equal(view.comers, NEW);
    assert_string_equal(view.missing, "");
    assert_int_equal(core_joiners(bench->core, &view, joiners, NEW + 1), NEW);
    for (unsigned i = 0; i < NEW; i++)
        assert_int_equal(joiners[i].rank, MSG_ANY_SEAT);
    assert_true(view_of(bench, MSG_RECOVERY_NONE, &view));
    assert_int_equal(core_joiners(bench->core, &view, joiners, NEW + 1), 1);
    assert_int_equal(joiners[0].rank, 1);
    bench_free(bench);
}

/* At the origin, when another node is the home. */
static void who_waits_is_told_apart_at_the_origin(void **state)
{
    struct core_config config = config_of(2);
    struct msg msg = {.type = MSG_PEER_HELLO, .peer_hello = {MSG_VERSION, 1, "test", ""}};
    struct core_joiner joiners[2];
    struct core_group_view view;
    struct bench *bench;
    char name[8] = "g";

    (void)state;
    config.max_groups = config.max_groups_per_user = 100;
    bench = bench_new(&config);
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
    for (unsigned i = 0; i < 3; i++)
        hello(bench, i, 7, false);
    for (unsigned i = 0; i < 16; i++) { /* some of these names have their home there */
        snprintf(name, sizeof(name), "g%u", i);
        for (unsigned k = 0; k < 2; k++)
            recover(bench, k, 100 * k + i, name, MSG_RECOVERY_REJOIN, 0, 0);
        join(bench, 2, i, name, 1, 2);
    }
    for (unsigned i = 0; core_group_at(bench->core, i, &view); i++) {
        bool rejoins = view.recovery == MSG_RECOVERY_REJOIN;

        assert_int_equal(view.size, rejoins ? 0 : 2);
        assert_int_equal(view.nlocal, rejoins ? 2 : 1);
        assert_int_equal(core_joiners(bench->core, &view, joiners, 2), rejoins ? 2 : 1);
        assert_int_equal(joiners[0].rank, rejoins ? MSG_ANY_SEAT : 1);
    }
    assert_true(core_group_at(bench->core, 31, &view));
    assert_false(core_group_at(bench->core, 32, &view));
    bench_free(bench);
}

static void all_go_on(void **state)
{
    struct bench *bench = three_ranks();
    uint64_t old = group_id(bench, 0);

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        recover(bench, i, 2, "g", MSG_RECOVERY_SHRINK, old, 0);
    expect(bench, "group open\n");
    assert_int_equal(core_counts(bench->core)->groups_recovered[CORE_RECOVERED_ALL], 1);
    bench_free(bench);
}

/* No number stands for "any". */
static void texts_of_any_seat(void **state)
{
    struct bench *bench = home();

    (void)state;
    asks(bench, 2, 30, (struct ask){MSG_RECOVERY_REJOIN, MSG_ANY_SEAT, 0, 6, 0});
    asks(bench, 2, 31, (struct ask){MSG_RECOVERY_REJOIN, 4, 0, 0, 0});
    asks(bench, 1, 10, WAIT(0));
    news(bench, 1, 10, false, 3, 1);
    expect(bench, "to 2 JOIN_REFUSED 30 cause 1 rank -1: group \"g\": a new process asks for any "
                  "seat of 6, but it has 4 seats\n"
                  "to 2 JOIN_REFUSED 31 cause 1 rank -1: group \"g\": a new process asks for seat "
                  "4, but it has 4 seats\n");
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shrinks_to_who_is_left),
        cmocka_unit_test(one_that_is_said_to_be_gone_comes),
        cmocka_unit_test(too_few_are_told_at_once),
        cmocka_unit_test(new_processes_take_seats),
        cmocka_unit_test(one_has_waited_enough),
        cmocka_unit_test(a_process_that_is_not_needed_waits_on),
        cmocka_unit_test(who_asks_for_a_taken_seat_is_told),
        cmocka_unit_test(contradictions_name_both),
        cmocka_unit_test(lies),
        cmocka_unit_test(survivors_give_up),
        cmocka_unit_test(who_ends_in_a_broken_group_is_missed),
        cmocka_unit_test(goes_on_in_place),
        cmocka_unit_test(many_epochs_of_one_user_push_out_nobody_else),
        cmocka_unit_test(revoked_after_a_loss),
        cmocka_unit_test(goes_on_from_a_group_that_is_not_known),
        cmocka_unit_test(one_that_had_asked_dies),
        cmocka_unit_test(what_is_said_of_an_unknown_group),
        cmocka_unit_test(only_members_follow),
        cmocka_unit_test(asked_anew),
        cmocka_unit_test(the_origin_keeps_the_time),
        cmocka_unit_test(who_waits_is_told_apart),
        cmocka_unit_test(who_waits_is_told_apart_at_the_origin),
        cmocka_unit_test(texts_of_any_seat),
        cmocka_unit_test(all_go_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
