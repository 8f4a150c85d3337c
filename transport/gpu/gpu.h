/* gpu.h - what the files of commd-gpu share: gpu_main.c (turns), gpu_control.c (commd's socket),
 * gpu_device.c (GPUs and their streams), gpu_user.c (users and their shares), gpu_jobs.c (calls
 * that take long), gpu_session.c (a client's socket) with gpu_memory.c (its allocations),
 * gpu_lend.c (ours, for it) and gpu_slot.c (what it announces), gpu_group.c (who does what with
 * whom) with gpu_attach.c (how groups come and go), gpu_launch.c (an operation becomes work on
 * streams), gpu_comm.c (those in which NCCL takes part), gpu_nccl.c (communicators), gpu_agree.c
 * and gpu_wire.c (groups over several nodes).
 *
 * Everything runs on one thread but for jobs, joins of shadow groups, and NCCL's aborts. */
#ifndef COMMD_GPU_H
#define COMMD_GPU_H

#include <assert.h>
#include <pthread.h>
#include <sys/queue.h>

#include <commd/commd.h>

#include "shm/board/board.h"
#include "shm/gpu/session.h"
#include "shm/proto/msg.h"
#include "shm/util/closer.h"
#include "transport/gpu/gpu_life.h"
#include "transport/gpu/gpu_lines.h"
#include "transport/gpu/gpu_order.h"
#include "transport/gpu/gpu_plan.h"
#include "transport/gpu/gpu_share.h"
#include "transport/gpu/nccl.h"

enum {
    GPU_MAX_DEVICES = MSG_MAX_GPUS,
    GPU_MAX_LOCAL = 256, /* ranks of a group on one node */
    /* of one user, on this node */
    GPU_USER_SESSIONS = 512,
    GPU_USER_GROUPS = 2048,
    GPU_USER_NODES = 65536, /* of all its groups over several: tables have a row for each */
    GPU_USER_JOINS = 256,   /* groups whose nodes have not come together */
    GPU_USER_MEMORIES = 32768,
    GPU_USER_DEVICES_MAPPED = 4, /* times what all GPUs together have */
    GPU_SESSION_GROUPS = 1024,
    GPU_SESSION_MEMORIES = 4096,
    GPU_LENT_PART = 4,      /* of a GPU's memory, so much is lent out in all: a quarter */
    GPU_LAST_CODE = -64,    /* of enum commd_result, as far as we believe one */
    GPU_STREAM_DEPTH = 128, /* operations on a stream at a time: a full one would block us */
    GPU_USER_LINES = 4,     /* streams of a GPU for moves: users share them */
    GPU_PARTS = 2,          /* of an operation on a stream: so it always has something to do */
};

struct gpu;
struct gdevice;
struct gsession;
struct gmemory;
struct gmember;
struct ggroup;
struct gop;
struct gcomm;
struct gwire;
struct gwires;

/* ---- jobs: gpu_jobs.c ------------------------------------------------------------------------ */

/* A thread that nobody joins, and that gets no signals. -errno: there can be none. */
int thread_start(void *(*fn)(void *), void *arg, size_t stack);

/* Part of the object that it works on, which stays until @done. */
struct gjob {
    STAILQ_ENTRY(gjob) next;
    void (*work)(struct gjob *); /* on the thread */
    void (*done)(struct gjob *); /* on the loop, some time after */
};

/* Jobs of one user, in their order. Zeroed: none. */
struct glane {
    STAILQ_ENTRY(glane) next;
    STAILQ_HEAD(, gjob) jobs;
    bool waits, made;
};

struct gjobs;
int jobs_new(bool one_abort, struct gjobs **ret);
int jobs_fd(const struct gjobs *jobs); /* readable when jobs_turn() has something to do */
void jobs_add(struct gjobs *jobs, struct glane *lane, struct gjob *job);
void jobs_turn(struct gjobs *jobs);
bool jobs_gate(struct gjobs *jobs, enum gate_event event); /* as gpu_gate_step() */

/* ---- devices: gpu_device.c ------------------------------------------------------------------- */

/* One of the streams of a device. What is launched there ends in its order. */
struct gstream {
    struct gdevice *dev;
    cu_stream s;
    _Atomic uint32_t *passed; /* in a page of ours that the device writes */
    cu_ptr passed_dev;
    uint32_t issued;
    unsigned nflying;
    uint64_t since_ms;             /* nothing has passed, or nothing was there before */
    STAILQ_HEAD(, gflight) flying; /* in the order of their tickets */
    cu_ptr scratch;
    uint64_t scratch_bytes;
    bool growing;
    struct gjob job; /* a larger scratch */
    uint64_t asked, wanted;
    uint64_t failed; /* so many bytes could not be had; @why: */
    char why[128];
};

