/* fake.h - what the files of the fake driver share. README.md tells the model.
 *
 * Locks, in the order in which they are taken:
 *   fake_lock    queues, streams, events, contexts; fake_changed is signalled whenever an operation
 *                ends, a mark is set or a device breaks
 *   memory_lock  which memory there is: workers hold it for reading while they touch memory, so
 *                that nothing is unmapped under them */
#ifndef COMMD_FAKE_H
#define COMMD_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "tests/fakecuda/fakecuda.h"

#define FAKE_PROTOTYPE(member, symbol, args) FAKE_API cu_result symbol args;
CUDA_FUNCTIONS(FAKE_PROTOTYPE)
CUDA_LATER_FUNCTIONS(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE

enum { /* errors of the driver that commd has no name for */
       FAKE_E_PEER_UNSUPPORTED = 217,
       FAKE_E_PEER_ENABLED = 704,
       FAKE_E_CONTEXT_DESTROYED = 709,
       FAKE_E_REGISTERED = 712,
       FAKE_E_NOT_REGISTERED = 713,
       FAKE_E_LAUNCH_FAILED = 719,
       FAKE_E_CAPTURE_UNSUPPORTED = 900,
};
enum { FAKE_DEVICES = 16, FAKE_GRANULARITY = 2 << 20, FAKE_CC = 90, FAKE_QUEUES = 64 };

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;
extern pthread_rwlock_t memory_lock;

/* ---- knobs (fake_knobs.c) -------------------------------------------------------------------- */

/* From FAKECUDA_KNOBS's file, else from the environment; @otherwise if it is in neither. */
uint64_t fake_knob(const char *name, uint64_t otherwise);
int fake_knob_text(const char *name, char *text, size_t len); /* 0: there is none */

struct fake_call { /* one per function, static */
    const char *name;
    struct fake_call *next;
    _Atomic uint64_t count;
    atomic_bool listed;
};
/* What every function begins with: counts, fails if it shall. */
cu_result fake_enter(struct fake_call *call, int need);
enum { FAKE_ANYTIME, FAKE_INIT, FAKE_CONTEXT };
#define FAKE_ENTER(need)                                                                           \
    do {                                                                                           \
        static struct fake_call call_ = {.name = __func__};                                        \
        cu_result entered_ = fake_enter(&call_, need);                                             \
        if (entered_)                                                                              \
            return entered_;                                                                       \
    } while (0)

/* ---- devices and contexts (fake_device.c) ---------------------------------------------------- */

struct CUctx_st {
    cu_device dev;
    int retained;
    _Atomic cu_result sticky; /* a fault: all that comes later fails with it */
    _Atomic uint32_t peers;   /* a bit for each device whose memory it may reach */
    cu_stream null_stream;
    cu_stream streams;                      /* all, the default one too */
    struct fake_queue *queues[FAKE_QUEUES]; /* owned; NULL: has had no stream yet */
    _Atomic uint64_t used;                  /* bytes of device memory */
};
struct fake_device {
    struct cu_uuid uuid;
    char bus_id[16];
    struct CUctx_st ctx;
};
struct fake_device *fake_device(cu_device dev); /* NULL: there is none */
int fake_device_count(void);
cu_device fake_device_of(const struct cu_uuid *uuid); /* -1: not visible here */
cu_context fake_current(void);
cu_result fake_initialized(void);
void fake_break(cu_context ctx, cu_result code);
extern __thread bool fake_in_host_fn;

/* ---- memory (fake_memory.c) ------------------------------------------------------------------ */

enum fake_kind {
    FAKE_PLAIN,    /* cuMemAlloc() */
    FAKE_POOLED,   /* fakecuda_alloc_unshareable() */
    FAKE_IMPORTED, /* cuIpcOpenMemHandle() */
    FAKE_MAPPED,   /* cuMemMap() */
    FAKE_HOST,     /* cuMemHostAlloc() */
    FAKE_REGISTERED,
};
struct fake_vmm;
struct fake_memory { /* a range of addresses; under memory_lock */
    enum fake_kind kind;
    uintptr_t p;
    size_t bytes;
    int fd; /* -1: host memory */
    cu_device dev;
    uint64_t id;     /* CU_POINTER_BUFFER_ID */
    uint32_t access; /* a bit for each device that may touch it; peers may too, if not mapped */
    int refs;        /* FAKE_IMPORTED: how often it is open */
    struct cu_ipc_mem handle;
    struct fake_vmm *vmm; /* FAKE_MAPPED: counted */
    struct fake_memory *next;
};
/* With memory_lock held: what lies at @p, NULL if nothing of ours. */
struct fake_memory *fake_memory_at(cu_ptr p);
/* With memory_lock held: where a worker finds @bytes at @p. Unknown addresses are plain host memory
 * and stay what they are; NULL: @dev must not touch it. */
void *fake_reach(cu_ptr p, size_t bytes, cu_context ctx);
void *fake_reach_copy(cu_ptr p, size_t bytes, cu_context ctx); /* for a copy, which may do more */
bool fake_outruns(cu_ptr p, size_t bytes);   /* begins in memory of ours, ends behind it */
bool fake_foreign(cu_ptr p, cu_context ctx); /* ours, but not for this device */
struct fake_memory *fake_ipc_find(const struct cu_ipc_mem *handle);
/* With memory_lock held: is there one that was imported, of which @is says so? */
bool fake_imported(bool (*is)(const struct fake_memory *m, const void *arg), const void *arg);
/* With memory_lock held: memory that a stream may write and wait for values in. */
bool fake_value_address(cu_ptr p, size_t bytes, cu_context ctx);
/* Maps and lists it; takes @fd. */
cu_result fake_memory_add(struct fake_memory memory, struct fake_memory **ret_memory);
void fake_memory_remove(struct fake_memory *memory); /* memory_lock held for writing */
int fake_memfd(cu_device dev, size_t bytes);
cu_device fake_memfd_device(int fd); /* -1: no device memory */
void fake_memory_expose(bool on);    /* FAKECUDA_PROTECT: while a kernel's twin runs */
void fake_memory_release_device(cu_device dev);
void fake_vmm_unref(struct fake_vmm *vmm);
struct fake_range {
    uintptr_t p;
    size_t bytes;
};
struct fake_range fake_vmm_reserved(cu_ptr p); /* with memory_lock held: where it lies */
unsigned fake_vmm_handle_types(const struct fake_vmm *vmm);

uintptr_t fake_range_take(size_t bytes, size_t align); /* addresses; 0: none left */
void fake_range_give(uintptr_t p, size_t bytes);
bool fake_range_ours(uintptr_t p);
bool fake_range_map(uintptr_t p, size_t bytes, int fd, off_t offset);
void fake_range_unmap(uintptr_t p, size_t bytes);
void *fake_range_view(uintptr_t p);
bool fake_range_hidden(void);

/* ---- streams and events (fake_stream.c, fake_event.c) ---------------------------------------- */

struct fake_mark { /* a point that a stream reaches */
    int refs;
    bool reached;
};
struct fake_op {
    cu_stream stream;
    cu_result (*run)(struct fake_op *op); /* on the worker, without a lock */
    void (*drop)(struct fake_op *op);     /* frees what it holds; may be NULL */
    struct fake_after {
        cu_stream stream;
        uint64_t seq;
    } *after; /* owned: what must have been done before */
    unsigned nafter;
    uint64_t seq;
    struct fake_op *next;
};
struct CUstream_st {
    cu_context ctx;
    unsigned flags;
    bool capturing, destroyed;
    uint64_t issued, done;
    int refs; /* operations and waiters; under fake_lock */
    struct fake_queue *queue;
    struct CUstream_st *next;
};
/* Resolves NULL, checks it. */
cu_result fake_stream(cu_stream s, cu_stream *ret_stream);
/* Takes @op (its head lies at the start of a malloc()ed struct) whatever it returns. */
cu_result fake_push(cu_stream s, struct fake_op *op);
cu_result fake_stream_drain(cu_stream s, uint64_t seq);
cu_result fake_stream_default(cu_context ctx); /* makes it, if there is none */
cu_result fake_context_drain(cu_context ctx);
cu_result fake_context_settle(cu_context ctx); /* before memory is freed or unmapped */
void fake_pause(unsigned long us);
/* Runs @fn; false: it touched memory that is not there (fake_guard.c). */
bool fake_guarded(void (*fn)(void *arg), void *arg);
void fake_mark_unref(struct fake_mark *mark); /* fake_lock held */

#endif
