/* test_killed.c - stories in which commd is killed at the first place where it can be, then at the
 * second one, and so on until the story has no more; and some in which one thing comes just before
 * another. No seed decides what is tried, so that a rule of the core whose breach is seen here is
 * seen however the core changes (mutants.py). What has to hold is looked at by sim_check.c,
 * sim_state.c and sim_hold.c; at the end all is healed, and nothing may be left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

enum { MOST = 8, SEEDS = 4 };

struct story {
    struct sim *sim;
    const char *g;
    unsigned rank[MOST], n;
    uint64_t seed;
    unsigned victim, place; /* whose commd is killed, and where; place 0: not at all */
};

static uint64_t replaced; /* engines, in all runs of a story */

static struct story begin(unsigned nodes, uint64_t seed)
{
    struct story s = {.seed = seed};

    s.sim = sim_new(&(struct sim_options){.nodes = nodes,
                                          .seed = seed,
                                          .delay_min = 1,
                                          .delay_max = 1,
                                          .engine_delay = seed % 2 ? 0 : 20,
                                          .calm = true,
                                          .back_ms = 400,
                                          .trace = true});
    sim_settle(s.sim);
    s.g = sim_name_at(s.sim, 0);
    return s;
}

/* From here on places count. */
static void aim(struct story *s)
{
    if (s->place)
        sim_kill_after(s->sim, s->victim, s->place);
}

/* Rank i will be on node @nodes[i]. */
static void clients(struct story *s, const unsigned *nodes, unsigned n)
{
    s->n = n;
    for (unsigned i = 0; i < n; i++)
        s->rank[i] = sim_client(s->sim, nodes[i]);
}

static void join(struct story *s)
{
    for (unsigned i = 0; i < s->n; i++)
        sim_join(s->sim, s->rank[i], s->g, i, s->n, 5000);
}

static void open_group(struct story *s, const unsigned *nodes, unsigned n)
{
    clients(s, nodes, n);
    join(s);
    sim_run(s->sim, 100);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(sim_client_open(s->sim, s->rank[i]), 1);
}

/* @return was a commd killed? */
static bool end(struct story *s)
{
    bool killed;

    for (unsigned a = 0; a < SIM_NODES; a++)
        for (unsigned b = 0; b < SIM_NODES; b++)
            sim_slow(s->sim, a, b, 0);
    sim_kill_after(s->sim, s->victim, 0);
    sim_heal(s->sim);
    sim_run(s->sim, 10000);
    sim_check_marks(s->sim);
    killed = sim_taken_over(s->sim);
    for (unsigned i = 0; i < s->n; i++)
        sim_die(s->sim, s->rank[i], "end of test");
    sim_settle(s->sim);
    sim_run(s->sim, 5000);
    sim_check_idle(s->sim);
    sim_free(s->sim);
    return killed;
}

/* In several lives of the cluster: gaps, ids and times to come back are others. */
static void each_place(void (*tell)(struct story *s), unsigned nodes, unsigned victim)
{
    for (unsigned seed = 1, place = 1; seed <= SEEDS; place++) {
        struct story s = begin(nodes, seed);

        s.victim = victim;
        s.place = place;
        tell(&s);
        if (end(&s))
            continue;
        assert_true(place > 10);
        seed++;
        place = 0;
    }
}

/* ---- a group agrees, opens, loses a rank, is aborted, ends ----------------------------------- */

/* c's vote is under way for a while; one of b's ranks ends meanwhile. */
static void agree(struct story *s)
{
    clients(s, (unsigned[]){0, 1, 1, 2}, 4);
    sim_slow(s->sim, 2, 0, 150);
    aim(s);
    join(s);
    sim_run(s->sim, 200); /* the COMMIT is everywhere */
    sim_die(s->sim, s->rank[2], "killed by signal 9");
    sim_run(s->sim, 300);
}

static void while_nodes_agree(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 3; victim++)
        each_place(agree, 3, victim);
}

/* b's commd is new, and its rank is the last to ask. The COMMIT is on its way to b when c, which
 * has it and has voted, asks b what it has of the group: c hears from b's engine @later. */
static void ask_before_the_commit_is_there(unsigned later)
{
    struct story s = begin(3, 1);

    s.victim = 1;
    clients(&s, (unsigned[]){0, 1, 2}, 3);
    sim_slow(s.sim, 1, 2, later);
    sim_kill_after(s.sim, 1, 1);
    join(&s);
    for (unsigned ms = 0; ms < 1000 && !sim_client_open(s.sim, s.rank[0]); ms++) {
        sim_run(s.sim, 1);
        if (sim_taken_over(s.sim) && sim_alive(s.sim, 1))
            sim_slow(s.sim, 0, 1, 60);
    }
    sim_run(s.sim, 1000);
    for (unsigned i = 0; i < s.n; i++)
        assert_int_equal(sim_client_open(s.sim, s.rank[i]), 1);
    assert_true(end(&s));
}

