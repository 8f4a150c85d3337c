"""What a rank of test_numpy.py does: the functions named on the command line, one after the other.

Each is called by all ranks with the context and a group of its own, and checks results against what
NumPy computes from everybody's data, which each rank can make by itself.
"""

import array
import asyncio
import faulthandler
import gc
import os
import select
import signal
import sys
import threading
import time
import warnings
import weakref

import commd
import numpy as np
from limit import Limit

DTYPES = [
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "bool", "bf16",
]  # fmt: skip
COUNTS = [0, 1, 3, 1000, 40000]


def same(got, want, what=""):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    if not np.array_equal(got, want):
        at = np.flatnonzero(got.ravel() != want.ravel())[0]
        raise AssertionError(f"{what}: [{at}] is {got.ravel()[at]}, not {want.ravel()[at]}")


def raises(kind, function, *arguments, **keywords):
    try:
        result = function(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"{function} returned {result!r}; wanted {kind.__name__}")


# bfloat16 as those know it who have no bfloat16: the upper halves of float32
def to_bf16(values):
    return (values.astype("float32").view("uint32") >> 16).astype("uint16")


def from_bf16(bits):
    return (bits.astype("uint32") << 16).view("float32")


def data(rank, shape, dtype, seed=0):
    """Small integers: every operator's result is exact in every type."""
    values = np.random.default_rng([seed, rank]).integers(0, 4, shape)
    if dtype == "bf16":
        return to_bf16(values)
    return values.astype(dtype) if dtype != "bool" else values > 1


def named(dtype):
    return {"dtype": "bf16"} if dtype == "bf16" else {}


def reduced(parts, op, dtype):
    parts = np.stack([from_bf16(p) if dtype == "bf16" else p for p in parts])
    size = len(parts)
    if dtype == "bool":
        return {
            "sum": parts.any(0), "prod": parts.all(0), "min": parts.all(0), "max": parts.any(0),
            "band": parts.all(0), "bor": parts.any(0), "bxor": parts.sum(0) % 2 == 1,
        }[op]  # fmt: skip
    kind = parts.dtype
    with np.errstate(over="ignore"):
        result = {
            "sum": lambda: parts.sum(0, dtype=kind),
            "avg": lambda: parts.sum(0, dtype="float64") / size,
            "prod": lambda: parts.prod(0, dtype=kind),
            "min": lambda: parts.min(0),
            "max": lambda: parts.max(0),
            "band": lambda: np.bitwise_and.reduce(parts),
            "bor": lambda: np.bitwise_or.reduce(parts),
            "bxor": lambda: np.bitwise_xor.reduce(parts),
        }[op]()
    if op == "avg" and kind.kind in "iu":
        result = np.trunc(result)
    return to_bf16(result) if dtype == "bf16" else result.astype(kind)


def operators(dtype):
    ops = ["sum", "prod", "min", "max"]
    if dtype != "bool":
        ops.append("avg")
    if dtype == "bool" or "int" in dtype:
        ops += ["band", "bor", "bxor"]
    return ops


def exact(op, dtype, size):
    """Divisions are exact where the size is a power of two; bf16 then still rounds thirds only."""
    return op != "avg" or size & (size - 1) == 0 or "int" in dtype


def meet(ctx, g, where):
    """Returns when all ranks are there, without using g."""
    ctx.group(where, g.rank, g.size).close()


# ---- results -------------------------------------------------------------------------------------


def check_reductions(ctx, g):
    for dtype in DTYPES:
        for op in operators(dtype):
            if not exact(op, dtype, g.size):
                continue
            for count in COUNTS[:4] if op != "sum" else COUNTS:
                what = f"{op} of {count} {dtype}"
                parts = [data(r, count, dtype, count) for r in range(g.size)]
                want = reduced(parts, op, dtype) if count else parts[0]
                x = parts[g.rank].copy()
                assert g.all_reduce(x, op, **named(dtype)) is x
                same(x, want, f"all_reduce {what}, in place")
                x, out = parts[g.rank].copy(), np.empty_like(parts[0])
                assert g.all_reduce(x, op, out, **named(dtype)) is out
                same(out, want, f"all_reduce {what}")
                same(x, parts[g.rank], f"all_reduce {what}: what was sent")
                root = count % g.size
                got = g.reduce(x, op, root, **named(dtype))
                if g.rank == root:
                    assert got is x
                    same(x, want, f"reduce {what}")
                else:
                    assert got is None
                    same(x, parts[g.rank], f"reduce {what}, not the root")


def check_reduce_scatter(ctx, g):
    for dtype in DTYPES:
        for op in ("sum", "max"):
            for count in COUNTS[:4]:
                what = f"{op} of {count} {dtype}"
                parts = [data(r, (g.size, count), dtype, count) for r in range(g.size)]
                want = reduced(parts, op, dtype) if count else parts[0]
                mine = parts[g.rank].copy()
                same(
                    g.reduce_scatter(mine, op, **named(dtype)),
                    want[g.rank],
                    f"reduce_scatter {what}",
                )
                same(mine, parts[g.rank], "what was sent")
                listed = g.reduce_scatter(list(mine), op, **named(dtype))
                same(listed, want[g.rank], f"reduce_scatter {what}, a list")
                flat = g.reduce_scatter(mine.ravel(), op, **named(dtype))
                same(flat, want[g.rank], f"reduce_scatter {what}, one dimension")
                g.reduce_scatter(mine, op, mine[g.rank], **named(dtype))
                same(mine[g.rank], want[g.rank], f"reduce_scatter {what}, in place")
        counts = [7 * r % 5 for r in range(g.size)]
        parts = [data(r, sum(counts), dtype, 5) for r in range(g.size)]
        want = np.split(reduced(parts, "sum", dtype), np.cumsum(counts)[:-1])
        got = g.reduce_scatter_v(parts[g.rank], counts, **named(dtype))
        same(got, want[g.rank], f"reduce_scatter_v of {dtype}")
        blocks = [np.ascontiguousarray(b) for b in np.split(parts[g.rank], np.cumsum(counts)[:-1])]
        got = g.reduce_scatter_v(blocks, **named(dtype))
        same(got, want[g.rank], f"reduce_scatter_v of {dtype}, a list")


