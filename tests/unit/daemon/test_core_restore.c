/* test_core_restore.c - the core by itself: what it takes over from a commd that is no more, and
 * what of it cannot be. Whole histories are in tests/sim. */
#include "tests/unit/daemon/core_bench.h"

enum { GROUP = 77 };

/* Two ranks on a: clients 0 and 1, pids 100 and 101. */
static const struct msg_member members[2] = {{.node = 0, .pid = 100}, {.node = 0, .pid = 101}};
static const struct core_kept_rank ranks[2] = {{.rank = 0, .req = 5, .slot = 0},
                                               {.rank = 1, .req = 6, .slot = 1}};
static const char here[1][MSG_NAME_MAX] = {"a"};

static struct core_kept_group kept_group(void)
{
    return (struct core_kept_group){.id = GROUP,
                                    .epoch = 1,
                                    .state = CORE_GROUP_OPEN,
                                    .name = "g",
                                    .uid = 1000,
                                    .payer = 1000,
                                    .size = 2,
                                    .nnodes = 1,
                                    .nranks = 2,
                                    .nodes = here,
                                    .members = members,
                                    .ranks = ranks};
}

static bool restore_client(struct bench *bench, unsigned slot, uint32_t uid)
{
    return core_restore_client(bench->core, &(struct core_kept_client){.slot = slot,
                                                                       .uid = uid,
                                                                       .payer = uid,
                                                                       .pid = 100 + slot,
                                                                       .since_ms = 10,
                                                                       .program = "train"});
}

static struct bench *restoring(unsigned nnodes)
{
    struct core_config config = config_of(nnodes);
    struct bench *bench;

    config.restart_timeout_ms = 10 * config.node_timeout_ms;
    bench = bench_new(&config);
    core_restore_begin(bench->core, bench->now);
    assert_true(restore_client(bench, 0, 1000));
    assert_true(restore_client(bench, 1, 1000));
    return bench;
}

static void taken_over(struct bench *bench)
{
    feed(bench, (struct core_event){.type = CORE_TAKEN_OVER});
}

/* With the group in it. */
static struct bench *took_over(void)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();

    assert_true(core_restore_group(bench->core, &group));
    taken_over(bench);
    expect(bench, "");
    return bench;
}

static void come_back_as(struct bench *bench, unsigned slot, uint32_t uid, uint32_t pid,
                         uint64_t in, uint32_t asks)
{
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    msg.client_hello.version = MSG_VERSION;
    feed(bench, (struct core_event){.type = CORE_CLIENT_BACK,
                                    .client = slot,
                                    .uid = uid,
                                    .pid = pid,
                                    .msg = &msg,
                                    .groups = &in,
                                    .ngroups = in != 0,
                                    .joins = &asks,
                                    .njoins = asks != 0});
}

static void come_back(struct bench *bench, unsigned slot, uint64_t in, uint32_t asks)
{
    come_back_as(bench, slot, 1000, 100 + slot, in, asks);
}

/* ---- clients --------------------------------------------------------------------------------- */

static void a_client_counts_while_it_is_away(void **state)
{
    struct bench *bench = restoring(1);
    struct core_share shares[CORE_SHARES];
    struct core_client_view view;
    struct core_status status;

    taken_over(bench);
    assert_true(core_client_at(bench->core, 1, &view));
    assert_true(view.away && view.client == 1 && view.pid == 101 && view.since_ms == 10);
    assert_string_equal(view.program, "train");
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2);
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_CLIENTS].used, 2);
    come_back(bench, 1, 0, 0);
    expect(bench, "1 WELCOME to a of test\n");
    assert_true(core_client_at(bench->core, 1, &view));
    assert_true(!view.away && view.since_ms == 10);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0});
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 1);
    bench_free(bench);
}

static void clients_that_cannot_be(void **state)
{
    struct bench *bench = restoring(1);
    struct core_status status;

    assert_false(restore_client(bench, 0, 1000)); /* the slot is taken */
    assert_false(restore_client(bench, bench->core->client_slots, 1000));
    assert_false(restore_client(bench, CORE_NOBODY, 1000));
    assert_false(restore_client(bench, 3, CORE_GPU_UID));
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2);
    bench_free(bench);
}

/* Also with the token: the kernel says who it is. */
static void only_the_same_process_comes_back(void **state)
{
    struct bench *bench = took_over();

    assert_true(core_client_may_return(bench->core, 0, 1000, 100));
    assert_false(core_client_may_return(bench->core, 0, 1001, 100));
    assert_false(core_client_may_return(bench->core, 0, 1000, 101));
    assert_false(core_client_may_return(bench->core, 2, 1000, 102));
    assert_false(core_client_may_return(bench->core, CORE_NOBODY, 1000, 100));
    come_back_as(bench, 0, 1001, 100, GROUP, 0);
    come_back_as(bench, 0, 1000, 101, GROUP, 0);
    come_back_as(bench, 2, 1000, 102, GROUP, 0);
    expect(bench, "");
    come_back(bench, 0, GROUP, 0);
    expect(bench, "0 WELCOME to a of test\n");
    assert_false(core_client_may_return(bench->core, 0, 1000, 100)); /* it is back */
    come_back(bench, 0, GROUP, 0);
    expect(bench, "");
    bench_free(bench);
}

static void one_of_another_version_is_told(void **state)
{
    struct bench *bench = took_over();
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    msg.client_hello.version = MSG_VERSION_OLDEST - 1;
    feed(bench, (struct core_event){
                    .type = CORE_CLIENT_BACK, .client = 0, .uid = 1000, .pid = 100, .msg = &msg});
    assert_non_null(strstr(bench->got, "0 close\n"));
    assert_non_null(strstr(bench->got, "rank 0 gone: rank 0 (pid 100 on node a) was lost"));
    bench_free(bench);
}

static void messages_of_one_that_is_away_are_nobodys(void **state)
{
    struct bench *bench = took_over();

    join(bench, 0, 9, "h", 0, 1);
    expect(bench, "");
    bench_free(bench);
}

static void who_did_not_know_that_it_was_welcome(void **state)
{
    struct bench *bench = restoring(1);
    struct core_status status;

    taken_over(bench);
    feed(bench,
         (struct core_event){.type = CORE_CLIENT_OPEN, .client = 4, .uid = 1000, .pid = 101});
    say(bench, 4,
        &(struct msg){.type = MSG_CLIENT_HELLO, .client_hello = {.version = MSG_VERSION}});
    expect(bench, "1 close\n4 WELCOME to a of test\n");
    core_status(bench->core, &status);
    assert_int_equal(status.clients, 2);
    bench_free(bench);
}

