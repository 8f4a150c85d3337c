/* test_core_share.c - one user cannot take what all need from the others: places in tables, ranks,
 * room for members; and the numbers of groups go on after 2^32 of them. */
#include "tests/unit/daemon/core_bench.h"

enum { HOSTILE = 4001, VICTIM = 4002 };

/* Every size that there is, largest first, joined by one client that never fills any. */
static void sizes_that_never_fill(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups = 4096;
    config.max_groups_per_user = 2048;
    bench = bench_new(&config);
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 4096 >> i / 100);
    }
    assert_non_null(strstr(bench->got, "has no room for one more group of user 4001"));
    assert_in_range(bench->core->runs.used, 1, bench->core->runs.nblocks / 2);
    hello(bench, 1, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 1, 1, "largest", 0, 4096);
    join(bench, 1, 2, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

/* Runs that are given back in an order that leaves a small one in each large one. */
static void small_runs_lie_in_nobodys_way(void **state)
{
    struct runs runs = {0};
    struct run_owner hostile = {.blocks = 0}, victim = {.blocks = 0};
    struct msg_member *small[16], *large;

    runs_init(&runs, 64, 16 * 64);
    runs.members = calloc(16 * 64, sizeof(*runs.members));
    runs.fates = calloc(16 * 64, sizeof(*runs.fates));
    runs.order = calloc(16 * 64, 1);
    for (unsigned i = 0; i < 8; i++) { /* its share is 8 blocks */
        assert_non_null(large = runs_take(&runs, &hostile, 8, 64));
        runs_leave(&runs, &hostile, large);
        assert_non_null(small[i] = runs_take(&runs, &hostile, 8, 1));
    }
    assert_int_equal(hostile.blocks, 1);      /* they are beside each other */
    while (runs_take(&runs, &hostile, 8, 33)) /* more than half of a block: one in each */
        ;
    assert_int_equal(hostile.blocks, 8);
    assert_int_equal(runs.used, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_non_null(runs_take(&runs, &victim, 8, 64));
    assert_null(runs_take(&runs, &victim, 8, 1));
    assert_null(runs_take(&runs, &victim, 9, 65)); /* no group is larger */
    for (unsigned i = 0; i < 8; i++)
        runs_leave(&runs, &hostile, small[i]);
    assert_int_equal(hostile.blocks, 7);
    assert_non_null(runs_take(&runs, &victim, 9, 64)); /* the block that came back */
    free(runs.members);
    free(runs.fates);
    free(runs.order);
}

/* Joins that wait take ranks of the node's table: half of what others leave, then no more. */
static void ranks_are_shared(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    unsigned joined = 0;
    char name[16];

    config.max_clients = config.max_groups = 64;
    config.max_clients_per_user = 32;
    config.max_groups_per_user = 63;
    config.max_size = 16;
    config.max_members = 64; /* as many ranks of this node */
    bench = bench_new(&config);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "h%u", i / 16);
        hello(bench, i % 20, HOSTILE, false);
        bench->got[0] = 0;
        join(bench, i % 20, i, name, i % 15, 16);
        joined += !bench->got[0];
    }
    assert_in_range(bench->core->members.live, 1, 32);
    hello(bench, 60, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 60, 1, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

static void too_many_ranks_of_one_user(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups = 4096;
    config.max_groups_per_user = 2048;
    bench = bench_new(&config);
    bench->core->max_members = 64;
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < 33; i++) {
        bench->got[0] = 0;
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    expect(bench,
           "0 JOIN_FAILED req 32 cause 3 rank -1 node a: group \"h32\": user 4001 has 32 ranks in "
           "groups or joining on node a already, half of what others leave of 64: leave some\n");
    hello(bench, 1, VICTIM, false);
    bench->got[0] = 0;
    join(bench, 1, 1, "v", 0, 1);
    expect(bench, "group open\n");
    bench_free(bench);
}

/* Groups: the configuration's bound for one user, and half of what others leave. */
static void groups_are_shared(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    unsigned open[3] = {0};
    char name[16];

    config.max_groups = 16;
    config.max_groups_per_user = 12;
    bench = bench_new(&config);
    for (unsigned user = 0; user < 3; user++) {
        hello(bench, user, HOSTILE + user, false);
        for (unsigned i = 0; i < 20; i++) {
            bench->got[0] = 0;
            snprintf(name, sizeof(name), "g%u", i);
            join(bench, user, i, name, 0, 1);
            open[user] += !strcmp(bench->got, "group open\n");
        }
    }
    assert_int_equal(open[0], 8);
    assert_int_equal(open[1], 4);
    assert_int_equal(open[2], 2);
    assert_non_null(
        strstr(bench->got, "user 4003 has 2 groups on node a already, half of what others leave"));
    bench_free(bench);
}

/* Uids of alice, 1000, and of nobody else. */
static struct payers *alices(void)
{
    static union {
        struct payers payers;
        char room[sizeof(struct payers) + sizeof(struct payer_range)];
    } of;

    of.payers.n = 1;
    of.payers.ranges[0] = (struct payer_range){100000, 165535, 1000};
    return &of.payers;
}

static unsigned joined_by(struct bench *bench, unsigned slot, unsigned n)
{
    unsigned open = 0;
    char name[16];

    for (unsigned i = 0; i < n; i++) {
        bench->got[0] = 0;
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, slot, i, name, 0, 1);
        open += !strcmp(bench->got, "group open\n");
    }
    return open;
}

/* Three uids of one person have the groups of one user; the next user half of what is left. */
static void one_person_is_one_user(void **state)
{
    struct core_config config = config_of(1);
    struct core_share shares[CORE_SHARES];
    struct bench *bench;
    uint32_t uids[8];

    config.max_groups = 16;
    config.max_groups_per_user = 12;
    config.payers = alices();
    bench = bench_new(&config);
    hello(bench, 0, 100000, false);
    hello(bench, 1, 1000, false);
    hello(bench, 2, 165535, false);
    hello(bench, 3, 165536, false);
    assert_int_equal(joined_by(bench, 0, 5), 5);
    assert_int_equal(joined_by(bench, 1, 5), 3);
    assert_non_null(strstr(bench->got, "user 1000 has 8 groups on node a already"));
    assert_int_equal(joined_by(bench, 2, 5), 0);
    assert_int_equal(joined_by(bench, 3, 5), 4);
    assert_int_equal(core_users(bench->core, uids, 8), 2);
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_CLIENTS].used, 3);
    assert_int_equal(shares[CORE_SHARE_GROUPS].used, 8);
    assert_int_equal(shares[CORE_SHARE_RANKS].used, 8);
    bench_free(bench);
}

