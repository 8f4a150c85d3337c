#!/usr/bin/env python3
"""Checks backend="commd" op by op; started by torchrun on any number of ranks and nodes.

    torchrun --nproc-per-node 2 tests/integration/torch_ops.py [--backend commd|gloo] [--quick]

Every rank knows the data of every rank, so it computes what must come out. Prints
"torch_ops: N checks passed" on rank 0; the first failure names its check and ends the program
with 1. With gloo it runs what gloo can do: that validates the checks themselves.
"""

import argparse
import contextlib
import itertools
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel as DDP

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
# Only moved: the library may know them as bytes only.
MOVED = [torch.complex64, torch.uint16, torch.uint32, torch.float8_e4m3fn]
SIZES = [0, 1, 7, 1000, 300001]
SUM, AVG, PRODUCT, MIN, MAX = (
    getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
)
NAMES = {SUM: "SUM", AVG: "AVG", PRODUCT: "PRODUCT", MIN: "MIN", MAX: "MAX"}

passed = 0
options = None


def commd():
    return options.backend == "commd"


def fail(name, detail):
    print(f"torch_ops: rank {dist.get_rank()}: FAILED {name}: {detail}", file=sys.stderr)
    sys.stderr.flush()
    sys.exit(1)


def check(name, condition, detail=""):
    global passed
    if not condition:
        fail(name, detail or "condition is false")
    passed += 1


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool(
        (a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)).all()
    )


def check_equal(name, got, want, exact=True):
    if exact:
        ok = got.dtype == want.dtype and torch.equal(got, want)
    else:
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6}
        ok = torch.allclose(
            got.double(), want.double(), rtol=tolerance.get(got.dtype, 1e-14), atol=0
        )
    check(name, ok, f"got {got.flatten()[:4].tolist()}..., want {want.flatten()[:4].tolist()}...")


def check_raises(name, kind, text, call):
    try:
        call()
    except kind as error:
        got = str(error).split("\nException raised from")[0]
        check(name, got == text, f"\n  got:  {got}\n  want: {text}")
        return
    except Exception as error:
        fail(name, f"{type(error).__name__} instead of {kind.__name__}: {error}")
    fail(name, "nothing was raised")


def data(dtype, n, rank, salt=0):
    """What @rank contributes. Small whole numbers: sums are exact in every type."""
    i = torch.arange(n, dtype=torch.int64)
    values = (i * 7 + rank * 5 + salt * 3) % 4
    if dtype == torch.bool:
        return values == 0
    if dtype.is_floating_point or dtype.is_signed:
        values = values - 1
    return values.to(dtype)


