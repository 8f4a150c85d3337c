/* test_gpu_order.c - nodes with groups that overlap, programs that announce in orders of their own
 * and wait for results, messages that take any time, nodes that die. A launched operation occupies
 * its node's GPUs until all other nodes of the group have launched it: orders that differ deadlock
 * here as they would there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "transport/gpu/gpu_order.h"

enum { NODES = 6, GROUPS = 8, OPS = 12, PARTS = 4, LAUNCHES = GROUPS * OPS * PARTS };

/* An operation at one node. */
struct sim_op {
    struct gpu_order_op order;
    bool announced, launched;
    unsigned part, at[PARTS]; /* the next one; where the others stand in node->launched */
    bool said, told, agreed;  /* ready; all are ready, and this node has proposed; has the ticket */
};

struct sim_node {
    struct gpu_order order;
    bool dead;
    bool gone[GROUPS]; /* has heard of a death */
    struct launch {
        uint64_t group, seq;
        unsigned part;
    } launched[LAUNCHES];        /* in that order */
    unsigned nlaunched, running; /* running: the first that is not done */
};

struct sim {
    unsigned nodes, groups, ops;
    uint32_t members[GROUPS]; /* bits */
    unsigned parts[GROUPS][OPS];
    unsigned hold; /* so many parts of an operation are under way at most */
    bool hasty;    /* proposes before all are ready: the mutant */
    struct sim_node node[NODES];
    struct sim_op op[GROUPS][OPS][NODES];
};

static struct sim s;
static uint64_t state;
static uint64_t proposals[GROUPS][OPS][NODES];

static unsigned sim_random(unsigned below)
{
    state = state * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(state >> 33) % below;
}

static bool member(unsigned g, unsigned n)
{
    return s.members[g] >> n & 1;
}

/* --- one node's steps: true if something has happened ------------------------------------------
 */

static bool step_announce(unsigned g, unsigned i, unsigned n)
{
    struct sim_op *op = &s.op[g][i][n];
    bool alone = s.members[g] == 1u << n;

    if (op->announced || (i && !s.op[g][i - 1][n].announced))
        return false;
    op->announced = true;
    op->order.tie = g + 1;
    op->order.seq = i + 1;
    gpu_order_ready(&s.node[n].order, &op->order, alone);
    op->said = true;
    op->agreed = alone;
    if (s.hasty && !alone) {
        proposals[g][i][n] = gpu_order_propose(&s.node[n].order, &op->order);
        op->told = true;
    }
    return true;
}

/* What all members have done, as an exchange tells; earlier operations of the group first. */
static bool all_said(unsigned g, unsigned i)
{
    for (unsigned n = 0; n < s.nodes; n++) {
        if (member(g, n) && !s.op[g][i][n].said)
            return false;
    }
    return true;
}

/* The largest proposal; 0: not all have made theirs. */
static uint64_t largest(unsigned g, unsigned i)
{
    uint64_t most = 0;

    for (unsigned n = 0; n < s.nodes; n++) {
        if (member(g, n) && !proposals[g][i][n])
            return 0;
        most = MAX(most, proposals[g][i][n]);
    }
    return most;
}

static bool step_tell(unsigned g, unsigned i, unsigned n)
{
    struct sim_op *op = &s.op[g][i][n];

    if (op->told || op->agreed || !op->said || !all_said(g, i) || (i && !s.op[g][i - 1][n].told))
        return false;
    op->told = true;
    proposals[g][i][n] = gpu_order_propose(&s.node[n].order, &op->order);
    return true;
}

static bool step_agree(unsigned g, unsigned i, unsigned n)
{
    struct sim_op *op = &s.op[g][i][n];

    if (!op->told || op->agreed || !largest(g, i))
        return false;
    op->agreed = true;
    assert_true(gpu_order_agree(&s.node[n].order, &op->order, largest(g, i)));
    return true;
}