/* What is held stays charged to whom it was; who comes is charged to whom the new file says. */
static void payers_change_while_groups_are_open(void **state)
{
    struct core_config config = config_of(1);
    struct core_share shares[CORE_SHARES];
    struct bench *bench;
    uint32_t uids[8];

    config.payers = alices();
    bench = bench_new(&config);
    hello(bench, 0, 100000, false);
    assert_int_equal(joined_by(bench, 0, 2), 2);
    config.payers = NULL;
    core_reconfigure(bench->core, &config);
    hello(bench, 1, 100001, false);
    assert_int_equal(joined_by(bench, 1, 3), 3);
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_GROUPS].used, 2);
    core_user_shares(bench->core, 100001, shares);
    assert_int_equal(shares[CORE_SHARE_GROUPS].used, 3);
    config.payers = alices();
    core_reconfigure(bench->core, &config);
    for (unsigned slot = 0; slot < 2; slot++)
        feed(bench, (struct core_event){
                        .type = CORE_CLIENT_CLOSED, .client = slot, .text = "its process ended"});
    bench->now += 1000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(core_users(bench->core, uids, 8), 0);
    bench_free(bench);
}

/* At a home, joins that other nodes bring in the name of one person's uids are one user's. */
static void one_person_forms_as_one_user(void **state)
{
    struct core_config config = config_of(2);
    struct msg hello = {.type = MSG_PEER_HELLO};
    struct core_share shares[CORE_SHARES];
    struct bench *bench;

    config.payers = alices();
    bench = bench_new(&config);
    hello.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &hello});
    for (unsigned i = 0; i < 12; i++) {
        struct msg msg = {.type = MSG_JOIN};

        msg.join = (struct msg_join){
            .join = (i + 1) << 17 | 1, .uid = 100000 + i, .pid = 7, .rank = 0, .size = 2};
        snprintf(msg.join.name, sizeof(msg.join.name), "f%u", i);
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    }
    core_user_shares(bench->core, 1000, shares);
    assert_int_equal(shares[CORE_SHARE_FORMING].used, 4);
    assert_int_equal(shares[CORE_SHARE_FORMING].all, 4);
    bench_free(bench);
}

