"""HSDP: a rank is killed in mid-backward, its replica is lost, and the others repeat the step.

Gradients are divided by the size of the replicated dimension. And FSDP2 keeps what a backward that
throws has left behind: gradients of whole parameters, which zero_grad() does not know, and that its
last callback is queued already, without which a step ends early.
"""

import copy
import os
import signal

import commd.torch
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import models
from checks import BACKEND, DEVICE, check, raises, same, same_everywhere
from hybrid import go_on, mesh_of

STEPS, VICTIM, DIES_AT = 6, 2, 3
ROWS = 48  # for 6 ranks and for 4, also halved
SUM_F32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # divided by the operator AVG
# the layers that are gathered one by one, and how; the others are gathered with the whole model
KINDS = [
    ([], {}),
    (["second"], {}),
    (["first", "second", "last"], {"reshard_after_forward": False}),
    (["first", "second", "last"], {"mp_policy": SUM_F32}),
]
ACCUMULATES = 3  # gradients of two halves


def sharded(seed, mesh):
    model = models.net(seed)
    names, how = KINDS[seed]
    for name in names:
        fully_shard(getattr(model, name), mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def step(seed, model, optimizer, number):
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = (models.part(rows, rank, size) for rows in models.batch(number, ROWS))
    optimizer.zero_grad()
    halves = 2 if seed == ACCUMULATES else 1
    for half in range(halves):
        model.set_requires_gradient_sync(half == halves - 1)
        output = model(models.part(x, half, halves))
        models.loss(output, models.part(y, half, halves)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def local(model):
    """The bits that this rank has."""
    return torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])


def whole(model):
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])


def aborted(seed, model, mesh):
    """A whole layer was being gathered, by a part of its ranks, when the group was aborted."""
    shard, bits = mesh.get_group("shard"), local(model)
    dist.barrier()
    if dist.get_rank(shard):
        shard.abort()
    else:
        gathering = model.first.unshard(async_op=True)
        raises("what is gathered", dist.DistBackendError, gathering.wait)
    commd.torch.recover(shard, timeout=300)
    same(f"HSDP {seed} after an abort", local(model), bits)


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    mesh = mesh_of(DEVICE)
    used = [sharded(seed, mesh) for seed in range(len(KINDS))]
    optimizers = [models.sgd(model) for model in used]
    for number in range(DIES_AT):
        for seed, (model, optimizer) in enumerate(zip(used, optimizers)):
            step(seed, model, optimizer, number)
    before = [copy.deepcopy((local(model), optimizer.state_dict()["state"]))
              for model, optimizer in zip(used, optimizers)]  # fmt: skip
    if rank == VICTIM:
        # in mid-backward: after the last of three layers
        used[-1].second.register_full_backward_pre_hook(
            lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
    for seed in reversed(range(len(KINDS))):
        raises("the backward", RuntimeError,
               lambda: step(seed, used[seed], optimizers[seed], DIES_AT))  # fmt: skip
    now = go_on(mesh, timeout=300)
    same("who is gone", now.gone, [2, 3])
    for model, (bits, _) in zip(used, before):
        same("the model before the step", local(model), bits)

    # and ranks that were four from this step on
    mesh = mesh_of(DEVICE)
    others = []
    for seed, (bits, state) in enumerate(before):
        model = sharded(seed, mesh)
        parts = bits.split([p.to_local().numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts):
            p.to_local().data.copy_(part.view_as(p.to_local()))
        optimizer = models.sgd(model)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        for p, values in zip(model.parameters(), state.values()):
            momentum = optimizer.state[p]["momentum_buffer"].to_local()
            momentum.copy_(values["momentum_buffer"].to_local())
        same("a model that begins here", local(model), bits)
        others.append((model, optimizer))
    for number in range(DIES_AT, STEPS):
        for seed, (model, optimizer) in enumerate(zip(used, optimizers)):
            step(seed, model, optimizer, number)
            step(seed, *others[seed], number)
            same(f"HSDP {seed} after step {number}", local(model), local(others[seed][0]))
    for seed, model in enumerate(used):
        same_everywhere(f"parameters of HSDP {seed}", whole(model))
    aborted(2, used[2], used[2].first.weight.device_mesh)
    for model, optimizer in ((used[2], optimizers[2]), others[2]):
        step(2, model, optimizer, STEPS)
    same("HSDP 2 after an abort", local(used[2]), local(others[2][0]))

    # and as with a torch before 2.13, which has no method for it
    state = type(used[2]._get_fsdp_state())
    if hasattr(state, "_reset_iter_state"):
        del state._reset_iter_state
        aborted(2, used[2], used[2].first.weight.device_mesh)
        step(2, used[2], optimizers[2], STEPS + 1)
        step(2, *others[2], STEPS + 1)
        same("HSDP 2, reset by commd", local(used[2]), local(others[2][0]))
    check("it has learnt", not torch.equal(local(used[0]), before[0][0]))
    dist.destroy_process_group()


main()