static void step_hold(unsigned n)
{
    for (unsigned g = 0; g < s.groups; g++) {
        for (unsigned i = 0; i < s.ops; i++) {
            struct sim_op *op = &s.op[g][i][n];

            op->order.held = op->part >= s.hold && op->at[op->part - s.hold] >= s.node[n].running;
        }
    }
}

static bool step_launch(unsigned n)
{
    struct sim_node *node = &s.node[n];
    struct gpu_order_op *next;
    struct sim_op *op;

    step_hold(n);
    next = gpu_order_next(&node->order);
    if (!next)
        return false;
    op = container_of(next, struct sim_op, order);
    assert_int_equal(next->state, GPU_ORDER_IDLE);
    assert_false(next->held);
    assert_true(node->nlaunched < LAUNCHES);
    op->at[op->part] = node->nlaunched;
    node->launched[node->nlaunched++] = (struct launch){next->tie, next->seq, op->part++};
    op->launched = op->part == s.parts[next->tie - 1][next->seq - 1];
    if (!op->launched)
        gpu_order_again(&node->order, next);
    return true;
}

static bool same_launch(const struct launch *a, const struct launch *b)
{
    return a->group == b->group && a->seq == b->seq && a->part == b->part;
}

/* The stream: an operation is done when it is the first on all its nodes. */
static bool step_run(unsigned n)
{
    struct sim_node *node = &s.node[n];
    const struct launch *op;

    if (node->running == node->nlaunched)
        return false;
    op = &node->launched[node->running];
    for (unsigned m = 0; m < s.nodes; m++) {
        const struct sim_node *other = &s.node[m];
        unsigned at = other->running;

        if (m == n || !member((unsigned)op->group - 1, m) || node->gone[op->group - 1])
            continue; /* of a group that is gone it is aborted */
        while (at && !same_launch(&other->launched[at - 1], op))
            at--;
        if (at) /* it is done there already */
            continue;
        if (other->running == other->nlaunched ||
            !same_launch(&other->launched[other->running], op))
            return false;
    }
    node->running++;
    return true;
}

static bool step_hear(unsigned g, unsigned n)
{
    bool lost = false;

    for (unsigned m = 0; m < s.nodes; m++)
        lost |= member(g, m) && s.node[m].dead;
    if (!lost || s.node[n].gone[g] || !member(g, n))
        return false;
    s.node[n].gone[g] = true;
    for (unsigned i = 0; i < s.ops; i++) {
        gpu_order_drop(&s.node[n].order, &s.op[g][i][n].order);
        assert_int_equal(s.op[g][i][n].order.state, GPU_ORDER_IDLE);
    }
    return true;
}

static bool step(unsigned what, unsigned g, unsigned i, unsigned n)
{
    if (s.node[n].dead)
        return false;
    if (what == 3)
        return step_launch(n);
    if (what == 4)
        return step_run(n);
    if (!member(g, n))
        return false;
    if (what == 5)
        return step_hear(g, n);
    if (s.node[n].gone[g])
        return false;
    return what == 0   ? step_announce(g, i, n)
           : what == 1 ? step_tell(g, i, n)
                       : step_agree(g, i, n);
}

/* Any step, at random, and when none is found all of them, until nothing can happen any more. */
static void run_all(void)
{
    for (bool any = true; any;) {
        any = false;
        for (unsigned t = 0; t < 4000; t++)
            any |=
                step(sim_random(6), sim_random(s.groups), sim_random(s.ops), sim_random(s.nodes));
        for (unsigned t = 0; !any && t < 6 * s.groups * s.ops * s.nodes; t++)
            any |= step(t % 6, t / 6 % s.groups, t / 6 / s.groups % s.ops,
                        t / 6 / s.groups / s.ops % s.nodes);
    }
}

/* --- what must hold ------------------------------------------------------------------------------
 */

static unsigned position[NODES][GROUPS * OPS * PARTS];

