/* context.h - a connection to commd (control.c), how it is made again (back.c), how one is found
 * (autostart.c), and what every call asks first (context.c). */
#ifndef COMMD_CLIENT_CONTEXT_H
#define COMMD_CLIENT_CONTEXT_H

#include <pthread.h>

#include "client/lib/context/error.h"
#include "shm/util/held.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

/* Takes @item out of a list, if it is in it; @link: the member that points to the next one. */
#define list_remove(head, item, link)                                                              \
    do {                                                                                           \
        __typeof__(head) *at_ = &(head);                                                           \
        while (*at_ && *at_ != (item))                                                             \
            at_ = &(*at_)->link;                                                                   \
        if (*at_)                                                                                  \
            *at_ = (*at_)->link;                                                                   \
    } while (0)

struct membership;
struct awaited;
struct in_group;
struct question;

/* Calls into upper layers, which this one does not know. */
struct context_hooks {
    /* The context has connected to another commd, which knows none of its arenas. */
    void (*reconnected)(struct commd_context *ctx);
    /* With the context's lock held: an answer about ranks that have not come. */
    void (*absent)(struct commd_context *ctx, const struct msg_absent *m);
    /* With plock held, some times a second: looks for reasons to end operations on GPUs. */
    void (*watch)(struct commd_context *ctx);
};

/* What it takes to come back when the connection has ended: back.c. */
struct back {
    uint8_t key[MSG_KEY];  /* by which commd knows this process */
    struct in_group *kept; /* owned: the groups of this process that commd knows */
    unsigned nkept;
    int sock;           /* owned: the hello is out, and not answered; -1: there is none */
    int64_t since_ms;   /* when it was missed; 0: it is there */
    int64_t next_ms;    /* no try before */
    int64_t refused_ms; /* since when nobody listens; 0: somebody does */
    int error;          /* errno of the last try */
    int denied;         /* COMMD_E_*: commd does not let us in; 0: it has not said so */
    char why[MSG_TEXT_MAX];
    bool warned;
};

struct commd_context {
    pid_t pid;           /* of the process that connected */
    unsigned generation; /* how many forks led to that process */
    bool search;         /* no socket was named: socket_path is where one was found */
    char socket_path[256];
    char node[MSG_NAME_MAX];
    uint64_t incarnation;
    uint32_t version; /* that commd speaks */
    bool commd_seen;  /* commd is in our pid namespace, or in one below */
    int64_t timeout_ms;
    int64_t warn_ms; /* a rank that waits for so long says so on stderr; 0: never */
    /* what commctl shows of this process before it is in a group; size 0: nothing */
    char waits_for[MSG_GROUP_MAX];
    unsigned waits_rank, waits_size;
    commd_interrupt_fn interrupt;
    void *interrupt_arg;

    const struct context_hooks *hooks; /* static: calls into upper layers */

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t cond;
    int sock;           /* -1: commd is gone */
    _Atomic bool lost;  /* the connection ended */
    bool reading;       /* a thread reads for all threads that wait, or comes back */
    uint64_t looked_ms; /* when control_lost() has looked at the socket last */
    struct back back;
    uint32_t next_req;
    struct awaited *awaited;    /* borrowed, from wait_begin() to wait_end() */
    struct question *questions; /* borrowed: of operations that wait for long */
    int doorbell;               /* of the engine that runs; -1: none yet. Its number stays */
    struct commd_group *groups;

    /* the progress thread (async/progress.c) */
    pthread_mutex_t plock;
    pthread_cond_t pcond; /* one of these stopped sleeping */
    struct asleep {
        bool now;
        uint64_t times;
    } asleep[2]; /* on bells of boards: the progress thread, and the thread that stands in for it */
    _Atomic bool
        stood_in;   /* a waiting thread does what the progress thread does: progress_stand_in() */
    unsigned steps; /* that the thread which stands in has taken */
    pthread_t thread;
    bool thread_up;
    _Atomic bool stop;
    _Atomic uint32_t kick; /* futex */
    struct crowd crowd;    /* of the progress thread's yields */
    struct membership *active;
    struct commd_work *finished; /* to be told without the lock (works_tell()), oldest first */
    struct commd_work **finished_tail;
    bool telling; /* a thread tells them */
    pthread_t teller;
    struct commd_work *landing; /* works whose results are on their way to a GPU */
    bool watches_gpu;           /* an operation waits for a GPU, which rings no bell */
    unsigned gpu_naps;          /* sleeps in a row because of that */

    struct device *_Atomic device; /* owned by client/lib/device/; NULL: nothing was on a GPU yet */
};

