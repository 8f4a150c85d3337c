/* session.h - this process at commd-gpu: its sessions, the memory and the operations that it has
 * told commd-gpu of. What both sides agree on is in shm/gpu/session.h, the model in session.c. */
#ifndef COMMD_CLIENT_SESSION_H
#define COMMD_CLIENT_SESSION_H

#include "client/lib/device/staged.h"
#include "shm/gpu/session.h"

struct exported;

/* Memory that commd-gpu lends: lent.c. */
struct lent {
    struct lent *next;
    uint32_t id;
    cu_ptr at;
    size_t bytes;
    uint64_t gpus; /* bits: the GPUs whose streams reach it */
};

enum announced_state {
    ANNOUNCED_CALLED,   /* its stream has not come to it */
    ANNOUNCED_READY,    /* its input is there, and its limit runs */
    ANNOUNCED_WARNED,   /* as READY; that it waits for long was said on stderr, or another rank says
                           it */
    ANNOUNCED_GIVEN_UP, /* commd-gpu has been asked to end it */
    ANNOUNCED_PAST,     /* the group agrees anew, or is left: commd-gpu is not asked to end it */
    ANNOUNCED_ENDED,    /* its result is in it */
};

/* What tells of its failure. CALL: its own call has, since it was declined. */
enum announced_tells { TELLS_WORK, TELLS_NEXT_CALL, TELLS_CALL };

/* An operation that has been announced. */
struct announced {
    struct gate gate;
    _Atomic int refs; /* its work's, and the slot's until the next operation takes the slot */
    struct session *session;
    struct device_group *group; /* borrowed; NULL: it has been left. Under session.pend */
    uint64_t n, seq;
    uint32_t aux_len;
    int coll;
    uintptr_t lo, hi; /* the memory that it writes lies between these */
    cu_context ctx;
    enum announced_tells tells;
    int64_t limit_ms;
    /* under pend */
    enum announced_state state;
    int64_t since_ms, deadline_ms; /* of READY */
    struct lent *lent;             /* owned, until it has landed; NULL: none */
    struct commd_error error;      /* of ENDED; code 0: none */
};

/* Does the operation end when its result has been copied out of lent memory (lent.c)? Else it ends
 * when commd-gpu says so. */
static inline bool announced_lands(const struct announced *a)
{
    return a->gate.landed != a->gate.done;
}

struct session {
    /* older sessions, of any GPU; streams may still wait for flags of lost ones */
    struct session *next;
    struct commd_context *ctx;
    bool first; /* commd made this one; the context's other sessions end with it */
    int gpu;
    struct cu_uuid uuid;
    uint32_t nccl;
    int sock, bell;         /* -1 once the session is lost and nobody uses them: session_shut() */
    _Atomic unsigned users; /* threads that use sock without holding calls */
    struct session_region *region;
    cu_ptr flags; /* address of region->flags for streams */
    _Atomic bool lost;
    char why[SESSION_TEXT]; /* of a lost session; written before `lost` */

    pthread_mutex_t calls; /* held for questions and announcements; guards what follows: */
    uint64_t count;        /* operations announced */
    uint32_t next_id;
    size_t aux_at;
    struct exported *memory;  /* owned */
    struct exported *leaving; /* owned; to be forgotten when no pending operation names it */
    unsigned looks, looked;   /* for memory that was freed: calls, entries before the next one */

    _Atomic uint32_t *landed; /* SESSION_SLOTS words that our streams write; NULL: not needed yet */
    cu_ptr landed_at;
    size_t lent_limit;

    pthread_mutex_t pend;                   /* held for moments only, never around a call of CUDA */
    struct announced *slots[SESSION_SLOTS]; /* referenced; the last operation that took the slot */
    struct lent *lent;                      /* owned; not in use, used last first */
    size_t lent_used, lent_kept;            /* bytes: in use, and not */
    uint64_t lent_returns;                  /* how often lent memory was given back */
};

/* ---- session.c ------------------------------------------------------------------------------- */

/* The context's session for GPU @gpu of this process; a CUDA context is current. Makes a session if
 * there is none that works. COMMD_E_*: there cannot be one. */
int session_get(struct device *dev, int gpu, struct session **ret_session);
/* Sends @m (with fds), and waits for the answer to its id. */
int session_ask(struct session *s, const struct session_msg *m, size_t len, const int *fds,
                unsigned nfds);
/* The same, where the answer has the question's type and a descriptor; ret_fd NULL: it has not. */
int session_ask_fd(struct session *s, const struct session_msg *m, size_t len, const int *fds,
                   unsigned nfds, struct session_msg *ret, int *ret_fd);
int session_tell(struct session *s, const struct session_msg *m);
/* Closes the descriptors, if the session is lost and no thread uses them any more. */
void session_shut(struct session *s);
/* commd-gpu is gone, or cannot work any more. */
void session_lose(struct session *s, const char *why);
/* The socket stays open until session_unuse(). False: the session is lost. */
bool session_use(struct session *s);
void session_unuse(struct session *s);

