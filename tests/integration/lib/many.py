"""Very many groups in one rank: made, used, kept and left. A program for cluster.Rank.

Commands as in rank.py: {"do": "make", "first": 0, "count": 2000, "rank": 1, "size": 4}, "use",
"drop", "connect", "counts". "counts" answers with what the kernel has of this process.
"""

import contextlib
import json
import os
import sys

sys.dont_write_bytecode = True
from commd_client import DTYPES, Context  # noqa: E402

context = None
groups = []


def connect():
    global context
    context = Context()
    return context.node()


def make(prefix, count, rank, size):
    for i in range(count):
        groups.append(context.join(f"{prefix}{i}", rank, size))


def use():
    """One all_reduce in each group; each group's own answer."""
    buffer = bytearray(64)
    for i, group in enumerate(groups):
        buffer[:] = i.to_bytes(4, "little") * 16
        group.run(
            "all_reduce", send=buffer, recv=buffer, count=16, dtype=DTYPES.index("i32"), redop=4
        )
        if buffer != i.to_bytes(4, "little") * 16:
            raise AssertionError(f"group {i}: {buffer.hex()}")


def drop():
    while groups:
        groups.pop().leave()


def counts():
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/self/maps") as file:
        maps = sum("/memfd:commd" in line for line in file)
    files = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            files += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:commd-board")
    return {
        "fds": len(os.listdir("/proc/self/fd")), "files": files,
        "threads": int(status["Threads"]), "boards": maps,
        "kb": int(status["VmRSS"].split()[0]) - int(status["RssShmem"].split()[0]),
    }  # fmt: skip


COMMANDS = {"connect": connect, "make": make, "use": use, "drop": drop, "counts": counts}

for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = {"ok": COMMANDS[request.pop("do")](**request), "at": 0}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
