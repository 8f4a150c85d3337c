/* test_join.c - transcripts of joining and losing, word for word: what each node says and does.
 * Links take exactly 1 ms here, so that the times in the transcripts mean something. Groups are
 * named by their home and its count of commits: #c1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

static struct sim *cold(unsigned nodes)
{
    return sim_new(&(struct sim_options){
        .nodes = nodes, .seed = 1, .delay_min = 1, .delay_max = 1, .trace = true});
}

static struct sim *cluster(unsigned nodes)
{
    struct sim *sim = cold(nodes);

    sim_settle(sim);
    sim_trace_clear(sim);
    return sim;
}

/* The transcript has to be @expected; then all clients go, and nothing may be left. */
static void end(struct sim *sim, const char *expected)
{
    bool same = !strcmp(sim_trace(sim), expected);

    if (!same)
        fprintf(stderr, "--- got\n%s--- end\n", sim_trace(sim));
    for (unsigned i = 0; i < 16; i++)
        sim_die(sim, i, "end of test");
    sim_run(sim, 5000);
    sim_check_idle(sim);
    sim_free(sim);
    assert_true(same);
}

static void one_node(void **state)
{
    struct sim *sim = cluster(1);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 0);

    sim_join(sim, p, "g", 0, 2, 5000);
    sim_run(sim, 10);
    sim_join(sim, q, "g", 1, 2, 5000);
    sim_run(sim, 10);
    sim_leave(sim, p, "g");
    sim_leave(sim, q, "g");
    end(sim, "[   0] a: pid 100 joins g as rank 0 of 2\n"
             "[  10] a: pid 101 joins g as rank 1 of 2\n"
             "[  10] a: #a1 open, 2 ranks on 1 nodes\n"
             "[  20] a: pid 100 leaves g\n"
             "[  20] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[  20] a: pid 101 leaves g\n"
             "[  20] a: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 101 on node a) left\n"
             "[  20] a: #a1 close\n");
}

/* The home is one of the participants. */
static void two_nodes(void **state)
{
    struct sim *sim = cluster(2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);
    const char *g = sim_name_at(sim, 0);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g6 as rank 0 of 2\n"
             "[   0] b: pid 201 joins g6 as rank 1 of 2\n"
             "[   0] b -> a JOIN g6 rank 1 of 2\n"
             "[   1] a -> b COMMIT #a1\n"
             "[   1] a -> b SYNC #a1\n"
             "[   2] b -> a SYNC #a1\n"
             "[   2] b -> a SYNC #a1 all\n"
             "[   2] b: #a1 open, 2 ranks on 2 nodes\n"
             "[   3] a -> b SYNC #a1 all\n"
             "[   3] a: #a1 open, 2 ranks on 2 nodes\n");
}

/* One node's ranks have used the group and left it before the other node's SYNC is there: they
 * are gone in good order, and the group goes on for who is still in it. */
static void left_before_the_last_sync(void **state)
{
    struct sim *sim = cluster(2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);
    const char *g = sim_name_at(sim, 0);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 3);
    sim_leave(sim, q, g);
    sim_run(sim, 50);
    assert_int_equal(sim_client_open(sim, p), 1);
    end(sim, "[   0] a: pid 100 joins g6 as rank 0 of 2\n"
             "[   0] b: pid 201 joins g6 as rank 1 of 2\n"
             "[   0] b -> a JOIN g6 rank 1 of 2\n"
             "[   1] a -> b COMMIT #a1\n"
             "[   1] a -> b SYNC #a1\n"
             "[   2] b -> a SYNC #a1\n"
             "[   2] b -> a SYNC #a1 all\n"
             "[   2] b: #a1 open, 2 ranks on 2 nodes\n"
             "[   3] a -> b SYNC #a1 all\n"
             "[   3] a: #a1 open, 2 ranks on 2 nodes\n"
             "[   3] b: pid 201 leaves g6\n"
             "[   3] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
             "[   3] b -> a GONE #a1 rank 1\n"
             "[   3] b: #a1 close\n"
             "[   4] a: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n");
}

