"""fully_shard on CPU: sharded parameters, gathered for use, gradients reduce-scattered."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import models
from checks import BACKEND, DEVICE, check, close

STEPS = 6


def shard(model, mesh, **kwargs):
    for layer in model.children():
        fully_shard(layer, mesh=mesh, **kwargs)
    return fully_shard(model, mesh=mesh, **kwargs)


def train(model, optimizer):
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        x, y = models.batch(step)
        optimizer.zero_grad()
        # torch 2.11 has no loss of types that differ
        said = model(models.part(x, rank, size)).double()
        models.loss(said, models.part(y, rank, size)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()


def full(model):
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}


def main():
    dist.init_process_group(BACKEND)
    size = dist.get_world_size()
    want = dict(models.train_alone(models.net(), STEPS).named_parameters())
    meshes = [init_device_mesh(DEVICE, (size,), mesh_dim_names=("shard",))]
    if size % 2 == 0:  # copies of a sharded model
        meshes.append(init_device_mesh(DEVICE, (2, size // 2), mesh_dim_names=("copy", "shard")))
    for mesh in meshes:
        model = shard(models.net(), mesh)
        rows = model.first.weight.to_local().shape[0]
        check("sharded", rows == 16 // mesh.size(-1), f"{rows} rows")
        train(model, models.sgd(model))
        for name, got in full(model).items():
            close(f"{name} on {mesh}", got, want[name].detach(), rtol=1e-9, atol=1e-11)

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(models.net().float(), meshes[0], mp_policy=policy)
    train(model, models.sgd(model))
    for name, got in full(model).items():
        close(f"{name} in bf16", got, want[name].detach().float(), rtol=0, atol=0.03)
    dist.destroy_process_group()


main()