/* Its process has another connection, which has something to lose. */
static void one_that_is_in_a_group_keeps_its_place(void **state)
{
    struct bench *bench = took_over();

    feed(bench,
         (struct core_event){.type = CORE_CLIENT_OPEN, .client = 4, .uid = 1000, .pid = 101});
    say(bench, 4,
        &(struct msg){.type = MSG_CLIENT_HELLO, .client_hello = {.version = MSG_VERSION}});
    expect(bench, "4 WELCOME to a of test\n");
    assert_true(core_client_may_return(bench->core, 1, 1000, 101));
    bench_free(bench);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void a_group_goes_on(void **state)
{
    struct bench *bench = took_over();
    struct core_share shares[CORE_SHARES];
    struct core_group_view view;
    unsigned rank, slot;
    uint32_t req;

    assert_true(core_group(bench->core, GROUP, &view));
    assert_true(view.state == CORE_GROUP_OPEN && view.nlocal == 2 && view.size == 2);
    assert_string_equal(view.name, "g");
    assert_true(core_group_local(bench->core, GROUP, 1, &rank, &slot, &req));
    assert_true(rank == 1 && slot == 1 && req == 6);
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_GROUPS].used, 1);
    assert_int_equal(shares[CORE_SHARE_RANKS].used, 2);
    come_back(bench, 0, GROUP, 0);
    expect(bench, "0 WELCOME to a of test\n");
    say(bench, 0,
        &(struct msg){.type = MSG_CLIENT_LEAVE, .client_leave = {.group = GROUP, .ops = 3}});
    expect(bench, "rank 0 gone: rank 0 (pid 100 on node a) left\n");
    feed(bench, (struct core_event){
                    .type = CORE_CLIENT_CLOSED, .client = 1, .text = "killed by signal 9"});
    expect(bench, "rank 1 gone: rank 1 (pid 101 on node a) was lost: killed by signal 9\n"
                  "group close\n");
    bench_free(bench);
}

static void what_is_not_on_its_list_it_has_left(void **state)
{
    struct bench *bench = took_over();

    come_back(bench, 0, GROUP + 1, 0);
    expect(bench, "0 WELCOME to a of test\n"
                  "rank 0 gone: rank 0 (pid 100 on node a) left while commd was restarted\n");
    bench_free(bench);
}

static void a_join_whose_answer_was_lost(void **state)
{
    struct bench *bench = took_over();

    come_back(bench, 0, 0, 5);
    expect(bench, "0 WELCOME to a of test\n");
    join(bench, 0, 5, "g", 0, 2);
    expect(bench, "0 joined again, rank 0 req 5\n");
    join(bench, 0, 5, "g", 0, 2); /* once: this one is new */
    expect(bench, "");
    bench_free(bench);

    bench = took_over();
    come_back(bench, 0, 0, 5);
    join(bench, 0, 5, "g", 1, 2); /* not what it asked */
    expect(bench, "0 WELCOME to a of test\n"
                  "rank 0 gone: rank 0 (pid 100 on node a) left while commd was restarted\n");
    bench_free(bench);
}

/* The next epoch of group 70, which all have agreed on or that is open already. Ranks 0 and 1 are
 * here, of epoch 1 they were 0 and 2. */
static struct bench *took_over_recovery(enum core_group_state state)
{
    static const char both[2][MSG_NAME_MAX] = {"a", "b"};
    static const struct msg_member next[3] = {{.node = 0, .pid = 100, .was = 1},
                                              {.node = 0, .pid = 101, .was = 3},
                                              {.node = 1, .pid = 500, .was = 4}};
    static const uint8_t addr[4];
    const struct core_kept_engine engine = {
        .pid = 9, .incarnation = 55, .addr = addr, .addr_len = 4, .text = "tcp"};
    struct bench *bench = restoring(2);
    struct core_kept_group group = kept_group();

    group.state = state;
    group.epoch = 2;
    group.follows = 70;
    group.size = 3;
    group.nnodes = 2;
    group.nodes = both;
    group.members = next;
    assert_true(core_restore_group(bench->core, &group));
    assert_true(core_restore_engine(bench->core, &engine));
    taken_over(bench);
    bench->got[0] = 0;
    return bench;
}

static void goes_on_from_70(struct bench *bench, unsigned client, uint32_t req)
{
    say(bench, client,
        &(struct msg){.type = MSG_CLIENT_JOIN,
                      .client_join = {.req = req,
                                      .size = 1,
                                      .recovery = MSG_RECOVERY_SHRINK,
                                      .follows = 70,
                                      .name = "g"}});
}

/* A program gave up its call while no commd was there, and made it again: the request has another
 * number. */
static void a_recovery_that_is_asked_for_again(void **state)
{
    struct bench *bench = took_over_recovery(CORE_GROUP_COMMITTED);
    struct core_group_view view;

    come_back(bench, 0, 70, 9);
    expect(bench, "0 WELCOME to a of test\n");
    goes_on_from_70(bench, 0, 9);
    expect(bench, "rank 0 asked, req 9\n");
    come_back(bench, 1, 70, 6);
    expect(bench, "1 WELCOME to a of test\n");
    goes_on_from_70(bench, 1, 6);
    expect(bench, "rank 1 asked, req 6\n");
    assert_true(core_group(bench->core, GROUP, &view));
    assert_int_equal(view.nlocal, 2);
    bench_free(bench);

    bench = took_over_recovery(CORE_GROUP_OPEN);
    come_back(bench, 0, 70, 9);
    goes_on_from_70(bench, 0, 9);
    expect(bench, "0 WELCOME to a of test\n0 joined again, rank 0 req 9\n");
    bench_free(bench);
    (void)state;
}

/* What it asks for is something else: it is in the group no more. */
static void a_recovery_that_is_not_asked_for_again(void **state)
{
    struct bench *bench = took_over_recovery(CORE_GROUP_COMMITTED);
    struct core_group_view view;

    come_back(bench, 0, 70, 9);
    expect(bench, "0 WELCOME to a of test\n");
    join(bench, 0, 9, "other", 0, 2);
    assert_true(core_group(bench->core, GROUP, &view));
    assert_int_equal(view.nlocal, 1);
    come_back(bench, 1, 70, 0); /* it asks for nothing */
    assert_true(!core_group(bench->core, GROUP, &view) || !view.nlocal);
    bench_free(bench);
    (void)state;
}

static void ids_of_groups_do_not_repeat(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    struct core_group_view view;

    group.id = home_group_id(42, 1); /* the next one that this commd would give */
    assert_true(core_restore_group(bench->core, &group));
    taken_over(bench);
    hello(bench, 3, 1000, false);
    join(bench, 3, 1, "other", 0, 1);
    assert_true(core_group(bench->core, home_group_id(42, 2), &view));
    assert_string_equal(view.name, "other");
    bench_free(bench);
}

#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct core_kept_group wrong = kept_group();                                               \
                                                                                                   \
        wrong.field = (value);                                                                     \
        assert_false(core_restore_group(bench->core, &wrong));                                     \
    } while (0)

