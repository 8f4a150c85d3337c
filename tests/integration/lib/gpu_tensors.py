"""What rank.py does with buffers on a GPU, of tests/fakecuda or a real one; standard library only.

A stream may be held: it waits for a word, as behind a kernel that does not end.
"""

import ctypes
import os
import threading
import time

import commd_client as client

CUDA = 2  # COMMD_MEMORY_CUDA
HOLD = "hold"

cuda = None
context = ctypes.c_void_p()
streams, words, buffers, works = {}, {}, {}, []


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        raise RuntimeError(f"{name}: {result}")


def begin(device=0):
    global cuda
    cuda = ctypes.CDLL(os.environ.get("COMMD_LIBCUDA") or "libcuda.so.1")
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def alloc(size):
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer.value


def stream(name):
    if name not in streams:
        handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(handle), 1)
        streams[name] = handle.value
    return streams[name]


def hold(name="s", after=None):
    """What is enqueued there later waits for release(), which comes by itself @after seconds."""
    words[name] = alloc(4096)
    write(words[name], 0)
    word, at = ctypes.c_uint64(words[name]), ctypes.c_void_p(stream(name))
    call("cuStreamWaitValue32_v2", at, word, 1, 0)
    if after:
        stream(HOLD)
        threading.Timer(after, release, [name]).start()


def write(word, value):
    call("cuCtxSetCurrent", context)
    call("cuStreamWriteValue32_v2", ctypes.c_void_p(stream(HOLD)), ctypes.c_uint64(word), value, 0)
    synchronize(HOLD)


def release(name="s"):
    write(words.pop(name), 1)


def synchronize(name="s"):
    call("cuStreamSynchronize", ctypes.c_void_p(stream(name)))


def operation(group, coll, count, name, **arguments):
    key = (id(group), count)
    if key not in buffers:
        buffers[key] = alloc(max(8 * count, 8))
    at = buffers[key]
    if coll not in ("barrier", "broadcast", "recv"):
        arguments["send"] = at
    if coll not in ("barrier", "send"):
        arguments["recv"] = at
    arguments.setdefault("dtype", 10)
    op = group.op(coll, count=count, **arguments)
    op.memory, op.stream = CUDA, stream(name)
    return op


def run(group, coll="all_reduce", count=100, stream="s", wait=False, **arguments):
    """Enqueued; @wait: and the host waits for the stream."""
    op = operation(group, coll, count, stream, **arguments)
    client.check(client.lib.commd_run(group.handle, ctypes.byref(op)))
    if wait:
        synchronize(stream)


def verify(group, count):
    """An all_reduce of i32, whose result is copied back and looked at."""
    rank, size = group.rank_and_size()
    mine = (ctypes.c_int32 * count)(*((rank + 1) * (i % 89) for i in range(count)))
    there, at = alloc(4 * count), ctypes.c_void_p(stream("s"))
    copy = [ctypes.c_uint64(there), ctypes.c_uint64(ctypes.addressof(mine))]
    call("cuMemcpyAsync", *copy, ctypes.c_size_t(4 * count), at)
    op = group.op("all_reduce", send=there, recv=there, count=count, dtype=4)
    op.memory, op.stream = CUDA, stream("s")
    client.check(client.lib.commd_run(group.handle, ctypes.byref(op)))
    call("cuMemcpyAsync", *reversed(copy), ctypes.c_size_t(4 * count), at)
    synchronize("s")
    group.check()
    whole = size * (size + 1) // 2
    if list(mine) != [whole * (i % 89) for i in range(count)]:
        raise AssertionError(f"the sum on the GPU is wrong: {mine[:5]}")
    return size


def start(group, coll="all_reduce", count=100, stream="s", **arguments):
    """The number of the work, for wait()."""
    op, work = operation(group, coll, count, stream, **arguments), ctypes.c_void_p()
    client.check(
        client.lib.commd_start(group.handle, ctypes.byref(op), None, None, ctypes.byref(work))
    )
    works.append(work)
    return len(works) - 1


def wait(number, timeout_ms=-1):
    client.check(client.lib.commd_work_wait(works[number], timeout_ms))


def last_of(group, stop, done):
    """How many operations there will be; None: not known yet. Rank 0 says so of the one that it
    begins now, once @stop exists. By itself a rank would begin one that another does not."""
    last = stop + ".last"
    if group.rank == 0 and os.path.exists(stop) and not os.path.exists(last):
        with open(last + ".new", "w") as file:
            file.write(str(done + 1))
        os.rename(last + ".new", last)
    if not os.path.exists(last):
        return None
    with open(last) as file:
        return int(file.read())


def loop(group, tell, count=1000, pause=0.0, stop=None):
    """Until @stop exists, or one fails, each waited for."""
    tell({"started": True})
    done = 0
    while done != last_of(group, stop, done):
        run(group, count=count, wait=True)
        done += 1
        time.sleep(pause)
    return done
