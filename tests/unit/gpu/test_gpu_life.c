/* test_gpu_life.c - every state that a launch, two communicators, jobs and the gate between them
 * can come to, one step of one of them at a time: no call begins that waits for a GPU while NCCL
 * launches, nobody waits for ever, and no job is passed over twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "transport/gpu/gpu_life.h"

/* ---- tables ---------------------------------------------------------------------------------- */

/* From @first each state can be reached, and from each one of @ends. */
static void check_table(int (*step)(int state, int event), unsigned states, unsigned events,
                        unsigned first, uint32_t ends)
{
    uint32_t reached = 1u << first, back = ends;

    for (unsigned n = 0; n < states; n++)
        for (unsigned s = 0; s < states; s++)
            for (unsigned e = 0; e < events; e++) {
                int to = step((int)s, (int)e);

                if (to < 0)
                    continue;
                assert_true((unsigned)to < states);
                if (reached >> s & 1)
                    reached |= 1u << to;
                if (back >> to & 1)
                    back |= 1u << s;
            }
    assert_int_equal(reached, (1u << states) - 1);
    assert_int_equal(back, (1u << states) - 1);
}

static int comm_next(int state, int event)
{
    return comm_step((enum comm_state)state, (enum comm_event)event);
}

static int launch_next(int stage, int event)
{
    return launch_step((enum launch_stage)stage, (enum launch_event)event);
}

static int wire_next(int state, int move)
{
    return wire_step((enum wire_state)state, (enum wire_move)move);
}

static void every_state_has_a_way_in_and_out(void **state)
{
    (void)state;
    check_table(comm_next, COMM_STATES, COMM_EVENTS, COMM_MAKING, 1u << COMM_ABORTED);
    check_table(launch_next, LAUNCH_STAGES, LAUNCH_EVENTS, LAUNCH_NONE, 1u << LAUNCH_NONE);
    check_table(wire_next, WIRE_STATES, WIRE_MOVES, WIRE_JOINING, 1u << WIRE_CLOSED);
}

static void who_does_not_live_is_never_ready_again(void **state)
{
    (void)state;
    for (unsigned s = 0; s < COMM_STATES; s++)
        for (unsigned e = 0; e < COMM_EVENTS; e++) {
            int to = comm_step(s, e);

            assert_false(!comm_lives(s) && to >= 0 && comm_lives((enum comm_state)to));
        }
    assert_int_equal(comm_step(COMM_READY, COMM_ABORT), -1);
    assert_int_equal(launch_step(LAUNCH_ROUND, LAUNCH_TAKE), -1);
}

/* The others may launch what TICKET is about. An exchange ends also on a wire that is closed. */
static void a_wire_is_left_in_any_state_but_one(void **state)
{
    (void)state;
    for (unsigned s = 0; s < WIRE_CLOSED; s++)
        assert_int_equal(wire_step(s, WIRE_CLOSE), s == WIRE_TICKET ? -1 : WIRE_CLOSED);
    for (unsigned m = 0; m < WIRE_MOVES; m++)
        assert_true(wire_step(WIRE_CLOSED, m) < 0 || wire_step(WIRE_CLOSED, m) == WIRE_CLOSED);
    assert_int_equal(wire_step(WIRE_CLOSED, WIRE_HEARD), WIRE_CLOSED);
    assert_int_equal(wire_step(WIRE_READY, WIRE_SAY_READY), -1); /* one operation at a time */
}

/* ---- all of it together ---------------------------------------------------------------------- */

enum { COMMS = 2, JOBS = 2, MOST = 1 << 16 };

/* A node: communicator 0 is that of the launch, which is over several GPUs. */
struct node {
    struct gpu_gate gate;
    enum launch_stage stage;
    enum comm_state comm[COMMS];
    uint8_t waited; /* launches since a job has waited */
};

static bool one_abort;

static bool change(struct node *n, unsigned c, enum comm_event event)
{
    int to = comm_step(n->comm[c], event);

    if (to >= 0)
        n->comm[c] = (enum comm_state)to;
    return to >= 0;
}

static bool move(struct node *n, enum launch_event event)
{
    int to = launch_step(n->stage, event);

    if (to >= 0)
        n->stage = (enum launch_stage)to;
    return to >= 0;
}

static bool launching(const struct node *n)
{
    return n->stage == LAUNCH_CALLS && comm_lives(n->comm[0]);
}

/* What must never be. */
static void check_node(const struct node *n)
{
    unsigned aborts = 0;

    for (unsigned c = 0; c < COMMS; c++)
        aborts += n->comm[c] == COMM_ABORTING;
    assert_int_equal(aborts, n->gate.aborts);
    if (launching(n)) {
        assert_int_equal(n->gate.state, GATE_SHUT);
        assert_false(n->gate.job);
    }
    if (one_abort)
        assert_true(aborts <= 1);
    assert_true(n->waited <= 1);
}

