/* What the core counts: each event once, and under its own cause. */
#include "tests/unit/daemon/core_bench.h"

static uint64_t sum(const uint64_t *counts, unsigned n)
{
    uint64_t all = 0;

    for (unsigned i = 0; i < n; i++)
        all += counts[i];
    return all;
}

static void clients_and_joins(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    const struct core_counts *counts = core_counts(bench->core);

    for (unsigned i = 0; i < 5; i++)
        hello(bench, i, 1000, false); /* four may come */
    assert_int_equal(counts->clients, 4);
    assert_int_equal(counts->clients_refused[CAUSE_QUOTA], 1);
    open_client(bench, 5, 1000);
    join(bench, 5, 1, "g", 0, 1);
    assert_int_equal(counts->clients_refused[CAUSE_PROTOCOL], 1);
    hello(bench, 6, 1000, true); /* commctl is not counted */
    assert_int_equal(counts->clients, 4);
    join(bench, 0, 1, "", 0, 1);
    assert_int_equal(counts->joins_failed[CAUSE_INVALID], 1);
    join(bench, 0, 2, "g", 0, 2);
    bench->now += 60000;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(counts->joins_failed[CAUSE_TIMEOUT], 1);
    assert_int_equal(sum(counts->joins_failed, CAUSE_COUNT), 2);
    assert_int_equal(sum(counts->clients_refused, CAUSE_COUNT), 2);
    bench_free(bench);
}

static void groups(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    const struct core_counts *counts = core_counts(bench->core);
    struct msg msg = {.type = MSG_CLIENT_LEAVE};
    struct core_group_view view;

    hello(bench, 0, 1000, false);
    hello(bench, 1, 1000, false);
    join(bench, 0, 1, "g", 0, 2);
    join(bench, 1, 1, "g", 1, 2);
    assert_int_equal(counts->groups_opened, 1);
    assert_true(core_group_at(bench->core, 0, &view));
    msg.client_leave.group = view.id;
    say(bench, 0, &msg);
    assert_int_equal(counts->ranks_lost, 0); /* it left */
    feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = 1, .text = "killed"});
    assert_int_equal(counts->ranks_lost, 1);
    assert_int_equal(sum(counts->groups_broken, CAUSE_COUNT), 0);
    join(bench, 0, 2, "h", 0, 1);
    assert_true(core_group_at(bench->core, 0, &view));
    msg = (struct msg){.type = MSG_CLIENT_ABORT};
    msg.client_abort.group = view.id;
    say(bench, 0, &msg);
    say(bench, 0, &msg); /* it is broken already */
    assert_int_equal(counts->groups_broken[CAUSE_ABORTED], 1);
    hello(bench, 2, 1000, false);
    join(bench, 2, 3, "i", 0, 1);
    for (unsigned i = 0; core_group_at(bench->core, i, &view); i++)
        if (view.state == CORE_GROUP_OPEN)
            break;
    feed(bench, (struct core_event){
                    .type = CORE_BOARD_FAILED, .group = view.id, .cause = CAUSE_QUOTA, .text = ""});
    assert_int_equal(counts->groups_broken[CAUSE_QUOTA], 1);
    assert_int_equal(counts->joins_failed[CAUSE_QUOTA], 1);
    assert_int_equal(counts->groups_opened, 3);
    bench_free(bench);
}

static void most_of_one_user(void **state)
{
    struct core_config config = config_of(1);
    struct bench *bench = bench_new(&config);
    struct core_user_most most = {0};
    uint32_t at = 0;

    hello(bench, 0, 1000, false);
    hello(bench, 1, 1001, false);
    hello(bench, 2, 1001, false);
    join(bench, 0, 1, "g", 0, 1);
    while (core_user_most(bench->core, &at, &most))
        ;
    assert_int_equal(most.users, 2);
    assert_int_equal(most.clients, 2);
    assert_int_equal(most.groups, 1);
    for (unsigned i = 0; i < 3; i++)
        feed(bench, (struct core_event){.type = CORE_CLIENT_CLOSED, .client = i, .text = ""});
    most = (struct core_user_most){0};
    at = 0;
    while (core_user_most(bench->core, &at, &most))
        ;
    assert_int_equal(most.users + most.clients + most.groups, 0); /* nothing is left of who left */
    bench_free(bench);
}

static struct core_peer_view peer_view(struct bench *bench)
{
    struct core_peer_view view;

    assert_true(core_peer_at(bench->core, 1, &view));
    return view;
}

