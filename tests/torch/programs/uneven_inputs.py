"""Ranks with more and fewer batches: Join shadows the collectives of those that are done."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, flat, raises, same, same_everywhere


def batches(rank):
    return range(3 + 2 * rank)


def train(ddp, optimizer):
    rank, size = dist.get_rank(), dist.get_world_size()
    done = 0
    for step in batches(rank):
        x, y = models.batch(step)
        optimizer.zero_grad()
        models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
        optimizer.step()
        done += 1
    return done


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    ddp = DDP(model)
    with ddp.join():
        same("batches", train(ddp, models.sgd(ddp)), len(batches(rank)))
    same_everywhere("parameters after ddp.join()", flat(model))

    model = models.net()
    ddp = DDP(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    with Join([ddp, optimizer]):
        same("batches", train(ddp, optimizer), len(batches(rank)))
    same_everywhere("parameters after Join", flat(model))

    def strict():
        with ddp.join(throw_on_early_termination=True):
            train(ddp, models.sgd(ddp))

    raises("the first that is done", RuntimeError, strict, "exhausted")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same("all_reduce after Join", tensor.item(), float(size))
    dist.destroy_process_group()


main()