static void groups_that_cannot_be(void **state)
{
    static const char unknown[1][MSG_NAME_MAX] = {"z"}, others[1][MSG_NAME_MAX] = {"b"};
    static const char turned[2][MSG_NAME_MAX] = {"b", "a"}, both[2][MSG_NAME_MAX] = {"a", "b"};
    static const struct msg_member far[2] = {{.node = 0, .pid = 100}, {.node = 1, .pid = 101}};
    static const struct msg_member nowhere[2] = {{.node = 0, .pid = 100}, {.node = 2, .pid = 101}};
    static const struct msg_member foreign[2] = {{.node = 0, .pid = 1}, {.node = 0, .pid = 101}};
    static const struct core_kept_rank twice[2] = {{.rank = 0}, {.rank = 0}};
    static const struct core_kept_rank beyond[2] = {{.rank = 0}, {.rank = 2, .slot = 1}};
    struct bench *bench = restoring(2);
    struct core_kept_group group = kept_group();
    struct core_group_view view;
    struct core_share shares[CORE_SHARES];

    REFUSED(id, 0);
    REFUSED(name, "");
    REFUSED(uid, 1001); /* not its clients' */
    REFUSED(uid, CORE_GPU_UID);
    REFUSED(size, 0);
    REFUSED(size, bench->core->config.max_size + 1);
    REFUSED(size, 1); /* less than its ranks here */
    REFUSED(nnodes, 0);
    REFUSED(nnodes, 3);
    REFUSED(nodes, unknown);
    REFUSED(nodes, others);
    REFUSED(members, nowhere);
    REFUSED(members, foreign);            /* another process than its client */
    REFUSED(state, CORE_GROUP_COMMITTED); /* of one node it is open at once */
    REFUSED(state, CORE_GROUP_BROKEN);
    REFUSED(state, CORE_GROUP_LEFT);
    REFUSED(ranks, twice);
    REFUSED(ranks, beyond);
    group.nnodes = 2;
    group.nodes = turned;
    assert_false(core_restore_group(bench->core, &group));
    group.nodes = both;
    group.members = far; /* rank 1 is on b */
    assert_false(core_restore_group(bench->core, &group));
    assert_false(core_group_at(bench->core, 0, &view));
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_GROUPS].used, 0);
    assert_int_equal(shares[CORE_SHARE_MEMBERS].used, 0);
    group = kept_group();
    assert_true(core_restore_group(bench->core, &group));
    assert_false(core_restore_group(bench->core, &group)); /* one of that id is there */
    bench_free(bench);
}

static void more_groups_than_there_is_room_for(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    unsigned n = 0;

    group.nranks = 0;
    while (group.id++, core_restore_group(bench->core, &group))
        n++;
    assert_int_equal(n, 16); /* max_groups: what a user may have does not matter */
    taken_over(bench);
    bench_free(bench);
}

/* ---- what became of them --------------------------------------------------------------------- */

static void ends_that_cannot_be(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    struct core_rank_gone gone = {.group = GROUP, .rank = 0, .cause = CAUSE_LEFT, .ops = 3};
    struct core_group_broken broken = {
        .group = GROUP, .cause = CAUSE_ABORTED, .rank = 1, .node = "a", .text = "why"};

    assert_false(core_restore_rank_gone(bench->core, &gone)); /* no such group yet */
    assert_false(core_restore_broken(bench->core, &broken));
    assert_true(core_restore_group(bench->core, &group));
    gone.rank = 2;
    assert_false(core_restore_rank_gone(bench->core, &gone));
    gone.rank = 0;
    gone.cause = CAUSE_TIMEOUT;
    assert_false(core_restore_rank_gone(bench->core, &gone));
    gone.cause = CAUSE_LEFT;
    assert_true(core_restore_rank_gone(bench->core, &gone));
    assert_false(core_restore_rank_gone(bench->core, &gone)); /* it ended once */
    broken.cause = CAUSE_NONE;
    assert_false(core_restore_broken(bench->core, &broken));
    broken.cause = CAUSE_COUNT;
    assert_false(core_restore_broken(bench->core, &broken));
    broken.cause = CAUSE_ABORTED;
    broken.rank = 2;
    assert_false(core_restore_broken(bench->core, &broken));
    broken.rank = -2;
    assert_false(core_restore_broken(bench->core, &broken));
    broken.rank = 1;
    assert_true(core_restore_broken(bench->core, &broken));
    assert_false(core_restore_broken(bench->core, &broken)); /* the first cause wins */
    bench_free(bench);
}

static void boards_are_told_again(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    struct core_group_view view;

    assert_true(core_restore_group(bench->core, &group));
    assert_true(core_restore_rank_gone(
        bench->core,
        &(struct core_rank_gone){.group = GROUP, .rank = 1, .cause = CAUSE_RANK_LOST, .ops = 3}));
    taken_over(bench);
    expect(bench, "rank 1 gone: gone before commd was restarted\n");
    assert_int_equal(core_rank_fate(bench->core, GROUP, 1), CAUSE_RANK_LOST);
    assert_true(core_group(bench->core, GROUP, &view) && view.nlocal == 1);
    come_back(bench, 1, GROUP, 0); /* it says that it is in: it is not */
    expect(bench, "1 WELCOME to a of test\n");
    say(bench, 1, &(struct msg){.type = MSG_CLIENT_LEAVE, .client_leave = {.group = GROUP}});
    expect(bench, ""); /* it may have left it while it was away */
    say(bench, 1, &(struct msg){.type = MSG_CLIENT_ABORT, .client_abort = {.group = GROUP}});
    assert_non_null(strstr(bench->got, "aborts group 77, which it is not in"));
    bench_free(bench);
}

static void who_is_away_leaves_as_its_board_says(void **state)
{
    struct bench *bench = took_over();
    const struct msg leave = {.type = MSG_CLIENT_LEAVE, .client_leave = {.group = GROUP}};
    struct core_client_view view;

    say(bench, 1, &(struct msg){.type = MSG_CLIENT_ABORT, .client_abort = {.group = GROUP}});
    say(bench, 1, &(struct msg){.type = MSG_CLIENT_LEAVE, .client_leave = {.group = GROUP + 1}});
    expect(bench, "");
    say(bench, 1, &leave);
    assert_int_equal(core_rank_fate(bench->core, GROUP, 1), CAUSE_LEFT);
    bench->got[0] = 0;
    say(bench, 1, &leave);
    expect(bench, "");
    assert_true(core_client_at(bench->core, 1, &view) && view.away);
    bench_free(bench);
}