/* Two ranks on one node; the home is another node than where the first joins. */
static void three_nodes(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 0), r = sim_client(sim, 1),
             s = sim_client(sim, 2);

    sim_join(sim, p, g, 0, 4, 5000);
    sim_join(sim, q, g, 1, 4, 5000);
    sim_join(sim, r, g, 2, 4, 5000);
    sim_join(sim, s, g, 3, 4, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 4\n"
             "[   0] a -> c JOIN g3 rank 0 of 4\n"
             "[   0] a: pid 101 joins g3 as rank 1 of 4\n"
             "[   0] a -> c JOIN g3 rank 1 of 4\n"
             "[   0] b: pid 202 joins g3 as rank 2 of 4\n"
             "[   0] b -> c JOIN g3 rank 2 of 4\n"
             "[   0] c: pid 303 joins g3 as rank 3 of 4\n"
             "[   1] c -> a COMMIT #c1\n"
             "[   1] c -> b COMMIT #c1\n"
             "[   1] c -> a SYNC #c1\n"
             "[   2] a -> b SYNC #c1\n"
             "[   2] a -> c SYNC #c1\n"
             "[   2] b -> a SYNC #c1\n"
             "[   3] b -> a SYNC #c1\n"
             "[   3] c -> a SYNC #c1\n"
             "[   3] a -> b SYNC #c1 all\n"
             "[   3] a -> c SYNC #c1 all\n"
             "[   3] a: #c1 open, 4 ranks on 3 nodes\n"
             "[   4] a -> b SYNC #c1 all\n"
             "[   4] a -> c SYNC #c1 all\n"
             "[   4] b: #c1 open, 4 ranks on 3 nodes\n"
             "[   4] c: #c1 open, 4 ranks on 3 nodes\n");
}

/* The second is refused at once; the first and the group are not touched. */
static void duplicate_rank(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 1), q = sim_client(sim, 0);

    sim_join(sim, p, g, 1, 2, 5000);
    sim_run(sim, 10);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_join(sim, q, g, 0, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] b: pid 200 joins g6 as rank 1 of 2\n"
             "[   0] b -> a JOIN g6 rank 1 of 2\n"
             "[  10] a: pid 101 joins g6 as rank 1 of 2\n"
             "[  10] a: pid 101 JOIN_FAILED 1 node b: group \"g6\": rank 1 is already taken by "
             "pid 200 on node b\n"
             "[  10] a: pid 101 joins g6 as rank 0 of 2\n"
             "[  10] a -> b COMMIT #a1\n"
             "[  10] a -> b SYNC #a1\n"
             "[  11] b -> a SYNC #a1\n"
             "[  11] b -> a SYNC #a1 all\n"
             "[  11] b: #a1 open, 2 ranks on 2 nodes\n"
             "[  12] a -> b SYNC #a1 all\n"
             "[  12] a: #a1 open, 2 ranks on 2 nodes\n");
}

static void size_mismatch(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 3, 5000);
    sim_run(sim, 10);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g6 as rank 0 of 2\n"
             "[   0] b: pid 201 joins g6 as rank 1 of 3\n"
             "[   0] b -> a JOIN g6 rank 1 of 3\n"
             "[   1] a -> b JOIN_REFUSED 1: group \"g6\": rank 1 joins with size 3, but rank 0 of "
             "node a joined with size 2\n"
             "[   2] b: pid 201 JOIN_FAILED 1 node a: group \"g6\": rank 1 joins with size 3, but "
             "rank 0 of node a joined with size 2\n"
             "[  10] b: pid 201 joins g6 as rank 1 of 2\n"
             "[  10] b -> a JOIN g6 rank 1 of 2\n"
             "[  11] a -> b COMMIT #a1\n"
             "[  11] a -> b SYNC #a1\n"
             "[  12] b -> a SYNC #a1\n"
             "[  12] b -> a SYNC #a1 all\n"
             "[  12] b: #a1 open, 2 ranks on 2 nodes\n"
             "[  13] a -> b SYNC #a1 all\n"
             "[  13] a: #a1 open, 2 ranks on 2 nodes\n");
}

/* All that waited with one limit read the same list, whoever's time ends first. */
static void timeout_names_missing(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 2);

    sim_join(sim, p, g, 0, 8, 5000);
    sim_run(sim, 3);
    sim_join(sim, q, g, 5, 8, 5000);
    sim_run(sim, 3);
    sim_join(sim, r, g, 6, 8, 5000);
    sim_run(sim, 6000);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 8\n"
             "[   0] a -> c JOIN g3 rank 0 of 8\n"
             "[   3] b: pid 201 joins g3 as rank 5 of 8\n"
             "[   3] b -> c JOIN g3 rank 5 of 8\n"
             "[   6] c: pid 302 joins g3 as rank 6 of 8\n"
             "[5000] a -> c JOIN_CANCEL, who is missing?\n"
             "[5001] c -> a JOIN_REFUSED 4: 1-4,7\n"
             "[5002] a: pid 100 JOIN_FAILED 4: group \"g3\": 5 of 8 ranks did not come within 5 "
             "s: missing 1-4,7\n"
             "[5003] b -> c JOIN_CANCEL, who is missing?\n"
             "[5004] c -> b JOIN_REFUSED 4: 1-4,7\n"
             "[5005] b: pid 201 JOIN_FAILED 4: group \"g3\": 5 of 8 ranks did not come within 5 "
             "s: missing 1-4,7\n"
             "[5006] c: pid 302 JOIN_FAILED 4: group \"g3\": 5 of 8 ranks did not come within 5 "
             "s: missing 1-4,7\n");
}

