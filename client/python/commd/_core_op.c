/* _core_op.c - from Python's arguments to struct commd_op.
 *
 * One table row says which buffers an operation has and which of them hold a block for each rank;
 * everything else follows: what is checked, what is counted, what is held. libcommd sees addresses
 * only, so the sizes of all buffers are compared here, before anything is started.
 *
 * A buffer is anything with the buffer protocol that is C-contiguous. It is exported (Py_buffer)
 * until the operation is done, so that it can neither be freed nor resized meanwhile. Elements of a
 * type that libcommd does not know (complex, records) are moved as bytes and cannot be reduced. */
#include "_core.h"

#include <string.h>

const char request_doc[] = "(coll, result, send, recv, dtype, op, root_or_peer, timeout,\n"
                           " send_counts=None, recv_counts=None, scale=None, tag=0, stream=None)";

enum {
    A_COLL,
    A_RESULT,
    A_SEND,
    A_RECV,
    A_DTYPE,
    A_OP,
    A_ROOT,
    A_TIMEOUT,
    A_SEND_COUNTS,
    A_RECV_COUNTS,
    A_SCALE,
    A_TAG,
    A_STREAM
};

enum { BLOCK = 1, ALL = 2, AT_ROOT = 4, COUNTED = 8 };

struct row {
    const char *name;
    unsigned char send, recv; /* 0: no such buffer */
    bool reduces;
};

static const struct row rows[] = {
    [COMMD_BARRIER] = {"barrier", 0, 0, false},
    [COMMD_ALL_REDUCE] = {"all_reduce", BLOCK, BLOCK, true},
    [COMMD_BROADCAST] = {"broadcast", 0, BLOCK, false},
    [COMMD_ALL_GATHER] = {"all_gather", BLOCK, ALL, false},
    [COMMD_REDUCE_SCATTER] = {"reduce_scatter", ALL, BLOCK, true},
    [COMMD_REDUCE] = {"reduce", BLOCK, BLOCK | AT_ROOT, true},
    [COMMD_GATHER] = {"gather", BLOCK, ALL | AT_ROOT, false},
    [COMMD_SCATTER] = {"scatter", ALL | AT_ROOT, BLOCK, false},
    [COMMD_ALL_TO_ALL] = {"all_to_all", ALL, ALL, false},
    [COMMD_ALL_GATHER_V] = {"all_gather_v", BLOCK, ALL | COUNTED, false},
    [COMMD_REDUCE_SCATTER_V] = {"reduce_scatter_v", ALL | COUNTED, BLOCK, true},
    [COMMD_GATHER_V] = {"gather_v", BLOCK, ALL | AT_ROOT | COUNTED, false},
    [COMMD_SCATTER_V] = {"scatter_v", ALL | AT_ROOT | COUNTED, BLOCK, false},
    [COMMD_ALL_TO_ALL_V] = {"all_to_all_v", ALL | COUNTED, ALL | COUNTED, false},
    [COMMD_SEND] = {"send", BLOCK, 0, false},
    [COMMD_RECV] = {"recv", 0, BLOCK, false},
};

static const char *const op_names[] = {
    [COMMD_SUM] = "sum", [COMMD_AVG] = "avg",   [COMMD_PROD] = "prod",
    [COMMD_MIN] = "min", [COMMD_MAX] = "max",   [COMMD_BAND] = "band",
    [COMMD_BOR] = "bor", [COMMD_BXOR] = "bxor", [COMMD_PREMUL_SUM] = "premul_sum",
};

#define LEN(array) (sizeof(array) / sizeof(array)[0])

/* What is being filled in. */
struct fill {
    struct request *r;
    const struct row *row;
    const char *name; /* of the operation */
    Py_ssize_t size;  /* ranks */
    int rank;
    int dtype;       /* as told; -1: taken from the first buffer */
    Py_ssize_t item; /* bytes of one element; 0: no buffer was seen yet */
    size_t unit;     /* elements as libcommd sees them in one: more than 1 if moved as bytes */
};

