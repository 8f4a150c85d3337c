#!/usr/bin/env python3
"""One rank of a test: does what its parent says, a JSON object per line, and answers each with one.

An answer holds "ok" or "error" (the fields of struct commd_error), and "at", CLOCK_MONOTONIC, which
is the same clock in all processes. Driven by cluster.Rank.
"""

import array
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
import gpu_tensors  # noqa: E402
import inputs  # noqa: E402
import recovering  # noqa: E402
import registered  # noqa: E402
import stream  # noqa: E402
import verified  # noqa: E402
from commd_client import (  # noqa: E402
    DTYPES,
    REDOPS,
    CommdError,
    Context,
    counts_array,
    finish,
)

contexts = {}
groups = {}
works = []  # of sends, with their buffers


def connect(socket=None, timeout_ms=0, context="c", waits=None):
    contexts[context] = Context(socket, timeout_ms, waits)
    return contexts[context].node()


def join(name, rank, size, timeout_ms=0, context="c"):
    groups[name] = contexts[context].join(name, rank, size, timeout_ms)
    groups[name].rank, groups[name].size = rank, size
    return groups[name].nodes()


def leave(name):
    groups.pop(name).leave()


def disconnect(context="c"):
    contexts.pop(context).disconnect()


def abort(name, reason):
    groups[name].abort(reason)


def where(name):
    group = groups[name]
    group.rank, group.size = group.rank_and_size()
    return dict(
        rank=group.rank, size=group.size, epoch=group.epoch(), before=group.before(),
        nodes=group.nodes(),
    )  # fmt: skip


def recover(name, at=None, **options):
    """@at: the name to meet under."""
    groups[name].recover(name=at, **options)
    return where(name)


def recover_twice(name):
    """In two threads: one is refused."""
    refused = []

    def attempt():
        try:
            groups[name].recover()
        except CommdError as error:
            refused.append(error.fields)
            tell({"refused": error.fields})

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(refused) != 1:
        raise AssertionError(f"{len(refused)} of two are refused")
    return where(name)


