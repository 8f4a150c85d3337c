"""Checks of backend="commd" (torch_ops.py): the forms in which a call comes. Views, strides, memory
that overlaps, coalesced calls, works and their futures, functional collectives, sparse tensors, the
operator of torch.ops."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _coalescing_manager

from torch_checks import (
    AVG, MAX, SUM, check, check_equal, commd, data, finish, reduced)


def check_views():
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in (1, 7, 50000):
        pieces = [data(torch.float32, n, r) for r in range(size)]
        base = torch.full((n + 2,), -9.0)
        base[1 : n + 1] = pieces[rank]
        dist.all_reduce(base[1 : n + 1])
        check_equal(f"all_reduce of a view x {n}", base[1 : n + 1], reduced(SUM, pieces))
        check(f"neighbours of a view x {n}", base[0] == -9 and base[-1] == -9)

        # Chunks of one tensor, input in place, input elsewhere inside, and scattered tensors.
        whole = torch.zeros(n * size)
        outs = list(whole.chunk(size))
        outs[rank].copy_(pieces[rank])
        dist.all_gather(outs, outs[rank])
        check_equal(f"all_gather into chunks, in place x {n}", whole, torch.cat(pieces))
        whole = torch.zeros(n * size)
        outs = list(whole.chunk(size))
        outs[0].copy_(pieces[rank])
        dist.all_gather(outs, outs[0])
        check_equal(f"all_gather into chunks, input in chunk 0 x {n}", whole, torch.cat(pieces))
        whole = torch.zeros(n * size)
        outs = list(whole.chunk(size))[::-1]
        dist.all_gather(outs, pieces[rank])
        check_equal(f"all_gather into chunks backwards x {n}", whole, torch.cat(pieces[::-1]))

        if commd():
            whole = torch.zeros(n * size)
            whole[rank * n : (rank + 1) * n] = pieces[rank]
            dist.all_gather_single(whole, whole[rank * n : (rank + 1) * n])
            check_equal(f"all_gather_single in place x {n}", whole, torch.cat(pieces))
            whole = torch.zeros(n * size)
            whole[:n] = pieces[rank]
            dist.all_gather_single(whole, whole[:n])
            check_equal(f"all_gather_single, input first x {n}", whole, torch.cat(pieces))
            parts = [[data(torch.float32, n, r, p) for p in range(size)] for r in range(size)]
            want = reduced(SUM, [parts[r][rank] for r in range(size)])
            whole = torch.cat(parts[rank])
            dist.reduce_scatter_single(whole[rank * n : (rank + 1) * n], whole)
            check_equal(f"reduce_scatter_single in place x {n}",
                        whole[rank * n : (rank + 1) * n], want)
            whole = torch.cat(parts[rank])
            dist.reduce_scatter_single(whole[:n], whole)
            check_equal(f"reduce_scatter_single, output first x {n}", whole[:n], want)
            whole = torch.cat(parts[rank])
            dist.reduce_scatter(whole[:n], list(whole.chunk(size)))
            check_equal(f"reduce_scatter of chunks, output first x {n}", whole[:n], want)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, MAX)
    check("all_reduce of a 0-dim tensor", scalar.item() == size - 1)


def check_overlap():
    """Inputs that the outputs overwrite, in ways that are not in place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for n in (1, 7, 50000):
        parts = [[data(torch.float32, n, r, p) for p in range(size)] for r in range(size)]
        want = [parts[r][rank] for r in range(size)]
        whole = torch.cat(parts[rank])
        dist.all_to_all_single(whole, whole)
        check_equal(f"all_to_all_single in place x {n}", whole, torch.cat(want))
        whole = torch.cat(parts[rank] + [torch.zeros(n)])
        dist.all_to_all_single(whole[n:], whole[: n * size])
        check_equal(f"all_to_all_single, shifted x {n}", whole[n:], torch.cat(want))
        whole = torch.cat(parts[rank])
        dist.all_to_all(list(whole.chunk(size))[::-1], list(whole.chunk(size)))
        check_equal(f"all_to_all, backwards x {n}", whole, torch.cat(want[::-1]))
        whole = torch.zeros(n * size)
        whole[:n] = parts[rank][0]
        pieces = list(whole.chunk(size))
        dist.gather(pieces[0], pieces if rank == size - 1 else None, size - 1)
        if rank == size - 1:
            check_equal(f"gather, input in chunk 0 x {n}", whole,
                        torch.cat([parts[r][0] for r in range(size)]))
        whole = torch.cat(parts[rank])
        pieces = list(whole.chunk(size))
        dist.scatter(pieces[-1], pieces if rank == 0 else None, 0)
        check_equal(f"scatter, output in the last chunk x {n}", pieces[-1], parts[0][rank])


