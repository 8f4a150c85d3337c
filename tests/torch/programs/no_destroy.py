"""Ends without destroy_process_group, works pending and groups open: quietly, with code 0.

(#190489, #179291, #126275: "terminate called", walls of warnings.)
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, same


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    ddp = DDP(models.net())
    x, y = models.batch(0)
    models.loss(ddp(models.part(x, rank, size)), models.part(y, rank, size)).backward()
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    if rank % 2:
        work.wait()
        same("sum", tensor[0].item(), float(size))
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    future.then(lambda f: f.value()[0] * 2)
    dist.irecv(torch.ones(3), (rank + 1) % size)  # nobody sends
    dist.barrier()


main()