def fall_silent():
    """commd has lost this process, which stops, and lives: SIGCONT lets it go on."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as end:
            if end.family == socket.AF_UNIX and end.getpeername():
                end.shutdown(socket.SHUT_RDWR)
    os.kill(os.getpid(), signal.SIGSTOP)


def rejoin(name, rank=-1, context="c", **options):
    groups[name] = contexts[context].rejoin(name, rank, **options)
    return where(name)


def rejoined(name, rank):
    rejoin(name, rank)
    return groups[name]


def check(name):
    groups[name].check()


def abort_soon(name, after, reason):
    """From another thread, while this one does what it is told next."""

    def later():
        time.sleep(after)
        groups[name].abort(reason)

    threading.Thread(target=later, daemon=True).start()


def resources():
    """Descriptors, mappings, and anonymous memory in KiB."""
    with open("/proc/self/maps") as maps:
        mapped = sum(1 for line in maps)
    with open("/proc/self/smaps_rollup") as rollup:
        private = next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))
    return [len(os.listdir("/proc/self/fd")), mapped, private]


def verify(name, count=5000):
    """A sum, a message around the ring, a broadcast from the last rank: each result is checked."""
    group = groups[name]
    rank, size = group.rank, group.size
    data = (ctypes.c_int32 * count)(*((rank + 1) * (i % 97) for i in range(count)))
    buffer = bytearray(data)
    group.run("all_reduce", send=buffer, recv=buffer, count=count, dtype=DTYPES.index("i32"))
    whole = size * (size + 1) // 2
    if buffer != bytearray((ctypes.c_int32 * count)(*(whole * (i % 97) for i in range(count)))):
        raise AssertionError("the sum is wrong")
    got, mine = bytearray(8), bytearray(b"from %03d" % rank)
    work = group.start("send", send=mine, count=8, dtype=1, peer=(rank + 1) % size, tag=5)
    before = (rank - 1) % size
    group.run("recv", recv=got, count=8, dtype=1, peer=before, tag=5)
    finish(work)
    if got != b"from %03d" % before:
        raise AssertionError(f"{bytes(got)} from rank {before}")
    word = bytearray(b"last one" if rank == size - 1 else 8)
    group.run("broadcast", recv=word, count=8, dtype=1, root=size - 1)
    if word != b"last one":
        raise AssertionError(f"{bytes(word)} by broadcast")
    return size


def intact(name, count):
    """Vectors that no operation has changed when it fails, because not all ranks come: of an
    all_reduce with two buffers, of a broadcast's root, and of an all_reduce in place."""
    group = groups[name]
    pattern = bytes(i % 251 for i in range(251)) * (count // 251 + 1)
    data, other = bytearray(pattern[:count]), bytearray(count)
    kept = []
    for coll, arguments in (
        ("all_reduce", dict(send=data, recv=other)),
        ("broadcast", dict(recv=data, root=group.rank)),
        ("all_reduce", dict(send=data, recv=data)),
    ):
        try:
            group.run(coll, count=count, dtype=DTYPES.index("u8"), **arguments)
            raise AssertionError(f"{coll} has come to its end")
        except CommdError:
            kept.append(data == pattern[:count])
    return kept


def all_reduce(name, count, dtype="f32", redop="sum", fill=1, timeout_ms=0):
    """Of elements that all hold the byte @fill; returns the first bytes of the result."""
    size = 8
    buffer = bytearray([fill]) * (count * size)
    index = DTYPES.index(dtype) if isinstance(dtype, str) else dtype
    groups[name].run(
        "all_reduce", send=buffer, recv=buffer, count=count, dtype=index,
        redop=REDOPS.index(redop), timeout_ms=timeout_ms,
    )  # fmt: skip
    return buffer[:16].hex()


def many(name, count, stop):
    """As many as fit into the time until @stop exists."""
    buffer = bytearray(count * 4)
    while not os.path.exists(stop):
        for _ in range(100):
            groups[name].run("all_reduce", send=buffer, recv=buffer, count=count,
                             dtype=DTYPES.index("f32"), redop=REDOPS.index("sum"))  # fmt: skip


def batch(name, sizes, bad=None):
    """all_reduce of u8 vectors of ones in one submission; the number in each result. @bad: an
    operation that does not fit those of the others."""
    group, buffers = groups[name], [bytearray([1]) * n for n in sizes]
    ops = [
        group.op("barrier" if i == bad else "all_reduce", send=b, recv=b, count=len(b), dtype=1)
        for i, b in enumerate(buffers)
    ]
    finish(group.start_batch(ops))
    return [sorted(set(b)) for b in buffers]


def send(name, peer, tag, text, repeat=1, timeout_ms=0, start=False):
    """With @start the work is kept until commands.works is asked for it."""
    buffer = bytearray(text.encode() * repeat)
    arguments = dict(
        send=buffer, count=len(buffer), dtype=1, peer=peer, tag=tag, timeout_ms=timeout_ms
    )
    if not start:
        groups[name].run("send", **arguments)
        return None
    works.append((groups[name].start("send", **arguments), buffer))
    return None


def recv(name, peer, tag, size, timeout_ms=0):
    """Returns source, tag, length, the first bytes and whether all are like them."""
    buffer = bytearray(size)
    work = groups[name].start("recv", recv=buffer, count=size, dtype=1, peer=peer, tag=tag,
                              timeout_ms=timeout_ms)  # fmt: skip
    source, got, length = finish(work)
    head = bytes(buffer[: min(length, 8)])
    whole = not length or bytes(buffer[:length]) == (head * (length // len(head) + 1))[:length]
    return [source, got, length, head.decode(), whole]


def finish_sends():
    while works:
        finish(works.pop(0)[0])


def mail(name, seed, messages, max_bytes):
    stream.mail(groups[name], groups[name].rank, groups[name].size, seed, messages, max_bytes)
    return messages


def split(name, new, colour, key):
    group = groups[name].split(colour, key)
    if group is None:
        return None
    groups[new] = group
    return group.rank_and_size()


def subgroup(name, new, members, timeout_ms=0):
    groups[new] = groups[name].subgroup(new, members, timeout_ms)
    return groups[new].rank_and_size()


def subgroups(name, members):
    """Makes subgroups and leaves them, until one fails."""
    while True:
        groups[name].subgroup(f"{name}-{members}", members).leave()


def choose(name, colour, key):
    """The part of a split that all ranks of the group take."""
    group, send = groups[name], bytearray(array.array("i", [colour, key]))
    recv = bytearray(len(send) * group.rank_and_size()[1])
    group.run("all_gather", send=send, recv=recv, count=2, dtype=DTYPES.index("i32"))


def raw(name, coll, **arguments):
    groups[name].run(coll, **arguments)


def huge(name, nbytes):
    """Broadcast of an untouched mapping of @nbytes, twice: from rank 0, then all_reduce of u8."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, nbytes, 3, 0x22, -1, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"mmap of {nbytes} bytes")
    group = groups[name]
    bytes_at = (ctypes.c_ubyte * nbytes).from_address(at)
    probes = [0, 1, 12345, nbytes // 2, 2**31 - 1, 2**31, nbytes - 2, nbytes - 1]
    for probe in probes:
        bytes_at[probe] = 10 + group.rank if probe % 2 else 20 - group.rank
    group.run("all_reduce", send=at, recv=at, count=nbytes, dtype=DTYPES.index("u8"), redop=4)
    got = [bytes_at[probe] for probe in probes]
    want = [10 + group.size - 1 if probe % 2 else 20 for probe in probes]
    libc.munmap(at, nbytes)
    if got != want:
        raise AssertionError(f"{got} instead of {want}")


def one_way(name, coll, nbytes, times=1):
    """Of bytes that repeat after 251, and differ by rank; from or to rank 0. In an all_to_all_v
    rank 0 alone sends, and only to the last rank. Returns whether the last result is right."""
    group = groups[name]
    rank, size, blocks = group.rank, group.size, nbytes // 251 * 251

    def block(of):
        return bytes((of + 1) * (i + 1) % 251 for i in range(251)) * (blocks // 251)

    send, recv, want, lists = None, None, None, {}
    count = blocks
    if coll == "broadcast":
        recv, want = bytearray(block(0) if rank == 0 else blocks), block(0)
    elif coll == "reduce":
        send, recv = block(rank), bytearray(blocks)
        columns = zip(*(block(of)[:251] for of in range(size)))
        want = bytes(map(max, columns)) * (blocks // 251) if rank == 0 else None
    elif coll == "gather":
        send, recv = block(rank), bytearray(blocks * size if rank == 0 else 0)
        want = b"".join(block(of) for of in range(size)) if rank == 0 else None
    elif coll == "scatter":
        send = b"".join(block(of) for of in range(size)) if rank == 0 else None
        recv, want = bytearray(blocks), block(rank)
    else:
        to, count = size - 1, 0
        send, recv = block(0) if rank == 0 else b"", bytearray(blocks if rank == to else 0)
        want = block(0) if rank == to else None
        lists = dict(
            send_counts=counts_array([blocks * (rank == 0 and k == to) for k in range(size)]),
            recv_counts=counts_array([blocks * (rank == to and k == 0) for k in range(size)]),
        )
    send = bytearray(send) if send is not None else recv
    tell({"started": True})
    for _ in range(times):
        group.run(coll, send=send, recv=recv, count=count, dtype=DTYPES.index("u8"),
                  redop=REDOPS.index("max"), **lists)  # fmt: skip
    return want is None or recv == want


def paced(name, compute, steps, count=1000):
    """@steps of a job: @compute seconds of its own, then an all_reduce."""
    tell({"started": True})
    for _ in range(steps):
        time.sleep(compute)
        all_reduce(name, count)


def uneven(name, computes, steps, burst=1):
    """Steps with a time of their own for each rank, one after the other, and some operations."""
    tell({"started": True})
    for step in range(steps):
        time.sleep(computes[step % len(computes)])
        for _ in range(burst):
            all_reduce(name, 1000)


def pipeline(name, rank, size, compute, steps, nbytes=256 << 10):
    """A stage: takes from the one before, computes for so many seconds, gives to the next. After
    each fourth step the last answers the first."""
    tell({"started": True})
    for step in range(steps):
        if rank > 0:
            recv(name, rank - 1, 0, nbytes)
        time.sleep(compute)
        if rank < size - 1:
            send(name, rank + 1, 0, "x", nbytes)
        if step % 4 == 3 and rank == size - 1:
            send(name, 0, 0, "x")
        if step % 4 == 3 and rank == 0:
            recv(name, size - 1, 0, 1)


def loop(name, count=1000, limit=None):
    """all_reduce after all_reduce until one fails, which is the good end of it."""
    tell({"started": True})
    done = 0
    while limit is None or done < limit:
        all_reduce(name, count)
        done += 1
    return done


def fork(lasting):
    """A child that does nothing for a while, as a worker of a DataLoader does; its pid."""
    pid = os.fork()
    if pid == 0:
        os.close(0)
        os.close(1)
        time.sleep(lasting)
        os._exit(0)
    return pid


def run_stream(name, seed, operations, max_bytes):
    stream.run(groups[name], groups[name].rank, groups[name].size, seed, operations, max_bytes)
    return operations


def alloc(key, size, plain=False, context="c"):
    registered.alloc(contexts[context], key, size, plain)


def run_registered(name, **arguments):
    registered.all_reduce(groups[name], **arguments)


def data(name, stop, times, messages):
    tell({"started": True})
    return verified.data(groups[name], stop, times, messages)


def controls(name, rank, size, stop):
    return verified.controls(Context, name, rank, size, stop, tell)


def registered_loop(name, key, count, timeout_ms=0):
    """all_reduce in place until one fails."""
    group, address = groups[name], registered.memory[key][0] + registered.EDGE
    arguments = dict(send=address, recv=address, count=count, dtype=DTYPES.index("u32"))
    group.run("all_reduce", **arguments)
    tell({"started": True})
    while True:
        group.run("all_reduce", timeout_ms=timeout_ms, **arguments)


COMMANDS = {
    "connect": connect, "join": join, "leave": leave, "disconnect": disconnect, "abort": abort,
    "fall_silent": fall_silent,
    "recover": recover, "rejoin": rejoin, "where": where, "check": check, "verify": verify,
    "inputs": lambda name, **a: inputs.run(groups[name], tell=tell, **a),
    "intact": intact, "abort_soon": abort_soon, "resources": resources,
    "all_reduce": all_reduce, "raw": raw, "huge": huge, "loop": loop, "paced": paced, "many": many,
    "one_way": one_way, "uneven": uneven, "pipeline": pipeline,
    "stream": run_stream, "send": send, "recv": recv, "finish_sends": finish_sends, "mail": mail,
    "exit": lambda status: os._exit(status),
    "alloc": alloc, "free": registered.free, "paint": registered.paint, "looks": registered.looks,
    "registered": run_registered, "registered_loop": registered_loop,
    "data": data, "controls": controls,
    "recovering": lambda name, kind, count, left, **options: recovering.work(
        contexts["c"], groups[name], kind, count, left, options, tell),
    "comes": lambda name, rank, kind, count: recovering.come(
        contexts["c"], rejoined(name, rank), kind, count),
    "joining": lambda **arguments: recovering.joining(contexts["c"], **arguments),
    "reconfigure": lambda name, times: recovering.reconfigure(groups[name], times),
    "gpu_begin": gpu_tensors.begin, "gpu_hold": gpu_tensors.hold,
    "gpu_release": gpu_tensors.release, "gpu_synchronize": gpu_tensors.synchronize,
    "gpu": lambda name, **a: gpu_tensors.run(groups[name], **a),
    "gpu_start": lambda name, **a: gpu_tensors.start(groups[name], **a),
    "gpu_wait": gpu_tensors.wait,
    "gpu_verify": lambda name, count: gpu_tensors.verify(groups[name], count),
    "gpu_loop": lambda name, **a: gpu_tensors.loop(groups[name], tell, **a),
    "batch": batch, "split": split, "subgroup": subgroup,
    "subgroups": subgroups, "choose": choose,
    "recover_twice": recover_twice, "pid": os.getpid, "fork": fork,
}  # fmt: skip


def tell(answer):
    answer["at"] = time.clock_gettime(time.CLOCK_MONOTONIC)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main():
    for line in sys.stdin:
        request = json.loads(line)
        command = COMMANDS[request.pop("do")]
        try:
            tell({"ok": command(**request)})
        except CommdError as error:
            tell({"error": error.fields})
        except Exception as error:  # of the test itself
            tell({"failed": f"{type(error).__name__}: {error}"})


main()