def noise(dtype, n, rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(n, generator=generator, dtype=torch.float64).to(dtype)


def reduced(op, pieces):
    """@op over the pieces, by another route than the library's."""
    dtype = pieces[0].dtype
    if dtype == torch.bool:
        stack = torch.stack(pieces)
        return stack.any(0) if op in (SUM, MAX) else stack.all(0)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    stack = torch.stack([piece.to(wide) for piece in pieces])
    if op == MIN:
        return stack.amin(0).to(dtype)
    if op == MAX:
        return stack.amax(0).to(dtype)
    if op == PRODUCT:
        return stack.prod(0).to(dtype)
    total = stack.sum(0)
    if op == AVG:
        if dtype.is_floating_point:
            total = total / len(pieces)
        else:
            total = torch.div(total, len(pieces), rounding_mode="trunc")
    return total.to(dtype)


def ops_for(dtype):
    ops = [SUM, PRODUCT, MIN, MAX] + ([AVG] if commd() else [])
    return [op for op in ops if not (op == AVG and dtype == torch.bool)]


def reduce_dtypes():
    if commd():
        return FLOATS + INTS + [torch.bool]
    return [d for d in FLOATS + INTS if d not in (torch.int16, torch.float16, torch.bfloat16)]


def move_dtypes():
    return FLOATS + INTS + [torch.bool] + MOVED if commd() else reduce_dtypes()


def finish(work):
    if work is not None:
        work.wait()
        if commd():  # gloo says no for some
            check("work is done after wait()", work.is_completed())


def check_reductions(dtype, n, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    how = f"{dtype} x {n} {'async' if async_op else 'sync'}"
    for op in ops_for(dtype):
        exact = op != AVG or not dtype.is_floating_point
        pieces = [data(dtype, n, r) for r in range(size)]
        want = reduced(op, pieces)
        t = pieces[rank].clone()
        finish(dist.all_reduce(t, op, async_op=async_op))
        check_equal(f"all_reduce {NAMES[op]} {how}", t, want, exact)
    for op in ops_for(dtype):
        exact = op != AVG or not dtype.is_floating_point
        if n * size > 400000 and op not in (SUM, AVG):
            continue
        inputs = [[data(dtype, n, r, part) for part in range(size)] for r in range(size)]
        want = reduced(op, [inputs[r][rank] for r in range(size)])
        out = torch.empty(n, dtype=dtype)
        finish(dist.reduce_scatter(out, inputs[rank], op, async_op=async_op))
        check_equal(f"reduce_scatter {NAMES[op]} {how}", out, want, exact)
        out = torch.empty(n, dtype=dtype)
        finish(dist.reduce_scatter_tensor(out, torch.cat(inputs[rank]), op, async_op=async_op))
        check_equal(f"reduce_scatter_tensor {NAMES[op]} {how}", out, want, exact)


def fresh(dtype, n):
    return torch.zeros(n, dtype=torch.uint8).to(torch.float32).to(dtype)


def movable(dtype, n, rank):
    if dtype in MOVED:
        width = torch.empty(0, dtype=dtype).element_size()
        return data(torch.uint8, n * width, rank).view(dtype)
    return data(dtype, n, rank)


def check_moves(dtype, n, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    how = f"{dtype} x {n} {'async' if async_op else 'sync'}"
    pieces = [movable(dtype, n, r) for r in range(size)]
    for root in range(size):
        t = pieces[root].clone() if rank == root else fresh(dtype, n)
        finish(dist.broadcast(t, root, async_op=async_op))
        check(f"broadcast from {root} {how}", same_bits(t, pieces[root]))
    outs = [fresh(dtype, n) for _ in range(size)]
    finish(dist.all_gather(outs, pieces[rank].clone(), async_op=async_op))
    for r in range(size):
        check(f"all_gather piece {r} {how}", same_bits(outs[r], pieces[r]))
    whole = fresh(dtype, n * size)
    finish(dist.all_gather_into_tensor(whole, pieces[rank].clone(), async_op=async_op))
    check(f"all_gather_into_tensor {how}", same_bits(whole, torch.cat(pieces)))


def check_matrix():
    sizes = SIZES[:-1] if options.quick else SIZES
    for n, async_op in itertools.product(sizes, (False, True)):
        for dtype in reduce_dtypes():
            check_reductions(dtype, n, async_op)
        for dtype in move_dtypes():
            check_moves(dtype, n, async_op)
    dist.barrier()
    finish(dist.barrier(async_op=True))


def check_identical_bits():
    """Sums of arbitrary numbers round; they must round alike everywhere."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, n in itertools.product(FLOATS if commd() else [torch.float32], (5, 1000, 70001)):
        t = noise(dtype, n, rank)
        dist.all_reduce(t)
        everybody = torch.empty(n * size, dtype=dtype)
        dist.all_gather_into_tensor(everybody, t)
        for r in range(size):
            check(f"all_reduce {dtype} x {n}: bits of rank {r}",
                  same_bits(everybody[r * n : (r + 1) * n], t))
        exact = torch.stack([noise(dtype, n, r).double() for r in range(size)]).sum(0)
        scale = torch.stack([noise(dtype, n, r).double().abs() for r in range(size)]).sum(0)
        error = ((t.double() - exact).abs() / scale).max().item()
        check(f"all_reduce {dtype} x {n}: rounding", error <= 2 * torch.finfo(dtype).eps, error)


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
            dist.all_gather_into_tensor(whole, whole[rank * n : (rank + 1) * n])
            check_equal(f"all_gather_into_tensor in place x {n}", whole, torch.cat(pieces))
            whole = torch.zeros(n * size)
            whole[:n] = pieces[rank]
            dist.all_gather_into_tensor(whole, whole[:n])
            check_equal(f"all_gather_into_tensor, input first x {n}", whole, torch.cat(pieces))
            parts = [[data(torch.float32, n, r, p) for p in range(size)] for r in range(size)]
            want = reduced(SUM, [parts[r][rank] for r in range(size)])
            whole = torch.cat(parts[rank])
            dist.reduce_scatter_tensor(whole[rank * n : (rank + 1) * n], whole)
            check_equal(f"reduce_scatter_tensor in place x {n}",
                        whole[rank * n : (rank + 1) * n], want)
            whole = torch.cat(parts[rank])
            dist.reduce_scatter_tensor(whole[:n], whole)
            check_equal(f"reduce_scatter_tensor, output first x {n}", whole[:n], want)
            whole = torch.cat(parts[rank])
            dist.reduce_scatter(whole[:n], list(whole.chunk(size)))
            check_equal(f"reduce_scatter of chunks, output first x {n}", whole[:n], want)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar, MAX)
    check("all_reduce of a 0-dim tensor", scalar.item() == size - 1)
    c = torch.full((3,), complex(rank, 1))
    dist.all_reduce(c)
    check_equal("all_reduce of complex", c, torch.full((3,), complex(sum(range(size)), size)))


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
            dist.all_gather_into_tensor(out, data(torch.float32, n, rank))
    for n, out in zip(shapes, outs):
        check_equal(f"coalesced all_gather_into_tensor x {n}", out,
                    torch.cat([data(torch.float32, n, r) for r in range(size)]))
    with _coalescing_manager() as manager:
        outs = [torch.zeros(n) for n in shapes]
        for n, out in zip(shapes, outs):
            dist.reduce_scatter_tensor(
                out, torch.cat([data(torch.float32, n, rank, p) for p in range(size)]), AVG)
    for n, out in zip(shapes, outs):
        check_equal(f"coalesced reduce_scatter_tensor x {n}", out,
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
    got = funcol.all_gather_tensor(torch.ones(5), 0, dist.group.WORLD)
    check_equal("functional all_gather_tensor", got + 0, torch.ones(5 * size))
    if commd():
        got = funcol.reduce_scatter_tensor(torch.ones(size), "avg", 0, dist.group.WORLD)
        check_equal("functional reduce_scatter_tensor", got + 0, torch.ones(1))


def check_groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    members = [r for r in range(size) if r % 2 == rank % 2]
    kinds = (0, 1) if size > 1 else (0,)
    even_odd = [dist.new_group([r for r in range(size) if r % 2 == k]) for k in kinds]
    mine = even_odd[rank % 2]
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=mine)
    check_equal("all_reduce in a subset", t, torch.tensor([float(sum(members))]))
    root = members[-1]
    t = torch.tensor([float(rank)])
    dist.broadcast(t, root, group=mine)
    check_equal("broadcast in a subset", t, torch.tensor([float(root)]))
    outs = [torch.zeros(2) for _ in members]
    dist.all_gather(outs, torch.full((2,), float(rank)), group=mine)
    check("all_gather in a subset", [int(o[0]) for o in outs] == members)
    # Disjoint groups that the same line makes at the same time: one name, other members.
    group = dist.new_group(members, use_local_synchronization=True)
    t = torch.tensor([1.0])
    dist.all_reduce(t, group=group)
    check("disjoint groups of one line", t.item() == len(members))
    if rank != 0:
        check("not a member of a group", dist.get_rank(dist.new_group([0])) == -1)
    else:
        t = torch.tensor([5.0])
        alone = dist.new_group([0])
        dist.all_reduce(t, AVG if commd() else SUM, group=alone)
        check("group of one", t.item() == 5.0)
    # Two groups of all ranks, interleaved differently on each rank: no order between groups.
    a, b = dist.new_group(), dist.new_group()
    works, results = [], []
    for i in range(100):
        order = [(a, 1.0), (b, 2.0)] if rank % 2 == 0 else [(b, 2.0), (a, 1.0)]
        for group, value in order:
            t = torch.full((1 + i * 10,), value)
            works.append(dist.all_reduce(t, group=group, async_op=True))
            results.append((t, value * size))
    for work in works:
        work.wait()
    for i, (t, want) in enumerate(results):
        check_equal(f"two groups interleaved, number {i}", t, torch.full_like(t, want))
    for i in range(10):
        group = dist.new_group()
        t = torch.ones(3)
        dist.all_reduce(t, group=group)
        dist.destroy_process_group(group)
        check_equal(f"new_group and destroy, cycle {i}", t, torch.full((3,), float(size)))
    if commd():
        backend = a._get_backend(torch.device("cpu"))
        check("sequence number", backend._get_sequence_number_for_group() == 100)


def check_objects():
    rank, size = dist.get_rank(), dist.get_world_size()
    outs = [None] * size
    dist.all_gather_object(outs, {"rank": rank, "text": "x" * (1 + 1000 * rank)})
    check("all_gather_object", [o["rank"] for o in outs] == list(range(size)))
    lengths = [len(o["text"]) for o in outs]
    check("all_gather_object sizes", lengths == [1 + 1000 * r for r in range(size)])
    objects = ["a", 1, {"b": 2.5}] if rank == size - 1 else [None, None, None]
    dist.broadcast_object_list(objects, src=size - 1)
    check("broadcast_object_list", objects == ["a", 1, {"b": 2.5}])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x, branch=None):
        x = torch.tanh(self.first(x))
        chosen = self.branches if branch is None else [self.branches[branch]]
        for layer in chosen:
            x = torch.tanh(layer(x))
        return self.last(x)


def make_net():
    torch.manual_seed(7)
    return Net().double()


def batch(step, rows):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return x, y


def loss_of(net, x, y, branch):
    return torch.nn.functional.mse_loss(net(x, branch) if branch is not None else net(x), y)


def check_ddp(name, branch_of=lambda step: None, accumulate=1, **kwargs):
    """DDP on shards of a batch does what one process does on the batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = 4
    single, net = make_net(), make_net()
    if rank != 0:  # DDP has to take rank 0's parameters
        with torch.no_grad():
            for p in net.parameters():
                p.add_(1.0)
    ddp = DDP(net, bucket_cap_mb=0.0005, **kwargs)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (single, ddp)]
    for step in range(6):
        x, y = batch(step, rows * size)
        shard = slice(rank * rows, (rank + 1) * rows)
        branch = branch_of(step)
        (loss_of(single, x, y, branch) / accumulate).backward()
        last = (step + 1) % accumulate == 0
        with contextlib.nullcontext() if last else ddp.no_sync():
            (loss_of(ddp, x[shard], y[shard], branch) / accumulate).backward()
        if last:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for (key, want), got in zip(single.named_parameters(), net.parameters()):
        check(f"DDP {name}: {key}", torch.allclose(got, want, rtol=1e-10, atol=1e-12),
              f"differs by {(got - want).abs().max().item()}")


def check_training():
    check_ddp("plain")
    check_ddp("find_unused_parameters", lambda step: step % 2, find_unused_parameters=True)
    check_ddp("no_sync", accumulate=3)
    check_ddp("gradient_as_bucket_view", gradient_as_bucket_view=True)
    check_ddp("static_graph", static_graph=True)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.tensor([float(i)])


def check_forked_workers():
    """DataLoader workers are forked from a rank that is connected: nothing may be disturbed."""
    size = dist.get_world_size()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2,
                                         multiprocessing_context="fork")
    for epoch in range(2):
        for values in loader:
            t = values.clone()
            dist.all_reduce(t)
            check_equal(f"all_reduce beside forked workers, epoch {epoch}", t, values * size)
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(1))
            os._exit(1)
        except dist.DistBackendError:
            os._exit(0)
    check("a forked rank is refused", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    t = torch.ones(3)
    dist.all_reduce(t)
    check_equal("all_reduce after a fork", t, torch.full((3,), float(size)))


def check_refusals():
    size = dist.get_world_size()
    supported = ("supported are: all_reduce, broadcast, all_gather, all_gather_into_tensor, "
                 "reduce_scatter, reduce_scatter_tensor, barrier")
    one = torch.ones(4)
    many = [torch.ones(4) for _ in range(size)]
    rank = dist.get_rank()
    for name, call in (
        ("reduce", lambda: dist.reduce(one, 0)),
        ("gather", lambda: dist.gather(one, many if rank == 0 else None, 0)),
        ("scatter", lambda: dist.scatter(one, many if rank == 0 else None, 0)),
        ("all_to_all", lambda: dist.all_to_all(many, many)),
        ("all_to_all_single", lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size))),
        ("send", lambda: dist.send(one, (rank + 1) % size)),
        ("recv", lambda: dist.recv(one, (rank + 1) % size)),
        ("recv from any source", lambda: dist.recv(one)),
    ):
        if size == 1 and name in ("send", "recv"):
            continue  # torch itself refuses to send to oneself
        check_raises(f"refusal of {name}", NotImplementedError,
                     f"commd: {name} is not implemented yet; {supported}", call)
    grid = torch.zeros(3, 4).t()
    check_raises(
        "refusal of strides", RuntimeError,
        "commd: all_reduce needs a contiguous tensor, got strides [1, 4] for shape [4, 3]; "
        "call .contiguous()", lambda: dist.all_reduce(grid))
    check_raises(
        "refusal of strides in a list", RuntimeError,
        "commd: all_gather needs a contiguous tensor, got strides [1, 4] for shape [4, 3]; "
        "call .contiguous()", lambda: dist.all_gather([grid] * size, torch.zeros(4, 3)))
    check_raises(
        "refusal of sparse", NotImplementedError,
        "commd: all_reduce takes dense tensors, got one of layout Sparse; call .to_dense()",
        lambda: dist.all_reduce(torch.eye(2).to_sparse()))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    check_raises(
        "refusal of a device", NotImplementedError,
        "commd: all_reduce takes CPU tensors, got one on meta",
        lambda: backend.allreduce([torch.empty(3, device="meta")]))
    for name in ("BAND", "BOR", "BXOR"):
        check_raises(
            f"refusal of {name}", NotImplementedError,
            f"commd: all_reduce with {name} is not implemented yet; supported are: SUM AVG "
            "PRODUCT MIN MAX",
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), getattr(dist.ReduceOp, name)))
    check_raises(
        "refusal of AVG of bool", NotImplementedError,
        "commd: all_reduce: AVG of bool is not defined",
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), AVG))
    check_raises(
        "refusal of a dtype", NotImplementedError,
        "commd: all_reduce of Float8_e4m3fn is not implemented; supported are: float16 bfloat16 "
        "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool",
        lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)))
    check_raises(
        "refusal of uneven pieces", RuntimeError,
        "commd: all_gather: an output has shape [3], but [4] is needed; pieces of different "
        "sizes are not implemented yet",
        lambda: dist.all_gather([torch.zeros(3)] * size, torch.zeros(4)))
    check_raises(
        "refusal of a wrong output", RuntimeError,
        f"commd: all_gather_into_tensor: the output has 3 elements, but {size} ranks x 4 = "
        f"{4 * size} are needed",
        lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(4)))
    t = torch.ones(2)
    dist.all_reduce(t)
    check("the group is fine after refusals", t[0].item() == size)


