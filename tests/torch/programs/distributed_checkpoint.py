"""torch.distributed.checkpoint: saved by all ranks, at once or beside the training, loaded anew."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, zeros

import models
from checks import BACKEND, FOLDER, close, same


def sharded(seed):
    model = models.net(seed)
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def step(model, optimizer, number):
    x, y = models.batch(number)
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer.zero_grad()
    models.loss(model(models.part(x, rank, size)), models.part(y, rank, size)).backward()
    optimizer.step()


def save_and_load(save, folder):
    model = sharded(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step(model, optimizer, 0)
    names, states = get_state_dict(model, optimizer)
    save({"model": names, "optimizer": states, "step": 7}, folder)
    want = {n: p.full_tensor().detach().clone() for n, p in model.named_parameters()}
    other = sharded(2)
    adam = torch.optim.Adam(other.parameters(), lr=0.01)
    names, states = get_state_dict(other, adam)
    state = {"model": names, "optimizer": states, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        other, adam, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    same("step", state["step"], 7)
    for name, p in other.named_parameters():
        same(f"loaded {name}", p.full_tensor().detach(), want[name])
    step(model, optimizer, 1)
    step(other, adam, 1)
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        close(f"{name} a step later", p.full_tensor(), q.full_tensor(), rtol=1e-12, atol=1e-14)


def save_async(state, folder):
    dcp.async_save(state, checkpoint_id=folder).result()


def other_shards():
    """Saved by rows, loaded by columns."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(48.0).view(6, 8)
    folder = os.path.join(FOLDER, "rows")
    dcp.save({"t": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    state = {"t": zeros(6, 8, device_mesh=mesh, placements=[Shard(1)])}
    dcp.load(state, checkpoint_id=folder)
    same("rows as columns", state["t"].full_tensor(), whole)


def main():
    dist.init_process_group(f"cpu:{BACKEND}")
    save_and_load(
        lambda state, folder: dcp.save(state, checkpoint_id=folder), os.path.join(FOLDER, "now")
    )
    save_and_load(save_async, os.path.join(FOLDER, "beside"))
    other_shards()
    dist.destroy_process_group()


main()