static void find_positions(void)
{
    memset(position, 0xff, sizeof position);
    for (unsigned n = 0; n < s.nodes; n++) {
        for (unsigned k = 0; k < s.node[n].nlaunched; k++) {
            const struct launch *l = &s.node[n].launched[k];

            position[n][(l->part * OPS + l->seq - 1) * GROUPS + l->group - 1] = k;
        }
    }
}

/* Two parts of operations that two nodes have both launched stand in one order on both. */
static void check_one_order(uint64_t seed)
{
    find_positions();
    for (unsigned a = 0; a < GROUPS * OPS * PARTS; a++) {
        for (unsigned b = 0; b < a; b++) {
            int seen = 0;

            for (unsigned n = 0; n < s.nodes; n++) {
                unsigned x = position[n][a], y = position[n][b];
                int now = x >= LAUNCHES || y >= LAUNCHES || s.members[a % GROUPS] == 1u << n ||
                                  s.members[b % GROUPS] == 1u << n
                              ? 0
                          : x < y ? 1
                                  : -1;

                if (now && seen && now != seen)
                    fail_msg("seed %llu: node %u launches two operations in an order of its own",
                             (unsigned long long)seed, n);
                seen = now ? now : seen;
            }
        }
    }
}

static void check_all_done(uint64_t seed)
{
    for (unsigned n = 0; n < s.nodes; n++) {
        if (s.node[n].dead)
            continue;
        assert_null(s.node[n].order.head); /* nothing is left over */
        if (s.node[n].running != s.node[n].nlaunched)
            fail_msg("seed %llu: node %u hangs", (unsigned long long)seed, n);
        for (unsigned g = 0; g < s.groups; g++) {
            for (unsigned i = 0; member(g, n) && !s.node[n].gone[g] && i < s.ops; i++)
                assert_true(s.op[g][i][n].launched);
        }
    }
}

static void sim_begin(uint64_t seed, unsigned nodes, unsigned groups, unsigned ops)
{
    memset(&s, 0, sizeof s);
    memset(proposals, 0, sizeof proposals);
    state = seed;
    s.nodes = nodes;
    s.groups = groups;
    s.ops = ops;
    for (unsigned g = 0; g < groups; g++) {
        while (!s.members[g])
            s.members[g] = sim_random(1u << nodes);
    }
    s.hold = 1 + (unsigned)seed % 2;
    for (unsigned g = 0; g < groups; g++) {
        for (unsigned i = 0; i < ops; i++)
            s.parts[g][i] = sim_random(3) ? 1 : 1 + sim_random(PARTS);
    }
}

static void one_order_everywhere(void **arg)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        sim_begin(seed, 2 + (unsigned)seed % (NODES - 1), 1 + (unsigned)seed % GROUPS,
                  1 + (unsigned)seed % OPS);
        run_all();
        check_one_order(seed);
        check_all_done(seed);
    }
}

static void nodes_die_at_any_time(void **arg)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        unsigned victim, when;

        sim_begin(seed * 77, 3 + (unsigned)seed % (NODES - 2), GROUPS, 4);
        victim = sim_random(s.nodes);
        when = sim_random(6000);
        for (unsigned t = 0; t < when; t++)
            step(sim_random(6), sim_random(s.groups), sim_random(s.ops), sim_random(s.nodes));
        s.node[victim].dead = true;
        run_all();
        check_one_order(seed);
        check_all_done(seed);
    }
}

/* --- staged
 * ---------------------------------------------------------------------------------------- */

/* Group 1 has nodes 0 and 1, group 2 too. Node 1's program announces in group 1 only when group 2's
 * operation is done; node 0's announces in both. */
static unsigned staged(bool hasty)
{
    sim_begin(1, 2, 2, 1);
    s.members[0] = s.members[1] = 3;
    s.parts[0][0] = s.parts[1][0] = 1;
    s.hasty = hasty;
    assert_true(step_announce(0, 0, 0));
    assert_true(step_announce(1, 0, 0));
    assert_true(step_announce(1, 0, 1));
    for (unsigned t = 0; t < 2000; t++)
        step(1 + sim_random(4), sim_random(2), 0, sim_random(2));
    if (s.node[1].running) /* its result is there: the program goes on */
        assert_true(step_announce(0, 0, 1));
    for (unsigned t = 0; t < 2000; t++)
        step(1 + sim_random(4), sim_random(2), 0, sim_random(2));
    return s.node[0].running + s.node[1].running;
}