static void link_up_of(struct bench *bench, uint64_t incarnation)
{
    struct msg msg = {.type = MSG_PEER_HELLO};

    msg.peer_hello.incarnation = incarnation;
    feed(bench, (struct core_event){.type = CORE_PEER_UP, .node = 1, .msg = &msg});
}

static void link_up(struct bench *bench)
{
    link_up_of(bench, 5);
}

static void engine_up(struct bench *bench)
{
    struct msg msg = {.type = MSG_ENGINE_HELLO};

    msg.engine_hello.version = MSG_VERSION;
    msg.engine_hello.addr_len = 4;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

/* Until node 1 is READY: each engine accepts the other. */
static void engines_meet(struct bench *bench, uint64_t theirs)
{
    struct msg msg = {.type = MSG_ENGINE_STATE};

    msg.engine_state.engine = theirs;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    msg = (struct msg){.type = MSG_ENGINE_PEER_READY};
    msg.engine_peer.peer = 1;
    msg.engine_peer.engine = theirs;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    msg = (struct msg){.type = MSG_ENGINE_READY};
    msg.engine_ready.engine = bench->core->engine.incarnation;
    msg.engine_ready.mine = theirs;
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_int_equal(peer_view(bench).state, CORE_PEER_READY);
}

/* One whose link closes may come back; one that is refused is lost, and its engine with it. */
static void a_node_that_is_refused(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    const uint64_t *losses = peer_view(bench).losses;

    link_up(bench);
    engine_up(bench);
    link_up(bench);
    engines_meet(bench, 8);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
    assert_int_equal(peer_view(bench).state, CORE_PEER_AWAY);
    link_up(bench);
    feed(bench, (struct core_event){
                    .type = CORE_PEER_DOWN, .node = 1, .refused = true, .text = "it is revoked"});
    assert_int_equal(peer_view(bench).state, CORE_PEER_UNLINKED);
    assert_int_equal(losses[CORE_LOSS_LINK], 2);
    bench_free(bench);
}

/* While it is waited for it may get another certificate; if it does not, that is why it is lost. */
static void a_node_that_comes_back_with_a_certificate_of_before(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct core_event refused = {
        .type = CORE_PEER_DOWN, .node = 1, .refused = true, .text = "its certificate has expired"};

    link_up(bench);
    engine_up(bench);
    link_up(bench);
    engines_meet(bench, 8);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
    feed(bench, refused);
    assert_int_equal(peer_view(bench).state, CORE_PEER_AWAY);
    while (peer_view(bench).state == CORE_PEER_AWAY) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_int_equal(strncmp(peer_view(bench).last_error, refused.text, strlen(refused.text)), 0);
    feed(bench, refused); /* and once it is lost nobody waits for it */
    assert_int_equal(peer_view(bench).state, CORE_PEER_UNLINKED);
    bench_free(bench);
}

/* Of a node that is lost in the same moment it is not said that it is restarting; nor if its link
 * is only made anew, as by another key. Else it is, before it is back at the latest. */
static void a_node_is_lost_or_restarting(void **state)
{
    enum { LOST, ANOTHER_COMMD, BACK, NOT_QUITE_BACK, GONE, CASES };

    (void)state;
    for (unsigned i = 0; i < CASES; i++) {
        struct core_config config = config_of(2);
        struct msg msg = {.type = MSG_ENGINE_PEER_DOWN};
        struct bench *bench;
        bool told = i != LOST && i != BACK;

        config.restart_timeout_ms = 10000;
        bench = bench_new(&config);
        feed(bench, (struct core_event){.type = CORE_TICK});
        engine_up(bench);
        link_up(bench);
        engines_meet(bench, 8);
        feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
        assert_int_equal(peer_view(bench).state, CORE_PEER_AWAY);
        assert_int_equal(bench->noted[CORE_NOTE_NODE_AWAY], 0);
        if (i == LOST) {
            msg.engine_peer.peer = 1;
            msg.engine_peer.engine = 8;
            feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
            assert_int_equal(peer_view(bench).state, CORE_PEER_UNLINKED);
        } else if (i != GONE) {
            link_up_of(bench, i == ANOTHER_COMMD ? 6 : 5);
            assert_int_equal(bench->noted[CORE_NOTE_NODE_AWAY], i == ANOTHER_COMMD);
            if (i == BACK)
                engines_meet(bench, 8);
        }
        bench->now += CORE_AWAY_TOLD_MS;
        feed(bench, (struct core_event){.type = CORE_TICK});
        assert_int_equal(bench->noted[CORE_NOTE_NODE_AWAY], told);
        assert_int_equal(bench->noted[CORE_NOTE_NODE_LOST], i == LOST);
        if (i == NOT_QUITE_BACK)
            engines_meet(bench, 8);
        assert_int_equal(bench->noted[CORE_NOTE_NODE_UP], 1 + (i == NOT_QUITE_BACK));
        bench_free(bench);
    }
}

/* That the engines do not have each other is said unless it is over soon: one was replaced. */
static void engines_that_are_apart_for_a_moment(void **state)
{
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        struct core_config config = config_of(2);
        struct bench *bench = bench_new(&config);
        struct msg msg = {.type = MSG_ENGINE_STATE};

        feed(bench, (struct core_event){.type = CORE_TICK});
        engine_up(bench);
        link_up(bench);
        engines_meet(bench, 8);
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
        assert_int_equal(peer_view(bench).state, CORE_PEER_LINKING);
        assert_true(core_deadline(bench->core) <= bench->now + CORE_AWAY_TOLD_MS);
        bench->now += CORE_AWAY_TOLD_MS - 1 + late;
        feed(bench, (struct core_event){.type = CORE_TICK});
        assert_int_equal(bench->noted[CORE_NOTE_NODE_LOST], late);
        engines_meet(bench, 9);
        bench->now += 1;
        feed(bench, (struct core_event){.type = CORE_TICK});
        assert_int_equal(bench->noted[CORE_NOTE_NODE_LOST], late);
        assert_int_equal(bench->noted[CORE_NOTE_NODE_UP], 1 + late);
        assert_int_equal(bench->noted[CORE_NOTE_NODE_AWAY], 0);
        bench_free(bench);
    }
}

