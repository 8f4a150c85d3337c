/* staged.h - operations on GPU buffers that go through host memory, as the files of this folder
 * share them. The model is in staged.c. */
#ifndef COMMD_CLIENT_STAGED_H
#define COMMD_CLIENT_STAGED_H

#include "client/lib/async/async.h"
#include "client/lib/device/driver.h"
#include "client/lib/device/failure.h"
#include "client/lib/device/memory.h"

/* What a context has. */
struct device {
    struct commd_context *ctx; /* borrowed */
    struct device *next;       /* in the list of those whose context has ended */
    pthread_mutex_t lock;      /* of staging, first and last */
    struct staging staging;
    size_t lent_limit;            /* COMMD_DEVICE_ARENA */
    struct staged *first, **last; /* in flight: referenced, in the order of the calls */

    /* the lander: see landing.c */
    pthread_mutex_t lander_lock; /* also of each staged.landing; held for moments only */
    pthread_cond_t lander_cond;
    pthread_t lander;
    bool lander_up, lander_stop;
    struct staged *landings, **last_landing; /* referenced */

    pthread_mutex_t sessions_lock;   /* held while a session is made */
    struct session *_Atomic session; /* the newest; read anywhere. NULL: none yet */
    struct device_group *groups;     /* under device.c's lock */
};

/* libcommd's streams for operations of one group in one CUDA context: copies down to the host, and
 * up from it. */
struct stream_lane {
    struct stream_lane *next;
    cu_context ctx;
    cu_stream down, up;
    cu_event called; /* the point of the caller's stream where the call was made */
};

enum group_path {
    GROUP_PATH_UNKNOWN, /* not agreed upon */
    GROUP_PATH_HOST,
    GROUP_PATH_DEVICE,
    GROUP_PATH_LOST, /* as DEVICE, but a commd-gpu of the group was lost */
};

struct device_group {
    struct device *dev;        /* borrowed */
    struct device_group *next; /* in dev->groups */
    struct membership *group;
    pthread_mutex_t lock; /* from the first call on a stream until the operation is queued: it keeps
                             the order of the calls */
    struct stream_lane *lanes; /* owned; under lock */
    _Atomic unsigned sends; /* messages from GPUs that are not done: later ones must not overtake */
    _Atomic unsigned
        quiet_sends; /* of these, those without a work: a rank that leaves waits for them */
    /* the device path: path.c; under lock */
    _Atomic int path;                /* enum group_path; DEVICE becomes LOST without the lock */
    struct session *_Atomic session; /* borrowed */
    uint32_t attached;               /* the group's number at commd-gpu; 0: not attached */
    uint32_t nunits;
    uint64_t next_seq;        /* of operations on the device path, from 1 */
    _Atomic unsigned pending; /* announced, and not known to have ended */
    struct failure failure;
};

/* A commd-gpu of the group was lost: the next operation agrees anew. Needs no lock. */
static inline void path_lost(struct device_group *dg)
{
    int device = GROUP_PATH_DEVICE;

    atomic_compare_exchange_strong(&dg->path, &device, GROUP_PATH_LOST);
}

/* A stream may wait for what has landed only behind the copy that lands: they may share a hardware
 * queue. */
enum staged_landing {
    LANDING_SET,     /* it is enqueued, or there is none to come */
    LANDING_OPEN,    /* nobody has enqueued it */
    LANDING_CLAIMED, /* a thread is about to */
};

struct staged {
    struct gate gate;
    _Atomic int refs;
    struct device *dev;         /* borrowed */
    struct device_group *group; /* borrowed, until the host's part is over */
    struct staged *next, *next_landing;
    struct flag_slot *slot;      /* owned, as is chunk, until it is not in flight any more */
    struct staging_chunk *chunk; /* NULL: it moves nothing */
    cu_context ctx;
    uintptr_t lo, hi; /* the GPU memory that it writes lies between these */
    const char *name;
    bool touched; /* something of it was enqueued */
    bool quiet;   /* no work tells of a failure */
    /* of what lands by itself: landing.c */
    enum staged_landing landing;
    cu_ptr to, from; /* from 0: nothing is copied */
    size_t bytes;
};

static inline struct staged *staged_of(struct gate *gate)
{
    return container_of(gate, struct staged, gate);
}

static inline void staged_unref(struct staged *st)
{
    if (st && atomic_fetch_sub(&st->refs, 1) == 1)
        free(st);
}

/* How the end of an operation is told. */
struct telling {
    bool wait; /* what is enqueued on the stream later comes after it */
    commd_done_fn on_done;
    void *arg;
    struct commd_work **ret_work; /* NULL: not wanted */
    struct gate **ret_gate;       /* NULL: not wanted; else a reference */
};

