"""A rank is killed while the others' streams wait for it: nothing hangs, and it is named."""

import os
import signal
import time

import torch
import torch.distributed as dist

from checks import BACKEND, check, raises, same

VICTIM = 2


def until_done(work):
    limit = time.monotonic() + 200
    while not work.is_completed():
        check("it ends", time.monotonic() < limit)
        time.sleep(0.01)


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    rest = dist.new_group([r for r in range(size) if r != VICTIM])
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    same("sum", tensor[0].item(), float(size))
    pids = [None] * size
    dist.all_gather_object(pids, os.getpid())
    store = dist.distributed_c10d._get_default_store()
    if rank == VICTIM:  # once nothing is left that would tell it to the others before they wait
        store.wait([f"enqueued {r}" for r in range(size) if r != VICTIM])
        os.kill(os.getpid(), signal.SIGKILL)
    first = dist.all_reduce(tensor, async_op=True)
    first.wait()  # the stream does; the host goes on
    second = dist.all_reduce(torch.ones(5), async_op=True)
    store.set(f"enqueued {rank}", "")
    torch.accelerator.synchronize()  # ends: streams go on, with garbage
    until_done(first)
    check("no success", not first.is_success())
    error = raises("the work", dist.DistBackendError, first.wait, f"rank {VICTIM}")
    check("the error names the process", str(pids[VICTIM]) in str(error), str(error))
    until_done(second)  # what is not known to have failed is left to the stream
    raises("another work", dist.DistBackendError, second.wait, f"rank {VICTIM}")
    raises("a later call", dist.DistBackendError, lambda: dist.all_reduce(tensor), f"rank {VICTIM}")
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=rest)
    same("a group that has lost nobody", tensor[0].item(), float(size - 1))

    # told by the call if it is known by then, else by the first one after a synchronisation: on
    # no rank does the barrier begin
    other = torch.ones(10 + (rank == 0))

    def call_until_told():
        dist.all_reduce(other, group=rest)
        torch.accelerator.synchronize()
        dist.barrier(group=rest)

    raises("the next call", dist.DistBackendError, call_until_told, "all_reduce f32 sum of 11")
    dist.all_reduce(tensor, group=rest)
    same("and the group goes on", tensor[0].item(), float((size - 1) ** 2))

    # a limit is for the host
    if rank == 0:
        late = dist.irecv(torch.ones(3), 1, group=rest)
        from datetime import timedelta

        raises("a limit", dist.DistBackendError, lambda: late.wait(timedelta(seconds=0.2)), "recv")
        dist.send(torch.ones(1, device="cpu"), 1, group=rest)
        late.wait()
    if rank == 1:
        dist.recv(torch.ones(1, device="cpu"), 0, group=rest)
        dist.send(torch.ones(3), 0, group=rest)
    dist.barrier(group=rest)
    dist.destroy_process_group()


main()
