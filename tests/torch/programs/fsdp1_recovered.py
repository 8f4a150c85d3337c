"""FSDP1: a rank is killed in mid-backward, and the step is repeated by the others, with the bits of
ranks that were as many from this step on.

It takes the divisors of its gradients from its groups when it is made: the trap of DDP for good.
And a backward that throws leaves whole parameters, and that its last callback is queued already.
"""

import copy
import os
import signal
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import models
from checks import BACKEND, check, raises, same, same_everywhere
from hybrid import go_on, mesh_of

warnings.filterwarnings("ignore")  # it is deprecated
STEPS, VICTIM, DIES_AT = 6, 2, 3
ROWS = 48  # for 6 ranks and for 4
LAYERS = ModuleWrapPolicy({torch.nn.Linear})
# The last one is that whose backward loses the rank; the others throw when they begin.
KINDS = [
    {"sharding_strategy": ShardingStrategy.NO_SHARD, "auto_wrap_policy": LAYERS},
    {"sharding_strategy": ShardingStrategy.HYBRID_SHARD},
    {"sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2, "auto_wrap_policy": LAYERS,
     "use_orig_params": True},
    {"sharding_strategy": ShardingStrategy.HYBRID_SHARD, "auto_wrap_policy": LAYERS},
]  # fmt: skip


def wrapped(seed, mesh):
    how = dict(KINDS[seed], device_id=torch.device("cpu"))
    if how["sharding_strategy"] != ShardingStrategy.NO_SHARD:
        how["device_mesh"] = mesh
    return FSDP(models.net(seed), **how)


def step(model, optimizer, number):
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = (models.part(rows, rank, size) for rows in models.batch(number, ROWS))
    optimizer.zero_grad()
    models.loss(model(x), y).backward()
    optimizer.step()


def local(model):
    """The bits that this rank has."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    mesh = mesh_of("cpu")
    used = [wrapped(seed, mesh) for seed in range(len(KINDS))]
    optimizers = [models.sgd(model) for model in used]
    for number in range(DIES_AT):
        for model, optimizer in zip(used, optimizers):
            step(model, optimizer, number)
    before = [copy.deepcopy((local(model), optimizer.state_dict()))
              for model, optimizer in zip(used, optimizers)]  # fmt: skip
    if rank == VICTIM:
        # in mid-backward: after the last of three layers
        used[-1].module.second.register_full_backward_pre_hook(
            lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
    for seed in reversed(range(len(KINDS))):
        raises("the backward", RuntimeError, lambda: step(used[seed], optimizers[seed], DIES_AT))
    now = go_on(mesh, timeout=300)
    same("who is gone", now.gone, [2, 3])
    for model, (bits, _) in zip(used, before):
        same("the model before the step", local(model), bits)

    # and ranks that were four from this step on
    mesh = mesh_of("cpu")
    others = []
    for seed, (bits, state) in enumerate(before):
        model = wrapped(seed, mesh)
        with torch.no_grad():
            for p, part in zip(model.parameters(), bits.split([p.numel() for p in
                                                               model.parameters()])):  # fmt: skip
                p.copy_(part.view_as(p))
        optimizer = models.sgd(model)
        optimizer.load_state_dict(state)
        others.append((model, optimizer))
    for number in range(DIES_AT, STEPS):
        for seed, (model, optimizer) in enumerate(zip(used, optimizers)):
            step(model, optimizer, number)
            step(*others[seed], number)
            same(f"FSDP1 {seed} after step {number}", local(model), local(others[seed][0]))
    for seed, model in enumerate(used):
        with FSDP.summon_full_params(model):
            same_everywhere(f"parameters of FSDP1 {seed}", local(model))
        check("it has learnt", not torch.equal(local(model), before[seed][0]))
    dist.destroy_process_group()


main()
