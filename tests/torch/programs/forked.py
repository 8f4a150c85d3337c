"""A rank forks: while its group is alive the child may not use it; later it may be a rank."""

import os

import torch
import torch.distributed as dist

from checks import BACKEND, FOLDER, raises, same

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def child(function):
    """Runs it in a forked process, which has to end well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    same("exit code of the child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


def world(name):
    """A world of these processes: uses blocking calls, asynchronous ones and callbacks."""
    file = os.path.join(FOLDER, name)
    dist.init_process_group(BACKEND, init_method=f"file://{file}", rank=RANK, world_size=SIZE)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    same("all_reduce and a callback", doubled.wait()[0].item(), 2.0 * SIZE * SIZE)


def refused():
    raises("in a child", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(1)), "fork")


def main():
    world("first")
    child(refused)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    same("all_reduce after the child has ended", tensor.item(), float(SIZE))
    dist.destroy_process_group()

    def again():
        world("second")
        dist.destroy_process_group()

    child(again)
    again_here = os.path.join(FOLDER, "third")
    dist.init_process_group(BACKEND, init_method=f"file://{again_here}", rank=RANK, world_size=SIZE)
    dist.barrier()
    dist.destroy_process_group()


main()
