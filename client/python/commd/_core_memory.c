/* _core_memory.c - memory of commd_alloc() as a buffer: numpy.ndarray and memoryview hold it, and
 * who lets go last frees it, also after the context was closed. */
#include "_core.h"

struct memory {
    PyObject_HEAD void *address; /* owned */
    Py_ssize_t size;
};

PyTypeObject *memory_type;

PyObject *memory_alloc(PyObject *module, PyObject *args)
{
    struct context *c;
    struct memory *m;
    Py_ssize_t size;
    void *address;
    int r;

    if (!PyArg_ParseTuple(args, "O!n", context_type, &c, &size))
        return NULL;
    if (size < 0)
        return raise_invalid("alloc", "alloc: %zd bytes; allowed: 0 and more", size);
    m = (struct memory *)PyType_GenericAlloc(memory_type, 0);
    if (!m || context_enter(c, "alloc")) {
        Py_XDECREF((PyObject *)m);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS r = commd_alloc(c->handle, (size_t)size, &address);
    Py_END_ALLOW_THREADS if (r)
    {
        raise_last(r);
        Py_DECREF((PyObject *)m);
        m = NULL;
    }
    else
    {
        m->address = address;
        m->size = size;
    }
    context_exit(c);
    return (PyObject *)m;
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct memory *m = (struct memory *)self;

    return PyBuffer_FillInfo(view, self, m->address, m->size, 0, flags);
}

static void memory_dealloc(PyObject *self)
{
    struct memory *m = (struct memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);

    /* may write a message to commd: others need not wait for that */
    Py_BEGIN_ALLOW_THREADS commd_free(m->address);
    Py_END_ALLOW_THREADS free_it(self);
    Py_DECREF(type);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Registered memory; see commd.Context.empty()."},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {0},
};
PyType_Spec memory_spec = {"commd._core.Memory", sizeof(struct memory), 0, Py_TPFLAGS_DEFAULT,
                           memory_slots};