static void a_broken_group_stays_broken(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    struct core_group_view view;

    assert_true(core_restore_group(bench->core, &group));
    assert_true(core_restore_broken(bench->core, &(struct core_group_broken){.group = GROUP,
                                                                             .cause = CAUSE_ABORTED,
                                                                             .rank = 1,
                                                                             .pid = 101,
                                                                             .node = "a",
                                                                             .text = "why"}));
    assert_true(core_restore_rank_gone(
        bench->core, &(struct core_rank_gone){.group = GROUP, .rank = 1, .cause = CAUSE_LEFT}));
    taken_over(bench);
    expect(bench, "group broken 8: why\n"
                  "rank 1 missed: gone before commd was restarted\n");
    assert_true(core_group(bench->core, GROUP, &view));
    assert_true(view.state == CORE_GROUP_BROKEN && view.cause_rank == 1);
    assert_true(view.nlocal == 1);
    come_back(bench, 0, 0, 0);
    expect(bench, "0 WELCOME to a of test\n"
                  "rank 0 missed: rank 0 (pid 100 on node a) left while commd was restarted\n"
                  "group close\n");
    bench_free(bench);
}

/* In whichever order the two are restored. */
static void an_epoch_that_has_gone_on(void **state)
{
    for (unsigned last = 0; last < 2; last++) {
        struct bench *bench = restoring(1);
        struct core_kept_group groups[2] = {kept_group(), kept_group()};
        struct core_group_view view;

        (void)state;
        groups[last].id = GROUP + 1;
        groups[last].epoch = 2;
        groups[last].follows = GROUP;
        assert_true(core_restore_group(bench->core, &groups[0]));
        assert_true(core_restore_group(bench->core, &groups[1]));
        taken_over(bench);
        assert_true(core_group(bench->core, GROUP, &view));
        assert_int_equal(view.next_epoch, 2);
        assert_true(core_group(bench->core, GROUP + 1, &view));
        assert_int_equal(view.next_epoch, 0);
        bench_free(bench);
    }
}

static void a_group_without_ranks_is_closed(void **state)
{
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();
    struct core_group_view view;

    assert_true(core_restore_group(bench->core, &group));
    for (unsigned rank = 0; rank < 2; rank++)
        assert_true(core_restore_rank_gone(
            bench->core,
            &(struct core_rank_gone){.group = GROUP, .rank = rank, .cause = CAUSE_LEFT}));
    taken_over(bench);
    expect(bench, "rank 0 gone: gone before commd was restarted\n"
                  "rank 1 gone: gone before commd was restarted\n"
                  "group close\n");
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_false(core_group_at(bench->core, 0, &view));
    bench_free(bench);
}

static void ranks_without_their_client_are_lost(void **state)
{
    static const struct core_kept_rank orphans[2] = {{.rank = 0, .slot = 0},
                                                     {.rank = 1, .slot = CORE_NOBODY}};
    struct bench *bench = restoring(1);
    struct core_kept_group group = kept_group();

    group.ranks = orphans;
    assert_true(core_restore_group(bench->core, &group));
    taken_over(bench);
    bench->now++;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench, "rank 1 gone: rank 1 (pid 101 on node a) was lost: its process ended while commd "
                  "was restarted\n");
    bench_free(bench);
}

static struct bench *restoring_over_two_nodes(void)
{
    static const char both[2][MSG_NAME_MAX] = {"a", "b"};
    static const struct msg_member apart[2] = {{.node = 0, .pid = 100}, {.node = 1, .pid = 7}};
    struct bench *bench = restoring(2);
    struct core_kept_group group = kept_group();

    group.nnodes = 2;
    group.nodes = both;
    group.members = apart;
    group.nranks = 1;
    assert_true(core_restore_group(bench->core, &group));
    return bench;
}

/* It had something on the wire. */
static void a_group_whose_engine_has_ended_too(void **state)
{
    struct bench *bench = restoring_over_two_nodes();

    taken_over(bench);
    expect(bench, "group position?\nengine start\n");
    feed(bench, (struct core_event){.type = CORE_BOARD_POSITION, .group = GROUP});
    expect(bench,
           "group broken 7: commd of node a was restarted, and its engine had ended with it\n");
    assert_int_equal(core_counts(bench->core)->groups_broken[CAUSE_ENGINE_LOST], 1);
    bench_free(bench);
}

static void engine_tells(struct bench *bench, struct msg msg)
{
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

static void b_tells(struct bench *bench, struct msg msg)
{
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
}

/* Our engine is @mine, that of b is 77, and they have each other, if ours has @theirs. */
static struct bench *with_its_engine(uint64_t theirs)
{
    static const uint8_t addr[4];
    const struct core_kept_engine kept = {
        .pid = 9, .incarnation = 55, .addr = addr, .addr_len = 4, .text = "tcp"};
    struct bench *bench = restoring_over_two_nodes();

    assert_true(core_restore_engine(bench->core, &kept));
    taken_over(bench);
    engine_tells(bench,
                 (struct msg){.type = MSG_ENGINE_HELLO,
                              .engine_hello = {
                                  .version = MSG_VERSION, .pid = 9, .addr_len = 4, .resumed = 1}});
    if (theirs)
        engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_READY,
                                         .engine_peer = {.peer = 1, .engine = theirs}});
    expect(bench, "");
    return bench;
}

static void b_is_back(struct bench *bench)
{
    struct msg hello = {.type = MSG_PEER_HELLO,
                        .peer_hello = {.version = MSG_VERSION, .incarnation = 3}};

    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello});
    b_tells(bench, (struct msg){.type = MSG_ENGINE_STATE, .engine_state.engine = 77});
    b_tells(bench,
            (struct msg){.type = MSG_ENGINE_READY, .engine_ready = {.engine = 55, .mine = 77}});
}

/* b has another engine than before, and our commd died before it could say that it goes on. */
static void a_group_that_waits_for_an_engine(void **state)
{
    struct bench *bench = with_its_engine(77);
    const struct group *group = group_find(bench->core, GROUP);

    engine_tells(bench, (struct msg){.type = MSG_BOARD_HELD,
                                     .board_held = {.group = GROUP, .quiet = 1, .ops = 4}});
    assert_int_equal(group->bond, BOND_HELD);
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_back(bench);
    assert_true(group->bond_key != 0);
    bench->got[0] = 0;
    b_tells(bench, (struct msg){.type = MSG_HELD,
                                .held = {.group = GROUP, .key = group->bond_key, .ops = 4}});
    expect(bench, "to 1 message 37\nto engine message 57\n"); /* HELD, BOARD_GO */
    bench_free(bench);
}

