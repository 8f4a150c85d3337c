"""Exceptions, one class for each kind of failure.

What is known stands in attributes; None where it does not apply:

    rank     the rank it is about, in the group
    node     the node it is about
    pid      the process of that rank, on its node
    op       the operation: "all_reduce", "join", ...
    seq      number of the operation in the group, from 1
    epoch    of the group
    code     the number of the C library (enum commd_result)

str(error) is one line that says what happened, to whom, why, and what to do. Ctrl-C while an
operation waits raises KeyboardInterrupt; a blocking operation's group is broken then.
"""

try:
    from commd import _core
except ImportError as error:
    raise ImportError(
        f"commd: its extension cannot be loaded: {error}. Is libcommd still where it was built"
        " against? Install the package again: pip install --force-reinstall --no-deps client/python"
    ) from error

__all__ = [
    "Aborted",
    "EngineLost",
    "Error",
    "Forked",
    "GpuLost",
    "InternalError",
    "InvalidArgument",
    "Mismatch",
    "NoDaemon",
    "NodeLost",
    "OutOfMemory",
    "PermissionDenied",
    "ProtocolError",
    "QuotaExceeded",
    "RankLost",
    "Timeout",
]


class Error(Exception):
    """Base of all of them."""

    code = None

    def __init__(
        self, message="", rank=None, node=None, pid=None, op=None, seq=None, epoch=None, code=None
    ):
        super().__init__(message)
        self.rank, self.node, self.pid = rank, node, pid
        self.op, self.seq, self.epoch = op, seq, epoch
        if code is not None:
            self.code = code

    def __reduce__(self):
        fields = (self.rank, self.node, self.pid, self.op, self.seq, self.epoch, self.code)
        return type(self), (str(self), *fields)


class InvalidArgument(Error, ValueError):
    """An argument. Nothing was started, the group is fine."""

    code = _core.E_INVALID


class Mismatch(Error):
    """Ranks called different operations. The group is fine."""

    code = _core.E_MISMATCH


class QuotaExceeded(Error):
    """A limit of the daemon."""

    code = _core.E_QUOTA


class Timeout(Error, TimeoutError):
    """The limit passed; the text names who had not come."""

    code = _core.E_TIMEOUT


class RankLost(Error):
    """A member process died or left. The group is broken."""

    code = _core.E_RANK_LOST


class NodeLost(Error):
    """A node or its commd is gone. The group is broken."""

    code = _core.E_NODE_LOST


class EngineLost(Error):
    """A node's commd-engine is gone. The group is broken."""

    code = _core.E_ENGINE_LOST


class Aborted(Error):
    """A member called abort() or was interrupted, or this process left. The group is broken."""

    code = _core.E_ABORTED


class NoDaemon(Error, ConnectionError):
    """No commd behind the socket."""

    code = _core.E_NO_DAEMON


class ProtocolError(Error):
    """The other side is not a commd of this version."""

    code = _core.E_PROTOCOL


class PermissionDenied(Error, PermissionError):
    """Not allowed for this user."""

    code = _core.E_DENIED


class OutOfMemory(Error, MemoryError):
    """No memory."""

    code = _core.E_NOMEM


class Forked(Error):
    """Used in a process that was forked from the one that connected: connect anew in the child."""

    code = _core.E_FORKED


class GpuLost(Error):
    """The node's commd-gpu is gone, or its GPU failed. The operation is lost; the next one in the
    group starts it again."""

    code = _core.E_GPU_LOST


class InternalError(Error):
    """A bug of commd."""

    code = _core.E_INTERNAL


_CLASSES = {c.code: c for c in Error.__subclasses__()}


def from_fields(code, message, rank, pid, epoch, seq, node, op):
    """The exception for a struct commd_error; called by _core."""
    if code == _core.E_INTERRUPTED:  # an earlier call was, which broke the group
        code = Aborted.code
    return _CLASSES.get(code, Error)(
        message,
        rank=rank if rank >= 0 else None,
        node=node or None,
        pid=pid or None,
        op=op or None,
        seq=seq or None,
        epoch=epoch or None,
        code=code,
    )