/* An operation's part on one stream, or one of its parts. */
struct gflight {
    STAILQ_ENTRY(gflight) next;
    struct gop *op;
    uint32_t ticket;
    bool up;
};

enum { SHARE_MOVES, SHARE_NCCL, SHARES }; /* kinds of operations, on their own streams */
enum { STREAM_NCCL, STREAM_MOVES, STREAMS = STREAM_MOVES + GPU_USER_LINES };

struct gdevice {
    struct gpu *g;
    unsigned number;
    cu_device ordinal;
    cu_context ctx;
    struct cu_uuid uuid;
    char name[MSG_NAME_MAX];
    uint64_t bytes;
    int multiprocessors;
    bool open;                  /* sessions that are open may use it */
    char state[MSG_NAME_MAX];   /* "": ok */
    char image[SESSION_TEXT];   /* of jobs: which kernels were loaded, or why none */
    char kernels[SESSION_TEXT]; /* the same of the loop; "": not wanted yet */
    struct gstream stream[STREAMS];
    cu_module module;
    cu_function kernel[GPU_KERNELS];
    void *page;                       /* of `passed` */
    struct gpu_shared shared[SHARES]; /* by users */
    unsigned nsessions;
    uint64_t mapped, operations, moved;
};

/* ---- a client: gpu_session.c, gpu_memory.c, gpu_slot.c --------------------------------------- */

struct guser {
    LIST_ENTRY(guser) link;
    TAILQ_ENTRY(guser) busy_link; /* while it has active sessions or groups */
    uint32_t uid;                 /* of a payer */
    unsigned nsessions, nmemories, ngroups, njoins;
    uint32_t nnodes; /* of its groups over several nodes, all together */
    unsigned line;   /* its stream for moves, on each GPU */
    uint64_t mapped;
    uint32_t weight; /* beside other users */
    struct gpu_share share[GPU_MAX_DEVICES][SHARES];
    struct glane lane;
    TAILQ_HEAD(, gsession) active;
    TAILQ_HEAD(, ggroup) active_groups;
    unsigned nactive, nactive_groups;
    bool busy;
};

/* What descriptors in epoll are about. */
enum gwatch_kind { WATCH_CONTROL, WATCH_JOBS, WATCH_SESSION, WATCH_BELL, WATCH_WIRE };
struct gwatch {
    enum gwatch_kind kind;
    void *of;
};

enum gmemory_state { MEMORY_MAPPING, MEMORY_MAPPED, MEMORY_UNMAPPING };

struct gmemory {
    LIST_ENTRY(gmemory) link;     /* of the session's, while operations may name it */
    STAILQ_ENTRY(gmemory) leaves; /* ... and when none may any more */
    LIST_ENTRY(gmemory) same;     /* IPC: allocations whose handles have the same hash */
    struct gsession *session;     /* borrowed */
    uint32_t id;
    enum gmemory_state state;
    uint64_t leaves_at; /* nothing that is announced from here on names it */
    uint32_t kind, chunks;
    uint64_t bytes;
    struct cu_ipc_mem ipc;
    cu_ptr at;
    struct gchunk {
        uint64_t bytes;
        cu_mem mem;
        int fd;      /* owned, until it is mapped */
    } *chunk;        /* owned; VMM */
    unsigned mapped; /* chunks */
    struct gjob job;
    const char *failed; /* the call that has failed */
    cu_result error;
};

/* What a member has announced: a copy of its slot, checked. */
struct gannounce {
    STAILQ_ENTRY(gannounce) next;
    struct gsession *session; /* borrowed: it stays until all its slots are finished */
    uint64_t n;               /* of the session: its slot and mark */
    struct op_desc desc;
    struct gpu_rank rank;
    uint64_t reads;  /* bytes of its memory that the operation reads */
    uint64_t counts; /* bytes that the operation reads or writes there, whichever is more */
    const char *bad; /* why the operation cannot be done, whoever else takes part; NULL: it can */
    int bad_code;
    uint32_t aux_len;
    uint64_t aux[]; /* counts and addresses that @rank points to */
};

enum gsession_state { SESSION_NEW, SESSION_OPENING, SESSION_OPEN, SESSION_CLOSED };
enum { SESSION_BUCKETS = 256 };

