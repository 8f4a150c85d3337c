"""A rank is killed: the others make a smaller world of what is left, by torch's shrink_group().

torch registers what comes out of it for the CPU alone, and its maps keep the old global ranks.
"""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import models
from checks import BACKEND, check, flat, raises, same, same_everywhere

VICTIM = 1


def total():
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor[0].item()


def main():
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    same("all_reduce", total(), 10.0)
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    raises("without a rank", dist.DistBackendError, total, f"rank {VICTIM}")
    world = dist.shrink_group([VICTIM], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    rank -= rank > VICTIM
    check("the default group", world is dist.group.WORLD)
    same("where", (dist.get_rank(), dist.get_world_size()), (rank, 3))
    same("its backend", world._get_backend(torch.device("cpu")).name(), "commd")
    same("all_reduce", total(), 6.0)
    objects = [None] * 3
    dist.all_gather_object(objects, rank)
    same("all_gather_object", objects, [0, 1, 2])

    ddp = DDP(models.net(rank))
    models.train(ddp, models.sgd(ddp), 2, rank, 3, rows=48)
    same_everywhere("DDP", flat(ddp))

    # and again, where nobody has died: the last one is in an operation, and is told
    if rank == 2:
        raises("shut out", dist.DistBackendError, total, "shrink_group()")
    else:
        dist.shrink_group([2], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        same("all_reduce", total(), 3.0)
    dist.destroy_process_group()


main()