/* It had gone on here, and b had not heard where we were. */
static void a_group_that_has_gone_on_over_an_engine(void **state)
{
    struct bench *bench = with_its_engine(77);
    const struct group *group = group_find(bench->core, GROUP);

    engine_tells(bench,
                 (struct msg){.type = MSG_BOARD_HELD,
                              .board_held = {.group = GROUP, .quiet = 1, .ops = 4, .went_on = 1}});
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    expect(bench, "engine resumed\nto engine message 59\n"); /* what our own engine rested for */
    assert_int_equal(group->bond_key, 0);
    b_is_back(bench);
    assert_non_null(strstr(bench->got, "to engine message 59\n")); /* and that of b */
    assert_true(group->bond_key != 0);
    bench->got[0] = 0;
    b_tells(bench, (struct msg){.type = MSG_HELD,
                                .held = {.group = GROUP, .key = group->bond_key, .ops = 4}});
    expect(bench, "to 1 message 37\n"); /* HELD */
    assert_int_equal(group->bond, BOND_BOUND);
    bench_free(bench);
}

/* It was told of a node too old for that only now. */
static void a_group_that_cannot_wait(void **state)
{
    struct bench *bench = with_its_engine(77);

    engine_tells(bench, (struct msg){.type = MSG_BOARD_HELD,
                                     .board_held = {.group = GROUP, .quiet = 1, .ops = 4}});
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    feed(bench, (struct core_event){
                    .type = CORE_PEER_UP,
                    .node = 1,
                    .msg = &(struct msg){.type = MSG_PEER_HELLO,
                                         .peer_hello = {.version = 10, .incarnation = 3}}});
    b_tells(bench, (struct msg){.type = MSG_ENGINE_STATE, .engine_state.engine = 77});
    b_tells(bench,
            (struct msg){.type = MSG_ENGINE_READY, .engine_ready = {.engine = 55, .mine = 77}});
    assert_int_equal(group_find(bench->core, GROUP)->state, GROUP_BROKEN);
    bench_free(bench);
}

/* Our commd died when the next engine of its own was there, and had not been given the board. */
static void a_board_that_the_next_engine_did_not_get(void **state)
{
    struct bench *bench = with_its_engine(77);
    const struct group *group = group_find(bench->core, GROUP);

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    bench->got[0] = 0;
    engine_tells(
        bench, (struct msg){.type = MSG_BOARD_HELD, .board_held = {.group = GROUP, .missing = 1}});
    expect(bench, "group position?\n");
    feed(bench,
         (struct core_event){
             .type = CORE_BOARD_POSITION, .group = GROUP, .quiet = true, .position = {.ops = 4}});
    b_is_back(bench);
    bench->got[0] = 0;
    b_tells(bench, (struct msg){.type = MSG_HELD,
                                .held = {.group = GROUP, .key = group->bond_key, .ops = 4}});
    expect(bench, "to 1 message 37\ngroup bind, 4 ops\n");
    bench_free(bench);
}

static void wait_for(struct bench *bench, uint64_t ms)
{
    for (uint64_t end = bench->now + ms; bench->now < end;) {
        bench->now = MIN(end, core_deadline(bench->core));
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
}

enum { BEFORE = 5, HALF = 6 }; /* an introduction over an earlier link; of b over this one */

static void b_is_linked(struct bench *bench)
{
    struct msg hello = {.type = MSG_PEER_HELLO,
                        .peer_hello = {.version = MSG_VERSION, .incarnation = 3}};

    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello});
    b_tells(bench,
            (struct msg){.type = MSG_ENGINE_STATE, .engine_state = {.engine = 77, .intro = HALF}});
}

/* Both had been introduced, as our engine says, and b is linked again. */
static struct bench *introduced(void)
{
    struct bench *bench = with_its_engine(0);

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_READY,
                                     .engine_peer = {.peer = 1, .engine = 77, .intro = BEFORE}});
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_linked(bench);
    bench->got[0] = 0;
    return bench;
}

static void b_accepts(struct bench *bench, uint64_t intro)
{
    b_tells(bench, (struct msg){.type = MSG_ENGINE_READY,
                                .engine_ready = {.engine = 55, .mine = 77, .intro = intro}});
}

static void expect_peer(struct bench *bench, enum core_peer_state state)
{
    assert_int_equal(bench->core->peers[1].state, state);
}

/* Tokens of both are of one link again, when each has those of the present one. */
static void engines_that_were_introduced_over_different_links(void **state)
{
    struct bench *bench = introduced();
    const struct peer *peer = &bench->core->peers[1];
    uint64_t now = peer->our_half ^ HALF;

    b_accepts(bench, now);
    expect(bench, "to engine message 42\nto engine message 56\n"
                  "to engine message 41\n"); /* PEER_DEL, BOARD_HOLD, PEER_ADD */
    assert_true(peer->intro == now);
    expect_peer(bench, CORE_PEER_LINKING);
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_DOWN, /* of the one before */
                                     .engine_peer = {.peer = 1, .engine = 77, .intro = BEFORE}});
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_READY,
                                     .engine_peer = {.peer = 1, .engine = 77, .intro = now}});
    expect_peer(bench, CORE_PEER_READY);
    bench->got[0] = 0;
    b_accepts(bench, BEFORE); /* said before it knew: it does what we did */
    expect(bench, "");
    expect_peer(bench, CORE_PEER_LINKING);
    b_accepts(bench, now);
    expect_peer(bench, CORE_PEER_READY);
    bench_free(bench);
}

static void engines_that_were_introduced_before(void **state)
{
    struct bench *bench = introduced();

    b_accepts(bench, BEFORE);
    expect_peer(bench, CORE_PEER_READY);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    b_is_linked(bench);
    expect_peer(bench, CORE_PEER_LINKING); /* until b says so over this link */
    b_accepts(bench, BEFORE);
    expect_peer(bench, CORE_PEER_READY);
    bench_free(bench);
    bench = introduced();
    b_accepts(bench, 0); /* a commd of version 10 */
    expect_peer(bench, CORE_PEER_READY);
    bench_free(bench);
}

/* The session of the link may have ended before the edge could make tokens of it. */
static void an_engine_that_may_not_have_been_told(void **state)
{
    struct bench *bench = with_its_engine(0);

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_linked(bench);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    bench->got[0] = 0;
    b_is_linked(bench);
    assert_non_null(strstr(bench->got, "to engine message 42\nto engine message 41\n"));
    bench_free(bench);
}

static struct core_traffic engine_reports(struct bench *bench, uint64_t sent, uint64_t mends)
{
    struct core_peer_view view;

    engine_tells(
        bench,
        (struct msg){
            .type = MSG_ENGINE_TRAFFIC,
            .engine_traffic = {
                .peer = 1, .engine = 77, .sent = sent, .segments = sent / 10, .mends = mends}});
    assert_true(core_peer_at(bench->core, 1, &view));
    return *view.traffic;
}

/* What went over the engines before was counted, and told, by the commd before this one. */
static void traffic_counts_from_here(void **state)
{
    struct bench *bench = with_its_engine(77);
    struct core_traffic traffic;

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_back(bench);
    bench->got[0] = 0;
    traffic = engine_reports(bench, 5000, 3);
    assert_int_equal(traffic.sent + traffic.segments + traffic.mends, 0);
    assert_int_equal(traffic.recent_sent + traffic.recent_segments, 0);
    traffic = engine_reports(bench, 5100, 4);
    assert_int_equal(traffic.sent, 100);
    assert_int_equal(traffic.segments, 10);
    assert_int_equal(traffic.mends, 1);
    traffic = engine_reports(bench, 30, 4); /* connected anew */
    assert_int_equal(traffic.sent, 130);
    bench_free(bench);
}