/* ---- waiting, in whatever call --------------------------------------------------------------- */

enum {
    HOPE_CHECK_EVERY = 64, /* looks between looks at the reasons to give up */
    WAIT_SLICE_MS = 50,    /* longest sleep: the interrupt hook and commd's socket are looked at */
};

/* How long a sleep may last that has to end at @deadline_ms, -1: never. At least 1. */
static inline int sleep_limit_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms < 0 ? WAIT_SLICE_MS : deadline_ms - (int64_t)now_ms();

    return (int)MAX(1, MIN(left, (int64_t)WAIT_SLICE_MS));
}

/* The application's wish to stop (Ctrl-C): only asked on the caller's own thread. */
static inline bool context_interrupted(const struct commd_context *ctx)
{
    return ctx->interrupt && ctx->interrupt(ctx->interrupt_arg);
}

/* The same without the lock, which is held before and after: the hook may wait for another one. */
static inline bool context_interrupted_unlocked(struct commd_context *ctx)
{
    bool stop;

    if (likely(!ctx->interrupt))
        return false;
    pthread_mutex_unlock(&ctx->lock);
    stop = context_interrupted(ctx);
    pthread_mutex_lock(&ctx->lock);
    return stop;
}

/* Is it time to ask the application, in a wait of many sleeps? It is asked every WAIT_SLICE_MS, and
 * not before: the hook may wait for a lock that other threads hold for milliseconds, as Python's,
 * and most waits are shorter. *asked_ms: when it was asked last; 0 when the wait begins. */
static inline bool context_interrupt_due(const struct commd_context *ctx, uint64_t *asked_ms)
{
    uint64_t now = ctx->interrupt ? now_ms() : 0;

    if (likely(!now))
        return false;
    if (!*asked_ms)
        *asked_ms = now;
    if (likely(now - *asked_ms < WAIT_SLICE_MS))
        return false;
    *asked_ms = now;
    return true;
}

static inline bool context_interrupted_late(const struct commd_context *ctx, uint64_t *asked_ms)
{
    return context_interrupt_due(ctx, asked_ms) && context_interrupted(ctx);
}

/* ---- context.c ------------------------------------------------------------------------------- */

unsigned fork_generation(void); /* forks between this process and the first that connected */
void fork_counted(void);        /* in the child of a fork */
/* 0, or COMMD_E_FORKED in a process that did not connect itself. */
int usable(const struct commd_context *ctx, const char *op);
/* CLOCK_MONOTONIC, ms. -1: none, if @timeout_ms is -1 or the clock will not reach its end. */
int64_t deadline_in(int64_t timeout_ms);

/* ---- control.c ------------------------------------------------------------------------------- */

int control_open(struct commd_context *ctx, int64_t deadline_ms);
void control_close(struct commd_context *ctx);
/* Before control_close(), in the process that connected: commd shall see that the context ends. */
void control_end(struct commd_context *ctx);
/* Sends a message about a group. -ENOTCONN if no commd is there that knows it: another one would
 * take it for a breach of protocol. */
int control_send_of(struct commd_context *ctx, uint64_t group, const struct msg *msg);
/* Leaves the group: if no commd is there now, the next one learns of it. */
void control_leave(struct commd_context *ctx, uint64_t group, uint32_t ops);
/* Sends CLIENT_ABORT, likewise. -ENOTCONN: no commd that knows the group will come. */
int control_abort(struct commd_context *ctx, const struct msg *msg);
int control_abort_locked(struct commd_context *ctx, const struct msg *msg);
/* Is no commd there that knows the group? Then this tries to come back, without waiting. Takes the
 * lock. */
bool control_lost(const struct membership *g);
/* The rest with the lock held: parts of it that back.c needs. */
int control_send_locked(struct commd_context *ctx, const struct msg *msg);
void control_ask_again(struct commd_context *ctx, struct awaited *w);
/* Its join says of the group that it follows what commd does not know of that. True: something else
 * than before. */
bool control_tells_gone(struct awaited *w);
/* A thread waits for the @answer to a question, whose number becomes @w->req, until
 * control_wait_end(). control_wait_slice() drops the lock, for a moment or until something came. */
void control_wait_begin(struct commd_context *ctx, enum msg_type answer, struct awaited *w);
void control_wait_end(struct commd_context *ctx, struct awaited *w);
void control_wait_slice(struct commd_context *ctx);
/* Leaves a group that nobody waits for any more. */
void control_leave_unwanted(struct commd_context *ctx, uint64_t group);
bool control_is_lost(struct commd_context *ctx);