/* Where the configuration lets one user have all groups, one may have all of the rest as well. */
static void one_user_may_have_all(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    struct core_status status;
    char name[16];

    config.max_groups = config.max_groups_per_user = 40;
    config.max_size = 1;
    config.max_members = 80; /* a group that opens needs room twice for a moment */
    bench = bench_new(&config);
    hello(bench, 0, 1000, false);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    core_status(bench->core, &status);
    assert_int_equal(status.groups, 40);
    bench_free(bench);
}

static void ids_go_on_after_all_numbers(void **state)
{
    uint64_t last = UINT32_MAX - 1ull, inc = 0x1234567890abcdefull;

    for (uint64_t n = last; n < last + 4; n++) {
        uint64_t id = home_group_id(inc, n);

        assert_true(home_group_number(inc, id) == n);
        assert_true(home_group_number(inc + 77, id) == 0);
        for (uint64_t m = last; m < n; m++)
            assert_true(home_group_id(inc, m) != id);
    }
}

/* The home counts past 2^32: its groups open, and their ids are new. */
static void a_home_counts_past_the_wrap(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_group_view view;
    uint64_t ids[4];
    char name[16];

    bench->core->commits = bench->core->peers[0].committed = UINT32_MAX - 2ull;
    hello(bench, 0, 1000, false);
    bench->got[0] = 0;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        join(bench, 0, i, name, 0, 1);
        expect(bench, "group open\n");
        assert_true(core_group_at(bench->core, i, &view));
        ids[i] = view.id;
        for (unsigned k = 0; k < i; k++)
            assert_true(ids[k] != ids[i]);
    }
    bench_free(bench);
}

/* ---- the end of a client in very many groups --------------------------------------------- */

static unsigned groups_of(struct bench *bench, uint32_t uid)
{
    struct user *user = user_get(bench->core, uid, false);

    return user ? user->groups : 0;
}

static struct bench *bench_with_groups(unsigned n)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups = 1024;
    config.max_groups_per_user = 512;
    bench = bench_new(&config);
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    assert_int_equal(groups_of(bench, HOSTILE), n);
    return bench;
}

/* A part of its groups ends in each turn, and counts until then; another client in its slot has
 * nothing of them. */
static void a_client_ends_in_parts(void **state)
{
    unsigned n = 2 * CORE_PART_BATCH + 10;
    struct bench *bench = bench_with_groups(n);

    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "x"});
    assert_int_equal(groups_of(bench, HOSTILE), n - CORE_PART_BATCH);
    hello(bench, 0, VICTIM, false);
    join(bench, 0, 1, "v", 0, 1);
    bench->got[0] = 0;
    for (unsigned left = CORE_PART_BATCH + 10; left; left -= MIN(left, (unsigned)CORE_PART_BATCH)) {
        assert_int_equal(groups_of(bench, HOSTILE), left);
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_int_equal(groups_of(bench, HOSTILE), 0);
    assert_int_equal(groups_of(bench, VICTIM), 1);
    assert_null(strstr(bench->got, "\n0 "));
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "x"});
    assert_int_equal(bench->core->members.live + bench->core->partings.live, 0);
    assert_int_equal(bench->core->clients[bench->core->client_slots].groups, 0);
    bench_free(bench);
}