struct gsession {
    LIST_ENTRY(gsession) link;
    TAILQ_ENTRY(gsession) active_link;
    struct gpu *g;
    uint32_t uid;       /* who it is: which groups and memory are its own */
    struct guser *user; /* who is charged */
    struct gsession
        *first; /* borrowed: the session that asked for this one, and ends it; NULL: commd */
    uint32_t client, pid;
    enum gsession_state state;
    bool active;
    bool asking;         /* a job answers its last question: the next one is not read */
    uint64_t unheard_ms; /* since when an announcement waits whose bell was not heard; 0: none */
    unsigned jobs;       /* that refer to the session */
    int sock, bell, region_fd;
    struct gwatch sock_watch, bell_watch;
    struct gdevice *dev;
    struct session_region *region;
    cu_ptr flags; /* the region's flags, as the device sees them */
    bool registered;
    struct gjob job;
    int code;
    char kernels[SESSION_TEXT]; /* if it opened its device: what device_open() says */
    char why[SESSION_TEXT];
    /* slots: announced below @next, finished below @low */
    uint64_t next, low;
    bool finished[SESSION_SLOTS];
    uint64_t aux_held;
    LIST_HEAD(, gmemory) memories[SESSION_BUCKETS];
    STAILQ_HEAD(, gmemory) leaving; /* in the order of leaves_at */
    unsigned nmemories;             /* those that leave among them */
    uint64_t lent;                  /* bytes that commd-gpu lends, among them */
    bool told;                      /* the log has said why its buffers are copied */
    LIST_HEAD(, gmember) members[SESSION_BUCKETS];
    unsigned nmembers;
};

/* ---- groups: gpu_attach.c, gpu_group.c, gpu_launch.c ----------------------------------------- */

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

enum { GROUP_BUCKETS = 1024, HANDLE_BUCKETS = 4096 };

struct gpu {
    uint32_t key; /* random: nobody chooses numbers that share a bucket */
    struct cuda cu;
    struct nccl nccl;
    char why[MSG_TEXT_MAX]; /* there is no GPU that can be used: the reason */
    char runs_on[MSG_TEXT_MAX];
    const char *node, *socket;
    int timeout_ms;
    uint32_t part; /* bytes, at most */
    unsigned log_level;
    struct gpu_lines lines; /* of users */
    int driver;
    unsigned ndevices;
    struct gdevice *device; /* owned */
    uint64_t total_bytes;
    unsigned line[GPU_USER_LINES]; /* users that have it */
    pthread_t loop;
    struct gdevice *current; /* whose context is that of the loop's thread */
    LIST_HEAD(, gmemory) handles[HANDLE_BUCKETS];
    struct gjobs *jobs;
    struct closer *closer;
    struct glane lane; /* of devices */
    int control, epoll;
    struct gwatch control_watch, jobs_watch, wire_watch;
    bool running;
    LIST_HEAD(, guser) users;
    TAILQ_HEAD(, guser) busy;
    LIST_HEAD(, gsession) sessions, closed;
    unsigned nsessions; /* of both */
    LIST_HEAD(, ggroup) groups[GROUP_BUCKETS];
    LIST_HEAD(, ggroup) dead;   /* nobody is in them any more */
    LIST_HEAD(, ggroup) broken; /* by the loss of a commd-gpu: nobody finds them any more */
    struct gwires *wires;
    unsigned ngroups;
    uint64_t looked_ms; /* at the streams, for errors */
    unsigned nflying;
    struct gpu_order order; /* of operations that need other GPUs */
    enum launch_stage stage;
    struct gop *now;       /* borrowed: the one that is being launched; NULL: LAUNCH_NONE */
    uint64_t now_since_ms; /* it has been in @stage */
    uint64_t comms_ms;     /* communicators were looked at */
    LIST_HEAD(, gcomm) comms;
    unsigned nending; /* communicators that do not live */
};

/* Which thread a call is for: the loop's, or one that may wait. */
static inline void assert_loop(const struct gpu *g)
{
    assert(pthread_equal(g->loop, pthread_self()));
}

static inline void assert_thread(const struct gpu *g)
{
    assert(!pthread_equal(g->loop, pthread_self()));
}

/* gpu_main.c */
void gpu_log(const struct gpu *g, unsigned level, const char *format, ...) _printf_(3, 4);
/* A line that a process of @uid caused, within the limit of that user. */
void gpu_log_user(struct gpu *g, uint32_t uid, unsigned level, const char *format, ...)
    _printf_(4, 5);
enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
/* Nothing can be trusted any more: says why and ends the process. */
_Noreturn void gpu_fatal(struct gpu *g, const char *format, ...) _printf_(2, 3);
int gpu_watch(struct gpu *g, int fd, uint32_t events, struct gwatch *w);