/* Its place is free again, and the one who takes it completes the group. */
static void client_dies_while_joining(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 1);

    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 10);
    sim_die(sim, q, "killed by signal 9");
    sim_run(sim, 10);
    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, r, g, 1, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] b: pid 201 joins g6 as rank 1 of 2\n"
             "[   0] b -> a JOIN g6 rank 1 of 2\n"
             "[  10] b: pid 201 dies\n"
             "[  10] b -> a JOIN_CANCEL\n"
             "[  20] a: pid 100 joins g6 as rank 0 of 2\n"
             "[  20] b: pid 202 joins g6 as rank 1 of 2\n"
             "[  20] b -> a JOIN g6 rank 1 of 2\n"
             "[  21] a -> b COMMIT #a1\n"
             "[  21] a -> b SYNC #a1\n"
             "[  22] b -> a SYNC #a1\n"
             "[  22] b -> a SYNC #a1 all\n"
             "[  22] b: #a1 open, 2 ranks on 2 nodes\n"
             "[  23] a -> b SYNC #a1 all\n"
             "[  23] a: #a1 open, 2 ranks on 2 nodes\n");
}

/* The COMMIT meets a rank that is gone: the others wait for somebody to take its place. */
static void client_dies_during_commit(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 1);
    sim_die(sim, q, "killed by signal 9");
    sim_run(sim, 20);
    sim_join(sim, r, g, 1, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 2\n"
             "[   0] a -> c JOIN g3 rank 0 of 2\n"
             "[   0] b: pid 201 joins g3 as rank 1 of 2\n"
             "[   0] b -> c JOIN g3 rank 1 of 2\n"
             "[   1] c -> a COMMIT #c1\n"
             "[   1] c -> b COMMIT #c1\n"
             "[   1] b: pid 201 dies\n"
             "[   1] b -> c JOIN_CANCEL\n"
             "[   2] a -> b SYNC #c1\n"
             "[   2] b -> a BROKEN #c1 16: rank 1 of node b does not wait for it any more\n"
             "[   3] b -> a BROKEN #c1 0: node b does not have this group\n"
             "[   3] a -> b BROKEN #c1 16: rank 1 of node b does not wait for it any more\n"
             "[   3] a -> b BROKEN #c1 16: rank 1 of node b does not wait for it any more\n"
             "[   3] a -> c JOIN g3 rank 0 of 2\n"
             "[   4] b -> a BROKEN #c1 0: node b does not have this group\n"
             "[  21] b: pid 202 joins g3 as rank 1 of 2\n"
             "[  21] b -> c JOIN g3 rank 1 of 2\n"
             "[  22] c -> a COMMIT #c2\n"
             "[  22] c -> b COMMIT #c2\n"
             "[  23] a -> b SYNC #c2\n"
             "[  23] b -> a SYNC #c2\n"
             "[  24] b -> a SYNC #c2 all\n"
             "[  24] b: #c2 open, 2 ranks on 2 nodes\n"
             "[  24] a -> b SYNC #c2 all\n"
             "[  24] a: #c2 open, 2 ranks on 2 nodes\n");
}

/* The waiting join is asked at the next home and completes there. */
static void home_lost_while_joining(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_run(sim, 10);
    sim_crash(sim, 2);
    sim_run(sim, 10);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 2\n"
             "[   0] a -> c JOIN g3 rank 0 of 2\n"
             "[  10] c crashes\n"
             "[  11] a -> c JOIN_CANCEL\n"
             "[  11] a -> b JOIN g3 rank 0 of 2\n"
             "[  20] b: pid 201 joins g3 as rank 1 of 2\n"
             "[  20] b -> a COMMIT #b1\n"
             "[  20] b -> a SYNC #b1\n"
             "[  21] a -> b SYNC #b1\n"
             "[  21] a -> b SYNC #b1 all\n"
             "[  21] a: #b1 open, 2 ranks on 2 nodes\n"
             "[  22] b -> a SYNC #b1 all\n"
             "[  22] b: #b1 open, 2 ranks on 2 nodes\n");
}

