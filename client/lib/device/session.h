/* session.h - this process at commd-gpu: its session, the memory that it has told of, the
 * operations that it has announced. What both sides agree on is in shm/gpu/session.h, the model in
 * session.c. */
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
    uint64_t gpus; /* whose streams reach it: bits */
};

enum announced_state {
    ANNOUNCED_CALLED,   /* our stream has not come to it */
    ANNOUNCED_READY,    /* its input is there, and its limit runs */
    ANNOUNCED_WARNED,   /* as READY; stderr says that it waits for long, or need not */
    ANNOUNCED_GIVEN_UP, /* commd-gpu has been asked to end it */
    ANNOUNCED_PAST,     /* the group agrees anew, or is left: nothing more is asked for it */
    ANNOUNCED_ENDED,    /* its result is in it */
};

/* What tells of its failure. */
enum announced_tells { TELLS_WORK, TELLS_NEXT_CALL, TELLS_CALL /* which has: it was declined */ };

/* An operation that has been announced. */
struct announced {
    struct gate gate;
    _Atomic int refs; /* its work's, and the slot's until the next operation takes it */
    struct session *session;
    struct device_group *group; /* borrowed; NULL: it has been left. Under session.pend */
    uint64_t n, seq;
    uint32_t aux_len;
    int coll;
    uintptr_t lo, hi; /* what it writes lies between these */
    cu_context ctx;
    enum announced_tells tells;
    int64_t limit_ms;
    /* under pend */
    enum announced_state state;
    int64_t since_ms, deadline_ms; /* of READY */
    struct lent *lent;             /* owned, until it has landed; NULL: none */
    struct commd_error error;      /* of ENDED; code 0: none */
};

/* Is it over when its result has been copied out of what is lent (lent.c)? Else when commd-gpu says
 * so. */
static inline bool announced_lands(const struct announced *a)
{
    return a->gate.landed != a->gate.done;
}

struct session {
    /* older sessions, of any GPU; streams may still wait for flags of lost ones */
    struct session *next;
    struct commd_context *ctx;
    bool first; /* commd was asked for this one; the context's other sessions end with it */
    int gpu;
    struct cu_uuid uuid;
    uint32_t nccl;
    int sock, bell;         /* -1 once the session is lost and nobody uses them: session_shut() */
    _Atomic unsigned users; /* of sock, without calls held */
    struct session_region *region;
    cu_ptr flags; /* of the region's, as streams see them */
    _Atomic bool lost;
    char why[SESSION_TEXT]; /* the session is lost: written before `lost` */

    pthread_mutex_t calls; /* questions, announcements, and what they need: */
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
    struct announced *slots[SESSION_SLOTS]; /* referenced; the last that took the slot */
    struct lent *lent;                      /* owned; not in use, used last first */
    size_t lent_used, lent_kept;            /* bytes: in use, and not */
    uint64_t lent_returns;                  /* how often some was given back */
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
/* Closes the descriptors, if the session is lost and nobody uses them any more. */
void session_shut(struct session *s);
/* commd-gpu is gone, or of no use any more. */
void session_lose(struct session *s, const char *why);
/* The session is lost: ends all pending operations. */
void session_release(struct session *s);
/* Has @a ended? Then its result is in it. */
bool session_ended(struct announced *a);
/* Its limit begins. With pend held, or before it is announced. */
void announced_begin(struct announced *a, enum announced_state to, int64_t now);
/* The group's operations that have not ended are of the past; @leave: they forget the group. */
void session_past(struct session *s, struct device_group *dg, bool leave);
/* Takes the results of the group's operations that have ended: a stream may have seen an end that
 * no thread has looked at yet. */
void session_collect(struct device_group *dg);
/* What the call that is about to return, or to begin, tells of: a failure's code, or 0. */
int session_tell_failure(struct device_group *dg);
void session_watch(struct session *s);
void sessions_watch(struct device *dev);
void announced_unref(struct announced *a);

/* ---- session_memory.c ------------------------------------------------------------------------ */

enum { MEMORY_ALONE = 1, MEMORY_ELSEWHERE = 2 };
/* Where [p, p + bytes) is in memory that commd-gpu has mapped; tells it of that if
 * need be. COMMD_E_*; or MEMORY_ALONE: commd-gpu cannot map it; MEMORY_ELSEWHERE: it is on another
 * GPU. */
int memory_place(struct session *s, const char *op, cu_ptr p, size_t bytes,
                 struct session_place *ret_place);
/* All blocks of a buffer. */
int memory_share(struct session *s, const char *op, const struct side_place *p);
void memory_forget_all(struct session *s);

/* ---- lent.c ---------------------------------------------------------------------------------- */

/* What an operation needs in place of its sides: if of both, and they are not the same, that of
 * what it receives begins at *ret_recv_at. */
size_t lent_bytes(const struct side_places *p, bool send, bool recv, size_t *ret_recv_at);
/* @bytes, at most COMMD_DEVICE_ARENA, that commd-gpu has mapped. COMMD_E_*, with a
 * remedy; or, with ret_returns, LENT_BUSY: older operations have it all, and it is to be tried
 * again after lent_wait(). */
enum { LENT_BUSY = 1 };
int lent_take(struct session *s, const char *op, size_t bytes, uint64_t *ret_returns,
              struct lent **ret);
/* Waits until memory has been given back since lent_returns was @returns. `calls` is free, so that
 * others go on. False: none was until @until (-1: for good). */
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
/* Gives back what is not in use. */
void lent_drop(struct session *s);
/* The current context's streams can copy between it and a buffer on GPU @buffer, or why not. */
int lent_reach(struct session *s, const char *op, struct lent *l, int buffer);

/* ---- announce.c ------------------------------------------------------------------------------ */

int announce(struct device_group *dg, const struct commd_op *op, const struct op_desc *desc,
             const struct telling *how);

/* ---- words.c --------------------------------------------------------------------------------- */

/* The stream says that the input is there; it waits for the result; for commd-gpu's part of it; it
 * says that the result has been copied back. */
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
