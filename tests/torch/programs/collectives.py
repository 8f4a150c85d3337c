"""The operations one after the other, as the tutorial on distributed programs shows them."""

import torch
import torch.distributed as dist

from checks import BACKEND, same


def send_and_receive(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
    same("blocking send", tensor, torch.ones(1) if rank < 2 else torch.zeros(1))
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor, dst=1)
        request.wait()
    elif rank == 1:
        request = dist.irecv(tensor, src=0)
        request.wait()
        same("isend and irecv", tensor, torch.full((1,), 2.0))


def all_to_rank_0(rank, size):
    """From anyone: who it was is told."""
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.zeros(2)
            source = dist.recv(tensor)
            same(f"what rank {source} sent", tensor, torch.full((2,), float(source)))
            seen.add(source)
        same("who sent", seen, set(range(1, size)))
    else:
        dist.send(torch.full((2,), float(rank)), dst=0)


def collectives(group, rank, size):
    for op, want in ((dist.ReduceOp.SUM, size), (dist.ReduceOp.PRODUCT, 1), (dist.ReduceOp.MAX, 1)):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, op=op, group=group)
        same(f"all_reduce {op}", tensor, torch.full((3,), float(want)))
    tensor = torch.full((2, 2), float(rank))
    root = dist.get_global_rank(group, size - 1)
    dist.broadcast(tensor, root, group=group)
    same("broadcast", tensor, torch.full((2, 2), float(root)))
    tensor = torch.full((2,), float(rank + 1))
    dist.reduce(tensor, root, op=dist.ReduceOp.SUM, group=group)
    members = dist.get_process_group_ranks(group)
    if rank == root:
        same("reduce", tensor, torch.full((2,), float(sum(members) + size)))
    pieces = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(pieces, torch.full((2,), float(rank)), group=group)
    same("all_gather", torch.stack(pieces)[:, 0].tolist(), [float(m) for m in members])
    pieces = [torch.zeros(1) for _ in range(size)] if rank == root else None
    dist.gather(torch.full((1,), float(rank)), pieces, dst=root, group=group)
    if rank == root:
        same("gather", torch.cat(pieces).tolist(), [float(m) for m in members])
    tensor = torch.zeros(1)
    pieces = [torch.full((1,), float(10 * m)) for m in members] if rank == root else None
    dist.scatter(tensor, pieces, src=root, group=group)
    same("scatter", tensor.item(), 10.0 * rank)
    dist.barrier(group=group)


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    send_and_receive(rank, size)
    all_to_rank_0(rank, size)
    collectives(dist.group.WORLD, rank, size)
    group = dist.new_group([0, 1])
    if rank < 2:
        collectives(group, rank, 2)
    odd = dist.new_group([3, 1])
    if rank in (1, 3):
        collectives(odd, rank, 2)
    dist.barrier()  # rank 0 keeps the store, which groups may still use as they begin
    dist.destroy_process_group()


main()
