"""libcommd through ctypes: the public C API, nothing else. Standard library only.

Functions raise CommdError on failure, with all fields of struct commd_error. COMMD_LIB names the
shared library; tests set it to the one of the build (cluster.py).
"""

import ctypes
import os

DTYPES = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "bool"]
DTYPE_BYTES = [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1]
REDOPS = ["sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum"]
COLLS = [
    "barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "gather",
    "scatter", "all_to_all", "all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v",
    "all_to_all_v",
]  # fmt: skip

P2P = {"send": 64, "recv": 65}

CODES = {
    -1: "INVALID", -2: "MISMATCH", -3: "QUOTA", -4: "TIMEOUT", -5: "RANK_LOST", -6: "NODE_LOST",
    -7: "ENGINE_LOST", -8: "ABORTED", -9: "NO_DAEMON", -10: "PROTOCOL", -11: "DENIED",
    -12: "NOMEM", -13: "FORKED", -14: "INTERNAL", -15: "INTERRUPTED",
    -17: "GPU_LOST",
}  # fmt: skip


class ErrorStruct(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("epoch", ctypes.c_uint64),
        ("seq", ctypes.c_uint64),
        ("node", ctypes.c_char * 64),
        ("op", ctypes.c_char * 24),
        ("message", ctypes.c_char * 512),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("socket", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("waits_for", ctypes.c_char_p),
        ("waits_rank", ctypes.c_uint),
        ("waits_size", ctypes.c_uint),
    ]


class RecoverOptions(ctypes.Structure):
    _fields_ = [
        ("size_of", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("policy", ctypes.c_int),
        ("size", ctypes.c_int),
        ("min_size", ctypes.c_int),
        ("wait_ms", ctypes.c_int64),
        ("timeout_ms", ctypes.c_int64),
    ]


class Op(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("coll", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("redop", ctypes.c_int),
        ("root", ctypes.c_int),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("send_counts", ctypes.c_void_p),
        ("recv_counts", ctypes.c_void_p),
        ("send_blocks", ctypes.c_void_p),
        ("recv_blocks", ctypes.c_void_p),
        ("scale", ctypes.c_double),
        ("peer", ctypes.c_int),
        ("tag", ctypes.c_int),
        ("memory", ctypes.c_int),
        ("stream", ctypes.c_void_p),
    ]


class Status(ctypes.Structure):
    _fields_ = [("source", ctypes.c_int), ("tag", ctypes.c_int), ("bytes", ctypes.c_size_t)]


class CommdError(Exception):
    def __init__(self, fields):
        self.fields = fields
        super().__init__(f"{fields['code']}: {fields['message']}")


def load():
    lib = ctypes.CDLL(os.environ["COMMD_LIB"])
    pointer = ctypes.c_void_p
    signatures = {
        "commd_version": (ctypes.c_char_p, []),
        "commd_last_error": (ctypes.POINTER(ErrorStruct), []),
        "commd_dtype_size": (ctypes.c_size_t, [ctypes.c_int]),
        "commd_connect": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(pointer)]),
        "commd_disconnect": (None, [pointer]),
        "commd_node_name": (ctypes.c_char_p, [pointer]),
        "commd_group_join": (
            ctypes.c_int,
            [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
             ctypes.POINTER(pointer)],
        ),
        "commd_group_split": (
            ctypes.c_int,
            [pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.POINTER(pointer)],
        ),
        "commd_group_subgroup": (
            ctypes.c_int,
            [pointer, ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_int64,
             ctypes.POINTER(pointer)],
        ),
        "commd_group_rank": (ctypes.c_int, [pointer]),
        "commd_group_size": (ctypes.c_int, [pointer]),
        "commd_group_leave": (None, [pointer]),
        "commd_group_abort": (ctypes.c_int, [pointer, ctypes.c_char_p]),
        "commd_group_nodes": (ctypes.c_int, [pointer]),
        "commd_group_epoch": (ctypes.c_uint64, [pointer]),
        "commd_group_recover": (ctypes.c_int, [pointer, ctypes.POINTER(RecoverOptions)]),
        "commd_group_rejoin": (
            ctypes.c_int,
            [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(RecoverOptions),
             ctypes.POINTER(pointer)],
        ),
        "commd_group_rank_before": (ctypes.c_int, [pointer, ctypes.c_int]),
        "commd_group_check": (ctypes.c_int, [pointer]),
        "commd_group_set_timeout": (None, [pointer, ctypes.c_int64]),
        "commd_run": (ctypes.c_int, [pointer, ctypes.POINTER(Op)]),
        "commd_start": (
            ctypes.c_int,
            [pointer, ctypes.POINTER(Op), pointer, pointer, ctypes.POINTER(pointer)],
        ),
        "commd_start_batch": (
            ctypes.c_int,
            [pointer, ctypes.POINTER(Op), ctypes.c_size_t, pointer, pointer,
             ctypes.POINTER(pointer)],
        ),
        "commd_work_status": (None, [pointer, ctypes.POINTER(Status)]),
        "commd_work_wait": (ctypes.c_int, [pointer, ctypes.c_int64]),
        "commd_work_free": (None, [pointer]),
    }  # fmt: skip
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name, None)
        if function is None:
            continue  # tests/upgrade has older libraries, too
        function.restype = result
        function.argtypes = arguments
    return lib