/* One of them as gpu_nccl.c does it. @late: for too long already. */
static bool comm_deed(struct node *n, unsigned c, unsigned deed, bool late)
{
    bool live = comm_lives(n->comm[c]), aborts = n->gate.aborts;

    switch (deed) {
    case 0: /* made, or made again */
        if (n->comm[c] == COMM_ABORTED && !(c == 0 && n->stage > LAUNCH_ROOM)) {
            n->comm[c] = COMM_MAKING;
            return true;
        }
        return change(n, c, COMM_MADE);
    case 1: /* only if nobody holds it */
        return !(c == 0 && n->stage > LAUNCH_ROOM) && change(n, c, COMM_RETIRE);
    case 2:
        if (!change(n, c, COMM_FAIL))
            return false;
        if (c == 0 && n->stage > LAUNCH_ROOM)
            gpu_gate_step(&n->gate, GATE_LAUNCH_FAIL);
        return true;
    case 3:
        if (n->comm[c] == COMM_ABORTING)
            return gpu_gate_step(&n->gate, GATE_ABORT_END) && change(n, c, COMM_ENDED);
        if (live || n->comm[c] == COMM_ABORTED)
            return false;
        if (n->comm[c] == COMM_RETIRED) {
            if (n->stage > LAUNCH_ROOM || !gpu_gate_step(&n->gate, GATE_RETIRE))
                return false;
            assert_false(aborts);
        } else if (!gpu_gate_step(&n->gate, late ? GATE_ABORT_LATE : GATE_ABORT)) {
            return false;
        }
        assert_true(late || !launching(n)); /* the rule that the gate is for */
        return change(n, c, COMM_ABORT);
    }
    return false;
}

/* The launch, as gpu_comm.c does it. */
static bool launch_deed(struct node *n)
{
    switch (n->stage) {
    case LAUNCH_NONE:
        return move(n, LAUNCH_TAKE);
    case LAUNCH_ROOM:
        return comm_lives(n->comm[0]) && move(n, LAUNCH_HELD);
    case LAUNCH_COMM:
        return n->comm[0] == COMM_READY && move(n, LAUNCH_READY);
    case LAUNCH_ROUND:
        if (n->comm[0] != COMM_READY || !gpu_gate_step(&n->gate, GATE_LAUNCH))
            return false;
        assert_false(n->gate.job || n->gate.aborts);
        n->waited = (uint8_t)(n->gate.jobs ? n->waited + 1 : 0);
        return move(n, LAUNCH_CALLED);
    case LAUNCH_CALLS:
        if (!comm_lives(n->comm[0]))
            return false;
        gpu_gate_step(&n->gate, GATE_LAUNCH_END);
        return move(n, LAUNCH_OVER);
    case LAUNCH_STAGES:
        break;
    }
    return false;
}

/* Its communicator has failed. */
static bool launch_lost(struct node *n)
{
    if (n->stage <= LAUNCH_ROOM || comm_lives(n->comm[0]) ||
        (n->stage == LAUNCH_CALLS && n->comm[0] != COMM_ABORTED))
        return false;
    gpu_gate_step(&n->gate, GATE_LAUNCH_END);
    return move(n, LAUNCH_OVER);
}

static bool job_deed(struct node *n, unsigned deed)
{
    switch (deed) {
    case 0:
        return n->gate.jobs < JOBS && gpu_gate_step(&n->gate, GATE_JOB_ADD);
    case 1:
        if (n->gate.job || !gpu_gate_step(&n->gate, GATE_JOB_BEGIN))
            return false;
        assert_false(launching(n));
        n->waited = 0;
        return true;
    case 2:
        return n->gate.job && gpu_gate_step(&n->gate, GATE_JOB_END);
    }
    return false;
}

/* @world: what happens because others want it, and not because it is under way. */
static bool node_deed(struct node *n, unsigned deed, bool *ret_world)
{
    *ret_world = deed < COMMS * 3 || deed == COMMS * 5 + 2;
    if (deed < COMMS * 3)
        return comm_deed(n, deed % COMMS, deed / COMMS, false);
    if (deed < COMMS * 5)
        return comm_deed(n, deed % COMMS, 3, deed >= COMMS * 4);
    switch (deed - COMMS * 5) {
    case 0:
        *ret_world = n->stage == LAUNCH_NONE;
        return launch_deed(n);
    case 1:
        return launch_lost(n);
    default:
        return job_deed(n, deed - COMMS * 5 - 2);
    }
}

static struct node nodes[MOST];
static bool quiet[MOST]; /* what is under way can end from here */
static struct arrow {
    unsigned from, to;
} arrows[MOST];
static unsigned nnodes, narrows;

static unsigned node_number(const struct node *n)
{
    unsigned i;

    for (i = 0; i < nnodes; i++)
        if (!memcmp(&nodes[i], n, sizeof *n))
            return i;
    assert_true(nnodes < MOST);
    nodes[nnodes] = *n;
    return nnodes++;
}

