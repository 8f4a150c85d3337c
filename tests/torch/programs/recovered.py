"""Rank 0 is killed, and torch's store with it: the others go on in the same process groups.

Then a rank that is blocked is freed by a thread of its own, which aborts the group, and all repair
it.
"""

import os
import signal
import threading
import time

import commd.torch
import torch
import torch.distributed as dist

from checks import BACKEND, check, raises, same

CPU = torch.device("cpu")
SUCCESS = getattr(getattr(torch._C._distributed_c10d, "ErrorType", None), "SUCCESS", None)


def total(group=None):
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def stands(group=None):
    backend = (group or dist.group.WORLD)._get_backend(CPU)
    check("_stands() beside get_error()", SUCCESS is None or not hasattr(backend, "get_error")
          or (backend.get_error() == SUCCESS) == backend._stands())  # fmt: skip
    return backend._stands()


def sums(size):
    return float(size * (size + 1) // 2)


def everything(rank, size):
    """What names ranks, by torch's global numbers."""
    same("all_reduce", total(), sums(size))
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    same("all_gather_object", objects, list(range(size)))
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, size - 1)
    same("broadcast", tensor[0].item(), float(size - 1))
    if rank == 0:
        dist.send(tensor, size - 1, tag=5)
    elif rank == size - 1:
        same("source", dist.recv(torch.empty(3), tag=5), 0)
    dist.group.WORLD._get_backend(CPU).monitored_barrier()
    dist.barrier()


def shrunk(world, groups):
    rank = dist.get_rank()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.all_reduce(torch.ones(100_000), async_op=True)
    raises("a pending operation", dist.DistBackendError, pending.wait, "rank 0")
    check("the group is broken", not stands())
    now = commd.torch.recover(min_size=3, timeout=300)
    same("old place", (now.old_rank, now.old_size, now.old_epoch), (rank, 4, 1))
    same("new place", (now.rank, now.size, now.epoch), (rank - 1, 3, 2))
    same("who is gone, who is new", (now.gone, now.new, now.source), ([0], [], 0))
    same("who was who", now.before, [1, 2, 3])
    same("dist", (dist.get_rank(), dist.get_world_size()), (rank - 1, 3))
    check("the same object", dist.group.WORLD is world and stands())
    same("global ranks", dist.get_process_group_ranks(world), [0, 1, 2])
    rank = dist.get_rank()
    everything(rank, 3)

    # the other groups: old ranks {1, 3}, {1, 2, 3} and {0, 2}
    standing = {"odds": rank in (0, 2), "rest": True, "evens": False}
    for name, group in groups.items():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            check(f"{name} told", (group in now.standing) == standing[name])
            check(f"{name} told", (group in now.broken) == (not standing[name]))
            same(f"{name} stands", stands(group), standing[name])
    same("rest", dist.get_process_group_ranks(groups["rest"]), [0, 1, 2])
    same("all_reduce of rest", total(groups["rest"]), 6.0)
    if rank in (0, 2):
        odds = groups["odds"]
        same("odds", dist.get_process_group_ranks(odds), [0, 2])
        same("rank in odds", dist.get_rank(odds), rank // 2)
        same("global rank", dist.get_global_rank(odds, 1), 2)
        same("all_reduce of odds", total(odds), 4.0)
    else:
        evens = groups["evens"]
        now = commd.torch.recover(evens)
        same("evens", (now.gone, dist.get_process_group_ranks(evens)), ([0], [1]))
        same("place in evens", (dist.get_rank(evens), dist.get_world_size(evens)), (0, 1))
        same("all_reduce of evens", total(evens), 2.0)

    # new groups, without the store
    pair = dist.new_group([1, 2])
    if rank:
        same("a new group", total(pair), 5.0)
    halves, _ = dist.new_subgroups(3)
    same("new subgroups", total(halves), 6.0)
    dist.destroy_process_group(halves)
    raises("no policy", ValueError, lambda: commd.torch.recover(policy="grow"), '"shrink", "wait"')
    other = pair if rank else groups["rest"]
    raises("not the world", ValueError,
           lambda: commd.torch.recover(other, policy="wait"), "default group")  # fmt: skip


def revoked(world):
    """abort() is a revoke: from any thread, while others hold the GIL or are blocked."""
    rank = dist.get_rank()
    if rank == 1:
        backend = world._get_backend(CPU)
        watchdog = threading.Thread(target=lambda: (time.sleep(0.2), backend.abort()))
        watchdog.start()
        error = raises("blocked", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(9)))
        watchdog.join()
    elif rank == 0:
        error = raises("blocked", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(9)))
    else:  # this one never comes, and is told all the same
        while stands():
            time.sleep(0.01)
        error = raises("later", dist.DistBackendError, lambda: dist.all_reduce(torch.ones(9)))
    check("who aborted", "rank 1" in str(error) or rank == 1, str(error))
    now = commd.torch.recover()
    same("repaired", (now.rank, now.size, now.epoch, now.gone), (rank, 3, 3, []))
    everything(rank, 3)


def main():
    dist.init_process_group(BACKEND)
    groups = {
        "odds": dist.new_group([1, 3]),
        "rest": dist.new_group([1, 2, 3]),
        "evens": dist.new_group([0, 2]),
    }
    world = dist.group.WORLD
    dist.barrier()
    shrunk(world, groups)
    revoked(world)
    dist.destroy_process_group()


main()