def check_premul(ctx, g):
    for dtype in ("float16", "float32", "float64", "bf16"):
        parts = [data(r, 1001, dtype) for r in range(g.size)]
        factors = [0.5 * (r + 1) for r in range(g.size)]
        plain = [from_bf16(p) if dtype == "bf16" else p for p in parts]
        want = sum(p * p.dtype.type(f) for p, f in zip(plain, factors))
        x = parts[g.rank].copy()
        g.all_reduce(x, "premul_sum", scale=factors[g.rank], **named(dtype))
        same(x, to_bf16(want) if dtype == "bf16" else want, f"premul_sum of {dtype}")


def check_moves(ctx, g):
    size, rank = g.size, g.rank
    for dtype in [*DTYPES, "complex128", "S5", "M8[s]"]:
        make = "int64" if dtype in ("S5", "M8[s]") else dtype
        for count in COUNTS[:4]:
            what = f"{count} {dtype}"
            parts = [data(r, (count, 2), make, 9) for r in range(size)]
            if make != dtype:
                parts = [p.astype(dtype) for p in parts]
            everything, root = np.stack(parts), (count + 1) % size
            x = parts[rank].copy()
            assert g.broadcast(x, root) is x
            same(x, parts[root], f"broadcast {what}")
            same(g.all_gather(parts[rank]), everything, f"all_gather {what}")
            out = [np.empty_like(p) for p in parts]
            assert g.all_gather(parts[rank], out) is out
            same(np.stack(out), everything, f"all_gather {what} into a list")
            out = np.empty_like(everything)
            out[rank] = parts[rank]
            same(g.all_gather(out[rank], out), everything, f"all_gather {what}, in place")
            got = g.gather(parts[rank], root)
            assert (got is None) == (rank != root)
            if rank == root:
                same(got, everything, f"gather {what}")
            same(
                g.scatter(everything if rank == root else None, np.empty_like(parts[0]), root),
                parts[rank],
                f"scatter {what}",
            )
            # block j of rank i: the part of i, turned by j
            mine = np.stack([np.roll(parts[rank], j, 0) for j in range(size)])
            want = np.stack([np.roll(parts[i], rank, 0) for i in range(size)])
            same(g.all_to_all(mine), want, f"all_to_all {what}")
            got = g.all_to_all(list(mine))
            same(np.stack(got), want, f"all_to_all {what}, lists")
            assert g.all_to_all(mine, mine) is mine
            same(mine, want, f"all_to_all {what}, in place")


def check_uneven_moves(ctx, g):
    size, rank = g.size, g.rank
    for dtype in ("uint8", "int16", "float64", "complex64"):
        for shift in range(3):
            counts = [(r + shift) * 5 % 7 * 100 for r in range(size)]
            parts = [data(r, counts[r], dtype, shift) for r in range(size)]
            joined, root = np.concatenate(parts), shift % size
            what = f"{counts} {dtype}"
            same(g.all_gather_v(parts[rank], counts), joined, f"all_gather_v {what}")
            out = [np.empty_like(p) for p in parts]
            g.all_gather_v(parts[rank], None, out)
            same(np.concatenate(out), joined, f"all_gather_v {what} into a list")
            got = g.gather_v(parts[rank], counts, root)
            if rank == root:
                same(got, joined, f"gather_v {what}")
            out = np.empty_like(parts[rank])
            g.scatter_v(joined if rank == root else None, counts, out, root)
            same(out, parts[rank], f"scatter_v {what}")
            # rank i sends i * size + j + shift elements to j
            amount = [[i * size + j + shift for j in range(size)] for i in range(size)]
            sent = [data(i, sum(amount[i]), dtype, 3) for i in range(size)]
            blocks = [np.split(sent[i], np.cumsum(amount[i])[:-1]) for i in range(size)]
            want = np.concatenate([blocks[i][rank] for i in range(size)])
            expected = np.array([amount[i][rank] for i in range(size)])
            got = g.all_to_all_v(sent[rank], amount[rank], expected)
            same(got, want, f"all_to_all_v {what}")


def check_other_buffers(ctx, g):
    """No ndarray anywhere: bytearray, array.array, memoryview, bytes to send."""
    total = sum(range(1, g.size + 1))
    x = array.array("d", [g.rank + 1] * 5)
    assert g.all_reduce(x) is x and x.tolist() == [total] * 5
    got = g.all_gather(x)
    assert got.format == "d" and got.tolist() == [total] * 5 * g.size, got
    got = g.all_gather(bytes([g.rank]) * 3)
    assert isinstance(got, bytearray) and got == b"".join(bytes([r]) * 3 for r in range(g.size))
    text = bytearray(b"from the root" if g.rank == 0 else 13)
    assert g.broadcast(text) == b"from the root"
    view = memoryview(bytearray(8)).cast("i")
    view[0] = view[1] = g.rank
    assert g.all_reduce(view, "max").tolist() == [g.size - 1] * 2
    half = bytearray(np.full(3, 1.5, "float16").tobytes())  # what they are says dtype=
    g.all_reduce(half, dtype=np.float16)
    same(np.frombuffer(half, "float16"), np.full(3, 1.5 * g.size, "float16"))
    zero_d = np.array(2.0)
    g.all_reduce(zero_d)
    assert zero_d == 2.0 * g.size


