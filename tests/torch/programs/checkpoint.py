"""Rank 0 saves, all wait, all load; training that was interrupted ends like one that was not."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, FOLDER, check, close, flat

PATH = os.path.join(FOLDER, "model.pt")


def train(ddp, optimizer, steps):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in steps:
        x, y = models.batch(step)
        optimizer.zero_grad()
        models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
        optimizer.step()


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    through = models.net()
    ddp = DDP(through)
    optimizer = models.sgd(ddp)
    train(ddp, optimizer, range(5))
    if rank == 0:
        torch.save({"model": ddp.state_dict(), "optimizer": optimizer.state_dict()}, PATH)
    dist.barrier()  # nobody reads before it is written
    check("the file is there", os.path.exists(PATH))
    train(ddp, optimizer, range(5, 10))

    ddp = DDP(models.net(seed=99 + rank))
    optimizer = models.sgd(ddp)
    saved = torch.load(PATH, weights_only=True)
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    dist.barrier()
    if rank == 0:
        os.remove(PATH)
    train(ddp, optimizer, range(5, 10))
    # not to the bit: DDP orders its buckets anew after its first step
    close("parameters", flat(ddp.module), flat(through), rtol=1e-12, atol=1e-14)
    dist.destroy_process_group()


main()