/* gpu_user.c */
struct guser *guser_get(struct gpu *g, uint32_t uid);
void guser_weigh(struct guser *u, uint32_t weight); /* 0: as those that nobody has weighed */
void guser_put(struct gpu *g, struct guser *u);     /* freed if nothing is left of it */
void guser_touch(struct gpu *g, struct guser *u);   /* lists of active things have changed */
void users_turn(struct gpu *g);                     /* all have been looked at */
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

/* gpu_control.c */
int control_hello(struct gpu *g);
void control_read(struct gpu *g);
void control_devices(struct gpu *g);

/* gpu_device.c */
void devices_find(struct gpu *g); /* libraries are loaded */
struct gdevice *device_find(struct gpu *g, const struct cu_uuid *uuid);
void device_text(const struct cu_uuid *uuid, char text[48]); /* "GPU-..." */
/* On the jobs' thread: makes what sessions of this device need. 0, or COMMD_E_...; @text: which
 * kernels it has, or why it failed. */
int device_open(struct gdevice *d, char text[SESSION_TEXT]);
cu_result device_use(struct gdevice *d); /* makes its context current; the loop's thread only */
/* Fails on an error that can only be one of the device or of ours. */
void device_check(struct gdevice *d, cu_result r, const char *what);
/* Takes what has ended off the streams; true if something has. */
bool devices_turn(struct gpu *g);
/* Room for @bytes of scratch: 1 yes, 0 not yet, else COMMD_E_... and stream->why. */
int stream_scratch(struct gstream *s, uint64_t bytes);

/* The bucket of a number that a client has chosen. */
static inline unsigned session_bucket(const struct gpu *g, uint32_t id)
{
    return (id * g->key) >> 24;
}

/* gpu_session.c */
void session_new(struct gpu *g, const struct msg_gpu_session *m, int *fd);
void session_del(struct gpu *g, uint32_t client);
void session_read(struct gsession *s);
void session_wake(struct gsession *s); /* its doorbell has rung */
/* The session breaks the rules: nobody else loses by that. */
void session_break(struct gsession *s, const char *format, ...) _printf_(2, 3);
void session_close(struct gsession *s, const char *why);
void session_answer(struct gsession *s, uint32_t id, int code, int rank, const char *text);
void session_listen(struct gsession *s);
void session_send(struct gsession *s, const struct session_msg *m, const int *fds, unsigned nfds);
/* What a client gives as code and text of a failure, @len bytes in @text, as it may be told to
 * others. */
int client_code(int code);
void client_text(const char *given, size_t len, char *text);
void session_deactivate(struct gsession *s);
void sessions_sweep(struct gpu *g); /* frees closed ones of which nothing is left */

/* gpu_memory.c */
void memory_add(struct gsession *s, const struct session_msg *m, int *fds, unsigned nfds);
struct gmemory *memory_get(struct gsession *s, uint32_t id); /* mapped, and not freed */
void memory_forget(struct gsession *s, uint32_t id);
void memory_leave_all(struct gsession *s);
void memory_turn(struct gsession *s); /* unmaps what nothing uses any more */
const char *memory_full(struct gsession *s,
                        uint64_t bytes); /* NULL, or why it has no room for more */
/* One that is not mapped yet, and counts from now on; each chunk as long as all. NULL: no memory.
 */
struct gmemory *memory_new(struct gsession *s, uint32_t id, uint32_t kind, uint64_t bytes,
                           uint32_t chunks);
void memory_free(struct gmemory *mem);
void memory_map(struct gmemory *mem, void (*work)(struct gjob *), void (*done)(struct gjob *));
void memory_mapped(struct gmemory *mem); /* that has been done: it may be named */
/* On the jobs' thread; false: what failed is noted. */
bool memory_tried(struct gmemory *mem, const char *what, cu_result r);
void memory_undo(struct gmemory *mem); /* likewise: what was done until then; that stays noted */

/* gpu_lend.c */
void lend_memory(struct gsession *s, const struct session_msg *m);

/* gpu_slot.c */
bool slot_turn(struct gsession *s);        /* true if something was announced */
bool slot_waits(const struct gsession *s); /* a look after the asleep flag: something is there */
void slot_finish(struct gsession *s, uint64_t n);
void slot_succeed(struct gsession *s, uint64_t n); /* its stream stores done */
void slot_retell(struct gsession *s, uint64_t n, int code, const char *text); /* likewise */
/* All operations that have not ended fail; nothing else is done any more. */
void slots_fail_all(struct gsession *s, int code, const char *text);
void slot_fail(struct gsession *s, uint64_t n, int code, int rank, uint32_t pid, const char *text);
bool slot_ready(const struct gsession *s, uint64_t n);
void announce_free(struct gannounce *a);

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