def check_mismatch():
    """Ranks that disagree get an error everywhere, and the group stays usable."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        return
    for async_op in (False, True):
        try:
            finish(dist.all_reduce(torch.ones(5 if rank == 0 else 6), async_op=async_op))
            fail("mismatch", "nothing was raised")
        except dist.DistBackendError as error:
            check("mismatch is a commd error", str(error).startswith("commd: "), str(error))
        t = torch.ones(2)
        dist.all_reduce(t)
        check("the group is fine after a mismatch", t[0].item() == size)


def check_late_rank():
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        return
    group = dist.new_group()
    if rank != 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        try:
            work.wait(timedelta(milliseconds=50))
            fail("wait() with a limit", "nothing was raised")
        except dist.DistBackendError as error:
            told = "wait() timeout after 50 ms" in str(error)
            check("wait() with a limit says so", told, str(error))
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=group)
    else:
        work.wait()
    check("the operation went on", True)


def check_end():
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    backend = group._get_backend(torch.device("cpu"))
    total = torch.tensor([passed])
    dist.all_reduce(total, MIN)
    rank = dist.get_rank()
    dist.destroy_process_group()
    check("destroyed", not dist.is_initialized())
    if commd():
        try:
            backend.allreduce([torch.ones(1)])
            raise SystemExit("torch_ops: FAILED use after destroy: nothing was raised")
        except dist.DistBackendError as error:
            check("use after destroy", "is closed" in str(error), str(error))
        # The same names in the same store, in the same processes.
        for _ in range(3):
            dist.init_process_group("commd")
            t = torch.ones(3)
            dist.all_reduce(t)
            check("all_reduce after a second init", t[0].item() == dist.get_world_size())
            dist.destroy_process_group()
    if rank == 0:
        print(f"torch_ops: {passed} checks passed", flush=True)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="commd")
    parser.add_argument("--quick", action="store_true", help="without the largest size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=120))
    check_matrix()
    check_identical_bits()
    check_views()
    check_coalesced()
    check_works()
    check_groups()
    check_objects()
    check_training()
    if commd():
        check_forked_workers()
        check_refusals()
        check_mismatch()
        check_late_rank()
    check_end()


if __name__ == "__main__":
    main()
