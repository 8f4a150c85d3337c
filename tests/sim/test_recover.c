/* test_recover.c - transcripts of groups that go on as their next epoch, word for word: what each
 * node says and does. As in test_join.c links take exactly 1 ms, and groups are named by their home
 * and its count of commits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

enum { MOST = 8 };

struct fix {
    struct sim *sim;
    const char *g;
    unsigned rank[MOST], n;
};

/* A group of @n ranks, rank i on node @nodes[i], with its home on node @home. */
static struct fix group(unsigned count, unsigned home, const unsigned *nodes, unsigned n)
{
    struct fix f = {.n = n};

    f.sim = sim_new(&(struct sim_options){
        .nodes = count, .seed = 1, .delay_min = 1, .delay_max = 1, .trace = true});
    sim_settle(f.sim);
    f.g = sim_name_at(f.sim, home);
    for (unsigned i = 0; i < n; i++)
        f.rank[i] = sim_client(f.sim, nodes[i]);
    for (unsigned i = 0; i < n; i++)
        sim_join(f.sim, f.rank[i], f.g, i, n, 5000);
    sim_run(f.sim, 100);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(sim_client_open(f.sim, f.rank[i]), 1);
    sim_trace_clear(f.sim);
    return f;
}

/* The transcript has to be @expected; then all clients go, and nothing may be left. */
static void end(struct fix *f, const char *expected)
{
    bool same = !strcmp(sim_trace(f->sim), expected);

    if (!same)
        fprintf(stderr, "--- got\n%s--- end\n", sim_trace(f->sim));
    sim_heal(f->sim);
    for (unsigned i = 0; i < 2 * MOST; i++)
        sim_die(f->sim, i, "end of test");
    sim_run(f->sim, 9000);
    sim_check_idle(f->sim);
    sim_free(f->sim);
    assert_true(same);
}

static const struct sim_recovery shrink = {.policy = SIM_SHRINK, .limit_ms = 5000};
static const struct sim_recovery seats = {.policy = SIM_WAIT, .limit_ms = 5000};
static const struct sim_recovery comes = {.policy = SIM_REJOIN, .rank = SIM_ANY, .limit_ms = 5000};

static void all_ask(struct fix *f, const struct sim_recovery *how)
{
    for (unsigned i = 0; i < f->n; i++)
        sim_recover(f->sim, f->rank[i], f->g, NULL, how);
}

/* @client is rank @rank of @size. */
static void is(struct fix *f, unsigned client, unsigned rank, unsigned size)
{
    unsigned has_rank, has_size;

    assert_true(sim_client_in(f->sim, client, f->g, &has_rank, &has_size));
    assert_int_equal(has_rank, rank);
    assert_int_equal(has_size, size);
}

static void is_left_behind(struct fix *f, unsigned client)
{
    enum cause cause;

    assert_int_equal(sim_client_answer(f->sim, client, &cause), SIM_REFUSED);
    assert_int_equal(cause, CAUSE_RANK_LOST);
}

/* How it came so is not what the story is about. */
static void end_untold(struct fix *f)
{
    sim_trace_clear(f->sim);
    end(f, "");
}

static void on_one_node(void **state)
{
    struct fix f = group(1, 0, (unsigned[]){0, 0, 0}, 3);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    all_ask(&f, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f, "[   0] a: pid 101 dies\n"
            "[   0] a: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 101 on node a) was lost: killed "
            "by signal 9\n"
            "[   0] a: pid 100 shrinks g0\n"
            "[   0] a: pid 102 shrinks g0\n"
            "[   0] a: group \"g0\": goes on as epoch 2, 2 ranks on 1 nodes, without rank 1\n"
            "[   0] a: #a2 open, 2 ranks on 1 nodes\n"
            "[   0] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[   0] a: pid 102 is rank 1 of 2 of epoch 2\n"
            "[  12] a: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 102 on node a) left\n"
            "[  17] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[  17] a: #a1 close, abort\n");
}

/* Who is left asks before it has heard of the loss. */
static void over_nodes(void **state)
{
    struct fix f = group(3, 2, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    all_ask(&f, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f, "[   0] b: pid 201 dies\n"
            "[   0] b: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   0] a: pid 100 shrinks g3\n"
            "[   0] a -> c JOIN g3 rank 0 of 3\n"
            "[   0] b: pid 202 shrinks g3\n"
            "[   0] b -> c JOIN g3 rank 2 of 3\n"
            "[   0] b -> c JOIN_NEWS 1 gone\n"
            "[   1] a: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   1] a -> c JOIN_NEWS 1 gone\n"
            "[   1] c -> a COMMIT #c2\n"
            "[   1] c -> b COMMIT #c2\n"
            "[   2] a -> b SYNC #c2\n"
            "[   2] b -> a SYNC #c2\n"
            "[   3] b -> a SYNC #c2 all\n"
            "[   3] b: group \"g3\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
            "[   3] b: #c2 open, 2 ranks on 2 nodes\n"
            "[   3] b: pid 202 is rank 1 of 2 of epoch 2\n"
            "[   3] a -> b SYNC #c2 all\n"
            "[   3] a: group \"g3\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
            "[   3] a: #c2 open, 2 ranks on 2 nodes\n"
            "[   3] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[   8] a: #c1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[   8] a: #c1 close, abort\n"
            "[  17] b: #c1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
            "[  17] b: #c1 close, abort\n"
            "[  18] a -> b BROKEN #c1 0: node a does not have this group\n");
}

/* A second one dies while the others wait for it. */
static void one_more_dies(void **state)
{
    struct fix f = group(3, 2, (unsigned[]){0, 1, 2}, 3);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_run(f.sim, 10);
    sim_die(f.sim, f.rank[2], "killed by signal 9");
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 1);
    end(&f, "[   0] b: pid 201 dies\n"
            "[   0] b: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   0] b: #c1 close, abort\n"
            "[   0] a: pid 100 shrinks g3\n"
            "[   0] a -> c JOIN g3 rank 0 of 3\n"
            "[   1] a: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   1] a -> c JOIN_NEWS 1 gone\n"
            "[   1] c: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[  10] c: pid 302 dies\n"
            "[  10] c: #c1 rank 2 gone after 0 ops, 5: rank 2 (pid 302 on node c) was lost: killed "
            "by signal 9\n"
            "[  10] c: #c1 close, abort\n"
            "[  11] a: #c1 rank 2 gone after 0 ops, 5: rank 2 (pid 302 on node c) was lost: killed "
            "by signal 9\n"
            "[  11] a -> c JOIN_NEWS 2 gone\n"
            "[  11] b -> c BROKEN #c1 0: node b does not have this group\n"
            "[  12] c -> a COMMIT #c2\n"
            "[  13] a: group \"g3\": goes on as epoch 2, 1 ranks on 1 nodes, without rank 1,2\n"
            "[  13] a: #c2 open, 1 ranks on 1 nodes\n"
            "[  13] a: pid 100 is rank 0 of 1 of epoch 2\n"
            "[  27] a: #c1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[  27] a -> b GONE #c1 rank 0\n"
            "[  27] a -> c GONE #c1 rank 0\n"
            "[  27] a: #c1 close, abort\n"
            "[  28] b -> a BROKEN #c1 0: node b does not have this group\n"
            "[  28] c -> a BROKEN #c1 0: node c does not have this group\n");
}

