"""Everything that pickles: gathered, broadcast, scattered, sent."""

import torch
import torch.distributed as dist

from checks import BACKEND, same


def thing(rank):
    """Of another length on each rank."""
    return {"rank": rank, "text": "x" * (1000 * rank), "tensor": torch.arange(rank)}


def same_thing(what, got, rank):
    same(what, (got["rank"], got["text"]), (rank, "x" * (1000 * rank)))
    same(what, got["tensor"], torch.arange(rank))


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    out = [None] * size
    dist.all_gather_object(out, thing(rank))
    for r in range(size):
        same_thing("all_gather_object", out[r], r)
    out = [None] * size if rank == 1 else None
    dist.gather_object(thing(rank), out, dst=1)
    for r in range(size if rank == 1 else 0):
        same_thing("gather_object", out[r], r)
    out = [thing(3), "two", None] if rank == 2 else [None] * 3
    dist.broadcast_object_list(out, src=2)
    same_thing("broadcast_object_list", out[0], 3)
    same("broadcast_object_list", out[1:], ["two", None])
    out = [None]
    dist.scatter_object_list(out, [thing(r) for r in range(size)] if rank == 0 else None, src=0)
    same_thing("scatter_object_list", out[0], rank)
    if rank == 0:
        for r in range(1, size):
            dist.send_object_list([thing(r), r], dst=r)
    else:
        out = [None, None]
        dist.recv_object_list(out, src=0)
        same_thing("recv_object_list", out[0], rank)
        same("recv_object_list", out[1], rank)
    dist.destroy_process_group()


main()
