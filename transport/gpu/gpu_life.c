/* gpu_life.c - which states there are, which follow which, and who may call the driver. Pure.
 *
 * Three lives, one table each: a row for each state, with the state that follows each event. What
 * is not in the table is a bug of ours.
 *
 * The gate. Some calls wait for GPUs: what maps or unmaps memory (jobs), and what aborts a
 * communicator of NCCL, which frees some. They wait for all that a GPU has to do, and for the GPUs
 * that reach it, and hold up launches there meanwhile. If one of them begins between NCCL's
 * launches on two GPUs, it waits for the first launch, the first launch waits for the second one,
 * and the second one waits for the call. So while NCCL launches over several GPUs the gate is shut.
 * Who waits at it, and for how long:
 *   a job               until the launch is over; behind each launch one job that waits comes first
 *   a launch            until the job that is worked on, and all aborts, have ended
 *   an abort            until the launch is over or has failed itself, or for a while (..._LATE):
 *                       the launch may wait for what the abort is to end
 *   an abort that       likewise, and until no other abort runs: it would wait for what that one
 *   nobody waits for    is to end, and both would come to their limits at once
 * NCCL before 2.19.1 "does not support multithreaded abort well" (NVIDIA/nccl issue 992): there
 * each abort waits until no other one runs. */
#include "transport/gpu/gpu_life.h"

#include <assert.h>

/* 0 stands for what must not happen. */
#define TO(state) ((state) + 1)

/* clang-format off */
static const unsigned char comm_next[COMM_STATES][COMM_EVENTS] = {
    [COMM_MAKING]   = {[COMM_MADE] = TO(COMM_READY), [COMM_RETIRE] = TO(COMM_RETIRED),
                       [COMM_FAIL] = TO(COMM_FAILED)},
    [COMM_READY]    = {[COMM_RETIRE] = TO(COMM_RETIRED), [COMM_FAIL] = TO(COMM_FAILED)},
    [COMM_RETIRED]  = {[COMM_ABORT] = TO(COMM_ABORTING)},
    [COMM_FAILED]   = {[COMM_ABORT] = TO(COMM_ABORTING)},
    [COMM_ABORTING] = {[COMM_ENDED] = TO(COMM_ABORTED)},
};

static const unsigned char launch_next[LAUNCH_STAGES][LAUNCH_EVENTS] = {
    [LAUNCH_NONE]  = {[LAUNCH_TAKE] = TO(LAUNCH_ROOM)},
    [LAUNCH_ROOM]  = {[LAUNCH_HELD] = TO(LAUNCH_COMM), [LAUNCH_OVER] = TO(LAUNCH_NONE)},
    [LAUNCH_COMM]  = {[LAUNCH_READY] = TO(LAUNCH_ROUND), [LAUNCH_OVER] = TO(LAUNCH_NONE)},
    [LAUNCH_ROUND] = {[LAUNCH_CALLED] = TO(LAUNCH_CALLS), [LAUNCH_OVER] = TO(LAUNCH_NONE)},
    [LAUNCH_CALLS] = {[LAUNCH_OVER] = TO(LAUNCH_NONE)},
};

/* A group that is given up leaves in any state but TICKET. */
static const unsigned char wire_next[WIRE_STATES][WIRE_MOVES] = {
    [WIRE_JOINING]       = {[WIRE_SAY_READY] = TO(WIRE_JOINING_READY),
                            [WIRE_JOINED] = TO(WIRE_OPEN), [WIRE_CLOSE] = TO(WIRE_CLOSED)},
    [WIRE_JOINING_READY] = {[WIRE_JOINED] = TO(WIRE_READY), [WIRE_CLOSE] = TO(WIRE_CLOSED)},
    [WIRE_OPEN]          = {[WIRE_SAY_READY] = TO(WIRE_READY), [WIRE_SAY_TICKET] = TO(WIRE_TICKET),
                            [WIRE_CLOSE] = TO(WIRE_CLOSED)},
    [WIRE_READY]         = {[WIRE_HEARD] = TO(WIRE_OPEN), [WIRE_CLOSE] = TO(WIRE_CLOSED)},
    [WIRE_TICKET]        = {[WIRE_HEARD] = TO(WIRE_OPEN)},
    [WIRE_CLOSED]        = {[WIRE_SAY_READY] = TO(WIRE_CLOSED), [WIRE_HEARD] = TO(WIRE_CLOSED)},
};
/* clang-format on */

int comm_step(enum comm_state state, enum comm_event event)
{
    assert(state < COMM_STATES && event < COMM_EVENTS);
    return comm_next[state][event] - 1;
}

int launch_step(enum launch_stage stage, enum launch_event event)
{
    assert(stage < LAUNCH_STAGES && event < LAUNCH_EVENTS);
    return launch_next[stage][event] - 1;
}

int wire_step(enum wire_state state, enum wire_move move)
{
    assert(state < WIRE_STATES && move < WIRE_MOVES);
    return wire_next[state][move] - 1;
}

/* ---- the gate -------------------------------------------------------------------------------- */

static bool gate_job(struct gpu_gate *gate)
{
    assert(!gate->job);
    if (!gate->jobs || (gate->state != GATE_OPEN && !(gate->state == GATE_CLOSING && gate->owed)))
        return false;
    gate->jobs--;
    gate->job = true;
    gate->owed = false;
    return true;
}

static bool gate_launch(struct gpu_gate *gate)
{
    assert(gate->state <= GATE_CLOSING);
    if (gate->aborts) /* jobs need not wait for them, too */
        return false;
    gate->state = gate->job || gate->owed ? GATE_CLOSING : GATE_SHUT;
    return gate->state == GATE_SHUT;
}

static bool gate_abort(struct gpu_gate *gate, enum gate_event event)
{
    bool waits = gate->state == GATE_SHUT && event != GATE_ABORT_LATE;

    if (event == GATE_RETIRE)
        waits = gate->aborts || gate->state != GATE_OPEN;
    if (waits || (gate->one_abort && gate->aborts))
        return false;
    gate->aborts++;
    return true;
}

bool gpu_gate_step(struct gpu_gate *gate, enum gate_event event)
{
    assert(gate->state < GATE_STATES);
    switch (event) {
    case GATE_JOB_ADD:
        gate->jobs++;
        return true;
    case GATE_JOB_BEGIN:
        return gate_job(gate);
    case GATE_JOB_END:
        assert(gate->job);
        gate->job = false;
        return true;
    case GATE_LAUNCH:
        return gate_launch(gate);
    case GATE_LAUNCH_FAIL:
        if (gate->state != GATE_SHUT)
            return false;
        gate->state = GATE_FAILED;
        return true;
    case GATE_LAUNCH_END:
        gate->owed = gate->jobs;
        gate->state = GATE_OPEN;
        return true;
    case GATE_RETIRE:
    case GATE_ABORT:
    case GATE_ABORT_LATE:
        return gate_abort(gate, event);
    case GATE_ABORT_END:
        assert(gate->aborts);
        gate->aborts--;
        return true;
    }
    return false;
}
