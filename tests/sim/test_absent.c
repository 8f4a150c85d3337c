/* test_absent.c - transcripts of "who has not come?": who is asked, who answers, what is not
 * answered. Links take exactly 1 ms. See core_absent.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/sim/sim.h"

/* Ranks 0 and 1 on a, 2 on b, 3 on c; all of them have begun one operation. */
struct fix {
    struct sim *sim;
    unsigned rank[4];
    const char *name;
    uint64_t group;
};

static int setup(void **state)
{
    static const unsigned places[] = {0, 0, 1, 2};
    struct fix *f = calloc(1, sizeof(*f));
    struct core_group_view view;

    f->sim = sim_new(&(struct sim_options){
        .nodes = 3, .seed = 1, .delay_min = 1, .delay_max = 1, .trace = true});
    sim_settle(f->sim);
    f->name = sim_name_at(f->sim, 0);
    for (unsigned i = 0; i < 4; i++) {
        f->rank[i] = sim_client(f->sim, places[i]);
        sim_join(f->sim, f->rank[i], f->name, i, 4, 5000);
    }
    sim_run(f->sim, 20);
    for (unsigned i = 0; i < 4; i++)
        sim_ops(f->sim, f->rank[i], f->name, 1);
    assert_true(core_group_at(sim_core(f->sim, 0), 0, &view));
    f->group = view.id;
    sim_trace_clear(f->sim);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fix *f = *state;

    for (unsigned i = 0; i < 16; i++)
        sim_die(f->sim, i, "end of test");
    sim_run(f->sim, 5000);
    sim_check_idle(f->sim);
    sim_free(f->sim);
    free(f);
    return 0;
}

/* What was said, without the times, which the tests of joining are about. */
static void expect(struct fix *f, const char *expected)
{
    char got[8192], *at = got;

    for (const char *line = sim_trace(f->sim); *line;) {
        const char *text = strchr(line, ']') + 2, *end = strchr(line, '\n') + 1;

        memcpy(at, text, (size_t)(end - text));
        at += end - text;
        line = end;
    }
    *at = 0;
    assert_string_equal(got, expected);
    sim_trace_clear(f->sim);
}

static void every_node_answers_for_its_ranks(void **state)
{
    struct fix *f = *state;

    sim_ops(f->sim, f->rank[0], f->name, 1);
    sim_ops(f->sim, f->rank[3], f->name, 1);
    sim_ask_absent(f->sim, f->rank[0], f->name, 2);
    sim_run(f->sim, 10);
    expect(f, "a: pid 100 asks who has not begun g7 2\n"
              "a: pid 100 ABSENT node a: 1, first 1: 1\n"
              "a -> b ASK_ABSENT #a1 2\n"
              "a -> c ASK_ABSENT #a1 2\n"
              "b -> a ABSENT_HERE 1: 2\n"
              "c -> a ABSENT_HERE 0: \n"
              "a: pid 100 ABSENT node b: 1, first 2: 2\n"
              "a: pid 100 ABSENT node c: 0, first -1: \n");
}

static void a_node_that_is_cut_off_does_not_answer(void **state)
{
    struct fix *f = *state;

    sim_cut(f->sim, 0, 2);
    sim_trace_clear(f->sim);
    sim_ask_absent(f->sim, f->rank[1], f->name, 1);
    sim_run(f->sim, 10);
    expect(f, "a: pid 101 asks who has not begun g7 1\n"
              "a: pid 101 ABSENT node a: 0, first -1: \n"
              "a -> b ASK_ABSENT #a1 1\n"
              "a -> c ASK_ABSENT #a1 1\n"
              "b -> a ABSENT_HERE 0: \n"
              "a: pid 101 ABSENT node b: 0, first -1: \n");
    sim_heal(f->sim);
}

/* The one who asked is gone when the answers come. */
static void nobody_to_tell(void **state)
{
    struct fix *f = *state;

    sim_ask_absent(f->sim, f->rank[0], f->name, 1);
    sim_leave(f->sim, f->rank[0], f->name);
    sim_trace_clear(f->sim);
    sim_run(f->sim, 10);
    assert_null(strstr(sim_trace(f->sim), "ABSENT node"));
    assert_non_null(strstr(sim_trace(f->sim), "b -> a ABSENT_HERE"));
    sim_trace_clear(f->sim);
}

static void foreign_groups(void **state)
{
    struct fix *f = *state;
    struct msg who = {.type = MSG_CLIENT_ASK_ABSENT}, peer = {.type = MSG_ASK_ABSENT},
               answer = {.type = MSG_ABSENT_HERE};
    unsigned stranger = sim_client(f->sim, 0), alone = sim_client(f->sim, 1);
    struct core_group_view view;

    /* a client that is not in the group */
    who.client_ask_absent.group = f->group;
    sim_trace_clear(f->sim);
    sim_say(f->sim, stranger, &who);
    assert_non_null(strstr(sim_trace(f->sim), "REFUSED 10: asks about group "));
    assert_false(sim_client_alive(f->sim, stranger));

    /* nodes that are not in it: b has a group of its own, c asks about it, and answers */
    sim_join(f->sim, alone, "solo", 0, 1, 5000);
    sim_run(f->sim, 10);
    assert_true(core_group_at(sim_core(f->sim, 1), 1, &view));
    sim_trace_clear(f->sim);
    peer.ask_absent.group = answer.absent_here.group = view.id;
    sim_peer_says(f->sim, 2, 1, &peer);
    answer.absent_here.rank = -1;
    for (unsigned slot = 0; slot < 3; slot++) {
        answer.absent_here.ask = (uint64_t)slot << 32;
        sim_peer_says(f->sim, 2, 1, &answer);
    }
    /* a group that nobody has, and clients that are not there */
    peer.ask_absent.group = 12345;
    sim_peer_says(f->sim, 2, 1, &peer);
    answer.absent_here.group = 12345;
    sim_peer_says(f->sim, 2, 1, &answer);
    answer.absent_here.group = f->group;
    answer.absent_here.ask = UINT64_MAX;
    sim_peer_says(f->sim, 2, 1, &answer);
    answer.absent_here.ask = (uint64_t)77 << 32;
    sim_peer_says(f->sim, 2, 1, &answer);
    sim_run(f->sim, 10);
    expect(f, "");
}

/* The others are not flooded by one client that asks without end. */
static void asks_without_end(void **state)
{
    struct fix *f = *state;
    unsigned asked = 0;

    for (unsigned i = 0; i < 1000; i++)
        sim_ask_absent(f->sim, f->rank[0], f->name, 1);
    for (const char *at = sim_trace(f->sim); (at = strstr(at, "a -> b ASK_ABSENT")); at++)
        asked++;
    assert_int_equal(asked, 64);
    sim_run(f->sim, 1000);
    sim_trace_clear(f->sim);
    sim_ask_absent(f->sim, f->rank[0], f->name, 1);
    assert_non_null(strstr(sim_trace(f->sim), "a -> b ASK_ABSENT"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_node_answers_for_its_ranks),
        TEST(a_node_that_is_cut_off_does_not_answer),
        TEST(nobody_to_tell),
        TEST(foreign_groups),
        TEST(asks_without_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
