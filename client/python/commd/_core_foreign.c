/* _core_foreign.c - arrays without the buffer protocol: those that say where they lie by
 * __cuda_array_interface__ (version 2 and 3) or __dlpack__ (the capsule named "dltensor").
 *
 * What comes out is a Py_buffer, as of any other array, that holds the array or the capsule: it is
 * released as the others are. Memory of the CPU is taken so too (a torch.Tensor, with its
 * bfloat16).
 *
 * Streams. An array of DLPack is asked to make its contents ready on the stream of the operation.
 * One of __cuda_array_interface__ names the stream on which they are; the operation goes there
 * unless a stream was given. */
#include "_core.h"

#include <stdlib.h>
#include <string.h>

struct dl_device { /* of DLPack's dlpack.h */
    int32_t type, id;
};
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

/* What is known of an array. */
struct foreign {
    void *data;
    int dtype; /* -1: bytes */
    Py_ssize_t item, count;
    bool readonly, contiguous;
};

static int by_bytes(Py_ssize_t item)
{
    return item == 1 ? 0 : item == 2 ? 1 : item == 4 ? 2 : item == 8 ? 3 : -1;
}

/* @kind: 'i', 'u', 'f' or 'b', as NumPy has them. */
static int named_dtype(char kind, Py_ssize_t item)
{
    static const int8_t known[][4] = {
        {COMMD_I8, COMMD_I16, COMMD_I32, COMMD_I64},
        {COMMD_U8, COMMD_U16, COMMD_U32, COMMD_U64},
        {-1, COMMD_F16, COMMD_F32, COMMD_F64},
        {COMMD_BOOL, -1, -1, -1},
    };
    const char *kinds = "iufb", *row = strchr(kinds, kind);
    int column = by_bytes(item);

    return row && column >= 0 ? known[row - kinds][column] : -1;
}

/* @dims: a tuple. 0, or -1 and an exception. */
static int dims_of(PyObject *dims, Py_ssize_t i, Py_ssize_t *ret)
{
    *ret = PyLong_AsSsize_t(PyTuple_GetItem(dims, i));
    return *ret == -1 && PyErr_Occurred() ? -1 : 0;
}

static int interface_shape(PyObject *interface, struct foreign *a)
{
    PyObject *shape = PyDict_GetItemString(interface, "shape");
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    Py_ssize_t n = shape ? PyTuple_Size(shape) : -1, expected = a->item, dim, stride;

    if (n < 0)
        return -1;
    a->count = 1;
    a->contiguous = true;
    for (Py_ssize_t i = n - 1; i >= 0; i--) {
        if (dims_of(shape, i, &dim))
            return -1;
        if (strides && strides != Py_None) {
            if (dims_of(strides, i, &stride))
                return -1;
            a->contiguous = a->contiguous && (dim <= 1 || stride == expected);
        }
        expected *= dim;
        a->count *= dim;
    }
    a->contiguous = a->contiguous || !a->count;
    return 0;
}

/* 1 is the legacy default stream, 2 that of the thread, as for the driver. */
static int interface_stream(PyObject *interface, struct request *r)
{
    PyObject *stream = PyDict_GetItemString(interface, "stream");
    uintptr_t handle;

    if (!stream || stream == Py_None || r->stream_given)
        return 0;
    handle = PyLong_AsSize_t(stream);
    if (handle == (uintptr_t)-1 && PyErr_Occurred())
        return -1;
    handle = handle == 1 ? 0 : handle;
    if (r->stream_named && r->op.stream != (void *)handle) {
        PyErr_SetString(PyExc_ValueError, "the arrays are on different streams; say which one the "
                                          "operation comes behind: group.on(stream)");
        return -1;
    }
    r->stream_named = true;
    r->op.stream = (void *)handle; /* NOLINT */
    return 0;
}

