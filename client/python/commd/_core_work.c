/* _core_work.c - operations under way: handles, and what they hold.
 *
 * A Work owns its operations' buffers and libcommd's handle (struct held) and releases the buffers
 * when it first sees that all is done. A Work that is dropped earlier gives them to its group,
 * which keeps them until the operations are done: reaped at the group's next operation, or when it
 * is left. So a buffer is never freed while commd may write to it, whatever the program drops.
 *
 * await: an eventfd, made only when somebody awaits. libcommd's thread tells the bell when the
 * work is done, and the bell writes to the eventfd if there is one by then. The bell belongs to
 * both sides; whoever comes first of "done" and "there is an eventfd now", the other one sees it
 * (both are sequentially consistent). */
#include "_core.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

PyTypeObject *work_type;

struct bell {
    _Atomic int refs;
    _Atomic bool done;
    _Atomic int fd; /* -1: nobody waits */
};

struct work {
    PyObject_HEAD struct group *group; /* a reference */
    struct held *held; /* owned; NULL: all was done, and the fields below say what came of it */
    struct bell *bell; /* a reference */
    struct commd_work *handle; /* owned, once held is NULL */
    PyObject *result;          /* a reference, once held is NULL */
    bool batch;
};

/* ---- the bell -------------------------------------------------------------------------------- */

static struct bell *bell_new(void)
{
    struct bell *b = malloc(sizeof *b); /* freed in the library's thread, which has no GIL */

    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    atomic_init(&b->done, false);
    atomic_init(&b->fd, -1);
    return b;
}

static void bell_unref(struct bell *b)
{
    if (!b || atomic_fetch_sub(&b->refs, 1) != 1)
        return;
    if (b->fd >= 0)
        close(b->fd);
    free(b);
}

static void bell_ring(void *arg, const struct commd_error *error)
{
    struct bell *b = arg;
    uint64_t one = 1;
    int fd;

    atomic_store(&b->done, true);
    fd = atomic_load(&b->fd);
    if (fd >= 0)
        while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
    bell_unref(b);
}

/* ---- what is held ---------------------------------------------------------------------------- */

void held_free(struct held *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n; i++)
        request_clear(&h->requests[i]);
    commd_work_free(h->work);
    PyMem_Free(h);
}

/* Nobody wants to know of it any more: while it is pending, the group has it. */
static void held_drop(struct group *g, struct held *h)
{
    if (h && (g->handle || g->leaving) && !commd_work_test(h->work, NULL)) {
        h->next = g->orphans;
        g->orphans = h;
    } else {
        held_free(h);
    }
}

void orphans_reap(struct group *g, bool all)
{
    struct held *mine = NULL, *h;

    for (struct held **p = &g->orphans; (h = *p);) {
        if (!all && !commd_work_test(h->work, NULL)) {
            p = &h->next;
            continue;
        }
        *p = h->next;
        h->next = mine;
        mine = h;
    }
    while ((h = mine)) { /* apart from the list: releasing buffers can run Python code */
        mine = h->next;
        held_free(h);
    }
}

/* ---- starting -------------------------------------------------------------------------------- */

static struct held *held_new(size_t n)
{
    struct held *h = PyMem_Calloc(1, sizeof *h + n * sizeof h->requests[0]);

    if (!h)
        PyErr_NoMemory();
    return h;
}

/* Lets other threads run, if the operations may wait: a group's first one on a GPU does, for the
 * other ranks, and so does a message that another thread sends, for its turn. NULL: they may not.
 */
static PyThreadState *let_others(const struct held *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->requests[i].op.memory == COMMD_MEMORY_CUDA || h->requests[i].op.coll == COMMD_SEND)
            return PyEval_SaveThread();
    return NULL;
}

static void come_back(PyThreadState *thread)
{
    if (thread)
        PyEval_RestoreThread(thread);
}

static int start_one(struct group *g, struct held *h, struct bell *bell)
{
    PyThreadState *thread = let_others(h);
    int r = commd_start(g->handle, &h->requests[0].op, bell_ring, bell, &h->work);

    come_back(thread);
    return r;
}

static int start_batch(struct group *g, struct held *h, struct bell *bell)
{
    struct commd_op *ops = PyMem_Calloc(h->n + 1, sizeof *ops);
    PyThreadState *thread;
    int r;

    if (!ops) {
        PyErr_NoMemory();
        return COMMD_E_NOMEM;
    }
    for (size_t i = 0; i < h->n; i++)
        ops[i] = h->requests[i].op;
    thread = let_others(h);
    r = commd_start_batch(g->handle, ops, h->n, bell_ring, bell, &h->work);
    come_back(thread);
    PyMem_Free(ops);
    return r;
}