/* The new process is there first. */
static void a_seat_is_taken(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);
    unsigned fresh = sim_client(f.sim, 0);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    sim_recover(f.sim, fresh, f.g, NULL, &comes);
    sim_run(f.sim, 10);
    all_ask(&f, &seats);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 3);
    is(&f, fresh, 1, 3);
    is(&f, f.rank[2], 2, 3);
    end(&f, "[   0] b: pid 201 dies\n"
            "[   0] b: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   0] a: pid 103 rejoins g6\n"
            "[   1] a: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[  10] a: pid 100 waits in g6\n"
            "[  10] b: pid 202 waits in g6\n"
            "[  10] b -> a JOIN g6 rank 2 of 3\n"
            "[  10] b -> a JOIN_NEWS 1 gone\n"
            "[  11] a -> b COMMIT #a2\n"
            "[  11] a -> b SYNC #a2\n"
            "[  12] b -> a SYNC #a2\n"
            "[  12] b -> a SYNC #a2 all\n"
            "[  12] b: group \"g6\": goes on as epoch 2, 3 ranks on 2 nodes, without rank 1, with "
            "1 new process\n"
            "[  12] b: #a2 open, 3 ranks on 2 nodes\n"
            "[  12] b: pid 202 is rank 2 of 3 of epoch 2\n"
            "[  13] a -> b SYNC #a2 all\n"
            "[  13] a: group \"g6\": goes on as epoch 2, 3 ranks on 2 nodes, without rank 1, with "
            "1 new process\n"
            "[  13] a: #a2 open, 3 ranks on 2 nodes\n"
            "[  13] a: pid 100 is rank 0 of 3 of epoch 2\n"
            "[  13] a: pid 103 is rank 1 of 3 of epoch 2\n"
            "[  14] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
            "[  14] b: #a1 close, abort\n"
            "[  14] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[  14] a: #a1 close, abort\n"
            "[  15] a -> b BROKEN #a1 0: node a does not have this group\n");
}

/* A healthy group grows. */
static void grows(void **state)
{
    struct fix f = group(2, 1, (unsigned[]){0, 1}, 2);
    struct sim_recovery three = seats;
    unsigned fresh = sim_client(f.sim, 1);

    (void)state;
    three.size = 3;
    all_ask(&f, &three);
    sim_run(f.sim, 10);
    sim_recover(f.sim, fresh, f.g, NULL, &comes);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 3);
    is(&f, f.rank[1], 1, 3);
    is(&f, fresh, 2, 3);
    end(&f, "[   0] a: pid 100 waits in g0\n"
            "[   0] a -> b JOIN g0 rank 0 of 2\n"
            "[   0] b: pid 201 waits in g0\n"
            "[  10] b: pid 202 rejoins g0\n"
            "[  10] b -> a COMMIT #b2\n"
            "[  10] b -> a SYNC #b2\n"
            "[  11] a -> b SYNC #b2\n"
            "[  11] a -> b SYNC #b2 all\n"
            "[  11] a: group \"g0\": goes on as epoch 2, 3 ranks on 2 nodes, with 1 new process\n"
            "[  11] a: #b2 open, 3 ranks on 2 nodes\n"
            "[  11] a: pid 100 is rank 0 of 3 of epoch 2\n"
            "[  12] b -> a SYNC #b2 all\n"
            "[  12] b: group \"g0\": goes on as epoch 2, 3 ranks on 2 nodes, with 1 new process\n"
            "[  12] b: #b2 open, 3 ranks on 2 nodes\n"
            "[  12] b: pid 201 is rank 1 of 3 of epoch 2\n"
            "[  12] b: pid 202 is rank 2 of 3 of epoch 2\n"
            "[  13] a: #b1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[  13] a: #b1 close\n"
            "[  13] b: #b1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[  13] b: #b1 close\n");
}

/* Nobody comes for the seat: after 500 ms the others go on. */
static void waits_no_longer(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);
    struct sim_recovery how = seats;

    (void)state;
    how.wait_ms = 500;
    sim_die(f.sim, f.rank[0], "killed by signal 9");
    all_ask(&f, &how);
    sim_run(f.sim, 499);
    assert_int_equal(sim_client_pending(f.sim, f.rank[1]), 1);
    sim_run(f.sim, 100);
    is(&f, f.rank[1], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f, "[   0] a: pid 100 dies\n"
            "[   0] a: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed "
            "by signal 9\n"
            "[   0] a: #a1 close, abort\n"
            "[   0] b: pid 201 waits in g6\n"
            "[   0] b -> a JOIN g6 rank 1 of 3\n"
            "[   0] b: pid 202 waits in g6\n"
            "[   0] b -> a JOIN g6 rank 2 of 3\n"
            "[   1] b: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed "
            "by signal 9\n"
            "[   1] b -> a JOIN_NEWS 1 gone\n"
            "[   1] b -> a JOIN_NEWS 1 gone\n"
            "[ 500] b -> a JOIN_NEWS 1 gone, enough\n"
            "[ 500] b -> a JOIN_NEWS 1 gone, enough\n"
            "[ 501] a -> b COMMIT #a2\n"
            "[ 502] b: group \"g6\": goes on as epoch 2, 2 ranks on 1 nodes, without rank 0\n"
            "[ 502] b: #a2 open, 2 ranks on 1 nodes\n"
            "[ 502] b: pid 201 is rank 0 of 2 of epoch 2\n"
            "[ 502] b: pid 202 is rank 1 of 2 of epoch 2\n"
            "[ 503] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
            "[ 503] b -> a GONE #a1 rank 2\n"
            "[ 504] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[ 504] b -> a GONE #a1 rank 1\n"
            "[ 504] b: #a1 close, abort\n"
            "[ 505] a -> b BROKEN #a1 0: node a does not have this group\n");
}

