"""A user who keeps what commd gave: boards of groups that were left, mapped, open or on their way.
A program for cluster.Rank; its first argument is the uid to become.

{"do": "hoard", "how": "map", "first": 0, "most": 100, "size": 1}: groups are joined, touched all
over, kept and left until one is refused. Answers with how many there were, and with the refusal.
{"do": "let_go"}: gives all of it back. {"do": "churn", "count": 1000}: as a good user does.
"""

import ctypes
import json
import mmap
import os
import re
import socket
import sys

sys.dont_write_bytecode = True
from commd_client import DTYPES, CommdError, Context  # noqa: E402
from wire import JOIN_FAILED, JOINED, Wire, hello, join, leave  # noqa: E402

os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
MAYMOVE = 1
context = None
kept = []


class Fds:
    """The client's side of the protocol by hand, with the descriptors that come."""

    def __init__(self):
        self.wire = Wire(os.environ["COMMD_SOCKET"])
        self.fds = []
        self.wire.send(hello())
        self.read()

    def read(self):
        """Descriptors come with the first byte of their message, so frames are read one by one."""
        wire = self.wire
        while (
            len(wire.buffer) < 8
            or len(wire.buffer) < 8 + int.from_bytes(wire.buffer[4:8], "little")
        ):  # fmt: skip
            data, fds, _, _ = socket.recv_fds(wire.sock, 65536, 8)
            wire.buffer += data
            self.fds += fds
        return wire.read()

    def take(self, req, name):
        self.fds = []
        self.wire.send(join(req, 0, 1, name))
        kind, fields = self.read()
        if kind == JOIN_FAILED:
            return None, str(fields)
        if kind != JOINED:
            raise AssertionError(f"{kind} {fields}")
        for fd in self.fds[1:]:
            os.close(fd)
        return self.fds[0], fields

    def leave(self, fields):
        self.wire.send(leave(fields[3]))


def connect():
    global context
    context = Context()
    return context.node()


def keep_mappings(touch):
    """A second mapping of each board that is mapped now; mremap() of a size of 0 makes it."""
    with open("/proc/self/maps") as file:
        lines = [line for line in file if "/memfd:commd-board" in line]
    for line in lines:
        start, end = (int(x, 16) for x in re.match(r"(\w+)-(\w+)", line).groups())
        if start in [at for at, _ in kept]:
            continue
        copy = libc.mremap(start, 0, end - start, MAYMOVE)
        if copy == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mremap")
        if touch:
            for page in range(copy + (end - start) // 2, copy + end - start, mmap.PAGESIZE):
                ctypes.memset(page + 64, 1, 1)
        kept.append((copy, end - start))


def hoard_maps(first, most, rank, size, touch):
    for i in range(first, first + most):
        try:
            group = context.join(f"hoard{i}", rank, size)
        except CommdError as error:
            return [i - first, error.fields["message"]]
        keep_mappings(touch)
        group.leave()
    return [most, None]


def keep_fd(fd, how):
    if how == "fd":
        kept.append(fd)
        return
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [fd])
    os.close(fd)
    kept.append((ours, theirs))


def hoard_fds(first, most, how):
    """By descriptors, which no library has a hand in: "fd" or "flight"."""
    by_hand = Fds()
    for i in range(first, first + most):
        fd, fields = by_hand.take(i + 1, f"hoard{i}")
        if fd is None:
            return [i - first, fields]
        os.pwrite(fd, b"x" * 65536, os.fstat(fd).st_size - 65536)
        keep_fd(fd, how)
        by_hand.leave(fields)
    return [most, None]


def hoard(how, first=0, most=100, rank=0, size=1, touch=True):
    if how == "map":
        return hoard_maps(first, most, rank, size, touch)
    return hoard_fds(first, most, how)


def let_go():
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    while kept:
        what = kept.pop()
        if isinstance(what, int):
            os.close(what)
        elif isinstance(what[0], int):
            libc.munmap(*what)
        else:
            what[0].close()
            what[1].close()


def churn(count, prefix="churn", rank=0, size=1):
    """Groups one after the other; each one's result is verified."""
    for i in range(count):
        group = context.join(f"{prefix}{i}", rank, size)
        buffer = bytearray((i + rank).to_bytes(4, "little") * 4)
        want = bytearray((size * i + size * (size - 1) // 2).to_bytes(4, "little") * 4)
        group.run(
            "all_reduce", send=buffer, recv=buffer, count=4, dtype=DTYPES.index("i32"), redop=0
        )
        if buffer != want:
            raise AssertionError(f"group {i}: {buffer.hex()} instead of {want.hex()}")
        group.leave()


COMMANDS = {"connect": connect, "hoard": hoard, "let_go": let_go, "churn": churn}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = {"ok": COMMANDS[request.pop("do")](**request), "at": 0}
    except CommdError as error:
        answer = {"error": error.fields, "at": 0}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
