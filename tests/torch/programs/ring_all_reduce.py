"""An all_reduce of our own: each rank passes chunks to its right neighbour by isend and recv."""

import torch
import torch.distributed as dist

from checks import BACKEND, close, drawn, same_everywhere


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = list(tensor.chunk(size))
    buffer = torch.empty_like(chunks[0])
    # After step s rank r has the sum of s + 2 ranks in chunk r - s - 1; then they go round.
    for step in range(2 * (size - 1)):
        out, into = (rank - step) % size, (rank - step - 1) % size
        request = dist.isend(chunks[out].clone(), right)
        dist.recv(buffer, left)
        request.wait()
        if step < size - 1:
            chunks[into].add_(buffer)
        else:
            chunks[into].copy_(buffer)


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    for elements in (size, 1000 * size, 100_000 * size):
        generator = torch.Generator().manual_seed(rank)
        mine = drawn(torch.randn, elements, generator=generator)
        other = mine.clone()
        ring_all_reduce(mine)
        dist.all_reduce(other)
        close(f"ring of {elements}", mine, other, rtol=1e-5, atol=1e-5)
        same_everywhere(f"ring of {elements}", mine)
    dist.destroy_process_group()


main()