/* Our engine answers, and says if it has a connection; the other commd is heard. */
static void go_on(struct bench *bench, uint64_t until_ms)
{
    while (bench->now < until_ms) {
        struct msg pong = {.type = MSG_PING, .ping = {.pong = 1}}, beat = {.type = MSG_HEARTBEAT};

        bench->now = MIN(until_ms, core_deadline(bench->core));
        pong.ping.seq = bench->core->engine.life.seq;
        feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &pong});
        feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &beat});
    }
}

/* A commd that is late now and then gives up a node with which there is no connection all the same.
 */
static void late_now_and_then_while_engines_are_apart(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_ENGINE_TRAFFIC, .engine_traffic = {.peer = 1, .engine = 8}};
    uint64_t begun_ms;

    (void)state;
    feed(bench, (struct core_event){.type = CORE_TICK});
    engine_up(bench);
    link_up(bench);
    engines_meet(bench, 8);
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    msg.engine_traffic.apart = 1;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    begun_ms = bench->now;
    while (peer_view(bench).state == CORE_PEER_READY &&
           bench->now < begun_ms + 5 * config.node_timeout_ms) {
        bench->now = core_deadline(bench->core) + config.heartbeat_ms + 1;
        go_on(bench, bench->now + 2000);
    }
    assert_int_equal(peer_view(bench).state, CORE_PEER_LINKING);
    bench_free(bench);
}

static void nodes_and_how_they_are_lost(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    struct msg msg = {.type = MSG_ENGINE_PEER_DOWN};
    const uint64_t *losses = peer_view(bench).losses;

    link_up(bench);
    link_up(bench);
    assert_int_equal(losses[CORE_LOSS_RECONNECT], 1);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it ended"});
    assert_int_equal(losses[CORE_LOSS_LINK], 1);
    link_up(bench);
    while (peer_view(bench).state != CORE_PEER_UNLINKED) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_int_equal(losses[CORE_LOSS_SILENCE], 1);
    assert_int_equal(peer_view(bench).links, 3);

    /* their engine goes: ours sees it first, then their commd says so; it is one loss */
    engine_up(bench);
    link_up(bench);
    engines_meet(bench, 8);
    msg.engine_peer.peer = 1;
    msg.engine_peer.engine = 8;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
    msg = (struct msg){.type = MSG_ENGINE_STATE};
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &msg});
    assert_int_equal(losses[CORE_LOSS_ENGINE], 1);

    /* ours goes: that is no loss of theirs */
    engines_meet(bench, 9);
    assert_int_equal(core_counts(bench->core)->engine_starts, 1);
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
    assert_int_equal(core_counts(bench->core)->engine_losses, 1);
    assert_int_equal(losses[CORE_LOSS_ENGINE], 1);
    assert_int_equal(core_counts(bench->core)->engine_starts, 2); /* at once */
    feed(bench, (struct core_event){.type = CORE_ENGINE_DOWN, .text = "exited with status 1"});
    assert_int_equal(core_counts(bench->core)->engine_losses, 1); /* it was never up */
    assert_int_equal(sum(losses, CORE_LOSS_KINDS), 4);
    bench_free(bench);
}