static int from_interface(PyObject *interface, struct request *r, struct foreign *a)
{
    PyObject *type = PyDict_GetItemString(interface, "typestr");
    PyObject *data = PyDict_GetItemString(interface, "data");
    const char *text = type ? PyUnicode_AsUTF8AndSize(type, NULL) : NULL;

    if (!text || strlen(text) < 3 || !data || !PyTuple_Check(data) || PyTuple_Size(data) != 2) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "__cuda_array_interface__ is not as it should be");
        return -1;
    }
    a->item = strtol(text + 2, NULL, 10);
    a->dtype = *text == '>' && a->item > 1 ? -1 : named_dtype(text[1], a->item);
    a->data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    a->readonly = PyObject_IsTrue(PyTuple_GetItem(data, 1)) == 1;
    if (PyErr_Occurred() || a->item < 1 || interface_shape(interface, a))
        return -1;
    return interface_stream(interface, r);
}

static int from_tensor(const struct dl_tensor *t, struct foreign *a)
{
    static const char kinds[] = {
        [DL_INT] = 'i', [DL_UINT] = 'u', [DL_FLOAT] = 'f', [DL_BOOL] = 'b'};
    int64_t expected = 1;

    a->data = t->data ? (char *)t->data + t->byte_offset : NULL;
    a->item = t->dtype.bits * t->dtype.lanes / 8;
    a->count = 1;
    a->contiguous = true;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->strides && t->shape[i] > 1 && t->strides[i] != expected)
            a->contiguous = false;
        expected *= t->shape[i];
        a->count *= (Py_ssize_t)t->shape[i];
    }
    a->contiguous = a->contiguous || !a->count;
    a->dtype = -1;
    if (t->dtype.lanes == 1 && t->dtype.code == DL_BFLOAT && t->dtype.bits == 16)
        a->dtype = COMMD_BF16;
    else if (t->dtype.lanes == 1 && t->dtype.code < sizeof kinds && kinds[t->dtype.code])
        a->dtype = named_dtype(kinds[t->dtype.code], a->item);
    if (a->item * 8 == t->dtype.bits * t->dtype.lanes && a->item > 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "elements of less than a byte");
    return -1;
}

/* Where @array is, by __dlpack_device__: enum commd_memory, or -1 and an exception. */
static int dl_place(PyObject *array)
{
    PyObject *device = PyObject_CallMethod(array, "__dlpack_device__", NULL);
    long type = device && PyTuple_Check(device) ? PyLong_AsLong(PyTuple_GetItem(device, 0)) : -1;

    Py_XDECREF(device);
    if (type == DL_CPU || type == DL_CUDA_HOST)
        return COMMD_MEMORY_HOST;
    if (type == DL_CUDA || type == DL_CUDA_MANAGED)
        return COMMD_MEMORY_CUDA;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError,
                     "it is on a device of DLPack's type %ld, which is no GPU of "
                     "CUDA",
                     type);
    return -1;
}