/* ---- session_ends.c -------------------------------------------------------------------------- */

/* The session is lost: ends all pending operations. */
void session_release(struct session *s);
/* Has @a ended? Then its result is in it. */
bool session_ended(struct announced *a);
/* The limit of @a begins. With pend held, or before @a is announced. */
void announced_begin(struct announced *a, enum announced_state to, int64_t now);
/* The group's operations that have not ended become PAST; @leave: they forget the group. */
void session_past(struct session *s, struct device_group *dg, bool leave);
/* Takes the results of the group's operations that have ended: a stream may have seen an end that
 * no thread has looked at yet. */
void session_collect(struct device_group *dg);
/* Has an operation failed that no call has told of? Then the thread's last error is that: its code,
 * or 0. */
int session_tell_failure(struct device_group *dg);
void session_watch(struct session *s);
void sessions_watch(struct device *dev);
void announced_unref(struct announced *a);

/* ---- session_memory.c ------------------------------------------------------------------------ */

enum { MEMORY_ALONE = 1, MEMORY_ELSEWHERE = 2 };
/* Where [p, p + bytes) lies in memory that commd-gpu has mapped; tells commd-gpu of that memory if
 * it has not yet. COMMD_E_*, or MEMORY_ALONE: commd-gpu cannot map it; MEMORY_ELSEWHERE: it is on
 * another GPU. */
int memory_place(struct session *s, const char *op, cu_ptr p, size_t bytes,
                 struct session_place *ret_place);
/* The same for all blocks of a buffer. */
int memory_share(struct session *s, const char *op, const struct side_place *p);
void memory_forget_all(struct session *s);

/* ---- lent.c ---------------------------------------------------------------------------------- */

/* Bytes of lent memory that an operation needs in place of its send and receive buffers. If it
 * needs both, and they are not the same, what it receives begins at *ret_recv_at. */
size_t lent_bytes(const struct side_places *p, bool send, bool recv, size_t *ret_recv_at);
/* Takes @bytes, at most COMMD_DEVICE_ARENA, of lent memory. COMMD_E_*, with a remedy; or, with
 * ret_returns, LENT_BUSY: older operations have all of it, and the caller tries again after
 * lent_wait(). */
enum { LENT_BUSY = 1 };
int lent_take(struct session *s, const char *op, size_t bytes, uint64_t *ret_returns,
              struct lent **ret);
/* Waits until memory has been given back since lent_returns was @returns. The caller does not hold
 * `calls`, so that other threads go on. False: none was given back until @until (-1: for good). */
bool lent_wait(struct session *s, uint64_t returns, int64_t until);
/* The operation is over; lent_return() is the same without pend held. */
static inline void lent_give(struct session *s, struct lent *l)
{
    assert_held(&s->pend);
    assert(s->lent_used >= l->bytes);
    s->lent_used -= l->bytes;
    s->lent_kept += l->bytes;
    l->next = s->lent;
    s->lent = l;
    s->lent_returns++;
}
void lent_return(struct session *s, struct lent *l);
/* Gives lent memory that is not in use back to commd-gpu. */
void lent_drop(struct session *s);
/* Can streams of the current context copy between @l and a buffer on GPU @buffer? 0, or COMMD_E_*.
 */
int lent_reach(struct session *s, const char *op, struct lent *l, int buffer);

/* ---- announce.c ------------------------------------------------------------------------------ */

int announce(struct device_group *dg, const struct commd_op *op, const struct op_desc *desc,
             const struct telling *how);

/* ---- words.c --------------------------------------------------------------------------------- */

/* What @s does: says that the input is there; waits for the result; waits for commd-gpu's part of
 * it; says that the result has been copied back. */
int announced_ready(const struct announced *a, cu_stream s);
int announced_await(const struct announced *a, cu_stream s);
int announced_await_done(const struct announced *a, cu_stream s);
int announced_land(const struct announced *a, cu_stream s);
/* As staged_follow(), behind operations that were announced. */
int announced_follow(struct device_group *dg, const struct side_place *in, cu_stream stream);
/* The same, behind those before @before; where @before does not land, only behind those that do. */
int announced_follow_before(const struct announced *before, const struct side_place *in,
                            cu_stream stream);

/* ---- path.c ---------------------------------------------------------------------------------- */

/* Is the value of COMMD_DEVICE_PATH allowed? */
int path_check(void);
/* Starts a collective, on the path that the group has. */
int path_start(struct device_group *dg, const struct commd_op *op, int gpu,
               const struct telling *how);
/* The context goes, with its sessions (NULL is fine). */
void path_end(struct session *s);
/* The group is being left. */
void path_leave(struct device_group *dg);

#endif