/* A commd that dies while the engines have yet to meet is one that restarts. */
static void engines_that_have_not_met_yet(void **state)
{
    struct msg traffic = {.type = MSG_ENGINE_TRAFFIC,
                          .engine_traffic = {.peer = 1, .engine = 77, .apart = 1}};
    struct bench *bench = introduced();

    b_accepts(bench, BEFORE);
    engine_tells(bench, traffic);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    wait_for(bench, CORE_ENGINE_DOUBT_MS + 1);
    expect_peer(bench, CORE_PEER_AWAY);
    bench_free(bench);
    bench = introduced();
    b_accepts(bench, BEFORE);
    traffic.engine_traffic.apart = 0;
    engine_tells(bench, traffic);
    traffic.engine_traffic.apart = 1;
    engine_tells(bench, traffic);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1});
    expect_peer(bench, CORE_PEER_UNLINKED);
    bench_free(bench);
}

/* The kernel of b's node was heard of @ms ago; 0: an engine that does not tell. */
static void engine_hears(struct bench *bench, uint32_t ms)
{
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_TRAFFIC,
                                     .engine_traffic = {.peer = 1, .engine = 77, .quiet_ms = ms}});
}

/* commd of b says nothing for 3 s. After 2.4 s of these our engine tells what it hears. */
static struct bench *silent_b(uint32_t heard_ago_ms)
{
    struct bench *bench = introduced();

    b_accepts(bench, BEFORE);
    bench->got[0] = 0;
    wait_for(bench, 2400);
    assert_non_null(strstr(bench->got, "to engine message")); /* it was asked */
    engine_hears(bench, heard_ago_ms);
    wait_for(bench, 599);
    expect_peer(bench, CORE_PEER_READY);
    wait_for(bench, 1);
    assert_non_null(strstr(bench->got, "drop 1: silent for 3 s\n"));
    return bench;
}

static void a_node_whose_commd_is_stopped(void **state)
{
    struct bench *bench = silent_b(1000);

    expect_peer(bench, CORE_PEER_AWAY);
    engine_hears(bench, 2999);
    expect_peer(bench, CORE_PEER_AWAY);
    b_is_linked(bench); /* it goes on */
    b_accepts(bench, BEFORE);
    expect_peer(bench, CORE_PEER_READY);
    bench_free(bench);
    bench = silent_b(1000);
    engine_hears(bench, 3000); /* and then its host dies */
    expect_peer(bench, CORE_PEER_UNLINKED);
    bench_free(bench);
}

/* What came from there came when its commd was not silent yet. */
static void a_node_that_is_gone(void **state)
{
    struct bench *bench = silent_b(1900);

    expect_peer(bench, CORE_PEER_UNLINKED);
    bench_free(bench);
    bench = silent_b(0);
    expect_peer(bench, CORE_PEER_UNLINKED);
    bench_free(bench);
}

static struct msg closed(unsigned end, const char *why)
{
    struct msg msg = {.type = MSG_ENGINE_PEER_DOWN,
                      .engine_peer = {.peer = 1, .engine = 77, .end = end}};

    strcpy(msg.engine_peer.text, why);
    return msg;
}

static struct msg given_up(unsigned end, const char *why)
{
    struct msg msg = {.type = MSG_ENGINE_READY, .engine_ready = {.mine = 55, .end = end}};

    strcpy(msg.engine_ready.text, why);
    return msg;
}

static struct bench *with_a_link(void)
{
    struct bench *bench = with_its_engine(77);

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_back(bench);
    bench->got[0] = 0;
    return bench;
}

static void broken_by(struct bench *bench, enum cause cause, const char *why)
{
    const char *text = group_find(bench->core, GROUP)->cause_text;

    assert_int_equal(group_find(bench->core, GROUP)->cause, cause);
    assert_memory_equal(text, "the engines of nodes a and b lost each other: ", 46);
    assert_string_equal(text + 46, why);
    bench_free(bench);
}

/* Ours has only seen that the other one closes, and why comes behind it: however late, and at once
 * when it is there. */
static void the_other_side_says_why_it_closed_the_link(void **state)
{
    struct bench *bench = with_a_link();

    engine_tells(bench, closed(LINK_END_CLOSED, "closed"));
    wait_for(bench, CORE_ENGINE_TOLD_MS - 1);
    assert_null(strstr(bench->got, "to engine message 41\n")); /* PEER_ADD */
    b_tells(bench, given_up(LINK_END_NETWORK, "no answer"));
    broken_by(bench, CAUSE_NODE_LOST, "no answer");

    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_CLOSED, "closed"));
    b_tells(bench, given_up(LINK_END_ENGINE, "malformed"));
    broken_by(bench, CAUSE_ENGINE_LOST, "malformed");

    /* nobody knows */
    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_CLOSED, "closed here"));
    b_tells(bench, given_up(LINK_END_CLOSED, "closed there"));
    broken_by(bench, CAUSE_ENGINE_LOST, "closed here");

    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_CLOSED, "closed here"));
    wait_for(bench, CORE_ENGINE_TOLD_MS);
    broken_by(bench, CAUSE_ENGINE_LOST, "closed here");
}

/* Ours knows, and their commd tells ours first that the link is closed. */
static void our_engine_says_later_why_it_closed_the_link(void **state)
{
    struct bench *bench = with_a_link();

    b_tells(bench, given_up(LINK_END_CLOSED, "closed"));
    expect(bench, "to engine message 42\n"); /* PEER_DEL */
    engine_tells(bench, closed(LINK_END_NETWORK, "no answer"));
    assert_memory_equal(bench->got, "to 1 message 23\n", 16);
    broken_by(bench, CAUSE_NODE_LOST, "no answer");
}

/* What ours knows is not forgotten because theirs knows less. */
static void who_knows_why_a_link_ended_is_believed(void **state)
{
    struct bench *bench = with_a_link();

    engine_tells(bench, closed(LINK_END_NETWORK, "no answer"));
    b_tells(bench, given_up(LINK_END_CLOSED, "closed"));
    wait_for(bench, CORE_ENGINE_DOUBT_MS);
    broken_by(bench, CAUSE_NODE_LOST, "no answer");

    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_ENGINE, "malformed"));
    b_tells(bench, given_up(LINK_END_ENGINE, "out of order"));
    wait_for(bench, CORE_ENGINE_DOUBT_MS);
    broken_by(bench, CAUSE_ENGINE_LOST, "malformed");

    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_ENGINE, "malformed"));
    b_tells(bench, given_up(LINK_END_NETWORK, "no answer"));
    wait_for(bench, CORE_ENGINE_DOUBT_MS);
    broken_by(bench, CAUSE_NODE_LOST, "no answer");
}