def check_large(ctx, g):
    """More than a window."""
    x = np.arange(3_000_001, dtype="float64") + g.rank
    g.all_reduce(x)
    same(x, np.arange(3_000_001.0) * g.size + sum(range(g.size)))


def arenas():
    """Mappings of registered memory in this process, of other ranks too."""
    with open("/proc/self/maps") as maps:
        return sum("/memfd:commd-arena" in line for line in maps)


def check_registered(ctx, g):
    before = arenas()
    x = ctx.empty((3, 40_001), "float32")
    assert x.shape == (3, 40_001) and x.dtype == np.float32
    assert x.flags.c_contiguous and x.flags.writeable
    assert not x.any() and arenas() == before + 1
    for turn in range(3):
        x[:] = np.arange(40_001) + g.rank + turn
        assert g.all_reduce(x) is x
        total = np.broadcast_to((np.arange(40_001) + turn) * g.size + sum(range(g.size)), x.shape)
        same(x, total.astype("float32"))
    # a part of it, to another array, as one of several kinds; one rank has not registered
    out = ctx.empty(40_001) if g.rank else np.empty(40_001)
    y = x[1].astype("float64")
    g.all_reduce(y, "max", out=out)
    same(out, y)
    part = x[2, 1:]
    part[:] = g.rank
    del x
    gc.collect()
    g.all_reduce(part, "max")  # it keeps the memory
    same(part, np.full(40_000, g.size - 1, "float32"))
    for shape, kind, size in ((0, "i8", 0), ((2, 0), float, 0), ((), bool, 1), ([5], np.int16, 10)):
        small = ctx.empty(shape, kind)
        assert small.nbytes == size and not small.any()
        g.all_reduce(small, "max")
    raises(commd.InvalidArgument, ctx.empty, 3, object)
    raises(ValueError, ctx.empty, -1)
    raises(commd.QuotaExceeded, ctx.empty, 1 << 45, "u1")
    other = commd.connect()
    last = other.empty(10, int)
    other.close()
    last += 1  # it is ordinary memory now
    assert last.sum() == 10
    raises(commd.InvalidArgument, other.empty, 1)
    g.barrier()
    g.close()  # with which the mappings of the others' memory go
    del part, last, small, out, y
    gc.collect()
    assert arenas() == before, arenas()


# ---- refusals --------------------------------------------------------------------------------


def check_refusals(ctx, g):
    """Nothing is started: the group works after each."""
    x = np.zeros(12)
    invalid = commd.InvalidArgument
    error = raises(invalid, g.all_reduce, x[::2])
    assert "C-contiguous" in str(error) and error.op == "all_reduce" and error.code == -1
    assert isinstance(error, commd.Error) and isinstance(error, ValueError)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert "read-only" in str(raises(invalid, g.all_reduce, frozen))
    assert "read-only" in str(raises(invalid, g.broadcast, b"abc"))
    assert "torch" in str(raises(TypeError, g.all_reduce, [1.0, 2.0]))
    raises(TypeError, g.broadcast, 3.0)
    pointers = np.zeros(2, [("a", "i4"), ("b", object)])
    for objects in (pointers, np.array([[], {}], object)):
        assert "leave" in str(raises(invalid, g.broadcast, objects))
    g.broadcast(np.zeros(2, [("O", "i4")]))
    if hasattr(getattr(np, "dtypes", None), "StringDType"):  # its elements are pointers too
        raises(TypeError, g.broadcast, np.array(["x"], np.dtypes.StringDType()))
    assert "Zd" in str(raises(invalid, g.all_reduce, np.zeros(3, complex)))
    assert "native byte order" in str(raises(invalid, g.all_reduce, np.zeros(3, ">f4")))
    assert "'plus'" in str(raises(invalid, g.all_reduce, x, "plus"))
    raises(invalid, g.all_reduce, x, 0)
    assert "scale" in str(raises(invalid, g.all_reduce, x, scale=2.0))
    raises(TypeError, g.all_reduce, x, "premul_sum")
    assert "different types" in str(raises(invalid, g.all_reduce, x, out=np.zeros(12, "f4")))
    raises(invalid, g.all_reduce, x, out=np.zeros(11))
    assert "bool" in str(raises(invalid, g.all_reduce, np.zeros(3, bool), "avg"))
    assert "f64" in str(raises(invalid, g.all_reduce, x, "band"))
    assert "overlap" in str(raises(invalid, g.all_reduce, x[:8], out=x[4:]))
    raises(invalid, g.broadcast, x, g.size)
    raises(invalid, g.broadcast, x, -1)
    raises(invalid, g.broadcast, x, 2**40)
    raises(TypeError, g.broadcast, x, "root")
    raises(invalid, g.all_gather, x, np.zeros(12 * g.size + 1))
    raises(invalid, g.all_gather, x, [np.zeros(12)] * (g.size + 1))
    raises(invalid, g.all_gather, x, [np.zeros(12 + r) for r in range(g.size)])
    raises(invalid, g.reduce_scatter, np.zeros((g.size + 1, 2)))
    assert "scatter" in str(raises(invalid, g.scatter, None, root=(g.rank + 1) % g.size))
    for counts in ([1], [1] * (g.size - 1) + [-1], [1.5] * g.size, [2**62] * g.size, 7, None):
        kinds = (invalid, TypeError)
        raises(kinds, g.all_gather_v, np.zeros(1), counts, np.zeros(g.size))
    raises(invalid, g.all_gather_v, np.zeros(2), [1] * g.size, np.zeros(g.size))
    assert "bytes" in str(raises(invalid, g.all_reduce, np.zeros(3, "u2"), dtype="f32"))
    raises(invalid, g.all_reduce, bytearray(3), dtype="bf16")
    assert "f33" in str(raises(invalid, g.all_reduce, x, dtype="f33"))
    for timeout in (0, -1, float("nan")):
        assert "timeout" in str(raises(invalid, g.all_reduce, x, timeout=timeout))
    raises(TypeError, g.all_reduce, x, timeout="soon")
    raises(invalid, ctx.group, "", 0, 1)
    raises(invalid, ctx.group, "x", 1, 1)
    assert g.all_reduce(np.ones(1)) == g.size and g.seq == 2
    g.close()
    assert g.closed
    assert "closed" in str(raises(invalid, g.barrier))
    assert "closed" in str(raises(invalid, g.start.all_reduce, x))
    raises(invalid, lambda: g.epoch)
    g.close()
    never = commd.Group()  # joined
    for call in (never.barrier, lambda: never.all_gather(x, out=x), lambda: never.start.barrier()):
        raises(commd.InvalidArgument, call)
    raises(TypeError, commd.Work)


