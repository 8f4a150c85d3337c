"""HSDP: a rank of a shard dies; a new process takes its place, with the shard of another replica.

Nobody else leaves: the rank that shares the lost one's replica keeps its own shard. FSDP2 is made
anew, since groups of some ranks are; the bits of a new process come from the same place of a
replica that has them. At the end all have the bits of a job in which nobody has died.
"""

import os
import signal
import subprocess
import sys
import time

import commd.torch
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import models
from checks import BACKEND, DEVICE, FOLDER, check, raises, same

NEW = "TEST_NEWCOMER"
STEPS, VICTIM, DIES_AT = 6, 2, 3
REPLICAS, SHARDS = 2, 2


def sharded(mesh):
    """A model, its optimizer, and its mesh."""
    model = models.net()
    for layer in (model.first, model.second, model.last, model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.02), mesh


def step(model, optimizer, number):
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = (models.part(rows, rank, size) for rows in models.batch(number))
    optimizer.zero_grad()
    models.loss(model(x), y).backward()
    optimizer.step()


def state_of(model, optimizer):
    """What a rank has of them, all tensors of it: those of the optimizer are there after a step."""
    for parameter in model.parameters():
        yield parameter
        values = optimizer.state[parameter]
        for name in sorted(values):
            yield values[name]


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def restored(now, old):
    """The model anew, with what this rank has had of it, or another replica has."""
    mesh = init_device_mesh(DEVICE, (REPLICAS, SHARDS), mesh_dim_names=("copy", "shard"))
    model, optimizer, _ = sharded(mesh)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # so that its state is there
    copies = mesh.get_group("copy")
    source = next(rank for rank in dist.get_process_group_ranks(copies) if now.before[rank] >= 0)
    with torch.no_grad():
        mine = list(state_of(model, optimizer))
        if old:
            for tensor, before in zip(mine, state_of(*old)):
                local(tensor).copy_(local(before))
        for tensor in mine:
            dist.broadcast(local(tensor), source, group=copies)
    return model, optimizer, mesh


def bits(model, optimizer):
    return torch.cat([local(tensor).detach().double().reshape(-1)
                      for tensor in state_of(model, optimizer)])  # fmt: skip


def undisturbed():
    """Of a job of as many ranks, in which nobody dies."""
    mesh = init_device_mesh(DEVICE, (REPLICAS, SHARDS), mesh_dim_names=("copy", "shard"))
    model, optimizer, _ = sharded(mesh)
    for number in range(STEPS):
        step(model, optimizer, number)
    return bits(model, optimizer)


def go_on(now, old):
    model, optimizer, _ = restored(now, old)
    if old:
        same("what it had", bits(model, optimizer), bits(*old))
    for number in range(DIES_AT, STEPS):
        step(model, optimizer, number)
    same("as if nobody had died", bits(model, optimizer), undisturbed())
    dist.destroy_process_group()


def tell(what):
    open(os.path.join(FOLDER, what), "w").close()


def until(what):
    while not os.path.exists(os.path.join(FOLDER, what)):
        time.sleep(0.01)


def start():
    """Ahead of the loss: to load torch takes longer than anybody should wait for a rank."""
    environment = dict(os.environ, **{NEW: "1"})
    return subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=environment)


def main():
    child = start() if os.environ["RANK"] == "0" else None
    until("loaded")
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    mesh = init_device_mesh(DEVICE, (REPLICAS, SHARDS), mesh_dim_names=("copy", "shard"))
    model, optimizer, _ = sharded(mesh)
    for number in range(DIES_AT):
        step(model, optimizer, number)
    before = bits(model, optimizer)
    if rank == VICTIM:
        model.second.register_full_backward_pre_hook(
            lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
    raises("the backward", RuntimeError, lambda: step(model, optimizer, DIES_AT))
    for name in ("shard", "copy"):  # frees ranks that wait for this one
        mesh.get_group(name).abort()
    tell("died")
    now = commd.torch.recover(policy="wait", timeout=300)
    same("who is new", now.new, [VICTIM])
    for group in now.broken:
        dist.destroy_process_group(group)
    check("the state is whole", torch.equal(bits(model, optimizer), before))
    go_on(now, (model, optimizer))
    same("the new process's end", child.wait() if child else 0, 0)


if os.environ.get(NEW):
    tell("loaded")
    until("died")
    go_on(commd.torch.rejoin(timeout=300), None)
else:
    main()
