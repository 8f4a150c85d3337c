"""Contexts and groups. The operations stand in one class, Operations, of which there are three:

    g.all_reduce(x)          waits, returns the result
    g.start.all_reduce(x)    returns a Work at once
    batch.all_reduce(x)      notes it down; the batch is started as one submission

They hand the same arguments to the extension, which checks them, holds the buffers, releases the
GIL and calls libcommd.
"""

import collections
import functools
import math
import os
import weakref

from commd import ANY_SOURCE, ANY_TAG, _at_exit
from commd.dtypes import fresh, shape_of
from commd.errors import InvalidArgument  # first: it says why _core cannot be loaded

from commd import _core  # isort: skip
from commd._core import (  # isort: skip
    ALL_GATHER, ALL_GATHER_V, ALL_REDUCE, ALL_TO_ALL, ALL_TO_ALL_V, BARRIER, BROADCAST, GATHER,
    GATHER_V, RECV, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_V, SCATTER, SCATTER_V, SEND,
)  # fmt: skip

__all__ = ["Batch", "Context", "Group", "Operations", "Status", "connect"]

Status = collections.namedtuple("Status", "source tag bytes")
Status.__doc__ = "What a receive got: the source's rank, the tag, the number of bytes."

_open = weakref.WeakSet()


def connect(socket=None, timeout=None):
    """Connects to the node's commd and returns a Context.

    socket: path; None: $COMMD_SOCKET, else the system's, /run/commd/commd.sock, else the user's
        own; and if there is none either, a commd is started for this user, on this node alone,
        unless COMMD_AUTOSTART=0.
    timeout: seconds, for connecting and as the default of every join and operation; None:
        $COMMD_TIMEOUT, else 1800; math.inf: none.

    Raises NoDaemon, ProtocolError, PermissionDenied, QuotaExceeded, Timeout.
    """
    if socket is not None:
        socket = os.fsdecode(socket)
    context = _core.connect(Context, socket, timeout)
    _close_at_exit(os.getpid())
    _open.add(context)
    return context


@functools.lru_cache(maxsize=None)
def _close_at_exit(pid):
    """Once for each process."""
    _at_exit.after_all(_close_all)


def _close_all():
    """The other ranks shall see that this one left, not that it died."""
    for context in list(_open):
        context.close()


class Context(_core.Context):
    """A connection to the node's commd, made by connect(). Use it in a `with` block, or close() it.

    It may be used by several threads. A forked child must connect() anew."""

    def group(self, name, rank, size, timeout=None):
        """Joins group `name` as `rank` of `size`; returns a Group when all ranks have joined.

        The name belongs to the job: COMMD_JOB, or what torchrun, mpirun or Slurm say of it. Where
        there is none, ranks of a user meet wherever they were started. "/name" is without a job.
        Raises Timeout (it names the missing ranks), InvalidArgument (a rank twice, sizes that
        differ), QuotaExceeded, NodeLost, NoDaemon.
        """
        return _core.join(Group, self, name, rank, size, timeout)

    def rejoin(self, name, rank=None, size=None, timeout=None):
        """Takes seat `rank` (None: the lowest that is free) of group `name`, whose ranks recover
        with Group.recover("wait"), before or after this call; returns a Group. It is for processes
        that are not in the group. size: None, or what the ranks of the group say. The rank is a
        lower one than asked for if they go on without the seats below. Errors are those of group();
        Timeout says if there was a group to rejoin.
        """
        return _core.rejoin(
            Group, self, name, -1 if rank is None else rank, size or 0, timeout
        )

    def empty(self, shape, dtype=float):
        """A new numpy.ndarray, of zeros, in registered memory.

        all_reduce of 64 KiB and more (512 KiB with more ranks than cores), and broadcast,
        all_gather and reduce_scatter of 4 MiB and more, in a group on one node, need no copies if
        the arrays that all its ranks pass are such ones, of the context of the group, or parts of
        them. Everywhere else they are arrays like any other. The memory is freed with the last
        array that uses it, and stays valid when the context is closed. Meant for large arrays that
        are kept: each takes whole pages, and commd keeps at most 256 files for a process, of 32 MiB
        of small arrays or one of 4 MiB and more. Ranks of this user that are in groups with this
        one on this node can read and write it; so can a forked child.

        Raises OutOfMemory, QuotaExceeded, NoDaemon, NodeLost, Timeout.
        """
        import numpy

        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise InvalidArgument(f"dtype is {dtype}; Python objects cannot be shared", op="alloc")
        shape = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        size = math.prod(shape) * dtype.itemsize
        return numpy.ndarray(shape, dtype, _core.alloc(self, size))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return (
            "<commd.Context, closed>" if self.closed else f"<commd.Context on node {self.node!r}>"
        )