def strided(t):
    """The elements of @t, every second one of a larger tensor whose others must not change."""
    base = torch.full((*t.shape, 2), 77).to(t.dtype)
    base[..., 0] = t
    return base, base[..., 0]


def check_strides():
    """Elements count, not where they lie: also if ranks have other strides than their peers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    grids = [data(torch.float32, 12, r).view(3, 4) for r in range(size)]
    total = reduced(SUM, grids)
    for async_op in (False, True):
        t = grids[rank].clone()
        if rank % 2 == 0:  # the same grid in another order
            t = t.t().contiguous().t()
        finish(dist.all_reduce(t, async_op=async_op))
        check_equal("all_reduce of strides that differ between ranks", t, total)
        base, t = strided(grids[rank])
        finish(dist.all_reduce(t, async_op=async_op))
        check_equal("all_reduce of every second element", t, total)
        check("its neighbours", bool((base[..., 1] == 77).all()))
        base, t = strided(grids[rank])
        finish(dist.broadcast(t, size - 1, async_op=async_op))
        check_equal("broadcast of every second element", t, grids[size - 1])
        check("its neighbours", bool((base[..., 1] == 77).all()))
        outs = [strided(torch.zeros(3, 4))[1] for _ in range(size)]
        finish(dist.all_gather(outs, strided(grids[rank])[1], async_op=async_op))
        for r in range(size):
            check_equal("all_gather of every second element", outs[r], grids[r])
        out = strided(torch.zeros(3, 4))[1]
        finish(dist.reduce_scatter(out, [strided(g)[1] for g in grids], async_op=async_op))
        check_equal("reduce_scatter of every second element", out, grids[rank] * size)
        outs = [strided(torch.zeros(3, 4))[1] for _ in range(size)]
        finish(dist.all_to_all(outs, [strided(grids[rank])[1]] * size, async_op=async_op))
        for r in range(size):
            check_equal("all_to_all of every second element", outs[r], grids[r])
    c = torch.full((3,), complex(rank, 1)).conj()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([c]).wait()
    check_equal("all_reduce of a lazily conjugated view", c.resolve_conj(),
                torch.full((3,), complex(sum(range(size)), -size)))
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf.data)
    check("all_reduce of a parameter's data", leaf[0].item() == size)


def sparse_of(rank, rows, dense):
    """Row r holds 1 to 3 elements of the ranks; some ranks have none of their own."""
    values = torch.ones((rank, *dense)) * (rank + 1)
    indices = torch.arange(rank).unsqueeze(0) % rows
    return torch.sparse_coo_tensor(indices, values, (rows, *dense), check_invariants=True)


def check_sparse():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dense, op, async_op in (((), SUM, False), ((2, 3), SUM, True), ((5,), AVG, False)):
        t = sparse_of(rank, 4, dense)
        finish(dist.all_reduce(t, op, async_op=async_op))
        want = sum(sparse_of(r, 4, dense).to_dense() for r in range(size))
        if op == AVG:
            want = want / size
        check("all_reduce of sparse tensors is sparse", t.is_sparse)
        check_equal(f"all_reduce of sparse tensors with rows of {dense}", t.to_dense(), want)


def check_coalesced():
    rank, size = dist.get_rank(), dist.get_world_size()
    shapes = (0, 3, 1000, 17)
    want = [reduced(SUM, [data(torch.float32, n, r) for r in range(size)]) for n in shapes]
    with _coalescing_manager(async_ops=True) as manager:
        tensors = [data(torch.float32, n, rank) for n in shapes]
        for t in tensors:
            dist.all_reduce(t)
    manager.wait()
    for t, w in zip(tensors, want):
        check_equal(f"coalesced all_reduce x {t.numel()}", t, w)
    if not commd():
        return
    with _coalescing_manager() as manager:
        outs = [torch.zeros(n * size) for n in shapes]
        for n, out in zip(shapes, outs):
            dist.all_gather_single(out, data(torch.float32, n, rank))
    for n, out in zip(shapes, outs):
        check_equal(f"coalesced all_gather_single x {n}", out,
                    torch.cat([data(torch.float32, n, r) for r in range(size)]))
    with _coalescing_manager() as manager:
        outs = [torch.zeros(n) for n in shapes]
        for n, out in zip(shapes, outs):
            dist.reduce_scatter_single(
                out, torch.cat([data(torch.float32, n, rank, p) for p in range(size)]), AVG)
    for n, out in zip(shapes, outs):
        check_equal(f"coalesced reduce_scatter_single x {n}", out,
                    reduced(AVG, [data(torch.float32, n, r, rank) for r in range(size)]), False)
    outs = [[torch.zeros(n) for n in shapes] for _ in range(size)]
    future = dist.all_gather_coalesced(outs, [data(torch.float32, n, rank) for n in shapes],
                                       async_op=True)
    lists = future.wait()
    for r in range(size):
        for i, n in enumerate(shapes):
            check_equal(f"all_gather_coalesced rank {r} x {n}", outs[r][i],
                        data(torch.float32, n, r))
            check("future of all_gather_coalesced", lists[r][i].data_ptr() == outs[r][i].data_ptr())


def check_works():
    size = dist.get_world_size()
    t = torch.ones(1000)
    work = dist.all_reduce(t, async_op=True)
    check("wait() with a limit", work.wait(timedelta(seconds=60)))
    if commd() and hasattr(dist.Work, "timeout"):  # torch 2.14
        check("timeout of a work", work.timeout == timedelta(seconds=120), work.timeout)
    future = work.get_future()
    check("future of a done work", future.done() and future.value()[0].data_ptr() == t.data_ptr())
    work = dist.all_reduce(t, async_op=True)
    chained = work.get_future().then(lambda f: f.value()[0] * 2)
    check_equal("then()", chained.wait(), torch.full((1000,), 2.0 * size * size))
    work.wait()
    works = []
    tensors = [torch.full((1 + 100 * i,), float(i)) for i in range(50)]
    for t in tensors:
        works.append(dist.all_reduce(t, async_op=True))
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        check_equal(f"50 in flight, number {i}", t, torch.full_like(t, float(i * size)))
    # The program keeps neither the work nor the tensor.
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()
    got = funcol.all_reduce(torch.ones(5), "sum", dist.group.WORLD)
    check_equal("functional all_reduce", got + 0, torch.full((5,), float(size)))
    got = funcol.all_gather_single(torch.ones(5), 0, dist.group.WORLD)
    check_equal("functional all_gather_tensor", got + 0, torch.ones(5 * size))
    got = funcol.all_to_all_single(torch.arange(size * 1.0), None, None, dist.group.WORLD)
    check_equal(
        "functional all_to_all_single", got + 0, torch.full((size,), float(dist.get_rank()))
    )
    if commd():
        got = funcol.reduce_scatter_single(torch.ones(size), "avg", 0, dist.group.WORLD)
        check_equal("functional reduce_scatter_single", got + 0, torch.ones(1))


def check_outcomes():
    work = dist.all_reduce(torch.ones(3), async_op=True)
    outcome = work.get_future_result()
    work.wait()
    check("result of a work", outcome.value() == 0)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(5)]
    dist.group.WORLD._wait_for_pending_works()
    check("_wait_for_pending_works()", all(work.is_completed() for work in works))
    after = backend._get_sequence_number_for_group()
    check("sequence numbers count calls", after == before + 5, f"{before}, {after}")


def check_callbacks():
    """What hangs on a future may communicate: blocking, waiting, and with callbacks of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def again(future):
        t = future.value()[0].clone()
        inner = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] + 1)
        t = inner.wait()
        dist.all_reduce(t)
        outs = [torch.zeros_like(t) for _ in range(size)]
        dist.all_gather(outs, t, async_op=True).wait()
        return outs[rank]

    for i in range(10):  # one at a time: two threads that issue at once have no order
        t = torch.full((1 + 1000 * i,), float(i))
        future = (
            dist.all_reduce(t, async_op=True).get_future().then(again).then(lambda f: -f.value())
        )
        want = (i * size * size + 1.0) * size
        check_equal(f"callbacks that communicate, number {i}", future.wait(),
                    torch.full((1 + 1000 * i,), -want))
    device = torch.device("cpu")
    with _coalescing_manager(device=device, async_ops=True) as manager:
        t = torch.ones(3)
        part = dist.broadcast(t.mul_(rank + 1), 0, async_op=True)
        done = part.get_future().then(lambda f: dist.all_reduce(f.value()[0]))
    manager.wait()
    done.wait()
    check_equal("a callback on a part of a coalesced section", t, torch.full((3,), float(size)))


