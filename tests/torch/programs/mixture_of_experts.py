"""Experts on all ranks: tokens go to theirs by all_to_all_single with splits, and back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

from checks import BACKEND, close, drawn, same

WIDTH, TOKENS, PER_RANK = 6, 24, 2


def experts(count):
    torch.manual_seed(8)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(count)]


def tokens(rank):
    """The tokens of a rank and the expert of each; some experts get none from some ranks."""
    generator = torch.Generator().manual_seed(50 + rank)
    x = drawn(torch.randn, TOKENS + rank, WIDTH, generator=generator, dtype=torch.float64)
    choice = drawn(torch.randint, 0, 3 + rank, (TOKENS + rank,), generator=generator)
    return x, choice


def exchange(x, sends, receives):
    out = torch.empty(sum(receives), WIDTH, dtype=x.dtype)
    return all_to_all_single(out, x, output_split_sizes=receives, input_split_sizes=sends)


def layer(x, choice, mine):
    """What the experts make of x, in the order of x; differentiable."""
    rank, size = dist.get_rank(), dist.get_world_size()
    order = choice.argsort(stable=True)
    counts = torch.bincount(choice, minlength=size * PER_RANK)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sends = counts.view(size, PER_RANK).sum(1).tolist()
    receives = theirs.view(size, PER_RANK).sum(1).tolist()
    inbox = exchange(x[order], sends, receives)
    which = torch.arange(PER_RANK).repeat(size).repeat_interleave(theirs)
    results = torch.zeros_like(inbox)
    for number, expert in enumerate(mine):
        rows = (which == number).nonzero().squeeze(1)
        results = results.index_copy(0, rows, torch.relu(expert(inbox[rows])))
    return exchange(results, receives, sends)[order.argsort()]


def alone(every, size):
    """Outputs and gradients of all inputs, and of all experts."""
    outputs = []
    for rank in range(size):
        x, choice = tokens(rank)
        x.requires_grad_()
        out = torch.stack([torch.relu(every[c](row)) for row, c in zip(x, choice.tolist())])
        out.square().sum().backward()
        outputs.append((out.detach(), x.grad))
    return outputs


def lists(rank, size):
    """all_to_all of tensors of different sizes, of types that are only moved."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        out = [torch.full((rank + r, 3), r % 2, dtype=dtype) for r in range(size)]
        into = [torch.zeros(rank + r, 3, dtype=dtype) for r in range(size)]
        dist.all_to_all(into, out)
        for r in range(size):
            same(
                f"all_to_all of {dtype}", into[r], torch.full((rank + r, 3), rank % 2, dtype=dtype)
            )


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = experts(size * PER_RANK)[rank * PER_RANK : (rank + 1) * PER_RANK]
    x, choice = tokens(rank)
    x.requires_grad_()
    out = layer(x, choice, mine)
    out.square().sum().backward()
    every = experts(size * PER_RANK)
    want, gradient = alone(every, size)[rank]
    close("outputs", out.detach(), want, 1e-12, 1e-14)
    close("gradients of the tokens", x.grad, gradient, 1e-12, 1e-14)
    for number, expert in enumerate(mine):
        other = every[rank * PER_RANK + number]
        if other.weight.grad is not None:
            close("gradient of an expert", expert.weight.grad, other.weight.grad, 1e-10, 1e-12)
    lists(rank, size)
    dist.destroy_process_group()


main()
