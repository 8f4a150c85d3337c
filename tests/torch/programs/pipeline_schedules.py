"""torch.distributed.pipelining: GPipe, 1F1B and interleaved stages against the whole model."""

import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from checks import BACKEND, DEVICE, close, drawn

WIDTH, ROWS, MICRO = 8, 16, 8


def stages(count):
    torch.manual_seed(6)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def data():
    generator = torch.Generator().manual_seed(9)
    return drawn(torch.randn, 2, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def gradients_of_whole(count):
    model = nn.Sequential(*stages(count))
    x, y = data()
    # the schedule adds up the gradients of its micro batches
    for a, b in zip(x.chunk(MICRO), y.chunk(MICRO)):
        nn.functional.mse_loss(model(a), b).backward()
    return [[p.grad for p in stage.parameters()] for stage in model], model(x).detach()


def run(schedule, per_rank):
    rank, size = dist.get_rank(), dist.get_world_size()
    count = size * per_rank
    numbers = [rank + size * i for i in range(per_rank)]
    parts = [stages(count)[n] for n in numbers]
    mine = [PipelineStage(p, n, count, torch.device(DEVICE)) for p, n in zip(parts, numbers)]
    what = mine if per_rank > 1 else mine[0]
    how = {"n_microbatches": MICRO, "loss_fn": nn.functional.mse_loss}
    if "scale_grads" in inspect.signature(schedule).parameters:  # torch 2.7; none did before
        how["scale_grads"] = False
    pipe = schedule(what, **how)
    x, y = data()
    losses = []
    first, last = 0 in numbers, count - 1 in numbers
    out = pipe.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
    gradients, output = gradients_of_whole(count)
    for number, part in zip(numbers, parts):
        for got, want in zip(part.parameters(), gradients[number]):
            close(f"{schedule.__name__}: gradient of stage {number}", got.grad, want, 1e-10, 1e-12)
    if last:
        close(f"{schedule.__name__}: output", out, output, 1e-10, 1e-12)


def main():
    dist.init_process_group(BACKEND)
    run(ScheduleGPipe, 1)
    run(Schedule1F1B, 1)
    run(ScheduleInterleaved1F1B, 2)
    dist.destroy_process_group()


main()