def check_batch_refusals(ctx, g):
    batch = g.batch()
    batch.all_reduce(np.zeros(3))
    batch.all_reduce(np.zeros(6)[::2])
    raises(commd.InvalidArgument, batch.start)
    assert len(batch) == 0
    g.barrier()


# ---- asynchronous -------------------------------------------------------------------------------


def check_async(ctx, g):
    arrays = [np.full(n, g.rank + 1.0) for n in (1, 100, 100_000, 7)]
    works = [g.start.all_reduce(a) for a in arrays]
    total = sum(range(1, g.size + 1))
    works[-1].wait()
    assert all(w.done() for w in works), "operations of a group complete in order"
    for a, w in zip(arrays, works):
        assert w.wait() is a and w.wait(timeout=0) is a
        same(a, np.full(len(a), float(total)))
    got = g.start.all_gather(np.array([g.rank])).wait()
    same(got, np.arange(g.size).reshape(-1, 1))
    assert g.start.barrier().wait() is None


def check_async_pending(ctx, g):
    """One rank comes late: the others' works stay pending, say so, and get done by themselves."""
    late = ctx.group(f"late {g.epoch}", g.rank, g.size)
    x = np.ones(10)
    if g.rank == 0:
        late.barrier()
    work = g.start.all_reduce(x)
    if g.rank:
        assert not work.done()
        error = raises(commd.Timeout, work.wait, 0)
        assert isinstance(error, TimeoutError) and "pending" in str(error)
        raises(commd.Timeout, work.wait, 0.01)
        late.barrier()
    while not work.done():
        pass
    same(x, np.full(10, float(g.size)))


def check_await(ctx, g):
    async def several():
        arrays = [np.full(3, g.rank + 1.0), np.full(4, 2.0), np.full(5, 3.0)]
        works = [g.start.all_reduce(a) for a in arrays]
        twice = await asyncio.gather(*[wait_for(w) for w in (*works, works[0])])
        assert twice[0] is arrays[0] is twice[3]
        same(arrays[2], np.full(5, 3.0 * g.size))
        return await works[1]

    async def wait_for(work):
        return await work

    before = len(os.listdir("/proc/self/fd"))
    same(asyncio.run(several()), np.full(4, 2.0 * g.size))
    gc.collect()
    # the library's thread lets go of the eventfd after it rang, so perhaps after we woke up
    limit = Limit()
    while len(os.listdir("/proc/self/fd")) > before:
        assert not limit.over(), (before, os.listdir("/proc/self/fd"))
        time.sleep(0.001)


def check_await_pending(ctx, g):
    late = ctx.group(f"late {g.epoch}", g.rank, g.size)

    async def wait_for(work):
        await work
        return "done"

    async def main():
        waiting = asyncio.ensure_future(wait_for(g.start.barrier()))
        await asyncio.sleep(0)  # now it waits
        if g.rank:
            assert not waiting.done()
            late.barrier()
        assert await waiting == "done"

    if g.rank == 0:
        late.barrier()
    asyncio.run(main())


def check_batch(ctx, g):
    a, b = np.ones(5), np.full(6, g.rank, "int32")
    with g.batch() as batch:
        assert batch.all_reduce(a) == 0
        batch.all_reduce(b, "max")
        batch.broadcast(a, 0)
    same(a, np.full(5, float(g.size)))
    same(b, np.full(6, g.size - 1, "int32"))
    batch = g.batch()
    batch.all_gather(np.array([g.rank]))
    batch.barrier()
    gathered, nothing = batch.start().wait()
    same(gathered, np.arange(g.size).reshape(-1, 1))
    assert nothing is None
    with g.batch():
        pass
    raises(commd.InvalidArgument, g.batch().start)


def check_batch_changed(ctx, g):
    """What an array's own code does to the list of a batch comes too late."""
    events = []

    class Array:
        def __getattr__(self, name):
            events.append("asked")
            noted.clear()
            raise AttributeError(name)

    array = Array()
    gone = weakref.ref(array, lambda _: events.append("gone"))
    batch = g.batch()
    batch.all_gather(array, np.zeros(g.size))
    noted = batch._noted
    del array
    raises(TypeError, batch.start)
    assert gone() is None and events.index("gone") == len(events) - 1 > 1, events
    g.barrier()