static void proposing_before_all_are_ready_would_deadlock(void **arg)
{
    assert_int_equal(staged(false), 4);
    assert_int_equal(staged(true), 0);
}

static void a_pending_proposal_holds_up_what_may_come_behind_it(void **arg)
{
    struct gpu_order o = {0};
    struct gpu_order_op a = {.tie = 1, .seq = 1}, b = {.tie = 2, .seq = 1};
    struct gpu_order_op c = {.tie = 3, .seq = 1}, d = {.tie = 4, .seq = 1};

    gpu_order_ready(&o, &a, false);
    gpu_order_ready(&o, &b, false);
    gpu_order_ready(&o, &c, false);
    assert_null(gpu_order_next(&o));
    assert_int_equal(gpu_order_propose(&o, &a), 1);
    assert_int_equal(gpu_order_propose(&o, &b), 2);
    assert_true(gpu_order_agree(&o, &b, 2));
    assert_null(gpu_order_next(&o)); /* a may get 1 */
    gpu_order_ready(&o, &d, true);   /* nobody else knows of it */
    assert_ptr_equal(gpu_order_next(&o), &d);
    assert_true(gpu_order_agree(&o, &a, 7));
    assert_ptr_equal(gpu_order_next(&o), &b);
    assert_ptr_equal(gpu_order_next(&o), &a);
    assert_null(gpu_order_next(&o));                /* c is not proposed */
    assert_int_equal(gpu_order_propose(&o, &c), 8); /* above all that was seen */
    assert_true(gpu_order_agree(&o, &c, 8));
    assert_ptr_equal(gpu_order_next(&o), &c);
    assert_null(o.head);
}

/* Neither those of one node nor those of several starve the others; nor does the number decide. */
static void who_is_alone_comes_in_turn(void **arg)
{
    struct gpu_order o = {0};
    struct gpu_order_op a = {.tie = 9, .seq = 1}, b = {.tie = 2, .seq = 1};
    struct gpu_order_op c = {.tie = 8, .seq = 1}, d = {.tie = 1, .seq = 1};

    gpu_order_ready(&o, &a, true);
    gpu_order_ready(&o, &b, true);
    gpu_order_ready(&o, &c, false);
    gpu_order_propose(&o, &c);
    assert_true(gpu_order_agree(&o, &c, 5));
    gpu_order_ready(&o, &d, true);
    assert_ptr_equal(gpu_order_next(&o), &a);
    assert_ptr_equal(gpu_order_next(&o), &b);
    assert_ptr_equal(gpu_order_next(&o), &c);
    assert_ptr_equal(gpu_order_next(&o), &d);
    assert_null(o.head);
}

static void equal_tickets_go_by_tie(void **arg)
{
    struct gpu_order o = {0};
    struct gpu_order_op a = {.tie = 9, .seq = 1}, b = {.tie = 2, .seq = 1};

    gpu_order_ready(&o, &a, false);
    gpu_order_ready(&o, &b, false);
    gpu_order_propose(&o, &a);
    gpu_order_propose(&o, &b);
    assert_true(gpu_order_agree(&o, &a, 5));
    assert_true(gpu_order_agree(&o, &b, 5));
    assert_ptr_equal(gpu_order_next(&o), &b);
    assert_ptr_equal(gpu_order_next(&o), &a);
}