/* The home is no participant and dies when one of two COMMITs has left: who has it asks who has
 * it not, learns that, and both join again at the next home. No client notices. */
static void home_lost_between_commits(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_run(sim, 10);
    sim_crash_after(sim, 2, MSG_COMMIT, 1);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 200);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 2\n"
             "[   0] a -> c JOIN g3 rank 0 of 2\n"
             "[  10] b: pid 201 joins g3 as rank 1 of 2\n"
             "[  10] b -> c JOIN g3 rank 1 of 2\n"
             "[  11] c -> a COMMIT #c1\n"
             "[  11] c crashes\n"
             "[  11] a -> b SYNC #c1\n"
             "[  12] b -> c JOIN_CANCEL\n"
             "[  12] a -> b SYNC #c1\n"
             "[  13] b -> a BROKEN #c1 0: node b does not have this group\n"
             "[  14] a -> b BROKEN #c1 16: node b does not have this group\n"
             "[  14] a -> b BROKEN #c1 16: node b does not have this group\n"
             "[  14] a -> b JOIN g3 rank 0 of 2\n"
             "[  15] b -> a BROKEN #c1 0: node b does not have this group\n"
             "[  15] b -> a COMMIT #b1\n"
             "[  15] b -> a SYNC #b1\n"
             "[  16] a -> b SYNC #b1\n"
             "[  16] a -> b SYNC #b1 all\n"
             "[  16] a: #b1 open, 2 ranks on 2 nodes\n"
             "[  17] b -> a SYNC #b1 all\n"
             "[  17] b: #b1 open, 2 ranks on 2 nodes\n");
}

/* A rank dies when its node has voted, and another node has no COMMIT yet. */
static void dies_before_all_have_the_commit(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 0);

    (void)state;
    sim_slow(sim, 0, 2, 50);
    sim_join(sim, sim_client(sim, 0), g, 0, 4, 5000);
    sim_join(sim, sim_client(sim, 1), g, 1, 4, 5000);
    sim_join(sim, sim_client(sim, 1), g, 2, 4, 5000);
    sim_join(sim, sim_client(sim, 2), g, 3, 4, 5000);
    sim_run(sim, 10);
    sim_die(sim, 2, "killed by signal 9");
    sim_run(sim, 200);
    sim_check_marks(sim);
    end(sim, "[   0] a: pid 100 joins g7 as rank 0 of 4\n"
             "[   0] b: pid 201 joins g7 as rank 1 of 4\n"
             "[   0] b -> a JOIN g7 rank 1 of 4\n"
             "[   0] b: pid 202 joins g7 as rank 2 of 4\n"
             "[   0] b -> a JOIN g7 rank 2 of 4\n"
             "[   0] c: pid 303 joins g7 as rank 3 of 4\n"
             "[   0] c -> a JOIN g7 rank 3 of 4\n"
             "[   1] a -> b COMMIT #a1\n"
             "[   1] a -> c COMMIT #a1\n"
             "[   1] a -> b SYNC #a1\n"
             "[   1] a -> c SYNC #a1\n"
             "[   2] b -> a SYNC #a1\n"
             "[   2] b -> a SYNC #a1\n"
             "[  10] b: pid 202 dies\n"
             "[  10] b -> a GONE #a1 rank 2\n"
             "[  10] b -> c GONE #a1 rank 2\n"
             "[  48] a -> c SYNC #a1\n"
             "[  48] b -> a SYNC #a1\n"
             "[  52] c -> a SYNC #a1\n"
             "[  52] c -> a SYNC #a1\n"
             "[  53] a -> b SYNC #a1 all\n"
             "[  53] a -> c SYNC #a1 all\n"
             "[  53] a: #a1 open, 4 ranks on 3 nodes\n"
             "[  53] a: #a1 rank 2 gone after 0 ops, 5: gone before the group opened\n"
             "[  53] a -> c SYNC #a1 all\n"
             "[  54] b -> a GONE #a1 rank 2\n"
             "[  54] b -> c GONE #a1 rank 2\n"
             "[  54] b: #a1 open, 4 ranks on 3 nodes\n"
             "[  54] b: #a1 rank 2 gone after 0 ops, 5: gone before the group opened\n"
             "[  99] c -> a SYNC #a1\n"
             "[ 100] a -> c SYNC #a1 all\n"
             "[ 104] c: #a1 open, 4 ranks on 3 nodes\n"
             "[ 104] c: #a1 rank 2 gone after 0 ops, 5: gone before the group opened\n");
}