/* All have voted, a has told so, and d is lost. b hears that first, and all the same its rank is in
 * the epoch that the others have opened, and goes on from there with them. */
static void lost_behind_the_votes(void **state)
{
    struct fix f = group(4, 0, (unsigned[]){0, 1, 2, 3, 0}, 5);

    (void)state;
    sim_die(f.sim, f.rank[4], "killed by signal 9");
    all_ask(&f, &shrink);
    sim_run(f.sim, 2);
    sim_slow(f.sim, 0, 1, 30);
    sim_run(f.sim, 1);
    sim_crash(f.sim, 3);
    sim_run(f.sim, 100);
    for (unsigned i = 0; i < 3; i++)
        is(&f, f.rank[i], i, 4);
    sim_check_marks(f.sim);
    for (unsigned i = 0; i < 3; i++)
        sim_recover(f.sim, f.rank[i], f.g, NULL, &shrink);
    sim_run(f.sim, 1000);
    for (unsigned i = 0; i < 3; i++)
        is(&f, f.rank[i], i, 3);
    end_untold(&f);
}

/* a, b and c are about to go on without a second rank of a. All have voted; that they have, node
 * @late hears from a only @ms later. */
static struct fix three_have_voted(unsigned late, uint64_t ms)
{
    struct fix f = group(3, 0, (unsigned[]){0, 1, 2, 0}, 4);

    sim_die(f.sim, f.rank[3], "killed by signal 9");
    all_ask(&f, &shrink);
    sim_run(f.sim, 2);
    sim_slow(f.sim, 0, late, ms);
    return f;
}

/* The next epoch, as @node has it. */
static struct core_group_view next_at(const struct fix *f, unsigned node)
{
    struct core_group_view next = {0};

    for (unsigned i = 0; !next.follows; i++)
        assert_true(core_group_at(sim_core(f->sim, node), i, &next));
    return next;
}

/* c has opened the next epoch, and revokes it before b hears that all have voted: b hears of that
 * all the same. */
static void revoked_before_the_verdict(void **state)
{
    struct fix f = three_have_voted(1, 30);
    struct core_group_view next;

    (void)state;
    sim_run(f.sim, 3);
    is(&f, f.rank[2], 2, 3);
    sim_abort(f.sim, f.rank[2], f.g, "the trainer gave up");
    sim_run(f.sim, 10);
    assert_int_equal(sim_client_pending(f.sim, f.rank[1]), 1);
    sim_run(f.sim, 100);
    is(&f, f.rank[1], 1, 3);
    next = next_at(&f, 1);
    assert_int_equal(next.state, CORE_GROUP_BROKEN);
    assert_int_equal(next.cause, CAUSE_ABORTED);
    end_untold(&f);
}

/* Who has given the next epoch up asks what has become of it, and that is no vote: c hears no votes
 * but those of a and b, and may not take them for all. */
static void who_gave_it_up_has_no_vote(void **state)
{
    struct fix f = three_have_voted(2, 200);
    uint64_t next = next_at(&f, 2).id;

    (void)state;
    sim_peer_says(
        f.sim, 1, 2,
        &(struct msg){.type = MSG_BROKEN,
                      .broken = {.group = next, .cause = CAUSE_LEFT, .rank = -1, .node = "b"}});
    sim_peer_says(f.sim, 1, 2,
                  &(struct msg){.type = MSG_SYNC, .sync = {.group = next, .again = 1}});
    sim_run(f.sim, 100);
    assert_int_equal(sim_client_pending(f.sim, f.rank[2]), 1);
    sim_run(f.sim, 200);
    is(&f, f.rank[2], 2, 3); /* a says that it has all of them */
    end_untold(&f);
}

