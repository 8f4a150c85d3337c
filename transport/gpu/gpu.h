/* gpu.h - what the files of commd-gpu share: gpu_main.c (turns), gpu_control.c (commd's socket),
 * gpu_device.c (GPUs and their streams), gpu_user.c (users and their shares), gpu_jobs.c (calls
 * that take long), gpu_session.c (a client's socket) with gpu_memory.c (its allocations),
 * gpu_lend.c (ours, for it) and gpu_slot.c (what it announces), gpu_group.c (who does what with
 * whom) with gpu_attach.c (how groups come and go), gpu_launch.c (an operation becomes work on
 * streams), gpu_comm.c (those in which NCCL takes part), gpu_nccl.c (communicators), gpu_agree.c
 * and gpu_wire.c (groups over several nodes). What groups and operations are: gpu_op.h.
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
#include "transport/process/control.h"

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

enum { GROUP_BUCKETS = 1024, HANDLE_BUCKETS = 4096 };

struct gpu {
    uint32_t key; /* random: nobody chooses numbers that share a bucket */
    struct cuda cu;
    struct nccl nccl;
    char why[MSG_TEXT_MAX]; /* there is no GPU that can be used: the reason */
    char runs_on[MSG_TEXT_MAX];
    const char *node, *socket;
    uint64_t settings; /* launch_settings() of what it was started with */
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
    struct control control;
    int epoll;
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

/* gpu_control.c */
void control_hello(struct gpu *g, bool resumed);
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

#endif