/* A new reference to the capsule. */
static PyObject *dl_capsule(PyObject *array, int place, const struct request *r)
{
    PyObject *method, *none, *keywords, *capsule = NULL;
    size_t stream = r->op.stream ? (size_t)r->op.stream : 1;

    if (place == COMMD_MEMORY_HOST)
        return PyObject_CallMethod(array, "__dlpack__", NULL);
    method = PyObject_GetAttrString(array, "__dlpack__");
    none = PyTuple_New(0);
    keywords = Py_BuildValue("{s:n}", "stream", (Py_ssize_t)stream);
    if (method && none && keywords)
        capsule = PyObject_Call(method, none, keywords);
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

/* *ret_holder: a new reference to what keeps the memory. Returns enum commd_memory, or -1 and an
 * exception, or -2: it has neither interface. */
static int look(PyObject *array, struct request *r, struct foreign *a, PyObject **ret_holder)
{
    PyObject *interface = PyObject_GetAttrString(array, "__cuda_array_interface__");
    const struct dl_tensor *t;
    int place;

    if (interface) {
        int bad = PyDict_Check(interface) ? from_interface(interface, r, a) : -1;

        Py_DECREF(interface);
        *ret_holder = Py_NewRef(array);
        return bad ? -1 : COMMD_MEMORY_CUDA;
    }
    PyErr_Clear(); /* a tensor of torch on the CPU raises here */
    if (!PyObject_HasAttrString(array, "__dlpack_device__"))
        return -2;
    place = dl_place(array);
    *ret_holder = place < 0 ? NULL : dl_capsule(array, place, r);
    t = *ret_holder ? PyCapsule_GetPointer(*ret_holder, "dltensor") : NULL;
    return t && from_tensor(t, a) == 0 ? place : -1;
}

int foreign_get(struct request *r, const char *op, PyObject *array, bool writable, Py_buffer *ret,
                int *ret_dtype)
{
    struct foreign a = {0};
    PyObject *holder = NULL;
    int place = look(array, r, &a, &holder);

    if (place == -2)
        return 1;
    if (place < 0) {
        PyObject *type, *value, *trace;

        PyErr_Fetch(&type, &value, &trace);
        raise_invalid(op, "%s: an array of %R cannot be taken: %S", op, (PyObject *)Py_TYPE(array),
                      value ? value : Py_None);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else if (!a.contiguous) {
        raise_invalid(op, "%s: the array is not C-contiguous; pass a contiguous one", op);
        place = -1;
    } else if (writable && a.readonly) {
        raise_invalid(op, "%s: the array that receives the result is read-only", op);
        place = -1;
    }
    if (place < 0) {
        Py_XDECREF(holder);
        return -1;
    }
    memset(ret, 0, sizeof *ret);
    ret->buf = a.data;
    ret->obj = holder;
    ret->itemsize = a.item;
    ret->len = a.item * a.count;
    ret->readonly = a.readonly;
    ret->format = (char *)(a.dtype < 0 ? "V" : "B"); /* for messages */
    *ret_dtype = a.dtype;
    if (request_place(r, op, place) == 0)
        return 0;
    PyBuffer_Release(ret);
    return -1;
}

int request_place(struct request *r, const char *op, int place)
{
    if (r->op.memory == COMMD_MEMORY_ANY)
        r->op.memory = place;
    if (r->op.memory == place)
        return 0;
    return refuse(op, "%s: one array is in host memory, another one on a GPU", op);
}

int parse_stream(PyObject *stream, const char *op, void **ret)
{
    static const char *const names[] = {"__cuda_stream__", "cuda_stream", "ptr", "native_handle"};
    PyObject *number = PyLong_Check(stream) ? Py_NewRef(stream) : NULL;
    uintptr_t handle;

    for (size_t i = 0; !number && i < sizeof names / sizeof *names; i++) {
        number = PyObject_GetAttrString(stream, names[i]);
        PyErr_Clear();
        if (number && PyCallable_Check(number)) { /* (version, handle) */
            PyObject *pair = PyObject_CallMethod(stream, names[i], NULL);

            Py_DECREF(number);
            number = pair && PyTuple_Check(pair) && PyTuple_Size(pair) == 2
                         ? Py_NewRef(PyTuple_GetItem(pair, 1))
                         : NULL;
            Py_XDECREF(pair);
        }
    }
    PyErr_Clear();
    handle = number && PyLong_Check(number) ? PyLong_AsSize_t(number) : (uintptr_t)-1;
    Py_XDECREF(number);
    if (handle == (uintptr_t)-1) {
        PyErr_Clear();
        raise_invalid(op,
                      "%s: %R is no CUDA stream; allowed: its handle as an integer (0: the "
                      "default one), or an object with __cuda_stream__, .cuda_stream or .ptr",
                      op, stream);
        return -1;
    }
    *ret = (void *)(handle == 1 ? 0 : handle); /* NOLINT */
    return 0;
}
