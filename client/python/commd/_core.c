/* _core.c - libcommd for Python: contexts and groups. commd/group.py stands on top.
 *
 *   _core.Context   one connection         _core.Group   a group of it
 *   _core.Work      operations under way (_core_work.c)
 *   _core.Memory    registered memory, a buffer (_core_memory.c)
 *   arguments to struct commd_op (_core_op.c) and buffers (_core_buffer.c), errors to exceptions
 *   (_core_error.c)
 *
 * The state of all objects is guarded by the GIL, and every call that may wait releases it. So
 * another thread can close() what a call is using. Each call is therefore counted in its group and
 * context (group_enter); close() makes new calls fail at once and takes effect when the last call
 * inside has returned. libcommd frees nothing that somebody uses.
 *
 * Ctrl-C: libcommd calls on_interrupt() about every 100 ms in the waiting thread. It takes the GIL
 * and lets Python run the handlers; what they raise stays in the thread's state and comes out of
 * the call that was waiting.
 *
 * fork(): a child's calls fail with commd.Forked; its copies are dropped without telling anybody.
 *
 * The library's progress thread never runs Python code and never takes the GIL. */
#include "_core.h"

#include <limits.h>
#include <string.h>
#include <structmember.h>

PyTypeObject *context_type;
static PyTypeObject *group_type;

static int on_interrupt(void *arg)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    int stop = PyErr_CheckSignals();

    PyGILState_Release(gil);
    return stop;
}

/* For tp_dealloc: a subclass may have another allocator. */
static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);

    free_it(self);
    Py_DECREF(type);
}

/* ---- contexts ------------------------------------------------------------------------------ */

int context_enter(struct context *c, const char *op)
{
    if (!c->handle || c->closing)
        return refuse(op, "%s: the context was closed", op);
    c->calls++;
    return 0;
}

/* Disconnects a closing context that nobody is inside of and whose groups have all left. */
static void context_settle(struct context *c)
{
    struct commd_context *handle = c->handle;

    if (!handle || !c->closing || c->calls || c->groups)
        return;
    c->handle = NULL;
    Py_BEGIN_ALLOW_THREADS commd_disconnect(handle);
    Py_END_ALLOW_THREADS
}

void context_exit(struct context *c)
{
    c->calls--;
    context_settle(c);
}

static PyObject *connect_(PyObject *module, PyObject *args)
{
    struct commd_options options = {.size = sizeof options};
    struct commd_context *handle = NULL;
    PyTypeObject *type;
    PyObject *timeout;
    struct context *c;
    int r;

    if (!PyArg_ParseTuple(args, "OzO", &type, &options.socket, &timeout) ||
        parse_timeout(timeout, false, "connect", &options.timeout_ms))
        return NULL;
    c = (struct context *)PyType_GenericAlloc(type, 0);
    if (!c)
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = commd_connect(&options, &handle);
    Py_END_ALLOW_THREADS if (r)
    {
        raise_last(r);
        Py_DECREF((PyObject *)c);
        return NULL;
    }
    commd_set_interrupt(handle, on_interrupt, NULL);
    c->handle = handle;
    return (PyObject *)c;
}

static void group_close_(struct group *g);

/* The next group to close. One without references is being deallocated and leaves by itself. */
static struct group *open_group(const struct context *c)
{
    struct group *g = c->groups;

    while (g && (g->closing || Py_REFCNT((PyObject *)g) == 0))
        g = g->next;
    return g;
}

static PyObject *context_close(PyObject *self, PyObject *none)
{
    struct context *c = (struct context *)self;
    struct group *g;

    c->closing = true;
    c->calls++; /* keeps it while groups leave */
    while ((g = open_group(c))) {
        Py_INCREF((PyObject *)g);
        group_close_(g); /* lets others run: the list may change */
        Py_DECREF((PyObject *)g);
    }
    context_exit(c);
    Py_RETURN_NONE;
}

static PyObject *context_node(PyObject *self, void *closure)
{
    struct context *c = (struct context *)self;

    if (!c->handle)
        return raise_invalid("node", "the context was closed");
    return PyUnicode_DecodeUTF8(commd_node_name(c->handle),
                                (Py_ssize_t)strlen(commd_node_name(c->handle)), "replace");
}