/* Each half goes on, and knows whom it lacks. */
static void two_halves(void **state)
{
    struct fix f = group(4, 0, (unsigned[]){0, 1, 2, 3}, 4);

    (void)state;
    for (unsigned a = 0; a < 2; a++)
        for (unsigned b = 2; b < 4; b++)
            sim_cut(f.sim, a, b);
    sim_run(f.sim, 6000);
    all_ask(&f, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    is(&f, f.rank[2], 0, 2);
    is(&f, f.rank[3], 1, 2);
    end(&f, "[   0] link a-c is cut\n"
            "[   0] link a-d is cut\n"
            "[   0] link b-c is cut\n"
            "[   0] link b-d is cut\n"
            "[ 549] b drops the link to c: silent for 600 ms\n"
            "[ 549] b -> a BROKEN #a1 6: node c was lost: silent for 600 ms\n"
            "[ 549] b: #a1 broken, 6 node c: node c was lost: silent for 600 ms\n"
            "[ 549] b drops the link to d: silent for 600 ms\n"
            "[ 549] a drops the link to c: silent for 600 ms\n"
            "[ 549] a -> b BROKEN #a1 6: node c was lost: silent for 600 ms\n"
            "[ 549] a: #a1 broken, 6 node c: node c was lost: silent for 600 ms\n"
            "[ 549] a drops the link to d: silent for 600 ms\n"
            "[ 549] d drops the link to a: silent for 600 ms\n"
            "[ 549] d -> b BROKEN #a1 6: node a was lost: silent for 600 ms\n"
            "[ 549] d: #a1 broken, 6 node a: node a was lost: silent for 600 ms\n"
            "[ 549] d drops the link to b: silent for 600 ms\n"
            "[ 549] c drops the link to a: silent for 600 ms\n"
            "[ 549] c -> b BROKEN #a1 6: node a was lost: silent for 600 ms\n"
            "[ 549] c: #a1 broken, 6 node a: node a was lost: silent for 600 ms\n"
            "[ 549] c drops the link to b: silent for 600 ms\n"
            "[6000] a: pid 100 shrinks g7\n"
            "[6000] b: pid 201 shrinks g7\n"
            "[6000] b -> a JOIN g7 rank 1 of 4\n"
            "[6000] b -> a JOIN_NEWS 2 gone\n"
            "[6000] c: pid 302 shrinks g7\n"
            "[6000] c -> d JOIN g7 rank 2 of 4\n"
            "[6000] c -> d JOIN_NEWS 2 gone\n"
            "[6000] d: pid 403 shrinks g7\n"
            "[6001] a -> b COMMIT #a2\n"
            "[6001] a -> b SYNC #a2\n"
            "[6001] d -> c COMMIT #d1\n"
            "[6001] d -> c SYNC #d1\n"
            "[6002] b -> a SYNC #a2\n"
            "[6002] b -> a SYNC #a2 all\n"
            "[6002] b: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 2,3\n"
            "[6002] b: #a2 open, 2 ranks on 2 nodes\n"
            "[6002] b: pid 201 is rank 1 of 2 of epoch 2\n"
            "[6002] c -> d SYNC #d1\n"
            "[6002] c -> d SYNC #d1 all\n"
            "[6002] c: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 0,1\n"
            "[6002] c: #d1 open, 2 ranks on 2 nodes\n"
            "[6002] c: pid 302 is rank 0 of 2 of epoch 2\n"
            "[6003] a -> b SYNC #a2 all\n"
            "[6003] a: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 2,3\n"
            "[6003] a: #a2 open, 2 ranks on 2 nodes\n"
            "[6003] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[6003] d -> c SYNC #d1 all\n"
            "[6003] d: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 0,1\n"
            "[6003] d: #d1 open, 2 ranks on 2 nodes\n"
            "[6003] d: pid 403 is rank 1 of 2 of epoch 2\n"
            "[6003] c: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 302 on node c) left\n"
            "[6003] c: #a1 close, abort\n"
            "[6004] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[6004] a: #a1 close, abort\n"
            "[6016] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[6016] b: #a1 close, abort\n"
            "[6018] d: #a1 rank 3 gone after 0 ops, 16: rank 3 (pid 403 on node d) left\n"
            "[6018] d: #a1 close, abort\n");
}

/* Who wants one half at most says so. */
static void one_half_at_most(void **state)
{
    struct fix f = group(3, 0, (unsigned[]){0, 1, 2}, 3);
    struct sim_recovery how = shrink;

    (void)state;
    how.least = 2;
    sim_cut(f.sim, 0, 2);
    sim_cut(f.sim, 1, 2);
    sim_run(f.sim, 6000);
    all_ask(&f, &how);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    assert_int_equal(sim_client_answer(f.sim, f.rank[2], &(enum cause){0}), SIM_REFUSED);
    end(&f, "[   0] link a-c is cut\n"
            "[   0] link b-c is cut\n"
            "[ 549] b drops the link to c: silent for 600 ms\n"
            "[ 549] b -> a BROKEN #a1 6: node c was lost: silent for 600 ms\n"
            "[ 549] b: #a1 broken, 6 node c: node c was lost: silent for 600 ms\n"
            "[ 549] a drops the link to c: silent for 600 ms\n"
            "[ 549] a -> b BROKEN #a1 6: node c was lost: silent for 600 ms\n"
            "[ 549] a: #a1 broken, 6 node c: node c was lost: silent for 600 ms\n"
            "[ 549] c drops the link to a: silent for 600 ms\n"
            "[ 549] c -> b BROKEN #a1 6: node a was lost: silent for 600 ms\n"
            "[ 549] c: #a1 broken, 6 node a: node a was lost: silent for 600 ms\n"
            "[ 549] c drops the link to b: silent for 600 ms\n"
            "[6000] a: pid 100 shrinks g7\n"
            "[6000] b: pid 201 shrinks g7\n"
            "[6000] b -> a JOIN g7 rank 1 of 3\n"
            "[6000] b -> a JOIN_NEWS 1 gone\n"
            "[6000] c: pid 302 shrinks g7\n"
            "[6000] c: pid 302 JOIN_FAILED 5 node a: group \"g7\": 1 of its 3 ranks are left, and "
            "at least 2 are wanted: gone are ranks 0,1 of epoch 1\n"
            "[6001] a -> b COMMIT #a2\n"
            "[6001] a -> b SYNC #a2\n"
            "[6002] b -> a SYNC #a2\n"
            "[6002] b -> a SYNC #a2 all\n"
            "[6002] b: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 2\n"
            "[6002] b: #a2 open, 2 ranks on 2 nodes\n"
            "[6002] b: pid 201 is rank 1 of 2 of epoch 2\n"
            "[6003] a -> b SYNC #a2 all\n"
            "[6003] a: group \"g7\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 2\n"
            "[6003] a: #a2 open, 2 ranks on 2 nodes\n"
            "[6003] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[6008] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[6008] a: #a1 close, abort\n"
            "[6016] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[6016] b: #a1 close, abort\n");
}

/* The one that decides is lost: the next one is told all. */
static void home_lost(void **state)
{
    struct fix f = group(3, 2, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_run(f.sim, 10);
    sim_crash(f.sim, 2);
    sim_run(f.sim, 200);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f, "[   0] b: pid 201 dies\n"
            "[   0] b: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   0] a: pid 100 shrinks g3\n"
            "[   0] a -> c JOIN g3 rank 0 of 3\n"
            "[   1] a: #c1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed "
            "by signal 9\n"
            "[   1] a -> c JOIN_NEWS 1 gone\n"
            "[  10] c crashes\n"
            "[  11] a -> c JOIN_CANCEL\n"
            "[  11] a -> b JOIN g3 rank 0 of 3\n"
            "[  11] a -> b JOIN_NEWS 1 gone\n"
            "[ 210] b: pid 202 shrinks g3\n"
            "[ 210] b -> a COMMIT #b1\n"
            "[ 210] b -> a SYNC #b1\n"
            "[ 211] a -> b SYNC #b1\n"
            "[ 211] a -> b SYNC #b1 all\n"
            "[ 211] a: group \"g3\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
            "[ 211] a: #b1 open, 2 ranks on 2 nodes\n"
            "[ 211] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[ 212] b -> a SYNC #b1 all\n"
            "[ 212] b: group \"g3\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
            "[ 212] b: #b1 open, 2 ranks on 2 nodes\n"
            "[ 212] b: pid 202 is rank 1 of 2 of epoch 2\n"
            "[ 216] a: #c1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[ 216] a: #c1 close, abort\n"
            "[ 226] b: #c1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
            "[ 226] b: #c1 close, abort\n"
            "[ 227] a -> b BROKEN #c1 0: node a does not have this group\n");
}

/* It asks twice: its group has one next epoch. */
static void only_once(void **state)
{
    struct fix f = group(1, 0, (unsigned[]){0, 0}, 2);
    enum cause cause;

    (void)state;
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[0], f.g, "elsewhere", &shrink);
    assert_int_equal(sim_client_answer(f.sim, f.rank[0], &cause), SIM_REFUSED);
    assert_int_equal(cause, CAUSE_INVALID);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    end(&f, "[   0] a: pid 100 shrinks g0\n"
            "[   0] a: pid 100 shrinks elsewhere\n"
            "[   0] a: pid 100 JOIN_FAILED 1 node a: group \"elsewhere\": this client asks to go "
            "on from its epoch 1 already, as group \"g0\"\n"
            "[   0] a: pid 101 shrinks g0\n"
            "[   0] a: group \"g0\": goes on as epoch 2, 2 ranks on 1 nodes\n"
            "[   0] a: #a2 open, 2 ranks on 1 nodes\n"
            "[   0] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[   0] a: pid 101 is rank 1 of 2 of epoch 2\n"
            "[  12] a: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 101 on node a) left\n"
            "[  17] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[  17] a: #a1 close\n");
}

