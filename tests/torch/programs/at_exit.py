"""Goes on communicating while the interpreter ends: in functions of atexit that are older than the
groups, in a thread that outlives the main one, in what is freed last.
"""

import atexit
import threading

import torch
import torch.distributed as dist

from checks import BACKEND, check, same

pending = {}


class Last:
    """Freed with the modules."""

    def __init__(self, work, tensor, want):
        self.work, self.tensor, self.want = work, tensor, want

    def __del__(self):
        self.work.wait()
        same("sum of a work that was waited for last", self.tensor[0].item(), self.want)


def wait_for_what_is_pending():
    size = dist.get_world_size()
    for name in ("work", "thread"):
        work, tensor = pending[name]
        work.wait()
        same(f"sum of the {name}'s", tensor[0].item(), float(size))
    future = pending["future"]
    same("what a callback makes of it", future.wait()[0].item(), 2.0 * size)


def start_more():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    same("sum at exit", tensor[0].item(), size * (size - 1) / 2)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] / 2)
    check("a callback at exit", doubled.wait()[0].item() > 0 or size == 1)
    group = pending["group"] = dist.new_group()
    dist.all_reduce(tensor, group=group)
    right = dist.isend(torch.tensor([rank]), (rank + 1) % size)
    left = torch.tensor([-1])
    dist.recv(left, (rank - 1) % size)
    right.wait()
    same("a message at exit", left.item(), (rank - 1) % size)


def end():
    dist.barrier()
    dist.destroy_process_group(pending["group"])
    last = torch.ones(10)
    pending["last"] = Last(dist.all_reduce(last, async_op=True), last, float(dist.get_world_size()))


def outlive(main):
    main.join()
    tensor = torch.ones(1000)
    pending["thread"] = dist.all_reduce(tensor, async_op=True), tensor


def main():
    for function in (end, start_more, wait_for_what_is_pending):
        atexit.register(function)  # the last one is called first
    dist.init_process_group(BACKEND)
    tensor = torch.ones(100000)
    pending["work"] = dist.all_reduce(tensor, async_op=True), tensor
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    pending["future"] = future.then(lambda f: f.value()[0] * 2)
    threading.Thread(target=outlive, args=(threading.main_thread(),)).start()


main()
