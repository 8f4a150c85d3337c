"""All ranks of the second node are killed, and torchrun starts them again: they take their seats,
while the ranks of the first node remain the processes that they were.

Either torchrun does so itself (--max-restarts), or it ends, and is started again. How long it took
is printed.
"""

import os
import signal
import time

import commd.torch
import torch
import torch.distributed as dist

from checks import BACKEND, check, same

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NODE = int(os.environ["GROUP_RANK"])
NEW = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" or "TEST_AGAIN" in os.environ
JOB = os.environ["MASTER_PORT"]


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started():
    """When this process was started."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def lose():
    """The pids of the ranks before the loss."""
    dist.init_process_group(BACKEND)
    pids = [None] * SIZE
    dist.all_gather_object(pids, os.getpid())
    dist.barrier()
    if NODE == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.barrier()
    except dist.DistBackendError:
        return pids


def main():
    pids, called = None, 0
    if NEW:
        called = clock()
        now = commd.torch.rejoin(RANK, timeout=300, name=JOB)
    else:
        pids = lose()
        now = commd.torch.recover(policy="wait", timeout=300, name=JOB)
    back = clock()
    same("seat", (now.rank, now.size, now.epoch), (RANK, SIZE, 2))
    same("who is new", now.new, list(range(SIZE // 2, SIZE)))
    same("the first node goes on", NEW, NODE == 1)
    state = torch.zeros(5) if NEW else torch.full((5,), 7.0)
    dist.broadcast(state, now.source)
    same("the state", state[0].item(), 7.0)
    dist.all_reduce(state)
    same("all_reduce", state[0].item(), 7.0 * SIZE)
    everybody = [None] * SIZE
    dist.all_gather_object(everybody, (os.getpid(), started(), called, back))
    if pids:
        for rank, (pid, *_) in enumerate(everybody):
            check(f"process of rank {rank}", (pid == pids[rank]) == (rank not in now.new))
    if RANK == 0:
        start, call = (max(everybody[rank][i] for rank in now.new) for i in (1, 2))
        back = max(times[3] for times in everybody)
        print(f"all are in their seats {1000 * (back - call):.0f} ms after the last call of"
              f" rejoin(), which came {call - start:.2f} s after the start of the last process")
    dist.destroy_process_group()


main()