/* Ranks that want different things: the later one is told. */
static void they_disagree(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);
    struct sim_recovery least = shrink;

    (void)state;
    least.least = 2;
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &seats);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &least);
    sim_run(f.sim, 10);
    assert_int_equal(sim_client_answer(f.sim, f.rank[1], &(enum cause){0}), SIM_REFUSED);
    assert_int_equal(sim_client_answer(f.sim, f.rank[2], &(enum cause){0}), SIM_REFUSED);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[2], 2, 3);
    end(&f,
        "[   0] a: pid 100 shrinks g6\n"
        "[   0] b: pid 201 waits in g6\n"
        "[   0] b -> a JOIN g6 rank 1 of 3\n"
        "[   0] b: pid 202 shrinks g6\n"
        "[   0] b -> a JOIN g6 rank 2 of 3\n"
        "[   1] a -> b JOIN_REFUSED 1: group \"g6\": rank 1 of epoch 1 asks for policy wait, "
        "size 3, min_size 0, but others of it asked for policy shrink, min_size 0: "
        "give the same policy, size and min_size on all ranks\n"
        "[   1] a -> b JOIN_REFUSED 1: group \"g6\": rank 2 of epoch 1 asks for policy "
        "shrink, min_size 2, but others of it asked for policy shrink, min_size 0: "
        "give the same policy, size and min_size on all ranks\n"
        "[   2] b: pid 201 JOIN_FAILED 1 node b: group \"g6\": rank 1 of epoch 1 asks for "
        "policy wait, size 3, min_size 0, but others of it asked for policy shrink, min_size 0: "
        "give the same policy, size and min_size on all ranks\n"
        "[   2] b: pid 202 JOIN_FAILED 1 node b: group \"g6\": rank 2 of epoch 1 asks for "
        "policy shrink, min_size 2, but others of it asked for policy shrink, min_size 0: "
        "give the same policy, size and min_size on all ranks\n"
        "[  10] b: pid 201 shrinks g6\n"
        "[  10] b -> a JOIN g6 rank 1 of 3\n"
        "[  10] b: pid 202 shrinks g6\n"
        "[  10] b -> a JOIN g6 rank 2 of 3\n"
        "[  11] a -> b COMMIT #a2\n"
        "[  11] a -> b SYNC #a2\n"
        "[  12] b -> a SYNC #a2\n"
        "[  12] b -> a SYNC #a2 all\n"
        "[  12] b: group \"g6\": goes on as epoch 2, 3 ranks on 2 nodes\n"
        "[  12] b: #a2 open, 3 ranks on 2 nodes\n"
        "[  12] b: pid 201 is rank 1 of 3 of epoch 2\n"
        "[  12] b: pid 202 is rank 2 of 3 of epoch 2\n"
        "[  13] a -> b SYNC #a2 all\n"
        "[  13] a: group \"g6\": goes on as epoch 2, 3 ranks on 2 nodes\n"
        "[  13] a: #a2 open, 3 ranks on 2 nodes\n"
        "[  13] a: pid 100 is rank 0 of 3 of epoch 2\n"
        "[  13] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
        "[  14] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
        "[  14] b: #a1 close\n"
        "[  27] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
        "[  27] a: #a1 close\n");
}

/* One does not ask, and nobody comes: both read what is missing. */
static void who_is_missing(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1, 0}, 4);

    (void)state;
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    sim_recover(f.sim, f.rank[0], f.g, NULL, &seats);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &seats);
    sim_run(f.sim, 6000);
    end(&f,
        "[   0] b: pid 201 dies\n"
        "[   0] b: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed by "
        "signal 9\n"
        "[   0] a: pid 100 waits in g6\n"
        "[   0] b: pid 202 waits in g6\n"
        "[   0] b -> a JOIN g6 rank 2 of 4\n"
        "[   0] b -> a JOIN_NEWS 1 gone\n"
        "[   1] a: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed by "
        "signal 9\n"
        "[5000] a: pid 100 JOIN_FAILED 4: group \"g6\": it did not go on within 5 s: rank 3 of "
        "epoch 1 (pid 103 on node a) has not asked to go on; seat 1 is free\n"
        "[5000] b -> a JOIN_CANCEL, who is missing?\n"
        "[5001] a -> b JOIN_REFUSED 4: rank 3 of epoch 1 (pid 103 on node a) has not asked to go "
        "on; seat 1 is free\n"
        "[5002] b: pid 202 JOIN_FAILED 4: group \"g6\": it did not go on within 5 s: rank 3 of "
        "epoch 1 (pid 103 on node a) has not asked to go on; seat 1 is free\n");
}

