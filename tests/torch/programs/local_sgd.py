"""Ranks train by themselves and average now and then: local SGD, and averaging in a hierarchy."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, check, close, flat, same_everywhere

WARM_UP, PERIOD, STEPS = 3, 2, 9


def simulate(size):
    """The same by all ranks' models in one process."""
    nets = [models.net() for _ in range(size)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for step in range(STEPS):
        x, y = models.batch(step)
        for rank, (net, optimizer) in enumerate(zip(nets, optimizers)):
            optimizer.zero_grad()
            models.loss(net(models.part(x, rank, size)), models.part(y, rank, size)).backward()
        if step < WARM_UP:  # gradients are averaged
            for group in zip(*(net.parameters() for net in nets)):
                mean = torch.stack([p.grad for p in group]).mean(0)
                for p in group:
                    p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        if step >= WARM_UP and (step - WARM_UP) % PERIOD == 0:  # parameters are averaged
            with torch.no_grad():
                for group in zip(*(net.parameters() for net in nets)):
                    mean = torch.stack(list(group)).mean(0)
                    for p in group:
                        p.copy_(mean)
    return nets


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = models.net()
    ddp = DDP(model)
    alone = dist.new_subgroups(1)[0]  # a rank with itself: gradients stay where they are
    ddp.register_comm_hook(
        PostLocalSGDState(None, alone, start_localSGD_iter=WARM_UP), post_localSGD_hook
    )
    averager = averagers.PeriodicModelAverager(period=PERIOD, warmup_steps=WARM_UP)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), averager)
    models.train(ddp, optimizer, STEPS, rank, size)
    close("local SGD", flat(model), flat(simulate(size)[rank]), 1e-9, 1e-11)

    averager = hierarchical_model_averager.HierarchicalModelAverager(
        period_group_size_dict=OrderedDict([(2, 2), (4, size)]), warmup_steps=0
    )
    value = torch.nn.Parameter(torch.full((5,), float(rank)))
    value.grad = torch.zeros(5)
    for _ in range(5):  # pairs after 2 steps, everybody after 4
        averager.average_parameters([value])
    same_everywhere("hierarchical average", value.detach())
    check("hierarchical average", abs(value[0].item() - (size - 1) / 2) < 1e-6, str(value))
    dist.destroy_process_group()


main()