/* One of the two sides of an operation. */
struct side {
    unsigned kind; /* 0: not on this rank */
    bool is_list;
    size_t n;       /* elements in all */
    size_t *counts; /* of each block; borrowed; NULL: all the same */
    void **addresses;
};

/* ---- buffers ------------------------------------------------------------------------------- */

/* The first buffer decides the type unless it was told; the others must be of the same. */
static int check_type(struct fill *f, const Py_buffer *v, int dtype)
{
    size_t told = f->dtype >= 0 ? commd_dtype_size(f->dtype) : 0;
    const char *format = v->format ? v->format : "B";

    if (told) {
        f->item = (Py_ssize_t)told;
        f->r->op.dtype = f->dtype;
        if ((v->itemsize != f->item && v->itemsize != 1) || v->len % f->item)
            return refuse(f->name,
                          "%s: elements of %zd bytes (format \"%s\", %zd bytes in all) cannot be "
                          "taken as the given dtype, which has %zd bytes",
                          f->name, v->itemsize, format, v->len, f->item);
        return 0;
    }
    if (!f->item) {
        if (dtype < 0 && f->row->reduces)
            return refuse(f->name,
                          "%s: no operator is defined for elements of format \"%s\"; allowed: "
                          "integers of 8 to 64 bits, float16, bfloat16, float32, float64 and bool, "
                          "in native byte order",
                          f->name, format);
        f->item = v->itemsize;
        f->unit = dtype < 0 ? (size_t)v->itemsize : 1;
        f->r->op.dtype = dtype < 0 ? COMMD_U8 : dtype;
    } else if (f->item != v->itemsize || f->r->op.dtype != (dtype < 0 ? COMMD_U8 : dtype)) {
        return refuse(f->name,
                      "%s: the arrays are of different types (format \"%s\" is not that of "
                      "the first)",
                      f->name, format);
    }
    return 0;
}

static int get_buffer(struct fill *f, PyObject *object, bool writable, Py_buffer *ret)
{
    int dtype;

    if (buffer_get(f->r, f->name, object, writable, ret, &dtype))
        return -1;
    if (check_type(f, ret, dtype) == 0)
        return 0;
    PyBuffer_Release(ret);
    return -1;
}

/* ---- sides ----------------------------------------------------------------------------------- */

/* A list of buffers, one for each rank. */
static int fill_list(struct fill *f, struct side *s, PyObject *list, bool writable)
{
    struct request *r = f->r;
    size_t first = r->nblocks;
    Py_ssize_t n = PySequence_Size(list);

    if (n != f->size)
        return refuse(f->name, "%s: a list of %zd arrays, but the group has %zd ranks", f->name, n,
                      f->size);
    if (!r->blocks) { /* room for both sides */
        r->blocks = PyMem_Calloc(2 * (size_t)n, sizeof *r->blocks);
        r->addresses = PyMem_Calloc(2 * (size_t)n, sizeof *r->addresses);
        if (!r->blocks || !r->addresses) {
            PyErr_NoMemory();
            return -1;
        }
    }
    s->is_list = true;
    s->addresses = r->addresses + first;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        Py_buffer *v = &r->blocks[r->nblocks];

        if (!item || get_buffer(f, item, writable, v)) {
            Py_XDECREF(item);
            return -1;
        }
        Py_DECREF(item);
        r->addresses[r->nblocks++] = v->buf;
        s->counts[i] = (size_t)(v->len / f->item);
        s->n += s->counts[i];
    }
    return 0;
}