/* commd of a rank that has asked is killed, and the next one asks anew. */
static void another_commd_takes_over(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    sim_die(f.sim, f.rank[0], "killed by signal 9");
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 10);
    sim_kill_after(f.sim, 1, 1);
    sim_run(f.sim, 500);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_run(f.sim, 500);
    is(&f, f.rank[1], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f, "[   0] a: pid 100 dies\n"
            "[   0] a: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed "
            "by signal 9\n"
            "[   0] a: #a1 close, abort\n"
            "[   0] b: pid 201 shrinks g6\n"
            "[   0] b -> a JOIN g6 rank 1 of 3\n"
            "[   1] b: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed "
            "by signal 9\n"
            "[   1] b -> a JOIN_NEWS 1 gone\n"
            "[  61] commd of b is killed\n"
            "[ 223] commd of b takes over\n"
            "[ 223] b: #a1 rank 0 gone after 0 ops, 5: gone before commd was restarted\n"
            "[ 239] b: pid 201 comes back\n"
            "[ 250] b: pid 202 comes back\n"
            "[ 280] b -> a SYNC #a1 again all\n"
            "[ 280] b -> a JOIN g6 rank 1 of 3\n"
            "[ 280] b -> a JOIN_NEWS 1 gone\n"
            "[ 281] a -> b BROKEN #a1 0: node a does not have this group\n"
            "[ 510] b: pid 202 shrinks g6\n"
            "[ 510] b -> a JOIN g6 rank 2 of 3\n"
            "[ 510] b -> a JOIN_NEWS 1 gone\n"
            "[ 511] a -> b COMMIT #a2\n"
            "[ 512] b: group \"g6\": goes on as epoch 2, 2 ranks on 1 nodes, without rank 0\n"
            "[ 512] b: #a2 open, 2 ranks on 1 nodes\n"
            "[ 512] b: pid 201 is rank 0 of 2 of epoch 2\n"
            "[ 512] b: pid 202 is rank 1 of 2 of epoch 2\n"
            "[ 515] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[ 515] b -> a GONE #a1 rank 1\n"
            "[ 528] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
            "[ 528] b -> a GONE #a1 rank 2\n"
            "[ 528] b: #a1 close, abort\n"
            "[ 528] b -> a SYNC #a1 again all\n"
            "[ 529] a -> b BROKEN #a1 0: node a does not have this group\n");
}

/* Who takes its request back is not counted in when the others ask, but awaited. */
static void one_takes_it_back(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    sim_die(f.sim, f.rank[0], "killed by signal 9");
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 10);
    sim_withdraw(f.sim, f.rank[1]);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    assert_int_equal(sim_client_pending(f.sim, f.rank[2]), 1);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[1], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f,
        "[   0] a: pid 100 dies\n"
        "[   0] a: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed by "
        "signal 9\n"
        "[   0] a: #a1 close, abort\n"
        "[   0] b: pid 201 shrinks g6\n"
        "[   0] b -> a JOIN g6 rank 1 of 3\n"
        "[   1] b: #a1 rank 0 gone after 0 ops, 5: rank 0 (pid 100 on node a) was lost: killed by "
        "signal 9\n"
        "[   1] b -> a JOIN_NEWS 1 gone\n"
        "[  10] b: pid 201 withdraws g6\n"
        "[  10] b -> a JOIN_CANCEL\n"
        "[  10] b: pid 201 JOIN_FAILED 8 node b: group \"g6\": this rank has withdrawn its join\n"
        "[  10] b: pid 202 shrinks g6\n"
        "[  10] b -> a JOIN g6 rank 2 of 3\n"
        "[  10] b -> a JOIN_NEWS 1 gone\n"
        "[ 110] b: pid 201 shrinks g6\n"
        "[ 110] b -> a JOIN g6 rank 1 of 3\n"
        "[ 110] b -> a JOIN_NEWS 1 gone\n"
        "[ 111] a -> b COMMIT #a2\n"
        "[ 112] b: group \"g6\": goes on as epoch 2, 2 ranks on 1 nodes, without rank 0\n"
        "[ 112] b: #a2 open, 2 ranks on 1 nodes\n"
        "[ 112] b: pid 201 is rank 0 of 2 of epoch 2\n"
        "[ 112] b: pid 202 is rank 1 of 2 of epoch 2\n"
        "[ 113] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
        "[ 113] b -> a GONE #a1 rank 2\n"
        "[ 114] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
        "[ 114] b -> a GONE #a1 rank 1\n"
        "[ 114] b: #a1 close, abort\n"
        "[ 115] a -> b BROKEN #a1 0: node a does not have this group\n");
}

/* All had agreed already: it is in. */
static void too_late_to_take_it_back(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1}, 2);

    (void)state;
    all_ask(&f, &shrink);
    sim_run(f.sim, 2); /* the COMMIT is at b, its SYNC is not at a */
    sim_withdraw(f.sim, f.rank[0]);
    sim_withdraw(f.sim, f.rank[1]);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    end(&f, "[   0] a: pid 100 shrinks g6\n"
            "[   0] b: pid 201 shrinks g6\n"
            "[   0] b -> a JOIN g6 rank 1 of 2\n"
            "[   1] a -> b COMMIT #a2\n"
            "[   1] a -> b SYNC #a2\n"
            "[   2] b -> a SYNC #a2\n"
            "[   2] b -> a SYNC #a2 all\n"
            "[   2] b: group \"g6\": goes on as epoch 2, 2 ranks on 2 nodes\n"
            "[   2] b: #a2 open, 2 ranks on 2 nodes\n"
            "[   2] b: pid 201 is rank 1 of 2 of epoch 2\n"
            "[   2] a: pid 100 withdraws g6\n"
            "[   3] a -> b SYNC #a2 all\n"
            "[   3] a: group \"g6\": goes on as epoch 2, 2 ranks on 2 nodes\n"
            "[   3] a: #a2 open, 2 ranks on 2 nodes\n"
            "[   3] a: pid 100 is rank 0 of 2 of epoch 2\n"
            "[   4] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
            "[   4] b: #a1 close\n"
            "[   4] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
            "[   4] a: #a1 close\n");
}