/* Hands the operations to the library, which owns a reference to the bell from then on. */
static int launch(struct group *g, struct held *h, struct bell *bell, bool batch)
{
    int r;

    if (group_enter(g, "start"))
        return -1;
    atomic_fetch_add(&bell->refs, 1);
    r = batch ? start_batch(g, h, bell) : start_one(g, h, bell);
    if (r) {
        bell_unref(bell);
        if (!PyErr_Occurred())
            raise_last(r);
    }
    group_exit(g);
    return r;
}

/* Takes over @h. The Work is made last: the collector lists it from then on, where other threads
 * find it, and they may run while an operation is started. */
static PyObject *start(struct group *g, struct held *h, bool batch)
{
    struct bell *bell = bell_new();
    struct work *w = NULL;

    if (!bell)
        PyErr_NoMemory();
    if (!bell || launch(g, h, bell, batch)) {
        held_free(h);
        bell_unref(bell);
        return NULL;
    }
    if (!PyErr_Occurred()) /* Ctrl-C has ended a part of a batch, which has failed: others go on */
        w = (struct work *)PyType_GenericAlloc(work_type, 0);
    if (!w) {
        held_drop(g, h);
        bell_unref(bell);
        return NULL;
    }
    w->group = (struct group *)Py_NewRef((PyObject *)g);
    w->held = h;
    w->bell = bell;
    w->batch = batch;
    return (PyObject *)w;
}

PyObject *group_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct group *g = (struct group *)self;
    struct held *h = held_new(1);

    if (g->orphans)
        orphans_reap(g, false);
    if (!h)
        return NULL;
    if (request_fill(&h->requests[0], g, args, nargs)) {
        held_free(h);
        return NULL;
    }
    h->n = 1;
    return start(g, h, false);
}

static int fill_noted(struct request *r, const struct group *g, PyObject *tuple)
{
    PyObject *args[REQUEST_ARGS_MAX];
    Py_ssize_t nargs = PyTuple_Size(tuple);

    if (nargs < 0 || nargs > REQUEST_ARGS_MAX) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, request_doc);
        return -1;
    }
    for (Py_ssize_t a = 0; a < nargs; a++)
        args[a] = PyTuple_GetItem(tuple, a);
    return request_fill(r, g, args, nargs);
}

PyObject *group_start_batch(PyObject *self, PyObject *list)
{
    struct group *g = (struct group *)self;
    PyObject *noted = PyList_AsTuple(list); /* nobody changes it while buffers run Python code */
    Py_ssize_t n = noted ? PyTuple_Size(noted) : 0;
    struct held *h = noted ? held_new((size_t)n) : NULL;

    for (Py_ssize_t i = 0; h && i < n; i++)
        if (fill_noted(&h->requests[i], g, PyTuple_GetItem(noted, i))) {
            held_free(h);
            h = NULL;
        } else {
            h->n++;
        }
    Py_XDECREF(noted);
    return h ? start(g, h, true) : NULL;
}

/* ---- handles --------------------------------------------------------------------------------- */

/* What came of it, once: then the buffers are the caller's again. */
static int work_settle(struct work *w)
{
    struct held *h = w->held;
    struct commd_status status = {0};
    PyObject *result;

    if (!h)
        return 0;
    if (w->batch) {
        result = PyList_New((Py_ssize_t)h->n);
        /* the collector may run with a new list, and code that settles it: then @h is freed */
        for (size_t i = 0; result && w->held == h && i < h->n; i++)
            PyList_SetItem(result, (Py_ssize_t)i, request_result(&h->requests[i], NULL));
    } else {
        commd_work_status(h->work, &status);
        result = request_result(&h->requests[0], &status);
    }
    if (!result)
        return -1;
    if (w->held != h) { /* another thread was faster: creating objects can run Python code */
        Py_DECREF(result);
        return 0;
    }
    w->held = NULL;
    w->result = result;
    w->handle = h->work;
    h->work = NULL;
    held_free(h);
    return 0;
}

static struct commd_work *handle_of(const struct work *w)
{
    return w->held ? w->held->work : w->handle;
}

/* asyncio's side of it is written in Python. */
static PyObject *work_await(PyObject *self)
{
    PyObject *module = PyImport_ImportModule("commd.group"), *iterator = NULL;

    if (module)
        iterator = PyObject_CallMethod(module, "_await", "O", self);
    Py_XDECREF(module);
    return iterator;
}

static PyObject *work_done(PyObject *self, PyObject *none)
{
    struct work *w = (struct work *)self;

    if (!commd_work_test(handle_of(w), NULL))
        Py_RETURN_FALSE;
    return work_settle(w) ? NULL : PyBool_FromLong(1);
}

