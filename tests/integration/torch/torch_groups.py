"""Checks of backend="commd" (torch_ops.py): groups, objects, and training in parallel."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from torch_checks import AVG, SUM, check, check_equal, commd


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
    if commd():  # torch 2.15 attaches one to backends without
        hooks = getattr(dist.distributed_c10d._world, "pg_flight_recorder_hooks", {})
        check("no second flight recorder", not hooks)
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
    outs = [None] * size if rank == size - 1 else None
    dist.gather_object({"rank": rank, "text": "y" * (100 * rank)}, outs, size - 1)
    if rank == size - 1:
        check("gather_object", [o["rank"] for o in outs] == list(range(size)))
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" * r for r in range(size)] if rank == 0 else None, 0)
    check("scatter_object_list", got == [f"for {rank}" * rank])


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


def run():
    check_groups()
    check_objects()
    check_training()