/* Counts that the caller gave; those of a list must be the same. */
static int fill_counts(struct fill *f, struct side *s, PyObject *counts)
{
    size_t sum = 0, n;

    if (counts == Py_None && s->is_list)
        return 0;
    if (counts == Py_None || !PySequence_Check(counts) || PySequence_Size(counts) != f->size) {
        PyErr_Clear();
        return refuse(f->name, "%s: counts must be a sequence of %zd integers, one for each rank",
                      f->name, f->size);
    }
    for (Py_ssize_t i = 0; i < f->size; i++) {
        PyObject *item = PySequence_GetItem(counts, i);
        PyObject *number = item ? PyNumber_Index(item) : NULL;

        n = number ? PyLong_AsSize_t(number) : (size_t)-1;
        Py_XDECREF(item);
        Py_XDECREF(number);
        if (n == (size_t)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            raise_invalid(f->name, "%s: counts must be integers from 0; counts[%zd] is not",
                          f->name, i);
            return -1;
        }
        if ((s->is_list && s->counts[i] != n) || sum + n < sum || sum + n > s->n)
            return refuse(f->name, "%s: counts do not fit the array at rank %zd", f->name, i);
        s->counts[i] = n;
        sum += n;
    }
    if (sum != s->n)
        return refuse(f->name, "%s: counts add up to %zu elements, but the array has %zu", f->name,
                      sum, s->n);
    return 0;
}

static int fill_side(struct fill *f, struct side *s, PyObject *arg, PyObject *counts, bool writable,
                     Py_buffer *view)
{
    if (!s->kind)
        return 0;
    if (arg == Py_None)
        return refuse(f->name, "%s: rank %d needs an array to %s", f->name, f->rank,
                      writable ? "receive into (out=)" : "send");
    if ((s->kind & ALL) && (PyList_Check(arg) || PyTuple_Check(arg))) {
        if (fill_list(f, s, arg, writable))
            return -1;
    } else {
        if (get_buffer(f, arg, writable, view))
            return -1;
        s->n = (size_t)(view->len / f->item);
    }
    return s->kind & COUNTED ? fill_counts(f, s, counts) : 0;
}

/* Elements of a block: those of the side that has one block, else the share of each rank. */
static int block_of(const struct fill *f, const struct side *s, size_t *ret)
{
    size_t size = (size_t)f->size;

    *ret = s->n;
    if (!(s->kind & ALL))
        return 0;
    *ret = s->n / size;
    for (size_t i = 0; s->is_list && i < size; i++)
        if (s->counts[i] != *ret) {
            raise_invalid(f->name,
                          "%s: the arrays of the list have different sizes; %s_v allows it",
                          f->name, f->name);
            return -1;
        }
    if (s->n % size == 0)
        return 0;
    return refuse(f->name, "%s: an array of %zu elements cannot be divided by %zu ranks", f->name,
                  s->n, size);
}

/* Do both sides mean the same amount? */
static int fit_sides(struct fill *f, struct side *send, struct side *recv)
{
    const struct side *counted = send->kind & COUNTED ? send : recv, *other = send;
    size_t a = 0, b = 0;

    if (send->kind & recv->kind & COUNTED)
        return 0;
    if (counted->kind & COUNTED) {
        other = counted == send ? recv : send;
        /* only the root of gather_v and scatter_v has counts; libcommd compares them there */
        if (counted->kind & AT_ROOT || other->n == counted->counts[f->rank])
            return 0;
        return refuse(f->name, "%s: the array of this rank has %zu elements, but counts[%d] is %zu",
                      f->name, other->n, f->rank, counted->counts[f->rank]);
    }
    if ((send->kind && block_of(f, send, &a)) || (recv->kind && block_of(f, recv, &b)))
        return -1;
    if (send->kind && recv->kind && a != b)
        return refuse(f->name, "%s: sent are %zu elements %s, received %zu %s", f->name, send->n,
                      send->kind & ALL ? "in all" : "each", recv->n,
                      recv->kind & ALL ? "in all" : "each");
    f->r->op.count = (send->kind ? a : b) * f->unit;
    return 0;
}