/* Registered memory at commd, see client/lib/arena/. */

/* Registers the arena and waits for the answer: 0 or COMMD_E_*. */
int control_arena_add(struct commd_context *ctx, uint64_t arena, size_t size, int fd);
/* Registers it without waiting for an answer; ends it. */
void control_arena_again(struct commd_context *ctx, uint64_t arena, size_t size, int fd);
void control_arena_del(struct commd_context *ctx, uint64_t arena);
/* Asks for @arena of @rank. False: there is no commd to ask. True: control_arena_asked() has to be
 * called until it is true, or control_arena_cancel() once. */
bool control_arena_ask(const struct membership *g, unsigned rank, uint64_t arena,
                       struct awaited *w);
/* Does not wait. True: the question has ended; w->fd is the arena, or -1. */
bool control_arena_asked(const struct membership *g, struct awaited *w);
void control_arena_cancel(const struct membership *g, struct awaited *w);

/* Asks for a session at commd-gpu: its socket. 0 or COMMD_E_*. */
int control_gpu_ask(struct commd_context *ctx, int *ret_sock);

/* ---- control_join.c -------------------------------------------------------------------------- */

enum { RECOVERY_VERSION = 11 }; /* of MSG_VERSION, from which on commd knows recoveries, WITHDRAW */

/* Sends the JOIN, whose number becomes @w->req, and waits for its answer. */
int control_join(struct commd_context *ctx, const struct msg *msg, struct awaited *w,
                 int64_t deadline_ms);

/* ---- control_hello.c --------------------------------------------------------------------------
 */

/* Fills all but what back_claim() does. */
void control_say_hello(const struct commd_context *ctx, struct msg_client_hello *hello);

/* ---- back.c: all with the lock held ---------------------------------------------------------- */

/* commd has made this process a member of the group; it has left, or aborted it. */
void back_joined(struct commd_context *ctx, uint64_t group, bool over_nodes);
void back_left(struct commd_context *ctx, uint64_t group);
void back_aborted(struct commd_context *ctx, uint64_t group, const char *text);
bool back_knows(struct commd_context *ctx, uint64_t group);
/* Fills what the hello says of the time before. 0 or -ENOMEM; the lists are the caller's. */
int back_claim(struct commd_context *ctx, struct msg_client_hello *hello);
/* commd has welcomed us on *@sock, which becomes the context's. */
void back_welcome(struct commd_context *ctx, int *sock, const struct msg_welcome *welcome);
/* One step, in which it waits for @wait_ms at most. Is the connection there? */
bool back_try(struct commd_context *ctx, int wait_ms);
/* There is no commd, and none is to be expected. */
bool back_is_over(const struct commd_context *ctx);
/* Drops the lock until another thread has taken a step, for @wait_ms at most. */
void back_wait_others(struct commd_context *ctx, int wait_ms);
/* Some steps. 0: go on, also if it is not there yet; else COMMD_E_*. */
int back_wait(struct commd_context *ctx, const char *op, int64_t deadline_ms);
/* Waits for a moment until commd is there, if it is being restarted. */
void back_soon(struct commd_context *ctx);
/* Waits until commd is there: 0 or COMMD_E_*. */
int back_need(struct commd_context *ctx, const char *op);
void back_fini(struct commd_context *ctx);

/* ---- job.c ----------------------------------------------------------------------------------- */

/* What commd knows group @name by: with the job of this process, unless it begins with "/". 0 or
 * COMMD_E_INVALID. */
int job_name_of(const char *name, char ret_name[MSG_GROUP_MAX]);

/* ---- join_warn.c ----------------------------------------------------------------------------- */

/* Says on stderr that this rank has waited for @waited_ms, and for which ranks; or nothing, if
 * another rank of this node says it. @speaker: -1 at first; the caller closes it when the join
 * ends. False: commd has not said which ranks are missing, so the caller calls again later; but not
 * if this is the @last call. */
bool join_warn(const struct commd_context *ctx, const struct msg_client_join *join,
               int64_t waited_ms, bool last, int *speaker);

/* ---- service.c ------------------------------------------------------------------------------- */

/* Is a service meant to run on this node? @root: "", except in tests. @why: the file that says so.
 */
bool service_expected(const char *root, char *why, size_t size);

/* ---- autostart.c ----------------------------------------------------------------------------- */

/* Finds a daemon, or starts one. 0 or COMMD_E_*; *ret_left: there was one, but it ended in this
 * moment, which is a reason to search again. */
int autostart_search(char *ret_path, size_t size, int64_t deadline_ms, int *ret_sock,
                     bool *ret_left);

#endif
