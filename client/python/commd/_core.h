/* _core.h - what the files of the extension share. See _core.c for the model. */
#ifndef COMMD_PYTHON_CORE_H
#define COMMD_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>

#include <commd/commd.h>

#if PY_VERSION_HEX < 0x030a0000
static inline PyObject *Py_NewRef(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#endif

/* ---- errors (_core_error.c) -------------------------------------------------------------- */

/* Gives @module E_INVALID, ...: enum commd_result. 0, or -1 and an exception. */
int error_constants(PyObject *module);
/* Raises the exception of a failed call of the library; call it before the next one. Returns NULL,
 * for `return`. */
void *raise_last(int code);
/* Raises commd.InvalidArgument; PyUnicode_FromFormat's format. */
void *raise_invalid(const char *op, const char *format, ...);
#define refuse(...) (raise_invalid(__VA_ARGS__), -1)
/* Seconds (None: 0, the default; infinity: -1) to milliseconds. @zero: may it be 0? */
int parse_timeout(PyObject *seconds, bool zero, const char *op, int64_t *ret_ms);

/* ---- contexts and groups (_core.c) --------------------------------------------------------- */

struct held;

struct context {
    PyObject_HEAD struct commd_context *handle; /* NULL: closed */
    unsigned calls;                             /* threads inside a call, or leaving a group */
    bool closing;                               /* the last of them disconnects */
    struct group *groups;                       /* borrowed: those that have a handle */
};

struct group {
    PyObject_HEAD struct context *context; /* a reference; NULL in one that never joined */
    struct commd_group *handle;            /* NULL: closed */
    struct group *next;                    /* in context->groups */
    unsigned calls;                        /* threads inside a call */
    unsigned beside;                       /* of these, in one that a recovery does not mind */
    bool recovering;                       /* a thread does: no other comes in */
    bool closing;                          /* the last of them leaves */
    bool leaving;                          /* without a handle, but what is pending is not over */
    struct held *orphans; /* owned: operations whose handle was dropped before they were done */
    int rank, size;
};

extern PyTypeObject *context_type;
/* Around each call that releases the GIL. 0, or -1 and an exception if it is closed. */
int context_enter(struct context *c, const char *op);
void context_exit(struct context *c);
int group_enter(struct group *g, const char *op);
void group_exit(struct group *g);
/* The same for a call that may be made while another thread recovers the group, and may last. */
int group_enter_beside(struct group *g, const char *op);
void group_exit_beside(struct group *g);

/* ---- operations (_core_op.c) ----------------------------------------------------------------- */

/* One operation; all that its arguments point to is held. */
struct request {
    struct commd_op op;
    PyObject *result;     /* a reference: what the caller gets back */
    Py_buffer send, recv; /* .obj NULL: none */
    Py_buffer *blocks;    /* owned: where an argument was a list of buffers */
    size_t nblocks;
    void **addresses;                /* owned: of blocks */
    bool stream_given, stream_named; /* op.stream: by the caller; by an array */
    size_t *counts;                  /* owned: the sent ones first */
};

enum { REQUEST_ARGS_MIN = 8, REQUEST_ARGS_MAX = 13 };
extern const char request_doc[];

/* Gives @module ALL_REDUCE, ...: the number of each operation. 0, or -1 and an exception. */
int request_constants(PyObject *module);
/* @args: see request_doc. On -1 (an exception is set) nothing is held. */
int request_fill(struct request *r, const struct group *g, PyObject *const *args, Py_ssize_t nargs);
void request_clear(struct request *r);
/* A new reference to what the operation gives back; @status: what a receive got, or NULL. */
PyObject *request_result(const struct request *r, const struct commd_status *status);

/* The buffer is in host memory, or on a GPU: as the others. 0, or -1 and an exception. */
int request_place(struct request *r, const char *op, int place);

/* ---- arrays (_core_buffer.c) --------------------------------------------------------------- */

/* The buffer of @object, which is C-contiguous; *ret_dtype -1: it can be moved only, as bytes. 0,
 * or -1 and an exception. */
int buffer_get(struct request *r, const char *op, PyObject *object, bool writable, Py_buffer *ret,
               int *ret_dtype);

/* ---- arrays without the buffer protocol (_core_foreign.c) ---------------------------------------
 */

/* 0; 1: @array has no interface that is known; -1 and an exception. *ret_dtype -1: bytes. */
int foreign_get(struct request *r, const char *op, PyObject *array, bool writable, Py_buffer *ret,
                int *ret_dtype);
/* A stream's handle, for commd_op.stream. 0, or -1 and an exception. */
int parse_stream(PyObject *stream, const char *op, void **ret);

/* ---- handles (_core_work.c) ---------------------------------------------------------------- */

/* Operations that are under way, and what they use. */
struct held {
    struct commd_work *work; /* owned; NULL: never started */
    struct held *next;       /* in group->orphans */
    size_t n;
    struct request requests[];
};

void held_free(struct held *h);
/* Frees the orphans that are done; with @all, everything: after the group was left. */
void orphans_reap(struct group *g, bool all);

/* Group._start(...) and Group._start_batch([(...), ...]): a Work. */
PyObject *group_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *group_start_batch(PyObject *self, PyObject *list);
extern PyTypeObject *work_type;
extern PyType_Spec work_spec;

/* ---- registered memory (_core_memory.c) ------------------------------------------------------ */

/* alloc(context, bytes): a Memory. */
PyObject *memory_alloc(PyObject *module, PyObject *args);
extern PyTypeObject *memory_type;
extern PyType_Spec memory_spec;

#endif
