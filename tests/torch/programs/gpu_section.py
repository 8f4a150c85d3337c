"""Two threads wait for the parts of a coalesced section. The first of them starts it, which waits
for the other ranks, as a group's first operation on GPUs does; the second one waits for that.
"""

import threading
import time

import torch
import torch.distributed as dist

from checks import BACKEND, DEVICE, own_stream, same

LATE = 1  # the rank


def section(group):
    """The works of two operations, which are not started."""
    backend = group._get_backend(torch.device(DEVICE))
    tensors = [torch.ones(10), torch.ones(20)]
    backend._start_coalescing()
    return backend, tensors, [dist.all_reduce(t, group=group, async_op=True) for t in tensors]


def on_host():
    dist.all_reduce(torch.ones(1, device="cpu"))


def waited_for(works):
    failed = []

    def wait(work):
        try:
            with own_stream():
                work.wait()
                torch.accelerator.synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=wait, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # both wait
    return threads, failed


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    if rank == LATE:
        on_host()
    backend, tensors, works = section(group)
    same("an operation that is not started", [w.is_completed() for w in works], [False] * 2)
    threads, failed = waited_for(works)
    if rank != LATE:
        same("a start that waits", [w.is_completed() for w in works], [False] * 2)
        on_host()
    for thread in threads:
        thread.join()
    backend._end_coalescing().wait()
    same("failures", failed, [])
    for tensor in tensors:
        same("a sum", tensor.tolist(), [float(size)] * tensor.numel())
    dist.destroy_process_group()


main()
