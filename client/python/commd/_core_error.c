/* _core_error.c - exceptions. The classes are Python's (commd/errors.py, imported when the first is
 * raised); here the fields of struct commd_error are handed to them. */
#include "_core.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

int error_constants(PyObject *module)
{
#define CODE(name) PyModule_AddIntConstant(module, "E_" #name, COMMD_E_##name)
    return CODE(INVALID) || CODE(MISMATCH) || CODE(QUOTA) || CODE(TIMEOUT) || CODE(RANK_LOST) ||
                   CODE(NODE_LOST) || CODE(ENGINE_LOST) || CODE(ABORTED) || CODE(NO_DAEMON) ||
                   CODE(PROTOCOL) || CODE(DENIED) || CODE(NOMEM) || CODE(FORKED) ||
                   CODE(INTERNAL) || CODE(INTERRUPTED) || CODE(GPU_LOST)
               ? -1
               : 0;
#undef CODE
}

static void raise_fields(const struct commd_error *e, PyObject *message)
{
    PyObject *module = NULL, *error = NULL;

    if (message)
        module = PyImport_ImportModule("commd.errors");
    if (module)
        error = PyObject_CallMethod(module, "from_fields", "iOiiKKss", e->code, message, e->rank,
                                    e->pid, (unsigned long long)e->epoch,
                                    (unsigned long long)e->seq, e->node, e->op);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(module);
    Py_XDECREF(message);
}

void *raise_last(int code)
{
    struct commd_error e = *commd_last_error();

    /* on_interrupt() has left KeyboardInterrupt, or what the signal's handler raised */
    if (code == COMMD_E_INTERRUPTED && PyErr_Occurred())
        return NULL;
    raise_fields(&e, PyUnicode_DecodeUTF8(e.message, (Py_ssize_t)strlen(e.message), "replace"));
    return NULL;
}

void *raise_invalid(const char *op, const char *format, ...)
{
    struct commd_error e = {.code = COMMD_E_INVALID, .rank = -1};
    va_list args;

    PyOS_snprintf(e.op, sizeof e.op, "%s", op);
    va_start(args, format);
    raise_fields(&e, PyUnicode_FromFormatV(format, args));
    va_end(args);
    return NULL;
}

int parse_timeout(PyObject *seconds, bool zero, const char *op, int64_t *ret_ms)
{
    double s;

    *ret_ms = 0;
    if (seconds == Py_None)
        return 0;
    s = PyFloat_AsDouble(seconds);
    if (s == -1 && PyErr_Occurred())
        return -1;
    if (!(zero ? s >= 0 : s > 0)) { /* also refuses NaN */
        raise_invalid(op, "%s: timeout is %R; allowed: seconds %s 0, math.inf, or None", op,
                      seconds, zero ? "from" : "above");
        return -1;
    }
    *ret_ms = s > 1e12 ? -1 : (int64_t)ceil(s * 1000); /* 0 would mean the default */
    return 0;
}