static void a_broken_node_s_ticket_is_refused(void **arg)
{
    struct gpu_order o = {.clock = 10};
    struct gpu_order_op a = {.tie = 1, .seq = 1}, b = {.tie = 2, .seq = 1};

    gpu_order_ready(&o, &a, false);
    gpu_order_ready(&o, &b, false);
    gpu_order_propose(&o, &a);
    gpu_order_propose(&o, &b);
    assert_false(gpu_order_agree(&o, &a, 10)); /* below the proposal */
    assert_false(gpu_order_agree(&o, &a, UINT64_MAX));
    assert_true(gpu_order_agree(&o, &b, GPU_ORDER_LAST));
    assert_null(gpu_order_next(&o));
    gpu_order_drop(&o, &a);
    assert_ptr_equal(gpu_order_next(&o), &b);
    gpu_order_drop(&o, &b); /* it has left already */
    assert_null(o.head);
}

/* What comes while parts are held goes before them; what is agreed on far behind, after. */
static void others_come_between_parts(void **arg)
{
    struct gpu_order o = {0};
    struct gpu_order_op huge = {.tie = 1, .seq = 1}, b = {.tie = 2, .seq = 1};
    struct gpu_order_op c = {.tie = 3, .seq = 1}, d = {.tie = 4, .seq = 1};

    gpu_order_ready(&o, &huge, false);
    gpu_order_propose(&o, &huge);
    assert_true(gpu_order_agree(&o, &huge, 1));
    assert_ptr_equal(gpu_order_next(&o), &huge);
    gpu_order_again(&o, &huge);
    assert_int_equal(huge.ticket, 1 + GPU_ORDER_APART);
    huge.held = true;
    assert_null(gpu_order_next(&o));
    gpu_order_ready(&o, &b, false);
    gpu_order_ready(&o, &c, false);
    gpu_order_ready(&o, &d, true);
    gpu_order_propose(&o, &b);
    gpu_order_propose(&o, &c);
    assert_true(gpu_order_agree(&o, &b, b.ticket));
    assert_true(gpu_order_agree(&o, &c, 100)); /* by another node's clock */
    assert_ptr_equal(gpu_order_next(&o), &d);
    assert_ptr_equal(gpu_order_next(&o), &b);
    assert_null(gpu_order_next(&o)); /* on other nodes the part may be before c */
    huge.held = false;
    assert_ptr_equal(gpu_order_next(&o), &huge);
    assert_ptr_equal(gpu_order_next(&o), &c);
    gpu_order_again(&o, &huge);
    gpu_order_drop(&o, &huge);
    assert_null(o.head);
}

/* Of one node alone: nobody waits for its parts, nor they for anybody. */
static void parts_of_who_is_alone(void **arg)
{
    struct gpu_order o = {0};
    struct gpu_order_op huge = {.tie = 1, .seq = 1}, b = {.tie = 2, .seq = 1};
    struct gpu_order_op c = {.tie = 3, .seq = 1};

    gpu_order_ready(&o, &huge, true);
    assert_ptr_equal(gpu_order_next(&o), &huge);
    gpu_order_again(&o, &huge);
    huge.held = true;
    gpu_order_ready(&o, &b, true);
    gpu_order_ready(&o, &c, false);
    gpu_order_propose(&o, &c);
    assert_true(gpu_order_agree(&o, &c, 9));
    assert_ptr_equal(gpu_order_next(&o), &b);
    assert_ptr_equal(gpu_order_next(&o), &c);
    assert_null(gpu_order_next(&o));
    huge.held = false;
    assert_ptr_equal(gpu_order_next(&o), &huge);
    gpu_order_again(&o, &huge);
    assert_int_equal(huge.ticket, 10); /* behind what has come meanwhile */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_order_everywhere),
        cmocka_unit_test(nodes_die_at_any_time),
        cmocka_unit_test(proposing_before_all_are_ready_would_deadlock),
        cmocka_unit_test(a_pending_proposal_holds_up_what_may_come_behind_it),
        cmocka_unit_test(who_is_alone_comes_in_turn),
        cmocka_unit_test(others_come_between_parts),
        cmocka_unit_test(parts_of_who_is_alone),
        cmocka_unit_test(equal_tickets_go_by_tie),
        cmocka_unit_test(a_broken_node_s_ticket_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
