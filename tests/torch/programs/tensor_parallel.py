"""DTensor and tensor parallel layers: shards, what to do to them, and a model over all ranks."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import models
from checks import BACKEND, DEVICE, close, drawn, same

STEPS = 4


def redistribute(mesh):
    """Between all placements, also of sizes that do not divide by the ranks."""
    size = mesh.size()
    for rows, columns in ((8, 12), (size + 1, 3 * size - 1)):
        whole = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
        kinds = [Replicate(), Shard(0), Shard(1)]
        for before in kinds:
            for after in kinds:
                moved = distribute_tensor(whole, mesh, [before]).redistribute(mesh, [after])
                same(f"{before} to {after}", moved.full_tensor(), whole)
        partial = DTensor.from_local(whole.clone(), mesh, [Partial()])
        for after in kinds:
            got = partial.redistribute(mesh, [after]).full_tensor()
            same(f"partial to {after}", got, whole * size)
    x, y = drawn(torch.randn, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    a, b = distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(y, mesh, [Shard(0)])
    close("matmul", (a @ b).full_tensor(), x @ y)


def train(mesh, plan):
    model = parallelize_module(models.net(), mesh, plan)
    optimizer = models.sgd(model)
    for step in range(STEPS):
        x, y = models.batch(step)
        optimizer.zero_grad()
        models.loss(model(x), y).backward()
        optimizer.step()
    return model


def check_model(model, what):
    want = models.train_alone(models.net(), STEPS)
    for (name, p), expected in zip(model.named_parameters(), want.parameters()):
        got = p.full_tensor() if isinstance(p, DTensor) else p
        close(f"{what}: {name}", got.detach(), expected.detach(), rtol=1e-9, atol=1e-11)


class Normed(models.Net):
    """With a norm between, whose activations are split along the rows."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.last(self.norm(torch.tanh(self.first(x))))


def sequence_parallel(mesh):
    torch.manual_seed(1)
    alone = Normed().double()
    torch.manual_seed(1)
    model = Normed().double()
    parallelize_module(model, mesh, {
        "first": ColwiseParallel(output_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "last": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    })  # fmt: skip
    x, _ = models.batch(0)
    close("sequence parallel", model(x).detach(), alone(x).detach(), rtol=1e-10, atol=1e-12)


def main():
    dist.init_process_group(BACKEND)
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    redistribute(mesh)
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    check_model(train(mesh, plan), "tensor parallel")
    sequence_parallel(mesh)
    dist.destroy_process_group()


main()