def check_batches():
    """Sections that coalesce calls of any kind, in the backend's own way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    with _coalescing_manager(device=device, async_ops=True) as manager:
        ones = [torch.ones(n) for n in (3, 1000, 100000)]
        works = [dist.broadcast(t.mul_(rank), size - 1, async_op=True) for t in ones]
        outs = [torch.zeros(2) for _ in range(size)]
        works.append(dist.all_gather(outs, torch.full((2,), float(rank)), async_op=True))
    manager.wait()
    check("works of a coalesced section", all(work.is_completed() for work in works))
    for t in ones:
        check_equal("coalesced broadcast", t, torch.full_like(t, float(size - 1)))
    check("coalesced all_gather", [int(o[0]) for o in outs] == list(range(size)))
    with _coalescing_manager(device=device):
        for t in ones:  # blocking: what has been collected goes out at once
            dist.broadcast(t.fill_(rank + 1.0), 0)
            check_equal("blocking broadcast in a coalesced section", t, torch.ones_like(t))
    with _coalescing_manager(device=device):
        pass
    backend = dist.group.WORLD._get_backend(device)
    backend._start_coalescing()
    lost = backend.allreduce([torch.ones(1)])
    backend._start_coalescing()
    try:
        lost.wait()
        check("a section that was never ended", False)
    except dist.DistBackendError as error:
        check("a section that was never ended", "never ended" in str(error), str(error))
    backend._end_coalescing().wait()


def check_operator():
    """torch.ops.commd, plain and compiled."""
    rank, size = dist.get_rank(), dist.get_world_size()
    name = dist.group.WORLD.group_name
    for text, op in (("sum", SUM), ("avg", AVG), ("max", MAX)):
        t = data(torch.float32, 1000, rank)
        torch.ops.commd.all_reduce_(t, text, name)
        check_equal(f"torch.ops.commd.all_reduce_ {text}", t,
                    reduced(op, [data(torch.float32, 1000, r) for r in range(size)]), op != AVG)
    half = torch.ones(1000, dtype=torch.bfloat16)
    version = half._version
    torch.ops.commd.all_reduce_(half, "sum", name)
    check("torch.ops.commd.all_reduce_ of bfloat16", bool((half == size).all()))
    check("it counts as a change", half._version == version + 1)
    grid = torch.ones(3, 4).t()
    torch.ops.commd.all_reduce_(grid, "sum", name)
    check("torch.ops.commd.all_reduce_ of strides", bool((grid == size).all()))

    def doubled(x):
        y = x * 2
        torch.ops.commd.all_reduce_(y, "sum", name)
        return y + 1

    for compiler in ("eager", "aot_eager"):
        got = torch.compile(doubled, backend=compiler, fullgraph=True)(torch.ones(5))
        check_equal(f"compiled with {compiler}", got, torch.full((5,), 2.0 * size + 1))
    for arguments, text in (
        ((torch.ones(1), "sum", "nobody"), "no group named \"nobody\""),
        ((torch.ones(1), "mean", name), "unknown operator \"mean\""),
        ((torch.ones(1), "band", name), "BAND of Float is not defined"),
    ):
        try:
            torch.ops.commd.all_reduce_(*arguments)
            check(f"refusal: {text}", False)
        except RuntimeError as error:
            check(f"refusal: {text}", text in str(error), str(error))


def check_registered():
    """Tensors in registered memory, and views of them; also when one rank has none."""
    from commd.torch import empty

    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, n in ((torch.float32, 300_001), (torch.bfloat16, 70_000), (torch.int64, 20_000)):
        x = empty(2, n, dtype=dtype)
        check(f"empty of {dtype}", x.shape == (2, n) and x.dtype == dtype and not x.any())
        for turn in range(3):
            pieces = [data(dtype, n, r, turn) for r in range(size)]
            y = x[1] if turn < 2 or rank else torch.empty(n, dtype=dtype)
            y.copy_(pieces[rank])
            dist.all_reduce(y)
            check_equal(f"registered {dtype} x {n}, turn {turn}", y, reduced(SUM, pieces))
            check("its neighbour", not x[0].any())
        work = dist.all_reduce(x[0].fill_(rank), op=MAX, async_op=True)
        kept = x[0]
        del x
        finish(work)
        check_equal(f"registered {dtype}, async", kept, torch.full_like(kept, size - 1))
    check(
        "one sequence, default type",
        empty((3, 4)).shape == (3, 4) and empty(1).dtype == torch.float32,
    )
    check("no elements", empty(0).numel() == 0 and empty([]).shape == ())


def run():
    check_views()
    check_coalesced()
    check_works()
    if commd():
        check_registered()
        check_overlap()
        check_strides()
        check_sparse()
        check_outcomes()
        check_callbacks()
        check_batches()
        check_operator()