/* A participant that is far from the home hears of the group from the other one first: the SYNC
 * it could not use is asked for again by its own. */
static void commit_overtakes_commit(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_slow(sim, 2, 1, 10);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 2\n"
             "[   0] a -> c JOIN g3 rank 0 of 2\n"
             "[   0] b: pid 201 joins g3 as rank 1 of 2\n"
             "[   0] b -> c JOIN g3 rank 1 of 2\n"
             "[   1] c -> a COMMIT #c1\n"
             "[   1] c -> b COMMIT #c1\n"
             "[   2] a -> b SYNC #c1\n"
             "[  12] b -> a SYNC #c1\n"
             "[  13] a -> b SYNC #c1 all\n"
             "[  13] a: #c1 open, 2 ranks on 2 nodes\n"
             "[  14] b: #c1 open, 2 ranks on 2 nodes\n");
}

/* Marked on every node of the group, with what its board says it had completed. */
static void rank_killed(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 2);

    sim_join(sim, p, g, 0, 3, 5000);
    sim_join(sim, q, g, 1, 3, 5000);
    sim_join(sim, r, g, 2, 3, 5000);
    sim_run(sim, 50);
    sim_ops(sim, q, g, 7);
    sim_trace_clear(sim);
    sim_die(sim, q, "killed by signal 9");
    sim_run(sim, 50);
    end(sim, "[   0] b: pid 201 dies\n"
             "[   0] b: #a1 rank 1 gone after 7 ops, 5: rank 1 (pid 201 on node b) was lost: "
             "killed by signal 9\n"
             "[   0] b: #a1 close, abort\n"
             "[   1] a: #a1 rank 1 gone after 7 ops, 5: rank 1 (pid 201 on node b) was lost: "
             "killed by signal 9\n"
             "[   1] c: #a1 rank 1 gone after 7 ops, 5: rank 1 (pid 201 on node b) was lost: "
             "killed by signal 9\n");
}

/* A group of which nothing is on the wire goes on over the next engine. */
static void engine_killed(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 2);

    sim_join(sim, p, "solo", 0, 1, 5000);
    sim_join(sim, p, g, 0, 3, 5000);
    sim_join(sim, q, g, 1, 3, 5000);
    sim_join(sim, r, g, 2, 3, 5000);
    sim_run(sim, 50);
    sim_trace_clear(sim);
    sim_crash_engine(sim, 0);
    sim_run(sim, 150);
    sim_leave(sim, p, g);
    sim_leave(sim, q, g);
    sim_leave(sim, r, g);
    sim_settle(sim);
    end(sim, "[   0] engine of a is killed\n"
             "[   6] b: #a1 goes on over the next engine\n"
             "[   6] c: #a1 goes on over the next engine\n"
             "[   7] a: #a1 goes on over the next engine\n"
             "[ 150] a: pid 100 leaves g7\n"
             "[ 150] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[ 150] a -> b GONE #a1 rank 0\n"
             "[ 150] a -> c GONE #a1 rank 0\n"
             "[ 150] a: #a1 close\n"
             "[ 150] b: pid 201 leaves g7\n"
             "[ 150] b: #a1 rank 1 gone after 0 ops, 16: rank 1 (pid 201 on node b) left\n"
             "[ 150] b -> a GONE #a1 rank 1\n"
             "[ 150] b -> c GONE #a1 rank 1\n"
             "[ 150] b: #a1 close\n"
             "[ 150] c: pid 302 leaves g7\n"
             "[ 150] c: #a1 rank 2 gone after 0 ops, 16: rank 2 (pid 302 on node c) left\n"
             "[ 150] c -> a GONE #a1 rank 2\n"
             "[ 150] c -> b GONE #a1 rank 2\n"
             "[ 150] c: #a1 close\n");
}

/* Every node of the group is told which node was lost. */
static void commd_killed(void **state)
{
    struct sim *sim = cluster(3);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 2);

    sim_join(sim, p, g, 0, 3, 5000);
    sim_join(sim, q, g, 1, 3, 5000);
    sim_join(sim, r, g, 2, 3, 5000);
    sim_run(sim, 50);
    sim_trace_clear(sim);
    sim_crash(sim, 1);
    sim_run(sim, 50);
    end(sim, "[   0] b crashes\n"
             "[   1] a -> c BROKEN #a1 6: node b was lost: connection reset\n"
             "[   1] a: #a1 broken, 6 node b: node b was lost: connection reset\n"
             "[   1] c -> a BROKEN #a1 6: node b was lost: connection reset\n"
             "[   1] c: #a1 broken, 6 node b: node b was lost: connection reset\n");
}