static void while_a_commit_is_on_its_way(void **state)
{
    (void)state;
    for (unsigned later = 0; later <= 400; later += 10)
        ask_before_the_commit_is_there(later);
}

static void end_it(struct story *s)
{
    open_group(s, (unsigned[]){0, 1, 1, 2}, 4);
    sim_slow(s->sim, 1, 0, 150);
    sim_slow(s->sim, 1, 2, 150);
    aim(s);
    sim_die(s->sim, s->rank[1], "killed by signal 9");
    sim_run(s->sim, 10);
    sim_leave(s->sim, s->rank[2], s->g);
    sim_run(s->sim, 300);
    sim_abort(s->sim, s->rank[3], s->g, "loss is not a number");
    sim_run(s->sim, 10);
    sim_leave(s->sim, s->rank[0], s->g);
    sim_run(s->sim, 300);
}

static void while_a_group_ends(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 3; victim++)
        each_place(end_it, 3, victim);
}

/* All ranks of a have left; b and c have not heard that yet when b aborts. */
static void abort_what_was_left(struct story *s)
{
    open_group(s, (unsigned[]){0, 1, 2}, 3);
    sim_slow(s->sim, 0, 1, 300);
    sim_slow(s->sim, 0, 2, 300);
    aim(s);
    sim_leave(s->sim, s->rank[0], s->g);
    sim_run(s->sim, 10);
    sim_abort(s->sim, s->rank[1], s->g, "loss is not a number");
    sim_run(s->sim, 400);
}

static void while_what_was_left_breaks(void **state)
{
    (void)state;
    each_place(abort_what_was_left, 3, 0);
}

/* An answer to what was asked before b's rank left says nothing of that. */
static void an_answer_that_is_older(void **state)
{
    struct story s = begin(2, 1);
    struct msg vote = {.type = MSG_SYNC, .sync = {.all = 1}};

    (void)state;
    open_group(&s, (unsigned[]){0, 1}, 2);
    vote.sync.group = sim_client_in(s.sim, s.rank[0], s.g, &(unsigned){0}, &(unsigned){0});
    sim_slow(s.sim, 1, 0, 100);
    sim_leave(s.sim, s.rank[1], s.g);
    sim_peer_says(s.sim, 0, 1, &vote);
    sim_kill_after(s.sim, 0, 1);
    sim_run(s.sim, 1000);
    assert_true(end(&s));
}

/* ---- engines --------------------------------------------------------------------------------- */

static void lose_an_engine(struct story *s)
{
    open_group(s, (unsigned[]){0, 1}, 2);
    sim_slow(s->sim, s->seed % 2, 1 - s->seed % 2, s->seed / 2 * 120);
    aim(s);
    sim_crash_engine(s->sim, 1);
    sim_run(s->sim, 400);
}

static void while_an_engine_is_lost(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 2; victim++)
        each_place(lose_an_engine, 2, victim);
}

/* The next one does not live either. */
static void engines_that_die_again(void **state)
{
    struct story s = begin(2, 1);

    (void)state;
    open_group(&s, (unsigned[]){0, 1}, 2);
    for (unsigned i = 0; i < 5000; i++) {
        sim_crash_engine(s.sim, 1);
        sim_run(s.sim, 1);
    }
    assert_false(end(&s));
}

/* It ends @ms after its commd. */
static void an_engine_that_ends_after_its_commd(void **state)
{
    (void)state;
    for (unsigned ms = 0; ms < 300; ms += 5) {
        struct story s = begin(2, 1);

        open_group(&s, (unsigned[]){0, 1}, 2);
        sim_kill_after(s.sim, 1, 1);
        sim_run(s.sim, 100 + ms);
        sim_crash_engine(s.sim, 1);
        sim_run(s.sim, 1000);
        assert_true(end(&s));
    }
}

/* That is a second after it is asked for. a's engine loses it before a's commd hears why. */
static void replace_an_engine(struct story *s)
{
    open_group(s, (unsigned[]){0, 1}, 2);
    sim_slow(s->sim, 1, 0, s->seed % 4 * 20);
    sim_renew(s->sim, 1);
    sim_run(s->sim, 600);
    assert_int_equal(sim_renewed(s->sim), 0);
    aim(s);
    sim_run(s->sim, 800);
    replaced += sim_renewed(s->sim);
}

static void while_an_engine_is_replaced(void **state)
{
    (void)state;
    replaced = 0;
    for (unsigned victim = 0; victim < 2; victim++)
        each_place(replace_an_engine, 2, victim);
    assert_true(replaced > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_nodes_agree),
        cmocka_unit_test(while_a_commit_is_on_its_way),
        cmocka_unit_test(while_a_group_ends),
        cmocka_unit_test(while_what_was_left_breaks),
        cmocka_unit_test(an_answer_that_is_older),
        cmocka_unit_test(while_an_engine_is_lost),
        cmocka_unit_test(engines_that_die_again),
        cmocka_unit_test(an_engine_that_ends_after_its_commd),
        cmocka_unit_test(while_an_engine_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
