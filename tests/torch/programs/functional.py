"""Functional collectives: by hand, through autograd, and in compiled functions."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as autograd

from checks import BACKEND, close, drawn, same


def by_hand(rank, size):
    whole = dist.group.WORLD
    same(
        "all_reduce",
        funcol.all_reduce(torch.full((3,), 1.0), "sum", whole) + 0,
        torch.full((3,), float(size)),
    )
    rows = funcol.all_gather_tensor(torch.full((2, 2), float(rank)), 0, whole)
    same("all_gather_tensor", rows[::2, 0].tolist(), [float(r) for r in range(size)])
    columns = funcol.all_gather_tensor(torch.full((2, 2), float(rank)), 1, whole)
    same("all_gather_tensor by columns", columns[0, ::2].tolist(), [float(r) for r in range(size)])
    piece = funcol.reduce_scatter_tensor(torch.arange(2.0 * size), "sum", 0, whole)
    same("reduce_scatter_tensor", piece + 0, size * torch.arange(2.0 * rank, 2.0 * rank + 2))
    same("broadcast", funcol.broadcast(torch.full((2,), float(rank)), 1, whole) + 0, torch.ones(2))
    sends = [r + 1 for r in range(size)]
    out = funcol.all_to_all_single(
        torch.full((sum(sends),), float(rank)), [rank + 1] * size, sends, whole
    )
    same("all_to_all_single", (out + 0)[:: rank + 1].tolist(), [float(r) for r in range(size)])
    many = funcol.all_reduce_coalesced([torch.ones(2), torch.ones(3, 3)], "sum", whole)
    same("all_reduce_coalesced", [m.sum().item() for m in many], [2.0 * size, 9.0 * size])
    many = funcol.all_gather_into_tensor_coalesced([torch.ones(2), torch.ones(3)], whole)
    same(
        "all_gather_into_tensor_coalesced", [m.sum().item() for m in many], [2.0 * size, 3.0 * size]
    )
    many = funcol.reduce_scatter_tensor_coalesced(
        [torch.ones(size), torch.ones(2 * size)], "sum", [0, 0], whole
    )
    same("reduce_scatter_tensor_coalesced", [m.tolist() for m in many], [[size], [size, size]])


def through_autograd(rank, size):
    x = torch.full((3,), float(rank + 1), requires_grad=True)
    (autograd.all_reduce(x) * (rank + 1)).sum().backward()
    close("gradient of all_reduce", x.grad, torch.full((3,), sum(range(1, size + 1)) * 1.0))
    x = torch.full((2,), float(rank), requires_grad=True)
    pieces = autograd.all_gather(x)
    sum((r + 1) * piece.sum() for r, piece in enumerate(pieces)).backward()
    close("gradient of all_gather", x.grad, torch.full((2,), float(size * (rank + 1))))
    x = torch.full((2,), float(rank), requires_grad=True)
    (autograd.broadcast(x, 1) * (rank + 1)).sum().backward()
    if rank == 1:
        close("gradient of broadcast", x.grad, torch.full((2,), sum(range(1, size + 1)) * 1.0))


def step(x, w):
    """A layer whose weight is split among the ranks."""
    h = funcol.all_gather_tensor(torch.tanh(x @ w), 1, dist.group.WORLD)
    return funcol.all_reduce(h.square().sum(), "sum", dist.group.WORLD) / dist.get_world_size()


def compiled(rank, size):
    generator = torch.Generator().manual_seed(3)
    x = drawn(torch.randn, 4, 6, generator=generator)
    w = drawn(torch.randn, 6, 2 * size, generator=generator)
    mine = w[:, 2 * rank : 2 * rank + 2]
    want = torch.tanh(x @ w).square().sum()
    for backend in ("eager", "aot_eager"):
        run = torch.compile(step, backend=backend, fullgraph=True)
        for _ in range(2):
            close(f"compiled by {backend}", run(x, mine), want)


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    by_hand(rank, size)
    through_autograd(rank, size)
    compiled(rank, size)
    dist.destroy_process_group()


main()
