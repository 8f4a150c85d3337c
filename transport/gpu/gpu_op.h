/* gpu_op.h - groups of commd-gpu, their operations, and the communicators in which these run: what
 * gpu_attach.c, gpu_group.c, gpu_launch.c, gpu_comm.c, gpu_nccl.c, gpu_agree.c and gpu_wire.c
 * share. gpu.h says what each file does. */
#ifndef COMMD_GPU_OP_H
#define COMMD_GPU_OP_H

#include "transport/gpu/gpu.h"

/* A session as a rank of a group. */
struct gmember {
    LIST_ENTRY(gmember) link; /* of the session */
    struct gsession *session; /* borrowed */
    struct ggroup *group;     /* borrowed */
    uint32_t id;              /* the client's number for it */
    uint32_t rank, at;        /* at: place in group->member */
    uint64_t next;            /* desc.seq of the operation that it announces next */
    STAILQ_HEAD(, gannounce) announced;
};

/* A GPU of this node in a group. */
struct gunit {
    uint32_t number; /* in the group */
    struct gdevice *dev;
    uint32_t nranks;
    uint16_t at[SESSION_MAX_RANKS]; /* places in group->member, in the order of ranks */
};

struct ggroup {
    LIST_ENTRY(ggroup) link;
    TAILQ_ENTRY(ggroup) active_link;
    struct gpu *g;
    uint32_t uid;
    struct guser *user;
    uint64_t id, epoch, first;
    char name[64];
    uint32_t world, nnodes, me, nunits;
    struct session_unit *units; /* owned */
    uint16_t *unit_of_rank;     /* owned */
    uint32_t nlocal;
    uint32_t *local_rank;    /* owned; ascending */
    struct gmember **member; /* owned; nlocal entries; NULL: has not come yet */
    unsigned nmembers;       /* that are here */
    unsigned arrived;        /* of them, that have announced operation `next` */
    uint32_t nhere;
    struct gunit *here; /* owned: units of this node */
    uint64_t next;
    struct gop *op;  /* owned: operation `next`, all members of this node have announced it */
    unsigned flying; /* operations of the group that have been launched */
    bool active;
    int broken; /* COMMD_E_..., 0: it is not */
    int broken_rank;
    uint32_t broken_pid;
    char broken_text[SESSION_TEXT];
    struct gwire *wire; /* borrowed; over several nodes */
};

/* gpu_group.c says what they mean. */
enum gop_state { OP_INPUTS, OP_ORDER, OP_PARTS, OP_FLYING };

/* An operation that all members of this node have announced. */
struct gop {
    struct ggroup *group;
    uint64_t seq;
    enum gop_state state;
    unsigned ready;         /* the inputs of members before this one are there */
    unsigned streams;       /* flights that are up */
    struct gflight *flight; /* the three lie behind @of. GPU_PARTS times group->nhere entries */
    struct gpu_plan *plan;  /* nhere */
    struct gpu_rank *ranks; /* nlocal, unit by unit */
    bool planned;           /* launch_plan() */
    bool counted;           /* user_count() */
    uint64_t waits;         /* user_may(): bits, of units here */
    bool failed;            /* its results say so, although it is on streams, or will be */
    /* only if the operation needs other GPUs: */
    struct gpu_order_op order;
    struct gcomm *comm; /* held: comm_take(); NULL: no communicator that all nodes have */
    struct nccl_id id;  /* to make a communicator with */
    uint32_t round;
    unsigned nof;
    struct gannounce *of[]; /* owned; nlocal entries, by place */
};

/* One rank of a communicator for each unit of this node; see gpu_nccl.c. */
struct gcomm {
    LIST_ENTRY(gcomm) link;
    struct gpu *g;
    uint32_t uid; /* for whom it was made */
    uint32_t nunits, nhere;
    uint64_t number; /* follows from its id: the same on all nodes */
    unsigned users;  /* operations that hold it */
    unsigned flying; /* operations that hold it and are on streams */
    enum comm_state state;
    uint64_t since_ms; /* in @state, or an abort has begun since for which its own may wait */
    uint64_t used_ms;
    atomic_uint abort_next;  /* the rank here that is aborted next */
    atomic_uint aborts_left; /* threads that have not ended: they use it until then */
    char why[SESSION_TEXT];
    struct cu_uuid *units; /* behind @here; nunits entries, in the order of ranks */
    struct gcomm_rank {
        uint32_t number;
        nccl_comm comm; /* owned */
        struct gdevice *dev;
    } here[]; /* nhere */
};

/* gpu_user.c */
/* May the operation have its turn, as far as users and their shares of its GPUs go? */
bool user_may(struct gop *op);
bool user_beside(const struct gop *op); /* other users were on its GPUs lately */
/* It may, but waits until others on this GPU have ended. */
void user_waits(struct gop *op, unsigned unit);
/* The operation has its turn, and waits no more: its user is charged. */
void user_charge(struct gop *op);
/* Counted is what has its turn, and ends without a client's doing. */
void user_count(struct gop *op);
void user_uncount(struct gop *op);

/* gpu_attach.c */
void group_attach(struct gsession *s, const struct session_msg *m, size_t len);
void group_detach(struct gmember *m, const char *how);
void group_leave_all(struct gsession *s, const char *how);
struct gmember *member_find(struct gsession *s, uint32_t id);
void groups_sweep(struct gpu *g);

