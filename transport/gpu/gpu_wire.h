/* gpu_wire.h - what gpu_wire.c, which has the connections, and gpu_agree.c, which has what goes
 * over them, know of each other. */
#ifndef COMMD_GPU_WIRE_H
#define COMMD_GPU_WIRE_H

#include "transport/gpu/gpu_op.h"

/* What a node says when its inputs of an operation are there. */
struct wire_ready {
    uint64_t seq, comm, tie; /* tie: of the first node, random; see gpu_order.c */
    int32_t code, rank;
    uint64_t cell;        /* launch_cell() */
    uint32_t first, part; /* first: the rank that @desc is of */
    struct op_desc desc;
    struct op_balance balance;
    char text[SESSION_TEXT];
};

/* What it says when all nodes have. */
struct wire_ticket {
    uint64_t seq, ticket;
    uint64_t counts; /* op_counts_digest() by what the first node has drawn */
    struct nccl_id id;
};

struct gwire {
    LIST_ENTRY(gwire) link;
    struct gpu *g;
    struct ggroup *gr;  /* borrowed; NULL: nobody here is in it any more */
    struct guser *user; /* borrowed */
    enum wire_state state;
    unsigned pending;           /* events to come */
    struct commd_group *shadow; /* owned */
    uint32_t nnodes, me;
    struct wire_ready *ready;   /* owned; of each node */
    struct wire_ticket *ticket; /* owned; likewise */
    uint64_t fail_ms;           /* the group is broken then; 0: it is not to be */
    bool peer_lost;             /* and NCCL need not be waited for */
    int fail_code;
    char fail_text[SESSION_TEXT];
};

/* gpu_wire.c: tells the other nodes what this one's place in w->ready or w->ticket has. */
void wire_say(struct gwire *w, enum wire_move what);
/* gpu_agree.c: all nodes have said it. */
void agree_ready(struct gwire *w);
void agree_ticket(struct gwire *w);

#endif