static int fill_buffers(struct fill *f, PyObject *const *args, PyObject *send_counts,
                        PyObject *recv_counts, bool at_root)
{
    struct request *r = f->r;
    struct side send = {.kind = f->row->send}, recv = {.kind = f->row->recv};
    size_t size = (size_t)f->size;

    if ((send.kind & AT_ROOT) && !at_root)
        send.kind = 0;
    if ((recv.kind & AT_ROOT) && !at_root)
        recv.kind = 0;
    if ((f->row->send | f->row->recv) & ALL) {
        r->counts = PyMem_Calloc(2 * size, sizeof *r->counts);
        if (!r->counts) {
            PyErr_NoMemory();
            return -1;
        }
        send.counts = r->counts;
        recv.counts = r->counts + size;
    }
    if (fill_side(f, &recv, args[A_RECV], recv_counts, true, &r->recv))
        return -1;
    r->op.recv = r->recv.buf;
    if (args[A_SEND] == args[A_RECV] && r->recv.obj && !(send.kind & COUNTED)) {
        send.n = recv.n; /* in place: exporting a NumPy array costs more than all the rest here */
        r->op.send = r->recv.buf;
    } else {
        if (fill_side(f, &send, args[A_SEND], send_counts, false, &r->send))
            return -1;
        r->op.send = r->send.buf;
    }
    if (fit_sides(f, &send, &recv))
        return -1;
    r->op.send_blocks = (const void *const *)send.addresses;
    r->op.recv_blocks = (void *const *)recv.addresses;
    if (!((f->row->send | f->row->recv) & COUNTED))
        return 0;
    /* gather_v and scatter_v: what this rank sends or receives stands in the first place */
    if (!(send.kind & COUNTED) && send.kind)
        send.counts[0] = send.n;
    if (!(recv.kind & COUNTED) && recv.kind)
        recv.counts[0] = recv.n;
    for (size_t i = 0; i < 2 * size; i++)
        r->counts[i] *= f->unit; /* cannot overflow: each is at most the bytes of a buffer */
    r->op.send_counts = send.counts;
    r->op.recv_counts = recv.counts;
    return 0;
}

/* ---- the rest of the arguments --------------------------------------------------------------- */

static int parse_int(PyObject *arg, const char *op, const char *what, int *ret)
{
    PyObject *number = PyNumber_Index(arg);
    long v = number ? PyLong_AsLong(number) : -1;

    Py_XDECREF(number);
    if (v == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
        v = (long)INT32_MAX + 1;
    }
    if (v < INT32_MIN || v > INT32_MAX)
        return refuse(op, "%s: %s is out of range", op, what);
    *ret = (int)v;
    return 0;
}

static int parse_redop(struct fill *f, PyObject *arg, PyObject *scale)
{
    const char *text = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : NULL;

    for (size_t i = 0; text && i < LEN(op_names); i++)
        if (strcmp(text, op_names[i]) == 0) {
            f->r->op.redop = (int)i;
            if (i != COMMD_PREMUL_SUM)
                break;
            f->r->op.scale = PyFloat_AsDouble(scale);
            return f->r->op.scale == -1 && PyErr_Occurred() ? -1 : 0;
        }
    PyErr_Clear();
    if (!text || strcmp(text, op_names[f->r->op.redop])) {
        char allowed[200] = "";

        for (size_t i = 0, at = 0; i < LEN(op_names) && at < sizeof allowed; i++)
            at += (size_t)PyOS_snprintf(allowed + at, sizeof allowed - at, "%s%s",
                                        i == 0                  ? ""
                                        : i < LEN(op_names) - 1 ? ", "
                                                                : " and ",
                                        op_names[i]);
        raise_invalid(f->name, "%s: op is %R; allowed: %s", f->name, arg, allowed);
        return -1;
    }
    if (scale == Py_None)
        return 0;
    return refuse(f->name, "%s: scale= goes with op=\"premul_sum\"", f->name);
}

/* Names and dtype objects are known in Python. */
static int parse_dtype(PyObject *arg, int *ret)
{
    PyObject *module, *number = NULL;

    *ret = -1;
    if (arg == Py_None)
        return 0;
    module = PyImport_ImportModule("commd.dtypes");
    if (module)
        number = PyObject_CallMethod(module, "number", "O", arg);
    if (number)
        *ret = (int)PyLong_AsLong(number);
    Py_XDECREF(number);
    Py_XDECREF(module);
    return *ret < 0 ? -1 : 0;
}