def check_batch_collected(ctx, g):
    """The collector runs while a batch makes its list of results, and frees who waits for it."""

    class Waits:
        def __init__(self, work):
            self.work, self.me = work, self

        def __del__(self):
            results.append(self.work.wait())

    arrays, results, before = [np.ones(3) for _ in range(2)], [], gc.get_threshold()
    batch = g.batch()
    for x in arrays:
        batch.all_reduce(x)
    work = batch.start()
    ready = work._watch()
    select.select([ready], [], [])  # done() would make the list
    os.close(ready)
    gc.collect()
    gc.disable()
    Waits(work)
    lists = [[] for _ in range(1000)]  # more than are kept for reuse
    gc.set_threshold(1)
    gc.enable()
    results.append(work.wait())
    gc.set_threshold(*before)
    del lists
    assert [[x is y for x, y in zip(r, arrays)] for r in results] == [[True] * 2] * 2, results
    assert results[0] is results[1]


def check_references(ctx, g):
    """Buffers are held while they are used, and no longer."""

    class Array(np.ndarray):  # a plain ndarray has no weak references
        pass

    def make():
        return np.ones(1000).view(Array)

    x, op = make(), "".join(["s", "um"])  # not the one that all others use too
    before = sys.getrefcount(x), sys.getrefcount(op)
    for _ in range(20):
        g.all_reduce(x, op)
        raises(commd.InvalidArgument, g.all_reduce, x, out=x[::2])
        g.start.all_reduce(x, op).wait()
        with g.batch() as batch:
            batch.all_reduce(x, op)
    del batch
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(op)) == before, "references leak"
    late = ctx.group(f"late {g.epoch}", g.rank, g.size)
    held = bytearray(8)
    if g.rank == 0:
        late.barrier()
    x = make()
    alive = weakref.ref(x)
    work = g.start.all_reduce(x)
    pending = g.start.all_reduce(held)
    if g.rank:  # rank 0 is not there: both are pending, whatever is dropped
        del x, work
        gc.collect()
        assert alive() is not None, "the array of a pending operation was freed"
        raises(BufferError, held.append, 0)
        late.barrier()
    else:
        del x, work
    pending.wait()
    held.append(0)  # is ours again
    g.barrier()  # reaps
    gc.collect()
    assert alive() is None, "the array of a finished operation is still held"


def check_close_pending(ctx, g):
    """What is pending when a group is closed fails, and its buffers are given back."""
    meet(ctx, g, "before")
    if g.rank == 0:
        x = bytearray(8)
        work, dropped = g.start.all_reduce(x), g.start.barrier()
        del dropped
        g.close()
        assert work.done()
        assert "pending" in str(raises(commd.Aborted, work.wait))
        x.append(0)
    meet(ctx, g, "after")


def check_threads(ctx, g):
    """Two threads, two groups, opposite orders on the ranks."""
    groups = [ctx.group(f"threads {n} {g.epoch}", g.rank, g.size) for n in range(2)]
    sums, failures = [np.zeros(100) for _ in groups], []

    def work(n):
        try:
            for k in range(200):
                x = np.full(100, float(k + n))
                groups[n].all_reduce(x)
                sums[n] += x
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads if g.rank % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for n in range(2):
        same(sums[n], np.full(100, g.size * sum(float(k + n) for k in range(200))))


def check_close_inside(ctx, g):
    """close() while another thread is inside a call: that call ends as if nothing had happened."""
    late = ctx.group(f"late {g.epoch}", g.rank, g.size)
    if g.rank == 0:
        late.barrier()
        g.barrier()
        return
    inside, done = threading.Event(), []

    def work():
        inside.set()
        try:
            g.barrier()
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    while g.seq == 0:
        pass
    g.close()
    assert "closed" in str(raises(commd.InvalidArgument, g.barrier))
    late.barrier()
    thread.join()
    assert done == [None]
    raises(commd.InvalidArgument, lambda: g.seq)


# ---- groups --------------------------------------------------------------------------------


def check_split(ctx, g):
    part = g.split(g.rank % 2, -g.rank)
    members = sorted((r for r in range(g.size) if r % 2 == g.rank % 2), reverse=True)
    assert part.size == len(members) and members[part.rank] == g.rank
    same(part.all_gather(np.array([g.rank])), np.array(members).reshape(-1, 1))
    alone = g.split(None if g.rank else 7)
    assert (alone is None) == bool(g.rank)
    if alone:
        with alone:
            assert (alone.rank, alone.size, alone.nodes) == (0, 1, 1)
    part.close()


def check_subgroup(ctx, g):
    members = list(range(g.size))[::-2]
    name = f"sub {g.epoch}"
    if g.rank in members:
        with g.subgroup(name, members) as part:
            assert members[part.rank] == g.rank
            same(part.all_gather(np.array([g.rank])), np.array(members).reshape(-1, 1))
    else:
        raises(commd.InvalidArgument, lambda: g.subgroup(name, members))
    raises(TypeError, lambda: g.subgroup(name, ["0"]))
    raises(commd.InvalidArgument, lambda: g.subgroup(name, [g.rank, g.size]))
    raises(commd.InvalidArgument, lambda: g.subgroup(name, [g.rank, 1 << 40]))


def check_many_groups(ctx, g):
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        with ctx.group(f"many {n} {g.epoch}", g.rank, g.size) as part:
            part.barrier()
    assert len(os.listdir("/proc/self/fd")) == before


