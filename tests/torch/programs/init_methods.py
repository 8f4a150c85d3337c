"""env://, tcp://, file://, a store of one's own; again and again in the same processes."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from checks import BACKEND, FOLDER, check, raises, same

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def use():
    same("rank and size", (dist.get_rank(), dist.get_world_size()), (RANK, SIZE))
    same("name of the backend", dist.get_backend(), BACKEND)
    tensor = torch.tensor([RANK + 1])
    dist.all_reduce(tensor)
    same("all_reduce", tensor.item(), SIZE * (SIZE + 1) // 2)
    group = dist.new_group(range(0, SIZE, 2))
    if RANK % 2 == 0:
        tensor = torch.tensor([RANK])
        dist.all_reduce(tensor, group=group)
        same("all_reduce in a subgroup", tensor.item(), sum(range(0, SIZE, 2)))
    dist.barrier()
    dist.destroy_process_group()
    check("destroyed", not dist.is_initialized())
    raises("all_reduce after the end", ValueError, lambda: dist.all_reduce(tensor))


def main():
    where = {"rank": RANK, "world_size": SIZE}
    dist.init_process_group(BACKEND)
    use()
    # another port: rank 0's old store may still answer on the first
    os.environ["MASTER_PORT"] = str(PORT + 3)
    dist.init_process_group(BACKEND, init_method="env://", timeout=timedelta(seconds=300))
    use()
    dist.init_process_group(BACKEND, init_method=f"tcp://{ADDRESS}:{PORT + 1}", **where)
    use()
    for number in range(2):
        file = os.path.join(FOLDER, f"rendezvous{number}")
        dist.init_process_group(BACKEND, init_method=f"file://{file}", **where)
        use()
    store = dist.TCPStore(ADDRESS, PORT + 2, SIZE, RANK == 0)
    for name in ("first", "second"):
        dist.init_process_group(BACKEND, store=dist.PrefixStore(name, store), **where)
        use()
    dist.init_process_group(f"cpu:{BACKEND}", store=dist.PrefixStore("third", store), **where)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same("all_reduce with cpu:NAME", tensor.item(), float(SIZE))
    dist.destroy_process_group()


main()
