"""Ctrl-C while a group's ranks agree on their GPUs, which its first operation there waits for: it
is a KeyboardInterrupt, raised once. The others are told who gave up, whether they waited or come
later, and other groups go on.
"""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist

from checks import BACKEND, raises, same

PRESSED, WAITING = 0, 1  # ranks; the others come when all is over


def all_reduce(group):
    dist.all_reduce(torch.ones(10), group=group)


def started(group):
    dist.all_reduce(torch.ones(10), group=group, async_op=True).wait()


def coalesced(group):
    with dist._coalescing_manager(group, async_ops=True) as works:
        dist.all_reduce(torch.ones(10), group=group)
        dist.all_reduce(torch.ones(20), group=group)
    works.wait()


def barrier(group):
    dist.barrier(group=group)


def on_host():
    dist.all_reduce(torch.ones(1, device="cpu"))


def pressed(call, group):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    raises("Ctrl-C", KeyboardInterrupt, lambda: (timer.start(), call(group)))
    timer.join()
    time.sleep(0.1)  # a second one would be raised here


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    calls = [all_reduce, started, coalesced, barrier]
    groups = [dist.new_group() for _ in calls]
    on_host()
    for call, group in zip(calls, groups):
        name = f"rank {PRESSED}"
        if rank == PRESSED:
            pressed(call, group)
        elif rank == WAITING:
            raises("who waits", dist.DistBackendError, lambda: call(group), name, "interrupted")
        on_host()
        if rank > WAITING:
            raises("who is late", dist.DistBackendError, lambda: call(group), name, "interrupted")
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    same("another group", tensor[0].item(), float(size))
    dist.destroy_process_group()


main()
