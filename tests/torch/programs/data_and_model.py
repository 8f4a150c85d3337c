"""Data and model parallel together: two pipelines of two stages, averaged over subgroups."""

import torch
import torch.distributed as dist
from torch import nn

from checks import BACKEND, close, drawn, flat, same_everywhere

WIDTH, ROWS, STEPS, STAGES = 10, 8, 6, 2


def stages():
    torch.manual_seed(4)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(STAGES)]


def data(step):
    generator = torch.Generator().manual_seed(step)
    return drawn(torch.randn, 2, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def alone():
    stack = stages()
    optimizer = torch.optim.SGD([p for layer in stack for p in layer.parameters()], lr=0.2)
    for step in range(STEPS):
        x, y = data(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(stack[1](torch.tanh(stack[0](x))), y).backward()
        optimizer.step()
    return stack


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    pipelines = size // STAGES
    # ranks 0 1 are a pipeline, 2 3 the next; equal stages of all pipelines share a group
    pairs = [dist.new_group([p * STAGES + s for s in range(STAGES)]) for p in range(pipelines)]
    peers = [dist.new_group(range(s, size, STAGES)) for s in range(STAGES)]
    stage, pipeline = rank % STAGES, rank // STAGES
    pair, group = pairs[pipeline], peers[stage]
    model = stages()[stage]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(STEPS):
        x, y = (t.chunk(pipelines)[pipeline] for t in data(step))
        optimizer.zero_grad()
        if stage == 0:
            out = torch.tanh(model(x))
            dist.send(out.detach(), group=pair, group_dst=1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, group=pair, group_src=1)
            out.backward(gradient)
        else:
            h = torch.empty_like(x)
            dist.recv(h, group=pair, group_src=0)
            h.requires_grad_()
            nn.functional.mse_loss(model(h), y).backward()
            dist.send(h.grad, group=pair, group_dst=0)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= pipelines
        optimizer.step()
    close("my stage", flat(model), flat(alone()[stage]), rtol=1e-10, atol=1e-12)
    same_everywhere("my stage", flat(model), group)
    dist.destroy_process_group()


main()