static int fill(struct fill *f, const struct group *g, PyObject *const *args, Py_ssize_t nargs)
{
    struct commd_op *op = &f->r->op;
    PyObject *more[REQUEST_ARGS_MAX] = {0};
    bool p2p = op->coll == COMMD_SEND || op->coll == COMMD_RECV;

    for (Py_ssize_t i = REQUEST_ARGS_MIN; i < REQUEST_ARGS_MAX; i++)
        more[i] = i < nargs ? args[i] : Py_None;
    if (parse_int(args[A_ROOT], f->name, p2p ? "the other rank" : "root", &op->root) ||
        (more[A_TAG] != Py_None && parse_int(more[A_TAG], f->name, "tag", &op->tag)) ||
        parse_timeout(args[A_TIMEOUT], false, f->name, &op->timeout_ms) ||
        parse_dtype(args[A_DTYPE], &f->dtype) ||
        (f->row->reduces && parse_redop(f, args[A_OP], more[A_SCALE])))
        return -1;
    if (more[A_STREAM] != Py_None) {
        if (parse_stream(more[A_STREAM], f->name, &op->stream))
            return -1;
        f->r->stream_given = true;
        if (!f->row->send && !f->row->recv)
            op->memory = COMMD_MEMORY_CUDA; /* a barrier on a stream */
    }
    op->peer = op->root;
    if (!f->row->send && !f->row->recv)
        return 0;
    return fill_buffers(f, args, more[A_SEND_COUNTS], more[A_RECV_COUNTS], op->root == g->rank);
}

int request_constants(PyObject *module)
{
    char upper[32];

    for (size_t i = 0; i < LEN(rows); i++) {
        if (!rows[i].name)
            continue;
        PyOS_snprintf(upper, sizeof upper, "%s", rows[i].name);
        for (char *c = upper; *c; c++)
            *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
        if (PyModule_AddIntConstant(module, upper, (long)i))
            return -1;
    }
    return 0;
}

int request_fill(struct request *r, const struct group *g, PyObject *const *args, Py_ssize_t nargs)
{
    struct fill f = {.r = r, .rank = g->rank, .size = g->size, .unit = 1};
    long coll;

    memset(r, 0, sizeof *r);
    if (nargs < REQUEST_ARGS_MIN || nargs > REQUEST_ARGS_MAX) {
        PyErr_Format(PyExc_TypeError, "%zd arguments; expected %s", nargs, request_doc);
        return -1;
    }
    coll = PyLong_AsLong(args[A_COLL]);
    if (coll == -1 && PyErr_Occurred())
        return -1;
    if (coll < 0 || (size_t)coll >= LEN(rows) || !rows[coll].name) {
        PyErr_Format(PyExc_ValueError, "unknown operation %ld", coll);
        return -1;
    }
    f.row = &rows[coll];
    f.name = f.row->name;
    if (!g->size)
        return refuse(f.name, "%s: this group was never joined", f.name);
    r->op.size = sizeof r->op;
    r->op.coll = (int)coll;
    r->result = Py_NewRef(args[A_RESULT]);
    if (fill(&f, g, args, nargs) == 0)
        return 0;
    request_clear(r);
    return -1;
}

void request_clear(struct request *r)
{
    PyBuffer_Release(&r->send); /* of an empty one: does nothing */
    PyBuffer_Release(&r->recv);
    for (size_t i = 0; i < r->nblocks; i++)
        PyBuffer_Release(&r->blocks[i]);
    r->nblocks = 0;
    PyMem_Free(r->blocks);
    PyMem_Free(r->addresses);
    PyMem_Free(r->counts);
    r->blocks = NULL;
    r->addresses = NULL;
    r->counts = NULL;
    Py_CLEAR(r->result);
}

PyObject *request_result(const struct request *r, const struct commd_status *status)
{
    PyObject *module, *result = NULL;

    if (r->op.coll != COMMD_RECV || !status)
        return Py_NewRef(r->result);
    module = PyImport_ImportModule("commd.group");
    if (module)
        result = PyObject_CallMethod(module, "Status", "iin", status->source, status->tag,
                                     (Py_ssize_t)status->bytes);
    Py_XDECREF(module);
    return result;
}