/* Who finds it out tells the first participant, which tells those that do not. */
static void a_link_that_two_of_them_had(void **state)
{
    struct sim *sim = cluster(4);
    const char *g = sim_name_at(sim, 0);

    for (unsigned i = 0; i < 4; i++)
        sim_join(sim, sim_client(sim, i), g, i, 4, 5000);
    sim_run(sim, 50);
    sim_trace_clear(sim);
    sim_cut(sim, 2, 3);
    sim_run(sim, 1000);
    sim_heal(sim);
    sim_settle(sim);
    end(sim, "[   0] link c-d is cut\n"
             "[ 599] c drops the link to d: silent for 600 ms\n"
             "[ 599] c -> a BROKEN #a1 6: node d was lost: silent for 600 ms\n"
             "[ 599] c: #a1 broken, 6 node d: node d was lost: silent for 600 ms\n"
             "[ 599] d drops the link to c: silent for 600 ms\n"
             "[ 599] d -> a BROKEN #a1 6: node c was lost: silent for 600 ms\n"
             "[ 599] d: #a1 broken, 6 node c: node c was lost: silent for 600 ms\n"
             "[ 600] a -> b BROKEN #a1 6: node d was lost: silent for 600 ms\n"
             "[ 600] a -> c BROKEN #a1 6: node d was lost: silent for 600 ms\n"
             "[ 600] a -> d BROKEN #a1 6: node d was lost: silent for 600 ms\n"
             "[ 600] a: #a1 broken, 6 node d: node d was lost: silent for 600 ms\n"
             "[ 601] b: #a1 broken, 6 node d: node d was lost: silent for 600 ms\n");
}

/* Nobody closes the connection: silence for the node timeout does. */
static void node_vanishes(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    sim_trace_clear(sim);
    sim_cut(sim, 0, 1);
    sim_run(sim, 1000);
    sim_heal(sim);
    sim_settle(sim);
    end(sim, "[   0] link a-b is cut\n"
             "[ 553] a drops the link to b: silent for 600 ms\n"
             "[ 553] a: #a1 broken, 6 node b: node b was lost: silent for 600 ms\n"
             "[ 554] b drops the link to a: silent for 600 ms\n"
             "[ 554] b: #a1 broken, 6 node a: node a was lost: silent for 600 ms\n");
}

/* The board goes when the last local rank has left, without an abort. */
static void all_leave(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    sim_ops(sim, p, g, 3);
    sim_ops(sim, q, g, 3);
    sim_trace_clear(sim);
    sim_leave(sim, p, g);
    sim_leave(sim, q, g);
    sim_run(sim, 50);
    end(sim, "[   0] a: pid 100 leaves g6\n"
             "[   0] a: #a1 rank 0 gone after 3 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[   0] a -> b GONE #a1 rank 0\n"
             "[   0] a: #a1 close\n"
             "[   0] b: pid 201 leaves g6\n"
             "[   0] b: #a1 rank 1 gone after 3 ops, 16: rank 1 (pid 201 on node b) left\n"
             "[   0] b -> a GONE #a1 rank 1\n"
             "[   0] b: #a1 close\n");
}

/* The same name a second time is another group. */
static void stopped_in_a_group(struct sim *sim, uint64_t ms)
{
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, "g", 0, 2, 5000);
    sim_join(sim, q, "g", 1, 2, 5000);
    sim_run(sim, 100);
    sim_trace_clear(sim);
    sim_stop(sim, 1, ms);
    sim_run(sim, 1000);
}

/* Its engine goes on, so the others wait for it. */
static void a_commd_that_is_stopped(void **state)
{
    struct sim *sim = cluster(2);

    stopped_in_a_group(sim, 3000);
    end(sim, "[   0] commd of b is stopped for 3000 ms\n"
             "[ 562] a drops the link to b: silent for 600 ms\n"
             "[3000] commd of b goes on\n");
}

