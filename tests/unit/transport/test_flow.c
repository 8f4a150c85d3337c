/* test_flow.c - the rule of flow.h alone: nodes in virtual time, of which some stop. Every message
 * and every word of what was passed takes as long as the seed says, and may be overtaken. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "transport/schedule/flow.h"

enum { NODES = 5, STEPS = 400, SLOTS = 8, ON_THE_WAY = 40000 };

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Data go from each node to the next one, as in a chain; the first has all of them. */
struct world {
    uint64_t rng;
    uint32_t begun[NODES], passed[NODES]; /* steps */
    uint32_t heard[NODES];                /* of the next node */
    uint8_t here[NODES][STEPS];           /* what has come */
    unsigned n, told;
    struct thing {
        unsigned to;
        bool data;
        uint32_t step; /* or how many were passed */
    } way[ON_THE_WAY];
};

static void put(struct world *w, unsigned to, bool data, uint32_t step)
{
    assert_true(w->n < ON_THE_WAY);
    w->way[w->n++] = (struct thing){to, data, step};
}

static void arrives(struct world *w)
{
    unsigned i = rnd(&w->rng) % w->n;
    struct thing t = w->way[i];

    w->way[i] = w->way[--w->n];
    if (!t.data) {
        w->heard[t.to] = MAX(w->heard[t.to], t.step);
        return;
    }
    assert_true(flow_may_come(9, t.step, 9, w->passed[t.to]));
    w->here[t.to][t.step] = 1;
}

/* True if it has done something. */
static bool node_moves(struct world *w, unsigned me, uint32_t steps)
{
    bool last = me + 1 == NODES, moved = false;
    uint32_t before = w->passed[me];

    while (w->begun[me] < steps && w->begun[me] < w->passed[me] + SLOTS &&
           (last || flow_may_send(w->begun[me], w->heard[me]))) {
        w->begun[me]++;
        moved = true;
    }
    while (w->passed[me] < w->begun[me] && (me == 0 || w->here[me][w->passed[me]])) {
        if (!last)
            put(w, me + 1, true, w->passed[me]);
        w->passed[me]++;
        moved = true;
    }
    if (me > 0 && flow_tells(before, w->passed[me], steps)) {
        put(w, me - 1, false, w->passed[me]);
        w->told++;
    }
    return moved;
}

/* @stopped moves only when nothing else does. */
static unsigned run(uint64_t seed, uint32_t steps, unsigned stopped)
{
    struct world *w = calloc(1, sizeof *w);
    unsigned told;

    assert_non_null(w);
    w->rng = seed;
    for (unsigned idle = 0; w->passed[NODES - 1] < steps; idle++) {
        unsigned me = rnd(&w->rng) % NODES;

        assert_true(idle < 10000);
        if (w->n && (rnd(&w->rng) & 1)) {
            arrives(w);
            idle = 0;
        } else if (me != stopped || (idle > 100 && !w->n)) {
            if (node_moves(w, me, steps))
                idle = 0;
        }
        for (unsigned k = 0; k + 1 < NODES; k++)
            assert_true(w->begun[k] <= w->passed[k + 1] + FLOW_CREDIT);
    }
    told = w->told;
    free(w);
    return told;
}

static void nobody_waits_for_ever(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++)
        for (unsigned stopped = 0; stopped <= NODES; stopped++)
            for (uint32_t steps = 1; steps <= STEPS; steps = steps * 3 + 1)
                run(seed * 7919, steps, stopped);
}

/* What the credit is enough for costs no message; more costs one for each FLOW_TELL steps. */
static void tells_no_more_than_is_needed(void **state)
{
    assert_int_equal(run(5, FLOW_CREDIT, NODES), 0);
    assert_in_range(run(5, FLOW_CREDIT + 1, NODES), 1, NODES - 1);
    assert_in_range(run(5, STEPS, NODES), 1, (NODES - 1) * STEPS / FLOW_TELL);
    assert_false(flow_tells(0, FLOW_TELL - 1, STEPS));
    assert_true(flow_tells(0, FLOW_TELL, STEPS));
    assert_true(flow_tells(FLOW_TELL - 1, FLOW_TELL, STEPS));
    assert_false(flow_tells(FLOW_TELL, FLOW_TELL + 1, STEPS));
    assert_false(flow_tells(STEPS - FLOW_TELL, STEPS, STEPS));
}

static void what_may_come(void **state)
{
    assert_true(flow_may_come(7, FLOW_CREDIT - 1, 7, 0));
    assert_false(flow_may_come(7, FLOW_CREDIT, 7, 0));
    assert_true(flow_may_come(7, FLOW_CREDIT, 7, 1));
    assert_true(flow_may_come(7, 0, 7, 100));
    assert_true(flow_may_come(8, FLOW_AHEAD - 1, 7, 100));
    assert_false(flow_may_come(8, FLOW_AHEAD, 7, 100));
    assert_false(flow_may_come(9, 0, 7, 0));
    assert_false(flow_may_come(6, 0, 7, 0));
    assert_true(flow_may_come(0, 0, UINT32_MAX, 0));
    assert_false(flow_may_come(7, UINT32_MAX, 7, UINT32_MAX - FLOW_CREDIT));
    assert_true(flow_check_may_come(7, 7) && flow_check_may_come(8, 7));
    assert_true(flow_check_may_come(0, UINT32_MAX));
    assert_false(flow_check_may_come(9, 7) || flow_check_may_come(6, 7));
    assert_true(flow_may_send(FLOW_CREDIT - 1, 0) && !flow_may_send(FLOW_CREDIT, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(tells_no_more_than_is_needed),
        cmocka_unit_test(what_may_come),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
