"""One layer on each rank: activations go forward by send and recv, gradients come back."""

import torch
import torch.distributed as dist
from torch import nn

from checks import BACKEND, close, drawn

WIDTH, ROWS, STEPS = 12, 8, 5


def layers(size):
    torch.manual_seed(3)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(size)]


def data(step):
    generator = torch.Generator().manual_seed(step)
    return drawn(torch.randn, 2, ROWS, WIDTH, generator=generator, dtype=torch.float64)


def alone(size):
    stack = layers(size)
    optimizer = torch.optim.SGD([p for layer in stack for p in layer.parameters()], lr=0.2)
    for step in range(STEPS):
        h, y = data(step)
        optimizer.zero_grad()
        for layer in stack:
            h = torch.tanh(layer(h))
        nn.functional.mse_loss(h, y).backward()
        optimizer.step()
    return stack


def step_of(layer, optimizer, rank, size, step):
    x, y = data(step)
    if rank > 0:
        dist.recv(x, rank - 1)
    x.requires_grad_()
    out = torch.tanh(layer(x))
    optimizer.zero_grad()
    if rank < size - 1:
        dist.send(out.detach(), rank + 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, rank + 1, tag=1)
        out.backward(gradient)
    else:
        nn.functional.mse_loss(out, y).backward()
    if rank > 0:
        dist.send(x.grad, rank - 1, tag=1)
    optimizer.step()


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = layers(size)[rank]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    for step in range(STEPS):
        step_of(layer, optimizer, rank, size, step)
    want = alone(size)[rank]
    close("weight of my layer", layer.weight, want.weight, rtol=1e-12, atol=1e-14)
    close("bias of my layer", layer.bias, want.bias, rtol=1e-12, atol=1e-14)
    dist.destroy_process_group()


main()
