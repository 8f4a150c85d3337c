"""All operations on tensors of a GPU, in random order on several streams: what comes out is what
the same operation makes of CPU tensors.

Inputs are computed on the stream of the call and overwritten behind it; works overlap, and are
waited for on other streams than they were started on. A wait that is missing, or memory that is
given away too early, shows as a wrong result, the more so as the driver delays every operation at
random. Values are small whole numbers: sums are exact.
"""

import random
import time

import torch
import torch.distributed as dist

import commd.torch
from checks import BACKEND, DEVICE, STREAMS, check, raises, same, used_once

ROUNDS, OVERLAP = 90, 5
TYPES = [torch.float32, torch.int64, torch.bfloat16, torch.float64, torch.uint8, torch.bool]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN]


class Case:
    """@inputs are read, @outputs written; call(inputs, outputs, **how) is the operation."""

    def __init__(self, name, inputs, outputs, call):
        self.name, self.inputs, self.outputs, self.call = name, inputs, outputs, call


class Maker:
    """Draws cases: the same on all ranks, but for the values."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.random = random.Random(7)
        self.values = torch.Generator().manual_seed(100 + rank)
        self.kinds = [getattr(self, name) for name in dir(self) if name.startswith("make_")]

    def draw(self):
        self.dtype = self.random.choice(TYPES)
        self.count = self.random.choice([0, 1, 7, 300, 5000, 70_000])
        self.op = self.random.choice(OPS) if self.dtype != torch.bool else dist.ReduceOp.MAX
        return self.random.choice(self.kinds)()

    def tensor(self, count=None):
        count = self.count if count is None else count
        values = torch.randint(0, 4, (count,), generator=self.values, device="cpu")
        return values.to(self.dtype)

    def empty(self, count=None):
        return torch.zeros(self.count if count is None else count, dtype=self.dtype, device="cpu")

    def make_all_reduce(self):
        op = self.op
        return Case("all_reduce", [], [self.tensor()],
                    lambda i, o, **how: dist.all_reduce(o[0], op, **how))  # fmt: skip

    def make_strided(self):
        op, both = self.op, self.tensor(2 * self.count).view(-1, 2)
        return Case("all_reduce of a column", [], [both],
                    lambda i, o, **how: dist.all_reduce(o[0][:, 1], op, **how))  # fmt: skip

    def make_broadcast(self):
        root = self.random.randrange(self.size)
        return Case("broadcast", [], [self.tensor()],
                    lambda i, o, **how: dist.broadcast(o[0], root, **how))  # fmt: skip

    def make_reduce(self):
        root, op = self.random.randrange(self.size), self.op
        mine = root == self.rank  # elsewhere the tensor is not defined afterwards
        return Case("reduce", [] if mine else [self.tensor()], [self.tensor()] if mine else [],
                    lambda i, o, **how: dist.reduce((i + o)[0], root, op, **how))  # fmt: skip

    def make_all_gather(self):
        return Case("all_gather", [self.tensor()], [self.empty() for _ in range(self.size)],
                    lambda i, o, **how: dist.all_gather(o, i[0], **how))  # fmt: skip

    def make_all_gather_single(self):
        return Case("all_gather_into_tensor", [self.tensor()], [self.empty(self.size * self.count)],
                    lambda i, o, **how: dist.all_gather_into_tensor(o[0], i[0], **how))  # fmt: skip

    def make_reduce_scatter(self):
        op = self.op
        return Case("reduce_scatter", [self.tensor() for _ in range(self.size)], [self.empty()],
                    lambda i, o, **how: dist.reduce_scatter(o[0], i, op, **how))  # fmt: skip

    def make_reduce_scatter_single(self):
        op = self.op
        return Case("reduce_scatter_tensor", [self.tensor(self.size * self.count)], [self.empty()],
                    lambda i, o, **how: dist.reduce_scatter_tensor(o[0], i[0], op, **how),
                    )  # fmt: skip

    def make_gather(self):
        root = self.random.randrange(self.size)
        outputs = [self.empty() for _ in range(self.size)] if root == self.rank else []
        return Case("gather", [self.tensor()], outputs,
                    lambda i, o, **how: dist.gather(i[0], o or None, root, **how))  # fmt: skip

    def make_scatter(self):
        root = self.random.randrange(self.size)
        inputs = [self.tensor() for _ in range(self.size)] if root == self.rank else []
        return Case("scatter", inputs, [self.empty()],
                    lambda i, o, **how: dist.scatter(o[0], i or None, root, **how))  # fmt: skip

    def make_all_to_all(self):
        sizes = [[self.random.randrange(3) * self.count for _ in range(self.size)]
                 for _ in range(self.size)]  # fmt: skip
        return Case("all_to_all", [self.tensor(n) for n in sizes[self.rank]],
                    [self.empty(row[self.rank]) for row in sizes],
                    lambda i, o, **how: dist.all_to_all(o, i, **how))  # fmt: skip

    def make_all_to_all_single(self):
        sizes = [[self.random.randrange(3) for _ in range(self.size)] for _ in range(self.size)]
        sends, receives = sizes[self.rank], [row[self.rank] for row in sizes]
        return Case("all_to_all_single", [self.tensor(sum(sends))], [self.empty(sum(receives))],
                    lambda i, o, **how: dist.all_to_all_single(o[0], i[0], receives, sends, **how),
                    )  # fmt: skip

    def make_all_to_all_even(self):
        return Case("all_to_all_single, even", [self.tensor(self.size * self.count)],
                    [self.empty(self.size * self.count)],
                    lambda i, o, **how: dist.all_to_all_single(o[0], i[0], **how))  # fmt: skip

    def make_ring(self):
        def call(i, o, group=None, async_op=False):
            right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, i[0], right, group),
                dist.P2POp(dist.irecv, o[0], left, group),
            ])  # fmt: skip
            if async_op:
                return works[0]
            works[0].wait()
            return None

        return Case("send and receive", [self.tensor()], [self.empty()], call)

    def make_coalesced(self):
        op = self.op

        def call(i, o, group=None, async_op=False):
            with dist._coalescing_manager(group, async_ops=async_op) as works:
                for tensor in o:
                    dist.all_reduce(tensor, op, group=group)
            return works if async_op else None

        return Case("coalesced all_reduce", [], [self.tensor(), self.tensor()], call)


class Started:
    """A case on the GPU; what it shall be is known."""

    def __init__(self, case, stream, group, how):
        self.case = case
        wanted = [tensor.clone() for tensor in case.outputs]
        case.call([t.clone() for t in case.inputs], wanted, group=group)
        self.wanted = wanted
        self.stream = stream
        with stream:
            raw = [t.to(DEVICE) for t in case.inputs + case.outputs]
            ready = [t.clone() for t in raw]
            for tensor in raw:
                tensor.zero_()
            raw = tensor = None
            inputs, self.outputs = ready[: len(case.inputs)], ready[len(case.inputs) :]
            self.work = case.call(inputs, self.outputs, group=group, async_op=how != "sync")
            del inputs, ready  # their memory, given back too early, is the next to be used:
            self.other = [torch.ones(t.shape, dtype=t.dtype) for t in case.inputs]
        self.future = self.work.get_future() if how == "future" else None

    def finish(self, stream):
        """@stream waits and takes copies."""
        if self.work is None:
            stream.wait_stream(self.stream)
        with stream:
            if self.future:
                self.future.wait()
            elif self.work:
                self.work.wait()
            self.results = [t.clone() for t in self.outputs]
            for tensor in self.outputs:
                tensor.record_stream(stream)
        self.waited, self.outputs, self.work, self.future = stream, None, None, None

    def check(self):
        with self.waited:
            results = [t.cpu() for t in self.results]
        for got, wanted in zip(results, self.wanted):
            same(self.case.name, got, wanted)


def at_random(group, rank, size):
    maker = Maker(rank, size)
    streams = [torch.accelerator.current_stream()] + [
        torch.Stream(DEVICE) for _ in range(STREAMS - 1)
    ]
    here, open_, over = random.Random(rank), [], []
    for _ in range(ROUNDS):
        case = maker.draw()
        how = here.choice(["sync", "async", "future"])
        if case.name in ("send and receive", "coalesced all_reduce") and how == "future":
            how = "async"
        open_.append(Started(case, here.choice(streams), group, how))
        while len(open_) > here.randrange(OVERLAP):
            one = open_.pop(here.randrange(len(open_)))
            one.finish(here.choice(streams))
            over.append(one)
        while len(over) > OVERLAP:
            over.pop(0).check()
    for one in open_:
        one.finish(here.choice(streams))
    for one in over + open_:
        one.check()


def without_waiting(rank, size):
    """The host is not held up by ranks that have not come; a barrier does hold it."""
    tensor = torch.full((1000,), float(rank))
    used_once(tensor.sum)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        check("is_completed before the others came", not work.is_completed())
        work.wait()
        total = tensor.sum()  # enqueued
        dist.send(torch.ones(1, device="cpu"), 1)  # only now, see below
    else:
        if rank == 1:
            dist.recv(torch.ones(1, device="cpu"), 0)
        dist.all_reduce(tensor)
        total = tensor.sum()
    same("sum", total.item(), 1000.0 * sum(range(size)))
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    check("is_completed after a barrier", work.is_completed())
    check("success", work.is_success())


def anyone(rank, size):
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.zeros(5000)
            source = dist.recv(tensor)
            same("what came", tensor, torch.full((5000,), float(source)))
            seen.add(source)
        same("who sent", seen, set(range(1, size)))
    else:
        dist.send(torch.full((5000,), float(rank)), 0)


def as_operator(group, rank, size):
    tensor = torch.full((300,), float(rank)) * 1
    torch.ops.commd.all_reduce_(tensor, "sum", group.group_name)
    same("torch.ops.commd", tensor, torch.full((300,), float(sum(range(size)))))


def callbacks(rank, size):
    """A callback runs at once, on a stream that waits."""
    tensor = torch.full((50_000,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    then = future.then(lambda f: f.value()[0] * 2)
    same("then", then.wait(), torch.full((50_000,), 2.0 * sum(range(size))))


def refusals(rank):
    mixed = [torch.ones(3), torch.ones(3, device="cpu")]
    raises("two devices", RuntimeError,
           lambda: dist.all_to_all_single(mixed[0], mixed[1]), "device")  # fmt: skip
    raises("a sparse tensor", RuntimeError, lambda: dist.all_reduce(torch.eye(3).to_sparse()),
           "all_reduce")  # fmt: skip


def backends(rank, size):
    """Both kinds of tensors in one group, and in groups that name a backend for each."""
    for group in (dist.group.WORLD, dist.new_group(backend=f"cpu:commd,{DEVICE}:commd"),
                  dist.new_group(backend=f"cpu:gloo,{DEVICE}:commd")):  # fmt: skip
        for device in ("cpu", DEVICE, DEVICE, "cpu"):
            tensor = torch.full((100,), float(rank), device=device)
            dist.all_reduce(tensor, group=group)
            same(f"on {device}", tensor, torch.full((100,), float(sum(range(size))), device=device))
        dist.barrier(group=group)


def last_record(only_active):
    entry = commd.torch.flight_recorder(only_active)["entries"][-1]
    return [entry[key] for key in ("profiling_name", "input_sizes", "bytes", "state", "retired")]


def recorded(rank, size):
    """A dump names the operation that rank 1 has not come to."""
    store = dist.distributed_c10d._get_default_store()
    while rank == 1 and store.add("recorded", 0) < size - 1:
        time.sleep(0.01)
    tensor = torch.ones(3, 5)
    work = dist.all_reduce(tensor, async_op=True)
    if rank != 1:
        want = ["gloo:all_reduce", [[3, 5]], 60]
        same("what is pending", last_record(True), [*want, "scheduled", False])
        device = commd.torch.flight_recorder(True)["entries"][-1]["device"]
        check("its device", device.startswith(DEVICE.split(":")[0]), device)
        store.add("recorded", 1)
        work.wait()
        while not work.is_completed():
            time.sleep(0.001)
        end = time.monotonic() + 10
        while last_record(False)[3] != "completed" and time.monotonic() < end:
            time.sleep(0.001)
        same("what has ended", last_record(False), [*want, "completed", True])
    dist.barrier()


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    at_random(None, rank, size)
    members = [r for r in range(size) if r != 1]
    part = dist.new_group(members)
    if rank in members:
        tensor = torch.ones(1000)
        dist.all_reduce(tensor, group=part)
        same("in a subgroup", tensor[0].item(), float(size - 1))
    without_waiting(rank, size)
    anyone(rank, size)
    as_operator(dist.group.WORLD, rank, size)
    callbacks(rank, size)
    backends(rank, size)
    if DEVICE == "fakegpu":
        check("memory was reused", torch.fakegpu.reused() > 100)
    recorded(rank, size)
    dist.barrier()
    dist.destroy_process_group()


main()