/* The home has answered meanwhile: that is read before the time for it is over. */
static void a_commd_that_is_stopped_waits_for_answers(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned q = sim_client(sim, 1);

    sim_join(sim, q, g, 1, 2, 500);
    sim_run(sim, 501); /* it has asked who is missing */
    sim_trace_clear(sim);
    sim_stop(sim, 1, 2000);
    sim_run(sim, 1000);
    end(sim,
        "[   0] commd of b is stopped for 2000 ms\n"
        "[ 600] a drops the link to b: silent for 600 ms\n"
        "[2000] commd of b goes on\n"
        "[2001] b: pid 200 JOIN_FAILED 4: group \"g6\": 1 of 2 ranks did not come within 500 ms: "
        "missing 0\n");
}

static void a_commd_that_is_stopped_for_too_long(void **state)
{
    struct sim *sim = cluster(2);

    stopped_in_a_group(sim, 6000);
    end(sim,
        "[   0] commd of b is stopped for 6000 ms\n"
        "[ 562] a drops the link to b: silent for 600 ms\n"
        "[4562] a: #b1 broken, 6 node b: node b was lost: silent for 600 ms, and its commd is not "
        "back within 4 s\n"
        "[6000] commd of b goes on\n"
        "[6001] b: #b1 broken, 6 node a: node a was lost: connection reset, and the engines of "
        "nodes b and a lost each other: connection reset\n"
        "[6006] b -> a BROKEN #b1 6: node a was lost: connection reset, and the engines of nodes b "
        "and a lost each other: connection reset\n"
        "[6006] a -> b BROKEN #b1 6: node b was lost: silent for 600 ms, and its commd is not back "
        "within 4 s\n");
}

static void joined_again(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    for (unsigned i = 0; i < 2; i++) {
        sim_join(sim, p, g, 0, 2, 5000);
        sim_join(sim, q, g, 1, 2, 5000);
        sim_run(sim, 50);
    }
    sim_leave(sim, p, g);
    sim_leave(sim, p, g);
    sim_run(sim, 10);
    end(sim, "[   0] a: pid 100 joins g6 as rank 0 of 2\n"
             "[   0] b: pid 201 joins g6 as rank 1 of 2\n"
             "[   0] b -> a JOIN g6 rank 1 of 2\n"
             "[   1] a -> b COMMIT #a1\n"
             "[   1] a -> b SYNC #a1\n"
             "[   2] b -> a SYNC #a1\n"
             "[   2] b -> a SYNC #a1 all\n"
             "[   2] b: #a1 open, 2 ranks on 2 nodes\n"
             "[   3] a -> b SYNC #a1 all\n"
             "[   3] a: #a1 open, 2 ranks on 2 nodes\n"
             "[  50] a: pid 100 joins g6 as rank 0 of 2\n"
             "[  50] b: pid 201 joins g6 as rank 1 of 2\n"
             "[  50] b -> a JOIN g6 rank 1 of 2\n"
             "[  51] a -> b COMMIT #a2\n"
             "[  51] a -> b SYNC #a2\n"
             "[  52] b -> a SYNC #a2\n"
             "[  52] b -> a SYNC #a2 all\n"
             "[  52] b: #a2 open, 2 ranks on 2 nodes\n"
             "[  53] a -> b SYNC #a2 all\n"
             "[  53] a: #a2 open, 2 ranks on 2 nodes\n"
             "[ 100] a: pid 100 leaves g6\n"
             "[ 100] a: #a2 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[ 100] a -> b GONE #a2 rank 0\n"
             "[ 100] a: #a2 close\n"
             "[ 100] a: pid 100 leaves g6\n"
             "[ 100] a: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[ 100] a -> b GONE #a1 rank 0\n"
             "[ 100] a: #a1 close\n"
             "[ 101] b: #a2 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n"
             "[ 101] b: #a1 rank 0 gone after 0 ops, 16: rank 0 (pid 100 on node a) left\n");
}

static void client_aborts(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 0);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    sim_trace_clear(sim);
    sim_abort(sim, q, g, "loss is not a number");
    sim_run(sim, 50);
    end(sim, "[   0] b: pid 201 aborts g6\n"
             "[   0] b -> a BROKEN #a1 8: loss is not a number\n"
             "[   0] b: #a1 broken, 8 node b: loss is not a number\n"
             "[   1] a: #a1 broken, 8 node b: loss is not a number\n");
}

