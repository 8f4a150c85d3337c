"""What DDP can be told: no_sync, unused parameters, a static graph, views, buffers, sparse ones."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, close, flat, raises, same, same_everywhere

STEPS = 6


class Branches(nn.Module):
    """Uses one of its branches at a time."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, which):
        self.count += 1
        return self.branches[which](x)


def branches():
    torch.manual_seed(2)
    return Branches().double()


def accumulate(**kwargs):
    rank, size = dist.get_rank(), dist.get_world_size()
    alone, model = models.net(), models.net()
    ddp = DDP(model, **kwargs)
    pairs = [(alone, models.sgd(alone)), (ddp, models.sgd(ddp))]
    for step in range(STEPS):
        x, y = models.batch(step)
        last = step % 3 == 2
        models.loss(alone(x), y).backward()
        mine = models.part(x, rank, size), models.part(y, rank, size)
        if last:
            models.loss(ddp(mine[0]), mine[1]).backward()
        else:
            with ddp.no_sync():
                models.loss(ddp(mine[0]), mine[1]).backward()
        for _, optimizer in pairs if last else ():
            optimizer.step()
            optimizer.zero_grad()
    close(f"no_sync {kwargs}", flat(model), flat(alone), 1e-9, 1e-11)


def unused():
    rank, size = dist.get_rank(), dist.get_world_size()
    alone, model = branches(), branches()
    ddp = DDP(model, find_unused_parameters=True)
    pairs = [(alone, models.sgd(alone)), (ddp, models.sgd(ddp))]
    for step in range(STEPS):
        x, y = models.batch(step)
        models.loss(alone(x, step % 2), y).backward()
        out = ddp(models.part(x, rank, size), step % 2)
        models.loss(out, models.part(y, rank, size)).backward()
        for _, optimizer in pairs:
            optimizer.step()
            optimizer.zero_grad()
    close("unused parameters", flat(model), flat(alone), 1e-9, 1e-11)
    same("buffer", model.count.item(), float(STEPS))


def sparse():
    """An embedding whose gradient is sparse: each rank has other rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    table = nn.Embedding(20, 3, sparse=True).double()
    before = table.weight.detach().clone()
    ddp = DDP(table)
    ddp(torch.tensor([rank, rank + 1, 19])).sum().backward()
    torch.optim.SGD(ddp.parameters(), lr=1.0).step()
    want = before.clone()
    for r in range(size):
        for row in (r, r + 1, 19):
            want[row] -= 1.0 / size
    close("sparse gradient", table.weight.detach(), want, 1e-12, 1e-14)


def other_models():
    """A rank with another model is told on all ranks, and the group goes on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    if rank == 1:
        model.extra = nn.Linear(2, 2)
    raises("another model", RuntimeError, lambda: DDP(model), "same model")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same("all_reduce after it", tensor.item(), float(size))


def main():
    dist.init_process_group(BACKEND)
    for kwargs in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0005}):
        accumulate(**kwargs)
    unused()
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    ddp = DDP(model, static_graph=True)
    models.train(ddp, models.sgd(ddp), STEPS, rank, size)
    close("static graph", flat(model), flat(models.train_alone(models.net(), STEPS)), 1e-9, 1e-11)
    same_everywhere("static graph", flat(model))
    sparse()
    other_models()
    dist.destroy_process_group()


main()
