"""What in-process restart (NVIDIA's nvidia-resiliency-ext) does to a job that has met a fault: a
thread of each rank asks every group for its backend for GPUs, also where there is none, and calls
destroy_process_group(), while the rank may be blocked in an operation. That frees the rank, and the
same process begins anew.
"""

import os
import threading
import time

import torch
import torch.distributed as dist

from checks import BACKEND, check, raises, same


def total(group):
    """By the group's own method: dist.all_reduce() says ValueError if it is destroyed by now."""
    tensor = torch.full((1000,), float(group.rank() + 1))
    options = dist.AllreduceOptions()
    if hasattr(options, "asyncOp"):  # before torch 2.8 all operations are asynchronous
        options.asyncOp = False
    group.allreduce([tensor], options).wait()
    return tensor[0].item()


class Watchdog(threading.Thread):
    """Of one rank; @begin: when all have to start again."""

    def __init__(self, begin):
        super().__init__()
        self.begin, self.backends = begin, None
        self.start()

    def run(self):
        self.begin.wait()
        groups = list(dist.distributed_c10d._world.pg_names)
        self.backends = [group._get_backend(torch.device("cuda")).name() for group in groups]
        dist.destroy_process_group()


def begin_anew(attempt, store, rank, size):
    store = dist.PrefixStore(f"attempt/{attempt}", store)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
    pair = dist.new_group([0, size - 1])
    same("all", total(dist.group.WORLD), size * (size + 1) / 2)
    if rank in (0, size - 1):
        same("a pair", total(pair), 3.0)
    return dist.group.WORLD, pair


def ended(watchdog):
    watchdog.join()
    same("backends for GPUs", watchdog.backends and set(watchdog.backends), {"commd"})
    check("destroyed", not dist.is_initialized())


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, size, rank == 0)

    # A rank meets a fault; the others are blocked in an operation of all.
    for attempt in range(3):
        world, _ = begin_anew(attempt, store, rank, size)
        fault = threading.Event()
        watchdog = Watchdog(fault)
        if rank == attempt:
            fault.set()
        else:
            threading.Timer(0.1 * rank, fault.set).start()
            raises("blocked", dist.DistBackendError, lambda: total(world))
        ended(watchdog)

    # All are blocked, and none will come to the other.
    world, _ = begin_anew("last", store, rank, size)
    fault = threading.Event()
    watchdog = Watchdog(fault)
    threading.Timer(0.3, fault.set).start()
    begun = time.monotonic()
    nothing = torch.empty(1)
    raises("blocked", dist.DistBackendError,
           lambda: world.recv([nothing], (rank + 1) % size, 0).wait())  # fmt: skip
    print(f"rank {rank}: freed after {time.monotonic() - begun:.3f} s")
    ended(watchdog)
    begin_anew("end", store, rank, size)
    dist.destroy_process_group()


main()
