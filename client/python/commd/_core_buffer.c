/* _core_buffer.c - from an array to a Py_buffer: by the buffer protocol, by a view of NumPy's where
 * it cannot export its own type, and else by another interface (_core_foreign.c). */
#include "_core.h"

#include <string.h>

static int signed_of(Py_ssize_t item)
{
    return item == 1 ? COMMD_I8 : item == 2 ? COMMD_I16 : item == 4 ? COMMD_I32 : COMMD_I64;
}

/* The dtype that a format of the struct module stands for, -1 if there is none. */
static int dtype_of(const char *format, Py_ssize_t item)
{
    if (!format)
        return COMMD_U8;
    if (*format == '@' || *format == '=' || *format == (PY_BIG_ENDIAN ? '>' : '<') ||
        (item == 1 && strchr("<>!", *format)))
        format++;
    if (!*format || format[1])
        return -1;
    if (strchr("bhilqn", *format))
        return signed_of(item);
    if (strchr("BHILQNc", *format))
        return signed_of(item) + (COMMD_U8 - COMMD_I8);
    switch (*format) {
    case '?':
        return COMMD_BOOL;
    case 'e':
        return COMMD_F16;
    case 'f':
        return COMMD_F32;
    case 'd':
        return COMMD_F64;
    default:
        return -1;
    }
}

/* Are there Python objects in elements of this format? Other processes have other ones. */
static bool has_objects(const char *format)
{
    bool in_name = false; /* of a record's field: "T{l:a:O:b:}" */

    for (; format && *format; format++) {
        if (*format == ':')
            in_name = !in_name;
        else if (*format == 'O' && !in_name)
            return true;
    }
    return false;
}

/* The same memory as something that NumPy can export, if it cannot export @array: bfloat16 of
 * ml_dtypes as uint16, and what can be moved only, such as dates, as void. NULL: it is neither. */
static PyObject *exportable(PyObject *array, int *ret_dtype)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype"), *view = NULL, *name = NULL;
    PyObject *size = NULL, *objects = NULL;
    char type[32];

    if (dtype) {
        name = PyObject_GetAttrString(dtype, "name");
        size = PyObject_GetAttrString(dtype, "itemsize");
        objects = PyObject_GetAttrString(dtype, "hasobject");
    }
    if (name && size && PyUnicode_Check(name) && PyLong_Check(size) && objects == Py_False) {
        bool bf16 = PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0;

        PyOS_snprintf(type, sizeof type, bf16 ? "u2" : "V%ld", PyLong_AsLong(size));
        view = PyObject_CallMethod(array, "view", "s", type);
        *ret_dtype = bf16 ? COMMD_BF16 : -1;
    }
    Py_XDECREF(dtype);
    Py_XDECREF(name);
    Py_XDECREF(size);
    Py_XDECREF(objects);
    PyErr_Clear();
    return view;
}

/* Says why @object cannot be used. */
static int refuse_buffer(const char *op, PyObject *object, bool writable)
{
    Py_buffer v;

    PyErr_Clear();
    if (PyObject_GetBuffer(object, &v, PyBUF_FULL_RO) == 0) {
        if (writable && v.readonly)
            raise_invalid(op, "%s: the %s that receives the result is read-only", op,
                          Py_TYPE(object) == &PyBytes_Type ? "bytes object" : "array");
        else
            raise_invalid(op,
                          "%s: the array is not C-contiguous; pass numpy.ascontiguousarray(array), "
                          "and for results a contiguous array",
                          op);
        PyBuffer_Release(&v);
    } else {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError,
                     "%s: a NumPy array or another buffer is needed, not %R (of a torch.Tensor "
                     "pass tensor.numpy())",
                     op, (PyObject *)Py_TYPE(object));
    }
    return -1;
}

/* Does it export buffers, though not this one? */
static bool has_buffers(PyObject *object)
{
    PyObject *view = PyMemoryView_FromObject(object);

    PyErr_Clear();
    Py_XDECREF(view);
    return view || PyObject_HasAttrString(object, "__array_interface__");
}

/* By a view that has the same memory. */
static int get_view(const char *op, PyObject *object, bool writable, int flags, Py_buffer *ret,
                    int *ret_dtype)
{
    PyObject *view = exportable(object, ret_dtype);
    int r;

    if (!view)
        return refuse_buffer(op, object, writable);
    r = PyObject_GetBuffer(view, ret, flags) ? refuse_buffer(op, view, writable) : 0;
    Py_DECREF(view); /* the buffer holds it */
    return r;
}

int buffer_get(struct request *r, const char *op, PyObject *object, bool writable, Py_buffer *ret,
               int *ret_dtype)
{
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0), got;

    if (PyObject_GetBuffer(object, ret, flags) == 0) {
        *ret_dtype = dtype_of(ret->format, ret->itemsize);
    } else {
        PyErr_Clear();
        got = has_buffers(object) ? 1 : foreign_get(r, op, object, writable, ret, ret_dtype);
        if (got <= 0)
            return got;
        if (get_view(op, object, writable, flags, ret, ret_dtype))
            return -1;
    }
    if (*ret_dtype < 0 && (ret->itemsize <= 0 || has_objects(ret->format)))
        raise_invalid(op, "%s: elements of format \"%s\" cannot leave this process", op,
                      ret->format);
    else if (request_place(r, op, COMMD_MEMORY_HOST) == 0)
        return 0;
    PyBuffer_Release(ret);
    return -1;
}