def check(result):
    if result == 0:
        return
    error = lib.commd_last_error().contents
    fields = {}
    for name, _ in ErrorStruct._fields_:
        value = getattr(error, name)
        fields[name] = value.decode() if isinstance(value, bytes) else value
    if fields["code"] != result:
        raise AssertionError(f"returned {result}, but commd_last_error() says {fields}")
    fields["code"] = CODES[result]
    raise CommdError(fields)


def address(buffer):
    """Of a bytearray or None."""
    if buffer is None:
        return None
    return (
        ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer)) if len(buffer) else None
    )


def counts_array(counts):
    return (ctypes.c_size_t * len(counts))(*counts)


def recover_options(policy="shrink", name=None, **numbers):
    """@numbers: size, min_size, wait_ms, timeout_ms."""
    options = RecoverOptions(ctypes.sizeof(RecoverOptions), name.encode() if name else None)
    options.policy = ["shrink", "wait"].index(policy)
    for key, value in numbers.items():
        setattr(options, key, value)
    return ctypes.byref(options)


class Context:
    def __init__(self, socket=None, timeout_ms=0, waits=None):
        options = Options(ctypes.sizeof(Options), socket.encode() if socket else None, timeout_ms)
        if waits:
            name, options.waits_rank, options.waits_size = waits
            options.waits_for = name.encode()
        handle = ctypes.c_void_p()
        check(lib.commd_connect(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle

    def node(self):
        return lib.commd_node_name(self.handle).decode()

    def join(self, name, rank, size, timeout_ms=0):
        group = ctypes.c_void_p()
        check(
            lib.commd_group_join(
                self.handle, name.encode(), rank, size, timeout_ms, ctypes.byref(group)
            )
        )
        return Group(group)

    def rejoin(self, name, rank=-1, **options):
        group = ctypes.c_void_p()
        check(
            lib.commd_group_rejoin(
                self.handle, name.encode(), rank, recover_options(**options), ctypes.byref(group)
            )
        )
        return Group(group)

    def disconnect(self):
        lib.commd_disconnect(self.handle)
        self.handle = None


class Group:
    def __init__(self, handle):
        self.handle = handle

    def nodes(self):
        return lib.commd_group_nodes(self.handle)

    def set_timeout(self, timeout_ms):
        lib.commd_group_set_timeout(self.handle, timeout_ms)

    def leave(self):
        lib.commd_group_leave(self.handle)
        self.handle = None

    def split(self, colour, key, timeout_ms=0):
        """None where colour is negative."""
        group = ctypes.c_void_p()
        check(lib.commd_group_split(self.handle, colour, key, timeout_ms, ctypes.byref(group)))
        return Group(group) if group else None

    def subgroup(self, name, ranks, timeout_ms=0):
        group, members = ctypes.c_void_p(), (ctypes.c_int * len(ranks))(*ranks)
        check(
            lib.commd_group_subgroup(
                self.handle, name.encode(), members, len(ranks), timeout_ms, ctypes.byref(group)
            )
        )
        return Group(group)

    def rank_and_size(self):
        return [lib.commd_group_rank(self.handle), lib.commd_group_size(self.handle)]

    def recover(self, **options):
        check(lib.commd_group_recover(self.handle, recover_options(**options)))

    def epoch(self):
        return lib.commd_group_epoch(self.handle)

    def before(self):
        """The rank that each rank had in the epoch before."""
        size = lib.commd_group_size(self.handle)
        return [lib.commd_group_rank_before(self.handle, rank) for rank in range(size)]

    def check(self):
        check(lib.commd_group_check(self.handle))

    def abort(self, reason):
        check(lib.commd_group_abort(self.handle, reason.encode()))

    def op(self, coll, send=None, recv=None, count=0, dtype=0, redop=0, root=0, timeout_ms=0,
           send_counts=None, recv_counts=None, scale=0.0, peer=-1, tag=-1):  # fmt: skip
        """send and recv: bytearrays, addresses or None; send may be `recv` for in place. Counts:
        what counts_array() returned."""
        number = P2P[coll] if coll in P2P else COLLS.index(coll)
        op = Op(ctypes.sizeof(Op), number, dtype, redop, root)
        op.send = send if isinstance(send, int) else address(send)
        op.recv = recv if isinstance(recv, int) else address(recv)
        op.count, op.timeout_ms, op.scale = count, timeout_ms, scale
        op.peer, op.tag = peer, tag
        op.send_counts = ctypes.cast(send_counts, ctypes.c_void_p) if send_counts else None
        op.recv_counts = ctypes.cast(recv_counts, ctypes.c_void_p) if recv_counts else None
        return op

    def run(self, coll, **arguments):
        check(lib.commd_run(self.handle, ctypes.byref(self.op(coll, **arguments))))

    def start(self, coll, **arguments):
        work = ctypes.c_void_p()
        op = self.op(coll, **arguments)
        check(lib.commd_start(self.handle, ctypes.byref(op), None, None, ctypes.byref(work)))
        return work

    def start_batch(self, ops):
        work = ctypes.c_void_p()
        array = (Op * len(ops))(*ops)
        check(
            lib.commd_start_batch(self.handle, array, len(ops), None, None, ctypes.byref(work))
        )
        return work


def finish(work, timeout_ms=-1):
    """Waits for what Group.start() returned. Returns source, tag and bytes of a receive."""
    status = Status()
    try:
        check(lib.commd_work_wait(work, timeout_ms))
        lib.commd_work_status(work, ctypes.byref(status))
        return status.source, status.tag, status.bytes
    finally:
        lib.commd_work_free(work)


lib = load()