# ---- point to point ----------------------------------------------------------------------------


def check_point_to_point(ctx, g):
    right, left = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    for count in (0, 1, 1000, 300_000):
        got = np.empty(count)
        work = g.start.send(np.full(count, float(g.rank)), right, tag=5)
        status = g.recv(got, left, 5)
        assert status == (left, 5, count * 8), status
        assert work.wait() is None
        same(got, np.full(count, float(left)))
    # tags out of order, any source, a shorter message than the buffer
    for tag in (1, 2):
        g.start.send(bytes([tag]) * tag, right, tag=tag).wait()
    buffer = bytearray(8)
    assert g.recv(buffer, left, 2) == (left, 2, 2) and buffer[:3] == b"\2\2\0"
    status = g.recv(buffer)
    assert status == (left, 1, 1) and status.source == left and status.tag == 1
    g.barrier()
    if g.rank == 0:
        works = [g.start.recv(np.empty(1, "i4"), tag=9) for _ in range(g.size - 1)]
        assert sorted(w.wait().source for w in works) == list(range(1, g.size))
    else:
        g.send(np.array([g.rank], "i4"), 0, tag=9)
    error = raises(commd.Timeout, g.recv, buffer, left, 77, timeout=0.05)
    assert error.op == "recv"
    meet(ctx, g, "after all receives")  # who left earlier would be lost to the others


def check_too_long_message(ctx, g):
    if g.rank == 0:
        g.send(bytes(100), 1, tag=3)
    elif g.rank == 1:
        raises(commd.Mismatch, g.recv, bytearray(10), 0, 3)
    g.barrier()


def check_bfloat16(ctx, g):
    """ml_dtypes' bfloat16, where that package is there: NumPy cannot export it as a buffer."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return
    x = np.full(10, g.rank + 1, bfloat16)
    g.all_reduce(x)
    assert (x == sum(range(1, g.size + 1))).all() and x.dtype == bfloat16
    assert g.all_gather(x).dtype == bfloat16


# ---- failures -------------------------------------------------------------------------------


def check_mismatch(ctx, g):
    error = raises(commd.Mismatch, g.all_reduce, np.zeros(3 + g.rank))
    assert error.op == "all_reduce" and error.seq == 1 and error.epoch == g.epoch
    g.barrier()


def check_aborted(ctx, g):
    if g.rank == 0:
        g.abort("had enough")
    error = raises(commd.Aborted, lambda: [g.barrier() for _ in range(100000)])
    assert "had enough" in str(error)


def check_timeout(ctx, g):
    """Only rank 1 comes; who is missing is named."""
    if g.rank == 1:
        error = raises(commd.Timeout, g.barrier, timeout=0.2)
        assert error.rank == 0 and error.op == "barrier", vars(error)
        assert error.node and isinstance(error, TimeoutError)
    meet(ctx, g, "after the timeout")


def check_lost(ctx, g):
    """Rank 0 dies while the others wait for it."""
    pids = g.all_gather(np.array([os.getpid()]))[:, 0]
    if g.rank == 0:
        os._exit(0)
    error = raises(commd.RankLost, g.all_reduce, np.zeros(3))
    assert error.rank == 0 and error.pid == pids[0], vars(error)
    again = raises(commd.Error, g.barrier)
    assert again.code == error.code


def check_recovered(ctx, g):
    """Rank 0 dies, and the others go on; then a new process takes the free seat (here: another
    context of the one that is rank 0 by then)."""

    def summed(group):
        x = np.full(1000, group.rank, "int64")
        group.all_reduce(x)
        return x[0] == x[-1] == group.size * (group.size - 1) // 2

    def come():
        with commd.connect() as other, other.rejoin("recovered", timeout=300) as comer:
            came.append((comer.rank, comer.size, comer.epoch, comer.rank_before(comer.rank)))
            came.append(summed(comer))
            raises(commd.Aborted, comer.barrier)

    old, size = g.rank, g.size
    assert g.epoch == 1 and g.rank_before(0) is None
    g.check()
    if old == 1:  # alone; it gives up, and asks again below
        interrupted(lambda: time.sleep(0.2) is None, g.recover)
    g.barrier()
    if old == 0:
        os._exit(0)
    raises(commd.RankLost, g.all_reduce, np.zeros(3))
    assert raises(commd.RankLost, g.check).rank == 0
    raises(commd.InvalidArgument, g.recover, "no such policy")
    error = raises(commd.InvalidArgument, g.recover, min_size=-1)
    assert error.op == "recover"
    same_object = g
    g.recover()
    assert g is same_object and (g.rank, g.size, g.epoch) == (old - 1, size - 1, 2), g
    assert [g.rank_before(k) for k in range(g.size)] == list(range(1, size)) and summed(g)
    g.check()
    came = []
    comer = threading.Thread(target=come)
    if g.rank == 0:
        comer.start()
    work = g.start.recv(np.zeros(1), g.rank) if g.rank == 1 else None
    g.recover("wait", size=size, wait=300, timeout=600)
    assert (g.rank, g.size, g.epoch) == (old - 1, size, 3) and summed(g)
    if g.rank == 0:  # an abort also ends what others have not completed yet: they say so before
        for other in range(1, size - 1):
            g.recv(np.zeros(1), other, tag=1)
        g.abort("enough")
    else:
        g.send(np.zeros(1), 0, tag=1)
    if work:
        raises(commd.Aborted, work.wait)
    raises(commd.Aborted, g.barrier)
    raises(commd.Aborted, g.check)
    if g.rank == 0:
        comer.join()
        assert came == [(size - 1, size, 3, None), True], came


def check_forked(ctx, g):
    x = np.ones(3)
    g.all_reduce(x)
    work = g.start.barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of what is being tested
        child = os.fork()
    if child == 0:
        try:
            raises(commd.Forked, g.all_reduce, x)
            raises(commd.Forked, g.start.all_reduce, x)
            raises(commd.Forked, ctx.group, "forked", 0, 1)
            g.close()
            ctx.close()
            with commd.connect() as mine, mine.group(f"child {os.getpid()}", 0, 1) as alone:
                alone.all_reduce(x)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    work.wait()
    g.all_reduce(x)


def check_interrupt(ctx, g):
    """Ctrl-C ends a blocking call; a wait for an operation too, but that goes on."""
    late = ctx.group(f"late {g.epoch}", g.rank, g.size)
    if g.rank == 0:
        work = late.start.barrier()
        interrupted(lambda: g.seq == 1, g.barrier)
        assert not work.done()
        interrupted(lambda: True, work.wait)
        meet(ctx, g, "interrupted twice")
        work.wait()
    else:
        meet(ctx, g, "interrupted twice")
        late.barrier()
    raises(commd.Aborted, g.barrier)


def check_interrupt_recv(ctx, g):
    """A receive that is interrupted gives its buffer back."""
    if g.rank == 0:
        for limit in (None, 100.0):
            buffer = bytearray(1)
            interrupted(lambda: True, lambda: g.recv(buffer, 1, timeout=limit))
            if limit is None:
                buffer.append(0)
    meet(ctx, g, "interrupted")


def check_interrupt_late(ctx, g):
    """A handler raises, but what is waited for has come meanwhile."""
    other = ctx.group(f"other {g.epoch}", g.rank, g.size)

    def press(signum, frame):
        other.barrier()
        until_done(work)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    for call in (lambda: work.wait(), lambda: work.wait_stream(0)):
        if g.rank:
            other.barrier()
            g.send(np.ones(1), 0)
            continue
        work = g.start.recv(np.zeros(1), 1)
        interrupted(lambda: time.sleep(0.05) is None, call)  # when it waits
        assert work.wait() == (1, 0, 8)
    signal.signal(signal.SIGINT, before)


def until_done(work):
    while not work.done():
        pass


def interrupted(ready, function):
    """function() must end by the SIGINT that comes once ready()."""

    def press_ctrl_c():
        while not ready():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press_ctrl_c)
    try:
        thread.start()
        function()
    except KeyboardInterrupt:
        return
    finally:
        thread.join()
    raise AssertionError(f"{function} was not interrupted")


def check_left_behind(ctx, g):
    """Nothing is closed: the interpreter's exit does it, quietly."""
    g.all_reduce(np.ones(3))
    x = np.ones(3)
    g.start.all_reduce(x)


