"""DistributedDataParallel with a DistributedSampler, epoch by epoch, with DataLoader workers."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import models
from checks import BACKEND, check, close, flat, same_everywhere

ROWS, PER_RANK, EPOCHS = 96, 4, 3


def rows_of(sampler_of, epoch):
    """What the samplers of all ranks give out, step by step."""
    lists = []
    for sampler in sampler_of:
        sampler.set_epoch(epoch)
        lists.append(list(sampler))
    for first in range(0, len(lists[0]), PER_RANK):
        yield [index for part in lists for index in part[first : first + PER_RANK]]


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = models.batch(0, ROWS)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, PER_RANK, sampler=sampler, num_workers=1,
                        multiprocessing_context="fork")  # fmt: skip
    model = models.net(seed=rank)  # rank 0's parameters must win
    ddp = DDP(model)
    optimizer = models.sgd(ddp)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros((), dtype=torch.float64)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = models.loss(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.reduce(total, 0)
        losses.append(total.item() / size)
    same_everywhere("parameters", flat(model))

    alone, expected = models.net(seed=0), []
    optimizer = models.sgd(alone)
    samplers = [DistributedSampler(data, size, r, shuffle=True, seed=5) for r in range(size)]
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in rows_of(samplers, epoch):
            optimizer.zero_grad()
            loss = models.loss(alone(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        expected.append(total)
    close("parameters after training", flat(model), flat(alone), rtol=1e-9, atol=1e-11)
    if rank == 0:
        close("losses", torch.tensor(losses), torch.tensor(expected), rtol=1e-6)
        check("it learns", losses[-1] < losses[0], str(losses))
    dist.destroy_process_group()


main()