static PyObject *work_wait(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    struct work *w = (struct work *)self;
    struct group *g = w->group;
    struct commd_work *handle = handle_of(w); /* lives as long as w */
    PyObject *timeout = Py_None;
    int64_t ms;
    int r = 0;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:wait", names, &timeout) ||
        parse_timeout(timeout, true, "wait", &ms))
        return NULL;
    if (!commd_work_test(handle, NULL)) {
        /* also in a group that is closing: it is left when we are out */
        g->calls++;
        g->beside++;
        g->context->calls++;
        Py_BEGIN_ALLOW_THREADS r = commd_work_wait(handle, timeout == Py_None ? -1 : ms);
        Py_END_ALLOW_THREADS if (r && !commd_work_test(handle, NULL))
            raise_last(r); /* still pending */
        group_exit_beside(g);
        if (PyErr_Occurred())
            return NULL;
    }
    if (work_settle(w))
        return NULL;
    r = commd_work_wait(handle, 0); /* is done: does not wait, and sets this thread's error */
    return r ? raise_last(r) : Py_NewRef(w->result);
}

static PyObject *work_wait_stream(PyObject *self, PyObject *stream)
{
    struct work *w = (struct work *)self;
    struct group *g = w->group;
    struct commd_work *handle;
    void *native;
    int r;

    if (parse_stream(stream, "wait_stream", &native))
        return NULL;
    handle = handle_of(w); /* under the GIL: another thread may settle it */
    g->calls++;            /* as in work_wait() */
    g->beside++;
    g->context->calls++;
    Py_BEGIN_ALLOW_THREADS r = commd_work_wait_stream(handle, native);
    Py_END_ALLOW_THREADS if (r) raise_last(r);
    group_exit_beside(g);
    /* a signal's handler may have raised, though the operation was done by then */
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* An eventfd (the caller's) that is readable once the work is done. */
static PyObject *work_watch(PyObject *self, PyObject *none)
{
    struct bell *b = ((struct work *)self)->bell;
    uint64_t one = 1;
    int fd;

    if (atomic_load(&b->fd) < 0) {
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return PyErr_SetFromErrno(PyExc_OSError);
        atomic_store(&b->fd, fd); /* under the GIL: nobody else stores here */
        if (atomic_load(&b->done) && write(fd, &one, sizeof one) < 0)
            return PyErr_SetFromErrno(PyExc_OSError);
    }
    fd = dup(b->fd);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

static int work_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct work *w = (struct work *)self;

#if PY_VERSION_HEX >= 0x03090000
    Py_VISIT(Py_TYPE(self));
#endif
    Py_VISIT((PyObject *)w->group);
    Py_VISIT(w->result);
    return 0; /* what is held while it is pending is not garbage, whoever drops it */
}

static int work_clear(PyObject *self)
{
    Py_CLEAR(((struct work *)self)->result);
    return 0;
}

static void work_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    struct work *w = (struct work *)self;

    PyObject_GC_UnTrack(self);
    held_drop(w->group, w->held);
    commd_work_free(w->handle);
    bell_unref(w->bell);
    Py_CLEAR(w->result);
    Py_XDECREF((PyObject *)w->group);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* One without an operation would have nothing to tell. */
static PyObject *work_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyErr_Format(PyExc_TypeError, "%R is made by starting an operation", (PyObject *)type);
    return NULL;
}

static PyMethodDef work_methods[] = {
    {"done", work_done, METH_NOARGS,
     "done()\n\n"
     "Is it done, well or not? Does not wait."},
    {"wait", (PyCFunction)(void (*)(void))work_wait, METH_VARARGS | METH_KEYWORDS,
     "wait(timeout=None)\n\n"
     "Returns what the blocking operation would have returned (of a batch: a list of that), or\n"
     "raises its error. After `timeout` seconds (0: at once) raises commd.Timeout; the operation\n"
     "goes on and can be waited for again. None: as long as the operation's own limit allows."},
    {"wait_stream", work_wait_stream, METH_O,
     "wait_stream(stream)\n\n"
     "What is enqueued on this CUDA stream from now on comes after the operation; the host does\n"
     "not wait. Of arrays in host memory it does."},
    {"_watch", work_watch, METH_NOARGS,
     "A file descriptor, the caller's, readable once it is done."},
    {0},
};
static PyType_Slot work_slots[] = {
    {Py_tp_doc,
     "An operation under way, or a batch of them. Its buffers are held until it is done, also\n"
     "if this object is dropped. In asyncio, `await work` is wait() without blocking."},
    {Py_am_await, work_await},
    {Py_tp_new, work_new},
    {Py_tp_dealloc, work_dealloc},
    {Py_tp_traverse, work_traverse},
    {Py_tp_clear, work_clear},
    {Py_tp_methods, work_methods},
    {0},
};
PyType_Spec work_spec = {"commd.Work", sizeof(struct work), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, work_slots};