static void report(struct bench *bench, uint64_t engine, uint64_t sent, uint64_t segments,
                   uint64_t retransmits)
{
    struct msg msg = {.type = MSG_ENGINE_TRAFFIC};

    msg.engine_traffic = (struct msg_engine_traffic){.peer = 1,
                                                     .engine = engine,
                                                     .sent = sent,
                                                     .segments = segments,
                                                     .retransmits = retransmits,
                                                     .rtt_us = 50,
                                                     .rate = 10 * retransmits};
    bench->now += 10;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

/* Counters go on over engines and over connections that are made anew. */
static void traffic_of_engines(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    const struct core_traffic *traffic = peer_view(bench).traffic;
    const struct msg gone = {.type = MSG_ENGINE_STATE};

    feed(bench, (struct core_event){.type = CORE_TICK}); /* it is started */
    engine_up(bench);
    link_up(bench);
    report(bench, 8, 7, 7, 7); /* before it has that peer */
    assert_int_equal(traffic->told_ms, 0);
    engines_meet(bench, 8);
    report(bench, 8, 1000, 10, 1);
    report(bench, 9, 5000, 50, 5); /* of another engine */
    assert_int_equal(traffic->sent, 1000);
    assert_int_equal(traffic->rtt_us, 50);
    report(bench, 8, 1500, 30, 6);
    assert_int_equal(traffic->sent, 1500);
    assert_int_equal(traffic->recent_segments, 20);
    assert_int_equal(traffic->recent_retransmits, 5);
    report(bench, 8, 100, 2, 1); /* connected anew */
    assert_int_equal(traffic->sent, 1600);
    assert_int_equal(traffic->segments, 32);
    assert_int_equal(traffic->retransmits, 7);
    feed(bench, (struct core_event){.type = CORE_PEER_MSG, .node = 1, .msg = &gone});
    engines_meet(bench, 9);
    report(bench, 9, 200, 3, 0);
    assert_int_equal(traffic->sent, 1800);
    assert_int_equal(traffic->recent_retransmits, 0);
    assert_int_equal(traffic->bandwidth, 60); /* the most that there was */
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it went"});
    assert_int_equal(traffic->rtt_us, 50); /* it is away: data go on */
    while (peer_view(bench).state != CORE_PEER_UNLINKED) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_int_equal(traffic->sent, 1800);
    assert_int_equal(traffic->rtt_us, 0); /* there is no way there */
    bench_free(bench);
}

static void report_key(struct bench *bench, bool apart, uint32_t encryption, uint64_t key_ms)
{
    struct msg msg = {.type = MSG_ENGINE_TRAFFIC};

    msg.engine_traffic = (struct msg_engine_traffic){.peer = 1,
                                                     .engine = 8,
                                                     .apart = apart,
                                                     .encryption = encryption,
                                                     .key_ms = key_ms,
                                                     .generation = 2};
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

/* What is not told is not known: an engine of version 10, or a newer one, or no connection. */
static void encryption_as_the_engine_tells(void **state)
{
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);
    const struct core_traffic *traffic = peer_view(bench).traffic;
    struct msg lost = {.type = MSG_ENGINE_PEER_DOWN};

    feed(bench, (struct core_event){.type = CORE_TICK});
    engine_up(bench);
    link_up(bench);
    engines_meet(bench, 8);
    report(bench, 8, 1000, 10, 1); /* as one of version 10 */
    assert_int_equal(traffic->encryption, LINK_UNTOLD);
    bench->now += 5000;
    report_key(bench, false, LINK_AES_128_GCM, 3000);
    assert_int_equal(traffic->encryption, LINK_AES_128_GCM);
    assert_int_equal(traffic->key_since_ms, bench->now - 3000);
    assert_int_equal(traffic->generation, 2);
    report_key(bench, false, LINK_ENCRYPTIONS, UINT64_MAX);
    assert_int_equal(traffic->encryption, LINK_UNTOLD);
    assert_int_equal(traffic->key_since_ms, 0);
    report_key(bench, false, LINK_CLEAR_OFF, 0);
    assert_int_equal(traffic->encryption, LINK_CLEAR_OFF);
    report_key(bench, true, LINK_CLEAR_OFF, 0);
    assert_int_equal(traffic->encryption, LINK_UNTOLD);
    report_key(bench, false, LINK_CLEAR_OFF, 0);
    lost.engine_peer.peer = 1; /* now the node is linking */
    lost.engine_peer.engine = 8;
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &lost});
    assert_int_equal(peer_view(bench).state, CORE_PEER_LINKING);
    assert_int_equal(traffic->encryption, LINK_UNTOLD);
    feed(bench, (struct core_event){.type = CORE_PEER_DOWN, .node = 1, .text = "it went"});
    while (peer_view(bench).state != CORE_PEER_UNLINKED) {
        bench->now = core_deadline(bench->core);
        feed(bench, (struct core_event){.type = CORE_TICK});
    }
    assert_int_equal(traffic->encryption, LINK_UNTOLD);
    bench_free(bench);
}