/* Both commds say ready, and whatever lies between the engines passes nothing on. */
static void engines_that_never_meet_are_linked_anew(void **state)
{
    struct bench *bench = with_a_link();
    uint64_t timeout = bench->core->config.node_timeout_ms, end;

    for (end = bench->now + 2 * timeout + 10; bench->now < end; wait_for(bench, timeout / 4)) {
        b_tells(bench, (struct msg){.type = MSG_HEARTBEAT});
        engine_tells(bench, (struct msg){.type = MSG_ENGINE_TRAFFIC,
                                         .engine_traffic = {.peer = 1, .engine = 77, .apart = 1}});
    }
    assert_non_null(strstr(bench->got, "to engine message 42\n")); /* PEER_DEL */
    assert_non_null(strstr(bench->got, "to 1 message 23\n"));
    assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NODE_LOST);
    assert_non_null(strstr(group_find(bench->core, GROUP)->cause_text, "no connection for "));
    bench_free(bench);
}

/* A node that gave the group up before it had opened there may ask for votes yet. */
static void who_never_opened_a_group_is_not_back(void **state)
{
    struct bench *bench = with_a_link();
    const struct group *group = group_find(bench->core, GROUP);
    struct msg msg = {.type = MSG_BROKEN,
                      .broken = {.group = GROUP, .cause = CAUSE_LEFT, .rank = -1, .node = "b"}};

    b_tells(bench, msg);
    assert_int_equal(group->state, GROUP_BROKEN);
    assert_true(group->lost[!group->me]);
    b_tells(bench, (struct msg){.type = MSG_SYNC, .sync = {.group = GROUP}});
    assert_true(group->lost[!group->me]);
    b_tells(bench, (struct msg){.type = MSG_SYNC, .sync = {.group = GROUP, .all = true}});
    assert_false(group->lost[!group->me]); /* it was lost, and is back */
    bench_free(bench);
}

/* Who still asks for votes learns that it was open, and then by what it is broken: so its ranks go
 * on from it, too. */
static void who_asks_of_a_broken_group_hears_that_it_was_open(void **state)
{
    struct bench *bench = with_a_link();
    const struct group *group = group_find(bench->core, GROUP);
    struct msg msg = {
        .type = MSG_BROKEN,
        .broken = {.group = GROUP, .cause = CAUSE_NODE_LOST, .rank = -1, .node = "b"}};
    char expected[64];

    b_tells(bench, msg);
    assert_int_equal(group->state, GROUP_BROKEN);
    bench->got[0] = 0;
    b_tells(bench, (struct msg){.type = MSG_SYNC, .sync = {.group = GROUP}});
    snprintf(expected, sizeof(expected), "to 1 message %u\nto 1 message %u\n", MSG_SYNC,
             MSG_BROKEN);
    assert_string_equal(bench->got, expected);
    bench_free(bench);
}

static void is_stopped(struct bench *bench, uint64_t ms)
{
    bench->now += ms;
    feed(bench, (struct core_event){.type = CORE_TICK});
}

/* What mends a link, or says why it ended, may have come while we were stopped. */
static void who_was_stopped_reads_of_links_first(void **state)
{
    struct bench *bench = with_a_link();
    uint64_t timeout = bench->core->config.node_timeout_ms;
    struct msg traffic = {.type = MSG_ENGINE_TRAFFIC,
                          .engine_traffic = {.peer = 1, .engine = 77, .apart = 1}};

    engine_tells(bench, traffic);
    is_stopped(bench, 3 * timeout);
    traffic.engine_traffic.apart = 0;
    engine_tells(bench, traffic);
    b_tells(bench, (struct msg){.type = MSG_HEARTBEAT});
    wait_for(bench, timeout / 2);
    assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NONE);
    bench_free(bench);

    bench = with_a_link();
    engine_tells(bench, closed(LINK_END_CLOSED, "closed"));
    is_stopped(bench, 5000);
    b_tells(bench, given_up(LINK_END_NETWORK, "no answer"));
    wait_for(bench, 2 * bench->core->config.heartbeat_ms);
    broken_by(bench, CAUSE_NODE_LOST, "no answer");
}

/* Nobody says any more why a link between engines ended when that of their commds has. */
static void a_doubt_ends_with_the_link(void **state)
{
    struct bench *bench = introduced();
    struct msg down = closed(LINK_END_CLOSED, "closed");

    down.engine_peer.intro = BEFORE;
    engine_tells(bench, down);
    assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NONE);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
    expect_peer(bench, CORE_PEER_AWAY);
    broken_by(bench, CAUSE_ENGINE_LOST, "closed");
}

/* Both links end at once: what our engine knows of it is said, and not that the other one has
 * ended, too. Who only sees that all of a node has closed says that the node was lost. */
static void a_node_in_doubt_is_lost(void **state)
{
    static const struct {
        unsigned end;
        const char *text;
    } rows[] = {{LINK_END_NETWORK, "authentication failed"}, {LINK_END_CLOSED, "node b was lost"}};

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct bench *bench = with_a_link();

        engine_tells(bench, closed(rows[i].end, rows[i].text));
        expect_peer(bench, CORE_PEER_LINKING);
        assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NONE);
        feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
        expect_peer(bench, CORE_PEER_UNLINKED);
        assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NODE_LOST);
        assert_non_null(strstr(group_find(bench->core, GROUP)->cause_text, rows[i].text));
        bench_free(bench);
    }
}

/* Its BYE has not come, so ours would go on to mend it, and b be READY on one side only. */
static void the_other_engine_gives_up_the_link(void **state)
{
    struct bench *bench = with_its_engine(77);
    struct msg ready = {.type = MSG_ENGINE_READY, .engine_ready = {.engine = 55, .mine = 77}};
    struct core_peer_view view;

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    b_is_back(bench);
    bench->got[0] = 0;
    b_tells(bench, (struct msg){.type = MSG_ENGINE_READY, .engine_ready = {.mine = 54}});
    expect(bench, ""); /* of one before ours */
    b_tells(bench, (struct msg){.type = MSG_ENGINE_READY,
                                .engine_ready = {.mine = 55, .text = "it was meddled with"}});
    expect(bench, "to engine message 42\n"); /* PEER_DEL */
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_string_equal(view.last_error,
                        "the engines of nodes a and b lost each other: it was meddled with");
    wait_for(bench, CORE_RECONNECT_MIN_MS);
    assert_non_null(strstr(bench->got, "to engine message 41\n")); /* PEER_ADD */
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_READY,
                                     .engine_peer = {.peer = 1, .engine = 77}});
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_LINKING);
    b_tells(bench, ready);
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_READY);
    /* Ours gives it up: b is told, and has to accept it anew. */
    bench->got[0] = 0;
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_DOWN,
                                     .engine_peer = {.peer = 1, .engine = 77}});
    expect(bench, "to engine message 42\nto 1 message 23\n");
    wait_for(bench, 2 * (uint64_t)CORE_RECONNECT_MIN_MS);
    engine_tells(bench, (struct msg){.type = MSG_ENGINE_PEER_READY,
                                     .engine_peer = {.peer = 1, .engine = 77}});
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_LINKING);
    bench_free(bench);
}

