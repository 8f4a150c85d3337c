"""A rank is killed in mid-backward: the step is repeated by the others, with DDP's own bits.

DDP divides gradients by a number that it takes from the group at the first gradient of a backward,
and forgets when the backward has ended, which one that throws never does. The trap of recovery.
"""

import copy
import os
import signal

import commd.torch
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, check, flat, raises, same, same_everywhere

STEPS, VICTIM, DIES_AT = 6, 2, 3
ROWS = 48  # for 4 ranks and for 3


def step(ddp, optimizer, number):
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = models.batch(number, ROWS)
    optimizer.zero_grad()
    models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
    optimizer.step()


def wrapped(model, number):
    """Several buckets, so that some are reduced when the rank dies, and all that changes DDP."""
    options = [
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
        {"static_graph": True},
    ][number % 4]
    ddp = DDP(model, **options)
    if number == 0:
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    return ddp


def optimizer_of(ddp, state=None):
    optimizer = models.sgd(ddp)
    if state:
        optimizer.load_state_dict(state)
    return optimizer


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    ddps = [wrapped(models.net(seed), seed) for seed in range(4)]
    optimizers = [optimizer_of(ddp) for ddp in ddps]
    for number in range(DIES_AT):
        for ddp, optimizer in zip(ddps, optimizers):
            step(ddp, optimizer, number)
    before = [copy.deepcopy((ddp.module.state_dict(), optimizer.state_dict()))
              for ddp, optimizer in zip(ddps, optimizers)]  # fmt: skip
    if rank == VICTIM:  # when its last gradients are there
        ddps[0].module.first.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    for ddp, optimizer in zip(ddps, optimizers):
        raises("the backward", RuntimeError, lambda: step(ddp, optimizer, DIES_AT))
        # its parameters are those before the step
    commd.torch.recover(timeout=300)
    for ddp, (model, _) in zip(ddps, before):
        check("the model before the step", all(
            torch.equal(value, model[name]) for name, value in ddp.module.state_dict().items()
        ))  # fmt: skip

    # and ranks that were three from this step on
    others = []
    for seed, (model, state) in enumerate(before):
        net = models.net(seed)
        net.load_state_dict(model)
        others.append((ddp := wrapped(net, seed), optimizer_of(ddp, state)))
    for number in range(DIES_AT, STEPS):
        for seed, (ddp, optimizer) in enumerate(zip(ddps, optimizers)):
            step(ddp, optimizer, number)
            step(*others[seed], number)
            same(f"DDP {seed} after step {number}", flat(ddp), flat(others[seed][0]))
    for seed, ddp in enumerate(ddps):
        same_everywhere(f"parameters of DDP {seed}", flat(ddp))
    dist.destroy_process_group()


main()
