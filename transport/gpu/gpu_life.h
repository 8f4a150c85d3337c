/* gpu_life.h - the lives of communicators, launches and wires, and the gate: who may now make a
 * call that waits for GPUs. Pure. See gpu_life.c for the model. */
#ifndef COMMD_GPU_LIFE_H
#define COMMD_GPU_LIFE_H

#include "shm/util/base.h"

/* ---- a communicator: gpu_nccl.c -------------------------------------------------------------- */

enum comm_state {
    COMM_MAKING,   /* its ranks meet */
    COMM_READY,    /* operations can be called in it */
    COMM_RETIRED,  /* nobody finds it any more; it goes when NCCL has nothing on its GPUs */
    COMM_FAILED,   /* nobody finds it any more; it goes as soon as the gate lets its abort begin */
    COMM_ABORTING, /* threads abort its ranks */
    COMM_ABORTED,  /* they have ended: it is freed when no operation holds it */
    COMM_STATES
};
enum comm_event { COMM_MADE, COMM_RETIRE, COMM_FAIL, COMM_ABORT, COMM_ENDED, COMM_EVENTS };

/* May operations count on it? */
static inline bool comm_lives(enum comm_state state)
{
    return state <= COMM_READY;
}

/* ---- the operation that is being launched: gpu_comm.c ---------------------------------------- */

enum launch_stage {
    LAUNCH_NONE,  /* there is none */
    LAUNCH_ROOM,  /* it waits for room on the streams, and for what has to go for a new
                     communicator */
    LAUNCH_COMM,  /* it waits for its communicator to be ready */
    LAUNCH_ROUND, /* it waits for the gate: its next part is called */
    LAUNCH_CALLS, /* NCCL enqueues the part, in the background */
    LAUNCH_STAGES
};
enum launch_event {
    LAUNCH_TAKE, /* out of the order */
    LAUNCH_HELD, /* it holds a communicator */
    LAUNCH_READY,
    LAUNCH_CALLED,
    LAUNCH_OVER, /* a part of it, or all, is on the streams; or it has failed */
    LAUNCH_EVENTS
};

/* ---- what the commd-gpus of a group's nodes tell each other: gpu_wire.c ---------------------- */

enum wire_state {
    WIRE_JOINING,       /* a thread: joins block */
    WIRE_JOINING_READY, /* likewise; READY is filled in, and goes out then */
    WIRE_OPEN,
    WIRE_READY,  /* READY is under way */
    WIRE_TICKET, /* TICKET is: the other nodes may launch */
    WIRE_CLOSED, /* left, or not joined */
    WIRE_STATES
};
enum wire_move { WIRE_JOINED, WIRE_SAY_READY, WIRE_SAY_TICKET, WIRE_HEARD, WIRE_CLOSE, WIRE_MOVES };

/* The next state; -1: this must not happen in @state. */
int comm_step(enum comm_state state, enum comm_event event);
int launch_step(enum launch_stage stage, enum launch_event event);
int wire_step(enum wire_state state, enum wire_move move);

/* ---- the gate -------------------------------------------------------------------------------- */

enum gate_state {
    GATE_OPEN,
    GATE_CLOSING, /* NCCL is to launch over several GPUs, when the job and aborts have ended */
    GATE_SHUT,    /* it does */
    GATE_FAILED,  /* it did, and has failed: what its own abort waits for may go through */
    GATE_STATES
};
enum gate_event {
    GATE_JOB_ADD, /* one waits */
    GATE_JOB_BEGIN,
    GATE_JOB_END,
    GATE_LAUNCH, /* over several GPUs; asked until it may */
    GATE_LAUNCH_FAIL,
    GATE_LAUNCH_END, /* or it is given up */
    GATE_RETIRE,     /* an abort of a communicator that nobody waits for, on idle GPUs */
    GATE_ABORT,      /* an abort that streams wait for */
    GATE_ABORT_LATE, /* the same, after a while: the launch may wait for it, too */
    GATE_ABORT_END,
};

/* Zeroed: open. */
struct gpu_gate {
    enum gate_state state;
    bool one_abort; /* at a time */
    bool job;       /* one is worked on */
    bool owed;      /* one comes before the next launch */
    unsigned jobs;  /* that wait */
    unsigned aborts;
};

/* True: it may, and has begun or ended. False: not now; nothing has changed, but that a launch that
 * asks closes the gate. */
bool gpu_gate_step(struct gpu_gate *gate, enum gate_event event);

#endif