/* Our engine has lost that of b: it is asked where the board is, and b has a short time to come. */
static void a_node_whose_engine_was_lost_meanwhile(void **state)
{
    struct bench *bench = with_its_engine(0);
    struct core_peer_view view;

    engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
    expect(bench, "engine resumed\nto engine message 56\n"); /* BOARD_HOLD */
    engine_tells(bench, (struct msg){.type = MSG_BOARD_HELD,
                                     .board_held = {.group = GROUP, .quiet = 1, .ops = 4}});
    wait_for(bench, bench->core->config.node_timeout_ms - 1);
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_AWAY);
    wait_for(bench, 1);
    assert_true(core_peer_at(bench->core, 1, &view));
    assert_int_equal(view.state, CORE_PEER_UNLINKED);
    assert_int_equal(group_find(bench->core, GROUP)->cause, CAUSE_NODE_LOST);
    bench_free(bench);
}

/* Our engine rested because the one of b was to be replaced, of which the commd before us had
 * heard. It has ended since, and b is not linked yet. */
static void a_node_whose_engine_was_to_be_replaced(void **state)
{
    for (int planned = 0; planned < 2; planned++) {
        struct bench *bench = with_its_engine(77);
        struct msg down = closed(LINK_END_CLOSED, "the other side has closed the link");
        const struct group *group = group_find(bench->core, GROUP);

        engine_tells(bench, (struct msg){.type = MSG_ENGINE_RESUMED});
        down.engine_peer.planned = (uint8_t)planned;
        engine_tells(bench, down);
        expect_peer(bench, planned ? CORE_PEER_AWAY : CORE_PEER_UNLINKED);
        assert_int_equal(group->cause, planned ? 0 : CAUSE_NODE_LOST);
        bench_free(bench);
    }
}

static void counts_go_on(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);

    core_restore_begin(bench->core, bench->now);
    core_restore_counts(bench->core, &(struct core_counts){.clients = 5, .ranks_lost = 2});
    taken_over(bench);
    hello(bench, 0, 1000, false);
    assert_int_equal(core_counts(bench->core)->clients, 6);
    assert_int_equal(core_counts(bench->core)->ranks_lost, 2);
    bench_free(bench);
}

/* Root's commctl, and the process is away. */
static void one_that_is_away_is_kicked(void **state)
{
    struct bench *bench = took_over();
    struct msg msg = {.type = MSG_ADMIN, .admin = {.verb = "kick_pid", .pid = 100}};

    hello(bench, 7, 0, true);
    bench->got[0] = 0;
    say(bench, 7, &msg);
    expect(bench, "group broken 8: pid 100 was disconnected by root with commctl kick on node a\n"
                  "rank 0 missed: rank 0 (pid 100 on node a) was lost: it was kicked\n"
                  "0 close\n"
                  "7 changed 1: disconnected pid 100, groups that ended: 1\n");
    assert_false(core_client_may_return(bench->core, 0, 1000, 100));
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_counts_while_it_is_away),
        cmocka_unit_test(clients_that_cannot_be),
        cmocka_unit_test(only_the_same_process_comes_back),
        cmocka_unit_test(one_of_another_version_is_told),
        cmocka_unit_test(messages_of_one_that_is_away_are_nobodys),
        cmocka_unit_test(who_did_not_know_that_it_was_welcome),
        cmocka_unit_test(one_that_is_in_a_group_keeps_its_place),
        cmocka_unit_test(a_group_goes_on),
        cmocka_unit_test(what_is_not_on_its_list_it_has_left),
        cmocka_unit_test(a_join_whose_answer_was_lost),
        cmocka_unit_test(ids_of_groups_do_not_repeat),
        cmocka_unit_test(groups_that_cannot_be),
        cmocka_unit_test(more_groups_than_there_is_room_for),
        cmocka_unit_test(ends_that_cannot_be),
        cmocka_unit_test(boards_are_told_again),
        cmocka_unit_test(who_is_away_leaves_as_its_board_says),
        cmocka_unit_test(a_broken_group_stays_broken),
        cmocka_unit_test(an_epoch_that_has_gone_on),
        cmocka_unit_test(a_recovery_that_is_asked_for_again),
        cmocka_unit_test(a_recovery_that_is_not_asked_for_again),
        cmocka_unit_test(a_group_without_ranks_is_closed),
        cmocka_unit_test(ranks_without_their_client_are_lost),
        cmocka_unit_test(a_group_whose_engine_has_ended_too),
        cmocka_unit_test(a_group_that_waits_for_an_engine),
        cmocka_unit_test(a_group_that_has_gone_on_over_an_engine),
        cmocka_unit_test(a_group_that_cannot_wait),
        cmocka_unit_test(a_board_that_the_next_engine_did_not_get),
        cmocka_unit_test(a_node_whose_engine_was_lost_meanwhile),
        cmocka_unit_test(a_node_whose_engine_was_to_be_replaced),
        cmocka_unit_test(engines_that_were_introduced_over_different_links),
        cmocka_unit_test(engines_that_were_introduced_before),
        cmocka_unit_test(an_engine_that_may_not_have_been_told),
        cmocka_unit_test(traffic_counts_from_here),
        cmocka_unit_test(engines_that_have_not_met_yet),
        cmocka_unit_test(a_node_whose_commd_is_stopped),
        cmocka_unit_test(a_node_that_is_gone),
        cmocka_unit_test(engines_that_never_meet_are_linked_anew),
        cmocka_unit_test(who_never_opened_a_group_is_not_back),
        cmocka_unit_test(who_asks_of_a_broken_group_hears_that_it_was_open),
        cmocka_unit_test(who_was_stopped_reads_of_links_first),
        cmocka_unit_test(a_doubt_ends_with_the_link),
        cmocka_unit_test(a_node_in_doubt_is_lost),
        cmocka_unit_test(the_other_engine_gives_up_the_link),
        cmocka_unit_test(the_other_side_says_why_it_closed_the_link),
        cmocka_unit_test(our_engine_says_later_why_it_closed_the_link),
        cmocka_unit_test(who_knows_why_a_link_ended_is_believed),
        cmocka_unit_test(counts_go_on),
        cmocka_unit_test(one_that_is_away_is_kicked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