/* The next commd knows by which number it asked last, so it is in. */
static void asks_again_when_all_have_agreed(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1}, 2);

    (void)state;
    all_ask(&f, &shrink);
    sim_run(f.sim, 2); /* the COMMIT is at b, its SYNC is not at a */
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_kill_after(f.sim, 0, 1);
    sim_run(f.sim, 2000);
    assert_int_equal(sim_taken_over(f.sim), 1);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    end_untold(&f);
}

/* a and c have lost each other, and b is linked with both, and goes on with a. c knows that when it
 * has lost b, too, and decides for itself. */
static void the_middle_goes_on_with_one(void **state)
{
    struct fix f = group(3, 1, (unsigned[]){0, 1, 2}, 3);
    (void)state;
    sim_cut(f.sim, 0, 2);
    sim_run(f.sim, 1500);
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 200);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    sim_cut(f.sim, 1, 2);
    sim_run(f.sim, 1500);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_run(f.sim, 200);
    is_left_behind(&f, f.rank[2]);
    end_untold(&f);
}

/* ---- commd and engine of a node die at once ---------------------------------------------------
 */

/* b, with its ranks, is there again after @gap ms, and again @again ms after that. The others ask
 * at once. */
static struct fix both_die(uint64_t gap, uint64_t again, unsigned home)
{
    struct fix f = group(2, home, (unsigned[]){0, 0, 1, 1}, 4);

    sim_kill_both(f.sim, 1, gap);
    sim_run(f.sim, 20);
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, gap);
    if (again) {
        sim_run(f.sim, 40);
        sim_kill_both(f.sim, 1, again);
        sim_run(f.sim, again);
    }
    sim_run(f.sim, 100);
    sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[3], f.g, NULL, &shrink);
    sim_run(f.sim, 3000);
    return f;
}

/* Nobody keeps its port, so nobody waits for it. */
static void nobody_waits_for_a_node_that_is_gone(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++) {
        struct fix f = group(2, home, (unsigned[]){0, 0, 1, 1}, 4);

        sim_crash(f.sim, 1);
        sim_run(f.sim, 20);
        sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
        sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
        sim_run(f.sim, 100);
        is(&f, f.rank[0], 0, 2);
        is(&f, f.rank[1], 1, 2);
        end_untold(&f);
    }
}

/* They are one group again, whichever node decides. */
static void commd_and_engine_die_at_once(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++)
        for (uint64_t gap = 10; gap <= 400; gap += 130) {
            struct fix f = both_die(gap, 0, home);

            for (unsigned i = 0; i < 4; i++)
                is(&f, f.rank[i], i, 4);
            end_untold(&f);
        }
}

static void they_die_again(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++) {
        struct fix f = both_die(200, 200, home);

        for (unsigned i = 0; i < 4; i++)
            is(&f, f.rank[i], i, 4);
        end_untold(&f);
    }
}

/* The others have gone on: its ranks are told so, and are no group of their own. */
static void they_come_too_late(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++) {
        struct fix f = both_die(2000, 0, home);

        for (unsigned i = 0; i < 2; i++)
            is(&f, f.rank[i], i, 2);
        for (unsigned i = 2; i < 4; i++) {
            is_left_behind(&f, f.rank[i]);
        }
        end_untold(&f);
    }
}

/* The next commd of b knows nothing. All of its ranks that live ask, after those of a or, if
 * @first, before. */
static struct fix started_anew(unsigned home, uint64_t gap, bool first, bool dies)
{
    struct fix f = group(2, home, (unsigned[]){0, 0, 1, 1}, 4);

    sim_forget(f.sim, 1, gap);
    if (dies)
        sim_die(f.sim, f.rank[3], "killed by signal 9");
    sim_run(f.sim, gap + 500);
    for (unsigned i = 0; i < 4; i++) {
        sim_recover(f.sim, f.rank[first ? 3 - i : i], f.g, NULL, &shrink);
        sim_run(f.sim, 20);
    }
    sim_run(f.sim, 3000);
    return f;
}

static void another_commd_knows_nothing(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++)
        for (unsigned first = 0; first < 2; first++)
            for (unsigned dies = 0; dies < 2; dies++) {
                struct fix f = started_anew(home, 100, first, dies);

                for (unsigned i = 0; i < 4 - dies; i++)
                    is(&f, f.rank[i], i, 4 - dies);
                end_untold(&f);
            }
}

/* One more of b dies while they wait. */
static void one_dies_that_it_does_not_know(void **state)
{
    struct fix f = group(2, 1, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    sim_forget(f.sim, 1, 100);
    sim_run(f.sim, 600);
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    sim_die(f.sim, f.rank[2], "killed by signal 9");
    sim_run(f.sim, 500);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[1], 1, 2);
    end_untold(&f);
}

/* a has gone on, whoever decides for those that come then. */
static void another_commd_knows_nothing_and_is_late(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++) {
        struct fix f = group(2, home, (unsigned[]){0, 0, 1, 1}, 4);

        sim_forget(f.sim, 1, 1500);
        sim_run(f.sim, 20);
        sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
        sim_recover(f.sim, f.rank[1], f.g, NULL, &shrink);
        sim_run(f.sim, 2500);
        is(&f, f.rank[0], 0, 2);
        sim_recover(f.sim, f.rank[2], f.g, NULL, &shrink);
        sim_run(f.sim, 300);
        is_left_behind(&f, f.rank[2]);
        end_untold(&f);
    }
}