/* As views show it, and read it again. */
static void encryption_has_words(void **state)
{
    for (enum link_encryption e = LINK_UNTOLD; e < LINK_ENCRYPTIONS; e++) {
        assert_int_equal(link_encryption_read(link_encryption_word(e)), e);
        assert_int_equal(link_is_encrypted(e), !strncmp(link_encryption_word(e), "AES", 3) ||
                                                   e == LINK_CHACHA20_POLY1305);
        assert_int_equal(link_is_open(e), !strncmp(link_encryption_word(e), "clear:", 6));
    }
}

static void sent(struct bench *bench, uint32_t uid, uint32_t ms, uint64_t bytes)
{
    struct msg msg = {.type = MSG_ENGINE_SENT};

    msg.engine_sent = (struct msg_engine_sent){uid, ms, bytes};
    feed(bench, (struct core_event){.type = CORE_ENGINE_MSG, .msg = &msg});
}

/* For as long as the engine tells it. */
static void what_users_send(void **state)
{
    static const uint32_t mine = 1000, other = 1001, nobody = 1002;
    struct core_config config = config_of(2);
    struct bench *bench = bench_new(&config);

    feed(bench, (struct core_event){.type = CORE_TICK}); /* the engine is started */
    engine_up(bench);
    hello(bench, 0, mine, false);
    hello(bench, 1, other, false);
    sent(bench, mine, 500, 1000);
    sent(bench, other, 0, 7);
    sent(bench, nobody, 1000, 9); /* its groups have ended */
    assert_int_equal(core_sent_rate(bench->core, &mine), 2000);
    assert_int_equal(core_sent_rate(bench->core, &other), 7000);
    assert_int_equal(core_sent_rate(bench->core, &nobody), 0);
    assert_int_equal(core_sent_rate(bench->core, NULL), 9000);
    bench->now += CORE_SENT_MS - 1;
    sent(bench, mine, 1000, 400);
    assert_int_equal(core_sent_rate(bench->core, NULL), 7400);
    bench->now++;
    feed(bench, (struct core_event){.type = CORE_TICK});
    assert_int_equal(core_sent_rate(bench->core, NULL), 400); /* the other sends nothing now */
    sent(bench, mine, 3000, 600); /* with many users it is told less often */
    bench->now += 3000;
    assert_int_equal(core_sent_rate(bench->core, NULL), 200);
    sent(bench, mine, 0, UINT64_MAX);
    sent(bench, other, 0, UINT64_MAX);
    assert_true(core_sent_rate(bench->core, NULL) > core_sent_rate(bench->core, &mine));
    bench_free(bench);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_and_joins),
        cmocka_unit_test(groups),
        cmocka_unit_test(most_of_one_user),
        cmocka_unit_test(a_node_that_is_refused),
        cmocka_unit_test(a_node_that_comes_back_with_a_certificate_of_before),
        cmocka_unit_test(nodes_and_how_they_are_lost),
        cmocka_unit_test(a_node_is_lost_or_restarting),
        cmocka_unit_test(engines_that_are_apart_for_a_moment),
        cmocka_unit_test(late_now_and_then_while_engines_are_apart),
        cmocka_unit_test(traffic_of_engines),
        cmocka_unit_test(what_users_send),
        cmocka_unit_test(encryption_as_the_engine_tells),
        cmocka_unit_test(encryption_has_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