/* gpu_group.c */
void group_announced(struct gmember *m, struct gannounce *a);
bool group_turn(struct ggroup *gr);
/* All that is pending fails, and all that is announced later. */
void group_break(struct ggroup *gr, int code, int rank, uint32_t pid, const char *text);
void group_rest(struct ggroup *gr);
/* The operation fails for all members of this node; frees it. */
void op_fail(struct gop *op, int code, int rank, uint32_t pid, const char *text);
/* An operation has failed that is on streams, or will be: what its members find when the streams
 * have passed it. */
void op_retell(struct gop *op, int code, const char *text);
void op_landed(struct gflight *f); /* its stream has passed it */
/* The pending operation of a group that is broken ends. */
void group_drop_op(struct ggroup *gr);
bool op_same(const struct op_desc *a, const struct op_desc *b);
void op_launched(struct ggroup *gr); /* its operation is on the streams: the next one comes */
void op_mismatch_text(uint32_t rank_a, const struct op_desc *a, uint32_t rank_b,
                      const struct op_desc *b, char text[SESSION_TEXT]);
void op_counts_text(const struct ggroup *gr, const struct op_balance *bal, char text[SESSION_TEXT]);
/* Of the counts that its members here say; @key: as of op_balance_add_by(). */
void op_balance_of(const struct gop *op, uint64_t key, struct op_balance *bal);
/* What the counts of the members here add to an agreement between nodes: nobody who does not know
 * @key makes others that agree. Of no counts: 0. */
uint64_t op_counts_digest(const struct gop *op, uint64_t key);
/* Do all ranks give the same counts? Then so do the digests of nodes that agree. Else each pair of
 * ranks has one of its own, and what is sent and what is received add up to zero. */
bool op_counts_same(const struct gop *op);
#define OP_COUNTS_DIFFER "the ranks give different counts; the group can still be used"

/* gpu_comm.c */
/* The operation's inputs here are there, and it needs other GPUs. False: ask again. */
bool comm_ready(struct gop *op);
bool comm_drop(struct gop *op);        /* false: too late, it is being launched */
void comm_part_landed(struct gop *op); /* not the last one */
void comm_landed(struct gop *op);
bool comm_turn(struct gpu *g);

/* gpu_nccl.c */
struct gcomm *comm_find(const struct ggroup *gr); /* NULL: none of its GPUs */
/* The operation holds @c, instead of what it held; NULL: none. */
void comm_take(struct gop *op, struct gcomm *c);
/* May another one be made for the group? What has to go before is retired, and has gone. */
bool comm_room(const struct ggroup *gr);
struct gcomm *comm_begin(struct gop *op); /* NULL: it cannot be */
/* Has NCCL enqueued everything, or made the communicator? False also if that has failed. */
bool comm_settled(struct gpu *g, struct gcomm *c, const char *what);
/* All that runs in the communicator ends with that error. */
void comm_fail(struct gpu *g, struct gcomm *c, const char *format, ...) _printf_(3, 4);
void comm_failed(struct gpu *g, struct gcomm *c, nccl_comm comm, nccl_result r, const char *what);
void comm_peer_lost(struct ggroup *gr, const char *why);
int comm_new_id(struct gpu *g, struct nccl_id *ret, char why[SESSION_TEXT]);
unsigned comm_count(const struct gpu *g, const struct gdevice *d);
void comms_turn(struct gpu *g);
/* The communicator's state follows the event, which must be one of that state. */
void comm_change(struct gcomm *c, enum comm_event event);
/* Is one of them in @state? */
bool comms_any(const struct gpu *g, enum comm_state state);

/* gpu_agree.c */
/* Its inputs here are there, and it can be launched in parts of @part bytes; or @code: what is
 * wrong with it. */
void wire_ready(struct gop *op, uint32_t part, int code, int rank, const char *text);

/* gpu_wire.c */
/* NULL, or why the group cannot be; then @ret_code may be set. */
const char *wire_open(struct ggroup *gr, int *ret_code);
void wire_broken(struct ggroup *gr);
void wire_close(struct ggroup *gr);          /* nobody here is in it any more */
void wire_free(struct ggroup *gr);           /* and nothing is pending */
bool wire_promised(const struct ggroup *gr); /* other nodes may launch its operation */
void wire_turn(struct gpu *g);
void wires_sweep(struct gpu *g);
bool wires_told(const struct gpu *g); /* a thread has something to say to the loop */
bool wires_wait(
    const struct gpu *g); /* a group is to be broken, at a time for which nobody rings */

/* gpu_launch.c */
/* Plans of all units here. NULL, or why it cannot be done. */
const char *launch_plan(struct gop *op);
struct gstream *launch_stream(const struct gop *op); /* for moves on its one GPU */
void launch_local(struct gop *op);
uint64_t launch_scratch(const struct gop *op, unsigned unit); /* bytes that its stream needs */
void launch_phase(struct gop *op, unsigned unit, struct gstream *s, uint32_t round,
                  enum gpu_phase phase);
/* The entry for the part that is launched now, by op->round. */
struct gflight *launch_flight(const struct gop *op, unsigned unit);
void launch_end(struct gop *op, unsigned unit, struct gstream *s);  /* done words, and a ticket */
void launch_part(struct gop *op, unsigned unit, struct gstream *s); /* a ticket: it has more */
/* The bytes of a part that this node wishes, and gpu_plan_cell() of this node; all nodes cut it by
 * the least wish and the largest cell. */
uint32_t launch_wish(const struct gop *op);
uint64_t launch_cell(const struct gop *op);
void launch_cut(struct gop *op, uint32_t part, uint64_t cell);

#endif