def check_gpu(ctx, g):
    """Arrays on a GPU by __cuda_array_interface__ and __dlpack__, on streams."""
    import gpu_arrays as gpu

    rank, size = g.rank, g.size
    for dtype in ("float32", "int64", "uint8", "bool", "float16"):
        for count in (0, 1, 1000, 300_000):
            parts = [data(r, count, dtype, count) for r in range(size)]
            x = gpu.on_gpu(parts[rank])
            assert g.all_reduce(x, "max") is x
            same(x.get(), np.stack(parts).max(0), f"all_reduce of {dtype}")
    stream, other = gpu.new_stream(), gpu.new_stream()
    parts = [data(r, (size, 50), "float64") for r in range(size)]
    x, y = gpu.on_gpu(parts[rank], stream), gpu.Array((50,), "float64", stream)
    g.reduce_scatter(x, out=y)  # on the stream that both name
    same(y.get(stream), np.sum(parts, 0)[rank], "reduce_scatter")
    x, y = gpu.on_gpu(parts[rank], other), gpu.Array((size, 50), "float64")
    gpu.synchronize(other)
    work = g.on(stream).start.all_to_all(gpu.Dl(x), out=gpu.Dl(y))
    work.wait_stream(other)
    same(y.get(other), np.stack([p[rank] for p in parts]), "all_to_all")
    work.wait()
    asked = gpu.Dl(gpu.on_gpu(parts[rank], stream))
    g.on(stream).broadcast(asked, root=size - 1)
    assert asked.asked == [stream], asked.asked
    same(asked.array.get(stream), parts[-1], "broadcast")
    blocks = [gpu.Array((50,), "float64") for _ in range(size)]
    g.on(stream).all_gather(gpu.on_gpu(parts[rank][0], stream), out=blocks)
    for r in range(size):
        same(blocks[r].get(stream), parts[r][0], "all_gather into a list")
    g.on(stream).barrier()
    gpu.synchronize(stream)
    if rank == 0:
        g.send(gpu.on_gpu(parts[0]), 1, tag=3)
    if rank == 1:
        got = gpu.Array((size, 50), "float64")
        assert g.recv(got, 0, 3) == (0, 3, got.size)
        same(got.get(), parts[0], "received")
    check_gpu_refusals(g, gpu, stream)
    g.barrier()  # what is under way when the group is left is lost