/* Who is kicked likewise: all its groups break, a part in each turn. */
static void a_kick_ends_in_parts(void **state)
{
    struct bench *bench = bench_with_groups(3 * CORE_PART_BATCH);
    struct msg msg = {.type = MSG_ADMIN};
    unsigned broken = 0;

    hello(bench, 1, 0, true);
    bench->got[0] = 0;
    strcpy(msg.admin.verb, "kick_pid");
    msg.admin.pid = 100;
    say(bench, 1, &msg);
    assert_non_null(strstr(bench->got, "disconnected pid 100, groups that ended: 192"));
    for (; groups_of(bench, HOSTILE); feed(bench, (struct core_event){.type = CORE_TICK})) {
        assert_int_equal(groups_of(bench, HOSTILE), (2 - broken) * CORE_PART_BATCH);
        broken++;
        bench->now = core_deadline(bench->core);
    }
    broken = 0;
    for (const char *at = bench->got; (at = strstr(at, "group broken 8: pid 100 was")); at++)
        broken++;
    assert_int_equal(broken, 3 * CORE_PART_BATCH);
    bench_free(bench);
}

/* ---- what other nodes say ---------------------------------------------------------------- */

static void link_up(struct bench *bench, unsigned node)
{
    struct msg msg = {.type = MSG_PEER_HELLO};

    msg.peer_hello.incarnation = 5;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = node, .msg = &msg});
}

static void peer_join(struct bench *bench, unsigned node, uint64_t n, uint32_t uid,
                      const char *name, unsigned rank, unsigned size)
{
    struct msg msg = {.type = MSG_JOIN};

    msg.join =
        (struct msg_join){.join = n << 17 | 1, .uid = uid, .pid = 7, .rank = rank, .size = size};
    strcpy(msg.join.name, name);
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = node, .msg = &msg});
}

static void victim_opens_a_group(struct bench *bench, unsigned slot)
{
    hello(bench, slot, VICTIM, false);
    bench->got[0] = 0;
    join(bench, slot, 1, "v", 0, 1);
    expect(bench, "group open\n");
}

/* Tables stay as large as they are; the administrator wanted half of 64 for one user. */
static void a_reload_keeps_the_share(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench;
    char name[16];

    config.max_groups_per_user = 8;
    bench = bench_new(&config);
    config.max_groups = 64;
    config.max_groups_per_user = 32;
    core_reconfigure(bench->core, &config);
    hello(bench, 0, HOSTILE, false);
    for (unsigned i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, 0, i, name, 0, 1);
    }
    victim_opens_a_group(bench, 1);
    bench_free(bench);
}

/* Joins of one user wait; their other ranks come on another node, which is their home. */
static void groups_that_fill_elsewhere_are_shared(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench;
    struct member *member;
    unsigned n = 0;
    char name[16];

    config.max_groups = 16;
    config.max_groups_per_user = 12;
    bench = bench_new(&config);
    link_up(bench, 1);
    hello(bench, 0, HOSTILE, false);
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned i = 8 * half; i < 8 * half + 8; i++) {
            snprintf(name, sizeof(name), "h%u", i);
            join(bench, 0, i, name, 0, 2);
        }
        list_each(member, &bench->core->waiting, waiting) {
            if (member->home == 0)
                join_cancel(bench->core, member);
            member->home = 1; /* as it is for half of all names, once that node is ready */
        }
    }
    list_each(member, &bench->core->waiting, waiting) {
        struct msg_member members[2] = {{.node = 0, .pid = member->pid, .join = member->join},
                                        {.node = 1, .pid = 9, .join = 1}};
        char names[2][MSG_NAME_MAX] = {"a", "b"};
        struct msg_commit commit = {.group = home_group_id(bench->core->peers[1].incarnation, ++n),
                                    .epoch = 1,
                                    .uid = HOSTILE,
                                    .size = 2,
                                    .nnodes = 2,
                                    .members = members,
                                    .nodes = names,
                                    .home = "b"};

        strcpy(commit.name, member->name);
        group_commit(bench->core, 1, &commit);
    }
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_in_range(bench->core->groups.live, 1, 8);
    bench_free(bench);
}