static PyObject *context_closed(PyObject *self, void *closure)
{
    struct context *c = (struct context *)self;

    return PyBool_FromLong(!c->handle || c->closing);
}

static void context_dealloc(PyObject *self)
{
    struct context *c = (struct context *)self;

    c->closing = true;
    context_settle(c); /* its groups hold references, so there are none */
    free_object(self);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Leaves a closing group that nobody is inside of. */
static void group_settle(struct group *g)
{
    struct commd_group *handle = g->handle;
    struct context *c = g->context;

    if (!handle || !g->closing || g->calls)
        return;
    g->handle = NULL;
    for (struct group **p = &c->groups; *p; p = &(*p)->next)
        if (*p == g) {
            *p = g->next;
            break;
        }
    c->calls++; /* may not be disconnected beside us */
    g->leaving = true;
    Py_BEGIN_ALLOW_THREADS commd_group_leave(handle);
    Py_END_ALLOW_THREADS g->leaving = false;
    orphans_reap(g, true);
    context_exit(c);
}

static void group_close_(struct group *g)
{
    g->closing = true;
    group_settle(g);
}

static int come_in(struct group *g, const char *op)
{
    if (!g->handle || g->closing)
        return refuse(op, "%s: the group was closed", op);
    g->calls++;
    g->context->calls++;
    return 0;
}

int group_enter(struct group *g, const char *op)
{
    if (g->recovering && g->handle && !g->closing)
        return refuse(op, "%s: another thread recovers the group", op);
    return come_in(g, op);
}

int group_enter_beside(struct group *g, const char *op)
{
    if (come_in(g, op))
        return -1;
    g->beside++;
    return 0;
}

void group_exit_beside(struct group *g)
{
    g->beside--;
    group_exit(g);
}

void group_exit(struct group *g)
{
    g->calls--;
    if (g->closing)
        group_settle(g);
    context_exit(g->context);
}

/* Takes over @handle. */
static PyObject *group_wrap(PyTypeObject *type, struct context *c, struct commd_group *handle)
{
    struct group *g = (struct group *)PyType_GenericAlloc(type, 0);

    if (!g) {
        commd_group_leave(handle);
        return NULL;
    }
    g->context = (struct context *)Py_NewRef((PyObject *)c);
    g->handle = handle;
    g->rank = commd_group_rank(handle);
    g->size = commd_group_size(handle);
    g->next = c->groups;
    c->groups = g;
    return (PyObject *)g;
}

/* The end of a call that has entered @c, and has brought @handle, or the error @r. */
static PyObject *joined(PyTypeObject *type, struct context *c, struct commd_group *handle, int r,
                        const char *op)
{
    PyObject *group = NULL;

    if (r)
        raise_last(r);
    else if (PyErr_Occurred() || c->closing) /* a signal's handler raised, but we had joined */
        commd_group_leave(handle);
    else
        group = group_wrap(type, c, handle);
    context_exit(c);
    return group || PyErr_Occurred() ? group : raise_invalid(op, "%s: the context was closed", op);
}

static PyObject *join(PyObject *module, PyObject *args)
{
    struct commd_group *handle = NULL;
    PyObject *timeout;
    PyTypeObject *type;
    struct context *c;
    int64_t timeout_ms;
    const char *name;
    int rank, size, r;

    if (!PyArg_ParseTuple(args, "OO!siiO", &type, context_type, &c, &name, &rank, &size,
                          &timeout) ||
        parse_timeout(timeout, false, "join", &timeout_ms) || context_enter(c, "join"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = commd_group_join(c->handle, name, rank, size, timeout_ms, &handle);
    Py_END_ALLOW_THREADS return joined(type, c, handle, r, "join");
}

static PyObject *split(PyObject *module, PyObject *args)
{
    struct commd_group *handle = NULL;
    PyObject *timeout, *group = NULL;
    PyTypeObject *type;
    struct group *g;
    int64_t timeout_ms;
    int colour, key, r;

    if (!PyArg_ParseTuple(args, "OO!iiO", &type, group_type, &g, &colour, &key, &timeout) ||
        parse_timeout(timeout, false, "split", &timeout_ms) || group_enter(g, "split"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = commd_group_split(g->handle, colour, key, timeout_ms, &handle);
    Py_END_ALLOW_THREADS if (r) raise_last(r);
    else if (PyErr_Occurred()) commd_group_leave(handle);
    else group = handle ? group_wrap(type, g->context, handle) : Py_NewRef(Py_None);
    group_exit(g);
    return group;
}

/* @sequence of numbers; NULL: an exception. Owned by the caller. */
static int *ranks_of(PyObject *sequence, Py_ssize_t *ret_n)
{
    PyObject *list = PySequence_List(sequence);
    Py_ssize_t n = list ? PyList_Size(list) : 0;
    int *ranks = list ? PyMem_Malloc((size_t)n * sizeof *ranks) : NULL;
    long rank = 0;

    if (list && !ranks)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ranks && i < n && !PyErr_Occurred(); i++) {
        rank = PyLong_AsLong(PyList_GetItem(list, i));
        ranks[i] = rank < INT_MIN || rank > INT_MAX ? -1 : (int)rank;
    }
    Py_XDECREF(list);
    *ret_n = n;
    if (ranks && !PyErr_Occurred())
        return ranks;
    PyMem_Free(ranks);
    return NULL;
}

static PyObject *subgroup(PyObject *module, PyObject *args)
{
    struct commd_group *handle = NULL;
    PyObject *timeout, *members, *group = NULL;
    PyTypeObject *type;
    struct group *g;
    int64_t timeout_ms;
    const char *name;
    Py_ssize_t n;
    int *ranks, r;

    if (!PyArg_ParseTuple(args, "OO!sOO", &type, group_type, &g, &name, &members, &timeout) ||
        parse_timeout(timeout, false, "subgroup", &timeout_ms) || !(ranks = ranks_of(members, &n)))
        return NULL;
    if (group_enter(g, "subgroup") == 0) {
        Py_BEGIN_ALLOW_THREADS r =
            commd_group_subgroup(g->handle, name, ranks, (int)n, timeout_ms, &handle);
        Py_END_ALLOW_THREADS if (r) raise_last(r);
        else if (PyErr_Occurred()) commd_group_leave(handle);
        else group = group_wrap(type, g->context, handle);
        group_exit(g);
    }
    PyMem_Free(ranks);
    return group;
}

/* Takes over the reference, NULL is fine. */
static PyObject *wait_for(PyObject *work)
{
    PyObject *result = work ? PyObject_CallMethod(work, "wait", NULL) : NULL;

    Py_XDECREF(work);
    return result;
}

/* The blocking form of every operation. */
static PyObject *group_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct group *g = (struct group *)self;
    struct commd_status status = {0};
    PyObject *result = NULL;
    struct request q;
    int r;

    if (g->orphans)
        orphans_reap(g, false);
    if (request_fill(&q, g, args, nargs))
        return NULL;
    if (q.op.coll == COMMD_RECV && q.op.timeout_ms) { /* commd_recv() has the group's limit */
        request_clear(&q);
        return wait_for(group_start(self, args, nargs));
    }
    if (group_enter(g, "run") == 0) {
        Py_BEGIN_ALLOW_THREADS if (q.op.coll == COMMD_RECV) r =
            commd_recv(g->handle, q.op.recv, q.op.count, q.op.dtype, q.op.peer, q.op.tag, &status);
        else r = commd_run(g->handle, &q.op);
        Py_END_ALLOW_THREADS if (r) raise_last(r);
        else if (!PyErr_Occurred()) result = request_result(&q, &status);
        group_exit(g);
    }
    request_clear(&q);
    return result;
}

static PyObject *group_abort(PyObject *self, PyObject *reason)
{
    struct group *g = (struct group *)self;
    const char *text = PyUnicode_AsUTF8AndSize(reason, NULL);
    int r;

    if (!text || group_enter_beside(g, "abort"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = commd_group_abort(g->handle, text);
    Py_END_ALLOW_THREADS if (r) raise_last(r);
    group_exit_beside(g);
    return r ? NULL : Py_NewRef(Py_None);
}

/* ---- recovery -------------------------------------------------------------------------------- */

static PyObject *rejoin(PyObject *module, PyObject *args)
{
    struct commd_recover_options options = {.size_of = sizeof options};
    struct commd_group *handle = NULL;
    PyObject *timeout;
    PyTypeObject *type;
    struct context *c;
    const char *name;
    int rank, r;

    if (!PyArg_ParseTuple(args, "OO!siiO", &type, context_type, &c, &name, &rank, &options.size,
                          &timeout) ||
        parse_timeout(timeout, false, "rejoin", &options.timeout_ms) || context_enter(c, "rejoin"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = commd_group_rejoin(c->handle, name, rank, &options, &handle);
    Py_END_ALLOW_THREADS return joined(type, c, handle, r, "rejoin");
}

static PyObject *group_recover(PyObject *self, PyObject *args)
{
    struct commd_recover_options options = {.size_of = sizeof options};
    struct group *g = (struct group *)self;
    PyObject *wait, *timeout;
    int r;

    if (!PyArg_ParseTuple(args, "iiiOOz", &options.policy, &options.size, &options.min_size, &wait,
                          &timeout, &options.name) ||
        parse_timeout(wait, false, "recover", &options.wait_ms) ||
        parse_timeout(timeout, false, "recover", &options.timeout_ms))
        return NULL;
    if (g->handle && !g->closing && g->calls > g->beside) {
        raise_invalid("recover", "recover: another thread is inside a call of the group");
        return NULL;
    }
    if (group_enter(g, "recover"))
        return NULL;
    g->recovering = true;
    Py_BEGIN_ALLOW_THREADS r = commd_group_recover(g->handle, &options);
    Py_END_ALLOW_THREADS g->recovering = false;
    g->rank = commd_group_rank(g->handle);
    g->size = commd_group_size(g->handle);
    if (r)
        raise_last(r);
    group_exit(g);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *group_check(PyObject *self, PyObject *none)
{
    struct group *g = (struct group *)self;
    int r;

    if (group_enter(g, "check"))
        return NULL;
    r = commd_group_check(g->handle);
    if (r)
        raise_last(r);
    group_exit(g);
    return r ? NULL : Py_NewRef(Py_None);
}

static PyObject *group_rank_before(PyObject *self, PyObject *rank)
{
    struct group *g = (struct group *)self;
    long number = PyLong_AsLong(rank);
    int before;

    if ((number == -1 && PyErr_Occurred()) || group_enter(g, "rank_before"))
        return NULL;
    before = commd_group_rank_before(g->handle, number < 0 || number > INT_MAX ? -1 : (int)number);
    group_exit(g);
    return before < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(before);
}

static PyObject *group_set_timeout(PyObject *self, PyObject *timeout)
{
    struct group *g = (struct group *)self;
    int64_t ms;

    if (parse_timeout(timeout, false, "set_timeout", &ms) || group_enter(g, "set_timeout"))
        return NULL;
    if (ms)
        commd_group_set_timeout(g->handle, ms);
    else
        raise_invalid("set_timeout", "set_timeout: None is not a limit; math.inf means none");
    group_exit(g);
    return ms ? Py_NewRef(Py_None) : NULL;
}

static PyObject *group_close(PyObject *self, PyObject *none)
{
    struct group *g = (struct group *)self;

    g->closing = true;
    if (g->context)
        group_settle(g);
    Py_RETURN_NONE;
}

static PyObject *group_get(PyObject *self, void *closure)
{
    struct group *g = (struct group *)self;

    if (*(const char *)closure == 'c') /* closed */
        return PyBool_FromLong(!g->handle || g->closing);
    if (!g->handle)
        return raise_invalid("group", "the group was closed");
    switch (*(const char *)closure) {
    case 'n':
        return PyLong_FromLong(commd_group_nodes(g->handle));
    case 'e':
        return PyLong_FromUnsignedLongLong(commd_group_epoch(g->handle));
    default:
        return PyLong_FromUnsignedLongLong(commd_group_seq(g->handle));
    }
}

static void group_dealloc(PyObject *self)
{
    struct group *g = (struct group *)self;

    if (g->context) {
        g->closing = true;
        group_settle(g);
        Py_DECREF((PyObject *)g->context);
    }
    free_object(self);
}

/* ---- the module ------------------------------------------------------------------------------ */

static PyMethodDef context_methods[] = {
    {"close", context_close, METH_NOARGS,
     "Leaves all groups and ends the connection. Where another thread is inside a call, that\n"
     "happens when the call returns; new calls fail at once. May be called again."},
    {0},
};
static PyGetSetDef context_getset[] = {
    {"node", context_node, NULL, "Name of the node this context is connected to.", NULL},
    {"closed", context_closed, NULL, "Was close() called?", NULL},
    {0},
};
static PyType_Slot context_slots[] = {
    {Py_tp_doc, "A connection to the node's commd; see commd.connect()."},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {0},
};
static PyType_Spec context_spec = {"commd._core.Context", sizeof(struct context), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, context_slots};

static PyMethodDef group_methods[] = {
    {"_submit", (PyCFunction)(void (*)(void))group_submit, METH_FASTCALL, request_doc},
    {"_start", (PyCFunction)(void (*)(void))group_start, METH_FASTCALL, request_doc},
    {"_start_batch", group_start_batch, METH_O, "A list of tuples of the arguments of _start()."},
    {"set_timeout", group_set_timeout, METH_O,
     "set_timeout(seconds)\n\n"
     "Default limit of each operation; math.inf: none."},
    {"abort", group_abort, METH_O,
     "abort(reason)\n\n"
     "Revokes the group for everybody: what is pending and what comes later fails on all ranks "
     "with\n"
     "commd.Aborted and this reason. Any thread may call it, also while others are blocked in the\n"
     "group; it does not wait for ranks. recover() goes on from there."},
    {"check", group_check, METH_NOARGS,
     "check()\n\n"
     "Raises what the group is broken by, as a collective would; returns if it stands. Does not\n"
     "wait."},
    {"rank_before", group_rank_before, METH_O,
     "rank_before(rank)\n\n"
     "The rank that this rank had in the epoch before; None: it is a new process, or the group "
     "has\n"
     "not been recovered."},
    {"_recover", group_recover, METH_VARARGS, "(policy, size, min_size, wait, timeout, name)"},
    {"close", group_close, METH_NOARGS,
     "Leaves the group; what is pending fails with commd.Aborted. Not collective: the other ranks\n"
     "can complete what this rank has completed. Over several nodes it waits, as long as an\n"
     "operation may take, until they have called what it has sent to them. Where another thread\n"
     "is inside a call, it happens when that returns. May be called again."},
    {0},
};
static PyMemberDef group_members[] = {
    {"rank", T_INT, offsetof(struct group, rank), READONLY, "This process's rank, from 0."},
    {"size", T_INT, offsetof(struct group, size), READONLY, "Number of ranks."},
    {0},
};
static PyGetSetDef group_getset[] = {
    {"nodes", group_get, NULL, "Number of nodes.", "n"},
    {"epoch", group_get, NULL, "How often the group was made: 1, and more after each recover().",
     "e"},
    {"seq", group_get, NULL, "Number of collectives issued so far.", "s"},
    {"closed", group_get, NULL, "Was close() called?", "c"},
    {0},
};
static PyType_Slot group_slots[] = {
    {Py_tp_doc, "An ordered set of ranks; see commd.group.Group."},
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_methods, group_methods},
    {Py_tp_members, group_members},
    {Py_tp_getset, group_getset},
    {0},
};
static PyType_Spec group_spec = {"commd._core.Group", sizeof(struct group), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, group_slots};

static PyMethodDef functions[] = {
    {"connect", connect_, METH_VARARGS, "(type, socket, timeout)"},
    {"join", join, METH_VARARGS, "(type, context, name, rank, size, timeout)"},
    {"rejoin", rejoin, METH_VARARGS, "(type, context, name, rank, size, timeout)"},
    {"split", split, METH_VARARGS, "(type, parent, colour, key, timeout)"},
    {"subgroup", subgroup, METH_VARARGS, "(type, parent, name, ranks, timeout)"},
    {"alloc", memory_alloc, METH_VARARGS, "(context, bytes)"},
    {0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "commd._core",
                                        "libcommd for Python; see commd.", -1, functions};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromSpec(spec);

    if (!type || PyModule_AddObject(module, name, type)) {
        Py_XDECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type; /* lives as long as the module, which is never unloaded */
}

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (!module)
        return NULL;
    context_type = add_type(module, &context_spec, "Context");
    group_type = add_type(module, &group_spec, "Group");
    work_type = add_type(module, &work_spec, "Work");
    memory_type = add_type(module, &memory_spec, "Memory");
    if (!context_type || !group_type || !work_type || !memory_type ||
        PyModule_AddStringConstant(module, "version", commd_version()) || error_constants(module) ||
        request_constants(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