static void explore(bool one)
{
    memset(nodes, 0, sizeof nodes);
    memset(quiet, 0, sizeof quiet);
    one_abort = one;
    nnodes = 1;
    narrows = 0;
    nodes[0].gate.one_abort = one;
    for (unsigned i = 0; i < nnodes; i++) {
        quiet[i] = !nodes[i].gate.job && !nodes[i].gate.jobs && !nodes[i].gate.aborts &&
                   nodes[i].stage == LAUNCH_NONE;
        for (unsigned c = 0; c < COMMS; c++)
            quiet[i] &= comm_lives(nodes[i].comm[c]) || nodes[i].comm[c] == COMM_ABORTED;
        for (unsigned deed = 0; deed < COMMS * 5 + 5; deed++) {
            struct node n = nodes[i];
            bool world;

            if (!node_deed(&n, deed, &world))
                continue;
            check_node(&n);
            assert_true(narrows < MOST);
            arrows[narrows++] = (struct arrow){i, node_number(&n)};
            if (world &&
                !(deed < COMMS)) /* nobody is obliged to do it; NCCL does make what it can */
                narrows--;
        }
    }
    for (bool more = true; more;) {
        more = false;
        for (unsigned k = 0; k < narrows; k++)
            if (quiet[arrows[k].to] && !quiet[arrows[k].from])
                more = quiet[arrows[k].from] = true;
    }
    for (unsigned i = 0; i < nnodes; i++)
        assert_true(quiet[i]);
    assert_true(nnodes > 300);
}

static void nobody_calls_while_nccl_launches_and_all_ends(void **state)
{
    (void)state;
    explore(false);
}

static void an_old_nccl_has_one_abort_at_a_time(void **state)
{
    (void)state;
    explore(true);
}

/* ---- the gate alone -------------------------------------------------------------------------- */

static void behind_each_launch_a_job_comes_first(void **state)
{
    struct gpu_gate g = {.state = GATE_OPEN};

    (void)state;
    assert_true(gpu_gate_step(&g, GATE_LAUNCH));
    gpu_gate_step(&g, GATE_JOB_ADD);
    gpu_gate_step(&g, GATE_JOB_ADD);
    assert_false(gpu_gate_step(&g, GATE_JOB_BEGIN));
    assert_true(gpu_gate_step(&g, GATE_LAUNCH_END));
    assert_false(gpu_gate_step(&g, GATE_LAUNCH));
    assert_true(gpu_gate_step(&g, GATE_JOB_BEGIN));
    assert_false(gpu_gate_step(&g, GATE_LAUNCH));
    gpu_gate_step(&g, GATE_JOB_END);
    assert_false(gpu_gate_step(&g, GATE_JOB_BEGIN)); /* only one */
    assert_true(gpu_gate_step(&g, GATE_LAUNCH));
}

static void jobs_go_on_while_a_launch_waits_for_an_abort(void **state)
{
    struct gpu_gate g = {.state = GATE_OPEN};

    (void)state;
    assert_true(gpu_gate_step(&g, GATE_ABORT));
    gpu_gate_step(&g, GATE_JOB_ADD);
    assert_false(gpu_gate_step(&g, GATE_LAUNCH));
    assert_true(gpu_gate_step(&g, GATE_JOB_BEGIN));
    gpu_gate_step(&g, GATE_ABORT_END);
    assert_false(gpu_gate_step(&g, GATE_LAUNCH));
    gpu_gate_step(&g, GATE_JOB_END);
    assert_true(gpu_gate_step(&g, GATE_LAUNCH));
}

static void an_abort_waits_for_a_launch_but_not_for_long(void **state)
{
    struct gpu_gate g = {.state = GATE_OPEN};

    (void)state;
    assert_true(gpu_gate_step(&g, GATE_LAUNCH));
    assert_false(gpu_gate_step(&g, GATE_ABORT));
    assert_false(gpu_gate_step(&g, GATE_RETIRE));
    assert_true(gpu_gate_step(&g, GATE_ABORT_LATE));
    assert_true(gpu_gate_step(&g, GATE_LAUNCH_FAIL));
    assert_true(gpu_gate_step(&g, GATE_ABORT));
    assert_false(gpu_gate_step(&g, GATE_RETIRE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_has_a_way_in_and_out),
        cmocka_unit_test(who_does_not_live_is_never_ready_again),
        cmocka_unit_test(a_wire_is_left_in_any_state_but_one),
        cmocka_unit_test(nobody_calls_while_nccl_launches_and_all_ends),
        cmocka_unit_test(an_old_nccl_has_one_abort_at_a_time),
        cmocka_unit_test(behind_each_launch_a_job_comes_first),
        cmocka_unit_test(jobs_go_on_while_a_launch_waits_for_an_abort),
        cmocka_unit_test(an_abort_waits_for_a_launch_but_not_for_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