static struct member *waiting_member(struct bench *bench)
{
    struct member *member = list_first(&bench->core->waiting, struct member, waiting);

    assert_non_null(member);
    return member;
}

/* A node commits in its own name, and those alone who asked it, of the user who did. */
static void a_node_commits_its_own(void **state)
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);
    struct member *member;
    struct msg_member members[2] = {{.node = 0, .pid = 7}, {.node = 1, .pid = 9, .join = 1}};
    char names[2][MSG_NAME_MAX] = {"a", "b"};
    struct msg_commit commit = {.epoch = 1,
                                .uid = VICTIM,
                                .size = 2,
                                .nnodes = 2,
                                .members = members,
                                .nodes = names,
                                .name = "v"};
    struct {
        const char *home;
        unsigned asked;
        uint32_t uid;
        bool taken;
    } tries[] = {
        {"c", 1, VICTIM, false}, /* in another node's name */
        {"b", 2, VICTIM, false}, /* it asked c */
        {"b", 1, HOSTILE, false},
        {"b", 1, VICTIM, true},
    };

    link_up(bench, 1);
    link_up(bench, 2);
    for (unsigned i = 0; i < ARRAY_LEN(tries); i++) {
        unsigned slot = i;

        hello(bench, slot, VICTIM, false);
        join(bench, slot, 1, "v", 0, 2);
        member = waiting_member(bench);
        if (member->home == 0)
            join_cancel(bench->core, member);
        member->home = (int)tries[i].asked;
        members[0].join = member->join;
        commit.group = home_group_id(bench->core->peers[1].incarnation, i + 1);
        commit.uid = tries[i].uid;
        strcpy(commit.home, tries[i].home);
        group_commit(bench->core, 1, &commit);
        assert_int_equal(bench->core->groups.live, tries[i].taken);
        feed(bench, (struct core_event){
                        .type = CORE_CLIENT_CLOSED, .client = slot, .text = "its process ended"});
    }
    bench_free(bench);
}

/* A node may say that it has any incarnation, so it can make the numbers of another node's groups.
 */
static void a_node_commits_no_group_of_another(void **state)
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);
    struct msg_member members[2] = {{.node = 0, .pid = 7}, {.node = 1, .pid = 9, .join = 1}};
    char names[2][MSG_NAME_MAX] = {"a"};
    struct msg_commit commit = {
        .epoch = 1, .uid = VICTIM, .size = 2, .nnodes = 2, .members = members, .nodes = names};

    link_up(bench, 1);
    link_up(bench, 2);
    bench->core->peers[2].incarnation = bench->core->peers[1].incarnation;
    for (unsigned home = 1; home <= 2; home++) {
        const char *name = home == 1 ? "v" : "w";
        struct member *member;

        hello(bench, home, VICTIM, false);
        join(bench, home, 1, name, 0, 2);
        list_each(member, &bench->core->waiting, waiting)
            if (!strcmp(member->name, name))
                break;
        if (member->home == 0)
            join_cancel(bench->core, member);
        member->home = (int)home;
        members[0].join = member->join;
        commit.group = home_group_id(bench->core->peers[1].incarnation, 1);
        strcpy(names[1], nodes[home]);
        strcpy(commit.home, nodes[home]);
        strcpy(commit.name, name);
        group_commit(bench->core, home, &commit);
        assert_int_equal(bench->core->groups.live, 1);
        assert_int_equal(member->state, home == 1 ? MEMBER_COMMITTED : MEMBER_ASKING);
    }
    bench_free(bench);
}

static unsigned scanned(const struct bench *bench, uint32_t uid)
{
    struct core_group_view view;
    struct core_scan scan = {0};
    unsigned n = 0;
    int r;

    while ((r = core_group_scan(bench->core, &scan, &uid, &view)) != CORE_SCAN_END)
        n += r == CORE_SCAN_FOUND;
    return n;
}

/* Open, forming here, and waiting for another home: what one user has no other sees, payer or not.
 */
