"""What gloo answers by a crash, a hang or a wrong number: told here by an exception on each rank.

Calls that do not fit together, a rank that does not come, a group that is aborted; after each of
them the process goes on, and so do other groups.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from checks import BACKEND, check, raises, same


def fine(group=None):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    same("all_reduce afterwards", tensor[0].item(), float(dist.get_world_size(group)))


def mismatches(rank, size):
    """gloo#456: EnforceNotMet, or the end of the process."""
    kind = dist.DistBackendError
    one = rank == 1
    calls = {
        "another size": lambda: dist.all_reduce(torch.ones(5 if one else 6)),
        "another type": lambda: dist.all_reduce(
            torch.ones(6).to(torch.float64 if one else torch.float32)
        ),
        "another operator": lambda: dist.all_reduce(
            torch.ones(6), dist.ReduceOp.MAX if one else dist.ReduceOp.SUM
        ),
        "another operation": lambda: dist.barrier() if one else dist.all_reduce(torch.ones(6)),
    }
    for what, call in calls.items():
        error = raises(what, kind, call, "commd: ")
        check(what, error.__traceback__ is not None)
        fine()


def another_root(rank, size):
    """The source of a small broadcast on one node waits for nobody: it is told in the next call, in
    which all are. Else all are told at once."""
    told = []
    for call in (
        lambda: dist.broadcast(torch.ones(6), 2 if rank == 1 else 3),
        lambda: dist.all_reduce(torch.ones(6)),
    ):
        try:
            call()
        except dist.DistBackendError as error:
            told.append(str(error))
    check("who called what", any("called broadcast" in text for text in told))
    fine()


def right_numbers(rank, size):
    """#162338: AVG summed. #111131: no bfloat16. And others that gloo lacks."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        tensor = torch.full((1000,), float(rank + 1), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(f"AVG of {dtype}", tensor, torch.full((1000,), (size + 1) / 2, dtype=dtype))
        out = torch.empty(10, dtype=dtype)
        dist.reduce_scatter(out, [torch.full((10,), float(rank), dtype=dtype) for _ in range(size)])
        same(f"reduce_scatter of {dtype}", out[0].item(), float(sum(range(size))))
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
        tensor = torch.ones(9, dtype=dtype) if rank % 2 else torch.zeros(9, dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        same(f"MAX of {dtype}", tensor, torch.ones(9, dtype=dtype))
    bits = torch.tensor([1 << rank], dtype=torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    same("BOR", bits.item(), (1 << size) - 1)


def refusals(rank, size):
    """What cannot be is refused at once, on the rank that asks, and nobody waits for it."""
    raises(
        "AVG of bool",
        RuntimeError,
        lambda: dist.all_reduce(torch.ones(2).bool(), dist.ReduceOp.AVG),
    )
    fine()


def a_rank_that_does_not_come(rank, size):
    """The time-out names it. #118369: the watchdog that ends the process after half an hour."""
    group = dist.new_group(timeout=timedelta(seconds=5))
    if rank == 0:
        time.sleep(0.1)
    else:
        raises(
            "time-out",
            dist.DistBackendError,
            lambda: dist.all_reduce(torch.ones(2), group=group),
            "0",
        )
    dist.barrier()
    dist.destroy_process_group(group)
    fine()


def limits(rank, size):
    """0 is no limit, nor is what no clock can count; below 0 is refused, on all ranks alike."""
    commd = dist.group.WORLD._get_backend(torch.device("cpu"))
    for limit in (timedelta(0), timedelta(days=300 * 365)):
        group = dist.new_group(timeout=limit)
        if rank == size - 1:
            time.sleep(0.2)  # the others wait
        fine(group)
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        work.wait(limit)
        if limit:  # 0 is a look at who is there already
            commd.monitored_barrier(limit)
        options = dist.AllreduceOptions()
        options.timeout = limit
        group.allreduce([torch.ones(2)], options).wait()
        dist.destroy_process_group(group)
    below = timedelta(seconds=-5)
    options = dist.AllreduceOptions()
    options.timeout = below
    work = dist.barrier(async_op=True)
    for what, call in {
        "process group": lambda: dist.new_group(timeout=below),
        "wait": lambda: work.wait(below),
        "monitored_barrier": lambda: commd.monitored_barrier(below),
        "all_reduce": lambda: dist.group.WORLD.allreduce([torch.ones(2)], options),
        "set_timeout": lambda: commd._set_default_timeout(below),
    }.items():
        raises(what, ValueError, call, f"commd: {what}: timeout is -5000 ms; allowed: from 0")
    work.wait()
    fine()


def another_limit(rank, size):
    """torch sets that of gloo's and NCCL's groups only."""
    group = dist.new_group()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    if rank != 0:
        what = lambda: dist.all_reduce(torch.ones(2), group=group)  # noqa: E731
        raises("another limit", dist.DistBackendError, what, "timeout of 1 s")
    dist.barrier()
    dist.destroy_process_group(group)


def an_unfinished_section(rank, size):
    """An exception in it is not the end of later calls, which torch would collect for ever."""
    cpu = torch.device("cpu")
    names = dist.distributed_c10d._coalescing_manager, dist._coalescing_manager
    for device, manager in ((None, names[0]), (cpu, names[0]), (cpu, names[1])):
        lost = torch.ones(2)
        try:
            with manager(device=device, async_ops=True):
                dist.all_reduce(lost)
                raise KeyError("the program's own")
        except KeyError:
            fine()
        same("what was collected", lost[0].item(), 1.0)
    with dist.distributed_c10d._coalescing_manager():
        tensors = [torch.ones(2), torch.ones(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same("a section afterwards", tensor[0].item(), float(size))


def an_inference_tensor(rank, size):
    with torch.inference_mode():
        tensor = torch.ones(3)
    torch.ops.commd.all_reduce_(tensor, "sum", dist.group.WORLD.group_name)
    same("all_reduce_ of an inference tensor", tensor[0].item(), float(size))


def aborted(rank, size):
    """A group is aborted from another thread's side: whoever waits in it hears of it."""
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    if rank == 0:
        backend.abort()
    else:
        raises("abort", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(2), group=group))
    fine()


def main():
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    right_numbers(rank, size)
    mismatches(rank, size)
    another_root(rank, size)
    refusals(rank, size)
    a_rank_that_does_not_come(rank, size)
    limits(rank, size)
    another_limit(rank, size)
    an_unfinished_section(rank, size)
    an_inference_tensor(rank, size)
    aborted(rank, size)
    dist.destroy_process_group()


main()
