"""A rank is killed in mid-operation: the others hear who it was, and go on without it.

gloo hangs or says "Connection closed by peer" with no rank (elastic#134, gloo#520, YOLOX#702).
"""

import os
import signal
import time

import torch
import torch.distributed as dist

from checks import BACKEND, FOLDER, check, raises, same

VICTIM = 2


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    survivors = [r for r in range(size) if r != VICTIM]
    rest = dist.new_group(survivors)
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.all_reduce(tensor, async_op=True)
    error = raises("a pending operation", dist.DistBackendError, pending.wait, f"rank {VICTIM}")
    check("the error names the process", str(pids[VICTIM]) in str(error), str(error))
    raises("a later one", dist.DistBackendError, lambda: dist.all_reduce(tensor), f"rank {VICTIM}")
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=rest)
    same("a group that has lost nobody", tensor[0].item(), float(size - 1))
    began = time.monotonic()
    raises("a group with the dead", dist.DistBackendError, dist.new_group, f"rank {VICTIM}")
    check("it does not wait for the dead", time.monotonic() - began < 60)
    late = dist.new_group(survivors)
    dist.all_reduce(tensor, group=late)
    same("a group without the dead", tensor[0].item(), float((size - 1) ** 2))
    dist.destroy_process_group()

    # and a new world, in the same processes
    file = os.path.join(FOLDER, "again")
    dist.init_process_group(
        BACKEND, init_method=f"file://{file}", rank=survivors.index(rank), world_size=size - 1
    )
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    same("the new world", tensor[0].item(), float(size - 1))
    dist.destroy_process_group()


main()