static void a_user_scans_its_own(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench;
    struct member *member;

    config.payers = alices();
    bench = bench_new(&config);
    hello(bench, 0, 100000, false);
    join(bench, 0, 1, "open", 0, 1);
    assert_int_equal(scanned(bench, 100000), 1);
    join(bench, 0, 2, "forms", 0, 2);
    assert_int_equal(scanned(bench, 100000), 2);
    link_up(bench, 1);
    join(bench, 0, 3, "away", 0, 2);
    list_each(member, &bench->core->waiting, waiting)
        if (!strcmp(member->name, "away")) {
            if (member->home == 0)
                join_cancel(bench->core, member);
            member->home = 1;
        }
    assert_in_range(scanned(bench, 100000), 3, 4); /* "forms" may ask the other node now */
    assert_int_equal(scanned(bench, 1000), 0);
    assert_int_equal(scanned(bench, 100001), 0);
    assert_int_equal(scanned(bench, 0), 0);
    bench_free(bench);
}

/* Another node may name any user: it gets a share of its own. */
static void a_node_that_lies_about_uids(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench;
    char name[16];

    config.max_groups = 4096;
    config.max_groups_per_user = 2048;
    config.max_size = 2048;
    config.max_members = 262144;
    bench = bench_new(&config);
    link_up(bench, 1);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "x%u", i);
        peer_join(bench, 1, i + 1, 100000 + i, name, 0, 2);
    }
    assert_in_range(bench->core->runs.used, 1, bench->core->runs.nblocks / 2);
    victim_opens_a_group(bench, 0);
    bench_free(bench);
}

static void broken_blames_no_third_node(void **state)
{
    struct core_config config = config_of(3);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_BROKEN};
    struct group *group;

    link_up(bench, 1);
    link_up(bench, 2);
    hello(bench, 0, 1000, false);
    join(bench, 0, 1, "g", 0, 3);
    for (unsigned node = 1; node < 3; node++)
        peer_join(bench, node, 1, 1000, "g", node, 3);
    group = list_first(&bench->core->all_groups, struct group, all);
    assert_non_null(group);
    bench->got[0] = 0;
    msg.broken =
        (struct msg_broken){.group = group->id,
                            .cause = CAUSE_RANK_LOST,
                            .rank = 2,
                            .pid = 7,
                            .node = "c",
                            .text = "rank 2 (pid 7 on node c) was lost: killed by signal 9"};
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_null(strstr(bench->got, "rank 2 node c:"));
    assert_non_null(strstr(bench->got, "node b: node b says: rank 2"));
    bench_free(bench);
}

/* What a commd sees that starts when the home has made 2^33 groups. */
static void a_home_older_than_this_node(void **state)
{
    uint64_t inc = 0x1234567890abcdefull, n = (2ull << 32) + 5;

    assert_true(home_group_number(inc, home_group_id(inc, n)) == n);
}

/* ---- what users make other nodes do ------------------------------------------------------ */

static struct bench *bench_of_two_nodes(void)
{
    struct core_config config = config_of(2);
    struct bench *bench;

    config.max_clients = 64;
    config.max_clients_per_user = 32;
    config.max_groups = 8192;
    config.max_groups_per_user = 4096;
    config.max_size = 2;
    bench = bench_new(&config);
    link_up(bench, 1);
    return bench;
}

static void joins_wait(struct bench *bench, unsigned slot, unsigned first, unsigned n)
{
    char name[16];

    for (unsigned i = first; i < first + n; i++) {
        snprintf(name, sizeof(name), "h%u", i);
        join(bench, slot, i, name, 0, 2);
    }
}

static unsigned asked(struct bench *bench)
{
    struct member *member;
    unsigned n = 0;

    list_each(member, &bench->core->waiting, waiting)
        n += member->home >= 0;
    return n;
}