def check_gpu_refusals(g, gpu, stream):
    x = gpu.on_gpu(np.ones(4 * g.size, "float32"))
    for call, words in (
        (lambda: g.all_reduce(x, out=np.ones(4 * g.size, "float32")), "host memory"),
        (lambda: g.all_gather(x), "pass out="),
        (lambda: g.on("a").all_reduce(x), "no CUDA stream"),
        (lambda: g.all_reduce(gpu.Dl(x, code=5)), "no operator is defined"),
        (lambda: g.all_reduce(x, out=gpu.Array(4 * g.size, "float64")), "different types"),
        (
            lambda: g.all_reduce(gpu.Array(3, "u1", stream), out=gpu.Array(3, "u1", stream + 8)),
            "different streams",
        ),
    ):
        error = raises(commd.InvalidArgument, call)
        assert words in str(error), error


def check_gpu_interrupted(ctx, g):
    """A group's first operation on GPUs waits for the other ranks, also one that is started.
    Meanwhile other threads run, and Ctrl-C is raised once; then the buffers are free again."""
    import gpu_arrays as gpu

    def start(late, *arrays):
        late.start.all_reduce(arrays[0]).wait()

    def batch(late, *arrays):
        operations = late.batch()
        for a in arrays:
            operations.all_reduce(a)
        operations.start().wait()

    for call in (lambda late, a, b: late.all_reduce(a), start, batch):
        late = ctx.group(f"late {g.epoch}", g.rank, g.size)
        arrays = [gpu.on_gpu(np.ones(10)) for _ in range(2)]
        if g.rank == 0:
            interrupted(lambda: late.seq == 1, lambda: call(late, *arrays))
            time.sleep(0.01)  # a second one would be raised here
        meet(ctx, g, "interrupted")
        words = str(raises(commd.Error, call, late, *arrays))
        assert "was interrupted" in words and (g.rank == 0 or "rank 0 gave up" in words), words
        late.close()
        dropped = [weakref.ref(a) for a in arrays]
        arrays.clear()
        gc.collect()
        assert [a() for a in dropped] == [None, None]
    x = gpu.on_gpu(np.ones(10))
    g.all_reduce(x)
    same(x.get(), np.full(10, float(g.size)))
    g.barrier()


def check_gpu_unseen(ctx, g):
    """While a start waits for the other ranks, no thread finds its Work."""
    import gpu_arrays as gpu

    def batch(late, x):
        operations = late.batch()
        operations.all_reduce(x)
        return operations.start()

    for start in (lambda late, x: late.start.all_reduce(x), batch):
        late, x, seen = ctx.group(f"late {g.epoch}", g.rank, g.size), gpu.on_gpu(np.ones(10)), []

        def look(late=late, seen=seen):
            while late.seq == 0:
                pass
            seen.extend(w.done() for w in gc.get_objects() if type(w) is commd.Work)
            g.barrier()

        if g.rank == 0:
            thread = threading.Thread(target=look)
            thread.start()
        else:
            g.barrier()
        work = start(late, x)
        if g.rank == 0:
            thread.join()
        work.wait()
        del work
        same(x.get(), np.full(10, float(g.size)))
        assert not seen, seen
        meet(ctx, late, "after a start that was looked for")


def check_gpu_dropped(ctx, g):
    """A group is left once its messages from a GPU are out. What is dropped meanwhile is held."""
    import gpu_arrays as gpu

    late, x = ctx.group(f"late {g.epoch}", g.rank, g.size), gpu.on_gpu(np.ones(1 << 20))
    late.all_reduce(x)
    if g.rank == 0:
        held = bytearray(8)
        work = late.start.recv(held, 1, 7)
        late.send(x, 1, 3)
        thread = threading.Thread(target=late.close, daemon=True)
        thread.start()
        until_left(late)
        del work
        raises(BufferError, held.append, 0)
    meet(ctx, g, "dropped while the group is left")
    if g.rank == 0:
        thread.join()
        held.append(0)
    if g.rank == 1:
        late.recv(x, 0, 3)
        gpu.synchronize(0)


def until_left(g):
    """Or about to be: it has no number any more."""
    while True:
        try:
            g.seq  # noqa: B018
        except commd.InvalidArgument:
            return


def check_dlpack(ctx, g):
    """Host memory by __dlpack__: no copy."""
    import gpu_arrays as gpu

    parts = [data(r, 1000, "float32") for r in range(g.size)]
    x = parts[g.rank].copy()
    g.all_reduce(gpu.Dl(x, (1, 0)))
    same(x, np.sum(parts, 0, dtype="float32"), "all_reduce")
    bits = [data(r, 1000, "bf16") for r in range(g.size)]
    x = bits[g.rank].copy()
    g.all_reduce(gpu.Dl(x, (1, 0), code=4), "max")  # DLPack knows bfloat16
    same(x, np.stack(bits).max(0), "all_reduce of bfloat16")
    error = raises(commd.InvalidArgument, g.all_reduce, gpu.Dl(x, (4, 0)))
    assert "type 4" in str(error), error


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulthandler.enable()  # test_numpy.py ends what hangs by SIGABRT
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    if "COMMD_LIBCUDA" in os.environ:
        import gpu_arrays

        gpu_arrays.begin()
    ctx = commd.connect()
    assert ctx.node == os.environ["COMMD_TEST_NODE"] and not ctx.closed
    for name in sys.argv[1:]:
        try:
            g = ctx.group(name, rank, size)
            assert (g.rank, g.size) == (rank, size)
            assert g.nodes == int(os.environ["COMMD_TEST_NODES"])
            globals()[f"check_{name}"](ctx, g)
        except BaseException:
            print(f"rank {rank}: check_{name} failed", file=sys.stderr)
            raise
        if name != "left_behind":
            g.close()
    if "left_behind" not in sys.argv:
        ctx.close()
        ctx.close()
        raises(commd.InvalidArgument, ctx.group, "closed", 0, 1)


if __name__ == "__main__":
    main()