/* That epoch has ended since, or there was none: nobody of the others will ever come. */
static void nobody_is_left_whom_another_commd_could_wait_for(void **state)
{
    (void)state;
    for (unsigned home = 0; home < 2; home++)
        for (unsigned went_on = 0; went_on < 2; went_on++) {
            struct fix f = group(2, home, (unsigned[]){0, 0, 1, 1}, 4);

            sim_forget(f.sim, 1, 1500);
            sim_run(f.sim, 20);
            for (unsigned i = 0; went_on && i < 2; i++)
                sim_recover(f.sim, f.rank[i], f.g, NULL, &shrink);
            sim_run(f.sim, 2500);
            for (unsigned i = 0; i < 2; i++)
                if (went_on)
                    sim_leave(f.sim, f.rank[i], f.g);
                else
                    sim_die(f.sim, f.rank[i], "killed by signal 9");
            sim_run(f.sim, 1000);
            for (unsigned i = 2; i < 4; i++) {
                sim_recover(f.sim, f.rank[i], f.g, NULL, &shrink);
                sim_run(f.sim, went_on ? 100 : 2000);
                is_left_behind(&f, f.rank[i]);
            }
            end_untold(&f);
        }
}

/* What all had agreed on comes to nothing: it does not ask again. */
static void taken_back_while_it_fails(void **state)
{
    struct fix f = group(2, 0, (unsigned[]){0, 1, 1}, 3);

    (void)state;
    all_ask(&f, &shrink);
    sim_run(f.sim, 1); /* the COMMIT is on its way to b */
    sim_die(f.sim, f.rank[1], "killed by signal 9");
    sim_withdraw(f.sim, f.rank[0]);
    sim_run(f.sim, 100);
    assert_int_equal(sim_client_pending(f.sim, f.rank[0]), 0);
    assert_int_equal(sim_client_pending(f.sim, f.rank[2]), 1);
    sim_recover(f.sim, f.rank[0], f.g, NULL, &shrink);
    sim_run(f.sim, 100);
    is(&f, f.rank[0], 0, 2);
    is(&f, f.rank[2], 1, 2);
    end(&f,
        "[   0] a: pid 100 shrinks g6\n"
        "[   0] b: pid 201 shrinks g6\n"
        "[   0] b -> a JOIN g6 rank 1 of 3\n"
        "[   0] b: pid 202 shrinks g6\n"
        "[   0] b -> a JOIN g6 rank 2 of 3\n"
        "[   1] a -> b COMMIT #a2\n"
        "[   1] a -> b SYNC #a2\n"
        "[   1] b: pid 201 dies\n"
        "[   1] b -> a JOIN_CANCEL\n"
        "[   1] b: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed by "
        "signal 9\n"
        "[   1] b -> a JOIN_NEWS 1 gone\n"
        "[   1] a: pid 100 withdraws g6\n"
        "[   2] b -> a BROKEN #a2 16: rank 1 of node b does not wait for it any more\n"
        "[   2] b -> a JOIN g6 rank 2 of 3\n"
        "[   2] b -> a JOIN_NEWS 1 gone\n"
        "[   2] b -> a BROKEN #a2 0: node b does not have this group\n"
        "[   2] a: #a1 rank 1 gone after 0 ops, 5: rank 1 (pid 201 on node b) was lost: killed by "
        "signal 9\n"
        "[   3] a -> b BROKEN #a2 16: rank 1 of node b does not wait for it any more\n"
        "[   3] a: pid 100 JOIN_FAILED 8 node a: group \"g6\": this rank has withdrawn its join\n"
        "[   3] a -> b BROKEN #a2 16: rank 1 of node b does not wait for it any more\n"
        "[   4] b -> a GONE #a1 rank 1\n"
        "[   4] b -> a BROKEN #a2 0: node b does not have this group\n"
        "[ 101] a: pid 100 shrinks g6\n"
        "[ 101] a -> b COMMIT #a3\n"
        "[ 101] a -> b SYNC #a3\n"
        "[ 102] b -> a SYNC #a3\n"
        "[ 102] b -> a SYNC #a3 all\n"
        "[ 102] b: group \"g6\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
        "[ 102] b: #a3 open, 2 ranks on 2 nodes\n"
        "[ 102] b: pid 202 is rank 1 of 2 of epoch 2\n"
        "[ 103] a -> b SYNC #a3 all\n"
        "[ 103] a: group \"g6\": goes on as epoch 2, 2 ranks on 2 nodes, without rank 1\n"
        "[ 103] a: #a3 open, 2 ranks on 2 nodes\n"
        "[ 103] a: pid 100 is rank 0 of 2 of epoch 2\n"
        "[ 104] b: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 202 on node b) left\n"
        "[ 104] b: #a1 close, abort\n"
        "[ 104] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
        "[ 104] a: #a1 close, abort\n"
        "[ 105] a -> b BROKEN #a1 0: node a does not have this group\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_node),
        cmocka_unit_test(over_nodes),
        cmocka_unit_test(one_more_dies),
        cmocka_unit_test(a_seat_is_taken),
        cmocka_unit_test(grows),
        cmocka_unit_test(waits_no_longer),
        cmocka_unit_test(lost_behind_the_votes),
        cmocka_unit_test(revoked_before_the_verdict),
        cmocka_unit_test(who_gave_it_up_has_no_vote),
        cmocka_unit_test(two_halves),
        cmocka_unit_test(one_half_at_most),
        cmocka_unit_test(home_lost),
        cmocka_unit_test(only_once),
        cmocka_unit_test(they_disagree),
        cmocka_unit_test(who_is_missing),
        cmocka_unit_test(another_commd_takes_over),
        cmocka_unit_test(one_takes_it_back),
        cmocka_unit_test(too_late_to_take_it_back),
        cmocka_unit_test(asks_again_when_all_have_agreed),
        cmocka_unit_test(taken_back_while_it_fails),
        cmocka_unit_test(the_middle_goes_on_with_one),
        cmocka_unit_test(nobody_waits_for_a_node_that_is_gone),
        cmocka_unit_test(commd_and_engine_die_at_once),
        cmocka_unit_test(they_die_again),
        cmocka_unit_test(they_come_too_late),
        cmocka_unit_test(another_commd_knows_nothing),
        cmocka_unit_test(one_dies_that_it_does_not_know),
        cmocka_unit_test(another_commd_knows_nothing_and_is_late),
        cmocka_unit_test(nobody_is_left_whom_another_commd_could_wait_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