/* What is beyond the user's share waits for the next window; another user's join does not. */
static void joins_are_rationed(void **state)
{
    struct bench *bench = bench_of_two_nodes();

    hello(bench, 0, HOSTILE, false);
    hello(bench, 1, HOSTILE, false);
    joins_wait(bench, 0, 0, 600);
    joins_wait(bench, 1, 600, 600);
    assert_int_equal(asked(bench), CORE_RATION / 2);
    victim_opens_a_group(bench, 2);
    assert_in_range(core_deadline(bench->core), bench->now + 1, bench->now + 250);
    bench->now = core_deadline(bench->core);
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(asked(bench), 1200);
    bench_free(bench);
}

/* Users who flood at the same time share, and one of them who comes late has something. */
static void rations_of_many_users(void **state)
{
    struct bench *bench = bench_of_two_nodes();

    for (unsigned user = 0; user < 14; user++) {
        hello(bench, user, HOSTILE + 10 + user, false);
        joins_wait(bench, user, 0, 1024);
    }
    assert_in_range(asked(bench), CORE_RATION - 1, CORE_RATION + CORE_RATION / 8);
    victim_opens_a_group(bench, 20);
    bench_free(bench);
}

/* Who comes again has no new account. */
static void a_ration_outlives_its_clients(void **state)
{
    struct bench *bench = bench_of_two_nodes();

    hello(bench, 0, HOSTILE, false);
    joins_wait(bench, 0, 0, CORE_RATION / 2);
    assert_int_equal(asked(bench), CORE_RATION / 2);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "x"});
    hello(bench, 0, HOSTILE, false);
    joins_wait(bench, 0, 0, 10);
    assert_int_equal(asked(bench), 0);
    bench->now += 250;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(asked(bench), 10);
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 0, .text = "x"});
    bench->now += 250;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(bench->core->users.live, 0);
    bench_free(bench);
}

static void time_runs_out_while_held(void **state)
{
    struct bench *bench = bench_of_two_nodes();
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    hello(bench, 0, HOSTILE, false);
    hello(bench, 1, HOSTILE, false);
    joins_wait(bench, 0, 0, CORE_RATION / 2);
    msg.client_join = (struct msg_client_join){.req = 9, .size = 2, .timeout_ms = 10};
    strcpy(msg.client_join.name, "late");
    say(bench, 1, &msg);
    bench->got[0] = 0;
    bench->now += 10;
    feed(bench, (struct core_event){.type = CORE_TICK});
    expect(bench,
           "1 JOIN_FAILED req 9 cause 4 rank -1 node a: group \"late\": user 4001 asks to join so "
           "often that rank 0 was not asked for within 10 ms: let it wait longer, or join fewer "
           "groups in a second\n");
    bench_free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_never_fill),
        cmocka_unit_test(small_runs_lie_in_nobodys_way),
        cmocka_unit_test(ranks_are_shared),
        cmocka_unit_test(too_many_ranks_of_one_user),
        cmocka_unit_test(groups_are_shared),
        cmocka_unit_test(one_person_is_one_user),
        cmocka_unit_test(payers_change_while_groups_are_open),
        cmocka_unit_test(one_person_forms_as_one_user),
        cmocka_unit_test(one_user_may_have_all),
        cmocka_unit_test(ids_go_on_after_all_numbers),
        cmocka_unit_test(a_home_counts_past_the_wrap),
        cmocka_unit_test(a_reload_keeps_the_share),
        cmocka_unit_test(groups_that_fill_elsewhere_are_shared),
        cmocka_unit_test(a_node_commits_its_own),
        cmocka_unit_test(a_node_commits_no_group_of_another),
        cmocka_unit_test(a_user_scans_its_own),
        cmocka_unit_test(a_node_that_lies_about_uids),
        cmocka_unit_test(broken_blames_no_third_node),
        cmocka_unit_test(a_home_older_than_this_node),
        cmocka_unit_test(joins_are_rationed),
        cmocka_unit_test(a_client_ends_in_parts),
        cmocka_unit_test(a_kick_ends_in_parts),
        cmocka_unit_test(rations_of_many_users),
        cmocka_unit_test(a_ration_outlives_its_clients),
        cmocka_unit_test(time_runs_out_while_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