/* One-node groups go on; what spans nodes ends, here and there; new joins are refused. */
static void shutdown_tells_all(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 1);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1), r = sim_client(sim, 0);

    sim_join(sim, r, "solo", 0, 1, 5000);
    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 50);
    sim_join(sim, p, "next", 0, 2, 5000);
    sim_run(sim, 10);
    sim_trace_clear(sim);
    sim_shutdown(sim, 0);
    sim_run(sim, 10);
    sim_join(sim, r, "more", 0, 1, 5000);
    sim_run(sim, 10);
    end(sim, "[   0] a is asked to stop\n"
             "[   0] a: pid 100 JOIN_FAILED 6 node a: commd on node a is stopping\n"
             "[   0] a -> b BROKEN #b1 6: commd on node a is stopping\n"
             "[   0] a: #b1 broken, 6 node a: commd on node a is stopping\n"
             "[   1] b: #b1 broken, 6 node a: commd on node a is stopping\n"
             "[  10] a: pid 102 joins more as rank 0 of 1\n"
             "[  10] a: pid 102 JOIN_FAILED 6 node a: commd on node a is stopping\n");
}

/* Asked while the nodes do not know each other yet: homes move, nobody is refused. */
static void joins_before_links(void **state)
{
    struct sim *sim = cold(3);
    const char *g = sim_name_at(sim, 2);
    unsigned p = sim_client(sim, 0), q = sim_client(sim, 1);

    sim_trace_clear(sim);
    sim_join(sim, p, g, 0, 2, 5000);
    sim_join(sim, q, g, 1, 2, 5000);
    sim_run(sim, 1000);
    end(sim, "[   0] a: pid 100 joins g3 as rank 0 of 2\n"
             "[   0] b: pid 201 joins g3 as rank 1 of 2\n"
             "[  26] a -> c JOIN g3 rank 0 of 2\n"
             "[  52] b -> c JOIN g3 rank 1 of 2\n"
             "[  53] c -> a COMMIT #c1\n"
             "[  53] c -> b COMMIT #c1\n"
             "[  54] a -> b SYNC #c1\n"
             "[  54] b -> a SYNC #c1\n"
             "[  55] b -> a SYNC #c1 all\n"
             "[  55] b: #c1 open, 2 ranks on 2 nodes\n"
             "[  55] a -> b SYNC #c1 all\n"
             "[  55] a: #c1 open, 2 ranks on 2 nodes\n");
}

/* It is cut off just before it should say who is missing. */
static void home_vanishes_at_the_limit(void **state)
{
    struct sim *sim = cluster(2);
    const char *g = sim_name_at(sim, 1);
    unsigned p = sim_client(sim, 0);

    sim_join(sim, p, g, 0, 2, 500);
    sim_run(sim, 450);
    sim_cut(sim, 0, 1);
    sim_run(sim, 2000);
    sim_heal(sim);
    end(sim, "[   0] a: pid 100 joins g0 as rank 0 of 2\n"
             "[   0] a -> b JOIN g0 rank 0 of 2\n"
             "[ 450] link a-b is cut\n"
             "[ 500] a -> b JOIN_CANCEL, who is missing?\n"
             "[ 962] a drops the link to b: silent for 600 ms\n"
             "[ 962] a: pid 100 JOIN_FAILED 6 node b: group \"g0\": its home node b was lost\n"
             "[ 962] b drops the link to a: silent for 600 ms\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node),
        cmocka_unit_test(two_nodes),
        cmocka_unit_test(left_before_the_last_sync),
        cmocka_unit_test(three_nodes),
        cmocka_unit_test(duplicate_rank),
        cmocka_unit_test(size_mismatch),
        cmocka_unit_test(timeout_names_missing),
        cmocka_unit_test(client_dies_while_joining),
        cmocka_unit_test(client_dies_during_commit),
        cmocka_unit_test(home_lost_while_joining),
        cmocka_unit_test(home_lost_between_commits),
        cmocka_unit_test(dies_before_all_have_the_commit),
        cmocka_unit_test(commit_overtakes_commit),
        cmocka_unit_test(rank_killed),
        cmocka_unit_test(engine_killed),
        cmocka_unit_test(commd_killed),
        cmocka_unit_test(a_link_that_two_of_them_had),
        cmocka_unit_test(node_vanishes),
        cmocka_unit_test(all_leave),
        cmocka_unit_test(a_commd_that_is_stopped),
        cmocka_unit_test(a_commd_that_is_stopped_waits_for_answers),
        cmocka_unit_test(a_commd_that_is_stopped_for_too_long),
        cmocka_unit_test(joined_again),
        cmocka_unit_test(client_aborts),
        cmocka_unit_test(shutdown_tells_all),
        cmocka_unit_test(joins_before_links),
        cmocka_unit_test(home_vanishes_at_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