def _rows(array, size):
    """Shape of one rank's block in an array that holds one for each rank."""
    if isinstance(array, (list, tuple)):
        return shape_of(array[0])
    shape = shape_of(array)
    if len(shape) == 1 and shape[0] % size == 0:
        return (shape[0] // size,)
    if len(shape) > 1 and shape[0] == size:
        return shape[1:]
    raise InvalidArgument(
        f"an array of shape {shape} has no block for each of {size} ranks; allowed: ({size}, ...)"
        f" or one dimension that {size} divides, or any shape together with out="
    )


def _own(array, counts, rank, op):
    """Shape of rank's block, whose size is in counts, or that of an array in a list."""
    if isinstance(array, (list, tuple)):
        return shape_of(array[rank])
    if counts is None:
        raise InvalidArgument(f"{op}: counts are needed, or a list of arrays", op=op)
    return (counts[rank],)


def _sum(counts, op):
    if counts is None:
        raise InvalidArgument(
            f"{op}: counts of what is received are needed, or a list as out", op=op
        )
    return (sum(counts),)


def _first(array):
    return array[0] if isinstance(array, (list, tuple)) else array


def _alike(array):
    if isinstance(array, (list, tuple)):
        return [fresh(a, shape_of(a)) for a in array]
    return fresh(array, shape_of(array))


class Operations:
    """The operations of a group.

    Arrays: numpy.ndarray, or any other C-contiguous buffer (bytearray, memoryview, array.array;
    bytes to send from). Elements: integers of 8 to 64 bits, float16, float32, float64, bool;
    bfloat16 as ml_dtypes has it, or as uint16 with dtype="bf16". Elements of other types can be
    moved, not reduced. Also what has __dlpack__ (a torch.Tensor) or __cuda_array_interface__,
    C-contiguous, without a copy: in host memory, or on a GPU, see Group.on(). All ranks must pass
    the same number of elements and the same type.

    size: the number of ranks; s: any shape. Where an operation has one block for each rank, a list
    of arrays, one for each rank, can be passed instead of one array.

    out: the array for the result; None: as each operation says. A new array is an ndarray if the
        array passed is one, else a bytearray (or, for elements of more than a byte, a memoryview).
    op: "sum", "avg", "prod", "min", "max", "band", "bor", "bxor" (bitwise: integers and bool), or
        "premul_sum": the sum of each rank's array times its own scale= (floats).
    timeout: seconds; None: the group's.
    dtype: what the bytes are, where the array does not say it: "bf16", "f16", numpy.float32, ...

    Raises InvalidArgument (nothing was started, the group is fine), Mismatch (the group is fine),
    Timeout, RankLost, NodeLost, EngineLost, Aborted (the group is broken). Who only sends
    waits for nobody within one node (the root of a broadcast or scatter, the others of a reduce or
    gather; not in broadcasts of 4 MiB and more, nor where all share the work of a reduce, nor with
    counts): there Mismatch and RankLost may be those of its next operation. After such a
    Mismatch ranks may have called different numbers of operations: compare Group.seq, or recover.
    Those up to that of the furthest rank may fail on one that was behind, and if calls are skipped
    after an error, one that succeeds may carry the data of another iteration.
    """

    __slots__ = ()

    def barrier(self, *, timeout=None):
        """Returns when every rank has called it."""
        return self._submit(BARRIER, None, None, None, None, "sum", 0, timeout)

    def all_reduce(self, array, op="sum", out=None, *, dtype=None, scale=None, timeout=None):
        """out[i] = op over all ranks of array[i]. In place if out is None.

        array: s; out: s. Returns out, or array if that is None.
        """
        if out is None:
            out = array
        return self._submit(
            ALL_REDUCE, out, array, out, dtype, op, 0, timeout, None, None, scale
        )

    def reduce(self, array, op="sum", root=0, out=None, *, dtype=None, scale=None, timeout=None):
        """As all_reduce, but only `root` gets the result: in place if out is None.

        array: s; out: s, at root. Returns out or array at root, None elsewhere; there neither is
        changed.
        """
        if self.rank != root:
            out = None
        elif out is None:
            out = array
        return self._submit(REDUCE, out, array, out, dtype, op, root, timeout, None, None, scale)

    def broadcast(self, array, root=0, *, dtype=None, timeout=None):
        """The root's array to everybody's, in place.

        array: s. Returns array.
        """
        return self._submit(BROADCAST, array, None, array, dtype, "sum", root, timeout)

    def all_gather(self, array, out=None, *, dtype=None, timeout=None):
        """Everybody's array to everybody: out[r] is that of rank r.

        array: s; out: (size, *s). Returns out, a new array if that is None. In place: array may be
        out[rank].
        """
        if out is None:
            out = fresh(array, (self.size, *shape_of(array)))
        return self._submit(ALL_GATHER, out, array, out, dtype, "sum", 0, timeout)

    def all_gather_v(self, array, counts, out=None, *, dtype=None, timeout=None):
        """As all_gather, of arrays of different sizes.

        array: counts[rank] elements; counts: elements of each rank, the same on all ranks; out:
        sum(counts) elements, rank after rank. Returns out, a new array of one dimension if that is
        None. With a list as out, counts may be None.
        """
        if out is None:
            out = fresh(array, _sum(counts, "all_gather_v"))
        return self._submit(ALL_GATHER_V, out, array, out, dtype, "sum", 0, timeout, None, counts)

    def gather(self, array, root=0, out=None, *, dtype=None, timeout=None):
        """Everybody's array to `root`: out[r] is that of rank r.

        array: s; out: (size, *s), at root. Returns out, a new array if that is None, at root; None
        elsewhere.
        """
        if self.rank != root:
            out = None
        elif out is None:
            out = fresh(array, (self.size, *shape_of(array)))
        return self._submit(GATHER, out, array, out, dtype, "sum", root, timeout)

    def gather_v(self, array, counts=None, root=0, out=None, *, dtype=None, timeout=None):
        """As gather, of arrays of different sizes.

        counts: elements of each rank, at root; out: sum(counts) elements, at root.
        """
        if self.rank != root:
            out = counts = None
        elif out is None:
            out = fresh(array, _sum(counts, "gather_v"))
        return self._submit(GATHER_V, out, array, out, dtype, "sum", root, timeout, None, counts)

    def scatter(self, array, out=None, root=0, *, dtype=None, timeout=None):
        """Block r of the root's array to rank r.

        array: (size, *s) at root, else None; out: s. Returns out; at root that may be None for a
        new array, elsewhere the shape is not known. In place: at root, out may be array[root].
        """
        if self.rank != root:
            array = None
        elif out is None:
            out = fresh(_first(array), _rows(array, self.size))
        return self._submit(SCATTER, out, array, out, dtype, "sum", root, timeout)

    def scatter_v(self, array, counts=None, out=None, root=0, *, dtype=None, timeout=None):
        """As scatter, with blocks of different sizes.

        array: sum(counts) elements at root, else None; counts: elements of each rank, at root; out:
        this rank's.
        """
        if self.rank != root:
            array = counts = None
        elif out is None:
            out = fresh(_first(array), _own(array, counts, root, "scatter_v"))
        return self._submit(SCATTER_V, out, array, out, dtype, "sum", root, timeout, counts)

    def reduce_scatter(self, array, op="sum", out=None, *, dtype=None, scale=None, timeout=None):
        """out = op over all ranks of block `rank` of their arrays.

        array: (size, *s), or one dimension that size divides; out: s. Returns out, a new array if
        that is None. In place: out may be array[rank].
        """
        if out is None:
            out = fresh(_first(array), _rows(array, self.size))
        return self._submit(
            REDUCE_SCATTER, out, array, out, dtype, op, 0, timeout, None, None, scale
        )

    def reduce_scatter_v(
        self, array, counts=None, op="sum", out=None, *, dtype=None, scale=None, timeout=None
    ):
        """As reduce_scatter, with blocks of different sizes.

        array: sum(counts) elements; counts: elements of each rank, the same on all ranks (None if
        array is a list); out: counts[rank] elements.
        """
        if out is None:
            out = fresh(_first(array), _own(array, counts, self.rank, "reduce_scatter_v"))
        return self._submit(
            REDUCE_SCATTER_V, out, array, out, dtype, op, 0, timeout, counts, None, scale
        )

    def all_to_all(self, array, out=None, *, dtype=None, timeout=None):
        """Block r of array to rank r; block r of out is from rank r.

        array: (size, *s), or any shape whose elements size divides; out: the same. Returns out, a
        new array if that is None. In place: out may be array.
        """
        if out is None:
            out = _alike(array)
        return self._submit(ALL_TO_ALL, out, array, out, dtype, "sum", 0, timeout)

    def all_to_all_v(
        self, array, send_counts=None, recv_counts=None, out=None, *, dtype=None, timeout=None
    ):
        """As all_to_all, with blocks of different sizes.

        array: sum(send_counts) elements; out: sum(recv_counts) elements; what rank i sends to j
        must be what j expects from i. Returns out, a new array of one dimension if that is None.
        For a list the counts may be None.
        """
        if out is None:
            out = fresh(_first(array), _sum(recv_counts, "all_to_all_v"))
        return self._submit(
            ALL_TO_ALL_V, out, array, out, dtype, "sum", 0, timeout, send_counts, recv_counts
        )
    def send(self, array, dest, tag=0, *, dtype=None, timeout=None):
        """A message to rank `dest`, which may be this one. Returns (None) when array may be changed
        again: at once for small messages (up to 64 KiB, while few of them are waiting to be
        received), after the receiver has taken part for large ones.

        tag: 0 to 2**31 - 1. Messages are independent of collectives. They are matched by source and
        tag, in the order in which the source sent those with that tag.
        """
        return self._submit(
            SEND, None, array, None, dtype, "sum", dest, timeout, None, None, None, tag
        )

    def recv(self, array, source=ANY_SOURCE, tag=ANY_TAG, *, dtype=None, timeout=None):
        """The next message of `source` with `tag` into array, which may be larger than it.

        Returns a Status(source, tag, bytes); in a batch: None. A message that is larger than the
        array raises Mismatch and is lost. RankLost: the source has died or left before it sent;
        from ANY_SOURCE: a rank has died, or all others have left. After a Timeout while nothing had
        come, the group can still be used.
        """
        return self._submit(
            RECV, None, None, array, dtype, "sum", source, timeout, None, None, None, tag
        )


class Group(_core.Group, Operations):
    """An ordered set of ranks on one or more nodes, made by Context.group(), split() or
    subgroup().

    rank, size, nodes (their number), epoch, seq (collectives issued so far). Use it in a `with`
    block, or close() it; it is also left when it is garbage. Collectives are executed in the order
    of the calls, and all ranks must make them in the same order; those of different groups never
    wait for each other.
    """

    @property
    def start(self):
        """The same operations, each of which returns a Work at once and goes on by itself:

            work = g.start.all_reduce(x)
            ...
            work.wait()

        The buffers are held, and must not be touched, until it is done.
        """
        return _Start(self)

    def batch(self):
        """A Batch: operations that are started as one submission.

            with g.batch() as batch:        # started and waited for at the end of the block
                batch.all_reduce(a)
                batch.all_reduce(b)
        """
        return Batch(self)

    def on(self, stream):
        """The same operations, for arrays on a GPU, on a CUDA stream: its handle (0: the default
        one), or a stream of torch, CuPy, ...

            g.on(stream).all_reduce(x)
            work = g.on(stream).start.all_reduce(x)
            work.wait_stream(stream)

        An operation comes after what was enqueued on the stream before the call, and returns when
        it is enqueued; what is enqueued on the stream later comes after it, or, of one that was
        started, after wait_stream(). The stream may be dropped as soon as the call has returned: a
        work does not need it. barrier() is on the stream, too. Without on(), arrays on a GPU
        are taken on the stream that their __cuda_array_interface__ names, else on the default one.
        A failure that comes after the call is told by the work, or by the next call. What is
        under way when the group is closed is lost, messages too: make a barrier before, and
        synchronize the stream.
        """
        return _On(self, self._submit, stream)

    def split(self, colour, key=0, timeout=None):
        """Collective over the group: the ranks with the same colour form a new one, in ascending
        order of key, and of their rank where keys are equal. colour None or < 0: returns None.
        """
        return _core.split(type(self), self, -1 if colour is None else colour, key, timeout)

    def subgroup(self, name, ranks, timeout=None):
        """Joins group `name` of these ranks of this group, in this order; only they call it, all
        with the same list. Does not wait for who cannot come any more: RankLost or NodeLost names
        the first of them by its rank here; Aborted: this group was revoked, and this rank had not
        been told of that by any call before. Ranks that have been told may make subgroups of a
        group that is broken or revoked: so those that are left meet.
        """
        return _core.subgroup(type(self), self, name, ranks, timeout)

    def recover(
        self, policy="shrink", size=None, min_size=None, wait=None, timeout=None, name=None
    ):
        """Brings the group, this same object, into its next epoch; returns when all ranks of that
        are there. All ranks that live call it: after a rank, an engine or a node was lost, or after
        abort(). No rank, store or node has to have survived: which ranks live is what commd knows.
        All call it with the same policy, size and min_size. The first call decides; one that
        differs raises InvalidArgument at once, and the others wait for it to call again.

        policy "shrink": those that live, without gaps, in the order of their ranks. "wait": they
        keep their ranks, and new processes take the seats of the others, by Context.rejoin(), of
        `size` ranks (None: as many as now; more: the group grows). wait: so many seconds for
        seats that are free, then without. Fewer ranks than min_size are an error. name: where
        ranks and new processes meet; None: the group's name.

        rank, size, nodes and epoch are new then. Works and messages of the older epoch have ended.
        A rank may have ended an operation that failed on others: compare steps, and go back where
        one is ahead. Groups that were split off stay as they are: recover those with a rank that is
        lost (check() tells) as well, or split them off again.

        On an error the group is as before, and the call may be repeated: Timeout names the ranks
        that did not call, and the seats that are free; RankLost: fewer than min_size live, or the
        others have gone on without this rank; InvalidArgument: ranks that want different things,
        or another thread is inside a call of this group (abort() and waits for works may be).
        """
        if policy not in ("shrink", "wait"):
            raise InvalidArgument(
                f"recover: policy is {policy!r}; allowed: 'shrink', 'wait'", op="recover"
            )
        self._recover(policy == "wait", size or 0, min_size or 0, wait, timeout, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return f"<commd.Group, rank {self.rank} of {self.size}{state}>"


class _Start(Operations):
    __slots__ = ("_submit", "rank", "size")

    def __init__(self, group):
        self._submit = group._start
        self.rank, self.size = group.rank, group.size


class _On(Operations):
    __slots__ = ("_group", "_call", "_stream", "rank", "size")

    def __init__(self, group, call, stream):
        self._group, self._call, self._stream = group, call, stream
        self.rank, self.size = group.rank, group.size

    def _submit(self, *arguments):
        missing = (None,) * (12 - len(arguments))
        return self._call(*arguments, *missing, self._stream)

    @property
    def start(self):
        return _On(self._group, self._group._start, self._stream)


class Batch(Operations):
    """Operations that are noted down and then started as one submission: by start(), which returns
    a Work for all of them, or at the end of a `with` block, which also waits. The results are a
    list, in the order of the calls; the first error is raised. Each method returns its place in
    that list.
    """

    __slots__ = ("_group", "_noted", "rank", "size")

    def __init__(self, group):
        self._group = group
        self._noted = []
        self.rank, self.size = group.rank, group.size

    def _submit(self, *arguments):
        self._noted.append(arguments)
        return len(self._noted) - 1

    def __len__(self):
        return len(self._noted)

    def start(self):
        """Starts what was noted down, which must not be nothing; the batch is empty after it."""
        noted, self._noted = self._noted, []
        return self._group._start_batch(noted)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None and self._noted:
            self.start().wait()


def _await(work):
    """work.__await__(): asyncio watches a file descriptor that the library makes readable."""
    import asyncio

    if not work.done():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        fd = work._watch()
        try:
            loop.add_reader(fd, lambda: future.done() or future.set_result(None))
            yield from future
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    return work.wait()
