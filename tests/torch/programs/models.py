"""A small network with data for it, and what training it in one process gives."""

import torch
from torch import nn

from checks import drawn


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def net(seed=1, **kwargs):
    torch.manual_seed(seed)
    return Net(**kwargs).double()


def batch(step, rows=16):
    """The rows of a step for all ranks together."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = drawn(torch.randn, rows, 8, generator=generator, dtype=torch.float64)
    y = drawn(torch.randn, rows, 4, generator=generator, dtype=torch.float64)
    return x, y


def part(tensor, rank, size):
    """The rows of a rank."""
    return tensor.chunk(size)[rank]


def loss(output, y):
    return nn.functional.mse_loss(output, y)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, steps, rank, size, rows=16):
    """The steps of a rank, which sees its rows alone."""
    for step in range(steps):
        x, y = batch(step, rows)
        optimizer.zero_grad()
        loss(model(part(x, rank, size)), part(y, rank, size)).backward()
        optimizer.step()


def train_alone(model, steps, optimizer=None, rows=16):
    """One process does what the ranks do together."""
    train(model, optimizer or sgd(model), steps, 0, 1, rows)
    return model