/* One of the two buffers of an operation. */
struct side_place {
    uint8_t *base;             /* the caller's; NULL with blocks */
    const void *const *blocks; /* the caller's, if they do not lie evenly */
    const size_t *counts;      /* of n blocks, if they differ; else NULL */
    size_t count;              /* elements of each block */
    unsigned n;                /* blocks; 0: not used here */
    size_t esize, bytes, own;  /* own: where this rank's block begins, if n > 1 */
    size_t at;                 /* in the staging buffer */
};

struct side_places {
    struct side_place send, recv;
    size_t bytes;
};

/* ---- places.c -------------------------------------------------------------------------------- */

size_t side_block_bytes(const struct side_place *p, unsigned k);
struct side_places side_places_of(const struct membership *g, const struct commd_op *op);
/* All bytes of the buffer lie between these. */
void side_span(const struct side_place *p, uintptr_t *ret_lo, uintptr_t *ret_hi);

/* ---- staged.c -------------------------------------------------------------------------------- */

/* Begins an operation with buffers on GPU @gpu (-1: not known) by @begin, in the order of the calls
 * and in the context of its stream. */
typedef int (*device_begin_fn)(struct device_group *dg, const struct commd_op *op,
                               const struct telling *how);
int begin_in_turn(device_begin_fn begin, struct device_group *dg, const struct commd_op *op,
                  int gpu, const struct telling *how);
/* Begins a collective on the host path; a device_begin_fn. */
int staged_begin(struct device_group *dg, const struct commd_op *op, const struct telling *how);

/* A new operation in flight, in the current context: with a slot, and @bytes of staging. */
int staged_new(struct device_group *dg, const char *name, size_t bytes, struct staged **ret_staged);
void gate_unref(struct gate *gate); /* staged_unref(), by its gate */
/* The operation was not queued after all: lets all streams go on. */
void staged_drop(struct staged *st);
/* Operations that are not in flight any more give back what they hold. */
void staged_reap(struct device *dev);
/* The two streams for @ctx; `down` goes on from where @stream is now. */
int stream_lane_from(struct device_group *dg, const char *name, cu_context ctx, cu_stream stream,
                     struct stream_lane **ret_lane);
/* The operation is queued: gives the work to the caller, or drops the reference. */
void staged_queued(struct staged *st, struct commd_work *w, const struct telling *how);
/* The host's part has ended, with @e if not NULL; a failure is told as one of @kind. */
void staged_over(struct staged *st, const struct commd_error *e, enum failure_state kind);

/* ---- words.c --------------------------------------------------------------------------------- */

/* Calls on streams; 0 or COMMD_E_*. */
int staged_copy(struct staged *st, cu_ptr to, cu_ptr from, size_t bytes, cu_stream s);
enum staged_word { WORD_READY, WORD_DONE, WORD_LANDED };
int staged_write(struct staged *st, enum staged_word word, uint32_t pieces, cu_stream s);
int staged_await(struct staged *st, enum staged_word word, uint32_t pieces, cu_stream s);

/* ---- message.c ------------------------------------------------------------------------------- */

int message_start(struct device_group *dg, const struct commd_op *op, int gpu,
                  const struct telling *how);
/* A message in host memory that must not overtake one from a GPU. */
int message_behind(struct device_group *dg, const struct commd_op *op, const struct telling *how);
/* Waits for sends without a work; see device_group_flush(). */
void messages_flush(struct device_group *dg);

/* ---- landing.c ------------------------------------------------------------------------------- */

/* Before something is to land by itself. 0 or COMMD_E_*. */
int lander_start(struct device *dev, const char *name);
void lander_stop(struct device *dev);
/* It lands on @s, which waits for it: in its call. */
int landing_set_on(struct staged *st, cu_stream s);
/* The host's part has ended, with @e if not NULL: it lands on the stream that has said so, else by
 * the lander. */
void landing_over(struct staged *st, const struct commd_error *e);
/* @stream goes on when it has landed; in its context. */
int landing_follow(struct staged *st, cu_stream stream);
int landing_wait_stream(struct gate *gate, void *stream); /* a gate's wait_stream */
/* The host stores the word that no stream stores. */
void landed_by_host(const struct staged *st);
/* @s waits for earlier operations of the group that write to @in, until they have landed. */
int staged_follow(struct device_group *dg, const struct side_place *in, cu_stream s);
bool staged_pending(struct device_group *dg, const struct side_place *side); /* are there such? */

#endif
